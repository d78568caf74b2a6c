//! What a company decides, kept until its shepherd has time for it.

use crate::driver::{Resident, Sorted};
use crate::outbox::Packet;
use phalanx_protocol::company::{Company, Output, Seat};
use phalanx_protocol::view::{self, Change, Refusal, Task, View, ViewId, Wave};
use std::time::Instant;

/// Something a member of a company decided, or that there is room again.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all of it is what was said, and it is soon read")]
pub enum News {
    /// What one member decided.
    Said(Seat, Said),
    /// Messages that were refused may be sent now.
    Writable,
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
}

impl Resident for Company {
    type News = News;

    fn sort(output: Output<'_>) -> Sorted<News> {
        match output {
            Output::Transmit { to, packet, ticket, answer } => Sorted::Packet(Packet { to, packet, ticket, answer }),
            Output::Wire { to } => Sorted::Wire(to, true),
            Output::Unwire { to } => Sorted::Wire(to, false),
            Output::Reached(state) => Sorted::Reached(state),
            Output::Writable => Sorted::News(News::Writable),
            Output::Said { seat, what } => {
                Said::of(what).map_or(Sorted::Nothing, |said| Sorted::News(News::Said(seat, said)))
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
