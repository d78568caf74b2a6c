//! Shepherds whose gathers come to all of them.

use super::*;

/// The shepherds of one attempt. Ranks are the nodes' in blocks of two.
struct Fold {
    nodes: Vec<Pmi>,
    /// What nodes gave to the gather that is under way.
    given: BTreeMap<usize, Vec<u8>>,
    /// Lines that ranks were told.
    told: BTreeMap<u32, String>,
    others: Vec<Output>,
}

const NAME: &str = "solver_12_0";

impl Fold {
    fn new(nodes: u32) -> Self {
        let setting = Setting {
            puts: Vec::new(),
            name: NAME.into(),
            size: nodes * 2,
            nodes: (0..nodes).map(|n| vec![(n * 2, n * 2 + 2)]).collect(),
            programs: vec![1, nodes * 2 - 1],
            universe: 64,
        };
        let mut fold = Self {
            nodes: vec![Pmi::new(setting); nodes as usize],
            given: BTreeMap::new(),
            told: BTreeMap::new(),
            others: Vec::new(),
        };
        (0..nodes * 2).for_each(|rank| fold.nodes[rank as usize / 2].sit(rank));
        fold
    }

    fn act(&mut self, node: usize, act: impl FnOnce(&mut Pmi, &mut Vec<Output>)) {
        let mut out = Vec::new();
        act(&mut self.nodes[node], &mut out);
        for output in out {
            match output {
                Output::Say { rank, bytes } => {
                    self.told.entry(rank).or_default().push_str(&String::from_utf8(bytes).unwrap());
                }
                Output::Gather { value } => assert!(self.given.insert(node, value).is_none(), "one at a time"),
                other => self.others.push(other),
            }
        }
    }

    fn say(&mut self, rank: u32, lines: &str) -> String {
        self.told.remove(&rank);
        self.act(rank as usize / 2, |pmi, out| pmi.on_bytes(rank, lines.as_bytes(), out));
        self.told.get(&rank).cloned().unwrap_or_default()
    }

    /// The gather is over: all who gave hear what all gave.
    fn gather(&mut self) {
        let given = std::mem::take(&mut self.given);
        let values: Vec<_> = given.iter().map(|(&n, value)| (n as u32 * 2, value.clone())).collect();
        given.keys().for_each(|&n| self.act(n, |pmi, out| pmi.on_gathered(Met::All(&values), out)));
    }

    fn told(&self, rank: u32) -> &str {
        self.told.get(&rank).map_or("", String::as_str)
    }
}

const BARRIER_OUT: &str = "cmd=barrier_out rc=0 msg=success\n";

#[test]
fn a_rank_is_told_what_the_job_is() {
    let mut fold = Fold::new(3);
    assert!(fold.say(4, "cmd=init pmi_version=1 pmi_subversion=1\n").contains("rc=0"));
    assert!(fold.say(4, "cmd=get_appnum\n").ends_with("appnum=1\n"));
    assert!(fold.say(0, "cmd=get_appnum\n").ends_with("appnum=0\n"));
    assert!(fold.say(4, "cmd=get_my_kvsname\n").ends_with("kvsname=solver_12_0\n"));
    assert!(fold.say(4, "cmd=get_universe_size\n").ends_with("size=64\n"));
    let mapping = fold.say(4, "cmd=get kvsname=solver_12_0 key=PMI_process_mapping\n");
    assert_eq!(mapping, "cmd=get_result rc=0 msg=success value=(vector,(0,3,2))\n");
    assert!(fold.say(4, "cmd=get kvsname=other key=PMI_process_mapping\n").contains("rc=-1"));
    assert!(fold.say(4, "cmd=init pmi_version=2 pmi_subversion=0\n").contains("rc=-1"));
    assert!(fold.say(5, "cmd=initack pmiid=5\n").ends_with("cmd=set size=6\ncmd=set rank=5\ncmd=set debug=0\n"));
}

#[test]
fn what_is_put_is_known_everywhere_after_the_barrier() {
    let mut fold = Fold::new(2);
    for rank in 0..4 {
        fold.say(rank, &format!("cmd=put kvsname={NAME} key=k{rank} value=v{rank}\n"));
    }
    let get = |rank| format!("cmd=get kvsname={NAME} key=k{rank}\n");
    assert!(fold.say(1, &get(0)).contains("value=v0"), "on its own node at once");
    assert!(fold.say(2, &get(0)).contains("rc=-1"));
    for rank in 0..3 {
        assert_eq!(fold.say(rank, "cmd=barrier_in\n"), "");
    }
    assert_eq!(fold.given.len(), 1, "a node gives when all its ranks have come");
    fold.say(3, "cmd=barrier_in\n");
    assert_eq!(fold.given.len(), 2, "one value for each node");
    fold.gather();
    assert!((0..4).all(|rank| fold.told(rank) == BARRIER_OUT));
    assert!((0..4).all(|rank| (0..4).all(|of| fold.say(rank, &get(of)).ends_with(&format!("value=v{of}\n")))));
}

#[test]
fn a_large_space_is_told_in_several_rounds() {
    let mut fold = Fold::new(2);
    let value = "v".repeat(1000);
    for n in 0..300 {
        fold.say(0, &format!("cmd=put kvsname={NAME} key=k{n} value={value}\n"));
    }
    (0..4).for_each(|rank| drop(fold.say(rank, "cmd=barrier_in\n")));
    let mut rounds = 0;
    while !fold.given.is_empty() {
        assert_eq!((fold.given.len(), fold.told(3)), (2, ""));
        fold.gather();
        rounds += 1;
    }
    assert_eq!((rounds, fold.told(3)), (5, BARRIER_OUT));
    assert!((0..300).all(|n| fold.say(3, &format!("cmd=get kvsname={NAME} key=k{n}\n")).contains(&value)));
}

#[test]
fn who_dies_or_finalises_is_not_waited_for() {
    let mut fold = Fold::new(2);
    (0..3).for_each(|rank| drop(fold.say(rank, "cmd=init pmi_version=1 pmi_subversion=1\ncmd=barrier_in\n")));
    assert_eq!(fold.given.len(), 1);
    fold.act(1, |pmi, out| assert!(!pmi.on_gone(3, out), "it had not begun to speak MPI"));
    assert_eq!(fold.given.len(), 2, "the others have come");
    // One that is gone while all wait.
    fold.act(0, |pmi, out| assert!(pmi.on_gone(0, out), "it spoke MPI"));
    fold.told.clear();
    fold.gather();
    assert_eq!((fold.told(1), fold.told(2)), (BARRIER_OUT, BARRIER_OUT));
    assert_eq!(fold.say(1, "cmd=finalize\n"), "cmd=finalize_ack rc=0 msg=success\n");
    fold.act(0, |pmi, out| assert!(!pmi.on_gone(1, out), "it ended in good order"));
}

#[test]
fn a_rank_that_starts_again_knows_what_was_put_before() {
    let mut fold = Fold::new(3);
    fold.say(4, &format!("cmd=put kvsname={NAME} key=old value=1\n"));
    (0..6).for_each(|rank| drop(fold.say(rank, "cmd=barrier_in\n")));
    fold.gather();
    // Its node is gone, and another one takes its place.
    let setting = fold.nodes[0].setting.clone();
    fold.nodes[0] = Pmi::new(setting);
    fold.nodes[0].sit(0);
    (0..6).filter(|&r| r != 1).for_each(|rank| drop(fold.say(rank, "cmd=barrier_in\n")));
    while !fold.given.is_empty() {
        fold.gather();
    }
    assert_eq!(fold.told(5), BARRIER_OUT);
    assert!(fold.say(0, &format!("cmd=get kvsname={NAME} key=old\n")).ends_with("value=1\n"));
}

#[test]
fn a_gather_that_was_lost_is_made_again() {
    let mut fold = Fold::new(1);
    (0..2).for_each(|rank| drop(fold.say(rank, "cmd=barrier_in\n")));
    let given = std::mem::take(&mut fold.given);
    fold.act(0, Pmi::gather_again);
    assert_eq!(fold.given, given);
    // All who waited are gone, and one is started again.
    fold.given.clear();
    (0..2).for_each(|rank| {
        fold.act(0, |pmi, out| {
            pmi.on_gone(rank, out);
        });
    });
    fold.nodes[0].sit(1);
    fold.act(0, Pmi::gather_again);
    assert!(fold.given.is_empty(), "it has not come yet");
    fold.say(1, "cmd=barrier_in\n");
    fold.gather();
    assert_eq!(fold.told(1), BARRIER_OUT);
}

#[test]
fn nonsense_ends_the_connection_and_not_the_barrier() {
    let mut fold = Fold::new(1);
    fold.say(0, "cmd=barrier_in\n");
    fold.say(1, "cmd=rm -rf\n");
    assert!(matches!(&fold.others[..], [Output::HangUp { rank: 1, why }] if why.contains("cmd=rm -rf")));
    assert_eq!(fold.given.len(), 1);
    assert_eq!(fold.say(1, "cmd=get_maxes\n"), "", "and it is not heard any more");
    fold.act(0, |pmi, out| assert!(pmi.on_gone(1, out)));
    fold.say(0, "cmd=initack pmiid=9\n");
    assert!(matches!(&fold.others[1..], [Output::HangUp { rank: 0, .. }]));
}

#[test]
fn errands_are_asked_for_and_answered() {
    let mut fold = Fold::new(1);
    fold.say(0, "cmd=publish_name service=a port=p\n");
    fold.say(1, "cmd=lookup_name service=a\n");
    let asked = std::mem::take(&mut fold.others);
    let publish = Errand::Publish { service: "a".into(), port: "p".into() };
    let lookup = Errand::Lookup { service: "a".into() };
    assert_eq!(asked, [Output::Ask { rank: 0, errand: publish }, Output::Ask { rank: 1, errand: lookup }]);
    fold.act(0, |pmi, out| pmi.on_answer(0, Answer::Done, out));
    fold.act(0, |pmi, out| pmi.on_answer(1, Answer::Port { port: Some("p".into()) }, out));
    assert_eq!(fold.told(0), "cmd=publish_result rc=0 info=ok msg=success\n");
    assert_eq!(fold.told(1), "cmd=lookup_result rc=0 info=ok msg=success port=p\n");
    let answer = |fold: &mut Fold, rank, answer| {
        fold.told.clear();
        fold.act(0, |pmi, out| pmi.on_answer(rank, answer, out));
        fold.told(rank).to_owned()
    };
    assert_eq!(answer(&mut fold, 0, Answer::Done), "", "nobody asked");
    fold.say(0, "cmd=lookup_name service=b\n");
    assert!(answer(&mut fold, 0, Answer::Port { port: None }).contains("rc=1 info=service_not_found"));
    fold.say(0, "cmd=unpublish_name service=b\n");
    let refused = || Answer::Refused { why: "no such name".into() };
    assert!(answer(&mut fold, 0, refused()).starts_with("cmd=unpublish_result rc=1 info=no_such_name"));
    fold.say(0, "mcmd=spawn\nnprocs=2\nexecname=a\ntotspawns=2\nspawnssofar=1\nendcmd\n");
    fold.others.clear();
    fold.say(0, "mcmd=spawn\nnprocs=3\nexecname=b\ntotspawns=2\nspawnssofar=2\nendcmd\n");
    assert!(
        matches!(&fold.others[..], [Output::Ask { errand: Errand::Spawn { programs }, .. }] if programs.len() == 2)
    );
    assert_eq!(answer(&mut fold, 0, refused()), "cmd=spawn_result rc=1 msg=no_such_name\n");
    let second = "mcmd=spawn\nnprocs=3\nexecname=b\ntotspawns=2\nspawnssofar=2\nendcmd\n";
    assert!(fold.say(0, second).contains("rc=1"), "the first is missing");
    fold.say(0, "cmd=abort exitcode=7\n");
    assert_eq!(fold.others.last(), Some(&Output::Abort { rank: 0, status: 7 }));
}
