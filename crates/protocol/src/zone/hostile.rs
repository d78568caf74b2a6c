//! What members can do to a member, by malice or by accident, and what must hold all the same.
//!
//! Everybody here has a key of the ring: strangers do not get past the link. A liar among members can do harm within
//! bounds: with Θ = 1 its suspicion removes whomever it names from all views, until the named one speaks up, which takes
//! a round trip and happens at once the first time; if it goes on, its victims hold back and stay out. A higher Θ asks for
//! as many liars. It can fill the roster with members that do not exist, up to the bound, and they are found out, one
//! by one, by those who should watch them. It cannot make a member unable to come back, nor make others store or send
//! more than the bounds say.

use super::*;
use crate::member::{Event, Frozen, Name, Peer, Why};
use phalanx_core::{Boot, Duration, Identity, Payload};
use phalanx_wire::member::Member;
use phalanx_wire::zone::{Leave, Letter, LetterKind, Note, Suspicion, flag};

const LIAR: u32 = 1;
const VICTIM: u32 = 2;

#[derive(Default)]
pub(super) struct Said {
    letters: Vec<(Addr, usize)>,
    pub(super) notes: Vec<(Addr, Vec<u8>)>,
    /// Tripwires asked for, or let go of.
    pub(super) wires: Vec<(Addr, bool)>,
    joined: Vec<Slot>,
    left: Vec<(Slot, Why)>,
}

impl<'a> Sink<Output<'a>> for Said {
    fn push(&mut self, output: Output<'a>) {
        match output {
            Output::Message { to, message, .. } => self.letters.push((to, message.encoded_len())),
            Output::Datagram { to, bytes, .. } => self.notes.push((to, bytes.to_vec())),
            Output::Wire { to } => self.wires.push((to, true)),
            Output::Unwire { to } => self.wires.push((to, false)),
            Output::Event(Event::Joined { member, .. }) => self.joined.push(member),
            Output::Event(Event::Left { member, why, .. }) => self.left.push((member, why)),
            _ => {}
        }
    }
}

fn identity(n: u32) -> Identity {
    let mut key = [7; 32];
    key[..4].copy_from_slice(&n.to_le_bytes());
    Identity(key)
}

fn member(n: u32, incarnation: u64, minor: u32) -> Member<'static> {
    Member { identity: identity(n), incarnation, minor, addr: Addr::Local(n), name: "m" }
}

pub(super) struct Desk {
    pub(super) zone: Zone,
    pub(super) now: Instant,
}

impl Desk {
    /// A member that knows of 1 to 9, in version 5.1 like itself.
    pub(super) fn new(config: Config) -> Self {
        let card = Card { identity: identity(0), addr: Addr::Local(0), name: Name::new("me").unwrap() };
        let roster = Roster::new(Arc::new(Frozen::default()), config.members);
        let now = Instant::ZERO + Duration::from_secs(1000);
        let zone = Zone::new(&Arc::new(config), roster, &card, 5, &Arc::from([]), Rng::new(1, 1), now);
        let mut desk = Self { zone, now };
        desk.letter(LIAR, LetterKind::Update, 0, |out| Letter::put_alive((1..10).map(|n| member(n, 5, 1)), out));
        assert_eq!(desk.zone.len(), 10);
        desk
    }

    fn peer(n: u32) -> Peer {
        Peer { addr: Addr::Local(n), identity: identity(n), boot: Boot::default() }
    }

    pub(super) fn letter(&mut self, from: u32, kind: LetterKind, flags: u16, write: impl FnOnce(&mut Vec<u8>)) -> Said {
        let known = self.zone.roster().find(&identity(from)).and_then(|s| self.zone.version(s));
        self.letter_as(from, (5, known.map_or(1, |v| v.minor)), (kind, flags), write)
    }

    /// From somebody who is in this version.
    pub(super) fn letter_as(
        &mut self,
        from: u32,
        (incarnation, minor): (u64, u32),
        (kind, flags): (LetterKind, u16),
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Said {
        let mut bytes = Vec::new();
        Letter::begin(kind, flags, &mut bytes);
        Letter::put_sender(&member(from, incarnation, minor), &mut bytes);
        write(&mut bytes);
        self.bytes(from, &bytes)
    }

    fn bytes(&mut self, from: u32, bytes: &[u8]) -> Said {
        let mut said = Said::default();
        let payload = Payload::Bytes(bytes);
        self.zone.handle(self.now, Input::Message { from: Self::peer(from), payload }, &mut said);
        said
    }

    fn note(&mut self, from: u32, note: Note) -> Said {
        let (mut bytes, mut said) = (Vec::new(), Said::default());
        note.encode(&mut bytes);
        self.zone.handle(self.now, Input::Datagram { from: Self::peer(from), group: false, bytes: &bytes }, &mut said);
        said
    }

    pub(super) fn wait(&mut self, time: Duration) -> Said {
        let (end, mut said) = (self.now + time, Said::default());
        while self.zone.deadline() <= end {
            self.now = self.now.max(self.zone.deadline());
            self.zone.expire(self.now, &mut said);
        }
        self.now = end;
        said
    }

    fn own(&self) -> Version {
        self.zone.version(self.zone.me()).unwrap()
    }

    fn slot(&self, n: u32) -> Slot {
        self.zone.roster().find(&identity(n)).unwrap()
    }
}

fn suspicion(suspect: u32, incarnation: u64, minor: u32) -> Suspicion {
    Suspicion { reporter: identity(LIAR), suspect: identity(suspect), incarnation, minor }
}

#[test]
fn bytes_that_make_no_sense_change_nothing() {
    let mut desk = Desk::new(Config::lan());
    let mut good = Vec::new();
    Letter::begin(LetterKind::Update, 0, &mut good);
    Letter::put_sender(&member(LIAR, 5, 1), &mut good);
    Letter::put_alive([member(20, 5, 1)].into_iter(), &mut good);
    let before = desk.zone.len();
    for cut in 1..good.len() {
        desk.bytes(LIAR, &good[..cut]);
        let mut lie = good.clone();
        lie[cut] = 0xff;
        if Letter::parse(&lie).is_err() {
            desk.bytes(LIAR, &lie);
        }
    }
    assert_eq!(desk.zone.len(), before);
    assert!(desk.zone.counters().malformed > 50);
    let mut said = Said::default();
    desk.zone.handle(desk.now, Input::Datagram { from: Desk::peer(LIAR), group: false, bytes: &[1, 9] }, &mut said);
    assert!(said.notes.is_empty() && said.letters.is_empty());
}

#[test]
fn nobody_writes_in_anothers_name() {
    let mut desk = Desk::new(Config::lan());
    let mut bytes = Vec::new();
    Letter::begin(LetterKind::Update, 0, &mut bytes);
    Letter::put_sender(&member(VICTIM, 5, 9), &mut bytes);
    let left = Leave { identity: identity(VICTIM), incarnation: 5, minor: 9, code: 0 };
    Letter::put_left([left].into_iter(), &mut bytes);
    desk.bytes(LIAR, &bytes);
    assert_eq!((desk.zone.counters().impostors, desk.zone.len()), (1, 10));
}

/// Believed, such a version could never be outdone by its owner.
#[test]
fn versions_from_the_far_future_are_lies() {
    let mut desk = Desk::new(Config::lan());
    desk.letter(LIAR, LetterKind::Update, 0, |out| {
        let left = Leave { identity: identity(3), incarnation: u64::MAX, minor: u32::MAX, code: 0 };
        Letter::put_left([left].into_iter(), out);
        Letter::put_alive(
            [member(4, u64::MAX, 1), member(30, u64::MAX, 1), member(0, u64::MAX, u32::MAX)].into_iter(),
            out,
        );
        let about = [suspicion(VICTIM, u64::MAX, u32::MAX), suspicion(0, u64::MAX, u32::MAX)];
        Letter::put_suspected(about.into_iter(), out);
    });
    assert_eq!(desk.zone.counters().implausible, 6);
    assert_eq!((desk.zone.len(), desk.own()), (10, Version::first(5)));
    assert_eq!(desk.zone.version(desk.slot(4)), Some(Version::first(5)));
    // What can just be true is believed, and its owner outdoes it all the same.
    desk.letter(LIAR, LetterKind::Update, 0, |out| {
        Letter::put_suspected([suspicion(0, 5 + (1 << 32), u32::MAX)].into_iter(), out);
    });
    assert_eq!(desk.own(), Version::first(6 + (1 << 32)));
}

/// A suspicion about oneself is answered at once, then ever more rarely: a liar cannot make a member shout.
#[test]
fn refutations_are_bounded() {
    let mut desk = Desk::new(Config::lan());
    for _ in 0..1000 {
        let own = desk.own();
        desk.letter(LIAR, LetterKind::Update, 0, |out| {
            Letter::put_suspected([suspicion(0, own.incarnation, own.minor)].into_iter(), out);
        });
        desk.wait(Duration::from_millis(100));
    }
    let (refuted, own) = (desk.zone.counters().refuted, desk.own());
    assert!(refuted <= 5 && own.minor <= 6, "{refuted} times, now {own}");
    // And it is there again when the liar has gone, once others have answered it for a while.
    for _ in 0..200 {
        for (to, note) in desk.wait(Duration::from_secs(1)).notes {
            if let (Addr::Local(n), Ok(Note::Probe { nonce })) = (to, Note::parse(&note)) {
                desk.note(n, Note::Answer { nonce });
            }
        }
    }
    assert!(desk.own() > own && !desk.zone.tables().holds_back);
}

#[test]
fn a_flood_of_questions_gets_few_answers() {
    let mut desk = Desk::new(Config::lan());
    let mut answered = 0;
    for _ in 0..1000 {
        answered += desk.letter(LIAR, LetterKind::Discover, flag::BOOT, |_| {}).letters.len();
        desk.wait(Duration::from_micros(100));
    }
    assert!(answered <= 21, "{answered} views in 100 ms");
    assert!(desk.zone.counters().discoveries_refused > 900);
    for n in 0..10_000 {
        desk.letter(n + 100, LetterKind::Discover, flag::BOOT, |_| {});
    }
    assert!(desk.zone.tables().contacts <= Zone::CONTACTS);
}

#[test]
fn members_that_do_not_exist_fill_the_roster_and_no_more() {
    let mut desk = Desk::new(Config { members: 500, ..Config::lan() });
    for n in 0..20 {
        let first = 1000 + n * 1000;
        desk.letter(LIAR, LetterKind::Update, 0, |out| {
            Letter::put_alive((first..first + 1000).map(|n| member(n, 5, 1)), out);
        });
    }
    assert_eq!((desk.zone.roster().len(), desk.zone.len()), (500, 500));
    assert!(desk.zone.counters().crowded_out >= 19_000);
}

/// What an insider can do: each word of it removes one member, until that one speaks up. A member that was removed and
/// reports others is not believed.
#[test]
fn a_liar_removes_members_until_they_speak_up_or_it_is_removed_itself() {
    let mut desk = Desk::new(Config::lan());
    let all: Vec<_> = (2..10).map(|n| suspicion(n, 5, 1)).collect();
    let said = desk.letter(LIAR, LetterKind::Update, 0, |out| Letter::put_suspected(all.iter().copied(), out));
    assert_eq!(said.left.len(), 8);
    let said = desk.letter(VICTIM, LetterKind::Update, 0, |_| {});
    assert!(said.letters.iter().any(|l| l.0 == Addr::Local(VICTIM)), "whoever was removed is told so");
    desk.letter(LIAR, LetterKind::Update, 0, |out| Letter::put_alive((2..10).map(|n| member(n, 5, 2)), out));
    assert_eq!(desk.zone.len(), 10);
    let mut own = suspicion(LIAR, 5, 1);
    own.reporter = identity(VICTIM);
    desk.letter(VICTIM, LetterKind::Update, 0, |out| Letter::put_suspected([own].into_iter(), out));
    let again: Vec<_> = (2..10).map(|n| suspicion(n, 5, 2)).collect();
    let said = desk.letter(3, LetterKind::Update, 0, |out| Letter::put_suspected(again.iter().copied(), out));
    assert!(said.left.is_empty() && desk.zone.counters().strange_reporters == 8);
    assert_eq!(desk.zone.len(), 9);
}

/// Notes cost little, and lead to little.
#[test]
fn floods_of_notes_are_bounded() {
    let mut desk = Desk::new(Config::lan());
    let asked: usize =
        (1..=1000).map(|nonce| desk.note(LIAR, Note::Ask { nonce, of: identity(VICTIM) }).notes.len()).sum();
    assert_eq!((asked, desk.zone.tables().relays), (Zone::RELAYS, Zone::RELAYS));
    let told: usize =
        (0..1000).map(|_| desk.note(LIAR, Note::Beat { number: 1, echo: 0, digest: 0 }).letters.len()).sum();
    assert!(told <= 64, "{told} letters to somebody who takes us for its neighbour");
    // Nobody waits for these.
    for note in [Note::Vouch { nonce: 1, of: identity(3) }, Note::Silent { nonce: 0, of: identity(3) }] {
        assert!(desk.note(LIAR, note).left.is_empty());
    }
}

/// For a million nodes.
#[test]
fn a_member_is_small() {
    assert!(size_of::<Zone>() <= 896, "{} bytes", size_of::<Zone>());
}
