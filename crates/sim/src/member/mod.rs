//! Members: the process that runs a whole node in the simulator, link and membership engine, as a daemon does.
//!
//! [`build`] makes a cluster of them: zones of equal size, each with a shared roster, and a few seeds in each. What each
//! member sees of its zone is told as [`Note`]s, once [`Watching`] is switched on.
//!
//! | file | idea |
//! |---|---|
//! | `build` | clusters of members |
//! | [`checks`] | what must hold of them |
//! | [`desk`] | what a member casts, and how it tells who sits where |
//! | [`sweep`] | drawn faults, many seeds |
//! | [`recipes`] | the robustness recipes of Rapid and Lifeguard |
//! | `watch` | what a run is asked about: boot, views, who knows what when |

mod build;
pub mod checks;
pub mod desk;
pub mod recipes;
pub mod sweep;
#[cfg(test)]
mod tests;
mod watch;

pub use build::{
    Layout, Options, Telling, build, build_all_to_all, build_gossip, build_segments, build_segments_unicast,
};
pub use watch::{Boot, all_views_full, boot, last_known, zones_known};

use crate::manager::{self, Deed, Office};
use crate::process::{Ctx, Process, StreamEvent};
use build::{Shared, zone_name};
use desk::{Cast, Desk, Place};
use phalanx_core::fetch::fetch;
use phalanx_core::{Addr, Buf, Code, Instant, Machine, Sink};
use phalanx_fault::Rule;
use phalanx_protocol::cast::Id;
use phalanx_protocol::member::{Engine, Event, Name, Peer, Slot, Version, Why};
use phalanx_protocol::node::casts::Said;
use phalanx_protocol::node::{Carriage, Input, Node, Output};
use std::sync::Arc;

/// Rounds of expiry in one call, as in the daemon.
const ROUNDS: usize = 4;

/// What members say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// The member started.
    Started {
        /// Its incarnation.
        incarnation: u64,
    },
    /// The member leaves in good order.
    Leaving,
    /// The member is in another zone now, and sees nobody of its old one.
    Moved,
    /// A member is there.
    Joined {
        /// The node that it runs on.
        node: u32,
        /// In which version.
        version: Version,
    },
    /// A member is gone.
    Left {
        /// The node that it ran on.
        node: u32,
        /// The version that is gone.
        version: Version,
        /// Why.
        why: Why,
    },
    /// The member's name is another's, too; or is not any more.
    Name {
        /// The node of the member that holds it.
        holder: u32,
        /// The node of the one that must rename itself.
        loser: Option<u32>,
    },
    /// The member wrote one of its [`Written`] attributes.
    Wrote(Written),
    /// The member was told that another one wrote.
    Read {
        /// The node that it runs on.
        node: u32,
        /// What it wrote.
        written: Written,
    },
    /// ST-4: the member casts to its zone.
    Cast {
        /// What.
        cast: Cast,
        /// Its number among those of the member's start.
        number: u64,
    },
    /// The member cannot cast now.
    Mute,
    /// Something was cast to the member.
    Delivered {
        /// What; nothing when it cannot be read.
        cast: Option<Cast>,
        /// The node that the member takes for its source.
        from: Option<u32>,
    },
    /// All who live have the member's casts up to this number.
    Settled(u64),
    /// ST-2: a member sees another one, or itself, in another place of the tree.
    Sees {
        /// The node of that one.
        node: u32,
        /// Where; nowhere any more when absent.
        place: Option<Place>,
    },
    /// CM-1: the member's part of the manager says something.
    Managed(manager::Note),
}

/// An attribute that tells one write from another: each of a run has a number of its own, and later ones higher ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Written {
    /// Which attribute: `w0` to `w255`.
    pub key: u8,
    /// Its number.
    pub number: u64,
}

impl Written {
    /// The name of the attribute.
    #[must_use]
    pub fn name(key: u8) -> String {
        format!("w{key}")
    }

    /// What to ask of the writer.
    #[must_use]
    pub fn command(&self) -> Command {
        Command::Set(Self::name(self.key), Some(self.number.to_le_bytes().to_vec()))
    }

    fn parse(key: &str, value: Option<&[u8]>) -> Option<Self> {
        let key = key.strip_prefix('w')?.parse().ok()?;
        Some(Self { key, number: u64::from_le_bytes(value?.try_into().ok()?) })
    }
}

/// What members are asked to do.
#[derive(Clone, Debug)]
pub enum Command {
    /// The link's `plain` injector gets a rule.
    Plain(Box<Rule>),
    /// All rules of the `plain` injector end.
    HealPlain,
    /// Leave in an orderly way, with this exit code.
    Leave(u8),
    /// Take another name.
    Rename(Name),
    /// Write an attribute.
    Set(String, Option<Vec<u8>>),
    /// HI-1: move to this zone.
    Move(Name),
    /// ST-4: cast so many bytes to the zone.
    Cast(u32),
    /// CM-1: something for the member's part of the manager.
    Manage(manager::Command),
}

/// A node that runs link and engine.
pub struct Member<E> {
    node: Node<E>,
    shared: Arc<Shared>,
    /// Where casts are on.
    desk: Option<Box<Desk>>,
    /// Where there is a manager.
    office: Option<Box<Office>>,
}

impl<E: Engine> Member<E> {
    /// The engine, to be looked at.
    #[must_use]
    pub fn engine(&self) -> &E {
        self.node.engine()
    }

    /// The node, to be looked at.
    #[must_use]
    pub fn node(&self) -> &Node<E> {
        &self.node
    }

    /// Its part of the manager, to be looked at.
    pub(crate) fn office(&self) -> Option<&Office> {
        self.office.as_deref()
    }

    /// Who is in which zone of this run.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.shared.layout
    }

    /// The node that a member of ours runs on.
    #[must_use]
    pub fn whereabouts(&self, member: Slot) -> Option<u32> {
        whereabouts(self.engine(), member)
    }
}

fn whereabouts<E: Engine>(engine: &E, member: Slot) -> Option<u32> {
    match engine.card(member)?.addr {
        Addr::Local(node) => Some(node),
        Addr::Ip(_) | Addr::Group(_) => None,
    }
}

/// The sink of one call of the node.
struct Outlet<'a, 'n, E: Engine + Send> {
    /// Slots in a shared roster are nodes behind the first of their zone.
    told: &'a mut Vec<Told>,
    telling: bool,
    net: &'a mut Ctx<'n, Member<E>>,
}

/// A change, with the engine's number for the member.
enum Told {
    Joined(Slot, Version),
    Left(Slot, Version, Why),
    Name(Slot, Option<Slot>),
    Read(Slot, Written),
    Delivered(Option<Cast>, Option<u32>),
    Settled(u64),
    Managed(Peer, Carriage, Vec<u8>),
}

impl<'o, E: Engine + Send> Sink<Output<'o>> for Outlet<'_, '_, E> {
    fn push(&mut self, output: Output<'o>) {
        match output {
            Output::Transmit { to, packet, .. } => self.net.send(to, packet),
            Output::Wire { to } => self.net.open_stream(to),
            Output::Unwire { to } => self.net.close_stream(to),
            Output::Hear { group } => self.net.join_group(group),
            Output::Reached(state) => self.net.reached(state),
            Output::Event(Event::Joined { member, version }) if self.telling => {
                self.told.push(Told::Joined(member, version));
            }
            Output::Event(Event::Left { member, version, why }) if self.telling => {
                self.told.push(Told::Left(member, version, why));
            }
            Output::Event(Event::Name { holder, loser }) if self.telling => self.told.push(Told::Name(holder, loser)),
            Output::Event(Event::Attribute { member, key, value }) if self.telling => {
                self.told.extend(Written::parse(key, value).map(|written| Told::Read(member, written)));
            }
            Output::Cast(Said::Delivered { from, body, .. }) if self.telling => {
                let from = from.strip_prefix('n').and_then(|n| n.parse().ok());
                self.told.push(Told::Delivered(Cast::read(body), from));
            }
            Output::Cast(Said::Settled { number, .. }) if self.telling => self.told.push(Told::Settled(number)),
            Output::Managed { from, carriage, bytes } => self.told.push(Told::Managed(from, carriage, bytes.to_vec())),
            Output::Event(_) | Output::Rumour(_) | Output::Cast(_) => {}
        }
    }
}

impl<E: Engine + Send> Member<E> {
    fn tell(&mut self, now: Instant, input: Input<'_>, net: &mut Ctx<'_, Self>) {
        let (mut told, telling) = (Vec::new(), self.shared.is_telling());
        self.node.handle(now, input, &mut Outlet { told: &mut told, telling, net });
        self.act(now, told, net);
    }

    /// Lets the node do what is due, and says what changed.
    fn act(&mut self, now: Instant, mut told: Vec<Told>, net: &mut Ctx<'_, Self>) {
        let telling = self.shared.is_telling();
        for _ in 0..ROUNDS {
            if self.node.deadline() <= now {
                self.node.expire(now, &mut Outlet { told: &mut told, telling, net });
            }
            told.drain(..).for_each(|told| self.say(now, told, net));
            self.see_to_office(now, net);
            if self.deadline() > now {
                break;
            }
        }
        if telling {
            self.tell_places(net);
        }
    }

    /// One change goes to whom it concerns.
    fn say(&mut self, now: Instant, told: Told, net: &mut Ctx<'_, Self>) {
        let note = match told {
            Told::Joined(member, version) => {
                self.show(now, member, net);
                self.whereabouts(member).map(|node| Note::Joined { node, version })
            }
            Told::Left(member, version, why) => {
                let Self { node, office, .. } = self;
                if let (Some(office), Some(card)) = (office, node.engine().card(member)) {
                    office.on_gone(now, card, version, net.rng());
                }
                self.whereabouts(member).map(|node| Note::Left { node, version, why })
            }
            Told::Name(holder, loser) => {
                let loser = loser.and_then(|l| self.whereabouts(l));
                self.whereabouts(holder).map(|holder| Note::Name { holder, loser })
            }
            Told::Read(member, written) => self.whereabouts(member).map(|node| Note::Read { node, written }),
            Told::Delivered(cast, from) => Some(Note::Delivered { cast, from }),
            Told::Settled(number) => Some(Note::Settled(number)),
            Told::Managed(from, carriage, bytes) => {
                if let Some(office) = &mut self.office {
                    office.on_heard(now, (from, carriage), &bytes, net.rng());
                }
                None
            }
        };
        note.into_iter().for_each(|note| net.note(note));
    }

    /// The steward is shown a member.
    fn show(&mut self, now: Instant, member: Slot, net: &mut Ctx<'_, Self>) {
        let Self { node, office: Some(office), shared, .. } = self else { return };
        let engine = node.engine();
        let zone = zone_name(shared.layout.zone_of(net.node()));
        if let (Some(card), Some(version)) = (engine.card(member), engine.version(member)) {
            office.on_seen(now, (card, version, zone.as_str()), net.rng());
        }
    }

    /// Lets the manager's part do what is due, and does what it wants.
    fn see_to_office(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        let Self { node, office: Some(office), .. } = self else { return };
        if office.deadline() <= now {
            office.expire(now, net.rng());
        }
        let mut told = Vec::new();
        while let Some(deed) = office.next_deed() {
            match deed {
                // What is lost is said again.
                Deed::Send(to, carriage, bytes) => _ = node.manage(now, to, carriage, &bytes),
                Deed::Persist(token, key, bytes) => net.persist(token, key, &bytes),
                Deed::Note(note) => net.note(Note::Managed(note)),
                Deed::Doubt(addr) => node.doubt(now, addr, &mut Outlet { told: &mut told, telling: true, net }),
            }
        }
        told.into_iter().for_each(|told| self.say(now, told, net));
    }

    /// Says who sits elsewhere than before.
    fn tell_places(&mut self, net: &mut Ctx<'_, Self>) {
        let Self { node, desk: Some(desk), .. } = self else { return };
        let place = |(seat, slot, who): (Id, Slot, u64)| Some((whereabouts(node.engine(), slot)?, Place { seat, who }));
        desk.look(node.sitters().filter_map(place), |node, place| net.note(Note::Sees { node, place }));
    }

    fn cast(&mut self, now: Instant, bytes: u32, net: &mut Ctx<'_, Self>) -> Vec<Told> {
        let (mut told, telling) = (Vec::new(), self.shared.is_telling());
        let Some(desk) = &mut self.desk else { return told };
        let (cast, body) = desk.next(bytes);
        let number = self.node.broadcast(now, &body, &mut Outlet { told: &mut told, telling, net });
        if telling {
            net.note(number.map_or(Note::Mute, |number| Note::Cast { cast, number }));
        }
        told
    }
}

impl<E: Engine + Send> Process for Member<E> {
    type Command = Command;
    type Note = Note;

    const DEEP: bool = true;

    fn start(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        if self.shared.is_telling() {
            let own = self.engine().version(self.engine().me());
            own.into_iter().for_each(|v| net.note(Note::Started { incarnation: v.incarnation }));
        }
        let me = self.engine().me();
        self.show(now, me, net);
        if let Some(office) = &mut self.office {
            office.start(now, net.rng());
        }
        self.act(now, Vec::new(), net);
    }

    fn arrived(&mut self, now: Instant, from: Addr, mut packet: Buf, net: &mut Ctx<'_, Self>) {
        let (bytes, attached) = packet.parts_mut();
        self.tell(now, Input::Arrived { from, bytes, attached }, net);
    }

    fn expire(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        self.act(now, Vec::new(), net);
    }

    #[inline]
    fn foresee_far(&self, packet: &Buf) {
        self.node.link().foresee(packet.bytes());
        if let Some(a) = packet.attached() {
            fetch(&*a.snapshot);
        }
    }

    #[inline]
    fn foresee(&self, packet: Option<&Buf>) {
        if let Some(packet) = packet {
            self.node.link().foresee_stream(packet.bytes());
        }
    }

    fn deadline(&self) -> Instant {
        let office = self.office.as_ref().map_or(Instant::NEVER, |office| office.deadline());
        self.node.deadline().min(office)
    }

    fn persisted(&mut self, now: Instant, token: u64, ok: bool, net: &mut Ctx<'_, Self>) {
        if let Some(office) = self.office.as_mut().filter(|_| ok) {
            office.on_persisted(now, token, net.rng());
        }
        self.act(now, Vec::new(), net);
    }

    fn stream(&mut self, now: Instant, addr: Addr, event: StreamEvent, net: &mut Ctx<'_, Self>) {
        let input = match event {
            StreamEvent::Opened => Input::Wired { addr },
            StreamEvent::Refused | StreamEvent::Closed | StreamEvent::Reset => Input::Tripped { addr },
        };
        self.tell(now, input, net);
    }

    fn refused(&mut self, now: Instant, addr: Addr, net: &mut Ctx<'_, Self>) {
        self.tell(now, Input::Refused { addr, code: Code::Unreachable }, net);
    }

    fn command(&mut self, now: Instant, command: Command, net: &mut Ctx<'_, Self>) {
        let (mut told, telling) = (Vec::new(), self.shared.is_telling());
        match command {
            // One that the injector refuses is a mistake of the scenario, and shows as a fault that does nothing.
            Command::Plain(rule) => _ = self.node.link_mut().tap().add(now, *rule),
            Command::HealPlain => self.node.link_mut().tap().heal_all(),
            Command::Leave(code) => {
                if telling {
                    net.note(Note::Leaving);
                }
                self.node.leave(now, code, &mut Outlet { told: &mut told, telling, net });
            }
            Command::Move(zone) => {
                let mut outlet = Outlet { told: &mut told, telling, net };
                let moved = self.node.relocate(now, &zone, &[], &mut outlet) == Ok(true);
                self.act(now, told, net);
                if moved && telling {
                    net.note(Note::Moved);
                }
                return;
            }
            // A refused write changes nothing, and nobody waits for it.
            Command::Set(key, value) => {
                let done = self.node.set(now, &key, value.as_deref());
                let written = Written::parse(&key, value.as_deref()).filter(|_| telling && done.is_ok());
                written.into_iter().for_each(|w| net.note(Note::Wrote(w)));
            }
            Command::Rename(name) => _ = self.node.rename(now, &name),
            Command::Cast(bytes) => told = self.cast(now, bytes, net),
            Command::Manage(command) => {
                if let Some(office) = &mut self.office {
                    office.command(now, command, net.rng());
                }
            }
        }
        self.act(now, told, net);
    }
}
