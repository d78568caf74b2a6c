//! Casts: what is to be cast comes in as a body of any length, what was cast goes out as lines of JSON with bytes behind them.

use super::routes::Refused;
use super::{Office, operate};
use crate::agent::casts::{CastRefused, Heard, Sent, To};
use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use phalanx_api::Refusal;
use phalanx_api::casts::{Reached, Seat};
use phalanx_api::rumours::Answer;
use phalanx_api::zones::ZoneMembers;
use phalanx_protocol::node::casts::Refused as Unseated;
use phalanx_wire::piece::{DATA, Kind, Piece};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// A node that has just started has a seat after so long at the latest, unless it is alone with its trouble.
const SEAT_PATIENCE: Duration = Duration::from_secs(5);
const SEAT_LOOK: Duration = Duration::from_millis(20);
/// Data of a piece that is passed on to another zone, as a question to one of its members; and how many are under way.
const RELAY_DATA: usize = 12 << 10;
const RELAY_WINDOW: usize = 32;

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
    zone: Option<String>,
    #[serde(default)]
    name: String,
}

impl Wanted {
    fn to(&self) -> Result<To, Refused> {
        let members = |names: &str| names.split(',').filter(|n| !n.is_empty()).map(str::to_owned).collect();
        match (&self.to, &self.job, &self.zone) {
            (None, None, None) => Ok(To::All),
            (Some(names), None, None) => {
                let names: Vec<String> = members(names);
                if names.is_empty() {
                    return Err(Refused::new(StatusCode::BAD_REQUEST, "`to` names nobody: write to=n1,n2"));
                }
                Ok(To::Members(names))
            }
            (None, Some(job), None) => Ok(To::Job(job.clone())),
            (None, None, Some(zone)) => Ok(To::Zone(zone.clone())),
            _ => Err(Refused::new(StatusCode::BAD_REQUEST, "a cast is for members, for a job or for a zone: name one")),
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
    under_way: VecDeque<oneshot::Receiver<Vec<String>>>,
}

impl Stream {
    async fn send(&mut self, data: Vec<u8>, last: bool) -> Result<(), Refused> {
        let (kind, number, offset) = (self.kind, self.number, self.offset);
        self.offset += data.len() as u64;
        let data = Arc::new(data);
        loop {
            let (to, name, data) = (self.to.clone(), self.name.clone(), Arc::clone(&data));
            let sent = self.office.remote.ask(move |agent| {
                let piece = Piece { kind, stream: number, offset, last, from: "", name: &name, data: &data };
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
#[utoipa::path(post, path = phalanx_api::path::CAST, params(("to" = Option<String>, Query, description = "names of members, with commas between them"), ("zone" = Option<String>, Query, description = "another zone: all its members"), ("job" = Option<String>, Query, description = "a job: its tasks hear it"), ("name" = Option<String>, Query, description = "what the cast is called")), request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses((status = 200, body = Reached), (status = 400, body = Refusal), (status = 404, body = Refusal), (status = 503, body = Refusal)))]
pub(super) async fn cast(
    State(office): State<Office>,
    Query(wanted): Query<Wanted>,
    body: Body,
) -> Result<Json<Reached>, Refused> {
    let (wished, began) = (wanted.to()?, Instant::now());
    let (kind, name) = match &wished {
        To::Job(job) => (Kind::Job, job.clone()),
        To::All | To::Members(_) | To::Zone(_) => (Kind::Cast, wanted.name),
    };
    let (number, to) = begin(&office, wished, name.clone()).await?;
    if let To::Zone(zone) = to {
        return relay(&office, &zone, (number, name), body).await.map(Json);
    }
    let (began, mut body) = (if began.elapsed() < SEAT_LOOK { began } else { Instant::now() }, body);
    let (under_way, missed) = (VecDeque::new(), Vec::new());
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
        To::All | To::Job(_) | To::Zone(_) => stream.office.remote.ask(|agent| agent.cast_seats().len()).await?,
    };
    let Stream { missed, offset, .. } = stream;
    Ok(Json(Reached { reached: there - missed.len().min(there), missed, bytes: offset, us }))
}

/// Casts the body in another zone, through one of its members.
async fn relay(office: &Office, zone: &str, cast: (u64, String), mut body: Body) -> Result<Reached, Refused> {
    let ZoneMembers { members, .. } = operate::members_of(office, zone).await?;
    let gone = || Refused::new(StatusCode::BAD_GATEWAY, format!("nobody in zone `{zone}` passes it on: cast it again"));
    let (to, began) = (members.first().ok_or_else(gone)?.addr, Instant::now());
    let (stream, name) = cast;
    let (mut data, mut offset, mut reached, mut ended) = (Vec::new(), 0, 0, false);
    let mut answers: VecDeque<mpsc::Receiver<Answer>> = VecDeque::new();
    while !ended {
        match body.frame().await {
            Some(Ok(frame)) => data.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Some(Err(e)) => return Err(Refused::new(StatusCode::BAD_REQUEST, format!("the body broke off: {e}"))),
            None => ended = true,
        }
        while data.len() > RELAY_DATA || ended && !data.is_empty() || ended && offset == 0 {
            let rest = data.split_off(data.len().min(RELAY_DATA));
            let (piece, name) = (std::mem::replace(&mut data, rest), name.clone());
            let (at, last) = (offset, ended && data.is_empty());
            offset += piece.len() as u64;
            let asked = office.remote.ask(move |agent| {
                let (kind, from) = (Kind::Cast, "");
                agent.relay_piece(to, &Piece { kind, stream, offset: at, last, from, name: &name, data: &piece })
            });
            answers.push_back(asked.await??);
            if answers.len() >= RELAY_WINDOW {
                reached = answered(&mut answers).await.ok_or_else(gone)?;
            }
            if offset == 0 {
                break;
            }
        }
    }
    while !answers.is_empty() {
        reached = answered(&mut answers).await.ok_or_else(gone)?;
    }
    Ok(Reached { reached, missed: Vec::new(), bytes: offset, us: began.elapsed().as_micros() as u64 })
}

/// How many the first of these pieces has reached.
async fn answered(answers: &mut VecDeque<mpsc::Receiver<Answer>>) -> Option<usize> {
    let mut first = answers.pop_front()?;
    while let Some(answer) = first.recv().await {
        // Without a payload it was only heard.
        if let Some(text) = answer.payload {
            return serde_json::from_str::<Reached>(&text).ok().map(|r| r.reached);
        }
    }
    None
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
