//! The daemon's configuration: what can be set, where each value came from, and what is wrong with it.
//!
//! A value is looked for in four places, the first that has it wins: the command line, the environment (`PHALANX_…`), the
//! configuration file, the default. [`Layers`] gathers them and remembers the origin of each, for `config show --origin`.
//!
//! | file | idea |
//! |---|---|
//! | `table` | everything that can be set |
//! | `layers` | where values come from |
//! | `nearest` | what somebody may have meant |

mod layers;
mod nearest;
mod table;

pub use layers::{Layers, Origin};
pub use nearest::nearest;
pub use table::{Entry, Kind, TABLE};

use std::path::PathBuf;

/// What is wrong with a configuration, and what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {why}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// The file is no TOML.
    #[error("{}: {why}", path.display())]
    Text {
        /// Which file.
        path: PathBuf,
        /// What and where.
        why: String,
    },
    /// There is no such setting.
    #[error("{origin}: there is no setting `{key}`{}", meant(nearest.as_ref()))]
    Unknown {
        /// Where it stands.
        origin: Origin,
        /// What stands there.
        key: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
    },
    /// A value makes no sense.
    #[error("{origin}: `{key}`: {why}")]
    Value {
        /// Where it stands.
        origin: Origin,
        /// Of which setting.
        key: &'static str,
        /// What is wrong.
        why: String,
    },
}

fn meant(nearest: Option<&&'static str>) -> String {
    nearest.map_or_else(
        || ": `phalanx config show` lists all of them".to_owned(),
        |nearest| format!(": did you mean `{nearest}`?"),
    )
}
