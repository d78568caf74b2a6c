//! A bare node: the same tree and the same sockets without any protocol. The yardstick of a wave on loopback.
//!
//! It hands a message on to its children, and answers its parent when all of them have answered. Nothing is sealed, numbered or sent
//! again. Pings measure what a message costs while others talk (PM-1). Where hops are slow, what it sends leaves later, as a task's does.

use super::serve::{Node, Say};
use super::words::{Answer, Order};
use crate::error::Error;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use phalanx_daemon::Waker;
use phalanx_protocol::view::Task;
use phalanx_protocol::view::tree::Tree;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// As long as the packet of a notice is with its seal (an acknowledgement has 83 bytes).
pub(super) const LEN: usize = 96;
/// Nobody is left out.
const NOBODY: u32 = u32::MAX;

const DOWN: u8 = 1;
const UP: u8 = 2;
const PING: u8 = 3;
const PONG: u8 = 4;

type Frame = [u8; LEN];

/// Whom a frame is for.
#[derive(Clone, Copy)]
pub(super) enum To {
    Parent,
    /// Which of the children.
    Child(usize),
}

/// Plain sockets with a parent and children.
pub(super) trait Plain: Sized {
    /// Opens one; `crowded` when it shares its thread.
    fn open(crowded: bool) -> io::Result<(Self, SocketAddr)>;
    /// Meets its neighbours.
    fn meet(&mut self, parent: Option<SocketAddr>, children: Vec<SocketAddr>) -> io::Result<()>;
    /// Takes what the parent opened.
    fn take(&mut self) -> io::Result<()>;
    fn send(&mut self, to: To, frame: &Frame) -> io::Result<()>;
    /// What has come to a part; `None` when that was nothing.
    fn receive(&mut self, part: u16, frame: &mut Frame) -> io::Result<bool>;
    fn files(&self) -> Vec<(u16, BorrowedFd<'_>)>;
    /// Ends a blocking receive, where there is one.
    fn waker(&self) -> Option<Waker>;
}

/// One datagram socket. Alone, it blocks in its receive.
pub(super) struct BareUdp {
    socket: UdpSocket,
    parent: Option<SocketAddr>,
    children: Vec<SocketAddr>,
    blocks: bool,
}

impl Plain for BareUdp {
    fn open(crowded: bool) -> io::Result<(Self, SocketAddr)> {
        let socket = UdpSocket::bind(("127.0.0.1", 0))?;
        socket.set_nonblocking(crowded)?;
        let at = socket.local_addr()?;
        Ok((Self { socket, parent: None, children: Vec::new(), blocks: !crowded }, at))
    }

    fn meet(&mut self, parent: Option<SocketAddr>, children: Vec<SocketAddr>) -> io::Result<()> {
        (self.parent, self.children) = (parent, children);
        Ok(())
    }

    fn take(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn send(&mut self, to: To, frame: &Frame) -> io::Result<()> {
        let to = match to {
            To::Parent => self.parent,
            To::Child(i) => self.children.get(i).copied(),
        };
        match to {
            Some(to) => self.socket.send_to(frame, to).map(|_| ()),
            None => Ok(()),
        }
    }

    fn receive(&mut self, _: u16, frame: &mut Frame) -> io::Result<bool> {
        match self.socket.recv_from(frame) {
            Ok((len, _)) => Ok(len == LEN),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn files(&self) -> Vec<(u16, BorrowedFd<'_>)> {
        vec![(0, self.socket.as_fd())]
    }

    fn waker(&self) -> Option<Waker> {
        let to = self.socket.local_addr().ok().filter(|_| self.blocks)?;
        let bell = UdpSocket::bind(("127.0.0.1", 0)).ok()?;
        Some(Waker::new(move || {
            // A short frame: only the receive ends.
            let _ = bell.send_to(&[0], to);
        }))
    }
}

/// A stream with the parent and one with each child.
pub(super) struct BareTcp {
    listener: TcpListener,
    parent: Option<TcpStream>,
    has_parent: bool,
    children: Vec<TcpStream>,
}

impl Plain for BareTcp {
    fn open(_: bool) -> io::Result<(Self, SocketAddr)> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let at = listener.local_addr()?;
        Ok((Self { listener, parent: None, has_parent: false, children: Vec::new() }, at))
    }

    fn meet(&mut self, parent: Option<SocketAddr>, children: Vec<SocketAddr>) -> io::Result<()> {
        self.has_parent = parent.is_some();
        for child in children {
            let stream = TcpStream::connect(child)?;
            stream.set_nodelay(true)?;
            self.children.push(stream);
        }
        Ok(())
    }

    fn take(&mut self) -> io::Result<()> {
        if self.has_parent {
            let (stream, _) = self.listener.accept()?;
            stream.set_nodelay(true)?;
            self.parent = Some(stream);
        }
        Ok(())
    }

    fn send(&mut self, to: To, frame: &Frame) -> io::Result<()> {
        let stream = match to {
            To::Parent => self.parent.as_mut(),
            To::Child(i) => self.children.get_mut(i),
        };
        stream.map_or(Ok(()), |stream| stream.write_all(frame))
    }

    fn receive(&mut self, part: u16, frame: &mut Frame) -> io::Result<bool> {
        let stream = match part.checked_sub(1) {
            None => self.parent.as_mut(),
            Some(i) => self.children.get_mut(usize::from(i)),
        };
        // It is ready, and frames are written whole.
        stream.map_or(Ok(false), |stream| stream.read_exact(frame).map(|()| true))
    }

    fn files(&self) -> Vec<(u16, BorrowedFd<'_>)> {
        let children = self.children.iter().zip(1..).map(|(stream, part)| (part, stream.as_fd()));
        self.parent.iter().map(|stream| (0, stream.as_fd())).chain(children).collect()
    }

    fn waker(&self) -> Option<Waker> {
        None
    }
}

/// One node.
pub(super) struct Bare<S> {
    me: u32,
    sockets: S,
    children: Vec<u32>,
    has_parent: bool,
    awaited: usize,
    begun: Instant,
    pinging: Option<Pinging>,
    frame: Frame,
    /// Received by a wait.
    waiting: bool,
    blocks: bool,
    /// How long what is sent takes to leave, and what has not left yet.
    hop: Duration,
    held: VecDeque<(Instant, To, Frame)>,
}

struct Pinging {
    children: usize,
    begun: Instant,
    lasts: Duration,
    rounds: u32,
}

impl<S: Plain> Bare<S> {
    pub(super) fn open(me: u32, crowded: bool) -> Result<(Self, SocketAddr), Error> {
        let (sockets, at) = S::open(crowded)?;
        let bare = Self {
            me,
            blocks: sockets.waker().is_some(),
            sockets,
            children: Vec::new(),
            has_parent: false,
            awaited: 0,
            begun: Instant::now(),
            pinging: None,
            frame: [0; LEN],
            waiting: false,
            hop: Duration::ZERO,
            held: VecDeque::new(),
        };
        Ok((bare, at))
    }

    fn send(&mut self, to: To, frame: &Frame) -> io::Result<()> {
        if self.hop.is_zero() {
            return self.sockets.send(to, frame);
        }
        self.held.push_back((Instant::now() + self.hop, to, *frame));
        Ok(())
    }

    /// Sends what is due.
    fn flush(&mut self) -> io::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        while self.held.front().is_some_and(|held| held.0 <= now)
            && let Some((_, to, frame)) = self.held.pop_front()
        {
            self.sockets.send(to, &frame)?;
        }
        Ok(())
    }

    /// Waits until something has come to a part, no longer than that.
    fn is_ready(&self, part: u16, patience: Duration) -> Result<bool, Error> {
        let files = self.sockets.files();
        let Some((_, file)) = files.iter().find(|f| f.0 == part) else { return Ok(false) };
        let mut ready = [PollFd::new(*file, PollFlags::POLLIN)];
        Ok(ppoll(&mut ready, Some(TimeSpec::from_duration(patience)), None)? > 0)
    }

    fn left(&self) -> Option<Duration> {
        self.held.front().map(|held| held.0.saturating_duration_since(Instant::now()))
    }

    fn meet(&mut self, arity: u32, all: &[SocketAddr]) -> Result<(), Error> {
        let tree = Tree::new(arity, all.len() as u32).map_err(Error::peer("view"))?;
        let (parent, children) = (tree.parent(Task(self.me)), tree.children(Task(self.me)));
        self.children = children.iter().map(|t| t.0).collect();
        self.has_parent = parent.is_some();
        let at = |t: Task| all[t.0 as usize];
        self.sockets.meet(parent.map(at), children.into_iter().map(at).collect())?;
        Ok(())
    }

    /// Hands the wave on; answers at once when nobody is below.
    fn hand_on(&mut self, without: u32, say: &mut Say<'_>) -> io::Result<()> {
        let mut frame = [0; LEN];
        frame[0] = DOWN;
        frame[1..5].copy_from_slice(&without.to_le_bytes());
        self.awaited = 0;
        for i in 0..self.children.len() {
            if self.children[i] != without {
                self.awaited += 1;
                self.send(To::Child(i), &frame)?;
            }
        }
        if self.awaited == 0 { self.answer(say) } else { Ok(()) }
    }

    fn answer(&mut self, say: &mut Say<'_>) -> io::Result<()> {
        if self.has_parent {
            let mut frame = [0; LEN];
            frame[0] = UP;
            return self.send(To::Parent, &frame);
        }
        say(Answer::Took { ns: self.begun.elapsed().as_nanos() as u64 });
        Ok(())
    }

    fn ping(&mut self) -> io::Result<()> {
        let mut frame = [0; LEN];
        frame[0] = PING;
        let children = self.pinging.as_ref().map_or(0, |p| p.children).min(self.children.len());
        self.awaited = children;
        (0..children).try_for_each(|i| self.sockets.send(To::Child(i), &frame))
    }

    fn on_pong(&mut self, say: &mut Say<'_>) -> io::Result<()> {
        self.awaited = self.awaited.saturating_sub(1);
        let Some(pinging) = self.pinging.as_mut().filter(|_| self.awaited == 0) else { return Ok(()) };
        pinging.rounds += 1;
        let took = pinging.begun.elapsed();
        if took < pinging.lasts {
            return self.ping();
        }
        say(Answer::Round { ns: took.as_nanos() as f64 / f64::from(pinging.rounds) });
        self.pinging = None;
        Ok(())
    }

    fn on_frame(&mut self, say: &mut Say<'_>) -> io::Result<()> {
        let frame = self.frame;
        match frame[0] {
            DOWN => self.hand_on(u32::from_le_bytes([frame[1], frame[2], frame[3], frame[4]]), say),
            UP => {
                self.awaited = self.awaited.saturating_sub(1);
                if self.awaited == 0 { self.answer(say) } else { Ok(()) }
            }
            PING => {
                self.frame[0] = PONG;
                self.sockets.send(To::Parent, &self.frame)
            }
            PONG => self.on_pong(say),
            _ => Ok(()),
        }
    }
}

impl<S: Plain> Node for Bare<S> {
    fn obey(&mut self, order: Order, say: &mut Say<'_>) -> Result<(), Error> {
        match order {
            Order::Meet { arity, all } => {
                self.meet(arity, &all)?;
                say(Answer::Done);
            }
            Order::Take => {
                self.sockets.take()?;
                say(Answer::Done);
            }
            Order::Wave { .. } | Order::Warm => {
                let without = if let Order::Wave { without } = order { without } else { NOBODY };
                self.begun = Instant::now();
                self.hand_on(without, say)?;
            }
            Order::Ping { children, ms } => {
                let (begun, lasts) = (Instant::now(), Duration::from_millis(ms));
                self.pinging = Some(Pinging { children, begun, lasts, rounds: 0 });
                self.ping()?;
            }
            Order::Delay { us } => {
                self.hop = Duration::from_micros(us);
                say(Answer::Done);
            }
            Order::Rejoin | Order::End => say(Answer::Done),
        }
        Ok(())
    }

    fn work(&mut self, part: u16, say: &mut Say<'_>) -> Result<(), Error> {
        let was_due = !self.held.is_empty();
        self.flush()?;
        let has = if self.blocks {
            std::mem::take(&mut self.waiting)
        } else if was_due && !self.is_ready(part, Duration::ZERO)? {
            // It was called to send, and a stream would wait here.
            false
        } else {
            self.sockets.receive(part, &mut self.frame)?
        };
        if has {
            self.on_frame(say)?;
        }
        Ok(())
    }

    fn due_in(&self) -> Option<phalanx_core::Duration> {
        self.left().map(|left| phalanx_core::Duration::from_nanos(left.as_nanos() as u64))
    }

    fn files(&self) -> Vec<(u16, BorrowedFd<'_>)> {
        self.sockets.files()
    }

    fn waker(&self) -> Option<Waker> {
        self.sockets.waker()
    }

    fn wait(&mut self) -> Result<(), Error> {
        if let Some(left) = self.left()
            && !self.is_ready(0, left)?
        {
            return Ok(());
        }
        self.waiting = self.sockets.receive(0, &mut self.frame)?;
        Ok(())
    }
}
