//! A broadcast in steps: each node sends one message in a step, which arrives at its end (001 §5).
//!
//! Who sends what, and which way messages take around the dead, is decided by the functions of `phalanx_protocol::cast`.

use phalanx_protocol::cast::route::{Router, Rule};
use phalanx_protocol::cast::spread::{self, Message};
use phalanx_protocol::cast::walk::{Hop, Transit};
use phalanx_protocol::cast::{Id, Tree};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What became of a broadcast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Outcome {
    /// Until the last node had it.
    pub(super) steps: u32,
    /// Who has it, the source among them.
    pub(super) reached: u32,
    /// Who got it twice.
    pub(super) twice: u32,
    pub(super) messages: u64,
}

/// A multicast around dead nodes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Around {
    /// Those still to be visited, the next one last.
    to: Vec<Id>,
}

enum Parcel {
    Whole,
    Around(Around, Transit),
}

/// A broadcast on its way.
struct Network<'n, F> {
    tree: &'n Tree,
    lives: F,
    router: Router,
    /// Arrivals: when, in which order they were sent, where.
    arrivals: BinaryHeap<Reverse<(u32, u64, Id)>>,
    parcels: Vec<Option<Parcel>>,
    /// The last step in which each node sends something.
    busy: Vec<u32>,
    has: Vec<bool>,
    outcome: Outcome,
}

/// Casts from `source` to all.
pub(super) fn broadcast(tree: &Tree, source: Id, rule: Rule, lives: impl Fn(Id) -> bool) -> Outcome {
    let nodes = tree.len() as usize;
    let outcome = Outcome { steps: 0, reached: 0, twice: 0, messages: 0 };
    let mut network = Network {
        tree,
        lives,
        router: Router::new(rule),
        arrivals: BinaryHeap::new(),
        parcels: Vec::new(),
        busy: vec![0; nodes],
        has: vec![false; nodes],
        outcome,
    };
    network.take(0, source);
    while let Some(Reverse((step, number, at))) = network.arrivals.pop() {
        match network.parcels[number as usize].take().expect("it arrives once") {
            Parcel::Whole => network.take(step, at),
            Parcel::Around(around, transit) => network.walk(step, at, around, transit),
        }
    }
    network.outcome
}

impl<F: Fn(Id) -> bool> Network<'_, F> {
    /// A node has it now, and sends it on.
    fn take(&mut self, step: u32, at: Id) {
        if std::mem::replace(&mut self.has[at.0 as usize], true) {
            self.outcome.twice += 1;
            return;
        }
        self.outcome.reached += 1;
        self.outcome.steps = self.outcome.steps.max(step);
        for message in spread::messages(self.tree, at, &self.lives) {
            match message {
                Message::Down(child) => self.send(step, at, child, Parcel::Whole),
                Message::Around(to) => {
                    let around = Around { to: spread::in_turn(self.tree, at, to) };
                    self.go_on(step, at, around, Transit::new(at));
                }
            }
        }
    }

    /// A message in transit is here.
    fn walk(&mut self, step: u32, at: Id, mut around: Around, mut transit: Transit) {
        if around.to.last() != Some(&at) {
            return self.go_on(step, at, around, transit);
        }
        around.to.pop();
        transit.arrive(at);
        self.go_on(step, at, around, transit);
        self.take(step, at);
    }

    fn go_on(&mut self, step: u32, at: Id, mut around: Around, mut transit: Transit) {
        while let Some(&to) = around.to.last() {
            let is_near = self.tree.are_linked(at, to);
            let hop = if (is_near && !(self.lives)(to)) || transit.dead().contains(&to) {
                Hop::Nowhere
            } else {
                transit.hop(&mut self.router, self.tree, at, to, &self.lives)
            };
            match hop {
                Hop::On(next) | Hop::Back(next) => {
                    return self.send(step, at, next, Parcel::Around(around, transit));
                }
                Hop::Nowhere => {
                    // It is dead, or nobody can reach it: those below it may be.
                    around.to.pop();
                    around.to.extend(spread::in_turn(self.tree, at, spread::below(self.tree, to)));
                    transit.arrive(at);
                }
            }
        }
    }

    fn send(&mut self, step: u32, from: Id, to: Id, parcel: Parcel) {
        let busy = &mut self.busy[from.0 as usize];
        *busy = (*busy).max(step) + 1;
        let number = self.parcels.len() as u64;
        self.outcome.messages += 1;
        self.arrivals.push(Reverse((*busy, number, to)));
        self.parcels.push(Some(parcel));
    }
}
