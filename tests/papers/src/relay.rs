//! A stranger on the path between two UDP hosts: it forwards, records, and speaks out of turn.
//!
//! ```text
//!   A ──▶ front │ relay │ back ──▶ B      A knows B as `front`, B knows A as `back`
//! ```

use crate::world::ip;
use phalanx_core::Addr;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

/// No datagram is longer.
const LONGEST: usize = 1 << 16;

/// An end of the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Who dials.
    A,
    /// Who is dialled.
    B,
}

/// The stranger. It has no thread: [`Relay::pump`] is its turn.
pub struct Relay {
    front: UdpSocket,
    back: UdpSocket,
    a: Option<SocketAddr>,
    b: SocketAddr,
    /// Every packet seen, with the side that sent it.
    pub tape: Vec<(Side, Vec<u8>)>,
    /// Whether packets go on to the other side.
    pub forwards: bool,
}

impl Relay {
    /// A relay to the host at `b`.
    #[must_use]
    pub fn to(b: Addr) -> Self {
        let open = || {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has free ports");
            socket.set_nonblocking(true).expect("sockets need not block");
            socket
        };
        Self { front: open(), back: open(), a: None, b: ip(b), tape: Vec::new(), forwards: true }
    }

    /// Where A finds it.
    #[must_use]
    pub fn front(&self) -> Addr {
        Addr::Ip(self.front.local_addr().expect("it is bound"))
    }

    /// Where B is from now on: it was restarted elsewhere.
    pub fn redirect(&mut self, b: Addr) {
        self.b = ip(b);
    }

    /// Moves what has arrived; true when something had.
    pub fn pump(&mut self) -> bool {
        let before = self.tape.len();
        let mut bytes = vec![0; LONGEST];
        while let Some((length, from)) = receive(&self.front, &mut bytes) {
            self.a = Some(from);
            self.pass(Side::A, &bytes[..length]);
        }
        while let Some((length, _)) = receive(&self.back, &mut bytes) {
            self.pass(Side::B, &bytes[..length]);
        }
        self.tape.len() > before
    }

    fn pass(&mut self, from: Side, bytes: &[u8]) {
        self.tape.push((from, bytes.to_vec()));
        if self.forwards {
            self.say(if from == Side::A { Side::B } else { Side::A }, bytes);
        }
    }

    /// Sends `bytes` to a side, as if they came from the other.
    pub fn say(&self, to: Side, bytes: &[u8]) {
        let sent = match (to, self.a) {
            (Side::B, _) => self.back.send_to(bytes, self.b),
            (Side::A, Some(a)) => self.front.send_to(bytes, a),
            (Side::A, None) => return,
        };
        // A side that is gone refuses; the stranger does not care.
        let _ = sent;
    }

    /// What a side has sent so far.
    pub fn recorded(&self, from: Side) -> Vec<Vec<u8>> {
        self.tape.iter().filter(|t| t.0 == from).map(|t| t.1.clone()).collect()
    }
}

fn receive(socket: &UdpSocket, bytes: &mut [u8]) -> Option<(usize, SocketAddr)> {
    loop {
        match socket.recv_from(bytes) {
            Ok(got) => return Some(got),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return None,
            // An earlier packet was refused: that is told here, once.
            Err(_) => {}
        }
    }
}
