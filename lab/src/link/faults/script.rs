//! Messages that both ends know: length and contents follow from a message's number, so that whoever receives one can
//! tell whether it is intact and whose turn it was.

use phalanx_core::Rng;
use std::ops::RangeInclusive;

/// Lengths are drawn from these, evenly: 1 KB in the mean, below and above what a packet holds.
const LENGTHS: RangeInclusive<usize> = 512..=1536;
/// A message begins with its number.
const NUMBER: usize = 8;
/// Random bytes from which the contents are cut. Making them anew for each message would measure the generator.
const POOL: usize = 64 << 10;

/// What one side of a run sends, from the first message to the last.
pub(super) struct Script {
    side: u64,
    pool: Vec<u8>,
    message: Vec<u8>,
}

impl Script {
    /// The script of a side. Two sides never send the same, so that a message that comes home is noticed too.
    pub(super) fn of(side: u64) -> Self {
        let mut pool = vec![0; POOL];
        Rng::new(side, u64::MAX).fill(&mut pool);
        Self { side, pool, message: Vec::with_capacity(*LENGTHS.end()) }
    }

    /// Message `number`.
    pub(super) fn message(&mut self, number: u64) -> &[u8] {
        let contents = contents(&self.pool, self.side, number);
        self.message.clear();
        self.message.extend_from_slice(&number.to_le_bytes());
        self.message.extend_from_slice(contents);
        &self.message
    }

    /// What is wrong with `message` in the place of message `number`, if anything.
    pub(super) fn deviation(&self, number: u64, message: &[u8]) -> Option<String> {
        let contents = contents(&self.pool, self.side, number);
        let wrong = match message.split_first_chunk::<NUMBER>() {
            None => format!("{} bytes", message.len()),
            Some((head, _)) if u64::from_le_bytes(*head) != number => format!("number {}", u64::from_le_bytes(*head)),
            Some((_, rest)) if rest.len() != contents.len() => {
                format!("{} bytes instead of {}", message.len(), NUMBER + contents.len())
            }
            Some((_, rest)) if rest != contents => "changed contents".into(),
            Some(_) => return None,
        };
        Some(format!("in the place of message {number} came {wrong}"))
    }
}

fn contents(pool: &[u8], side: u64, number: u64) -> &[u8] {
    let mut rng = Rng::new(number, side);
    let length = LENGTHS.start() + rng.index(LENGTHS.end() - LENGTHS.start() + 1) - NUMBER;
    let at = rng.index(pool.len() - length);
    &pool[at..at + length]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RL-3: each way in which a message can be wrong is noticed; only then does a clean run say anything.
    #[test]
    fn each_deviation_is_noticed() {
        let (mut sender, receiver, other) = (Script::of(1), Script::of(1), Script::of(2));
        for number in 0..200 {
            let good = sender.message(number).to_vec();
            assert!(LENGTHS.contains(&good.len()));
            assert_eq!(receiver.deviation(number, &good), None);
            assert!(other.deviation(number, &good).is_some(), "it came home");
            assert!(receiver.deviation(number + 1, &good).is_some(), "doubled, or the one before is missing");
            for bit in [0, 63, 64, good.len() * 8 - 1] {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(receiver.deviation(number, &bad).is_some(), "bit {bit} of message {number}");
            }
            for length in [0, NUMBER - 1, NUMBER, good.len() - 1] {
                assert!(receiver.deviation(number, &good[..length]).is_some(), "cut to {length} bytes");
            }
        }
    }

    #[test]
    fn lengths_are_a_kilobyte_in_the_mean() {
        let mut script = Script::of(1);
        let sum: usize = (0..4000).map(|n| script.message(n).len()).sum();
        assert!((1000..1050).contains(&(sum / 4000)), "{}", sum / 4000);
    }
}
