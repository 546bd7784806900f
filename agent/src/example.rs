//! The example configuration, line by line: what it says of each key is all the documentation that the keys have, and
//! fide.toml(5) is made of it.

/// The example, as it is installed.
pub const EXAMPLE: &str = include_str!("../../packaging/fide.toml");

/// One line of it. A key or a header may be commented out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// Nothing, or a `#` alone.
    Blank,
    /// Prose; it may begin with spaces, which set a command apart.
    Prose(&'a str),
    /// `[table]` or `[[table]]`.
    Header {
        /// The table, brackets included.
        table: &'a str,
        /// What the comment behind it says, maybe nothing.
        note: &'a str,
    },
    /// `key = value   # note`.
    Key {
        /// The key.
        key: &'a str,
        /// Its value as TOML.
        value: &'a str,
        /// What the comment behind it says, maybe nothing.
        note: &'a str,
    },
}

/// The example's lines.
pub fn lines() -> impl Iterator<Item = Line<'static>> {
    EXAMPLE.lines().map(line)
}

/// What one line is. Prose has capitals or spaces before its first ` = `; keys and headers stand at the beginning of the comment.
fn line(text: &str) -> Line<'_> {
    let bare = text.strip_prefix("# ").unwrap_or(text);
    if bare.is_empty() || bare == "#" {
        return Line::Blank;
    }
    let (said, note) = apart(bare);
    let word = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if let Some((key, value)) = said.split_once(" = ").filter(|(key, _)| word(key)) {
        return Line::Key { key, value, note };
    }
    let inner = said.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    let inner = inner.map(|t| t.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(t));
    if inner.is_some_and(word) { Line::Header { table: said, note } } else { Line::Prose(bare.trim_end()) }
}

/// The text before a comment, and the comment.
fn apart(text: &str) -> (&str, &str) {
    let mut quoted = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '#' if !quoted => return (text[..at].trim_end(), text[at + 1..].trim()),
            _ => {}
        }
    }
    (text.trim_end(), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_headers_and_prose_are_told_apart() {
        assert_eq!(line(""), Line::Blank);
        assert_eq!(line("#"), Line::Blank);
        assert_eq!(line("# [[path]]      # example"), Line::Header { table: "[[path]]", note: "example" });
        assert_eq!(line("[keys]"), Line::Header { table: "[keys]", note: "" });
        assert_eq!(line("# [[watch]], [keys], [access]."), Line::Prose("[[watch]], [keys], [access]."));
        assert_eq!(line("#     openssl rand"), Line::Prose("    openssl rand"));
        assert_eq!(line("# Set ipv6 = true."), Line::Prose("Set ipv6 = true."));
        assert_eq!(line("# port = 3433"), Line::Key { key: "port", value: "3433", note: "" });
        let with_note = Line::Key { key: "match", value: "\"a#@*\"", note: "wild # or not" };
        assert_eq!(line("match = \"a#@*\"   # wild # or not"), with_note);
    }
}
