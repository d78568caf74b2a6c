//! Swarms of managers: a seed becomes a whole scenario of nodes whose jobs outlive them.
//!
//! CM-1 to CM-5: jobs of all policies are asked for, run, fail and end, while replicas, their leader, agents and shepherds crash, pause, are cut
//! off, lie or forget, also while jobs are being prepared. At most one replica lies or has a bad memory at a time, and the others are spared as
//! long as it does (`scenario/subject.rs`): that is what three replicas promise. Crashes come in any number: what was promised is on disk.

use super::draw::{Draw, put};
use phalanx_core::Rng;
use std::fmt::Write;

/// The generator of configurations.
const STREAM: u64 = 0xd1ce_0000_0000_0005;
/// Planned faults that are no injector rules.
const FAULTS_MAX: u64 = 12;
/// Drawn injector rules.
const RULES_MAX: u64 = 3;

/// The text of the scenario that `seed` stands for.
#[must_use]
pub(super) fn draw_managers(seed: u64) -> String {
    let mut out = String::new();
    let draw = Draw { rng: Rng::new(seed, STREAM), nodes: 0, safety_ms: 0, order: false };
    Managers { draw, traitors: false }.scenario(&mut out, seed);
    out
}

struct Managers {
    draw: Draw,
    /// Replicas lie in this run.
    traitors: bool,
}

impl Managers {
    fn scenario(&mut self, out: &mut String, seed: u64) {
        let draw = &mut self.draw;
        draw.nodes = if draw.rng.chance(0.1) { draw.between(1, 2) } else { draw.between(3, 9) };
        draw.safety_ms = if draw.rng.chance(0.3) { draw.between(60_000, 90_000) } else { draw.between(15_000, 40_000) };
        self.traitors = draw.nodes > 3 && draw.rng.chance(0.5);
        // A majority at least: two halves never make two groups.
        let expect = draw.between(draw.nodes / 2 + 1, draw.nodes);
        put!(out, "name = \"swarm-{seed}\"\nengine = \"manager\"\nnodes = {}\nseed = {seed}", draw.nodes);
        put!(out, "start_within = \"{}ms\"", draw.one_of([0, 10, 1_000, 5_000]));
        put!(out, "disk = \"{}us\"\nsocket_packets = {}", draw.one_of([100, 1_000, 10_000]), draw.one_of([64, 256]));
        put!(out, "\n[phases]\nsafety = \"{}ms\"", draw.safety_ms);
        let pace_ms = draw.one_of([2_000, 5_000, 15_000]) * draw.nodes;
        put!(out, "\n[manager]\nexpect = {expect}\nslots = {}\nasks_ms = {pace_ms}", draw.between(1, 4));
        put!(out, "oversubscribe = {}", draw.rng.chance(0.2));
        // Not drawn: what a seed stands for in everything else stays as it was.
        if matches!(seed % 5, 2 | 3) {
            put!(out, "relay = {}", 2 + seed / 5 % 3);
        }
        self.network(out);
        for _ in 0..self.draw.rng.below(FAULTS_MAX + 1) {
            self.fault(out);
        }
        if self.traitors {
            for _ in 0..self.draw.between(1, 4) {
                self.treason(out);
            }
        } else {
            for _ in 0..self.draw.rng.below(RULES_MAX + 1) {
                self.draw.rule(out);
            }
        }
    }

    fn network(&mut self, out: &mut String) {
        let draw = &mut self.draw;
        let latency = match draw.rng.below(4) {
            0 => format!("kind = \"fixed\", us = {}", draw.between(20, 1_000)),
            1 => format!("kind = \"lognormal\", median_us = {}, sigma = 0.6, min_us = 20", draw.between(80, 2_000)),
            2 => format!("kind = \"exponential\", base_us = 200, mean_us = {}", draw.between(500, 5_000)),
            _ => format!("kind = \"uniform\", min_us = 50, max_us = {}", draw.between(100, 2_000)),
        };
        put!(out, "\n[network]\nlatency = {{ {latency} }}");
        if draw.rng.chance(0.3) {
            put!(out, "loss = {:.4}\nduplication = {:.4}", draw.part(0.03), draw.part(0.05));
        }
    }

    fn at(&mut self) -> u64 {
        self.draw.rng.below(self.draw.safety_ms)
    }

    fn lasting(&mut self, out: &mut String, least_ms: u64, most_ms: u64) {
        if self.draw.rng.chance(0.9) {
            put!(out, "for = \"{}ms\"", self.draw.between(least_ms, most_ms));
        }
    }

    /// Whom it hits: often a replica.
    fn victims(&mut self, out: &mut String) {
        match self.draw.rng.below(8) {
            0 | 1 => put!(out, "role = \"replica\"\nrandom = 1"),
            2 => put!(out, "role = \"leader\"\nrandom = 1"),
            3 => put!(out, "random = {}", self.draw.between(1, self.draw.nodes)),
            _ => put!(out, "nodes = [{}]", self.draw.rng.below(self.draw.nodes)),
        }
    }

    fn fault(&mut self, out: &mut String) {
        let at = self.at();
        put!(out, "\n[[fault]]\nat = \"{at}ms\"");
        match self.draw.rng.below(16) {
            0..=2 => {
                put!(out, "kind = \"crash\"");
                self.victims(out);
                let longest = self.draw.one_of([400, 5_000, 20_000]);
                self.lasting(out, 5, longest);
            }
            3..=5 => {
                put!(out, "kind = \"crash-host\"");
                self.victims(out);
                let longest = self.draw.one_of([1_000, 8_000, 30_000]);
                self.lasting(out, 200, longest);
            }
            6 => {
                put!(out, "kind = \"restart\"");
                self.victims(out);
            }
            7 | 8 => {
                put!(out, "kind = \"pause\"");
                self.victims(out);
                let longest = self.draw.one_of([400, 3_000, 15_000]);
                self.lasting(out, 10, longest);
            }
            9 | 10 => self.cut(out),
            11 => {
                let draw = &mut self.draw;
                put!(out, "kind = \"weather\"\nloss = {:.3}", draw.part(0.3));
                put!(out, "duplication = {:.3}\nreorder = {:.3}", draw.part(0.5), draw.part(0.5));
                put!(out, "reorder_by = \"{}ms\"\nslower = \"{}ms\"", draw.rng.below(100), draw.one_of([0, 0, 5, 50]));
                self.lasting(out, 50, 5_000);
            }
            12 => {
                let (inward, outward) = self.draw.one_of([(0.8, 0.0), (0.0, 0.8), (1.0, 0.0), (0.0, 1.0), (0.3, 0.3)]);
                put!(out, "kind = \"loss\"\ninward = {inward}\noutward = {outward}");
                self.victims(out);
                self.lasting(out, 50, 15_000);
            }
            13 | 14 => {
                put!(out, "kind = \"kill-shepherds\"");
                self.victims(out);
                if self.draw.rng.chance(0.3) {
                    put!(out, "every = \"{}ms\"", self.draw.between(500, 8_000));
                }
            }
            _ => match self.draw.rng.chance(0.6) {
                true => {
                    let about = self.draw.rng.below(self.draw.nodes);
                    put!(out, "kind = \"doubt\"\nnodes = \"all\"\nagainst = [{about}]");
                }
                false => {
                    put!(out, "kind = \"stream-reset\"");
                    self.victims(out);
                }
            },
        }
    }

    fn cut(&mut self, out: &mut String) {
        let nodes = self.draw.nodes;
        put!(out, "kind = \"partition\"\ndirection = \"{}\"", self.draw.one_of(["both", "both", "out", "in"]));
        match self.draw.rng.below(4) {
            0 if nodes > 1 => put!(out, "random = {}", self.draw.between(1, nodes - 1)),
            1 if nodes > 1 => {
                let first = self.draw.rng.below(nodes);
                put!(out, "nodes = [{first}]\nagainst = [{}]", (first + self.draw.between(1, nodes - 1)) % nodes);
            }
            _ => self.victims(out),
        }
        self.lasting(out, 100, 25_000);
    }

    /// CM-3: a replica lies to agents, or its memory goes bad.
    fn treason(&mut self, out: &mut String) {
        let (at, kind) = (self.draw.between(2_000, self.draw.safety_ms - 1), self.draw.one_of(["lie", "corrupt"]));
        let who = self.draw.one_of(["replica", "replica", "leader"]);
        put!(out, "\n[[fault]]\nat = \"{at}ms\"\nkind = \"{kind}\"\nrole = \"{who}\"\nrandom = 1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Engine, Scenario};
    use std::collections::BTreeSet;

    /// Whatever is drawn can be read, and every kind of fault and of rule comes up.
    #[test]
    fn what_is_drawn_makes_sense_and_leaves_nothing_out() {
        let mut words = BTreeSet::new();
        for seed in 0..1_000 {
            let text = draw_managers(seed);
            let scenario = Scenario::parse("drawn", &text, &[] as &[&str]).unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!((scenario.setup.seed, scenario.engine()), (seed, Engine::Manager));
            words.extend(text.split('"').skip(1).step_by(2).map(str::to_owned));
        }
        let faults = super::super::entry::KINDS;
        // What ends by itself needs neither of the first two; leases need clocks that go, and promises disks that keep them.
        let others = ["heal", "resume", "clock", "disk", "cast", "join", "leave"];
        let drawn = faults.iter().filter(|k| !others.contains(k));
        let rules = phalanx_fault::KindName::ALL.map(phalanx_fault::KindName::name);
        for word in drawn.chain(&rules).chain(&["replica", "leader", "wire", "plain", "out", "in", "both", "all"]) {
            assert!(words.contains(*word), "{word} never came up");
        }
        assert_eq!(draw_managers(7), draw_managers(7));
        assert_ne!(draw_managers(7), draw_managers(8));
    }
}
