//! Seeds: the places where other members may be, as people write them.
//!
//! | text | means |
//! |---|---|
//! | `host`, `host:7946`, `10.0.0.1`, `[fd00::1]:7946` | this host; all its addresses |
//! | `hosts:node[001-128],login1` | each of these hosts |
//! | `srv:_phalanx._udp.example.org` | the hosts and ports of this SRV record |
//! | `file:/etc/phalanx/seeds` | each line of this file; `#` begins a remark |
//!
//! Names are looked up again and again ([`Seeds::resolve`]): a seed that cannot be found today may be there tomorrow.

mod srv;

use std::collections::BTreeSet;
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

/// The port unless another is named.
pub const PORT: u16 = 7946;
/// Hosts that one text may name.
const HOSTS_MAX: usize = 4096;

/// Where other members may be.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seeds(Vec<Seed>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Seed {
    Host(String),
    File(PathBuf),
    Srv(String),
}

/// Why a text names no place.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SeedError {
    /// Nothing is there.
    #[error("an empty seed: give HOST, HOST:PORT, hosts:LIST, srv:NAME or file:PATH")]
    Empty,
    /// A list of hosts is not well formed.
    #[error("`{0}` is no host list: write node[1-9], node[001-128,200] or a,b,c")]
    List(String),
    /// It names too many.
    #[error("`{0}` names more than {HOSTS_MAX} hosts: a few seeds are enough")]
    Many(String),
}

impl Seeds {
    /// Reads texts.
    ///
    /// # Errors
    /// When one of them names no place.
    pub fn parse<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<Self, SeedError> {
        let mut seeds = Vec::new();
        for text in texts {
            match text.split_once(':') {
                _ if text.trim().is_empty() => return Err(SeedError::Empty),
                Some(("hosts", list)) => seeds.extend(expand(list)?.into_iter().map(Seed::Host)),
                Some(("file", path)) => seeds.push(Seed::File(path.into())),
                Some(("srv", name)) => seeds.push(Seed::Srv(name.trim().to_owned())),
                _ => seeds.push(Seed::Host(text.trim().to_owned())),
            }
        }
        Ok(Self(seeds))
    }

    /// All addresses that can be found now, and what was looked for in vain, with the reason.
    #[must_use]
    pub fn resolve(&self) -> (Vec<SocketAddr>, Vec<(String, String)>) {
        let (mut found, mut failed) = (BTreeSet::new(), Vec::new());
        let mut look_up = |host: &str| match addresses(host) {
            Ok(addrs) => found.extend(addrs),
            Err(why) => failed.push((host.to_owned(), why)),
        };
        let mut unread = Vec::new();
        for seed in &self.0 {
            match seed {
                Seed::Host(host) => look_up(host),
                Seed::Srv(name) => match srv::look_up(name) {
                    Ok(hosts) => hosts.iter().for_each(|host| look_up(host)),
                    Err(why) => unread.push((format!("srv:{name}"), why)),
                },
                Seed::File(path) => match std::fs::read_to_string(path) {
                    Ok(text) => {
                        let lines = text.lines().map(|l| l.split('#').next().unwrap_or("").trim());
                        lines.filter(|l| !l.is_empty()).for_each(&mut look_up);
                    }
                    Err(e) => unread.push((path.display().to_string(), e.to_string())),
                },
            }
        }
        failed.extend(unread);
        (found.into_iter().collect(), failed)
    }

    /// True when there is nowhere to look.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The addresses of HOST or HOST:PORT; at least one.
///
/// # Errors
/// What the resolver said.
pub fn addresses(text: &str) -> Result<Vec<SocketAddr>, String> {
    addresses_at(text, PORT)
}

/// As [`addresses`], with a port unless another is named.
///
/// # Errors
/// What the resolver said.
pub fn addresses_at(text: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let has_port = bare.len() == text.len()
        && text
            .rsplit_once(':')
            .is_some_and(|(host, port)| port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']')));
    let found = if has_port { text.to_socket_addrs() } else { (bare, port).to_socket_addrs() };
    let found: Vec<SocketAddr> = found.map_err(|e| e.to_string())?.collect();
    if found.is_empty() { Err("it has no address".to_owned()) } else { Ok(found) }
}

/// The hosts of a list such as `node[001-128],login1`.
///
/// # Errors
/// When it is none, or names too many.
pub fn expand(list: &str) -> Result<Vec<String>, SeedError> {
    let wrong = || SeedError::List(list.to_owned());
    let (mut hosts, mut rest) = (Vec::new(), list);
    while !rest.is_empty() {
        let end = match (rest.find(','), rest.find('[')) {
            (comma, Some(open)) if comma.is_none_or(|c| open < c) => {
                let close = open + rest[open..].find(']').ok_or_else(wrong)?;
                close + rest[close..].find(',').unwrap_or(rest.len() - close)
            }
            (comma, _) => comma.unwrap_or(rest.len()),
        };
        expand_one(&rest[..end], &mut hosts).ok_or_else(wrong)?;
        if hosts.len() > HOSTS_MAX {
            return Err(SeedError::Many(list.to_owned()));
        }
        rest = match rest.get(end + 1..) {
            Some("") => return Err(wrong()),
            Some(more) => more,
            None => "",
        };
    }
    if hosts.is_empty() { Err(wrong()) } else { Ok(hosts) }
}

fn expand_one(text: &str, hosts: &mut Vec<String>) -> Option<()> {
    // These brackets are none of a list's.
    if text.strip_prefix('[').and_then(|t| t.split_once(']')).is_some_and(|t| t.0.parse::<Ipv6Addr>().is_ok()) {
        hosts.push(text.to_owned());
        return Some(());
    }
    let Some((before, group)) = text.split_once('[') else {
        hosts.push(text.to_owned());
        return (!text.is_empty() && !text.contains(']')).then_some(());
    };
    let (ranges, after) = group.split_once(']')?;
    if after.contains(['[', ']']) {
        return None;
    }
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // Leading zeros say how wide the numbers are.
        let width = if first.starts_with('0') { first.len() } else { 1 };
        if from > to || to - from > HOSTS_MAX {
            return None;
        }
        hosts.extend((from..=to).map(|n| format!("{before}{n:0width$}{after}")));
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(list: &str) -> Vec<String> {
        expand(list).unwrap()
    }

    #[test]
    fn host_lists_are_expanded_in_order() {
        assert_eq!(hosts("node[001-003]"), ["node001", "node002", "node003"]);
        assert_eq!(hosts("n[9-11,20]:7000,login"), ["n9:7000", "n10:7000", "n11:7000", "n20:7000", "login"]);
        assert_eq!(hosts("a,b,c"), ["a", "b", "c"]);
        assert_eq!(hosts("[fd00::1]:7,[fd00::2]"), ["[fd00::1]:7", "[fd00::2]"]);
        assert_eq!(hosts("r[1-2].example.org"), ["r1.example.org", "r2.example.org"]);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for list in ["", "a,", ",a", "n[1-", "n[]", "n[3-1]", "n[a-b]", "n[1-2][3-4]", "n1]", "n[1-99999]"] {
            assert!(expand(list).is_err(), "{list}");
        }
        let many = (0..3).map(|n| format!("x{n}[1-4000]")).collect::<Vec<_>>().join(",");
        assert!(matches!(expand(&many), Err(SeedError::Many(_))));
    }

    #[test]
    fn ports_are_understood_in_all_ways_of_writing() {
        let one = |text: &str| addresses(text).unwrap()[0].to_string();
        assert_eq!(one("127.0.0.1"), "127.0.0.1:7946");
        assert_eq!(one("127.0.0.1:9"), "127.0.0.1:9");
        assert_eq!(one("::1"), "[::1]:7946");
        assert_eq!(one("[::1]"), "[::1]:7946");
        assert_eq!(one("[::1]:9"), "[::1]:9");
        assert!(addresses("no.such.host.invalid").is_err());
    }

    #[test]
    fn what_cannot_be_found_is_told_and_the_rest_is_taken() {
        let path = std::env::temp_dir().join(format!("phalanx-seeds-{}", std::process::id()));
        std::fs::write(&path, "# our seeds\n127.0.0.1:5 # the first\n\n127.0.0.1:5\n").unwrap();
        let file = format!("file:{}", path.display());
        let seeds = Seeds::parse([file.as_str(), "127.0.0.1:6", "file:/no/such/file", "nobody.invalid"]).unwrap();
        let (found, failed) = seeds.resolve();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), ["127.0.0.1:5", "127.0.0.1:6"]);
        assert_eq!(failed.iter().map(|f| f.0.as_str()).collect::<Vec<_>>(), ["nobody.invalid", "/no/such/file"]);
        assert_eq!(Seeds::parse([" "]), Err(SeedError::Empty));
    }
}
