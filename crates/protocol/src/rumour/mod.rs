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
//! | `mod` | rumours, questions, pings |
//! | [`keys`] | which of two rings is newer |
//!
//! For a few seconds a rumour is kept, and given to neighbours that are new: who is in somebody's view and was not linked
//! yet when it passed hears it all the same. Who joins later does not.

pub mod keys;
#[cfg(test)]
mod tests;

use crate::member::Name;
use keys::Keys;
use phalanx_core::{Addr, Boot, Code, Duration, Fingerprint, Instant, Machine, Sink};
use phalanx_wire::rumour::{BODY_MAX, Kind, Letter, NAME_MAX, ONLY_MAX};
use phalanx_wire::tomorrow;
use std::collections::{BTreeSet, VecDeque};

/// How long a rumour is kept for new neighbours, how often they are looked for, and how many rumours are kept; the oldest goes.
const KEPT: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(100);
const KEPT_MAX: usize = 64;
/// How often a letter may be passed on: far more than a zone is wide, and no loop is longer.
const HOPS: u8 = 32;
/// Rumours that are remembered, so that they are heard once; the oldest is forgotten.
const SEEN_MAX: usize = 4096;
/// Questions that are under way; the oldest is over before its time, one of others first.
const ASKED_MAX: usize = 256;
/// Pings that wait for an answer; the oldest is given up.
const PINGS_MAX: usize = 64;
/// Replies that are passed on for one question.
const REPLIES_MAX: u32 = 65_536;
/// Replies are waited for this long at most.
pub const PATIENCE_MAX: Duration = Duration::from_secs(600);
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

/// A question that is under way.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Question {
    id: Id,
    /// The neighbour that asked us first, and where replies can go without it.
    way: [Addr; 2],
    until: Instant,
    ours: bool,
    answered: bool,
    replies: u32,
}

/// A rumour that was passed on lately.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Recent {
    id: Id,
    until: Instant,
    letter: Vec<u8>,
    /// Those who have it from us, or we from them.
    known: Vec<Addr>,
}

/// The rumours of one member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rumours {
    name: Name,
    addr: Addr,
    boot: Boot,
    last: u32,
    seen: BTreeSet<Id>,
    order: VecDeque<Id>,
    questions: VecDeque<Question>,
    pings: VecDeque<(u32, Instant)>,
    recent: VecDeque<Recent>,
    again_at: Instant,
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
            seen: BTreeSet::new(),
            order: VecDeque::new(),
            questions: VecDeque::new(),
            pings: VecDeque::new(),
            recent: VecDeque::new(),
            again_at: Instant::NEVER,
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
        let id = self.begin(words)?;
        let name = self.name.clone();
        let letter = self.letter(Kind::Tell, id, HOPS);
        let letter = Letter { from: name.as_str(), name: words.name, body: words.body, ..letter };
        self.spread(now, &letter, now + KEPT, None, neighbours, out);
        out.push(Output::Told { from: name.as_str(), words });
        Ok(id)
    }

    /// Asks everybody something, ourselves included. Replies come until `patience` is over.
    ///
    /// # Errors
    /// `InvalidArgs` as for [`Rumours::tell`], and when the patience is nothing or longer than [`PATIENCE_MAX`].
    pub fn ask(
        &mut self,
        now: Instant,
        words: Words<'_>,
        patience: Duration,
        neighbours: &[Addr],
        out: &mut impl Out,
    ) -> Result<Id, Code> {
        let id = self.question(now, words, patience, HOPS, neighbours, out)?;
        if self.is_meant(words.only) {
            let name = self.name.clone();
            out.push(Output::Replied { id, from: name.as_str(), body: None });
            out.push(Output::Asked { id, from: name.as_str(), words });
        }
        Ok(id)
    }

    /// Asks one member something, wherever it is.
    ///
    /// # Errors
    /// As [`Rumours::ask`].
    pub fn ask_one(
        &mut self,
        now: Instant,
        words: Words<'_>,
        patience: Duration,
        to: Addr,
        out: &mut impl Out,
    ) -> Result<Id, Code> {
        self.question(now, words, patience, 0, &[to], out)
    }

    fn question(
        &mut self,
        now: Instant,
        words: Words<'_>,
        patience: Duration,
        hops: u8,
        to: &[Addr],
        out: &mut impl Out,
    ) -> Result<Id, Code> {
        if patience == Duration::ZERO || patience > PATIENCE_MAX || words.only.len() > ONLY_MAX {
            return Err(Code::InvalidArgs);
        }
        let id = self.begin(words)?;
        let until = now + patience;
        let question = Question { id, way: [self.addr; 2], until, ours: true, answered: false, replies: 0 };
        self.note_question(question, out);
        let name = self.name.clone();
        let letter = Letter { from: name.as_str(), asker: self.addr, ..self.letter(Kind::Ask, id, hops) };
        let letter = Letter { amount: patience.as_millis() as u32, name: words.name, ..letter };
        let letter = Letter { only: words.only, body: words.body, ..letter };
        if hops == 0 {
            send(&letter, to[0], out);
        } else {
            self.spread(now, &letter, until, None, to, out);
        }
        Ok(id)
    }

    /// Answers a question. Answers arrive in the order in which they were given; after the `last` there are no more.
    ///
    /// # Errors
    /// `InvalidArgs` when the body is too long, `InvalidEndpoint` when nobody waits for the answer, or it was given.
    pub fn reply(
        &mut self,
        id: Id,
        body: &[u8],
        last: bool,
        neighbours: &[Addr],
        out: &mut impl Out,
    ) -> Result<(), Code> {
        if body.len() > BODY_MAX {
            return Err(Code::InvalidArgs);
        }
        let question = self.questions.iter_mut().find(|q| q.id == id && !q.answered).ok_or(Code::InvalidEndpoint)?;
        question.answered = last;
        let name = self.name.clone();
        if question.ours {
            out.push(Output::Replied { id, from: name.as_str(), body: Some(body) });
            return Ok(());
        }
        let to = question.back(neighbours);
        send(&Letter { from: name.as_str(), body, ..self.letter(Kind::Reply, id, HOPS) }, to, out);
        Ok(())
    }

    /// Nobody waits for replies to this question of ours any more.
    pub fn forget(&mut self, id: Id) {
        self.questions.retain(|q| q.id != id);
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
        self.note(id);
        Ok(id)
    }

    const fn letter(&self, kind: Kind, id: Id, hops: u8) -> Letter<'static> {
        let (asker, amount) = (Addr::Local(0), 0);
        Letter { kind, hops, boot: id.boot, number: id.number, amount, asker, from: "", name: "", only: "", body: &[] }
    }

    /// False when it is known already.
    fn note(&mut self, id: Id) -> bool {
        if !self.seen.insert(id) {
            return false;
        }
        self.order.push_back(id);
        if self.order.len() > SEEN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        true
    }

    fn note_question(&mut self, question: Question, out: &mut impl Out) {
        if self.questions.len() >= ASKED_MAX {
            let oldest = self.questions.iter().position(|q| !q.ours).unwrap_or(0);
            if let Some(ours) = self.questions.remove(oldest).filter(|q| q.ours) {
                out.push(Output::Over { id: ours.id });
            }
        }
        self.questions.push_back(question);
    }

    fn is_meant(&self, only: &str) -> bool {
        only.is_empty() || only.split(',').any(|name| name == self.name.as_str())
    }

    fn on_letter(&mut self, now: Instant, from: Addr, letter: &Letter<'_>, neighbours: &[Addr], out: &mut impl Out) {
        let id = Id { boot: letter.boot, number: letter.number };
        match letter.kind {
            Kind::Tell => self.on_tell(now, id, from, letter, neighbours, out),
            Kind::Ask => self.on_ask(now, id, from, letter, neighbours, out),
            Kind::Heard | Kind::Reply => self.on_reply(id, letter, neighbours, out),
            Kind::Epoch => self.on_epoch(from, letter, out),
            Kind::Keys => self.on_keys(from, letter, neighbours, out),
            Kind::Ping => send(&Letter { kind: Kind::Pong, ..*letter }, from, out),
            Kind::Pong => self.on_pong(now, id, out),
        }
    }

    fn on_tell(
        &mut self,
        now: Instant,
        id: Id,
        from: Addr,
        letter: &Letter<'_>,
        neighbours: &[Addr],
        out: &mut impl Out,
    ) {
        if !self.note(id) {
            self.hear_again(id, from);
            return;
        }
        self.counters.heard += 1;
        self.pass_on(now, letter, now + KEPT, from, neighbours, out);
        out.push(Output::Told { from: letter.from, words: words(letter) });
    }

    fn on_ask(
        &mut self,
        now: Instant,
        id: Id,
        from: Addr,
        letter: &Letter<'_>,
        neighbours: &[Addr],
        out: &mut impl Out,
    ) {
        if !self.note(id) {
            self.hear_again(id, from);
            return;
        }
        self.counters.heard += 1;
        let patience = Duration::from_millis(letter.amount.into()).min(PATIENCE_MAX);
        let question =
            Question { id, way: [from, letter.asker], until: now + patience, ours: false, answered: false, replies: 0 };
        self.note_question(question, out);
        self.pass_on(now, letter, now + patience, from, neighbours, out);
        if self.is_meant(letter.only) {
            let name = self.name.clone();
            send(&Letter { from: name.as_str(), ..self.letter(Kind::Heard, id, HOPS) }, from, out);
            out.push(Output::Asked { id, from: letter.from, words: words(letter) });
        }
    }

    /// A neighbour has it, too.
    fn hear_again(&mut self, id: Id, from: Addr) {
        self.counters.repeated += 1;
        if let Some(recent) = self.recent.iter_mut().find(|r| r.id == id) {
            recent.known.push(from);
        }
    }

    /// A letter goes on to all but the one it came from.
    fn pass_on(
        &mut self,
        now: Instant,
        letter: &Letter<'_>,
        until: Instant,
        from: Addr,
        neighbours: &[Addr],
        out: &mut impl Out,
    ) {
        if let Some(hops) = letter.hops.checked_sub(1) {
            self.spread(now, &Letter { hops, ..*letter }, until, Some(from), neighbours, out);
        }
    }

    fn spread(
        &mut self,
        now: Instant,
        letter: &Letter<'_>,
        until: Instant,
        but: Option<Addr>,
        neighbours: &[Addr],
        out: &mut impl Out,
    ) {
        let mut bytes = Vec::new();
        letter.encode(&mut bytes);
        for &to in neighbours.iter().filter(|&&n| Some(n) != but) {
            out.push(Output::Send { to, bytes: &bytes });
        }
        let known = neighbours.iter().copied().chain(but).collect();
        if self.recent.len() >= KEPT_MAX {
            self.recent.pop_front();
        }
        let id = Id { boot: letter.boot, number: letter.number };
        self.recent.push_back(Recent { id, until: until.min(now + KEPT), letter: bytes, known });
        self.again_at = self.again_at.min(now + AGAIN);
    }

    /// Neighbours that are new hear what was told lately.
    fn on_round(&mut self, now: Instant, neighbours: &[Addr], out: &mut impl Out) {
        if self.again_at > now {
            return;
        }
        self.recent.retain(|r| r.until > now);
        for recent in &mut self.recent {
            for &to in neighbours.iter().filter(|n| !recent.known.contains(n)) {
                out.push(Output::Send { to, bytes: &recent.letter });
            }
            recent.known = neighbours.to_vec();
        }
        self.again_at = if self.recent.is_empty() { Instant::NEVER } else { now + AGAIN };
    }

    fn on_reply(&mut self, id: Id, letter: &Letter<'_>, neighbours: &[Addr], out: &mut impl Out) {
        let known = self.questions.iter_mut().find(|q| q.id == id && q.replies < REPLIES_MAX);
        let Some(question) = known else {
            self.counters.late += 1;
            return;
        };
        question.replies += 1;
        if question.ours {
            let body = (letter.kind == Kind::Reply).then_some(letter.body);
            out.push(Output::Replied { id, from: letter.from, body });
        } else if let Some(hops) = letter.hops.checked_sub(1) {
            send(&Letter { hops, ..*letter }, question.back(neighbours), out);
        } else {
            self.counters.late += 1;
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
        if let Some(bytes) = tomorrow::RUMOUR {
            out.push(Output::Send { to, bytes });
        }
    }
}

impl Question {
    /// Where a reply goes next.
    fn back(&self, neighbours: &[Addr]) -> Addr {
        self.way[usize::from(!neighbours.contains(&self.way[0]))]
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
                Ok(letter) => self.on_letter(now, from, &letter, neighbours, out),
                Err(_) => self.counters.malformed += 1,
            },
            // Before the first change all have the same keys, or could not meet.
            Input::Up { addr } if self.keys.epoch > keys::FIRST => self.send_epoch(addr, out),
            Input::Up { .. } => {}
            Input::Round { neighbours } => {
                self.on_round(now, neighbours, out);
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
        questions.chain(pings).fold(self.again_at, Instant::min)
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.name.as_str(), self.boot, self.last, &self.order, self.counters));
        for q in &self.questions {
            print.instant(q.until);
            print.add(&(q.id, q.way, q.ours, q.answered, q.replies));
        }
        for r in &self.recent {
            print.instant(r.until);
            print.add(&(r.id, &r.known));
        }
        print.instant(self.again_at);
        for &(number, at) in &self.pings {
            print.instant(at);
            print.add(&number);
        }
        self.keys.fingerprint(print);
    }
}

fn words<'a>(letter: &Letter<'a>) -> Words<'a> {
    Words { name: letter.name, body: letter.body, only: letter.only }
}

fn send(letter: &Letter<'_>, to: Addr, out: &mut impl Out) {
    let mut bytes = Vec::new();
    letter.encode(&mut bytes);
    out.push(Output::Send { to, bytes: &bytes });
}
