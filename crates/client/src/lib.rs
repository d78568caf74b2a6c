//! Asks a daemon: who is there, what happens. [`Client`] for async programs, [`blocking::Client`] for others.
//!
//! A client holds no connection between calls, so a daemon may restart at any time; readers of [`Events`] reconnect by
//! themselves and miss nothing that the daemon still knows.
//!
//! ```no_run
//! # async fn example() -> Result<(), phalanx_client::Error> {
//! let client = phalanx_client::Client::new("/run/phalanx/phalanx.sock");
//! for member in client.members().await? {
//!     println!("{} {}", member.name, member.state.name());
//! }
//! # Ok(()) }
//! ```
//!
//! A program that looks for services all the time keeps the [`directory`] in its own memory: [`Client::directory`].

pub mod blocking;
pub mod casts;
mod connection;
pub mod directory;
mod events;
pub mod jobs;
pub mod local;
mod manage;
#[cfg(target_os = "linux")]
pub mod notice;
mod operate;
mod rumours;
pub mod run;

pub use directory::Directory;
pub use events::Events;
pub use jobs::Task;
pub use phalanx_api as api;
pub use rumours::Answers;

use connection::Connection;
use hyper::Method;
use phalanx_api::{Attributes, Event, Member, Offer, Service, Status, path};
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

/// Where a daemon listens unless it is told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/phalanx/phalanx.sock";
/// Names the socket for all programs of a user.
pub const SOCKET_VARIABLE: &str = "PHALANX_SOCKET";

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody answers.
    #[error("no daemon answers at {}: {why}", socket.display())]
    Unreachable {
        /// Where it should be.
        socket: PathBuf,
        /// What the system said.
        why: io::Error,
    },
    /// The daemon said no, and why.
    #[error("{error}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// What is wrong, and what to do.
        error: String,
    },
    /// The answer makes no sense.
    #[error("the daemon's answer makes no sense ({0}): is it of another version?")]
    Answer(String),
    /// This program was not started as it should have been.
    #[error("{0}")]
    Environment(String),
}

/// Asks the daemon at a socket.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client of the daemon at this socket. Nothing is sent yet.
    pub fn new(socket: impl AsRef<Path>) -> Self {
        Self { socket: socket.as_ref().to_owned() }
    }

    /// A client of the daemon that `PHALANX_SOCKET` names, or of the one at [`DEFAULT_SOCKET`].
    #[must_use]
    pub fn from_environment() -> Self {
        Self::new(std::env::var_os(SOCKET_VARIABLE).unwrap_or_else(|| DEFAULT_SOCKET.into()))
    }

    /// How the node is.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn status(&self) -> Result<Status, Error> {
        self.connect().await?.get(path::STATUS).await
    }

    /// Everybody whom the node sees, and those who are gone lately; by name.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn members(&self) -> Result<Vec<Member>, Error> {
        self.connect().await?.get(path::MEMBERS).await
    }

    /// What members say of themselves, by name.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn attributes(&self) -> Result<Vec<Attributes>, Error> {
        self.connect().await?.get(path::ATTRIBUTES).await
    }

    /// Writes one of the node's own attributes; without a value it is removed.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn set_attribute(&self, key: &str, value: Option<&str>) -> Result<(), Error> {
        let path = format!("{}/{}", path::ATTRIBUTES, escaped(key));
        let method = if value.is_some() { Method::PUT } else { Method::DELETE };
        self.connect().await?.act(method, &path, value.unwrap_or_default().to_owned()).await
    }

    /// Services that are there: those that an expression asks for, or all.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn services(&self, find: Option<&str>) -> Result<Vec<Service>, Error> {
        let path = match find {
            Some(expression) => format!("{}?find={}", path::SERVICES, escaped(expression)),
            None => path::SERVICES.to_owned(),
        };
        self.connect().await?.get(&path).await
    }

    /// The node offers a service, or changes what it says of it.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn offer(&self, offer: &Offer) -> Result<(), Error> {
        let body = serde_json::to_string(offer).map_err(|e| Error::Answer(e.to_string()))?;
        self.connect().await?.act(Method::PUT, path::SERVICES, body).await
    }

    /// The node offers a service no more.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn withdraw(&self, name: &str, port: Option<u16>) -> Result<(), Error> {
        let port = port.map_or_else(String::new, |port| format!(":{port}"));
        let path = format!("{}/{}{port}", path::SERVICES, escaped(name));
        self.connect().await?.act(Method::DELETE, &path, "").await
    }

    /// What happened since event `after`, or all that the daemon still knows.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn recent(&self, after: Option<u64>) -> Result<Vec<Event>, Error> {
        let after = after.map_or_else(String::new, |id| format!("&after={id}"));
        self.connect().await?.get(&format!("{}?follow=false{after}", path::EVENTS)).await
    }

    /// What happens from now on, or since event `after`.
    #[must_use]
    pub fn events(&self, after: Option<u64>) -> Events {
        Events::new(self.clone(), after)
    }

    /// The node leaves the cluster in an orderly way, and its daemon ends.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn leave(&self) -> Result<(), Error> {
        self.connect().await?.act(Method::POST, path::LEAVE, "").await
    }

    async fn connect(&self) -> Result<Connection, Error> {
        Connection::open(&self.socket).await
    }
}

/// A text as a part of a path.
fn escaped(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut path, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => path.push(byte.into()),
            _ => _ = write!(path, "%{byte:02X}"),
        }
        path
    })
}
