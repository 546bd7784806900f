use super::fragment::Fragment;
use super::introduction::{Answer, Hello, Introduction};
use super::table::{
    Agent, Change, Content, HOST_ROW, Host, Instance, Interest, Keys, Maintenance, Process, Pull, Row, RowsHead, State, read_rows,
};
use super::*;
use crate::mac::Key;
use crate::verdict::{Cause, Confirmers, Contract, FenceMode, FencePromise, Grade};
use proptest::prelude::*;
use std::num::NonZeroU64;

fn ring() -> Keyring {
    Keyring::new((1, Key([9; 16])), Some((2, Key([8; 16])))).unwrap()
}

fn header(kind: Kind) -> Header {
    Header {
        kind: kind as u8,
        channel: 0,
        path: 1,
        key_id: 1,
        cluster: 7,
        sender: 3,
        incarnation: 5,
        number: 42,
        sent_ns: 99,
        period_ns: 1_000_000,
        table_version: 17,
        more: false,
    }
}

fn sample(kind: Kind, body: &[u8]) -> Vec<u8> {
    let mut out = [0; FRAME_MAX];
    let n = encode(&mut out, &header(kind), body, &ring()).unwrap();
    out[..n].to_vec()
}

fn state(cause: Cause) -> State {
    State { cause, grade: Grade::Certain, flags: State::CONFIRMS, code: -9, event_ns: 1 << 40 }
}

fn host() -> Host {
    Host {
        state: State::running(5),
        boot: u128::MAX - 7,
        size_max: 1418,
        renewed_from: Some(7),
        fence: Some(FencePromise { timeout_ns: 77, mode: FenceMode::Acknowledged(Confirmers::AtLeast(3)), host: true }),
        starting: None,
        addresses: [Some([10, 0, 0, 1].into()), Some([0xfd00, 0, 0, 0, 0, 0, 0, 1].into())],
        name: "host-ä".into(),
    }
}

fn rows() -> Vec<Row> {
    let process = Process {
        state: state(Cause::Killed),
        instance: Instance { pid: 77, start_ticks: 1 << 50 },
        uid: 1000,
        pbsize: 1418,
        name: "redis".into(),
    };
    let interest = Interest { node: 9, row: 4, pbsize: 8, is_held: true };
    let agent = Agent { version: "0.1.0".into(), zone: "rack1".into(), groups: 3, running: 2 };
    vec![
        Row { row: HOST_ROW, version: 4, content: Content::Host(host()) },
        Row { row: 1, version: 6, content: Content::Process(process) },
        Row { row: 2, version: 9, content: Content::Interest(interest) },
        Row { row: 3, version: 10, content: Content::Unknown(200) },
        Row { row: 5, version: 11, content: Content::Keys(Keys(vec![(2, 0x1234_5678_9abc_def0), (1, 7)])) },
        Row { row: 6, version: 12, content: Content::Agent(agent) },
        Row { row: 4, version: 12, content: Content::Maintenance(maintenance("db@*")) },
    ]
}

fn maintenance(target: &str) -> Maintenance {
    let (by, target, reason) = ("h1".into(), target.into(), "größere Platte".into());
    Maintenance { stamp: 1_800_000_000_000, left_ms: 600_000, uid: 1000, by, target, reason }
}

#[test]
fn a_maintenance_that_cannot_be_is_refused_and_one_that_lasts_too_long_is_bounded() {
    let parse = |m: Maintenance| {
        let mut bytes = Vec::new();
        assert!(Row { row: 4, version: 12, content: Content::Maintenance(m) }.push(&mut bytes, BODY_MAX));
        Row::parse(&bytes)
    };
    let good = maintenance("@h1");
    for bad in [
        Maintenance { stamp: u64::MAX, ..good.clone() },
        Maintenance { reason: "a\nb".into(), ..good.clone() },
        maintenance("a@b@c"),
        maintenance(""),
    ] {
        assert_eq!(parse(bad.clone()), None, "{bad:?}");
    }
    let Some(Row { content: Content::Maintenance(m), .. }) = parse(Maintenance { left_ms: u64::MAX, ..good }) else { panic!() };
    assert_eq!(m.left_ms, 86_400_000);
}

fn rows_body() -> (RowsHead, Vec<u8>) {
    let head = RowsHead { origin: 3, epoch: 1 << 60, from: 3, through: 12, complete: 15, list: Some(2), is_unsure: false };
    let mut body = Vec::new();
    head.write(&mut body);
    assert!(rows().iter().all(|row| row.push(&mut body, BODY_MAX)));
    (head, body)
}

fn introduction() -> Introduction {
    let contract = Contract { period_ns: 1, size_max: 2, lambda_min_ns: 3, delta_max_ns: 4 };
    let answers = vec![Answer { node: 1, nonce: u64::MAX, seen: 0 }, Answer { node: 2, nonce: 5, seen: u32::MAX }];
    Introduction {
        answers,
        heartbeats: 6,
        others: 7,
        epoch: 8,
        complete: 9,
        contract,
        host: host(),
        challenge: NonZeroU64::new(10),
        response: None,
        diverted: [false, true],
        refuted: vec![(3, 4), (5, u32::MAX)],
    }
}

#[test]
fn fields_lie_where_the_documentation_says() {
    let frame = sample(Kind::Change, &[0xab]);
    assert_eq!(frame[0..4], [0xf1, 0xde, 0x20, 0x11]);
    assert_eq!(frame[4..16], [0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 5]);
    assert_eq!(frame[16..24], [2, 0, 0, 0, 0, 0, 0, 42]);
    assert_eq!(frame[24..40], [0, 0, 0, 0, 0, 0, 0, 99, 0, 0x0f, 0x42, 0x40, 0, 0, 0, 17]);
    assert_eq!((frame.len(), frame[48]), (49, 0xab));
}

#[test]
fn numbers_end_at_the_last_one_and_do_not_begin_again() {
    for (number, written) in
        [(NUMBER_MAX - 1, NUMBER_MAX - 1), (NUMBER_MAX, NUMBER_MAX), (NUMBER_MAX + 1, NUMBER_MAX), (u64::MAX, NUMBER_MAX)]
    {
        let header = Header { kind: Kind::Heartbeat as u8, channel: 2, number, ..Header::default() };
        let mut frame = [0; FRAME_MAX];
        header.write(&mut frame, 1);
        let (_, _, read) = Header::read(&frame).unwrap();
        assert_eq!((read.number, read.kind, read.channel), (written, Kind::Heartbeat as u8, 2));
    }
}

#[test]
fn a_heartbeat_with_the_largest_piggyback_fits_an_ordinary_frame() {
    let mut body = Vec::new();
    assert!(items::push(&mut body, BODY_MAX, Channel::Piggyback, &[1; items::APP_LEN + crate::PIGGYBACK_MAX]));
    assert!(sample(Kind::Heartbeat, &body).len() <= FRAME_MAX);
    let mut out = [0; FRAME_MAX];
    let e = encode(&mut out, &header(Kind::Heartbeat), &[0; BODY_MAX + 1], &ring()).unwrap_err();
    assert_eq!(e.to_string(), "a body of 1425 bytes does not fit: a frame carries at most 1424");
}

#[test]
fn every_bit_flip_and_every_cut_is_refused() {
    for (kind, body) in [(Kind::Heartbeat, &b""[..]), (Kind::Change, &[7; 32]), (Kind::Introduction, &[1; 300])] {
        let good = sample(kind, body);
        assert!(decode(&good, 7, &ring()).is_ok());
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bad, 7, &ring()).is_err(), "bit {bit} of {kind:?}");
        }
        for cut in 0..good.len() {
            assert!(decode(&good[..cut], 7, &ring()).is_err(), "{cut} bytes of {kind:?}");
        }
        let mut long = good.clone();
        long.push(0);
        assert_eq!(decode(&long, 7, &ring()).unwrap_err(), Refusal::Mac);
    }
}

#[test]
fn refusals_name_what_is_wrong() {
    let good = sample(Kind::Heartbeat, b"");
    let with = |at: usize, byte: u8| {
        let mut frame = good.clone();
        frame[at] = byte;
        decode(&frame, 7, &ring()).unwrap_err()
    };
    assert_eq!(with(0, 0), Refusal::Magic);
    assert_eq!(with(2, 0x10), Refusal::Version);
    assert_eq!(with(2, 0x30), Refusal::Version);
    assert_eq!(with(7, 8), Refusal::Cluster);
    assert_eq!(with(3, 0x13), Refusal::Key);
    assert_eq!(with(23, 41), Refusal::Mac);
    assert_eq!(decode(&[0; FRAME_MAX + 1], 7, &ring()).unwrap_err(), Refusal::Oversize);
    assert_eq!(decode(&good[..47], 7, &ring()).unwrap_err(), Refusal::Short);
}

#[test]
fn an_unknown_kind_is_authentic_and_refused_as_a_kind() {
    for kind in [0, 16, 64, 255] {
        let mut out = [0; FRAME_MAX];
        let header = Header { kind, ..header(Kind::Heartbeat) };
        let n = encode(&mut out, &header, b"?", &ring()).unwrap();
        assert_eq!(decode(&out[..n], 7, &ring()).unwrap_err(), Refusal::Kind);
        out[50] ^= 1;
        assert_eq!(decode(&out[..n + 2], 7, &ring()).unwrap_err(), Refusal::Mac, "unauthentic comes first");
    }
    for (i, kind) in Kind::ALL.into_iter().enumerate() {
        assert_eq!((kind as usize, Kind::from_u8(kind as u8)), (i + 1, Some(kind)));
    }
    for (i, channel) in Channel::ALL.into_iter().enumerate() {
        assert_eq!((channel as usize, Channel::from_u8(channel as u8)), (i, Some(channel)));
    }
    assert_eq!((Kind::from_u8(0), Kind::from_u8(16), Channel::from_u8(4)), (None, None, None));
}

#[test]
fn another_version_is_told_apart_and_who_sent_it_is_known() {
    let mut theirs = sample(Kind::Heartbeat, b"four more bytes");
    for version in (0..16).filter(|v| *v != VERSION) {
        theirs[2] = version << 4;
        assert_eq!(decode(&theirs, 7, &ring()).unwrap_err(), Refusal::Version);
        let (_, read, header) = Header::read(&theirs).unwrap();
        assert_eq!((read, header.cluster, header.sender, header.key_id), (version, 7, 3, 1), "fields that never move");
    }
}

#[test]
fn items_are_read_as_they_were_pushed() {
    let mut body = Vec::new();
    assert!(items::push(&mut body, BODY_MAX, Channel::Piggyback, b"\x00\x07hello"));
    assert!(items::push(&mut body, BODY_MAX, Channel::Groups, b""));
    let before = body.clone();
    assert!(!items::push(&mut body, before.len() + 2, Channel::Groups, b""), "no room");
    assert!(!items::push(&mut body, BODY_MAX, Channel::Groups, &[0; BODY_MAX]));
    assert!(!items::push(&mut body, usize::MAX, Channel::Groups, &[0; 1 << 16]));
    assert_eq!(body, before);
    let read: Vec<_> = items::read(&body).map(|item| item.map(|i| (i.channel, i.bytes.to_vec()))).collect();
    assert_eq!(read, [Ok((1, b"\x00\x07hello".to_vec())), Ok((2, Vec::new()))]);
    body.pop();
    assert_eq!(items::read(&body).last(), Some(Err(items::Malformed)));
}

#[test]
fn a_change_that_cannot_be_read_does_not_hide_the_next() {
    let change = Change { origin: 3, row: 4, version: 1 << 50, state: state(Cause::Doomed) };
    let mut body = change.bytes().to_vec();
    body.extend(change.bytes());
    body[16] = 200; // a cause of a later version
    body.extend([0; 7]);
    assert_eq!(Change::read_all(&body).collect::<Vec<_>>(), [None, Some(change), None]);
}

#[test]
fn rows_are_read_whole_or_not_at_all() {
    let (head, body) = rows_body();
    assert_eq!(read_rows(&body), Some((head, rows())));
    for cut in 0..body.len() {
        // A frame is authentic as a whole; a row list cut at a row's end is another list, and still in order.
        if let Some((_, read)) = read_rows(&body[..cut]) {
            assert_eq!(read, rows()[..read.len()]);
            assert!(read.len() < rows().len());
        }
    }
    let outside = |from, through| {
        let mut body = Vec::new();
        RowsHead { from, through, ..head }.write(&mut body);
        rows().iter().for_each(|row| assert!(row.push(&mut body, BODY_MAX)));
        read_rows(&body)
    };
    assert_eq!(outside(4, 12), None, "a row that the copy has");
    assert_eq!(outside(3, 9), None, "a row beyond");
    assert_eq!(outside(12, 3), None);
    let mut disordered = Vec::new();
    head.write(&mut disordered);
    rows().iter().rev().for_each(|row| assert!(row.push(&mut disordered, BODY_MAX)));
    assert_eq!(read_rows(&disordered), None);
    let mut misplaced = Vec::new();
    head.write(&mut misplaced);
    assert!(Row { row: 7, version: 4, content: Content::Host(host()) }.push(&mut misplaced, BODY_MAX));
    assert_eq!(read_rows(&misplaced), None, "a host in the row of a process");
}

#[test]
fn a_pull_and_a_shortened_head_are_read_as_written() {
    for list in [None, Some(0), Some(u64::MAX)] {
        let pull = Pull { origin: 1, epoch: u64::MAX, from: 3, list };
        let mut body = Vec::new();
        pull.write(&mut body);
        assert_eq!((body.len(), Pull::read(&body)), (Pull::LEN, Some(pull)));
        (0..body.len()).for_each(|cut| assert_eq!(Pull::read(&body[..cut]), None));
        let head = RowsHead { origin: 3, epoch: 4, from: 5, through: 6, complete: 7, list, is_unsure: false };
        body.clear();
        head.write(&mut body);
        assert_eq!((body.len(), read_rows(&body)), (RowsHead::LEN, Some((head, vec![]))));
        RowsHead::set_through(&mut body, 9);
        assert_eq!(read_rows(&body), Some((RowsHead { through: 9, ..head }, vec![])));
    }
}

#[test]
fn a_row_that_does_not_fit_leaves_the_body_as_it_was() {
    let mut body = vec![1, 2, 3];
    for room in 0..58 {
        assert!(!rows()[1].push(&mut body, room));
        assert_eq!(body, [1, 2, 3]);
    }
    assert!(rows()[1].push(&mut body, 100));
}

#[test]
fn names_that_cannot_be_shown_are_refused() {
    for bad in ["", "a\nb", "\u{1b}[2J", &"x".repeat(65)] {
        let mut body = Vec::new();
        let content = Content::Host(Host { name: bad.into(), ..host() });
        RowsHead { origin: 1, epoch: 1, from: 0, through: 9, complete: 9, list: None, is_unsure: false }.write(&mut body);
        assert!(Row { row: HOST_ROW, version: 4, content }.push(&mut body, BODY_MAX));
        assert_eq!(read_rows(&body), None, "{bad:?}");
    }
}

#[test]
fn a_full_introduction_fits_the_safe_size() {
    let mut long = introduction();
    long.answers = vec![Answer { node: 1, nonce: 2, seen: 3 }; introduction::ANSWERS_MAX + 5];
    long.refuted = vec![(1, 2); introduction::REFUTED_MAX + 5];
    long.host.name = "n".repeat(64).into();
    long.host.addresses = [Some([0xffff_u16; 8].into()); 2];
    let mut body = Vec::new();
    long.write(&mut body);
    assert!(BODY_AT + body.len() <= FRAME_SAFE, "{}", body.len());
    let read = Introduction::read(&body).unwrap();
    assert_eq!((read.answers.len(), read.refuted.len()), (introduction::ANSWERS_MAX, introduction::REFUTED_MAX));
}

#[test]
fn hellos_and_introductions_are_read_as_written() {
    let hello = Hello { nonce: 9, asked: vec![1, 2, u32::MAX], addresses: host().addresses };
    let mut body = Vec::new();
    hello.write(&mut body);
    assert_eq!(Hello::read(&body), Some(hello));
    (0..body.len()).for_each(|cut| assert_eq!(Hello::read(&body[..cut]), None));
    body.clear();
    Hello { nonce: 9, asked: vec![1; introduction::ASKED_MAX + 1], addresses: [None; 2] }.write(&mut body);
    assert_eq!(Hello::read(&body), Some(Hello { nonce: 9, asked: vec![], addresses: [None; 2] }), "too many to name: everybody");
    body.clear();
    introduction().write(&mut body);
    assert_eq!(Introduction::read(&body), Some(introduction()));
    let without_refuted = body.len() - 1 - 2 * 2 * size_of::<u32>();
    let former = without_refuted - 2 * size_of::<u32>();
    let is_cut = |cut: &usize| ![former, without_refuted].contains(cut);
    (0..body.len()).filter(is_cut).for_each(|cut| assert_eq!(Introduction::read(&body[..cut]), None, "{cut}"));
    let mut of_former = Introduction { refuted: Vec::new(), ..introduction() };
    assert_eq!(Introduction::read(&body[..without_refuted]), Some(of_former.clone()), "of a release that refuted nothing");
    of_former.answers.iter_mut().for_each(|answer| answer.seen = 0);
    assert_eq!(Introduction::read(&body[..former]), Some(of_former), "of a release that did not say what it has seen");
    body.push(9);
    assert_eq!(Introduction::read(&body), Some(introduction()), "what a later version adds");
}

#[test]
fn a_round_of_lowi_is_aligned_for_hardware() {
    let head = group::Head { group: 1, from: 2, engine: group::Engine::Lowi as u8, kind: 1, generation: 3 };
    let mut batch = Vec::new();
    for (number, bytes) in [(1, &b"value"[..]), (2, &[]), (3, &[9; 16])] {
        group::Entry { proposer: 7, kind: 0, number, bytes }.write(&mut batch);
        assert_eq!(batch.len() % 8, 0);
    }
    let round = group::Round { round: 4, instance: 5, entries: 3, batch: &batch };
    let mut body = Vec::new();
    head.write(&mut body);
    round.write(&mut body);
    assert_eq!((BODY_AT + group::Head::LEN + group::Round::HEAD_LEN) % 8, 0);
    let mut r = bytes::Reader::new(&body);
    assert_eq!((group::Head::read(&mut r), group::Round::read(&mut r)), (Some(head), Some(round)));
    for cut in 0..body.len() {
        let mut r = bytes::Reader::new(&body[..cut]);
        assert!(group::Head::read(&mut r).is_none() || group::Round::read(&mut r).is_none());
    }
    let padding = body.len() - 16 - 16 - 16 - 3; // behind "value"
    body[padding] = 1;
    let mut r = bytes::Reader::new(&body);
    assert_eq!((group::Head::read(&mut r), group::Round::read(&mut r)), (Some(head), None), "two encodings of one batch");
}

proptest! {
    #[test]
    fn what_is_written_is_read(kind in 1u8..=14, channel: u8, path in 0u8..16, cluster: u32, sender: u32,
                               incarnation: u32, number in 0..=NUMBER_MAX, sent_ns: u64, period_ns: u32,
                               table_version: u32, body in proptest::collection::vec(any::<u8>(), 0..=BODY_MAX)) {
        let header = Header { kind, channel, path, key_id: 1, cluster, sender, incarnation, number, sent_ns, period_ns,
                              table_version, more: table_version % 2 == 1 };
        let mut out = [0; FRAME_MAX];
        let n = encode(&mut out, &header, &body, &ring()).unwrap();
        let frame = Frame { header, kind: Kind::from_u8(kind).unwrap(), body: &body };
        prop_assert_eq!(decode(&out[..n], cluster, &ring()), Ok(frame));
    }

    #[test]
    fn fragments_make_the_message_that_was_cut(whole in proptest::collection::vec(any::<u8>(), 1..5000),
                                               body_max in 0usize..2000) {
        match Fragment::cut(7, &whole, body_max) {
            None => prop_assert!(body_max <= fragment::HEAD_LEN || whole.len().div_ceil(body_max - fragment::HEAD_LEN) > usize::from(fragment::COUNT_MAX)),
            Some(parts) => {
                let mut together = Vec::new();
                for (i, part) in parts.iter().enumerate() {
                    let mut body = Vec::new();
                    part.write(&mut body);
                    prop_assert!(body.len() <= body_max.min(BODY_MAX));
                    let read = Fragment::read(&body).unwrap();
                    prop_assert_eq!(&read, part);
                    prop_assert_eq!((usize::from(read.index), usize::from(read.count)), (i, parts.len()));
                    together.extend_from_slice(read.bytes);
                }
                prop_assert_eq!(together, whole);
            }
        }
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let _ = decode(&bytes, 7, &ring());
        let _ = Header::read(&bytes);
        let _ = items::read(&bytes).count();
        let _ = Change::read_all(&bytes).count();
        let _ = Pull::read(&bytes);
        let _ = Hello::read(&bytes);
        let _ = Introduction::read(&bytes);
        let _ = Fragment::read(&bytes);
        if let Some((head, rows)) = read_rows(&bytes) {
            let mut body = Vec::new();
            head.write(&mut body);
            rows.iter().for_each(|row| assert!(row.push(&mut body, usize::MAX)));
        }
        let mut r = bytes::Reader::new(&bytes);
        if group::Head::read(&mut r).is_some() { let _ = group::Round::read(&mut r); }
    }
}
