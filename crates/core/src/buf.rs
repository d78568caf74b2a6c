//! Packet buffers from a pool (CL-2), and messages by reference for very large simulated runs.
//!
//! A [`Buf`] owns its bytes and returns them to its thread's pool when dropped, so a steady stream of messages
//! allocates nothing. It has head room, so that a header is written in front of a payload that is in place already.
//!
//! In the simulator a large immutable message may travel as a [`Snapshot`] that is *attached* to the packet:
//! it counts with its encoded length, and nobody encodes, copies or decodes it. [`Buf::materialize`] turns such
//! a packet into the bytes it stands for; a fault that modifies bits does so first.

use crate::fetch::{fetch, fetch_bytes};
use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// An immutable message that knows its encoded length.
pub trait Snapshot: Send + Sync + fmt::Debug {
    /// Bytes that [`Snapshot::encode`] gives for the whole message.
    fn encoded_len(&self) -> usize;
    /// Appends the bytes `range` of the encoded message to `out`.
    fn encode(&self, range: Range<usize>, out: &mut Vec<u8>);
    /// For the receiver, which knows the type behind it.
    fn as_any(&self) -> &dyn Any;
}

/// A message as it is handed on.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Its bytes.
    Bytes(&'a [u8]),
    /// By reference, in simulated networks that ask for it.
    Snapshot(&'a Arc<dyn Snapshot>),
}

/// A range of a snapshot that stands inside a packet in place of its bytes.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// Where in the packet its bytes would begin.
    pub at: usize,
    /// The message.
    pub snapshot: Arc<dyn Snapshot>,
    /// Which of its encoded bytes.
    pub range: Range<usize>,
}

/// A packet under construction or on its way.
pub struct Buf {
    bytes: Vec<u8>,
    head: usize,
    attached: Option<Box<Attachment>>,
}

/// Capacities of pooled buffers: heartbeats, hellos, small packets, an Ethernet frame, a jumbo frame, our largest datagram, UDP's.
const CLASSES: [usize; 7] = [128, 256, 512, 2048, 9_216, 16_640, 65_536];
/// Free buffers kept for each class and thread; more are given back to the allocator. The classes above a
/// frame are rare and large: fewer of them.
const KEPT: [usize; 7] = [65_536, 16_384, 16_384, 8_192, 1_024, 1_024, 64];

thread_local! {
    static POOL: RefCell<[Vec<Vec<u8>>; CLASSES.len()]> = const { RefCell::new([const { Vec::new() }; CLASSES.len()]) };
}

impl Buf {
    /// An empty buffer with room for `capacity` bytes behind `head` bytes of head room.
    #[inline]
    #[must_use]
    pub fn new(head: usize, capacity: usize) -> Self {
        let mut bytes = take(head + capacity);
        bytes.resize(head, 0);
        Self { bytes, head, attached: None }
    }

    /// A buffer that holds a copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::new(0, bytes.len());
        buf.extend(bytes);
        buf
    }

    /// The bytes (without what is only attached).
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.head..]
    }

    /// The bytes, to be changed.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.head..]
    }

    /// The bytes to be opened in place, and what is attached to them.
    #[inline]
    pub fn parts_mut(&mut self) -> (&mut [u8], Option<&Attachment>) {
        (&mut self.bytes[self.head..], self.attached.as_deref())
    }

    /// Asks the processor for its beginning and for what says what is attached.
    #[inline]
    pub fn fetch(&self) {
        fetch_bytes(self.bytes());
        if let Some(attached) = &self.attached {
            fetch(&**attached);
        }
    }

    /// Length on the wire, attached bytes included.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.head + self.attached.as_ref().map_or(0, |a| a.range.len())
    }

    /// True when it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Head room left.
    #[must_use]
    pub fn head_room(&self) -> usize {
        self.head
    }

    /// Appends `bytes`.
    #[inline]
    pub fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Cuts the bytes behind `len`.
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(self.head + len);
    }

    /// Opens `n` bytes of the head room as the new beginning and returns them.
    ///
    /// # Panics
    /// When less head room is left: how much a layer prepends is a constant of that layer.
    #[inline]
    pub fn prepend(&mut self, n: usize) -> &mut [u8] {
        assert!(n <= self.head, "{n} bytes of head room asked for, {} left", self.head);
        self.head -= n;
        if let Some(a) = &mut self.attached {
            a.at += n;
        }
        &mut self.bytes[self.head..self.head + n]
    }

    /// Direct access for encoders that append. Do not shorten it below the head room.
    pub fn vec_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Attaches `range` of `snapshot` at the present end.
    pub fn attach(&mut self, snapshot: Arc<dyn Snapshot>, range: Range<usize>) {
        let at = self.bytes.len() - self.head;
        self.attached = Some(Box::new(Attachment { at, snapshot, range }));
    }

    /// What is attached.
    #[must_use]
    pub fn attached(&self) -> Option<&Attachment> {
        self.attached.as_deref()
    }

    /// Replaces an attachment by the bytes it stands for.
    pub fn materialize(&mut self) {
        let Some(a) = self.attached.take() else {
            return;
        };
        let mut all = take(self.len() + a.range.len());
        all.extend_from_slice(&self.bytes()[..a.at]);
        a.snapshot.encode(a.range.clone(), &mut all);
        all.extend_from_slice(&self.bytes()[a.at..]);
        give(std::mem::replace(&mut self.bytes, all));
        self.head = 0;
    }
}

impl Drop for Buf {
    #[inline]
    fn drop(&mut self) {
        give(std::mem::take(&mut self.bytes));
    }
}

impl Clone for Buf {
    fn clone(&self) -> Self {
        let mut bytes = take(self.bytes.len());
        bytes.extend_from_slice(&self.bytes);
        Self { bytes, head: self.head, attached: self.attached.clone() }
    }
}

impl PartialEq for Buf {
    fn eq(&self, other: &Self) -> bool {
        let same_attachment = match (&self.attached, &other.attached) {
            (None, None) => true,
            (Some(a), Some(b)) => a.at == b.at && a.range == b.range && Arc::ptr_eq(&a.snapshot, &b.snapshot),
            _ => false,
        };
        same_attachment && self.bytes() == other.bytes()
    }
}

impl Eq for Buf {}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} B)", self.len())
    }
}

#[inline]
fn class_for(capacity: usize) -> Option<usize> {
    CLASSES.iter().position(|&c| capacity <= c)
}

#[inline]
fn take(capacity: usize) -> Vec<u8> {
    let Some(class) = class_for(capacity) else {
        return Vec::with_capacity(capacity);
    };
    POOL.with_borrow_mut(|pool| pool[class].pop()).unwrap_or_else(|| Vec::with_capacity(CLASSES[class]))
}

#[inline]
fn give(mut bytes: Vec<u8>) {
    let Some(class) = CLASSES.iter().position(|&c| c == bytes.capacity()) else {
        return;
    };
    bytes.clear();
    // The pool is gone when a thread's last buffers are dropped by its destructors: then they are just freed.
    let _ = POOL.try_with(|pool| {
        let free = &mut pool.borrow_mut()[class];
        if free.len() < KEPT[class] {
            free.push(bytes);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Alphabet;

    impl Snapshot for Alphabet {
        fn encoded_len(&self) -> usize {
            26
        }
        fn encode(&self, range: Range<usize>, out: &mut Vec<u8>) {
            out.extend(range.map(|i| b'a' + i as u8));
        }
        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    #[test]
    fn a_header_goes_in_front_without_moving_the_payload() {
        let mut buf = Buf::new(4, 10);
        buf.extend(b"payload");
        let before = buf.bytes().as_ptr();
        buf.prepend(3).copy_from_slice(b"hd:");
        assert_eq!(buf.bytes(), b"hd:payload");
        assert_eq!(buf.bytes()[3..].as_ptr(), before);
        assert_eq!(buf.head_room(), 1);
    }

    #[test]
    fn a_dropped_buffer_is_used_again() {
        let first = Buf::copy_of(&[7; 100]);
        let place = first.bytes().as_ptr();
        drop(first);
        assert_eq!(Buf::copy_of(&[8; 90]).bytes().as_ptr(), place);
    }

    #[test]
    fn an_attachment_counts_with_its_length_and_becomes_bytes_on_demand() {
        let mut buf = Buf::new(2, 10);
        buf.extend(b"<");
        buf.attach(Arc::new(Alphabet), 2..6);
        buf.extend(b">");
        assert_eq!(buf.len(), 6);
        buf.prepend(1)[0] = b'#';
        let by_reference = buf.clone();
        assert_eq!(by_reference, buf);
        buf.materialize();
        assert_eq!(buf.bytes(), b"#<cdef>");
        assert_ne!(by_reference, buf);
    }

    #[test]
    fn larger_than_every_class_still_works() {
        let big = vec![1; 200_000];
        assert_eq!(Buf::copy_of(&big).bytes(), &big[..]);
    }
}
