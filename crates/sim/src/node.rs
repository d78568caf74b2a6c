//! What the engine keeps for each node, beside its process: two cache lines, and a box for what few nodes need.

use crate::disk::{Disk, DiskFault, Write};
use crate::process::{Process, StreamEvent};
use phalanx_core::fetch::{LINE, fetch_part};
use phalanx_core::{Addr, Buf, Duration, Instant, Rng};
use phalanx_fault::{Injector, MAX_TARGETS};
use std::mem::offset_of;

/// A node: its process, the machine beneath it, and what waits while it is paused.
///
/// Begins with a cache line, so that what is asked for ahead of time are few lines, and the right ones.
#[repr(C, align(64))]
pub(crate) struct Node<P: Process> {
    pub(crate) meta: Meta,
    #[allow(clippy::box_collection)] // Nearly always empty: eight bytes instead of 24, a million times.
    pub(crate) held: Option<Box<Vec<Held<P::Command>>>>,
    pub(crate) process: Option<P>,
}

impl<P: Process> Node<P> {
    /// Asks the processor for what nearly every event needs.
    #[inline]
    pub(crate) fn fetch(&self) {
        fetch_part(self, 0..LINE);
        let process = offset_of!(Self, process);
        fetch_part(self, process..process.saturating_add(P::HOT));
    }
}

/// What came while the node was paused.
pub(crate) enum Held<C> {
    Packet(u32, Buf),
    Stream(u32, StreamEvent),
    Refused(u32),
    Persisted(u64, bool),
    Command(C),
}

/// How a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It has not started yet, or is about to start again.
    Starting,
    /// It runs.
    Up,
    /// It is stopped: nothing happens in it until it is resumed, what comes waits in its socket.
    Paused,
    /// Its process is dead; its host lives, closes its streams and refuses datagrams.
    ProcessDown,
    /// Its host is dead, and silent.
    HostDown,
}

/// The machine beneath a process. What nearly every event needs comes first, in one cache line.
#[repr(C)]
pub(crate) struct Meta {
    pub(crate) state: State,
    /// The clock is wrong, messages are lost here, or an injector is at work: look into the extras.
    odd: bool,
    /// How often the timer expired at that very time.
    spins: u16,
    /// When the timer expired last: the low bits. That a timer comes 2³² ns later to the nanosecond, thousands of times
    /// in a row, does not happen.
    expired: u32,
    /// Events this node has caused.
    pub(crate) number: u32,
    /// The version of the armed timer.
    pub(crate) timer: u32,
    /// When the armed timer event comes.
    pub(crate) armed: Instant,
    /// The chain of all that happened to the process.
    pub(crate) trace: u64,
    pub(crate) bytes_out: u64,
    pub(crate) bytes_in: u64,
    /// The generator of the network and the disk: apart, so that a fault does not change what the process draws.
    pub(crate) chance: Rng,
    /// The process's generator.
    pub(crate) rng: Rng,
    pub(crate) out_free: Instant,
    pub(crate) in_free: Instant,
    pub(crate) boot: u32,
    /// Crashes of the host.
    pub(crate) host: u16,
    extras: Option<Box<Extras>>,
}

/// What few nodes need.
#[derive(Default)]
pub(crate) struct Extras {
    pub(crate) streams: Vec<Stream>,
    pub(crate) groups: Vec<u16>,
    pub(crate) disk: Disk,
    pub(crate) disk_fault: DiskFault,
    disk_free: Instant,
    clock: Clock,
    loss_in: f64,
    loss_out: f64,
    /// At the `wire` point (FI-3).
    pub(crate) injector: Option<Injector<Addr>>,
}

/// One end of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stream {
    pub(crate) peer: u32,
    pub(crate) id: u32,
    /// This end opened it.
    pub(crate) ours: bool,
    pub(crate) open: bool,
}

/// What a call of a process is in the trace.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Started = 1,
    Arrived,
    Expired,
    Stream,
    Refused,
    Persisted,
    Command,
    Crashed,
}

impl Meta {
    pub(crate) fn new(seed: u64, node: u32) -> Self {
        Self {
            rng: Rng::new(seed, u64::from(node)),
            chance: Rng::new(seed, u64::from(node) | 1 << 63),
            trace: u64::from(node),
            armed: Instant::NEVER,
            out_free: Instant::ZERO,
            in_free: Instant::ZERO,
            bytes_out: 0,
            bytes_in: 0,
            expired: 0,
            spins: 0,
            number: 0,
            timer: 0,
            boot: 0,
            host: 0,
            state: State::Starting,
            odd: false,
            extras: None,
        }
    }

    pub(crate) fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    pub(crate) fn peek_extras(&self) -> Option<&Extras> {
        self.extras.as_deref()
    }

    /// The number of the next event this node causes.
    #[inline]
    pub(crate) fn next_number(&mut self) -> u32 {
        let number = self.number;
        self.number = number.wrapping_add(1);
        number
    }

    /// The timer expires; returns how often it did so at this very time before.
    #[inline]
    pub(crate) fn spin(&mut self, at: Instant) -> u16 {
        let expired = at.0 as u32;
        self.spins = if self.expired == expired { self.spins + 1 } else { 0 };
        self.expired = expired;
        self.spins
    }

    /// Adds a call to the trace.
    #[inline]
    pub(crate) fn mark(&mut self, at: Instant, kind: Kind, from: u32, len: usize) {
        let call = (kind as u64) << 60 ^ u64::from(from) << 28 ^ len as u64;
        self.trace = fold(fold(self.trace, at.0), call);
    }

    /// Sets what this node loses of what it receives and sends.
    pub(crate) fn set_loss(&mut self, inward: f64, outward: f64) {
        let extras = self.extras();
        (extras.loss_in, extras.loss_out) = (inward, outward);
        self.judge();
    }

    #[inline]
    pub(crate) fn loses_in(&mut self) -> bool {
        self.odd && self.loses(|x| x.loss_in)
    }

    #[inline]
    pub(crate) fn loses_out(&mut self) -> bool {
        self.odd && self.loses(|x| x.loss_out)
    }

    /// From `at` on, this node's clock runs at `rate` times true time, and steps by `step` now.
    pub(crate) fn set_clock(&mut self, at: Instant, rate: f64, step: i64) {
        let local = self.local(at).0.saturating_add_signed(step);
        let clock = Clock { since: at, local: Instant(local), ppb: (rate * 1e9) as u64 };
        let right = clock.local == at && u128::from(clock.ppb) == BILLION;
        self.extras().clock = if right { Clock::TRUE } else { clock };
        self.judge();
    }

    /// Ends what is wrong with the clock, the disk, the losses and the injector. A clock that ran on keeps what it shows: healing is no time travel.
    pub(crate) fn heal(&mut self, at: Instant) {
        if self.extras.is_some() {
            self.set_clock(at, 1.0, 0);
            self.set_loss(0.0, 0.0);
            self.extras().disk_fault = DiskFault::default();
            if let Some(injector) = &mut self.extras().injector {
                injector.heal_all();
            }
        }
    }

    fn judge(&mut self) {
        self.odd = self
            .extras
            .as_ref()
            .is_some_and(|x| x.clock != Clock::TRUE || x.loss_in > 0.0 || x.loss_out > 0.0 || x.injector.is_some());
    }

    /// The node's injector, when it has one.
    #[inline]
    pub(crate) fn injector(&mut self) -> Option<&mut Injector<Addr>> {
        if self.odd { self.odd_injector() } else { None }
    }

    /// The node's injector, made if need be. Injected copies may go to any node, of the first ones it can name.
    pub(crate) fn make_injector(&mut self, nodes: u32) -> &mut Injector<Addr> {
        if self.extras().injector.is_none() {
            let mut injector = Injector::new(self.chance.u64());
            let targets: Vec<Addr> = (0..nodes).take(MAX_TARGETS).map(Addr::Local).collect();
            injector.set_targets(&targets);
            self.extras().injector = Some(injector);
            self.odd = true;
        }
        self.extras().injector.as_mut().expect("just made")
    }

    /// When the node's timer must ring, by true time: for its process, or for what its injector holds.
    #[inline]
    pub(crate) fn due(&self, deadline: Instant) -> Instant {
        if self.odd { self.odd_due(deadline) } else { deadline }
    }

    /// What the node's clock shows at the true time `at`.
    #[inline]
    pub(crate) fn local(&self, at: Instant) -> Instant {
        if self.odd { self.odd_local(at) } else { at }
    }

    // What `odd` asks for is behind calls of its own: inlined, the extras would be read before `odd` is known, and they
    // are in a cache line that few events need.

    #[cold]
    #[inline(never)]
    fn loses(&mut self, part: impl Fn(&Extras) -> f64) -> bool {
        self.extras.as_ref().is_some_and(|x| self.chance.chance(part(x)))
    }

    #[cold]
    #[inline(never)]
    fn odd_injector(&mut self) -> Option<&mut Injector<Addr>> {
        self.extras.as_mut()?.injector.as_mut()
    }

    #[cold]
    #[inline(never)]
    fn odd_due(&self, deadline: Instant) -> Instant {
        let Some(x) = &self.extras else { return deadline };
        let held = x.injector.as_ref().map_or(Instant::NEVER, Injector::deadline);
        x.clock.global(deadline).min(held)
    }

    #[cold]
    #[inline(never)]
    fn odd_local(&self, at: Instant) -> Instant {
        self.extras.as_ref().map_or(at, |x| x.clock.local(at))
    }

    /// A write, and when it is on the disk.
    pub(crate) fn write(
        &mut self,
        at: Instant,
        takes: Duration,
        token: u64,
        key: u64,
        bytes: &[u8],
    ) -> (Instant, Write) {
        let (boot, host) = (self.boot, self.host);
        let fault = self.extras().disk_fault;
        let outcome = fault.outcome(&mut self.chance);
        let extras = self.extras();
        let done = (at + takes + fault.delay).max(extras.disk_free);
        extras.disk_free = done;
        (done, Write { token, key, bytes: bytes.to_vec(), outcome, boot, host })
    }
}

/// One step of a trace.
#[inline]
pub(crate) fn fold(state: u64, n: u64) -> u64 {
    let mixed = (state ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

/// A clock that may run slow, fast, or be off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Clock {
    /// The true time of the last change.
    since: Instant,
    /// What the clock showed then.
    local: Instant,
    /// Its rate in billionths of the true one; never zero, a stopped clock is a paused node.
    ppb: u64,
}

const BILLION: u128 = 1_000_000_000;

impl Clock {
    const TRUE: Self = Self { since: Instant::ZERO, local: Instant::ZERO, ppb: BILLION as u64 };

    fn local(&self, at: Instant) -> Instant {
        let ran = u128::from(at.since(self.since).0) * u128::from(self.ppb.max(1)) / BILLION;
        self.local + Duration(u64::try_from(ran).unwrap_or(u64::MAX))
    }

    fn global(&self, local: Instant) -> Instant {
        if local == Instant::NEVER {
            return local;
        }
        let takes = (u128::from(local.since(self.local).0) * BILLION).div_ceil(u128::from(self.ppb.max(1)));
        self.since + Duration(u64::try_from(takes).unwrap_or(u64::MAX))
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::TRUE
    }
}

/// Where a node is, as its peers write it.
pub(crate) fn addr(node: u32) -> Addr {
    Addr::Local(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_nodes_fit_beside_their_processes() {
        assert!(size_of::<Meta>() <= 120, "{} bytes", size_of::<Meta>());
        assert_eq!(offset_of!(Meta, rng), LINE, "what each event needs is one cache line");
    }

    #[test]
    fn a_timer_set_by_a_wrong_clock_never_fires_early_on_it() {
        let mut meta = Meta::new(1, 0);
        for (rate, step) in [(0.3, 0), (1.000_001, -5_000), (7.77, 123)] {
            meta.set_clock(Instant(1_000_000), rate, step);
            for d in [0, 1, 999, 123_456_789] {
                let deadline = meta.local(Instant(1_000_000)) + Duration(d);
                let fires = meta.due(deadline);
                assert!(meta.local(fires) >= deadline);
                assert!(fires.0 <= 1_000_000 || meta.local(fires - Duration(1)) < deadline);
            }
        }
    }
}
