//! CL-1…4: the simulated network passes the suite of the real platforms. Its time passes while somebody waits.

use phalanx_core::{Addr, Buf, Code, Duration, Group, Instant};
use phalanx_daemon::conformance::Bed;
use phalanx_daemon::conformance_tests;
use phalanx_daemon::platform::{LARGEST_DATAGRAM, Platform, Waker, Woke};
use phalanx_sim::{Ctx, Fault, Network, NodeFault, Process, Routers, Setup, Shape, Sim, Topology};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Nodes of a bed, half of them in a segment behind a router.
const NODES: u32 = 64;
/// Datagrams that wait to be received, and to be flushed.
const INBOX: usize = 1024;
const OUTBOX: usize = 2048;
/// Time goes on by so much while nothing happens.
const STEP: Duration = Duration::from_micros(20);

/// What a node's socket has received.
#[derive(Default)]
struct Mailbox {
    datagrams: VecDeque<(Addr, Buf)>,
    trouble: VecDeque<Addr>,
}

type Shared = Arc<Mutex<Mailbox>>;

fn open_box(shared: &Shared) -> std::sync::MutexGuard<'_, Mailbox> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process that is nothing but a socket.
struct Socket(Shared);

enum Ask {
    Send(Addr, Buf),
    Join(u16),
    Leave(u16),
}

impl Process for Socket {
    type Command = Ask;
    type Note = ();

    fn start(&mut self, _: Instant, _: &mut Ctx<'_, Self>) {}

    fn arrived(&mut self, _: Instant, from: Addr, packet: Buf, _: &mut Ctx<'_, Self>) {
        let mut mailbox = open_box(&self.0);
        if mailbox.datagrams.len() < INBOX {
            mailbox.datagrams.push_back((from, packet));
        }
    }

    fn refused(&mut self, _: Instant, to: Addr, _: &mut Ctx<'_, Self>) {
        open_box(&self.0).trouble.push_back(to);
    }

    fn command(&mut self, _: Instant, ask: Ask, net: &mut Ctx<'_, Self>) {
        match ask {
            Ask::Send(to, packet) => net.send(to, packet),
            Ask::Join(group) => net.join_group(group),
            Ask::Leave(group) => net.leave_group(group),
        }
    }

    fn expire(&mut self, _: Instant, _: &mut Ctx<'_, Self>) {}

    fn deadline(&self) -> Instant {
        Instant::NEVER
    }
}

struct SimBed {
    sim: Rc<RefCell<Sim<Socket>>>,
    boxes: Vec<Shared>,
    opened: [Cell<u32>; 2],
}

impl SimBed {
    fn new() -> Self {
        let boxes: Vec<Shared> = (0..NODES).map(|_| Shared::default()).collect();
        let topology =
            Topology::Segments { size: NODES / 2, routers: Routers::Named(Shape::Star), per_router_us: 50.0 };
        let setup = Setup { nodes: NODES, network: Network { topology, ..Network::default() }, ..Setup::default() };
        let sockets = boxes.clone();
        let mut sim = Sim::new(&setup, move |birth| Socket(Arc::clone(&sockets[birth.node as usize])))
            .expect("a network that makes sense");
        sim.run_for(STEP);
        Self { sim: Rc::new(RefCell::new(sim)), boxes, opened: Default::default() }
    }

    fn open_in(&self, segment: usize) -> Simulated {
        let nth = self.opened[segment].replace(self.opened[segment].get() + 1);
        assert!(nth < NODES / 2, "a bed has {} nodes in a segment", NODES / 2);
        let node = segment as u32 * (NODES / 2) + nth;
        let (sim, mailbox) = (Rc::clone(&self.sim), Arc::clone(&self.boxes[node as usize]));
        Simulated { sim, node, mailbox, queue: Vec::new(), called: Arc::default(), groups: Vec::new() }
    }
}

impl Bed for SimBed {
    type Node = Simulated;

    fn open(&self) -> Simulated {
        self.open_in(0)
    }

    fn stranger(&self) -> Addr {
        Addr::Ip(([127, 0, 0, 1], 9).into())
    }

    fn multicast(&self) -> Option<bool> {
        Some(true)
    }

    fn open_behind_router(&self) -> Option<Simulated> {
        Some(self.open_in(1))
    }

    fn real_time(&self) -> bool {
        false
    }
}

/// A node of the simulated network, as a platform.
struct Simulated {
    sim: Rc<RefCell<Sim<Socket>>>,
    node: u32,
    mailbox: Shared,
    queue: Vec<(Addr, Buf, Option<u32>)>,
    called: Arc<AtomicBool>,
    groups: Vec<u16>,
}

impl Platform for Simulated {
    fn local(&self) -> Addr {
        Addr::Local(self.node)
    }

    fn max_datagram(&mut self, _: Addr) -> usize {
        LARGEST_DATAGRAM
    }

    fn send(&mut self, to: Addr, packet: Buf, ticket: Option<u32>) -> Result<(), Code> {
        if matches!(to, Addr::Ip(_)) {
            return Err(Code::InvalidEndpoint);
        }
        if packet.is_empty() || packet.len() > LARGEST_DATAGRAM {
            return Err(Code::InvalidArgs);
        }
        if self.queue.len() >= OUTBOX {
            return Err(Code::LocalResource);
        }
        self.queue.push((to, packet, ticket));
        Ok(())
    }

    fn flush(&mut self, done: &mut impl FnMut(u32, Result<(), Code>)) {
        let mut sim = self.sim.borrow_mut();
        for (to, packet, ticket) in self.queue.drain(..) {
            sim.command(self.node, Ask::Send(to, packet));
            if let Some(ticket) = ticket {
                done(ticket, Ok(()));
            }
        }
    }

    fn receive(&mut self, each: &mut impl FnMut(Addr, &mut [u8])) -> Result<usize, Code> {
        let datagrams = std::mem::take(&mut open_box(&self.mailbox).datagrams);
        let count = datagrams.len();
        for (from, mut packet) in datagrams {
            each(from, packet.bytes_mut());
        }
        Ok(count)
    }

    fn wait(&mut self, until: Instant) -> Woke {
        loop {
            if self.called.swap(false, Ordering::Relaxed) {
                return Woke::Called;
            }
            let mailbox = open_box(&self.mailbox);
            if !mailbox.datagrams.is_empty() || !mailbox.trouble.is_empty() {
                return Woke::Ready;
            }
            drop(mailbox);
            let mut sim = self.sim.borrow_mut();
            let now = sim.now();
            if now >= until {
                return Woke::Deadline;
            }
            sim.run_until((now + STEP).min(until));
        }
    }

    fn waker(&self) -> Waker {
        let called = Arc::clone(&self.called);
        Waker::new(move || called.store(true, Ordering::Relaxed))
    }

    fn now(&self) -> Instant {
        self.sim.borrow().now()
    }

    fn join(&mut self, group: Group) -> Result<(), Code> {
        self.groups.push(group.number);
        self.sim.borrow_mut().command(self.node, Ask::Join(group.number));
        Ok(())
    }

    fn leave(&mut self, group: Group) -> Result<(), Code> {
        let at = self.groups.iter().position(|&g| g == group.number).ok_or(Code::InvalidEndpoint)?;
        self.groups.remove(at);
        self.sim.borrow_mut().command(self.node, Ask::Leave(group.number));
        Ok(())
    }

    fn trouble(&mut self) -> Option<(Addr, Code)> {
        open_box(&self.mailbox).trouble.pop_front().map(|addr| (addr, Code::Unreachable))
    }
}

/// Who closes its socket is gone, and its host says so.
impl Drop for Simulated {
    fn drop(&mut self) {
        self.sim.borrow_mut().fault(Fault::Node(self.node, NodeFault::CrashProcess));
    }
}

conformance_tests!(simulated, SimBed::new());
