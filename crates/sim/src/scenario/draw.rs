//! Swarm configurations: a seed becomes a whole scenario.
//!
//! After TigerBeetle's simulator and its ranges: loss up to 30 %, doubled messages, delays of 30 to 100 ms or those of
//! a machine room, clogged paths, partitions of several shapes, symmetric or one-way, crashes, restarts, pauses, wrong
//! clocks, bad disks; and FI-1 to FI-3: all kinds of injected faults at both points, with drawn recurrences. Each run
//! switches on a part of all that: runs in which everything fails at once all look alike.
//!
//! What is drawn is the *text* of a scenario. So a red run can be saved, read and cut down by hand, and the swarm can do
//! nothing that a scenario cannot.

use phalanx_core::Rng;
use std::fmt::Write;

/// Workloads that a swarm draws from. `heartbeat` alone tests little: it is a part of `mixed`.
pub const WORKLOADS: [&str; 4] = ["reliable", "managed", "order", "mixed"];
/// The generator of configurations, apart from those of the nodes.
const STREAM: u64 = 0xd1ce_0000_0000_0001;
/// The part of all runs with real cryptography: a real signature costs as much as a hundred events.
const REAL_SEALS: f64 = 0.05;
/// Entries of a drawn timeline that are no injector rules.
const FAULTS_MAX: u64 = 6;
/// Drawn injector rules.
const RULES_MAX: u64 = 5;
/// Liveness after healing: retransmission timers have backed off to their longest by then, so it is generous.
const LIVENESS_S: u64 = 120;

/// The text of the scenario that `seed` stands for; of that workload when one is asked for.
#[must_use]
pub fn draw(seed: u64, workload: Option<&str>) -> String {
    let mut text = String::new();
    Draw { rng: Rng::new(seed, STREAM), nodes: 0, safety_ms: 0, order: false }.scenario(&mut text, seed, workload);
    text
}

pub(super) struct Draw {
    pub(super) rng: Rng,
    pub(super) nodes: u64,
    pub(super) safety_ms: u64,
    /// The workload has leaders.
    pub(super) order: bool,
}

/// Writes a line; a `String` takes all of them.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {{ let _ = writeln!($out, $($arg)*); }};
}
pub(super) use put;

impl Draw {
    fn scenario(&mut self, out: &mut String, seed: u64, workload: Option<&str>) {
        // Drawn even when it is given: the rest of the configuration is then the same with and without.
        let drawn = WORKLOADS[self.rng.index(WORKLOADS.len())];
        let workload = workload.unwrap_or(drawn);
        self.order = matches!(workload, "order" | "mixed");
        self.nodes = self.between(3, 16);
        // Many short runs for many configurations, some long ones for what needs time to go wrong.
        let long = self.rng.chance(0.25);
        self.safety_ms = if long { self.between(15_000, 60_000) } else { self.between(1_000, 6_000) };
        put!(out, "name = \"swarm-{seed}\"");
        put!(out, "nodes = {}", self.nodes);
        put!(out, "seed = {seed}");
        put!(out, "seals = \"{}\"", if self.rng.chance(REAL_SEALS) { "real" } else { "fake" });
        put!(out, "by_reference = {}", self.rng.chance(0.3));
        put!(out, "start_within = \"{}ms\"", self.one_of([0, 10, 1_000]));
        put!(out, "disk = \"{}us\"", self.one_of([100, 1_000, 10_000]));
        put!(out, "socket_packets = {}", self.one_of([16, 256, 4_096]));
        // A long run on a slow network leaves a long queue to be worked off.
        let liveness_s = LIVENESS_S + self.safety_ms / 100;
        put!(out, "\n[phases]\nsafety = \"{}ms\"\nliveness = \"{liveness_s}s\"", self.safety_ms);
        put!(out, "\n[workload]\nkind = \"{workload}\"");
        self.network(out);
        for _ in 0..self.rng.below(FAULTS_MAX * if long { 3 } else { 1 } + 1) {
            self.fault(out);
        }
        for _ in 0..self.rng.below(RULES_MAX + 1) {
            self.rule(out);
        }
    }

    fn network(&mut self, out: &mut String) {
        put!(out, "\n[network]");
        let latency = match self.rng.below(6) {
            0 => format!("kind = \"fixed\", us = {}", self.between(20, 1_000)),
            1 => format!("kind = \"uniform\", min_us = 50, max_us = {}", self.between(100, 5_000)),
            2 => format!(
                "kind = \"lognormal\", median_us = {}, sigma = {:.2}, min_us = 20",
                self.between(80, 2_000),
                0.2 + self.rng.unit()
            ),
            3 => format!("kind = \"normal\", mean_us = 500, sd_us = {}, min_us = 50", self.between(10, 400)),
            _ => format!(
                "kind = \"exponential\", base_us = {}, mean_us = {}",
                self.between(100, 2_000),
                self.between(30_000, 100_000)
            ),
        };
        put!(out, "latency = {{ {latency} }}");
        match self.rng.below(6) {
            0 => put!(
                out,
                "topology = {{ kind = \"torus\", x = 4, y = 2, z = 2, per_hop_us = {} }}",
                self.between(1, 200)
            ),
            1 => put!(
                out,
                "topology = {{ kind = \"segments\", size = {}, routers = \"{}\", per_router_us = {} }}",
                self.between(2, 8),
                self.one_of(["star", "chain"]),
                self.between(0, 500)
            ),
            _ => {}
        }
        // What the network always does stays after healing, so it is mild; weather is not.
        for (field, most) in [("loss", 0.05), ("duplication", 0.05), ("reorder", 0.3)] {
            if self.rng.chance(0.3) {
                put!(out, "{field} = {:.4}", self.part(most));
            }
        }
        put!(out, "reorder_us = {}", self.between(0, 20_000));
        if self.rng.chance(0.15) {
            let (speed, queue) = (self.between(20, 1_000), self.between(50_000, 500_000));
            put!(out, "link = {{ mbit_s = {speed}, queue_bytes = {queue} }}");
        }
    }

    fn fault(&mut self, out: &mut String) {
        put!(out, "\n[[fault]]");
        let at = self.rng.below(self.safety_ms);
        put!(out, "at = \"{at}ms\"");
        let repeats = self.rng.chance(0.4);
        if repeats {
            put!(out, "every = \"{}ms\"", self.between(100, 3_000));
        }
        match self.rng.below(10) {
            0 | 1 => {
                put!(out, "kind = \"{}\"", self.one_of(["crash", "crash-host"]));
                self.targets(out);
                self.lasting(out, 5, 3_000);
            }
            2 => {
                put!(out, "kind = \"restart\"");
                self.targets(out);
            }
            3 => {
                put!(out, "kind = \"pause\"");
                self.targets(out);
                self.lasting(out, 5, 3_000);
            }
            4 => {
                put!(out, "kind = \"clock\"\nrate = {:.3}", 0.5 + 1.5 * self.rng.unit());
                if self.rng.chance(0.5) {
                    put!(out, "step = \"{}{}ms\"", self.one_of(["", "-"]), self.rng.below(2_000));
                }
                self.targets(out);
                self.lasting(out, 100, 5_000);
            }
            5 => {
                // A disk may be late, fail or fall silent. It may not lie: no protocol on it could keep its word.
                let (delay, fail, lose) = (self.rng.below(200), self.part(0.5), self.part(0.3));
                put!(out, "kind = \"disk\"\ndelay = \"{delay}ms\"\nfail = {fail:.3}\nlose = {lose:.3}");
                self.targets(out);
                self.lasting(out, 50, 5_000);
            }
            6 => {
                let (inward, outward) = (self.part(1.0), self.part(1.0));
                put!(out, "kind = \"loss\"\ninward = {inward:.3}\noutward = {outward:.3}");
                self.targets(out);
                self.lasting(out, 50, 5_000);
            }
            7 => {
                put!(out, "kind = \"weather\"\nloss = {:.3}\nduplication = {:.3}", self.part(0.3), self.part(0.5));
                put!(out, "reorder = {:.3}\nreorder_by = \"{}ms\"", self.part(0.5), self.rng.below(200));
                put!(out, "slower = \"{}ms\"", self.one_of([0, 0, 5, 50]));
                self.lasting(out, 50, 5_000);
            }
            _ => self.partition(out),
        }
    }

    /// One node alone, a random half, one pair; both ways or one.
    fn partition(&mut self, out: &mut String) {
        put!(out, "kind = \"partition\"\ndirection = \"{}\"", self.one_of(["both", "both", "out", "in"]));
        match self.rng.below(4) {
            0 => put!(out, "random = 1"),
            1 => put!(out, "random = {}", self.between(1, self.nodes - 1)),
            2 => {
                let first = self.rng.below(self.nodes);
                put!(out, "nodes = [{first}]\nagainst = [{}]", (first + self.between(1, self.nodes - 1)) % self.nodes);
            }
            _ => self.targets(out),
        }
        self.lasting(out, 10, 4_000);
    }

    fn targets(&mut self, out: &mut String) {
        match self.rng.below(6) {
            0 if self.order => put!(out, "role = \"leader\""),
            0 | 1 => put!(out, "nodes = [{}]", self.rng.below(self.nodes)),
            2 => put!(out, "nodes = \"all\""),
            _ => put!(out, "random = {}", self.between(1, (self.nodes / 2).max(1))),
        }
    }

    /// Mostly a fault ends before healing does it for all.
    fn lasting(&mut self, out: &mut String, least_ms: u64, most_ms: u64) {
        if self.rng.chance(0.8) {
            put!(out, "for = \"{}ms\"", self.between(least_ms, most_ms));
        }
    }

    /// FI-1, FI-2, FI-3: any kind, at either point, with any recurrence.
    pub(super) fn rule(&mut self, out: &mut String) {
        put!(out, "\n[[fault]]\nat = \"{}ms\"\nkind = \"inject\"", self.rng.below(self.safety_ms));
        put!(out, "point = \"{}\"", self.one_of(["wire", "plain"]));
        self.targets(out);
        let kind = match self.rng.below(7) {
            0 => "kind = \"drop\"".to_owned(),
            1 => match self.rng.below(3) {
                0 => "kind = \"delay\", delay = \"until-next\"".to_owned(),
                1 => format!("kind = \"delay\", delay = \"{}us\"", self.between(10, 100_000)),
                _ => {
                    let mean = self.between(1, 50);
                    format!("kind = \"delay\", delay = {{ exponential = {{ mean = \"{mean}ms\" }} }}")
                }
            },
            2 => format!("kind = \"modify\", bits = {}", self.between(1, 64)),
            3 => "kind = \"reorder\"".to_owned(),
            4 => format!("kind = \"inject\", bits = {}", self.one_of([0, 0, 1, 16])),
            5 => format!("kind = \"invocation\", operation = \"{}\"", self.one_of(["send", "receive", "allocate"])),
            _ => {
                let deliver = self.one_of(["", ", deliver = true", ", deliver = false"]);
                format!("kind = \"operation\", delay = \"{}ms\"{deliver}", self.rng.below(20))
            }
        };
        let (every, burst) = (self.recurrence(), self.one_of([1, 1, 3, 20]));
        put!(out, "rule = {{ {kind}, {every}, burst = {burst} }}");
        self.lasting(out, 100, 5_000);
    }

    fn recurrence(&mut self) -> String {
        match self.rng.below(6) {
            0 => format!("every = {}", self.between(2, 200)),
            1 => format!("every = \"{}ms\"", self.between(1, 500)),
            2 => format!("every = {{ exponential = {{ mean = \"{}ms\" }} }}", self.between(1, 500)),
            3 => format!("every = {{ uniform = {{ from = 2, to = {} }} }}", self.between(3, 100)),
            4 => format!("every = {{ empirical = [1, 2, {}] }}", self.between(10, 300)),
            _ => format!("p = {:.4}", self.part(0.3)),
        }
    }

    /// Both included.
    pub(super) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.rng.below(most - least + 1)
    }

    /// Up to `most`, small ones more often: a mild fault hides in a wild one.
    pub(super) fn part(&mut self, most: f64) -> f64 {
        most * self.rng.unit().powi(2)
    }

    pub(super) fn one_of<T: Copy, const N: usize>(&mut self, all: [T; N]) -> T {
        all[self.rng.index(N)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;
    use std::collections::BTreeSet;

    /// Whatever is drawn can be read, and every kind of fault, of rule, of network and of workload comes up.
    #[test]
    fn what_is_drawn_makes_sense_and_leaves_nothing_out() {
        let mut words = BTreeSet::new();
        for seed in 0..1_000 {
            let text = draw(seed, None);
            let scenario = Scenario::parse("drawn", &text, &[] as &[&str]).unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!(scenario.setup.seed, seed);
            assert!((3..=16).contains(&scenario.setup.nodes));
            words.extend(text.split('"').skip(1).step_by(2).map(str::to_owned));
        }
        let faults = super::super::entry::KINDS;
        // Links hold no streams and cannot leave, and what ends by itself needs neither of the others.
        let others = ["stream-reset", "heal", "resume", "leave", "join", "doubt", "cast", "kill-shepherds", "lie", "corrupt"];
        let drawn = faults.iter().filter(|k| !others.contains(k));
        let rules = phalanx_fault::KindName::ALL.map(phalanx_fault::KindName::name);
        let others = ["fake", "real", "wire", "plain", "out", "in", "both", "torus", "segments", "leader", "all"];
        for word in drawn.chain(&rules).chain(&others).chain(&WORKLOADS) {
            assert!(words.contains(*word), "{word} never came up");
        }
    }

    #[test]
    fn a_seed_is_a_configuration() {
        assert_eq!(draw(7, None), draw(7, None));
        assert_ne!(draw(7, None), draw(8, None));
        let [order, reliable] = ["order", "reliable"].map(|w| draw(7, Some(w)));
        assert!(order.contains("kind = \"order\"") && reliable.contains("kind = \"reliable\""));
    }
}
