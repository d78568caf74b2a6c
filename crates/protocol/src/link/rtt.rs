//! Round trips as measured, and the retransmission timeout that follows from them.

use phalanx_core::Duration;

/// Before the first measurement: longer than any cluster network, shorter than anybody's patience.
const INITIAL: Duration = Duration::from_millis(50);
/// A timeout below the scheduling noise of a busy host would only make duplicates.
const SHORTEST: Duration = Duration::from_millis(3);
/// A probe costs one packet: it may come sooner than a timeout, but not in the noise of a busy host.
const SHORTEST_PROBE: Duration = Duration::from_micros(600);
/// The first sample counts for no more.
const LONGEST_SAMPLE: Duration = Duration::from_millis(200);
/// Waits do not double beyond this (or a slow network's own timeout): under 40 % loss each way a peer must get
/// some 25 chances before patience ends, or the living are taken for dead.
const LONGEST: Duration = Duration::from_millis(200);

/// Half a megabyte in so short a round trip is 40 Gb/s.
const NEAR: Duration = Duration::from_micros(100);

/// Smoothed round trip and its variation, as RFC 6298 computes them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Rtt {
    smoothed: Duration,
    variation: Duration,
    least: Duration,
}

impl Rtt {
    /// Takes a measurement that no retransmission made ambiguous.
    pub(crate) fn sample(&mut self, rtt: Duration) {
        // A zero round trip (simulated networks) still counts as measured. One that is out of all proportion spans a sleep
        // of ours: it counts as slow, not as the network's way.
        let most = if self.smoothed == Duration::ZERO { LONGEST_SAMPLE } else { (self.smoothed * 8).max(INITIAL) };
        let rtt = Duration(rtt.0.clamp(1, most.0));
        if self.smoothed == Duration::ZERO {
            (self.smoothed, self.variation, self.least) = (rtt, rtt / 2, rtt);
            return;
        }
        let error = Duration(self.smoothed.0.abs_diff(rtt.0));
        self.variation = (self.variation * 3 + error) / 4;
        self.smoothed = (self.smoothed * 7 + rtt) / 8;
        self.least = self.least.min(rtt);
    }

    /// True when the peer is so near that half a window keeps any link busy; more would only wait in queues.
    pub(crate) fn is_near(&self) -> bool {
        self.least < NEAR
    }

    /// The smoothed round trip; zero before the first measurement.
    pub(crate) fn smoothed(&self) -> Duration {
        self.smoothed
    }

    /// How long to wait for an acknowledgement before the first packet that lacks one is sent again on suspicion.
    pub(crate) fn probe(&self, ack_delay: Duration) -> Duration {
        if self.smoothed == Duration::ZERO {
            return INITIAL;
        }
        (self.smoothed * 2 + self.variation * 2 + ack_delay).max(SHORTEST_PROBE).min(self.timeout(ack_delay, 0))
    }

    /// How long to wait for an acknowledgement that the peer may delay by `ack_delay`, after `backoff` waits in vain.
    pub(crate) fn timeout(&self, ack_delay: Duration, backoff: u32) -> Duration {
        let base = if self.smoothed == Duration::ZERO {
            INITIAL
        } else {
            (self.smoothed + self.variation * 4 + ack_delay).max(SHORTEST)
        };
        (base * (1 << backoff.min(16))).min(LONGEST.max(base))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_follows_the_network() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout(Duration::ZERO, 0), INITIAL);
        (0..100).for_each(|_| rtt.sample(Duration::from_millis(20)));
        let steady = rtt.timeout(Duration::from_millis(1), 0);
        assert!((21..30).contains(&steady.as_millis()), "{steady}");
        rtt.sample(Duration::from_millis(60));
        assert!(rtt.timeout(Duration::from_millis(1), 0) > steady, "variation widens it");
        assert_eq!(rtt.timeout(Duration::ZERO, 40), LONGEST);
        (0..200).for_each(|_| rtt.sample(Duration::from_micros(5)));
        assert_eq!(rtt.timeout(Duration::ZERO, 0), SHORTEST);
    }
}
