//! Views: how long a wave takes and how many are needed (000 §4 and §7), beside the paper's models.

pub(crate) mod crash;
pub(crate) mod model;
pub(crate) mod multifail;
mod real;
pub(crate) mod stabilization;
