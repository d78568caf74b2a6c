//! `link-latency`: one way through each layer, as half of a round trip between two processes.
//!
//! RL-3 and the yardstick of CL. Two modes, because waking an idle core costs several times what a message does: two
//! cores that poll, and one core that both processes sleep on. Cross-core sleeping would measure the hypervisor.

use super::claim::{self, Claim};
use super::{Layer, Mode, layer, layers, places};
use crate::child::Child;
use crate::cores;
use crate::error::Error;
use crate::experiment::{Experiment, Role, Run};
use crate::plot::Picture;
use crate::report::{Must, row, significant};
use crate::stats::quantile;
use crate::trials::Samples;
use std::fmt;
use std::time::{Duration, Instant};

/// The experiment.
pub(crate) struct LinkLatency;

/// Payloads of RL-3.
const SIZES: [usize; 4] = [4, 64, 1024, 4096];
/// A trial of one size takes so long …
const TRIAL: Duration = Duration::from_millis(25);
/// … and no more round trips than this.
const MAX_PINGS: usize = 20_000;
/// Round trips before the clock runs: caches, congestion windows, branch predictors.
const WARM_UP: usize = 200;
/// A child that takes longer than this is stuck: a datagram was lost, or the other side is gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// What must hold, for each size and mode.
const CLAIMS: &[Claim] = &[
    Claim { over: "cl", under: "udp-sealed", must: Must::AtMost, bound: 1.10, sizes: &SIZES },
    Claim { over: "rcl", under: "cl", must: Must::AtMost, bound: 1.15, sizes: &SIZES },
    Claim { over: "rcl", under: "quinn", must: Must::Below, bound: 1.0, sizes: &SIZES },
    Claim { over: "rcl", under: "quinn-jumbo", must: Must::Below, bound: 1.0, sizes: &SIZES },
    Claim { over: "rcl", under: "kcp-sealed", must: Must::Below, bound: 1.0, sizes: &SIZES },
];

impl Experiment for LinkLatency {
    fn name(&self) -> &'static str {
        "link-latency"
    }

    fn about(&self) -> &'static str {
        "one way between two processes: our links beside raw sockets, quinn and KCP"
    }

    fn roles(&self) -> &'static [Role] {
        &[Role { name: "link-echo", play: echo }, Role { name: "link-ping", play: ping }]
    }

    fn picture(&self) -> Picture {
        Picture { x: "bytes", y: "p50_us", series: &["layer", "mode"], only: None, beside: &[] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let mut modes = Vec::new();
        for mode in Mode::ALL {
            match places(mode)? {
                Some(_) => modes.push(mode),
                None => run.note(format!("mode {mode} is left out: it needs a second core")),
            }
        }
        let taking_part: Vec<&Layer> = layers().filter(|l| l.latency).collect();
        let claims = claim::possible(run, CLAIMS, &taking_part);
        let variants: Vec<Pair> =
            modes.iter().flat_map(|&mode| taking_part.iter().map(move |l| Pair { mode, layer: l.name })).collect();
        let keys = |claim: &Claim, mode, bytes| {
            [claim.over, claim.under].map(|layer| Pair { mode, layer }.key(bytes, "p50_us")).into()
        };
        let mut places = Vec::new();
        for &mode in &modes {
            for &claim in &claims {
                places.extend(claim.sizes.iter().map(|&bytes| (claim, mode, bytes)));
            }
        }
        let ratios: Vec<(String, String)> = places.iter().map(|&(c, mode, bytes)| keys(c, mode, bytes)).collect();

        let samples = run.rounds(&variants, &ratios, trial);

        for pair in &variants {
            for bytes in SIZES {
                let value = |what| samples.median(&pair.key(bytes, what)).map(significant);
                run.row(row! {
                    "layer": pair.layer, "mode": pair.mode.name(), "bytes": bytes,
                    "p50_us": value("p50_us"), "p99_us": value("p99_us"),
                });
            }
        }
        for (&(claim, mode, bytes), keys) in places.iter().zip(&ratios) {
            claim.check(run, &samples, keys, &format!("{mode}, {bytes} B"));
        }
        Ok(())
    }
}

/// A layer in a mode: one pair of processes in each round, for all sizes.
struct Pair {
    mode: Mode,
    layer: &'static str,
}

impl Pair {
    fn key(&self, bytes: usize, what: &str) -> String {
        format!("{self}, {bytes} B, {what}")
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.layer, self.mode)
    }
}

fn trial(pair: &Pair, samples: &mut Samples) -> Result<(), Error> {
    let Some((far, near)) = places(pair.mode)? else {
        return Ok(());
    };
    let args = |core: usize| vec![pair.layer.to_string(), pair.mode.to_string(), core.to_string()];
    let echo = Child::start("link-echo", &args(far))?;
    let invitation = echo.line(PATIENCE)?;
    let ping = Child::start("link-ping", &[args(near), vec![invitation]].concat())?;
    for bytes in SIZES {
        let line = ping.line(PATIENCE)?;
        let figures: Option<Vec<f64>> = line.split(' ').map(|word| word.parse().ok()).collect();
        let Some([p50, p99]) = figures.as_deref() else {
            return Err(ping.said(&line));
        };
        samples.watch(pair.key(bytes, "p50_us"), *p50);
        samples.also(pair.key(bytes, "p99_us"), *p99);
    }
    Ok(())
}

/// The far process: answers until its parent ends it.
fn echo(args: &[String]) -> Result<(), Error> {
    let (layer, mode, _) = understood(args)?;
    let listener = (layer.listen)(mode)?;
    println!("{}", listener.invitation);
    let mut channel = (listener.accept)()?;
    let mut message = Vec::new();
    loop {
        channel.recv(&mut message)?;
        channel.send(&message)?;
    }
}

/// The near process: prints the median and the 99th percentile of one way in µs, a line for each size, and stays so
/// that the far side does not see it go.
fn ping(args: &[String]) -> Result<(), Error> {
    let (layer, mode, rest) = understood(args)?;
    let invitation = rest.first().ok_or_else(|| Error::UnknownRole("link-ping".into()))?;
    let mut channel = (layer.connect)(mode, invitation)?;
    let mut reply = Vec::new();
    let mut one_way_us = Vec::with_capacity(MAX_PINGS);
    for bytes in SIZES {
        let message = vec![0x5a; bytes];
        one_way_us.clear();
        for _ in 0..WARM_UP {
            channel.send(&message)?;
            channel.recv(&mut reply)?;
        }
        let start = Instant::now();
        let mut sent = start;
        while one_way_us.len() < MAX_PINGS && sent - start < TRIAL {
            sent = Instant::now();
            channel.send(&message)?;
            channel.recv(&mut reply)?;
            one_way_us.push(sent.elapsed().as_nanos() as f64 / 2e3);
        }
        assert_eq!(reply, message, "an echo came back changed");
        one_way_us.sort_unstable_by(f64::total_cmp);
        let at = |q| quantile(&one_way_us, q).expect("at least one round trip was made");
        println!("{:.4} {:.4}", at(0.5), at(0.99));
    }
    Ok(())
}

/// Layer, mode and the rest of a role's arguments; this process is on its core from here on.
fn understood(args: &[String]) -> Result<(&'static Layer, Mode, &[String]), Error> {
    let unfit = || Error::UnknownRole(args.join(" "));
    let [name, mode, core, rest @ ..] = args else {
        return Err(unfit());
    };
    cores::pin(core.parse().map_err(|_| unfit())?)?;
    Ok((layer(name).ok_or_else(unfit)?, Mode::named(mode).ok_or_else(unfit)?, rest))
}
