//! A task: a company of one over real sockets, as a shepherd has it. Handshake, seal, reliable letters and the view are all on.

use super::far::Far;
use super::serve::{Node, Say};
use super::words::{Answer, Order};
use crate::error::Error;
use phalanx_core::{Addr, Boot, Code, Duration, Instant};
use phalanx_daemon::platform::{tcp, udp};
use phalanx_daemon::shepherd::news::{News, Said};
use phalanx_daemon::{Driver, Platform, Tcp, Udp, Waker};
use phalanx_protocol::company::{Company, Seat};
use phalanx_protocol::link::Link;
use phalanx_protocol::link::seal::KeyRing;
use phalanx_protocol::link::sign::Signer;
use phalanx_protocol::view::{Config, Input, Person, Task, View, Wave};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time;

/// The key that all tasks of an experiment share.
const KEY: [u8; 32] = [0x51; 32];
const JOB: u64 = 7;
/// The first start of each task.
const FIRST: Seat = 1;
/// As between shepherds.
const LARGEST: u16 = 1400;

/// A platform that can be waited for with others.
pub(super) trait Ground: Platform + Sized {
    /// Opens one; `crowded` when it shares its thread.
    fn open(at: SocketAddr, crowded: bool) -> std::io::Result<Self>;
    /// Readable when something has come.
    fn file(&self) -> BorrowedFd<'_>;
}

impl Ground for Udp {
    fn open(at: SocketAddr, crowded: bool) -> std::io::Result<Self> {
        Self::open(udp::Options { crowded, ..udp::Options::at(at) })
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}

impl Ground for Tcp {
    fn open(at: SocketAddr, _: bool) -> std::io::Result<Self> {
        Self::open(tcp::Options::at(at))
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

/// A company of one task.
pub(super) fn company(me: u32, host: Addr) -> Company {
    let random = |salt: u8| {
        let mut bytes = [salt; 32];
        bytes[..4].copy_from_slice(&me.to_le_bytes());
        bytes
    };
    let boot = Boot(std::array::from_fn(|i| random(1)[i]));
    let link = Link::new(
        Arc::new(Company::link_config()),
        Arc::new(KeyRing::new(1, KEY)),
        Signer::generate(&random(2)),
        boot,
        u64::from(me) << 32 | u64::from(std::process::id()),
    );
    // Nobody asks how others are while a wave is measured.
    let config = Config { inquiry: Duration::ZERO, ..Config::default() };
    Company::new(link, LARGEST, host, JOB, config, FIRST)
}

/// The view that everybody starts with.
pub(super) fn first_view(arity: u32, hosts: impl IntoIterator<Item = Addr>) -> Result<View, Error> {
    let people = hosts.into_iter().map(|host| Person { host, boot: FIRST, stint: 0 });
    View::first(arity, people).map_err(Error::peer("view"))
}

/// One task.
pub(super) struct Tasked<P: Platform> {
    me: u32,
    driver: Driver<Far<P>, Company>,
    /// The wave that the experiment waits for, and when it began.
    asked: Option<Wave>,
    begun: Option<time::Instant>,
    /// It was left out; it is to come back.
    is_out: bool,
    comes_back: bool,
}

impl<P: Ground> Tasked<P> {
    /// Opens its socket.
    pub(super) fn open(me: u32, crowded: bool) -> Result<(Self, SocketAddr), Error> {
        let platform = <Far<P> as Ground>::open(SocketAddr::from(([127, 0, 0, 1], 0)), crowded)?;
        let local = platform.local();
        let Addr::Ip(at) = local else { unreachable!("a socket has an IP address") };
        let driver = Driver::new(platform, company(me, local), None, u64::from(me));
        Ok((Self { me, driver, asked: None, begun: None, is_out: false, comes_back: false }, at))
    }

    fn ask(&mut self, wave: Wave, input: Input<'_>) {
        self.asked = Some(wave);
        self.driver.act(|company, now, out| company.tell(now, FIRST, input, out));
    }

    /// RV-8: who speaks from outside the view is told so.
    fn speak_up(&mut self) {
        self.driver.act(|company, now, out| {
            let Some(view) = company.member(FIRST).and_then(|m| m.view()).map(View::id) else { return };
            // Should it fail, the experiment hears nothing, and says so.
            let _ = company.send(now, FIRST, (view, Task(0)), b"am I in?", out);
        });
    }

    fn tell_news(&mut self, say: &mut Say<'_>) {
        for news in self.driver.news() {
            let News { said, .. } = news;
            match said {
                Said::Begun(wave, at) if self.asked == Some(wave) => self.begun = Some(at),
                Said::Settled(wave, at) if self.asked == Some(wave) => {
                    if let Some(begun) = self.begun.take() {
                        self.asked = None;
                        say(Answer::Took { ns: (at - begun).as_nanos() as u64 });
                    }
                }
                Said::Excluded(_) => self.is_out = true,
                Said::Installed { .. } if self.is_out => {
                    self.is_out = false;
                    say(Answer::Within);
                }
                _ => {}
            }
        }
        if self.is_out && std::mem::take(&mut self.comes_back) {
            self.driver.act(|company, now, out| company.rejoin(now, FIRST, out));
        }
    }
}

impl<P: Ground> Node for Tasked<P> {
    fn obey(&mut self, order: Order, say: &mut Say<'_>) -> Result<(), Error> {
        match order {
            Order::Meet { arity, all } => {
                let view = first_view(arity, all.into_iter().map(Addr::Ip))?;
                let me = Task(self.me);
                self.driver.act(|company, now, out| company.enter(now, me, view, out));
                say(Answer::Done);
            }
            Order::Take => say(Answer::Done),
            Order::Delay { us } => {
                self.driver.platform().set_hop(Duration::from_micros(us));
                say(Answer::Done);
            }
            Order::Wave { without } => self.ask(Wave::FailedNode, Input::Failed { tasks: &[Task(without)] }),
            Order::Warm => self.ask(Wave::Checkpoint, Input::Checkpoint),
            Order::Rejoin => {
                self.comes_back = true;
                self.speak_up();
            }
            Order::Ping { .. } | Order::End => {}
        }
        self.tell_news(say);
        Ok(())
    }

    fn work(&mut self, _: u16, say: &mut Say<'_>) -> Result<(), Error> {
        self.driver.poll().map_err(|code: Code| Error::Peer { library: "phalanx", reason: code.to_string() })?;
        self.tell_news(say);
        Ok(())
    }

    fn files(&self) -> Vec<(u16, BorrowedFd<'_>)> {
        vec![(0, self.driver.platform().file())]
    }

    fn due_in(&self) -> Option<Duration> {
        let deadline = self.driver.deadline().min(self.driver.platform().due());
        (deadline != Instant::NEVER).then(|| deadline.since(self.driver.now()))
    }

    fn waker(&self) -> Option<Waker> {
        Some(self.driver.waker())
    }

    fn wait(&mut self) -> Result<(), Error> {
        self.driver.wait(Instant::NEVER);
        Ok(())
    }
}
