//! Coordinators, sequences of memberships, leases and their caches.

use std::sync::Arc;

use fide_proto::consensus::paxos::Word;
use fide_proto::group::{MemberId, MemberSet};
use fide_proto::membership::view::{Action, Request};
use fide_proto::membership::{Cache, Coordinator, Holder, Membership, Role, Sequence, Timing, lease};

use super::bytes::{Bytes, Near};
use super::{checked, messages};

fn near(membership: &Membership, now_ns: u64) -> Near {
    Near { me: MemberId(1), members: membership.members.clone(), open: membership.id, number: 1, now_ns }
}

/// A membership that follows from this one, or nearly.
fn next(bytes: &mut Bytes, latest: &Membership) -> Membership {
    let near = near(latest, 0);
    let mut next = latest.clone();
    next.id = next.id.saturating_add(1);
    next.longest_before_ns = next.longest_before_ns.max(latest.tenure_ns());
    match bytes.below(5) {
        0 => {
            next.highest = MemberId(next.highest.0.saturating_add(1));
            next.members.insert(next.highest);
            next.tokens.insert(next.highest, bytes.u64());
        }
        1 => {
            let gone = near.member(bytes);
            next.members.remove(gone);
            next.tokens.remove(&gone);
        }
        2 => next.lease_ns = bytes.near(20_000),
        3 => next.cache_lease_ns = bytes.near(100_000),
        _ => {}
    }
    match bytes.below(16) {
        0 => next.id = bytes.near(latest.id),
        1 => next.members = near.set(bytes),
        2 => next.tokens = [(near.member(bytes), bytes.u64())].into(),
        3 => next.highest = MemberId(bytes.near16(latest.highest.0)),
        4 => next.coordinators = near.set(bytes),
        5 => next.lease_ns = bytes.near(latest.lease_ns),
        6 => next.longest_before_ns = bytes.near(latest.longest_before_ns),
        7 => next.cache_lease_ns = u64::MAX,
        _ => {}
    }
    next
}

pub fn coordinator(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let first = Membership::first(MemberSet::first(3), MemberSet::first(3), 20_000);
    let mut coordinator = Coordinator::new(MemberId(1), first.clone());
    let mut sequence = Sequence::new(2);
    let mut proposed: Option<Arc<Membership>> = None;
    while !bytes.is_empty() {
        let latest = coordinator.latest().clone();
        let near = near(&latest, 0);
        let what = bytes.below(10);
        if what == 0 {
            coordinator.set_leader(!bytes.one_in(4));
        }
        let request = match bytes.below(4) {
            0 => Request::Join { token: bytes.pick(&[1, 2, 3, u64::MAX]) },
            1 => Request::Join { token: bytes.u64() },
            2 => Request::Leave { member: near.member(&mut bytes) },
            _ => Request::Lease { lease_ns: bytes.near(1000), cache_lease_ns: bytes.near(0) },
        };
        let (from, set) = (near.member(&mut bytes), near.set(&mut bytes));
        let membership = match (&proposed, bytes.one_in(3)) {
            (Some(proposed), false) => (**proposed).clone(),
            _ => next(&mut bytes, &latest),
        };
        let pushed = Arc::new(membership.clone());
        let _ = checked(
            &mut coordinator,
            |coordinator| *coordinator.refusals(),
            |_| {},
            |coordinator| match what {
                1..=4 => coordinator.handle_request(request),
                5 => coordinator.handle_report(from, set),
                6..=8 => coordinator.handle_decided(membership),
                _ => Ok(()),
            },
        );
        let _ = checked(&mut sequence, |sequence| *sequence.refusals(), |_| {}, |sequence| sequence.push(pushed));
        let popped = std::iter::from_fn(|| sequence.pop()).count();
        assert!(popped <= Sequence::EARLY_MAX as usize);
        let latest = coordinator.latest();
        assert!(latest.members.len() <= 64 && latest.members.iter().all(|member| member <= latest.highest));
        let mut actions = 0;
        while let Some(action) = coordinator.poll_action() {
            actions += 1;
            if let Action::Propose(next) = action {
                proposed = Some(next);
            }
        }
        assert!(actions <= 1100);
    }
}

pub fn leases(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let mut latest = Membership::first(MemberSet::first(3), MemberSet::first(bytes.pick(&[3, 1, 5])), 20_000);
    latest.cache_lease_ns = bytes.pick(&[0, 100_000]);
    let role = bytes.pick(&[Role::Direct, Role::Cache, Role::BehindCache]);
    let mut now_ns = 1_000_000u64;
    let mut holder = Holder::new(Timing::default(), role, Arc::new(latest.clone()), now_ns);
    let mut cache = Cache::new(Timing::default(), Arc::new(latest), now_ns);
    let mut checks = vec![1u64];
    while !bytes.is_empty() {
        now_ns = match bytes.below(10) {
            0..=4 => now_ns.saturating_add(u64::from(bytes.u8())),
            5 => holder.poll_timeout().unwrap_or(now_ns),
            6 => now_ns.saturating_add(20_000),
            7 => now_ns.saturating_sub(10_000),
            _ => bytes.near(now_ns),
        };
        let latest = holder.membership().clone();
        let near = near(&latest, now_ns);
        let what = bytes.below(10);
        let membership = Arc::new(next(&mut bytes, &latest));
        let from = latest.coordinators.iter().nth(bytes.below(4)).unwrap_or_else(|| near.member(&mut bytes));
        let check = checks[bytes.below(checks.len())];
        let check = if bytes.one_in(4) { bytes.near(check) } else { check };
        let word = if bytes.one_in(2) { Word::default() } else { messages::word(&mut bytes, &near) };
        let (id, active) = (if bytes.one_in(4) { bytes.near(latest.id) } else { latest.id }, bytes.one_in(2));
        match what {
            0 => {
                holder.handle_timeout(now_ns);
                cache.handle_timeout(now_ns);
            }
            1 => checks.push(holder.check(now_ns)),
            2 | 3 => {
                let result = checked(
                    &mut holder,
                    |holder| *holder.refusals(),
                    |_| {},
                    |holder| holder.handle_membership(now_ns, membership.clone()),
                );
                let same = checked(
                    &mut cache,
                    |cache| *cache.holder().refusals(),
                    |_| {},
                    |cache| cache.handle_membership(now_ns, membership),
                );
                assert_eq!(result, same, "both are told the same");
            }
            4 | 5 => {
                let _ = checked(
                    &mut holder,
                    |holder| *holder.refusals(),
                    |_| {},
                    |holder| holder.handle_cache(now_ns, check, id, active),
                );
            }
            _ => {
                let _ = checked(
                    &mut holder,
                    |holder| *holder.refusals(),
                    |_| {},
                    |holder| holder.handle_read(now_ns, from, check, word),
                );
                let _ = checked(
                    &mut cache,
                    |cache| *cache.holder().refusals(),
                    |_| {},
                    |cache| cache.handle_read(now_ns, from, check, word),
                );
            }
        }
        holder.invariants();
        cache.holder().invariants();
        let (_, _) = (holder.active(now_ns, id), cache.answer(now_ns, id));
        let mut actions = 0;
        while let Some(action) = holder.poll_action() {
            actions += 1;
            if let lease::Action::Read { check, .. } | lease::Action::AskCache { check, .. } = action {
                checks.push(check);
            }
        }
        checks.drain(..checks.len().saturating_sub(6));
        actions += std::iter::from_fn(|| cache.poll_action()).count();
        assert!(actions <= 200 && checks.len() <= 6);
    }
}
