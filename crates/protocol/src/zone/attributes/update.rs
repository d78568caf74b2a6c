//! Update: digests out, digests in (Algorithm 2, lines 1 to 6).

use super::state::{At, State};
use super::terms::Dropped;
use super::{Names, Out, Output};
use crate::member::Slot;
use phalanx_wire::attribute::{Digest, RECORDS_MAX, Record, encode_update};

impl State {
    /// A round: the digest of what changed since the last one goes to all neighbours.
    pub(super) fn send_news<N: Names>(&mut self, at: &At<'_, N>, out: &mut impl Out) {
        if self.pace.due_at() > at.now {
            return;
        }
        self.pace.sent(at.now, &at.config.paces);
        let news = std::mem::take(&mut self.news);
        let records = self.records(at, news);
        self.send_digest(&records, at.neighbours, out);
    }

    /// The full digest: all maps that have something.
    pub(super) fn introduce<N: Names>(&mut self, at: &At<'_, N>, neighbour: Slot, out: &mut impl Out) {
        let records = self.records(at, self.maps.keys().copied());
        self.send_digest(&records, &[neighbour], out);
    }

    pub(super) fn send_digest(&mut self, records: &[Record], to: &[Slot], out: &mut impl Out) {
        let mut bytes = Vec::new();
        for records in records.chunks(RECORDS_MAX) {
            bytes.clear();
            encode_update(records, &mut bytes);
            for &to in to {
                self.counters.updates += 1;
                out.push(Output::Send { to, bytes: &bytes });
            }
        }
    }

    /// Lines 1 to 6: what the neighbour has and we have not, we ask for.
    pub(super) fn on_update<N: Names>(&mut self, at: &At<'_, N>, from: Slot, digest: Digest<'_>, out: &mut impl Out) {
        if !at.is_neighbour(from) {
            return self.counters.drop(Dropped::NotNeighbour);
        }
        for Record { identity, incarnation, version } in digest.iter() {
            let member = at.names.slot(&identity).and_then(|slot| Some((slot, at.names.incarnation(slot)?)));
            match member {
                // Nothing at all is offered here.
                _ if version == 0 => {}
                Some((_, present)) if incarnation < present => self.counters.drop(Dropped::Stale),
                Some((me, present)) if me == at.me => {
                    if incarnation > present {
                        self.counters.drop(Dropped::Lie);
                    } else if version > self.known(at, me, incarnation) {
                        self.overtake(at, version);
                    }
                }
                Some((owner, present)) if incarnation == present => self.offered(at, owner, incarnation, from, version),
                _ => self.note(from, identity, incarnation, version),
            }
        }
        self.ask(at, from, out);
    }
}
