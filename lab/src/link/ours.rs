//! Our own layers, `cl` and `rcl`, beside the peers.
//!
//! CL-1, RL-2, RL-3. A layer belongs here as soon as the daemon's platform carries it between two processes; until then the list
//! is empty and the experiments say so in a note instead of a row.

use super::Layer;

/// `cl` and `rcl`.
pub(super) const LAYERS: &[Layer] = &[];
