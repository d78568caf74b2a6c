//! Hosts of a job that speak with each other, over a wire in the test's hands.

use super::*;
use crate::link::seal::KeyRing;
use crate::link::sign::Signer;
use phalanx_core::{Boot, Code};
use std::sync::Arc;

const JOB: u64 = 7;

/// What a company said, owned.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Said {
    Host(Addr, Vec<u8>),
    HostGone(Addr, bool),
    Installed(Seat, usize),
    Reduced(Seat, Outcome),
}

#[derive(Default)]
struct Ear {
    wire: Vec<(Addr, Buf)>,
    said: Vec<Said>,
}

impl<'a> Sink<Output<'a>> for Ear {
    fn push(&mut self, output: Output<'a>) {
        match output {
            Output::Transmit { to, packet, .. } => self.wire.push((to, packet)),
            Output::Host { from, bytes } => self.said.push(Said::Host(from, bytes.to_vec())),
            Output::HostGone { addr, certain } => self.said.push(Said::HostGone(addr, certain)),
            Output::Said { seat, what: view::Output::Installed { view, .. } } => {
                self.said.push(Said::Installed(seat, view.tree().len() as usize));
            }
            Output::Reduced { seat, what: Reduced::Done(outcome) } => {
                self.said.push(Said::Reduced(seat, outcome.clone()));
            }
            _ => {}
        }
    }
}

fn at(host: u32) -> Addr {
    Addr::Local(host)
}

fn company(host: u32, start: u8) -> Company {
    let ring = Arc::new(KeyRing::new(1, [9; 32]));
    let signer = Signer::fake(u64::from(host) << 8 | u64::from(start));
    let boot = Boot([host as u8 ^ start.rotate_left(4) ^ 0x5a; 16]);
    let link = Link::new(Arc::new(Company::link_config()), ring, signer, boot, u64::from(host));
    Company::new(link, 1400, at(host), JOB, Config::default(), 100 * (host + 1))
}

/// Hosts, and what is under way between them.
struct World {
    now: Instant,
    hosts: Vec<Company>,
    ears: Vec<Ear>,
    /// Nothing arrives.
    is_cut: bool,
}

impl World {
    fn new(n: u32) -> Self {
        let hosts: Vec<_> = (0..n).map(|host| company(host, 0)).collect();
        Self { now: Instant(1_000_000), ears: hosts.iter().map(|_| Ear::default()).collect(), hosts, is_cut: false }
    }

    fn act<R>(&mut self, host: usize, act: impl FnOnce(&mut Company, Instant, &mut Ear) -> R) -> R {
        act(&mut self.hosts[host], self.now, &mut self.ears[host])
    }

    /// Lets so much time pass, in steps.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            for host in 0..self.hosts.len() {
                for _ in 0..16 {
                    if self.hosts[host].deadline() > self.now {
                        break;
                    }
                    self.act(host, |company, now, out| company.expire(now, out));
                }
            }
            let sent: Vec<_> = (0..)
                .zip(&mut self.ears)
                .flat_map(|(n, e)| e.wire.drain(..).map(move |(to, p)| (at(n), to, p)))
                .collect();
            let is_quiet = sent.is_empty();
            for (from, to, mut packet) in sent {
                let Addr::Local(to) = to else { continue };
                if self.is_cut || to as usize >= self.hosts.len() {
                    continue;
                }
                let (bytes, attached) = packet.parts_mut();
                let input = Input::Arrived { from, bytes, attached };
                self.hosts[to as usize].handle(self.now, input, &mut self.ears[to as usize]);
            }
            if is_quiet {
                self.now += Duration::from_millis(1);
            }
        }
    }

    fn tell(&mut self, from: usize, to: u32, bytes: &[u8]) -> Result<(), Code> {
        self.act(from, |company, now, out| company.tell_host(now, at(to), bytes, out))
    }

    /// Numbers that a host was told by another one, one in each frame.
    fn told(&self, host: usize, from: u32) -> Vec<u32> {
        let number = |bytes: &[u8]| bytes.try_into().map(u32::from_le_bytes).expect("a number");
        let said = self.ears[host].said.iter();
        said.filter_map(|s| match s {
            Said::Host(f, bytes) if *f == at(from) => Some(number(bytes)),
            _ => None,
        })
        .collect()
    }
}

/// CM-2: what a rank wrote comes once and in order, also when hosts did not hear each other for longer than a session lives.
#[test]
fn frames_come_once_and_in_order_whatever_becomes_of_sessions() {
    let mut world = World::new(2);
    (0..100_u32).for_each(|n| world.tell(0, 1, &n.to_le_bytes()).expect("room"));
    world.run(Duration::from_millis(50));
    assert_eq!(world.told(1, 0), (0..100).collect::<Vec<_>>());
    assert_eq!(world.hosts[0].waits_for_host(at(1)), 0, "all is acknowledged");
    world.is_cut = true;
    (100..200_u32).for_each(|n| world.tell(0, 1, &n.to_le_bytes()).expect("room"));
    (0..10_u32).for_each(|n| world.tell(1, 0, &n.to_le_bytes()).expect("room"));
    world.run(Duration::from_secs(20));
    assert!(world.ears[0].said.contains(&Said::HostGone(at(1), false)), "it does not answer");
    world.is_cut = false;
    (200..210_u32).for_each(|n| world.tell(0, 1, &n.to_le_bytes()).expect("room"));
    world.run(Duration::from_secs(10));
    assert_eq!(world.told(1, 0), (0..210).collect::<Vec<_>>());
    assert_eq!(world.told(0, 1), (0..10).collect::<Vec<_>>());
    assert_eq!(world.hosts[0].waits_for_host(at(1)), 0);
}

/// What nobody takes is refused, and nothing of what was taken is lost.
#[test]
fn a_host_that_does_not_listen_is_told_so_much() {
    let mut world = World::new(2);
    world.is_cut = true;
    let frame = vec![0; 64 << 10];
    let taken = (0..100).take_while(|_| world.tell(0, 1, &frame).is_ok()).count();
    assert!((10..=16).contains(&taken), "{taken} of 64 KiB each");
    assert_eq!(world.tell(0, 1, &frame), Err(Code::LocalResource));
    world.is_cut = false;
    world.run(Duration::from_secs(8));
    let came = world.ears[1].said.iter().filter(|s| matches!(s, Said::Host(..))).count();
    assert_eq!(came, taken);
    world.tell(0, 1, &frame).expect("there is room again");
}

/// A process that starts where another one was is told nothing that was meant for that one, and everybody learns that the first is gone.
#[test]
fn who_starts_at_an_address_proves_that_who_was_there_is_gone() {
    let mut world = World::new(2);
    world.tell(0, 1, &1_u32.to_le_bytes()).unwrap();
    world.tell(1, 0, &1_u32.to_le_bytes()).unwrap();
    world.run(Duration::from_millis(100));
    world.hosts[1] = company(1, 1);
    world.ears[1] = Ear::default();
    world.tell(1, 0, &2_u32.to_le_bytes()).unwrap();
    world.run(Duration::from_secs(3));
    assert_eq!(world.told(0, 1), [1, 2]);
    assert!(world.ears[0].said.contains(&Said::HostGone(at(1), true)), "{:?}", world.ears[0].said);
    assert!(world.told(1, 0).is_empty());
}

/// RV-1: hosts make the first view by themselves, some later than others; what tasks say meanwhile waits for the last.
#[test]
fn a_host_that_is_late_misses_no_letter() {
    let mut world = World::new(3);
    let firsts: Vec<Seat> = (0..3).map(|host| world.act(host, |company, _, out| company.begin(JOB + 1, out))).collect();
    let person = |task: u32| Person { host: at(task / 2), boot: firsts[task as usize / 2] + task % 2, stint: 0 };
    let view = View::first(2, (0..6).map(person)).unwrap();
    let enter = |world: &mut World, host: u32| {
        let tasks = [Task(2 * host), Task(2 * host + 1)];
        let first = world.act(host as usize, |company, now, out| company.enter_all(now, &tasks, &view, out));
        assert_eq!(first, firsts[host as usize]);
        for seat in [first, first + 1] {
            world.act(host as usize, |company, now, out| company.reduce(now, seat, Gift::Sum(1), out)).unwrap();
        }
    };
    [2, 1].into_iter().for_each(|host| enter(&mut world, host));
    world.run(Duration::from_millis(500));
    enter(&mut world, 0);
    world.run(Duration::from_millis(500));
    for (host, first) in firsts.iter().enumerate() {
        for seat in [*first, first + 1] {
            let said = &world.ears[host].said;
            assert!(said.contains(&Said::Reduced(seat, Outcome::Sum(6))), "host {host}: {said:?}");
        }
        assert_eq!(world.hosts[host].strays(), 0);
    }
}
