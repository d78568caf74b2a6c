//! Words for many agents, handed on by them; and what they report, on its way back.

use super::super::sheaf::Sheaf;
use super::super::words::{At, Attempt, Command, End, Ended, JobId, OnFailure, Post, Report, Wanted};
use super::*;
use std::collections::BTreeMap;

const MS: Duration = Duration::from_millis(1);

/// A rank on each of so many nodes.
fn everywhere(ranks: u32) -> Ask {
    Ask::Run(Wanted {
        name: Some("wide".into()),
        ranks,
        hosts: Vec::new(),
        per_node: Some(1),
        oversubscribe: false,
        on_failure: OnFailure::Restart,
        spares: 0,
        timeout_ms: None,
        user: (1, 1),
        spec: Vec::new(),
    })
}

fn name(command: &Command) -> &'static str {
    match command {
        Command::Prepare { .. } => "prepare",
        Command::Go { .. } => "go",
        Command::Stop { .. } => "stop",
        Command::Over { .. } => "over",
        Command::Respawn { .. } | Command::Signal { .. } => "other",
    }
}

/// Shepherds that are ready when they are asked, and whose ranks end when they begin. Reads what was told since.
#[derive(Default)]
struct Shepherds {
    read: BTreeMap<usize, usize>,
    ranks: BTreeMap<usize, (Attempt, u32)>,
}

impl Shepherds {
    fn tend(&mut self, net: &mut Net) {
        for n in 0..net.hosts.len() {
            let from = self.read.insert(n, net.hosts[n].told.len()).unwrap_or_default();
            let told: Vec<_> = net.hosts[n].told[from..].iter().map(|(_, t)| t.clone()).collect();
            let key = net.key(n);
            for command in told.into_iter().filter_map(|t| if let Told::Do(command) = t { Some(command) } else { None })
            {
                match command {
                    Command::Prepare { attempt, shares, .. } => {
                        let own = shares.iter().find(|s| s.node == key).and_then(|s| s.ranks.first());
                        own.into_iter().for_each(|r| _ = self.ranks.insert(n, (attempt, r.0)));
                        let post = Post { at: At::Local(n as u32), first: 0 };
                        net.report(n, Report::Ready { attempt, life: 0, post });
                    }
                    Command::Go { .. } => {
                        let Some(&(attempt, rank)) = self.ranks.get(&n) else { continue };
                        let ended = Ended { rank, life: 0, end: End::Exited(0), aborted: false };
                        net.report(n, Report::Ended { attempt, ranks: vec![ended] });
                    }
                    Command::Stop { attempt, life, .. } => net.report(n, Report::Cleared { attempt, life }),
                    _ => {}
                }
            }
        }
    }
}

/// When each node was told to do what, of one job, since then.
fn done(net: &Net, since: Instant) -> Vec<BTreeMap<&'static str, Vec<Duration>>> {
    let of = |host: &super::super::net::Host| {
        let mut done: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (at, told) in host.told.iter().filter(|t| t.0 >= since) {
            if let Told::Do(command) = told {
                done.entry(name(command)).or_default().push(at.since(since));
            }
        }
        done
    };
    net.hosts.iter().map(of).collect()
}

/// A job on all nodes, from the question until all have heard that it is over.
fn run(net: &mut Net, ranks: u32, within: Duration) -> bool {
    let nodes = net.hosts.len();
    // What runs there is known of all nodes.
    (0..nodes).for_each(|n| net.report(n, Report::Inventory { attempts: Vec::new() }));
    net.run_for(S * 2);
    let since = net.now;
    net.tapped = Some(Vec::new());
    net.ask(0, everywhere(ranks));
    let mut shepherds = Shepherds::default();
    net.run_until(since + within, |net| {
        shepherds.tend(net);
        (0..nodes).filter(|&n| net.is_up(n)).all(|n| done(net, since)[n].contains_key("over"))
    })
}

fn packets(net: &Net) -> Vec<(usize, usize, Packet)> {
    let tapped = net.tapped.iter().flatten();
    tapped.filter_map(|(from, to, _, bytes)| Some((*from, *to, Packet::decode(bytes)?))).collect()
}

/// CM-2: what many are told, replicas tell a few, and what they report comes back as little; all do it once, soon, and in its order.
#[test]
fn cm_2_a_word_for_many_is_handed_on_by_them() {
    for nodes in [12, 33, 64] {
        let mut net = founded(nodes, Weather::FAIR, 3);
        let began = net.now + S * 2;
        assert!(run(&mut net, nodes as u32, S), "{nodes}: not over in time");
        for (n, done) in done(&net, began).into_iter().enumerate() {
            let times: Vec<_> = ["prepare", "go", "over"].map(|what| done[what].clone()).concat();
            assert!(times.is_sorted() && times.len() == 3, "n{n} of {nodes}: {done:?}");
        }
        let (replicas, mut from, mut to) = (replicas(&net), BTreeMap::new(), BTreeMap::new());
        for (sender, receiver, packet) in packets(&net) {
            let many =
                matches!(packet, Packet::Sheaf(_) | Packet::Vote(..) | Packet::Told { .. } | Packet::Gathered { .. });
            *from.entry(sender).or_insert(0) += u32::from(many);
            *to.entry(receiver).or_insert(0) += u32::from(many);
            assert!(!matches!(packet, Packet::Told { said: Said::Report(_), .. }), "nobody reports alone");
        }
        // Three words up and down, by three trees, to log2 of the nodes each; and the question and its answer.
        let most = 3 * 3 * 2 * (nodes as f64).log2().ceil() as u32 + 6;
        assert!(replicas.iter().all(|r| from[r] <= most && to[r] <= most), "{nodes}: {from:?} {to:?}, at most {most}");
    }
}

/// CM-2: who hands on reports waits for nobody who reports to somebody else: where replicas hand on their own words, too.
#[test]
fn cm_2_nobody_waits_for_reports_that_go_elsewhere() {
    for nodes in 12..=40 {
        let mut net = founded(nodes, Weather::FAIR, nodes as u64);
        let began = net.now + S * 2;
        assert!(run(&mut net, nodes as u32, S), "{nodes}: not over in time");
        let done = done(&net, began);
        let prepared = done.iter().map(|d| d["prepare"][0]).max().unwrap();
        let started = done.iter().map(|d| d["go"][0]).min().unwrap();
        assert!(started < prepared + super::super::gather::PATIENCE, "{nodes}: {prepared:?}, then {started:?}");
    }
}

/// CM-2: nodes that die while a word is under way keep it from hardly anybody, because each replica's goes another way; and from nobody for
/// long, nor does a job wait for their reports.
#[test]
fn cm_2_the_dead_keep_words_from_nobody() {
    let (mut late, mut told) = (0, 0);
    for seed in 0..20 {
        let nodes = 40;
        let mut net = founded(nodes, Weather::FAIR, seed);
        let dead = (0..nodes).filter(|n| *n > 0 && !replicas(&net).contains(n)).nth(seed as usize).unwrap();
        net.crash(dead);
        let began = net.now + S * 2;
        // It is prepared on the dead one, too, unless its zone said before that it is dead.
        assert!(run(&mut net, nodes as u32 - 1, S * 60), "seed {seed}: {dead} keeps the job from its end");
        for (n, done) in done(&net, began).into_iter().enumerate().filter(|(n, _)| *n != dead) {
            let soon = done["prepare"][0] <= MS * 100;
            (late, told) = (late + u32::from(!soon), told + 1);
            assert!(done["prepare"][0] <= S * 4, "seed {seed}: n{n} {done:?}");
        }
    }
    assert!(late * 50 <= told, "{late} of {told} were told late");
}

/// CM-1, CM-3: a replica that says wrong things to many is found out by them, and nothing of it is done.
#[test]
fn cm_3_a_liar_is_found_out_by_many() {
    for seed in 0..6 {
        let nodes = 16;
        let mut net = founded(nodes, Weather::FAIR, seed);
        let bad = replicas(&net)[seed as usize % 3];
        net.hosts[bad].steward.as_mut().unwrap().replica_mut().unwrap().lie();
        assert!(run(&mut net, nodes as u32, S * 20), "seed {seed}");
        settle(&mut net, 2);
        assert!(!replicas(&net).contains(&bad), "seed {seed}");
    }
}

/// CM-1: nobody who hands on a word can change it, or make others hand it on again.
#[test]
fn cm_1_words_that_are_handed_on_cannot_be_changed() {
    let nodes = 16;
    let mut net = founded(nodes, Weather::FAIR, 6);
    assert!(run(&mut net, nodes as u32, S));
    net.run_for(S);
    let sheaves: Vec<(usize, usize, Sheaf)> = packets(&net)
        .into_iter()
        .filter_map(|(from, to, p)| if let Packet::Sheaf(sheaf) = p { Some((from, to, sheaf)) } else { None })
        .filter(|(from, to, _)| from != to)
        .collect();
    assert!(sheaves.len() > 40);
    net.tapped = Some(Vec::new());
    let refused = |net: &Net| (0..nodes).map(|n| net.steward(n).agent().refused.unproved).sum::<u64>();
    let did = |net: &Net| net.hosts.iter().flat_map(|h| &h.told).filter(|t| matches!(t.1, Told::Do(_))).count();
    let (before, all_did) = (refused(&net), did(&net));
    let mut tries = 0;
    for (from, to, sheaf) in &sheaves {
        let mut bent = vec![
            Sheaf { id: super::super::wire::Id { index: sheaf.id.index + 1, ..sheaf.id }, ..sheaf.clone() },
            Sheaf { hash: super::super::group::Digest::of(b"another"), ..sheaf.clone() },
            Sheaf { by: net.key((0..nodes).find(|n| net.key(*n) != sheaf.by).unwrap()), ..sheaf.clone() },
            Sheaf { slips: sheaf.slips[1..].to_vec(), ..sheaf.clone() },
            Sheaf { slips: [&sheaf.slips[..1], &sheaf.slips[..]].concat(), ..sheaf.clone() },
        ];
        bent[0].slips[0].after = sheaf.id;
        for bent in bent {
            tries += 1;
            net.inject(*from, *to, Carriage::Bulk, &Packet::Sheaf(bent).encode());
        }
    }
    assert_eq!(refused(&net) - before, tries);
    assert!(packets(&net).iter().all(|p| !matches!(p.2, Packet::Sheaf(_))), "nothing of it was handed on");
    // Nor is anything that was said before.
    for (from, to, sheaf) in sheaves {
        net.inject(from, to, Carriage::Bulk, &Packet::Sheaf(sheaf).encode());
    }
    assert!(packets(&net).iter().all(|p| !matches!(p.2, Packet::Sheaf(_))), "handed on a second time");
    assert_eq!(did(&net), all_did);
}

/// CM-1: what is reported by way of others is signed by who reports it: a report that somebody changed, or made up, is none.
#[test]
fn cm_1_reports_cannot_be_changed_on_their_way() {
    let nodes = 16;
    let mut net = founded(nodes, Weather::FAIR, 7);
    assert!(run(&mut net, nodes as u32, S));
    let replica = replicas(&net)[0];
    let key = net.key(replica);
    let gathered = packets(&net).into_iter().find_map(|(from, to, p)| match p {
        Packet::Gathered { told, id, .. } if to == replica => Some((from, id, told)),
        _ => None,
    });
    let (from, id, told) = gathered.unwrap();
    let before = net.steward(replica).status(net.now).counters;
    let bent: Vec<_> = told
        .iter()
        .cloned()
        .map(|mut t| {
            t.number += 50;
            let attempt = Attempt { job: JobId(9), number: 0 };
            t.report = Report::Cleared { attempt, life: 0 };
            t
        })
        .collect();
    let count = bent.len() as u64;
    net.inject(from, replica, Carriage::Bulk, &Packet::Gathered { to: key, id, told: bent }.encode());
    assert_eq!(net.steward(replica).status(net.now).counters.unproved, before.unproved + count);
    net.inject(from, replica, Carriage::Bulk, &Packet::Gathered { to: key, id, told: told.clone() }.encode());
    assert_eq!(net.steward(replica).status(net.now).counters.duplicates, before.duplicates + count);
    // More at once than anybody of us packs: nobody spends a second on their signatures.
    let many = told.iter().cycle().take(super::super::gather::PACKED_MAX + 1).cloned().collect();
    net.inject(from, replica, Carriage::Bulk, &Packet::Gathered { to: key, id, told: many }.encode());
    let after = net.steward(replica).status(net.now).counters;
    assert_eq!((after.duplicates, after.malformed), (before.duplicates + count, before.malformed + 1));
}
