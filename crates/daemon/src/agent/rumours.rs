//! What members tell and ask each other, through an agent: user events, queries and their answers, round trips, and who is to
//! be forgotten.
//!
//! Names that begin with `phalanx.` are ours: agents answer such questions by themselves, and act on what they are told.

use super::{Agent, casts, zones};
use crate::driver::News;
use phalanx_api::operate::RoundTrip;
use phalanx_api::rumours::{Answer, Question, RESERVED, Tale};
use phalanx_api::{State, What};
use phalanx_core::{Addr, Boot, Code, Duration, Instant};
use phalanx_protocol::member::Engine;
use phalanx_protocol::rumour::{Id, PATIENCE_MAX, Words};
use std::collections::BTreeMap;
use tokio::sync::{mpsc, oneshot};

/// Asked for the node's key ring.
pub(super) const KEYS: &str = "phalanx.keys";
/// Told whom to forget.
const FORGET: &str = "phalanx.forget";
/// Answers that wait for a slow reader; more are dropped, and the reader sees fewer.
const ANSWERS_MAX: usize = 4096;
/// User events and queries that one node may begin in a burst, and how fast it may go on: each goes to all members.
const BURST: u32 = 64;
const EACH: Duration = Duration::from_millis(20);

/// Why something could not be told or asked. Nobody heard of it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RumourError {
    /// The name is ours.
    #[error("`{0}`: names that begin with {RESERVED} are reserved, choose another")]
    Reserved(String),
    /// Name, payload or patience are wrong.
    #[error(
        "a name has 1 to {NAME} bytes, a payload at most {BODY}, and answers are waited for 1 to {WAIT} ms",
        NAME = phalanx_wire::rumour::NAME_MAX,
        BODY = phalanx_wire::rumour::BODY_MAX,
        WAIT = PATIENCE_MAX.as_millis()
    )]
    Length,
    /// Too many.
    #[error("this node tells and asks too much: at most {BURST} at once and {} a second", 1000 / EACH.as_millis())]
    Pace,
    /// No such question, or it was answered, or its time is over.
    #[error("nobody waits for an answer to `{0}`")]
    NoQuestion(String),
    /// No such member.
    #[error("there is no member `{0}`: see `phalanx members`")]
    NoMember(String),
    /// The member is there.
    #[error("`{0}` is alive: end it with `phalanx leave` on its own host; only who is gone can be forgotten")]
    Alive(String),
    /// The node has left.
    #[error("the node has left the cluster")]
    Left,
}

/// What an agent waits for.
#[derive(Debug)]
pub(super) struct Waiting {
    questions: BTreeMap<Id, mpsc::Sender<Answer>>,
    pings: BTreeMap<u32, oneshot::Sender<Option<Duration>>>,
    /// Room in the bucket, and when it was filled.
    room: u32,
    filled_at: Instant,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { questions: BTreeMap::new(), pings: BTreeMap::new(), room: BURST, filled_at: Instant::ZERO }
    }
}

impl Waiting {
    pub(super) fn take(&mut self, now: Instant) -> Result<(), RumourError> {
        let gained = now.since(self.filled_at).0 / EACH.0;
        if gained > 0 {
            self.room = (u64::from(self.room) + gained).min(BURST.into()) as u32;
            self.filled_at = now;
        }
        self.room = self.room.checked_sub(1).ok_or(RumourError::Pace)?;
        Ok(())
    }
}

fn refused(code: Code) -> RumourError {
    match code {
        Code::InvalidArgs => RumourError::Length,
        _ => RumourError::Left,
    }
}

impl Agent {
    /// Tells all members something.
    ///
    /// # Errors
    /// See [`RumourError`].
    pub fn tell(&mut self, tale: &Tale) -> Result<(), RumourError> {
        if tale.name.starts_with(RESERVED) {
            return Err(RumourError::Reserved(tale.name.clone()));
        }
        self.waiting.take(self.driver.now())?;
        self.say(&tale.name, tale.payload.as_bytes())
    }

    fn say(&mut self, name: &str, body: &[u8]) -> Result<(), RumourError> {
        let words = Words { name, body, only: "" };
        self.driver.act(|node, now, out| node.tell(now, words, out)).map(drop).map_err(refused)
    }

    /// Asks all members something. Answers come until their time is over; then the channel is closed.
    ///
    /// # Errors
    /// See [`RumourError`].
    pub fn ask(&mut self, question: &Question) -> Result<mpsc::Receiver<Answer>, RumourError> {
        if question.name.starts_with(RESERVED) {
            return Err(RumourError::Reserved(question.name.clone()));
        }
        self.waiting.take(self.driver.now())?;
        let only = question.only.join(",");
        let words = Words { name: &question.name, body: question.payload.as_bytes(), only: &only };
        self.ask_words(words, Duration::from_millis(question.timeout_ms), None)
    }

    /// Asks for the key rings of all members.
    ///
    /// # Errors
    /// When the node has left.
    pub fn ask_keys(&mut self, patience: Duration) -> Result<mpsc::Receiver<Answer>, RumourError> {
        self.waiting.take(self.driver.now())?;
        self.ask_words(Words { name: KEYS, body: b"", only: "" }, patience, None)
    }

    pub(super) fn ask_words(
        &mut self,
        words: Words<'_>,
        patience: Duration,
        one: Option<Addr>,
    ) -> Result<mpsc::Receiver<Answer>, RumourError> {
        // Nobody waits for these any more: they would take the places of others.
        let over: Vec<Id> = self.waiting.questions.iter().filter(|(_, q)| q.is_closed()).map(|(&id, _)| id).collect();
        for id in over {
            self.waiting.questions.remove(&id);
            self.driver.act(|node, _, _| node.forget(id));
        }
        let asked = self.driver.act(|node, now, out| match one {
            Some(to) => node.ask_one(now, to, words, patience, out),
            None => node.ask(now, words, patience, out),
        });
        let id = asked.map_err(refused)?;
        let (tell, told) = mpsc::channel(ANSWERS_MAX);
        self.waiting.questions.insert(id, tell);
        self.write_news();
        Ok(told)
    }

    /// Answers a question, once.
    ///
    /// # Errors
    /// See [`RumourError`].
    pub fn reply(&mut self, id: &str, payload: &str) -> Result<(), RumourError> {
        let unknown = || RumourError::NoQuestion(id.to_owned());
        let parsed = read_id(id).ok_or_else(unknown)?;
        self.reply_to(parsed, payload.as_bytes(), true).map_err(|code| match code {
            Code::InvalidEndpoint => unknown(),
            code => refused(code),
        })
    }

    pub(super) fn reply_to(&mut self, id: Id, body: &[u8], last: bool) -> Result<(), Code> {
        self.driver.act(|node, now, out| node.reply(now, id, body, last, out))
    }

    /// Asks a member for a sign of life; says how long that took, or `None` when it gave none.
    ///
    /// # Errors
    /// When there is no such member.
    pub fn ping(&mut self, name: &str) -> Result<oneshot::Receiver<Option<Duration>>, RumourError> {
        let to = self.addr_of(name).ok_or_else(|| RumourError::NoMember(name.to_owned()))?;
        self.waiting.take(self.driver.now())?;
        let number = self.driver.act(|node, now, out| node.ping(now, to, out)).map_err(refused)?;
        let (tell, told) = oneshot::channel();
        self.waiting.pings.insert(number, tell);
        Ok(told)
    }

    /// How far away neighbours are, as the traffic with them shows.
    #[must_use]
    pub fn round_trips(&self) -> Vec<RoundTrip> {
        let (engine, link) = (self.engine(), self.driver.node().link());
        let mut all: Vec<RoundTrip> = engine
            .neighbours()
            .filter_map(|slot| {
                let card = engine.card(slot)?;
                let ms = link.find(card.addr).and_then(|node| link.round_trip(node)).map(|d| d.as_secs_f64() * 1e3);
                Some(RoundTrip { name: card.name.as_str().to_owned(), ms })
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// A member that is gone is forgotten, by all.
    ///
    /// # Errors
    /// When there is no such member, or it is there.
    pub fn force_leave(&mut self, name: &str) -> Result<(), RumourError> {
        match self.members().iter().find(|m| m.name == name) {
            None => Err(RumourError::NoMember(name.to_owned())),
            Some(m) if m.state == State::Alive => Err(RumourError::Alive(name.to_owned())),
            Some(_) => self.say(FORGET, name.as_bytes()),
        }
    }

    /// A rumour arrived.
    pub(super) fn on_rumour(&mut self, news: News) {
        match news {
            News::Told { name, body, .. } if name == FORGET => {
                self.gone.retain(|_, m| m.name.as_bytes() != body);
            }
            News::Told { from, name, body } if !name.starts_with(RESERVED) => {
                let what = What::User { from, name, payload: text(&body) };
                self.journal.add(what);
            }
            News::Asked { id, name, .. } if name == KEYS => {
                let ring = serde_json::to_vec(&self.key_ring()).unwrap_or_default();
                // Who asked may be gone.
                let _ = self.reply_to(id, &ring, true);
            }
            News::Asked { id, from, name, body } if name == casts::RELAY => self.on_relay(id, from, body),
            News::Asked { id, name, .. } if name == zones::CENSUS => self.say_census(id),
            News::Asked { id, name, body, .. } if name == zones::DETAILS => self.say_zone(id, &body),
            News::Asked { id, ref name, ref body, .. } if self.on_job_question(id, name, body) => {}
            News::Details { zone } => self.on_details(&zone),
            News::Asked { id, from, name, body } if !name.starts_with(RESERVED) => {
                let what = What::Query { query: write_id(id), from, name, payload: text(&body) };
                self.journal.add(what);
            }
            News::Replied { id, from, body } => {
                let answer = Answer { from, payload: body.as_deref().map(text) };
                let Some(reader) = self.waiting.questions.get(&id) else { return };
                if let Err(mpsc::error::TrySendError::Closed(_)) = reader.try_send(answer) {
                    self.waiting.questions.remove(&id);
                    self.driver.act(|node, _, _| node.forget(id));
                }
            }
            News::Over { id } => _ = self.waiting.questions.remove(&id),
            News::Ponged { number, took } => {
                if let Some(tell) = self.waiting.pings.remove(&number) {
                    // Who asked may be gone.
                    let _ = tell.send(took);
                }
            }
            News::Rekeyed(keys) => self.on_keys(&keys),
            _ => {}
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A question as people and JSON write it.
fn write_id(id: Id) -> String {
    format!("{}-{}", crate::store::hex(&id.boot.0), id.number)
}

fn read_id(text: &str) -> Option<Id> {
    let (boot, number) = text.split_once('-')?;
    let digits = boot.as_bytes();
    if digits.len() != 32 || !boot.is_ascii() {
        return None;
    }
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(Id { boot: Boot(bytes), number: number.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_read_as_it_was_written() {
        let id = Id { boot: Boot(std::array::from_fn(|i| i as u8 * 16)), number: 77 };
        assert_eq!(read_id(&write_id(id)), Some(id));
        for bad in
            ["", "-", "00-1", &"é".repeat(16), &format!("{}-x", "0".repeat(32)), &format!("{}-1", "g".repeat(32))]
        {
            assert_eq!(read_id(bad), None, "{bad}");
        }
    }

    #[test]
    fn one_node_cannot_flood_all_others() {
        let mut waiting = Waiting::default();
        let told = (0..200).filter(|_| waiting.take(Instant::ZERO).is_ok()).count();
        assert_eq!(told, BURST as usize);
        assert_eq!(waiting.take(Instant::ZERO + EACH), Ok(()));
        assert_eq!(waiting.take(Instant::ZERO + EACH), Err(RumourError::Pace));
    }
}
