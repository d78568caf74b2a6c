//! One of the two processes of a run: a real host over UDP that sends, computes, receives, and checks what it receives.
//!
//! The link is driven by the process itself, as in the paper: it polls while it communicates and between two slices of
//! its computation.

use super::order::{Order, Point, Side, Task};
use super::script::Script;
use super::work::{SLICES, compute};
use crate::error::Error;
use crate::link::{address, ours};
use phalanx_core::{Addr, Code, Endpoint};
use phalanx_daemon::{Host, Udp};
use phalanx_fault::Injector;
use phalanx_protocol::link::Output;
use phalanx_protocol::link::rcl::Payload;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Datagrams as on an Ethernet. Loopback would take 16 KB, and one fault would then hit fifteen messages at once.
const DATAGRAM: usize = 1472;
/// Sends, then receives, of one turn of the CPU-bound task (004 §6.2).
pub(super) const TURN: u64 = 12;
/// Turns without computation before faults and clock begin: round trips are known then, and the window is open.
const WARM_UP: u64 = 8;
/// Messages handed over between two polls of a sender that never pauses.
const BURST: usize = 32;
/// What is not there by then never comes.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a process found, as one line for its parent.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(super) struct Found {
    /// From the end of the warm-up until its last message was there.
    pub(super) seconds: f64,
    /// Messages that came intact and in their turn.
    pub(super) verified: u64,
    /// Faults that its injector injected.
    pub(super) faults: u64,
    /// Packets it sent again.
    pub(super) retransmissions: u64,
    /// Packets it had received before.
    pub(super) duplicates: u64,
    /// Times it waited for an acknowledgement in vain.
    pub(super) timeouts: u64,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, verified, faults, retransmissions, duplicates, timeouts } = self;
        write!(f, "{seconds} {verified} {faults} {retransmissions} {duplicates} {timeouts}")
    }
}

impl FromStr for Found {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let (seconds, counts) = line.split_once(' ').ok_or(())?;
        let counts: Vec<u64> = counts.split(' ').map(|c| c.parse().map_err(|_| ())).collect::<Result<_, _>>()?;
        let [verified, faults, retransmissions, duplicates, timeouts] = counts[..] else { return Err(()) };
        let seconds = seconds.parse().map_err(|_| ())?;
        Ok(Self { seconds, verified, faults, retransmissions, duplicates, timeouts })
    }
}

/// Plays one side of the run that `order` describes; `invitation` is the other side's, for the one that was invited.
pub(super) fn play(order: &Order, side: Side, invitation: Option<&str>) -> Result<(), Error> {
    let mut host = ours::host()?;
    match invitation {
        None => println!("{}", ours::invitation(&host)),
        Some(to) => {
            let node = host.link().peer(Addr::Ip(address(to)?), DATAGRAM).map_err(ours::refused)?;
            ours::greet(&mut host, node)?;
        }
    }
    let mut party = Party::meet(host, side)?;
    println!("{}", party.carry_out(order, side)?);
    // The other side may still need an answer; the parent ends both.
    loop {
        party.host.wait(phalanx_core::Instant::NEVER);
        party.poll()?;
    }
}

struct Party {
    host: Host<Udp>,
    peer: Endpoint,
    script: Script,
    sent: u64,
    inbox: Inbox,
}

/// What has come so far.
struct Inbox {
    script: Script,
    received: u64,
    up: Option<Endpoint>,
    closed: bool,
    deviation: Option<String>,
}

impl Inbox {
    fn take(&mut self, output: Output<'_>) {
        match output {
            Output::Up { node, .. } => self.up = Some(Endpoint { node, port: ours::PORT }),
            Output::Message { payload: Payload::Bytes(message), .. } => {
                match self.script.deviation(self.received, message) {
                    None => self.received += 1,
                    // Only the first tells something: the ones behind it are all out of their turn.
                    Some(deviation) => drop(self.deviation.get_or_insert(deviation)),
                }
            }
            Output::Down { code, .. } => drop(self.deviation.get_or_insert(format!("the session ended: {code}"))),
            Output::Closed { .. } => self.closed = true,
            _ => {}
        }
    }
}

impl Party {
    /// Waits until both sides have proved themselves. What arrives with the proof counts already.
    fn meet(mut host: Host<Udp>, side: Side) -> Result<Self, Error> {
        let script = Script::of(side.other() as u64);
        let mut inbox = Inbox { script, received: 0, up: None, closed: false, deviation: None };
        let peer = loop {
            host.wait(phalanx_core::Instant::NEVER);
            host.poll(&mut |output| inbox.take(output)).map_err(ours::refused)?;
            if let Some(peer) = inbox.up {
                break peer;
            }
        };
        Ok(Self { host, peer, script: Script::of(side as u64), sent: 0, inbox })
    }

    fn carry_out(&mut self, order: &Order, side: Side) -> Result<Found, Error> {
        for _ in 0..WARM_UP {
            self.turn(|_| Ok(()))?;
        }
        // The other side may be ahead already: what came is no measure of what the warm-up was.
        let before = Found { verified: self.sent, ..self.counted() };
        self.install(order, side)?;
        let start = Instant::now();
        match (order.task, side) {
            (Task::Communication, Side::Near) => self.pour(order.messages)?,
            (Task::Communication, Side::Far) => self.until(|p| p.inbox.received == before.verified + order.messages)?,
            (Task::Cpu, _) => {
                for _ in 0..order.messages / TURN {
                    self.turn(|p| p.compute(order.work))?;
                }
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        self.part()?;
        let after = self.counted();
        Ok(Found {
            seconds,
            verified: after.verified - before.verified,
            faults: after.faults - before.faults,
            retransmissions: after.retransmissions - before.retransmissions,
            duplicates: after.duplicates - before.duplicates,
            timeouts: after.timeouts - before.timeouts,
        })
    }

    /// Puts the rule into the injector of the order's point. A rate of zero leaves it there and silent: what is
    /// compared is the faults, not the injector.
    fn install(&mut self, order: &Order, side: Side) -> Result<(), Error> {
        let (now, rule) = (self.host.now(), order.rule());
        // Each process meets faults of its own.
        let seed = order.seed << 2 | side as u64;
        let added = match order.point {
            Point::Wire => {
                *self.host.wire() = Injector::new(seed);
                self.host.wire().add(now, rule)
            }
            Point::Plain => {
                *self.host.link().tap() = Injector::new(seed);
                self.host.link().tap().add(now, rule)
            }
        };
        added.map(drop).map_err(Error::peer("fault"))
    }

    fn poll(&mut self) -> Result<(), Error> {
        let Self { host, inbox, .. } = self;
        host.poll(&mut |output| inbox.take(output)).map_err(ours::refused)?;
        match inbox.deviation.take() {
            None => Ok(()),
            Some(reason) => Err(Error::Peer { library: "rcl", reason }),
        }
    }

    fn until(&mut self, done: impl Fn(&mut Self) -> bool) -> Result<(), Error> {
        let start = Instant::now();
        while !done(self) {
            self.poll()?;
            if start.elapsed() > PATIENCE {
                let (sent, received, closed) = (self.sent, self.inbox.received, self.inbox.closed);
                let unacked = self.host.link().backlog(self.peer.node);
                let reason = format!(
                    "stuck for {PATIENCE:?}: {sent} messages sent ({unacked} bytes unacknowledged), {received} received, \
                     closed: {closed}"
                );
                return Err(Error::Peer { library: "rcl", reason });
            }
        }
        Ok(())
    }

    /// Hands the next message over, unless there is no room for it now.
    fn send(&mut self) -> Result<bool, Error> {
        match self.host.send_reliable(ours::PORT, self.peer, self.script.message(self.sent)) {
            Ok(()) => {
                self.sent += 1;
                Ok(true)
            }
            Err(Code::LocalResource | Code::RemoteResource) => Ok(false),
            Err(code) => Err(ours::refused(code)),
        }
    }

    /// Sends as fast as it can.
    fn pour(&mut self, messages: u64) -> Result<(), Error> {
        let end = self.sent + messages;
        while self.sent < end {
            let mut left = BURST.min((end - self.sent) as usize);
            while left > 0 && self.send()? {
                left -= 1;
            }
            self.poll()?;
        }
        Ok(())
    }

    /// Twelve sends, each in a packet of its own, something else, and twelve receives.
    fn turn(&mut self, between: impl FnOnce(&mut Self) -> Result<(), Error>) -> Result<(), Error> {
        for _ in 0..TURN {
            assert!(self.send()?, "a turn fits the send buffer many times");
            self.host.flush();
        }
        between(self)?;
        self.until(|p| p.inbox.received >= p.sent)
    }

    fn compute(&mut self, work: u64) -> Result<(), Error> {
        (0..SLICES).try_for_each(|_| {
            compute(work);
            self.poll()
        })
    }

    /// Lets everything arrive under faults, then ends them and says goodbye: a message too many would show until then.
    fn part(&mut self) -> Result<(), Error> {
        let node = self.peer.node;
        self.until(|p| p.host.link().backlog(node) == 0)?;
        self.host.wire().heal_all();
        self.host.link().tap().heal_all();
        let now = self.host.now();
        self.host.link().close(now, node).map_err(ours::refused)?;
        self.until(|p| p.inbox.closed)
    }

    fn counted(&mut self) -> Found {
        let faults = self.host.wire().counters().injected() + self.host.link().tap().counters().injected();
        let rcl = self.host.link().counters().rcl;
        Found {
            seconds: 0.0,
            verified: self.inbox.received,
            faults,
            retransmissions: rcl.retransmissions,
            duplicates: rcl.duplicates,
            timeouts: rcl.timeouts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::order::KINDS;
    use super::*;
    use std::thread;

    type Playing = thread::JoinHandle<Result<Found, Error>>;

    /// Two threads stand for the two processes, far and near; `spoil` may tamper with the near one before it begins.
    fn both(order: &Order, spoil: fn(&mut Party)) -> (Playing, Playing) {
        let (far, mut near) = (ours::host().unwrap(), ours::host().unwrap());
        let to = address(&ours::invitation(&far)).unwrap();
        let node = near.link().peer(Addr::Ip(to), DATAGRAM).unwrap();
        ours::greet(&mut near, node).unwrap();
        let orders = (order.clone(), order.clone());
        let far = thread::spawn(move || side(far, &orders.0, Side::Far, |_| {}));
        (far, thread::spawn(move || side(near, &orders.1, Side::Near, spoil)))
    }

    fn side(host: Host<Udp>, order: &Order, side: Side, spoil: fn(&mut Party)) -> Result<Found, Error> {
        let mut party = Party::meet(host, side)?;
        spoil(&mut party);
        let found = party.carry_out(order, side);
        // Answers the other one for as long as it may still ask.
        let start = Instant::now();
        while found.is_ok() && start.elapsed() < Duration::from_millis(50) {
            party.poll()?;
        }
        found
    }

    /// RL-1, RL-3: whatever happens above the seal, each message arrives intact, in order and once.
    #[test]
    fn both_tasks_survive_each_kind_of_fault() {
        for kind in KINDS {
            for (task, messages, due) in [(Task::Communication, 1500, (1500, 0)), (Task::Cpu, 10 * TURN, (120, 120))] {
                let kind = kind.clone();
                let order = Order { task, kind, point: Point::Plain, rate: 0.05, seed: 1, messages, work: 100 };
                let (far, near) = both(&order, |_| {});
                let found = |side: Playing| side.join().unwrap().unwrap_or_else(|e| panic!("{order}: {e}"));
                let (far, near) = (found(far), found(near));
                assert_eq!((far.verified, near.verified), due, "{order}");
                assert!(far.faults + near.faults > 0, "{order}");
            }
        }
    }

    /// A side that skips a message is caught: only then does a clean run say anything.
    #[test]
    fn a_skipped_message_is_caught() {
        let kind = KINDS[0].clone();
        let order =
            Order { task: Task::Communication, kind, point: Point::Wire, rate: 0.0, seed: 1, messages: 50, work: 1 };
        let (far, _) = both(&order, |near| near.sent += 1);
        let told = far.join().unwrap().unwrap_err().to_string();
        assert!(told.contains("in the place of message 0 came number 1"), "{told}");
    }

    #[test]
    fn a_finding_survives_its_line() {
        let found =
            Found { seconds: 0.25, verified: 7, faults: 3, retransmissions: 2, duplicates: 1, timeouts: u64::MAX };
        assert_eq!(found.to_string().parse(), Ok(found));
        for line in ["", "0.25", "0.25 1 2 3 4", "0.25 1 2 3 4 5 6", "x 1 2 3 4 5", "rcl: stuck"] {
            assert_eq!(line.parse::<Found>(), Err(()), "{line}");
        }
    }
}
