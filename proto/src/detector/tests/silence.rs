use super::super::*;
use super::harness::*;

#[test]
fn quiet_when_all_is_well() {
    let mut b = Bench::watching(&[A, B]);
    b.run(1_000 * MS);
    assert_eq!(b.take(), []);
}

#[test]
fn fide_3_3_one_missing_copy_is_a_path_fault_not_a_crash() {
    let mut b = Bench::watching(&[A, B]);
    b.cut(A, 1);
    b.run(2_000 * MS);
    assert_eq!(b.causes(), [(Cause::PathDown, A)]);
    assert_eq!((b.verdicts[0].code, b.verdicts[0].grade), (1, Grade::Inferred));
    assert_eq!(b.d.state(A), Some(State::Alive));
    b.take();
    b.heal(A, 1);
    b.run(5 * MS);
    assert_eq!(b.take(), [(Cause::PathUp, A)]);
}

#[test]
fn fide_3_3_both_paths_silent_and_nobody_answers_is_a_silent_host() {
    let mut b = Bench::watching(&[A, B]);
    for app in [3, 4] {
        b.d.app_seen(A, 1, app).unwrap();
    }
    let at = b.now;
    b.crash(A);
    b.run(5 * MS);
    assert_eq!(b.causes(), [(Cause::ContractBroken, A), (Cause::SilentHost, A)]);
    let v = b.verdicts[1].clone();
    assert!(v.at_ns - at < 4 * MS, "{}", v.at_ns - at);
    assert_eq!(v.ended_apps, [3, 4]);
    assert_eq!((v.evidence.timeout_ns, v.evidence.contract), (TO, CONTRACT));
    assert!(v.evidence.paths.iter().all(|p| p.silent_ns > TO && !p.kernel_answered && p.carrier));
    assert_eq!(b.others.last(), Some(&Action::Condemn { node: A, incarnation: 1 }));
    b.take();
    b.run(3_000 * MS);
    assert_eq!(b.take(), [], "said once");
}
