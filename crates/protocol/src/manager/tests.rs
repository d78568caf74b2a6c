use super::net::{Net, Told, Weather};
use super::words::{Answer, Ask};
use phalanx_core::Duration;

const S: Duration = Duration::from_secs(1);

fn drain(n: usize) -> Ask {
    Ask::Drain { node: format!("n{n}"), drained: true }
}

/// CM-1: a group of three in different zones, one leader, and all nodes know it.
fn founded(nodes: usize, weather: Weather, seed: u64) -> Net {
    let mut net = Net::new(nodes, nodes as u32, weather, seed);
    let done = net.run_until(net.now + S * 30, |net| (0..nodes).all(|n| net.steward(n).group().is_some()));
    assert!(done, "seed {seed}: no group");
    let led = net.run_until(net.now + S * 10, |net| {
        (0..nodes)
            .filter_map(|n| net.steward(n).replica())
            .filter(|r| r.leader().is_some() && r.core().index() > 0)
            .count()
            == 3
    });
    assert!(led, "seed {seed}: no leader");
    net
}

#[test]
fn nodes_found_one_group_and_carry_out_what_it_decides() {
    let mut net = founded(9, Weather::FAIR, 1);
    let number = net.ask(8, drain(3));
    let done = net.run_until(net.now + S * 5, |net| {
        net.hosts[8].told.iter().any(|(_, t)| matches!(t, Told::Answered(n, Answer::Done) if *n == number))
    });
    assert!(done, "answered");
    net.run_for(S * 5);
    for h in &net.hosts {
        assert_eq!(h.told.iter().filter(|(_, t)| matches!(t, Told::Lease(_))).count(), 5);
    }
}
