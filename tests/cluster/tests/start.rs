//! How daemons start, and why they do not.

use phalanx_cluster::{Cluster, KEY, binary};
use std::process::{Command, Output};

fn agent(arguments: &[&str], dir: &std::path::Path) -> Output {
    let mut command = Command::new(binary());
    command.args(["agent", "--bind", "127.0.0.1:0", "--name", "x"]).args(arguments);
    command.arg("--data-dir").arg(dir).arg("--socket").arg(dir.join("sock")).output().unwrap()
}

/// A scratch directory that goes with its story.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("phalanx-start-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn refused(arguments: &[&str], scratch: &Scratch, said: &str) {
    let output = agent(arguments, &scratch.0);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
    assert!(error.contains(said), "{arguments:?}: {error}");
}

/// Each mistake is named, with what to do.
#[test]
fn mistakes_are_named() {
    let scratch = Scratch::new("mistakes");
    let file = scratch.0.join("phalanx.toml");
    let path = file.to_str().unwrap().to_owned();
    for (text, said) in [
        ("advertize = 'x'", "did you mean `advertise`?"),
        ("on = ['die=x']", "nothing that happens"),
        ("attributes = ['rack']", "is no KEY=VALUE"),
        ("attributes = ['phalanx.x=1']", "reserved"),
        ("http = '0.0.0.0:0'", "can be reached by others"),
        ("http = '127.0.0.1:0'\nhttp_token_file = '/nonexistent'", "cannot use /nonexistent"),
        ("role = 'supervisor'\nzone = 'a'", "a supervisor is in no zone"),
        ("supervisors = ['127.0.0.1']", "give a zone, too"),
        ("zone_pattern = ['(x']", "write PATTERN=ZONE"),
        ("zone_pattern = ['(x=y']", "is not a regular expression"),
        ("zone_pattern = ['nobody-is-called-so=z']", "fits none of"),
        ("zone_attribute = 'rack'", "is not set"),
        ("key = 'short'", "64 hexadecimal digits"),
        ("join = ['hosts:n[1-']", "no host list"),
        ("bind = '192.0.2.1:7946'", "no such address"),
    ] {
        std::fs::write(&file, format!("{text}\n")).unwrap();
        let output = Command::new(binary())
            .args(["agent", "--config", &path, "--name", "x"])
            .args(if text.starts_with("bind") { &[][..] } else { &["--bind", "127.0.0.1:0"] })
            .arg("--data-dir")
            .arg(&scratch.0)
            .arg("--socket")
            .arg(scratch.0.join("sock"))
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}: {error}");
        assert!(error.contains(said), "{text}: {error}");
    }
}

/// A damaged identity is an error, and stays as it is: nobody starts under a new one.
#[test]
fn a_damaged_identity_is_no_reason_to_begin_anew() {
    let scratch = Scratch::new("identity");
    std::fs::write(scratch.0.join("identity"), "nonsense\n").unwrap();
    refused(&[], &scratch, "is damaged");
    assert_eq!(std::fs::read_to_string(scratch.0.join("identity")).unwrap(), "nonsense\n");
}

/// A key of another cluster does not replace the one that is kept.
#[test]
fn another_key_does_not_replace_the_kept_one() {
    let scratch = Scratch::new("key");
    std::fs::write(scratch.0.join("keys"), format!("1 {KEY}\n")).unwrap();
    refused(&["--key", &"ab".repeat(32)], &scratch, "belongs to another cluster");
}

/// Started without a key a daemon makes one, and prints the line that joins the next node.
#[test]
fn a_first_daemon_says_how_to_join_it() {
    let mut cluster = Cluster::empty();
    let first = cluster.add_without_key(&[]);
    let line = |log: &str| log.lines().find(|l| l.contains("PHALANX_KEY=")).map(str::to_owned);
    cluster.node(first).wait_until("the line", |n| line(&n.log()).is_some());
    let line = line(&cluster.node(first).log()).unwrap();
    let key = line.split("PHALANX_KEY=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    assert!(line.contains("phalanx agent --join 127."), "{line}");
    cluster.add(&["--key", &key]);
    cluster.wait_until_all_see(2);
}

/// A stranger is kept out, counted, and said in the log once.
#[test]
fn a_stranger_is_said_in_the_log_once() {
    let mut cluster = Cluster::start(2);
    cluster.add(&["--key", &"ab".repeat(32)]);
    let told = |log: &str| log.matches("another key or another cluster name").count();
    cluster.node(0).wait_until("the stranger", |n| told(&n.log()) > 0);
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!(told(&cluster.node(0).log()), 1);
    let (_, doctor, _) = cluster.command(0, &["doctor"]);
    assert!(doctor.contains("WARN  strangers"), "{doctor}");
}

/// Few descriptors are named at the start.
#[test]
fn a_low_limit_of_descriptors_is_named() {
    let scratch = Scratch::new("descriptors");
    let command = format!(
        "ulimit -n 128; exec {} agent --bind 127.0.0.1:0 --name x --data-dir {dir} --socket {dir}/sock",
        binary().display(),
        dir = scratch.0.display()
    );
    let mut child = Command::new("/bin/sh")
        .args(["-c", &command])
        .stderr(std::fs::File::create(scratch.0.join("log")).unwrap())
        .spawn()
        .unwrap();
    let log = || std::fs::read_to_string(scratch.0.join("log")).unwrap();
    let began = std::time::Instant::now();
    while !log().contains("only 128 files may be open") {
        assert!(began.elapsed() < phalanx_cluster::PATIENCE, "{}", log());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// IPv6 is as good as IPv4.
#[test]
fn daemons_meet_over_ipv6() {
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        eprintln!("skipped: this machine has no IPv6");
        return;
    }
    let mut cluster = Cluster::empty();
    (0..3).for_each(|_| _ = cluster.add(&["--bind", "[::1]:0"]));
    cluster.wait_until_all_see(3);
    assert!(cluster.node(0).status().me.addr.is_ipv6());
    cluster.kill(2);
    cluster.wait_until_all_see(2);
}

/// systemd is told when the daemon serves, again and again that its loop runs, and when it stops.
#[test]
fn systemd_is_told_what_happens() {
    let scratch = Scratch::new("systemd");
    let path = scratch.0.join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(phalanx_cluster::PATIENCE)).unwrap();
    let hear = |wanted: &str| {
        let mut bytes = [0; 256];
        loop {
            let length = socket.recv(&mut bytes).unwrap_or_else(|e| panic!("{wanted}: {e}"));
            if String::from_utf8_lossy(&bytes[..length]).contains(wanted) {
                return;
            }
        }
    };
    let mut child = Command::new(binary())
        .args(["agent", "--bind", "127.0.0.1:0", "--name", "x"])
        .arg("--data-dir")
        .arg(&scratch.0)
        .arg("--socket")
        .arg(scratch.0.join("sock"))
        .env("NOTIFY_SOCKET", &path)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    hear("READY=1");
    hear("WATCHDOG=1");
    hear("WATCHDOG=1");
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    hear("STOPPING=1");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
