//! The journal: what happened lately, for those who listen and for those who come back.
//!
//! Readers ask for what follows an event's number; who was away for too long is told that it missed something
//! ([`What::Gap`]). The daemon's loop never waits for a reader.

use phalanx_api::{Event, What};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// Events that are kept; older ones are forgotten.
pub const KEPT: usize = 4096;

/// Numbers that a run has for each second since the run before it. A reader that comes back after a restart must not find
/// other events under the numbers that it has seen.
const EACH_SECOND: u64 = 1000;

/// What happened lately.
#[derive(Clone, Debug)]
pub struct Journal {
    /// By reference: whoever reads many must not keep the lock that the daemon's loop writes under.
    kept: Arc<Mutex<VecDeque<Arc<Event>>>>,
    last: watch::Sender<u64>,
    before: u64,
}

impl Default for Journal {
    fn default() -> Self {
        Self::after(0)
    }
}

impl Journal {
    /// The journal of a run with this incarnation: higher than in all runs before, and never far from the clock's seconds.
    #[must_use]
    pub fn of(incarnation: u64) -> Self {
        Self::after(incarnation.saturating_mul(EACH_SECOND))
    }

    fn after(before: u64) -> Self {
        Self { kept: Arc::default(), last: watch::Sender::new(before), before }
    }

    /// How much has happened so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.last() - self.before
    }

    /// Something happened. Says what it is called from now on.
    pub fn add(&self, what: What) -> Arc<Event> {
        let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        let mut kept = self.lock();
        let event = Arc::new(Event { id: self.last() + 1, at_ms, what });
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back(Arc::clone(&event));
        self.last.send_replace(event.id);
        event
    }

    /// What followed event `after`, at most `most`. When some of it is forgotten, or `after` is of another run, a gap comes
    /// first.
    #[must_use]
    pub fn since(&self, after: u64, most: usize) -> Vec<Arc<Event>> {
        let kept = self.lock();
        let last = kept.back().map_or(self.before, |e| e.id);
        let first = kept.front().map_or(last + 1, |e| e.id);
        let mut events = Vec::new();
        let from = if after + 1 < first || after > last {
            let at_ms = kept.front().map_or(0, |e| e.at_ms);
            events.push(Arc::new(Event { id: first - 1, at_ms, what: What::Gap }));
            first
        } else {
            after + 1
        };
        events.extend(kept.iter().skip((from - first) as usize).take(most).cloned());
        events
    }

    /// Waits until something follows event `after`.
    pub async fn wait(&self, after: u64) {
        let mut last = self.last.subscribe();
        // The sender lives as long as we do.
        let _ = last.wait_for(|&last| last != after).await;
    }

    /// The number of the oldest event that is kept; of the next one when there is none.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.lock().front().map_or_else(|| self.last() + 1, |e| e.id)
    }

    /// The number of the last event.
    #[must_use]
    pub fn last(&self) -> u64 {
        *self.last.borrow()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Event>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(n: usize) -> What {
        What::Attribute {
            name: "n".into(),
            key: n.to_string(),
            value: None,
            identity: String::new(),
            opaque: false,
            service: None,
        }
    }

    fn ids(events: &[Arc<Event>]) -> Vec<u64> {
        events.iter().map(|e| e.id).collect()
    }

    #[test]
    fn a_reader_resumes_where_it_was() {
        let journal = Journal::default();
        assert!(journal.since(0, 9).is_empty());
        (0..5).for_each(|n| assert_eq!(journal.add(what(n)).id, n as u64 + 1));
        assert_eq!(ids(&journal.since(2, 9)), [3, 4, 5]);
        assert_eq!(ids(&journal.since(0, 2)), [1, 2]);
        assert!(journal.since(5, 9).is_empty());
    }

    #[test]
    fn who_missed_something_is_told_so() {
        let journal = Journal::default();
        (0..KEPT + 10).for_each(|n| _ = journal.add(what(n)));
        let events = journal.since(3, 2);
        assert_eq!((&events[0].what, ids(&events[1..])), (&What::Gap, vec![11, 12]));
        let other_run = journal.since(1 << 40, 1);
        assert_eq!((&other_run[0].what, other_run[1].id), (&What::Gap, 11));
        assert_eq!(Journal::default().since(7, 1)[0].what, What::Gap);
        let next_run = Journal::after(20_000);
        assert_eq!(next_run.since(3, 9)[0].what, What::Gap, "numbers do not come again");
        assert!(next_run.since(20_000, 9).is_empty());
        assert_eq!((next_run.add(what(0)).id, next_run.count(), next_run.first()), (20_001, 1, 20_001));
    }
}
