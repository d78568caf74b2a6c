//! What the manager is asked: jobs that it runs, slots of nodes, its own replicas.

use crate::{Client, Error, escaped};
use hyper::Method;
use phalanx_api::manage::{Managers, NodeSlots, ReplicaMove, Run, RunDetail, SignalWanted};
use phalanx_api::path;

impl Client {
    /// Jobs that the manager knows: those that wait, those that run, those that ended lately.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn runs(&self) -> Result<Vec<Run>, Error> {
        self.connect().await?.get(path::RUNS).await
    }

    /// One of them, by name or number, with its ranks and what happened to it.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn run_detail(&self, job: &str) -> Result<RunDetail, Error> {
        self.connect().await?.get(&format!("{}/{}", path::RUNS, escaped(job))).await
    }

    /// Ends a job: its ranks are killed.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn end_run(&self, job: &str) -> Result<(), Error> {
        self.connect().await?.act(Method::DELETE, &format!("{}/{}", path::RUNS, escaped(job)), "").await
    }

    /// A signal for all ranks of a job.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn signal_run(&self, job: &str, signal: i32) -> Result<(), Error> {
        let body = serde_json::to_string(&SignalWanted { signal }).map_err(|e| Error::Answer(e.to_string()))?;
        let path = format!("{}/{}/signal", path::RUNS, escaped(job));
        self.connect().await?.act(Method::POST, &path, body).await
    }

    /// Nodes and their slots.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn slots(&self) -> Result<Vec<NodeSlots>, Error> {
        self.connect().await?.get(path::SLOTS).await
    }

    /// A node gets no new ranks, or again.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn drain(&self, node: &str, drained: bool) -> Result<(), Error> {
        let method = if drained { Method::PUT } else { Method::DELETE };
        self.connect().await?.act(method, &format!("{}/{}/drain", path::SLOTS, escaped(node)), "").await
    }

    /// The manager's replicas.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn managers(&self) -> Result<Managers, Error> {
        self.connect().await?.get(path::MANAGERS).await
    }

    /// A replica moves to another node.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn move_replica(&self, from: &str, to: &str) -> Result<(), Error> {
        let wanted = ReplicaMove { from: from.to_owned(), to: to.to_owned() };
        let body = serde_json::to_string(&wanted).map_err(|e| Error::Answer(e.to_string()))?;
        self.connect().await?.act(Method::POST, path::MANAGERS, body).await
    }
}
