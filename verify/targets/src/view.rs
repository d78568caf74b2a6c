//! Letters of views, as an insider may forge them.

use phalanx_core::{Addr, Each, Instant, Machine};
use phalanx_protocol::view::{Config, Input, Member, OnPartition, Output, Person, Start, Task, View};
use phalanx_wire::view::{Letter, VERSION};

const JOB: u64 = 1;
const TASKS: u32 = 5;

/// Any bytes behind a true head, from tasks in and outside of the view, among verdicts and timers: whatever is read is written back as
/// it was, what the member says can be read, and who is in a view is a member of it.
pub fn view_heard(mut bytes: &[u8]) {
    let mut next = || {
        let (&first, rest) = bytes.split_first()?;
        bytes = rest;
        Some(first)
    };
    let Some(setting) = next() else { return };
    let people = (0..TASKS).map(|i| Person { host: Addr::Local(i), boot: 1, stint: 0 });
    let view = View::first(2, people).expect("a good view");
    let policies = [OnPartition::Primary, OnPartition::Continue, OnPartition::Abort];
    let config =
        Config { on_partition: policies[usize::from(setting) / 8 % 3], hooks: setting & 128 != 0, ..Config::default() };
    let me = u32::from(setting) % TASKS;
    let start = Start { job: JOB, host: Addr::Local(me), boot: 1 };
    let mut now = Instant(1_000_000_000);
    let mut member = Member::new(config, start, Task(me), view, now);
    let mut out = Each(|output: Output<'_>| {
        if let Output::Send { bytes, .. } = output {
            assert!(Letter::parse(bytes).is_ok(), "what it says can be read");
        }
    });
    while let Some(step) = next() {
        let from = u32::from(step) / 32 % (TASKS + 1);
        match step % 32 {
            kind @ 1..=19 => {
                let length = next().unwrap_or(0).min(64);
                let body: Vec<u8> = (0..length).map_while(|_| next()).collect();
                let mut letter = vec![VERSION, kind];
                letter.extend_from_slice(&JOB.to_le_bytes());
                letter.extend_from_slice(&[from as u8, me as u8]);
                letter.extend_from_slice(&body);
                if let Ok(read) = Letter::parse(&letter) {
                    let mut written = Vec::new();
                    read.encode(&mut written);
                    assert_eq!(Letter::parse(&written), Ok(read));
                }
                member.handle(now, Input::Heard { from: Addr::Local(from), bytes: &letter }, &mut out);
            }
            20 | 21 => member.handle(now, Input::Failed { tasks: &[Task(from)] }, &mut out),
            22 => member.handle(now, Input::Lost { tasks: &[Task(from)], certain: false }, &mut out),
            23 => member.handle(now, Input::Paused, &mut out),
            24 => member.handle(now, Input::Checkpoint, &mut out),
            25 => member.handle(now, Input::Rejoin { boot: member.boot().wrapping_add(1) }, &mut out),
            26 => member.handle(now, Input::Leave, &mut out),
            _ if member.deadline() != Instant::NEVER => {
                now = now.max(member.deadline());
                member.expire(now, &mut out);
            }
            _ => {}
        }
        if let Some(view) = member.view() {
            assert!(view.contains(member.me()), "self inclusion");
        }
    }
}
