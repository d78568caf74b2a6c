//! What somebody tried who meant us harm, and what bad luck does alone.
//!
//! Most failed when they were written, some are attempts that held; each name says what must hold. `outsiders` have no key of the ring but can record, replay, forge
//! addresses and flip bits; `insiders` have one; `luck` needs nobody; `chaos` is all of it at once, by seed.

mod chaos;
mod insiders;
mod luck;
mod outsiders;

use super::count::Dropped;
use super::tests::*;
use super::*;
use phalanx_core::Group;
use phalanx_wire::outer::{Kind, kind_of};

const K: [u8; 32] = [9; 32];
fn ring() -> KeyRing {
    KeyRing::new(1, K)
}
fn group() -> Group {
    Group { number: 3, ttl: 1 }
}
fn shout(world: &mut World, at: usize, text: &[u8]) {
    world.call(at, |link, _, out| link.send_group(Port(1), group(), Port(2), text, out)).unwrap();
}
fn heard(world: &World, at: usize, text: &[u8]) -> usize {
    world.said[at].iter().filter(|s| matches!(s, Said::Datagram(_, p) if p == text)).count()
}
/// The first hello that `at` would say to anybody: a recording.
fn recording(l: &mut Link) -> Buf {
    struct P(Vec<Buf>);
    impl<'a> Sink<Output<'a>> for P {
        fn push(&mut self, o: Output<'a>) {
            if let Output::Transmit { packet, .. } = o {
                self.0.push(packet);
            }
        }
    }
    let mut p = P(Vec::new());
    let n = l.peer(Addr::Local(4242), 1400).unwrap();
    l.dial(Instant(1), n.slot());
    l.expire(Instant(1), &mut p);
    l.forget(n).unwrap();
    p.0.remove(0)
}
