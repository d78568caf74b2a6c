//! CL, RCL and MML: what is handed on was sent, is whole, comes once, in order, from the session it belongs to.

use super::stream::{Session, Stream, Wrong};
use crate::check::{Checker, Cluster, Verdict};
use crate::fault::{Fault, NodeFault};
use crate::station::Station;
use crate::station::content::{self, Layer, Name};
use crate::station::group::MEMBERS;
use crate::station::note::Note;
use crate::station::workload::Mixed;
use phalanx_core::{Boot, Duration, Instant};
use phalanx_protocol::link::Config;
use phalanx_protocol::link::mml::Gap;
use std::collections::BTreeMap;

/// Messages of an ordered group's stream that may be under way at any time, and for how long.
const UNDER_WAY: u32 = 4;
const ARRIVES_WITHIN: Duration = Duration::from_secs(5);
/// Streams whose debts are named in a report.
const NAMED: usize = 3;

/// Watches every message of every layer.
pub struct Messages {
    parts: Mixed,
    /// What a NACK sender keeps at least: so many messages, for so long.
    history: (u64, Duration),
    /// Some clock was set wrong: how old a message is to its sender is not known here.
    clocks_lie: bool,
    nodes: Vec<Life>,
    /// What a node thinks of a peer, by (node, peer).
    views: BTreeMap<(u32, u32), View>,
    /// By (sender, receiver, layer).
    streams: BTreeMap<(u32, u32, Layer), Stream>,
    healed_at: Instant,
}

/// The starts of a node.
#[derive(Default)]
struct Life {
    boots: Vec<Boot>,
    started_at: Instant,
    /// Its `plain` injector may copy, modify or hold packets: datagrams and UNR messages have no proof but the seal.
    tainted: bool,
}

#[derive(Clone, Copy, Default)]
struct View {
    /// Which start of the node has this view.
    of: u32,
    /// Which start of the peer its session is with; zero when there is none.
    peer: u32,
    /// Counts meetings and losses.
    count: u32,
    /// When the node last lost what the peer had sent it.
    lost_at: Instant,
}

impl Messages {
    /// A checker for stations with these parts of a workload.
    #[must_use]
    pub fn new(parts: &Mixed, link: &Config) -> Self {
        let (nodes, views, streams) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let mml = &link.mml;
        let kept = u64::from(mml.history).min(u64::from(mml.history_bytes) / (mml.largest_message() as u64 + 128));
        let history = (kept, mml.history_age);
        Self { parts: *parts, history, clocks_lie: false, nodes, views, streams, healed_at: Instant::NEVER }
    }

    fn life(&mut self, node: u32) -> &mut Life {
        let at = node as usize;
        if self.nodes.len() <= at {
            self.nodes.resize_with(at + 1, Life::default);
        }
        &mut self.nodes[at]
    }

    fn boot(&self, node: u32) -> u32 {
        self.nodes.get(node as usize).map_or(0, |l| l.boots.len() as u32)
    }

    fn is_tainted(&self, node: u32) -> bool {
        self.nodes.get(node as usize).is_some_and(|l| l.tainted)
    }

    /// What this start of `node` thinks of `peer`.
    fn view(&mut self, node: u32, peer: u32) -> &mut View {
        let of = self.boot(node);
        let view = self.views.entry((node, peer)).or_default();
        if view.of != of {
            *view = View { of, ..View::default() };
        }
        view
    }

    fn on_up(&mut self, node: u32, peer: u32, boot: Boot, verdict: &mut Verdict) {
        let known = self.nodes.get(peer as usize).and_then(|l| l.boots.iter().rposition(|b| *b == boot));
        let Some(known) = known else {
            return verdict.violation(node, format!("met a start of {peer} that never was"));
        };
        let view = self.view(node, peer);
        let (before, now) = (view.peer, known as u32 + 1);
        (view.peer, view.count) = (now, view.count + 1);
        if now < before {
            verdict.violation(node, format!("met start {now} of {peer} after start {before}"));
        }
    }

    /// The node's link lost `peer`, with what was under way in both directions.
    fn on_break(&mut self, at: Instant, node: u32, peer: u32, reported: bool, verdict: &mut Verdict) {
        let boot = self.boot(node);
        let view = self.view(node, peer);
        (view.count, view.lost_at) = (view.count + 1, at);
        for (&(_, _, layer), stream) in
            self.streams.range_mut((node, peer, Layer::Datagram)..=(node, peer, Layer::Order))
        {
            if layer == Layer::Datagram {
                continue;
            }
            // What a former start of the node sent died with it.
            if let Some(closed) = stream.close()
                && closed.boot == boot
                && layer == Layer::Ack
                && reported
                && !closed.is_accounted_for()
            {
                let text = format!(
                    "ACK to {peer}: {} sent, {} read, {} reported undelivered from {}",
                    closed.sent, closed.read, closed.given_up, closed.lowest_given_up
                );
                verdict.violation(node, text);
            }
        }
    }

    #[allow(clippy::too_many_arguments)] // The fields of one note.
    fn on_got(
        &mut self,
        at: Instant,
        node: u32,
        from: u32,
        layer: Layer,
        (generation, number): (u8, u16),
        seed: Option<u64>,
        length: u32,
        opaque: bool,
        verdict: &mut Verdict,
    ) {
        let exposed = self.is_tainted(from) || self.is_tainted(node);
        if exposed && matches!(layer, Layer::Datagram | Layer::Unr) {
            return;
        }
        let view = *self.view(node, from);
        if view.peer == 0 {
            return verdict.violation(node, format!("{layer:?} from {from}, with whom there is no session"));
        }
        let session: Session = (view.of, view.count);
        let stream = self.streams.entry((from, node, layer)).or_default();
        let got = stream.got(at, session, layer, view.peer, generation, number);
        let (generation, number) = match got {
            Ok(place) => place,
            Err(wrong) => return verdict.violation(node, describe(layer, from, number, &wrong)),
        };
        if opaque {
            return;
        }
        let name = Name { from, boot: view.peer, to: node, layer, generation, number };
        let expected = self.length(&name);
        if seed != Some(content::visible(name.seed(), expected)) || length as usize != expected {
            let text = format!("{layer:?} {number} from {from} is not what was sent: {length} bytes, of {expected}");
            verdict.violation(node, text);
        }
    }

    fn length(&self, name: &Name) -> usize {
        let Mixed { heartbeat, reliable, managed, .. } = &self.parts;
        match name.layer {
            Layer::Datagram => heartbeat.map_or(0, |h| h.bytes),
            Layer::Reliable => reliable.map_or(0, |r| r.length(name.seed())),
            Layer::Unr | Layer::Ack | Layer::Nack => managed.map_or(0, |m| m.length(name.seed())),
            Layer::Order => 0,
        }
    }

    /// What must still arrive: on open streams, from a sender that lives, unless the receiver lost it by itself.
    fn missing(&self, now: Instant) -> impl Iterator<Item = String> {
        self.streams.iter().filter_map(move |(&(from, to, layer), stream)| {
            let last = stream.last()?;
            let session = self.views.get(&(to, from)).map_or((0, 0), |v| (v.of, v.count));
            if stream.is_read_or_reported(session) || !last.open || last.boot != self.boot(from) {
                return None;
            }
            // An ordered group never rests: the last few of its beacons are always under way.
            let beacons = self.parts.order.is_some() && layer == Layer::Ack && from / MEMBERS == to / MEMBERS;
            if beacons && last.sent - last.read <= UNDER_WAY && now.since(last.last_sent_at) < ARRIVES_WITHIN {
                return None;
            }
            let started_at = self.nodes.get(to as usize).map_or(Instant::ZERO, |l| l.started_at);
            let lost_at = self.views.get(&(to, from)).map_or(Instant::ZERO, |v| v.lost_at).max(started_at);
            let must = match layer {
                Layer::Datagram | Layer::Unr | Layer::Order => false,
                Layer::Reliable | Layer::Ack => last.last_sent_at > lost_at,
                // Only the last ones can be missed by nobody, when every notice is lost too.
                Layer::Nack => last.last_sent_at > lost_at.max(self.healed_at),
            };
            must.then(|| format!("{layer:?} from {from} to {to}: {} of {} arrived", last.read, last.sent))
        })
    }
}

fn describe(layer: Layer, from: u32, number: u16, wrong: &Wrong) -> String {
    match wrong {
        Wrong::Nowhere => format!("{layer:?} …{number} from {from} belongs to no session with it"),
        Wrong::Disorder { next } => format!("{layer:?} …{number} from {from} though {next} is next"),
        Wrong::Doubled => format!("{layer:?} …{number} from {from} came before"),
        Wrong::NeverSent => format!("{layer:?} …{number} from {from} was never sent"),
    }
}

impl Checker<Station> for Messages {
    fn name(&self) -> &'static str {
        "messages"
    }

    fn note(&mut self, at: Instant, node: u32, note: &Note, verdict: &mut Verdict) {
        match *note {
            Note::Started { boot } => {
                let life = self.life(node);
                life.boots.push(boot);
                life.started_at = at;
                // Tainted stays tainted: what a former life sent may still wait before a peer that is paused.
            }
            Note::Up { peer, boot } => self.on_up(node, peer, boot, verdict),
            Note::Stranger(identity) => verdict.violation(node, format!("met {identity:?}, whom nobody knows")),
            Note::Down { peer } => self.on_break(at, node, peer, true, verdict),
            Note::Forgot { peer } => self.on_break(at, node, peer, false, verdict),
            Note::Sent { peer, layer, generation, number } => {
                let boot = self.boot(node);
                let stream = self.streams.entry((node, peer, layer)).or_default();
                if !stream.sent(at, layer, boot, generation, number) {
                    verdict.violation(node, format!("{layer:?} {number} to {peer} was sent out of turn"));
                }
            }
            Note::Misnumbered { layer, place, number } => {
                verdict.violation(node, format!("{layer:?} {place} was numbered {number}"));
            }
            Note::Got { peer, layer, generation, number, seed, length, opaque } => {
                self.on_got(at, node, peer, layer, (generation, number), seed, length, opaque, verdict);
                if layer == Layer::Nack {
                    self.on_debt(at, node, peer, None, verdict);
                }
            }
            Note::Undelivered { peer, number } => {
                let last = self.streams.entry((node, peer, Layer::Ack)).or_default().last_mut();
                if !last.is_some_and(|g| g.give_up(number)) {
                    verdict.violation(node, format!("ACK {number} to {peer} was reported, but not in turn"));
                }
            }
            Note::Gap { peer, gap } => self.on_debt(at, node, peer, Some(gap), verdict),
            Note::Unsettled => verdict.violation(node, "a ticket is pending long after its send"),
            Note::Tainted => self.life(node).tainted = true,
            Note::Over { what, holds, bound } => verdict.violation(node, format!("{what} holds {holds}, over {bound}")),
            Note::Order(_) => {}
        }
    }

    fn fault(&mut self, _: Instant, fault: &Fault, _: &mut Verdict) {
        self.clocks_lie |= matches!(fault, Fault::Node(_, NodeFault::Clock { .. }));
    }

    fn healed(&mut self, at: Instant, _: &Cluster<'_, Station>, _: &mut Verdict) {
        // Held-up packets of the last faults are still on their way.
        self.healed_at = at + Duration::from_millis(500);
    }

    fn pending(&mut self, now: Instant, _: &Cluster<'_, Station>) -> Option<String> {
        let missing: Vec<_> = self.missing(now).collect();
        (!missing.is_empty()).then(|| missing[..missing.len().min(NAMED)].join("; "))
    }
}

impl Messages {
    /// NACK messages from `peer` that were passed over must be reported missing, in the same instant, and only when
    /// its history need not hold them any more.
    fn on_debt(&mut self, at: Instant, node: u32, peer: u32, gap: Option<Gap>, verdict: &mut Verdict) {
        let view = *self.view(node, peer);
        let session = (view.of, view.count);
        let (kept, age) = self.history;
        let reported = gap.map_or(0, |g| g.lost);
        let stream = self.streams.entry((peer, node, Layer::Nack)).or_default();
        let Some(reading) = stream.reading(session) else { return stream.report_early(session, reported) };
        let owes = reading.owes(at);
        reading.debt -= i64::try_from(reported).unwrap_or(i64::MAX);
        if owes {
            verdict.violation(node, format!("NACK from {peer}: passed over messages without reporting a gap"));
            reading.debt = 0;
        }
        if let Some(gap) = gap
            && !self.clocks_lie
            && !reading.may_have_forgotten(at, gap.below, kept, age)
        {
            let Gap { first, below, lost } = gap;
            let text = format!("NACK from {peer}: {lost} of {first}..{below} lost, but {} were sent", reading.sent);
            verdict.violation(node, text);
        }
    }
}

/// Each promise is broken once, in what stations say, and the checker sees it.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::station::workload::{Managed, Reliable};

    const BOOTS: [Boot; 3] = [Boot([1; 16]), Boot([2; 16]), Boot([3; 16])];

    /// A conversation from node 0 to node 1, of one layer.
    struct Told {
        checker: Messages,
        layer: Layer,
        at: Instant,
        verdict: Verdict,
    }

    impl Told {
        /// Both have started, and node 1 has met node 0.
        fn of(layer: Layer) -> Self {
            let reliable = Some(Reliable { largest: 64, ..Reliable::default() });
            let parts = Mixed { reliable, managed: Some(Managed::default()), ..Mixed::default() };
            let (checker, verdict) = (Messages::new(&parts, &Config::default()), Verdict::default());
            let mut told = Self { checker, layer, at: Instant::ZERO, verdict };
            told.says(0, Note::Started { boot: BOOTS[0] });
            told.says(1, Note::Started { boot: BOOTS[1] });
            told.says(1, Note::Up { peer: 0, boot: BOOTS[0] });
            told
        }

        fn says(&mut self, node: u32, note: Note) -> &mut Self {
            self.at += Duration::from_millis(1);
            self.checker.note(self.at, node, &note, &mut self.verdict);
            self
        }

        fn sends(&mut self, generation: u32, number: u32) -> &mut Self {
            self.says(0, Note::Sent { peer: 1, layer: self.layer, generation, number })
        }

        fn name(&self, boot: u32, generation: u32, number: u32) -> Name {
            Name { from: 0, boot, to: 1, layer: self.layer, generation, number }
        }

        fn gets_as(&mut self, name: Name, seed: u64) -> &mut Self {
            let length = self.checker.length(&name);
            let (generation, number) = (name.generation as u8, name.number as u16);
            let seed = Some(content::visible(seed, length));
            let (layer, length) = (self.layer, length as u32);
            self.says(1, Note::Got { peer: 0, layer, generation, number, seed, length, opaque: false })
        }

        fn gets(&mut self, generation: u32, number: u32) -> &mut Self {
            let name = self.name(1, generation, number);
            self.gets_as(name, name.seed())
        }

        fn said(&mut self) -> Vec<String> {
            std::mem::take(&mut self.verdict.violations).into_iter().map(|v| v.1).collect()
        }

        /// The one violation.
        fn caught(&mut self, text: &str) {
            let said = self.said();
            assert!(said.len() == 1 && said[0].contains(text), "{:?}: {said:?}, not `{text}`", self.layer);
        }
    }

    const ORDERED: [Layer; 3] = [Layer::Reliable, Layer::Ack, Layer::Nack];

    #[test]
    fn what_is_right_passes() {
        for layer in [Layer::Datagram, Layer::Reliable, Layer::Unr, Layer::Ack, Layer::Nack] {
            let mut told = Told::of(layer);
            told.sends(0, 0).sends(0, 1).gets(0, 0).gets(0, 1);
            assert_eq!(told.said(), [""; 0], "{layer:?}");
            assert_eq!(told.checker.missing(Instant::NEVER).next(), None);
        }
    }

    #[test]
    fn messages_that_come_twice_are_caught() {
        for layer in ORDERED {
            Told::of(layer).sends(0, 0).gets(0, 0).gets(0, 0).caught("though 1 is next");
        }
        for layer in [Layer::Datagram, Layer::Unr] {
            Told::of(layer).sends(0, 0).gets(0, 0).gets(0, 0).caught("came before");
        }
    }

    #[test]
    fn messages_out_of_order_are_caught() {
        for layer in [Layer::Reliable, Layer::Ack] {
            Told::of(layer).sends(0, 0).sends(0, 1).gets(0, 1).caught("though 0 is next");
        }
    }

    #[test]
    fn messages_that_nobody_sent_are_caught() {
        for layer in ORDERED {
            Told::of(layer).sends(0, 0).gets(0, 0).gets(0, 1).caught("never sent");
            Told::of(layer).gets(0, 0).caught("no session");
        }
    }

    #[test]
    fn damaged_and_forged_messages_are_caught() {
        for layer in [Layer::Datagram, Layer::Unr, Layer::Ack, Layer::Nack] {
            let mut told = Told::of(layer);
            let name = told.name(1, 0, 0);
            told.sends(0, 0).gets_as(name, name.seed() ^ 1).caught("not what was sent");
        }
        let mut met = Told::of(Layer::Datagram);
        met.says(1, Note::Stranger(Default::default())).caught("nobody knows");
    }

    #[test]
    fn messages_of_a_former_boot_or_session_are_caught() {
        for layer in ORDERED {
            let mut told = Told::of(layer);
            told.sends(0, 0).gets(0, 0).says(0, Note::Started { boot: BOOTS[2] });
            told.says(1, Note::Up { peer: 0, boot: BOOTS[2] }).sends(0, 0);
            let old = told.name(1, 0, 1);
            assert_eq!(told.gets_as(old, old.seed()).said().len(), 1, "{layer:?} of a former boot");
            told.says(1, Note::Up { peer: 0, boot: BOOTS[0] }).caught("after start 2");
            let mut told = Told::of(layer);
            told.sends(0, 0).sends(0, 1).gets(0, 0).says(1, Note::Up { peer: 0, boot: BOOTS[0] });
            told.gets(0, 1).caught("no session");
        }
    }

    /// RL-1, MM-1: who is not told that something may be lost can rely on it.
    #[test]
    fn what_never_arrives_is_missed_unless_the_sender_was_told() {
        for layer in ORDERED {
            let mut told = Told::of(layer);
            told.checker.healed_at = Instant::ZERO;
            told.sends(0, 0).sends(0, 1).gets(0, 0);
            assert!(told.checker.missing(Instant::NEVER).next().is_some(), "{layer:?}");
            if layer == Layer::Ack {
                told.says(0, Note::Undelivered { peer: 1, number: 1 });
            }
            told.says(0, Note::Down { peer: 1 });
            assert_eq!(told.checker.missing(Instant::NEVER).next(), None, "{layer:?}");
            assert_eq!(told.said(), [""; 0]);
        }
    }

    #[test]
    fn an_ack_message_neither_read_nor_reported_is_caught() {
        let mut told = Told::of(Layer::Ack);
        told.sends(0, 0).sends(0, 1).gets(0, 0).says(0, Note::Down { peer: 1 }).caught("2 sent, 1 read, 0 reported");
        Told::of(Layer::Ack).says(0, Note::Undelivered { peer: 1, number: 4 }).caught("not in turn");
    }

    #[test]
    fn a_gap_that_is_not_reported_is_caught() {
        let gap = |lost| Note::Gap { peer: 0, gap: Gap { first: 0, below: lost, lost } };
        let begun = |told: &mut Told| {
            (0..400).for_each(|n| _ = told.sends(0, n));
            told.gets(0, 2);
            told.at = told.at - Duration::from_millis(1);
        };
        let mut told = Told::of(Layer::Nack);
        begun(&mut told);
        told.says(1, gap(2)).gets(0, 3);
        assert_eq!(told.said(), [""; 0]);
        let mut silent = Told::of(Layer::Nack);
        begun(&mut silent);
        silent.at += Duration::from_millis(5);
        silent.gets(0, 3).caught("without reporting a gap");
    }

    #[test]
    fn a_gap_before_the_first_message_counts() {
        let gap = |lost| Note::Gap { peer: 0, gap: Gap { first: 0, below: lost, lost } };
        let mut told = Told::of(Layer::Nack);
        (0..4).for_each(|n| _ = told.sends(0, n));
        told.says(1, gap(3)).gets(0, 3);
        told.at += Duration::from_millis(5);
        told.sends(0, 4).gets(0, 4);
        assert_eq!(told.said(), [""; 0]);
        told.checker.healed_at = Instant::ZERO;
        assert_eq!(told.checker.missing(Instant::NEVER).next(), None);
    }

    #[test]
    fn a_gap_that_the_history_could_fill_is_caught() {
        let gap = Note::Gap { peer: 0, gap: Gap { first: 1, below: 3, lost: 2 } };
        let mut told = Told::of(Layer::Nack);
        (0..4).for_each(|n| _ = told.sends(0, n));
        told.gets(0, 0).says(1, gap.clone()).caught("2 of 1..3 lost");
        let mut aged = Told::of(Layer::Nack);
        (0..4).for_each(|n| _ = aged.sends(0, n));
        aged.gets(0, 0);
        aged.at += Duration::from_secs(10);
        aged.says(1, gap.clone());
        assert_eq!(aged.said(), [""; 0]);
        let mut pushed = Told::of(Layer::Nack);
        (0..400).for_each(|n| _ = pushed.sends(0, n));
        pushed.gets(0, 0).says(1, gap);
        assert_eq!(pushed.said(), [""; 0]);
    }

    #[test]
    fn bounds_numbers_and_tickets_are_watched() {
        let mut told = Told::of(Layer::Ack);
        told.says(0, Note::Over { what: "backlog", holds: 9, bound: 8 }).caught("over 8");
        told.says(0, Note::Misnumbered { layer: Layer::Ack, place: 1, number: 2 }).caught("numbered 2");
        told.says(0, Note::Unsettled).caught("pending");
        told.sends(0, 5).caught("out of turn");
    }
}
