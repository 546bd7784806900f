//! Samples and what is said of them. Every sample is kept, the slow ones above all.

use serde::Serialize;
use std::collections::BTreeMap;

/// Times in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    values: Vec<u64>,
    sorted: bool,
}

/// A distribution in microseconds, as every benchmark tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// The smallest.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 99 % are not above.
    pub p99: f64,
    /// 99.9 % are not above. With fewer than 1000 samples this is the largest.
    pub p999: f64,
    /// The largest.
    pub max: f64,
}

/// One case of a benchmark: the JSON object that stands on a line of its own.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    /// Which benchmark.
    pub bench: &'static str,
    /// Which case.
    pub case: String,
    /// How many samples.
    pub n: usize,
    /// Of the numbers below.
    pub unit: &'static str,
    /// Of the whole.
    #[serde(flatten)]
    pub quantiles: Quantiles,
    /// Of its parts.
    pub steps: BTreeMap<String, Quantiles>,
    /// What else was measured in the same run, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub beside: BTreeMap<String, Beside>,
    /// Plain numbers that belong to the case.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, f64>,
    /// What a reader must know to believe the numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Something measured in the same crashes.
#[derive(Clone, Debug, Serialize)]
pub struct Beside {
    /// How many samples.
    pub n: usize,
    /// Of them.
    #[serde(flatten)]
    pub quantiles: Quantiles,
}

impl Samples {
    /// One more.
    pub fn push(&mut self, ns: u64) {
        self.values.push(ns);
        self.sorted = false;
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Ascending.
    pub fn sorted(&mut self) -> &[u64] {
        if !self.sorted {
            self.values.sort_unstable();
            self.sorted = true;
        }
        &self.values
    }

    /// The smallest sample that at least this part of all samples does not exceed (nearest rank). 0 without samples.
    pub fn quantile(&mut self, q: f64) -> u64 {
        let sorted = self.sorted();
        let rank = (q * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0)
    }

    /// How many of them a second has, one after the other; 0 without samples.
    #[must_use]
    pub fn rate(&self) -> f64 {
        let sum: f64 = self.values.iter().map(|&ns| ns as f64 / 1e9).sum();
        if sum > 0.0 { self.values.len() as f64 / sum } else { 0.0 }
    }

    /// The mean in microseconds, 0 without samples.
    #[must_use]
    pub fn mean_us(&self) -> f64 {
        let sum: f64 = self.values.iter().map(|&ns| ns as f64 / 1e3).sum();
        (sum / self.values.len().max(1) as f64 * 100.0).round() / 100.0
    }

    /// In microseconds.
    pub fn quantiles(&mut self) -> Quantiles {
        let mut us = |q| (self.quantile(q) as f64 / 10.0).round() / 100.0;
        Quantiles { min: us(0.0), p50: us(0.5), p99: us(0.99), p999: us(0.999), max: us(1.0) }
    }

    /// With how many there were.
    pub fn beside(&mut self) -> Beside {
        Beside { n: self.len(), quantiles: self.quantiles() }
    }

    /// How many exceed this.
    pub fn above(&mut self, ns: u64) -> usize {
        let sorted = self.sorted();
        sorted.len() - sorted.partition_point(|&v| v <= ns)
    }
}

impl Extend<u64> for Samples {
    fn extend<T: IntoIterator<Item = u64>>(&mut self, values: T) {
        self.values.extend(values);
        self.sorted = false;
    }
}

impl FromIterator<u64> for Samples {
    fn from_iter<T: IntoIterator<Item = u64>>(values: T) -> Self {
        let mut samples = Samples::default();
        samples.extend(values);
        samples
    }
}

impl Case {
    /// With nothing but its distribution.
    #[must_use]
    pub fn new(bench: &'static str, case: impl Into<String>, samples: &mut Samples) -> Self {
        Case {
            bench,
            case: case.into(),
            n: samples.len(),
            unit: "us",
            quantiles: samples.quantiles(),
            steps: BTreeMap::new(),
            beside: BTreeMap::new(),
            values: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    /// The line.
    #[must_use]
    pub fn json(&self) -> String {
        // Structs of strings and finite numbers are always JSON.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Microseconds for people: `84 µs`, `1.2 ms`, `130 ms`, `2.1 s`.
#[must_use]
pub fn human_us(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.1} µs"),
        us if us < 1_000.0 => format!("{us:.0} µs"),
        us if us < 10_000.0 => format!("{:.1} ms", us / 1e3),
        us if us < 1_000_000.0 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

/// Nanoseconds for people.
#[must_use]
pub fn human_ns(ns: u64) -> String {
    human_us(ns as f64 / 1e3)
}

/// A number with thousands set off.
#[must_use]
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples_that_happened() {
        let mut s: Samples = (1..=1000).rev().map(|n| n * 1000).collect();
        let q = s.quantiles();
        assert_eq!((q.min, q.p50, q.p99, q.p999, q.max), (1.0, 500.0, 990.0, 999.0, 1000.0));
        let mut one: Samples = [7_000].into_iter().collect();
        assert_eq!((one.quantiles().min, one.quantiles().p999, one.quantiles().max), (7.0, 7.0, 7.0));
        assert_eq!(Samples::default().quantiles(), Quantiles::default());
    }

    #[test]
    fn an_outlier_is_never_lost() {
        let mut s: Samples = std::iter::repeat_n(10_000, 999).chain([5_000_000]).collect();
        assert_eq!(s.quantiles().max, 5_000.0);
        assert_eq!((s.mean_us(), Samples::default().mean_us()), (14.99, 0.0));
        assert_eq!((s.above(10_000), s.above(9_999), s.above(5_000_000)), (1, 1000, 0));
    }

    #[test]
    fn a_case_is_the_object_that_was_promised() {
        let mut s: Samples = [1_000, 2_000, 3_000].into_iter().collect();
        let mut case = Case::new("detect", "sigkill idle rss=0", &mut s);
        case.steps.insert("hook".into(), s.quantiles());
        let json: serde_json::Value = serde_json::from_str(&case.json()).unwrap();
        assert_eq!((&json["bench"], &json["case"], &json["n"]), (&"detect".into(), &"sigkill idle rss=0".into(), &3.into()));
        assert_eq!((&json["unit"], json["p50"].as_f64(), json["p999"].as_f64()), (&"us".into(), Some(2.0), Some(3.0)));
        assert_eq!(json["steps"]["hook"]["max"].as_f64(), Some(3.0));
        assert!(!case.json().contains('\n'));
    }

    #[test]
    fn times_read_well() {
        for (us, text) in [(4.66, "4.7 µs"), (84.2, "84 µs"), (1_234.0, "1.2 ms"), (130_400.0, "130 ms"), (2_100_000.0, "2.1 s")]
        {
            assert_eq!(human_us(us), text);
        }
        assert_eq!((thousands(0), thousands(1_500), thousands(1_234_567)), ("0".into(), "1,500".into(), "1,234,567".into()));
    }
}
