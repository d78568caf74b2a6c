//! What a daemon and the shepherds of its node say to each other: JSON in the frames that tasks use, too.

use phalanx_api::jobs::{JobView, OnPartition};
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
    /// What is the view?
    Show {
        /// To tell answers apart.
        ticket: u64,
    },
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
    },
    /// Tasks of the job are here now, and others may knock here; or not any more.
    At {
        /// Where.
        place: Option<Place>,
    },
    /// The view.
    Shown {
        /// That of the question.
        ticket: u64,
        /// None while there is none.
        view: Option<JobView>,
    },
}
