//! Reductions: what all give goes up the tree as one value, what came out of it comes down to all.
//!
//! ST-4. Each node counts its reductions: its n-th is *round* n. In each view (one agreed set of the living) a node reports to its
//! nearest living ancestor, see [`report`](super::report). It speaks when all below it have spoken, the lowest living node decides, and
//! the result goes down to all who wait.
//!
//! **One result for all who live, whoever dies.** A word counts in the view that it was spoken in, and nowhere else. With each view all
//! who wait speak again, to who is above them now: nobody is counted twice, because a new view begins with empty hands, and within a
//! view a branch has one word. An *Up* also says that nobody in the branch has a result of that round; who has one answers with it. So:
//! 1. Who decides in a view has heard from everybody in it that nobody has a result, in this view. Whoever got one from a root that died
//!    since, got it before it came into this view, and would have said so: then that is the result.
//! 2. Who has spoken in a view takes results in that view only. A root that was put out, and does not know it, cannot tell it another.
//!
//! By 1 there is at most one new result in a view, and none where somebody who lives has one; by 2 no other one comes in later. A result that
//! died with all who had it is nobody's. Those who died may be in it or not, who lives and waited is.
//!
//! **Who has a result keeps it** until the next round is decided: that needs everybody's word, so all have it. With a new view neighbours
//! tell each other which round was decided last; who still waits for it, or has somebody below who does, asks those who have gone on.
//!
//! **Newcomers** count from 1, and learn from their neighbours where the others are. Who came after the last round was decided takes part in
//! the next one; what it gave before it knew that goes there, too. An earlier round that others still wait for goes past it: its word
//! on that is *nothing*.
//!
//! What was rejected: verdicts of each node on its own in place of views. Two who hold different nodes for dead report past each other, and
//! a root that was only slow tells a result to those who have not given it up yet. Sets of all who are in a branch would then see to it
//! that nobody is counted twice; here no sets travel.

mod terms;

use super::fold::{join, outcome};
use super::report::Line;
use super::tree::Id;
use phalanx_core::{Duration, Fingerprint, Instant, Machine, Sink};
use phalanx_wire::reduce::{Last, Message, VALUE_MAX, Value, Words};
use phalanx_wire::view::ViewId;
use std::collections::BTreeMap;

pub use phalanx_wire::reduce::Outcome;
pub use terms::{Counters, Gift, Input, Out, Output, ReduceError};

/// Who waits speaks again after this time, should a letter have been lost for lack of room …
const AGAIN: Duration = Duration::from_millis(500);
/// … and then after twice that, up to this.
const AGAIN_MAX: Duration = Duration::from_secs(8);
/// Messages for a view to come that are kept; more are dropped, and said again later.
const EARLY_MAX: usize = 1024;
/// Their bytes.
const EARLY_BYTES: usize = 16 << 20;

/// A node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reducer {
    view: Option<ViewId>,
    since: u64,
    me: Id,
    line: Line,
    /// Rounds that are over for us.
    done: u64,
    /// What we gave to the round after those.
    own: Option<Value>,
    /// What is decided, as far as we know.
    last: Last,
    /// What came out of that round, when we have it.
    result: Option<Outcome>,
    /// Words of those below in this view, on the last round and the next.
    words: BTreeMap<u64, BTreeMap<Id, Value>>,
    /// Who is above has asked for our word on the last round.
    is_asked: bool,
    /// We have asked those below for theirs.
    has_asked: bool,
    /// Messages for a view to come, and how long they are.
    early: Vec<(Message, usize)>,
    pause: Duration,
    again_at: Instant,
    counters: Counters,
}

impl Default for Reducer {
    fn default() -> Self {
        Self {
            view: None,
            since: 0,
            me: Id(0),
            line: Line::default(),
            done: 0,
            own: None,
            last: Last::default(),
            result: None,
            words: BTreeMap::new(),
            is_asked: false,
            has_asked: false,
            early: Vec::new(),
            pause: AGAIN,
            again_at: Instant::NEVER,
            counters: Counters::default(),
        }
    }
}

impl Reducer {
    /// Takes part in the next round.
    ///
    /// # Errors
    /// See [`ReduceError`].
    pub fn give(&mut self, now: Instant, gift: Gift<'_>, out: &mut impl Out) -> Result<(), ReduceError> {
        if self.view.is_none() {
            return Err(ReduceError::Outside);
        }
        if self.own.is_some() {
            return Err(ReduceError::Busy);
        }
        self.own = Some(match gift {
            Gift::Barrier => Value::Barrier,
            Gift::Sum(summand) => Value::Sum(summand.into()),
            Gift::Gather(bytes) if bytes.len() > VALUE_MAX => return Err(ReduceError::TooLarge(bytes.len())),
            Gift::Gather(bytes) => Value::Gather(vec![(self.me, bytes.to_vec())]),
        });
        (self.pause, self.again_at) = (AGAIN, now + AGAIN);
        self.speak(out);
        Ok(())
    }

    /// Whether we wait for a result.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.own.is_some()
    }

    /// The view that it was told of last.
    #[must_use]
    pub fn view(&self) -> Option<ViewId> {
        self.view
    }

    /// What was dropped, and what happened how often.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn on_view(&mut self, view: ViewId, since: u64, (me, line): (Id, Line), out: &mut impl Out) {
        // Who decides is in what it decides: a later `since` would have it give to one round after another, for ever.
        (self.view, self.since, self.me, self.line) = (Some(view), since.min(view.number), me, line);
        // A host's number is its place among those of the view.
        if let Some(Value::Gather(values)) = &mut self.own {
            values.iter_mut().for_each(|value| value.0 = me);
        }
        self.words.clear();
        (self.is_asked, self.has_asked) = (false, false);
        if self.last.round > 0 {
            self.say(self.line.all().collect(), Words::Tell, out);
        }
        self.speak(out);
        for (message, length) in std::mem::take(&mut self.early) {
            self.sort(message, length, out);
        }
    }

    fn on_heard(&mut self, bytes: &[u8], out: &mut impl Out) {
        match Message::parse(bytes) {
            Ok(message) => self.sort(message, bytes.len(), out),
            Err(_) => self.counters.malformed += 1,
        }
    }

    /// For this view, for one to come, or for one that is over.
    fn sort(&mut self, message: Message, length: usize, out: &mut impl Out) {
        if Some(message.view) == self.view {
            return self.on_message(message, out);
        }
        let waiting: usize = self.early.iter().map(|e| e.1).sum();
        if self.view.is_some_and(|ours| message.view.number <= ours.number) {
            self.counters.stale += 1;
        } else if self.early.len() < EARLY_MAX && waiting + length <= EARLY_BYTES {
            self.early.push((message, length));
        } else {
            self.counters.overflow += 1;
        }
    }

    fn on_message(&mut self, message: Message, out: &mut impl Out) {
        let Message { from, last, words, .. } = message;
        if !self.line.has(from) {
            self.counters.strays += 1;
            return;
        }
        if let Words::Down { outcome } = words {
            return self.on_down(from, last, outcome, out);
        }
        self.learn(last, from, out);
        match words {
            Words::Up { round, value } if self.line.is_above(from) => self.on_up(from, round, value, out),
            Words::Ask { round } if self.line.above == Some(from) => self.on_ask(from, round, out),
            Words::Up { .. } | Words::Ask { .. } => self.counters.strays += 1,
            Words::Tell | Words::Down { .. } => {}
        }
    }

    /// Somebody knows of a later round that is decided.
    fn learn(&mut self, last: Last, from: Id, out: &mut impl Out) {
        if last <= self.last {
            return;
        }
        (self.last, self.result) = (last, None);
        (self.is_asked, self.has_asked) = (false, false);
        self.words.retain(|&round, _| round >= last.round);
        let came_late = self.catch_up();
        self.say(self.line.all().filter(|&id| id != from).collect(), Words::Tell, out);
        if self.is_wanted() {
            self.ask_below(out);
            // Who waited for our task before need not do so any more.
            self.advance(last.round, out);
        }
        if came_late {
            self.advance(self.done + 1, out);
        }
    }

    /// What is decided is over for us, but when we took part and only have not heard the result. True when what we gave goes to another
    /// round than it would have.
    fn catch_up(&mut self) -> bool {
        let (next, last) = (self.done + 1, self.last);
        let took_part = self.own.is_some() && next == last.round && self.since <= last.view;
        if next > last.round || took_part {
            return false;
        }
        self.done = last.round;
        self.own.is_some()
    }

    fn on_up(&mut self, from: Id, round: u64, value: Value, out: &mut impl Out) {
        let is_last = round == self.last.round;
        match &self.result {
            Some(outcome) if is_last => self.say(vec![from], Words::Down { outcome: outcome.clone() }, out),
            // It has missed that one, and does not know it.
            _ if round < self.last.round => self.say(vec![from], Words::Tell, out),
            _ if round > self.last.round + 1 || round == 0 => self.counters.strays += 1,
            _ => {
                self.words.entry(round).or_default().insert(from, value);
                if is_last && !self.has_asked {
                    self.ask_below(out);
                }
                self.advance(round, out);
            }
        }
    }

    fn on_ask(&mut self, from: Id, round: u64, out: &mut impl Out) {
        match &self.result {
            Some(outcome) if round == self.last.round => {
                self.say(vec![from], Words::Down { outcome: outcome.clone() }, out);
            }
            _ if round < self.last.round => self.say(vec![from], Words::Tell, out),
            _ if round == self.last.round => {
                self.is_asked = true;
                self.ask_below(out);
                self.advance(round, out);
            }
            _ => self.advance(round, out),
        }
    }

    fn on_down(&mut self, from: Id, last: Last, outcome: Outcome, out: &mut impl Out) {
        if last < self.last || last == self.last && self.result.is_some() {
            self.counters.twice += 1;
        } else {
            self.take(last, outcome, Some(from), out);
        }
    }

    /// All that there is to say on the round that we wait for.
    fn speak(&mut self, out: &mut impl Out) {
        if self.own.is_some() {
            if self.is_wanted() {
                self.ask_below(out);
            }
            self.advance(self.done + 1, out);
        }
    }

    /// We, or somebody below, wait for the result of a round that is decided, and that we do not have.
    fn is_wanted(&self) -> bool {
        let round = self.last.round;
        let waits = |words: &BTreeMap<Id, Value>| words.values().any(|v| *v != Value::Nothing);
        let below = self.words.get(&round).is_some_and(waits);
        self.result.is_none() && (below || self.own.is_some() && self.done + 1 == round)
    }

    /// Those who have gone on do not speak of the last round by themselves.
    fn ask_below(&mut self, out: &mut impl Out) {
        self.has_asked = true;
        let round = self.last.round;
        let words = self.words.get(&round);
        let silent = self.line.below.iter().filter(|id| !words.is_some_and(|w| w.contains_key(id)));
        self.say(silent.copied().collect(), Words::Ask { round }, out);
    }

    /// Passes on what the whole branch has said on a round, or decides.
    fn advance(&mut self, round: u64, out: &mut impl Out) {
        if round < self.last.round || round == self.last.round && self.result.is_some() {
            return;
        }
        let own = match &self.own {
            Some(value) if round == self.done + 1 => value.clone(),
            _ if round <= self.done => Value::Nothing,
            // Our task has not come so far.
            _ => return,
        };
        let words = self.words.get(&round);
        if words.map_or(0, BTreeMap::len) < self.line.below.len() {
            return;
        }
        let value = words.into_iter().flat_map(BTreeMap::values).cloned().fold(own, join);
        if let Some(above) = self.line.above {
            return self.say(vec![above], Words::Up { round, value }, out);
        }
        if let (Some(outcome), Some(view)) = (outcome(value), self.view) {
            self.counters.decided += 1;
            self.take(Last { round, view: view.number }, outcome, None, out);
        }
    }

    /// We have a result; so have all soon who wait for it.
    fn take(&mut self, last: Last, outcome: Outcome, from: Option<Id>, out: &mut impl Out) {
        let waiting = self.words.remove(&last.round).unwrap_or_default();
        let mut to: Vec<Id> = waiting.into_iter().filter(|(_, v)| *v != Value::Nothing).map(|(id, _)| id).collect();
        if self.is_asked && last.round == self.last.round {
            to.extend(self.line.above);
        }
        to.retain(|&id| Some(id) != from);
        (self.last, self.is_asked, self.has_asked) = (last, false, false);
        self.words.retain(|&round, _| round > last.round);
        if self.own.is_some() && self.done + 1 == last.round && self.since <= last.view {
            (self.own, self.done, self.again_at) = (None, last.round, Instant::NEVER);
            out.push(Output::Done(&outcome));
        }
        let came_late = self.catch_up();
        self.say(to, Words::Down { outcome: outcome.clone() }, out);
        self.result = Some(outcome);
        if came_late {
            self.advance(self.done + 1, out);
        }
    }

    fn say(&self, to: Vec<Id>, words: Words, out: &mut impl Out) {
        let Some(view) = self.view.filter(|_| !to.is_empty()) else { return };
        let mut bytes = Vec::new();
        Message { view, from: self.me, last: self.last, words }.encode(&mut bytes);
        to.into_iter().for_each(|to| out.push(Output::Send { to, bytes: &bytes }));
    }
}

impl Machine for Reducer {
    type Input<'a> = Input<'a>;
    type Output<'a> = Output<'a>;

    fn handle<S>(&mut self, _: Instant, input: Input<'_>, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        match input {
            Input::View { view, since, me, line } => self.on_view(view, since, (me, line), out),
            Input::Heard { bytes } => self.on_heard(bytes, out),
        }
    }

    fn expire<S>(&mut self, now: Instant, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        if self.again_at <= now {
            self.pause = (self.pause + self.pause).min(AGAIN_MAX);
            self.again_at = now + self.pause;
            self.speak(out);
        }
    }

    fn deadline(&self) -> Instant {
        self.again_at
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.view, self.since, self.me, &self.line, self.done, &self.own, self.last, &self.result));
        print.add(&(&self.words, self.is_asked, self.has_asked, &self.early, self.pause));
        print.instant(self.again_at);
    }
}

#[cfg(test)]
mod tests;
