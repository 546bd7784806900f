//! The gate between the detector and the engines.

use fide_proto::consensus::Kind;
use fide_proto::consensus::policy::{Action, Answer, Config, Gate, Policy};
use fide_proto::group::{MemberId, MemberSet};
use fide_wire::verdict::{Cause, Grade};

use super::bytes::{Bytes, Near};
use super::checked;

pub fn gate(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let mut set = MemberSet::first(4);
    let (engine, policy) = (bytes.pick(&Kind::ALL), bytes.pick(&Policy::ALL));
    let config = Config::new(engine, policy);
    let Ok(mut gate) = Gate::new(MemberId(2), config, set.clone()) else { return };
    let mut now_ns = 1_000_000u64;
    let mut halts = 0;
    while !bytes.is_empty() {
        let near = Near { me: MemberId(2), members: set.clone(), open: 1, number: 1, now_ns };
        now_ns = match bytes.below(8) {
            0..=4 => now_ns.saturating_add(u64::from(bytes.u8())),
            5 => gate.poll_timeout().unwrap_or(now_ns),
            6 => now_ns.saturating_add(config.distrust_ns),
            _ => bytes.near(now_ns),
        };
        let (what, member) = (bytes.below(10), near.member(&mut bytes));
        let (cause, grade) = (bytes.pick(&Cause::ALL), bytes.pick(&[Grade::Certain, Grade::Inferred]));
        let answer = bytes.pick(&[Answer::Granted, Answer::Refused, Answer::Expelled]);
        match what {
            0 => gate.handle_timeout(now_ns),
            1 => gate.handle_contract(now_ns, grade == Grade::Certain),
            2 => {
                set = near.set(&mut bytes);
                gate.set_members(set.clone());
            }
            _ => {
                let _ = checked(
                    &mut gate,
                    |gate| *gate.refusals(),
                    |_| {},
                    |gate| match what {
                        3 => gate.handle_alive(now_ns, member),
                        4 => gate.handle_fenced(now_ns, member),
                        5 => gate.handle_witness(now_ns, member, answer),
                        _ => gate.handle_verdict(now_ns, member, cause, grade),
                    },
                );
            }
        }
        gate.invariants();
        let (mut actions, _) = (0, gate.trusts_silence(now_ns));
        while let Some(action) = gate.poll_action() {
            actions += 1;
            halts += usize::from(matches!(action, Action::Halt(_)));
        }
        assert!(actions <= 2 * 80 && halts <= 1, "halts once");
    }
}
