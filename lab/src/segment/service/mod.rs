//! `segment-service`: Fig. 2 of 003 for real: what a service loses while nobody knows that one of its replicas is dead.
//!
//! Real daemons, on segments; replicas are processes that offer themselves through the directory of their nodes, front ends find them there. One
//! node is killed, daemon and replica, while all are under load. As in the figure that is at second 7, and a front end holds as many
//! requests as a dead replica takes in 3 s: with a detection after 5 s all of the service is gone by second 10, until the first requests give up
//! at second 13.

mod front;
mod replica;

use super::Profile;
use crate::child::Child;
use crate::daemons::{Daemons, said, wait};
use crate::error::Error;
use crate::experiment::{Experiment, Role, Run};
use crate::peers::sight::now_ms;
use crate::plot::{Is, Picture};
use crate::report::{Check, Must, row, significant};
use crate::stats::median;
use front::{Bin, Told};
use std::time::Duration;

/// The experiment.
pub(crate) struct SegmentService;

/// Nodes with a front end, and nodes with a replica.
const FRONTS: usize = 2;
const REPLICAS: usize = 4;
const SERVICE: &str = "documents";
const DOCUMENTS: u32 = 4096;
/// No answer is longer.
const ANSWERED: usize = 2048;
/// Requests in a second, of all front ends together.
const RATES: [u32; 3] = [50, 200, 800];
const QUICK: [u32; 1] = [200];
/// Deaths at each rate.
const DEATHS: u64 = 3;
const QUICK_DEATHS: u64 = 1;
/// Fig. 2: the load begins and ends, a node dies. The figure has no request before.
const BEGINS_S: f64 = 4.0;
const DIES_S: f64 = 7.0;
const ENDS_S: f64 = 18.0;
/// Fig. 2: a dead replica takes all places of a front end in so long, and who waits gives up after so long.
const EXHAUSTED_S: f64 = 3.0;
const WAITS: Duration = Duration::from_secs(6);
/// Requests are counted in bins, and shown in larger ones.
const BIN_MS: usize = 100;
const SHOWN_MS: usize = 500;
/// Before the load begins, so that all front ends begin at once.
const AHEAD_MS: f64 = 200.0;
/// A child takes less.
const PATIENCE: Duration = Duration::from_secs(60);
/// The paper's setting takes so long to find a node dead; `lan` is held to a second.
const DETECTS_MS: (f64, f64) = (4000.0, 5500.0);
const LAN_MS: f64 = 1000.0;
/// `lan` is five times as fast, so a service loses a fifth at most.
const FEWER: f64 = 5.0;
const REPLICA: &str = "service-replica";
const FRONT: &str = "service-front";

impl Experiment for SegmentService {
    fn name(&self) -> &'static str {
        "segment-service"
    }

    fn about(&self) -> &'static str {
        "a replicated service that loses a node: requests that fail with the directory's fast detection and with 5 s (003 Fig. 2)"
    }

    fn roles(&self) -> &'static [Role] {
        &[Role { name: REPLICA, play: replica::play }, Role { name: FRONT, play: front::play }]
    }

    fn picture(&self) -> Picture {
        let only = Some(("requests_per_s", Is::Number(QUICK[0].into())));
        Picture { x: "at_s", y: "answered_percent", series: &["profile"], only, beside: &[] }
    }

    fn pictures(&self) -> Vec<Picture> {
        let against_rate = |y| Picture { x: "requests_per_s", y, series: &["profile"], only: None, beside: &[] };
        vec![self.picture(), against_rate("failed")]
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let rates: &[u32] = if run.options.quick { &QUICK } else { &RATES };
        let deaths = run.seeds(QUICK_DEATHS, DEATHS);
        let profiles = [Profile::Lan, Profile::Paper];
        // Side by side: what counts is in seconds, and leaves the processors idle.
        let name = |profile: &Profile| profile.name().to_owned();
        let all = run.in_parallel(&profiles, name, |&profile| Service::start(profile)?.lose(rates, deaths));
        let [lan, paper] = <[_; 2]>::try_from(all).map_err(|_| said("a cluster has not been measured"))?;
        let (lan, paper) = (lan?, paper?);
        for (profile, found) in profiles.into_iter().zip([&lan, &paper]) {
            found.iter().for_each(|at| at.tell(run, profile));
        }
        for (lan, paper) in lan.iter().zip(&paper) {
            check(run, lan, paper);
        }
        Ok(())
    }
}

/// A cluster and its service.
struct Service {
    daemons: Daemons,
    /// Of each node that has one.
    replicas: Vec<Option<Child>>,
}

impl Service {
    fn start(profile: Profile) -> Result<Self, Error> {
        let daemons = Daemons::segments("service", FRONTS + REPLICAS, profile.name())?;
        let mut service = Self { daemons, replicas: (0..REPLICAS).map(|_| None).collect() };
        (0..REPLICAS).try_for_each(|number| service.offer(number))?;
        Ok(service)
    }

    fn offer(&mut self, number: usize) -> Result<(), Error> {
        let socket = self.daemons.daemon(FRONTS + number).socket();
        let child = Child::start(REPLICA, &[socket.display().to_string()])?;
        let line = child.line(PATIENCE)?;
        if line != "offered" {
            return Err(child.said(&line));
        }
        self.replicas[number] = Some(child);
        Ok(())
    }

    /// Loses nodes at each rate, one after the other.
    fn lose(mut self, rates: &[u32], deaths: u64) -> Result<Vec<Lost>, Error> {
        let mut turns = (0..REPLICAS).cycle();
        let lose = |&rate: &u32| {
            let deaths = (0..deaths).map(|_| self.lose_one(turns.next().unwrap_or(0), rate));
            Ok(Lost { rate, deaths: deaths.collect::<Result<_, Error>>()? })
        };
        rates.iter().map(lose).collect()
    }

    /// Kills a node under load, and starts it again.
    fn lose_one(&mut self, victim: usize, rate: u32) -> Result<Death, Error> {
        let each = f64::from(rate) / FRONTS as f64;
        let places = (each / REPLICAS as f64 * EXHAUSTED_S).ceil();
        let mut fronts = (0..FRONTS)
            .map(|number| {
                let socket = self.daemons.daemon(number).socket().display().to_string();
                let numbers = [each, places, ENDS_S - BEGINS_S].map(|n| n.to_string());
                Child::start_told(FRONT, &[&[socket][..], &numbers].concat())
            })
            .collect::<Result<Vec<_>, Error>>()?;
        for front in &fronts {
            let line = front.line(PATIENCE)?;
            if line != "found" {
                return Err(front.said(&line));
            }
        }
        let begins_ms = now_ms() + AHEAD_MS;
        fronts.iter_mut().try_for_each(|front| front.tell(&begins_ms.to_string()))?;
        let dies_ms = begins_ms + (DIES_S - BEGINS_S) * 1e3;
        std::thread::sleep(Duration::from_secs_f64((dies_ms - now_ms()).max(0.0) / 1e3));
        let node = FRONTS + victim;
        let daemon = self.daemons.take(&[node]);
        let died_ms = now_ms();
        daemon.iter().try_for_each(crate::peers::process::Process::kill)?;
        drop((self.replicas[victim].take(), daemon));
        let told = fronts
            .iter()
            .map(|front| {
                let line = front.line(PATIENCE)?;
                serde_json::from_str(&line).map_err(|_| front.said(&line))
            })
            .collect::<Result<Vec<Told>, Error>>()?;
        drop(fronts);
        self.daemons.spawn(node)?;
        self.daemons.wait_whole()?;
        self.offer(victim)?;
        let is_offered = |n| self.daemons.client(n).services(None).is_ok_and(|all| all.len() == REPLICAS);
        wait("all replicas are found again", || (0..FRONTS).all(is_offered))?;
        Ok(Death::of(&format!("n{node}"), died_ms, begins_ms, told))
    }
}

/// What a death did to the service.
#[derive(Clone, Debug)]
struct Death {
    /// All front ends together.
    bins: Vec<Bin>,
    /// From the death until the last request came that failed.
    failed_for_ms: f64,
    /// Until the last front end had no dead replica in its directory; unknown when one still has it.
    detected_ms: Option<f64>,
    /// Nodes that live and were not in somebody's directory.
    mistakes: usize,
    /// The bin in which it died.
    died: usize,
}

impl Death {
    fn of(victim: &str, died_ms: f64, begins_ms: f64, told: Vec<Told>) -> Self {
        let mut bins = vec![Bin::default(); told.iter().map(|t| t.bins.len()).max().unwrap_or(0)];
        for told in &told {
            bins.iter_mut().zip(&told.bins).for_each(|(all, one)| all.add(one));
        }
        let last = told.iter().filter_map(|t| t.failed_ms).map(|failed| failed.1).fold(0.0, f64::max);
        let gone = told.iter().map(|t| t.gone_ms.get(victim).map(|at| at - died_ms));
        let mistakes = told.iter().map(|t| t.gone_ms.keys().filter(|name| *name != victim).count()).sum();
        Self {
            died: ((died_ms - begins_ms) / BIN_MS as f64) as usize,
            failed_for_ms: (last - (died_ms - begins_ms)).max(0.0),
            detected_ms: super::worst(gone),
            mistakes,
            bins,
        }
    }

    fn all(&self) -> Bin {
        let mut all = Bin::default();
        self.bins.iter().for_each(|bin| all.add(bin));
        all
    }

    /// How long fewer than half of those were answered who asked.
    fn down_ms(&self) -> f64 {
        (self.bins.iter().filter(|bin| bin.answered * 2 < bin.all()).count() * BIN_MS) as f64
    }

    /// Requests that failed though nobody was dead.
    fn failed_before(&self) -> u64 {
        self.bins[..self.died.min(self.bins.len())].iter().map(Bin::failed).sum()
    }
}

/// Deaths at one rate.
struct Lost {
    rate: u32,
    deaths: Vec<Death>,
}

impl Lost {
    /// The median; unknown as soon as it is of one death.
    fn median(&self, of: impl Fn(&Death) -> Option<f64>) -> Option<f64> {
        median(&self.deaths.iter().map(of).collect::<Option<Vec<f64>>>()?)
    }

    fn failed(&self) -> Option<f64> {
        self.median(|death| Some(death.all().failed() as f64))
    }

    fn worst(&self, of: impl Fn(&Death) -> Option<f64>) -> Option<f64> {
        super::worst(self.deaths.iter().map(of))
    }

    /// A row of all deaths, and the course of the last one.
    fn tell(&self, run: &mut Run, profile: Profile) {
        let count = |of: fn(&Bin) -> u64| self.median(|death| Some(of(&death.all()) as f64));
        run.row(row! {
            "profile": profile.name(), "requests_per_s": self.rate, "deaths": self.deaths.len(),
            "requests": count(Bin::all), "failed": self.failed(),
            "timed_out": count(|b| b.timed_out), "turned_away": count(|b| b.turned_away),
            "failed_for_ms": self.median(|d| Some(d.failed_for_ms)).map(significant),
            "down_ms": self.median(|d| Some(d.down_ms())).map(significant),
            "detected_ms": self.median(|d| d.detected_ms).map(significant),
        });
        let Some(death) = self.deaths.last() else { return };
        for (number, bins) in death.bins.chunks(SHOWN_MS / BIN_MS).enumerate() {
            let mut shown = Bin::default();
            bins.iter().for_each(|bin| shown.add(bin));
            run.row(row! {
                "profile": profile.name(), "requests_per_s": self.rate,
                "at_s": significant(BEGINS_S + (number * SHOWN_MS) as f64 / 1e3),
                "answered_percent": significant(100.0 * shown.answered as f64 / shown.all().max(1) as f64),
            });
        }
    }
}

fn check(run: &mut Run, lan: &Lost, paper: &Lost) {
    let rate = lan.rate;
    let mut check =
        |claim: &str, value, must, bound| run.check(Check::new(format!("{rate}/s: {claim}"), value, must, bound));
    // One that lost nothing counts as one request.
    let fewer = paper.failed().zip(lan.failed()).map(|(paper, lan)| paper / lan.max(1.0));
    check("requests that fail, paper / lan", fewer, Must::AtLeast, FEWER);
    let detected = |death: &Death| death.detected_ms;
    check("lan: all front ends know within 1 s", lan.worst(detected), Must::AtMost, LAN_MS);
    check("paper: they know after ≥ 4 s", paper.median(detected), Must::AtLeast, DETECTS_MS.0);
    check("paper: within 5.5 s", paper.worst(detected), Must::AtMost, DETECTS_MS.1);
    // Fig. 2: "the entire service becomes unavailable from time 10 to 13".
    let down = |death: &Death| Some(death.down_ms());
    check("paper: all of the service is down for ≥ 1 s", paper.median(down), Must::AtLeast, 1000.0);
    check("lan: it is never down", lan.worst(down), Must::AtMost, 0.0);
    let both = || lan.deaths.iter().chain(&paper.deaths);
    let before: u64 = both().map(Death::failed_before).sum();
    check("requests that fail while all live", Some(before as f64), Must::AtMost, 0.0);
    let mistakes: usize = both().map(|death| death.mistakes).sum();
    check("living nodes that a directory had not", Some(mistakes as f64), Must::AtMost, 0.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(bins: &[(u64, u64, u64)], failed_ms: Option<(f64, f64)>, gone: &[(&str, f64)]) -> Told {
        let bin = |&(answered, timed_out, turned_away)| Bin { answered, timed_out, turned_away };
        let gone_ms = gone.iter().map(|&(node, ms)| (node.to_owned(), ms)).collect();
        Told { bins: bins.iter().map(bin).collect(), failed_ms, gone_ms }
    }

    /// Two front ends, of which one lost another node as well, and knew later.
    #[test]
    fn a_death_is_what_all_front_ends_saw() {
        let one = told(&[(9, 0, 1), (1, 1, 0), (0, 1, 3)], Some((0.0, 250.0)), &[("n2", 1_500.0)]);
        let other = told(&[(8, 0, 0), (5, 0, 0)], None, &[("n2", 1_900.0), ("n3", 1_700.0)]);
        let death = Death::of("n2", 1_100.0, 1_000.0, vec![one.clone(), other]);
        assert_eq!((death.detected_ms, death.mistakes, death.failed_for_ms), (Some(800.0), 1, 150.0));
        assert_eq!((death.all().failed(), death.failed_before(), death.down_ms()), (6, 1, 100.0));
        let blind = Death::of("n2", 1_100.0, 1_000.0, vec![one, told(&[], None, &[])]);
        assert_eq!(blind.detected_ms, None, "one still has it");
    }
}
