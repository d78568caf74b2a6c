//! The group of replicas, and what it agrees on.

use super::*;

#[test]
fn cm_1_one_replica_becomes_three() {
    let mut state = Story::new(&[1]);
    assert_eq!(state.comes(1, 1), [""; 0]);
    assert_eq!(state.comes(2, 1), ["grow 12"]);
    assert_eq!(state.comes(3, 1), [""; 0], "one change in an epoch");
    state.state.grouped(2, &[key(0), key(1), key(2)], &[key(1), key(2)]);
    assert_eq!((state.state.epoch(), state.state.seats().len(), state.later(1)), (2, 3, vec![]));
}

/// CM-3: two say that the third is wrong.
#[test]
fn cm_3_two_accusers_replace_the_third() {
    let mut story = Story::new(&[1, 1, 1, 1, 1]);
    let mut say = |by, whom, epoch| told(&story.fact(Fact::Accused { by: key(by), whom: key(whom), epoch }));
    assert_eq!(say(0, 2, 1), [""; 0]);
    assert_eq!(say(0, 2, 1), [""; 0], "one voice, however often");
    assert_eq!(say(2, 2, 1), [""; 0], "nobody accuses itself");
    assert_eq!(say(4, 2, 1), [""; 0], "only replicas accuse");
    assert_eq!(say(1, 2, 7), [""; 0], "of another epoch");
    // Zones are z0 and z1 in turn; those of the two that stay have a replica each.
    assert_eq!(say(1, 2, 1), ["move 23"]);
    assert_eq!(say(1, 0, 1), [""; 0]);
    assert_eq!(say(2, 0, 1), [""; 0], "one change in an epoch");
}

#[test]
fn cm_3_where_no_other_node_is_left_it_starts_anew() {
    let mut story = Story::new(&[1, 1, 1]);
    story.fact(Fact::Accused { by: key(0), whom: key(1), epoch: 1 });
    assert_eq!(told(&story.fact(Fact::Accused { by: key(2), whom: key(1), epoch: 1 })), ["move 11"]);
}

#[test]
fn cm_3_a_replica_whose_node_is_gone_moves() {
    let mut story = Story::new(&[1, 1, 1, 1, 1]);
    story.state.grouped(2, &[key(0), key(2), key(4)], &[]);
    story.lost(2);
    assert_eq!(story.later(SEAT_PATIENCE_MS - 1), [""; 0]);
    story.back(2, 1, false);
    story.later(10);
    story.lost(2);
    assert_eq!(story.later(SEAT_PATIENCE_MS), ["move 21"], "to a zone without one");
    // Nobody is left: it waits for a node.
    let mut story = Story::new(&[1, 1, 1]);
    story.lost(2);
    assert_eq!(story.later(SEAT_PATIENCE_MS), [""; 0]);
    assert_eq!(story.comes(3, 1), ["move 23"]);
}

#[test]
fn cm_1_people_move_replicas() {
    let mut story = Story::new(&[1, 1, 1, 1, 1]);
    let ask = |from: &str, to: &str| Ask::Move { from: from.into(), to: to.into() };
    assert_eq!(story.refused(ask("n3", "n4")), "n3 has no replica: they are on n0, n1, n2");
    assert_eq!(story.refused(ask("n1", "n2")), "n2 has a replica already: name a node without one");
    story.lost(4);
    assert_eq!(story.refused(ask("n1", "n4")), "n4 is not there: name a node that is");
    assert_eq!(story.ask(0, ask("n1", "n3")), (Answer::Done, vec!["move 13".into()]));
    assert!(story.refused(ask("n0", "n3")).contains("is changing"));
}

/// CM-3: while a new replica has no state yet, of the two that have one none goes; what is against it then is done when it has.
#[test]
fn cm_3_two_states_at_least_stay() {
    let mut story = Story::new(&[1, 1, 1, 1, 1]);
    story.state.grouped(2, &[key(0), key(1), key(2)], &[key(2)]);
    let accused = |by, whom| Fact::Accused { by: key(by), whom: key(whom), epoch: 2 };
    story.fact(accused(0, 1));
    assert_eq!(told(&story.fact(accused(2, 1))), [""; 0], "not yet");
    let ask = |from: &str, to: &str| Ask::Move { from: from.into(), to: to.into() };
    assert!(story.refused(ask("n0", "n3")).contains("the replica on n2 takes its state"));
    story.fact(Fact::Arrived { by: key(2), epoch: 1 });
    assert_eq!(told(&story.fact(Fact::Arrived { by: key(2), epoch: 2 })), ["move 13"]);
    // The one without a state may go at any time.
    story.state.grouped(3, &[key(0), key(2), key(3)], &[key(3)]);
    story.lost(3);
    assert_eq!(story.later(SEAT_PATIENCE_MS), ["move 31"]);
}

/// CM-4: the same entries give the same state, and the smallest difference another digest.
#[test]
fn cm_4_digests_tell_states_apart() {
    let story = || {
        let mut story = Story::new(&[2, 2]);
        story.running(0, wanted(4), &[0, 1]);
        story
    };
    let (mut one, mut other) = (story(), story());
    assert_eq!((one.state.digest(), one.state.encode()), (other.state.digest(), other.state.encode()));
    one.ended(0, at(1, 0), &[0], End::Exited(0));
    other.ended(0, at(1, 0), &[0], End::Exited(1));
    assert_ne!(one.state.digest(), other.state.digest());
    let read = State::decode(&one.state.encode()).unwrap();
    assert_eq!((read.digest(), &read), (one.state.digest(), &one.state));
    let bytes = one.state.encode();
    assert_eq!(State::decode(&bytes[..bytes.len() - 1]), None);
}

/// Bytes that are no state give none, and never a panic.
#[test]
fn cm_4_what_is_no_state_is_not_read() {
    let mut story = Story::new(&[2, 2]);
    story.running(0, wanted(4), &[0, 1]);
    let bytes = story.state.encode();
    for at in 0..bytes.len() {
        for flip in [1, 0x80] {
            let mut other = bytes.clone();
            other[at] ^= flip;
            if let Some(state) = State::decode(&other) {
                assert_ne!(state.digest(), story.state.digest(), "byte {at}");
            }
        }
    }
}
