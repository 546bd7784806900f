//! What happened, for people.

use std::fmt::{self, Write as _};

use fide_proto::group::MemberId;

use crate::time::US;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// When.
    pub at_ns: u64,
    /// On which host (from 0), if on one.
    pub host: Option<usize>,
    /// Who lives there.
    pub member: Option<MemberId>,
    /// What.
    pub text: String,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline(Vec<Line>);

impl Timeline {
    /// One more.
    pub fn push(&mut self, at_ns: u64, host: Option<usize>, member: Option<MemberId>, text: String) {
        self.0.push(Line { at_ns, host, member, text });
    }

    /// Values by their names, where they have one: the first value is 1.
    pub fn name(&mut self, names: &[String]) {
        self.0.iter_mut().for_each(|line| line.text = named(&line.text, names));
    }

    /// In their order.
    #[must_use]
    pub fn lines(&self) -> &[Line] {
        &self.0
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.0 {
            write!(f, "{:>7}.{} µs  ", line.at_ns / US, line.at_ns % US / 100)?;
            match (line.host, line.member) {
                (Some(host), Some(member)) => write!(f, "host {} {member:>3}  ", host + 1)?,
                (Some(host), None) => write!(f, "host {}      ", host + 1)?,
                (None, _) => {}
            }
            writeln!(f, "{}", line.text)?;
        }
        Ok(())
    }
}

/// What a message says, short: entries by their ids alone.
#[must_use]
pub fn brief(what: &impl fmt::Debug) -> String {
    let mut text = String::new();
    // Writing into a string never fails.
    let _ = write!(text, "{what:?}");
    for (from, until, to) in [("MemberId(", ")", "p"), ("EntryId { proposer: ", " }", "")] {
        text = replaced(&text, from, until, |inner| format!("{to}{}", inner.replace(", number: ", ".")));
    }
    text = replaced(&text, "Value([", "])", |bytes| {
        let bytes: Vec<u8> = bytes.split(", ").filter_map(|byte| byte.parse().ok()).collect();
        <[u8; 8]>::try_from(bytes.as_slice()).map_or(format!("{} bytes", bytes.len()), |v| format!("{}", u64::from_le_bytes(v)))
    });
    text = replaced(&text, "Entry { id: ", " }", |inner| inner.replace(", body: ", "="));
    if let Some(body) = text.strip_prefix("Engine { epoch: 0, body: ") {
        text = body.strip_suffix(" }").unwrap_or(body).to_owned();
    }
    text = replaced(&text, "MemberSet([", "])", |members| format!("{{{members}}}"));
    if text.chars().count() > 160 {
        text = text.chars().take(160).chain("…".chars()).collect();
    }
    text
}

/// Every `p1.2=3` with the third name instead of the 3.
fn named(text: &str, names: &[String]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('=') {
        let (before, value) = rest.split_at(at + 1);
        out.push_str(before);
        let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
        let id = before[..at].rsplit(['[', ' ']).next().unwrap_or_default();
        let is_entry = id.strip_prefix('p').is_some_and(|id| id.chars().all(|c| c.is_ascii_digit() || c == '.'));
        let nth = value[..digits].parse::<usize>().ok().and_then(|n| n.checked_sub(1));
        match nth.and_then(|nth| names.get(nth)).filter(|name| is_entry && !name.is_empty()) {
            Some(name) => out.push_str(&format!("\"{name}\"")),
            None => out.push_str(&value[..digits]),
        }
        rest = &value[digits..];
    }
    out.push_str(rest);
    out
}

fn replaced(text: &str, from: &str, until: &str, by: impl Fn(&str) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(from) {
        out.push_str(&rest[..at]);
        let inner = &rest[at + from.len()..];
        let Some(end) = inner.find(until) else { break };
        out.push_str(&by(&inner[..end]));
        rest = &inner[end + until.len()..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use fide_proto::consensus::log::{EngineMessage, Message};
    use fide_proto::group::MemberSet;

    use super::{brief, named};

    #[test]
    fn values_have_names() {
        let names = ["a", "", "c = d"].map(str::to_owned);
        for (text, wanted) in [
            ("proposes p1.1=1", "proposes p1.1=\"a\""),
            (
                "Hsuc(Propose { batch: [p2.1=3, p3.1=2, p1.1=1, p3.2=Leave(p1)] })",
                "Hsuc(Propose { batch: [p2.1=\"c = d\", p3.1=2, p1.1=\"a\", p3.2=Leave(p1)] })",
            ),
            ("applies 9: p1.4=4", "applies 9: p1.4=4"),
            ("x=1 p1.=", "x=1 p1.="),
        ] {
            assert_eq!(named(text, &names), wanted);
        }
    }

    #[test]
    fn brackets_match() {
        let body = EngineMessage::Opaque(vec![1, 2].into());
        assert_eq!(brief(&Message::Engine { epoch: 0, body: body.clone() }), "Opaque([1, 2])");
        assert_eq!(brief(&Message::Engine { epoch: 1, body }), "Engine { epoch: 1, body: Opaque([1, 2]) }");
        assert_eq!(brief(&(MemberSet::first(2), vec![3])), "({p1, p2}, [3])");
    }
}
