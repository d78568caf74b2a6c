//! The death notice of ranks that link the client: a robust futex in a shared page fires when the kernel begins to end the process, about 0.1
//! ms after it was killed, and its death is proved 0.1 to 0.2 ms later. Sockets, pidfds and `waitpid` tell only when its memory is torn
//! down: 68 ms for each GiB (`phalanx lab run death-notice`).
//!
//! ```text
//!   rank: a thread holds the word ──kernel──▶ thread `notice`: a suspicion ─▶ proof ─▶ Shepherd: out of the view
//!                                                                 waitpid, later ─▶ its status, to the manager
//! ```
//!
//! **What a notice is good for.** A rank that is proved dead executes nothing any more ([`proof`]), so the job's view may go on without it,
//! at once. Its ports, locks and memory it still has, until it is waited for: so the manager is told of the end only then, with its
//! status, and nothing of it is started again before. A rank that ends well is no failure, and takes the slow way as it always did.
//!
//! **What a rank can do with the page**: lie. A false word costs a few looks into `/proc`, and who tells too many is not listened to
//! any more: its death is then known as that of a program without the client.

mod page;
mod proof;

pub use page::{Page, placed};

use crate::platform::Waker;
use page::{Bell, WORDS, can_wait, wait};
use phalanx_api::notice::OWNER_DIED;
use std::io;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

/// Between the first looks at somebody who is suspected …
const FIRST_LOOK: Duration = Duration::from_micros(20);
/// … and between later ones: each time is twice the one before.
const LAST_LOOK: Duration = Duration::from_millis(20);
/// Who is not proved dead in this time has become another program.
const DOUBT: Duration = Duration::from_millis(500);
/// Words of a rank that change so often are none of ours.
const CHANGES: u32 = 32;

/// What became of a suspicion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A process runs no more.
    Dead {
        /// Its number here.
        number: u64,
        /// The status that it will have; 0 when it is not known yet.
        status: i32,
        /// When its word was let go.
        since: Instant,
    },
    /// It lives, or nothing can be proved.
    Alarm(u64),
}

/// Ranks whose words are waited for, each under a number of its owner's choice.
pub struct Notices {
    crowds: Vec<Crowd>,
    tell: mpsc::Sender<Notice>,
    told: mpsc::Receiver<Notice>,
    waker: Waker,
}

/// As many as one thread can wait for.
struct Crowd {
    to: mpsc::Sender<Order>,
    bell: Arc<Bell>,
    numbers: Vec<u64>,
}

enum Order {
    Watch(Watched),
    Forget(u64),
}

impl Notices {
    /// Waits for nobody yet; the waker wakes who asks for [`Notices::next`].
    #[must_use]
    pub fn new(waker: Waker) -> Self {
        let (tell, told) = mpsc::channel();
        Self { crowds: Vec::new(), tell, told, waker }
    }

    /// Whether this kernel can do it.
    #[must_use]
    pub fn are_there() -> bool {
        static ARE_THERE: OnceLock<bool> = OnceLock::new();
        *ARE_THERE.get_or_init(can_wait)
    }

    /// Waits for the death of a child, from now on or anew. Its page is held already, or will be.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn watch(&mut self, number: u64, pid: i32, page: Arc<Page>) -> io::Result<()> {
        self.forget(number);
        // One word is the bell.
        let at = match self.crowds.iter().position(|c| c.numbers.len() + 1 < WORDS) {
            Some(at) => at,
            None => {
                self.crowds.push(Crowd::start(self.tell.clone(), self.waker.clone())?);
                self.crowds.len() - 1
            }
        };
        self.crowds[at].numbers.push(number);
        self.crowds[at].order(Order::Watch(Watched::new(number, pid, page)));
        Ok(())
    }

    /// It was waited for.
    pub fn forget(&mut self, number: u64) {
        if let Some(crowd) = self.crowds.iter_mut().find(|c| c.numbers.contains(&number)) {
            crowd.numbers.retain(|&n| n != number);
            crowd.order(Order::Forget(number));
        }
    }

    /// What was found out, if anything was.
    #[must_use]
    pub fn next(&self) -> Option<Notice> {
        self.told.try_recv().ok()
    }
}

impl Crowd {
    fn start(tell: mpsc::Sender<Notice>, waker: Waker) -> io::Result<Self> {
        let (to, orders) = mpsc::channel();
        let bell = Arc::<Bell>::default();
        let watcher = Watcher { orders, bell: Arc::clone(&bell), tell, waker, watched: Vec::new() };
        std::thread::Builder::new().name("notice".into()).spawn(move || watcher.run())?;
        Ok(Self { to, bell, numbers: Vec::new() })
    }

    fn order(&self, order: Order) {
        // Where the thread has ended, deaths are told by what tells of others.
        let _ = self.to.send(order);
        self.bell.ring();
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // The thread must see that nobody is there.
        self.to = mpsc::channel().0;
        self.bell.ring();
    }
}

/// The thread.
struct Watcher {
    orders: mpsc::Receiver<Order>,
    bell: Arc<Bell>,
    tell: mpsc::Sender<Notice>,
    waker: Waker,
    watched: Vec<Watched>,
}

impl Watcher {
    fn run(mut self) {
        loop {
            let rings = self.bell.rings();
            loop {
                match self.orders.try_recv() {
                    Ok(Order::Watch(watched)) => self.watched.push(watched),
                    Ok(Order::Forget(number)) => self.watched.retain(|w| w.number != number),
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => return,
                }
            }
            let now = Instant::now();
            for notice in self.watched.iter_mut().filter_map(|w| w.look(now, w.page.word(), proof::ended)) {
                // Who asked may be gone.
                let _ = self.tell.send(notice);
                self.waker.wake();
            }
            self.watched.retain(|w| !w.is_over);
            let next = self.watched.iter().filter_map(|w| w.doubt.as_ref()).map(|d| d.next).min();
            let patience = next.map(|next| next.saturating_duration_since(Instant::now()));
            let words = self.watched.iter().map(|w| (&*w.page, w.seen));
            if let Err(why) = wait((&self.bell, rings), words, patience) {
                return tracing::warn!("deaths of ranks are told late: cannot wait for their words: {why}");
            }
        }
    }
}

/// Somebody whose word is waited for.
struct Watched {
    number: u64,
    pid: i32,
    page: Arc<Page>,
    /// Its word when it was looked at last.
    seen: u32,
    changes: u32,
    doubt: Option<Doubt>,
    /// It is not waited for any more.
    is_over: bool,
}

/// A suspicion.
struct Doubt {
    since: Instant,
    next: Instant,
    wait: Duration,
}

impl Watched {
    fn new(number: u64, pid: i32, page: Arc<Page>) -> Self {
        // A word that says so from the beginning must be noticed, too.
        Self { number, pid, page, seen: 0, changes: 0, doubt: None, is_over: false }
    }

    /// Looks at the word, and at the process where there is a doubt.
    fn look(&mut self, now: Instant, word: u32, ended: impl Fn(i32) -> Option<i32>) -> Option<Notice> {
        if word != self.seen {
            self.seen = word;
            self.changes += 1;
            if word & OWNER_DIED != 0 {
                self.doubt = Some(Doubt { since: now, next: now, wait: FIRST_LOOK });
            }
        }
        if self.changes > CHANGES {
            self.is_over = true;
            return Some(Notice::Alarm(self.number));
        }
        let doubt = self.doubt.as_mut().filter(|d| d.next <= now)?;
        if let Some(status) = ended(self.pid) {
            self.is_over = true;
            return Some(Notice::Dead { number: self.number, status, since: doubt.since });
        }
        if now - doubt.since >= DOUBT {
            // Its next program may hold the word again.
            self.doubt = None;
            return Some(Notice::Alarm(self.number));
        }
        doubt.next = now + doubt.wait;
        doubt.wait = LAST_LOOK.min(doubt.wait * 2);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_api::notice::WAITERS;

    const HELD: u32 = WAITERS | 7;
    const LET_GO: u32 = WAITERS | OWNER_DIED;

    fn watched() -> Watched {
        Watched::new(5, 1, Arc::new(Page::new().expect("a page").0))
    }

    /// A word alone is a suspicion: it is looked into more and more rarely, until there is a proof.
    #[test]
    fn a_death_is_told_when_it_is_proved() {
        let (mut it, mut now) = (watched(), Instant::now());
        assert_eq!(it.look(now, 0, |_| unreachable!()), None);
        assert_eq!(it.look(now, HELD, |_| unreachable!()), None);
        let (mut looks, since) = (0, now);
        for _ in 0..4 {
            assert_eq!(it.look(now, LET_GO, |_| None), None);
            looks += 1;
            let next = it.doubt.as_ref().expect("a doubt").next;
            assert_eq!(next - now, FIRST_LOOK * (1 << (looks - 1)));
            now = next;
        }
        assert_eq!(it.look(now, LET_GO, |_| Some(9)), Some(Notice::Dead { number: 5, status: 9, since }));
        assert!(it.is_over);
    }

    /// Who becomes another program is not dead. That one may hold the word again, and die.
    #[test]
    fn another_program_is_an_alarm_and_may_die_later() {
        let (mut it, now) = (watched(), Instant::now());
        assert_eq!(it.look(now, LET_GO, |_| None), None);
        assert_eq!(it.look(now + DOUBT, LET_GO, |_| None), Some(Notice::Alarm(5)));
        assert_eq!(it.look(now + DOUBT, LET_GO, |_| unreachable!()), None);
        assert_eq!(it.look(now + DOUBT, HELD, |_| unreachable!()), None);
        assert!(!it.is_over);
        let since = now + DOUBT * 2;
        assert_eq!(it.look(since, LET_GO, |_| Some(9)), Some(Notice::Dead { number: 5, status: 9, since }));
    }

    /// Who cries wolf is not listened to any more.
    #[test]
    fn a_word_that_changes_all_the_time_is_left_alone() {
        let (mut it, now) = (watched(), Instant::now());
        let words = (0..).map(|n| if n % 2 == 0 { LET_GO } else { HELD });
        let told = words.map(|word| it.look(now, word, |_| None)).take(CHANGES as usize + 1).collect::<Vec<_>>();
        assert!(told[..CHANGES as usize].iter().all(Option::is_none));
        assert_eq!((told.last(), it.is_over), (Some(&Some(Notice::Alarm(5))), true));
    }

    /// More than one thread can wait for, and each is forgotten again: no thread stays.
    #[test]
    fn many_are_watched() {
        assert!(Notices::are_there());
        let mut all = Notices::new(Waker::new(|| {}));
        let page = Arc::new(Page::new().expect("a page").0);
        let us = std::process::id().cast_signed();
        for number in 0..WORDS as u64 * 2 {
            all.watch(number, us, Arc::clone(&page)).expect("a thread");
        }
        assert_eq!(all.crowds.iter().map(|c| c.numbers.len()).collect::<Vec<_>>(), [WORDS - 1, WORDS - 1, 2]);
        all.forget(0);
        all.watch(9999, us, Arc::clone(&page)).expect("a thread");
        assert_eq!(all.crowds.iter().map(|c| c.numbers.len()).collect::<Vec<_>>(), [WORDS - 1, WORDS - 1, 2]);
        drop(all);
        let began = Instant::now();
        while Arc::strong_count(&page) > 1 {
            assert!(began.elapsed() < Duration::from_secs(10), "the threads end");
            std::thread::yield_now();
        }
    }
}
