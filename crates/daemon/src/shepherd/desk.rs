//! The shepherd's Unix socket: who is connected, what they say, what they are told. On a thread of its own.
//!
//! Both ways are bounded: of what a caller says only a little waits to be heard, then it is not read any more; and a task that does not
//! read what it is told is shown out, because nothing of it may be left out.

use crate::platform::Waker;
use crate::shepherd::words;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::AcceptConn;
use phalanx_api::jobs::{self, FRAME_MAX, Parcel, frame_length};
use phalanx_api::run::{INPUT, ToConsoleShepherd};
use phalanx_api::{casts, reduce};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Only its user may ask a shepherd.
const SOCKET_MODE: u32 = 0o600;

/// What one caller has said that nobody has heard yet.
const UNHEARD_MAX: usize = 16;
/// Bytes that a caller was told and has not read.
const UNREAD_MAX: usize = 64 << 20;

/// A connection.
pub(super) type Caller = u64;

/// Something a caller said, or that it is gone.
pub(super) enum Heard {
    Came(Line),
    Task(jobs::ToShepherd),
    Daemon(words::ToShepherd),
    Console(ToConsoleShepherd),
    /// For rank 0; nothing at its end.
    Input(Vec<u8>),
    /// A frame was written to who is counted.
    Took,
    Parcel(Parcel, Vec<u8>),
    Gather(u64, Vec<u8>),
    /// A frame for all tasks, as it is.
    Cast(Vec<u8>),
    Gone,
}

/// The way to a caller.
pub(super) struct Line {
    to: UnboundedSender<Vec<u8>>,
    /// Bytes that are not written yet.
    unread: Arc<AtomicUsize>,
    /// Whether each frame that was written is told of.
    counted: Arc<AtomicBool>,
    /// Whose process it is.
    user: u32,
}

/// Something heard. The caller may say more once this is dropped.
pub(super) struct Spoken {
    pub(super) caller: Caller,
    pub(super) heard: Heard,
    /// Kept by who is not done with what was said.
    pub(super) place: Option<OwnedSemaphorePermit>,
}

/// What callers say, in the order in which they said it.
pub(super) struct Desk {
    pub(super) spoken: mpsc::Receiver<Spoken>,
    waker: Arc<OnceLock<Waker>>,
    callers: BTreeMap<Caller, Line>,
    /// Those who do not read what they are told.
    pub(super) deaf: Vec<Caller>,
}

impl Desk {
    /// Listens at `path`: with the socket that the daemon has made for it, if it has.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = inherited(path).map_or_else(|| bind(path), Ok)?;
        listener.set_nonblocking(true)?;
        let listener = runtime.block_on(async { UnixListener::from_std(listener) })?;
        let (tell, spoken) = mpsc::channel();
        let waker = Arc::<OnceLock<Waker>>::default();
        let ear = Ear { tell, waker: Arc::clone(&waker) };
        std::thread::Builder::new().name("desk".into()).spawn(move || runtime.block_on(accept(listener, ear)))?;
        Ok(Self { spoken, waker, callers: BTreeMap::new(), deaf: Vec::new() })
    }

    /// Who is to be woken when something was heard.
    pub(super) fn wakes(&self, waker: Waker) {
        let _ = self.waker.set(waker);
    }

    pub(super) fn came(&mut self, caller: Caller, line: Line) {
        self.callers.insert(caller, line);
    }

    /// Whose process a caller is.
    pub(super) fn user(&self, caller: Caller) -> Option<u32> {
        self.callers.get(&caller).map(|line| line.user)
    }

    /// Each frame that this caller has been written is told of from now on.
    pub(super) fn count(&mut self, caller: Caller) {
        if let Some(line) = self.callers.get(&caller) {
            line.counted.store(true, Ordering::Relaxed);
        }
    }

    /// True when everybody was written all that they were told.
    pub(super) fn is_quiet(&self) -> bool {
        self.callers.values().all(|line| line.unread.load(Ordering::Relaxed) == 0 || line.to.is_closed())
    }

    /// Who is shown out hears what was said to it before.
    pub(super) fn show_out(&mut self, caller: Caller) {
        self.callers.remove(&caller);
    }

    pub(super) fn say(&mut self, caller: Caller, words: &impl serde::Serialize) {
        let words = serde_json::to_vec(words).unwrap_or_default();
        if words.len() >= FRAME_MAX {
            return tracing::warn!("a view is too large to be shown");
        }
        self.send(caller, jobs::words(&words));
    }

    pub(super) fn send(&mut self, caller: Caller, frame: Vec<u8>) {
        let Some(line) = self.callers.get(&caller) else { return };
        if line.unread.fetch_add(frame.len(), Ordering::Relaxed) > UNREAD_MAX {
            return self.deaf.push(caller);
        }
        // It may just have gone.
        let _ = line.to.send(frame);
    }
}

/// The socket of a shepherd that listens at `path`; what was there before is replaced.
pub(crate) fn bind(path: &Path) -> io::Result<net::UnixListener> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = net::UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
    Ok(listener)
}

/// A user other than the one who may ask shepherds may ask the one that listens here, too.
pub(crate) fn admit(path: &Path, (user, group): (u32, u32)) -> io::Result<()> {
    std::os::unix::fs::chown(path, Some(user), Some(group))
}

/// A socket, when the daemon has made it: our standard input.
fn inherited(path: &Path) -> Option<net::UnixListener> {
    let file = io::stdin().as_fd().try_clone_to_owned().ok()?;
    let listens = getsockopt(&file, AcceptConn).ok()?;
    let listener = net::UnixListener::from(file);
    let is_ours = listener.local_addr().ok()?.as_pathname() == Some(path);
    (listens && is_ours).then_some(listener)
}

#[derive(Clone)]
struct Ear {
    tell: mpsc::Sender<Spoken>,
    waker: Arc<OnceLock<Waker>>,
}

impl Ear {
    /// False when nobody listens any more.
    fn hear(&self, caller: Caller, heard: Heard, place: Option<OwnedSemaphorePermit>) -> bool {
        let told = self.tell.send(Spoken { caller, heard, place }).is_ok();
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
        told
    }
}

async fn accept(listener: UnixListener, ear: Ear) {
    let mut next: Caller = 0;
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: those who wait are served later.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        next += 1;
        tokio::spawn(serve(stream, next, ear.clone()));
    }
}

async fn serve(stream: UnixStream, caller: Caller, ear: Ear) {
    // A socket that does not say whose it is belongs to nobody.
    let user = stream.peer_cred().map_or(u32::MAX, |c| c.uid());
    let (mut from, to) = stream.into_split();
    let (tell, told) = unbounded_channel();
    let (unread, counted) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let line = Line { to: tell, unread: Arc::clone(&unread), counted: Arc::clone(&counted), user };
    ear.hear(caller, Heard::Came(line), None);
    let count = ear.clone();
    let writing = tokio::spawn(write(to, told, unread, move || {
        if counted.load(Ordering::Relaxed) {
            count.hear(caller, Heard::Took, None);
        }
    }));
    let room = Arc::new(Semaphore::new(UNHEARD_MAX));
    while let Some(heard) = read(&mut from).await {
        let place = Arc::clone(&room).acquire_owned().await.ok();
        if !ear.hear(caller, heard, place) {
            break;
        }
    }
    ear.hear(caller, Heard::Gone, None);
    // What it was told last it may still read.
    let _ = writing.await;
}

async fn write(
    mut to: tokio::net::unix::OwnedWriteHalf,
    mut told: UnboundedReceiver<Vec<u8>>,
    unread: Arc<AtomicUsize>,
    took: impl Fn(),
) {
    while let Some(frame) = told.recv().await {
        if to.write_all(&frame).await.is_err() {
            return;
        }
        unread.fetch_sub(frame.len(), Ordering::Relaxed);
        took();
    }
}

/// The next frame; `None` at the end, and when it makes no sense.
async fn read(from: &mut (impl AsyncRead + Unpin)) -> Option<Heard> {
    let mut head = [0; 4];
    from.read_exact(&mut head).await.ok()?;
    let mut body = vec![0; frame_length(head)?];
    from.read_exact(&mut body).await.ok()?;
    let (&kind, body) = body.split_first()?;
    match kind {
        jobs::PARCEL => Parcel::parse(body).map(|(parcel, message)| Heard::Parcel(parcel, message.to_vec())),
        casts::CAST => {
            let (heading, data) = casts::framed(body)?;
            Some(Heard::Cast(casts::frame(heading, data)))
        }
        reduce::GATHER => reduce::given(body).map(|(number, value)| Heard::Gather(number, value.to_vec())),
        jobs::WORDS => {
            let task = serde_json::from_slice(body).map(Heard::Task);
            let daemon = task.or_else(|_| serde_json::from_slice(body).map(Heard::Daemon));
            daemon.or_else(|_| serde_json::from_slice(body).map(Heard::Console)).ok()
        }
        INPUT => Some(Heard::Input(body.to_vec())),
        _ => None,
    }
}
