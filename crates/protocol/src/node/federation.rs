//! Other data centres: what a federation hears and says goes through the node's link (TG-9).
//!
//! Data centres are clusters of their own with a key in common: nothing that is heard at this port is told to an engine.

use super::route::Errand;
use super::{Node, Out};
use crate::federation::{Federation, Home, Input, Output};
use crate::member::Engine;
use phalanx_core::{Addr, Buf, Endpoint, Instant, Machine, Port, Sink};

/// Where federations speak and listen.
pub(super) const FEDERATION: Port = Port(7);

/// The federation's decisions. What changed is asked of it.
struct FederationOut<'n>(&'n mut Vec<Errand>);

impl<'o> Sink<Output<'o>> for FederationOut<'_> {
    fn push(&mut self, output: Output<'o>) {
        match output {
            Output::Abroad { to, bytes } => self.0.push(Errand::Abroad { to, bytes: Buf::copy_of(bytes) }),
            Output::Inside { to, bytes } => self.0.push(Errand::Inside { to, bytes: Buf::copy_of(bytes) }),
            Output::Event(_) => {}
        }
    }
}

impl<E: Engine> Node<E> {
    /// Exchanges summaries with other data centres from now on.
    #[must_use]
    pub fn with_federation(mut self, federation: Federation) -> Self {
        self.federation = Some(Box::new(federation));
        self
    }

    /// What is known of other data centres, to be looked at.
    #[must_use]
    pub fn federation(&self) -> Option<&Federation> {
        self.federation.as_deref()
    }

    pub(super) fn tell_federation(&mut self, now: Instant, from: Addr, bytes: &[u8]) {
        let Some(mut federation) = self.federation.take() else { return };
        // Whoever hears passes on, to those whom it has links with now.
        let mut out = FederationOut(&mut self.errands);
        federation.handle(now, Input::Home(home(self.engine.as_ref(), self.management.as_deref())), &mut out);
        federation.handle(now, Input::Heard { from, bytes }, &mut out);
        self.federation = Some(federation);
    }

    pub(super) fn expire_federation(&mut self, now: Instant) {
        if self.federation.as_ref().is_none_or(|f| f.deadline() > now) {
            return;
        }
        let Some(mut federation) = self.federation.take() else { return };
        let mut out = FederationOut(&mut self.errands);
        federation.handle(now, Input::Home(home(self.engine.as_ref(), self.management.as_deref())), &mut out);
        federation.expire(now, &mut out);
        self.federation = Some(federation);
    }

    /// Sends what a federation says, to another data centre or to a member. It may be lost: the next summary says the same.
    pub(super) fn run_federation(&mut self, now: Instant, to: Addr, bytes: &Buf, is_inside: bool, out: &mut impl Out) {
        let Ok(node) = self.reach(to) else { return };
        let to = Endpoint { node, port: FEDERATION };
        let mut out = super::route::LinkOut { heard: &mut self.heard, out };
        let _ = match is_inside {
            true => self.link.send_reliable(now, FEDERATION, to, bytes.bytes()),
            false => self.link.send(now, FEDERATION, to, bytes.bytes(), &mut out).map(drop),
        };
    }
}

/// As the engine of [`Node::engine`] has it.
fn home<E: Engine>(engine: Option<&E>, management: Option<&E>) -> Home {
    engine.or(management).map(|engine| Home::of(engine, engine.speaks())).unwrap_or_default()
}
