//! What peers tell a member: letters that make no sense change nothing, and no letter goes on for ever.

use phalanx_core::{Addr, Boot, Each, Instant, Machine};
use phalanx_protocol::member::Name;
use phalanx_protocol::rumour::keys::Keys;
use phalanx_protocol::rumour::{Input, Output, Rumours};
use phalanx_wire::rumour::Letter;
use phalanx_wire::tripwire::Hello;

/// Letters as they come, cut into pieces of a drawn length; and what a tripwire's other end may say.
pub fn rumour_heard(bytes: &[u8]) {
    if let Some(hello) = bytes.first_chunk::<{ Hello::LENGTH }>()
        && let Ok(hello) = Hello::parse(hello)
    {
        assert_eq!(Hello::parse(&hello.encode()), Ok(hello));
    }
    let keys = Keys::first(1, [7; 32]);
    let mut rumours = Rumours::new(Name::new("n").expect("a name"), Addr::Local(0), Boot([1; 16]), keys);
    let neighbours = [Addr::Local(1), Addr::Local(2)];
    let Some((&step, rest)) = bytes.split_first() else { return };
    for (n, piece) in rest.chunks(usize::from(step).max(48)).enumerate() {
        let piece = &likely(piece);
        if let Ok(letter) = Letter::parse(piece) {
            let mut again = Vec::new();
            letter.encode(&mut again);
            assert_eq!(Letter::parse(&again), Ok(letter));
        }
        let (now, mut sent) = (Instant(n as u64), 0);
        let input = Input::Heard { from: neighbours[0], bytes: piece, neighbours: &neighbours };
        rumours.handle(
            now,
            input,
            &mut Each(|out: Output<'_>| sent += usize::from(matches!(out, Output::Send { .. }))),
        );
        assert!(sent <= neighbours.len() + 1, "one letter makes at most one for each neighbour, and an answer");
        assert!(!rumours.keys().keys.is_empty(), "nobody takes our last key");
    }
}

/// Bytes that look like a letter at the places a fuzzer would hardly ever guess: layout, kind, address, short names.
fn likely(piece: &[u8]) -> Vec<u8> {
    let mut piece = piece.to_vec();
    if let [version, kind, .., _] = &mut piece[..] {
        (*version, *kind) = (1, 1 + *kind % 8);
    }
    for (at, most) in [(33, 4), (34, 4), (35, 4), (36, 1)] {
        if let Some(length) = piece.get_mut(at) {
            *length %= most;
        }
    }
    if let Some(address) = piece.get_mut(28) {
        *address = 1;
    }
    piece
}
