//! HSUC, HUC, LOWI and OWI.

use fide_proto::consensus::hsuc::Hsuc;
use fide_proto::consensus::huc::Huc;
use fide_proto::consensus::lowi::{self, Lowi, Start, StartPoint};
use fide_proto::consensus::owi::{self, Owi};
use fide_proto::group::{MemberId, MemberSet};

use super::bytes::{Bytes, Near};
use super::world::{Whole, run};
use super::{checked, state};

const FIRSTS: [u64; 4] = [1, 1, 5, 1 << 40];

pub fn hsuc(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let (n, first) = (bytes.pick(&[3, 2, 4, 1]), bytes.pick(&FIRSTS));
    run(&mut bytes, n, first, |_, me, set| Whole { engine: Hsuc::new(me, set.clone(), first), looks: false });
}

pub fn huc(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let (n, first) = (bytes.pick(&[3, 2, 4, 1]), bytes.pick(&FIRSTS));
    run(&mut bytes, n, first, |_, me, set| Whole { engine: Huc::new(me, set.clone(), first), looks: false });
}

pub fn lowi(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let (n, first) = (bytes.pick(&[3, 2, 4, 1]), bytes.pick(&FIRSTS));
    let start = if bytes.one_in(4) { Start::OnMessage } else { Start::Together };
    let small = bytes.one_in(3);
    let config = lowi::Config::new(50_000, 10_000);
    let config = if small { lowi::Config { batch_entries_max: 2, batch_bytes_max: 1500, depth: 2, ..config } } else { config };
    let point = StartPoint::from_value(&bytes.take(bytes_of_point(data)));
    run(&mut bytes, n, first, |bytes, me, set| {
        let lowi = match point {
            Some(point) if bytes.one_in(4) => {
                let point = StartPoint { next: first, ..point };
                Lowi::join(me, config, set.clone(), point, 1_000_000)
            }
            _ => Lowi::new(me, config, set.clone(), first, start, 1_000_000),
        };
        Whole { engine: lowi.expect("settings that hold"), looks: true }
    });
}

/// Sometimes there is one.
fn bytes_of_point(data: &[u8]) -> usize {
    if data.len().is_multiple_of(8) { 18 } else { 0 }
}

/// One decision: every member proposes, and hears what it should not.
pub fn owi(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let set = MemberSet::first(3);
    let near = Near { me: MemberId(2), members: set.clone(), open: 1, number: 1, now_ns: 0 };
    let config = owi::Config::new(10_000, 20_000);
    let mut owi: Owi<u8> = Owi::new(bytes.pick(&[MemberId(1), MemberId(2), MemberId(3)]), config, set);
    let (mut now_ns, mut decided) = (1_000_000u64, 0);
    while !bytes.is_empty() {
        now_ns = match bytes.below(12) {
            0..=5 => now_ns,
            6 => now_ns.saturating_add(u64::from(bytes.u8())),
            7 | 8 => owi.poll_timeout().unwrap_or(now_ns),
            9 => now_ns.saturating_sub(5000),
            10 => now_ns.saturating_add(40_000),
            _ => bytes.near(now_ns),
        };
        let (from, value) = (near.member(&mut bytes), bytes.pick(&[1, 1, 2]));
        let (what, path) = (bytes.below(8), bytes.pick(&[0, 1, 0, 1, 2, 255]));
        let timeout = |owi: &mut Owi<u8>| owi.handle_timeout(now_ns);
        let _ = checked(
            &mut owi,
            |owi| *owi.refusals(),
            timeout,
            |owi| match what {
                0 | 1 => owi.propose(now_ns, value),
                2 | 3 => owi.handle_proposal(now_ns, from, value),
                4 | 5 => owi.handle_copy(now_ns, from, path, value),
                6 if path == 255 => {
                    owi.handle_network_fault(now_ns);
                    Ok(())
                }
                _ => {
                    owi.handle_timeout(now_ns);
                    Ok(())
                }
            },
        );
        owi.invariants();
        for _ in 0..16 {
            match owi.poll_action() {
                Some(owi::Action::Decide(_)) => decided += 1,
                Some(_) => {}
                None => break,
            }
        }
        assert!(owi.poll_action().is_none() && decided <= 1, "decides once, and wants little done");
        let _ = state(&owi);
    }
}
