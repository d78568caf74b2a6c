//! The directory in the program's own memory (TG-4): which members are there, what they offer and what they say of
//! themselves, to be asked without asking anybody.
//!
//! 003 §5.1 keeps the yellow pages in a block of shared memory, which services read as their own. Here each program holds
//! a copy that follows its daemon: a look-up is a load of a pointer and a search in a table that never changes, so any
//! number of threads look things up while a new table is made beside them. ⚠ A block that several processes map would be one
//! copy for all of them; it would also let one of them see another's half-written entry, and tie all of them to one layout
//! of one build.
//!
//! ```no_run
//! use phalanx_client::directory::Query;
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let directory = phalanx_client::blocking::Client::from_environment().directory()?; // once
//! let cache = Query::parse("name == cache and partition == 4 and load < 0.75")?; // once
//!
//! for found in directory.now().find(&cache) { // as often as you like
//!     println!("{} {:?}", found.node(), found.addr());
//! }
//!
//! let mut caches = directory.watch(cache); // kept up to date as well
//! println!("{} of them", caches.found().len()); // whatever the query, one load
//! while let Some(change) = caches.wait(std::time::Duration::from_secs(60)) {
//!     println!("{change:?}");
//! }
//! # Ok(()) }
//! ```
//!
//! # How old it may be
//!
//! What the daemon learns is here a moment later: it passes it on as it happens. The daemon's loop is heard once a
//! second, and tells a sum over all members, so that a copy that missed anything is taken anew. When nothing is heard for
//! [`SILENCE`], or the stream breaks, [`Directory::stale_since`] says since when nothing is certain; what was known is
//! still found. Then the daemon is tried again until it answers, and a new copy is taken as soon as it has found the others
//! again. So what is found is at most three seconds old, or said to be older.
//!
//! What the daemon itself knows of other nodes is as old as its engine makes it: nothing here cares which one that is.
//!
//! | file | idea |
//! |---|---|
//! | `book` | what is known at one moment, in the order in which it is looked for |
//! | `ledger` | the same, as events change it |
//! | `follow` | the daemon's words, over as many connections as it takes |
//! | `watch` | what one query finds, and how that changes |

mod book;
mod follow;
mod ledger;
mod watch;

#[cfg(test)]
mod tests;

pub use book::{Book, Found};
pub use follow::SILENCE;
pub use phalanx_api::directory::Entry;
pub use phalanx_query::{Query, QueryError};
pub use watch::{Change, Standing, Watch};

use crate::{Client, Error};
use arc_swap::{ArcSwap, Guard};
use follow::Follower;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::task::{AbortHandle, JoinHandle};

/// What is there, in this program's memory. Clones share it; it is followed until the last of them, and the last
/// [`Watch`] of it, is dropped.
#[derive(Clone, Debug)]
pub struct Directory {
    shared: Arc<Shared>,
    _life: Arc<Life>,
}

impl Directory {
    /// What is known at this moment. It stays as it is, so what is found in it fits together; ask anew for what is known
    /// later.
    #[must_use]
    pub fn now(&self) -> Now {
        Now(self.shared.book.load())
    }

    /// The services that a query asks for, by name, node and port. [`Directory::now`] finds them without making a list.
    #[must_use]
    pub fn find(&self, query: &Query) -> Vec<Found> {
        self.now().find(query).cloned().collect()
    }

    /// Keeps an eye on what a query finds.
    #[must_use]
    pub fn watch(&self, query: Query) -> Watch {
        let mut standing = self.shared.standing();
        // Under the lock: a book that comes after this one is looked at for this query, too.
        let asked = Arc::new(Standing::new(query, &self.shared.book.load()));
        standing.push(Arc::downgrade(&asked));
        Watch::new(asked, self.clone())
    }

    /// Since when nothing is certain: `None` while the daemon is heard. What was known then is still found.
    #[must_use]
    pub fn stale_since(&self) -> Option<Instant> {
        let heard = self.shared.heard();
        let fresh = self.shared.live.load(Ordering::Acquire) && heard.elapsed() <= SILENCE;
        (!fresh).then_some(heard)
    }

    /// How often the whole was read from the daemon, the first time included. More often than it restarted means that
    /// something changed which is no event.
    #[must_use]
    pub fn copies(&self) -> u64 {
        self.shared.copies.load(Ordering::Relaxed)
    }
}

/// What is known at one moment.
#[derive(Debug)]
pub struct Now(Guard<Arc<Book>>);

impl Deref for Now {
    type Target = Book;

    fn deref(&self) -> &Book {
        &self.0
    }
}

/// What the follower writes and everybody reads.
#[derive(Debug)]
struct Shared {
    book: ArcSwap<Book>,
    /// Queries that are kept up to date. Only who writes, and who begins to watch, ever waits for this lock.
    standing: Mutex<Vec<Weak<Standing>>>,
    began: Instant,
    /// When the daemon was last heard, in milliseconds since we began.
    heard_ms: AtomicU64,
    /// The stream is there.
    live: AtomicBool,
    copies: AtomicU64,
}

impl Shared {
    fn new() -> Self {
        Self {
            book: ArcSwap::from_pointee(Book::default()),
            standing: Mutex::default(),
            began: Instant::now(),
            heard_ms: AtomicU64::new(0),
            live: AtomicBool::new(false),
            copies: AtomicU64::new(0),
        }
    }

    fn heard(&self) -> Instant {
        self.began + Duration::from_millis(self.heard_ms.load(Ordering::Relaxed))
    }

    /// The daemon was heard at this time, and nothing is missing.
    fn set_heard(&self, at: Instant) {
        self.heard_ms.store(at.duration_since(self.began).as_millis() as u64, Ordering::Relaxed);
        self.live.store(true, Ordering::Release);
    }

    fn set_broken(&self) {
        self.live.store(false, Ordering::Release);
    }

    fn standing(&self) -> MutexGuard<'_, Vec<Weak<Standing>>> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the follower.
#[derive(Debug)]
struct Life(AbortHandle);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Client {
    /// The directory, in memory from now on. It is followed by a task of the runtime that this is called in: where that is
    /// kept busy by others for seconds, the directory is stale, and says so.
    ///
    /// # Errors
    /// When no daemon answers, or one that is too old for this.
    pub async fn directory(&self) -> Result<Directory, Error> {
        open(self.clone()).await.map(|opened| opened.0)
    }
}

/// Takes the first copy, and follows.
async fn open(client: Client) -> Result<(Directory, JoinHandle<()>), Error> {
    let shared = Arc::new(Shared::new());
    let mut follower = Follower::new(client, Arc::clone(&shared));
    let lines = follower.copy().await?;
    let task = tokio::spawn(follower.run(lines));
    Ok((Directory { shared, _life: Arc::new(Life(task.abort_handle())) }, task))
}

/// As [`Client::directory`], on a thread of its own.
pub(crate) fn open_on_thread(client: Client) -> Result<Directory, Error> {
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    let unreachable = {
        let socket = client.socket.clone();
        move |why| Error::Unreachable { socket, why }
    };
    let started = std::thread::Builder::new().name("phalanx-directory".into()).spawn(move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(why) => {
                let _ = tell.send(Err(Error::Unreachable { socket: client.socket, why }));
                return;
            }
        };
        match runtime.block_on(open(client)) {
            Ok((directory, task)) => {
                // Ours must not outlive that of the caller, who ends the task by dropping it.
                let _ = tell.send(Ok(directory));
                let _ = runtime.block_on(task);
            }
            Err(e) => _ = tell.send(Err(e)),
        }
    });
    match started {
        Ok(_) => told.recv().unwrap_or_else(|_| Err(Error::Answer("the reader of the directory has ended".into()))),
        Err(why) => Err(unreachable(why)),
    }
}
