//! A cluster member inside your own program: your socket, your loop, no daemon. `embed NAME LISTEN [SEED]…`
use phalanx_core::{Addr, Each, Instant, Machine};
use phalanx_protocol::member::{Event, Name};
use phalanx_protocol::node::{Input, Output, Start};
use std::{env, error::Error, io::ErrorKind, net::UdpSocket, time};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [name, listen, seeds @ ..] = &args[..] else { return Err("usage: embed NAME LISTEN [SEED]…".into()) };
    let socket = UdpSocket::bind(listen)?;
    let mut entropy = [0; 64];
    getrandom::fill(&mut entropy)?;
    // The cluster's key comes from your configuration; the name of a life must rise with each start.
    let mut start = Start::new(Name::new(name)?, Addr::Ip(socket.local_addr()?), [7; 32], entropy);
    start.incarnation = time::SystemTime::now().duration_since(time::UNIX_EPOCH)?.as_secs();
    for seed in seeds {
        start.seeds.push(Addr::Ip(seed.parse()?));
    }
    // Packets go to the socket, changes of membership to you.
    let mut out = Each(|output: Output<'_>| match output {
        Output::Transmit { to: Addr::Ip(to), packet, .. } => _ = socket.send_to(packet.bytes(), to),
        Output::Event(Event::Joined { member, version }) => println!("joined {} {version}", member.0),
        Output::Event(Event::Left { member, why, .. }) => println!("left {} {why:?}", member.0),
        _ => {}
    });
    let (begin, mut bytes) = (time::Instant::now(), [0; 65_536]);
    let now = || Instant(begin.elapsed().as_nanos() as u64);
    let mut node = start.node(now());
    loop {
        let wait = node.deadline().since(now()).0.clamp(1_000, 100_000_000);
        socket.set_read_timeout(Some(time::Duration::from_nanos(wait)))?;
        match socket.recv_from(&mut bytes) {
            Ok((n, from)) => node.handle(now(), Input::arrived(Addr::Ip(from), &mut bytes[..n]), &mut out),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => {}
            Err(e) => return Err(e.into()),
        }
        node.expire(now(), &mut out);
    }
}
