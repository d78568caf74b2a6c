//! The key-value space of an attempt: what its ranks have told each other.
//!
//! A pair is known on its own node at once and on all others after the next barrier: until then it is *fresh*, and travels with the
//! barrier. Everybody applies the same pairs in the same order, so a key that two ranks put is the same everywhere afterwards.
//!
//! ```text
//! pairs on their way:   2 2 length of key   key   2 2 length of value   value   …
//! ```

use super::wire::{KEY_MAX, VALUE_MAX};
use std::collections::BTreeMap;

/// The most that a space holds, keys and values together: 100,000 ranks with addresses of 600 bytes.
pub(super) const SPACE_MAX: usize = 64 << 20;

/// A space.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Kvs {
    pairs: BTreeMap<String, String>,
    bytes: usize,
    fresh: Vec<u8>,
}

impl Kvs {
    /// A rank here puts a pair.
    ///
    /// # Errors
    /// Why not, in words for the client. Nothing has changed then.
    pub(super) fn put(&mut self, key: String, value: String) -> Result<(), &'static str> {
        if key.is_empty() || key.len() > KEY_MAX || value.len() > VALUE_MAX {
            return Err("the key or the value is too long");
        }
        if self.bytes + key.len() + value.len() > SPACE_MAX {
            return Err("the key-value space is full");
        }
        write(&key, &value, &mut self.fresh);
        self.set(key, value);
        Ok(())
    }

    /// What is under a key.
    #[must_use]
    pub(super) fn value(&self, key: &str) -> Option<&str> {
        self.pairs.get(key).map(String::as_str)
    }

    /// Pairs that only this node knows, to be told to all; they are fresh no more.
    pub(super) fn take_fresh(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.fresh)
    }

    /// All pairs, for who has come late.
    #[must_use]
    pub(super) fn whole(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes + 4 * self.pairs.len());
        self.pairs.iter().for_each(|(key, value)| write(key, value, &mut bytes));
        bytes
    }

    /// Pairs that came from a node. False when they make no sense, from where on nothing is applied.
    pub(super) fn apply(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let Some((key, value, rest)) = read(bytes) else { return false };
            bytes = rest;
            if self.bytes + key.len() + value.len() <= SPACE_MAX {
                self.set(key, value);
            }
        }
        true
    }

    fn set(&mut self, key: String, value: String) {
        self.bytes += key.len() + value.len();
        let length = key.len();
        if let Some(before) = self.pairs.insert(key, value) {
            self.bytes -= length + before.len();
        }
    }
}

fn write(key: &str, value: &str, out: &mut Vec<u8>) {
    for text in [key, value] {
        out.extend((text.len() as u16).to_le_bytes());
        out.extend(text.as_bytes());
    }
}

fn read(bytes: &[u8]) -> Option<(String, String, &[u8])> {
    let text = |bytes: &'_ [u8], most: usize| -> Option<(String, usize)> {
        let (length, rest) = bytes.split_first_chunk()?;
        let length = usize::from(u16::from_le_bytes(*length));
        let text = rest.get(..length).filter(|_| length <= most)?;
        Some((std::str::from_utf8(text).ok()?.to_owned(), 2 + length))
    };
    let (key, first) = text(bytes, KEY_MAX)?;
    let (value, second) = text(&bytes[first..], VALUE_MAX)?;
    Some((key, value, &bytes[first + second..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(kvs: &mut Kvs, key: &str, value: &str) {
        kvs.put(key.into(), value.into()).unwrap();
    }

    #[test]
    fn what_was_put_here_is_known_there_after_it_travelled() {
        let (mut one, mut other) = (Kvs::default(), Kvs::default());
        put(&mut one, "a", "1");
        put(&mut one, "b", "with a space");
        assert_eq!(one.value("a"), Some("1"), "on its own node at once");
        assert!(other.apply(&one.take_fresh()));
        assert_eq!((other.value("a"), other.value("b")), (Some("1"), Some("with a space")));
        assert!(one.take_fresh().is_empty(), "it travels once");
        assert!(other.take_fresh().is_empty(), "and is not passed on");
    }

    #[test]
    fn who_comes_late_has_all_of_it() {
        let (mut one, mut late) = (Kvs::default(), Kvs::default());
        (0..100).for_each(|n| put(&mut one, &format!("k{n}"), "v"));
        put(&mut one, "k7", "again");
        assert!(late.apply(&one.whole()));
        assert_eq!((late.pairs.len(), late.value("k7"), late.bytes), (100, Some("again"), one.bytes));
    }

    #[test]
    fn what_is_too_long_is_refused_and_what_makes_no_sense_ends_there() {
        let mut kvs = Kvs::default();
        assert!(kvs.put("k".repeat(KEY_MAX + 1), "v".into()).is_err());
        assert!(kvs.put("k".into(), "v".repeat(VALUE_MAX + 1)).is_err());
        assert!(kvs.put(String::new(), "v".into()).is_err());
        put(&mut kvs, &"k".repeat(KEY_MAX), &"v".repeat(VALUE_MAX));
        let bytes = kvs.take_fresh();
        for cut in 1..bytes.len() {
            let mut other = Kvs::default();
            assert!(!other.apply(&bytes[..cut]) && other.pairs.is_empty(), "cut at {cut}");
        }
        assert!(!Kvs::default().apply(&[1, 0, 0xff, 0, 0]), "no text");
        assert!(!Kvs::default().apply(&[0xff, 0xff, 0, 0]), "longer than a key may be");
    }

    #[test]
    fn a_space_has_an_end() {
        let mut kvs = Kvs { bytes: SPACE_MAX - 3, ..Kvs::default() };
        put(&mut kvs, "a", "12");
        assert!(kvs.put("b".into(), String::new()).is_err());
        assert!(kvs.apply(&[1, 0, b'c', 0, 0]) && kvs.value("c").is_none());
    }
}
