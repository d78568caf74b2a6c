//! A member of an ordered group of three on top of MML (MM-3), with its disk and a small application.
//!
//! Packets go as ACK messages: a vote that a member of the cluster could turn towards another candidate must be
//! signed and bound to its receiver. Records go to the node's disk in the order in which they are issued. The
//! application counts what it is handed; it makes its state safe now and then, and hands it to a member that fell
//! behind.

use super::Station;
use super::content::{self, Layer, Name};
use super::loads::{Errand, pause};
use super::note::{Note, OrderNote};
use super::workload::{Ordered, millis};
use crate::process::Ctx;
use crate::sim::Birth;
use phalanx_core::{Buf, Instant, Machine, Rng, Sink};
use phalanx_protocol::order::{Config, Input, Mark, Member, Order, Output, Seat};

/// Members of a group.
pub(super) const MEMBERS: u32 = 3;
/// Bytes of a message.
const MESSAGE: usize = 24;
/// Entries go into one packet up to this: with headers and signature it fits into the shortest datagram.
const BATCH: usize = 180;
/// Keys of records on the disk: behind all others, by boot and token.
const RECORDS: u64 = 1 << 63;
/// The key of the application's state.
const STATE: u64 = 1;
/// Tokens of the application's own writes, apart from those of the records.
const STATE_TOKEN: u64 = 1 << 63;
/// The first byte of a packet: what it is.
const PACKET: u8 = 0;
const ASK_STATE: u8 = 1;
const STATE_OF: u8 = 2;

/// A member of a group.
pub(super) struct Group {
    order: Order,
    work: Ordered,
    /// The node of member 0.
    first: u32,
    submit_at: Instant,
    /// Messages accepted since the start.
    accepted: u64,
    /// The application has seen all up to this index.
    index: u64,
    unsaved: u32,
    /// The next write of the application, and what it is about: the index, and the mark it was restored from.
    writes: u64,
    saving: Option<(u64, u64, Option<Mark>)>,
    broken: Option<String>,
}

impl Group {
    /// The member on `node`, from what its disk kept; `None` when its group is not complete.
    pub(super) fn new(node: u32, nodes: u32, work: Ordered, birth: &Birth<'_>) -> Option<Self> {
        let first = node - node % MEMBERS;
        if first + MEMBERS > nodes {
            return None;
        }
        let boot = u64::from(birth.boot);
        let seat = Seat { me: Member((node - first) as u8), members: MEMBERS as u8, epoch: 1, boot };
        let config = Config { batch_bytes: BATCH, ..Config::default() };
        let rng = Rng::new(u64::from(node) << 32 | boot, birth.now.0);
        let saved = birth.disk.read(STATE).and_then(|s| Some(u64::from_le_bytes(*s.first_chunk()?))).unwrap_or(0);
        let records = birth.disk.iter().filter(|(key, _)| *key >= RECORDS).map(|(_, record)| record);
        let started = Order::recover(config, seat, saved, records, rng.clone(), birth.now);
        let broken = started.as_ref().err().map(ToString::to_string);
        let order = started.unwrap_or_else(|_| Order::new(config, seat, rng, birth.now));
        let (submit_at, saving) = (Instant::NEVER, None);
        Some(Self { order, work, first, submit_at, accepted: 0, index: saved, unsaved: 0, writes: 0, saving, broken })
    }

    pub(super) fn begin(&mut self, now: Instant, checked: bool, net: &mut Ctx<'_, Station>) {
        self.submit_at = pause(now, self.work.interval_ms, net);
        if checked {
            net.note(Note::Order(OrderNote::Placed { index: self.index }));
            if let Some(why) = self.broken.take() {
                net.note(Note::Order(OrderNote::Broken(why)));
            }
        }
    }

    pub(super) fn rest(&mut self) {
        self.submit_at = Instant::NEVER;
    }

    pub(super) fn deadline(&self) -> Instant {
        self.submit_at.min(self.order.deadline())
    }

    pub(super) fn expire(
        &mut self,
        now: Instant,
        errands: &mut Vec<Errand>,
        checked: bool,
        net: &mut Ctx<'_, Station>,
    ) {
        if self.order.deadline() <= now {
            self.drive(now, None, errands, checked, net);
        }
        if self.submit_at <= now {
            self.submit_at = now + millis(net.rng().exponential(self.work.interval_ms));
            let name = name(net.node(), net.boot(), self.accepted);
            let mut message = Buf::new(0, MESSAGE);
            content::write(name.seed(), MESSAGE, message.vec_mut());
            self.drive(now, Some(Input::Submitted { message: message.bytes() }), errands, checked, net);
        }
    }

    /// Another member sent something.
    pub(super) fn on_packet(
        &mut self,
        now: Instant,
        peer: u32,
        payload: &[u8],
        errands: &mut Vec<Errand>,
        checked: bool,
        net: &mut Ctx<'_, Station>,
    ) {
        let Some(from) = peer.checked_sub(self.first).filter(|&m| m < MEMBERS) else { return };
        match payload.split_first() {
            Some((&PACKET, packet)) => {
                let input = Input::Received { from: Member(from as u8), packet };
                self.drive(now, Some(input), errands, checked, net);
            }
            Some((&ASK_STATE, _)) => {
                // The application has seen every delivery, so its state is the one that the mark names.
                if let Some(mark) = self.order.mark() {
                    let mut packet = Buf::new(0, 200);
                    packet.extend(&[STATE_OF]);
                    mark.encode(packet.vec_mut());
                    errands.push(Errand::Order(peer, packet));
                }
            }
            Some((&STATE_OF, mark)) => {
                if let Ok(mark) = Mark::decode(mark)
                    && self.saving.is_none()
                {
                    self.save(self.index.max(mark.place.index), Some(mark), net);
                }
            }
            _ => {}
        }
    }

    /// A write is on the disk.
    pub(super) fn on_persisted(
        &mut self,
        now: Instant,
        token: u64,
        errands: &mut Vec<Errand>,
        checked: bool,
        net: &mut Ctx<'_, Station>,
    ) {
        if token & STATE_TOKEN == 0 {
            return self.drive(now, Some(Input::Persisted { token }), errands, checked, net);
        }
        let Some((_, index, mark)) = self.saving.take_if(|s| s.0 == token) else { return };
        let input = match mark {
            Some(mark) if mark.place.index > self.order.ordered_up_to() => {
                if index > self.index {
                    self.index = index;
                    if checked {
                        net.note(Note::Order(OrderNote::Placed { index }));
                    }
                }
                Input::Restored { mark }
            }
            Some(_) => return,
            None => Input::Saved { up_to: index },
        };
        self.drive(now, Some(input), errands, checked, net);
    }

    /// Makes the application's state safe.
    fn save(&mut self, index: u64, mark: Option<Mark>, net: &mut Ctx<'_, Station>) {
        let token = STATE_TOKEN | self.writes;
        self.writes += 1;
        self.unsaved = 0;
        self.saving = Some((token, index, mark));
        net.persist(token, STATE, &index.to_le_bytes());
    }

    /// Tells the machine something, or that its deadline has passed.
    fn drive(
        &mut self,
        now: Instant,
        input: Option<Input<'_>>,
        errands: &mut Vec<Errand>,
        checked: bool,
        net: &mut Ctx<'_, Station>,
    ) {
        let Self { order, index, unsaved, accepted, first, .. } = self;
        let mut out = Out { first: *first, index, unsaved, accepted, errands, checked, net };
        match input {
            Some(input) => order.handle(now, input, &mut out),
            None => order.expire(now, &mut out),
        }
        // A write that was lost is overtaken by the next: saving is a favour, not a promise.
        let due =
            self.unsaved >= 2 * self.work.save_every || (self.unsaved >= self.work.save_every && self.saving.is_none());
        if due && self.saving.as_ref().is_none_or(|s| s.2.is_none()) {
            self.save(self.index, None, net);
        }
    }
}

/// The name of a member's message.
pub(super) fn name(node: u32, boot: u32, seq: u64) -> Name {
    Name { from: node, boot, to: node - node % MEMBERS, layer: Layer::Order, generation: 0, number: seq as u32 }
}

struct Out<'a, 'n> {
    first: u32,
    index: &'a mut u64,
    unsaved: &'a mut u32,
    accepted: &'a mut u64,
    errands: &'a mut Vec<Errand>,
    checked: bool,
    net: &'a mut Ctx<'n, Station>,
}

impl Out<'_, '_> {
    fn note(&mut self, note: OrderNote) {
        if self.checked {
            self.net.note(Note::Order(note));
        }
    }
}

impl<'o> Sink<Output<'o>> for Out<'_, '_> {
    fn push(&mut self, output: Output<'o>) {
        match output {
            Output::Send { to, packet } => {
                let mut errand = Buf::new(0, 1 + packet.len());
                errand.extend(&[PACKET]);
                errand.extend(packet);
                self.errands.push(Errand::Order(self.first + u32::from(to.0), errand));
            }
            Output::Persist { token, record, .. } => {
                let key = RECORDS | u64::from(self.net.boot()) << 40 | token;
                self.net.persist(token, key, record);
            }
            Output::Deliver { index, origin, message } => {
                *self.index = index;
                *self.unsaved += 1;
                let (seed, member, boot, seq) = (content::read(message), origin.member.0, origin.boot, origin.seq);
                self.note(OrderNote::Delivered { index, member, boot, seq, seed });
            }
            Output::Accepted { origin } => {
                *self.accepted = origin.seq + 1;
                self.note(OrderNote::Accepted { seq: origin.seq });
            }
            Output::NeedSnapshot { from } => {
                self.errands.push(Errand::Order(self.first + u32::from(from.0), Buf::copy_of(&[ASK_STATE])));
            }
            // A full outbox makes room by itself; who stalls knows.
            Output::Refused { .. } | Output::Stalled | Output::Resumed => {}
        }
    }
}
