//! Each fault of a node does what it says, and ends when it is healed.

mod support;

use phalanx_core::{Code, Duration, Instant};
use phalanx_fault::{Call, Delay, Distribution, Kind, Outcome, Rule};
use phalanx_sim::{DiskFault, Drop, Fault, Latency, Network, NodeFault, Partition, Setup, Sim, State, StreamEvent};
use support::{Do, KEY, Probe, Saw, born, fixed, heard, ms, probes, seen, us};

/// Three probes, 100 µs apart; 0 holds a stream to 1, and 2 one to 0. It is 10 ms.
fn wired() -> Sim<Probe> {
    let mut sim = probes(3, fixed(100.0));
    sim.command(0, Do::Open(1));
    sim.command(2, Do::Open(0));
    sim.run_until(ms(10));
    sim
}

#[test]
fn a_stream_opens_on_both_sides_after_its_round_trip() {
    let sim = wired();
    assert_eq!(seen(&sim, 1, ms(1)), [(us(100), Saw::Stream(0, StreamEvent::Opened))]);
    let at_0 = [(us(100), Saw::Stream(2, StreamEvent::Opened)), (us(200), Saw::Stream(1, StreamEvent::Opened))];
    assert_eq!(seen(&sim, 0, ms(1)), at_0);
}

#[test]
fn a_dead_process_trips_its_wires_after_one_delay_and_refuses() {
    let mut sim = wired();
    sim.command(0, Do::Send(2, 10));
    sim.fault(Fault::crash(0));
    sim.command_at(ms(20), 1, Do::Send(0, 10));
    sim.command_at(ms(30), 1, Do::Open(0));
    sim.run_until(ms(40));
    assert_eq!(sim.state(0), State::ProcessDown);
    assert!(sim.process(0).is_none());
    assert_eq!(
        seen(&sim, 1, ms(10)),
        [
            (us(100), Saw::Stream(0, StreamEvent::Closed)),
            (us(10_200), Saw::Refused(0)),
            (us(20_200), Saw::Stream(0, StreamEvent::Refused))
        ]
    );
    let at_2 = [(us(100), Saw::Heard(0, vec![7; 10])), (us(100), Saw::Stream(0, StreamEvent::Closed))];
    assert_eq!(seen(&sim, 2, ms(10)), at_2, "what it had sent still arrives");
    assert_eq!(sim.stats().dropped(Drop::DeadProcess), 1);
}

#[test]
fn a_dead_host_is_silent() {
    let mut sim = wired();
    sim.fault(Fault::crash_host(0));
    sim.command_at(ms(20), 1, Do::Send(0, 10));
    sim.command_at(ms(30), 1, Do::Close(0));
    sim.command_at(ms(30), 1, Do::Open(0));
    sim.run_until(ms(60_000));
    assert_eq!((seen(&sim, 1, ms(10)), seen(&sim, 2, ms(10))), (vec![], vec![]));
    assert_eq!(sim.stats().dropped(Drop::DeadHost), 1);
}

#[test]
fn a_stream_that_is_closed_or_reset_is_so_for_the_other_side_too() {
    let mut sim = wired();
    sim.command(0, Do::Close(1));
    sim.fault(Fault::ResetStream(0, 2));
    sim.run_until(ms(20));
    assert_eq!(seen(&sim, 1, ms(10)), [(us(100), Saw::Stream(0, StreamEvent::Closed))]);
    assert_eq!(seen(&sim, 0, ms(10)), [(us(100), Saw::Stream(2, StreamEvent::Reset))]);
    assert_eq!(seen(&sim, 2, ms(10)), [(us(100), Saw::Stream(0, StreamEvent::Reset))]);
}

/// A cut swallows the notice of a death; the dead process's kernel tries again, as TCP does.
#[test]
fn a_cut_delays_the_notice_of_a_death_until_it_heals() {
    let mut sim = wired();
    sim.fault(Fault::Partition(Partition::between("cable", [0], [1])));
    sim.fault(Fault::crash(0));
    sim.fault_at(ms(1_000), Fault::HealPartition("cable".to_owned()));
    sim.run_until(ms(5_000));
    // Sent again 200, 600 and 1400 ms after the death.
    assert_eq!(seen(&sim, 1, ms(10)), [(us(1_400_100), Saw::Stream(0, StreamEvent::Closed))]);
}

/// However the opener dies while its stream opens, the other side is not left with half a stream.
#[test]
fn no_half_open_stream_remains_when_the_opener_dies_at_once() {
    let mut halves = 0;
    for seed in 0..40 {
        let network = Network { latency: Latency::Uniform { min_us: 50.0, max_us: 500.0 }, ..Network::default() };
        let mut sim = Sim::new(&Setup { seed, nodes: 2, network, ..Setup::default() }, born).unwrap();
        sim.keep_notes();
        sim.command_at(ms(1), 0, Do::Open(1));
        sim.fault_at(ms(1) + us(10), Fault::crash(0));
        sim.run_until(ms(10));
        let events: Vec<_> = seen(&sim, 1, ms(1)).into_iter().map(|s| s.1).collect();
        halves += usize::from(!events.is_empty());
        let whole = [Saw::Stream(0, StreamEvent::Opened), Saw::Stream(0, StreamEvent::Closed)];
        assert!(events.is_empty() || events == whole, "seed {seed}: {events:?}");
    }
    assert!(halves > 0);
}

#[test]
fn a_restarted_node_is_another_boot_with_the_disk_it_had() {
    let mut sim = probes(2, fixed(100.0));
    sim.command(0, Do::Write(5, KEY, 42));
    sim.command(0, Do::Ring(Duration::from_millis(50)));
    sim.run_until(ms(10));
    assert_eq!(seen(&sim, 0, ms(1)), [(us(1_000), Saw::Written(5, true))]);
    sim.fault(Fault::crash_host(0));
    sim.fault_at(ms(20), Fault::restart(0));
    sim.run_until(ms(100));
    assert_eq!(seen(&sim, 0, ms(10)), [(us(10_000), Saw::Started(2))], "and the old timer rings for nobody");
    assert_eq!(sim.process(0).unwrap().kept, Some(42));
    sim.command(1, Do::Send(0, 10));
    sim.run_until(ms(110));
    assert_eq!(heard(&sim, ms(100)).len(), 1);
}

/// A write under way is finished by the host of a dead process, and lost with a dead host.
#[test]
fn a_crash_of_the_host_loses_what_is_not_on_the_disk() {
    for (crash, kept) in [(Fault::crash(0), Some(42)), (Fault::crash_host(0), None)] {
        let mut sim = probes(1, fixed(100.0));
        sim.command(0, Do::Write(5, KEY, 42));
        sim.fault_at(ms(1) + us(500), crash);
        sim.fault_at(ms(5), Fault::restart(0));
        sim.run_until(ms(10));
        assert_eq!(sim.process(0).unwrap().kept, kept);
        assert_eq!(sim.notes().len(), 1, "the new process is not answered for the old one");
    }
}

#[test]
fn a_bad_disk_is_late_fails_loses_and_lies() {
    let written = |fault: DiskFault| {
        let mut sim = probes(1, fixed(100.0));
        sim.fault(Fault::Node(0, NodeFault::Disk(fault)));
        sim.command(0, Do::Write(1, KEY, 9));
        sim.run_until(ms(100));
        let answer = seen(&sim, 0, ms(1)).pop();
        (answer, sim.disk(0).read(KEY).map(<[u8]>::to_vec))
    };
    let late = DiskFault { delay: Duration::from_millis(20), ..DiskFault::default() };
    assert_eq!(written(late), (Some((us(21_000), Saw::Written(1, true))), Some(vec![9])));
    let failing = DiskFault { fail: 1.0, ..DiskFault::default() };
    assert_eq!(written(failing), (Some((us(1_000), Saw::Written(1, false))), None));
    assert_eq!(written(DiskFault { lose: 1.0, ..DiskFault::default() }), (None, None));
    let lying = DiskFault { forget: 1.0, ..DiskFault::default() };
    assert_eq!(written(lying), (Some((us(1_000), Saw::Written(1, true))), None));
}

#[test]
fn a_paused_node_reads_what_its_socket_held_and_rings_late() {
    let setup = Setup { nodes: 2, network: fixed(100.0), socket_packets: 3, ..Setup::default() };
    let mut sim = Sim::new(&setup, born).unwrap();
    sim.keep_notes();
    sim.command_at(ms(1), 0, Do::Ring(Duration::from_millis(5)));
    sim.fault_at(ms(2), Fault::pause(0));
    for _ in 0..5 {
        sim.command_at(ms(3), 1, Do::Send(0, 10));
    }
    sim.command_at(ms(4), 1, Do::Open(0));
    sim.fault_at(ms(50), Fault::resume(0));
    sim.run_until(ms(60));
    let mut expected = vec![(us(48_000), Saw::Heard(1, vec![7; 10])); 3];
    expected.push((us(48_000), Saw::Stream(1, StreamEvent::Opened)));
    expected.push((us(48_000), Saw::Rang(ms(50))));
    assert_eq!(seen(&sim, 0, ms(2)), expected);
    assert_eq!(seen(&sim, 1, ms(2)), [(us(2_200), Saw::Stream(0, StreamEvent::Opened))], "its kernel accepts");
    assert_eq!(sim.stats().dropped(Drop::SocketBuffer), 2);
}

#[test]
fn a_wrong_clock_shows_in_timers_and_in_what_the_process_is_told() {
    let mut sim = probes(1, fixed(100.0));
    sim.command_at(ms(10), 0, Do::Ring(Duration::from_millis(100)));
    let slow = NodeFault::Clock { rate: 0.5, step_ns: 1_000_000_000 };
    sim.fault_at(ms(10), Fault::Node(0, slow));
    sim.command_at(ms(10), 0, Do::Ring(Duration::from_millis(100)));
    sim.run_until(ms(500));
    // 100 ms of its own are 200 ms of ours, and it believes to be a second ahead.
    assert_eq!(seen(&sim, 0, ms(10)), [(us(200_000), Saw::Rang(ms(1_110)))]);
    sim.fault(Fault::HealAll { restart: false });
    sim.command(0, Do::Ring(Duration::from_millis(100)));
    sim.run_until(ms(1_000));
    assert_eq!(seen(&sim, 0, ms(500)).into_iter().map(|s| s.0).collect::<Vec<_>>(), [us(100_000)]);
}

#[test]
fn healing_ends_everything_and_starts_the_dead_when_asked() {
    for restart in [true, false] {
        let mut sim = probes(4, fixed(100.0));
        sim.fault(Fault::crash(0));
        sim.fault(Fault::pause(1));
        sim.fault(Fault::Node(2, NodeFault::Loss { inward: 1.0, outward: 1.0 }));
        sim.fault(Fault::Partition(Partition::between("p", [3], [1, 2])));
        sim.run_until(ms(10));
        sim.heal(restart);
        assert_eq!(sim.state(0) == State::ProcessDown, !restart);
        for (from, to) in [(3, 1), (2, 3), (3, 2), (1, 0)] {
            sim.command_at(ms(20), from, Do::Send(to, 10));
        }
        sim.run_until(ms(30));
        assert_eq!(heard(&sim, ms(20)).len(), if restart { 4 } else { 3 });
    }
}

/// FI-3: the injector of the real daemon, at the `wire` point of a simulated node.
#[test]
fn the_injector_drops_refuses_modifies_delays_and_copies() {
    let run = |node, kind: Kind| {
        let mut sim = probes(2, fixed(100.0));
        sim.fault(Fault::inject(node, Rule { times: 1, ..Rule::new(kind) }));
        for at in [10, 20] {
            sim.command_at(ms(at), 0, Do::Send(1, 10));
        }
        sim.run_until(ms(40));
        assert!(sim.report().is_green());
        let mut all = seen(&sim, 1, ms(10));
        all.extend(seen(&sim, 0, ms(10)));
        all
    };
    let clean = |at| (us(at), Saw::Heard(0, vec![7; 10]));
    assert_eq!(run(0, Kind::Drop), [clean(10_100)]);
    let refuse = Kind::Invocation { call: Call::Send, code: Some(Code::LocalResource) };
    let failed = Saw::Failed(Outcome::Refuse(Code::LocalResource));
    assert_eq!(run(0, refuse), [clean(10_100), (us(0), failed)]);
    let late = Kind::Delay(Delay::Lasting(Distribution::Fixed(Duration::from_millis(3))));
    assert_eq!(run(1, late), [clean(3_100), clean(10_100)]);
    assert_eq!(run(1, Kind::Reorder), [clean(10_100), clean(10_100)]);
    let modified = run(1, Kind::Modify { bits: 1 });
    // The copy goes to whichever node chance names.
    let copied = run(0, Kind::Inject { bits: 0 });
    assert_eq!(copied.iter().filter(|s| matches!(s.1, Saw::Heard(..))).count(), 3, "{copied:?}");
    assert!(modified.len() == 2 && modified[0] != clean(100) && modified[1] == clean(10_100), "{modified:?}");
}

#[test]
fn healing_the_injector_delivers_what_it_held() {
    let mut sim = probes(2, fixed(100.0));
    let long = Kind::Delay(Delay::Lasting(Distribution::Fixed(Duration::from_secs(1))));
    sim.fault(Fault::inject(1, Rule::new(long)));
    sim.command(0, Do::Send(1, 10));
    sim.fault_at(ms(20), Fault::Node(1, NodeFault::HealInjector));
    sim.run_until(ms(30));
    assert_eq!(heard(&sim, ms(1)), [(us(19_000), 1)]);
}

#[test]
fn a_rule_that_makes_no_sense_turns_the_run_red() {
    let mut sim = probes(2, fixed(100.0));
    sim.fault(Fault::inject(0, Rule { only: Some(vec!["a".to_owned()]), ..Rule::new(Kind::Drop) }));
    sim.run_until(ms(2));
    assert!(!sim.report().is_green());
}

#[test]
#[should_panic(expected = "node 0 is stuck")]
fn a_process_that_never_lets_time_go_on_is_named() {
    struct Stuck;
    impl phalanx_sim::Process for Stuck {
        type Command = ();
        type Note = ();
        fn start(&mut self, _: Instant, _: &mut phalanx_sim::Ctx<'_, Self>) {}
        fn arrived(
            &mut self,
            _: Instant,
            _: phalanx_core::Addr,
            _: phalanx_core::Buf,
            _: &mut phalanx_sim::Ctx<'_, Self>,
        ) {
        }
        fn expire(&mut self, _: Instant, _: &mut phalanx_sim::Ctx<'_, Self>) {}
        fn deadline(&self) -> Instant {
            Instant(5)
        }
    }
    Sim::new(&Setup::default(), |_| Stuck).unwrap().run_until(ms(1));
}

#[test]
fn a_new_process_is_in_no_group_until_it_joins() {
    let mut sim = probes(2, fixed(100.0));
    sim.command(1, Do::Join(4));
    sim.fault(Fault::restart(1));
    sim.command_at(ms(10), 0, Do::Cast(4, 1, 10));
    sim.command_at(ms(20), 1, Do::Join(4));
    sim.command_at(ms(30), 0, Do::Cast(4, 1, 10));
    sim.run_until(ms(40));
    assert_eq!(heard(&sim, ms(10)), [(us(20_100), 1)]);
}

/// A disk that recovers does not let a later write overtake an earlier one.
#[test]
fn writes_of_one_node_are_carried_out_in_order() {
    let mut sim = probes(1, fixed(100.0));
    let slow = DiskFault { delay: Duration::from_millis(20), ..DiskFault::default() };
    sim.fault(Fault::Node(0, NodeFault::Disk(slow)));
    sim.command(0, Do::Write(1, KEY, 1));
    sim.fault(Fault::Node(0, NodeFault::Disk(DiskFault::default())));
    sim.command(0, Do::Write(2, KEY, 2));
    sim.run_until(ms(50));
    assert_eq!(seen(&sim, 0, ms(1)), [(us(21_000), Saw::Written(1, true)), (us(21_000), Saw::Written(2, true))]);
    assert_eq!(sim.disk(0).read(KEY), Some(&[2][..]));
}
