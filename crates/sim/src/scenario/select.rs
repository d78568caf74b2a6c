//! On whom a fault falls: listed nodes, ranges, all, those of a role, or so many of them at random.

use super::problem::Problem;
use phalanx_core::Rng;
use serde::Deserialize;

/// Who is meant, as a scenario writes it: `nodes` or `role`, cut down by `random`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Selection {
    /// From whom to choose; `None` means everybody.
    pub(crate) pool: Option<Pool>,
    /// How many of them, drawn at random; all when absent.
    pub(crate) random: Option<u32>,
}

/// From whom to choose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Pool {
    /// These nodes, by number, ascending.
    Nodes(Vec<u32>),
    /// Whoever has the role when the fault comes.
    Role(String),
}

/// `nodes` as a scenario writes it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged, expecting = "it takes a list such as [3, 5, \"8-11\"], a range such as \"8-11\", or \"all\"")]
pub(crate) enum NodesText {
    /// `"all"` or `"8-11"`.
    Word(String),
    /// A list of numbers and ranges.
    List(Vec<ItemText>),
}

/// One item of a list.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged, expecting = "it takes a node's number such as 3, or a range such as \"8-11\"")]
pub(crate) enum ItemText {
    /// A node.
    Node(u32),
    /// A range.
    Range(String),
}

impl NodesText {
    /// The nodes, ascending, each once. `field` is what to call it when it is wrong.
    pub(crate) fn resolve(&self, field: &str, nodes: u32) -> Result<Vec<u32>, Problem> {
        let wrong = |text: String| Problem::new(field, text);
        let mut all = Vec::new();
        match self {
            Self::Word(word) if word == "all" => all.extend(0..nodes),
            Self::Word(word) => all.extend(range(word, nodes).map_err(wrong)?),
            Self::List(items) => {
                for item in items {
                    match item {
                        ItemText::Node(n) => all.extend(known(*n, *n, nodes).map_err(wrong)?),
                        ItemText::Range(text) => all.extend(range(text, nodes).map_err(wrong)?),
                    }
                }
            }
        }
        all.sort_unstable();
        all.dedup();
        if all.is_empty() {
            return Err(wrong("names nobody: list at least one node".to_owned()));
        }
        Ok(all)
    }
}

/// `"8-11"`, both included, or a single number.
fn range(text: &str, nodes: u32) -> Result<impl Iterator<Item = u32> + use<>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |n: &str| n.trim().parse::<u32>().ok();
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => known(first, last, nodes),
        _ => Err(format!("`{text}` is neither \"all\" nor a range of nodes such as \"8-11\"")),
    }
}

fn known(first: u32, last: u32, nodes: u32) -> Result<impl Iterator<Item = u32> + use<>, String> {
    if last >= nodes {
        return Err(format!("there is no node {last}: {nodes} nodes are numbered 0 to {}", nodes - 1));
    }
    Ok(first..=last)
}

impl Selection {
    /// True when nobody was named: the fault's kind says who is meant.
    pub(crate) fn is_open(&self) -> bool {
        self.pool.is_none() && self.random.is_none()
    }

    /// The nodes that are meant now, ascending. `fits` says whom the fault can befall; it is asked where the choice
    /// is ours, not where the scenario lists nodes. `role` says who has a role.
    pub(crate) fn pick(
        &self,
        nodes: u32,
        rng: &mut Rng,
        fits: impl Fn(u32) -> bool,
        role: impl Fn(&str, u32) -> bool,
    ) -> Vec<u32> {
        let mut pool: Vec<u32> = match &self.pool {
            None => (0..nodes).filter(|&n| fits(n)).collect(),
            Some(Pool::Nodes(listed)) if self.random.is_none() => listed.clone(),
            Some(Pool::Nodes(listed)) => listed.iter().copied().filter(|&n| fits(n)).collect(),
            Some(Pool::Role(name)) => (0..nodes).filter(|&n| fits(n) && role(name, n)).collect(),
        };
        if let Some(count) = self.random {
            rng.shuffle(&mut pool);
            pool.truncate(count as usize);
            pool.sort_unstable();
        }
        pool
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Named {
        nodes: NodesText,
    }

    fn resolve(text: &str) -> Result<Vec<u32>, String> {
        let named: Named = toml::from_str(&format!("nodes = {text}")).map_err(|e| e.message().to_owned())?;
        named.nodes.resolve("nodes", 12).map_err(|p| p.text)
    }

    #[test]
    fn nodes_are_numbers_ranges_or_all() {
        assert_eq!(resolve("[5, 3, 5]"), Ok(vec![3, 5]));
        assert_eq!(resolve("'8-11'"), Ok(vec![8, 9, 10, 11]));
        assert_eq!(resolve("[0, '2-3', '7']"), Ok(vec![0, 2, 3, 7]));
        assert_eq!(resolve("'all'").map(|all| all.len()), Ok(12));
    }

    #[test]
    fn what_names_nobody_is_refused() {
        for (text, wanted) in [
            ("[12]", "there is no node 12: 12 nodes are numbered 0 to 11"),
            ("'8-12'", "there is no node 12"),
            ("'11-8'", "neither \"all\" nor a range"),
            ("'everyone'", "neither \"all\" nor a range"),
            ("[]", "names nobody"),
            ("true", "it takes a list such as [3, 5, \"8-11\"]"),
            ("[-1]", "it takes a list"),
        ] {
            let error = resolve(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn a_random_choice_falls_on_those_whom_it_can_befall() {
        let even = |n: u32| n.is_multiple_of(2);
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let two = Selection { pool: None, random: Some(2) };
            let picked = two.pick(9, &mut Rng::new(seed, 0), even, |_, _| false);
            assert!(picked.len() == 2 && picked.iter().all(|&n| even(n)) && picked.is_sorted());
            seen.extend(picked);
        }
        assert_eq!(seen.len(), 5, "everybody comes up");
        let listed = Selection { pool: Some(Pool::Nodes(vec![1, 2])), random: None };
        assert_eq!(listed.pick(9, &mut Rng::new(1, 0), even, |_, _| false), [1, 2], "a list is taken at its word");
    }

    #[test]
    fn a_role_is_whoever_has_it_now() {
        let leader = Selection { pool: Some(Pool::Role("leader".into())), random: None };
        let picked = leader.pick(9, &mut Rng::new(1, 0), |n| n != 7, |role, n| role == "leader" && n % 3 == 1);
        assert_eq!(picked, [1, 4]);
        let one = Selection { random: Some(1), ..leader };
        assert_eq!(one.pick(9, &mut Rng::new(1, 0), |_| true, |_, n| n % 3 == 1).len(), 1);
    }
}
