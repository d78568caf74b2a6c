//! `timer-resolution`: how late a wait ends when nothing but time can end it.
//!
//! Heartbeats and retransmissions stand on this. tokio rounds its timers to the millisecond; the platform asks the
//! kernel for nanoseconds and takes the timer slack away.

use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use crate::stats::quantile;
use crate::trials::Samples;
use phalanx_core::Duration;
use phalanx_daemon::platform::udp::{Options, Udp};
use phalanx_daemon::{Platform, Woke};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration as StdDuration, Instant};
use tokio::runtime::Builder;

/// The experiment.
pub(crate) struct TimerResolution;

/// Waits asked for, in µs: a fast network's retransmission, a heartbeat's jitter, a heartbeat.
const ASKED_US: [u64; 4] = [50, 200, 1_000, 5_000];
/// A trial of one wait takes about so long …
const TRIAL_US: u64 = 50_000;
/// … and at most so many waits.
const MAX_WAITS: u64 = 200;
/// The platform promises to be no later than this, at the median.
const PROMISE_US: f64 = 50.0;

/// Ways to wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiter {
    ThreadSleep,
    TokioSleep,
    UdpPlatform,
}

impl Waiter {
    const ALL: [Self; 3] = [Self::ThreadSleep, Self::TokioSleep, Self::UdpPlatform];
}

impl fmt::Display for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ThreadSleep => "std::thread::sleep",
            Self::TokioSleep => "tokio sleep",
            Self::UdpPlatform => "udp platform wait",
        })
    }
}

impl Experiment for TimerResolution {
    fn name(&self) -> &'static str {
        "timer-resolution"
    }

    fn about(&self) -> &'static str {
        "how late timed waits end: our platform beside tokio and plain sleeping"
    }

    fn picture(&self) -> Picture {
        Picture { x: "asked_us", y: "p50_late_us", series: &["what"], only: None, beside: &[] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let key = |waiter: Waiter, asked: u64, what: &str| format!("{waiter}, {asked} µs, {what}");
        let samples = run.rounds(&Waiter::ALL, &[], |&waiter, samples: &mut Samples| {
            for asked in ASKED_US {
                let mut late_us = on_a_fresh_thread(waiter, asked)?;
                late_us.sort_unstable_by(f64::total_cmp);
                let at = |q| quantile(&late_us, q).expect("at least one wait was made");
                samples.watch(key(waiter, asked, "p50"), at(0.5));
                samples.also(key(waiter, asked, "p99"), at(0.99));
            }
            Ok(())
        });
        for waiter in Waiter::ALL {
            for asked in ASKED_US {
                let value = |what| samples.median(&key(waiter, asked, what)).map(significant);
                run.row(row! {
                    "what": waiter.to_string(), "asked_us": asked,
                    "p50_late_us": value("p50"), "p99_late_us": value("p99"),
                });
            }
        }
        for asked in ASKED_US {
            let late = samples.median(&key(Waiter::UdpPlatform, asked, "p50"));
            let name = format!("udp platform wait late by ≤ 50 µs at the median, {asked} µs asked");
            run.check(Check::new(name, late, Must::AtMost, PROMISE_US));
        }
        Ok(())
    }
}

/// Timer slack belongs to a thread: one waiter must not sharpen the next.
fn on_a_fresh_thread(waiter: Waiter, asked_us: u64) -> Result<Vec<f64>, Error> {
    thread::spawn(move || lateness_us(waiter, asked_us)).join().expect("waiting does not panic")
}

fn lateness_us(waiter: Waiter, asked_us: u64) -> Result<Vec<f64>, Error> {
    let asked = StdDuration::from_micros(asked_us);
    let mut late_us = Vec::new();
    let mut measure = |wait: &mut dyn FnMut()| {
        for _ in 0..(TRIAL_US / asked_us).clamp(1, MAX_WAITS) {
            let start = Instant::now();
            wait();
            late_us.push((start.elapsed().as_secs_f64() - asked.as_secs_f64()) * 1e6);
        }
    };
    match waiter {
        Waiter::ThreadSleep => measure(&mut || thread::sleep(asked)),
        Waiter::TokioSleep => {
            let runtime = Builder::new_current_thread().enable_time().build()?;
            measure(&mut || runtime.block_on(async { tokio::time::sleep(asked).await }));
        }
        Waiter::UdpPlatform => {
            let bind = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let mut platform = Udp::open(Options::at(bind))?;
            measure(&mut || {
                let until = platform.now() + Duration::from_micros(asked_us);
                // A call or a stray packet may end a wait early; only the deadline counts.
                while platform.wait(until) != Woke::Deadline {}
            });
        }
    }
    Ok(late_us)
}
