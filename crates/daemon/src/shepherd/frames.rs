//! What the shepherds of a job say to each other, beside what their tasks say (CM-2): output on its way to the console, input on its way to
//! rank 0, and ends.
//!
//! The shepherd of the node where the console is is called *home*. What ranks write is acknowledged once the console has taken it, so a
//! console that reads slowly makes ranks wait, not shepherds remember.

use phalanx_api::run::{RankEnd, Stream};
use phalanx_protocol::manager::words::{decode, encode};
use serde::{Deserialize, Serialize};

/// The kind of frames with words; the others have bytes of ranks.
const WORDS: u8 = 0;
const OUTPUT: u8 = 1;
const INPUT: u8 = 2;
/// Bytes before those of a rank's output.
const OUTPUT_HEAD: usize = 6;

/// Words between shepherds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Words {
    /// To home: these ranks were started here.
    Started {
        /// In which attempt.
        attempt: u32,
        /// Which.
        ranks: Vec<u32>,
    },
    /// To home: a rank has ended, and all that it wrote was said before.
    Ended {
        /// Which.
        rank: u32,
        /// How.
        end: RankEnd,
    },
    /// To home: no rank of this attempt is left here, and home has all that they wrote.
    Drained {
        /// Which attempt.
        attempt: u32,
    },
    /// From home: that was heard.
    Dismissed {
        /// Which attempt.
        attempt: u32,
    },
    /// From home: the job is over; say `Drained`, again perhaps.
    Finish,
    /// From home: the console has taken so many bytes of output more.
    Taken {
        /// How many.
        bytes: u64,
    },
    /// To home: rank 0 has taken so many bytes of input more.
    Fed {
        /// How many.
        bytes: u64,
    },
    /// From home: there is no more input.
    InputEnd,
    /// From home, when no daemon is there to ask the manager: a signal for all ranks.
    Signal {
        /// Its number.
        signal: i32,
    },
}

/// A frame, read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Frame<'a> {
    Words(Words),
    /// To home: what a rank wrote.
    Output {
        rank: u32,
        stream: Stream,
        bytes: &'a [u8],
    },
    /// From home: input for rank 0.
    Input(&'a [u8]),
}

pub(super) fn words(words: &Words) -> Vec<u8> {
    let mut frame = vec![WORDS];
    frame.extend(encode(words));
    frame
}

pub(super) fn output(rank: u32, stream: Stream, bytes: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(OUTPUT_HEAD + bytes.len());
    frame.push(OUTPUT);
    frame.extend_from_slice(&rank.to_le_bytes());
    frame.push(u8::from(stream == Stream::Err));
    frame.extend_from_slice(bytes);
    frame
}

pub(super) fn input(bytes: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(1 + bytes.len());
    frame.push(INPUT);
    frame.extend_from_slice(bytes);
    frame
}

/// Reads a frame; `None` when it makes no sense.
pub(super) fn read(frame: &[u8]) -> Option<Frame<'_>> {
    let (&kind, body) = frame.split_first()?;
    match kind {
        WORDS => decode(body).map(Frame::Words),
        OUTPUT => {
            let (rank, stream, bytes) = phalanx_api::run::output(body)?;
            Some(Frame::Output { rank, stream, bytes })
        }
        INPUT => Some(Frame::Input(body)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written() {
        let ended = Words::Ended { rank: 7, end: RankEnd::Killed(9) };
        assert_eq!(read(&words(&ended)), Some(Frame::Words(ended)));
        let bytes = &b"hello"[..];
        assert_eq!(read(&output(3, Stream::Err, bytes)), Some(Frame::Output { rank: 3, stream: Stream::Err, bytes }));
        assert_eq!(read(&input(bytes)), Some(Frame::Input(bytes)));
        for lie in [&[][..], &[9], &[WORDS], &[WORDS, 200], &[OUTPUT, 1, 2], &[OUTPUT, 0, 0, 0, 0, 7]] {
            assert_eq!(read(lie), None, "{lie:?}");
        }
    }
}
