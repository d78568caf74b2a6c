//! Segments and federations, as an insider may mislead them.

use crate::script::Script;
use phalanx_core::{Addr, Boot, Duration, Each, Group, Identity, Instant, Machine, Rng};
use phalanx_protocol::baselines::Start;
use phalanx_protocol::federation::{self, Federation, FederationConfig, Home, Status};
use phalanx_protocol::member::{Card, Engine, Event, Input, Name, Output, Peer, Slot};
use phalanx_protocol::segment::{Segment, SegmentConfig, SegmentMap};
use phalanx_wire::baseline::{Attributes, Entry};
use phalanx_wire::federation::Summary;
use phalanx_wire::mml;
use phalanx_wire::segment::{self, Change, Packet, Pulse, Says, VERSION};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Nodes that there may be; we are the first.
const NODES: u8 = 9;
/// Room for members: one more than it takes.
const MEMBERS: usize = NODES as usize + 1;
/// Questions answered in a period.
const ANSWERS: u16 = 8;

fn identity(n: u8) -> Identity {
    Identity([n.wrapping_mul(37); 32])
}

fn peer(n: u8) -> Peer {
    Peer { addr: Addr::Local(n.into()), identity: identity(n), boot: Boot::default() }
}

fn entry<'a>(n: u8, script: &mut Script<'_>) -> Entry<'a> {
    Entry {
        identity: identity(n),
        addr: Addr::Local(n.into()),
        name: "n",
        incarnation: 1 + script.below(3) as u64,
        minor: script.below(3) as u32,
        counter: script.below(40) as u64,
        age_ms: 0,
        departed: (script.below(8) == 1).then_some(3),
        attributes: Attributes::default(),
    }
}

fn pulse(counter: u64, script: &mut Script<'_>) -> Pulse {
    let name = |n: usize| if n.is_multiple_of(3) { 0 } else { segment::short(&identity(n as u8 % NODES)) };
    let flags = script.byte().unwrap_or(0);
    Pulse {
        leads: flags & 1 != 0,
        leaves: flags & 30 == 2,
        counter,
        number: script.below(12) as u64,
        digest: script.below(4) as u64,
        follows: name(script.below(30)),
        backup: name(script.below(30)),
    }
}

fn change<'a>(script: &mut Script<'_>) -> Change<'a> {
    let n = script.byte().unwrap_or(0) % NODES;
    let said = Entry { departed: None, ..entry(n, script) };
    let kind = script.byte().unwrap_or(0);
    let Entry { identity, incarnation, counter, .. } = said;
    match kind % 3 {
        0 => Change::Gone {
            own: kind & 64 != 0,
            identity,
            incarnation,
            counter,
            departed: (kind & 32 != 0).then_some(9),
            lost: kind & 16 != 0,
        },
        _ => {
            let by = if kind & 32 == 0 { 0 } else { segment::short(&self::identity(kind % NODES)) };
            Change::Alive { own: kind & 64 != 0, entry: said, by }
        }
    }
}

/// A packet from `from`, as the script has it.
fn said(from: u8, level: u8, script: &mut Script<'_>, out: &mut Vec<u8>) {
    match script.byte().unwrap_or(0) % 9 {
        0 | 1 => {
            let who = if script.below(10) == 9 { from + 1 } else { from };
            let entry = entry(who, script);
            let pulse = pulse(entry.counter, script);
            segment::heartbeat(level, &pulse, &entry, script.below(300), out);
        }
        2 => segment::beat(level, &pulse(script.below(40) as u64, script), out),
        3 => {
            let sets: Vec<Vec<u8>> = (0..=script.below(4).min(3))
                .map(|_| (0..script.below(4)).fold(Vec::new(), |mut set, _| (change(script).encode(&mut set), set).1))
                .collect();
            segment::update(level, script.below(16) as u64, sets.iter().map(|s| &s[..]), out);
        }
        4 => segment::poll(level, out),
        5 => {
            let changes: Vec<Change<'_>> = (0..script.below(6)).map(|_| change(script)).collect();
            let alive = changes.into_iter().filter(|c| matches!(c, Change::Alive { .. }));
            segment::image(level, script.below(16) as u64, alive, out);
        }
        6 => segment::who(level, out),
        7 => segment::lead(level, Addr::Local(script.below(2 * usize::from(NODES)) as u32), out),
        _ => {
            out.extend([VERSION, script.byte().unwrap_or(0), level, script.byte().unwrap_or(0)]);
            let length = script.below(200);
            out.extend(script.piece(length));
            let sum = mml::checksum(out);
            out.extend(sum);
        }
    }
}

/// An insider's packets of all kinds at a node, with multicast and without, among timers: what it says can be read, what it answers is bounded, what it
/// tells of its view is its view, and it speaks to nobody who is not of its cluster.
pub fn segment_heard(bytes: &[u8]) {
    let mut script = Script(bytes);
    let Some(setting) = script.byte() else { return };
    let base = if setting & 1 == 0 { SegmentConfig::paper(1, 3) } else { SegmentConfig::lan(1, 3) };
    let config = SegmentConfig { members: MEMBERS, answers: ANSWERS, ..base };
    let card = Card { identity: identity(0), addr: peer(0).addr, name: Name::new("me").expect("a name") };
    let start = Start { card, incarnation: 1, bootstrap: Vec::new(), shared: Arc::default() };
    let (rng, mut now) = (Rng::new(u64::from(setting), 1), Instant(1_000_000_000));
    let is_unicast = setting & 2 != 0;
    let mut node = if is_unicast {
        let segments = [0..3u32, 3..6, 6..9].map(|s| s.map(Addr::Local));
        Segment::unicast(config, &Arc::new(SegmentMap::new(segments).with_width(2)), start, rng, now)
    } else {
        Segment::new(config, start, rng, now)
    };
    let mut view: BTreeSet<Slot> = BTreeSet::from([node.me()]);
    while let Some(step) = script.byte() {
        let mut sent = 0;
        let mut out = Each(|output: Output<'_>| match output {
            Output::Datagram { to, bytes } => {
                sent += 1;
                assert!(Packet::parse(bytes).is_ok(), "what it says can be read");
                assert!(matches!(to, Addr::Local(n) if n < u32::from(NODES)), "{to}");
            }
            Output::Cast { group: Group { ttl, .. }, bytes } => {
                sent += 1;
                let Ok(Packet { level, says }) = Packet::parse(bytes) else { panic!("what it says can be read") };
                assert!(!is_unicast && ttl == level + 1 && !matches!(says, Says::Lead { .. }));
            }
            Output::Message { message, .. } => {
                sent += 1;
                let mut bytes = Vec::new();
                message.encode(0..message.encoded_len(), &mut bytes);
                assert!(Packet::parse(&bytes).is_ok(), "what it says can be read");
            }
            Output::Event(Event::Joined { member, .. }) => assert!(view.insert(member), "it was there"),
            Output::Event(Event::Left { member, .. }) => assert!(view.remove(&member), "it was not there"),
            Output::Event(_) | Output::Hear { .. } | Output::Release { .. } => {}
            Output::Wire { .. } | Output::Unwire { .. } => panic!("segments hold no wires"),
        });
        match step % 4 {
            0 if node.deadline() != Instant::NEVER => {
                now = now.max(node.deadline());
                node.expire(now, &mut out);
                assert!(node.deadline() > now, "it spins");
            }
            1 => now += Duration::from_millis(u64::from(step)),
            _ => {
                let (from, mut packet) = (1 + script.byte().unwrap_or(0) % (NODES - 1), Vec::new());
                said(from, step / 4 % 4, &mut script, &mut packet);
                let input = Input::Datagram { from: peer(from), group: step & 128 != 0, bytes: &packet };
                node.handle(now, input, &mut out);
            }
        }
        // A packet names a few members, each is told in each level, to each who is heard there.
        assert!(sent <= 1_000, "{sent} at once");
        assert!(node.members().map(|m| m.0).eq(view.iter().copied()), "what was told is what is");
        assert!(view.contains(&node.me()) && node.len() <= MEMBERS);
    }
}

/// An insider's summaries, and bytes that are none, at a node of a federation: nothing old is taken for new, tables are bounded, what is passed on is
/// bounded, and what it says can be read.
pub fn federation_heard(bytes: &[u8]) {
    const NAMES: [&str; 6] = ["east", "north", "west", "a", "b", "no name"];
    let mut script = Script(bytes);
    let Some(setting) = script.byte() else { return };
    let name = |n: usize| Name::new(NAMES[n]).expect("a name");
    let entries = vec![(name(1), vec![Addr::Local(1), Addr::Local(2)]), (name(2), Vec::new())];
    let config = FederationConfig { bound: 3, ..FederationConfig::wan(name(0), entries) };
    let mut now = Instant(1_000_000_000);
    let mut federation = Federation::new(config, Rng::new(u64::from(setting), 1), now);
    let home = Home { speaks: setting & 1 != 0, linked: vec![Addr::Local(7), Addr::Local(8)], ..Home::default() };
    let quiet = &mut Each(|_: federation::Output<'_>| ());
    federation.handle(now, federation::Input::Home(home), quiet);
    let (mut passed, mut periods) = (0, 1);
    while let Some(step) = script.byte() {
        let mut out = Each(|output: federation::Output<'_>| match output {
            federation::Output::Abroad { to, bytes } => {
                assert!(setting & 1 != 0 && matches!(to, Addr::Local(1 | 2)));
                assert!(Summary::parse(bytes).is_ok(), "what it says can be read");
            }
            federation::Output::Inside { to, bytes } => {
                passed += 1;
                assert!(matches!(to, Addr::Local(7 | 8)) && Summary::parse(bytes).is_ok());
            }
            federation::Output::Event(_) => {}
        });
        match step % 3 {
            0 => {
                now = now.max(federation.deadline());
                federation.expire(now, &mut out);
                periods += 1;
                assert!(federation.deadline() > now, "it spins");
            }
            1 => {
                let length = script.below(150);
                let mut packet = vec![VERSION, 1, 0, 0];
                packet.extend(script.piece(length));
                let sum = mml::checksum(&packet);
                packet.extend(sum);
                if let Ok(summary) = Summary::parse(&packet) {
                    let mut again = Vec::new();
                    assert_eq!(summary.encode(&mut again), Ok(()));
                    assert_eq!(Summary::parse(&again), Ok(summary));
                }
                federation.handle(now, federation::Input::Heard { from: Addr::Local(7), bytes: &packet }, &mut out);
            }
            _ => {
                let from = NAMES[usize::from(step / 3) % NAMES.len()];
                let (number, heard) = (script.below(40) as u64, script.below(40) as u64);
                let to = NAMES[usize::from(script.below(8) == 1)];
                let scale = [0, 0, 0, 20, 47, 56][script.below(6)];
                let (hears, members) = (step & 128 != 0, u32::from(step));
                let said = Summary { from, to, number: number << scale, heard, hears, members, ..Summary::default() };
                let (mut packet, before) = (Vec::new(), federation.centre(from).map(|c| (c.heard_at, c.members)));
                if said.encode(&mut packet).is_ok() {
                    let input = || federation::Input::Heard { from: Addr::Local(9), bytes: &packet };
                    federation.handle(now, input(), &mut out);
                    let after = federation.centre(from).map(|c| (c.heard_at, c.members));
                    assert!(to == NAMES[0] || before == after, "it was for somebody else");
                    federation.handle(now, input(), &mut out);
                    assert_eq!(after, federation.centre(from).map(|c| (c.heard_at, c.members)), "the same twice");
                }
            }
        }
        assert!(federation.centres().count() <= 3);
        assert!(federation.centre(NAMES[0]).is_none(), "we are not elsewhere");
        let unheard = federation.centres().filter(|c| c.status == Status::Unheard);
        assert!(unheard.into_iter().all(|c| c.heard_at.is_none()));
        // Two members, three data centres, four a period.
        assert!(passed <= periods * 2 * 3 * 4, "{passed} in {periods} periods");
    }
}
