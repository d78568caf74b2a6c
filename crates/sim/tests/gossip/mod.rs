//! A toy that uses all of the machine beneath it, and a storm of faults: whatever depends on the order of anything
//! shows in its trace.

use phalanx_core::{Addr, Buf, Duration, Group, Instant, Rng};
use phalanx_fault::{Kind, Rule};
use phalanx_sim::{
    Birth, Ctx, DiskFault, Fault, Latency, Network, NodeFault, Partition, Process, Routers, Setup, Shape, Sim,
    StreamEvent, Topology, Weather,
};

/// Nodes of the toy cluster.
pub(crate) const NODES: u32 = 60;

/// Knows a number, and tells it to others: the largest one spreads.
pub(crate) struct Gossip {
    pub(crate) best: u64,
    next: Instant,
}

/// What it says to checkers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Said {
    /// Learned a larger number.
    Learned(u64),
    /// A stream changed.
    Stream(Addr, StreamEvent),
    /// Nobody is there.
    Refused(Addr),
}

const INTERVAL: Duration = Duration::from_millis(10);
const GROUP: u16 = 3;

impl Gossip {
    fn learn(&mut self, number: u64, net: &mut Ctx<'_, Self>) {
        if number > self.best {
            self.best = number;
            net.note(Said::Learned(number));
            net.persist(number, 1, &number.to_le_bytes());
            net.reached("learned");
        }
    }

    fn tell(&self, to: Addr, net: &mut Ctx<'_, Self>) {
        // Twice, once upside down: a flipped bit shows.
        let mut packet = Buf::copy_of(&self.best.to_le_bytes());
        packet.extend(&(!self.best).to_le_bytes());
        net.send(to, packet);
    }
}

impl Process for Gossip {
    /// A number from outside.
    type Command = u64;
    type Note = Said;

    fn start(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        self.next = now + Duration(net.rng().below(INTERVAL.0));
        net.join_group(GROUP);
        net.open_stream(Addr::Local((net.node() + 1) % net.nodes()));
        let number = net.rng().below(1_000);
        self.learn(number, net);
    }

    fn arrived(&mut self, now: Instant, from: Addr, packet: Buf, net: &mut Ctx<'_, Self>) {
        let Ok(twice) = packet.bytes().try_into().map(u128::from_le_bytes) else {
            return;
        };
        let number = twice as u64;
        if !number != (twice >> 64) as u64 {
            return;
        }
        if number < self.best {
            self.tell(from, net);
        }
        self.learn(number, net);
        // Traffic moves the timer now and then, so that overtaken timers are part of the run.
        if net.rng().chance(0.1) {
            self.next = now + Duration(net.rng().below(INTERVAL.0));
        }
    }

    fn expire(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        self.next = now + INTERVAL;
        let nodes = u64::from(net.nodes());
        for _ in 0..3 {
            let to = net.rng().below(nodes) as u32;
            self.tell(Addr::Local(to), net);
        }
        if net.rng().chance(0.2) {
            let ttl = 1 + net.rng().below(3) as u8;
            self.tell(Addr::Group(Group { number: GROUP, ttl }), net);
        }
    }

    fn deadline(&self) -> Instant {
        self.next
    }

    fn stream(&mut self, now: Instant, peer: Addr, event: StreamEvent, net: &mut Ctx<'_, Self>) {
        net.note(Said::Stream(peer, event));
        if event != StreamEvent::Opened {
            net.close_stream(peer);
            self.next = now;
        }
    }

    fn refused(&mut self, _: Instant, to: Addr, net: &mut Ctx<'_, Self>) {
        net.note(Said::Refused(to));
        net.open_stream(to);
    }

    fn command(&mut self, _: Instant, number: u64, net: &mut Ctx<'_, Self>) {
        self.learn(number, net);
    }
}

/// Remembers what its disk kept.
pub(crate) fn born(birth: Birth<'_>) -> Gossip {
    let kept = birth.disk.read(1).and_then(|bytes| bytes.try_into().ok());
    Gossip { best: kept.map_or(0, u64::from_le_bytes), next: Instant::NEVER }
}

/// Segments in a chain, with everything a network does to messages.
///
/// Several threads meet at each window, although so few nodes would be faster alone.
pub(crate) fn cluster(seed: u64, threads: usize) -> Sim<Gossip> {
    let network = Network {
        latency: Latency::Lognormal { median_us: 300.0, sigma: 0.6, min_us: 80.0 },
        topology: Topology::Segments { size: 7, routers: Routers::Named(Shape::Chain), per_router_us: 20.0 },
        loss: 0.02,
        duplication: 0.02,
        reorder: 0.05,
        reorder_us: 900.0,
        ..Network::default()
    };
    let start_within = Duration::from_millis(20);
    let setup = Setup {
        seed,
        nodes: NODES,
        threads,
        alone_below: 0,
        network,
        start_within,
        socket_packets: 8,
        ..Setup::default()
    };
    let mut sim = Sim::new(&setup, born).expect("the network makes sense");
    sim.keep_notes();
    sim
}

/// Plans faults of all kinds over the first 300 ms.
pub(crate) fn storm(sim: &mut Sim<Gossip>, seed: u64) {
    let mut rng = Rng::new(seed, 77);
    for n in 0..120u64 {
        let at = Instant(rng.below(300_000_000));
        let (a, b) = (rng.below(u64::from(NODES)) as u32, rng.below(u64::from(NODES)) as u32);
        sim.fault_at(at, fault(n, a, b, &mut rng));
        sim.command_at(at, b, 1_000 + rng.below(100_000));
    }
}

fn fault(n: u64, a: u32, b: u32, rng: &mut Rng) -> Fault {
    let name = format!("cut {}", n % 3);
    match n % 15 {
        0 => Fault::crash(a),
        1 => Fault::crash_host(a),
        2 | 3 => Fault::restart(a),
        4 => Fault::pause(a),
        5 => Fault::resume(a),
        6 => Fault::Partition(Partition::between(&name, [a], [b])),
        7 => Fault::Partition(Partition::one_way(&name, (0..a).collect::<phalanx_sim::NodeSet>(), [b])),
        8 => Fault::HealPartition(name),
        9 => Fault::Weather(Weather {
            loss: rng.unit() * 0.1,
            slower: Duration(rng.below(100_000)),
            ..Weather::default()
        }),
        10 => Fault::Node(
            a,
            NodeFault::Clock { rate: 0.5 + rng.unit(), step_ns: rng.below(2_000_000) as i64 - 1_000_000 },
        ),
        11 => Fault::Node(a, NodeFault::Loss { inward: rng.unit(), outward: rng.unit() }),
        12 => Fault::Node(a, NodeFault::Disk(DiskFault { lose: 0.3, forget: 0.3, ..DiskFault::default() })),
        13 => Fault::ResetStream(a, (a + 1) % NODES),
        _ => Fault::inject(
            a,
            Rule::new([Kind::Drop, Kind::Reorder, Kind::Modify { bits: 1 }][n as usize / 15 % 3].clone()),
        ),
    }
}
