//! Waking a thread that is blocked inside a receive: a datagram to ourselves.
//!
//! Nothing else ends a blocked receive without signals. The flag is set before the datagram leaves and read before
//! each wait, so no call is lost: either the flag is seen, or the datagram arrives during the wait. Should a packet
//! filter of this host eat it, the wait ends after [`super::LONGEST_BLOCK`].

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

/// Rings inside the receive of the platform it was made for.
#[derive(Debug)]
pub(super) struct Bell {
    socket: UdpSocket,
    address: SocketAddr,
    rung: AtomicBool,
}

impl Bell {
    pub(super) fn for_socket(at: SocketAddr) -> io::Result<Self> {
        let own = match at.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        let socket = UdpSocket::bind((own, 0))?;
        socket.set_nonblocking(true)?;
        socket.connect(SocketAddr::new(own, at.port()))?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address, rung: AtomicBool::new(false) })
    }

    /// Wakes the receiver. Many calls before it looks are one.
    pub(super) fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.nudge();
        }
    }

    /// Ends the receiver's receive, and leaves no trace of a call.
    pub(super) fn nudge(&self) {
        // Fails when the receiver's queue is full, or it is gone: then it is awake, or past waking.
        let _ = self.socket.send(&[0]);
    }

    /// True once for each time it rang.
    pub(super) fn answer(&self) -> bool {
        self.rung.load(Ordering::Acquire) && self.rung.swap(false, Ordering::AcqRel)
    }

    /// True when a datagram came from here. Forging one wakes a thread, and nothing else.
    #[inline]
    pub(super) fn sent(&self, from: SocketAddr) -> bool {
        from == self.address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_rings_once_until_it_is_answered() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_nonblocking(true).unwrap();
        let bell = Bell::for_socket(receiver.local_addr().unwrap()).unwrap();
        bell.ring();
        bell.ring();
        let mut buffer = [0; 8];
        let (_, from) = receiver.recv_from(&mut buffer).unwrap();
        assert!(bell.sent(from) && receiver.recv_from(&mut buffer).is_err());
        assert_eq!((bell.answer(), bell.answer()), (true, false));
    }
}
