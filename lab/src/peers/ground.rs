//! The ground of a cluster under measurement: a private network with nothing else on it.
//!
//! The child that measures moves into a network namespace of its own before it starts anything. Members that are processes
//! get a namespace each, like hosts around one router: a stream that a member dials then comes from its own address, and what
//! it says to itself never reaches the router. (On a switch each would keep the hardware addresses of all others, and the
//! kernel's table of those is one for all namespaces, and small.) Members of one process each have an address on the
//! loopback; they bind all of their sockets. Namespaces are named in a mount namespace of the child alone, and end with the last process in them, so
//! nothing has to be cleaned up, whatever happens.
//!
//! What is cut off is dropped on its way, at the router or *into* the receiver: a drop on the way out would come back as an
//! error of the sender, which is another fault.

use crate::error::Error;
use nix::sched::{CloneFlags, unshare};
use phalanx_netlab::{NAMES, obey};
use serde_json::Value;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// All members listen here, each at its own address.
pub(super) const PORT: u16 = 7946;
/// Members of one cluster, at most: addresses of one subnet, without the first and the last few.
pub(super) const MEMBERS_MAX: usize = 40_000;
const SUBNET: &str = "10.77.0.0/16";
/// Beyond all members.
const ROUTER: &str = "10.77.255.254";
/// Starts others so that the kernel ends them with the thread that started them, however that ends.
const LAUNCHER: [&str; 3] = ["setpriv", "--pdeathsig", "KILL"];
/// The packet filter's tables: what is dropped, and what is counted.
const CUTS: &str = "cuts";
const COUNTS: &str = "counts";

/// How members live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Homes {
    /// Each on a host of its own.
    Hosts,
    /// All in one process.
    Process,
}

/// A private network.
pub(super) struct Ground {
    homes: Homes,
    /// There is a packet filter.
    filters: bool,
}

/// What the members sent to each other so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sent {
    /// IP packets.
    pub(super) packets: u64,
    /// Their bytes, IP headers included.
    pub(super) bytes: u64,
}

impl Ground {
    /// Moves the calling thread, and all that it starts from now on, into a private network for so many members.
    pub(super) fn enter(members: usize, homes: Homes, filters: bool) -> Result<Self, Error> {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
            .map_err(|e| Error::Peer { library: "network namespace", reason: format!("{e}: run this as root") })?;
        obey("ip", &["link", "set", "lo", "up"], "")?;
        match homes {
            // Each address of the subnet is this host's.
            Homes::Process => _ = obey("ip", &["route", "add", "local", SUBNET, "dev", "lo"], "")?,
            Homes::Hosts => build_hosts(members)?,
        }
        if filters && homes == Homes::Hosts {
            let commands = [
                format!("add table inet {COUNTS}"),
                format!("add counter inet {COUNTS} sent"),
                // Before anything is dropped.
                format!("add chain inet {COUNTS} on {{ type filter hook forward priority -10 ; }}"),
                format!("add rule inet {COUNTS} on counter name sent"),
            ];
            obey("nft", &["-f", "-"], &commands.join("\n"))?;
        }
        Ok(Self { homes, filters })
    }

    /// What stands before a member's command: the kernel ends it with us, and it runs on its own host.
    pub(super) fn launcher(member: usize) -> Vec<String> {
        LAUNCHER.into_iter().map(str::to_owned).chain(phalanx_netlab::on(&name(member))).collect()
    }

    /// What was sent since the network is there; `None` when nobody can count it.
    pub(super) fn sent(&self) -> Result<Option<Sent>, Error> {
        let counted = match self.homes {
            Homes::Process => sent_in(&fs::read_to_string("/proc/thread-self/net/dev")?),
            Homes::Hosts if self.filters => {
                counted_in(&obey("nft", &["-j", "list", "counter", "inet", COUNTS, "sent"], "")?)
            }
            Homes::Hosts => return Ok(None),
        };
        let strange = || Error::Peer { library: "network namespace", reason: "its counters make no sense".into() };
        counted.map(Some).ok_or_else(strange)
    }

    /// Drops all packets of a member, those that it sends and those for it.
    pub(super) fn cut(&self, member: usize) -> Result<(), Error> {
        let at = address(member).ip();
        let hook = match self.homes {
            Homes::Hosts => "forward",
            Homes::Process => "input",
        };
        // All in one go, and so at one moment.
        let commands = [
            format!("add table inet {CUTS}"),
            format!("add chain inet {CUTS} on {{ type filter hook {hook} priority 0 ; }}"),
            format!("add rule inet {CUTS} on ip saddr {at} drop"),
            format!("add rule inet {CUTS} on ip daddr {at} drop"),
        ];
        obey("nft", &["-f", "-"], &commands.join("\n"))?;
        Ok(())
    }

    /// Drops nothing any more.
    pub(super) fn heal(&self) -> Result<(), Error> {
        obey("nft", &["delete", "table", "inet", CUTS], "")?;
        Ok(())
    }
}

/// A router, which is where we are, and a host for each member.
fn build_hosts(members: usize) -> Result<(), Error> {
    fs::create_dir_all(NAMES)?;
    obey("mount", &["--make-rprivate", "/"], "")?;
    obey("mount", &["-t", "tmpfs", "hosts", NAMES], "")?;
    fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
    let mut commands = vec![format!("addr add {ROUTER}/32 dev lo")];
    for member in 0..members {
        let (host, at) = (name(member), address(member).ip());
        commands.push(format!("netns add {host}"));
        commands.push(format!("link add {host} type veth peer name eth0 netns {host}"));
        commands.push(format!("link set {host} up"));
        commands.push(format!("route add {at}/32 dev {host}"));
    }
    obey("ip", &["-batch", "-"], &commands.join("\n"))?;
    for member in 0..members {
        let commands = [
            "link set lo up".to_owned(),
            "link set eth0 up".to_owned(),
            format!("addr add {}/32 dev eth0", address(member).ip()),
            format!("route add {ROUTER}/32 dev eth0"),
            format!("route add default via {ROUTER}"),
        ];
        obey("ip", &["-n", &name(member), "-batch", "-"], &commands.join("\n"))?;
    }
    Ok(())
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
pub(crate) fn rss_mb(process: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()? * 1024.0 / 1e6)
}

/// The loopback's line of the table of devices. It counts packets as IP sees them, without frames.
fn sent_in(table: &str) -> Option<Sent> {
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix("lo:"))?;
    // Eight columns of what came, then bytes and packets of what went.
    let mut went = line.split_whitespace().skip(8).map(str::parse::<u64>);
    let (bytes, packets) = (went.next()?.ok()?, went.next()?.ok()?);
    Some(Sent { packets, bytes })
}

/// The packet filter's counter.
fn counted_in(json: &str) -> Option<Sent> {
    let json: Value = serde_json::from_str(json).ok()?;
    let counter = json["nftables"].as_array()?.iter().find_map(|entry| entry.get("counter"))?;
    Some(Sent { packets: counter["packets"].as_u64()?, bytes: counter["bytes"].as_u64()? })
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
    fn what_was_sent_stands_in_the_loopbacks_line() {
        let table = "Inter-|   Receive\n face |bytes    packets\n\
                     \u{20}   lo:  114000     1000    0    0    0     0          0         0   228000     2000    0    0\n\
                     \u{20} eth0:  7 1 0 0 0 0 0 0 9 1 0 0\n";
        assert_eq!(sent_in(table), Some(Sent { packets: 2000, bytes: 228_000 }));
        assert_eq!(sent_in("  eth0: 1 2 3\n"), None);
    }

    #[test]
    fn the_packet_filters_counter_is_found_among_other_things() {
        let json = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
            {"counter": {"family": "inet", "name": "sent", "table": "own", "handle": 1, "packets": 3, "bytes": 87}}]}"#;
        assert_eq!(counted_in(json), Some(Sent { packets: 3, bytes: 87 }));
        assert_eq!(counted_in(r#"{"nftables": []}"#), None);
        assert_eq!(counted_in("Error: No such file or directory"), None);
    }

    #[test]
    fn this_process_has_memory_and_a_strange_one_none() {
        assert!(rss_mb(std::process::id()).is_some_and(|mb| mb > 0.5));
        assert_eq!(rss_mb(u32::MAX), None);
    }
}
