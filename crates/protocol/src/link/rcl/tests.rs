//! Two connections and the wire between them: what arrives, in which order, under what the wire does.

use super::*;
use phalanx_core::Rng;
use proptest::prelude::*;
use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;

/// A wire that loses, doubles and swaps packets as its generator says.
struct Pair {
    now: Instant,
    config: Config,
    ends: [Connection; 2],
    sums: [Sums; 2],
    wire: VecDeque<(usize, Buf)>,
    got: [Vec<(Port, Port, Vec<u8>)>; 2],
    packets: usize,
    rng: Rng,
    loss: f64,
    chaos: f64,
}

impl Pair {
    fn new(config: Config, seed: u64, loss: f64, chaos: f64) -> Self {
        let ends = [0, 1].map(|_| Connection::new(Instant::ZERO, &config));
        Self {
            now: Instant::ZERO,
            config,
            ends,
            sums: Default::default(),
            wire: VecDeque::new(),
            got: Default::default(),
            packets: 0,
            rng: Rng::new(seed, 0),
            loss,
            chaos,
        }
    }

    fn clean(config: Config) -> Self {
        Self::new(config, 0, 0.0, 0.0)
    }

    fn send(&mut self, side: usize, message: &[u8]) -> Result<(), Code> {
        self.ends[side].send(self.now, Port(1), Port(2), message, &self.config)
    }

    /// Everything both sides want to send goes on the wire.
    fn flush(&mut self) {
        for side in 0..2 {
            while let Some(packet) = self.ends[side].transmit(self.now, 0, 0, &self.config, &mut self.sums[side]) {
                assert!(packet.len() <= usize::from(self.config.largest_plain), "a packet of {} bytes", packet.len());
                self.packets += 1;
                if !self.rng.chance(self.loss) {
                    if self.rng.chance(self.chaos) {
                        self.wire.push_back((side, packet.clone()));
                    }
                    self.wire.push_back((side, packet));
                    if self.wire.len() > 1 && self.rng.chance(self.chaos) {
                        let (a, b) = (self.wire.len() - 1, self.rng.index(self.wire.len()));
                        self.wire.swap(a, b);
                    }
                }
            }
            self.ends[side].watch(self.now, &self.config);
        }
    }

    /// One packet arrives. False when the wire is empty.
    fn deliver_one(&mut self) -> bool {
        let Some((from, packet)) = self.wire.pop_front() else { return false };
        let (to, got) = (1 - from, &mut self.got[1 - from]);
        self.ends[to].receive(
            self.now,
            packet.bytes(),
            packet.attached(),
            &self.config,
            &mut self.sums[to],
            &mut |f, t, p| {
                let bytes = match p {
                    Payload::Bytes(bytes) => bytes.to_vec(),
                    Payload::Snapshot(snapshot) => {
                        let mut bytes = Vec::new();
                        snapshot.encode(0..snapshot.encoded_len(), &mut bytes);
                        bytes
                    }
                };
                got.push((f, t, bytes));
            },
        );
        true
    }

    /// Runs until nobody has anything to do, moving time to the next deadline when the wire is empty.
    fn settle(&mut self) -> Result<(), Code> {
        for _ in 0..1_000_000 {
            self.flush();
            if self.deliver_one() {
                self.now += Duration::from_micros(10);
                continue;
            }
            let deadline = self.ends[0].deadline().min(self.ends[1].deadline());
            if deadline == Instant::NEVER {
                return Ok(());
            }
            self.now = self.now.max(deadline);
            for side in 0..2 {
                if self.ends[side].deadline() <= self.now {
                    self.ends[side].expire(self.now, &self.config, &mut self.sums[side])?;
                }
            }
        }
        panic!("no end in a million steps");
    }

    fn received(&self, side: usize) -> Vec<&[u8]> {
        self.got[side].iter().map(|g| &g.2[..]).collect()
    }
}

fn small() -> Config {
    Config { largest_plain: 200, credit: 40, ..Config::default() }
}

#[test]
fn small_messages_share_packets_and_a_reply_carries_the_acknowledgement() {
    let mut pair = Pair::clean(Config::default());
    (0..20u8).for_each(|i| pair.send(0, &[i; 50]).unwrap());
    pair.flush();
    assert_eq!(pair.packets, 1, "twenty messages of 50 bytes fit into one packet");
    assert!(pair.deliver_one());
    pair.send(1, b"reply").unwrap();
    pair.flush();
    assert_eq!(pair.packets, 2, "no packet for the acknowledgement alone");
    pair.settle().unwrap();
    assert_eq!(pair.received(1).len(), 20);
    assert_eq!(pair.received(0), [b"reply"]);
    assert_eq!(pair.got[1][3], (Port(1), Port(2), vec![3; 50]));
}

/// RL-1: cut to packets that are equally full, so that segmentation offload can take them.
#[test]
fn large_messages_fill_equal_packets() {
    let mut pair = Pair::clean(small());
    let message: Vec<u8> = (0..1500u32).map(|i| i as u8).collect();
    pair.send(0, &message).unwrap();
    pair.send(0, &[7; 80]).unwrap();
    pair.flush();
    let lengths: Vec<_> = pair.wire.iter().map(|p| p.1.len()).collect();
    assert!(lengths[..lengths.len() - 1].iter().all(|&n| n == lengths[0]), "{lengths:?}");
    pair.settle().unwrap();
    assert_eq!(pair.received(1), [&message[..], &[7; 80]]);
}

#[test]
fn a_lost_packet_is_sent_again_before_its_timeout_when_later_ones_arrive() {
    let mut pair = Pair::clean(small());
    for i in 0..8u8 {
        pair.send(0, &[i; 100]).unwrap();
        pair.flush();
    }
    pair.wire.remove(1);
    while pair.deliver_one() {}
    let before = pair.now;
    pair.flush();
    while pair.deliver_one() {}
    pair.flush();
    assert_eq!((pair.sums[0].retransmissions, pair.sums[0].timeouts), (1, 0));
    while pair.deliver_one() {}
    assert_eq!(pair.now, before);
    assert_eq!(pair.received(1).len(), 8);
}

#[test]
fn a_full_queue_refuses_and_later_says_that_there_is_room() {
    let mut config = small();
    config.send_buffer = 1000;
    let mut pair = Pair::clean(config);
    let mut sent = 0;
    while pair.send(0, &[0; 100]).is_ok() {
        sent += 1;
    }
    assert!((8..=10).contains(&sent));
    pair.flush();
    let mut writable = false;
    while let Some((_, packet)) = pair.wire.pop_front() {
        pair.ends[1].receive(pair.now, packet.bytes(), None, &pair.config, &mut pair.sums[1], &mut |_, _, _| {});
        if let Some(out) = pair.ends[1].transmit(pair.now, 0, 0, &pair.config, &mut pair.sums[1]) {
            let progress =
                pair.ends[0].receive(pair.now, out.bytes(), None, &pair.config, &mut pair.sums[0], &mut |_, _, _| {});
            writable |= progress.writable;
        }
    }
    assert!(writable);
    assert_eq!(pair.send(0, &[0; 100]), Ok(()));
}

/// A receiver that holds keeps at most its credit, and nothing is lost when it releases.
#[test]
fn credit_stops_a_sender_whose_receiver_holds() {
    let mut pair = Pair::clean(small());
    pair.ends[1].hold();
    (0..200u32).for_each(|i| pair.send(0, &[i as u8; 150]).unwrap());
    for _ in 0..200 {
        pair.flush();
        while pair.deliver_one() {}
        pair.now += Duration::from_millis(2);
        for side in 0..2 {
            let _ = pair.ends[side].expire(pair.now, &pair.config, &mut pair.sums[side]);
        }
    }
    assert!(pair.received(1).is_empty());
    assert!(pair.packets < 200, "{} packets against a credit of {}", pair.packets, pair.config.credit);
    let got = &mut pair.got[1];
    pair.ends[1].release(&pair.config, &mut pair.sums[1], &mut |f, t, p| {
        let Payload::Bytes(b) = p else { panic!() };
        got.push((f, t, b.to_vec()));
    });
    pair.settle().unwrap();
    assert_eq!(pair.received(1).len(), 200);
}

#[test]
fn a_silent_peer_is_half_dead_after_patience() {
    let mut pair = Pair::new(small(), 1, 1.0, 0.0);
    pair.send(0, b"anybody?").unwrap();
    assert_eq!(pair.settle(), Err(Code::Unreachable));
    assert!(pair.now.since(Instant::ZERO) >= pair.config.patience);
}

#[test]
fn a_clean_close_hands_over_everything_first() {
    let mut pair = Pair::new(small(), 3, 0.2, 0.1);
    (0..50u8).for_each(|i| pair.send(0, &[i; 90]).unwrap());
    pair.ends[0].close();
    assert_eq!(pair.send(0, b"too late"), Err(Code::NotInitialized));
    pair.settle().unwrap();
    assert_eq!(pair.received(1).len(), 50);
    assert!(pair.ends[1].receiver.is_finished() && !pair.ends[0].receiver.is_finished());
}

/// RL-1: the length of a whole message is a promise, not an order to allocate.
#[test]
fn a_lying_length_is_dropped_and_costs_nothing() {
    let config = Config::default();
    let mut connection = Connection::new(Instant::ZERO, &config);
    let mut sums = Sums::default();
    let mut seq = 0;
    let mut packet = |total: u32, piece: &[u8], ends: bool, begins: bool| {
        let mut out = Vec::new();
        Header { data: true, seq, ..Header::default() }.encode(&[], &mut out);
        let beginning =
            begins.then_some(rcl::Beginning { from: Port(1), to: Port(1), whole: (!ends).then_some((total, 0)) });
        rcl::put_frame(&mut out, beginning, ends, piece.len());
        out.extend_from_slice(piece);
        rcl::finish(&mut out);
        seq += 1;
        out
    };
    let lies = [
        packet(u32::MAX, b"huge", false, true),
        packet(10, b"longer than ten bytes", false, true),
        packet(10, b"short", false, true),
        packet(0, b"!", true, false),
        packet(3, b"abc", true, false),
    ];
    for lie in &lies {
        connection.receive(Instant::ZERO, lie, None, &config, &mut sums, &mut |_, _, _| panic!("a lie was handed on"));
    }
    assert_eq!(sums.malformed, 4, "{sums:?}");
}

#[derive(Debug)]
struct Pattern(usize);

impl Snapshot for Pattern {
    fn encoded_len(&self) -> usize {
        self.0
    }
    fn encode(&self, range: Range<usize>, out: &mut Vec<u8>) {
        out.extend(range.map(|i| (i * 7) as u8));
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn a_snapshot_makes_the_same_packets_by_reference_and_as_bytes() {
    for length in [0, 1, 100, 165, 166, 167, 172, 173, 5000] {
        let run = |by_reference| {
            let mut pair = Pair::new(Config { by_reference, ..small() }, 5, 0.3, 0.1);
            pair.send(0, b"before").unwrap();
            let snapshot: Arc<dyn Snapshot> = Arc::new(Pattern(length));
            pair.ends[0].send_snapshot(pair.now, Port(1), Port(2), &snapshot, &pair.config).unwrap();
            pair.send(0, b"after").unwrap();
            pair.settle().unwrap();
            (pair.now, pair.packets, pair.sums, pair.got)
        };
        let (by_reference, as_bytes) = (run(true), run(false));
        assert_eq!(by_reference, as_bytes, "length {length}");
        assert_eq!(by_reference.3[1].len(), 3);
    }
}

proptest! {
    /// RL-1: whatever the wire loses, doubles or swaps, every message arrives once, whole and in order.
    #[test]
    fn every_message_arrives_once_and_in_order(
        seed: u64, loss in 0.0..0.4, chaos in 0.0..0.3,
        sizes in prop::collection::vec(prop_oneof![0usize..40, 0usize..900, 150usize..180], 1..60),
    ) {
        let mut pair = Pair::new(small(), seed, loss, chaos);
        let messages: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(i, &n)| vec![i as u8; n]).collect();
        for (i, message) in messages.iter().enumerate() {
            pair.send(0, message).unwrap();
            pair.send(1, message).unwrap();
            if i % 3 == 0 {
                pair.flush();
                pair.deliver_one();
            }
        }
        pair.settle().unwrap();
        for side in 0..2 {
            prop_assert_eq!(pair.received(side), messages.iter().map(|m| &m[..]).collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_packet_panics(packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 1..20)) {
        let config = Config::default();
        let mut connection = Connection::new(Instant::ZERO, &config);
        for mut packet in packets {
            if packet.len() >= Header::LEN {
                packet[0] = 2;
                packet[18] %= 4;
                rcl::finish(&mut packet);
            }
            connection.receive(Instant::ZERO, &packet, None, &config, &mut Sums::default(), &mut |_, _, _| {});
        }
    }
}

/// 004 §6.2: when an acknowledgement is lost the task does not stand still for a whole timeout.
#[test]
fn a_lost_acknowledgement_costs_a_probe_not_a_timeout() {
    let mut pair = Pair::clean(small());
    for round in 0..20u8 {
        (0..8).for_each(|_| pair.send(0, &[round; 150]).unwrap());
        pair.flush();
        while pair.deliver_one() {}
        pair.flush();
        if round == 10 {
            pair.wire.clear();
        }
        pair.settle().unwrap();
    }
    assert_eq!(pair.received(1).len(), 160);
    assert_eq!((pair.sums[0].probes, pair.sums[0].timeouts), (1, 0));
    assert_eq!(pair.sums[1].duplicates, 1);
}
