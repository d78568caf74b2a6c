//! Nothing of a dead job stays behind: processes that a job's ranks started are found and killed, wherever they hid.
//!
//! A shepherd adopts what its ranks leave, so what is to be killed descends from it. What a shepherd that was killed itself leaves has
//! another parent; the daemon finds it by a mark in its environment, which all that a rank starts inherits.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The variable by which processes of a job are found.
pub const MARK: &str = "PHALANX_RUN";
/// A process that is killed is gone within this time, but for one that waits for a disk.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(5);

/// Which job and attempt a process belongs to, as its environment says.
#[must_use]
pub fn mark(job: u64, attempt: u32, cluster: &str) -> String {
    format!("{job}.{attempt}@{cluster}")
}

/// A process, as the system lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Listed {
    pid: i32,
    parent: i32,
    group: i32,
    is_dead: bool,
}

/// Reads `/proc/PID/stat`: the name in it may hold anything, a closing bracket too.
fn parse(pid: i32, stat: &str) -> Option<Listed> {
    let mut rest = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = rest.next()?;
    let (parent, group) = (rest.next()?.parse().ok()?, rest.next()?.parse().ok()?);
    Some(Listed { pid, parent, group, is_dead: matches!(state, "Z" | "X") })
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn listed() -> Vec<Listed> {
    // One may end while it is looked at.
    pids().filter_map(|pid| parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)).collect()
}

/// All who descend from a process, the dead but not buried left out.
fn descendants(all: &[Listed], of: i32) -> Vec<Listed> {
    let mut children: BTreeMap<i32, Vec<&Listed>> = BTreeMap::new();
    all.iter().for_each(|p| children.entry(p.parent).or_default().push(p));
    let (mut found, mut next) = (Vec::new(), vec![of]);
    while let Some(pid) = next.pop() {
        // Each once, even where a list that was made while processes came and went has a ring in it.
        for child in children.remove(&pid).into_iter().flatten() {
            next.push(child.pid);
            found.extend((!child.is_dead).then_some(*child));
        }
    }
    found
}

fn end(pid: i32) {
    // It may be gone.
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

/// Kills all who descend from this process; true when somebody was there.
pub(super) fn kill_descendants() -> bool {
    let found = descendants(&listed(), Pid::this().as_raw());
    found.iter().for_each(|p| end(p.pid));
    !found.is_empty()
}

/// Kills what descends from this process and is in the group of a rank that has ended.
pub(super) fn kill_group(group: Pid) {
    let found = descendants(&listed(), Pid::this().as_raw());
    found.iter().filter(|p| p.group == group.as_raw()).for_each(|p| end(p.pid));
}

/// The marks of a cluster's processes, and whose they are. Those of other users are seen by root only.
fn marked(cluster: &str) -> Vec<(i32, u64, u32)> {
    let ours = std::process::id().cast_signed();
    let of = |pid: i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let mut variables = environment.split(|b| *b == 0).filter_map(|v| std::str::from_utf8(v).ok());
        let value = variables.find_map(|v| v.strip_prefix(MARK)?.strip_prefix('='))?;
        let (which, of) = value.split_once('@')?;
        let (job, attempt) = which.split_once('.')?;
        (of == cluster).then_some((pid, job.parse().ok()?, attempt.parse().ok()?))
    };
    pids().filter(|&pid| pid != ours).filter_map(of).collect()
}

/// Kills processes of a cluster's jobs on this machine that their shepherds have left, and waits until they are gone: those of which
/// `is_left` says so of job and attempt. Gives how many there were, and false when some are still there.
pub fn sweep(cluster: &str, is_left: impl Fn(u64, u32) -> bool) -> (usize, bool) {
    let (began, mut count) = (Instant::now(), 0);
    loop {
        let found: Vec<_> = marked(cluster).into_iter().filter(|&(_, job, attempt)| is_left(job, attempt)).collect();
        count = count.max(found.len());
        if found.is_empty() {
            return (count, true);
        }
        if began.elapsed() > PATIENCE {
            return (count, false);
        }
        // What they start meanwhile is found by the next look.
        found.iter().for_each(|&(pid, ..)| end(pid));
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pid: i32, parent: i32) -> Listed {
        Listed { pid, parent, group: pid, is_dead: false }
    }

    #[test]
    fn names_of_processes_may_hold_anything() {
        let line = "7 (a) S 1 (x)) R 3 9 9 0 -1 4194304";
        assert_eq!(parse(7, line), Some(Listed { pid: 7, parent: 3, group: 9, is_dead: false }));
        assert_eq!(parse(7, "7 (a) Z 3 9").map(|p| p.is_dead), Some(true));
        assert_eq!(parse(7, "7 (a"), None);
    }

    #[test]
    fn who_descends_is_found_at_any_depth() {
        let all = [of(1, 0), of(5, 1), of(6, 5), of(7, 6), of(8, 1), Listed { is_dead: true, ..of(9, 7) }, of(10, 9)];
        let mut found: Vec<_> = descendants(&all, 5).iter().map(|p| p.pid).collect();
        found.sort_unstable();
        assert_eq!(found, [6, 7, 10]);
    }
}
