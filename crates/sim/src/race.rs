//! What the lab calls to measure the engine: the queue against `BinaryHeap`, and a cluster that only heartbeats.
//!
//! The race is the hold model: a fixed number of pending events, each taken one replaced by one at a later time.
//! Both sides see the same events of 48 bytes and must give the same checksum, or the race is void.

use crate::queue::{Event, Queue};
use phalanx_core::{Instant, Rng};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// What is ahead of the events of a race: most of the time a network's latency, sometimes a timer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mix {
    /// Latency of a message: evenly between half of it and twice of it.
    pub latency_ns: u64,
    /// Part of the events that are timers.
    pub timers: f64,
    /// Timers end within this time.
    pub timer_ns: u64,
}

/// A cluster's usual mix: 200 µs on the network, one event in ten a timer within a second.
pub const USUAL: Mix = Mix { latency_ns: 200_000, timers: 0.1, timer_ns: 1_000_000_000 };

/// How one side of the race did.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Lap {
    /// Events taken and replaced.
    pub events: u64,
    /// How long it took.
    pub wall: Duration,
    /// Of the order in which they came out.
    pub checksum: u64,
}

impl Lap {
    /// Millions of events a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.events as f64 / self.wall.as_secs_f64() / 1e6
    }
}

/// Races our queue against `BinaryHeap`: `pending` events held, `events` taken. Returns (ours, the heap's).
///
/// # Panics
/// When the two disagree on the order of events.
#[must_use]
pub fn queue(seed: u64, pending: usize, events: u64, mix: Mix) -> (Lap, Lap) {
    let mut ours = Queue::new();
    let first = hold(seed, pending, events, mix, &mut ours, Queue::push, Queue::pop);
    let mut heap = BinaryHeap::with_capacity(pending);
    let second =
        hold(seed, pending, events, mix, &mut heap, |h, e| h.push(Reverse(Ordered(e))), |h| Some(h.pop()?.0.0));
    assert_eq!(first.checksum, second.checksum, "the two queues disagree: the race is void");
    (first, second)
}

type Load = [u64; 3];

fn hold<Q>(
    seed: u64,
    pending: usize,
    events: u64,
    mix: Mix,
    queue: &mut Q,
    push: impl Fn(&mut Q, Event<Load>),
    pop: impl Fn(&mut Q) -> Option<Event<Load>>,
) -> Lap {
    let mut rng = Rng::new(seed, 0);
    let mut count = 0u32;
    let next = |now: Instant, number: u32, rng: &mut Rng| {
        let delay = if rng.chance(mix.timers) {
            rng.below(mix.timer_ns)
        } else {
            mix.latency_ns / 2 + rng.below(mix.latency_ns * 3 / 2)
        };
        Event { at: Instant(now.0 + delay), from: number, number, to: number, what: [delay; 3] }
    };
    for _ in 0..pending {
        let event = next(Instant::ZERO, count, &mut rng);
        count += 1;
        push(queue, event);
    }
    let mut checksum = 0u64;
    let begin = std::time::Instant::now();
    for _ in 0..events {
        let event = pop(queue).expect("the number of pending events is held");
        checksum = (checksum ^ event.at.0 ^ u64::from(event.number) ^ event.what[1]).rotate_left(7);
        let event = next(event.at, count, &mut rng);
        count = count.wrapping_add(1);
        push(queue, event);
    }
    Lap { events, wall: begin.elapsed(), checksum }
}

/// An event in the queue's order, for the heap.
struct Ordered(Event<Load>);

impl Ordered {
    fn key(&self) -> (Instant, u32, u32, u32) {
        (self.0.at, self.0.from, self.0.number, self.0.to)
    }
}

impl PartialEq for Ordered {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures are the lab's business; here both sides must have run the same race.
    #[test]
    fn both_sides_take_the_same_events() {
        let (ours, heap) = queue(1, 5_000, 50_000, USUAL);
        assert_eq!((ours.events, ours.checksum), (heap.events, heap.checksum));
        assert_ne!(queue(2, 5_000, 50_000, USUAL).0.checksum, ours.checksum);
    }
}
