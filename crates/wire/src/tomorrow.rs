//! What a later build may say that this one does not know: fields behind the known ones, and kinds of packets.
//!
//! A process of a debug build can be told to say such things ([`speak`]), so that the two run beside each other as during an upgrade
//! (`tests/cluster/tests/upgrade.rs`). Otherwise, and in each release build, nothing is appended and nothing is sent. (It was a
//! feature once: then the daemon had to be built a second time for two tests.)

#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

#[cfg(debug_assertions)]
static ON: AtomicBool = AtomicBool::new(false);

/// The longest that is put behind known fields.
pub const LONGEST: usize = 8;

/// From now on this process speaks as a later build may. Release builds cannot.
pub fn speak() {
    #[cfg(debug_assertions)]
    ON.store(true, Relaxed);
}

/// True in a process that speaks as a later build may.
#[must_use]
pub fn is_on() -> bool {
    #[cfg(debug_assertions)]
    return ON.load(Relaxed);
    #[cfg(not(debug_assertions))]
    false
}

/// Behind the last field that today's readers know.
#[must_use]
pub fn field() -> &'static [u8] {
    saying(b"tomorrow").unwrap_or_default()
}

/// A section of letters.
#[must_use]
pub fn section() -> &'static [u8] {
    saying(b"\xc8\x08\0\0\0tomorrow").unwrap_or_default()
}

/// Flags and reserved bytes of headers: bits that today nobody reads.
#[must_use]
pub fn bits() -> u8 {
    if is_on() { 0x80 } else { 0 }
}

/// A datagram of a kind that nobody knows: [`crate::outer`].
#[must_use]
pub fn packet() -> Option<&'static [u8]> {
    saying(b"\x1e a packet of a kind that nobody knows today")
}

/// A note of a kind that nobody knows: [`crate::zone::Note`].
#[must_use]
pub fn note() -> Option<&'static [u8]> {
    saying(b"\x01\xc8 a note")
}

/// A letter of a kind that nobody knows: [`crate::zone::Letter`].
#[must_use]
pub fn letter() -> Option<&'static [u8]> {
    saying(b"\x01\xc8\0\0\xc8\x08\0\0\0tomorrow")
}

/// A letter of a kind that nobody knows: [`crate::rumour::Letter`].
#[must_use]
pub fn rumour() -> Option<&'static [u8]> {
    saying(b"\x01\xc8 what people may tell each other some day")
}

fn saying(bytes: &'static [u8]) -> Option<&'static [u8]> {
    is_on().then_some(bytes)
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
