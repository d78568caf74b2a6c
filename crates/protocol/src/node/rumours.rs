//! A node's rumours: who hears them, and how they are begun.

use super::route::{EngineOut, Errand};
use super::{Membership, Node, Out, Output, Plane};
use crate::member::{Engine, Name};
use crate::rumour::{self, Id, Input, Rumours, Words, keys::Keys};
use phalanx_core::{Addr, Buf, Code, Duration, Instant, Machine, Sink};

/// What a letter has besides its words, at most.
const LETTER_MAX: usize = 512;

/// The rumours' decisions.
struct RumoursOut<'n> {
    errands: &'n mut Vec<Errand>,
    out: &'n mut dyn Out,
}

impl<'o> Sink<rumour::Output<'o>> for RumoursOut<'_> {
    fn push(&mut self, output: rumour::Output<'o>) {
        match output {
            rumour::Output::Send { to, bytes } => self.errands.push(Errand::Rumour { to, bytes: Buf::copy_of(bytes) }),
            said => self.out.push(Output::Rumour(said)),
        }
    }
}

impl Node<Membership> {
    /// HI-3: asks for the full membership of a zone; at supervisors. See [`Zone::inquire`](crate::zone::Zone::inquire).
    pub fn inquire(&mut self, now: Instant, zone: &Name, out: &mut impl Out) -> bool {
        let Self { management, errands, .. } = self;
        let plane = Plane::Management;
        let management = management.as_mut().and_then(|m| m.zone_mut());
        let asked = management.is_some_and(|m| m.inquire(zone, &mut EngineOut { plane, errands, out }));
        self.run_errands(now, out);
        asked
    }
}

impl<E: Engine> Node<E> {
    /// Tells, asks and hears rumours from now on.
    #[must_use]
    pub fn with_rumours(mut self, rumours: Rumours) -> Self {
        self.rumours = Some(Box::new(rumours));
        self
    }

    /// The rumours, to be looked at.
    #[must_use]
    pub fn rumours(&self) -> Option<&Rumours> {
        self.rumours.as_deref()
    }

    /// Tells all members of the zone something.
    ///
    /// # Errors
    /// As [`Rumours::tell`]; `NotInitialized` without rumours.
    pub fn tell(&mut self, now: Instant, words: Words<'_>, out: &mut impl Out) -> Result<Id, Code> {
        if !self.caster().is_some_and(|c| c.has_room(words.body.len() + words.name.len() + LETTER_MAX)) {
            return self.with(now, out, |rumours, neighbours, out| rumours.tell(now, words, neighbours, out));
        }
        let seated = self.seated();
        let (id, letter) = self.with(now, out, |rumours, neighbours, out| {
            let apart: Vec<Addr> = neighbours.iter().copied().filter(|n| !seated.contains(n)).collect();
            rumours.tell_tree(now, words, (neighbours, &apart), out)
        })?;
        // There is room for it.
        let _ = self.cast_rumour(now, &letter, out);
        Ok(id)
    }

    /// A rumour came down the tree of casts.
    pub(super) fn on_rumour_cast(&mut self, now: Instant, bytes: &[u8], out: &mut impl Out) {
        let seated = self.seated();
        let _ = self.with(now, out, |rumours, neighbours, out| {
            let apart: Vec<Addr> = neighbours.iter().copied().filter(|n| !seated.contains(n)).collect();
            rumours.handle(now, Input::Cast { bytes, neighbours, apart: &apart }, out);
            Ok(())
        });
    }

    /// Asks all members of the zone something.
    ///
    /// # Errors
    /// As [`Rumours::ask`]; `NotInitialized` without rumours.
    pub fn ask(&mut self, now: Instant, words: Words<'_>, patience: Duration, out: &mut impl Out) -> Result<Id, Code> {
        self.with(now, out, |rumours, neighbours, out| rumours.ask(now, words, patience, neighbours, out))
    }

    /// Asks one member something, wherever it is.
    ///
    /// # Errors
    /// As [`Rumours::ask_one`]; `NotInitialized` without rumours.
    pub fn ask_one(
        &mut self,
        now: Instant,
        to: Addr,
        words: Words<'_>,
        patience: Duration,
        out: &mut impl Out,
    ) -> Result<Id, Code> {
        self.with(now, out, |rumours, _, out| rumours.ask_one(now, words, patience, to, out))
    }

    /// Answers a question.
    ///
    /// # Errors
    /// As [`Rumours::reply`]; `NotInitialized` without rumours.
    pub fn reply(&mut self, now: Instant, id: Id, body: &[u8], last: bool, out: &mut impl Out) -> Result<(), Code> {
        self.with(now, out, |rumours, neighbours, out| rumours.reply(id, body, last, neighbours, out))
    }

    /// Nobody waits for replies to a question of ours any more.
    pub fn forget(&mut self, id: Id) {
        if let Some(rumours) = &mut self.rumours {
            rumours.forget(id);
        }
    }

    /// Asks a member for a sign of life.
    ///
    /// # Errors
    /// `NotInitialized` without rumours.
    pub fn ping(&mut self, now: Instant, to: Addr, out: &mut impl Out) -> Result<u32, Code> {
        self.with(now, out, |rumours, _, out| Ok(rumours.ping(now, to, out)))
    }

    /// The cluster shall have these keys.
    ///
    /// # Errors
    /// As [`Rumours::rekey`]; `NotInitialized` without rumours.
    pub fn rekey(&mut self, now: Instant, keys: Keys, out: &mut impl Out) -> Result<(), Code> {
        self.with(now, out, |rumours, neighbours, out| rumours.rekey(keys, neighbours, out))
    }

    pub(super) fn on_rumour(&mut self, now: Instant, from: Addr, bytes: &[u8], out: &mut impl Out) {
        let _ = self.with(now, out, |rumours, neighbours, out| {
            rumours.handle(now, Input::Heard { from, bytes, neighbours }, out);
            Ok(())
        });
    }

    pub(super) fn rumours_up(&mut self, now: Instant, addr: Addr, out: &mut impl Out) {
        if let Some(rumours) = &mut self.rumours {
            rumours.handle(now, Input::Up { addr }, &mut RumoursOut { errands: &mut self.errands, out });
        }
    }

    pub(super) fn expire_rumours(&mut self, now: Instant, out: &mut impl Out) {
        if self.rumours.as_ref().is_some_and(|r| r.deadline() <= now) {
            let _ = self.with(now, out, |rumours, neighbours, out| {
                rumours.handle(now, Input::Round { neighbours }, out);
                Ok(())
            });
        }
    }

    fn with<R, S: Out>(
        &mut self,
        now: Instant,
        out: &mut S,
        act: impl FnOnce(&mut Rumours, &[Addr], &mut RumoursOut<'_>) -> Result<R, Code>,
    ) -> Result<R, Code> {
        let neighbours = self.engine().linked();
        let Some(rumours) = &mut self.rumours else { return Err(Code::NotInitialized) };
        let before = (rumours.keys().epoch, rumours.keys().digest());
        let mut out_of_rumours = RumoursOut { errands: &mut self.errands, out };
        let result = act(rumours, &neighbours, &mut out_of_rumours);
        if (rumours.keys().epoch, rumours.keys().digest()) != before {
            // Keys are the whole cluster's: peers of other zones are told that there are newer ones.
            for addr in self.link.proved().into_iter().filter(|a| !neighbours.contains(a)) {
                rumours.handle(now, Input::Up { addr }, &mut out_of_rumours);
            }
        }
        self.run_errands(now, out);
        result
    }
}
