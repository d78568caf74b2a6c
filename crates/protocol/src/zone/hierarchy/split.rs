//! HI-6, 002 §5.1, Fig. 2 right: into zones of which size to split a system, so that it boots soonest.
//!
//! The paper's worst case: the management zone begins when the base zones are stable, so a system of `m` zones of `n`
//! members takes `T_sup(m) + T_base(n)`. Both were measured to be linear.

/// How long zones take to boot, as a line: seconds for none, and for each member or zone more.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Line {
    /// Seconds at size zero.
    pub base: f64,
    /// Seconds for each member.
    pub each: f64,
}

impl Line {
    fn at(self, size: u64) -> f64 {
        // A line through two large sizes may cut the axis below zero.
        (self.base + self.each * size as f64).max(0.0)
    }

    /// The line through two measurements.
    #[must_use]
    pub fn through(one: (u64, f64), other: (u64, f64)) -> Self {
        let each = (other.1 - one.1) / (other.0 as f64 - one.0 as f64);
        Self { base: one.1 - each * one.0 as f64, each }
    }
}

/// What was measured of zones.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Model {
    /// Boot of a base zone, by its members.
    pub base: Line,
    /// Boot of a management zone, by the zones it guards.
    pub management: Line,
    /// Members that a zone may have.
    pub largest: u64,
}

impl Model {
    /// 002 §5.1: a base zone of 2048 in 5.7 s, a management zone of 1024 in 9.7 s, and of 512 in 10.3 − 5.7 s.
    #[must_use]
    pub fn paper() -> Self {
        Self {
            base: Line::through((0, 0.0), (2048, 5.7)),
            management: Line::through((512, 4.6), (1024, 9.7)),
            largest: 4096,
        }
    }
}

/// A split of a system.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Split {
    /// Zones, each with a supervisor.
    pub zones: u64,
    /// Members of each zone, at most.
    pub members: u64,
    /// The boot that the model foretells, in seconds.
    pub boot_s: f64,
}

/// The split of `nodes` that boots soonest, among zones whose size is a power of two; `None` for no nodes, or for more
/// than the model's largest zones can hold.
#[must_use]
pub fn best(nodes: u64, model: &Model) -> Option<Split> {
    if nodes == 0 {
        return None;
    }
    let sizes = (0..63).map(|bits| 1u64 << bits).take_while(|&size| size <= model.largest);
    let splits = sizes.map(|members| {
        let zones = nodes.div_ceil(members);
        Split { zones, members, boot_s: model.management.at(zones) + model.base.at(members.min(nodes)) }
    });
    splits.filter(|s| s.zones <= model.largest).min_by(|a, b| a.boot_s.total_cmp(&b.boot_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fig. 2 right: a million nodes boot soonest as 512 zones of 2048, in about 10.3 s.
    #[test]
    fn hi_6_a_million_nodes_are_split_as_in_the_paper() {
        let split = best(1 << 20, &Model::paper()).unwrap();
        assert_eq!((split.zones, split.members), (512, 2048));
        assert!((split.boot_s - 10.3).abs() < 0.1, "{split:?}");
    }

    #[test]
    fn hi_6_no_other_split_is_better() {
        let model = Model::paper();
        for nodes in [1, 2, 100, 4096, 100_000, 3 << 20] {
            let found = best(nodes, &model).unwrap();
            for bits in 0..=12 {
                let (members, zones) = (1u64 << bits, nodes.div_ceil(1 << bits));
                let boot = model.management.at(zones) + model.base.at(members.min(nodes));
                assert!(zones > model.largest || boot >= found.boot_s, "{nodes}: {members}");
            }
        }
        assert_eq!((best(0, &model), best(u64::MAX, &model)), (None, None));
    }
}
