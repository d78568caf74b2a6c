//! Casts: what is to be cast comes in as a body of any length, what was cast goes out as lines of JSON with bytes behind them.

use super::Office;
use super::routes::Refused;
use crate::agent::casts::{CastRefused, Heard, Sent, To};
use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use phalanx_api::Refusal;
use phalanx_api::casts::{Reached, Seat};
use phalanx_protocol::node::casts::Refused as Unseated;
use phalanx_wire::piece::{DATA, Kind, Piece};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// A node that has just started has a seat after so long at the latest, unless it is alone with its trouble.
const SEAT_PATIENCE: Duration = Duration::from_secs(5);
const SEAT_LOOK: Duration = Duration::from_millis(20);

impl From<CastRefused> for Refused {
    fn from(why: CastRefused) -> Self {
        let status = match why {
            CastRefused::NoJob(_) | CastRefused::Node(Unseated::Unknown(_)) => StatusCode::NOT_FOUND,
            CastRefused::Left | CastRefused::Node(Unseated::Seatless) => StatusCode::SERVICE_UNAVAILABLE,
            CastRefused::Listeners => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::BAD_REQUEST,
        };
        Self::new(status, why)
    }
}

/// Whom a cast is for.
#[derive(serde::Deserialize)]
pub(super) struct Wanted {
    to: Option<String>,
    job: Option<String>,
    #[serde(default)]
    name: String,
}

impl Wanted {
    fn to(&self) -> Result<To, Refused> {
        let members = |names: &str| names.split(',').filter(|n| !n.is_empty()).map(str::to_owned).collect();
        match (&self.to, &self.job) {
            (None, None) => Ok(To::All),
            (Some(names), None) => {
                let names: Vec<String> = members(names);
                if names.is_empty() {
                    return Err(Refused::new(StatusCode::BAD_REQUEST, "`to` names nobody: write to=n1,n2"));
                }
                Ok(To::Members(names))
            }
            (None, Some(job)) => Ok(To::Job(job.clone())),
            (Some(_), Some(_)) => {
                Err(Refused::new(StatusCode::BAD_REQUEST, "a cast is for members or for a job: leave one out"))
            }
        }
    }
}

/// One cast on its way into the tree.
struct Stream {
    office: Office,
    to: To,
    kind: Kind,
    name: String,
    number: u64,
    offset: u64,
    missed: Vec<String>,
    under_way: std::collections::VecDeque<oneshot::Receiver<Vec<String>>>,
}

impl Stream {
    async fn send(&mut self, data: Vec<u8>, last: bool) -> Result<(), Refused> {
        let (kind, number, offset) = (self.kind, self.number, self.offset);
        self.offset += data.len() as u64;
        let data = Arc::new(data);
        loop {
            let (to, name, data) = (self.to.clone(), self.name.clone(), Arc::clone(&data));
            let sent = self.office.remote.ask(move |agent| {
                let piece = Piece { kind, stream: number, offset, last, name: &name, data: &data };
                agent.cast_piece(&to, &piece)
            });
            match sent.await?? {
                Sent::Under(told) => {
                    self.under_way.push_back(told);
                    break;
                }
                // It is asked again when there may be room.
                Sent::Full(room) => _ = room.await,
            }
        }
        while let Some(told) = self.under_way.front_mut() {
            let Ok(missed) = told.try_recv() else { break };
            self.miss(missed);
            self.under_way.pop_front();
        }
        Ok(())
    }

    fn miss(&mut self, missed: Vec<String>) {
        self.missed.extend(missed);
    }

    /// Waits until all have all of it.
    async fn settle(&mut self) {
        while let Some(told) = self.under_way.pop_front() {
            if let Ok(missed) = told.await {
                self.miss(missed);
            }
        }
        self.missed.sort_unstable();
        self.missed.dedup();
    }
}

/// Cast the body to all members of the zone, to some, or to the tasks of a job; answers when all who live have it
#[utoipa::path(post, path = phalanx_api::path::CAST, params(("to" = Option<String>, Query, description = "names of members, with commas between them"), ("job" = Option<String>, Query, description = "a job: its tasks hear it"), ("name" = Option<String>, Query, description = "what the cast is called")), request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses((status = 200, body = Reached), (status = 400, body = Refusal), (status = 404, body = Refusal), (status = 503, body = Refusal)))]
pub(super) async fn cast(
    State(office): State<Office>,
    Query(wanted): Query<Wanted>,
    body: Body,
) -> Result<Json<Reached>, Refused> {
    let (wished, began) = (wanted.to()?, Instant::now());
    let (kind, name) = match &wished {
        To::Job(job) => (Kind::Job, job.clone()),
        To::All | To::Members(_) => (Kind::Cast, wanted.name),
    };
    let (number, to) = begin(&office, wished, name.clone()).await?;
    let (began, mut body) = (if began.elapsed() < SEAT_LOOK { began } else { Instant::now() }, body);
    let (under_way, missed) = (std::collections::VecDeque::new(), Vec::new());
    let mut stream = Stream { office, to, kind, name, number, offset: 0, missed, under_way };
    let mut data = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| Refused::new(StatusCode::BAD_REQUEST, format!("the body broke off: {e}")))?;
        let Ok(bytes) = frame.into_data() else { continue };
        data.extend_from_slice(&bytes);
        // The last piece is sent when the body has ended.
        while data.len() > DATA {
            let rest = data.split_off(DATA);
            stream.send(std::mem::replace(&mut data, rest), false).await?;
        }
    }
    stream.send(data, true).await?;
    stream.settle().await;
    let us = began.elapsed().as_micros() as u64;
    let there = match &stream.to {
        To::Members(names) => names.len(),
        To::All | To::Job(_) => stream.office.remote.ask(|agent| agent.cast_seats().len()).await?,
    };
    let Stream { missed, offset, .. } = stream;
    Ok(Json(Reached { reached: there - missed.len().min(there), missed, bytes: offset, us }))
}

/// A node that starts has no seat yet: that is waited for.
async fn begin(office: &Office, to: To, name: String) -> Result<(u64, To), Refused> {
    let until = Instant::now() + SEAT_PATIENCE;
    loop {
        let (to, name) = (to.clone(), name.clone());
        match office.remote.ask(move |agent| agent.begin_cast(&to, &name)).await? {
            Err(CastRefused::Node(Unseated::Seatless)) if Instant::now() < until => {
                tokio::time::sleep(SEAT_LOOK).await;
            }
            other => return Ok(other?),
        }
    }
}

/// What is cast from now on: for each piece a line of JSON, then its bytes
#[utoipa::path(get, path = phalanx_api::path::CASTS, responses((status = 200, body = phalanx_api::casts::Heading, content_type = "application/octet-stream"), (status = 429, body = Refusal)))]
pub(super) async fn casts(State(office): State<Office>) -> Result<Response, Refused> {
    let heard = office.remote.ask(|agent| agent.listen()).await??;
    let pieces = futures_util::stream::unfold(heard, |mut heard: mpsc::Receiver<Arc<Heard>>| async {
        let piece = heard.recv().await?;
        let mut bytes = serde_json::to_vec(&piece.heading).unwrap_or_default();
        bytes.push(b'\n');
        bytes.extend(&piece.data);
        Some((Ok::<_, Infallible>(bytes), heard))
    });
    let headers = [(header::CONTENT_TYPE, "application/octet-stream")];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

/// Who sits where in the tree of casts
#[utoipa::path(get, path = phalanx_api::path::SEATS, responses((status = 200, body = [Seat])))]
pub(super) async fn seats(State(office): State<Office>) -> Result<Json<Vec<Seat>>, Refused> {
    Ok(Json(office.remote.ask(|agent| agent.cast_seats()).await?))
}

/// Fill the holes of the tree now, whatever the policy says
#[utoipa::path(post, path = phalanx_api::path::SEATS, responses((status = 204)))]
pub(super) async fn repair(State(office): State<Office>) -> Result<StatusCode, Refused> {
    office.remote.ask(|agent| agent.repair_all()).await??;
    Ok(StatusCode::NO_CONTENT)
}
