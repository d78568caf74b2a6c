//! The control API: HTTP over the daemon's Unix socket, and over TCP where that is wanted. What it says is in `phalanx-api`.
//!
//! It runs on a thread of its own; what it needs of the node it asks the daemon's loop for ([`Remote::ask`]).
//!
//! | file | idea |
//! |---|---|
//! | `server` | connections: how many, how slow, encrypted or not |
//! | [`access`] | who may ask |
//! | `routes` | what is where |
//! | `casts` | what is cast, in and out |
//! | `directory` | the whole directory, and what changes in it |
//! | `events` | the journal as server-sent events |
//! | `rumours` | events, queries, round trips |
//! | `jobs` | jobs and their views |
//! | `runs` | jobs that the manager runs, slots, the manager itself |
//! | `operate` | keys, faults, zones |
//! | `metrics` | figures for Prometheus |
//! | `openapi` | the API's own description |

pub mod access;
mod casts;
mod directory;
mod events;
mod jobs;
mod metrics;
mod openapi;
mod operate;
mod routes;
mod rumours;
mod runs;
mod server;

use crate::agent::journal::Journal;
use crate::agent::{Agent, Remote};
use crate::jobs::Jobs;
use access::Http;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;

/// Only its user may ask a daemon.
const SOCKET_MODE: u32 = 0o600;
/// Unless a group of users may: see [`access`].
const SHARED_MODE: u32 = 0o660;

/// The server of an agent's control API; ends when it is dropped.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
    http: Option<SocketAddr>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What handlers know.
#[derive(Clone)]
struct Office {
    remote: Remote,
    journal: Journal,
    jobs: Jobs,
}

impl Control {
    /// Serves `agent` at the Unix socket `path`, also to users of `group`, and over TCP. What an earlier daemon left there is replaced, unless it still
    /// answers.
    ///
    /// # Errors
    /// What the system said; `AddrInUse` when another daemon answers there.
    pub fn open(agent: &Agent, path: &Path, group: Option<u32>, http: Option<Http>) -> io::Result<Self> {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (unix, tcp) = runtime.block_on(async {
            let tcp = match http {
                Some(http) => Some((TcpListener::bind(http.addr).await?, http)),
                None => None,
            };
            io::Result::Ok((UnixListener::bind(path)?, tcp))
        })?;
        let mode = if group.is_some() { SHARED_MODE } else { SOCKET_MODE };
        std::os::unix::fs::chown(path, None, group)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        let http = tcp.as_ref().map(|(listener, _)| listener.local_addr()).transpose()?;
        let jobs = Jobs::new(agent.remote(), agent.journal(), path, runtime.handle().clone());
        let office = Office { remote: agent.remote(), journal: agent.journal(), jobs: jobs.clone() };
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("control".into()).spawn(move || {
            runtime.block_on(async {
                let app = routes::router(office);
                jobs.find_again().await;
                tokio::select! {
                    // Readers of events never end by themselves: they are cut off.
                    _ = ended => {}
                    () = server::serve_unix(&unix, app.clone()) => {}
                    () = server::serve_tcp(tcp, app) => {}
                }
            });
        })?;
        Ok(Self { path: path.to_owned(), http, end: Some(end), thread: Some(thread) })
    }

    /// Where it is reached over TCP.
    #[must_use]
    pub fn http(&self) -> Option<SocketAddr> {
        self.http
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
        if let Some(thread) = self.thread.take() {
            // It holds nothing that a panic could have broken.
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}
