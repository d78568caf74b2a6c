//! Parallel jobs that the cluster starts: what `phalanx run` asks for, and what it is told.
//!
//! A [`RunWanted`] goes to a daemon, which answers with the job and the socket of its console ([`RunStarted`]); from there come output and
//! the ends of ranks.

use serde::{Deserialize, Serialize};

/// The most programs of one job, `a : b : c`.
pub const PROGRAMS_MAX: usize = 64;
/// The most ranks of one job.
pub const RANKS_MAX: u32 = 1 << 20;

/// One program of a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Program {
    /// What is started, and its arguments. Bytes that are not UTF-8 cannot be forwarded.
    pub argv: Vec<String>,
    /// How many ranks run it.
    pub ranks: u32,
    /// Its whole environment, without what the job adds.
    pub env: Vec<(String, String)>,
    /// Where it starts.
    pub wdir: String,
}

/// What becomes of a job when one of its ranks dies, or a node with some of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// All ranks end, and the job with them.
    #[default]
    Abort,
    /// All ranks end, and the job starts again on nodes that are well.
    Restart,
    /// The survivors go on.
    Continue,
    /// The rank starts again on a spare.
    Respawn,
}

impl OnFailure {
    /// As people and JSON write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Abort => "abort",
            Self::Restart => "restart",
            Self::Continue => "continue",
            Self::Respawn => "respawn",
        }
    }
}

/// A node that may be used, and for how many ranks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostSlots {
    /// The node's name.
    pub node: String,
    /// Ranks that it takes; its own slots unless told.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub slots: Option<u32>,
}

/// A job that somebody wants.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunWanted {
    /// What it is called; the cluster finds a name otherwise.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// What it runs, ranks in this order.
    pub programs: Vec<Program>,
    /// Nodes it may use, in the order in which ranks fill them; all nodes when empty.
    #[serde(default)]
    pub hosts: Vec<HostSlots>,
    /// The most ranks of it on one node.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub per_node: Option<u32>,
    /// More ranks than slots are welcome.
    #[serde(default)]
    pub oversubscribe: bool,
    /// What becomes of it when a part of it dies.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Slots that are kept free for ranks that must start again.
    #[serde(default)]
    pub spares: u32,
    /// It is ended after this time, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timeout_ms: Option<u64>,
}

impl RunWanted {
    /// These programs, and all else as it is usual.
    #[must_use]
    pub fn of(programs: Vec<Program>) -> Self {
        let (name, hosts, per_node, timeout_ms) = (None, Vec::new(), None, None);
        let (oversubscribe, on_failure, spares) = (false, OnFailure::default(), 0);
        Self { name, programs, hosts, per_node, oversubscribe, on_failure, spares, timeout_ms }
    }

    /// How many ranks it has.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.programs.iter().fold(0, |sum, program| sum.saturating_add(program.ranks))
    }
}

/// The job that was begun.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunStarted {
    /// What it is called.
    pub job: String,
    /// Where its console listens: the shepherd of the job on this node.
    pub socket: String,
}

/// Whose output it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// How a rank ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RankEnd {
    /// It ended by itself, with this status.
    Exited(i32),
    /// A signal ended it.
    Killed(i32),
    /// It could not be started: the error number of the system.
    Missing(i32),
    /// Its node is gone.
    Lost,
}

impl RankEnd {
    /// As a shell says it.
    #[must_use]
    pub const fn status(self) -> i32 {
        match self {
            Self::Exited(status) => status,
            Self::Killed(signal) => 128 + signal,
            // As shells: found but not startable, or not found.
            Self::Missing(2) => 127,
            Self::Missing(_) => 126,
            Self::Lost => 128 + 9,
        }
    }
}

/// What a console says to its shepherd. Input for rank 0 goes as frames of kind [`INPUT`]; an empty one is its end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "console", rename_all = "lowercase")]
pub enum ToConsoleShepherd {
    /// The first thing said.
    Attach,
    /// A signal for all ranks.
    Signal {
        /// Its number.
        signal: i32,
    },
}

/// What a console is told. Output comes as frames of kind [`OUTPUT`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "run", rename_all = "lowercase")]
pub enum ToConsole {
    /// All ranks were started.
    Running {
        /// Which attempt of the job, from 0.
        attempt: u32,
        /// Where each rank is, by rank.
        nodes: Vec<String>,
    },
    /// A rank ended.
    Ended {
        /// Which.
        rank: u32,
        /// How.
        end: RankEnd,
    },
    /// So many bytes of input more are on their way to rank 0: the console may send as many.
    Fed {
        /// How many.
        bytes: u64,
    },
    /// Something worth telling, in words.
    Note {
        /// The words.
        text: String,
    },
    /// The job is over; the last thing said.
    Over {
        /// The largest status of all ranks.
        status: i32,
    },
}

/// Bytes of input that a console sends before it was told that they were [`ToConsole::Fed`]. What waits longer would hold up its signals.
pub const INPUT_AHEAD: usize = 128 << 10;
/// The longest frame with input.
pub const INPUT_MAX: usize = 16 << 10;
/// The kind of frames with output: rank (4 bytes, little endian), stream (0 out, 1 err), bytes.
pub const OUTPUT: u8 = 4;
/// The kind of frames with input for rank 0: bytes; none at its end.
pub const INPUT: u8 = 5;

/// A frame with output.
#[must_use]
pub fn output_frame(rank: u32, stream: Stream, bytes: &[u8]) -> Vec<u8> {
    let mut frame = crate::jobs::begin(OUTPUT, 5 + bytes.len());
    frame.extend_from_slice(&rank.to_le_bytes());
    frame.push(u8::from(stream == Stream::Err));
    frame.extend_from_slice(bytes);
    frame
}

/// What the body of a frame with output says.
#[must_use]
pub fn output(body: &[u8]) -> Option<(u32, Stream, &[u8])> {
    let (rank, rest) = body.split_first_chunk()?;
    let (stream, bytes) = rest.split_first()?;
    let stream = match stream {
        0 => Stream::Out,
        1 => Stream::Err,
        _ => return None,
    };
    Some((u32::from_le_bytes(*rank), stream, bytes))
}

/// A frame with input for rank 0; without bytes its end.
#[must_use]
pub fn input_frame(bytes: &[u8]) -> Vec<u8> {
    let mut frame = crate::jobs::begin(INPUT, bytes.len());
    frame.extend_from_slice(bytes);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::frame_length;

    #[test]
    fn output_is_read_as_it_was_written() {
        let frame = output_frame(7, Stream::Err, b"hello");
        assert_eq!(frame_length(std::array::from_fn(|i| frame[i])), Some(frame.len() - 4));
        assert_eq!((frame[4], output(&frame[5..])), (OUTPUT, Some((7, Stream::Err, &b"hello"[..]))));
        assert_eq!(output(&frame[5..9]), None);
        assert_eq!(output(&[0, 0, 0, 0, 9]), None);
        assert_eq!(input_frame(b"")[4..], [INPUT]);
    }

    #[test]
    fn statuses_are_those_of_shells() {
        let ends = [RankEnd::Exited(3), RankEnd::Killed(9), RankEnd::Missing(2), RankEnd::Missing(13), RankEnd::Lost];
        assert_eq!(ends.map(RankEnd::status), [3, 137, 127, 126, 137]);
    }
}
