//! What a replica hears of agents and of other replicas.

use super::{Act, Around, COPY, Copy, Inbox, Listener, Replica};
use crate::manager::agent::AGAIN;
use crate::manager::core::Core;
use crate::manager::wire::{Ballot, Id, Look, PIECE_MAX, Packet, Said, Statement, Sworn, Telling};
use crate::manager::words::{Key, encode};
use crate::order::{self, Mark, Order};
use phalanx_core::Instant;
use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map};

/// Words of one agent that a replica keeps until they are ordered.
const INBOX_MAX: usize = 256;
/// Agents that are remembered.
const AGENTS_MAX: usize = 128 * 1024;

impl Replica {
    /// A packet of the order.
    pub fn on_ordered(&mut self, from: Key, packet: &[u8], around: &mut Around<'_>) {
        match self.group.member(from) {
            Some(from) => self.drive(Some(order::Input::Received { from, packet }), around),
            None => around.counters.foreign += 1,
        }
    }

    /// A record of the order is on disk.
    pub fn on_recorded(&mut self, token: u64, around: &mut Around<'_>) {
        self.drive(Some(order::Input::Persisted { token }), around);
    }

    /// The state after `index` is on disk.
    pub fn on_saved(&mut self, index: u64, around: &mut Around<'_>) {
        self.saved = self.saved.max(index);
        if self.saving.is_some_and(|s| s.0 <= index) {
            self.saving = None;
        }
        if self.order.is_none() {
            let seat = self.seat();
            let records = std::mem::take(&mut self.records);
            let now = around.now;
            self.order = Order::recover(self.config, seat, index, records, self.rng.clone(), now).ok();
        }
        if let Some((_, mark)) = self.mark.take_if(|m| m.0 <= index) {
            self.drive(Some(order::Input::Restored { mark }), around);
        }
        self.drive(Some(order::Input::Saved { up_to: index }), around);
    }

    /// An agent lives.
    pub fn on_alive(
        &mut self,
        from: Key,
        (incarnation, epoch, beat, done): (u64, u32, u64, Id),
        around: &mut Around<'_>,
    ) {
        let now = around.now;
        if self.agents.len() >= AGENTS_MAX && !self.agents.contains_key(&from) {
            around.counters.refused += 1;
            return;
        }
        let long_ago = Instant::ZERO;
        let listener = self.agents.entry(from).or_insert(Listener {
            incarnation,
            epoch,
            heard_at: now,
            probed_at: None,
            suspected: false,
            done: Id::default(),
            done_told: Id::default(),
            told_at: long_ago,
            announced_at: long_ago,
        });
        if incarnation < listener.incarnation {
            return;
        }
        if listener.probed_at.take().is_some() {
            around.counters.false_alarms += 1;
        }
        if incarnation > listener.incarnation {
            listener.done = done;
        }
        (listener.incarnation, listener.epoch, listener.heard_at, listener.suspected) =
            (incarnation, epoch, now, false);
        listener.done = listener.done.max(done);
        if epoch < around.chain.epoch() && now >= listener.announced_at + AGAIN {
            listener.announced_at = now;
            around.acts.push(Act::Send(from, Packet::Announce(around.chain.since(epoch))));
        }
        let packet = self.heard_of(from, incarnation, beat);
        around.acts.push(Act::Send(from, packet));
    }

    pub(super) fn heard_of(&self, agent: Key, incarnation: u64, beat: u64) -> Packet {
        let state = self.core.state();
        let known = state.node(&agent).is_some_and(|n| n.incarnation == incarnation) && !state.is_lost(&agent);
        // Without a leader nobody knows whether the others have given the agent up.
        let decides = !self.stalled && !self.halted && self.order.as_ref().is_some_and(|o| o.leader().is_some());
        let noted =
            self.core.desk(agent).filter(|d| d.incarnation == incarnation).map_or((0, 0), |d| (d.asks, d.reports));
        Packet::Heard { agent, epoch: self.group.epoch, beat, incarnation, noted, granted: known && decides }
    }

    /// An agent has something to say.
    pub fn on_told(&mut self, from: Key, incarnation: u64, number: u64, said: Said, around: &mut Around<'_>) {
        let which = (from, matches!(said, Said::Ask(_)));
        if self.take_in(from, incarnation, number, said, around) && self.leads() {
            self.submit_said(which, around);
        }
    }

    /// Several agents have something to report; their signatures were checked.
    pub fn on_gathered(&mut self, told: Vec<Telling>, around: &mut Around<'_>) {
        let mut froms = BTreeSet::new();
        for Telling { from, incarnation, number, report, .. } in told {
            if self.take_in(from, incarnation, number, Said::Report(report), around) {
                froms.insert(from);
            }
        }
        if self.leads() {
            self.submit_reports(froms, around);
        }
    }

    /// Remembers what an agent says until it is ordered. False when it is of no use.
    fn take_in(&mut self, from: Key, incarnation: u64, number: u64, said: Said, around: &mut Around<'_>) -> bool {
        let ask = matches!(said, Said::Ask(_));
        let heard = match self.core.desk(from) {
            Some(desk) if desk.incarnation > incarnation => return false,
            Some(desk) if desk.incarnation == incarnation => desk.heard(&said),
            _ => 0,
        };
        if number <= heard {
            around.counters.duplicates += 1;
            around.acts.push(Act::Send(from, self.heard_of(from, incarnation, 0)));
            return false;
        }
        if self.inboxes.len() >= AGENTS_MAX && !self.inboxes.contains_key(&(from, ask)) {
            around.counters.refused += 1;
            return false;
        }
        let inbox = self.inboxes.entry((from, ask)).or_insert_with(|| Inbox::new(incarnation));
        if incarnation < inbox.incarnation {
            return false;
        }
        if incarnation > inbox.incarnation {
            *inbox = Inbox::new(incarnation);
        }
        if number > heard + INBOX_MAX as u64 {
            around.counters.refused += 1;
            return false;
        }
        match inbox.items.entry(number) {
            btree_map::Entry::Occupied(_) => around.counters.duplicates += 1,
            btree_map::Entry::Vacant(place) => _ = place.insert((said, around.now)),
        }
        true
    }

    /// Another replica lives.
    pub fn on_beat(&mut self, from: Key, statement: Statement, unix_ms: u64, hears: u8, around: &mut Around<'_>) {
        let Some(member) = self.group.member(from).filter(|m| *m != self.me) else {
            around.counters.foreign += 1;
            return;
        };
        if statement.epoch < self.group.epoch {
            around.acts.push(Act::Send(from, Packet::Announce(around.chain.since(statement.epoch))));
        }
        let peer = &mut self.peers[usize::from(member.0)];
        peer.heard_at = around.now;
        peer.hears = hears;
        peer.ahead_ms = i64::try_from(unix_ms).unwrap_or(i64::MAX).saturating_sub_unsigned(around.unix_ms);
        if statement.epoch == self.group.epoch {
            peer.statement = Some(statement);
        }
    }

    /// Somebody wants to see something.
    pub fn on_look(&self, from: Key, number: u64, what: &Look, around: &mut Around<'_>) {
        let state = self.core.state();
        let bytes = match what {
            Look::Runs => encode(&state.runs()),
            Look::Run(name) => encode(&state.run(name)),
            Look::Slots => encode(&state.slots()),
        };
        around.acts.push(Act::Send(from, Packet::Shown { number, bytes }));
    }

    /// Somebody needs the state.
    pub fn on_fetch(&mut self, from: Key, index: u64, offset: u32, around: &mut Around<'_>) {
        let now = around.now;
        let fits = |c: &Copy| if index == 0 { now.since(c.taken_at) < COPY } else { c.index == index };
        if !self.copy.as_ref().is_some_and(fits) {
            if index != 0 {
                return;
            }
            let Some(mark) = self.order.as_ref().and_then(Order::mark) else { return };
            let mut bytes = Vec::new();
            mark.encode(&mut bytes);
            let copy = Copy { index: self.core.index(), mark: bytes, bytes: self.core.encode(), taken_at: now };
            self.copy = Some(copy);
        }
        let Some(copy) = &self.copy else { return };
        let piece = copy.bytes.iter().skip(offset as usize).take(PIECE_MAX).copied().collect();
        around.acts.push(Act::Send(
            from,
            Packet::Piece {
                epoch: self.group.epoch,
                index: copy.index,
                total: copy.bytes.len() as u32,
                offset,
                mark: copy.mark.clone(),
                bytes: piece,
            },
        ));
        self.on_declare(from, self.group.epoch, copy.index, around);
    }

    /// What we have, or had, after an entry; signed.
    #[must_use]
    pub fn swear(&self, epoch: u32, index: u64, around: &Around<'_>) -> Option<Sworn> {
        // What is here now, not what was: memories go bad between entries, too.
        let now = Some(self.core.statement()).filter(|s| s.index == index && s.epoch == epoch);
        let statement =
            now.or_else(|| self.ring.iter().rev().find(|s| s.index == index && s.epoch == epoch).copied())?;
        Some(Sworn::new(statement, self.boot, around.signer, around.cluster))
    }

    /// Somebody wants to know what we had after an entry.
    pub fn on_declare(&self, from: Key, epoch: u32, index: u64, around: &mut Around<'_>) {
        if let Some(sworn) = self.swear(epoch, index, around) {
            around.acts.push(Act::Send(from, Packet::Declared(vec![sworn])));
        }
    }

    /// An agent shows two voices that differ, or one that is alone; their signatures were checked.
    pub fn on_differ(&mut self, one: &Ballot, other: &Ballot, around: &mut Around<'_>) {
        let id = one.vote.id;
        if id.epoch != self.group.epoch || id.index > self.core.index() || id.index <= self.decided_from {
            return;
        }
        // One of them says what we decided, or we are the odd one.
        let ours = self.decided.get(&id).copied();
        let is_right = |b: &Ballot| ours == Some(b.vote.hash);
        let lies = [one, other].into_iter().filter(|b| !is_right(b) && b.by != self.key);
        lies.map(|b| b.by).collect::<BTreeSet<_>>().into_iter().for_each(|whom| self.accuse(whom, around));
        around.acts.push(Act::Diagnose(self.core.index()));
    }

    /// Nobody can say what is true.
    pub fn halt(&mut self) {
        self.halted = true;
    }

    /// Takes a state that two others have, when it is newer.
    pub fn install(&mut self, core: Core, mark: Mark, around: &mut Around<'_>) {
        if core.epoch() == self.group.epoch && core.index() > self.core.index() && self.order.is_some() {
            self.core = core;
            self.core.cover(mark.place.index);
            (self.mark, self.behind) = (Some((self.core.index(), mark)), false);
            self.ring = VecDeque::from([self.core.statement()]);
            (self.decided_from, self.decided) = (self.core.index(), BTreeMap::new());
            self.save(around);
        }
    }

    /// The zone sees something new.
    pub fn on_world(&mut self, around: &mut Around<'_>) {
        if self.leads() {
            self.submit_world(around);
        }
    }
}
