//! What a company decides, kept until its shepherd has time for it.

use crate::driver::{Resident, Sorted};
use crate::outbox::Packet;
use phalanx_core::Addr;
use phalanx_protocol::company::{Company, Outcome, Output, Reduced, Seat};
use phalanx_protocol::view::{self, Change, Refusal, Task, View, ViewId, Wave};
use std::time::Instant;

/// Something a company, or a member of it, decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct News {
    /// Which member; 0 where none is meant.
    pub seat: Seat,
    /// What.
    pub said: Said,
}

/// What a member decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// A new view.
    Installed {
        /// It.
        view: View,
        /// What made it, unless it was told whole.
        change: Option<Change>,
    },
    /// The view is about to change.
    Pause,
    /// A message.
    Deliver {
        /// From whom.
        from: Task,
        /// In which view.
        view: ViewId,
        /// It.
        body: Vec<u8>,
    },
    /// A message came for a view that was over.
    Undelivered {
        /// For whom it was.
        to: Task,
        /// Its number.
        number: u64,
    },
    /// A root begins a wave, and when: from here T_s counts (RV-10).
    Begun(Wave, Instant),
    /// It has all answers, and since when.
    Settled(Wave, Instant),
    /// No majority answers.
    Stalled,
    /// The others have this view.
    Excluded(ViewId),
    /// The job ends here.
    Aborted,
    /// Not let in.
    Refused(Refusal),
    /// Gone, and the others know.
    Left,
    /// A reduction is over.
    Reduced(Outcome),
    /// A reduction goes on without its task.
    Unreduced,
    /// Another host of the job says this.
    Host(Addr, Vec<u8>),
    /// Another host is gone for sure, or does not answer.
    HostGone(Addr, bool),
    /// There is room for more words to hosts.
    Writable,
    /// A gather over the hosts of the job is over; without this host, when there is nothing.
    Mustered(Option<Outcome>),
}

impl Resident for Company {
    type News = News;

    fn sort(output: Output<'_>) -> Sorted<News> {
        match output {
            Output::Transmit { to, packet, ticket, answer } => Sorted::Packet(Packet { to, packet, ticket, answer }),
            Output::Wire { to } => Sorted::Wire(to, true),
            Output::Unwire { to } => Sorted::Wire(to, false),
            Output::Reached(state) => Sorted::Reached(state),
            Output::Writable => Sorted::News(News { seat: 0, said: Said::Writable }),
            Output::Host { from, bytes } => Sorted::News(News { seat: 0, said: Said::Host(from, bytes.to_vec()) }),
            Output::HostGone { addr, certain } => Sorted::News(News { seat: 0, said: Said::HostGone(addr, certain) }),
            Output::Said { seat, what } => {
                Said::of(what).map_or(Sorted::Nothing, |said| Sorted::News(News { seat, said }))
            }
            // Of the host, whoever of its members.
            Output::Mustered { what } => {
                let outcome = match what {
                    Reduced::Done(outcome) => Some(outcome.clone()),
                    Reduced::Excluded => None,
                };
                Sorted::News(News { seat: 0, said: Said::Mustered(outcome) })
            }
            Output::Reduced { seat, what } => {
                let said = match what {
                    Reduced::Done(outcome) => Said::Reduced(outcome.clone()),
                    Reduced::Excluded => Said::Unreduced,
                };
                Sorted::News(News { seat, said })
            }
        }
    }
}

impl Said {
    fn of(what: view::Output<'_>) -> Option<Self> {
        Some(match what {
            // The company sends by itself.
            view::Output::Send { .. } => return None,
            view::Output::Installed { view, change } => Self::Installed { view: view.clone(), change: change.cloned() },
            view::Output::Pause { .. } => Self::Pause,
            view::Output::Deliver { from, view, body } => Self::Deliver { from, view, body: body.to_vec() },
            view::Output::Undelivered { to, number, .. } => Self::Undelivered { to, number },
            view::Output::Begun(wave) => Self::Begun(wave, Instant::now()),
            view::Output::Settled { wave, .. } => Self::Settled(wave, Instant::now()),
            view::Output::Stalled => Self::Stalled,
            view::Output::Excluded { view } => Self::Excluded(view),
            view::Output::Aborted => Self::Aborted,
            view::Output::Refused(why) => Self::Refused(why),
            view::Output::Left => Self::Left,
        })
    }
}
