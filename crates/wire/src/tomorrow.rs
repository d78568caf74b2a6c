//! What a later build may say that this one does not know: fields behind the known ones, and kinds of packets.
//!
//! A build with the feature `tomorrow` says such things, so that the two can be run beside each other, as during an upgrade
//! (`tests/cluster/tests/upgrade.rs`). Without the feature nothing is appended and nothing is sent.

/// True in a build that speaks as a later one may.
pub const ON: bool = cfg!(feature = "tomorrow");

/// Behind the last field that today's readers know.
pub const FIELD: &[u8] = if ON { b"tomorrow" } else { &[] };

/// A section of letters.
pub const SECTION: &[u8] = if ON { b"\xc8\x08\0\0\0tomorrow" } else { &[] };

/// Flags and reserved bytes of headers: bits that today nobody reads.
pub const BITS: u8 = if ON { 0x80 } else { 0 };

/// A datagram of a kind that nobody knows: [`crate::outer`].
pub const PACKET: Option<&[u8]> = saying(b"\x1e a packet of a kind that nobody knows today");

/// A note of a kind that nobody knows: [`crate::zone::Note`].
pub const NOTE: Option<&[u8]> = saying(b"\x01\xc8 a note");

/// A letter of a kind that nobody knows: [`crate::zone::Letter`].
pub const LETTER: Option<&[u8]> = saying(b"\x01\xc8\0\0\xc8\x08\0\0\0tomorrow");

/// A letter of a kind that nobody knows: [`crate::rumour::Letter`].
pub const RUMOUR: Option<&[u8]> = saying(b"\x01\xc8 what people may tell each other some day");

const fn saying(bytes: &'static [u8]) -> Option<&'static [u8]> {
    if ON { Some(bytes) } else { None }
}

#[cfg(test)]
mod tests {
    use crate::{Malformed, outer, rumour, zone};

    /// What tomorrow's kinds begin with is refused as unknown, and as nothing worse.
    #[test]
    fn kinds_of_tomorrow_are_unknown_today() {
        assert_eq!(outer::kind_of(b"\x1e"), Err(Malformed::Unknown));
        assert_eq!(zone::Note::parse(b"\x01\xc8 a note"), Err(Malformed::Unknown));
        assert_eq!(zone::Letter::parse(b"\x01\xc8\0\0\xc8\x08\0\0\0tomorrow"), Err(Malformed::Unknown));
        let rumour = [&b"\x01\xc8"[..], &[0; 30]].concat();
        assert_eq!(rumour::Letter::parse(&rumour), Err(Malformed::Unknown));
    }
}
