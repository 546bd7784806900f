//! Which questions come back by which receive queue (SafeTimer §5.1).
//!
//! Where an interface has several receive queues, an echo's answer comes by the one that its two addresses hash to, and with few hosts most queues get none: no
//! barrier. The answer to a SYN comes by the queue that its ports hash to as well, so each queue can be reached: many ports are tried at once,
//! spread over those who may answer, and the ones that reached a queue are asked from there alone the next time. Nothing is sent ahead of need, and where nobody
//! answers (a firewall) seldom.
//!
//! Pure: what was noted in the queues comes in, what is to be asked goes out.

use fide_wire::PATHS;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Ports tried for each queue that nothing is known of: one of eight is left out by 1 in 50 of these tries, and is tried again.
const TRIES: usize = 4;
/// Questions of one round: their place is the last byte of their number.
const ROUND_MAX: usize = 256;
/// Rounds whose answers still count.
const ROUNDS: usize = 4;
/// So long an answer is looked for, every [`LOOK_NS`].
const WAIT_NS: u64 = 20_000_000;
const LOOK_NS: u64 = 100_000;
/// From one search that nobody answered to the next, twice as long each time.
const PAUSE_NS: u64 = 50_000_000;
const PAUSE_MAX_NS: u64 = 60_000_000_000;
/// Where ports begin that nobody has fixed.
const PORTS: u16 = 0x8000;

/// Whom to ask, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steered {
    /// The node.
    pub node: u32,
    /// From which port.
    pub port: u16,
    /// What the answer repeats.
    pub number: u32,
}

/// What is known of every path.
#[derive(Debug, Default)]
pub struct Steering {
    ways: [Way; PATHS],
}

#[derive(Debug, Default)]
struct Way {
    /// By queue, counted from 1.
    known: BTreeMap<u32, Known>,
    rounds: VecDeque<Round>,
    search_at_ns: u64,
    pause_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    node: u32,
    port: u16,
    /// It was asked, and nothing has come since.
    unanswered: bool,
}

#[derive(Debug)]
struct Round {
    /// All but the last byte.
    number: u32,
    asked_ns: u64,
    sent: Vec<(u32, u16)>,
    wanted: BTreeSet<u32>,
    /// What has come, by queue.
    came: BTreeMap<u32, u32>,
}

impl Steering {
    /// What to ask now so that an answer comes by each of these queues of a path, which has `queues`. `answerers`: nodes that may answer.
    pub fn ask(
        &mut self,
        path: usize,
        queues: usize,
        wanted: impl IntoIterator<Item = u32>,
        answerers: &[u32],
        now: u64,
        random: u64,
    ) -> Vec<Steered> {
        let Some(way) = self.ways.get_mut(path).filter(|_| !answerers.is_empty()) else { return Vec::new() };
        let wanted: BTreeSet<u32> = wanted.into_iter().collect();
        // Whoever did not answer when it was asked last is not believed to.
        way.known.retain(|queue, known| !(known.unanswered && wanted.contains(queue)) && answerers.contains(&known.node));
        let mut sent = Vec::new();
        let mut missing = 0;
        for queue in &wanted {
            match way.known.get_mut(queue) {
                Some(known) if sent.len() < ROUND_MAX => {
                    known.unanswered = true;
                    sent.push((known.node, known.port));
                }
                Some(_) => {}
                None => missing += 1,
            }
        }
        if missing > 0 && now >= way.search_at_ns {
            way.pause_ns = (2 * way.pause_ns).clamp(PAUSE_NS, PAUSE_MAX_NS);
            way.search_at_ns = now.saturating_add(way.pause_ns);
            let tries = (TRIES * queues).min(ROUND_MAX - sent.len());
            let first = (random >> 32) as u16;
            let port = |i: usize| PORTS | (first.wrapping_add(i as u16) & (PORTS - 1));
            sent.extend((0..tries).map(|i| (answerers[i % answerers.len()], port(i))));
        }
        if sent.is_empty() {
            return Vec::new();
        }
        let number = random as u32 & !0xff;
        let of = |(i, (node, port)): (usize, &(u32, u16))| Steered { node: *node, port: *port, number: number | i as u32 };
        let questions = sent.iter().enumerate().map(of).collect();
        way.rounds.push_back(Round { number, asked_ns: now, sent, wanted, came: BTreeMap::new() });
        way.rounds.drain(..way.rounds.len().saturating_sub(ROUNDS));
        questions
    }

    /// What was noted last in the queues of a path: which queue, and the number of the answer. Returns the queues that were emptied, as of when.
    pub fn came(&mut self, path: usize, noted: &[(u32, u32)]) -> Vec<(u32, u64)> {
        let Some(way) = self.ways.get_mut(path) else { return Vec::new() };
        let mut emptied = Vec::new();
        for (queue, number) in noted {
            let Some(round) = way.rounds.iter_mut().find(|round| round.number == number & !0xff) else { continue };
            let Some((node, port)) = round.sent.get((number & 0xff) as usize).copied() else { continue };
            if round.came.insert(*queue, *number) == Some(*number) {
                continue; // seen before
            }
            emptied.push((*queue, round.asked_ns));
            way.known.retain(|_, known| (known.node, known.port) != (node, port));
            way.known.insert(*queue, Known { node, port, unanswered: false });
            (way.pause_ns, way.search_at_ns) = (0, 0);
        }
        emptied
    }

    /// Whether an answer that is wanted may come in a moment.
    #[must_use]
    pub fn is_waiting(&self, path: usize, now: u64) -> bool {
        self.ways.get(path).and_then(|way| way.rounds.back()).is_some_and(|round| {
            now.saturating_sub(round.asked_ns) < WAIT_NS && round.wanted.iter().any(|queue| !round.came.contains_key(queue))
        })
    }

    /// When to look for answers, if one may come: nobody is woken by them.
    #[must_use]
    pub fn look_at(&self, now: u64) -> Option<u64> {
        (0..PATHS).any(|path| self.is_waiting(path, now)).then(|| now.saturating_add(LOOK_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// The answers of hosts that all answer, by an interface that puts them into queues by their ports; the last one of each queue.
    fn noted(questions: &[Steered], queues: u32) -> Vec<(u32, u32)> {
        let by = |q: &Steered| 1 + (u32::from(q.port).wrapping_mul(0x9e37_79b9) >> 16) % queues;
        let last: BTreeMap<u32, u32> = questions.iter().map(|q| (by(q), q.number)).collect();
        last.into_iter().collect()
    }

    #[test]
    fn every_queue_is_found_and_then_asked_for_by_one_question() {
        let (mut s, queues) = (Steering::default(), 8);
        let mut found = BTreeSet::new();
        for round in 0..10u64 {
            let now = round * 20 * MS;
            let asked = s.ask(0, 8, 1..=queues, &[5, 6], now, 0x1234_5678_9abc_def0 + (round << 40));
            let came = s.came(0, &noted(&asked, queues));
            assert!(came.iter().all(|(_, as_of)| *as_of == now));
            found.extend(came.iter().map(|(queue, _)| *queue));
            if found.len() == 8 {
                break;
            }
        }
        assert_eq!(found.len(), 8);
        assert!(!s.is_waiting(0, 0) && s.look_at(0).is_none());
        let asked = s.ask(0, 8, 1..=queues, &[5, 6], 500 * MS, 7 << 32 | 0xaa00);
        assert_eq!(asked.len(), 8);
        assert!(s.is_waiting(0, 500 * MS) && s.look_at(500 * MS) == Some(500 * MS + LOOK_NS));
        assert_eq!(s.came(0, &noted(&asked, queues)).len(), 8);
        assert_eq!(s.came(0, &noted(&asked, queues)), [], "each counts once");
        assert!(!s.is_waiting(0, 500 * MS));
        assert_eq!(s.ask(0, 8, [3], &[5, 6], 501 * MS, 0xbb00).len(), 1);
    }

    #[test]
    fn who_does_not_answer_is_asked_seldom_and_no_longer_believed_to() {
        let mut s = Steering::default();
        let sent: usize = (0..1000).map(|n| s.ask(1, 4, [2], &[5], n * 20 * MS, n << 32 | n << 8).len()).sum();
        assert!((16..=10 * 16).contains(&sent), "{sent} in twenty seconds");
        assert!(!s.is_waiting(1, 1000 * 20 * MS + WAIT_NS));
        // Known, and gone: others are tried.
        let mut s = Steering::default();
        let asked = s.ask(1, 4, [2], &[5], 0, 0x1100);
        s.came(1, &[(2, asked[0].number)]);
        assert_eq!(s.ask(1, 4, [2], &[5], MS, 0x2200).len(), 1);
        assert_eq!(s.ask(1, 4, [2], &[5], 30 * MS, 0x3300).len(), 16);
        // As is one that may not be asked any more; and nobody is nobody.
        let mut s = Steering::default();
        let asked = s.ask(1, 4, [2], &[5], 0, 0x1100);
        s.came(1, &[(2, asked[0].number)]);
        assert!(s.ask(1, 4, [2], &[6], MS, 0x2200).iter().all(|q| q.node == 6));
        assert_eq!(s.ask(1, 4, [2], &[], MS, 0x2200), []);
    }

    #[test]
    fn an_answer_that_comes_by_another_queue_is_known_there_and_strangers_mean_nothing() {
        let mut s = Steering::default();
        let asked = s.ask(0, 2, [1, 2], &[5], 0, 0x1100);
        assert_eq!(s.came(0, &[(1, asked[3].number)]), [(1, 0)]);
        assert_eq!(s.came(0, &[(2, asked[3].number)]), [(2, 0)], "the interface was told to hash otherwise");
        let again = s.ask(0, 2, [2], &[5], MS, 0x2200);
        assert_eq!((again.len(), again[0].port), (1, asked[3].port));
        assert_eq!(s.came(0, &[(1, 0x9900), (2, 0x2200 | 200), (3, u32::MAX)]), [], "others' numbers, and one that was not sent");
        assert_eq!(s.came(9, &[(1, 0x2200)]), []);
    }

    #[test]
    fn rounds_are_bounded_and_so_is_what_they_send() {
        let mut s = Steering::default();
        for n in 0..100u64 {
            let asked = s.ask(0, 64, 1..=64, &[5, 6, 7], n * 1_000_000 * MS, n << 8);
            assert!(asked.len() <= ROUND_MAX);
            let _ = s.came(0, &noted(&asked, 64));
        }
        assert!(s.ways[0].rounds.len() <= ROUNDS && s.ways[0].known.len() <= 64);
    }
}
