//! What a steward is told, and what it decides.

use super::RELAY_MIN;
use crate::manager::agent;
use crate::manager::group::Group;
use crate::manager::herald::Place;
use crate::manager::replica::Counters;
use crate::manager::state::NodeInfo;
use crate::manager::words::{Answer, Command, Key, Report};
use crate::member::Peer;
use crate::node::Carriage;
use crate::order;
use phalanx_core::{Addr, Sink};

/// What a steward is told at its start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The cluster's name: signatures of another one do not count.
    pub cluster: String,
    /// Which start of this node: larger than each before, and what the zone says of it.
    pub incarnation: u64,
    /// So many nodes found the first group. None here founds a group without it; one that exists is joined in any case.
    pub expect: Option<u32>,
    /// What the clock shows at [`Instant::ZERO`], in milliseconds since 1970.
    pub unix_ms: u64,
    /// The longest packet that goes signed in a datagram.
    pub signed_max: usize,
    /// A word for so many agents or more is handed on by them; fewer are told by the replicas themselves.
    pub relay_min: usize,
    /// Times and bounds of the order.
    pub order: order::Config,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster: String::new(),
            incarnation: 1,
            expect: None,
            unix_ms: 0,
            signed_max: 1024,
            relay_min: RELAY_MIN,
            order: order::Config::default(),
        }
    }
}

/// What was found on disk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stored {
    /// Records of orders, in the order of their writing, with their epochs.
    pub order: Vec<(u32, Vec<u8>)>,
    /// The newest record of each other kind.
    pub group: Option<Vec<u8>>,
    /// See [`Record::Acceptor`].
    pub acceptor: Option<Vec<u8>>,
    /// See [`Record::State`].
    pub state: Option<Vec<u8>>,
    /// See [`Record::Executed`].
    pub executed: Option<Vec<u8>>,
}

/// What has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input<'a> {
    /// Another node's steward says something.
    Heard {
        /// Who; its session is proved.
        from: Peer,
        /// How it came.
        carriage: Carriage,
        /// What.
        bytes: &'a [u8],
    },
    /// The zone says that this node is there, or changed; the own one too.
    Seen {
        /// The node.
        node: NodeInfo,
        /// How often this start of it had to speak up for itself.
        minor: u32,
    },
    /// The zone says that it is gone.
    Gone {
        /// Which node.
        node: Key,
        /// Which start of it.
        incarnation: u64,
        /// How often that had to speak up for itself.
        minor: u32,
    },
    /// There are several zones, and this node has this place among them from now on.
    Placed {
        /// Which.
        place: Place,
    },
    /// A record is on disk.
    Persisted {
        /// What its `Persist` said.
        token: u64,
    },
    /// A shepherd here reports something.
    Reported {
        /// What.
        report: Report,
    },
}

/// Something for the disk. Of each kind the last one counts, but for orders, of which all do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// A record of an order: kept in the order of writing.
    Order {
        /// Of which epoch.
        epoch: u32,
        /// Once it is durable, all before it of the same epoch may be deleted.
        replaces: bool,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The group, and the way to it.
    Group(&'a [u8]),
    /// What was promised while a group was being founded.
    Acceptor(&'a [u8]),
    /// The state. Once it is durable, records of orders of epochs before its own need not be kept, but for the one right before.
    State {
        /// Of which epoch.
        epoch: u32,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Which commands were carried out here.
    Executed(&'a [u8]),
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output<'a> {
    /// Say this to another node's steward.
    Send {
        /// Where it is.
        to: Addr,
        /// How.
        carriage: Carriage,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Keep this, and answer `Persisted`.
    Persist {
        /// To name it in the answer.
        token: u64,
        /// What.
        record: Record<'a>,
    },
    /// Carry this out: most of the group said so. In order; again only after a crash, when the last ones were not yet on disk.
    Do {
        /// What.
        command: &'a Command,
    },
    /// The answer to what somebody here asked.
    Answered {
        /// What [`Steward::ask`] said.
        number: u64,
        /// The answer.
        answer: &'a Answer,
    },
    /// What somebody here wanted to see.
    Shown {
        /// What [`Steward::look`] said.
        number: u64,
        /// The plain structures of the state, as [`encode`] writes them.
        bytes: &'a [u8],
    },
    /// Ranks here may live for so long from now on.
    Lease {
        /// In milliseconds.
        ms: u64,
    },
    /// This node's agent does not answer: the zone is to look into it.
    Suspect {
        /// Which node.
        node: Key,
    },
    /// The group is another one, or what is wrong with it has changed.
    Group {
        /// The group.
        group: &'a Group,
        /// What is wrong, in words; empty when nothing is.
        trouble: &'a str,
    },
}

/// A sink for what stewards decide.
pub trait Out: for<'a> Sink<Output<'a>> {}
impl<S: for<'a> Sink<Output<'a>>> Out for S {}

/// How the manager does, as this node sees it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// Which composition of the group; 0 when none is known.
    pub epoch: u32,
    /// Names and keys of those who have seats.
    pub seats: Vec<(String, Key)>,
    /// This node has one of them, and its replica runs.
    pub replica: bool,
    /// Who leads, as far as a replica here knows.
    pub leader: Option<Key>,
    /// Replicas heard lately, by the replica here.
    pub heard: Vec<Key>,
    /// Something can be decided, as far as the replica here knows.
    pub decides: bool,
    /// The last entry of the order that was applied here.
    pub index: u64,
    /// What is wrong, in words; empty when nothing is.
    pub trouble: String,
    /// What happened how often.
    pub counters: Counters,
    /// What the agent refused.
    pub refused: agent::Refused,
}
