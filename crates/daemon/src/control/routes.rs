//! What is where.

use super::{Office, casts, directory as copies, events, jobs, openapi, operate, rumours, runs};
use crate::agent::{Ended, WriteError};
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use phalanx_api::{Attributes, Member, Offer, Phase, Refusal, Service, Status, path};
use phalanx_protocol::directory;

/// The longest body of a request.
const BODY_MAX: usize = 64 * 1024;
/// The longest of a request to start a job.
const RUN_MAX: usize = 4 << 20;
/// How long a request may take.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(15);

/// Why a request was not carried out.
pub(super) struct Refused(StatusCode, String);

impl Refused {
    pub(super) fn new(status: StatusCode, why: impl std::fmt::Display) -> Self {
        Self(status, why.to_string())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(Refusal { error: self.1 })).into_response()
    }
}

impl From<WriteError> for Refused {
    fn from(why: WriteError) -> Self {
        let status = match why {
            WriteError::Left => StatusCode::SERVICE_UNAVAILABLE,
            WriteError::Full => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::BAD_REQUEST,
        };
        Self(status, why.to_string())
    }
}

impl From<Ended> for Refused {
    fn from(ended: Ended) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, ended.to_string())
    }
}

/// Everything there is, the description itself aside.
#[cfg(test)]
pub(super) const PATHS: [&str; 39] = [
    path::STATUS,
    path::MEMBERS,
    path::EVENTS,
    path::ATTRIBUTES,
    "/v1/attrs/{key}",
    path::SERVICES,
    "/v1/services/{service}",
    path::DIRECTORY,
    path::CHANGES,
    path::LEAVE,
    "/v1/force-leave/{name}",
    path::EVENT,
    path::CAST,
    path::CASTS,
    path::SEATS,
    path::QUERY,
    "/v1/query/{id}",
    path::RTT,
    "/v1/rtt/{name}",
    path::KEYS,
    "/v1/keys/members",
    path::FAULTS,
    "/v1/faults/{id}",
    path::CENSUS,
    path::ZONES,
    "/v1/zones/{name}",
    path::SEGMENTS,
    path::FEDERATION,
    path::JOBS,
    "/v1/jobs/{name}",
    path::RUN,
    path::RUNS,
    "/v1/runs/{job}",
    "/v1/runs/{job}/signal",
    path::SLOTS,
    "/v1/slots/{node}/drain",
    path::MANAGERS,
    path::METRICS,
    path::HEALTHZ,
];

pub(super) fn router(office: Office) -> Router {
    Router::new()
        .route(path::STATUS, get(status))
        .route(path::MEMBERS, get(members))
        .route(path::EVENTS, get(events::events))
        .route(path::ATTRIBUTES, get(attributes))
        .route("/v1/attrs/{key}", put(set_attribute).delete(remove_attribute))
        .route(path::SERVICES, get(services).put(offer))
        .route("/v1/services/{service}", delete(withdraw))
        .route(path::DIRECTORY, get(copies::directory))
        .route(path::CHANGES, get(copies::changes))
        .route(path::LEAVE, post(leave))
        .route("/v1/force-leave/{name}", post(rumours::force_leave))
        .route(path::EVENT, post(rumours::tell))
        .route(path::CASTS, get(casts::casts))
        .route(path::SEATS, get(casts::seats).post(casts::repair))
        .route(path::QUERY, post(rumours::ask))
        .route("/v1/query/{id}", post(rumours::answer))
        .route(path::RTT, get(rumours::round_trips))
        .route("/v1/rtt/{name}", get(rumours::round_trip))
        .route(path::KEYS, get(operate::keys).post(operate::change_keys))
        .route("/v1/keys/members", get(operate::all_keys))
        .route(path::FAULTS, get(operate::faults).post(operate::inject).delete(operate::heal_all))
        .route("/v1/faults/{id}", delete(operate::heal))
        .route(path::CENSUS, get(operate::census))
        .route(path::ZONES, get(operate::zones))
        .route("/v1/zones/{name}", get(operate::zone))
        .route(path::SEGMENTS, get(operate::segments))
        .route(path::FEDERATION, get(operate::federation))
        .route(path::JOBS, get(jobs::list))
        .route("/v1/jobs/{name}", get(jobs::view).post(jobs::enter))
        .route(path::RUNS, get(runs::list))
        .route("/v1/runs/{job}", get(runs::show).delete(runs::end))
        .route("/v1/runs/{job}/signal", post(runs::signal))
        .route(path::SLOTS, get(runs::slots))
        .route("/v1/slots/{node}/drain", put(runs::drain).delete(runs::undrain))
        .route(path::MANAGERS, get(runs::managers).post(runs::move_replica))
        .route(path::METRICS, get(operate::metrics))
        .route(path::OPENAPI, get(openapi::openapi))
        .route(path::HEALTHZ, get(healthy))
        .route(path::READYZ, get(ready))
        .fallback(|| async { Refused::new(StatusCode::NOT_FOUND, "there is nothing here: see /v1/openapi.json") })
        .method_not_allowed_fallback(|| async {
            Refused::new(StatusCode::METHOD_NOT_ALLOWED, "this cannot be done here: see /v1/openapi.json")
        })
        .layer(axum::middleware::from_fn(patience))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        // An environment may be long.
        .route(path::RUN, post(runs::run).layer(DefaultBodyLimit::max(RUN_MAX)))
        // Casts are as long as they like, and take as long.
        .route(path::CAST, post(casts::cast).layer(DefaultBodyLimit::disable()))
        .with_state(office)
}

/// A request that cannot be read or carried out in time is given up; answers that are streams may take as long as they like.
async fn patience(request: Request, next: Next) -> Response {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|l| l.to_str().ok()?.parse().ok());
    if length.is_some_and(|l: u64| l > BODY_MAX as u64) {
        let why = format!("a request has at most {BODY_MAX} bytes");
        return Refused::new(StatusCode::PAYLOAD_TOO_LARGE, why).into_response();
    }
    match tokio::time::timeout(PATIENCE, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Refused::new(StatusCode::REQUEST_TIMEOUT, "the request took too long").into_response(),
    }
}

/// How the node is
#[utoipa::path(get, path = path::STATUS, responses((status = 200, body = Status)))]
pub(super) async fn status(State(office): State<Office>) -> Result<Json<Status>, Refused> {
    let status = office.remote.ask(|agent| agent.status()).await?;
    Ok(Json(status.ok_or(Ended)?))
}

/// Everybody whom the node sees, and those who are gone lately
#[utoipa::path(get, path = path::MEMBERS, responses((status = 200, body = [Member])))]
pub(super) async fn members(State(office): State<Office>) -> Result<Json<Vec<Member>>, Refused> {
    Ok(Json(office.remote.ask(|agent| agent.members()).await?))
}

/// What members say of themselves
#[utoipa::path(get, path = path::ATTRIBUTES, responses((status = 200, body = [Attributes])))]
pub(super) async fn attributes(State(office): State<Office>) -> Result<Json<Vec<Attributes>>, Refused> {
    Ok(Json(office.remote.ask(|agent| agent.attributes()).await?))
}

/// Write one of the node's own attributes
#[utoipa::path(put, path = "/v1/attrs/{key}", params(("key" = String, Path, description = "of the attribute")), request_body = String, responses((status = 204), (status = 400, body = Refusal)))]
pub(super) async fn set_attribute(
    State(office): State<Office>,
    Path(key): Path<String>,
    value: String,
) -> Result<StatusCode, Refused> {
    office.remote.ask(move |agent| agent.set_attribute(&key, Some(&value))).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Remove one of the node's own attributes
#[utoipa::path(delete, path = "/v1/attrs/{key}", params(("key" = String, Path, description = "of the attribute")), responses((status = 204)))]
pub(super) async fn remove_attribute(
    State(office): State<Office>,
    Path(key): Path<String>,
) -> Result<StatusCode, Refused> {
    office.remote.ask(move |agent| agent.set_attribute(&key, None)).await??;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(serde::Deserialize)]
pub(super) struct Wanted {
    find: Option<String>,
}

/// Services that are there
#[utoipa::path(get, path = path::SERVICES, params(("find" = Option<String>, Query, description = "an expression, as docs/services.md has it")), responses((status = 200, body = [Service]), (status = 400, body = Refusal)))]
pub(super) async fn services(
    State(office): State<Office>,
    Query(wanted): Query<Wanted>,
) -> Result<Json<Vec<Service>>, Refused> {
    let query = wanted.find.as_deref().map(directory::Query::parse).transpose();
    let query = query.map_err(|e| Refused(StatusCode::BAD_REQUEST, e.to_string()))?;
    Ok(Json(office.remote.ask(move |agent| agent.services(query.as_ref())).await?))
}

/// Offer a service
#[utoipa::path(put, path = path::SERVICES, request_body = Offer, responses((status = 204), (status = 400, body = Refusal)))]
pub(super) async fn offer(State(office): State<Office>, Json(offer): Json<Offer>) -> Result<StatusCode, Refused> {
    office.remote.ask(move |agent| agent.offer(&offer)).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Offer a service no more
#[utoipa::path(delete, path = "/v1/services/{service}", params(("service" = String, Path, description = "NAME or NAME:PORT")), responses((status = 204), (status = 404, body = Refusal)))]
pub(super) async fn withdraw(State(office): State<Office>, Path(service): Path<String>) -> Result<StatusCode, Refused> {
    let (name, port) = match service.split_once(':') {
        Some((name, port)) => match port.parse() {
            Ok(port) => (name.to_owned(), Some(port)),
            Err(_) => return Err(Refused(StatusCode::BAD_REQUEST, format!("`{port}` is no port"))),
        },
        None => (service.clone(), None),
    };
    match office.remote.ask(move |agent| agent.withdraw(&name, port)).await?? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Refused(StatusCode::NOT_FOUND, format!("this node does not offer `{service}`"))),
    }
}

/// Leave the cluster in an orderly way; the daemon ends
#[utoipa::path(post, path = path::LEAVE, responses((status = 202)))]
pub(super) async fn leave(State(office): State<Office>) -> Result<StatusCode, Refused> {
    office.remote.ask(|agent| agent.leave(0)).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Answers as long as the daemon runs
#[utoipa::path(get, path = path::HEALTHZ, responses((status = 200, body = String)))]
pub(super) async fn healthy() -> &'static str {
    "ok\n"
}

/// Answers with 200 when the node is a member
#[utoipa::path(get, path = path::READYZ, responses((status = 200, body = String), (status = 503, body = Refusal)))]
pub(super) async fn ready(State(office): State<Office>) -> Result<&'static str, Refused> {
    let status = office.remote.ask(|agent| agent.status()).await?;
    match status.map(|s| s.phase) {
        Some(Phase::Member) => Ok("ready\n"),
        phase => Err(Refused(StatusCode::SERVICE_UNAVAILABLE, format!("not a member: {phase:?}"))),
    }
}
