//! Memory asked for before it is needed: with many nodes each event touches lines that no cache holds.
//!
//! Measured with 10,000 nodes that send each other heartbeats through their links: half of the time went into waiting
//! for a peer's session to come from memory.

use std::ops::Range;

/// Bytes of a cache line.
pub const LINE: usize = 64;
/// Lines asked for at once. Processors track fewer that are on their way, and begin the others as soon as they can; a
/// million nodes booted fastest so.
const LINES_MAX: usize = 32;

/// Asks the processor for `item`, at most its first few cache lines. Changes nothing but when it will be there.
#[inline]
pub fn fetch<T: ?Sized>(item: &T) {
    fetch_lines(std::ptr::from_ref(item).cast(), size_of_val(item));
}

/// Asks the processor for a part of `item`, given in bytes from its beginning. Reads nothing, so a part behind a
/// discriminant may be asked for before anybody knows whether it is there.
#[inline]
pub fn fetch_part<T>(item: &T, part: Range<usize>) {
    let place = std::ptr::from_ref(item).cast::<u8>();
    fetch_lines(place.wrapping_add(part.start), part.end.min(size_of::<T>()).saturating_sub(part.start));
}

/// Asks the processor for the beginning of `bytes`.
#[inline]
pub fn fetch_bytes(bytes: &[u8]) {
    fetch_lines(bytes.as_ptr(), bytes.len().min(2 * LINE));
}

#[inline]
#[allow(unsafe_code)]
fn fetch_lines(place: *const u8, length: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..length.div_ceil(LINE).min(LINES_MAX) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch changes no state and faults on no address; these are inside the item.
        unsafe { _mm_prefetch(place.wrapping_add(line * LINE).cast(), _MM_HINT_T0) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (place, length);
}
