//! The commands that people type, at real daemons of this machine.

use std::path::PathBuf;
use std::process::{Command, Output};

/// A directory for one test's cluster; whatever runs in it ends with the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("phalanx-cli-{name}-{}", std::process::id())))
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        command.args(args).env("PHALANX_DEV_DIR", &self.0).env_remove("PHALANX_SOCKET");
        command.output().expect("the command runs")
    }

    fn good(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {said}");
        String::from_utf8(output.stdout).expect("text")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.0.exists() {
            self.run(&["dev", "down"]);
        }
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Three nodes are killed while a job runs: its answer is right, and nothing stays.
#[test]
fn the_demo_is_right_and_leaves_nothing_behind() {
    let place = Place::new("demo");
    std::fs::create_dir_all(&place.0).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    // Whatever it writes is there.
    command.args(["demo", "-o", "json", "--limit", "10000000"]).env("TMPDIR", &place.0);
    let output = command.output().expect("the command runs");
    assert!(output.status.success(), "{}", said(&output));
    let demo: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&demo["right"], &demo["expected"]), (&true.into(), &664_579.into()), "{demo:#}");
    let round = &demo["rounds"][0];
    assert_eq!((&round["primes"], &round["status"]), (&664_579.into(), &0.into()), "{demo:#}");
    assert_eq!(round["mistakes"].as_array().map(Vec::len), Some(0), "{demo:#}");
    let kills = round["kills"].as_array().unwrap();
    let what: Vec<_> = kills.iter().map(|k| k["what"].as_str().unwrap()).collect();
    assert_eq!(what, ["worker", "root", "replica"]);
    for kill in kills {
        assert!(!kill["ranks"].as_array().unwrap().is_empty(), "{kill}");
        let ms = |figure: &str| kill[figure].as_f64().unwrap_or_else(|| panic!("{figure} of {kill}"));
        assert!(ms("known_first_ms") <= ms("known_last_ms") && ms("view_first_ms") <= ms("back_ms"), "{kill}");
    }
    assert!(kills[2]["replaced_ms"].is_f64(), "{demo:#}");
    assert_eq!(std::fs::read_dir(&place.0).unwrap().count(), 0, "no file is left");
    assert_eq!(still_running(&place), Vec::<String>::new());
    std::fs::remove_dir(&place.0).unwrap();
}

/// Processes that have something to do with a place.
fn still_running(place: &Place) -> Vec<String> {
    let place = place.0.to_str().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|p| Some(p.ok()?.path()));
    let texts = processes.filter_map(|p| {
        let command = std::fs::read(p.join("cmdline")).ok()?;
        let environment = std::fs::read(p.join("environ")).unwrap_or_default();
        Some(String::from_utf8_lossy(&[command, environment].concat()).into_owned())
    });
    texts.filter(|text| text.contains(place)).collect()
}

#[test]
fn a_new_user_plays_with_a_cluster() {
    let place = Place::new("dev");
    assert!(place.good(&["dev", "up", "3"]).starts_with("3 nodes, all views full"));
    let again = place.run(&["dev", "up", "3"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(said(&again).contains("phalanx dev down"), "{}", said(&again));
    let members = place.good(&["members"]);
    assert_eq!(members.lines().filter(|l| l.contains(" alive ")).count(), 3, "{members}");
    let json: serde_json::Value = serde_json::from_str(&place.good(&["members", "-o", "json"])).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 3);
    assert!(place.good(&["status"]).contains("members     3"));
    place.good(&["attr", "set", "rack", "r1"]);
    assert!(place.good(&["attr", "get", "rack"]).contains("n1    rack  r1"));
    assert_eq!(place.run(&["attr", "get", "colour"]).status.code(), Some(2), "nothing found");
    place.good(&["service", "register", "web", "--port", "80", "--tag", "blue", "--param", "proto=h2"]);
    assert!(place.good(&["service", "find", "tag == blue"]).contains("proto=h2"));
    let wrong = place.run(&["service", "find", "tag =="]);
    assert_eq!(wrong.status.code(), Some(1));
    place.good(&["service", "rm", "web", "--port", "80"]);
    assert_eq!(place.good(&["dev", "down"]), "3 nodes ended\n");
    assert!(!place.0.exists());
}

#[test]
fn without_a_daemon_commands_say_how_to_start_one() {
    let place = Place::new("none");
    let socket = place.0.join("nobody.sock");
    let nobody = place.run(&["members", "--socket", socket.to_str().unwrap()]);
    assert_eq!(nobody.status.code(), Some(69));
    assert!(said(&nobody).contains("phalanx dev up 3"), "{}", said(&nobody));
    assert_eq!(place.run(&["dev", "down"]).status.code(), Some(1));
    assert_eq!(place.run(&["dev", "up", "0"]).status.code(), Some(64));
    for wrong in [["--nodes", "5"], ["--rounds", "0"], ["--limit", "10"]] {
        let refused = place.run(&[&["demo"], &wrong[..]].concat());
        assert!(refused.status.code() == Some(64) && said(&refused).contains(wrong[0]), "{}", said(&refused));
    }
}

#[test]
fn a_configuration_says_where_each_value_comes_from_and_what_is_wrong() {
    let place = Place::new("config");
    std::fs::create_dir_all(&place.0).unwrap();
    let (good, bad) = (place.0.join("good.toml"), place.0.join("bad.toml"));
    std::fs::write(&good, "name = 'a'\nprofile = 'wan'\nkey = 'secret'\n").unwrap();
    std::fs::write(&bad, "nmae = 'a'\n").unwrap();
    let shown = place.good(&["config", "show", "--origin", "-c", good.to_str().unwrap(), "--profile", "local"]);
    let line = |key: &str| shown.lines().find(|l| l.starts_with(key)).unwrap().to_owned();
    assert!(line("profile").contains("local") && line("profile").ends_with("option --profile"), "{shown}");
    assert!(line("name").ends_with("good.toml") && line("bind").ends_with("default"), "{shown}");
    assert!(!shown.contains("secret"), "{shown}");
    let wrong = place.run(&["agent", "-c", bad.to_str().unwrap()]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(said(&wrong).contains("did you mean `name`?"), "{}", said(&wrong));
    let wrong = place.run(&["agent", "--key", "abc", "--data-dir", place.0.join("d").to_str().unwrap()]);
    assert!(said(&wrong).contains("64 hexadecimal digits"), "{}", said(&wrong));
    std::fs::remove_dir_all(&place.0).unwrap();
}

/// Each command of the README, typed as it stands there.
#[test]
fn a_new_user_types_the_commands_of_the_readme() {
    let place = Place::new("readme");
    place.good(&["dev", "up", "4"]);
    assert!(place.good(&["status", "--wait", "members=4"]).contains("members     4"));
    assert!(place.good(&["tree"]).contains("└─ n4"));
    place.good(&["attr", "set", "rack", "r7"]);
    place.good(&["service", "register", "cache", "--port", "6379"]);
    assert!(place.good(&["service", "find", "name == cache"]).contains("cache"));
    place.good(&["event", "deploy", "v2"]);
    assert!(place.good(&["events"]).contains("deploy from n1: v2"));
    let query = place.run(&["query", "disk", "--timeout", "300"]);
    assert_eq!((query.status.code(), said(&query).contains("4 members heard it, 0 answered")), (Some(2), true));
    assert!(place.good(&["keys", "rotate"]).contains("seals now, at all members"));
    assert!(place.good(&["keys", "ls"]).contains("4/4"));
    assert!(place.good(&["fault", "inject", "kind=drop", "p=0.01"]).contains("kind = \"drop\""));
    assert_eq!(place.run(&["doctor"]).status.code(), Some(2), "a fault is injected, and doctor says so");
    place.good(&["fault", "heal"]);
    assert_eq!(place.good(&["fault", "ls"]).lines().count(), 1);
    assert_eq!(place.good(&["rtt", "n3", "-c", "2"]).lines().count(), 3);
    assert!(place.good(&["rtt"]).contains("n2"));
    assert!(place.good(&["doctor"]).lines().all(|l| l.starts_with("ok")));
    assert!(place.good(&["census"]).contains("members      4"));
    assert_eq!(place.run(&["members", "--state", "failed"]).status.code(), Some(2));
    let nobody = place.run(&["force-leave", "nobody"]);
    assert!(nobody.status.code() == Some(1) && said(&nobody).contains("there is no member `nobody`"));
    assert_eq!(place.run(&["status", "--wait", "members=9", "--timeout", "0.2"]).status.code(), Some(124));
    assert_eq!(place.run(&["status", "--wait", "nonsense"]).status.code(), Some(64));
    place.good(&["dev", "down"]);
    let up = place.run(&["dev", "up", "4", "--zones", "2"]);
    assert!(up.status.success() && up.stderr.is_empty(), "the manager is there at once: {}", said(&up));
    // Its replicas are in both zones, and jobs run in both.
    let managers = place.good(&["managers"]);
    assert!(managers.contains("z1") && managers.contains("z2"), "{managers}");
    let ran = place.good(&["run", "-n", "4", "-N", "1", "sh", "-c", "echo on $PHALANX_NODE"]);
    assert!((1..=4).all(|n| ran.contains(&format!("on n{n}"))), "{ran}");
    let zones = place.good(&["zones"]);
    assert!(zones.contains("z1 *") && zones.contains("z2"), "{zones}");
    assert!(place.good(&["tree"]).starts_with("cluster: 2 zones, 4 members, 2 supervisors"));
    assert_eq!(place.good(&["dev", "down"]), "6 nodes ended\n");
}

#[test]
fn the_manual_and_completions_are_made_from_the_commands() {
    let place = Place::new("manual");
    assert!(place.good(&["completions", "bash"]).contains("force-leave"));
    let dir = place.0.join("man");
    place.good(&["man", dir.to_str().unwrap()]);
    assert!(dir.join("phalanx-keys-rotate.1").exists());
    std::fs::remove_dir_all(&place.0).unwrap();
}
