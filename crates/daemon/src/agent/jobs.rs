//! Where tasks of jobs are, as nodes tell each other: in the directory of their zone, and at the supervisors for other zones.

use super::{Agent, RumourError};
use crate::shepherd::words::{Place, Terms};
use crate::store::hex;
use phalanx_api::jobs::OnPartition;
use phalanx_api::rumours::Answer;
use phalanx_core::{Addr, Duration, Instant};
use phalanx_protocol::member::Engine;
use phalanx_protocol::rumour::{Id, Words};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tokio::sync::mpsc;

/// The attribute that says of a job that tasks of it are here, the job's name behind it.
pub const ATTRIBUTE: &str = "phalanx.job.";
/// Told to a supervisor: tasks of a job are here.
const TELL: &str = "phalanx.job.tell";
/// Asked of a supervisor: where are tasks of this job?
const FIND: &str = "phalanx.job.find";
/// Asked of a node with tasks of the job: what is its view?
const VIEW: &str = "phalanx.job.view";
/// What a supervisor was told is true for so long.
const TOLD_FOR: Duration = Duration::from_secs(15);
/// Posts that a supervisor keeps.
const POSTS_MAX: usize = 16 * 1024;
/// Posts in an answer: enough to find the job.
const ANSWER_MAX: usize = 32;
/// An answer takes so long at most.
const PATIENCE: Duration = Duration::from_secs(2);

/// Tasks of a job are here, says a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Post {
    /// Which job of that name.
    pub instance: u64,
    /// Where its shepherd is.
    pub addr: SocketAddr,
    /// How many ranks it has.
    pub size: u32,
    /// Children of each task in its tree.
    pub arity: u32,
    /// What those do who cannot reach most of it.
    pub on_partition: OnPartition,
    /// The node.
    pub node: String,
    /// Where its daemon is.
    pub daemon: SocketAddr,
}

impl Post {
    /// What the job is.
    #[must_use]
    pub fn terms(&self, name: &str) -> Terms {
        let &Self { size, arity, on_partition, .. } = self;
        Terms { name: name.to_owned(), size, arity, on_partition }
    }

    /// Where it is.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { instance: self.instance, addr: self.addr }
    }
}

/// What supervisors were told, by job and node.
pub(super) type Posts = BTreeMap<(String, SocketAddr), (Instant, Post)>;

#[derive(Serialize, Deserialize)]
struct Told {
    job: String,
    daemon: SocketAddr,
    post: Option<Post>,
}

impl Agent {
    /// Says that tasks of a job are here, or not any more.
    pub fn post_job(&mut self, terms: &Terms, place: Option<&Place>) {
        let Some(daemon) = self.ip() else { return };
        let post = place.map(|place| Post {
            instance: place.instance,
            addr: place.addr,
            size: terms.size,
            arity: terms.arity,
            on_partition: terms.on_partition,
            node: self.name(),
            daemon,
        });
        let value = post.as_ref().and_then(|p| serde_json::to_vec(p).ok());
        let key = format!("{ATTRIBUTE}{}", terms.name);
        let engine = self.engine();
        if engine.attribute(engine.me(), &key) != value.as_deref() {
            let said = self.write(&key, |agent| agent.driver.act(|node, now, _| node.set(now, &key, value.as_deref())));
            if let Err(code) = said {
                tracing::warn!(job = terms.name, %code, "cannot tell others that tasks of this job are here");
            }
        }
        let told = Told { job: terms.name.clone(), daemon, post };
        self.keep_post(&told);
        let body = serde_json::to_vec(&told).unwrap_or_default();
        // Who is asked too much hears it later: it is said again.
        let _ = self.ask_supervisors(TELL, &body);
    }

    fn ip(&self) -> Option<SocketAddr> {
        match self.addr() {
            Addr::Ip(addr) => Some(addr),
            Addr::Local(_) | Addr::Group(_) => None,
        }
    }

    /// Where tasks of jobs are, as far as this node knows by itself, by job.
    #[must_use]
    pub fn job_posts(&self) -> Vec<(String, Post)> {
        let engine = self.engine();
        let mut posts = Vec::new();
        for (slot, _) in engine.members() {
            for (key, value) in engine.attributes(slot) {
                let job = key.strip_prefix(ATTRIBUTE);
                let post = job.and_then(|job| Some((job.to_owned(), serde_json::from_slice(value).ok()?)));
                posts.extend(post);
            }
        }
        let now = self.driver.now();
        let kept = self.posts.iter().filter(|(_, (until, _))| *until > now);
        posts.extend(kept.map(|((job, _), (_, post))| (job.clone(), post.clone())));
        posts.sort_by(|a: &(String, Post), b| (&a.0, a.1.instance, a.1.addr).cmp(&(&b.0, b.1.instance, b.1.addr)));
        posts.dedup();
        posts
    }

    /// Asks supervisors where tasks of a job are; nobody where there are none.
    ///
    /// # Errors
    /// `Pace` when this node asks too much.
    pub fn seek_job(&mut self, job: &str) -> Result<Vec<mpsc::Receiver<Answer>>, RumourError> {
        self.ask_supervisors(FIND, job.as_bytes())
    }

    /// Asks a node for the view of a job.
    ///
    /// # Errors
    /// `Pace` when this node asks too much.
    pub fn ask_job_view(&mut self, job: &str, daemon: SocketAddr) -> Result<mpsc::Receiver<Answer>, RumourError> {
        self.waiting.take(self.driver.now())?;
        self.ask_words(Words { name: VIEW, body: job.as_bytes(), only: "" }, PATIENCE, Some(Addr::Ip(daemon)))
    }

    /// The keys of the cluster, for shepherds, and the cluster's name.
    #[must_use]
    pub(crate) fn shepherd_keys(&self) -> (Vec<(u8, String)>, String) {
        let keys = self.driver.node().rumours().map(|r| r.keys().keys.clone()).unwrap_or_default();
        (keys.iter().map(|(id, key)| (*id, hex(key))).collect(), self.cluster.clone())
    }

    /// Somebody asks or tells something of jobs. False when it is about something else.
    pub(super) fn on_job_question(&mut self, id: Id, name: &str, body: &[u8]) -> bool {
        match name {
            TELL => {
                if let Ok(told) = serde_json::from_slice(body) {
                    self.keep_post(&told);
                }
                // Who told it may be gone.
                let _ = self.reply_to(id, b"", true);
            }
            FIND => {
                let job = String::from_utf8_lossy(body);
                let posts = self.job_posts().into_iter().filter(|(name, _)| *name == job);
                let found: Vec<Post> = posts.map(|(_, post)| post).take(ANSWER_MAX).collect();
                let _ = self.reply_to(id, &serde_json::to_vec(&found).unwrap_or_default(), true);
            }
            VIEW => {
                if let Some(jobs) = &self.jobs {
                    jobs.answer(id, String::from_utf8_lossy(body).into_owned());
                }
            }
            _ => return false,
        }
        true
    }

    fn keep_post(&mut self, told: &Told) {
        let now = self.driver.now();
        self.posts.retain(|_, (until, _)| *until > now);
        let key = (told.job.clone(), told.daemon);
        match &told.post {
            Some(post) if self.posts.len() < POSTS_MAX => {
                self.posts.insert(key, (now + TOLD_FOR, post.clone()));
            }
            Some(_) => {}
            None => _ = self.posts.remove(&key),
        }
    }
}
