//! What names may be, so that `name@host` stays readable and unambiguous, and whom a target names.

/// Longest name of a node, a cluster or a watched process, bytes.
pub const NAME_MAX: usize = 64;

/// Whether a host can have this name.
///
/// # Errors
/// What is wrong with it, for people.
pub fn check_node(name: &str) -> Result<(), String> {
    plain(name, "host")
}

/// Whether a zone, such as a rack, can have this name.
///
/// # Errors
/// What is wrong with it, for people.
pub fn check_zone(name: &str) -> Result<(), String> {
    plain(name, "zone")
}

/// Whether a cluster can have this name.
///
/// # Errors
/// What is wrong with it, for people.
pub fn check_cluster(name: &str) -> Result<(), String> {
    plain(name, "cluster")
}

fn plain(name: &str, what: &str) -> Result<(), String> {
    let ok = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(ok) {
        return Ok(());
    }
    Err(format!("{} cannot name a {what}: use 1 to {NAME_MAX} letters, digits, dots, dashes and underscores", shown(name)))
}

/// Whether a process can have this name.
///
/// # Errors
/// What is wrong with it, for people.
pub fn check_app(name: &str) -> Result<(), String> {
    if (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'@' | b'*' | b'?')) {
        return Ok(());
    }
    Err(format!(
        "{} cannot name a process: use 1 to {NAME_MAX} printable ASCII characters without space, `@`, `*` or `?`",
        shown(name)
    ))
}

/// A name as it is quoted in a refusal: on one line, and not longer than a line.
fn shown(name: &str) -> String {
    let end = name.char_indices().nth(NAME_MAX).map_or(name.len(), |(i, _)| i);
    format!("`{}{}`", name[..end].escape_debug(), if end < name.len() { "…" } else { "" })
}

/// Whom a target names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// `*`
    Everything,
    /// `@host`
    Host(&'a str),
    /// `name@host`
    Process(&'a str, &'a str),
}

impl<'a> Target<'a> {
    /// Reads `name@host`, `@host` or `*`. What no process or host can be named is refused: it would be waited for in vain.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn parse(text: &'a str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Target::Everything);
        }
        let Some((name, host)) = text.split_once('@').filter(|(_, host)| !host.is_empty()) else {
            return Err(format!(
                "{} names nothing: write process@host, @host for a host and all its processes, or *",
                shown(text)
            ));
        };
        check_node(host)?;
        if name.is_empty() {
            return Ok(Target::Host(host));
        }
        check_app(name)?;
        Ok(Target::Process(name, host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_target_names_is_read() {
        assert_eq!(Target::parse("*"), Ok(Target::Everything));
        assert_eq!(Target::parse("@a"), Ok(Target::Host("a")));
        assert_eq!(Target::parse("db/1@a.example-1_x"), Ok(Target::Process("db/1", "a.example-1_x")));
        let longest = "x".repeat(NAME_MAX);
        assert!(Target::parse(&format!("{longest}@{longest}")).is_ok());
    }

    #[test]
    fn what_nothing_can_be_named_is_refused_with_the_rule() {
        for bad in ["", "db", "db@", "@"] {
            assert!(Target::parse(bad).unwrap_err().contains("process@host"), "{bad}");
        }
        let long = "h".repeat(200);
        let host = ["a@b@c", "db@h1\n", "db@h 1", "@h*", "db@é", "@@", &format!("db@{long}"), &format!("@{long}")];
        for bad in host {
            let why = Target::parse(bad).unwrap_err();
            assert!(why.contains("cannot name a host: use 1 to 64 letters"), "{bad}: {why}");
            assert!(!why.contains('\n') && why.len() < 200, "{why}");
        }
        for bad in [" @h1", "d b@h1", "d*@h1", "db\0@h1", "dé@h1", &format!("{long}@h1")] {
            let why = Target::parse(bad).unwrap_err();
            assert!(why.contains("cannot name a process: use 1 to 64 printable"), "{bad}: {why}");
        }
        assert!(check_cluster("").unwrap_err().contains("cannot name a cluster"));
    }
}
