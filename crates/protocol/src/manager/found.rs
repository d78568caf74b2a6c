//! How the first group comes about: single-decree Paxos among all nodes, with the quorum that people gave (`--expect N`).
//!
//! CM-1. A group changes by the majority of the one before it; the first has none before it. N nodes must agree on it, so N has to be more
//! than half of all nodes that will ever be there at the beginning: then two halves never make two groups. N is a number of people, because
//! no node can know how many others there are behind a cut.
//!
//! Who proposes: the lowest key that is seen first, the others some time later. The value is chosen by who proposes: three nodes in as many
//! zones as there are, or one below three.

use super::group::{Chair, Group, Proof};
use super::state::NodeInfo;
use super::words::{Key, decode, encode};
use crate::link::sign::{Signer, Verifier};
use phalanx_core::{Duration, Instant, Rng};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Who proposes waits so long after enough nodes are there.
const CALM: Duration = Duration::from_millis(200);
/// Each further node, in the order of keys, waits so much longer; and so long each waits for answers.
const PATIENCE: Duration = Duration::from_millis(1000);
/// After so many nodes all wait alike.
const PATIENT: usize = 8;
/// Seats of a group.
pub const SEATS: usize = 3;

/// A round of the election, and whose it is. One that starts again proposes in rounds of its own: it may have forgotten the last one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Round {
    number: u32,
    by: Option<Key>,
    incarnation: u64,
}

/// One node to another.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Founding {
    /// I propose in this round. Did you accept anything?
    Prepare {
        /// The round.
        round: Round,
        /// How many must agree; all nodes must have been told the same.
        expect: u32,
    },
    /// Nothing of an earlier round will be accepted here.
    Promise {
        /// The round.
        round: Round,
        /// What was accepted in an earlier one.
        accepted: Option<(Round, Group)>,
    },
    /// This shall be the group.
    Accept {
        /// The round.
        round: Round,
        /// The group.
        group: Group,
    },
    /// Accepted.
    Accepted {
        /// The round.
        round: Round,
        /// Of the round and the group.
        proof: Proof,
    },
    /// Promised to somebody of a later round.
    Outbid {
        /// Which.
        round: Round,
    },
    /// Enough have accepted this.
    Chosen {
        /// The round.
        round: Round,
        /// The group.
        group: Group,
        /// Who accepted.
        proofs: Vec<(Key, Proof)>,
    },
}

/// What must never be taken back.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Acceptor {
    promised: Round,
    accepted: Option<(Round, Group)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Proposal {
    round: Round,
    promised: BTreeMap<Key, Option<(Round, Group)>>,
    group: Option<Group>,
    accepted: BTreeMap<Key, Proof>,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Say this to that node.
    Send(Key, Founding),
    /// Say this to that node once the acceptor is on disk.
    Keep(Key, Founding),
}

/// A node's part in founding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Founder {
    me: Key,
    incarnation: u64,
    expect: Option<u32>,
    acceptor: Acceptor,
    proposal: Option<Proposal>,
    /// The highest round that was heard of.
    highest: u32,
    at: Instant,
    /// Somebody was told another number than we: a group cannot come about.
    pub disagrees: Option<u32>,
}

impl Founder {
    /// A node that knows what it accepted before.
    #[must_use]
    pub fn new(me: Key, incarnation: u64, expect: Option<u32>, stored: Option<&[u8]>) -> Self {
        let acceptor: Acceptor = stored.and_then(decode).unwrap_or_default();
        let highest = acceptor.promised.number;
        Self { me, incarnation, expect, acceptor, proposal: None, highest, at: Instant::NEVER, disagrees: None }
    }

    /// The bytes of what must not be taken back.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(&self.acceptor)
    }

    /// When it proposes.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.at
    }

    /// Nodes came or went.
    pub fn look_around(&mut self, now: Instant, world: &BTreeMap<Key, NodeInfo>) {
        let enough = self.expect.is_some_and(|n| n > 0 && world.len() >= n as usize) && world.contains_key(&self.me);
        if !enough {
            (self.at, self.proposal) = (Instant::NEVER, None);
        } else if self.at == Instant::NEVER {
            let before = world.range(..self.me).count().min(PATIENT);
            self.at = now + CALM + PATIENCE * (2 * before as u64);
        }
    }

    /// Nobody has founded a group yet: we try.
    pub fn propose(&mut self, now: Instant, world: &BTreeMap<Key, NodeInfo>, rng: &mut Rng, steps: &mut Vec<Step>) {
        let Some(expect) = self.expect else { return };
        self.at = now + PATIENCE + Duration(rng.below(PATIENCE.0 * 2));
        self.highest = self.highest.saturating_add(1);
        let round = Round { number: self.highest, by: Some(self.me), incarnation: self.incarnation };
        self.proposal = Some(Proposal { round, promised: BTreeMap::new(), group: None, accepted: BTreeMap::new() });
        steps.extend(world.keys().map(|&key| Step::Send(key, Founding::Prepare { round, expect })));
    }

    /// There is a group: nothing of this matters any more.
    pub fn rest(&mut self) {
        (self.at, self.proposal) = (Instant::NEVER, None);
    }

    /// Somebody said something about it. Returns the group when it is chosen.
    pub fn on_founding(
        &mut self,
        from: Key,
        said: Founding,
        world: &BTreeMap<Key, NodeInfo>,
        (signer, cluster): (&Signer, &str),
        steps: &mut Vec<Step>,
    ) -> Option<Group> {
        match said {
            Founding::Prepare { round, expect } => {
                self.highest = self.highest.max(round.number);
                if self.expect != Some(expect) {
                    self.disagrees = Some(expect);
                } else if round.by == Some(from) && round > self.acceptor.promised {
                    self.acceptor.promised = round;
                    let accepted = self.acceptor.accepted.clone();
                    steps.push(Step::Keep(from, Founding::Promise { round, accepted }));
                } else {
                    steps.push(Step::Send(from, Founding::Outbid { round: self.acceptor.promised }));
                }
                None
            }
            Founding::Promise { round, accepted } => {
                self.on_promise(from, round, accepted, world, steps);
                None
            }
            Founding::Accept { round, group } => {
                if round.by != Some(from) || !group.is_sound() || self.expect.is_none() {
                } else if round >= self.acceptor.promised {
                    let proof = Proof::sign(signer, &context(cluster), &(round, &group));
                    (self.acceptor.promised, self.acceptor.accepted) = (round, Some((round, group)));
                    steps.push(Step::Keep(from, Founding::Accepted { round, proof }));
                } else {
                    steps.push(Step::Send(from, Founding::Outbid { round: self.acceptor.promised }));
                }
                None
            }
            Founding::Accepted { round, proof } => {
                self.on_accepted(from, round, proof, (signer.verifier(), cluster), steps);
                None
            }
            Founding::Outbid { round } => {
                self.highest = self.highest.max(round.number);
                None
            }
            Founding::Chosen { round, group, proofs } => {
                let context = context(cluster);
                let verifier = signer.verifier();
                let holds = |(key, proof): &&(Key, Proof)| proof.holds(verifier, *key, &context, &(round, &group));
                let accepted: BTreeSet<_> = proofs.iter().filter(holds).map(|p| p.0).collect();
                let enough = self.expect.is_some_and(|n| accepted.len() >= n as usize);
                (enough && group.is_sound() && group.epoch == 1).then_some(group)
            }
        }
    }

    fn on_promise(
        &mut self,
        from: Key,
        round: Round,
        accepted: Option<(Round, Group)>,
        world: &BTreeMap<Key, NodeInfo>,
        steps: &mut Vec<Step>,
    ) {
        let (Some(proposal), Some(expect)) = (&mut self.proposal, self.expect) else { return };
        if proposal.round != round || proposal.group.is_some() {
            return;
        }
        proposal.promised.insert(from, accepted);
        if proposal.promised.len() < expect as usize {
            return;
        }
        let earlier = proposal.promised.values().flatten().max_by_key(|a| a.0).map(|a| a.1.clone());
        let known = || proposal.promised.keys().filter_map(|key| world.get(key));
        let Some(group) = earlier.or_else(|| seat(known(), expect as usize)) else { return };
        steps.extend(world.keys().map(|&key| Step::Send(key, Founding::Accept { round, group: group.clone() })));
        proposal.group = Some(group);
    }

    fn on_accepted(
        &mut self,
        from: Key,
        round: Round,
        proof: Proof,
        (verifier, cluster): (Verifier, &str),
        steps: &mut Vec<Step>,
    ) {
        let (Some(proposal), Some(expect)) = (&mut self.proposal, self.expect) else { return };
        let Some(group) = proposal.group.clone().filter(|_| proposal.round == round) else { return };
        if !proof.holds(verifier, from, &context(cluster), &(round, &group)) {
            return;
        }
        proposal.accepted.insert(from, proof);
        if proposal.accepted.len() >= expect as usize {
            let proofs: Vec<_> = proposal.accepted.iter().map(|(&key, &proof)| (key, proof)).collect();
            let chosen =
                |key| Step::Send(key, Founding::Chosen { round, group: group.clone(), proofs: proofs.clone() });
            steps.extend(group.keys().map(chosen));
        }
    }
}

fn context(cluster: &str) -> Vec<u8> {
    [b"phalanx founding ", cluster.as_bytes()].concat()
}

/// Who gets the seats: the lowest keys, in zones that have none before zones that have one.
fn seat<'a>(nodes: impl Iterator<Item = &'a NodeInfo>, expect: usize) -> Option<Group> {
    let seats = if expect < SEATS { 1 } else { SEATS };
    let mut nodes: Vec<_> = nodes.collect();
    nodes.sort_by_key(|n| n.key);
    let (mut chosen, mut zones) = (Vec::new(), BTreeMap::<&str, usize>::new());
    while chosen.len() < seats {
        let i = (0..nodes.len()).min_by_key(|&i| (zones.get(nodes[i].zone.as_str()).copied().unwrap_or(0), i))?;
        let node = nodes.remove(i);
        *zones.entry(&node.zone).or_default() += 1;
        chosen.push(Chair { key: node.key, name: node.name.clone(), zone: node.zone.clone(), at: node.at });
    }
    Some(Group { epoch: 1, seats: chosen, fresh: Vec::new() })
}
