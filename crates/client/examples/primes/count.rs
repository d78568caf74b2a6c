//! How many primes there are below a limit, twice: by a sieve, whose work can be shared and goes on from where it stood; and by a sum over
//! quotients, which takes a moment on one processor. Two ways that share nothing: when they agree, the answer is right.

/// Odd numbers that are sieved at once: they fit into the nearest cache.
const SEGMENT: u64 = 1 << 16;

/// Sieves intervals: knows the primes up to the root of the limit.
pub(crate) struct Sieve {
    small: Vec<u64>,
}

impl Sieve {
    /// For intervals below `limit`.
    pub(crate) fn below(limit: u64) -> Self {
        let root = limit.isqrt() + 1;
        let mut composite = vec![false; root as usize + 1];
        let mut small = Vec::new();
        for n in 2..=root {
            if composite[n as usize] {
                continue;
            }
            small.push(n);
            let mut multiple = n * n;
            while multiple <= root {
                composite[multiple as usize] = true;
                multiple += n;
            }
        }
        Self { small }
    }

    /// How many primes there are from `from` on, below `to`.
    pub(crate) fn count(&self, from: u64, to: u64) -> u64 {
        let two = u64::from(from <= 2 && to > 2);
        // Odd numbers only, from the first one on that may be prime.
        let mut low = from.max(3) | 1;
        let mut count = two;
        let mut composite = vec![false; SEGMENT as usize];
        while low < to {
            let high = (low + 2 * SEGMENT).min(to);
            let odds = (high - low).div_ceil(2) as usize;
            composite[..odds].fill(false);
            for &prime in self.small.iter().skip(1).take_while(|p| *p * *p < high) {
                let mut multiple = (prime * prime).max(low.div_ceil(prime) * prime);
                multiple += if multiple % 2 == 0 { prime } else { 0 };
                composite[..odds]
                    .iter_mut()
                    .skip(((multiple - low) / 2) as usize)
                    .step_by(prime as usize)
                    .for_each(|c| *c = true);
            }
            count += composite[..odds].iter().filter(|c| !**c).count() as u64;
            low += 2 * SEGMENT;
        }
        count
    }
}

/// How many primes there are below `limit`, by a sum over all quotients `limit / i`: from how many numbers there are, those are taken away
/// whose smallest factor is 2, then 3, then 5 …
pub(crate) fn count_at_once(limit: u64) -> u64 {
    let Some(n) = limit.checked_sub(1).filter(|n| *n >= 2) else { return 0 };
    let root = n.isqrt();
    // Counts up to v: for small v by v, for large v by n / v.
    let mut small: Vec<u64> = (0..=root).map(|v| v.saturating_sub(1)).collect();
    let mut large: Vec<u64> = (0..=root).map(|i| n.checked_div(i).map_or(0, |v| v - 1)).collect();
    for p in 2..=root {
        if small[p as usize] == small[p as usize - 1] {
            continue;
        }
        let before = small[p as usize - 1];
        let square = p * p;
        for i in 1..=root.min(n / square) {
            let part = i * p;
            let below = if part <= root { large[part as usize] } else { small[(n / part) as usize] };
            large[i as usize] -= below - before;
        }
        for v in (square..=root).rev() {
            small[v as usize] -= small[(v / p) as usize] - before;
        }
    }
    large[1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_count_the_same() {
        for (limit, primes) in [(0, 0), (2, 0), (3, 1), (4, 2), (10, 4), (100, 25), (1_000_000, 78_498)] {
            assert_eq!(Sieve::below(limit).count(0, limit), primes, "below {limit}");
            assert_eq!(count_at_once(limit), primes, "below {limit}");
        }
        for limit in (0..500).chain([65_536, 131_071, 131_075, 131_077, 262_147]) {
            assert_eq!(Sieve::below(limit).count(0, limit), count_at_once(limit), "below {limit}");
        }
    }

    #[test]
    fn parts_make_the_whole() {
        let (limit, sieve) = (300_000, Sieve::below(300_000));
        for step in [1_000, 4_097, 131_072] {
            let parts = (0..limit).step_by(step).map(|from| sieve.count(from, (from + step as u64).min(limit)));
            assert_eq!(parts.sum::<u64>(), count_at_once(limit), "in steps of {step}");
        }
    }
}
