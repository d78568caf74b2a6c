//! Parallel jobs that the cluster starts: [`Client::run`] begins one, and [`Job`] is its console.
//!
//! ```no_run
//! # async fn example() -> Result<(), phalanx_client::Error> {
//! use phalanx_client::api::run::{Program, RunWanted, ToConsole};
//! use phalanx_client::{Client, run::Word};
//! let hello = Program { argv: vec!["hostname".into()], ranks: 4, env: Vec::new(), wdir: "/".into() };
//! let mut job = Client::from_environment().run(&RunWanted::of(vec![hello])).await?;
//! loop {
//!     match job.next().await? {
//!         Word::Output { rank, bytes, .. } => print!("{rank}: {}", String::from_utf8_lossy(&bytes)),
//!         Word::Told(ToConsole::Over { status }) => break println!("all ended, {status}"),
//!         _ => {}
//!     }
//! }
//! # Ok(()) }
//! ```

use crate::{Client, Error};
use phalanx_api::jobs::{self, WORDS, frame_length};
use phalanx_api::path;
use phalanx_api::run::{
    INPUT_AHEAD, INPUT_MAX, OUTPUT, RunStarted, RunWanted, Stream, ToConsole, ToConsoleShepherd, input_frame, output,
};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::task::AbortHandle;

/// Frames that were read and not asked for yet. Who reads slowly makes ranks wait, and loses nothing.
const AHEAD: usize = 64;

/// Something a job says.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Word {
    /// A rank wrote something.
    Output {
        /// Which.
        rank: u32,
        /// Where.
        stream: Stream,
        /// What: whole writes, not whole lines.
        bytes: Vec<u8>,
    },
    /// Something happened.
    Told(ToConsole),
}

/// A job that was begun, as long as somebody stays with it: dropped, it is ended.
#[derive(Debug)]
pub struct Job {
    name: String,
    socket: PathBuf,
    words: mpsc::Receiver<io::Result<Word>>,
    to: Arc<Mutex<OwnedWriteHalf>>,
    /// Bytes of input that the shepherd takes: signals must not wait behind more.
    room: Arc<Semaphore>,
    reading: AbortHandle,
}

/// Writes to the standard input of rank 0.
#[derive(Clone, Debug)]
pub struct Input {
    to: Arc<Mutex<OwnedWriteHalf>>,
    room: Arc<Semaphore>,
}

impl Client {
    /// Begins a job, and becomes its console.
    ///
    /// # Errors
    /// See [`Error`]; `Refused` when the cluster has no room for it, or it makes no sense. Nothing was started then.
    pub async fn run(&self, wanted: &RunWanted) -> Result<Job, Error> {
        let RunStarted { job, socket } = self.connect().await?.post(path::RUN, wanted).await?;
        Job::attach(job, socket.into()).await
    }
}

impl Job {
    /// Becomes the console of a job whose shepherd listens here: what [`Client::run`] does with what it was told.
    ///
    /// # Errors
    /// When nobody listens there.
    pub async fn attach(name: String, socket: PathBuf) -> Result<Self, Error> {
        let unreachable = |why| Error::Unreachable { socket: socket.clone(), why };
        let stream = UnixStream::connect(&socket).await.map_err(unreachable)?;
        let (mut from, to) = stream.into_split();
        let (tell, words) = mpsc::channel(AHEAD);
        let room = Arc::new(Semaphore::new(INPUT_AHEAD));
        let fed = Arc::clone(&room);
        let reading = tokio::spawn(async move {
            loop {
                let word = read(&mut from).await.transpose();
                let Some(word) = word else { continue };
                if let Ok(Word::Told(ToConsole::Fed { bytes })) = word {
                    fed.add_permits(usize::try_from(bytes).unwrap_or_default().min(INPUT_AHEAD));
                    continue;
                }
                let is_over = word.is_err();
                if tell.send(word).await.is_err() || is_over {
                    // Nobody says any more that there is room.
                    return fed.close();
                }
            }
        });
        let (to, reading) = (Arc::new(Mutex::new(to)), reading.abort_handle());
        let job = Self { name, words, to, room, reading, socket };
        job.say(&ToConsoleShepherd::Attach).await?;
        Ok(job)
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next thing that it says; `Over` is the last.
    ///
    /// # Errors
    /// When its shepherd is gone.
    pub async fn next(&mut self) -> Result<Word, Error> {
        let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let word = self.words.recv().await.unwrap_or_else(|| Err(ended()));
        word.map_err(|why| Error::Unreachable { socket: self.socket.clone(), why })
    }

    /// A signal for all ranks.
    ///
    /// # Errors
    /// When its shepherd is gone.
    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        self.say(&ToConsoleShepherd::Signal { signal }).await
    }

    /// The standard input of rank 0.
    #[must_use]
    pub fn input(&self) -> Input {
        Input { to: Arc::clone(&self.to), room: Arc::clone(&self.room) }
    }

    async fn say(&self, words: &ToConsoleShepherd) -> Result<(), Error> {
        let json = serde_json::to_vec(words).map_err(|e| Error::Answer(e.to_string()))?;
        let said = self.to.lock().await.write_all(&jobs::words(&json)).await;
        said.map_err(|why| Error::Unreachable { socket: self.socket.clone(), why })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.room.close();
        self.reading.abort();
    }
}

impl Input {
    /// Writes some bytes; waits while rank 0 does not read.
    ///
    /// # Errors
    /// When the shepherd is gone.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.chunks(INPUT_MAX) {
            let room = self.room.acquire_many(piece.len() as u32).await;
            // Given back by the shepherd.
            room.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?.forget();
            self.to.lock().await.write_all(&input_frame(piece)).await?;
        }
        Ok(())
    }

    /// There is no more.
    pub async fn end(&mut self) {
        // Who is gone needs no end.
        let _ = self.to.lock().await.write_all(&input_frame(b"")).await;
    }
}

/// One frame; `None` for one of a kind that we do not know.
async fn read(from: &mut tokio::net::unix::OwnedReadHalf) -> io::Result<Option<Word>> {
    let senseless = || io::Error::from(io::ErrorKind::InvalidData);
    let mut head = [0; 4];
    from.read_exact(&mut head).await?;
    let mut frame = vec![0; frame_length(head).ok_or_else(senseless)?];
    from.read_exact(&mut frame).await?;
    let (&kind, body) = frame.split_first().ok_or_else(senseless)?;
    Ok(match kind {
        OUTPUT => {
            let (rank, stream, bytes) = output(body).ok_or_else(senseless)?;
            Some(Word::Output { rank, stream, bytes: bytes.to_vec() })
        }
        // Said by a shepherd that is newer than we are.
        WORDS => serde_json::from_slice(body).ok().map(Word::Told),
        _ => None,
    })
}
