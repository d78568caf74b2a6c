//! What becomes of jobs when parts of them die.

use super::*;

/// All ranks end, and the job with them, with what it failed of.
#[test]
fn cm_5_abort_ends_all() {
    let mut story = Story::new(&[2, 2]);
    story.running(0, wanted(4), &[0, 1]);
    assert_eq!(story.ended(1, at(1, 0), &[2], End::Killed(11)), ["01 stop 1.0"]);
    story.cleared(1, at(1, 0), 0);
    assert_eq!(story.phase(1), RunPhase::Stopping);
    assert_eq!(story.ended(0, at(1, 0), &[0], End::Killed(9)), [""; 0]);
    assert_eq!(story.cleared(0, at(1, 0), 0), ["01 over 1 139"]);
    assert_eq!(story.over(1), (139, "rank 2 on n1 died of signal 11".into()));
    assert!(story.log(1).contains("rank 2 on n1 died of signal 11: ends all ranks\n"), "{}", story.log(1));
}

/// A status other than 0 is a failure only of ranks that did not finalise.
#[test]
fn cm_5_an_exit_before_finalize_is_a_failure() {
    let mut story = Story::new(&[2]);
    story.running(0, wanted(2), &[0]);
    let exits = |status, aborted| vec![Ended { rank: 0, life: 0, end: End::Exited(status), aborted }];
    assert_eq!(story.report(0, Report::Ended { attempt: at(1, 0), ranks: exits(1, false) }), [""; 0]);
    assert_eq!(story.ended(0, at(1, 0), &[1], End::Exited(6)), ["0 stop 1.0", "0 over 1 6"]);
    assert_eq!(story.over(1).1, "rank 1 on n0 ended with status 6 before MPI_Finalize");
}

#[test]
fn cm_5_restart_runs_it_again_on_nodes_that_are_well() {
    let mut story = Story::new(&[2, 2, 2]);
    story.running(0, with(4, OnFailure::Restart), &[0, 1]);
    assert_eq!(story.run(2, wanted(3)), [""; 0]);
    story.lost(1);
    assert_eq!(story.later(LEASE_MS), ["move 12"].map(str::to_owned)[..0], "nothing is known yet");
    assert_eq!(story.later(MARGIN_MS), ["1 stop 1.0", "01 stop 1.0"]);
    assert_eq!(
        story.cleared(0, at(1, 0), 0),
        ["1 over 1 0", "02 prepare 1.1 n0:0..2 n2:2..4"],
        "before the one that waited"
    );
    story.ready(0, at(1, 1), 0);
    assert_eq!(story.ready(2, at(1, 1), 0), ["02 go 1.1 2"]);
    assert_eq!(story.state.run("1").unwrap().run.attempt, 1);
    assert_eq!(story.cleared(0, at(1, 0), 0), [""; 0], "news of the old attempt are old");
}

#[test]
fn cm_5_restart_gives_up_in_the_end() {
    let mut story = Story::new(&[1]);
    story.running(0, with(1, OnFailure::Restart), &[0]);
    for attempt in 0..ATTEMPTS_MAX {
        assert_eq!(story.phase(1), RunPhase::Running);
        story.ended(0, at(1, attempt), &[0], End::Killed(6));
        story.ready(0, at(1, attempt + 1), 0);
    }
    assert_eq!(story.over(1), (134, "rank 0 on n0 died of signal 6; it was started 16 times".into()));
}

/// The survivors go on, and their status is the job's.
#[test]
fn cm_5_continue_goes_on() {
    let mut story = Story::new(&[2, 2]);
    story.running(0, with(4, OnFailure::Continue), &[0, 1]);
    assert_eq!(story.ended(1, at(1, 0), &[2], End::Killed(9)), [""; 0]);
    story.ended(0, at(1, 0), &[0, 1], End::Exited(0));
    assert_eq!(story.ended(1, at(1, 0), &[3], End::Exited(0)), ["01 over 1 0"]);
    assert!(story.log(1).contains("rank 2 on n1 died of signal 9: the others go on"));
}

#[test]
fn cm_5_respawn_starts_the_rank_on_its_node() {
    let mut story = Story::new(&[2, 2]);
    story.running(0, with(4, OnFailure::Respawn), &[0, 1]);
    assert_eq!(story.ended(1, at(1, 0), &[3], End::Killed(9)), ["1 respawn 1.0.1 3..4"]);
    assert_eq!(story.ended(1, at(1, 0), &[3], End::Killed(9)), [""; 0], "that was its first life");
    assert_eq!(story.cleared(1, at(1, 0), 0), ["1 respawn 1.0.2 2..3"], "of rank 3 that says nothing");
    assert_eq!(story.ready(1, at(1, 0), 1), ["1 go 1.0.1"]);
    assert_eq!(story.ready(1, at(1, 0), 2), ["1 go 1.0.2"]);
    assert_eq!(story.state.run("1").unwrap().all_ranks.iter().map(|r| r.life).collect::<Vec<_>>(), [0, 0, 1, 1]);
    story.ended(0, at(1, 0), &[0, 1], End::Exited(0));
    story.ended_in(1, at(1, 0), 1, &[3], End::Exited(0));
    assert_eq!(story.ended_in(1, at(1, 0), 2, &[2], End::Exited(0)), ["01 over 1 0"]);
}

/// A rank of a node that is gone starts on a spare, after its lease and not before.
#[test]
fn cm_5_respawn_takes_a_spare_when_the_node_is_gone() {
    let mut story = Story::new(&[2, 2, 2]);
    story.running(0, Wanted { spares: 2, ..with(4, OnFailure::Respawn) }, &[0, 1]);
    assert_eq!(story.used(), [2, 2, 2]);
    story.lost(1);
    assert_eq!(story.state.wakes_at_ms(), Some(1_000_000 + SEAT_PATIENCE_MS), "the replica first");
    story.later(LEASE_MS + MARGIN_MS - 1);
    assert_eq!(story.state.wakes_at_ms(), Some(1_000_000 + LEASE_MS + MARGIN_MS));
    assert_eq!(story.later(1), ["1 stop 1.0", "2 respawn 1.0.1 2..4"]);
    assert_eq!(story.used(), [2, 0, 2]);
    let log = story.log(1);
    assert!(log.contains("n1 is gone, as its zone says; its ranks may run for 12 s more\n"), "{log}");
    assert!(
        log.contains("ranks 2-3 on n1 are lost: the node is gone and its lease over: starts again alone\n"),
        "{log}"
    );
    story.back(1, 2, true);
    assert_eq!(story.inventory(1, &[at(1, 0)]), ["1 stop 1.0", "1 over 1 0"], "what is left there is not meant to be");
}

#[test]
fn cm_5_respawn_waits_for_a_slot() {
    let mut story = Story::new(&[2, 2]);
    story.running(0, with(4, OnFailure::Respawn), &[0, 1]);
    story.lost(1);
    assert_eq!(story.later(LEASE_MS + MARGIN_MS), ["1 stop 1.0"]);
    assert_eq!(story.state.run("1").unwrap().run.why, "for ranks 2-3 there is no free slot to start again");
    story.back(1, 2, true);
    assert_eq!(story.inventory(1, &[]), ["1 respawn 1.0.1 2..4"]);
    assert_eq!(story.used(), [2, 2]);
}

#[test]
fn cm_5_respawn_gives_up_in_the_end() {
    let mut story = Story::new(&[1]);
    story.running(0, with(1, OnFailure::Respawn), &[0]);
    for life in 0..=LIVES_MAX {
        assert_eq!(story.phase(1), RunPhase::Running);
        story.ended_in(0, at(1, 0), life, &[0], End::Killed(6));
        story.ready(0, at(1, 0), life + 1);
    }
    assert_eq!(story.over(1), (134, "rank 0 on n0 died of signal 6; rank 0 was started again 16 times".into()));
}

#[test]
fn cm_5_a_node_that_cannot_start_them_again_is_not_asked_twice() {
    let mut story = Story::new(&[1, 1, 1]);
    story.running(0, Wanted { spares: 1, ..with(2, OnFailure::Respawn) }, &[0, 1]);
    assert_eq!(story.ended(1, at(1, 0), &[1], End::Killed(9)), ["1 respawn 1.0.1 1..2"]);
    let unfit = |life| Report::Unfit { attempt: at(1, 0), life, why: "no such program: cg".into() };
    assert_eq!(story.report(1, unfit(1)), ["2 respawn 1.0.2 1..2"]);
    assert_eq!(story.used(), [1, 0, 1]);
    story.report(2, unfit(2));
    assert_eq!(story.phase(1), RunPhase::Running);
    assert!(story.state.run("1").unwrap().run.why.contains("no free slot"));
}

/// Slots of ranks that have ended are the job's still: others of its ranks may have them.
#[test]
fn cm_5_respawn_uses_what_the_job_has_already() {
    let mut story = Story::new(&[1, 1]);
    story.running(0, with(2, OnFailure::Respawn), &[0, 1]);
    story.lost(1);
    story.later(LEASE_MS + MARGIN_MS);
    assert_eq!(story.ended(0, at(1, 0), &[0], End::Exited(0)), ["0 respawn 1.0.1 1..2"]);
    assert_eq!(story.used(), [1, 0]);
}

/// A node that takes ranks again has no more free slots than before, when the job holds them all: it goes on all the same.
#[test]
fn cm_5_respawn_goes_on_when_its_node_is_not_drained_any_more() {
    let mut story = Story::new(&[1]);
    story.running(0, with(1, OnFailure::Respawn), &[0]);
    let drain = |drained| Ask::Drain { node: "n0".into(), drained };
    story.ask(0, drain(true));
    assert_eq!(story.ended(0, at(1, 0), &[0], End::Killed(9)), [""; 0]);
    assert_eq!(story.ask(0, drain(false)).1, ["0 respawn 1.0.1 0..1"]);
}

/// Killing only the daemon changes nothing.
#[test]
fn cm_2_a_daemon_that_dies_alone_leaves_its_jobs_alone() {
    let mut story = Story::new(&[2, 2]);
    story.running(0, wanted(4), &[0, 1]);
    assert_eq!(story.lost(1), [""; 0]);
    story.later(LEASE_MS);
    assert_eq!(story.back(1, 2, true), [""; 0]);
    assert_eq!(story.inventory(1, &[at(1, 0)]), ["1 go 1.0 2"], "in case that it was not heard before");
    story.later(LEASE_MS + MARGIN_MS);
    assert_eq!(story.phase(1), RunPhase::Running);
    assert_eq!(story.state.wakes_at_ms(), None);
    story.ended(0, at(1, 0), &[0, 1], End::Exited(0));
    assert_eq!(story.ended(1, at(1, 0), &[2, 3], End::Exited(0)), ["01 over 1 0"]);
    // A false alarm, without a new start.
    let mut story = Story::new(&[2, 2]);
    story.running(0, wanted(4), &[0, 1]);
    story.lost(1);
    story.back(1, 2, false);
    assert_eq!(story.later(1_000_000), [""; 0]);
}

/// A machine that rebooted has none of its ranks: its inventory proves it, before any lease.
#[test]
fn cm_2_an_inventory_proves_what_is_dead() {
    let mut story = Story::new(&[2, 2]);
    story.running(0, with(4, OnFailure::Respawn), &[0, 1]);
    story.lost(1);
    story.back(1, 2, true);
    assert_eq!(story.inventory(1, &[]), ["1 respawn 1.0.1 2..4"]);
    assert_eq!(story.inventory(1, &[]), [""; 0], "of what was not ready yet it proves nothing");
    assert_eq!(story.inventory(1, &[at(9, 0)]), ["1 stop 9.0", "1 over 9 0"], "nobody knows that one");
}

/// An agent that starts anew is told again what it must know.
#[test]
fn cm_2_a_new_agent_is_told_again() {
    let mut story = Story::new(&[1, 1]);
    story.run(0, with(2, OnFailure::Respawn));
    story.back(1, 1, true);
    assert_eq!(story.inventory(1, &[]), ["1 prepare 1.0 n0:0..1 n1:1..2"]);
    story.ready(1, at(1, 0), 0);
    story.ready(0, at(1, 0), 0);
    story.ended(1, at(1, 0), &[1], End::Killed(9));
    story.back(1, 1, true);
    assert_eq!(story.inventory(1, &[at(1, 0)]), ["1 respawn 1.0.1 1..2"]);
    story.ask(0, Ask::End { job: JobId(1), why: String::new(), uid: 0 });
    story.back(1, 1, true);
    assert_eq!(story.inventory(1, &[at(1, 0)]), ["1 stop 1.0"]);
    story.cleared(0, at(1, 0), 1);
    assert_eq!(story.cleared(1, at(1, 0), 1), ["01 over 1 137"]);
}

/// A node that falls before anything was started costs nothing but another attempt.
#[test]
fn cm_5_a_node_lost_while_preparing_is_replaced() {
    let mut story = Story::new(&[2, 2, 2]);
    story.run(0, wanted(4));
    story.ready(0, at(1, 0), 0);
    assert_eq!(story.lost(1), ["01 stop 1.0", "1 over 1 0", "02 prepare 1.1 n0:0..2 n2:2..4"]);
    assert_eq!(story.used(), [2, 0, 2]);
}

/// What a view misses is dead when its shepherd is; otherwise it is killed first.
#[test]
fn cm_2_missed_ranks_are_dead_or_killed() {
    let missed_at = |n, ranks: &[(u32, u32)], proven| {
        let ranks = ranks.iter().map(|&(rank, start)| MissedRank { rank, start }).collect();
        Report::Missed { attempt: at(1, 0), at: At::Local(n), ranks, proven }
    };
    let missed = |ranks: &[(u32, u32)], proven| missed_at(u32::from(ranks[0].0 > 1), ranks, proven);
    let mut story = Story::new(&[2, 2]);
    story.running(0, with(4, OnFailure::Respawn), &[0, 1]);
    assert_eq!(story.report(0, missed(&[(2, 101)], true)), [""; 0], "that is another rank's start");
    assert_eq!(story.report(0, missed_at(2, &[(2, 100)], true)), [""; 0], "and that is another shepherd");
    assert_eq!(story.report(0, missed(&[(2, 100), (3, 101)], false)), ["1 stop 1.0"]);
    assert_eq!(story.report(0, missed(&[(2, 100), (3, 101)], false)), [""; 0]);
    assert_eq!(story.report(1, missed(&[(0, 0), (1, 1)], false)), [""; 0], "who is missed speaks for no view");
    assert_eq!(story.cleared(1, at(1, 0), 0), ["1 respawn 1.0.1 2..4"]);
    story.ready(1, at(1, 0), 1);
    assert_eq!(story.report(0, missed(&[(2, 100)], true)), [""; 0], "old news");
    assert_eq!(story.report(0, missed(&[(2, 110), (3, 111)], true)), [""; 0], "its node may be gone as well");
    assert_eq!(story.cleared(1, at(1, 0), 1), ["1 respawn 1.0.2 2..4"]);
    let mut story = Story::new(&[2, 2]);
    story.running(0, wanted(4), &[0, 1]);
    assert_eq!(story.report(0, missed(&[(2, 100), (3, 101)], false)), ["01 stop 1.0"]);
}

/// A node whose shepherd is dead, and whose agent says nothing of it, is likely gone: nothing is started there before one of them speaks, the
/// agent or the zone.
#[test]
fn cm_5_a_node_in_doubt_takes_no_ranks() {
    let missed = |number| {
        let ranks = vec![MissedRank { rank: 2, start: 100 }, MissedRank { rank: 3, start: 101 }];
        Report::Missed { attempt: at(1, number), at: At::Local(1), ranks, proven: true }
    };
    let in_doubt = |slots: &[u32], oversubscribe| {
        let mut story = Story::new(slots);
        story.running(0, Wanted { oversubscribe, ..with(4, OnFailure::Restart) }, &[0, 1]);
        assert_eq!(story.report(0, missed(0)), ["01 stop 1.0"]);
        (story.cleared(0, at(1, 0), 0), story)
    };
    let (said, _) = in_doubt(&[2, 2, 2], false);
    assert_eq!(said, ["1 over 1 0", "02 prepare 1.1 n0:0..2 n2:2..4"], "there is room elsewhere");
    let (said, _) = in_doubt(&[2, 2], true);
    assert_eq!(said, ["1 over 1 0", "0 prepare 1.1 n0:0..4"]);
    let (said, mut story) = in_doubt(&[2, 2], false);
    assert_eq!((said, story.phase(1)), (Vec::new(), RunPhase::Queued));
    assert_eq!(story.cleared(1, at(1, 0), 0), ["01 prepare 1.1 n0:0..2 n1:2..4"], "its shepherd died alone");
    let (_, mut story) = in_doubt(&[2, 2], false);
    assert_eq!(story.lost(1), [""; 0]);
    assert_eq!(story.back(1, 2, false), ["01 prepare 1.1 n0:0..2 n1:2..4"]);
}

/// Without its console a job ends as mpiexec's do; with another policy it goes on, unheard.
#[test]
fn cm_5_a_job_whose_console_is_gone() {
    for (policy, state) in [(OnFailure::Abort, RunPhase::Stopping), (OnFailure::Continue, RunPhase::Running)] {
        let mut story = Story::new(&[2, 2]);
        let job = Wanted { hosts: vec![("n1".into(), None)], ..with(2, policy) };
        story.running(0, job, &[1, 0]);
        story.lost(0);
        assert_eq!(story.phase(1), RunPhase::Running, "its daemon may have died alone");
        story.later(LEASE_MS + MARGIN_MS);
        assert_eq!(story.phase(1), state);
        let log = story.log(1);
        assert!(log.contains("its console on n0 is gone"), "{log}");
    }
    let mut story = Story::new(&[2, 2]);
    story.running(1, wanted(4), &[0, 1]);
    story.run(0, wanted(1));
    story.lost(0);
    story.later(LEASE_MS + MARGIN_MS);
    assert_eq!(story.over(2).1, "its console on n0 is gone (n0 is gone)", "nobody waits for it any more");
}
