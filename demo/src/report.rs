//! One HTML file with its figures inside: no script, no font, nothing fetched.

use crate::drawing::{self, Axes, Axis, Figure, Series};
use crate::output;
use crate::stats::{Case, human_us};
use anyhow::{Context as _, Result};
use std::fmt::Write as _;
use std::path::Path;
use std::time::SystemTime;

/// A page that grows from top to bottom, below a summary.
#[derive(Debug)]
pub struct Page {
    head: String,
    facts: Vec<(String, String)>,
    text: String,
}

const STYLE: &str = "\
:root{color-scheme:light dark;--page:#fbfcfd;--good:#13795b;--bad:#b3261e}\
@media(prefers-color-scheme:dark){:root{--page:#12171c;--good:#4cc39a;--bad:#ff8a80}}\
body{font:16px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:var(--ink);background:var(--page);overflow-wrap:anywhere}\
h1{font-size:1.7rem;margin-bottom:.2rem}h2{font-size:1.2rem;margin:2.2rem 0 .2rem}p{margin:.3rem 0}\
.dim{color:var(--dim)}.good{color:var(--good)}.bad{color:var(--bad);font-weight:600}\
.scroll{overflow-x:auto}table{border-collapse:collapse;margin:.7rem 0;font-variant-numeric:tabular-nums;overflow-wrap:normal}\
th,td{padding:.2rem .9rem .2rem 0;text-align:left;border-bottom:1px solid var(--grid)}\
th{font-weight:600;color:var(--dim);font-size:.85rem}td.n,th.n{text-align:right;white-space:nowrap}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem;margin:1rem 0;padding:.8rem 1rem;background:var(--paper);border:1px solid var(--grid);border-radius:6px}\
dt{color:var(--dim)}dd{margin:0}summary{cursor:pointer}\
figure{margin:.8rem 0;padding:.6rem .8rem;background:var(--paper);border:1px solid var(--grid);border-radius:6px}figcaption{font-weight:600}\
.key{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;margin:.3rem 0;padding:0;font-size:.85rem}.key li{display:flex;align-items:center;gap:.4rem}\
.key svg{flex:none}figure>svg{display:block;width:100%;height:auto}figure>svg.narrow{max-width:34rem}";

/// What was measured with one number of members.
#[derive(Clone, Debug)]
pub struct OfMembers {
    /// The line that it belongs to.
    pub line: String,
    /// How many.
    pub members: u16,
    /// In the middle.
    pub median: f64,
    /// The bar's lower end.
    pub least: f64,
    /// The bar's upper end.
    pub most: f64,
}

/// Makes the directory of a report, in which nothing lies that is not an earlier run's, before
/// anything is measured.
///
/// # Errors
/// What is in the way.
pub fn prepare(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    ["report.html", "results.jsonl"].iter().try_for_each(|file| output::check(&directory.join(file)))
}

/// Text made safe for HTML.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Page {
    /// With a title and a line below it. Date, machine and release are in every summary.
    #[must_use]
    pub fn new(title: &str, lead: &str) -> Self {
        let (title, lead) = (escape(title), escape(lead));
        // One of a figure's two sizes is shown.
        let sizes = format!(
            "@media(min-width:{}px){{figure>svg.narrow{{display:none}}}}@media(max-width:{}.98px){{figure>svg.wide{{display:none}}\
             figure{{padding:.4rem .2rem;margin:.8rem -.4rem}}dl{{grid-template-columns:1fr;gap:0}}dd{{margin-bottom:.4rem}}}}",
            drawing::WIDE_FROM,
            drawing::WIDE_FROM - 1
        );
        let head = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
             <meta name=\"viewport\" content=\"width=device-width\"><style>{}{STYLE}{sizes}</style></head><body>\n\
             <h1>{title}</h1>\n<p>{lead}</p>\n",
            drawing::style()
        );
        let facts = Vec::new();
        Page { head, facts, text: String::new() }
    }

    /// A line of the summary, above all that was added by other calls.
    pub fn fact(&mut self, name: &str, words: &str) {
        self.facts.push((name.into(), words.into()));
    }

    /// A line of the summary for the medians of cases in µs: the least and the largest, and whose they are.
    pub fn medians<'a>(&mut self, name: &str, cases: impl IntoIterator<Item = &'a Case>) {
        let mut cases: Vec<&Case> = cases.into_iter().filter(|c| c.unit == "us" && c.n > 0).collect();
        cases.sort_by(|a, b| a.quantiles.p50.total_cmp(&b.quantiles.p50));
        let words = |c: &&Case| format!("{} ({})", human_us(c.quantiles.p50), c.case);
        match &cases[..] {
            [] => {}
            [one] => self.fact(name, &format!("median {}", words(one))),
            [least, .., most] => self.fact(name, &format!("medians from {} to {}", words(least), words(most))),
        }
    }

    /// A heading.
    pub fn heading(&mut self, text: &str) {
        let _ = writeln!(self.text, "<h2>{}</h2>", escape(text));
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.text, "<p>{}</p>", escape(text));
    }

    /// A paragraph of a class of the style: `dim`, `good`, `bad`.
    pub fn remark(&mut self, class: &str, text: &str) {
        let _ = writeln!(self.text, "<p class=\"{class}\">{}</p>", escape(text));
    }

    /// A table. Headers that begin with `>` are for columns of numbers.
    pub fn table(&mut self, headers: &[&str], rows: &[Vec<String>]) {
        let class = |i: usize| if headers.get(i).is_some_and(|h| h.starts_with('>')) { " class=\"n\"" } else { "" };
        // A table wider than the window scrolls by itself, by keyboard, too.
        self.text += "<div class=\"scroll\" tabindex=\"0\"><table><tr>";
        for (i, header) in headers.iter().enumerate() {
            let _ = write!(self.text, "<th{}>{}</th>", class(i), escape(header.trim_start_matches('>')));
        }
        self.text += "</tr>\n";
        for row in rows {
            self.text += "<tr>";
            for (i, cell) in row.iter().enumerate() {
                let _ = write!(self.text, "<td{}>{}</td>", class(i), escape(cell));
            }
            self.text += "</tr>\n";
        }
        self.text += "</table></div>\n";
    }

    /// A figure.
    pub fn figure(&mut self, figure: &Figure) {
        let _ = writeln!(self.text, "{}", figure.html());
    }

    /// A chart, which is a file of its own, too. Where there is nothing to draw, it says so.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn chart(&mut self, file: &Path, axes: &Axes<'_>, series: &[Series]) -> Result<()> {
        match drawing::chart(axes, series) {
            Ok(figure) => {
                output::write(file, &figure.file())?;
                self.figure(&figure);
            }
            Err(e) => self.remark("dim", &e.to_string()),
        }
        Ok(())
    }

    /// A chart of what was measured with several numbers of members, which is along `count`. `lines` has the same order in all
    /// charts of a page, and so each line its colour.
    ///
    /// # Errors
    /// As [`Page::chart`].
    pub fn by_members(
        &mut self,
        file: &Path,
        (title, count, y): (&str, &str, Axis<'_>),
        lines: &[String],
        points: &[OfMembers],
    ) -> Result<()> {
        // Bars of several lines beside each other.
        let beside = |n: usize| (n as f64 - (lines.len() as f64 - 1.0) / 2.0) * 0.03;
        let series = lines.iter().enumerate().map(|(n, line)| {
            let mut series = Series { name: line.clone(), ..Series::default() };
            for of in points.iter().filter(|point| point.line == *line) {
                let at = f64::from(of.members) + beside(n);
                series.points.push((at, of.median));
                series.spans.push((at, of.least, of.most));
            }
            series
        });
        let series: Vec<Series> = series.collect();
        self.chart(file, &Axes { title, x: Axis::counts(count), y }, &series)
    }

    /// What was checked: failures in sight, the rest folded.
    pub fn checks<'a>(&mut self, checks: impl IntoIterator<Item = (bool, &'a str)>) {
        let (passed, failed): (Vec<_>, Vec<_>) = checks.into_iter().partition(|(ok, _)| *ok);
        for (_, what) in &failed {
            self.remark("bad", &format!("✗ {what}"));
        }
        if !passed.is_empty() {
            let all = passed.len() + failed.len();
            let _ = writeln!(self.text, "<details><summary class=\"good\">✓ {} of {all} checks passed</summary>", passed.len());
            for (_, what) in &passed {
                self.remark("good", &format!("✓ {what}"));
            }
            self.text += "</details>\n";
        }
    }

    /// The whole page, with what the numbers stand on.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.heading("How it was measured");
        self.paragraph(
            "All hosts are network namespaces of one machine with one kernel, so all stamps are of one clock (CLOCK_MONOTONIC) and \
             can be subtracted; between real hosts they cannot. The event is stamped immediately before it is brought about, the \
             upcall immediately after it returned in the application. Every sample is kept, the slow ones too.",
        );
        let mut page = self.head + "<dl>\n";
        let known = [("measured", now()), ("machine", hardware()), ("release", format!("FiDe {}", env!("CARGO_PKG_VERSION")))];
        for (name, words) in self.facts.into_iter().chain(known.map(|(name, words)| (name.to_owned(), words))) {
            let _ = writeln!(page, "<dt>{}</dt><dd>{}</dd>", escape(&name), escape(&words));
        }
        page + "</dl>\n" + &self.text + "</body></html>\n"
    }
}

/// The machine, its kernel, its load and the time, in one line.
#[must_use]
pub fn machine() -> String {
    format!("{}, {}", hardware(), now())
}

/// Processors, kernel, load.
fn hardware() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")).map_or("", |l| l.trim_start_matches([' ', '\t', ':']));
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    let load = load.split(' ').take(3).collect::<Vec<_>>().join(" ");
    format!("{cpus} × {model}, Linux {}, load average {load}", kernel.trim())
}

/// `2026-11-21T20:41:07Z`.
fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::Steps;
    use crate::drawing::{Row, timeline};
    use crate::stats::Samples;

    #[test]
    fn a_page_is_self_contained_and_escapes_what_it_is_given() {
        let mut page = Page::new("a <b>", "lead");
        page.heading("h & i");
        page.table(&["x", ">n"], &[vec!["<script>".into(), "1".into()]]);
        let row = Row {
            name: "h<2".into(),
            upcall_ns: Some(84_000),
            steps: Some(Steps { hook: 10_000, agent: 30_000, wire: 20_000, application: 24_000 }),
            tcp_ns: None,
            tcp_text: "nothing".into(),
        };
        page.figure(&timeline(&[row]).unwrap());
        page.checks([(true, "one & two"), (false, "three")]);
        page.fact("result", "well & good");
        let text = page.finish();
        assert!(text.contains("a &lt;b&gt;") && text.contains("h &amp; i") && text.contains("&lt;script&gt;"));
        assert!(text.contains("upcall 84 µs") && text.contains("TCP: nothing") && text.contains("h&lt;2"));
        for foreign in ["<script", "http://www.w3.org/1999", "src=", "<link", "url("] {
            assert!(!text.contains(foreign), "{foreign}");
        }
        assert!(text.ends_with("</body></html>\n"));
        // What there is to know first comes first, though it was said last.
        let summary = &text[..text.find("<h2>").unwrap()];
        for known in ["well &amp; good", "Z</dd>", "Linux ", concat!("FiDe ", env!("CARGO_PKG_VERSION"))] {
            assert!(summary.contains(known), "{known}: {summary}");
        }
        let folded = &text[text.find("<details>").unwrap()..text.find("</details>").unwrap()];
        assert!(folded.contains("1 of 2 checks passed") && folded.contains("one &amp; two") && !folded.contains("three"));
    }

    #[test]
    fn a_summary_names_the_ends_of_the_medians() {
        let case = |name: &str, ns: u64| Case::new("x", name, &mut [ns].into_iter().collect::<Samples>());
        let (few, many, none) =
            (case("hosts=3", 80_000), case("hosts=24", 700_000), Case::new("x", "none", &mut Samples::default()));
        let told = |cases: &[&Case]| {
            let mut page = Page::new("t", "l");
            page.medians("crash to upcall", cases.iter().copied());
            page.facts
        };
        assert_eq!(told(&[&many, &none, &few])[0].1, "medians from 80 µs (hosts=3) to 700 µs (hosts=24)");
        assert_eq!(told(&[&few])[0].1, "median 80 µs (hosts=3)");
        assert!(told(&[&none]).is_empty());
    }
}
