//! Events of a daemon, one after the other, over as many connections as it takes.

use crate::{Client, Error};
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::{Bytes, Incoming};
use phalanx_api::{Event, path};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// The longest line of a stream of events.
const LINE_MAX: usize = 1 << 20;
/// Between tries to reach a daemon that ended.
pub(crate) const RETRY_FIRST: Duration = Duration::from_millis(50);
pub(crate) const RETRY_LAST: Duration = Duration::from_secs(2);

/// Data of a stream of server-sent events. Comments and empty lines are skipped; ids are in the data themselves.
#[derive(Debug)]
pub(crate) struct Lines {
    body: Incoming,
    rest: Vec<u8>,
}

impl Lines {
    pub(crate) fn new(body: Incoming) -> Self {
        Self { body, rest: Vec::new() }
    }

    /// The next, when it is here already.
    pub(crate) fn here<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        while let Some(end) = self.rest.iter().position(|&b| b == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            if let Some(data) = line.strip_prefix(b"data:") {
                return serde_json::from_slice(data).map(Some).map_err(|e| Error::Answer(e.to_string()));
            }
        }
        Ok(None)
    }

    /// The next; `None` at the end.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        loop {
            if let Some(data) = self.here()? {
                return Ok(Some(data));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.rest.extend(frame.into_data().unwrap_or_default()),
                Some(Err(_)) | None => return Ok(None),
            }
            if self.rest.len() > LINE_MAX {
                return Err(Error::Answer("a line without an end".to_owned()));
            }
        }
    }
}

/// A reader of events.
#[derive(Debug)]
pub struct Events {
    client: Client,
    after: Option<u64>,
    lines: Option<Lines>,
    wait: Duration,
    /// It has heard from a daemon: from now on one that does not answer is waited for.
    met: bool,
}

impl Events {
    pub(crate) fn new(client: Client, after: Option<u64>) -> Self {
        Self { client, after, lines: None, wait: RETRY_FIRST, met: false }
    }

    /// The next event. Waits for it, and for a daemon that restarts; events that were missed meanwhile are told as a gap.
    ///
    /// # Errors
    /// When no daemon answers the first time, or what it says makes no sense.
    pub async fn next(&mut self) -> Result<Event, Error> {
        loop {
            let Some(lines) = &mut self.lines else {
                self.reconnect().await?;
                continue;
            };
            match lines.next::<Event>().await? {
                Some(event) => {
                    self.after = Some(event.id);
                    return Ok(event);
                }
                None => self.lines = None,
            }
        }
    }

    async fn reconnect(&mut self) -> Result<(), Error> {
        let opened = match self.client.connect().await {
            Ok(connection) => connection.ask(Method::GET, path::EVENTS, Bytes::new(), self.after).await,
            Err(e) => Err(e),
        };
        match opened {
            Ok(answer) => {
                (self.lines, self.wait, self.met) = (Some(Lines::new(answer.into_body())), RETRY_FIRST, true);
                Ok(())
            }
            Err(Error::Unreachable { .. } | Error::Refused { status: 503, .. } | Error::Answer(_)) if self.met => {
                tokio::time::sleep(self.wait).await;
                self.wait = (self.wait * 2).min(RETRY_LAST);
                Ok(())
            }
            Err(e) => Err(e),
        }
    }
}
