//! Scenarios: a run written down in TOML, so that anyone can write one, and so that a red one can be kept.
//!
//! A scenario names the cluster, the network between its nodes, what the nodes do ([`Workload`]), a timeline of faults,
//! how long the two phases last, what to measure, and what must hold beyond the checkers. `docs/scenarios.md` is the
//! guide for those who write them.
//!
//! | file | idea |
//! |---|---|
//! | `text` | the fields, and the scenario they make |
//! | `problem` | what is wrong, with its line and what is accepted |
//! | `set` | `--set key=value` |
//! | `entry`, `select`, `span` | the timeline: what, on whom, when |
//! | `measure`, `expect` | what a run counts, and bounds on it |
//! | `load` | workloads: their names, and the roles that nodes play in them |
//! | `run` | carries a scenario out |
//! | `draw`, `swarm` | many scenarios, drawn from seeds and run on all cores |
//!
//! [`Workload`]: crate::station::Workload

mod draw;
mod entry;
mod expect;
mod load;
mod measure;
mod problem;
mod run;
mod select;
mod set;
mod span;
mod swarm;
mod text;

pub use draw::{WORKLOADS, draw};
pub use expect::Bound;
pub use measure::{Measures, names};
pub use problem::ScenarioError;
pub use run::{Missed, Outcome};
pub use swarm::{Red, Run, Summary, Swarm, swarm};
pub use text::{Phases, Scenario};
