//! What one query finds, kept up to date, and how it changes.
//!
//! The follower asks a standing query about members that changed, and about nobody else; its result lies ready. So to look
//! it up is one load for each query, among any number of services. A watch tells changes by comparing
//! what it told last with what is found now: there is no queue that a slow reader could fill, and what came and went in
//! between is not told.

use super::book::replaced;
use super::{Book, Directory, Found, Query};
use arc_swap::{ArcSwap, Guard};
use std::cmp::Ordering;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Thread, current, park_timeout};
use std::time::{Duration, Instant};
use tokio::sync::watch::{self, Receiver};

/// A query and what it finds.
#[derive(Debug)]
pub struct Standing {
    query: Query,
    found: ArcSwap<Vec<Found>>,
    /// How often it changed.
    changes: watch::Sender<u64>,
}

impl Standing {
    pub(super) fn new(query: Query, book: &Book) -> Self {
        let found = ArcSwap::from_pointee(book.find(&query).cloned().collect::<Vec<_>>());
        Self { query, found, changes: watch::Sender::new(0) }
    }

    /// Members changed.
    pub(super) fn update(&self, book: &Book, changed: &BTreeSet<String>) {
        let (before, fresh) = (self.found.load(), book.fresh(&self.query, changed));
        let after = replaced(&before, changed, fresh);
        if after != **before {
            self.found.store(Arc::new(after));
            self.changes.send_modify(|n| *n += 1);
        }
    }
}

/// Keeps an eye on what a query finds.
#[derive(Debug)]
pub struct Watch {
    standing: Arc<Standing>,
    /// What was told so far.
    told: Arc<Vec<Found>>,
    /// What is to be told before anything else is looked at.
    rest: VecDeque<Change>,
    changes: Receiver<u64>,
    directory: Directory,
}

/// How what a query finds changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// It is found now: newly offered, or what is said of it, or of its node, fits now.
    Came(Found),
    /// It is still found, and something about it or its node changed: a tag, the load.
    Changed(Found),
    /// It is found no more, as it was last.
    Gone(Found),
}

impl Watch {
    pub(super) fn new(standing: Arc<Standing>, directory: Directory) -> Self {
        let changes = standing.changes.subscribe();
        Self { standing, told: Arc::default(), rest: VecDeque::new(), changes, directory }
    }

    /// What is found at this moment, by name, node and port. One load: it lies ready.
    #[must_use]
    pub fn found(&self) -> Lying {
        Lying(self.standing.found.load())
    }

    /// The directory that it is about.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The next change; waits for it. At first, all that is found comes. Nothing is lost when nobody waits for it any more.
    pub async fn next(&mut self) -> Change {
        loop {
            if let Some(change) = self.ready() {
                return change;
            }
            // The sender lives as long as the query does, which we hold.
            let _ = self.changes.changed().await;
        }
    }

    /// The next change, if it comes within so long; for programs without a runtime. The thread waits.
    pub fn wait(&mut self, patience: Duration) -> Option<Change> {
        let until = Instant::now() + patience;
        let waker = Waker::from(Arc::new(Unpark(current())));
        let mut next = pin!(self.next());
        loop {
            if let Poll::Ready(change) = next.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Some(change);
            }
            park_timeout(until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?);
        }
    }

    /// The next change, if it is there already.
    pub fn ready(&mut self) -> Option<Change> {
        if self.rest.is_empty() {
            // In this order: what changes after we looked wakes us again.
            self.changes.borrow_and_update();
            let found = self.standing.found.load_full();
            if !Arc::ptr_eq(&self.told, &found) {
                self.rest = differences(&self.told, &found);
                self.told = found;
            }
        }
        self.rest.pop_front()
    }
}

/// What a query finds, lying ready.
#[derive(Debug)]
pub struct Lying(Guard<Arc<Vec<Found>>>);

impl Deref for Lying {
    type Target = [Found];

    fn deref(&self) -> &[Found] {
        &self.0
    }
}

/// What leads from one result to the other, in their order.
fn differences(before: &[Found], after: &[Found]) -> VecDeque<Change> {
    let (mut before, mut after) = (before.iter().peekable(), after.iter().peekable());
    let mut changes = VecDeque::new();
    loop {
        let order = match (before.peek(), after.peek()) {
            (Some(a), Some(b)) => a.order(b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return changes,
        };
        let gone = before.next_if(|_| order.is_le());
        let came = after.next_if(|_| order.is_ge());
        match (gone, came) {
            (Some(was), Some(is)) if was != is => changes.push_back(Change::Changed(is.clone())),
            (Some(was), None) => changes.push_back(Change::Gone(was.clone())),
            (None, Some(is)) => changes.push_back(Change::Came(is.clone())),
            _ => {}
        }
    }
}

/// Wakes a thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
