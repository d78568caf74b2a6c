//! One TCP connection that carries datagrams: `u32` length (little-endian), then the packet.
//!
//! The first frame of whoever connected is a *hello* with its listening port, so that both sides know the peer by the
//! address it is reached at. A frame of length zero is a *goodbye*: its sender writes no more, and reads on until the
//! other side has said it too. So a connection that is closed on purpose loses nothing, and an end of stream without
//! goodbye means that the peer died.

use crate::platform::LARGEST_DATAGRAM;
use crate::platform::errno::code_of_io;
use phalanx_core::{Buf, Code, Ring};
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

/// Bytes of a frame's length.
const HEAD: usize = 4;
/// Frames handed to the kernel in one call.
const GATHER: usize = 32;
/// Packets that wait for one peer; the next are dropped.
pub(super) const QUEUE_PACKETS: usize = 1024;
/// Bytes that wait for one peer; the next packets are dropped.
const QUEUE_BYTES: usize = 2 << 20;
/// Read at once; holds an unfinished frame and much more.
pub(super) const SCRATCH: usize = 128 * 1024;
/// What a hello begins with: this protocol, first version.
const MAGIC: [u8; 4] = *b"PHX1";
const HELLO: usize = MAGIC.len() + 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Hello,
    Data,
    Goodbye,
}

#[derive(Debug)]
struct Frame {
    kind: Kind,
    packet: Buf,
    ticket: Option<u32>,
}

/// A packet that was not begun, to be sent another way.
pub(super) struct Unsent {
    pub(super) packet: Buf,
    pub(super) ticket: Option<u32>,
}

/// What arrived on a connection.
pub(super) enum Arrival<'a> {
    /// The peer can be reached on this port of its address.
    Hello(u16),
    /// A datagram.
    Packet(&'a mut [u8]),
    /// The peer will write no more.
    Goodbye,
}

/// Why a connection is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// Both sides said goodbye.
    Agreed,
    /// It was reset, refused, or ended without goodbye.
    Lost(Code),
    /// The peer does not speak our protocol.
    Nonsense,
}

/// A connection and what waits to be written to it.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    /// Where the peer listens; unknown on an accepted connection until its hello.
    pub(super) peer: Option<SocketAddr>,
    /// We connected.
    pub(super) initiated: bool,
    /// The kernel is still connecting: nothing can be written.
    pub(super) connecting: bool,
    /// The kernel's buffer was full, or it is connecting: the poller is to tell when there is room.
    pub(super) choked: bool,
    /// In the list of those with something to write.
    pub(super) dirty: bool,
    /// Sweeps since the last traffic.
    pub(super) quiet: u32,
    /// We said goodbye, or are about to.
    pub(super) leaving: bool,
    /// The goodbye is written and our side shut.
    left: bool,
    peer_left: bool,
    frames: Ring<Frame>,
    bytes: usize,
    /// Bytes of the first frame that the kernel has.
    begun: usize,
    /// An unfinished frame, until the rest comes.
    rest: Vec<u8>,
}

impl Connection {
    /// A connection that we opened to `peer`; it begins with our hello.
    pub(super) fn opened(stream: TcpStream, peer: SocketAddr, own_port: u16) -> Self {
        let mut connection = Self::over(stream, Some(peer));
        connection.initiated = true;
        connection.connecting = true;
        connection.choked = true;
        let mut hello = Buf::new(0, HELLO);
        hello.extend(&MAGIC);
        hello.extend(&own_port.to_le_bytes());
        connection.push(Kind::Hello, hello, None);
        connection
    }

    /// A connection that somebody opened to us.
    pub(super) fn accepted(stream: TcpStream) -> Self {
        Self::over(stream, None)
    }

    fn over(stream: TcpStream, peer: Option<SocketAddr>) -> Self {
        Self {
            stream,
            peer,
            initiated: false,
            connecting: false,
            choked: false,
            dirty: false,
            quiet: 0,
            leaving: false,
            left: false,
            peer_left: false,
            // Two more than data may take, so that a hello and a goodbye always fit.
            frames: Ring::new(QUEUE_PACKETS + 2),
            bytes: 0,
            begun: 0,
            rest: Vec::new(),
        }
    }

    /// Queues a packet; hands it back when too much waits already.
    pub(super) fn send(&mut self, packet: Buf, ticket: Option<u32>) -> Result<(), Unsent> {
        self.quiet = 0;
        if self.frames.len() >= QUEUE_PACKETS || self.bytes + packet.len() > QUEUE_BYTES {
            return Err(Unsent { packet, ticket });
        }
        self.push(Kind::Data, packet, ticket);
        Ok(())
    }

    fn push(&mut self, kind: Kind, packet: Buf, ticket: Option<u32>) {
        self.bytes += packet.len();
        let pushed = self.frames.push(Frame { kind, packet, ticket });
        debug_assert!(pushed.is_ok(), "room for a hello and a goodbye is kept");
    }

    /// Stops writing after what was begun: `unsent` takes the packets that were not, and a goodbye follows.
    pub(super) fn leave(&mut self, unsent: &mut Vec<Unsent>) {
        if self.leaving {
            return;
        }
        self.leaving = true;
        for place in 0..self.frames.len() {
            let Some(frame) = self.frames.pop() else {
                break;
            };
            let begun = place == 0 && self.begun > 0;
            if begun || frame.kind != Kind::Data {
                let back = self.frames.push(frame);
                debug_assert!(back.is_ok(), "it was in there before");
            } else {
                self.bytes -= frame.packet.len();
                unsent.push(Unsent { packet: frame.packet, ticket: frame.ticket });
            }
        }
        self.push(Kind::Goodbye, Buf::new(0, 0), None);
    }

    /// Takes every packet that waits, begun or not: the connection is over.
    pub(super) fn abandon(&mut self, unsent: &mut Vec<Unsent>) {
        while let Some(frame) = self.frames.pop() {
            if frame.kind == Kind::Data {
                unsent.push(Unsent { packet: frame.packet, ticket: frame.ticket });
            }
        }
    }

    /// True when something waits and can be tried.
    pub(super) fn can_write(&self) -> bool {
        !self.choked && !self.frames.is_empty()
    }

    /// Writes what the kernel takes; tells `sent` the tickets of packets it has. `choked` says whether more waits.
    pub(super) fn write(&mut self, sent: &mut impl FnMut(u32)) -> Result<(), End> {
        while !self.frames.is_empty() {
            match self.write_some() {
                Ok(0) => return Err(End::Lost(Code::Unreachable)),
                Ok(n) => self.written(n, sent),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.choked = true;
                    return Ok(());
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(lost(&e)),
            }
        }
        if self.leaving && !self.left {
            self.left = true;
            // Fails when the peer is gone: the read will say so.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    fn write_some(&self) -> io::Result<usize> {
        let mut heads = [[0; HEAD]; GATHER];
        let mut slices = [IoSlice::new(&[]); 2 * GATHER];
        let mut used = 0;
        for (head, frame) in heads.iter_mut().zip(self.frames.iter()) {
            *head = (frame.packet.len() as u32).to_le_bytes();
        }
        for (place, (head, frame)) in heads.iter().zip(self.frames.iter()).enumerate() {
            let begun = if place == 0 { self.begun } else { 0 };
            slices[used] = IoSlice::new(&head[begun.min(HEAD)..]);
            slices[used + 1] = IoSlice::new(&frame.packet.bytes()[begun.saturating_sub(HEAD)..]);
            used += 2;
        }
        (&self.stream).write_vectored(&slices[..used])
    }

    fn written(&mut self, n: usize, sent: &mut impl FnMut(u32)) {
        self.begun += n;
        while let Some(first) = self.frames.front() {
            let whole = HEAD + first.packet.len();
            if self.begun < whole {
                break;
            }
            self.begun -= whole;
            self.bytes -= whole - HEAD;
            if let Some(Frame { ticket: Some(ticket), .. }) = self.frames.pop() {
                sent(ticket);
            }
        }
    }

    /// Reads once and tells `each` arrival that is complete. `scratch` has [`SCRATCH`] bytes.
    pub(super) fn read(&mut self, scratch: &mut [u8], each: &mut impl FnMut(Arrival<'_>)) -> Result<(), End> {
        let kept = self.rest.len();
        scratch[..kept].copy_from_slice(&self.rest);
        let read = match self.stream.read(&mut scratch[kept..]) {
            Ok(0) if self.peer_left && self.left => return Err(End::Agreed),
            // It said goodbye, we have not finished: our writes still reach it.
            Ok(0) if self.peer_left => return Ok(()),
            Ok(0) => return Err(End::Lost(Code::Unreachable)),
            Ok(n) => n,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return Ok(()),
            Err(e) => return Err(lost(&e)),
        };
        self.quiet = 0;
        let len = kept + read;
        let used = self.cut(&mut scratch[..len], each)?;
        self.rest.clear();
        self.rest.extend_from_slice(&scratch[used..len]);
        Ok(())
    }

    /// Tells the whole frames in `bytes`; returns how many bytes they took.
    fn cut(&mut self, bytes: &mut [u8], each: &mut impl FnMut(Arrival<'_>)) -> Result<usize, End> {
        let mut at = 0;
        while let Some(head) = bytes[at..].first_chunk::<HEAD>() {
            let len = u32::from_le_bytes(*head) as usize;
            // Checked before anything is kept for it: a liar must not make us hold memory.
            if len > LARGEST_DATAGRAM || self.peer_left {
                return Err(End::Nonsense);
            }
            let Some(frame) = bytes.get_mut(at + HEAD..at + HEAD + len) else {
                break;
            };
            at += HEAD + len;
            if len == 0 {
                self.peer_left = true;
                each(Arrival::Goodbye);
            } else if self.peer.is_some() {
                each(Arrival::Packet(frame));
            } else {
                let port = announced(frame).ok_or(End::Nonsense)?;
                let from = self.stream.peer_addr().map_err(|e| lost(&e))?;
                self.peer = Some(SocketAddr::new(from.ip(), port));
                each(Arrival::Hello(port));
            }
        }
        Ok(at)
    }

    /// True when we said goodbye and heard it: only the end of the stream is missing.
    pub(super) fn is_over(&self) -> bool {
        self.left && self.peer_left
    }

    /// Finishes a connect that the poller says is decided.
    pub(super) fn finish_connect(&mut self) -> Result<(), End> {
        self.choked = false;
        if !self.connecting {
            return Ok(());
        }
        self.connecting = false;
        match self.stream.take_error() {
            Ok(None) => Ok(()),
            Ok(Some(e)) | Err(e) => Err(lost(&e)),
        }
    }
}

fn announced(hello: &[u8]) -> Option<u16> {
    let port = hello.strip_prefix(&MAGIC)?;
    Some(u16::from_le_bytes(port.try_into().ok()?)).filter(|&port| port != 0)
}

fn lost(error: &io::Error) -> End {
    End::Lost(code_of_io(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (Connection, Connection) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut opened = Connection::opened(TcpStream::connect(address).unwrap(), address, 4000);
        opened.finish_connect().unwrap();
        (opened, Connection::accepted(listener.accept().unwrap().0))
    }

    fn packets(connection: &mut Connection) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        connection
            .read(&mut vec![0; SCRATCH], &mut |arrival| {
                if let Arrival::Packet(bytes) = arrival {
                    got.push(bytes.to_vec());
                }
            })
            .unwrap();
        got
    }

    #[test]
    fn a_hello_names_the_peer_and_packets_follow_whole() {
        let (mut a, mut b) = pair();
        for i in 1..=40 {
            assert!(a.send(Buf::copy_of(&vec![i; usize::from(i)]), Some(u32::from(i))).is_ok());
        }
        let mut sent = Vec::new();
        a.write(&mut |ticket| sent.push(ticket)).unwrap();
        assert_eq!(sent, (1..=40).collect::<Vec<_>>());
        let got = packets(&mut b);
        assert_eq!(b.peer.unwrap().port(), 4000);
        assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), (1..=40).collect::<Vec<_>>());
    }

    #[test]
    fn frames_may_be_torn_anywhere() {
        let (a, mut b) = pair();
        let mut stream = &a.stream;
        let mut wire = [&6u32.to_le_bytes()[..], b"PHX1", &7u16.to_le_bytes()].concat();
        for packet in [&b"one"[..], b"and another"] {
            wire.extend((packet.len() as u32).to_le_bytes());
            wire.extend(packet);
        }
        let mut got = Vec::new();
        for byte in wire {
            stream.write_all(&[byte]).unwrap();
            got.extend(packets(&mut b));
        }
        assert_eq!(got, [&b"one"[..], b"and another"]);
    }

    /// RL-1 meets corrupted lengths; here a stream with one is beyond repair.
    #[test]
    fn a_peer_that_lies_about_a_length_or_skips_the_hello_is_cut_off() {
        for bytes in [&u32::MAX.to_le_bytes()[..], b"\x03\0\0\0abc", b"\x06\0\0\0PHX1\0\0"] {
            let (a, mut b) = pair();
            (&a.stream).write_all(bytes).unwrap();
            assert_eq!(b.read(&mut vec![0; SCRATCH], &mut |_| {}), Err(End::Nonsense));
        }
    }

    #[test]
    fn a_goodbye_gives_back_what_was_not_begun_and_loses_nothing_else() {
        let (mut a, mut b) = pair();
        a.write(&mut |_| {}).unwrap();
        assert!(a.send(Buf::copy_of(b"first"), None).is_ok());
        assert!(a.send(Buf::copy_of(b"second"), Some(2)).is_ok());
        // Half of the first frame is out.
        (&a.stream).write_all(&[5, 0, 0, 0, b'f']).unwrap();
        a.begun = 5;
        let mut unsent = Vec::new();
        a.leave(&mut unsent);
        assert_eq!(unsent.len(), 1);
        assert_eq!((unsent[0].packet.bytes(), unsent[0].ticket), (&b"second"[..], Some(2)));
        a.write(&mut |_| {}).unwrap();
        assert_eq!(packets(&mut b), [b"first"]);
        b.leave(&mut unsent);
        b.write(&mut |_| {}).unwrap();
        assert!(b.is_over());
        assert_eq!(b.read(&mut vec![0; SCRATCH], &mut |_| {}), Err(End::Agreed));
    }

    #[test]
    fn an_end_without_goodbye_is_a_loss() {
        let (a, mut b) = pair();
        drop(a);
        assert_eq!(b.read(&mut vec![0; SCRATCH], &mut |_| {}), Err(End::Lost(Code::Unreachable)));
    }

    #[test]
    fn a_queue_has_an_end() {
        let (mut a, _b) = pair();
        let mut taken = 0;
        while a.send(Buf::copy_of(&[0; 100]), None).is_ok() {
            taken += 1;
        }
        // The hello waits there too.
        assert_eq!(taken, QUEUE_PACKETS - 1);
    }
}
