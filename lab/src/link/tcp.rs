//! Raw TCP: a write for each message, or many messages a write.

use super::frames::{self, Frames};
use super::{ANY_PORT, Channel, Layer, Listener, Mode, Opened, Tally, address};
use crate::error::Error;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

/// Both without Nagle's delay. `tcp-buffered` only differs when many messages leave at once.
pub(super) const LAYERS: &[Layer] = &[
    Layer {
        name: "tcp",
        latency: true,
        throughput: true,
        listen: |mode| listen(mode, 0),
        connect: |mode, to| connect(mode, to, 0),
    },
    Layer {
        name: "tcp-buffered",
        latency: false,
        throughput: true,
        listen: |mode| listen(mode, BUFFER),
        connect: |mode, to| connect(mode, to, BUFFER),
    },
];

/// Bytes that `tcp-buffered` collects before it writes.
const BUFFER: usize = 64 << 10;

fn listen(mode: Mode, buffer: usize) -> Result<Listener, Error> {
    let listener = TcpListener::bind(ANY_PORT)?;
    let invitation = listener.local_addr()?.to_string();
    let accept = move || Ok(Box::new(Tcp::new(listener.accept()?.0, mode, buffer)?) as Box<dyn Channel>);
    Ok(Listener { invitation, accept: Box::new(accept) })
}

fn connect(mode: Mode, invitation: &str, buffer: usize) -> Opened {
    Ok(Box::new(Tcp::new(TcpStream::connect(address(invitation)?)?, mode, buffer)?))
}

struct Tcp {
    stream: TcpStream,
    mode: Mode,
    /// Written out at the latest when it holds so much.
    buffer: usize,
    out: Vec<u8>,
    frames: Frames,
}

impl Tcp {
    fn new(stream: TcpStream, mode: Mode, buffer: usize) -> Result<Self, Error> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(mode == Mode::Spin)?;
        Ok(Self { stream, mode, buffer, out: Vec::new(), frames: Frames::new() })
    }

    fn flush(&mut self) -> Result<(), Error> {
        let mut left = self.out.as_slice();
        while !left.is_empty() {
            let written = self.mode.wait(|| self.stream.write(left))?;
            left = &left[written..];
        }
        self.out.clear();
        Ok(())
    }

    fn read(&mut self) -> Result<(), Error> {
        let Self { stream, frames, mode, .. } = self;
        match mode.wait(|| stream.read(frames.space()))? {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            n => {
                frames.filled(n);
                Ok(())
            }
        }
    }
}

impl Channel for Tcp {
    fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        frames::put(&mut self.out, message);
        self.flush()
    }

    fn recv(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        loop {
            if let Some(message) = self.frames.next() {
                out.clear();
                out.extend_from_slice(message);
                return Ok(());
            }
            self.read()?;
        }
    }

    fn pump(&mut self, message: &[u8], times: usize) -> Result<(), Error> {
        for _ in 0..times {
            frames::put(&mut self.out, message);
            if self.out.len() >= self.buffer {
                self.flush()?;
            }
        }
        self.flush()
    }

    fn drain(&mut self, tally: &mut Tally) -> Result<(), Error> {
        self.read()?;
        while let Some(message) = self.frames.next() {
            tally.take(message);
        }
        Ok(())
    }
}
