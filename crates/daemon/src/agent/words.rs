//! Members and news in the API's words.

use crate::driver::News;
use crate::store::hex;
use phalanx_api::{Member, Offer, Part, State, What};
use phalanx_core::Addr;
use phalanx_protocol::directory;
use phalanx_protocol::member::{Engine, Origin, Slot, Version, Why};
use phalanx_protocol::node::Membership;

/// A member that is there. `None` when it has no address that others could use.
pub(super) fn member(engine: &Membership, slot: Slot, version: Version) -> Option<Member> {
    described(engine, slot, version, State::Alive)
}

fn described(engine: &Membership, slot: Slot, version: Version, state: State) -> Option<Member> {
    let card = engine.card(slot)?;
    let Addr::Ip(addr) = card.addr else { return None };
    let (part, teller) = part(engine, slot);
    Some(Member {
        name: card.name.as_str().to_owned(),
        id: hex(&card.identity.0),
        addr,
        state,
        zone: engine.name().map(|z| z.as_str().to_owned()),
        incarnation: version.incarnation,
        minor: version.minor,
        me: slot == engine.me(),
        part,
        teller,
    })
}

/// TG-4: in which part of the directory a member is, and on whose word.
pub(super) fn part(engine: &impl Engine, member: Slot) -> (Option<Part>, Option<String>) {
    match engine.origin(member) {
        None => (None, None),
        Some(Origin::Heard) => (Some(Part::Local), None),
        Some(Origin::Told(by)) => {
            let teller = by.and_then(|by| engine.card(by)).map(|card| card.name.as_str().to_owned());
            (Some(Part::External), teller)
        }
    }
}

/// What happened to members. `None` for what concerns only us, and for rumours.
pub(super) fn what(engine: &Membership, news: &News) -> Option<What> {
    let id = |slot: Slot| engine.card(slot).map(|c| hex(&c.identity.0));
    Some(match news {
        News::Joined { member: slot, version } => What::Joined { member: member(engine, *slot, *version)? },
        News::Left { member, version, why } => {
            let state = match why {
                Why::Failed => State::Failed,
                Why::Departed(_) => State::Left,
                Why::Moved => State::Moved,
                // The new one is told as a join.
                Why::Replaced => return None,
            };
            What::Left { member: described(engine, *member, *version, state)? }
        }
        News::Attribute { member, key, value } => attribute(engine, *member, key, value.as_deref())?,
        News::Name { holder, loser } => What::Name { holder: id(*holder)?, loser: loser.and_then(id) },
        _ => return None,
    })
}

/// A member's attribute changed.
pub(super) fn attribute(engine: &impl Engine, member: Slot, key: &str, value: Option<&[u8]>) -> Option<What> {
    let card = engine.card(member)?;
    Some(What::Attribute {
        name: card.name.as_str().to_owned(),
        key: key.to_owned(),
        value: value.map(|v| String::from_utf8_lossy(v).into_owned()),
        identity: hex(&card.identity.0),
        opaque: value.is_some_and(|v| std::str::from_utf8(v).is_err()),
        service: value.and_then(|v| directory::Offer::parse(key, v)).map(|o| offer(&o)),
    })
}

/// What a member offers.
pub(super) fn offer(offer: &directory::Offer<'_>) -> Offer {
    Offer {
        name: offer.name.to_owned(),
        port: offer.port,
        partitions: offer.partitions().collect(),
        tags: offer.tags().map(str::to_owned).collect(),
        parameters: offer.parameters().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
    }
}
