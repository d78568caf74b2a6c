//! What every platform must do (CL-1…4), as a suite that any of them can be plugged into.
//!
//! A [`Bed`] opens nodes of one platform; each function below tells one story on it and panics when the platform
//! deviates. [`conformance_tests!`](crate::conformance_tests) makes a test of each. The stories drive all nodes from
//! one thread through [`Platform`] alone, so that a simulated network, whose time passes in `wait`, passes too.

use crate::platform::{LARGEST_DATAGRAM, Platform, Woke};
use phalanx_core::{Addr, Buf, Code, Duration, Group, Instant};
use std::collections::BTreeMap;

/// A place to try a platform.
pub trait Bed {
    /// The platform.
    type Node: Platform;
    /// A new node that the others of this bed can reach.
    fn open(&self) -> Self::Node;
    /// An address of another kind of platform.
    fn stranger(&self) -> Addr;
    /// Whether groups exist here; `None` where the platform has them and this machine does not carry them.
    fn multicast(&self) -> Option<bool>;
    /// A node that a group's datagram with TTL 1 does not reach and one with TTL 2 does, where such a place exists.
    fn open_behind_router(&self) -> Option<Self::Node> {
        None
    }
    /// Whether time passes by itself, so that threads can be used and lateness means something.
    fn real_time(&self) -> bool {
        true
    }
}

/// How long a story waits for something that must happen.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it waits for something that must not.
const QUIET: Duration = Duration::from_millis(20);
/// One turn of a node.
const TURN: Duration = Duration::from_micros(200);
/// How late half the waits may be. The precise figure belongs to the lab: tests share their cores with compilers.
const LATE: Duration = Duration::from_millis(3);

/// A node with what it received and learned.
struct Desk<P> {
    node: P,
    got: Vec<(Addr, Vec<u8>)>,
    ended: Vec<(u32, Result<(), Code>)>,
    trouble: Vec<(Addr, Code)>,
}

impl<P: Platform> Desk<P> {
    fn new(node: P) -> Self {
        Self { node, got: Vec::new(), ended: Vec::new(), trouble: Vec::new() }
    }

    fn send(&mut self, to: Addr, bytes: &[u8], ticket: Option<u32>) -> Result<(), Code> {
        self.node.send(to, Buf::copy_of(bytes), ticket)
    }

    fn flush(&mut self) {
        let ended = &mut self.ended;
        self.node.flush(&mut |ticket, outcome| ended.push((ticket, outcome)));
    }

    /// One turn of a host's loop.
    fn turn(&mut self) {
        self.flush();
        self.node.wait(self.node.now() + TURN);
        let got = &mut self.got;
        let received = self.node.receive(&mut |from, bytes| got.push((from, bytes.to_vec())));
        assert!(received.is_ok(), "receive failed: {received:?}");
        self.flush();
        while let Some(trouble) = self.node.trouble() {
            self.trouble.push(trouble);
        }
    }
}

/// Gives each desk its turns until `enough` says so.
fn work<P: Platform>(desks: &mut [&mut Desk<P>], story: &str, enough: impl Fn(&[&mut Desk<P>]) -> bool) {
    let until = desks[0].node.now() + PATIENCE;
    while !enough(desks) {
        assert!(desks[0].node.now() < until, "{story}: it did not happen within {PATIENCE}");
        desks.iter_mut().for_each(|d| d.turn());
    }
}

/// Gives each desk turns for a while in which nothing should happen.
fn rest<P: Platform>(desks: &mut [&mut Desk<P>]) {
    let until = desks[0].node.now() + QUIET;
    while desks[0].node.now() < until {
        desks.iter_mut().for_each(|d| d.turn());
    }
}

fn open<B: Bed>(bed: &B) -> Desk<B::Node> {
    Desk::new(bed.open())
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + seed) as u8).collect()
}

/// CL-1: a datagram of any size up to the limit arrives as it was, once, with the address to reply to.
pub fn datagrams_arrive_intact<B: Bed>(bed: &B) {
    let (mut a, mut b) = (open(bed), open(bed));
    let (at_a, at_b) = (a.node.local(), b.node.local());
    let max = a.node.max_datagram(at_b);
    assert!((1232..=LARGEST_DATAGRAM).contains(&max), "a limit of {max}");
    for (i, len) in [1, 4, 64, 1024, 4096, max].into_iter().filter(|len| *len <= max).enumerate() {
        let there = pattern(len, i);
        a.send(at_b, &there, None).unwrap();
        work(&mut [&mut a, &mut b], "a datagram arrives", |d| !d[1].got.is_empty());
        assert_eq!(std::mem::take(&mut b.got), [(at_a, there)], "{len} bytes there");
        let back = pattern(len, i + 100);
        b.send(at_a, &back, None).unwrap();
        work(&mut [&mut a, &mut b], "a reply arrives", |d| !d[0].got.is_empty());
        assert_eq!(std::mem::take(&mut a.got), [(at_b, back)], "{len} bytes back");
    }
}

/// CL-1, CL-2: many packets queued together keep their bounds, whatever was done to carry them at once.
pub fn a_mixed_batch_keeps_its_bounds<B: Bed>(bed: &B) {
    let (mut a, mut b, mut c) = (open(bed), open(bed), open(bed));
    let (at_b, at_c) = (b.node.local(), c.node.local());
    let mut expected = [Vec::new(), Vec::new()];
    for i in 0..300 {
        let packet = pattern([64, 64, 64, 64, 1000, 64, 7][i % 7], i);
        let place = usize::from(i % 11 == 0);
        a.send([at_b, at_c][place], &packet, None).unwrap();
        expected[place].push(packet);
    }
    work(&mut [&mut a, &mut b, &mut c], "a batch arrives", |d| d[1].got.len() + d[2].got.len() >= 300);
    rest(&mut [&mut a, &mut b, &mut c]);
    for (desk, expected) in [b, c].iter_mut().zip(&mut expected) {
        let mut got: Vec<Vec<u8>> = desk.got.drain(..).map(|(_, bytes)| bytes).collect();
        // A datagram service promises no order.
        got.sort();
        expected.sort();
        assert!(got == *expected, "the batch was changed on its way");
    }
}

/// CL-3: an empty packet and one over the limit are refused, and nothing has changed.
pub fn empty_and_oversized_packets_are_refused<B: Bed>(bed: &B) {
    let (mut a, mut b) = (open(bed), open(bed));
    let at_b = b.node.local();
    let max = a.node.max_datagram(at_b);
    assert_eq!(a.send(at_b, &[], Some(1)), Err(Code::InvalidArgs));
    assert_eq!(a.send(at_b, &vec![0; max + 1], Some(2)), Err(Code::InvalidArgs));
    rest(&mut [&mut a, &mut b]);
    assert!(a.ended.is_empty() && b.got.is_empty(), "a refused packet had an effect");
    a.send(at_b, b"fine", Some(3)).unwrap();
    work(&mut [&mut a, &mut b], "the next one arrives", |d| d[1].got.len() == 1);
    assert_eq!(a.ended, [(3, Ok(()))]);
}

/// CL-3: an address of another platform is no endpoint here.
pub fn strangers_are_refused<B: Bed>(bed: &B) {
    let mut a = open(bed);
    assert_eq!(a.send(bed.stranger(), b"hello?", Some(1)), Err(Code::InvalidEndpoint));
    rest(&mut [&mut a]);
    assert!(a.ended.is_empty());
}

/// CL-2: each ticket ends once, as sent or failed, and only those that were given.
pub fn tickets_end_exactly_once<B: Bed>(bed: &B) {
    let (mut a, mut b) = (open(bed), open(bed));
    let (at_b, gone) = (b.node.local(), bed.open().local());
    for ticket in 0..100 {
        let to = if ticket % 5 == 0 { gone } else { at_b };
        a.send(to, &pattern(100, ticket as usize), (ticket % 2 == 0).then_some(ticket)).unwrap();
    }
    work(&mut [&mut a, &mut b], "tickets end", |d| d[0].ended.len() >= 50);
    rest(&mut [&mut a, &mut b]);
    let mut ended: Vec<u32> = a.ended.iter().map(|e| e.0).collect();
    ended.sort_unstable();
    assert_eq!(ended, (0..100).step_by(2).collect::<Vec<_>>());
    let alive = a.ended.iter().filter(|e| e.0 % 5 != 0);
    assert!(alive.clone().count() == 40 && alive.into_iter().all(|e| e.1 == Ok(())), "{:?}", a.ended);
}

/// CL-3: that nobody listens comes out as a failed ticket or as trouble, by address, and harms no other peer.
pub fn a_closed_peer_is_noticed<B: Bed>(bed: &B) {
    let (mut a, mut b) = (open(bed), open(bed));
    let (at_b, gone) = (b.node.local(), bed.open().local());
    a.send(gone, b"anybody there?", Some(1)).unwrap();
    a.send(at_b, b"hello", Some(2)).unwrap();
    work(&mut [&mut a, &mut b], "a closed peer is noticed", |d| {
        let failed = d[0].ended.contains(&(1, Err(Code::Unreachable)));
        failed || d[0].trouble.contains(&(gone, Code::Unreachable))
    });
    work(&mut [&mut a, &mut b], "the other peer hears", |d| d[1].got.len() == 1);
    assert!(a.ended.contains(&(2, Ok(()))));
}

/// CL-2: a receiver that does not read costs its packets, never the sender's time; later it hears again.
pub fn a_sender_never_blocks<B: Bed>(bed: &B) {
    const SENDS: u32 = 20_000;
    let (mut a, mut b) = (open(bed), open(bed));
    let at_b = b.node.local();
    a.send(at_b, b"first", None).unwrap();
    work(&mut [&mut a, &mut b], "they meet", |d| d[1].got.len() == 1);
    let before = a.node.now();
    let packet = pattern(1000, 1);
    let mut given = 0;
    for ticket in 0..SENDS {
        match a.send(at_b, &packet, Some(ticket)) {
            Ok(()) => given += 1,
            Err(code) => assert_eq!(code, Code::LocalResource),
        }
        if ticket % 16 == 15 {
            a.flush();
        }
    }
    assert!(a.node.now().since(before) < PATIENCE, "the sender was held up");
    // Whatever happened to them, it is told: what the kernel has, what was dropped, and the few that still wait.
    let mut ends: BTreeMap<u32, u32> = BTreeMap::new();
    a.ended.iter().for_each(|e| *ends.entry(e.0).or_default() += 1);
    assert!(ends.values().all(|&n| n == 1), "a ticket ended twice");
    assert!(ends.len() + 2048 >= given, "{given} given, {} ended", ends.len());
    let refused =
        |e: &(u32, Result<(), Code>)| !matches!(e.1, Ok(()) | Err(Code::RemoteResource | Code::LocalResource));
    assert!(!a.ended.iter().any(refused), "a full queue is a matter of resources");
    work(&mut [&mut a, &mut b], "all end", |d| d[0].ended.len() == given);
    let mut quiet = 0;
    while quiet < 3 {
        let so_far = b.got.len();
        rest(&mut [&mut a, &mut b]);
        quiet = if b.got.len() == so_far { quiet + 1 } else { 0 };
    }
    a.send(at_b, b"last", None).unwrap();
    work(&mut [&mut a, &mut b], "it hears again", |d| d[1].got.last().is_some_and(|g| g.1 == b"last"));
}

/// CL-2: a queue that nobody flushes ends, in a refusal or in dropped packets that are told.
pub fn a_queue_that_nobody_flushes_ends<B: Bed>(bed: &B) {
    let (mut a, b) = (open(bed), open(bed));
    let at_b = b.node.local();
    let refused = (0..100_000).find(|&ticket| a.send(at_b, &[1; 32], Some(ticket)) == Err(Code::LocalResource));
    a.flush();
    let dropped = a.ended.iter().filter(|e| e.1 == Err(Code::RemoteResource)).count();
    assert!(refused.is_some() || dropped > 50_000, "100,000 packets were queued");
}

/// CL-1: a receiver hears everybody.
pub fn many_senders_reach_one_receiver<B: Bed>(bed: &B) {
    const SENDERS: usize = 16;
    const EACH: usize = 50;
    let mut receiver = open(bed);
    let to = receiver.node.local();
    let mut senders: Vec<_> = (0..SENDERS).map(|_| open(bed)).collect();
    for round in 0..EACH {
        for sender in &mut senders {
            sender.send(to, &pattern(64, round), None).unwrap();
            sender.turn();
        }
        receiver.turn();
    }
    let mut desks: Vec<&mut Desk<B::Node>> = std::iter::once(&mut receiver).chain(&mut senders).collect();
    work(&mut desks, "all arrive", |d| d[0].got.len() >= SENDERS * EACH);
    let mut heard: BTreeMap<Addr, usize> = BTreeMap::new();
    receiver.got.iter().for_each(|g| *heard.entry(g.0).or_default() += 1);
    let expected: BTreeMap<Addr, usize> = senders.iter().map(|s| (s.node.local(), EACH)).collect();
    assert_eq!(heard, expected);
}

/// A wait with nothing to wait for ends at its deadline: never before, and mostly at once after.
pub fn a_wait_ends_at_its_deadline<B: Bed>(bed: &B) {
    let mut a = bed.open();
    assert_eq!(a.wait(Instant::ZERO), Woke::Deadline);
    let mut late = Vec::new();
    for us in [20, 50, 100, 200, 500, 1_000, 5_000, 20, 50, 100, 200, 500, 100_000] {
        let until = a.now() + Duration::from_micros(us);
        assert_eq!(a.wait(until), Woke::Deadline);
        let now = a.now();
        assert!(now >= until, "{} too early after {us} µs", until.since(now));
        late.push(now.since(until));
    }
    late.sort_unstable();
    if bed.real_time() {
        assert!(late[late.len() / 2] <= LATE, "half of the waits were late by {} and more", late[late.len() / 2]);
    }
}

/// A packet ends a wait, whether the deadline is near or far.
pub fn a_packet_ends_a_wait<B: Bed>(bed: &B) {
    let (mut a, mut b) = (open(bed), open(bed));
    a.send(b.node.local(), b"first", None).unwrap();
    work(&mut [&mut a, &mut b], "they meet", |d| d[1].got.len() == 1);
    b.got.clear();
    for patience in [Duration::from_millis(30), Duration::from_secs(30)] {
        // A near deadline may pass on a busy machine; then it is tried again.
        let until = b.node.now() + PATIENCE;
        loop {
            a.send(b.node.local(), b"wake up", None).unwrap();
            a.flush();
            let woke = b.node.wait(b.node.now() + patience);
            b.turn();
            if woke == Woke::Ready && !b.got.is_empty() {
                break;
            }
            assert!(b.node.now() < until, "no packet ended a wait of {patience}");
        }
        b.got.clear();
    }
}

/// A waker ends a wait from another thread; a call before the wait counts, and counts once.
pub fn a_waker_ends_a_wait<B: Bed>(bed: &B) {
    let mut a = bed.open();
    let waker = a.waker();
    waker.wake();
    waker.clone().wake();
    assert_eq!(a.receive(&mut |_, _| panic!("a call is no packet")), Ok(0));
    assert_eq!(a.wait(a.now() + PATIENCE), Woke::Called);
    for patience in [Duration::from_millis(30), PATIENCE] {
        if !bed.real_time() {
            break;
        }
        let until = a.now() + PATIENCE + PATIENCE;
        loop {
            let other = waker.clone();
            let caller = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(2));
                other.wake();
            });
            let woke = a.wait(a.now() + patience);
            caller.join().unwrap();
            if woke == Woke::Called {
                break;
            }
            assert!(a.now() < until, "no call ended a wait of {patience}");
            while a.wait(a.now()) == Woke::Called {}
        }
    }
    // What is left of old calls ends no more than a few waits.
    let calls = (0..10).take_while(|_| a.wait(a.now() + TURN) != Woke::Deadline || a.receive(&mut |_, _| {}) != Ok(0));
    assert!(calls.count() < 10, "a call that was answered ends wait after wait");
}

/// TG, CL-3: members of a group within reach hear it, with an address to reply to; without multicast it is refused.
pub fn groups_reach_their_members<B: Bed>(bed: &B) {
    let (near, far) = (Group { number: 300, ttl: 1 }, Group { number: 300, ttl: 2 });
    let mut a = open(bed);
    let Some(multicast) = bed.multicast() else {
        eprintln!("skipped: this machine carries no multicast on that interface");
        return;
    };
    if !multicast {
        assert_eq!(a.node.join(near), Err(Code::InvalidEndpoint));
        assert_eq!(a.node.leave(near), Err(Code::InvalidEndpoint));
        assert_eq!(a.send(Addr::Group(near), b"anybody?", None), Err(Code::InvalidEndpoint));
        return;
    }
    let (mut b, mut c, mut outsider) = (open(bed), open(bed), open(bed));
    let other = Group { number: 301, ttl: 1 };
    assert_eq!(a.node.leave(near), Err(Code::InvalidEndpoint));
    for member in [&mut a, &mut b, &mut c] {
        member.node.join(near).unwrap();
    }
    outsider.node.join(other).unwrap();
    let mut remote = bed.open_behind_router().map(Desk::new);
    if let Some(remote) = &mut remote {
        remote.node.join(near).unwrap();
    }
    a.send(Addr::Group(near), b"segment", Some(1)).unwrap();
    work(&mut [&mut a, &mut b, &mut c], "members hear", |d| d[1].got.len() == 1 && d[2].got.len() == 1);
    rest(&mut [&mut a, &mut b, &mut c, &mut outsider]);
    assert_eq!(b.got, [(a.node.local(), b"segment".to_vec())]);
    assert_eq!((a.got.len(), c.got.len(), outsider.got.len()), (0, 1, 0));
    assert_eq!(a.ended, [(1, Ok(()))]);
    if let Some(remote) = &mut remote {
        rest(&mut [remote]);
        assert_eq!(remote.got.len(), 0, "TTL 1 stays in its segment");
        a.send(Addr::Group(far), b"beyond", None).unwrap();
        work(&mut [&mut a, remote], "TTL 2 crosses a router", |d| d[1].got.len() == 1);
        work(&mut [&mut b, &mut c], "and is heard near by", |d| d.iter().all(|d| d.got.len() == 2));
    }
    let (at_a, reply) = (b.got[0].0, b"I am here");
    b.send(at_a, reply, None).unwrap();
    work(&mut [&mut a, &mut b], "the reply arrives", |d| d[0].got.len() == 1);
    b.got.clear();
    b.node.leave(near).unwrap();
    c.got.clear();
    a.send(Addr::Group(near), b"again", None).unwrap();
    work(&mut [&mut a, &mut b, &mut c], "who stayed hears", |d| d[2].got.len() == 1);
    rest(&mut [&mut a, &mut b]);
    assert!(b.got.is_empty(), "who left hears no more");
}

/// Makes a module `$name` with a test for each story, on the bed `$bed`.
#[macro_export]
macro_rules! conformance_tests {
    ($name:ident, $bed:expr) => {
        $crate::conformance_tests!(@ $name, $bed,
            datagrams_arrive_intact,
            a_mixed_batch_keeps_its_bounds,
            empty_and_oversized_packets_are_refused,
            strangers_are_refused,
            tickets_end_exactly_once,
            a_closed_peer_is_noticed,
            a_sender_never_blocks,
            a_queue_that_nobody_flushes_ends,
            many_senders_reach_one_receiver,
            a_wait_ends_at_its_deadline,
            a_packet_ends_a_wait,
            a_waker_ends_a_wait,
            groups_reach_their_members
        );
    };
    (@ $name:ident, $bed:expr, $($story:ident),+) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $(
                #[test]
                fn $story() {
                    $crate::conformance::$story(&$bed);
                }
            )+
        }
    };
}
