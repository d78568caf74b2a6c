//! The terminal's end of a job: what ranks write is written here, what is read here goes to rank 0, signals go to all.

use phalanx_client::api::run::{RankEnd, Stream, ToConsole};
use phalanx_client::run::{Job, Word};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Bytes of input that are sent at once.
const PIECE: usize = 16 * 1024;
/// A line without an end is written once it is so long.
const LINE_MAX: usize = 64 * 1024;
const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;

/// Stays with a job until it is over.
pub(super) async fn attend(mut job: Job, tagged: bool) -> ExitCode {
    let mut signals = Signals::new();
    let mut lines = Lines::new(tagged);
    // Why ranks were ended is why the job ended, too.
    let mut noted = String::new();
    let feeder = tokio::spawn(feed(job.input()));
    let status = loop {
        let word = tokio::select! {
            word = job.next() => word,
            signal = signals.next() => {
                // The shepherd is gone when this fails: `next` says so.
                let _ = job.signal(signal).await;
                continue;
            }
        };
        match word {
            Ok(Word::Output { rank, stream, bytes }) => lines.write(rank, stream, &bytes),
            Ok(Word::Told(ToConsole::Ended { rank, end })) => {
                lines.end(rank);
                if let Some(text) = words(end) {
                    eprintln!("phalanx: rank {rank} {text}");
                }
            }
            Ok(Word::Told(ToConsole::Note { text })) if text == noted => {}
            Ok(Word::Told(ToConsole::Note { text })) => {
                eprintln!("phalanx: {text}");
                noted = text;
            }
            Ok(Word::Told(ToConsole::Over { status })) => break status,
            Ok(_) => {}
            Err(e) => {
                eprintln!("phalanx: {e}");
                break crate::EXIT_ERROR.into();
            }
        }
    };
    lines.end_all();
    feeder.abort();
    ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX))
}

/// How a rank ended, where that is worth a line.
fn words(end: RankEnd) -> Option<String> {
    match end {
        RankEnd::Exited(0) => None,
        RankEnd::Exited(status) => Some(format!("ended with status {status}")),
        RankEnd::Killed(number) => Some(match nix::sys::signal::Signal::try_from(number) {
            Ok(signal) => format!("was ended by {signal}"),
            Err(_) => format!("was ended by signal {number}"),
        }),
        RankEnd::Missing(errno) => Some(format!("could not be started: {}", std::io::Error::from_raw_os_error(errno))),
        RankEnd::Lost => Some("was lost with its node".to_owned()),
    }
}

/// Sends what is read here. A terminal that is never typed at holds nobody up: reading is another task's.
async fn feed(mut to: phalanx_client::run::Input) {
    use tokio::io::AsyncReadExt;
    let mut from = tokio::io::stdin();
    let mut bytes = vec![0; PIECE];
    loop {
        match from.read(&mut bytes).await {
            Ok(0) | Err(_) => return to.end().await,
            Ok(length) => {
                if to.write(&bytes[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Signals that are passed on. The second interrupt kills.
struct Signals {
    kinds: Vec<(Signal, i32)>,
    interrupted: bool,
}

impl Signals {
    fn new() -> Self {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()]
            .into_iter()
            .chain([SignalKind::user_defined1(), SignalKind::user_defined2()]);
        let listened = kinds.filter_map(|kind| Some((signal(kind).ok()?, kind.as_raw_value())));
        Self { kinds: listened.collect(), interrupted: false }
    }

    async fn next(&mut self) -> i32 {
        let waits = self.kinds.iter_mut().map(|(signal, number)| {
            Box::pin(async move {
                signal.recv().await;
                *number
            })
        });
        let (number, ..) = futures_util::future::select_all(waits).await;
        if number != SIGINT {
            return number;
        }
        if std::mem::replace(&mut self.interrupted, true) {
            return SIGKILL;
        }
        eprintln!("phalanx: interrupting the job; once more kills it");
        number
    }
}

/// Output, line by line where lines are marked with their rank.
struct Lines {
    tagged: bool,
    begun: BTreeMap<(u32, Stream), Vec<u8>>,
}

impl Lines {
    fn new(tagged: bool) -> Self {
        Self { tagged, begun: BTreeMap::new() }
    }

    fn write(&mut self, rank: u32, stream: Stream, bytes: &[u8]) {
        if !self.tagged {
            return put(stream, &[bytes]);
        }
        let begun = self.begun.entry((rank, stream)).or_default();
        for part in bytes.split_inclusive(|b| *b == b'\n') {
            begun.extend_from_slice(part);
            if part.ends_with(b"\n") || begun.len() > LINE_MAX {
                put(stream, &[format!("[{rank}] ").as_bytes(), begun]);
                begun.clear();
            }
        }
    }

    /// A rank has ended: its last lines may have no end.
    fn end(&mut self, rank: u32) {
        for stream in [Stream::Out, Stream::Err] {
            if let Some(line) = self.begun.remove(&(rank, stream)).filter(|line| !line.is_empty()) {
                put(stream, &[format!("[{rank}] ").as_bytes(), &line, b"\n"]);
            }
        }
    }

    fn end_all(&mut self) {
        for rank in self.begun.keys().map(|key| key.0).collect::<Vec<_>>() {
            self.end(rank);
        }
    }
}

/// Nobody reads any more: that is no error.
fn put(stream: Stream, parts: &[&[u8]]) {
    let write = |out: &mut dyn Write| parts.iter().try_for_each(|p| out.write_all(p)).and_then(|()| out.flush());
    let _ = match stream {
        Stream::Out => write(&mut std::io::stdout().lock()),
        Stream::Err => write(&mut std::io::stderr().lock()),
    };
}
