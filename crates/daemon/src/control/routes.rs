//! What is where.

use super::{Office, events};
use crate::agent::{Ended, WriteError};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use phalanx_api::{Attributes, Member, Offer, Phase, Refusal, Service, Status, path};
use phalanx_protocol::directory;

/// Why a request was not carried out.
pub(super) struct Refused(StatusCode, String);

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

pub(super) fn router(office: Office) -> Router {
    Router::new()
        .route(path::STATUS, get(status))
        .route(path::MEMBERS, get(members))
        .route(path::EVENTS, get(events::events))
        .route(path::ATTRIBUTES, get(attributes))
        .route("/v1/attrs/{key}", put(set_attribute).delete(remove_attribute))
        .route(path::SERVICES, get(services).put(offer))
        .route("/v1/services/{service}", delete(withdraw))
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

async fn attributes(State(office): State<Office>) -> Result<Json<Vec<Attributes>>, Refused> {
    Ok(Json(office.remote.ask(|agent| agent.attributes()).await?))
}

async fn set_attribute(
    State(office): State<Office>,
    Path(key): Path<String>,
    value: String,
) -> Result<StatusCode, Refused> {
    office.remote.ask(move |agent| agent.set_attribute(&key, Some(&value))).await??;
    Ok(StatusCode::NO_CONTENT)
}

async fn remove_attribute(State(office): State<Office>, Path(key): Path<String>) -> Result<StatusCode, Refused> {
    office.remote.ask(move |agent| agent.set_attribute(&key, None)).await??;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(serde::Deserialize)]
struct Wanted {
    find: Option<String>,
}

async fn services(State(office): State<Office>, Query(wanted): Query<Wanted>) -> Result<Json<Vec<Service>>, Refused> {
    let query = wanted.find.as_deref().map(directory::Query::parse).transpose();
    let query = query.map_err(|e| Refused(StatusCode::BAD_REQUEST, e.to_string()))?;
    Ok(Json(office.remote.ask(move |agent| agent.services(query.as_ref())).await?))
}

async fn offer(State(office): State<Office>, Json(offer): Json<Offer>) -> Result<StatusCode, Refused> {
    office.remote.ask(move |agent| agent.offer(&offer)).await??;
    Ok(StatusCode::NO_CONTENT)
}

async fn withdraw(State(office): State<Office>, Path(service): Path<String>) -> Result<StatusCode, Refused> {
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
