//! Robustness recipes of Rapid (ATC'18) and Lifeguard (arXiv 1707.00788), as functions that tests and the lab call.
//!
//! Each boots a cluster, inflicts its faults for a while, heals, and says who was removed, how often, how many of these
//! removals were false (FP at all members, FP− at healthy ones, as Lifeguard counts), whether healthy members agreed
//! while faults lasted, and when all views were equal again. [`rapid`] and [`lifeguard`] are the published sizes.

use super::checks::{Accuracy, Tally, wrong_view};
use super::{Member, Note, Options, Telling, boot, build};
use crate::fault::{Fault, NodeFault};
use crate::latency::Latency;
use crate::network::{Network, NetworkError};
use crate::partition::Partition;
use crate::sim::{Setup, Sim};
use phalanx_core::{Duration, Instant, Rng};
use phalanx_protocol::member::{Engine, Why};
use phalanx_protocol::zone::Config;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What befalls whom.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Recipe {
    /// R2: so many processes crash at once; or so many hosts.
    Crash {
        /// How many.
        faulty: u32,
        /// The hosts die, not the processes.
        hosts: bool,
    },
    /// R3: so many drop all incoming packets, 20 s on, 20 s off.
    FlipFlop {
        /// How many.
        faulty: u32,
    },
    /// R4: so many lose this part of what they send, or of what they receive.
    Lossy {
        /// How many.
        faulty: u32,
        /// The part that is lost.
        part: f64,
        /// Of what they receive.
        inward: bool,
    },
    /// R5: nothing passes between so many pairs.
    Blackhole {
        /// How many.
        pairs: u32,
    },
    /// Lifeguard: so many members block for `blocked`, again after `interval`.
    Blocked {
        /// How many.
        faulty: u32,
        /// For how long.
        blocked: Duration,
        /// How long they run in between.
        interval: Duration,
    },
}

/// A recipe at the size at which it was published.
#[derive(Clone, PartialEq, Debug)]
pub struct Published {
    /// What it is called.
    pub name: String,
    /// What befalls whom.
    pub recipe: Recipe,
    /// Members.
    pub nodes: u32,
    /// How long faults last.
    pub lasting: Duration,
}

/// Rapid's R2 to R5, at 1000 members. R3 and R4 last for 400 s, which is what its figures show: ten times deaf. In `short`,
/// faults last until nothing new can come of them: R3 three times on and off, so that a member that came back each time
/// would be removed three times.
#[must_use]
pub fn rapid(short: bool) -> Vec<Published> {
    let faulty = 10;
    let lossy = |inward| Recipe::Lossy { faulty, part: 0.8, inward };
    let published = |name: &str, recipe, whole, part| {
        let lasting = Duration::from_secs(if short { part } else { whole });
        Published { name: name.to_owned(), recipe, nodes: 1000, lasting }
    };
    vec![
        published("r2", Recipe::Crash { faulty, hosts: false }, 60, 10),
        published("r2hosts", Recipe::Crash { faulty, hosts: true }, 60, 10),
        published("r3", Recipe::FlipFlop { faulty }, 400, 120),
        published("r4out", lossy(false), 400, 60),
        published("r4in", lossy(true), 400, 60),
        published("r5", Recipe::Blackhole { pairs: 1 }, 120, 30),
        published("r5many", Recipe::Blackhole { pairs: 30 }, 120, 30),
    ]
}

/// Lifeguard's blocked members, at 128: the whole grid, or 16 cells of it, with its corners.
#[must_use]
pub fn lifeguard(whole: bool) -> Vec<Published> {
    let (faulty, blocked, intervals): (&[u32], &[u64], &[u64]) = if whole {
        let faulty = &[1, 4, 8, 12, 16, 20, 24, 28, 32];
        (faulty, &[128, 512, 2048, 8192, 32_768], &[1, 4, 16, 64, 256, 1024, 4096, 16_384])
    } else {
        (&[1, 32], &[128, 2048, 8192, 32_768], &[1, 16_384])
    };
    let mut cells = Vec::new();
    for &faulty in faulty {
        for &d in blocked {
            for &i in intervals {
                let (blocked, interval) = (Duration::from_millis(d), Duration::from_millis(i));
                cells.push(Published {
                    name: format!("{faulty} × {d} ms / {i} ms"),
                    recipe: Recipe::Blocked { faulty, blocked, interval },
                    nodes: 128,
                    lasting: Duration::from_secs(120),
                });
            }
        }
    }
    cells
}

/// The size of a run.
#[derive(Clone, Debug)]
pub struct Size {
    /// Members.
    pub nodes: u32,
    /// Replays the run.
    pub seed: u64,
    /// Their profile, when they are zones.
    pub profile: Config,
    /// How long faults last.
    pub lasting: Duration,
    /// The run ends after so many events. Members that go on removing each other would keep it busy for hours.
    pub most_events: u64,
}

/// What came of a recipe.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcome {
    /// From the start until all views were full; `None` when the cluster did not boot, and nothing befell it.
    pub booted: Option<Duration>,
    /// The run had more events than it may, and ended before all was over.
    pub cut_short: bool,
    /// How long faults lasted.
    pub lasted: Duration,
    /// Removals of faulty members, each observer counted.
    pub of_faulty: u64,
    /// FP: removals of healthy members, at all members.
    pub false_positives: u64,
    /// FP−: removals of healthy members at healthy ones.
    pub at_healthy: u64,
    /// Faulty members that somebody removed.
    pub removed: u32,
    /// The most often that one observer removed one member.
    pub flaps: u32,
    /// From the first fault until the first removal, and until the last observer's first removal of the last member.
    pub first: Option<Duration>,
    /// See `first`.
    pub last: Option<Duration>,
    /// Different views that healthy members had at the end of the faults; 1 when they agreed.
    pub views: usize,
    /// Events of the run, until healing.
    pub events: u64,
    /// From healing until all views were right; `None` when they were not in time.
    pub healed_in: Option<Duration>,
    /// What was still wrong then.
    pub wrong: Option<String>,
}

impl Outcome {
    /// Only the faulty left, no healthy member was evicted by a healthy one, and all views were equal afterwards.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.at_healthy == 0 && self.healed_in.is_some() && !self.cut_short
    }
}

/// How long all may take to be well again: a member that was removed several times holds back until it has been well for
/// at most 160 s.
const HEALED: Duration = Duration::from_secs(300);
/// A cluster boots no longer, and then comes to rest for so long.
const BOOT: Duration = Duration::from_secs(60);
const REST: Duration = Duration::from_secs(5);
/// A run is looked at so often.
const LOOK: Duration = Duration::from_millis(250);

fn plan<E: Engine + Send>(sim: &mut Sim<Member<E>>, recipe: Recipe, size: &Size, at: Instant) -> Vec<u32> {
    let mut rng = Rng::new(size.seed, 0xfa);
    let mut nodes: Vec<u32> = (0..size.nodes).collect();
    rng.shuffle(&mut nodes);
    let end = at + size.lasting;
    let mut chosen = |many: u32| {
        let mut chosen = nodes.split_off(nodes.len() - many as usize);
        chosen.sort_unstable();
        chosen
    };
    let loss = |inward, outward| NodeFault::Loss { inward, outward };
    match recipe {
        Recipe::Crash { faulty, hosts } => {
            let gone = chosen(faulty);
            let kind = if hosts { NodeFault::CrashHost } else { NodeFault::CrashProcess };
            gone.iter().for_each(|&n| sim.fault_at(at, Fault::Node(n, kind)));
            gone
        }
        Recipe::FlipFlop { faulty } => {
            let half = Duration::from_secs(20);
            let deaf = chosen(faulty);
            for &node in &deaf {
                let mut from = at;
                while from < end {
                    sim.fault_at(from, Fault::Node(node, loss(1.0, 0.0)));
                    sim.fault_at(from + half, Fault::Node(node, loss(0.0, 0.0)));
                    from += half * 2;
                }
            }
            deaf
        }
        Recipe::Lossy { faulty, part, inward } => {
            let lossy = chosen(faulty);
            let fault = if inward { loss(part, 0.0) } else { loss(0.0, part) };
            lossy.iter().for_each(|&n| sim.fault_at(at, Fault::Node(n, fault)));
            lossy
        }
        Recipe::Blackhole { pairs } => {
            for pair in 0..pairs {
                let two = chosen(2);
                sim.fault_at(at, Fault::Partition(Partition::between(&format!("pair {pair}"), [two[0]], [two[1]])));
            }
            Vec::new()
        }
        Recipe::Blocked { faulty, blocked, interval } => {
            let slow = chosen(faulty);
            for &node in &slow {
                let mut from = at;
                while from < end {
                    sim.fault_at(from, Fault::pause(node));
                    sim.fault_at(from + blocked, Fault::resume(node));
                    from += blocked + interval;
                }
            }
            slow
        }
    }
}

/// Carries a recipe out on a zone.
///
/// # Panics
/// See [`carry_out_on`].
#[must_use]
pub fn carry_out(recipe: Recipe, size: &Size) -> Outcome {
    carry_out_on(recipe, size, build)
}

/// Carries a recipe out on members of any engine.
///
/// # Panics
/// When `build` refuses a network that makes sense.
#[must_use]
pub fn carry_out_on<E: Engine + Send + 'static>(
    recipe: Recipe,
    size: &Size,
    build: impl FnOnce(&Setup, &Options) -> Result<(Sim<Member<E>>, Telling), NetworkError>,
) -> Outcome {
    let network = Network { latency: Latency::Fixed { us: 500.0 }, ..Network::default() };
    let setup = Setup { nodes: size.nodes, seed: size.seed, network, ..Setup::default() };
    let options = Options { profile: size.profile.clone(), by_reference: true, ..Options::default() };
    let (mut sim, telling) = build(&setup, &options).expect("the network makes sense");
    let booted = boot(&mut sim, size.nodes as usize, Duration::from_millis(20), BOOT).took;
    let mut outcome = Outcome { booted, ..Outcome::default() };
    if outcome.booted.is_none() {
        return outcome;
    }
    sim.run_for(REST);
    // Who was not told to have started counts for nothing in a partition; here all have.
    let accuracy = Accuracy::new(size.nodes, false).all_started();
    let tally: Arc<Tally> = accuracy.tally();
    sim.check(accuracy);
    sim.keep_notes();
    telling.set(true);
    let at = sim.now() + Duration::from_millis(3);
    let faulty = plan(&mut sim, recipe, size, at);
    let end = at + size.lasting;
    while sim.now() < end && !outcome.cut_short {
        sim.run_until((sim.now() + LOOK).min(end));
        outcome.cut_short = sim.stats().events >= size.most_events;
    }
    (outcome.events, outcome.lasted) = (sim.stats().events, sim.now().since(at));
    judge(&sim, at, &faulty, &mut outcome);
    sim.heal(true);
    let healed = sim.now();
    loop {
        // Those who start again are not there at once.
        sim.run_for(LOOK);
        outcome.wrong = wrong_view(&sim.cluster());
        outcome.cut_short |= outcome.wrong.is_some() && sim.stats().events >= size.most_events;
        let took = sim.now().since(healed);
        if outcome.wrong.is_none() {
            outcome.healed_in = Some(took);
        }
        if outcome.wrong.is_none() || took >= HEALED || outcome.cut_short {
            break;
        }
    }
    // Until the end: a healthy member must not be evicted while others come back, either.
    (outcome.false_positives, outcome.at_healthy) = tally.false_positives();
    outcome.of_faulty = tally.of_faulty();
    outcome
}

fn judge<E: Engine + Send>(sim: &Sim<Member<E>>, since: Instant, faulty: &[u32], outcome: &mut Outcome) {
    let healthy = |node: &u32| faulty.binary_search(node).is_err();
    let mut often: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    for &(at, observer, note) in sim.notes() {
        let Note::Left { node, why: Why::Failed, .. } = note else { continue };
        if healthy(&node) || !healthy(&observer) {
            continue;
        }
        let count = often.entry((node, observer)).or_default();
        *count += 1;
        outcome.first = outcome.first.or(Some(at.since(since)));
        if *count == 1 {
            outcome.last = Some(at.since(since));
        }
    }
    outcome.flaps = often.values().copied().max().unwrap_or(0);
    outcome.removed = faulty.iter().filter(|&&f| often.range((f, 0)..=(f, u32::MAX)).next().is_some()).count() as u32;
    let cluster = sim.cluster();
    let views: BTreeSet<Vec<u32>> = cluster
        .processes()
        .filter(|(node, _)| healthy(node))
        .map(|(_, m)| {
            let mut view: Vec<u32> = m.engine().members().filter_map(|(s, _)| m.whereabouts(s)).collect();
            view.sort_unstable();
            view
        })
        .collect();
    outcome.views = views.len();
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEDS: u64 = 4;

    fn lan(nodes: u32, seed: u64, secs: u64) -> Size {
        let lasting = Duration::from_secs(secs);
        Size { nodes, seed, profile: Config::lan(), lasting, most_events: u64::MAX }
    }

    /// In the small; the full size is the lab's.
    fn each(recipe: Recipe, nodes: u32, secs: u64, check: impl Fn(&Outcome)) {
        for seed in 0..SEEDS {
            let outcome = carry_out(recipe, &lan(nodes, seed, secs));
            assert!(outcome.is_clean(), "seed {seed}: {outcome:?}");
            check(&outcome);
        }
    }

    #[test]
    fn rapid_r2_those_who_crash_are_removed_once() {
        for hosts in [false, true] {
            each(Recipe::Crash { faulty: 5, hosts }, 60, 10, |o| {
                assert_eq!((o.removed, o.flaps, o.views), (5, 1, 1), "{o:?}");
            });
        }
    }

    #[test]
    fn rapid_r3_those_who_go_deaf_now_and_then_are_removed_and_hold_back() {
        each(Recipe::FlipFlop { faulty: 4 }, 60, 200, |o| {
            assert!((o.removed, o.views) == (4, 1) && o.flaps <= 2, "{o:?}");
        });
    }

    /// Once the deaf took some neighbours for dead, each by itself. When they heard again, these had to say to all that they
    /// live: at 1000 members, a quarter of a million letters in a second, and again, because they held back then.
    #[test]
    fn those_who_hear_nobody_for_a_while_take_nobody_of_a_large_zone_for_dead() {
        let outcome = carry_out(Recipe::FlipFlop { faulty: 3 }, &lan(300, 1, 50));
        assert!(outcome.is_clean(), "{outcome:?}");
        assert_eq!((outcome.removed, outcome.flaps, outcome.false_positives), (3, 2, 0), "{outcome:?}");
    }

    #[test]
    fn rapid_r4_those_who_lose_most_are_removed_and_stay_out() {
        for inward in [false, true] {
            let recipe = Recipe::Lossy { faulty: 3, part: 0.8, inward };
            each(recipe, 60, 120, |o| assert!(o.removed == 3 && o.flaps <= 2, "{o:?}"));
        }
    }

    #[test]
    fn rapid_r5_nobody_is_removed_for_a_cable() {
        each(Recipe::Blackhole { pairs: 10 }, 40, 60, |o| assert_eq!((o.false_positives, o.views), (0, 1), "{o:?}"));
    }

    #[test]
    fn lifeguard_blocked_members_blame_nobody() {
        let ms = Duration::from_millis;
        for (blocked, interval) in [(ms(128), ms(1)), (ms(2048), ms(64)), (ms(8192), ms(1024))] {
            each(Recipe::Blocked { faulty: 6, blocked, interval }, 40, 60, |_| {});
        }
    }

    #[test]
    fn a_run_with_too_many_events_and_one_that_does_not_boot_end_and_are_not_clean() {
        let crash = Recipe::Crash { faulty: 2, hosts: false };
        let outcome = carry_out(crash, &Size { most_events: 1, ..lan(20, 1, 10) });
        assert!(outcome.cut_short && outcome.booted.is_some(), "{outcome:?}");
        let lonely = |setup: &Setup, options: &Options| build(setup, &Options { seeds: 0, ..options.clone() });
        let outcome = carry_out_on(crash, &lan(20, 1, 10), lonely);
        assert!(outcome.booted.is_none() && !outcome.is_clean(), "{outcome:?}");
    }

    #[test]
    fn the_cells_of_lifeguard_are_of_its_grid() {
        let (few, whole) = (lifeguard(false), lifeguard(true));
        assert_eq!((few.len(), whole.len()), (16, 360));
        assert!(few.iter().all(|cell| whole.contains(cell)));
    }
}
