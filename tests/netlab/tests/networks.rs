//! What the stories build upon: networks are what they were planned to be, multicast gets as far as its TTL says, a fault does what
//! it says and nothing else, and nothing is left behind. Plain sockets. Needs root, `ip`, `nft` and `smcrouted`.

use phalanx_netlab::{Network, Plan, sweep};
use socket2::SockRef;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PORT: u16 = 7947;
const PATIENCE: Duration = Duration::from_secs(20);
/// Reaches everybody.
const FAR: u32 = 30;
/// Between two calls of one that waits to be heard by all.
const AGAIN: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(1);
const MANY: usize = 500;

/// Which family the hosts speak.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Four,
    Six,
}

/// A socket on each host, and who has heard what.
struct Ears {
    network: Network,
    family: Family,
    sockets: Vec<UdpSocket>,
    /// The number of something, and a host that heard it.
    heard: Arc<Mutex<BTreeSet<(u32, usize)>>>,
    numbers: AtomicU32,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Ears {
    fn new(network: Network, hosts: usize, family: Family) -> Self {
        let (heard, over) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let mut ears =
            Self { network, family, sockets: vec![], heard, numbers: AtomicU32::new(1), over, threads: vec![] };
        for host in 0..hosts {
            // One at an address: what it sends comes from there. It hears what is sent to that address alone.
            ears.sockets.push(ears.network.inside(host, || UdpSocket::bind((ears.addr(host), 0)).unwrap()));
            // The other at none, for a group's datagrams do not go to an address.
            let any: IpAddr =
                if family == Family::Four { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let group = ears.network.inside(host, || {
                let socket = UdpSocket::bind((any, PORT)).unwrap();
                match family {
                    Family::Four => socket.join_multicast_v4(&group_v4(), &Ipv4Addr::UNSPECIFIED).unwrap(),
                    Family::Six => [2, 5].iter().for_each(|&s| socket.join_multicast_v6(&group_v6(s), 0).unwrap()),
                }
                socket
            });
            ears.listen(host, group);
        }
        ears
    }

    fn addr(&self, host: usize) -> IpAddr {
        match self.family {
            Family::Four => self.network.addr(host),
            Family::Six => self.network.addr_v6(host),
        }
    }

    fn listen(&mut self, host: usize, socket: UdpSocket) {
        let (heard, over) = (Arc::clone(&self.heard), Arc::clone(&self.over));
        socket.set_read_timeout(Some(AGAIN)).unwrap();
        self.threads.push(std::thread::spawn(move || {
            let mut bytes = [0; 4];
            while !over.load(Ordering::Relaxed) {
                match socket.recv(&mut bytes) {
                    Ok(4) => _ = heard.lock().unwrap().insert((u32::from_be_bytes(bytes), host)),
                    Ok(other) => panic!("{other} bytes"),
                    Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                    // Of a host whose cable is out.
                    Err(_) => std::thread::sleep(LOOK),
                }
            }
        }));
    }

    /// The host multicasts something new. Gives its number.
    fn call(&self, host: usize, ttl: u32) -> u32 {
        let to: SocketAddr = match self.family {
            Family::Four => (group_v4(), PORT).into(),
            // As the platform does it: a TTL of 1 is the scope of the link.
            Family::Six => (group_v6(if ttl == 1 { 2 } else { 5 }), PORT).into(),
        };
        let socket = SockRef::from(&self.sockets[host]);
        match self.family {
            Family::Four => socket.set_multicast_ttl_v4(ttl).unwrap(),
            Family::Six => socket.set_multicast_hops_v6(ttl).unwrap(),
        }
        self.send(host, to)
    }

    /// The host says something new to one other. Gives its number.
    fn tell(&self, host: usize, to: usize) -> u32 {
        self.send(host, (self.addr(to), PORT).into())
    }

    fn send(&self, host: usize, to: SocketAddr) -> u32 {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        // A host without a cable may be told that it has none.
        let _ = self.sockets[host].send_to(&number.to_be_bytes(), to);
        number
    }

    fn who_heard(&self, number: u32) -> BTreeSet<usize> {
        self.heard.lock().unwrap().range((number, 0)..=(number, usize::MAX)).map(|heard| heard.1).collect()
    }

    /// The host says many things to one other, which reads them as they come. Gives their numbers.
    fn tell_many(&self, host: usize, to: usize) -> Vec<u32> {
        let mut numbers = Vec::new();
        while numbers.len() < MANY {
            numbers.extend((0..10).map(|_| self.tell(host, to)));
            // The kernel keeps but so many for who does not read: go on when something was heard that was said later.
            let (began, mut later) = (Instant::now(), Vec::new());
            while !later.iter().any(|&number| !self.who_heard(number).is_empty()) {
                assert!(began.elapsed() < PATIENCE, "{to} does not hear {host}");
                later.push(self.tell(host, to));
                std::thread::sleep(LOOK);
            }
        }
        numbers
    }

    /// How many of these somebody has heard.
    fn arrived(&self, numbers: &[u32]) -> usize {
        numbers.iter().filter(|&&number| !self.who_heard(number).is_empty()).count()
    }

    /// Waits until something holds.
    fn wait(&self, what: &str, holds: impl Fn() -> bool) {
        let began = Instant::now();
        while !holds() {
            assert!(began.elapsed() < PATIENCE, "not so within {PATIENCE:?}: {what}");
            std::thread::sleep(LOOK);
        }
    }

    fn wait_for(&self, number: u32, hosts: &[usize]) {
        self.wait(&format!("{hosts:?} hear {number}"), || hosts.iter().all(|h| self.who_heard(number).contains(h)));
    }

    /// The host calls until all of these hear it. What it had sent to them before has come by then, or never will.
    fn flush(&self, host: usize, to: &[usize]) {
        let (began, mut called) = (Instant::now(), Vec::new());
        while !called.iter().any(|&number| to.iter().all(|h| self.who_heard(number).contains(h))) {
            assert!(began.elapsed() < PATIENCE, "{to:?} do not hear {host}");
            called.push(self.call(host, FAR));
            let until = Instant::now() + AGAIN;
            while Instant::now() < until && !to.iter().all(|h| self.who_heard(called[called.len() - 1]).contains(h)) {
                std::thread::sleep(LOOK);
            }
        }
    }

    /// A multicast is heard by these and by nobody else.
    fn assert_heard(&self, host: usize, ttl: u32, by: &[usize]) {
        let all: Vec<usize> = (0..self.sockets.len()).collect();
        self.flush(host, &all);
        let number = self.call(host, ttl);
        self.wait_for(number, by);
        self.flush(host, &all);
        assert_eq!(self.who_heard(number), by.iter().copied().collect(), "{host} with a TTL of {ttl}");
    }

    /// What is sent now is heard by these alone; `heal` makes it possible to find out.
    fn assert_heard_until(&mut self, host: usize, by: &[usize], heal: impl FnOnce(&mut Self)) {
        let number = self.call(host, FAR);
        self.wait_for(number, by);
        heal(self);
        self.flush(host, &(0..self.sockets.len()).collect::<Vec<_>>());
        assert_eq!(self.who_heard(number), by.iter().copied().collect(), "{host}");
    }

    /// Everybody reaches everybody.
    fn assert_connected(&self) {
        let hosts = self.sockets.len();
        for (from, to) in (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to))) {
            let number = self.tell(from, to);
            self.wait_for(number, &[to]);
        }
    }
}

impl Drop for Ears {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}

fn group_v4() -> Ipv4Addr {
    Ipv4Addr::new(239, 77, 1, 2)
}

fn group_v6(scope: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xff00 | scope, 0, 0, 0, 0, 0, 0x4d, 0x0102)
}

fn ears(plan: &Plan) -> Option<Ears> {
    Some(Ears::new(Network::of(plan)?, plan.hosts(), Family::Four))
}

fn ears_v6(plan: &Plan) -> Option<Ears> {
    if !Network::routes_ipv6() {
        eprintln!("skipped: this kernel routes no multicast of IPv6");
        return None;
    }
    Some(Ears::new(Network::of(plan)?, plan.hosts(), Family::Six))
}

/// 003 §3: with a TTL of 1 a multicast stays, with 2 it crosses one router, with 3 two.
fn a_ttl_says_how_far(ears: &Ears) {
    ears.assert_connected();
    ears.assert_heard(0, 1, &[0, 1]);
    ears.assert_heard(0, 2, &[0, 1, 2, 3]);
    ears.assert_heard(0, 3, &[0, 1, 2, 3, 4, 5]);
    ears.assert_heard(3, 1, &[2, 3]);
    ears.assert_heard(3, 2, &[0, 1, 2, 3, 4, 5]);
    ears.assert_heard(5, 2, &[2, 3, 4, 5]);
}

#[test]
fn multicast_gets_as_far_as_its_ttl() {
    let Some(ears) = ears(&Plan::row(3, 2)) else { return };
    a_ttl_says_how_far(&ears);
}

#[test]
fn multicast_gets_as_far_as_its_hop_limit_in_ipv6() {
    let Some(ears) = ears_v6(&Plan::row(3, 2)) else { return };
    a_ttl_says_how_far(&ears);
}

/// 003 Fig. 5: with a TTL of 3, A and C hear B and not each other.
#[test]
fn reachability_is_not_transitive_in_figure_5() {
    let Some(ears) = ears(&Plan::figure_5(1)) else { return };
    let (a, b, c) = (0, 1, 2);
    ears.assert_connected();
    [a, b, c].iter().for_each(|&host| ears.assert_heard(host, 2, &[host]));
    ears.assert_heard(a, 3, &[a, b]);
    ears.assert_heard(b, 3, &[a, b, c]);
    ears.assert_heard(c, 3, &[b, c]);
    ears.assert_heard(a, 5, &[a, b, c]);
}

/// 003 §5.2: networks around one router. The whole of it: five of twenty.
#[test]
fn five_networks_of_twenty_around_one_router() {
    let Some(ears) = ears(&Plan::star(5, 20)) else { return };
    ears.assert_heard(25, 1, &(20..40).collect::<Vec<_>>());
    ears.assert_heard(99, 2, &(0..100).collect::<Vec<_>>());
}

/// The nodes behind a dead switch hear nobody, not even each other; when it is back all is as before.
#[test]
fn a_switch_dies_and_is_back() {
    let Some(mut ears) = ears(&Plan::row(3, 2)) else { return };
    ears.flush(0, &[0, 1, 2, 3, 4, 5]);
    ears.network.set_switch(2, false);
    ears.assert_heard_until(0, &[0, 1, 2, 3], |ears| ears.network.set_switch(2, true));
    ears.network.set_switch(2, false);
    // Each hears itself: that needs no cable.
    ears.assert_heard_until(4, &[4], |ears| ears.network.set_switch(2, true));
    a_ttl_says_how_far(&ears);
    // Nothing gets through the middle.
    ears.network.set_switch(1, false);
    ears.assert_heard_until(0, &[0, 1], |ears| ears.network.set_switch(1, true));
    a_ttl_says_how_far(&ears);
}

/// Who is moved is heard where it is now; the socket that it had for the group still listens.
fn a_host_is_moved(mut ears: Ears) {
    ears.flush(0, &[0, 1, 2, 3]);
    ears.network.move_host(1, 1);
    assert_eq!((ears.network.hosts_of(0), ears.network.hosts_of(1)), (vec![0], vec![1, 2, 3]));
    // What it sends comes from its new address, if it asks for that.
    ears.sockets[1] = ears.network.inside(1, || UdpSocket::bind((ears.addr(1), 0)).unwrap());
    ears.assert_connected();
    ears.assert_heard(1, 1, &[1, 2, 3]);
    ears.assert_heard(0, 1, &[0]);
    ears.assert_heard(2, 1, &[1, 2, 3]);
    // And back, with a fault that follows it.
    ears.network.cut_one_way(&[1], &[0]);
    ears.network.move_host(1, 0);
    ears.sockets[1] = ears.network.inside(1, || UdpSocket::bind((ears.addr(1), 0)).unwrap());
    ears.flush(0, &[0, 1, 2, 3]);
    ears.assert_heard_until(1, &[1, 2, 3], |ears| ears.network.heal());
    ears.assert_heard(1, 1, &[0, 1]);
    ears.assert_connected();
}

#[test]
fn a_host_is_moved_to_another_network() {
    let Some(ears) = ears(&Plan::row(2, 2)) else { return };
    a_host_is_moved(ears);
}

#[test]
fn a_host_is_moved_to_another_network_in_ipv6() {
    let Some(ears) = ears_v6(&Plan::row(2, 2)) else { return };
    a_host_is_moved(ears);
}

/// Networks that were apart are joined.
#[test]
fn a_router_is_added_later() {
    // Where there are no routers, that is said.
    let (Some(_), Some(mut ears)) = (Network::of(&Plan::row(2, 0)), ears(&Plan::apart(3, 1))) else { return };
    ears.assert_heard_until(0, &[0], |ears| {
        ears.network.add_router(&[0, 1]).unwrap();
        ears.network.add_router(&[1, 2]).unwrap();
    });
    ears.assert_connected();
    ears.assert_heard(0, 2, &[0, 1]);
    ears.assert_heard(1, 2, &[0, 1, 2]);
}

/// What is cut in one direction is open in the other, for datagrams and multicasts, within a network and across routers.
fn a_cut_is_one_way(mut ears: Ears) {
    let all = [0, 1, 2, 3];
    ears.assert_connected();
    ears.flush(0, &all);
    ears.network.cut_one_way(&[0], &[1, 2]);
    let told = [1, 2].map(|to| ears.tell(0, to));
    ears.assert_heard_until(0, &[0, 3], |ears| {
        [(0, 3), (1, 0), (2, 0), (3, 0), (1, 2), (2, 1)].iter().for_each(|&(from, to)| {
            ears.wait_for(ears.tell(from, to), &[to]);
        });
        ears.assert_heard(1, 1, &[0, 1]);
        ears.assert_heard(2, 2, &all);
        ears.network.heal();
    });
    assert_eq!(told.map(|number| ears.who_heard(number)), [BTreeSet::new(), BTreeSet::new()]);
    ears.network.cut(&[0, 1], &[2]);
    let told = [(0, 2), (1, 2), (2, 0), (2, 1)].map(|(from, to)| ears.tell(from, to));
    ears.assert_heard_until(2, &[2, 3], |ears| ears.network.heal());
    ears.assert_connected();
    assert!(told.iter().all(|&number| ears.who_heard(number).is_empty()));
}

#[test]
fn a_one_way_cut_is_one_way() {
    let Some(ears) = ears(&Plan::row(2, 2)) else { return };
    a_cut_is_one_way(ears);
}

#[test]
fn a_one_way_cut_is_one_way_in_ipv6() {
    let Some(ears) = ears_v6(&Plan::row(2, 2)) else { return };
    a_cut_is_one_way(ears);
}

/// Who is cut off altogether hears nobody and is heard by nobody.
#[test]
fn a_blackhole_swallows_both_ways() {
    let Some(mut ears) = ears(&Plan::lan(3)) else { return };
    ears.assert_connected();
    ears.network.blackhole(&[1]);
    let told = [(0, 1), (1, 0), (2, 1), (1, 2)].map(|(from, to)| ears.tell(from, to));
    ears.wait_for(ears.tell(0, 2), &[2]);
    ears.wait_for(ears.tell(2, 0), &[0]);
    ears.assert_heard_until(1, &[1], |ears| ears.network.heal());
    ears.assert_connected();
    assert!(told.iter().all(|&number| ears.who_heard(number).is_empty()));
}

/// Loss is as heavy as it was asked for, also beyond a router: it is drawn once.
#[test]
fn loss_is_drawn_once_for_each_packet() {
    let Some(mut ears) = ears(&Plan::row(2, 2)) else { return };
    ears.assert_connected();
    ears.network.lose(40);
    let some = MANY / 2..MANY * 7 / 10;
    for to in [1, 3] {
        let arrived = ears.arrived(&ears.tell_many(0, to));
        assert!(some.contains(&arrived), "{arrived} of {MANY} at {to}");
    }
    ears.network.heal();
    ears.network.lose_one_way(&[0], &[3], 40);
    let arrived = ears.arrived(&ears.tell_many(0, 3));
    assert!(some.contains(&arrived), "{arrived} of {MANY}");
    let back = ears.tell_many(3, 0);
    ears.wait("none is lost on the way back", || ears.arrived(&back) == MANY);
    ears.network.heal();
    let healed = ears.tell_many(0, 3);
    ears.wait("none is lost", || ears.arrived(&healed) == MANY);
}

/// Nothing is left of a network, also when its test panics.
#[test]
fn nothing_is_left_behind() {
    let Some(network) = Network::of(&Plan::row(2, 1)) else { return };
    let (names, routers) = (network.namespaces(), residents(&network.namespaces()));
    assert_eq!((names.len(), routers.len()), (5, 1));
    assert!(names.iter().all(|name| exists(name)) && routers.iter().all(|&pid| lives(pid)));
    let panicked = std::panic::catch_unwind(move || {
        let _held = network;
        panic!("as tests do");
    });
    assert!(panicked.is_err());
    assert!(!names.iter().any(|name| exists(name)) && !routers.iter().any(|&pid| lives(pid)));
}

/// Who is killed leaves its networks behind, with routers that run; the next one removes them.
#[test]
fn what_a_killed_process_left_is_swept_up() {
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new(own);
    command.args(["--exact", "a_network_until_killed", "--nocapture"]).env(CHILD, "1");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let names = lines.filter_map(|line| line.strip_prefix(CHILD).map(str::to_owned)).next();
    child.kill().unwrap();
    child.wait().unwrap();
    // The child has said why there is no network.
    let Some(names) = names else { return };
    let names: Vec<String> = names.split_whitespace().map(str::to_owned).collect();
    let routers = residents(&names);
    assert_eq!((names.len(), routers.len()), (5, 1));
    assert!(names.iter().all(|name| exists(name)) && routers.iter().all(|&pid| lives(pid)));
    sweep();
    assert!(!names.iter().any(|name| exists(name)));
    let began = Instant::now();
    while routers.iter().any(|&pid| lives(pid)) {
        assert!(began.elapsed() < PATIENCE, "{routers:?} live on");
        std::thread::sleep(LOOK);
    }
}

/// The child of the test above; by itself it does nothing.
#[test]
fn a_network_until_killed() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let Some(network) = Network::of(&Plan::row(2, 1)) else { return };
    println!("\n{CHILD}{}", network.namespaces().join(" "));
    // Until the parent is gone, should it be killed itself.
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Says in the environment that this process is a child, and begins the line by which it answers.
const CHILD: &str = "NETLAB_CHILD";

/// Who lives in these namespaces.
fn residents(namespaces: &[String]) -> Vec<u32> {
    let pids = |name: &String| Command::new("ip").args(["netns", "pids", name]).output().unwrap().stdout;
    let said: Vec<String> = namespaces.iter().map(|name| String::from_utf8(pids(name)).unwrap()).collect();
    said.iter().flat_map(|said| said.split_whitespace()).map(|pid| pid.parse().unwrap()).collect()
}

fn exists(namespace: &str) -> bool {
    Path::new(phalanx_netlab::NAMES).join(namespace).exists()
}

/// One that has ended, and whose parent has not asked for it yet, has no memory.
fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.contains("VmRSS"))
}
