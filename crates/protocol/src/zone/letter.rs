//! Parcels: what a letter holds, before it is bytes. In very large simulated runs it never is.
//!
//! A letter to all neighbours is put together once. On real networks it is encoded; where all members share one roster it
//! travels as a reference to the sender's pages, with the length it would have.

use super::delta::Mask;
use super::view::View;
use crate::member::{Card, Name, Roster, Slot, Version};
use phalanx_core::Snapshot;
use phalanx_wire::member::Member;
use phalanx_wire::zone::{Leave, Letter, LetterKind, Moved, Suspicion};
use std::any::Any;
use std::ops::Range;
use std::sync::OnceLock;

/// Which members of a view a letter names.
#[derive(Clone, Debug)]
pub(super) enum Alive {
    Nobody,
    These(Mask),
    All,
}

/// A letter to be sent.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) kind: LetterKind,
    pub(super) flags: u16,
    pub(super) sender: Slot,
    pub(super) version: Version,
    pub(super) roster: Roster,
    pub(super) view: View,
    pub(super) alive: Alive,
    pub(super) left: Vec<(Slot, Version, u8)>,
    pub(super) suspected: Vec<(Slot, Slot, Version)>,
    /// HI-1: where those went who left for another zone.
    pub(super) moved: Vec<(Slot, Name)>,
    /// A hash of the sender's view.
    pub(super) fingerprint: Option<u64>,
    /// HI-1: which zone it is about; that of the sender, when nothing else is said.
    pub(super) zone: Option<Name>,
    encoded: OnceLock<Vec<u8>>,
}

impl Parcel {
    pub(super) fn new(
        kind: LetterKind,
        flags: u16,
        sender: (Slot, Version),
        roster: &Roster,
        view: &View,
        alive: Alive,
    ) -> Self {
        let view = if matches!(alive, Alive::Nobody) { View::default() } else { view.clone() };
        Self {
            kind,
            flags,
            sender: sender.0,
            version: sender.1,
            roster: roster.clone(),
            view,
            alive,
            left: Vec::new(),
            suspected: Vec::new(),
            moved: Vec::new(),
            fingerprint: None,
            zone: None,
            encoded: OnceLock::new(),
        }
    }

    /// Appends the letter's bytes.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        Letter::begin(self.kind, self.flags, out);
        if let Some(me) = self.member(self.sender, self.version) {
            Letter::put_sender(&me, out);
        }
        let left = self.left.iter().filter_map(|&(p, v, code)| {
            let identity = self.roster.card(p)?.identity;
            Some(Leave { identity, incarnation: v.incarnation, minor: v.minor, code })
        });
        Letter::put_left(left, out);
        match &self.alive {
            Alive::Nobody => {}
            Alive::These(mask) => {
                let named = mask.iter().filter_map(|p| self.member(p, self.view.of(p, &self.roster)?));
                Letter::put_alive(named, out);
            }
            Alive::All => {
                let all = self.view.members(&self.roster).filter_map(|(p, v)| self.member(p, v));
                Letter::put_alive(all, out);
            }
        }
        let suspected = self.suspected.iter().filter_map(|&(r, s, v)| suspicion(r, s, v, &self.roster));
        Letter::put_suspected(suspected, out);
        if let Some(fingerprint) = self.fingerprint {
            Letter::put_fingerprint(fingerprint, out);
        }
        if let Some(zone) = &self.zone {
            Letter::put_zone(zone.as_str(), out);
        }
        Letter::put_moved(self.moved.iter().filter_map(|(p, zone)| self.moved(*p, zone)), out);
    }

    /// Everybody whom the letter says is there.
    pub(super) fn members(&self) -> impl Iterator<Item = (Card, Version)> {
        let named = |p: &Slot| match &self.alive {
            Alive::Nobody => false,
            Alive::These(mask) => mask.contains(*p),
            Alive::All => true,
        };
        let all = self.view.members(&self.roster).filter(move |(p, _)| named(p));
        all.filter_map(|(p, v)| Some((self.roster.card(p)?.clone(), v)))
    }

    /// The letter is written over another roster than the sender's, in which its slot is somebody else.
    pub(super) fn conceal_sender(&mut self) {
        self.sender = Slot(u32::MAX);
    }

    /// Who sends it.
    pub(super) fn author(&self) -> Option<(Card, Version)> {
        Some((self.roster.card(self.sender)?.clone(), self.version))
    }

    fn moved<'a>(&self, p: Slot, zone: &'a Name) -> Option<Moved<'a>> {
        Some(Moved { identity: self.roster.card(p)?.identity, zone: zone.as_str() })
    }

    fn member(&self, p: Slot, v: Version) -> Option<Member<'_>> {
        let card = self.roster.card(p)?;
        let name = card.name.as_str();
        Some(Member { identity: card.identity, incarnation: v.incarnation, minor: v.minor, addr: card.addr, name })
    }

    fn length_of(&self, p: Slot) -> usize {
        self.roster.card(p).map_or(0, |c| Member::length(&c.addr, c.name.as_str()))
    }
}

/// A suspicion as it goes on the wire.
pub(super) fn suspicion(r: Slot, s: Slot, v: Version, roster: &Roster) -> Option<Suspicion> {
    let (reporter, suspect) = (roster.card(r)?.identity, roster.card(s)?.identity);
    Some(Suspicion { reporter, suspect, incarnation: v.incarnation, minor: v.minor })
}

impl Snapshot for Parcel {
    fn encoded_len(&self) -> usize {
        let section = |bytes: usize| if bytes == 0 { 0 } else { Letter::SECTION + bytes };
        let alive = match &self.alive {
            Alive::Nobody => 0,
            Alive::These(mask) => mask.iter().filter(|&p| self.view.contains(p)).map(|p| self.length_of(p)).sum(),
            Alive::All => self.view.bytes(),
        };
        Letter::begun()
            + section(self.length_of(self.sender))
            + section(self.left.len() * Leave::LEN)
            + section(alive)
            + section(self.suspected.len() * Suspicion::LEN)
            + section(self.fingerprint.map_or(0, |_| 8))
            + section(self.zone.as_ref().map_or(0, |z| z.as_str().len()))
            + section(self.moved.iter().map(|m| Moved::length(m.1.as_str())).sum())
    }

    fn encode(&self, range: Range<usize>, out: &mut Vec<u8>) {
        let encoded = self.encoded.get_or_init(|| {
            let mut all = Vec::new();
            self.write(&mut all);
            all
        });
        out.extend_from_slice(&encoded[range]);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
