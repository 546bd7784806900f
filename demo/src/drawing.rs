//! Figures as SVG: timelines, bars of parts, lines. Each is drawn for wide and for narrow windows, in which text has the same size and fewer ticks have labels;
//! a page shows the one that fits. Colours are those of `PALETTE`, which [`style`] replaces in dark mode.

use crate::crash::Steps;
use crate::report::escape;
use crate::stats::human_ns;
use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::element::{DashedPathElement, DynElement};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fmt::Write as _;

/// A colour: its CSS variable, and what it is in light and in dark mode. No two have the same light one, by which a stylesheet finds them.
struct Colour {
    name: &'static str,
    light: [u8; 3],
    dark: [u8; 3],
}

const fn colour(name: &'static str, light: u32, dark: u32) -> Colour {
    let ([_, r, g, b], [_, dr, dg, db]) = (light.to_be_bytes(), dark.to_be_bytes());
    Colour { name, light: [r, g, b], dark: [dr, dg, db] }
}

/// Text, what is less important, the grid, the background, and eight that differ. Against the background texts and lines reach 4.5 : 1.
static PALETTE: [Colour; 4 + LINES] = [
    colour("ink", 0x1c2530, 0xdbe2e8),
    colour("dim", 0x5a6572, 0x9aa7b4),
    colour("grid", 0xdfe5ea, 0x2c353e),
    colour("paper", 0xffffff, 0x171d23),
    colour("c0", 0x1565c0, 0x6fb1ff),
    colour("c1", 0xb35300, 0xffab5e),
    colour("c2", 0x1b7f4b, 0x5fd39a),
    colour("c3", 0x8e44ad, 0xd59bea),
    colour("c4", 0xc0392b, 0xff8a80),
    colour("c5", 0x007a7a, 0x4fd1d1),
    colour("c6", 0x7f6a00, 0xd9c34a),
    colour("c7", 0x55606b, 0xa9b4bf),
];
const LINES: usize = 8;
const INK: usize = 0;
const DIM: usize = 1;
const GRID: usize = 2;
const PAPER: usize = 3;

fn rgb(index: usize) -> RGBColor {
    let [r, g, b] = PALETTE[index].light;
    RGBColor(r, g, b)
}

/// The colour of a line, a mark or a part.
fn line_rgb(n: usize) -> RGBColor {
    rgb(4 + n % LINES)
}

fn hex([r, g, b]: [u8; 3]) -> String {
    format!("#{r:02X}{g:02X}{b:02X}")
}

/// The variables, and the rules by which figures follow them. Who knows no stylesheets sees the light colours.
#[must_use]
pub fn style() -> String {
    let all = |of: fn(&Colour) -> [u8; 3]| {
        PALETTE.iter().fold(String::new(), |text, c| text + &format!("--{}:{};", c.name, hex(of(c))))
    };
    let mut css = format!(":root{{{}}}@media(prefers-color-scheme:dark){{:root{{{}}}}}", all(|c| c.light), all(|c| c.dark));
    for c in &PALETTE {
        let (name, light) = (c.name, hex(c.light));
        let _ = write!(css, ".fig [fill=\"{light}\"]{{fill:var(--{name})}}.fig [stroke=\"{light}\"]{{stroke:var(--{name})}}");
    }
    css
}

/// Pixels of the two sizes, and from which window on the wide one fits.
const WIDE: u32 = 760;
const NARROW: u32 = 340;
/// The window that has room for `WIDE`, px.
pub const WIDE_FROM: u32 = 840;
/// What 12 px is called in plotters.
const TEXT: f64 = 12.0 * 1.24;
/// How wide a character is at most, px.
const CHARACTER: f64 = 7.3;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// What a colour stands for.
#[derive(Clone, Debug)]
struct Key {
    swatch: Swatch,
    words: String,
}

#[derive(Clone, Copy, Debug)]
enum Swatch {
    Line(usize),
    Mark(usize),
    Part(usize),
}

/// Lengths of dashes and gaps, px, of the n-th line: more lines than colours differ in their dashes.
fn dashes(n: usize) -> Option<(u32, u32)> {
    [None, Some((7, 4)), Some((2, 3)), Some((12, 3))][n / LINES % 4]
}

impl Swatch {
    fn html(self) -> String {
        let inside = match self {
            Swatch::Line(n) => {
                let dashed = dashes(n).map_or(String::new(), |(on, off)| format!(" stroke-dasharray=\"{on} {off}\""));
                format!("<path d=\"M0 6H24\" stroke-width=\"2\" stroke=\"{}\"{dashed}/>", hex(PALETTE[4 + n % LINES].light))
            }
            Swatch::Mark(n) => format!("<circle cx=\"12\" cy=\"6\" r=\"5\" fill=\"{}\"/>", hex(PALETTE[4 + n].light)),
            Swatch::Part(n) => format!("<rect x=\"4\" width=\"16\" height=\"12\" fill=\"{}\"/>", hex(PALETTE[4 + n].light)),
        };
        format!("<svg viewBox=\"0 0 24 12\" width=\"24\" height=\"12\" aria-hidden=\"true\">{inside}</svg>")
    }

    fn draw(self, area: &Area<'_>, (x, y): (i32, i32)) -> Result<()> {
        match self {
            Swatch::Line(n) => area.draw(&stroke(n, vec![(x, y), (x + 24, y)])).map_err(fault),
            Swatch::Mark(n) => area.draw(&Circle::new((x + 12, y), 5, line_rgb(n).filled())).map_err(fault),
            Swatch::Part(n) => area.draw(&Rectangle::new([(x + 4, y - 6), (x + 20, y + 6)], line_rgb(n).filled())).map_err(fault),
        }
    }
}

fn fault(e: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("a figure cannot be drawn: {e}")
}

/// The n-th line through points.
fn stroke<DB: DrawingBackend, C: Clone + 'static>(n: usize, points: Vec<C>) -> DynElement<'static, DB, C> {
    let style = line_rgb(n).stroke_width(2);
    match dashes(n) {
        None => PathElement::new(points, style).into_dyn(),
        Some((on, off)) => DashedPathElement::new(points, on, off, style).into_dyn(),
    }
}

fn text_style(colour: RGBColor, h: HPos) -> TextStyle<'static> {
    ("sans-serif", TEXT).into_font().color(&colour).pos(Pos::new(h, VPos::Center))
}

/// How wide a text is at most, px.
fn text_width(text: &str) -> f64 {
    CHARACTER * text.chars().count() as f64
}

/// One figure: its title, its key, and how it is drawn.
#[derive(Clone, Debug)]
pub struct Figure {
    title: String,
    key: Vec<Key>,
    wide: String,
    narrow: String,
    file: String,
}

impl Figure {
    /// Draws all sizes with `draw`, which knows from the area how much room there is; `height` is for a width.
    fn new(title: &str, key: Vec<Key>, height: impl Fn(u32) -> u32, draw: impl Fn(&Area<'_>) -> Result<()>) -> Result<Self> {
        const ROW: u32 = 20;
        let render = |width: u32, head: u32| -> Result<String> {
            let mut svg = String::new();
            {
                let root = SVGBackend::with_string(&mut svg, (width, head + height(width))).into_drawing_area();
                let (top, below) = root.split_vertically(head);
                if head > 0 {
                    root.fill(&rgb(PAPER)).map_err(fault)?;
                    top.draw(&Text::new(title.to_owned(), (12, 20), text_style(rgb(INK), HPos::Left))).map_err(fault)?;
                    for (i, entry) in (2..).zip(&key) {
                        let y = ROW as i32 * i;
                        entry.swatch.draw(&top, (12, y))?;
                        let words = Text::new(entry.words.clone(), (46, y), text_style(rgb(INK), HPos::Left));
                        top.draw(&words).map_err(fault)?;
                    }
                }
                draw(&below)?;
                root.present().map_err(fault)?;
            }
            Ok(svg)
        };
        let file = render(WIDE, ROW * (key.len() as u32 + 2))?;
        Ok(Figure { title: title.into(), wide: render(WIDE, 0)?, narrow: render(NARROW, 0)?, file, key })
    }

    /// For a page that has [`style`]: title, key, and both sizes.
    #[must_use]
    pub fn html(&self) -> String {
        let mut html = format!("<figure class=\"fig\"><figcaption>{}</figcaption>", escape(&self.title));
        if !self.key.is_empty() {
            html += "<ul class=\"key\">";
            for entry in &self.key {
                let _ = write!(html, "<li>{}<span>{}</span></li>", entry.swatch.html(), escape(&entry.words));
            }
            html += "</ul>";
        }
        for (class, svg) in [("wide", &self.wide), ("narrow", &self.narrow)] {
            let attributes = format!("<svg class=\"{class}\" role=\"img\" aria-label=\"{}\" ", escape(&self.title));
            html += &svg.replacen("<svg ", &attributes, 1);
        }
        html + "</figure>"
    }

    /// As a file of its own, with title, key and [`style`] in it.
    #[must_use]
    pub fn file(&self) -> String {
        let (start, rest) = self.file.split_once('>').unwrap_or((&self.file, ""));
        format!("{} class=\"fig\"><style>{}</style>{rest}", start, style())
    }
}

// ---- axes ----------------------------------------------------------------------------------------------------------------------

/// What is along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Times, the values in µs; labels have units.
    Time,
    /// Numbers.
    Number,
    /// Whole numbers.
    Count,
}

/// One axis.
#[derive(Clone, Copy, Debug)]
pub struct Axis<'a> {
    /// What it says.
    pub words: &'a str,
    /// What its values are.
    pub unit: Unit,
    /// Whether it is logarithmic. What is not positive is left out then.
    pub log: bool,
}

impl<'a> Axis<'a> {
    /// Times in µs, logarithmic.
    #[must_use]
    pub const fn times(words: &'a str) -> Self {
        Axis { words, unit: Unit::Time, log: true }
    }

    /// Numbers, linear from 0.
    #[must_use]
    pub const fn numbers(words: &'a str) -> Self {
        Axis { words, unit: Unit::Number, log: false }
    }

    /// Whole numbers, linear from the least of them.
    #[must_use]
    pub const fn counts(words: &'a str) -> Self {
        Axis { words, unit: Unit::Count, log: false }
    }

    /// The same, logarithmic.
    #[must_use]
    pub const fn log(self) -> Self {
        Axis { log: true, ..self }
    }

    /// Where a value lies along the axis, which plotters draws as a linear one: so one kind of chart serves for all.
    fn place(&self, value: f64) -> f64 {
        if self.log { value.log10() } else { value }
    }

    fn value(&self, place: f64) -> f64 {
        if self.log { 10f64.powf(place) } else { place }
    }

    fn fits(&self, value: f64) -> bool {
        value.is_finite() && (!self.log || value > 0.0)
    }

    /// A value in words, without digits that say nothing.
    fn label(&self, value: f64) -> String {
        match (self.unit, value) {
            (_, v) if v.abs() < 1e-9 => "0".into(),
            (Unit::Time, us) if us < 1.0 => format!("{} ns", short(us * 1e3)),
            (Unit::Time, us) if us < 1e3 => format!("{} µs", short(us)),
            (Unit::Time, us) if us < 1e6 => format!("{} ms", short(us / 1e3)),
            (Unit::Time, us) => format!("{} s", short(us / 1e6)),
            (_, v) if v.abs() >= 1e6 => format!("{}M", short(v / 1e6)),
            (_, v) if v.abs() >= 1e4 => format!("{}k", short(v / 1e3)),
            (_, v) => short(v),
        }
    }

    /// Round values between two places, at most as many as have room: `length` px in all, `each` px for one.
    fn ticks(&self, (low, high): (f64, f64), length: f64, each: f64) -> Vec<f64> {
        let most = (length / each).max(1.0);
        if self.log && high - low >= 1.0 {
            let (first, last) = (low.ceil() as i32, high.floor() as i32);
            let steps = [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]];
            let fine = |steps: &&[f64]| (high - low) * steps.len() as f64 <= most;
            if let Some(steps) = steps.into_iter().find(fine) {
                let all = (first - 1..=last).flat_map(|d| steps.iter().map(move |s| f64::from(d) + s.log10()));
                return all.filter(|p| (low - 1e-9..=high + 1e-9).contains(p)).collect();
            }
            let every = ((high - low) / most).ceil() as i32;
            return (first..=last).filter(|d| d.rem_euclid(every) == 0).map(f64::from).collect();
        }
        // Within a decade a logarithmic axis has round values at equal distances, too: those above lie closest together.
        let (from, to) = (self.value(low), self.value(high));
        let at_step = |step: f64| -> Vec<f64> {
            let first = (from / step - 1e-6).ceil() as i64;
            (first..).map(|n| n as f64 * step).take_while(|v| *v <= to + step * 1e-6).map(|v| self.place(v)).collect()
        };
        let power = 10f64.powf(((to - from) / most).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0].map(|s| s * power);
        let apart = |ticks: &Vec<f64>| ticks.windows(2).all(|w| (w[1] - w[0]) / (high - low) * length >= each * 0.999_999);
        let whole = |step: &f64| self.unit != Unit::Count || *step >= 1.0 - 1e-9;
        steps.into_iter().chain([1.0]).filter(whole).map(at_step).find(apart).unwrap_or_default()
    }
}

fn short(v: f64) -> String {
    let text = format!("{v:.4}");
    text.trim_end_matches('0').trim_end_matches('.').into()
}

/// An axis as plotters sees it: places between two, with ticks that were chosen already.
struct Places {
    inner: RangedCoordf64,
    ticks: Vec<f64>,
}

impl Places {
    fn new((low, high): (f64, f64), ticks: Vec<f64>) -> Self {
        Places { inner: (low..high).into(), ticks }
    }
}

impl Ranged for Places {
    type FormatOption = plotters::coord::ranged1d::DefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, limit: (i32, i32)) -> i32 {
        self.inner.map(place, limit)
    }

    fn key_points<H: plotters::coord::ranged1d::KeyPointHint>(&self, hint: H) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.inner.range()
    }
}

type Plot<'a, 'b> = ChartContext<'b, SVGBackend<'a>, Cartesian2d<Places, Places>>;

/// What is beside a frame.
enum Side<'a> {
    /// An axis between two places.
    Axis(&'a Axis<'a>, (f64, f64)),
    /// So many rows, for whose names so many px are free.
    Rows(f64, u32),
}

/// A frame, and the axis below it between two places.
fn frame<'a, 'b>(area: &'b Area<'a>, x: (&Axis<'_>, (f64, f64)), y: &Side<'_>) -> Result<Plot<'a, 'b>> {
    const BELOW: u32 = 42;
    const RIGHT: u32 = 22;
    let (width, height) = area.dim_in_pixel();
    let (top, y_range, y_ticks, left) = match y {
        Side::Axis(axis, range) => {
            let ticks = axis.ticks(*range, f64::from(height.saturating_sub(BELOW + 24)), 30.0);
            let widest = ticks.iter().map(|p| text_width(&axis.label(axis.value(*p)))).fold(20.0, f64::max);
            (24, *range, ticks, widest as u32 + 14)
        }
        Side::Rows(rows, left) => (6, (0.0, *rows), Vec::new(), *left),
    };
    let (x_axis, x_range) = x;
    let room = width.saturating_sub(left + RIGHT);
    let x_ticks = x_axis.ticks(x_range, f64::from(room), 62.0);
    let mut plot = ChartBuilder::on(area)
        .margin_top(top)
        .margin_right(RIGHT)
        .x_label_area_size(BELOW)
        .y_label_area_size(left)
        .build_cartesian_2d(Places::new(x_range, x_ticks), Places::new(y_range, y_ticks))
        .map_err(fault)?;
    let dim = text_style(rgb(DIM), HPos::Center);
    let mut mesh = plot.configure_mesh();
    let y_axis = match y {
        Side::Axis(axis, _) => Some(**axis),
        Side::Rows(..) => None,
    };
    let y_label = move |p: &f64| y_axis.map_or(String::new(), |axis| axis.label(axis.value(*p)));
    let x_label = |p: &f64| x_axis.label(x_axis.value(*p));
    mesh.light_line_style(TRANSPARENT).bold_line_style(rgb(GRID)).axis_style(rgb(GRID)).label_style(dim.clone());
    mesh.x_label_formatter(&x_label).y_label_formatter(&y_label).x_desc(x_axis.words).axis_desc_style(dim);
    mesh.draw().map_err(fault)?;
    if let Some(axis) = y_axis {
        area.draw(&Text::new(axis.words.to_owned(), (4, 10), text_style(rgb(DIM), HPos::Left))).map_err(fault)?;
    }
    Ok(plot)
}

/// A text at a point of a plot, moved by so many px, and to the side where it would leave the plot.
fn beside(plot: &Plot<'_, '_>, at: (f64, f64), dy: i32, words: &str, colour: RGBColor) -> Result<()> {
    let (x, _) = plot.backend_coord(&at);
    let (range, _) = plot.plotting_area().get_pixel_range();
    let half = (text_width(words) / 2.0) as i32;
    let (dx, h) = match x {
        x if x - half < range.start => (range.start - x, HPos::Left),
        x if x + half > range.end + 20 => (range.end + 20 - x, HPos::Right),
        _ => (0, HPos::Center),
    };
    let element = EmptyElement::at(at) + Text::new(words.to_owned(), (dx, dy), text_style(colour, h));
    plot.plotting_area().draw(&element).map_err(fault)
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

const UPCALL: usize = 0;
const TCP: usize = 1;
/// Room for an observer's name, px.
const NAMES: u32 = 44;

fn name(plot: &Plot<'_, '_>, area: &Area<'_>, y: f64, name: &str) -> Result<()> {
    let (_, at) = plot.backend_coord(&(0.0, y));
    let (_, top) = area.get_base_pixel();
    area.draw(&Text::new(name.to_owned(), (6, at - top), text_style(rgb(INK), HPos::Left))).map_err(fault)
}

/// Who knew when: from 1 µs to 10 s on a logarithmic scale.
///
/// # Errors
/// When it cannot be drawn.
pub fn timeline(rows: &[Row]) -> Result<Figure> {
    const STEP: u32 = 52;
    let key = [(UPCALL, "upcall in the application"), (TCP, "its TCP connection was closed")];
    let key = key.map(|(n, words)| Key { swatch: Swatch::Mark(n), words: words.into() }).to_vec();
    let height = |_| STEP * rows.len() as u32 + 48;
    Figure::new("Who knew when (logarithmic)", key, height, |area| {
        let axis = Axis::times("after the event");
        let plot = frame(area, (&axis, (0.0, 7.0)), &Side::Rows(rows.len() as f64, NAMES))?;
        for (i, row) in rows.iter().enumerate() {
            let y = rows.len() as f64 - i as f64 - 0.5;
            name(&plot, area, y, &row.name)?;
            let mark = |ns: u64, n: usize, words: &str, dy: i32| {
                let at = (axis.place(ns.clamp(1_000, 10_000_000_000) as f64 / 1e3), y);
                let dot = EmptyElement::at(at) + Circle::new((0, 0), 5, line_rgb(n).filled());
                plot.plotting_area().draw(&dot).map_err(fault)?;
                beside(&plot, at, dy, words, line_rgb(n))
            };
            if let Some(ns) = row.upcall_ns {
                mark(ns, UPCALL, &format!("upcall {}", human_ns(ns)), -15)?;
            }
            match row.tcp_ns {
                Some(ns) => mark(ns, TCP, &format!("TCP {}", human_ns(ns)), 15)?,
                None => beside(&plot, (7.0, y), 15, &format!("TCP: {}", row.tcp_text), line_rgb(TCP))?,
            }
        }
        Ok(())
    })
}

/// What each upcall's time is made of: a linear scale of its own, on which lengths can be added. `None` where no row has steps.
///
/// # Errors
/// When it cannot be drawn.
pub fn parts(rows: &[Row]) -> Result<Option<Figure>> {
    const STEP: u32 = 34;
    let with: Vec<(&str, [u64; 4])> = rows.iter().filter_map(|r| Some((r.name.as_str(), r.steps.as_ref()?.all()))).collect();
    let Some(longest) = with.iter().map(|(_, steps)| steps.iter().sum::<u64>()).max() else { return Ok(None) };
    let key = (0..).zip(Steps::NAMES).map(|(i, name)| Key { swatch: Swatch::Part(i), words: name.into() }).collect();
    let height = |_| STEP * with.len() as u32 + 48;
    let figure = Figure::new("What the upcall's time is made of (linear)", key, height, |area| {
        let axis = Axis { log: false, ..Axis::times("after the event") };
        // Behind the longest bar there is room for its length in words.
        let (width, _) = area.dim_in_pixel();
        let high = longest.max(1_000) as f64 / 1e3 * (1.0 + 64.0 / f64::from(width - 64 - NAMES - 22));
        let plot = frame(area, (&axis, (0.0, high)), &Side::Rows(with.len() as f64, NAMES))?;
        for (i, (observer, steps)) in with.iter().enumerate() {
            let y = with.len() as f64 - i as f64 - 0.5;
            name(&plot, area, y, observer)?;
            let mut from = 0;
            for (step, ns) in steps.iter().enumerate() {
                let (a, b) = (from as f64 / 1e3, (from + ns) as f64 / 1e3);
                let bar = Rectangle::new([(a, y - 0.25), (b, y + 0.25)], line_rgb(step).filled());
                plot.plotting_area().draw(&bar).map_err(fault)?;
                from += ns;
            }
            let words = Text::new(human_ns(from), (6, 0), text_style(rgb(INK), HPos::Left));
            plot.plotting_area().draw(&(EmptyElement::at((from as f64 / 1e3, y)) + words)).map_err(fault)?;
        }
        Ok(())
    })?;
    Ok(Some(figure))
}

// ---- charts --------------------------------------------------------------------------------------------------------------------

/// A named line of a chart.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// In the key.
    pub name: String,
    /// In the order of x.
    pub points: Vec<(f64, f64)>,
    /// Vertical bars: x, from, to. Where there are some, the points are marked.
    pub spans: Vec<(f64, f64, f64)>,
}

/// What a chart says.
#[derive(Clone, Copy, Debug)]
pub struct Axes<'a> {
    /// Above.
    pub title: &'a str,
    /// Below.
    pub x: Axis<'a>,
    /// Beside.
    pub y: Axis<'a>,
}

/// Lines in a frame. Logarithmic axes leave out what is not positive.
///
/// # Errors
/// When there is nothing to draw, or it cannot be drawn.
pub fn chart(axes: &Axes<'_>, series: &[Series]) -> Result<Figure> {
    let Axes { title, x, y } = axes;
    let placed = |s: &Series| -> Vec<(f64, f64)> {
        let fit = s.points.iter().filter(|p| x.fits(p.0) && y.fits(p.1));
        fit.map(|p| (x.place(p.0), y.place(p.1))).collect()
    };
    let lines: Vec<Vec<(f64, f64)>> = series.iter().map(placed).collect();
    let span = |s: &Series| -> Vec<[(f64, f64); 2]> {
        let fit = s.spans.iter().filter(|(at, from, to)| x.fits(*at) && y.fits(*from) && y.fits(*to));
        fit.map(|(at, from, to)| [*from, *to].map(|value| (x.place(*at), y.place(value)))).collect()
    };
    let spans: Vec<Vec<[(f64, f64); 2]>> = series.iter().map(span).collect();
    let range = |of: fn(&(f64, f64)) -> f64, axis: &Axis<'_>| {
        let all = || lines.iter().flatten().chain(spans.iter().flatten().flatten()).map(of);
        let nothing = || anyhow!("nothing to draw in {title:?}");
        let (low, high) = (all().reduce(f64::min).ok_or_else(nothing)?, all().reduce(f64::max).ok_or_else(nothing)?);
        Ok::<_, anyhow::Error>(match axis.log {
            true => (low - 0.1, high + 0.1),
            false if axis.unit == Unit::Count => (low.floor() - 0.5, high.ceil() + 0.5),
            false => (low.min(0.0), if high > low.min(0.0) { high + (high - low.min(0.0)) * 0.05 } else { low + 1.0 }),
        })
    };
    let (x_range, y_range) = (range(|p| p.0, x)?, range(|p| p.1, y)?);
    // A line without points keeps its colour for another chart of the page.
    let shown = series.iter().enumerate().filter(|(n, _)| !lines[*n].is_empty());
    let key = shown.map(|(n, s)| Key { swatch: Swatch::Line(n), words: s.name.clone() }).collect();
    let height = |width| if width == WIDE { 360 } else { 270 };
    Figure::new(title, key, height, |area| {
        let plot = frame(area, (x, x_range), &Side::Axis(y, y_range))?;
        for (n, (points, spans)) in lines.iter().zip(&spans).enumerate() {
            let area = plot.plotting_area();
            for span in spans {
                area.draw(&PathElement::new(span.to_vec(), line_rgb(n).stroke_width(1))).map_err(fault)?;
            }
            if points.len() > 1 {
                area.draw(&stroke(n, points.clone())).map_err(fault)?;
            }
            // A line of one point is none.
            for point in points.iter().filter(|_| points.len() == 1 || !spans.is_empty()) {
                area.draw(&Circle::new(*point, 3, line_rgb(n).filled())).map_err(fault)?;
            }
        }
        Ok(())
    })
}

/// The cumulative distribution of samples (ns), in µs, thinned to what can be seen; both ends are kept.
#[must_use]
pub fn cdf(name: &str, sorted_ns: &[u64]) -> Series {
    let n = sorted_ns.len();
    let step = (n / 1_000).max(1);
    let at = |i: usize| (sorted_ns[i] as f64 / 1e3, (i + 1) as f64 / n as f64);
    let points = (0..n).step_by(step).chain(n.checked_sub(1)).map(at).collect();
    Series { name: name.into(), points, ..Series::default() }
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
        return Series { name: name.into(), ..Series::default() };
    };
    // Empty steps are zero, not skipped: a gap in the distribution must be seen.
    let share = |b: i64| bins.get(&b).copied().unwrap_or(0) as f64 / sorted_ns.len() as f64;
    let points = (first - 1..=last + 1).map(|b| (middle(b), share(b))).collect();
    Series { name: name.into(), points, ..Series::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Axis<'_> = Axis::times("after kill(2)");
    const PART: Axis<'_> = Axis::numbers("part of all");

    fn rows() -> Vec<Row> {
        let row = |name: &str, steps: [u64; 4]| Row {
            name: name.into(),
            upcall_ns: Some(steps.iter().sum()),
            steps: Some(Steps { hook: steps[0], agent: steps[1], wire: steps[2], application: steps[3] }),
            tcp_ns: None,
            tcp_text: "nothing".into(),
        };
        vec![row("h2", [10_000, 30_000, 20_000, 24_000]), row("h3", [20_000, 30_000, 40_000, 78_000])]
    }

    #[test]
    fn colours_can_be_told_apart_by_their_light_value() {
        let mut light: Vec<String> = PALETTE.iter().map(|c| hex(c.light)).collect();
        light.sort_unstable();
        light.dedup();
        assert_eq!(light.len(), PALETTE.len());
        let css = style();
        for c in &PALETTE {
            assert!(css.contains(&format!("[fill=\"{}\"]{{fill:var(--{})}}", hex(c.light), c.name)), "{css}");
        }
        // Nothing is drawn in a colour that the stylesheet does not know.
        let html = timeline(&rows()).unwrap().html() + &parts(&rows()).unwrap().unwrap().html();
        for attribute in [" fill=\"#", " stroke=\"#"] {
            for rest in html.split(attribute).skip(1) {
                let value = format!("#{}", rest.split('"').next().unwrap());
                assert!(light.contains(&value), "{value} is not in the palette");
            }
        }
    }

    #[test]
    fn parts_are_as_long_as_they_take() {
        let figure = parts(&rows()).unwrap().unwrap();
        for svg in [&figure.wide, &figure.narrow] {
            let width = |rect: &str| rect.split(" width=\"").nth(1).unwrap().split('"').next().unwrap().parse::<f64>().unwrap();
            let bars: Vec<f64> = svg.split("<rect ").skip(1).map(width).collect();
            let times = [10.0, 30.0, 20.0, 24.0, 20.0, 30.0, 40.0, 78.0];
            assert_eq!(bars.len(), times.len());
            let scale = bars.iter().sum::<f64>() / times.iter().sum::<f64>();
            for (bar, time) in bars.iter().zip(times) {
                assert!((bar - time * scale).abs() <= 1.5, "{bars:?}: lengths are proportions, to a pixel");
            }
        }
        let without: Vec<Row> = rows().into_iter().map(|r| Row { steps: None, ..r }).collect();
        assert!(parts(&without).unwrap().is_none() && parts(&[]).unwrap().is_none());
        let timeline = timeline(&rows()).unwrap();
        assert!(!timeline.wide.contains("<rect"), "nothing is stacked on a logarithmic scale");
    }

    #[test]
    fn ticks_are_round_and_fewer_where_there_is_less_room() {
        let at = |axis: Axis<'_>, low: f64, high: f64, length| -> Vec<String> {
            axis.ticks((axis.place(low), axis.place(high)), length, 60.0).iter().map(|p| axis.label(axis.value(*p))).collect()
        };
        let linear = Axis { log: false, ..TIME };
        assert_eq!(
            at(linear, 0.0, 170.0, 600.0),
            ["0", "20 µs", "40 µs", "60 µs", "80 µs", "100 µs", "120 µs", "140 µs", "160 µs"]
        );
        assert_eq!(at(linear, 0.0, 170.0, 250.0), ["0", "50 µs", "100 µs", "150 µs"]);
        assert_eq!(at(TIME, 1.0, 1e7, 700.0), ["1 µs", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s", "10 s"]);
        assert_eq!(at(TIME, 1.0, 1e7, 250.0), ["1 µs", "100 µs", "10 ms", "1 s"]);
        assert_eq!(at(TIME, 30.0, 600.0, 600.0), ["50 µs", "100 µs", "200 µs", "500 µs"]);
        assert_eq!(at(TIME, 40.0, 200.0, 640.0), ["50 µs", "100 µs", "150 µs", "200 µs"]);
        assert_eq!(at(TIME, 30.0, 60.0, 240.0), ["30 µs", "40 µs", "50 µs", "60 µs"]);
        assert_eq!([0.0, 0.05, 3.0, 20_000.0, 2e6].map(|v| PART.label(v)), ["0", "0.05", "3", "20k", "2M"]);
        assert_eq!(at(Axis::counts("members"), 0.0, 3.1, 600.0), ["0", "1", "2", "3"], "no half members");
        assert_eq!(at(Axis::counts("members"), 0.0, 9.2, 240.0), ["0", "5"]);
        assert_eq!([0.5, 2_500.0].map(|v| TIME.label(v)), ["500 ns", "2.5 ms"]);
    }

    #[test]
    fn every_line_has_its_own_entry_in_the_key() {
        let line = |i| Series { name: format!("line {i}"), points: vec![(1.0, 0.5), (10.0, f64::from(i))], ..Series::default() };
        let series: Vec<Series> = (0..19).map(line).collect();
        let figure = chart(&Axes { title: "t", x: TIME, y: PART }, &series).unwrap();
        let mut swatches: Vec<String> = figure.key.iter().map(|entry| entry.swatch.html()).collect();
        swatches.sort_unstable();
        swatches.dedup();
        assert_eq!(swatches.len(), 19, "no two look alike");
        let file = figure.file();
        assert!(file.starts_with("<svg ") && file.contains("line 18") && file.contains("prefers-color-scheme:dark"));
        assert!(figure.html().contains("line 18"));
    }

    #[test]
    fn charts_are_drawn_on_all_axes_and_refuse_emptiness() {
        let series = [Series { name: "a & b".into(), points: vec![(1.0, 0.5), (100.0, 0.0), (1e6, 1.0)], ..Series::default() }];
        for (log_x, log_y) in [(true, true), (true, false), (false, true), (false, false)] {
            let (x, y) = (Axis { log: log_x, ..TIME }, Axis { log: log_y, ..PART });
            let html = chart(&Axes { title: "t", x, y }, &series).unwrap().html();
            assert!(html.contains("a &amp; b") && html.matches("<polyline").count() >= 2 && !html.contains("NaN"), "{html}");
        }
        assert!(chart(&Axes { title: "t", x: TIME, y: TIME }, &[]).is_err());
        let level = [Series { name: "level".into(), points: vec![(5.0, 5.0)], ..Series::default() }];
        for log in [true, false] {
            let axes = Axes { title: "t", x: Axis { log, ..TIME }, y: Axis { log, ..PART } };
            assert!(chart(&axes, &level).unwrap().wide.contains("<circle"), "one point is a mark");
        }
        // Bars are drawn, and there is room for them.
        let bars = [Series {
            spans: vec![(2.0, 1.0, 900.0), (3.0, 0.0, 5.0)],
            points: vec![(2.0, 7.0), (3.0, 2.0)],
            ..level[0].clone()
        }];
        let of = |log| chart(&Axes { title: "t", x: Axis::counts("n"), y: Axis { log, ..PART } }, &bars).unwrap().wide;
        let lines = |svg: &str| svg.matches("<polyline").count();
        assert_eq!(lines(&of(false)) - lines(&of(true)), 1, "0 has no place on a logarithmic axis");
        assert_eq!(of(true).matches("<circle").count(), 2);
        assert!(of(false).contains("800"), "the longest bar is within the frame");
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
}
