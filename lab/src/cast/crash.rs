//! `cast-crash`: a broadcast among real daemons of which some are killed in the moment it starts. When does the last survivor have it?

use crate::daemons::{Daemons, said, wait};
use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use crate::stats::median;
use phalanx_client::Client;
use phalanx_client::casts::To;
use phalanx_core::Rng;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// The experiment.
pub(crate) struct CastCrash;

const NODES: usize = 64;
const QUICK_NODES: usize = 16;
const KILLED: usize = 3;
const TRIALS: u64 = 20;
const QUICK: u64 = 3;
/// A cast that takes longer does not come.
const PATIENCE: Duration = Duration::from_secs(20);
/// Before a cast that is measured.
const REST: Duration = Duration::from_millis(300);
const SEED: u64 = 0xca57;

impl Experiment for CastCrash {
    fn name(&self) -> &'static str {
        "cast-crash"
    }

    fn about(&self) -> &'static str {
        "a broadcast among 64 real daemons, 3 killed in the millisecond it starts: when the last survivor has it"
    }

    fn picture(&self) -> Picture {
        Picture { x: "trial", y: "last_ms", series: &["what"], only: None, beside: &[] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let nodes = if run.options.quick { QUICK_NODES } else { NODES };
        let trials = run.seeds(QUICK, TRIALS);
        let mut hall = Hall::open(nodes)?;
        let mut rng = Rng::new(SEED, 1);
        let (mut whole, mut torn, mut settled) = (Vec::new(), Vec::new(), Vec::new());
        let mut late = 0;
        for trial in 0..trials {
            run.progress(&format!("trial {} of {trials}", trial + 1));
            let from = rng.below(nodes as u64) as usize;
            hall.cast(from, &[])?;
            thread::sleep(REST);
            let before = hall.cast(from, &[])?;
            let mut victims = Vec::new();
            while victims.len() < KILLED {
                let victim = rng.below(nodes as u64) as usize;
                if victim != from && !victims.contains(&victim) {
                    victims.push(victim);
                }
            }
            thread::sleep(REST);
            let after = hall.cast(from, &victims)?;
            late += before.without + after.without;
            for (what, took) in [("undamaged", &before), ("3 killed", &after)] {
                run.row(row! {
                    "what": what, "trial": trial, "nodes": nodes, "half_ms": significant(took.half_ms), "last_ms": significant(took.last_ms),
                    "settled_ms": significant(took.settled_ms), "without": took.without,
                });
            }
            whole.push(before.last_ms);
            torn.push(after.last_ms);
            settled.push(after.settled_ms);
            hall.mend(&victims)?;
        }
        run.check(Check::new("survivors that did not get a cast exactly once", Some(late as f64), Must::AtMost, 0.0));
        let (whole, torn) = (median(&whole), median(&torn));
        let both = whole.zip(torn);
        if let (Some((whole, torn)), Some(settled)) = (both, median(&settled)) {
            run.note(format!(
                "undamaged {whole:.2} ms, with 3 killed {torn:.2} ms; the source knows after {settled:.2} ms"
            ));
        }
        let claim = format!("last survivor with 3 of {nodes} killed / undamaged, medians of {trials}, ≤ 5");
        run.check(Check::new(claim, both.map(|(w, t)| t / w), Must::AtMost, 5.0));
        Ok(())
    }
}

/// What became of a cast.
struct Took {
    /// Until half of the survivors had it, and the last of them.
    half_ms: f64,
    last_ms: f64,
    /// Until its source knew.
    settled_ms: f64,
    /// Survivors that did not get it exactly once.
    without: usize,
}

/// Daemons, and somebody who listens at each.
struct Hall {
    daemons: Daemons,
    nodes: usize,
    runtime: Runtime,
    tell: Sender<(usize, String, Instant)>,
    told: Receiver<(usize, String, Instant)>,
    casts: u64,
}

impl Hall {
    fn open(nodes: usize) -> Result<Self, Error> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (tell, told) = channel();
        let hall = Self { daemons: Daemons::start("cast", nodes)?, nodes, runtime, tell, told, casts: 0 };
        hall.wait_seated()?;
        (0..nodes).try_for_each(|n| hall.listen(n))?;
        Ok(hall)
    }

    /// Each has a seat, as all see it.
    fn wait_seated(&self) -> Result<(), Error> {
        self.daemons.wait_whole()?;
        let seated = |n| self.daemons.client(n).seats().is_ok_and(|s| s.len() == self.nodes);
        wait("all have seats", || (0..self.nodes).all(seated))
    }

    fn listen(&self, node: usize) -> Result<(), Error> {
        let (client, tell) = (Client::new(self.daemons.daemon(node).socket()), self.tell.clone());
        let mut casts = self.runtime.block_on(client.casts()).map_err(said)?;
        self.runtime.spawn(async move {
            while let Ok(Some(piece)) = casts.next().await {
                let words = String::from_utf8_lossy(&piece.data).into_owned();
                if tell.send((node, words, Instant::now())).is_err() {
                    return;
                }
            }
        });
        Ok(())
    }

    /// Casts something while these are killed.
    fn cast(&mut self, from: usize, victims: &[usize]) -> Result<Took, Error> {
        self.casts += 1;
        let words = format!("cast {}", self.casts);
        while self.told.try_recv().is_ok() {}
        let (client, body) = (self.daemons.client(from), words.clone().into_bytes());
        let dying = self.daemons.take(victims);
        let began = Instant::now();
        let source = thread::spawn(move || client.cast(&To::All, "", body));
        dying.iter().try_for_each(crate::peers::process::Process::kill)?;
        let mut heard: BTreeMap<usize, u32> = BTreeMap::new();
        let (mut half, mut last, survivors) = (began, began, self.nodes - victims.len());
        while heard.len() < survivors {
            let left = PATIENCE.saturating_sub(began.elapsed());
            let Ok((node, said, at)) = self.told.recv_timeout(left) else { break };
            if said == words && !victims.contains(&node) {
                *heard.entry(node).or_default() += 1;
                last = last.max(at);
                half = if 2 * heard.len() <= survivors { last } else { half };
            }
        }
        let reached = source.join().map_err(|_| said("the source broke down"))?.map_err(said)?;
        // Who has it twice has it soon.
        while let Ok((node, said, _)) = self.told.recv_timeout(Duration::from_millis(50)) {
            if said == words && !victims.contains(&node) {
                *heard.entry(node).or_default() += 1;
            }
        }
        let once = heard.values().filter(|&&n| n == 1).count();
        let [half_ms, last_ms] = [half, last].map(|at| at.duration_since(began).as_secs_f64() * 1e3);
        Ok(Took { half_ms, last_ms, settled_ms: reached.us as f64 / 1e3, without: survivors - once })
    }

    /// The dead come back.
    fn mend(&mut self, victims: &[usize]) -> Result<(), Error> {
        for &victim in victims {
            self.daemons.spawn(victim)?;
        }
        self.wait_seated()?;
        victims.iter().try_for_each(|&n| self.listen(n))
    }
}
