//! Why etcd did not do what it was asked for, and what to do about it.

use std::time::Duration;

/// Why something could not be done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// No place to ask was given.
    #[error("no etcd is named: give one endpoint at least, as http://HOST:2379")]
    Nowhere,
    /// An endpoint is not well formed.
    #[error("`{text}` is no endpoint of etcd ({why}): write http://HOST:2379")]
    Url {
        /// As it was given.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// An endpoint wants TLS.
    #[error(
        "`{0}` wants TLS, which is not spoken here: put a local proxy that does in front, and name it as http://HOST:PORT"
    )]
    Tls(String),
    /// A prefix is not well formed.
    #[error("`{0}` is no prefix: write /NAME/ with a slash at the end, other than `/`")]
    Prefix(String),
    /// A lease would be too short.
    #[error("leases of {0:?} are too short for etcd: take a second or more")]
    Ttl(Duration),
    /// No endpoint answers; each with its reason.
    #[error("etcd does not answer ({0}): see that it runs, has a leader, and can be reached from here")]
    Unreachable(String),
    /// It said no.
    #[error("etcd at {endpoint} refuses: {said} (code {code})")]
    Refused {
        /// Who said so.
        endpoint: String,
        /// Of gRPC.
        code: u32,
        /// In its words.
        said: String,
    },
    /// What answers is not etcd as we know it.
    #[error("{endpoint} gives an odd answer ({why}): see that it is an etcd, 3.4 or newer, with its JSON gateway on")]
    Odd {
        /// Who said so.
        endpoint: String,
        /// What is wrong with it.
        why: String,
    },
    /// What is kept beneath our prefix is not ours.
    #[error("{0}: remove it, or take another prefix")]
    Data(String),
    /// The seat is no longer ours.
    #[error("the seat is lost, its lease ran out: claim one anew")]
    Lost,
    /// Others were faster each time.
    #[error("others were faster to each free seat: claim again in a while")]
    Crowded,
    /// All numbers are taken.
    #[error("no seat is left")]
    Full,
}

impl EtcdError {
    /// True when etcd said no with this code.
    pub(super) fn is_refusal(&self, with: u32) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == with)
    }
}
