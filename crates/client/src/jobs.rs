//! Jobs: a program becomes a task, is told of each view, and speaks with the other tasks.
//!
//! ```no_run
//! # async fn example() -> Result<(), phalanx_client::Error> {
//! use phalanx_client::{Client, jobs::Event};
//! let mut task = Client::from_environment().join("train", 0, 4).await?;
//! loop {
//!     match task.next().await? {
//!         Event::View(view) if view.is_full() => task.send(1, b"hello").await?,
//!         Event::Message { from, body, .. } => println!("{from} says {}", String::from_utf8_lossy(&body)),
//!         event => println!("{event:?}"),
//!     }
//! }
//! # }
//! ```

mod reduce;

use crate::casts::Piece;
use crate::{Client, Error, escaped};
use phalanx_api::casts::{CAST, framed};
use phalanx_api::jobs::{
    self, Fold, Job, JobView, JobWanted, MESSAGE_MAX, OnPartition, PARCEL, Parcel, Role, ToShepherd, ToTask, View,
    ViewName, WORDS, frame_length,
};
use phalanx_api::path;
use phalanx_api::reduce::{GATHER, Gathered, gathered};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

/// How a task joins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Join {
    /// As what.
    pub role: Role,
    /// How many ranks the job has.
    pub size: u32,
    /// Children of each task in the job's tree, a power of two; as the job was begun with when absent.
    pub arity: Option<u32>,
    /// What those do who cannot reach most of the job; as it was begun with when absent.
    pub on_partition: Option<OnPartition>,
    /// The task wants to be asked to pause before the view changes.
    pub hooks: bool,
}

impl Join {
    /// As the holder of a rank.
    #[must_use]
    pub fn rank(rank: u32, size: u32) -> Self {
        Self { role: Role::Rank(rank), size, arity: None, on_partition: None, hooks: false }
    }

    /// As the rank that this program was started as by `phalanx run`, as its environment says; with the shepherd's socket.
    fn from_environment() -> Result<(PathBuf, Self), Error> {
        let variable = |name: &str| {
            let missing = || format!("{name} is not set: start this program with `phalanx run`");
            std::env::var(name).map_err(|_| Error::Environment(missing()))
        };
        let number = |name: &str| {
            let value = variable(name)?;
            value.parse::<u32>().map_err(|_| Error::Environment(format!("{name} is {value}, which is no number")))
        };
        let join = Self::rank(number("PHALANX_RANK")?, number("PHALANX_SIZE")?);
        Ok((variable("PHALANX_SHEPHERD")?.into(), join))
    }

    /// As a spare, which takes the rank of somebody who fails.
    #[must_use]
    pub fn spare(size: u32) -> Self {
        Self { role: Role::Spare, ..Self::rank(0, size) }
    }
}

/// Something happened to a task.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// There is a new view, and the task is in it.
    View(View),
    /// A message from a task of the same view.
    Message {
        /// From whom.
        from: u32,
        /// In which view.
        view: ViewName,
        /// The message.
        body: Vec<u8>,
    },
    /// A piece of something that was cast to the tasks of the job: pieces of one source come in their order.
    Cast(Piece),
    /// The view is about to change: save what must be saved, then call [`Task::paused`]. Only for those who asked for hooks.
    Pause,
    /// A message of ours came for a view that was over there, and was not delivered.
    Undelivered {
        /// For whom it was.
        to: u32,
    },
    /// No majority of the view answers: nothing changes until there is one again.
    Stalled,
    /// The others have a view without us; [`Task::rejoin`] asks to be in again.
    Excluded {
        /// Theirs.
        view: ViewName,
    },
    /// The job ends here, because most of it cannot be reached.
    Aborted,
    /// We left, and the others know.
    Left,
}

/// What became of something that the shepherd was asked for.
#[derive(Debug)]
enum Answer {
    /// The message is sent, all came to the barrier.
    Done,
    Sum(i64),
    Gathered(Gathered),
    /// Why not, and whether asking again in a moment may help.
    Refused(String, bool),
}

/// Questions that wait for their answer, by number; `None` when nobody answers any more.
type Questions = Arc<Mutex<Option<BTreeMap<u64, oneshot::Sender<Answer>>>>>;

/// One task of a job. Dropped, it is gone.
#[derive(Debug)]
pub struct Task {
    socket: PathBuf,
    to: tokio::sync::Mutex<OwnedWriteHalf>,
    events: mpsc::UnboundedReceiver<Result<Event, Error>>,
    /// Read while something else was waited for.
    early: VecDeque<Event>,
    questions: Questions,
    next: std::sync::atomic::AtomicU64,
    view: View,
    reading: AbortHandle,
}

impl Client {
    /// Makes this program a task of a job: the one with this rank, of `size`. The first task of rank 0 begins the job; the others wait for
    /// it. Returns when the task is in a view.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn join(&self, job: &str, rank: u32, size: u32) -> Result<Task, Error> {
        self.join_with(job, Join::rank(rank, size)).await
    }

    /// As [`Client::join`], with all that can be chosen.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn join_with(&self, job: &str, join: Join) -> Result<Task, Error> {
        let wanted = JobWanted { size: join.size, arity: join.arity, on_partition: join.on_partition };
        let fold: Fold = self.connect().await?.post(&format!("{}/{}", path::JOBS, escaped(job)), &wanted).await?;
        Task::attach(fold.socket.into(), join).await
    }

    /// Jobs of which the node knows.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn jobs(&self) -> Result<Vec<Job>, Error> {
        self.connect().await?.get(path::JOBS).await
    }

    /// The view of a job, wherever its tasks are.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn job(&self, job: &str) -> Result<JobView, Error> {
        self.connect().await?.get(&format!("{}/{}", path::JOBS, escaped(job))).await
    }
}

impl Task {
    /// The rank that this program was started as by `phalanx run`: it is in the job's view already, whether it says so or not.
    ///
    /// # Errors
    /// [`Error::Environment`] when it was started otherwise, and as [`Client::join`].
    pub async fn from_environment() -> Result<Self, Error> {
        let (socket, join) = Join::from_environment()?;
        Self::attach(socket, join).await
    }

    /// As [`Task::from_environment`], asked to pause before the view changes.
    ///
    /// # Errors
    /// As [`Task::from_environment`].
    pub async fn from_environment_with_hooks() -> Result<Self, Error> {
        let (socket, join) = Join::from_environment()?;
        Self::attach(socket, Join { hooks: true, ..join }).await
    }

    async fn attach(socket: PathBuf, join: Join) -> Result<Self, Error> {
        // The shepherd looks at it once we have said that we are there. Who was not started by one holds nothing.
        #[cfg(target_os = "linux")]
        crate::notice::hold();
        let stream = UnixStream::connect(&socket).await;
        let stream = stream.map_err(|why| Error::Unreachable { socket: socket.clone(), why })?;
        let (from, to) = stream.into_split();
        let (tell, mut events) = mpsc::unbounded_channel();
        let questions = Questions::new(Mutex::new(Some(BTreeMap::new())));
        let (place, waiting) = (socket.clone(), Arc::clone(&questions));
        let reading = tokio::spawn(async move {
            let why = read(from, &tell, &waiting).await;
            // Nobody answers any more.
            waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
            // Who listened may be gone.
            let _ = tell.send(Err(why.unwrap_or_else(|why| Error::Unreachable { socket: place, why })));
        });
        let to = tokio::sync::Mutex::new(to);
        let hello = ToShepherd::Attach { role: join.role, size: join.size, hooks: join.hooks };
        say(&to, &hello).await.map_err(|why| Error::Unreachable { socket: socket.clone(), why })?;
        let view = loop {
            match events.recv().await {
                Some(Ok(Event::View(view))) => break view,
                Some(Ok(_)) => {}
                Some(Err(why)) => return Err(why),
                None => return Err(Error::Answer("the shepherd said nothing".to_owned())),
            }
        };
        let early = VecDeque::from([Event::View(view.clone())]);
        let (next, reading) = (std::sync::atomic::AtomicU64::new(1), reading.abort_handle());
        Ok(Self { socket, to, events, early, questions, next, view, reading })
    }

    /// The view, as of the last event that was read.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Our number in the job.
    #[must_use]
    pub fn me(&self) -> u32 {
        self.view.me
    }

    /// The rank that we hold; spares hold none.
    #[must_use]
    pub fn rank(&self) -> Option<u32> {
        self.view.rank
    }

    /// Waits for the next thing that happens; the first is the view that we came into.
    ///
    /// # Errors
    /// When the shepherd is gone, or ended our part in the job.
    pub async fn next(&mut self) -> Result<Event, Error> {
        let event = match self.early.pop_front() {
            Some(event) => event,
            None => self.receive().await?,
        };
        if let Event::View(view) = &event {
            self.view.clone_from(view);
        }
        Ok(event)
    }

    async fn receive(&mut self) -> Result<Event, Error> {
        let closed = || Err(Error::Answer("our part in the job is over".to_owned()));
        self.events.recv().await.unwrap_or_else(closed)
    }

    /// Waits until each rank is held by a task that lives. What else happens meanwhile is not lost.
    ///
    /// # Errors
    /// As [`Task::next`].
    pub async fn wait_full(&mut self) -> Result<&View, Error> {
        let full = |e: &Event| matches!(e, Event::View(v) if v.is_full());
        while !self.view.is_full() && !self.early.iter().any(full) {
            let event = self.receive().await?;
            self.early.push_back(event);
        }
        if let Some(Event::View(view)) = self.early.iter().rfind(|e| full(e)) {
            self.view.clone_from(view);
        }
        Ok(&self.view)
    }

    /// Sends a message to a task, in the view that was read last: it is delivered in that view or not at all.
    ///
    /// # Errors
    /// [`Error::Refused`] when the view is over, the task is not in it, or too much is under way; nothing was sent then.
    pub async fn send(&self, to: u32, body: &[u8]) -> Result<(), Error> {
        self.send_in(self.view.view, to, body).await
    }

    /// As [`Task::send`], in a view that is named.
    ///
    /// # Errors
    /// As [`Task::send`].
    pub async fn send_in(&self, view: ViewName, to: u32, body: &[u8]) -> Result<(), Error> {
        // The shepherd would hang up on a longer frame.
        if body.len() > MESSAGE_MAX {
            let need = body.len();
            let error = format!("a message holds {MESSAGE_MAX} bytes, and this one has {need}: split it");
            return Err(Error::Refused { status: 413, error });
        }
        match self.ask(|number| Parcel { peer: to, number, view }.frame(body)).await? {
            Answer::Refused(error, busy) => Err(Error::Refused { status: if busy { 429 } else { 409 }, error }),
            _ => Ok(()),
        }
    }

    /// Says something that is answered under its number.
    async fn ask(&self, frame: impl FnOnce(u64) -> Vec<u8>) -> Result<Answer, Error> {
        let number = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (tell, told) = oneshot::channel();
        match &mut *self.questions.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(questions) => _ = questions.insert(number, tell),
            None => return Err(self.gone(io::ErrorKind::NotConnected.into())),
        }
        self.to.lock().await.write_all(&frame(number)).await.map_err(|why| self.gone(why))?;
        told.await.map_err(|_| self.gone(io::ErrorKind::ConnectionReset.into()))
    }

    fn gone(&self, why: io::Error) -> Error {
        Error::Unreachable { socket: self.socket.clone(), why }
    }

    async fn say(&self, words: ToShepherd) -> Result<(), Error> {
        say(&self.to, &words).await.map_err(|why| self.gone(why))
    }

    /// What had to be saved is saved: the view may change.
    ///
    /// # Errors
    /// When the shepherd is gone.
    pub async fn paused(&self) -> Result<(), Error> {
        self.say(ToShepherd::Paused).await
    }

    /// Asks for a coordinated checkpoint: all tasks with hooks are asked to pause, then there is a new view with the same members.
    ///
    /// # Errors
    /// When the shepherd is gone.
    pub async fn checkpoint(&self) -> Result<(), Error> {
        self.say(ToShepherd::Checkpoint).await
    }

    /// Asks to be in again, after [`Event::Excluded`].
    ///
    /// # Errors
    /// When the shepherd is gone.
    pub async fn rejoin(&self) -> Result<(), Error> {
        self.say(ToShepherd::Rejoin).await
    }

    /// Leaves in good order: [`Event::Left`] says that the others know.
    ///
    /// # Errors
    /// When the shepherd is gone.
    pub async fn leave(&self) -> Result<(), Error> {
        self.say(ToShepherd::Leave).await
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

async fn say(to: &tokio::sync::Mutex<OwnedWriteHalf>, words: &ToShepherd) -> io::Result<()> {
    let frame = jobs::words(&serde_json::to_vec(words)?);
    to.lock().await.write_all(&frame).await
}

/// Reads until the end; says why it ended: the shepherd said so, or the system did.
async fn read(
    mut from: OwnedReadHalf,
    tell: &mpsc::UnboundedSender<Result<Event, Error>>,
    questions: &Questions,
) -> io::Result<Error> {
    loop {
        let mut head = [0; 4];
        from.read_exact(&mut head).await?;
        let senseless = || io::Error::from(io::ErrorKind::InvalidData);
        let mut frame = vec![0; frame_length(head).ok_or_else(senseless)?];
        from.read_exact(&mut frame).await?;
        let (&kind, body) = frame.split_first().ok_or_else(senseless)?;
        let event = match kind {
            PARCEL => {
                let (parcel, body) = Parcel::parse(body).ok_or_else(senseless)?;
                Event::Message { from: parcel.peer, view: parcel.view, body: body.to_vec() }
            }
            CAST => {
                let (heading, data) = framed(body).ok_or_else(senseless)?;
                let heading = serde_json::from_slice(heading).map_err(|_| senseless())?;
                Event::Cast(Piece { heading, data: data.to_vec() })
            }
            GATHER => {
                let (number, values) = gathered(body).ok_or_else(senseless)?;
                answer(questions, number, Answer::Gathered(values));
                continue;
            }
            WORDS => match serde_json::from_slice(body) {
                Ok(ToTask::Refused { error }) => return Ok(Error::Refused { status: 409, error }),
                Ok(words) => match told(words, questions) {
                    Some(event) => event,
                    None => continue,
                },
                // Said by a shepherd that is newer than we are.
                Err(_) => continue,
            },
            _ => continue,
        };
        if tell.send(Ok(event)).is_err() {
            return Ok(Error::Answer("nobody listens".to_owned()));
        }
    }
}

fn answer(questions: &Questions, number: u64, answer: Answer) {
    let mut questions = questions.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(tell) = questions.as_mut().and_then(|q| q.remove(&number)) {
        // Who asked may not wait any more.
        let _ = tell.send(answer);
    }
}

/// What a shepherd said, as an event; `None` for answers.
fn told(words: ToTask, questions: &Questions) -> Option<Event> {
    let (number, told) = match words {
        ToTask::Sent { parcel } => (parcel, Answer::Done),
        ToTask::Unsent { parcel, error, busy } => (parcel, Answer::Refused(error, busy)),
        ToTask::Reduced { number, sum } => (number, sum.map_or(Answer::Done, Answer::Sum)),
        ToTask::Unreduced { number, error } => (number, Answer::Refused(error, false)),
        words => return event(words),
    };
    answer(questions, number, told);
    None
}

fn event(words: ToTask) -> Option<Event> {
    Some(match words {
        ToTask::View(view) => Event::View(view),
        ToTask::Pause => Event::Pause,
        ToTask::Undelivered { to, .. } => Event::Undelivered { to },
        ToTask::Stalled => Event::Stalled,
        ToTask::Excluded { view } => Event::Excluded { view },
        ToTask::Aborted => Event::Aborted,
        ToTask::Left => Event::Left,
        // Said by a shepherd that is newer than we are.
        _ => return None,
    })
}
