//! fide.toml(5), made of the example configuration: nothing is said twice.

use super::{Page, bold_code, line, roff};
use fide_agent::example::{Line, lines};
use std::fmt::Write as _;

/// The page.
pub fn page() -> Page {
    let mut text = format!(
        ".TH fide.toml 5 \"\" \"fide {}\"\n.SH NAME\nfide.toml \\- configuration of the FiDe agent\n.SH DESCRIPTION\n",
        env!("CARGO_PKG_VERSION")
    );
    text += &Body::default().of(lines());
    text += ".SH FILES\n.TP\n";
    let _ = writeln!(text, "{}\nWhere the agent looks for it.", roff(fide_agent::config::DEFAULT_PATH));
    text += ".TP\nshare/doc/fide/fide.toml, below the prefix of the installation\nThe example that this page was made of.\n";
    text += ".SH SEE ALSO\n.BR fided (8),\n.BR fide (1)\n";
    Page { name: "fide.toml".into(), section: "5", text: text.into_bytes() }
}

/// What was read and not yet written.
#[derive(Default)]
struct Body {
    text: String,
    /// Paragraphs of prose that nothing has claimed.
    prose: Vec<Vec<&'static str>>,
    /// The last of them still goes on.
    open: bool,
    /// The table, and which of its keys were told.
    table: Option<(&'static str, Vec<&'static str>)>,
    /// Directly behind the header of a table: prose is about all of it.
    behind_header: bool,
    /// Keys that share one description.
    keys: Vec<String>,
    description: Vec<&'static str>,
}

impl Body {
    fn of(mut self, lines: impl Iterator<Item = Line<'static>>) -> String {
        for line in lines {
            match line {
                Line::Blank => {
                    self.finish();
                    (self.open, self.behind_header) = (false, false);
                }
                Line::Prose(text) => {
                    self.finish();
                    if !std::mem::replace(&mut self.open, true) {
                        self.prose.push(Vec::new());
                    }
                    self.prose.last_mut().expect("just opened").push(text);
                }
                Line::Header { table, note } => self.header(table, note),
                Line::Key { key, value, note } => self.key(key, value, note),
            }
        }
        self.finish();
        self.flush();
        self.text
    }

    fn header(&mut self, name: &'static str, note: &str) {
        self.finish();
        if self.table.as_ref().is_none_or(|(known, _)| *known != name) {
            self.top();
            let _ = writeln!(self.text, ".SS {}", roff(name));
            self.table = Some((name, Vec::new()));
            if note.starts_with("example") {
                self.prose.push(vec!["The values are examples."]);
            }
        }
        self.flush();
        (self.open, self.behind_header) = (false, true);
    }

    fn key(&mut self, key: &'static str, value: &str, note: &'static str) {
        let (example, note) = match note.strip_prefix("example") {
            Some(rest) => (" (example)", rest.trim_start_matches([':', ' '])),
            None => ("", note),
        };
        let about = if self.open && !self.behind_header { self.prose.pop() } else { None };
        self.open = false;
        let shared = about.is_none() && note.is_empty() && !self.description.is_empty();
        if !shared {
            self.finish();
        }
        self.behind_header = false;
        // A description is for the page's first keys, general prose for what comes before them.
        if self.table.is_none() {
            self.flush();
            self.top();
            self.table = Some(("", Vec::new()));
        } else {
            self.flush();
        }
        let known = &mut self.table.as_mut().expect("just set").1;
        if known.contains(&key) && note.is_empty() && about.is_none() {
            return;
        }
        known.push(key);
        self.keys.push(format!("\\fB{}\\fR = {}{example}", roff(key), roff(value)));
        if !shared {
            self.description = about.unwrap_or_default();
            if !note.is_empty() {
                self.description.push(note);
                self.finish();
            }
        }
    }

    /// The heading over all keys, before the first one or the first table.
    fn top(&mut self) {
        if self.table.is_none() {
            self.text += ".SH KEYS\n";
        }
    }

    /// Writes the keys that were gathered.
    fn finish(&mut self) {
        for (i, key) in self.keys.drain(..).enumerate() {
            let _ = writeln!(self.text, "{}\n{key}", if i == 0 { ".TP" } else { ".TQ" });
        }
        let description = std::mem::take(&mut self.description);
        self.paragraph(&description);
    }

    /// Writes the prose that was gathered.
    fn flush(&mut self) {
        for paragraph in std::mem::take(&mut self.prose) {
            self.text += ".PP\n";
            self.paragraph(&paragraph);
        }
    }

    fn paragraph(&mut self, lines: &[&str]) {
        for text in lines {
            match text.strip_prefix("    ") {
                Some(command) => {
                    let _ = write!(self.text, ".RS 4\n.nf\n{}\n.fi\n.RE\n", line(command));
                }
                None => {
                    let _ = writeln!(self.text, "{}", bold_code(&line(text)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_agent::config::Config;
    use std::collections::BTreeSet;

    /// What the configuration accepts in a table (`""`: outside of any), by what it says to a key that it does not know.
    fn accepted(header: &str) -> Vec<String> {
        let said = Config::parse(&format!("{header}\nno_such_key = 1\n")).unwrap_err().what;
        let expected = said.strip_prefix("unknown field `no_such_key`, expected ").unwrap_or_default();
        expected.split('`').skip(1).step_by(2).map(str::to_string).collect()
    }

    #[test]
    fn every_key_that_the_agent_accepts_is_in_the_example_and_on_the_page() {
        let mut example = BTreeSet::new();
        let mut table = "";
        for line in lines() {
            match line {
                Line::Header { table: name, .. } => table = name,
                Line::Key { key, value, .. } => {
                    example.insert((table.to_string(), key.to_string()));
                    // One key in braces may have keys of its own.
                    let inner = value.strip_prefix("{ ").and_then(|v| v.strip_suffix(" }")).unwrap_or("");
                    for (inner, _) in inner.split(", ").filter_map(|pair| pair.split_once(" = ")) {
                        example.insert((format!("{table}.{key}"), inner.to_string()));
                    }
                }
                Line::Blank | Line::Prose(_) => {}
            }
        }
        let page = String::from_utf8(page().text).unwrap();
        let outside = accepted("");
        assert!(outside.len() > 15, "{outside:?}");
        let (mut tables, mut keys) = (0, 0);
        let mut check = |table: &str, key: &str| {
            keys += 1;
            assert!(example.contains(&(table.into(), key.into())), "{key} of {table:?} is not in packaging/fide.toml");
            let part = match table {
                "" => page.split(".SS ").next(),
                _ => page.split(".SS ").find(|part| part.lines().next() == Some(&roff(table))),
            };
            let shown = format!("\\fB{}\\fR = ", roff(key));
            assert!(part.is_some_and(|part| part.contains(&shown)), "{key} of {table:?} is not on the page");
        };
        for key in &outside {
            let (one, many) = (format!("[{key}]"), format!("[[{key}]]"));
            let Some((table, inner)) = [one, many].into_iter().map(|t| (t.clone(), accepted(&t))).find(|(_, k)| !k.is_empty())
            else {
                check("", key);
                continue;
            };
            tables += 1;
            for inner in inner {
                check(&table, &inner);
                for deep in accepted(&format!("[{key}.{inner}]")) {
                    assert!(example.contains(&(format!("{table}.{inner}"), deep.clone())), "{deep} of {table} {inner}");
                }
            }
        }
        assert!(tables >= 9 && keys > 40, "{tables} tables, {keys} keys");
    }

    #[test]
    fn keys_stand_with_what_the_example_says_of_them() {
        let page = String::from_utf8(page().text).unwrap();
        for wanted in [
            ".SH KEYS\n.TP\n\\fBcluster\\fR = \"fide\"\nThe cluster this host belongs to",
            "\n.TP\n\\fBreceive\\fR = \"auto\"\n.TQ\n\\fBsend\\fR = \"auto\"\nHow packets are received",
            "\n\\fBcluster_id\\fR = 7 (example)\nonly when two cluster names clash\n",
            "\n.SS [access]\n.PP\nBeside root",
            "\n\\fBgroup\\fR = \"239.255.70.2\"\nthe default of the second path\n",
            ".RS 4\n.nf\n(umask 077;",
            "\n\\fBttl\\fR = 1\n",
        ] {
            assert!(page.contains(wanted), "{wanted}\n--- not in\n{page}");
        }
        assert_eq!(page.matches(".SS [[watch]]").count(), 1);
    }
}
