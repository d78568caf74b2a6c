//! The same seed gives the same run: twice, in two processes, on any number of threads, by reference or in bytes.

mod gossip;

use gossip::{Gossip, cluster, storm};
use phalanx_core::buf::Attachment;
use phalanx_core::{Addr, Buf, Duration, Instant, Snapshot};
use phalanx_sim::{Ctx, HEADERS, Process, Setup, Sim, Stats};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// Everything that can be told apart from outside.
type Seen = (u64, Stats, Vec<(Instant, u32, gossip::Said)>);

const TIME: Duration = Duration::from_millis(400);

fn run(seed: u64, threads: usize) -> Seen {
    let mut sim: Sim<Gossip> = cluster(seed, threads);
    storm(&mut sim, seed);
    sim.run_for(TIME);
    (sim.trace(), sim.stats(), sim.notes().to_vec())
}

#[test]
fn a_seed_replays_and_another_seed_is_another_run() {
    let first = run(1, 1);
    assert_eq!(first, run(1, 1));
    assert_ne!(first.0, run(2, 1).0);
}

#[test]
fn the_storm_is_one() {
    let (_, stats, said) = run(1, 1);
    assert!(stats.delivered > 5_000 && said.len() > 100, "{stats:?}");
    let reasons: Vec<_> = stats.drops().map(|d| d.0.name()).collect();
    let all = ["loss", "partition", "node-loss", "dead-process", "dead-host", "socket-buffer", "injected"];
    assert!(all.iter().all(|r| reasons.contains(r)) && stats.duplicated > 0, "only {reasons:?}");
}

#[test]
fn one_thread_and_several_give_the_same_run() {
    for seed in 0..3 {
        let one = run(seed, 1);
        for threads in [2, 3] {
            let several = run(seed, threads);
            assert_eq!(one.0, several.0, "seed {seed}, {threads} threads: traces");
            assert_eq!((one.1, &one.2), (several.1, &several.2), "seed {seed}, {threads} threads: counters and notes");
        }
    }
}

/// A run may be cut anywhere: where it stops and goes on is no part of it.
#[test]
fn a_run_in_many_pieces_is_the_same_run() {
    let mut sim = cluster(3, 1);
    storm(&mut sim, 3);
    while sim.now() < Instant::ZERO + TIME {
        sim.run_until((sim.now() + Duration(7_654_321)).min(Instant::ZERO + TIME));
    }
    assert_eq!(sim.trace(), run(3, 1).0);
}

const CHILD: &str = "PHALANX_SIM_TRACE_OF";

/// Runs in a process of its own when the next test asks for it.
#[test]
fn child_prints_its_trace() {
    if let Ok(seed) = std::env::var(CHILD) {
        println!("trace={:016x}", run(seed.parse().unwrap(), 2).0);
    }
}

#[test]
fn two_processes_give_the_same_trace() {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_prints_its_trace", "--nocapture"])
        .env(CHILD, "5")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    let expected = format!("trace={:016x}", run(5, 1).0);
    assert!(output.contains(&expected), "{expected} is not in {output}");
}

/// A large message that is never encoded.
#[derive(Debug)]
struct Large(usize);

impl Snapshot for Large {
    fn encoded_len(&self) -> usize {
        self.0
    }
    fn encode(&self, range: Range<usize>, out: &mut Vec<u8>) {
        out.extend(range.map(|i| i as u8));
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Passes a large message around a ring, as bytes or by reference.
struct Porter {
    by_reference: bool,
    references: u32,
}

impl Process for Porter {
    type Command = ();
    type Note = ();

    fn start(&mut self, _: Instant, net: &mut Ctx<'_, Self>) {
        let mut packet = Buf::new(0, 64);
        packet.extend(b"<");
        packet.attach(Arc::new(Large(5_000)), 0..5_000);
        packet.extend(b">");
        if !self.by_reference {
            packet.materialize();
        }
        net.send(Addr::Local((net.node() + 1) % net.nodes()), packet);
    }

    fn arrived(&mut self, _: Instant, _: Addr, packet: Buf, net: &mut Ctx<'_, Self>) {
        let length = |a: &Attachment| a.snapshot.as_any().downcast_ref::<Large>().map(|l| l.0);
        self.references += u32::from(packet.attached().and_then(length) == Some(5_000));
        net.send(Addr::Local((net.node() + 1) % net.nodes()), packet);
    }

    fn expire(&mut self, _: Instant, _: &mut Ctx<'_, Self>) {}
    fn deadline(&self) -> Instant {
        Instant::NEVER
    }
}

#[test]
fn a_message_by_reference_counts_and_arrives_like_its_bytes() {
    let run = |by_reference| {
        let network = phalanx_sim::Network {
            loss: 0.01,
            duplication: 0.01,
            link: Some(phalanx_sim::Link { mbit_s: 1_000.0, queue_bytes: 100_000 }),
            ..phalanx_sim::Network::default()
        };
        let setup = Setup { seed: 9, nodes: 20, network, ..Setup::default() };
        let mut sim = Sim::new(&setup, move |_| Porter { by_reference, references: 0 }).unwrap();
        sim.run_for(Duration::from_millis(50));
        let references: u32 = sim.cluster().processes().map(|(_, p)| p.references).sum();
        (sim.trace(), sim.stats(), sim.bytes(7), references)
    };
    let (bytes, reference) = (run(false), run(true));
    assert_eq!((bytes.0, bytes.1, bytes.2), (reference.0, reference.1, reference.2));
    assert_eq!(bytes.1.bytes, bytes.1.sent * (5_002 + HEADERS));
    assert_eq!((bytes.3, u64::from(reference.3)), (0, reference.1.delivered));
}
