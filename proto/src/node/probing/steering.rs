//! Which questions come back by which receive queue (SafeTimer §5.1).
//!
//! Where an interface has several receive queues, an echo's answer comes by the one that its two addresses hash to, and with few hosts most queues get none: no
//! barrier. The answer to a SYN comes by the queue that its ports hash to as well, so each queue can be reached: many ports are tried at once,
//! spread over those who may answer, and the ones that reached a queue are asked from there alone the next time. Nothing is sent ahead of need, and a queue that
//! is not reached is searched for ever more seldom.
//!
//! Pure: what was noted in the queues comes in, what is to be asked goes out.

use super::answerers::{ITSELF, is_reserved};
use fide_wire::PATHS;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Ports tried for each queue of the interface in one search.
const TRIES: usize = 4;
/// Questions of one round: their place is the last byte of their number.
const ROUND_MAX: usize = 256;
/// Rounds whose answers still count.
const ROUNDS: usize = 8;
/// So long an answer is looked for, every [`LOOK_NS`].
const WAIT_NS: u64 = 20_000_000;
const LOOK_NS: u64 = 100_000;
/// Who has not answered for so long is not believed to.
const ANSWER_NS: u64 = 5_000_000;
/// From one search for a queue to the next that may reach it, twice as long each time.
const PAUSE_NS: u64 = 50_000_000;
const PAUSE_MAX_NS: u64 = 60_000_000_000;
/// The longest one where nobody but this host itself is asked: it may be joined with itself at any time, and hears nothing of that.
const PAUSE_ITSELF_NS: u64 = 1_000_000_000;
/// Where ports begin that nobody has fixed, and how far apart those of a search are: NICs' hashes (Toeplitz) are linear, and neighbours fall into few queues.
const PORTS: u16 = 0x8000;
const STRIDE: u16 = 0x4e35;

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

/// A receive queue that an answer has come out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emptied {
    /// The queue, counted from 1.
    pub queue: u32,
    /// What came into it before this time has come out.
    pub as_of_ns: u64,
    /// The node that answered.
    pub by: u32,
}

/// What is known of every path.
#[derive(Clone, Debug, Default)]
pub struct Steering {
    ways: [Way; PATHS],
}

#[derive(Clone, Debug, Default)]
struct Way {
    /// By queue, counted from 1.
    known: BTreeMap<u32, Known>,
    /// Queues that were searched for and not reached since: when they may be again, and the pause before that.
    searched: BTreeMap<u32, (u64, u64)>,
    /// Who was asked last, where no host of the cluster was.
    alone_with: Vec<u32>,
    rounds: VecDeque<Round>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    node: u32,
    port: u16,
    /// It was asked then, and nothing has come since.
    unanswered_ns: Option<u64>,
}

#[derive(Clone, Debug)]
struct Round {
    /// All but the last byte.
    number: u32,
    asked_ns: u64,
    sent: Vec<(u32, u16)>,
    /// Queues that it may reach, and was sent for.
    wanted: BTreeSet<u32>,
    /// What has come, by queue.
    came: BTreeMap<u32, u32>,
    /// It was looked at after its time.
    closed: bool,
}

impl Steering {
    /// What to ask now so that an answer comes by each of these queues of a path, which has `queues`. `answerers`: nodes that may answer, the likeliest first.
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
        // What others, or fewer, did not reach says nothing of these.
        let alone_with: Vec<u32> = answerers.iter().copied().take_while(|node| is_reserved(*node)).collect();
        if alone_with.is_empty() != way.alone_with.is_empty() || alone_with.iter().any(|node| !way.alone_with.contains(node)) {
            way.searched.clear();
        }
        way.alone_with = alone_with;
        let pause_max_ns = if answerers == [ITSELF] { PAUSE_ITSELF_NS } else { PAUSE_MAX_NS };
        let is_silent = |known: &Known| known.unanswered_ns.is_some_and(|since| now.saturating_sub(since) > ANSWER_NS);
        let (mut sent, mut reached, mut missing) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        for queue in wanted {
            if way.known.get(&queue).is_some_and(is_silent) {
                way.known.remove(&queue);
            }
            match way.known.get_mut(&queue).filter(|known| answerers.contains(&known.node)) {
                Some(known) if sent.len() < ROUND_MAX => {
                    known.unanswered_ns.get_or_insert(now);
                    sent.push((known.node, known.port));
                    reached.insert(queue);
                }
                Some(_) => {}
                None => _ = missing.insert(queue),
            }
        }
        if missing.iter().any(|queue| way.searched.get(queue).is_none_or(|(at_ns, _)| now >= *at_ns)) {
            for queue in &missing {
                let (at_ns, pause_ns) = way.searched.entry(*queue).or_insert((0, 0));
                *pause_ns = (2 * *pause_ns).clamp(PAUSE_NS, pause_max_ns);
                *at_ns = now.saturating_add(*pause_ns);
            }
            let tries = TRIES.saturating_mul(queues).min(ROUND_MAX - sent.len());
            let first = (random >> 32) as u16;
            let port = |i: usize| PORTS | (first.wrapping_add((i as u16).wrapping_mul(STRIDE)) & (PORTS - 1));
            sent.extend((0..tries).map(|i| (answerers[i / 2 % answerers.len()], port(i))));
            reached.append(&mut missing);
        }
        if sent.is_empty() {
            return Vec::new();
        }
        let number = random as u32 & !0xff;
        let of = |(i, (node, port)): (usize, &(u32, u16))| Steered { node: *node, port: *port, number: number | i as u32 };
        let questions = sent.iter().enumerate().map(of).collect();
        way.rounds.push_back(Round { number, asked_ns: now, sent, wanted: reached, came: BTreeMap::new(), closed: false });
        way.rounds.drain(..way.rounds.len().saturating_sub(ROUNDS));
        questions
    }

    /// What was noted last in the queues of a path: which queue, and the number of the answer. Returns the queues that were emptied, as of when (a time that no other
    /// queue has, for the detector takes barriers of one time for one of one queue), and by whose answer.
    pub fn came(&mut self, path: usize, noted: &[(u32, u32)], now: u64) -> Vec<Emptied> {
        let Some(way) = self.ways.get_mut(path) else { return Vec::new() };
        let mut emptied = Vec::new();
        for (queue, number) in noted {
            let Some(round) = way.rounds.iter_mut().find(|round| round.number == number & !0xff) else { continue };
            let Some((node, port)) = round.sent.get((number & 0xff) as usize).copied() else { continue };
            if round.came.insert(*queue, *number) == Some(*number) {
                continue; // seen before
            }
            emptied.push(Emptied { queue: *queue, as_of_ns: round.asked_ns.saturating_sub(u64::from(*queue)), by: node });
            way.known.retain(|_, known| (known.node, known.port) != (node, port));
            way.known.insert(*queue, Known { node, port, unanswered_ns: None });
            way.searched.remove(queue);
        }
        for round in way.rounds.iter_mut().filter(|round| now.saturating_sub(round.asked_ns) >= WAIT_NS) {
            round.closed = true;
        }
        emptied
    }

    /// A barrier of a queue came by another question, whose answer took the place of ours.
    pub fn other_came(&mut self, path: usize, queue: u32) {
        if let Some(known) = self.ways.get_mut(path).and_then(|way| way.known.get_mut(&queue)) {
            known.unanswered_ns = None;
        }
    }

    /// Its interface is another one.
    pub fn forget(&mut self, path: usize) {
        if let Some(way) = self.ways.get_mut(path) {
            *way = Way::default();
        }
    }

    /// Whether an answer that is wanted may have come, or may come in a moment.
    #[must_use]
    pub fn is_waiting(&self, path: usize) -> bool {
        let is_open = |round: &Round| !round.closed && round.wanted.iter().any(|queue| !round.came.contains_key(queue));
        self.ways.get(path).is_some_and(|way| way.rounds.iter().any(is_open))
    }

    /// When to look for answers, if one may come: nobody is woken by them.
    #[must_use]
    pub fn look_at(&self, now: u64) -> Option<u64> {
        (0..PATHS).any(|path| self.is_waiting(path)).then(|| now.saturating_add(LOOK_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// As NICs hash the four parts of a TCP segment, by a key.
    fn toeplitz(key: &[u8; 40], q: &Steered) -> u32 {
        let mut input = [10, 0, 0, 9, 10, 0, 0, 1, 0x1c, 0xe8, 0, 0];
        input[3] = q.node as u8;
        input[10..12].copy_from_slice(&q.port.to_be_bytes());
        let mut hash = 0;
        let bit = |bytes: &[u8], at: usize| u32::from(bytes[at / 8] >> (7 - at % 8) & 1);
        for at in (0..96).filter(|at| bit(&input, *at) == 1) {
            hash ^= (0..32).fold(0, |window, k| window << 1 | bit(key, at + k));
        }
        hash
    }

    /// The answers of hosts that all answer, by such a NIC with a table of 128 places: the last one of each queue.
    fn noted(questions: &[Steered], queues: u32, key: &[u8; 40]) -> Vec<(u32, u32)> {
        let by = |q: &Steered| 1 + toeplitz(key, q) % 128 % queues;
        let last: BTreeMap<u32, u32> = questions.iter().map(|q| (by(q), q.number)).collect();
        last.into_iter().collect()
    }

    fn times(emptied: &[Emptied]) -> Vec<(u32, u64)> {
        emptied.iter().map(|e| (e.queue, e.as_of_ns)).collect()
    }

    fn keys() -> impl Iterator<Item = [u8; 40]> {
        let mut state = 1u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state
        };
        (0..20).map(move |_| std::array::from_fn(|_| (next() >> 40) as u8))
    }

    #[test]
    fn every_queue_is_found_whatever_the_nics_key_and_then_asked_for_by_one_question() {
        let random = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut of_first = (0, 0);
        for key in keys() {
            for queues in [2, 4, 8, 16, 64] {
                let (mut s, mut found, mut searches) = (Steering::default(), BTreeSet::new(), 0u64);
                while found.len() < queues as usize {
                    let now = searches * 60_000 * MS;
                    let asked = s.ask(0, queues as usize, 1..=queues, &[5, 6], now, random(searches + 1));
                    let came = s.came(0, &noted(&asked, queues, &key), now);
                    assert!(came.iter().all(|e| e.as_of_ns == now.saturating_sub(u64::from(e.queue))), "as of its own time");
                    found.extend(came.iter().map(|e| e.queue));
                    searches += 1;
                    if searches == 1 {
                        of_first = (of_first.0 + found.len(), of_first.1 + queues as usize);
                    }
                    assert!(searches < 12, "{queues} queues: {found:?}");
                }
                assert!(!s.is_waiting(0) || searches > 1);
                let now = 1_000_000_000 * MS;
                let asked = s.ask(0, queues as usize, 1..=queues, &[5, 6], now, random(77));
                assert_eq!(asked.len(), queues as usize);
                assert!(s.is_waiting(0) && s.look_at(now) == Some(now + LOOK_NS));
                assert_eq!(s.came(0, &noted(&asked, queues, &key), now).len(), queues as usize);
                assert_eq!(s.came(0, &noted(&asked, queues, &key), now), [], "each counts once");
                assert_eq!(s.ask(0, queues as usize, [2], &[5, 6], now + 1, random(78)).len(), 1);
            }
        }
        assert!(of_first.0 * 100 >= of_first.1 * 90, "{of_first:?} of all queues by the first search");
    }

    #[test]
    fn what_nobody_answered_while_alone_holds_up_no_search_among_others() {
        let mut s = Steering::default();
        let mut search = |answerers: &[u32], now: u64| s.ask(0, 1, [1], answerers, now, now << 32 | now << 8).len();
        let vain = (0..100_000).filter(|ms| search(&[ITSELF], ms * MS) > 0).count();
        assert!((100..120).contains(&vain), "{vain} searches in a hundred seconds");
        let now = 100_000 * MS;
        assert!(search(&[u32::MAX, ITSELF], now) > 0, "somebody else may answer");
        assert_eq!(search(&[ITSELF], now + 1), 0);
        assert_eq!(search(&[u32::MAX, ITSELF], now + 2), 4, "one that comes back");
        assert_eq!(search(&[u32::MAX, ITSELF], now + 3), 0);
        assert!(search(&[7], now + 4) > 0, "hosts have come back");
        assert_eq!(search(&[7, 8], now + 5), 0);
    }

    #[test]
    fn who_does_not_answer_is_asked_seldom() {
        let mut s = Steering::default();
        let sent: usize = (0..1000).map(|n| s.ask(1, 4, [2], &[5], n * 20 * MS, n << 32 | n << 8).len()).sum();
        assert!((16..=10 * 16).contains(&sent), "{sent} in twenty seconds");
        let _ = s.came(1, &[], 1000 * 20 * MS + WAIT_NS);
        assert!(!s.is_waiting(1));
        assert_eq!(s.ask(1, 4, [2], &[], u64::MAX, 0x2200), [], "nobody is nobody");
    }

    /// A NIC that puts nothing into one of its queues, or a queue of its own for one flow.
    #[test]
    fn a_queue_that_nothing_reaches_is_searched_seldom_though_the_others_answer() {
        let mut s = Steering::default();
        let (mut sent, mut looked) = (0, 0);
        for n in 0..3000u64 {
            let now = n * 10 * MS;
            let asked = s.ask(0, 64, 1..=8, &[5, 6], now, n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            sent += asked.len();
            let noted: BTreeMap<u32, u32> = asked.iter().map(|q| (1 + u32::from(q.port >> 3) % 7, q.number)).collect();
            let _ = s.came(0, &noted.into_iter().collect::<Vec<_>>(), now);
            looked += u64::from(s.is_waiting(0));
        }
        // Seven known ones each time, and some ten searches in thirty seconds.
        assert!(sent <= 3000 * 7 + 12 * ROUND_MAX, "{sent}");
        assert!(looked <= 2 * 12, "{looked} times of 3000 it went on looking");
    }

    #[test]
    fn two_that_want_one_queue_at_once_do_not_make_it_forgotten() {
        let mut s = Steering::default();
        let asked = s.ask(1, 4, [2], &[5], 0, 0x1100);
        let _ = s.came(1, &[(2, asked[0].number)], 0);
        for n in 0..4 {
            assert_eq!(s.ask(1, 4, [2], &[5], MS + n * 1000, 0x2200 + (n << 8)).len(), 1);
        }
        assert_eq!(s.ask(1, 4, [2], &[5], 2 * MS + ANSWER_NS, 0x9900).len(), 16, "it has not answered since: others are tried");
        // An echo's answer behind it hid it.
        let asked = s.ask(0, 4, [2], &[5], 0, 0x1100);
        let _ = s.came(0, &[(2, asked[0].number)], 0);
        assert_eq!(s.ask(0, 4, [2], &[5], MS, 0x2200).len(), 1);
        s.other_came(0, 2);
        assert_eq!(s.ask(0, 4, [2], &[5], 100 * MS, 0x3300).len(), 1);
        // One that is not to be asked this time is not forgotten.
        assert!(s.ask(0, 4, [2], &[6], 101 * MS, 0x4400).iter().all(|q| q.node == 6));
        assert_eq!(s.ask(0, 4, [2], &[5, 6], 102 * MS, 0x5500).len(), 1);
    }

    #[test]
    fn an_answer_is_looked_for_also_behind_another_round_and_after_a_pause() {
        let mut s = Steering::default();
        let first = s.ask(0, 4, [1], &[5], 0, 0x1100);
        let second = s.ask(0, 4, [2], &[5], 1000, 0x2200);
        assert_eq!(times(&s.came(0, &[(2, second[0].number)], 2000)), [(2, 998)]);
        assert!(s.is_waiting(0));
        // We did not run for a second.
        assert_eq!(times(&s.came(0, &[(1, first[0].number)], 1000 * MS)), [(1, 0)]);
        assert!(!s.is_waiting(0));
        let _ = s.ask(0, 4, [3], &[5], 2000 * MS, 0x3300);
        assert_eq!(s.came(0, &[], 2000 * MS + WAIT_NS), []);
        assert!(!s.is_waiting(0) && s.look_at(0).is_none(), "not for ever");
    }

    #[test]
    fn an_answer_that_comes_by_another_queue_is_known_there_and_strangers_mean_nothing() {
        let mut s = Steering::default();
        let asked = s.ask(0, 2, [1, 2], &[5], 100, 0x1100);
        assert_eq!(times(&s.came(0, &[(1, asked[3].number)], 100)), [(1, 99)]);
        assert_eq!(times(&s.came(0, &[(2, asked[3].number)], 100)), [(2, 98)], "the interface was told to hash otherwise");
        let again = s.ask(0, 2, [2], &[5], MS, 0x2200);
        assert_eq!((again.len(), again[0].port), (1, asked[3].port));
        assert_eq!(
            s.came(0, &[(1, 0x9900), (2, 0x2200 | 200), (3, u32::MAX)], MS),
            [],
            "others' numbers, and one that was not sent"
        );
        assert_eq!(s.came(9, &[(1, 0x2200)], MS), []);
        s.forget(0);
        assert_eq!(s.came(0, &[(1, again[0].number)], MS), []);
    }

    #[test]
    fn rounds_are_bounded_and_so_is_what_they_send() {
        let mut s = Steering::default();
        for n in 0..100u64 {
            let asked = s.ask(0, 1000, 1..=64, &[5, 6, 7], n * 1_000_000 * MS, n << 8);
            assert!(asked.len() <= ROUND_MAX);
            let _ = s.came(0, &[], n * 1_000_000 * MS);
        }
        assert!(s.ways[0].rounds.len() <= ROUNDS && s.ways[0].known.len() <= 64 && s.ways[0].searched.len() <= 64);
    }
}
