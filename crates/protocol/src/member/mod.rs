//! Membership: the interface that all engines share, and its words.
//!
//! An engine says who is there. `zone` is the product's; the baselines of BL-1 answer the same questions, so that any
//! engine can be compared with any other, in the simulator and on real sockets. An [`Engine`] is a machine that hears
//! what the link hears and decides what the link shall send; [`Event`]s are what the rest of the node lives on.
//!
//! Engines name peers by address, because that is all a bootstrap list has; members by [`Slot`], their place in the
//! [`Roster`]. The node translates addresses to the link's own numbers.
//!
//! | file | idea |
//! |---|---|
//! | `version` | `⟨incarnation, minor⟩` (ZN-1) |
//! | `card` | who a member is, and where |
//! | `roster` | identities as small numbers; one roster for many members in large simulated runs |

mod card;
mod roster;
mod version;

pub use card::{Card, NAME_MAX, Name, NameError};
pub use roster::{Frozen, Roster, Slot, Vitals};
pub use version::Version;

use phalanx_core::{Addr, Boot, Code, Group, Identity, Instant, Machine, Payload, Sink, Snapshot};
use std::sync::Arc;

/// A peer as the link knows it: its session is proved.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Peer {
    /// An address at which it is reached.
    pub addr: Addr,
    /// Who it says it is.
    pub identity: Identity,
    /// This start of it.
    pub boot: Boot,
}

/// What an engine hears.
#[derive(Debug)]
pub enum Input<'a> {
    /// A datagram came.
    Datagram {
        /// From whom.
        from: Peer,
        /// It came through a group.
        group: bool,
        /// What it says.
        bytes: &'a [u8],
    },
    /// A reliable message came, in the order of sending.
    Message {
        /// From whom.
        from: Peer,
        /// What it says.
        payload: Payload<'a>,
    },
    /// A session with a peer was proved. Reliable traffic with it begins anew: what was under way is lost.
    Up {
        /// With whom.
        peer: Peer,
    },
    /// The link gave up on a peer, or could not take a message for it: what was under way is lost.
    Down {
        /// Where it was.
        addr: Addr,
        /// Why.
        code: Code,
    },
    /// The host of this address answered that nobody listens there. A hint: it may be forged.
    Refused {
        /// The address.
        addr: Addr,
    },
    /// The tripwire with a peer is up, whoever asked for it.
    Wired {
        /// Where it is.
        addr: Addr,
    },
    /// The tripwire with a peer is gone: closed, reset, or never accepted.
    Tripped {
        /// Where it is.
        addr: Addr,
    },
}

/// What an engine decides.
#[derive(Debug)]
pub enum Output<'a> {
    /// Send a datagram.
    Datagram {
        /// Where to.
        to: Addr,
        /// What it says.
        bytes: &'a [u8],
    },
    /// Send a datagram to all of a multicast group.
    Cast {
        /// Which group, and how far.
        group: Group,
        /// What it says.
        bytes: &'a [u8],
    },
    /// Hear a multicast group from now on.
    Hear {
        /// Its number.
        group: u16,
    },
    /// Send a reliable message.
    Message {
        /// Where to.
        to: Addr,
        /// What it says. On real networks it is encoded, in very large simulated runs it travels as it is.
        message: &'a Arc<dyn Snapshot>,
        /// For the engine of the other plane there: from a base zone up to the management zone, or down.
        across: bool,
    },
    /// Hold an idle stream to this peer, and say when it breaks.
    Wire {
        /// Where to.
        to: Addr,
    },
    /// Let go of the stream with this peer.
    Unwire {
        /// Where it is.
        to: Addr,
    },
    /// Nothing is to be said to this peer any more: the link may forget it once what was sent has arrived.
    Release {
        /// Where it is.
        addr: Addr,
    },
    /// Membership changed.
    Event(Event<'a>),
}

/// What changed, as everybody above an engine hears it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// ZN-1 NOTIFY-JOIN: the member is there, newly or again.
    Joined {
        /// Who.
        member: Slot,
        /// In which version.
        version: Version,
    },
    /// ZN-1 NOTIFY-LEAVE: the member is gone, or behind a partition.
    Left {
        /// Who.
        member: Slot,
        /// The version that is gone.
        version: Version,
        /// Why.
        why: Why,
    },
    /// AT-3: a member's attribute changed.
    Attribute {
        /// Whose.
        member: Slot,
        /// Which one.
        key: &'a str,
        /// Its value; `None` when it was removed.
        value: Option<&'a [u8]>,
    },
    /// Two living members have the name of ours: both are told. `holder` keeps it, `loser` must rename itself or leave.
    Name {
        /// Who began first.
        holder: Slot,
        /// The other one; `None` when there is none any more.
        loser: Option<Slot>,
    },
    /// HI-3: the details of a zone that were asked for are there, or its guard does not know it.
    Details {
        /// The zone's name.
        zone: &'a str,
    },
}

/// Why a member left.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Why {
    /// Others found it dead or out of reach: the verdict that jobs and trees act on.
    Failed,
    /// It said so, with this exit code.
    Departed(u8),
    /// HI-1: it is in another zone now; or the observer is, and sees its old zone no more. It lives.
    Moved,
    /// A new incarnation took its place.
    Replaced,
}

/// A sink for what engines decide.
pub trait Out: for<'a> Sink<Output<'a>> {}
impl<S: for<'a> Sink<Output<'a>>> Out for S {}

/// TG-4: how a node knows that a member lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Origin {
    /// It hears it, and finds out itself when it is dead. It hears itself, too.
    Heard,
    /// It is told, and told of its death, by a leader most often; by nobody while another one is awaited who will.
    Told(Option<Slot>),
}

/// A membership engine.
pub trait Engine: for<'a> Machine<Input<'a> = Input<'a>, Output<'a> = Output<'a>> {
    /// Our own place.
    fn me(&self) -> Slot;
    /// The version in which `member` is in the view; `None` when it is not.
    fn version(&self, member: Slot) -> Option<Version>;
    /// Who is behind a number. Stays known for a while after the member left.
    fn card(&self, member: Slot) -> Option<&Card>;
    /// All members in the view, ourselves included, by slot.
    fn members(&self) -> impl Iterator<Item = (Slot, Version)>;
    /// How many they are.
    fn len(&self) -> usize;
    /// True when nobody is there, not even we: after an orderly leave.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// TG-9: ours speaks for all members, to other data centres. One does where all see the same: the one with the lowest identity, unless there
    /// are leaders.
    fn speaks(&self) -> bool {
        let lowest = self.members().filter_map(|(slot, _)| Some((self.card(slot)?.identity, slot))).min();
        lowest.is_some_and(|(_, slot)| slot == self.me())
    }
    /// Where the members are that ours holds links with: what all shall hear is passed on to them.
    fn linked(&self) -> Vec<Addr> {
        Vec::new()
    }
    /// AT-1: writes one of our own attributes, or removes it.
    ///
    /// # Errors
    /// `InvalidArgs` when key or value are over their caps, `LocalResource` when there are too many. Nothing changed
    /// then.
    fn set(&mut self, now: Instant, key: &str, value: Option<&[u8]>) -> Result<(), Code>;
    /// Members may be at these places, too: they are asked in time. Engines that look for nobody need not care.
    fn seek(&mut self, _now: Instant, _seeds: &[Addr], _out: &mut impl Out) {}
    /// Takes another name: whoever was told that somebody else holds its own should.
    ///
    /// # Errors
    /// `InvalidArgs` when the engine's members cannot change names, `NotInitialized` after leaving. Nothing changed then.
    fn rename(&mut self, _now: Instant, _name: &Name) -> Result<(), Code> {
        Err(Code::InvalidArgs)
    }
    /// What `member` says under `key`.
    fn attribute(&self, member: Slot, key: &str) -> Option<&[u8]>;
    /// All that `member` says, by key.
    fn attributes(&self, member: Slot) -> impl Iterator<Item = (&str, &[u8])>;
    /// TG-4: how we know that `member` lives. `None` when it does not, and for engines that watch all alike.
    fn origin(&self, _member: Slot) -> Option<Origin> {
        None
    }
    /// Leaves in an orderly way: all are told, with an exit code. Nothing is sent afterwards.
    fn leave(&mut self, now: Instant, code: u8, out: &mut impl Out);
    /// HI-1: leaves its zone for another, in the same life and with the same attributes. `seeds` are where members of
    /// that zone may be, beside those whom the old zone and the supervisors know. False when it is in that zone already.
    ///
    /// # Errors
    /// `InvalidArgs` for engines without zones and for supervisors, `NotInitialized` after a leave. Nothing changed then.
    fn relocate(&mut self, now: Instant, zone: &Name, seeds: &[Addr], out: &mut impl Out) -> Result<bool, Code> {
        let _ = (now, zone, seeds, out);
        Err(Code::InvalidArgs)
    }
}
