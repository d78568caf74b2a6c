//! The same for programs without a runtime: each call waits for its answer.

use crate::Error;
use phalanx_api::{Attributes, Event, Member, Offer, Service, Status};
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

    /// What members say of themselves, by name.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn attributes(&self) -> Result<Vec<Attributes>, Error> {
        self.runtime.block_on(self.client.attributes())
    }

    /// Writes one of the node's own attributes; without a value it is removed.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn set_attribute(&self, key: &str, value: Option<&str>) -> Result<(), Error> {
        self.runtime.block_on(self.client.set_attribute(key, value))
    }

    /// Services that are there: those that an expression asks for, or all.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn services(&self, find: Option<&str>) -> Result<Vec<Service>, Error> {
        self.runtime.block_on(self.client.services(find))
    }

    /// The node offers a service, or changes what it says of it.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn offer(&self, offer: &Offer) -> Result<(), Error> {
        self.runtime.block_on(self.client.offer(offer))
    }

    /// The node offers a service no more.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn withdraw(&self, name: &str, port: Option<u16>) -> Result<(), Error> {
        self.runtime.block_on(self.client.withdraw(name, port))
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
