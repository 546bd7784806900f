use super::super::*;
use proptest::prelude::*;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

fn outbox() -> Outbox {
    Outbox::new(OutboxConfig::new(1, 5))
}

fn confirm(upto: u32, beyond: u32) -> ConfirmEntry {
    ConfirmEntry { node: 1, incarnation: 5, upto, beyond }
}

fn sent_until(o: &mut Outbox, end: u64) -> Vec<(u64, u32)> {
    let mut out = Vec::new();
    while let Some(at) = o.poll_timeout().filter(|&t| t <= end) {
        while let Some(n) = o.poll_transmit(at) {
            out.push((at, n.notice));
        }
    }
    out
}

#[test]
fn fide_4_1_nothing_is_piggybacked_after_the_crash_was_sent() {
    let mut o = outbox();
    assert!(!o.may_piggyback(1));
    o.app_started(1).unwrap();
    o.app_started(2).unwrap();
    assert!(o.may_piggyback(1));
    o.push(1, Cause::Doomed, 9, 0, 0).unwrap();
    assert!(!o.may_piggyback(1) && o.may_piggyback(2));
    o.push(1, Cause::Killed, 9, 0, 0).unwrap();
    assert!(!o.may_piggyback(1));
    assert_eq!(o.app_started(1), Err(NotStarted::NumberUsed), "for ever");
    o.crash_sent(2);
    assert!(!o.may_piggyback(2));
    assert_eq!(o.push(2, Cause::Killed, 9, 0, 0).unwrap().flags, Notice::CONFIRMS);
}

#[test]
fn an_end_is_told_once_and_a_confirmation_is_marked() {
    let mut o = outbox();
    o.app_started(4).unwrap();
    assert_eq!(o.push(3, Cause::Killed, 9, 0, 0), None, "not watched");
    let doomed = o.push(4, Cause::Doomed, 9, 0, 0).unwrap();
    assert_eq!(o.push(4, Cause::Doomed, 9, 0, 0), None);
    let killed = o.push(4, Cause::Killed, 9, 0, 0).unwrap();
    assert_eq!(o.push(4, Cause::Killed, 9, 0, 0), None);
    assert_eq!((doomed.notice, doomed.flags, killed.notice, killed.flags), (1, 0, 2, Notice::CONFIRMS));
    let left = o.leave(5).unwrap();
    assert_eq!((left.notice, left.app, left.cause), (3, 0, Cause::Left));
    assert_eq!((o.leave(6), o.app_started(9)), (None, Err(NotStarted::Left)));
}

#[test]
fn repeated_after_200_us_1_ms_and_then_every_10_ms_until_all_confirmed() {
    let mut o = outbox();
    o.peer_set([2, 3]);
    o.app_started(1).unwrap();
    o.push(1, Cause::Killed, 9, 0, 0).unwrap();
    let times: Vec<u64> = sent_until(&mut o, 25 * MS).into_iter().map(|(t, _)| t).collect();
    assert_eq!(times, [200 * US, MS, 11 * MS, 21 * MS]);
    o.confirmed(2, &confirm(1, 0));
    assert_eq!(o.pending(), 1);
    o.confirmed(3, &confirm(0, 1));
    assert_eq!((o.pending(), o.poll_timeout()), (0, None));
}

#[test]
fn a_receiver_that_drops_out_is_not_waited_for() {
    let mut o = outbox();
    o.peer_set([2, 3]);
    o.app_started(1).unwrap();
    o.push(1, Cause::Killed, 9, 0, 0).unwrap();
    o.confirmed(2, &confirm(1, 0));
    o.peer_set([2]);
    assert_eq!(o.pending(), 0);
}

#[test]
fn nobody_answers_for_two_seconds_and_it_ends() {
    let mut o = outbox();
    o.peer_set([2]);
    o.app_started(1).unwrap();
    o.push(1, Cause::Killed, 9, 0, 0).unwrap();
    let sent = sent_until(&mut o, 10_000 * MS);
    assert!((200..=203).contains(&sent.len()), "{}", sent.len());
    assert_eq!((o.pending(), o.given_up(), o.poll_timeout()), (0, 1, None));
}

#[test]
fn confirmations_of_others_or_of_the_future_are_ignored() {
    let mut o = outbox();
    o.peer_set([2]);
    o.app_started(1).unwrap();
    o.push(1, Cause::Killed, 9, 0, 0).unwrap();
    o.confirmed(2, &ConfirmEntry { incarnation: 4, ..confirm(1, 0) });
    o.confirmed(2, &ConfirmEntry { node: 9, ..confirm(1, 0) });
    o.confirmed(2, &confirm(2, 0));
    o.confirmed(2, &confirm(0, 0b11));
    o.confirmed(7, &confirm(1, 0));
    assert_eq!(o.pending(), 1);
}

#[test]
fn a_receiver_that_started_over_still_confirms() {
    let mut o = outbox();
    o.peer_set([2]);
    for app in 1..=3 {
        o.app_started(app).unwrap();
        o.push(app, Cause::Killed, 9, 0, 0).unwrap();
    }
    o.confirmed(2, &confirm(1, 0));
    assert_eq!(o.pending(), 2);
    o.confirmed(2, &confirm(0, 0b100)); // its new incarnation heard the third only
    assert_eq!(o.pending(), 1);
    o.confirmed(2, &confirm(2, 0));
    assert_eq!(o.pending(), 0);
}

#[test]
fn many_deaths_at_once_leave_in_bursts() {
    let mut o = outbox();
    o.peer_set([2]);
    for app in 1..=4096 {
        o.app_started(app).unwrap();
    }
    assert_eq!(o.app_started(4097), Err(NotStarted::TooMany));
    for app in 1..=4096 {
        o.push(app, Cause::Doomed, 9, 0, 0).unwrap();
        o.push(app, Cause::Killed, 9, 0, 0).unwrap();
    }
    assert_eq!(o.pending(), MAX_PENDING);
    let sent = sent_until(&mut o, MS);
    assert_eq!(sent.len(), 9 * 32, "at 200, 300, … 1000 µs");
    for app in 5000..5010 {
        o.app_started(app).unwrap();
        o.push(app, Cause::Killed, 9, 0, MS).unwrap();
    }
    assert_eq!((o.pending(), o.given_up()), (MAX_PENDING, 10));
}

#[test]
fn a_late_joiner_confirms_nothing_that_it_did_not_receive() {
    let mut i = Inbox::new();
    assert_eq!(i.offer(100, 0), Offer::TooFar, "1 to 99 may still come");
    assert_eq!(i.offer(101, 1_000 * MS), Offer::TooFar);
    assert_eq!(i.offer(102, 3_001 * MS), Offer::New, "what was sent before 100 is not repeated any more");
    assert_eq!(i.entry(1, 1), ConfirmEntry { node: 1, incarnation: 1, upto: 99, beyond: 0b100 });
    assert_eq!(i.offer(101, 3_002 * MS), Offer::New);
    assert_eq!(i.offer(100, 3_003 * MS), Offer::New);
    assert_eq!(i.entry(1, 1).upto, 102);
}

#[test]
fn a_hole_is_kept_open_as_long_as_its_sender_repeats() {
    let mut i = Inbox::new();
    for n in 2..=33 {
        i.offer(n, 0);
    }
    assert_eq!(i.entry(1, 1), ConfirmEntry { node: 1, incarnation: 1, upto: 0, beyond: !1 });
    assert_eq!(i.offer(34, 2_000 * MS), Offer::TooFar);
    assert_eq!(i.offer(1, 2_000 * MS), Offer::New);
    assert_eq!(i.entry(1, 1).upto, 32, "33 was too far when it came");
    assert_eq!(i.offer(34, 2_000 * MS), Offer::New);
    assert_eq!(i.offer(33, 2_000 * MS), Offer::New);
    assert_eq!(i.entry(1, 1).upto, 34);

    // After three seconds, longer than anybody repeats, it is closed: what it hid is taken, what belonged into it is not.
    let mut i = Inbox::new();
    i.offer(2, 7);
    assert_eq!(i.offer(34, 7 + 3_000 * MS), Offer::TooFar);
    assert!(!i.covers(1));
    assert_eq!(i.offer(34, 8 + 3_000 * MS), Offer::New);
    assert_eq!(i.offer(1, 8 + 3_000 * MS), Offer::Duplicate);
    assert_eq!((i.entry(1, 1).upto, i.entry(1, 1).beyond), (2, 1 << 31));
}

proptest! {
    /// Whatever is lost, doubled or turned around: every notice gets through, once, and is then no longer repeated.
    #[test]
    fn every_notice_gets_through_a_bad_network(crashes in 1u32..80, seed: u64, loss in 0u64..90, receivers in 1u32..4) {
        let mut state = seed | 1;
        let mut random = move || { state ^= state << 13; state ^= state >> 7; state ^= state << 17; state };
        let mut o = outbox();
        o.peer_set(2..2 + receivers);
        let mut inboxes = vec![Inbox::new(); receivers as usize];
        let mut got = vec![std::collections::BTreeSet::new(); receivers as usize];
        let mut air: Vec<Notice> = Vec::new();
        for app in 1..=crashes {
            o.app_started(app).unwrap();
            air.push(o.push(app, Cause::Killed, 9, 0, 0).unwrap());
        }
        let mut now = 0;
        while o.pending() > 0 {
            while let Some(n) = o.poll_transmit(now) { air.push(n); }
            while !air.is_empty() {
                let n = air.swap_remove((random() % air.len() as u64) as usize);
                for (k, inbox) in inboxes.iter_mut().enumerate() {
                    if random() % 100 < loss { continue; }
                    let before = inbox.covers(n.notice);
                    let offer = inbox.offer(n.notice, now);
                    prop_assert_eq!(before, offer == Offer::Duplicate);
                    if offer == Offer::New { prop_assert!(got[k].insert(n.notice)); }
                }
            }
            for (k, inbox) in inboxes.iter().enumerate() {
                if random() % 100 >= loss { o.confirmed(2 + k as u32, &inbox.entry(1, 5)); }
            }
            if let Some(t) = o.poll_timeout() { now = t.max(now); }
        }
        prop_assert_eq!(o.given_up(), 0);
        for set in got { prop_assert_eq!(set.len() as u32, crashes); }
    }

    /// The inbox is the set it stands for.
    #[test]
    fn an_inbox_is_a_set(numbers in proptest::collection::vec(1u32..60, 1..200)) {
        let mut inbox = Inbox::new();
        let mut model = std::collections::BTreeSet::new();
        for n in numbers {
            match inbox.offer(n, 0) {
                Offer::New => prop_assert!(model.insert(n)),
                Offer::Duplicate => prop_assert!(model.contains(&n)),
                Offer::TooFar => prop_assert!((1..n).any(|h| !model.contains(&h))),
            }
            for k in 1..100 { prop_assert_eq!(inbox.covers(k), model.contains(&k)); }
        }
    }
}

#[test]
fn notices_numbered_by_the_hook_are_repeated_like_any_other_in_whatever_order_they_come() {
    let mut o = outbox();
    o.peer_set([2]);
    for app in 1..=3 {
        o.app_started(app).unwrap();
    }
    let numbered =
        |notice, app| Notice { notice, app, cause: Cause::Doomed, grade: Grade::Certain, flags: 0, code: 9, event_ns: 0 };
    for (number, app) in [(2, 1), (1, 2), (2, 1), (3, 3)] {
        o.push_numbered(&numbered(number, app), 0);
        assert!(!o.may_piggyback(app));
    }
    assert_eq!((o.pending(), o.last_number()), (3, 3));
    let sent: Vec<u32> = sent_until(&mut o, 300 * US).into_iter().map(|(_, n)| n).collect();
    assert_eq!(sent, [1, 2, 3]);
    assert_eq!(o.push(1, Cause::Killed, 9, 0, 0).map(|n| (n.notice, n.flags)), Some((4, Notice::CONFIRMS)));
    o.confirmed(2, &confirm(4, 0));
    assert_eq!(o.pending(), 0);
}
