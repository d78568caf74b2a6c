//! A zone of rumours on a graph, with losses where a test wants them.

use super::flood::{AGAIN, SEEN_MAX};
use super::question::ASKED_MAX;
use super::*;
use std::collections::BTreeSet;
use std::net::SocketAddr;

fn addr(n: usize) -> Addr {
    Addr::Ip(SocketAddr::from(([10, 0, 0, n as u8], 7946)))
}

/// What a member hears.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Said {
    Told(String, String, Vec<u8>),
    Asked(Id, String),
    Replied(String, Option<Vec<u8>>),
    Over,
    Rekeyed(u64),
    Ponged(Option<Duration>),
}

struct World {
    members: Vec<Rumours>,
    links: Vec<Vec<Addr>>,
    mail: VecDeque<(usize, usize, Vec<u8>)>,
    said: Vec<Vec<Said>>,
    dead: BTreeSet<usize>,
    sent: usize,
    now: Instant,
}

struct Ear<'w> {
    at: usize,
    mail: &'w mut VecDeque<(usize, usize, Vec<u8>)>,
    said: &'w mut Vec<Said>,
}

fn number(addr: Addr) -> usize {
    let Addr::Ip(SocketAddr::V4(v4)) = addr else { panic!("an address of ours") };
    v4.ip().octets()[3].into()
}

impl<'a> Sink<Output<'a>> for Ear<'_> {
    fn push(&mut self, output: Output<'a>) {
        let said = match output {
            Output::Send { to, bytes } => return self.mail.push_back((self.at, number(to), bytes.to_vec())),
            Output::Told { from, words } => Said::Told(from.into(), words.name.into(), words.body.into()),
            Output::Asked { id, from, .. } => Said::Asked(id, from.into()),
            Output::Replied { from, body, .. } => Said::Replied(from.into(), body.map(<[u8]>::to_vec)),
            Output::Over { .. } => Said::Over,
            Output::Rekeyed { keys } => Said::Rekeyed(keys.epoch),
            Output::Ponged { took, .. } => Said::Ponged(took),
        };
        self.said.push(said);
    }
}

impl World {
    /// A ring with chords, as zones are.
    fn new(n: usize) -> Self {
        let member = |i: usize| {
            let boot = Boot([i as u8 + 1; 16]);
            Rumours::new(Name::new(&format!("n{i}")).unwrap(), addr(i), boot, Keys::first(1, [9; 32]))
        };
        let links = (0..n).map(|i| {
            let steps = [1, n - 1, n / 3, n - n / 3];
            let others: BTreeSet<usize> = steps.iter().map(|s| (i + s) % n).filter(|&j| j != i).collect();
            others.into_iter().map(addr).collect()
        });
        Self {
            members: (0..n).map(member).collect(),
            links: links.collect(),
            mail: VecDeque::new(),
            said: vec![Vec::new(); n],
            dead: BTreeSet::new(),
            sent: 0,
            now: Instant::ZERO,
        }
    }

    fn call<R>(&mut self, at: usize, act: impl FnOnce(&mut Rumours, Instant, &[Addr], &mut Ear<'_>) -> R) -> R {
        let mut ear = Ear { at, mail: &mut self.mail, said: &mut self.said[at] };
        act(&mut self.members[at], self.now, &self.links[at], &mut ear)
    }

    fn deliver(&mut self) {
        while let Some((from, to, bytes)) = self.mail.pop_front() {
            self.sent += 1;
            if !self.dead.contains(&to) {
                self.call(to, |r, now, neighbours, out| {
                    r.handle(now, Input::Heard { from: addr(from), bytes: &bytes, neighbours }, out);
                });
            }
        }
    }

    /// Everybody sees that a member is gone.
    fn fall(&mut self, who: usize) {
        self.dead.insert(who);
        self.links.iter_mut().for_each(|l| l.retain(|&a| a != addr(who)));
    }

    fn replies(&self, at: usize) -> BTreeSet<String> {
        let replied = |s: &Said| match s {
            Said::Replied(from, Some(_)) => Some(from.clone()),
            _ => None,
        };
        self.said[at].iter().filter_map(replied).collect()
    }
}

fn words<'a>(name: &'a str, body: &'a [u8]) -> Words<'a> {
    Words { name, body, only: "" }
}

#[test]
fn everybody_hears_a_rumour_once() {
    let mut world = World::new(30);
    world.call(4, |r, now, neighbours, out| r.tell(now, words("deploy", b"v2"), neighbours, out)).unwrap();
    world.deliver();
    for said in &world.said {
        assert_eq!(said[..], [Said::Told("n4".into(), "deploy".into(), b"v2".to_vec())]);
    }
    assert!(world.sent <= 30 * 4, "each member passes it on once");
}

/// What goes down the tree costs a message each; who has no seat there hears it from its neighbours, and who is linked later, too.
#[test]
fn st_4_what_is_cast_is_heard_once_also_by_who_has_no_seat() {
    let mut world = World::new(12);
    let apart = |neighbours: &[Addr]| neighbours.iter().copied().filter(|&a| a == addr(7)).collect::<Vec<_>>();
    let (_, letter) = world
        .call(4, |r, now, neighbours, out| {
            r.tell_tree(now, words("deploy", b"v2"), (neighbours, &apart(neighbours)), out)
        })
        .unwrap();
    for at in (0..12).filter(|&at| at != 7) {
        world.call(at, |r, now, neighbours, out| {
            r.handle(now, Input::Cast { bytes: &letter, neighbours, apart: &apart(neighbours) }, out);
        });
    }
    assert_eq!(world.mail.len(), 4, "to the one without a seat, from each of its neighbours");
    world.deliver();
    for said in &world.said {
        assert_eq!(said[..], [Said::Told("n4".into(), "deploy".into(), b"v2".to_vec())]);
    }
    let malformed = world.call(1, |r, now, neighbours, out| {
        r.handle(now, Input::Cast { bytes: b"?", neighbours, apart: &[] }, out);
        r.counters().malformed
    });
    assert_eq!(malformed, 1);
}

/// A member that is in the asker's view, and that nobody was linked with when the question passed, is asked all the same.
#[test]
fn who_is_just_being_linked_hears_it_too() {
    let mut world = World::new(12);
    world.links.iter_mut().for_each(|l| l.retain(|&a| a != addr(7)));
    let links = std::mem::take(&mut world.links[7]);
    world.call(0, |r, now, neighbours, out| r.tell(now, words("deploy", b""), neighbours, out)).unwrap();
    world.deliver();
    assert!(world.said[7].is_empty());
    world.links[7] = links;
    world.links[6].push(addr(7));
    let sent = world.sent;
    world.now += AGAIN;
    world.call(6, |r, now, neighbours, out| r.handle(now, Input::Round { neighbours }, out));
    world.deliver();
    assert_eq!(world.said[7].len(), 1);
    assert!(world.said.iter().all(|s| s.len() == 1), "once at each");
    assert!(world.sent <= sent + 1 + 4, "only who is new is told");
    world.now += KEPT;
    world.links[6].push(addr(3));
    let (before, sent) = (world.said.clone(), world.sent);
    world.call(6, |r, now, neighbours, out| r.handle(now, Input::Round { neighbours }, out));
    world.deliver();
    assert_eq!((world.said, world.sent, world.members[6].deadline()), (before, sent, Instant::NEVER));
}

#[test]
fn everybody_hears_it_though_some_fall_on_the_way() {
    let mut world = World::new(30);
    world.dead.extend([5, 14, 24]);
    world.call(4, |r, now, neighbours, out| r.tell(now, words("deploy", b""), neighbours, out)).unwrap();
    world.deliver();
    let heard = world.said.iter().filter(|s| !s.is_empty()).count();
    assert_eq!(heard, 27);
}

#[test]
fn replies_find_their_way_back_also_around_who_fell_meanwhile() {
    let mut world = World::new(30);
    let asked = |r: &mut Rumours, now, neighbours: &[Addr], out: &mut Ear<'_>| {
        r.ask(now, words("disk", b"?"), Duration::from_secs(5), neighbours, out)
    };
    let id = world.call(0, asked).unwrap();
    world.deliver();
    // All have the question. Now two of the asker's four neighbours fall.
    world.fall(1);
    world.fall(10);
    for at in (0..30).filter(|i| ![1, 10].contains(i)) {
        assert_eq!(world.said[at].iter().filter(|s| matches!(s, Said::Asked(asked, _) if *asked == id)).count(), 1);
        world.call(at, |r, _, neighbours, out| r.reply(id, b"42", true, neighbours, out)).unwrap();
    }
    world.deliver();
    assert_eq!(world.replies(0).len(), 28);
    let again = world.call(7, |r, _, neighbours, out| r.reply(id, b"43", true, neighbours, out));
    assert_eq!(again, Err(Code::InvalidEndpoint), "a question is answered once");
}

#[test]
fn a_question_is_over_in_time_and_late_replies_are_dropped() {
    let mut world = World::new(6);
    let asked = |r: &mut Rumours, now, neighbours: &[Addr], out: &mut Ear<'_>| {
        r.ask(now, words("disk", b"?"), Duration::from_secs(1), neighbours, out)
    };
    let id = world.call(0, asked).unwrap();
    world.deliver();
    world.now = Instant::ZERO + Duration::from_secs(1);
    world.call(0, |r, now, _, out| r.expire(now, out));
    assert_eq!(world.said[0].last(), Some(&Said::Over));
    world.call(3, |r, _, neighbours, out| r.reply(id, b"late", true, neighbours, out)).unwrap();
    world.deliver();
    assert!(world.replies(0).is_empty());
    world.call(0, |r, now, neighbours, out| r.handle(now, Input::Round { neighbours }, out));
    assert_eq!(world.members[0].deadline(), Instant::NEVER);
}

#[test]
fn a_question_for_some_is_answered_by_them_and_passed_on_by_all() {
    let mut world = World::new(12);
    let asked = |r: &mut Rumours, now, neighbours: &[Addr], out: &mut Ear<'_>| {
        let words = Words { only: "n5,n9", ..words("disk", b"?") };
        r.ask(now, words, Duration::from_secs(1), neighbours, out)
    };
    world.call(0, asked).unwrap();
    world.deliver();
    let heard: Vec<usize> = (0..12).filter(|&i| world.said[i].iter().any(|s| matches!(s, Said::Asked(..)))).collect();
    assert_eq!(heard, [5, 9]);
    let acks = world.said[0].iter().filter(|s| matches!(s, Said::Replied(_, None))).count();
    assert_eq!(acks, 2);
}

#[test]
fn one_member_is_asked_and_nobody_else_hears_it() {
    let mut world = World::new(12);
    let words = words("census", b"");
    let id = world.call(0, |r, now, _, out| r.ask_one(now, words, Duration::from_secs(1), addr(5), out)).unwrap();
    world.deliver();
    let heard: Vec<usize> = (0..12).filter(|&i| world.said[i].iter().any(|s| matches!(s, Said::Asked(..)))).collect();
    assert_eq!(heard, [5]);
    world.call(5, |r, _, neighbours, out| r.reply(id, b"3 zones", true, neighbours, out)).unwrap();
    world.deliver();
    assert_eq!(world.replies(0), BTreeSet::from(["n5".to_owned()]));
}

#[test]
fn who_was_away_gets_the_keys_from_the_first_it_meets() {
    let mut world = World::new(9);
    world.dead.insert(3);
    let two = world.members[0].keys().with(2, [2; 32]).unwrap().sealing(2).unwrap();
    world.call(0, |r, _, neighbours, out| r.rekey(two.clone(), neighbours, out)).unwrap();
    world.deliver();
    assert!((0..9).all(|i| i == 3 || *world.members[i].keys() == two));
    world.dead.clear();
    // Either of the two may notice the session first.
    world.call(4, |r, now, _, out| r.handle(now, Input::Up { addr: addr(3) }, out));
    world.deliver();
    assert_eq!(*world.members[3].keys(), two);
    let sent = world.sent;
    world.call(4, |r, now, _, out| r.handle(now, Input::Up { addr: addr(3) }, out));
    world.deliver();
    assert_eq!(world.sent, sent + 1, "who has the same says nothing");
    assert_eq!(
        world.call(0, |r, _, neighbours, out| r.rekey(two.clone(), neighbours, out)),
        Err(Code::InvalidArgs),
        "old keys do not come back"
    );
}

#[test]
fn pings_are_answered_or_given_up() {
    let mut world = World::new(3);
    world.call(0, |r, now, _, out| r.ping(now, addr(1), out));
    world.now = Instant::ZERO + Duration::from_millis(3);
    world.deliver();
    assert_eq!(world.said[0], [Said::Ponged(Some(Duration::from_millis(3)))]);
    world.dead.insert(2);
    world.call(0, |r, now, _, out| r.ping(now, addr(2), out));
    world.deliver();
    world.now = world.members[0].deadline();
    world.call(0, |r, now, _, out| r.expire(now, out));
    assert_eq!(world.said[0].last(), Some(&Said::Ponged(None)));
}

#[test]
fn what_is_too_long_is_refused_and_tables_stay_bounded() {
    let mut world = World::new(3);
    let long = "x".repeat(NAME_MAX + 1);
    let big = vec![0; BODY_MAX + 1];
    for bad in [words("", b""), words(&long, b""), words("a", &big)] {
        assert_eq!(world.call(0, |r, now, n, out| r.tell(now, bad, n, out)), Err(Code::InvalidArgs));
    }
    for patience in [Duration::ZERO, Duration::from_secs(601)] {
        let asked = world.call(0, |r, now, n, out| r.ask(now, words("a", b""), patience, n, out));
        assert_eq!(asked, Err(Code::InvalidArgs));
    }
    for _ in 0..SEEN_MAX + ASKED_MAX {
        world.call(0, |r, now, n, out| r.ask(now, words("a", b""), Duration::from_secs(1), n, out)).unwrap();
        world.call(0, |r, now, _, out| r.ping(now, addr(1), out));
    }
    let over = world.said[0].iter().filter(|s| **s == Said::Over).count();
    let given_up = world.said[0].iter().filter(|s| **s == Said::Ponged(None)).count();
    let asked = SEEN_MAX + ASKED_MAX;
    assert_eq!((over, given_up), (asked - ASKED_MAX, asked - PINGS_MAX), "whoever waits is told");
    let r = &world.members[0];
    assert_eq!(
        (r.flood.seen.len(), r.flood.order.len(), r.questions.len(), r.pings.len()),
        (SEEN_MAX, SEEN_MAX, ASKED_MAX, PINGS_MAX)
    );
    world.call(0, |r, now, neighbours, out| {
        r.handle(now, Input::Heard { from: addr(1), bytes: b"nonsense", neighbours }, out);
    });
    assert_eq!(world.members[0].counters().malformed, 1);
}

/// A letter that somebody turns in a circle ends.
#[test]
fn no_letter_travels_for_ever() {
    let mut world = World::new(4);
    let letter = Letter {
        kind: Kind::Tell,
        hops: 0,
        boot: Boot([77; 16]),
        number: 1,
        amount: 0,
        asker: addr(0),
        from: "x",
        name: "loop",
        only: "",
        body: b"",
    };
    let mut bytes = Vec::new();
    letter.encode(&mut bytes);
    world.mail.push_back((0, 1, bytes));
    world.deliver();
    assert_eq!((world.sent, world.said[1].len()), (1, 1), "heard, and not passed on");
}
