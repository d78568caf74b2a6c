//! Data centres that tell each other what they have: segments, and a federation beside each (TG-9).

use super::*;
use crate::baselines::Start;
use crate::baselines::net::{Net, Weather, card};
use crate::directory::{self, Service};
use crate::member::{self, Card, Engine, Slot, Version};
use crate::segment::{Segment, SegmentConfig, SegmentMap};
use phalanx_core::{Code, Payload, Snapshot};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// Nodes of a data centre, in segments of three.
const SIZE: usize = 6;
const NAMES: [&str; 3] = ["east", "north", "west"];
/// In front of what the federation says, as a port of its own would be.
const MARK: u8 = 0xfd;

fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn name(centre: usize) -> Name {
    Name::new(NAMES[centre]).unwrap()
}

fn place(n: usize) -> Addr {
    card(n).addr
}

fn nodes(centre: usize) -> Range<usize> {
    centre * SIZE..(centre + 1) * SIZE
}

/// Entry points: the last ones of each segment.
fn entries(centre: usize) -> Vec<Addr> {
    [2, 5].map(|i| place(centre * SIZE + i)).to_vec()
}

fn config(centre: usize, centres: usize) -> FederationConfig {
    let others = (0..centres).filter(|&c| c != centre).map(|c| (name(c), entries(c))).collect();
    FederationConfig { period: s(2), patience: s(20), ..FederationConfig::wan(name(centre), others) }
}

/// A node: an engine, and a federation beside it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Node {
    segment: Segment,
    federation: Federation,
    events: Vec<(String, Option<Status>)>,
}

#[derive(Debug)]
struct Letter(Vec<u8>);

impl Snapshot for Letter {
    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn encode(&self, range: Range<usize>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0[range]);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Node {
    fn federate(&mut self, now: Instant, input: Option<Input<'_>>, out: &mut impl member::Out) {
        let home = Home::of(&self.segment, self.segment.is_top());
        let events = &mut self.events;
        let mut sink = phalanx_core::Each(|output: Output<'_>| match output {
            Output::Abroad { to, bytes } => {
                let marked = [&[MARK], bytes].concat();
                out.push(member::Output::Datagram { to, bytes: &marked });
            }
            Output::Inside { to, bytes } => {
                let message: Arc<dyn Snapshot> = Arc::new(Letter([&[MARK], bytes].concat()));
                out.push(member::Output::Message { to, message: &message, across: false });
            }
            Output::Event(Event::Status { centre, status }) => events.push((centre.to_string(), Some(status))),
            Output::Event(Event::Told { centre } | Event::Forgotten { centre }) => {
                events.push((centre.to_string(), None));
            }
        });
        self.federation.handle(now, Input::Home(home), &mut sink);
        match input {
            Some(input) => self.federation.handle(now, input, &mut sink),
            None => self.federation.expire(now, &mut sink),
        }
    }
}

impl Machine for Node {
    type Input<'a> = member::Input<'a>;
    type Output<'a> = member::Output<'a>;

    fn handle<S: for<'a> Sink<member::Output<'a>>>(&mut self, now: Instant, input: member::Input<'_>, out: &mut S) {
        match input {
            member::Input::Datagram { from, bytes: [MARK, bytes @ ..], .. }
            | member::Input::Message { from, payload: Payload::Bytes([MARK, bytes @ ..]) } => {
                self.federate(now, Some(Input::Heard { from: from.addr, bytes }), out);
            }
            input => self.segment.handle(now, input, out),
        }
    }

    fn expire<S: for<'a> Sink<member::Output<'a>>>(&mut self, now: Instant, out: &mut S) {
        if now >= self.segment.deadline() {
            self.segment.expire(now, out);
        }
        if now >= self.federation.deadline() {
            self.federate(now, None, out);
        }
    }

    fn deadline(&self) -> Instant {
        if self.segment.is_empty() { Instant::NEVER } else { self.segment.deadline().min(self.federation.deadline()) }
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        self.segment.fingerprint(print);
        self.federation.fingerprint(print);
    }
}

impl Engine for Node {
    fn me(&self) -> Slot {
        self.segment.me()
    }
    fn version(&self, member: Slot) -> Option<Version> {
        self.segment.version(member)
    }
    fn card(&self, member: Slot) -> Option<&Card> {
        self.segment.card(member)
    }
    fn members(&self) -> impl Iterator<Item = (Slot, Version)> {
        self.segment.members()
    }
    fn len(&self) -> usize {
        self.segment.len()
    }
    fn linked(&self) -> Vec<Addr> {
        self.segment.linked()
    }
    fn set(&mut self, now: Instant, key: &str, value: Option<&[u8]>) -> Result<(), Code> {
        self.segment.set(now, key, value)
    }
    fn attribute(&self, member: Slot, key: &str) -> Option<&[u8]> {
        self.segment.attribute(member, key)
    }
    fn attributes(&self, member: Slot) -> impl Iterator<Item = (&str, &[u8])> {
        self.segment.attributes(member)
    }
    fn leave(&mut self, now: Instant, code: u8, out: &mut impl member::Out) {
        self.segment.leave(now, code, out);
    }
}

/// Nodes of so many data centres. The first has multicast, the others do not.
fn federated(centres: usize, losses: u8) -> impl Fn(usize, u64, Rng, Instant) -> Node {
    move |n, incarnation, mut rng, now| {
        let centre = n / SIZE;
        let start = Start { card: card(n), incarnation, bootstrap: Vec::new(), shared: Arc::default() };
        let base = SegmentConfig { losses, ..SegmentConfig::paper(20 + 10 * centre as u16, 2) };
        let federation = Federation::new(config(centre, centres), Rng::new(rng.u64(), 2), now);
        let segments = [0, 3].map(|at| (0..3).map(move |i| place(centre * SIZE + at + i)));
        let mut segment = if centre == 0 {
            Segment::new(base, start, rng, now)
        } else {
            Segment::unicast(base, &Arc::new(SegmentMap::new(segments)), start, rng, now)
        };
        let service = Service::new(Name::new(if n % 2 == 0 { "cache" } else { "web" }).unwrap());
        directory::register(&mut segment, now, &service).unwrap();
        Node { segment, federation, events: Vec::new() }
    }
}

type World<'m> = Net<'m, Node>;

fn world<'m>(
    centres: usize,
    weather: Weather,
    seed: u64,
    make: &'m dyn Fn(usize, u64, Rng, Instant) -> Node,
) -> World<'m> {
    let mut net = Net::new(centres * SIZE, weather, seed, make);
    // Segments of three, a router between them; routers do not carry groups from one data centre to another.
    net.distance = Box::new(|a, b| if a / SIZE != b / SIZE { 99 } else { 1 + u8::from(a / 3 != b / 3) });
    net
}

/// What a running node knows of a data centre: how it is reached, how many members it has, how many offer `cache`.
fn known(net: &World<'_>, node: usize, of: usize) -> (Status, u32, u32) {
    let federation = &net.hosts[node].engine.as_ref().unwrap().federation;
    let centre = federation.centre(NAMES[of]).unwrap();
    let caches = federation.find("cache").find(|(c, _)| c.name.as_str() == NAMES[of]).map_or(0, |(_, count)| count);
    (centre.status, centre.members, caches)
}

fn running(net: &World<'_>, centre: usize) -> Vec<usize> {
    net.running().filter(|n| nodes(centre).contains(n)).collect()
}

/// All who run know of all data centres who runs there.
fn is_told(net: &World<'_>, centres: usize) -> bool {
    (0..centres).flat_map(|of| (0..centres).map(move |by| (of, by))).filter(|(of, by)| of != by).all(|(of, by)| {
        let there = running(net, of);
        let caches = there.iter().filter(|n| *n % 2 == 0).count() as u32;
        running(net, by).iter().all(|&node| known(net, node, of) == (Status::Well, there.len() as u32, caches))
    })
}

fn settle(net: &mut World<'_>, centres: usize, at_most: Duration, seed: u64) {
    let start = net.now;
    while !is_told(net, centres) {
        let all: Vec<_> = net
            .running()
            .map(|n| (0..centres).filter(|&of| of != n / SIZE).map(|of| known(net, n, of)).collect::<Vec<_>>())
            .collect();
        assert!(net.now.since(start) < at_most, "seed {seed}: {all:?}");
        net.run(at_most / 100);
    }
}

/// Nobody is gone from anybody's view: whatever happened between data centres, it disturbed none.
fn assert_undisturbed(net: &World<'_>, from: usize, seed: u64) {
    let gone: Vec<_> = net.told[from..].iter().filter(|t| t.why.is_some()).collect();
    assert!(gone.is_empty(), "seed {seed}: {gone:?}");
    for (node, view) in net.views() {
        let own: Vec<usize> = view.keys().copied().collect();
        assert_eq!(own, nodes(node / SIZE).collect::<Vec<_>>(), "seed {seed}: {node}");
    }
}

fn speaker(net: &World<'_>, centre: usize) -> usize {
    let leads = |n: &usize| net.hosts[*n].engine.as_ref().unwrap().segment.is_top();
    running(net, centre).into_iter().find(leads).unwrap()
}

#[test]
fn tg_9_each_node_knows_what_there_is_elsewhere() {
    for seed in 0..100 {
        let make = federated(3, 5);
        let mut net = world(3, Weather::FAIR, seed, &make);
        settle(&mut net, 3, s(40), seed);
        let from = net.told.len();
        net.run(s(60));
        assert!(is_told(&net, 3), "seed {seed}");
        assert_undisturbed(&net, from, seed);
        // What changes there is known here.
        net.crash(8);
        settle(&mut net, 3, s(20), seed);
        let now = net.now;
        directory::register(&mut net.engine(7).segment, now, &Service::new(Name::new("queue").unwrap())).unwrap();
        net.run(s(10));
        for node in running(&net, 0).into_iter().chain(running(&net, 2)) {
            let federation = &net.engine(node).federation;
            let found: Vec<_> = federation.find("queue").map(|(c, count)| (c.name.as_str(), count)).collect();
            assert_eq!(found, [("north", 1)], "seed {seed}: {node}");
        }
    }
}

#[test]
fn tg_9_a_link_is_cut_and_heals() {
    for seed in 0..100 {
        let make = federated(2, 5);
        let mut net = world(2, Weather::FAIR, seed, &make);
        settle(&mut net, 2, s(40), seed);
        let from = net.told.len();
        net.partition(&nodes(1).collect::<Vec<_>>());
        net.run(s(25));
        for node in 0..2 * SIZE {
            // What was heard stays, and is marked.
            assert_eq!(known(&net, node, 1 - node / SIZE), (Status::Silent, 6, 3), "seed {seed}: {node}");
        }
        net.run(s(100));
        net.heal();
        settle(&mut net, 2, s(10), seed);
        assert_undisturbed(&net, from, seed);
        for node in 0..2 * SIZE {
            let other = NAMES[1 - node / SIZE].to_owned();
            let statuses: Vec<_> =
                net.engine(node).events.iter().filter_map(|(c, status)| (*c == other).then_some(*status)?).collect();
            assert_eq!(statuses, [Status::Well, Status::Silent, Status::Well], "seed {seed}: {node}");
        }
    }
}

/// What the first data centre says does not come to the second one; the other way is well.
#[test]
fn tg_9_a_link_is_cut_one_way() {
    for seed in 0..100 {
        let make = federated(2, 5);
        let mut net = world(2, Weather::FAIR, seed, &make);
        settle(&mut net, 2, s(40), seed);
        let from = net.told.len();
        net.loses = Box::new(|p| p.from < SIZE && p.to >= SIZE);
        net.run(s(60));
        for node in 0..SIZE {
            assert_eq!(known(&net, node, 1), (Status::Deaf, 6, 3), "seed {seed}: {node}");
            assert_eq!(known(&net, node + SIZE, 0), (Status::Silent, 6, 3), "seed {seed}: {node}");
        }
        // What changes there is still heard here.
        net.crash(SIZE + 4);
        net.run(s(15));
        assert!((0..SIZE).all(|node| known(&net, node, 1).1 == 5), "seed {seed}");
        net.start(SIZE + 4);
        net.loses = Box::new(|_| false);
        settle(&mut net, 2, s(20), seed);
        assert!(net.told[from..].iter().all(|t| t.why.is_none() || t.subject == SIZE + 4), "seed {seed}");
    }
}

/// Who speaks dies, here and there, again and again: the next one goes on, and nobody is ever silent.
#[test]
fn tg_9_a_speaker_is_killed_and_the_next_one_goes_on() {
    for seed in 0..100 {
        let make = federated(2, 5);
        let mut net = world(2, Weather::FAIR, seed, &make);
        settle(&mut net, 2, s(40), seed);
        for round in 0..4 {
            let victim = speaker(&net, round % 2);
            net.crash(victim);
            settle(&mut net, 2, s(30), seed);
            assert_ne!(speaker(&net, round % 2), victim);
            net.start(victim);
            settle(&mut net, 2, s(30), seed);
        }
        let is_silent = |(_, status): &(String, Option<Status>)| *status == Some(Status::Silent);
        let running: Vec<usize> = net.running().collect();
        assert!(running.into_iter().all(|n| !net.engine(n).events.iter().any(is_silent)), "seed {seed}");
    }
}

/// A data centre starts all over, and has forgotten all: it goes on behind what was heard of it.
#[test]
fn tg_9_a_data_centre_starts_all_over() {
    for seed in 0..100 {
        let make = federated(2, 5);
        let mut net = world(2, Weather::FAIR, seed, &make);
        settle(&mut net, 2, s(40), seed);
        net.run(s(100));
        nodes(1).for_each(|n| net.crash(n));
        net.run(s(if seed % 2 == 0 { 1 } else { 40 }));
        nodes(1).for_each(|n| net.start(n));
        settle(&mut net, 2, s(40), seed);
    }
}

#[test]
fn tg_9_forty_percent_loss() {
    for seed in 0..100 {
        let make = federated(2, 12);
        let mut net = world(2, Weather::losing(0.4), seed, &make);
        settle(&mut net, 2, s(120), seed);
        net.run(s(60));
        // Two entry points, ten periods: nobody is ever silent.
        let well = |n: usize| known(&net, n, 1 - n / SIZE).0 == Status::Well;
        assert!((0..2 * SIZE).all(well), "seed {seed}");
        net.weather = Weather::FAIR;
        settle(&mut net, 2, s(60), seed);
    }
}

fn one(bound: usize) -> Federation {
    let config = FederationConfig { bound, ..config(0, 2) };
    let mut federation = Federation::new(config, Rng::new(1, 1), Instant(0));
    let home = Home { linked: vec![place(1), place(2)], ..Home::default() };
    federation.handle(Instant(0), Input::Home(home), &mut phalanx_core::Each(|_: Output<'_>| ()));
    federation
}

fn packet(from: &str, to: &str, number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    Summary { from, to, number, members: 1, ..Summary::default() }.encode(&mut bytes).unwrap();
    bytes
}

/// Hands something in, and says how often it was passed on.
fn hear(federation: &mut Federation, now: Instant, bytes: &[u8]) -> usize {
    let mut passed = 0;
    let input = Input::Heard { from: place(1), bytes };
    federation.handle(
        now,
        input,
        &mut phalanx_core::Each(|out: Output<'_>| passed += usize::from(matches!(out, Output::Inside { .. }))),
    );
    passed
}

/// Whatever comes, little is done about it, and it is counted.
#[test]
fn tg_9_what_is_old_or_too_much_is_dropped() {
    let (mut federation, now) = (one(8), Instant(1_000_000_000));
    assert_eq!(hear(&mut federation, now, &packet("north", "east", 5)), 1, "not to where it came from");
    for (bytes, number) in [(packet("north", "east", 5), 5), (packet("north", "east", 4), 5)] {
        assert_eq!(hear(&mut federation, now, &bytes), 0);
        assert_eq!(federation.centres[&name(1)].told.as_ref().unwrap().number, number);
    }
    assert_eq!(hear(&mut federation, now, &packet("north", "east", 5 + LEAP_MAX + 1)), 0);
    assert_eq!(hear(&mut federation, now, &packet("south", "east", FIRST_MAX + 1)), 0);
    assert_eq!(hear(&mut federation, now, &packet("north", "west", 6)), 0);
    assert_eq!(hear(&mut federation, now, &packet("east", "north", 6)), 0);
    assert_eq!(hear(&mut federation, now, b"what?"), 0);
    assert_eq!(hear(&mut federation, now, &packet("no name", "east", 6)), 0);
    let passed: usize = (6..100).map(|n| hear(&mut federation, now, &packet("north", "east", n))).sum();
    assert_eq!(passed, usize::from(TAKEN_MAX) - 1);
    let others: usize = (0..100).map(|n| hear(&mut federation, now, &packet(&format!("c{n}"), "east", 1))).sum();
    assert_eq!((others, federation.centres().count()), (7, 8));
    let counted = Counters { malformed: 2, misdirected: 1, namesakes: 1, old: 2, leaps: 2, hasty: 91, crowded: 93 };
    assert_eq!(federation.counters(), counted);
    // Those that nobody configured are forgotten, the other one stays.
    let mut events = Vec::new();
    let mut later = now;
    while later < now + s(20) * (FORGET + 1) {
        later = federation.deadline();
        federation.expire(
            later,
            &mut phalanx_core::Each(|out: Output<'_>| {
                if let Output::Event(Event::Forgotten { centre }) = out {
                    events.push(centre.to_string());
                }
            }),
        );
    }
    assert_eq!((events.len(), federation.centres().map(|c| c.status).collect::<Vec<_>>()), (7, vec![Status::Silent]));
    // A period later there is room again.
    assert_eq!(hear(&mut federation, later, &packet("north", "east", 200)), 1);
}

/// More services than a summary holds: those that are offered most often are named, the others are counted.
#[test]
fn tg_9_a_summary_is_one_datagram() {
    let services = (0..500u32).map(|n| (format!("service-{n:03}").into_boxed_str(), 1 + n)).collect();
    let home = Home { speaks: true, members: 500, services, ..Home::default() };
    let mut federation = one(8);
    let mut sent = Vec::new();
    let mut out = phalanx_core::Each(|out: Output<'_>| {
        if let Output::Abroad { to, bytes } = out {
            sent.push((to, bytes.to_vec()));
        }
    });
    federation.handle(Instant(0), Input::Home(home), &mut out);
    let at = federation.deadline();
    federation.expire(at, &mut out);
    assert_eq!(sent.len(), 2, "two entry points");
    let summary = Summary::parse(&sent[0].1).unwrap();
    assert!(sent[0].1.len() <= phalanx_wire::federation::LENGTH_MAX && summary.services.len() > 30);
    assert_eq!(summary.services.len() + summary.more as usize, 500);
    assert!(summary.services.iter().any(|s| s.0 == "service-499"));
    assert_eq!((summary.to, summary.number, summary.members, summary.hears), ("north", 1, 500, false));
}

/// What is configured changes while it runs: what was heard stays, and whoever is configured has room.
#[test]
fn tg_9_other_data_centres_are_configured() {
    let (mut federation, now) = (one(CENTRES_MAX), Instant(1_000_000_000));
    for n in 0..CENTRES_MAX - 1 {
        assert_eq!(hear(&mut federation, now, &packet(&format!("c{n}"), "east", 1)), 1);
    }
    assert_eq!(hear(&mut federation, now, &packet("north", "east", 9)), 1);
    federation.configure(vec![(name(2), entries(2)), (name(0), entries(0)), (Name::new("c7").unwrap(), Vec::new())]);
    assert_eq!(federation.centres().count(), CENTRES_MAX);
    assert_eq!(federation.centre("west").unwrap().status, Status::Unheard);
    assert_eq!((federation.centre("east"), federation.centre("c7").unwrap().members), (None, 1));
    let mut later = now;
    while later < now + s(20) * (FORGET + 1) {
        later = federation.deadline();
        federation.expire(later, &mut phalanx_core::Each(|_: Output<'_>| ()));
    }
    let left: Vec<_> = federation.centres().map(|c| (c.name.as_str(), c.status)).collect();
    assert_eq!(left, [("c7", Status::Silent), ("west", Status::Unheard)]);
}
