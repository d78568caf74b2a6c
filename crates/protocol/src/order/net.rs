//! Members on a simulated network with simulated disks: loss, duplication, delay and so reordering, pauses, cuts
//! in one or both directions, crashes that lose any of the writes not yet confirmed. All from one seed.

use super::checks::{Checks, Violation};
use super::wire::Packet;
use super::{Config, Input, Member, Order, Origin, Output, Seat};
use phalanx_core::{Duration, Instant, Machine, Rng, Sink};
use std::collections::BTreeMap;

/// How bad network and disks are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    pub(super) loss: f64,
    pub(super) duplication: f64,
    pub(super) delay: (Duration, Duration),
    pub(super) disk: (Duration, Duration),
    /// Writes that never happen, and confirmations that never come.
    pub(super) disk_loss: f64,
}

impl Weather {
    /// Every packet takes a millisecond, the disk no time.
    pub(super) const FAIR: Self = Self {
        loss: 0.0,
        duplication: 0.0,
        delay: (Duration(1_000_000), Duration(1_000_000)),
        disk: (Duration::ZERO, Duration::ZERO),
        disk_loss: 0.0,
    };
}

enum Event {
    Packet { from: Member, to: Member, bytes: Vec<u8> },
    Persisted { member: Member, life: u64, token: u64, told: bool },
    State { to: Member, life: u64, from: Member },
}

struct Record {
    token: Option<u64>,
    replaces: bool,
    durable: bool,
    bytes: Vec<u8>,
}

pub(super) struct Host {
    pub(super) order: Option<Order>,
    pub(super) boot: u64,
    paused_until: Instant,
    records: Vec<Record>,
    /// The application's state is safe up to here.
    pub(super) saved: u64,
    pub(super) stalled: bool,
    pub(super) refused: usize,
    pub(super) restored: usize,
}

pub(super) struct Net {
    pub(super) now: Instant,
    pub(super) rng: Rng,
    pub(super) weather: Weather,
    pub(super) config: Config,
    pub(super) hosts: Vec<Host>,
    pub(super) checks: Checks,
    /// `cut[from][to]`.
    pub(super) cut: Vec<Vec<bool>>,
    pub(super) packets: usize,
    /// Every delivery, with its time.
    pub(super) deliveries: Vec<(Instant, Member, Origin)>,
    queue: BTreeMap<(Instant, u64), Event>,
    sent: u64,
    seed: u64,
    submits: u64,
}

/// Outputs that outlive the call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Owned {
    Send(Member, Vec<u8>),
    Persist(u64, bool, Vec<u8>),
    Deliver(u64, Origin, Vec<u8>),
    Accepted(Origin),
    Refused,
    Stalled(bool),
    NeedSnapshot(Member),
}

#[derive(Default)]
pub(super) struct Collected(pub(super) Vec<Owned>);

impl<'a> Sink<Output<'a>> for Collected {
    fn push(&mut self, item: Output<'a>) {
        self.0.push(match item {
            Output::Send { to, packet } => Owned::Send(to, packet.to_vec()),
            Output::Persist { token, replaces, record } => Owned::Persist(token, replaces, record.to_vec()),
            Output::Deliver { index, origin, message } => Owned::Deliver(index, origin, message.to_vec()),
            Output::Accepted { origin } => Owned::Accepted(origin),
            Output::Refused { .. } => Owned::Refused,
            Output::Stalled => Owned::Stalled(true),
            Output::Resumed => Owned::Stalled(false),
            Output::NeedSnapshot { from } => Owned::NeedSnapshot(from),
        });
    }
}

impl Net {
    pub(super) fn new(members: u8, config: Config, weather: Weather, seed: u64) -> Self {
        let n = usize::from(members);
        let mut net = Self {
            now: Instant(1_000_000_000),
            rng: Rng::new(seed, 1_000),
            weather,
            config,
            hosts: Vec::new(),
            checks: Checks::default(),
            cut: vec![vec![false; n]; n],
            packets: 0,
            deliveries: Vec::new(),
            queue: BTreeMap::new(),
            sent: 0,
            seed,
            submits: 0,
        };
        for m in 0..members {
            net.hosts.push(Host {
                order: None,
                boot: 0,
                paused_until: Instant::ZERO,
                records: Vec::new(),
                saved: 0,
                stalled: false,
                refused: 0,
                restored: 0,
            });
            net.restart(Member(m));
        }
        net
    }

    pub(super) fn members(&self) -> impl Iterator<Item = Member> + use<> {
        (0..self.hosts.len() as u8).map(Member)
    }

    pub(super) fn host(&self, m: Member) -> &Host {
        &self.hosts[usize::from(m.0)]
    }

    fn host_mut(&mut self, m: Member) -> &mut Host {
        &mut self.hosts[usize::from(m.0)]
    }

    pub(super) fn order(&self, m: Member) -> &Order {
        self.host(m).order.as_ref().expect("a member that is up")
    }

    /// The member that leads in the highest ballot.
    pub(super) fn leader(&self) -> Option<Member> {
        self.members()
            .filter(|&m| self.host(m).order.as_ref().is_some_and(|o| o.leader() == Some(m)))
            .max_by_key(|&m| self.order(m).ballot())
    }

    /// The process dies: each write that was not confirmed is on disk or not.
    pub(super) fn crash(&mut self, m: Member) {
        let Self { hosts, rng, .. } = self;
        let host = &mut hosts[usize::from(m.0)];
        if host.order.take().is_some() {
            host.records.retain(|r| r.durable || rng.chance(0.5));
            host.records.iter_mut().for_each(|r| (r.token, r.durable) = (None, true));
            forget_replaced(&mut host.records);
        }
    }

    pub(super) fn restart(&mut self, m: Member) {
        let (now, config, members, seed) = (self.now, self.config, self.cut.len() as u8, self.seed);
        let host = self.host_mut(m);
        if host.order.is_some() {
            return;
        }
        host.boot += 1;
        (host.paused_until, host.stalled) = (Instant::ZERO, false);
        let (boot, saved) = (host.boot, host.saved);
        let seat = Seat { me: m, members, epoch: 1, boot };
        let rng = Rng::new(seed, u64::from(m.0) + boot * 8);
        let records = host.records.iter().map(|r| &r.bytes);
        host.order = Some(Order::recover(config, seat, saved, records, rng, now).expect("whole records"));
        self.checks.placed(m, saved);
    }

    pub(super) fn pause(&mut self, m: Member, until: Instant) {
        self.host_mut(m).paused_until = until;
    }

    /// Cuts every way between `m` and the others.
    pub(super) fn isolate(&mut self, m: Member, cut: bool) {
        for other in self.members().filter(|&o| o != m) {
            self.cut_one_way(m, other, cut);
            self.cut_one_way(other, m, cut);
        }
    }

    pub(super) fn cut_one_way(&mut self, from: Member, to: Member, cut: bool) {
        self.cut[usize::from(from.0)][usize::from(to.0)] = cut;
    }

    /// Ends all faults: everybody runs, every packet and write arrives.
    pub(super) fn heal(&mut self) {
        self.weather = Weather { delay: self.weather.delay, disk: self.weather.disk, ..Weather::FAIR };
        self.cut.iter_mut().flatten().for_each(|c| *c = false);
        for m in self.members() {
            self.host_mut(m).paused_until = Instant::ZERO;
            self.restart(m);
        }
    }

    /// Submits the next message at `m`, if that runs.
    pub(super) fn submit(&mut self, m: Member) -> Result<(), Violation> {
        self.submits += 1;
        let message = self.submits.to_le_bytes();
        self.drive(m, |order, now, out| order.handle(now, Input::Submitted { message: &message }, out), Some(&message))
    }

    /// The application at `m` makes its state safe.
    pub(super) fn save(&mut self, m: Member) -> Result<(), Violation> {
        let up_to = self.checks.position(m);
        if self.host(m).order.is_some() {
            self.host_mut(m).saved = up_to;
        }
        self.drive(m, |order, now, out| order.handle(now, Input::Saved { up_to }, out), None)
    }

    /// Lets time pass until `until`.
    pub(super) fn run(&mut self, until: Instant) -> Result<(), Violation> {
        loop {
            let event = self.queue.first_key_value().map_or(Instant::NEVER, |(k, _)| k.0);
            let timer = self
                .members()
                .filter_map(|m| {
                    let host = self.host(m);
                    Some((host.order.as_ref()?.deadline().max(host.paused_until).max(self.now), m))
                })
                .min();
            let at = event.min(timer.map_or(Instant::NEVER, |t| t.0));
            if at > until {
                self.now = until;
                return Ok(());
            }
            self.now = self.now.max(at);
            match timer {
                Some((due, m)) if due < event => self.drive(m, |order, now, out| order.expire(now, out), None)?,
                _ => {
                    let Some((_, event)) = self.queue.pop_first() else { return Ok(()) };
                    self.happen(event)?;
                }
            }
        }
    }

    pub(super) fn run_for(&mut self, d: Duration) -> Result<(), Violation> {
        self.run(self.now + d)
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Packet { from, to, bytes } => {
                // A paused process finds its packets when it goes on.
                if self.host(to).paused_until > self.now {
                    let at = self.host(to).paused_until;
                    self.at(at, Event::Packet { from, to, bytes });
                    return Ok(());
                }
                self.drive(to, |o, now, out| o.handle(now, Input::Received { from, packet: &bytes }, out), None)
            }
            Event::Persisted { member, life, token, told } => {
                let host = self.host_mut(member);
                if host.order.is_none() || host.boot != life {
                    return Ok(());
                }
                host.records.iter_mut().filter(|r| r.token == Some(token)).for_each(|r| r.durable = true);
                forget_replaced(&mut host.records);
                if !told {
                    return Ok(());
                }
                self.drive(member, |o, now, out| o.handle(now, Input::Persisted { token }, out), None)
            }
            Event::State { to, life, from } => {
                let Some(mark) = self.host(from).order.as_ref().and_then(Order::mark) else { return Ok(()) };
                // A paused process installs nothing; it will ask again.
                let host = self.host(to);
                if host.order.is_none() || host.boot != life || host.paused_until > self.now {
                    return Ok(());
                }
                let index = mark.place.index.max(self.checks.position(to));
                if mark.place.index > self.order(to).ordered_up_to() {
                    self.checks.placed(to, index);
                    (self.host_mut(to).saved, self.host_mut(to).restored) = (index, self.host(to).restored + 1);
                }
                self.drive(to, |o, now, out| o.handle(now, Input::Restored { mark }, out), None)
            }
        }
    }

    fn drive(
        &mut self,
        m: Member,
        call: impl FnOnce(&mut Order, Instant, &mut Collected),
        submitted: Option<&[u8]>,
    ) -> Result<(), Violation> {
        let (now, host) = (self.now, &mut self.hosts[usize::from(m.0)]);
        if host.paused_until > now {
            return Ok(());
        }
        let (Some(order), life) = (host.order.as_mut(), host.boot) else { return Ok(()) };
        let mut out = Collected::default();
        call(order, now, &mut out);
        assert_eq!(order.counters().contradictions, 0, "member {m:?} was contradicted");
        for output in out.0 {
            match output {
                Owned::Send(to, bytes) => self.transmit(m, to, bytes),
                Owned::Persist(token, replaces, bytes) => {
                    let durable = false;
                    self.host_mut(m).records.push(Record { token: Some(token), replaces, durable, bytes });
                    let at = now + self.draw(self.weather.disk);
                    if !self.rng.chance(self.weather.disk_loss) {
                        let told = !self.rng.chance(self.weather.disk_loss);
                        self.at(at, Event::Persisted { member: m, life, token, told });
                    } else {
                        self.host_mut(m).records.retain(|r| r.token != Some(token));
                    }
                }
                Owned::Deliver(index, origin, message) => {
                    self.deliveries.push((now, m, origin));
                    self.checks.delivered(m, index, origin, &message)?;
                }
                Owned::Accepted(origin) => self.checks.submitted(origin, submitted.unwrap_or_default()),
                Owned::Refused => self.host_mut(m).refused += 1,
                Owned::Stalled(stalled) => self.host_mut(m).stalled = stalled,
                Owned::NeedSnapshot(from) => {
                    let reached = !self.cut[usize::from(m.0)][usize::from(from.0)];
                    if reached && !self.rng.chance(self.weather.loss) {
                        let at = now + self.draw(self.weather.delay) * 4;
                        self.at(at, Event::State { to: m, life, from });
                    }
                }
            }
        }
        Ok(())
    }

    fn transmit(&mut self, from: Member, to: Member, bytes: Vec<u8>) {
        self.packets += 1;
        debug_assert!(Packet::decode(&bytes).is_ok());
        if self.cut[usize::from(from.0)][usize::from(to.0)] || self.rng.chance(self.weather.loss) {
            return;
        }
        if self.rng.chance(self.weather.duplication) {
            let at = self.now + self.draw(self.weather.delay) * 3;
            self.at(at, Event::Packet { from, to, bytes: bytes.clone() });
        }
        let at = self.now + self.draw(self.weather.delay);
        self.at(at, Event::Packet { from, to, bytes });
    }

    fn draw(&mut self, (least, most): (Duration, Duration)) -> Duration {
        least + Duration(self.rng.below((most - least).0 + 1))
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.sent += 1;
        self.queue.insert((at, self.sent), event);
    }

    pub(super) fn boots(&self) -> Vec<u64> {
        self.hosts.iter().map(|h| h.boot).collect()
    }
}

/// A durable record that replaces lets the disk forget those before it.
fn forget_replaced(records: &mut Vec<Record>) {
    if let Some(at) = records.iter().rposition(|r| r.replaces && r.durable) {
        records.drain(..at);
    }
}
