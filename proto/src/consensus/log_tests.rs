//! Two members whose links deliver what says [`Message::Reached`] before what decides.

use std::collections::VecDeque;

use super::super::hsuc::{self, Hsuc};
use super::super::huc::Huc;
use super::*;

const P1: MemberId = MemberId(1);
const P2: MemberId = MemberId(2);

const P3: MemberId = MemberId(3);

fn build() -> Build {
    Box::new(|setup| {
        let hsuc = Hsuc::new(setup.me, setup.members.clone(), setup.first);
        matches!(setup.kind, Kind::Hsuc | Kind::Huc).then(|| Box::new(Carried::<_, hsuc::Message>::new(hsuc)) as _)
    })
}

fn member(me: MemberId) -> Log {
    of(me, 2)
}

fn of(me: MemberId, n: u16) -> Log {
    Log::new(0, me, Kind::Hsuc, MemberSet::first(n), Config::default(), build()).unwrap()
}

/// Carries what passes, from oldest to newest, until nothing is on its way; what does not pass is lost.
fn carry(logs: &mut [&mut Log], passes: impl Fn(MemberId, MemberId, &Message) -> bool) {
    let mut wires = VecDeque::new();
    loop {
        for log in logs.iter_mut() {
            let from = log.me();
            while let Some(output) = log.poll_output() {
                if let Output::Send { to, message } = output {
                    wires.push_back((from, to, message));
                }
            }
            log.invariants();
        }
        let Some((from, to, message)) = wires.pop_front() else { return };
        if passes(from, to, &message)
            && let Some(log) = logs.iter_mut().find(|log| log.me() == to)
        {
            let _ = log.handle_message(0, from, message);
        }
    }
}

/// Until nothing is on its way: to P2 comes first what P1 reached, as when decisions travel by other ways than the links.
fn run(logs: &mut [Log; 2]) {
    let mut wires = [VecDeque::new(), VecDeque::new()];
    loop {
        for (from, log) in logs.iter_mut().enumerate() {
            while let Some(output) = log.poll_output() {
                if let Output::Send { message, .. } = output {
                    wires[1 - from].push_back((log.me(), message));
                }
            }
            log.invariants();
        }
        let early = wires[1].iter().position(|(_, message)| matches!(message, Message::Reached { .. })).unwrap_or(0);
        if let Some((from, message)) = wires[1].remove(early) {
            let _ = logs[1].handle_message(0, from, message);
        } else if let Some((from, message)) = wires[0].pop_front() {
            let _ = logs[0].handle_message(0, from, message);
        } else {
            return;
        }
    }
}

#[test]
fn behind_the_last_epoch_no_engine_follows() {
    let mut log = of(P1, 1);
    log.epoch = Epoch::MAX - 1;
    for (kind, epoch) in [(Kind::Huc, Epoch::MAX), (Kind::Hsuc, Epoch::MAX)] {
        log.applied_switch(0, kind);
        assert_eq!((log.epoch, log.kind()), (epoch, Kind::Huc));
    }
}

#[test]
fn a_leaver_counts_who_was_through_before_it() {
    let mut logs = [member(P1), member(P2)];
    logs[1].leave(0).unwrap();
    run(&mut logs);
    assert_eq!(logs[1].halted(), Some(Halted::Left));
    assert!(!logs[0].members().contains(P2) && logs[0].halted().is_none());
}

/// HUC's leader has decided when its heartbeat has left, and that heartbeat is still on its way.
#[test]
fn a_leader_of_huc_that_leaves_stays_until_the_others_have_applied_that() {
    let huc = || -> Build {
        Box::new(|setup| Some(Box::new(Carried::new(Huc::new(setup.me, setup.members.clone(), setup.first))) as _))
    };
    let log = |me| Log::new(0, me, Kind::Huc, MemberSet::first(2), Config::default(), huc()).unwrap();
    let (mut p1, mut p2) = (log(P1), log(P2));
    carry(&mut [&mut p1, &mut p2], |_, _, _| true);
    p1.leave(0).unwrap();
    let ride = p1.poll_piggyback(0).unwrap();
    p1.handle_piggyback_sent(0);
    carry(&mut [&mut p1, &mut p2], |_, _, _| true);
    assert!(p1.is_leaving() && p2.members().contains(P1));
    p2.handle_piggyback(0, P1, ride).unwrap();
    carry(&mut [&mut p1, &mut p2], |_, _, _| true);
    assert_eq!((p1.halted(), p2.halted()), (Some(Halted::Left), None));
}

#[test]
fn an_engine_is_let_go_when_all_are_behind_its_switch_whoever_was_first() {
    let mut logs = [member(P1), member(P2)];
    logs[1].switch(0, Kind::Huc).unwrap();
    run(&mut logs);
    assert!(logs.iter().all(|log| log.epoch() == 1 && log.previous.is_none()));
}

/// Those who are through hear of the crash as their new engine wants it, perhaps as a hint: then their old one never sends on what the dead one said.
#[test]
fn whose_source_of_a_switch_died_asks_those_who_are_through() {
    let (mut p1, mut p2, mut p3) = (of(P1, 3), of(P2, 3), of(P3, 3));
    p1.switch(0, Kind::Huc).unwrap();
    // Of what P1 decided P3 hears nothing, nor of P2 before P1 is dead.
    carry(&mut [&mut p1, &mut p2, &mut p3], |from, to, message| {
        to != P3
            || (from == P1 && matches!(message, Message::Engine { body: EngineMessage::Hsuc(hsuc::Message::Propose { .. }), .. }))
    });
    assert_eq!((p1.epoch(), p2.epoch(), p3.epoch()), (1, 1, 0));
    drop(p1);
    p3.handle_crash(0, P1).unwrap();
    p3.handle_message(0, P2, Message::Reached { epoch: 1, instance: 1 }).unwrap();
    carry(&mut [&mut p2, &mut p3], |_, _, _| true);
    assert_eq!(p3.epoch(), 1);
}

/// Only the engine before the last switch is kept.
#[test]
fn who_is_two_switches_behind_asks() {
    let (mut p1, mut p2) = (member(P1), member(P2));
    p1.switch(0, Kind::Huc).unwrap();
    let is_decision =
        |message: &Message| matches!(message, Message::Engine { body: EngineMessage::Hsuc(hsuc::Message::Decided(_)), .. });
    carry(&mut [&mut p1, &mut p2], |_, _, message| !is_decision(message) && !matches!(message, Message::Reached { .. }));
    assert_eq!((p1.epoch(), p2.epoch()), (1, 0));
    p1.handle_message(0, P2, Message::Reached { epoch: 0, instance: 0 }).unwrap();
    // As if others had carried it to the next one meanwhile.
    p2.handle_message(0, P1, Message::Reached { epoch: 2, instance: 2 }).unwrap();
    assert!(std::iter::from_fn(|| p2.poll_output()).any(|output| output == Output::Send { to: P1, message: Message::Ask }));
}

/// It may be one of those whom the leaver waits for: let in before the leave, and given a state from behind it, in which the leaver is no member.
#[test]
fn a_newcomer_tells_who_left_before_its_state_how_far_it_is() {
    let (mut p1, mut p2, mut p3) = (member(P1), member(P2), Log::join(P3, Config::default(), build()));
    p2.leave(0).unwrap();
    carry(&mut [&mut p1, &mut p2], |_, _, _| true);
    p1.admit(0, P3).unwrap();
    let left = Message::Reached { epoch: 0, instance: 1 };
    p3.handle_message(0, P2, left.clone()).unwrap();
    let answers =
        |p3: &mut Log| std::iter::from_fn(|| p3.poll_output()).filter(|o| matches!(o, Output::Send { to: P2, .. })).count();
    while let Some(output) = p1.poll_output() {
        if let Output::Send { message: message @ Message::Transfer(_), .. } = output {
            p3.handle_message(0, P1, message).unwrap();
        }
    }
    assert!(p3.is_running() && !p3.members().contains(P2));
    assert_eq!(answers(&mut p3), 1, "what it heard while it joined");
    p3.handle_message(0, P2, left).unwrap();
    assert_eq!(answers(&mut p3), 1, "what it hears later");
}

/// HSUC that may not go before it is told so, and may say that it is of another kind.
struct Needed(Carried<Hsuc, hsuc::Message>, Kind);

impl Engine<EngineMessage> for Needed {
    fn kind(&self) -> Kind {
        self.1
    }
    fn propose(&mut self, now_ns: u64, entry: Entry) -> Result<(), Refused> {
        self.0.propose(now_ns, entry)
    }
    fn handle_message(&mut self, now_ns: u64, from: MemberId, message: EngineMessage) -> Result<(), Refused> {
        self.0.handle_message(now_ns, from, message)
    }
    fn handle_crash(&mut self, now_ns: u64, member: MemberId) -> Result<(), Refused> {
        self.0.handle_crash(now_ns, member)
    }
    fn set_members(&mut self, now_ns: u64, from: Instance, members: MemberSet) -> Result<(), Refused> {
        self.0.set_members(now_ns, from, members)
    }
    fn may_leave(&self) -> bool {
        false
    }
    fn poll_action(&mut self) -> Option<Action<EngineMessage>> {
        self.0.poll_action()
    }
    fn decided_through(&self) -> Instance {
        self.0.decided_through()
    }
    fn stable_through(&self) -> Instance {
        self.0.stable_through()
    }
    fn leader(&self) -> Option<MemberId> {
        self.0.leader()
    }
    fn halted(&self) -> Option<Halted> {
        self.0.halted()
    }
    fn refusals(&self) -> &Refusals {
        self.0.refusals()
    }
    fn invariants(&self) {
        self.0.invariants();
    }
}

/// Raft needs the votes of those it has not removed yet, wherever these learnt of their leave. Who needs a majority and is told no truth of who is gone does not wait
/// for ever.
#[test]
fn who_learns_of_its_leave_from_others_stays_while_its_engine_is_needed() {
    let needed = |kind| -> Build {
        Box::new(move |setup| {
            Some(Box::new(Needed(Carried::new(Hsuc::new(setup.me, setup.members.clone(), setup.first)), kind)) as _)
        })
    };
    let is_decision =
        |message: &Message| matches!(message, Message::Engine { body: EngineMessage::Hsuc(hsuc::Message::Decided(_)), .. });
    let config = Config::default();
    for kind in [Kind::Hsuc, Kind::Paxos] {
        let mut p1 = Log::new(0, P1, kind, MemberSet::first(2), config, needed(kind)).unwrap();
        let mut p2 = Log::new(0, P2, kind, MemberSet::first(2), config, needed(kind)).unwrap();
        p2.leave(0).unwrap();
        carry(&mut [&mut p1, &mut p2], |_, _, message| !is_decision(message));
        assert!(!p1.members().contains(P2) && !p2.is_running(), "it asked, and was told");
        let end_ns = LEAVE_PATIENCE * config.ask_interval_ns;
        for now_ns in [0, end_ns - 1] {
            p2.handle_timeout(now_ns);
            p2.handle_suspect(now_ns, P1); // a hint releases nobody
            assert_eq!(p2.halted(), None);
        }
        assert_eq!(p2.poll_timeout(), (kind == Kind::Paxos).then_some(end_ns));
        p2.handle_timeout(end_ns);
        assert_eq!(p2.halted(), (kind == Kind::Paxos).then_some(Halted::Left));
    }
}

/// What somebody proposed who has left is void, also for who left before: nobody waits for that newcomer.
#[test]
fn a_void_join_behind_the_own_leave_is_no_newcomer() {
    let mut p1 = of(P1, 3);
    let entry = |proposer, number, body| Entry { id: EntryId { proposer, number }, body };
    p1.stage = Stage::Leaving { instance: 1, waits_for: MemberSet::new(), given: Given::NotYet };
    p1.members.remove(P1);
    for (instance, entry) in [
        (2, entry(P2, 1, Body::Leave(P2))),
        (3, entry(P2, 2, Body::Join(MemberId(4)))),
        (4, entry(P3, 1, Body::Join(MemberId(6)))),
        (5, entry(P3, 2, Body::Join(MemberId(5)))),
    ] {
        p1.decided(0, instance, &vec![entry].into());
    }
    assert_eq!((&p1.left_later, &p1.joined_later), (&[P2].into(), &[MemberId(6)].into()));
}

#[test]
fn strangers_and_impossible_numbers_are_refused_and_keep_nobody_from_catching_up() {
    let mut log = of(P1, 3);
    let body = || EngineMessage::Opaque(vec![1].into());
    let refused = [
        (MemberId(999), Message::Engine { epoch: 1, body: body() }, Refused::UnknownMember),
        (MemberId(999), Message::Reached { epoch: 2, instance: 1 }, Refused::UnknownMember),
        (MemberId(0), Message::Ask, Refused::UnknownMember),
        (P2, Message::Engine { epoch: Epoch::MAX, body: body() }, Refused::TooFarAhead),
        (P2, Message::Reached { epoch: Epoch::MAX, instance: 0 }, Refused::TooFarAhead),
        (P2, Message::Reached { epoch: 0, instance: Instance::MAX }, Refused::TooFarAhead),
    ];
    for (n, (from, message, why)) in refused.into_iter().enumerate() {
        assert_eq!(log.handle_message(0, from, message), Err(why), "message {n}");
        assert_eq!(log.refusals().total(), n as u64 + 1);
        assert!(log.poll_output().is_none());
    }
    // One who may be a newcomer is heard, and not relied on.
    log.handle_message(0, MemberId(9), Message::Reached { epoch: 2, instance: 1 }).unwrap();
    assert!(log.poll_output().is_none());
    log.handle_message(0, P2, Message::Reached { epoch: 2, instance: 1 }).unwrap();
    assert!(matches!(log.poll_output(), Some(Output::Send { to: P2, message: Message::Ask })));
    for (epoch, position) in [(Epoch::MAX - 1, 1), (2, Position::MAX)] {
        let transfer = Transfer {
            epoch,
            kind: Kind::Hsuc,
            through: 1,
            members: MemberSet::first(3),
            crashed: MemberSet::new(),
            highest: P3,
            applied: Default::default(),
            snapshot_position: position,
            snapshot: Some(vec![0].into()),
            entries: Vec::new(),
            start: None,
        };
        assert_eq!(log.handle_message(0, P2, Message::Transfer(Box::new(transfer))), Err(Refused::Malformed));
    }
}

#[test]
fn groups_that_cannot_be_are_refused() {
    let new = |members: MemberSet, kind| Log::new(0, P1, kind, members, Config::default(), build()).err();
    assert_eq!(new(MemberSet::new(), Kind::Hsuc), Some(Refused::NotMember));
    assert_eq!(new([P2, P3].into_iter().collect(), Kind::Hsuc), Some(Refused::NotMember));
    assert_eq!(new(MemberSet::first(MAX_MEMBERS as u16 + 1), Kind::Hsuc), Some(Refused::TooLarge));
    assert_eq!(new(MemberSet::first(2), Kind::Raft), Some(Refused::Malformed), "it is not built");
    assert_eq!(new(MemberSet::first(MAX_MEMBERS as u16), Kind::Hsuc), None);
}

/// Every answer is the whole state, and one that helps nobody would be asked for with every message that comes early.
#[test]
fn the_same_member_is_not_asked_again_soon() {
    let mut log = of(P1, 3);
    let asked = |log: &mut Log| -> Vec<MemberId> {
        let sent = std::iter::from_fn(|| log.poll_output());
        sent.filter_map(|output| match output {
            Output::Send { to, message: Message::Ask } => Some(to),
            _ => None,
        })
        .collect()
    };
    let ahead = |instance| Message::Reached { epoch: 2, instance };
    // It answers with what is known here.
    let mut old = member(P2);
    old.handle_message(0, P1, Message::Ask).unwrap();
    let answer = std::iter::from_fn(|| old.poll_output())
        .find_map(|output| match output {
            Output::Send { message: message @ Message::Transfer(_), .. } => Some(message),
            _ => None,
        })
        .unwrap();
    let interval = Config::default().ask_interval_ns;
    let mut times = 0;
    for now in (0..10 * interval).step_by(interval as usize / 20) {
        log.handle_message(now, P2, ahead(1 + now)).unwrap();
        if let [P2] = asked(&mut log)[..] {
            times += 1;
            log.handle_message(now, P2, answer.clone()).unwrap();
        }
    }
    assert_eq!(times, 10, "once in each interval");
    // Nothing more comes: it looks again by itself, when it may.
    let now = 10 * interval - interval / 20;
    log.handle_message(now, P2, ahead(1)).unwrap();
    assert!(asked(&mut log).is_empty());
    let at = log.poll_timeout().unwrap();
    assert!(at > now && at <= now + interval, "{at}");
    log.handle_timeout(at);
    assert_eq!(asked(&mut log), [P2]);
    // Another one may be asked at once.
    log.handle_message(at, P3, ahead(1)).unwrap();
    log.handle_message(at, P2, answer).unwrap();
    log.handle_message(at, P3, ahead(2)).unwrap();
    assert_eq!(asked(&mut log), [P3]);
}

/// Whoever was to send the state may be dead, and who leads then may know of no newcomer (seed 22647 of raft, engine-changes).
#[test]
fn a_newcomer_whose_state_does_not_come_asks_one_after_the_other_and_waits_longer_each_time() {
    const P4: MemberId = MemberId(4);
    let asked = |log: &mut Log| {
        let mut asked = Vec::new();
        while let Some(output) = log.poll_output() {
            if let Output::Send { to, message: Message::Ask } = output {
                asked.push(to);
            }
        }
        asked
    };
    let interval = Config::default().ask_interval_ns;
    let mut joiner = Log::join(P4, Config::default(), build());
    assert_eq!(joiner.poll_timeout(), None, "its join is applied nowhere yet");
    for from in [P1, P2, P3] {
        joiner.handle_message(5, from, Message::Reached { epoch: 0, instance: 1 }).unwrap();
    }
    joiner.handle_crash(6, P3).unwrap();
    let mut at = 5 + interval;
    for (n, to) in [P1, P2, P1].into_iter().enumerate() {
        assert_eq!((joiner.poll_timeout(), asked(&mut joiner)), (Some(at), vec![]), "patience");
        joiner.handle_timeout(at);
        assert_eq!(asked(&mut joiner), [to]);
        at += interval << (n + 1);
    }
    // Whoever has applied its join gives it.
    let (mut p1, mut p2) = (member(P1), member(P2));
    p1.admit(0, P4).unwrap();
    carry(&mut [&mut p1, &mut p2], |_, _, _| true);
    let Some(Output::Send { message, .. }) = ({
        p1.handle_message(0, P4, Message::Ask).unwrap();
        std::iter::from_fn(|| p1.poll_output()).find(|o| matches!(o, Output::Send { to: P4, message: Message::Transfer(_) }))
    }) else {
        panic!("no state")
    };
    joiner.handle_message(at, P1, message).unwrap();
    assert!(joiner.is_running() && joiner.poll_timeout().is_none(), "it asks no more");
}
