use super::*;
use proptest::prelude::*;

const P1: MemberId = MemberId(1);
const P2: MemberId = MemberId(2);
const P3: MemberId = MemberId(3);
const SECOND: u64 = 1_000_000_000;
const ACCURATE: [Kind; 2] = [Kind::Hsuc, Kind::Huc];

fn gate(engine: Kind, policy: Policy) -> Gate {
    Gate::new(P1, Config::new(engine, policy), MemberSet::first(3)).unwrap()
}

fn actions(gate: &mut Gate) -> Vec<Action> {
    gate.invariants();
    std::iter::from_fn(|| gate.poll_action()).collect()
}

fn silent(gate: &mut Gate, now_ns: u64) {
    gate.handle_verdict(now_ns, P2, Cause::SilentHost, Grade::Inferred).unwrap();
}

#[test]
fn b4_certain_verdicts_pass_at_once_whatever_the_policy() {
    for engine in Kind::ALL {
        for policy in Policy::ALL.into_iter().filter(|policy| policy.suits(engine)) {
            for cause in [Cause::Exited, Cause::Killed, Cause::Doomed, Cause::Left] {
                let mut g = gate(engine, policy);
                g.handle_verdict(0, P2, cause, Grade::Certain).unwrap();
                assert_eq!(actions(&mut g), [Action::Crash(P2)], "{engine} {policy} {cause}");
                assert_eq!(g.handle_verdict(1, P2, cause, Grade::Certain), Err(Refused::Duplicate));
            }
        }
    }
}

#[test]
fn b5_trust_contract_acts_on_silence_only_while_nobody_alive_was_late() {
    for engine in ACCURATE {
        let mut g = gate(engine, Policy::TrustContract);
        g.handle_verdict(0, P2, Cause::ContractBroken, Grade::Inferred).unwrap();
        silent(&mut g, 1);
        assert_eq!(actions(&mut g), [Action::Crash(P2)], "its own silence is no breach");

        for breach in [Cause::ContractKept, Cause::ObserverPaused, Cause::Isolated] {
            let mut g = gate(engine, Policy::TrustContract);
            g.handle_verdict(0, P3, breach, Grade::Inferred).unwrap();
            assert!(!g.trusts_silence(10 * SECOND - 1) && g.trusts_silence(10 * SECOND));
            let mut later = g.clone();
            silent(&mut g, 10 * SECOND - 1);
            assert_eq!(actions(&mut g), [Action::Halt(Halted::Unconfirmed(P2))], "{breach}");
            assert_eq!(g.handle_verdict(1, P3, Cause::Killed, Grade::Certain), Err(Refused::Halted));
            silent(&mut later, 10 * SECOND);
            assert_eq!(actions(&mut later), [Action::Crash(P2)]);
        }
    }
}

#[test]
fn b5_a_contract_that_is_broken_stays_so_until_it_is_kept() {
    let mut g = gate(Kind::Hsuc, Policy::TrustContract);
    g.handle_contract(0, false);
    assert!(!g.trusts_silence(u64::MAX));
    let mut kept = g.clone();
    kept.handle_contract(5, true);
    silent(&mut kept, 6);
    assert_eq!(actions(&mut kept), [Action::Crash(P2)]);
    silent(&mut g, 6);
    assert_eq!(actions(&mut g), [Action::Halt(Halted::Unconfirmed(P2))]);
}

#[test]
fn b5_fence_waits_until_it_is_confirmed_and_asks_again() {
    for engine in ACCURATE {
        let mut g = gate(engine, Policy::Fence);
        silent(&mut g, 0);
        let ask = Action::Ask(Ask::Fence { member: P2 });
        assert_eq!((actions(&mut g), g.poll_timeout()), (vec![ask], Some(SECOND)));
        assert_eq!(g.handle_verdict(1, P2, Cause::SilentHost, Grade::Inferred), Err(Refused::Duplicate));
        for repeat in 1..100 {
            g.handle_timeout(repeat * SECOND);
            assert_eq!((actions(&mut g), g.halted()), (vec![ask], None), "never without the confirmation");
        }
        g.handle_alive(200 * SECOND, P2).unwrap();
        assert_eq!(actions(&mut g), [], "it may be fenced at any moment");
        g.handle_fenced(300 * SECOND, P2).unwrap();
        assert_eq!((actions(&mut g), g.poll_timeout()), (vec![Action::Crash(P2)], None));
        assert_eq!(g.handle_fenced(301 * SECOND, P2), Err(Refused::Duplicate));
    }
}

#[test]
fn b5_a_certain_verdict_overtakes_the_asking() {
    for policy in [Policy::Fence, Policy::Witness] {
        let mut g = gate(Kind::Huc, policy);
        silent(&mut g, 0);
        g.handle_verdict(1, P2, Cause::Killed, Grade::Certain).unwrap();
        assert_eq!((actions(&mut g), g.poll_timeout()), (vec![Action::Crash(P2)], None));
    }
}

#[test]
fn b5_witness_grants_or_this_member_halts() {
    let outcomes = [
        (Some(Answer::Granted), Action::Crash(P2)),
        (Some(Answer::Refused), Action::Halt(Halted::Unconfirmed(P2))),
        (Some(Answer::Expelled), Action::Halt(Halted::Expelled)),
        (None, Action::Halt(Halted::Unconfirmed(P2))),
    ];
    for engine in ACCURATE {
        for (answer, action) in outcomes {
            let mut g = gate(engine, Policy::Witness);
            silent(&mut g, 0);
            assert_eq!(actions(&mut g), [Action::Ask(Ask::Witness { member: P2 })]);
            g.handle_timeout(SECOND - 1);
            assert_eq!(actions(&mut g), []);
            match answer {
                Some(answer) => g.handle_witness(SECOND - 1, P2, answer).unwrap(),
                None => g.handle_timeout(SECOND),
            }
            assert_eq!(actions(&mut g), [action]);
        }
    }
}

#[test]
fn b4_hints_pass_at_once_and_are_taken_back() {
    for engine in [Kind::Paxos, Kind::Raft] {
        for policy in Policy::ALL {
            for cause in [Cause::SilentHost, Cause::AgentLost] {
                let mut g = gate(engine, policy);
                g.handle_contract(0, false);
                g.handle_verdict(1, P2, cause, Grade::Inferred).unwrap();
                g.handle_verdict(2, P2, Cause::ContractKept, Grade::Inferred).unwrap();
                g.handle_verdict(3, P2, cause, Grade::Inferred).unwrap();
                g.handle_alive(4, P2).unwrap();
                g.handle_alive(5, P2).unwrap();
                // The last one without a report: a gate that was made anew at a change of the engine has none, and the log may hold on to a hint.
                let told = [Action::Crash(P2), Action::Alive(P2), Action::Crash(P2), Action::Alive(P2), Action::Alive(P2)];
                assert_eq!(actions(&mut g), told, "{engine} {policy} {cause}");
            }
        }
    }
}

#[test]
fn b4_lowi_keeps_only_the_policy_that_it_can_keep() {
    for policy in [Policy::Fence, Policy::Witness] {
        assert!(Gate::new(P1, Config::new(Kind::Lowi, policy), MemberSet::first(3)).is_err());
    }
    let mut g = gate(Kind::Lowi, Policy::TrustContract);
    silent(&mut g, 0);
    assert_eq!(actions(&mut g), [Action::Crash(P2)]);
    g.handle_verdict(1, P3, Cause::ContractKept, Grade::Inferred).unwrap();
    assert_eq!(actions(&mut g), [Action::NetworkFault, Action::Halt(Halted::NetworkFault)], "it would act on silence by itself");
}

#[test]
fn b4_lowi_that_waits_for_longer_than_the_detector_goes_by_its_own_copies() {
    let config = Config { lowi_judges_itself: true, ..Config::new(Kind::Lowi, Policy::TrustContract) };
    let mut g = Gate::new(P1, config, MemberSet::first(3)).unwrap();
    g.handle_verdict(0, P3, Cause::ContractKept, Grade::Inferred).unwrap();
    g.handle_verdict(0, P1, Cause::ObserverPaused, Grade::Certain).unwrap();
    g.handle_verdict(1, P2, Cause::SilentHost, Grade::Inferred).unwrap();
    assert_eq!(actions(&mut g), [], "silence proves nothing now");
    g.handle_verdict(config.distrust_ns, P2, Cause::SilentHost, Grade::Inferred).unwrap();
    assert_eq!(actions(&mut g), [Action::Crash(P2)], "it does again");
    g.handle_verdict(config.distrust_ns, P1, Cause::Isolated, Grade::Certain).unwrap();
    assert_eq!(actions(&mut g), [Action::NetworkFault, Action::Halt(Halted::NetworkFault)], "it would go on alone");
    let mut g = gate(Kind::Huc, Policy::TrustContract);
    g.handle_verdict(0, P3, Cause::ContractKept, Grade::Inferred).unwrap();
    g.change_engine(1, Kind::Lowi, MemberSet::first(3)).unwrap();
    assert_eq!(actions(&mut g), [Action::NetworkFault, Action::Halt(Halted::NetworkFault)]);
}

#[test]
fn b4_a_change_of_the_engine_does_not_make_silence_prove_more() {
    let late = |g: &mut Gate| g.handle_verdict(0, P3, Cause::ContractKept, Grade::Inferred).unwrap();
    for through in [vec![Kind::Huc], vec![Kind::Paxos, Kind::Hsuc], vec![Kind::Raft, Kind::Huc]] {
        let mut g = gate(Kind::Hsuc, Policy::TrustContract);
        late(&mut g);
        for engine in through {
            g.change_engine(1, engine, MemberSet::first(3)).unwrap();
        }
        silent(&mut g, 2);
        assert_eq!(actions(&mut g), [Action::Halt(Halted::Unconfirmed(P2))]);
    }
    // Also what was seen under an engine that takes hints, and says nothing to that.
    for late in
        [Gate::handle_alive, |g: &mut Gate, at, member| g.handle_verdict(at, member, Cause::ContractKept, Grade::Inferred)]
    {
        let mut g = gate(Kind::Raft, Policy::TrustContract);
        late(&mut g, 0, P3).unwrap();
        assert_eq!(actions(&mut g), [Action::Alive(P3)]);
        g.change_engine(1, Kind::Huc, MemberSet::first(3)).unwrap();
        silent(&mut g, 2);
        assert_eq!(actions(&mut g), [Action::Halt(Halted::Unconfirmed(P2))]);
    }
    // Nor does a broken contract become a kept one; and LOWI would act on silence by itself.
    let mut g = gate(Kind::Hsuc, Policy::TrustContract);
    g.handle_contract(0, false);
    g.change_engine(1, Kind::Lowi, MemberSet::first(3)).unwrap();
    assert_eq!(actions(&mut g), [Action::NetworkFault, Action::Halt(Halted::NetworkFault)]);
    let mut g = gate(Kind::Hsuc, Policy::TrustContract);
    g.change_engine(1, Kind::Lowi, MemberSet::first(3)).unwrap();
    assert_eq!(actions(&mut g), []);
    // A policy that the next engine cannot keep is no reason to keep none.
    let mut g = gate(Kind::Hsuc, Policy::Fence);
    let before = g.clone();
    assert!(g.change_engine(1, Kind::Lowi, MemberSet::first(3)).is_err());
    assert_eq!(g, before);
}

#[test]
fn b5_a_newcomer_that_was_late_before_its_join_counts() {
    let late = |g: &mut Gate| g.handle_verdict(0, MemberId(4), Cause::ContractKept, Grade::Certain);
    for engine in ACCURATE {
        let mut g = gate(engine, Policy::TrustContract);
        late(&mut g).unwrap();
        assert!(g.trusts_silence(0), "of the others");
        g.set_members(MemberSet::first(4));
        silent(&mut g, SECOND);
        assert_eq!(actions(&mut g), [Action::Halt(Halted::Unconfirmed(P2))]);
    }
    // LOWI sees that by the newcomer's own copies.
    let mut g = gate(Kind::Lowi, Policy::TrustContract);
    late(&mut g).unwrap();
    g.set_members(MemberSet::first(4));
    assert_eq!((actions(&mut g), g.trusts_silence(0)), (vec![], true));
    // A contract that is kept again says nothing of a member that was late just now.
    let mut g = gate(Kind::Hsuc, Policy::TrustContract);
    g.handle_verdict(0, P3, Cause::ContractKept, Grade::Certain).unwrap();
    g.handle_contract(0, true);
    assert!(!g.trusts_silence(SECOND));
}

#[test]
fn what_was_reported_before_a_change_of_the_engine() {
    // To one that needs accuracy, from another one: what has passed was true, and what is asked for is asked for.
    let mut g = gate(Kind::Hsuc, Policy::Fence);
    silent(&mut g, 0);
    assert_eq!(actions(&mut g), [Action::Ask(Ask::Fence { member: P2 })]);
    g.change_engine(1, Kind::Huc, MemberSet::first(3)).unwrap();
    assert_eq!(g.poll_timeout(), Some(SECOND));
    g.handle_fenced(2, P2).unwrap();
    g.handle_alive(3, P2).unwrap();
    assert_eq!(actions(&mut g), [Action::Crash(P2), Action::Halt(Halted::Unconfirmed(P2))]);
    // To one that takes hints: at once.
    let mut g = gate(Kind::Hsuc, Policy::Fence);
    silent(&mut g, 0);
    actions(&mut g);
    g.change_engine(1, Kind::Raft, MemberSet::first(3)).unwrap();
    assert_eq!((actions(&mut g), g.poll_timeout()), (vec![Action::Crash(P2)], None));
    // From one that takes hints: a hint is none of the truth, taken or not, and is to be reported again.
    for taken in [true, false] {
        let mut g = gate(Kind::Raft, Policy::Fence);
        silent(&mut g, 0);
        if taken {
            assert_eq!(actions(&mut g), [Action::Crash(P2)]);
        }
        g.change_engine(1, Kind::Hsuc, MemberSet::first(3)).unwrap();
        assert_eq!(actions(&mut g), []);
        silent(&mut g, 2);
        assert_eq!(actions(&mut g), [Action::Ask(Ask::Fence { member: P2 })]);
    }
}

#[test]
fn a_lost_agent_is_not_a_lost_process() {
    for engine in [Kind::Hsuc, Kind::Huc, Kind::Lowi] {
        let mut g = gate(engine, Policy::TrustContract);
        g.handle_verdict(0, P2, Cause::AgentLost, Grade::Inferred).unwrap();
        assert_eq!(actions(&mut g), []);
    }
}

#[test]
fn a_report_that_has_passed_and_was_wrong_halts() {
    for engine in ACCURATE {
        let mut g = gate(engine, Policy::TrustContract);
        silent(&mut g, 0);
        g.handle_alive(1, P2).unwrap();
        assert_eq!(actions(&mut g), [Action::Crash(P2), Action::Halt(Halted::Unconfirmed(P2))]);
    }
}

#[test]
fn whoever_is_reported_to_itself_is_expelled() {
    let mut g = gate(Kind::Hsuc, Policy::Fence);
    g.handle_verdict(0, P1, Cause::SilentHost, Grade::Inferred).unwrap();
    assert_eq!(actions(&mut g), [Action::Halt(Halted::Expelled)]);
    let mut g = gate(Kind::Hsuc, Policy::Fence);
    g.handle_fenced(0, P1).unwrap();
    assert_eq!(actions(&mut g), [Action::Halt(Halted::Expelled)]);
}

#[test]
fn members_that_leave_are_forgotten() {
    let mut g = gate(Kind::Hsuc, Policy::Fence);
    silent(&mut g, 0);
    g.set_members([P1, P3].into_iter().collect());
    assert_eq!(g.poll_timeout(), None);
    assert_eq!(g.handle_fenced(1, P2), Err(Refused::UnknownMember));
}

#[derive(Clone, Debug)]
enum Step {
    Verdict(u16, Cause, bool),
    Contract(bool),
    Alive(u16),
    Fenced(u16),
    Witness(u16, Answer),
    Time(u64),
    Change(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let answer = prop::sample::select(vec![Answer::Granted, Answer::Refused, Answer::Expelled]);
    let cause = prop::sample::select(Cause::ALL.to_vec());
    prop_oneof![
        (0u16..5, cause, any::<bool>()).prop_map(|(member, cause, certain)| Step::Verdict(member, cause, certain)),
        any::<bool>().prop_map(Step::Contract),
        (0u16..5).prop_map(Step::Alive),
        (0u16..5).prop_map(Step::Fenced),
        (0u16..5, answer).prop_map(|(member, answer)| Step::Witness(member, answer)),
        (0..3 * SECOND).prop_map(Step::Time),
        (0usize..5).prop_map(Step::Change),
    ]
}

proptest! {
    /// Whatever comes: no panic, refusals change nothing, and an engine that needs accuracy never hears of a crash that nobody confirmed.
    #[test]
    fn hostile_verdicts(steps in prop::collection::vec(step(), 0..60), engine in 0usize..5, policy in 0usize..3) {
        let (mut engine, policy) = (Kind::ALL[engine], Policy::ALL[policy]);
        prop_assume!(policy.suits(engine));
        let mut g = gate(engine, policy);
        let (mut now, mut confirmed) = (0, MemberSet::new());
        for step in steps {
            let before = g.clone();
            let result = match step {
                Step::Verdict(member, cause, certain) => {
                    let member = MemberId(member);
                    let trusted = policy == Policy::TrustContract && g.trusts_silence(now);
                    if cause.ends_process() && (certain || trusted) {
                        confirmed.insert(member);
                    }
                    g.handle_verdict(now, member, cause, if certain { Grade::Certain } else { Grade::Inferred })
                }
                Step::Contract(kept) => { g.handle_contract(now, kept); Ok(()) }
                Step::Alive(member) => g.handle_alive(now, MemberId(member)),
                Step::Fenced(member) => { confirmed.insert(MemberId(member)); g.handle_fenced(now, MemberId(member)) }
                Step::Witness(member, answer) => {
                    if answer == Answer::Granted && policy == Policy::Witness {
                        confirmed.insert(MemberId(member));
                    }
                    g.handle_witness(now, MemberId(member), answer)
                }
                Step::Time(passed) => { now += passed; g.handle_timeout(now); Ok(()) }
                Step::Change(to) => {
                    let changed = g.change_engine(now, Kind::ALL[to], MemberSet::first(3));
                    prop_assert_eq!(changed.is_ok(), policy.suits(Kind::ALL[to]));
                    engine = g.config().engine;
                    Ok(())
                }
            };
            g.invariants();
            if let Err(why) = result {
                prop_assert_eq!(g.refusals().of(why), before.refusals.of(why) + 1);
                g.refusals = before.refusals;
                prop_assert_eq!(&g, &before);
            }
            while let Some(action) = g.poll_action() {
                if let (Action::Crash(member), true) = (action, engine.needs_accuracy()) {
                    prop_assert!(confirmed.contains(member), "{} {} {}", engine, policy, member);
                }
            }
        }
    }
}
