//! Two channels and the wire between them: what arrives, in which order, under what the wire does, and what does not
//! arrive because nobody honest sent it.

use super::*;
use crate::link::sign::Signer;
use phalanx_core::{Boot, Code, Fingerprint, Instant, Port, Rng};
use proptest::prelude::*;
use std::collections::VecDeque;

const PORTS: Ports = Ports { from: Port(1), to: Port(2) };

/// A wire that loses, doubles, swaps and damages packets as its generator says, until it heals.
struct Pair {
    now: Instant,
    config: Config,
    signers: [Signer; 2],
    ends: [Channel; 2],
    sums: [Sums; 2],
    wire: VecDeque<(usize, Buf)>,
    got: [Vec<(Kind, Vec<u8>)>; 2],
    gaps: Vec<Gap>,
    packets: usize,
    rng: Rng,
    loss: f64,
    chaos: f64,
    flips: f64,
    heals_at: Instant,
}

fn end(signer: &Signer, side: u8, session: u64) -> End {
    End { identity: signer.identity(), boot: Boot([side + 1; 16]), nonce: session }
}

fn channels(signers: &[Signer; 2], session: u64) -> [Channel; 2] {
    [0, 1].map(|us| {
        let (ours, peer) = (&signers[us], &signers[1 - us]);
        let boot = Boot([us as u8 + 1; 16]);
        Channel::new(Context::new(ours, boot, session, end(peer, 1 - us as u8, session)))
    })
}

impl Pair {
    fn new(config: Config, seed: u64, loss: f64, chaos: f64) -> Self {
        Self::between([1, 2].map(Signer::fake), config, seed, loss, chaos)
    }

    fn between(signers: [Signer; 2], config: Config, seed: u64, loss: f64, chaos: f64) -> Self {
        Self {
            now: Instant::ZERO,
            config,
            ends: channels(&signers, 7),
            signers,
            sums: Default::default(),
            wire: VecDeque::new(),
            got: Default::default(),
            gaps: Vec::new(),
            packets: 0,
            rng: Rng::new(seed, 0),
            loss,
            chaos,
            flips: 0.0,
            heals_at: Instant::NEVER,
        }
    }

    fn clean() -> Self {
        Self::new(Config::default(), 0, 0.0, 0.0)
    }

    fn send(&mut self, side: usize, kind: Kind, message: &[u8]) -> Result<u64, Code> {
        self.ends[side].send(self.now, kind, PORTS, message, &self.config, &mut self.sums[side])
    }

    fn transmit(&mut self, side: usize) -> Option<Buf> {
        let mut out = Buf::new(0, Channel::room(&self.config));
        let had_work = self.ends[side].has_work();
        let sent =
            self.ends[side].transmit(self.now, &mut out, &self.signers[side], &self.config, &mut self.sums[side]);
        assert_eq!(sent, had_work, "has_work and transmit agree");
        assert!(out.len() <= usize::from(self.config.largest_plain), "a packet of {} bytes", out.len());
        sent.then_some(out)
    }

    /// Everything both sides want to send goes on the wire.
    fn flush(&mut self) {
        let (loss, chaos, flips) =
            if self.now < self.heals_at { (self.loss, self.chaos, self.flips) } else { (0.0, 0.0, 0.0) };
        for side in 0..2 {
            while let Some(mut packet) = self.transmit(side) {
                self.packets += 1;
                if self.rng.chance(loss) {
                    continue;
                }
                if self.rng.chance(chaos) {
                    self.wire.push_back((side, packet.clone()));
                }
                if self.rng.chance(flips) {
                    let bit = self.rng.index(packet.len() * 8);
                    packet.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
                }
                self.wire.push_back((side, packet));
                if self.rng.chance(chaos) {
                    let (a, b) = (self.wire.len() - 1, self.rng.index(self.wire.len()));
                    self.wire.swap(a, b);
                }
            }
        }
    }

    fn receive(&mut self, to: usize, packet: &[u8]) -> Progress {
        let got = &mut self.got[to];
        let progress = self.ends[to].receive(self.now, packet, &self.config, &mut self.sums[to], &mut |k, f, t, p| {
            assert_eq!((f, t), (Port(1), Port(2)));
            got.push((k, p.to_vec()));
        });
        self.gaps.extend(progress.gap);
        progress
    }

    /// One packet arrives. False when the wire is empty.
    fn deliver_one(&mut self) -> bool {
        let Some((from, packet)) = self.wire.pop_front() else { return false };
        self.receive(1 - from, packet.bytes());
        true
    }

    /// Runs until `end`, or until nobody has anything to do, moving time to the next deadline when the wire is empty.
    fn run(&mut self, end: Instant) -> Result<(), Code> {
        for _ in 0..1_000_000 {
            self.flush();
            if self.deliver_one() {
                self.now += Duration::from_micros(10);
                continue;
            }
            let deadline = self.ends[0].deadline().min(self.ends[1].deadline());
            if deadline == Instant::NEVER || deadline > end {
                return Ok(());
            }
            self.now = self.now.max(deadline);
            for side in 0..2 {
                self.ends[side].expire(self.now, &self.config)?;
            }
        }
        panic!("no end in a million steps");
    }

    fn settle(&mut self) -> Result<(), Code> {
        self.run(Instant::NEVER)
    }

    fn received(&self, side: usize, kind: Kind) -> Vec<&[u8]> {
        self.got[side].iter().filter(|g| g.0 == kind).map(|g| &g.1[..]).collect()
    }

    fn print(&self, side: usize) -> u64 {
        use std::hash::Hasher;
        let mut print = Fingerprint::at(self.now);
        self.ends[side].fingerprint(&mut print);
        print.finish()
    }
}

/// MM-1: the three kinds, signed with real keys, and what each costs.
#[test]
fn three_kinds_arrive_and_only_ack_is_acknowledged() {
    let mut pair = Pair::between([1, 2].map(|n| Signer::generate(&[n; 32])), Config::default(), 0, 0.0, 0.0);
    for (kind, packets) in [(Kind::Unr, 1), (Kind::Ack, 2), (Kind::Nack, 1)] {
        let before = pair.packets;
        for expected in 0..3 {
            assert_eq!(pair.send(0, kind, format!("{kind:?} {expected}").as_bytes()), Ok(expected));
        }
        pair.run(pair.now + Duration::from_millis(2)).unwrap();
        assert_eq!(pair.packets - before, 2 + packets, "{kind:?}");
    }
    assert_eq!(pair.received(1, Kind::Unr), [b"Unr 0", b"Unr 1", b"Unr 2"]);
    assert_eq!(pair.received(1, Kind::Ack), [b"Ack 0", b"Ack 1", b"Ack 2"]);
    assert_eq!(pair.received(1, Kind::Nack), [b"Nack 0", b"Nack 1", b"Nack 2"]);
    pair.settle().unwrap();
    assert_eq!(pair.sums[1], Sums { delivered: 9, stale: 8, ..Sums::default() }, "eight notices of a resting stream");
    assert_eq!(pair.sums[0], Sums::default());
}

/// The bytes on the wire are a promise to other versions: header, payload, signature of a fixed key.
#[test]
fn golden_bytes_of_a_signed_packet() {
    let mut pair = Pair::between([1, 2].map(|n| Signer::generate(&[n; 32])), Config::default(), 0, 0.0, 0.0);
    pair.send(0, Kind::Nack, b"start").unwrap();
    let packet = pair.transmit(0).unwrap();
    let (header, rest) = packet.bytes().split_at(Packet::HEADER);
    assert_eq!(header, [3, 3, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(rest[..5], *b"start");
    let signature: String = rest[5..].iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(signature, GOLDEN_SIGNATURE);
}

const GOLDEN_SIGNATURE: &str = "a48e5c76bf78c312321321c299a0a2bd4df4a19fdf4f267c8044611ca04acbab\
     21294a4efa2cb1be273a4ade287c687d4a8f85072b6b801e1c9484b5d0a1dc01";

/// MM-1: whatever the wire loses, doubles or swaps, reliable messages arrive once and in order.
#[test]
fn reliable_messages_arrive_once_and_in_order() {
    for seed in 0..300 {
        let mut pair = Pair::new(Config::default(), seed, (seed % 9) as f64 * 0.05, (seed % 4) as f64 * 0.1);
        let messages: Vec<Vec<u8>> = (0..80u8).map(|i| vec![i; usize::from(i) * 7 % 90]).collect();
        for message in &messages {
            for (side, kind) in [(0, Kind::Ack), (1, Kind::Ack), (0, Kind::Nack), (1, Kind::Nack)] {
                pair.send(side, kind, message).unwrap();
            }
            pair.run(pair.now + Duration::from_micros(300)).unwrap();
        }
        // Heals before the last tail, which makes the end certain instead of likely.
        pair.heals_at = pair.now + Duration::from_millis(300);
        pair.settle().unwrap_or_else(|code| panic!("seed {seed}: {code}"));
        for (side, kind) in [(0, Kind::Ack), (1, Kind::Ack), (0, Kind::Nack), (1, Kind::Nack)] {
            assert_eq!(pair.received(side, kind), messages, "seed {seed}, {kind:?} to side {side}");
        }
        assert!(pair.gaps.is_empty() && pair.sums.iter().all(|s| s.bad_signature + s.malformed == 0), "seed {seed}");
    }
}

/// FI-1 `modify` at the `plain` point: damaged packets are as good as lost, and are counted.
#[test]
fn flipped_bits_are_caught_and_repaired() {
    for seed in 0..60 {
        let mut pair = Pair::new(Config::default(), seed, 0.05, 0.1);
        pair.flips = 0.2;
        let messages: Vec<Vec<u8>> = (0..60u8).map(|i| vec![i; 20]).collect();
        for message in &messages {
            for kind in [Kind::Unr, Kind::Ack, Kind::Nack] {
                pair.send(0, kind, message).unwrap();
            }
            pair.run(pair.now + Duration::from_micros(500)).unwrap();
        }
        pair.heals_at = pair.now + Duration::from_millis(300);
        pair.settle().unwrap_or_else(|code| panic!("seed {seed}: {code}"));
        assert_eq!(pair.received(1, Kind::Ack), messages, "seed {seed}");
        assert_eq!(pair.received(1, Kind::Nack), messages, "seed {seed}");
        assert!(pair.received(1, Kind::Unr).iter().all(|m| messages.iter().any(|sent| sent == m)), "seed {seed}");
        assert!(pair.received(1, Kind::Unr).len() > 20, "seed {seed}: one damaged number silenced the rest");
        assert!(pair.sums[1].bad_signature > 0 && pair.sums[1].checksum > 0, "{:?}", pair.sums[1]);
    }
}

/// A conversation in which every kind of packet is on the wire once: (receiver, packet).
fn one_of_each(pair: &mut Pair) -> Vec<(usize, Buf)> {
    let mut packets = Vec::new();
    for kind in [Kind::Unr, Kind::Ack, Kind::Nack, Kind::Nack] {
        pair.send(0, kind, b"order").unwrap();
    }
    while let Some(packet) = pair.transmit(0) {
        packets.push((1, packet));
    }
    // The last message is lost: after a while its tail is due.
    packets.pop();
    packets.iter().for_each(|(to, packet)| _ = pair.receive(*to, packet.bytes()));
    pair.now += Duration::from_millis(5);
    pair.ends.iter_mut().for_each(|e| e.expire(pair.now, &pair.config).unwrap());
    let (tail, ack) = (pair.transmit(0).unwrap(), pair.transmit(1).unwrap());
    pair.receive(1, tail.bytes());
    pair.now += Duration::from_millis(1);
    pair.ends[1].expire(pair.now, &pair.config).unwrap();
    let lost = pair.transmit(1).unwrap();
    packets.extend([(1, tail), (0, ack), (0, lost)]);
    let kinds: Vec<_> = packets.iter().map(|p| Packet::parse(p.1.bytes()).unwrap().kind as u8).collect();
    assert_eq!(kinds, [1, 2, 3, 6, 4, 5]);
    packets
}

/// MM-2: a packet that is not what the peer signed, for us and in this session, changes nothing but a counter.
#[test]
fn a_packet_that_fails_is_never_acted_upon() {
    let signers = || [1, 2].map(Signer::fake);
    let script = |signers, session| {
        let mut pair = Pair::between(signers, Config::default(), 0, 0.0, 0.0);
        pair.ends = channels(&pair.signers, session);
        let packets = one_of_each(&mut pair);
        (pair, packets)
    };
    let (_, good) = script(signers(), 7);
    let mut bad = Vec::new();
    for (to, packet) in &good {
        for bit in 0..packet.len() * 8 {
            let mut flipped = packet.clone();
            flipped.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
            bad.push((*to, flipped));
        }
    }
    let signed = |packets: Vec<(usize, Buf)>| packets.into_iter().skip(1);
    bad.extend(signed(script([1, 3].map(Signer::fake), 7).1).filter(|p| p.0 == 0));
    bad.extend(signed(script([3, 2].map(Signer::fake), 7).1).filter(|p| p.0 == 1));
    bad.extend(signed(script(signers(), 8).1));
    bad.extend(signed(good.clone()).map(|(to, packet)| (1 - to, packet)));

    // Each victim awaits exactly the packets it is shown: nothing is dropped for being old.
    let fresh = |to: usize| {
        let mut pair = Pair::between(signers(), Config::default(), 0, 0.0, 0.0);
        for kind in [Kind::Ack, Kind::Nack, Kind::Nack] {
            pair.send(to, kind, b"order").unwrap();
        }
        while pair.transmit(to).is_some() {}
        pair.now += Duration::from_millis(6);
        pair
    };
    for (to, packet) in &bad {
        let mut pair = fresh(*to);
        let (before, print) = (pair.ends[*to].clone(), pair.print(*to));
        let progress = pair.receive(*to, packet.bytes());
        assert_eq!(progress, Progress::default());
        assert!(pair.ends[*to] == before && pair.print(*to) == print, "{:?}", packet.bytes());
        assert!(pair.got[*to].is_empty());
        let s = pair.sums[*to];
        let counted = s.bad_signature + s.malformed + s.checksum + s.beyond_window + s.stale;
        assert_eq!(counted, 1, "{s:?} by {:?}", packet.bytes());
    }
    for (to, packet) in &good {
        let mut pair = fresh(*to);
        let before = pair.ends[*to].clone();
        pair.receive(*to, packet.bytes());
        assert!(pair.ends[*to] != before, "the genuine one does: {:?}", packet.bytes());
    }
}

#[test]
fn a_repeated_message_is_acknowledged_again_and_delivered_once() {
    let mut pair = Pair::clean();
    pair.send(0, Kind::Ack, b"once").unwrap();
    pair.send(0, Kind::Unr, b"beat").unwrap();
    let packets = [pair.transmit(0).unwrap(), pair.transmit(0).unwrap()];
    packets.iter().for_each(|p| _ = pair.receive(1, p.bytes()));
    pair.now += pair.config.ack_delay;
    pair.ends[1].expire(pair.now, &pair.config).unwrap();
    let lost = pair.transmit(1).unwrap();
    assert!(!pair.ends[1].has_work());
    let mut forged = packets[1].clone();
    forged.bytes_mut()[Packet::HEADER] ^= 1;
    pair.receive(1, forged.bytes());
    assert_eq!((pair.sums[1].bad_signature, pair.ends[1].has_work()), (1, false), "no answer to a forger");
    packets.iter().for_each(|p| _ = pair.receive(1, p.bytes()));
    let again = pair.transmit(1).unwrap();
    assert_eq!(lost.bytes(), again.bytes());
    assert_eq!(pair.receive(0, again.bytes()).acked_below, Some(1));
    assert_eq!(pair.receive(0, again.bytes()), Progress::default());
    assert_eq!((pair.sums[1].delivered, pair.sums[1].duplicates), (2, 3));
}

/// MM-1: nobody acknowledges a NACK message, so a tail must show that the last one is missing.
#[test]
fn a_lost_last_message_is_missed_and_asked_for() {
    for lost_tails in 0..usize::from(history::TAIL_ROUNDS) {
        let mut pair = Pair::clean();
        pair.send(0, Kind::Nack, b"first").unwrap();
        pair.send(0, Kind::Nack, b"last").unwrap();
        pair.flush();
        pair.wire.pop_back();
        for _ in 0..lost_tails {
            while pair.deliver_one() {}
            pair.now = pair.ends[0].deadline();
            pair.ends[0].expire(pair.now, &pair.config).unwrap();
            pair.transmit(0).unwrap();
        }
        pair.settle().unwrap();
        assert_eq!(pair.received(1, Kind::Nack), [&b"first"[..], b"last"], "{lost_tails} tails lost");
        assert_eq!((pair.sums[1].lost_requests, pair.sums[0].retransmissions), (1, 1));
    }
}

/// A gap that many packets show is asked for once, and not at all when it was mere reordering.
#[test]
fn requests_are_paced() {
    let mut pair = Pair::clean();
    (0..40u8).for_each(|i| _ = pair.send(0, Kind::Nack, &[i]).unwrap());
    pair.flush();
    let (swapped, lost) = (pair.wire.remove(3).unwrap(), pair.wire.remove(20).unwrap());
    pair.wire.insert(9, swapped);
    while pair.deliver_one() {}
    assert!(!pair.ends[1].has_work(), "not yet");
    pair.run(pair.now + Duration::from_millis(2)).unwrap();
    assert_eq!((pair.sums[1].lost_requests, pair.sums[0].retransmissions), (1, 1));
    assert_eq!(pair.received(1, Kind::Nack).len(), 40);
    pair.receive(1, lost.1.bytes());
    assert_eq!(pair.sums[1].duplicates, 1, "the straggler changes nothing any more");
}

/// A copy of a request, by the wire or by a member that seals a recording again, draws nothing more.
#[test]
fn a_repeated_request_is_answered_once() {
    let mut pair = Pair::clean();
    let (_, lost) = one_of_each(&mut pair).pop().unwrap();
    for _ in 0..10 {
        pair.receive(0, lost.bytes());
        while pair.transmit(0).is_some() {}
        pair.now += Duration::from_micros(50);
    }
    assert_eq!(pair.sums[0].retransmissions, 1);
}

/// A burst behind a missing message: what cannot be kept is asked for later, and memory stays bounded.
#[test]
fn a_burst_beyond_the_window_is_fetched_piece_by_piece() {
    let mut pair = Pair::clean();
    (0..200u8).for_each(|i| _ = pair.send(0, Kind::Nack, &[i]).unwrap());
    pair.flush();
    pair.wire.pop_front();
    while pair.deliver_one() {}
    assert_eq!(pair.sums[1].beyond_window, 200 - WINDOW);
    pair.settle().unwrap();
    assert_eq!(pair.received(1, Kind::Nack).concat(), (0..200).collect::<Vec<u8>>());
    assert!(pair.sums[1].lost_requests <= 4 && pair.gaps.is_empty(), "{:?}", pair.sums[1]);
}

/// What the sender's history no longer holds is reported, and the stream goes on behind it.
#[test]
fn an_overflowing_history_makes_a_gap_and_the_stream_goes_on() {
    for (name, config) in [
        ("count", Config { history: 10, ..Config::default() }),
        ("bytes", Config { history_bytes: 10 * 120, ..Config::default() }),
        ("age", Config { history_age: Duration::from_millis(200), ..Config::default() }),
    ] {
        let mut pair = Pair::new(config, 0, 0.0, 0.0);
        for i in 0..100u8 {
            if i == 90 {
                pair.now += Duration::from_millis(201);
            }
            pair.send(0, Kind::Nack, &[i; 40]).unwrap();
            pair.flush();
        }
        // Two holes that are gone, one that the history still fills.
        pair.wire.retain(|p| ![30, 31, 50, 95].contains(&p.1.bytes()[Packet::HEADER]));
        pair.settle().unwrap();
        pair.send(0, Kind::Nack, b"!").unwrap();
        pair.settle().unwrap();
        let lost: u64 = pair.gaps.iter().map(|g| g.lost).sum();
        assert_eq!((lost, pair.sums[1].gaps, pair.gaps[0].first), (3, 3, 30), "{name}");
        let expected: Vec<u8> = (0..100).filter(|i| ![30, 31, 50].contains(i)).chain([b'!']).collect();
        let got: Vec<u8> = pair.received(1, Kind::Nack).iter().map(|m| m[0]).collect();
        assert_eq!(got, expected, "{name}");
    }
}

/// MM-1: what arrived early was not handed on, so it is reported with the missing one when the session ends.
#[test]
fn messages_that_wait_for_a_missing_one_are_undelivered() {
    let mut pair = Pair::clean();
    (0..3u64).for_each(|n| assert_eq!(pair.send(0, Kind::Ack, b"in turn"), Ok(n)));
    let packets: Vec<_> = std::iter::from_fn(|| pair.transmit(0)).collect();
    let Pair { now, config, signers, ends: [ours, theirs], sums: [our_sums, their_sums], .. } = &mut pair;
    for early in &packets[1..] {
        let nothing = &mut |_, _, _, _: &[u8]| panic!("handed on before its turn");
        theirs.receive(*now, early.bytes(), config, their_sums, nothing);
    }
    let mut ack = Buf::new(0, Channel::room(config));
    assert!(theirs.transmit(*now, &mut ack, &signers[1], config, their_sums), "a gap is told at once");
    let ignored = &mut |_, _, _, _: &[u8]| {};
    ours.receive(*now, ack.bytes(), config, our_sums, ignored);
    ours.abandon();
    assert_eq!(ours.undelivered().collect::<Vec<_>>(), [0, 1, 2]);
}

/// A half-dead peer: its ACK messages are named, and what it never saw it is not asked about for ever.
#[test]
fn a_silent_peer_is_half_dead_after_patience() {
    let mut pair = Pair::new(Config::default(), 1, 0.0, 0.0);
    pair.send(0, Kind::Ack, b"heard").unwrap();
    pair.settle().unwrap();
    let silence = pair.now;
    pair.loss = 1.0;
    (1..=70u64).for_each(|n| assert_eq!(pair.send(0, Kind::Ack, b"anybody?"), Ok(n)));
    pair.packets = 0;
    assert_eq!(pair.settle(), Err(Code::Unreachable));
    assert!(pair.now.since(silence) >= pair.config.patience);
    assert!(pair.packets < 400, "{} packets to the dead", pair.packets);
    assert_eq!(pair.ends[0].undelivered().collect::<Vec<_>>(), (1..=70).collect::<Vec<_>>());
    assert_eq!(pair.ends[0].undelivered().count(), 0, "told once");
    assert_eq!(pair.send(0, Kind::Ack, b"no"), Err(Code::Unreachable));
    assert_eq!(pair.send(0, Kind::Unr, b"heartbeats still go"), Ok(0));
    assert_eq!(pair.ends[0].deadline(), Instant::NEVER);
}

#[test]
fn a_receiver_that_nobody_answers_stops_asking_until_the_peer_is_heard_again() {
    let mut pair = Pair::clean();
    (0..3u8).for_each(|i| _ = pair.send(0, Kind::Nack, &[i]).unwrap());
    pair.flush();
    pair.wire.remove(1);
    while pair.deliver_one() {}
    let config = pair.config;
    let mut asked = 0;
    let verdict = loop {
        pair.now = pair.ends[1].deadline();
        assert_ne!(pair.now, Instant::NEVER);
        let verdict = pair.ends[1].expire(pair.now, &config);
        asked += usize::from(pair.transmit(1).is_some());
        if verdict.is_err() {
            break verdict;
        }
    };
    assert_eq!(verdict, Err(Code::Unreachable));
    assert!((5..60).contains(&asked), "{asked} requests");
    assert_eq!((pair.ends[1].deadline(), pair.ends[1].has_work()), (Instant::NEVER, false));
    pair.send(0, Kind::Nack, &[3]).unwrap();
    pair.settle().unwrap();
    assert_eq!(pair.received(1, Kind::Nack), [[0], [1], [2], [3]]);
}

#[test]
fn every_queue_has_its_bound() {
    let config = Config { queue: 10, ..Config::default() };
    let largest = config.largest_message();
    for (kind, bound) in [(Kind::Unr, 16), (Kind::Ack, 10 + WINDOW as usize), (Kind::Nack, 10)] {
        let mut pair = Pair::new(config, 0, 0.0, 0.0);
        assert_eq!(pair.send(0, kind, &vec![0; largest + 1]), Err(Code::InvalidArgs));
        let taken = (0..1000).take_while(|_| pair.send(0, kind, &vec![0; largest]).is_ok()).count();
        assert_eq!(taken, bound, "{kind:?}");
        assert_eq!(pair.send(0, kind, b""), Err(Code::LocalResource));
        assert_eq!(pair.sums[0].refused, 3);
        let mut sent = 0;
        while pair.transmit(0).is_some() {
            sent += 1;
        }
        assert_eq!(sent, bound.min(WINDOW as usize), "{kind:?}: no more than a window of ACK is under way");
    }
}

#[test]
fn a_refused_caller_hears_that_there_is_room() {
    let mut pair = Pair::new(Config { queue: 10, ..Config::default() }, 0, 0.0, 0.0);
    while pair.send(0, Kind::Ack, b"order").is_ok() {}
    let mut writable = 0;
    for _ in 0..10 {
        while let Some(packet) = pair.transmit(0) {
            pair.receive(1, packet.bytes());
        }
        pair.now += pair.config.ack_delay;
        pair.ends[1].expire(pair.now, &pair.config).unwrap();
        while let Some(packet) = pair.transmit(1) {
            writable += u32::from(pair.receive(0, packet.bytes()).writable);
        }
    }
    assert_eq!(writable, 1);
    assert!(pair.send(0, Kind::Ack, b"order").is_ok());
}

/// DESIGN: a channel stands beside each neighbour of a million simulated nodes.
#[test]
fn an_idle_channel_is_silent_and_small() {
    assert!(size_of::<Channel>() <= 160, "{} bytes", size_of::<Channel>());
    let mut pair = Pair::new(Config::default(), 4, 0.2, 0.2);
    (0..60u8).for_each(|i| [Kind::Ack, Kind::Nack].iter().for_each(|&k| _ = pair.send(0, k, &[i]).unwrap()));
    pair.heals_at = Instant::ZERO + Duration::from_millis(300);
    pair.settle().unwrap();
    let (packets, print) = (pair.packets, [pair.print(0), pair.print(1)]);
    pair.now += Duration::from_secs(3600);
    pair.settle().unwrap();
    assert_eq!(pair.packets, packets);
    assert_eq!([pair.print(0), pair.print(1)], print, "rest is the same state whenever one looks");
}

#[test]
fn fingerprints_ignore_when_but_not_how_long() {
    let at = |start| {
        let mut pair = Pair::new(Config::default(), 9, 0.3, 0.2);
        pair.now = start;
        let mut prints = Vec::new();
        for i in 0..50u8 {
            [Kind::Unr, Kind::Ack, Kind::Nack].iter().for_each(|&k| _ = pair.send(0, k, &[i]));
            prints.extend([pair.print(0), pair.print(1)]);
            pair.run(pair.now + Duration::from_micros(700)).unwrap();
            prints.extend([pair.print(0), pair.print(1)]);
        }
        prints
    };
    let (early, late) = (at(Instant::ZERO), at(Instant(123_456_789_000)));
    assert_eq!(early, late);
    assert!(early.windows(4).any(|w| w[0] != w[2]), "and they do tell states apart");
}

proptest! {
    #[test]
    fn no_bytes_panic(packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 1..20)) {
        let mut pair = Pair::clean();
        for mut packet in packets {
            if let [layer, kind, ..] = &mut packet[..] {
                (*layer, *kind) = (3, *kind % 8);
            }
            pair.receive(0, &packet);
        }
        prop_assert!(pair.got[0].iter().all(|g| g.0 == Kind::Unr), "nothing unsigned is believed");
    }

    /// A peer that signs nonsense: nothing panics, and what we keep for it stays within the bounds.
    #[test]
    fn a_hostile_peer_cannot_pass_the_bounds(
        packets in prop::collection::vec(
            (2u8..7, prop_oneof![0u64..200, any::<u64>()], prop::collection::vec(any::<u8>(), 0..20), 0u64..20_000_000),
            1..100,
        ),
    ) {
        let mut pair = Pair::clean();
        (0..30u8).for_each(|i| [Kind::Ack, Kind::Nack].iter().for_each(|&k| _ = pair.send(0, k, &[i]).unwrap()));
        while pair.transmit(0).is_some() {}
        let context = pair.ends[1].context;
        for (kind, number, payload, wait) in packets {
            let mut packet = Buf::new(0, 200);
            Packet::encode_header(wire::Kind::Acked, Port(1), Port(2), number, packet.vec_mut());
            packet.bytes_mut()[1] = kind;
            packet.extend(&payload);
            context.sign(&mut packet, &pair.signers[1]);
            pair.receive(0, packet.bytes());
            pair.now += Duration(wait);
            let _ = pair.ends[0].expire(pair.now, &pair.config);
            for _ in 0..200 {
                if pair.transmit(0).is_none() {
                    break;
                }
            }
            prop_assert!(!pair.ends[0].has_work(), "one packet made more than 200");
        }
        prop_assert_eq!(pair.sums[0].bad_signature, 0);
    }
}
