//! Lanes: connected sockets on which answers leave faster.
//!
//! The kernel looks the route up for each datagram of an unconnected socket; a connected one remembers it. On
//! loopback that is 0.4 µs of 4. A lane is connected to one peer and only sends: all still arrives at the main
//! socket. Its source port is another, which the link does not mind, because it knows its peers by their sessions.
//!
//! A peer that does not know our session (it has restarted) asks who we are, at the address it sees. On a lane that
//! question would be lost. So a lane carries *answers* only, which the link marks: packets to a peer that it has just
//! heard. Without hearing anything the main socket speaks.

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

/// Peers that have a lane at once; a new one takes the place of the oldest.
const LANES: usize = 8;
/// Answers to one peer before it gets a lane.
const OPEN_AFTER: u32 = 64;
/// All lanes of a platform.
#[derive(Debug)]
pub(super) struct Lanes {
    /// The one opened last is first.
    lanes: Vec<Lane>,
    /// Who was answered last without having a lane, and how often in a row.
    candidate: Option<(SocketAddr, u32)>,
}

#[derive(Debug)]
struct Lane {
    to: SocketAddr,
    socket: UdpSocket,
}

impl Default for Lanes {
    /// Room for all is made at once: a lane is opened between packets, which allocate nothing.
    fn default() -> Self {
        Self { lanes: Vec::with_capacity(LANES), candidate: None }
    }
}

impl Lanes {
    /// Sends an answer on the lane to `to`; `None` when the main socket has to.
    #[inline]
    pub(super) fn answer(&mut self, local: SocketAddr, to: SocketAddr, bytes: &[u8]) -> Option<Result<(), Errno>> {
        let Some(at) = self.lanes.iter().position(|l| l.to == to) else {
            self.consider(local, to);
            return None;
        };
        match send(self.lanes[at].socket.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT) {
            Ok(_) => Some(Ok(())),
            Err(Errno::EAGAIN) => Some(Err(Errno::EAGAIN)),
            // The peer's port is closed, its route has changed: whatever it is, the main socket finds out and tells.
            Err(_) => {
                self.lanes.remove(at);
                None
            }
        }
    }

    /// An answer leaves by the main socket: after enough of them in a row the peer gets a lane.
    fn consider(&mut self, local: SocketAddr, to: SocketAddr) {
        let count = match self.candidate {
            Some((who, count)) if who == to => count + 1,
            _ => 1,
        };
        self.candidate = Some((to, count));
        if count >= OPEN_AFTER {
            self.candidate = None;
            // Without a lane everything still works: nobody needs to know why there is none.
            if let Ok(lane) = Lane::open(local, to) {
                self.lanes.truncate(LANES - 1);
                self.lanes.insert(0, lane);
            }
        }
    }

    /// Peers that have a lane.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.lanes.len()
    }
}

impl Lane {
    fn open(local: SocketAddr, to: SocketAddr) -> std::io::Result<Self> {
        let socket = UdpSocket::bind(SocketAddr::new(local.ip(), 0))?;
        socket.connect(to)?;
        Ok(Self { to, socket })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").unwrap()
    }

    /// Answers `peer`, `times` over; returns how many answers left on a lane.
    fn answer(lanes: &mut Lanes, local: SocketAddr, peer: SocketAddr, times: u32) -> usize {
        (0..times).filter(|_| lanes.answer(local, peer, b"answer").is_some()).count()
    }

    #[test]
    fn who_is_answered_often_gets_a_lane() {
        let (main, peer) = (socket(), socket());
        let (local, to) = (main.local_addr().unwrap(), peer.local_addr().unwrap());
        let mut lanes = Lanes::default();
        assert_eq!(answer(&mut lanes, local, to, OPEN_AFTER), 0);
        assert_eq!((lanes.len(), answer(&mut lanes, local, to, 10)), (1, 10));
        let mut got = [0; 10];
        assert_eq!(peer.recv_from(&mut got).unwrap().0, 6);
    }

    #[test]
    fn changing_peers_get_none() {
        let (main, peers) = (socket(), [socket(), socket()]);
        let local = main.local_addr().unwrap();
        let mut lanes = Lanes::default();
        for i in 0..1000 {
            answer(&mut lanes, local, peers[i % 2].local_addr().unwrap(), 1);
        }
        assert_eq!(lanes.len(), 0);
    }

    #[test]
    fn lanes_are_few_and_a_refused_one_is_given_up() {
        let main = socket();
        let local = main.local_addr().unwrap();
        let peers: Vec<UdpSocket> = (0..LANES + 3).map(|_| socket()).collect();
        let mut lanes = Lanes::default();
        for peer in &peers {
            answer(&mut lanes, local, peer.local_addr().unwrap(), OPEN_AFTER);
        }
        assert_eq!(lanes.len(), LANES);
        let last = peers.last().unwrap().local_addr().unwrap();
        drop(peers);
        // The first send after the port has closed earns an ICMP refusal, the next one reads it.
        assert!(answer(&mut lanes, local, last, 3) < 3);
        assert_eq!(lanes.len(), LANES - 1);
    }
}
