//! One armed timer for each node: set, moved forward and back, it rings once and at its time.

mod support;

use phalanx_core::{Addr, Buf, Duration, Instant};
use phalanx_sim::{Ctx, Process, Setup, Sim};
use support::{Do, Saw, fixed, ms, probes, seen, us};

fn ring(after_ms: u64) -> Do {
    Do::Ring(Duration::from_millis(after_ms))
}

#[test]
fn a_timer_that_is_moved_rings_once_at_its_last_time() {
    for (first, second, rings) in [(10, 5, 5), (5, 10, 10), (7, 7, 7)] {
        let mut sim = probes(1, fixed(100.0));
        sim.command(0, ring(first));
        sim.command(0, ring(second));
        sim.run_until(ms(100));
        assert_eq!(seen(&sim, 0, ms(1)), [(us(rings * 1_000), Saw::Rang(ms(1 + rings)))]);
    }
}

#[test]
fn far_timers_ring_at_their_time_beside_near_ones() {
    let mut sim = probes(3, fixed(100.0));
    sim.command(0, ring(1));
    sim.command(1, ring(90_000));
    sim.command(2, ring(3_600_000));
    sim.run_until(ms(4_000_000));
    let rang: Vec<_> = sim.notes().iter().map(|n| (n.0, n.1)).collect();
    assert_eq!(rang, [(ms(2), 0), (ms(90_001), 1), (ms(3_600_001), 2)]);
}

/// Pushes its timeout back at each message, as every failure detector does.
struct Watch {
    deadline: Instant,
    alarms: u32,
}

impl Process for Watch {
    type Command = ();
    type Note = ();
    fn start(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        self.command(now, (), net);
    }
    fn arrived(&mut self, now: Instant, _: Addr, _: Buf, _: &mut Ctx<'_, Self>) {
        self.deadline = now + Duration::from_millis(100);
    }
    fn expire(&mut self, _: Instant, _: &mut Ctx<'_, Self>) {
        self.deadline = Instant::NEVER;
        self.alarms += 1;
    }
    fn deadline(&self) -> Instant {
        self.deadline
    }
    fn command(&mut self, _: Instant, (): (), net: &mut Ctx<'_, Self>) {
        net.send(Addr::Local(1 - net.node()), Buf::copy_of(b"alive"));
    }
}

#[test]
fn a_timeout_that_each_message_pushes_back_costs_no_event_for_each_message() {
    let setup = Setup { nodes: 2, network: fixed(100.0), ..Setup::default() };
    let mut sim = Sim::new(&setup, |_| Watch { deadline: Instant::NEVER, alarms: 0 }).unwrap();
    for n in 0..1_000 {
        sim.command_at(ms(1 + n), (n % 2) as u32, ());
    }
    sim.run_until(ms(2_000));
    let stats = sim.stats();
    assert_eq!((stats.delivered, sim.process(0).unwrap().alarms, sim.process(1).unwrap().alarms), (1_002, 1, 1));
    assert!(stats.stale_timers < 30, "{} timers came to nothing", stats.stale_timers);
}

/// A panic on one thread ends the run on all of them.
#[test]
#[should_panic]
fn a_process_that_panics_ends_a_run_of_two_threads() {
    struct Bomb;
    impl Process for Bomb {
        type Command = ();
        type Note = ();
        fn start(&mut self, _: Instant, net: &mut Ctx<'_, Self>) {
            assert!(net.node() != 3, "planted");
        }
        fn arrived(&mut self, _: Instant, _: Addr, _: Buf, _: &mut Ctx<'_, Self>) {}
        fn expire(&mut self, _: Instant, _: &mut Ctx<'_, Self>) {}
        fn deadline(&self) -> Instant {
            Instant::NEVER
        }
    }
    let setup = Setup { nodes: 4, threads: 2, alone_below: 0, ..Setup::default() };
    Sim::new(&setup, |_| Bomb).unwrap().run_until(ms(10));
}
