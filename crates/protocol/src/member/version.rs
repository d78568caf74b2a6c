//! A member's version: `⟨incarnation, minor⟩`, compared in this order.

use std::fmt;

/// ZN-1: which life of a node, and how often it spoke up for itself in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version {
    /// Grows with each start of the node: `max(persisted + 1, wall seconds)`.
    pub incarnation: u64,
    /// Begins at 1 in each incarnation; only the node itself raises it.
    pub minor: u32,
}

impl Version {
    /// The first version of an incarnation.
    #[must_use]
    pub const fn first(incarnation: u64) -> Self {
        Self { incarnation, minor: 1 }
    }

    /// The next one: what a node says that was doubted. A minor that has no next begins a new incarnation.
    #[must_use]
    pub const fn next(self) -> Self {
        match self.minor.checked_add(1) {
            Some(minor) => Self { minor, ..self },
            None => Self { incarnation: self.incarnation.saturating_add(1), minor: 1 },
        }
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.incarnation, self.minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incarnation_outweighs_any_minor() {
        let old = Version { incarnation: 7, minor: u32::MAX };
        assert!(Version::first(8) > old && old.next() == Version::first(8));
        assert_eq!(Version::first(8).next(), Version { incarnation: 8, minor: 2 });
    }
}
