//! One cluster, measured: boot, rest, crashes, black holes, members that are stopped again and again.
//!
//! The same code for each system, in a child process on a [`Ground`] of its own. One boot serves all trials: what was killed
//! or cut off is started again, and the next trial takes another member.

use super::ground::{Ground, Sent};
use super::sight::{Sighting, Watch, now_ms};
use super::{Fault, Plan, row};
use crate::error::Error;
use crate::report::{Row, significant};
use crate::stats::quantile;
use phalanx_core::Rng;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A cluster boots, and takes somebody back, within this time.
const BOOT: Duration = Duration::from_secs(60);
/// Who does not know of a fault after this time counts as if it had learnt of it then.
const KNOWN: Duration = Duration::from_secs(45);
/// Between trials: whoever came back is watched again by then.
const REST: Duration = Duration::from_millis(700);
/// Of ten members one is stopped again and again, …
const HEALTHY: usize = 10;
/// … for so long, and runs for so long in between, in milliseconds.
const STOPPED_MS: (u64, u64) = (100, 2_000);
const RUNNING_MS: (u64, u64) = (100, 500);
/// Verdicts on who was stopped last come within this time after the last one runs again.
const AFTERMATH: Duration = Duration::from_secs(2);
/// Which members fall, and when they are stopped: the same for each system.
const SEED: u64 = 0x9ee5;
const VICTIMS: u64 = 1;
const STOPS: u64 = 2;

/// A cluster that can be hurt.
pub(super) trait System {
    /// Starts the first member, and once that is there all others at once; says when these were started.
    fn boot(&mut self) -> Result<f64, Error>;
    /// A member ends without a word.
    fn crash(&mut self, member: usize) -> Result<(), Error>;
    /// A member can be heard by nobody, and hears nobody.
    fn cut(&mut self, member: usize, ground: &Ground) -> Result<(), Error> {
        ground.cut(member)
    }
    /// Starts a member again after a crash or a cut that has been healed, and makes `watch` forget what it knew.
    fn mend(&mut self, member: usize, watch: &mut Watch) -> Result<(), Error>;
    /// Ends what [`System::cut`] began.
    fn heal(&mut self, ground: &Ground) -> Result<(), Error> {
        ground.heal()
    }
    /// Stops a member, or lets it go on.
    fn stop(&mut self, member: usize, stopped: bool) -> Result<(), Error>;
    /// Memory for each member.
    fn rss_mb(&self) -> Option<f64>;
}

/// A cluster under measurement.
pub(super) struct Measurement<'a> {
    pub(super) name: &'a str,
    pub(super) nodes: usize,
    pub(super) plan: Plan,
    pub(super) ground: &'a Ground,
    pub(super) system: &'a mut dyn System,
    pub(super) watch: Watch,
    /// No trial begins later.
    pub(super) until: Instant,
}

/// What came of one fault.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Known {
    first_ms: f64,
    last_ms: f64,
    /// Verdicts on others than the victim, by others than the victim.
    false_positives: usize,
    /// Others that did not get to know it.
    unaware: usize,
}

impl Measurement<'_> {
    /// Measures all that the plan asks for; each row is told as soon as it is there.
    pub(super) fn run(mut self, tell: &mut dyn FnMut(Told)) -> Result<(), Error> {
        tell(Told::Progress("boot".into()));
        let join_s = self.boot()?;
        tell(Told::Row(self.row(Fault::Join, |row| row.insert("join_s".into(), join_s.into()))));
        self.watch.listen(self.plan.settle);
        if !self.plan.idle.is_zero() {
            tell(Told::Progress("idle".into()));
            let idle = self.idle()?;
            tell(Told::Row(idle));
        }
        for (fault, trials) in [(Fault::Crash, self.plan.crashes), (Fault::Blackhole, self.plan.cuts)] {
            if trials > 0 {
                let row = self.series(fault, trials, tell)?;
                tell(Told::Row(row));
            }
        }
        if !self.plan.duty.is_zero() {
            tell(Told::Progress("duty".into()));
            let duty = self.duty()?;
            tell(Told::Row(duty));
        }
        Ok(())
    }

    fn boot(&mut self) -> Result<f64, Error> {
        let began = self.system.boot()?;
        if !self.watch.all_see_all(BOOT) {
            return Err(self.fail("its members do not all see each other"));
        }
        Ok(significant((self.watch.changed_ms() - began) / 1e3))
    }

    /// Nothing happens, and bytes are counted all the same.
    fn idle(&mut self) -> Result<Row, Error> {
        self.watch.forget_losses();
        let (before, began) = (self.ground.sent()?, Instant::now());
        self.watch.listen(self.plan.idle);
        let (after, took) = (self.ground.sent()?, began.elapsed().as_secs_f64());
        let each = |of: fn(&Sent) -> u64| {
            let count = of(after.as_ref()?) - of(before.as_ref()?);
            Some(significant(count as f64 / took / self.nodes as f64))
        };
        let rss = self.system.rss_mb().map(significant);
        let lost = self.watch.losses().len();
        Ok(self.row(Fault::Idle, |row| {
            row.insert("bytes_per_node_s".into(), each(|sent| sent.bytes).into());
            row.insert("rss_mb".into(), rss.into());
            row.insert("false_positives".into(), lost.into());
            row.insert("packets_per_node_s".into(), each(|sent| sent.packets).into())
        }))
    }

    /// The same fault to one member after the other.
    fn series(&mut self, fault: Fault, trials: usize, tell: &mut dyn FnMut(Told)) -> Result<Row, Error> {
        let mut victims = victims(self.nodes, fault);
        let mut known = Vec::new();
        for trial in 1..=trials {
            // One trial is better than none, whatever the budget says.
            if trial > 1 && Instant::now() >= self.until {
                tell(Told::Note(format!("{} {fault}: {} of {trials} trials, for want of time", self.name, trial - 1)));
                break;
            }
            tell(Told::Progress(format!("{fault} {trial} of {trials}")));
            let victim = victims.next().expect("an endless row of victims");
            known.push(self.trial(fault, victim)?);
        }
        let spread = Spread::of(&known);
        Ok(self.row(fault, |row| spread.write(row)))
    }

    fn trial(&mut self, fault: Fault, victim: usize) -> Result<Known, Error> {
        self.watch.forget_losses();
        let at = now_ms();
        if fault == Fault::Crash {
            self.system.crash(victim)?;
        } else {
            self.system.cut(victim, self.ground)?;
        }
        self.watch.all_miss(victim, KNOWN);
        let unaware = self.nodes - 1 - self.watch.who_miss(victim);
        if unaware == self.nodes - 1 {
            return Err(self.fail(&format!("nobody knew of a {fault}")));
        }
        let known = Known::from(self.watch.losses(), victim, at, unaware);
        if fault == Fault::Blackhole {
            self.system.crash(victim)?;
            self.system.heal(self.ground)?;
        }
        self.system.mend(victim, &mut self.watch)?;
        if !self.watch.all_see_all(BOOT) {
            return Err(self.fail(&format!("its members do not all see each other after a {fault}")));
        }
        self.watch.listen(REST);
        Ok(known)
    }

    /// Some members are stopped again and again. The others must not take each other for dead.
    fn duty(&mut self) -> Result<Row, Error> {
        self.watch.forget_losses();
        let mut rng = Rng::new(SEED, STOPS);
        let count = (self.nodes / HEALTHY).max(1);
        let mut duties: Vec<Duty> = (0..count).map(|i| Duty::new(i * self.nodes / count + 1, &mut rng)).collect();
        let (began, mut now) = (Instant::now(), Duration::ZERO);
        while now < self.plan.duty {
            for duty in duties.iter_mut().filter(|duty| duty.next <= now) {
                duty.turn(now, &mut rng);
                self.system.stop(duty.member, duty.stopped)?;
            }
            let next = duties.iter().map(|duty| duty.next).min().unwrap_or(self.plan.duty).min(self.plan.duty);
            self.watch.listen(next.saturating_sub(began.elapsed()));
            now = began.elapsed();
        }
        for duty in duties.iter().filter(|duty| duty.stopped) {
            self.system.stop(duty.member, false)?;
        }
        self.watch.listen(AFTERMATH);
        let stopped: BTreeSet<usize> = duties.iter().map(|duty| duty.member).collect();
        let (healthy, others) = verdicts(self.watch.losses(), &stopped);
        let stops: usize = duties.iter().map(|duty| duty.stops).sum();
        Ok(self.row(Fault::Duty, |row| {
            row.insert("false_positives".into(), healthy.into());
            row.insert("stopped_members".into(), count.into());
            row.insert("stops".into(), stops.into());
            row.insert("stopped_declared".into(), others.into())
        }))
    }

    fn row<T>(&self, fault: Fault, fill: impl FnOnce(&mut Row) -> T) -> Row {
        let mut row = row(self.name, self.nodes, fault);
        fill(&mut row);
        row
    }

    fn fail(&self, why: &str) -> Error {
        Error::Child { role: format!("{}, {} nodes", self.name, self.nodes), said: why.into() }
    }
}

/// What a measurement says on its way.
pub(super) enum Told {
    Row(Row),
    Note(String),
    Progress(String),
}

impl Known {
    fn from(losses: &[Sighting], victim: usize, at_ms: f64, unaware: usize) -> Self {
        let by_others = || losses.iter().filter(|loss| loss.observer != victim);
        let delays = || by_others().filter(|loss| loss.subject == victim).map(|loss| loss.at_ms - at_ms);
        Self {
            first_ms: delays().fold(f64::INFINITY, f64::min),
            last_ms: if unaware > 0 { KNOWN.as_secs_f64() * 1e3 } else { delays().fold(f64::NEG_INFINITY, f64::max) },
            false_positives: by_others().filter(|loss| loss.subject != victim).count(),
            unaware,
        }
    }
}

/// All trials of a series.
struct Spread {
    firsts: Vec<f64>,
    lasts: Vec<f64>,
    false_positives: usize,
    unaware: usize,
}

impl Spread {
    fn of(known: &[Known]) -> Self {
        let sorted = |of: fn(&Known) -> f64| {
            let mut values: Vec<f64> = known.iter().map(of).collect();
            values.sort_unstable_by(f64::total_cmp);
            values
        };
        Self {
            firsts: sorted(|k| k.first_ms),
            lasts: sorted(|k| k.last_ms),
            false_positives: known.iter().map(|k| k.false_positives).sum(),
            unaware: known.iter().map(|k| k.unaware).sum(),
        }
    }

    fn write(&self, row: &mut Row) {
        let at = |sorted: &[f64], share| quantile(sorted, share).map(significant);
        row.insert("first_ms".into(), at(&self.firsts, 0.5).into());
        row.insert("last_ms".into(), at(&self.lasts, 0.5).into());
        row.insert("p95_last_ms".into(), at(&self.lasts, 0.95).into());
        row.insert("false_positives".into(), self.false_positives.into());
        row.insert("trials".into(), self.lasts.len().into());
        row.insert("worst_last_ms".into(), at(&self.lasts, 1.0).into());
        row.insert("unaware".into(), self.unaware.into());
    }
}

/// A member's turns of being stopped and of running.
struct Duty {
    member: usize,
    stopped: bool,
    next: Duration,
    stops: usize,
}

impl Duty {
    fn new(member: usize, rng: &mut Rng) -> Self {
        Self { member, stopped: false, next: within(RUNNING_MS, rng), stops: 0 }
    }

    fn turn(&mut self, now: Duration, rng: &mut Rng) {
        self.stopped = !self.stopped;
        self.stops += usize::from(self.stopped);
        self.next = now + within(if self.stopped { STOPPED_MS } else { RUNNING_MS }, rng);
    }
}

fn within((least, most): (u64, u64), rng: &mut Rng) -> Duration {
    Duration::from_millis(least + rng.index((most - least + 1) as usize) as u64)
}

/// Verdicts of members that were never stopped: on each other, and on those that were.
fn verdicts(losses: &[Sighting], stopped: &BTreeSet<usize>) -> (usize, usize) {
    let by_healthy = losses.iter().filter(|loss| !stopped.contains(&loss.observer));
    by_healthy.fold(
        (0, 0),
        |(healthy, others), loss| {
            if stopped.contains(&loss.subject) { (healthy, others + 1) } else { (healthy + 1, others) }
        },
    )
}

/// All members in an order that a seed gives, again and again: who fell once is the last to fall again.
fn victims(nodes: usize, fault: Fault) -> impl Iterator<Item = usize> {
    let mut rng = Rng::new(SEED ^ fault as u64, VICTIMS);
    let mut order: Vec<usize> = (0..nodes).collect();
    for i in (1..nodes).rev() {
        order.swap(i, rng.index(i + 1));
    }
    order.into_iter().cycle()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(observer: usize, subject: usize, at_ms: f64) -> Sighting {
        Sighting { observer, subject, alive: false, at_ms }
    }

    #[test]
    fn a_fault_is_known_from_the_first_to_the_last_and_others_verdicts_are_false() {
        let losses = [loss(0, 2, 107.0), loss(1, 2, 105.0), loss(1, 3, 106.0), loss(2, 0, 101.0), loss(3, 2, 112.0)];
        let known = Known::from(&losses, 2, 100.0, 0);
        assert_eq!(known, Known { first_ms: 5.0, last_ms: 12.0, false_positives: 1, unaware: 0 });
        let late = Known::from(&losses[..4], 2, 100.0, 1);
        assert_eq!(late, Known { first_ms: 5.0, last_ms: 45_000.0, false_positives: 1, unaware: 1 });
    }

    #[test]
    fn a_series_is_told_by_its_medians_its_tail_and_its_worst() {
        let known: Vec<Known> = (1..=21)
            .rev()
            .map(|i| Known { first_ms: f64::from(i), last_ms: 10.0 * f64::from(i), false_positives: 1, unaware: 0 })
            .collect();
        let mut row = row("phalanx", 30, Fault::Crash);
        Spread::of(&known).write(&mut row);
        assert_eq!((&row["first_ms"], &row["last_ms"]), (&11.0.into(), &110.0.into()));
        assert_eq!((&row["p95_last_ms"], &row["worst_last_ms"]), (&200.0.into(), &210.0.into()));
        assert_eq!((&row["trials"], &row["false_positives"]), (&21.into(), &21.into()));
    }

    #[test]
    fn verdicts_count_when_their_author_was_never_stopped() {
        let stopped = BTreeSet::from([3, 4]);
        let losses = [loss(0, 3, 1.0), loss(1, 3, 1.0), loss(3, 0, 1.0), loss(4, 3, 1.0), loss(0, 1, 1.0)];
        assert_eq!(verdicts(&losses, &stopped), (1, 2));
    }

    #[test]
    fn each_falls_once_before_anybody_falls_again_and_faults_differ_in_order() {
        let order: Vec<usize> = victims(30, Fault::Crash).take(30).collect();
        assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), 30);
        assert_ne!(order, victims(30, Fault::Blackhole).take(30).collect::<Vec<_>>());
    }

    #[test]
    fn turns_alternate_within_their_times() {
        let mut rng = Rng::new(1, 1);
        let mut duty = Duty::new(7, &mut rng);
        for turn in 0..100 {
            let now = duty.next;
            duty.turn(now, &mut rng);
            let took = duty.next - now;
            let (least, most) = if duty.stopped { STOPPED_MS } else { RUNNING_MS };
            assert_eq!(duty.stopped, turn % 2 == 0);
            assert!((u128::from(least)..=u128::from(most)).contains(&took.as_millis()));
        }
        assert_eq!(duty.stops, 50);
    }
}
