//! Tripwires: idle TCP streams between neighbours. The kernel closes them when a process dies, so a crash is known after one
//! network delay; that a wire broke is a suspicion, which the zone confirms (DESIGN.md, crash notice).
//!
//! One thread holds all wires of a process, over one listener that its nodes share. A wire is taken from whoever proves
//! that it knows a key of the cluster (see [`tripwire`](phalanx_wire::tripwire)); strangers are shown out, and counted.
//!
//! A wire that cannot be made is tried again, ever more rarely, and the zone hears nothing of it: where a firewall lets
//! datagrams through and no streams, heartbeats must do, and each alarm would be false. Only a host that refuses the
//! stream is told at once, because its process may be gone; and not again for [`REFUSED_AGAIN`].

use crate::platform::Waker;
use phalanx_protocol::link::seal::KeyRing;
use phalanx_wire::tomorrow;
use phalanx_wire::tripwire::{CHALLENGE, Hello, TAKEN};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{AbortHandle, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

/// How long a stream may take to be made and greeted.
const GREETING: Duration = Duration::from_secs(5);
/// Between tries to make a wire.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(60);
/// A refused wire is told so often at most.
const REFUSED_AGAIN: Duration = Duration::from_secs(30);
/// Streams that were accepted and have not proved themselves; more are closed at once.
const GREETED_MAX: usize = 256;
/// Wires of one pair of nodes, in both directions: a restarted peer may open a new one before the old one is found dead.
const PAIR_MAX: usize = 4;
const BACKLOG: u32 = 1024;
/// What is said through a wire is skipped in pieces of so many bytes.
const SKIPPED: usize = 64;

/// Something happened to a wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// It is up.
    Wired(SocketAddr),
    /// It broke, or was refused.
    Tripped(SocketAddr),
}

/// What happened, for metrics.
#[derive(Debug, Default)]
pub struct Counts {
    /// Wires that are up.
    pub up: AtomicU64,
    /// Wires that broke.
    pub broken: AtomicU64,
    /// Tries that failed.
    pub failed: AtomicU64,
    /// Streams of those who proved nothing.
    pub strangers: AtomicU64,
}

/// All wires of a process.
#[derive(Debug)]
pub struct Wires {
    orders: UnboundedSender<Order>,
    local: SocketAddr,
    ring: Arc<RwLock<Arc<KeyRing>>>,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

/// The wires of one node.
#[derive(Debug)]
pub struct Handle {
    me: SocketAddr,
    orders: UnboundedSender<Order>,
    told: mpsc::Receiver<Told>,
}

#[derive(Debug)]
enum Order {
    Enter(SocketAddr, Ear),
    Wire(SocketAddr, SocketAddr),
    Unwire(SocketAddr, SocketAddr),
    Leave(SocketAddr),
    End,
}

/// Who hears of a node's wires.
#[derive(Debug)]
struct Ear {
    told: mpsc::Sender<Told>,
    waker: Waker,
}

impl Wires {
    /// Listens at `listen`. With `shared`, all nodes that are wired to live behind this one listener.
    ///
    /// # Errors
    /// What the system said.
    pub fn open(listen: SocketAddr, ring: Arc<KeyRing>, shared: bool) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(async {
            let socket = if listen.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // A restarted daemon must have its port at once, though streams of its old life linger.
            socket.set_reuseaddr(true)?;
            socket.bind(listen)?;
            socket.listen(BACKLOG)
        })?;
        let local = listener.local_addr()?;
        let (orders, inbox) = unbounded_channel();
        let (ring, counts) = (Arc::new(RwLock::new(ring)), Arc::<Counts>::default());
        let via = shared.then_some(local);
        let desk = (Arc::clone(&ring), Arc::clone(&counts), via);
        let thread = std::thread::Builder::new().name("wires".into()).spawn(move || {
            let (ring, counts, via) = desk;
            let desk = Desk { ring, counts, via, book: Rc::default() };
            LocalSet::new().block_on(&runtime, desk.serve(&listener, inbox));
        })?;
        Ok(Self { orders, local, ring, counts, thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The wires of the node that others know at `me`; `waker` is called when something is to be heard of them.
    #[must_use]
    pub fn enter(&self, me: SocketAddr, waker: Waker) -> Handle {
        let (tell, told) = mpsc::channel();
        self.order(Order::Enter(me, Ear { told: tell, waker }));
        Handle { me, orders: self.orders.clone(), told }
    }

    /// The cluster's keys have changed; wires that are up stay.
    pub fn set_ring(&self, ring: Arc<KeyRing>) {
        *self.ring.write().unwrap_or_else(PoisonError::into_inner) = ring;
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    fn order(&self, order: Order) {
        // The thread ends only with us.
        let _ = self.orders.send(order);
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        self.order(Order::End);
        if let Some(thread) = self.thread.take() {
            // It holds nothing that a panic could have broken.
            let _ = thread.join();
        }
    }
}

impl Handle {
    /// Holds a wire to the node at `to`.
    pub fn wire(&self, to: SocketAddr) {
        let _ = self.orders.send(Order::Wire(self.me, to));
    }

    /// Lets go of all wires with the node at `to`, whoever made them.
    pub fn unwire(&self, to: SocketAddr) {
        let _ = self.orders.send(Order::Unwire(self.me, to));
    }

    /// The next thing that happened.
    #[must_use]
    pub fn next(&self) -> Option<Told> {
        self.told.try_recv().ok()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Leave(self.me));
    }
}

/// Who is here, and which wires there are. Everything runs on one thread.
#[derive(Default)]
struct Book {
    ears: HashMap<SocketAddr, Ear>,
    /// By our node and its peer.
    wires: HashMap<(SocketAddr, SocketAddr), Vec<(u64, AbortHandle)>>,
    refused: HashMap<(SocketAddr, SocketAddr), Instant>,
    greeted: usize,
    last: u64,
}

#[derive(Clone)]
struct Desk {
    ring: Arc<RwLock<Arc<KeyRing>>>,
    counts: Arc<Counts>,
    /// The listener behind which all nodes are.
    via: Option<SocketAddr>,
    book: Rc<RefCell<Book>>,
}

impl Desk {
    async fn serve(self, listener: &TcpListener, mut orders: UnboundedReceiver<Order>) {
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    Some(Order::Enter(me, ear)) => _ = self.book.borrow_mut().ears.insert(me, ear),
                    Some(Order::Wire(me, to)) => self.enter(me, to, |desk| desk.hold(me, to)),
                    Some(Order::Unwire(me, to)) => self.unwire((me, to)),
                    Some(Order::Leave(me)) => {
                        self.book.borrow_mut().ears.remove(&me);
                        self.cut(|pair| pair.0 == me);
                    }
                    Some(Order::End) | None => return self.cut(|_| true),
                },
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.accept(stream),
                    // Out of descriptors, most likely: others will try again.
                    Err(_) => sleep(Duration::from_millis(10)).await,
                },
            }
        }
    }

    /// Runs what holds a wire, and keeps it with its pair.
    fn enter<F: Future<Output = ()> + 'static>(&self, me: SocketAddr, peer: SocketAddr, hold: impl FnOnce(Self) -> F) {
        let (desk, work) = (self.clone(), hold(self.clone()));
        let mut book = self.book.borrow_mut();
        book.last += 1;
        let number = book.last;
        let task = spawn_local(async move {
            work.await;
            let mut book = desk.book.borrow_mut();
            if let Some(pair) = book.wires.get_mut(&(me, peer)) {
                pair.retain(|w| w.0 != number);
                if pair.is_empty() {
                    book.wires.remove(&(me, peer));
                }
            }
        });
        let pair = book.wires.entry((me, peer)).or_default();
        pair.push((number, task.abort_handle()));
        if pair.len() > PAIR_MAX {
            pair.remove(0).1.abort();
        }
    }

    /// Closes the wires of one pair, without a word to our node.
    fn unwire(&self, pair: (SocketAddr, SocketAddr)) {
        let wires = self.book.borrow_mut().wires.remove(&pair);
        wires.into_iter().flatten().for_each(|w| w.1.abort());
    }

    /// Closes wires, without a word to our nodes.
    fn cut(&self, which: impl Fn((SocketAddr, SocketAddr)) -> bool) {
        self.book.borrow_mut().wires.retain(|&pair, wires| {
            let cut = which(pair);
            wires.iter().filter(|_| cut).for_each(|w| w.1.abort());
            !cut
        });
    }

    /// Makes a wire and holds it until it breaks.
    async fn hold(self, me: SocketAddr, to: SocketAddr) {
        let mut wait = RETRY_FIRST;
        loop {
            let refused = match timeout(GREETING, self.dial(me, to)).await {
                Ok(Ok(stream)) => return self.watch(me, to, stream).await,
                Ok(Err(e)) => e.kind() == ErrorKind::ConnectionRefused,
                Err(_) => false,
            };
            self.counts.failed.fetch_add(1, Ordering::Relaxed);
            if refused && self.may_tell_refused(me, to) {
                return self.tell(me, Told::Tripped(to));
            }
            sleep(wait).await;
            wait = (wait * 2).min(RETRY_LAST);
        }
    }

    async fn dial(&self, me: SocketAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.via.unwrap_or(to)).await?;
        stream.set_nodelay(true)?;
        let mut challenge = [0; CHALLENGE];
        stream.read_exact(&mut challenge).await?;
        let ring = Arc::clone(&self.ring.read().unwrap_or_else(PoisonError::into_inner));
        let mut hello = Hello { from: me, to, key: ring.sealing(), tag: Default::default() };
        if let Some(tag) = ring.prove(hello.key, &hello.covered(&challenge)) {
            hello.tag = tag;
        }
        stream.write_all(&hello.encode()).await?;
        stream.write_all(tomorrow::field()).await?;
        match stream.read_u8().await? {
            TAKEN => Ok(stream),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Somebody opened a stream.
    fn accept(&self, stream: TcpStream) {
        if self.book.borrow().greeted >= GREETED_MAX {
            self.counts.strangers.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.book.borrow_mut().greeted += 1;
        let desk = self.clone();
        spawn_local(async move {
            let greeted = timeout(GREETING, desk.greet(stream)).await;
            desk.book.borrow_mut().greeted -= 1;
            match greeted {
                Ok(Some((hello, stream))) => {
                    desk.enter(hello.to, hello.from, |desk| desk.watch(hello.to, hello.from, stream));
                }
                Ok(None) | Err(_) => _ = desk.counts.strangers.fetch_add(1, Ordering::Relaxed),
            }
        });
    }

    /// Takes a wire from who proves that it may have one, with a node that is here.
    async fn greet(&self, mut stream: TcpStream) -> Option<(Hello, TcpStream)> {
        stream.set_nodelay(true).ok()?;
        let mut challenge = [0; CHALLENGE];
        getrandom::fill(&mut challenge).ok()?;
        stream.write_all(&challenge).await.ok()?;
        let mut bytes = [0; Hello::LENGTH];
        stream.read_exact(&mut bytes).await.ok()?;
        let hello = Hello::parse(&bytes).ok()?;
        let ring = Arc::clone(&self.ring.read().unwrap_or_else(PoisonError::into_inner));
        let proved = ring.is_proved(hello.key, &hello.covered(&challenge), &hello.tag);
        if !proved || !self.book.borrow().ears.contains_key(&hello.to) {
            return None;
        }
        stream.write_u8(TAKEN).await.ok()?;
        stream.write_all(tomorrow::field()).await.ok()?;
        Some((hello, stream))
    }

    /// A wire is silent until it breaks. What a later build may say through it is skipped.
    async fn watch(self, me: SocketAddr, peer: SocketAddr, mut stream: TcpStream) {
        let up = Up::count(&self.counts);
        self.tell(me, Told::Wired(peer));
        let mut skipped = [0; SKIPPED];
        while stream.read(&mut skipped).await.is_ok_and(|n| n > 0) {}
        drop(up);
        self.counts.broken.fetch_add(1, Ordering::Relaxed);
        self.tell(me, Told::Tripped(peer));
    }

    fn may_tell_refused(&self, me: SocketAddr, to: SocketAddr) -> bool {
        let (mut book, now) = (self.book.borrow_mut(), Instant::now());
        book.refused.retain(|_, at| now.duration_since(*at) < REFUSED_AGAIN);
        book.refused.insert((me, to), now).is_none()
    }

    fn tell(&self, me: SocketAddr, told: Told) {
        if let Some(ear) = self.book.borrow().ears.get(&me) {
            // A node that is gone hears nothing.
            let _ = ear.told.send(told);
            ear.waker.wake();
        }
    }
}

/// A wire that is up, for as long as this lives: a task may be aborted.
struct Up<'c>(&'c Counts);

impl<'c> Up<'c> {
    fn count(counts: &'c Counts) -> Self {
        counts.up.fetch_add(1, Ordering::Relaxed);
        Self(counts)
    }
}

impl Drop for Up<'_> {
    fn drop(&mut self) {
        self.0.up.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn ring(key: u8) -> Arc<KeyRing> {
        Arc::new(KeyRing::new(1, [key; 32]))
    }

    fn open(key: u8) -> Wires {
        Wires::open("127.0.0.1:0".parse().unwrap(), ring(key), false).unwrap()
    }

    fn next(handle: &Handle) -> Option<Told> {
        handle.told.recv_timeout(Duration::from_secs(5)).ok()
    }

    fn silent(handle: &Handle) -> bool {
        handle.told.recv_timeout(Duration::from_millis(100)).is_err()
    }

    #[test]
    fn a_wire_is_up_on_both_sides_and_breaks_with_either() {
        let (a, b) = (open(1), open(1));
        let (ha, hb) = (a.enter(a.local(), Waker::new(|| ())), b.enter(b.local(), Waker::new(|| ())));
        ha.wire(b.local());
        assert_eq!((next(&ha), next(&hb)), (Some(Told::Wired(b.local())), Some(Told::Wired(a.local()))));
        assert_eq!(a.counts().up.load(Ordering::Relaxed), 1);
        let gone = b.local();
        drop((hb, b));
        assert_eq!(next(&ha), Some(Told::Tripped(gone)));
        // Nobody listens there any more: told once, then tried in silence.
        ha.wire(gone);
        assert_eq!(next(&ha), Some(Told::Tripped(gone)));
        ha.wire(gone);
        assert!(silent(&ha));
    }

    #[test]
    fn who_lets_go_alarms_only_the_other() {
        let (a, b) = (open(1), open(1));
        let (ha, hb) = (a.enter(a.local(), Waker::new(|| ())), b.enter(b.local(), Waker::new(|| ())));
        ha.wire(b.local());
        assert!(next(&ha).is_some() && next(&hb).is_some());
        hb.unwire(a.local());
        assert_eq!(next(&ha), Some(Told::Tripped(b.local())));
        assert!(silent(&hb));
    }

    #[test]
    fn without_the_key_there_is_no_wire() {
        let (a, b) = (open(1), open(2));
        let (ha, hb) = (a.enter(a.local(), Waker::new(|| ())), b.enter(b.local(), Waker::new(|| ())));
        ha.wire(b.local());
        assert!(silent(&hb) && silent(&ha), "and no alarm: heartbeats must do");
        assert_eq!(b.counts().strangers.load(Ordering::Relaxed), 1);
        let mut stranger = std::net::TcpStream::connect(b.local()).unwrap();
        stranger.write_all(&[0; Hello::LENGTH]).unwrap();
        let mut rest = Vec::new();
        let _ = stranger.read_to_end(&mut rest);
        assert_eq!(rest.len(), CHALLENGE, "a challenge and nothing else");
    }

    #[test]
    fn what_a_later_build_says_through_a_wire_is_skipped() {
        let b = open(1);
        let hb = b.enter(b.local(), Waker::new(|| ()));
        let mut later = std::net::TcpStream::connect(b.local()).unwrap();
        let mut challenge = [0; CHALLENGE];
        later.read_exact(&mut challenge).unwrap();
        let from = later.local_addr().unwrap();
        let mut hello = Hello { from, to: b.local(), key: 1, tag: Default::default() };
        hello.tag = ring(1).prove(1, &hello.covered(&challenge)).unwrap();
        later.write_all(&hello.encode()).unwrap();
        later.write_all(&[7; 3 * SKIPPED]).unwrap();
        assert_eq!(next(&hb), Some(Told::Wired(from)));
        assert!(silent(&hb), "it stays up");
        drop(later);
        assert_eq!(next(&hb), Some(Told::Tripped(from)));
    }

    #[test]
    fn nodes_of_one_process_share_a_listener() {
        let wires = Wires::open("127.0.0.1:0".parse().unwrap(), ring(1), true).unwrap();
        let nodes: Vec<SocketAddr> = (1..=3).map(|n| SocketAddr::from(([127, 0, 0, 1], n))).collect();
        let handles: Vec<Handle> = nodes.iter().map(|&n| wires.enter(n, Waker::new(|| ()))).collect();
        handles[0].wire(nodes[1]);
        handles[0].wire(nodes[2]);
        assert_eq!(next(&handles[1]), Some(Told::Wired(nodes[0])));
        assert_eq!(next(&handles[2]), Some(Told::Wired(nodes[0])));
        assert!(next(&handles[0]).is_some() && next(&handles[0]).is_some());
        let mut handles = handles.into_iter();
        drop(handles.next());
        for handle in handles {
            assert_eq!(next(&handle), Some(Told::Tripped(nodes[0])));
        }
    }
}
