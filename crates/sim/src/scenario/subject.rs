//! On whom scenarios are carried out: stations, or members of an engine. What differs between them is here.

use super::engine::{Members, Membership, Writes};
use super::entry::What;
use super::measure::{Facts, Listener, Told, WhatWasTold};
use super::run::{LOOK, Outcome, Runner};
use super::text::{Phases, Runs, Scenario};
use super::told::{MembersListener, MembersTold};
use crate::check::Report;
use crate::company;
use crate::fault::Fault;
use crate::manager;
use crate::member::checks::{self, Tally};
use crate::member::{self, Layout, Member, Written, zones_known};
use crate::process::Process;
use crate::sim::Sim;
use crate::station::{self, BuildError, Station};
use phalanx_core::{Duration, Instant, Rng};
use phalanx_fault::Rule;
use phalanx_protocol::cast::Id;
use phalanx_protocol::link::Link;
use phalanx_protocol::manager::steward::Status;
use phalanx_protocol::member as protocol;
use phalanx_protocol::zone::{MONITOR, Zone};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the timeline needs of a process.
pub(super) trait Subject: Process {
    fn link(&self) -> &Link;
    fn plain(rule: Box<Rule>) -> Self::Command;
    fn heal_plain() -> Self::Command;
    /// `None` where nobody can leave, or write.
    fn leave(code: u8) -> Option<Self::Command>;
    fn write(written: Written) -> Option<Self::Command>;
    /// `None` where there are no tasks.
    fn join(_spare: bool) -> Option<Self::Command> {
        None
    }
    fn doubt(_hosts: &[u32]) -> Option<Self::Command> {
        None
    }
    /// `None` where nobody casts.
    fn cast(_bytes: u32) -> Option<Self::Command> {
        None
    }
    /// `None` where there is no manager.
    fn manage(_command: manager::Command) -> Option<Self::Command> {
        None
    }
    /// FI-5: how its steward does, and what its agent said again.
    fn steward(&self, _now: Instant) -> Option<(Status, u64)> {
        None
    }
    /// Whether something may not befall a node as things stand.
    fn is_spared(_sim: &Sim<Self>, _what: &What, _node: u32) -> bool {
        false
    }
}

impl Subject for Station {
    fn link(&self) -> &Link {
        Self::link(self)
    }

    fn plain(rule: Box<Rule>) -> station::Command {
        station::Command::Plain(rule)
    }

    fn heal_plain() -> station::Command {
        station::Command::HealPlain
    }

    fn leave(_: u8) -> Option<station::Command> {
        None
    }

    fn write(_: Written) -> Option<station::Command> {
        None
    }
}

impl<E: protocol::Engine + Send> Subject for Member<E> {
    fn link(&self) -> &Link {
        self.node().link()
    }

    fn plain(rule: Box<Rule>) -> member::Command {
        member::Command::Plain(rule)
    }

    fn heal_plain() -> member::Command {
        member::Command::HealPlain
    }

    fn leave(code: u8) -> Option<member::Command> {
        Some(member::Command::Leave(code))
    }

    fn write(written: Written) -> Option<member::Command> {
        Some(written.command())
    }

    fn cast(bytes: u32) -> Option<member::Command> {
        Some(member::Command::Cast(bytes))
    }

    fn manage(command: manager::Command) -> Option<member::Command> {
        Some(member::Command::Manage(command))
    }

    fn steward(&self, now: Instant) -> Option<(Status, u64)> {
        let steward = self.office()?.steward();
        Some((steward.status(now), steward.agent().said_again))
    }

    fn is_spared(sim: &Sim<Self>, what: &What, node: u32) -> bool {
        spares_the_third(sim, what, node)
    }
}

/// CM-3: at most one replica is wrong at a time, and while it is the others are well: with two that are not, nobody could say who is right.
fn spares_the_third<E: protocol::Engine + Send>(sim: &Sim<Member<E>>, what: &What, node: u32) -> bool {
    let cluster = sim.cluster();
    let offices = || cluster.processes().filter_map(|(_, member)| member.office());
    match what {
        What::Lie | What::Corrupt => {
            let Some(Ok(office)) = manager::checks::whole(sim.now(), &mut offices()) else { return true };
            if offices().any(manager::Office::is_harmed) {
                return true;
            }
            // All of them are there, and hear each other.
            let status = office.steward().status(sim.now());
            let has_seat = |key| status.seats.iter().any(|s| s.1 == key);
            let there = offices().filter(|o| has_seat(o.steward().agent().key()));
            let hears_all = |o: &manager::Office| o.steward().status(sim.now()).heard.len() == status.seats.len();
            status.seats.len() < 3 || there.filter(|o| hears_all(o)).count() < status.seats.len()
        }
        What::Crash
        | What::CrashHost
        | What::Restart
        | What::Pause
        | What::Loss { .. }
        | What::StreamReset { .. }
        | What::Partition { .. }
        | What::Leave { .. }
        | What::Inject { .. } => {
            let has_seat = sim.process(node).and_then(Member::office).is_some_and(|o| o.steward().replica().is_some());
            has_seat && offices().any(manager::Office::is_harmed)
        }
        _ => false,
    }
}

impl Scenario {
    /// Runs it.
    ///
    /// # Errors
    /// When the cluster cannot be built.
    pub fn run(&self) -> Result<Outcome, BuildError> {
        let setup = &self.setup;
        let members = match &self.runs {
            Runs::Members(members) => members,
            Runs::Stations { workload, options } => {
                let sim = station::build(setup, workload, options)?;
                return Ok(self.outcome(|| self.run_stations(sim)));
            }
            Runs::Job(options) => return Ok(self.outcome_of_job(company::build(setup, options)?, options)),
        };
        let (options, nodes) = (&members.options, setup.nodes);
        Ok(match members.membership {
            Membership::Zone if options.casts.is_some() => {
                let (mut sim, _) = member::build(setup, options)?;
                let tally = checks::register(&mut sim, nodes, options);
                let casts = checks::Casts::default();
                let count = casts.tally();
                sim.check(casts);
                let rest = |sim: &mut Sim<Member<Zone>>, nodes, loss| {
                    if all_cast(sim, nodes, self.phases.liveness) {
                        member::sweep::rest(sim, nodes, loss);
                    }
                };
                self.outcome(|| {
                    let (report, mut facts) = self.run_members(members, sim, tally, |_, _| None, rest);
                    if let WhatWasTold::Members(told) = facts.told {
                        facts.told = WhatWasTold::Members(told.with_casts(count));
                    }
                    (report, facts)
                })
            }
            Membership::Zone if options.manager.is_some() => {
                let (mut sim, _) = member::build(setup, options)?;
                let tally = checks::register(&mut sim, nodes, options);
                let jobs = manager::checks::register(&mut sim);
                self.outcome(|| {
                    let (report, mut facts) = self.run_members(members, sim, tally, |_, _| None, |_, _, _| ());
                    if let WhatWasTold::Members(told) = facts.told {
                        facts.told = WhatWasTold::Members(told.with_jobs(jobs));
                    }
                    (report, facts)
                })
            }
            Membership::Zone => {
                let (mut sim, _) = member::build(setup, options)?;
                let tally = checks::register(&mut sim, nodes, options);
                self.outcome(|| self.run_members(members, sim, tally, looks_at_census, member::sweep::rest))
            }
            Membership::AllToAll(config) => {
                let (mut sim, _) = member::build_all_to_all(setup, options, config)?;
                let tally = checks::register_baseline(&mut sim, nodes, options);
                self.outcome(|| self.run_members(members, sim, tally, |_, _| None, |_, _, _| ()))
            }
            Membership::Segment(config) => {
                let (mut sim, _) = member::build_segments(setup, options, config)?;
                let tally = checks::register_baseline(&mut sim, nodes, options);
                self.outcome(|| self.run_members(members, sim, tally, |_, _| None, |_, _, _| ()))
            }
            Membership::SegmentUnicast(config) => {
                let (mut sim, _) = member::build_segments_unicast(setup, options, config)?;
                let tally = checks::register_baseline(&mut sim, nodes, options);
                self.outcome(|| self.run_members(members, sim, tally, |_, _| None, |_, _, _| ()))
            }
            Membership::Gossip(config) => {
                let (mut sim, _) = member::build_gossip(setup, options, config)?;
                let tally = checks::register_baseline(&mut sim, nodes, options);
                self.outcome(|| self.run_members(members, sim, tally, |_, _| None, |_, _, _| ()))
            }
        })
    }

    fn run_stations(&self, mut sim: Sim<Station>) -> (Report, Facts) {
        let told = Arc::new(Mutex::new(Told::default()));
        sim.check(Listener(told.clone()));
        let leaders = told.clone();
        let plays = move |_: &Station, role: &str, node: u32| lock(&leaders).leaders.plays(node, role);
        let mut runner = Runner::new(self, sim, Box::new(plays));
        runner.carry_out();
        let Phases { work, liveness, .. } = self.phases;
        let report = station::finish(&mut runner.sim, work, liveness);
        let mut facts = runner.count(&report);
        facts.told = WhatWasTold::Stations(lock(&told).clone());
        (report, facts)
    }

    fn run_members<E: protocol::Engine + Send + 'static>(
        &self,
        members: &Members,
        mut sim: Sim<Member<E>>,
        tally: Arc<Tally>,
        look: impl Fn(Layout, Arc<Mutex<MembersTold>>) -> Option<Look<E>>,
        rest: impl Fn(&mut Sim<Member<E>>, u32, f64),
    ) -> (Report, Facts) {
        let nodes = self.setup.nodes;
        let layout = Layout::new(nodes, &members.options);
        let told = Arc::new(Mutex::new(MembersTold::new(nodes, tally)));
        sim.check(MembersListener::new(told.clone(), layout));
        let seeds = members.options.seeds;
        let plays = move |member: &Member<E>, role: &str, node: u32| plays(member, role, node, seeds);
        let mut runner = Runner::new(self, sim, Box::new(plays));
        runner.writer = members.writes.map(|writes| Writer::new(writes, self.setup.seed, nodes));
        runner.look = look(layout, told.clone());
        runner.carry_out();
        self.heal(&mut runner, layout, seeds);
        if members.options.manager.is_some() {
            (0..nodes).for_each(|n| runner.sim.command(n, member::Command::Manage(manager::Command::Rest)));
        }
        let worked = runner.sim.now() + self.phases.work;
        runner.advance(worked);
        runner.writer = None;
        let mut report = runner.sim.settle(self.phases.liveness);
        if report.is_green() {
            rest(&mut runner.sim, nodes, self.setup.network.loss);
            report = runner.sim.report();
        }
        let mut facts = runner.count(&report);
        facts.told = WhatWasTold::Members(lock(&told).clone());
        (report, facts)
    }

    /// Ends all faults. Who starts where no seed is finds nobody, which is no protocol's fault: seeds of a zone without
    /// any start again even when the dead shall stay dead.
    fn heal<E: protocol::Engine + Send>(&self, runner: &mut Runner<'_, Member<E>>, layout: Layout, seeds: u32) {
        let sim = &mut runner.sim;
        sim.heal(self.phases.restart);
        // The dead need a moment to start.
        sim.run_for(Duration::from_millis(1));
        for zone in 0..=layout.zones() {
            let mut seeds = layout.nodes_of(zone).take(seeds as usize);
            let there = |n: u32| sim.process(n).is_some_and(|m| m.engine().version(m.engine().me()).is_some());
            if !seeds.clone().any(there) {
                seeds.by_ref().for_each(|n| sim.fault(Fault::restart(n)));
            }
        }
        runner.heal_plain();
    }
}

/// ST-4: when all is well everybody casts once more, and everybody has it; whether that came true.
fn all_cast(sim: &mut Sim<Member<Zone>>, nodes: u32, bound: Duration) -> bool {
    (0..nodes).for_each(|n| sim.command(n, member::Command::Cast(0)));
    sim.run_for(LOOK);
    sim.settle(bound).is_green()
}

/// Whether a member plays a role.
fn plays<E: protocol::Engine + Send>(member: &Member<E>, role: &str, node: u32, seeds: u32) -> bool {
    let layout = member.layout();
    let zone = layout.nodes_of(layout.zone_of(node));
    match role {
        "seed" => node - zone.start < seeds,
        "supervisor" => layout.is_supervisor(node),
        "replica" => member.office().is_some_and(|o| o.steward().replica().is_some()),
        "leader" => member.office().and_then(|o| o.steward().replica()).is_some_and(|r| r.leader() == Some(r.key())),
        "root" => member.node().caster().is_some_and(|c| c.me() == Id(0)),
        // It has somebody below it in the tree.
        "inner" => member.node().caster().is_some_and(|c| c.tree().children(c.me()).next().is_some()),
        // HI-4: delegates declare themselves as their zone's monitors.
        "delegate" => {
            let engine = member.engine();
            !layout.is_supervisor(node) && engine.attribute(engine.me(), MONITOR).is_some()
        }
        _ => false,
    }
}

/// Looks at a run every [`LOOK`], until it says that it has seen enough.
pub(super) type Look<E> = Box<dyn FnMut(&Sim<Member<E>>) -> bool>;

/// HI-3: when the census was full for the first time.
fn looks_at_census(layout: Layout, told: Arc<Mutex<MembersTold>>) -> Option<Look<Zone>> {
    let supervisors = layout.nodes_of(layout.zones());
    if supervisors.is_empty() {
        return None;
    }
    let all = (layout.zones() as usize, supervisors.start);
    Some(Box::new(move |sim| {
        let full = supervisors.clone().all(|n| sim.process(n).is_some_and(|m| zones_known(m) == all));
        if full {
            lock(&told).census = Some(sim.now().since(Instant::ZERO));
        }
        full
    }))
}

/// The generator of writes, apart from those of nodes and timelines.
const STREAM: u64 = 0xa77_0000_0000;

/// Lets members write attributes.
pub(super) struct Writer {
    writes: Writes,
    nodes: u32,
    rng: Rng,
    number: u64,
    /// When the next one writes.
    pub(super) at: Instant,
}

impl Writer {
    fn new(writes: Writes, seed: u64, nodes: u32) -> Self {
        Self { writes, nodes, rng: Rng::new(seed, STREAM), number: 0, at: Instant::ZERO + LOOK }
    }

    /// Who writes what now. The dead do not hear it.
    pub(super) fn next(&mut self) -> (u32, Written) {
        let mean = (self.writes.interval.0 / u64::from(self.nodes)).max(1);
        self.at += Duration(1 + self.rng.below(2 * mean));
        self.number += 1;
        let key = self.rng.below(u64::from(self.writes.keys)) as u8;
        (self.rng.below(u64::from(self.nodes)) as u32, Written { key, number: self.number })
    }
}

pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
