//! What happened to a job and why, in the order in which it happened.

use super::summed::print;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

/// The most lines of one job. Past that the oldest in the middle go: how it began stays, and how it went last.
pub const LINES_MAX: usize = 200;
/// Lines of the beginning that always stay.
const BEGINNING: usize = 40;
/// The longest line.
pub(super) const LINE_MAX: usize = 300;

/// Something that happened to a job.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Line {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// What, and why.
    pub text: String,
}

/// A job's log.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Kept")]
pub(super) struct Log {
    begun: Vec<Line>,
    latest: VecDeque<Line>,
    dropped: u32,
    /// The sum of the hashes of its lines, each with its place.
    #[serde(skip)]
    sum: u64,
}

/// What is written of a log.
#[derive(Deserialize)]
struct Kept {
    begun: Vec<Line>,
    latest: VecDeque<Line>,
    dropped: u32,
}

impl From<Kept> for Log {
    fn from(Kept { begun, latest, dropped }: Kept) -> Self {
        let places = (0..begun.len()).chain(BEGINNING + dropped as usize..);
        let sum = places.zip(begun.iter().chain(&latest)).fold(0u64, |sum, line| sum.wrapping_add(print(&line)));
        Self { begun, latest, dropped, sum }
    }
}

impl Hash for Log {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.sum);
        state.write_u32(self.dropped);
    }
}

impl Log {
    pub(super) fn say(&mut self, at_ms: u64, text: impl Into<String>) {
        let line = Line { at_ms, text: cut(text.into(), LINE_MAX) };
        if self.begun.len() < BEGINNING {
            self.sum = self.sum.wrapping_add(print(&(self.begun.len(), &line)));
            return self.begun.push(line);
        }
        let first = BEGINNING + self.dropped as usize;
        self.sum = self.sum.wrapping_add(print(&(first + self.latest.len(), &line)));
        self.latest.push_back(line);
        if self.latest.len() == LINES_MAX - BEGINNING {
            if let Some(old) = self.latest.pop_front() {
                self.sum = self.sum.wrapping_sub(print(&(first, &old)));
            }
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    /// All lines; one says how many are missing.
    pub(super) fn lines(&self) -> Vec<Line> {
        let gap = self.latest.front().filter(|_| self.dropped > 0);
        let gap =
            gap.map(|next| Line { at_ms: next.at_ms, text: format!("… {} lines are not kept …", self.dropped) });
        self.begun.iter().cloned().chain(gap).chain(self.latest.iter().cloned()).collect()
    }
}

/// A text of at most so many bytes.
pub(super) fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        let mut end = most - '…'.len_utf8();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::words::{decode, encode};

    #[test]
    fn a_long_log_keeps_its_beginning_and_its_end() {
        let mut log = Log::default();
        for at_ms in 0..1000 {
            log.say(at_ms, format!("line {at_ms}"));
        }
        let lines = log.lines();
        assert_eq!(lines.len(), LINES_MAX);
        assert_eq!((lines[0].at_ms, lines[BEGINNING - 1].at_ms, lines[LINES_MAX - 1].at_ms), (0, 39, 999));
        assert_eq!(lines[BEGINNING].text, format!("… {} lines are not kept …", 1001 - LINES_MAX));
        assert_eq!(decode::<Log>(&encode(&log)), Some(log), "with its sum");
    }

    #[test]
    fn long_lines_are_cut_between_letters() {
        assert_eq!(cut("short".into(), 8), "short");
        assert_eq!(cut("äääääääää".into(), 9), "äää…");
        let mut log = Log::default();
        log.say(0, "ä".repeat(LINE_MAX));
        assert!(log.lines()[0].text.len() <= LINE_MAX);
    }
}
