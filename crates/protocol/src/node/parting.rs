//! Peers that nobody needs any more: what was sent to them may still arrive, then the link forgets them.

use crate::link::Link;
use phalanx_core::{Addr, Code, Duration, Instant, NodeId};

/// How long a link that nobody needs any more may take to come to rest.
const PATIENCE: Duration = Duration::from_secs(3);

/// Peers that are not needed any more, and until when their links may still end in good order.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Parting(Vec<(Instant, NodeId)>);

impl Parting {
    /// The link's number for an address, which is needed from now on. `largest` is the largest datagram that the platform carries
    /// there.
    pub(crate) fn reach(&mut self, link: &mut Link, addr: Addr, largest: u16) -> Result<NodeId, Code> {
        let node = link.peer(addr, largest.into())?;
        let Some(i) = self.0.iter().position(|p| p.1 == node) else { return Ok(node) };
        // Reliable traffic was ended: it begins anew.
        self.0.swap_remove(i);
        link.forget(node)?;
        link.peer(addr, largest.into())
    }

    /// Nobody needs this peer any more.
    pub(crate) fn part_with(&mut self, link: &mut Link, now: Instant, addr: Addr) {
        let Some(node) = link.find(addr) else { return };
        if self.0.iter().any(|p| p.1 == node) {
            return;
        }
        let is_proved = link.whereabouts(node).is_some_and(|(_, who)| who.is_some());
        if !is_proved || link.close(now, node).is_err() {
            let _ = link.forget(node);
            return;
        }
        self.0.push((now + PATIENCE, node));
    }

    /// Both sides are done with each other.
    pub(crate) fn on_closed(&mut self, link: &mut Link, node: NodeId) {
        if let Some(i) = self.0.iter().position(|p| p.1 == node) {
            self.0.swap_remove(i);
            let _ = link.forget(node);
        }
    }

    pub(crate) fn expire(&mut self, link: &mut Link, now: Instant) {
        while let Some(i) = self.0.iter().position(|p| p.0 <= now) {
            let (_, node) = self.0.swap_remove(i);
            // It may be gone already.
            let _ = link.forget(node);
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.0.iter().map(|p| p.0).fold(Instant::NEVER, Instant::min)
    }

    pub(crate) fn fingerprint(&self, print: &mut phalanx_core::Fingerprint) {
        for &(at, node) in &self.0 {
            print.instant(at);
            print.add(&node);
        }
    }
}
