//! The protocol machines of Phalanx, a folder each. Only `node` knows its siblings; `member` holds the words that all
//! membership engines share, and `directory` finds services through any of them.

pub mod baselines;
pub mod cast;
pub mod company;
pub mod directory;
pub mod federation;
pub mod link;
pub mod manager;
pub mod member;
pub mod node;
pub mod order;
pub mod rumour;
pub mod segment;
pub mod view;
pub mod zone;
