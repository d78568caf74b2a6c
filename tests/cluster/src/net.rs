//! A network of hosts for daemons: each host is a network namespace, all hang on one switch, and cables can be cut.
//!
//! The switch is a bridge in a namespace of its own, so nothing of it touches the machine's network, and networks of tests that
//! run at the same time may use the same addresses. Faults are rules of the switch (`nft`, family `bridge`): packets vanish
//! there in silence, as in a real one; a rule on the sending host would come back as an error of its `sendto`. Rules name
//! `ether type ip`: an ARP that is lost would make each one-way cut a two-way one.
//!
//! Everything is named by the process of the test and ends with the [`Network`], also when a test panics. What a test that was
//! killed left behind is removed by the next one.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// What all our namespaces begin with; the number of the test's process follows.
const PREFIX: &str = "plx";
/// The last byte of an address says which host it is.
const HOSTS_MAX: usize = 250;

/// Hosts on a switch.
#[derive(Debug)]
pub struct Network {
    name: String,
    hosts: usize,
    rules: Vec<String>,
}

impl Network {
    /// A network of `hosts` hosts. `None` where this machine has none to give, which is said on standard error: the test
    /// that wanted it passes.
    ///
    /// # Panics
    /// When it may make one and cannot.
    pub fn new(hosts: usize) -> Option<Self> {
        static SWEPT: Once = Once::new();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        assert!(hosts <= HOSTS_MAX, "hosts have one byte");
        if let Err(why) = possible() {
            eprintln!("skipped: {why}");
            return None;
        }
        SWEPT.call_once(sweep);
        let name = format!("{PREFIX}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let network = Self { name, hosts, rules: Vec::new() };
        let mut names: Vec<String> = (0..hosts).map(|n| network.namespace(n)).collect();
        names.push(network.switch());
        batch(&["ip"], &names.iter().map(|name| format!("netns add {name}\n")).collect::<String>());
        let mut wiring = "link add switch type bridge\nlink set switch up\n".to_owned();
        for n in 0..hosts {
            let host = network.namespace(n);
            wiring.push_str(&format!(
                "link add h{n} type veth peer name eth0 netns {host}\nlink set h{n} master switch up\n"
            ));
        }
        batch(&["ip", "-n", &network.switch()], &wiring);
        for n in 0..hosts {
            let addr = network.addr(n);
            let host = format!("addr add {addr}/24 dev eth0\nlink set eth0 up\nlink set lo up\n");
            batch(&["ip", "-n", &network.namespace(n)], &host);
        }
        Some(network)
    }

    /// Where a host is.
    #[must_use]
    pub fn addr(&self, host: usize) -> IpAddr {
        Ipv4Addr::new(10, 77, 0, host as u8 + 1).into()
    }

    /// What a command that shall run on a host is put behind.
    #[must_use]
    pub fn on(&self, host: usize) -> Vec<String> {
        ["ip", "netns", "exec", &self.namespace(host)].map(str::to_owned).into()
    }

    /// Nothing comes from these hosts, nor gets to them.
    pub fn blackhole(&mut self, hosts: &[usize]) {
        for host in hosts {
            self.rules.push(format!("iifname \"h{host}\" drop"));
            self.rules.push(format!("oifname \"h{host}\" drop"));
        }
        self.apply();
    }

    /// What `from` sends to `to` is lost; the other way is open.
    pub fn cut_one_way(&mut self, from: &[usize], to: &[usize]) {
        let set = |hosts: &[usize]| hosts.iter().map(|&h| self.addr(h).to_string()).collect::<Vec<_>>().join(", ");
        self.rules.push(format!("ether type ip ip saddr {{ {} }} ip daddr {{ {} }} drop", set(from), set(to)));
        self.apply();
    }

    /// Nothing passes between these and those.
    pub fn cut(&mut self, these: &[usize], those: &[usize]) {
        self.cut_one_way(these, those);
        self.cut_one_way(those, these);
    }

    /// So many of a hundred packets are lost, wherever they go.
    pub fn lose(&mut self, percent: u8) {
        self.rules.push(format!("ether type ip numgen random mod 100 < {percent} drop"));
        self.apply();
    }

    /// A host's interface is gone, and its address with it. Nothing mends that.
    pub fn unplug(&self, host: usize) {
        batch(&["ip", "-n", &self.namespace(host)], "link del eth0\n");
    }

    /// All is well again.
    pub fn heal(&mut self) {
        self.rules.clear();
        self.apply();
    }

    /// All rules are put in place at once: no packet sees half of them.
    fn apply(&self) {
        let rules = self.rules.join("\n");
        let text = format!(
            "table bridge faults\ndelete table bridge faults\ntable bridge faults {{\nchain forward {{\n\
             type filter hook forward priority 0; policy accept;\n{rules}\n}}\n}}\n"
        );
        feed(&["ip", "netns", "exec", &self.switch(), "nft", "-f", "-"], &text);
    }

    fn namespace(&self, host: usize) -> String {
        format!("{}-h{host}", self.name)
    }

    fn switch(&self) -> String {
        format!("{}-switch", self.name)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        (0..self.hosts).map(|n| self.namespace(n)).chain([self.switch()]).for_each(|name| remove(&name));
    }
}

/// Whether networks can be made here, and why not.
fn possible() -> Result<(), &'static str> {
    if !nix::unistd::geteuid().is_root() {
        return Err("only root makes networks");
    }
    for (program, why) in [("ip", "there is no `ip` (iproute2)"), ("nft", "there is no `nft` (nftables)")] {
        let found = Command::new(program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        found.map_err(|_| why)?;
    }
    // A container's root may have no right to do so.
    let name = format!("{PREFIX}{}-try", std::process::id());
    static TRIED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    let may = *TRIED.get_or_init(|| {
        let made = run(&["ip", "netns", "add", &name]).status.success();
        let filters =
            made && run(&["ip", "netns", "exec", &name, "nft", "add", "table", "bridge", "faults"]).status.success();
        remove(&name);
        filters
    });
    if may { Ok(()) } else { Err("this kernel gives no namespaces, or no bridge filters") }
}

/// Removes what tests left behind that were killed.
fn sweep() {
    let list = run(&["ip", "netns", "list"]);
    for line in String::from_utf8_lossy(&list.stdout).lines() {
        let name = line.split(' ').next().unwrap_or_default();
        let owner = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once('-'))
            .and_then(|(pid, _)| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Whoever lives there was started by that test.
            let inside = run(&["ip", "netns", "pids", name]);
            for pid in String::from_utf8_lossy(&inside.stdout).lines().filter_map(|pid| pid.trim().parse().ok()) {
                let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
            }
            remove(name);
        }
    }
}

fn remove(namespace: &str) {
    let _ = run(&["ip", "netns", "del", namespace]);
}

fn run(words: &[&str]) -> Output {
    Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output().expect("it was there before")
}

fn batch(ip: &[&str], lines: &str) {
    feed(&[ip, &["-batch", "-"]].concat(), lines);
}

fn feed(words: &[&str], text: &str) {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it was there before");
    child.stdin.take().expect("it is piped").write_all(text.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}\n{text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::{CloneFlags, setns};
    use std::net::UdpSocket;
    use std::time::Duration;

    const PORT: u16 = 9;
    const MANY: usize = 500;

    /// A socket on a host; it stays there, whoever uses it.
    fn socket(network: &Network, host: usize) -> UdpSocket {
        let (name, addr) = (network.namespace(host), network.addr(host));
        let made = std::thread::spawn(move || {
            let namespace = std::fs::File::open(Path::new("/run/netns").join(name)).unwrap();
            setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            UdpSocket::bind((addr, PORT)).unwrap()
        });
        let socket = made.join().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket
    }

    /// How many of `n` datagrams arrive.
    fn arrive(network: &Network, sockets: &[UdpSocket], (from, to): (usize, usize), n: usize) -> usize {
        let mut arrived = 0;
        for _ in 0..n / 10 {
            for _ in 0..10 {
                sockets[from].send_to(b"x", (network.addr(to), PORT)).unwrap();
            }
            sockets[to].set_nonblocking(false).unwrap();
            while arrived < n && sockets[to].recv(&mut [0; 8]).is_ok() {
                arrived += 1;
                sockets[to].set_nonblocking(true).unwrap();
            }
        }
        std::thread::sleep(Duration::from_millis(20));
        arrived + std::iter::from_fn(|| sockets[to].recv(&mut [0; 8]).ok()).count()
    }

    /// What the stories build upon: a fault does what it says, and nothing else.
    #[test]
    fn the_switch_drops_what_it_was_told_to() {
        let Some(mut network) = Network::new(3) else { return };
        let sockets: Vec<UdpSocket> = (0..3).map(|host| socket(&network, host)).collect();
        let pairs = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)];
        let open = |network: &Network| -> Vec<(usize, usize)> {
            pairs.into_iter().filter(|&pair| arrive(network, &sockets, pair, 10) > 0).collect()
        };
        assert_eq!(open(&network), pairs);
        network.cut_one_way(&[0], &[1]);
        assert_eq!(open(&network), pairs[1..]);
        network.heal();
        network.cut(&[0, 1], &[2]);
        assert_eq!(open(&network), pairs[..2]);
        network.heal();
        network.blackhole(&[1]);
        assert_eq!(open(&network), pairs[2..4]);
        network.heal();
        network.lose(40);
        let arrived = arrive(&network, &sockets, (0, 1), MANY);
        assert!((MANY / 2..MANY * 7 / 10).contains(&arrived), "{arrived} of {MANY}");
        network.heal();
        assert_eq!(arrive(&network, &sockets, (0, 1), MANY), MANY);
    }

    /// Nothing is left of a network, nor of one whose test was killed.
    #[test]
    fn nothing_is_left_behind() {
        let Some(network) = Network::new(1) else { return };
        let exists = |name: &str| Path::new("/run/netns").join(name).exists();
        let (host, switch) = (network.namespace(0), network.switch());
        assert!(exists(&host) && exists(&switch));
        drop(network);
        assert!(!exists(&host) && !exists(&switch));
        // No process has this number: it is above all that there can be.
        let orphan = format!("{PREFIX}4294967295-0-h0");
        run(&["ip", "netns", "add", &orphan]);
        assert!(exists(&orphan));
        sweep();
        assert!(!exists(&orphan));
    }
}
