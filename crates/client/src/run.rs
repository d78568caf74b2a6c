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
use phalanx_api::run::{OUTPUT, RunStarted, RunWanted, Stream, ToConsole, ToConsoleShepherd, input_frame, output};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{Mutex, mpsc};
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
    reading: AbortHandle,
}

/// Writes to the standard input of rank 0.
#[derive(Clone, Debug)]
pub struct Input(Arc<Mutex<OwnedWriteHalf>>);

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
    async fn attach(name: String, socket: PathBuf) -> Result<Self, Error> {
        let unreachable = |why| Error::Unreachable { socket: socket.clone(), why };
        let stream = UnixStream::connect(&socket).await.map_err(unreachable)?;
        let (mut from, to) = stream.into_split();
        let (tell, words) = mpsc::channel(AHEAD);
        let reading = tokio::spawn(async move {
            loop {
                let word = read(&mut from).await.transpose();
                let Some(word) = word else { continue };
                let is_over = word.is_err();
                if tell.send(word).await.is_err() || is_over {
                    return;
                }
            }
        });
        let job = Self { name, words, to: Arc::new(Mutex::new(to)), reading: reading.abort_handle(), socket };
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
        Input(Arc::clone(&self.to))
    }

    async fn say(&self, words: &ToConsoleShepherd) -> Result<(), Error> {
        let json = serde_json::to_vec(words).map_err(|e| Error::Answer(e.to_string()))?;
        let said = self.to.lock().await.write_all(&jobs::words(&json)).await;
        said.map_err(|why| Error::Unreachable { socket: self.socket.clone(), why })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Input {
    /// Writes some bytes; waits while rank 0 does not read.
    ///
    /// # Errors
    /// When the shepherd is gone.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.0.lock().await.write_all(&input_frame(bytes)).await
    }

    /// There is no more.
    pub async fn end(&mut self) {
        // Who is gone needs no end.
        let _ = self.0.lock().await.write_all(&input_frame(b"")).await;
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
