//! Scenarios from the outside: those that are shipped, those in the guide, and what the timeline does to a run.

use phalanx_sim::scenario::{Engine, Outcome, Scenario, Swarm, names, swarm};
use std::path::PathBuf;

const GUIDE: &str = include_str!("../../../docs/scenarios.md");
const SEEDS: std::ops::Range<u64> = 1..4;
/// Runs with drawn broken pairs.
const PAIR_SEEDS: u64 = 24;
/// Changes nothing.
const AS_IS: &[&str] = &[];

/// Links in the one, membership engines in the other.
const FOLDERS: [&str; 2] = ["../../scenarios", "../../lab/scenarios"];

fn shipped() -> Vec<(String, String)> {
    let folders = FOLDERS.map(|f| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(f));
    let files = folders.into_iter().flat_map(|f| std::fs::read_dir(f).unwrap()).map(|f| f.unwrap().path());
    let mut all: Vec<_> = files.filter(|f| f.extension().is_some_and(|e| e == "toml")).collect();
    all.sort();
    all.into_iter().map(|f| (f.display().to_string(), std::fs::read_to_string(&f).unwrap())).collect()
}

/// Four nodes that exchange reliable messages on a calm network for two seconds, and `more`.
fn ran(more: &str) -> Outcome {
    let text = format!(
        "name = 'test'\nnodes = 4\nworkload = {{ kind = 'reliable', largest = 2000 }}\nphases = {{ safety = '2s' }}\n{more}"
    );
    run(&text)
}

fn run(text: &str) -> Outcome {
    let scenario = Scenario::parse("test", text, AS_IS).unwrap_or_else(|e| panic!("{e}\n{text}"));
    scenario.run().unwrap()
}

fn green(outcome: &Outcome) -> &Outcome {
    assert!(outcome.is_green(), "{} {:?}", outcome.report, outcome.missed);
    outcome
}

fn measured(outcome: &Outcome, name: &str) -> u64 {
    outcome.measures.get(name).unwrap_or_else(|| panic!("no measure {name}"))
}

#[test]
fn shipped_scenarios_are_green_with_several_seeds() {
    let all = shipped();
    assert!(all.len() >= 15, "{} scenarios", all.len());
    for (file, text) in all {
        for seed in SEEDS {
            let mut scenario = Scenario::parse(&file, &text, AS_IS).unwrap_or_else(|e| panic!("{e}"));
            scenario.setup.seed = seed;
            let outcome = scenario.run().unwrap();
            assert!(outcome.is_green(), "{file} --seed {seed}: {} {:?}", outcome.report, outcome.missed);
            assert!(file.ends_with(&format!("/{}.toml", scenario.name)), "{file} is called {}", scenario.name);
        }
    }
}

#[test]
fn the_guides_examples_are_scenarios() {
    let blocks: Vec<&str> = GUIDE.split("```toml").skip(1).filter_map(|b| b.split("```").next()).collect();
    assert_eq!(blocks.len(), 6);
    for block in blocks {
        green(&run(block));
    }
    let tables = GUIDE.split('`').skip(1).step_by(2).filter(|part| part.starts_with("{ "));
    let mut read = 0;
    for table in tables {
        let field = match () {
            () if ["flat", "torus", "segments"].iter().any(|k| table.contains(k)) => "topology",
            () if table.contains("mbit_s") => "link",
            () if table.contains("per_flow_us") => "switch",
            () => "latency",
        };
        let text = format!("name = 'x'\nnodes = 4\nworkload.kind = 'order'\nnetwork.{field} = {table}");
        Scenario::parse("guide", &text, AS_IS).unwrap_or_else(|e| panic!("{table}: {e}"));
        read += 1;
    }
    assert!(read >= 11, "{read} tables");
}

#[test]
fn the_guide_knows_every_measure() {
    for name in Engine::ALL.into_iter().flat_map(names) {
        let last = name.rsplit('.').next().unwrap();
        let known = [format!("`{name}`"), format!("`.{last}`"), format!("`{last}`")];
        assert!(known.iter().any(|k| GUIDE.contains(k)), "{name}");
    }
}

#[test]
fn the_dead_come_back_when_their_time_is_over() {
    let outcome = ran("[[fault]]\nat = '500ms'\nkind = 'crash'\nrandom = 2\nfor = '300ms'");
    assert_eq!(measured(green(&outcome), "starts"), 6);
    let repeated = ran("[[fault]]\nat = '500ms'\nevery = '500ms'\nkind = 'crash-host'\nnodes = [1]\nfor = '100ms'");
    assert_eq!((measured(&repeated, "faults.crash-host"), measured(green(&repeated), "starts")), (3, 7));
    let listed = ran("[[fault]]\nkind = 'crash'\nnodes = [0, 1]\n[[fault]]\nat = '1s'\nkind = 'restart'");
    assert_eq!((measured(&listed, "faults.restart"), measured(green(&listed), "starts")), (2, 6));
}

#[test]
fn a_partition_stops_what_it_says_and_heals_by_name_or_by_time() {
    let dropped = |more: &str| measured(green(&ran(more)), "packets.dropped.partition");
    let cut = "[[fault]]\nat = '500ms'\nkind = 'partition'\nname = 'cable'\nnodes = [0]\n";
    let (whole, short) = (dropped(cut), dropped(&format!("{cut}for = '100ms'")));
    let named = dropped(&format!("{cut}[[fault]]\nat = '600ms'\nkind = 'heal'\nname = 'cable'"));
    assert!(0 < short && short < whole, "{short} of {whole}");
    assert_eq!(named, short, "the same run, however it is healed");
    let pair = dropped(&format!("{cut}against = [1]\ndirection = 'out'"));
    assert!(0 < pair && pair < whole, "{pair} of {whole}");
}

#[test]
fn pauses_losses_weather_and_clocks_leave_their_marks() {
    let pauses =
        ran("[[fault]]\nat = '200ms'\nevery = '400ms'\nuntil = '1300ms'\nkind = 'pause'\nrandom = 1\nfor = '50ms'");
    assert_eq!(measured(green(&pauses), "faults.pause"), 3);
    let loss = ran("[[fault]]\nkind = 'loss'\nnodes = [2]\ninward = 0.3\noutward = 0.3");
    assert!(measured(green(&loss), "packets.dropped.node-loss") > 10);
    let weather = ran("[[fault]]\nkind = 'weather'\nloss = 0.2\nduplication = 0.2\nfor = '1s'");
    assert!(measured(green(&weather), "packets.dropped.loss") > 10 && measured(&weather, "packets.duplicated") > 10);
    let calm = ran("");
    let clock = ran("[[fault]]\nkind = 'clock'\nnodes = [0]\nrate = 3.0");
    assert!(measured(green(&clock), "sent.reliable") > measured(green(&calm), "sent.reliable"), "it sends more often");
}

/// FI-3, FI-5: rules act at the point they name, and what they did is counted there.
#[test]
fn rules_act_at_their_point_and_are_counted_there() {
    let inject = |more: &str| ran(&format!("[[fault]]\nkind = 'inject'\nnodes = 'all'\n{more}"));
    let wire = inject("rule = { kind = 'modify', p = 0.1 }");
    assert!(measured(green(&wire), "injected.wire.modify") > 10);
    assert!(measured(&wire, "link.dropped.bad-seal") > 10, "below the seal a damaged packet dies at its tag");
    assert_eq!(measured(&wire, "injected.plain.modify"), 0);
    let plain = inject("point = 'plain'\nrule = { kind = 'modify', p = 0.1 }");
    assert!(measured(green(&plain), "injected.plain.modify") > 10);
    assert!(measured(&plain, "rcl.rejected") > 0, "above it the layers must see for themselves");
    let only = inject("rule = { kind = 'drop', only = ['n3'] }\nfor = '500ms'");
    assert!(measured(green(&only), "injected.wire.drop") > 10);
}

/// MM-3: whoever leads is hit, and the group goes on.
#[test]
fn a_role_is_hit_wherever_it_is() {
    let text = "name = 'x'\nnodes = 6\nworkload.kind = 'order'\nphases = { safety = '6s', liveness = '120s' }\n\
                [[fault]]\nat = '2s'\nevery = '2s'\nkind = 'crash-host'\nrole = 'leader'\nfor = '1s'";
    let outcome = run(text);
    assert_eq!(measured(green(&outcome), "faults.crash-host"), 4, "two groups, two times");
    assert!(measured(&outcome, "delivered.order") > 100);
}

/// HI-2, HI-3: a delegate whose host dies says nothing. Supervisors once went on believing what it had said last.
#[test]
fn the_census_does_not_believe_a_silent_delegate() {
    let text = "name = 'x'\nengine = 'zone'\nnodes = 34\nzones = { size = 16, supervisors = 2 }\n\
                phases = { safety = '10s', restart = false }\n\
                [[fault]]\nat = '3s'\nevery = '2s'\nuntil = '8s'\nkind = 'crash-host'\nrole = 'delegate'\nrandom = 1";
    for seed in 1..9 {
        let outcome = Scenario::parse("test", text, &[format!("seed={seed}")]).unwrap().run().unwrap();
        assert_eq!(measured(green(&outcome), "faults.crash-host"), 3);
    }
}

#[test]
fn a_bound_that_does_not_hold_makes_a_run_red() {
    let outcome = ran("[expect]\ndelivered = ['>= 1', '< 10']\nviolations = 0");
    assert!(!outcome.is_green() && outcome.report.is_green());
    let missed: Vec<_> = outcome.missed.iter().map(|m| m.bound.to_string()).collect();
    assert_eq!(missed, ["delivered < 10"]);
    assert_eq!(outcome.missed[0].value, measured(&outcome, "delivered"));
}

/// No protocol keeps its word on disks that lie: the checkers see it, through all of the scenario's machinery.
#[test]
fn a_lying_disk_is_a_violation() {
    let text = "name = 'x'\nnodes = 3\nworkload = { kind = 'order', interval_ms = 10 }\nphases = { safety = '4s' }\n\
                [[fault]]\nkind = 'disk'\nnodes = 'all'\nforget = 1.0\n\
                [[fault]]\nat = '2s'\nkind = 'crash-host'\nnodes = 'all'\nfor = '100ms'";
    let outcome = run(text);
    assert!(!outcome.report.is_green(), "{}", outcome.report);
    assert_eq!(measured(&outcome, "violations"), outcome.report.violations.len() as u64 + outcome.report.more);
}

#[test]
fn a_scenario_is_the_same_on_any_number_of_threads() {
    for (file, text) in shipped() {
        let trace = |threads: usize| {
            let outcome = Scenario::parse(&file, &text, &[format!("threads={threads}")]).unwrap().run().unwrap();
            (outcome.report.trace, outcome.measures)
        };
        assert_eq!(trace(1), trace(2), "{file}");
    }
}

#[test]
fn a_swarm_is_the_same_however_many_run_at_once() {
    for (engine, workload) in [(Engine::Link, Some("reliable".into())), (Engine::Zone, None), (Engine::View, None)] {
        let plan = |jobs| Swarm { first: 100, runs: 6, jobs, engine, workload: workload.clone(), keep_going: true };
        let (one, two) = (swarm(&plan(1), |_, _| ()), swarm(&plan(2), |_, _| ()));
        assert_eq!((one.trace, one.events, one.runs, &one.faults), (two.trace, two.events, 6, &two.faults));
        let other = swarm(&Swarm { first: 101, ..plan(2) }, |_, _| ());
        assert_ne!(one.trace, other.trace);
    }
}

/// A neighbour that restarted asked for a new link while the old one was in doubt; the answer to the doubt's probe, from its
/// new life, undid the link on one side.
#[test]
fn links_made_anew_outlive_old_doubts() {
    [7003, 7076].into_iter().for_each(drawn_members_are_green);
}

/// A wire that broke late undid a link that had just been made anew, on the side that was chosen; the other heard nothing of
/// it, and each of its beats began another doubt.
#[test]
fn a_link_is_not_undone_on_one_side_alone() {
    drawn_members_are_green(8359);
}

/// AT-2: a neighbour that restarts and is met again before its old life has left the view stays a neighbour of
/// attributes. It once was told of no write from then on.
#[test]
fn at_2_a_restarted_neighbour_is_told_of_attributes() {
    drawn_members_are_green(7065);
}

/// AT-2: one side of a link lost its session while the other's first digest was under way, dropped that as a stranger's, and
/// asked for the link anew; the other had never lost it and introduced itself no more.
#[test]
fn at_2_who_asks_for_a_link_anew_is_told_of_attributes_anew() {
    drawn_members_are_green(72_617);
}

/// ZN-5: who was asked to probe a silent member was asked again while it still tried, took that for the same question,
/// and so half of all questions stayed without answer: in small zones nobody was ever sure.
#[test]
fn zn_5_a_silent_member_of_a_small_zone_is_found_out() {
    [7388, 7685, 7769, 7995].into_iter().for_each(drawn_members_are_green);
}

/// HI-2: a delegate was told of one guard while the management zone was still growing together, and of no other later; when
/// that one left in good order nobody spoke for the zone any more.
#[test]
fn hi_2_a_guard_that_leaves_hands_its_zones_over() {
    drawn_members_are_green(8124);
}

/// A member that had been removed several times was to be well for two minutes, in a zone of two: each lost packet began them
/// anew.
#[test]
fn one_lost_packet_does_not_keep_a_member_out() {
    drawn_members_are_green(22_277);
}

/// Both who watched a member were cut off from it, saw the same, and took it for one that is hardly there, though all others
/// heard it well.
#[test]
fn zn_5_watchers_behind_one_cut_evict_nobody() {
    [30_428, 30_823, 32_958, 43_058, 62_195].into_iter().for_each(drawn_members_are_green);
}

/// Two who had removed each other several times waited until they were well, and their probes met each other's questions in
/// the same moment of each second.
#[test]
fn two_members_come_back_to_each_other() {
    [30_007, 31_861, 32_656, 32_802, 33_354, 34_886].into_iter().for_each(drawn_members_are_green);
}

/// ZN-5: newcomers heard of a member that was dead already, asked it to be a neighbour, and gave that up when the link did:
/// none of them was ever sure that it was gone.
#[test]
fn zn_5_the_dead_of_whom_only_newcomers_know_are_found_out() {
    drawn_members_are_green(61_537);
}

/// ZN-8: who was cut off took all others for dead, for itself alone; but its alarms to a monitor waited in the link, and were
/// believed when the cut was over and it was a member again.
#[test]
fn zn_8_who_is_cut_off_alarms_nobody() {
    drawn_members_are_green(411_607);
}

/// A neighbour restarted behind a cut: the wire to its former life was kept for the new one, and broke when the kernel's last
/// word of that life came through, 25 s later.
#[test]
fn wires_end_with_the_life_they_lead_to() {
    drawn_members_are_green(410_756);
}

/// ZN-3: two who were alone asked each other in the same moment of each second, and each question broke off the session in which
/// the other's was answered.
#[test]
fn zn_3_two_who_are_alone_find_each_other() {
    drawn_members_are_green(410_624);
}

/// ZN-5: a fifth of all pairs cannot reach each other. Each broken pair on the ring doubted each other every other second, a few
/// others were asked each time, and now and then these happened to be behind broken ways as well.
#[test]
fn zn_5_many_broken_pairs_evict_nobody_who_is_well() {
    const NODES: u32 = 30;
    for seed in 1..=PAIR_SEEDS {
        let mut rng = phalanx_core::Rng::new(seed, 0);
        let mut text =
            format!("name = 'x'\nengine = 'zone'\nnodes = {NODES}\nseed = {seed}\nphases = {{ safety = '28s' }}\n");
        for node in 0..NODES {
            let against: Vec<u32> = (node + 1..NODES).filter(|_| rng.chance(0.2)).collect();
            if !against.is_empty() {
                text += &format!(
                    "[[fault]]\nat = '5s'\nfor = '20s'\nkind = 'partition'\nname = 'of {node}'\nnodes = [{node}]\nagainst = {against:?}\n"
                );
            }
        }
        let outcome = run(&text);
        assert_eq!(measured(green(&outcome), "false_positives"), 0, "seed {seed}");
    }
}

fn drawn_members_are_green(first: u64) {
    let plan = Swarm { first, runs: 1, jobs: 1, engine: Engine::Zone, workload: None, keep_going: true };
    let summary = swarm(&plan, |_, _| ());
    assert!(summary.is_green(), "seed {first}: {}", summary.red[0].outcome.report);
}

/// ZN, AT, HI and BL-1: whole configurations drawn from seeds keep their promises.
#[test]
fn swarms_of_members_are_green() {
    for (engine, runs) in [(Engine::Zone, 60), (Engine::AllToAll, 20), (Engine::Gossip, 20), (Engine::Segment, 90)] {
        let plan = Swarm { first: 1, runs, jobs: 2, engine, workload: None, keep_going: true };
        let summary = swarm(&plan, |_, _| ());
        let red: Vec<_> = summary.red.iter().map(|r| (r.run.seed, r.outcome.report.to_string())).collect();
        assert!(red.is_empty(), "{} of {runs} runs of {} are red: {red:#?}", red.len(), engine.name());
        assert_eq!(summary.runs, runs);
    }
}

/// TG-8: five segments without multicast; a leader's host dies, a segment is cut off, and all of one start again.
#[test]
fn segments_without_multicast_hold() {
    for seed in 0..100 {
        let text = format!(
            "name = 'unicast'\nengine = 'segment'\nmulticast = false\nnodes = 25\nseed = {seed}\n\
             [network]\nloss = 0.01\ntopology = {{ kind = 'segments', size = 5, routers = 'star', per_router_us = 50 }}\n\
             [phases]\nsafety = '60s'\n\
             [[fault]]\nat = '15s'\nkind = 'crash-host'\nnodes = [{}]\n\
             [[fault]]\nat = '25s'\nfor = '10s'\nkind = 'partition'\nname = 'cut'\nnodes = [5, 6, 7, 8, 9]\nagainst = [0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24]\n\
             [[fault]]\nat = '45s'\nfor = '2s'\nkind = 'crash'\nnodes = [15, 16, 17, 18, 19]\n",
            seed % 25
        );
        green(&run(&text));
    }
}

/// TG-7: seeds that were red once. 115: what a member said before came after what it said later. 1025: two nodes answered for a dead one, each
/// because the other did. 2531: a leader kept an old life. 6260: one was heard, and in no group.
#[test]
fn segments_hold_where_they_once_did_not() {
    for first in [115, 1025, 2531, 6260] {
        let plan = Swarm { first, runs: 1, jobs: 1, engine: Engine::Segment, workload: None, keep_going: true };
        let red = swarm(&plan, |_, _| ()).red;
        assert!(red.is_empty(), "seed {first}: {}", red[0].outcome.report);
    }
}

/// MM-3: a group keeps its order though all its members restart again and again over failing disks. A write that was
/// under way at a restart once turned up on the disk after the new process had read it.
#[test]
fn an_ordered_group_survives_restarts_of_all_over_bad_disks() {
    let text = phalanx_sim::scenario::draw(105_527, None);
    let outcome = phalanx_sim::scenario::Scenario::parse("swarm-105527", &text, &[""; 0]).unwrap().run().unwrap();
    assert!(outcome.report.violations.is_empty(), "{:?}", outcome.report.violations.first());
}
