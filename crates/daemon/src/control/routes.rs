//! What is where.

use super::{Office, events};
use crate::agent::Ended;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use phalanx_api::{Member, Phase, Refusal, Status, path};

/// Why a request was not carried out.
pub(super) struct Refused(StatusCode, String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(Refusal { error: self.1 })).into_response()
    }
}

impl From<Ended> for Refused {
    fn from(ended: Ended) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, ended.to_string())
    }
}

pub(super) fn router(office: Office) -> Router {
    Router::new()
        .route(path::STATUS, get(status))
        .route(path::MEMBERS, get(members))
        .route(path::EVENTS, get(events::events))
        .route(path::LEAVE, post(leave))
        .route(path::HEALTHZ, get(|| async { "ok\n" }))
        .route(path::READYZ, get(ready))
        .fallback(|| async { Refused(StatusCode::NOT_FOUND, "there is nothing here: see /v1/status".to_owned()) })
        .with_state(office)
}

async fn status(State(office): State<Office>) -> Result<Json<Status>, Refused> {
    let status = office.remote.ask(|agent| agent.status()).await?;
    Ok(Json(status.ok_or(Ended)?))
}

async fn members(State(office): State<Office>) -> Result<Json<Vec<Member>>, Refused> {
    Ok(Json(office.remote.ask(|agent| agent.members()).await?))
}

async fn leave(State(office): State<Office>) -> Result<StatusCode, Refused> {
    office.remote.ask(|agent| agent.leave(0)).await?;
    Ok(StatusCode::ACCEPTED)
}

async fn ready(State(office): State<Office>) -> Result<&'static str, Refused> {
    let status = office.remote.ask(|agent| agent.status()).await?;
    match status.map(|s| s.phase) {
        Some(Phase::Member) => Ok("ready\n"),
        phase => Err(Refused(StatusCode::SERVICE_UNAVAILABLE, format!("not a member: {phase:?}"))),
    }
}
