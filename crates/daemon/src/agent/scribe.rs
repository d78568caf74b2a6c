//! The scribe: writes down who is there, on a thread of its own. A disk may take seconds to sync, and a node that waited for
//! it would miss its beats.

use crate::store::Store;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two tries on a disk that refuses.
const RETRY: Duration = Duration::from_secs(5);

/// Writes to the store of an agent. When it is dropped, what was last said is on the disk, or was refused.
#[derive(Debug)]
pub(super) struct Scribe {
    members: Option<mpsc::Sender<Vec<SocketAddr>>>,
    thread: Option<JoinHandle<()>>,
}

impl Scribe {
    pub(super) fn new(store: Store) -> io::Result<Self> {
        let (members, said) = mpsc::channel();
        let builder = std::thread::Builder::new().name("scribe".into()).stack_size(128 * 1024);
        let thread = builder.spawn(move || write(&store, &said))?;
        Ok(Self { members: Some(members), thread: Some(thread) })
    }

    /// These are there now.
    pub(super) fn keep(&self, members: Vec<SocketAddr>) {
        if let Some(sender) = &self.members {
            // The thread ends only with us.
            let _ = sender.send(members);
        }
    }
}

impl Drop for Scribe {
    fn drop(&mut self) {
        self.members = None;
        if let Some(thread) = self.thread.take() {
            // It holds nothing that a panic could have broken.
            let _ = thread.join();
        }
    }
}

fn write(store: &Store, said: &mpsc::Receiver<Vec<SocketAddr>>) {
    let mut refused = false;
    while let Ok(mut members) = said.recv() {
        loop {
            // Only the last word counts.
            members = said.try_iter().last().unwrap_or(members);
            let Err(why) = store.keep_members(members.iter().copied()) else { break };
            if !std::mem::replace(&mut refused, true) {
                eprintln!("phalanx: {why}; tried again every {} s", RETRY.as_secs());
            }
            match said.recv_timeout(RETRY) {
                Ok(newer) => members = newer,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}
