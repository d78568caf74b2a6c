//! Casts, as an insider may forge them.

use phalanx_core::{Each, Instant, Machine, Shared};
use phalanx_protocol::cast::route::Rule;
use phalanx_protocol::cast::{Caster, Config, Id, Input, Output, Tree};
use phalanx_wire::cast::{Message, VERSION};

const TREE: u64 = 1;
const NODES: u32 = 13;

/// Any bytes behind a true head, among verdicts and timers: whatever is read is written back as it was, what the node says can be read and
/// is for a neighbour, and nothing goes on for ever.
pub fn cast_heard(mut bytes: &[u8]) {
    let mut next = || {
        let (&first, rest) = bytes.split_first()?;
        bytes = rest;
        Some(first)
    };
    let Some(setting) = next() else { return };
    let tree = Tree::new(2 + u32::from(setting) % 3, NODES).expect("a good tree");
    let me = Id(u32::from(setting) % NODES);
    let (rule, receipts) = (Rule::ALL[usize::from(setting) / 64], setting & 32 != 0);
    let config = Config { rule, receipts, ..Config::default() };
    let mut node = Caster::new(config, tree, TREE, me);
    let mut now = Instant(1_000_000_000);
    let mut out = Each(|output: Output<'_>| match output {
        Output::Send { to, bytes } => {
            assert!(Message::parse(bytes).is_ok(), "what it says can be read");
            assert!(to != me && tree.contains(to));
        }
        Output::Reach { to, bytes } => assert!(tree.contains(to) && Message::parse(bytes).is_ok()),
        Output::Deliver { .. } => {}
        Output::Unreached { to } => assert!(tree.contains(to)),
        Output::Settled { number, .. } => assert!(receipts && number > 0),
    });
    while let Some(step) = next() {
        match step % 12 {
            kind @ 1..=5 => {
                let length = next().unwrap_or(0).min(96);
                let mut message = vec![VERSION, kind];
                message.extend(TREE.to_le_bytes());
                message.extend((0..length).map_while(|_| next()));
                if let Ok(read) = Message::parse(&message) {
                    let mut written = Vec::new();
                    read.encode(&mut written);
                    assert_eq!(Message::parse(&written), Ok(read));
                }
                node.handle(now, Input::Heard { bytes: &Shared::from(&message[..]) }, &mut out);
            }
            6 => node.handle(now, Input::Failed { ids: &[Id(u32::from(step) / 12 % NODES)] }, &mut out),
            7 => node.handle(now, Input::Back { ids: &[Id(u32::from(step) / 12 % NODES)] }, &mut out),
            8 => node.handle(now, Input::Cut { id: Id(u32::from(step) / 12 % NODES) }, &mut out),
            9 => _ = node.broadcast(now, &[step], &mut out).expect("it is short"),
            10 => {
                let to = Id(u32::from(step) / 12 % NODES);
                let _ = node.multicast(now, &[to], &[step], &mut out).expect("it is short");
            }
            _ if node.deadline() != Instant::NEVER => {
                now = now.max(node.deadline());
                node.expire(now, &mut out);
            }
            _ => {}
        }
    }
}
