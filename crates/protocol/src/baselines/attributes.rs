//! A member's attributes as their encoded bytes: compared as a whole, taken apart only where they differ.

use phalanx_core::Code;
use phalanx_wire::baseline::{ATTRIBUTES_MAX, Attributes, KEY_MAX, VALUE_MAX};
use std::collections::BTreeMap;

/// Bytes that were checked when they came, as attributes again.
pub(crate) fn view(bytes: &[u8]) -> Attributes<'_> {
    Attributes::parse(bytes).unwrap_or_default()
}

/// These attributes with `key` written, or removed.
///
/// # Errors
/// `InvalidArgs` when key or value are over their caps, `LocalResource` when all together are.
pub(crate) fn with(bytes: &[u8], key: &str, value: Option<&[u8]>) -> Result<Box<[u8]>, Code> {
    if key.is_empty() || key.len() > KEY_MAX || value.is_some_and(|v| v.len() > VALUE_MAX) {
        return Err(Code::InvalidArgs);
    }
    let mut map: BTreeMap<_, _> = view(bytes).iter().collect();
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(key),
    };
    let mut out = Vec::new();
    map.iter().for_each(|(key, value)| Attributes::encode_pair(key, value, &mut out));
    if out.len() > ATTRIBUTES_MAX { Err(Code::LocalResource) } else { Ok(out.into()) }
}

/// Tells each key whose value is another one in `new` than in `old`, in the order of keys.
pub(crate) fn differences<'a>(
    old: Attributes<'a>,
    new: Attributes<'a>,
    mut tell: impl FnMut(&'a str, Option<&'a [u8]>),
) {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        match (old.peek().copied(), new.peek().copied()) {
            (None, None) => return,
            (Some((key, _)), None) => {
                tell(key, None);
                old.next();
            }
            (Some((before, _)), Some((after, _))) if before < after => {
                tell(before, None);
                old.next();
            }
            (Some((before, was)), Some((after, value))) if before == after => {
                if was != value {
                    tell(after, Some(value));
                }
                old.next();
                new.next();
            }
            (_, Some((key, value))) => {
                tell(key, Some(value));
                new.next();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Box<[u8]> {
        pairs.iter().fold(Box::default(), |map, (k, v)| with(&map, k, Some(v.as_bytes())).unwrap())
    }

    #[test]
    fn equal_maps_have_equal_bytes() {
        assert_eq!(map(&[("a", "1"), ("b", "2")]), map(&[("b", "3"), ("a", "1"), ("b", "2")]));
        assert_eq!(with(&map(&[("a", "1"), ("b", "2")]), "a", None), Ok(map(&[("b", "2")])));
    }

    #[test]
    fn caps_refuse_and_leave_the_map_alone() {
        let full = map(&[("a", &"x".repeat(250)), ("b", &"x".repeat(250))]);
        assert_eq!(with(&full, "c", Some(b"123456")), Err(Code::LocalResource));
        assert!(with(&full, "a", Some(b"")).is_ok(), "what shrinks the map is always possible");
        for (key, value) in [("", 1), (&*"k".repeat(64), 1), ("k", 256)] {
            assert_eq!(with(&[], key, Some(&vec![0; value])), Err(Code::InvalidArgs));
        }
    }

    #[test]
    fn differences_are_told_once_each() {
        let (old, new) = (map(&[("a", "1"), ("b", "1"), ("d", "1")]), map(&[("b", "2"), ("c", "1"), ("d", "1")]));
        let mut told = Vec::new();
        differences(view(&old), view(&new), |k, v| told.push((k, v.map(<[u8]>::to_vec))));
        assert_eq!(told, [("a", None), ("b", Some(b"2".to_vec())), ("c", Some(b"1".to_vec()))]);
    }
}
