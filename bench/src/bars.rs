//! The figures that SPECIFICATION.md promises, as numbers that a run can miss: `fide bench detect --check`.
//!
//! They hold on an otherwise idle machine of two shared cores. On a busy one a miss says something of the machine first.

use crate::stats::Case;

/// One promise: a number of a case that must not be above (or, for ratios, below) its bar.
struct Bar {
    case: &'static str,
    number: &'static str,
    bar: f64,
    at_least: bool,
}

const fn most(case: &'static str, number: &'static str, bar: f64) -> Bar {
    Bar { case, number, bar, at_least: false }
}

const BARS: [Bar; 11] = [
    most("sigkill idle rss=0", "p50", 100.0),
    most("sigkill idle rss=0", "p99", 400.0),
    most("sigkill stress rss=0", "p50", 100.0),
    most("sigkill stress rss=0", "p99", 300.0),
    most("sigkill stress rss=0", "max", 2_000.0),
    most("sigkill idle rss=0 dedicated", "p50", 60.0),
    most("silent-host idle hb=1ms", "p99", 5_000.0),
    most("footprint hosts=3 hb=1ms", "cpu_percent", 4.0),
    most("footprint hosts=3 hb=1ms", "rss_mb", 30.0),
    Bar { case: "sigkill idle rss=4G", number: "tcp_ratio_p50", bar: 1_500.0, at_least: true },
    Bar { case: "sigkill stress rss=4G", number: "tcp_ratio_p50", bar: 1_500.0, at_least: true },
];

/// What was missed, in words; empty when every bar that these cases have was reached.
#[must_use]
pub fn missed<'a>(cases: impl Iterator<Item = &'a Case>) -> Vec<String> {
    let mut missed = Vec::new();
    for case in cases {
        for b in BARS.iter().filter(|b| b.case == case.case) {
            let Some(found) = number(case, b.number) else {
                missed.push(format!("{}: {} was not measured", b.case, b.number));
                continue;
            };
            if if b.at_least { found < b.bar } else { found > b.bar } {
                let word = if b.at_least { "at least" } else { "at most" };
                missed.push(format!("{}: {} is {found:.1}, promised {word} {:.0}", b.case, b.number, b.bar));
            }
        }
    }
    missed
}

/// A number of a case by the name it has in JSON.
fn number(case: &Case, name: &str) -> Option<f64> {
    serde_json::to_value(case).ok().and_then(|v| v.get(name).or_else(|| v.get("values")?.get(name))?.as_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Samples;

    fn case(name: &str, us: &[u64]) -> Case {
        let mut samples = Samples::default();
        us.iter().for_each(|us| samples.push(us * 1_000));
        Case::new("detect", name, &mut samples)
    }

    #[test]
    fn a_bar_is_missed_by_the_number_it_is_about() {
        assert!(missed([case("sigkill idle rss=0", &[60, 90, 399])].iter()).is_empty());
        let late = missed([case("sigkill idle rss=0", &[60, 101, 401])].iter());
        assert_eq!(late.len(), 2, "{late:?}");
        assert!(late[0].starts_with("sigkill idle rss=0: p50 is 101.0, promised at most 100"), "{late:?}");
        assert!(missed([case("another case", &[9_000_000])].iter()).is_empty());
    }

    #[test]
    fn a_ratio_must_be_reached_and_what_is_absent_counts_as_missed() {
        let mut c = case("sigkill idle rss=4G", &[80]);
        assert_eq!(missed([c.clone()].iter()).len(), 1);
        c.values.insert("tcp_ratio_p50".into(), 1_499.0);
        assert_eq!(missed([c.clone()].iter()).len(), 1);
        c.values.insert("tcp_ratio_p50".into(), 2_700.0);
        assert!(missed([c].iter()).is_empty());
    }
}
