//! Why a run could not go on. What it measured before is lost; nothing else is touched.

use std::io;
use std::path::PathBuf;

/// Why a run could not go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// No experiment has that name.
    #[error("no experiment is called `{0}`: `phalanx lab ls` names them")]
    UnknownExperiment(String),
    /// No experiment has that role, or its arguments do not fit: parent and child are different builds.
    #[error("role `{0}` is unknown or its arguments do not fit: rebuild phalanx-lab")]
    UnknownRole(String),
    /// A child ended, or said something else than its role asks for.
    #[error("child `{role}` ended early or answered `{said}`")]
    Child {
        /// What it was to do.
        role: String,
        /// Its last line, empty when it ended.
        said: String,
    },
    /// A child said nothing for too long. It has been ended.
    #[error("child `{role}` was silent for {seconds} s")]
    Silent {
        /// What it was to do.
        role: String,
        /// How long its parent waited.
        seconds: f64,
    },
    /// The plot could not be drawn or written.
    #[error("cannot write the plot {path}: {reason}")]
    Plot {
        /// Where it was to go.
        path: PathBuf,
        /// What plotters says.
        reason: String,
    },
    /// The system refused something.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The system refused something.
    #[error(transparent)]
    Os(#[from] nix::Error),
    /// There is no network of its own to be had.
    #[error(transparent)]
    Network(#[from] phalanx_netlab::Error),
    /// A peer library refused something.
    #[error("{library}: {reason}")]
    Peer {
        /// Which.
        library: &'static str,
        /// What it says.
        reason: String,
    },
}

impl Error {
    /// A peer library's own error, for `map_err`.
    pub(crate) fn peer<E: std::fmt::Display>(library: &'static str) -> impl Fn(E) -> Self {
        move |e| Self::Peer { library, reason: e.to_string() }
    }
}
