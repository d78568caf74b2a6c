//! A front end: finds replicas in the directory, and sends them requests at a steady pace, whatever becomes of those.
//!
//! As the service that 003 §2 tells of, it looks replicas up, takes them in turn, and waits for answers. A request that waits holds one of its
//! places; when all are taken, whoever comes is turned away.

use super::replica::{asked, request, text};
use super::{ANSWERED, BIN_MS, DOCUMENTS, FRONT, PATIENCE, REPLICAS, SERVICE, WAITS};
use crate::daemons::{said, wait};
use crate::error::Error;
use crate::peers::sight::now_ms;
use phalanx_client::Directory;
use phalanx_client::blocking::Client;
use phalanx_client::directory::Query;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, ErrorKind};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// No look at the socket takes longer.
const LOOK: Duration = Duration::from_millis(2);

/// Requests that were sent, or ought to have been, within [`BIN_MS`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Bin {
    pub(super) answered: u64,
    /// They waited in vain.
    pub(super) timed_out: u64,
    /// There was no place for them.
    pub(super) turned_away: u64,
}

impl Bin {
    pub(super) fn failed(&self) -> u64 {
        self.timed_out + self.turned_away
    }

    pub(super) fn all(&self) -> u64 {
        self.answered + self.failed()
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.answered += other.answered;
        self.timed_out += other.timed_out;
        self.turned_away += other.turned_away;
    }
}

/// What became of its requests.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) bins: Vec<Bin>,
    /// When the first and the last of those that failed came, since the load began.
    pub(super) failed_ms: Option<(f64, f64)>,
    /// Nodes whose replicas were in the directory and are not: when that was seen, in milliseconds since 1970.
    pub(super) gone_ms: BTreeMap<String, f64>,
}

impl Told {
    fn bin(&mut self, at: Duration) -> &mut Bin {
        let bin = at.as_millis() as usize / BIN_MS;
        if self.bins.len() <= bin {
            self.bins.resize(bin + 1, Bin::default());
        }
        &mut self.bins[bin]
    }

    fn fail(&mut self, at: Duration) {
        let ms = at.as_secs_f64() * 1e3;
        let (first, last) = self.failed_ms.unwrap_or((ms, ms));
        self.failed_ms = Some((first.min(ms), last.max(ms)));
    }
}

/// Told: where its daemon answers, requests in a second, places, seconds of load; and, in a line, when to begin.
pub(super) fn play(args: &[String]) -> Result<(), Error> {
    let [socket, numbers @ ..] = args else { return Err(Error::UnknownRole(FRONT.into())) };
    let numbers: Option<Vec<f64>> = numbers.iter().map(|n| n.parse().ok()).collect();
    let Some([rate, places, seconds]) = numbers.as_deref() else { return Err(Error::UnknownRole(FRONT.into())) };
    let directory = Client::new(socket).directory().map_err(said)?;
    let query = Query::parse(&format!("name == {SERVICE}")).map_err(said)?;
    wait("all replicas are in the directory", || directory.now().find(&query).count() == REPLICAS)?;
    println!("found");
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let begins_ms: f64 = line.trim().parse().map_err(|_| said(&line))?;
    std::thread::sleep(Duration::from_secs_f64((begins_ms - now_ms()).max(0.0) / 1e3));
    let load = Load { every: Duration::from_secs_f64(1.0 / rate), places: *places as usize };
    let told = Front::new(directory, query)?.run(load, Duration::from_secs_f64(*seconds))?;
    println!("{}", serde_json::to_string(&told).map_err(said)?);
    Ok(())
}

/// What is asked of it.
#[derive(Clone, Copy)]
struct Load {
    every: Duration,
    places: usize,
}

struct Front {
    directory: Directory,
    query: Query,
    socket: UdpSocket,
    began: Instant,
    /// Requests that wait, by number, and so by age: when each came.
    waiting: BTreeMap<u64, Duration>,
    number: u64,
    /// Nodes that had a replica at the last look.
    nodes: Vec<String>,
    told: Told,
}

impl Front {
    fn new(directory: Directory, query: Query) -> Result<Self, Error> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(LOOK))?;
        let (waiting, told) = (BTreeMap::new(), Told::default());
        Ok(Self { directory, query, socket, began: Instant::now(), waiting, number: 0, nodes: Vec::new(), told })
    }

    fn run(mut self, load: Load, lasts: Duration) -> Result<Told, Error> {
        self.began = Instant::now();
        let mut next = Duration::ZERO;
        while next < lasts || !self.waiting.is_empty() {
            self.look();
            while next < lasts && next <= self.began.elapsed() {
                self.ask(next, load.places)?;
                next += load.every;
            }
            self.hear()?;
            self.give_up();
            if self.began.elapsed() > lasts + PATIENCE {
                return Err(said("requests are neither answered nor given up"));
            }
        }
        Ok(self.told)
    }

    /// Who is in the directory.
    fn look(&mut self) {
        let now = self.directory.now();
        let is_same = now.find(&self.query).map(|found| found.node()).eq(self.nodes.iter());
        if is_same {
            return;
        }
        let nodes: Vec<String> = now.find(&self.query).map(|found| found.node().to_owned()).collect();
        for gone in self.nodes.iter().filter(|node| !nodes.contains(node)) {
            self.told.gone_ms.entry(gone.clone()).or_insert_with(now_ms);
        }
        self.nodes = nodes;
    }

    /// A request comes: to the next replica, if there is a place where it can wait.
    fn ask(&mut self, at: Duration, places: usize) -> Result<(), Error> {
        let number = self.number;
        self.number += 1;
        let now = self.directory.now();
        let replicas = now.find(&self.query).filter_map(|found| found.addr());
        let to = (self.waiting.len() < places).then(|| {
            let all: Vec<_> = replicas.collect();
            all.get(number as usize % all.len().max(1)).copied()
        });
        let Some(to) = to.flatten() else {
            self.told.bin(at).turned_away += 1;
            self.told.fail(at);
            return Ok(());
        };
        self.socket.send_to(&request(number, document(number)), to)?;
        self.waiting.insert(number, at);
        Ok(())
    }

    /// Answers that are here, or come soon.
    fn hear(&mut self) -> Result<(), Error> {
        let mut packet = [0; ANSWERED];
        let length = match self.socket.recv(&mut packet) {
            Ok(length) => length,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        let answer = asked(&packet[..length]).filter(|&(number, asked)| asked == document(number));
        // One that was given up is too late.
        let Some((at, number)) = answer.and_then(|(number, _)| Some((self.waiting.remove(&number)?, number))) else {
            return Ok(());
        };
        if packet[super::replica::ASKS..length] != text(document(number)) {
            return Err(said(format!("document {} is not what it was", document(number))));
        }
        self.told.bin(at).answered += 1;
        Ok(())
    }

    /// Requests that waited too long.
    fn give_up(&mut self) {
        while let Some(oldest) = self.waiting.first_entry()
            && *oldest.get() + WAITS < self.began.elapsed()
        {
            let at = oldest.remove();
            self.told.bin(at).timed_out += 1;
            self.told.fail(at);
        }
    }
}

/// Which document a request is for.
fn document(number: u64) -> u32 {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % u64::from(DOCUMENTS)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_counted_when_it_came() {
        let mut told = Told::default();
        let at = |ms: u64| Duration::from_millis(ms);
        told.bin(at(3 * BIN_MS as u64)).timed_out += 1;
        told.fail(at(900));
        told.fail(at(300));
        told.fail(at(500));
        assert_eq!((told.bins.len(), told.bins[3].failed(), told.failed_ms), (4, 1, Some((300.0, 900.0))));
    }
}
