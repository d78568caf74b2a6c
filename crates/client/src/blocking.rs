//! The same for programs without a runtime: each call waits for its answer.

use crate::Error;
use crate::casts::{Piece, To};
use crate::directory::{self, Directory};
use crate::jobs::{self, Join};
use phalanx_api::casts::{Reached, Seat};
use phalanx_api::federation::Federation;
use phalanx_api::jobs::{Job, JobView, View};
use phalanx_api::manage::{Managers, NodeSlots, Run, RunDetail};
use phalanx_api::operate::{Fault, KeyChange, KeyRing, RoundTrip};
use phalanx_api::reduce::Gathered;
use phalanx_api::rumours::{Answer, Question};
use phalanx_api::segments::Level;
use phalanx_api::zones::{Census, Zone, ZoneMembers};
use phalanx_api::{Attributes, Event, Member, Offer, Service, Status};
use std::collections::BTreeMap;
use std::path::Path;
use tokio::io::AsyncRead;
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

    /// What happens from now on, or since event `after`: each call of `next` waits. Ends with an error, or never.
    pub fn events(&self, after: Option<u64>) -> impl Iterator<Item = Result<Event, Error>> + '_ {
        let mut events = self.client.events(after);
        std::iter::repeat_with(move || self.runtime.block_on(events.next()))
    }

    /// The directory, in memory from now on; it is followed by a thread of its own, and outlives this client.
    ///
    /// # Errors
    /// When no daemon answers, or one that is too old for this.
    pub fn directory(&self) -> Result<Directory, Error> {
        directory::open_on_thread(self.client.clone())
    }

    /// What is cast to this node from now on: each call of `next` waits for a piece, until the daemon ends.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn casts(&self) -> Result<impl Iterator<Item = Result<Piece, Error>> + '_, Error> {
        let mut casts = self.runtime.block_on(self.client.casts())?;
        Ok(std::iter::from_fn(move || self.runtime.block_on(casts.next()).transpose()))
    }

    /// As [`crate::Client::cast_stream`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn cast_stream(
        &self,
        to: &To,
        name: &str,
        from: impl AsyncRead + Unpin + Send + 'static,
    ) -> Result<Reached, Error> {
        self.runtime.block_on(self.client.cast_stream(to, name, from))
    }

    /// Asks all members something: each call of `next` waits for an answer, until their time is over.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn ask(&self, question: &Question) -> Result<impl Iterator<Item = Result<Answer, Error>> + '_, Error> {
        let mut answers = self.runtime.block_on(self.client.ask(question))?;
        Ok(std::iter::from_fn(move || self.runtime.block_on(answers.next()).transpose()))
    }
}

impl Client {
    /// As [`crate::Client::join`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn join(&self, job: &str, rank: u32, size: u32) -> Result<Task<'_>, Error> {
        self.join_with(job, Join::rank(rank, size))
    }

    /// The rank that this program was started as by `phalanx run`, as [`jobs::Task::from_environment`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn task(&self) -> Result<Task<'_>, Error> {
        let task = self.runtime.block_on(jobs::Task::from_environment())?;
        Ok(Task { task, runtime: &self.runtime })
    }

    /// As [`crate::Client::join_with`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn join_with(&self, job: &str, join: Join) -> Result<Task<'_>, Error> {
        let task = self.runtime.block_on(self.client.join_with(job, join))?;
        Ok(Task { task, runtime: &self.runtime })
    }
}

/// One task of a job. Dropped, it is gone.
#[derive(Debug)]
pub struct Task<'c> {
    task: jobs::Task,
    runtime: &'c Runtime,
}

impl Task<'_> {
    /// As [`jobs::Task::view`]; our number and rank are in it.
    #[must_use]
    pub fn view(&self) -> &View {
        self.task.view()
    }

    /// As [`jobs::Task::next`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn event(&mut self) -> Result<jobs::Event, Error> {
        self.runtime.block_on(self.task.next())
    }

    /// As [`jobs::Task::wait_full`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn wait_full(&mut self) -> Result<&View, Error> {
        self.runtime.block_on(self.task.wait_full())
    }

    /// As [`jobs::Task::send`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send(&self, to: u32, body: &[u8]) -> Result<(), Error> {
        self.runtime.block_on(self.task.send(to, body))
    }

    /// As [`jobs::Task::barrier`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn barrier(&self) -> Result<(), Error> {
        self.runtime.block_on(self.task.barrier())
    }

    /// As [`jobs::Task::sum`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn sum(&self, value: i64) -> Result<i64, Error> {
        self.runtime.block_on(self.task.sum(value))
    }

    /// As [`jobs::Task::gather`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn gather(&self, value: &[u8]) -> Result<Gathered, Error> {
        self.runtime.block_on(self.task.gather(value))
    }

    /// As [`jobs::Task::paused`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn paused(&self) -> Result<(), Error> {
        self.runtime.block_on(self.task.paused())
    }

    /// As [`jobs::Task::checkpoint`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn checkpoint(&self) -> Result<(), Error> {
        self.runtime.block_on(self.task.checkpoint())
    }

    /// As [`jobs::Task::rejoin`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn rejoin(&self) -> Result<(), Error> {
        self.runtime.block_on(self.task.rejoin())
    }

    /// As [`jobs::Task::leave`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn leave(&self) -> Result<(), Error> {
        self.runtime.block_on(self.task.leave())
    }
}

/// Each of these is a call of [`crate::Client`] that is waited for.
macro_rules! calls {
    ($($about:literal $name:ident($($arg:ident: $of:ty),*) -> $answer:ty;)*) => {
        impl Client {
            $(
                #[doc = $about]
                ///
                /// # Errors
                /// See [`Error`].
                pub fn $name(&self, $($arg: $of),*) -> Result<$answer, Error> {
                    self.runtime.block_on(self.client.$name($($arg),*))
                }
            )*
        }
    };
}

calls! {
    "How the node is." status() -> Status;
    "Everybody whom the node sees, and those who are gone lately; by name." members() -> Vec<Member>;
    "What members say of themselves, by name." attributes() -> Vec<Attributes>;
    "Writes one of the node's own attributes; without a value it is removed."
        set_attribute(key: &str, value: Option<&str>) -> ();
    "Services that are there: those that an expression asks for, or all." services(find: Option<&str>) -> Vec<Service>;
    "The node offers a service, or changes what it says of it." offer(offer: &Offer) -> ();
    "The node offers a service no more." withdraw(name: &str, port: Option<u16>) -> ();
    "The node leaves the cluster in an orderly way, and its daemon ends." leave() -> ();
    "What happened since event `after`, or all that the daemon still knows." recent(after: Option<u64>) -> Vec<Event>;
    "Tells all members something." tell(name: &str, payload: &str) -> ();
    "Casts something; returns when all who live have it." cast(to: &To, name: &str, body: Vec<u8>) -> Reached;
    "Who sits where in the tree of casts." seats() -> Vec<Seat>;
    "Fills the holes of the tree of casts now." repair() -> ();
    "This node's answer to a question, once; `query` is what the event says." reply(query: &str, payload: &str) -> ();
    "All zones, and how many members each has." census() -> Census;
    "All zones." zones() -> Vec<Zone>;
    "The members of a zone." zone(name: &str) -> ZoneMembers;
    "The groups that the node takes part in, from its own segment up." segments() -> Vec<Level>;
    "What the node knows of other data centres." federation() -> Federation;
    "The round trip to a member, measured now." round_trip(name: &str) -> RoundTrip;
    "Round trips with neighbours, as the traffic with them shows." round_trips() -> Vec<RoundTrip>;
    "A member that is gone is forgotten, by all." force_leave(name: &str) -> ();
    "The cluster's keys, as the node has them." keys() -> KeyRing;
    "The cluster's keys, as each member has them, by name." all_keys() -> BTreeMap<String, KeyRing>;
    "Changes the cluster's keys, at all members; says what they are then." change_keys(change: &KeyChange) -> KeyRing;
    "Faults that are injected into the node's traffic." faults() -> Vec<Fault>;
    "Injects a fault: a rule in TOML." inject(rule: &str) -> Fault;
    "Heals a fault, or all." heal(id: Option<u32>) -> ();
    "Jobs of which the node knows." jobs() -> Vec<Job>;
    "The view of a job, wherever its tasks are." job(job: &str) -> JobView;
    "Jobs that the manager knows." runs() -> Vec<Run>;
    "One of them, by name or number, with its ranks and what happened to it." run_detail(job: &str) -> RunDetail;
    "Ends a job: its ranks are killed." end_run(job: &str) -> ();
    "A signal for all ranks of a job." signal_run(job: &str, signal: i32) -> ();
    "Nodes and their slots." slots() -> Vec<NodeSlots>;
    "A node gets no new ranks, or again." drain(node: &str, drained: bool) -> ();
    "The manager's replicas." managers() -> Managers;
    "A replica moves to another node." move_replica(from: &str, to: &str) -> ();
    "Figures, as Prometheus reads them." metrics() -> String;
}
