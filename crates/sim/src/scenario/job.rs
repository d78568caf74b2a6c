//! Jobs in scenarios: where tasks are, what their views are like, and what they told.

use super::entry::What;
use super::measure::{Facts, WhatWasTold};
use super::problem::{Problem, unknown};
use super::run::{Outcome, Runner, Spares};
use super::subject::{Subject, lock};
use super::text::Scenario;
use crate::check::{Checker, Report, Verdict};
use crate::company::checks::{self, Excuses, Guard};
use crate::company::{Chain, Command, Host, Moment, Note, Options};
use crate::member::Written;
use crate::sim::Sim;
use phalanx_core::{Duration, Instant};
use phalanx_fault::Rule;
use phalanx_protocol::link::Link;
use phalanx_protocol::view::{OnPartition, ViewId, Wave};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// The roles that a fault can fall on: hosts of the first tasks of a view.
pub(super) const ROLES: [&str; 3] = ["root", "heir", "second-heir"];
/// How long tasks may take to share one view after healing.
pub(super) const BOUND: Duration = Duration::from_secs(60);
/// Tasks of a job in a scenario.
const TASKS_MAX: usize = 4096;

/// `[job]`.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct JobText {
    places: Option<Vec<u32>>,
    arity: u32,
    founded: bool,
    on_partition: String,
    patience_ms: u64,
    inquiry_ms: u64,
    retry_ms: u64,
    hooks: bool,
    rejoin_ms: u64,
    talk_ms: u64,
    chain: Option<ChainText>,
    keep_majority: bool,
}

/// `job.chain`.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ChainText {
    after: u32,
    deaths: u32,
    moment: String,
    host: bool,
}

impl Default for ChainText {
    fn default() -> Self {
        Self { after: 0, deaths: 1, moment: "begun".to_owned(), host: false }
    }
}

impl Default for JobText {
    fn default() -> Self {
        let usual = Options::default();
        let ms = |d: Duration| d.as_millis();
        Self {
            places: None,
            arity: usual.arity,
            founded: false,
            on_partition: "primary".to_owned(),
            patience_ms: ms(usual.view.patience),
            inquiry_ms: ms(usual.view.inquiry),
            retry_ms: ms(usual.view.retry),
            hooks: false,
            rejoin_ms: ms(usual.rejoin),
            talk_ms: ms(usual.talk),
            chain: None,
            keep_majority: false,
        }
    }
}

const POLICIES: [(&str, OnPartition); 3] =
    [("primary", OnPartition::Primary), ("continue", OnPartition::Continue), ("abort", OnPartition::Abort)];

impl JobText {
    pub(super) fn options(self, nodes: u32) -> Result<Options, Problem> {
        let places = self.places.unwrap_or_else(|| (0..nodes).collect());
        if places.is_empty() || places.len() > TASKS_MAX {
            return Err(Problem::new("places", format!("{} tasks: from 1 to {TASKS_MAX}", places.len())));
        }
        if let Some(host) = places.iter().find(|&&h| h >= nodes) {
            return Err(Problem::new("places", format!("there is no node {host}: {nodes} nodes are numbered from 0")));
        }
        if !self.arity.is_power_of_two() || !(2..=256).contains(&self.arity) {
            return Err(Problem::new("arity", format!("{}: a power of two from 2 to 256", self.arity)));
        }
        if self.patience_ms == 0 || self.inquiry_ms == 0 {
            return Err(Problem::new("patience_ms", "patience and inquiries must be longer than nothing"));
        }
        let known = POLICIES.map(|p| p.0);
        let policy = POLICIES.into_iter().find(|p| p.0 == self.on_partition).map(|p| p.1);
        let on_partition = policy.ok_or_else(|| Problem::new("on_partition", unknown(&self.on_partition, &known)))?;
        let chain = self.chain.map(ChainText::chain).transpose().map_err(|p| p.inside("chain"))?;
        let (usual, ms) = (Options::default(), Duration::from_millis);
        let view = phalanx_protocol::view::Config {
            on_partition,
            patience: ms(self.patience_ms),
            inquiry: ms(self.inquiry_ms),
            retry: ms(self.retry_ms),
            hooks: self.hooks,
            hook_patience: ms(self.patience_ms * 2),
        };
        let (rejoin, talk) = (ms(self.rejoin_ms.max(1)), ms(self.talk_ms));
        let Self { arity, founded, keep_majority, .. } = self;
        Ok(Options { places, arity, founded, view, rejoin, talk, chain, keep_majority, ..usual })
    }
}

impl ChainText {
    fn chain(self) -> Result<Chain, Problem> {
        let known = Moment::ALL.map(Moment::name);
        let moment = Moment::ALL.into_iter().find(|m| m.name() == self.moment);
        let moment = moment.ok_or_else(|| Problem::new("moment", unknown(&self.moment, &known)))?;
        Ok(Chain { after: self.after, deaths: self.deaths, moment, host: self.host })
    }
}

impl Subject for Host {
    fn link(&self) -> &Link {
        self.company().link()
    }

    fn plain(rule: Box<Rule>) -> Command {
        Command::Plain(rule)
    }

    fn heal_plain() -> Command {
        Command::HealPlain
    }

    fn leave(code: u8) -> Option<Command> {
        Some(Command::Part(code))
    }

    fn write(_: Written) -> Option<Command> {
        None
    }

    fn join(spare: bool) -> Option<Command> {
        Some(Command::Join { spare })
    }

    fn doubt(hosts: &[u32]) -> Option<Command> {
        Some(Command::Doubt(hosts.to_vec()))
    }
}

impl Scenario {
    pub(super) fn outcome_of_job(&self, mut sim: Sim<Host>, options: &Options) -> Outcome {
        let (excuses, guard) = checks::register(&mut sim, options);
        self.outcome(|| self.run_job(sim, excuses, guard))
    }

    fn run_job(&self, mut sim: Sim<Host>, excuses: Arc<Excuses>, guard: Option<Guard>) -> (Report, Facts) {
        let told = Arc::new(Mutex::new(JobTold { excuses, ..JobTold::default() }));
        sim.check(Listener(told.clone()));
        let place = |role: &str| ROLES.iter().position(|r| *r == role);
        let plays = move |host: &Host, role: &str, _: u32| place(role).is_some_and(|p| host.leads(p));
        let mut runner = Runner::new(self, sim, Box::new(plays));
        runner.spares = guard.map(|g| Box::new(move |what: &What, node| !may(&g, what, node)) as Spares<'_>);
        runner.carry_out();
        runner.sim.heal(self.phases.restart);
        // The dead need a moment to start: they hear no command before.
        runner.sim.run_for(Duration::from_millis(1));
        runner.heal_plain();
        runner.sim.run_for(self.phases.work);
        (0..self.setup.nodes).for_each(|n| runner.sim.command(n, Command::Rest));
        let report = runner.sim.settle(self.phases.liveness);
        let mut facts = runner.count(&report);
        facts.told = WhatWasTold::Job(lock(&told).clone());
        (report, facts)
    }
}

/// Whether a guard lets this befall a node.
fn may(guard: &Guard, what: &What, node: u32) -> bool {
    match what {
        What::Crash | What::CrashHost | What::Restart => guard.kill(node),
        What::Leave { .. } => guard.part(),
        _ => true,
    }
}

/// What tasks told.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobTold {
    views: BTreeSet<ViewId>,
    installed: u64,
    waves: BTreeMap<Wave, u64>,
    settled: u64,
    counts: BTreeMap<&'static str, u64>,
    excuses: Arc<Excuses>,
}

/// What is counted beside views and waves.
const COUNTS: [&str; 10] = [
    "sent",
    "delivered",
    "undelivered",
    "tasks.knocked",
    "tasks.refused",
    "tasks.parted",
    "tasks.left",
    "tasks.excluded",
    "tasks.aborted",
    "tasks.stalled",
];

const fn wave_name(wave: Wave) -> &'static str {
    match wave {
        Wave::FailedNode => "failed-node",
        Wave::RootDead => "root-dead",
        Wave::RootAndNodeFailure => "root-and-node-failure",
        Wave::NewNodeJoin => "new-node-join",
        Wave::AliveNodeJoin => "alive-node-join",
        Wave::Checkpoint => "checkpoint",
    }
}

impl JobTold {
    pub(crate) fn put(&self, put: &mut impl FnMut(&str, u64)) {
        for name in COUNTS {
            put(name, self.counts.get(name).copied().unwrap_or(0));
        }
        put("views.distinct", self.views.len() as u64);
        put("views.installed", self.installed);
        put("waves", self.waves.values().sum());
        put("waves.settled", self.settled);
        for wave in Wave::ALL {
            put(&format!("waves.{}", wave_name(wave)), self.waves.get(&wave).copied().unwrap_or(0));
        }
        let [forgotten, over] = [&self.excuses.forgotten, &self.excuses.over].map(|e| e.load(Ordering::Relaxed));
        put("excuses", forgotten + over);
        put("excuses.forgotten", forgotten);
        put("excuses.over", over);
    }
}

/// Hears hosts, for whoever holds the other end.
struct Listener(Arc<Mutex<JobTold>>);

impl Checker<Host> for Listener {
    fn name(&self) -> &'static str {
        "measures"
    }

    fn note(&mut self, _: Instant, _: u32, note: &Note, _: &mut Verdict) {
        let mut told = lock(&self.0);
        let name = match note {
            Note::Installed { view, .. } => {
                told.installed += 1;
                told.views.insert(view.id());
                return;
            }
            Note::Begun(_, wave) => {
                *told.waves.entry(*wave).or_default() += 1;
                return;
            }
            Note::Settled(..) => {
                told.settled += 1;
                return;
            }
            Note::Doubts(_) => return,
            Note::Sent { .. } => "sent",
            Note::Got { .. } => "delivered",
            Note::Undelivered(_) => "undelivered",
            Note::Knocks(_) => "tasks.knocked",
            Note::Refused(..) => "tasks.refused",
            Note::Parts(_) => "tasks.parted",
            Note::Left(_) => "tasks.left",
            Note::Excluded(..) => "tasks.excluded",
            Note::Aborted(_) => "tasks.aborted",
            Note::Stalled(_) => "tasks.stalled",
        };
        *told.counts.entry(name).or_default() += 1;
    }
}
