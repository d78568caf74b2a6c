//! What members say of each other while a cluster is measured, and the views that follow from it.
//!
//! Each system tells its own news (events, lines of a log, notifications); here they are all *sightings*: at some time an
//! observer took a subject for alive, or for gone.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// An observer says how it takes a subject from now on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Sighting {
    pub(super) observer: usize,
    pub(super) subject: usize,
    pub(super) alive: bool,
    /// In milliseconds since 1970: daemons tell the time of their events so.
    pub(super) at_ms: f64,
}

impl Sighting {
    /// One of this moment.
    pub(super) fn now(observer: usize, subject: usize, alive: bool) -> Self {
        Self { observer, subject, alive, at_ms: now_ms() }
    }
}

/// This moment, as sightings count.
pub(crate) fn now_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64() * 1e3)
}

/// All views of a cluster.
pub(super) struct Watch {
    sightings: Receiver<Sighting>,
    views: Vec<View>,
    /// Losses since [`Watch::forget_losses`].
    losses: Vec<Sighting>,
}

struct View {
    /// Whom it takes for alive, itself included.
    alive: BTreeSet<usize>,
    /// When that last changed.
    changed_ms: f64,
}

impl View {
    fn of(member: usize) -> Self {
        Self { alive: BTreeSet::from([member]), changed_ms: 0.0 }
    }
}

impl Watch {
    /// The views of so many members, each of which knows itself alone; and where sightings go.
    pub(super) fn new(members: usize) -> (Sender<Sighting>, Self) {
        let (tell, sightings) = channel();
        (tell, Self { sightings, views: (0..members).map(View::of).collect(), losses: Vec::new() })
    }

    /// A member starts anew and knows nobody.
    pub(super) fn restarted(&mut self, member: usize) {
        self.hear(Duration::ZERO);
        self.views[member] = View::of(member);
    }

    /// All do.
    pub(super) fn rebooted(&mut self) {
        self.hear(Duration::ZERO);
        (0..self.views.len()).for_each(|member| self.views[member] = View::of(member));
    }

    /// True once each sees all; waits for so long.
    pub(super) fn all_see_all(&mut self, patience: Duration) -> bool {
        let members = self.views.len();
        self.wait(patience, |watch| watch.views.iter().all(|view| view.alive.len() == members))
    }

    /// True once all others know that a member is gone; waits for so long.
    pub(super) fn all_miss(&mut self, gone: usize, patience: Duration) -> bool {
        self.wait(patience, |watch| {
            let others = watch.views.iter().enumerate().filter(|(observer, _)| *observer != gone);
            others.into_iter().all(|(_, view)| !view.alive.contains(&gone))
        })
    }

    /// How many others know that a member is gone.
    pub(super) fn who_miss(&self, gone: usize) -> usize {
        let others = self.views.iter().enumerate().filter(|(observer, _)| *observer != gone);
        others.filter(|(_, view)| !view.alive.contains(&gone)).count()
    }

    /// When the last view changed.
    pub(super) fn changed_ms(&self) -> f64 {
        self.views.iter().map(|view| view.changed_ms).fold(0.0, f64::max)
    }

    /// What was heard so far is no loss of what comes.
    pub(super) fn forget_losses(&mut self) {
        self.hear(Duration::ZERO);
        self.losses.clear();
    }

    /// Who lost whom since then.
    pub(super) fn losses(&mut self) -> &[Sighting] {
        self.hear(Duration::ZERO);
        &self.losses
    }

    /// Listens for a while.
    pub(super) fn listen(&mut self, time: Duration) {
        self.wait(time, |_| false);
    }

    fn wait(&mut self, patience: Duration, holds: impl Fn(&Self) -> bool) -> bool {
        let until = Instant::now() + patience;
        loop {
            self.hear(Duration::ZERO);
            if holds(self) {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.hear(left);
        }
    }

    /// Takes what is there, or waits for one sighting.
    fn hear(&mut self, patience: Duration) {
        let first = if patience.is_zero() { None } else { self.sightings.recv_timeout(patience).ok() };
        let heard: Vec<Sighting> = first.into_iter().chain(self.sightings.try_iter()).collect();
        heard.into_iter().for_each(|sighting| self.take(sighting));
    }

    fn take(&mut self, sighting: Sighting) {
        let Sighting { observer, subject, alive, at_ms } = sighting;
        let members = self.views.len();
        let Some(view) = self.views.get_mut(observer).filter(|_| subject < members) else { return };
        let changed = if alive { view.alive.insert(subject) } else { view.alive.remove(&subject) };
        if changed {
            view.changed_ms = view.changed_ms.max(at_ms);
            if !alive {
                self.losses.push(sighting);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(20);

    fn booted(members: usize) -> (Sender<Sighting>, Watch) {
        let (tell, mut watch) = Watch::new(members);
        for observer in 0..members {
            for subject in (0..members).filter(|&s| s != observer) {
                let at_ms = (observer * members + subject) as f64;
                tell.send(Sighting { observer, subject, alive: true, at_ms }).unwrap();
            }
        }
        assert!(watch.all_see_all(SOON));
        (tell, watch)
    }

    #[test]
    fn views_fill_up_and_say_when() {
        let (_tell, watch) = booted(4);
        assert_eq!(watch.changed_ms(), 14.0);
    }

    #[test]
    fn a_loss_is_known_once_all_others_say_so_and_counts_once() {
        let (tell, mut watch) = booted(3);
        watch.forget_losses();
        let gone = |observer, at_ms| Sighting { observer, subject: 2, alive: false, at_ms };
        tell.send(gone(0, 100.0)).unwrap();
        tell.send(gone(0, 101.0)).unwrap();
        assert!(!watch.all_miss(2, SOON));
        assert_eq!(watch.who_miss(2), 1);
        tell.send(gone(1, 107.0)).unwrap();
        assert!(watch.all_miss(2, SOON));
        assert_eq!(watch.losses(), [gone(0, 100.0), gone(1, 107.0)]);
    }

    #[test]
    fn who_restarts_knows_nobody_and_strangers_are_none_of_ours() {
        let (tell, mut watch) = booted(3);
        watch.restarted(1);
        assert!(!watch.all_see_all(SOON));
        tell.send(Sighting { observer: 1, subject: 0, alive: true, at_ms: 1.0 }).unwrap();
        tell.send(Sighting { observer: 1, subject: 2, alive: true, at_ms: 1.0 }).unwrap();
        tell.send(Sighting { observer: 7, subject: 2, alive: true, at_ms: 1.0 }).unwrap();
        tell.send(Sighting { observer: 1, subject: 7, alive: true, at_ms: 1.0 }).unwrap();
        assert!(watch.all_see_all(SOON));
        watch.rebooted();
        assert!(!watch.all_see_all(SOON));
    }
}
