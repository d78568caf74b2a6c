//! Bytes that several hold.

use crate::buf::Buf;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A buffer, or a part of it. Cloning copies nothing; the last holder gives the buffer back to its pool.
#[derive(Clone)]
pub struct Shared {
    buf: Arc<Buf>,
    range: Range<usize>,
}

impl Shared {
    /// A part of it.
    ///
    /// # Panics
    /// Past its end.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} bytes", self.len());
        let start = self.range.start + range.start;
        Self { buf: Arc::clone(&self.buf), range: start..start + range.len() }
    }

    /// The part of it that `part` is, which was found in its bytes; a copy of it when it was not.
    #[must_use]
    pub fn part(&self, part: &[u8]) -> Self {
        let start = (part.as_ptr() as usize).wrapping_sub(self.as_ptr() as usize);
        match start.checked_add(part.len()) {
            Some(end) if end <= self.len() => self.slice(start..end),
            _ => Self::from(part),
        }
    }
}

impl From<Buf> for Shared {
    fn from(buf: Buf) -> Self {
        let range = 0..buf.bytes().len();
        Self { buf: Arc::new(buf), range }
    }
}

impl From<&[u8]> for Shared {
    fn from(bytes: &[u8]) -> Self {
        Self::from(Buf::copy_of(bytes))
    }
}

impl<const N: usize> From<&[u8; N]> for Shared {
    fn from(bytes: &[u8; N]) -> Self {
        Self::from(&bytes[..])
    }
}

impl Default for Shared {
    fn default() -> Self {
        Self::from(&[])
    }
}

impl Deref for Shared {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.buf.bytes()[self.range.clone()]
    }
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Shared {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl Eq for Shared {}

impl Hash for Shared {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self[..].hash(state);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({} B)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_shared_and_what_is_none_is_copied() {
        let whole = Shared::from(b"head: body");
        let body = whole.slice(6..10);
        assert_eq!((&body[..], &body.slice(1..2)[..]), (&b"body"[..], &b"o"[..]));
        let found = whole.part(&whole[6..]);
        assert_eq!((found.as_ptr(), &found), (body.as_ptr(), &body));
        assert_eq!(&whole.part(b"other")[..], b"other");
        assert_eq!(&body.part(&whole)[..], b"head: body", "more than it has");
        assert_ne!(body, whole);
        drop(whole);
        assert_eq!(&body[..], b"body");
    }

    #[test]
    #[should_panic(expected = "3..11 of 10 bytes")]
    fn nothing_is_past_the_end() {
        let _ = Shared::from(b"head: body").slice(3..11);
    }
}
