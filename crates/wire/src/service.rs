//! A service, as a member's attribute tells of it (TG-4, AT-1): the value, `[layout]` and then items
//! `[kind, length, bytes]`. Items of a kind that a reader does not know it skips.
//!
//! | kind | bytes |
//! |---|---|
//! | 1 | a partition ×4, or the first and the last of several ×8 |
//! | 2 | a tag |
//! | 3 | a parameter: length of its key, key, value |

use crate::Malformed;
use crate::bytes::u32_at;

/// The most items of a service: what a query may have to look at.
pub const ITEMS_MAX: usize = 64;
/// The longest tag or key of a parameter, in bytes of UTF-8; the shortest has one.
pub const WORD_MAX: usize = 63;
/// The longest value of a parameter.
pub const VALUE_MAX: usize = u8::MAX as usize - 1 - WORD_MAX;

const LAYOUT: u8 = 1;
const HEAD: usize = 2;
const PARTITIONS: u8 = 1;
const TAG: u8 = 2;
const PARAMETER: u8 = 3;

/// Something that a service says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Item<'a> {
    /// The partitions of its data that it serves, from the first to the last.
    Partitions(u32, u32),
    /// A word.
    Tag(&'a str),
    /// A key and its value.
    Parameter(&'a str, &'a str),
}

impl Item<'_> {
    /// Appends the item.
    ///
    /// # Errors
    /// `Inconsistent` when a text is over its cap or the last partition is below the first. Nothing was appended.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), Malformed> {
        let word = |text: &str| (1..=WORD_MAX).contains(&text.len());
        match *self {
            Self::Partitions(first, last) if first == last => {
                out.extend_from_slice(&[PARTITIONS, 4]);
                out.extend_from_slice(&first.to_le_bytes());
            }
            Self::Partitions(first, last) if first < last => {
                out.extend_from_slice(&[PARTITIONS, 8]);
                out.extend_from_slice(&first.to_le_bytes());
                out.extend_from_slice(&last.to_le_bytes());
            }
            Self::Tag(tag) if word(tag) => {
                out.extend_from_slice(&[TAG, tag.len() as u8]);
                out.extend_from_slice(tag.as_bytes());
            }
            Self::Parameter(key, value) if word(key) && value.len() <= VALUE_MAX => {
                out.extend_from_slice(&[PARAMETER, (1 + key.len() + value.len()) as u8, key.len() as u8]);
                out.extend_from_slice(key.as_bytes());
                out.extend_from_slice(value.as_bytes());
            }
            Self::Partitions(..) | Self::Tag(_) | Self::Parameter(..) => return Err(Malformed::Inconsistent),
        }
        Ok(())
    }

    /// The item's meaning; `None` for a kind that this build does not know.
    fn parse(kind: u8, body: &[u8]) -> Result<Option<Item<'_>>, Malformed> {
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| Malformed::Inconsistent);
        let word = |bytes: &[u8]| (1..=WORD_MAX).contains(&bytes.len());
        match kind {
            PARTITIONS if body.len() == 4 => Ok(Some(Item::Partitions(u32_at(body, 0), u32_at(body, 0)))),
            PARTITIONS if body.len() == 8 && u32_at(body, 0) < u32_at(body, 4) => {
                Ok(Some(Item::Partitions(u32_at(body, 0), u32_at(body, 4))))
            }
            TAG if word(body) => Ok(Some(Item::Tag(text(body)?))),
            PARAMETER => {
                let (&length, rest) = body.split_first().ok_or(Malformed::Truncated)?;
                let (key, value) = rest.split_at_checked(length.into()).ok_or(Malformed::Truncated)?;
                if !word(key) || value.len() > VALUE_MAX {
                    return Err(Malformed::Inconsistent);
                }
                Ok(Some(Item::Parameter(text(key)?, text(value)?)))
            }
            PARTITIONS | TAG => Err(Malformed::Inconsistent),
            _ => Ok(None),
        }
    }
}

/// A checked value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Service<'a> {
    items: &'a [u8],
}

impl<'a> Service<'a> {
    /// Begins a value; items follow.
    pub fn begin(out: &mut Vec<u8>) {
        out.push(LAYOUT);
    }

    /// Reads a value and checks everything in it.
    ///
    /// # Errors
    /// `Truncated`, `Version`, or `Inconsistent` for anything over its cap and for text that is none.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (&layout, items) = bytes.split_first().ok_or(Malformed::Truncated)?;
        if layout != LAYOUT {
            return Err(Malformed::Version);
        }
        let mut rest = items;
        for count in 0.. {
            let Some((kind, body, behind)) = split(rest) else {
                return if rest.is_empty() { Ok(Self { items }) } else { Err(Malformed::Truncated) };
            };
            if count == ITEMS_MAX {
                break;
            }
            Item::parse(kind, body)?;
            rest = behind;
        }
        Err(Malformed::Inconsistent)
    }

    /// What it says of itself, in the order of writing.
    pub fn items(&self) -> impl Iterator<Item = Item<'a>> + use<'a> {
        let mut rest = self.items;
        std::iter::from_fn(move || {
            let (kind, body, behind) = split(rest)?;
            rest = behind;
            Some(Item::parse(kind, body).ok().flatten())
        })
        .flatten()
    }
}

/// The first item, and what is behind it.
fn split(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let (body, behind) = rest.split_at_checked(head[1].into())?;
    Some((head[0], body, behind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn written(items: &[Item<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        Service::begin(&mut out);
        items.iter().for_each(|item| item.encode(&mut out).unwrap());
        out
    }

    #[test]
    fn golden_bytes() {
        let items = [Item::Partitions(3, 5), Item::Partitions(9, 9), Item::Tag("hot"), Item::Parameter("proto", "h2")];
        let bytes = written(&items);
        let golden = b"\x01\x01\x08\x03\0\0\0\x05\0\0\0\x01\x04\x09\0\0\0\x02\x03hot\x03\x08\x05protoh2";
        assert_eq!(bytes, golden);
        assert_eq!(Service::parse(&bytes).unwrap().items().collect::<Vec<_>>(), items);
    }

    #[test]
    fn what_is_unknown_is_skipped_and_what_is_wrong_is_refused() {
        let known: Vec<_> = Service::parse(b"\x01\x09\x02??\x02\x01a").unwrap().items().collect();
        assert_eq!(known, [Item::Tag("a")]);
        for (bytes, why) in [
            (&b""[..], Malformed::Truncated),
            (b"\x02", Malformed::Version),
            (b"\x01\x02", Malformed::Truncated),
            (b"\x01\x02\x05abc", Malformed::Truncated),
            (b"\x01\x02\x00", Malformed::Inconsistent),
            (b"\x01\x02\x01\xff", Malformed::Inconsistent),
            (b"\x01\x01\x02\0\0", Malformed::Inconsistent),
            (b"\x01\x01\x08\x05\0\0\0\x03\0\0\0", Malformed::Inconsistent),
            (b"\x01\x03\x00", Malformed::Truncated),
            (b"\x01\x03\x02\x05a", Malformed::Truncated),
        ] {
            assert_eq!(Service::parse(bytes), Err(why), "{bytes:?}");
        }
        let full = written(&vec![Item::Tag("t"); ITEMS_MAX]);
        assert!(Service::parse(&full).is_ok());
        assert_eq!(Service::parse(&[&full[..], b"\x02\x01t"].concat()), Err(Malformed::Inconsistent));
    }

    #[test]
    fn what_is_over_a_cap_is_not_written() {
        let long = "x".repeat(VALUE_MAX + 1);
        let mut out = Vec::new();
        for item in [
            Item::Tag(""),
            Item::Tag(&long),
            Item::Parameter("", "v"),
            Item::Parameter("k", &long),
            Item::Partitions(4, 3),
        ] {
            assert_eq!(item.encode(&mut out), Err(Malformed::Inconsistent));
        }
        assert!(out.is_empty());
        let widest = written(&[Item::Parameter(&long[..WORD_MAX], &long[..VALUE_MAX])]);
        assert!(Service::parse(&widest).is_ok());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in vec(any::<u8>(), 0..200)) {
            let framed: Vec<u8> = [LAYOUT].into_iter().chain(bytes.clone()).collect();
            for bytes in [&bytes[..], &framed] {
                if let Ok(service) = Service::parse(bytes) {
                    prop_assert!(service.items().count() <= ITEMS_MAX);
                }
            }
        }
    }
}
