//! Receipts and repair: nodes tell each other how far they have come with the casts of each source.
//!
//! Beyond 001, whose broadcast is sent and hoped for. Whoever has a cast in its whole branch of the tree tells its **overseer**: who is next
//! above it; who has nobody above tells the source. A branch is told with the number of its nodes and the sum of their names, so the source
//! knows when all whom it takes for alive have a cast, and exactly those: neither moves in the tree nor views that differ for a moment make
//! it believe too much.
//!
//! That is also how everything else is repaired. Sending down the tree and around the dead is fast, but messages may come to who has just
//! left a seat, or has none yet. So overseers look after those below them: whoever has not come as far as they have is asked, and sent what
//! it lacks. As everybody has an overseer, and the source oversees those at the top, each cast comes to everybody once views agree.
//!
//! **When the source is dead** nobody settles anything, but all are to have what one has. Then both sides ask: who is below tells how far it
//! has come, and who is above asks for what it lacks. Those at the top have the first of them for their overseer.

use super::machine::{Caster, Out, Output};
use super::recent::Cast;
use super::send::{header, letter};
use super::source::{Branch, Crowd, Source};
use super::spread;
use super::tree::Id;
use phalanx_core::{Duration, Instant, Shared};
use phalanx_wire::cast::{Kind, Says, Status};

/// Each time it takes twice as long until somebody is asked again, up to so many times.
const TRIES_MAX: u32 = 4;
/// What one who lacks something is sent at once.
const HAND_BYTES: usize = 1 << 20;
/// Who does not sit anywhere for so many tries is gone.
const GONE: u64 = 12;

/// Telling.
impl Caster {
    /// How far our branch has come.
    fn branch(&self, source: &Source) -> Branch {
        let own = source.own();
        let mut branch = Branch { upto: own, own, crowd: Crowd::one(self.who) };
        for heir in spread::heirs(&self.tree, self.me, |id| self.lives(id)) {
            let below = source.heard(heir, self.who_at(heir)).unwrap_or_default();
            branch.upto = branch.upto.min(below.upto);
            branch.crowd = branch.crowd.with(below.crowd);
        }
        branch
    }

    /// Who looks after us.
    fn overseer(&self, who: u64) -> Option<Id> {
        let first = || self.tree.ids().find(|&id| self.lives(id));
        let overseer = self.next_above().or_else(|| self.seat_of(who)).or_else(first);
        overseer.filter(|&id| id != self.me)
    }

    /// Whom we look after: those next below us. The source, or else the first of all, looks after those at the top, too.
    fn wards(&self, who: u64) -> Vec<Id> {
        let mut wards = spread::heirs(&self.tree, self.me, |id| self.lives(id));
        let seat = self.seat_of(who);
        let is_first = || self.tree.ids().find(|&id| self.lives(id)) == Some(self.me);
        if seat.map_or_else(is_first, |seat| seat == self.me) {
            wards.extend(self.tops().into_iter().filter(|&id| id != self.me));
        }
        wards
    }

    fn tops(&self) -> Vec<Id> {
        spread::tops(&self.tree, |id| self.lives(id))
    }

    /// Tells our overseer how far we have come with the casts of a source, when that is news.
    pub(super) fn tell(&mut self, now: Instant, who: u64, out: &mut impl Out) {
        if who == self.who {
            self.settle(out);
        }
        let Some((source, to)) = self.sources.get(&who).zip(self.overseer(who)) else { return };
        let branch = self.branch(source);
        let (news, is_due) = match self.seat_of(who) {
            Some(_) => (Branch { own: 0, ..branch }, branch.upto > source.stable),
            None => (Branch { own: branch.own, ..Branch::default() }, branch.own > source.stable),
        };
        if !is_due || source.told == Some((to, news)) {
            return;
        }
        let bytes = self.status(who, source, branch, Says::Tell);
        if let Some(source) = self.sources.get_mut(&who) {
            source.told = Some((to, news));
        }
        self.direct(now, to, bytes, out);
    }

    fn say(&mut self, now: Instant, to: Id, who: u64, says: Says, out: &mut impl Out) {
        let Some(source) = self.sources.get(&who) else { return };
        let bytes = self.status(who, source, self.branch(source), says);
        self.direct(now, to, bytes, out);
    }

    fn status(&self, who: u64, source: &Source, branch: Branch, says: Says) -> Shared {
        let Branch { upto, own, crowd: Crowd { count, sum } } = branch;
        let first = self.memory.of(who, source.stable + 1, own).next().map_or(own + 1, |c| c.number);
        let kind = Kind::Status(Status { from: self.me, by: self.who, own, first, count, sum, says });
        let seat = self.seat_of(who).unwrap_or(self.me);
        let (body, wire) = (Shared::default(), None);
        self.message(&Cast { source: seat, who, number: upto, stable: source.stable, body, wire }, kind)
    }

    /// Looks how far all branches have come with our casts.
    fn settle(&mut self, out: &mut impl Out) {
        let Some(source) = self.sources.get(&self.who).filter(|s| s.stable < self.casts) else { return };
        let (mut upto, mut crowd) = (self.casts, Crowd::default());
        for top in self.tops() {
            let branch = match top == self.me {
                true => self.branch(source),
                false => source.heard(top, self.who_at(top)).unwrap_or_default(),
            };
            upto = upto.min(branch.upto);
            crowd = crowd.with(branch.crowd);
        }
        if upto <= source.stable || crowd != self.crowd() {
            return;
        }
        if let Some(source) = self.sources.get_mut(&self.who) {
            source.stable = upto;
        }
        self.memory.stable(self.who, upto);
        if self.pending.settle(upto) {
            out.push(Output::Settled { whole: true, number: upto, missed: &[] });
        }
    }

    /// All who live, as far as we know.
    fn crowd(&mut self) -> Crowd {
        if let Some(crowd) = self.crowd {
            return crowd;
        }
        let living = self.tree.ids().filter(|&id| self.lives(id)).filter_map(|id| self.who_at(id));
        let crowd = living.map(Crowd::one).fold(Crowd::default(), Crowd::with);
        *self.crowd.insert(crowd)
    }
}

/// Hearing.
impl Caster {
    pub(super) fn on_status(
        &mut self,
        now: Instant,
        who: u64,
        (upto, stable): (u64, u64),
        status: Status,
        out: &mut impl Out,
    ) {
        let Status { from, by, own, first, count, sum, says } = status;
        if !self.config.receipts || self.who_at(from) != Some(by) || from == self.me {
            self.counters.strays += 1;
            return;
        }
        let is_ours = who == self.who;
        let numbers_hold = upto <= own && stable <= own && own < u64::MAX && (1..=own + 1).contains(&first);
        if !numbers_hold || is_ours && own > self.casts {
            self.counters.malformed += 1;
            return;
        }
        self.source(now, who, stable);
        if !is_ours && self.learn_stable(now, who, stable, out) {
            self.announce(now, who, out);
        }
        // It was forgotten for lack of room.
        if says != Says::Tell && !is_ours && self.overseer(who) == Some(from) {
            self.pass(now, who, first - 1, out);
        }
        let Some(source) = self.sources.get_mut(&who) else { return };
        let ours = source.own();
        let is_news = source.hear(now, from, by, Branch { upto, own, crowd: Crowd { count, sum } });
        let is_open = source.is_open() || own > ours;
        if is_news && is_open {
            self.touch(now, who);
        }
        match says {
            Says::Ask => self.say(now, from, who, Says::Answer, out),
            Says::Tell if own > ours && self.seat_of(who).is_none() => self.say(now, from, who, Says::Ask, out),
            Says::Tell | Says::Answer => {}
        }
        if says != Says::Tell && own < ours {
            self.hand_lacking(now, who, (from, own), out);
        }
        self.tell(now, who, out);
    }
}

/// Looking after others.
impl Caster {
    /// Sends casts that somebody lacks, a part of them at a time.
    fn hand_lacking(&mut self, now: Instant, who: u64, (to, own): (Id, u64), out: &mut impl Out) {
        let mut bytes = 0;
        let is_room = |cast: &&Cast| {
            let is_room = bytes < HAND_BYTES;
            bytes += cast.body.len();
            is_room
        };
        let lacking: Vec<Cast> = self.memory.of(who, own + 1, u64::MAX).take_while(is_room).cloned().collect();
        let Some(last) = lacking.last().map(|cast| cast.number) else { return };
        let patience = self.config.retry * 4;
        if self.sources.get_mut(&who).is_some_and(|s| s.hand(now, to, own, last, patience)) {
            self.counters.again += lacking.len() as u64;
            lacking.iter().for_each(|cast| self.hand(now, cast, to, out));
        }
    }

    /// Something moves with the casts of a source.
    pub(super) fn touch(&mut self, now: Instant, who: u64) {
        if let Some(source) = self.sources.get_mut(&who) {
            source.since = now;
            if self.open.insert(who) {
                source.open_since = now;
            }
            self.look_soon(now);
        }
    }

    /// It lives, and is to know who has its casts: also of those that were given up while it was taken for dead.
    pub(super) fn reopen(&mut self, now: Instant, who: u64) {
        if self.config.receipts && self.sources.get(&who).is_some_and(Source::is_open) {
            self.touch(now, who);
        }
    }

    pub(super) fn look_soon(&mut self, now: Instant) {
        self.look_at = self.look_at.min(now + self.config.retry);
    }

    /// Others sit elsewhere, or are gone, or back: so may be who we tell, and whom we look after.
    pub(super) fn changed(&mut self, now: Instant, out: &mut impl Out) {
        self.crowd = None;
        if !self.config.receipts {
            return;
        }
        for who in self.open.clone() {
            if let Some(source) = self.sources.get_mut(&who) {
                source.hurry();
            }
            self.tell(now, who, out);
            self.look_soon(now);
        }
    }

    /// Somebody has just sat down here: when we look after it, it may lack something.
    pub(super) fn welcome(&mut self, now: Instant, id: Id, out: &mut impl Out) {
        for who in self.open.clone() {
            if self.wards(who).contains(&id) {
                self.say(now, id, who, Says::Ask, out);
            }
        }
    }

    /// It was told nothing yet, or may not have heard it.
    pub(super) fn untell(&mut self, id: Id) {
        for source in self.sources.values_mut() {
            source.told = source.told.filter(|told| told.0 != id);
        }
    }

    fn wait(retry: Duration, tries: u32) -> Duration {
        Duration(retry.0 << tries.min(TRIES_MAX))
    }

    pub(super) fn look_after(&mut self, now: Instant, out: &mut impl Out) {
        for who in self.open.clone() {
            self.look_after_casts(now, who, out);
        }
        self.look_after_posts(now, out);
        let is_idle = self.open.is_empty() && !self.pending.has_posts();
        self.look_at = if is_idle { Instant::NEVER } else { now + self.config.retry };
    }

    /// Asks those who should have come further, each when it has been silent for a while: others may go on meanwhile.
    fn look_after_casts(&mut self, now: Instant, who: u64, out: &mut impl Out) {
        let Some(source) = self.sources.get(&who) else { return };
        let retry = self.config.retry;
        if !source.is_open() {
            // Something may follow that says so.
            if now >= source.since + retry {
                self.open.remove(&who);
                self.announce(now, who, out);
            }
            return;
        }
        let (own, lives) = (source.own(), self.seat_of(who).is_some());
        let is_kept = self.memory.of(who, source.stable + 1, own).next().is_some();
        if !lives && !is_kept {
            // Nobody remembers it any more.
            self.open.remove(&who);
            return;
        }
        let lags = |id: Id, must_settle: bool| match source.heard(id, self.who_at(id)) {
            Some(branch) => branch.own != own || must_settle && branch.upto < own,
            None => true,
        };
        let mut late: Vec<Id> = self.wards(who).into_iter().filter(|&id| lags(id, lives)).collect();
        let waits = source.windows[0].waits_since();
        let waits = waits != Instant::NEVER && now >= waits + retry;
        // Nothing lags, and nobody says that everybody has it: that may have been lost.
        let is_long = now >= source.since + Self::wait(retry, TRIES_MAX);
        late.extend(self.overseer(who).filter(|&id| waits || is_long || !lives && lags(id, false)));
        late.retain(|&id| {
            let (since, tries) = source.silent(id, self.who_at(id));
            now >= since + Self::wait(retry, tries)
        });
        for id in late {
            let by = self.who_at(id);
            if let Some((source, by)) = self.sources.get_mut(&who).zip(by) {
                source.ask(now, id, by);
                self.say(now, id, who, Says::Ask, out);
            }
        }
    }

    /// Everybody has all that came of a source, and nothing follows that would say so.
    fn announce(&mut self, now: Instant, who: u64, out: &mut impl Out) {
        let Some(source) = self.sources.get_mut(&who).filter(|s| s.announced < s.stable) else { return };
        source.announced = source.stable;
        self.wards(who).into_iter().for_each(|id| self.say(now, id, who, Says::Tell, out));
    }

    /// Sends messages to some again that have not come.
    fn look_after_posts(&mut self, now: Instant, out: &mut impl Out) {
        let (me, retry) = (self.me, self.config.retry);
        let mut pending = std::mem::take(&mut self.pending);
        let late = pending.late(now, |tries| Self::wait(retry, tries), |who| self.seat_of(who));
        for (to, body) in late {
            self.counters.again += 1;
            let cast = self.own(0, body);
            let bytes = self.message(&cast, letter(to));
            match self.cut.contains(&to.seat) {
                // It leaves as it did before, around the cut.
                true => self.go_on(now, &cast, header(me, to), out),
                false => out.push(Output::Reach { to: to.seat, bytes: &bytes }),
            }
        }
        let long = Instant(now.0.saturating_sub(GONE * retry.0));
        let gone: Vec<u64> = pending.waits_for(long).into_iter().filter(|&who| self.seat_of(who).is_none()).collect();
        let over: Vec<_> = gone.into_iter().flat_map(|who| pending.failed(who)).collect();
        self.pending = pending;
        over.into_iter().for_each(|posted| self.posted(Some(posted), out));
    }
}
