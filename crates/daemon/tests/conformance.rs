//! CL-1…4: each real platform passes the same suite, on loopback.

use phalanx_core::{Addr, Buf, Code, Group};
use phalanx_daemon::conformance::Bed;
use phalanx_daemon::platform::{tcp, udp};
use phalanx_daemon::{Hub, InProcess, Platform, Tcp, Udp, conformance_tests};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

struct UdpBed {
    at: SocketAddr,
    group_port: u16,
}

impl UdpBed {
    fn new(at: SocketAddr) -> Self {
        // A port of its own for each bed, so that stories that run at the same time do not hear each other.
        let probe = UdpSocket::bind(at).expect("loopback has free ports");
        Self { at, group_port: probe.local_addr().expect("it is bound").port() }
    }
}

impl Bed for UdpBed {
    type Node = Udp;

    fn open(&self) -> Udp {
        let interface = nix::net::if_::if_nametoindex("lo").expect("there is a loopback");
        let options = udp::Options { group_port: self.group_port, interface, ..udp::Options::at(self.at) };
        Udp::open(options).expect("loopback can be bound")
    }

    fn stranger(&self) -> Addr {
        Addr::Local(0)
    }

    /// Linux carries no IPv6 multicast on loopback. `routed.rs` has the story on hosts of their own.
    fn multicast(&self) -> Option<bool> {
        let group = Group { number: 1, ttl: 1 };
        let (mut node, mut outcome) = (self.open(), Ok(()));
        node.send(Addr::Group(group), Buf::copy_of(b"probe"), Some(0)).expect("a group is an endpoint");
        node.flush(&mut |_, told| outcome = told);
        let missing = self.at.is_ipv6() && outcome == Err(Code::Unreachable);
        (!missing).then_some(true)
    }
}

struct TcpBed;

impl Bed for TcpBed {
    type Node = Tcp;

    fn open(&self) -> Tcp {
        Tcp::open(tcp::Options::at((Ipv4Addr::LOCALHOST, 0).into())).expect("loopback can be bound")
    }

    fn stranger(&self) -> Addr {
        Addr::Ip((Ipv6Addr::LOCALHOST, 9).into())
    }

    fn multicast(&self) -> Option<bool> {
        Some(false)
    }
}

impl Bed for HubBed {
    type Node = InProcess;

    fn open(&self) -> InProcess {
        self.0.open().expect("a hub has room")
    }

    fn stranger(&self) -> Addr {
        Addr::Ip((Ipv4Addr::LOCALHOST, 9).into())
    }

    fn multicast(&self) -> Option<bool> {
        Some(true)
    }

    fn open_behind_router(&self) -> Option<InProcess> {
        self.0.open_in(1).ok()
    }
}

struct HubBed(Hub);

conformance_tests!(udp_v4, UdpBed::new((Ipv4Addr::LOCALHOST, 0).into()));
conformance_tests!(udp_v6, UdpBed::new((Ipv6Addr::LOCALHOST, 0).into()));
conformance_tests!(tcp_v4, TcpBed);
conformance_tests!(in_process, HubBed(Hub::new()));
