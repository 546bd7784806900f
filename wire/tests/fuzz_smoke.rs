//! A moment of fuzzing on every run: a bounded loop of mutations, the same each time. `fuzz/` does the same without end and with coverage.

use crate::targets;

use fide_wire::control::{ErrorCode, HistoryEvent, Refused, Reply, Request, RingKind, Selector, Status};
use fide_wire::event::Record;
use fide_wire::frame::introduction::{Answer, Introduction};
use fide_wire::frame::table::{Host, State};
use fide_wire::packet::{BODY_MAX, Header, Kind, Notice, PACKET_MAX, ReportEntry, encode};
use fide_wire::verdict::{Cause, Contract, Evidence, Grade, PathEvidence, VerdictId};
use std::num::NonZeroU64;
use zerocopy::IntoBytes;

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

fn mutate(bytes: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    let at = random.below(bytes.len());
    match random.below(10) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at.min(bytes.len()), random.next() as u8),
        2 if !bytes.is_empty() => _ = bytes.remove(at),
        3 if !bytes.is_empty() => bytes[at] = random.next() as u8,
        4 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
        5 if !bytes.is_empty() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
        6 => {
            let other = &others[random.below(others.len())];
            let from = random.below(other.len());
            let n = random.below(other.len() - from + 1);
            bytes.splice(at..at, other[from..from + n].iter().copied());
        }
        7 => {
            let end = at + random.below(bytes.len() - at + 1);
            bytes.extend_from_within(at..end);
        }
        8 => {
            let end = at + random.below(bytes.len() - at + 1);
            bytes.drain(at..end);
        }
        9 => {
            // Numbers in JSON, at their limits.
            let number = ["0", "-1", "4294967296", "18446744073709551616", "1e400", "null", "\"", "{", "[[[[", "\\ud800"]
                [random.below(10)];
            bytes.splice(at..at, number.bytes());
        }
        _ => {}
    }
    bytes.truncate(4096);
}

/// Every seed as it is, then mutations of mutations, always from a seed again.
fn smoke(seeds: &[Vec<u8>], rounds: usize, target: fn(&[u8])) {
    seeds.iter().for_each(|s| target(s));
    let mut random = Random(2026);
    for _ in 0..rounds {
        let mut bytes = seeds[random.below(seeds.len())].clone();
        for _ in 0..8 {
            mutate(&mut bytes, seeds, &mut random);
            target(&bytes);
        }
    }
}

fn bodies() -> Vec<Vec<u8>> {
    let mut report = Vec::new();
    for path in [0, 1] {
        ReportEntry {
            node: 1,
            incarnation: 2,
            path,
            flags: 3,
            company: 9,
            last_number: u64::MAX,
            echo_sent_ns: 5,
            hold_ns: 6,
            jitter_max_ns: 7,
        }
        .write(&mut report);
    }
    vec![b"".to_vec(), b"x".to_vec(), report, announcement(), vec![0xaa; BODY_MAX]]
}

fn announcement() -> Vec<u8> {
    let (answers, contract) = (vec![Answer { node: 1, nonce: 2, seen: 3 }], Contract::default());
    let host = Host {
        state: State::running(9),
        boot: u128::MAX,
        size_max: 1400,
        renewed_from: Some(7),
        fence: None,
        starting: None,
        addresses: [Some([10, 0, 0, 1].into()), Some([0xfe80, 0, 0, 0, 0, 0, 0, 1].into())],
        name: "größer".into(),
    };
    let (challenge, response, diverted) = (NonZeroU64::new(7), None, [true, false]);
    let (heartbeats, others, epoch, complete) = (4, 5, u64::MAX, 3);
    let mut body = Vec::new();
    let refuted = vec![(6, 7)];
    Introduction { answers, heartbeats, others, epoch, complete, contract, host, challenge, response, diverted, refuted }
        .write(&mut body);
    body
}

fn packets() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for kind in Kind::ALL {
        for body in bodies() {
            let header = Header {
                kind,
                path: 1,
                key_id: 1,
                cluster: targets::CLUSTER,
                sender: 3,
                incarnation: 4,
                number: 5,
                sent_ns: 6,
                period_ns: 7,
                table_version: 9,
                more: false,
            };
            let app = if kind == Kind::Leave { 0 } else { 2 };
            let notice = Notice { notice: 1, app, cause: Cause::Killed, grade: Grade::Certain, flags: 1, code: -9, event_ns: 8 };
            let mut out = [0; PACKET_MAX];
            let n = encode(
                &mut out,
                &header,
                kind.has_notice().then_some(&notice),
                if kind.has_notice() { &[] } else { &body },
                &targets::keys(),
            )
            .unwrap();
            all.push(out[..n].to_vec());
        }
    }
    all
}

#[test]
fn packet_decode() {
    smoke(&packets(), 20_000, targets::packet_decode);
}

#[test]
fn entries() {
    smoke(&bodies(), 20_000, targets::entries);
}

#[test]
fn introduction() {
    smoke(&[announcement(), vec![0; 40]], 20_000, targets::introduction);
}

#[test]
fn record_read() {
    let mut record =
        Record { kind: 3, cause: 2, grade: 1, body_len: 5, id: 1 << 32 | 9, ..Record::default() }.as_bytes().to_vec();
    record.extend_from_slice(b"12345");
    let id = b"1a2b3c4d-17".to_vec();
    smoke(&[record, Record::default().as_bytes().to_vec(), id, "0f".repeat(16).into_bytes()], 40_000, targets::record_read);
}

#[test]
fn control_request() {
    let requests = [
        Request::Hello { protocol: 1 },
        Request::Subscribe { socket_only: true },
        Request::Monitor { target: "db@a".into(), pbsize: 64, timeout_ns: u64::MAX },
        Request::watch("db", Selector::Cgroup("/a/b".into())),
        Request::watch("db", Selector::Port(65535)),
        Request::Events { from: 1, last: 2, follow: true },
        Request::Explain { id: VerdictId::new(0x1a2b_3c4d, 17), incarnation: None },
    ];
    let event = HistoryEvent {
        seq: 1,
        wall_ns: u64::MAX,
        at_ns: 2,
        observer: "b".into(),
        observer_incarnation: 4,
        id: Some(VerdictId::new(1, 2)),
        cause: Cause::SilentHost,
        grade: Grade::Inferred,
        node: "a".into(),
        incarnation: 3,
        app: Some("db".into()),
        code: i32::MIN,
        confirms: false,
        text: "\u{7f}\"".into(),
        maintenance: None,
        evidence: Some(Box::new(Evidence { paths: vec![PathEvidence::default(); 2], ..Evidence::default() })),
    };
    let replies = [
        Reply::Ring { kind: RingKind::Bpf, size: 65536 },
        Reply::Monitored { node: 1, app: 2, pbsize: 3, timeout_ns: 4, alive: true, state: None, end: None },
        Reply::Status(Box::new(Status { refused: [("mac".to_string(), 3)].into(), ..Status::default() })),
        Reply::Event(Box::new(event)),
        Reply::Error(Refused { code: ErrorCode::NotFound, what: "no".into() }),
    ];
    let mut seeds: Vec<Vec<u8>> = requests.iter().map(|r| serde_json::to_vec(r).unwrap()).collect();
    seeds.extend(replies.iter().map(|r| serde_json::to_vec(r).unwrap()));
    seeds.push("[".repeat(4000).into_bytes());
    smoke(&seeds, 10_000, targets::control_request);
}
