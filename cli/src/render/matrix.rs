//! `fide status --matrix`: who hears whom.

use crate::style::{Paint, Style};
use fide_wire::control::{HostStatus, Status, Unheard};
use serde::Serialize;
use std::fmt::Write as _;

/// The matrix, for `--json` and for a terminal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Matrix {
    /// One row for each host: this one, and those that it knows.
    pub hears: Vec<Row>,
}

/// Whom one host hears.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The host.
    pub host: String,
    /// How long ago it reported that; absent: it has not. 0 for the host that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reported_age_ns: Option<u64>,
    /// By host: the paths on which it hears it.
    pub paths: Vec<Heard>,
}

/// On which paths a host is heard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Heard {
    /// Which host.
    pub host: String,
    /// These.
    pub paths: Vec<u8>,
}

impl Matrix {
    /// From what one agent knows: its own receive table, and the reports of the others.
    pub fn new(s: &Status) -> Self {
        let names: Vec<&str> = [s.node.as_str()].into_iter().chain(s.hosts.iter().map(|h| h.name.as_str())).collect();
        let all: Vec<u8> = s.paths.iter().map(|path| path.path).collect();
        let own = |of: &str| {
            let paths = s.hosts.iter().find(|h| h.name == of).map_or(&[][..], |h| &h.paths);
            paths.iter().zip(&all).filter(|(path, _)| path.up).map(|(_, path)| *path).collect()
        };
        let reported = |by: &HostStatus, of: &str| {
            let lacks = |path: &u8| by.unheard.iter().any(|Unheard { host, paths }| host == of && paths.contains(path));
            all.iter().copied().filter(|path| !lacks(path)).collect()
        };
        let row = |host: &str, reported_age_ns: Option<u64>, hears: &dyn Fn(&str) -> Vec<u8>| {
            let others = names.iter().filter(|other| **other != host && reported_age_ns.is_some());
            let paths = others.map(|other| Heard { host: (*other).to_owned(), paths: hears(other) }).collect();
            Row { host: host.to_owned(), reported_age_ns, paths }
        };
        let others = s.hosts.iter().map(|h| row(&h.name, h.reported_age_ns, &|of| reported(h, of)));
        Self { hears: [row(&s.node, Some(0), &own)].into_iter().chain(others).collect() }
    }

    /// One line for each host that hears, one column for each that is heard. Of more than so many hosts, those alone that are not heard by all,
    /// or do not hear all.
    pub fn render(&self, paths: usize, style: &Style) -> String {
        const COLUMNS: usize = 20;
        let is_whole = |row: &Row| row.reported_age_ns.is_some() && row.paths.iter().all(|heard| heard.paths.len() == paths);
        let is_heard = |of: &str| self.hears.iter().flat_map(|row| &row.paths).all(|h| h.host != of || h.paths.len() == paths);
        let rows: Vec<&Row> = self.hears.iter().collect();
        let shown: Vec<&Row> = if rows.len() <= COLUMNS {
            rows
        } else {
            rows.into_iter().filter(|row| !is_whole(row) || !is_heard(&row.host)).take(COLUMNS).collect()
        };
        let mut out = String::new();
        if shown.is_empty() {
            let _ = writeln!(out, "all {} hosts hear each other, on every path", self.hears.len());
            return out;
        }
        let width = shown.iter().map(|row| row.host.chars().count()).max().unwrap_or(0).min(14);
        let name = |host: &str| host.chars().take(width).collect::<String>();
        let _ = write!(out, "{:width$}    ", "");
        (1..=shown.len()).for_each(|column| _ = write!(out, "{column:>3}"));
        out.push('\n');
        for (at, row) in shown.iter().enumerate() {
            let _ = write!(out, "{:width$} {:>2} ", name(&row.host), at + 1);
            for column in &shown {
                let cell = match row.paths.iter().find(|heard| heard.host == column.host) {
                    None if column.host == row.host => "  .".to_owned(),
                    None => style.paint(Paint::Yellow, "  ?"),
                    Some(heard) if heard.paths.len() == paths => "  +".to_owned(),
                    Some(heard) if heard.paths.is_empty() => style.paint(Paint::Red, "  -"),
                    Some(heard) => style.paint(Paint::Yellow, &format!("{:>3}", heard.paths[0])),
                };
                out.push_str(&cell);
            }
            out.push('\n');
        }
        let hidden = self.hears.len() - shown.len();
        if hidden > 0 {
            let _ =
                writeln!(out, "{hidden} more hosts; those that are not shown hear each other, unless more than {COLUMNS} do not");
        }
        out.push_str("a line hears a column: + on every path, - on none, 0 or 1 on that path alone,\n? it has not reported\n");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_wire::control::{LocalPath, PathStatus};

    fn status(hosts: usize) -> Status {
        let path = |path| LocalPath { path, ..LocalPath::default() };
        let up = PathStatus { up: true, ..PathStatus::default() };
        let host = |at: usize| HostStatus {
            name: format!("h{at}"),
            paths: vec![up.clone(), up.clone()],
            reported_age_ns: Some(7),
            ..HostStatus::default()
        };
        Status { node: "h1".into(), paths: vec![path(0), path(1)], hosts: (2..=hosts).map(host).collect(), ..Status::default() }
    }

    #[test]
    fn a_matrix_says_who_hears_whom() {
        let mut s = status(3);
        s.hosts[0].unheard =
            vec![Unheard { host: "h1".into(), paths: vec![0, 1] }, Unheard { host: "h3".into(), paths: vec![0] }];
        s.hosts[0].paths[1].up = false;
        s.hosts[1].reported_age_ns = None;
        let matrix = Matrix::new(&s);
        let text = matrix.render(2, &Style::PLAIN);
        let expected = "        1  2  3\nh1  1   .  0  +\nh2  2   -  .  1\nh3  3   ?  ?  .\n";
        assert!(text.starts_with(expected), "{text}");
        let json = serde_json::to_string(&matrix).unwrap();
        assert!(
            json.contains(r#"{"host":"h2","reported_age_ns":7,"paths":[{"host":"h1","paths":[]},{"host":"h3","paths":[1]}]}"#),
            "{json}"
        );
    }

    #[test]
    fn twenty_hosts_fit_and_of_more_those_are_shown_that_do_not_hear_each_other() {
        let mut s = status(20);
        s.hosts.iter_mut().for_each(|h| h.name = format!("database-{}", h.name));
        let text = Matrix::new(&s).render(2, &Style::PLAIN);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let mut s = status(30);
        let of = |s: &Status| Matrix::new(s).render(2, &Style::PLAIN);
        assert_eq!(of(&s), "all 30 hosts hear each other, on every path\n");
        s.hosts[10].unheard = vec![Unheard { host: "h5".into(), paths: vec![0, 1] }];
        let text = of(&s);
        assert!(text.starts_with("         1  2\nh5   1   .  +\nh12  2   -  .\n28 more hosts"), "{text}");
    }
}
