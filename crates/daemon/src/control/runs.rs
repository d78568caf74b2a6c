//! Jobs that the manager runs, the slots they run on, and the manager itself.

use super::Office;
use super::access::Caller;
use super::routes::Refused;
use crate::agent::manager::{ANSWER_PATIENCE, ManagerError};
use crate::jobs::managed;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use phalanx_api::Refusal;
use phalanx_api::manage::{Managers, NodeSlots, ReplicaMove, Run, RunDetail, SignalWanted};
use phalanx_api::run::{RANKS_MAX, RunStarted, RunWanted};
use phalanx_protocol::manager::words::{Answer, Ask};
use tokio::sync::oneshot;

impl From<ManagerError> for Refused {
    fn from(why: ManagerError) -> Self {
        let status = match why {
            ManagerError::TooLong(_) => StatusCode::BAD_REQUEST,
            ManagerError::Nobody(_) | ManagerError::Silent => StatusCode::SERVICE_UNAVAILABLE,
            ManagerError::Busy => StatusCode::TOO_MANY_REQUESTS,
        };
        Self::new(status, why)
    }
}

/// Start a job, with its console on this node
#[utoipa::path(post, path = phalanx_api::path::RUN, request_body = RunWanted, responses((status = 200, body = RunStarted), (status = 400, body = Refusal), (status = 409, body = Refusal), (status = 503, body = Refusal)))]
pub(super) async fn run(
    State(office): State<Office>,
    caller: Option<Extension<Caller>>,
    Json(wanted): Json<RunWanted>,
) -> Result<Json<RunStarted>, Refused> {
    if let Some(wrong) = wrong(&wanted) {
        return Err(Refused::new(StatusCode::BAD_REQUEST, wrong));
    }
    let caller = who(caller);
    let ranks = wanted.ranks();
    let asked = managed::asked(wanted, (caller.user, caller.group), Vec::new()).map_err(ManagerError::TooLong)?;
    match ask(&office, Ask::Run(asked)).await? {
        Answer::Taken { job, name } => {
            let socket = office.jobs.open_console(job, &name, ranks, Some((caller.user, caller.group))).await;
            let socket = socket.map_err(|why| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, why))?;
            Ok(Json(RunStarted { job: name, socket: socket.to_string_lossy().into_owned() }))
        }
        Answer::Done => Err(Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "the manager gave the job no number")),
        Answer::Refused(why) => Err(Refused::new(StatusCode::CONFLICT, why)),
    }
}

/// What makes no sense, whatever the cluster looks like.
fn wrong(wanted: &RunWanted) -> Option<String> {
    if let Some(wrong) = wanted.name.as_deref().and_then(phalanx_api::jobs::wrong_name) {
        return Some(wrong);
    }
    let ranks = wanted.ranks();
    if ranks == 0 || ranks > RANKS_MAX {
        return Some(format!("a job has 1 to {RANKS_MAX} ranks, not {ranks}"));
    }
    let nothing = |p: &phalanx_api::run::Program| p.argv.first().is_none_or(String::is_empty);
    wanted.programs.iter().any(nothing).then(|| "a program has no name: give what is to be run".to_owned())
}

fn who(caller: Option<Extension<Caller>>) -> Caller {
    caller.map_or_else(Caller::daemon, |Extension(caller)| caller)
}

/// What the manager answers.
async fn ask(office: &Office, ask: Ask) -> Result<Answer, Refused> {
    let told = office.remote.ask(move |agent| agent.ask_manager(ask)).await??;
    wait(told).await
}

async fn wait<T>(told: oneshot::Receiver<T>) -> Result<T, Refused> {
    match tokio::time::timeout(ANSWER_PATIENCE, told).await {
        Ok(Ok(answer)) => Ok(answer),
        _ => Err(ManagerError::Silent.into()),
    }
}

/// It is done, or why not.
async fn order(office: &Office, what: Ask) -> Result<StatusCode, Refused> {
    match ask(office, what).await? {
        Answer::Done | Answer::Taken { .. } => Ok(StatusCode::NO_CONTENT),
        Answer::Refused(why) => Err(Refused::new(StatusCode::CONFLICT, why)),
    }
}

/// Jobs that the manager knows
#[utoipa::path(get, path = phalanx_api::path::RUNS, responses((status = 200, body = [Run]), (status = 503, body = Refusal)))]
pub(super) async fn list(State(office): State<Office>) -> Result<Json<Vec<Run>>, Refused> {
    let told = office.remote.ask(|agent| agent.look_at_runs()).await??;
    Ok(Json(wait(told).await?))
}

/// One of them, by name or number, with its ranks and what happened to it
#[utoipa::path(get, path = "/v1/runs/{job}", params(("job" = String, Path, description = "its name or number")), responses((status = 200, body = RunDetail), (status = 404, body = Refusal)))]
pub(super) async fn show(State(office): State<Office>, Path(job): Path<String>) -> Result<Json<RunDetail>, Refused> {
    Ok(Json(find(&office, job).await?))
}

async fn find(office: &Office, job: String) -> Result<RunDetail, Refused> {
    let missing = format!("the manager knows no job `{job}`: see `phalanx job ls`");
    let told = office.remote.ask(move |agent| agent.look_at_run(&job)).await??;
    wait(told).await?.ok_or_else(|| Refused::new(StatusCode::NOT_FOUND, missing))
}

/// End a job: its ranks are killed
#[utoipa::path(delete, path = "/v1/runs/{job}", params(("job" = String, Path, description = "its name or number")), responses((status = 204), (status = 404, body = Refusal), (status = 409, body = Refusal)))]
pub(super) async fn end(
    State(office): State<Office>,
    caller: Option<Extension<Caller>>,
    Path(job): Path<String>,
) -> Result<StatusCode, Refused> {
    let number = find(&office, job).await?.run.number;
    let (job, user) = (phalanx_protocol::manager::words::JobId(number), who(caller).user);
    order(&office, Ask::End { job, uid: user, why: "somebody ended it".to_owned() }).await
}

/// A signal for all ranks of a job
#[utoipa::path(post, path = "/v1/runs/{job}/signal", params(("job" = String, Path, description = "its name or number")), request_body = SignalWanted, responses((status = 204), (status = 400, body = Refusal), (status = 404, body = Refusal)))]
pub(super) async fn signal(
    State(office): State<Office>,
    caller: Option<Extension<Caller>>,
    Path(job): Path<String>,
    Json(wanted): Json<SignalWanted>,
) -> Result<StatusCode, Refused> {
    if !(1..=64).contains(&wanted.signal) {
        return Err(Refused::new(StatusCode::BAD_REQUEST, "signals have numbers from 1 to 64"));
    }
    let number = find(&office, job).await?.run.number;
    let (job, user) = (phalanx_protocol::manager::words::JobId(number), who(caller).user);
    order(&office, Ask::Signal { job, uid: user, signal: wanted.signal }).await
}

/// Nodes that run ranks
#[utoipa::path(get, path = phalanx_api::path::SLOTS, responses((status = 200, body = [NodeSlots]), (status = 503, body = Refusal)))]
pub(super) async fn slots(State(office): State<Office>) -> Result<Json<Vec<NodeSlots>>, Refused> {
    let told = office.remote.ask(|agent| agent.look_at_slots()).await??;
    Ok(Json(wait(told).await?))
}

/// A node gets no new ranks
#[utoipa::path(put, path = "/v1/slots/{node}/drain", params(("node" = String, Path, description = "its name")), responses((status = 204), (status = 409, body = Refusal)))]
pub(super) async fn drain(State(office): State<Office>, Path(node): Path<String>) -> Result<StatusCode, Refused> {
    order(&office, Ask::Drain { node, drained: true }).await
}

/// A node gets new ranks again
#[utoipa::path(delete, path = "/v1/slots/{node}/drain", params(("node" = String, Path, description = "its name")), responses((status = 204), (status = 409, body = Refusal)))]
pub(super) async fn undrain(State(office): State<Office>, Path(node): Path<String>) -> Result<StatusCode, Refused> {
    order(&office, Ask::Drain { node, drained: false }).await
}

/// The manager's replicas
#[utoipa::path(get, path = phalanx_api::path::MANAGERS, responses((status = 200, body = Managers)))]
pub(super) async fn managers(State(office): State<Office>) -> Result<Json<Managers>, Refused> {
    Ok(Json(office.remote.ask(|agent| agent.managers()).await?))
}

/// Move a replica from one node to another
#[utoipa::path(post, path = phalanx_api::path::MANAGERS, request_body = ReplicaMove, responses((status = 204), (status = 409, body = Refusal)))]
pub(super) async fn move_replica(
    State(office): State<Office>,
    Json(wanted): Json<ReplicaMove>,
) -> Result<StatusCode, Refused> {
    order(&office, Ask::Move { from: wanted.from, to: wanted.to }).await
}
