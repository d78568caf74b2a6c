//! Swarms of members: a seed becomes a whole scenario of a membership engine.
//!
//! Sizes, network, seeds and faults are those of the sweep ([`crate::member::sweep`]); profile, hierarchy and attributes
//! are drawn beside them.

use super::draw::put;
use super::engine::Engine;
use crate::fault::{Fault, NodeFault};
use crate::member::sweep::{Act, Drawn, ROUGH};
use crate::partition::{NodeSet, Partition};
use phalanx_core::{Instant, Rng};
use std::fmt::Write;

/// The generator of what the sweep does not draw.
const STREAM: u64 = 0xd1ce_0000_0000_0002;
/// Fewer nodes make no hierarchy.
const HIERARCHY_LEAST: u32 = 6;

/// The text of the scenario that `seed` stands for.
#[must_use]
pub(super) fn draw_members(seed: u64, engine: Engine) -> String {
    let mut out = String::new();
    let mut rng = Rng::new(seed, STREAM);
    let drawn = Drawn::new(seed, 0);
    let name = engine.name();
    put!(out, "name = \"swarm-{seed}\"\nengine = \"{name}\"\nnodes = {}\nseed = {seed}", drawn.nodes);
    // Drawn alike for all engines: a seed is the same configuration as far as that goes.
    let profile = ["lan", "lan", "lan", "lan", "wan", "local", "paper"][rng.index(7)];
    let (multicast, by_reference) = (rng.chance(0.5), rng.chance(0.3));
    let is_zone = engine == Engine::Zone;
    put!(out, "profile = \"{}\"", if is_zone || profile == "paper" { profile } else { "lan" });
    if engine == Engine::AllToAll {
        put!(out, "multicast = {multicast}");
    }
    // TG-8. By number, so that other seeds stay what they were.
    if engine == Engine::Segment && seed.is_multiple_of(3) {
        put!(out, "multicast = false");
    }
    put!(out, "by_reference = {by_reference}\nstart_within = \"{}ns\"", drawn.start_within.0);
    put!(out, "\n[network]\nlatency = {{ kind = \"uniform\", min_us = 100, max_us = {:.3} }}", drawn.slowest_us);
    put!(out, "loss = {:.6}", drawn.loss);
    if engine == Engine::Segment {
        put!(out, "{}", topology(&mut Rng::new(seed, STREAM + 1), drawn.nodes));
    }
    put!(out, "\n[zones]\nseeds = {}", drawn.seeds);
    if rng.chance(0.4) && drawn.nodes >= HIERARCHY_LEAST {
        let supervisors = if is_zone { 1 + rng.below(u64::from(drawn.nodes / 4).min(5)) } else { 0 };
        let base = u64::from(drawn.nodes) - supervisors;
        put!(out, "size = {}", base.div_ceil(1 + rng.below(4.min(base))));
        if is_zone {
            put!(out, "supervisors = {supervisors}");
        }
    }
    if rng.chance(0.5) {
        put!(out, "\n[attributes]\ninterval_ms = {}\nkeys = {}", 500 + rng.below(3_000), 1 + rng.below(8));
    }
    put!(out, "\n[phases]\nsafety = \"{}ns\"\nrestart = {}", ROUGH.0, drawn.restart);
    for (at, act) in drawn.acts.iter().filter(|a| a.0 < Instant::ZERO + ROUGH) {
        let Some(what) = what(act) else { continue };
        put!(out, "\n[[fault]]\nat = \"{}ns\"\n{what}", at.0);
    }
    out
}

/// TG-1: segments behind routers; in a chain not everybody reaches everybody with every TTL.
fn topology(rng: &mut Rng, nodes: u32) -> String {
    let (routers, most) = [("star", 8), ("chain", 4)][rng.index(2)];
    let size = u64::from(nodes).div_ceil(1 + rng.below(most.min(nodes.into())));
    format!("topology = {{ kind = \"segments\", size = {size}, routers = \"{routers}\", per_router_us = 50 }}")
}

/// An act as a scenario writes it; `None` when it changes nothing.
pub(super) fn what(act: &Act) -> Option<String> {
    let text = match act {
        Act::Leave(node, code) => format!("kind = \"leave\"\nnodes = [{node}]\ncode = {code}"),
        Act::Fault(Fault::Node(node, fault)) => format!("{}\nnodes = [{node}]", of_node(fault)?),
        Act::Fault(Fault::ResetStream(a, b)) => format!("kind = \"stream-reset\"\nnodes = [{a}]\nagainst = [{b}]"),
        Act::Fault(Fault::Partition(partition)) => cut(partition)?,
        Act::Fault(Fault::HealPartition(name)) => format!("kind = \"heal\"\nname = \"{name}\""),
        Act::Fault(Fault::Weather(w)) => {
            let (loss, duplication, reorder) = (w.loss, w.duplication, w.reorder);
            format!(
                "kind = \"weather\"\nloss = {loss:.6}\nduplication = {duplication:.6}\nreorder = {reorder:.6}\n\
                 reorder_by = \"{}ns\"\nslower = \"{}ns\"",
                w.reorder_by.0, w.slower.0
            )
        }
        Act::Fault(Fault::HealAll { .. } | Fault::Inject { .. }) => return None,
    };
    Some(text)
}

fn of_node(fault: &NodeFault) -> Option<String> {
    Some(match *fault {
        NodeFault::CrashProcess => "kind = \"crash\"".to_owned(),
        NodeFault::CrashHost => "kind = \"crash-host\"".to_owned(),
        NodeFault::Restart => "kind = \"restart\"".to_owned(),
        NodeFault::Pause => "kind = \"pause\"".to_owned(),
        NodeFault::Resume => "kind = \"resume\"".to_owned(),
        NodeFault::Clock { rate, step_ns } => {
            format!("kind = \"clock\"\nrate = {rate:.6}\nstep = \"{step_ns}ns\"")
        }
        NodeFault::Loss { inward, outward } => format!("kind = \"loss\"\ninward = {inward}\noutward = {outward}"),
        NodeFault::Disk(_) | NodeFault::HealInjector | NodeFault::ResetStream(_) => return None,
    })
}

fn cut(partition: &Partition) -> Option<String> {
    let (from, to) = partition.cuts().first()?;
    let direction = if partition.cuts().len() > 1 { "both" } else { "out" };
    let (from, to) = (list(from)?, list(to)?);
    let name = partition.name();
    Some(format!(
        "kind = \"partition\"\nname = \"{name}\"\ndirection = \"{direction}\"\nnodes = [{from}]\nagainst = [{to}]"
    ))
}

/// Numbers; `None` for nobody.
fn list(set: &NodeSet) -> Option<String> {
    let nodes: Vec<String> = set.iter().map(|n| n.to_string()).collect();
    (!nodes.is_empty()).then(|| nodes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;
    use std::collections::BTreeSet;

    /// Whatever is drawn can be read, and each profile, size and fault that is meant to come up does.
    #[test]
    fn what_is_drawn_makes_sense_and_leaves_nothing_out() {
        for engine in [Engine::Zone, Engine::AllToAll, Engine::Gossip, Engine::Segment] {
            let mut words = BTreeSet::new();
            for seed in 0..400 {
                let text = draw_members(seed, engine);
                let read = Scenario::parse("drawn", &text, &[] as &[&str]);
                let scenario = read.unwrap_or_else(|e| panic!("{e}\n{text}"));
                assert_eq!((scenario.setup.seed, scenario.engine()), (seed, engine));
                words.extend(text.split(['"', '\n', ' ']).map(str::to_owned));
            }
            let kinds = super::super::entry::KINDS;
            // Members write nothing to disk and have no tasks, and rules belong to links.
            const OF_MANAGERS: [&str; 3] = ["kill-shepherds", "lie", "corrupt"];
            let drawn = kinds
                .iter()
                .filter(|k| !matches!(**k, "disk" | "inject" | "join" | "doubt" | "cast") && !OF_MANAGERS.contains(k));
            for word in drawn.chain(&["paper", "lan", "size", "[attributes]", "out", "both"]) {
                assert!(words.contains(*word), "{word} never came up");
            }
            let hierarchy = ["wan", "local", "supervisors"].iter().all(|w| words.contains(*w));
            assert_eq!(hierarchy, engine == Engine::Zone);
            assert_eq!(words.contains("multicast"), matches!(engine, Engine::AllToAll | Engine::Segment));
        }
        assert_eq!(draw_members(7, Engine::Zone), draw_members(7, Engine::Zone));
        assert_ne!(draw_members(7, Engine::Zone), draw_members(8, Engine::Zone));
    }
}
