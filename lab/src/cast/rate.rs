//! `cast-rate`: how fast many bytes come to many daemons, beside bare relays of the same shape with the same seal.
//!
//! A bare relay takes sealed records from its parent over a stream, opens each and seals it anew for each child. It numbers nothing,
//! remembers nothing, and nobody may die.

use crate::child::Child;
use crate::daemons::{Daemons, said, wait};
use crate::error::Error;
use crate::experiment::{Experiment, Role, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use crate::stats::{median, ratio_interval};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use phalanx_client::casts::To;
use phalanx_protocol::cast::{Id, Tree};
use std::io::{BufReader, BufWriter, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// The experiment.
pub(crate) struct CastRate;

const NODES: usize = 32;
/// As daemons have it unless they are told otherwise.
const FAN_OUT: u32 = 3;
const BYTES: usize = 100_000_000;
const QUICK_BYTES: usize = 10_000_000;
const TRIALS: usize = 5;
const QUICK: usize = 2;
/// A record of bare relays: as much as a datagram of ours carries between these daemons.
const RECORD: usize = 16 << 10;
const TAG: usize = 16;
const KEY: [u8; 32] = [0x52; 32];
const PATIENCE: Duration = Duration::from_secs(120);
const SEED: u64 = 0xbeef;
const RELAY: Role = Role { name: "cast-relay", play };

impl Experiment for CastRate {
    fn name(&self) -> &'static str {
        "cast-rate"
    }

    fn about(&self) -> &'static str {
        "100 MB to 32 real daemons, beside bare relays of the same shape with the same seal"
    }

    fn picture(&self) -> Picture {
        Picture { x: "trial", y: "mb_s", series: &["what"], only: None, beside: &[] }
    }

    fn roles(&self) -> &'static [Role] {
        &[RELAY]
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let (bytes, trials) = if run.options.quick { (QUICK_BYTES, QUICK) } else { (BYTES, TRIALS) };
        let daemons = Daemons::start("rate", NODES)?;
        let seats = || daemons.client(0).seats().unwrap_or_default();
        wait("all have seats", || seats().len() == NODES)?;
        let root = seats().iter().find(|s| s.parent.is_none()).map(|s| s.name.clone());
        let root = (0..NODES).find(|n| root.as_deref() == Some(&format!("n{n}"))).unwrap_or(0);
        let client = daemons.client(root);
        let payload: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect();
        let mut pairs = Vec::new();
        for trial in 0..trials {
            run.progress(&format!("trial {} of {trials}", trial + 1));
            let reached = client.cast(&To::All, "rate", payload.clone()).map_err(said)?;
            if reached.reached != NODES || reached.bytes != bytes as u64 {
                return Err(said(format!("{} of {NODES} have {} bytes", reached.reached, reached.bytes)));
            }
            let ours = bytes as f64 / reached.us as f64;
            let bare = bytes as f64 / (relays(bytes)?.as_secs_f64() * 1e6);
            for (what, mb_s) in [("cast", ours), ("bare relays", bare)] {
                run.row(
                    row! { "what": what, "trial": trial, "nodes": NODES, "bytes": bytes, "mb_s": significant(mb_s) },
                );
            }
            pairs.push((ours, bare));
        }
        let of = |pick: fn(&(f64, f64)) -> f64| median(&pairs.iter().map(pick).collect::<Vec<_>>()).unwrap_or(0.0);
        run.note(format!("{:.1} MB/s to each of {NODES}; bare relays {:.1} MB/s", of(|p| p.0), of(|p| p.1)));
        let ratio = ratio_interval(&pairs, SEED).map(|r| r.value);
        run.check(Check::new("rate / rate of bare relays ≥ 0.5", ratio, Must::AtLeast, 0.5));
        Ok(())
    }
}

/// Has bare relays carry so many bytes; how long that took.
fn relays(bytes: usize) -> Result<Duration, Error> {
    let tree = Tree::new(FAN_OUT, NODES as u32).map_err(Error::peer("cast"))?;
    let mut children = (0..NODES).map(|_| Child::start_told(RELAY.name, &[])).collect::<Result<Vec<_>, _>>()?;
    let at = children.iter().map(|c| c.line(PATIENCE)).collect::<Result<Vec<_>, _>>()?;
    // From the bottom up: whoever is told its children can connect to them.
    for number in (0..NODES).rev() {
        let below: Vec<&str> = tree.children(Id(number as u32)).map(|c| at[c.0 as usize].as_str()).collect();
        let has = if number == 0 { bytes } else { 0 };
        children[number].tell(&format!("{has} {bytes} {}", below.join(" ")))?;
    }
    for child in &children[1..] {
        child.line(PATIENCE)?;
    }
    children[0].line(PATIENCE)?;
    children[0].tell("go")?;
    let took = children[0].line(PATIENCE)?;
    let ns: u64 = took.parse().map_err(|_| children[0].said(&took))?;
    Ok(Duration::from_nanos(ns))
}

/// A relay: told how many bytes it has itself, how many there are, and who is below it.
fn play(_: &[String]) -> Result<(), Error> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("{}", listener.local_addr()?);
    let mut lines = std::io::stdin().lines();
    let unfit = || Error::UnknownRole(RELAY.name.into());
    let line = lines.next().ok_or_else(unfit)??;
    let mut words = line.split_whitespace();
    let has: usize = words.next().and_then(|w| w.parse().ok()).ok_or_else(unfit)?;
    let bytes: usize = words.next().and_then(|w| w.parse().ok()).ok_or_else(unfit)?;
    let mut below = words
        .map(|w| w.parse::<SocketAddr>().map_err(|_| unfit()).and_then(|at| Ok(TcpStream::connect(at)?)))
        .collect::<Result<Vec<_>, Error>>()?;
    println!("ready");
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &KEY).map_err(|_| unfit())?);
    let mut parent = if has == 0 { Some(listener.accept()?.0) } else { None };
    if has > 0 {
        lines.next();
    }
    let began = Instant::now();
    carry(&key, parent.as_mut(), &mut below, bytes)?;
    for child in &mut below {
        child.read_exact(&mut [0])?;
    }
    match parent {
        Some(mut parent) => parent.write_all(&[1])?,
        None => println!("{}", began.elapsed().as_nanos()),
    }
    // The one who asks ends us.
    lines.next();
    Ok(())
}

/// Opens each record that comes, and seals it anew for each below.
fn carry(
    key: &LessSafeKey,
    parent: Option<&mut TcpStream>,
    below: &mut [TcpStream],
    bytes: usize,
) -> Result<(), Error> {
    let broken = |_| Error::UnknownRole(RELAY.name.into());
    let mut from = parent.map(|p| BufReader::with_capacity(4 * RECORD, p));
    let mut below: Vec<_> = below.iter_mut().map(|c| BufWriter::with_capacity(4 * RECORD, c)).collect();
    let (mut record, mut sealed, mut number, mut left) = (vec![7; RECORD], Vec::new(), 0u64, bytes);
    let nonce = |number: u64| Nonce::assume_unique_for_key(std::array::from_fn(|i| (number >> (8 * i.min(7))) as u8));
    while left > 0 {
        let len = left.min(RECORD);
        if let Some(from) = &mut from {
            record.resize(len + TAG, 0);
            from.read_exact(&mut record)?;
            key.open_in_place(nonce(number), Aad::empty(), &mut record).map_err(broken)?;
        }
        for child in &mut below {
            sealed.clear();
            sealed.extend_from_slice(&record[..len]);
            key.seal_in_place_append_tag(nonce(number), Aad::empty(), &mut sealed).map_err(broken)?;
            child.write_all(&sealed)?;
        }
        number += 1;
        left -= len;
    }
    Ok(below.iter_mut().try_for_each(Write::flush)?)
}
