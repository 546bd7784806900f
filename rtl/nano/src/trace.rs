//! A trace of what a member does, for `scripts/specs --trace` (specs/README.md, "Traces"). Each member writes its own, with times
//! in ns; [`merge`] makes one of those of a group, which ran on one host and so had one clock.
//!
//! What a member is killed in the middle of must still make sense: a line stands in the file before the frame that it is about
//! leaves, and a frame that did not leave is taken back by a line of its own.

use crate::Refusal;
use crate::member::Note;
use fide_proto::consensus::lowi::Message;
use fide_proto::group::{Body, Entry, EntryId, MemberId, MemberSet};
use fide_rtl::frames;
use fide_rtl::setup::Setup;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Of Δ_I one in so many is what a trace's times may be off by: drift, rounding, and a member's clocks for one frame.
const SLACK_DIVISOR: u64 = 100;

/// A member's trace.
pub struct Trace {
    file: File,
    setup: Setup,
    last_ns: u64,
    halted: bool,
    /// Whether a line could not be written: the next command says so.
    pub failed: Option<std::io::Error>,
}

/// The first line: what the specification's constants are, in µs.
fn head(setup: &Setup) -> String {
    let (config, members) = (&setup.config, setup.ids.len());
    let us = |ns: u64| ns / 1_000;
    let (period, delta_i, delta_w) = (us(config.period_ns), us(config.delta_i_ns), us(config.delta_w_ns));
    let (late, slack) = (us(config.late_ns(setup.members.len()).unwrap_or(0)), us(config.delta_i_ns / SLACK_DIVISOR).max(4));
    format!(
        "# lowi {members} period={period} delta_i={delta_i} delta_w={delta_w} late={late} slack={slack} members on real packets"
    )
}

impl Trace {
    /// Begins a file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(path: &Path, setup: Setup) -> Result<Self, Refusal> {
        let begin = || -> std::io::Result<File> {
            let mut file = File::create(path)?;
            writeln!(file, "{}", head(&setup))?;
            Ok(file)
        };
        let file = begin().map_err(|why| Refusal::new(format!("{}: {why}", path.display())))?;
        Ok(Self { file, setup, last_ns: 0, halted: false, failed: None })
    }

    /// The specification counts members from 1, in their order.
    fn name(&self, member: MemberId) -> String {
        self.setup.rank(member).map_or_else(|| "?".into(), |rank| format!("p{}", rank + 1))
    }

    fn names(&self, members: &MemberSet) -> String {
        members.iter().map(|member| self.name(member)).collect::<Vec<_>>().join("+")
    }

    fn entry(&self, id: EntryId, body: &Body) -> String {
        let rank = |member: &MemberId| self.setup.rank(*member).map_or(0, |rank| rank + 1);
        let change = match body {
            Body::Join(member) => format!(":join{}", rank(member)),
            Body::Leave(member) => format!(":leave{}", rank(member)),
            Body::Value(_) | Body::Switch(_) => String::new(),
        };
        format!("{}.{}{change}", self.name(id.proposer), id.number)
    }

    fn batch<'a>(&self, entries: impl Iterator<Item = &'a Entry>) -> String {
        let names: Vec<_> = entries.map(|entry| self.entry(entry.id, &entry.body)).collect();
        if names.is_empty() { "-".into() } else { names.join("+") }
    }

    /// Times of one member do not go back, and each line is written at once.
    fn line(&mut self, at_ns: u64, what: &str) {
        self.last_ns = self.last_ns.max(at_ns);
        let line = format!("{} {} {what}\n", self.last_ns, self.name(self.setup.me));
        if let Err(why) = self.file.write_all(line.as_bytes()) {
            self.failed = Some(why);
        }
    }

    /// A round's copy, as lines name it: its sender, round, instance, stamp (ns) and value.
    fn copy(&self, path: usize, frame: &[u8]) -> Option<String> {
        let (from, Message::Round(round)) = frames::read(&self.setup, Some(path as u8), frame)? else { return None };
        let (from, value) = (self.name(from), self.batch(round.batch.iter()));
        Some(format!("{} {from} {} {} {} {value}", path + 1, round.round, round.instance, round.sent_ns))
    }

    /// A frame is about to leave on a path.
    pub fn leaves(&mut self, at_ns: u64, path: usize, frame: &[u8]) {
        if let Some(copy) = self.copy(path, frame) {
            self.line(at_ns, &format!("send {copy}"));
        }
    }

    /// It did not.
    pub fn stayed(&mut self, at_ns: u64, path: usize, frame: &[u8]) {
        if let Some(copy) = self.copy(path, frame) {
            self.line(at_ns, &format!("unsent {copy}"));
        }
    }

    /// An entry is handed in here.
    pub fn proposes(&mut self, at_ns: u64, entry: &Entry) {
        let value = self.entry(entry.id, &entry.body);
        self.line(at_ns, &format!("propose {value}"));
    }

    /// A decision was reported to the host.
    pub fn decides(&mut self, at_ns: u64, instance: u64, batch: &[Entry]) {
        let value = self.batch(batch.iter());
        self.line(at_ns, &format!("decide {instance} {value}"));
    }

    /// The member has left the group; told once.
    pub fn halts(&mut self, at_ns: u64) {
        if !std::mem::replace(&mut self.halted, true) {
            self.line(at_ns, "halt");
        }
    }

    /// What else it did.
    pub fn note(&mut self, at_ns: u64, note: Note<'_>) {
        match note {
            Note::Started { mode, members, begin } => {
                let how = ["together", "message", "join"][(mode as usize - 1).min(2)];
                let (leader, members) = (self.name(begin.leader), self.names(members));
                self.halted = false;
                self.line(at_ns, &format!("start {how} {} {leader} {} {members}", begin.round, begin.next));
            }
            // A copy with which a member leaves is none that it goes on with.
            Note::Handed { halted: true, .. } => self.halts(at_ns),
            Note::Handed { path, frame, .. } => {
                if let Some(copy) = self.copy(path, frame) {
                    self.line(at_ns, &format!("recv {copy}"));
                }
            }
            Note::Reported(dead) => {
                let dead = self.name(dead);
                self.line(at_ns, &format!("report {dead}"));
            }
            Note::Stopped => self.line(at_ns, "crash"),
        }
    }
}

/// One trace of those of a group's members, in µs from its first event. What is half written at the end of a file, because its
/// member was killed, is left out.
///
/// # Errors
/// If a file cannot be read, is no member's trace, or is of another group.
pub fn merge(paths: &[PathBuf]) -> Result<String, Refusal> {
    let mut first: Option<String> = None;
    let mut lines: Vec<(u64, String)> = Vec::new();
    for path in paths {
        let refuse = |why: String| Refusal::new(format!("{}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|why| refuse(why.to_string()))?;
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let (head, rest) = whole.split_once('\n').unwrap_or((whole, ""));
        if !head.starts_with("# lowi ") {
            return Err(refuse("this is no trace of a member: its first line does not begin with `# lowi`".into())
                .hint("name the files that fide nano run --trace wrote"));
        }
        if first.get_or_insert_with(|| head.to_string()) != head {
            return Err(refuse("it is of a group with other settings than the first file's".into()));
        }
        let mut own: Vec<(u64, &str)> = Vec::new();
        for line in rest.lines() {
            let (at, what) = line.split_once(' ').ok_or_else(|| refuse(format!("this line has no time: {line}")))?;
            let at_ns = at.parse().map_err(|_| refuse(format!("this line does not begin with a time in ns: {line}")))?;
            if let Some((member, copy)) = what.split_once(" unsent ") {
                let sent = format!("{member} send {copy}");
                let place = own.iter().rposition(|(_, line)| *line == sent);
                own.remove(place.ok_or_else(|| refuse(format!("nothing was to be sent before this line: {line}")))?);
            } else {
                own.push((at_ns, what));
            }
        }
        lines.extend(own.into_iter().map(|(at_ns, what)| (at_ns, what.to_string())));
    }
    lines.sort_by_key(|(at_ns, _)| *at_ns);
    let begun_ns = lines.first().map_or(0, |(at_ns, _)| at_ns - at_ns % 1_000);
    let us = |ns: u64| ns.saturating_sub(begun_ns) / 1_000;
    let mut out = first.ok_or_else(|| Refusal::new("a trace is made of those of members: name at least one"))? + "\n";
    for (at_ns, what) in &lines {
        // The stamp of a copy is a time, too.
        let mut words: Vec<String> = what.split(' ').map(str::to_string).collect();
        if let (Some("send" | "recv"), Some(Ok(stamp_ns))) = (words.get(1).map(String::as_str), words.get(6).map(|w| w.parse())) {
            words[6] = us(stamp_ns).to_string();
        }
        out += &format!("{} {}\n", us(*at_ns), words.join(" "));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::group;
    use crate::member::Note;
    use fide_proto::consensus::lowi::{Round, StartPoint};

    fn copy(setup: &Setup, path: u8, sent_ns: u64) -> Vec<u8> {
        let entry = Entry { id: EntryId { proposer: setup.me, number: 9 }, body: Body::Join(MemberId(7)) };
        let round = Round { round: 1, leader: setup.me, instance: 1, sent_ns, batch: vec![entry].into() };
        frames::encode(setup, setup.me, path, 1, sent_ns, &Message::Round(round))
    }

    #[test]
    fn traces_of_members_become_one_in_the_order_of_time() {
        let directory = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = ["a", "b"].iter().map(|name| directory.path().join(name)).collect();
        let (one, two) = (group().setup(1).unwrap(), group().setup(2).unwrap());
        let begin = StartPoint { round: 0, leader: MemberId(1), next: 1 };
        let mut traces = [Trace::create(&paths[0], one.clone()).unwrap(), Trace::create(&paths[1], two).unwrap()];
        for (trace, at_ns) in traces.iter_mut().zip([5_000_700, 5_100_000]) {
            trace.note(at_ns, Note::Started { mode: 2, members: &one.members, begin });
        }
        traces[0].leaves(5_300_000, 0, &copy(&one, 0, 5_200_000));
        traces[0].leaves(5_310_000, 1, &copy(&one, 1, 5_200_000));
        traces[0].stayed(5_320_000, 1, &copy(&one, 1, 5_200_000));
        traces[1].note(5_305_000, Note::Handed { path: 0, frame: &copy(&one, 0, 5_200_000), halted: false });
        traces[1].note(5_400_000, Note::Handed { path: 0, frame: &[], halted: true });
        traces[1].halts(5_500_000);
        drop(traces);
        // It was killed while it wrote.
        let text = std::fs::read_to_string(&paths[0]).unwrap() + "5600000 p1 se";
        std::fs::write(&paths[0], text).unwrap();
        let merged = merge(&paths).unwrap();
        let (head, lines) = merged.split_once('\n').unwrap();
        assert_eq!(head, "# lowi 3 period=20000 delta_i=20000 delta_w=40000 late=19848 slack=200 members on real packets");
        assert_eq!(
            lines,
            "0 p1 start message 0 p1 1 p1+p2\n100 p2 start message 0 p1 1 p1+p2\n300 p1 send 1 p1 1 1 200 p1.9:join3\n\
             305 p2 recv 1 p1 1 1 200 p1.9:join3\n400 p2 halt\n"
        );
        std::fs::write(&paths[1], "nothing\n").unwrap();
        assert!(merge(&paths).unwrap_err().to_string().contains("no trace of a member"));
        assert!(merge(&[]).is_err());
    }
}
