//! Reductions, as an insider may forge them.

use phalanx_core::{Each, Instant, Machine};
use phalanx_protocol::cast::reduce::{Gift, Input, Output, Reducer};
use phalanx_protocol::cast::report::Line;
use phalanx_protocol::cast::{Id, Tree};
use phalanx_wire::reduce::{Message, VERSION};
use phalanx_wire::view::{Task, ViewId};

const NODES: u32 = 13;

/// Any bytes behind a true head, among views, gifts and timers: whatever is read is written back as it was, and what the node says can be
/// read and is for who is next to it.
pub fn reduce_heard(mut bytes: &[u8]) {
    let mut next = || {
        let (&first, rest) = bytes.split_first()?;
        bytes = rest;
        Some(first)
    };
    let Some(setting) = next() else { return };
    let tree = Tree::new(2 + u32::from(setting) % 3, NODES).expect("a good tree");
    let me = Id(u32::from(setting) % NODES);
    let (mut node, mut now, mut number) = (Reducer::default(), Instant(1_000_000_000), 0u8);
    let mut out = Each(|output: Output<'_>| {
        if let Output::Send { to, bytes } = output {
            assert!(Message::parse(bytes).is_ok(), "what it says can be read");
            assert!(to != me && tree.contains(to));
        }
    });
    while let Some(step) = next() {
        let dead = |id: Id| id != me && (u32::from(step) >> 3) & (1 << (id.0 % 5)) != 0;
        match step % 8 {
            kind @ 1..=4 => {
                let (from, length) = (u32::from(step) / 8 % NODES, next().unwrap_or(0).min(96));
                let mut message = vec![VERSION, kind, number, 0, 0, from as u8];
                message.extend((0..length).map_while(|_| next()));
                if let Ok(read) = Message::parse(&message) {
                    let mut written = Vec::new();
                    read.encode(&mut written);
                    assert_eq!(Message::parse(&written), Ok(read));
                }
                node.handle(now, Input::Heard { bytes: &message }, &mut out);
            }
            5 => {
                number = (number + 1).min(127);
                let view = ViewId { number: number.into(), root: Task(0), stint: 0 };
                let line = Line::of(&tree, me, |id| !dead(id));
                node.handle(now, Input::View { view, since: u64::from(step) / 64, me, line }, &mut out);
            }
            6 => {
                let gift = [Gift::Barrier, Gift::Sum(i64::MIN), Gift::Gather(&[7])][usize::from(step) / 8 % 3];
                let waits = node.waits();
                assert!(node.give(now, gift, &mut out).is_ok() != (waits || number == 0));
            }
            _ if node.deadline() != Instant::NEVER => {
                now = now.max(node.deadline());
                node.expire(now, &mut out);
            }
            _ => {}
        }
    }
}
