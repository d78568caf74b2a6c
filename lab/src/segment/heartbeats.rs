//! `segment-heartbeats`: what all-to-all heartbeats of 1024 bytes a second come to at each node, to 4000 nodes (003 §2, Fig. 3).
//!
//! Simulated twice. *Whole nodes* have links: each proves a session with each other one, and seals what it says; 4000 of them would hold 16 million
//! sessions, so they end at 1000. *Bare engines* say the same to each other without a link, and go to 4000. The analysis is m·(n−1)·f.
//!
//! The paper measured on one machine what it costs to hear so much. So does the last kind of row: *one real node*, an engine on a real UDP socket, to
//! which n−1 others send from another thread; `cpu` is the part of a core that its thread takes, the kernel's work for it included.

use super::PERIOD;
use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, Row, row, significant};
use crate::zone::{Booted, booted_within};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use phalanx_core::{Addr, Boot, Buf, Duration, Group, Identity, Instant, Machine, Rng, Sink};
use phalanx_daemon::Clock;
use phalanx_protocol::baselines::{AllToAll, AllToAllConfig, Start, analysis};
use phalanx_protocol::member::{Card, Engine, Frozen, Input, Name, Output, Peer};
use phalanx_sim::member::{self, Options};
use phalanx_sim::{Ctx, HEADERS, Latency, Network, Process, Setup, Sim};
use socket2::SockRef;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::BinaryHeap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time;

/// The experiment.
pub(crate) struct SegmentHeartbeats;

/// 003 §2: "a 1024-byte heartbeat packet per second".
const BYTES: usize = 1024;
const SIZES: [u32; 8] = [20, 100, 400, 1000, 1500, 2000, 3000, 4000];
const QUICK: [u32; 3] = [20, 100, 400];
/// No more whole nodes than these.
const WHOLE: u32 = 1000;
/// "4MB/s bandwidth for each node in a cluster with 4000 nodes".
const LARGEST: u32 = 4000;
const LARGEST_BYTES: f64 = 4e6;
/// By then all have heard all.
const BOOT: Duration = Duration::from_millis(2_500);
const LOOK: Duration = Duration::from_secs(1);
/// Packets and bytes are counted for so long.
const COUNTED: Duration = Duration::from_secs(2);
/// The real node hears for so long before it is measured, and while it is.
const WARM_UP: time::Duration = time::Duration::from_millis(2_500);
const MEASURED: time::Duration = time::Duration::from_secs(4);
const SEED: u64 = 1;
/// Of the real node: what waits while it is not scheduled.
const RECEIVE_BUFFER: usize = 4 << 20;
const GROUP: Group = Group { number: 1, ttl: 1 };

fn config() -> AllToAllConfig {
    AllToAllConfig { heartbeat_bytes: BYTES as u16, ..AllToAllConfig::paper(Some(GROUP)) }
}

/// What one node hears in a second, on average.
#[derive(Clone, Copy, Debug)]
struct Heard {
    packets: f64,
    bytes: f64,
    /// Part of a core, where that was measured.
    cpu: Option<f64>,
}

impl Heard {
    fn row(&self, ground: &str, what: &str, nodes: u32) -> Row {
        row! {
            "ground": ground, "what": what, "nodes": nodes, "packets_per_s": significant(self.packets),
            "bytes_per_s": significant(self.bytes), "cpu": self.cpu.map(significant),
        }
    }
}

/// Everybody, in the order of their numbers.
fn everybody(nodes: u32) -> Arc<Frozen> {
    let card = |n: u32| {
        let name = Name::new(&format!("n{n}")).expect("a letter and digits");
        (Card { identity: identity(n), addr: Addr::Local(n), name }, 1)
    };
    Arc::new(Frozen::new((0..nodes).map(card)))
}

/// Any will do that differ.
fn identity(n: u32) -> Identity {
    let mut rng = Rng::new(SEED, n.into());
    let mut bytes = [0; 32];
    rng.fill(&mut bytes);
    Identity(bytes)
}

fn engine(n: u32, everybody: &Arc<Frozen>, rng: Rng, now: Instant) -> AllToAll {
    let name = Name::new(&format!("n{n}")).expect("a letter and digits");
    let card = Card { identity: identity(n), addr: Addr::Local(n), name };
    let start = Start { card, incarnation: 1, bootstrap: Vec::new(), shared: Arc::clone(everybody) };
    AllToAll::new(config(), start, rng, now)
}

/// An engine on the simulated network, with nothing between them.
struct Bare {
    engine: AllToAll,
    identities: Arc<[Identity]>,
    heard: u64,
}

/// Sends what it says.
struct Outlet<'a, 'n>(&'a mut Ctx<'n, Bare>);

impl<'o> Sink<Output<'o>> for Outlet<'_, '_> {
    fn push(&mut self, output: Output<'o>) {
        match output {
            Output::Cast { group, bytes } => self.0.send(Addr::Group(group), Buf::copy_of(bytes)),
            Output::Hear { group } => self.0.join_group(group),
            _ => {}
        }
    }
}

impl Process for Bare {
    type Command = ();
    type Note = ();

    fn start(&mut self, _: Instant, _: &mut Ctx<'_, Self>) {}

    fn arrived(&mut self, now: Instant, from: Addr, packet: Buf, net: &mut Ctx<'_, Self>) {
        self.heard += 1;
        let Addr::Local(n) = from else { return };
        let from = Peer { addr: from, identity: self.identities[n as usize], boot: Boot::default() };
        let input = Input::Datagram { from, group: true, bytes: packet.bytes() };
        self.engine.handle(now, input, &mut Outlet(net));
    }

    fn expire(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        self.engine.expire(now, &mut Outlet(net));
    }

    fn deadline(&self) -> Instant {
        self.engine.deadline()
    }
}

/// Bare engines; `None` when somebody does not see everybody.
fn bare(nodes: u32) -> Result<Option<Heard>, Error> {
    let (known, identities) = (everybody(nodes), (0..nodes).map(identity).collect::<Arc<[_]>>());
    let network = Network { latency: Latency::Fixed { us: super::DELAY_US }, ..Network::default() };
    let setup = Setup { nodes, seed: SEED, network, ..Setup::default() };
    let birth = move |birth: phalanx_sim::Birth<'_>| {
        let rng = Rng::new(birth.rng.u64(), 1);
        Bare { engine: engine(birth.node, &known, rng, birth.now), identities: Arc::clone(&identities), heard: 0 }
    };
    let mut sim = Sim::new(&setup, birth).map_err(Error::peer("phalanx-sim"))?;
    sim.run_for(BOOT);
    let count = |sim: &Sim<Bare>| {
        let packets: u64 = sim.cluster().processes().map(|(_, p)| p.heard).sum();
        (packets, (0..nodes).map(|n| sim.bytes(n).1).sum::<u64>())
    };
    let before = count(&sim);
    sim.run_for(COUNTED);
    let after = count(&sim);
    if sim.cluster().processes().any(|(_, p)| p.engine.len() != nodes as usize) {
        return Ok(None);
    }
    let each = |count: u64| count as f64 / COUNTED.as_secs_f64() / f64::from(nodes);
    Ok(Some(Heard { packets: each(after.0 - before.0), bytes: each(after.1 - before.1), cpu: None }))
}

/// Whole nodes, link and all; `None` when they did not boot.
fn whole(nodes: u32) -> Result<Option<Heard>, Error> {
    let network = Network { latency: Latency::Fixed { us: super::DELAY_US }, ..Network::default() };
    let setup = Setup { nodes, seed: SEED, network, ..Setup::default() };
    let built = member::build_all_to_all(&setup, &Options::default(), config());
    let mut cluster = booted_within(built, nodes, LOOK, COUNTED)?;
    if cluster.boot_s().is_none() {
        return Ok(None);
    }
    let before = cluster.sim().stats().delivered;
    let bytes = cluster.heard(COUNTED) / f64::from(nodes);
    let packets = (cluster.sim().stats().delivered - before) as f64 / COUNTED.as_secs_f64() / f64::from(nodes);
    Ok(Some(Heard { packets, bytes, cpu: None }))
}

/// Keeps what an engine says.
#[derive(Default)]
struct Said(Vec<Vec<u8>>);

impl<'o> Sink<Output<'o>> for Said {
    fn push(&mut self, output: Output<'o>) {
        if let Output::Cast { bytes, .. } = output {
            self.0.push(bytes.to_vec());
        }
    }
}

/// In front of each packet to the real node: who speaks, which a seal would say.
const FROM: usize = 4;

/// One node on a real socket, to which all others speak; `None` when it does not see them all.
fn real(nodes: u32) -> Result<Option<Heard>, Error> {
    let socket = UdpSocket::bind(("127.0.0.1", 0))?;
    SockRef::from(&socket).set_recv_buffer_size(RECEIVE_BUFFER)?;
    let (to, known) = (socket.local_addr()?, everybody(nodes));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let others = scope.spawn(|| speak(nodes, &known, to, &is_over));
        let heard = hear(&socket, nodes, &known);
        is_over.store(true, Ordering::Relaxed);
        others.join().expect("a panic there is one here")?;
        heard
    })
}

/// All but the first speak, each at its time.
fn speak(nodes: u32, known: &Arc<Frozen>, to: SocketAddr, is_over: &AtomicBool) -> Result<(), Error> {
    let (socket, clock) = (UdpSocket::bind(("127.0.0.1", 0))?, Clock::start());
    let mut engines: Vec<AllToAll> =
        (1..nodes).map(|n| engine(n, known, Rng::new(SEED, n.into()), clock.now())).collect();
    let mut due: BinaryHeap<_> = engines.iter().enumerate().map(|(i, e)| Reverse((e.deadline(), i))).collect();
    while let Some(Reverse((at, i))) = due.pop()
        && !is_over.load(Ordering::Relaxed)
    {
        let early = at.since(clock.now());
        if early > Duration::ZERO {
            thread::sleep(early.into());
        }
        let mut said = Said::default();
        engines[i].expire(clock.now(), &mut said);
        for bytes in said.0 {
            // A full buffer is a lost packet.
            let _ = socket.send_to(&[&(i as u32 + 1).to_le_bytes(), &bytes[..]].concat(), to);
        }
        due.push(Reverse((engines[i].deadline(), i)));
    }
    Ok(())
}

/// The first hears them.
fn hear(socket: &UdpSocket, nodes: u32, known: &Arc<Frozen>) -> Result<Option<Heard>, Error> {
    let clock = Clock::start();
    let mut own = engine(0, known, Rng::new(SEED, 0), clock.now());
    let identities: Vec<Identity> = (0..nodes).map(identity).collect();
    let mut buffer = vec![0; 2048];
    socket.set_read_timeout(Some(time::Duration::from_millis(100)))?;
    let warm = time::Instant::now() + WARM_UP;
    let mut began: Option<(time::Instant, time::Duration)> = None;
    let (mut packets, mut bytes) = (0u64, 0u64);
    loop {
        match began {
            None if time::Instant::now() >= warm => {
                began = Some((time::Instant::now(), cpu_time()?));
                (packets, bytes) = (0, 0);
            }
            Some((at, before)) if at.elapsed() >= MEASURED => {
                let (took, cpu) = (at.elapsed().as_secs_f64(), (cpu_time()? - before).as_secs_f64());
                let sees_all = own.len() == nodes as usize;
                let each = |count: u64| count as f64 / took;
                return Ok(sees_all.then(|| Heard {
                    packets: each(packets),
                    bytes: each(bytes),
                    cpu: Some(cpu / took),
                }));
            }
            _ => {}
        }
        let mut said = Said::default();
        if let Ok(length) = socket.recv(&mut buffer)
            && let Some((from, packet)) = buffer[..length].split_first_chunk::<FROM>()
            && let Some(&identity) = identities.get(u32::from_le_bytes(*from) as usize)
        {
            (packets, bytes) = (packets + 1, bytes + packet.len() as u64 + HEADERS);
            let from = Peer { addr: Addr::Local(u32::from_le_bytes(*from)), identity, boot: Boot::default() };
            own.handle(clock.now(), Input::Datagram { from, group: true, bytes: packet }, &mut said);
        }
        if own.deadline() <= clock.now() {
            own.expire(clock.now(), &mut said);
        }
    }
}

/// What this thread took of a processor, the kernel's work for it included.
fn cpu_time() -> Result<time::Duration, Error> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
    let sum = usage.user_time() + usage.system_time();
    Ok(time::Duration::from_micros(sum.num_microseconds().unsigned_abs()))
}

impl Experiment for SegmentHeartbeats {
    fn name(&self) -> &'static str {
        "segment-heartbeats"
    }

    fn about(&self) -> &'static str {
        "what all-to-all heartbeats of 1024 bytes come to at each of 4000 nodes: packets, bytes, processor (003 Fig. 3)"
    }

    fn picture(&self) -> Picture {
        Picture { x: "nodes", y: "bytes_per_s", series: &["what"], only: None, beside: &[] }
    }

    fn pictures(&self) -> Vec<Picture> {
        let all = self.picture();
        vec![all, Picture { y: "packets_per_s", ..all }, Picture { y: "cpu", ..all }]
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let sizes: &[u32] = if run.options.quick { &QUICK } else { &SIZES };
        let mut found: BTreeMap<(&str, u32), Heard> = BTreeMap::new();
        // Alone on the machine, before the simulator takes it.
        for &nodes in sizes {
            run.progress(&format!("one real node that hears {} others", nodes - 1));
            keep(run, &mut found, ("real", REAL), nodes, real(nodes)?);
        }
        let mut cases: Vec<(&str, u32)> = sizes.iter().map(|&n| (BARE, n)).collect();
        cases.extend(sizes.iter().filter(|&&n| n <= WHOLE).map(|&n| (WHOLE_NODES, n)));
        cases.sort_by_key(|c| std::cmp::Reverse(c.1));
        let name = |c: &(&str, u32)| format!("{}, {} nodes", c.0, c.1);
        let simulated = run.in_parallel(&cases, name, |&(what, n)| if what == BARE { bare(n) } else { whole(n) });
        for (&(what, nodes), heard) in cases.iter().zip(simulated) {
            keep(run, &mut found, ("simulated", what), nodes, heard?);
        }
        for &nodes in sizes {
            let bytes = analysis::all_to_all_bytes(nodes as usize, BYTES, PERIOD);
            let heard = Heard { packets: f64::from(nodes - 1) / PERIOD.as_secs_f64(), bytes, cpu: None };
            keep(run, &mut found, ("analytic", ANALYSIS), nodes, Some(heard));
        }
        run.note(format!("whole nodes: up to {WHOLE}; more hold n² sessions"));
        check(run, &found, sizes);
        Ok(())
    }
}

const BARE: &str = "bare engines";
const WHOLE_NODES: &str = "whole nodes";
const REAL: &str = "one real node";
const ANALYSIS: &str = "003 §2";

fn keep<'a>(
    run: &mut Run,
    found: &mut BTreeMap<(&'a str, u32), Heard>,
    (ground, what): (&str, &'a str),
    nodes: u32,
    heard: Option<Heard>,
) {
    let Some(heard) = heard else {
        return run.note(format!("{what}, {nodes} nodes: not everybody was seen"));
    };
    run.row(heard.row(ground, what, nodes));
    found.insert((what, nodes), heard);
}

fn check(run: &mut Run, found: &BTreeMap<(&str, u32), Heard>, sizes: &[u32]) {
    let largest = sizes[sizes.len() - 1];
    let apart = |what, of: fn(&Heard) -> f64| {
        let known = sizes.iter().filter(|&&n| what != WHOLE_NODES || n <= WHOLE);
        let each = known.map(|&n| Some(of(found.get(&(what, n))?) / of(found.get(&(ANALYSIS, n))?)));
        let each = each.collect::<Option<Vec<f64>>>()?;
        each.into_iter().map(|r| r.max(1.0 / r)).reduce(f64::max)
    };
    for what in [BARE, WHOLE_NODES, REAL] {
        let name = |which: &str| format!("{what}: {which}, measured and analytic, apart by a factor of");
        let must = Must::AtMost;
        run.check(Check::new(name("packets"), apart(what, |h| h.packets), must, 1.05));
        // Headers, and the seal of whole nodes.
        run.check(Check::new(name("bytes"), apart(what, |h| h.bytes), must, 1.12));
    }
    if largest == LARGEST {
        let bytes = found.get(&(BARE, LARGEST)).map(|h| h.bytes);
        run.check(Check::new(
            "4000 nodes: bytes a second for each (the paper: 4 MB)",
            bytes,
            Must::AtLeast,
            LARGEST_BYTES,
        ));
    }
}
