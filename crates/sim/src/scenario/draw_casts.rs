//! Swarms of casts: a seed becomes a whole scenario of members that cast while others die.
//!
//! Sizes, network and faults are those of the sweep ([`crate::member::sweep`]). Beside them nodes cast, now and then and in bursts, also in the
//! very moment of a fault; and the root of the tree, nodes within it and sources die a moment after a cast, one after the other.

use super::draw::{Draw, put};
use super::draw_members::what;
use crate::member::sweep::{Act, Drawn, ROUGH};
use phalanx_core::{Duration, Instant, Rng};
use std::fmt::Write;

/// The generator of what the sweep does not draw.
const STREAM: u64 = 0xd1ce_0000_0000_0004;
/// Members at most.
const MOST: u32 = 40;
/// Those who die together while a cast is under way, at most so many times.
const CHAINS_MAX: u64 = 5;

/// The text of the scenario that `seed` stands for.
#[must_use]
pub(super) fn draw_casts(seed: u64) -> String {
    let mut out = String::new();
    let drawn = Drawn::new(seed, MOST);
    let draw = Draw { rng: Rng::new(seed, STREAM), nodes: drawn.nodes.into(), safety_ms: 0, order: false };
    Casts { draw }.scenario(&mut out, seed, &drawn);
    out
}

struct Casts {
    draw: Draw,
}

impl Casts {
    fn scenario(&mut self, out: &mut String, seed: u64, drawn: &Drawn) {
        let draw = &mut self.draw;
        put!(out, "name = \"swarm-{seed}\"\nengine = \"cast\"\nnodes = {}\nseed = {seed}", drawn.nodes);
        put!(out, "profile = \"{}\"", draw.one_of(["lan", "lan", "lan", "lan", "wan", "local"]));
        put!(out, "by_reference = {}\nstart_within = \"{}ns\"", draw.rng.chance(0.3), drawn.start_within.0);
        put!(out, "\n[network]\nlatency = {{ kind = \"uniform\", min_us = 100, max_us = {:.3} }}", drawn.slowest_us);
        put!(out, "loss = {:.6}\n\n[zones]\nseeds = {}", drawn.loss, drawn.seeds);
        put!(out, "\n[casts]\nfan_out = {}", draw.one_of([2, 2, 3, 3, 8]));
        put!(out, "repair = \"{}\"", draw.one_of(["lazy", "lazy", "lazy", "at-once", "manual"]));
        put!(out, "\n[phases]\nsafety = \"{}ns\"\nrestart = {}", ROUGH.0, drawn.restart);
        self.now_and_then(out);
        let end = Instant::ZERO + ROUGH;
        for (at, act) in drawn.acts.iter().filter(|a| a.0 < end) {
            let Some(what) = what(act) else { continue };
            put!(out, "\n[[fault]]\nat = \"{}ns\"\n{what}", at.0);
            if matches!(act, Act::Fault(_)) && self.draw.rng.chance(0.6) {
                let ahead = self.moment();
                let sources = self.sources();
                self.cast(out, at.since(Instant::ZERO + ahead), &sources);
            }
        }
        for _ in 0..self.draw.rng.below(CHAINS_MAX + 1) {
            self.chain(out);
        }
    }

    fn now_and_then(&mut self, out: &mut String) {
        let (at, pace) = (self.draw.rng.below(3_000), self.draw.one_of([40, 200, 1_000, 5_000]));
        let every = self.draw.between(pace, pace * 2);
        put!(out, "\n[[fault]]\nat = \"{at}ms\"\nkind = \"cast\"\nrandom = 1\nevery = \"{every}ms\"");
    }

    /// Less than a cast is under way, or no time at all.
    fn moment(&mut self) -> Duration {
        Duration::from_micros(self.draw.one_of([0, 1, 150, 400, 1_000, 3_000]))
    }

    fn sources(&mut self) -> String {
        match self.draw.rng.below(4) {
            0 => "role = \"root\"".to_owned(),
            1 => format!("random = {}", self.draw.between(2, 5)),
            _ => format!("nodes = [{}]", self.draw.rng.below(self.draw.nodes)),
        }
    }

    fn cast(&mut self, out: &mut String, at: Duration, sources: &str) {
        // Most fit into a packet.
        let bytes = self.draw.one_of([16, 100, 100, 1_000, 20_000]);
        put!(out, "\n[[fault]]\nat = \"{}ns\"\nkind = \"cast\"\n{sources}\nbytes = {bytes}", at.0);
    }

    /// A cast, and deaths of those whom it comes by, a moment after it and after each other.
    fn chain(&mut self, out: &mut String) {
        let mut at = Duration::from_millis(self.draw.between(1_000, ROUGH.as_millis() - 200));
        let sources = self.sources();
        for _ in 0..self.draw.between(1, 3) {
            self.cast(out, at, &sources);
        }
        for _ in 0..self.draw.between(1, 3) {
            at = at + self.moment();
            let whom = match self.draw.rng.below(6) {
                0 | 1 => "role = \"root\"".to_owned(),
                2 | 3 => format!("role = \"inner\"\nrandom = {}", self.draw.between(1, 3)),
                4 => sources.clone(),
                _ => format!("random = {}", self.draw.between(1, 2)),
            };
            let kind = self.draw.one_of(["crash", "crash", "crash-host", "pause"]);
            put!(out, "\n[[fault]]\nat = \"{}ns\"\nkind = \"{kind}\"\n{whom}", at.0);
            if kind == "pause" || self.draw.rng.chance(0.5) {
                let longest = self.draw.one_of([20, 1_000, 8_000]);
                put!(out, "for = \"{}ms\"", self.draw.between(5, longest));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Engine, Scenario};
    use std::collections::BTreeSet;

    /// Whatever is drawn can be read, and each fault, role and policy that is meant to come up does.
    #[test]
    fn what_is_drawn_makes_sense_and_leaves_nothing_out() {
        let mut words = BTreeSet::new();
        for seed in 0..400 {
            let text = draw_casts(seed);
            let scenario = Scenario::parse("drawn", &text, &[] as &[&str]).unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!((scenario.setup.seed, scenario.engine()), (seed, Engine::Cast));
            words.extend(text.split('"').skip(1).step_by(2).map(str::to_owned));
        }
        let kinds = super::super::entry::KINDS;
        let drawn = kinds
            .iter()
            .filter(|k| !matches!(**k, "disk" | "inject" | "join" | "doubt" | "kill-shepherds" | "lie" | "corrupt"));
        for word in drawn.chain(&["lan", "wan", "local", "root", "inner", "lazy", "at-once", "manual"]) {
            assert!(words.contains(*word), "{word} never came up");
        }
        assert_eq!(draw_casts(7), draw_casts(7));
        assert_ne!(draw_casts(7), draw_casts(8));
    }
}
