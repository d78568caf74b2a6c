//! The group of replicas: who is in it, and how everybody else comes to believe that.
//!
//! CM-1, CM-3. A composition has an epoch. Each one after the first is signed by a majority of the one before it, the first by a majority of
//! itself (how it came about is told in [`super::found`]). So whoever knows one composition can follow the chain to the newest, and two
//! majorities of one group share a member: there is one successor, or none.
//!
//! A node without any knowledge believes the first composition whose own majority signs for it. That is trust on first use, inside a cluster
//! whose seal it could open.

use super::words::{At, Key, encode};
use crate::link::sign::{Signer, Verifier};
use crate::order::{MEMBERS_BOUND, Member};
use aws_lc_rs::digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Links of the chain that are kept and told: a node that missed more changes than that must be told by somebody to start anew.
pub const CHAIN_MAX: usize = 64;
/// Links told at once.
pub const TOLD_MAX: usize = 8;

/// A signature, in two halves that serde knows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
pub struct Proof([u8; 32], [u8; 32]);

impl Proof {
    /// Signs the bytes of `what`.
    pub fn sign(signer: &Signer, context: &[u8], what: &impl Serialize) -> Self {
        let signature = signer.sign(context, &encode(what));
        let (mut first, mut second) = ([0; 32], [0; 32]);
        first.copy_from_slice(&signature[..32]);
        second.copy_from_slice(&signature[32..]);
        Self(first, second)
    }

    /// True when `by` signed the bytes of `what`.
    #[must_use]
    pub fn holds(&self, verifier: Verifier, by: Key, context: &[u8], what: &impl Serialize) -> bool {
        verifier.verify(&by.into(), context, &encode(what), &[self.0, self.1].concat())
    }
}

impl std::fmt::Debug for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Proof({:02x}{:02x})", self.0[0], self.0[1])
    }
}

/// The hash of something long, in place of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
        Self(hash)
    }

    /// All of it.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Its first eight bytes.
    #[must_use]
    pub fn short(&self) -> u64 {
        self.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Digest({:016x})", self.short())
    }
}

/// A seat of the group.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Chair {
    /// Who has it.
    pub key: Key,
    /// The node's name.
    pub name: String,
    /// The node's zone.
    pub zone: String,
    /// Where it was when it got it.
    pub at: At,
}

/// The group of an epoch.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Group {
    /// Which composition, from 1.
    pub epoch: u32,
    /// Who is in it: one, or three. A replica's number in the order is its place here.
    pub seats: Vec<Chair>,
    /// Those of them that begin without a state, ascending: they take it from the others.
    pub fresh: Vec<Key>,
}

impl Group {
    /// A group that may exist.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let n = self.seats.len();
        let unique = (1..n).all(|i| !self.seats[..i].iter().any(|s| s.key == self.seats[i].key));
        n % 2 == 1 && n <= MEMBERS_BOUND && unique && self.epoch > 0 && self.fresh.len() < n
    }

    /// So many equal statements make a state true for one that lacks it: 2, or the one that there is.
    #[must_use]
    pub fn witnesses(&self) -> usize {
        (self.seats.len() - self.fresh.len().min(self.seats.len())).clamp(1, 2)
    }

    /// How many are more than half.
    #[must_use]
    pub fn majority(&self) -> usize {
        self.seats.len() / 2 + 1
    }

    /// The number in the order of who has that key.
    #[must_use]
    pub fn member(&self, key: Key) -> Option<Member> {
        self.seats.iter().position(|s| s.key == key).map(|i| Member(i as u8))
    }

    /// Who has that number.
    #[must_use]
    pub fn key(&self, member: Member) -> Option<Key> {
        self.seats.get(usize::from(member.0)).map(|s| s.key)
    }

    /// All keys, in the order of seats.
    pub fn keys(&self) -> impl Iterator<Item = Key> + use<'_> {
        self.seats.iter().map(|s| s.key)
    }

    /// What stands for it in signatures.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(&encode(self))
    }
}

/// A composition, and who signs for it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Link {
    /// The composition.
    pub group: Group,
    /// Who says that this is the group of its epoch.
    pub proofs: BTreeMap<Key, Proof>,
}

impl Link {
    /// A composition that nobody signed yet.
    #[must_use]
    pub fn new(group: Group) -> Self {
        Self { group, proofs: BTreeMap::new() }
    }

    /// Signs for it.
    pub fn sign(&mut self, signer: &Signer, cluster: &str) {
        let proof = Proof::sign(signer, &context(cluster), &self.group);
        self.proofs.insert(signer.identity().into(), proof);
    }

    /// True when most of `electors` signed for it.
    #[must_use]
    pub fn is_proved(&self, electors: &Group, verifier: Verifier, cluster: &str) -> bool {
        let context = context(cluster);
        let signed = |key: &Key| self.proofs.get(key).is_some_and(|p| p.holds(verifier, *key, &context, &self.group));
        self.group.is_sound() && electors.keys().filter(signed).count() >= electors.majority()
    }
}

fn context(cluster: &str) -> Vec<u8> {
    [b"phalanx group ", cluster.as_bytes()].concat()
}

/// What a node believes about the group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Chain {
    /// Proved links, oldest first; epochs without gaps.
    links: Vec<Link>,
    /// Signed by too few so far.
    pending: Option<Link>,
}

impl Chain {
    /// The newest group.
    #[must_use]
    pub fn group(&self) -> Option<&Group> {
        self.links.last().map(|l| &l.group)
    }

    /// The newest epoch; 0 when there is none.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.group().map_or(0, |g| g.epoch)
    }

    /// The group of an epoch, while it is remembered.
    #[must_use]
    pub fn group_of(&self, epoch: u32) -> Option<&Group> {
        self.links.iter().rev().map(|l| &l.group).find(|g| g.epoch == epoch)
    }

    /// The newest link.
    #[must_use]
    pub fn last(&self) -> Option<&Link> {
        self.links.last()
    }

    /// The link of an epoch, while it is remembered.
    #[must_use]
    pub fn link_of(&self, epoch: u32) -> Option<&Link> {
        self.links.iter().rev().find(|l| l.group.epoch == epoch)
    }

    /// The links that a member lacks its signature on: those up to an epoch that it is asked for.
    pub fn unsigned_by(&self, key: Key, epoch: u32) -> impl Iterator<Item = &Link> {
        let electors = |i: usize| &self.links[i.saturating_sub(1)].group;
        let lacks = move |(i, l): &(usize, &Link)| {
            l.group.epoch <= epoch && !l.proofs.contains_key(&key) && electors(*i).member(key).is_some()
        };
        self.links.iter().enumerate().filter(lacks).map(|(_, l)| l)
    }

    /// All groups that are remembered, the newest first.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.links.iter().rev().map(|l| &l.group)
    }

    /// What somebody lacks who knows `epoch`, and what is signed by too few.
    #[must_use]
    pub fn since(&self, epoch: u32) -> Vec<Link> {
        let first = self.links.partition_point(|l| l.group.epoch <= epoch);
        let first = if epoch == 0 { self.links.len().saturating_sub(1) } else { first };
        let links = self.links[first.min(self.links.len())..].iter().chain(&self.pending);
        links.take(TOLD_MAX).cloned().collect()
    }

    /// Somebody says that this is the group. True when the newest group is another than before.
    pub fn hear(&mut self, link: &Link, verifier: Verifier, cluster: &str) -> bool {
        let epoch = link.group.epoch;
        if self.is_mistaken(link, verifier, cluster) {
            self.links.pop();
        }
        let electors = match self.links.last() {
            Some(last) if epoch <= last.group.epoch => {
                self.complete(link, verifier, cluster);
                return false;
            }
            Some(last) if epoch == last.group.epoch + 1 => last.group.clone(),
            Some(_) => return false,
            None => link.group.clone(),
        };
        let mut link = link.clone();
        if let Some(pending) = self.pending.take_if(|p| p.group == link.group) {
            link.proofs.extend(pending.proofs);
        }
        let context = context(cluster);
        let group = link.group.clone();
        link.proofs
            .retain(|key, proof| electors.member(*key).is_some() && proof.holds(verifier, *key, &context, &group));
        if link.proofs.is_empty() || !group.is_sound() {
            return false;
        }
        if link.proofs.len() < electors.majority() {
            self.pending = Some(link);
            return false;
        }
        self.push(link);
        true
    }

    /// We signed for a group that most of the electors did not, and they did for this one: what we decided came of a wrong state.
    fn is_mistaken(&self, link: &Link, verifier: Verifier, cluster: &str) -> bool {
        let [.., before, last] = &*self.links else { return false };
        if last.group.epoch != link.group.epoch || last.group == link.group || !link.group.is_sound() {
            return false;
        }
        let context = context(cluster);
        let electors = &before.group;
        let holds = |(key, proof): &(&Key, &Proof)| {
            electors.member(**key).is_some() && proof.holds(verifier, **key, &context, &link.group)
        };
        last.proofs.len() < electors.majority() && link.proofs.iter().filter(holds).count() >= electors.majority()
    }

    /// A link that we know gets more signatures: who comes later needs them less, but loses nothing.
    fn complete(&mut self, link: &Link, verifier: Verifier, cluster: &str) {
        let context = context(cluster);
        let Some(i) = self.links.iter().position(|l| l.group == link.group) else { return };
        let electors = if i > 0 { self.links[i - 1].group.clone() } else { self.links[i].group.clone() };
        let ours = &mut self.links[i];
        for (&key, proof) in &link.proofs {
            let is_new = electors.member(key).is_some() && !ours.proofs.contains_key(&key);
            if is_new && proof.holds(verifier, key, &context, &link.group) {
                ours.proofs.insert(key, *proof);
            }
        }
    }

    /// We know that this is the group, and why.
    pub fn push(&mut self, link: Link) {
        self.pending = None;
        self.links.push(link);
        if self.links.len() > CHAIN_MAX {
            self.links.remove(0);
        }
    }

    /// The bytes that a disk keeps.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(&self.links)
    }

    /// From a disk.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let links: Vec<Link> = super::words::decode(bytes)?;
        links.iter().all(|l| l.group.is_sound()).then_some(Self { links, pending: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(epoch: u32, seats: [u64; 3]) -> Group {
        let chair = |n: u64| {
            let key = Key::from(Signer::fake(n).identity());
            Chair { key, name: format!("n{n}"), zone: "z1".into(), at: At::Local(n as u32) }
        };
        Group { epoch, seats: seats.map(chair).to_vec(), fresh: Vec::new() }
    }

    fn signed(group: &Group, by: &[u64]) -> Link {
        let mut link = Link::new(group.clone());
        by.iter().for_each(|&n| link.sign(&Signer::fake(n), "lab"));
        link
    }

    /// CM-3: who signed alone for a wrong group, because its state had gone bad, takes that of the others.
    #[test]
    fn a_group_that_one_alone_signed_for_gives_way_to_that_of_most() {
        let verifier = Signer::fake(1).verifier();
        let (first, wrong, right) = (group(1, [1, 2, 3]), group(2, [1, 3, 4]), group(2, [1, 2, 5]));
        let mut chain = Chain::default();
        chain.push(signed(&first, &[1, 2, 3]));
        chain.push(signed(&wrong, &[3]));
        assert!(!chain.hear(&signed(&right, &[1]), verifier, "lab"), "one voice against another");
        assert!(!chain.hear(&signed(&right, &[1, 4]), verifier, "lab"), "who was not in the group before has no voice");
        assert_eq!(chain.group(), Some(&wrong));
        assert!(chain.hear(&signed(&right, &[1, 2]), verifier, "lab"));
        assert_eq!(chain.group(), Some(&right));
        assert!(!chain.hear(&signed(&wrong, &[2, 3]), verifier, "lab"), "most have signed for ours");
        assert_eq!(chain.group(), Some(&right));
    }
}
