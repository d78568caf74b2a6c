//! What stewards say to each other.
//!
//! MM-1, MM-2. A version byte, then one [`Packet`] as postcard. How a packet travels follows from what it is ([`Packet::weight`]):
//! heartbeats are light, what proves itself or is checked against proofs goes as it is, all else is signed, by the layer below while it fits
//! into a datagram, and in an envelope of ours ([`Packet::Vouched`]) when it does not.

use super::found::Founding;
use super::group::{Digest, Link, Proof};
use super::herald::Tidings;
use super::sheaf::{self, Path, Sheaf};
use super::words::{Answer, Ask, Command, Key, Report, decode, encode};
use crate::link::sign::{Signer, Verifier};
use serde::{Deserialize, Serialize};

/// Version of packets: another one is refused.
pub const VERSION: u8 = 2;
/// The longest packet that is read.
pub const PACKET_MAX: usize = 8 << 20;
/// The longest piece of a state.
pub const PIECE_MAX: usize = 32 * 1024;
/// The largest state that is taken from another replica.
pub const STATE_MAX: usize = 256 << 20;

/// Names a decision: the `nth` that the entry at `index` of an epoch's order led to. Grows with time, epochs first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Id {
    /// In which epoch.
    pub epoch: u32,
    /// By which entry.
    pub index: u64,
    /// Which of them.
    pub nth: u32,
}

/// What an agent is told by the group.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Word {
    /// To do something.
    Do(Command),
    /// What came of a question.
    Answer {
        /// Which start of the agent asked.
        incarnation: u64,
        /// Its number.
        number: u64,
        /// The answer.
        answer: Answer,
    },
}

/// One replica's voice for a [`Word`]: it goes by its hash, so that its bytes need to come once only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Vote {
    /// Which decision.
    pub id: Id,
    /// The decision for the same agent before this one: they are carried out in this order.
    pub after: Id,
    /// For which agent.
    pub to: Key,
    /// The hash of the word's bytes.
    pub hash: Digest,
}

/// A [`Vote`] and who signed it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Ballot {
    /// What is said.
    pub vote: Vote,
    /// By whom.
    pub by: Key,
    /// The signature of the root to which the path leads.
    pub proof: Proof,
    /// The way from this vote to what was signed.
    pub path: Path,
}

impl Ballot {
    /// A voice for one agent alone.
    #[must_use]
    pub fn direct(vote: Vote, by: Key, signer: &Signer, cluster: &str) -> Self {
        let proof = Proof::sign(signer, &vote_context(cluster), &sheaf::leaf(&vote));
        Self { vote, by, proof, path: Path::default() }
    }

    /// It is signed by whom it names.
    #[must_use]
    pub fn holds(&self, verifier: Verifier, cluster: &str) -> bool {
        let root = self.path.root(sheaf::leaf(&self.vote));
        root.is_some_and(|root| self.proof.holds(verifier, self.by, &vote_context(cluster), &root))
    }
}

/// What signatures of words are about.
#[must_use]
pub fn vote_context(cluster: &str) -> Vec<u8> {
    [b"phalanx command ", cluster.as_bytes()].concat()
}

/// What an agent says to the group, in the order of its numbers.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Said {
    /// Somebody there wants something.
    Ask(Ask),
    /// Something happened there.
    Report(Report),
}

/// A report on its way up, by way of other agents: signed by who makes it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Telling {
    /// Which agent.
    pub from: Key,
    /// Which start of it.
    pub incarnation: u64,
    /// Its number.
    pub number: u64,
    /// What.
    pub report: Report,
    /// The agent's signature of the rest.
    pub proof: Proof,
}

impl Telling {
    /// Signs a report.
    #[must_use]
    pub fn new(incarnation: u64, number: u64, report: Report, signer: &Signer, cluster: &str) -> Self {
        let from = signer.identity().into();
        let proof = Proof::sign(signer, &telling_context(cluster), &(from, incarnation, number, &report));
        Self { from, incarnation, number, report, proof }
    }

    /// It is signed by whom it names.
    #[must_use]
    pub fn holds(&self, verifier: Verifier, cluster: &str) -> bool {
        let what = (self.from, self.incarnation, self.number, &self.report);
        self.proof.holds(verifier, self.from, &telling_context(cluster), &what)
    }
}

fn telling_context(cluster: &str) -> Vec<u8> {
    [b"phalanx report ", cluster.as_bytes()].concat()
}

/// What a replica has, after the entry at `index`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Statement {
    /// In which epoch.
    pub epoch: u32,
    /// After which entry.
    pub index: u64,
    /// Of the state.
    pub digest: u64,
    /// Of all entries and all decisions so far.
    pub chain: u64,
}

/// A [`Statement`] and who signed it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Sworn {
    /// What is said.
    pub statement: Statement,
    /// By which start of it.
    pub boot: u64,
    /// By whom.
    pub by: Key,
    /// The signature.
    pub proof: Proof,
}

/// What people may look at.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Look {
    /// All jobs.
    Runs,
    /// One job and what happened to it.
    Run(String),
    /// The nodes and their slots.
    Slots,
}

/// One steward to another.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Packet {
    /// An agent lives.
    Alive {
        /// Which start of it.
        incarnation: u64,
        /// Which group it knows.
        epoch: u32,
        /// Which of its heartbeats.
        beat: u64,
        /// All words up to here are carried out, and that is on its disk.
        done: Id,
    },
    /// A replica heard that.
    Heard {
        /// Whom it answers.
        agent: Key,
        /// Which group it is of.
        epoch: u32,
        /// Which heartbeat.
        beat: u64,
        /// Which start of the agent is meant by `noted`.
        incarnation: u64,
        /// All that the agent asked, and all that it reported, up to these numbers is in the order.
        noted: (u64, u64),
        /// The agent counts as there, so its ranks may live on.
        granted: bool,
    },
    /// A replica lives, says another.
    Beat {
        /// What it has; not signed: a difference is looked into.
        statement: Statement,
        /// Its clock, in milliseconds since 1970.
        unix_ms: u64,
        /// Which members' beats it heard lately, a bit each.
        hears: u8,
    },
    /// Is an agent there? Answered by `Alive`.
    Probe,
    /// A packet of the ordering protocol.
    Order {
        /// Of which epoch.
        epoch: u32,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// The first group is being found.
    Found(Founding),
    /// An agent has something to say.
    Told {
        /// Which start of it.
        incarnation: u64,
        /// The next number.
        number: u64,
        /// What.
        said: Said,
    },
    /// A replica's voice for a word, and the word unless another one brings it.
    Vote(Ballot, Option<Vec<u8>>),
    /// A replica's voice for a word that many are told: believed as far as it is signed, and handed on.
    Sheaf(Sheaf),
    /// Reports of several agents, for a replica; on their way up they go by those who handed on the word of that decision.
    Gathered {
        /// Which replica.
        to: Key,
        /// Which decision.
        id: Id,
        /// What they report.
        told: Vec<Telling>,
    },
    /// Compositions of the group, oldest first.
    Announce(Vec<Link>),
    /// Two voices for one decision that are not the same; twice the same one when nobody else says anything of the kind.
    Differ(Ballot, Ballot),
    /// Say what you have, after that entry.
    Declare {
        /// In which epoch.
        epoch: u32,
        /// After which entry.
        index: u64,
    },
    /// Statements of replicas.
    Declared(Vec<Sworn>),
    /// Give me the state, from that byte on.
    Fetch {
        /// Of which epoch.
        epoch: u32,
        /// The one of which a part is here; 0 for any.
        index: u64,
        /// From here on.
        offset: u32,
    },
    /// A piece of a state.
    Piece {
        /// Of which epoch.
        epoch: u32,
        /// After which entry.
        index: u64,
        /// How long all of it is.
        total: u32,
        /// Where this piece begins.
        offset: u32,
        /// Where the order stands, as [`crate::order::Mark`] writes it.
        mark: Vec<u8>,
        /// The piece.
        bytes: Vec<u8>,
    },
    /// Somebody wants to see something.
    Look {
        /// To name it in the answer.
        number: u64,
        /// What.
        what: Look,
    },
    /// What is to be seen.
    Shown {
        /// Whose answer it is.
        number: u64,
        /// The plain structures of [`super::state`], as bytes.
        bytes: Vec<u8>,
    },
    /// A packet too long for a datagram, signed for who gets it.
    Vouched {
        /// The packet's bytes, with their version.
        bytes: Vec<u8>,
        /// The sender's signature over receiver and bytes.
        proof: Proof,
    },
    /// Who is in which zone.
    Tidings(Tidings),
}

/// How a packet travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weight {
    /// It may be lost.
    Light,
    /// It brings its own proofs, or is checked against them.
    Plain,
    /// Who sends it must be proved.
    Grave,
}

impl Packet {
    /// How it travels.
    #[must_use]
    pub const fn weight(&self) -> Weight {
        match self {
            Self::Alive { .. } | Self::Heard { .. } | Self::Beat { .. } => Weight::Light,
            Self::Vote(..)
            | Self::Sheaf(_)
            | Self::Gathered { .. }
            | Self::Announce(_)
            | Self::Differ(..)
            | Self::Declared(_)
            | Self::Declare { .. }
            | Self::Fetch { .. }
            | Self::Piece { .. }
            | Self::Look { .. }
            | Self::Shown { .. }
            | Self::Vouched { .. } => Weight::Plain,
            Self::Tidings(tidings) => {
                if tidings.is_light() {
                    Weight::Light
                } else {
                    Weight::Plain
                }
            }
            Self::Probe | Self::Order { .. } | Self::Found(_) | Self::Told { .. } => Weight::Grave,
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(encode(self));
        bytes
    }

    /// A packet of these bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&version, rest) = bytes.split_first()?;
        (version == VERSION && bytes.len() <= PACKET_MAX).then(|| decode(rest)).flatten()
    }
}
