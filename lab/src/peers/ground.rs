//! The ground of a cluster under measurement: a private network with nothing else on it.
//!
//! The child that measures moves into a network namespace of its own before it starts anything; the namespace ends with
//! the last process in it, so nothing has to be cleaned up, whatever happens. Each member has an address of its own on its
//! loopback. What is sent there is counted by the device; what a member sends to itself (ours wakes its receiver so) never
//! leaves a host, and is counted apart. What is cut off is dropped on its way *in*: a drop on the way out would come back as
//! an error of the sender, which is another fault.

use crate::error::Error;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::Uid;
use serde_json::Value;
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
/// The packet filter's tables: what is dropped, and what is counted.
const CUTS: &str = "cuts";
const OWN: &str = "own";

/// A private network.
pub(super) struct Ground {
    /// There is a packet filter.
    filters: bool,
}

/// What the members sent so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sent {
    /// IP packets to others.
    pub(super) packets: u64,
    /// Their bytes, IP headers included.
    pub(super) bytes: u64,
    /// Bytes to themselves.
    pub(super) own_bytes: u64,
}

impl Ground {
    /// Moves the calling thread, and all that it starts from now on, into a private network for so many members.
    pub(super) fn enter(members: usize, filters: bool) -> Result<Self, Error> {
        // Who may not make a network may do so as the master of a name space of users.
        let users = if Uid::effective().is_root() { CloneFlags::empty() } else { CloneFlags::CLONE_NEWUSER };
        unshare(CloneFlags::CLONE_NEWNET | users)
            .map_err(|e| Error::Peer { library: "network namespace", reason: format!("{e}: run this as root") })?;
        obey("ip", &["link", "set", "lo", "up"])?;
        // Each address of the subnet is this host's.
        obey("ip", &["route", "add", "local", SUBNET, "dev", "lo"])?;
        if filters {
            let pair = |member| [address(member).ip().to_string(), address(member).ip().to_string()].join(" . ");
            let pairs = (0..members).map(pair).collect::<Vec<_>>().join(", ");
            obey(
                "nft",
                &[&format!(
                    "add table inet {OWN}; \
                     add counter inet {OWN} sent; \
                     add set inet {OWN} pairs {{ type ipv4_addr . ipv4_addr ; elements = {{ {pairs} }} ; }}; \
                     add chain inet {OWN} out {{ type filter hook output priority 0 ; }}; \
                     add rule inet {OWN} out ip saddr . ip daddr @pairs counter name sent"
                )],
            )?;
        }
        Ok(Self { filters })
    }

    /// What was sent since the network is there.
    pub(super) fn sent(&self) -> Result<Sent, Error> {
        let strange = || Error::Peer { library: "network namespace", reason: "its counters make no sense".into() };
        let own = if self.filters {
            counted_in(&obey("nft", &["-j", "list", "counter", "inet", OWN, "sent"])?).ok_or_else(strange)?
        } else {
            (0, 0)
        };
        let all = sent_in(&fs::read_to_string("/proc/thread-self/net/dev")?).ok_or_else(strange)?;
        Ok(Sent { packets: all.0.saturating_sub(own.0), bytes: all.1.saturating_sub(own.1), own_bytes: own.1 })
    }

    /// Drops all packets of a member, those that it sends and those for it, but what it says to itself.
    pub(super) fn cut(&self, member: usize) -> Result<(), Error> {
        let at = address(member).ip();
        let rule = |what: &str| format!("add rule inet {CUTS} in {what}");
        // All in one command, and so at one moment.
        let commands = [
            format!("add table inet {CUTS}"),
            format!("add chain inet {CUTS} in {{ type filter hook input priority 0 ; }}"),
            rule(&format!("ip saddr {at} ip daddr {at} accept")),
            rule(&format!("ip saddr {at} drop")),
            rule(&format!("ip daddr {at} drop")),
        ];
        obey("nft", &[&commands.join("; ")]).map(drop)
    }

    /// Drops nothing any more.
    pub(super) fn heal(&self) -> Result<(), Error> {
        obey("nft", &["delete", "table", "inet", CUTS]).map(drop)
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

/// Packets and bytes in the loopback's line of the table of devices.
fn sent_in(table: &str) -> Option<(u64, u64)> {
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix("lo:"))?;
    // Eight columns of what came, then bytes and packets of what went.
    let mut went = line.split_whitespace().skip(8).map(str::parse::<u64>);
    let (bytes, packets) = (went.next()?.ok()?, went.next()?.ok()?);
    Some((packets, bytes.saturating_sub(packets * FRAME)))
}

/// Packets and bytes of the packet filter's counter.
fn counted_in(json: &str) -> Option<(u64, u64)> {
    let json: Value = serde_json::from_str(json).ok()?;
    let counter = json["nftables"].as_array()?.iter().find_map(|entry| entry.get("counter"))?;
    Some((counter["packets"].as_u64()?, counter["bytes"].as_u64()?))
}

/// What a program prints, when it does what it is told.
fn obey(program: &'static str, arguments: &[&str]) -> Result<String, Error> {
    let done = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let refused = |reason: String| Error::Peer { library: program, reason };
    let done = done.map_err(|e| refused(e.to_string()))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
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
        assert_eq!(sent_in(table), Some((2000, 200_000)));
        assert_eq!(sent_in("  eth0: 1 2 3\n"), None);
    }

    #[test]
    fn the_packet_filters_counter_is_found_among_other_things() {
        let json = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
            {"counter": {"family": "inet", "name": "sent", "table": "own", "handle": 1, "packets": 3, "bytes": 87}}]}"#;
        assert_eq!(counted_in(json), Some((3, 87)));
        assert_eq!(counted_in(r#"{"nftables": []}"#), None);
        assert_eq!(counted_in("Error: No such file or directory"), None);
    }

    #[test]
    fn this_process_has_memory_and_a_strange_one_none() {
        assert!(rss_mb(std::process::id()).is_some_and(|mb| mb > 0.5));
        assert_eq!(rss_mb(u32::MAX), None);
    }
}
