//! Configuration of views, and what is counted.

use phalanx_core::{Addr, Duration};
use phalanx_wire::view::ViewId;
use thiserror::Error;

/// RV-6: what tasks do that cannot reach most of their view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum OnPartition {
    /// Only the part with a majority of the former view goes on; the others wait.
    #[default]
    Primary,
    /// Each part goes on with a view of its own (000 §3.3).
    Continue,
    /// As `Primary`, and the others end.
    Abort,
}

/// How a view is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// What tasks do that cannot reach most of their view.
    pub on_partition: OnPartition,
    /// How long an answer may take before somebody is asked how it is, and that answer before it counts as gone.
    pub patience: Duration,
    /// RV-11: how often each task asks its parent, and one of its children, how they are. Never when zero.
    pub inquiry: Duration,
    /// How long a root waits before it tries again what did not succeed.
    pub retry: Duration,
    /// RV-9: the application is asked to pause before it takes part in a change.
    pub hooks: bool,
    /// How long it may take for that.
    pub hook_patience: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            on_partition: OnPartition::Primary,
            patience: Duration::from_millis(500),
            inquiry: Duration::from_secs(2),
            retry: Duration::from_millis(200),
            hooks: false,
            hook_patience: Duration::from_secs(30),
        }
    }
}

/// What a task starts with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Start {
    /// The job.
    pub job: u64,
    /// Where it is.
    pub host: Addr,
    /// Tells it from whoever had its number before; grows with each start on a host.
    pub boot: u32,
}

/// What was dropped, and what happened how often.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Letters that could not be read.
    pub malformed: u64,
    /// Letters of other jobs, for other tasks, or while we were in no view.
    pub strays: u64,
    /// RV-7: letters from outside the view.
    pub outsiders: u64,
    /// Acknowledgements that nobody waited for.
    pub late_acks: u64,
    /// RV-7: messages for a view that was over.
    pub stale: u64,
    /// RV-7: messages that had come before.
    pub duplicates: u64,
    /// RV-7: messages for a view to come, for which there was no room.
    pub overflow: u64,
    /// Changes that made no sense.
    pub senseless: u64,
    /// Waves that we led.
    pub waves: u64,
    /// Views that we installed.
    pub views: u64,
    /// RV-9: applications that did not pause in time.
    pub hooks_late: u64,
}

/// Why a message was not sent. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The view moved on.
    #[error("view {asked} is over, the job is in view {view}: read the new view and decide again")]
    StaleView {
        /// That of the caller.
        asked: ViewId,
        /// The one now.
        view: ViewId,
    },
    /// Nobody of that number is in the view.
    #[error("task {0} is not in the view: it failed, left, or never was")]
    NotInView(u32),
    /// We are in no view.
    #[error("this task is in no view: it was excluded, left, or has not joined yet")]
    Outside,
    /// Too much is under way to that host.
    #[error("too much is under way to that task already: send it again in a moment")]
    Busy,
    /// Too long.
    #[error("a message holds {limit} bytes, and this one has {need}: split it")]
    TooLarge {
        /// How long it is.
        need: usize,
        /// How long it may be.
        limit: usize,
    },
}
