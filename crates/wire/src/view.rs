//! Views: what the tasks of a job say to each other (000 §3, Fig. 3).
//!
//! ```text
//! 0 1 version   1 1 kind   2 8 job   10 from   to   … by kind
//! ```
//! Numbers from `from` on are written in as few bytes as they need (seven bits in each, lowest first), lists of tasks as their
//! length and the steps from one to the next. Letters ride reliable messages, which have checksums of their own. Unlike the
//! link's packets they are read into lists: view changes are rare, and a list of the dead is kept anyway.
//!
//! | file | idea |
//! |---|---|
//! | [`terms`](self) | tasks, view ids, ballots, changes |
//! | `codec` | numbers, lists, addresses |
//! | `roster` | a whole view, for those who come or were left behind |

mod codec;
mod roster;
mod terms;

pub use roster::{Entry, Roster};
pub use terms::{Ballot, Change, Joined, Person, Task, ViewId};

use crate::{Malformed, tomorrow};
use codec::{Reader, put_number, put_tasks};
use phalanx_core::Addr;

/// Layout of these letters.
pub const VERSION: u8 = 1;
/// The longest message between tasks.
pub const BODY_MAX: usize = 8 << 20;

/// The kind of letters that are for who reduces, not for who holds the view.
const REDUCE: u8 = 20;
/// The kind of letters that are for a host as a whole.
const MUSTER: u8 = 21;

/// A letter, checked to its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Letter<'a> {
    /// Which job it belongs to.
    pub job: u64,
    /// Who speaks. A newcomer without a number speaks as [`Task::NONE`].
    pub from: Task,
    /// Who is meant.
    pub to: Task,
    /// What it says.
    pub words: Words<'a>,
}

/// What the host of several tasks must know of a letter to hand it on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// Which job it belongs to.
    pub job: u64,
    /// Who is meant.
    pub to: Addressee,
    /// It is a [`Words::Reduce`].
    pub reduces: bool,
    /// It is a [`Words::Muster`]: for the host, whoever of its tasks is meant.
    pub musters: bool,
}

/// Whom a letter is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addressee {
    /// This task.
    Task(Task),
    /// The newcomer of this start, which may have no number yet.
    Newcomer(u32),
    /// Any task that is in the view: somebody knocks, and does not know who is root.
    Anybody,
}

/// Why a wave runs. The names are those of the paper's messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Wave {
    /// `FAILED_NODE`: the root proposes a view without the dead.
    FailedNode = 1,
    /// `ROOT_DEAD`: a new root asks what its predecessor has begun. It proposes nothing yet.
    RootDead = 2,
    /// `ROOT_AND_NODE_FAILURE`: a new root proposes a view.
    RootAndNodeFailure = 3,
    /// `NEW_NODE_JOIN`: somebody new is in the proposed view, and perhaps others are dead.
    NewNodeJoin = 4,
    /// `ALIVE_NODE_JOIN`: only those who were there before are new in the proposed view.
    AliveNodeJoin = 5,
    /// RV-9: a view with the same members, around which the tasks save their state.
    Checkpoint = 6,
}

impl Wave {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::FailedNode,
        Self::RootDead,
        Self::RootAndNodeFailure,
        Self::NewNodeJoin,
        Self::AliveNodeJoin,
        Self::Checkpoint,
    ];

    fn of(byte: u8) -> Result<Self, Malformed> {
        Self::ALL.into_iter().find(|&w| w as u8 == byte).ok_or(Malformed::Unknown)
    }
}

/// What a newcomer wants to be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Wanted {
    /// `NODE_ALIVE`: the task it was before.
    Again(Task),
    /// `NEW_NODE`: one more rank.
    More,
    /// `NEW_NODE`: a spare, which takes the rank of somebody who fails.
    Spare,
}

/// Why somebody is not let in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Refusal {
    /// That task lives.
    Taken = 1,
    /// There is no such task.
    OutOfRange = 2,
    /// The job has as many tasks as it can have.
    Full = 3,
    /// The job is over.
    Over = 4,
    /// That start was in before, and is out again: knock as a later one.
    Spent = 5,
}

/// What a letter says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Words<'a> {
    /// `NODE_FAILURE` to the root, or `ROOT_FAILURE` to who should be it next: these do not live.
    Report {
        /// The speaker's view.
        view: ViewId,
        /// Who.
        failed: Vec<Task>,
        /// The failure detector said so, or their hosts refused us. Otherwise they were only silent.
        certain: bool,
    },
    /// `FAILURE_DET_ACK`: the report of these was heard.
    Reported {
        /// Who.
        failed: Vec<Task>,
    },
    /// A wave on its way down.
    Notice {
        /// Why it runs.
        wave: Wave,
        /// The view that it starts from.
        base: ViewId,
        /// Whose it is, and which attempt.
        ballot: Ballot,
        /// Who is crossed on the way.
        gone: Vec<Task>,
        /// What is proposed; in `ROOT_DEAD` nothing yet.
        change: Option<Change>,
    },
    /// The wave on its way up: `FAILURE_ACK`, `NEW_NODE_JOIN_ACK` and so on.
    Ack {
        /// The wave.
        wave: Wave,
        /// The view that it starts from.
        base: ViewId,
        /// Whose it is, and which attempt.
        ballot: Ballot,
        /// How many in this branch agree, the speaker included.
        count: u32,
        /// Who was found dead in this branch.
        gone: Vec<Task>,
        /// To `ROOT_DEAD`: the latest proposal that anybody in this branch agreed to before.
        best: Option<(Ballot, Change)>,
    },
    /// Somebody else leads in a later attempt.
    Nack {
        /// The view that it starts from.
        base: ViewId,
        /// The later attempt.
        ballot: Ballot,
    },
    /// The proposal was agreed to: this is the view now.
    Stable {
        /// What became of its base.
        change: Change,
    },
    /// `HOW_ARE_YOU`.
    HowAreYou {
        /// To tell answers apart.
        nonce: u32,
        /// The speaker's view.
        view: ViewId,
    },
    /// The answer.
    Well {
        /// That of the question.
        nonce: u32,
        /// The speaker's view.
        view: ViewId,
    },
    /// `NEW_NODE` or `NODE_ALIVE`: let me in.
    Knock {
        /// As what.
        wanted: Wanted,
        /// Where it is.
        host: Addr,
        /// Drawn at its start.
        boot: u32,
    },
    /// `JOIN_DET_ACK` and `ALIVE_NODE_JOIN_DET_ACK`, after the tree is stable: you are in.
    Welcome {
        /// As whom.
        task: Task,
        /// Drawn at the newcomer's start.
        boot: u32,
        /// The view.
        roster: Roster,
    },
    /// You are not let in.
    Refused {
        /// Drawn at the newcomer's start.
        boot: u32,
        /// Why.
        why: Refusal,
    },
    /// RV-8: you are not in the view any more.
    Excluded {
        /// Which view.
        view: ViewId,
    },
    /// The speaker was left behind: what is the view?
    Behind {
        /// The view that it has.
        view: ViewId,
    },
    /// The view, whole.
    State {
        /// It.
        roster: Roster,
    },
    /// RV-7: a message from task to task.
    Data {
        /// The view that both must be in.
        view: ViewId,
        /// The sender's count, from 1 in each view and for each receiver.
        number: u64,
        /// The message.
        body: &'a [u8],
    },
    /// RV-7: that message came for a view that is over.
    Stale {
        /// The view here.
        view: ViewId,
        /// The message's number.
        number: u64,
    },
    /// RV-9: a coordinated checkpoint is wanted.
    Checkpoint,
    /// The speaker leaves in good order.
    Leaving,
    /// RV-6: the job ends here: most of it cannot be reached.
    Over {
        /// The last view.
        view: ViewId,
    },
    /// ST-4: of a reduction, see [`reduce`](crate::reduce).
    Reduce {
        /// The message.
        bytes: &'a [u8],
    },
    /// ST-4: of a reduction in which each host takes part once, for all its tasks.
    Muster {
        /// The message, with hosts in the place of nodes.
        bytes: &'a [u8],
    },
}

impl Envelope {
    /// Reads as much of a letter as its envelope needs.
    ///
    /// # Errors
    /// Each reason but `Checksum`.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (job, kind, mut r) = head(bytes)?;
        let (_, to) = (r.task()?, r.task()?);
        let to = match kind {
            // One that is passed on to the root is for nobody else.
            9 if to == Task::NONE => Addressee::Anybody,
            10 => {
                r.task()?;
                Addressee::Newcomer(r.u32()?)
            }
            11 => Addressee::Newcomer(r.u32()?),
            _ => Addressee::Task(to),
        };
        Ok(Self { job, to, reduces: kind == REDUCE, musters: kind == MUSTER })
    }
}

/// The job, the kind, and what follows.
fn head(bytes: &[u8]) -> Result<(u64, u8, Reader<'_>), Malformed> {
    let (&[version, kind, ref job @ ..], rest) = bytes.split_first_chunk::<10>().ok_or(Malformed::Truncated)?;
    if version != VERSION {
        return Err(Malformed::Version);
    }
    Ok((u64::from_le_bytes(*job), kind, Reader(rest)))
}

impl<'a> Letter<'a> {
    /// Checks and reads a letter.
    ///
    /// # Errors
    /// Each reason but `Checksum`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (job, kind, mut r) = head(bytes)?;
        let (from, to) = (r.task()?, r.task()?);
        let words = match kind {
            1 => Words::Report { certain: r.byte()? != 0, view: r.view()?, failed: r.tasks()? },
            2 => Words::Reported { failed: r.tasks()? },
            3 => {
                let (wave, base, ballot, gone) = (Wave::of(r.byte()?)?, r.view()?, r.ballot()?, r.tasks()?);
                let change = r.option(Reader::change)?;
                if change.is_none() != (wave == Wave::RootDead) || change.as_ref().is_some_and(|c| c.base != base) {
                    return Err(Malformed::Inconsistent);
                }
                Words::Notice { wave, base, ballot, gone, change }
            }
            4 => Words::Ack {
                wave: Wave::of(r.byte()?)?,
                base: r.view()?,
                ballot: r.ballot()?,
                count: r.u32()?,
                gone: r.tasks()?,
                best: r.option(|r| Ok((r.ballot()?, r.change()?)))?,
            },
            5 => Words::Nack { base: r.view()?, ballot: r.ballot()? },
            6 => Words::Stable { change: r.change()? },
            7 => Words::HowAreYou { nonce: r.u32()?, view: r.view()? },
            8 => Words::Well { nonce: r.u32()?, view: r.view()? },
            9 => {
                let wanted = match r.byte()? {
                    0 => Wanted::Again(r.task()?),
                    1 => Wanted::More,
                    2 => Wanted::Spare,
                    _ => return Err(Malformed::Unknown),
                };
                Words::Knock { wanted, host: r.addr()?, boot: r.u32()? }
            }
            10 => Words::Welcome { task: r.task()?, boot: r.u32()?, roster: r.roster()? },
            11 => {
                let boot = r.u32()?;
                let why = match r.byte()? {
                    1 => Refusal::Taken,
                    2 => Refusal::OutOfRange,
                    3 => Refusal::Full,
                    4 => Refusal::Over,
                    5 => Refusal::Spent,
                    _ => return Err(Malformed::Unknown),
                };
                Words::Refused { boot, why }
            }
            12 => Words::Excluded { view: r.view()? },
            13 => Words::Behind { view: r.view()? },
            14 => Words::State { roster: r.roster()? },
            15 => {
                let (view, number, length) = (r.view()?, r.number()?, r.number()?);
                if length > BODY_MAX as u64 {
                    return Err(Malformed::Inconsistent);
                }
                Words::Data { view, number, body: r.bytes(length as usize)? }
            }
            16 => Words::Stale { view: r.view()?, number: r.number()? },
            17 => Words::Checkpoint,
            18 => Words::Leaving,
            19 => Words::Over { view: r.view()? },
            REDUCE | MUSTER => {
                let length = r.number()?;
                if length > BODY_MAX as u64 {
                    return Err(Malformed::Inconsistent);
                }
                let bytes = r.bytes(length as usize)?;
                if kind == REDUCE { Words::Reduce { bytes } } else { Words::Muster { bytes } }
            }
            _ => return Err(Malformed::Unknown),
        };
        Ok(Self { job, from, to, words })
    }

    /// Appends the letter.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[VERSION, self.words.kind()]);
        out.extend_from_slice(&self.job.to_le_bytes());
        put_number(self.from.0.into(), out);
        put_number(self.to.0.into(), out);
        self.words.encode(out);
        out.extend_from_slice(tomorrow::field());
    }
}

impl Words<'_> {
    const fn kind(&self) -> u8 {
        match self {
            Self::Report { .. } => 1,
            Self::Reported { .. } => 2,
            Self::Notice { .. } => 3,
            Self::Ack { .. } => 4,
            Self::Nack { .. } => 5,
            Self::Stable { .. } => 6,
            Self::HowAreYou { .. } => 7,
            Self::Well { .. } => 8,
            Self::Knock { .. } => 9,
            Self::Welcome { .. } => 10,
            Self::Refused { .. } => 11,
            Self::Excluded { .. } => 12,
            Self::Behind { .. } => 13,
            Self::State { .. } => 14,
            Self::Data { .. } => 15,
            Self::Stale { .. } => 16,
            Self::Checkpoint => 17,
            Self::Leaving => 18,
            Self::Over { .. } => 19,
            Self::Reduce { .. } => REDUCE,
            Self::Muster { .. } => MUSTER,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Report { view, failed, certain } => {
                out.push((*certain).into());
                view.encode(out);
                put_tasks(failed, out);
            }
            Self::Reported { failed } => put_tasks(failed, out),
            Self::Notice { wave, base, ballot, gone, change } => {
                out.push(*wave as u8);
                base.encode(out);
                ballot.encode(out);
                put_tasks(gone, out);
                out.push(change.is_some().into());
                if let Some(change) = change {
                    change.encode(out);
                }
            }
            Self::Ack { wave, base, ballot, count, gone, best } => {
                out.push(*wave as u8);
                base.encode(out);
                ballot.encode(out);
                put_number((*count).into(), out);
                put_tasks(gone, out);
                out.push(best.is_some().into());
                if let Some((ballot, change)) = best {
                    ballot.encode(out);
                    change.encode(out);
                }
            }
            Self::Nack { base, ballot } => {
                base.encode(out);
                ballot.encode(out);
            }
            Self::Stable { change } => change.encode(out),
            Self::HowAreYou { nonce, view } | Self::Well { nonce, view } => {
                put_number((*nonce).into(), out);
                view.encode(out);
            }
            Self::Knock { wanted, host, boot } => {
                match wanted {
                    Wanted::Again(task) => {
                        out.push(0);
                        put_number(task.0.into(), out);
                    }
                    Wanted::More => out.push(1),
                    Wanted::Spare => out.push(2),
                }
                crate::addr::encode_addr(*host, out);
                put_number((*boot).into(), out);
            }
            Self::Welcome { task, boot, roster } => {
                put_number(task.0.into(), out);
                put_number((*boot).into(), out);
                roster.encode(out);
            }
            Self::Refused { boot, why } => {
                put_number((*boot).into(), out);
                out.push(*why as u8);
            }
            Self::Excluded { view } | Self::Behind { view } | Self::Over { view } => view.encode(out),
            Self::State { roster } => roster.encode(out),
            Self::Data { view, number, body } => {
                view.encode(out);
                put_number(*number, out);
                put_number(body.len() as u64, out);
                out.extend_from_slice(body);
            }
            Self::Stale { view, number } => {
                view.encode(out);
                put_number(*number, out);
            }
            Self::Reduce { bytes } | Self::Muster { bytes } => {
                put_number(bytes.len() as u64, out);
                out.extend_from_slice(bytes);
            }
            Self::Checkpoint | Self::Leaving => {}
        }
    }
}

#[cfg(test)]
mod tests;
