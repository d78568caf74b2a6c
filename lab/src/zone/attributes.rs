//! `zone-attributes`: storms of attributes (AT-1, AT-2; 002 §4). Many members write at once, on a clean network, on one
//! that loses packets, and while others crash: how much of the data came twice, and when the last member had all of it.
//!
//! Each write of a source goes to the next of its keys, so that each of its states is known: the last few numbers in a
//! row. Whatever a replica shows while the storm lasts must be one of them, and never an earlier one than before.

use super::{Cluster, LAN};
use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use phalanx_core::Duration;
use phalanx_protocol::member::{Engine, Slot};
use phalanx_protocol::zone::Zone;
use phalanx_sim::member::Command;
use phalanx_sim::{Fault, NodeFault, Weather};

/// The experiment.
pub(crate) struct ZoneAttributes;

const SIZES: [u32; 3] = [128, 512, 2048];
const LARGEST: u32 = 2048;
/// Members that write: one alone, and each sixteenth.
const SHARES: [u32; 2] = [0, 16];
/// Writes of each source, and the time between two of them.
const CHANGES: u32 = 16;
const BETWEEN: Duration = Duration::from_millis(10);
/// A source writes to its keys in turn.
const KEYS: [&str; 4] = ["a", "b", "c", "d"];
/// What goes wrong meanwhile: packets that are lost, and members that crash in the middle of it, as a part of all. Those
/// who were linked with them ask others then.
const WEATHERS: [(f64, u32); 3] = [(0.0, 0), (0.05, 0), (0.05, 32)];
const MOST_PERCENT: f64 = 10.0;
/// All replicas are read after so many changes while the storm lasts, and so often when it is over.
const LOOK_EACH: u32 = 4;
const LOOK: Duration = Duration::from_millis(1);
const BOUND: Duration = Duration::from_secs(20);

/// What a storm led to.
struct Storm {
    entries: u64,
    duplicates: u64,
    /// From the last write until the last member had everything; `None` when somebody never had.
    last_ms: Option<f64>,
    /// Replicas that showed what their owner never was, or went back.
    disorder: u64,
}

impl Storm {
    fn percent(&self) -> f64 {
        100.0 * self.duplicates as f64 / self.entries.max(1) as f64
    }
}

impl Experiment for ZoneAttributes {
    fn name(&self) -> &'static str {
        "zone-attributes"
    }

    fn about(&self) -> &'static str {
        "many members write attributes at once, in fair weather and foul: order, duplicates, when all have all (002 §4)"
    }

    fn picture(&self) -> Picture {
        Picture { x: "nodes", y: "last_ms", series: &["sources", "loss", "crashes"], only: None }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let (mut worst, mut disorder) = (0.0f64, 0);
        let (sizes, shares) = if run.options.quick { (&SIZES[2..], &SHARES[1..]) } else { (&SIZES[..], &SHARES[..]) };
        for &nodes in sizes {
            for (share, (loss, crash)) in shares.iter().flat_map(|&s| WEATHERS.map(|w| (s, w))) {
                let sources = nodes.checked_div(share).unwrap_or(1);
                let crashes = nodes.checked_div(crash).unwrap_or(0);
                run.progress(&format!("{nodes} nodes, {sources} sources, loss {loss}, {crashes} crashes"));
                let storm = storm(nodes, sources, loss, crashes)?;
                run.row(row! {
                    "engine": "zone", "profile": "lan", "nodes": nodes, "sources": sources,
                    "changes": sources * CHANGES, "loss": loss, "crashes": crashes, "entries": storm.entries,
                    "duplicates_percent": significant(storm.percent()), "last_ms": storm.last_ms.map(significant),
                });
                worst = worst.max(storm.percent());
                disorder += storm.disorder;
                if nodes == LARGEST && sources > 1 {
                    let claim = format!(
                        "2048 nodes, {sources} sources, loss {loss}, {crashes} crashes: all have all in ≤ 20 s"
                    );
                    let bound = BOUND.as_secs_f64() * 1e3;
                    run.check(Check::new(claim, storm.last_ms, Must::AtMost, bound));
                }
            }
        }
        run.check(Check::new("data that came twice ≤ 10 %, in every storm", Some(worst), Must::AtMost, MOST_PERCENT));
        run.check(Check::new("states that no owner had, or had before", Some(disorder as f64), Must::AtMost, 0.0));
        Ok(())
    }
}

/// `sources` of `nodes` write [`CHANGES`] times each, all at the same time. So many others crash when half is written.
fn storm(nodes: u32, sources: u32, loss: f64, crashes: u32) -> Result<Storm, Error> {
    let mut cluster = LAN.boot_zone(nodes, 1)?;
    let sources: Vec<u32> = (0..sources).map(|s| s * (nodes / sources)).collect();
    // Beside the sources.
    let victims = (0..crashes).map(|c| c * (nodes / crashes) + 5);
    cluster.sim.fault(Fault::Weather(Weather { loss, ..Weather::default() }));
    let mut seen = vec![0; nodes as usize * sources.len()];
    let mut disorder = 0;
    for change in 1..=CHANGES {
        if change == CHANGES / 2 {
            victims.clone().for_each(|v| cluster.sim.fault(Fault::Node(v, NodeFault::CrashProcess)));
        }
        for &source in &sources {
            let value = change.to_le_bytes().to_vec();
            cluster.sim.command(source, Command::Set(key(change).into(), Some(value)));
        }
        cluster.sim.run_for(BETWEEN);
        if change % LOOK_EACH == 0 {
            disorder += look(&cluster, &sources, &mut seen);
        }
    }
    let over = cluster.sim.now();
    // Who has everything keeps it, so one of those who lack something is looked at.
    let mut lacking: Vec<u32> = cluster.sim.cluster().processes().map(|(node, _)| node).collect();
    let complete = |zone: &Zone| sources.iter().all(|&s| number(zone, s, CHANGES) == Some(CHANGES));
    while !lacking.is_empty() && cluster.sim.now() < over + BOUND {
        cluster.sim.run_for(LOOK);
        while lacking.pop_if(|node| cluster.sim.process(*node).is_none_or(|m| complete(m.engine()))).is_some() {}
    }
    let took = cluster.sim.now().since(over) + BETWEEN;
    let last_ms = lacking.is_empty().then(|| took.as_secs_f64() * 1e3);
    disorder += look(&cluster, &sources, &mut seen);
    // What is still under way counts, too.
    cluster.sim.run_for(super::REST);
    let members = cluster.sim.cluster();
    let counters = members.processes().map(|(_, m)| m.engine().replication());
    let (entries, duplicates) = counters.fold((0, 0), |(e, d), c| (e + c.entries, d + c.duplicates));
    Ok(Storm { entries, duplicates, last_ms, disorder })
}

fn key(change: u32) -> &'static str {
    KEYS[change as usize % KEYS.len()]
}

/// The number that a replica holds under the key of `change`.
fn number(zone: &Zone, source: u32, change: u32) -> Option<u32> {
    let value = zone.attribute(Slot(source), key(change))?;
    value.try_into().ok().map(u32::from_le_bytes)
}

/// Reads all replicas: how many are no state of their owner, or an earlier one than was `seen`.
fn look(cluster: &Cluster<Zone>, sources: &[u32], seen: &mut [u32]) -> u64 {
    let mut wrong = 0;
    for (node, member) in cluster.sim.cluster().processes() {
        for (i, &source) in sources.iter().enumerate() {
            let held = |k| number(member.engine(), source, k);
            let last = (0..KEYS.len() as u32).filter_map(held).max().unwrap_or(0);
            let before = &mut seen[node as usize * sources.len() + i];
            // Its last few writes, each in its place.
            let state = (0..last.min(KEYS.len() as u32)).all(|back| held(last - back) == Some(last - back));
            wrong += u64::from(!state || last < *before);
            *before = last;
        }
    }
    wrong
}
