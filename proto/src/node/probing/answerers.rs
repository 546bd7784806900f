//! Whom to ask for a barrier when no other host of the cluster is left to answer (SafeTimer §4.1:
//! it is sent "through the NIC to oneself").
//!
//! Whatever answers echo requests on a path's network will do: a router, the address of a switch, a
//! storage. They are no hosts of the cluster, nothing is concluded from their silence, and they are
//! asked only while nobody else can be. The last resort needs nobody: where both paths are on one
//! network, a packet from one of this host's interfaces to the other.

use fide_wire::PATHS;
use std::net::IpAddr;

/// Most for each path.
pub const ANSWERERS: usize = 8;
/// Who has not answered for so long is not counted on: three times what is asked for to know it.
const FRESH_NS: u64 = 30_000_000_000;
/// From here on they stand for nodes in questions and answers. No host has such a one
/// ([`is_reserved`]).
const FIRST: u32 = u32::MAX - ANSWERERS as u32;
/// This host itself, from its other interface.
pub const ITSELF: u32 = FIRST;

/// Whether a name that hashes to this cannot be a host's: one in 500 million.
#[must_use]
pub const fn is_reserved(node: u32) -> bool {
    node >= FIRST
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answerer {
    /// What it is called in questions.
    pub node: u32,
    /// Its address.
    pub address: IpAddr,
    answered_ns: u64,
}

impl Answerer {
    /// Whether it answered lately.
    #[must_use]
    pub fn answers(&self, now: u64) -> bool {
        self.answered_ns != 0 && now.saturating_sub(self.answered_ns) <= FRESH_NS
    }
}

/// All, by path.
#[derive(Clone, Debug, Default)]
pub struct Answerers {
    of: [Vec<Answerer>; PATHS],
}

impl Answerers {
    /// These are the ones of a path, and no others. Whether anything changed.
    pub fn set(&mut self, path: usize, addresses: &[IpAddr]) -> bool {
        let Some(of) = self.of.get_mut(path) else { return false };
        let known = |address: &IpAddr| of.iter().find(|a| a.address == *address).map_or(0, |a| a.answered_ns);
        let next = |(i, address): (usize, &IpAddr)| Answerer {
            node: FIRST + 1 + i as u32,
            address: *address,
            answered_ns: known(address),
        };
        let new: Vec<Answerer> = addresses.iter().take(ANSWERERS).enumerate().map(next).collect();
        let changed = !new.iter().map(|a| a.address).eq(of.iter().map(|a| a.address));
        *of = new;
        changed
    }

    /// Those of a path.
    #[must_use]
    pub fn of(&self, path: usize) -> &[Answerer] {
        self.of.get(path).map_or(&[], Vec::as_slice)
    }

    /// Whom to ask: two who answered lately, or all if nobody did.
    #[must_use]
    pub fn to_ask(&self, path: usize, now: u64) -> Vec<Answerer> {
        let fresh: Vec<Answerer> = self.of(path).iter().filter(|a| a.answers(now)).take(2).copied().collect();
        if fresh.is_empty() { self.of(path).to_vec() } else { fresh }
    }

    /// Where one is asked.
    #[must_use]
    pub fn address(&self, node: u32, path: usize) -> Option<IpAddr> {
        self.of(path).iter().find(|a| a.node == node).map(|a| a.address)
    }

    /// An answer came. `false`: not from one of them.
    pub fn answered(&mut self, node: u32, path: usize, now: u64) -> bool {
        let found = self.of.get_mut(path).and_then(|of| of.iter_mut().find(|a| a.node == node));
        found.map(|a| a.answered_ns = now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn who_answered_stays_known_when_others_come_and_go() {
        let mut all = Answerers::default();
        assert!(all.set(1, &[ip("10.0.0.1"), ip("10.0.0.2")]));
        assert!(!all.set(1, &[ip("10.0.0.1"), ip("10.0.0.2")]));
        let second = all.of(1)[1];
        assert_eq!(all.address(second.node, 1), Some(ip("10.0.0.2")));
        assert_eq!(all.address(second.node, 0), None, "of its own path only");
        assert!(!all.answered(second.node, 0, 5) && !all.answered(ITSELF, 1, 5) && !all.answered(7, 1, 5));
        assert!(all.answered(second.node, 1, 5));
        assert!(all.set(1, &[ip("10.0.0.2")]));
        assert!(all.of(1)[0].answers(5 + FRESH_NS) && !all.of(1)[0].answers(6 + FRESH_NS));
        assert_eq!(all.to_ask(1, 6), all.of(1));
        assert!(all.set(1, &[ip("10.0.0.1"), ip("10.0.0.2"), ip("10.0.0.3")]));
        assert_eq!(all.to_ask(1, 6), [all.of(1)[1]], "who is known to answer");
        assert_eq!(all.to_ask(1, 6 + FRESH_NS), all.of(1), "nobody is");
        let many: Vec<IpAddr> = (0..20).map(|n| IpAddr::from([10, 0, 1, n])).collect();
        assert!(all.set(1, &many));
        assert!(
            all.of(1).len() == ANSWERERS && all.of(1).iter().all(|a| a.node != ITSELF && is_reserved(a.node) && !a.answers(7))
        );
        assert!(!all.set(PATHS, &many));
    }
}
