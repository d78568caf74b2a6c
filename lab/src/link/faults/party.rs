//! One of the two processes of a run: a real host over UDP that sends, computes, receives, and checks what it receives.
//!
//! The link is driven by the process itself, as in the paper: it polls while it communicates and between two slices of
//! its computation.

use super::script::Script;
use super::{Order, Point, Side, Task, compute};
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
/// Parts that the computation of a turn is cut into; the process looks at its link after each.
pub(super) const SLICES: u32 = 120;
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
    for _ in 0..WARM_UP {
        party.turn(|_| Ok(()))?;
    }
    let before = Found { verified: party.inbox.received, ..party.counted() };
    party.install(order, side)?;
    let start = Instant::now();
    match (order.task, side) {
        (Task::Communication, Side::Near) => party.pour(order.messages)?,
        (Task::Communication, Side::Far) => party.until(|p| p.inbox.received == before.verified + order.messages)?,
        (Task::Cpu, _) => {
            for _ in 0..order.messages / TURN {
                party.turn(|p| p.compute(order.work))?;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    party.part()?;
    let found = party.counted();
    let found = Found {
        seconds,
        verified: party.inbox.received - before.verified,
        faults: found.faults,
        retransmissions: found.retransmissions - before.retransmissions,
        duplicates: found.duplicates - before.duplicates,
        timeouts: found.timeouts - before.timeouts,
    };
    println!("{found}");
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
                let (sent, received) = (self.sent, self.inbox.received);
                let reason = format!("stuck after {PATIENCE:?}: {sent} messages sent, {received} received");
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
        let (retransmissions, duplicates, timeouts) = (rcl.retransmissions, rcl.duplicates, rcl.timeouts);
        Found { faults, retransmissions, duplicates, timeouts, ..Found::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
