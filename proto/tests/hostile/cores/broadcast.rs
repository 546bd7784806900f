//! OSRB, FCURB and RSBCAST by themselves.

use fide_proto::broadcast::fcurb::{self, Fcurb, MAX_UNSENT};
use fide_proto::broadcast::osrb::{self, MAX_UNSTABLE, Osrb, Stable};
use fide_proto::broadcast::rsbcast::{self, Receiver};
use fide_proto::group::{MemberId, MemberSet};

use super::bytes::{Bytes, Near};
use super::checked;

fn near(set: &MemberSet, open: u64) -> Near {
    Near { me: MemberId(2), members: set.clone(), open, number: 1, now_ns: 0 }
}

pub fn osrb(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let mut set = MemberSet::first(4);
    let mut osrb: Osrb<u8> = Osrb::new(MemberId(2), set.clone());
    let mut sequence = 1;
    while !bytes.is_empty() {
        let near = near(&set, sequence);
        let id = osrb::Id { origin: near.member(&mut bytes), sequence: bytes.near(sequence) };
        let (what, from, body) = (bytes.below(8), near.member(&mut bytes), bytes.u8());
        if what == 7 {
            set = near.set(&mut bytes);
            osrb.set_members(&set);
        } else {
            let taken = checked(
                &mut osrb,
                |osrb| *osrb.refusals(),
                |_| {},
                |osrb| match what {
                    0 => osrb.broadcast(id.sequence, body).map(|_| ()),
                    1..=4 => osrb.handle_message(from, osrb::Message { id, body }),
                    5 => osrb.handle_crash(from),
                    _ => osrb.stabilize(Stable::received_by_everybody(id)).map(|_| ()),
                },
            );
            if taken.is_ok() && what <= 4 && bytes.one_in(2) {
                sequence = id.sequence.saturating_add(1);
            }
        }
        assert!(osrb.unstable() <= MAX_UNSTABLE);
        let sends = std::iter::from_fn(|| osrb.poll_send()).count();
        let delivered = std::iter::from_fn(|| osrb.poll_deliver()).count();
        assert!(sends <= 2 * 80 * MAX_UNSTABLE && delivered <= 1);
    }
}

pub fn fcurb(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let mut set = MemberSet::first(4);
    let me = MemberId(2);
    let mut fcurb: Fcurb<u8> = if bytes.one_in(3) { Fcurb::joining(me, &set) } else { Fcurb::new(me, &set) };
    let mut number = 1u64;
    let mut crashed = MemberSet::new();
    while !bytes.is_empty() {
        let near = near(&set, number);
        let (what, from, body) = (bytes.below(10), near.member(&mut bytes), bytes.u8());
        let said = bytes.near(number);
        let last = bytes.one_in(2).then_some(said);
        match what {
            0 => {
                set = near.set(&mut bytes);
                fcurb.set_members(&set);
                crashed.clear();
            }
            1 => _ = fcurb.poll_piggyback(),
            2 => fcurb.handle_sent(),
            3 => fcurb.handle_network_fault(),
            _ => {
                let taken = checked(
                    &mut fcurb,
                    |fcurb| *fcurb.refusals(),
                    |_| {},
                    |fcurb| match what {
                        4 => fcurb.broadcast(body),
                        5 => fcurb.handle_crash(from, last),
                        _ => fcurb.handle_piggyback(from, fcurb::Message { number: said, body }),
                    },
                );
                if taken.is_ok() && what > 5 {
                    number = said.saturating_add(1);
                }
            }
        }
        let mut events = 0;
        while let Some(event) = fcurb.poll_event() {
            events += 1;
            match event {
                fcurb::Event::Crash(member) => assert!(crashed.insert(member), "once"),
                fcurb::Event::Deliver { from, .. } => assert!(!crashed.contains(from), "nothing after the crash"),
                fcurb::Event::Halt(_) => {}
            }
        }
        assert!(events <= 2 && fcurb.sent() <= data.len() as u64 && MAX_UNSENT == 16);
    }
}

pub fn rsbcast(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let paths = bytes.pick(&[2, 1, 3, 8]);
    let config = rsbcast::Config { paths, delta_i_ns: 1000, in_flight_max: bytes.pick(&[64, 1, 4]) };
    let mut receiver: Receiver<u8> = Receiver::new(config);
    let set = MemberSet::first(3);
    let (mut now_ns, mut number) = (1000u64, 1u64);
    while !bytes.is_empty() {
        let near = near(&set, number);
        let from = near.member(&mut bytes);
        match bytes.below(12) {
            0 => {
                now_ns = bytes.near(now_ns);
                receiver.handle_timeout(now_ns);
            }
            1 => {
                let through = bytes.near(receiver.through(from));
                receiver.skip(from, through);
            }
            2 => {
                now_ns = receiver.poll_timeout().unwrap_or(now_ns);
                receiver.handle_timeout(now_ns);
            }
            3 => receiver.raise_delta_i(bytes.near(1000)),
            _ => {
                number = bytes.near(receiver.through(from).wrapping_add(1));
                let (path, message) = (bytes.pick(&[0, 1, 0, 1, 2, 7, 8, 255]), bytes.pick(&[1, 1, 1, 2]));
                let timeout = |receiver: &mut Receiver<u8>| receiver.handle_timeout(now_ns);
                let _ = checked(
                    &mut receiver,
                    |receiver| *receiver.refusals(),
                    timeout,
                    |receiver| receiver.handle_copy(now_ns, from, path, number, message),
                );
            }
        }
        receiver.invariants();
        let events = std::iter::from_fn(|| receiver.poll_event()).count();
        assert!(events <= 64 * 256 + 1);
    }
}
