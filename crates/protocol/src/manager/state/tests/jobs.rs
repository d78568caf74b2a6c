//! How jobs begin, wait and end, and what is refused.

use super::*;

/// CM-5: free nodes are filled, nothing starts before all are ready, and the largest status is that of the job.
#[test]
fn cm_5_a_job_is_prepared_started_and_over() {
    let mut story = Story::new(&[2, 4, 2]);
    assert_eq!(story.run(0, wanted(5)), ["01 prepare 1.0 n1:0..4 n0:4..5"]);
    assert_eq!(story.used(), [1, 4, 0]);
    assert_eq!(story.ready(1, at(1, 0), 0), [""; 0]);
    assert_eq!(story.ready(1, at(1, 0), 0), [""; 0], "said twice, it counts once");
    assert_eq!(story.phase(1), RunPhase::Preparing);
    assert_eq!(story.ready(0, at(1, 0), 0), ["01 go 1.0 2"]);
    assert_eq!(story.phase(1), RunPhase::Running);
    assert_eq!(story.ended(1, at(1, 0), &[0, 1, 2, 3], End::Exited(0)), [""; 0]);
    let ranks = vec![Ended { rank: 4, life: 0, end: End::Exited(3), aborted: false }];
    assert_eq!(story.report(0, Report::Ended { attempt: at(1, 0), ranks }), ["01 over 1 3"]);
    assert_eq!((story.over(1), story.used()), ((3, String::new()), vec![0, 0, 0]));
    let ranks = story.state.run("run-1").unwrap().all_ranks;
    assert_eq!(
        ranks.iter().map(|r| (&*r.node, r.end)).collect::<Vec<_>>()[3..],
        [("n1", Some(End::Exited(0))), ("n0", Some(End::Exited(3)))]
    );
}

/// The console's node takes part, though it runs nothing.
#[test]
fn cm_5_home_may_run_nothing() {
    let mut story = Story::new(&[2, 4]);
    assert_eq!(story.run(0, wanted(4)), ["01 prepare 1.0 n1:0..4"]);
    story.ready(1, at(1, 0), 0);
    assert_eq!(story.ready(0, at(1, 0), 0), ["01 go 1.0 2"]);
    assert_eq!(story.used(), [0, 4]);
    assert_eq!(story.state.run("1").unwrap().run.nodes, ["n1"]);
}

/// mpiexec's habits: the order of hosts, their slots, a limit for each.
#[test]
fn cm_5_hosts_are_filled_in_their_order() {
    let mut story = Story::new(&[4, 4, 4]);
    let hosts = |list: &[(&str, Option<u32>)]| list.iter().map(|(n, s)| ((*n).to_owned(), *s)).collect::<Vec<_>>();
    let job = Wanted { hosts: hosts(&[("n2", Some(1)), ("n0", None), ("n1", None)]), ..wanted(6) };
    assert_eq!(story.run(0, job), ["012 prepare 1.0 n2:0..1 n0:1..5 n1:5..6"]);
    let mut story = Story::new(&[4, 4, 4]);
    let job = Wanted { hosts: hosts(&[("n1", Some(1)), ("n0", Some(1)), ("n1", Some(2))]), ..wanted(4) };
    assert_eq!(story.run(0, job), ["01 prepare 1.0 n1:0..3 n0:3..4"], "a host that is named twice gives both");
    let mut story = Story::new(&[4, 4, 4]);
    assert_eq!(story.run(0, Wanted { per_node: Some(2), ..wanted(5) }), ["012 prepare 1.0 n0:0..2 n1:2..4 n2:4..5"]);
}

#[test]
fn cm_5_oversubscribed_ranks_go_round_by_round() {
    let mut story = Story::new(&[1, 2]);
    assert_eq!(story.run(0, Wanted { oversubscribe: true, ..wanted(7) }), ["01 prepare 1.0 n1:0..5 n0:5..7"]);
    assert_eq!(story.used(), [2, 5]);
    let mut story = Story::new(&[1, 2]);
    assert_eq!(
        story.run(0, Wanted { oversubscribe: true, ..wanted(3) }),
        ["01 prepare 1.0 n1:0..2 n0:2..3"],
        "what fits is not"
    );
}

/// Spares are kept where no rank is, and are nobody else's.
#[test]
fn cm_5_spares_are_kept_free() {
    let mut story = Story::new(&[2, 2, 2]);
    story.run(0, Wanted { spares: 2, ..wanted(3) });
    assert_eq!(story.used(), [2, 1, 2]);
    story.run(0, wanted(2));
    assert_eq!(story.phase(2), RunPhase::Queued);
}

/// Said before anything starts, with what to do; nothing changes.
#[test]
fn cm_5_what_can_never_run_is_refused_at_once() {
    let mut story = Story::new(&[4, 4]);
    let mut no = |wanted: Wanted| story.refused(Ask::Run(wanted));
    assert_eq!(no(wanted(12)), "12 ranks wanted, there are 8 slots on 2 nodes: use fewer, or --oversubscribe");
    assert_eq!(
        no(Wanted { spares: 1, ..wanted(8) }),
        "8 ranks and 1 spare wanted, there are 8 slots on 2 nodes: use fewer, or --oversubscribe"
    );
    assert_eq!(
        no(Wanted { per_node: Some(1), ..wanted(3) }),
        "3 ranks wanted, there are 2 slots on 2 nodes with at most 1 on each: use fewer, or --oversubscribe"
    );
    let on = |name: &str, slots| vec![(name.to_owned(), slots)];
    assert_eq!(
        no(Wanted { hosts: on("m7", None), ..wanted(1) }),
        "no node is called m7: `phalanx drain` lists them all"
    );
    assert_eq!(
        no(Wanted { hosts: on("n1", Some(6)), ..wanted(6) }),
        "n1 has 4 slots, 6 were asked of it: ask for n1:4, or --oversubscribe"
    );
    assert_eq!(
        no(Wanted { hosts: on("n1", None), ..wanted(5) }),
        "5 ranks wanted, there are 4 slots on n1: use fewer, or --oversubscribe"
    );
    assert!(no(wanted(0)).contains("ask for 1 or more"));
    assert!(no(wanted(RANKS_MAX + 1)).contains("use fewer"));
    assert!(no(Wanted { spec: vec![0; SPEC_MAX + 1], ..wanted(1) }).contains("forward less"));
    assert!(no(Wanted { name: Some("a b".into()), ..wanted(1) }).contains("letters, digits"));
    assert!(no(Wanted { name: Some("17".into()), ..wanted(1) }).contains("not digits alone"));
    story.run(0, Wanted { name: Some("cg".into()), ..wanted(1) });
    let again = Ask::Run(Wanted { name: Some("cg".into()), ..wanted(1) });
    assert_eq!(story.refused(again), "job 1 is called cg and is not over: take another name, or wait");
}

#[test]
fn cm_5_jobs_wait_for_slots_in_their_order() {
    let mut story = Story::new(&[4, 4]);
    story.running(0, wanted(6), &[0, 1]);
    assert_eq!(story.run(0, wanted(4)), [""; 0]);
    assert_eq!(story.run(0, wanted(1)), [""; 0], "it fits, but it is not its turn");
    let why = |story: &Story, job: &str| story.state.run(job).unwrap().run.why;
    assert_eq!(why(&story, "2"), "4 ranks wanted, 2 slots are free: it waits for others to end");
    assert_eq!(why(&story, "3"), "jobs that were asked for before it wait, too");
    story.ended(0, at(1, 0), &[0, 1, 2, 3], End::Exited(0));
    assert_eq!(
        story.ended(1, at(1, 0), &[4, 5], End::Exited(0)),
        ["01 over 1 0", "0 prepare 2.0 n0:0..4", "01 prepare 3.0 n1:0..1"]
    );
}

/// Who waits for a node that is busy holds up those only who would use it.
#[test]
fn cm_5_a_job_that_waits_for_its_own_nodes_does_not_hold_up_others() {
    let mut story = Story::new(&[4, 4]);
    let on = |n: &str, ranks| Wanted { hosts: vec![(n.to_owned(), None)], ..wanted(ranks) };
    story.running(1, on("n1", 2), &[1]);
    assert_eq!(story.run(1, on("n1", 4)), [""; 0]);
    assert_eq!(story.run(1, on("n1", 1)), [""; 0], "that would overtake it");
    assert_eq!(story.run(0, wanted(3)), ["0 prepare 4.0 n0:0..3"]);
    assert_eq!(story.run(0, wanted(3)), [""; 0]);
}

/// Who waits for nodes that are gone holds up nobody.
#[test]
fn cm_5_a_job_that_cannot_run_any_more_does_not_hold_up_others() {
    let mut story = Story::new(&[4, 4]);
    story.running(0, wanted(2), &[0]);
    assert_eq!(story.run(0, wanted(8)), [""; 0]);
    assert_eq!(story.run(0, wanted(2)), [""; 0]);
    assert_eq!(story.lost(1), [""; 0]);
    assert_eq!(story.run(0, wanted(1)), ["0 prepare 3.0 n0:0..2"], "now it is the turn of those behind it");
    let why = story.state.run("2").unwrap().run.why;
    assert_eq!(why, "8 ranks wanted, there are 4 slots on 1 nodes: use fewer, or --oversubscribe");
}

#[test]
fn cm_5_a_missing_program_is_found_before_anything_starts() {
    let mut story = Story::new(&[2, 2]);
    story.run(0, wanted(4));
    story.ready(0, at(1, 0), 0);
    let why = "cg: no such file or directory".to_owned();
    assert_eq!(story.report(1, Report::Unfit { attempt: at(1, 0), life: 0, why }), ["01 stop 1.0", "01 over 1 127"]);
    assert_eq!(story.over(1), (127, "n1: cg: no such file or directory".into()));
    assert_eq!(story.used(), [0, 0]);
}

#[test]
fn cm_5_a_node_that_never_says_whether_it_can_is_named() {
    let mut story = Story::new(&[2, 2]);
    story.run(0, wanted(4));
    story.ready(0, at(1, 0), 0);
    assert_eq!(story.state.wakes_at_ms(), Some(1_000_000 + PREPARE_MS));
    assert_eq!(story.later(PREPARE_MS), ["01 stop 1.0", "01 over 1 127"]);
    assert_eq!(story.over(1).1, "n1 did not say within 60 s whether it can run it");
}

#[test]
fn cm_5_time_runs_out_while_it_runs_not_while_it_waits() {
    let mut story = Story::new(&[2]);
    story.running(0, wanted(2), &[0]);
    story.run(0, Wanted { timeout_ms: Some(1_500), ..wanted(2) });
    story.later(100_000);
    story.ended(0, at(1, 0), &[0, 1], End::Exited(0));
    story.ready(0, at(2, 0), 0);
    assert_eq!(story.later(1_499), [""; 0]);
    assert_eq!(story.later(1), ["0 stop 2.0"]);
    assert_eq!(story.state.wakes_at_ms(), None);
    assert_eq!(story.cleared(0, at(2, 0), 0), ["0 over 2 124"]);
    assert_eq!(story.over(2).1, "its time of 1.500 s is over");
}

/// Signals are for the owner and root, and what they end has not failed.
#[test]
fn cm_2_signals_belong_to_the_owner() {
    let mut story = Story::new(&[2, 2]);
    story.running(0, wanted(4), &[0, 1]);
    let ask = |signal, uid| Ask::Signal { job: JobId(1), signal, uid };
    assert_eq!(story.refused(ask(2, 7)), "job 1 is user 1000's: only they and root may do that");
    assert_eq!(story.refused(ask(99, 1000)), "there is no signal 99: they go from 1 to 64");
    assert_eq!(
        story.refused(Ask::End { job: JobId(1), why: "no".into(), uid: 7 }),
        "job 1 is user 1000's: only they and root may do that"
    );
    assert_eq!(
        story.refused(Ask::End { job: JobId(5), why: "no".into(), uid: 0 }),
        "there is no job 5: `phalanx job ls` lists them"
    );
    assert_eq!(story.ask(1, ask(2, 1000)), (Answer::Done, vec!["01 signal 1 2".into()]));
    story.ended(0, at(1, 0), &[0, 1], End::Killed(2));
    assert_eq!(story.ended(1, at(1, 0), &[2, 3], End::Killed(2)), ["01 over 1 130"]);
}

#[test]
fn cm_2_a_job_is_ended_wherever_it_is() {
    let mut story = Story::new(&[2, 2]);
    let end = |job| Ask::End { job: JobId(job), why: "enough".into(), uid: 0 };
    story.running(0, wanted(4), &[0, 1]);
    story.run(1, wanted(3));
    assert_eq!(story.ask(1, end(2)).1, ["1 over 2 137"], "it waited");
    assert_eq!(story.ask(1, end(1)).1, ["01 stop 1.0"]);
    assert_eq!(story.ask(1, end(1)), (Answer::Done, vec![]));
    story.cleared(0, at(1, 0), 0);
    assert_eq!(story.cleared(1, at(1, 0), 0), ["01 over 1 137"]);
    assert_eq!(story.over(1), (137, "enough".into()));
    story.run(0, wanted(2));
    assert_eq!(story.ask(0, Ask::Signal { job: JobId(3), signal: 15, uid: 1000 }).1, ["0 stop 3.0", "0 over 3 143"]);
}

#[test]
fn cm_5_drained_nodes_get_no_new_ranks() {
    let mut story = Story::new(&[2, 2]);
    story.running(0, wanted(3), &[0, 1]);
    let drain = |drained| Ask::Drain { node: "n1".into(), drained };
    assert_eq!(story.ask(0, drain(true)), (Answer::Done, vec![]));
    assert_eq!(story.phase(1), RunPhase::Running, "what runs goes on");
    let on_it = Wanted { hosts: vec![("n1".into(), None)], ..wanted(1) };
    assert_eq!(story.refused(Ask::Run(on_it)), "n1 is drained: leave it out, or say `phalanx drain --undo n1`");
    assert_eq!(story.run(0, wanted(2)), [""; 0]);
    assert_eq!(story.ask(0, drain(false)).1, [""; 0]);
    assert_eq!(story.ended(0, at(1, 0), &[0, 1], End::Exited(0)), [""; 0]);
    assert_eq!(story.ended(1, at(1, 0), &[2], End::Exited(0)), ["01 over 1 0", "0 prepare 2.0 n0:0..2"]);
    assert_eq!(
        story.refused(Ask::Drain { node: "x".into(), drained: true }),
        "no node is called x: `phalanx drain` lists them all"
    );
}

/// A question or a report that comes twice counts once, reports out of order wait for their turn.
#[test]
fn cm_4_each_word_counts_once_and_in_its_order() {
    let mut story = Story::new(&[2]);
    story.running(0, wanted(2), &[0]);
    let mut say = |number, report| {
        told(&story.fact(Fact::Reported(vec![Reported { from: key(0), incarnation: 1, number, report }])))
    };
    let ended = |rank| Ended { rank, life: 0, end: End::Exited(0), aborted: false };
    // 1 was the inventory, 2 the Ready.
    assert_eq!(say(4, Report::Cleared { attempt: at(1, 0), life: 0 }), [""; 0], "too early");
    let both = Report::Ended { attempt: at(1, 0), ranks: vec![ended(0), ended(1)] };
    assert_eq!(say(3, both.clone()), ["0 over 1 0"]);
    assert_eq!(say(3, both), [""; 0]);
    assert_eq!(story.state.heard(&key(0)), Some((1, 4)));
    let run = |number| Fact::Asked { from: key(0), incarnation: 1, number, ask: Ask::Run(wanted(1)) };
    assert_eq!(told(&story.fact(run(77))), ["0 prepare 2.0 n0:0..1"]);
    assert_eq!(told(&story.fact(run(77))), [""; 0]);
    let stranger = Fact::Asked { from: key(5), incarnation: 1, number: 1, ask: Ask::Run(wanted(1)) };
    assert_eq!(story.fact(stranger), [], "who is not known has to wait");
}

/// Past its bound, the table of old jobs forgets the oldest.
#[test]
fn cm_5_old_jobs_are_kept_for_a_while() {
    let mut story = Story::new(&[1]);
    let mut out = Vec::new();
    for number in 0..OVER_MAX as u64 + 5 {
        let asks = [Ask::Run(wanted(1)), Ask::End { job: JobId(number + 1), why: "x".into(), uid: 0 }];
        for (n, ask) in asks.into_iter().enumerate() {
            let fact = Fact::Asked { from: key(0), incarnation: 1, number: 2 * number + n as u64 + 1, ask };
            story.state.apply(&Entry { at_ms: number, fact }, &mut out);
        }
    }
    assert_eq!(story.state.runs().len(), OVER_MAX);
    assert_eq!(story.state.runs()[0].number, 6);
    assert_eq!(story.state.run("run-5"), None);
    assert_eq!(story.state.run("run-6").unwrap().run.status, Some(137));
}
