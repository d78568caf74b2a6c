//! A queue that is small while its connection is idle and borrows room while it is busy (CL-2, RL-1).
//!
//! A node has thousands of connections, and few of them are busy at a time: an idle one must hold next to no memory,
//! and a busy one must not allocate with each burst. So room changes hands: a queue that outgrows [`KEPT`] swaps its
//! storage for a larger one that a former burst left with this thread, and swaps back when it is empty.

use super::sender::Packet;
use std::cell::RefCell;
use std::collections::VecDeque;

/// An idle queue keeps room for so many packets: a light connection never comes here.
pub(super) const KEPT: usize = 8;
/// Storages that a thread keeps for its connections: so many may be busy at once without allocating.
const SPARE: usize = 64;

thread_local! {
    /// Large storages that wait for a busy connection, and small ones of connections that are busy now.
    static POOL: RefCell<Vec<VecDeque<Packet>>> = const { RefCell::new(Vec::new()) };
}

/// Appends `packet`, in borrowed room when the queue's own is full.
#[inline]
pub(super) fn push(queue: &mut VecDeque<Packet>, packet: Packet) {
    if queue.len() == queue.capacity() {
        grow(queue);
    }
    queue.push_back(packet);
}

#[cold]
fn grow(queue: &mut VecDeque<Packet>) {
    if queue.len() >= KEPT {
        borrow(queue);
    } else {
        // From one on: most connections never have more under way.
        queue.reserve_exact(queue.len().max(1));
    }
}

fn borrow(queue: &mut VecDeque<Packet>) {
    POOL.with_borrow_mut(|pool| {
        if let Some(larger) = pool.iter_mut().find(|spare| spare.capacity() > queue.capacity()) {
            larger.append(queue);
            std::mem::swap(larger, queue);
        }
    });
}

/// Gives borrowed room back when the queue is empty.
#[inline]
pub(super) fn settle(queue: &mut VecDeque<Packet>) {
    if queue.is_empty() && queue.capacity() > KEPT {
        give_back(queue);
    }
}

#[cold]
fn give_back(queue: &mut VecDeque<Packet>) {
    let large = std::mem::take(queue);
    POOL.with_borrow_mut(|pool| {
        if let Some(small) = pool.iter_mut().find(|spare| spare.capacity() <= KEPT) {
            *queue = std::mem::replace(small, large);
        } else if pool.len() < SPARE {
            pool.push(large);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CL-2: the second burst finds the room of the first, and between the two the queue is small.
    #[test]
    fn a_burst_finds_the_room_of_the_one_before() {
        let mut queue = VecDeque::new();
        for _ in 0..2 {
            (0..100).for_each(|order| push(&mut queue, Packet::nth(order)));
            assert!(queue.iter().map(|p| p.order).eq(0..100), "moved in order");
            queue.clear();
            settle(&mut queue);
            assert!(queue.capacity() <= KEPT);
        }
        (0..=KEPT as u64).for_each(|order| push(&mut queue, Packet::nth(order)));
        assert!(queue.capacity() >= 100, "borrowed, not grown: {}", queue.capacity());
    }

    #[test]
    fn a_pool_has_an_end() {
        for _ in 0..3 {
            let mut queues: Vec<_> = (0..SPARE + 10).map(|_| VecDeque::with_capacity(KEPT + 1)).collect();
            queues.iter_mut().for_each(settle);
            assert!(queues.iter().all(|q| q.capacity() <= KEPT));
            assert!(POOL.with_borrow(Vec::len) <= SPARE);
        }
    }
}
