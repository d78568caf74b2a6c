//! A parallel program that outlives nodes: `phalanx run -n 8 --spares 2 --on-failure respawn primes 1000000000`.
//!
//! Each rank counts the primes of its share of the numbers below a limit, and writes down how far it is; one that starts again goes on
//! from there. At the end all gather what they found, again if somebody was missing, and rank 0 compares it with a count by another way.

mod count;

use count::{Sieve, count_at_once};
use phalanx_client::blocking::Client;
use std::fs;
use std::path::{Path, PathBuf};

/// Numbers that are sieved between two notes.
const STEP: u64 = 1 << 22;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limit: u64 = std::env::args().nth(1).map_or(Ok(100_000_000), |text| text.parse())?;
    let client = Client::from_environment();
    let mut task = client.task()?;
    let view = task.wait_full()?;
    let (rank, size) = (u64::from(view.rank.ok_or("a spare has no rank")?), u64::from(view.size));
    let dir = PathBuf::from(std::env::var("PHALANX_CHECKPOINT_DIR")?);
    fs::create_dir_all(&dir)?;
    let note = dir.join(format!("rank-{rank}"));
    let (mut at, mut found) = read(&note).unwrap_or((limit * rank / size, 0));
    let (sieve, end) = (Sieve::below(limit), limit * (rank + 1) / size);
    while at < end {
        let next = (at + STEP).min(end);
        found += sieve.count(at, next);
        at = next;
        write(&note, at, found)?;
    }
    let all = loop {
        task.wait_full()?;
        // Who came too late for this takes part in the next.
        let all = task.gather(&found.to_le_bytes())?;
        if all.len() as u64 == size {
            break all;
        }
    };
    if rank > 0 {
        return Ok(());
    }
    let counts = all.iter().filter_map(|(_, bytes)| bytes.as_slice().try_into().ok().map(u64::from_le_bytes));
    let (sum, expected) = (counts.sum::<u64>(), count_at_once(limit));
    println!(
        "{sum} primes below {limit}, counted by {size} ranks: {}",
        if sum == expected { "right" } else { "WRONG" }
    );
    fs::remove_dir_all(&dir)?;
    if sum == expected { Ok(()) } else { Err(format!("there are {expected}").into()) }
}

/// How far this rank was, and what it had found.
fn read(note: &Path) -> Option<(u64, u64)> {
    let text = fs::read_to_string(note).ok()?;
    let (at, found) = text.trim().split_once(' ')?;
    Some((at.parse().ok()?, found.parse().ok()?))
}

/// Half a note is none: it is written beside the last one, which it then replaces.
fn write(note: &Path, at: u64, found: u64) -> std::io::Result<()> {
    let new = note.with_extension("new");
    fs::write(&new, format!("{at} {found}\n"))?;
    fs::rename(&new, note)
}
