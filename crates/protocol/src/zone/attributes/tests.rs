//! The handlers, one by one: node 0 is under test, the others are what we make of them.

use super::*;
use crate::zone::attributes::net::CONFIG;
use crate::zone::pace::Paces;
use phalanx_core::Duration;
use phalanx_wire::attribute::{
    Entry, MESSAGE_MAX, RECORDS_MAX, Record, ReplyWriter, Span, encode_request, encode_update,
};
use proptest::prelude::*;

const ME: Slot = Slot(0);
const A: Slot = Slot(1);
const B: Slot = Slot(2);
const P: Slot = Slot(3);
const Q: Slot = Slot(4);
const NOW: Instant = Instant(1_000_000_000);

/// The incarnations in which slots are in the view.
#[derive(Clone)]
struct Members(Vec<Option<u64>>);

fn identity(slot: Slot) -> Identity {
    let mut bytes = [slot.0 as u8; 32];
    bytes[1] = (slot.0 >> 8) as u8;
    Identity(bytes)
}

impl Names for Members {
    fn identity(&self, slot: Slot) -> Option<Identity> {
        Some(identity(slot))
    }
    fn slot(&self, id: &Identity) -> Option<Slot> {
        let slot = Slot(u32::from(id.0[0]) | u32::from(id.0[1]) << 8);
        self.incarnation(slot).filter(|_| identity(slot) == *id).map(|_| slot)
    }
    fn incarnation(&self, slot: Slot) -> Option<u64> {
        self.0.get(slot.at()).copied().flatten()
    }
}

/// What came out, readable.
#[derive(Default, PartialEq, Debug)]
struct Heard(Vec<String>);

impl<'a> Sink<Output<'a>> for Heard {
    fn push(&mut self, item: Output<'a>) {
        let list = |d: &phalanx_wire::attribute::Digest<'_>| {
            d.iter().map(|r| format!(" {}.{}@{}", r.identity.0[0], r.incarnation, r.version)).collect::<String>()
        };
        self.0.push(match item {
            Output::Changed { member, key, value: Some(value) } => {
                format!("{}: {key}={}", member.0, String::from_utf8_lossy(value))
            }
            Output::Changed { member, key, value: None } => format!("{}: {key} is gone", member.0),
            Output::Send { to, bytes } => match Packet::parse(bytes).expect("what we send is well formed") {
                Packet::Update(digest) => format!("to {} update{}", to.0, list(&digest)),
                Packet::Request { digest, push: true, .. } => format!("to {} push{}", to.0, list(&digest)),
                Packet::Request { digest, .. } => format!("to {} request{}", to.0, list(&digest)),
                Packet::Reply { pieces, more, .. } => {
                    let piece = |p: phalanx_wire::attribute::Piece<'_>| match p.span {
                        None => format!(" {}.{} nothing", p.identity.0[0], p.incarnation),
                        Some(s) => format!(" {}.{}@{}..{}", p.identity.0[0], p.incarnation, s.since, s.through),
                    };
                    let pieces: String = pieces.iter().map(piece).collect();
                    format!("to {} reply{pieces}{}", to.0, if more { " more" } else { "" })
                }
            },
        });
    }
}

/// Node 0 with neighbours A and B, and its view.
struct Bench {
    node: Attributes,
    names: Members,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        let mut bench = Self { node: Attributes::new(ME, CONFIG), names: Members(vec![Some(1); 10]), now: NOW };
        assert_eq!((bench.neighbour(A), bench.neighbour(B)), (vec![], vec![]), "there is nothing to say");
        bench
    }

    fn act(&mut self, act: impl FnOnce(&mut Attributes, Instant, &Members, &mut Heard)) -> Vec<String> {
        let mut heard = Heard::default();
        act(&mut self.node, self.now, &self.names, &mut heard);
        heard.0
    }

    fn neighbour(&mut self, who: Slot) -> Vec<String> {
        self.act(|n, now, names, out| n.on_neighbour(now, who, names, out))
    }

    fn lost(&mut self, who: Slot) -> Vec<String> {
        self.act(|n, now, names, out| n.on_neighbour_lost(now, who, names, out))
    }

    fn left(&mut self, who: Slot) -> Vec<String> {
        self.names.0[who.at()] = None;
        self.act(|n, now, names, out| {
            n.on_left(now, who, names);
            n.on_neighbour_lost(now, who, names, out);
        })
    }

    fn joined(&mut self, who: Slot, incarnation: u64) -> Vec<String> {
        self.names.0[who.at()] = Some(incarnation);
        self.act(|n, now, names, out| n.on_joined(now, who, names, out))
    }

    fn expire(&mut self) -> Vec<String> {
        self.now = self.node.deadline();
        assert_ne!(self.now, Instant::NEVER, "nothing waits");
        self.act(|n, now, names, out| n.expire(now, names, out))
    }

    fn receive(&mut self, from: Slot, bytes: &[u8]) -> Vec<String> {
        self.act(|n, now, names, out| n.on_message(now, from, bytes, names, out))
    }

    fn update(&mut self, from: Slot, records: &[(Slot, u64, u64)]) -> Vec<String> {
        let mut bytes = Vec::new();
        encode_update(&list(records), &mut bytes);
        self.receive(from, &bytes)
    }

    fn request(&mut self, from: Slot, records: &[(Slot, u64, u64)], push: bool) -> Vec<String> {
        let mut bytes = Vec::new();
        encode_request(&list(records), push, 7, &mut bytes);
        self.receive(from, &bytes)
    }

    /// A reply to request `number` with one entry for each version of the span.
    fn reply(&mut self, from: Slot, number: u16, owner: Slot, life: u64, span: (u64, u64)) -> Vec<String> {
        let keys: Vec<String> = (span.0 + 1..=span.1).map(|v| format!("k{v}")).collect();
        let entries = keys.iter().zip(span.0 + 1..).map(|(key, version)| Entry { version, key, value: Some(b"v") });
        self.reply_with(from, number, owner, life, Some(Span { since: span.0, through: span.1, floor: 0 }), entries)
    }

    fn reply_with<'e>(
        &mut self,
        from: Slot,
        number: u16,
        owner: Slot,
        life: u64,
        span: Option<Span>,
        entries: impl IntoIterator<Item = Entry<'e>>,
    ) -> Vec<String> {
        let mut bytes = Vec::new();
        let mut reply = ReplyWriter::new(number, &mut bytes);
        reply.piece(&identity(owner), life, span, entries);
        reply.finish(false);
        self.receive(from, &bytes)
    }

    fn nothing(&mut self, from: Slot, number: u16, owner: Slot) -> Vec<String> {
        self.reply_with(from, number, owner, 1, None, [])
    }

    fn dropped(&self, why: Dropped) -> u64 {
        self.node.counters().dropped(why)
    }
}

fn list(records: &[(Slot, u64, u64)]) -> Vec<Record> {
    records
        .iter()
        .map(|&(slot, incarnation, version)| Record { identity: identity(slot), incarnation, version })
        .collect()
}

const SILENCE: [&str; 0] = [];

#[test]
fn at_1_a_write_is_announced_and_the_same_value_is_not() {
    let mut bench = Bench::new();
    assert_eq!(bench.node.set(NOW, "rack", Some(b"7")), Ok(()));
    assert_eq!(bench.node.deadline(), NOW, "a lone change leaves at once");
    assert_eq!(bench.expire(), ["to 1 update 0.1@1", "to 2 update 0.1@1"]);
    assert_eq!(bench.node.set(NOW, "rack", Some(b"7")), Ok(()));
    assert_eq!(bench.node.deadline(), Instant::NEVER, "and then there is silence");
    assert_eq!(bench.node.set(NOW, "", Some(b"7")), Err(Code::InvalidArgs));
    assert_eq!(bench.node.set(NOW, "rack", Some(&[0; VALUE_MAX + 1])), Err(Code::InvalidArgs));
    assert_eq!((bench.node.deadline(), bench.node.get(ME, "rack")), (Instant::NEVER, Some(&b"7"[..])));
    assert_eq!(bench.node.set(NOW, "rack", None), Ok(()));
    assert!(bench.node.deadline() > NOW, "what follows is aggregated");
    assert_eq!(bench.node.set(NOW, "load", Some(b"1")), Ok(()));
    assert_eq!(bench.expire(), ["to 1 update 0.1@3", "to 2 update 0.1@3"]);
    assert_eq!(bench.node.map(ME).collect::<Vec<_>>(), [("load", &b"1"[..])]);
}

/// AT-2, with the paper's rounds: an update leaves an interval after the change.
#[test]
fn at_2_the_papers_profile_waits_for_its_round() {
    let tau = Duration::from_millis(200);
    let paces = Paces { lone: false, brisk: 0, shortest: tau, longest: tau };
    let mut node = Attributes::new(ME, Config { paces, ..CONFIG });
    node.set(NOW, "k", Some(b"v")).unwrap();
    assert_eq!(node.deadline(), NOW + tau);
}

/// AT-2, lines 1 to 6.
#[test]
fn at_2_what_a_neighbour_has_newer_is_asked_of_it() {
    let mut bench = Bench::new();
    assert_eq!(bench.update(A, &[(P, 1, 3), (Q, 1, 1)]), ["to 1 request 3.1@0 4.1@0"]);
    assert_eq!(
        bench.reply(A, 1, P, 1, (0, 3)),
        ["3: k1=v", "3: k2=v", "3: k3=v", "to 1 push 4.1@0", "to 2 push 4.1@0"]
    );
    assert_eq!(bench.update(B, &[(P, 1, 3)]), SILENCE, "we have that");
    assert_eq!(bench.update(B, &[(P, 1, 5)]), ["to 2 request 3.1@3"], "only what is newer");
    assert_eq!(bench.reply(B, 2, P, 1, (3, 5)), ["3: k4=v", "3: k5=v"]);
    assert_eq!((bench.node.version(P), bench.node.counters().duplicates), (5, 0));
    assert_eq!(bench.expire(), ["to 1 update 3.1@5", "to 2 update 3.1@5"], "and it is passed on");
    assert_eq!(bench.node.deadline(), Instant::NEVER);
    assert_eq!(bench.node.with("k4").collect::<Vec<_>>(), [(P, &b"v"[..])]);
}

/// AT-2, line 4: while one is asked, others' offers wait.
#[test]
fn at_2_two_neighbours_offer_different_versions() {
    let mut bench = Bench::new();
    assert_eq!(bench.update(A, &[(P, 1, 3)]), ["to 1 request 3.1@0"]);
    assert_eq!(bench.update(B, &[(P, 1, 5)]), SILENCE, "the paper would ask for all five here");
    let heard = bench.reply(A, 1, P, 1, (0, 3));
    assert_eq!(heard.last().unwrap(), "to 2 request 3.1@3");
    bench.reply(B, 2, P, 1, (3, 5));
    assert_eq!((bench.node.version(P), bench.node.counters().duplicates), (5, 0));
}

/// AT-2, line 12, and its silence when `push` is set.
#[test]
fn at_2_a_request_in_vain_is_answered_unless_it_is_a_push() {
    let mut bench = Bench::new();
    bench.node.set(NOW, "k", Some(b"v")).unwrap();
    assert_eq!(bench.request(A, &[(ME, 1, 0), (P, 1, 0)], false), ["to 1 reply 0.1@0..1 3.1 nothing"]);
    assert_eq!(bench.request(A, &[(ME, 1, 0), (P, 1, 0)], true), ["to 1 reply 0.1@0..1"]);
    assert_eq!(bench.request(A, &[(ME, 1, 1)], false), ["to 1 reply 0.1 nothing"]);
    assert_eq!(bench.request(A, &[(ME, 1, 1)], true), SILENCE);
    assert_eq!(bench.request(A, &[(ME, 2, 0)], false), ["to 1 reply 0.2 nothing"], "a life that we do not live");
}

/// AT-2, lines 17 to 19 and 22: the target does not have it after all.
#[test]
fn at_2_who_does_not_have_it_makes_us_ask_all() {
    let mut bench = Bench::new();
    bench.update(A, &[(P, 1, 3)]);
    assert_eq!(bench.nothing(A, 1, P), ["to 1 push 3.1@0", "to 2 push 3.1@0"]);
    assert_eq!(bench.node.deadline(), Instant::NEVER, "nobody is waited for");
    assert_eq!(bench.update(B, &[(P, 1, 3)]), ["to 2 request 3.1@0"], "who offers it is asked again");
}

/// AT-2: "the pending request will be resent to all neighbours".
#[test]
fn at_2_a_target_that_disconnects_makes_us_ask_all() {
    let mut bench = Bench::new();
    bench.neighbour(Q);
    bench.update(A, &[(P, 1, 3)]);
    assert_eq!(bench.lost(A), ["to 2 push 3.1@0", "to 4 push 3.1@0"]);
    bench.update(B, &[(P, 1, 3)]);
    assert_eq!(bench.left(B), ["to 4 push 3.1@0"], "who leaves is no neighbour");
    assert_eq!(bench.update(Q, &[(P, 1, 3)]), ["to 4 request 3.1@0"]);
    assert_eq!(bench.neighbour(Q), ["to 4 push 3.1@0"][..0], "nobody else is left to ask");
}

/// AT-2, instead of all: somebody who is known to have it.
#[test]
fn at_2_another_who_offered_it_is_asked_first() {
    let mut bench = Bench::new();
    bench.update(A, &[(P, 1, 3)]);
    bench.update(B, &[(P, 1, 2)]);
    assert_eq!(bench.nothing(A, 1, P), ["to 2 request 3.1@0"]);
    let mut bench = Bench::new();
    bench.update(A, &[(P, 1, 3)]);
    bench.update(B, &[(P, 1, 2)]);
    assert_eq!(bench.lost(A), ["to 2 request 3.1@0"]);
}

#[test]
fn at_2_a_new_neighbour_gets_the_full_digest() {
    let mut bench = Bench::new();
    bench.node.set(NOW, "k", Some(b"v")).unwrap();
    bench.update(A, &[(P, 1, 2)]);
    bench.reply(A, 1, P, 1, (0, 2));
    assert_eq!(bench.neighbour(Q), ["to 4 update 0.1@1 3.1@2"]);
    assert_eq!(bench.neighbour(Q), ["to 4 update 0.1@1 3.1@2"], "again when the link begins anew");
}

#[test]
fn at_2_strangers_are_answered_but_not_believed() {
    let mut bench = Bench::new();
    bench.node.set(NOW, "k", Some(b"v")).unwrap();
    assert_eq!(bench.request(Q, &[(ME, 1, 0)], false), ["to 4 reply 0.1@0..1"]);
    assert_eq!(bench.update(Q, &[(P, 1, 1)]), SILENCE);
    assert_eq!(bench.reply(Q, 1, P, 1, (0, 1)), SILENCE);
    assert_eq!((bench.dropped(Dropped::NotNeighbour), bench.node.version(P)), (2, 0));
}

/// AT-1: the replica goes with its owner, and the next life begins at zero, whatever of the old one is under way.
#[test]
fn at_1_an_old_life_neither_overwrites_nor_blocks_the_new_one() {
    let mut bench = Bench::new();
    bench.update(A, &[(P, 1, 9)]);
    bench.reply(A, 1, P, 1, (0, 9));
    bench.left(P);
    assert_eq!((bench.node.version(P), bench.node.map(P).count()), (0, 0));
    assert_eq!(bench.joined(P, 2), SILENCE, "the new life has written nothing yet");
    assert_eq!(bench.update(A, &[(P, 1, 12)]), SILENCE);
    assert_eq!(bench.reply(A, 1, P, 1, (0, 12)), SILENCE);
    assert_eq!((bench.node.version(P), bench.dropped(Dropped::Stale)), (0, 2));
    assert_eq!(bench.update(A, &[(P, 2, 1)]), ["to 1 request 3.2@0"]);
    assert_eq!(bench.reply(A, 2, P, 2, (0, 1)), ["3: k1=v"]);
    assert_eq!(bench.request(A, &[(P, 1, 0)], false), ["to 1 reply 3.1 nothing"]);
}

#[test]
fn at_1_a_life_that_we_do_not_see_yet_is_taken_up_when_it_joins() {
    let mut bench = Bench::new();
    assert_eq!(bench.update(A, &[(P, 2, 4)]), SILENCE, "we see its first life");
    bench.names.0[Q.at()] = None;
    assert_eq!(bench.update(B, &[(Q, 1, 2)]), SILENCE, "we do not see this one at all");
    assert_eq!(bench.joined(Q, 1), ["to 2 request 4.1@0"]);
    bench.left(P);
    assert_eq!(bench.joined(P, 2), ["to 1 request 3.2@0"]);
}

/// A false alarm: nobody has news of it, so nobody would offer it.
#[test]
fn at_1_who_returns_in_the_same_life_is_asked_around_for() {
    let mut bench = Bench::new();
    bench.update(A, &[(P, 1, 2)]);
    bench.reply(A, 1, P, 1, (0, 2));
    bench.left(P);
    assert_eq!(bench.joined(P, 1), ["to 1 request 3.1@0"], "one after the other");
    assert_eq!(bench.nothing(A, 2, P), ["to 2 request 3.1@0"]);
    assert_eq!(bench.reply(B, 3, P, 1, (0, 2)).len(), 2);
}

/// Line 21 takes the maximum: a late reply would leave a hole that is never filled.
#[test]
fn at_1_a_late_reply_leaves_no_hole() {
    let mut bench = Bench::new();
    bench.update(A, &[(P, 1, 2)]);
    bench.reply(A, 1, P, 1, (0, 2));
    bench.update(A, &[(P, 1, 3)]);
    bench.left(P);
    assert_eq!(bench.joined(P, 1), ["to 2 request 3.1@0"], "A has something to answer still");
    assert_eq!(bench.reply(A, 2, P, 1, (2, 3)), SILENCE);
    assert_eq!((bench.node.version(P), bench.dropped(Dropped::Gap)), (0, 1));
    assert_eq!(bench.reply(B, 3, P, 1, (0, 3)).len(), 3);
}

/// Our own incarnation has risen: all shall know our map in it.
#[test]
fn at_1_our_map_follows_us_into_a_new_life() {
    let mut bench = Bench::new();
    bench.node.set(NOW, "k", Some(b"v")).unwrap();
    bench.expire();
    assert_eq!(bench.joined(ME, 2), SILENCE);
    assert_eq!(bench.expire(), ["to 1 update 0.2@1", "to 2 update 0.2@1"]);
    assert_eq!(bench.request(A, &[(ME, 2, 0)], false), ["to 1 reply 0.2@0..1"]);
}

/// A promise that is not kept: others are asked, and come first from then on.
#[test]
fn a_liar_that_promises_everything_cannot_keep_a_map_from_us() {
    let mut bench = Bench::new();
    bench.update(A, &[(P, 1, VERSION_MAX)]);
    bench.update(B, &[(P, 1, 2)]);
    assert_eq!(bench.expire(), ["to 2 request 3.1@0"]);
    assert_eq!((bench.node.counters().silences, bench.now), (1, NOW + CONFIG.patience));
    assert_eq!(bench.update(A, &[(P, 1, VERSION_MAX)]), SILENCE);
    assert_eq!(bench.reply(B, 2, P, 1, (0, 2)), ["3: k1=v", "3: k2=v", "to 1 request 3.1@2"]);
    assert_eq!(bench.update(B, &[(P, 1, 3)]), SILENCE);
    bench.now = NOW + CONFIG.patience * 2;
    let heard = bench.act(|n, now, names, out| n.expire(now, names, out));
    assert_eq!(heard.last().unwrap(), "to 2 request 3.1@2", "{heard:?}");
    bench.reply(B, 4, P, 1, (2, 3));
    assert_eq!(bench.node.version(P), 3);
}

/// Somebody has more of our map than we wrote. What we write next must reach those who believe it.
#[test]
fn a_lie_about_our_own_map_is_overtaken() {
    let mut bench = Bench::new();
    bench.node.set(NOW, "k", Some(b"true")).unwrap();
    bench.expire();
    assert_eq!(bench.update(A, &[(ME, 1, 1000)]), SILENCE);
    assert_eq!(bench.expire(), ["to 1 update 0.1@1001", "to 2 update 0.1@1001"]);
    assert_eq!(bench.request(A, &[(ME, 1, 1000)], false), ["to 1 reply 0.1@0..1001"], "the whole map, not the rest");
    assert_eq!(bench.reply(A, 0, ME, 1, (1999, 2000)), SILENCE, "data is no better");
    assert_eq!((bench.node.get(ME, "k"), bench.node.map(ME).count()), (Some(&b"true"[..]), 1));
    bench.node.set(NOW, "k", Some(b"later")).unwrap();
    assert_eq!(bench.expire(), ["to 1 update 0.1@2002", "to 2 update 0.1@2002"]);
    assert_eq!(bench.update(A, &[(ME, 1, 1000), (P, 1, 0)]), SILENCE, "what is below us is no lie any more");
    assert_eq!(bench.update(A, &[(ME, 7, 1)]), SILENCE, "a life that we have not begun");
    assert_eq!((bench.dropped(Dropped::Lie), bench.node.deadline()), (3, Instant::NEVER));
}

/// The same seen from a reader that has taken the forged map.
#[test]
fn a_reader_of_a_forged_map_reads_the_true_one_in_the_end() {
    let mut reader = Bench::new();
    reader.update(A, &[(P, 1, 1000)]);
    let forged = [
        Entry { version: 999, key: "evil", value: Some(b"!") },
        Entry { version: 1000, key: "k", value: Some(b"forged") },
    ];
    reader.reply_with(A, 1, P, 1, Some(Span { since: 0, through: 1000, floor: 0 }), forged);
    assert_eq!(reader.expire(), ["to 1 update 3.1@1000", "to 2 update 3.1@1000"], "so its owner hears of it");
    assert_eq!(reader.update(B, &[(P, 1, 1001)]), ["to 2 request 3.1@1000"]);
    let whole = [Entry { version: 1, key: "k", value: Some(b"true") }];
    let heard = reader.reply_with(B, 2, P, 1, Some(Span { since: 0, through: 1001, floor: 1001 }), whole);
    assert_eq!(heard, ["3: evil is gone", "3: k=true"]);
}

#[test]
fn what_makes_no_sense_is_dropped_and_counted() {
    let mut bench = Bench::new();
    let mut future = Vec::new();
    encode_update(&list(&[(P, 1, u64::MAX)]), &mut future);
    for (bytes, why) in [
        (&b""[..], Dropped::Truncated),
        (&[9; 8], Dropped::Unknown),
        (&[1, 1, 0, 0, 9, 0, 0, 0], Dropped::Truncated),
        (&future, Dropped::Malformed),
    ] {
        let before = bench.dropped(why);
        assert_eq!(bench.receive(A, bytes), SILENCE);
        assert_eq!(bench.dropped(why), before + 1, "{why:?}");
    }
    assert_eq!(bench.node.counters().drops().map(|(_, n)| n).sum::<u64>(), 4);
}

/// Any number of requests for everything: each costs one message at most.
#[test]
fn at_2_a_request_for_everything_is_answered_by_one_message() {
    let mut bench = Bench::new();
    bench.names = Members(vec![Some(1); 40]);
    let value = [7; VALUE_MAX];
    for owner in 3..40 {
        bench.update(A, &[(Slot(owner), 1, 1)]);
        let entry = Entry { version: 1, key: "k", value: Some(&value) };
        let number = owner as u16 - 2;
        bench.reply_with(A, number, Slot(owner), 1, Some(Span { since: 0, through: 1, floor: 0 }), [entry]);
    }
    let all: Vec<_> = (0..40).map(|n| (Slot(n), 1, 0)).collect();
    for push in [false, true] {
        let mut bytes = Vec::new();
        encode_request(&list(&all), push, 1, &mut bytes);
        let mut sizes = Sizes::default();
        bench.node.on_message(NOW, A, &bytes, &bench.names, &mut sizes);
        assert!(sizes.0.iter().all(|&size| size <= MESSAGE_MAX), "{sizes:?}");
        assert_eq!(sizes.0.len(), if push { 2 } else { 1 }, "the rest of a push is offered");
    }
    let heard = bench.request(A, &all, false);
    assert!(heard[0].ends_with("more") && !heard[0].contains("39.1"), "{heard:?}");
    let heard = bench.request(A, &all, true);
    assert!(heard[1].starts_with("to 1 update") && heard[1].ends_with("39.1@1"), "{heard:?}");
}

#[derive(Default, Debug)]
struct Sizes(Vec<usize>);

impl<'a> Sink<Output<'a>> for Sizes {
    fn push(&mut self, item: Output<'a>) {
        if let Output::Send { bytes, .. } = item {
            self.0.push(bytes.len());
        }
    }
}

/// A digest longer than a message becomes several, and so do the requests for it.
#[test]
fn at_2_long_digests_are_cut() {
    let mut bench = Bench::new();
    let many = RECORDS_MAX as u32 + 100;
    bench.names = Members(vec![Some(1); many as usize + 10]);
    for chunk in (10..10 + many).collect::<Vec<_>>().chunks(RECORDS_MAX) {
        let mut records = list(&chunk.iter().map(|&n| (Slot(n), 1, 1)).collect::<Vec<_>>());
        records.sort_unstable();
        let mut bytes = Vec::new();
        encode_update(&records, &mut bytes);
        bench.receive(A, &bytes);
    }
    assert_eq!(bench.node.counters().requests, 1, "the rest waits for the answer");
    let mut sizes = Sizes::default();
    bench.node.on_neighbour_lost(NOW, A, &bench.names, &mut sizes);
    assert_eq!(sizes.0.len(), 2, "to the one neighbour that is left: {sizes:?}");
    assert!(sizes.0.iter().all(|&size| size <= MESSAGE_MAX));
}

#[test]
fn who_knows_no_attributes_holds_next_to_nothing() {
    let mut bench = Bench::new();
    bench.left(P);
    bench.joined(P, 2);
    bench.lost(A);
    assert!(bench.node.state.is_none() && size_of::<Attributes>() <= 80, "{}", size_of::<Attributes>());
    assert_eq!(bench.node.counters(), Counters::NONE);
    bench.update(B, &[(P, 2, 0)]);
    assert_eq!(bench.node.set(NOW, "", None), Err(Code::InvalidArgs));
    assert!(bench.node.state.as_ref().is_some_and(|s| s.maps.is_empty()), "an empty map is no map");
}

#[test]
fn fingerprints_ignore_when() {
    let print = |start: Instant| {
        let mut bench = Bench { now: start, ..Bench::new() };
        bench.node.set(start, "k", Some(b"v")).unwrap();
        bench.expire();
        bench.node.set(start, "k", Some(b"w")).unwrap();
        bench.update(A, &[(P, 1, 3)]);
        let mut print = Fingerprint::at(start);
        bench.node.fingerprint(&mut print);
        std::hash::Hasher::finish(&print)
    };
    assert_eq!(print(NOW), print(NOW + Duration::from_secs(5)));
}

proptest! {
    /// Anything may come from anybody: no panic, no more than a message for each neighbour, and our own map is ours.
    #[test]
    fn no_message_panics(
        messages in prop::collection::vec((0u32..6, 1u8..4, any::<bool>(), prop::collection::vec((0u32..6, 0u64..4, 0u64..5), 0..5)), 1..60),
        noise in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bench = Bench::new();
        bench.node.set(NOW, "k", Some(b"mine")).unwrap();
        bench.receive(A, &noise);
        for (from, kind, flag, mut records) in messages {
            records.sort_unstable();
            records.dedup_by_key(|r| r.0);
            let records: Vec<_> = records.into_iter().map(|(s, i, v)| (Slot(s), i, v)).collect();
            let from = Slot(from);
            let heard = match kind {
                1 => bench.update(from, &records),
                2 => bench.request(from, &records, flag),
                _ => records.iter().flat_map(|&(owner, life, to)| match to {
                    0 => bench.nothing(from, to as u16, owner),
                    _ => bench.reply(from, 1 + to as u16, owner, life, (to - 1, to)),
                }).collect(),
            };
            prop_assert!(heard.len() <= 30, "{:?}", heard);
            if flag && bench.node.deadline() != Instant::NEVER {
                bench.expire();
            }
        }
        prop_assert_eq!(bench.node.map(ME).collect::<Vec<_>>(), [("k", &b"mine"[..])]);
    }
}
