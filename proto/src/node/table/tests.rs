use super::owner::{ENDED_MAX, ENDED_NS, FRAMES_PER_PULL, SHARED_NS, To};
use super::replica::GAP_NS;
use super::*;
use fide_wire::frame::BODY_MAX;
use fide_wire::frame::table::{Change, Content, HOST_ROW, Host, Instance, Interest, Process, Pull, Row, State, read_rows};
use fide_wire::verdict::{Cause, Grade};

const ORIGIN: u32 = 7;
const EPOCH: u64 = 99;
const BOOT: u128 = 5;
const S: u64 = 1_000_000_000;

fn host() -> Content {
    Content::Host(Host {
        state: State::running(1),
        boot: 1,
        size_max: 1,
        renewed_from: None,
        fence: None,
        starting: None,
        addresses: [None; 2],
        name: "h".into(),
    })
}

fn process(pid: u32, state: State) -> Content {
    let instance = Instance { pid, start_ticks: 1 };
    Content::Process(Process { state, instance, uid: 0, pbsize: 0, name: format!("p{pid}").into() })
}

fn ended() -> State {
    State { cause: Cause::Killed, grade: Grade::Certain, flags: 0, code: 9, event_ns: 5 }
}

fn owner() -> Owner {
    let mut owner = Owner::new(ORIGIN, EPOCH);
    owner.put(HOST_ROW, 1, host(), 0).unwrap();
    owner
}

fn replica(complete: u64) -> Replica {
    let mut replica = Replica::new(1, ORIGIN, 0);
    replica.handle_introduction(EPOCH, BOOT, complete, 0);
    replica
}

fn end_of(row: u32, version: u64) -> Change {
    Change { origin: ORIGIN, row, version, state: ended() }
}

/// What a pull of the replica brings, until it is complete or `frames` are through.
fn pull(owner: &mut Owner, replica: &mut Replica, now_ns: u64, frames: usize) -> usize {
    let mut body = Vec::new();
    for n in 0..frames {
        if replica.is_complete() {
            return n;
        }
        let at_ns = replica.poll_timeout().unwrap().max(now_ns);
        let pull = replica.poll_pull(at_ns).unwrap();
        body.clear();
        owner.answer(&pull, &mut body, 400);
        let (head, rows) = read_rows(&body).unwrap();
        replica.handle_rows(&head, rows, at_ns).unwrap();
    }
    frames
}

fn events(replica: &mut Replica) -> Vec<Event> {
    std::iter::from_fn(|| replica.poll_event()).collect()
}

#[test]
fn a_replica_has_what_the_owner_has_after_pulls_of_small_frames() {
    let mut owner = owner();
    (1..=40).for_each(|row| owner.put(row, u64::from(row) + 1, process(row, State::running(1)), 0).unwrap());
    let mut replica = replica(owner.complete());
    assert!(pull(&mut owner, &mut replica, 0, 100) > 3, "in several frames");
    assert!(owner.rows().all(|row| replica.get(row.row) == Some(&row.content)));
    assert_eq!(events(&mut replica).into_iter().filter(|e| matches!(e, Event::Appeared { .. })).count(), 41);
}

#[test]
fn a_version_that_the_kernel_gave_out_first_is_waited_for() {
    let mut owner = owner();
    owner.put(1, 3, process(1, State::running(1)), 0).unwrap();
    assert_eq!((owner.complete(), owner.next_version()), (1, 4));
    let mut body = Vec::new();
    owner.answer(&Pull { origin: ORIGIN, epoch: EPOCH, from: 0, list: None }, &mut body, BODY_MAX);
    let (head, rows) = read_rows(&body).unwrap();
    assert_eq!((head.through, rows.len()), (1, 1), "nothing above the hole is called complete");
    owner.skip(2);
    assert_eq!(owner.complete(), 3);
}

#[test]
fn a_change_is_news_once_and_never_goes_back() {
    let mut replica = replica(1);
    let mut owner = owner();
    owner.put(1, 2, process(1, State::running(1)), 0).unwrap();
    pull(&mut owner, &mut replica, 0, 9);
    replica.handle_version(2, 0);
    pull(&mut owner, &mut replica, 0, 9);
    events(&mut replica);
    let doomed = Change { state: State { cause: Cause::Doomed, ..ended() }, ..end_of(1, 3) };
    let killed = end_of(1, 4);
    assert_eq!(replica.handle_change(&killed, 0), Ok(()), "the later one came first");
    assert_eq!(replica.handle_change(&doomed, 0), Err(Refused::OldVersion));
    assert_eq!(replica.handle_change(&killed, 0), Err(Refused::OldVersion), "the copy on the other path");
    let told = events(&mut replica);
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(matches!(told[0], Event::Changed { row: 1, after, .. } if after == ended()));
    assert_eq!((told[1].clone(), replica.is_complete()), (Event::Complete, true), "the gap is filled by the older copy");
    assert_eq!(replica.handle_change(&Change { origin: 8, ..killed }, 0), Err(Refused::OtherOrigin));
}

#[test]
fn the_end_of_a_process_whose_name_was_lost_is_told_with_its_name() {
    let mut owner = owner();
    let mut replica = replica(1);
    pull(&mut owner, &mut replica, 0, 9);
    events(&mut replica);
    owner.put(1, 2, process(1, State::running(1)), 0).unwrap();
    owner.change(&end_of(1, 3), 0).unwrap();
    replica.handle_change(&end_of(1, 3), 0).unwrap();
    assert_eq!((events(&mut replica), replica.complete()), (vec![], 1));
    pull(&mut owner, &mut replica, 0, 9);
    assert_eq!(events(&mut replica), [Event::Appeared { row: 1, state: Some(ended()) }, Event::Complete]);
    assert!(matches!(replica.get(1), Some(Content::Process(p)) if &*p.name == "p1"));
}

#[test]
fn a_version_that_a_heartbeat_names_is_pulled_after_a_moment() {
    let mut replica = replica(1);
    let mut owner = owner();
    pull(&mut owner, &mut replica, 0, 9);
    replica.handle_version(5, 1000);
    assert_eq!(replica.poll_timeout(), Some(1000 + GAP_NS));
    assert_eq!(replica.poll_pull(1000 + GAP_NS - 1), None);
    let asked = replica.poll_pull(1000 + GAP_NS);
    assert_eq!(asked, Some(Pull { origin: ORIGIN, epoch: EPOCH, from: 1, list: None }));
    assert!(replica.poll_timeout().unwrap() > 1000 + GAP_NS, "asked again later");
    // Versions wrap in heartbeats, not in tables.
    let far = u64::from(u32::MAX) + 10;
    let mut replica = Replica::new(1, ORIGIN, 0);
    replica.handle_introduction(EPOCH, BOOT, far, 0);
    replica.handle_version(11, 0);
    replica.handle_version(u32::MAX, 0);
    assert_eq!(replica.poll_pull(S).unwrap().from, 0);
    let mut body = Vec::new();
    let owner =
        Owner::restore(ORIGIN, EPOCH, (far + 2, 0, false), [Row { row: 0, version: far + 2, content: host() }], 0).unwrap();
    owner.answer(&Pull { origin: ORIGIN, epoch: EPOCH, from: 0, list: None }, &mut body, BODY_MAX);
    let (head, rows) = read_rows(&body).unwrap();
    replica.handle_rows(&head, rows, 0).unwrap();
    assert_eq!((replica.complete(), replica.is_complete()), (far + 2, true));
}

#[test]
fn rows_that_were_removed_are_gone_in_a_list_and_an_end_that_nobody_saw_is_told() {
    let mut owner = owner();
    (1..=50).for_each(|row| owner.put(row, u64::from(row) + 1, process(row, State::running(1)), 0).unwrap());
    let mut replica = replica(owner.complete());
    pull(&mut owner, &mut replica, 0, 99);
    events(&mut replica);
    (1..=20).for_each(|row| owner.change(&end_of(row, u64::from(row) + 51), 0).unwrap());
    assert_eq!(owner.poll_timeout(), Some(ENDED_NS));
    owner.handle_timeout(ENDED_NS);
    assert_eq!((owner.rows().count(), owner.floor()), (31, 71));
    replica.handle_version(71, ENDED_NS);
    assert!(pull(&mut owner, &mut replica, ENDED_NS, 99) > 2, "a list in several frames");
    let told = events(&mut replica);
    let unseen = told.iter().filter(|e| matches!(e, Event::Changed { after, .. } if after.flags == State::CAUSE_UNKNOWN));
    assert_eq!((unseen.count(), told.len()), (20, 21), "{told:?}");
    assert!((21..=50).all(|row| replica.state(row) == Some(State::running(1))));
}

#[test]
fn a_list_begins_again_if_more_rows_are_removed_meanwhile() {
    let mut owner = owner();
    (1..=50).for_each(|row| owner.put(row, u64::from(row) + 1, process(row, State::running(1)), 0).unwrap());
    (1..=20).for_each(|row| owner.change(&end_of(row, u64::from(row) + 51), u64::from(row) * S).unwrap());
    owner.handle_timeout(ENDED_NS + 10 * S);
    let mut replica = replica(owner.complete());
    pull(&mut owner, &mut replica, 0, 2);
    assert!(!replica.is_complete());
    owner.handle_timeout(ENDED_NS + 20 * S);
    pull(&mut owner, &mut replica, 0, 99);
    assert!(replica.is_complete());
    assert_eq!(replica.rows().count(), owner.rows().count());
}

#[test]
fn ended_rows_are_bounded() {
    let mut owner = owner();
    let mut version = 1;
    for row in 1..=ENDED_MAX as u32 + 100 {
        version += 2;
        owner.put(row, version - 1, process(row, State::running(1)), 0).unwrap();
        owner.change(&end_of(row, version), 0).unwrap();
    }
    assert_eq!(owner.rows().count(), 1 + ENDED_MAX);
    assert!(owner.is_consistent());
}

#[test]
fn what_cannot_be_is_refused_and_uses_its_version() {
    let mut owner = owner();
    owner.put(1, 2, process(1, ended()), 0).unwrap();
    assert_eq!(owner.change(&Change { state: State::running(1), ..end_of(1, 3) }, 0), Err(Refused::Ended));
    assert_eq!(owner.change(&end_of(9, 4), 0), Err(Refused::UnknownRow));
    assert_eq!(owner.put(1, 2, process(1, ended()), 0), Err(Refused::OldVersion));
    assert_eq!(owner.put(0, 5, process(1, ended()), 0), Err(Refused::Malformed));
    assert_eq!(owner.put(5, 6, host(), 0), Err(Refused::Malformed));
    assert_eq!(owner.put(5, 7, Content::Unknown(9), 0), Err(Refused::Malformed));
    assert_eq!((owner.complete(), owner.rows().count()), (7, 2));
    let row = |row, version| Row { row, version, content: process(row, ended()) };
    for rows in [vec![row(1, 9)], vec![row(1, 2), row(1, 3)], vec![row(1, 2), row(2, 2)], vec![row(1, 0)]] {
        assert_eq!(Owner::restore(ORIGIN, EPOCH, (7, 1, false), rows, 0).unwrap_err(), Refused::Malformed);
    }
    assert_eq!(Owner::restore(ORIGIN, EPOCH, (7, 8, false), [], 0).unwrap_err(), Refused::Malformed);
}

#[test]
fn the_first_pull_is_answered_alone_and_the_second_to_everybody() {
    let mut owner = owner();
    owner.put(1, 2, process(1, State::running(1)), 0).unwrap();
    let asks = Pull { origin: ORIGIN, epoch: EPOCH, from: 1, list: None };
    let mut body = Vec::new();
    let mut answer = |owner: &mut Owner, from, now_ns| {
        owner.handle_pull(from, &asks, now_ns).unwrap();
        owner.poll_transmit(&mut body, BODY_MAX, now_ns)
    };
    assert_eq!(answer(&mut owner, 10, 0), Some(To::Node(10)));
    assert_eq!(answer(&mut owner, 11, 1), Some(To::Everybody));
    assert_eq!(answer(&mut owner, 12, 2), None, "it is on its way");
    assert_eq!(answer(&mut owner, 12, 1 + SHARED_NS), Some(To::Node(12)), "it was lost there");
    let other = Pull { origin: 8, ..asks };
    assert_eq!(owner.handle_pull(10, &other, 0), Err(Refused::OtherOrigin));
}

#[test]
fn pulls_of_many_hosts_have_their_turns_and_are_bounded() {
    let mut owner = owner();
    (1..=2000).for_each(|row| owner.put(row, u64::from(row) + 1, process(row, State::running(1)), 0).unwrap());
    (0..1000).for_each(|node| owner.handle_pull(node, &Pull { origin: ORIGIN, epoch: 0, from: 0, list: None }, 0).unwrap());
    let mut body = Vec::new();
    let first: Vec<_> = (0..3).map(|_| owner.poll_transmit(&mut body, BODY_MAX, 0)).collect();
    assert_eq!(first, [Some(To::Node(0)), Some(To::Node(1)), Some(To::Node(2))]);
    let rest = std::iter::from_fn(|| owner.poll_transmit(&mut body, BODY_MAX, 0)).count();
    assert!(rest <= 256 * FRAMES_PER_PULL as usize, "{rest}");
    assert!(!owner.is_answering());
}

#[test]
fn a_table_of_another_epoch_is_compared_by_instance() {
    let mut owner = owner();
    (1..=3).for_each(|row| owner.put(row, u64::from(row) + 1, process(row, State::running(1)), 0).unwrap());
    let mut replica = replica(owner.complete());
    pull(&mut owner, &mut replica, 0, 9);
    events(&mut replica);
    // The agent came back without its table: pid 1 runs on under another row, pid 2 ended seen, pid 3 unseen.
    let mut owner = Owner::new(ORIGIN, EPOCH + 1);
    owner.put(HOST_ROW, 1, host(), 0).unwrap();
    owner.put(8, 2, process(1, State::running(1)), 0).unwrap();
    owner.put(9, 3, process(2, ended()), 0).unwrap();
    replica.handle_introduction(EPOCH + 1, BOOT, owner.complete(), 0);
    pull(&mut owner, &mut replica, 0, 9);
    let told = events(&mut replica);
    assert!(told.contains(&Event::Renumbered { former: 1, row: 8 }), "{told:?}");
    assert!(told.contains(&Event::Changed { row: 9, version: 3, before: State::running(1), after: ended() }), "{told:?}");
    let lost = told.iter().find(|e| matches!(e, Event::Lost { former: 3, content } if content.state().unwrap().is_final()));
    assert!(lost.is_some(), "{told:?}");
}

#[test]
fn rows_of_a_table_that_was_not_introduced_are_refused() {
    let owner = owner();
    let mut body = Vec::new();
    owner.answer(&Pull { origin: ORIGIN, epoch: 0, from: 0, list: None }, &mut body, BODY_MAX);
    let (head, rows) = read_rows(&body).unwrap();
    let mut stranger = Replica::new(1, ORIGIN, 0);
    assert_eq!(stranger.handle_rows(&head, rows.clone(), 0), Err(Refused::OtherEpoch));
    assert_eq!(stranger.handle_change(&end_of(1, 2), 0), Err(Refused::OtherEpoch));
    stranger.handle_version(9, 0);
    assert_eq!(stranger.poll_timeout(), None);
    assert_eq!(Replica::new(1, 8, 0).handle_rows(&head, rows, 0), Err(Refused::OtherOrigin));
}

/// Applications come and go for years: rows of interests that nobody has any more must not pile up.
#[test]
fn an_interest_that_nobody_has_any_more_is_removed_as_an_ended_process_is() {
    let (mut owner, mut replica) = (owner(), replica(1));
    let interest = |is_held| Content::Interest(Interest { node: 8, row: 1, pbsize: 0, is_held });
    let mut version = 1;
    for row in 1..=2 * ROWS_MAX as u32 {
        for is_held in [true, false] {
            version += 1;
            owner.put(row, version, interest(is_held), 0).unwrap();
        }
        assert_eq!(owner.put(row, version + 1, interest(true), 0), Err(Refused::Ended), "a new one has a new row");
        version += 1;
    }
    assert!(owner.rows().count() <= ENDED_MAX + 1 && owner.is_consistent());
    replica.handle_version(version as u32, 0);
    pull(&mut owner, &mut replica, 0, usize::MAX);
    assert_eq!(replica.complete(), version);
    assert!(replica.rows().count() <= ENDED_MAX + 1);
    owner.handle_timeout(ENDED_NS);
    assert_eq!(owner.rows().count(), 1, "and after a while");
}

#[test]
fn what_ran_in_another_boot_has_ended_whatever_has_its_pid_now() {
    let mut owner = owner();
    owner.put(1, 2, process(1, State::running(1)), 0).unwrap();
    let mut replica = replica(owner.complete());
    pull(&mut owner, &mut replica, 0, 9);
    events(&mut replica);
    let mut owner = Owner::new(ORIGIN, EPOCH + 1);
    owner.put(HOST_ROW, 1, host(), 0).unwrap();
    owner.put(8, 2, process(1, State::running(1)), 0).unwrap();
    replica.handle_introduction(EPOCH + 1, BOOT + 1, owner.complete(), 0);
    pull(&mut owner, &mut replica, 0, 9);
    let told = events(&mut replica);
    assert!(told.iter().any(|e| matches!(e, Event::Lost { former: 1, .. })), "{told:?}");
    assert!(told.contains(&Event::Appeared { row: 8, state: Some(State::running(1)) }), "{told:?}");
}

/// The agent was killed before it had written a row to its file: nobody knows whether that process runs.
#[test]
fn a_row_that_an_agent_that_was_killed_had_not_kept_is_not_watched_any_more_and_has_not_ended() {
    let mut former = owner();
    former.put(1, 2, process(1, State::running(1)), 0).unwrap();
    for (is_unsure, cause) in [(true, Cause::Left), (false, Cause::Exited)] {
        let mut replica = replica(former.complete());
        pull(&mut former, &mut replica, 0, 9);
        events(&mut replica);
        let rows = [Row { row: HOST_ROW, version: 1, content: host() }];
        let mut next = Owner::restore(ORIGIN, EPOCH, (100, 100, is_unsure), rows, 0).unwrap();
        replica.handle_introduction(EPOCH, BOOT, next.complete(), 0);
        pull(&mut next, &mut replica, 0, 9);
        let told = events(&mut replica);
        let is_told = |e: &Event| matches!(e, Event::Changed { row: 1, after, .. } if after.cause == cause);
        assert!(told.iter().any(is_told), "{told:?}");
    }
}

/// In a list of several frames it stands behind the floor, in whatever frame that is, or is not there yet.
#[test]
fn a_row_that_changes_while_the_table_is_listed_is_not_gone() {
    for (rows, has_gap) in (1..=60).flat_map(|rows| [(rows, false), (rows, true)]) {
        let mut former = owner();
        (1..=rows).for_each(|row| former.put(row, u64::from(row) + 1, process(row, State::running(1)), 0).unwrap());
        let mut replica = replica(former.complete());
        pull(&mut former, &mut replica, 0, 99);
        events(&mut replica);
        let kept: Vec<Row> = former.rows().cloned().collect();
        let mut next = Owner::restore(ORIGIN, EPOCH, (1000, 1000, true), kept, 0).unwrap();
        // It ended while no agent ran; and another one ends behind a version that is not written yet, or that the list has passed.
        next.put(HOST_ROW, 1001, host(), 0).unwrap();
        next.change(&end_of(1, 1002), 0).unwrap();
        if has_gap && rows > 1 {
            next.change(&end_of(2, 1004), 0).unwrap();
        }
        replica.handle_introduction(EPOCH, BOOT, next.complete(), 0);
        pull(&mut next, &mut replica, 0, 3);
        next.skip(1003);
        if rows > 2 {
            next.change(&end_of(3, next.next_version()), 0).unwrap();
        }
        replica.handle_version(next.complete() as u32, 0);
        pull(&mut next, &mut replica, 0, 99);
        let told = events(&mut replica);
        let left = told.iter().find(|e| matches!(e, Event::Changed { after, .. } if after.cause == Cause::Left));
        assert_eq!(left, None, "of {rows} rows, has_gap: {has_gap}");
        assert!(next.rows().all(|row| replica.get(row.row) == Some(&row.content)), "of {rows} rows, has_gap: {has_gap}");
    }
}

#[test]
fn what_was_pushed_in_another_order_than_it_is_numbered_is_not_pushed_again() {
    let mut tables = crate::node::tables::Tables::new(owner(), 4);
    let mut body = Vec::new();
    for row in 1..=3 {
        tables.put(row, 1 + u64::from(row), process(row, State::running(1)), 0).unwrap();
    }
    assert!(tables.poll_transmit(&mut body, 0).is_some() && tables.poll_transmit(&mut body, 0).is_none());
    // The shell has sent both; the kernel told of the later one first.
    tables.change(&end_of(2, 6), 0).unwrap();
    tables.change(&end_of(1, 5), 0).unwrap();
    assert_eq!((tables.owner().complete(), tables.is_pushing()), (6, false));
    assert!(tables.poll_transmit(&mut body, 0).is_none());
    // A row that nobody has sent leaves, whatever has left behind it.
    tables.put(4, 7, process(4, State::running(1)), 0).unwrap();
    tables.change(&end_of(3, 8), 0).unwrap();
    assert!(tables.is_pushing() && tables.poll_transmit(&mut body, 0).is_some());
    assert!(!tables.is_pushing() && tables.poll_transmit(&mut body, 0).is_none());
    // … and what follows that is not pushed twice, either.
    tables.skip(9);
    tables.change(&end_of(4, 10), 0).unwrap();
    assert!(!tables.is_pushing());
}
