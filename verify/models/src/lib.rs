//! Model checking with `stateright`, on the very machines that daemons run.
//!
//! | module | machine |
//! |---|---|
//! | [`view`] | `protocol::view::Member`: one view for each job |
//! | [`cast`] | `protocol::cast::Caster`: broadcasts that reach everybody once |
//! | [`explore`] | how they are explored |

pub mod cast;
pub mod explore;
pub mod view;
