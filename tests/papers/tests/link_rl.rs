//! RL-1…3, 004 §3, §6.2: reliable messages over real sockets under every fault, and what they cost in packets.
//!
//! How long they take belongs to the laboratory (`lab run link`); here it is counted, not timed.

use phalanx_core::{Addr, Code, Duration, Endpoint};
use phalanx_daemon::Udp;
use phalanx_fault::{Delay, Distribution, Injector, Kind, Probability, Recurrence, Rule};
use phalanx_papers::party::{KEY, config, pattern};
use phalanx_papers::{OverUdp, Party, Said, World, until};
use phalanx_protocol::link::seal::KeyRing;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

fn chance(kind: Kind, p: f64) -> Rule {
    Rule::new(kind).recurring(Recurrence::Chance(Probability::new(p).expect("a probability")))
}

/// RL-1: all kinds at once above the seal, corrupted length fields among them; every message arrives intact, once, in
/// order, and the checks that did it show in the counters.
#[test]
fn rl_1_everything_arrives_under_all_faults_together() {
    let (mut a, mut b, to_b, _) = Party::pair(&OverUdp::default());
    let short = Distribution::Uniform { from: Duration::from_micros(50), to: Duration::from_millis(3) };
    let kinds = [
        Kind::Drop,
        Kind::Delay(Delay::Lasting(short)),
        Kind::Modify { bits: 1 },
        Kind::Modify { bits: 9 },
        Kind::Reorder,
        Kind::Inject { bits: 0 },
        Kind::Inject { bits: 5 },
    ];
    for party in [&mut a, &mut b] {
        let now = party.host.now();
        for kind in &kinds {
            party.host.link().tap().add(now, chance(kind.clone(), 0.05)).unwrap();
        }
    }
    let messages: Vec<Vec<u8>> = (0..150).map(|i| pattern([3, 300, 3_000, 50_000][i % 4], i)).collect();
    for message in &messages {
        a.reliable(to_b, message).unwrap();
        a.turn();
        b.turn();
    }
    until(&mut [&mut a, &mut b], "all arrive", |p| p[1].messages_heard() == messages.len());
    assert!(b.messages() == messages, "intact, in order, once");
    let (sent, got) = (a.host.link().counters().rcl, b.host.link().counters().rcl);
    assert!(sent.retransmissions > 0 && got.duplicates > 0 && got.early > 0 && got.checksum > 0, "{sent:?} {got:?}");
}

/// RL-1, flow control: a receiver that takes nothing is not flooded, and loses nothing.
#[test]
fn rl_1_a_slow_receiver_bounds_what_is_under_way() {
    let (mut a, mut b, to_b, to_a) = Party::pair(&OverUdp::default());
    b.hold(to_a.node).unwrap();
    let mut sent = 0;
    while a.reliable(to_b, &pattern(10_000, sent)).is_ok() {
        sent += 1;
        a.turn();
        b.turn();
    }
    let before = a.host.link().counters().sent;
    let end = a.host.now() + Duration::from_millis(50);
    until(&mut [&mut a, &mut b], "time passes", |p| p[0].host.now() >= end);
    let probes = a.host.link().counters().sent - before;
    assert!(probes < 100, "a sender without credit asks now and then: {probes} packets");
    assert_eq!((b.messages_heard(), b.host.link().counters().rcl.beyond_credit), (0, 0));
    b.release(to_a.node).unwrap();
    until(&mut [&mut a, &mut b], "all arrive", |p| p[1].messages_heard() == sent);
    assert!(b.messages().iter().enumerate().all(|(i, m)| *m == pattern(10_000, i)));
}

/// RL-2: acknowledgements ride on messages. A ping-pong costs as many packets as messages; a stream far fewer.
#[test]
fn rl_2_acknowledgements_cost_no_packets_of_their_own() {
    let (mut a, mut b, to_b, to_a) = Party::pair(&OverUdp::default());
    const ROUNDS: usize = 300;
    let before = (a.host.link().counters().sent, b.host.link().counters().sent);
    for i in 0..ROUNDS {
        a.reliable(to_b, b"ping").unwrap();
        until(&mut [&mut a, &mut b], "a ping arrives", |p| p[1].messages_heard() == i + 1);
        b.reliable(to_a, b"pong").unwrap();
        until(&mut [&mut a, &mut b], "a pong arrives", |p| p[0].messages_heard() == i + 1);
    }
    let packets = [a.host.link().counters().sent - before.0, b.host.link().counters().sent - before.1];
    // A busy machine lets an acknowledgement's delay of a millisecond pass now and then.
    assert!(packets.iter().all(|&n| n < ROUNDS as u64 * 3 / 2), "{packets:?} packets for {ROUNDS} messages each way");

    let before = (a.host.link().counters().sent, b.host.link().counters().sent);
    for _ in 0..20 {
        (0..500).for_each(|_| a.reliable(to_b, &[7; 64]).unwrap());
        a.turn();
        b.turn();
    }
    until(&mut [&mut a, &mut b], "the stream arrives", |p| p[1].messages_heard() == ROUNDS + 10_000);
    let packets = (a.host.link().counters().sent - before.0) + (b.host.link().counters().sent - before.1);
    assert!(packets < 1_000, "{packets} packets for 10,000 messages and their acknowledgements");
}

/// Sends and receives as fast as it can (Fig. 3).
fn communication_bound(a: &mut Party<Udp>, b: &mut Party<Udp>, to_b: Endpoint, to_a: Endpoint) {
    for i in 0..60 {
        a.reliable(to_b, &pattern(400, i)).unwrap();
        b.reliable(to_a, &pattern(400, i)).unwrap();
    }
    until(&mut [a, b], "the task ends", |p| p.iter().all(|p| p.messages_heard() == 60));
}

/// Twelve sends, a computation, twelve receives (Fig. 4).
fn cpu_bound(a: &mut Party<Udp>, b: &mut Party<Udp>, to_b: Endpoint, to_a: Endpoint) {
    for round in 0..5 {
        for i in 0..12 {
            a.reliable(to_b, &pattern(400, round * 12 + i)).unwrap();
            b.reliable(to_a, &pattern(400, round * 12 + i)).unwrap();
        }
        std::hint::black_box((0..20_000u64).fold(round as u64, |x, i| x.wrapping_mul(31) ^ i));
        until(&mut [a, b], "a round ends", |p| p.iter().all(|p| p.messages_heard() == (round + 1) * 12));
    }
}

/// RL-3, Figs. 3–4: both tasks end, whole and in order, for each kind of message fault and five seeds.
#[test]
fn rl_3_both_tasks_of_the_fault_sweep_end_for_five_seeds() {
    type Task = fn(&mut Party<Udp>, &mut Party<Udp>, Endpoint, Endpoint);
    let delay = Kind::Delay(Delay::Lasting(Distribution::Exponential { mean: Duration::from_millis(1) }));
    for kind in [Kind::Drop, delay, Kind::Modify { bits: 1 }, Kind::Reorder, Kind::Inject { bits: 0 }] {
        for task in [communication_bound as Task, cpu_bound] {
            for seed in 1..=5 {
                let (mut a, mut b, to_b, to_a) = Party::pair(&OverUdp::default());
                for party in [&mut a, &mut b] {
                    let now = party.host.now();
                    *party.host.link().tap() = Injector::new(seed);
                    party.host.link().tap().add(now, chance(kind.clone(), 0.1)).unwrap();
                }
                task(&mut a, &mut b, to_b, to_a);
                let expected: Vec<_> = (0..60).map(|i| pattern(400, i)).collect();
                assert!(a.messages() == expected && b.messages() == expected, "{kind:?}, seed {seed}");
            }
        }
    }
}

/// A host in a process of its own.
struct Other {
    process: Child,
    at: Addr,
}

impl Other {
    fn start() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_echo"));
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the test's own binary starts");
        let mut line = String::new();
        let out = process.stdout.as_mut().expect("it is piped");
        BufReader::new(out).read_line(&mut line).expect("it says where it is");
        let at = Addr::Ip(line.trim().parse().expect("a socket address"));
        Self { process, at }
    }

    fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.process.id().cast_signed());
        nix::sys::signal::kill(pid, signal).expect("our own child");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn impatient() -> Party<Udp> {
    let mut limits = config::<OverUdp>();
    limits.rcl.patience = Duration::from_millis(250);
    Party::with(OverUdp::default().open(), limits, KeyRing::new(1, KEY), 1)
}

/// RL-1: a stopped process holds its sockets and says nothing: half dead. It is given up, and met anew when it runs.
#[test]
fn rl_1_a_half_dead_process_is_given_up_and_met_again() {
    let (mut a, other) = (impatient(), Other::start());
    let to = a.peer(other.at);
    a.reliable(to, b"hello").unwrap();
    until(&mut [&mut a], "an echo", |p| p[0].messages() == [b"hello"]);
    other.signal(nix::sys::signal::Signal::SIGSTOP);
    a.reliable(to, b"are you well?").unwrap();
    until(&mut [&mut a], "it is given up", |p| p[0].heard(|s| matches!(s, Said::Down(..))));
    assert!(a.heard(|s| matches!(s, Said::Down(node, Code::Unreachable, 1..) if *node == to.node)), "{:?}", a.said);
    assert!(!a.heard(|s| matches!(s, Said::Refused(..))), "its port is open still");
    other.signal(nix::sys::signal::Signal::SIGCONT);
    a.said.clear();
    a.reliable(to, b"welcome back").unwrap();
    until(&mut [&mut a], "an echo", |p| p[0].messages().last().is_some_and(|m| m == b"welcome back"));
    assert!(a.heard(|s| matches!(s, Said::Up(..))), "in a session of its own");
}

/// RL-1: a killed process leaves a closed port: the hint comes at once, the verdict with patience.
#[test]
fn rl_1_a_killed_process_is_refused_and_then_down() {
    let (mut a, mut other) = (impatient(), Other::start());
    let to = a.peer(other.at);
    a.reliable(to, b"hello").unwrap();
    until(&mut [&mut a], "an echo", |p| p[0].messages() == [b"hello"]);
    other.process.kill().unwrap();
    other.process.wait().unwrap();
    a.reliable(to, b"still there?").unwrap();
    until(&mut [&mut a], "it is down", |p| p[0].heard(|s| matches!(s, Said::Down(..))));
    let hint = a.said.iter().position(|s| matches!(s, Said::Refused(_, Code::Unreachable)));
    let verdict = a.said.iter().position(|s| matches!(s, Said::Down(_, Code::Unreachable, _)));
    assert!(hint.is_some() && hint < verdict, "{:?}", a.said);
}
