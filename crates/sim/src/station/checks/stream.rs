//! One layer's messages from one node to another: two counters for each generation.
//!
//! A generation begins with a start of the sender and ends when its link gives the receiver up. A receiver reads one
//! generation in one session with the sender, and never goes back to an older one.

use crate::station::content::Layer;
use phalanx_core::{Duration, Instant};
use std::collections::VecDeque;

/// The messages of one layer between two nodes.
#[derive(Default)]
pub(super) struct Stream {
    /// Oldest first; only the last may be open.
    generations: VecDeque<Generation>,
    /// The receiver's session in which the first of them is read.
    session: Option<Session>,
    /// NACK: what a session reported missing before anything of it was read.
    reported: Option<(Session, u64)>,
}

/// A session as the receiver counts them: which start of it, and how often it met or lost the sender since.
pub(super) type Session = (u32, u32);

/// What was sent between two breaks of the sender's link.
pub(super) struct Generation {
    /// Which start of the sender.
    pub(super) boot: u32,
    /// The sender's number for it.
    pub(super) number: u32,
    pub(super) sent: u32,
    /// The next to be read: all below were, or are missing for good.
    pub(super) read: u32,
    pub(super) last_sent_at: Instant,
    /// The sender was not told that anything may be lost.
    pub(super) open: bool,
    /// ACK: reported undelivered, and the lowest of those.
    pub(super) given_up: u32,
    pub(super) lowest_given_up: u32,
    /// NACK: messages passed over, less those reported missing; and when the last one was passed over.
    pub(super) debt: i64,
    debt_at: Instant,
    /// NACK: when each was sent.
    sent_at: Vec<Instant>,
    /// UNR and datagrams: which were read.
    seen: Vec<u64>,
}

/// What is wrong with a message that was handed on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Wrong {
    /// No generation fits: never sent, from a former session, or from a former boot.
    Nowhere,
    /// Another one was next.
    Disorder { next: u32 },
    /// It was read before.
    Doubled,
    /// Its number was never given to a message.
    NeverSent,
}

impl Stream {
    /// The link took message `number` of that generation. False when it is not the next one.
    pub(super) fn sent(&mut self, at: Instant, layer: Layer, boot: u32, generation: u32, number: u32) -> bool {
        let fits = |g: &Generation| (g.boot, g.number) == (boot, generation);
        if !self.generations.back().is_some_and(fits) {
            self.close();
            self.generations.push_back(Generation::new(boot, generation));
        }
        let last = self.generations.back_mut().expect("pushed above");
        let right = last.sent == number;
        last.sent = number + 1;
        last.last_sent_at = at;
        if layer == Layer::Nack {
            last.sent_at.push(at);
        }
        right
    }

    /// The sender learned that what is under way may be lost. Gives the generation that ends with it.
    pub(super) fn close(&mut self) -> Option<&Generation> {
        let last = self.generations.back_mut().filter(|g| g.open)?;
        last.open = false;
        Some(last)
    }

    pub(super) fn last(&self) -> Option<&Generation> {
        self.generations.back()
    }

    pub(super) fn last_mut(&mut self) -> Option<&mut Generation> {
        self.generations.back_mut()
    }

    /// The generation that the receiver reads.
    pub(super) fn reading(&mut self, session: Session) -> Option<&mut Generation> {
        self.generations.front_mut().filter(|_| self.session == Some(session))
    }

    /// NACK messages were reported missing in a session in which none was read yet.
    pub(super) fn report_early(&mut self, session: Session, lost: u64) {
        let before = self.reported.filter(|r| r.0 == session).map_or(0, |r| r.1);
        self.reported = Some((session, before + lost));
    }

    /// True when nothing of the last generation is missing but what the receiver, in its session of now, was told is
    /// missing for good: a gap at the end of a NACK stream is reported before anything behind it is read.
    pub(super) fn is_read_or_reported(&self, session: Session) -> bool {
        let Some(last) = self.last() else { return true };
        let early = match self.reported {
            Some((of, lost)) if of == session && self.session != Some(session) => lost,
            _ => 0,
        };
        i64::from(last.read) - last.debt.min(0) + early as i64 >= i64::from(last.sent)
    }

    /// In `session` with that start of the sender a message came whose ports say so much of its place. Gives its
    /// generation and number.
    pub(super) fn got(
        &mut self,
        at: Instant,
        session: Session,
        layer: Layer,
        boot: u32,
        generation: u8,
        number: u16,
    ) -> Result<(u32, u32), Wrong> {
        let fits = |g: &Generation| g.boot == boot && g.number as u8 == generation;
        if self.session != Some(session) {
            let passed = usize::from(self.session.is_some() && layer != Layer::Datagram);
            let place = (passed..self.generations.len()).find(|&i| fits(&self.generations[i])).ok_or(Wrong::Nowhere)?;
            self.generations.drain(..place);
            self.session = Some(session);
            if let Some((_, lost)) = self.reported.take().filter(|r| r.0 == session) {
                self.generations[0].debt -= lost as i64;
            }
        }
        let reading = self.generations.front_mut().filter(|g| fits(g)).ok_or(Wrong::Nowhere)?;
        let number = match layer {
            Layer::Reliable | Layer::Ack | Layer::Order => reading.next(number)?,
            Layer::Nack => reading.next_or_later(at, number)?,
            Layer::Unr | Layer::Datagram => reading.once(number)?,
        };
        Ok((reading.number, number))
    }
}

impl Generation {
    fn new(boot: u32, number: u32) -> Self {
        Self {
            boot,
            number,
            sent: 0,
            read: 0,
            last_sent_at: Instant::ZERO,
            open: true,
            given_up: 0,
            lowest_given_up: u32::MAX,
            debt: 0,
            debt_at: Instant::ZERO,
            sent_at: Vec::new(),
            seen: Vec::new(),
        }
    }

    fn next(&mut self, low: u16) -> Result<u32, Wrong> {
        if low != self.read as u16 {
            return Err(Wrong::Disorder { next: self.read });
        }
        self.advance(self.read)
    }

    fn next_or_later(&mut self, at: Instant, low: u16) -> Result<u32, Wrong> {
        let ahead = low.wrapping_sub(self.read as u16);
        if ahead > u16::MAX / 2 {
            return Err(Wrong::Disorder { next: self.read });
        }
        if ahead > 0 {
            self.debt += i64::from(ahead);
            self.debt_at = at;
        }
        self.advance(self.read + u32::from(ahead))
    }

    fn advance(&mut self, number: u32) -> Result<u32, Wrong> {
        if number >= self.sent {
            return Err(Wrong::NeverSent);
        }
        self.read = number + 1;
        Ok(number)
    }

    fn once(&mut self, low: u16) -> Result<u32, Wrong> {
        let newest = self.sent.checked_sub(1).ok_or(Wrong::NeverSent)?;
        let age = (newest as u16).wrapping_sub(low);
        let number = newest.checked_sub(u32::from(age)).ok_or(Wrong::NeverSent)?;
        let (word, bit) = (number as usize / 64, 1 << (number % 64));
        if self.seen.len() <= word {
            self.seen.resize(word + 1, 0);
        }
        if self.seen[word] & bit != 0 {
            return Err(Wrong::Doubled);
        }
        self.seen[word] |= bit;
        Ok(number)
    }

    /// An ACK message was reported undelivered. False when it was never sent, or reported before.
    pub(super) fn give_up(&mut self, number: u64) -> bool {
        let Ok(number) = u32::try_from(number) else { return false };
        let in_turn = self.given_up == 0 || number >= self.lowest_given_up + self.given_up;
        self.lowest_given_up = self.lowest_given_up.min(number);
        self.given_up += 1;
        number < self.sent && in_turn
    }

    /// True when each ACK message that was not read is reported undelivered.
    pub(super) fn is_accounted_for(&self) -> bool {
        self.read >= self.sent
            || (self.lowest_given_up <= self.read && self.given_up == self.sent - self.lowest_given_up)
    }

    /// True when a sender whose history keeps `kept` messages, for `age`, may say that NACK messages below `floor` are
    /// gone.
    pub(super) fn may_have_forgotten(&self, now: Instant, floor: u64, kept: u64, age: Duration) -> bool {
        let newest = floor.checked_sub(1).and_then(|n| self.sent_at.get(n as usize));
        newest.is_some_and(|&at| u64::from(self.sent) >= floor + kept || now.since(at) >= age)
    }

    /// NACK messages that were passed over before `now` and not reported.
    pub(super) fn owes(&self, now: Instant) -> bool {
        self.debt > 0 && self.debt_at < now
    }
}
