//! Casts among real daemons: each who lives has each cast once and in order, whoever is killed meanwhile.

use nix::sys::signal::Signal;
use phalanx_client::Error;
use phalanx_client::api::What;
use phalanx_client::api::casts::{Reached, Seat};
use phalanx_client::casts::{Piece, To};
use phalanx_cluster::{Cluster, Node, PATIENCE};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What would come twice has come by then.
const QUIET: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(5);

/// Somebody who listens at a daemon from now on.
struct Ear {
    name: String,
    pieces: Receiver<Piece>,
    /// Casts that are not whole yet, by source.
    begun: BTreeMap<(String, u64), Vec<u8>>,
}

/// A cast as a whole.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Heard {
    from: String,
    stream: u64,
    data: Vec<u8>,
}

impl Ear {
    fn at(node: &Node) -> Self {
        let (client, (tell, pieces), (ready, listens)) = (node.client(), channel(), channel());
        std::thread::spawn(move || {
            let casts = client.casts().expect("one more may listen");
            ready.send(()).expect("the test waits");
            // It ends with its daemon, or with the test.
            casts.map_while(Result::ok).take_while(|piece| tell.send(piece.clone()).is_ok()).for_each(drop);
        });
        listens.recv_timeout(PATIENCE).expect("it listens");
        Self { name: node.name().to_owned(), pieces, begun: BTreeMap::new() }
    }

    fn at_all(cluster: &Cluster) -> Vec<Self> {
        cluster.running().map(Self::at).collect()
    }

    /// The next cast; `None` when none comes within that time, or the daemon has ended.
    fn next(&mut self, within: Duration) -> Option<Heard> {
        loop {
            let Piece { heading, data } = match self.pieces.recv_timeout(within) {
                Ok(piece) => piece,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            };
            assert_eq!(heading.lost, 0, "at {}", self.name);
            let key = (heading.from, heading.stream);
            let whole = self.begun.entry(key.clone()).or_default();
            assert_eq!(
                whole.len() as u64,
                heading.offset,
                "{}: a piece of {key:?} is missing, or came twice",
                self.name
            );
            whole.extend(data);
            if heading.last {
                let data = self.begun.remove(&key).unwrap_or_default();
                return Some(Heard { from: key.0, stream: key.1, data });
            }
        }
    }

    /// So many casts, and no more.
    fn hear(&mut self, n: usize) -> Vec<Heard> {
        let mut heard = Vec::new();
        while heard.len() < n {
            let next = self.next(PATIENCE);
            let count = heard.len();
            heard.push(next.unwrap_or_else(|| panic!("{} has {count} casts of {n}: {:?}", self.name, words(&heard))));
        }
        assert_eq!(self.next(QUIET).map(|h| words(&[h])), None, "{} hears something twice", self.name);
        heard
    }

    /// The next cast is this one.
    fn hears(&mut self, from: &str, data: &[u8]) {
        let heard = self.next(PATIENCE).unwrap_or_else(|| panic!("{} hears nothing of {from}", self.name));
        assert_eq!(heard.from, from, "at {}", self.name);
        assert!(
            heard.data == data,
            "{} has other {} bytes than the {} of {from}",
            self.name,
            heard.data.len(),
            data.len()
        );
    }
}

/// For people.
fn words(heard: &[Heard]) -> Vec<String> {
    let text = |h: &Heard| String::from_utf8_lossy(&h.data[..h.data.len().min(32)]).into_owned();
    heard.iter().map(|h| format!("{} {} {}", h.from, h.stream, text(h))).collect()
}

/// Daemons with these lines of configuration; all have a seat.
fn cluster_of(n: usize, config: &str) -> Cluster {
    let mut cluster = Cluster::empty();
    let config = cluster.write("config.toml", config);
    (0..n).for_each(|_| _ = cluster.add(&["--config", &config]));
    cluster.wait_for_one_view();
    wait_for_seats(&cluster, &(0..n as u32).collect::<Vec<_>>());
    cluster
}

fn seats(node: &Node) -> Vec<Seat> {
    node.client().seats().expect("it answers")
}

/// Waits until all agree who sits where, and these seats are taken.
fn wait_for_seats(cluster: &Cluster, taken: &[u32]) {
    let first = cluster.running().next().expect("one runs");
    let is_so = |node: &Node| {
        let seats = seats(node);
        seats.iter().map(|s| s.seat).eq(taken.iter().copied()) && seats == self::seats(first)
    };
    let began = Instant::now();
    while !cluster.running().all(is_so) {
        let views: Vec<_> = cluster.running().map(|n| (n.name().to_owned(), seats(n))).collect();
        assert!(began.elapsed() < PATIENCE, "{taken:?} are not taken within {PATIENCE:?}: {views:?}");
        std::thread::sleep(LOOK);
    }
}

/// The number of the daemon that sits there.
fn sitter(cluster: &Cluster, seat: u32) -> usize {
    let seats = seats(cluster.running().next().expect("one runs"));
    let name = &seats.iter().find(|s| s.seat == seat).unwrap_or_else(|| panic!("nobody sits in {seat}")).name;
    name.trim_start_matches('n').parse().expect("n and a number")
}

/// Casts to everybody, while the test goes on.
fn cast(node: &Node, data: impl Into<Vec<u8>>) -> JoinHandle<Result<Reached, Error>> {
    let (client, data) = (node.client(), data.into());
    std::thread::spawn(move || client.cast(&To::All, "", data))
}

/// What became of it; it does not take for ever.
fn ended(casting: JoinHandle<Result<Reached, Error>>) -> Reached {
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(casting.join()));
    told.recv_timeout(PATIENCE).expect("the call returns").expect("no panic").expect("it was cast")
}

/// Bytes that look like nothing else.
fn noise(len: usize) -> Vec<u8> {
    let mut state = len as u64 | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

fn told(node: &Node, wanted: &str) -> usize {
    let recent = node.client().recent(None).expect("it answers");
    recent.iter().filter(|e| matches!(&e.what, What::User { name, .. } if name == wanted)).count()
}

/// ST-3: whoever casts, each has each cast once, and those of one source in their order.
#[test]
fn st_3_casts_of_several_reach_all_once_and_in_order() {
    const EACH: usize = 40;
    let cluster = cluster_of(9, "");
    let mut ears = Ear::at_all(&cluster);
    let sources = [0, 4, 8, 5];
    let casting: Vec<_> = sources
        .iter()
        .map(|&n| {
            let client = cluster.node(n).client();
            std::thread::spawn(move || {
                for round in 0..EACH {
                    let reached = client.cast(&To::All, "", round.to_string().into()).unwrap();
                    assert_eq!((reached.reached, reached.missed.len()), (9, 0), "n{n}, cast {round}");
                }
            })
        })
        .collect();
    casting.into_iter().for_each(|thread| thread.join().unwrap());
    for ear in &mut ears {
        let heard = ear.hear(sources.len() * EACH);
        for n in sources {
            let of_one = heard.iter().filter(|h| h.from == format!("n{n}"));
            let rounds: Vec<String> = of_one.map(|h| String::from_utf8(h.data.clone()).unwrap()).collect();
            assert!(
                rounds.iter().eq(&(0..EACH).map(|r| r.to_string()).collect::<Vec<_>>()),
                "{}: {rounds:?}",
                ear.name
            );
        }
    }
}

/// ST-4: the root, one below it and a leaf are dead before anybody knows it. All others have the cast, and the call says how many.
#[test]
fn st_4_three_die_as_a_cast_starts() {
    let mut cluster = cluster_of(9, "");
    let mut ears = Ear::at_all(&cluster);
    let dead = [0, 2, 7].map(|seat| sitter(&cluster, seat));
    let source = sitter(&cluster, 4);
    dead.iter().for_each(|&n| cluster.node(n).signal(Signal::SIGKILL));
    let reached = ended(cast(cluster.node(source), "now"));
    dead.iter().for_each(|&n| cluster.kill(n));
    assert_eq!((reached.reached, reached.missed), (6, vec![]));
    let from = cluster.node(source).name();
    ears.retain(|ear| !dead.iter().any(|n| ear.name == format!("n{n}")));
    ears.iter_mut().for_each(|ear| ear.hears(from, b"now"));
    // Those who are left can all cast, too.
    for node in cluster.running() {
        let reached = ended(cast(node, node.name()));
        assert_eq!(reached.reached, 6, "{}", node.name());
        ears.iter_mut().for_each(|ear| ear.hears(node.name(), node.name().as_bytes()));
    }
}

/// ST-4: what three had in their hands is lost with them: they take what is sent to them, hand nothing on, and die.
#[test]
fn st_4_three_die_with_a_cast_in_their_hands() {
    let mut cluster = cluster_of(9, "");
    let mut ears = Ear::at_all(&cluster);
    let dead = [0, 1, 3].map(|seat| sitter(&cluster, seat));
    let source = sitter(&cluster, 8);
    dead.iter().for_each(|&n| cluster.node(n).signal(Signal::SIGSTOP));
    let casting: Vec<_> = (0..5).map(|_| cast(cluster.node(source), "held")).collect();
    std::thread::sleep(Duration::from_millis(30));
    dead.iter().for_each(|&n| cluster.kill(n));
    for casting in casting {
        let reached = ended(casting);
        assert_eq!((reached.reached, reached.missed), (6, vec![]));
    }
    ears.retain(|ear| !dead.iter().any(|n| ear.name == format!("n{n}")));
    for ear in &mut ears {
        assert!(ear.hear(5).iter().all(|heard| heard.data == b"held"));
    }
}

/// ST-4: the source dies in the midst. Whatever one of the others has, all have.
#[test]
fn st_4_the_source_dies_in_the_midst() {
    let mut cluster = cluster_of(7, "");
    let source = sitter(&cluster, 6);
    let mut ears: Vec<Ear> = cluster.running().filter(|n| n.name() != format!("n{source}")).map(Ear::at).collect();
    let client = cluster.node(source).client();
    let casting = std::thread::spawn(move || {
        (0..).take_while(|round: &u32| client.cast(&To::All, "", round.to_string().into()).is_ok()).count()
    });
    std::thread::sleep(Duration::from_millis(200));
    cluster.kill(source);
    let ended = casting.join().unwrap();
    cluster.wait_for_one_view();
    let heard: Vec<Vec<Heard>> =
        ears.iter_mut().map(|ear| std::iter::from_fn(|| ear.next(QUIET * 3)).collect()).collect();
    assert!(heard[0].len() >= ended && ended > 0, "{} of {ended}", heard[0].len());
    for (ear, list) in ears.iter().zip(&heard) {
        assert_eq!(words(list), words(&heard[0]), "{} and {}", ear.name, ears[0].name);
        let numbers = list.iter().map(|h| String::from_utf8(h.data.clone()).unwrap());
        assert!(numbers.eq((0..list.len()).map(|n| n.to_string())), "{}", ear.name);
    }
}

/// A cast to some says who missed it, and the others have it.
#[test]
fn a_cast_to_some_says_who_missed_it() {
    let mut cluster = cluster_of(5, "");
    let mut ears = Ear::at_all(&cluster);
    let (code, _, said) = cluster.command(0, &["cast", "--to", "n[1-2]", "all are there"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("2 members have 13 bytes"), "{said}");
    for number in [1, 2] {
        ears[number].hears("n0", b"all are there");
    }
    // It is not known to be dead yet.
    cluster.node(2).signal(Signal::SIGSTOP);
    let command = {
        let socket = cluster.node(0).socket();
        std::thread::spawn(move || {
            let mut command = std::process::Command::new(phalanx_cluster::binary());
            command.args(["cast", "--to", "n1,n2,n3", "one is not"]).env("PHALANX_SOCKET", socket).output().unwrap()
        })
    };
    for number in [1, 3] {
        ears[number].hears("n0", b"one is not");
    }
    cluster.kill(2);
    let output = command.join().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("2 members have") && said.contains("gone before: n2"), "{said}");
    for number in [0, 4] {
        assert_eq!(ears[number].next(QUIET), None, "it was not for n{number}");
    }
}

/// What cannot be cast is refused with advice.
#[test]
fn what_cannot_be_cast_is_refused_with_advice() {
    let cluster = cluster_of(2, "");
    let dir = cluster.node(0).dir().to_str().unwrap();
    let cases: [(&[&str], &str); 7] = [
        (&["--to", "n1,nobody", "x"], "no member is called nobody"),
        (&["--to", "", "x"], "is no host list"),
        (&["--to", "n[1-", "x"], "n[1-"),
        (&["--file", dir], "is a directory: pack it first"),
        (&["--file", "/no/such/file"], "cannot read /no/such/file"),
        (&["--job", "nothing", "x"], "no member of this zone has tasks of a job nothing"),
        (&["--to", "n1", "--job", "j", "x"], "cannot be used with"),
    ];
    for (arguments, advice) in cases {
        let (code, said, why) = cluster.command(0, &[&["cast"], arguments].concat());
        assert!(
            code.is_some_and(|code| code != 0 && code != 2 || why.contains("Usage")),
            "{arguments:?}: {code:?} {said}"
        );
        assert!(why.contains(advice), "{arguments:?}: {why}");
    }
    let config = cluster.write("narrow.toml", "cast_fan_out = \"1\"\n");
    let other = cluster.node(0).dir().join("other");
    let (code, _, why) = cluster
        .command(0, &["agent", "--config", &config, "--bind", "127.0.0.1:0", "--data-dir", other.to_str().unwrap()]);
    assert_eq!(code, Some(1), "{why}");
    assert!(why.contains("cast_fan_out") && why.contains('2') && why.contains("narrow.toml"), "{why}");
}

/// Long casts are cut into pieces and arrive whole, from a file and from a program.
#[test]
fn megabytes_arrive_whole() {
    let cluster = cluster_of(6, "");
    let mut ears = Ear::at_all(&cluster);
    let long = noise((5 << 20) + 17);
    let path = cluster.node(0).dir().join("long");
    std::fs::write(&path, &long).unwrap();
    let (code, _, said) = cluster.command(3, &["cast", "--file", path.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("6 members have {} bytes", long.len())), "{said}");
    ears.iter_mut().for_each(|ear| ear.hears("n3", &long));
    for len in [0, 1, 64 << 10, (64 << 10) + 1] {
        let reached = ended(cast(cluster.node(1), noise(len)));
        assert_eq!((reached.reached, reached.bytes), (6, len as u64));
        ears.iter_mut().for_each(|ear| ear.hears("n1", &noise(len)));
    }
}

/// ST-4: a long cast arrives whole at each who lives, though the root and one below it die in its midst.
#[test]
fn st_4_megabytes_arrive_whole_when_somebody_dies_in_the_midst() {
    let mut cluster = cluster_of(8, "");
    let mut ears = Ear::at_all(&cluster);
    let (source, dead) = (sitter(&cluster, 5), [0, 2].map(|seat| sitter(&cluster, seat)));
    let long = noise(24 << 20);
    let casting = cast(cluster.node(source), long.clone());
    let first = &mut ears[dead[0]];
    first.pieces.recv_timeout(PATIENCE).expect("it has begun");
    for number in dead {
        cluster.kill(number);
        std::thread::sleep(Duration::from_millis(20));
    }
    let reached = ended(casting);
    assert_eq!((reached.reached, reached.bytes), (6, long.len() as u64));
    let from = cluster.node(source).name();
    ears.retain(|ear| !dead.iter().any(|n| ear.name == format!("n{n}")));
    ears.iter_mut().for_each(|ear| ear.hears(from, &long));
}

/// ST-6: holes are closed at once by those who sit last, and casts go on meanwhile.
#[test]
fn st_6_at_once_closes_holes() {
    let mut cluster = cluster_of(7, "cast_repair = \"at-once\"\n");
    let mut ears = Ear::at_all(&cluster);
    for seat in [0, 3] {
        let (dead, source) = (sitter(&cluster, seat), sitter(&cluster, 2));
        let casting: Vec<_> = (0..4).map(|_| cast(cluster.node(source), "moving")).collect();
        cluster.kill(dead);
        casting.into_iter().for_each(|casting| _ = ended(casting));
        let left = cluster.running().count() as u32;
        wait_for_seats(&cluster, &(0..left).collect::<Vec<_>>());
        ears.retain(|ear| ear.name != format!("n{dead}"));
        ears.iter_mut().for_each(|ear| _ = ear.hear(4));
        for node in cluster.running() {
            assert_eq!(ended(cast(node, node.name())).reached, left as usize);
            ears.iter_mut().for_each(|ear| ear.hears(node.name(), node.name().as_bytes()));
        }
    }
}

/// ST-6: who sits last and moves while it casts loses nothing, and its calls return.
#[test]
fn st_6_who_moves_while_it_casts_loses_nothing() {
    const EACH: usize = 60;
    let mut cluster = cluster_of(6, "cast_repair = \"at-once\"\n");
    let (mover, dead) = (sitter(&cluster, 5), sitter(&cluster, 1));
    let mut ears: Vec<Ear> = cluster.running().filter(|n| n.name() != format!("n{dead}")).map(Ear::at).collect();
    let clients: Vec<_> = (0..3).map(|_| cluster.node(mover).client()).collect();
    let casting: Vec<_> = clients
        .into_iter()
        .enumerate()
        .map(|(n, client)| {
            std::thread::spawn(move || {
                for round in 0..EACH {
                    let reached = client.cast(&To::All, "", format!("{n} {round}").into()).unwrap();
                    assert!(reached.reached >= 5, "{reached:?}");
                }
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(50));
    cluster.kill(dead);
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(casting.into_iter().all(|thread| thread.join().is_ok())));
    assert!(told.recv_timeout(PATIENCE).expect("all calls return"));
    wait_for_seats(&cluster, &[0, 1, 2, 3, 4]);
    assert_eq!(sitter(&cluster, 1), mover);
    for ear in &mut ears {
        let heard = ear.hear(3 * EACH);
        for n in 0..3 {
            let rounds = heard.iter().filter_map(|h| {
                let text = std::str::from_utf8(&h.data).unwrap();
                text.strip_prefix(&format!("{n} ")).map(str::to_owned)
            });
            assert!(rounds.eq((0..EACH).map(|r| r.to_string())), "{}", ear.name);
        }
    }
}

/// ST-6: a hole stays until somebody comes who needs a seat.
#[test]
fn st_6_lazy_leaves_the_hole_to_a_newcomer() {
    let mut cluster = cluster_of(5, "cast_repair = \"lazy\"\n");
    let dead = sitter(&cluster, 1);
    cluster.kill(dead);
    wait_for_seats(&cluster, &[0, 2, 3, 4]);
    std::thread::sleep(QUIET);
    wait_for_seats(&cluster, &[0, 2, 3, 4]);
    let newcomer = cluster.add(&[]);
    wait_for_seats(&cluster, &[0, 1, 2, 3, 4]);
    assert_eq!(sitter(&cluster, 1), newcomer);
    let mut ears = Ear::at_all(&cluster);
    for node in cluster.running() {
        assert_eq!(ended(cast(node, node.name())).reached, 5);
        ears.iter_mut().for_each(|ear| ear.hears(node.name(), node.name().as_bytes()));
    }
}

/// ST-6: a hole stays until somebody says that it is to be filled; who comes sits down at the end.
#[test]
fn st_6_manual_leaves_the_hole_until_it_is_told() {
    let mut cluster = Cluster::empty();
    let config = cluster.write("config.toml", "cast_repair = \"manual\"\n");
    (0..5).for_each(|_| _ = cluster.add(&["--config", &config]));
    cluster.wait_for_one_view();
    // Those who began alone have left holes, perhaps.
    cluster.wait_until("all sit", |node| seats(node).len() == 5);
    cluster.node(0).client().repair().unwrap();
    wait_for_seats(&cluster, &[0, 1, 2, 3, 4]);
    let dead = sitter(&cluster, 1);
    cluster.kill(dead);
    wait_for_seats(&cluster, &[0, 2, 3, 4]);
    let newcomer = cluster.add(&["--config", &config]);
    wait_for_seats(&cluster, &[0, 2, 3, 4, 5]);
    assert_eq!(sitter(&cluster, 5), newcomer);
    let (code, _, said) = cluster.command(sitter(&cluster, 2), &["cast", "--repair"]);
    assert_eq!(code, Some(0), "{said}");
    wait_for_seats(&cluster, &[0, 1, 2, 3, 4]);
    assert_eq!(sitter(&cluster, 1), newcomer);
    let mut ears = Ear::at_all(&cluster);
    for node in cluster.running() {
        assert_eq!(ended(cast(node, node.name())).reached, 5);
        ears.iter_mut().for_each(|ear| ear.hears(node.name(), node.name().as_bytes()));
    }
}

/// Events go over the tree, too: each has them once, also when the root was killed just before.
#[test]
fn events_reach_all_once_right_after_a_kill() {
    let mut cluster = cluster_of(8, "");
    let (code, _, said) = cluster.command(6, &["event", "before", "x"]);
    assert_eq!(code, Some(0), "{said}");
    cluster.wait_until("the event", |node| told(node, "before") > 0);
    let dead = [0, 3].map(|seat| sitter(&cluster, seat));
    let source = sitter(&cluster, 7);
    dead.iter().for_each(|&n| cluster.kill(n));
    let (code, _, said) = cluster.command(source, &["event", "after", "x"]);
    assert_eq!(code, Some(0), "{said}");
    cluster.wait_until("the event", |node| told(node, "after") > 0);
    std::thread::sleep(QUIET);
    for node in cluster.running() {
        assert_eq!((told(node, "before"), told(node, "after")), (1, 1), "at {}", node.name());
    }
}

/// A daemon that was killed and started again casts and is heard, and nobody hears anything a second time.
#[test]
fn who_was_started_again_is_heard_and_nothing_old_is() {
    let mut cluster = cluster_of(5, "");
    let mut ears = Ear::at_all(&cluster);
    for round in 0..3 {
        let again = sitter(&cluster, [0, 1, 4][round]);
        let text = format!("before {round}");
        ended(cast(cluster.node(again), text.clone()));
        ears.iter_mut().for_each(|ear| ear.hears(&format!("n{again}"), text.as_bytes()));
        cluster.kill(again);
        cluster.run(again, &[]);
        cluster.wait_for_one_view();
        wait_for_seats(&cluster, &[0, 1, 2, 3, 4]);
        ears[again] = Ear::at(cluster.node(again));
        for node in cluster.running() {
            let text = format!("after {round} {}", node.name());
            assert_eq!(ended(cast(node, text.clone())).reached, 5);
            ears.iter_mut().for_each(|ear| ear.hears(node.name(), text.as_bytes()));
        }
    }
}

/// Who stood still for so long that the others took it for dead casts and hears again when it goes on.
#[test]
fn who_was_taken_for_dead_and_is_back_casts_and_hears() {
    let cluster = cluster_of(5, "");
    let mut ears = Ear::at_all(&cluster);
    let (still, source) = (sitter(&cluster, 1), sitter(&cluster, 2));
    cluster.node(still).signal(Signal::SIGSTOP);
    let reached = ended(cast(cluster.node(source), "without it"));
    assert_eq!(reached.reached, 4);
    cluster.node(source).wait_until("it is missed", |node| node.status().alive == 4);
    assert_eq!(ended(cast(cluster.node(source), "still without it")).reached, 4);
    cluster.node(still).signal(Signal::SIGCONT);
    cluster.wait_for_one_view();
    wait_for_seats(&cluster, &[0, 1, 2, 3, 4]);
    for node in cluster.running() {
        assert_eq!(ended(cast(node, "with it")).reached, 5, "{}", node.name());
    }
    for ear in &mut ears {
        let mut heard = Vec::new();
        while heard.iter().filter(|h: &&Heard| h.data == b"with it").count() < 5 {
            heard.push(ear.next(Duration::from_secs(5)).unwrap_or_else(|| panic!("{}: {:?}", ear.name, words(&heard))));
        }
        assert_eq!(ear.next(QUIET), None, "{}", ear.name);
        let mut sorted = heard.clone();
        sorted.dedup();
        assert_eq!(sorted.len(), heard.len(), "{}: {:?}", ear.name, words(&heard));
    }
}

/// Who listens and does not read loses pieces, and holds up nobody else.
#[test]
fn who_does_not_read_holds_up_nobody() {
    const LONG: usize = 96 << 20;
    let cluster = cluster_of(4, "");
    let client = cluster.node(2).client();
    let mut asleep = client.casts().unwrap();
    let mut ears = Ear::at_all(&cluster);
    let long = noise(LONG);
    assert_eq!(ended(cast(cluster.node(1), long.clone())).reached, 4);
    ears.iter_mut().for_each(|ear| ear.hears("n1", &long));
    assert_eq!(ended(cast(cluster.node(2), "later")).reached, 4);
    ears.iter_mut().for_each(|ear| ear.hears("n2", b"later"));
    // It wakes up, and is told how much it lost as soon as there is room for more.
    let mut read = asleep.by_ref().map(Result::unwrap);
    assert_eq!(read.by_ref().take(100).filter(|piece| piece.heading.lost > 0).count(), 0);
    ended(cast(cluster.node(3), "awake"));
    let awake = read.find(|piece| piece.heading.from == "n3").expect("it comes");
    assert!(awake.heading.lost > 0, "it lost something, and knows it");
    assert_eq!(awake.data, b"awake");
}

/// A cast is for all of the cluster, or for one zone of it; supervisors pass for a zone of their own.
#[test]
fn a_cast_reaches_over_zones() {
    let mut cluster = Cluster::empty();
    let supervisor = cluster.add(&["--role", "supervisor"]);
    let place = cluster.node(supervisor).status().me.addr.to_string();
    for zone in ["red", "blue", "blue", "green"] {
        cluster.add(&["--zone", zone, "--supervisor", &place]);
    }
    cluster.wait_until("the census", |node| node.client().census().map_or(0, |c| c.members) == 4);
    cluster.wait_until("seats", |node| !seats(node).is_empty());
    let mut listeners = Ear::at_all(&cluster);
    let client = cluster.node(1).client();
    let long = noise(200_000);
    let cast = |to: To, data: &[u8]| client.cast(&to, "", data.to_vec()).expect("it comes").reached;
    assert_eq!(cast(To::All, &long), 5);
    listeners.iter_mut().for_each(|l| l.hears("n1", &long));
    assert_eq!(cast(To::Zone("blue".into()), b""), 2);
    assert_eq!(cast(To::Zone("red".into()), b"ours"), 1);
    for (node, data) in [(2, &b""[..]), (3, b""), (1, b"ours")] {
        listeners[node].hears("n1", data);
    }
    assert_eq!(cluster.node(supervisor).client().cast(&To::All, "", b"from above".to_vec()).unwrap().reached, 5);
    listeners.iter_mut().for_each(|l| l.hears("n0", b"from above"));
    let unknown = client.cast(&To::Zone("violet".into()), "", b"?".to_vec()).unwrap_err();
    assert!(unknown.to_string().contains("violet"), "{unknown}");
}

/// One of those whom something long is for dies in the midst: the others have all of it, and it is named.
#[test]
fn a_cast_to_some_goes_on_when_one_of_them_dies() {
    let mut cluster = cluster_of(5, "");
    let mut ears = Ear::at_all(&cluster);
    let (client, data) = (cluster.node(0).client(), noise(60_000_000));
    let to = To::Members(["n1", "n2", "n3"].map(str::to_owned).to_vec());
    let body = data.clone();
    let casting = std::thread::spawn(move || client.cast(&to, "", body));
    std::thread::sleep(Duration::from_millis(150));
    cluster.kill(2);
    let Reached { reached, missed, .. } = ended(casting);
    assert_eq!((reached, missed), (2, vec!["n2".to_owned()]));
    for node in [1, 3] {
        ears[node].hears("n0", &data);
    }
}
