//! The outbox: packets on their way from a machine to the platform, through the `wire` fault injector (FI-3).

use crate::platform::Platform;
use phalanx_core::{Addr, Buf, Code, Instant};
use phalanx_fault::{Injector, Outcome};
use phalanx_protocol::link::status::Ticket;

/// Operation faults waiting to show; past it they show at once.
const FAILING_MAX: usize = 256;

/// A packet that a machine wants sent.
pub struct Packet {
    /// Where to.
    pub to: Addr,
    /// Sealed.
    pub packet: Buf,
    /// Its sender wants to know what became of it.
    pub ticket: Option<Ticket>,
    /// The peer was heard lately.
    pub answer: bool,
}

/// What is to be sent, and what is yet to be told about it.
#[derive(Default)]
pub(crate) struct Outbox {
    pub(crate) packets: Vec<Packet>,
    failing: Vec<(Instant, Ticket, Code)>,
    /// Ticketed packets that the platform would not take.
    pub(crate) refused: Vec<(Ticket, Code)>,
}

#[inline]
pub(crate) fn hand_over<P: Platform>(
    platform: &mut P,
    to: Addr,
    packet: Buf,
    ticket: Option<Ticket>,
    answer: bool,
) -> Result<(), Code> {
    let ticket = ticket.map(|t| t.0);
    if answer { platform.answer(to, packet, ticket) } else { platform.send(to, packet, ticket) }
}

impl Outbox {
    /// When a fault is to show.
    pub(crate) fn deadline(&self) -> Instant {
        self.failing.iter().map(|f| f.0).fold(Instant::NEVER, Instant::min)
    }

    /// Sends all packets, and tells `done` what became of those with tickets.
    #[inline]
    pub(crate) fn send_all<P: Platform>(
        &mut self,
        now: Instant,
        platform: &mut P,
        wire: &mut Injector<Addr>,
        done: &mut impl FnMut(Ticket, Result<(), Code>),
    ) {
        let idle = wire.is_idle();
        for Packet { to, packet, ticket, answer } in self.packets.drain(..) {
            let mut tell = |ticket: Option<Ticket>, result| ticket.into_iter().for_each(|t| done(t, result));
            let (packet, ticket) = if idle {
                (packet, ticket)
            } else {
                match wire.send(now, to, &packet) {
                    Outcome::Pass => (packet, ticket),
                    Outcome::Drop => {
                        tell(ticket, Ok(()));
                        continue;
                    }
                    Outcome::Refuse(code) => {
                        tell(ticket, Err(code));
                        continue;
                    }
                    Outcome::FailLater { code, deliver, after } => {
                        match ticket {
                            Some(t) if self.failing.len() < FAILING_MAX => self.failing.push((now + after, t, code)),
                            ticket => tell(ticket, Err(code)),
                        }
                        if !deliver {
                            continue;
                        }
                        (packet, None)
                    }
                }
            };
            if let Err(code) = hand_over(platform, to, packet, ticket, answer) {
                tell(ticket, Err(code));
            }
        }
        while let Some((to, copy)) = wire.take_injected() {
            // An injected copy that the platform will not take is a fault that did not happen.
            let _ = platform.send(to, copy, None);
        }
        while let Some(due) = self.failing.iter().position(|f| f.0 <= now) {
            let (_, ticket, code) = self.failing.swap_remove(due);
            done(ticket, Err(code));
        }
        while let Some((ticket, code)) = self.refused.pop() {
            done(ticket, Err(code));
        }
        platform.flush(&mut |ticket, result| done(Ticket(ticket), result));
    }
}
