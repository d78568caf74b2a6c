//! O_cp on the spot: what a wave costs a task when packets cost nothing (PM-1).
//!
//! A whole job in one thread, without sockets: each packet is handed over at once. Everything that a task does for a wave is
//! counted: letters, seals, acknowledgements, the view itself.

use super::task::{company, first_view};
use crate::error::Error;
use phalanx_core::{Addr, Buf, Duration, Instant, Machine, Sink};
use phalanx_protocol::company::{Company, Input, Output};
use phalanx_protocol::view::{self, Task};
use std::collections::VecDeque;
use std::time;

const TASKS: u32 = 47;
/// Between two waves all that waits for a timer happens.
const REST: Duration = Duration::from_millis(20);

/// What companies say.
#[derive(Default)]
struct Tray {
    from: u32,
    packets: VecDeque<(u32, u32, Buf)>,
    settled: bool,
}

impl<'o> Sink<Output<'o>> for Tray {
    fn push(&mut self, output: Output<'o>) {
        match output {
            Output::Transmit { to: Addr::Local(to), packet, .. } => self.packets.push_back((self.from, to, packet)),
            Output::Said { what: view::Output::Settled { .. }, .. } => self.settled = true,
            _ => {}
        }
    }
}

/// µs of work that a wave is for each task: the median of so many waves.
pub(super) fn per_task_us(arity: u32, waves: usize) -> Result<f64, Error> {
    let view = first_view(arity, (0..TASKS).map(Addr::Local))?;
    let (mut now, mut tray) = (Instant::ZERO, Tray::default());
    let mut job: Vec<Company> = (0..TASKS).map(|me| company(me, Addr::Local(me))).collect();
    let mut seat = 0;
    for (me, company) in (0..).zip(&mut job) {
        tray.from = me;
        seat = company.enter(now, Task(me), view.clone(), &mut tray);
    }
    let mut took_us = Vec::new();
    // The first two make the sessions.
    for _ in 0..waves + 2 {
        (tray.from, tray.settled) = (0, false);
        let begun = time::Instant::now();
        job[0].tell(now, seat, view::Input::Checkpoint, &mut tray);
        expire(&mut job[0], now, &mut tray);
        deliver(&mut job, now, &mut tray, true);
        took_us.push(begun.elapsed().as_nanos() as f64 / 1e3 / f64::from(TASKS));
        let settled = tray.settled;
        deliver(&mut job, now, &mut tray, false);
        if !settled && took_us.len() > 2 {
            return Err(Error::Peer { library: "view", reason: "a wave without a network did not settle".into() });
        }
        now += REST;
        for (me, company) in (0..).zip(&mut job) {
            tray.from = me;
            expire(company, now, &mut tray);
        }
        deliver(&mut job, now, &mut tray, false);
    }
    crate::stats::median(&took_us[2..])
        .ok_or_else(|| Error::Peer { library: "view", reason: "no waves were asked for".into() })
}

/// Hands packets over until there are none, or until the wave is settled.
fn deliver(job: &mut [Company], now: Instant, tray: &mut Tray, until_settled: bool) {
    while let Some((from, to, packet)) = tray.packets.pop_front() {
        tray.from = to;
        let mut bytes = packet.bytes().to_vec();
        let input = Input::Arrived { from: Addr::Local(from), bytes: &mut bytes, attached: None };
        job[to as usize].handle(now, input, tray);
        expire(&mut job[to as usize], now, tray);
        if until_settled && tray.settled {
            return;
        }
    }
}

/// Packets are made when their link is asked.
fn expire(company: &mut Company, now: Instant, tray: &mut Tray) {
    while company.deadline() <= now {
        company.expire(now, tray);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_wave_without_a_network_settles_and_costs_something() {
        assert!(super::per_task_us(2, 3).unwrap() > 0.0);
    }
}
