//! One HTML file with its drawings inside: no script, no font, nothing fetched.

use crate::crash::Steps;
use anyhow::{Result, anyhow};
use plotters::prelude::*;
use std::fmt::Write as _;
use std::time::SystemTime;

/// A page that grows from top to bottom.
#[derive(Debug)]
pub struct Page {
    text: String,
}

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:16px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#1c2530;background:#fbfcfd}\
h1{font-size:1.7rem;margin-bottom:.2rem}h2{font-size:1.2rem;margin:2.2rem 0 .2rem}p{margin:.3rem 0}\
.dim{color:#66717f}.good{color:#13795b}.bad{color:#b3261e;font-weight:600}\
table{border-collapse:collapse;margin:.7rem 0;font-variant-numeric:tabular-nums}\
th,td{padding:.2rem .9rem .2rem 0;text-align:left;border-bottom:1px solid #dfe5ea}\
th{font-weight:600;color:#66717f;font-size:.85rem}td.n,th.n{text-align:right}\
svg{max-width:100%;height:auto;background:#fff;border:1px solid #dfe5ea;border-radius:6px;margin:.5rem 0}\
@media(prefers-color-scheme:dark){body{color:#dbe2e8;background:#12171c}th,.dim{color:#93a0ad}th,td{border-color:#2c353e}\
.good{color:#4cc39a}.bad{color:#ff8a80}}";

/// Text made safe for HTML.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Page {
    /// With a title and a line below it.
    #[must_use]
    pub fn new(title: &str, lead: &str) -> Self {
        let (title, lead) = (escape(title), escape(lead));
        let text = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
             <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body>\n\
             <h1>{title}</h1>\n<p>{lead}</p>\n"
        );
        Page { text }
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
        self.text += "<table><tr>";
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
        self.text += "</table>\n";
    }

    /// A drawing.
    pub fn svg(&mut self, svg: &str) {
        let _ = writeln!(self.text, "{svg}");
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
        let _ = writeln!(self.text, "<p class=\"dim\">{}</p>\n</body></html>", escape(&machine()));
        self.text
    }
}

/// The machine, its kernel, its load and the time, in one line.
#[must_use]
pub fn machine() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")).map_or("", |l| l.trim_start_matches([' ', '\t', ':']));
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    let load = load.split(' ').take(3).collect::<Vec<_>>().join(" ");
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    format!("{cpus} × {model}, Linux {}, load average {load}, {}", kernel.trim(), date(since))
}

/// `2026-11-21 20:41 UTC` of seconds since 1970.
fn date(seconds: u64) -> String {
    let days = i64::try_from(seconds / 86_400).unwrap_or(0);
    // Howard Hinnant's civil_from_days.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", seconds / 3_600 % 24, seconds / 60 % 60)
}

// ---- timelines -----------------------------------------------------------------------------------------------------------------

/// One observer's row in a timeline.
#[derive(Clone, Debug)]
pub struct Row {
    /// The observer.
    pub name: String,
    /// When the upcall came, ns after the event.
    pub upcall_ns: Option<u64>,
    /// Its parts.
    pub steps: Option<Steps>,
    /// When TCP noticed, ns after the event.
    pub tcp_ns: Option<u64>,
    /// What to say where TCP noticed nothing.
    pub tcp_text: String,
}

/// From 1 µs to 10 s on a logarithmic scale: who knew when.
#[must_use]
pub fn timeline(rows: &[Row]) -> String {
    const LEFT: f64 = 60.0;
    const WIDTH: f64 = 720.0;
    const STEP: f64 = 36.0;
    const TOP: f64 = 14.0;
    let x = |ns: u64| LEFT + WIDTH * ((ns.max(1_000) as f64 / 1e3).log10() / 7.0).clamp(0.0, 1.0);
    let height = TOP + STEP * rows.len() as f64 + 26.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height}\" width=\"{}\" font-family=\"system-ui,sans-serif\" font-size=\"12\">",
        LEFT + WIDTH + 30.0,
        LEFT + WIDTH + 30.0
    );
    let bottom = TOP + STEP * rows.len() as f64;
    for (decade, label) in ["1 µs", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s", "10 s"].iter().enumerate() {
        let at = LEFT + WIDTH * decade as f64 / 7.0;
        let _ = write!(
            svg,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#e3e8ed\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#66717f\">{label}</text>",
            bottom + 16.0
        );
    }
    for (i, row) in rows.iter().enumerate() {
        let y = TOP + STEP * (i as f64 + 0.5);
        let _ =
            write!(svg, "<text x=\"8\" y=\"{:.1}\" fill=\"#1c2530\" font-weight=\"600\">{}</text>", y + 4.0, escape(&row.name));
        if let Some(steps) = &row.steps {
            let mut from = 0;
            for (step, (name, ns)) in Steps::NAMES.iter().zip(steps.all()).enumerate() {
                let (a, b) = (x(from), x(from + ns));
                let shade = ["#9cc3ec", "#64a1dd", "#3a82cb", "#1565c0"][step];
                let _ = write!(
                    svg,
                    "<rect x=\"{a:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"8\" fill=\"{shade}\"><title>{name}: {}</title></rect>",
                    y - 4.0,
                    (b - a).max(0.5),
                    crate::stats::human_ns(ns)
                );
                from += ns;
            }
        }
        let mut mark = |ns: u64, colour: &str, text: &str, below: bool| {
            let at = x(ns);
            let _ = write!(
                svg,
                "<circle cx=\"{at:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"{colour}\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"{colour}\">{}</text>",
                if below { y + 17.0 } else { y - 8.0 },
                escape(text)
            );
        };
        if let Some(ns) = row.upcall_ns {
            mark(ns, "#1565c0", &format!("upcall {}", crate::stats::human_ns(ns)), false);
        }
        match row.tcp_ns {
            Some(ns) => mark(ns, "#c2571a", &format!("TCP {}", crate::stats::human_ns(ns)), true),
            None => {
                let _ = write!(
                    svg,
                    "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#c2571a\">TCP: {}</text>",
                    LEFT + WIDTH,
                    y + 17.0,
                    escape(&row.tcp_text)
                );
            }
        }
    }
    svg += "</svg>";
    svg
}

// ---- charts --------------------------------------------------------------------------------------------------------------------

/// A named line of a chart.
#[derive(Clone, Debug)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// In the order of x.
    pub points: Vec<(f64, f64)>,
}

/// What the axes say.
#[derive(Clone, Copy, Debug)]
pub struct Axes<'a> {
    /// Above.
    pub title: &'a str,
    /// Below.
    pub x: &'a str,
    /// Beside.
    pub y: &'a str,
    /// Whether x is logarithmic.
    pub log_x: bool,
    /// Whether y is logarithmic.
    pub log_y: bool,
}

const COLOURS: [RGBColor; 8] = [
    RGBColor(0x15, 0x65, 0xc0),
    RGBColor(0xe6, 0x7e, 0x22),
    RGBColor(0x2e, 0x8b, 0x57),
    RGBColor(0x8e, 0x44, 0xad),
    RGBColor(0xc0, 0x39, 0x2b),
    RGBColor(0x00, 0x9b, 0x9b),
    RGBColor(0x7f, 0x6a, 0x00),
    RGBColor(0x55, 0x5f, 0x6b),
];

fn axis_label(v: f64) -> String {
    match v {
        0.0 => "0".into(),
        v if v.abs() >= 1e6 => format!("{:.0}M", v / 1e6),
        v if v.abs() >= 1e4 => format!("{:.0}k", v / 1e3),
        v if v.abs() >= 1.0 => format!("{v:.0}"),
        v => format!("{v:.3}").trim_end_matches('0').into(),
    }
}

/// Lines in a frame. Logarithmic axes leave out what is not positive.
///
/// # Errors
/// When there is nothing to draw.
pub fn chart(axes: &Axes<'_>, series: &[Series]) -> Result<String> {
    let fits = |&(x, y): &(f64, f64)| x.is_finite() && y.is_finite() && (!axes.log_x || x > 0.0) && (!axes.log_y || y > 0.0);
    let kept: Vec<(String, Vec<(f64, f64)>)> =
        series.iter().map(|s| (s.name.clone(), s.points.iter().copied().filter(fits).collect())).collect();
    let all = || kept.iter().flat_map(|(_, points)| points);
    let bound = |f: fn(&(f64, f64)) -> f64, pick: fn(f64, f64) -> f64| all().map(f).reduce(pick);
    let nothing = || anyhow!("nothing to draw in {:?}", axes.title);
    let (x0, x1) = (bound(|p| p.0, f64::min).ok_or_else(nothing)?, bound(|p| p.0, f64::max).ok_or_else(nothing)?);
    let (y0, y1) = (bound(|p| p.1, f64::min).ok_or_else(nothing)?, bound(|p| p.1, f64::max).ok_or_else(nothing)?);
    let widen = |low: f64, high: f64, log: bool| match log {
        true => (low * 0.8, high * 1.25),
        false => (low.min(0.0), if high > low { high * 1.05 } else { low + 1.0 }),
    };
    let ((x0, x1), (y0, y1)) = (widen(x0, x1, axes.log_x), widen(y0, y1, axes.log_y));

    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (860, 380)).into_drawing_area();
        area.fill(&WHITE).map_err(|e| anyhow!("{e}"))?;
        // The four combinations differ in type only.
        macro_rules! draw {
            ($xs:expr, $ys:expr) => {{
                let mut chart = ChartBuilder::on(&area)
                    .caption(axes.title, ("sans-serif", 17))
                    .margin(12)
                    .x_label_area_size(42)
                    .y_label_area_size(62)
                    .build_cartesian_2d($xs, $ys)
                    .map_err(|e| anyhow!("{e}"))?;
                chart
                    .configure_mesh()
                    .light_line_style(RGBColor(0xf2, 0xf4, 0xf6))
                    .x_desc(axes.x)
                    .y_desc(axes.y)
                    .x_label_formatter(&|v| axis_label(*v))
                    .y_label_formatter(&|v| axis_label(*v))
                    .draw()
                    .map_err(|e| anyhow!("{e}"))?;
                for (i, (name, points)) in kept.iter().enumerate() {
                    let colour = COLOURS[i % COLOURS.len()];
                    chart
                        .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))
                        .map_err(|e| anyhow!("{e}"))?
                        .label(name.as_str())
                        .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
                }
                chart
                    .configure_series_labels()
                    .background_style(WHITE.mix(0.85))
                    .border_style(RGBColor(0xdf, 0xe5, 0xea))
                    .draw()
                    .map_err(|e| anyhow!("{e}"))?;
            }};
        }
        match (axes.log_x, axes.log_y) {
            (true, true) => draw!((x0..x1).log_scale(), (y0..y1).log_scale()),
            (true, false) => draw!((x0..x1).log_scale(), y0..y1),
            (false, true) => draw!(x0..x1, (y0..y1).log_scale()),
            (false, false) => draw!(x0..x1, y0..y1),
        }
        area.present().map_err(|e| anyhow!("{e}"))?;
    }
    Ok(svg)
}

/// The cumulative distribution of samples (ns), in µs, thinned to what can be seen; both ends are kept.
#[must_use]
pub fn cdf(name: &str, sorted_ns: &[u64]) -> Series {
    let n = sorted_ns.len();
    let step = (n / 1_000).max(1);
    let at = |i: usize| (sorted_ns[i] as f64 / 1e3, (i + 1) as f64 / n as f64);
    let points = (0..n).step_by(step).chain(n.checked_sub(1)).map(at).collect();
    Series { name: name.into(), points }
}

/// The density of samples (ns) over logarithmic steps, eight an octave, as the part of all samples in each.
#[must_use]
pub fn pdf(name: &str, sorted_ns: &[u64]) -> Series {
    let bin = |ns: u64| ((ns.max(1) as f64).log2() * 8.0).floor() as i64;
    let middle = |bin: i64| ((bin as f64 + 0.5) / 8.0).exp2() / 1e3;
    let mut bins = std::collections::BTreeMap::new();
    for &ns in sorted_ns {
        *bins.entry(bin(ns)).or_insert(0usize) += 1;
    }
    let (Some((&first, _)), Some((&last, _))) = (bins.first_key_value(), bins.last_key_value()) else {
        return Series { name: name.into(), points: Vec::new() };
    };
    // Empty steps are zero, not skipped: a gap in the distribution must be seen.
    let share = |b: i64| bins.get(&b).copied().unwrap_or(0) as f64 / sorted_ns.len() as f64;
    Series { name: name.into(), points: (first - 1..=last + 1).map(|b| (middle(b), share(b))).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_self_contained_and_escapes_what_it_is_given() {
        let mut page = Page::new("a <b>", "lead");
        page.heading("h & i");
        page.table(&["x", ">n"], &[vec!["<script>".into(), "1".into()]]);
        page.svg(&timeline(&[Row {
            name: "h2".into(),
            upcall_ns: Some(84_000),
            steps: Some(Steps { hook: 10_000, agent: 30_000, wire: 20_000, application: 24_000 }),
            tcp_ns: None,
            tcp_text: "nothing".into(),
        }]));
        let text = page.finish();
        assert!(text.contains("a &lt;b&gt;") && text.contains("h &amp; i") && text.contains("&lt;script&gt;"));
        assert!(text.contains("upcall 84 µs") && text.contains("TCP: nothing"));
        for foreign in ["<script", "http://www.w3.org/1999", "src=", "<link", "url("] {
            assert!(!text.contains(foreign), "{foreign}");
        }
        assert!(text.ends_with("</body></html>\n"));
    }

    #[test]
    fn distributions_keep_their_ends() {
        let samples: Vec<u64> = (1..=5_000).map(|n| n * 1_000).collect();
        let c = cdf("x", &samples);
        assert_eq!((c.points[0].0, *c.points.last().unwrap()), (1.0, (5_000.0, 1.0)));
        assert!(c.points.len() < 1_100);
        let p = pdf("x", &[1_000, 1_000, 4_000]);
        assert!((p.points.iter().map(|p| p.1).sum::<f64>() - 1.0).abs() < 1e-9);
        assert!(pdf("x", &[]).points.is_empty());
    }

    #[test]
    fn charts_are_drawn_on_all_axes_and_refuse_emptiness() {
        let series = [Series { name: "a & b".into(), points: vec![(1.0, 0.5), (100.0, 0.0), (1e6, 1.0)] }];
        for (log_x, log_y) in [(true, true), (true, false), (false, true), (false, false)] {
            let svg = chart(&Axes { title: "t", x: "µs", y: "n", log_x, log_y }, &series).unwrap();
            assert!(svg.starts_with("<svg") && svg.contains("</svg>") && svg.contains("polyline"), "{svg}");
        }
        assert!(chart(&Axes { title: "t", x: "", y: "", log_x: true, log_y: true }, &[]).is_err());
    }

    #[test]
    fn dates_are_civil() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(date(951_868_800), "2000-03-01 00:00 UTC");
    }
}
