//! What is asked, and the way of the replies.

use super::{Going, HOPS, Heard, Id, Out, Output, Rumours, Words, send, words};
use phalanx_core::{Addr, Code, Duration, Instant};
use phalanx_wire::rumour::{BODY_MAX, Kind, Letter, ONLY_MAX};

/// Questions that are under way; the oldest is over before its time, one of others first.
pub(super) const ASKED_MAX: usize = 256;
/// Replies that are passed on for one question.
const REPLIES_MAX: u32 = 65_536;
/// Replies are waited for this long at most.
pub const PATIENCE_MAX: Duration = Duration::from_secs(600);

/// A question that is under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Question {
    pub(super) id: Id,
    /// The neighbour that asked us first, and where replies can go without it.
    pub(super) way: [Addr; 2],
    pub(super) until: Instant,
    pub(super) ours: bool,
    /// It was asked of one alone: nobody else replies.
    pub(super) direct: bool,
    pub(super) answered: bool,
    pub(super) replies: u32,
}

impl Question {
    /// Where a reply goes next.
    fn back(&self, neighbours: &[Addr]) -> Addr {
        self.way[usize::from(!neighbours.contains(&self.way[0]))]
    }
}

impl Rumours {
    /// Asks everybody something, ourselves included. Replies come until `patience` is over.
    ///
    /// # Errors
    /// `InvalidArgs` as for [`Rumours::tell`], and when the patience is nothing or longer than [`PATIENCE_MAX`].
    pub fn ask(
        &mut self,
        now: Instant,
        words: Words<'_>,
        patience: Duration,
        neighbours: &[Addr],
        out: &mut impl Out,
    ) -> Result<Id, Code> {
        let id = self.question(now, words, patience, HOPS, neighbours, out)?;
        if self.is_meant(words.only) {
            let name = self.name.clone();
            out.push(Output::Replied { id, from: name.as_str(), body: None });
            out.push(Output::Asked { id, from: name.as_str(), words });
        }
        Ok(id)
    }

    /// Asks one member something, wherever it is.
    ///
    /// # Errors
    /// As [`Rumours::ask`].
    pub fn ask_one(
        &mut self,
        now: Instant,
        words: Words<'_>,
        patience: Duration,
        to: Addr,
        out: &mut impl Out,
    ) -> Result<Id, Code> {
        self.question(now, words, patience, 0, &[to], out)
    }

    fn question(
        &mut self,
        now: Instant,
        words: Words<'_>,
        patience: Duration,
        hops: u8,
        to: &[Addr],
        out: &mut impl Out,
    ) -> Result<Id, Code> {
        if patience == Duration::ZERO || patience > PATIENCE_MAX || words.only.len() > ONLY_MAX {
            return Err(Code::InvalidArgs);
        }
        let id = self.begin(words)?;
        let until = now + patience;
        let question =
            Question { id, way: [self.addr; 2], until, ours: true, direct: hops == 0, answered: false, replies: 0 };
        self.note_question(question, out);
        let name = self.name.clone();
        let letter = Letter { from: name.as_str(), asker: self.addr, ..self.letter(Kind::Ask, id, hops) };
        let letter = Letter { amount: patience.as_millis() as u32, name: words.name, ..letter };
        let letter = Letter { only: words.only, body: words.body, ..letter };
        if hops == 0 {
            send(&letter, to[0], out);
        } else {
            self.flood.spread(now, &letter, Going { until, but: None, neighbours: to, to }, out);
        }
        Ok(id)
    }

    /// Answers a question. Answers arrive in the order in which they were given; after the `last` there are no more.
    ///
    /// # Errors
    /// `InvalidArgs` when the body is too long, `InvalidEndpoint` when nobody waits for the answer, or it was given.
    pub fn reply(
        &mut self,
        id: Id,
        body: &[u8],
        last: bool,
        neighbours: &[Addr],
        out: &mut impl Out,
    ) -> Result<(), Code> {
        if body.len() > BODY_MAX {
            return Err(Code::InvalidArgs);
        }
        let question = self.questions.iter_mut().find(|q| q.id == id && !q.answered).ok_or(Code::InvalidEndpoint)?;
        question.answered = last;
        let is_over = last && question.direct;
        let name = self.name.clone();
        if question.ours {
            out.push(Output::Replied { id, from: name.as_str(), body: Some(body) });
            return Ok(());
        }
        let to = question.back(neighbours);
        send(&Letter { from: name.as_str(), body, ..self.letter(Kind::Reply, id, HOPS) }, to, out);
        if is_over {
            // Nobody else answers it through us.
            self.forget(id);
        }
        Ok(())
    }

    /// Nobody waits for replies to this question of ours any more.
    pub fn forget(&mut self, id: Id) {
        self.questions.retain(|q| q.id != id);
    }

    fn note_question(&mut self, question: Question, out: &mut impl Out) {
        if self.questions.len() >= ASKED_MAX {
            let oldest = self.questions.iter().position(|q| !q.ours).unwrap_or(0);
            if let Some(ours) = self.questions.remove(oldest).filter(|q| q.ours) {
                out.push(Output::Over { id: ours.id });
            }
        }
        self.questions.push_back(question);
    }

    pub(super) fn on_ask(&mut self, now: Instant, id: Id, heard: Heard<'_>, out: &mut impl Out) {
        let Heard { from, letter, .. } = heard;
        self.counters.heard += 1;
        let patience = Duration::from_millis(letter.amount.into()).min(PATIENCE_MAX);
        let until = now + patience;
        let question = Question {
            id,
            way: [from, letter.asker],
            until,
            ours: false,
            direct: letter.hops == 0,
            answered: false,
            replies: 0,
        };
        self.note_question(question, out);
        self.flood.pass_on(now, heard, until, out);
        if self.is_meant(letter.only) {
            let name = self.name.clone();
            send(&Letter { from: name.as_str(), ..self.letter(Kind::Heard, id, HOPS) }, from, out);
            out.push(Output::Asked { id, from: letter.from, words: words(&letter) });
        }
    }

    pub(super) fn on_reply(&mut self, id: Id, letter: &Letter<'_>, neighbours: &[Addr], out: &mut impl Out) {
        let known = self.questions.iter_mut().find(|q| q.id == id && q.replies < REPLIES_MAX);
        let Some(question) = known else {
            self.counters.late += 1;
            return;
        };
        question.replies += 1;
        if question.ours {
            let body = (letter.kind == Kind::Reply).then_some(letter.body);
            out.push(Output::Replied { id, from: letter.from, body });
        } else if let Some(hops) = letter.hops.checked_sub(1) {
            send(&Letter { hops, ..*letter }, question.back(neighbours), out);
        } else {
            self.counters.late += 1;
        }
    }
}
