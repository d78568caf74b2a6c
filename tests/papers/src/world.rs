//! CL-4: the places where one and the same program runs. A new platform is one more [`World`], and no other line.

use phalanx_core::Addr;
use phalanx_daemon::platform::{Platform, tcp, udp};
use phalanx_daemon::{Hub, InProcess, Tcp, Udp};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

/// A network that hosts can be opened on.
pub trait World: Default {
    /// Its platform.
    type Platform: Platform;
    /// What people call it.
    const NAME: &'static str;
    /// Whether it carries groups.
    const GROUPS: bool;
    /// A new place on it.
    fn open(&self) -> Self::Platform;
}

/// A world whose places outlive who is there: a host can start again where it was.
pub trait Lasting: World {
    /// The place `at` again, after who was there has gone.
    fn reopen(&self, at: Addr) -> Self::Platform;
}

/// Datagrams on loopback.
pub struct OverUdp {
    group_port: u16,
}

/// Connections on loopback.
#[derive(Default)]
pub struct OverTcp;

/// Mailboxes in this process.
#[derive(Default)]
pub struct OverThreads(Hub);

const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

impl Default for OverUdp {
    fn default() -> Self {
        // A port of its own for each world, so that tests that run at the same time do not hear each other's groups.
        let probe = UdpSocket::bind(ANYWHERE).expect("loopback has free ports");
        Self { group_port: probe.local_addr().expect("it is bound").port() }
    }
}

impl OverUdp {
    fn at(&self, bind: SocketAddr) -> Udp {
        let options = udp::Options { group_port: self.group_port, ..udp::Options::at(bind) };
        Udp::open(options).expect("loopback can be bound")
    }
}

impl World for OverUdp {
    type Platform = Udp;
    const NAME: &'static str = "udp";
    const GROUPS: bool = true;

    fn open(&self) -> Udp {
        self.at(ANYWHERE)
    }
}

impl World for OverTcp {
    type Platform = Tcp;
    const NAME: &'static str = "tcp";
    const GROUPS: bool = false;

    fn open(&self) -> Tcp {
        Tcp::open(tcp::Options::at(ANYWHERE)).expect("loopback can be bound")
    }
}

impl World for OverThreads {
    type Platform = InProcess;
    const NAME: &'static str = "in-process";
    const GROUPS: bool = true;

    fn open(&self) -> InProcess {
        self.0.open().expect("a hub has room")
    }
}

impl Lasting for OverUdp {
    fn reopen(&self, at: Addr) -> Udp {
        self.at(ip(at))
    }
}

impl Lasting for OverTcp {
    fn reopen(&self, at: Addr) -> Tcp {
        Tcp::open(tcp::Options::at(ip(at))).expect("a port that was left can be bound again")
    }
}

/// The socket address inside `addr`.
///
/// # Panics
/// When it is of another kind: the caller knows its world.
#[must_use]
pub fn ip(addr: Addr) -> SocketAddr {
    match addr {
        Addr::Ip(at) => at,
        other => panic!("{other} is no socket address"),
    }
}
