//! What a daemon and the shepherds of its node say to each other: JSON in the frames that tasks use, too.

use super::pmi::{Answer, Errand};
use phalanx_api::jobs::{JobView, OnPartition};
use phalanx_api::run::{OnFailure, Program, RankEnd, RunWanted};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// What a job is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Terms {
    /// What it is called.
    pub name: String,
    /// How many ranks it has.
    pub size: u32,
    /// Children of each task in its tree.
    pub arity: u32,
    /// What those do who cannot reach most of it.
    pub on_partition: OnPartition,
}

/// Somewhere tasks of a job are, as its shepherd there says.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Place {
    /// Which job of that name.
    pub instance: u64,
    /// Where its shepherd is.
    pub addr: SocketAddr,
}

/// What a daemon says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "keep", rename_all = "lowercase")]
pub enum ToShepherd {
    /// The first thing said.
    Begin {
        /// What the job is; a shepherd that knows it already stays with that.
        terms: Terms,
        /// Where to listen; port 0 takes any.
        bind: SocketAddr,
        /// Where others reach it, when that is another address.
        advertise: Option<SocketAddr>,
        /// The cluster's keys in hexadecimal, with their numbers, the sealing one first.
        keys: Vec<(u8, String)>,
        /// The cluster's name.
        cluster: String,
    },
    /// The cluster has other keys.
    Keys {
        /// As in `Begin`.
        keys: Vec<(u8, String)>,
        /// The cluster's name.
        cluster: String,
    },
    /// Where tasks of the job are, as far as the daemon knows.
    Places {
        /// All of them, other jobs of that name too.
        places: Vec<Place>,
    },
    /// The daemon of this shepherd's node failed, as the zone says.
    Doubt {
        /// Where the shepherd is.
        addr: SocketAddr,
    },
    /// The manager has taken a job whose console comes here; it may have to wait for its turn.
    Await {
        /// Which job of that name: the manager's number.
        job: u64,
        /// Whose it is.
        user: Option<(u32, u32)>,
    },
    /// The manager wants ranks of this job to run here: look whether that can be, and say `Ready` or `Unfit`. Nothing starts yet.
    Prepare {
        /// What and how.
        work: Work,
    },
    /// All shepherds of the attempt are ready: form the view, start the ranks.
    Go {
        /// Which attempt.
        attempt: u32,
        /// Where the console is, while there is one.
        home: Option<SocketAddr>,
        /// All nodes with ranks.
        crews: Vec<Crew>,
    },
    /// Ranks that were prepared start again, in the view that runs.
    Respawn {
        /// Which attempt.
        attempt: u32,
        /// Which start of ranks alone, from 1.
        life: u32,
        /// Where the console is, while there is one.
        home: Option<SocketAddr>,
        /// Where other shepherds are.
        contacts: Vec<SocketAddr>,
    },
    /// A signal for all ranks here.
    Signal {
        /// Its number.
        signal: i32,
    },
    /// A majority of the manager's replicas was heard: ranks may run for so long from now.
    Lease {
        /// How long.
        ms: u64,
    },
    /// Kill what is left of this attempt, and say `Cleared`. The shepherd stays.
    Stop {
        /// Which attempt.
        attempt: u32,
        /// Why, for the console.
        why: String,
    },
    /// The job is over: kill what is left, tell the console, end.
    Over {
        /// The largest status of all ranks.
        status: i32,
        /// Why, when it did not just end.
        why: String,
    },
    /// What became of an errand.
    Answer {
        /// Whose.
        rank: u32,
        /// What.
        answer: Answer,
    },
    /// The job that a rank spawned was taken: be its console.
    Attend {
        /// The rank; it waits for the job's ranks to run.
        rank: u32,
        /// The job.
        job: String,
        /// Where its console is awaited.
        socket: String,
    },
    /// Something for the console to say.
    Note {
        /// The words.
        text: String,
    },
    /// What is the view?
    Show {
        /// To tell answers apart.
        ticket: u64,
    },
}

/// What a shepherd is to run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Work {
    /// Which job of that name: the manager's number.
    pub job: u64,
    /// Which start of the job, from 0.
    pub attempt: u32,
    /// Which start of ranks alone, from 1; 0 otherwise.
    pub life: u32,
    /// The console is here.
    pub home: bool,
    /// User and group under which ranks run; as the shepherd unless told.
    pub user: Option<(u32, u32)>,
    /// Ranks here, ascending; none at a home that runs nothing.
    pub ranks: Vec<u32>,
    /// Ranks of each node, in the order of nodes, as ranges from..to: who runs beside whom.
    pub nodes: Vec<Vec<(u32, u32)>>,
    /// The name of each of these nodes.
    pub names: Vec<String>,
    /// What is run, ranks in this order.
    pub programs: Vec<Program>,
    /// What its ranks find in their key-value space from the beginning.
    #[serde(default)]
    pub puts: Vec<(String, String)>,
    /// What becomes of the job when a part of it dies.
    pub on_failure: OnFailure,
}

/// The shepherd of one node of a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Crew {
    /// Where it is.
    pub addr: SocketAddr,
    /// The start of its first rank; the others follow.
    pub first: u32,
    /// Its ranks, as ranges from..to.
    pub ranks: Vec<(u32, u32)>,
}

/// What a shepherd says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "told", rename_all = "lowercase")]
pub enum ToDaemon {
    /// The first thing said, also to a daemon that has started anew.
    Here {
        /// Its process.
        pid: u32,
        /// What the job is, when it was told.
        terms: Option<Terms>,
        /// The manager's job and which attempt of it, when it runs one.
        #[serde(default)]
        work: Option<(u64, u32)>,
    },
    /// Tasks of the job are here now, and others may knock here; or not any more.
    At {
        /// Where.
        place: Option<Place>,
    },
    /// What is to run here can run here.
    Ready {
        /// Which attempt.
        attempt: u32,
        /// Which life.
        life: u32,
        /// Where this shepherd is.
        addr: SocketAddr,
        /// The start that its first rank will have.
        first: u32,
    },
    /// What is to run here cannot; nothing was started.
    Unfit {
        /// Which attempt.
        attempt: u32,
        /// Which life.
        life: u32,
        /// Why.
        why: String,
    },
    /// Ranks here have ended: those of which it was not said before.
    Ended {
        /// Which attempt.
        attempt: u32,
        /// Which start of these ranks alone.
        #[serde(default)]
        life: u32,
        /// Which, and how.
        ranks: Vec<(u32, RankEnd)>,
        /// Those of them that spoke MPI and had not finalised, or asked for the job's end.
        #[serde(default)]
        aborted: Vec<u32>,
    },
    /// Nothing of the attempt runs here any more.
    Cleared {
        /// Which attempt.
        attempt: u32,
    },
    /// The job's view goes on without ranks of other nodes; said where the view's root is.
    Missed {
        /// Which attempt.
        attempt: u32,
        /// Where they were.
        host: SocketAddr,
        /// Which ranks, and the start of each.
        ranks: Vec<(u32, u32)>,
        /// Their shepherd is dead for sure.
        proven: bool,
    },
    /// The console wants a signal for all ranks.
    Signalled {
        /// Its number.
        signal: i32,
    },
    /// An MPI rank wants something that only the manager can do; it waits for the `Answer`.
    Errand {
        /// In which attempt.
        attempt: u32,
        /// Which.
        rank: u32,
        /// What.
        errand: Errand,
    },
    /// An MPI rank spawns a job; it waits for `Attend`, or an `Answer` that refuses it.
    Spawn {
        /// Which rank.
        rank: u32,
        /// The job.
        wanted: RunWanted,
        /// What its ranks find in their key-value space from the beginning.
        puts: Vec<(String, String)>,
        /// Under whom it runs; as the daemon unless told.
        user: Option<(u32, u32)>,
    },
    /// The console is gone: nobody waits for the job.
    Deserted,
    /// The view.
    Shown {
        /// That of the question.
        ticket: u64,
        /// None while there is none.
        view: Option<JobView>,
    },
}
