//! What must hold between two layers, as a ratio of medians from interleaved trials.

use super::Layer;
use crate::experiment::Run;
use crate::report::{Check, Must};
use crate::trials::Samples;
use std::fmt;

/// `over` to `under`.
pub(super) struct Claim {
    /// The layer that has to show something.
    pub(super) over: &'static str,
    /// The layer it is compared with.
    pub(super) under: &'static str,
    /// How the ratio of the two must stand …
    pub(super) must: Must,
    /// … to this.
    pub(super) bound: f64,
    /// At which sizes.
    pub(super) sizes: &'static [usize],
}

impl Claim {
    /// Checks it for the samples under the two keys; `place` says where (mode, size).
    pub(super) fn check(&self, run: &mut Run, samples: &Samples, keys: &(String, String), place: &str) {
        let ratio = samples.ratio(&keys.0, &keys.1).map(|r| r.value);
        run.check(Check::new(format!("{self}, {place}"), ratio, self.must, self.bound));
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { over, under, must, bound, .. } = self;
        if *bound == 1.0 { write!(f, "{over} {must} {under}") } else { write!(f, "{over} / {under} {must} {bound:.2}") }
    }
}

/// The claims about layers that take part; a note for each of our own that does not.
pub(super) fn possible<'a>(run: &mut Run, claims: &'a [Claim], taking_part: &[&Layer]) -> Vec<&'a Claim> {
    let there = |name: &str| taking_part.iter().any(|l| l.name == name);
    for name in ["cl", "rcl"].into_iter().filter(|n| !there(n)) {
        run.note(format!("{name} is not among the layers of this build: its checks are left out"));
    }
    claims.iter().filter(|c| there(c.over) && there(c.under)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_reads_as_people_write_it() {
        let claim = |bound| Claim { over: "rcl", under: "quinn", must: Must::Below, bound, sizes: &[] };
        assert_eq!(claim(1.0).to_string(), "rcl < quinn");
        assert_eq!(claim(1.1).to_string(), "rcl / quinn < 1.10");
    }
}
