//! A thread that gets a seat, keeps it, and watches those of the others.
//!
//! It goes on through everything: while etcd is away it asks again and again, and a seat that was lost meanwhile is
//! claimed anew. Until then the old one is still used; who got it has a higher life.

use super::{Etcd, EtcdError, Holder, Mark, Reuse, Seat};
use std::convert::Infallible;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// A lease is kept so often before it would run out; others' seats are looked at as often.
const BEATS: u32 = 3;
/// The first wait after trouble. It doubles up to the usual rhythm, so that a lease that outlived the trouble is saved.
const WAIT_MIN: Duration = Duration::from_millis(100);

/// What is new.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Update {
    /// We have this seat now.
    Mine(Seat),
    /// Everybody's seats, the lowest first, as they are now. Told again after trouble, even if nothing changed.
    All(Vec<Seat>),
    /// Something does not work, for people to read; told once for each reason.
    Trouble(String),
}

/// Keeps a seat until it is dropped. Then the seat runs out by itself; [`Keeper::release`] gives it back at once.
#[derive(Debug)]
pub struct Keeper {
    /// Its end stops the thread.
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), EtcdError>>,
}

impl Keeper {
    /// Starts to claim and keep a seat; `tell` hears what is new, in a thread of its own. It may be called once more
    /// while the keeper is being dropped.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(
        etcd: Etcd,
        who: Holder,
        reuse: Reuse,
        tell: impl FnMut(Update) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let work = Work { etcd, who, reuse, tell, seated: false, known: None, trouble: None };
        let thread = std::thread::Builder::new().name("etcd".to_owned());
        let thread = thread.spawn(move || runtime.block_on(work.until(stopped)))?;
        Ok(Self { stop, thread })
    }

    /// Ends, and gives the seat back; blocks for the few seconds that etcd may take.
    ///
    /// # Errors
    /// When etcd cannot be asked: the seat runs out by itself.
    pub fn release(self) -> Result<(), EtcdError> {
        // A thread that ended already did so by a panic, which the join tells.
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

struct Known {
    /// From before they were read.
    mark: Mark,
    seats: Vec<Seat>,
}

struct Work<F> {
    etcd: Etcd,
    who: Holder,
    reuse: Reuse,
    tell: F,
    seated: bool,
    /// The seats that were told last.
    known: Option<Known>,
    /// The trouble that was told last and is not over.
    trouble: Option<EtcdError>,
}

impl<F: FnMut(Update)> Work<F> {
    async fn until(mut self, stopped: oneshot::Receiver<()>) -> Result<(), EtcdError> {
        let released = tokio::select! {
            biased;
            asked = stopped => asked.is_ok(),
            never = self.forever() => match never {},
        };
        if released { self.etcd.release().await } else { Ok(()) }
    }

    async fn forever(&mut self) -> Infallible {
        let rhythm = self.etcd.ttl / BEATS;
        let mut wait = WAIT_MIN;
        loop {
            match self.beat().await {
                Ok(()) => {
                    self.trouble = None;
                    wait = WAIT_MIN;
                    tokio::time::sleep(rhythm).await;
                }
                Err(trouble) => {
                    self.on_trouble(trouble);
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(rhythm.max(WAIT_MIN));
                }
            }
        }
    }

    async fn beat(&mut self) -> Result<(), EtcdError> {
        if self.seated {
            self.seated = self.etcd.keep().await.map(|()| true).or_else(|e| match e {
                EtcdError::Lost => Ok(false),
                other => Err(other),
            })?;
        }
        if !self.seated {
            let seat = self.etcd.claim(&self.who, self.reuse).await?;
            self.seated = true;
            (self.tell)(Update::Mine(seat));
        }
        // All daemons look this often: only what changed is worth reading.
        let mark = self.etcd.mark().await?;
        if self.known.as_ref().is_none_or(|k| k.mark != mark) {
            let seats = self.etcd.seats().await?;
            if self.known.as_ref().is_none_or(|k| k.seats != seats) {
                (self.tell)(Update::All(seats.clone()));
            }
            self.known = Some(Known { mark, seats });
        }
        Ok(())
    }

    fn on_trouble(&mut self, trouble: EtcdError) {
        self.known = None;
        if self.trouble.as_ref() != Some(&trouble) {
            (self.tell)(Update::Trouble(trouble.to_string()));
            self.trouble = Some(trouble);
        }
    }
}
