//! What happened when: a row for each node that was killed, and medians over several rounds.

use serde::Serialize;

/// All that was shown, as `-o json` prints it.
#[derive(Serialize)]
pub(super) struct Demo {
    nodes: u16,
    ranks: u32,
    limit: u64,
    /// As it was counted on one processor, by another way.
    expected: u64,
    /// All rounds counted as many, and nobody was taken for dead who lived.
    pub(super) right: bool,
    /// Of all rounds.
    medians: Vec<Kill>,
    rounds: Vec<Round>,
}

/// One cluster, and one job.
#[derive(Clone, Serialize)]
pub(super) struct Round {
    pub(super) ranks: u32,
    /// Until all daemons saw all.
    pub(super) up_ms: f64,
    /// Until the manager decided, from the first start on.
    pub(super) managed_ms: f64,
    /// From the call until all ranks were in one view.
    pub(super) launch_ms: f64,
    pub(super) kills: Vec<Kill>,
    /// What the job said in the end; none when it ended without a word.
    pub(super) primes: Option<u64>,
    /// Its exit status.
    pub(super) status: i32,
    /// From the call until its end.
    pub(super) job_ms: f64,
    /// Who was taken for dead and was not.
    pub(super) mistakes: Vec<String>,
}

/// A node was killed: milliseconds from then on.
#[derive(Clone, Serialize)]
pub(super) struct Kill {
    /// `worker`, `root` or `replica`.
    pub(super) what: &'static str,
    /// Which; several in medians.
    pub(super) node: String,
    /// Ranks that were there.
    pub(super) ranks: Vec<u32>,
    /// The first other daemon knew it.
    pub(super) known_first_ms: f64,
    /// The last one.
    pub(super) known_last_ms: f64,
    /// The first rank that lives had a view without the dead.
    pub(super) view_first_ms: f64,
    /// The last one.
    pub(super) view_last_ms: f64,
    /// The last rank, old and new, was in a view with all of them again.
    pub(super) back_ms: f64,
    /// There were three replicas again, without the dead one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) replaced_ms: Option<f64>,
}

impl Demo {
    pub(super) fn of(nodes: u16, limit: u64, expected: u64, rounds: Vec<Round>) -> Self {
        let good = |r: &Round| r.primes == Some(expected) && r.status == 0 && r.mistakes.is_empty();
        let right = rounds.iter().all(good);
        let medians = (0..rounds.first().map_or(0, |r| r.kills.len())).map(|at| {
            let all: Vec<&Kill> = rounds.iter().filter_map(|r| r.kills.get(at)).collect();
            let of = |figure: fn(&Kill) -> f64| median(all.iter().map(|k| figure(k)).collect());
            let mut nodes: Vec<&str> = all.iter().map(|k| k.node.as_str()).collect();
            nodes.sort_unstable();
            nodes.dedup();
            let replaced: Vec<f64> = all.iter().filter_map(|k| k.replaced_ms).collect();
            Kill {
                what: all[0].what,
                node: nodes.join(","),
                ranks: if rounds.len() == 1 { all[0].ranks.clone() } else { Vec::new() },
                known_first_ms: of(|k| k.known_first_ms),
                known_last_ms: of(|k| k.known_last_ms),
                view_first_ms: of(|k| k.view_first_ms),
                view_last_ms: of(|k| k.view_last_ms),
                back_ms: of(|k| k.back_ms),
                replaced_ms: (!replaced.is_empty()).then(|| median(replaced)),
            }
        });
        let (medians, ranks) = (medians.collect(), rounds.first().map_or(0, |r| r.ranks));
        Self { nodes, ranks, limit, expected, right, medians, rounds }
    }

    pub(super) fn print(&self) {
        match &self.rounds[..] {
            [_] => println!("What happened when, in ms after each kill:"),
            rounds => println!("What happened when, in ms after each kill, medians of {} rounds:", rounds.len()),
        }
        println!(
            "  {:8} {:8} {:>14} {:>24} {:>12} {:>17}",
            "KILLED", "NODE", "CRASH KNOWN", "VIEW OF SURVIVORS", "RANKS BACK", "MANAGER REPLACED"
        );
        for kill in &self.medians {
            println!(
                "  {:8} {:8} {:>14} {:>24} {:>12.1} {:>17}",
                kill.what,
                if self.rounds.len() == 1 { &kill.node } else { "" },
                format!("{:.1} – {:.1}", kill.known_first_ms, kill.known_last_ms),
                format!("{:.1} – {:.1}", kill.view_first_ms, kill.view_last_ms),
                kill.back_ms,
                kill.replaced_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0}"))
            );
        }
        println!("  (first – last of all who live)\n");
        for (at, round) in self.rounds.iter().enumerate() {
            let number = if self.rounds.len() == 1 { String::new() } else { format!("round {}: ", at + 1) };
            round.mistakes.iter().for_each(|m| println!("{number}WRONG: {m}"));
            match round.primes {
                Some(primes) if primes == self.expected && round.status == 0 => {}
                Some(primes) => println!("{number}WRONG: {primes} primes counted, status {}", round.status),
                None => println!("{number}WRONG: the job ended without an answer, with status {}", round.status),
            }
        }
        if self.right {
            println!(
                "{} primes below {}: right, as one processor counts them by another way.",
                self.expected, self.limit
            );
            println!("When a node falls, the ranks close.");
        }
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    let half = figures.len() / 2;
    if figures.len() % 2 == 1 { figures[half] } else { (figures[half - 1] + figures[half]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(primes: Option<u64>, status: i32, known: f64) -> Round {
        let kill = Kill {
            what: "worker",
            node: format!("n{known}"),
            ranks: vec![2, 3],
            known_first_ms: known,
            known_last_ms: known,
            view_first_ms: known,
            view_last_ms: known,
            back_ms: known,
            replaced_ms: None,
        };
        let (up_ms, managed_ms, launch_ms, job_ms) = (1.0, 1.0, 1.0, 1.0);
        let (kills, mistakes) = (vec![kill], Vec::new());
        Round { ranks: 8, up_ms, managed_ms, launch_ms, kills, primes, status, job_ms, mistakes }
    }

    #[test]
    fn medians_are_those_of_all_rounds() {
        let demo = Demo::of(8, 100, 25, [3.0, 1.0, 2.0].map(|known| round(Some(25), 0, known)).to_vec());
        assert!(demo.right);
        assert_eq!((demo.medians[0].known_last_ms, demo.medians[0].node.as_str()), (2.0, "n1,n2,n3"));
        assert!((median(vec![4.0, 1.0]) - 2.5).abs() < f64::EPSILON);
    }

    #[test]
    fn one_wrong_round_makes_all_wrong() {
        let wrong = |round| Demo::of(8, 100, 25, vec![self::round(Some(25), 0, 1.0), round]);
        assert!(!wrong(round(Some(24), 0, 1.0)).right);
        assert!(!wrong(round(None, 0, 1.0)).right);
        assert!(!wrong(round(Some(25), 137, 1.0)).right);
        let mistaken = Round { mistakes: vec!["n2 took n3 for failed".to_owned()], ..round(Some(25), 0, 1.0) };
        assert!(!wrong(mistaken).right);
    }
}
