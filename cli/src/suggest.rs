//! "Did you mean …?"

pub use fide_sim::options::close;

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
