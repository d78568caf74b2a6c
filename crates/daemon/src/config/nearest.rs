//! What somebody may have meant.

/// The word that is nearest to `text`, when one is near enough: a third of its letters may differ.
#[must_use]
pub fn nearest<'w>(text: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    let text = text.to_ascii_lowercase().replace('-', "_");
    let near = words.into_iter().map(|word| (distance(&text, word), word)).min()?;
    (near.0 * 3 <= near.1.len().max(text.len())).then_some(near.1)
}

/// Letters to add, remove, change or swap with their neighbour, to make one word of the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, n) | (n, 0) => n,
                _ => {
                    let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let least = change.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                    let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                    if swapped { least.min(rows[i - 2][j - 2] + 1) } else { least }
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_understood_and_other_words_are_not() {
        let words = ["advertise", "bind", "data_dir", "join", "profile", "socket"];
        for (text, meant) in [
            ("advertize", Some("advertise")),
            ("bnid", Some("bind")),
            ("data-dir", Some("data_dir")),
            ("DataDir", Some("data_dir")),
            ("profil", Some("profile")),
            ("quorum", None),
            ("", None),
        ] {
            assert_eq!(nearest(text, words), meant, "{text}");
        }
    }
}
