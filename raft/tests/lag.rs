//! Members that lag behind all of the log that is kept.

use std::collections::{BTreeMap, VecDeque};

use fide_proto::consensus::Kind;
use fide_proto::consensus::log::{self, Build, Log, Message, Output};
use fide_proto::group::{Body, EntryId, MAX_MEMBERS, MemberId, MemberSet, Refused};
use fide_raft::{Config, Raft};

const DELAY_NS: u64 = 50_000;
const KEPT: usize = 16;

fn build() -> Build {
    Box::new(|setup| {
        let config = Config { seed: 3, kept_max: KEPT, ..Config::new(setup.me) };
        let raft = Raft::new(config, setup.now_ns, setup.first, &setup.members, setup.start.as_deref());
        raft.ok().map(|raft| Box::new(raft) as _)
    })
}

/// Logs over Raft, links that keep order, and one who hears nothing.
struct World {
    now: u64,
    logs: BTreeMap<MemberId, Log>,
    links: VecDeque<(u64, MemberId, MemberId, Message)>,
    deaf: Option<MemberId>,
    applied: BTreeMap<MemberId, Vec<EntryId>>,
    transfers: usize,
    /// So many of them are refused, as by one who sees no leader just then.
    refused: usize,
}

impl World {
    fn new(n: u16) -> Self {
        let set = MemberSet::first(n);
        let log = |me| Log::new(0, me, Kind::Raft, set.clone(), log::Config::default(), build()).unwrap();
        let logs = set.iter().map(|me| (me, log(me))).collect();
        Self { now: 0, logs, links: VecDeque::new(), deaf: None, applied: BTreeMap::new(), transfers: 0, refused: 0 }
    }

    fn collect(&mut self) {
        for (&me, log) in &mut self.logs {
            log.invariants();
            while let Some(output) = log.poll_output() {
                match output {
                    Output::Send { to, message } => {
                        self.transfers += usize::from(matches!(message, Message::Transfer(_)));
                        if matches!(message, Message::Transfer(_)) && self.refused > 0 {
                            self.refused -= 1;
                            continue;
                        }
                        self.links.push_back((self.now + DELAY_NS, me, to, message));
                    }
                    Output::Apply { entry, .. } => self.applied.entry(me).or_default().push(entry.id),
                    Output::Install { .. } => {}
                    other => panic!("{me}: {other:?}"),
                }
            }
        }
    }

    fn step(&mut self) {
        let arrival = self.links.front().map_or(u64::MAX, |(at, ..)| *at);
        let tick = self.logs.values().filter_map(Log::poll_timeout).min().unwrap();
        self.now = self.now.max(arrival.min(tick));
        if arrival <= tick {
            let (_, from, to, message) = self.links.pop_front().unwrap();
            if let Some(log) = self.logs.get_mut(&to).filter(|_| self.deaf != Some(to) && self.deaf != Some(from)) {
                let _ = log.handle_message(self.now, from, message);
            }
        } else {
            for log in self.logs.values_mut().filter(|log| log.poll_timeout() <= Some(tick)) {
                log.handle_timeout(self.now);
            }
        }
        self.collect();
    }

    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..50_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("never: {what}");
    }

    fn propose(&mut self, at: MemberId, values: usize) {
        let before = self.logs[&at].position();
        for n in 1..=values {
            self.logs.get_mut(&at).unwrap().propose(self.now, vec![7].into()).unwrap();
            self.collect();
            self.until("applied", |world| world.logs[&at].position() == before + n as u64);
        }
    }

    fn leader(&self) -> Option<MemberId> {
        self.logs.values().find_map(Log::leader)
    }
}

#[test]
fn who_lags_behind_all_that_is_kept_is_given_the_state_and_goes_on() {
    let mut world = World::new(3);
    world.until("a leader", |world| world.leader().is_some());
    let leader = world.leader().unwrap();
    let [lags, other] = [1, 2, 3].map(MemberId).into_iter().filter(|me| *me != leader).collect::<Vec<_>>().try_into().unwrap();
    world.propose(leader, 3);
    world.until("all have it", |world| world.logs.values().all(|log| log.position() == 3));
    world.deaf = Some(lags);
    world.propose(leader, 10 * KEPT);
    // Of its own, handed in while it lagged: it must not get lost.
    world.logs.get_mut(&lags).unwrap().propose(world.now, vec![8].into()).unwrap();
    world.collect();
    world.deaf = None;
    let all = 3 + 10 * KEPT as u64 + 1;
    world.until("it is no longer behind", |world| world.logs.values().all(|log| log.position() == all && log.pending() == 0));
    assert_eq!(world.applied[&lags], world.applied[&leader], "everything once, in the same order");
    assert_eq!(world.transfers, 1);
    // It counts again: with it alone the other one is a majority.
    let dead = world.leader().unwrap();
    world.logs.remove(&dead);
    let rest: Vec<_> = world.logs.keys().copied().collect();
    assert!(rest.contains(&lags) && (rest.contains(&other) || rest.contains(&leader)));
    for log in world.logs.values_mut() {
        log.handle_suspect(world.now, dead);
    }
    world.collect();
    world.propose(lags, 3);
    world.until("both have it", |world| world.logs.values().all(|log| log.position() == all + 3));
}

#[test]
fn a_state_that_was_not_taken_is_given_again_but_not_with_every_heartbeat() {
    let mut world = World::new(3);
    world.until("a leader", |world| world.leader().is_some());
    let leader = world.leader().unwrap();
    let lags = world.logs.keys().copied().find(|me| *me != leader).unwrap();
    world.deaf = Some(lags);
    world.propose(leader, 4 * KEPT);
    world.deaf = None;
    world.refused = 2;
    let began = world.now;
    world.until("it is no longer behind", |world| world.logs[&lags].position() == 4 * KEPT as u64);
    assert_eq!(world.transfers, 3);
    assert!(world.now - began >= 2 * 40 * 1_000_000, "four election timeouts apart: {} ns", world.now - began);
}

/// Its state is also who the members are, and of whom it was said that they had crashed.
#[test]
fn who_lags_learns_of_joins_and_leaves_that_it_missed() {
    let mut world = World::new(4);
    world.until("a leader", |world| world.leader().is_some());
    let leader = world.leader().unwrap();
    let others: Vec<_> = world.logs.keys().copied().filter(|me| *me != leader).collect();
    let (lags, dead) = (others[0], others[1]);
    world.deaf = Some(lags);
    world.propose(leader, 2 * KEPT);
    let newcomer = MemberId(5);
    world.logs.insert(newcomer, Log::join(newcomer, log::Config::default(), build()));
    world.logs.get_mut(&leader).unwrap().admit(world.now, newcomer).unwrap();
    world.until("it is in", |world| world.logs[&newcomer].is_running());
    world.logs.remove(&dead);
    for log in world.logs.values_mut() {
        let _ = log.handle_crash(world.now, dead);
    }
    world.collect();
    world.until("the dead one is out", |world| !world.logs[&leader].members().contains(dead));
    world.propose(leader, 2 * KEPT);
    world.deaf = None;
    world.until("all are where the leader is", |world| {
        let (position, members) = (world.logs[&leader].position(), world.logs[&leader].members());
        world.logs.values().all(|log| log.position() == position && log.members() == members)
    });
    world.propose(lags, 1);
}

#[test]
fn a_state_that_nobody_owes_is_refused() {
    let mut world = World::new(3);
    world.until("a leader", |world| world.leader().is_some());
    let leader = world.leader().unwrap();
    world.propose(leader, 3);
    world.until("all have it", |world| world.logs.values().all(|log| log.position() == 3));
    let follower = world.logs.keys().copied().find(|me| *me != leader).unwrap();
    let refuses = |start: Option<&[u8]>, from, through| {
        use fide_proto::consensus::Engine;
        let set = MemberSet::first(2);
        let mut raft = Raft::new(Config::new(MemberId(1)), 0, 1, &set, None).unwrap();
        let refused = raft.handle_state(0, from, through, &set, start).unwrap_err();
        assert_eq!((raft.decided_through(), raft.refusals().of(refused)), (0, 1));
        refused
    };
    let point = postcard::to_stdvec(&(9u64, 9u64, 0u64, vec![1u64, 2], Vec::<u64>::new())).unwrap();
    assert_eq!(refuses(None, MemberId(2), 9), Refused::Malformed);
    assert_eq!(refuses(Some(b"no"), MemberId(2), 9), Refused::Malformed);
    assert_eq!(refuses(Some(&point), MemberId(2), 9), Refused::NotLeader);
    // What is said of Raft's log does not go with what is said of the entries.
    assert_eq!(refuses(Some(&point), MemberId(2), 8), Refused::Malformed);
    for (first, is_it) in [(9, false), (10, true), (11, false)] {
        let raft = Raft::new(Config::new(MemberId(1)), 0, first, &MemberSet::first(2), Some(&point));
        assert_eq!(raft.is_ok(), is_it, "{:?}", raft.err());
    }
    // Between logs: who is not behind does not take it.
    let log = world.logs.get_mut(&leader).unwrap();
    log.handle_message(world.now, follower, Message::Ask).unwrap();
    world.collect();
    let (.., transfer) = world.links.back().cloned().unwrap();
    assert!(matches!(transfer, Message::Transfer(_)));
    let log = world.logs.get_mut(&follower).unwrap();
    assert_eq!(log.handle_message(world.now, leader, transfer), Err(Refused::Duplicate));
}

#[test]
fn members_that_cannot_be_are_refused_and_harmless() {
    use fide_proto::consensus::{Action, Engine};
    let set = MemberSet::first(1);
    let me = MemberId(1);
    let mut raft = Raft::new(Config::new(me), 0, 1, &set, None).unwrap();
    raft.campaign();
    raft.propose(0, fide_proto::group::Entry { id: EntryId { proposer: me, number: 1 }, body: Body::Join(MemberId(2)) }).unwrap();
    assert!(std::iter::from_fn(|| raft.poll_action()).any(|action| matches!(action, Action::Decide { instance: 1, .. })));
    let many = (1..=MAX_MEMBERS as u16 + 1).map(MemberId).collect();
    for (from, members) in [(1, set.clone()), (3, set.clone()), (u64::MAX, set.clone()), (2, many)] {
        assert_eq!(raft.set_members(0, from, members), Err(Refused::Malformed), "from {from}");
    }
    assert_eq!(raft.set_members(0, 2, MemberSet::first(2)), Ok(()));
}
