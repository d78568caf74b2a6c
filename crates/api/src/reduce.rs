//! Reductions: what tasks gather, in frames of kind 2. Barriers and sums are words, see [`ToShepherd`](crate::jobs::ToShepherd).
//!
//! ```text
//! to the shepherd   0 8 number   8 … value
//! to a task         0 8 number   then for each rank   0 4 rank   4 4 length   8 … value
//! ```

use crate::jobs::begin;

/// The kind of frames with what is gathered.
pub const GATHER: u8 = 2;
/// The longest value that one task gives to a gather.
pub const GATHER_MAX: usize = 64 << 10;

/// What each rank gave to a gather, in order.
pub type Gathered = Vec<(u32, Vec<u8>)>;

/// The whole frame of what one task gives. `number` is the task's own, and comes back with the result.
#[must_use]
pub fn give(number: u64, value: &[u8]) -> Vec<u8> {
    let mut frame = begin(GATHER, 8 + value.len());
    frame.extend_from_slice(&number.to_le_bytes());
    frame.extend_from_slice(value);
    frame
}

/// Reads what one task gives: its number, and the value.
#[must_use]
pub fn given(body: &[u8]) -> Option<(u64, &[u8])> {
    let (number, value) = body.split_first_chunk()?;
    Some((u64::from_le_bytes(*number), value))
}

/// The whole frame of what all gave.
pub fn gather<'a>(number: u64, values: impl IntoIterator<Item = (u32, &'a [u8])>) -> Vec<u8> {
    let mut body = number.to_le_bytes().to_vec();
    for (rank, value) in values {
        body.extend_from_slice(&rank.to_le_bytes());
        body.extend_from_slice(&(value.len() as u32).to_le_bytes());
        body.extend_from_slice(value);
    }
    let mut frame = begin(GATHER, body.len());
    frame.extend(body);
    frame
}

/// Reads what all gave.
#[must_use]
pub fn gathered(body: &[u8]) -> Option<(u64, Gathered)> {
    let (number, mut rest) = given(body)?;
    let mut values = Vec::new();
    while !rest.is_empty() {
        let (rank, after) = rest.split_first_chunk()?;
        let (length, after) = after.split_first_chunk()?;
        let (value, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        values.push((u32::from_le_bytes(*rank), value.to_vec()));
        rest = after;
    }
    Some((number, values))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::frame_length;

    #[test]
    fn st_4_what_is_gathered_is_read_as_it_was_written() {
        let frame = give(9, b"mine");
        assert_eq!(frame_length(std::array::from_fn(|i| frame[i])), Some(frame.len() - 4));
        assert_eq!((frame[4], given(&frame[5..])), (GATHER, Some((9, &b"mine"[..]))));
        let values = [(0, &b"one"[..]), (7, b""), (8, b"two")];
        let frame = gather(1 << 40, values);
        let owned = values.map(|(rank, value)| (rank, value.to_vec())).to_vec();
        assert_eq!(gathered(&frame[5..]), Some((1 << 40, owned)));
        for cut in 5..frame.len() {
            let whole = cut == 5 + 8 || cut == 5 + 8 + 11 || cut == 5 + 8 + 11 + 8;
            assert_eq!(gathered(&frame[5..cut]).is_some(), whole, "cut at {cut}");
        }
    }
}
