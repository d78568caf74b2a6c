//! As many nodes as there may be in one job.

use super::*;

/// CM-5: nothing costs more than its share: with a step that looks at all nodes for each, this would take hours.
#[test]
fn cm_5_a_job_on_65_536_nodes() {
    const NODES: usize = 65_536;
    let mut state = State::new(1, &[key(0), key(1), key(2)]);
    let mut out = Vec::new();
    let say = |state: &mut State, out: &mut Vec<Decision>, n: usize, number, report| {
        let fact = Fact::Reported(vec![Reported { from: key(n), incarnation: 1, number, report }]);
        state.apply(&Entry { at_ms: 1, fact }, out);
    };
    for n in 0..NODES {
        let (name, zone, at) = (format!("node-{n:05}"), format!("z{}", n / 256), At::Local(n as u32));
        let info = NodeInfo { key: key(n), name, at, zone, incarnation: 1, slots: 2 };
        state.apply(&Entry { at_ms: 1, fact: Fact::Seen(info) }, &mut out);
        say(&mut state, &mut out, n, 1, Report::Inventory { attempts: vec![] });
    }
    let all = 2 * NODES as u32;
    let ask = Ask::Run(Wanted { on_failure: OnFailure::Respawn, ..wanted(all) });
    state.apply(&Entry { at_ms: 1, fact: Fact::Asked { from: key(0), incarnation: 1, number: 1, ask } }, &mut out);
    for n in 0..NODES {
        let post = Post { at: At::Local(n as u32), first: 0 };
        say(&mut state, &mut out, n, 2, Report::Ready { attempt: at(1, 0), life: 0, post });
    }
    assert_eq!(state.run("1").unwrap().run.state, RunPhase::Running);
    let read = State::decode(&state.encode()).unwrap();
    assert_eq!((read.digest(), read.encode().len()), (state.digest(), state.encode().len()));
    let told_before = out.len();
    let mut digests = BTreeSet::new();
    for n in 0..NODES {
        let end = |rank| Ended { rank, life: 0, end: End::Exited(0), aborted: false };
        let ranks = vec![end(2 * n as u32), end(2 * n as u32 + 1)];
        say(&mut state, &mut out, n, 3, Report::Ended { attempt: at(1, 0), ranks });
        digests.insert(state.digest());
    }
    assert_eq!(digests.len(), NODES);
    assert_eq!(out.len(), told_before + 1);
    assert_eq!(state.run("1").unwrap().run.status, Some(0));
    assert_eq!(state.slots().iter().map(|node| node.used).sum::<u32>(), 0);
    println!("{} bytes of state", state.encode().len());
}
