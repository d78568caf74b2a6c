//! `phalanx demo`: what this is about, in a few seconds, on this machine: real daemons, several killed at once, and what
//! everybody saw and when.

use crate::local::Local;
use phalanx_client::api::{State, What};
use phalanx_client::blocking::Client;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Nobody waits longer than this for a verdict.
const PATIENCE: Duration = Duration::from_secs(20);

/// A local cluster of real daemons, several of them killed at once, and what everybody saw and when
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many daemons
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(3..=256))]
    nodes: u16,
    /// How many of them are killed at once
    #[arg(long, default_value_t = 3)]
    kills: u16,
}

/// A survivor heard that a node is gone.
struct Heard {
    survivor: usize,
    gone: String,
    state: State,
    at: Instant,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let (nodes, kills): (usize, usize) = (args.nodes.into(), args.kills.into());
    if kills == 0 || kills >= nodes {
        return Err(format!("--kills: of {nodes} nodes 1 to {} can be killed", nodes - 1));
    }
    let dir = std::env::temp_dir().join(format!("phalanx-demo-{}", std::process::id()));
    let cluster = Local::at(dir);
    let shown = show(&cluster, nodes, kills);
    let ended = cluster.down();
    let fine = shown?;
    println!("{} daemons said goodbye; nothing is left behind.", ended?);
    Ok(if fine { ExitCode::SUCCESS } else { crate::EXIT_ERROR.into() })
}

/// By then neighbours are chosen, and wires are up.
const SETTLED: Duration = Duration::from_millis(300);

/// Everything but the end; true when only the killed were taken for dead, and by everybody.
fn show(cluster: &Local, nodes: usize, kills: usize) -> Result<bool, String> {
    println!("Starting {nodes} daemons, one process each, on loopback …");
    let took = cluster.up(nodes, 1)?;
    println!("  all {nodes} see all {nodes} after {:.0} ms.", took.as_secs_f64() * 1e3);
    // Not the first ones only: every k-th, so that neighbours on the ring and seeds are among them.
    let victims: Vec<usize> = (0..kills).map(|i| 1 + i * nodes / kills).collect();
    let survivors: Vec<usize> = (1..=nodes).filter(|n| !victims.contains(n)).collect();
    let heard = listen(cluster, &survivors)?;
    // Who dies while neighbours are still being chosen has no tripwires yet, and is missed by its silence alone, after a second or two.
    std::thread::sleep(SETTLED);
    let names: Vec<String> = victims.iter().map(|n| format!("n{n}")).collect();
    println!("\nkill -9 {} …", names.join(" "));
    let killed = Instant::now();
    victims.iter().for_each(|&n| cluster.node(n).kill());
    let mut times: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    let mut wrong = Vec::new();
    let wanted = survivors.len() * victims.len();
    while times.values().map(Vec::len).sum::<usize>() < wanted {
        let Ok(Heard { survivor, gone, state, at }) = heard.recv_timeout(PATIENCE.saturating_sub(killed.elapsed()))
        else {
            break;
        };
        match names.iter().find(|n| **n == gone) {
            Some(name) if state == State::Failed => times.entry(name).or_default().push(at - killed),
            _ => wrong.push(format!("n{survivor} took {gone} for {}", state.name())),
        }
    }
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    for name in &names {
        let all = times.entry(name).or_default();
        all.sort_unstable();
        match all[..] {
            [] => println!("  {name:5} nobody knows"),
            _ => println!(
                "  {name:5} known to the first survivor after {:.1} ms, to {} of {} after {:.1} ms",
                ms(all[0]),
                all.len(),
                survivors.len(),
                ms(all[all.len() - 1])
            ),
        }
    }
    wrong.iter().for_each(|w| println!("  WRONG: {w}"));
    let all_know = times.values().map(Vec::len).sum::<usize>() == wanted;
    let left = cluster.node(survivors[0]).answer()?.alive;
    println!("\n{left} of {nodes} stand. When a node falls, the ranks close.");
    Ok(all_know && wrong.is_empty() && left == survivors.len())
}

/// Hears of all survivors who is gone. Each listens before this returns.
fn listen(cluster: &Local, survivors: &[usize]) -> Result<mpsc::Receiver<Heard>, String> {
    let (tell, heard) = mpsc::channel();
    for &survivor in survivors {
        let (client, tell) = (Client::new(cluster.node(survivor).socket()), tell.clone());
        let (ready, is_ready) = mpsc::channel();
        std::thread::spawn(move || {
            // From the first event on: the ones before the kill show that the stream runs.
            for event in client.events(Some(0)) {
                let Ok(event) = event else { return };
                let at = Instant::now();
                let _ = ready.send(());
                if let What::Left { member } = event.what {
                    let heard = Heard { survivor, gone: member.name, state: member.state, at };
                    if tell.send(heard).is_err() {
                        return;
                    }
                }
            }
        });
        is_ready.recv_timeout(PATIENCE).map_err(|_| format!("n{survivor} tells no events"))?;
    }
    Ok(heard)
}
