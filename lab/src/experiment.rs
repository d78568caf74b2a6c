//! What an experiment is, the list of all of them, and the run that one of them writes into.

use crate::error::Error;
use crate::noise;
use crate::plot::Picture;
use crate::report::{Check, Report, Row};
use crate::{cast, death, directory, launch, link, manager, peers, segment, sim_speed, soak, timer, view, zone};
use std::io::{IsTerminal, Write};

/// Long enough for the trials of most experiments.
const BUDGET_S: f64 = 180.0;

/// Something that can be measured by name.
pub(crate) trait Experiment: Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;
    /// One line on what it compares.
    fn about(&self) -> &'static str;
    /// What its child processes do, each under a name that no other experiment uses.
    fn roles(&self) -> &'static [Role] {
        &[]
    }
    /// How its rows are drawn.
    fn picture(&self) -> Picture;
    /// All pictures, where one does not show everything.
    fn pictures(&self) -> Vec<Picture> {
        vec![self.picture()]
    }
    /// No round begins after so many seconds, unless the command line says otherwise.
    fn budget_s(&self) -> f64 {
        BUDGET_S
    }
    /// Measures: rows, checks and notes go into `run`.
    fn run(&self, run: &mut Run) -> Result<(), Error>;
}

/// A part played by a child process, `phalanx-lab child NAME ARGS…`.
pub(crate) struct Role {
    /// Its name.
    pub(crate) name: &'static str,
    /// Plays it; what the parent asked for goes to stdout, a line each.
    pub(crate) play: fn(&[String]) -> Result<(), Error>,
}

/// Each experiment there is, in the order of `phalanx lab ls`.
pub(crate) const ALL: &[&dyn Experiment] = &[
    &link::latency::LinkLatency,
    &link::throughput::LinkThroughput,
    &link::faults::LinkFaults,
    &timer::TimerResolution,
    &sim_speed::SimSpeed,
    &zone::boot::ZoneBoot,
    &zone::churn::ZoneChurn,
    &zone::attributes::ZoneAttributes,
    &zone::hierarchy::ZoneHierarchy,
    &zone::million::ZoneMillion,
    &zone::recipes::ZoneRecipes,
    &zone::recipes::ZoneLifeguard,
    &zone::recipes::ZoneLifeguardGrid,
    &view::stabilization::ViewStabilization,
    &view::multifail::ViewMultifail,
    &view::crash::ViewCrash,
    &cast::unicast::CastUnicast,
    &cast::broadcast::CastBroadcast,
    &cast::sixteen::Cast16k,
    &cast::crash::CastCrash,
    &cast::rate::CastRate,
    &segment::compare::SegmentCompare,
    &directory::DirectoryLookup,
    &segment::sockets::SegmentSockets,
    &segment::heartbeats::SegmentHeartbeats,
    &segment::service::SegmentService,
    &launch::Launch,
    &death::DeathNotice,
    &manager::faults::ManagerFaults,
    &peers::Peers,
    &soak::Soak,
];

/// The experiment of that name.
pub(crate) fn find(name: &str) -> Result<&'static dyn Experiment, Error> {
    ALL.iter().copied().find(|e| e.name() == name).ok_or_else(|| Error::UnknownExperiment(name.into()))
}

/// Plays a role in this process.
pub(crate) fn play(role: &str, args: &[String]) -> Result<(), Error> {
    let found = ALL.iter().flat_map(|e| e.roles()).find(|r| r.name == role);
    (found.ok_or_else(|| Error::UnknownRole(role.into()))?.play)(args)
}

/// How long and how exactly to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// A first look: few rounds, wide intervals.
    pub(crate) quick: bool,
    /// Half width of the intervals to reach, relative: 0.03 is ± 3 %.
    pub(crate) width: f64,
    /// Most rounds of trials.
    pub(crate) max_rounds: usize,
    /// No round begins after this time.
    pub(crate) budget_s: f64,
    /// Seeds of each simulated case whose bounds must hold, in the place of those that an experiment has.
    pub(crate) seeds: Option<u64>,
}

/// One run of one experiment.
pub(crate) struct Run {
    /// How to measure.
    pub(crate) options: Options,
    report: Report,
    /// Progress is for people: nothing of it goes into a file or a pipe.
    progress: bool,
}

impl Run {
    /// Runs `experiment` between two probes of the machine.
    pub(crate) fn of(experiment: &dyn Experiment, options: Options) -> Result<Report, Error> {
        let report = Report::new(experiment.name());
        let mut run = Self { options, report, progress: std::io::stderr().is_terminal() };
        if cfg!(debug_assertions) {
            run.note("built with debug assertions, for tests: the figures mean little, build with --release");
        }
        run.report.noise.before = run.probe("before")?;
        experiment.run(&mut run)?;
        run.progress("");
        run.report.noise.after = run.probe("after")?;
        Ok(run.report)
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, row: Row) {
        self.report.rows.push(row);
    }

    /// Adds a check.
    pub(crate) fn check(&mut self, check: Check) {
        self.report.checks.push(check);
    }

    /// Adds a note.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.report.notes.push(note.into());
    }

    /// Replaces the line of progress, on a terminal; an empty one takes it away.
    pub(crate) fn progress(&self, what: &str) {
        if self.progress {
            eprint!("\r\x1b[K{what}");
            // A lost line of progress is no reason to stop.
            let _ = std::io::stderr().flush();
        }
    }

    /// Seeds of each case: what was asked for, or else few at a first look, and `full` otherwise.
    pub(crate) fn seeds(&self, quick: u64, full: u64) -> u64 {
        self.options.seeds.unwrap_or(if self.options.quick { quick } else { full })
    }

    /// A run outside of any experiment.
    #[cfg(test)]
    pub(crate) fn for_test(options: Options) -> Self {
        Self { options, report: Report::new("test"), progress: false }
    }

    /// The notes so far.
    #[cfg(test)]
    pub(crate) fn notes(&self) -> &[String] {
        &self.report.notes
    }

    /// The checks so far.
    #[cfg(test)]
    pub(crate) fn checks(&self) -> &[Check] {
        &self.report.checks
    }

    fn probe(&self, when: &str) -> Result<Vec<noise::Core>, Error> {
        let cores = noise::probe()?;
        for c in &cores {
            let (core, available, gap) = (c.core, c.available, c.largest_gap_ms);
            eprintln!("noise {when}: core {core} available {available:.3}, largest gap {gap:.3} ms");
        }
        Ok(cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_roles_are_unique_and_told() {
        let names: BTreeSet<_> = ALL.iter().map(|e| e.name()).collect();
        let roles: Vec<_> = ALL.iter().flat_map(|e| e.roles()).map(|r| r.name).collect();
        assert_eq!(names.len(), ALL.len());
        assert_eq!(roles.iter().collect::<BTreeSet<_>>().len(), roles.len());
        assert!(ALL.iter().all(|e| !e.about().is_empty() && !e.about().contains('\n')));
        assert!(matches!(find("link-latencie"), Err(Error::UnknownExperiment(n)) if n == "link-latencie"));
    }
}
