use super::*;
use proptest::prelude::*;

const P1: MemberId = MemberId(1);
const P2: MemberId = MemberId(2);
const DELTA_I: u64 = 100;

fn receiver() -> Receiver<&'static str> {
    Receiver::new(Config::new(DELTA_I))
}

fn events(receiver: &mut Receiver<&'static str>) -> Vec<Event<&'static str>> {
    std::iter::from_fn(|| receiver.poll_event()).collect()
}

fn deliver(from: MemberId, number: u64, message: &'static str) -> Event<&'static str> {
    Event::Deliver { from, number, message }
}

#[test]
fn nano_4_1_delivered_with_the_last_copy_and_not_before() {
    let mut r = receiver();
    r.handle_copy(10, P1, 1, 1, "a").unwrap();
    assert_eq!((events(&mut r), r.poll_timeout()), (vec![], Some(10 + DELTA_I + 1)));
    r.handle_copy(10 + DELTA_I, P1, 0, 1, "a").unwrap();
    assert_eq!(
        (events(&mut r), r.poll_timeout()),
        (vec![deliver(P1, 1, "a")], None),
        "exactly Δ_I is in time, and the timer ends"
    );
}

#[test]
fn nano_4_1_a_missing_copy_is_a_net_fault_once() {
    let mut r = receiver();
    r.handle_copy(0, P1, 0, 1, "a").unwrap();
    r.handle_timeout(DELTA_I);
    assert_eq!(events(&mut r), []);
    assert_eq!(r.handle_copy(DELTA_I + 1, P1, 1, 1, "a"), Err(Refused::Duplicate), "too late");
    r.handle_timeout(DELTA_I + 2);
    assert_eq!(events(&mut r), [Event::NetFault { from: P1, number: 1, missing: 0b10 }]);
}

#[test]
fn nano_4_1_messages_in_flight_do_not_complete_each_other() {
    let mut r = receiver();
    r.handle_copy(0, P1, 0, 1, "a").unwrap();
    r.handle_copy(1, P1, 0, 2, "b").unwrap();
    r.handle_copy(2, P2, 1, 1, "c").unwrap();
    assert_eq!((events(&mut r), r.in_flight()), (vec![], 3));
    r.handle_copy(3, P1, 1, 2, "b").unwrap();
    r.handle_copy(4, P1, 1, 1, "a").unwrap();
    assert_eq!(events(&mut r), [deliver(P1, 2, "b"), deliver(P1, 1, "a")]);
    r.handle_timeout(3 + DELTA_I);
    assert_eq!(events(&mut r), [Event::NetFault { from: P2, number: 1, missing: 0b01 }]);
}

#[test]
fn nano_4_1_a_message_that_never_came_is_shown_by_the_next_one() {
    let mut r = receiver();
    r.handle_copy(0, P1, 0, 3, "c").unwrap();
    r.handle_copy(0, P1, 1, 3, "c").unwrap();
    assert_eq!((events(&mut r), r.in_flight()), (vec![deliver(P1, 3, "c")], 2));
    r.handle_copy(50, P1, 0, 2, "b").unwrap();
    r.handle_copy(60, P1, 1, 2, "b").unwrap();
    r.handle_timeout(DELTA_I + 1);
    assert_eq!(events(&mut r), [deliver(P1, 2, "b"), Event::NetFault { from: P1, number: 1, missing: 0b11 }]);
    assert_eq!(r.through(P1), 3);
}

#[test]
fn one_path_or_eight_need_that_many_copies() {
    for paths in 1..=MAX_PATHS {
        let mut r = Receiver::new(Config { paths, ..Config::new(DELTA_I) });
        for path in 0..paths {
            assert_eq!(r.poll_event(), None);
            r.handle_copy(0, P1, path, 1, "a").unwrap();
        }
        assert_eq!(r.poll_event(), Some(deliver(P1, 1, "a")));
    }
}

#[test]
fn refused_with_the_state_unchanged() {
    let mut r = receiver();
    r.handle_copy(0, P1, 0, 1, "a").unwrap();
    r.handle_copy(0, P1, 0, 2, "b").unwrap();
    r.handle_copy(0, P1, 1, 2, "b").unwrap();
    let cases = [
        (2, 3, "x", Refused::Malformed),
        (0, 0, "x", Refused::Malformed),
        (1, 1, "not a", Refused::Malformed),
        (0, 1, "a", Refused::Duplicate),
        (1, 2, "b", Refused::Duplicate),
        (0, 65, "x", Refused::TooFarAhead),
        (0, u64::MAX, "x", Refused::TooFarAhead),
    ];
    for (path, number, message, why) in cases {
        let before = r.clone();
        let counted = r.refusals().of(why);
        assert_eq!(r.handle_copy(1, P1, path, number, message), Err(why));
        assert_eq!(r.refusals().of(why), counted + 1);
        r.refusals = before.refusals;
        assert_eq!(r, before);
    }
}

#[test]
fn a_sender_numbers_without_a_gap() {
    let mut sender = Sender::default();
    assert_eq!(((0..3).map(|_| sender.broadcast()).collect::<Vec<_>>(), sender.sent()), (vec![1, 2, 3], 3));
}

proptest! {
    /// Whatever comes in whatever order: no panic, memory within the bound, each message delivered or at fault, once.
    #[test]
    fn hostile_copies(copies in prop::collection::vec((0u16..4, 0usize..4, prop_oneof![0u64..12, Just(u64::MAX)], 0u64..40, 0u8..2), 0..200)) {
        let mut r = Receiver::new(Config { in_flight_max: 8, ..Config::new(DELTA_I) });
        let (mut now, mut seen) = (0, std::collections::BTreeSet::new());
        for (from, path, number, step, content) in copies {
            now += step;
            r.handle_timeout(now);
            let before = r.clone();
            if r.handle_copy(now, MemberId(from), path, number, content).is_err() {
                prop_assert_eq!(r.refusals().total(), before.refusals().total() + 1);
                r.refusals = before.refusals;
                prop_assert_eq!(&r, &before);
            }
            r.invariants();
            prop_assert!(r.in_flight() <= 4 * 8);
            while let Some(Event::Deliver { from, number, .. } | Event::NetFault { from, number, .. }) = r.poll_event() {
                prop_assert!(seen.insert((from, number)));
            }
        }
    }
}
