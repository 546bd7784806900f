//! Columns that line up.

use crate::style::{Paint, Style};
use std::fmt::Write as _;
use std::ops::Range;

/// One field.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    paint: Paint,
}

impl Cell {
    /// In a colour.
    pub fn painted(text: impl Into<String>, paint: Paint) -> Self {
        Cell { text: text.into(), paint }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Cell::painted(text, Paint::Plain)
    }
}

/// A table. Headers that begin with `>` are for columns of numbers, which are set flush right.
#[derive(Debug)]
pub struct Table {
    headers: Vec<(String, bool)>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// With these headers.
    pub fn new(headers: &[&str]) -> Self {
        let header = |h: &&str| (h.trim_start_matches('>').to_string(), h.starts_with('>'));
        Table { headers: headers.iter().map(header).collect(), rows: Vec::new() }
    }

    /// One more row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let row: Vec<Cell> = cells.into_iter().collect();
        debug_assert_eq!(row.len(), self.headers.len());
        self.rows.push(row);
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// As lines, each indented.
    pub fn render(&self, style: &Style, indent: usize) -> String {
        let width = |text: &str| text.chars().count();
        let mut widths: Vec<usize> = self.headers.iter().map(|(h, _)| width(h)).collect();
        for row in &self.rows {
            for (w, cell) in widths.iter_mut().zip(row) {
                *w = (*w).max(width(&cell.text));
            }
        }
        let mut out = String::new();
        let parts = parts(&widths, indent, style.columns.map_or(usize::MAX, usize::from));
        let mut line = |cells: Vec<(&str, Paint)>| {
            for (n, part) in parts.iter().enumerate() {
                let mut text = " ".repeat(if n == 0 { indent } else { indent + CONTINUED });
                let last = part.end - 1;
                // What continues a row in which nothing is left is no line.
                if n > 0 && cells[part.clone()].iter().all(|(cell, _)| cell.is_empty()) {
                    continue;
                }
                for i in part.clone() {
                    let (cell, paint) = cells[i];
                    let space = " ".repeat(widths[i] - width(cell));
                    let painted = if cell.is_empty() { String::new() } else { style.paint(paint, cell) };
                    match (self.headers[i].1, i == last) {
                        (true, _) => text += &(space + &painted),
                        (false, true) => text += &painted,
                        (false, false) => text += &(painted + &space),
                    }
                    if i != last {
                        text += "  ";
                    }
                }
                let _ = writeln!(out, "{}", text.trim_end());
            }
        };
        if self.headers.iter().any(|(h, _)| !h.is_empty()) {
            line(self.headers.iter().map(|(h, _)| (h.as_str(), Paint::Dim)).collect());
        }
        for row in &self.rows {
            line(row.iter().map(|c| (c.text.as_str(), c.paint)).collect());
        }
        out
    }
}

/// Columns to the right of the first part of a table that does not fit are set on lines of their own.
const CONTINUED: usize = 4;

/// Which columns stand on one line: as many as fit, and at least one.
fn parts(widths: &[usize], indent: usize, columns: usize) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut used = indent;
    for (i, width) in widths.iter().enumerate() {
        match parts.last_mut() {
            Some(part) if used + 2 + width <= columns => {
                part.end = i + 1;
                used += 2 + width;
            }
            Some(_) => {
                parts.push(i..i + 1);
                used = indent + CONTINUED + width;
            }
            None => {
                parts.push(i..i + 1);
                used += width;
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_also_with_colours_and_greek() {
        let mut table = Table::new(&["NAME", ">AGE", "STATE"]);
        table.row(["a".into(), "12 µs".into(), Cell::painted("alive", Paint::Green)]);
        table.row(["longer".into(), "1 s".into(), "late".into()]);
        assert_eq!(table.render(&Style::PLAIN, 1), " NAME      AGE  STATE\n a       12 µs  alive\n longer    1 s  late\n");
        assert!(table.render(&Style { on: true, columns: None }, 1).contains("12 µs  \x1b[32malive\x1b[0m\n"));
    }

    #[test]
    fn a_table_wider_than_the_terminal_breaks_between_columns() {
        let mut table = Table::new(&["NAME", ">AGE", "JITTER p50 / max"]);
        table.row(["a".into(), "12 µs".into(), "1.12 ms / 1.25 ms".into()]);
        table.row(["b".into(), "never".into(), "".into()]);
        let narrow = Style { on: false, columns: Some(24) };
        let text = table.render(&narrow, 2);
        assert_eq!(text, "  NAME    AGE\n      JITTER p50 / max\n  a     12 µs\n      1.12 ms / 1.25 ms\n  b     never\n");
        assert!(text.lines().all(|line| line.chars().count() <= 24));
        let wide = Style { on: false, columns: Some(80) };
        assert_eq!(table.render(&wide, 2), table.render(&Style::PLAIN, 2));
    }
}
