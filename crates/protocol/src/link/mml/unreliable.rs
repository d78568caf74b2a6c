//! UNR: sent once, never acknowledged, not signed (heartbeats).
//!
//! The seal vouches that a member of the cluster sent it, the checksum that no bit flipped inside; who of the members
//! it was, nobody proves. A number is accepted once, within a window; the order is that of the network.

use super::Config;
use crate::link::replay::Replay;
use phalanx_core::{Buf, Code, Fingerprint, Ring};
use phalanx_wire::layer::Ports;
use phalanx_wire::mml::{Kind, Packet, checksum};

/// Messages that may wait for the next poll: more than a poll's worth of heartbeats means that nobody polls.
const QUEUE: usize = 16;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Unreliable {
    next: u64,
    waiting: Ring<Buf>,
    seen: Replay,
}

impl Unreliable {
    pub(super) fn new() -> Self {
        Self { next: 0, waiting: Ring::new(QUEUE), seen: Replay::default() }
    }

    pub(super) fn push(&mut self, ports: Ports, payload: &[u8], config: &Config) -> Result<u64, Code> {
        if self.waiting.is_full() {
            return Err(Code::LocalResource);
        }
        let number = self.next;
        let mut packet = config.packet(Kind::Unreliable, ports, number, payload);
        let sum = checksum(packet.bytes());
        packet.extend(&sum);
        self.waiting.push(packet).expect("room was seen above");
        self.next += 1;
        Ok(number)
    }

    pub(super) fn has_work(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn transmit(&mut self, out: &mut Buf) -> bool {
        let Some(packet) = self.waiting.pop() else { return false };
        self.waiting.release();
        out.extend(packet.bytes());
        true
    }

    /// True when `packet` is to be handed on; a number that came before, or long ago, is not.
    pub(super) fn admit(&mut self, packet: &Packet<'_>) -> bool {
        let admitted = self.seen.admits(packet.number);
        if admitted {
            self.seen.mark(packet.number);
        }
        admitted
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.next, &self.seen));
        self.waiting.iter().for_each(|packet| _ = print.add(&packet.bytes()));
    }
}
