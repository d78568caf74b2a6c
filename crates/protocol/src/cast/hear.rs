//! What a node makes of what it hears.

use super::machine::{Caster, Out, Output};
use super::recent::Cast;
use super::source::Source;
use phalanx_core::{Instant, Shared};
use phalanx_wire::cast::{Kind, Message, Multicast};

/// Sources that are known; past it those are forgotten who are gone, the quietest first.
const SOURCES_MAX: usize = 8192;

impl Caster {
    pub(super) fn on_heard(&mut self, now: Instant, bytes: &Shared, out: &mut impl Out) {
        let Ok(message) = Message::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        if message.tree != self.name {
            self.counters.strays += 1;
            return;
        }
        let Message { source, who, number, stable, kind, body, .. } = message;
        let highest = match &kind {
            Kind::Multicast(Multicast { to, path, seen, dead, .. }) => {
                to.iter().map(|t| t.seat).chain(path.iter().chain(seen).chain(dead).copied()).chain([source]).max()
            }
            Kind::Status(status) => Some(source.max(status.from)),
            Kind::Hello | Kind::Broadcast | Kind::Receipt { .. } => Some(source),
        };
        // Who is here has been here.
        let is_lost = matches!(&kind, Kind::Multicast(header) if !header.seen.contains(&self.me));
        if is_lost || highest.is_some_and(|highest| !self.grow(highest)) {
            self.counters.malformed += 1;
            return;
        }
        let (body, wire) = (bytes.part(body), matches!(kind, Kind::Broadcast).then(|| bytes.clone()));
        let cast = Cast { source, who, number, stable, body, wire };
        match kind {
            // That somebody lives is told by the layers below.
            Kind::Hello => {}
            Kind::Broadcast => self.take(now, &cast, out),
            Kind::Multicast(multicast) => self.on_multicast(now, &cast, multicast, out),
            Kind::Status(status) => self.on_status(now, who, (number, stable), status, out),
            Kind::Receipt { by } if who == self.who => {
                let posted = self.pending.received(by, number);
                self.posted(posted, out);
            }
            Kind::Receipt { .. } => self.counters.strays += 1,
        }
    }

    /// What is known of a source, of which everybody has casts up to `stable`.
    pub(super) fn source(&mut self, now: Instant, who: u64, stable: u64) -> &mut Source {
        if !self.sources.contains_key(&who) && self.sources.len() >= SOURCES_MAX {
            let gone = self.sources.iter().filter(|(who, _)| self.seat_of(**who).is_none());
            if let Some((&gone, _)) = gone.min_by_key(|(_, s)| s.since) {
                self.sources.remove(&gone);
                self.waits.remove(&gone);
                self.open.remove(&gone);
            }
        }
        self.sources.entry(who).or_insert_with(|| Source::new(now, stable))
    }

    /// A broadcast is here: sends it on, and delivers it, unless it was here before.
    pub(super) fn take(&mut self, now: Instant, cast: &Cast, out: &mut impl Out) {
        let Cast { who, number, stable, ref body, .. } = *cast;
        // Casts are counted from 1, and nobody has those that are not cast yet.
        if number == 0 || stable >= number {
            self.counters.malformed += 1;
            return;
        }
        self.source(now, who, stable);
        self.learn_stable(now, who, stable, out);
        let source = self.source(now, who, stable);
        let [casts, _] = &mut source.windows;
        if casts.has(number) {
            self.counters.twice += 1;
            return;
        }
        let ready = casts.take(now, number, body);
        self.spread(now, cast, out);
        for body in ready {
            out.push(Output::Deliver { who, whole: true, body: &body });
        }
        self.note_waits(who);
        if self.config.receipts {
            self.touch(now, who);
            self.tell(now, who, out);
        } else if self.seat_of(who).is_none() {
            self.pass_up(now, cast, out);
        }
    }

    /// Everybody who lived had the casts of a source up to this one; whether that is news. We were taken for dead then, if we did not.
    pub(super) fn learn_stable(&mut self, now: Instant, who: u64, stable: u64, out: &mut impl Out) -> bool {
        let Some(source) = self.sources.get_mut(&who).filter(|s| s.stable < stable) else { return false };
        source.stable = stable;
        self.memory.stable(who, stable);
        self.pass(now, who, stable, out);
        true
    }

    /// Casts of a source up to this one that are not here never come.
    pub(super) fn pass(&mut self, now: Instant, who: u64, upto: u64, out: &mut impl Out) {
        let Some(source) = self.sources.get_mut(&who) else { return };
        let (missed, ready) = source.windows[0].pass(now, upto);
        self.counters.missed = self.counters.missed.saturating_add(missed);
        for body in ready {
            out.push(Output::Deliver { who, whole: true, body: &body });
        }
        self.note_waits(who);
    }

    pub(super) fn note_waits(&mut self, who: u64) {
        if self.sources.get(&who).is_some_and(|s| s.waits_since() != Instant::NEVER) {
            self.waits.insert(who);
        } else {
            self.waits.remove(&who);
        }
    }

    pub(super) fn on_multicast(&mut self, now: Instant, cast: &Cast, mut header: Multicast, out: &mut impl Out) {
        let to = header.to[header.index as usize];
        if to.seat != self.me {
            return self.go_on(now, cast, header, out);
        }
        header.index += 1;
        (header.path, header.seen) = (Vec::new(), vec![self.me]);
        let whole = header.whole;
        self.go_on(now, cast, header, out);
        if whole {
            return self.take(now, cast, out);
        }
        if to.letter == 0 {
            return self.on_enclosed(now, &cast.body, out);
        }
        // Another one sat here when it left.
        if to.who != self.who {
            self.counters.strays += 1;
            return;
        }
        let who = cast.who;
        let [_, letters] = &mut self.source(now, who, 0).windows;
        let is_new = !letters.has(to.letter);
        let (mut missed, mut ready) = (0, Vec::new());
        if is_new {
            ready = letters.take(now, to.letter, &cast.body);
            let (lost, more) = letters.pass(now, to.after);
            missed = lost;
            ready.extend(more);
        }
        self.counters.twice += u64::from(!is_new);
        self.counters.missed = self.counters.missed.saturating_add(missed);
        for body in ready {
            out.push(Output::Deliver { who, whole: false, body: &body });
        }
        self.note_waits(who);
        // Also when it came before: the receipt may have been lost.
        if self.config.receipts
            && who != self.who
            && let Some(seat) = self.seat_of(who)
        {
            let receipt = Cast { number: to.letter, stable: 0, body: Shared::default(), ..cast.clone() };
            let bytes = self.message(&receipt, Kind::Receipt { by: self.who });
            self.direct(now, seat, bytes, out);
        }
    }

    /// A message to our machine came around a link that does not carry.
    fn on_enclosed(&mut self, now: Instant, bytes: &Shared, out: &mut impl Out) {
        match Message::parse(bytes) {
            Ok(Message { kind: Kind::Status(_) | Kind::Receipt { .. }, .. }) => self.on_heard(now, bytes, out),
            _ => self.counters.malformed += 1,
        }
    }

    /// What is missing for too long is given up: it does not hold up later ones.
    pub(super) fn expire_waits(&mut self, now: Instant, out: &mut impl Out) {
        let patience = self.config.patience;
        let is_late = |since: Instant| since != Instant::NEVER && since + patience <= now;
        let is_waiting = |who: &u64| self.sources.get(who).is_some_and(|s| is_late(s.waits_since()));
        let late: Vec<u64> = self.waits.iter().copied().filter(is_waiting).collect();
        for who in late {
            let Some(source) = self.sources.get_mut(&who) else { continue };
            for (window, whole) in source.windows.iter_mut().zip([true, false]) {
                if is_late(window.waits_since()) {
                    self.counters.missed = self.counters.missed.saturating_add(window.skip());
                    for body in window.ready(now) {
                        out.push(Output::Deliver { who, whole, body: &body });
                    }
                }
            }
            self.note_waits(who);
            if self.config.receipts {
                self.tell(now, who, out);
            }
        }
    }
}
