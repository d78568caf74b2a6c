//! `link-throughput`: one direction, as fast as the layer goes, between two processes on two cores.
//!
//! The receiver counts between its own two looks at the clock, in the middle of the stream: connecting, slow start and
//! the end do not count, and what an unreliable layer lost does not either.

use super::claim::{self, Claim};
use super::{Layer, Mode, Tally, layer, layers, places};
use crate::child::Child;
use crate::cores;
use crate::error::Error;
use crate::experiment::{Experiment, Role, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use crate::trials::Samples;
use std::fmt;
use std::time::{Duration, Instant};

/// The experiment.
pub(crate) struct LinkThroughput;

/// Payloads.
const SIZES: [usize; 3] = [64, 1024, 4096];
/// The receiver waits so long after the first message …
const WARM_UP: Duration = Duration::from_millis(100);
/// … and then counts for so long.
const COUNT: Duration = Duration::from_millis(250);
/// A sender stops by itself after this, whatever happens to its parent.
const MAX_SENDING: Duration = Duration::from_secs(1);
/// Bytes handed to the layer between two looks of the sender at its clock.
const BATCH_BYTES: usize = 256 << 10;
/// A receiver that has not reported by then never will.
const PATIENCE: Duration = Duration::from_secs(5);

/// What must hold between two layers.
const CLAIMS: &[Claim] = &[
    Claim { over: "rcl", under: "quinn", must: Must::AtLeast, bound: 2.0, sizes: &[1024, 4096] },
    Claim { over: "rcl", under: "quinn-jumbo", must: Must::Above, bound: 1.0, sizes: &SIZES },
    Claim { over: "rcl", under: "kcp", must: Must::Above, bound: 1.0, sizes: &SIZES },
    Claim { over: "rcl", under: "kcp-sealed", must: Must::Above, bound: 1.0, sizes: &SIZES },
    Claim { over: "rcl", under: "cl", must: Must::AtLeast, bound: 0.92, sizes: &[4096] },
];
/// And the one figure that stands alone: small messages a second over RCL.
const SMALL: (usize, f64) = (64, 10e6);

impl Experiment for LinkThroughput {
    fn name(&self) -> &'static str {
        "link-throughput"
    }

    fn about(&self) -> &'static str {
        "messages a second between two processes: our links beside raw sockets, quinn and KCP"
    }

    fn roles(&self) -> &'static [Role] {
        &[Role { name: "link-sink", play: sink }, Role { name: "link-source", play: source }]
    }

    fn picture(&self) -> Picture {
        Picture { x: "bytes", y: "msgs_per_s", series: &["layer"], only: None, beside: &[] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        if places(Mode::Spin)?.is_none() {
            run.note("nothing was measured: sender and receiver need a core each");
            return Ok(());
        }
        let taking_part: Vec<&Layer> = layers().filter(|l| l.throughput).collect();
        let claims = claim::possible(run, CLAIMS, &taking_part);
        let variants: Vec<Stream> =
            taking_part.iter().flat_map(|l| SIZES.map(|bytes| Stream { layer: l.name, bytes })).collect();
        let key = |layer, bytes| Stream { layer, bytes }.to_string();
        let places: Vec<(&Claim, usize)> =
            claims.iter().flat_map(|&claim| claim.sizes.iter().map(move |&bytes| (claim, bytes))).collect();
        let ratios: Vec<_> = places.iter().map(|&(c, bytes)| (key(c.over, bytes), key(c.under, bytes))).collect();

        let samples = run.rounds(&variants, &ratios, trial);

        for stream in &variants {
            let rate = samples.median(&stream.to_string());
            run.row(row! {
                "layer": stream.layer, "bytes": stream.bytes,
                "msgs_per_s": rate.map(significant), "mb_per_s": rate.map(|r| significant(r * stream.bytes as f64 / 1e6)),
            });
        }
        if taking_part.iter().any(|l| l.name == "rcl") {
            let (bytes, bound) = SMALL;
            let rate = samples.median(&key("rcl", bytes));
            run.check(Check::new(format!("rcl ≥ 10 M msgs/s, {bytes} B"), rate, Must::AtLeast, bound));
        }
        for (&(claim, bytes), keys) in places.iter().zip(&ratios) {
            claim.check(run, &samples, keys, &format!("{bytes} B"));
        }
        Ok(())
    }
}

/// A layer at a size: one pair of processes.
struct Stream {
    layer: &'static str,
    bytes: usize,
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} B", self.layer, self.bytes)
    }
}

fn trial(stream: &Stream, samples: &mut Samples) -> Result<(), Error> {
    let Some((far, near)) = places(Mode::Spin)? else {
        return Ok(());
    };
    let args = |core: usize| vec![stream.layer.to_string(), core.to_string(), stream.bytes.to_string()];
    let sink = Child::start("link-sink", &args(far))?;
    let invitation = sink.line(PATIENCE)?;
    let _source = Child::start("link-source", &[args(near), vec![invitation]].concat())?;
    let line = sink.line(PATIENCE)?;
    let rate: f64 = line.parse().map_err(|_| sink.said(&line))?;
    samples.watch(stream.to_string(), rate);
    Ok(())
}

/// The far process: prints how many messages a second arrived.
fn sink(args: &[String]) -> Result<(), Error> {
    let (layer, bytes, _) = understood(args)?;
    let listener = (layer.listen)(Mode::Spin)?;
    println!("{}", listener.invitation);
    let mut channel = (listener.accept)()?;
    let mut count_for = |time: Duration| -> Result<(Tally, f64), Error> {
        let (start, mut tally) = (Instant::now(), Tally::default());
        while start.elapsed() < time {
            channel.drain(&mut tally)?;
        }
        Ok((tally, start.elapsed().as_secs_f64()))
    };
    count_for(WARM_UP)?;
    let (tally, seconds) = count_for(COUNT)?;
    assert_eq!(tally.bytes, tally.messages * bytes as u64, "messages arrived changed");
    println!("{}", tally.messages as f64 / seconds);
    Ok(())
}

/// The near process: sends until its parent ends it.
fn source(args: &[String]) -> Result<(), Error> {
    let (layer, bytes, rest) = understood(args)?;
    let invitation = rest.first().ok_or_else(|| Error::UnknownRole("link-source".into()))?;
    let mut channel = (layer.connect)(Mode::Spin, invitation)?;
    let message = vec![0x5a; bytes];
    let start = Instant::now();
    while start.elapsed() < MAX_SENDING {
        channel.pump(&message, BATCH_BYTES / bytes)?;
    }
    Ok(())
}

/// Layer, size and the rest of a role's arguments; this process is on its core from here on.
fn understood(args: &[String]) -> Result<(&'static Layer, usize, &[String]), Error> {
    let unfit = || Error::UnknownRole(args.join(" "));
    let [name, core, bytes, rest @ ..] = args else {
        return Err(unfit());
    };
    cores::pin(core.parse().map_err(|_| unfit())?)?;
    Ok((layer(name).ok_or_else(unfit)?, bytes.parse().map_err(|_| unfit())?, rest))
}
