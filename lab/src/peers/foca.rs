//! foca in one process: a task for each member, with a socket of its own, driven as its example drives it.
//!
//! `Config::new_lan` for the size of the cluster; postcard as its codec; no custom broadcasts. An identity is an address and a
//! count of lives, so that whoever comes back is taken in again.

use super::gate::{Gate, Keeper};
use super::ground::{address, member_at, rss_mb};
use super::measure::System;
use super::sight::{Sighting, Watch, now_ms};
use crate::error::Error;
use foca::{AccumulatingRuntime, Config, Foca, NoCustomBroadcast, OwnedNotification, PostcardCodec, Timer};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::SeedableRng;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::mpsc::Sender;
use tokio::net::UdpSocket;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// The longest datagram that is taken.
const DATAGRAM_MAX: usize = 1500;

/// A cluster of its members.
pub(super) struct Cluster {
    runtime: Runtime,
    config: Config,
    tell: Sender<Sighting>,
    members: Vec<Option<(JoinHandle<()>, Keeper)>>,
    /// How often each was started.
    lives: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Id {
    addr: SocketAddr,
    life: u64,
}

impl foca::Identity for Id {
    type Addr = SocketAddr;

    fn renew(&self) -> Option<Self> {
        Some(Self { addr: self.addr, life: self.life + 1 })
    }

    fn addr(&self) -> SocketAddr {
        self.addr
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.life > adversary.life
    }
}

impl Cluster {
    pub(super) fn new(members: usize, tell: Sender<Sighting>) -> Result<Self, Error> {
        let size = NonZeroU32::new(members as u32).ok_or_else(|| Error::UnknownRole("foca 0".into()))?;
        Ok(Self {
            runtime: Builder::new_multi_thread().enable_all().build()?,
            config: Config::new_lan(size),
            tell,
            members: (0..members).map(|_| None).collect(),
            lives: vec![0; members],
        })
    }

    fn start(&mut self, member: usize, join: Option<usize>) -> Result<(), Error> {
        // A renewed identity counts lives too: a restart must be ahead of those.
        self.lives[member] += 1000;
        let id = Id { addr: address(member), life: self.lives[member] };
        let join = join.map(|other| Id { addr: address(other), life: self.lives[other].max(1) });
        let socket = self.runtime.block_on(UdpSocket::bind(address(member)))?;
        let (keeper, gate) = Keeper::new();
        let rng = Pcg64::seed_from_u64(member as u64);
        let foca = Foca::new(id, self.config.clone(), rng, PostcardCodec);
        let task =
            Member { number: member, foca, socket, gate, tell: self.tell.clone(), timers: BinaryHeap::new(), count: 0 };
        self.members[member] = Some((self.runtime.spawn(task.run(join)), keeper));
        Ok(())
    }

    /// Ends a member and waits until its socket is closed.
    fn end(&mut self, member: usize) {
        if let Some((task, keeper)) = self.members[member].take() {
            task.abort();
            // It was cancelled, which is what it says.
            let _ = self.runtime.block_on(task);
            drop(keeper);
        }
    }
}

impl System for Cluster {
    fn boot(&mut self) -> Result<f64, Error> {
        self.start(0, None)?;
        let began = now_ms();
        for member in 1..self.members.len() {
            self.start(member, Some(0))?;
        }
        Ok(began)
    }

    fn crash(&mut self, member: usize) -> Result<(), Error> {
        self.end(member);
        Ok(())
    }

    fn mend(&mut self, member: usize, watch: &mut Watch) -> Result<(), Error> {
        self.end(member);
        watch.restarted(member);
        self.start(member, Some(usize::from(member == 0)))
    }

    fn stop(&mut self, member: usize, stopped: bool) -> Result<(), Error> {
        self.members[member].iter().for_each(|(_, keeper)| keeper.close(stopped));
        Ok(())
    }

    fn rss_mb(&self) -> Option<f64> {
        Some(rss_mb(std::process::id())? / self.members.len() as f64)
    }
}

/// One member.
struct Member {
    number: usize,
    foca: Foca<Id, PostcardCodec, Pcg64, NoCustomBroadcast>,
    socket: UdpSocket,
    gate: Gate,
    tell: Sender<Sighting>,
    timers: BinaryHeap<Reverse<Due>>,
    /// Timers so far: those of one moment ring in their order.
    count: u64,
}

/// A timer and when it rings.
struct Due {
    at: Instant,
    number: u64,
    timer: Timer<Id>,
}

impl Member {
    async fn run(mut self, join: Option<Id>) {
        let mut runtime = AccumulatingRuntime::new();
        if let Some(other) = join {
            // What it cannot do now it does at its next chance: its errors say no more than that.
            let _ = self.foca.announce(other, &mut runtime);
            self.flush(&mut runtime).await;
        }
        let mut datagram = [0; DATAGRAM_MAX];
        loop {
            let next = self.timers.peek().map(|due| due.0.at);
            let rings = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let arrived = tokio::select! {
                arrived = self.socket.recv_from(&mut datagram) => arrived.ok().map(|(length, _)| length),
                () = rings => None,
            };
            self.gate.pass().await;
            if let Some(length) = arrived {
                let _ = self.foca.handle_data(&datagram[..length], &mut runtime);
            }
            let now = Instant::now();
            while self.timers.peek().is_some_and(|due| due.0.at <= now) {
                let Some(Reverse(due)) = self.timers.pop() else { break };
                let _ = self.foca.handle_timer(due.timer, &mut runtime);
            }
            self.flush(&mut runtime).await;
        }
    }

    async fn flush(&mut self, runtime: &mut AccumulatingRuntime<Id>) {
        while let Some((to, data)) = runtime.to_send() {
            // A datagram may be lost anywhere.
            let _ = self.socket.send_to(&data, to.addr).await;
        }
        let now = Instant::now();
        while let Some((delay, timer)) = runtime.to_schedule() {
            self.timers.push(Reverse(Due { at: now + delay, number: self.count, timer }));
            self.count += 1;
        }
        while let Some(notification) = runtime.to_notify() {
            let (id, alive) = match notification {
                OwnedNotification::MemberUp(id) => (id, true),
                OwnedNotification::MemberDown(id) => (id, false),
                _ => continue,
            };
            if let Some(subject) = member_at(id.addr) {
                // The measurement is over when nobody listens.
                let _ = self.tell.send(Sighting::now(self.number, subject, alive));
            }
        }
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
