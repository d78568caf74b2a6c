//! Links under arbitrary packets and arbitrary networks (RL-1, FI-1, MM-2).

use crate::script::Script;
use crate::world::World;
use phalanx_core::{Addr, Duration};
use phalanx_wire::mml;
use phalanx_wire::rcl;

/// Steps of a script: a fuzzer learns more from many short ones.
const STEPS: usize = 400;
/// Messages that a script sends in each direction at most.
const MESSAGES: usize = 60;

/// Anything arrives: bytes of strangers, and anything inside a true seal. The link neither panics nor spins, and
/// still works with those who are well.
pub fn link_arrived(bytes: &[u8]) {
    let mut world = World::met();
    let mut script = Script(bytes);
    for _ in 0..STEPS {
        let Some(op) = script.byte() else { break };
        let at = usize::from(op & 1);
        let length = script.below(200);
        let mut piece = script.piece(length).to_vec();
        match op >> 1 & 7 {
            0 => world.arrive(at, Addr::Local(u32::from(op >> 4)), &mut piece),
            1 => world.forge(at, &piece),
            2 => {
                // A reliable packet whose checksum is right.
                piece.resize(piece.len().max(rcl::Header::LEN), 0);
                piece[0] = 2;
                rcl::finish(&mut piece);
                world.forge(at, &piece);
            }
            3 => {
                // A heartbeat whose checksum is right; with another kind it lacks a signature.
                piece.resize(piece.len().max(mml::Packet::HEADER), 0);
                piece[0] = 3;
                let sum = mml::checksum(&piece);
                piece.extend_from_slice(&sum);
                world.forge(at, &piece);
            }
            4 => drop(world.send(at, World::peer(), &piece)),
            5 => {
                // A packet on the wire, changed.
                let place = length % world.wire.len().max(1);
                if let Some((to, mut packet)) = world.wire.get(place).cloned() {
                    for (byte, change) in packet.bytes_mut().iter_mut().zip(&piece) {
                        *byte ^= change;
                    }
                    world.arrive(to, Addr::Local(1 - to as u32), packet.bytes_mut());
                }
            }
            6 => world.pass(Duration::from_millis(length as u64)),
            _ => world.deliver(0),
        }
        world.expire();
    }
    world.settle();
    assert!(world.wire.is_empty(), "it never falls silent");
}

/// A network that loses, doubles, reorders, changes and delays as the script says: every message arrives intact, once
/// and in order, and all of them once the network is good again.
pub fn rcl_pair(bytes: &[u8]) {
    let mut world = World::met();
    let mut script = Script(bytes);
    let mut sent = [0, 0];
    for _ in 0..STEPS {
        let Some(op) = script.byte() else { break };
        let at = usize::from(op & 1);
        let place = usize::from(op >> 4) % world.wire.len().max(1);
        match op >> 1 & 7 {
            0 | 1 if sent[at] < MESSAGES => {
                let size = [0, 1, 30, 1_300, 1_400, 5_000, 20_000, 50][script.below(8)];
                if world.send(at, World::peer(), &message(sent[at], size)).is_ok() {
                    sent[at] += 1;
                }
            }
            2 => drop(world.wire.remove(place)),
            3 => {
                if let Some(copy) = world.wire.get(place).cloned() {
                    world.wire.push_back(copy);
                }
            }
            4 => {
                let bit = script.below(12_000);
                if let Some((_, packet)) = world.wire.get_mut(place)
                    && let Some(byte) = packet.bytes_mut().get_mut(bit / 8)
                {
                    *byte ^= 1 << (bit % 8);
                }
            }
            5 => world.pass(Duration::from_millis(script.below(20) as u64)),
            6 => world.deliver(place),
            _ => world.deliver(0),
        }
        world.expire();
        check(&world, sent);
    }
    world.settle();
    check(&world, sent);
    assert_eq!(world.downs, [0, 0], "nobody was silent for long");
    assert_eq!([world.heard[1].len(), world.heard[0].len()], sent, "all arrive when the network is good");
}

/// The `n`-th message of a direction.
fn message(n: usize, size: usize) -> Vec<u8> {
    let mut bytes = vec![n as u8; size + 4];
    bytes[..4].copy_from_slice(&(n as u32).to_le_bytes());
    bytes
}

fn check(world: &World, sent: [usize; 2]) {
    for at in 0..2 {
        let heard = &world.heard[at];
        assert!(heard.len() <= sent[1 - at], "heard what was never said");
        if let Some((n, last)) = heard.iter().enumerate().next_back() {
            assert_eq!(*last, message(n, last.len() - 4), "message {n}: intact and in its turn");
        }
    }
}
