//! What operators ask: zones, keys, faults, round trips.

use crate::{Client, Error, escaped};
use hyper::Method;
use phalanx_api::federation::Federation;
use phalanx_api::operate::{Fault, KeyChange, KeyRing, RoundTrip};
use phalanx_api::path;
use phalanx_api::segments::Level;
use phalanx_api::zones::{Census, Zone, ZoneMembers};
use std::collections::BTreeMap;

impl Client {
    /// All zones, and how many members each has.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn census(&self) -> Result<Census, Error> {
        self.connect().await?.get(path::CENSUS).await
    }

    /// All zones.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn zones(&self) -> Result<Vec<Zone>, Error> {
        self.connect().await?.get(path::ZONES).await
    }

    /// The members of a zone.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn zone(&self, name: &str) -> Result<ZoneMembers, Error> {
        self.connect().await?.get(&format!("{}/{}", path::ZONES, escaped(name))).await
    }

    /// The groups that the node takes part in, from its own segment up; none without segments.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn segments(&self) -> Result<Vec<Level>, Error> {
        self.connect().await?.get(path::SEGMENTS).await
    }

    /// What the node knows of other data centres; without a name where the cluster is in no federation.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn federation(&self) -> Result<Federation, Error> {
        self.connect().await?.get(path::FEDERATION).await
    }

    /// The round trip to a member, measured now.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn round_trip(&self, name: &str) -> Result<RoundTrip, Error> {
        self.connect().await?.get(&format!("{}/{}", path::RTT, escaped(name))).await
    }

    /// Round trips with neighbours, as the traffic with them shows.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn round_trips(&self) -> Result<Vec<RoundTrip>, Error> {
        self.connect().await?.get(path::RTT).await
    }

    /// A member that is gone is forgotten, by all.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn force_leave(&self, name: &str) -> Result<(), Error> {
        let path = format!("{}/{}", path::FORCE_LEAVE, escaped(name));
        self.connect().await?.act(Method::POST, &path, "").await
    }

    /// The cluster's keys, as the node has them.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn keys(&self) -> Result<KeyRing, Error> {
        self.connect().await?.get(path::KEYS).await
    }

    /// The cluster's keys, as each member has them, by name. Who does not answer is not there.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn all_keys(&self) -> Result<BTreeMap<String, KeyRing>, Error> {
        self.connect().await?.get(&format!("{}/members", path::KEYS)).await
    }

    /// Changes the cluster's keys, at all members; says what they are then.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn change_keys(&self, change: &KeyChange) -> Result<KeyRing, Error> {
        self.connect().await?.post(path::KEYS, change).await
    }

    /// Faults that are injected into the node's traffic.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn faults(&self) -> Result<Vec<Fault>, Error> {
        self.connect().await?.get(path::FAULTS).await
    }

    /// Injects a fault: a rule in TOML.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn inject(&self, rule: &str) -> Result<Fault, Error> {
        self.connect().await?.post_text(path::FAULTS, rule.to_owned()).await
    }

    /// Heals a fault, or all.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn heal(&self, id: Option<u32>) -> Result<(), Error> {
        let path = id.map_or_else(|| path::FAULTS.to_owned(), |id| format!("{}/{id}", path::FAULTS));
        self.connect().await?.act(Method::DELETE, &path, "").await
    }

    /// Figures, as Prometheus reads them.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn metrics(&self) -> Result<String, Error> {
        self.connect().await?.text(path::METRICS).await
    }
}
