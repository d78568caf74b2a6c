//! What is cast: from readers of requests to the tree, and from the tree to whoever listens.
//!
//! Long casts are cut into pieces ([`phalanx_wire::piece`]), so that all links of the tree carry at once. The window of the tree says when
//! the next piece may leave. Who listens and does not keep up loses pieces and is told so: it holds up nobody else.

use super::{Agent, RumourError};
use phalanx_api::What;
use phalanx_api::casts::{Heading, Reached, Seat};
use phalanx_api::rumours::Answer;
use phalanx_core::{Addr, Duration, Instant};
use phalanx_protocol::cast::{CastError, Id};
use phalanx_protocol::member::Engine;
use phalanx_protocol::node::casts::Refused;
use phalanx_protocol::rumour::{Id as Question, Words};
use phalanx_protocol::zone::hierarchy::Role;
use phalanx_wire::piece::{Kind, NAME_MAX, Piece};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Said to all members: fill the holes of the tree.
const REPAIR: &str = "phalanx.cast.repair";
/// Asked of a member of another zone: cast this in yours.
pub(super) const RELAY: &str = "phalanx.cast.relay";
/// A piece that is passed on to another zone is cast there within this time.
const RELAY_PATIENCE: Duration = Duration::from_secs(20);
/// Zones, and who passes casts on there, are asked for again after so long.
const KNOWN_FOR: Duration = Duration::from_secs(2);
/// Pieces of other zones that wait for our window.
const RELAYED_MAX: usize = 1024;
/// Pieces that wait for a listener; past it they are lost to it.
const HEARD_MAX: usize = 1024;
/// Listeners at once.
const LISTENERS_MAX: usize = 64;

/// Whom a cast is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum To {
    /// All members of the cluster.
    All,
    /// All members of the node's own zone.
    Here,
    /// Members of these names.
    Members(Vec<String>),
    /// The tasks of a job.
    Job(String),
    /// All members of another zone.
    Zone(String),
}

/// Why nothing, or not all, was cast.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CastRefused {
    /// What the node says.
    #[error(transparent)]
    Node(#[from] Refused),
    /// A name.
    #[error("a cast's name has at most {NAME_MAX} bytes")]
    Name,
    /// No tasks.
    #[error("no member of this zone has tasks of a job {0}: see `phalanx view`")]
    NoJob(String),
    /// Too many.
    #[error("{LISTENERS_MAX} listen already: end one of them")]
    Listeners,
    /// It has left.
    #[error("the node has left the cluster")]
    Left,
}

/// What became of a piece.
pub enum Sent {
    /// It is under way; this tells who died before it had it, when all others have it.
    Under(oneshot::Receiver<Vec<String>>),
    /// The window is full; this tells when it is not.
    Full(oneshot::Receiver<()>),
}

/// Something that was cast, for those who listen.
#[derive(Debug)]
pub struct Heard {
    /// What it is.
    pub heading: Heading,
    /// A piece of it.
    pub data: Vec<u8>,
}

/// Casts that are under way, and who listens.
#[derive(Debug, Default)]
pub(super) struct Casting {
    streams: u64,
    waiting: BTreeMap<(bool, u64), Waiter>,
    full: Vec<oneshot::Sender<()>>,
    /// Pieces of other zones that wait for room.
    relayed: VecDeque<(Question, String, Vec<u8>)>,
    listeners: Vec<Listener>,
    /// Members of other zones that pass casts on there, and until when they are believed to.
    elsewhere: Option<(Instant, Vec<(String, SocketAddr)>)>,
}

/// Who waits until a cast has settled.
#[derive(Debug)]
enum Waiter {
    Here(oneshot::Sender<Vec<String>>),
    /// Somebody in another zone, which was to reach so many.
    Elsewhere(Question),
}

#[derive(Debug)]
struct Listener {
    tell: mpsc::Sender<Arc<Heard>>,
    /// Pieces that it lost.
    lost: u64,
}

/// The tree of a node in this place.
pub(super) fn tree(role: &Role) -> &str {
    match role {
        Role::Base { zone, .. } => zone.as_str(),
        Role::Alone => "",
        Role::Management => "\u{0}management",
    }
}

impl Agent {
    /// The number of a new stream of casts; its destinations are checked.
    ///
    /// # Errors
    /// See [`CastRefused`].
    pub fn begin_cast(&mut self, to: &To, name: &str) -> Result<(u64, To), CastRefused> {
        if self.leaving.is_some() {
            return Err(CastRefused::Left);
        }
        if name.len() > NAME_MAX {
            return Err(CastRefused::Name);
        }
        let to = match to {
            To::Job(job) => {
                let mut nodes: Vec<String> =
                    self.job_posts().into_iter().filter(|(j, _)| j == job).map(|(_, post)| post.node).collect();
                nodes.sort_unstable();
                nodes.dedup();
                if nodes.is_empty() {
                    return Err(CastRefused::NoJob(job.clone()));
                }
                To::Members(nodes)
            }
            To::Zone(zone) if self.engine().name().is_some_and(|own| own.as_str() == zone) => To::Here,
            to => to.clone(),
        };
        if self.driver.node().caster().is_none() {
            return Err(Refused::Seatless.into());
        }
        if let To::Members(names) = &to {
            let seated: Vec<String> = self.cast_seats().into_iter().map(|s| s.name).collect();
            if let Some(unknown) = names.iter().find(|n| !seated.contains(n)) {
                return Err(Refused::Unknown(unknown.clone()).into());
            }
        }
        self.casting.streams += 1;
        Ok((self.casting.streams, to))
    }

    /// Casts a piece.
    ///
    /// # Errors
    /// See [`CastRefused`].
    pub fn cast_piece(&mut self, to: &To, piece: &Piece<'_>) -> Result<Sent, CastRefused> {
        let mut body = Vec::with_capacity(piece.data.len() + 2 * NAME_MAX);
        piece.encode(&mut body);
        let sent = self.driver.act(|node, now, out| match to {
            To::All | To::Here | To::Job(_) | To::Zone(_) => node.broadcast(now, &body, out),
            To::Members(names) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                node.multicast(now, &names, &body, out)
            }
        });
        let sent = match sent {
            Ok(number) => {
                let (tell, told) = oneshot::channel();
                self.casting.waiting.insert((!matches!(to, To::Members(_)), number), Waiter::Here(tell));
                Sent::Under(told)
            }
            Err(Refused::Cast(CastError::Busy)) => {
                let (tell, told) = oneshot::channel();
                self.casting.full.push(tell);
                Sent::Full(told)
            }
            Err(other) => return Err(other.into()),
        };
        self.write_news();
        Ok(sent)
    }

    /// ST-6: all members fill the holes of the tree now.
    ///
    /// # Errors
    /// As long as the node has no seat itself.
    pub fn repair_all(&mut self) -> Result<(), CastRefused> {
        if self.cast_event(REPAIR, b"") { Ok(()) } else { Err(Refused::Seatless.into()) }
    }

    /// Sits where a directory outside says.
    pub fn take_seat(&mut self, seat: u32, life: u64) {
        self.driver.act(|node, now, _| node.take_seat(now, Id(seat), life));
    }

    /// Who sits where in the tree of casts.
    #[must_use]
    pub fn cast_seats(&self) -> Vec<Seat> {
        let (node, engine) = (self.driver.node(), self.engine());
        let Some(caster) = node.caster() else { return Vec::new() };
        let name = |slot| engine.card(slot).map(|c| c.name.as_str().to_owned());
        let parent = |id: Id| caster.tree().parent(id).map(|p| p.0);
        let seats = node.seats().into_iter().filter(|(id, _)| caster.lives(*id));
        seats.filter_map(|(id, slot)| Some(Seat { seat: id.0, name: name(slot)?, parent: parent(id) })).collect()
    }

    /// What is cast from now on.
    ///
    /// # Errors
    /// When too many listen.
    pub fn listen(&mut self) -> Result<mpsc::Receiver<Arc<Heard>>, CastRefused> {
        self.casting.listeners.retain(|l| !l.tell.is_closed());
        if self.casting.listeners.len() >= LISTENERS_MAX {
            return Err(CastRefused::Listeners);
        }
        let (tell, told) = mpsc::channel(HEARD_MAX);
        self.casting.listeners.push(Listener { tell, lost: 0 });
        Ok(told)
    }

    /// An event for all members, over the tree. False when there is none yet, or when its window is full.
    pub(super) fn cast_event(&mut self, name: &str, body: &[u8]) -> bool {
        let piece = Piece { kind: Kind::Event, stream: 0, offset: 0, last: true, from: "", name, data: body };
        let mut bytes = Vec::new();
        piece.encode(&mut bytes);
        let sent = self.driver.act(|node, now, out| node.broadcast(now, &bytes, out)).is_ok();
        self.write_news();
        sent
    }

    /// All have what we cast, up to this one.
    pub(super) fn on_settled(&mut self, whole: bool, number: u64, missed: &[String]) {
        let casting = &mut self.casting;
        // Who asked may be gone.
        casting.full.drain(..).for_each(|tell| _ = tell.send(()));
        let done = if whole {
            let later = casting.waiting.split_off(&(true, number + 1));
            let done = casting.waiting.split_off(&(true, 0));
            casting.waiting.extend(later);
            done
        } else {
            casting.waiting.remove(&(whole, number)).map(|waiter| ((whole, number), waiter)).into_iter().collect()
        };
        for waiter in done.into_values() {
            match waiter {
                Waiter::Here(tell) => _ = tell.send(missed.to_vec()),
                Waiter::Elsewhere(question) => self.say_relayed(question),
            }
        }
        while let Some((question, from, body)) = self.casting.relayed.pop_front() {
            if !self.relay(question, from, body) {
                break;
            }
        }
    }

    /// Passes a piece on to a member of another zone, which casts it there.
    ///
    /// # Errors
    /// When the node has left.
    pub fn relay_piece(&mut self, to: SocketAddr, piece: &Piece<'_>) -> Result<mpsc::Receiver<Answer>, RumourError> {
        let mut body = Vec::new();
        piece.encode(&mut body);
        self.ask_words(Words { name: RELAY, body: &body, only: "" }, RELAY_PATIENCE, Some(Addr::Ip(to)))
    }

    /// Members of other zones that pass casts on there; `None` when they are to be found again.
    #[must_use]
    pub fn elsewhere(&self) -> Option<Vec<(String, SocketAddr)>> {
        let known = self.casting.elsewhere.as_ref().filter(|known| self.driver.now() < known.0);
        known.map(|(_, members)| members.clone())
    }

    /// These were found; without them, those that were known do not pass casts on.
    pub fn set_elsewhere(&mut self, members: Option<Vec<(String, SocketAddr)>>) {
        let until = self.driver.now() + KNOWN_FOR;
        self.casting.elsewhere = members.map(|members| (until, members));
    }

    /// A member of another zone wants something cast in ours.
    pub(super) fn on_relay(&mut self, question: Question, from: String, body: Vec<u8>) {
        if self.casting.relayed.is_empty() {
            self.relay(question, from, body);
        } else if self.casting.relayed.len() < RELAYED_MAX {
            self.casting.relayed.push_back((question, from, body));
        }
    }

    /// Casts it; false when it waits for room.
    fn relay(&mut self, question: Question, from: String, body: Vec<u8>) -> bool {
        let Ok(piece) = Piece::parse(&body) else { return true };
        let mut bytes = Vec::with_capacity(body.len() + from.len());
        Piece { from: &from, ..piece }.encode(&mut bytes);
        match self.driver.act(|node, now, out| node.broadcast(now, &bytes, out)) {
            Ok(number) => {
                self.casting.waiting.insert((true, number), Waiter::Elsewhere(question));
                // It may have settled already.
                self.write_news();
                true
            }
            Err(Refused::Cast(CastError::Busy)) => {
                self.casting.relayed.push_front((question, from, body));
                false
            }
            // Who asked hears nothing, and tries another member.
            Err(_) => true,
        }
    }

    fn say_relayed(&mut self, question: Question) {
        let reached = Reached { reached: self.cast_seats().len(), missed: Vec::new(), bytes: 0, us: 0 };
        self.say_part(question, &reached, true);
    }

    /// Something was cast to us.
    pub(super) fn on_cast(&mut self, from: String, whole: bool, body: &[u8]) {
        let Ok(piece) = Piece::parse(body) else { return };
        let Piece { kind, stream, offset, last, from: origin, name, data } = piece;
        let from = if origin.is_empty() { from } else { origin.to_owned() };
        match kind {
            Kind::Event if name == REPAIR => return self.driver.act(|node, now, _| node.repair(now)),
            Kind::Event => {
                let payload = String::from_utf8_lossy(data).into_owned();
                self.journal.add(What::User { from, name: name.to_owned(), payload });
                return;
            }
            Kind::Job | Kind::Cast => {}
        }
        let (name, bytes) = (name.to_owned(), data.len() as u64);
        let heading = Heading { from, stream, offset, last, name, whole, bytes, lost: 0 };
        if kind == Kind::Job {
            return self.jobs.iter().for_each(|jobs| jobs.cast(&heading, data));
        }
        if self.casting.listeners.is_empty() {
            return;
        }
        let heard = Arc::new(Heard { heading, data: data.to_vec() });
        self.casting.listeners.retain_mut(|l| l.hear(&heard));
    }
}

impl Listener {
    /// False when it is gone.
    fn hear(&mut self, heard: &Arc<Heard>) -> bool {
        let told = match self.lost {
            0 => Arc::clone(heard),
            lost => Arc::new(Heard { heading: Heading { lost, ..heard.heading.clone() }, data: heard.data.clone() }),
        };
        match self.tell.try_send(told) {
            Ok(()) => self.lost = 0,
            Err(mpsc::error::TrySendError::Full(_)) => self.lost += 1,
            Err(mpsc::error::TrySendError::Closed(_)) => return false,
        }
        true
    }
}
