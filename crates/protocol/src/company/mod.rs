//! A company: the tasks of one job on one host, as one machine.
//!
//! It has a link of its own and a [`Member`](crate::view::Member) for each task. Letters between tasks of the host take no detour over the link.
//!
//! ```text
//!   Arrived ──▶ link ──▶ letters ──▶ members ──▶ Said
//!   Transmit ◀── link ◀── letters ◀── members      Wire, Unwire ──▶ driver
//! ```
//!
//! **Who is gone** (RV-2, RV-11). Hosts of neighbours in the tree hold tripwires. A wire that trips is a suspicion: the host is asked, and when it
//! refuses, all tasks on it are gone at once. A host that refuses the very first packet is empty, too. Everything else that is silent is
//! left to the members' inquiries.
//!
//! **A task that dies alone** is let go by its host in good order: its member speaks until the others have a view without it. So a crash of one
//! process costs no vote.
//!
//! | file | idea |
//! |---|---|
//! | `hosts` | what hosts say to each other beside their tasks |
//! | `letters` | who gets which letter |
//! | `muster` | gathers over the hosts of the view |
//! | `reduce` | reductions over the ranks of the view |
//! | `watch` | tripwires, hosts that are gone |

mod hosts;
mod letters;
mod muster;
mod reduce;
#[cfg(test)]
mod tests;
mod watch;

use crate::link::{self, Link};
use crate::node::parting::Parting;
use crate::view::tree::TreeError;
use crate::view::{self, Config, Member, Person, SendError, Start, Task, View, ViewId, Wanted};
use letters::{Heard, Letter, LinkOut, MemberOut};
use phalanx_core::{Addr, Buf, Duration, Fingerprint, Instant, Machine, Port, Sink};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use crate::cast::reduce::Gift;
pub use crate::link::status::Ticket;
pub use crate::node::Input;
pub use hosts::HOST_BUFFER;
pub use reduce::{Outcome, ReduceError, Reduced};

/// Where letters are spoken and heard.
const LETTERS: Port = Port(4);

/// How long the acknowledgement of a letter may wait for a letter to ride on. Most letters are answered, though only when a whole
/// branch has answered; an acknowledgement on its own would cost that branch's hosts a packet for each of theirs. A lone letter that
/// is lost is sent again so much later.
const ACK_DELAY: Duration = Duration::from_millis(10);

/// One task of the host, by the first start it had (see [`Start::boot`]).
pub type Seat = u32;

/// What a company asks of its driver.
#[derive(Debug)]
pub enum Output<'a> {
    /// Send this packet.
    Transmit {
        /// Where to.
        to: Addr,
        /// The sealed packet.
        packet: Buf,
        /// Answer with [`Input::Completed`] when there is one.
        ticket: Option<Ticket>,
        /// See [`link::Output::Transmit`].
        answer: bool,
    },
    /// Open an idle stream to this address and hold it.
    Wire {
        /// Where to.
        to: Addr,
    },
    /// Close the streams with this address.
    Unwire {
        /// Where.
        to: Addr,
    },
    /// A session began, or ended: what fault injectors wait for (FI-6).
    Reached(&'static str),
    /// A member decided something that concerns its task.
    Said {
        /// Whose.
        seat: Seat,
        /// What; never [`view::Output::Send`].
        what: view::Output<'a>,
    },
    /// ST-4: a reduction in which a task took part is over.
    Reduced {
        /// Whose.
        seat: Seat,
        /// What became of it.
        what: Reduced<'a>,
    },
    /// ST-4: a gather over the hosts of the view, in which this one took part, is over.
    Mustered {
        /// What became of it.
        what: Reduced<'a>,
    },
    /// A message was refused for lack of room; now there is some.
    Writable,
    /// Another host of the job says something, see [`Company::tell_host`].
    Host {
        /// Which.
        from: Addr,
        /// What.
        bytes: &'a [u8],
    },
    /// A host that has tasks of the job, or was spoken with, is gone, or does not answer.
    HostGone {
        /// Which.
        addr: Addr,
        /// Its process has ended for sure. Otherwise it may come back, and what it was told waits for it.
        certain: bool,
    },
}

/// A sink for what companies decide.
pub trait Out: for<'a> Sink<Output<'a>> {}
impl<S: for<'a> Sink<Output<'a>>> Out for S {}

/// Letters for a job whose first view is not made here yet; more of them are dropped and counted.
const EARLY: usize = 4096;

/// The tasks of one job on one host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Company {
    link: Link,
    parting: Parting,
    /// The largest datagram that the platform carries.
    largest: u16,
    config: Config,
    job: u64,
    host: Addr,
    /// The next start.
    next: Seat,
    members: BTreeMap<Seat, Place>,
    /// Letters under way: those of the host's own tasks, and those for the link.
    letters: VecDeque<Letter>,
    /// What the link said; empty between calls.
    heard: Vec<Heard>,
    watch: watch::Watch,
    hosts: hosts::Hosts,
    /// The job begins with a view that others may have made already; what their tasks say to those that are to be here.
    early: Option<Vec<(Addr, Vec<u8>)>>,
    muster: muster::Muster,
    /// Letters for tasks that are not here.
    strays: u64,
    /// The link had no room for the letter sent last.
    is_full: bool,
    /// Somebody here has another view since wires were last looked at.
    moved: watch::Moved,
}

/// A member, and what its host remembers of its task.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Place {
    member: Member,
    /// The task is gone; its member says good-bye.
    is_empty: bool,
    /// It comes after one that still says good-bye, and knocks there then.
    after: Option<(Seat, Vec<Addr>)>,
    part: reduce::Part,
}

impl Company {
    /// The limits of a link that carries letters.
    #[must_use]
    pub fn link_config() -> link::Config {
        let rcl = link::rcl::Config { ack_delay: ACK_DELAY, ..link::rcl::Config::default() };
        link::Config { rcl, ..link::Config::default() }
    }

    /// Nobody yet. `host` is where others reach the link; `first` is higher than any start on this host before.
    #[must_use]
    pub fn new(link: Link, largest: u16, host: Addr, job: u64, config: Config, first: Seat) -> Self {
        Self {
            link,
            parting: Parting::default(),
            largest,
            config,
            job,
            host,
            next: first,
            members: BTreeMap::new(),
            letters: VecDeque::new(),
            heard: Vec::new(),
            watch: watch::Watch::default(),
            hosts: hosts::Hosts::default(),
            early: None,
            muster: muster::Muster::default(),
            strays: 0,
            is_full: false,
            moved: watch::Moved::default(),
        }
    }

    /// The first task of a job whose others will knock.
    ///
    /// # Errors
    /// As [`View::founded`].
    pub fn found(&mut self, now: Instant, arity: u32, size: u32, out: &mut impl Out) -> Result<Seat, TreeError> {
        let person = Person { host: self.host, boot: self.next, stint: 0 };
        let view = View::founded(arity, size, person)?;
        Ok(self.enter(now, Task(0), view, out))
    }

    /// RV-1: a task of a job that everybody starts with the same view.
    pub fn enter(&mut self, now: Instant, task: Task, view: View, out: &mut impl Out) -> Seat {
        let seat = self.take_seat();
        let installed = view.clone();
        self.place(seat, Member::new(self.config, self.start(seat), task, view, now));
        out.push(Output::Said { seat, what: view::Output::Installed { view: &installed, change: None } });
        self.reduce_in_view(now, seat, out);
        self.muster_in_view(now, seat, out);
        self.moved = watch::Moved::all();
        self.run(now, out);
        seat
    }

    /// Another job, or the next start of it, begins here with a view that all its hosts make by themselves, or is joined. Whoever was here
    /// before is gone without a word. Gives the number that the first task will have, see [`Company::enter_all`].
    pub fn begin(&mut self, job: u64, out: &mut impl Out) -> Seat {
        self.members.clear();
        self.letters.clear();
        (self.moved, self.muster) = (watch::Moved::default(), muster::Muster::default());
        self.unwatch(out);
        self.job = job;
        self.early = Some(Vec::new());
        self.next
    }

    /// The number that the next task here will have.
    #[must_use]
    pub fn next_seat(&self) -> Seat {
        self.next
    }

    /// RV-1: tasks of a job that everybody starts with the same view, which gives them the numbers that follow on that of
    /// [`Company::begin`]. Gives that of the first.
    pub fn enter_all(&mut self, now: Instant, tasks: &[Task], view: &View, out: &mut impl Out) -> Seat {
        let first = self.next;
        for &task in tasks {
            let seat = self.take_seat();
            self.place(seat, Member::new(self.config, self.start(seat), task, view.clone(), now));
            out.push(Output::Said { seat, what: view::Output::Installed { view, change: None } });
            self.reduce_in_view(now, seat, out);
            self.muster_in_view(now, seat, out);
        }
        self.moved = watch::Moved::all();
        for (from, letter) in self.early.take().unwrap_or_default() {
            self.deliver(now, from, &letter, out);
        }
        self.run(now, out);
        first
    }

    /// RV-5: a task that joins a running job. `contacts` are hosts of its tasks; more may be told with [`Company::seek`]. One that
    /// starts again while its predecessor still says good-bye waits for that: its knock would say that the other one is dead, and
    /// cost a vote.
    pub fn join(&mut self, now: Instant, wanted: Wanted, contacts: &[Addr], out: &mut impl Out) -> Seat {
        let seat = self.take_seat();
        // Who is here knows best whether the job is.
        let here = self.members.values().any(|p| p.member.view().is_some()).then_some(self.host);
        let mut contacts = here.into_iter().chain(contacts.iter().copied().filter(|&c| c != self.host)).collect();
        let says_goodbye = |(_, p): &(&Seat, &Place)| p.is_empty && wanted == Wanted::Again(p.member.me());
        let before = self.members.iter().find(says_goodbye).map(|(&seat, _)| seat);
        let after = before.map(|seat| (seat, std::mem::take(&mut contacts)));
        let mut sink = MemberOut::new(seat, &mut self.letters, out);
        let member = Member::join(
            self.config,
            Start { job: self.job, host: self.host, boot: seat },
            wanted,
            contacts,
            now,
            &mut sink,
        );
        self.place(seat, member);
        self.early = None;
        if let Some(place) = self.members.get_mut(&seat) {
            place.after = after;
        }
        self.run(now, out);
        seat
    }

    fn take_seat(&mut self) -> Seat {
        let seat = self.next;
        self.next = self.next.wrapping_add(1);
        seat
    }

    fn start(&self, seat: Seat) -> Start {
        Start { job: self.job, host: self.host, boot: seat }
    }

    fn place(&mut self, seat: Seat, member: Member) {
        self.members.insert(seat, Place { member, is_empty: false, after: None, part: reduce::Part::default() });
    }

    /// Tasks of the job are at these hosts: for those who knock.
    pub fn seek(&mut self, now: Instant, contacts: &[Addr], out: &mut impl Out) {
        let contacts: Vec<_> = contacts.iter().copied().filter(|&c| c != self.host).collect();
        for place in self.members.values_mut() {
            if let Some((_, more)) = &mut place.after {
                more.extend(contacts.iter().filter(|c| !more.contains(c)).copied().collect::<Vec<_>>());
            }
        }
        for seat in self.members.keys().copied().collect::<Vec<_>>() {
            if self.members.get(&seat).is_some_and(|p| p.after.is_none()) {
                self.tell_one(now, seat, view::Input::Seek { contacts: &contacts }, out);
            }
        }
        self.run(now, out);
    }

    /// RV-8: who was excluded or refused wants to be in again, under the old number.
    ///
    /// ⚠ RV-6: two parts that went on by themselves may have given one number to two tasks of this host. Each would displace the other as its
    /// later start, for ever; so the second one comes as a newcomer.
    pub fn rejoin(&mut self, now: Instant, seat: Seat, out: &mut impl Out) {
        let boot = self.take_seat();
        let Some(me) = self.member(seat).map(Member::me) else { return };
        let is_other = |(&s, p): (&Seat, &Place)| s != seat && !p.is_empty && p.member.me() == me;
        // The job may be here and nowhere else.
        let here = self.members.values().any(|p| p.member.view().is_some()).then_some(self.host);
        let contacts: Vec<_> = here.into_iter().collect();
        if me == Task::NONE || !self.members.iter().any(is_other) {
            self.tell_one(now, seat, view::Input::Rejoin { boot }, out);
            return self.tell(now, seat, view::Input::Seek { contacts: &contacts }, out);
        }
        let start = Start { job: self.job, host: self.host, boot };
        let mut sink = MemberOut::new(seat, &mut self.letters, out);
        let member = Member::join(self.config, start, Wanted::More, contacts, now, &mut sink);
        self.place(seat, member);
        self.run(now, out);
    }

    /// Tells the member of a task something.
    pub fn tell(&mut self, now: Instant, seat: Seat, input: view::Input<'_>, out: &mut impl Out) {
        self.tell_one(now, seat, input, out);
        self.run(now, out);
    }

    /// The task of this member is gone: it leaves the job for it.
    pub fn part(&mut self, now: Instant, seat: Seat, out: &mut impl Out) {
        let Some(place) = self.members.get_mut(&seat) else { return };
        place.is_empty = true;
        if place.member.view().is_none() {
            // Nobody let it in; should somebody yet do so, nobody answers for it.
            self.members.remove(&seat);
            return;
        }
        // It may have been asked to pause.
        self.tell_one(now, seat, view::Input::Paused, out);
        self.tell(now, seat, view::Input::Leave, out);
    }

    /// RV-7: sends a message to a task, in the view that the caller knows. Gives the number under which it may come back.
    ///
    /// # Errors
    /// As [`Member::send`]; `Busy` when the link has no room for it now. Nothing was sent then.
    pub fn send(
        &mut self,
        now: Instant,
        seat: Seat,
        (view, to): (ViewId, Task),
        body: &[u8],
        out: &mut impl Out,
    ) -> Result<u64, SendError> {
        let place = self.members.get_mut(&seat).ok_or(SendError::Outside)?;
        let number = place.member.send(view, to, body, &mut MemberOut::new(seat, &mut self.letters, out))?;
        self.is_full = false;
        self.run(now, out);
        if std::mem::take(&mut self.is_full) { Err(SendError::Busy) } else { Ok(number) }
    }

    /// The zone says that this host failed. A reason to ask its tasks: a daemon that dies alone leaves them alone.
    pub fn doubt(&mut self, now: Instant, addr: Addr, out: &mut impl Out) {
        self.lose(now, addr, false, out);
        self.run(now, out);
    }

    /// Which job it is, when that was not known at the start. Only before the first task.
    pub fn set_job(&mut self, job: u64) {
        if self.members.is_empty() {
            self.job = job;
        }
    }

    /// The members here.
    pub fn members(&self) -> impl Iterator<Item = (Seat, &Member)> {
        self.members.iter().map(|(&seat, place)| (seat, &place.member))
    }

    /// One of them.
    #[must_use]
    pub fn member(&self, seat: Seat) -> Option<&Member> {
        self.members.get(&seat).map(|p| &p.member)
    }

    /// Hosts that are gone as far as this one knows.
    #[must_use]
    pub fn dead(&self) -> &BTreeSet<Addr> {
        &self.watch.dead
    }

    /// The link, to be looked at.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The link, for fault injection and keys.
    pub fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }

    /// RV-7: letters that were for nobody here.
    #[must_use]
    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// Frames of other hosts that made no sense or came out of order.
    #[must_use]
    pub fn odd_frames(&self) -> u64 {
        self.hosts.odd
    }
}

/// Any sink, as one kind.
struct Gate<'d>(&'d mut dyn Out);

impl<'o> Sink<Output<'o>> for Gate<'_> {
    fn push(&mut self, output: Output<'o>) {
        self.0.push(output);
    }
}

impl Company {
    fn hear(&mut self, now: Instant, input: Input<'_>, out: &mut Gate<'_>) {
        let told = match input {
            Input::Arrived { from, bytes, attached } => link::Input::Arrived { from, bytes, attached },
            Input::Completed { ticket, result } => link::Input::Completed { ticket, result },
            Input::Refused { addr, code } => link::Input::Refused { addr, code },
            Input::Wired { addr } => return self.on_wired(addr),
            Input::Tripped { addr } => {
                self.on_tripped(now, addr, out);
                return self.run(now, out);
            }
        };
        self.link.handle(now, told, &mut LinkOut { heard: &mut self.heard, out });
        self.run(now, out);
    }

    fn wake(&mut self, now: Instant, out: &mut Gate<'_>) {
        let due = self.members.iter().filter(|(_, p)| p.member.deadline() <= now).map(|(&s, _)| s);
        for seat in due.collect::<Vec<_>>() {
            self.act(now, seat, out, |member, sink| member.expire(now, sink));
        }
        self.expire_parts(now, out);
        self.expire_muster(now, out);
        self.run(now, out);
        self.parting.expire(&mut self.link, now);
        self.expire_hosts(now);
        if self.link.deadline() <= now {
            self.link.expire(now, &mut LinkOut { heard: &mut self.heard, out });
            self.run(now, out);
        }
    }
}

impl Machine for Company {
    type Input<'a> = Input<'a>;
    type Output<'a> = Output<'a>;

    fn handle<S>(&mut self, now: Instant, input: Input<'_>, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        self.hear(now, input, &mut Gate(out));
    }

    fn expire<S>(&mut self, now: Instant, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        self.wake(now, &mut Gate(out));
    }

    fn deadline(&self) -> Instant {
        let members = self.members.values().map(|p| p.member.deadline().min(p.part.deadline()));
        let own = self.link.deadline().min(self.parting.deadline()).min(self.muster.deadline());
        members.fold(own.min(self.hosts.deadline()), Instant::min)
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        self.link.fingerprint(print);
        self.parting.fingerprint(print);
        self.hosts.fingerprint(print);
        print.add(&self.early);
        for (seat, place) in &self.members {
            print.add(&(seat, place.is_empty, &place.after));
            place.member.fingerprint(print);
            place.part.fingerprint(print);
        }
        self.muster.fingerprint(print);
        print.add(&self.watch);
    }
}
