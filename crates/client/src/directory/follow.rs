//! Follows a daemon: a copy of its directory, then its words, over as many connections as it takes.

use super::Shared;
use super::ledger::{Ledger, Lost};
use crate::connection::Connection;
use crate::events::{Lines, RETRY_FIRST, RETRY_LAST};
use crate::{Client, Error};
use hyper::Method;
use hyper::body::Bytes;
use phalanx_api::directory::{BEAT_MS, Directory, Word};
use phalanx_api::{Phase, path};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// When the daemon is not heard for so long it is given up, and the directory is stale: three beats.
pub const SILENCE: Duration = Duration::from_millis(3 * BEAT_MS);
/// So long a daemon that starts may take to find others; then what it knows counts, however little.
const SETTLING: Duration = Duration::from_secs(10);
/// Words that are taken into one book; the rest waits for the next.
const BATCH: usize = 1024;

/// The one who writes.
pub(super) struct Follower {
    client: Client,
    shared: Arc<Shared>,
    ledger: Ledger,
    /// Since when a daemon answers that does not know the others yet.
    settling: Option<Instant>,
}

impl Follower {
    pub(super) fn new(client: Client, shared: Arc<Shared>) -> Self {
        Self { client, shared, ledger: Ledger::default(), settling: None }
    }

    /// Takes a copy; says where what follows is read.
    pub(super) async fn copy(&mut self) -> Result<Lines, Error> {
        let began = Instant::now();
        let whole: Directory = self.client.connect().await?.get(path::DIRECTORY).await?;
        // One that just started knows nobody: what was known before is worth more, for a while.
        let since = *self.settling.get_or_insert(began);
        let is_first = self.shared.copies.load(Ordering::Relaxed) == 0;
        if whole.phase == Phase::Starting && !is_first && since.elapsed() < SETTLING {
            return Err(Error::Refused { status: 503, error: "the daemon looks for others".into() });
        }
        let changes = format!("{}?after={}", path::CHANGES, whole.event);
        let connection: Connection = self.client.connect().await?;
        let answer = connection.ask(Method::GET, &changes, Bytes::new(), None).await?;
        self.settling = None;
        self.ledger.replace(whole);
        self.publish();
        self.shared.copies.fetch_add(1, Ordering::Relaxed);
        self.shared.set_heard(began);
        Ok(Lines::new(answer.into_body()))
    }

    /// Reads on, until nobody wants it any more.
    pub(super) async fn run(mut self, mut lines: Lines) {
        let mut wait = RETRY_FIRST;
        loop {
            let began = Instant::now();
            self.read(lines).await;
            self.shared.set_broken();
            // Who is at odds with us soon again is not asked at once.
            if began.elapsed() < RETRY_LAST {
                sleep(wait).await;
                wait = (wait * 2).min(RETRY_LAST);
            } else {
                wait = RETRY_FIRST;
            }
            lines = loop {
                match timeout(SILENCE, self.copy()).await {
                    Ok(Ok(lines)) => break lines,
                    // Whatever it is, the next try may go better: a daemon that restarts says many things.
                    Ok(Err(_)) | Err(_) => self.shared.set_broken(),
                }
                sleep(wait).await;
                wait = (wait * 2).min(RETRY_LAST);
            };
        }
    }

    /// Until the stream ends or goes silent, makes no sense, or misses something.
    async fn read(&mut self, mut lines: Lines) {
        while let Ok(Ok(Some(word))) = timeout(SILENCE, lines.next::<Word>()).await {
            let told = self.take(word, &mut lines);
            // What was understood counts, whatever came behind it.
            self.publish();
            match told {
                Ok(()) => self.shared.set_heard(Instant::now()),
                Err(Lost) => return,
            }
        }
    }

    /// A word, and those behind it that are here already: they make one book.
    fn take(&mut self, first: Word, lines: &mut Lines) -> Result<(), Lost> {
        let mut word = first;
        for _ in 1..BATCH {
            self.hear(word)?;
            match lines.here().map_err(|_| Lost)? {
                Some(next) => word = next,
                None => return Ok(()),
            }
        }
        self.hear(word)
    }

    fn hear(&mut self, word: Word) -> Result<(), Lost> {
        match word {
            Word::Event(event) => self.ledger.apply(event),
            Word::Beat(beat) if beat.sum == self.ledger.sum() => Ok(()),
            Word::Beat(_) => Err(Lost),
        }
    }

    /// What changed is there for everybody.
    fn publish(&mut self) {
        let before = self.shared.book.load_full();
        let Some((book, changed)) = self.ledger.book(&before) else { return };
        let book = Arc::new(book);
        self.shared.book.store(Arc::clone(&book));
        self.shared.standing().retain(|standing| match standing.upgrade() {
            Some(standing) => {
                standing.update(&book, &changed);
                true
            }
            None => false,
        });
    }
}
