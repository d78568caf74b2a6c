//! The scribe: writes down who is there and which keys the cluster has, on a thread of its own. A disk may take seconds to
//! sync, and a node that waited for it would miss its beats.

use crate::store::{Key, Store, StoreError};
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Changes that come together are written together, and not while others wait for a processor: who is there is needed after a restart.
const GATHER: Duration = Duration::from_millis(250);
/// Between two tries on a disk that refuses.
const RETRY: Duration = Duration::from_secs(5);

/// Writes to the store of an agent. When it is dropped, what was last said is on the disk, or was refused.
#[derive(Debug)]
pub(super) struct Scribe {
    notes: Option<mpsc::Sender<Note>>,
    thread: Option<JoinHandle<()>>,
}

enum Note {
    Members(Vec<SocketAddr>),
    Keys(Vec<Key>, u64),
    Zone(String),
}

/// What is to be written: of each kind the last word.
#[derive(Default)]
struct Desk {
    members: Option<Vec<SocketAddr>>,
    keys: Option<(Vec<Key>, u64)>,
    zone: Option<String>,
}

impl Scribe {
    pub(super) fn new(store: Store) -> io::Result<Self> {
        let (notes, said) = mpsc::channel();
        let builder = std::thread::Builder::new().name("scribe".into()).stack_size(128 * 1024);
        let thread = builder.spawn(move || write(&store, &said))?;
        Ok(Self { notes: Some(notes), thread: Some(thread) })
    }

    /// These are there now.
    pub(super) fn keep(&self, members: Vec<SocketAddr>) {
        self.note(Note::Members(members));
    }

    /// These are the cluster's keys now.
    pub(super) fn keep_keys(&self, keys: Vec<Key>, epoch: u64) {
        self.note(Note::Keys(keys, epoch));
    }

    /// The node is in this zone now.
    pub(super) fn keep_zone(&self, zone: String) {
        self.note(Note::Zone(zone));
    }

    fn note(&self, note: Note) {
        if let Some(sender) = &self.notes {
            // The thread ends only with us.
            let _ = sender.send(note);
        }
    }
}

impl Drop for Scribe {
    fn drop(&mut self) {
        self.notes = None;
        if let Some(thread) = self.thread.take() {
            // It holds nothing that a panic could have broken.
            let _ = thread.join();
        }
    }
}

impl Desk {
    fn take(&mut self, note: Note) {
        match note {
            Note::Members(members) => self.members = Some(members),
            Note::Keys(keys, epoch) => self.keys = Some((keys, epoch)),
            Note::Zone(zone) => self.zone = Some(zone),
        }
    }

    /// Takes what else is said within a moment; keys are not waited with.
    fn gather(&mut self, said: &mpsc::Receiver<Note>) {
        let until = Instant::now() + GATHER;
        while self.keys.is_none()
            && let Ok(note) = said.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            self.take(note);
        }
        said.try_iter().for_each(|note| self.take(note));
    }

    /// Writes all of it; what was refused stays.
    fn write(&mut self, store: &Store) -> Result<(), StoreError> {
        if let Some((keys, epoch)) = &self.keys {
            store.keep_keys(keys, *epoch)?;
            self.keys = None;
        }
        if let Some(members) = &self.members {
            store.keep_members(members.iter().copied())?;
            self.members = None;
        }
        if let Some(zone) = &self.zone {
            store.keep_zone(zone)?;
            self.zone = None;
        }
        Ok(())
    }
}

fn write(store: &Store, said: &mpsc::Receiver<Note>) {
    let (mut desk, mut refused) = (Desk::default(), false);
    while let Ok(note) = said.recv() {
        desk.take(note);
        desk.gather(said);
        loop {
            match desk.write(store) {
                Ok(()) => {
                    if std::mem::take(&mut refused) {
                        tracing::info!("the disk takes what we write again");
                    }
                    break;
                }
                Err(why) if !std::mem::replace(&mut refused, true) => {
                    tracing::error!("{why}; tried again every {} s", RETRY.as_secs());
                }
                Err(_) => {}
            }
            match said.recv_timeout(RETRY) {
                Ok(newer) => desk.take(newer),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}
