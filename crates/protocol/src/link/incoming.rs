//! The way in: find the session, open the seal, hand the packet to its layer.

use super::count::Dropped;
use super::rcl::Connection;
use super::{Link, Output, local, mml, states};
use phalanx_core::buf::Attachment;
use phalanx_core::{Addr, Code, Endpoint, Instant, NodeId, Sink};
use phalanx_fault::Injector;
use phalanx_wire::layer::{Layer, layer_of};
use phalanx_wire::outer::{Kind, Short, kind_of};

impl Link {
    #[inline]
    pub(super) fn on_arrived<S>(
        &mut self,
        now: Instant,
        from: Addr,
        bytes: &mut [u8],
        attached: Option<&Attachment>,
        out: &mut S,
    ) where
        S: for<'a> Sink<Output<'a>>,
    {
        let accepted = match kind_of(bytes) {
            Ok(Kind::Data) => self.on_data(now, from, bytes, attached, out),
            Ok(Kind::Hello) => self.on_hello(now, from, bytes, out),
            Ok(Kind::Group) => self.on_group(now, from, bytes, attached, out),
            Err(malformed) => Err(malformed.into()),
        };
        match accepted {
            Ok(()) => self.counters.accepted += 1,
            Err(why) => self.counters.drop(why),
        }
    }

    #[inline]
    fn on_data<S>(
        &mut self,
        now: Instant,
        from: Addr,
        bytes: &mut [u8],
        attached: Option<&Attachment>,
        out: &mut S,
    ) -> Result<(), Dropped>
    where
        S: for<'a> Sink<Output<'a>>,
    {
        let short = Short::parse(bytes)?;
        if short.sender == self.tag {
            return Err(Dropped::Reflected);
        }
        let slot = (short.session & 0x00ff_ffff) as usize;
        let epoch = (short.session >> 24) as u8;
        let Some((generation, peer)) = self.peers.at_mut(slot) else {
            self.challenge(now, from, out);
            return Err(Dropped::UnknownSession);
        };
        let proved = peer.session.as_ref().is_some_and(|s| s.epoch == epoch);
        let session = if proved {
            peer.session.as_mut()
        } else {
            peer.attempt.as_mut().filter(|a| a.epoch == epoch).and_then(|a| a.candidate.as_mut())
        };
        let Some(session) = session else {
            self.challenge(now, from, out);
            return Err(Dropped::UnknownSession);
        };
        if session.tag != short.sender {
            self.challenge(now, from, out);
            return Err(Dropped::OldBoot);
        }
        if !session.replay.admits(short.counter) {
            return Err(Dropped::Replayed);
        }
        let Some(cipher) = session.opener(short.key, &self.ring, &self.boot) else {
            // The keys were changed, and we do not have the new one: it must hear which we have.
            self.challenge(now, from, out);
            return Err(Dropped::UnknownKey);
        };
        let (header, sealed) = bytes.split_at_mut(Short::LEN);
        let Some(plain) = cipher.open(short.counter, header, sealed) else {
            self.challenge(now, from, out);
            return Err(Dropped::BadSeal);
        };
        session.replay.mark(short.counter);
        session.meet(short.key, &self.ring, &self.boot);
        peer.unheard = 0;
        if !proved {
            // Only who holds our nonce can have made this packet: it proves the candidate as well as a hello would.
            self.establish(now, slot, out);
        }
        let node = NodeId::new(slot, generation);
        if self.tap.is_idle() {
            self.dispatch(now, node, plain, shift(attached).as_ref(), out);
        } else {
            let mut tap = std::mem::replace(&mut self.tap, Injector::new(0));
            tap.receive(now, node, plain, shift(attached).as_ref(), &mut |node, plain, attached| {
                self.dispatch(now, node, plain, attached, out);
            });
            self.tap = tap;
        }
        Ok(())
    }

    /// An opened packet goes to the layer it is for.
    #[inline]
    pub(super) fn dispatch<S>(
        &mut self,
        now: Instant,
        node: NodeId,
        plain: &mut [u8],
        attached: Option<&Attachment>,
        out: &mut S,
    ) where
        S: for<'a> Sink<Output<'a>>,
    {
        match layer_of(plain) {
            Ok(Layer::Cl) => self.on_datagram(node, plain, false, out),
            Ok(Layer::Rcl) => self.on_rcl(now, node, plain, attached, out),
            Ok(Layer::Mml) => self.on_mml(now, node, plain, out),
            Err(malformed) => self.counters.drop(malformed.into()),
        }
    }

    #[inline]
    fn on_rcl<S>(&mut self, now: Instant, node: NodeId, plain: &mut [u8], attached: Option<&Attachment>, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        let Some(peer) = self.peers.get_mut(node.slot(), node.generation()) else { return };
        // What an injector held until the session was over belongs to nobody.
        let Some(session) = &peer.session else { return };
        session.bind_received(plain);
        let config = local::rcl_config(&self.config, peer);
        let rcl = peer.rcl.get_or_insert_with(|| Box::new(Connection::new(now, &config)));
        let progress = rcl.receive(now, plain, attached, &config, &mut self.counters.rcl, &mut |from, to, payload| {
            out.push(Output::Message { from: Endpoint { node, port: from }, to, payload });
        });
        if progress.writable {
            out.push(Output::Writable { node });
        }
        if progress.closed {
            out.push(Output::Closed { node });
        }
        self.wake(now, node.slot());
    }

    fn on_mml<S>(&mut self, now: Instant, node: NodeId, plain: &[u8], out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        let Some(peer) = self.peers.get_mut(node.slot(), node.generation()) else { return };
        let config = mml::Config { largest_plain: local::plain_length(peer.largest), ..self.config.mml };
        let mml = local::channel(peer, &self.signer, self.boot);
        let progress = mml.receive(now, plain, &config, &mut self.counters.mml, &mut |kind, from, to, payload| {
            out.push(Output::Managed { from: Endpoint { node, port: from }, to, kind, payload });
        });
        if let Some(gap) = progress.gap {
            out.push(Output::Gap { node, gap });
        }
        if progress.writable {
            out.push(Output::Writable { node });
        }
        self.wake(now, node.slot());
    }

    pub(super) fn expire_peer<S>(&mut self, now: Instant, slot: usize, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        self.expire_attempt(now, slot, out);
        let Some((generation, peer)) = self.peers.at_mut(slot) else { return };
        let node = NodeId::new(slot, generation);
        if peer.session.is_some() {
            let config = local::rcl_config(&self.config, peer);
            let mut expired = match &mut peer.rcl {
                Some(rcl) if rcl.deadline() <= now => rcl.expire(now, &config, &mut self.counters.rcl),
                _ => Ok(()),
            };
            if let Some(mml) = &mut peer.mml
                && mml.deadline() <= now
            {
                expired = expired.and(mml.expire(now, &self.config.mml));
                for number in mml.undelivered() {
                    out.push(Output::Undelivered { node, number });
                }
            }
            if let Err(code) = expired {
                self.tear_down(now, slot, code, out);
                // One that only called us has nobody who would come back to it.
                if self.peers.at(slot).is_some_and(|(_, p)| p.is_caller() && p.attempt.is_none()) {
                    let _ = self.forget(node);
                }
                return;
            }
        }
        self.wake(now, slot);
    }

    /// Ends the session with a peer: it is silent, refused us, or lives a new life.
    pub(super) fn tear_down<S>(&mut self, now: Instant, slot: usize, code: Code, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        let Some((generation, peer)) = self.peers.at_mut(slot) else { return };
        let node = NodeId::new(slot, generation);
        // Above the seal nothing shows from which session a held packet came.
        self.tap.forget(node);
        self.tap.signal(now, states::SESSION_DOWN);
        let unacknowledged = peer.rcl.take().map_or(0, |c| c.queued());
        if let Some(mut mml) = peer.mml.take() {
            mml.abandon();
            mml.undelivered().for_each(|number| out.push(Output::Undelivered { node, number }));
        }
        if let Some(session) = peer.session.take() {
            // What it proved is over: without being dialled it is one that called, again.
            self.callers += usize::from(peer.is_caller());
            self.by_boot.remove(&session.boot, slot);
        }
        out.push(Output::Down { node, code, unacknowledged });
    }

    pub(super) fn on_refused<S>(&mut self, addr: Addr, code: Code, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        // Anybody on the path can forge an ICMP message: it is a hint for those above, the session stays.
        if let Some(slot) = self.by_addr.find(&addr, &self.peers)
            && let Some((generation, _)) = self.peers.at(slot)
        {
            out.push(Output::Refused { node: NodeId::new(slot, generation), code });
        }
    }
}

/// An attachment's place counted from the beginning of the plain packet.
#[inline]
fn shift(attached: Option<&Attachment>) -> Option<Attachment> {
    attached.map(|a| Attachment { at: a.at.saturating_sub(Short::LEN), ..a.clone() })
}
