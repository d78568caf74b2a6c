//! Names: what happens when two living members have the same one.
//!
//! Identities tell members apart, so a name that is taken twice harms no protocol; it harms people, who call by name.
//! The member whose present life began first holds the name, that is, the one with the lowest incarnation; the lower
//! identity, where these are equal. Both are told, as soon as the conflict has lasted for the time in which a dead
//! holder is found: a host that comes back with a new identity is no conflict. The other must rename itself or leave;
//! it is not removed, because it does no harm and may be somebody's only replica.
//!
//! Why by incarnation: all views hold it, so all members come to the same answer without a message, whoever met whom
//! first; two halves of a partition, each with a holder of its own, agree as soon as their views do. The alternative,
//! whom each member met first, gives as many answers as there are members once a partition is over.
//!
//! A newcomer whose clock is slow would be older than the holder. So who is still looking for the zone, and finds its
//! name taken there by somebody whom it would displace, raises its own incarnation above that one, once: who was there
//! first stays.

use super::Zone;
use crate::member::{Card, Engine, Event, Name, Out, Output, Slot, Version};
use phalanx_core::{Code, Duration, Fingerprint, Identity, Instant};

/// Others of our name that are looked at; of more, those who began last are left out.
const NAMESAKES: usize = 16;

/// Others that have our name. There is none while nobody has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Namesakes {
    others: Vec<Slot>,
    /// When to look who holds it and to tell.
    look_at: Instant,
    /// Holder and loser, as last told.
    told: Vec<(Slot, Slot)>,
}

impl Namesakes {
    const NONE: Self = Self { others: Vec::new(), look_at: Instant::NEVER, told: Vec::new() };
}

/// Who began first comes first.
type Rank = (u64, Identity);

impl Zone {
    /// The member that holds a name: the one to whom people mean to speak.
    #[must_use]
    pub fn holder(&self, name: &str) -> Option<Slot> {
        let named = self.members().map(|m| m.0).filter(|&s| self.card(s).is_some_and(|c| c.name.as_str() == name));
        named.min_by_key(|&s| self.rank(s))
    }

    fn rank(&self, slot: Slot) -> Option<Rank> {
        Some((self.version(slot)?.incarnation, self.card(slot)?.identity))
    }

    /// Takes another name, which all others hear.
    pub(super) fn take_name(&mut self, now: Instant, name: &Name) -> Result<(), Code> {
        if self.book.has_left() {
            return Err(Code::NotInitialized);
        }
        let Some(card) = self.card(self.book.me).filter(|c| c.name != *name).cloned() else { return Ok(()) };
        self.change_card(self.book.me, &Card { name: name.clone(), ..card });
        self.book.speak_up(self.book.version(), &self.roster);
        self.pace.news(now, &self.config.paces);
        if let Some(names) = &mut self.names {
            names.look_at = now;
        }
        let members: Vec<Slot> = self.members().map(|m| m.0).collect();
        members.into_iter().for_each(|slot| self.look_at_name(now, slot));
        Ok(())
    }

    /// A member's name or address is another one.
    pub(super) fn change_card(&mut self, slot: Slot, card: &Card) {
        let before = self.roster.vitals(slot).length;
        self.roster.change(slot, card);
        self.book.view.changed(slot, before, self.roster.vitals(slot).length);
    }

    /// Of those who joined and left, some may have our name.
    pub(super) fn look_at_names(&mut self, now: Instant) {
        if !self.roster.names_are_distinct() {
            let changed: Vec<Slot> = self.book.changes.iter().map(|c| c.slot()).collect();
            changed.into_iter().for_each(|slot| self.look_at_name(now, slot));
        }
    }

    /// A member joined, left, or has another name: it may be a namesake, or be none any more.
    pub(super) fn look_at_name(&mut self, now: Instant, slot: Slot) {
        if slot == self.book.me || self.roster.names_are_distinct() {
            return;
        }
        let ours = self.card(self.book.me).map(|c| &c.name);
        let same = self.version(slot).is_some() && self.card(slot).map(|c| &c.name) == ours;
        let known = self.names.as_ref().is_some_and(|n| n.others.contains(&slot));
        if !same && !known {
            return;
        }
        if same {
            self.yield_name(slot);
        }
        let look_at = now + self.dead_is_found_after();
        let names = self.names.get_or_insert_with(|| Box::new(Namesakes::NONE));
        names.look_at = names.look_at.min(look_at);
        if !known {
            names.others.push(slot);
            self.keep_first();
        }
    }

    /// A holder that is dead, and of whose death nobody has told, is removed by then.
    fn dead_is_found_after(&self) -> Duration {
        self.config.beat + self.config.patience + self.config.silent
    }

    /// We come to a zone in which our name is taken: who was there first stays first.
    fn yield_name(&mut self, holder: Slot) {
        let (ours, theirs) = (self.rank(self.book.me), self.rank(holder));
        if let Some(theirs) = theirs.filter(|_| ours < theirs && self.discovery.take_newcomer()) {
            let above = Version { incarnation: theirs.0.saturating_add(1), minor: 0 };
            self.book.speak_up(above, &self.roster);
        }
    }

    fn keep_first(&mut self) {
        let Some(mut names) = self.names.take() else { return };
        names.others.sort_unstable_by_key(|&s| (self.rank(s).is_none(), self.rank(s)));
        names.others.truncate(NAMESAKES);
        self.names = Some(names);
    }

    pub(super) fn names_deadline(&self) -> Instant {
        self.names.as_ref().map_or(Instant::NEVER, |n| n.look_at)
    }

    /// Looks who holds our name, and tells what is new.
    pub(super) fn expire_names(&mut self, now: Instant, out: &mut impl Out) {
        let Some(mut names) = self.names.take_if(|n| n.look_at <= now) else { return };
        let me = self.book.me;
        let ours = self.card(me).map(|c| c.name.clone());
        names.others.retain(|&s| self.version(s).is_some() && self.card(s).map(|c| &c.name) == ours.as_ref());
        let first = names.others.iter().copied().min_by_key(|&s| self.rank(s));
        let pairs: Vec<(Slot, Slot)> = match first {
            Some(holder) if self.rank(holder) < self.rank(me) => vec![(holder, me)],
            _ => names.others.iter().map(|&loser| (me, loser)).collect(),
        };
        for &(holder, loser) in pairs.iter().filter(|p| !names.told.contains(p)) {
            out.push(Output::Event(Event::Name { holder, loser: Some(loser) }));
        }
        if pairs.is_empty() && !names.told.is_empty() {
            out.push(Output::Event(Event::Name { holder: me, loser: None }));
        }
        (names.told, names.look_at) = (pairs, Instant::NEVER);
        self.names = Some(names).filter(|n| !n.others.is_empty());
    }

    pub(super) fn print_names(&self, print: &mut Fingerprint) {
        if let Some(names) = &self.names {
            print.add(&names.others).add(&names.told);
            print.instant(names.look_at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;
    use crate::member::{Input, Peer, Roster};
    use phalanx_core::{Addr, Boot, Machine, Payload, Rng, Sink, Snapshot};
    use phalanx_wire::member::Member;
    use phalanx_wire::zone::{Leave, Letter, LetterKind, flag};
    use std::sync::Arc;

    const SEED: u8 = 9;
    const OTHER: u8 = 1;
    const ME: u8 = 5;

    #[derive(Default)]
    struct Told(Vec<(Slot, Option<Slot>)>);

    impl<'a> Sink<Output<'a>> for Told {
        fn push(&mut self, output: Output<'a>) {
            if let Output::Event(Event::Name { holder, loser }) = output {
                self.0.push((holder, loser));
            }
        }
    }

    fn member(n: u8, (incarnation, minor): (u64, u32), name: &str) -> Member<'_> {
        Member { identity: Identity([n; 32]), incarnation, minor, addr: Addr::Local(n.into()), name }
    }

    /// A member named `db`, number 5, in incarnation 50.
    struct Desk {
        zone: Zone,
        now: Instant,
    }

    impl Desk {
        fn new(seeds: &[Addr]) -> Self {
            let name = Name::new("db").unwrap();
            let card = Card { identity: Identity([ME; 32]), addr: Addr::Local(ME.into()), name };
            let (config, roster) = (Arc::new(Config::lan()), Roster::new(Arc::default(), 64));
            let now = Instant::ZERO + Duration::from_secs(1000);
            Self { zone: Zone::new(&config, roster, &card, 50, &seeds.into(), Rng::new(1, 1), now), now }
        }

        /// Founded the zone: there is nobody that it comes to.
        fn founder() -> Self {
            Self::new(&[])
        }

        fn newcomer() -> Self {
            Self::new(&[Addr::Local(SEED.into())])
        }

        /// Hears from the seed, by a letter of this kind, who is there.
        fn hear(&mut self, kind: LetterKind, members: &[Member<'_>], left: Option<Leave>) {
            let mut bytes = Vec::new();
            Letter::begin(kind, flag::BOOT, &mut bytes);
            Letter::put_sender(&member(SEED, (40, 1), "seed"), &mut bytes);
            Letter::put_left(left.into_iter(), &mut bytes);
            Letter::put_alive(members.iter().copied(), &mut bytes);
            let peer = Peer { addr: Addr::Local(SEED.into()), identity: Identity([SEED; 32]), boot: Boot::default() };
            let input = Input::Message { from: peer, payload: Payload::Bytes(&bytes) };
            self.zone.handle(self.now, input, &mut Told::default());
        }

        fn meet(&mut self, n: u8, version: (u64, u32), name: &str) {
            self.hear(LetterKind::Update, &[member(n, version, name)], None);
        }

        /// What is told about names until then.
        fn wait(&mut self, time: Duration) -> Vec<(Slot, Option<Slot>)> {
            let (end, mut told) = (self.now + time, Told::default());
            while self.zone.deadline() <= end {
                self.now = self.now.max(self.zone.deadline());
                self.zone.expire(self.now, &mut told);
            }
            self.now = end;
            told.0
        }

        fn wait_long(&mut self) -> Vec<(Slot, Option<Slot>)> {
            self.wait(Duration::from_secs(4))
        }

        fn slot(&self, n: u8) -> Slot {
            self.zone.roster().find(&Identity([n; 32])).unwrap()
        }
    }

    #[test]
    fn who_began_first_holds_the_name_and_it_is_told_once() {
        for (other, incarnation, wins) in [(OTHER, 51, true), (OTHER, 49, false), (OTHER, 50, false), (7, 50, true)] {
            let mut desk = Desk::founder();
            desk.meet(other, (incarnation, 1), "db");
            let (me, them) = (desk.slot(ME), desk.slot(other));
            assert_eq!(desk.wait(Duration::from_secs(2)), [], "it may be a dead one that nobody has missed yet");
            let (holder, loser) = if wins { (me, them) } else { (them, me) };
            assert_eq!(desk.wait_long(), [(holder, Some(loser))], "incarnation {incarnation}");
            assert_eq!(desk.zone.holder("db"), Some(holder));
            desk.meet(other, (incarnation, 2), "db");
            assert_eq!(desk.wait_long(), [], "it spoke up, and nothing is new");
            assert!(desk.zone.version(them).is_some() && desk.zone.version(me).is_some(), "nobody is removed");
        }
    }

    #[test]
    fn other_names_and_other_lives_of_the_same_member_are_no_conflict() {
        let mut desk = Desk::founder();
        desk.meet(OTHER, (49, 1), "db2");
        desk.meet(OTHER, (60, 1), "db2");
        assert_eq!(desk.wait_long(), []);
        assert_eq!(desk.zone.names, None);
    }

    #[test]
    fn a_namesake_that_is_gone_soon_is_not_told() {
        let mut desk = Desk::founder();
        desk.meet(OTHER, (49, 1), "db");
        desk.wait(Duration::from_secs(1));
        let left = Leave { identity: Identity([OTHER; 32]), incarnation: 49, minor: 1, code: 0 };
        desk.hear(LetterKind::Update, &[], Some(left));
        assert_eq!(desk.wait_long(), []);
        assert_eq!(desk.zone.names, None);
    }

    #[test]
    fn the_end_of_a_conflict_is_told_too() {
        for renames in [false, true] {
            let mut desk = Desk::founder();
            desk.meet(OTHER, (49, 1), "db");
            let (me, them) = (desk.slot(ME), desk.slot(OTHER));
            assert_eq!(desk.wait_long(), [(them, Some(me))]);
            if renames {
                desk.meet(OTHER, (49, 2), "db-old");
            } else {
                let left = Leave { identity: Identity([OTHER; 32]), incarnation: 49, minor: 1, code: 0 };
                desk.hear(LetterKind::Update, &[], Some(left));
            }
            assert_eq!(desk.wait_long(), [(me, None)]);
            assert_eq!((desk.zone.holder("db"), desk.zone.names.clone()), (Some(me), None));
        }
    }

    #[test]
    fn who_renames_itself_has_done_its_part() {
        let mut desk = Desk::founder();
        desk.meet(OTHER, (49, 1), "db");
        desk.meet(2, (48, 1), "web");
        let me = desk.slot(ME);
        assert_eq!(desk.wait_long(), [(desk.slot(OTHER), Some(me))]);
        let before = desk.zone.version(me);
        desk.zone.rename(desk.now, &Name::new("db-b").unwrap()).unwrap();
        assert!(desk.zone.version(me) > before, "others take the newest word only");
        assert_eq!(desk.wait_long(), [(me, None)]);
        assert_eq!((desk.zone.holder("db"), desk.zone.holder("db-b")), (Some(desk.slot(OTHER)), Some(me)));
        desk.zone.rename(desk.now, &Name::new("web").unwrap()).unwrap();
        assert_eq!(desk.wait_long(), [(desk.slot(2), Some(me))], "out of the frying pan");
    }

    /// A letter is as long as it says it is, whatever its members are called by now.
    #[test]
    fn letters_are_as_long_as_the_names_in_them() {
        let mut desk = Desk::founder();
        let fits = |desk: &Desk| {
            let (letter, mut bytes) = (desk.zone.parcel(LetterKind::Update, 0, true), Vec::new());
            letter.write(&mut bytes);
            letter.encoded_len() == bytes.len()
        };
        desk.meet(OTHER, (49, 1), "short");
        assert!(fits(&desk));
        desk.meet(OTHER, (49, 2), "quite-a-long-name");
        assert!(fits(&desk), "in the same life");
        desk.meet(OTHER, (50, 1), "x");
        assert!(fits(&desk), "in another");
        desk.zone.rename(desk.now, &Name::new("something-else").unwrap()).unwrap();
        assert!(fits(&desk), "our own");
        let left = Leave { identity: Identity([OTHER; 32]), incarnation: 50, minor: 1, code: 0 };
        desk.hear(LetterKind::Update, &[], Some(left));
        assert!(fits(&desk), "after it left");
    }

    #[test]
    fn of_three_one_holds_and_each_other_loses() {
        let mut desk = Desk::founder();
        desk.meet(2, (52, 1), "db");
        desk.meet(3, (51, 1), "db");
        let [me, two, three, one] = [ME, 2, 3, OTHER].map(|n| desk.zone.roster().find(&Identity([n; 32])));
        let mut told = desk.wait_long();
        told.sort_unstable();
        assert_eq!(told, [(me.unwrap(), two), (me.unwrap(), three)]);
        assert_eq!(one, None);
        desk.meet(OTHER, (10, 1), "db");
        assert_eq!(desk.wait_long(), [(desk.slot(OTHER), me)], "an older one, from behind a partition");
    }

    /// A slow clock displaces nobody.
    #[test]
    fn a_newcomer_gives_way_whatever_its_clock_says() {
        let mut desk = Desk::newcomer();
        desk.zone.expire(desk.now, &mut Told::default());
        desk.hear(LetterKind::Found, &[member(OTHER, (70, 3), "db")], None);
        let (me, them) = (desk.slot(ME), desk.slot(OTHER));
        assert_eq!(desk.zone.version(me).map(|v| v.incarnation), Some(71));
        assert_eq!(desk.wait_long(), [(them, Some(me))]);
        desk.meet(OTHER, (80, 1), "db");
        assert_eq!(desk.zone.version(me).map(|v| v.incarnation), Some(71), "it gave way to that life, once");
        assert_eq!(desk.wait_long(), [(me, Some(them))], "and the other one has restarted since");
        let mut founder = Desk::founder();
        founder.meet(OTHER, (70, 1), "db");
        assert_eq!(founder.zone.version(founder.slot(ME)).map(|v| v.incarnation), Some(50), "who is there stays");
    }

    #[test]
    fn a_crowd_of_one_name_is_bounded() {
        let mut desk = Desk::founder();
        (10..60).for_each(|n| desk.meet(n, (u64::from(n), 1), "db"));
        assert!(desk.zone.names.as_ref().is_some_and(|n| n.others.len() == NAMESAKES));
        assert_eq!(desk.wait_long(), [(desk.slot(10), Some(desk.slot(ME)))], "the first is among them");
    }
}
