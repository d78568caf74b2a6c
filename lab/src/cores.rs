//! Which cores this process may use, and pinning a thread to one of them.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The calling thread, to the scheduler's calls.
const THIS_THREAD: Pid = Pid::from_raw(0);

/// The cores this thread may run on, lowest first.
pub(crate) fn allowed() -> nix::Result<Vec<usize>> {
    let set = sched_getaffinity(THIS_THREAD)?;
    Ok((0..CpuSet::count()).filter(|&core| set.is_set(core).unwrap_or(false)).collect())
}

/// Keeps the calling thread, and what it starts from now on, on `core`.
pub(crate) fn pin(core: usize) -> nix::Result<()> {
    let mut set = CpuSet::new();
    set.set(core)?;
    sched_setaffinity(THIS_THREAD, &set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_use_its_core_alone() {
        let cores = allowed().unwrap();
        let last = *cores.last().unwrap();
        std::thread::spawn(move || {
            pin(last).unwrap();
            assert_eq!(allowed().unwrap(), [last]);
        })
        .join()
        .unwrap();
        assert_eq!(allowed().unwrap(), cores, "other threads keep theirs");
    }
}
