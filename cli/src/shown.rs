//! Characters that nobody sees, or that change the order of what is seen, in names that others chose: they are escaped, as
//! control characters are, so that `db` and `db` with a zero-width space look different.

use std::borrow::Cow;
use std::io::{self, Write};

/// Whether this character is invisible, or turns the direction of what follows it.
const fn is_hidden(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// The text with these characters as `\u{202e}`, or in JSON as `\u202e`.
pub fn shown(text: &str, json: bool) -> Cow<'_, str> {
    if text.is_ascii() || !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match (is_hidden(c), json) {
            (false, _) => out.push(c),
            (true, false) => out.extend(c.escape_unicode()),
            // JSON has them in strings alone, where an escape is the same character.
            (true, true) => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out += &format!("\\u{unit:04x}")),
        }
    }
    Cow::Owned(out)
}

/// A writer that escapes them.
pub struct Shown<W> {
    to: W,
    json: bool,
}

impl<W: Write> Shown<W> {
    /// Writes there.
    pub const fn new(to: W, json: bool) -> Self {
        Shown { to, json }
    }
}

impl<W: Write> Write for Shown<W> {
    /// Takes whole strings, as `write!` hands them on.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.to.write_all(shown(text, self.json).as_bytes())?,
            Err(_) => self.to.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_escaped_and_the_rest_stays() {
        let plain = "λmin 52 µs → ✓ größer, 名前 \x1b[1mdb\x1b[0m";
        assert_eq!(shown(plain, false), plain);
        assert_eq!(shown("db\u{200b}\u{202e}x", false), "db\\u{200b}\\u{202e}x");
        let json = serde_json::to_string("a\u{202e}\u{e0041}b").unwrap();
        let text = shown(&json, true).into_owned();
        assert!(text.is_ascii(), "{text}");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), "a\u{202e}\u{e0041}b");
    }

    #[test]
    fn a_writer_escapes_what_passes_it() {
        let mut to = Vec::new();
        write!(Shown::new(&mut to, false), "a\u{2066} µ").unwrap();
        assert_eq!(String::from_utf8(to).unwrap(), "a\\u{2066} µ");
    }
}
