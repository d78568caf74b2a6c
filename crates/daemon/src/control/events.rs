//! The journal as server-sent events. `Last-Event-ID` says where a reader was; without it, it hears what comes from now
//! on.

use super::Office;
use crate::agent::journal::Journal;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event as Line, KeepAlive, Sse};
use futures_core::Stream;
use phalanx_api::Event;
use std::collections::VecDeque;
use std::convert::Infallible;

/// Events read from the journal at once.
const BATCH: usize = 256;

pub(super) async fn events(
    State(office): State<Office>,
    headers: HeaderMap,
) -> Sse<impl Stream<Item = Result<Line, Infallible>>> {
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let reader =
        Reader { after: last.unwrap_or_else(|| office.journal.last()), journal: office.journal, read: VecDeque::new() };
    let lines = futures_util::stream::unfold(reader, |mut reader| async {
        let event = reader.next().await;
        Some((Ok(line(&event)), reader))
    });
    Sse::new(lines).keep_alive(KeepAlive::default())
}

fn line(event: &Event) -> Line {
    // Each event can be written as JSON: it has no maps with odd keys.
    let data = serde_json::to_string(event).unwrap_or_default();
    Line::default().id(event.id.to_string()).data(data)
}

struct Reader {
    journal: Journal,
    after: u64,
    read: VecDeque<Event>,
}

impl Reader {
    async fn next(&mut self) -> Event {
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
