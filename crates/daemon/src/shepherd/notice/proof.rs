//! Whether a process whose word says that it died is dead.
//!
//! The word alone proves nothing: it is also let go when the process becomes another program (`exec`), when the thread that held it ended
//! alone, and when somebody writes to the page. What proves a death, long before the process can be waited for:
//!
//! 1. **No thread of it has memory.** A thread that ends gives up its memory first, and none gets another; so none of them executes the
//!    program any more, and none is inside a system call for it. `/proc/PID/task/TID/exe` says so: it leads nowhere. A thread that is
//!    about to run another program has memory all the time.
//! 2. **Its status is one of a failure**: the last number of `/proc/PID/stat`. The kernel sets it before memory is given up. A status of 0
//!    is no failure, or not ours to see; both wait for the end itself.
//!
//! ⚠ `stat` and `status` hold on to the memory of a process while they are written. Who reads them of one that is ending may be the last
//! to let go, and frees the memory itself, 68 ms for each GiB. So `exe` is asked first, which holds on to nothing; `stat` of a process
//! without memory neither.

use std::fs::{read_dir, read_link, read_to_string};
use std::io::ErrorKind;
use std::path::Path;

/// Fields of `stat` between the name and the status.
const BEFORE_STATUS: usize = 49;

/// The status, as it will be waited for, of a process that has no memory any more; 0 when it is not known. The process is a child that
/// nobody has waited for, or the answer is worth nothing.
pub(super) fn ended(pid: i32) -> Option<i32> {
    let process = format!("/proc/{pid}");
    for thread in read_dir(format!("{process}/task")).ok()? {
        if has_memory(&thread.ok()?.path()) {
            return None;
        }
    }
    // A thread that runs another program takes the number of the first one meanwhile.
    if has_memory(process.as_ref()) {
        return None;
    }
    let stat = read_to_string(format!("{process}/stat")).ok()?;
    Some(status(&stat).unwrap_or_default())
}

fn has_memory(task: &Path) -> bool {
    !matches!(read_link(task.join("exe")), Err(why) if why.kind() == ErrorKind::NotFound)
}

fn status(stat: &str) -> Option<i32> {
    // The name may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(BEFORE_STATUS)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_status_is_read_behind_any_name() {
        let fields: Vec<String> = (3..=52).map(|n| n.to_string()).collect();
        assert_eq!(status(&format!("7 (a) b) {}\n", fields.join(" "))), Some(52));
        assert_eq!(status("7 (a) Z 1"), None);
        assert_eq!(status(""), None);
    }

    /// Who runs has not ended, also under its second program; who has ended says how before anybody waits for it.
    #[test]
    fn only_who_has_ended_has_ended() {
        let start = |script: &str| Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().expect("sh");
        for (script, expected) in [("read a; exit 3", 3 << 8), ("read a; kill -9 $$", 9), ("read a; exec true", 0)] {
            let mut child = start(script);
            let pid = child.id().cast_signed();
            assert_eq!(ended(pid), None, "{script}");
            drop(child.stdin.take());
            let status = loop {
                match ended(pid) {
                    Some(status) => break status,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(status, expected, "{script}");
            let _ = child.wait();
            assert_eq!(ended(pid), None, "nobody is left: {script}");
        }
    }
}
