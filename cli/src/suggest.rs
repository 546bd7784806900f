//! "Did you mean …?"

/// The names closest to `wanted`, best first, at most three; empty when none is close.
pub fn close<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let limit = (wanted.chars().count() / 3).max(1);
    let mut scored: Vec<(usize, &str)> = names
        .into_iter()
        .filter_map(|name| {
            let d = distance(&wanted.to_lowercase(), &name.to_lowercase());
            let starts = wanted.len() > 1 && name.starts_with(wanted);
            (d <= limit || starts).then_some((if starts { d.min(1) } else { d }, name))
        })
        .collect();
    scored.sort();
    scored.dedup();
    scored.into_iter().map(|(_, name)| name).take(3).collect()
}

/// A line that says what may have been meant, or what there is.
pub fn hint(kind: &str, wanted: &str, names: &[&str]) -> Option<String> {
    let close = close(wanted, names.iter().copied());
    if !close.is_empty() {
        return Some(format!("did you mean {}?", close.join(" or ")));
    }
    match names {
        [] => Some(format!("there are no {kind} now")),
        [..] if names.len() <= 12 => Some(format!("{kind}: {}", names.join(", "))),
        _ => None,
    }
}

/// Insertions, deletions, replacements and swaps of neighbours that lead from one to the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, n) | (n, 0) => n,
                _ => {
                    let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                    if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                        best = best.min(rows[i - 2][j - 2] + 1);
                    }
                    best
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
    fn slips_of_the_finger_are_recognised_and_other_words_are_not() {
        assert_eq!(close("rdeis", ["redis", "postgres", "zookeeper"]), ["redis"]);
        assert_eq!(close("re", ["redis", "postgres"]), ["redis"]);
        assert_eq!(close("h9", ["h1", "h2"]), ["h1", "h2"]);
        assert!(close("mysql", ["redis", "postgres"]).is_empty());
        assert_eq!(hint("hosts", "x", &[]).unwrap(), "there are no hosts now");
    }
}
