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
use std::net::SocketAddr;
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

/// One cast on its way into our tree, and into those of other zones.
struct Stream {
    office: Office,
    to: To,
    kind: Kind,
    name: String,
    number: u64,
    offset: u64,
    missed: Vec<String>,
    under_way: VecDeque<oneshot::Receiver<Vec<String>>>,
    relays: Vec<Relay>,
    /// Members that it was for, and that are no more.
    gone: usize,
}

/// A cast on its way into the tree of another zone, through one of its members.
struct Relay {
    zone: String,
    to: SocketAddr,
    answers: VecDeque<mpsc::Receiver<Answer>>,
    /// How many the last piece has reached.
    reached: usize,
    has_answered: bool,
}

impl Relay {
    async fn find(office: &Office, zone: &str) -> Result<Self, Refused> {
        let ZoneMembers { members, .. } = operate::members_of(office, zone).await?;
        let to = members.first().ok_or_else(|| gone(zone))?.addr;
        Ok(Self::new(zone.to_owned(), to))
    }

    fn new(zone: String, to: SocketAddr) -> Self {
        Self { zone, to, answers: VecDeque::new(), reached: 0, has_answered: false }
    }

    /// Passes a part of the cast on, in pieces that a question holds.
    async fn send(&mut self, office: &Office, whole: Piece<'_>) -> Result<(), Refused> {
        let mut parts = whole.data.chunks(RELAY_DATA).peekable();
        let mut offset = whole.offset;
        loop {
            let part = parts.next().unwrap_or_default().to_vec();
            let is_end = parts.peek().is_none();
            let (kind, stream, at, last) = (whole.kind, whole.stream, offset, whole.last && is_end);
            let (to, name) = (self.to, whole.name.to_owned());
            offset += part.len() as u64;
            let asked = office.remote.ask(move |agent| {
                agent.relay_piece(to, &Piece { kind, stream, offset: at, last, from: "", name: &name, data: &part })
            });
            self.answers.push_back(asked.await??);
            // Before it has answered once, the link may have to meet it first, and holds little for it until then.
            if self.answers.len() >= if self.has_answered { RELAY_WINDOW } else { 1 } {
                self.hear().await?;
            }
            if is_end {
                return Ok(());
            }
        }
    }

    /// Waits until the zone has the first of the pieces under way.
    async fn hear(&mut self) -> Result<(), Refused> {
        let Some(mut first) = self.answers.pop_front() else { return Ok(()) };
        while let Some(answer) = first.recv().await {
            // Without a payload it was only heard.
            if let Some(text) = answer.payload {
                self.reached = serde_json::from_str::<Reached>(&text).map_or(0, |r| r.reached);
                self.has_answered = true;
                return Ok(());
            }
        }
        Err(gone(&self.zone))
    }

    async fn settle(&mut self) -> Result<usize, Refused> {
        while !self.answers.is_empty() {
            self.hear().await?;
        }
        Ok(self.reached)
    }
}

fn gone(zone: &str) -> Refused {
    let text = format!("nobody in zone `{zone}` passes it on: cast it there again, with `--zone {zone}`");
    Refused::new(StatusCode::BAD_GATEWAY, text)
}

/// Where a cast for all of the cluster has to be passed on.
async fn elsewhere(office: &Office) -> Result<Vec<Relay>, Refused> {
    let relays =
        |members: Vec<(String, SocketAddr)>| members.into_iter().map(|(zone, to)| Relay::new(zone, to)).collect();
    if let Some(members) = office.remote.ask(|agent| agent.elsewhere()).await? {
        return Ok(relays(members));
    }
    let mut members = Vec::new();
    for zone in operate::other_zones(office).await? {
        let Relay { zone, to, .. } = Relay::find(office, &zone).await?;
        members.push((zone, to));
    }
    let supervisor = office.remote.ask(|agent| agent.a_supervisor()).await?;
    members.extend(supervisor.map(|addr| ("supervisors".to_owned(), addr)));
    let known = members.clone();
    office.remote.ask(move |agent| agent.set_elsewhere(Some(known))).await?;
    Ok(relays(members))
}

impl Stream {
    async fn send(&mut self, data: Vec<u8>, last: bool) -> Result<(), Refused> {
        let (kind, number, offset) = (self.kind, self.number, self.offset);
        self.offset += data.len() as u64;
        let data = Arc::new(data);
        while self.is_for_our_tree() {
            let (to, name, data) = (self.to.clone(), self.name.clone(), Arc::clone(&data));
            let sent = self.office.remote.ask(move |agent| {
                let piece = Piece { kind, stream: number, offset, last, from: "", name: &name, data: &data };
                agent.cast_piece(&to, &piece)
            });
            match (sent.await?, &mut self.to) {
                (Ok(Sent::Under(told)), _) => {
                    self.under_way.push_back(told);
                    break;
                }
                // It is asked again when there may be room.
                (Ok(Sent::Full(room)), _) => _ = room.await,
                // It died since this began: the others get it.
                (Err(CastRefused::Node(Unseated::Unknown(name))), To::Members(names)) if names.contains(&name) => {
                    names.retain(|n| *n != name);
                    self.gone += 1;
                    self.missed.push(name);
                    if names.is_empty() {
                        break;
                    }
                }
                (Err(why), _) => return Err(why.into()),
            }
        }
        while let Some(told) = self.under_way.front_mut() {
            let Ok(missed) = told.try_recv() else { break };
            self.miss(missed);
            self.under_way.pop_front();
        }
        for relay in &mut self.relays {
            let piece = Piece { kind, stream: number, offset, last, from: "", name: &self.name, data: &data };
            relay.send(&self.office, piece).await?;
        }
        Ok(())
    }

    fn is_for_our_tree(&self) -> bool {
        match &self.to {
            To::Zone(_) => false,
            To::Members(names) => !names.is_empty(),
            To::All | To::Here | To::Job(_) => true,
        }
    }

    fn miss(&mut self, missed: Vec<String>) {
        self.missed.extend(missed);
    }

    /// Waits until all have all of it; how many that are, with those who missed it.
    async fn settle(&mut self) -> Result<usize, Refused> {
        while let Some(told) = self.under_way.pop_front() {
            if let Ok(missed) = told.await {
                self.miss(missed);
            }
        }
        self.missed.sort_unstable();
        self.missed.dedup();
        let mut there = match &self.to {
            To::Members(names) => names.len() + self.gone,
            To::Zone(_) => 0,
            To::All | To::Here | To::Job(_) => self.office.remote.ask(|agent| agent.cast_seats().len()).await?,
        };
        for relay in &mut self.relays {
            let settled = relay.settle().await;
            if settled.is_err() {
                self.office.remote.ask(|agent| agent.set_elsewhere(None)).await?;
            }
            there += settled?;
        }
        Ok(there)
    }
}

/// Cast the body to all members of the cluster, of a zone, to some, or to the tasks of a job; answers when all who live have it
#[utoipa::path(post, path = phalanx_api::path::CAST, params(("to" = Option<String>, Query, description = "names of members, with commas between them"), ("zone" = Option<String>, Query, description = "a zone: all its members"), ("job" = Option<String>, Query, description = "a job: its tasks hear it"), ("name" = Option<String>, Query, description = "what the cast is called")), request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses((status = 200, body = Reached), (status = 400, body = Refusal), (status = 404, body = Refusal), (status = 503, body = Refusal)))]
pub(super) async fn cast(
    State(office): State<Office>,
    Query(wanted): Query<Wanted>,
    body: Body,
) -> Result<Json<Reached>, Refused> {
    let (wished, began) = (wanted.to()?, Instant::now());
    let (kind, name) = match &wished {
        To::Job(job) => (Kind::Job, job.clone()),
        To::All | To::Here | To::Members(_) | To::Zone(_) => (Kind::Cast, wanted.name),
    };
    let (number, to) = begin(&office, wished, name.clone()).await?;
    let relays = match &to {
        To::All => elsewhere(&office).await?,
        To::Zone(zone) => vec![Relay::find(&office, zone).await?],
        To::Here | To::Members(_) | To::Job(_) => Vec::new(),
    };
    let (began, mut body) = (if began.elapsed() < SEAT_LOOK { began } else { Instant::now() }, body);
    let (under_way, missed) = (VecDeque::new(), Vec::new());
    let mut stream = Stream { office, to, kind, name, number, offset: 0, missed, under_way, relays, gone: 0 };
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
    let there = stream.settle().await?;
    let us = began.elapsed().as_micros() as u64;
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
