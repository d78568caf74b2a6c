//! Events, queries, round trips.

use super::Office;
use super::routes::Refused;
use crate::agent::RumourError;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::sse::{Event as Line, KeepAlive, Sse};
use futures_core::Stream;
use phalanx_api::Refusal;
use phalanx_api::operate::RoundTrip;
use phalanx_api::rumours::{Answer, Question, Tale};
use std::convert::Infallible;
use tokio::sync::mpsc;

impl From<RumourError> for Refused {
    fn from(why: RumourError) -> Self {
        let status = match why {
            RumourError::Pace => StatusCode::TOO_MANY_REQUESTS,
            RumourError::NoQuestion(_) | RumourError::NoMember(_) => StatusCode::NOT_FOUND,
            RumourError::Alive(_) => StatusCode::CONFLICT,
            RumourError::Left => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        };
        Self::new(status, why)
    }
}

/// Tell all members something
#[utoipa::path(post, path = phalanx_api::path::EVENT, request_body = Tale, responses((status = 204), (status = 400, body = Refusal), (status = 429, body = Refusal)))]
pub(super) async fn tell(State(office): State<Office>, Json(tale): Json<Tale>) -> Result<StatusCode, Refused> {
    office.remote.ask(move |agent| agent.tell(&tale)).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Ask all members something; answers come as server-sent events, until their time is over
#[utoipa::path(post, path = phalanx_api::path::QUERY, request_body = Question, responses((status = 200, body = Answer, content_type = "text/event-stream"), (status = 400, body = Refusal)))]
pub(super) async fn ask(
    State(office): State<Office>,
    Json(question): Json<Question>,
) -> Result<Sse<impl Stream<Item = Result<Line, Infallible>>>, Refused> {
    let answers = office.remote.ask(move |agent| agent.ask(&question)).await??;
    let lines = futures_util::stream::unfold(answers, |mut answers: mpsc::Receiver<Answer>| async {
        let answer = answers.recv().await?;
        let data = serde_json::to_string(&answer).unwrap_or_default();
        Some((Ok(Line::default().data(data)), answers))
    });
    Ok(Sse::new(lines).keep_alive(KeepAlive::default()))
}

/// This node's answer to a question, once
#[utoipa::path(post, path = "/v1/query/{id}", request_body = String, params(("id" = String, Path, description = "as the event `query` says")), responses((status = 204), (status = 404, body = Refusal)))]
pub(super) async fn answer(
    State(office): State<Office>,
    Path(id): Path<String>,
    payload: String,
) -> Result<StatusCode, Refused> {
    office.remote.ask(move |agent| agent.reply(&id, &payload)).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// The round trip to a member, measured now
#[utoipa::path(get, path = "/v1/rtt/{name}", params(("name" = String, Path, description = "of a member")), responses((status = 200, body = RoundTrip), (status = 404, body = Refusal)))]
pub(super) async fn round_trip(
    State(office): State<Office>,
    Path(name): Path<String>,
) -> Result<Json<RoundTrip>, Refused> {
    let asked = name.clone();
    let took = office.remote.ask(move |agent| agent.ping(&asked)).await??;
    // Dropped when the daemon ends.
    let took = took.await.ok().flatten();
    Ok(Json(RoundTrip { name, ms: took.map(|d| d.as_secs_f64() * 1e3) }))
}

/// Round trips with neighbours, as the traffic with them shows
#[utoipa::path(get, path = phalanx_api::path::RTT, responses((status = 200, body = [RoundTrip])))]
pub(super) async fn round_trips(State(office): State<Office>) -> Result<Json<Vec<RoundTrip>>, Refused> {
    Ok(Json(office.remote.ask(|agent| agent.round_trips()).await?))
}

/// Forget a member that is gone, at all members
#[utoipa::path(post, path = "/v1/force-leave/{name}", params(("name" = String, Path, description = "of a member that is gone")), responses((status = 204), (status = 404, body = Refusal), (status = 409, body = Refusal)))]
pub(super) async fn force_leave(State(office): State<Office>, Path(name): Path<String>) -> Result<StatusCode, Refused> {
    office.remote.ask(move |agent| agent.force_leave(&name)).await??;
    Ok(StatusCode::NO_CONTENT)
}
