//! Whom a node sends a broadcast: its children, and whoever is next below dead ones.
//!
//! ST-4, 001 §3.1. The children of a dead child get the broadcast inside a multicast, which visits them in turn: they are neighbours in
//! their ring. When one of them is dead, too, whoever finds that out puts its children in its place. So each living node has exactly one
//! that sends to it: its nearest living ancestor.

use super::route::variant;
use super::tree::{Id, Tree};

/// One message that a node sends on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// The broadcast as it is, to a child.
    Down(Id),
    /// The broadcast in a multicast around a dead child, to these.
    Around(Vec<Id>),
}

/// What a node sends on. Ways around the dead are longest, so they leave first.
#[must_use]
pub fn messages(tree: &Tree, at: Id, lives: impl Fn(Id) -> bool) -> Vec<Message> {
    let (living, dead): (Vec<_>, Vec<_>) = tree.children(at).partition(|&c| lives(c));
    let around = dead.into_iter().map(|d| below(tree, d)).filter(|b| !b.is_empty()).map(Message::Around);
    around.chain(living.into_iter().map(Message::Down)).collect()
}

/// Who stands in for a dead node: its children.
#[must_use]
pub fn below(tree: &Tree, dead: Id) -> Vec<Id> {
    tree.children(dead).collect()
}

/// Those to whom a node is the nearest living one above: whoever lives next below it.
#[must_use]
pub fn heirs(tree: &Tree, at: Id, lives: impl Fn(Id) -> bool) -> Vec<Id> {
    first_living(tree, tree.children(at).collect(), lives)
}

/// Those who have nobody living above them: the root, or whoever lives next below it.
#[must_use]
pub fn tops(tree: &Tree, lives: impl Fn(Id) -> bool) -> Vec<Id> {
    first_living(tree, vec![Id(0)], lives)
}

fn first_living(tree: &Tree, mut edge: Vec<Id>, lives: impl Fn(Id) -> bool) -> Vec<Id> {
    let mut living = Vec::new();
    while let Some(at) = edge.pop() {
        if lives(at) {
            living.push(at);
        } else {
            edge.extend(tree.children(at));
        }
    }
    living
}

/// Neighbours in a ring as they are best visited from a node, the first one last: from the end that is nearer.
#[must_use]
pub fn in_turn(tree: &Tree, at: Id, mut to: Vec<Id>) -> Vec<Id> {
    if let [first, .., last] = to[..]
        && variant(tree, at, first) <= variant(tree, at, last)
    {
        to.reverse();
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lives_next_below() {
        let tree = Tree::new(2, 15).unwrap();
        let dead = [Id(0), Id(1), Id(4)];
        let mut tops = tops(&tree, |n| !dead.contains(&n));
        tops.sort_unstable();
        assert_eq!(tops, [Id(2), Id(3), Id(9), Id(10)]);
        assert_eq!(heirs(&tree, Id(2), |_| true).len(), 2);
    }

    #[test]
    fn st_4_children_of_a_dead_child_are_sent_to_around_it() {
        let tree = Tree::new(2, 15).unwrap();
        let sent = messages(&tree, Id(0), |n| n != Id(1));
        assert_eq!(sent, [Message::Around(vec![Id(3), Id(4)]), Message::Down(Id(2))]);
        assert_eq!(messages(&tree, Id(3), |n| n != Id(7)), [Message::Down(Id(8))], "nobody is below a dead leaf");
    }
}
