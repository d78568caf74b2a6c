//! Which message a rule hits: recurrence, bursts, windows, signals and followers (FI-2, FI-6).
//!
//! A schedule looks at one message after the other and answers yes or no. It draws only when a fault happens, so
//! the messages in between cost a comparison.

use crate::rule::{Lasts, Recurrence, Rule};
use phalanx_core::{Fingerprint, Instant, Rng};
use std::hash::Hasher;

/// The moving part of one rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Schedule {
    rng: Rng,
    opens: Instant,
    closes: Instant,
    next: Next,
    /// Further messages that the present burst hits.
    burst_left: u32,
    times_left: u64,
    awake: Awake,
}

/// What brings the next fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// The fault hits the message that makes this zero.
    InMessages(u64),
    /// The first message not before this.
    At(Instant),
    /// The next message, once the leader has struck.
    WithLeader { struck: bool },
}

/// Whether a signal is needed, and what is left of the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Awake {
    Always,
    Asleep,
    ForMessages(u64),
    Until(Instant),
}

impl Schedule {
    pub(crate) fn new(now: Instant, rule: &Rule, mut rng: Rng) -> Self {
        let opens = now + rule.from;
        Self {
            next: Next::draw(&rule.recurrence, opens, &mut rng),
            rng,
            opens,
            closes: now + rule.until,
            burst_left: 0,
            times_left: rule.times,
            awake: if rule.after.is_some() { Awake::Asleep } else { Awake::Always },
        }
    }

    /// The rule's own generator, for what a fault draws beside its time.
    pub(crate) fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Whether the rule looks at messages now.
    pub(crate) fn is_open(&self, now: Instant) -> bool {
        let awake = match self.awake {
            Awake::Always | Awake::ForMessages(_) => true,
            Awake::Asleep => false,
            Awake::Until(end) => now < end,
        };
        awake && self.opens <= now && now < self.closes && self.times_left > 0
    }

    /// A message passed the filter while the rule was open: is it hit?
    pub(crate) fn strikes(&mut self, now: Instant, rule: &Rule) -> bool {
        if let Awake::ForMessages(left) = self.awake {
            self.awake = if left > 1 { Awake::ForMessages(left - 1) } else { Awake::Asleep };
        }
        if self.burst_left > 0 {
            self.burst_left -= 1;
        } else if self.is_due(now, rule) {
            self.burst_left = rule.burst - 1;
        } else {
            return false;
        }
        self.times_left -= 1;
        true
    }

    /// Counts the message, and draws the next interval when this one is over.
    fn is_due(&mut self, now: Instant, rule: &Rule) -> bool {
        match self.next {
            Next::InMessages(left) if left > 1 => {
                self.next = Next::InMessages(left - 1);
                return false;
            }
            Next::InMessages(_) => self.next = Next::draw(&rule.recurrence, now, &mut self.rng),
            Next::At(at) if now < at => return false,
            Next::At(at) => {
                // From the time the fault was due, not from the message it hit: so the mean is what was
                // configured, however sparse the messages. Intervals that passed without a message are gone.
                let next = Next::draw(&rule.recurrence, at, &mut self.rng);
                self.next = match next {
                    Next::At(at) if at <= now => Next::draw(&rule.recurrence, now, &mut self.rng),
                    next => next,
                };
            }
            Next::WithLeader { struck: false } => return false,
            Next::WithLeader { struck: true } => self.next = Next::WithLeader { struck: false },
        }
        true
    }

    /// The rule that this one follows has struck. Strikes that find no message do not pile up.
    pub(crate) fn leader_struck(&mut self) {
        self.next = Next::WithLeader { struck: true };
    }

    /// The protocol reached the state that the rule waits for: its interval begins now.
    pub(crate) fn signalled(&mut self, now: Instant, rule: &Rule) {
        let Some(after) = &rule.after else {
            return;
        };
        self.awake = match after.lasts {
            Lasts::Messages(n) => Awake::ForMessages(n),
            Lasts::Span(span) => Awake::Until(now + span),
        };
        self.burst_left = 0;
        if !matches!(self.next, Next::WithLeader { .. }) {
            self.next = Next::draw(&rule.recurrence, now, &mut self.rng);
        }
    }

    pub(crate) fn fingerprint(&self, print: &mut Fingerprint) {
        // The generator's state shows in what it draws next.
        print.write_u64(self.rng.clone().u64());
        print.instant(self.opens);
        print.instant(self.closes);
        match self.next {
            Next::InMessages(n) => print.add(&(0u8, n)),
            Next::At(at) => {
                print.instant(at);
                print.add(&1u8)
            }
            Next::WithLeader { struck } => print.add(&(2u8, struck)),
        };
        print.add(&(self.burst_left, self.times_left));
        match self.awake {
            Awake::Always => print.add(&0u8),
            Awake::Asleep => print.add(&1u8),
            Awake::ForMessages(n) => print.add(&(2u8, n)),
            Awake::Until(end) => {
                print.instant(end);
                print.add(&3u8)
            }
        };
    }
}

impl Next {
    fn draw(recurrence: &Recurrence, since: Instant, rng: &mut Rng) -> Self {
        match recurrence {
            Recurrence::Messages(d) => Self::InMessages(d.draw(rng)),
            Recurrence::Chance(p) => Self::InMessages(p.draw(rng)),
            Recurrence::Time(d) => Self::At(since + d.draw(rng)),
            Recurrence::With(_) => Self::WithLeader { struck: false },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{After, Distribution, Kind};
    use phalanx_core::Duration;

    /// The numbers of the messages that `rule` hits when one comes each millisecond.
    fn hits(rule: &Rule, messages: u64, mut before: impl FnMut(u64, &mut Schedule)) -> Vec<u64> {
        let mut schedule = Schedule::new(Instant::ZERO, rule, Rng::new(1, 0));
        (0..messages)
            .filter(|&n| {
                let now = Instant::ZERO + Duration::from_millis(n);
                before(n, &mut schedule);
                schedule.is_open(now) && schedule.strikes(now, rule)
            })
            .collect()
    }

    fn every(n: u64) -> Rule {
        Rule::new(Kind::Drop).recurring(Recurrence::Messages(Distribution::Fixed(n)))
    }

    fn every_ms(n: u64) -> Rule {
        Rule::new(Kind::Drop).recurring(Recurrence::Time(Distribution::Fixed(Duration::from_millis(n))))
    }

    /// FI-2: every n-th message, counted from the first.
    #[test]
    fn counted_in_messages() {
        assert_eq!(hits(&every(3), 10, |_, _| ()), [2, 5, 8]);
        assert_eq!(hits(&Rule { times: 2, ..every(3) }, 10, |_, _| ()), [2, 5]);
    }

    /// FI-2: the first message after each interval; intervals do not drift with the messages they hit.
    #[test]
    fn counted_in_time() {
        assert_eq!(hits(&every_ms(3), 10, |_, _| ()), [3, 6, 9]);
        let sparse =
            Rule::new(Kind::Drop).recurring(Recurrence::Time(Distribution::Fixed(Duration::from_micros(2500))));
        assert_eq!(hits(&sparse, 11, |_, _| ()), [3, 5, 8, 10]);
    }

    /// FI-2: a silence longer than many intervals is followed by one fault, not by all that were missed.
    #[test]
    fn missed_intervals_do_not_pile_up() {
        let rule = every_ms(2);
        let mut schedule = Schedule::new(Instant::ZERO, &rule, Rng::new(1, 0));
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let struck: Vec<bool> = [100, 101, 102, 103].into_iter().map(|ms| schedule.strikes(at(ms), &rule)).collect();
        assert_eq!(struck, [true, false, true, false]);
    }

    /// FI-6: a burst hits messages in a row, and the interval runs between bursts.
    #[test]
    fn bursts_hit_in_a_row() {
        assert_eq!(hits(&Rule { burst: 3, ..every(4) }, 16, |_, _| ()), [3, 4, 5, 9, 10, 11, 15]);
    }

    #[test]
    fn a_window_opens_and_closes() {
        let rule = Rule { from: Duration::from_millis(3), until: Duration::from_millis(6), ..every(1) };
        assert_eq!(hits(&rule, 10, |_, _| ()), [3, 4, 5]);
    }

    /// FI-6: a rule sleeps until its signal, and each signal wakes it for so many messages or so long.
    #[test]
    fn a_signal_wakes_a_rule() {
        let waits = |lasts, rule| Rule { after: Some(After { signal: "wave-started".into(), lasts }), ..rule };
        let at_4_and_8 = |rule: &Rule| {
            let signalled = rule.clone();
            hits(rule, 12, move |n, schedule| {
                if n == 4 || n == 8 {
                    schedule.signalled(Instant::ZERO + Duration::from_millis(n), &signalled);
                }
            })
        };
        assert_eq!(at_4_and_8(&waits(Lasts::Messages(2), every(1))), [4, 5, 8, 9]);
        assert_eq!(at_4_and_8(&waits(Lasts::Span(Duration::from_millis(3)), every(2))), [5, 9]);
        assert_eq!(at_4_and_8(&waits(Lasts::Messages(9), every_ms(1))), [5, 6, 7, 9, 10, 11]);
        // What is left of a burst ends with the wake: the next signal begins afresh.
        assert_eq!(at_4_and_8(&waits(Lasts::Messages(3), Rule { burst: 9, ..every(2) })), [5, 6, 9, 10]);
        assert!(hits(&waits(Lasts::Messages(2), every(1)), 12, |_, _| ()).is_empty());
    }
}
