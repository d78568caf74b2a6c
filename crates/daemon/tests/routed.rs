//! TG, CL-3: groups of the UDP platform across a real router, in both families. Each node has a host of its own. Needs root, `ip`,
//! `nft` and `smcrouted`.

use phalanx_core::{Addr, Group};
use phalanx_daemon::conformance::{Bed, groups_reach_their_members};
use phalanx_daemon::platform::udp::Options;
use phalanx_daemon::{Platform, Udp};
use phalanx_netlab::{Network, Plan};
use std::cell::Cell;
use std::net::IpAddr;

/// Nodes of a story that share a segment, at most.
const NEAR: usize = 4;

/// A group that no story speaks of.
const FIRST: Group = Group { number: 1, ttl: 1 };

/// Two networks and a router; the second has one host.
struct Routed {
    network: Network,
    addr: fn(&Network, usize) -> IpAddr,
    opened: Cell<usize>,
}

impl Routed {
    fn new(addr: fn(&Network, usize) -> IpAddr) -> Option<Self> {
        let mut plan = Plan::lan(NEAR);
        let far = plan.add_network(1);
        plan.add_router(&[0, far]);
        Some(Self { network: Network::of(&plan)?, addr, opened: Cell::new(0) })
    }

    fn open_on(&self, host: usize) -> Udp {
        // The interface is left to the system: such a host has one.
        let options = Options::at(((self.addr)(&self.network, host), 0).into());
        self.network.inside(host, || {
            let mut node = Udp::open(options).expect("a host can bind its address");
            // The socket for groups is opened with the first, and must be on this host, too.
            node.join(FIRST).expect("a host can hear a group");
            node
        })
    }
}

impl Bed for Routed {
    type Node = Udp;

    fn open(&self) -> Udp {
        let host = self.opened.replace(self.opened.get() + 1);
        assert!(host < NEAR, "more nodes than hosts");
        self.open_on(host)
    }

    fn stranger(&self) -> Addr {
        Addr::Local(0)
    }

    fn multicast(&self) -> Option<bool> {
        Some(true)
    }

    fn open_behind_router(&self) -> Option<Udp> {
        Some(self.open_on(NEAR))
    }
}

#[test]
fn groups_cross_a_router_as_far_as_their_ttl() {
    let Some(bed) = Routed::new(Network::addr) else { return };
    groups_reach_their_members(&bed);
}

#[test]
fn groups_cross_a_router_as_far_as_their_hop_limit() {
    if !Network::routes_ipv6() {
        eprintln!("skipped: this kernel routes no multicast of IPv6");
        return;
    }
    let Some(bed) = Routed::new(Network::addr_v6) else { return };
    groups_reach_their_members(&bed);
}
