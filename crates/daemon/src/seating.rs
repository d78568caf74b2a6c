//! Who hands out the seats of casts: the cluster itself, or a directory outside of it.
//!
//! ST-2, 001 §3.1. The node takes what the directory says, and tells the others as it tells a seat of its own choice: so casts go on when the
//! directory is away.

use crate::agent::Remote;
use phalanx_protocol::cast::seats::Repair;
use std::net::SocketAddr;

/// Where seats come from.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Directory {
    /// The members agree among themselves.
    #[default]
    Cluster,
    /// An etcd at these endpoints.
    #[cfg(feature = "etcd")]
    Etcd(Vec<String>),
}

/// Why a directory cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// Its name.
    #[error("`{0}` is no directory of seats: write cluster, or etcd:http://HOST:2379")]
    Unknown(String),
    /// This build has none.
    #[error("this build knows no etcd: take one that was built with `--features etcd`, or write cluster")]
    Build,
    /// What etcd says.
    #[cfg(feature = "etcd")]
    #[error(transparent)]
    Etcd(#[from] crate::etcd::EtcdError),
    /// No more threads.
    #[error("cannot start a thread: {0}")]
    Thread(String),
}

impl std::str::FromStr for Directory {
    type Err = DirectoryError;

    fn from_str(text: &str) -> Result<Self, DirectoryError> {
        match text.split_once(':') {
            None if text == "cluster" => Ok(Self::Cluster),
            Some(("etcd", endpoints)) => etcd(endpoints),
            _ => Err(DirectoryError::Unknown(text.to_owned())),
        }
    }
}

#[cfg(not(feature = "etcd"))]
fn etcd(_: &str) -> Result<Directory, DirectoryError> {
    Err(DirectoryError::Build)
}

#[cfg(feature = "etcd")]
fn etcd(endpoints: &str) -> Result<Directory, DirectoryError> {
    let endpoints: Vec<String> = endpoints.split(',').map(|e| e.trim().to_owned()).collect();
    // What is wrong with them is said now, and not when the first seat is needed.
    crate::etcd::Etcd::new(&endpoints, "/phalanx/", LEASE)?;
    Ok(Directory::Etcd(endpoints))
}

/// How long a daemon may be silent before its seat is free for others.
#[cfg(feature = "etcd")]
const LEASE: std::time::Duration = std::time::Duration::from_secs(10);

/// A node that is to sit in a tree.
#[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "only a directory outside reads it"))]
pub(crate) struct Sitter {
    pub(crate) cluster: String,
    pub(crate) zone: String,
    pub(crate) identity: String,
    pub(crate) name: String,
    pub(crate) addr: SocketAddr,
    pub(crate) repair: Repair,
}

impl Sitter {
    /// Beneath which its tree is kept.
    #[cfg(feature = "etcd")]
    fn prefix(&self) -> String {
        // Nobody can give these names.
        let word = |name: &str| if name.is_empty() { "-".to_owned() } else { name.replace(['/', '\0'], "_") };
        format!("/phalanx/{}/{}/", word(&self.cluster), word(&self.zone))
    }
}

/// Keeps a node's seat as long as it is there.
#[derive(Debug)]
pub(crate) struct Keeping {
    #[cfg(feature = "etcd")]
    keeper: crate::etcd::Keeper,
}

impl Directory {
    /// The node does not choose its seat itself.
    pub(crate) fn is_outside(&self) -> bool {
        *self != Self::Cluster
    }

    /// Gets a seat for a node, and keeps it.
    #[cfg(feature = "etcd")]
    pub(crate) fn keep(&self, who: Sitter, remote: Remote) -> Result<Option<Keeping>, DirectoryError> {
        use crate::etcd::{Etcd, Holder, Keeper, Reuse, Update};
        let Self::Etcd(endpoints) = self else { return Ok(None) };
        let etcd = Etcd::new(endpoints, who.prefix(), LEASE)?;
        let reuse = if who.repair == Repair::Manual { Reuse::Last } else { Reuse::Lowest };
        let Sitter { identity, name, addr, .. } = who;
        let tell = move |update| match update {
            Update::Mine(seat) => {
                tracing::info!(seat = seat.number, life = seat.life, "etcd gave us a seat");
                remote.tell(move |agent| agent.take_seat(seat.number, seat.life));
            }
            // Members tell each other where they sit.
            Update::All(_) => {}
            Update::Trouble(why) => tracing::warn!("the seat is kept as it is: {why}"),
        };
        let keeper = Keeper::start(etcd, Holder { identity, name, addr }, reuse, tell);
        Ok(Some(Keeping { keeper: keeper.map_err(|e| DirectoryError::Thread(e.to_string()))? }))
    }

    #[cfg(not(feature = "etcd"))]
    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "as with a directory outside")]
    pub(crate) fn keep(&self, _: Sitter, _: Remote) -> Result<Option<Keeping>, DirectoryError> {
        Ok(None)
    }
}

impl Keeping {
    /// Gives the seat back.
    #[cfg(feature = "etcd")]
    pub(crate) fn release(self) {
        if let Err(why) = self.keeper.release() {
            tracing::warn!("the seat runs out by itself: {why}");
        }
    }

    #[cfg(not(feature = "etcd"))]
    #[expect(clippy::unused_self, reason = "as with a directory outside")]
    pub(crate) fn release(self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_understood_or_refused_with_advice() {
        assert_eq!("cluster".parse(), Ok(Directory::Cluster));
        for odd in ["", "etcd", "zookeeper:http://a", "Cluster"] {
            assert_eq!(odd.parse::<Directory>(), Err(DirectoryError::Unknown(odd.to_owned())));
        }
        let etcd = "etcd:http://a:2379,http://b:2379".parse::<Directory>();
        #[cfg(not(feature = "etcd"))]
        assert!(etcd.unwrap_err().to_string().contains("--features etcd"));
        #[cfg(feature = "etcd")]
        {
            assert!(etcd.unwrap().is_outside());
            assert!("etcd:https://a".parse::<Directory>().unwrap_err().to_string().contains("TLS"));
        }
    }
}
