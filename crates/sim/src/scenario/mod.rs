//! Scenarios: a run written down in TOML, so that anyone can write one, and so that a red one can be kept.
//!
//! A scenario names the cluster, the network between its nodes, what the nodes do ([`Workload`]), a timeline of faults,
//! how long the two phases last, what to measure, and what must hold beyond the checkers. `docs/scenarios.md` is the
//! guide for those who write them.
//!
//! | file | idea |
//! |---|---|
//! | `text` | the fields, and the scenario they make |
//! | `engine` | fields of membership engines |
//! | `job` | tasks of a job: fields, roles, what they told |
//! | `problem` | what is wrong, with its line and what is accepted |
//! | `set` | `--set key=value` |
//! | `entry`, `select`, `span` | the timeline: what, on whom, when |
//! | `measure`, `told`, `expect` | what a run counts, what its members told, and bounds on both |
//! | `load` | workloads: their names, and the roles that nodes play in them |
//! | `run`, `subject` | carries a scenario out, on links or on members |
//! | `draw`, `draw_members`, `draw_jobs`, `draw_casts`, `swarm` | many scenarios, drawn from seeds and run on all cores |
//!
//! [`Workload`]: crate::station::Workload

mod draw;
mod draw_casts;
mod draw_jobs;
mod draw_managers;
mod draw_members;
mod engine;
mod entry;
mod expect;
mod job;
mod load;
mod measure;
mod problem;
mod run;
mod select;
mod set;
mod span;
mod subject;
mod swarm;
mod text;
mod told;

pub use draw::{WORKLOADS, draw};
pub use engine::{Engine, Members, Membership, Writes};
pub use expect::Bound;
pub use measure::{Measures, names};
pub use problem::ScenarioError;
pub use run::{Missed, Outcome};
pub use swarm::{Red, Run, Summary, Swarm, drawn, swarm};
pub use text::{Phases, Runs, Scenario};
pub use told::NEVER;
