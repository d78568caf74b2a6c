//! The ground of a cluster under measurement: a private network with nothing else on it.
//!
//! The child that measures moves into a network namespace of its own before it starts anything; the namespace ends with
//! the last process in it, so nothing has to be cleaned up, whatever happens. Each member has an address of its own on its
//! loopback. What is sent there is counted by the device, what is cut off is dropped on its way *in*: a drop on the way out
//! would come back as an error of the sender, which is another fault.

use crate::error::Error;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::Uid;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};

/// All members listen here, each at its own address.
pub(super) const PORT: u16 = 7946;
/// Members of one cluster, at most: addresses of one subnet, without the first and the last few.
pub(super) const MEMBERS_MAX: usize = 40_000;
/// The device puts so many bytes before each IP packet.
const FRAME: u64 = 14;
const SUBNET: &str = "10.77.0.0/16";
const TABLE: &str = "peers";

/// A private network.
pub(super) struct Ground {
    _private: (),
}

/// What the members sent so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sent {
    /// IP packets.
    pub(super) packets: u64,
    /// Their bytes, IP headers included.
    pub(super) bytes: u64,
}

impl Ground {
    /// Moves the calling thread, and all that it starts from now on, into a private network.
    pub(super) fn enter() -> Result<Self, Error> {
        // Who may not make a network may do so as the master of a name space of users.
        let users = if Uid::effective().is_root() { CloneFlags::empty() } else { CloneFlags::CLONE_NEWUSER };
        unshare(CloneFlags::CLONE_NEWNET | users)
            .map_err(|e| Error::Peer { library: "network namespace", reason: format!("{e}: run this as root") })?;
        obey("ip", &["link", "set", "lo", "up"])?;
        // Each address of the subnet is this host's.
        obey("ip", &["route", "add", "local", SUBNET, "dev", "lo"])?;
        Ok(Self { _private: () })
    }

    /// What was sent since the network is there.
    pub(super) fn sent(&self) -> Result<Sent, Error> {
        let text = fs::read_to_string("/proc/thread-self/net/dev")?;
        sent_in(&text).ok_or_else(|| Error::Peer { library: "network namespace", reason: "no loopback".into() })
    }

    /// Drops all packets of a member, those that it sends and those for it.
    pub(super) fn cut(&self, member: usize) -> Result<(), Error> {
        let address = address(member).ip().to_string();
        obey("nft", &["add", "table", "inet", TABLE])?;
        obey("nft", &["add", "chain", "inet", TABLE, "in", "{ type filter hook input priority 0 ; }"])?;
        // Both in one command, and so at one moment.
        let rules = ["saddr", "daddr"].map(|side| format!("add rule inet {TABLE} in ip {side} {address} drop"));
        obey("nft", &[&rules.join("; ")])
    }

    /// Drops nothing any more.
    pub(super) fn heal(&self) -> Result<(), Error> {
        obey("nft", &["delete", "table", "inet", TABLE])
    }
}

/// Where a member is.
pub(super) fn address(member: usize) -> SocketAddr {
    debug_assert!(member < MEMBERS_MAX);
    let (high, low) = (member / 200, member % 200 + 1);
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 77, high as u8, low as u8)), PORT)
}

/// The member at an address.
pub(super) fn member_at(address: SocketAddr) -> Option<usize> {
    let IpAddr::V4(ip) = address.ip() else { return None };
    let [10, 77, high, low] = ip.octets() else { return None };
    Some(usize::from(high) * 200 + usize::from(low).checked_sub(1)?)
}

/// What a member is called.
pub(super) fn name(member: usize) -> String {
    format!("n{member}")
}

/// The member of that name.
pub(super) fn member_named(name: &str) -> Option<usize> {
    name.strip_prefix('n')?.parse().ok()
}

/// Memory that a process holds now.
pub(super) fn rss_mb(process: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()? * 1024.0 / 1e6)
}

/// The loopback's line of the table of devices.
fn sent_in(table: &str) -> Option<Sent> {
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix("lo:"))?;
    // Eight columns of what came, then bytes and packets of what went.
    let mut went = line.split_whitespace().skip(8).map(str::parse::<u64>);
    let (bytes, packets) = (went.next()?.ok()?, went.next()?.ok()?);
    Some(Sent { packets, bytes: bytes.saturating_sub(packets * FRAME) })
}

fn obey(program: &'static str, arguments: &[&str]) -> Result<(), Error> {
    let done = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let refused = |reason: String| Error::Peer { library: program, reason };
    let done = done.map_err(|e| refused(e.to_string()))?;
    if done.status.success() {
        return Ok(());
    }
    Err(refused(format!("{}: {}", arguments.join(" "), String::from_utf8_lossy(&done.stderr).trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn members_have_addresses_and_names_of_their_own() {
        let members = [0, 1, 29, 99, 199, 200, 201, 999, MEMBERS_MAX - 1];
        assert_eq!(members.map(address).into_iter().collect::<BTreeSet<_>>().len(), members.len());
        assert_eq!(members.map(|m| member_at(address(m))), members.map(Some));
        assert_eq!(members.map(|m| member_named(&name(m))), members.map(Some));
        assert_eq!(member_at("10.77.0.0:7946".parse().unwrap()), None);
        assert_eq!(member_at("127.0.0.1:7946".parse().unwrap()), None);
        assert_eq!(member_named("nobody"), None);
    }

    #[test]
    fn what_was_sent_is_counted_without_frames() {
        let table = "Inter-|   Receive\n face |bytes    packets\n\
                     \u{20}   lo:  114000     1000    0    0    0     0          0         0   228000     2000    0    0\n\
                     \u{20} eth0:  7 1 0 0 0 0 0 0 9 1 0 0\n";
        assert_eq!(sent_in(table), Some(Sent { packets: 2000, bytes: 200_000 }));
        assert_eq!(sent_in("  eth0: 1 2 3\n"), None);
    }

    #[test]
    fn this_process_has_memory_and_a_strange_one_none() {
        assert!(rss_mb(std::process::id()).is_some_and(|mb| mb > 0.5));
        assert_eq!(rss_mb(u32::MAX), None);
    }
}
