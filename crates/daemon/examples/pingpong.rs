//! There and back: what a platform costs beside bare sockets, in the same run.
//!
//! `cargo run --release -p phalanx-daemon --example pingpong [rounds]`
//!
//! Two threads exchange one small datagram. `spin`: a core each, polling. `same-core`: one core, blocking, which
//! leaves out what a virtual machine takes to wake an idle core. `near` is same-core with a deadline of 5 ms pending, as
//! while a retransmission timer runs. Contestants take turns, so that a noisy moment hits all of them.

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use phalanx_core::{Addr, Buf, Duration, Instant};
use phalanx_daemon::platform::{tcp, udp};
use phalanx_daemon::{Clock, Hub, Platform, Tcp, Udp};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

const LOOPBACK: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);
const EXCHANGES: usize = 4000;
const SIZE: usize = 64;

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Spin,
    SameCore,
    Near,
}

/// One side of the exchange.
trait Player: Send + 'static {
    fn address(&self) -> Addr;
    fn send(&mut self, to: Addr);
    /// Waits for one datagram, as `mode` says, and returns its sender.
    fn receive(&mut self, mode: Mode) -> Addr;
}

struct Raw {
    socket: UdpSocket,
    buffer: [u8; 2048],
}

impl Raw {
    fn new(mode: Mode) -> Self {
        let socket = UdpSocket::bind(LOOPBACK).expect("loopback can be bound");
        socket.set_nonblocking(mode == Mode::Spin).expect("a socket can be non-blocking");
        Self { socket, buffer: [0; 2048] }
    }
}

impl Player for Raw {
    fn address(&self) -> Addr {
        Addr::Ip(self.socket.local_addr().expect("it is bound"))
    }

    fn send(&mut self, to: Addr) {
        let Addr::Ip(to) = to else { unreachable!("raw sockets know IP alone") };
        self.socket.send_to(&self.buffer[..SIZE], to).expect("loopback takes it");
    }

    fn receive(&mut self, _: Mode) -> Addr {
        loop {
            if let Ok((_, from)) = self.socket.recv_from(&mut self.buffer) {
                return Addr::Ip(from);
            }
        }
    }
}

struct Over<P>(P);

impl<P: Platform + Send + 'static> Player for Over<P> {
    fn address(&self) -> Addr {
        self.0.local()
    }

    fn send(&mut self, to: Addr) {
        self.0.send(to, Buf::copy_of(&[7; SIZE]), None).expect("the queue has room");
        self.0.flush(&mut |_, _| {});
    }

    fn receive(&mut self, mode: Mode) -> Addr {
        let mut sender = None;
        loop {
            match mode {
                Mode::Spin => {}
                Mode::SameCore => drop(self.0.wait(Instant::NEVER)),
                Mode::Near => drop(self.0.wait(self.0.now() + Duration::from_millis(5))),
            }
            self.0.receive(&mut |from, _| sender = Some(from)).expect("the platform works");
            // Connections that are being made want to be written to.
            if let Some(from) = sender {
                return from;
            }
            self.0.flush(&mut |_, _| {});
        }
    }
}

/// The median exchange in nanoseconds, there and back.
fn play<A: Player>(mode: Mode, open: impl Fn() -> A) -> u64 {
    let (mut a, mut b) = (open(), open());
    let to = b.address();
    let cores = if mode == Mode::Spin { (0, 1) } else { (0, 0) };
    let echo = std::thread::spawn(move || {
        pin(cores.1);
        for _ in 0..EXCHANGES {
            let from = b.receive(mode);
            b.send(from);
        }
    });
    pin(cores.0);
    let clock = Clock::start();
    let mut times: Vec<u64> = (0..EXCHANGES)
        .map(|_| {
            let before = clock.now();
            a.send(to);
            a.receive(mode);
            clock.now().since(before).as_nanos()
        })
        .collect();
    echo.join().expect("the echo ends with the exchange");
    times.sort_unstable();
    times[EXCHANGES / 2]
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    let pinned = set.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
    pinned.expect("the machine has two cores");
}

/// The part of a spinning thread's time that the machine took away: how far to trust the figures.
fn lost_time() -> f64 {
    let clock = Clock::start();
    let (mut last, mut lost) = (clock.now(), Duration::ZERO);
    let until = last + Duration::from_millis(50);
    while last < until {
        let now = clock.now();
        if now.since(last) > Duration::from_micros(20) {
            lost = lost + now.since(last);
        }
        last = now;
    }
    lost.as_secs_f64() / 0.05
}

fn median(samples: &mut [u64]) -> f64 {
    samples.sort_unstable();
    samples[samples.len() / 2] as f64 / 1000.0
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(7_usize);
    let at: SocketAddr = LOOPBACK.into();
    println!("{SIZE} B there and back, µs: median of {rounds} medians of {EXCHANGES}; beside it the cost over raw UDP");
    for (name, mode) in [("spin", Mode::Spin), ("same-core", Mode::SameCore), ("near", Mode::Near)] {
        let hub = Hub::new();
        let mut results = [const { Vec::new() }; 4];
        for _ in 0..rounds {
            results[0].push(play(mode, || Raw::new(mode)));
            results[1].push(play(mode, || Over(Udp::open(udp::Options::at(at)).expect("loopback can be bound"))));
            results[2].push(play(mode, || Over(Tcp::open(tcp::Options::at(at)).expect("loopback can be bound"))));
            results[3].push(play(mode, || Over(hub.open().expect("a hub has room"))));
        }
        let [raw, udp, tcp, threads] = results.each_mut().map(|r| median(r));
        let over = |t: f64| format!("{t:6.2} ({:+.2})", t - raw);
        println!("{name:10} raw {raw:6.2}  udp {}  tcp {}  in-process {}", over(udp), over(tcp), over(threads));
    }
    println!("time lost to others while measuring: {:.0} %", 100.0 * lost_time());
}
