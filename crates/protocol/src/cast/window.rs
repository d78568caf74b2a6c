//! Messages of one source, delivered once and in their order though their ways overlap.

use phalanx_core::{Fingerprint, Instant, Shared};
use std::collections::BTreeMap;

/// Messages that wait for an earlier one, and their bytes; past it the earlier one is given up.
const EARLY_MAX: usize = 1 << 15;
const EARLY_BYTES: usize = 16 << 20;

/// What has come of a source.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Window {
    /// The next one to deliver.
    next: u64,
    early: BTreeMap<u64, Shared>,
    bytes: usize,
    /// Since when one is missing.
    since: Instant,
}

impl Default for Window {
    fn default() -> Self {
        Self { next: 1, early: BTreeMap::new(), bytes: 0, since: Instant::NEVER }
    }
}

impl Window {
    /// It begins after this one.
    pub(super) fn after(number: u64) -> Self {
        Self { next: number.saturating_add(1), ..Self::default() }
    }

    /// All up to this one were delivered, or never come.
    pub(super) fn upto(&self) -> u64 {
        self.next - 1
    }

    /// It was here before, or comes after all that can be counted.
    pub(super) fn has(&self, number: u64) -> bool {
        number < self.next || number == u64::MAX || self.early.contains_key(&number)
    }

    /// Takes a message that was not here before, and gives those that can be delivered now.
    pub(super) fn take(&mut self, now: Instant, number: u64, body: &Shared) -> Vec<Shared> {
        self.early.insert(number, body.clone());
        self.bytes += body.len();
        let mut ready = Vec::new();
        if self.early.len() > EARLY_MAX || self.bytes > EARLY_BYTES {
            self.skip();
        }
        while let Some(body) = self.early.remove(&self.next) {
            self.bytes -= body.len();
            ready.push(body);
            self.next += 1;
        }
        match self.early.is_empty() {
            true => self.since = Instant::NEVER,
            false if !ready.is_empty() || self.since == Instant::NEVER => self.since = now,
            false => {}
        }
        ready
    }

    /// All up to this one have been where they were to be: those that are not here never come. How many, and those that can be
    /// delivered now.
    pub(super) fn pass(&mut self, now: Instant, upto: u64) -> (u64, Vec<Shared>) {
        let (mut missed, mut ready) = (0, Vec::new());
        while self.next <= upto {
            let first = self.early.keys().next().copied().filter(|&first| first <= upto);
            missed += first.unwrap_or(upto + 1) - self.next;
            self.next = first.unwrap_or(upto + 1);
            ready.extend(self.ready(now));
        }
        if missed > 0 && first_is(&self.early, self.next) {
            ready.extend(self.ready(now));
        }
        if self.early.is_empty() {
            self.since = Instant::NEVER;
        }
        (missed, ready)
    }

    /// Since when one is missing.
    pub(super) fn waits_since(&self) -> Instant {
        self.since
    }

    /// Gives up those that are missing before the first that is there; how many.
    pub(super) fn skip(&mut self) -> u64 {
        let first = self.early.keys().next().copied().unwrap_or(self.next);
        first - std::mem::replace(&mut self.next, first)
    }

    /// After a [`Window::skip`]: those that can be delivered now.
    pub(super) fn ready(&mut self, now: Instant) -> Vec<Shared> {
        let Some(body) = self.early.remove(&self.next) else { return Vec::new() };
        self.bytes -= body.len();
        self.take(now, self.next, &body)
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.next).add(&self.early);
        print.instant(self.since);
    }
}

fn first_is(early: &BTreeMap<u64, Shared>, number: u64) -> bool {
    early.first_key_value().is_some_and(|(&first, _)| first == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(window: &mut Window, number: u64) -> Vec<u8> {
        let bodies = window.take(Instant(5), number, &Shared::from(&[number as u8]));
        bodies.iter().map(|b| b[0]).collect()
    }

    #[test]
    fn st_4_once_and_in_order() {
        let mut window = Window::default();
        assert!(numbers(&mut window, 2).is_empty());
        assert!(window.has(2) && !window.has(1));
        assert_eq!(window.waits_since(), Instant(5));
        assert_eq!(numbers(&mut window, 1), [1, 2]);
        assert_eq!((numbers(&mut window, 3), window.waits_since()), (vec![3], Instant::NEVER));
        assert!(window.has(1) && window.has(3));
    }

    #[test]
    fn what_others_have_had_and_we_have_not_never_comes() {
        let mut window = Window::default();
        numbers(&mut window, 1);
        [3, 6, 7, 9].into_iter().for_each(|n| assert!(numbers(&mut window, n).is_empty()));
        let (missed, ready) = window.pass(Instant(9), 5);
        assert_eq!((missed, ready.iter().map(|b| b[0]).collect::<Vec<_>>()), (3, vec![3, 6, 7]));
        assert!(window.has(5) && !window.has(8));
        assert_ne!(window.waits_since(), Instant::NEVER);
        assert_eq!(window.pass(Instant(9), 7).0, 0);
        assert_eq!(numbers(&mut window, 8), [8, 9]);
        assert_eq!(window.pass(Instant(9), 20), (11, Vec::new()));
        assert_eq!((numbers(&mut window, 21), window.waits_since()), (vec![21], Instant::NEVER));
        let mut late = Window::after(7);
        assert!(late.has(7) && !late.has(8));
        assert_eq!((late.pass(Instant(9), 7), numbers(&mut late, 8)), ((0, Vec::new()), vec![8]));
        assert_eq!(late.upto(), 8);
    }

    #[test]
    fn what_never_comes_is_given_up() {
        let mut window = Window::default();
        numbers(&mut window, 4);
        numbers(&mut window, 5);
        assert_eq!(window.skip(), 3);
        assert_eq!(window.ready(Instant(9)).len(), 2);
        assert!(window.has(1), "too late");
        for number in 100..100 + EARLY_MAX as u64 {
            assert!(numbers(&mut window, number).is_empty());
        }
        assert_eq!(numbers(&mut window, 99_999).len(), EARLY_MAX);
    }
}
