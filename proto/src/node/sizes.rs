//! How large a packet may be that reaches another host.
//!
//! # In one head
//! A gate that is lower than the lorry stops every lorry, and lets every car pass: on the road it looks open. So a lorry is sent
//! now and then. If it does not come back, and a car does, smaller lorries show how high the gate is.
//!
//! # Rule
//! Once a second every host is asked, on every path, by an echo request as large as the interface allows. If `MISSED` in a row
//! are not answered, it is asked by several sizes at once, the smallest of which everybody answers who answers at all; the
//! largest that comes back is what passes (RFC 8899, but that a path's ends are asked and not a flow). Nothing larger is sent on that
//! path, to anybody, for as long as that host is there and larger ones do not come back.
//! Where not even the smallest is answered (ICMP is filtered), or none above it (large ones are), nothing is known.

use fide_wire::PATHS;
use std::collections::BTreeMap;

/// So many large questions in a row that were not answered are no chance.
const MISSED: u8 = 2;
/// What is tried below the full size: tunnels, IPv6's minimum, what all frames but the largest fit in, and below.
const TRIED: [u16; 6] = [1450, 1400, 1350, 1280, 1200, 576];
/// What everybody answers who answers: an echo request that carries next to nothing.
const SMALL: u16 = 64;
/// Hosts that are asked in one second: questions leave between two heartbeats.
const AT_ONCE: usize = 16;

/// A question: which host, on which path, by a packet of how many bytes.
pub type Ask = (u32, usize, u16);

/// News of what passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passes {
    /// To and from which host.
    pub node: u32,
    /// On which path.
    pub path: usize,
    /// Bytes of the largest packet that does; `None`: all do that the interface takes.
    pub limit: Option<u16>,
    /// What the interface takes.
    pub full: u16,
}

/// What is known of one path of a host.
#[derive(Clone, Debug, Default)]
struct Size {
    asked: Vec<u16>,
    answered: Vec<u16>,
    /// Large questions in a row that were not answered.
    missed: u8,
    limit: Option<u16>,
    full: u16,
}

/// What is known of all hosts.
#[derive(Clone, Debug, Default)]
pub struct Sizes {
    of: BTreeMap<u32, [Size; PATHS]>,
    /// Who is asked next, where not all can be.
    next: u32,
}

impl Size {
    /// Makes something of the answers to the last questions. Whether what passes has changed.
    fn judge(&mut self) -> bool {
        let answered = std::mem::take(&mut self.answered);
        let asked = std::mem::take(&mut self.asked);
        let before = self.limit;
        if answered.contains(&self.full) {
            (self.missed, self.limit) = (0, None);
        } else if asked.contains(&self.full) {
            self.missed = self.missed.saturating_add(1);
            if asked.contains(&SMALL) {
                let largest = answered.iter().copied().filter(|size| *size > SMALL).max();
                // A single answer that is lost among many questions is no new limit.
                self.limit =
                    largest.filter(|_| answered.contains(&SMALL)).max(self.limit.filter(|_| !self.missed.is_multiple_of(MISSED)));
            }
        }
        before != self.limit
    }

    fn ask(&mut self, full: u16) -> &[u16] {
        if self.full != full {
            *self = Self { full, ..Self::default() };
        }
        self.asked.push(full);
        if self.missed >= MISSED {
            // Where packets are lost by chance, four at once hardly are.
            self.asked.extend([full; 3]);
            self.asked.extend(TRIED.iter().filter(|size| **size < full));
            self.asked.push(SMALL);
        }
        &self.asked
    }
}

impl Sizes {
    /// A second is over. `full`: what the interface of each path takes. `hosts`: who is known, and heard on which paths. Gives whom to ask,
    /// and what is news.
    pub fn tick(
        &mut self,
        full: [Option<u16>; PATHS],
        hosts: impl IntoIterator<Item = (u32, [bool; PATHS])>,
    ) -> (Vec<Ask>, Vec<Passes>) {
        let hosts: BTreeMap<u32, [bool; PATHS]> = hosts.into_iter().collect();
        let mut news = Vec::new();
        self.of.retain(|node, _| hosts.contains_key(node));
        for (node, sizes) in &mut self.of {
            for (path, size) in sizes.iter_mut().enumerate() {
                if size.judge() {
                    news.push(Passes { node: *node, path, limit: size.limit, full: size.full });
                }
            }
        }
        let mut asks = Vec::new();
        let turn: Vec<u32> =
            hosts.range(self.next..).chain(hosts.range(..self.next)).map(|(node, _)| *node).take(AT_ONCE).collect();
        self.next = turn.last().map_or(0, |last| last.wrapping_add(1));
        for node in turn {
            let sizes = self.of.entry(node).or_default();
            for (path, full) in full.iter().enumerate() {
                if let Some(full) = full.filter(|full| *full > SMALL && hosts[&node][path]) {
                    asks.extend(sizes[path].ask(full).iter().map(|size| (node, path, *size)));
                }
            }
        }
        (asks, news)
    }

    /// A question was answered.
    pub fn answered(&mut self, node: u32, path: usize, size: u16) {
        if let Some(of) = self.of.get_mut(&node).and_then(|sizes| sizes.get_mut(path))
            && of.asked.contains(&size)
            && !of.answered.contains(&size)
        {
            of.answered.push(size);
        }
    }

    /// The largest packet that reaches all hosts on a path; `None`: whatever the interface takes.
    #[must_use]
    pub fn limit(&self, path: usize) -> Option<u16> {
        self.of.values().filter_map(|sizes| sizes.get(path)?.limit).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: [Option<u16>; PATHS] = [Some(1500), None];

    /// Seconds in which what is at most this large passes; what was news, and how often was asked.
    fn run(sizes: &mut Sizes, seconds: u32, passes: impl Fn(u16) -> bool) -> (Vec<Option<u16>>, usize) {
        let (mut all, mut asked) = (Vec::new(), 0);
        for _ in 0..seconds {
            let (asks, news) = sizes.tick(FULL, [(7, [true; PATHS])]);
            asked += asks.len();
            all.extend(news.iter().map(|news| news.limit));
            for (node, path, size) in asks.into_iter().filter(|(.., size)| passes(*size)) {
                sizes.answered(node, path, size);
            }
        }
        (all, asked)
    }

    #[test]
    fn a_gate_on_the_way_is_found_in_four_seconds_and_told_once() {
        let mut sizes = Sizes::default();
        assert_eq!(run(&mut sizes, 10, |_| true), (vec![], 10), "one question a second");
        assert_eq!(run(&mut sizes, 4, |size| size <= 1200).0, [Some(1200)]);
        assert_eq!((sizes.limit(0), sizes.limit(1)), (Some(1200), None));
        assert_eq!(run(&mut sizes, 100, |size| size <= 1200).0, []);
        assert_eq!(run(&mut sizes, 3, |_| true).0, [None], "it is lifted");
        assert_eq!(sizes.limit(0), None);
    }

    #[test]
    fn what_nobody_answers_says_nothing() {
        let mut sizes = Sizes::default();
        assert_eq!(run(&mut sizes, 20, |_| false).0, [], "ICMP is filtered");
        assert_eq!(run(&mut sizes, 20, |size| size <= 100).0, [], "large questions are");
    }

    #[test]
    fn questions_that_are_lost_now_and_then_are_no_gate() {
        let mut sizes = Sizes::default();
        let mut state = 1_u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let mut lost = 0;
        for _ in 0..10_000 {
            let (asks, news) = sizes.tick(FULL, [(7, [true; PATHS])]);
            assert!(news.iter().all(|news| news.limit.is_none_or(|limit| limit >= 1350)), "{news:?}");
            lost += news.iter().filter(|news| news.limit.is_some()).count();
            for (node, path, size) in asks {
                if random() % 100 >= 5 {
                    sizes.answered(node, path, size);
                }
            }
        }
        assert_eq!(lost, 0, "in three hours with 5 % of loss");
    }

    #[test]
    fn who_is_gone_limits_nobody_and_all_have_their_turn() {
        let mut sizes = Sizes::default();
        run(&mut sizes, 5, |size| size <= 1300);
        assert_eq!(sizes.limit(0), Some(1280));
        let many = || (1..=200).map(|node| (node, [true; PATHS]));
        let mut asked = std::collections::BTreeSet::new();
        for _ in 0..200_usize.div_ceil(AT_ONCE) {
            asked.extend(sizes.tick(FULL, many()).0.into_iter().map(|(node, ..)| node));
        }
        assert_eq!(asked.len(), 200);
        sizes.tick(FULL, []);
        assert_eq!(sizes.limit(0), None);
    }
}
