//! What a replica does by the clock: it watches the others and the agents, and says again what was not heard.

use super::{Act, Around, BEAT, COPY, MISSED, Replica, heartbeat};
use crate::manager::agent::{AGAIN, LEASE};
use crate::manager::wire::Packet;
use crate::order::Member;
use phalanx_core::{Duration, Machine};

/// A peer that nobody heard for so long has lost its seat.
const SILENT: Duration = Duration::from_secs(10);
/// Words said again to one agent at once.
const AGAIN_MAX: usize = 16;
/// Announcements in one round.
const ANNOUNCED_MAX: usize = 256;
/// Writes that were not confirmed are repeated.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);

impl Replica {
    /// Its deadline has passed.
    pub fn expire(&mut self, around: &mut Around<'_>) {
        if self.order.as_ref().is_some_and(|o| o.deadline() <= around.now) {
            self.drive(None, around);
        }
        if around.now >= self.beat_at {
            self.beat_at = around.now + BEAT;
            self.on_round(around);
        }
    }

    fn on_round(&mut self, around: &mut Around<'_>) {
        let now = around.now;
        self.led_from = if self.leads() { self.led_from.or(Some(now)) } else { None };
        self.beat(around);
        self.submit_waiting(around);
        if self.leads() {
            self.submit_world(around);
            self.submit_done(around);
        }
        self.submit_tick(around);
        self.submit_arrival(around);
        self.watch_peers(around);
        self.watch_agents(around);
        self.announce(around);
        self.say_again(around);
        if self.saving.is_some_and(|s| now >= s.1 + WRITE_PATIENCE) || self.is_save_due() {
            self.save(around);
        }
        if self.copy.as_ref().is_some_and(|c| now.since(c.taken_at) > COPY * 6) {
            self.copy = None;
        }
    }

    /// CM-3: a peer that missed two beats, or shows something else than we had, is looked into; one that nobody has heard for long has lost
    /// its seat.
    fn watch_peers(&mut self, around: &mut Around<'_>) {
        let now = around.now;
        let me = usize::from(self.me.0);
        for i in (0..self.peers.len()).filter(|&i| i != me) {
            let silence = now.since(self.peers[i].heard_at);
            let differs = self.peers[i].statement.is_some_and(|theirs| {
                self.ring.iter().rev().find(|s| s.index == theirs.index).is_some_and(|ours| *ours != theirs)
            });
            let missed = silence >= MISSED && !self.peers[i].missed;
            self.peers[i].missed = silence >= MISSED;
            if missed || differs {
                around.acts.push(Act::Diagnose(self.core.index()));
            }
            let others_hear = (0..self.peers.len())
                .filter(|&o| o != i && now.since(self.peers[o].heard_at) < MISSED)
                .any(|o| self.peers[o].hears & 1 << i != 0);
            if silence >= SILENT && !others_hear && now.since(self.began_at) >= SILENT && !self.stalled {
                let whom = self.group.key(Member(i as u8));
                whom.into_iter().for_each(|whom| self.accuse(whom, around));
            }
        }
    }

    pub(super) fn beat(&mut self, around: &mut Around<'_>) {
        let hears = (0..self.peers.len())
            .filter(|&i| around.now.since(self.peers[i].heard_at) < MISSED)
            .fold(1 << self.me.0, |bits, i| bits | 1 << i);
        let packet = Packet::Beat { statement: self.core.statement(), unix_ms: around.unix_ms, hears };
        for key in self.group.keys().filter(|k| *k != self.key) {
            around.acts.push(Act::Send(key, packet.clone()));
        }
    }

    /// CM-3: two consecutive misses, then a probe, then a doubt. The zone alone says that a node is gone.
    fn watch_agents(&mut self, around: &mut Around<'_>) {
        let (now, every) = (around.now, heartbeat(around.world.len()));
        for (&key, listener) in &mut self.agents {
            if !around.world.contains_key(&key) || now.since(listener.heard_at) < every * 2 + BEAT {
                continue;
            }
            match listener.probed_at {
                None if !listener.suspected => {
                    listener.probed_at = Some(now);
                    around.counters.probes += 1;
                    around.acts.push(Act::Send(key, Packet::Probe));
                }
                Some(at) if now.since(at) >= every => {
                    (listener.probed_at, listener.suspected) = (None, true);
                    around.acts.push(Act::Suspect(key));
                }
                _ => {}
            }
        }
    }

    /// Nodes that know no group, or an older one, are told.
    fn announce(&mut self, around: &mut Around<'_>) {
        let (now, epoch) = (around.now, around.chain.epoch());
        let links = around.chain.since(0);
        let from = self.announce_from.take();
        let mut left = ANNOUNCED_MAX;
        for &key in around
            .world
            .range((from.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded), std::ops::Bound::Unbounded))
            .map(|(k, _)| k)
        {
            if left == 0 {
                break;
            }
            self.announce_from = Some(key);
            if key == self.key
                || self.agents.get(&key).is_some_and(|l| l.epoch >= epoch || now < l.announced_at + AGAIN)
            {
                continue;
            }
            left -= 1;
            around.acts.push(Act::Send(key, Packet::Announce(links.clone())));
        }
        if left > 0 {
            self.announce_from = None;
        }
    }

    /// What agents that are there have not carried out is said again.
    fn say_again(&mut self, around: &mut Around<'_>) {
        let now = around.now;
        let mut due = Vec::new();
        for (&key, listener) in &mut self.agents {
            if now.since(listener.heard_at) > LEASE || now < listener.told_at + AGAIN {
                continue;
            }
            let Some(desk) = self.core.desk(key) else { continue };
            let items: Vec<_> = desk.waiting.iter().filter(|i| i.id > listener.done).take(AGAIN_MAX).cloned().collect();
            if !items.is_empty() {
                listener.told_at = now;
                due.extend(items.into_iter().map(|item| (key, item)));
            }
        }
        for (key, item) in due {
            around.counters.retransmissions += 1;
            self.say(key, &item, true, around);
        }
    }
}
