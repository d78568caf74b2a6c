//! Memory asked for before it is needed: with a million nodes each event touches lines that no cache holds.

/// Asks the processor for `items[i]`, which may lie across two cache lines.
#[inline]
#[allow(unsafe_code)]
pub(crate) fn fetch<T>(items: &[T], i: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(item) = items.get(i) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let place = std::ptr::from_ref(item).cast::<i8>();
        // SAFETY: a prefetch changes no state and faults on no address; both addresses are inside `items`.
        // Measured: without it the race against `BinaryHeap` loses about a third of its lead.
        unsafe {
            _mm_prefetch(place, _MM_HINT_T0);
            _mm_prefetch(place.wrapping_add(size_of::<T>() - 1), _MM_HINT_T0);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (items, i);
}
