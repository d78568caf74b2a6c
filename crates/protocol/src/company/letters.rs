//! Who gets which letter: those of the host's own tasks at once, all others over the link.

use super::hosts::HOSTS;
use super::watch::Moved;
use super::{Company, EARLY, LETTERS, Out, Output, Place, Seat};
use crate::link::{self, states};
use crate::view::{self, Member};
use phalanx_core::{Addr, Buf, Code, Endpoint, Instant, Machine, NodeId, Payload, Sink};
use phalanx_wire::view::{Addressee, Envelope};
use std::collections::VecDeque;

/// A letter that is to be delivered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Letter {
    pub(super) to: Addr,
    pub(super) bytes: Vec<u8>,
}

/// Something the link said, kept until the link can be asked about its peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    Letter { from: NodeId, bytes: Buf },
    Frame { from: NodeId, bytes: Buf },
    Up { node: NodeId },
    Down { node: NodeId, is_silent: bool },
    Writable { node: NodeId },
    Refused { node: NodeId },
    Closed { node: NodeId },
}

/// The link's decisions.
pub(super) struct LinkOut<'n> {
    pub(super) heard: &'n mut Vec<Heard>,
    pub(super) out: &'n mut dyn Out,
}

impl<'o> Sink<link::Output<'o>> for LinkOut<'_> {
    fn push(&mut self, output: link::Output<'o>) {
        match output {
            link::Output::Transmit { to, packet, ticket, answer } => {
                self.out.push(Output::Transmit { to, packet, ticket, answer });
            }
            link::Output::Message { from, to: LETTERS, payload: Payload::Bytes(bytes) } => {
                self.heard.push(Heard::Letter { from: from.node, bytes: Buf::copy_of(bytes) });
            }
            link::Output::Message { from, to: HOSTS, payload: Payload::Bytes(bytes) } => {
                self.heard.push(Heard::Frame { from: from.node, bytes: Buf::copy_of(bytes) });
            }
            link::Output::Up { node, .. } => {
                self.out.push(Output::Reached(states::SESSION_UP));
                self.heard.push(Heard::Up { node });
            }
            link::Output::Down { node, code, .. } => {
                self.out.push(Output::Reached(states::SESSION_DOWN));
                self.heard.push(Heard::Down { node, is_silent: code == Code::Unreachable });
            }
            link::Output::Refused { node, .. } => self.heard.push(Heard::Refused { node }),
            link::Output::Closed { node } => self.heard.push(Heard::Closed { node }),
            link::Output::Writable { node } => {
                self.out.push(Output::Writable);
                self.heard.push(Heard::Writable { node });
            }
            // Nobody here speaks so.
            link::Output::Message { .. }
            | link::Output::Datagram { .. }
            | link::Output::Managed { .. }
            | link::Output::Undelivered { .. }
            | link::Output::Gap { .. } => {}
        }
    }
}

/// A member's decisions.
pub(super) struct MemberOut<'n> {
    seat: Seat,
    letters: &'n mut VecDeque<Letter>,
    out: &'n mut dyn Out,
    /// It has a new view, or is in none any more.
    pub(super) moved: Moved,
    /// Its part is over.
    pub(super) ended: bool,
    /// It wants its task to pause.
    pub(super) pauses: bool,
    /// It has a view that it had not.
    pub(super) installed: bool,
}

impl<'n> MemberOut<'n> {
    pub(super) fn new(seat: Seat, letters: &'n mut VecDeque<Letter>, out: &'n mut dyn Out) -> Self {
        Self { seat, letters, out, moved: Moved::default(), ended: false, pauses: false, installed: false }
    }
}

impl<'o> Sink<view::Output<'o>> for MemberOut<'_> {
    fn push(&mut self, output: view::Output<'o>) {
        match &output {
            view::Output::Send { to, bytes } => {
                return self.letters.push_back(Letter { to: *to, bytes: bytes.to_vec() });
            }
            view::Output::Installed { view, change } => {
                self.moved.on_view(view, *change);
                self.installed = true;
            }
            view::Output::Pause { .. } => self.pauses = true,
            view::Output::Excluded { .. } | view::Output::Aborted | view::Output::Refused(_) | view::Output::Left => {
                (self.moved, self.ended) = (Moved::all(), true);
            }
            _ => {}
        }
        self.out.push(Output::Said { seat: self.seat, what: output });
    }
}

impl Company {
    /// Has a member do something, and sees to what follows for its host.
    pub(super) fn act<S: Out>(
        &mut self,
        now: Instant,
        seat: Seat,
        out: &mut S,
        act: impl FnOnce(&mut Member, &mut MemberOut<'_>),
    ) {
        let Some(place) = self.members.get_mut(&seat) else { return };
        let mut sink = MemberOut::new(seat, &mut self.letters, out);
        act(&mut place.member, &mut sink);
        let (ended, pauses, installed) = (sink.ended, sink.pauses, sink.installed);
        self.moved.and(std::mem::take(&mut sink.moved));
        let is_empty = place.is_empty;
        if ended {
            self.end_part(seat, out);
            self.end_muster(out);
        } else if installed {
            self.reduce_in_view(now, seat, out);
            self.muster_in_view(now, seat, out);
        }
        if ended && is_empty {
            self.members.remove(&seat);
            self.follow(now, seat, out);
        } else if pauses && is_empty {
            self.tell_one(now, seat, view::Input::Paused, out);
        }
    }

    /// Whoever waited for this one to be gone knocks.
    fn follow(&mut self, now: Instant, gone: Seat, out: &mut impl Out) {
        let waits = |p: &mut Place| p.after.take_if(|(seat, _)| *seat == gone);
        let Some((seat, contacts)) = self.members.iter_mut().find_map(|(&s, p)| Some((s, waits(p)?.1))) else { return };
        self.tell_one(now, seat, view::Input::Seek { contacts: &contacts }, out);
    }

    pub(super) fn tell_one(&mut self, now: Instant, seat: Seat, input: view::Input<'_>, out: &mut impl Out) {
        self.act(now, seat, out, |member, sink| member.handle(now, input, sink));
    }

    /// Until nobody here has anything to say.
    pub(super) fn run(&mut self, now: Instant, out: &mut impl Out) {
        loop {
            let mut heard = std::mem::take(&mut self.heard);
            heard.drain(..).for_each(|heard| self.on_heard(now, heard, out));
            if self.heard.is_empty() {
                self.heard = heard;
            }
            let Some(letter) = self.letters.pop_front() else {
                if let Some(moved) = self.moved.take() {
                    self.on_view(now, moved, out);
                } else if self.heard.is_empty() {
                    return;
                }
                continue;
            };
            if letter.to == self.host {
                self.deliver(now, self.host, &letter.bytes, out);
            } else {
                self.post(now, &letter);
            }
        }
    }

    fn post(&mut self, now: Instant, letter: &Letter) {
        let Self { link, parting, largest, .. } = self;
        let sent = parting
            .reach(link, letter.to, *largest)
            .and_then(|node| link.send_reliable(now, LETTERS, Endpoint { node, port: LETTERS }, &letter.bytes));
        // Whoever waits for an answer asks again.
        self.is_full |= matches!(sent, Err(Code::LocalResource | Code::RemoteResource));
    }

    fn on_heard(&mut self, now: Instant, heard: Heard, out: &mut impl Out) {
        let addr_of = |company: &Self, node| company.link.whereabouts(node).map(|w| w.0);
        match heard {
            Heard::Letter { from, bytes } => {
                if let Some(from) = addr_of(self, from) {
                    self.on_alive(from);
                    self.deliver(now, from, bytes.bytes(), out);
                }
            }
            Heard::Frame { from, bytes } => {
                if let Some(from) = addr_of(self, from) {
                    self.on_alive(from);
                    self.on_frame(now, from, bytes.bytes(), out);
                }
            }
            Heard::Up { node } => {
                if let Some(addr) = addr_of(self, node) {
                    self.on_alive(addr);
                    self.flush_host(now, addr);
                }
            }
            Heard::Down { node, is_silent } => {
                if let Some(addr) = addr_of(self, node) {
                    self.rewind_host(now, addr);
                    if is_silent {
                        self.lose_host(addr, false, out);
                    }
                    self.lose(now, addr, false, out);
                }
            }
            Heard::Writable { node } => {
                if let Some(addr) = addr_of(self, node) {
                    self.flush_host(now, addr);
                }
            }
            Heard::Refused { node } => self.on_refused(now, node, out),
            Heard::Closed { node } => self.parting.on_closed(&mut self.link, node),
        }
    }

    /// A letter for somebody here.
    pub(super) fn deliver(&mut self, now: Instant, from: Addr, bytes: &[u8], out: &mut impl Out) {
        let envelope = Envelope::parse(bytes).ok().filter(|e| e.job == self.job);
        if let (Some(_), Some(early)) = (envelope, &mut self.early)
            && self.members.is_empty()
            && early.len() < EARLY
        {
            return early.push((from, bytes.to_vec()));
        }
        if envelope.is_some_and(|e| e.musters) {
            return self.on_muster(now, from, bytes, out);
        }
        match envelope.and_then(|e| Some((self.addressee(e.to)?, e.reduces))) {
            Some((seat, true)) => self.on_reduction(now, seat, from, bytes, out),
            Some((seat, false)) => self.tell_one(now, seat, view::Input::Heard { from, bytes }, out),
            None => self.strays += 1,
        }
    }

    fn addressee(&self, to: Addressee) -> Option<Seat> {
        let mut members = self.members.iter().map(|(&seat, p)| (seat, &p.member));
        let found = match to {
            Addressee::Newcomer(boot) => members.find(|(_, m)| m.boot() == boot),
            Addressee::Anybody => members.find(|(_, m)| m.view().is_some()),
            // A task that came again has a predecessor which is not in any view.
            Addressee::Task(task) => {
                let own = |m: &Member| m.me() == task;
                let is_in = members.clone().find(|(_, m)| own(m) && m.view().is_some());
                is_in.or_else(|| members.find(|(_, m)| own(m)))
            }
        };
        found.map(|(seat, _)| seat)
    }
}
