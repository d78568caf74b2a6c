//! Stories of whole groups (MM-3): many seeds of bad weather, and single faults one by one.

use super::net::{Net, Weather};
use super::{Config, Member};
use phalanx_core::{Duration, Instant};

const MS: u64 = 1_000_000;

/// After healing, everything is everywhere within this time.
const SETTLED_WITHIN: Duration = Duration::from_secs(4);

fn ms(n: u64) -> Duration {
    Duration(n * MS)
}

/// Short logs and outboxes, so that every bound is met.
fn tight() -> Config {
    Config { log_entries: 24, log_bytes: 4_000, outbox: 12, batch_bytes: 300, ..Config::default() }
}

fn chaos(seed: u64, members: u8) -> Net {
    let weather = Weather { delay: (ms(1), ms(2)), disk: (ms(0), ms(2)), ..Weather::FAIR };
    let mut net = Net::new(members, tight(), weather, seed);
    net.weather.loss = net.rng.unit() * 0.3;
    net.weather.duplication = net.rng.unit() * 0.2;
    net.weather.delay.1 = ms(2 + net.rng.below(40));
    net.weather.disk.1 = ms(1 + net.rng.below(20));
    net.weather.disk_loss = if net.rng.chance(0.5) { 0.05 } else { 0.0 };
    let end = net.now + ms(2_500);
    while net.now < end {
        let pause = Duration(net.rng.below(40 * MS));
        net.run_for(pause).unwrap_or_else(|v| panic!("seed {seed}: {v:?}"));
        let m = Member(net.rng.index(net.hosts.len()) as u8);
        let other = Member(net.rng.index(net.hosts.len()) as u8);
        let step = match net.rng.below(40) {
            0..=19 => net.submit(m),
            20..=24 => net.save(m),
            25..=26 => Ok(net.crash(m)),
            27..=31 => Ok(net.restart(m)),
            32 => Ok(net.isolate(m, true)),
            33 => Ok(net.cut_one_way(m, other, true)),
            34..=36 => Ok(net.cut.iter_mut().flatten().for_each(|c| *c = false)),
            37 => {
                let until = net.now + Duration(net.rng.below(700 * MS));
                Ok(net.pause(m, until))
            }
            _ => match net.leader() {
                Some(leader) if net.rng.chance(0.3) => Ok(net.crash(leader)),
                Some(leader) => net.submit(leader),
                None => Ok(()),
            },
        };
        step.unwrap_or_else(|v| panic!("seed {seed}: {v:?}"));
    }
    net
}

fn settle(net: &mut Net, seed: u64) {
    net.heal();
    let end = net.now + SETTLED_WITHIN;
    let mut outcome = Ok(());
    while net.now < end {
        net.run_for(ms(50)).unwrap_or_else(|v| panic!("seed {seed}: {v:?}"));
        for m in net.members() {
            net.save(m).unwrap_or_else(|v| panic!("seed {seed}: {v:?}"));
        }
        outcome = net.checks.complete(&net.boots());
        if outcome.is_ok() && net.hosts.iter().all(|h| !h.stalled) {
            return;
        }
    }
    for h in &net.hosts {
        eprintln!("{:#?}", h.order);
    }
    panic!("seed {seed}: not settled: {outcome:?}");
}

/// MM-3: whatever happens, all deliver the same in the same order; after healing all of it, soon.
#[test]
fn members_agree_whatever_happens_and_go_on_after_healing() {
    let (mut messages, mut restored, mut refused) = (0, 0, 0);
    for seed in 0..2_000 {
        let mut net = chaos(seed, 3);
        settle(&mut net, seed);
        messages += net.checks.messages();
        restored += net.hosts.iter().map(|h| h.restored).sum::<usize>();
        refused += net.hosts.iter().map(|h| h.refused).sum::<usize>();
    }
    // The weather must not be so bad that nothing is tested, nor so good that no bound is met.
    assert!(messages > 30_000 && restored > 100 && refused > 100, "{messages} {restored} {refused}");
}

#[test]
fn five_members_agree_too() {
    for seed in 10_000..10_100 {
        let mut net = chaos(seed, 5);
        settle(&mut net, seed);
    }
}
