//! One consistent view for each job, changed by a wave down and up a radix tree.
//!
//! RV, 000 §3. Each task of a job has a [`Member`]. The root of the tree (the lowest living task) turns what it hears of failures and
//! newcomers into a [`Change`] and sends it down; acknowledgements come up; when all are in, the view is stable. Whatever dies while
//! that happens, no two members ever install different memberships under one [`ViewId`].
//!
//! The paper's wave alone cannot promise that: a root that dies after half a wave leaves two halves with different views. So a wave
//! is an attempt (a [`Ballot`]) to find *the* successor of a view, as in Paxos with the members of that view as acceptors:
//! - The root of a view has the first ballot for itself. Its wave *is* the paper's: notice down, acknowledgement up. When all
//!   have answered (a majority of the view among them) the change is decided, and a last notice goes down: stable.
//! - A new root first asks, by `ROOT_DEAD`, what was begun before it, and finishes that. Then it proposes its own.
//! - Acknowledgements name their ballot, so those of an old wave count for nothing; the lower of two would-be roots asks again with
//!   a higher ballot, and the other one gives way when it hears that the lower one is well.
//! - A branch whose top does not answer is reached by its parent directly, so one wave finds all the dead, on all levels; they
//!   come up with the acknowledgements and are out in the next (the paper needs a wave for each level).
//!
//! | file | idea |
//! |---|---|
//! | [`tree`] | the radix tree |
//! | [`roster`] | a view: tree, people, ranks |
//! | [`local`] | a view in 4 KiB: what one member needs of it |
//! | `relay` | one wave as one member sees it |
//! | `lead` | what a root does |
//! | `follow` | what everybody does with notices |
//! | `doubt` | who is gone: inquiries and reports |
//! | `join` | newcomers, those who were excluded, those who leave |
//! | `talk` | messages between tasks, in one view |
//! | `terms` | configuration, counters |

mod doubt;
mod follow;
mod join;
mod lead;
pub mod local;
mod relay;
pub mod roster;
mod talk;
mod terms;
pub mod tree;

#[cfg(test)]
mod net;
#[cfg(test)]
mod tests;

use doubt::Doubts;
use join::Knocking;
use lead::Lead;
use phalanx_core::{Addr, Fingerprint, Instant, Machine, Sink};
pub use phalanx_wire::view::{Ballot, Change, Joined, Person, Refusal, Task, ViewId, Wanted, Wave};
use phalanx_wire::view::{Letter, Words};
use relay::Relay;
pub use roster::View;
use std::hash::Hash;
use talk::Talk;
pub use terms::{Config, Counters, OnPartition, SendError, Start};

/// What a member is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input<'a> {
    /// A letter for this task came.
    Heard {
        /// The host that sent it.
        from: Addr,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// The failure detector says that these failed. Everybody may be told so; who has to report it knows.
    Failed {
        /// Who.
        tasks: &'a [Task],
    },
    /// We found out ourselves: a connection broke, a host refused us, a message could not be sent.
    Lost {
        /// Who.
        tasks: &'a [Task],
        /// Their host said so. Otherwise they were only silent.
        certain: bool,
    },
    /// RV-9: the application saved what it had to save before the view changes.
    Paused,
    /// RV-9: a coordinated checkpoint is wanted.
    Checkpoint,
    /// Tasks of the job are at these hosts, too: who knocks and found nobody knocks there.
    Seek {
        /// Where.
        contacts: &'a [Addr],
    },
    /// Somebody who was excluded wants to be in again.
    Rejoin {
        /// The start that it is now; see [`Start::boot`].
        boot: u32,
    },
    /// The task leaves in good order.
    Leave,
}

/// What a member decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output<'a> {
    /// Send this letter, reliably and in order.
    Send {
        /// To the host of the task it is for.
        to: Addr,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// There is a new view, and we are in it.
    Installed {
        /// It.
        view: &'a View,
        /// What made it, unless it was told whole.
        change: Option<&'a Change>,
    },
    /// RV-9: the view is about to change: save what must be saved, then say `Paused`.
    Pause {
        /// What is proposed.
        change: &'a Change,
    },
    /// RV-7: a message from a task of the same view.
    Deliver {
        /// From whom.
        from: Task,
        /// The view.
        view: ViewId,
        /// The message.
        body: &'a [u8],
    },
    /// RV-7: a message of ours came for a view that was over there, and was not delivered.
    Undelivered {
        /// For whom it was.
        to: Task,
        /// Its number.
        number: u64,
        /// The view there.
        view: ViewId,
    },
    /// A root sends its first notice of a wave: here T_s begins.
    Begun(Wave),
    /// It has the last acknowledgement: here T_s ends.
    Settled {
        /// Which wave.
        wave: Wave,
        /// How many agreed.
        count: u32,
    },
    /// RV-6: no majority of the view answers. Nothing changes until there is one again.
    Stalled,
    /// RV-8: the others have a view without us.
    Excluded {
        /// Which.
        view: ViewId,
    },
    /// RV-6: the job is to end here, because most of it cannot be reached.
    Aborted,
    /// We were not let in. Who is [spent](Refusal::Spent) knocks again as a later start.
    Refused(Refusal),
    /// We left, and the others know.
    Left,
}

/// A sink for what members decide.
pub trait Out: for<'a> Sink<Output<'a>> {}
impl<S: for<'a> Sink<Output<'a>>> Out for S {}

/// One task's part in the view of its job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    config: Config,
    start: Start,
    /// Our number; none while we knock for the first time.
    me: Task,
    standing: Standing,
    /// The latest view that we were in.
    view: View,
    /// What made it, for one who missed it.
    last: Option<Change>,
    /// The highest number of a view that we heard of.
    seen: u64,
    /// The highest ballot for the successor of our view that we heard of: lower ones are refused.
    promised: Ballot,
    /// The latest proposal that we agreed to.
    accepted: Option<(Ballot, Change)>,
    /// When to ask what became of it.
    late_at: Instant,
    relay: Option<Relay>,
    lead: Lead,
    doubts: Doubts,
    /// RV-5: who wants in; kept by the root.
    knocks: Vec<join::Knock>,
    wants_checkpoint: bool,
    talk: Talk,
    counters: Counters,
    /// What we knocked for first.
    wanted: Wanted,
}

/// Where we stand.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Standing {
    In,
    /// We want to be in.
    Knocking(Knocking),
    /// We say good-bye.
    Leaving,
    Out,
}

impl Member {
    /// A task of a job that starts: RV-1, everybody begins with the same view and needs no message for it.
    #[must_use]
    pub fn new(config: Config, start: Start, me: Task, view: View, now: Instant) -> Self {
        let mut member = Self::outside(config, start, me, view);
        member.standing = Standing::In;
        member.doubts.restart(now, &member.config);
        member
    }

    fn outside(config: Config, start: Start, me: Task, view: View) -> Self {
        let root = view.tree().root().unwrap_or(me);
        Self {
            config,
            start,
            me,
            standing: Standing::Out,
            last: None,
            seen: view.id().number,
            promised: Ballot::first(root),
            view,
            accepted: None,
            late_at: Instant::NEVER,
            relay: None,
            lead: Lead::Idle,
            doubts: Doubts::default(),
            knocks: Vec::new(),
            wants_checkpoint: false,
            talk: Talk::default(),
            counters: Counters::default(),
            wanted: Wanted::Again(me),
        }
    }

    /// Our number in the job.
    #[must_use]
    pub fn me(&self) -> Task {
        self.me
    }

    /// The view, while we are in one.
    #[must_use]
    pub fn view(&self) -> Option<&View> {
        matches!(self.standing, Standing::In | Standing::Leaving).then_some(&self.view)
    }

    /// True while we want to be in, and nobody has let us in yet.
    #[must_use]
    pub fn is_knocking(&self) -> bool {
        matches!(self.standing, Standing::Knocking(_))
    }

    /// True when nothing is under way here.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        let all_stay = self.doubts.gone.is_empty() && self.doubts.leaving.is_empty();
        self.lead == Lead::Idle && self.accepted.is_none() && all_stay && self.knocks.is_empty()
    }

    /// Tasks of the view that are thought to be gone.
    pub fn gone(&self) -> impl Iterator<Item = Task> + '_ {
        self.doubts.gone.keys().copied()
    }

    /// Which start of the task this is.
    #[must_use]
    pub fn boot(&self) -> u32 {
        self.start.boot
    }

    /// The latest attempt to find the next view that it heard of.
    #[must_use]
    pub fn ballot(&self) -> Ballot {
        self.promised
    }

    /// How many inquiries it has made.
    #[must_use]
    pub fn inquiries(&self) -> u32 {
        self.doubts.nonce
    }

    /// What was dropped, and what happened how often.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Bytes that this member takes.
    #[must_use]
    pub fn memory(&self) -> usize {
        let relay = self.relay.as_ref().map_or(0, Relay::memory);
        size_of::<Self>() - size_of::<View>() + self.view.memory() + relay + self.talk.memory()
    }

    fn is_in(&self) -> bool {
        matches!(self.standing, Standing::In | Standing::Leaving)
    }

    /// The lowest task of the view that is not thought to be gone.
    fn root(&self) -> Task {
        self.view.tree().root_without(&|t| self.doubts.gone.contains_key(&t)).unwrap_or(self.me)
    }

    fn say(&self, to: Task, words: Words<'_>, out: &mut impl Out) {
        if let Some(person) = self.view.person(to) {
            self.say_at(person.host, to, words, out);
        }
    }

    fn say_at(&self, host: Addr, to: Task, words: Words<'_>, out: &mut impl Out) {
        let mut bytes = Vec::new();
        Letter { job: self.start.job, from: self.me, to, words }.encode(&mut bytes);
        out.push(Output::Send { to: host, bytes: &bytes });
    }

    fn on_letter(&mut self, now: Instant, from: Addr, bytes: &[u8], out: &mut impl Out) {
        let Ok(letter) = Letter::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        let for_us = letter.to == self.me || letter.to == Task::NONE || self.me == Task::NONE;
        if letter.job != self.start.job || !for_us {
            self.counters.strays += 1;
            return;
        }
        match letter.words {
            Words::Welcome { task, boot, roster } => self.on_welcome(now, task, boot, &roster, out),
            Words::Refused { boot, why } => self.on_refused(boot, why, out),
            _ if !self.is_in() => self.counters.strays += 1,
            Words::Knock { wanted, host, boot } => self.on_knock(now, join::Knock { wanted, host, boot }, out),
            words => {
                let person = self.view.person(letter.from).filter(|_| self.view.contains(letter.from));
                if person.is_some_and(|p| p.host == from) {
                    self.on_words(now, letter.from, words, out);
                } else {
                    self.on_outsider(now, letter.from, from, &words, out);
                }
            }
        }
    }

    /// Words of somebody in our view.
    fn on_words(&mut self, now: Instant, from: Task, words: Words<'_>, out: &mut impl Out) {
        self.hear(now, from, out);
        match words {
            Words::Report { view, failed, certain } => {
                self.on_report(now, from, failed, certain, out);
                self.compare(from, view, out);
            }
            Words::Reported { failed } => self.on_reported(&failed),
            Words::Notice { wave, base, ballot, gone, change } => {
                self.on_notice(now, from, relay::Notice { wave, base, ballot, gone, change }, out);
            }
            Words::Ack { wave, base, ballot, count, gone, best } => {
                self.on_ack(now, from, relay::Ack { wave, base, ballot, count, gone, best }, out);
            }
            Words::Nack { base, ballot } => self.on_nack(now, base, ballot),
            Words::Stable { change } => self.on_stable(now, from, change, out),
            Words::HowAreYou { nonce, view } => self.on_how_are_you(from, nonce, view, out),
            Words::Well { nonce, view } => self.on_well(now, from, nonce, view, out),
            Words::Excluded { view } => self.on_excluded(view, out),
            Words::Behind { view } => self.on_behind(from, view, out),
            Words::State { roster } => self.on_state(now, &roster, out),
            Words::Data { view, number, body } => self.on_data(from, view, number, body, out),
            Words::Stale { view, number } => out.push(Output::Undelivered { to: from, number, view }),
            Words::Checkpoint => self.on_checkpoint(now, out),
            Words::Leaving => self.on_leaving(now, from, out),
            Words::Over { view } => self.on_over(view, out),
            // Reductions are for those beside us.
            Words::Knock { .. }
            | Words::Welcome { .. }
            | Words::Refused { .. }
            | Words::Reduce { .. }
            | Words::Muster { .. } => {}
        }
    }
}

impl Machine for Member {
    type Input<'a> = Input<'a>;
    type Output<'a> = Output<'a>;

    fn handle<S>(&mut self, now: Instant, input: Input<'_>, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        match input {
            Input::Heard { from, bytes } => self.on_letter(now, from, bytes, out),
            Input::Seek { contacts } => self.on_seek(now, contacts, out),
            Input::Rejoin { boot } => self.on_rejoin(now, boot, out),
            _ if !self.is_in() => {}
            Input::Failed { tasks } => self.on_failed(now, tasks, out),
            Input::Lost { tasks, certain } => self.on_lost(now, tasks, certain, out),
            Input::Paused => self.on_paused(now, out),
            Input::Checkpoint => self.on_checkpoint(now, out),
            Input::Leave => self.on_leave(now, out),
        }
    }

    fn expire<S>(&mut self, now: Instant, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        match self.standing {
            Standing::Out => {}
            Standing::Knocking(_) => self.knock_again(now, out),
            Standing::In | Standing::Leaving => {
                self.expire_doubts(now, out);
                self.expire_relay(now, out);
                self.expire_accepted(now, out);
                self.expire_lead(now, out);
            }
        }
    }

    fn deadline(&self) -> Instant {
        match &self.standing {
            Standing::Out => Instant::NEVER,
            Standing::Knocking(knocking) => knocking.again_at,
            Standing::In | Standing::Leaving => {
                let relay = self.relay.as_ref().map_or(Instant::NEVER, |r| r.ask_at);
                self.doubts.deadline().min(relay).min(self.late_at).min(self.lead.again_at())
            }
        }
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.me).add(&self.standing).add(&self.view).add(&self.seen);
        print.add(&self.promised).add(&self.accepted).add(&self.knocks).add(&self.wants_checkpoint);
        print.instant(self.late_at);
        self.lead.fingerprint(print);
        self.doubts.fingerprint(print);
        if let Some(relay) = &self.relay {
            relay.fingerprint(print);
        }
        self.talk.hash(print);
    }
}
