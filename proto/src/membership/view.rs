//! Memberships and who makes them (U5): "the leader […] processes join/leave requests […], proposes new memberships and broadcasts decided
//! memberships" (uKharon §3.1).
//!
//! A [`Coordinator`] sits beside the consensus engine of one coordinator. It proposes the `k+1`-th membership only when the `k`-th was decided, so that the
//! order has no gap ("this is enforced by coordinators", App. B.2); whatever comes meanwhile goes into the next one, together. What another
//! leader got decided is taken over, and what was asked for here and is not in it is proposed again on top.
//!
//! Ids are unique because the highest one ever given is part of the membership. A join carries a token chosen by whoever joins, also part of it: a
//! request that is repeated, to this leader or the next, gets the same id.

use crate::group::{MAX_MEMBERS, MemberId, MemberSet, Refusals, Refused};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::clique::maximum_clique;

/// Which membership: 1 for the first, and so on.
pub type MembershipId = u64;

/// One membership.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Membership {
    /// One more than that of the one before.
    pub id: MembershipId,
    /// Who belongs to it.
    pub members: MemberSet,
    /// By which token each of them joined.
    pub tokens: BTreeMap<MemberId, u64>,
    /// The highest id ever given.
    pub highest: MemberId,
    /// Who decides the next one: a majority of these memories says whether there is one.
    pub coordinators: MemberSet,
    /// How long its leases last (δ, ns).
    pub lease_ns: u64,
    /// How long leases of caches last (Δ, ns); 0 if there are none.
    pub cache_lease_ns: u64,
    /// The longest that `lease_ns` and `cache_lease_ns` together have been in any membership before: for whoever has not seen those.
    pub longest_before_ns: u64,
}

impl Membership {
    /// The first one.
    #[must_use]
    pub fn first(members: MemberSet, coordinators: MemberSet, lease_ns: u64) -> Self {
        let highest = members.iter().next_back().unwrap_or(MemberId(0));
        let tokens = BTreeMap::new();
        Self { id: 1, members, tokens, highest, coordinators, lease_ns, cache_lease_ns: 0, longest_before_ns: 0 }
    }

    /// Both leases in a row: as long may somebody act on it after its successor was decided.
    #[must_use]
    pub fn tenure_ns(&self) -> u64 {
        self.lease_ns.saturating_add(self.cache_lease_ns)
    }

    /// Whether `next` differs in the duration of its leases only (§6.3): leases on this one do not disturb it.
    #[must_use]
    pub fn is_compatible(&self, next: &Membership) -> bool {
        self.id.checked_add(1) == Some(next.id)
            && self.members == next.members
            && self.tokens == next.tokens
            && self.coordinators == next.coordinators
    }

    /// One with the next id.
    fn successor(&self) -> Self {
        Self { id: self.id + 1, longest_before_ns: self.longest_before_ns.max(self.tenure_ns()), ..self.clone() }
    }

    /// Whether a correct coordinator can have made `next` from this one.
    pub(super) fn precedes(&self, next: &Membership) -> bool {
        let joined = || next.members.iter().filter(|member| !self.members.contains(*member));
        let highest = joined().max().unwrap_or(self.highest).max(self.highest);
        self.id.checked_add(1) == Some(next.id)
            && next.members.len() <= MAX_MEMBERS
            && joined().all(|member| member > self.highest && next.tokens.contains_key(&member))
            && next.tokens.keys().all(|member| next.members.contains(*member))
            && self.tokens.iter().all(|(member, token)| !next.members.contains(*member) || next.tokens.get(member) == Some(token))
            && next.highest >= highest
            && next.longest_before_ns == self.longest_before_ns.max(self.tenure_ns())
            && !next.coordinators.is_empty()
    }
}

/// What somebody wants changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Request {
    /// A newcomer. Repeat it with the same token, until there is an answer.
    Join {
        /// Any number that no other newcomer chooses.
        token: u64,
    },
    /// A member goes, or has crashed.
    Leave {
        /// Who.
        member: MemberId,
    },
    /// Leases are to last as long as this: a compatible membership (§6.3).
    Lease {
        /// δ.
        lease_ns: u64,
        /// Δ; 0 for no caches.
        cache_lease_ns: u64,
    },
}

/// What a coordinator wants done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Have this decided, in the slot of its id.
    Propose(Arc<Membership>),
    /// Tell everyone, by multicast and again until they show that they know.
    Broadcast(Arc<Membership>),
    /// To the newcomer with this token: it is this member.
    Joined {
        /// From its request.
        token: u64,
        /// Its id.
        member: MemberId,
    },
}

/// Requests that may wait.
const WAITING_MAX: usize = 1024;

/// One coordinator's part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Coordinator {
    me: MemberId,
    leads: bool,
    latest: Arc<Membership>,
    waiting: VecDeque<Request>,
    proposed: Option<Arc<Membership>>,
    /// Whom each of them does not reach.
    broken: BTreeMap<MemberId, MemberSet>,
    actions: VecDeque<Action>,
    refusals: Refusals,
}

impl Coordinator {
    /// Of a coordinator that knows `latest` to be decided.
    #[must_use]
    pub fn new(me: MemberId, latest: Membership) -> Self {
        Self {
            me,
            leads: false,
            latest: Arc::new(latest),
            waiting: VecDeque::new(),
            proposed: None,
            broken: BTreeMap::new(),
            actions: VecDeque::new(),
            refusals: Refusals::default(),
        }
    }

    /// Whether this coordinator leads.
    pub fn set_leader(&mut self, leads: bool) {
        self.leads = leads;
        if !leads {
            // Decided or not, its successor in office sees to it; those who asked ask again.
            self.proposed = None;
            self.waiting.clear();
        }
        self.advance();
    }

    /// Somebody wants a change.
    ///
    /// # Errors
    /// [`Refused::NotLeader`], [`Refused::Busy`], [`Refused::UnknownMember`] for a leave of nobody, [`Refused::Malformed`] for a lease of no length,
    /// [`Refused::Duplicate`] for one that waits already.
    pub fn handle_request(&mut self, request: Request) -> Result<(), Refused> {
        let refused = match request {
            _ if !self.leads => Some(Refused::NotLeader),
            Request::Join { token } if self.member_of(token).is_some() => None,
            _ if self.waiting.contains(&request) => Some(Refused::Duplicate),
            _ if self.waiting.len() >= WAITING_MAX => Some(Refused::Busy),
            Request::Join { .. } if self.latest.members.len() >= MAX_MEMBERS || self.latest.highest.0 == u16::MAX => {
                Some(Refused::Busy)
            }
            Request::Leave { member } if !self.latest.members.contains(member) => Some(Refused::UnknownMember),
            Request::Lease { lease_ns: 0, .. } => Some(Refused::Malformed),
            _ => None,
        };
        if let Some(why) = refused {
            return Err(self.refusals.count(why));
        }
        let known = match request {
            Request::Join { token } => self.member_of(token).map(|member| Action::Joined { token, member }),
            _ => None,
        };
        match known {
            Some(joined) => self.actions.push_back(joined),
            None => self.waiting.push_back(request),
        }
        self.advance();
        Ok(())
    }

    /// `from` reaches everyone but these.
    ///
    /// # Errors
    /// [`Refused::UnknownMember`], [`Refused::NotLeader`].
    pub fn handle_report(&mut self, from: MemberId, unreachable: MemberSet) -> Result<(), Refused> {
        if !self.leads {
            return Err(self.refusals.count(Refused::NotLeader));
        }
        if !self.latest.members.contains(from) || !self.latest.members.covers(&unreachable) {
            return Err(self.refusals.count(Refused::UnknownMember));
        }
        self.broken.insert(from, unreachable);
        let reaches = |a: MemberId, b: MemberId| !self.broken.get(&a).is_some_and(|broken| broken.contains(b));
        let stay = maximum_clique(&self.latest.members, self.me, reaches);
        if !stay.is_empty() {
            let latest = self.latest.clone();
            for member in latest.members.iter().filter(|member| !stay.contains(*member)) {
                let leave = Request::Leave { member };
                if !self.waiting.contains(&leave) && self.waiting.len() < WAITING_MAX {
                    self.waiting.push_back(leave);
                }
            }
        }
        self.advance();
        Ok(())
    }

    /// The engine decided this one, whoever proposed it.
    ///
    /// # Errors
    /// [`Refused::OldInstance`], [`Refused::TooFarAhead`] for one behind a gap, [`Refused::Malformed`] for one that does not follow from the one before.
    pub fn handle_decided(&mut self, membership: Membership) -> Result<(), Refused> {
        if membership.id <= self.latest.id {
            return Err(self.refusals.count(Refused::OldInstance));
        }
        if membership.id > self.latest.id + 1 {
            return Err(self.refusals.count(Refused::TooFarAhead));
        }
        if !self.latest.precedes(&membership) {
            return Err(self.refusals.count(Refused::Malformed));
        }
        self.latest = Arc::new(membership);
        self.proposed = None;
        let members = self.latest.members.clone();
        self.broken.retain(|member, _| members.contains(*member));
        self.actions.push_back(Action::Broadcast(self.latest.clone()));
        let latest = self.latest.clone();
        let mut joined = Vec::new();
        self.waiting.retain(|request| match request {
            Request::Join { token } => match latest.tokens.iter().find(|(_, known)| *known == token) {
                Some((member, _)) => {
                    joined.push(Action::Joined { token: *token, member: *member });
                    false
                }
                None => true,
            },
            Request::Leave { member } => latest.members.contains(*member),
            Request::Lease { lease_ns, cache_lease_ns } => {
                (*lease_ns, *cache_lease_ns) != (latest.lease_ns, latest.cache_lease_ns)
            }
        });
        self.actions.extend(joined);
        self.advance();
        Ok(())
    }

    fn member_of(&self, token: u64) -> Option<MemberId> {
        self.latest.tokens.iter().find(|(_, known)| **known == token).map(|(member, _)| *member)
    }

    fn advance(&mut self) {
        if !self.leads || self.proposed.is_some() || self.waiting.is_empty() {
            return;
        }
        let mut next = self.latest.successor();
        // A change of leases goes alone, so that it is compatible.
        let alone = matches!(self.waiting[0], Request::Lease { .. });
        for request in self.waiting.iter().take(if alone { 1 } else { usize::MAX }) {
            match *request {
                Request::Join { token } if next.members.len() < MAX_MEMBERS && next.highest.0 < u16::MAX => {
                    next.highest = MemberId(next.highest.0 + 1);
                    next.members.insert(next.highest);
                    next.tokens.insert(next.highest, token);
                }
                Request::Leave { member } => {
                    next.members.remove(member);
                    next.tokens.remove(&member);
                }
                Request::Lease { lease_ns, cache_lease_ns } if alone => {
                    (next.lease_ns, next.cache_lease_ns) = (lease_ns, cache_lease_ns);
                }
                _ => {}
            }
        }
        let changed = next.members != self.latest.members || alone;
        if changed {
            let next = Arc::new(next);
            self.proposed = Some(next.clone());
            self.actions.push_back(Action::Propose(next));
        }
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The last one decided.
    #[must_use]
    pub fn latest(&self) -> &Arc<Membership> {
        &self.latest
    }

    /// What it refused.
    #[must_use]
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }
}

/// Memberships that come by multicast (early, late, twice or not at all) put into their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sequence {
    next: MembershipId,
    early: BTreeMap<MembershipId, Arc<Membership>>,
    refusals: Refusals,
}

impl Sequence {
    /// Early ones that are kept.
    pub const EARLY_MAX: u64 = 64;

    /// One that knows everything before `next`.
    #[must_use]
    pub fn new(next: MembershipId) -> Self {
        Self { next, early: BTreeMap::new(), refusals: Refusals::default() }
    }

    /// One that came. Take what [`Sequence::pop`] has then.
    ///
    /// # Errors
    /// [`Refused::OldInstance`], [`Refused::Duplicate`], [`Refused::TooFarAhead`].
    pub fn push(&mut self, membership: Arc<Membership>) -> Result<(), Refused> {
        let id = membership.id;
        let refused = match id.checked_sub(self.next) {
            None => Some(Refused::OldInstance),
            Some(ahead) if ahead >= Self::EARLY_MAX => Some(Refused::TooFarAhead),
            Some(_) if self.early.contains_key(&id) => Some(Refused::Duplicate),
            Some(_) => None,
        };
        if let Some(why) = refused {
            return Err(self.refusals.count(why));
        }
        self.early.insert(id, membership);
        Ok(())
    }

    /// The next one in the order.
    pub fn pop(&mut self) -> Option<Arc<Membership>> {
        let membership = self.early.remove(&self.next)?;
        self.next += 1;
        Some(membership)
    }

    /// One that must be asked for: a later one is here.
    #[must_use]
    pub fn missing(&self) -> Option<MembershipId> {
        (!self.early.is_empty() && !self.early.contains_key(&self.next)).then_some(self.next)
    }

    /// What it refused.
    #[must_use]
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }
}
