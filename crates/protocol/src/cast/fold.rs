//! What several give to a reduction, as one value; in whatever order it is the same.
//!
//! A sum is exact on its way (`i128` holds the sum of more `i64` than a tree has nodes) and checked at the end: a partial sum that is
//! out of range must not spoil a whole one that is not, and a sum that wrapped around would be a wrong answer that looks like a right one.

use phalanx_wire::reduce::{GATHERED_MAX, Outcome, Value, gathered};

/// Both.
pub(super) fn join(one: Value, other: Value) -> Value {
    match (one, other) {
        (Value::Nothing, value) | (value, Value::Nothing) => value,
        (Value::Barrier, Value::Barrier) => Value::Barrier,
        (Value::Sum(one), Value::Sum(other)) => Value::Sum(one.saturating_add(other)),
        (Value::Gather(mut one), Value::Gather(other)) => {
            one.extend(other);
            one.sort_by_key(|v| v.0);
            // Branches have nobody in common, whatever a peer says.
            one.dedup_by_key(|v| v.0);
            if gathered(&one) > GATHERED_MAX { Value::TooLarge } else { Value::Gather(one) }
        }
        (Value::TooLarge | Value::Gather(_), Value::TooLarge) | (Value::TooLarge, Value::Gather(_)) => Value::TooLarge,
        _ => Value::Mismatch,
    }
}

/// What comes out of it; nothing when nobody gave anything.
pub(super) fn outcome(value: Value) -> Option<Outcome> {
    Some(match value {
        Value::Nothing => return None,
        Value::Barrier => Outcome::Barrier,
        Value::Sum(sum) => i64::try_from(sum).map_or(Outcome::Overflow, Outcome::Sum),
        Value::Gather(values) => Outcome::Gather(values),
        Value::Mismatch => Outcome::Mismatch,
        Value::TooLarge => Outcome::TooLarge,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_wire::cast::Id;
    use phalanx_wire::reduce::VALUE_MAX;

    fn gather(ids: std::ops::Range<u32>, length: usize) -> Value {
        Value::Gather(ids.map(|id| (Id(id), vec![id as u8; length])).collect())
    }

    #[test]
    fn st_4_the_order_does_not_matter() {
        let all = [
            Value::Nothing,
            Value::Barrier,
            Value::Sum(5),
            Value::Sum(i64::MAX.into()),
            gather(0..3, 9),
            gather(3..9, 9),
            gather(9..60, VALUE_MAX),
            gather(60..120, VALUE_MAX),
            Value::Mismatch,
            Value::TooLarge,
        ];
        for one in &all {
            for other in &all {
                let both = join(one.clone(), other.clone());
                assert_eq!(join(other.clone(), one.clone()), both);
                for third in &all {
                    let right = join(one.clone(), join(other.clone(), third.clone()));
                    // Who gives something twice is not among those who are joined.
                    if one != other && other != third && one != third {
                        assert_eq!(join(both.clone(), third.clone()), right, "{one:?} {other:?} {third:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn st_4_only_the_whole_sum_must_fit() {
        let high = join(Value::Sum(i64::MAX.into()), Value::Sum(1));
        assert_eq!(outcome(high.clone()), Some(Outcome::Overflow));
        assert_eq!(outcome(join(high, Value::Sum(-1))), Some(Outcome::Sum(i64::MAX)));
        assert_eq!(outcome(Value::Nothing), None);
    }
}
