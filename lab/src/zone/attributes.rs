//! `zone-attributes`: storms of attributes (AT-1, AT-2; 002 §4). One member writes, or many at once, on a clean network, on
//! one that loses packets, and while others or the writers themselves crash: how much of the data came twice, and when the
//! last member had all of it.
//!
//! Each write of a source goes to the next of its keys, so that each of its states is known: the last few numbers in a
//! row. Whatever a replica shows while the storm lasts must be one of them, and never an earlier one than before. Of a
//! source that crashed nothing is left once it was removed.

use super::{Cluster, LAN};
use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use phalanx_core::Duration;
use phalanx_protocol::member::{Engine, Slot};
use phalanx_protocol::zone::Zone;
use phalanx_sim::member::Command;
use phalanx_sim::{Fault, NodeFault, Weather as Conditions};
use std::fmt;

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
/// Whole storms are repeated.
const SEEDS: u64 = 5;
const QUICK_SEEDS: u64 = 1;
/// What goes wrong meanwhile.
const WEATHERS: [Weather; 4] = [
    Weather { loss: 0.0, crashed: Crashed::Nobody },
    Weather { loss: 0.05, crashed: Crashed::Nobody },
    Weather { loss: 0.05, crashed: Crashed::Others },
    Weather { loss: 0.05, crashed: Crashed::Writers },
];
/// Of the others each 32nd crashes, of the writers each fourth.
const OTHERS: u32 = 32;
const WRITERS: usize = 4;
const MOST_PERCENT: f64 = 10.0;
/// All replicas are read after so many changes while the storm lasts, and so often when it is over.
const LOOK_EACH: u32 = 4;
const LOOK: Duration = Duration::from_millis(1);
const BOUND: Duration = Duration::from_secs(20);

/// Packets that are lost, and members that crash in the middle of a storm.
#[derive(Clone, Copy)]
struct Weather {
    loss: f64,
    crashed: Crashed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Crashed {
    Nobody,
    /// Who was linked with them asks others then.
    Others,
    /// What they wrote last may have reached a few, and goes with them.
    Writers,
}

impl Crashed {
    const fn name(self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::Others => "others",
            Self::Writers => "writers",
        }
    }
}

/// A storm to be: who writes in which weather.
struct Case {
    nodes: u32,
    sources: Vec<u32>,
    weather: Weather,
    seed: u64,
}

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

    /// The worse of two, in each respect.
    fn worse(self, other: Self) -> Self {
        let last_ms = self.last_ms.zip(other.last_ms).map(|(a, b)| a.max(b));
        let disorder = self.disorder + other.disorder;
        let more = if self.percent() >= other.percent() { self } else { other };
        Self { last_ms, disorder, ..more }
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
        Picture { x: "nodes", y: "last_ms", series: &["sources", "loss", "crashed"], only: None, beside: &[] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let seeds = run.seeds(QUICK_SEEDS, SEEDS);
        let (sizes, shares) = if run.options.quick { (&SIZES[2..], &SHARES[1..]) } else { (&SIZES[..], &SHARES[..]) };
        let mut cases = Vec::new();
        for &nodes in sizes {
            for (share, weather) in shares.iter().flat_map(|&s| WEATHERS.map(|w| (s, w))) {
                let count = nodes.checked_div(share).unwrap_or(1);
                // Nothing would be left to look at.
                if count > 1 || weather.crashed != Crashed::Writers {
                    let sources: Vec<u32> = (0..count).map(|s| s * (nodes / count)).collect();
                    cases.extend((1..=seeds).map(|seed| Case { nodes, sources: sources.clone(), weather, seed }));
                }
            }
        }
        let (mut worst, mut disorder) = (0.0f64, 0);
        let mut storms = run.in_parallel(&cases, Case::to_string, Case::storm).into_iter();
        for cases in cases.chunks(seeds as usize) {
            let case = &cases[0];
            let storm = storms.by_ref().take(cases.len()).reduce(|a, b| Ok(a?.worse(b?)));
            let storm = storm.expect("a storm for each case")?;
            case.row(run, seeds, &storm);
            worst = worst.max(storm.percent());
            disorder += storm.disorder;
            if case.nodes == LARGEST && case.sources.len() > 1 {
                let (loss, crashed) = (case.weather.loss, case.weather.crashed.name());
                let claim = format!("2048 nodes, 128 sources, loss {loss}, {crashed} crash: all have all in ≤ 20 s");
                run.check(Check::new(claim, storm.last_ms, Must::AtMost, BOUND.as_secs_f64() * 1e3));
            }
        }
        run.check(Check::new("data that came twice ≤ 10 %, in every storm", Some(worst), Must::AtMost, MOST_PERCENT));
        run.check(Check::new("states that no owner had, or had before", Some(disorder as f64), Must::AtMost, 0.0));
        Ok(())
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nodes, sources, loss) = (self.nodes, self.sources.len(), self.weather.loss);
        write!(f, "{nodes} nodes, {sources} sources, loss {loss}, seed {}", self.seed)
    }
}

impl Case {
    /// Those who crash, lowest first.
    fn victims(&self) -> Vec<u32> {
        match self.weather.crashed {
            Crashed::Nobody => Vec::new(),
            // Beside the sources.
            Crashed::Others => (0..self.nodes / OTHERS).map(|c| c * OTHERS + 5).collect(),
            Crashed::Writers => self.sources.iter().copied().skip(1).step_by(WRITERS).collect(),
        }
    }

    fn row(&self, run: &mut Run, seeds: u64, storm: &Storm) {
        run.row(row! {
            "engine": "zone", "profile": "lan", "nodes": self.nodes, "sources": self.sources.len(),
            "changes": self.sources.len() as u32 * CHANGES, "loss": self.weather.loss,
            "crashed": self.weather.crashed.name(), "crashes": self.victims().len(), "seeds": seeds,
            "entries": storm.entries, "duplicates_percent": significant(storm.percent()),
            "order_violations": storm.disorder, "last_ms": storm.last_ms.map(significant),
        });
    }

    /// The sources write [`CHANGES`] times each, all at the same time. Who is to crash does so when half is written.
    fn storm(&self) -> Result<Storm, Error> {
        let Self { nodes, sources, .. } = self;
        let mut cluster = LAN.boot_zone(*nodes, self.seed)?;
        let victims = self.victims();
        let mut gone: &[u32] = &[];
        cluster.sim.fault(Fault::Weather(Conditions { loss: self.weather.loss, ..Conditions::default() }));
        let mut seen = vec![0; *nodes as usize * sources.len()];
        let mut disorder = 0;
        for change in 1..=CHANGES {
            for &source in sources {
                let value = change.to_le_bytes().to_vec();
                cluster.sim.command(source, Command::Set(key(change).into(), Some(value)));
            }
            if change == CHANGES / 2 {
                // In the midst of what they have just written.
                cluster.sim.run_for(BETWEEN / 4);
                victims.iter().for_each(|&v| cluster.sim.fault(Fault::Node(v, NodeFault::CrashProcess)));
                gone = &victims;
            }
            cluster.sim.run_for(BETWEEN);
            if change % LOOK_EACH == 0 {
                disorder += look(&cluster, sources, gone, &mut seen);
            }
        }
        let over = cluster.sim.now();
        // Who has everything keeps it, so one of those who lack something is looked at.
        let mut lacking: Vec<u32> = cluster.sim.cluster().processes().map(|(node, _)| node).collect();
        let right = |zone: &Zone, source: u32| match gone.binary_search(&source) {
            Ok(_) => zone.version(Slot(source)).is_none(),
            Err(_) => number(zone, source, CHANGES) == Some(CHANGES),
        };
        let complete = |zone: &Zone| sources.iter().all(|&s| right(zone, s));
        while !lacking.is_empty() && cluster.sim.now() < over + BOUND {
            cluster.sim.run_for(LOOK);
            while lacking.pop_if(|node| cluster.sim.process(*node).is_none_or(|m| complete(m.engine()))).is_some() {}
        }
        let took = cluster.sim.now().since(over) + BETWEEN;
        let last_ms = lacking.is_empty().then(|| took.as_secs_f64() * 1e3);
        disorder += look(&cluster, sources, gone, &mut seen);
        // What is still under way counts, too.
        cluster.sim.run_for(super::REST);
        let members = cluster.sim.cluster();
        let counters = members.processes().map(|(_, m)| m.engine().replication());
        let (entries, duplicates) = counters.fold((0, 0), |(e, d), c| (e + c.entries, d + c.duplicates));
        Ok(Storm { entries, duplicates, last_ms, disorder })
    }
}

fn key(change: u32) -> &'static str {
    KEYS[change as usize % KEYS.len()]
}

/// The number that a replica holds under the key of `change`.
fn number(zone: &Zone, source: u32, change: u32) -> Option<u32> {
    let value = zone.attribute(Slot(source), key(change))?;
    value.try_into().ok().map(u32::from_le_bytes)
}

/// Reads all replicas: how many are no state of their owner, or an earlier one than was `seen`. Of those who are `gone`
/// nothing may be seen by members that removed them.
fn look(cluster: &Cluster<Zone>, sources: &[u32], gone: &[u32], seen: &mut [u32]) -> u64 {
    let mut wrong = 0;
    for (node, member) in cluster.sim.cluster().processes() {
        for (i, &source) in sources.iter().enumerate() {
            let held = |k| number(member.engine(), source, k);
            let last = (0..KEYS.len() as u32).filter_map(held).max().unwrap_or(0);
            if gone.binary_search(&source).is_ok() && member.engine().version(Slot(source)).is_none() {
                wrong += u64::from(last > 0);
                continue;
            }
            let before = &mut seen[node as usize * sources.len() + i];
            // Its last few writes, each in its place.
            let state = (0..last.min(KEYS.len() as u32)).all(|back| held(last - back) == Some(last - back));
            wrong += u64::from(!state || last < *before);
            *before = last;
        }
    }
    wrong
}
