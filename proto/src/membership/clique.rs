//! Who stays when not everybody reaches everybody (U9): "the leader constructs a connectivity graph based on the reported link states and changes the
//! membership to approximately match the maximum clique in which it is included" (uKharon §4.2). Here exactly, for up to 64 members.

use crate::group::{MAX_MEMBERS, MemberId, MemberSet};

/// The largest set of `members` that includes `leader` and in which everybody reaches everybody; of several, the one with the lowest ids (compared from
/// the lowest on). A link counts if `reaches` holds in both directions. Just the leader if nobody reaches it; nobody if it is no member.
///
/// Bron–Kerbosch over bit sets, bounded by a greedy colouring: members of one colour do not reach each other, so a clique has at most one of each.
///
/// # Panics
/// With more than [`MAX_MEMBERS`] members.
#[must_use]
pub fn maximum_clique(members: &MemberSet, leader: MemberId, reaches: impl Fn(MemberId, MemberId) -> bool) -> MemberSet {
    assert!(members.len() <= MAX_MEMBERS, "a group has at most {MAX_MEMBERS} members");
    let ids: Vec<MemberId> = members.iter().collect();
    let Some(lead) = ids.iter().position(|id| *id == leader) else { return MemberSet::new() };
    let mut links = vec![0u64; ids.len()];
    for (a, from) in ids.iter().enumerate() {
        for (b, to) in ids.iter().enumerate().skip(a + 1) {
            if reaches(*from, *to) && reaches(*to, *from) {
                links[a] |= 1 << b;
                links[b] |= 1 << a;
            }
        }
    }
    let mut search = Search { links: &links, best: 0 };
    search.extend(1 << lead, links[lead]);
    ids.iter().enumerate().filter(|(at, _)| search.best & 1 << at != 0).map(|(_, id)| *id).collect()
}

struct Search<'a> {
    links: &'a [u64],
    best: u64,
}

impl Search<'_> {
    /// `clique` with some of `candidates`, each of which is linked to all of it. Lowest first, and only larger ones replace: so the first is kept.
    fn extend(&mut self, clique: u64, mut candidates: u64) {
        while candidates != 0 {
            if clique.count_ones() + self.colours(candidates) <= self.best.count_ones() {
                return;
            }
            let next = candidates.trailing_zeros() as usize;
            self.extend(clique | 1 << next, candidates & self.links[next]);
            candidates &= !(1 << next);
        }
        if clique.count_ones() > self.best.count_ones() {
            self.best = clique;
        }
    }

    fn colours(&self, mut uncoloured: u64) -> u32 {
        let mut colours = 0;
        while uncoloured != 0 {
            colours += 1;
            let mut may = uncoloured;
            while may != 0 {
                let next = may.trailing_zeros() as usize;
                uncoloured &= !(1 << next);
                may &= !(1 << next) & !self.links[next];
            }
        }
        colours
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids(set: &MemberSet) -> Vec<u16> {
        set.iter().map(|id| id.0).collect()
    }

    #[test]
    fn ukharon_4_2_everyone_stays_if_everyone_reaches_everyone() {
        let all = MemberSet::first(64);
        assert_eq!(maximum_clique(&all, MemberId(9), |_, _| true), all);
        assert_eq!(ids(&maximum_clique(&all, MemberId(9), |_, _| false)), [9]);
        assert!(maximum_clique(&all, MemberId(65), |_, _| true).is_empty());
    }

    #[test]
    fn ukharon_4_2_a_link_needs_both_directions_and_the_leader_stays() {
        let all = MemberSet::first(4);
        assert_eq!(ids(&maximum_clique(&all, MemberId(1), |a, b| (a.0, b.0) != (3, 2))), [1, 2, 4], "of two, the lowest ids");
        // 2, 3, 4 are more, but the leader reaches only 2.
        let reaches = |a: MemberId, b: MemberId| a.0.min(b.0) > 1 || a.0.max(b.0) == 2;
        assert_eq!(ids(&maximum_clique(&all, MemberId(1), reaches)), [1, 2]);
    }

    #[test]
    fn ukharon_4_2_moon_and_mosers_graph_ends_soon() {
        // 3^21 maximal cliques: triples that reach everyone but each other.
        let clique = maximum_clique(&MemberSet::first(64), MemberId(1), |a, b| (a.0 - 1) / 3 != (b.0 - 1) / 3);
        assert_eq!(ids(&clique), (0..22).map(|triple| triple * 3 + 1).collect::<Vec<_>>());
    }

    #[test]
    fn ukharon_4_2_dense_random_graphs_of_64_end_soon() {
        let mut random = 7u64;
        for _ in 0..5 {
            let mut links = std::collections::BTreeSet::new();
            for a in 1u16..=64 {
                for b in a + 1..=64 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    if random >> 33 & 7 != 0 {
                        links.insert((a, b));
                    }
                }
            }
            let reaches = |a: MemberId, b: MemberId| links.contains(&(a.0.min(b.0), a.0.max(b.0)));
            let clique = maximum_clique(&MemberSet::first(64), MemberId(1), reaches);
            assert!(clique.len() > 15 && clique.iter().all(|a| clique.iter().all(|b| a == b || reaches(a, b))));
        }
    }

    proptest! {
        #[test]
        fn ukharon_4_2_as_large_and_as_low_as_trying_them_all(bits in proptest::collection::vec(any::<bool>(), 81), leader in 1u16..=9) {
            let reaches = |a: MemberId, b: MemberId| bits[usize::from(a.0 - 1) * 9 + usize::from(b.0 - 1)];
            let fits = |set: u32| (0..9).all(|a| (0..9).all(|b| {
                a == b || set >> a & 1 == 0 || set >> b & 1 == 0 || bits[a * 9 + b] && bits[b * 9 + a]
            }));
            // Lowest ids first: read from the lowest bit on, more ones earlier are better.
            let all = (0u32..512).filter(|set| set >> (leader - 1) & 1 == 1 && fits(*set));
            let best = all.max_by_key(|set| (set.count_ones(), set.reverse_bits())).unwrap();
            let expected: Vec<u16> = (1..=9).filter(|id| best >> (id - 1) & 1 == 1).collect();
            prop_assert_eq!(ids(&maximum_clique(&MemberSet::first(9), MemberId(leader), reaches)), expected);
        }
    }
}
