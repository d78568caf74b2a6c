//! A network that is there: namespaces and cables, built by a plan, changed while it runs, removed in the end.
//!
//! All is named by our process and ends with the [`Network`], also when a test panics; the next process sweeps up after one that was
//! killed. Everything has addresses of both families, and all networks that routers join reach each other.

use crate::fault::Fault;
use crate::plan::Plan;
use crate::plumbing::{Error, PREFIX, batch, directory, has_ipv6, inside, obey, on, possible, remove, set, sweep};
use crate::router::{Daemon, routes_ipv6};
use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// What namespaces of hosts have. Who has just got an address uses it: nobody else has it, and asking would take a second.
const HOST_SETTINGS: [(&str, &str); 2] = [("ipv4/conf/all/rp_filter", "0"), ("ipv4/conf/default/rp_filter", "0")];
const ROUTER_SETTINGS: [(&str, &str); 1] = [("ipv4/ip_forward", "1")];
const HOST_SETTINGS_V6: [(&str, &str); 2] = [("ipv6/conf/all/accept_dad", "0"), ("ipv6/conf/default/accept_dad", "0")];
const ROUTER_SETTINGS_V6: [(&str, &str); 1] = [("ipv6/conf/all/forwarding", "1")];

/// Hosts on switches, and routers between them. Hosts, networks (each has a switch) and routers are numbered as in the plan.
#[derive(Debug)]
pub struct Network {
    name: String,
    pub(crate) plan: Plan,
    /// In which network each host is.
    pub(crate) homes: Vec<usize>,
    unplugged: BTreeSet<usize>,
    /// Networks whose switch is dead.
    dead: BTreeSet<usize>,
    pub(crate) faults: Vec<Fault>,
    daemons: Vec<Daemon>,
    /// Where the routers keep their files.
    dir: PathBuf,
}

/// Building.
impl Network {
    /// One network of `hosts` hosts. `None` where this machine has none to give, which is said on standard error: the test
    /// that wanted it passes.
    ///
    /// # Panics
    /// When it may make one and cannot.
    pub fn new(hosts: usize) -> Option<Self> {
        Self::of(&Plan::lan(hosts))
    }

    /// As [`Network::new`], by a plan.
    ///
    /// # Panics
    /// When it may make one and cannot.
    pub fn of(plan: &Plan) -> Option<Self> {
        match Self::build(plan) {
            Ok(network) => Some(network),
            Err(Error::Unavailable(why)) => {
                eprintln!("skipped: {why}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// A network by a plan.
    ///
    /// # Errors
    /// Why there is none; nothing is left of it.
    pub fn build(plan: &Plan) -> Result<Self, Error> {
        static SWEPT: Once = Once::new();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        possible(!plan.routers().is_empty())?;
        SWEPT.call_once(sweep);
        let name = format!("{PREFIX}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mut network = Self {
            dir: directory(&name),
            name,
            plan: plan.clone(),
            homes: plan.homes(),
            unplugged: BTreeSet::new(),
            dead: BTreeSet::new(),
            faults: Vec::new(),
            daemons: Vec::new(),
        };
        let lines: String = network.namespaces().iter().map(|name| format!("netns add {name}\n")).collect();
        obey("ip", &["-batch", "-"], &lines)?;
        (0..plan.networks()).try_for_each(|switch| network.build_switch(switch))?;
        (0..plan.hosts()).try_for_each(|host| network.build_host(host))?;
        (0..plan.routers().len()).try_for_each(|router| network.build_router(router))?;
        network.route()?;
        Ok(network)
    }

    fn build_switch(&self, switch: usize) -> Result<(), Error> {
        // Snooping is for switches with a querier: this one floods.
        batch(&self.switch(switch), "link add switch type bridge mcast_snooping 0\nlink set switch up\n")
    }

    fn build_host(&self, host: usize) -> Result<(), Error> {
        let (name, home) = (self.namespace(host), self.homes[host]);
        configure(&name, false)?;
        let cable =
            format!("link add h{host} type veth peer name eth0 netns {name}\nlink set h{host} master switch up\n");
        batch(&self.switch(home), &cable)?;
        batch(&name, &format!("link set lo up\nlink set eth0 up\n{}", self.settle(host)))
    }

    fn build_router(&mut self, router: usize) -> Result<(), Error> {
        let (name, ports) = (self.router(router), self.plan.routers()[router].clone());
        configure(&name, true)?;
        let (mut lines, mut interfaces) = ("link set lo up\n".to_owned(), Vec::new());
        for port in ports {
            let state = if self.dead.contains(&port) { "down" } else { "up" };
            let cable = format!(
                "link add r{router} type veth peer name n{port} netns {name}\nlink set r{router} master switch {state}\n"
            );
            batch(&self.switch(port), &cable)?;
            lines.push_str(&format!(
                "link set n{port} up\naddr add {}/24 dev n{port}\n",
                v4(port, router_number(router))
            ));
            if has_ipv6() {
                lines.push_str(&format!("addr add {}/64 dev n{port} nodad\n", v6(port, router_number(router))));
            }
            interfaces.push(format!("n{port}"));
        }
        batch(&name, &lines)?;
        fs::create_dir_all(&self.dir).map_err(|e| Error::Refused { program: "mkdir", reason: e.to_string() })?;
        self.daemons.push(Daemon::start(&name, &interfaces, &self.dir, &format!("r{router}"))?);
        Ok(())
    }

    /// Shows all hosts and routers the way to all networks.
    fn route(&self) -> Result<(), Error> {
        if self.plan.routers().is_empty() {
            return Ok(());
        }
        for host in (0..self.homes.len()).filter(|host| !self.unplugged.contains(host)) {
            batch(&self.namespace(host), &self.ways(host))?;
        }
        for router in 0..self.plan.routers().len() {
            let ports = &self.plan.routers()[router];
            let beyond = (0..self.plan.networks()).filter(|to| !ports.contains(to));
            let lines = beyond.filter_map(|to| self.way(self.plan.port_towards(router, to)?, to));
            batch(&self.router(router), &lines.collect::<String>())?;
        }
        Ok(())
    }

    /// The commands that give a host its addresses.
    fn settle(&self, host: usize) -> String {
        let six = has_ipv6().then(|| format!("addr add {}/64 dev eth0 nodad\n", self.addr_v6(host)));
        // Who does not say by which interface it multicasts has but one.
        format!("addr add {}/24 dev eth0\nroute add 224.0.0.0/4 dev eth0\n{}", self.addr(host), six.unwrap_or_default())
    }

    /// The commands that show a host the way to all networks.
    fn ways(&self, host: usize) -> String {
        (0..self.plan.networks()).filter_map(|to| self.way(self.homes[host], to)).collect()
    }

    /// The commands that show somebody in network `from` the way to `to`.
    fn way(&self, from: usize, to: usize) -> Option<String> {
        let gateway = self.plan.gateway(from, to)?;
        let six = self.way_v6("replace", from, to).unwrap_or_default();
        Some(format!("route replace {}/24 via {}\n{six}", v4(to, 0), v4(from, router_number(gateway))))
    }

    fn way_v6(&self, verb: &str, from: usize, to: usize) -> Option<String> {
        let gateway = self.plan.gateway(from, to).filter(|_| has_ipv6())?;
        Some(format!("route {verb} {}/64 via {}\n", v6(to, 0), v6(from, router_number(gateway))))
    }
}

/// What is where.
impl Network {
    /// Where a host is.
    #[must_use]
    pub fn addr(&self, host: usize) -> IpAddr {
        v4(self.homes[host], host + 1).into()
    }

    /// Where a host is in IPv6, if this machine has that.
    #[must_use]
    pub fn addr_v6(&self, host: usize) -> IpAddr {
        v6(self.homes[host], host + 1).into()
    }

    /// The hosts of a network.
    #[must_use]
    pub fn hosts_of(&self, network: usize) -> Vec<usize> {
        (0..self.homes.len()).filter(|&host| self.homes[host] == network).collect()
    }

    /// Whether routers take multicast of IPv6 across here: not each kernel can.
    #[must_use]
    pub fn routes_ipv6() -> bool {
        routes_ipv6()
    }

    /// What a command that shall run on a host is put behind.
    #[must_use]
    pub fn on(&self, host: usize) -> Vec<String> {
        on(&self.namespace(host))
    }

    /// Does something on a host. Sockets that are opened there stay there, whoever uses them.
    ///
    /// # Panics
    /// When `what` does.
    pub fn inside<T: Send>(&self, host: usize, what: impl FnOnce() -> T + Send) -> T {
        inside(&self.namespace(host), what)
    }

    /// All that there is of it: hosts, switches and routers.
    #[must_use]
    pub fn namespaces(&self) -> Vec<String> {
        let hosts = (0..self.homes.len()).map(|host| self.namespace(host));
        let switches = (0..self.plan.networks()).map(|switch| self.switch(switch));
        hosts.chain(switches).chain((0..self.plan.routers().len()).map(|router| self.router(router))).collect()
    }

    fn namespace(&self, host: usize) -> String {
        format!("{}-h{host}", self.name)
    }

    pub(crate) fn switch(&self, network: usize) -> String {
        format!("{}-s{network}", self.name)
    }

    fn router(&self, router: usize) -> String {
        format!("{}-r{router}", self.name)
    }
}

/// Changes. Each panics when the system would not have it.
impl Network {
    /// A network's switch dies, or is back: no cable has anybody at its other end.
    pub fn set_switch(&mut self, network: usize, alive: bool) {
        if alive {
            self.dead.remove(&network)
        } else {
            self.dead.insert(network)
        };
        let hosts = self.hosts_of(network).into_iter().filter(|host| !self.unplugged.contains(host));
        let routers = (0..self.plan.routers().len()).filter(|&router| self.plan.routers()[router].contains(&network));
        let ports = hosts.map(|host| format!("h{host}")).chain(routers.map(|router| format!("r{router}")));
        let state = if alive { "up" } else { "down" };
        let lines: String = ports.map(|port| format!("link set {port} {state}\n")).collect();
        done(batch(&self.switch(network), &lines));
    }

    /// A host is plugged in elsewhere, and has an address there. What runs on it goes on.
    pub fn move_host(&mut self, host: usize, to: usize) {
        let (from, name) = (self.homes[host], self.namespace(host));
        let lines = format!("link set h{host} netns {}\n", self.switch(to));
        done(batch(&self.switch(from), &lines));
        let state = if self.dead.contains(&to) { "down" } else { "up" };
        done(batch(&self.switch(to), &format!("link set h{host} master switch {state}\n")));
        // With its last address go all its routes, in IPv4. In IPv6 that to its new network would stay.
        let stale = self.way_v6("del", from, to).unwrap_or_default();
        self.homes[host] = to;
        let settle = format!("addr flush dev eth0 scope global\n{stale}{}{}", self.settle(host), self.ways(host));
        done(batch(&name, &settle));
        self.apply();
    }

    /// One more router joins networks. Gives its number.
    ///
    /// # Errors
    /// Why this machine has no routers; nothing has changed.
    pub fn add_router(&mut self, networks: &[usize]) -> Result<usize, Error> {
        possible(true)?;
        let router = self.plan.add_router(networks);
        done(obey("ip", &["netns", "add", &self.router(router)], "").map(drop));
        done(self.build_router(router));
        done(self.route());
        Ok(router)
    }

    /// A host's interface is gone, and its address with it. Nothing mends that.
    pub fn unplug(&mut self, host: usize) {
        self.unplugged.insert(host);
        done(batch(&self.namespace(host), "link del eth0\n"));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.daemons.clear();
        remove(&self.namespaces());
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn done(outcome: Result<(), Error>) {
    outcome.unwrap_or_else(|e| panic!("{e}"));
}

fn configure(namespace: &str, router: bool) -> Result<(), Error> {
    let mut settings = HOST_SETTINGS.to_vec();
    settings.extend(ROUTER_SETTINGS.into_iter().filter(|_| router));
    if has_ipv6() {
        settings.extend(HOST_SETTINGS_V6);
        settings.extend(ROUTER_SETTINGS_V6.into_iter().filter(|_| router));
    }
    set(namespace, &settings)
}

/// The last part of a router's addresses: hosts count up, routers down.
fn router_number(router: usize) -> usize {
    254 - router
}

fn v4(network: usize, number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, network as u8, number as u8)
}

fn v6(network: usize, number: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, 0x77, 0x77, network as u16, 0, 0, 0, number as u16)
}
