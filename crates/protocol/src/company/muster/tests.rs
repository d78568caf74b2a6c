//! Hosts with several tasks each, over a wire in the test's hands.

use super::*;
use crate::cast::reduce::Outcome;
use crate::company::{self, Config, Person, Wanted};
use crate::link::Link;
use crate::link::seal::KeyRing;
use crate::link::sign::Signer;
use phalanx_core::{Boot, Buf, Code, Duration};
use std::sync::Arc;

const JOB: u64 = 7;
/// Tasks of each host.
const TASKS: u32 = 4;

#[derive(Default)]
struct Ear {
    wire: Vec<(Addr, Buf)>,
    mustered: Vec<Option<Outcome>>,
    reduced: usize,
}

impl<'a> Sink<Output<'a>> for Ear {
    fn push(&mut self, output: Output<'a>) {
        match output {
            Output::Transmit { to, packet, .. } => self.wire.push((to, packet)),
            Output::Mustered { what: Reduced::Done(outcome) } => self.mustered.push(Some(outcome.clone())),
            Output::Mustered { what: Reduced::Excluded } => self.mustered.push(None),
            Output::Reduced { .. } => self.reduced += 1,
            _ => {}
        }
    }
}

struct World {
    now: Instant,
    hosts: Vec<Company>,
    ears: Vec<Ear>,
    /// What is sent to them is refused.
    dead: BTreeSet<usize>,
    /// Bytes that went over the wire.
    sent: usize,
}

fn company(host: u32) -> Company {
    let ring = Arc::new(KeyRing::new(1, [9; 32]));
    let boot = Boot([host as u8 ^ 0x5a; 16]);
    let link = Link::new(Arc::new(Company::link_config()), ring, Signer::fake(host.into()), boot, host.into());
    Company::new(link, 1400, Addr::Local(host), JOB, Config::default(), first(host))
}

fn first(host: u32) -> Seat {
    1000 * (host + 1)
}

impl World {
    /// All begin with the same view.
    fn new(n: u32) -> Self {
        let mut hosts: Vec<_> = (0..n).map(company).collect();
        let mut ears: Vec<_> = hosts.iter().map(|_| Ear::default()).collect();
        let person = |t| Person { host: Addr::Local(t / TASKS), boot: first(t / TASKS) + t % TASKS, stint: 0 };
        let view = View::first(4, (0..n * TASKS).map(person)).unwrap();
        let now = Instant(1_000_000);
        for task in 0..n * TASKS {
            let host = (task / TASKS) as usize;
            hosts[host].enter(now, Task(task), view.clone(), &mut ears[host]);
        }
        Self { now, hosts, ears, dead: BTreeSet::new(), sent: 0 }
    }

    fn act<R>(&mut self, host: usize, act: impl FnOnce(&mut Company, Instant, &mut Ear) -> R) -> R {
        act(&mut self.hosts[host], self.now, &mut self.ears[host])
    }

    fn give(&mut self, host: usize) {
        self.act(host, |company, now, out| company.muster(now, &[host as u8; 100], out)).unwrap();
    }

    /// Lets time pass until something is so.
    fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let end = self.now + Duration::from_secs(30);
        while !is_so(self) {
            assert!(self.now < end, "{what}");
            self.step();
        }
    }

    fn step(&mut self) {
        for host in (0..self.hosts.len()).filter(|h| !self.dead.contains(h)).collect::<Vec<_>>() {
            if self.hosts[host].deadline() <= self.now {
                self.act(host, |company, now, out| company.expire(now, out));
            }
        }
        let sent: Vec<_> =
            (0..).zip(&mut self.ears).flat_map(|(n, e)| e.wire.drain(..).map(move |(to, p)| (n, to, p))).collect();
        if sent.is_empty() {
            self.now += Duration::from_millis(1);
        }
        for (from, to, mut packet) in sent {
            let Addr::Local(host) = to else { continue };
            if self.dead.contains(&(from as usize)) {
                continue;
            }
            let input = if self.dead.contains(&(host as usize)) {
                company::Input::Refused { addr: to, code: Code::Unreachable }
            } else {
                let (bytes, attached) = packet.parts_mut();
                self.sent += bytes.len();
                company::Input::Arrived { from: Addr::Local(from), bytes, attached }
            };
            let hears = if matches!(input, company::Input::Refused { .. }) { from } else { host } as usize;
            self.hosts[hears].handle(self.now, input, &mut self.ears[hears]);
        }
    }

    /// Who gave what these were told last; all were told the same.
    fn gave(&self, hosts: impl IntoIterator<Item = usize>) -> Vec<u8> {
        let last: Vec<_> = hosts.into_iter().map(|h| self.ears[h].mustered.last().cloned().flatten()).collect();
        assert!(last.iter().all(|o| *o == last[0]), "all have the same");
        let Some(Outcome::Gather(values)) = &last[0] else { panic!("{last:?}") };
        assert!(values.iter().all(|(_, v)| v.len() == 100));
        values.iter().map(|(_, v)| v[0]).collect()
    }

    fn all_told(&self, hosts: std::ops::Range<usize>, times: usize) -> bool {
        hosts.into_iter().all(|h| self.ears[h].mustered.len() == times)
    }
}

#[test]
fn st_4_each_host_gives_once_and_all_have_it() {
    let mut world = World::new(8);
    assert_eq!(world.hosts[3].hosts(), 8);
    for times in 1..=3 {
        (0..8).for_each(|host| world.give(host));
        world.until("all are told", |w| w.all_told(0..8, times));
        assert_eq!(world.gave(0..8), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
    assert_eq!(world.act(0, |company, now, out| company.muster(now, &[0; 100], out)), Ok(()));
    let twice = world.act(0, |company, now, out| company.muster(now, b"", out));
    assert_eq!(twice, Err(ReduceError::Busy));
}

/// Why there are musters at all.
#[test]
fn st_4_hosts_say_less_than_their_ranks_would() {
    let mut world = World::new(16);
    (0..16).for_each(|host| world.give(host));
    world.until("all are told", |w| w.all_told(0..16, 1));
    let mustered = std::mem::take(&mut world.sent);
    for host in 0..16 {
        for task in 0..TASKS {
            let value = if task == 0 { [host as u8; 100].to_vec() } else { Vec::new() };
            let seat = first(host) + task;
            world.act(host as usize, |c, now, out| c.reduce(now, seat, Gift::Gather(&value), out)).unwrap();
        }
    }
    world.until("all have reduced", |w| w.ears.iter().all(|e| e.reduced == TASKS as usize));
    assert!(world.sent > 3 * mustered, "{} and {mustered} bytes", world.sent);
}

#[test]
fn st_4_a_host_that_dies_is_not_waited_for() {
    let mut world = World::new(6);
    (1..6).for_each(|host| world.give(host));
    (0..200).for_each(|_| world.step());
    assert!(world.all_told(0..6, 0), "the first has not given");
    world.dead.insert(0);
    for host in 1..6 {
        world.act(host, |company, now, out| company.doubt(now, Addr::Local(0), out));
    }
    world.until("the others are told", |w| w.all_told(1..6, 1));
    assert_eq!(world.gave(1..6), [1, 2, 3, 4, 5]);
    (1..6).for_each(|host| world.give(host));
    world.until("and again", |w| w.all_told(1..6, 2));
}

/// Its number is another one then.
#[test]
fn st_4_a_host_gives_though_its_lowest_task_dies() {
    let mut world = World::new(3);
    (1..3).for_each(|host| world.give(host));
    (0..100).for_each(|_| world.step());
    let seats: Vec<Seat> = (0..TASKS).map(|n| first(1) + n).collect();
    world.act(1, |company, now, out| company.part(now, seats[0], out));
    world.until("a view without it", |w| {
        w.hosts.iter().all(|h| h.members().all(|(_, m)| m.view().is_none_or(|v| !v.contains(Task(TASKS)))))
    });
    world.give(0);
    world.until("all are told", |w| w.all_told(0..3, 1));
    assert_eq!(world.gave(0..3), [0, 1, 2]);
    // All of a host: then it is out, and the others go on.
    (0..3).filter(|&h| h != 1).for_each(|host| world.give(host));
    seats[1..].iter().for_each(|&seat| world.act(1, |company, now, out| company.part(now, seat, out)));
    world.until("the others are told", |w| [0, 2].iter().all(|&h: &usize| w.ears[h].mustered.len() == 2));
    assert_eq!(world.gave([0, 2]), [0, 2]);
    assert_eq!(world.act(1, |company, now, out| company.muster(now, b"", out)), Err(ReduceError::Outside));
}

#[test]
fn st_4_a_host_that_comes_takes_part_in_the_next() {
    let mut world = World::new(3);
    (0..3).for_each(|host| world.give(host));
    world.until("all are told", |w| w.all_told(0..3, 1));
    let seats: Vec<Seat> = (0..TASKS).map(|n| first(1) + n).collect();
    seats.iter().for_each(|&seat| world.act(1, |company, now, out| company.part(now, seat, out)));
    world.until("it is out", |w| w.hosts[0].hosts() == 2);
    world.hosts.push(company(3));
    world.ears.push(Ear::default());
    world.act(3, |c, now, out| c.join(now, Wanted::Again(Task(TASKS)), &[Addr::Local(2)], out));
    world.until("it is in", |w| w.hosts.iter().enumerate().all(|(n, h)| n == 1 || h.hosts() == 3));
    world.give(3);
    (0..100).for_each(|_| world.step());
    [0, 2].iter().for_each(|&host| world.give(host));
    world.until("all are told", |w| [0, 2].iter().all(|&h: &usize| w.ears[h].mustered.len() == 2));
    world.until("the new one, too", |w| w.ears[3].mustered.len() == 1);
    assert_eq!(world.gave([0, 2, 3]), [0, 3, 2], "in the order of their lowest ranks");
}
