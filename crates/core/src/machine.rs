//! The contract of every protocol: a state machine without sockets, clock, threads or randomness of its own.

use crate::time::Instant;
use std::hash::{Hash, Hasher};

/// A protocol as a state machine. Facts go in, decisions come out; the driver owns time and the queues.
///
/// `Clone + Eq` and [`Machine::fingerprint`] let a model checker explore the very code that runs in the daemon.
///
/// Outputs may borrow from the machine or from the input (`Output<'a>`), so that a message travels from the
/// socket's buffer to the application without being copied: the sink sees it for the length of the call.
pub trait Machine: Clone + Eq {
    /// A fact, in the past tense.
    type Input<'a>;
    /// A decision.
    type Output<'a>;

    /// A fact arrives. Decisions go to `out`, which belongs to the driver: no queues inside a machine.
    fn handle<S>(&mut self, now: Instant, input: Self::Input<'_>, out: &mut S)
    where
        S: for<'a> Sink<Self::Output<'a>>;

    /// [`Machine::deadline`] has passed.
    fn expire<S>(&mut self, now: Instant, out: &mut S)
    where
        S: for<'a> Sink<Self::Output<'a>>;

    /// When to call [`Machine::expire`] next; [`Instant::NEVER`] when idle.
    fn deadline(&self) -> Instant;

    /// Feeds the state to `print`, with every instant relative to now: two states that differ only in when
    /// they happen are one to a model checker.
    fn fingerprint(&self, print: &mut Fingerprint);
}

/// Where a machine puts its decisions.
pub trait Sink<T> {
    /// Takes one decision.
    fn push(&mut self, item: T);
}

impl<T> Sink<T> for Vec<T> {
    fn push(&mut self, item: T) {
        Vec::push(self, item);
    }
}

/// A sink that calls a function with each decision.
pub struct Each<F>(pub F);

impl<T, F: FnMut(T)> Sink<T> for Each<F> {
    fn push(&mut self, item: T) {
        (self.0)(item);
    }
}

/// A hash of a machine's state that does not depend on when the state is looked at.
///
/// Ordinary fields go in through [`Hash`], instants through [`Fingerprint::instant`]. The function is fixed
/// (FNV-1a folded by a multiply), so that fingerprints agree between processes and versions of Rust.
#[derive(Clone, Copy, Debug)]
pub struct Fingerprint {
    now: Instant,
    state: u64,
}

impl Fingerprint {
    /// An empty fingerprint taken at `now`.
    #[must_use]
    pub fn at(now: Instant) -> Self {
        Self { now, state: 0xcbf2_9ce4_8422_2325 }
    }

    /// The fingerprint of one machine.
    #[must_use]
    pub fn of<M: Machine>(machine: &M, now: Instant) -> u64 {
        let mut print = Self::at(now);
        machine.fingerprint(&mut print);
        print.finish()
    }

    /// Adds an instant as its distance from now; [`Instant::NEVER`] stays itself.
    pub fn instant(&mut self, t: Instant) {
        let relative = if t == Instant::NEVER { u64::MAX } else { t.0.wrapping_sub(self.now.0) };
        self.write_u64(relative);
    }

    /// Adds anything that hashes.
    pub fn add(&mut self, value: &impl Hash) -> &mut Self {
        value.hash(self);
        self
    }
}

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        for &b in rest {
            self.state = (self.state ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn write_u64(&mut self, n: u64) {
        let mixed = (self.state ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.state = mixed ^ (mixed >> 29);
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    /// The smallest machine: rings once, a second after it was wound.
    #[derive(Clone, PartialEq, Eq)]
    struct Alarm {
        rings_at: Instant,
    }

    impl Machine for Alarm {
        type Input<'a> = ();
        type Output<'a> = &'static str;

        fn handle<S: for<'a> Sink<&'static str>>(&mut self, now: Instant, (): (), _: &mut S) {
            self.rings_at = now + Duration::from_secs(1);
        }

        fn expire<S: for<'a> Sink<&'static str>>(&mut self, _: Instant, out: &mut S) {
            self.rings_at = Instant::NEVER;
            out.push("ring");
        }

        fn deadline(&self) -> Instant {
            self.rings_at
        }

        fn fingerprint(&self, print: &mut Fingerprint) {
            print.instant(self.rings_at);
        }
    }

    #[test]
    fn a_machine_is_driven_by_facts_and_deadlines_alone() {
        let mut alarm = Alarm { rings_at: Instant::NEVER };
        let mut out = Vec::new();
        alarm.handle(Instant(5), (), &mut out);
        assert_eq!(alarm.deadline(), Instant(1_000_000_005));
        alarm.expire(alarm.deadline(), &mut out);
        assert_eq!(out, ["ring"]);
    }

    #[test]
    fn fingerprints_ignore_when_but_not_how_long() {
        let wound_at = |t| {
            let mut alarm = Alarm { rings_at: Instant::NEVER };
            alarm.handle(t, (), &mut Vec::new());
            alarm
        };
        let (early, late) = (wound_at(Instant(10)), wound_at(Instant(777)));
        assert_eq!(Fingerprint::of(&early, Instant(10)), Fingerprint::of(&late, Instant(777)));
        assert_ne!(Fingerprint::of(&early, Instant(10)), Fingerprint::of(&early, Instant(11)));
    }
}
