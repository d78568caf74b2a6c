//! Swarms of jobs: a seed becomes a whole scenario of tasks that share a view.
//!
//! RV-1 to RV-9 under everything that can go wrong: crashes of tasks, processes and hosts, of roots and their heirs one after the
//! other, restarts, joins in the midst of it, pauses, cuts of all kinds, bad weather, wrong clocks, broken streams, verdicts of the zone that
//! are right, late or wrong, and all kinds of the fault injector at both points.
//!
//! ⚠ A job of which half crashes before anybody notices waits for ever (RV-6), and such a run tests little. So most runs keep a majority of
//! the newest view alive (`job.keep_majority`).

use super::draw::{Draw, put};
use phalanx_core::Rng;
use std::fmt::Write;

/// The generator of configurations.
const STREAM: u64 = 0xd1ce_0000_0000_0003;
/// Planned faults that are no injector rules.
const FAULTS_MAX: u64 = 8;
/// Drawn injector rules.
const RULES_MAX: u64 = 4;
/// Runs in which majorities die.
const WILD: f64 = 0.01;
/// Runs with real cryptography.
const REAL_SEALS: f64 = 0.02;

/// The text of the scenario that `seed` stands for.
#[must_use]
pub(super) fn draw_jobs(seed: u64) -> String {
    let mut out = String::new();
    let draw = Draw { rng: Rng::new(seed, STREAM), nodes: 0, safety_ms: 0, order: false };
    Jobs { draw, tasks: Vec::new() }.scenario(&mut out, seed);
    out
}

struct Jobs {
    draw: Draw,
    /// How many of each host.
    tasks: Vec<u32>,
}

impl Jobs {
    fn scenario(&mut self, out: &mut String, seed: u64) {
        let largest = self.draw.one_of([3, 6, 6, 12]);
        let hosts = self.draw.between(2, largest);
        let crowd = self.draw.one_of([1, 2, 4]);
        self.tasks = (0..hosts).map(|_| self.draw.between(1, crowd) as u32).collect();
        // Some have no task at first.
        self.draw.nodes = hosts + self.draw.rng.below(3);
        self.draw.safety_ms = if self.draw.rng.chance(0.25) { 30_000 } else { self.draw.between(4_000, 14_000) };
        let founded = self.draw.rng.chance(0.4);
        put!(out, "name = \"swarm-{seed}\"\nengine = \"view\"\nnodes = {}\nseed = {seed}", self.draw.nodes);
        put!(out, "seals = \"{}\"", if self.draw.rng.chance(REAL_SEALS) { "real" } else { "fake" });
        put!(out, "start_within = \"{}ms\"", self.draw.one_of([0, 0, 20, 1_000]));
        put!(out, "socket_packets = {}", self.draw.one_of([16, 256]));
        let patience_ms = self.network(out);
        put!(out, "\n[phases]\nsafety = \"{}ms\"\nrestart = {}", self.draw.safety_ms, self.draw.rng.chance(0.6));
        self.job(out, founded, patience_ms);
        for _ in 0..self.draw.rng.below(FAULTS_MAX + 1) {
            self.fault(out);
        }
        for _ in 0..self.draw.rng.below(RULES_MAX + 1) {
            self.draw.rule(out);
        }
    }

    /// What lies between the hosts, and how long an answer may take there.
    fn network(&mut self, out: &mut String) -> u64 {
        let draw = &mut self.draw;
        let (latency, slow) = match draw.rng.below(5) {
            0 => (format!("kind = \"fixed\", us = {}", draw.between(20, 1_000)), false),
            1 => (
                format!("kind = \"lognormal\", median_us = {}, sigma = 0.6, min_us = 20", draw.between(80, 2_000)),
                false,
            ),
            2 => (format!("kind = \"exponential\", base_us = 200, mean_us = {}", draw.between(1_000, 15_000)), true),
            _ => (format!("kind = \"uniform\", min_us = 50, max_us = {}", draw.between(100, 2_000)), false),
        };
        put!(out, "\n[network]\nlatency = {{ {latency} }}");
        let lossy = draw.rng.chance(0.2);
        if lossy {
            put!(out, "loss = {:.4}\nduplication = {:.4}", draw.part(0.02), draw.part(0.05));
        }
        if lossy || slow { draw.one_of([500, 1_000]) } else { draw.one_of([100, 300, 500]) }
    }

    fn job(&mut self, out: &mut String, founded: bool, patience_ms: u64) {
        let mut places: Vec<u64> =
            (0..).zip(&self.tasks).flat_map(|(h, &n)| std::iter::repeat_n(h, n as usize)).collect();
        if self.draw.rng.chance(0.7) {
            self.draw.rng.shuffle(&mut places);
        }
        let list = places.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let draw = &mut self.draw;
        put!(out, "\n[job]\nplaces = [{list}]\narity = {}\nfounded = {founded}", draw.one_of([2, 2, 4, 8]));
        put!(out, "on_partition = \"{}\"", draw.one_of(["primary", "primary", "primary", "continue", "abort"]));
        put!(out, "patience_ms = {patience_ms}\ninquiry_ms = {}", draw.one_of([500, 2_000]));
        put!(out, "retry_ms = {}\nhooks = {}", draw.one_of([20, 200]), draw.rng.chance(0.2));
        put!(out, "rejoin_ms = {}\ntalk_ms = {}", draw.one_of([100, 1_000]), draw.one_of([20, 100, 500]));
        put!(out, "keep_majority = {}", !draw.rng.chance(WILD));
        if draw.rng.chance(0.3) {
            let (after, deaths, host) = (draw.rng.below(6), draw.between(1, 4), draw.rng.chance(0.5));
            let moment = draw.one_of(["begun", "settled", "installed"]);
            put!(out, "chain = {{ after = {after}, deaths = {deaths}, moment = \"{moment}\", host = {host} }}");
        }
    }

    fn host(&mut self) -> u64 {
        self.draw.rng.below(self.tasks.len() as u64)
    }

    fn at(&mut self) -> u64 {
        self.draw.rng.below(self.draw.safety_ms)
    }

    fn lasting(&mut self, out: &mut String, least_ms: u64, most_ms: u64) {
        if self.draw.rng.chance(0.8) {
            put!(out, "for = \"{}ms\"", self.draw.between(least_ms, most_ms));
        }
    }

    fn fault(&mut self, out: &mut String) {
        let at = self.at();
        match self.draw.rng.below(17) {
            0..=2 => self.crash(out, at),
            3 => self.roots(out, at),
            4 => {
                let host = self.host();
                put!(out, "\n[[fault]]\nat = \"{at}ms\"\nkind = \"restart\"\nnodes = [{host}]");
            }
            5 | 6 => {
                put!(out, "\n[[fault]]\nat = \"{at}ms\"\nkind = \"pause\"");
                self.victims(out);
                let longest = self.draw.one_of([400, 3_000, 10_000]);
                self.lasting(out, 10, longest);
            }
            7 | 8 => self.cut(out, at),
            9 => {
                let draw = &mut self.draw;
                put!(out, "\n[[fault]]\nat = \"{at}ms\"\nkind = \"weather\"\nloss = {:.3}", draw.part(0.3));
                put!(out, "duplication = {:.3}\nreorder = {:.3}", draw.part(0.5), draw.part(0.5));
                put!(out, "reorder_by = \"{}ms\"\nslower = \"{}ms\"", draw.rng.below(100), draw.one_of([0, 0, 5, 50]));
                self.lasting(out, 50, 5_000);
            }
            10 => {
                let draw = &mut self.draw;
                let rate = if draw.rng.chance(0.5) { 0.8 + 0.4 * draw.rng.unit() } else { 0.3 + 2.0 * draw.rng.unit() };
                put!(out, "\n[[fault]]\nat = \"{at}ms\"\nkind = \"clock\"\nrate = {rate:.3}");
                if draw.rng.chance(0.5) {
                    put!(out, "step = \"{}{}ms\"", draw.one_of(["", "-"]), draw.rng.below(3_000));
                }
                self.victims(out);
                self.lasting(out, 100, 5_000);
            }
            11 => {
                let (inward, outward) = self.draw.one_of([(0.8, 0.0), (0.0, 0.8), (1.0, 0.0), (0.0, 1.0), (0.3, 0.3)]);
                put!(out, "\n[[fault]]\nat = \"{at}ms\"\nkind = \"loss\"\ninward = {inward}\noutward = {outward}");
                self.victims(out);
                self.lasting(out, 50, 5_000);
            }
            12 => {
                put!(out, "\n[[fault]]\nat = \"{at}ms\"\nkind = \"stream-reset\"");
                self.victims(out);
                if self.draw.rng.chance(0.5) {
                    put!(out, "every = \"{}ms\"", self.draw.between(100, 3_000));
                }
            }
            13 => {
                // A task of several that crash or leave on a host takes no vote with it.
                let (code, host) = (self.draw.rng.below(256), self.host());
                put!(out, "\n[[fault]]\nat = \"{at}ms\"\nkind = \"leave\"\ncode = {code}");
                match self.draw.rng.below(3) {
                    0 => put!(out, "role = \"root\"\nrandom = 1"),
                    _ => put!(out, "nodes = [{host}]"),
                }
            }
            14 | 15 => {
                let node = self.draw.rng.below(self.draw.nodes);
                let (spare, every) = (self.draw.rng.chance(0.5), self.draw.rng.chance(0.3));
                put!(out, "\n[[fault]]\nat = \"{at}ms\"\nkind = \"join\"\nnodes = [{node}]\nspare = {spare}");
                if every {
                    put!(out, "every = \"{}ms\"\nuntil = \"{}ms\"", self.draw.between(50, 2_000), at + 2_500);
                }
            }
            _ => {
                let about = self.host();
                put!(out, "\n[[fault]]\nat = \"{at}ms\"\nkind = \"doubt\"\nagainst = [{about}]");
                put!(out, "nodes = {}", self.draw.one_of(["\"all\"", "[0]", "[1]"]));
            }
        }
    }

    /// Whom faults hit that cost no vote.
    fn victims(&mut self, out: &mut String) {
        match self.draw.rng.below(8) {
            0 => put!(out, "role = \"root\""),
            1 => put!(out, "role = \"heir\""),
            2 => put!(out, "nodes = \"all\""),
            3 => put!(out, "random = {}", self.draw.between(1, self.draw.nodes)),
            _ => put!(out, "nodes = [{}]", self.draw.rng.below(self.draw.nodes)),
        }
    }

    /// Some hosts or processes at once, and perhaps a verdict about them, in time or late.
    fn crash(&mut self, out: &mut String, at: u64) {
        let count = self.draw.between(1, 4);
        let hosts: Vec<_> = (0..count).map(|_| self.host()).collect();
        let list = hosts.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let kind = self.draw.one_of(["crash", "crash-host"]);
        put!(out, "\n[[fault]]\nat = \"{at}ms\"\nkind = \"{kind}\"\nnodes = [{list}]");
        let longest = self.draw.one_of([20, 400, 8_000]);
        self.lasting(out, 5, longest);
        let verdict = at + self.draw.one_of([1, 50, 1_000, 5_000]);
        if self.draw.rng.chance(0.5) && verdict < self.draw.safety_ms {
            put!(out, "\n[[fault]]\nat = \"{verdict}ms\"\nkind = \"doubt\"\nnodes = \"all\"\nagainst = [{list}]");
        }
    }

    /// RV-4: the root, then its heirs, within a moment of each other.
    fn roots(&mut self, out: &mut String, at: u64) {
        let mut at = at;
        for role in ["root", "heir", "second-heir"].into_iter().take(1 + self.draw.rng.index(3)) {
            if at >= self.draw.safety_ms {
                return;
            }
            let kind = self.draw.one_of(["crash", "crash-host"]);
            // A task may be the root of its own view and of nobody else's: one host is enough.
            put!(out, "\n[[fault]]\nat = \"{at}ms\"\nkind = \"{kind}\"\nrole = \"{role}\"\nrandom = 1");
            self.lasting(out, 200, 5_000);
            at += self.draw.one_of([0, 1, 20, 400]);
        }
    }

    /// Two sides, one host, one pair, sides that both reach a third; both ways or one; once or flapping.
    fn cut(&mut self, out: &mut String, at: u64) {
        put!(out, "\n[[fault]]\nat = \"{at}ms\"\nkind = \"partition\"");
        put!(out, "direction = \"{}\"", self.draw.one_of(["both", "both", "out", "in"]));
        let nodes = self.draw.nodes;
        match self.draw.rng.below(5) {
            0 => put!(out, "random = {}", self.draw.between(1, nodes - 1)),
            1 => {
                let first = self.draw.rng.below(nodes);
                put!(out, "nodes = [{first}]\nagainst = [{}]", (first + self.draw.between(1, nodes - 1)) % nodes);
            }
            2 => {
                let split = self.draw.between(1, nodes - 1);
                let reached = self.draw.rng.below(nodes - split);
                put!(out, "nodes = \"0-{}\"\nagainst = \"{}-{}\"", split - 1, split + reached, nodes - 1);
            }
            3 => put!(out, "role = \"root\"\nrandom = 1"),
            _ => put!(out, "nodes = [{}]", self.draw.rng.below(nodes)),
        }
        if self.draw.rng.chance(0.3) {
            let each = self.draw.between(200, 3_000);
            put!(out, "for = \"{each}ms\"\nevery = \"{}ms\"\nuntil = \"{}ms\"", 2 * each, at + 9 * each);
        } else {
            self.lasting(out, 10, 8_000);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Engine, Scenario};
    use std::collections::BTreeSet;

    /// Whatever is drawn can be read, and every kind of fault, of rule, of policy and of moment comes up.
    #[test]
    fn what_is_drawn_makes_sense_and_leaves_nothing_out() {
        let mut words = BTreeSet::new();
        for seed in 0..1_000 {
            let text = draw_jobs(seed);
            let scenario = Scenario::parse("drawn", &text, &[] as &[&str]).unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!((scenario.setup.seed, scenario.engine()), (seed, Engine::View));
            words.extend(text.split('"').skip(1).step_by(2).map(str::to_owned));
        }
        let faults = super::super::entry::KINDS;
        // What ends by itself needs neither of the first two, and a disk that lies about a task's number tests no view.
        let drawn = faults.iter().filter(|k| !["heal", "resume", "disk", "cast", "kill-shepherds", "lie", "corrupt"].contains(k));
        let rules = phalanx_fault::KindName::ALL.map(phalanx_fault::KindName::name);
        let others = ["primary", "continue", "abort", "root", "heir", "second-heir", "begun", "settled", "installed"];
        for word in drawn.chain(&rules).chain(&others).chain(&["wire", "plain", "out", "in", "both", "real", "fake"]) {
            assert!(words.contains(*word), "{word} never came up");
        }
        assert_eq!(draw_jobs(7), draw_jobs(7));
        assert_ne!(draw_jobs(7), draw_jobs(8));
    }
}
