//! How a steward founds the group with others, follows it, and takes a seat in it.

use super::{LINGER, Leaving, Out, Steward, Written};
use crate::manager::core::Core;
use crate::manager::diagnose::Doctor;
use crate::manager::found::{Founding, Step};
use crate::manager::group::{Group, Link, TOLD_MAX};
use crate::manager::regroup::Joining;
use crate::manager::replica::{Around, Replica, link_of};
use crate::manager::wire::Packet;
use crate::manager::words::Key;
use crate::order;
use phalanx_core::Instant;

impl Steward {
    pub(super) fn on_founding(&mut self, now: Instant, from: Key, founding: Founding, out: &mut impl Out) {
        let is_question = matches!(founding, Founding::Prepare { .. });
        if is_question && self.chain.epoch() > 0 {
            let links = self.chain.since(0);
            self.send(from, Packet::Announce(links), out);
        }
        // Until the group is known to all that are to found it, one that knows it must not keep the others from choosing it, too.
        if self.chain.epoch() > 1 {
            return;
        }
        let mut steps = Vec::new();
        let signed = (&self.signer, self.config.cluster.as_str());
        let chosen = self.founder.on_founding(from, founding, &self.world, signed, &mut steps);
        self.take_steps(now, steps, out);
        if let Some(group) = chosen
            && self.chain.epoch() == 0
            && group.member(self.key).is_some()
        {
            self.enter(now, &group, Core::new(&group), out);
        }
    }

    pub(super) fn take_steps(&mut self, now: Instant, steps: Vec<Step>, out: &mut impl Out) {
        for step in steps {
            match step {
                Step::Send(to, founding) => self.send(to, Packet::Found(founding), out),
                Step::Keep(to, founding) => {
                    let bytes = self.founder.encode();
                    self.leave(now, Leaving::Persist(Written::Acceptor(to, founding), bytes, false), out);
                }
            }
        }
    }

    pub(super) fn end_replica(&mut self) -> Option<Replica> {
        let ended = self.replica.take();
        #[cfg(any(test, feature = "harm"))]
        self.last_words.extend(ended.iter().flat_map(Replica::decisions).map(|(_, digest)| digest));
        ended
    }

    /// This node has a seat in that group, and the state with which it begins.
    fn enter(&mut self, now: Instant, group: &Group, core: Core, out: &mut impl Out) {
        if self.chain.epoch() < group.epoch {
            self.chain.push(Link::new(group.clone()));
            self.group_changed(now, out);
        }
        self.begin_replica(now, group.clone(), core, None, out);
    }

    /// The state with which an epoch begins is on disk: now we sign for it. Sooner, the others might let go of the order that led to it while we
    /// could still lose it.
    pub(super) fn sign_for(&mut self, now: Instant, epoch: u32, out: &mut impl Out) {
        if self.sign_until(epoch) {
            let bytes = self.chain.encode();
            self.leave(now, Leaving::Persist(Written::Group, bytes, false), out);
            self.on_proofs_due(now, out);
        }
    }

    /// Signs for all groups up to one whose state is on disk here: an epoch may be over, or this node have crashed, before the state with which it
    /// began was written. True when there were any.
    pub(super) fn sign_until(&mut self, epoch: u32) -> bool {
        let unsigned: Vec<Link> = self.chain.unsigned_by(self.key, epoch).cloned().collect();
        for mut link in unsigned.iter().cloned() {
            link.sign(&self.signer, &self.config.cluster);
            self.chain.hear(&link, self.signer.verifier(), &self.config.cluster);
        }
        !unsigned.is_empty()
    }

    fn begin_replica(&mut self, now: Instant, group: Group, core: Core, mark: Option<order::Mark>, out: &mut impl Out) {
        let (seat, rng) = ((self.key, self.config.incarnation, self.config.order), self.stream());
        let mut acts = Vec::new();
        let mut around = Around {
            now,
            unix_ms: self.config.unix_ms + now.0 / 1_000_000,
            cluster: &self.config.cluster,
            relay_min: self.config.relay_min,
            signer: &self.signer,
            world: &self.world,
            gone: &self.gone,
            silent: &self.silent,
            chain: &self.chain,
            acts: &mut acts,
            counters: &mut self.counters,
        };
        self.replica = Replica::new(seat, group, core, mark, rng, &mut around);
        self.doctor = Doctor::new(self.replica.as_ref().map_or(0, |r| r.group().epoch));
        self.settle_replica(now, acts, out);
    }

    pub(super) fn on_announced(&mut self, now: Instant, links: &[Link], out: &mut impl Out) {
        let before = self.chain.clone();
        let mut changed = false;
        for link in links.iter().take(TOLD_MAX + 1) {
            changed |= self.chain.hear(link, self.signer.verifier(), &self.config.cluster);
        }
        if changed {
            self.group_changed(now, out);
        } else if self.chain != before {
            let bytes = self.chain.encode();
            self.leave(now, Leaving::Persist(Written::Group, bytes, false), out);
        }
        self.forget_prior();
    }

    /// The group is another one than before.
    fn group_changed(&mut self, now: Instant, out: &mut impl Out) {
        self.founder.rest();
        if !self.has_seat() {
            // Others have seen its end.
            self.end_replica();
        }
        let newest = self.chain.group();
        if let (Some(group), Some(replica)) = (newest, &self.replica)
            && (replica.group().epoch, replica.group() == group) == (group.epoch, false)
        {
            // It has promised things to a group that is none.
            self.barred = group.epoch;
            self.end_replica();
            self.ended =
                "the replica here took another group for the next than both others: it ended, and its seat moves"
                    .into();
        }
        let bytes = self.chain.encode();
        self.leave(now, Leaving::Persist(Written::Group, bytes, false), out);
        let mut acts = Vec::new();
        if let Some(group) = self.chain.group() {
            self.agent.on_group(now, group, &mut acts);
        }
        self.settle_agent(now, acts, out);
        self.leave(now, Leaving::Group, out);
    }

    /// The ended order is of no use once all who stayed have signed for what follows it: they saw its end.
    fn forget_prior(&mut self) {
        if let Some((prior, _)) = &self.prior
            && let Some(link) = self.chain.link_of(prior.group.epoch + 1)
        {
            let stayed = || prior.group.keys().filter(|k| link.group.member(*k).is_some());
            if stayed().all(|key| link.proofs.contains_key(&key)) {
                self.prior = None;
            }
        }
    }

    /// Signatures that are missing are asked for by giving ours; a seat without a state looks for one.
    pub(super) fn on_proofs_due(&mut self, now: Instant, out: &mut impl Out) {
        let Some(link) = self.chain.last().cloned() else { return };
        if self.replica.is_some() || self.prior.is_some() {
            let electors = self.chain.group_of(link.group.epoch.wrapping_sub(1)).unwrap_or(&link.group);
            let missing = electors.keys().any(|k| !link.proofs.contains_key(&k));
            if missing {
                let mut told: Vec<_> = electors.keys().chain(link.group.keys()).filter(|k| *k != self.key).collect();
                told.sort_unstable();
                told.dedup();
                for key in told {
                    self.send(key, Packet::Announce(vec![link.clone()]), out);
                }
            }
        }
        let epoch = link.group.epoch;
        let lacks = self.replica.as_ref().is_none_or(|r| r.group().epoch < epoch) && self.barred < epoch;
        if self.has_seat() && lacks && self.joining.as_ref().is_none_or(|j| j.epoch() != link.group.epoch) {
            self.joining = Some(Joining::new(link.group.epoch, now));
            self.ask_to_join(now, out);
        }
    }

    pub(super) fn ask_to_join(&mut self, now: Instant, out: &mut impl Out) {
        let Some(group) = self.chain.group() else { return };
        let lacks = self.replica.as_ref().is_none_or(|r| r.group().epoch < group.epoch || r.is_behind());
        let lacks = lacks && self.barred < group.epoch;
        if !lacks || group.member(self.key).is_none() {
            self.joining = None;
            return;
        }
        let mut sends = Vec::new();
        if let Some(joining) = &mut self.joining {
            joining.ask(now, self.key, group, &mut sends);
        }
        sends.into_iter().for_each(|(to, packet)| self.send(to, packet, out));
    }

    pub(super) fn try_to_join(&mut self, now: Instant, out: &mut impl Out) {
        let (Some(joining), Some(group)) = (&mut self.joining, self.chain.group()) else { return };
        if joining.epoch() != group.epoch {
            self.joining = None;
            return;
        }
        let Some((core, mark)) = joining.take(self.key, group) else { return };
        let group = group.clone();
        self.joining = None;
        match &self.replica {
            Some(r) if r.group().epoch == group.epoch => {
                self.with_replica(now, out, |r, around| r.install(core, mark, around));
            }
            _ => {
                self.retire(now);
                self.begin_replica(now, group, core, Some(mark), out);
            }
        }
    }

    fn retire(&mut self, now: Instant) -> Option<Core> {
        let (core, prior) = self.end_replica()?.retire();
        if let Some(prior) = prior {
            self.prior = Some((prior, now + LINGER));
        }
        Some(core)
    }

    /// The order has ended with a decision about who comes next.
    pub(super) fn move_on(&mut self, now: Instant, group: &Group, out: &mut impl Out) {
        let again = group.fresh.contains(&self.key);
        let Some(core) = self.retire(now) else { return };
        if group.member(self.key).is_some() && !again {
            return self.enter(now, group, core.next(group), out);
        }
        if self.chain.epoch() < group.epoch {
            self.chain.push(link_of(group, &self.signer, &self.config.cluster));
            self.group_changed(now, out);
        } else if let Some(mut link) = self.chain.link_of(group.epoch).filter(|l| l.group == *group).cloned() {
            link.sign(&self.signer, &self.config.cluster);
            self.chain.hear(&link, self.signer.verifier(), &self.config.cluster);
        }
        self.on_proofs_due(now, out);
    }
}
