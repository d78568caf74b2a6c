//! Rumours: what people and programs tell all members of a zone; questions, and the replies to them; the cluster's keys.
//!
//! A rumour is passed on to all neighbours by whoever hears it first. Zones are well connected, so it arrives whoever dies
//! meanwhile, and everybody drops what it has heard before. Replies go back the way the question came, over links that the
//! zone holds anyway: if each member opened one to the asker, it would drown in the handshakes of a large zone. Only when
//! the next one on that way is gone, a reply goes straight to the asker.
//!
//! Keys are state, not news ([`keys`]): each change has a higher epoch, and whoever meets a peer with an older one gives it
//! its own. So a node that was down while keys were rotated has them when it is back.
//!
//! | file | idea |
//! |---|---|
//! | `mod` | what is told; pings |
//! | `flood` | from neighbour to neighbour, to each once |
//! | `question` | what is asked, and the way of the replies |
//! | [`keys`] | which of two rings is newer |
//!
//! Where members sit in a tree of casts, what is told goes down that tree: a message each, and not one over each link. Only who has no seat yet
//! hears it from its neighbours.
//!
//! For a few seconds a rumour is kept, and given to neighbours that are new: who is in somebody's view and was not linked
//! yet when it passed hears it all the same. Who joins later does not.

mod flood;
pub mod keys;
mod question;
#[cfg(test)]
mod tests;

use crate::member::Name;
use flood::{Flood, Going, KEPT};
use keys::Keys;
use phalanx_core::{Addr, Boot, Code, Duration, Fingerprint, Instant, Machine, Sink};
use phalanx_wire::rumour::{BODY_MAX, Kind, Letter, NAME_MAX};
use phalanx_wire::tomorrow;
pub use question::PATIENCE_MAX;
use question::Question;
use std::collections::VecDeque;

/// How often a letter may be passed on: far more than a zone is wide, and no loop is longer.
const HOPS: u8 = 32;
/// Pings that wait for an answer; the oldest is given up.
const PINGS_MAX: usize = 64;
/// A ping that is not answered.
const PING_PATIENCE: Duration = Duration::from_secs(5);

/// Names a rumour: the start that told it, and its count there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Id {
    /// Which start of which member.
    pub boot: Boot,
    /// Its count there.
    pub number: u32,
}

/// What somebody tells or asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Words<'a> {
    /// What it is called.
    pub name: &'a str,
    /// What is said.
    pub body: &'a [u8],
    /// For a question: whom it is for, with commas between; everybody when it is empty.
    pub only: &'a str,
}

/// A fact. `neighbours` are the members that ours is linked with now.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A letter of a peer arrived.
    Heard {
        /// The peer.
        from: Addr,
        /// The letter.
        bytes: &'a [u8],
        /// To whom it may be passed on.
        neighbours: &'a [Addr],
    },
    /// A letter came down the tree of casts.
    Cast {
        /// The letter.
        bytes: &'a [u8],
        /// Our neighbours.
        neighbours: &'a [Addr],
        /// Those of them who have no seat in the tree.
        apart: &'a [Addr],
    },
    /// A session with a peer began.
    Up {
        /// The peer.
        addr: Addr,
    },
    /// [`Machine::deadline`] has passed, and these are the neighbours now.
    Round {
        /// Those that are new hear what was told lately.
        neighbours: &'a [Addr],
    },
}

/// A decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output<'a> {
    /// Send a reliable message.
    Send {
        /// Where to.
        to: Addr,
        /// The letter.
        bytes: &'a [u8],
    },
    /// Somebody tells us something.
    Told {
        /// Who.
        from: &'a str,
        /// What.
        words: Words<'a>,
    },
    /// Somebody asks us something: see [`Rumours::reply`].
    Asked {
        /// The question.
        id: Id,
        /// Who.
        from: &'a str,
        /// What.
        words: Words<'a>,
    },
    /// A reply to our question; without a body, somebody heard it and has no answer yet.
    Replied {
        /// Which question.
        id: Id,
        /// Who.
        from: &'a str,
        /// What it says.
        body: Option<&'a [u8]>,
    },
    /// The time for replies to our question is over.
    Over {
        /// Which question.
        id: Id,
    },
    /// The cluster has other keys now.
    Rekeyed {
        /// All of them.
        keys: &'a Keys,
    },
    /// A ping was answered, or not.
    Ponged {
        /// Which.
        number: u32,
        /// How long it took; `None` when nobody answered.
        took: Option<Duration>,
    },
}

/// A sink for what rumours decide.
pub trait Out: for<'a> Sink<Output<'a>> {}
impl<S: for<'a> Sink<Output<'a>>> Out for S {}

/// What was refused, and how often.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Counters {
    /// Rumours and questions that were heard for the first time.
    pub heard: u64,
    /// Those that were known already.
    pub repeated: u64,
    /// Letters that made no sense.
    pub malformed: u64,
    /// Replies to questions that nobody waits for any more, or too many of them.
    pub late: u64,
}

/// The rumours of one member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rumours {
    name: Name,
    addr: Addr,
    boot: Boot,
    last: u32,
    flood: Flood,
    questions: VecDeque<Question>,
    pings: VecDeque<(u32, Instant)>,
    keys: Keys,
    counters: Counters,
}

impl Rumours {
    /// The rumours of the member called `name` at `addr`, in its start `boot`.
    #[must_use]
    pub fn new(name: Name, addr: Addr, boot: Boot, keys: Keys) -> Self {
        Self {
            name,
            addr,
            boot,
            last: 0,
            flood: Flood::default(),
            questions: VecDeque::new(),
            pings: VecDeque::new(),
            keys,
            counters: Counters::default(),
        }
    }

    /// What was refused so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The cluster's keys.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The member has another name now.
    pub fn rename(&mut self, name: Name) {
        self.name = name;
    }

    /// Tells everybody something. We hear it, too.
    ///
    /// # Errors
    /// `InvalidArgs` when the name is empty, or name or body are too long.
    pub fn tell(
        &mut self,
        now: Instant,
        words: Words<'_>,
        neighbours: &[Addr],
        out: &mut impl Out,
    ) -> Result<Id, Code> {
        self.begin_tale(now, words, (neighbours, neighbours), out).map(|(id, _)| id)
    }

    /// As [`Rumours::tell`], where the letter is to go down the tree of casts: only neighbours `apart` from it hear of it from us. Gives the
    /// letter.
    ///
    /// # Errors
    /// As [`Rumours::tell`].
    pub fn tell_tree(
        &mut self,
        now: Instant,
        words: Words<'_>,
        (neighbours, apart): (&[Addr], &[Addr]),
        out: &mut impl Out,
    ) -> Result<(Id, Vec<u8>), Code> {
        self.begin_tale(now, words, (neighbours, apart), out)
    }

    fn begin_tale(
        &mut self,
        now: Instant,
        words: Words<'_>,
        (neighbours, to): (&[Addr], &[Addr]),
        out: &mut impl Out,
    ) -> Result<(Id, Vec<u8>), Code> {
        let id = self.begin(words)?;
        let name = self.name.clone();
        let letter = self.letter(Kind::Tell, id, HOPS);
        let letter = Letter { from: name.as_str(), name: words.name, body: words.body, ..letter };
        self.flood.spread(now, &letter, Going { until: now + KEPT, but: None, neighbours, to }, out);
        out.push(Output::Told { from: name.as_str(), words });
        let mut bytes = Vec::new();
        letter.encode(&mut bytes);
        Ok((id, bytes))
    }

    /// What comes down the tree comes to all who sit there.
    fn on_cast(&mut self, now: Instant, bytes: &[u8], (neighbours, to): (&[Addr], &[Addr]), out: &mut impl Out) {
        let Ok(letter) = Letter::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        if letter.kind != Kind::Tell {
            self.counters.malformed += 1;
        } else if self.flood.note(Id { boot: letter.boot, number: letter.number }) {
            self.counters.heard += 1;
            self.flood.spread(now, &letter, Going { until: now + KEPT, but: None, neighbours, to }, out);
            out.push(Output::Told { from: letter.from, words: words(&letter) });
        } else {
            self.counters.repeated += 1;
        }
    }

    /// Asks a member for a sign of life; says by which number it will be answered.
    pub fn ping(&mut self, now: Instant, to: Addr, out: &mut impl Out) -> u32 {
        self.last += 1;
        if self.pings.len() >= PINGS_MAX
            && let Some((number, _)) = self.pings.pop_front()
        {
            out.push(Output::Ponged { number, took: None });
        }
        self.pings.push_back((self.last, now));
        let id = Id { boot: self.boot, number: self.last };
        send(&self.letter(Kind::Ping, id, 0), to, out);
        self.last
    }

    /// The cluster shall have these keys. They are passed on to all, and to who comes back later.
    ///
    /// # Errors
    /// `InvalidArgs` when they are not newer than those we have.
    pub fn rekey(&mut self, keys: Keys, neighbours: &[Addr], out: &mut impl Out) -> Result<(), Code> {
        if !keys.is_newer_than(&self.keys) {
            return Err(Code::InvalidArgs);
        }
        self.take_keys(keys, None, neighbours, out);
        Ok(())
    }

    fn begin(&mut self, words: Words<'_>) -> Result<Id, Code> {
        if words.name.is_empty() || words.name.len() > NAME_MAX || words.body.len() > BODY_MAX {
            return Err(Code::InvalidArgs);
        }
        self.last += 1;
        let id = Id { boot: self.boot, number: self.last };
        self.flood.note(id);
        Ok(id)
    }

    const fn letter(&self, kind: Kind, id: Id, hops: u8) -> Letter<'static> {
        let (asker, amount) = (Addr::Local(0), 0);
        Letter { kind, hops, boot: id.boot, number: id.number, amount, asker, from: "", name: "", only: "", body: &[] }
    }

    fn is_meant(&self, only: &str) -> bool {
        only.is_empty() || only.split(',').any(|name| name == self.name.as_str())
    }

    fn on_letter(&mut self, now: Instant, heard: Heard<'_>, out: &mut impl Out) {
        let Heard { from, letter, neighbours } = heard;
        let id = Id { boot: letter.boot, number: letter.number };
        match letter.kind {
            Kind::Tell | Kind::Ask if !self.flood.note(id) => {
                self.counters.repeated += 1;
                self.flood.hear_again(id, from);
            }
            Kind::Tell => {
                self.counters.heard += 1;
                self.flood.pass_on(now, heard, now + KEPT, out);
                out.push(Output::Told { from: letter.from, words: words(&letter) });
            }
            Kind::Ask => self.on_ask(now, id, heard, out),
            Kind::Heard | Kind::Reply => self.on_reply(id, &letter, neighbours, out),
            Kind::Epoch => self.on_epoch(from, &letter, out),
            Kind::Keys => self.on_keys(from, &letter, neighbours, out),
            Kind::Ping => send(&Letter { kind: Kind::Pong, ..letter }, from, out),
            Kind::Pong => self.on_pong(now, id, out),
        }
    }

    fn on_epoch(&mut self, from: Addr, letter: &Letter<'_>, out: &mut impl Out) {
        let Some((epoch, digest)) = keys::read_epoch(letter.body) else {
            self.counters.malformed += 1;
            return;
        };
        match (epoch, digest).cmp(&(self.keys.epoch, self.keys.digest())) {
            std::cmp::Ordering::Less => self.send_keys(from, out),
            // It has newer ones, and gives them to us when it knows that ours are older.
            std::cmp::Ordering::Greater => self.send_epoch(from, out),
            std::cmp::Ordering::Equal => {}
        }
    }

    fn on_keys(&mut self, from: Addr, letter: &Letter<'_>, neighbours: &[Addr], out: &mut impl Out) {
        let Some(keys) = Keys::read(letter.body) else {
            self.counters.malformed += 1;
            return;
        };
        if keys.is_newer_than(&self.keys) {
            self.take_keys(keys, Some(from), neighbours, out);
        } else if self.keys.is_newer_than(&keys) {
            self.send_keys(from, out);
        }
    }

    fn on_pong(&mut self, now: Instant, id: Id, out: &mut impl Out) {
        if id.boot == self.boot
            && let Some(i) = self.pings.iter().position(|p| p.0 == id.number)
            && let Some((number, sent_at)) = self.pings.remove(i)
        {
            out.push(Output::Ponged { number, took: Some(now.since(sent_at)) });
        }
    }

    /// We pass them on under the old key, which all can read, and use them then.
    fn take_keys(&mut self, keys: Keys, from: Option<Addr>, neighbours: &[Addr], out: &mut impl Out) {
        self.keys = keys;
        for &to in neighbours.iter().filter(|&&n| Some(n) != from) {
            self.send_keys(to, out);
        }
        out.push(Output::Rekeyed { keys: &self.keys });
    }

    fn send_keys(&self, to: Addr, out: &mut impl Out) {
        let body = self.keys.write();
        let id = Id { boot: self.boot, number: 0 };
        send(&Letter { body: &body, ..self.letter(Kind::Keys, id, 0) }, to, out);
    }

    fn send_epoch(&self, to: Addr, out: &mut impl Out) {
        let body = keys::write_epoch(self.keys.epoch, self.keys.digest());
        let id = Id { boot: self.boot, number: 0 };
        send(&Letter { body: &body, ..self.letter(Kind::Epoch, id, 0) }, to, out);
        if let Some(bytes) = tomorrow::rumour() {
            out.push(Output::Send { to, bytes });
        }
    }
}

impl Machine for Rumours {
    type Input<'a> = Input<'a>;
    type Output<'a> = Output<'a>;

    fn handle<S>(&mut self, now: Instant, input: Input<'_>, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        match input {
            Input::Heard { from, bytes, neighbours } => match Letter::parse(bytes) {
                Ok(letter) => self.on_letter(now, Heard { from, letter, neighbours }, out),
                Err(_) => self.counters.malformed += 1,
            },
            Input::Cast { bytes, neighbours, apart } => self.on_cast(now, bytes, (neighbours, apart), out),
            // Before the first change all have the same keys, or could not meet.
            Input::Up { addr } if self.keys.epoch > keys::FIRST => self.send_epoch(addr, out),
            Input::Up { .. } => {}
            Input::Round { neighbours } => {
                self.flood.on_round(now, neighbours, out);
                self.expire(now, out);
            }
        }
    }

    fn expire<S>(&mut self, now: Instant, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        while let Some(i) = self.questions.iter().position(|q| q.until <= now) {
            if let Some(question) = self.questions.remove(i).filter(|q| q.ours) {
                out.push(Output::Over { id: question.id });
            }
        }
        while self.pings.front().is_some_and(|p| p.1 + PING_PATIENCE <= now) {
            if let Some((number, _)) = self.pings.pop_front() {
                out.push(Output::Ponged { number, took: None });
            }
        }
    }

    fn deadline(&self) -> Instant {
        let questions = self.questions.iter().map(|q| q.until);
        let pings = self.pings.front().map(|p| p.1 + PING_PATIENCE);
        questions.chain(pings).fold(self.flood.again_at, Instant::min)
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.name.as_str(), self.boot, self.last, self.counters));
        self.flood.fingerprint(print);
        for q in &self.questions {
            print.instant(q.until);
            print.add(&(q.id, q.way, q.ours, q.answered, q.replies));
        }
        for &(number, at) in &self.pings {
            print.instant(at);
            print.add(&number);
        }
        self.keys.fingerprint(print);
    }
}

/// A letter, from whom it came, and to whom it may go on.
#[derive(Clone, Copy)]
struct Heard<'a> {
    from: Addr,
    letter: Letter<'a>,
    neighbours: &'a [Addr],
}

fn words<'a>(letter: &Letter<'a>) -> Words<'a> {
    Words { name: letter.name, body: letter.body, only: letter.only }
}

fn send(letter: &Letter<'_>, to: Addr, out: &mut impl Out) {
    let mut bytes = Vec::new();
    letter.encode(&mut bytes);
    out.push(Output::Send { to, bytes: &bytes });
}
