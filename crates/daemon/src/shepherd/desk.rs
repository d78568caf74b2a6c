//! The shepherd's Unix socket: who is connected, what they say, what they are told. On a thread of its own.

use crate::platform::Waker;
use crate::shepherd::words;
use phalanx_api::jobs::{self, Parcel, frame_length};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock, mpsc};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Only its user may ask a shepherd.
const SOCKET_MODE: u32 = 0o600;

/// A connection.
pub(super) type Caller = u64;

/// Something a caller said, or that it is gone.
pub(super) enum Heard {
    Came(UnboundedSender<Vec<u8>>),
    Task(jobs::ToShepherd),
    Daemon(words::ToShepherd),
    Parcel(Parcel, Vec<u8>),
    Gone,
}

/// What callers say, in the order in which they said it.
pub(super) struct Desk {
    pub(super) heard: mpsc::Receiver<(Caller, Heard)>,
    waker: Arc<OnceLock<Waker>>,
    callers: BTreeMap<Caller, UnboundedSender<Vec<u8>>>,
}

impl Desk {
    /// Listens at `path`; what was there before is replaced.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = runtime.block_on(async { UnixListener::bind(path) })?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
        let (tell, heard) = mpsc::channel();
        let waker = Arc::<OnceLock<Waker>>::default();
        let ear = Ear { tell, waker: Arc::clone(&waker) };
        std::thread::Builder::new().name("desk".into()).spawn(move || runtime.block_on(accept(listener, ear)))?;
        Ok(Self { heard, waker, callers: BTreeMap::new() })
    }

    /// Who is to be woken when something was heard.
    pub(super) fn wakes(&self, waker: Waker) {
        let _ = self.waker.set(waker);
    }

    pub(super) fn came(&mut self, caller: Caller, to: UnboundedSender<Vec<u8>>) {
        self.callers.insert(caller, to);
    }

    /// Who is shown out hears what was said to it before.
    pub(super) fn show_out(&mut self, caller: Caller) {
        self.callers.remove(&caller);
    }

    pub(super) fn say(&self, caller: Caller, words: &impl serde::Serialize) {
        self.send(caller, jobs::words(&serde_json::to_vec(words).unwrap_or_default()));
    }

    pub(super) fn send(&self, caller: Caller, frame: Vec<u8>) {
        if let Some(to) = self.callers.get(&caller) {
            // It may just have gone.
            let _ = to.send(frame);
        }
    }
}

#[derive(Clone)]
struct Ear {
    tell: mpsc::Sender<(Caller, Heard)>,
    waker: Arc<OnceLock<Waker>>,
}

impl Ear {
    /// False when nobody listens any more.
    fn hear(&self, caller: Caller, heard: Heard) -> bool {
        let told = self.tell.send((caller, heard)).is_ok();
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
    let (mut from, to) = stream.into_split();
    let (tell, told) = unbounded_channel();
    ear.hear(caller, Heard::Came(tell));
    let writing = tokio::spawn(write(to, told));
    while let Some(heard) = read(&mut from).await {
        if !ear.hear(caller, heard) {
            break;
        }
    }
    ear.hear(caller, Heard::Gone);
    // What it was told last it may still read.
    let _ = writing.await;
}

async fn write(mut to: tokio::net::unix::OwnedWriteHalf, mut told: UnboundedReceiver<Vec<u8>>) {
    while let Some(frame) = told.recv().await {
        if to.write_all(&frame).await.is_err() {
            return;
        }
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
        jobs::WORDS => {
            let task = serde_json::from_slice(body).map(Heard::Task);
            task.or_else(|_| serde_json::from_slice(body).map(Heard::Daemon)).ok()
        }
        _ => None,
    }
}
