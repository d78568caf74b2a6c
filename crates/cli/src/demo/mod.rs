//! `phalanx demo`: what this is about, in a few seconds, on this machine: a parallel job on real daemons, of which three nodes are killed
//! while it runs, and its answer is right.
//!
//! | file | idea |
//! |---|---|
//! | `rank` | the program that runs |
//! | `story` | one round: a cluster, the job, the kills |
//! | `table` | what happened when, and medians over rounds |

pub(crate) mod rank;
mod story;
mod table;

use crate::ask::{Output, print_json};
use crate::local::Local;
use std::process::ExitCode;
use std::sync::mpsc;
use table::{Demo, Round};

/// What an interrupted command ends with.
const EXIT_INTERRUPTED: u8 = 130;

/// A parallel job on a local cluster of real daemons, of which three nodes are killed while it runs: its answer, and what happened when
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many daemons, and how many ranks
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(6..=64))]
    nodes: u16,
    /// So often, each time with a new cluster; the table has medians then
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Primes below this are counted
    #[arg(long, default_value_t = 1_000_000_000, value_parser = clap::value_parser!(u64).range(1_000_000..=100_000_000_000))]
    limit: u64,
    /// How to print
    #[arg(short, long, default_value = "table")]
    output: Output,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let (tell, interrupts) = mpsc::channel();
    watch_for_interrupts(tell)?;
    let talks = args.output == Output::Table;
    let limit = args.limit;
    // By another way, on one processor, and known before anybody could be asked for it.
    let expected = rank::count_at_once(limit);
    let mut rounds: Vec<Round> = Vec::new();
    for round in 1..=args.rounds {
        if talks && args.rounds > 1 {
            println!("Round {round} of {}", args.rounds);
        }
        let dir = std::env::temp_dir().join(format!("phalanx-demo-{}", std::process::id()));
        let cluster = Local::at(dir);
        let told = story::tell(&cluster, args.nodes.into(), limit, talks, &interrupts);
        let ended = story::end(&cluster, args.nodes.into());
        match told {
            Ok(round) => rounds.push(round),
            Err(story::Stop::Interrupted) => return Ok(EXIT_INTERRUPTED.into()),
            Err(story::Stop::Failed(why)) => return Err(why),
        }
        let ended = ended?;
        if talks {
            println!("  {ended} daemons said goodbye; nothing is left behind.\n");
        }
    }
    let demo = Demo::of(args.nodes, limit, expected, rounds);
    if talks {
        demo.print();
    } else {
        print_json(&demo);
    }
    Ok(if demo.right { ExitCode::SUCCESS } else { crate::EXIT_ERROR.into() })
}

/// What was begun is ended in good order, also when somebody has seen enough.
fn watch_for_interrupts(tell: mpsc::Sender<()>) -> Result<(), String> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    let (ready, is_ready) = mpsc::channel();
    std::thread::spawn(move || {
        runtime.block_on(async {
            let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
            let _ = ready.send(());
            let (Ok(mut interrupt), Ok(mut terminate)) = signals else { return };
            loop {
                tokio::select! { _ = interrupt.recv() => {} _ = terminate.recv() => {} }
                if tell.send(()).is_err() {
                    return;
                }
            }
        });
    });
    is_ready.recv().map_err(|e| e.to_string())
}
