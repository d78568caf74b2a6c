//! The jobs with tasks on this node: a shepherd for each, started when its first task comes and kept in touch with.
//!
//! | file | idea |
//! |---|---|
//! | here | which jobs there are; shepherds are started, or found again after a restart |
//! | `errands` | what MPI ranks want of the cluster |
//! | `keeper` | one daemon, one shepherd: what they tell each other |
//! | [`managed`] | what the manager's commands mean here |
//! | `shown` | what the manager shows, in the API's words |
//! | [`spec`] | what a job runs, on its way through the manager |

mod errands;
mod keeper;
pub mod managed;
pub(crate) mod shown;
pub mod spec;

use crate::agent::jobs::Post;
use crate::agent::{Ended, Remote, RumourError, journal::Journal};
use crate::shepherd::{self, words::Terms};
use futures_util::future::join_all;
use keeper::{Keeper, Order};
use phalanx_api::Phase;
use phalanx_api::casts::{self, Heading};
use phalanx_api::jobs::{ARITY, Job, JobView, JobWanted, wrong_name};
use phalanx_api::rumours::Answer;
use phalanx_protocol::rumour::Id;
use phalanx_protocol::view::tree::{Tree, TreeError};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

/// Users whose jobs run here pass through it to the sockets that they may open, and see no others.
const DIR_MODE: u32 = 0o711;
/// The longest path of a Unix socket.
const PATH_MAX: usize = 107;
/// A shepherd says who it is within this time.
const START_PATIENCE: Duration = Duration::from_secs(5);
/// One that is gone before that has ended within this time.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// A shepherd answers within this time.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// Tasks in one part of an answer to another node.
const PART: usize = 64;
/// A program that is started as the shepherd instead of this one.
const COMMAND: &str = "PHALANX_SHEPHERD";

/// Why something about a job was refused. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// Its name.
    #[error("{0}")]
    Name(String),
    /// Its tree.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// It is another job.
    #[error("job `{name}` runs with {is}, not {asked}: join it as it is, or choose another name")]
    Differs {
        /// Its name.
        name: String,
        /// What it is.
        is: String,
        /// What was asked for.
        asked: String,
    },
    /// There is none.
    #[error("there is no job `{0}`: see `phalanx view` for those that there are")]
    Missing(String),
    /// It has no view yet.
    #[error("job `{0}` has no view yet: its rank 0 has not come")]
    Early(String),
    /// Nobody answers for it.
    #[error("job `{0}` runs, but nobody answered for it: try again")]
    Silent(String),
    /// Its shepherd.
    #[error("cannot start the shepherd of job `{name}`: {why}")]
    Start {
        /// The job.
        name: String,
        /// Why.
        why: io::Error,
    },
    /// Too many questions.
    #[error(transparent)]
    Rumour(#[from] RumourError),
    /// The daemon is ending.
    #[error(transparent)]
    Ended(#[from] Ended),
}

/// The jobs of a node.
#[derive(Clone)]
pub struct Jobs(Arc<Inner>);

struct Inner {
    remote: Remote,
    journal: Journal,
    /// Where sockets of shepherds are.
    dir: PathBuf,
    runtime: Handle,
    kept: Mutex<BTreeMap<String, Kept>>,
    managed: Mutex<managed::Table>,
    /// One shepherd is started at a time.
    starting: tokio::sync::Mutex<()>,
}

/// A shepherd that we are in touch with.
struct Kept {
    terms: Terms,
    pid: Option<u32>,
    orders: mpsc::UnboundedSender<Order>,
}

impl Jobs {
    /// The jobs of the node whose control API is at `socket`. Shepherds that an earlier daemon left are found again. `runtime` is where
    /// keepers run.
    #[must_use]
    pub fn new(remote: Remote, journal: Journal, socket: &Path, runtime: Handle) -> Self {
        let dir = socket.with_extension("jobs");
        let (kept, managed, starting) = (Mutex::default(), Mutex::default(), tokio::sync::Mutex::default());
        let jobs = Self(Arc::new(Inner { remote, journal, dir, runtime, kept, managed, starting }));
        let known = jobs.clone();
        jobs.0.remote.tell(move |agent| agent.keep_jobs(known));
        jobs
    }

    /// Finds shepherds that an earlier daemon left, and tells the manager what they run.
    pub async fn find_again(&self) {
        self.greet_all().await;
        self.report_inventory();
    }

    /// Returns when all of them have said what they run.
    async fn greet_all(&self) {
        let Ok(files) = std::fs::read_dir(&self.0.dir) else { return };
        let mut greeted = Vec::new();
        for path in files.filter_map(|f| Some(f.ok()?.path())).filter(|p| p.extension().is_some_and(|e| e == "sock")) {
            let Some(name) = path.file_stem().and_then(|s| s.to_str()).map(str::to_owned) else { continue };
            match UnixStream::connect(&path).await {
                Ok(stream) => {
                    tracing::info!(job = name, "its shepherd is still there");
                    let (tell, told) = oneshot::channel();
                    self.0.runtime.spawn(Keeper::new(self.clone(), name, None).greeted(tell).keep(stream));
                    greeted.push(told);
                }
                Err(_) => _ = std::fs::remove_file(&path),
            }
        }
        // One that does not answer is known when it does.
        let _ = tokio::time::timeout(ANSWER_PATIENCE, join_all(greeted)).await;
    }

    /// Something was cast to the tasks of a job.
    pub(crate) fn cast(&self, heading: &Heading, data: &[u8]) {
        if let Some(kept) = self.lock().get(&heading.name) {
            let heading = serde_json::to_vec(heading).unwrap_or_default();
            // The shepherd may just have ended.
            let _ = kept.orders.send(Order::Cast(casts::frame(&heading, data)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Kept>> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn managed(&self) -> MutexGuard<'_, managed::Table> {
        self.0.managed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something for a shepherd; false when there is none.
    fn order(&self, name: &str, order: Order) -> bool {
        self.lock().get(name).is_some_and(|kept| kept.orders.send(order).is_ok())
    }

    /// Makes sure that the job has a shepherd here.
    async fn shepherd(&self, terms: Terms) -> io::Result<()> {
        let _turn = self.0.starting.lock().await;
        if self.lock().contains_key(&terms.name) {
            return Ok(());
        }
        let socket = self.socket(&terms.name);
        self.start(terms, &socket).await
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.0.dir.join(format!("{name}.sock"))
    }

    /// The socket of a job's shepherd, which is started when there is none.
    ///
    /// # Errors
    /// See [`JobError`].
    pub async fn enter(&self, name: &str, wanted: &JobWanted) -> Result<PathBuf, JobError> {
        if let Some(wrong) = wrong_name(name) {
            return Err(JobError::Name(wrong));
        }
        let arity = wanted.arity.unwrap_or(ARITY);
        Tree::new(arity, wanted.size)?;
        let _turn = self.0.starting.lock().await;
        let known = self.lock().get(name).map(|kept| kept.terms.clone());
        let known = match known {
            Some(terms) => Some(terms),
            None => self.posts(name).await?.and_then(|posts| posts.first().map(|p| p.terms(name))),
        };
        let terms = match known {
            Some(terms) => agreed(terms, wanted)?,
            None => Terms {
                name: name.to_owned(),
                size: wanted.size,
                arity,
                on_partition: wanted.on_partition.unwrap_or_default(),
            },
        };
        let socket = self.socket(name);
        if !self.lock().contains_key(name) {
            self.start(terms, &socket).await.map_err(|why| JobError::Start { name: name.to_owned(), why })?;
        }
        Ok(socket)
    }

    async fn start(&self, terms: Terms, socket: &Path) -> io::Result<()> {
        if socket.as_os_str().len() > PATH_MAX {
            let why = format!("the path {} is too long for a socket: choose a shorter --socket", socket.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        std::fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(&self.0.dir)?;
        // Whoever made it.
        std::fs::set_permissions(&self.0.dir, std::fs::Permissions::from_mode(DIR_MODE))?;
        let listener = shepherd::bind(socket)?;
        let program = std::env::var_os(COMMAND).map_or_else(std::env::current_exe, |p| Ok(p.into()))?;
        let mut command = tokio::process::Command::new(program);
        // Its socket is there before it is: what is said to it meanwhile waits there.
        command.arg("shepherd").arg(socket).stdin(OwnedFd::from(listener)).stdout(Stdio::null());
        let mut child = command.spawn()?;
        // When it ends nobody holds its socket.
        drop(command);
        let stream = UnixStream::connect(socket).await?;
        let (tell, told) = oneshot::channel();
        let keeper = Keeper::new(self.clone(), terms.name.clone(), Some(terms)).greeted(tell);
        self.0.runtime.spawn(keeper.keep(stream));
        if let Ok(Ok(())) = tokio::time::timeout(START_PATIENCE, told).await {
            self.0.runtime.spawn(async move { child.wait().await });
            return Ok(());
        }
        if let Ok(status) = tokio::time::timeout(LAST_WORDS, child.wait()).await {
            return Err(io::Error::other(format!("it ended at once, {}", status?)));
        }
        // One that says nothing is of no use, and must not become so later.
        let _ = child.start_kill();
        Err(io::Error::new(io::ErrorKind::TimedOut, "it says nothing"))
    }

    /// Where tasks of a job are; `None` while this node does not know its zone yet.
    async fn posts(&self, name: &str) -> Result<Option<Vec<Post>>, JobError> {
        let job = name.to_owned();
        let look = self.0.remote.ask(move |agent| {
            let starting = agent.status().is_none_or(|s| s.phase == Phase::Starting);
            let here: Vec<Post> = agent.job_posts().into_iter().filter(|(n, _)| *n == job).map(|p| p.1).collect();
            let asked = if here.is_empty() { agent.seek_job(&job).unwrap_or_default() } else { Vec::new() };
            (starting, here, asked)
        });
        let (starting, mut posts, asked) = look.await?;
        for answer in join_all(asked.into_iter().map(first)).await.into_iter().flatten() {
            let told: Vec<Post> = answer.payload.and_then(|p| serde_json::from_str(&p).ok()).unwrap_or_default();
            posts.extend(told.into_iter().filter(|p| !posts.contains(p)).collect::<Vec<_>>());
        }
        Ok((!starting || !posts.is_empty()).then_some(posts))
    }

    /// The view of a job, wherever its tasks are.
    ///
    /// # Errors
    /// See [`JobError`].
    pub async fn view(&self, name: &str) -> Result<JobView, JobError> {
        if self.lock().contains_key(name)
            && let Some(view) = self.show(name).await
        {
            return Ok(view);
        }
        let posts = self.posts(name).await?.unwrap_or_default();
        if posts.is_empty() {
            let early = self.lock().contains_key(name);
            let name = name.to_owned();
            return Err(if early { JobError::Early(name) } else { JobError::Missing(name) });
        }
        for post in posts {
            let job = name.to_owned();
            let answers = self.0.remote.ask(move |agent| agent.ask_job_view(&job, post.daemon)).await??;
            if let Some(view) = gather(answers).await {
                return Ok(view);
            }
        }
        Err(JobError::Silent(name.to_owned()))
    }

    /// The view of a job, as its shepherd here has it.
    async fn show(&self, name: &str) -> Option<JobView> {
        let (tell, told) = oneshot::channel();
        self.lock().get(name)?.orders.send(Order::Show(tell)).ok()?;
        tokio::time::timeout(ANSWER_PATIENCE, told).await.ok()?.ok()?
    }

    /// Another node asks for the view of a job.
    pub(crate) fn answer(&self, id: Id, name: String) {
        let jobs = self.clone();
        self.0.runtime.spawn(async move {
            let Some(view) = jobs.show(&name).await else { return };
            jobs.0.remote.tell(move |agent| {
                let parts: Vec<_> = view.tasks.chunks(PART).collect();
                for (at, part) in parts.iter().enumerate() {
                    let more = at + 1 < parts.len();
                    let part = JobView { tasks: part.to_vec(), more, ..JobView { tasks: Vec::new(), ..view.clone() } };
                    agent.say_part(id, &part, !more);
                }
            });
        });
    }

    /// Jobs of which this node knows.
    ///
    /// # Errors
    /// When the daemon is ending.
    pub async fn list(&self) -> Result<Vec<Job>, JobError> {
        let posts = self.0.remote.ask(|agent| agent.job_posts()).await?;
        let mut jobs: BTreeMap<(String, Option<u64>), Job> = BTreeMap::new();
        for (name, post) in posts {
            let job = jobs.entry((name.clone(), Some(post.instance))).or_insert_with(|| Job {
                name,
                instance: Some(format!("{:016x}", post.instance)),
                size: post.size,
                arity: post.arity,
                nodes: Vec::new(),
                shepherd: None,
            });
            if !job.nodes.contains(&post.node) {
                job.nodes.push(post.node);
            }
        }
        for (name, kept) in &*self.lock() {
            if let Some((_, job)) = jobs.iter_mut().find(|((n, _), _)| n == name) {
                job.shepherd = kept.pid;
                continue;
            }
            let Terms { size, arity, .. } = kept.terms;
            let job = Job { name: name.clone(), instance: None, size, arity, nodes: Vec::new(), shepherd: kept.pid };
            jobs.insert((name.clone(), None), job);
        }
        Ok(jobs.into_values().collect())
    }
}

/// What a job is, when that is what was asked for.
fn agreed(is: Terms, wanted: &JobWanted) -> Result<Terms, JobError> {
    let differ = |is_so: String, asked: String| Err(JobError::Differs { name: is.name.clone(), is: is_so, asked });
    if wanted.size != is.size {
        return differ(format!("{} ranks", is.size), wanted.size.to_string());
    }
    if let Some(arity) = wanted.arity.filter(|&a| a != is.arity) {
        return differ(format!("arity {}", is.arity), arity.to_string());
    }
    if let Some(policy) = wanted.on_partition.filter(|&p| p != is.on_partition) {
        return differ(format!("--on-partition {}", is.on_partition.name()), policy.name().to_owned());
    }
    Ok(is)
}

/// The first answer to a question.
async fn first(mut answers: mpsc::Receiver<Answer>) -> Option<Answer> {
    loop {
        let answer = answers.recv().await?;
        if answer.payload.is_some() {
            return Some(answer);
        }
    }
}

/// A view that comes in parts.
async fn gather(mut answers: mpsc::Receiver<Answer>) -> Option<JobView> {
    let mut whole: Option<JobView> = None;
    while let Some(answer) = answers.recv().await {
        let Some(part) = answer.payload.and_then(|p| serde_json::from_str::<JobView>(&p).ok()) else { continue };
        let more = part.more;
        match &mut whole {
            Some(view) => view.tasks.extend(part.tasks),
            None => whole = Some(part),
        }
        if !more {
            break;
        }
    }
    // Whose tasks are here was said by another node.
    whole.map(|mut view| {
        view.more = false;
        view.tasks.iter_mut().for_each(|t| t.here = false);
        view
    })
}
