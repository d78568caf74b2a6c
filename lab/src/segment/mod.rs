//! Segments beside the baselines and zones (003 §4 and §5; BL-2).

pub(crate) mod compare;
