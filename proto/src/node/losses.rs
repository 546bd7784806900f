//! Paths that lose a part of what is sent.
//!
//! # Rule
//! Heartbeats are numbered, so what is missing is known ([`crate::detector::PathArrival::lost`]). A path from a host *loses* when of the
//! heartbeats of `SECONDS` seconds at least one of `ONE_OF` is missing, and some were in most of these seconds: what is lost at once (a
//! queue that overflows, a switch that learns) is no lasting fault. It does no more when in `QUIET` seconds in a row hardly any were.
//! A path on which nothing comes at all is *down*, which the detector tells.

use fide_wire::PATHS;
use std::collections::{BTreeMap, VecDeque};

const SECONDS: usize = 4;
/// One heartbeat of so many.
const ONE_OF: u64 = 100;
/// Fewer are no rate.
const FEWEST: u64 = 8;
const QUIET: u8 = 10;
/// Of these a path is called calm.
const CALM: u8 = 2;
/// So many times fewer than [`ONE_OF`] are hardly any.
const HARDLY: u64 = 5;

/// News of a path from a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Whose heartbeats.
    pub node: u32,
    /// On which path.
    pub path: usize,
    /// How many were missing, of how many, in the last seconds; none: it loses no more.
    pub lost: u64,
    /// Of so many.
    pub of: u64,
}

#[derive(Clone, Debug, Default)]
struct Window {
    /// Arrived and lost, cumulative, a second ago.
    last: Option<(u64, u64)>,
    /// The same of each of the last seconds.
    seconds: VecDeque<(u64, u64)>,
    quiet: u8,
    is_told: bool,
}

/// What is known of all paths.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    of: BTreeMap<u32, [Window; PATHS]>,
}

impl Window {
    /// Lost, and all, where that is news; nothing lost: no more.
    fn second(&mut self, arrived: u64, lost: u64) -> Option<(u64, u64)> {
        let (arrived_before, lost_before) = self.last.replace((arrived, lost))?;
        // Another incarnation begins anew.
        let second = (arrived.checked_sub(arrived_before)?, lost.checked_sub(lost_before)?);
        if second.0 == 0 {
            return None;
        }
        self.seconds.push_back(second);
        if self.seconds.len() > SECONDS {
            self.seconds.pop_front();
        }
        let (arrived, lost) = self.seconds.iter().fold((0, 0), |(a, l), (arrived, lost)| (a + arrived, l + lost));
        let with_loss = self.seconds.iter().filter(|(_, lost)| *lost > 0).count();
        let is_quiet = second.1 * ONE_OF * HARDLY <= second.0;
        self.quiet = if is_quiet { self.quiet.saturating_add(1) } else { 0 };
        if self.is_told {
            self.is_told = self.quiet < QUIET;
            return (!self.is_told).then_some((0, arrived + lost));
        }
        self.is_told = with_loss >= SECONDS - 1 && lost >= FEWEST && lost * ONE_OF >= arrived + lost;
        self.is_told.then_some((lost, arrived + lost))
    }
}

impl Losses {
    /// A second is over: how many heartbeats of each host have arrived and were lost on each path, ever. Gives what is news.
    pub fn tick(&mut self, rows: impl IntoIterator<Item = (u32, [(u64, u64); PATHS])>) -> Vec<Loss> {
        let rows: BTreeMap<u32, [(u64, u64); PATHS]> = rows.into_iter().collect();
        self.of.retain(|node, _| rows.contains_key(node));
        let mut news = Vec::new();
        for (node, row) in rows {
            let windows = self.of.entry(node).or_default();
            for (path, (window, (arrived, lost))) in windows.iter_mut().zip(row).enumerate() {
                news.extend(window.second(arrived, lost).map(|(lost, of)| Loss { node, path, lost, of }));
            }
        }
        news
    }

    /// Whether of the heartbeats of that host, by every path by which some come, hardly any were missing for some seconds.
    #[must_use]
    pub fn is_calm(&self, node: u32) -> bool {
        let windows = self.of.get(&node).into_iter().flatten();
        windows.filter(|window| window.last.is_some_and(|(arrived, _)| arrived != 0)).all(|window| window.quiet >= CALM)
    }

    /// Whose heartbeats a path loses, and whose not.
    #[must_use]
    pub fn on(&self, path: usize) -> (Vec<u32>, Vec<u32>) {
        let heard = self.of.iter().filter(|(_, windows)| windows[path].last.is_some_and(|(arrived, _)| arrived != 0));
        let (loses, does_not): (Vec<_>, Vec<_>) = heard.partition(|(_, windows)| windows[path].is_told);
        let nodes = |of: Vec<(&u32, _)>| of.into_iter().map(|(node, _)| *node).collect();
        (nodes(loses), nodes(does_not))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds of 500 heartbeats, of which so many are lost in each.
    fn run(losses: &mut Losses, row: &mut (u64, u64), lost: &[u64]) -> Vec<(u64, u64)> {
        let mut news = Vec::new();
        for lost in lost {
            *row = (row.0 + 500 - lost, row.1 + lost);
            news.extend(losses.tick([(7, [*row, (0, 0)])]).into_iter().map(|loss| (loss.lost, loss.of)));
        }
        news
    }

    #[test]
    fn what_is_lost_again_and_again_is_told_with_its_rate_and_its_end() {
        let (mut losses, mut row) = (Losses::default(), (0, 0));
        assert_eq!(run(&mut losses, &mut row, &[0; 20]), []);
        assert_eq!(run(&mut losses, &mut row, &[100; 4]), [(300, 2000)], "in three seconds");
        assert_eq!(losses.on(0), (vec![7], vec![]));
        assert!(!losses.is_calm(7));
        assert_eq!(run(&mut losses, &mut row, &[5; 60]), [], "once");
        assert!(!losses.is_calm(7));
        run(&mut losses, &mut row, &[0; 2]);
        assert!(losses.is_calm(7), "sooner than it is told");
        assert_eq!(run(&mut losses, &mut row, &[0; 8]), [(0, 2000)]);
        assert_eq!(losses.on(0), (vec![], vec![7]));
        assert_eq!(run(&mut losses, &mut row, &[6; 10]).len(), 1, "one of a hundred is told");
    }

    #[test]
    fn what_is_lost_at_once_is_no_rate_nor_a_path_that_is_down() {
        let (mut losses, mut row) = (Losses::default(), (0, 0));
        run(&mut losses, &mut row, &[0; 5]);
        assert_eq!(run(&mut losses, &mut row, &[400, 0, 0, 0, 0, 300, 100, 0, 0, 0]), []);
        assert_eq!(run(&mut losses, &mut row, &[500; 20]), [], "nothing comes");
        assert_eq!(run(&mut losses, &mut row, &[1; 600]), [], "two of a thousand");
        // The next incarnation.
        row = (0, 0);
        assert_eq!(run(&mut losses, &mut row, &[0; 20]), []);
    }
}
