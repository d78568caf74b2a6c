//! The post: letters and notes, in and out.
//!
//! ZN-7: a new neighbour is sent the whole view and all suspicions, then what changed, aggregated. Of a letter first what
//! left, then who is alive, then who is suspected is processed: that order makes false suspicions unlikely.

use super::Zone;
use super::book::Parting;
use super::delta::Mask;
use super::hierarchy::{Upward, is_upward};
use super::letter::{Alive, Parcel};
use super::replicate::{Happening, Written};
use super::topology::SPARE_URGENT;
use super::view::{Standing, View};
use crate::member::{Card, Name, Out, Output, Peer, Slot, Version};
use phalanx_core::{Addr, Identity, Instant, Payload, Snapshot};
use phalanx_wire::member::Member;
use phalanx_wire::tomorrow;
use phalanx_wire::zone::{Letter, LetterKind, Note, flag};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a letter's reader must remember of the time before it was read.
#[derive(Clone, Copy)]
struct Before {
    members: usize,
    /// The sender's.
    fingerprint: Option<u64>,
}

/// Up to so many named members are looked up one by one; beyond, pages are compared.
const FEW: usize = 16;
/// Incarnations by which a version may be ahead of what is known: 136 years, when they are seconds.
const LEAP: u64 = 1 << 32;
/// Members that are asked at once when views differ.
const ASKED: usize = 4;

impl Zone {
    pub(super) fn on_message(&mut self, now: Instant, from: Peer, payload: Payload<'_>, out: &mut impl Out) {
        self.keep_stranger(from.addr, out);
        match payload {
            Payload::Bytes(bytes) => match Letter::parse(bytes) {
                Ok(letter) => self.on_letter(now, from, &letter, out),
                Err(_) => self.counters.malformed += 1,
            },
            Payload::Snapshot(snapshot) => match snapshot.as_any().downcast_ref::<Parcel>() {
                Some(parcel) => self.on_parcel(now, from, parcel, out),
                None => match snapshot.as_any().downcast_ref::<Written>() {
                    Some(written) => self.on_message(now, from, Payload::Bytes(&written.0), out),
                    None => self.counters.malformed += 1,
                },
            },
        }
    }

    /// A message came after we left: its sender does not know, or did not when it wrote.
    pub(super) fn on_late_message(&mut self, from: Peer, payload: Payload<'_>, out: &mut impl Out) {
        let kind = match payload {
            Payload::Bytes(bytes) => match Letter::parse(bytes) {
                Ok(letter) => {
                    self.turn_away(from, Upward::Letter(&letter), out);
                    letter.kind
                }
                Err(_) => return,
            },
            Payload::Snapshot(snapshot) => match snapshot.as_any().downcast_ref::<Parcel>() {
                Some(parcel) => {
                    self.turn_away(from, Upward::Parcel(parcel), out);
                    parcel.kind
                }
                None => return,
            },
        };
        // Neighbours have heard it; and a farewell is no reason for another.
        let wants_us =
            matches!(kind, LetterKind::Discover | LetterKind::Found | LetterKind::Connect | LetterKind::Accept);
        if let Some(farewell) = self.book.departed(self.book.me, &self.roster).filter(|_| wants_us)
            && self.watch.may_tell()
        {
            let mut letter = self.parcel(LetterKind::Update, 0, false);
            letter.left.push(farewell);
            self.send(from.addr, letter, out);
            out.push(Output::Release { addr: from.addr });
        }
    }

    fn on_letter(&mut self, now: Instant, from: Peer, letter: &Letter<'_>, out: &mut impl Out) {
        if is_upward(letter.kind) {
            return self.on_upward(now, from, Upward::Letter(letter), out);
        }
        self.heard(now);
        let Some(sender) = letter.sender else {
            self.counters.malformed += 1;
            return;
        };
        if sender.identity != from.identity {
            self.counters.impostors += 1;
            return;
        }
        if letter.zone != self.name().map_or("", Name::as_str) {
            return self.on_foreign(now, from, Upward::Letter(letter), out);
        }
        let Some((slot, version)) = self.enter(&sender) else { return };
        let before = Before { members: self.book.view.len(), fingerprint: letter.fingerprint };
        // It was under way for long: what its sender thought of others then may be wrong.
        let late = self.book.view.of(slot, &self.roster).is_some_and(|known| version < known);
        self.answer_for_discovery(letter.kind, letter.flags);
        let mut changed = false;
        let moved: BTreeMap<Identity, &str> = letter.moved().map(|m| (m.identity, m.zone)).collect();
        for left in letter.left() {
            if let Some(p) = self.roster.find(&left.identity) {
                let v = Version { incarnation: left.incarnation, minor: left.minor };
                let to = moved.get(&left.identity).and_then(|zone| Name::new(zone).ok());
                let parting = Parting { code: left.code, to: to.as_ref() };
                changed |= self.plausible(p, v) && self.book.on_leave(now, p, v, parting, &self.roster, out);
            }
        }
        changed |= self.book.on_alive(slot, version, &self.roster, out);
        // What a would-be neighbour did not name it lacks.
        let (mut theirs, mut departed) = (View::default(), Vec::new());
        for alive in letter.alive() {
            let v = Version { incarnation: alive.incarnation, minor: alive.minor };
            // Of a whole view most is known already, in these very words.
            let known = self.known(&alive).or_else(|| {
                let (p, v) = self.enter(&alive)?;
                departed.extend(self.departed(p, v));
                changed |= self.book.on_alive(p, v, &self.roster, out);
                Some(p)
            });
            if let Some(p) = known.filter(|_| letter.kind == LetterKind::Accept) {
                theirs.set(p, Standing::In(v), &self.roster);
            }
        }
        for s in letter.suspected() {
            let v = Version { incarnation: s.incarnation, minor: s.minor };
            if let (Some(r), Some(s)) = (self.roster.find(&s.reporter), self.roster.find(&s.suspect))
                && !(late && r == slot)
                && self.plausible(s, v)
            {
                changed |= self.suspicion(now, r, s, v, out);
            }
        }
        if letter.kind == LetterKind::Attributes {
            self.replicate(now, Happening::Message(slot, letter.attributes), out);
        }
        if letter.flags & flag::WHOLE != 0 {
            let theirs: Vec<Slot> = letter.alive().filter_map(|m| self.roster.find(&m.identity)).collect();
            self.compare(now, slot, theirs.into_iter(), out);
        }
        self.act_on(now, from, slot, (letter.kind, letter.flags), changed, before, out);
        self.correct(slot, (letter.kind, letter.flags), departed, out);
        if letter.kind == LetterKind::Accept {
            self.fill_in(from.addr, slot, &theirs, out);
        }
    }

    /// A letter by reference, from a member that shares our roster.
    fn on_parcel(&mut self, now: Instant, from: Peer, parcel: &Parcel, out: &mut impl Out) {
        if is_upward(parcel.kind) {
            return self.on_upward(now, from, Upward::Parcel(parcel), out);
        }
        self.heard(now);
        if parcel.zone.as_ref() != self.name() {
            match parcel.author() {
                Some((author, _)) if author.identity == from.identity => {
                    self.on_foreign(now, from, Upward::Parcel(parcel), out);
                }
                _ => self.counters.impostors += 1,
            }
            return;
        }
        let same = match (self.roster.shared(), parcel.roster.shared()) {
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            _ => false,
        };
        if !same {
            // Slots mean different things to us: read the bytes instead.
            let mut bytes = Vec::with_capacity(parcel.encoded_len());
            parcel.write(&mut bytes);
            return self.on_message(now, from, Payload::Bytes(&bytes), out);
        }
        if self.roster.card(parcel.sender).is_none_or(|c| c.identity != from.identity) {
            self.counters.impostors += 1;
            return;
        }
        let before = Before { members: self.book.view.len(), fingerprint: parcel.fingerprint };
        let late = self.book.view.of(parcel.sender, &self.roster).is_some_and(|known| parcel.version < known);
        self.answer_for_discovery(parcel.kind, parcel.flags);
        let mut changed = false;
        for &(p, v, code) in &parcel.left {
            let to = parcel.moved.iter().find(|m| m.0 == p).map(|m| &m.1);
            changed |= self.book.on_leave(now, p, v, Parting { code, to }, &self.roster, out);
        }
        changed |= self.book.on_alive(parcel.sender, parcel.version, &self.roster, out);
        let mut departed = Vec::new();
        match &parcel.alive {
            Alive::Nobody => {}
            Alive::These(mask) if mask.len() <= FEW => {
                for p in mask.iter() {
                    if let Some(v) = parcel.view.of(p, &self.roster) {
                        departed.extend(self.departed(p, v));
                        changed |= self.book.on_alive(p, v, &self.roster, out);
                    }
                }
            }
            Alive::These(mask) => {
                changed |= self.book.on_view(&parcel.view, Some(mask), &self.roster, out);
                let named = self.book.history().filter(|&p| mask.contains(p));
                let named = named.filter_map(|p| Some((p, parcel.view.of(p, &self.roster)?)));
                departed.extend(named.filter_map(|(p, v)| self.departed(p, v)));
            }
            // That is no Update, or one that is compared.
            Alive::All => changed |= self.book.on_view(&parcel.view, None, &self.roster, out),
        }
        for &(r, s, v) in &parcel.suspected {
            if !(late && r == parcel.sender) {
                changed |= self.suspicion(now, r, s, v, out);
            }
        }
        if parcel.flags & flag::WHOLE != 0 {
            self.compare(now, parcel.sender, parcel.view.slots(), out);
        }
        self.act_on(now, from, parcel.sender, (parcel.kind, parcel.flags), changed, before, out);
        self.correct(parcel.sender, (parcel.kind, parcel.flags), departed, out);
        if parcel.kind == LetterKind::Accept {
            self.fill_in(from.addr, parcel.sender, &parcel.view, out);
        }
    }

    /// The slot of a member of whom a letter says nothing new.
    fn known(&self, member: &Member<'_>) -> Option<Slot> {
        let slot = self.roster.find(&member.identity)?;
        let version = Version { incarnation: member.incarnation, minor: member.minor };
        let card = self.roster.card(slot).filter(|_| self.book.view.of(slot, &self.roster) == Some(version))?;
        (card.addr == member.addr && card.name.as_str() == member.name).then_some(slot)
    }

    /// The slot and version of a member that a letter names; `None` when there is no room for it.
    fn enter(&mut self, member: &Member<'_>) -> Option<(Slot, Version)> {
        let version = Version { incarnation: member.incarnation, minor: member.minor };
        let known = self.roster.find(&member.identity);
        if let Some(slot) = known
            && self.roster.card(slot).is_some_and(|c| c.addr == member.addr && c.name.as_str() == member.name)
        {
            return self.plausible(slot, version).then_some((slot, version));
        }
        // Checked before a slot is spent on it.
        if known.is_none() && !self.follows(self.book.version().incarnation, version) {
            return None;
        }
        let name = Name::new(member.name).ok()?;
        let card = Card { identity: member.identity, addr: member.addr, name };
        let Some(slot) = self.roster.enter(&card, member.incarnation) else {
            self.counters.crowded_out += 1;
            return None;
        };
        if !self.plausible(slot, version) {
            return None;
        }
        // Only the newest word about a member says where it is.
        if self.book.view.of(slot, &self.roster).is_none_or(|v| version > v) && slot != self.book.me {
            self.change_card(slot, &card);
            self.look_at_name(self.now, slot);
        }
        Some((slot, version))
    }

    /// A report counts when its author is a member: the excluded cannot exclude others.
    pub(super) fn suspicion(&mut self, now: Instant, r: Slot, s: Slot, v: Version, out: &mut impl Out) -> bool {
        if self.config.probes && !self.book.view.contains(r) && s != self.book.me {
            self.counters.strange_reporters += 1;
            return false;
        }
        self.book.on_suspicion(now, r, s, v, self.config.threshold, &self.roster, out)
    }

    /// A version that lies beyond all that a member can reach is a lie, or damage. Believed, it could never be outdone.
    pub(super) fn plausible(&mut self, slot: Slot, v: Version) -> bool {
        let known = match self.book.view.standing(slot, &self.roster) {
            Standing::In(known) | Standing::Gone(known) => known.incarnation,
            Standing::Unknown => 0,
        };
        self.follows(known.max(self.book.version().incarnation), v)
    }

    fn follows(&mut self, incarnation: u64, v: Version) -> bool {
        let plausible = v.incarnation <= incarnation.saturating_add(LEAP);
        self.counters.implausible += u64::from(!plausible);
        plausible
    }

    /// ZN-3: whoever takes part in a discovery that did not begin at boot speaks up, to outdo what others remember of it.
    /// We differ, because each such word goes to everybody: who has removed the other says so, and in which version, with
    /// its question or before its answer. One that is outdone already needs no word, and who comes and goes holds back.
    fn answer_for_discovery(&mut self, kind: LetterKind, flags: u16) {
        let discovery = matches!(kind, LetterKind::Discover | LetterKind::Found) && flags & flag::BOOT == 0;
        if discovery && !self.config.probes {
            self.book.speak_up(self.book.version(), &self.roster);
        }
    }

    /// A neighbour sent its whole view, because ours differ. Of those whom we have removed and it has not, the departed
    /// are named to it and some others asked; of those whom it has not, some are asked to be our neighbours: who is gone is found out so.
    fn compare(&mut self, now: Instant, sender: Slot, theirs: impl Iterator<Item = Slot>, out: &mut impl Out) {
        let (mut named, mut removed) = (Mask::default(), Vec::new());
        for slot in theirs {
            named.insert(slot);
            if matches!(self.book.view.standing(slot, &self.roster), Standing::Gone(_)) {
                removed.push(slot);
            }
        }
        let absent =
            |zone: &Self, s| !named.contains(s) && s != sender && s != zone.book.me && !zone.neighbours.contains(s);
        let mut missing: Vec<Slot> = self.book.view.slots().filter(|&s| absent(self, s)).collect();
        // Who departed in order answers nobody: its word is passed on.
        let departed: Vec<_> = removed.iter().filter_map(|&s| self.book.departed(s, &self.roster)).collect();
        removed.retain(|&s| departed.iter().all(|d| d.0 != s));
        self.pass_on(sender, departed, out);
        self.rng.shuffle(&mut removed);
        for slot in removed.into_iter().take(ASKED) {
            self.ask_removed(slot, out);
        }
        self.rng.shuffle(&mut missing);
        let mut room = (self.config.randoms + SPARE_URGENT).saturating_sub(self.neighbours.randoms());
        if room == 0 && !missing.is_empty() {
            room = usize::from(self.give_way(now, sender, out));
        }
        for slot in missing.into_iter().take(room.min(ASKED)) {
            self.ask(now, slot, flag::URGENT, out);
        }
    }

    /// The leave of somebody who is said to be there in a version in which it departed.
    fn departed(&self, p: Slot, v: Version) -> Option<(Slot, Version, u8)> {
        self.book.departed(p, &self.roster).filter(|departed| v <= departed.1)
    }

    /// A neighbour names members of whom we know that they departed: it missed their word when it had no neighbours, as
    /// when all of them left at once.
    fn correct(
        &mut self,
        sender: Slot,
        (kind, flags): (LetterKind, u16),
        departed: Vec<(Slot, Version, u8)>,
        out: &mut impl Out,
    ) {
        if kind == LetterKind::Update && flags & flag::WHOLE == 0 {
            self.pass_on(sender, departed, out);
        }
    }

    fn pass_on(&mut self, sender: Slot, departed: Vec<(Slot, Version, u8)>, out: &mut impl Out) {
        let Some(to) = self.neighbours.of(sender).map(|n| n.addr).filter(|_| !departed.is_empty()) else { return };
        let mut leaves = self.parcel(LetterKind::Update, 0, false);
        leaves.moved = self.destinations(&departed);
        leaves.left = departed;
        self.send(to, leaves, out);
    }

    #[allow(clippy::too_many_arguments)] // What a letter led to.
    fn act_on(
        &mut self,
        now: Instant,
        from: Peer,
        sender: Slot,
        (kind, flags): (LetterKind, u16),
        changed: bool,
        before: Before,
        out: &mut impl Out,
    ) {
        self.answer_accusation(now);
        // It does not know that it was removed, or holds back and knows.
        if let Standing::Gone(removed) = self.book.view.standing(sender, &self.roster)
            && !matches!(kind, LetterKind::Disconnect | LetterKind::Update)
            && (self.config.probes || kind != LetterKind::Discover || flags & flag::BOOT != 0)
        {
            self.disown(from.addr, Some((sender, removed)), out);
        }
        match kind {
            LetterKind::Discover => self.on_discover(now, from.addr, flags, out),
            LetterKind::Found => self.on_found(now, from.addr, sender, before.members, out),
            LetterKind::Connect => self.on_connect(now, from.addr, sender, (flags, before.fingerprint), out),
            LetterKind::Accept => self.on_accept(now, from.addr, sender, flags, out),
            LetterKind::Reject => self.on_reject(now, sender, out),
            LetterKind::Disconnect => self.on_disconnect(now, sender, flags, out),
            // It takes us for its neighbour.
            LetterKind::Update if self.config.probes && !self.neighbours.contains(sender) => {
                self.tell(sender, from.addr, true, out);
            }
            _ => {}
        }
        if changed || !matches!(kind, LetterKind::Update | LetterKind::Attributes) {
            self.settle(now, out);
        }
    }

    pub(super) fn member(&self, p: Slot, v: Version) -> Option<Member<'_>> {
        let card = self.roster.card(p)?;
        let name = card.name.as_str();
        Some(Member { identity: card.identity, incarnation: v.incarnation, minor: v.minor, addr: card.addr, name })
    }

    /// ZN-7: whoever accepted us has sent its view, unless it was the same as ours: it gets of ours what it lacks. What
    /// happened since we asked is in the news that it gets.
    fn fill_in(&mut self, to: Addr, sender: Slot, theirs: &View, out: &mut impl Out) {
        let Some(neighbour) = self.neighbours.of(sender) else { return };
        if std::mem::replace(&mut neighbour.viewed, true) || theirs.len() == 0 {
            return;
        }
        let mut lacking = Vec::new();
        (0..self.book.view.pages()).for_each(|page| theirs.differing(&self.book.view, page, None, &mut lacking));
        let mut mask = Mask::default();
        lacking.into_iter().for_each(|slot| mask.insert(slot));
        let suspected: Vec<_> = self.book.suspicions().collect();
        if mask.len() == 0 && suspected.is_empty() {
            return;
        }
        let me = (self.book.me, self.book.version());
        let mut rest = Parcel::new(LetterKind::Update, 0, me, &self.roster, &self.book.view, Alive::These(mask));
        rest.suspected = suspected;
        self.send(to, rest, out);
    }

    /// A letter with the whole view and all suspicions, or with nothing but our own entry.
    pub(super) fn parcel(&self, kind: LetterKind, flags: u16, whole: bool) -> Parcel {
        let sender = (self.book.me, self.book.version());
        let alive = if whole { Alive::All } else { Alive::Nobody };
        let mut parcel = Parcel::new(kind, flags, sender, &self.roster, &self.book.view, alive);
        if whole {
            parcel.suspected = self.book.suspicions().collect();
        }
        if matches!(kind, LetterKind::Connect | LetterKind::Accept) {
            parcel.fingerprint = Some(self.book.view.full_digest());
        }
        parcel
    }

    pub(super) fn send(&mut self, to: Addr, parcel: Parcel, out: &mut impl Out) {
        self.send_all(&[to], parcel, out);
    }

    fn send_all(&mut self, to: &[Addr], mut parcel: Parcel, out: &mut impl Out) {
        if parcel.zone.is_none() {
            parcel.zone = self.name().cloned();
        }
        self.counters.letters += to.len() as u64;
        for &to in to {
            self.keep_stranger(to, out);
        }
        post(to, parcel, false, out);
    }

    /// To the other plane.
    pub(super) fn send_across(&self, to: Addr, parcel: Parcel, out: &mut impl Out) {
        post(&[to], parcel, true, out);
    }

    pub(super) fn send_all_across(&self, to: &[Addr], parcel: Parcel, out: &mut impl Out) {
        post(to, parcel, true, out);
    }

    /// Δ goes to all neighbours, those included who have not answered yet: they hold our base view, or will.
    pub(super) fn send_news(&mut self, now: Instant, out: &mut impl Out) {
        self.pace.sent(now, &self.config.paces);
        let (mask, left, suspected) = self.book.delta.take();
        let to: Vec<Addr> = self.neighbours.iter().map(|n| n.addr).collect();
        if to.is_empty() {
            return;
        }
        let sender = (self.book.me, self.book.version());
        let alive = if mask.len() == 0 { Alive::Nobody } else { Alive::These(mask) };
        let mut parcel = Parcel::new(LetterKind::Update, 0, sender, &self.roster, &self.book.view, alive);
        parcel.moved = self.destinations(&left);
        (parcel.left, parcel.suspected) = (left, suspected);
        self.send_all(&to, parcel, out);
    }

    /// A neighbour's view differs from ours for too long: it gets ours.
    pub(super) fn resync(&mut self, to: Addr, out: &mut impl Out) {
        self.counters.resyncs += 1;
        let whole = self.parcel(LetterKind::Update, flag::WHOLE, true);
        self.send(to, whole, out);
    }

    pub(super) fn note(&mut self, to: Addr, note: &Note, out: &mut impl Out) {
        self.keep_stranger(to, out);
        let mut bytes = std::mem::take(&mut self.scratch);
        note.encode(&mut bytes);
        out.push(Output::Datagram { to, bytes: &bytes });
        bytes.clear();
        self.scratch = bytes;
    }
}

/// What a later build may say besides, when upgrades are tested.
pub(super) fn speak_of_tomorrow(to: Addr, out: &mut impl Out) {
    if let Some(bytes) = tomorrow::note() {
        out.push(Output::Datagram { to, bytes });
    }
    if let Some(bytes) = tomorrow::letter() {
        let message: Arc<dyn Snapshot> = Arc::new(Written(bytes.to_vec()));
        out.push(Output::Message { to, message: &message, across: false });
    }
}

/// Puts a letter together once, for all who get it.
fn post(to: &[Addr], parcel: Parcel, across: bool, out: &mut impl Out) {
    let snapshot: Arc<dyn Snapshot> = Arc::new(parcel);
    for &to in to {
        out.push(Output::Message { to, message: &snapshot, across });
    }
}
