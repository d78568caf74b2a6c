//! What a node does when others die, or links are cut: what may be lost leaves again, another way.

use super::machine::{Caster, Out, ROOT};
use super::recent::{Cast, Sent};
use super::spread;
use super::tree::Id;
use phalanx_core::Instant;

impl Caster {
    pub(super) fn on_failed(&mut self, now: Instant, ids: &[Id], out: &mut impl Out) {
        let news: Vec<Id> = ids.iter().copied().filter(|&id| id != self.me && self.dead.insert(id)).collect();
        if news.is_empty() {
            return;
        }
        self.crowd = None;
        let gone: Vec<u64> = news.iter().filter_map(|&id| self.who_at(id)).collect();
        for (cast, sent) in self.memory.lost(&news) {
            if self.is_had(&cast, &sent) {
                continue;
            }
            self.counters.again += 1;
            match sent {
                Sent::Down(child) => self.envelop(now, &cast, spread::below(&self.tree, child), out),
                Sent::Along(_, header) => self.go_on(now, &cast, header, out),
            }
        }
        let line: Vec<Id> = self.tree.above(self.me).collect();
        let is_above = line.iter().any(|id| news.contains(id));
        let stands_in = !line.is_empty() && is_above && line.iter().all(|&id| !self.lives(id));
        for cast in self.memory.casts() {
            // With receipts, sources that are gone are looked after by telling each other how far we have come.
            let is_orphan =
                !self.config.receipts && self.seat_of(cast.who).is_none() && (gone.contains(&cast.who) || is_above);
            if stands_in || is_orphan {
                self.pass_up(now, &cast, out);
            }
        }
        for who in gone {
            for posted in self.pending.failed(who) {
                self.posted(Some(posted), out);
            }
        }
        self.changed(now, out);
    }

    /// The branch that it was sent to is known to have it.
    fn is_had(&self, cast: &Cast, sent: &Sent) -> bool {
        let Sent::Down(child) = sent else { return false };
        let source = self.sources.get(&cast.who);
        let heard = source.and_then(|s| s.heard(*child, self.who_at(*child)));
        cast.number > 0 && heard.is_some_and(|branch| branch.upto >= cast.number)
    }

    /// Sees to it that whoever is next above us has it; where nobody is, we stand in for the root.
    pub(super) fn pass_up(&mut self, now: Instant, cast: &Cast, out: &mut impl Out) {
        match self.next_above() {
            Some(next) => self.envelop(now, cast, vec![next], out),
            None if self.me != ROOT => self.envelop(now, cast, spread::below(&self.tree, ROOT), out),
            None => {}
        }
    }

    pub(super) fn next_above(&self) -> Option<Id> {
        self.tree.above(self.me).find(|&id| self.lives(id))
    }

    /// What was sent to somebody who lives may not have come: it goes around.
    pub(super) fn on_cut(&mut self, now: Instant, id: Id, out: &mut impl Out) {
        if !self.lives(id) || !self.cut.insert(id) {
            return;
        }
        // It is noted anew where it goes now: what was noted twice would be sent twice as often each time that a link is cut.
        for (cast, sent) in self.memory.lost(&[id]) {
            // What is for some its source sends again.
            if self.is_had(&cast, &sent) || self.config.receipts && cast.number == 0 {
                continue;
            }
            self.counters.again += 1;
            match sent {
                Sent::Down(to) => self.envelop(now, &cast, vec![to], out),
                Sent::Along(_, header) => self.go_on(now, &cast, header, out),
            }
        }
        self.untell(id);
        self.changed(now, out);
    }
}
