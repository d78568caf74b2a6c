//! What a data centre says of itself: members and services, counted over any engine.

use crate::directory::Directory;
use crate::member::Engine;
use phalanx_core::{Addr, rng};
use phalanx_wire::federation::{LENGTH_MAX, NAME_MAX, Summary};
use std::collections::BTreeMap;

/// Our own data centre.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Home {
    /// We lead it, and speak for it.
    pub speaks: bool,
    /// Members that we hold links with: what all shall hear is passed on to them.
    pub linked: Vec<Addr>,
    /// How many members live.
    pub members: u32,
    /// Of all of them, in whatever order.
    pub digest: u64,
    /// Services and how often each is offered.
    pub services: BTreeMap<Box<str>, u32>,
}

impl Home {
    /// What an engine sees. `speaks`: we lead all of it, as [`Segment::is_top`](crate::segment::Segment::is_top) says of segments.
    #[must_use]
    pub fn of(engine: &impl Engine, speaks: bool) -> Self {
        let mut home = Self { speaks, linked: engine.linked(), ..Self::default() };
        for (member, version) in engine.members() {
            let Some(card) = engine.card(member) else { continue };
            home.members = home.members.saturating_add(1);
            let mut sum = version.incarnation;
            card.identity.0.iter().for_each(|&byte| sum = rng::mix(sum ^ u64::from(byte)));
            home.digest ^= sum;
        }
        for found in Directory::of(engine).services().filter(|f| (1..=NAME_MAX).contains(&f.offer.name.len())) {
            match home.services.get_mut(found.offer.name) {
                Some(count) => *count = count.saturating_add(1),
                None => _ = home.services.insert(found.offer.name.into(), 1),
            }
        }
        for (name, count) in &home.services {
            let sum = name.bytes().fold(u64::from(*count), |sum, byte| rng::mix(sum ^ u64::from(byte)));
            home.digest ^= sum;
        }
        home
    }

    /// A summary with as many services as there is room for: those that are offered most often first.
    pub(super) fn with_services<'a>(&'a self, summary: Summary<'a>, most: usize) -> Summary<'a> {
        let mut all: Vec<(&str, u32)> = self.services.iter().map(|(n, &c)| (&**n, c)).filter(|s| s.1 > 0).collect();
        all.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
        let mut room = LENGTH_MAX.saturating_sub(summary.fixed());
        let count = all.len();
        let fits = |&(name, _): &(&str, u32)| {
            let need = Summary::service(name);
            let fits = need <= room && (1..=NAME_MAX).contains(&name.len());
            room -= if fits { need } else { 0 };
            fits
        };
        let mut services: Vec<(&str, u32)> = all.into_iter().filter(fits).take(most).collect();
        services.sort_unstable();
        let more = u32::try_from(count - services.len()).unwrap_or(u32::MAX);
        Summary { services, more, ..summary }
    }
}
