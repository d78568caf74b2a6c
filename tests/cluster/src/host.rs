//! What a host may lack: room on its disk, processor time, a clock that is right. Needs root; says so where it cannot be had.
//!
//! Everything is named by the process of the test and ends with its owner; what a test that was killed left behind is removed
//! by the next one.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const GROUPS: &str = "/sys/fs/cgroup/cpu";
const GROUP: &str = "phalanx-test-";
/// What takes the room.
const FILLER: &str = "filler";
/// Room for a dozen small files.
const DISK_SIZE: &str = "size=64k";
/// In which a group may use its share of the processor, microseconds.
const PERIOD_US: u32 = 100_000;
/// How long killed processes may take to leave their group.
const EMPTYING: Duration = Duration::from_secs(5);

fn number() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed)
}

/// True for the name of something that a test made which is no more.
fn is_orphan(name: &str, prefix: &str) -> bool {
    let owner =
        name.strip_prefix(prefix).and_then(|rest| rest.split('-').next()).and_then(|pid| pid.parse::<u32>().ok());
    owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

/// A disk so small that it is soon full.
#[derive(Debug)]
pub struct Disk(PathBuf);

impl Disk {
    /// An empty one, mounted at a daemon's directory; its log lies beside it. `None` where nothing can be mounted, which is said on
    /// standard error.
    pub(crate) fn at(dir: &Path) -> Option<Self> {
        sweep_disks();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", DISK_SIZE, "tmpfs"]).arg(dir).stdout(Stdio::null()).stderr(Stdio::null());
        if !mount.status().is_ok_and(|status| status.success()) {
            eprintln!("skipped: nothing can be mounted here");
            return None;
        }
        std::os::unix::fs::symlink(dir.with_extension("log"), dir.join("log")).expect("it is empty");
        Some(Self(dir.to_owned()))
    }

    /// What a file there holds; nothing when it is not there.
    #[must_use]
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }

    /// Fills it to the last byte.
    ///
    /// # Panics
    /// When it has no end.
    pub fn fill(&self) {
        let mut file = fs::File::create(self.0.join(FILLER)).expect("an empty file takes no room");
        let full = (0..1024).any(|_| file.write_all(&[0; 1024]).is_err());
        assert!(full, "a small disk has little room");
    }

    /// There is room again.
    ///
    /// # Panics
    /// When it was not full.
    pub fn free(&self) {
        fs::remove_file(self.0.join(FILLER)).expect("it was filled");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount(&self.0);
    }
}

fn unmount(dir: &Path) {
    let _ = Command::new("umount").arg("-l").arg(dir).stderr(Stdio::null()).status();
}

/// Disks are mounted at `DIRS…/NODE`.
fn sweep_disks() {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    for dir in mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(Path::new) {
        let cluster = dir.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        if cluster.is_some_and(|name| is_orphan(name, crate::DIRS)) {
            unmount(dir);
        }
    }
}

/// Processes that share a part of one processor: each tenth of a second they get their share, and then nothing until the next.
#[derive(Debug)]
pub struct Quota(PathBuf);

impl Quota {
    /// So many of a hundred; `None` where the kernel has no such groups (cgroup v1 `cpu`), which is said on standard error.
    ///
    /// # Panics
    /// When a group can be made and not limited.
    pub fn new(percent: u32) -> Option<Self> {
        sweep_groups();
        let dir = Path::new(GROUPS).join(format!("{GROUP}{}-{}", std::process::id(), number()));
        if !Path::new(GROUPS).join("cpu.shares").exists() || fs::create_dir(&dir).is_err() {
            eprintln!("skipped: no processor quotas here (cgroup v1 `cpu`)");
            return None;
        }
        let quota = Self(dir);
        for (name, value) in [("cpu.cfs_period_us", PERIOD_US), ("cpu.cfs_quota_us", PERIOD_US / 100 * percent)] {
            fs::write(quota.0.join(name), value.to_string()).expect("a group may be limited");
        }
        Some(quota)
    }

    /// Puts a process under it.
    ///
    /// # Panics
    /// When there is no such process.
    pub fn take(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("it runs");
    }

    /// How often somebody had to wait for the next tenth of a second.
    #[must_use]
    pub fn throttled(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("cpu.stat")).unwrap_or_default();
        text.lines().find_map(|l| l.strip_prefix("nr_throttled ")).and_then(|n| n.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let began = Instant::now();
        while fs::remove_dir(&self.0).is_err() && began.elapsed() < EMPTYING {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn sweep_groups() {
    let Ok(entries) = fs::read_dir(GROUPS) else { return };
    let orphans = entries.flatten().filter(|e| e.file_name().to_str().is_some_and(|name| is_orphan(name, GROUP)));
    orphans.for_each(|e| _ = fs::remove_dir(e.path()));
}

/// A wall clock of a daemon's own, which can be set; its monotonic clock is the machine's.
#[derive(Debug)]
pub struct WallClock {
    library: PathBuf,
    file: PathBuf,
}

impl WallClock {
    /// One that is right, set by a file at this place; `None` without `libfaketime`, which is said on standard error.
    pub fn new(file: PathBuf) -> Option<Self> {
        let places = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|e| e.path());
        let library = places.map(|p| p.join("faketime/libfaketime.so.1")).find(|p| p.exists());
        let Some(library) = library else {
            eprintln!("skipped: there is no `libfaketime`");
            return None;
        };
        let clock = Self { library, file };
        clock.set("+0");
        Some(clock)
    }

    /// It is wrong by so much from now on: `+3d`, `-2h`.
    ///
    /// # Panics
    /// When that cannot be written down.
    pub fn set(&self, by: &str) {
        // A reader in between must not find half of it.
        let new = self.file.with_extension("new");
        fs::write(&new, format!("{by}\n")).and_then(|()| fs::rename(&new, &self.file)).expect("a file");
    }

    /// What a command that shall live by this clock is put behind.
    #[must_use]
    pub fn by(&self) -> Vec<String> {
        let (library, file) = (self.library.display(), self.file.display());
        vec![
            "env".to_owned(),
            format!("LD_PRELOAD={library}"),
            format!("FAKETIME_TIMESTAMP_FILE={file}"),
            "FAKETIME_NO_CACHE=1".to_owned(),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
        ]
    }
}
