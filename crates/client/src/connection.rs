//! One connection to a daemon: HTTP/1.1 over its Unix socket.

use crate::Error;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use phalanx_api::Refusal;
use serde::de::DeserializeOwned;
use std::path::Path;
use tokio::net::UnixStream;

/// The longest answer that is read, events aside: members of the largest zone, with room to spare.
const ANSWER_MAX: usize = 64 << 20;

pub(crate) struct Connection<B = Full<Bytes>> {
    sender: SendRequest<B>,
}

impl<B> Connection<B>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub(crate) async fn open(socket: &Path) -> Result<Self, Error> {
        let unreachable = |why| Error::Unreachable { socket: socket.to_owned(), why };
        let stream = UnixStream::connect(socket).await.map_err(unreachable)?;
        let shaken = handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|e| unreachable(std::io::Error::other(e)))?;
        // It ends with the sender.
        tokio::spawn(connection);
        Ok(Self { sender })
    }

    /// Sends a request with any body; an answer that is no success becomes an error.
    pub(crate) async fn send(self, method: Method, path: &str, body: B) -> Result<Response<Incoming>, Error> {
        self.finish(Request::builder().method(method).uri(path), body).await
    }

    async fn finish(mut self, request: hyper::http::request::Builder, body: B) -> Result<Response<Incoming>, Error> {
        let request = request.header("host", "phalanx").body(body).map_err(|e| Error::Answer(e.to_string()))?;
        let answer = self.sender.send_request(request).await.map_err(|e| Error::Answer(e.to_string()))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let said = read(answer).await?;
        let error = serde_json::from_slice::<Refusal>(&said).map_or_else(|_| status.to_string(), |r| r.error);
        Err(Error::Refused { status: status.as_u16(), error })
    }
}

impl Connection {
    pub(crate) async fn get<A: DeserializeOwned>(self, path: &str) -> Result<A, Error> {
        read_json(self.ask(Method::GET, path, Bytes::new(), None).await?).await
    }

    pub(crate) async fn text(self, path: &str) -> Result<String, Error> {
        let bytes = read(self.ask(Method::GET, path, Bytes::new(), None).await?).await?;
        String::from_utf8(bytes.into()).map_err(|e| Error::Answer(e.to_string()))
    }

    /// Asks for something to be done, and says what came of it.
    pub(crate) async fn post<A: DeserializeOwned>(self, path: &str, body: &impl serde::Serialize) -> Result<A, Error> {
        let body = serde_json::to_string(body).map_err(|e| Error::Answer(e.to_string()))?;
        self.post_text(path, body).await
    }

    pub(crate) async fn post_text<A: DeserializeOwned>(self, path: &str, body: String) -> Result<A, Error> {
        read_json(self.ask(Method::POST, path, body.into(), None).await?).await
    }

    /// Asks for something to be done.
    pub(crate) async fn act(self, method: Method, path: &str, body: impl Into<Bytes>) -> Result<(), Error> {
        self.ask(method, path, body.into(), None).await.map(drop)
    }

    /// Sends a request; an answer that is no success becomes an error.
    pub(crate) async fn ask(
        self,
        method: Method,
        path: &str,
        body: Bytes,
        last_event: Option<u64>,
    ) -> Result<Response<Incoming>, Error> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(id) = last_event {
            request = request.header("last-event-id", id);
        }
        if body.first() == Some(&b'{') {
            request = request.header("content-type", "application/json");
        }
        self.finish(request, Full::new(body)).await
    }
}

/// What an answer says in JSON.
pub(crate) async fn read_json<A: DeserializeOwned>(answer: Response<Incoming>) -> Result<A, Error> {
    let bytes = read(answer).await?;
    serde_json::from_slice(&bytes).map_err(|e| Error::Answer(e.to_string()))
}

async fn read(answer: Response<Incoming>) -> Result<Bytes, Error> {
    let body = http_body_util::Limited::new(answer.into_body(), ANSWER_MAX);
    body.collect().await.map(http_body_util::Collected::to_bytes).map_err(|e| Error::Answer(e.to_string()))
}
