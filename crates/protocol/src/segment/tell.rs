//! Updates, polls and images: how changes travel up and down (TG-3, TG-6, TG-7).

use super::Segment;
use super::book::{Gone, News, Teller};
use super::level::Level;
use crate::member::{Out, Output, Peer as From, Slot};
use phalanx_core::{Addr, Instant, Snapshot};
use phalanx_wire::baseline::Entry;
use phalanx_wire::segment::{self, CHECKSUM, Change, Changes, HEADER, SETS, Sets, short};
use std::any::Any;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Each time that a poll did not help it takes twice as long until the next one, up to so many times.
const TRIES_MAX: u32 = 5;

/// Telling.
impl Segment {
    /// Tells in our levels what has changed in others.
    pub(super) fn pass_on(&mut self, now: Instant, out: &mut impl Out) {
        self.book.keep(now, self.keep());
        let news = self.book.news();
        if news.is_empty() {
            return;
        }
        for level in 0..self.levels.len() as u8 {
            let relays = level > 0 && self.relays(level);
            let Some(own) = self.levels.get_mut(usize::from(level)) else { return };
            let told: Vec<News> = news
                .iter()
                .copied()
                .filter(|n| n.level != level || relays || own.vouched.contains(&n.member))
                .collect();
            own.vouched.retain(|&member| self.book.version(member).is_some());
            self.tell(level, &told, out);
        }
    }

    /// Whether what others say in a level is passed on there: not all may hear each other.
    fn relays(&self, level: u8) -> bool {
        let Some(own) = self.level(level) else { return false };
        own.leads() || own.leaders().count() > 1
    }

    /// Tells of these in a level, in as many updates as it takes.
    pub(super) fn tell(&mut self, level: u8, news: &[News], out: &mut impl Out) {
        let changes = news.iter().filter_map(|&n| Some(encoded(&self.change(n, level)?))).collect();
        self.tell_changes(level, changes, out);
    }

    /// The same for changes that are encoded already.
    fn tell_changes(&mut self, level: u8, changes: Vec<Vec<u8>>, out: &mut impl Out) {
        let most = self.room() / SETS - 2;
        let mut set = Vec::new();
        for change in changes {
            // One change always fits, however long it is.
            if !set.is_empty() && set.len() + change.len() > most {
                self.update(level, std::mem::take(&mut set), out);
            }
            set.extend(change);
        }
        if !set.is_empty() {
            self.update(level, set, out);
        }
    }

    /// Bytes that change sets have in an update.
    fn room(&self) -> usize {
        usize::from(self.config.datagram_bytes) - HEADER - CHECKSUM - 9
    }

    fn update(&mut self, level: u8, set: Vec<u8>, out: &mut impl Out) {
        let Some(own) = self.levels.get_mut(usize::from(level)) else { return };
        own.tell(set);
        self.cast_last(level, out);
    }

    /// Tells the last change set in a level, and those before it that fit.
    pub(super) fn cast_last(&mut self, level: u8, out: &mut impl Out) {
        let room = self.room();
        let Some(own) = self.levels.get_mut(usize::from(level)) else { return };
        // As many of those before it as fit.
        let (mut first, mut bytes) = (own.last.len(), 0);
        while first > 0 && (first == own.last.len() || bytes + own.last[first - 1].len() + 2 <= room) {
            first -= 1;
            bytes += own.last[first].len() + 2;
        }
        self.scratch.clear();
        segment::update(level, own.told, own.last.range(first..).map(|s| &s[..]), &mut self.scratch);
        self.cast(level, out);
    }

    /// We have come to a level: those there hear for whom we answer.
    pub(super) fn announce(&mut self, level: u8, out: &mut impl Out) {
        let below: Vec<News> = self.known().filter(|n| n.level < level && n.member != self.book.me()).collect();
        self.tell(level, &below, out);
    }

    /// All for whom somebody answers.
    fn known(&self) -> impl Iterator<Item = News> + '_ {
        let answered = self.book.members().filter(|&(member, _)| self.book.is_answered(member));
        answered.filter_map(|(member, _)| Some(News { member, level: self.book.level(member)? }))
    }

    fn change(&self, news: News, level: u8) -> Option<Change<'_>> {
        self.book.change(news, level, self.is_vouched(news.member, level))
    }

    fn is_vouched(&self, member: Slot, level: u8) -> bool {
        let is_here = || self.book.version(member).is_none() || self.book.is_heard(member, level);
        self.level(level).is_some_and(|l| l.vouched.contains(&member)) && is_here()
    }

    /// Who leads whom has changed: what those passed on whose word that is not any more, others will.
    pub(super) fn revise(&mut self, now: Instant, level: u8) {
        let until = self.orphans_until(now, level);
        let Some(own) = self.level(level) else { return };
        let others: Vec<Slot> = own.peers.keys().copied().filter(|&p| !self.is_led_by(level, p)).collect();
        others.into_iter().for_each(|p| self.book.untell_relayed(level, p, until));
    }

    /// Whether what one passes on in a level, who does not answer for it, is for us: leaders tell those who follow, and who follows another one
    /// tells leaders.
    fn is_led_by(&self, level: u8, by: Slot) -> bool {
        let Some(own) = self.level(level) else { return false };
        let Some(pulse) = own.peers.get(&by).map(|p| p.pulse) else { return false };
        let me = self.book.identity(self.book.me()).map_or(0, |i| short(&i));
        if own.leads() { pulse.follows != 0 && pulse.follows != me } else { pulse.leads }
    }
}

/// Being told.
impl Segment {
    pub(super) fn on_update(
        &mut self,
        now: Instant,
        from: From,
        level: u8,
        (number, sets): (u64, Sets<'_>),
        out: &mut impl Out,
    ) {
        let slot = self.book.find(&from.identity);
        let peer = slot.and_then(|slot| Some((slot, self.level(level)?.peers.get(&slot)?)));
        let Some((slot, upto, applied, known)) = peer.map(|(slot, p)| (slot, p.upto, p.applied, p.known())) else {
            // Its heartbeat will come, and we ask then.
            self.counters.strays += 1;
            return;
        };
        if number <= applied {
            return;
        }
        let first = number + 1 - sets.len() as u64;
        for (n, changes) in (first..).zip(sets.iter()) {
            if n > applied {
                self.apply(now, level, slot, changes, n <= upto, out);
            }
        }
        let Some(peer) = self.level_mut(level).and_then(|l| l.peers.get_mut(&slot)) else { return };
        peer.applied = number;
        if number <= upto {
            return;
        }
        (peer.upto, peer.lags_since) = (number, Instant::NEVER);
        if first > known + 1 {
            self.counters.gaps += 1;
            self.poll(now, level, slot, out);
        }
    }

    /// `is_late`: an image has come that is newer. It says who lives; who died of those whom others answer for it cannot say.
    fn apply(&mut self, now: Instant, level: u8, by: Slot, changes: Changes<'_>, is_late: bool, out: &mut impl Out) {
        let me = self.book.identity(self.book.me()).map_or(0, |i| short(&i));
        let is_led = self.is_led_by(level, by);
        for change in changes.iter() {
            match change {
                // It has it from us, or it is not for us.
                Change::Alive { own, by, .. } if by == me || !own && !is_led || is_late => {}
                // Who is gone for us answers for it: the sender will find out, too.
                Change::Alive { own: false, by, .. } if self.book.is_gone(by) => {}
                Change::Alive { own, entry, by: via } => {
                    let note = self.book.tell(now, Teller { level, by, own, via }, &entry, out);
                    self.count(note);
                }
                Change::Gone { own, identity, incarnation, counter, departed, lost } => {
                    let whose = self.book.find(&identity).and_then(|slot| self.book.teller(slot));
                    if is_late && whose.is_some_and(|t| (t.level, t.by) == (level, by)) {
                        continue;
                    }
                    let gone = Gone { identity, incarnation, counter, departed, lost };
                    let is_gone = self.book.tell_gone(now, Teller { level, by, own, via: 0 }, &gone, out);
                    let Some(slot) = self.book.find(&identity) else { continue };
                    if is_gone {
                        self.forget(now, slot, false, out);
                    } else if let Some(below) = self.book.level(slot).filter(|&l| l < level) {
                        // We know better: it is below us.
                        self.tell(level, &[News { member: slot, level: below }], out);
                    }
                }
            }
        }
    }

    /// Asks somebody for all it knows.
    pub(super) fn poll(&mut self, now: Instant, level: u8, slot: Slot, out: &mut impl Out) {
        let Some(to) = self.book.card(slot).map(|c| c.addr) else { return };
        let Some(peer) = self.level_mut(level).and_then(|l| l.peers.get_mut(&slot)) else { return };
        if peer.polled_at == now {
            return;
        }
        peer.polled_at = now;
        self.counters.polls += 1;
        let mut bytes = Vec::new();
        segment::poll(level, &mut bytes);
        send(to, bytes, out);
    }

    pub(super) fn on_poll(&mut self, from: From, level: u8, out: &mut impl Out) {
        if !self.may_answer() {
            return;
        }
        let number = self.level(level).map_or(0, |l| l.told);
        let mut bytes = Vec::new();
        let relays = self.relays(level);
        let said = self
            .known()
            .filter(|n| relays || n.level < level || n.member == self.book.me() || self.is_vouched(n.member, level));
        segment::image(level, number, said.filter_map(|n| self.change(n, level)), &mut bytes);
        send(from.addr, bytes, out);
    }

    /// Somebody says all it knows: what it does not say it takes back, and what it should know it is told.
    pub(super) fn on_image(
        &mut self,
        now: Instant,
        from: From,
        level: u8,
        (number, changes): (u64, Changes<'_>),
        out: &mut impl Out,
    ) {
        let slot = self.book.find(&from.identity);
        let peer = slot.and_then(|slot| self.level_mut(level)?.peers.get_mut(&slot));
        let Some((by, peer)) = slot.zip(peer) else {
            self.counters.strays += 1;
            return;
        };
        if number < peer.upto {
            // What it told since has overtaken it: an older image would take that back. A new one is asked for.
            self.counters.strays += 1;
            return self.poll(now, level, by, out);
        }
        (peer.upto, peer.lags_since) = (number, Instant::NEVER);
        let me = self.book.identity(self.book.me()).map_or(0, |i| short(&i));
        let is_led = self.is_led_by(level, by);
        let (mut said, mut behind, mut denied) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let mut introduce = false;
        for change in changes.iter() {
            let Change::Alive { own, entry, by: whom } = change else { continue };
            let known = self.book.find(&entry.identity);
            if known == Some(self.book.me()) {
                introduce |= entry.attributes != self.book.attributes(self.book.me());
            } else if whom == me {
                // It has it from us, and we do not. That is no word on who has it from others.
                if known.is_none_or(|slot| self.book.version(slot).is_none()) {
                    let Entry { identity, incarnation, counter, .. } = entry;
                    let gone = Change::Gone { own: false, identity, incarnation, counter, departed: None, lost: true };
                    denied.push(encoded(&gone));
                }
            } else if own || is_led && !self.book.is_gone(whom) {
                let note = self.book.tell(now, Teller { level, by, own, via: whom }, &entry, out);
                self.count(note);
            }
            let Some(slot) = self.book.find(&entry.identity) else { continue };
            said.insert(slot);
            // Of an older life, or before it said something new.
            if self.book.entry(slot).is_some_and(|e| (entry.incarnation, entry.minor) < (e.incarnation, e.minor)) {
                behind.insert(slot);
            }
        }
        for slot in self.book.told_by(level, by) {
            if !said.contains(&slot)
                && let Some(identity) = self.book.identity(slot)
            {
                let (incarnation, counter) = (self.book.version(slot).map_or(0, |v| v.incarnation), 0);
                let gone = Gone { identity, incarnation, counter, departed: None, lost: true };
                match self.book.tell_gone(now, Teller { level, by, own: false, via: 0 }, &gone, out) {
                    true => self.forget(now, slot, false, out),
                    // We hear it ourselves.
                    false => self.book.untell_one(slot),
                }
            }
        }
        self.doubt(now, level, by, &said, out);
        let is_said = |member: &Slot| said.contains(member) && !behind.contains(member);
        let is_known = |n: &News| n.member == self.book.me() || n.member == by || is_said(&n.member);
        let is_told = |n: &News| self.book.teller(n.member).is_some_and(|t| t.level == level);
        let (relays, is_leader) = (self.relays(level), self.is_leader(level, by));
        let is_lacking = |n: &News| is_leader && !is_known(n) && (relays || !is_told(n));
        let lacking: Vec<News> = self.known().filter(is_lacking).collect();
        if let Some(own) = self.levels.get_mut(usize::from(level)) {
            own.vouched.extend(lacking.iter().map(|n| n.member).filter(|&m| self.book.is_heard(m, level)));
        }
        self.tell(level, &lacking, out);
        self.tell_changes(level, denied, out);
        if introduce && let Some(own) = self.level_mut(level) {
            own.introduce = own.introduce.max(2);
        }
    }

    fn is_leader(&self, level: u8, slot: Slot) -> bool {
        self.level(level).is_some_and(|l| l.peers.get(&slot).is_some_and(|p| p.pulse.leads))
    }

    /// A leader does not have some of whom others told us: they are asked whether they still do.
    fn doubt(&mut self, now: Instant, level: u8, by: Slot, said: &BTreeSet<Slot>, out: &mut impl Out) {
        let is_doubted = |slot: Slot| self.book.teller(slot).filter(|t| t.level == level && t.by != by).map(|t| t.by);
        let unsaid = self.book.members().map(|(slot, _)| slot).filter(|slot| !said.contains(slot));
        let tellers: BTreeSet<Slot> = unsaid.filter_map(is_doubted).collect();
        if self.is_leader(level, by) {
            tellers.into_iter().for_each(|teller| self.poll(now, level, teller, out));
        }
    }

    /// Whether we have all that somebody told, and see whom a leader sees.
    pub(super) fn compare(&mut self, now: Instant, level: u8, slot: Slot, out: &mut impl Out) {
        // Changes are under way, and may be lost three times.
        let (digest, patience) = (self.book.digest(), self.config.fail_after(0));
        let changed_at = self.book.changed_at;
        let leads = self.level(level).is_some_and(Level::leads);
        let Some(peer) = self.level_mut(level).and_then(|l| l.peers.get_mut(&slot)) else { return };
        // It counts anew.
        let number = peer.pulse.number;
        (peer.upto, peer.from) = (peer.upto.min(number), peer.from.min(number));
        peer.applied = peer.applied.min(number);
        let lags = peer.pulse.number > peer.known();
        let differs = peer.pulse.leads && !leads && peer.pulse.digest != digest;
        peer.lags_since = if lags { peer.lags_since.min(now) } else { Instant::NEVER };
        peer.differs_since = if differs { peer.differs_since.min(now) } else { Instant::NEVER };
        if !lags && !differs {
            peer.tries = 0;
            return;
        }
        // The last one helped, though not all the way: another went wrong meanwhile.
        peer.tries = if changed_at > peer.polled_at { 0 } else { peer.tries };
        let is_due = |since: Instant| since != Instant::NEVER && now >= since + patience;
        let is_quiet =
            now >= changed_at + patience && now >= peer.polled_at + patience * (1 << peer.tries.min(TRIES_MAX));
        if is_quiet && (is_due(peer.lags_since) || is_due(peer.differs_since)) {
            peer.tries += 1;
            self.poll(now, level, slot, out);
        }
    }
}

/// A message that is bytes already.
#[derive(Debug)]
struct Written(Vec<u8>);

impl Snapshot for Written {
    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn encode(&self, range: Range<usize>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0[range]);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn encoded(change: &Change<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    change.encode(&mut bytes);
    bytes
}

fn send(to: Addr, bytes: Vec<u8>, out: &mut impl Out) {
    let message: Arc<dyn Snapshot> = Arc::new(Written(bytes));
    out.push(Output::Message { to, message: &message, across: false });
}
