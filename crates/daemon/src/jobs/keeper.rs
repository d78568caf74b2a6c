//! One daemon, one shepherd: what they tell each other, until one of them ends.

use super::{Jobs, Kept};
use crate::agent::jobs::{ATTRIBUTE, Post};
use crate::shepherd::words::{Place, Terms, ToDaemon, ToShepherd};
use phalanx_api::jobs::{self, JobView, frame_length};
use phalanx_api::{State, What};
use phalanx_core::Addr;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// How often a job that was not found is looked for.
const SEEK: Duration = Duration::from_millis(500);
/// How often it is said where tasks are, and looked where others are.
const REFRESH: Duration = Duration::from_secs(5);
/// A job of the manager's that is over sooner is not told to others: the manager knows where it is, and for a job on many nodes each of them
/// would hear of each other one, twice.
const SETTLE: Duration = Duration::from_millis(500);
/// Events that are read at once.
const EVENTS: usize = 256;

/// Something that a shepherd is to be asked.
pub(super) enum Order {
    Show(oneshot::Sender<Option<JobView>>),
    /// A frame for all its tasks.
    Cast(Vec<u8>),
    /// Just this.
    Say(ToShepherd),
    /// Where its other shepherds are, by their nodes' names.
    Know(BTreeMap<String, SocketAddr>),
}

/// Keeps in touch with a shepherd.
pub(super) struct Keeper {
    jobs: Jobs,
    name: String,
    terms: Option<Terms>,
    place: Option<Place>,
    /// Shepherds of other nodes, by the node's name.
    others: BTreeMap<String, SocketAddr>,
    /// What the shepherd was told last.
    told: Option<Vec<Place>>,
    asked: BTreeMap<u64, oneshot::Sender<Option<JobView>>>,
    next: u64,
    /// Where its tasks are is told to others from then on.
    posts_at: Instant,
    /// It was.
    has_posted: bool,
    orders: mpsc::UnboundedReceiver<Order>,
    ordered: mpsc::UnboundedSender<Order>,
    /// Who waits until it has said what it runs.
    greets: Option<oneshot::Sender<()>>,
}

/// The other side has ended.
struct Gone;

impl Keeper {
    pub(super) fn new(jobs: Jobs, name: String, terms: Option<Terms>) -> Self {
        let (ordered, orders) = mpsc::unbounded_channel();
        if let Some(terms) = &terms {
            let kept = Kept { terms: terms.clone(), pid: None, orders: ordered.clone() };
            jobs.lock().insert(name.clone(), kept);
        }
        Self {
            jobs,
            name,
            terms,
            place: None,
            others: BTreeMap::new(),
            told: None,
            asked: BTreeMap::new(),
            next: 0,
            posts_at: Instant::now(),
            has_posted: false,
            orders,
            ordered,
            greets: None,
        }
    }

    /// `tell` hears when the shepherd has said what it runs, or is gone.
    pub(super) fn greeted(self, tell: oneshot::Sender<()>) -> Self {
        Self { greets: Some(tell), ..self }
    }

    pub(super) async fn keep(mut self, stream: UnixStream) {
        let (from, mut to) = stream.into_split();
        let (tell, heard) = mpsc::unbounded_channel();
        // A frame must be read to its end, whatever else happens.
        let reading = tokio::spawn(read(from, tell));
        let _ = self.converse(heard, &mut to).await;
        reading.abort();
        self.jobs.lock().remove(&self.name);
        self.jobs.on_shepherd_gone(&self.name);
        if let Some(terms) = self.terms.filter(|_| self.has_posted) {
            self.jobs.0.remote.tell(move |agent| agent.post_job(&terms, None));
        }
    }

    async fn converse(
        &mut self,
        mut heard: mpsc::UnboundedReceiver<ToDaemon>,
        to: &mut OwnedWriteHalf,
    ) -> Result<(), Gone> {
        let journal = self.jobs.0.journal.clone();
        let mut after = journal.last();
        self.greet(to).await?;
        let mut look_at = Instant::now();
        if self.terms.is_some() && self.jobs.is_managed(&self.name) {
            self.posts_at = look_at + SETTLE;
            look_at = self.posts_at;
        }
        loop {
            tokio::select! {
                words = heard.recv() => self.on_words(words.ok_or(Gone)?),
                order = self.orders.recv() => self.on_order(order.ok_or(Gone)?, to).await?,
                () = journal.wait(after) => {
                    for event in journal.since(after, EVENTS) {
                        after = event.id;
                        if self.on_event(&event.what, to).await? {
                            look_at = Instant::now();
                        }
                    }
                }
                () = tokio::time::sleep_until(look_at) => {
                    self.look(to).await?;
                    let is_found = self.place.is_some() || self.told.as_ref().is_some_and(|t| !t.is_empty());
                    let rests = is_found || self.jobs.is_managed(&self.name);
                    look_at = Instant::now() + if rests { REFRESH } else { SEEK };
                }
            }
        }
    }

    async fn greet(&mut self, to: &mut OwnedWriteHalf) -> Result<(), Gone> {
        let ask = self.jobs.0.remote.ask(|agent| (agent.shepherd_keys(), agent.bind(), agent.addr()));
        let ((keys, cluster), bind, addr) = ask.await.map_err(|_| Gone)?;
        let words = match (&self.terms, addr) {
            (Some(terms), Addr::Ip(addr)) => {
                let advertise = (addr.ip() != bind.ip()).then(|| SocketAddr::new(addr.ip(), 0));
                ToShepherd::Begin {
                    terms: terms.clone(),
                    bind: SocketAddr::new(bind.ip(), 0),
                    advertise,
                    keys,
                    cluster,
                }
            }
            _ => ToShepherd::Keys { keys, cluster },
        };
        say(to, &words).await
    }

    fn on_words(&mut self, words: ToDaemon) {
        match words {
            ToDaemon::Here { pid, terms, work } => {
                if let Some((job, attempt)) = work {
                    self.jobs.found(&self.name, job, attempt);
                }
                self.terms = terms.or(self.terms.take());
                if let Some(terms) = self.terms.clone() {
                    let kept = Kept { terms, pid: Some(pid), orders: self.ordered.clone() };
                    self.jobs.lock().insert(self.name.clone(), kept);
                }
                // Who waited may not do so any more.
                let _ = self.greets.take().map(|tell| tell.send(()));
            }
            ToDaemon::At { place } => {
                self.place = place;
                self.post();
            }
            ToDaemon::Shown { ticket, view } => {
                if let Some(tell) = self.asked.remove(&ticket) {
                    // Who asked may not wait any more.
                    let _ = tell.send(view);
                }
            }
            managed => self.jobs.on_managed(&self.name, managed),
        }
    }

    fn post(&mut self) {
        if let Some(terms) = self.terms.clone().filter(|_| Instant::now() >= self.posts_at) {
            let place = self.place.clone();
            self.has_posted = true;
            self.jobs.0.remote.tell(move |agent| agent.post_job(&terms, place.as_ref()));
        }
    }

    async fn on_order(&mut self, order: Order, to: &mut OwnedWriteHalf) -> Result<(), Gone> {
        let tell = match order {
            Order::Show(tell) => tell,
            Order::Cast(frame) => return to.write_all(&frame).await.map_err(|_| Gone),
            Order::Say(words) => return say(to, &words).await,
            Order::Know(others) => {
                self.others.extend(others);
                return Ok(());
            }
        };
        self.asked.retain(|_, t| !t.is_closed());
        self.next += 1;
        self.asked.insert(self.next, tell);
        say(to, &ToShepherd::Show { ticket: self.next }).await
    }

    /// True when it is time to look where the job's tasks are.
    async fn on_event(&mut self, what: &What, to: &mut OwnedWriteHalf) -> Result<bool, Gone> {
        match what {
            What::Left { member } if member.state == State::Failed => {
                if let Some(&addr) = self.others.get(&member.name) {
                    say(to, &ToShepherd::Doubt { addr }).await?;
                }
                Ok(false)
            }
            What::Keys { .. } => {
                let keys = self.jobs.0.remote.ask(|agent| agent.shepherd_keys()).await;
                let (keys, cluster) = keys.map_err(|_| Gone)?;
                say(to, &ToShepherd::Keys { keys, cluster }).await?;
                Ok(false)
            }
            What::Attribute { key, .. } => {
                let is_ours = key.strip_prefix(ATTRIBUTE) == Some(self.name.as_str());
                // The manager says where tasks of its jobs are.
                Ok(is_ours && !self.jobs.is_managed(&self.name))
            }
            What::Gap => Ok(true),
            _ => Ok(false),
        }
    }

    /// Where tasks of the job are goes to the shepherd; where its own are goes to the others.
    async fn look(&mut self, to: &mut OwnedWriteHalf) -> Result<(), Gone> {
        let is_managed = self.jobs.is_managed(&self.name);
        if is_managed && self.place.is_some() {
            self.post();
        }
        let posts: Option<Vec<Post>> = self.jobs.posts(&self.name).await.map_err(|_| Gone)?;
        let Some(posts) = posts else { return Ok(()) };
        // Who is gone is remembered: its shepherd must be asked when the zone says that its node failed.
        self.others.extend(posts.iter().map(|p| (p.node.clone(), p.addr)));
        let places: Vec<Place> = posts.iter().map(Post::place).collect();
        if self.told.as_ref() != Some(&places) {
            say(to, &ToShepherd::Places { places: places.clone() }).await?;
            self.told = Some(places);
        }
        if !is_managed && self.place.is_some() {
            self.post();
        }
        Ok(())
    }
}

async fn say(to: &mut OwnedWriteHalf, words: &ToShepherd) -> Result<(), Gone> {
    let frame = jobs::words(&serde_json::to_vec(words).map_err(|_| Gone)?);
    to.write_all(&frame).await.map_err(|_| Gone)
}

async fn read(mut from: OwnedReadHalf, tell: mpsc::UnboundedSender<ToDaemon>) -> Option<()> {
    loop {
        let mut head = [0; 4];
        from.read_exact(&mut head).await.ok()?;
        let mut body = vec![0; frame_length(head)?];
        from.read_exact(&mut body).await.ok()?;
        tell.send(serde_json::from_slice(body.get(1..)?).ok()?).ok()?;
    }
}
