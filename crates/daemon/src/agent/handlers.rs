//! Scripts that are run when something happens.
//!
//! A handler is written `WHAT=COMMAND`. The command is run by the shell, one event after the other, so a script that is slow
//! delays those behind it, never the node. What it is told:
//!
//! | | holds |
//! |---|---|
//! | `PHALANX_EVENT` | `joined`, `left`, `attribute`, `name`, `user`, `query`, `keys`, `gap` |
//! | `PHALANX_EVENT_ID` | its number |
//! | `PHALANX_MEMBER`, `PHALANX_ADDR`, `PHALANX_STATE` | of `joined` and `left` |
//! | `PHALANX_NAME`, `PHALANX_FROM` | of `user` and `query`: what it is called, and who speaks |
//! | standard input | the payload of `user` and `query`; else the event as JSON |
//!
//! What a script says on its standard output when it handles a query is the node's answer.

use super::Remote;
use super::journal::Journal;
use phalanx_api::{Event, State, What};
use std::io;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::sync::watch;

/// A script that runs longer is ended.
const PATIENCE: Duration = Duration::from_secs(30);
/// Events read at once.
const BATCH: usize = 64;
/// What a script may say; the rest is not read.
const SAID_MAX: usize = phalanx_wire::rumour::BODY_MAX;
/// After a script has ended, what it said is waited for.
const REST: Duration = Duration::from_millis(100);

/// A script, and when it is run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handler {
    filters: Vec<Filter>,
    command: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Filter {
    All,
    /// Of one kind; with a name, only what is called so.
    Kind(String, Option<String>),
    /// A member that left in this state.
    Gone(State),
}

/// Why a text is no handler.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HandlerError {
    /// No command.
    #[error("`{0}` is no handler: write WHAT=COMMAND, such as joined,failed=/usr/local/bin/notify")]
    Shape(String),
    /// No such event.
    #[error("`{0}` is nothing that happens: write one of {WHATS}", WHATS = KINDS.join(", "))]
    What(String),
}

const KINDS: [&str; 11] =
    ["*", "joined", "left", "failed", "moved", "attribute", "name", "user[:NAME]", "query:NAME", "keys", "gap"];

impl Handler {
    /// Reads `WHAT=COMMAND`; several WHATs have commas between them.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(text: &str) -> Result<Self, HandlerError> {
        let shape = || HandlerError::Shape(text.to_owned());
        let (whats, command) = text.split_once('=').ok_or_else(shape)?;
        if command.trim().is_empty() || whats.is_empty() {
            return Err(shape());
        }
        let filters = whats.split(',').map(|what| Filter::parse(what.trim())).collect::<Result<_, _>>()?;
        Ok(Self { filters, command: command.to_owned() })
    }

    fn is_for(&self, what: &What) -> bool {
        self.filters.iter().any(|f| f.fits(what))
    }
}

impl Filter {
    fn parse(text: &str) -> Result<Self, HandlerError> {
        let (kind, name) = match text.split_once(':') {
            Some((kind, name)) => (kind, Some(name.to_owned())),
            None => (text, None),
        };
        match (kind, &name) {
            ("*", None) => Ok(Self::All),
            ("failed", None) => Ok(Self::Gone(State::Failed)),
            ("moved", None) => Ok(Self::Gone(State::Moved)),
            ("left", None) => Ok(Self::Gone(State::Left)),
            ("user", _) | ("query", Some(_)) | ("joined" | "attribute" | "name" | "keys" | "gap", None) => {
                Ok(Self::Kind(kind.to_owned(), name))
            }
            _ => Err(HandlerError::What(text.to_owned())),
        }
    }

    fn fits(&self, what: &What) -> bool {
        match (self, what) {
            // Two handlers must not answer one question: they are named.
            (Self::All, what) => !matches!(what, What::Query { .. }),
            (Self::Gone(state), What::Left { member }) => member.state == *state,
            (Self::Gone(_), _) => false,
            (Self::Kind(kind, None), what) => kind == what.name(),
            (Self::Kind(kind, Some(wanted)), What::User { name, .. } | What::Query { name, .. }) => {
                kind == what.name() && wanted == name
            }
            (Self::Kind(..), _) => false,
        }
    }
}

/// The scripts of an agent.
#[derive(Clone, Debug, Default)]
pub struct Handlers(watch::Sender<Vec<Handler>>);

impl Handlers {
    /// These are run from now on.
    pub fn set(&self, handlers: Vec<Handler>) {
        self.0.send_replace(handlers);
    }

    fn of(&self, what: &What) -> Vec<Handler> {
        self.0.borrow().iter().filter(|h| h.is_for(what)).cloned().collect()
    }

    /// Runs scripts as things happen, on a thread of its own.
    ///
    /// # Errors
    /// When there is no thread or no runtime for it.
    pub fn start(&self, journal: Journal, remote: Remote) -> io::Result<()> {
        let handlers = self.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let builder = std::thread::Builder::new().name("handlers".into());
        builder.spawn(move || runtime.block_on(handlers.follow(&journal, &remote))).map(drop)
    }

    async fn follow(&self, journal: &Journal, remote: &Remote) {
        let mut all = self.0.subscribe();
        // Without scripts it sleeps: each wake is time that a node has not when many fail at once.
        while all.wait_for(|all| !all.is_empty()).await.is_ok() {
            let mut after = journal.last();
            while !self.0.borrow().is_empty() {
                journal.wait(after).await;
                for event in journal.since(after, BATCH) {
                    for handler in self.of(&event.what) {
                        run(&handler, &event, remote).await;
                    }
                    after = event.id;
                }
            }
        }
    }
}

async fn run(handler: &Handler, event: &Event, remote: &Remote) {
    match tokio::time::timeout(PATIENCE, output(handler, event)).await {
        Ok(Ok((true, said))) => {
            if let What::Query { query, .. } = &event.what {
                let query = query.clone();
                remote.tell(move |agent| {
                    if let Err(why) = agent.reply(&query, &said) {
                        tracing::warn!("a script's answer was not sent: {why}");
                    }
                });
            }
        }
        Ok(Ok((false, _))) => tracing::warn!(command = handler.command, event = event.id, "a handler failed"),
        Ok(Err(why)) => tracing::warn!(command = handler.command, "a handler could not be run: {why}"),
        Err(_) => {
            tracing::warn!(command = handler.command, "a handler was ended: it took over {} s", PATIENCE.as_secs());
        }
    }
}

/// Runs the command; says whether it ended well, and what it said when it answers a query.
async fn output(handler: &Handler, event: &Event) -> io::Result<(bool, String)> {
    let answers = matches!(event.what, What::Query { .. });
    let mut command = Command::new("/bin/sh");
    // A group of its own: whatever it starts ends with it when it takes too long.
    command.arg("-c").arg(&handler.command).process_group(0);
    command.env("PHALANX_EVENT", event.what.name()).env("PHALANX_EVENT_ID", event.id.to_string());
    // The cluster's key is nobody's business.
    command.env_remove("PHALANX_KEY").stdin(Stdio::piped());
    command.stdout(if answers { Stdio::piped() } else { Stdio::null() });
    let input = match &event.what {
        What::Joined { member } | What::Left { member } => {
            command.env("PHALANX_MEMBER", &member.name).env("PHALANX_ADDR", member.addr.to_string());
            command.env("PHALANX_STATE", member.state.name());
            serde_json::to_string(event).unwrap_or_default()
        }
        What::User { from, name, payload } | What::Query { from, name, payload, .. } => {
            command.env("PHALANX_NAME", name).env("PHALANX_FROM", from);
            payload.clone()
        }
        _ => serde_json::to_string(event).unwrap_or_default(),
    };
    let mut child = command.spawn()?;
    let group = Group(child.id());
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    // A script need not read what it is told.
    let feed = tokio::spawn(async move {
        if let Some(mut stdin) = stdin {
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    });
    let mut said = Vec::new();
    let status = {
        let hear = async {
            if let Some(stdout) = stdout {
                // One more than an answer holds, so that a longer one is noticed.
                let _ = stdout.take(SAID_MAX as u64 + 1).read_to_end(&mut said).await;
            }
        };
        tokio::pin!(hear);
        tokio::select! {
            biased;
            // It has said all, or too much.
            () = &mut hear => child.wait().await?,
            status = child.wait() => {
                // What it left in the pipe; what it started in the background may keep that open.
                let _ = tokio::time::timeout(REST, &mut hear).await;
                status?
            }
        }
    };
    feed.abort();
    std::mem::forget(group);
    let said = fitting(&said).unwrap_or_else(|cut| {
        tracing::warn!(command = handler.command, "an answer of over {SAID_MAX} bytes was cut");
        cut
    });
    Ok((status.success(), said))
}

/// What was said as an answer, or as much of it as one holds.
fn fitting(said: &[u8]) -> Result<String, String> {
    let mut text = String::from_utf8_lossy(said).into_owned();
    if text.len() <= SAID_MAX {
        return Ok(text);
    }
    let end = (0..=SAID_MAX).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    text.truncate(end);
    Err(text)
}

/// The processes of a script that takes too long, ended when this drops.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // All of them may have ended just now.
            let _ =
                nix::sys::signal::killpg(nix::unistd::Pid::from_raw(leader as i32), nix::sys::signal::Signal::SIGKILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_answers_are_cut_between_characters() {
        assert_eq!(fitting(b"short"), Ok("short".to_owned()));
        let umlauts = "ü".repeat(SAID_MAX);
        assert_eq!(fitting(umlauts.as_bytes()), Err("ü".repeat(SAID_MAX / 2)));
        // What is no text takes more room as text.
        assert!(fitting(&[0xff; SAID_MAX]).is_err_and(|cut| cut.len() <= SAID_MAX));
    }
    use phalanx_api::Member;

    fn member(state: State) -> Member {
        Member {
            name: "n1".into(),
            id: "ab".into(),
            addr: "127.0.0.1:1".parse().unwrap(),
            state,
            zone: None,
            incarnation: 1,
            minor: 0,
            me: false,
            part: None,
            teller: None,
        }
    }

    fn user(name: &str) -> What {
        What::User { from: "n2".into(), name: name.into(), payload: "v2".into() }
    }

    #[test]
    fn a_handler_is_run_for_what_it_names() {
        let handler = Handler::parse("joined, failed,user:deploy=echo a=b").unwrap();
        assert_eq!(handler.command, "echo a=b");
        assert!(handler.is_for(&What::Joined { member: member(State::Alive) }));
        assert!(handler.is_for(&What::Left { member: member(State::Failed) }));
        assert!(!handler.is_for(&What::Left { member: member(State::Left) }));
        assert!(handler.is_for(&user("deploy")) && !handler.is_for(&user("other")));
        let all = Handler::parse("*=true").unwrap();
        let query = What::Query { query: "q".into(), from: "n".into(), name: "disk".into(), payload: String::new() };
        assert!(all.is_for(&What::Gap) && !all.is_for(&query));
        assert!(Handler::parse("query:disk=df").unwrap().is_for(&query));
    }

    #[test]
    fn what_is_no_handler_is_refused() {
        for bad in ["", "joined", "=x", "joined=", "joined= "] {
            assert!(matches!(Handler::parse(bad), Err(HandlerError::Shape(_))), "{bad}");
        }
        for bad in ["die=x", "query=x", "joined:n1=x", "joined,=x"] {
            assert!(matches!(Handler::parse(bad), Err(HandlerError::What(_))), "{bad}");
        }
    }

    fn told(command: &str, what: What) -> (bool, String) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handler = Handler::parse(&format!("*={command}")).unwrap();
        runtime.block_on(output(&handler, &Event { id: 7, at_ms: 1, what })).unwrap()
    }

    fn query() -> What {
        What::Query { query: "q".into(), from: "n2".into(), name: "disk".into(), payload: "v2".into() }
    }

    #[test]
    fn a_script_is_told_what_happened() {
        let said = told("echo $PHALANX_EVENT $PHALANX_EVENT_ID $PHALANX_NAME $PHALANX_FROM; cat", query());
        assert_eq!(said, (true, "query 7 disk n2\nv2".to_owned()));
        let left = What::Left { member: member(State::Failed) };
        assert!(told("test $PHALANX_MEMBER.$PHALANX_STATE = n1.failed", left).0);
        assert_eq!(told("test $(cat) = v2 && echo nobody reads this", user("deploy")), (true, String::new()));
        assert!(!told("exit 3", What::Gap).0);
    }

    /// What a script starts in the background does not hold up its answer, and one that never ends to speak is cut off.
    #[test]
    fn an_answer_does_not_wait_for_what_goes_on() {
        let began = std::time::Instant::now();
        assert_eq!(told("echo done; sleep 20 &", query()), (true, "done\n".to_owned()));
        let (ended_well, said) = told("yes", query());
        assert!(!ended_well && said.len() == SAID_MAX);
        assert!(began.elapsed() < PATIENCE);
    }

    /// A script that takes too long ends with all that it started.
    #[test]
    fn a_script_ends_with_all_that_it_started() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mark = std::env::temp_dir().join(format!("phalanx-handler-{}", std::process::id()));
        let handler = Handler::parse(&format!("*=(sleep 1; touch {}) | cat", mark.display())).unwrap();
        let event = Event { id: 1, at_ms: 1, what: What::Gap };
        let ended = runtime.block_on(async {
            tokio::time::timeout(Duration::from_millis(200), output(&handler, &event)).await.is_err()
        });
        assert!(ended);
        std::thread::sleep(Duration::from_millis(1300));
        assert!(!mark.exists(), "a child outlived its script");
    }
}
