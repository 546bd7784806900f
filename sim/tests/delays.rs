//! The papers' message delays, counted.

use fide_proto::consensus::Kind;
use fide_sim::delays::{Counted, Delays, count};

#[test]
fn engines_decide_within_as_many_message_delays_as_their_papers_say() {
    let delays = |first, all| Delays { first, all };
    let expected = [
        // FiDe Alg. 3: proposal, acknowledgement, decision.
        (Kind::Hsuc, delays(2, 3), delays(3, 4), delays(2, 3)),
        // FiDe Alg. 4: whoever proposes, two heartbeats; what the leader itself proposes is its decision at once.
        (Kind::Huc, delays(0, 1), delays(1, 2), delays(1, 2)),
        // Nano-consensus Alg. 2: one way.
        (Kind::Lowi, delays(0, 1), delays(1, 2), delays(0, 1)),
        // uKharon Alg. 5: one round trip; behind a crash one more, to prepare.
        (Kind::Paxos, delays(2, 3), delays(3, 4), delays(4, 5)),
        // Asking for votes once before, and once in earnest, is two round trips more.
        (Kind::Raft, delays(2, 3), delays(3, 4), delays(6, 7)),
    ];
    for (engine, by_leader, by_another, after_crash) in expected {
        for members in [3, 4, 5, 7] {
            let wanted = Counted { engine, by_leader, by_another, after_crash };
            assert_eq!(count(engine, members), Ok(wanted), "{members} members");
        }
    }
}

#[test]
fn without_a_majority_nothing_is_counted() {
    assert!(count(Kind::Paxos, 2).unwrap_err().contains("never decided"));
    assert!(count(Kind::Hsuc, 2).is_ok());
}
