//! Where a company's decisions go: packets to the network, everything else to the host's desk.

use super::{Host, Life};
use crate::process::Ctx;
use phalanx_core::{Code, Instant, Sink};
use phalanx_fault::Outcome;
use phalanx_protocol::company::{Output, Seat, Ticket};
use phalanx_protocol::view::{self, Refusal, Task, View, ViewId, Wave};
use std::collections::{BTreeMap, VecDeque};

/// Operation faults waiting to show; past it they show at once.
const FAILING_MAX: usize = 256;

/// What members decided.
pub(super) enum Told {
    Installed(Box<View>, Option<ViewId>),
    Got { from: Task, view: ViewId, name: Option<u64> },
    Begun(Wave),
    Settled(Wave),
    Stalled,
    Excluded(ViewId),
    Aborted,
    Refused(Refusal),
    Left,
    Undelivered,
    Pause,
}

/// What the host still has to do.
#[derive(Default)]
pub(super) struct Desk {
    pub(super) told: VecDeque<(Seat, Told)>,
    /// Tasks that are gone, while their members say good-bye.
    pub(super) parting: BTreeMap<Seat, Life>,
    /// What the network made of ticketed sends (CL-2).
    done: Vec<(Ticket, Result<(), Code>)>,
    /// Operation faults that will show.
    failing: Vec<(Instant, Ticket, Code)>,
}

impl Desk {
    pub(super) fn deadline(&self) -> Instant {
        self.failing.iter().map(|f| f.0).fold(Instant::NEVER, Instant::min)
    }

    /// The next send whose end is known.
    pub(super) fn settled(&mut self, now: Instant) -> Option<(Ticket, Result<(), Code>)> {
        if let Some(due) = self.failing.iter().position(|f| f.0 <= now) {
            let (_, ticket, code) = self.failing.remove(due);
            return Some((ticket, Err(code)));
        }
        self.done.pop()
    }

    fn on_outcome(&mut self, now: Instant, ticket: Ticket, outcome: Outcome) {
        let result = match outcome {
            Outcome::Pass | Outcome::Drop => Ok(()),
            Outcome::FailLater { code, after, .. } if self.failing.len() < FAILING_MAX => {
                return self.failing.push((now + after, ticket, code));
            }
            Outcome::Refuse(code) | Outcome::FailLater { code, .. } => Err(code),
        };
        self.done.push((ticket, result));
    }
}

/// The sink of one call of the company.
pub(super) struct Outlet<'a, 'n> {
    pub(super) now: Instant,
    pub(super) desk: &'a mut Desk,
    pub(super) net: &'a mut Ctx<'n, Host>,
}

impl<'o> Sink<Output<'o>> for Outlet<'_, '_> {
    fn push(&mut self, output: Output<'o>) {
        match output {
            Output::Transmit { to, packet, ticket, .. } => {
                let outcome = self.net.try_send(to, packet);
                if let Some(ticket) = ticket {
                    self.desk.on_outcome(self.now, ticket, outcome);
                }
            }
            Output::Wire { to } => self.net.open_stream(to),
            Output::Unwire { to } => self.net.close_stream(to),
            Output::Reached(state) => self.net.reached(state),
            Output::Said { seat, what } => self.desk.told.extend(told(what).map(|t| (seat, t))),
            // Hosts have no ranks here whose output they forward.
            Output::Host { .. } | Output::HostGone { .. } => {}
            Output::Writable | Output::Reduced { .. } | Output::Mustered { .. } => {}
        }
    }
}

fn told(what: view::Output<'_>) -> Option<Told> {
    Some(match what {
        view::Output::Installed { view, change } => Told::Installed(Box::new(view.clone()), change.map(|c| c.base)),
        view::Output::Deliver { from, view, body } => {
            let name = body.first_chunk().map(|b| u64::from_le_bytes(*b));
            Told::Got { from, view, name }
        }
        view::Output::Begun(wave) => Told::Begun(wave),
        view::Output::Settled { wave, .. } => Told::Settled(wave),
        view::Output::Stalled => Told::Stalled,
        view::Output::Excluded { view } => Told::Excluded(view),
        view::Output::Aborted => Told::Aborted,
        view::Output::Refused(why) => Told::Refused(why),
        view::Output::Left => Told::Left,
        view::Output::Undelivered { .. } => Told::Undelivered,
        view::Output::Pause { .. } => Told::Pause,
        view::Output::Send { .. } => return None,
    })
}
