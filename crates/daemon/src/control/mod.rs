//! The control API: what people and programs ask of a daemon, as HTTP over a Unix socket.
//!
//! It has a thread of its own, so that a slow reader never delays the node; requests about the node are carried out in the
//! agent's loop ([`Remote::ask`]).
//!
//! | file | idea |
//! |---|---|
//! | `routes` | what is where |
//! | `events` | the journal as server-sent events |

mod events;
mod routes;

use crate::agent::journal::Journal;
use crate::agent::{Agent, Remote};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use tokio::net::UnixListener;
use tokio::sync::oneshot;

/// Only its user may ask a daemon.
const SOCKET_MODE: u32 = 0o600;
/// The longest body of a request.
const BODY_MAX: usize = 64 * 1024;

/// The server of an agent's control API; ends when it is dropped.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What handlers know.
#[derive(Clone)]
struct Office {
    remote: Remote,
    journal: Journal,
}

impl Control {
    /// Serves `agent` at the Unix socket `path`. What an earlier daemon left there is replaced, unless it still answers.
    ///
    /// # Errors
    /// What the system said; `AddrInUse` when another daemon answers there.
    pub fn open(agent: &Agent, path: &Path) -> io::Result<Self> {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _guard = runtime.enter();
            UnixListener::bind(path)?
        };
        fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
        let office = Office { remote: agent.remote(), journal: agent.journal() };
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("control".into()).spawn(move || {
            runtime.block_on(async {
                let app = routes::router(office).layer(axum::extract::DefaultBodyLimit::max(BODY_MAX));
                tokio::select! {
                    // Readers of events never end by themselves: they are cut off.
                    _ = ended => {}
                    _ = axum::serve(listener, app).into_future() => {}
                }
            });
        })?;
        Ok(Self { path: path.to_owned(), end: Some(end), thread: Some(thread) })
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
