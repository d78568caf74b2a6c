//! The whole directory, and what changes in it: for programs that keep a copy.
//!
//! A copy is taken once and follows the journal from the event that was the last in it. Each second the daemon's *loop* is
//! asked for a beat, which is told behind the events that it knows of: so who hears beats knows that the loop lives, and
//! by their sum that nothing was missed.

use super::Office;
use super::events::Reader;
use super::routes::Refused;
use crate::agent::Remote;
use axum::Json;
use axum::extract::{Query, State};
use axum::response::sse::{Event as Line, Sse};
use axum::response::{IntoResponse, Response};
use phalanx_api::directory::{BEAT_MS, Beat, Directory, Word};
use phalanx_api::{Refusal, path};
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// All that the node knows of the members that are there, services and attributes among it
#[utoipa::path(get, path = path::DIRECTORY, responses((status = 200, body = Directory), (status = 503, body = Refusal)))]
pub(super) async fn directory(State(office): State<Office>) -> Result<Json<Directory>, Refused> {
    Ok(Json(office.remote.ask(|agent| agent.directory()).await?))
}

/// Where a reader begins.
#[derive(serde::Deserialize)]
pub(super) struct Wanted {
    after: u64,
}

/// What followed an event of the directory, as server-sent events; each second a beat
#[utoipa::path(get, path = path::CHANGES, params(("after" = u64, Query, description = "the last event that is known")), responses((status = 200, body = Word, content_type = "text/event-stream")))]
pub(super) async fn changes(State(office): State<Office>, Query(wanted): Query<Wanted>) -> Response {
    let reader = Reader::new(office.journal, wanted.after);
    let follower = Follower { reader, remote: office.remote, beat: None, next: Instant::now() };
    let lines = futures_util::stream::unfold(follower, |mut follower| async {
        let word = follower.next().await?;
        // Each word can be written as JSON: it has no maps with odd keys.
        let data = serde_json::to_string(&word).unwrap_or_default();
        Some((Ok::<_, Infallible>(Line::default().data(data)), follower))
    });
    Sse::new(lines).into_response()
}

struct Follower {
    reader: Reader,
    remote: Remote,
    /// To be told behind its last event.
    beat: Option<Beat>,
    /// When the next one is asked for; the first at once, so that a reader soon knows where it stands.
    next: Instant,
}

impl Follower {
    /// The next word; `None` when the daemon ends.
    async fn next(&mut self) -> Option<Word> {
        loop {
            if let Some(beat) = self.beat.take_if(|beat| beat.beat <= self.reader.after()) {
                return Some(Word::Beat(beat));
            }
            if self.beat.is_none() && self.next <= Instant::now() {
                self.next = Instant::now() + Duration::from_millis(BEAT_MS);
                self.beat = Some(self.remote.ask(|agent| agent.beat()).await.ok()?);
                continue;
            }
            tokio::select! {
                event = self.reader.next() => return Some(Word::Event((*event).clone())),
                () = sleep_until(self.next), if self.beat.is_none() => {}
            }
        }
    }
}
