//! `zone-recipes` and `zone-lifeguard`: what was published of Rapid (ATC'18, R2 to R5, 1000 members) and of Lifeguard
//! (arXiv 1707.00788, blocked members of 128), over many seeds: only the faulty leave, no healthy member is evicted, all
//! views are equal afterwards. Profile `paper` stands beside it, without a bound.

use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use phalanx_protocol::zone::Config;
use phalanx_sim::member::recipes::{Published, Recipe, Size, carry_out, lifeguard, rapid};
use std::time::Instant;

/// R2 to R5, and 16 cells of Lifeguard's grid with its corners.
pub(crate) struct ZoneRecipes;

/// The whole grid.
pub(crate) struct ZoneLifeguard;

const SEEDS: u64 = 100;
const QUICK_SEEDS: u64 = 2;
/// The paper's profile has no bound to prove, and takes longer.
const PAPER_SEEDS: u64 = 3;
/// A member that comes and goes may do so as often, in all views.
const FLAPS: f64 = 2.0;

impl Experiment for ZoneRecipes {
    fn name(&self) -> &'static str {
        "zone-recipes"
    }

    fn about(&self) -> &'static str {
        "crashes, deaf, lossy, cut off and blocked members: who is removed, and how often (Rapid R2-R5, Lifeguard)"
    }

    fn picture(&self) -> Picture {
        Picture { x: "seeds", y: "flaps_max", series: &["recipe", "profile"], only: None }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let recipes: Vec<Published> = rapid().into_iter().chain(lifeguard(false)).collect();
        carry_all_out(run, &recipes)
    }
}

impl Experiment for ZoneLifeguard {
    fn name(&self) -> &'static str {
        "zone-lifeguard"
    }

    fn about(&self) -> &'static str {
        "members of 128 that block now and then: all 360 cells of Lifeguard's grid"
    }

    fn picture(&self) -> Picture {
        Picture { x: "seeds", y: "flaps_max", series: &["recipe", "profile"], only: None }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        carry_all_out(run, &lifeguard(true))
    }
}

/// What came of all seeds of a recipe.
#[derive(Default)]
struct Found {
    seeds: u64,
    /// Runs in which each of the faulty was removed.
    faulty_left: u64,
    /// Evictions of healthy members, counted at healthy ones (FP−) and at all (FP).
    healthy_evicted: u64,
    false_positives: u64,
    /// Runs in which all views were equal afterwards; in which healthy members agreed before that.
    views_equal: u64,
    healthy_agree: u64,
    flaps_max: u32,
    wall_s: f64,
    /// The seeds that were not clean.
    red: Vec<u64>,
}

impl Found {
    fn of(published: &Published, profile: &Config, seeds: u64) -> Self {
        let begin = Instant::now();
        let mut found = Self::default();
        let faulty = faulty(published.recipe);
        for seed in 0..seeds {
            let size = Size { nodes: published.nodes, seed, profile: profile.clone(), lasting: published.lasting };
            let outcome = carry_out(published.recipe, &size);
            found.seeds += 1;
            found.faulty_left += u64::from(outcome.removed == faulty);
            found.healthy_evicted += outcome.at_healthy;
            found.false_positives += outcome.false_positives;
            found.views_equal += u64::from(outcome.healed_in.is_some());
            found.healthy_agree += u64::from(outcome.views == 1);
            found.flaps_max = found.flaps_max.max(outcome.flaps);
            if !outcome.is_clean() {
                found.red.push(seed);
            }
        }
        found.wall_s = begin.elapsed().as_secs_f64();
        found
    }
}

/// How many it befalls.
const fn faulty(recipe: Recipe) -> u32 {
    match recipe {
        Recipe::Crash { faulty, .. }
        | Recipe::FlipFlop { faulty }
        | Recipe::Lossy { faulty, .. }
        | Recipe::Blocked { faulty, .. } => faulty,
        Recipe::Blackhole { .. } => 0,
    }
}

fn carry_all_out(run: &mut Run, recipes: &[Published]) -> Result<(), Error> {
    let mut sums = Found::default();
    let mut left = true;
    for published in recipes {
        for (name, profile) in &[("paper", Config::paper()), ("lan", Config::lan())] {
            let lan = *name == "lan";
            let seeds = match (run.options.quick, lan) {
                (true, _) => QUICK_SEEDS,
                (false, true) => SEEDS,
                (false, false) => PAPER_SEEDS,
            };
            run.progress(&format!("{}, {name}, {seeds} seeds", published.name));
            let found = Found::of(published, profile, seeds);
            run.row(row! {
                "recipe": published.name.as_str(), "engine": "zone", "profile": *name, "nodes": published.nodes,
                "seeds": found.seeds, "faulty_left": found.faulty_left, "healthy_evicted": found.healthy_evicted,
                "false_positives": found.false_positives, "healthy_agree": found.healthy_agree,
                "views_equal": found.views_equal, "flaps_max": found.flaps_max, "wall_s": significant(found.wall_s),
            });
            if !lan {
                continue;
            }
            // Blocked members need not leave, nor do those with a cut cable.
            let must_leave = !matches!(published.recipe, Recipe::Blocked { .. } | Recipe::Blackhole { .. });
            left &= !must_leave || found.faulty_left == found.seeds;
            sums.seeds += found.seeds;
            sums.views_equal += found.views_equal;
            sums.healthy_evicted += found.healthy_evicted;
            sums.flaps_max = sums.flaps_max.max(if must_leave { found.flaps_max } else { 0 });
            for seed in &found.red {
                run.note(format!("{}, lan: seed {seed} is not clean", published.name));
            }
        }
    }
    let unequal = (sums.seeds - sums.views_equal) as f64;
    run.check(Check::new("lan: evictions of healthy members", Some(sums.healthy_evicted as f64), Must::AtMost, 0.0));
    run.check(Check::new("lan: runs with unequal views afterwards", Some(unequal), Must::AtMost, 0.0));
    run.check(Check::new("lan: the faulty left, in all runs", Some(f64::from(u8::from(left))), Must::AtLeast, 1.0));
    run.check(Check::new("lan: flaps of one member, at most 2", Some(sums.flaps_max.into()), Must::AtMost, FLAPS));
    run.note(format!("{} runs of profile lan", sums.seeds));
    Ok(())
}
