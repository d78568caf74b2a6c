//! The injector: where rules are switched on and off, and what sits in the way of each packet (FI-3, 004 §5, Table 4).
//!
//! One lies at each injection point of a node, generic over what an address is there (`Addr` on the wire, `NodeId`
//! above the seal). A node that nobody tortures pays sixteen bytes and one comparison: everything else is behind
//! a box that the first rule creates.

use crate::active::Active;
use crate::count::{Counters, Tally};
use crate::rule::{Rule, RuleError};
use phalanx_core::buf::Attachment;
use phalanx_core::{Buf, Code, Duration, Fingerprint, Instant};
use std::fmt::{self, Debug};
use std::hash::Hash;

/// Injects faults by rule. `Clone + Eq` and deterministic, so that it can live inside machines.
///
/// The driver asks [`Injector::send`] before each packet it sends and fetches [`Injector::take_injected`]
/// afterwards; it pushes each packet it receives through [`Injector::receive`], and calls [`Injector::expire`]
/// when [`Injector::deadline`] has passed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Injector<A> {
    seed: u64,
    active: Option<Box<Active<A>>>,
}

/// A rule that was switched on. Numbers are not used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RuleId(pub u32);

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What becomes of a packet that is about to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Outcome {
    /// Send it.
    Pass,
    /// Do not send it, and report success.
    Drop,
    /// Do not send it; the call fails with this code and changes nothing.
    Refuse(Code),
    /// Accept it, and turn its status into this error later.
    FailLater {
        /// The status it ends with.
        code: Code,
        /// Whether to send it all the same.
        deliver: bool,
        /// How much later.
        after: Duration,
    },
}

impl<A: Copy + Eq + Debug> Injector<A> {
    /// An injector without rules. Two with the same seed and the same calls inject the same faults (FI-2).
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed, active: None }
    }

    /// True when it has no rules and holds nothing: every call is the identity.
    #[inline]
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.active.as_ref().is_none_or(|a| a.is_idle())
    }

    /// True when it never had a rule: it holds nothing, and nothing that it did can show later.
    #[inline]
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.active.is_none()
    }

    /// Switches a rule on, for all peers. Its window begins now.
    ///
    /// # Errors
    /// What is wrong with the rule; a rule with `only` needs [`Injector::add_for`].
    pub fn add(&mut self, now: Instant, rule: Rule) -> Result<RuleId, RuleError> {
        if rule.only.is_some() {
            return Err(RuleError::PeersUnresolved);
        }
        self.activate(now, rule, None)
    }

    /// Switches a rule on for these peers alone: where packets go to on the send side, come from on the other.
    ///
    /// # Errors
    /// What is wrong with the rule.
    pub fn add_for(&mut self, now: Instant, rule: Rule, peers: &[A]) -> Result<RuleId, RuleError> {
        self.activate(now, rule, Some(peers.to_vec()))
    }

    fn activate(&mut self, now: Instant, rule: Rule, peers: Option<Vec<A>>) -> Result<RuleId, RuleError> {
        rule.check()?;
        let seed = self.seed;
        self.active.get_or_insert_default().add(now, seed, rule, peers).map(RuleId)
    }

    /// Switches a rule off. What it holds is due at once, in the order in which it came; nothing is lost.
    pub fn heal(&mut self, id: RuleId) -> bool {
        self.active.as_mut().is_some_and(|a| a.heal(id.0))
    }

    /// Switches all rules off.
    pub fn heal_all(&mut self) {
        if let Some(active) = &mut self.active {
            active.heal_all();
        }
    }

    /// The rules that are switched on, in the order in which they were.
    pub fn rules(&self) -> impl Iterator<Item = (RuleId, &Rule, &Tally)> {
        self.active.iter().flat_map(|a| a.rules()).map(|(id, rule, tally)| (RuleId(id), rule, tally))
    }

    /// Whom injected copies may hit: the first [`MAX_TARGETS`](crate::MAX_TARGETS) of these. Without any, a copy goes where the message at hand goes: a duplicate.
    pub fn set_targets(&mut self, targets: &[A]) {
        if self.active.is_some() || !targets.is_empty() {
            self.active.get_or_insert_default().set_targets(targets);
        }
    }

    /// The protocol has reached the state of that name, such as `wave-started`: wakes the rules that wait for it (FI-6).
    pub fn signal(&mut self, now: Instant, name: &str) {
        if let Some(active) = &mut self.active {
            active.signal(now, name);
        }
    }

    /// A packet is about to be sent to `to`: drop, inject, invocation and operation faults.
    pub fn send(&mut self, now: Instant, to: A, packet: &Buf) -> Outcome {
        match &mut self.active {
            None => Outcome::Pass,
            Some(active) => active.send(now, to, packet),
        }
    }

    /// A copy to be sent beside what the layers send, and where to. Ask until there is none.
    pub fn take_injected(&mut self) -> Option<(A, Buf)> {
        self.active.as_mut()?.take_injected()
    }

    /// A packet has arrived from `from`: delay, modify, reorder and invocation faults.
    ///
    /// Calls `deliver` for everything that is to be taken in now, in order; `bytes` may be changed in place.
    /// Returns the code when the receive call is to fail: then nothing was taken in, and the packet comes with the
    /// next one or after [`RETRY_AFTER`](crate::RETRY_AFTER), as from a socket that is asked again.
    pub fn receive(
        &mut self,
        now: Instant,
        from: A,
        bytes: &mut [u8],
        attached: Option<&Attachment>,
        deliver: &mut impl FnMut(A, &mut [u8], Option<&Attachment>),
    ) -> Option<Code> {
        match &mut self.active {
            None => {
                deliver(from, bytes, attached);
                None
            }
            Some(active) => active.receive(now, from, bytes, attached, deliver),
        }
    }

    /// A buffer is about to be allocated.
    ///
    /// # Errors
    /// The code with which the allocation is to fail.
    pub fn allocate(&mut self, now: Instant) -> Result<(), Code> {
        match &mut self.active {
            None => Ok(()),
            Some(active) => active.allocate(now),
        }
    }

    /// Delivers the held messages that are due, in order.
    pub fn expire(&mut self, now: Instant, deliver: &mut impl FnMut(A, &mut [u8], Option<&Attachment>)) {
        if let Some(active) = &mut self.active {
            active.expire(now, deliver);
        }
    }

    /// The conversation with `peer` is over, and a new one may begin: what is held of the old one is let go, as a network
    /// path that breaks lets go of it. Returns how many messages that were.
    pub fn forget(&mut self, peer: A) -> usize {
        self.active.as_mut().map_or(0, |a| a.forget(peer))
    }

    /// When to call [`Injector::expire`] next; [`Instant::NEVER`] when nothing is held.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.active.as_ref().map_or(Instant::NEVER, |a| a.deadline())
    }

    /// What was done so far (FI-5), by rules that are healed too.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.active.as_ref().map_or(&Counters::NONE, |a| a.counters())
    }
}

impl<A: Copy + Eq + Debug + Hash> Injector<A> {
    /// Feeds what decides about future faults to `print`; counters do not.
    pub fn fingerprint(&self, print: &mut Fingerprint) {
        if let Some(active) = &self.active {
            print.add(&self.seed);
            active.fingerprint(print);
        }
    }
}
