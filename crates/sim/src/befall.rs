//! How faults are done to the nodes of a shard.

use crate::event::{SignalKind, What};
use crate::fault::NodeFault;
use crate::network::World;
use crate::node::{Kind, State, Stream, addr};
use crate::process::Process;
use crate::shard::{Shard, Shared};
use phalanx_core::{Addr, Instant};
use phalanx_fault::{Rule, RuleError};

impl<P: Process> Shard<P> {
    /// Something befalls a node of this shard.
    pub(crate) fn befall(&mut self, shared: Shared<'_, P>, at: Instant, to: u32, fault: NodeFault) {
        let node = &mut self.nodes[(to - self.io.first) as usize];
        let state = node.meta.state;
        match fault {
            NodeFault::CrashProcess if matches!(state, State::Up | State::Paused) => {
                self.die(shared.world, at, to, State::ProcessDown);
            }
            NodeFault::CrashHost if state != State::HostDown => self.die(shared.world, at, to, State::HostDown),
            NodeFault::Restart => {
                if matches!(state, State::Up | State::Paused) {
                    self.die(shared.world, at, to, State::ProcessDown);
                }
                let meta = &mut self.node(to).meta;
                if meta.state != State::Starting {
                    meta.state = State::Starting;
                    self.start(at, to);
                }
            }
            NodeFault::Pause if state == State::Up => node.meta.state = State::Paused,
            NodeFault::Resume if state == State::Paused => {
                node.meta.state = State::Up;
                // What waits in the socket is read before timers are looked at, as event loops do.
                for held in node.held.take().into_iter().flat_map(|h| *h) {
                    self.tell(shared, at, to, held);
                }
                self.rearm(at, to);
            }
            NodeFault::Clock { rate, step_ns } => {
                node.meta.set_clock(at, rate, step_ns);
                self.rearm(at, to);
            }
            NodeFault::HealInjector => {
                if let Some(injector) = node.meta.injector() {
                    injector.heal_all();
                    self.rearm(at, to);
                }
            }
            NodeFault::Disk(fault) => node.meta.extras().disk_fault = fault,
            NodeFault::Loss { inward, outward } => node.meta.set_loss(inward, outward),
            NodeFault::ResetStream(peer) => {
                let ends: Vec<Stream> = node.meta.extras().streams.iter().filter(|s| s.peer == peer).copied().collect();
                for end in ends {
                    let reset = SignalKind::Reset.of(end.id, end.ours);
                    self.io.signal(shared.world, &mut node.meta, at, to, peer, reset);
                }
            }
            NodeFault::CrashProcess | NodeFault::CrashHost | NodeFault::Pause | NodeFault::Resume => {}
        }
    }

    /// Adds a rule to the injector of a node, for these peers, or for all when there are none.
    pub(crate) fn inject(
        &mut self,
        shared: Shared<'_, P>,
        at: Instant,
        to: u32,
        rule: Rule,
        peers: &[u32],
    ) -> Result<(), RuleError> {
        let peers: Vec<Addr> = peers.iter().copied().map(addr).collect();
        let injector = self.node(to).meta.make_injector(shared.world.nodes);
        if peers.is_empty() { injector.add(at, rule) } else { injector.add_for(at, rule, &peers) }.map(|_| ())
    }

    /// Faults of a node end: a pause, a wrong clock, a bad disk, its losses; and its death, when `restart` says so.
    pub(crate) fn heal(&mut self, shared: Shared<'_, P>, at: Instant, restart: bool) {
        for to in self.io.first..self.io.first + self.nodes.len() as u32 {
            let meta = &mut self.node(to).meta;
            meta.heal(at);
            match meta.state {
                State::Paused => self.befall(shared, at, to, NodeFault::Resume),
                State::ProcessDown | State::HostDown if restart => self.befall(shared, at, to, NodeFault::Restart),
                State::Up => self.rearm(at, to),
                _ => {}
            }
        }
    }

    /// The node will start at `at`.
    pub(crate) fn start(&mut self, at: Instant, to: u32) {
        let meta = &mut self.nodes[(to - self.io.first) as usize].meta;
        self.io.cause(meta, to, at, to, What::Start);
    }

    fn rearm(&mut self, at: Instant, to: u32) {
        let meta = &mut self.node(to).meta;
        meta.armed = Instant::NEVER;
        meta.timer = meta.timer.wrapping_add(1);
        self.arm(to, at);
    }

    fn die(&mut self, world: &World, at: Instant, to: u32, state: State) {
        let node = &mut self.nodes[(to - self.io.first) as usize];
        node.process = None;
        node.held = None;
        let meta = &mut node.meta;
        meta.state = state;
        meta.armed = Instant::NEVER;
        meta.timer = meta.timer.wrapping_add(1);
        meta.mark(at, Kind::Crashed, to, state as usize);
        let streams = std::mem::take(&mut meta.extras().streams);
        let groups = std::mem::take(&mut meta.extras().groups);
        for group in groups {
            self.io.leave(world, to, group);
        }
        if state == State::HostDown {
            meta.host = meta.host.wrapping_add(1);
            return;
        }
        // The kernel closes what the process held open: its peers know after one network delay.
        for stream in streams {
            self.io.signal(world, meta, at, to, stream.peer, SignalKind::Close.of(stream.id, stream.ours));
        }
    }
}
