//! Fair queueing: jobs of several sources in bounded room, taken from the sources in turn.
//!
//! A source that queues much waits behind itself: the next job comes from the source that was served longest ago. When the room is full, the newest
//! job of the source with the most jobs goes (*longest queue drop*), so that a source which asks for little is not refused because another one asks for much.

use std::collections::{BTreeMap, VecDeque};

/// Jobs `T` of sources `K`.
#[derive(Debug)]
pub struct FairQueue<K, T> {
    /// Sources with jobs; no queue is empty.
    queues: BTreeMap<K, VecDeque<T>>,
    /// The same sources, the one to be served next first.
    order: VecDeque<K>,
    len: usize,
    room: usize,
}

impl<K: Ord + Clone, T> FairQueue<K, T> {
    /// An empty queue with room for so many jobs, at least one.
    #[must_use]
    pub fn new(room: usize) -> Self {
        Self { queues: BTreeMap::new(), order: VecDeque::new(), len: 0, room: room.max(1) }
    }

    /// Jobs that wait.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether none waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Jobs of this source that wait.
    #[must_use]
    pub fn waiting(&self, source: &K) -> usize {
        self.queues.get(source).map_or(0, VecDeque::len)
    }

    /// Queues a job. When there is no room, gives the job that is dropped for it, which may be this one.
    pub fn push(&mut self, source: K, job: T) -> Option<T> {
        let mut dropped = None;
        if self.len >= self.room {
            let longest = self.queues.iter().max_by_key(|(_, q)| q.len()).map(|(k, q)| (k.clone(), q.len()));
            match longest {
                Some((longest, len)) if len > self.waiting(&source) + 1 => dropped = self.take_newest(&longest),
                _ => return Some(job),
            }
        }
        self.queues
            .entry(source.clone())
            .or_insert_with(|| {
                self.order.push_back(source);
                VecDeque::new()
            })
            .push_back(job);
        self.len += 1;
        self.invariants();
        dropped
    }

    fn take_newest(&mut self, source: &K) -> Option<T> {
        let queue = self.queues.get_mut(source)?;
        let job = queue.pop_back()?;
        self.len -= 1;
        if queue.is_empty() {
            self.queues.remove(source);
            self.order.retain(|k| k != source);
        }
        Some(job)
    }

    /// The oldest job of the source whose turn it is.
    pub fn pop(&mut self) -> Option<(K, T)> {
        self.pop_where(|_| true)
    }

    /// The same among the sources that `may` be served now.
    pub fn pop_where(&mut self, may: impl Fn(&K) -> bool) -> Option<(K, T)> {
        let at = self.order.iter().position(may)?;
        let source = self.order.remove(at)?;
        let queue = self.queues.get_mut(&source)?;
        let job = queue.pop_front()?;
        self.len -= 1;
        if queue.is_empty() {
            self.queues.remove(&source);
        } else {
            self.order.push_back(source.clone());
        }
        self.invariants();
        Some((source, job))
    }

    /// Drops the jobs that are not to be `kept`.
    pub fn retain(&mut self, mut kept: impl FnMut(&T) -> bool) {
        self.queues.values_mut().for_each(|queue| queue.retain(&mut kept));
        self.queues.retain(|_, queue| !queue.is_empty());
        let queues = &self.queues;
        self.order.retain(|source| queues.contains_key(source));
        self.len = self.queues.values().map(VecDeque::len).sum();
        self.invariants();
    }

    fn invariants(&self) {
        debug_assert!(self.len <= self.room);
        debug_assert_eq!(self.order.len(), self.queues.len(), "each source has one turn");
        debug_assert!(self.queues.values().all(|queue| !queue.is_empty()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn served(q: &mut FairQueue<u8, u32>) -> Vec<(u8, u32)> {
        std::iter::from_fn(|| q.pop()).collect()
    }

    #[test]
    fn sources_take_turns_and_each_keeps_its_order() {
        let mut q = FairQueue::new(100);
        for job in 0..4 {
            assert_eq!(q.push(1, job), None);
        }
        q.push(2, 10);
        q.push(3, 20);
        q.push(3, 21);
        assert_eq!(served(&mut q), [(1, 0), (2, 10), (3, 20), (1, 1), (3, 21), (1, 2), (1, 3)]);
        assert!(q.is_empty());
    }

    #[test]
    fn a_full_queue_drops_the_newest_job_of_the_source_with_most() {
        let mut q = FairQueue::new(4);
        for job in 0..4 {
            assert_eq!(q.push(1, job), None, "alone, a source may use all the room");
        }
        assert_eq!(q.push(1, 4), Some(4), "its own next job is refused");
        assert_eq!(q.push(2, 10), Some(3));
        assert_eq!(q.push(2, 11), Some(2));
        assert_eq!(q.push(2, 12), Some(12), "both have the same");
        assert_eq!(q.push(3, 20), Some(11), "a third one still gets a place");
        assert_eq!(served(&mut q), [(1, 0), (2, 10), (3, 20), (1, 1)]);
    }

    #[test]
    fn a_source_that_may_not_be_served_now_waits_and_keeps_its_turn() {
        let mut q = FairQueue::new(10);
        q.push(1, 0);
        q.push(2, 1);
        assert_eq!(q.pop_where(|k| *k != 1), Some((2, 1)));
        assert_eq!(q.pop_where(|k| *k != 1), None);
        assert_eq!(q.pop(), Some((1, 0)));
    }

    proptest! {
        /// Whatever is queued: nobody who has a job is passed over for more than one round, and the room is never exceeded.
        #[test]
        fn nobody_is_starved(jobs in prop::collection::vec((0u8..5, any::<u32>()), 0..200), room in 1usize..50) {
            let mut q = FairQueue::new(room);
            for (source, job) in jobs {
                q.push(source, job);
                prop_assert!(q.len() <= room);
            }
            let all = served(&mut q);
            for (at, (source, _)) in all.iter().enumerate() {
                let next = all[at + 1..].iter().position(|(k, _)| k == source);
                let others: std::collections::BTreeSet<u8> =
                    all[at + 1..next.map_or(at + 1, |n| at + 1 + n)].iter().map(|(k, _)| *k).collect();
                prop_assert_eq!(others.len(), next.unwrap_or(0), "each other source at most once in between");
            }
        }
    }
}
