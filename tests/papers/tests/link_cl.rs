//! CL-4, 004 §3: nothing above CL changes when the platform changes. One program runs in every world, and all that
//! its parties hear is the same.

use phalanx_core::{Code, Endpoint, Group, Port};
use phalanx_papers::party::{FROM, TO, pattern};
use phalanx_papers::{OverTcp, OverThreads, OverUdp, Party, Said, World, until};
use phalanx_protocol::link::mml::Kind;

/// What the program saw, without the numbers that each process gives its peers.
#[derive(PartialEq, Eq, Debug, Default)]
struct Transcript {
    /// Answers of calls that a program can get wrong.
    codes: Vec<Result<(), Code>>,
    /// What each of the two heard, in order.
    heard: [Vec<String>; 2],
}

/// Notes what a party heard since the last time. Kinds of traffic do not wait for each other: each is a line of its own.
fn note(transcript: &mut Transcript, parties: [&mut Party<impl phalanx_daemon::Platform>; 2]) {
    for (heard, party) in transcript.heard.iter_mut().zip(parties) {
        let mut lines: Vec<String> = party.said.drain(..).filter_map(|said| line(&said)).collect();
        // Within a kind the order is the sender's, and the sort keeps it.
        lines.sort_by_key(|line| line.split(' ').next().map(str::to_owned));
        heard.extend(lines);
    }
}

fn line(said: &Said) -> Option<String> {
    let text = |kind: &str, from: &Endpoint, to: &Port, bytes: &[u8]| {
        let sum: u64 = bytes.iter().fold(7, |sum, &b| sum.wrapping_mul(31).wrapping_add(u64::from(b)));
        Some(format!("{kind} {}→{} {} bytes {sum:x}", from.port.0, to.0, bytes.len()))
    };
    match said {
        Said::Datagram(from, to, group, bytes) => text(if *group { "group" } else { "datagram" }, from, to, bytes),
        Said::Message(from, to, bytes) => text("message", from, to, bytes),
        Said::Managed(from, to, kind, bytes) => text(&format!("managed-{kind:?}"), from, to, bytes),
        Said::Down(_, code, _) => Some(format!("down {code}")),
        Said::Closed(_) => Some("closed".to_owned()),
        // How often a queue was full is the platform's pace, not the program's result.
        Said::Up(..) | Said::Writable(_) => None,
        other => Some(format!("{other:?}")),
    }
}

/// Knows nothing of platforms. `with_groups` is what a configuration would say.
fn program<W: World>(with_groups: bool) -> Transcript {
    let world = W::default();
    let (mut a, mut b, to_b, to_a) = Party::pair(&world);
    let mut seen = Transcript::default();
    for i in 0..40 {
        a.host.send(Port(1), Endpoint { port: Port(i), ..to_b }, &pattern(30 * usize::from(i) + 1, 1)).unwrap();
        until(&mut [&mut a, &mut b], "a datagram arrives", |p| p[1].datagrams().len() == usize::from(i) + 1);
    }
    note(&mut seen, [&mut a, &mut b]);

    let sizes = [0, 1, 64, 4_096, 1 << 20, 5, 70_000, 16_384, 2];
    for (i, size) in sizes.into_iter().enumerate() {
        a.reliable(to_b, &pattern(size, i)).unwrap();
        b.reliable(to_a, &pattern(size + 1, i)).unwrap();
    }
    let all = sizes.len();
    until(&mut [&mut a, &mut b], "messages arrive", |p| p.iter().all(|p| p.messages_heard() == all));
    note(&mut seen, [&mut a, &mut b]);

    for i in 0..12 {
        for kind in [Kind::Unr, Kind::Ack, Kind::Nack] {
            a.managed(kind, to_b, &pattern(100, i)).unwrap();
            b.managed(kind, to_a, &pattern(101, i)).unwrap();
        }
        until(&mut [&mut a, &mut b], "orders arrive", |p| p.iter().all(|p| p.said.len() == 3 * (i + 1)));
    }
    note(&mut seen, [&mut a, &mut b]);

    if with_groups {
        let group = Group { number: 11, ttl: 1 };
        seen.codes.push(b.host.join(group));
        seen.codes.push(a.host.send_group(FROM, group, TO, b"to all"));
        until(&mut [&mut a, &mut b], "a group hears", |p| !p[1].said.is_empty());
        note(&mut seen, [&mut a, &mut b]);
    }

    seen.codes.push(a.datagram(to_b, b""));
    seen.codes.push(a.reliable(Endpoint { node: phalanx_core::NodeId::new(50, 0), ..to_b }, b"x"));
    a.close(to_b.node).unwrap();
    b.close(to_a.node).unwrap();
    until(&mut [&mut a, &mut b], "they part", |p| p.iter().all(|p| p.heard(|s| matches!(s, Said::Closed(_)))));
    seen.codes.push(a.reliable(to_b, b"too late"));
    note(&mut seen, [&mut a, &mut b]);
    seen
}

#[test]
fn cl_4_nothing_above_changes_when_the_platform_changes() {
    let reference = program::<OverThreads>(false);
    let (a, b) = (reference.heard[0].len(), reference.heard[1].len());
    assert_eq!((a, b), (9 + 36 + 1, 40 + 9 + 36 + 1), "the program itself did what it says");
    assert_eq!(program::<OverTcp>(false), reference);
    assert_eq!(program::<OverUdp>(false), reference);
}

/// Where a platform has groups, they are the same groups.
#[test]
fn cl_4_nothing_above_changes_when_the_platform_changes_and_groups_are_used() {
    let reference = program::<OverThreads>(true);
    assert!(reference.heard[1].iter().any(|line| line.starts_with("group")));
    assert_eq!(program::<OverUdp>(true), reference);
}
