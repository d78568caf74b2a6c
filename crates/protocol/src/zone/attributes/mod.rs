//! Attributes: each node writes a map of its own, and everybody holds a replica of everybody's.
//!
//! AT-1, AT-2, AT-3; 002 §4, Algorithm 2. After a change, a digest of what changed goes to all neighbours (Update); who
//! has less asks one of those who have more (Request) and gets what it lacks (Reply). A new neighbour gets the digest
//! of everything. When nothing is written and nobody moves, nothing is sent.
//!
//! | file | idea |
//! |---|---|
//! | `map` | one map: versions, death certificates, merging |
//! | `wants` | who offers what, and who is asked for it |
//! | `notes` | digests about members that are not in the view |
//! | `state` | what a node holds; asking one, asking all |
//! | `update`, `request`, `reply` | the three handlers of Algorithm 2 |
//! | `terms` | bounds, configuration, counters |
//!
//! ⚠ Where Algorithm 2 has holes, and how they are closed:
//!
//! - *Lives.* A digest or reply of an owner's former life may be under way when it returns with version 0 and would
//!   overwrite or block the new map. All messages carry the incarnation, and it is compared first.
//! - *Members not (yet) in the view.* Digests about them are noted, see `notes`. For the same reason what was known of a
//!   map is remembered when its owner leaves: after a false alarm it returns in the same life, no neighbour has news,
//!   and no digest would come. Then the neighbours are asked one after the other.
//! - *A reply that comes late* (line 21 takes the maximum of versions): to a replica that was dropped and begun anew it
//!   brings the newest entries, and the older ones would never be asked for. A piece says where it begins, and one that
//!   begins later than our map ends is dropped.
//! - *Line 4* asks again for what is under way when a newer version is offered, ignores offers of a lower one, and waits
//!   for ever for a neighbour that promised `u64::MAX`: see `wants`. So lines 18 to 22 ask whoever else offers the map,
//!   and all neighbours at once (`push`) only when nobody is known to have it: a push to all brings a copy from each.
//! - *Line 13* sends a reply even when it is empty. We send none to a push: nobody waits for it.
//! - *A reply without bound.* One request is answered by one message; what does not fit is asked for again (`more`), or,
//!   after a push, offered by an update. A map is never cut, because a whole one fits in a message: a reader sees only
//!   states that the owner had.
//! - *Death certificates* are kept for ever: see `map`.
//! - *Forged versions of our own map* would win over what we write. Digests go to all neighbours, so a lie that spreads
//!   comes to us too; then we step above it, and everyone fetches our whole map again. (An insider who claims
//!   `VERSION_MAX` itself leaves no number above; then only a new incarnation helps. Signed maps would be the full
//!   answer.)
//! - *The full digest* holds maps that have something: a member without attributes costs neither bytes nor memory.
//!
//! Digests leave when [`Pace`](super::pace::Pace) says: the paper waits a round on each hop.
//!
//! The link must keep the order of messages, and both sides must know that they are neighbours before the other's first
//! digest can arrive: an update of somebody else is dropped and not repeated. When a link lost messages, both sides call
//! [`Attributes::on_neighbour`] again.

mod map;
mod notes;
mod reply;
mod request;
mod state;
mod terms;
mod update;
mod wants;

#[cfg(test)]
mod net;
#[cfg(test)]
mod storms;
#[cfg(test)]
mod tests;

use crate::member::Slot;
use phalanx_core::{Code, Fingerprint, Identity, Instant, Sink};
use phalanx_wire::attribute::Packet;
use state::{At, State};
pub use terms::{
    CERTIFICATES_MAX, Config, Counters, Dropped, ENTRIES_MAX, KEY_MAX, KEYS_MAX, MAP_MAX, NOTES_MAX, VALUE_MAX,
    VERSION_MAX,
};

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output<'a> {
    /// Send a reliable message.
    Send {
        /// To whom.
        to: Slot,
        /// What it says.
        bytes: &'a [u8],
    },
    /// AT-3: an attribute of another member changed. For one member in the order of its writes; a write that was
    /// overwritten before it came here is skipped. When a member leaves, its attributes go with it, without a word.
    Changed {
        /// Whose.
        member: Slot,
        /// Which one.
        key: &'a str,
        /// Its value; `None` when it was removed.
        value: Option<&'a [u8]>,
    },
}

/// Slots are local to a node, identities go on the wire. Ourselves are in the view.
pub trait Names {
    /// Who is behind a slot; known for those in the view, and while [`Attributes::on_left`] is told.
    fn identity(&self, slot: Slot) -> Option<Identity>;
    /// The slot of a member that is in the view.
    fn slot(&self, identity: &Identity) -> Option<Slot>;
    /// The incarnation in which a member is in the view.
    fn incarnation(&self, slot: Slot) -> Option<u64>;
}

/// A sink for our outputs.
pub trait Out: for<'a> Sink<Output<'a>> {}
impl<S: for<'a> Sink<Output<'a>>> Out for S {}

/// The attributes of all members, as one node knows them.
///
/// A node that neither wrote an attribute nor heard of one holds nothing but its list of neighbours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attributes {
    me: Slot,
    config: Config,
    /// Sorted.
    neighbours: Vec<Slot>,
    state: Option<Box<State>>,
}

impl Attributes {
    /// Nothing is known, nobody is near.
    #[must_use]
    pub const fn new(me: Slot, config: Config) -> Self {
        Self { me, config, neighbours: Vec::new(), state: None }
    }

    /// True when nobody wrote an attribute or spoke of one: then joins and leaves need not be told.
    #[must_use]
    pub const fn is_unused(&self) -> bool {
        self.state.is_none()
    }

    /// AT-1: writes an attribute of our own, or removes it. What is there already changes nothing and sends nothing.
    ///
    /// # Errors
    /// `InvalidArgs` when key or value are over their caps, `LocalResource` when the map is full. Nothing changed then.
    pub fn set(&mut self, now: Instant, key: &str, value: Option<&[u8]>) -> Result<(), Code> {
        self.state.get_or_insert_default().write(now, self.me, &self.config, key, value)
    }

    /// What `member` says under `key`.
    #[must_use]
    pub fn get(&self, member: Slot, key: &str) -> Option<&[u8]> {
        self.state.as_ref()?.maps.get(&member)?.map.get(key)
    }

    /// All that `member` says, by key.
    pub fn map(&self, member: Slot) -> impl Iterator<Item = (&str, &[u8])> {
        self.state.iter().filter_map(move |s| s.maps.get(&member)).flat_map(|r| r.map.iter())
    }

    /// All members that say something under `key`, by slot.
    pub fn with(&self, key: &str) -> impl Iterator<Item = (Slot, &[u8])> {
        self.state.iter().flat_map(|s| &s.maps).filter_map(move |(&slot, r)| Some((slot, r.map.get(key)?)))
    }

    /// The version up to which we hold the map of `member`; zero when we hold nothing.
    #[must_use]
    pub fn version(&self, member: Slot) -> u64 {
        self.state.as_ref().and_then(|s| s.maps.get(&member)).map_or(0, |r| r.map.version())
    }

    /// A member joined, with its identity and incarnation in `names` already: what we heard of its map before is asked
    /// for. Also for ourselves, when our own incarnation has risen: others shall hear of our map in it.
    pub fn on_joined(&mut self, now: Instant, member: Slot, names: &impl Names, out: &mut impl Out) {
        if let Some((state, at)) = self.split(now, names) {
            state.on_joined(&at, member, out);
        }
    }

    /// AT-1: a member left, or a new incarnation takes its place: its replica is dropped. `names` still knows who it was.
    /// Whether it is a neighbour is told apart: one that restarted may be a neighbour again before its old life is over
    /// for us.
    pub fn on_left(&mut self, now: Instant, member: Slot, names: &impl Names) {
        if let Some((state, at)) = self.split(now, names) {
            state.on_left(&at, member);
        }
    }

    /// AT-2: a neighbour is new, or what was under way to it was lost: the full digest goes to it.
    pub fn on_neighbour(&mut self, now: Instant, neighbour: Slot, names: &impl Names, out: &mut impl Out) {
        self.on_neighbour_lost(now, neighbour, names, out);
        if let Err(at) = self.neighbours.binary_search(&neighbour) {
            self.neighbours.insert(at, neighbour);
        }
        if let Some((state, at)) = self.split(now, names) {
            state.introduce(&at, neighbour, out);
        }
    }

    /// AT-2: a neighbour is gone: what it was asked for others are asked for.
    pub fn on_neighbour_lost(&mut self, now: Instant, neighbour: Slot, names: &impl Names, out: &mut impl Out) {
        let Ok(at) = self.neighbours.binary_search(&neighbour) else { return };
        self.neighbours.remove(at);
        if let Some((state, at)) = self.split(now, names) {
            state.on_neighbour_lost(&at, neighbour, out);
        }
    }

    /// A message came. Any bytes will do: what makes no sense is dropped and counted.
    pub fn on_message(&mut self, now: Instant, from: Slot, bytes: &[u8], names: &impl Names, out: &mut impl Out) {
        self.state.get_or_insert_default();
        let Some((state, at)) = self.split(now, names) else { return };
        match Packet::parse(bytes) {
            Ok(Packet::Update(digest)) => state.on_update(&at, from, digest, out),
            Ok(Packet::Request { digest, push, number }) => state.on_request(&at, from, digest, push, number, out),
            Ok(Packet::Reply { pieces, more, number }) => state.on_reply(&at, from, pieces, more, number, out),
            Err(why) => state.counters.drop(why.into()),
        }
    }

    /// When to call [`Attributes::expire`] next; [`Instant::NEVER`] when idle.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.state.as_ref().map_or(Instant::NEVER, |s| s.pace.due_at().min(s.wants.deadline()))
    }

    /// [`Attributes::deadline`] has passed.
    pub fn expire(&mut self, now: Instant, names: &impl Names, out: &mut impl Out) {
        if let Some((state, at)) = self.split(now, names) {
            state.send_news(&at, out);
            state.end_patience(&at, out);
        }
    }

    /// What was done and dropped.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.state.as_ref().map_or(Counters::NONE, |s| &s.counters)
    }

    /// Adds the state to `print`, without the counters.
    pub fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.me).add(&self.neighbours);
        if let Some(state) = &self.state {
            state.fingerprint(print);
        }
    }

    fn split<'a, N>(&'a mut self, now: Instant, names: &'a N) -> Option<(&'a mut State, At<'a, N>)> {
        let at = At { now, me: self.me, config: &self.config, neighbours: &self.neighbours, names };
        Some((self.state.as_deref_mut()?, at))
    }
}
