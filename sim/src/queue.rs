//! What is going to happen, the earliest first; of what happens at once, what was planned first.

/// A 4-ary heap of small keys beside a slab of events, so that moving an event in the order does not move the event.
#[derive(Debug)]
pub struct Queue<E> {
    heap: Vec<Key>,
    slab: Vec<Option<E>>,
    free: Vec<u32>,
    planned: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    at_ns: u64,
    nth: u32,
    slot: u32,
}

const ARITY: usize = 4;

impl<E> Queue<E> {
    /// Nothing planned.
    #[must_use]
    pub fn new() -> Self {
        Self { heap: Vec::with_capacity(256), slab: Vec::with_capacity(256), free: Vec::new(), planned: 0 }
    }

    /// Plans an event.
    pub fn push(&mut self, at_ns: u64, event: E) {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slab[slot as usize] = Some(event);
                slot
            }
            None => {
                self.slab.push(Some(event));
                (self.slab.len() - 1) as u32
            }
        };
        self.planned += 1;
        let key = Key { at_ns, nth: self.planned, slot };
        let mut at = self.heap.len();
        self.heap.push(key);
        while at > 0 {
            let parent = (at - 1) / ARITY;
            if self.heap[parent] <= key {
                break;
            }
            self.heap[at] = self.heap[parent];
            at = parent;
        }
        self.heap[at] = key;
    }

    /// When the next event is due.
    #[must_use]
    pub fn next_ns(&self) -> Option<u64> {
        self.heap.first().map(|key| key.at_ns)
    }

    /// The next event and its time.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        let first = *self.heap.first()?;
        let key = self.heap.pop()?;
        let len = self.heap.len();
        if len > 0 {
            let mut at = 0;
            loop {
                let child = at * ARITY + 1;
                if child >= len {
                    break;
                }
                let mut least = child;
                for other in child + 1..(child + ARITY).min(len) {
                    if self.heap[other] < self.heap[least] {
                        least = other;
                    }
                }
                if key <= self.heap[least] {
                    break;
                }
                self.heap[at] = self.heap[least];
                at = least;
            }
            self.heap[at] = key;
        }
        self.free.push(first.slot);
        self.slab[first.slot as usize].take().map(|event| (first.at_ns, event))
    }
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn events_come_by_time_and_then_in_the_order_of_planning() {
        let (mut queue, mut rng) = (Queue::new(), Rng::new(1));
        let mut last = (0, 0);
        let mut popped = 0;
        for i in 0..3000_u32 {
            queue.push(last.0 + rng.below(50), i);
            if rng.chance(40) {
                let (at, event) = queue.pop().unwrap();
                assert!(at > last.0 || (at == last.0 && (event > last.1 || popped == 0)), "{at} {event} after {last:?}");
                last = (at, event);
                popped += 1;
            }
        }
        let mut rest = 0;
        while let Some((at, event)) = queue.pop() {
            assert!((at, event) > last);
            last = (at, event);
            rest += 1;
        }
        assert_eq!(popped + rest, 3000);
    }
}
