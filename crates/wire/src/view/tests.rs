use super::*;

fn change() -> Change {
    let person = Person { host: Addr::Local(9), boot: 7, stint: 2 };
    Change {
        id: ViewId { number: 300, root: Task(1), stint: 4 },
        base: ViewId { number: 299, root: Task(0), stint: 0 },
        failed: vec![Task(0), Task(5), Task(6)],
        joined: vec![Joined { task: Task(8), person }],
        ranks: vec![(5, Task(8))],
        checkpoint: false,
    }
}

fn all() -> Vec<Words<'static>> {
    let (view, ballot) = (ViewId { number: 1, root: Task(0), stint: 1 }, Ballot { counter: 2, owner: Task(3) });
    let entry = Entry { person: change().joined[0].person, lives: true, seated: true };
    let roster =
        Roster { id: view, arity: 4, ranks: 2, entries: vec![entry, Entry { lives: false, ..entry }], holders: vec![] };
    vec![
        Words::Report { view, failed: vec![Task(3), Task(200)], certain: true },
        Words::Reported { failed: vec![] },
        Words::Notice { wave: Wave::RootDead, base: view, ballot, gone: vec![Task(0)], change: None },
        Words::Notice {
            wave: Wave::RootAndNodeFailure,
            base: change().base,
            ballot,
            gone: vec![],
            change: Some(change()),
        },
        Words::Ack {
            wave: Wave::FailedNode,
            base: view,
            ballot,
            count: 1000,
            gone: vec![Task(4)],
            best: Some((ballot, change())),
        },
        Words::Nack { base: view, ballot },
        Words::Stable { change: change() },
        Words::HowAreYou { nonce: 5, view },
        Words::Well { nonce: 5, view },
        Words::Knock { wanted: Wanted::Again(Task(3)), host: Addr::Local(1), boot: 9 },
        Words::Knock { wanted: Wanted::Spare, host: Addr::Local(1), boot: 9 },
        Words::Welcome { task: Task(1), boot: 3, roster: roster.clone() },
        Words::Refused { boot: 3, why: Refusal::Taken },
        Words::Excluded { view },
        Words::Behind { view },
        Words::State { roster },
        Words::Data { view, number: 77, body: b"hello" },
        Words::Stale { view, number: 77 },
        Words::Checkpoint,
        Words::Leaving,
        Words::Over { view },
        Words::Reduce { bytes: b"up" },
        Words::Muster { bytes: b"down" },
    ]
}

fn letter(words: Words<'_>) -> Letter<'_> {
    Letter { job: 0x0102_0304_0506_0708, from: Task(1), to: Task(300), words }
}

fn bytes(words: Words<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    letter(words).encode(&mut out);
    out
}

#[test]
fn golden_bytes() {
    let words = Words::Ack {
        wave: Wave::FailedNode,
        base: ViewId { number: 300, root: Task(0), stint: 0 },
        ballot: Ballot { counter: 0, owner: Task(0) },
        count: 2,
        gone: vec![Task(3), Task(4), Task(140)],
        best: None,
    };
    let mut expected = vec![1, 4, 8, 7, 6, 5, 4, 3, 2, 1, 1, 0xac, 2];
    expected.extend_from_slice(&[1, 0xac, 2, 0, 0, 0, 0, 2, 3, 3, 0, 0x87, 1, 0]);
    if !tomorrow::is_on() {
        assert_eq!(bytes(words), expected);
    }
}

#[test]
fn every_letter_comes_back_as_it_was() {
    for words in all() {
        assert_eq!(Letter::parse(&bytes(words.clone())), Ok(letter(words)));
    }
}

#[test]
fn a_newer_peer_may_append() {
    for words in all() {
        let mut bytes = bytes(words.clone());
        bytes.extend_from_slice(b"something new");
        assert_eq!(Letter::parse(&bytes), Ok(letter(words)));
    }
}

#[test]
fn cut_letters_are_refused() {
    for words in all().into_iter().filter(|_| !tomorrow::is_on()) {
        let bytes = bytes(words);
        for end in 0..bytes.len() {
            assert!(Letter::parse(&bytes[..end]).is_err(), "{end} of {bytes:?}");
        }
    }
}

#[test]
fn lies_are_refused() {
    let base = change().base;
    let ballot = Ballot::first(Task(0));
    // ROOT_DEAD proposes nothing, all others something, and of the view that they name.
    let proposing = Words::Notice { wave: Wave::RootDead, base, ballot, gone: vec![], change: Some(change()) };
    assert_eq!(Letter::parse(&bytes(proposing)), Err(Malformed::Inconsistent));
    let empty = Words::Notice { wave: Wave::FailedNode, base, ballot, gone: vec![], change: None };
    assert_eq!(Letter::parse(&bytes(empty)), Err(Malformed::Inconsistent));
    let backwards = Change { id: base, ..change() };
    assert_eq!(Letter::parse(&bytes(Words::Stable { change: backwards })), Err(Malformed::Inconsistent));
    // A list that says to be longer than all that is left.
    let mut long = vec![1, 2];
    long.extend_from_slice(&[0; 10]);
    long.extend_from_slice(&[0xff, 0xff, 3, 0, 0]);
    assert_eq!(Letter::parse(&long), Err(Malformed::Truncated));
    assert_eq!(Letter::parse(&[2; 20]), Err(Malformed::Version));
}

/// A host of several tasks hands a knock to any of them, and one that was passed on to the root to the root alone.
#[test]
fn a_knock_is_for_anybody_until_it_is_passed_on() {
    let addressee = |to| {
        let words = Words::Knock { wanted: Wanted::More, host: Addr::Local(9), boot: 7 };
        let mut bytes = Vec::new();
        Letter { job: 3, from: Task(4), to, words }.encode(&mut bytes);
        Envelope::parse(&bytes).map(|e| e.to)
    };
    assert_eq!(addressee(Task::NONE), Ok(Addressee::Anybody));
    assert_eq!(addressee(Task(0)), Ok(Addressee::Task(Task(0))));
}

/// A host sees from the outside which letters are for who reduces.
#[test]
fn reductions_are_told_apart() {
    for words in all() {
        let (reduces, musters) = (matches!(words, Words::Reduce { .. }), matches!(words, Words::Muster { .. }));
        assert_eq!(Envelope::parse(&bytes(words)).map(|e| (e.reduces, e.musters)), Ok((reduces, musters)));
    }
}
