//! `view`, `tree JOB`, `task`: jobs and their views. `shepherd` is what a daemon starts for each job.

use crate::ask::{Common, Output, failed, print_json, print_table, told};
use phalanx_client::Error;
use phalanx_client::api::jobs::{Job, JobView, OnPartition, Role, TaskInfo, TaskState};
use phalanx_client::jobs::{Event, Join};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// The view of a job: who is in it; without a job, which jobs there are
#[derive(clap::Args)]
pub(crate) struct ViewArgs {
    /// The job
    job: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Becomes a task of a job, and prints what happens until it is ended
#[derive(clap::Args)]
pub(crate) struct TaskArgs {
    /// The job; its rank 0 begins it
    job: String,
    /// Its rank, from 0
    #[arg(long, required_unless_present = "spare", conflicts_with = "spare")]
    rank: Option<u32>,
    /// A spare: takes the rank of a task that fails
    #[arg(long)]
    spare: bool,
    /// How many ranks the job has
    #[arg(long)]
    size: u32,
    /// Children of each task in the job's tree, a power of two; as the job was begun with, or 4
    #[arg(long)]
    arity: Option<u32>,
    /// What tasks do that cannot reach most of the job; as the job was begun with, or primary
    #[arg(long, value_name = "POLICY")]
    on_partition: Option<Policy>,
    /// Leave in good order as soon as all ranks are there
    #[arg(long)]
    leave: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Policy {
    /// Only the part with a majority goes on
    Primary,
    /// Each part goes on
    Continue,
    /// Only the part with a majority goes on, the others end
    Abort,
}

/// Holds the tasks of one job on this node; started by the daemon
#[derive(clap::Args)]
pub(crate) struct ShepherdArgs {
    /// Where tasks connect
    socket: PathBuf,
}

pub(crate) fn shepherd(args: &ShepherdArgs) -> Result<ExitCode, String> {
    let log = std::env::var("PHALANX_LOG").unwrap_or_else(|_| "warn".to_owned());
    let _log = crate::agent::log::Log::start(&log, "text");
    phalanx_daemon::shepherd::run(&args.socket).map(|()| ExitCode::SUCCESS).map_err(|e| e.to_string())
}

pub(crate) fn view(args: &ViewArgs) -> ExitCode {
    let client = args.common.client();
    match &args.job {
        None => told(client.jobs(), |jobs| match args.common.output {
            Output::Json => print_json(&jobs),
            Output::Table => print_table(
                ["JOB", "RANKS", "ARITY", "NODES"],
                jobs.iter().map(|j| [j.name.clone(), j.size.to_string(), j.arity.to_string(), nodes(j)]),
            ),
        }),
        Some(job) => shown(client.job(job), |view| match args.common.output {
            Output::Json => print_json(&view),
            Output::Table => {
                // Nobody reads any more: that is no error.
                let _ = writeln!(std::io::stdout().lock(), "{}", title(&view));
                print_table(["RANK", "TASK", "STATE", "PARENT", "HOST"], view.tasks.iter().map(line));
            }
        }),
    }
}

/// What is not there is no error of the command.
fn shown(result: Result<JobView, Error>, tell: impl FnOnce(JobView)) -> ExitCode {
    match result {
        Err(Error::Refused { status: 404, error }) => {
            eprintln!("phalanx: {error}");
            crate::EXIT_NOTHING.into()
        }
        result => told(result, tell),
    }
}

fn nodes(job: &Job) -> String {
    if job.instance.is_none() { "(waits for rank 0)".to_owned() } else { job.nodes.join(",") }
}

fn title(view: &JobView) -> String {
    let JobView { job, view: name, size, arity, alive, on_partition, .. } = view;
    format!("{job}: view {name}, {alive} alive, {size} ranks, arity {arity}, {} on partition", on_partition.name())
}

fn line(task: &TaskInfo) -> [String; 5] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let here = if task.here { " *" } else { "" };
    [
        or_dash(task.rank.map(|r| r.to_string())),
        task.task.to_string(),
        task.state.name().to_owned(),
        or_dash(task.parent.map(|p| p.to_string())),
        or_dash(task.host.map(|h| format!("{h}{here}"))),
    ]
}

/// The radix tree of a job.
pub(crate) fn tree(common: &Common, job: &str) -> ExitCode {
    shown(common.client().job(job), |view| match common.output {
        Output::Json => print_json(&view),
        // Nobody reads any more: that is no error.
        Output::Table => _ = write!(std::io::stdout().lock(), "{}", drawn(&view)),
    })
}

/// The living hang on their parents; ghosts where they would, on the nearest living ancestor of their seat, come last.
fn drawn(view: &JobView) -> String {
    let mut children: BTreeMap<Option<u32>, Vec<&TaskInfo>> = BTreeMap::new();
    let alive = view.tasks.iter().filter(|t| t.state == TaskState::Alive);
    let root = alive.clone().find(|t| t.parent.is_none()).map(|t| t.task);
    alive.for_each(|t| children.entry(t.parent).or_default().push(t));
    let mut text = format!("{}\n", title(view));
    if let Some(root) = root.and_then(|r| view.tasks.iter().find(|t| t.task == r)) {
        draw(root, &children, "", true, &mut text);
    }
    for state in [TaskState::Gone, TaskState::Awaited] {
        let ghosts: Vec<_> = view.tasks.iter().filter(|t| t.state == state).collect();
        for ghost in ghosts {
            let mark = if state == TaskState::Gone { '✝' } else { '…' };
            let _ = writeln!(text, "{mark} {} {}", label(ghost), state.name());
        }
    }
    text
}

fn label(task: &TaskInfo) -> String {
    let rank = match task.rank {
        Some(rank) if rank == task.task => format!("rank {rank}"),
        Some(rank) => format!("rank {rank} (task {})", task.task),
        None => format!("spare (task {})", task.task),
    };
    let here = if task.here { " *" } else { "" };
    task.host.map_or_else(|| rank.clone(), |host| format!("{rank} @ {host}{here}"))
}

fn draw(
    task: &TaskInfo,
    children: &BTreeMap<Option<u32>, Vec<&TaskInfo>>,
    indent: &str,
    last: bool,
    text: &mut String,
) {
    let (mark, under) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
    let _ = writeln!(text, "{indent}{mark}{}", label(task));
    let indent = format!("{indent}{under}");
    let below = children.get(&Some(task.task)).map(Vec::as_slice).unwrap_or_default();
    for (at, child) in below.iter().enumerate() {
        draw(child, children, &indent, at + 1 == below.len(), text);
    }
}

pub(crate) fn task(args: &TaskArgs) -> ExitCode {
    let client = args.common.client();
    let role = args.rank.map_or(Role::Spare, Role::Rank);
    let on_partition = args.on_partition.map(|p| match p {
        Policy::Primary => OnPartition::Primary,
        Policy::Continue => OnPartition::Continue,
        Policy::Abort => OnPartition::Abort,
    });
    let join = Join { role, arity: args.arity, on_partition, ..Join::rank(0, args.size) };
    let mut task = match client.join_with(&args.job, join) {
        Ok(task) => task,
        Err(e) => return failed(&e),
    };
    loop {
        let event = match task.event() {
            Ok(event) => event,
            Err(e) => return failed(&e),
        };
        print(&event, args.common.output);
        let done = match &event {
            Event::View(view) => {
                if args.leave && view.is_full() && task.leave().is_err() {
                    return crate::EXIT_ERROR.into();
                }
                None
            }
            Event::Excluded { .. } => task.rejoin().err().map(|e| failed(&e)),
            Event::Aborted => Some(crate::EXIT_ERROR.into()),
            Event::Left => Some(ExitCode::SUCCESS),
            _ => None,
        };
        if let Some(code) = done {
            return code;
        }
    }
}

fn print(event: &Event, output: Output) {
    let at_ms =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64() * 1e3);
    let words = match event {
        Event::View(view) => {
            let lists = [("failed", &view.failed), ("joined", &view.joined)].map(|(what, tasks)| match tasks.len() {
                0 => String::new(),
                _ => format!(", {what} {}", tasks.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")),
            });
            let rank = view.rank.map_or_else(|| "spare".to_owned(), |r| format!("rank {r}"));
            format!("view {}: {} alive, {rank}{}{}", view.view, view.tasks.len(), lists[0], lists[1])
        }
        Event::Message { from, body, .. } => format!("task {from} says {}", String::from_utf8_lossy(body)),
        Event::Cast(piece) => format!("{} casts {}", piece.heading.from, String::from_utf8_lossy(&piece.data)),
        Event::Stalled => "stalled: most of the job cannot be reached".to_owned(),
        Event::Excluded { view } => format!("excluded: the others have view {view}; asking to be in again"),
        Event::Aborted => "aborted: most of the job cannot be reached".to_owned(),
        Event::Left => "left".to_owned(),
        other => format!("{other:?}"),
    };
    let text = match output {
        Output::Table => words,
        Output::Json => {
            let (name, view) = match event {
                Event::View(view) => ("view", Some(view)),
                Event::Message { .. } => ("message", None),
                Event::Stalled => ("stalled", None),
                Event::Excluded { .. } => ("excluded", None),
                Event::Aborted => ("aborted", None),
                Event::Left => ("left", None),
                _ => ("other", None),
            };
            serde_json::json!({ "at_ms": at_ms, "event": name, "view": view, "text": words }).to_string()
        }
    };
    let mut out = std::io::stdout().lock();
    // Nobody reads any more: that is no error.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_client::api::jobs::ViewName;

    #[test]
    fn a_tree_shows_ranks_and_ghosts() {
        let task = |task, rank, state, parent| TaskInfo { task, rank, state, parent, host: None, here: false };
        let view = JobView {
            job: "train".into(),
            instance: "00".into(),
            view: ViewName { number: 4, root: 0, stint: 1 },
            size: 4,
            arity: 2,
            on_partition: OnPartition::Primary,
            alive: 4,
            tasks: vec![
                task(0, Some(0), TaskState::Alive, None),
                task(1, None, TaskState::Gone, None),
                task(2, Some(2), TaskState::Alive, Some(0)),
                task(3, Some(3), TaskState::Alive, Some(0)),
                task(4, Some(1), TaskState::Alive, Some(2)),
                task(5, None, TaskState::Awaited, None),
            ],
            more: false,
            counts: Default::default(),
        };
        let expected = "train: view 4.0.1, 4 alive, 4 ranks, arity 2, primary on partition\n\
            └─ rank 0\n\
            \u{20}  ├─ rank 2\n\
            \u{20}  │  └─ rank 1 (task 4)\n\
            \u{20}  └─ rank 3\n\
            ✝ spare (task 1) gone\n\
            … spare (task 5) awaited\n";
        assert_eq!(drawn(&view), expected);
    }
}
