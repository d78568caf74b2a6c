//! What others say to a steward, and to whom of it that goes.

use super::{Out, STRANGERS_MAX, Steward};
use crate::manager::gather::PACKED_MAX;
use crate::manager::sheaf::{self, BLOCK_MAX, Sheaf, Slip};
use crate::manager::wire::{Ballot, Packet, Telling, Weight};
use crate::manager::words::Key;
use crate::member::Peer;
use crate::node::Carriage;
use crate::order;
use phalanx_core::Instant;

impl Steward {
    pub(super) fn on_heard(&mut self, now: Instant, from: Peer, carriage: Carriage, bytes: &[u8], out: &mut impl Out) {
        let key = Key::from(from.identity);
        let Some(packet) = Packet::decode(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        if let Packet::Tidings(tidings) = packet {
            let mut acts = Vec::new();
            self.herald.on_tidings(now, from.addr, tidings, &mut acts);
            return self.settle_herald(now, acts, out);
        }
        let known = self.strangers.contains_key(&key);
        if !self.world.contains_key(&key) && (known || self.strangers.len() < STRANGERS_MAX) {
            self.strangers.insert(key, from.addr);
        }
        let (packet, is_signed) = match packet {
            Packet::Vouched { bytes, proof } => {
                let holds = proof.holds(self.signer.verifier(), key, &self.vouch_context(), &(self.key, &bytes));
                match Packet::decode(&bytes).filter(|p| !matches!(p, Packet::Vouched { .. })) {
                    Some(packet) if holds => (packet, true),
                    Some(_) => {
                        self.counters.unproved += 1;
                        return;
                    }
                    None => {
                        self.counters.malformed += 1;
                        return;
                    }
                }
            }
            packet => (packet, carriage == Carriage::Signed),
        };
        if packet.weight() == Weight::Grave && !is_signed {
            self.counters.unproved += 1;
            return;
        }
        self.on_packet(now, key, packet, out);
    }

    pub(super) fn on_packet(&mut self, now: Instant, from: Key, packet: Packet, out: &mut impl Out) {
        match packet {
            Packet::Alive { incarnation, epoch, beat, done } => {
                if self.replica.is_some() {
                    self.with_replica(now, out, |r, around| r.on_alive(from, (incarnation, epoch, beat, done), around));
                } else if self.chain.epoch() > epoch || self.group().is_some_and(|g| g.member(self.key).is_none()) {
                    let links = self.chain.since(epoch);
                    self.send(from, Packet::Announce(links), out);
                }
            }
            Packet::Heard { agent, .. } if agent != self.key => self.counters.foreign += 1,
            Packet::Heard { beat, incarnation, noted, granted, .. } => {
                let mut acts = Vec::new();
                if let Some(group) = self.chain.group() {
                    self.agent.on_heard(now, from, (beat, granted), (incarnation, noted), group, &mut acts);
                }
                self.settle_agent(now, acts, out);
            }
            Packet::Beat { statement, unix_ms, hears } => {
                self.with_replica(now, out, |r, around| r.on_beat(from, statement, unix_ms, hears, around));
            }
            Packet::Probe => {
                let alive = self.agent.alive(self.chain.epoch());
                self.send(from, alive, out);
            }
            Packet::Order { epoch, bytes } => self.on_order(now, from, epoch, &bytes, out),
            Packet::Found(founding) => self.on_founding(now, from, founding, out),
            Packet::Told { incarnation, number, said } => {
                self.with_replica(now, out, |r, around| r.on_told(from, incarnation, number, said, around));
            }
            Packet::Vote(ballot, body) => self.on_vote(now, ballot, body, out),
            Packet::Sheaf(sheaf) => self.on_sheaf(now, from, sheaf, out),
            Packet::Gathered { to, told, .. } if to == self.key => self.on_gathered(now, told, out),
            Packet::Gathered { to, id, told } => {
                let mut acts = Vec::new();
                if self.is_of_group(to) {
                    self.agent.on_gathered(now, (id, to), told, &mut acts);
                }
                self.settle_agent(now, acts, out);
            }
            Packet::Announce(links) => self.on_announced(now, &links, out),
            Packet::Differ(one, other) => self.on_differ(now, &one, &other, out),
            Packet::Declare { epoch, index } => {
                self.with_replica(now, out, |r, around| r.on_declare(from, epoch, index, around));
            }
            Packet::Declared(sworn) => self.on_declared(now, &sworn, out),
            Packet::Fetch { epoch, index, offset } => {
                if self.replica.as_ref().is_some_and(|r| r.group().epoch == epoch) && self.is_of_group(from) {
                    self.with_replica(now, out, |r, around| r.on_fetch(from, index, offset, around));
                }
            }
            Packet::Piece { epoch, index, total, offset, mark, bytes } => {
                if let Some(joining) = &mut self.joining
                    && joining.on_piece((epoch, index), total, offset, &mark, &bytes)
                {
                    self.try_to_join(now, out);
                    self.ask_to_join(now, out);
                }
            }
            Packet::Look { number, what } => {
                self.with_replica(now, out, |r, around| r.on_look(from, number, &what, around));
            }
            Packet::Shown { number, bytes } => {
                let mut acts = Vec::new();
                if self.is_of_group(from) {
                    self.agent.on_shown(number, bytes, &mut acts);
                }
                self.settle_agent(now, acts, out);
            }
            Packet::Vouched { .. } | Packet::Tidings(_) => {}
        }
    }

    pub(super) fn is_of_group(&self, key: Key) -> bool {
        self.group().is_some_and(|g| g.member(key).is_some())
    }

    fn on_order(&mut self, now: Instant, from: Key, epoch: u32, bytes: &[u8], out: &mut impl Out) {
        if self.replica.as_ref().is_some_and(|r| r.group().epoch == epoch) {
            return self.with_replica(now, out, |r, around| r.on_ordered(from, bytes, around));
        }
        match self.prior.as_mut().filter(|p| p.0.group.epoch == epoch) {
            Some((prior, _)) => {
                let Some(from) = prior.group.member(from) else { return };
                let mut acts = Vec::new();
                prior.drive(now, Some(order::Input::Received { from, packet: bytes }), &mut acts);
                self.settle_replica(now, acts, out);
            }
            // Somebody has not heard that the group is another one.
            None if epoch < self.chain.epoch() => {
                let links = self.chain.since(epoch);
                self.send(from, Packet::Announce(links), out);
            }
            None => {}
        }
    }

    fn on_vote(&mut self, now: Instant, ballot: Ballot, body: Option<Vec<u8>>, out: &mut impl Out) {
        let Some(group) = self.chain.group() else { return };
        let is_ours =
            group.member(ballot.by).is_some() && ballot.vote.to == self.key && ballot.vote.id.epoch <= group.epoch;
        if !is_ours || !ballot.holds(self.signer.verifier(), &self.config.cluster) {
            self.agent.refused.unproved += 1;
            return;
        }
        let mut acts = Vec::new();
        self.agent.on_vote(now, ballot, body, group, &mut acts);
        self.settle_agent(now, acts, out);
    }

    /// A word for us and for those to whom we hand it on.
    fn on_sheaf(&mut self, now: Instant, from: Key, sheaf: Sheaf, out: &mut impl Out) {
        let Some(group) = self.chain.group() else { return };
        let count = sheaf.slips.len();
        let may_be = count <= BLOCK_MAX && sheaf.path.may_be();
        let is_ours = may_be && sheaf.slips.first().is_some_and(|slip| slip.to == self.key);
        let is_ours = is_ours && group.member(sheaf.by).is_some() && sheaf.id.epoch <= group.epoch;
        let (path, branches) = if is_ours { sheaf::branches(&sheaf.leaves(), &sheaf.path) } else { Default::default() };
        let ballot = is_ours.then(|| {
            let Sheaf { by, proof, .. } = sheaf;
            Ballot { vote: sheaf.vote(&sheaf.slips[0]), by, proof, path }
        });
        let Some(ballot) = ballot.filter(|b| b.holds(self.signer.verifier(), &self.config.cluster)) else {
            self.agent.refused.unproved += 1;
            return;
        };
        let mut acts = Vec::new();
        // What those below us report to the replica here comes to it at once.
        let below = if sheaf.by == self.key { 1 } else { count };
        if self.agent.on_sheaf((sheaf.id, sheaf.by), from, below, &mut acts) {
            for block in branches {
                let part = sheaf.part(block);
                self.pass(part.slips[0], part, out);
            }
        }
        if let Some(group) = self.chain.group() {
            self.agent.on_vote(now, ballot, sheaf.body, group, &mut acts);
        }
        self.settle_agent(now, acts, out);
    }

    /// Says a word to the first of many; where that is may be known from the word alone.
    pub(super) fn pass(&mut self, first: Slip, sheaf: Sheaf, out: &mut impl Out) {
        if self.address_of(first.to).is_none() && self.strangers.len() < STRANGERS_MAX {
            self.strangers.insert(first.to, first.at.into());
        }
        self.send(first.to, Packet::Sheaf(sheaf), out);
    }

    /// Reports of several agents have come to the replica here.
    fn on_gathered(&mut self, now: Instant, mut told: Vec<Telling>, out: &mut impl Out) {
        if told.len() > PACKED_MAX {
            self.counters.malformed += 1;
            return;
        }
        let (verifier, cluster) = (self.signer.verifier(), &self.config.cluster);
        let before = told.len();
        told.retain(|t| t.holds(verifier, cluster));
        self.counters.unproved += (before - told.len()) as u64;
        self.with_replica(now, out, |r, around| r.on_gathered(told, around));
    }
}
