//! The paper's Tab. 2, remade: detectors beside each other, ours and theirs measured here, and the paper's own figures apart.

use crate::stats::human_us;

/// One detector.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Which.
    pub approach: String,
    /// How many crashes; `None` for figures of the paper.
    pub n: Option<usize>,
    /// Mean and maximum of an application's crash, µs.
    pub application_us: Option<(f64, f64)>,
    /// A dead operating system, µs, or why there is no such number.
    pub system: Cell,
    /// The worst case, µs.
    pub catastrophe: Cell,
}

/// A time, and what kind of number it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Cell {
    /// Nothing is known.
    #[default]
    Blank,
    /// µs, and where the number comes from.
    Us(f64, &'static str),
    /// There is none, and why.
    None(&'static str),
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Cell::Blank => String::new(),
            Cell::Us(us, "") => human_us(*us),
            Cell::Us(us, kind) => format!("{} ({kind})", human_us(*us)),
            Cell::None(why) => (*why).into(),
        }
    }
}

/// Above the columns, as the paper has them.
pub const HEADERS: [&str; 6] = ["", ">n", ">A avg", ">A max", ">OS", ">C timeout"];
/// What the letters mean.
pub const LEGEND: &str =
    "A: crash of an application; OS: of the operating system; C: the worst case, when nothing is left to report";
/// What must be said of [`paper`].
pub const PAPER: &str = "The paper's own figures (FiDe, Tab. 2): not measured here, on its authors' machines and networks, \
                         in part taken from the publications of the others";

/// The table in the paper.
#[must_use]
pub fn paper() -> Vec<Row> {
    let row = |approach: &str, avg, max, timeouts: Option<(f64, f64)>| Row {
        approach: approach.into(),
        n: None,
        application_us: Some((avg, max)),
        system: timeouts.map_or(Cell::Blank, |t| Cell::Us(t.0, "")),
        catastrophe: timeouts.map_or(Cell::Blank, |t| Cell::Us(t.1, "")),
    };
    vec![
        row("FiDe", 4.58, 26.54, Some((45.0, 45.0))),
        row("uKharon-FD", 17.39, 193.56, Some((30.0, 1_000.0))),
        row("X-Lane", 354.75, 718.54, Some((600.0, 600.0))),
        row("Falcon", 496.29, 169_000.0, Some((204_000.0, 3e8))),
        row("Zookeeper", 3_000.0, 12_000.0, None),
        row("Panorama", 2_000.0, 8_000.0, None),
    ]
}

/// As text, a cell for each of [`HEADERS`].
#[must_use]
pub fn cells(rows: &[Row]) -> Vec<Vec<String>> {
    let time = |us: Option<f64>| us.map(human_us).unwrap_or_default();
    rows.iter()
        .map(|r| {
            vec![
                r.approach.clone(),
                r.n.map(|n| n.to_string()).unwrap_or_default(),
                time(r.application_us.map(|a| a.0)),
                time(r.application_us.map(|a| a.1)),
                r.system.text(),
                r.catastrophe.text(),
            ]
        })
        .collect()
}

/// For a terminal: columns as wide as what they hold.
#[must_use]
pub fn lines(rows: &[Row]) -> Vec<String> {
    let mut all = vec![HEADERS.map(|h| h.trim_start_matches('>').to_string()).to_vec()];
    all.extend(cells(rows));
    let width = |column: usize| all.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEADERS.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let padded = cells.map(|(i, (cell, &w))| if i == 0 { format!("{cell:<w$}") } else { format!("{cell:>w$}") });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    all.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fide_tab_2_as_it_is_printed() {
        assert_eq!(
            lines(&paper()).join("\n"),
            "            n   A avg   A max      OS  C timeout\n\
             FiDe           4.6 µs   27 µs   45 µs      45 µs\n\
             uKharon-FD      17 µs  194 µs   30 µs     1.0 ms\n\
             X-Lane         355 µs  719 µs  600 µs     600 µs\n\
             Falcon         496 µs  169 ms  204 ms    300.0 s\n\
             Zookeeper      3.0 ms   12 ms\n\
             Panorama       2.0 ms  8.0 ms"
        );
    }

    #[test]
    fn a_number_says_what_it_is() {
        let row = Row {
            approach: "etcd".into(),
            n: Some(20),
            application_us: Some((2e6, 3e6)),
            system: Cell::Us(2e6, "granted"),
            catastrophe: Cell::None("never"),
        };
        assert_eq!(cells(&[row])[0], ["etcd", "20", "2.0 s", "3.0 s", "2.0 s (granted)", "never"]);
    }
}
