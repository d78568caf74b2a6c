//! What an agent starts with, and how it gets its ground: sockets, tripwires, state on disk.

use crate::platform::LARGEST_DATAGRAM;
use crate::platform::udp::Options;
use crate::seating::{Directory, DirectoryError};
use crate::store::{self, Key, Store, StoreError};
use crate::wires::Wires;
use crate::{Driver, Platform, Udp};
use phalanx_core::{Addr, Duration, Rng};
use phalanx_protocol::cast::TreeError;
use phalanx_protocol::federation::{Federation, FederationConfig};
use phalanx_protocol::link::seal::KeyRing;
use phalanx_protocol::member::Name;
use phalanx_protocol::node::scout::ScoutConfig;
use phalanx_protocol::node::{Membership, Node, Profile, Start, casts};
use phalanx_protocol::rumour::Rumours;
use phalanx_protocol::rumour::keys::Keys;
use phalanx_protocol::zone::hierarchy::Role;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// What to do when another member has our name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Conflict {
    /// Leave.
    #[default]
    Refuse,
    /// Take another name.
    Rename,
}

/// A node's part in parallel jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Running {
    /// Jobs are managed once so many nodes are there; 0 waits for a manager that others found.
    pub expect: u32,
    /// Ranks that it takes.
    pub slots: u32,
    /// Jobs of root run here, as root.
    pub as_root: bool,
}

impl Default for Running {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { expect: 0, slots: processors.try_into().unwrap_or(u32::MAX), as_root: false }
    }
}

/// What an agent starts with.
pub struct Settings {
    /// What people call it.
    pub name: Name,
    /// Where it listens; port 0 takes any.
    pub bind: SocketAddr,
    /// Where others reach it, when that is another address.
    pub advertise: Option<SocketAddr>,
    /// The cluster's keys, the sealing one first.
    pub keys: Vec<Key>,
    /// How often they have been changed.
    pub epoch: u64,
    /// The cluster's name: who has the same keys and another name stays outside.
    pub cluster: String,
    /// Where other members may be.
    pub seeds: Vec<SocketAddr>,
    /// On which engine the cluster runs, and how this node watches and speaks.
    pub profile: Profile,
    /// Its place in a hierarchy.
    pub role: Role,
    /// How it looks around, when it does: see [`scout`](phalanx_protocol::node::scout).
    pub scout: Option<ScoutConfig>,
    /// Its data centre, and the others.
    pub federation: Option<FederationConfig>,
    /// How it casts.
    pub casts: casts::Config,
    /// Where its seat in the tree of casts comes from.
    pub directory: Directory,
    /// How long a farewell may take.
    pub leave_timeout: Duration,
    /// What to do when another member has our name.
    pub conflict: Conflict,
    /// Its part in parallel jobs.
    pub running: Running,
    /// Where its state is kept; without, it is another node after each start.
    pub store: Option<Store>,
}

/// Why an agent could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Its state.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its sockets.
    #[error("cannot listen at {at}: {why}{}", advice(why))]
    Listen {
        /// Where.
        at: SocketAddr,
        /// What the system said.
        why: io::Error,
    },
    /// A wildcard, and nobody knows at which address others reach it.
    #[error("cannot tell at which address others reach {0}: name it with --advertise")]
    Advertise(SocketAddr),
    /// Its casts.
    #[error(transparent)]
    Casts(#[from] TreeError),
    /// Where its seat comes from.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The cluster's keys.
    #[error("the key ring is empty, too long, or has two keys with one id")]
    Keys,
    /// No more threads.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// No random numbers.
    #[error("the system has no random numbers: {0}")]
    Random(getrandom::Error),
}

fn advice(why: &io::Error) -> &'static str {
    match why.kind() {
        io::ErrorKind::AddrInUse => " (another daemon runs there: stop it, or choose another --bind)",
        io::ErrorKind::AddrNotAvailable => " (this host has no such address)",
        io::ErrorKind::PermissionDenied => " (choose a port above 1023)",
        _ => "",
    }
}

/// What an agent stands on.
pub(super) struct Ground {
    pub(super) driver: Driver<Udp, Node<Membership>>,
    pub(super) wires: Wires,
    pub(super) store: Option<Store>,
}

/// The largest datagram between hosts. Those who listen on loopback have peers there only.
const FITS_EVERYWHERE: u16 = 1400;

/// The stream of random numbers that a federation draws from.
const FEDERATION_STREAM: u64 = 7;

/// Ports that are tried when any will do: datagrams and streams must have the same one.
const TRIES: usize = 16;

impl Settings {
    /// Opens everything.
    pub(super) fn ground(mut self) -> Result<Ground, StartError> {
        let store = self.store.take();
        let ring = Arc::new(store::ring(&self.keys, &self.cluster).ok_or(StartError::Keys)?);
        let mut entropy = [0; 64];
        getrandom::fill(&mut entropy).map_err(StartError::Random)?;
        let (mut incarnation, mut seeds) = (1, self.seeds.clone());
        if let Some(store) = &store {
            entropy[..32].copy_from_slice(&store.identity()?);
            incarnation = store.next_incarnation()?;
            seeds.extend(store.members());
        }
        if let (Some(zone), Role::Alone) = (store.as_ref().and_then(Store::zone), &self.role)
            && self.scout.is_some_and(|s| s.zones)
        {
            self.role = Role::Base { zone, supervisors: Arc::default() };
        }
        let (udp, wires, addr) = listen(self.bind, self.advertise, &ring)?;
        if let Profile::Unicast(_, map) = &self.profile
            && map.segment_of(Addr::Ip(addr)).is_none()
        {
            tracing::warn!(%addr, "this node is in none of `segments`, and is one of its own: name its address there");
        }
        seeds.retain(|&s| s != addr);
        seeds.dedup();
        let start = Start {
            ring,
            seeds: seeds.into_iter().map(Addr::Ip).collect(),
            incarnation,
            role: self.role,
            largest: if addr.ip().is_loopback() { LARGEST_DATAGRAM as u16 } else { FITS_EVERYWHERE },
            ..Start::new(self.name.clone(), Addr::Ip(addr), [0; 32], entropy)
        };
        let node = start.member(&self.profile, udp.now());
        let node = match (&self.profile, self.scout) {
            (Profile::Zone(profile), Some(scout)) => node.with_scout(start.scout(scout, profile, udp.now())),
            _ => node,
        };
        let seed = u64::from_le_bytes(std::array::from_fn(|i| entropy[40 + i]));
        let node = match self.federation.take() {
            Some(config) => node.with_federation(Federation::new(config, Rng::new(seed, FEDERATION_STREAM), udp.now())),
            None => node,
        };
        let keys = Keys { epoch: self.epoch, keys: self.keys.iter().map(|k| (k.id, k.key)).collect() };
        let boot = node.link().boot();
        let node = node.with_rumours(Rumours::new(self.name, Addr::Ip(addr), boot, keys));
        let casts = casts::Config { external: self.directory.is_outside(), ..self.casts };
        let node = node.with_casts(udp.now(), casts, super::casts::tree(&start.role))?;
        let tripwires = matches!(&self.profile, Profile::Zone(config) if config.tripwires);
        let handle = tripwires.then(|| wires.enter(addr, udp.waker()));
        Ok(Ground { driver: Driver::new(udp, node, handle, seed), wires, store })
    }
}

/// Datagrams and tripwires at the same port, and where others reach both.
pub(crate) fn listen(
    bind: SocketAddr,
    advertise: Option<SocketAddr>,
    ring: &Arc<KeyRing>,
) -> Result<(Udp, Wires, SocketAddr), StartError> {
    let fail = |why| StartError::Listen { at: bind, why };
    let mut tries = 0;
    loop {
        tries += 1;
        let probe = std::net::UdpSocket::bind(bind).map_err(fail)?;
        let bound = probe.local_addr().map_err(fail)?;
        drop(probe);
        let advertised = advertised(advertise, bound)?;
        let interface = interface_of(advertised.ip());
        let opened = Udp::open(Options { advertise: Some(advertised), interface, ..Options::at(bound) })
            .and_then(|udp| Ok((udp, Wires::open(bound, Arc::clone(ring), false)?)));
        match opened {
            Ok((udp, wires)) => return Ok((udp, wires, advertised)),
            // Somebody else has the other half of this port.
            Err(e) if bind.port() == 0 && tries < TRIES && e.kind() == io::ErrorKind::AddrInUse => {}
            Err(e) => return Err(fail(e)),
        }
    }
}

/// Where others reach what is bound here.
fn advertised(advertise: Option<SocketAddr>, bound: SocketAddr) -> Result<SocketAddr, StartError> {
    match advertise {
        Some(addr) if addr.port() == 0 => Ok(SocketAddr::new(addr.ip(), bound.port())),
        Some(addr) => Ok(addr),
        None if bound.ip().is_unspecified() => {
            let ip = outward(bound.ip()).or_else(|| only(bound.ip())).ok_or(StartError::Advertise(bound))?;
            Ok(SocketAddr::new(ip, bound.port()))
        }
        None => Ok(bound),
    }
}

/// The number of the interface that has this address: groups of IPv6 are heard there. 0 leaves it to the system, as IPv4 does, which names interfaces
/// by their addresses.
fn interface_of(ip: IpAddr) -> u32 {
    let IpAddr::V6(ip) = ip else { return 0 };
    let has = |address: &nix::sys::socket::SockaddrStorage| address.as_sockaddr_in6().is_some_and(|a| a.ip() == ip);
    let found = nix::ifaddrs::getifaddrs().ok().and_then(|mut all| all.find(|i| i.address.as_ref().is_some_and(has)));
    found.and_then(|i| nix::net::if_::if_nametoindex(i.interface_name.as_str()).ok()).unwrap_or(0)
}

/// The address from which this host speaks to the rest of the world; nothing is sent to find it out.
fn outward(family: IpAddr) -> Option<IpAddr> {
    let (any, far) = match family {
        IpAddr::V4(_) => ("0.0.0.0:0", "192.0.2.1:9"),
        IpAddr::V6(_) => ("[::]:0", "[2001:db8::1]:9"),
    };
    let socket = std::net::UdpSocket::bind(any).ok()?;
    socket.connect(far).ok()?;
    socket.local_addr().ok().map(|a| a.ip()).filter(|ip| !ip.is_unspecified())
}

/// The only address that this host has besides loopback: in a network without a way out there is no other answer.
fn only(family: IpAddr) -> Option<IpAddr> {
    let ours = nix::ifaddrs::getifaddrs().ok()?.filter_map(|i| i.address);
    let mut ours = ours.filter_map(|a| match family {
        IpAddr::V4(_) => a.as_sockaddr_in().map(|a| IpAddr::V4(a.ip())),
        // Addresses of a link alone mean nothing without their interface.
        IpAddr::V6(_) => a.as_sockaddr_in6().map(|a| a.ip()).filter(|a| !a.is_unicast_link_local()).map(IpAddr::V6),
    });
    let first = ours.find(|ip| !ip.is_loopback())?;
    ours.all(|ip| ip.is_loopback() || ip == first).then_some(first)
}
