//! Request: what others want of us (Algorithm 2, lines 7 to 13).
//!
//! Anybody may ask; the answer is one message, however much was asked for.

use super::state::{At, State};
use super::{Names, Out, Output};
use crate::member::Slot;
use phalanx_wire::attribute::{Digest, Record, ReplyWriter};

impl State {
    /// Lines 7 to 13: what we have and the other has not. `number` tells it which request is answered.
    pub(super) fn on_request<N: Names>(
        &mut self,
        at: &At<'_, N>,
        from: Slot,
        digest: Digest<'_>,
        push: bool,
        number: u16,
        out: &mut impl Out,
    ) {
        let mut bytes = Vec::new();
        let mut reply = ReplyWriter::new(number, &mut bytes);
        let (mut more, mut rest) = (false, Vec::new());
        for Record { identity, incarnation, version } in digest.iter() {
            let owner = at.names.slot(&identity).filter(|&s| at.names.incarnation(s) == Some(incarnation));
            let newer =
                owner.filter(|&s| version < self.known(at, s, incarnation)).and_then(|s| self.maps.get_key_value(&s));
            match newer {
                Some((_, replica)) if !more => {
                    let (span, entries) = replica.map.piece(version);
                    more = !reply.piece(&identity, incarnation, Some(span), entries);
                }
                // Line 12: who asked shall know that it was in vain.
                None if !more && !push => more = !reply.piece(&identity, incarnation, None, []),
                _ => {}
            }
            rest.extend(newer.filter(|_| more).map(|(&owner, _)| owner));
        }
        let answers = !push || !reply.is_empty();
        reply.finish(more && !push);
        if answers {
            self.counters.replies += 1;
            out.push(Output::Send { to: from, bytes: &bytes });
        }
        // Nobody waits for more of a push.
        if push {
            let records = self.records(at, rest);
            self.send_digest(&records, &[from], out);
        }
    }
}
