//! Named places: the segments of a network without multicast (TG-8), the entry points of other data centres (TG-9).
//!
//! | text | means |
//! |---|---|
//! | `rack1=10.0.0.[1-20]` | twenty hosts, at the usual port |
//! | `rack1=10.0.0.[1-20]:7000,login1` | and one at another one |
//! | `west=[fd00::1]:7948` | an address of IPv6 |
//!
//! A name that comes again has more hosts. Names are sorted, so that all nodes make the same of what stands in different orders.

use crate::seeds::{SeedError, addresses_at, expand};
use phalanx_protocol::member::Name;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// Hosts that all places may have together.
pub const PLACES_MAX: usize = 16 * 1024;

/// Hosts by the name of their place.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Places(BTreeMap<Name, Vec<String>>);

/// What the system knows of [`Places`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// The addresses of each place, by name.
    pub places: Vec<(Name, Vec<SocketAddr>)>,
    /// Hosts that were not found, and why.
    pub missing: Vec<(String, String)>,
}

/// Why texts name no places.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlacesError {
    /// It has no name.
    #[error("`{0}` is no NAME=HOSTS: write rack1=10.0.0.[1-20] or rack1=a,b,c")]
    Shape(String),
    /// Nobody can be called so.
    #[error("`{name}`: {why}")]
    Name {
        /// What stands there.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// Its hosts are not well formed.
    #[error("`{name}`: {why}")]
    Hosts {
        /// Of which place.
        name: Name,
        /// What is wrong.
        why: SeedError,
    },
    /// There are too many.
    #[error("more than {PLACES_MAX} hosts: split the cluster")]
    Many,
    /// A place without anybody.
    #[error(
        "`{name}`: none of its hosts can be found ({why}): give addresses, or names that the system knows when the daemon starts"
    )]
    Nobody {
        /// Which one.
        name: Name,
        /// What was said of the first host.
        why: String,
    },
    /// A host is in two places.
    #[error("{addr} is in `{one}` and in `{other}`: each node is in one")]
    Twice {
        /// Where it is.
        addr: SocketAddr,
        /// In this one.
        one: Name,
        /// And in that one.
        other: Name,
    },
    /// A host of the other family.
    #[error("`{name}`: {addr} is of another family than {ours}, where this node listens: give IPv{} addresses", if ours.is_ipv4() { 4 } else { 6 })]
    Family {
        /// In which place.
        name: Name,
        /// Where it is.
        addr: SocketAddr,
        /// Where we are.
        ours: IpAddr,
    },
    /// A port that nobody has.
    #[error("`{name}`: {addr}: give the port at which it listens")]
    Port {
        /// In which place.
        name: Name,
        /// Where it is.
        addr: SocketAddr,
    },
}

impl Places {
    /// Reads texts.
    ///
    /// # Errors
    /// When one of them names no place.
    pub fn parse<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<Self, PlacesError> {
        let (mut places, mut count) = (BTreeMap::<Name, Vec<String>>::new(), 0);
        for text in texts {
            let shape = text.split_once('=').filter(|(_, hosts)| !hosts.trim().is_empty());
            let (name, list) = shape.ok_or_else(|| PlacesError::Shape(text.to_owned()))?;
            let name = Name::new(name.trim())
                .map_err(|why| PlacesError::Name { name: name.to_owned(), why: why.to_string() })?;
            let list = list.replace(char::is_whitespace, "");
            let hosts = expand(&list).map_err(|why| PlacesError::Hosts { name: name.clone(), why })?;
            count += hosts.len();
            if count > PLACES_MAX {
                return Err(PlacesError::Many);
            }
            places.entry(name).or_default().extend(hosts);
        }
        Ok(Self(places))
    }

    /// True when there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Where all of them are, as far as one that listens at `ours` can reach them; `port` unless another is named.
    ///
    /// # Errors
    /// When nobody is found in a place, or one is found where it cannot be.
    pub fn resolve(&self, port: u16, ours: IpAddr) -> Result<Found, PlacesError> {
        let (mut found, mut homes) = (Found::default(), BTreeMap::<SocketAddr, &Name>::new());
        for (name, hosts) in &self.0 {
            let (mut here, mut first) = (BTreeSet::new(), None);
            for host in hosts {
                let all = match addresses_at(host, port) {
                    Ok(all) => all,
                    Err(why) => {
                        first.get_or_insert_with(|| format!("{host}: {why}"));
                        found.missing.push((host.clone(), why));
                        continue;
                    }
                };
                // A name may have addresses of both families.
                let Some(&addr) = all.iter().find(|a| a.is_ipv4() == ours.is_ipv4()) else {
                    return Err(PlacesError::Family { name: name.clone(), addr: all[0], ours });
                };
                if addr.port() == 0 {
                    return Err(PlacesError::Port { name: name.clone(), addr });
                }
                if let Some(other) = homes.insert(addr, name).filter(|other| *other != name) {
                    return Err(PlacesError::Twice { addr, one: other.clone(), other: name.clone() });
                }
                here.insert(addr);
            }
            if here.is_empty() {
                return Err(PlacesError::Nobody { name: name.clone(), why: first.unwrap_or_default() });
            }
            found.places.push((name.clone(), here.into_iter().collect()));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(texts: &[&str], ours: &str) -> Result<Vec<(String, Vec<String>)>, String> {
        let places = Places::parse(texts.iter().copied()).map_err(|e| e.to_string())?;
        let found = places.resolve(7946, ours.parse().unwrap()).map_err(|e| e.to_string())?;
        let text = |addrs: Vec<SocketAddr>| addrs.iter().map(ToString::to_string).collect();
        Ok(found.places.into_iter().map(|(name, addrs)| (name.as_str().to_owned(), text(addrs))).collect())
    }

    #[test]
    fn hosts_have_names_lists_and_ports() {
        let all = found(&["b=10.0.0.[1-2],10.0.0.9:7", "a= 10.0.1.1 , 10.0.1.2", "b=10.0.0.3"], "10.0.0.1").unwrap();
        let text: Vec<String> = all.iter().map(|(name, addrs)| format!("{name}: {}", addrs.join(" "))).collect();
        assert_eq!(
            text,
            ["a: 10.0.1.1:7946 10.0.1.2:7946", "b: 10.0.0.1:7946 10.0.0.2:7946 10.0.0.3:7946 10.0.0.9:7",]
        );
        let six = found(&["a=[fd00::1]:7,[fd00::2]", "b=fd00::[3-4]"], "::1").unwrap();
        assert_eq!(six[0].1, ["[fd00::1]:7", "[fd00::2]:7946"]);
        assert_eq!(six[1].1, ["[fd00::3]:7946", "[fd00::4]:7946"]);
    }

    #[test]
    fn what_makes_no_sense_is_told_with_what_to_do() {
        for (texts, said) in [
            (&["10.0.0.1"][..], "`10.0.0.1` is no NAME=HOSTS: write rack1=10.0.0.[1-20] or rack1=a,b,c"),
            (&["a="], "`a=` is no NAME=HOSTS: write rack1=10.0.0.[1-20] or rack1=a,b,c"),
            (&["a=n[3-1]"], "`a`: `n[3-1]` is no host list: write node[1-9], node[001-128,200] or a,b,c"),
            (&["a=10.0.0.1", "b=10.0.0.1"], "10.0.0.1:7946 is in `a` and in `b`: each node is in one"),
            (
                &["a=::1"],
                "`a`: [::1]:7946 is of another family than 10.0.0.1, where this node listens: give IPv4 addresses",
            ),
            (&["a=10.0.0.1:0"], "`a`: 10.0.0.1:0: give the port at which it listens"),
        ] {
            assert_eq!(found(texts, "10.0.0.1").unwrap_err(), said);
        }
        assert!(found(&["=10.0.0.1"], "10.0.0.1").unwrap_err().starts_with("``: "));
        let nobody = found(&["a=nobody.invalid"], "10.0.0.1").unwrap_err();
        assert!(nobody.starts_with("`a`: none of its hosts can be found (nobody.invalid: "), "{nobody}");
        let many: Vec<String> = (0..5).map(|n| format!("a=10.{n}.[0-15].[1-255]")).collect();
        assert!(many.iter().all(|text| Places::parse([text.as_str()]).is_err()), "one group of numbers in a word");
        let many: Vec<String> = (0..5).map(|n| format!("a=h{n}x[1-4000]")).collect();
        assert_eq!(Places::parse(many.iter().map(String::as_str)), Err(PlacesError::Many));
    }

    #[test]
    fn hosts_that_cannot_be_found_are_left_out_while_others_are() {
        let places = Places::parse(["a=nobody.invalid,10.0.0.1"]).unwrap();
        let found = places.resolve(7, "10.0.0.1".parse().unwrap()).unwrap();
        assert_eq!(found.places[0].1, ["10.0.0.1:7".parse().unwrap()]);
        assert_eq!(found.missing[0].0, "nobody.invalid");
    }
}
