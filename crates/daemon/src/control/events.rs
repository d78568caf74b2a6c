//! The journal as server-sent events. `Last-Event-ID` says where a reader was; without it, it hears what comes from now
//! on.

use super::Office;
use crate::agent::journal::{Journal, KEPT};
use axum::Json;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::sse::{Event as Line, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use phalanx_api::Event;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

/// Events read from the journal at once.
const BATCH: usize = 256;

/// Where a reader begins, and whether it waits for more.
#[derive(serde::Deserialize)]
pub(super) struct Wanted {
    after: Option<u64>,
    follow: Option<bool>,
}

/// What happens, as server-sent events; `Last-Event-ID` or `after` resume. With `follow=false` a list of what is kept
#[utoipa::path(get, path = phalanx_api::path::EVENTS, params(("after" = Option<u64>, Query, description = "the last event that is known"), ("follow" = Option<bool>, Query, description = "false for a list instead of a stream")), responses((status = 200, body = Event, content_type = "text/event-stream")))]
pub(super) async fn events(State(office): State<Office>, Query(wanted): Query<Wanted>, headers: HeaderMap) -> Response {
    let resumed = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let after = resumed.or(wanted.after);
    if wanted.follow == Some(false) {
        let events = office.journal.since(after.unwrap_or(office.journal.first() - 1), KEPT);
        return Json(events.iter().map(Arc::as_ref).collect::<Vec<&Event>>()).into_response();
    }
    let after = after.unwrap_or_else(|| office.journal.last());
    let reader = Reader::new(office.journal, after);
    let lines = futures_util::stream::unfold(reader, |mut reader| async {
        let event = reader.next().await;
        Some((Ok::<_, Infallible>(line(&event)), reader))
    });
    Sse::new(lines).keep_alive(KeepAlive::default()).into_response()
}

fn line(event: &Event) -> Line {
    // Each event can be written as JSON: it has no maps with odd keys.
    let data = serde_json::to_string(event).unwrap_or_default();
    Line::default().id(event.id.to_string()).data(data)
}

/// Reads the journal, one event after the other.
pub(super) struct Reader {
    journal: Journal,
    after: u64,
    read: VecDeque<Arc<Event>>,
}

impl Reader {
    /// Begins behind event `after`.
    pub(super) const fn new(journal: Journal, after: u64) -> Self {
        Self { journal, after, read: VecDeque::new() }
    }

    /// The last event that was read.
    pub(super) const fn after(&self) -> u64 {
        self.after
    }

    /// Waits for the next one. Nothing is lost when nobody waits for it any more.
    pub(super) async fn next(&mut self) -> Arc<Event> {
        loop {
            if let Some(event) = self.read.pop_front() {
                self.after = event.id;
                return event;
            }
            self.read = self.journal.since(self.after, BATCH).into();
            if self.read.is_empty() {
                self.journal.wait(self.after).await;
            }
        }
    }
}
