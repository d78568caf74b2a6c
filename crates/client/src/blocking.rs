//! The same for programs without a runtime: each call waits for its answer.

use crate::Error;
use phalanx_api::{Event, Member, Status};
use std::path::Path;
use tokio::runtime::{Builder, Runtime};

/// Asks the daemon at a socket, and waits.
#[derive(Debug)]
pub struct Client {
    client: crate::Client,
    runtime: Runtime,
}

impl Client {
    /// A client of the daemon at this socket. Nothing is sent yet.
    ///
    /// # Panics
    /// When the system has no more descriptors.
    pub fn new(socket: impl AsRef<Path>) -> Self {
        Self::of(crate::Client::new(socket))
    }

    /// As [`crate::Client::from_environment`].
    ///
    /// # Panics
    /// When the system has no more descriptors.
    #[must_use]
    pub fn from_environment() -> Self {
        Self::of(crate::Client::from_environment())
    }

    fn of(client: crate::Client) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a few descriptors");
        Self { client, runtime }
    }

    /// How the node is.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn status(&self) -> Result<Status, Error> {
        self.runtime.block_on(self.client.status())
    }

    /// Everybody whom the node sees, and those who are gone lately; by name.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn members(&self) -> Result<Vec<Member>, Error> {
        self.runtime.block_on(self.client.members())
    }

    /// The node leaves the cluster in an orderly way, and its daemon ends.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn leave(&self) -> Result<(), Error> {
        self.runtime.block_on(self.client.leave())
    }

    /// What happens from now on, or since event `after`: each call of `next` waits. Ends with an error, or never.
    pub fn events(&self, after: Option<u64>) -> impl Iterator<Item = Result<Event, Error>> + '_ {
        let mut events = self.client.events(after);
        std::iter::repeat_with(move || self.runtime.block_on(events.next()))
    }
}
