//! A host in a process of its own, for tests that stop or kill one: says where it is, and sends back what it hears.
//!
//! It ends when its standard input does, so that no test leaves one behind.

use phalanx_core::Instant;
use phalanx_papers::party::{FROM, KEY, TO};
use phalanx_papers::{OverUdp, World};
use phalanx_protocol::link::rcl::Payload;
use phalanx_protocol::link::seal::KeyRing;
use phalanx_protocol::link::sign::Signer;
use phalanx_protocol::link::{Config, Output};
use std::io::Read;

fn main() {
    let world = OverUdp::default();
    let signer = Signer::generate(&[77; 32]);
    let mut host = phalanx_daemon::Host::new(world.open(), Config::default(), KeyRing::new(1, KEY), signer);
    println!("{}", host.local());
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let mut echoes = Vec::new();
    loop {
        host.wait(Instant::NEVER);
        let polled = host.poll(&mut |output| {
            if let Output::Message { mut from, payload: Payload::Bytes(bytes), .. } = output {
                from.port = TO;
                echoes.push((from, bytes.to_vec()));
            }
        });
        polled.expect("the platform works");
        for (to, message) in echoes.drain(..) {
            host.send_reliable(FROM, to, &message).expect("an echo fits");
        }
    }
}
