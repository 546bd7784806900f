//! A few members, links that keep order, a clock that jumps to whatever is next.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use fide_proto::consensus::log::EngineMessage;
use fide_proto::consensus::{Action, Engine, Instance};
use fide_proto::group::{Batch, Body, Entry, EntryId, MemberId, MemberSet, Refused};
use fide_raft::{Config, Raft};

const MS: u64 = 1_000_000;
const DELAY_NS: u64 = 50_000;

struct Group {
    now: u64,
    members: BTreeMap<MemberId, Raft>,
    links: VecDeque<(u64, MemberId, MemberId, EngineMessage)>,
    decided: BTreeMap<MemberId, Vec<(Instance, Batch)>>,
    /// What every member that lives answers a control entry with; nothing behind its own leave, nor when the engine is changed.
    set: MemberSet,
    left: MemberSet,
    answered: BTreeMap<MemberId, usize>,
}

impl Group {
    fn new(n: u16, seed: u64) -> Self {
        Self::with(n, |me| Config { seed, ..Config::new(me) })
    }

    fn with(n: u16, config: impl Fn(MemberId) -> Config) -> Self {
        let set = MemberSet::first(n);
        let members = set.iter().map(|me| (me, Raft::new(config(me), 0, 1, &set, None).unwrap())).collect();
        Self {
            now: 0,
            members,
            links: VecDeque::new(),
            decided: BTreeMap::new(),
            set,
            left: MemberSet::new(),
            answered: BTreeMap::new(),
        }
    }

    fn collect(&mut self) {
        for (&me, raft) in &mut self.members {
            raft.invariants();
            while let Some(action) = raft.poll_action() {
                match action {
                    Action::Send { to, message } => self.links.push_back((self.now + DELAY_NS, me, to, message)),
                    Action::Decide { instance, batch } => {
                        let log = self.decided.entry(me).or_default();
                        assert_eq!(instance, log.last().map_or(instance, |(last, _)| last + 1), "{me} decides in order");
                        for entry in batch.iter() {
                            match entry.body {
                                Body::Join(member) => _ = self.set.insert(member),
                                Body::Leave(member) => _ = self.set.remove(member),
                                _ => {}
                            }
                        }
                        log.push((instance, batch));
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    /// The next thing that happens; answers barriers at once.
    fn step(&mut self) {
        let arrival = self.links.front().map(|(at, ..)| *at).unwrap_or(u64::MAX);
        let tick = self.members.values().filter_map(Raft::poll_timeout).min().unwrap();
        self.now = self.now.max(arrival.min(tick));
        if arrival <= tick {
            let (_, from, to, message) = self.links.pop_front().unwrap();
            if let Some(raft) = self.members.get_mut(&to) {
                // An unknown peer is one that left.
                let _ = raft.handle_message(self.now, from, message);
            }
        } else {
            for raft in self.members.values_mut().filter(|raft| raft.poll_timeout() <= Some(tick)) {
                raft.handle_timeout(self.now);
            }
        }
        self.collect();
        while self.answer() {
            self.collect();
        }
    }

    /// Answers the barriers that were not answered yet; whether there were any.
    fn answer(&mut self) -> bool {
        let mut any = false;
        for (&me, raft) in &mut self.members {
            let log = self.decided.entry(me).or_default();
            let from = self.answered.insert(me, log.len()).unwrap_or(0);
            for (instance, batch) in &log[from..] {
                let control = batch.iter().any(|entry| matches!(entry.body, Body::Join(_) | Body::Leave(_)));
                if !control || self.left.contains(me) {
                    continue;
                }
                any = true;
                if self.set.contains(me) {
                    raft.set_members(self.now, instance + 1, self.set.clone()).unwrap();
                } else {
                    raft.set_leaving(self.now, instance + 1, self.set.clone());
                    self.left.insert(me);
                }
            }
        }
        any
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        for _ in 0..200_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("never: {what}");
    }

    fn propose(&mut self, at: u16, number: u64, body: Body) {
        let id = EntryId { proposer: MemberId(at), number };
        self.members.get_mut(&MemberId(at)).unwrap().propose(self.now, Entry { id, body }).unwrap();
        self.collect();
    }

    fn leader(&self) -> Option<MemberId> {
        self.members.values().find(|raft| raft.leader().is_some_and(|l| self.members.contains_key(&l))).and_then(Raft::leader)
    }

    fn entries(&self, me: u16) -> Vec<EntryId> {
        let log = self.decided.get(&MemberId(me)).into_iter().flatten();
        log.flat_map(|(_, batch)| batch.iter().map(|entry| entry.id)).collect()
    }

    /// Everybody alive has the same log, of at least `n` entries.
    fn agreed(&self, n: usize) -> bool {
        let mut logs = self.members.keys().map(|me| self.entries(me.0));
        let first = logs.next().unwrap();
        first.len() >= n && logs.all(|log| log == first)
    }
}

fn value(text: &str) -> Body {
    Body::Value(Arc::from(text.as_bytes()))
}

/// Instance, index, term, voters, and those of the change before.
type StartPoint = (u64, u64, u64, Vec<u64>, Vec<u64>);

#[test]
fn entries_of_every_member_are_decided_everywhere_in_one_order() {
    let mut group = Group::new(3, 1);
    for number in 1..=20 {
        for at in 1..=3 {
            group.propose(at, number, value("x"));
        }
    }
    group.until("sixty entries", |group| group.agreed(60));
    for at in 1..=3 {
        let own: Vec<_> = group.entries(1).into_iter().filter(|id| id.proposer == MemberId(at)).map(|id| id.number).collect();
        assert_eq!(own, (1..=20).collect::<Vec<_>>(), "in the order in which they were handed in");
    }
}

#[test]
fn the_next_leader_does_not_wait_for_its_timeout_when_told_of_the_crash() {
    let mut group = Group::new(3, 7);
    group.until("a leader", |group| group.leader().is_some());
    group.propose(1, 1, value("before"));
    group.until("one entry", |group| group.agreed(1));
    let dead = group.leader().unwrap();
    group.members.remove(&dead);
    let began = group.now;
    for raft in group.members.values_mut() {
        raft.handle_crash(began, dead).unwrap();
        assert_eq!(raft.handle_crash(began, dead), Err(Refused::Duplicate));
    }
    group.collect();
    let heir = *group.members.keys().next().unwrap();
    group.propose(heir.0, 2, value("after"));
    group.until("another entry", |group| group.agreed(2));
    assert_eq!(group.leader(), Some(heir), "the lowest that is alive");
    assert!(group.now - began < 5 * MS, "well before any election timeout: {} µs", (group.now - began) / 1000);
}

#[test]
fn a_lost_proposal_is_made_again() {
    let mut group = Group::new(3, 3);
    group.until("a leader", |group| group.leader().is_some());
    let dead = group.leader().unwrap();
    let other = MemberId(if dead == MemberId(2) { 3 } else { 2 });
    // Forwarded to a leader that dies with it.
    group.propose(other.0, 1, value("forwarded"));
    group.links.clear();
    group.members.remove(&dead);
    group.until("it is decided all the same", |group| group.agreed(1));
}

/// A led group whose ticks are rare, behind its first entry.
fn led(word_wait_ns: u64) -> (Group, MemberId) {
    let mut group = Group::with(3, |me| Config { tick_ns: 100 * MS, word_wait_ns, ..Config::new(me) });
    group.until("a leader", |group| group.leader().is_some());
    let leader = group.leader().unwrap();
    group.propose(leader.0, 1, value("first"));
    group.until("an entry", |group| group.agreed(1));
    group.until("nothing is on its way", |group| group.links.is_empty());
    (group, leader)
}

#[test]
fn what_the_leader_proposed_itself_is_told_with_the_next_entries_or_a_little_later() {
    for word_wait_ns in [0, 2 * MS] {
        let (mut group, leader) = led(word_wait_ns);
        let begun = group.now;
        group.propose(leader.0, 2, value("second"));
        group.until("the leader has it", |group| group.entries(leader.0).len() == 2);
        assert_eq!(group.now, begun + 2 * DELAY_NS, "one round trip, whatever the word waits");
        let decided = group.now;
        group.until("all have it", |group| group.agreed(2));
        assert_eq!(group.now, decided + word_wait_ns + DELAY_NS);

        // Entries that follow at once say it, too.
        group.until("nothing is on its way", |group| group.links.is_empty());
        group.propose(leader.0, 3, value("third"));
        group.until("the leader has it", |group| group.entries(leader.0).len() == 3);
        let decided = group.now;
        group.propose(leader.0, 4, value("fourth"));
        group.until("all have the third", |group| (1..=3).all(|member| group.entries(member).len() >= 3));
        assert_eq!(group.now, decided + DELAY_NS);
        group.until("all have both", |group| group.agreed(4));
    }
}

#[test]
fn whoever_proposed_by_the_leader_is_told_at_once() {
    let (mut group, leader) = led(2 * MS);
    let other = MemberId(if leader == MemberId(2) { 3 } else { 2 });
    let begun = group.now;
    group.propose(other.0, 1, value("forwarded"));
    group.until("its proposer has it", |group| group.entries(other.0).len() == 2);
    assert_eq!(group.now, begun + 4 * DELAY_NS, "there, two ways for the copies, and back");
}

#[test]
fn others_whose_proposals_come_one_behind_the_other_are_each_told_at_once() {
    let (mut group, leader) = led(2 * MS);
    let others: Vec<u16> = (1..=3).filter(|member| *member != leader.0).collect();
    let begun = group.now;
    group.propose(others[0], 1, value("forwarded"));
    group.until("it is at the leader", |group| group.now == begun + DELAY_NS);
    group.propose(others[1], 1, value("behind it"));
    group.until("the first one's proposer has it", |group| group.entries(others[0]).len() == 2);
    assert_eq!(group.now, begun + 4 * DELAY_NS);
    group.until("the second one's has both", |group| group.entries(others[1]).len() == 3);
    assert_eq!(group.now, begun + 5 * DELAY_NS);
}

#[test]
fn a_minority_decides_nothing() {
    let mut group = Group::new(3, 5);
    group.until("a leader", |group| group.leader().is_some());
    group.propose(1, 1, value("with all"));
    group.until("one entry", |group| group.agreed(1));
    let leader = group.leader().unwrap();
    group.members.retain(|me, _| *me == leader);
    group.propose(leader.0, 2, value("alone"));
    let end = group.now + 200 * MS;
    while group.now < end {
        group.step();
    }
    assert_eq!(group.entries(leader.0).len(), 1);
    assert_eq!(group.members[&leader].leader(), None, "a leader that hears no majority steps down");
}

#[test]
fn members_join_with_a_start_point_and_leave() {
    let mut group = Group::new(2, 9);
    group.propose(1, 1, value("early"));
    group.until("one entry", |group| group.agreed(1));
    group.propose(2, 1, Body::Join(MemberId(3)));
    group.until("the join is decided by both", |group| group.agreed(2));
    let sponsor = &group.members[&MemberId(1)];
    let (first, start) = (sponsor.decided_through() + 1, sponsor.start_point().unwrap());
    let set = group.set.clone();
    let me = MemberId(3);
    group.members.insert(me, Raft::new(Config::new(me), group.now, first, &set, Some(&start)).unwrap());
    group.propose(1, 2, value("for three"));
    group.until("the new one decides it", |group| group.entries(3).len() == 1 && group.entries(1).len() == 3);
    // Two of three leave, one after the other; each stays until the others can do without it.
    for (gone, number) in [(1, 3), (2, 2)] {
        group.propose(gone, number, Body::Leave(MemberId(gone)));
        group.until("may leave", |group| {
            let decided = group.entries(gone).contains(&EntryId { proposer: MemberId(gone), number });
            decided && group.members[&MemberId(gone)].may_leave()
        });
        group.members.remove(&MemberId(gone));
    }
    group.propose(3, 1, value("alone"));
    group.until("decided by the last one", |group| group.entries(3).contains(&EntryId { proposer: MemberId(3), number: 1 }));
}

/// The simulator's seed 15231: two of five are dead and a sixth, who joined, dies as well. Raft's membership follows the log's only when the log has been
/// decided that far; a step through all six, of whom three live, would have no majority although every group that was decided on has one.
#[test]
fn a_newcomer_that_dies_while_the_dead_leave_stops_nobody() {
    for seed in 0..20 {
        let mut group = Group::new(5, seed);
        group.until("a leader", |group| group.leader().is_some());
        let leader = group.leader().unwrap().0;
        let dead: Vec<u16> = (1..=5).filter(|i| *i != leader).take(2).collect();
        for i in &dead {
            group.members.remove(&MemberId(*i));
        }
        // At three members at once, so that they are decided together: Raft's membership is behind by all three then.
        let others: Vec<u16> = group.members.keys().map(|me| me.0).filter(|i| *i != leader).collect();
        group.propose(others[0], 1, Body::Leave(MemberId(dead[0])));
        group.propose(leader, 1, Body::Join(MemberId(6)));
        group.propose(others[1], 1, Body::Leave(MemberId(dead[1])));
        group.propose(leader, 2, value("after"));
        group.until("everybody of the living decides", |group| group.agreed(4));
        group.until("the dead are removed, too", |group| {
            let points = group.members.values().filter_map(Engine::start_point);
            let all: Vec<StartPoint> = points.map(|p| postcard::from_bytes(&p).unwrap()).collect();
            all.iter().all(|(.., voters, outgoing)| outgoing.is_empty() && voters.len() == 4 && voters.contains(&6))
        });
    }
}

/// The simulator's seed 1000041667: the leader had begun to remove a member, and died; the one that is to go leads next, and commits its own removal.
#[test]
fn whose_removal_its_predecessor_began_steps_down() {
    let mut own_removals = 0;
    for steps in 0..60 {
        let mut group = Group::new(5, 3);
        group.until("a leader", |group| group.leader().is_some());
        let leader = group.leader().unwrap();
        let heir = *group.members.keys().find(|me| **me != leader).unwrap();
        group.propose(leader.0, 1, Body::Leave(heir));
        group.until("the leader knows", |group| !group.entries(leader.0).is_empty());
        for _ in 0..steps {
            group.step();
        }
        group.members.remove(&leader);
        for raft in group.members.values_mut() {
            let _ = raft.handle_crash(group.now, leader);
        }
        group.collect();
        // Entries behind the removal, so that there is something to commit when the heir is out.
        let others: Vec<u16> = group.members.keys().filter(|me| **me != heir).map(|me| me.0).collect();
        for other in &others {
            group.propose(*other, 1, value("behind"));
        }
        group.until("another leads, and the heir is out", |group| {
            own_removals += usize::from(group.members[&heir].leader() == Some(heir));
            let stays = others.iter().map(|other| &group.members[&MemberId(*other)]);
            stays.filter(|raft| raft.quorums() == [group.set.clone()] && raft.leader().is_some_and(|l| l != heir)).count() == 3
        });
        assert!(group.members.values().all(|raft| raft.halted().is_none()), "after {steps} steps");
        group.until("the others go on", |group| others.iter().all(|other| group.entries(*other).len() == 4));
    }
    assert!(own_removals > 0, "the heir led, sometimes");
}

fn id(proposer: MemberId, number: u64) -> EntryId {
    EntryId { proposer, number }
}

/// The library's leader panics when it commits anything behind its own removal.
#[test]
fn a_leader_that_leaves_hands_over_while_others_propose() {
    for seed in 0..20 {
        let mut group = Group::new(3, seed);
        group.until("a leader", |group| group.leader().is_some());
        let leader = group.leader().unwrap();
        let others: Vec<_> = group.set.iter().filter(|member| *member != leader).collect();
        group.propose(leader.0, 1, Body::Leave(leader));
        for number in 1..=40 {
            for _ in 0..3 {
                group.step();
            }
            others.iter().for_each(|other| group.propose(other.0, number, value("meanwhile")));
        }
        group.until("it may leave", |group| group.left.contains(leader) && group.members[&leader].may_leave());
        group.members.remove(&leader);
        group.until("the others go on", |group| group.agreed(81));
    }
}

/// A leader that leaves leads on until it is followed; how things stand behind a join that comes meanwhile nobody tells it.
#[test]
fn who_has_left_does_not_wait_behind_the_barriers_of_others() {
    let mut group = Group::new(1, 6);
    let me = MemberId(1);
    group.propose(1, 1, Body::Leave(me));
    group.until("its leave is decided", |group| group.agreed(1));
    let raft = group.members.get_mut(&me).unwrap();
    raft.set_leaving(group.now, 2, MemberSet::new());
    group.left.insert(me);
    group.propose(1, 2, Body::Join(MemberId(3)));
    group.propose(1, 3, value("behind it"));
    group.until("both are decided", |group| group.agreed(3));
}

/// Its vote may be needed to put its own removal through.
#[test]
fn whoever_leaves_stays_until_its_removal_is_decided() {
    let mut group = Group::new(2, 8);
    group.until("a leader", |group| group.leader().is_some());
    let leader = group.leader().unwrap();
    let other = group.set.iter().find(|member| *member != leader).unwrap();
    group.propose(other.0, 1, Body::Leave(other));
    group.until("it may leave", |group| group.left.contains(other) && group.members[&other].may_leave());
    // What it sent last is lost with it.
    group.members.remove(&other);
    group.links.retain(|(_, from, ..)| *from != other);
    group.propose(leader.0, 1, value("alone"));
    group.until("the other one goes on", |group| group.entries(leader.0).contains(&id(leader, 1)));
}

/// The library counts votes by what a member has applied: who does not know that the removal is committed needs the vote of who was removed.
#[test]
fn whoever_leaves_stays_until_all_who_stay_know_of_its_removal() {
    let mut group = Group::new(4, 8);
    group.until("a leader", |group| group.leader().is_some());
    let leader = group.leader().unwrap();
    let [leaves, knows, cut_off] = group.set.iter().filter(|member| *member != leader).collect::<Vec<_>>()[..] else { panic!() };
    group.propose(leaves.0, 1, Body::Leave(leaves));
    group.until("its leave is decided", |group| group.left.contains(leaves) && group.entries(cut_off.0).len() == 1);
    // From now on one that stays hears nothing. Those that know are a majority of three.
    let is_removed = |raft: &Raft| raft.quorums().iter().all(|voters| !voters.contains(leaves));
    let end = group.now + 40 * MS;
    while group.now < end {
        group.links.retain(|(_, _, to, _)| *to != cut_off);
        group.step();
        assert!(!group.members[&leaves].may_leave(), "at {}", group.now);
    }
    assert!(is_removed(&group.members[&leader]) && is_removed(&group.members[&knows]) && !is_removed(&group.members[&cut_off]));
    group.until("it may leave", |group| group.members[&leaves].may_leave());
    assert!(is_removed(&group.members[&cut_off]));
    // Any two of those who stay go on.
    for dies in [leader, knows, cut_off] {
        let mut rest = group.members.keys().copied().filter(|member| ![leaves, dies].contains(member));
        assert!(rest.all(|member| is_removed(&group.members[&member])));
    }
}

/// Hints release nobody: whoever is only held to be dead may live, and count the vote of who was removed. Once the group has removed the dead, they are not waited for.
#[test]
fn whoever_leaves_waits_for_the_suspected_until_they_are_removed() {
    let mut group = Group::new(4, 8);
    group.until("a leader", |group| group.leader().is_some());
    let leader = group.leader().unwrap();
    let [leaves, stays, dead] = group.set.iter().filter(|member| *member != leader).collect::<Vec<_>>()[..] else { panic!() };
    group.members.remove(&dead);
    for member in [leader, stays] {
        let now = group.now;
        group.members.get_mut(&member).unwrap().handle_crash(now, dead).unwrap();
    }
    group.propose(leaves.0, 1, Body::Leave(leaves));
    group.until("its leave is decided", |group| group.left.contains(leaves));
    let end = group.now + 40 * MS;
    while group.now < end {
        group.step();
        assert!(!group.members[&leaves].may_leave(), "at {}", group.now);
    }
    group.propose(leader.0, 2, Body::Leave(dead));
    group.until("it may leave", |group| group.members[&leaves].may_leave());
}

/// Raft's own members change one after the other; the engine's last decision must not keep the last newcomer out.
#[test]
fn a_newcomer_decides_a_switch_that_came_right_behind_its_join() {
    let mut tried = 0;
    for between in 0..40 {
        let mut group = Group::new(3, 1);
        group.until("a leader", |group| group.leader().is_some());
        let leader = group.leader().unwrap();
        let other = group.set.iter().find(|member| *member != leader).unwrap();
        let dead = group.set.iter().find(|member| *member != leader && *member != other).unwrap();
        group.members.remove(&dead);
        group.propose(leader.0, 1, Body::Leave(dead));
        group.propose(leader.0, 2, Body::Switch(fide_proto::consensus::Kind::Hsuc));
        for _ in 0..between {
            group.step();
        }
        group.propose(other.0, 1, Body::Join(MemberId(4)));
        let has = |group: &Group, entry| group.entries(leader.0).contains(&entry);
        group.until("one of them is decided", |group| has(group, id(leader, 2)) || has(group, id(other, 1)));
        if has(&group, id(leader, 2)) {
            continue;
        }
        tried += 1;
        let sponsor = &group.members[&leader];
        let (first, start, set) = (sponsor.decided_through() + 1, sponsor.start_point().unwrap(), group.set.clone());
        let newcomer = Raft::new(Config::new(MemberId(4)), group.now, first, &set, Some(&start)).unwrap();
        group.members.insert(MemberId(4), newcomer);
        group.until("it decides the switch", |group| group.entries(4).contains(&id(leader, 2)));
    }
    assert!(tried > 0, "the join came first {tried} times");
}

/// The last voter cannot be removed: whoever leaves last ends the group, and does not ask for its own removal for ever.
#[test]
fn the_last_member_leaves() {
    let mut group = Group::new(1, 2);
    let me = MemberId(1);
    group.propose(1, 1, value("alone"));
    group.until("one entry", |group| group.agreed(1));
    group.propose(1, 2, Body::Leave(me));
    group.until("its leave is decided", |group| group.agreed(2));
    let (now, set) = (group.now, group.set.clone());
    assert!(set.is_empty());
    let raft = group.members.get_mut(&me).unwrap();
    raft.set_leaving(now, 3, set);
    assert!(raft.may_leave());
    let end = group.now + 100 * MS;
    while group.now < end {
        group.step();
    }
    assert_eq!(group.members[&me].halted(), None);
}

/// The library commits a change about id 0 and does nothing of it.
#[test]
fn a_member_that_cannot_be_is_not_tried_for_ever() {
    let mut group = Group::new(1, 1);
    group.until("a leader", |group| group.leader().is_some());
    let raft = group.members.get_mut(&MemberId(1)).unwrap();
    raft.propose(0, Entry { id: EntryId { proposer: MemberId(1), number: 1 }, body: Body::Join(MemberId(7)) }).unwrap();
    raft.set_members(0, raft.decided_through() + 1, [0, 1].map(MemberId).into_iter().collect()).unwrap();
    group.propose(1, 2, value("after"));
    group.until("it goes on", |group| group.entries(1).len() == 2);
}

#[test]
fn the_log_that_is_kept_is_bounded() {
    let mut group = Group::new(3, 4);
    let set = MemberSet::first(3);
    group.members =
        set.iter().map(|me| (me, Raft::new(Config { kept_max: 64, ..Config::new(me) }, 0, 1, &set, None).unwrap())).collect();
    for number in 1..=1000 {
        group.propose(1, number, value("x"));
        group.until("decided", |group| group.agreed(number as usize));
    }
    assert!(group.members.values().all(|raft| raft.kept() <= 65));
}

#[test]
fn what_no_correct_member_sends_is_refused() {
    let mut group = Group::new(3, 11);
    let raft = group.members.get_mut(&MemberId(1)).unwrap();
    let garbage: fide_proto::group::Value = Arc::from(&b"\xff\xff\xff"[..]);
    assert_eq!(raft.handle_message(0, MemberId(2), EngineMessage::Opaque(garbage)), Err(Refused::Malformed));
    assert_eq!(raft.handle_crash(0, MemberId(9)), Err(Refused::UnknownMember));
    assert_eq!(raft.refusals().total(), 2);
    // Who votes without whom: cut short, too long, with us, without the sender, of ourselves.
    let votes = |living: &[u64]| [vec![2], postcard::to_stdvec(&(7u64, living, true)).unwrap()].concat();
    let many: Vec<u64> = (2..500).collect();
    let trailing = [votes(&[2, 3]), vec![0]].concat();
    let wrong =
        [vec![1, 0], vec![2], votes(&[2, 3])[..3].to_vec(), trailing, votes(&[1, 2]), votes(&[3]), votes(&[]), votes(&many)];
    for bytes in wrong {
        let message = EngineMessage::Opaque(bytes.clone().into());
        assert_eq!(raft.handle_message(0, MemberId(2), message), Err(Refused::Malformed), "{bytes:?}");
    }
    let right = || EngineMessage::Opaque(votes(&[2, 3]).into());
    assert_eq!(raft.handle_message(0, MemberId(1), right()), Err(Refused::Malformed));
    assert_eq!(raft.handle_message(0, MemberId(2), right()), Ok(()));
    assert!(!raft.may_leave(), "it has not left");
}

/// A joiner takes its beginning from whoever says that it is a member.
#[test]
fn a_beginning_that_cannot_be_is_refused() {
    let begin = |start: (u64, u64, u64, Vec<u64>, Vec<u64>)| {
        let start = postcard::to_stdvec(&start).unwrap();
        Raft::new(Config::new(MemberId(3)), 0, 6, &MemberSet::first(3), Some(&start)).err()
    };
    assert_eq!(begin((5, 9, 2, vec![1, 2], vec![])), None);
    for wrong in [
        (4, 9, 2, vec![1, 2], vec![]),
        (5, u64::MAX, 2, vec![1, 2], vec![]),
        (5, 9, u64::MAX, vec![1, 2], vec![]),
        (5, 9, 2, vec![], vec![]),
        (5, 9, 2, (1..999).collect(), vec![]),
    ] {
        assert_eq!(begin(wrong.clone()), Some(Refused::Malformed), "{wrong:?}");
    }
}

/// Valid messages with flipped bytes: refused, harmless, or the end of this member; never of its process.
#[test]
fn mangled_messages_never_panic() {
    let mut rng = 0x1234_5678_u64;
    let mut random = move |n: u64| {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        rng % n
    };
    let (mut refused, mut contradictions) = (0, 0);
    for seed in 0..1000 {
        let mut group = Group::new(3, seed);
        for round in 0..150 {
            if round % 10 == 0 {
                group.propose(1, round / 10 + 1, value("x"));
            }
            if let Some((_, from, to, EngineMessage::Opaque(bytes))) = group.links.front().cloned() {
                let mut bytes = bytes.to_vec();
                for _ in 0..=random(3) {
                    if !bytes.is_empty() {
                        let at = random(bytes.len() as u64) as usize;
                        bytes[at] = random(256) as u8;
                    }
                }
                let now = group.now;
                let raft = group.members.get_mut(&to).unwrap();
                let taken = raft.handle_message(now, from, EngineMessage::Opaque(bytes.into()));
                refused += u64::from(taken.is_err());
                raft.invariants();
            }
            // Its effects may be anything but a panic; only the pure runs above assert agreement.
            let arrival = group.links.pop_front();
            if let Some((_, from, to, message)) = arrival {
                let now = group.now;
                let _ = group.members.get_mut(&to).unwrap().handle_message(now, from, message);
            } else {
                group.now += MS;
                let now = group.now;
                for raft in group.members.values_mut() {
                    raft.handle_timeout(now);
                }
            }
            for (&me, raft) in &mut group.members {
                while let Some(action) = raft.poll_action() {
                    match action {
                        Action::Send { to, message } => group.links.push_back((0, me, to, message)),
                        Action::Halt(_) => contradictions += 1,
                        _ => {}
                    }
                }
            }
            group.links.truncate(256);
        }
    }
    assert!(refused > 10_000 && contradictions < 10, "{refused} refused, {contradictions} found out too late");
}
