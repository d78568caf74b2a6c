//! A member's card: who it is, what it is called, and where it is reached (the paper's ID).

use phalanx_core::{Addr, Identity};
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// The longest name.
pub const NAME_MAX: usize = 63;

/// A member's name: 1 to [`NAME_MAX`] letters, digits, dots, hyphens and underscores.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// Why a text is no name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NameError {
    /// Too short or too long.
    #[error("a name has 1 to {NAME_MAX} characters, not {0}")]
    Length(usize),
    /// A character that names do not have.
    #[error("`{0}` cannot be in a name: use letters, digits, `.`, `-` and `_`")]
    Character(char),
}

impl Name {
    /// Checks a text and makes it a name.
    ///
    /// # Errors
    /// When it is empty, too long, or has other characters.
    pub fn new(text: &str) -> Result<Self, NameError> {
        Self::check(text).map(|()| Self(text.into()))
    }

    /// True when the text can be a name.
    #[must_use]
    pub fn is_valid(text: &str) -> bool {
        Self::check(text).is_ok()
    }

    fn check(text: &str) -> Result<(), NameError> {
        if text.is_empty() || text.len() > NAME_MAX {
            return Err(NameError::Length(text.chars().count()));
        }
        let bad = text.chars().find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '-' | '_'));
        bad.map_or(Ok(()), |bad| Err(NameError::Character(bad)))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// ZN-1: who a member is. The identity stays; name and address belong to it and may change.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Card {
    /// Its key.
    pub identity: Identity,
    /// Where it listens.
    pub addr: Addr,
    /// What people call it.
    pub name: Name,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(Name::new("rack-3.node_17").unwrap().as_str(), "rack-3.node_17");
        assert_eq!(Name::new(""), Err(NameError::Length(0)));
        assert_eq!(Name::new(&"x".repeat(64)), Err(NameError::Length(64)));
        assert_eq!(Name::new("a b"), Err(NameError::Character(' ')));
        assert_eq!(Name::new("grün"), Err(NameError::Character('ü')));
    }
}
