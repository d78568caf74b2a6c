//! What a replica says to agents: to each, or to many at once.

use super::{Act, Around, Replica};
use crate::manager::core::Item;
use crate::manager::group::Proof;
use crate::manager::sheaf::{self, BLOCK_MAX, Sheaf, Slip};
use crate::manager::wire::{Ballot, Packet, Vote, vote_context};
use crate::manager::words::Key;

/// Bodies up to this length come with every voice; longer ones from one replica at first.
const BODY_SHARED: usize = 512;

impl Replica {
    pub(super) fn say(&self, to: Key, item: &Item, whole: bool, around: &mut Around<'_>) {
        if self.halted {
            return;
        }
        #[cfg(any(test, feature = "harm"))]
        let item = &if self.lies { item.bent() } else { item.clone() };
        let vote = Vote { id: item.id, after: item.after, to, hash: item.body.hash };
        let ballot = Ballot::direct(vote, self.key, around.signer, around.cluster);
        let turn = usize::from(to.0[0]).wrapping_add(item.id.index as usize) % self.group.seats.len();
        let whole = whole || item.body.bytes.len() <= BODY_SHARED || turn == usize::from(self.me.0);
        let body = whole.then(|| item.body.bytes.clone());
        around.acts.push(Act::Send(to, Packet::Vote(ballot, body)));
    }

    /// Says a word to many: those to whom it goes first hand it on.
    pub(super) fn say_to_all(&self, words: &[(Key, Item)], around: &mut Around<'_>) {
        let Some((_, item)) = words.first().filter(|_| !self.halted) else { return };
        #[cfg(any(test, feature = "harm"))]
        let item = &if self.lies { item.bent() } else { item.clone() };
        let (seats, me) = (self.group.seats.len(), usize::from(self.me.0));
        // Our own node first: what all others report comes to us by way of it.
        let own = words.iter().position(|(to, _)| *to == self.key);
        let (front, back) = words.split_at(own.unwrap_or(words.len() * me / seats));
        let slip = |(to, item): &(Key, Item)| {
            let at = self.core.state().node(to)?.at;
            Some(Slip { to: *to, at, after: item.after })
        };
        let slips: Vec<_> = back.iter().chain(front).filter_map(slip).collect();
        if slips.is_empty() {
            return;
        }
        // Two of three bring the word itself.
        let brings = seats < 3 || item.body.bytes.len() <= BODY_SHARED || item.id.index as usize % seats != me;
        let body = brings.then(|| item.body.bytes.clone());
        let (id, hash, by) = (item.id, item.body.hash, self.key);
        let unsigned = Proof::default();
        let whole = Sheaf { id, hash, by, proof: unsigned, path: sheaf::Path::default(), slips, body };
        let (root, blocks) = sheaf::blocks(&whole.leaves(), BLOCK_MAX);
        let proof = Proof::sign(around.signer, &vote_context(around.cluster), &root);
        for block in blocks {
            let part = Sheaf { proof, ..whole.part(block) };
            around.acts.push(Act::Pass(part.slips[0], part));
        }
    }
}
