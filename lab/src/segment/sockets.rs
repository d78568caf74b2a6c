//! `segment-sockets`: the engines of [`segment-compare`](super::compare) on real UDP sockets of one host, to 100 nodes, as 003 §5 has them.
//!
//! The same columns, so that rows stand beside those of the simulator and of the analysis. All engines of a size run at once: what counts is in
//! seconds, and they leave the processors idle.

use super::crowd::{Birth, Crowd};
use super::{
    ALL_TO_ALL, Candidate, GOSSIP, Profile, Runs, SEGMENT, SEGMENT_LAN, Shown, ZONE, ZONE_LAN, analytic, figures, power,
};
use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must};
use phalanx_protocol::baselines::{AllToAll, Gossip, GossipConfig, Start};
use phalanx_protocol::member::Roster;
use phalanx_protocol::segment::Segment;
use phalanx_protocol::zone::{self, Zone};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The experiment.
pub(crate) struct SegmentSockets;

/// 003 §5.2: "from 20 to 100 with the number of networks from 1 to 5".
const SIZES: [u32; 5] = [20, 40, 60, 80, 100];
const QUICK: [u32; 1] = [20];
const CANDIDATES: [Candidate; 6] = [ALL_TO_ALL, GOSSIP, SEGMENT, SEGMENT_LAN, ZONE, ZONE_LAN];
/// No cluster boots longer; then it comes to rest.
const BOOT: Duration = Duration::from_secs(60);
const REST: Duration = Duration::from_secs(6);
/// Bytes are counted for so long.
const COUNTED: Duration = Duration::from_secs(10);
const QUICK_COUNTED: Duration = Duration::from_secs(4);
/// Nodes that die, one after the other; of gossip, which takes half a minute for each, fewer.
const DEATHS: u32 = 3;
const GOSSIP_DEATHS: u32 = 2;
/// As for the simulator, and time that threads may take to be woken on a busy machine.
const DETECTS_MS: (f64, f64) = (4000.0, 5500.0);

fn start(birth: &Birth) -> Start {
    Start { card: birth.card.clone(), incarnation: 1, bootstrap: birth.seeds.clone(), shared: Arc::clone(&birth.known) }
}

/// Starts a cluster and shows what it costs, and who knows of deaths when. `None` when it did not boot.
fn show(candidate: Candidate, nodes: u32, is_quick: bool) -> Result<Option<Shown>, Error> {
    let (runs, profile) = candidate;
    let crowd = match runs {
        Runs::AllToAll => {
            let config = super::all_to_all(nodes);
            Crowd::start(nodes, |b| AllToAll::new(config, start(&b), b.rng, b.now), |_| 0)?
        }
        Runs::Gossip => Crowd::start(nodes, |b| Gossip::new(GossipConfig::paper(), start(&b), b.rng, b.now), |_| 0)?,
        Runs::Segment => {
            let config = super::segment(profile, nodes);
            Crowd::start(nodes, |b| Segment::new(config, start(&b), b.rng, b.now), super::leads)?
        }
        Runs::Zone => {
            // A silent host breaks no wire.
            let config = Arc::new(zone::Config { tripwires: false, ..super::zone(profile) });
            let engine = |b: Birth| {
                let roster = Roster::new(Arc::clone(&b.known), config.members);
                Zone::new(&config, roster, &b.card, 1, &b.seeds.into(), b.rng, b.now)
            };
            Crowd::start(nodes, engine, |_| 0)?
        }
    };
    if !crowd.sees(nodes, BOOT) {
        return Ok(None);
    }
    thread::sleep(REST);
    let (before, at) = (crowd.heard(), Instant::now());
    thread::sleep(if is_quick { QUICK_COUNTED } else { COUNTED });
    let bytes_per_s = (crowd.heard() - before) as f64 / at.elapsed().as_secs_f64();
    Ok(Some(Dying { crowd, candidate, nodes, dead: BTreeSet::new() }.shown(bytes_per_s, is_quick)))
}

/// A cluster whose nodes die, one after the other.
struct Dying {
    crowd: Crowd,
    candidate: Candidate,
    nodes: u32,
    dead: BTreeSet<u32>,
}

impl Dying {
    fn shown(mut self, bytes_per_s: f64, is_quick: bool) -> Shown {
        let mut shown = Shown { bytes_per_s, ..Shown::default() };
        let deaths = match self.candidate.0 {
            _ if is_quick => 1,
            Runs::Gossip => GOSSIP_DEATHS,
            _ => DEATHS,
        };
        for death in 0..deaths {
            let Some(victim) = self.crowd.that_leads(0, death * self.nodes / deaths + 1) else { continue };
            let (first, last, mistakes) = self.kill(victim);
            shown.deaths.push((first, last));
            shown.mistakes += mistakes;
        }
        // One that leads a network and nothing else, where there are several; then the one that leads all.
        for levels in [1, self.crowd.levels()] {
            if let Some(victim) = self.crowd.that_leads(levels, 0).filter(|_| levels > 0) {
                let (_, last, mistakes) = self.kill(victim);
                shown.leaders.push(last);
                shown.leader_mistakes += mistakes;
            }
        }
        shown
    }

    /// Kills one: when the first and the last knew, and how many living ones were taken for dead meanwhile.
    fn kill(&mut self, victim: u32) -> (Option<f64>, Option<f64>, usize) {
        let at = self.crowd.kill(victim);
        self.dead.insert(victim);
        let until = at + Duration::from(super::patience(self.candidate, self.nodes));
        let (mut first, mut last, mut know, mut mistakes) = (None, None, BTreeSet::new(), 0);
        let all = self.nodes as usize - self.dead.len();
        while know.len() < all
            && let Some(left) = self.crowd.left(until)
        {
            mistakes += usize::from(!self.dead.contains(&left.subject) && !self.dead.contains(&left.observer));
            if left.subject == victim && know.insert(left.observer) {
                let ms = left.at.saturating_duration_since(at).as_secs_f64() * 1e3;
                first = Some(first.map_or(ms, |first: f64| first.min(ms)));
                last = Some(last.map_or(ms, |last: f64| last.max(ms)));
            }
        }
        // Who was taken for dead with it comes back, and a new leader has its backup.
        thread::sleep(REST);
        while let Some(left) = self.crowd.left(Instant::now()) {
            mistakes += usize::from(!self.dead.contains(&left.subject) && !self.dead.contains(&left.observer));
        }
        (first, last.filter(|_| know.len() == all), mistakes)
    }
}

impl Experiment for SegmentSockets {
    fn name(&self) -> &'static str {
        "segment-sockets"
    }

    fn about(&self) -> &'static str {
        "the same engines on real UDP sockets and multicast, 20 to 100 nodes of one host (003 §5, Figs. 8 to 10)"
    }

    fn picture(&self) -> Picture {
        figures()[0]
    }

    fn pictures(&self) -> Vec<Picture> {
        figures()
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let is_quick = run.options.quick;
        let sizes: &[u32] = if is_quick { &QUICK } else { &SIZES };
        let mut all = BTreeMap::new();
        for &nodes in sizes {
            run.progress(&format!("{nodes} nodes of each engine"));
            let shown = thread::scope(|scope| {
                let all = CANDIDATES.map(|c| (c, scope.spawn(move || show(c, nodes, is_quick))));
                all.map(|(c, thread)| (c, thread.join().expect("a panic there is one here")))
            });
            for (candidate, shown) in shown {
                let Some(shown) = shown? else {
                    let (engine, profile) = (candidate.0.name(), candidate.1.name());
                    run.note(format!("{engine}, {profile}, {nodes} nodes: did not boot"));
                    continue;
                };
                run.row(shown.row("real", candidate, nodes));
                all.insert((candidate, nodes), shown);
            }
            for runs in [Runs::AllToAll, Runs::Gossip, Runs::Segment] {
                if let Some(analytic) = analytic(runs, nodes) {
                    run.row(analytic.row(runs, nodes));
                }
            }
        }
        check(run, &all, sizes);
        Ok(())
    }
}

fn check(run: &mut Run, all: &BTreeMap<(Candidate, u32), Shown>, sizes: &[u32]) {
    let of = |candidate, of: fn(&Shown) -> Option<f64>| {
        sizes.iter().map(|&n| Some((f64::from(n), of(all.get(&(candidate, n))?)?))).collect::<Option<Vec<_>>>()
    };
    let worst = |candidate, value: fn(&Shown) -> Option<f64>, pick: fn(f64, f64) -> f64| {
        of(candidate, value)?.into_iter().map(|p| p.1).reduce(pick)
    };
    let bytes: fn(&Shown) -> Option<f64> = |shown| Some(shown.bytes_per_s);
    let mut check = |name: &str, value, must, bound| run.check(Check::new(name, value, must, bound));
    for candidate in [ALL_TO_ALL, SEGMENT] {
        let engine = candidate.0.name();
        let first = worst(candidate, Shown::first_ms, f64::min);
        check(&format!("{engine}, paper: the first knows after ≥ 4 s"), first, Must::AtLeast, DETECTS_MS.0);
        let last = worst(candidate, Shown::worst_ms, f64::max);
        check(&format!("{engine}, paper: all know within 5.5 s"), last, Must::AtMost, DETECTS_MS.1);
    }
    let last = worst(SEGMENT_LAN, Shown::worst_ms, f64::max);
    check("segment, lan: all know within 1 s", last, Must::AtMost, 1000.0);
    let dearest = of(SEGMENT_LAN, bytes)
        .zip(of(SEGMENT, bytes))
        .and_then(|(lan, paper)| lan.into_iter().zip(paper).map(|(lan, paper)| lan.1 / paper.1).reduce(f64::max));
    check("segment: bytes, lan / paper, at worst", dearest, Must::AtMost, 1.0);
    let is_paper = all.iter().filter(|c| c.0.0.1 == Profile::Paper).map(|c| c.1);
    let mistakes: usize = is_paper.clone().map(|s| s.mistakes).sum();
    check("paper: living nodes that were taken for dead", Some(mistakes as f64), Must::AtMost, 0.0);
    let last = worst(SEGMENT, Shown::leader_ms, f64::max);
    check("segment, paper: all know within 5.5 s that a leader is dead", last, Must::AtMost, DETECTS_MS.1);
    let mistakes: usize = is_paper.map(|s| s.leader_mistakes).sum();
    check("paper: living nodes that were taken for dead with their leader", Some(mistakes as f64), Must::AtMost, 0.0);
    if sizes.len() > 1 {
        let grows = |candidate| of(candidate, bytes).and_then(|points| power(&points));
        check("segment, paper: bytes grow by this power of n", grows(SEGMENT), Must::AtMost, 1.1);
        check("all-to-all: bytes grow by this power of n", grows(ALL_TO_ALL), Must::AtLeast, 1.9);
        check("gossip: bytes grow by this power of n", grows(GOSSIP), Must::AtLeast, 1.9);
    }
}
