//! With a key, and another's interests at heart.

use super::*;

/// Insider claims a huge path.
#[test]
fn an_insider_that_claims_a_huge_path_breaks_nothing() {
    let mut world = World::new(2);
    let b = world.know(0, 1);
    world.links[0].peers.at_mut(0).unwrap().1.largest = 65535;
    world.reliable(0, b, b"x");
    world.run_until(world.now + Duration::from_secs(1));
    let Said::Up(a, _) = world.said[1][0].clone() else { panic!() };
    world.reliable(1, a, &[3; 40_000]);
    world.call(1, |l, now, out| l.expire(now, out));
    assert!(world.wire.iter().all(|w| w.2.len() <= usize::from(LARGEST_DATAGRAM)), "{}", world.wire[0].2.len());
}

/// Insider RCL fuzz.
#[test]
fn an_insiders_rcl_headers_break_nothing() {
    use phalanx_wire::rcl as w;
    let config = rcl::Config::default();
    for seed in 0..400u64 {
        let mut rng = Rng::new(seed, 1);
        let mut sums = rcl::Sums::default();
        let mut now = Instant(1_000_000);
        let mut c = rcl::Connection::new(now, &config);
        for _ in 0..300 {
            match rng.u64() % 6 {
                0 => {
                    let n = (rng.u64() % 5000) as usize;
                    let _ = c.send(now, Port(1), Port(2), &vec![1; n], &config);
                }
                1 => while let Some(_p) = c.transmit(now, 20, 16, &config, &mut sums) {},
                2 => {
                    if c.deadline() != Instant::NEVER {
                        now = now.max(c.deadline());
                    }
                    if c.expire(now, &config, &mut sums).is_err() {
                        break;
                    }
                }
                3 => {
                    if rng.u64().is_multiple_of(20) {
                        c.hold();
                    } else {
                        c.release(&config, &mut sums, &mut |_, _, _| {});
                    }
                    c.watch(now, &config);
                }
                _ => {
                    let words = (rng.u64() % 4) as usize;
                    let sack: Vec<u64> = (0..words).map(|_| rng.u64() & rng.u64()).collect();
                    let near = |r: &mut Rng| match r.u64() % 8 {
                        0 => r.u64() as u32,
                        1 => u32::MAX - (r.u64() % 10) as u32,
                        _ => (r.u64() % 60) as u32,
                    };
                    let header = w::Header {
                        data: rng.u64().is_multiple_of(2),
                        fin: rng.u64().is_multiple_of(30),
                        ping: rng.u64().is_multiple_of(5),
                        credit: if rng.u64().is_multiple_of(3) { 0 } else { rng.u64() as u16 },
                        seq: near(&mut rng),
                        ack: near(&mut rng),
                        delay_us: rng.u64() as u16,
                        words: words as u8,
                    };
                    let mut out = Vec::new();
                    header.encode(&sack, &mut out);
                    for _ in 0..rng.u64() % 4 {
                        let n = (rng.u64() % 40) as usize;
                        let begins = rng.u64().is_multiple_of(2).then_some(w::Beginning {
                            from: Port(1),
                            to: Port(2),
                            whole: None,
                        });
                        let ends = rng.u64().is_multiple_of(2);
                        let begins = begins.map(|b| w::Beginning {
                            whole: (!ends).then(|| ((rng.u64() % (1 << 25)) as u32, rng.u64() as u32)),
                            ..b
                        });
                        w::put_frame(&mut out, begins, ends, n);
                        out.extend(std::iter::repeat_n(5, if rng.u64().is_multiple_of(10) { n / 2 } else { n }));
                    }
                    w::finish(&mut out);
                    c.receive(now, &out, None, &config, &mut sums, &mut |_, _, _| {});
                    c.watch(now, &config);
                }
            }
            now += Duration::from_micros(rng.u64() % 3000);
        }
    }
}

/// Insider MML fuzz, signed properly by itself.
#[test]
fn an_insiders_mml_packets_break_nothing() {
    use phalanx_wire::mml as w;
    let (us, them) = (Signer::fake(1), Signer::fake(2));
    let end = |s: &Signer, b, nonce| mml::End { identity: s.identity(), boot: boot(b), nonce };
    let config = mml::Config::default();
    for seed in 0..400u64 {
        let mut rng = Rng::new(seed, 1);
        let mut sums = mml::Sums::default();
        let mut now = Instant(1_000_000);
        let mut c = mml::Channel::new(mml::Context::new(&us, boot(1), 5, end(&them, 2, 6)));
        let theirs = mml::Context::new(&them, boot(2), 6, end(&us, 1, 5));
        for _ in 0..300 {
            match rng.u64() % 5 {
                0 => {
                    let kind = [mml::Kind::Unr, mml::Kind::Ack, mml::Kind::Nack][(rng.u64() % 3) as usize];
                    let n = (rng.u64() % 200) as usize;
                    let _ = c.send(now, kind, Ports { from: Port(1), to: Port(2) }, &vec![1; n], &config, &mut sums);
                }
                1 => {
                    for _ in 0..500 {
                        let mut b = Buf::new(20, 2000);
                        if !c.has_work() || !c.transmit(now, &mut b, &us, &config, &mut sums) {
                            break;
                        }
                    }
                }
                2 => {
                    if c.deadline() != Instant::NEVER {
                        now = now.max(c.deadline());
                    }
                    let _ = c.expire(now, &config);
                    assert!(c.deadline() > now || c.has_work(), "a timer that stays due");
                    let _ = c.undelivered().count();
                }
                _ => {
                    let kind = [
                        w::Kind::Unreliable,
                        w::Kind::Acked,
                        w::Kind::Nacked,
                        w::Kind::Ack,
                        w::Kind::Lost,
                        w::Kind::Tail,
                    ][(rng.u64() % 6) as usize];
                    let number = match rng.u64() % 8 {
                        0 => rng.u64() / 2,
                        1 => u64::MAX / 2 - rng.u64() % 3,
                        2 => rng.u64() % 1000,
                        _ => rng.u64() % 40,
                    };
                    let mut b = Buf::new(0, 300);
                    w::Packet::encode_header(kind, Port(1), Port(2), number, b.vec_mut());
                    match rng.u64() % 3 {
                        0 => {}
                        1 => b.extend(&(rng.u64() & rng.u64()).to_le_bytes()),
                        _ => b.extend(&(rng.u64() % (number + 1)).to_le_bytes()),
                    }
                    if kind == w::Kind::Unreliable {
                        let s = w::checksum(b.bytes());
                        b.extend(&s);
                    } else {
                        theirs.sign(&mut b, &them);
                    }
                    c.receive(now, b.bytes(), &config, &mut sums, &mut |_, _, _, _| {});
                }
            }
            now += Duration::from_micros(rng.u64() % 3000);
        }
    }
}
