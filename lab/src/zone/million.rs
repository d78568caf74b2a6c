//! `zone-million`: one million nodes, 512 zones of 2048 and 512 supervisors, no stubs: boot, then crashes (002 §5).

use super::seconds;
use crate::child::Child;
use crate::error::Error;
use crate::experiment::{Experiment, Role, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use phalanx_core::Duration;
use phalanx_protocol::member::Engine;
use phalanx_protocol::zone::{Config, Zone};
use phalanx_sim::member::{self, Member, Options};
use phalanx_sim::{Fault, Latency, Network, NodeFault, Setup, Sim};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// The experiment.
pub(crate) struct ZoneMillion;

const ZONE: u32 = 2048;
const ZONES: [u32; 3] = [8, 64, 512];
const LARGEST: u32 = 512;
const THREADS: usize = 2;
/// No machine room starts a million processes in the same nanosecond; it would only make the simulator's peak higher.
const START_WITHIN: Duration = Duration::from_millis(20);
/// Each size has a process of its own, whose memory comes in huge pages: nodes lie all over many gigabytes, and without
/// them a quarter of the time goes into finding out where.
const HUGE_PAGES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
/// Between two lines of a child.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(900);
const LOOK: Duration = Duration::from_millis(50);
const BOOT_BOUND_S: f64 = 10.0;
const REST: Duration = Duration::from_millis(500);
const CRASH_LOOK: Duration = Duration::from_micros(500);
const CRASH_LOOKS: u32 = 200;

impl Experiment for ZoneMillion {
    fn name(&self) -> &'static str {
        "zone-million"
    }

    fn about(&self) -> &'static str {
        "a million nodes in 512 zones: boot to a full census, a crash at all supervisors, wall time and memory"
    }

    fn roles(&self) -> &'static [Role] {
        &[Role { name: "zone-million", play }]
    }

    fn picture(&self) -> Picture {
        Picture { x: "nodes", y: "wall_s", series: &["engine", "profile"], only: None, beside: &[] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let sizes = if run.options.quick { &ZONES[..2] } else { &ZONES[..] };
        for &zones in sizes {
            run.progress(&format!("{zones} zones of {ZONE}"));
            let found = in_a_child(run, zones)?;
            run.row(row! {
                "engine": "zone", "profile": "lan", "nodes": zones * ZONE + zones, "zones": zones,
                "boot_s": found.boot_s.map(significant), "supervisors_last_ms": found.crash_ms.map(significant),
                "wall_s": significant(found.wall_s), "rss_mb": found.rss_mb.map(significant), "events": found.events,
            });
            if zones == LARGEST {
                run.check(Check::new("a million: boot ≤ 3 s", found.boot_s, Must::AtMost, 3.0));
                run.check(Check::new(
                    "a million: a crash at all supervisors ≤ 20 ms",
                    found.crash_ms,
                    Must::AtMost,
                    20.0,
                ));
                run.check(Check::new("a million: wall ≤ 600 s", Some(found.wall_s), Must::AtMost, 600.0));
                run.check(Check::new("a million: memory ≤ 16 GiB, in MB", found.rss_mb, Must::AtMost, 16.0 * 1024.0));
            }
        }
        Ok(())
    }
}

#[derive(Serialize, Deserialize)]
struct Found {
    boot_s: Option<f64>,
    crash_ms: Option<f64>,
    wall_s: f64,
    rss_mb: Option<f64>,
    events: u64,
}

fn in_a_child(run: &mut Run, zones: u32) -> Result<Found, Error> {
    let child = Child::start_in("zone-million", &[zones.to_string()], &[HUGE_PAGES])?;
    loop {
        let line = child.line(PATIENCE)?;
        match line.strip_prefix(PROGRESS) {
            Some(progress) => run.progress(progress),
            None => return serde_json::from_str(&line).map_err(|_| child.said(&line)),
        }
    }
}

/// What a child says while it works.
const PROGRESS: &str = "… ";

fn play(args: &[String]) -> Result<(), Error> {
    let zones = args.first().and_then(|a| a.parse().ok()).ok_or_else(|| Error::UnknownRole(args.join(" ")))?;
    let found = boot_and_crash(zones)?;
    println!("{}", serde_json::to_string(&found).map_err(Error::peer("serde_json"))?);
    Ok(())
}

fn boot_and_crash(zones: u32) -> Result<Found, Error> {
    let begin = Instant::now();
    let (base, supervisors) = (zones * ZONE, zones);
    let network = Network { latency: Latency::Fixed { us: 500.0 }, ..Network::default() };
    let setup = Setup {
        nodes: base + supervisors,
        seed: 1,
        threads: THREADS,
        network,
        start_within: START_WITHIN,
        ..Setup::default()
    };
    let options = Options { profile: Config::lan(), by_reference: true, zone: ZONE, supervisors, ..Options::default() };
    let (mut sim, _) = member::build(&setup, &options).map_err(Error::peer("phalanx-sim"))?;
    let mut boot_s = None;
    while boot_s.is_none() && seconds(&sim) < BOOT_BOUND_S {
        sim.run_for(LOOK);
        println!(
            "{PROGRESS}{zones} zones: {:.2} s of virtual time, {} M events",
            seconds(&sim),
            sim.stats().events / 1_000_000
        );
        let full = sim.cluster().processes().all(|(n, m)| {
            let expected = if n < base { ZONE } else { supervisors };
            m.engine().len() as u32 == expected
        });
        boot_s = (full && census_is(&sim, base, zones, base)).then(|| seconds(&sim));
    }
    let mut crash_ms = None;
    if boot_s.is_some() {
        // Until the storm of the boot is over: news waits for more while it lasts.
        sim.run_for(REST);
        let at = sim.now();
        // Neither a seed nor likely a delegate of its zone.
        sim.fault(Fault::Node(ZONE / 2, NodeFault::CrashProcess));
        for _ in 0..CRASH_LOOKS {
            sim.run_for(CRASH_LOOK);
            if census_is(&sim, base, zones, base - 1) {
                crash_ms = Some(sim.now().since(at).as_secs_f64() * 1e3);
                break;
            }
        }
    }
    let events = sim.stats().events;
    Ok(Found { boot_s, crash_ms, wall_s: begin.elapsed().as_secs_f64(), rss_mb: rss_mb(), events })
}

/// True when every supervisor counts so many zones, and so many members in them.
fn census_is(sim: &Sim<Member<Zone>>, base: u32, zones: u32, members: u32) -> bool {
    let cluster = sim.cluster();
    let mut supervisors = cluster.processes().filter(|(n, _)| *n >= base);
    supervisors.all(|(_, m)| member::zones_known(m) == (zones as usize, members))
}

/// The most memory that this process ever held.
fn rss_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
}
