//! FI-6: kills roots in their waves, one after the other.

use super::Guard;
use crate::check::{Checker, Verdict};
use crate::company::{Chain, Host, Moment, Note};
use crate::fault::Fault;
use phalanx_core::Instant;
use phalanx_protocol::view::ViewId;

/// Waits for waves.
pub struct Ambush {
    chain: Chain,
    waves: u32,
    deaths: u32,
    /// Who leads.
    root: Option<u32>,
    /// The newest view.
    newest: ViewId,
    is_over: bool,
    guard: Option<Guard>,
}

impl Ambush {
    /// Of these deaths, if a guard allows them.
    #[must_use]
    pub fn new(chain: Chain, guard: Option<Guard>) -> Self {
        Self { chain, waves: 0, deaths: 0, root: None, newest: ViewId::FIRST, is_over: false, guard }
    }

    fn strike(&mut self, moment: Moment, node: u32, verdict: &mut Verdict) {
        let Chain { after, deaths, moment: when, host } = self.chain;
        let is_due = !self.is_over && moment == when && self.waves > after && self.deaths < deaths;
        if is_due && self.guard.as_ref().is_none_or(|g| g.kill(node)) {
            self.deaths += 1;
            verdict.inflict(if host { Fault::crash_host(node) } else { Fault::crash(node) });
        }
    }
}

impl Checker<Host> for Ambush {
    fn name(&self) -> &'static str {
        "ambush"
    }

    fn note(&mut self, _: Instant, node: u32, note: &Note, verdict: &mut Verdict) {
        match note {
            Note::Begun(..) => {
                self.waves += 1;
                self.root = Some(node);
                self.strike(Moment::Begun, node, verdict);
            }
            Note::Settled(..) => self.strike(Moment::Settled, node, verdict),
            Note::Installed { view, .. } if view.id().number >= self.newest.number => {
                if let Some(root) = self.root.take_if(|root| *root != node) {
                    self.strike(Moment::Installed, root, verdict);
                }
                self.newest = view.id();
            }
            _ => {}
        }
    }

    fn healed(&mut self, _: Instant, _: &crate::check::Cluster<'_, Host>, _: &mut Verdict) {
        self.is_over = true;
    }
}
