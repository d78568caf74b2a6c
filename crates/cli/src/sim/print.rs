//! What a simulation came to, as a table for people or as JSON for programs.

use super::replay_swarm;
use phalanx_core::Duration;
use phalanx_sim::scenario::{Engine, NEVER, Outcome, Scenario, Summary, Swarm};
use serde_json::{Value, json};
use std::io::{self, Write};

/// Faults and drops are printed from this table's names on; what is zero is left out unless it was asked for.
const NAME_WIDTH: usize = 30;

pub(super) fn scenario_table(
    out: &mut impl Write,
    scenario: &Scenario,
    outcome: &Outcome,
    replay: &str,
) -> io::Result<()> {
    let report = &outcome.report;
    let (nodes, seed, workload) = (scenario.setup.nodes, scenario.setup.seed, scenario.workload_name());
    let what = if scenario.engine() == Engine::Link { "workload" } else { "engine" };
    writeln!(out, "scenario  {}, {nodes} nodes, {what} {workload}, seed {seed}", scenario.name)?;
    let time = report.ended.since(phalanx_core::Instant::ZERO);
    let wall = outcome.wall.as_secs_f64();
    let rate = report.stats.events as f64 / wall.max(1e-9);
    writeln!(out, "time      {time} of virtual time in {wall:.3} s, {} events/s", large(rate))?;
    writeln!(out, "trace     {:016x}\n", report.trace)?;
    for (name, value) in outcome.measures.iter() {
        let asked = scenario.measure.iter().any(|m| m == name);
        if asked || (scenario.measure.is_empty() && value > 0) {
            writeln!(out, "{name:<NAME_WIDTH$} {:>14}", number(value))?;
        }
    }
    writeln!(out)?;
    if outcome.is_green() {
        let settled = report.settled_in.unwrap_or(Duration::ZERO);
        return writeln!(out, "green: everything held, and all was well {settled} after healing");
    }
    red(out, outcome, "")?;
    writeln!(out, "replay: {replay}")
}

/// What a red run says.
fn red(out: &mut impl Write, outcome: &Outcome, indent: &str) -> io::Result<()> {
    for violation in &outcome.report.violations {
        writeln!(out, "{indent}red: {violation}")?;
    }
    if outcome.report.more > 0 {
        writeln!(out, "{indent}red: and {} violations more", outcome.report.more)?;
    }
    for missed in &outcome.missed {
        writeln!(out, "{indent}red: expected {}, measured {}", missed.bound, number(missed.value))?;
    }
    Ok(())
}

pub(super) fn scenario_json(scenario: &Scenario, outcome: &Outcome, replay: &str) -> Value {
    let report = &outcome.report;
    let wall = outcome.wall.as_secs_f64();
    let shown = |name: &str| scenario.measure.is_empty() || scenario.measure.iter().any(|m| m == name);
    let measures =
        outcome.measures.iter().filter(|m| shown(m.0)).map(|(name, value)| (name.to_owned(), or_null(value)));
    json!({
        "scenario": scenario.name,
        "seed": scenario.setup.seed,
        "nodes": scenario.setup.nodes,
        "engine": scenario.engine().name(),
        "workload": scenario.workload_name(),
        "green": outcome.is_green(),
        "trace": format!("{:016x}", report.trace),
        "virtual_s": report.ended.since(phalanx_core::Instant::ZERO).as_secs_f64(),
        "settled_s": report.settled_in.map(Duration::as_secs_f64),
        "wall_s": wall,
        "events_per_s": report.stats.events as f64 / wall.max(1e-9),
        "measures": Value::Object(measures.collect()),
        "violations": violations(outcome),
        "more_violations": report.more,
        "missed": missed(outcome),
        "replay": replay,
    })
}

fn violations(outcome: &Outcome) -> Vec<Value> {
    let violation = |v: &phalanx_sim::Violation| {
        let at = v.at.since(phalanx_core::Instant::ZERO).as_secs_f64();
        json!({ "checker": v.checker, "at_s": at, "node": v.node, "text": v.text })
    };
    outcome.report.violations.iter().map(violation).collect()
}

fn missed(outcome: &Outcome) -> Vec<Value> {
    outcome.missed.iter().map(|m| json!({ "expected": m.bound.to_string(), "measured": or_null(m.value) })).collect()
}

pub(super) fn swarm_table(out: &mut impl Write, plan: &Swarm, summary: &Summary) -> io::Result<()> {
    let wall = summary.wall.as_secs_f64();
    let last = plan.first + summary.runs.saturating_sub(1);
    writeln!(out, "swarm     {} runs, seeds {} to {last}", summary.runs, plan.first)?;
    let rate = summary.events as f64 / wall.max(1e-9);
    writeln!(out, "events    {}, in {wall:.1} s, {} events/s", summary.events, large(rate))?;
    if matches!(plan.engine, Engine::Link | Engine::View) {
        writeln!(out, "delivered {} messages", summary.delivered)?;
    }
    if let Some(slowest) = &summary.slowest {
        let (seed, nodes, workload) = (slowest.seed, slowest.nodes, slowest.workload);
        writeln!(out, "slowest   seed {seed} ({workload}, {nodes} nodes), {:.3} s", slowest.wall.as_secs_f64())?;
    }
    writeln!(out, "trace     {:016x}\n", summary.trace)?;
    for (workload, runs) in &summary.workloads {
        writeln!(out, "{:<NAME_WIDTH$} {runs:>14}", format!("runs.{workload}"))?;
    }
    for (fault, count) in summary.faults.iter().chain(&summary.told) {
        writeln!(out, "{fault:<NAME_WIDTH$} {count:>14}")?;
    }
    writeln!(out)?;
    if summary.is_green() {
        return writeln!(out, "green: everything held in all runs");
    }
    for red_run in &summary.red {
        let run = &red_run.run;
        writeln!(out, "seed {} ({}, {} nodes)", run.seed, run.workload, run.nodes)?;
        red(out, &red_run.outcome, "  ")?;
        writeln!(out, "  replay: {}", replay_swarm(run.seed, plan.engine, plan.workload.as_deref()))?;
    }
    Ok(())
}

pub(super) fn swarm_json(plan: &Swarm, summary: &Summary) -> Value {
    let wall = summary.wall.as_secs_f64();
    let red = summary.red.iter().map(|r| {
        json!({
            "seed": r.run.seed,
            "workload": r.run.workload,
            "nodes": r.run.nodes,
            "trace": format!("{:016x}", r.run.trace),
            "violations": violations(&r.outcome),
            "replay": replay_swarm(r.run.seed, plan.engine, plan.workload.as_deref()),
        })
    });
    json!({
        "first_seed": plan.first,
        "engine": plan.engine.name(),
        "runs": summary.runs,
        "green": summary.is_green(),
        "trace": format!("{:016x}", summary.trace),
        "events": summary.events,
        "delivered": summary.delivered,
        "wall_s": wall,
        "events_per_s": summary.events as f64 / wall.max(1e-9),
        "workloads": summary.workloads,
        "faults": summary.faults,
        "told": summary.told,
        "slowest": summary.slowest.as_ref().map(|s| json!({
            "seed": s.seed, "workload": s.workload, "nodes": s.nodes, "wall_s": s.wall.as_secs_f64(),
        })),
        "red": red.collect::<Vec<_>>(),
    })
}

pub(super) fn json(out: &mut impl Write, value: &Value) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}

/// A measure for people.
fn number(value: u64) -> String {
    if value == NEVER { "never".to_owned() } else { value.to_string() }
}

/// A measure for programs: what never came to pass is `null`.
fn or_null(value: u64) -> Value {
    if value == NEVER { Value::Null } else { json!(value) }
}

/// A large number for people: `1.2 M`.
fn large(n: f64) -> String {
    match n {
        n if n >= 1e6 => format!("{:.1} M", n / 1e6),
        n if n >= 1e3 => format!("{:.0} k", n / 1e3),
        n => format!("{n:.0}"),
    }
}
