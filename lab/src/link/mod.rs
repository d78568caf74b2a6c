//! Channels between two processes: raw sockets, peers and our own layers behind one interface.
//!
//! One process listens and prints an *invitation* (an address and whatever else the other side must know), the other
//! connects with it. A channel waits as its [`Mode`] says; all traffic stays on 127.0.0.1. A new layer is a file with
//! a `LAYERS` list, named in [`layers`].

mod claim;
pub(crate) mod faults;
mod frames;
mod gso;
mod kcp;
pub(crate) mod latency;
mod ours;
mod quinn;
mod seal;
mod tcp;
pub(crate) mod throughput;
mod udp;

use crate::cores;
use crate::error::Error;
use std::fmt;
use std::hint;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

/// Largest UDP payload the peers may use. The loopback takes 64 KB; a jumbo frame carries our largest message whole, so
/// that no peer pays for splitting what another sends in one piece.
const JUMBO: usize = 8_900;
/// Asked of each socket: the default holds 256 small datagrams, and a burst of one peer's window would be lost.
const SOCKET_BUFFER: usize = 4 << 20;
/// An address of this machine alone; the kernel picks the port.
const ANY_PORT: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));

/// How both ends of a channel wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// On two cores, asking again and again.
    Spin,
    /// On one core, asleep until the kernel wakes them.
    SameCore,
}

impl Mode {
    /// All of them.
    pub(crate) const ALL: [Self; 2] = [Self::Spin, Self::SameCore];

    /// The mode of that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.name() == name)
    }

    /// Its name in rows and arguments.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Spin => "spin",
            Self::SameCore => "same-core",
        }
    }

    /// Repeats `attempt` until it does not say "would block"; in [`Mode::SameCore`] it sleeps in the kernel itself.
    fn wait<T>(self, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match attempt() {
                Err(e) if e.kind() == ErrorKind::WouldBlock && self == Self::Spin => hint::spin_loop(),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One end of a connection between two processes.
pub(crate) trait Channel {
    /// Sends one message now.
    fn send(&mut self, message: &[u8]) -> Result<(), Error>;

    /// Waits for one message and puts it into `out` in place of what was there.
    fn recv(&mut self, out: &mut Vec<u8>) -> Result<(), Error>;

    /// Sends `message` `times` over, as fast as the layer can: coalesced where it coalesces. On return all of them
    /// are on their way or in the layer's bounded queue.
    fn pump(&mut self, message: &[u8], times: usize) -> Result<(), Error> {
        (0..times).try_for_each(|_| self.send(message))
    }

    /// Waits for at least one message and counts all that are at hand.
    fn drain(&mut self, tally: &mut Tally) -> Result<(), Error>;
}

/// Messages that arrived. Each is touched, so that no layer wins by handing out memory that nobody looks at.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Tally {
    /// How many.
    pub(crate) messages: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Folded from their first and last bytes.
    pub(crate) touched: u64,
}

impl Tally {
    /// Counts a message.
    #[inline]
    pub(crate) fn take(&mut self, message: &[u8]) {
        self.messages += 1;
        self.bytes += message.len() as u64;
        if let (Some(&first), Some(&last)) = (message.first(), message.last()) {
            self.touched = self.touched.wrapping_add(u64::from(first) << 8 | u64::from(last));
        }
    }
}

/// A channel, unless it could not be opened.
pub(crate) type Opened = Result<Box<dyn Channel>, Error>;

/// A kind of channel.
pub(crate) struct Layer {
    /// Its name in rows.
    pub(crate) name: &'static str,
    /// Takes part in `link-latency`.
    pub(crate) latency: bool,
    /// Takes part in `link-throughput`.
    pub(crate) throughput: bool,
    /// The side that invites.
    pub(crate) listen: fn(Mode) -> Result<Listener, Error>,
    /// The side that was invited.
    pub(crate) connect: fn(Mode, &str) -> Opened,
}

/// A side that has invited and waits.
pub(crate) struct Listener {
    /// What the other side must know, in one line.
    pub(crate) invitation: String,
    /// Waits for it.
    pub(crate) accept: Box<dyn FnOnce() -> Opened>,
}

/// Each layer there is, the raw sockets first.
pub(crate) fn layers() -> impl Iterator<Item = &'static Layer> {
    [udp::LAYERS, gso::LAYERS, tcp::LAYERS, quinn::LAYERS, kcp::LAYERS, ours::LAYERS].into_iter().flatten()
}

/// The layer of that name.
pub(crate) fn layer(name: &str) -> Option<&'static Layer> {
    layers().find(|l| l.name == name)
}

/// Where the two ends of a channel run: the listener's core and the other's. `None` when spinning would need a
/// second core and there is none.
fn places(mode: Mode) -> Result<Option<(usize, usize)>, Error> {
    let cores = cores::allowed()?;
    // The highest cores: interrupts of the machine's devices tend to go to the lowest.
    Ok(match (mode, cores.as_slice()) {
        (Mode::SameCore, [.., last]) => Some((*last, *last)),
        (Mode::Spin, [.., other, last]) => Some((*last, *other)),
        _ => None,
    })
}

/// The address in an invitation.
fn address(invitation: &str) -> Result<SocketAddr, Error> {
    let word = invitation.split_whitespace().next().unwrap_or_default();
    word.parse().map_err(|_| Error::UnknownRole(format!("invitation {invitation}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::thread;

    const SIZES: [usize; 5] = [4, 64, 1024, 4096, 1];

    /// Two threads stand for the two processes. Spinning is left to the experiments: two spins on a busy machine would
    /// make a slow test.
    fn connected(layer: &'static Layer, far: impl FnOnce(Box<dyn Channel>) + Send + 'static) -> Box<dyn Channel> {
        let (tell, invitation) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let listener = (layer.listen)(Mode::SameCore).unwrap();
            tell.send(listener.invitation).unwrap();
            far((listener.accept)().unwrap());
        });
        (layer.connect)(Mode::SameCore, &invitation.recv().unwrap()).unwrap()
    }

    #[test]
    fn names_are_unique() {
        let names: Vec<_> = layers().map(|l| l.name).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }

    /// What comes back is what went out, for each layer and size.
    #[test]
    fn each_layer_echoes_each_size() {
        for layer in layers().filter(|l| l.latency) {
            let mut near = connected(layer, |mut far| {
                let mut message = Vec::new();
                // Ends with the last reply or, at the latest, with the test's process.
                for _ in SIZES {
                    far.recv(&mut message).unwrap();
                    far.send(&message).unwrap();
                }
                let _ = far.recv(&mut message);
            });
            for size in SIZES {
                let (sent, mut got) = ((0..size).map(|i| (i * 7 + size) as u8).collect::<Vec<_>>(), Vec::new());
                near.send(&sent).unwrap();
                near.recv(&mut got).unwrap();
                assert_eq!(got, sent, "{} at {size} bytes", layer.name);
            }
        }
    }

    /// Few enough to fit each layer's buffers, so that also the unreliable ones deliver all of them.
    #[test]
    fn each_layer_delivers_what_was_pumped() {
        const MESSAGES: usize = 200;
        for layer in layers().filter(|l| l.throughput) {
            let (tell, done) = std::sync::mpsc::channel();
            let mut near = connected(layer, move |mut far| {
                let mut tally = Tally::default();
                while tally.messages < MESSAGES as u64 {
                    far.drain(&mut tally).unwrap();
                }
                tell.send(tally).unwrap();
            });
            near.pump(&[3; 1024], MESSAGES).unwrap();
            // A reliable layer needs to hear its acks; this thread goes on pumping until the far side has enough.
            let tally = loop {
                match done.recv_timeout(std::time::Duration::from_millis(50)) {
                    Ok(tally) => break tally,
                    Err(_) => near.pump(&[3; 1024], 1).unwrap(),
                }
            };
            assert_eq!(tally.bytes, tally.messages * 1024, "{}", layer.name);
            assert_eq!(tally.touched, tally.messages * (3 << 8 | 3), "{}", layer.name);
        }
    }
}
