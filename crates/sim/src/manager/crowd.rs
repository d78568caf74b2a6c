//! Very many stewards, and a job on all of them: how long its launch takes, and how that grows.
//!
//! CM-2. Each node runs the very steward that a daemon runs, over links of a certain speed; the layers below it and the shepherds above are left
//! out: what is said arrives, in order, and whoever is asked is ready at once. Nodes know the group from the beginning, and replicas know all
//! nodes: it is the launch that is looked at. Processors take no time here, so what is seen is messages and bytes.
//!
//! A word's bytes are the same for all who are told it. They travel by reference ([`Snapshot`]) and count with their length.

use crate::Latency;
use crate::network::{Link, Network, NetworkError};
use crate::process::{Ctx, Process};
use crate::sim::{Birth, Setup, Sim};
use phalanx_core::buf::Snapshot;
use phalanx_core::{Addr, Boot, Buf, Duration, Identity, Instant, Machine as _, Rng, Sink};
use phalanx_protocol::link::sign::Signer;
use phalanx_protocol::manager::core::Core;
use phalanx_protocol::manager::group::{Chain, Chair, Group};
use phalanx_protocol::manager::replica::link_of;
use phalanx_protocol::manager::state::{Entry, Fact, NodeInfo, Reported};
use phalanx_protocol::manager::steward::{Config, Input, Output, Steward, Stored};
use phalanx_protocol::manager::wire::Packet;
use phalanx_protocol::manager::words::{
    Answer, Ask, At, Attempt, Command, End, Ended, Key, OnFailure, Post, Report, Wanted,
};
use phalanx_protocol::member::Peer;
use phalanx_protocol::node::Carriage;
use phalanx_protocol::order;
use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The name of the simulated cluster.
const CLUSTER: &str = "crowd";
/// What clocks on walls show when a run begins, in milliseconds since 1970.
const SINCE_1970_MS: u64 = 1_700_000_000_000;
/// Words from this length on travel by reference.
const SHARED_MIN: usize = 4096;
/// Words whose bytes are remembered.
const BODIES_MAX: usize = 16;
/// When somebody asks for the job: leaders are elected, and all have said what runs on their nodes.
const ASKED: Duration = Duration::from_millis(2_300);
/// A launch that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a crowd is made of.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Options {
    /// How many nodes, three at least; each gets a rank.
    pub nodes: u32,
    /// A word for so many nodes or more is handed on by them.
    pub relay: usize,
    /// From node to node.
    pub latency_us: f64,
    /// Each node's link.
    pub mbit_s: f64,
    /// The same seed, the same run.
    pub seed: u64,
}

/// How long a launch took, from the question on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Took {
    /// Until the last rank was told to start.
    pub start: Duration,
    /// Until the last node heard that the job, whose ranks end as soon as they start, is over.
    pub total: Duration,
    /// Packets from the question until then.
    pub packets: u64,
    /// The most bytes that one node has sent in all of the run.
    pub busiest: u64,
}

/// What a node tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Note {
    Started,
    Over(i32),
    Refused,
}

/// A message of which all but the beginning is shared.
#[derive(Debug)]
struct Tail(Arc<Vec<u8>>);

impl Snapshot for Tail {
    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn encode(&self, range: Range<usize>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0[range]);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What all nodes of a run share.
struct Common {
    options: Options,
    keys: Vec<Key>,
    group: Vec<u8>,
    state: Vec<u8>,
    bodies: Mutex<Vec<Arc<Vec<u8>>>>,
}

fn signer(node: u32) -> Signer {
    Signer::fake(1 + u64::from(node))
}

fn info(node: u32, key: Key) -> NodeInfo {
    let (name, zone) = (format!("n{node}"), format!("z{}", node % 3));
    NodeInfo { key, name, at: At::Local(node), zone, incarnation: 1, slots: 1 }
}

impl Common {
    fn new(options: Options) -> Self {
        let keys: Vec<Key> = (0..options.nodes).map(|n| signer(n).identity().into()).collect();
        let chair = |n: u32| {
            let NodeInfo { key, name, zone, at, .. } = info(n, keys[n as usize]);
            Chair { key, name, zone, at }
        };
        let group = Group { epoch: 1, seats: (0..3).map(chair).collect(), fresh: Vec::new() };
        let mut link = link_of(&group, &signer(0), CLUSTER);
        (1..3).for_each(|n| link.sign(&signer(n), CLUSTER));
        let mut chain = Chain::default();
        chain.push(link);
        let fact = |fact| Entry { at_ms: SINCE_1970_MS, fact };
        let seen = keys.iter().zip(0..).map(|(&key, n)| fact(Fact::Seen(info(n, key))));
        let idle = |&from: &Key| Reported {
            from,
            incarnation: 1,
            number: 1,
            report: Report::Inventory { attempts: Vec::new() },
        };
        let known = fact(Fact::Reported(keys.iter().map(idle).collect()));
        let mut core = Core::new(&group);
        seen.chain([known]).for_each(|entry| core.assume(entry));
        let (group, state) = (chain.encode(), core.encode());
        Self { options, keys, group, state, bodies: Mutex::default() }
    }

    /// The bytes that come at the end of a packet, when they are those of a word that others are told, too.
    fn shared(&self, bytes: &[u8]) -> Option<Arc<Vec<u8>>> {
        if bytes.len() < SHARED_MIN {
            return None;
        }
        let mut bodies = self.bodies.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(body) = bodies.iter().find(|body| bytes.ends_with(body)) {
            return Some(Arc::clone(body));
        }
        let Some(Packet::Sheaf(sheaf)) = Packet::decode(bytes) else { return None };
        let body = Arc::new(sheaf.body.filter(|body| body.len() >= SHARED_MIN && bytes.ends_with(body))?);
        if bodies.len() >= BODIES_MAX {
            bodies.remove(0);
        }
        bodies.push(Arc::clone(&body));
        Some(body)
    }
}

/// A node of a crowd.
struct Bare {
    steward: Steward,
    common: Arc<Common>,
    node: u32,
    token: u64,
    rank: Option<(Attempt, u32)>,
}

enum Decision {
    Send(Addr, Carriage, Vec<u8>),
    Persist(u64),
    Do(Command),
    Refused,
}

#[derive(Default)]
struct Decided(Vec<Decision>);

impl<'a> Sink<Output<'a>> for Decided {
    fn push(&mut self, output: Output<'a>) {
        self.0.push(match output {
            Output::Send { to, carriage, bytes } => Decision::Send(to, carriage, bytes.to_vec()),
            Output::Persist { token, .. } => Decision::Persist(token),
            Output::Do { command } => Decision::Do(command.clone()),
            Output::Answered { answer: Answer::Refused(_), .. } => Decision::Refused,
            _ => return,
        });
    }
}

impl Bare {
    fn new(common: &Arc<Common>, birth: &mut Birth<'_>) -> Self {
        let is_replica = birth.node < 3;
        let stored = Stored {
            group: Some(common.group.clone()),
            state: is_replica.then(|| common.state.clone()),
            ..Stored::default()
        };
        let config = Config {
            cluster: CLUSTER.to_owned(),
            unix_ms: SINCE_1970_MS,
            relay_min: common.options.relay,
            order: order::Config::default(),
            ..Config::default()
        };
        let rng = Rng::new(birth.rng.u64(), 2);
        let steward = Steward::recover(config, signer(birth.node), &stored, rng, birth.now);
        Self { steward, common: Arc::clone(common), node: birth.node, token: 0, rank: None }
    }

    fn drive(&mut self, now: Instant, net: &mut Ctx<'_, Self>, act: impl FnOnce(&mut Steward, &mut Decided)) {
        let mut decided = Decided::default();
        act(&mut self.steward, &mut decided);
        for decision in decided.0 {
            match decision {
                Decision::Send(to, carriage, bytes) => self.send(to, carriage, &bytes, net),
                Decision::Persist(token) => {
                    self.token += 1;
                    net.persist(token, 0, &[]);
                }
                Decision::Do(command) => self.carry_out(now, &command, net),
                Decision::Refused => net.note(Note::Refused),
            }
        }
    }

    fn tell(&mut self, now: Instant, input: Input<'_>, net: &mut Ctx<'_, Self>) {
        self.drive(now, net, |steward, out| steward.handle(now, input, out));
    }

    fn send(&self, to: Addr, carriage: Carriage, bytes: &[u8], net: &mut Ctx<'_, Self>) {
        let tail = self.common.shared(bytes);
        let head = &bytes[..bytes.len() - tail.as_ref().map_or(0, |tail| tail.len())];
        let mut packet = Buf::new(0, 1 + head.len());
        packet.extend(&[carriage as u8]);
        packet.extend(head);
        if let Some(tail) = tail {
            let range = 0..tail.len();
            packet.attach(Arc::new(Tail(tail)), range);
        }
        net.send(to, packet);
    }

    /// As shepherds that are ready at once, and ranks that end when they begin.
    fn carry_out(&mut self, now: Instant, command: &Command, net: &mut Ctx<'_, Self>) {
        let report = match command {
            Command::Prepare { attempt, shares, .. } => {
                let key = self.common.keys[self.node as usize];
                let own = shares.iter().find(|share| share.node == key).and_then(|share| share.ranks.first());
                self.rank = own.map(|ranks| (*attempt, ranks.0));
                let post = Post { at: At::Local(self.node), first: 0 };
                Report::Ready { attempt: *attempt, life: 0, post }
            }
            Command::Go { .. } => {
                net.note(Note::Started);
                let Some((attempt, rank)) = self.rank else { return };
                Report::Ended { attempt, ranks: vec![Ended { rank, life: 0, end: End::Exited(0), aborted: false }] }
            }
            Command::Over { status, .. } => return net.note(Note::Over(*status)),
            _ => return,
        };
        self.tell(now, Input::Reported { report }, net);
    }
}

impl Process for Bare {
    type Command = ();
    type Note = Note;

    fn start(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        let common = Arc::clone(&self.common);
        // Who has no seat needs to see nobody: words say where others are.
        let seen = if self.node < 3 { 0..common.options.nodes } else { self.node..self.node + 1 };
        for n in seen {
            self.tell(now, Input::Seen { node: info(n, common.keys[n as usize]), minor: 0 }, net);
        }
        self.tell(now, Input::Reported { report: Report::Inventory { attempts: Vec::new() } }, net);
    }

    fn arrived(&mut self, now: Instant, from: Addr, mut packet: Buf, net: &mut Ctx<'_, Self>) {
        let Addr::Local(node) = from else { return };
        packet.materialize();
        let Some((&carriage, bytes)) = packet.bytes().split_first() else { return };
        let carriage = [Carriage::Light, Carriage::Signed, Carriage::Bulk][usize::from(carriage % 3)];
        let identity = Identity::from(self.common.keys[node as usize]);
        let from = Peer { addr: from, identity, boot: Boot::default() };
        self.tell(now, Input::Heard { from, carriage, bytes }, net);
    }

    fn expire(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        self.drive(now, net, |steward, out| steward.expire(now, out));
    }

    fn deadline(&self) -> Instant {
        self.steward.deadline()
    }

    fn persisted(&mut self, now: Instant, token: u64, ok: bool, net: &mut Ctx<'_, Self>) {
        if ok {
            self.tell(now, Input::Persisted { token }, net);
        }
    }

    /// Wants a job with a rank on each node.
    fn command(&mut self, now: Instant, (): (), net: &mut Ctx<'_, Self>) {
        let wanted = Wanted {
            name: None,
            ranks: self.common.options.nodes,
            hosts: Vec::new(),
            per_node: Some(1),
            oversubscribe: false,
            on_failure: OnFailure::Abort,
            spares: 0,
            timeout_ms: None,
            user: (1000, 1000),
            spec: vec![7; 200],
        };
        self.drive(now, net, |steward, out| _ = steward.ask(now, Ask::Run(wanted), out));
    }
}

/// Launches a job on all nodes of a crowd.
///
/// # Errors
/// When the network makes no sense.
///
/// # Panics
/// When the job is not over in time, or not well: then the manager is broken.
pub fn launch(options: Options) -> Result<Took, NetworkError> {
    let common = Arc::new(Common::new(options));
    let network = Network {
        latency: Latency::Fixed { us: options.latency_us },
        link: Some(Link { mbit_s: options.mbit_s, queue_bytes: u64::MAX >> 20 }),
        ..Network::default()
    };
    let setup = Setup {
        seed: options.seed,
        nodes: options.nodes,
        network,
        disk: Duration::from_micros(100),
        ..Setup::default()
    };
    let mut sim = Sim::new(&setup, move |mut birth| Bare::new(&common, &mut birth))?;
    sim.keep_notes();
    sim.run_for(ASKED);
    let (asked, before) = (sim.now(), sim.stats().sent);
    sim.command(options.nodes - 1, ());
    let nodes = options.nodes as usize;
    let over = |sim: &Sim<Bare>| sim.notes().iter().filter(|n| n.2 == Note::Over(0)).count();
    while over(&sim) < nodes && sim.now() < asked + PATIENCE {
        sim.run_for(Duration::from_millis(5));
    }
    let last = |wanted: Note| {
        let times: Vec<_> = sim.notes().iter().filter(|n| n.2 == wanted).map(|n| n.0).collect();
        assert_eq!(times.len(), nodes, "{wanted:?}, of {nodes} nodes");
        times.into_iter().max().map_or(Duration::ZERO, |at| at.since(asked))
    };
    let (start, total) = (last(Note::Started), last(Note::Over(0)));
    let busiest = (0..options.nodes).map(|n| sim.bytes(n).0).max().unwrap_or_default();
    Ok(Took { start, total, packets: sim.stats().sent - before, busiest })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(nodes: u32, relay: usize) -> Took {
        launch(Options { nodes, relay, latency_us: 50.0, mbit_s: 10_000.0, seed: 1 }).unwrap()
    }

    /// CM-2: each time that the nodes are four times as many, a launch takes some steps more, and not four times as long.
    #[test]
    fn cm_2_a_launch_grows_with_the_logarithm_of_the_nodes() {
        let [small, large] = [64, 1024].map(|nodes| took(nodes, 12));
        println!("{small:?} {large:?}");
        assert!(large.start < small.start * 3 && large.total < small.total * 3, "{small:?} {large:?}");
        assert_eq!(took(64, 12), small, "the same run");
        let alone = took(1024, usize::MAX);
        assert!(alone.busiest > large.busiest * 2, "{alone:?} {large:?}");
    }
}
