//! A cluster that does nothing but exchange heartbeats: the engine's own speed, for the lab.

use crate::network::{Network, NetworkError};
use crate::process::{Ctx, Process};
use crate::sim::{Setup, Sim};
use crate::stats::Stats;
use phalanx_core::{Addr, Buf, Duration, Instant};

/// A node that sends a heartbeat to each of its next neighbours once an interval, and counts what it hears.
pub struct Heart {
    beats: Beats,
    next: Instant,
    /// Heartbeats heard.
    pub heard: u64,
}

/// Who beats how often.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beats {
    /// Neighbours that each node sends to: the next ones by number.
    pub peers: u32,
    /// How often.
    pub interval: Duration,
    /// Bytes of a heartbeat.
    pub bytes: usize,
}

/// Ten neighbours, ten times a second, 64 bytes.
pub const USUAL: Beats = Beats { peers: 10, interval: Duration::from_millis(100), bytes: 64 };

impl Process for Heart {
    type Command = ();
    type Note = ();

    fn start(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        self.next = now + Duration(net.rng().below(self.beats.interval.0));
    }

    fn arrived(&mut self, _: Instant, _: Addr, _: Buf, _: &mut Ctx<'_, Self>) {
        self.heard += 1;
    }

    fn expire(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        self.next = now + self.beats.interval;
        for peer in 1..=self.beats.peers {
            let mut beat = Buf::new(0, self.beats.bytes);
            beat.vec_mut().resize(self.beats.bytes, peer as u8);
            net.send(Addr::Local((net.node() + peer) % net.nodes()), beat);
        }
    }

    fn deadline(&self) -> Instant {
        self.next
    }
}

/// What a run of heartbeats came to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Outcome {
    /// Counters.
    pub stats: Stats,
    /// Heartbeats heard by all nodes.
    pub heard: u64,
    /// The trace: the same on any number of threads.
    pub trace: u64,
    /// How long it took, the building of the cluster left out.
    pub wall: std::time::Duration,
}

impl Outcome {
    /// Millions of events a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.stats.events as f64 / self.wall.as_secs_f64() / 1e6
    }
}

/// Runs `nodes` that beat, for `time`.
///
/// # Errors
/// When there are no nodes or no threads.
pub fn run(seed: u64, nodes: u32, threads: usize, beats: Beats, time: Duration) -> Result<Outcome, NetworkError> {
    let setup = Setup { seed, nodes, threads, network: Network::default(), ..Setup::default() };
    let mut sim = Sim::new(&setup, move |_| Heart { beats, next: Instant::NEVER, heard: 0 })?;
    let begin = std::time::Instant::now();
    sim.run_for(time);
    let wall = begin.elapsed();
    let heard = sim.cluster().processes().map(|(_, p)| p.heard).sum();
    Ok(Outcome { stats: sim.stats(), heard, trace: sim.trace(), wall })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_heartbeat_is_heard_and_two_threads_hear_the_same() {
        let time = Duration::from_millis(1_050);
        let one = run(3, 500, 1, USUAL, time).unwrap();
        let two = run(3, 500, 2, USUAL, time).unwrap();
        assert!(one.heard >= 500 * 10 * 10 && one.heard <= one.stats.sent);
        assert_eq!((one.stats, one.heard, one.trace), (two.stats, two.heard, two.trace));
    }
}
