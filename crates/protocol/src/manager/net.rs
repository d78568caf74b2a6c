//! Stewards on a simulated network with simulated disks and a simulated zone: loss, duplication, delay, pauses, cuts, crashes that lose
//! writes under way. All from one seed.
//!
//! A net of zones ([`Net::apart`]) shows each node those of its own zone only, and has a supervisor, the last host.
//!
//! As the link below does, the network loses and reorders only what is light; what is signed or long comes late instead, in order, or not at
//! all when one end starts anew. The zone says some time after a crash that a node is gone, to everybody who can hear it.

use super::herald::Place;
use super::state::NodeInfo;
use super::steward::{Config, Input, Output, RELAY_MIN, Record, Steward, Stored};
use super::wire::{Look, Sworn};
use super::words::{Answer, Ask, At, Command, Key, Report};
use crate::link::sign::Signer;
use crate::member::Peer;
use crate::node::Carriage;
use phalanx_core::{Addr, Boot, Duration, Identity, Instant, Machine, Rng, Sink};
use std::collections::{BTreeMap, BTreeSet};

/// How bad network and disks are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    pub(super) loss: f64,
    pub(super) duplication: f64,
    pub(super) delay: (Duration, Duration),
    pub(super) disk: (Duration, Duration),
    /// From a crash until the zone tells of it.
    pub(super) notice: (Duration, Duration),
}

impl Weather {
    /// Every packet takes a millisecond, the disk as long.
    pub(super) const FAIR: Self = Self {
        loss: 0.0,
        duplication: 0.0,
        delay: (Duration(1_000_000), Duration(1_000_000)),
        disk: (Duration(1_000_000), Duration(1_000_000)),
        notice: (Duration(500_000_000), Duration(500_000_000)),
    };
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Packet { from: usize, to: usize, lives: (u64, u64), carriage: Carriage, bytes: Vec<u8> },
    Persisted { host: usize, life: u64, token: u64 },
    Zone { host: usize, life: u64, about: usize, gone: Option<u64> },
}

/// A packet that was listened to: from whom, to whom.
pub(super) type Tapped = (usize, usize, Carriage, Vec<u8>);

enum Write {
    Order { epoch: u32, replaces: bool, bytes: Vec<u8> },
    Group(Vec<u8>),
    Acceptor(Vec<u8>),
    State(Vec<u8>),
    Executed(Vec<u8>),
}

/// What a steward decided for its node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Told {
    Do(Command),
    Answered(u64, Answer),
    Shown(u64, Vec<u8>),
    Lease(u64),
    Suspect(Key),
    Group(u32, String),
}

pub(super) struct Host {
    pub(super) steward: Option<Steward>,
    pub(super) life: u64,
    pub(super) zone: String,
    pub(super) paused_until: Instant,
    disk: Stored,
    writes: BTreeMap<u64, Write>,
    pub(super) told: Vec<(Instant, Told)>,
    /// Whom its zone shows it.
    shown: BTreeSet<usize>,
}

pub(super) struct Net {
    pub(super) now: Instant,
    pub(super) rng: Rng,
    pub(super) weather: Weather,
    pub(super) hosts: Vec<Host>,
    pub(super) expect: Option<u32>,
    /// A word for so many is handed on by them: for those that start from now on.
    pub(super) relay_min: usize,
    /// `cut[from][to]`.
    pub(super) cut: Vec<Vec<bool>>,
    pub(super) packets: u64,
    /// All packets, while somebody wants them: from, to, how, bytes.
    pub(super) tapped: Option<Vec<Tapped>>,
    queue: BTreeMap<(Instant, u64), Event>,
    fifo: BTreeMap<(usize, usize, Carriage), Instant>,
    sent: u64,
    seed: u64,
    /// Zones do not see each other.
    apart: bool,
}

enum Owned {
    Send(Addr, Carriage, Vec<u8>),
    Persist(u64, Write),
    Told(Told),
}

#[derive(Default)]
struct Collected(Vec<Owned>);

impl<'a> Sink<Output<'a>> for Collected {
    fn push(&mut self, item: Output<'a>) {
        self.0.push(match item {
            Output::Send { to, carriage, bytes } => Owned::Send(to, carriage, bytes.to_vec()),
            Output::Persist { token, record } => Owned::Persist(
                token,
                match record {
                    Record::Order { epoch, replaces, bytes } => Write::Order { epoch, replaces, bytes: bytes.to_vec() },
                    Record::Group(bytes) => Write::Group(bytes.to_vec()),
                    Record::Acceptor(bytes) => Write::Acceptor(bytes.to_vec()),
                    Record::State { bytes, .. } => Write::State(bytes.to_vec()),
                    Record::Executed(bytes) => Write::Executed(bytes.to_vec()),
                },
            ),
            Output::Do { command } => Owned::Told(Told::Do(command.clone())),
            Output::Answered { number, answer } => Owned::Told(Told::Answered(number, answer.clone())),
            Output::Shown { number, bytes } => Owned::Told(Told::Shown(number, bytes.to_vec())),
            Output::Lease { ms } => Owned::Told(Told::Lease(ms)),
            Output::Suspect { node } => Owned::Told(Told::Suspect(node)),
            Output::Group { group, trouble } => Owned::Told(Told::Group(group.epoch, trouble.to_owned())),
        });
    }
}

impl Net {
    /// So many nodes, three to a zone.
    pub(super) fn new(nodes: usize, expect: u32, weather: Weather, seed: u64) -> Self {
        Self::with(nodes, expect, weather, seed, false)
    }

    /// So many nodes, three to a zone that sees itself alone, and a supervisor behind them.
    pub(super) fn apart(nodes: usize, weather: Weather, seed: u64) -> Self {
        Self::with(nodes + 1, nodes as u32, weather, seed, true)
    }

    fn with(nodes: usize, expect: u32, weather: Weather, seed: u64, apart: bool) -> Self {
        let mut net = Self {
            now: Instant(1_000_000_000),
            rng: Rng::new(seed, 1_000),
            weather,
            hosts: Vec::new(),
            expect: Some(expect),
            relay_min: RELAY_MIN,
            cut: vec![vec![false; nodes]; nodes],
            packets: 0,
            tapped: None,
            queue: BTreeMap::new(),
            fifo: BTreeMap::new(),
            sent: 0,
            seed,
            apart,
        };
        for n in 0..nodes {
            net.hosts.push(Host {
                steward: None,
                life: 0,
                zone: if apart && n + 1 == nodes { String::new() } else { format!("zone{}", n / 3) },
                paused_until: Instant::ZERO,
                disk: Stored::default(),
                writes: BTreeMap::new(),
                told: Vec::new(),
                shown: BTreeSet::new(),
            });
        }
        (0..nodes).for_each(|n| net.start(n));
        net
    }

    pub(super) fn key(&self, host: usize) -> Key {
        Key::from(signer(host).identity())
    }

    pub(super) fn info(&self, host: usize) -> NodeInfo {
        NodeInfo {
            key: self.key(host),
            name: format!("n{host}"),
            at: At::Local(host as u32),
            zone: self.hosts[host].zone.clone(),
            incarnation: self.hosts[host].life,
            slots: 4,
        }
    }

    pub(super) fn steward(&self, host: usize) -> &Steward {
        self.hosts[host].steward.as_ref().expect("it runs")
    }

    pub(super) fn is_up(&self, host: usize) -> bool {
        self.hosts[host].steward.is_some()
    }

    /// Starts, or starts again, a node from its disk; the zone tells everybody.
    pub(super) fn start(&mut self, host: usize) {
        let (now, expect, relay_min, seed) = (self.now, self.expect, self.relay_min, self.seed);
        let h = &mut self.hosts[host];
        h.life += 1;
        h.writes.clear();
        let config = Config {
            cluster: "test".into(),
            incarnation: h.life,
            expect,
            relay_min,
            unix_ms: 1_700_000_000_000,
            ..Config::default()
        };
        let rng = Rng::new(seed ^ h.life << 32, host as u64);
        h.steward = Some(Steward::recover(config, signer(host), &h.disk, rng, now));
        h.shown.clear();
        if self.apart && h.zone.is_empty() {
            let place = Place { rank: Some(0), ..Place::default() };
            self.drive(host, |s, now, out| s.handle(now, Input::Placed { place }, out));
            return;
        }
        for other in 0..self.hosts.len() {
            self.notice(other, host, None);
            if other != host && self.is_up(other) {
                self.notice(host, other, None);
            }
        }
    }

    /// The zone tells `host` of `about`, after a while.
    fn notice(&mut self, host: usize, about: usize, gone: Option<u64>) {
        let delay = match gone {
            Some(_) => self.draw(self.weather.notice),
            None => self.draw(self.weather.delay) * 3,
        };
        if self.apart && self.hosts[host].zone != self.hosts[about].zone {
            return;
        }
        let life = self.hosts[host].life;
        self.at(self.now + delay, Event::Zone { host, life, about, gone });
    }

    pub(super) fn crash(&mut self, host: usize) {
        let life = self.hosts[host].life;
        let h = &mut self.hosts[host];
        h.steward = None;
        h.paused_until = Instant::ZERO;
        h.writes.clear();
        for other in (0..self.hosts.len()).filter(|&o| o != host) {
            self.notice(other, host, Some(life));
        }
    }

    pub(super) fn pause(&mut self, host: usize, how_long: Duration) {
        self.hosts[host].paused_until = self.now + how_long;
    }

    /// Cuts both ways between these and all others, or mends.
    pub(super) fn isolate(&mut self, side: &[usize], cut: bool) {
        for a in 0..self.hosts.len() {
            for b in 0..self.hosts.len() {
                if side.contains(&a) != side.contains(&b) {
                    self.cut[a][b] = cut;
                }
            }
        }
    }

    /// The zone shows a node all others that it can hear.
    pub(super) fn remeet(&mut self, host: usize) {
        for other in (0..self.hosts.len()).filter(|&o| o != host) {
            if self.is_up(other) {
                self.notice(host, other, None);
            }
        }
    }

    /// A statement that a host signs though it is not so.
    pub(super) fn forge(&self, host: usize, digest: u64) -> Sworn {
        let steward = self.steward(host);
        let mut statement = steward.replica().expect("a replica").core().statement();
        statement.digest = digest;
        Sworn::new(statement, self.hosts[host].life, &signer(host), "test")
    }

    pub(super) fn ask(&mut self, host: usize, ask: Ask) -> u64 {
        self.drive(host, |s, now, out| s.ask(now, ask, out)).unwrap_or(0)
    }

    pub(super) fn look(&mut self, host: usize, what: Look) -> u64 {
        self.drive(host, |s, now, out| s.look(now, what, out)).unwrap_or(0)
    }

    /// A shepherd reports something.
    pub(super) fn report(&mut self, host: usize, report: Report) {
        self.drive(host, |s, now, out| s.handle(now, Input::Reported { report }, out));
    }

    /// A packet that somebody makes up.
    pub(super) fn inject(&mut self, from: usize, to: usize, carriage: Carriage, bytes: &[u8]) {
        let peer = peer(from, self.hosts[from].life);
        self.drive(to, |s, now, out| s.handle(now, Input::Heard { from: peer, carriage, bytes }, out));
    }

    pub(super) fn at(&mut self, at: Instant, event: Event) {
        self.sent += 1;
        self.queue.insert((at, self.sent), event);
    }

    pub(super) fn draw(&mut self, (least, most): (Duration, Duration)) -> Duration {
        least + Duration(self.rng.below((most - least).0 + 1))
    }

    /// Lets time pass until `until`, or until `done`, which is asked after each step. True when it said so.
    pub(super) fn run_until(&mut self, until: Instant, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        loop {
            let event = self.queue.first_key_value().map_or(Instant::NEVER, |(k, _)| k.0);
            let timer = (0..self.hosts.len())
                .filter_map(|n| {
                    let h = &self.hosts[n];
                    Some((h.steward.as_ref()?.deadline().max(h.paused_until).max(self.now), n))
                })
                .min();
            let at = event.min(timer.map_or(Instant::NEVER, |t| t.0));
            if at > until {
                self.now = until;
                return done(self);
            }
            self.now = self.now.max(at);
            match timer {
                Some((due, n)) if due < event => {
                    self.drive(n, |s, now, out| s.expire(now, out));
                }
                _ => {
                    let Some((_, event)) = self.queue.pop_first() else { return done(self) };
                    self.happen(event);
                }
            }
            if done(self) {
                return true;
            }
        }
    }

    pub(super) fn run_for(&mut self, d: Duration) {
        self.run_until(self.now + d, |_| false);
    }

    fn happen(&mut self, event: Event) {
        let host = match event {
            Event::Packet { to: host, .. } | Event::Persisted { host, .. } | Event::Zone { host, .. } => host,
        };
        if self.hosts[host].paused_until > self.now {
            let at = self.hosts[host].paused_until;
            return self.at(at, event);
        }
        match event {
            Event::Packet { from, to, lives, carriage, bytes } => {
                if self.hosts[to].life == lives.1 && self.hosts[from].life == lives.0 {
                    let from = peer(from, lives.0);
                    self.drive(to, |s, now, out| s.handle(now, Input::Heard { from, carriage, bytes: &bytes }, out));
                }
            }
            Event::Persisted { host, life, token } => {
                let h = &mut self.hosts[host];
                if h.life != life {
                    return;
                }
                let Some(write) = h.writes.remove(&token) else { return };
                keep(&mut h.disk, write);
                self.drive(host, |s, now, out| s.handle(now, Input::Persisted { token }, out));
            }
            Event::Zone { host, life, about, gone } => {
                if self.hosts[host].life != life || (gone.is_none() && self.cut[about][host]) {
                    return;
                }
                let node = self.info(about);
                match gone {
                    Some(incarnation) => {
                        let node = node.key;
                        self.hosts[host].shown.remove(&about);
                        self.place(host);
                        self.drive(host, |s, now, out| s.handle(now, Input::Gone { node, incarnation, minor: 0 }, out));
                    }
                    None if self.is_up(about) => {
                        self.hosts[host].shown.insert(about);
                        self.place(host);
                        self.drive(host, |s, now, out| s.handle(now, Input::Seen { node, minor: 0 }, out));
                    }
                    None => {}
                }
            }
        }
    }

    /// The lowest two that a node is shown of its zone speak for it.
    fn place(&mut self, host: usize) {
        if !self.apart {
            return;
        }
        let h = &self.hosts[host];
        let heralds: Vec<usize> = h.shown.iter().copied().take(2).collect();
        let addr = |n: usize| Addr::Local(n as u32);
        let place = Place {
            zone: h.zone.clone(),
            rank: heralds.iter().position(|&n| n == host).map(|rank| rank as u8),
            heralds: heralds.iter().filter(|&&n| n != host).map(|&n| addr(n)).collect(),
            supervisors: vec![addr(self.hosts.len() - 1)],
        };
        self.drive(host, |s, now, out| s.handle(now, Input::Placed { place }, out));
    }

    fn drive<T>(&mut self, host: usize, call: impl FnOnce(&mut Steward, Instant, &mut Collected) -> T) -> Option<T> {
        let (now, h) = (self.now, &mut self.hosts[host]);
        let (steward, life) = (h.steward.as_mut()?, h.life);
        let mut out = Collected::default();
        let result = call(steward, now, &mut out);
        for owned in out.0 {
            match owned {
                Owned::Send(to, carriage, bytes) => {
                    let Addr::Local(to) = to else { continue };
                    self.transmit(host, to as usize, carriage, bytes);
                }
                Owned::Persist(token, write) => {
                    self.hosts[host].writes.insert(token, write);
                    let at = now + self.draw(self.weather.disk);
                    self.at(at, Event::Persisted { host, life, token });
                }
                Owned::Told(told) => self.hosts[host].told.push((now, told)),
            }
        }
        Some(result)
    }

    fn transmit(&mut self, from: usize, to: usize, carriage: Carriage, bytes: Vec<u8>) {
        self.packets += 1;
        if let Some(tapped) = &mut self.tapped {
            tapped.push((from, to, carriage, bytes.clone()));
        }
        let lives = (self.hosts[from].life, self.hosts[to].life);
        let mut at = self.now + self.draw(self.weather.delay);
        let (loss, duplication) = (self.weather.loss, self.weather.duplication);
        if carriage == Carriage::Light {
            if self.cut[from][to] || self.rng.chance(loss) {
                return;
            }
            if self.rng.chance(duplication) {
                let late = self.now + self.draw(self.weather.delay) * 3;
                self.at(late, Event::Packet { from, to, lives, carriage, bytes: bytes.clone() });
            }
        } else {
            if self.cut[from][to] || self.cut[to][from] {
                return;
            }
            while self.rng.chance(loss) {
                at += self.weather.delay.1 * 4;
            }
            let last = self.fifo.entry((from, to, carriage)).or_insert(at);
            at = at.max(*last);
            *last = at;
        }
        self.at(at, Event::Packet { from, to, lives, carriage, bytes });
    }
}

fn signer(host: usize) -> Signer {
    Signer::fake(1 + host as u64)
}

fn peer(host: usize, life: u64) -> Peer {
    let mut boot = Boot::default();
    boot.0[..8].copy_from_slice(&life.to_le_bytes());
    Peer { addr: Addr::Local(host as u32), identity: Identity::from(Key::from(signer(host).identity())), boot }
}

fn keep(disk: &mut Stored, write: Write) {
    match write {
        Write::Order { epoch, replaces, bytes } => {
            if replaces {
                disk.order.retain(|r| r.0 != epoch);
            }
            disk.order.push((epoch, bytes));
        }
        Write::Group(bytes) => disk.group = Some(bytes),
        Write::Acceptor(bytes) => disk.acceptor = Some(bytes),
        Write::State(bytes) => disk.state = Some(bytes),
        Write::Executed(bytes) => disk.executed = Some(bytes),
    }
}
