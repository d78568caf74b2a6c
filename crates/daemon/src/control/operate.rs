//! Keys, faults, zones, figures.

use super::Office;
use super::metrics::Figures;
use super::routes::Refused;
use crate::agent::zones::Known;
use crate::agent::{FaultError, KeyError};
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use futures_util::future::select_ok;
use phalanx_api::Refusal;
use phalanx_api::federation::Federation;
use phalanx_api::operate::{Fault, KeyChange, KeyRing};
use phalanx_api::rumours::Answer;
use phalanx_api::segments::Level;
use phalanx_api::zones::{Census, Zone, ZoneMembers};
use phalanx_core::Duration;
use phalanx_protocol::member::Name;
use std::collections::BTreeMap;
use tokio::sync::mpsc;

/// All members answer for their keys within this time.
const PATIENCE: Duration = Duration::from_secs(2);

impl From<KeyError> for Refused {
    fn from(why: KeyError) -> Self {
        let status = match why {
            KeyError::Overtaken | KeyError::Known(_) => StatusCode::CONFLICT,
            KeyError::Random(_) => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        };
        Self::new(status, why)
    }
}

impl From<FaultError> for Refused {
    fn from(why: FaultError) -> Self {
        let status = match why {
            FaultError::Missing(_) => StatusCode::NOT_FOUND,
            FaultError::Full => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::BAD_REQUEST,
        };
        Self::new(status, why)
    }
}

/// The cluster's keys, as this node has them
#[utoipa::path(get, path = phalanx_api::path::KEYS, responses((status = 200, body = KeyRing)))]
pub(super) async fn keys(State(office): State<Office>) -> Result<Json<KeyRing>, Refused> {
    Ok(Json(office.remote.ask(|agent| agent.key_ring()).await?))
}

#[derive(serde::Deserialize)]
pub(super) struct Wanted {
    /// As many answers as that, and no more waiting.
    expect: Option<usize>,
}

/// The cluster's keys, as each member has them, by name
#[utoipa::path(get, path = "/v1/keys/members", responses((status = 200, body = BTreeMap<String, KeyRing>)))]
pub(super) async fn all_keys(
    State(office): State<Office>,
    Query(wanted): Query<Wanted>,
) -> Result<Json<BTreeMap<String, KeyRing>>, Refused> {
    let asked = office.remote.ask(|agent| (agent.ask_keys(PATIENCE), agent.members())).await?;
    let (mut answers, members) = (asked.0?, asked.1);
    let alive = members.iter().filter(|m| m.state == phalanx_api::State::Alive).count();
    let expected = wanted.expect.unwrap_or(alive);
    let mut rings = BTreeMap::new();
    while rings.len() < expected
        && let Some(answer) = answers.recv().await
    {
        if let Some(ring) = answer.payload.and_then(|text| serde_json::from_str(&text).ok()) {
            rings.insert(answer.from, ring);
        }
    }
    Ok(Json(rings))
}

/// Change the cluster's keys, at all members
#[utoipa::path(post, path = phalanx_api::path::KEYS, request_body = KeyChange, responses((status = 200, body = KeyRing), (status = 400, body = Refusal), (status = 409, body = Refusal)))]
pub(super) async fn change_keys(
    State(office): State<Office>,
    Json(change): Json<KeyChange>,
) -> Result<Json<KeyRing>, Refused> {
    Ok(Json(office.remote.ask(move |agent| agent.change_keys(&change)).await??))
}

/// Faults that are injected into this node's traffic
#[utoipa::path(get, path = phalanx_api::path::FAULTS, responses((status = 200, body = [Fault])))]
pub(super) async fn faults(State(office): State<Office>) -> Result<Json<Vec<Fault>>, Refused> {
    Ok(Json(office.remote.ask(|agent| agent.faults()).await?))
}

/// Inject a fault: a rule in TOML
#[utoipa::path(post, path = phalanx_api::path::FAULTS, request_body = String, responses((status = 200, body = Fault), (status = 400, body = Refusal)))]
pub(super) async fn inject(State(office): State<Office>, rule: String) -> Result<Json<Fault>, Refused> {
    Ok(Json(office.remote.ask(move |agent| agent.inject(&rule)).await??))
}

/// Heal all faults of this node
#[utoipa::path(delete, path = phalanx_api::path::FAULTS, responses((status = 204)))]
pub(super) async fn heal_all(State(office): State<Office>) -> Result<StatusCode, Refused> {
    office.remote.ask(|agent| agent.heal(None)).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Heal a fault
#[utoipa::path(delete, path = "/v1/faults/{id}", params(("id" = u32, Path, description = "of the fault")), responses((status = 204), (status = 404, body = Refusal)))]
pub(super) async fn heal(State(office): State<Office>, Path(id): Path<u32>) -> Result<StatusCode, Refused> {
    office.remote.ask(move |agent| agent.heal(Some(id))).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// All zones, and how many members each has
#[utoipa::path(get, path = phalanx_api::path::CENSUS, responses((status = 200, body = Census)))]
pub(super) async fn census(State(office): State<Office>) -> Result<Json<Census>, Refused> {
    let mine = office.remote.ask(|agent| agent.zone_alone()).await?;
    let mut census = match office.remote.ask(|agent| agent.census()).await?? {
        Known::Here(census) => return Ok(Json(census)),
        Known::Elsewhere(asked) => match first(asked, census_part).await {
            Some(census) => census,
            // No supervisor answers: this is what we know by ourselves.
            None => return Ok(Json(mine)),
        },
    };
    for zone in &mut census.zones {
        zone.mine = mine.zones.iter().any(|z| z.name == zone.name);
    }
    Ok(Json(census))
}

/// Zones that are not ours.
pub(super) async fn other_zones(office: &Office) -> Result<Vec<String>, Refused> {
    let mine = office.remote.ask(|agent| agent.zone_alone()).await?;
    let silent = || {
        let text = "no supervisor says which zones there are: cast in ours alone with `--zone`, or try again";
        Refused::new(StatusCode::SERVICE_UNAVAILABLE, text)
    };
    let census = match office.remote.ask(|agent| agent.census()).await?? {
        Known::Here(census) => census,
        Known::Elsewhere(asked) => first(asked, census_part).await.ok_or_else(silent)?,
    };
    let is_other = |zone: &Zone| zone.members > 0 && mine.zones.iter().all(|z| z.name != zone.name);
    Ok(census.zones.into_iter().filter(is_other).map(|zone| zone.name).collect())
}

/// The groups that the node takes part in, from its own segment up
#[utoipa::path(get, path = "/v1/segments", responses((status = 200, body = Vec<Level>)))]
pub(super) async fn segments(State(office): State<Office>) -> Result<Json<Vec<Level>>, Refused> {
    Ok(Json(office.remote.ask(|agent| agent.segments()).await?))
}

/// What the node knows of other data centres
#[utoipa::path(get, path = phalanx_api::path::FEDERATION, responses((status = 200, body = Federation)))]
pub(super) async fn federation(State(office): State<Office>) -> Result<Json<Federation>, Refused> {
    Ok(Json(office.remote.ask(|agent| agent.federation()).await?))
}

/// All zones
#[utoipa::path(get, path = phalanx_api::path::ZONES, responses((status = 200, body = [Zone])))]
pub(super) async fn zones(office: State<Office>) -> Result<Json<Vec<Zone>>, Refused> {
    let Json(census) = census(office).await?;
    Ok(Json(census.zones))
}

/// The members of a zone
#[utoipa::path(get, path = "/v1/zones/{name}", params(("name" = String, Path, description = "of the zone")), responses((status = 200, body = ZoneMembers), (status = 404, body = Refusal), (status = 429, body = Refusal)))]
pub(super) async fn zone(State(office): State<Office>, Path(name): Path<String>) -> Result<Json<ZoneMembers>, Refused> {
    members_of(&office, &name).await.map(Json)
}

/// The members of a zone, as it or its supervisors know them.
pub(super) async fn members_of(office: &Office, name: &str) -> Result<ZoneMembers, Refused> {
    let zone = Name::new(name).map_err(|e| Refused::new(StatusCode::BAD_REQUEST, e))?;
    let found = match office.remote.ask(move |agent| agent.zone(&zone)).await?? {
        Known::Here(found) => found,
        Known::Elsewhere(asked) => first(asked, members_part).await,
    };
    found.ok_or_else(|| Refused::new(StatusCode::NOT_FOUND, format!("no supervisor knows a zone `{name}`")))
}

/// Figures for Prometheus
#[utoipa::path(get, path = phalanx_api::path::METRICS, responses((status = 200, body = String)))]
pub(super) async fn metrics(State(office): State<Office>) -> Result<impl IntoResponse, Refused> {
    let figures = office.remote.ask(|agent| Figures::of(agent)).await?;
    Ok(([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], figures.text()))
}

/// Joins a part of an answer to those before it; true when more follow.
type Join<T> = fn(Option<T>, &str) -> Option<(T, bool)>;

/// The first whole answer of several who were asked.
async fn first<T>(asked: Vec<mpsc::Receiver<Answer>>, join: Join<T>) -> Option<T> {
    let whole = asked.into_iter().map(|mut answers| {
        Box::pin(async move {
            let mut sofar = None;
            while let Some(answer) = answers.recv().await {
                let Some(text) = answer.payload else { continue };
                let (joined, more) = join(sofar.take(), &text).ok_or(())?;
                if !more {
                    return Ok(joined);
                }
                sofar = Some(joined);
            }
            Err(())
        })
    });
    select_ok(whole).await.ok().map(|(found, _)| found)
}

fn census_part(sofar: Option<Census>, text: &str) -> Option<(Census, bool)> {
    let part: Census = serde_json::from_str(text).ok()?;
    let more = part.more;
    let mut zones = sofar.map_or_else(Vec::new, |c| c.zones);
    zones.extend(part.zones);
    Some((Census { zones, more: false, ..part }, more))
}

fn members_part(sofar: Option<ZoneMembers>, text: &str) -> Option<(ZoneMembers, bool)> {
    let part: ZoneMembers = serde_json::from_str(text).ok()?;
    let more = part.more;
    let mut members = sofar.map_or_else(Vec::new, |z| z.members);
    members.extend(part.members);
    Some((ZoneMembers { members, more: false, ..part }, more))
}
