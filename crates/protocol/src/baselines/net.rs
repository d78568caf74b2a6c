//! Engines on a simulated network: delay, loss, groups, partitions, crashes, restarts. All from one seed.

use crate::member::{Card, Engine, Event, Input, Name, Output, Peer, Slot, Version, Why};
use phalanx_core::{Addr, Boot, Duration, Group, Identity, Instant, Machine, Payload, Rng, Sink};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// How bad the network is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    pub(crate) loss: f64,
    pub(crate) delay: (Duration, Duration),
}

impl Weather {
    pub(crate) const FAIR: Self = Self { loss: 0.0, delay: (Duration(200_000), Duration(1_000_000)) };

    pub(crate) const fn losing(loss: f64) -> Self {
        Self { loss, ..Self::FAIR }
    }
}

/// A change of a view, as its observer told it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    pub(crate) at: Instant,
    pub(crate) observer: usize,
    pub(crate) subject: usize,
    pub(crate) incarnation: u64,
    /// Why it left; `None` when it joined.
    pub(crate) why: Option<Why>,
}

pub(crate) struct Packet {
    /// When it was sent.
    pub(crate) at: Instant,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) way: Way,
    pub(crate) bytes: Rc<[u8]>,
}

/// How a packet travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Datagram,
    Cast,
    /// Nothing of it is lost, while both sides live and reach each other.
    Message,
}

pub(crate) struct Host<E> {
    pub(crate) engine: Option<E>,
    pub(crate) incarnation: u64,
    /// Payload bytes that arrived, in so many packets.
    pub(crate) received: u64,
    pub(crate) packets: u64,
    witness: Witness,
    hears: BTreeSet<u16>,
    deadline: Instant,
    side: u8,
    paused: bool,
}

pub(crate) struct Net<'m, E> {
    pub(crate) now: Instant,
    pub(crate) weather: Weather,
    pub(crate) hosts: Vec<Host<E>>,
    pub(crate) told: Vec<Told>,
    /// The TTL that gets a datagram from one to the other; 0 when there is no way.
    pub(crate) distance: Box<dyn Fn(usize, usize) -> u8>,
    /// Whether a packet is lost, whatever the weather.
    pub(crate) loses: Box<dyn FnMut(&Packet) -> bool>,
    make: &'m dyn Fn(usize, u64, Rng, Instant) -> E,
    queue: BTreeMap<(Instant, u64), Packet>,
    deadlines: BTreeSet<(Instant, usize)>,
    rng: Rng,
    seed: u64,
    sent: u64,
}

pub(crate) fn card(n: usize) -> Card {
    let mut identity = Identity([3; 32]);
    identity.0[..8].copy_from_slice(&phalanx_core::rng::mix(n as u64 + 1).to_le_bytes());
    Card { identity, addr: Addr::Local(n as u32), name: Name::new(&format!("node-{n:03}")).unwrap() }
}

pub(crate) fn peer(n: usize) -> Peer {
    Peer { addr: card(n).addr, identity: card(n).identity, boot: Boot::default() }
}

/// Outputs that outlive the call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Owned {
    Datagram(Addr, Vec<u8>),
    Cast(Group, Vec<u8>),
    Message(Addr, Vec<u8>),
    Hear(u16),
    Release(Addr),
    Joined(Slot, Version),
    Left(Slot, Version, Why),
    Attribute(Slot, String, Option<Vec<u8>>),
}

#[derive(Default, Debug)]
pub(crate) struct Collected(pub(crate) Vec<Owned>);

impl<'a> Sink<Output<'a>> for Collected {
    fn push(&mut self, item: Output<'a>) {
        self.0.push(match item {
            Output::Datagram { to, bytes } => Owned::Datagram(to, bytes.to_vec()),
            Output::Cast { group, bytes } => Owned::Cast(group, bytes.to_vec()),
            Output::Message { to, message, .. } => {
                let mut bytes = Vec::new();
                message.encode(0..message.encoded_len(), &mut bytes);
                Owned::Message(to, bytes)
            }
            Output::Hear { group } => Owned::Hear(group),
            Output::Release { addr } => Owned::Release(addr),
            Output::Event(Event::Joined { member, version }) => Owned::Joined(member, version),
            Output::Event(Event::Left { member, version, why }) => Owned::Left(member, version, why),
            Output::Event(Event::Attribute { member, key, value }) => {
                Owned::Attribute(member, key.into(), value.map(<[u8]>::to_vec))
            }
            Output::Event(Event::Name { .. } | Event::Details { .. }) | Output::Wire { .. } | Output::Unwire { .. } => {
                panic!("no baseline asks for it")
            }
        });
    }
}

/// Believes nothing: builds a view from the events alone.
#[derive(Default)]
pub(crate) struct Witness {
    view: BTreeMap<Slot, Version>,
    attributes: BTreeMap<Slot, BTreeMap<String, Vec<u8>>>,
    /// The newest life of each that was ever told.
    newest: BTreeMap<Identity, u64>,
}

impl Witness {
    pub(crate) fn hear(&mut self, event: &Owned, who: Identity) -> Result<(), String> {
        match event {
            Owned::Joined(slot, version) => {
                if self.view.insert(*slot, *version).is_some() {
                    return Err(format!("{slot:?} joined twice"));
                }
                let newest = self.newest.entry(who).or_insert(0);
                if version.incarnation < *newest {
                    return Err(format!("{slot:?} came back as {version} after {newest}"));
                }
                *newest = version.incarnation;
                self.attributes.insert(*slot, BTreeMap::new());
            }
            Owned::Left(slot, version, _) => {
                if self.view.remove(slot).is_none_or(|v| v.incarnation != version.incarnation) {
                    return Err(format!("{slot:?} left as {version} and was not there"));
                }
                self.attributes.remove(slot);
            }
            Owned::Attribute(slot, key, value) => {
                let Some(map) = self.attributes.get_mut(slot) else {
                    return Err(format!("{key} of {slot:?}, which is not there"));
                };
                let before = map.get(key).cloned();
                if before == *value {
                    return Err(format!("{key} of {slot:?} did not change"));
                }
                match value {
                    Some(value) => _ = map.insert(key.clone(), value.clone()),
                    None => _ = map.remove(key),
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Only these are remembered by the engine, and cannot come back in an older life.
    pub(crate) fn retain(&mut self, known: impl Fn(Identity) -> bool) {
        self.newest.retain(|&who, _| known(who));
    }

    pub(crate) fn agree<E: Engine>(&self, engine: &E) -> Result<(), String> {
        let me = engine.me();
        let view: BTreeMap<_, _> = engine.members().filter(|&(slot, _)| slot != me).collect();
        let told = self.view.iter().map(|(&slot, &version)| (slot, version));
        if !told.clone().eq(view.iter().map(|(&s, &v)| (s, v))) || engine.len() != view.len() + 1 {
            return Err(format!("told {:?}, is {view:?}", told.collect::<Vec<_>>()));
        }
        for (&slot, map) in &self.attributes {
            if let Some((key, value)) = map.iter().find(|(k, v)| engine.attribute(slot, k) != Some(&v[..])) {
                return Err(format!("told {key}={value:?} of {slot:?}, is {:?}", engine.attribute(slot, key)));
            }
        }
        Ok(())
    }
}

impl<'m, E: Engine> Net<'m, E> {
    /// `n` nodes that start within a second.
    pub(crate) fn new(n: usize, weather: Weather, seed: u64, make: &'m dyn Fn(usize, u64, Rng, Instant) -> E) -> Self {
        let mut net = Self {
            now: Instant(1_000_000_000),
            weather,
            hosts: Vec::new(),
            told: Vec::new(),
            distance: Box::new(|_, _| 1),
            loses: Box::new(|_| false),
            make,
            queue: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            rng: Rng::new(seed, u64::MAX),
            seed,
            sent: 0,
        };
        for i in 0..n {
            net.hosts.push(Host {
                engine: None,
                incarnation: 0,
                received: 0,
                packets: 0,
                witness: Witness::default(),
                hears: BTreeSet::new(),
                deadline: Instant::NEVER,
                side: 0,
                paused: false,
            });
            net.start(i);
        }
        net
    }

    /// Starts a node, newly or again.
    pub(crate) fn start(&mut self, i: usize) {
        let host = &mut self.hosts[i];
        host.incarnation += 1;
        let rng = Rng::new(self.seed, (i as u64) << 16 | host.incarnation);
        host.engine = Some((self.make)(i, host.incarnation, rng, self.now));
        host.witness = Witness::default();
        host.hears.clear();
        self.rearm(i);
    }

    pub(crate) fn crash(&mut self, i: usize) {
        self.hosts[i].engine = None;
        self.rearm(i);
    }

    pub(crate) fn leave(&mut self, i: usize, code: u8) {
        let mut out = Collected::default();
        let engine = self.hosts[i].engine.as_mut().expect("it runs");
        engine.leave(self.now, code, &mut out);
        assert!(engine.is_empty() && engine.deadline() == Instant::NEVER);
        self.perform(i, out);
        self.crash(i);
    }

    /// The process stands still. What comes for it is lost: its socket's buffer is full.
    pub(crate) fn pause(&mut self, i: usize) {
        self.hosts[i].paused = true;
        self.rearm(i);
    }

    pub(crate) fn resume(&mut self, i: usize) {
        self.hosts[i].paused = false;
        self.rearm(i);
    }

    pub(crate) fn engine(&mut self, i: usize) -> &mut E {
        self.hosts[i].engine.as_mut().expect("it runs")
    }

    /// These on one side, the others on the other one.
    pub(crate) fn partition(&mut self, side: &[usize]) {
        self.hosts.iter_mut().enumerate().for_each(|(i, h)| h.side = side.contains(&i).into());
    }

    pub(crate) fn heal(&mut self) {
        self.partition(&[]);
    }

    pub(crate) fn run(&mut self, span: Duration) {
        let until = self.now + span;
        loop {
            let packet_at = self.queue.first_key_value().map_or(Instant::NEVER, |(&(at, _), _)| at);
            let timer_at = self.deadlines.first().map_or(Instant::NEVER, |&(at, _)| at);
            let at = packet_at.min(timer_at);
            if at > until {
                break;
            }
            self.now = self.now.max(at);
            if packet_at <= timer_at {
                let (_, packet) = self.queue.pop_first().expect("seen above");
                self.arrive(packet);
            } else {
                let (_, i) = self.deadlines.pop_first().expect("seen above");
                let mut out = Collected::default();
                let now = self.now;
                self.engine(i).expire(now, &mut out);
                self.perform(i, out);
            }
        }
        self.now = until;
    }

    /// Runs until all views are what they should be, and says how long it took.
    pub(crate) fn settle(&mut self, at_most: Duration) -> Duration {
        let start = self.now;
        while !self.is_settled() {
            assert!(self.now.since(start) < at_most, "seed {}: views differ: {:?}", self.seed, self.views());
            self.run(at_most / 200);
        }
        self.now.since(start)
    }

    pub(crate) fn is_settled(&self) -> bool {
        let expected: BTreeMap<_, _> = self.running().map(|i| (i, self.hosts[i].incarnation)).collect();
        self.views().values().all(|view| *view == expected)
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = usize> {
        self.hosts.iter().enumerate().filter(|(_, h)| h.engine.is_some()).map(|(i, _)| i)
    }

    /// Who sees whom, in which incarnation.
    pub(crate) fn views(&self) -> BTreeMap<usize, BTreeMap<usize, u64>> {
        let view = |e: &E| e.members().map(|(s, v)| (place(e.card(s).unwrap().addr), v.incarnation)).collect();
        self.hosts.iter().enumerate().filter_map(|(i, h)| Some((i, view(h.engine.as_ref()?)))).collect()
    }

    fn arrive(&mut self, packet: Packet) {
        let Packet { from, to, way, bytes, .. } = packet;
        if self.hosts[from].side != self.hosts[to].side || self.hosts[to].paused {
            return;
        }
        let Some(engine) = &mut self.hosts[to].engine else { return };
        let mut out = Collected::default();
        let from = peer(from);
        let input = match way {
            Way::Message => Input::Message { from, payload: Payload::Bytes(&bytes) },
            Way::Datagram | Way::Cast => Input::Datagram { from, group: way == Way::Cast, bytes: &bytes },
        };
        engine.handle(self.now, input, &mut out);
        self.hosts[to].received += bytes.len() as u64;
        self.hosts[to].packets += 1;
        self.perform(to, out);
    }

    fn perform(&mut self, i: usize, out: Collected) {
        let mut told = false;
        for output in out.0 {
            match &output {
                Owned::Datagram(to, bytes) => self.send(i, place(*to), Way::Datagram, bytes.as_slice().into()),
                Owned::Message(to, bytes) => self.send(i, place(*to), Way::Message, bytes.as_slice().into()),
                Owned::Cast(group, bytes) => {
                    let bytes: Rc<[u8]> = bytes.as_slice().into();
                    let is_near = |j: usize| (1..=group.ttl).contains(&(self.distance)(i, j));
                    let hearing = |j: &usize| *j != i && self.hosts[*j].hears.contains(&group.number) && is_near(*j);
                    for j in (0..self.hosts.len()).filter(hearing).collect::<Vec<_>>() {
                        self.send(i, j, Way::Cast, Rc::clone(&bytes));
                    }
                }
                Owned::Hear(group) => _ = self.hosts[i].hears.insert(*group),
                Owned::Release(_) => {}
                Owned::Joined(slot, _) | Owned::Left(slot, ..) | Owned::Attribute(slot, ..) => {
                    told = true;
                    let host = &mut self.hosts[i];
                    let engine = host.engine.as_ref().expect("it runs");
                    let card = engine.card(*slot).expect("a card stays known");
                    host.witness.hear(&output, card.identity).unwrap_or_else(|e| panic!("seed {}: {e}", self.seed));
                    let (version, why) = match output {
                        Owned::Joined(_, version) => (version, None),
                        Owned::Left(_, version, why) => (version, Some(why)),
                        _ => continue,
                    };
                    let (subject, incarnation) = (place(card.addr), version.incarnation);
                    self.told.push(Told { at: self.now, observer: i, subject, incarnation, why });
                }
            }
        }
        let host = &self.hosts[i];
        if let Some(engine) = host.engine.as_ref().filter(|e| told && !e.is_empty()) {
            host.witness.agree(engine).unwrap_or_else(|e| panic!("seed {}, node {i}: {e}", self.seed));
        }
        self.rearm(i);
    }

    fn send(&mut self, from: usize, to: usize, way: Way, bytes: Rc<[u8]>) {
        if to >= self.hosts.len() || self.hosts[from].side != self.hosts[to].side {
            return;
        }
        let packet = Packet { at: self.now, from, to, way, bytes };
        let is_lost = way != Way::Message && self.rng.chance(self.weather.loss);
        if is_lost || (self.loses)(&packet) || (self.distance)(from, to) == 0 {
            return;
        }
        let (least, most) = self.weather.delay;
        let at = self.now + least + Duration(self.rng.below(most.0 - least.0 + 1));
        self.sent += 1;
        self.queue.insert((at, self.sent), packet);
    }

    fn rearm(&mut self, i: usize) {
        let host = &mut self.hosts[i];
        self.deadlines.remove(&(host.deadline, i));
        let engine = host.engine.as_ref().filter(|_| !host.paused);
        host.deadline = engine.map_or(Instant::NEVER, Machine::deadline);
        if host.deadline != Instant::NEVER {
            self.deadlines.insert((host.deadline, i));
        }
    }
}

fn place(addr: Addr) -> usize {
    let Addr::Local(n) = addr else { panic!("{addr} is not of this network") };
    n as usize
}

/// A checker that was never seen to fail proves nothing.
#[test]
fn the_witness_catches_what_must_not_happen() {
    let (a, one, two) = (Slot(1), Version::first(1), Version::first(2));
    let id = card(1).identity;
    let told = |events: &[Owned]| {
        let mut witness = Witness::default();
        events.iter().try_for_each(|e| witness.hear(e, id))
    };
    let (joined, left) = (Owned::Joined, |s, v| Owned::Left(s, v, Why::Failed));
    let attribute = |v: &str| Owned::Attribute(a, "k".into(), Some(v.into()));
    assert_eq!(told(&[joined(a, one), attribute("1"), attribute("2"), left(a, one), joined(a, two)]), Ok(()));
    for bad in [
        &[joined(a, one), joined(a, one)][..],
        &[left(a, one)],
        &[joined(a, one), left(a, two)],
        &[joined(a, two), left(a, two), joined(a, one)],
        &[attribute("1")],
        &[joined(a, one), attribute("1"), attribute("1")],
    ] {
        assert!(told(bad).is_err(), "{bad:?}");
    }
}
