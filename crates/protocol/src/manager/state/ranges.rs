//! Ranks as ranges `from..to`, ascending and apart: how shares name them.

/// A list of ranges.
pub(super) type Ranges = Vec<(u32, u32)>;

/// The ranges of these numbers, which ascend.
pub(super) fn ranges(numbers: impl IntoIterator<Item = u32>) -> Ranges {
    let mut all: Ranges = Vec::new();
    for number in numbers {
        match all.last_mut() {
            Some((_, to)) if *to == number => *to += 1,
            _ => all.push((number, number + 1)),
        }
    }
    all
}

pub(super) fn each(ranges: &[(u32, u32)]) -> impl Iterator<Item = u32> + '_ {
    ranges.iter().flat_map(|&(from, to)| from..to)
}

pub(super) fn count(ranges: &[(u32, u32)]) -> u32 {
    ranges.iter().map(|&(from, to)| to - from).sum()
}

/// Which of these numbers this is, from 0.
pub(super) fn place(ranges: &[(u32, u32)], number: u32) -> Option<u32> {
    let mut before = 0;
    for &(from, to) in ranges {
        if (from..to).contains(&number) {
            return Some(before + number - from);
        }
        before += to - from;
    }
    None
}

/// As people write them: `0-3, 7`.
pub(super) fn written(ranges: &[(u32, u32)]) -> String {
    const SHOWN: usize = 8;
    let one = |&(from, to): &(u32, u32)| if to == from + 1 { format!("{from}") } else { format!("{from}-{}", to - 1) };
    let mut text = ranges.iter().take(SHOWN).map(one).collect::<Vec<_>>().join(", ");
    if ranges.len() > SHOWN {
        text.push_str(&format!(" and {} more", count(&ranges[SHOWN..])));
    }
    let noun = if count(ranges) == 1 { "rank" } else { "ranks" };
    format!("{noun} {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_what_they_were_made_of() {
        let numbers = [0, 1, 2, 5, 7, 8];
        let all = ranges(numbers);
        assert_eq!(all, [(0, 3), (5, 6), (7, 9)]);
        assert!(each(&all).eq(numbers));
        assert_eq!((count(&all), place(&all, 5), place(&all, 8), place(&all, 6)), (6, Some(3), Some(5), None));
        assert_eq!((written(&all), written(&ranges([4]))), ("ranks 0-2, 5, 7-8".into(), "rank 4".into()));
        assert_eq!(written(&ranges((0..20).map(|n| n * 2))), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more");
    }
}
