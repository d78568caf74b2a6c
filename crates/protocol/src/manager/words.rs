//! What is said about jobs: by people to the manager, by the manager to agents, by agents to the manager.
//!
//! CM-1, CM-2. All of it is plain data that travels and is kept as bytes ([`encode`], [`decode`]): the same value gives the same bytes
//! everywhere, so that replicas can be compared by digest and commands by equality.

use phalanx_core::{Addr, Identity};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// The longest spec of a job: its programs, their environments.
pub const SPEC_MAX: usize = 256 * 1024;
/// The longest text that explains something.
pub const TEXT_MAX: usize = 512;
/// The most nodes that one job may name.
pub const HOSTS_MAX: usize = 64 * 1024;
/// The most ranks of one job.
pub const RANKS_MAX: u32 = 1 << 20;

/// A node, by the key that proves it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key(pub [u8; 32]);

impl From<Identity> for Key {
    fn from(identity: Identity) -> Self {
        Self(identity.0)
    }
}

impl From<Key> for Identity {
    fn from(key: Key) -> Self {
        Self(key.0)
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Where something listens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum At {
    /// A socket.
    Ip(SocketAddr),
    /// A place of a simulated network.
    Local(u32),
}

impl From<At> for Addr {
    fn from(at: At) -> Self {
        match at {
            At::Ip(addr) => Self::Ip(addr),
            At::Local(number) => Self::Local(number),
        }
    }
}

impl TryFrom<Addr> for At {
    type Error = ();

    /// Groups are no places.
    fn try_from(addr: Addr) -> Result<Self, ()> {
        match addr {
            Addr::Ip(addr) => Ok(Self::Ip(addr)),
            Addr::Local(number) => Ok(Self::Local(number)),
            Addr::Group(_) => Err(()),
        }
    }
}

/// A job, by the number that the manager gave it. Never given twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct JobId(pub u64);

/// A start of a job: all of it starts again under the next attempt. A rank that is started again alone has the next *life* of its attempt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Attempt {
    /// The job.
    pub job: JobId,
    /// Which start of it, from 0.
    pub number: u32,
}

/// What becomes of a job when one of its ranks dies, or a node with some of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub enum OnFailure {
    /// All ranks end, and the job with them.
    #[default]
    Abort,
    /// All ranks end, and the job starts again on nodes that are well.
    Restart,
    /// The survivors go on.
    Continue,
    /// The rank starts again elsewhere, on a slot that was kept free when there is one.
    Respawn,
}

impl OnFailure {
    /// As people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Abort => "abort",
            Self::Restart => "restart",
            Self::Continue => "continue",
            Self::Respawn => "respawn",
        }
    }
}

/// A job that somebody wants.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Wanted {
    /// What it is called; the manager finds a name otherwise. No two live jobs share one.
    pub name: Option<String>,
    /// How many ranks.
    pub ranks: u32,
    /// Nodes it may use, by name, in the order in which ranks fill them, and how many ranks each takes (its slots unless told); all nodes
    /// when empty.
    pub hosts: Vec<(String, Option<u32>)>,
    /// The most ranks of it on one node.
    pub per_node: Option<u32>,
    /// More ranks than slots are welcome.
    pub oversubscribe: bool,
    /// What becomes of it when a part of it dies.
    pub on_failure: OnFailure,
    /// Slots that are kept free for ranks that must start again.
    pub spares: u32,
    /// It is ended after this time.
    pub timeout_ms: Option<u64>,
    /// Whose it is: user and group under which ranks run.
    pub user: (u32, u32),
    /// What is run: read by agents only.
    pub spec: Vec<u8>,
}

/// What people ask of the manager.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Run this. Answered at once: taken, also when it has to wait for free slots, or refused.
    Run(Wanted),
    /// A signal for all ranks of a job.
    Signal {
        /// Which job.
        job: JobId,
        /// The signal's number.
        signal: i32,
        /// Who wants that: only its owner and root may.
        uid: u32,
    },
    /// End a job: its ranks are killed.
    End {
        /// Which job.
        job: JobId,
        /// Who wants that, in words.
        why: String,
        /// Who wants that: only its owner and root may.
        uid: u32,
    },
    /// No new ranks on this node, or again.
    Drain {
        /// The node's name.
        node: String,
        /// True to drain it.
        drained: bool,
    },
    /// A replica moves from one node to another.
    Move {
        /// The name of the node that has it.
        from: String,
        /// The name of the node that gets it.
        to: String,
    },
}

/// What came of an [`Ask`].
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The job was taken.
    Taken {
        /// Its number.
        job: JobId,
        /// Its name.
        name: String,
    },
    /// It is done, or will be.
    Done,
    /// It is not done; in words that say what to do. Nothing has changed.
    Refused(String),
}

/// Ranks of a job that run on one node.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Share {
    /// The node.
    pub node: Key,
    /// Its name.
    pub name: String,
    /// Its ranks, as ranges from..to, ascending.
    pub ranks: Vec<(u32, u32)>,
}

/// Where the shepherd of a job listens, and the number of its first task: its ranks, ascending, have the numbers that follow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Post {
    /// Where.
    pub at: At,
    /// The first start of a task there. No other shepherd of this job at this place said the same.
    pub first: u32,
}

/// What agents are told to do. Carried out when two of three replicas said the same.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Command {
    /// See whether the share of this node can be run here, start its shepherd, and say `Ready` or `Unfit`. Nothing else starts yet. The home
    /// node, where the console is, may have no share. Said again to an agent that has started anew: as `Go`, `Respawn`, `Stop` and `Over`, one
    /// that was carried out before does nothing, except that the agent says again what came of it.
    Prepare {
        /// Which start of which job.
        attempt: Attempt,
        /// The job's name.
        name: String,
        /// The node where the console is.
        home: Key,
        /// Whose it is.
        user: (u32, u32),
        /// How many ranks it has.
        ranks: u32,
        /// What becomes of it when a part of it dies.
        on_failure: OnFailure,
        /// Who runs what.
        shares: Vec<Share>,
        /// What is run.
        spec: Vec<u8>,
    },
    /// All nodes are ready: start the ranks that were prepared. A shepherd starts only what it was ready for under one of these posts, and nothing
    /// if its lease was over since: one that was prepared a second time, after the first had died, is not meant.
    Go {
        /// Which.
        attempt: Attempt,
        /// 0, or which `Respawn`.
        life: u32,
        /// Where shepherds are. At first all: for each share of the attempt, in its order; then home, when it has no share and is there. For a
        /// `Respawn` that of the node itself, then some that live: their view is joined.
        posts: Vec<Post>,
        /// Where home's shepherd is, while it is there: what ranks say goes there, otherwise nowhere.
        console: Option<Post>,
    },
    /// Ranks are to start again on this node, in the view that runs: see whether that can be, as with `Prepare`, and say `Ready` or `Unfit`; `Go`
    /// follows. Were it one step, a command that an agent gets late, when it was given up long ago, would start a rank that lives elsewhere.
    Respawn {
        /// As in `Prepare`, with the one share that is meant.
        attempt: Attempt,
        /// How often this was done in this attempt on any node, from 1: names the start of these ranks.
        life: u32,
        /// The job's name.
        name: String,
        /// The node where the console is.
        home: Key,
        /// Whose it is.
        user: (u32, u32),
        /// How many ranks it has.
        ranks: u32,
        /// What becomes of it when a part of it dies.
        on_failure: OnFailure,
        /// The ranks that start again, and nothing else.
        share: Share,
        /// What is run.
        spec: Vec<u8>,
    },
    /// A signal for all ranks here.
    Signal {
        /// Which.
        attempt: Attempt,
        /// The signal.
        signal: i32,
    },
    /// Kill what is left of this attempt; say `Cleared` when nothing is, with this `life` or the last that was carried out here.
    Stop {
        /// Which.
        attempt: Attempt,
        /// The last start of ranks alone that was decided before this, on any node.
        life: u32,
        /// Why, in words, for the console.
        why: String,
    },
    /// The job is over: nothing of it stays. Home tells the console.
    Over {
        /// Which.
        job: JobId,
        /// The largest status of all ranks.
        status: i32,
        /// Why, in words, when it did not just end.
        why: String,
    },
}

impl Command {
    /// Which job it is about.
    #[must_use]
    pub const fn job(&self) -> JobId {
        match self {
            Self::Prepare { attempt, .. }
            | Self::Go { attempt, .. }
            | Self::Respawn { attempt, .. }
            | Self::Signal { attempt, .. }
            | Self::Stop { attempt, .. } => attempt.job,
            Self::Over { job, .. } => *job,
        }
    }
}

/// How a rank ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum End {
    /// It ended by itself, with this status.
    Exited(i32),
    /// A signal ended it.
    Killed(i32),
    /// It could not be started: the error number of the system.
    Missing(i32),
    /// Its node or its shepherd is gone.
    Lost,
}

impl End {
    /// As a shell says it.
    #[must_use]
    pub const fn status(self) -> i32 {
        match self {
            Self::Exited(status) => status,
            Self::Killed(signal) => 128 + signal,
            Self::Missing(2) => 127,
            Self::Missing(_) => 126,
            Self::Lost => 128 + 9,
        }
    }
}

/// A rank that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Ended {
    /// Which.
    pub rank: u32,
    /// Which start of it: 0, or that of the `Respawn`.
    pub life: u32,
    /// How.
    pub end: End,
    /// It speaks MPI and had not finalised: with a status other than 0 that is a failure.
    pub aborted: bool,
}

/// A rank that a view goes on without.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct MissedRank {
    /// Which.
    pub rank: u32,
    /// The start of its task, as in views: tells the rank from one that took its place since.
    pub start: u32,
}

/// What agents tell the manager.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Report {
    /// The shepherd is there and all that its ranks need.
    Ready {
        /// Which.
        attempt: Attempt,
        /// 0, or which respawn.
        life: u32,
        /// Where the shepherd is.
        post: Post,
    },
    /// The share cannot be run here; nothing was started.
    Unfit {
        /// Which.
        attempt: Attempt,
        /// 0, or which respawn.
        life: u32,
        /// Why, in words that name the program or the directory.
        why: String,
    },
    /// Ranks of this node have ended. A rank may be named again.
    Ended {
        /// Which.
        attempt: Attempt,
        /// Which ranks, and how.
        ranks: Vec<Ended>,
    },
    /// Nothing of the attempt is left on this node: no rank, and for `Over` no shepherd either. Also said of a shepherd that died: its ranks
    /// died with it.
    Cleared {
        /// Which.
        attempt: Attempt,
        /// The last start that was carried out here, 0 or that of the last `Respawn`, or what `Stop` said if that is more. What was started later
        /// is not meant.
        life: u32,
    },
    /// The job's view goes on without these ranks of another node. Said by the shepherd of the view's root.
    Missed {
        /// Which.
        attempt: Attempt,
        /// Where they were: starts are numbered by each shepherd for itself.
        at: At,
        /// Which ranks.
        ranks: Vec<MissedRank>,
        /// The shepherd is dead for sure, and so are its ranks; otherwise they may run until their lease ends.
        proven: bool,
    },
    /// What runs on this node: the first report of an agent that has started, once it knows of every shepherd that is here; also said when it
    /// was declared dead and is back, and when the group changed.
    Inventory {
        /// The attempts of all shepherds that are here. Of what their ranks did meanwhile, `Ended` and `Cleared` tell again.
        attempts: Vec<Attempt>,
    },
}

impl Report {
    /// The job of which many agents say the like at one time, all being well; nothing when somebody should hear it as soon as can be.
    #[must_use]
    pub fn routine(&self) -> Option<JobId> {
        match self {
            Self::Ready { attempt, .. } | Self::Cleared { attempt, .. } => Some(attempt.job),
            Self::Ended { attempt, ranks } => {
                let is_well = |e: &Ended| e.end == End::Exited(0) && !e.aborted;
                ranks.iter().all(is_well).then_some(attempt.job)
            }
            Self::Unfit { .. } | Self::Missed { .. } | Self::Inventory { .. } => None,
        }
    }
}

/// The bytes of a value; the same for the same value everywhere.
///
/// # Panics
/// Never for the words of this module: they are plain data.
#[must_use]
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).expect("plain data has bytes")
}

/// The value of these bytes, all of which it must use.
#[must_use]
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    postcard::take_from_bytes(bytes).ok().filter(|(_, rest)| rest.is_empty()).map(|(value, _)| value)
}
