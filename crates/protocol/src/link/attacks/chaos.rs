//! Loss, delay, replay, restarts, forgetting and sleep, drawn from seeds.

#![allow(clippy::needless_range_loop)] // Two nodes, by number, in several tables at once.

use super::*;

/// Random network with restarts; after it heals both meet and talk.
#[test]
fn after_any_chaos_two_nodes_meet_and_talk() {
    let mut worst = Duration::ZERO;
    let only: Option<u64> = std::env::var("SEED").ok().map(|s| s.parse().unwrap());
    for seed in 0..1500u64 {
        if only.is_some_and(|s| s != seed) {
            continue;
        }
        let mut rng = Rng::new(seed, 2);
        let mut world = World::with_rings(&vec![KeyRing::fake(1, 9); 2]);
        let mut boots = 10u8;
        let ids = [world.know(0, 1), world.know(1, 0)];
        let mut ids = ids;
        let mut late: Vec<(Addr, Addr, Buf)> = Vec::new();
        for _ in 0..rng.u64() % 150 {
            match rng.u64() % 16 {
                0 if rng.u64().is_multiple_of(4) => {
                    let at = (rng.u64() % 2) as usize;
                    boots += 1;
                    let config = Arc::new(Config { groups: true, ..Config::default() });
                    world.links[at] = Link::new(
                        config,
                        Arc::new(KeyRing::fake(1, 9)),
                        Signer::fake(at as u64),
                        boot(boots),
                        boots.into(),
                    );
                    ids[at] = world.know(at, 1 - at);
                }
                1 if rng.u64().is_multiple_of(3) && std::env::var_os("NOFORGET").is_none() => {
                    let at = (rng.u64() % 2) as usize;
                    let _ = world.links[at].forget(ids[at]);
                    ids[at] = world.know(at, 1 - at);
                }
                2 | 3 => {
                    let at = (rng.u64() % 2) as usize;
                    ids[at] = world.know(at, 1 - at);
                    let to = Endpoint { node: ids[at], port: Port(5) };
                    let _ = world.links[at].send_reliable(world.now, Port(4), to, b"noise");
                }
                4 if std::env::var_os("NOREPLAY").is_none() => {
                    if let Some(i) = (rng.u64() as usize).checked_rem(world.tape.len()) {
                        let (f, t, p) = world.tape[i].clone();
                        if let Addr::Local(n) = t {
                            world.arrive(n as usize, f, &p);
                        }
                    }
                }
                5 => {
                    world.now += Duration::from_millis(rng.u64() % 3000);
                }
                6 => {
                    if let Some((f, t, p, _)) = world.wire.pop_front() {
                        late.push((f, t, p));
                    }
                }
                7 => {
                    if let Some((f, Addr::Local(n), p)) = late.pop() {
                        world.arrive(n as usize, f, &p);
                    }
                }
                8 | 9 => {
                    world.wire.pop_front();
                }
                10 => {
                    world.now += Duration::from_millis(rng.u64() % 30);
                    world.expire_due();
                }
                _ => {
                    world.expire_due();
                    if let Some((f, Addr::Local(n), p, _)) = world.wire.pop_front() {
                        world.arrive(n as usize, f, &p);
                    }
                }
            }
            while world.wire.len() > 50 {
                world.wire.pop_front();
            }
        }
        world.now += Duration::from_millis(1);
        for at in 0..2 {
            ids[at] = world.know(at, 1 - at);
        }
        // Healed. A node that sends again whenever it is told of a loss gets its word through soon.
        let start = world.now;
        let speaker = (seed % 2) as usize;
        world.said.iter_mut().for_each(Vec::clear);
        if only.is_some() {
            for w in 0..2 {
                for (s, _g, p) in world.links[w].peers.iter() {
                    println!(
                        "{w}: slot {s} {:?} dialed {} session {:?} attempt {:?}",
                        p.addr,
                        p.dialed,
                        p.session.as_ref().map(|s| (
                            s.epoch,
                            s.theirs >> 24,
                            s.boot.0[0],
                            s.nonces.0 % 10000,
                            s.nonces.1 % 10000
                        )),
                        p.attempt.as_ref().map(|a| (
                            a.nonce % 10000,
                            a.epoch,
                            a.tries,
                            world.now.since(a.started_at),
                            a.candidate.as_ref().map(|c| (c.boot.0[0], c.nonces.1 % 10000))
                        ))
                    );
                }
                println!("   boot {:?}", world.links[w].boot());
            }
        }
        world.reliable(speaker, ids[speaker], b"healed");
        let mut done = None;
        let mut traced = world.tape.len();
        for _ in 0..1300 {
            world.deliver_all();
            if only.is_some() {
                for (f, _, p) in &world.tape[traced..] {
                    let d = |w: usize| {
                        format!(
                            "{:?} {:?}",
                            world.links[w].counters().dropped(Dropped::UnknownSession),
                            Dropped::ALL.map(|r| world.dropped(w, r))
                        )
                    };
                    let what = match kind_of(p.bytes()) {
                        Ok(Kind::Hello) => {
                            let mut b = p.bytes().to_vec();
                            let l = phalanx_wire::outer::Long::parse(&b).unwrap();
                            let c = KeyRing::fake(1, 9).hello(1, &l.boot).unwrap();
                            let (h, s) = b.split_at_mut(32);
                            let x = c.open(l.counter, h, s).unwrap();
                            format!(
                                "{:?}",
                                phalanx_wire::hello::Hello::parse(x).map(|h| (
                                    h.to.0[0],
                                    h.nonce % 10000,
                                    h.echo % 10000,
                                    h.holds % 10000,
                                    h.done
                                ))
                            )
                        }
                        k => format!("{k:?} {:?}", Short::parse(p.bytes())),
                    };
                    println!("{} {f:?} {what} | {} | {}", world.now.since(start), d(0), d(1));
                }
                traced = world.tape.len();
                for w in 0..2 {
                    if !world.said[w].is_empty() {
                        println!("   {w} said {:?}", world.said[w]);
                    }
                }
            }
            if world.said[1 - speaker].iter().any(|s| matches!(s, Said::Message(_, m) if m == b"healed")) {
                done = Some(world.now.since(start));
                break;
            }
            let downs = world.said[speaker].iter().filter(|s| matches!(s, Said::Down(..))).count();
            if downs > 0 {
                world.said[speaker].clear();
                world.reliable(speaker, ids[speaker], b"healed");
            }
            world.now += Duration::from_millis(10);
        }
        let took = done.unwrap_or(Duration::from_secs(99));
        if took > Duration::from_millis(600) {
            println!("seed {seed} took {took}");
        }
        worst = worst.max(took);
    }
    assert!(worst < Duration::from_secs(2), "worst {worst}");
}

/// At most once, in order, nothing lost without a word, no nonce twice.
#[test]
fn chaos_keeps_every_promise() {
    let mut bad = Vec::new();
    let (mut runs, mut sent, mut got, mut downs, mut seals, mut stepped) = (0u64, 0u64, 0u64, 0u64, 0u64, 0u64);
    for seed in 0..1500u64 {
        runs += 1;
        let mut rng = Rng::new(seed, 5);
        let mut ring = KeyRing::fake(1, 9);
        ring.add(2, [3; 32]).unwrap();
        let mut world = World::with_rings(&vec![ring.clone(); 2]);
        crate::link::seal::USED.with_borrow_mut(|s| s.clear());
        let mut boots = 10u8;
        let mut ids = [world.know(0, 1), world.know(1, 0)];
        let mut late: Vec<(Addr, Addr, Buf)> = Vec::new();
        let mut serial = 0u32;
        // Messages taken and not yet excused by a Down, a restart or a forget, by sender.
        let mut open: [Vec<u32>; 2] = [vec![], vec![]];
        let mut newest = [0u32; 2];
        let mut seen = std::collections::BTreeSet::new();
        let steps = rng.u64() % 200;
        for step in 0..steps + 1600 {
            stepped += 1;
            let calm = step >= steps;
            let at = (rng.u64() % 2) as usize;
            match if calm { 99 } else { rng.u64() % 17 } {
                0 if rng.u64().is_multiple_of(6) => {
                    boots += 1;
                    let config = Arc::new(Config { groups: true, ..Config::default() });
                    world.links[at] =
                        Link::new(config, Arc::new(ring.clone()), Signer::fake(at as u64), boot(boots), boots.into());
                    ids[at] = world.know(at, 1 - at);
                    open[at].clear();
                    open[1 - at].retain(|_| true);
                }
                1 if rng.u64().is_multiple_of(4) => {
                    let _ = world.links[at].forget(ids[at]);
                    ids[at] = world.know(at, 1 - at);
                    open[at].clear();
                }
                2..=4 => {
                    ids[at] = world.know(at, 1 - at);
                    serial += 1;
                    let mut m = vec![0; if rng.u64().is_multiple_of(8) { 4000 } else { 4 }];
                    m[..4].copy_from_slice(&serial.to_le_bytes());
                    let to = Endpoint { node: ids[at], port: Port(5) };
                    if world.links[at].send_reliable(world.now, Port(4), to, &m).is_ok() {
                        open[at].push(serial);
                    }
                }
                5 => {
                    if let Some(i) = (rng.u64() as usize).checked_rem(world.tape.len()) {
                        let (f, t, p) = world.tape[i].clone();
                        if let Addr::Local(n) = t {
                            world.arrive(n as usize, f, &p);
                        }
                    }
                }
                6 => {
                    world.now += Duration::from_millis(rng.u64() % 3000);
                }
                7 => {
                    if let Some((f, t, p, _)) = world.wire.pop_front() {
                        late.push((f, t, p));
                    }
                }
                8 => {
                    if let Some((f, Addr::Local(n), p)) = late.pop() {
                        world.arrive(n as usize, f, &p);
                    }
                }
                9 => {
                    world.wire.pop_front();
                }
                10 => {
                    world.now += Duration::from_millis(rng.u64() % 30);
                    world.expire_due();
                }
                11 => {
                    let mut r = ring.clone();
                    if rng.u64().is_multiple_of(2) {
                        r.seal_with(2).unwrap();
                    }
                    world.links[at].set_ring(Arc::new(r));
                }
                99 => {
                    world.deliver_all();
                    world.now += Duration::from_millis(10);
                }
                _ => {
                    world.expire_due();
                    if let Some((f, Addr::Local(n), p, _)) = world.wire.pop_front() {
                        world.arrive(n as usize, f, &p);
                    }
                }
            }
            if !calm {
                while world.wire.len() > 60 {
                    world.wire.pop_front();
                }
            }
            for w in 0..2 {
                for said in std::mem::take(&mut world.said[w]) {
                    match said {
                        Said::Message(_, m) => {
                            let n = u32::from_le_bytes([m[0], m[1], m[2], m[3]]);
                            if !seen.insert(n) {
                                bad.push(format!("seed {seed}: {n} twice"));
                            }
                            if n < newest[1 - w] {
                                bad.push(format!("seed {seed}: {n} after {}", newest[1 - w]));
                            }
                            newest[1 - w] = n;
                        }
                        Said::Down(..) => {
                            downs += 1;
                            open[w].clear();
                        }
                        _ => {}
                    }
                }
            }
        }
        sent += u64::from(serial);
        got += seen.len() as u64;
        seals += crate::link::seal::USED.with_borrow(|s| s.len() as u64);
        for w in 0..2 {
            let lost: Vec<_> = open[w].iter().filter(|n| !seen.contains(n)).collect();
            if !lost.is_empty() {
                bad.push(format!("seed {seed}: node {w} lost {lost:?} in silence"));
            }
        }
    }
    println!("runs {runs} steps {stepped} sent {sent} got {got} downs {downs} seals {seals}");
    assert!(bad.is_empty(), "{} {:?}", bad.len(), &bad[..bad.len().min(12)]);
}
