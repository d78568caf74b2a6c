//! Model checking with `stateright`, on the very machines that daemons run.
//!
//! | module | machine |
//! |---|---|
//! | [`view`] | `protocol::view::Member`: one view for each job |

pub mod view;
