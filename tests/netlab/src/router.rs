//! Routers: the kernel's, and `smcrouted`, which tells it where multicast goes.
//!
//! Each takes the groups of our UDP platform from each of its networks to all others. How far a datagram gets is said by its TTL
//! alone, as 003 §3 wants it: with 1 it stays, and each router takes one.

use crate::plumbing::{Error, has_ipv6, inside, on};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The groups that are routed.
pub const GROUPS: &str = "239.77.0.0/16";
/// The same of the second family: those whose scope reaches beyond a link.
pub const GROUPS_V6: [&str; 3] = ["ff05::4d:0/112", "ff08::4d:0/112", "ff0e::4d:0/112"];
/// What it takes to start `smcrouted`, at most.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(2);

/// The daemon of a router; it ends with this.
#[derive(Debug)]
pub(crate) struct Daemon(Child);

impl Daemon {
    /// Starts to route multicast among the interfaces of a namespace; it does when this is there. Its files are in `dir`.
    pub(crate) fn start(namespace: &str, interfaces: &[String], dir: &Path, name: &str) -> Result<Self, Error> {
        let refused = |reason: String| Error::Refused { program: "smcrouted", reason };
        let file = |ending: &str| dir.join(format!("{name}.{ending}"));
        let (conf, log, pid) = (file("conf"), file("log"), file("pid"));
        fs::write(&conf, configuration(interfaces)).map_err(|e| refused(e.to_string()))?;
        let said = File::create(&log).map_err(|e| refused(e.to_string()))?;
        let words = on(namespace);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["smcrouted", "-n", "-N", "-f"]).arg(&conf).arg("-P").arg(&pid);
        command.arg("-u").arg(file("sock")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        let mut daemon = Self(command.spawn().map_err(|e| refused(e.to_string()))?);
        let began = Instant::now();
        while !(pid.exists() && routes(namespace, interfaces)) {
            let ended = daemon.0.try_wait().is_ok_and(|status| status.is_some());
            if ended || began.elapsed() > PATIENCE {
                return Err(refused(fs::read_to_string(&log).unwrap_or_default()));
            }
            std::thread::sleep(LOOK);
        }
        Ok(daemon)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The kernel forgets its routes with its sockets.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// From each interface to all others.
fn configuration(interfaces: &[String]) -> String {
    let mut text: String = interfaces.iter().map(|name| format!("phyint {name} enable\n")).collect();
    for from in interfaces {
        let to: Vec<&str> = interfaces.iter().filter(|to| *to != from).map(String::as_str).collect();
        let sixes = GROUPS_V6.into_iter().filter(|_| routes_ipv6());
        for groups in std::iter::once(GROUPS).chain(sixes) {
            text.push_str(&format!("mroute from {from} group {groups} to {}\n", to.join(" ")));
        }
    }
    text
}

pub(crate) fn routes_ipv6() -> bool {
    has_ipv6() && Path::new("/proc/self/net/ip6_mr_vif").exists()
}

/// True when the kernel of a namespace routes multicast among these interfaces.
fn routes(namespace: &str, interfaces: &[String]) -> bool {
    // Of the thread: the process is elsewhere.
    let table = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    let has_all = |table: &str| interfaces.iter().all(|name| table.split_whitespace().any(|word| word == name));
    inside(namespace, || has_all(&table("ip_mr_vif")) && (!routes_ipv6() || has_all(&table("ip6_mr_vif"))))
}
