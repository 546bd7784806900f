//! Maintenance that an operator announces: whom it covers, and its bounds.
//!
//! Detection goes on during a maintenance, and verdicts are reported. They are marked, so that hooks and managers can leave
//! planned work alone.

use crate::names::NAME_MAX;
use std::ops::RangeInclusive;

/// Shortest and longest maintenance, ns.
pub const MAINTENANCE_NS: RangeInclusive<u64> = 1_000_000_000..=86_400_000_000_000;
/// How long one lasts where nobody says, ns.
pub const MAINTENANCE_DEFAULT_NS: u64 = 3_600_000_000_000;
/// Longest reason, bytes.
pub const MAINTENANCE_REASON_MAX: usize = 200;
/// Longest target, bytes.
pub const MAINTENANCE_TARGET_MAX: usize = 2 * NAME_MAX + 1;
/// Targets in maintenance at a time, in the whole cluster.
pub const MAINTENANCES_MAX: usize = 16;

/// Whether `text` fits `pattern`, in which `*` stands for anything and `?` for one character.
#[must_use]
pub fn matches(pattern: &str, text: &str) -> bool {
    let (p, t): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut i, mut j) = (0, 0);
    // Where the last star was, and how much of the text it stands for so far: enough to go back to, no recursion.
    let mut star: Option<(usize, usize)> = None;
    while j < t.len() {
        if i < p.len() && p[i] == '*' {
            star = Some((i, j));
            i += 1;
        } else if i < p.len() && (p[i] == '?' || p[i] == t[j]) {
            i += 1;
            j += 1;
        } else if let Some((at, taken)) = star {
            star = Some((at, taken + 1));
            i = at + 1;
            j = taken + 1;
        } else {
            return false;
        }
    }
    p[i..].iter().all(|c| *c == '*')
}

/// Whether a maintenance of `target` covers a process of a host, or (without a process) the host itself.
///
/// `*` covers everything, `@host` a host and all its processes, `name@host` a process, and `name` processes of that name on
/// every host. `*` and `?` may stand in both parts.
#[must_use]
pub fn covers(target: &str, app: Option<&str>, host: &str) -> bool {
    let (name, on) = target.split_once('@').unwrap_or((target, "*"));
    let is_any_process = name.is_empty() || name == "*";
    matches(on, host) && (is_any_process || app.is_some_and(|app| matches(name, app)))
}

/// Whether something can be in maintenance under this name.
///
/// # Errors
/// What is wrong with it, for people.
pub fn check_target(target: &str) -> Result<(), String> {
    let is_printable = |part: &str| part.bytes().all(|b| b.is_ascii_graphic()) && part.len() <= NAME_MAX;
    let (name, host) = target.split_once('@').unwrap_or((target, "*"));
    if !target.is_empty() && !host.is_empty() && !host.contains('@') && is_printable(name) && is_printable(host) {
        return Ok(());
    }
    let shown: String = target.chars().take(NAME_MAX).collect();
    Err(format!(
        "`{}` names nothing that can be in maintenance: write NAME for a process on every host, NAME@HOST, @HOST for a host \
         and all its processes, or * for everything",
        shown.escape_debug()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_covers_what_it_names_and_nothing_else() {
        for (target, app, host, covered) in [
            ("*", None, "h1", true),
            ("*", Some("db"), "h1", true),
            ("@h1", None, "h1", true),
            ("@h1", Some("db"), "h1", true),
            ("@h1", Some("db"), "h2", false),
            ("*@h1", None, "h1", true),
            ("db", Some("db"), "h2", true),
            ("db", None, "h2", false),
            ("db", Some("db2"), "h2", false),
            ("db@h2", Some("db"), "h2", true),
            ("db@h2", Some("db"), "h1", false),
            ("db@h2", None, "h2", false),
            ("db*@rack1-?", Some("db2"), "rack1-7", true),
            ("db*@rack1-?", Some("db2"), "rack2-7", false),
        ] {
            assert_eq!(covers(target, app, host), covered, "{target} {app:?} {host}");
        }
    }

    #[test]
    fn what_names_nothing_is_refused_with_the_rule() {
        for good in ["*", "db", "db@h1", "@h1", "db*@rack?", "db/1"] {
            assert_eq!(check_target(good), Ok(()), "{good}");
        }
        let long = "x".repeat(NAME_MAX + 1);
        for bad in ["", "@", "db@", "db@h1@h2", "d b", "db\n", "dé", &long, &format!("db@{long}")] {
            let why = check_target(bad).unwrap_err();
            assert!(why.contains("write NAME for a process") && why.len() < 300, "{bad}: {why}");
        }
    }
}
