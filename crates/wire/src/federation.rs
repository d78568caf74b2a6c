//! Federation (TG-9): what one data centre says of itself to another.
//!
//! `[version, 1, flags, 0]`, a body, and the crc32c of all of it, as in [`baseline`](crate::baseline). At most [`LENGTH_MAX`] bytes: it is one datagram
//! on any path. Numbers are written seven bits in a byte, texts behind their length.
//!
//! | body | |
//! |---|---|
//! | from, to | names of data centres |
//! | number | of this summary, among those from one to the other |
//! | heard | the number of the last summary that came the other way; flag 1: it came lately |
//! | members | how many live |
//! | digest ×8 | of all members: equal ones are as equal as can be seen from afar |
//! | services | how many follow; each with its name and how often it is offered, by name |
//! | more | services that found no room |

use crate::Malformed;
use crate::baseline::{NUMBER_MAX, checksum};
use crate::bytes::{array_at, crc32c};
use crate::codec::{Reader, put_bytes, put_number};

/// Layout of these packets.
pub const VERSION: u8 = 1;
/// Bytes in front of a body.
pub const HEADER: usize = 4;
/// Bytes behind a body.
pub const CHECKSUM: usize = 4;
/// The longest packet.
pub const LENGTH_MAX: usize = 1_200;
/// The longest name of a data centre or a service.
pub const NAME_MAX: usize = 63;
/// The most services that a summary names.
pub const SERVICES_MAX: usize = 64;

const SUMMARY: u8 = 1;
const HEARS: u8 = 1;

/// What a data centre says of itself to another.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary<'a> {
    /// Which one it is: 1 to [`NAME_MAX`] bytes.
    pub from: &'a str,
    /// Whom it speaks to.
    pub to: &'a str,
    /// Summaries from one to the other are counted.
    pub number: u64,
    /// The last one that came the other way; 0 for none.
    pub heard: u64,
    /// That one is reached now, as far as the sender knows.
    pub hears: bool,
    /// How many members live.
    pub members: u32,
    /// Of all of them.
    pub digest: u64,
    /// Services and how often each is offered, by name.
    pub services: Vec<(&'a str, u32)>,
    /// How many more there are.
    pub more: u32,
}

impl<'a> Summary<'a> {
    /// Checks a packet to its end.
    ///
    /// # Errors
    /// Each reason there is.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let Some((covered, sum)) = bytes.split_last_chunk::<CHECKSUM>().filter(|(c, _)| c.len() >= HEADER) else {
            return Err(Malformed::Truncated);
        };
        if covered[0] != VERSION {
            return Err(Malformed::Version);
        }
        if bytes.len() > LENGTH_MAX {
            return Err(Malformed::Inconsistent);
        }
        if u32::from_le_bytes(*sum) != crc32c(covered) {
            return Err(Malformed::Checksum);
        }
        if covered[1] != SUMMARY {
            return Err(Malformed::Unknown);
        }
        let mut rest = Reader(&covered[HEADER..]);
        let (from, to) = (text(&mut rest)?, text(&mut rest)?);
        let (number, heard) = (rest.number()?, rest.number()?);
        if number == 0 || number > NUMBER_MAX || heard > NUMBER_MAX || from == to {
            return Err(Malformed::Inconsistent);
        }
        let members = rest.u32()?;
        let digest = u64::from_le_bytes(array_at(rest.bytes(8)?, 0));
        let services = rest.list(|rest| Ok((text(rest)?, rest.u32()?)))?;
        let more = rest.u32()?;
        let is_sorted = services.is_sorted_by(|a, b| a.0 < b.0);
        if services.len() > SERVICES_MAX || !is_sorted || services.iter().any(|s| s.1 == 0) {
            return Err(Malformed::Inconsistent);
        }
        let hears = covered[2] & HEARS != 0;
        Ok(Self { from, to, number, heard, hears, members, digest, services, more })
    }

    /// Appends it. Services must stand in the order of their names.
    ///
    /// # Errors
    /// `Inconsistent` when it is too long, or could not be read again. Nothing was appended.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), Malformed> {
        let start = out.len();
        out.extend_from_slice(&[VERSION, SUMMARY, u8::from(self.hears) * HEARS, 0]);
        put_bytes(self.from.as_bytes(), out);
        put_bytes(self.to.as_bytes(), out);
        put_number(self.number, out);
        put_number(self.heard, out);
        put_number(self.members.into(), out);
        out.extend_from_slice(&self.digest.to_le_bytes());
        put_number(self.services.len() as u64, out);
        for &(name, count) in &self.services {
            put_bytes(name.as_bytes(), out);
            put_number(count.into(), out);
        }
        put_number(self.more.into(), out);
        checksum(start, out);
        let read = Summary::parse(&out[start..]).map(|_| ());
        if read.is_err() {
            out.truncate(start);
        }
        read.map_err(|_| Malformed::Inconsistent)
    }

    /// Bytes of a packet, but for its services.
    #[must_use]
    pub fn fixed(&self) -> usize {
        HEADER + 2 + self.from.len() + self.to.len() + 2 * NUMBER + 3 * COUNT + 8 + CHECKSUM
    }

    /// Bytes that a service takes at most.
    #[must_use]
    pub fn service(name: &str) -> usize {
        1 + name.len() + COUNT
    }
}

/// The longest number, and the longest count.
const NUMBER: usize = 9;
const COUNT: usize = 5;

fn text<'a>(rest: &mut Reader<'a>) -> Result<&'a str, Malformed> {
    let bytes = rest.lengthy(NAME_MAX)?;
    std::str::from_utf8(bytes).ok().filter(|t| !t.is_empty()).ok_or(Malformed::Inconsistent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn summary() -> Summary<'static> {
        Summary {
            from: "east",
            to: "west",
            number: 300,
            heard: 7,
            hears: true,
            members: 20,
            digest: 0x0102_0304_0506_0708,
            services: vec![("cache", 3), ("web", 1)],
            more: 2,
        }
    }

    fn written(body: &[u8]) -> Vec<u8> {
        let mut out = vec![VERSION, SUMMARY, HEARS, 0];
        out.extend(body);
        checksum(0, &mut out);
        out
    }

    #[test]
    fn golden_bytes() {
        let mut out = Vec::new();
        summary().encode(&mut out).unwrap();
        let body = b"\x04east\x04west\xac\x02\x07\x14\x08\x07\x06\x05\x04\x03\x02\x01\x02\x05cache\x03\x03web\x01\x02";
        assert_eq!(out, written(body));
        assert_eq!(Summary::parse(&out), Ok(summary()));
        // A newer peer may append.
        assert_eq!(Summary::parse(&written(&[&body[..], b"new"].concat())), Ok(summary()));
        assert!(out.len() <= summary().fixed() + ["cache", "web"].iter().map(|s| Summary::service(s)).sum::<usize>());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let golden = |s: Summary<'_>| s.encode(&mut Vec::new());
        let long = "x".repeat(NAME_MAX + 1);
        let names: Vec<String> = (0..=SERVICES_MAX).map(|n| format!("s{n:03}")).collect();
        let wide: Vec<String> = (0..SERVICES_MAX).map(|n| format!("{n:063}")).collect();
        for bad in [
            Summary { from: "", ..summary() },
            Summary { from: &long, ..summary() },
            Summary { to: "east", ..summary() },
            Summary { number: 0, ..summary() },
            Summary { number: NUMBER_MAX + 1, ..summary() },
            Summary { heard: NUMBER_MAX + 1, ..summary() },
            Summary { services: vec![("web", 1), ("cache", 1)], ..summary() },
            Summary { services: vec![("web", 1), ("web", 1)], ..summary() },
            Summary { services: vec![("web", 0)], ..summary() },
            Summary { services: vec![("", 1)], ..summary() },
            Summary { services: names.iter().map(|n| (n.as_str(), 1)).collect(), ..summary() },
            Summary { services: wide.iter().map(|n| (n.as_str(), 1)).collect(), ..summary() },
        ] {
            assert_eq!(golden(bad.clone()), Err(Malformed::Inconsistent), "{bad:?}");
        }
        assert_eq!(
            golden(Summary { services: names[1..].iter().map(|n| (n.as_str(), 1)).collect(), ..summary() }),
            Ok(())
        );
        let mut out = Vec::new();
        summary().encode(&mut out).unwrap();
        for (at, why) in [(0, Malformed::Version), (1, Malformed::Checksum), (9, Malformed::Checksum)] {
            let mut bad = out.clone();
            bad[at] ^= 4;
            assert_eq!(Summary::parse(&bad), Err(why));
        }
        let mut other = vec![VERSION, 9, 0, 0];
        checksum(0, &mut other);
        assert_eq!(Summary::parse(&other), Err(Malformed::Unknown));
        let body = &out[HEADER..out.len() - CHECKSUM];
        for cut in 0..body.len() {
            assert_eq!(Summary::parse(&written(&body[..cut])), Err(Malformed::Truncated), "{cut}");
        }
        assert_eq!(Summary::parse(&written(&vec![0; LENGTH_MAX])), Err(Malformed::Inconsistent));
        // A list that cannot be so long.
        assert_eq!(Summary::parse(&written(b"\x01a\x01b\x01\0\0xxxxxxxx\xff\xff\x03")), Err(Malformed::Truncated));
    }

    proptest! {
        #[test]
        fn decode_inverts_encode(
            from in "[a-d]{1,63}", to in "[e-h]{1,63}", number in 1..=NUMBER_MAX, heard in 0..=NUMBER_MAX,
            (hears, members, digest, more) in any::<(bool, u32, u64, u32)>(),
            services in prop::collection::btree_map("[a-z]{1,12}", 1u32.., 0..40),
        ) {
            let services: Vec<(&str, u32)> = services.iter().map(|(n, &c)| (n.as_str(), c)).collect();
            let summary = Summary { from: &from, to: &to, number, heard, hears, members, digest, services, more };
            let mut out = Vec::new();
            prop_assert_eq!(summary.encode(&mut out), Ok(()));
            let most = summary.fixed() + summary.services.iter().map(|s| Summary::service(s.0)).sum::<usize>();
            prop_assert!(out.len() <= most);
            prop_assert_eq!(Summary::parse(&out), Ok(summary));
        }

        #[test]
        fn no_bytes_panic(body in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Summary::parse(&body);
            let bytes = written(&body);
            if let Ok(summary) = Summary::parse(&bytes) {
                let mut again = Vec::new();
                prop_assert_eq!(summary.encode(&mut again), Ok(()));
                prop_assert_eq!(Summary::parse(&again), Ok(summary));
            }
        }
    }
}
