//! The control API's words: JSON that the daemon writes and programs read, over its Unix socket or HTTP.
//!
//! Fields are only added, never renamed; readers ignore those that they do not know.
//!
//! | module | words |
//! |---|---|
//! | here | members, status, events, attributes, services |
//! | [`directory`] | all of it at once, for programs that keep a copy |
//! | [`jobs`] | jobs and their views, tasks and their shepherds |
//! | [`notice`] | how a rank's death is known before its memory is freed |
//! | [`rumours`] | what is told and asked among all members |
//! | [`run`] | parallel jobs that the cluster starts |
//! | [`federation`] | other data centres |
//! | [`segments`] | segments of the network |
//! | [`zones`] | zones and their census |
//! | [`operate`] | keys, faults, round trips |

pub mod casts;
pub mod directory;
pub mod federation;
pub mod jobs;
pub mod manage;
pub mod notice;
pub mod operate;
pub mod reduce;
pub mod rumours;
pub mod run;
pub mod segments;
pub mod zones;

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Where each thing is.
pub mod path {
    /// [`Status`](super::Status) of the node.
    pub const STATUS: &str = "/v1/status";
    /// A list of [`Member`](super::Member)s.
    pub const MEMBERS: &str = "/v1/members";
    /// [`Event`](super::Event)s, as server-sent events; `Last-Event-ID` resumes.
    pub const EVENTS: &str = "/v1/events";
    /// [`Attributes`](super::Attributes) of all members; `/v1/attrs/KEY` is one of the node's own, to put and to delete.
    pub const ATTRIBUTES: &str = "/v1/attrs";
    /// A list of [`Service`](super::Service)s, `?find=EXPRESSION` for some of them; to put, one [`Offer`](super::Offer).
    /// `/v1/services/NAME` and `/v1/services/NAME:PORT` are to delete.
    pub const SERVICES: &str = "/v1/services";
    /// The whole [`Directory`](super::directory::Directory).
    pub const DIRECTORY: &str = "/v1/directory";
    /// What followed an event of it, `?after=ID`: [`Word`](super::directory::Word)s, as server-sent events.
    pub const CHANGES: &str = "/v1/directory/changes";
    /// Leaves the cluster in an orderly way, and ends the daemon.
    pub const LEAVE: &str = "/v1/leave";
    /// `/v1/force-leave/NAME` forgets a member that is gone, at all members.
    pub const FORCE_LEAVE: &str = "/v1/force-leave";
    /// To post: a [`Tale`](super::rumours::Tale) for all members.
    pub const EVENT: &str = "/v1/event";
    /// To post: bytes for all members, `?to=NAMES` or `?job=NAME` for some; says who was [`Reached`](super::casts::Reached).
    pub const CAST: &str = "/v1/cast";
    /// What is cast: a [`Heading`](super::casts::Heading) and bytes for each piece.
    pub const CASTS: &str = "/v1/casts";
    /// A list of [`Seat`](super::casts::Seat)s in the tree of casts; to post, its repair.
    pub const SEATS: &str = "/v1/seats";
    /// To post: a [`Question`](super::rumours::Question) for all members; [`Answer`](super::rumours::Answer)s come as
    /// server-sent events. `/v1/query/ID` takes the answer of this node.
    pub const QUERY: &str = "/v1/query";
    /// `/v1/rtt/NAME` is the [`RoundTrip`](super::operate::RoundTrip) to a member, measured now; `/v1/rtt` has those with
    /// neighbours, as traffic shows them.
    pub const RTT: &str = "/v1/rtt";
    /// The [`KeyRing`](super::operate::KeyRing); to post, a [`KeyChange`](super::operate::KeyChange).
    pub const KEYS: &str = "/v1/keys";
    /// [`Fault`](super::operate::Fault)s that are injected; to post, a rule; `/v1/faults/ID` is to delete.
    pub const FAULTS: &str = "/v1/faults";
    /// The [`Census`](super::zones::Census): all zones, and how many members each has.
    pub const CENSUS: &str = "/v1/census";
    /// A list of [`Zone`](super::zones::Zone)s; `/v1/zones/NAME` has the members of one.
    pub const ZONES: &str = "/v1/zones";
    /// A list of [`Level`](super::segments::Level)s: the groups of the node, from its own segment up.
    pub const SEGMENTS: &str = "/v1/segments";
    /// The [`Federation`](super::federation::Federation): what is known of other data centres.
    pub const FEDERATION: &str = "/v1/federation";
    /// To post: a [`RunWanted`](super::run::RunWanted); says where its console is, [`RunStarted`](super::run::RunStarted).
    pub const RUN: &str = "/v1/run";
    /// To get: a list of [`Run`](super::manage::Run)s; `/v1/runs/NAME` has the [`RunDetail`](super::manage::RunDetail) of one, and is to
    /// delete; `/v1/runs/NAME/signal` takes a [`SignalWanted`](super::manage::SignalWanted).
    pub const RUNS: &str = "/v1/runs";
    /// The [`Managers`](super::manage::Managers); to post, a [`ReplicaMove`](super::manage::ReplicaMove).
    pub const MANAGERS: &str = "/v1/managers";
    /// A list of [`NodeSlots`](super::manage::NodeSlots); `/v1/slots/NODE/drain` is to put and to delete.
    pub const SLOTS: &str = "/v1/slots";
    /// A list of [`Job`](super::jobs::Job)s; `/v1/jobs/NAME` has the [`JobView`](super::jobs::JobView) of one, and takes a
    /// [`JobWanted`](super::jobs::JobWanted) for the [`Fold`](super::jobs::Fold) of its tasks here.
    pub const JOBS: &str = "/v1/jobs";
    /// Figures for Prometheus.
    pub const METRICS: &str = "/metrics";
    /// What is where, in OpenAPI's words.
    pub const OPENAPI: &str = "/v1/openapi.json";
    /// Answers as long as the daemon runs.
    pub const HEALTHZ: &str = "/healthz";
    /// Answers with 200 when the node is a member, and with 503 before and after.
    pub const READYZ: &str = "/readyz";
}

/// How a member is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum State {
    /// It is there.
    Alive,
    /// Others found it dead or out of reach.
    Failed,
    /// It left in an orderly way.
    Left,
    /// It is in another zone.
    Moved,
}

impl What {
    /// As `event` in JSON says it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Joined { .. } => "joined",
            Self::Left { .. } => "left",
            Self::Attribute { .. } => "attribute",
            Self::Name { .. } => "name",
            Self::User { .. } => "user",
            Self::Query { .. } => "query",
            Self::Keys { .. } => "keys",
            Self::Gap => "gap",
        }
    }
}

impl State {
    /// As people and JSON write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Failed => "failed",
            Self::Left => "left",
            Self::Moved => "moved",
        }
    }
}

/// A member as one node sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Member {
    /// What people call it.
    pub name: String,
    /// Its key, in hexadecimal.
    pub id: String,
    /// Where it is reached.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub addr: SocketAddr,
    /// How it is.
    pub state: State,
    /// Its zone, where there are several.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub zone: Option<String>,
    /// Which life of it.
    pub incarnation: u64,
    /// How often it spoke up for itself in that life.
    pub minor: u32,
    /// True for the node that was asked.
    #[serde(default)]
    pub me: bool,
    /// In which part of the node's directory it is, where that has parts: with segments.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub part: Option<Part>,
    /// Of the external part: on whose word the node has it, by name; absent while another one is awaited who tells of it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub teller: Option<String>,
}

/// A part of a node's directory (003 §5.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Those whom the node hears: it finds out by itself when one is dead.
    Local,
    /// Those of other groups, whom a leader tells of: so it is told, too, when one is dead.
    External,
}

impl Part {
    /// As people and JSON write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::External => "external",
        }
    }
}

/// The node that was asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Status {
    /// The node itself.
    pub me: Member,
    /// `starting`, `member` or `leaving`.
    pub phase: Phase,
    /// Members in its view, itself included.
    pub alive: usize,
    /// Neighbours that it is linked with.
    pub neighbours: usize,
    /// Milliseconds since it started.
    pub uptime_ms: u64,
    /// Of the daemon.
    pub version: String,
    /// Its process.
    pub pid: u32,
}

/// Where a daemon is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Phase {
    /// It looks for others.
    Starting,
    /// It is a member.
    Member,
    /// It has said that it leaves.
    Leaving,
}

/// Something happened, as one node heard of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// Grows by one with each event, and by more when the daemon restarts.
    pub id: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "event", rename_all = "lowercase")]
#[non_exhaustive]
pub enum What {
    /// A member is there, newly or again.
    Joined {
        /// Who.
        member: Member,
    },
    /// A member is gone; its state says how.
    Left {
        /// Who.
        member: Member,
    },
    /// A member's attribute changed.
    Attribute {
        /// Whose.
        name: String,
        /// Which one.
        key: String,
        /// Its value; absent when it was removed. What is no text has its odd bytes replaced.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        value: Option<String>,
        /// Whose: the key. Not `id`, which is the event's.
        #[serde(skip_serializing_if = "String::is_empty", default)]
        identity: String,
        /// The value is no text.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        opaque: bool,
        /// What it tells of, when the attribute is a service that is there.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        service: Option<Offer>,
    },
    /// Two members have the name of this node.
    Name {
        /// Who keeps it: the key.
        holder: String,
        /// Who must take another one; absent when that is over.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        loser: Option<String>,
    },
    /// Somebody told all members something.
    User {
        /// Who.
        from: String,
        /// What it is called.
        name: String,
        /// What was said; odd bytes are replaced.
        payload: String,
    },
    /// Somebody asks all members something: answer at `/v1/query/ID`.
    Query {
        /// Names the question.
        query: String,
        /// Who.
        from: String,
        /// What it is called.
        name: String,
        /// What was asked; odd bytes are replaced.
        payload: String,
    },
    /// The cluster's keys were changed.
    Keys {
        /// Grows with each change.
        epoch: u64,
    },
    /// Events were lost to the reader: it was too slow, or the daemon restarted. Read the members anew.
    Gap,
}

/// What a member says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Attributes {
    /// Whose.
    pub name: String,
    /// By key. What is no text has its odd bytes replaced.
    pub attributes: BTreeMap<String, String>,
}

/// A service as its node offers it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Offer {
    /// What it is called.
    pub name: String,
    /// Where it listens.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub port: Option<u16>,
    /// The partitions that it serves, from first to last.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub partitions: Vec<(u32, u32)>,
    /// Its tags.
    #[serde(skip_serializing_if = "BTreeSet::is_empty", default)]
    pub tags: BTreeSet<String>,
    /// Its parameters.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub parameters: BTreeMap<String, String>,
}

/// A service that is there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Service {
    /// The node that offers it.
    pub node: String,
    /// Where to call it, when it has a port.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub addr: Option<SocketAddr>,
    /// In which part of the directory its node is: see [`Member::part`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub part: Option<Part>,
    /// On whose word that one is there: see [`Member::teller`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub teller: Option<String>,
    /// What it offers.
    #[serde(flatten)]
    pub offer: Offer,
}

/// Why a request was refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Refusal {
    /// What is wrong, and what to do.
    pub error: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_as_they_are() {
        let member = Member {
            name: "n1".into(),
            id: "ab".into(),
            addr: "10.0.0.1:7946".parse().unwrap(),
            state: State::Failed,
            zone: None,
            incarnation: 7,
            minor: 2,
            me: false,
            part: None,
            teller: None,
        };
        let event = Event { id: 3, at_ms: 5, what: What::Left { member } };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(
            text,
            r#"{"id":3,"at_ms":5,"event":"left","member":{"name":"n1","id":"ab","addr":"10.0.0.1:7946","state":"failed","incarnation":7,"minor":2,"me":false}}"#
        );
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
        let what = What::Attribute {
            name: "n1".into(),
            key: "svc/cache:1".into(),
            value: Some("\u{1}".into()),
            identity: "ab".into(),
            opaque: true,
            service: Some(Offer { name: "cache".into(), port: Some(1), ..Offer::default() }),
        };
        let event = Event { id: 4, at_ms: 5, what };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(
            text,
            r#"{"id":4,"at_ms":5,"event":"attribute","name":"n1","key":"svc/cache:1","value":"\u0001","identity":"ab","opaque":true,"service":{"name":"cache","port":1}}"#
        );
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
        assert_eq!(
            serde_json::to_string(&Event { id: 4, at_ms: 5, what: What::Gap }).unwrap(),
            r#"{"id":4,"at_ms":5,"event":"gap"}"#
        );
    }

    #[test]
    fn readers_of_today_understand_daemons_of_tomorrow() {
        let text = r#"{"name":"n","id":"a","addr":"[::1]:1","state":"alive","incarnation":1,"minor":0,"colour":"red"}"#;
        assert_eq!(serde_json::from_str::<Member>(text).unwrap().name, "n");
    }
}
