//! `zone-recipes`, `zone-lifeguard` and `zone-lifeguard-grid`: what was published of Rapid (ATC'18, R2 to R5, 1000 members)
//! and of Lifeguard (arXiv 1707.00788, blocked members of 128), over many seeds: only the faulty leave, no healthy member is
//! evicted, all views are equal afterwards.
//!
//! Profile `paper` and the baselines stand beside it, over a few seeds and without a bound. They may go on removing each
//! other for as long as a run lasts, so theirs have fewer seconds of faults and end after so many events; rows say both.

use super::{Candidate, Runs, candidate};
use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use phalanx_core::Duration;
use phalanx_sim::member::recipes::{Outcome, Published, Recipe, Size, carry_out, carry_out_on, lifeguard, rapid};
use phalanx_sim::member::{build_all_to_all, build_gossip};
use std::fmt;
use std::time::Instant;

/// R2 to R5.
pub(crate) struct ZoneRecipes;

/// 16 cells of Lifeguard's grid, with its corners.
pub(crate) struct ZoneLifeguard;

/// The whole grid.
pub(crate) struct ZoneLifeguardGrid;

const SEEDS: u64 = 100;
const QUICK_SEEDS: u64 = 2;
/// Lifeguard's own number of repeats: the corners have more.
const GRID_SEEDS: u64 = 10;
const QUICK_GRID_SEEDS: u64 = 1;
/// Of those that stand beside it.
const BESIDE_SEEDS: u64 = 2;
const QUICK_BESIDE_SEEDS: u64 = 1;
const BESIDE_LASTING: Duration = Duration::from_secs(60);
/// Events of one of their runs, times members, because a letter may name all of them: about a minute of a core.
const BESIDE_WORK: u64 = 5_000_000_000;
const QUICK_BESIDE_WORK: u64 = 1_500_000_000;
/// A member that comes and goes may do so as often, in all views.
const FLAPS: f64 = 2.0;

const LAN: Candidate = candidate(Runs::Zone, "lan", u32::MAX, 0);
/// ⚠ The baselines have no more than 128 members: at 1000, everybody hears of everybody in each period, a million events,
/// and minutes of a core for a few seconds. Gossip does not boot with the paper's period at that size.
const BESIDE: [Candidate; 3] = [
    candidate(Runs::Zone, "paper", u32::MAX, 0),
    candidate(Runs::AllToAll, "lan", 128, 0),
    candidate(Runs::Gossip, "lan", 128, 0),
];

const PICTURE: Picture =
    Picture { x: "seeds", y: "flaps_max", series: &["recipe", "engine", "profile"], only: None, beside: &[] };

impl Experiment for ZoneRecipes {
    fn name(&self) -> &'static str {
        "zone-recipes"
    }

    fn about(&self) -> &'static str {
        "crashes, deaf, lossy and cut off members of 1000: who is removed, and how often (Rapid R2-R5)"
    }

    fn picture(&self) -> Picture {
        PICTURE
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let ours = cases(&rapid(run.options.quick), LAN, run.seeds(QUICK_SEEDS, SEEDS)).collect::<Vec<_>>();
        let beside = beside(run, &rapid(true));
        carry_all_out(run, ours.into_iter().chain(beside).collect());
        Ok(())
    }
}

impl Experiment for ZoneLifeguard {
    fn name(&self) -> &'static str {
        "zone-lifeguard"
    }

    fn about(&self) -> &'static str {
        "members of 128 that block now and then: 16 cells of Lifeguard's grid, with its corners"
    }

    fn picture(&self) -> Picture {
        PICTURE
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let ours = cases(&lifeguard(false), LAN, run.seeds(QUICK_SEEDS, SEEDS)).collect::<Vec<_>>();
        let beside = beside(run, &lifeguard(false));
        carry_all_out(run, ours.into_iter().chain(beside).collect());
        Ok(())
    }
}

impl Experiment for ZoneLifeguardGrid {
    fn name(&self) -> &'static str {
        "zone-lifeguard-grid"
    }

    fn about(&self) -> &'static str {
        "all 360 cells of Lifeguard's grid, profile lan alone"
    }

    fn picture(&self) -> Picture {
        PICTURE
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let seeds = run.seeds(QUICK_GRID_SEEDS, GRID_SEEDS);
        carry_all_out(run, cases(&lifeguard(true), LAN, seeds).collect());
        Ok(())
    }
}

/// A recipe for members of one kind, over some seeds.
struct Case {
    published: Published,
    candidate: Candidate,
    seeds: u64,
    most_events: u64,
}

/// Without a bound for events.
fn cases(published: &[Published], candidate: Candidate, seeds: u64) -> impl Iterator<Item = Case> {
    published.iter().cloned().map(move |published| Case { published, candidate, seeds, most_events: u64::MAX })
}

fn beside(run: &Run, published: &[Published]) -> Vec<Case> {
    let (seeds, work) =
        if run.options.quick { (QUICK_BESIDE_SEEDS, QUICK_BESIDE_WORK) } else { (BESIDE_SEEDS, BESIDE_WORK) };
    let bounded = |case: Case| {
        let nodes = case.published.nodes.min(case.candidate.largest);
        let lasting = case.published.lasting.min(BESIDE_LASTING);
        let published = Published { nodes, lasting, ..case.published };
        Case { published, most_events: work / u64::from(nodes), ..case }
    };
    BESIDE.into_iter().flat_map(|candidate| cases(published, candidate, seeds)).map(bounded).collect()
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {}", self.published.name, self.candidate.engine(), self.candidate.profile)
    }
}

impl Case {
    /// One run, and the seconds that it took here.
    fn carry_out(&self, seed: u64) -> (Outcome, f64) {
        let Published { recipe, nodes, lasting, .. } = self.published;
        let size = Size { nodes, seed, profile: self.candidate.config(), lasting, most_events: self.most_events };
        let begin = Instant::now();
        let outcome = match self.candidate.runs {
            Runs::Zone => carry_out(recipe, &size),
            Runs::AllToAll => carry_out_on(recipe, &size, |s, o| build_all_to_all(s, o, self.candidate.all_to_all())),
            Runs::Gossip => carry_out_on(recipe, &size, |s, o| build_gossip(s, o, self.candidate.gossip())),
        };
        (outcome, begin.elapsed().as_secs_f64())
    }

    /// How many it befalls.
    const fn faulty(&self) -> u32 {
        match self.published.recipe {
            Recipe::Crash { faulty, .. }
            | Recipe::FlipFlop { faulty }
            | Recipe::Lossy { faulty, .. }
            | Recipe::Blocked { faulty, .. } => faulty,
            Recipe::Blackhole { .. } => 0,
        }
    }

    /// Blocked members need not leave, nor do those with a cut cable.
    const fn must_leave(&self) -> bool {
        !matches!(self.published.recipe, Recipe::Blocked { .. } | Recipe::Blackhole { .. })
    }
}

/// What came of all seeds of a recipe.
#[derive(Default)]
struct Found {
    seeds: u64,
    booted: u64,
    cut_short: u64,
    /// Runs in which each of the faulty was removed.
    faulty_left: u64,
    /// Evictions of healthy members, counted at healthy ones (FP−) and at all (FP).
    healthy_evicted: u64,
    false_positives: u64,
    /// Runs in which all views were equal afterwards; in which healthy members agreed before that.
    views_equal: u64,
    healthy_agree: u64,
    flaps_max: u32,
    /// In the worst run: until the last healthy member had removed the last of the faulty, and from healing until all
    /// views were right.
    last: Option<Duration>,
    /// In the run that ended first: how long faults lasted.
    lasted: Option<Duration>,
    healed: Option<Duration>,
    run_s: f64,
}

impl Found {
    fn add(&mut self, outcome: &Outcome, faulty: u32, run_s: f64) {
        self.seeds += 1;
        self.booted += u64::from(outcome.booted.is_some());
        self.cut_short += u64::from(outcome.cut_short);
        self.faulty_left += u64::from(outcome.booted.is_some() && outcome.removed == faulty);
        self.healthy_evicted += outcome.at_healthy;
        self.false_positives += outcome.false_positives;
        self.views_equal += u64::from(outcome.healed_in.is_some());
        self.healthy_agree += u64::from(outcome.views == 1);
        self.flaps_max = self.flaps_max.max(outcome.flaps);
        self.last = self.last.max(outcome.last);
        self.lasted = Some(self.lasted.map_or(outcome.lasted, |l| l.min(outcome.lasted)));
        self.healed = self.healed.max(outcome.healed_in);
        self.run_s += run_s;
    }

    fn row(&self, run: &mut Run, case: &Case) {
        let seconds = |time: Option<Duration>| time.map(|t| significant(t.as_secs_f64()));
        run.row(row! {
            "recipe": case.published.name.as_str(), "engine": case.candidate.engine(),
            "profile": case.candidate.profile, "nodes": case.published.nodes, "simultaneous": case.faulty(),
            "faults_s": case.published.lasting.as_secs_f64(), "seeds": self.seeds, "booted": self.booted,
            "cut_short": self.cut_short, "lasted_s": seconds(self.lasted), "faulty_left": self.faulty_left, "healthy_evicted": self.healthy_evicted,
            "false_positives": self.false_positives, "healthy_agree": self.healthy_agree,
            "views_equal": self.views_equal, "flaps_max": self.flaps_max, "last_s": seconds(self.last),
            "healed_s": seconds(self.healed), "run_s": significant(self.run_s / self.seeds.max(1) as f64),
        });
    }
}

fn carry_all_out(run: &mut Run, cases: Vec<Case>) {
    let runs: Vec<(usize, u64)> =
        cases.iter().enumerate().flat_map(|(case, c)| (0..c.seeds).map(move |seed| (case, seed))).collect();
    let name = |&(case, seed): &(usize, u64)| format!("{}, seed {seed}", cases[case]);
    let outcomes = run.in_parallel(&runs, name, |&(case, seed)| cases[case].carry_out(seed));
    let mut rows: Vec<Found> = cases.iter().map(|_| Found::default()).collect();
    for (&(case, seed), (outcome, run_s)) in runs.iter().zip(&outcomes) {
        let (found, case) = (&mut rows[case], &cases[case]);
        found.add(outcome, case.faulty(), *run_s);
        if case.candidate.is(LAN.runs, LAN.profile) && !outcome.is_clean() {
            run.note(format!("{case}, seed {seed} is not clean: {outcome:?}"));
        }
    }
    let (mut all, mut left) = (Found::default(), true);
    for (case, found) in cases.iter().zip(&rows) {
        found.row(run, case);
        if case.candidate.is(LAN.runs, LAN.profile) {
            let must_leave = case.must_leave();
            left &= !must_leave || found.faulty_left == found.seeds;
            all.seeds += found.seeds;
            all.views_equal += found.views_equal;
            all.healthy_evicted += found.healthy_evicted;
            all.flaps_max = all.flaps_max.max(if must_leave { found.flaps_max } else { 0 });
        }
    }
    let unequal = (all.seeds - all.views_equal) as f64;
    run.check(Check::new("lan: evictions of healthy members", Some(all.healthy_evicted as f64), Must::AtMost, 0.0));
    run.check(Check::new("lan: runs with unequal views afterwards", Some(unequal), Must::AtMost, 0.0));
    run.check(Check::new("lan: the faulty left, in all runs", Some(f64::from(u8::from(left))), Must::AtLeast, 1.0));
    run.check(Check::new("lan: flaps of one member, at most 2", Some(all.flaps_max.into()), Must::AtMost, FLAPS));
    run.note(format!("{} runs of profile lan", all.seeds));
}
