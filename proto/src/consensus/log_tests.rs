//! Two members whose links deliver what says [`Message::Reached`] before what decides.

use std::collections::VecDeque;

use super::super::hsuc::{self, Hsuc};
use super::*;

const P1: MemberId = MemberId(1);
const P2: MemberId = MemberId(2);

fn member(me: MemberId) -> Log {
    let build: Build = Box::new(|setup| {
        let hsuc = Hsuc::new(setup.me, setup.members.clone(), setup.first);
        matches!(setup.kind, Kind::Hsuc | Kind::Huc).then(|| Box::new(Carried::<_, hsuc::Message>::new(hsuc)) as _)
    });
    Log::new(0, me, Kind::Hsuc, MemberSet::first(2), Config::default(), build).unwrap()
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
fn a_leaver_counts_who_was_through_before_it() {
    let mut logs = [member(P1), member(P2)];
    logs[1].leave(0).unwrap();
    run(&mut logs);
    assert_eq!(logs[1].halted(), Some(Halted::Left));
    assert!(!logs[0].members().contains(P2) && logs[0].halted().is_none());
}

#[test]
fn an_engine_is_let_go_when_all_are_behind_its_switch_whoever_was_first() {
    let mut logs = [member(P1), member(P2)];
    logs[1].switch(0, Kind::Huc).unwrap();
    run(&mut logs);
    assert!(logs.iter().all(|log| log.epoch() == 1 && log.previous.is_none()));
}
