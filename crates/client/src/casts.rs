//! What is cast: to all members, to some, to the tasks of a job; and what others cast.

use crate::connection::Connection;
use crate::{Client, Error, escaped};
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::{Body, Bytes, Frame, Incoming};
use phalanx_api::casts::{Heading, Reached, Seat};
use phalanx_api::path;
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// Read at once from what is to be cast.
const CHUNK: usize = 256 << 10;
/// The longest heading.
const HEADING_MAX: usize = 64 << 10;

/// Whom a cast is for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum To {
    /// All members of the zone.
    #[default]
    All,
    /// Members of these names.
    Members(Vec<String>),
    /// The tasks of a job.
    Job(String),
    /// All members of a zone, ours or another.
    Zone(String),
}

impl To {
    fn path(&self, name: &str) -> String {
        let mut words = Vec::new();
        match self {
            Self::All => {}
            Self::Members(names) => words.push(format!("to={}", escaped(&names.join(",")))),
            Self::Job(job) => words.push(format!("job={}", escaped(job))),
            Self::Zone(zone) => words.push(format!("zone={}", escaped(zone))),
        }
        if !name.is_empty() {
            words.push(format!("name={}", escaped(name)));
        }
        if words.is_empty() { path::CAST.to_owned() } else { format!("{}?{}", path::CAST, words.join("&")) }
    }
}

impl Client {
    /// Casts something; returns when all who live have it.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn cast(&self, to: &To, name: &str, body: impl Into<Bytes>) -> Result<Reached, Error> {
        let answer = self.connect().await?.ask(Method::POST, &to.path(name), body.into(), None).await?;
        crate::connection::read_json(answer).await
    }

    /// Casts what can be read here, however long it is, while it is read.
    ///
    /// # Errors
    /// See [`Error`]. What was read until then has been cast, without an end.
    pub async fn cast_stream(
        &self,
        to: &To,
        name: &str,
        from: impl AsyncRead + Unpin + Send + 'static,
    ) -> Result<Reached, Error> {
        let answer = Connection::open(&self.socket).await?.send(Method::POST, &to.path(name), Reading(from)).await?;
        crate::connection::read_json(answer).await
    }

    /// What is cast to this node from now on, piece by piece.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn casts(&self) -> Result<Casts, Error> {
        let answer = self.connect().await?.ask(Method::GET, path::CASTS, Bytes::new(), None).await?;
        Ok(Casts { body: answer.into_body(), rest: Vec::new(), begun: BTreeMap::new() })
    }

    /// Who sits where in the tree of casts.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn seats(&self) -> Result<Vec<Seat>, Error> {
        self.connect().await?.get(path::SEATS).await
    }

    /// Fills the holes of the tree of casts now.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn repair(&self) -> Result<(), Error> {
        self.connect().await?.act(Method::POST, path::SEATS, Bytes::new()).await
    }
}

/// What can be read, as the body of a request.
struct Reading<R>(R);

impl<R: AsyncRead + Unpin> Body for Reading<R> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let mut chunk = vec![0; CHUNK];
        let mut buffer = ReadBuf::new(&mut chunk);
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut buffer))?;
        let read = buffer.filled().len();
        chunk.truncate(read);
        Poll::Ready((read > 0).then(|| Ok(Frame::data(chunk.into()))))
    }
}

/// A piece of a cast. Pieces of one source come in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// What it is.
    pub heading: Heading,
    /// Its bytes.
    pub data: Vec<u8>,
}

/// Pieces of casts, as they come.
#[derive(Debug)]
pub struct Casts {
    body: Incoming,
    rest: Vec<u8>,
    /// Casts that are not whole yet, by source.
    begun: BTreeMap<(String, bool, u64), Piece>,
}

impl Casts {
    /// The next piece; `None` when the daemon has ended.
    ///
    /// # Errors
    /// When it makes no sense.
    pub async fn next(&mut self) -> Result<Option<Piece>, Error> {
        let end = loop {
            if let Some(end) = self.rest.iter().position(|&b| b == b'\n') {
                break end;
            }
            if self.rest.len() > HEADING_MAX {
                return Err(Error::Answer("a heading without an end".to_owned()));
            }
            if !self.more().await {
                return Ok(None);
            }
        };
        let heading: Heading = serde_json::from_slice(&self.rest[..end]).map_err(|e| Error::Answer(e.to_string()))?;
        let whole = end + 1 + usize::try_from(heading.bytes).map_err(|e| Error::Answer(e.to_string()))?;
        while self.rest.len() < whole {
            if !self.more().await {
                return Ok(None);
            }
        }
        let data = self.rest[end + 1..whole].to_vec();
        self.rest.drain(..whole);
        Ok(Some(Piece { heading, data }))
    }

    /// The next cast as a whole, when it has at most so many bytes; longer ones, and those of which something is missing, are
    /// passed over.
    ///
    /// # Errors
    /// When it makes no sense.
    pub async fn next_whole(&mut self, most: usize) -> Result<Option<Piece>, Error> {
        while let Some(piece) = self.next().await? {
            let key = (piece.heading.from.clone(), piece.heading.whole, piece.heading.stream);
            let (last, offset) = (piece.heading.last, piece.heading.offset);
            match self.begun.get_mut(&key) {
                Some(whole) if whole.data.len() as u64 == offset && whole.data.len() + piece.data.len() <= most => {
                    whole.data.extend(piece.data);
                }
                None if offset == 0 && piece.data.len() <= most => _ = self.begun.insert(key.clone(), piece),
                _ => _ = self.begun.remove(&key),
            }
            if last && let Some(mut whole) = self.begun.remove(&key) {
                (whole.heading.last, whole.heading.bytes) = (true, whole.data.len() as u64);
                return Ok(Some(whole));
            }
        }
        Ok(None)
    }

    async fn more(&mut self) -> bool {
        match self.body.frame().await {
            Some(Ok(frame)) => {
                self.rest.extend(frame.into_data().unwrap_or_default());
                true
            }
            Some(Err(_)) | None => false,
        }
    }
}
