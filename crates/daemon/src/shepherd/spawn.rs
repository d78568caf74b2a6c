//! How a rank's process is started: whether it can be, and then that it is.
//!
//! It ends with the thread that started it (`PR_SET_PDEATHSIG`), whatever ends that thread: a rank must not go on whose shepherd is gone,
//! because another one may be started in its place. What a rank starts itself is adopted by the shepherd, which ends it with the job; what
//! a killed shepherd leaves is found by its environment, see [`sweep`](super::sweep).

use super::exec::{self, Image};
use super::sweep::MARK;
use super::words::Work;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::STDERR_FILENO;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::unistd::{Gid, Pid, Uid, User, geteuid, getgrouplist};
use phalanx_api::run::Program;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where programs are looked for whose environment has no `PATH`.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A user under which ranks run who is not the shepherd's.
#[derive(Clone, Debug)]
pub(super) struct Guise {
    user: Uid,
    group: Gid,
    groups: Vec<Gid>,
}

/// A program that can be started here.
#[derive(Clone, Debug)]
pub(super) struct Fit {
    path: PathBuf,
    program: Program,
}

/// All that ranks of a job have in common here.
#[derive(Clone, Debug)]
pub(super) struct Fits {
    guise: Option<Guise>,
    /// Programs in their order; those that run elsewhere only are not looked for.
    programs: Vec<Option<Fit>>,
}

/// A process that was started, and the shepherd's ends of its files. They do not block.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) pid: Pid,
    pub(super) out: PipeReader,
    pub(super) err: PipeReader,
    pub(super) input: Option<PipeWriter>,
}

/// The program that a rank runs.
pub(super) fn program_of(programs: &[Program], rank: u32) -> Option<usize> {
    let mut end = 0_u32;
    programs.iter().position(|p| {
        end = end.saturating_add(p.ranks);
        rank < end
    })
}

/// Looks whether all that is to run here can run here.
///
/// # Errors
/// Why not, in words that name the program, the directory or the user.
pub(super) fn fit(work: &Work) -> Result<Fits, String> {
    let guise = guise(work.user)?;
    let (user, groups) = match &guise {
        Some(guise) => (guise.user, guise.groups.clone()),
        None => (geteuid(), nix::unistd::getgroups().unwrap_or_default()),
    };
    let mut programs = vec![None; work.programs.len()];
    for &rank in &work.ranks {
        let Some(at) = program_of(&work.programs, rank) else {
            return Err(format!("rank {rank} has no program"));
        };
        if programs[at].is_none() {
            let program = &work.programs[at];
            let path = find(program, user, &groups)?;
            programs[at] = Some(Fit { path, program: program.clone() });
        }
    }
    Ok(Fits { guise, programs })
}

fn guise(user: Option<(u32, u32)>) -> Result<Option<Guise>, String> {
    let ours = geteuid();
    let Some((user, group)) = user.filter(|u| u.0 != ours.as_raw()) else { return Ok(None) };
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    if !ours.is_root() {
        return Err(format!(
            "the daemon here runs as user {ours} and cannot start ranks of user {user}: start it as root"
        ));
    }
    let name = User::from_uid(user).ok().flatten().and_then(|u| CString::new(u.name).ok());
    // One that this node does not know by name is in the one group that was said.
    let groups = name.and_then(|name| getgrouplist(&name, group).ok()).unwrap_or_else(|| vec![group]);
    Ok(Some(Guise { user, group, groups }))
}

/// The file of a program: where it says, or where its own `PATH` leads to; relative names begin where it starts.
fn find(program: &Program, user: Uid, groups: &[Gid]) -> Result<PathBuf, String> {
    let wdir = Path::new(&program.wdir);
    match std::fs::metadata(wdir) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return Err(format!("{} is no directory: choose another one with -wdir", program.wdir)),
        Err(e) => return Err(format!("cannot start in {}: {e}", program.wdir)),
    }
    let name = program.argv.first().filter(|n| !n.is_empty()).ok_or("a program without a name")?;
    let runs = |path: &Path| match std::fs::metadata(path) {
        Ok(meta) if !meta.is_file() => Err("it is no file".to_owned()),
        Ok(meta) if !may_run(&meta, user, groups) => Err(format!("user {user} may not execute it")),
        Ok(_) => Ok(()),
        Err(e) => Err(e.to_string()),
    };
    if name.contains('/') {
        let path = wdir.join(name);
        return runs(&path).map(|()| path).map_err(|e| format!("cannot run {name}: {e}"));
    }
    let path = program.env.iter().find(|(key, _)| key == "PATH").map_or(PATH, |(_, value)| value);
    let found = path.split(':').map(|dir| wdir.join(dir).join(name)).find(|path| runs(path).is_ok());
    found.ok_or_else(|| format!("there is no program `{name}` in PATH, which is {path}"))
}

fn may_run(meta: &std::fs::Metadata, user: Uid, groups: &[Gid]) -> bool {
    let bit = if user.is_root() {
        0o111
    } else if meta.uid() == user.as_raw() {
        0o100
    } else if groups.iter().any(|g| g.as_raw() == meta.gid()) {
        0o010
    } else {
        0o001
    };
    meta.mode() & bit != 0
}

/// The most files that this process may have open: those of many ranks. What it was before is given to ranks.
pub(super) fn open_many_files() -> Option<(rlim_t, rlim_t)> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    // Where it may not be raised fewer ranks find room, and are told so.
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).ok()?;
    Some((soft, hard))
}

/// The end of a pipe or socket that is ours.
pub(super) fn unblocked<F: AsFd>(file: F) -> Result<F, Errno> {
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map(|_| file)
}

impl Fits {
    /// Starts a rank with these variables beside its own. It inherits these files under the numbers that they have.
    ///
    /// # Errors
    /// What the system said; no process is left.
    pub(super) fn start(
        &self,
        work: &Work,
        rank: u32,
        variables: &[(&str, String)],
        files: Option<(rlim_t, rlim_t)>,
        inherited: &[BorrowedFd<'_>],
    ) -> io::Result<Started> {
        let fit = program_of(&work.programs, rank).and_then(|at| self.programs.get(at)?.as_ref());
        let Fit { path, program } = fit.ok_or(io::ErrorKind::NotFound)?;
        let (out, err) = (io::pipe()?, io::pipe()?);
        // One rank reads what is typed; the others find nothing at once.
        let (input, stdin) = match rank {
            0 => {
                let (theirs, ours) = io::pipe()?;
                (Some(unblocked(ours)?), OwnedFd::from(theirs))
            }
            _ => (None, OwnedFd::from(File::open("/dev/null")?)),
        };
        let standard = [above(stdin)?, above(out.1.into())?, above(err.1.into())?];
        let own = program.env.iter().map(|(k, v)| (&k[..], &v[..]));
        let ours = variables.iter().map(|(k, v)| (*k, &v[..])).chain([("PWD", &program.wdir[..])]);
        let image = Image {
            path: &CString::new(path.as_os_str().as_bytes())?,
            argv: &program.argv.iter().map(|word| exec::text(word)).collect::<Result<Vec<_>, _>>()?,
            env: &exec::environment(own.chain(ours))?,
            wdir: &exec::text(&program.wdir)?,
            standard: standard.each_ref().map(AsRawFd::as_raw_fd),
            inherited: &inherited.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>(),
            guise: self.guise.as_ref().map(|g| (g.user, g.group, &g.groups[..])),
            files,
        };
        Ok(Started { pid: image.start()?, out: unblocked(out.0)?, err: unblocked(err.0)?, input })
    }
}

/// A file whose number is none of a standard one.
fn above(file: OwnedFd) -> io::Result<OwnedFd> {
    if file.as_raw_fd() > STDERR_FILENO { Ok(file) } else { file.try_clone() }
}

/// The mark by which a rank is found once its shepherd is gone.
pub(super) fn mark(work: &Work, cluster: &str) -> (&'static str, String) {
    (MARK, super::sweep::mark(work.job, work.attempt, cluster))
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_api::run::OnFailure;

    fn program(argv: &str, wdir: &str) -> Program {
        let env = vec![("PATH".to_owned(), "/nowhere:/bin".to_owned())];
        Program { argv: vec![argv.to_owned()], ranks: 2, env, wdir: wdir.to_owned() }
    }

    fn work(programs: Vec<Program>, ranks: Vec<u32>) -> Work {
        Work {
            job: 1,
            attempt: 0,
            life: 0,
            home: false,
            user: None,
            ranks,
            nodes: Vec::new(),
            names: Vec::new(),
            programs,
            puts: Vec::new(),
            on_failure: OnFailure::Abort,
        }
    }

    #[test]
    fn ranks_run_the_programs_in_their_order() {
        let programs = [program("a", "/"), program("b", "/")];
        assert_eq!(
            (0..5).map(|r| program_of(&programs, r)).collect::<Vec<_>>(),
            [Some(0), Some(0), Some(1), Some(1), None]
        );
    }

    /// What cannot run is said before anything starts, with its name; what runs elsewhere is not looked for.
    #[test]
    fn what_is_missing_is_named() {
        let why = |program: Program| fit(&work(vec![program], vec![0])).expect_err("it cannot run");
        assert!(fit(&work(vec![program("sh", "/")], vec![0, 1])).is_ok());
        assert!(fit(&work(vec![program("./sh", "/bin"), program("none", "/")], vec![0])).is_ok());
        assert!(why(program("phalanx-none", "/")).contains("`phalanx-none` in PATH, which is /nowhere:/bin"));
        assert!(why(program("./none", "/bin")).contains("./none: No such file"));
        let us = geteuid();
        assert!(why(program("/etc/passwd", "/")).contains(&format!("/etc/passwd: user {us} may not execute it")));
        assert!(why(program("/etc", "/")).contains("cannot run /etc: it is no file"));
        assert!(why(program("sh", "/nowhere")).contains("/nowhere: No such file"));
        assert!(why(program("sh", "/etc/passwd")).contains("/etc/passwd is no directory"));
    }
}
