//! Jobs and their views, and what a task and the shepherd of its job say to each other.
//!
//! A program asks its daemon for the job ([`JobWanted`] at `/v1/jobs/NAME`), is told where the job's shepherd on this node listens
//! ([`Fold`]), and connects there. From then on both sides speak in frames:
//!
//! ```text
//! 0 4 length of what follows, little endian   4 1 kind   5 … body
//! ```
//! Kind 0 is JSON: [`ToShepherd`] one way, [`ToTask`] the other. Kind 1 is a message between tasks: its [`Parcel`], then its bytes.
//! Kind 2 is what tasks gather, see [`reduce`](crate::reduce).
//! The connection is the task's life: when it ends, the task is gone.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// The longest message between tasks.
pub const MESSAGE_MAX: usize = 8 << 20;
/// The longest frame: a message of the largest size, with its head.
pub const FRAME_MAX: usize = MESSAGE_MAX + 64;
/// The kind of frames with words.
pub const WORDS: u8 = 0;
/// The kind of frames with messages.
pub const PARCEL: u8 = 1;
/// The arity of a job's tree unless it is told otherwise.
pub const ARITY: u32 = 4;
/// The longest name of a job.
pub const NAME_MAX: usize = 48;

/// What tasks do that cannot reach most of their view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnPartition {
    /// Only the part with a majority of the former view goes on; the others wait.
    #[default]
    Primary,
    /// Each part goes on with a view of its own.
    Continue,
    /// As `primary`, and the others end.
    Abort,
}

impl OnPartition {
    /// As people and JSON write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Continue => "continue",
            Self::Abort => "abort",
        }
    }
}

/// A job that a task wants to be in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobWanted {
    /// How many ranks it has.
    pub size: u32,
    /// Children of each task in its tree, a power of two; those that it was begun with, or [`ARITY`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub arity: Option<u32>,
    /// What those do who cannot reach most of it; as it was begun with, or `primary`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub on_partition: Option<OnPartition>,
}

/// Where the shepherd of a job listens on this node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Fold {
    /// A Unix socket.
    pub socket: String,
}

/// A job of which this node knows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Job {
    /// What it is called.
    pub name: String,
    /// Which one of that name, in hexadecimal; absent while nobody has begun it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub instance: Option<String>,
    /// How many ranks it has.
    pub size: u32,
    /// Children of each task in its tree.
    pub arity: u32,
    /// Nodes with tasks of it, as this one knows them.
    pub nodes: Vec<String>,
    /// The process of its shepherd on this node, when there is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub shepherd: Option<u32>,
}

/// The view of a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobView {
    /// The job.
    pub job: String,
    /// Which one of that name, in hexadecimal.
    pub instance: String,
    /// The view's name: number, root, and which life of the root.
    pub view: ViewName,
    /// How many ranks the job has.
    pub size: u32,
    /// Children of each task in its tree.
    pub arity: u32,
    /// What those do who cannot reach most of it.
    pub on_partition: OnPartition,
    /// How many tasks live.
    pub alive: u32,
    /// All who are or were tasks, and those that are awaited.
    pub tasks: Vec<TaskInfo>,
    /// More of them follow.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// What the tasks of the node that answered have counted.
    #[serde(default)]
    pub counts: JobCounts,
}

/// What happened to tasks, and what was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct JobCounts {
    /// Views that they installed.
    pub views: u64,
    /// Waves that they led.
    pub waves: u64,
    /// Letters from outside the view.
    pub outsiders: u64,
    /// Letters of other jobs, or for nobody here.
    pub strays: u64,
    /// Messages for a view that was over.
    pub stale: u64,
    /// Messages that had come before.
    pub duplicates: u64,
    /// Messages for a view to come, for which there was no room.
    pub overflow: u64,
    /// Letters that could not be read, and changes that made no sense.
    pub malformed: u64,
    /// Tasks that did not pause in time.
    pub hooks_late: u64,
    /// Deaths of ranks that the word they share with their shepherd told, before their memory was freed.
    pub notices: u64,
    /// Words that told of a death which was none, or could not be proved.
    pub alarms: u64,
}

/// A task of a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskInfo {
    /// Its number.
    pub task: u32,
    /// The rank that it holds; spares hold none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rank: Option<u32>,
    /// `alive`, `gone`, or `awaited` when it has never been there.
    pub state: TaskState,
    /// Its parent in the tree.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parent: Option<u32>,
    /// Where its shepherd is, or was.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub host: Option<SocketAddr>,
    /// True for tasks on the node that was asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub here: bool,
}

/// How a task is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum TaskState {
    /// It is in the view.
    Alive,
    /// It failed, or left.
    Gone,
    /// It has not come yet.
    Awaited,
}

impl TaskState {
    /// As people and JSON write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Gone => "gone",
            Self::Awaited => "awaited",
        }
    }
}

/// The name of a view: no two views of a job have the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ViewName {
    /// Grows from view to view.
    pub number: u64,
    /// The task that proposed it.
    pub root: u32,
    /// Which life of that task.
    pub stint: u32,
}

impl std::fmt::Display for ViewName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.number, self.root, self.stint)
    }
}

/// A view, as a task is told of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct View {
    /// Its name.
    pub view: ViewName,
    /// The number of the task that is told.
    pub me: u32,
    /// The rank of the task that is told; spares hold none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rank: Option<u32>,
    /// How many ranks the job has.
    pub size: u32,
    /// Who is in it, in order.
    pub tasks: Vec<u32>,
    /// Ranks that others hold than the tasks of the same number: rank and task.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub holders: Vec<(u32, u32)>,
    /// Who was in the view before and is not any more.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub failed: Vec<u32>,
    /// Who is new.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub joined: Vec<u32>,
    /// The view was made for a coordinated checkpoint.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub checkpoint: bool,
}

impl View {
    /// The task that holds a rank, when it lives.
    #[must_use]
    pub fn task_of(&self, rank: u32) -> Option<u32> {
        let held = self.holders.iter().find(|h| h.0 == rank).map_or(rank, |h| h.1);
        (rank < self.size && self.tasks.binary_search(&held).is_ok()).then_some(held)
    }

    /// True when each rank is held by a task that lives.
    #[must_use]
    pub fn is_full(&self) -> bool {
        (0..self.size).all(|rank| self.task_of(rank).is_some())
    }
}

/// What a task wants to be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The holder of this rank.
    Rank(u32),
    /// One more rank.
    More,
    /// A spare, which takes the rank of somebody who fails.
    Spare,
}

/// What a task says to its shepherd.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
#[non_exhaustive]
pub enum ToShepherd {
    /// Let me in; the first thing said.
    Attach {
        /// As what.
        role: Role,
        /// How many ranks the job has, as the task believes.
        size: u32,
        /// It wants to be asked to pause before the view changes.
        #[serde(default)]
        hooks: bool,
    },
    /// The task has saved what it had to save.
    Paused,
    /// A coordinated checkpoint is wanted.
    Checkpoint,
    /// Who was excluded wants to be in again.
    Rejoin,
    /// The task leaves in good order.
    Leave,
    /// The task has come so far, and waits for all others.
    Barrier {
        /// The task's own, to tell answers apart.
        number: u64,
    },
    /// The task wants the sum of what all give.
    Sum {
        /// The task's own, to tell answers apart.
        number: u64,
        /// What it gives.
        value: i64,
    },
}

/// What a shepherd says to a task.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
#[non_exhaustive]
pub enum ToTask {
    /// There is a new view, and the task is in it.
    View(View),
    /// The view is about to change: save what must be saved, then say `paused`.
    Pause,
    /// A message was sent.
    Sent {
        /// The parcel's number.
        parcel: u64,
    },
    /// A message was not sent.
    Unsent {
        /// The parcel's number.
        parcel: u64,
        /// Why, and what to do.
        error: String,
        /// Sending it again in a moment may help.
        #[serde(default)]
        busy: bool,
    },
    /// A message that was sent came for a view that was over there, and was not delivered.
    Undelivered {
        /// The parcel's number.
        parcel: u64,
        /// For whom it was.
        to: u32,
    },
    /// No majority of the view answers: nothing changes until there is one again.
    Stalled,
    /// The others have a view without the task; it may ask to be in again.
    Excluded {
        /// Theirs.
        view: ViewName,
    },
    /// The job ends here, because most of it cannot be reached.
    Aborted,
    /// The task was not let in, or not any more.
    Refused {
        /// Why, and what to do.
        error: String,
    },
    /// The task left, and the others know.
    Left,
    /// All who live have come to a barrier, or given to a sum.
    Reduced {
        /// That of the question.
        number: u64,
        /// The sum.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        sum: Option<i64>,
    },
    /// A reduction came to nothing.
    Unreduced {
        /// That of the question.
        number: u64,
        /// Why, and what to do.
        error: String,
    },
}

/// The head of a message between tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parcel {
    /// To whom; on the way to a task, from whom.
    pub peer: u32,
    /// The sender's number for it; on the way to a task, zero.
    pub number: u64,
    /// The view in which it is sent and delivered.
    pub view: ViewName,
}

impl Parcel {
    /// Bytes of a head.
    pub const LEN: usize = 28;

    /// Reads the head of a message, and what follows.
    #[must_use]
    pub fn parse(body: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = body.split_first_chunk::<{ Self::LEN }>()?;
        let four = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| head[at + i]));
        let eight = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| head[at + i]));
        let view = ViewName { number: eight(12), root: four(20), stint: four(24) };
        Some((Self { peer: four(0), number: eight(4), view }, rest))
    }

    /// The whole frame.
    #[must_use]
    pub fn frame(&self, message: &[u8]) -> Vec<u8> {
        let mut frame = begin(PARCEL, Self::LEN + message.len());
        frame.extend_from_slice(&self.peer.to_le_bytes());
        frame.extend_from_slice(&self.number.to_le_bytes());
        frame.extend_from_slice(&self.view.number.to_le_bytes());
        frame.extend_from_slice(&self.view.root.to_le_bytes());
        frame.extend_from_slice(&self.view.stint.to_le_bytes());
        frame.extend_from_slice(message);
        frame
    }
}

/// A frame with words: JSON.
#[must_use]
pub fn words(json: &[u8]) -> Vec<u8> {
    let mut frame = begin(WORDS, json.len());
    frame.extend_from_slice(json);
    frame
}

pub(crate) fn begin(kind: u8, length: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(5 + length);
    frame.extend_from_slice(&(length as u32 + 1).to_le_bytes());
    frame.push(kind);
    frame
}

/// How long a frame is that begins so, its kind included. `None` when it is longer than any.
#[must_use]
pub fn frame_length(head: [u8; 4]) -> Option<usize> {
    Some(u32::from_le_bytes(head) as usize).filter(|&l| (1..=FRAME_MAX).contains(&l))
}

/// What is wrong with a name for a job; nothing when it is `None`.
#[must_use]
pub fn wrong_name(name: &str) -> Option<String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let good = (1..=NAME_MAX).contains(&name.len()) && name.chars().all(fine) && !name.starts_with('.');
    (!good).then(|| {
        format!("`{name}` is no name for a job: 1 to {NAME_MAX} letters, digits, - _ and ., not beginning with a .")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written() {
        let parcel = Parcel { peer: 7, number: 9, view: ViewName { number: 3, root: 1, stint: 2 } };
        let frame = parcel.frame(b"hello");
        let length = frame_length(std::array::from_fn(|i| frame[i])).unwrap();
        assert_eq!((length, frame[4]), (frame.len() - 4, PARCEL));
        assert_eq!(Parcel::parse(&frame[5..]), Some((parcel, &b"hello"[..])));
        assert_eq!(Parcel::parse(&frame[5..20]), None);
        assert_eq!(frame_length([0; 4]), None);
        assert_eq!(frame_length([0xff; 4]), None);
    }

    #[test]
    fn words_stay_as_they_are() {
        let text = serde_json::to_string(&ToShepherd::Attach { role: Role::Rank(3), size: 8, hooks: false }).unwrap();
        assert_eq!(text, r#"{"do":"attach","role":{"rank":3},"size":8,"hooks":false}"#);
        let text = serde_json::to_string(&ToShepherd::Sum { number: 7, value: -3 }).unwrap();
        assert_eq!(text, r#"{"do":"sum","number":7,"value":-3}"#);
        let text = serde_json::to_string(&ToTask::Reduced { number: 7, sum: None }).unwrap();
        assert_eq!(text, r#"{"event":"reduced","number":7}"#);
        let view = View {
            view: ViewName { number: 2, root: 0, stint: 1 },
            me: 1,
            rank: Some(1),
            size: 3,
            tasks: vec![0, 1, 5],
            holders: vec![(2, 5)],
            failed: vec![2],
            joined: vec![],
            checkpoint: false,
        };
        assert!(view.is_full() && view.task_of(2) == Some(5) && view.task_of(3).is_none());
        let text = serde_json::to_string(&ToTask::View(view.clone())).unwrap();
        assert_eq!(
            text,
            r#"{"event":"view","view":{"number":2,"root":0,"stint":1},"me":1,"rank":1,"size":3,"tasks":[0,1,5],"holders":[[2,5]],"failed":[2]}"#
        );
        assert_eq!(serde_json::from_str::<ToTask>(&text).unwrap(), ToTask::View(view));
    }

    #[test]
    fn names_that_cannot_be_files_are_refused() {
        for good in ["a", "train-7", "x.y_z"] {
            assert_eq!(wrong_name(good), None, "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a b", "é", &"x".repeat(NAME_MAX + 1)] {
            assert!(wrong_name(bad).is_some(), "{bad}");
        }
    }
}
