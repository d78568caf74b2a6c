//! What members told in a run: who knew of what when.
//!
//! A *death* is known once each member of the zone that lived through it has said that the dead one left; a *return* once
//! each of them has said that it joined. Times are those of the slowest death or return.

use crate::check::{Checker, Verdict};
use crate::fault::{Fault, NodeFault};
use crate::manager::checks::JobsTally;
use crate::member::checks::{CastTally, SharedTally, Tally};
use crate::member::{Layout, Member, Note};
use phalanx_core::{Duration, Instant};
use phalanx_protocol::member::{Engine, Why};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The measure of something that did not come to pass.
pub const NEVER: u64 = u64::MAX;

/// Whole milliseconds, rounded up: a bound that is missed by little is missed.
fn ms(time: Duration) -> u64 {
    time.0.div_ceil(1_000_000)
}

/// What members told.
#[derive(Clone, Debug, Default)]
pub(crate) struct MembersTold {
    starts: u64,
    joins: u64,
    failed: u64,
    departed: u64,
    replaced: u64,
    writes: u64,
    reads: u64,
    /// All views held all nodes of their zones.
    boot: Option<Duration>,
    /// All supervisors knew of all nodes.
    pub(crate) census: Option<Duration>,
    deaths: Cases,
    returns: Cases,
    /// Nodes that run, and how many others each of them sees.
    up: BTreeSet<u32>,
    sees: Vec<u32>,
    full: u32,
    /// Where evictions are counted.
    tally: Arc<Tally>,
    /// Where casts are, when there are any.
    casts: Option<SharedTally>,
    /// Where jobs are, when there are any.
    jobs: Option<Arc<Mutex<JobsTally>>>,
}

/// Deaths, or returns.
#[derive(Clone, Debug, Default)]
struct Cases {
    count: u64,
    open: Vec<Case>,
    first: Duration,
    last: Duration,
}

/// One that is not known to all yet.
#[derive(Clone, Debug)]
struct Case {
    node: u32,
    at: Instant,
    waits_for: BTreeSet<u32>,
    heard: bool,
}

impl Cases {
    fn begin(&mut self, node: u32, at: Instant, waits_for: BTreeSet<u32>) {
        self.count += 1;
        if !waits_for.is_empty() {
            self.open.push(Case { node, at, waits_for, heard: false });
        }
    }

    fn heard(&mut self, node: u32, by: u32, at: Instant) {
        for case in self.open.iter_mut().filter(|c| c.node == node) {
            if case.waits_for.remove(&by) {
                let took = at.since(case.at);
                if !std::mem::replace(&mut case.heard, true) {
                    self.first = self.first.max(took);
                }
                self.last = self.last.max(took);
            }
        }
        self.open.retain(|c| !c.waits_for.is_empty());
    }

    /// Whoever is gone is not waited for.
    fn gone(&mut self, observer: u32) {
        self.open.iter_mut().for_each(|c| _ = c.waits_for.remove(&observer));
        self.open.retain(|c| !c.waits_for.is_empty());
    }

    fn drop_of(&mut self, node: u32) {
        self.open.retain(|c| c.node != node);
    }

    fn first_ms(&self) -> u64 {
        if self.open.iter().any(|c| !c.heard) { NEVER } else { ms(self.first) }
    }

    fn last_ms(&self) -> u64 {
        if self.open.is_empty() { ms(self.last) } else { NEVER }
    }
}

impl MembersTold {
    /// Nothing yet, of a run whose evictions are counted there.
    pub(crate) fn new(nodes: u32, tally: Arc<Tally>) -> Self {
        Self { sees: vec![0; nodes as usize], tally, ..Self::default() }
    }

    /// The same, of a run with casts.
    pub(crate) fn with_casts(self, tally: SharedTally) -> Self {
        Self { casts: Some(tally), ..self }
    }

    /// The same, of a run with a manager.
    pub(crate) fn with_jobs(self, tally: Arc<Mutex<JobsTally>>) -> Self {
        Self { jobs: Some(tally), ..self }
    }

    pub(crate) fn put(&self, put: &mut impl FnMut(&str, u64)) {
        let when = |time: Option<Duration>| time.map_or(NEVER, ms);
        let (everywhere, at_healthy) = self.tally.false_positives();
        put("starts", self.starts);
        put("boot_ms", when(self.boot));
        put("census_ms", when(self.census));
        put("joins", self.joins);
        put("leaves", self.failed + self.departed + self.replaced);
        put("leaves.failed", self.failed);
        put("leaves.departed", self.departed);
        put("leaves.replaced", self.replaced);
        put("deaths", self.deaths.count);
        put("deaths.first_ms", self.deaths.first_ms());
        put("deaths.last_ms", self.deaths.last_ms());
        put("returns", self.returns.count);
        put("returns.first_ms", self.returns.first_ms());
        put("returns.last_ms", self.returns.last_ms());
        put("false_positives", everywhere);
        put("false_positives.at_healthy", at_healthy);
        put("attributes.written", self.writes);
        put("attributes.read", self.reads);
        if let Some(jobs) = &self.jobs {
            let JobsTally { asked, taken, refused, started, commands, epoch, harmed } =
                *jobs.lock().unwrap_or_else(PoisonError::into_inner);
            put("manager.jobs.asked", asked);
            put("manager.jobs.taken", taken);
            put("manager.jobs.refused", refused);
            put("manager.ranks.started", started);
            put("manager.commands", commands);
            put("manager.epoch", epoch);
            put("manager.harmed", harmed);
        }
        let Some(casts) = &self.casts else { return };
        let CastTally { sent, refused, delivered, moved, excused } = casts.get();
        put("casts.sent", sent);
        put("casts.refused", refused);
        put("casts.delivered", delivered);
        put("casts.moved", moved);
        put("casts.excused", excused);
    }

    fn others(&self, layout: &Layout, node: u32) -> BTreeSet<u32> {
        let zone = layout.nodes_of(layout.zone_of(node));
        self.up.range(zone).copied().filter(|&n| n != node).collect()
    }

    fn dies(&mut self, layout: &Layout, node: u32, at: Instant) {
        if !self.up.remove(&node) {
            return;
        }
        self.deaths.gone(node);
        self.returns.gone(node);
        self.returns.drop_of(node);
        let others = self.others(layout, node);
        self.deaths.begin(node, at, others);
        self.see(layout, node, |_| 0);
    }

    fn starts(&mut self, layout: &Layout, node: u32, incarnation: u64, at: Instant) {
        self.starts += 1;
        self.up.insert(node);
        self.see(layout, node, |_| 0);
        if incarnation > 1 {
            let others = self.others(layout, node);
            self.returns.begin(node, at, others);
        }
    }

    /// What `node` sees changes. Everybody sees itself.
    fn see(&mut self, layout: &Layout, node: u32, change: impl Fn(u32) -> u32) {
        let zone = layout.nodes_of(layout.zone_of(node));
        let all = zone.end - zone.start - 1;
        let Some(sees) = self.sees.get_mut(node as usize) else { return };
        let was_full = *sees == all && all > 0;
        *sees = change(*sees);
        let is_full = *sees == all && all > 0;
        self.full = self.full + u32::from(is_full) - u32::from(was_full);
    }
}

/// Hears members, for whoever holds the other end.
pub(crate) struct MembersListener {
    pub(crate) told: Arc<Mutex<MembersTold>>,
    pub(crate) layout: Layout,
    /// Nodes that have somebody to see.
    accompanied: u32,
}

impl MembersListener {
    pub(crate) fn new(told: Arc<Mutex<MembersTold>>, layout: Layout) -> Self {
        let sizes = (0..=layout.zones()).map(|z| layout.nodes_of(z)).map(|z| z.end - z.start);
        Self { told, layout, accompanied: sizes.filter(|&n| n > 1).sum() }
    }
}

impl<E: Engine + Send> Checker<Member<E>> for MembersListener {
    fn name(&self) -> &'static str {
        "measures"
    }

    fn fault(&mut self, at: Instant, fault: &Fault, _: &mut Verdict) {
        // A restart of one that lives is a death, too.
        if let Fault::Node(node, NodeFault::CrashProcess | NodeFault::CrashHost | NodeFault::Restart) = *fault {
            self.told.lock().unwrap_or_else(PoisonError::into_inner).dies(&self.layout, node, at);
        }
    }

    fn note(&mut self, at: Instant, by: u32, note: &Note, _: &mut Verdict) {
        let (layout, mut told) = (&self.layout, self.told.lock().unwrap_or_else(PoisonError::into_inner));
        match *note {
            Note::Started { incarnation } => told.starts(layout, by, incarnation, at),
            Note::Leaving => {
                told.up.remove(&by);
                told.deaths.gone(by);
                told.returns.gone(by);
                told.returns.drop_of(by);
            }
            Note::Joined { node, .. } if node != by => {
                told.joins += 1;
                told.see(layout, by, |n| n + 1);
                told.returns.heard(node, by, at);
                if told.boot.is_none() && told.full == self.accompanied {
                    told.boot = Some(at.since(Instant::ZERO));
                }
            }
            Note::Left { node, why, .. } if node != by => {
                match why {
                    Why::Failed => told.failed += 1,
                    Why::Departed(_) | Why::Moved => told.departed += 1,
                    Why::Replaced => told.replaced += 1,
                }
                told.see(layout, by, |n| n.saturating_sub(1));
                told.deaths.heard(node, by, at);
            }
            Note::Wrote(_) => told.writes += 1,
            Note::Read { .. } => told.reads += 1,
            // Casts are counted by who checks them.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::Options;
    use phalanx_protocol::member::Version;
    use phalanx_protocol::zone::Zone;

    /// Three nodes of one zone, and two of another.
    struct Run(MembersListener);

    impl Run {
        fn new() -> Self {
            let layout = Layout::new(5, &Options { zone: 3, ..Options::default() });
            let told = Arc::new(Mutex::new(MembersTold::new(5, Arc::default())));
            Self(MembersListener::new(told, layout))
        }

        fn note(&mut self, ms: u64, by: u32, note: Note) {
            let at = Instant::ZERO + Duration::from_millis(ms);
            Checker::<Member<Zone>>::note(&mut self.0, at, by, &note, &mut Verdict::default());
        }

        fn joined(&mut self, ms: u64, by: u32, node: u32) {
            self.note(ms, by, Note::Joined { node, version: Version::first(1) });
        }

        fn left(&mut self, ms: u64, by: u32, node: u32) {
            self.note(ms, by, Note::Left { node, version: Version::first(1), why: Why::Failed });
        }

        fn fault(&mut self, ms: u64, fault: &Fault) {
            let at = Instant::ZERO + Duration::from_millis(ms);
            Checker::<Member<Zone>>::fault(&mut self.0, at, fault, &mut Verdict::default());
        }

        fn measure(&self, name: &str) -> u64 {
            let mut found = None;
            let told = self.0.told.lock().unwrap();
            told.put(&mut |n, value| found = if n == name { Some(value) } else { found });
            found.unwrap_or_else(|| panic!("no measure {name}"))
        }

        fn booted() -> Self {
            let mut run = Self::new();
            (0..5).for_each(|n| run.note(0, n, Note::Started { incarnation: 1 }));
            for (by, node) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1), (3, 4)] {
                run.joined(5, by, node);
            }
            assert_eq!(run.measure("boot_ms"), NEVER);
            run.joined(9, 4, 3);
            run
        }
    }

    #[test]
    fn boot_is_over_when_all_see_all_of_their_zone() {
        let mut run = Run::booted();
        assert_eq!((run.measure("boot_ms"), run.measure("joins"), run.measure("starts")), (9, 8, 5));
        run.left(20, 0, 1);
        assert_eq!(run.measure("boot_ms"), 9);
    }

    #[test]
    fn a_death_is_known_when_the_last_survivor_of_the_zone_says_so() {
        let mut run = Run::booted();
        run.fault(100, &Fault::crash(1));
        assert_eq!(
            (run.measure("deaths"), run.measure("deaths.first_ms"), run.measure("deaths.last_ms")),
            (1, NEVER, NEVER)
        );
        run.left(103, 2, 1);
        assert_eq!((run.measure("deaths.first_ms"), run.measure("deaths.last_ms")), (3, NEVER));
        run.left(107, 0, 1);
        assert_eq!((run.measure("deaths.first_ms"), run.measure("deaths.last_ms")), (3, 7));
        // Who dies itself is not waited for.
        run.fault(200, &Fault::crash_host(0));
        run.fault(201, &Fault::crash(2));
        assert_eq!((run.measure("deaths"), run.measure("deaths.last_ms")), (3, 7));
    }

    #[test]
    fn a_return_is_known_when_all_see_it_again() {
        let mut run = Run::booted();
        run.fault(100, &Fault::restart(1));
        run.note(101, 1, Note::Started { incarnation: 2 });
        [0, 2].into_iter().for_each(|n| run.left(102, n, 1));
        run.joined(103, 0, 1);
        assert_eq!((run.measure("returns.first_ms"), run.measure("returns.last_ms")), (2, NEVER));
        run.joined(110, 2, 1);
        assert_eq!((run.measure("deaths.last_ms"), run.measure("returns.last_ms")), (2, 9));
    }
}
