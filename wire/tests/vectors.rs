//! The test vectors that other languages replay: `vectors/packets.json` is what the Rust code says now, and the Rust code does what it says.
//!
//! After a change of the format: `FIDE_BLESS=1 cargo test -p fide-wire --test wire vectors::`, and read the difference.

use fide_wire::frame::introduction::{Answer, Introduction};
use fide_wire::frame::table::{Host, Pull, RowsHead, State};
use fide_wire::frame::{self, BODY_AT, Channel, HEADER_LEN, items};
use fide_wire::mac::{Key, Keyring};
use fide_wire::packet::{
    self, BODY_MAX, Header, Kind, NUMBER_MAX, Notice, PACKET_MAX, Packet, Refusal, ReportEntry, decode, encode, encode_items,
    encode_notices,
};
use fide_wire::verdict::{Cause, Contract, Grade};
use fide_wire::{jitter, name_id};
use serde_json::{Value, json};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors/packets.json")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

const CLUSTER: u32 = 0x00c0_ffee;

fn key(n: u8) -> Key {
    Key(std::array::from_fn(|i| n.wrapping_mul(17).wrapping_add(i as u8)))
}

fn keys() -> Keyring {
    Keyring::new((3, key(1)), Some((9, key(2)))).unwrap()
}

fn keys_json(keys: &Keyring) -> Value {
    keys.iter().map(|(id, key)| json!({ "id": id, "key": hex(&key.0) })).collect()
}

fn header(kind: Kind) -> Header {
    Header {
        kind,
        path: 1,
        key_id: 3,
        cluster: CLUSTER,
        sender: name_id("alpha"),
        incarnation: 1_700_000_000,
        number: 0x4567_89ab_cdef,
        sent_ns: 987_654_321_012_345,
        period_ns: 1_000_000,
        table_version: 42,
        more: false,
    }
}

fn notice() -> Notice {
    Notice { notice: 42, app: 7, cause: Cause::Doomed, grade: Grade::Certain, flags: 0, code: 9, event_ns: 987_654_320_000_001 }
}

fn made(header: &Header, notice: Option<&Notice>, body: &[u8], keys: &Keyring) -> Vec<u8> {
    let mut out = [0; PACKET_MAX];
    let n = encode(&mut out, header, notice, body, keys).unwrap();
    out[..n].to_vec()
}

/// Puts a right tag over whatever the packet has become.
fn resigned(mut bytes: Vec<u8>) -> Vec<u8> {
    let tag = keys().sending().1.frame_tag(&bytes[..HEADER_LEN], &bytes[BODY_AT..]);
    bytes[HEADER_LEN..BODY_AT].copy_from_slice(&tag.to_be_bytes());
    bytes
}

fn changed(bytes: &[u8], at: usize, value: u8) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    assert_ne!(bytes[at], value);
    bytes[at] = value;
    bytes
}

/// What decode is expected to find, as the vectors write it. 64-bit numbers are text: not every reader of JSON keeps them.
fn fields(p: &Packet<'_>) -> Value {
    let h = &p.header;
    let mut v = json!({
        "kind": h.kind.frame() as u8, "path": h.path, "key_id": h.key_id, "cluster": h.cluster, "sender": h.sender, "incarnation": h.incarnation,
        "number": h.number.to_string(), "sent_ns": h.sent_ns.to_string(), "period_ns": h.period_ns, "table_version": h.table_version, "more": h.more, "body": hex(p.body),
    });
    if let Some(n) = &p.notice {
        v["notice"] = json!({
            "notice": n.notice, "app": n.app, "cause": n.cause as u8, "grade": n.grade as u8, "flags": n.flags, "code": n.code,
            "event_ns": n.event_ns.to_string(),
        });
    }
    if !p.items.is_empty() {
        v["items"] = hex(p.items).into();
    }
    v
}

fn vectors() -> Value {
    let mut packets = Vec::new();
    let mut add = |name: &str, bytes: &[u8], keys: &Keyring| {
        let mut v = json!({ "name": name, "cluster": CLUSTER, "keys": keys_json(keys), "hex": hex(bytes) });
        match decode(bytes, CLUSTER, keys) {
            Ok(packet) => v["accept"] = fields(&packet),
            Err(refusal) => v["refuse"] = json!(refusal.name()),
        }
        packets.push(v);
    };
    let ring = keys();
    let public = Keyring::default();
    let heartbeat = made(&header(Kind::Heartbeat), None, b"", &ring);
    let piggyback = made(&header(Kind::Heartbeat), None, b"\x00\x07hello", &ring);
    let noticed = made(&header(Kind::Notice), Some(&notice()), b"", &ring);

    add("a heartbeat", &heartbeat, &ring);
    add("a heartbeat of a cluster without a key", &made(&header(Kind::Heartbeat), None, b"", &public), &public);
    add("a heartbeat with a piggyback", &piggyback, &ring);
    let full: Vec<u8> = (0..BODY_MAX).map(|i| (i * 7) as u8).collect();
    add("a heartbeat with the largest body", &made(&header(Kind::Heartbeat), None, &full, &ring), &ring);
    let extremes = Header {
        path: 15,
        cluster: CLUSTER,
        sender: u32::MAX,
        incarnation: u32::MAX,
        number: NUMBER_MAX,
        sent_ns: u64::MAX,
        period_ns: u32::MAX,
        table_version: u32::MAX,
        more: true,
        ..header(Kind::Heartbeat)
    };
    add("a heartbeat with the largest of everything", &made(&extremes, None, b"", &ring), &ring);
    let zeros = Header {
        path: 0,
        sender: 0,
        incarnation: 0,
        number: 0,
        sent_ns: 0,
        period_ns: 0,
        table_version: 0,
        more: false,
        ..header(Kind::Heartbeat)
    };
    add("a heartbeat with zeros (freshness is not decided here)", &made(&zeros, None, b"", &ring), &ring);
    add("a notice: process 7 is doomed by signal 9", &noticed, &ring);
    let confirming = Notice { notice: 43, cause: Cause::Killed, flags: Notice::CONFIRMS, ..notice() };
    add("a notice that confirms it", &made(&header(Kind::Notice), Some(&confirming), b"", &ring), &ring);
    for cause in Cause::ALL {
        let n = Notice { cause, grade: if cause as u8 > 4 { Grade::Inferred } else { Grade::Certain }, code: -1, ..notice() };
        add(&format!("a notice: {cause}"), &made(&header(Kind::Notice), Some(&n), b"", &ring), &ring);
    }
    let together = [notice(), Notice { notice: 43, app: 8, ..notice() }, confirming];
    let mut out = [0; PACKET_MAX];
    let n = encode_notices(&mut out, &header(Kind::Notice), &together, &ring).unwrap();
    add("three notices that came together", &out[..n], &ring);
    let left = Notice { app: 0, cause: Cause::Left, code: 0, ..notice() };
    let leaving = made(&header(Kind::Leave), Some(&left), b"", &ring);
    add("a leave", &leaving, &ring);
    let mut body = Vec::new();
    Pull { origin: name_id("beta"), epoch: 5, from: 40, list: None }.write(&mut body);
    add("a pull", &made(&header(Kind::Pull), None, &body, &ring), &ring);
    let mut body = Vec::new();
    RowsHead { origin: name_id("alpha"), epoch: 5, from: 40, through: 42, complete: 42, list: None, is_unsure: false }
        .write(&mut body);
    add("rows: nothing that is newer", &made(&header(Kind::Rows), None, &body, &ring), &ring);
    let mut body = Vec::new();
    ReportEntry {
        node: name_id("beta"),
        incarnation: 5,
        path: 1,
        flags: ReportEntry::SILENT | ReportEntry::FENCED,
        company: 0x1234,
        last_number: 1 << 40,
        echo_sent_ns: 2 << 40,
        hold_ns: 3,
        jitter_max_ns: 4,
    }
    .write(&mut body);
    add("a path report", &made(&header(Kind::PathReport), None, &body, &ring), &ring);
    let host = Host {
        state: State::running(7),
        boot: 1 << 100,
        size_max: 1200,
        renewed_from: None,
        fence: None,
        starting: None,
        addresses: [Some([10, 0, 0, 1].into()), None],
        name: "alpha".into(),
    };
    let contract = Contract { period_ns: 1_000_000, size_max: 1200, lambda_min_ns: 20_000, delta_max_ns: 300_000 };
    let mut said = Introduction {
        answers: Vec::new(),
        heartbeats: 1 << 40,
        others: 9,
        epoch: 5,
        complete: 42,
        contract,
        host,
        challenge: NonZeroU64::new(77),
        response: None,
        diverted: [false, true],
        refuted: Vec::new(),
    };
    let (mut announcement, mut introduction) = (Vec::new(), Vec::new());
    said.write(&mut announcement);
    said.refuted = vec![(name_id("gamma"), 8)];
    said.answers = vec![Answer { node: name_id("beta"), nonce: u64::MAX - 1, seen: 6 }];
    said.write(&mut introduction);
    let hello = [0, 0, 0, 0, 0, 0, 0, 7, 0, 1, 0, 0, 0, 9, 0, 0];
    add("a hello to one host", &made(&header(Kind::Hello), None, &hello, &ring), &ring);
    add("an announcement", &made(&header(Kind::Introduction), None, &announcement, &ring), &ring);
    add("an introduction that answers a hello", &made(&header(Kind::Introduction), None, &introduction, &ring), &ring);
    let segment = [0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 7, 7];
    let message = made(&header(Kind::Message), None, &segment, &ring);
    add("a segment of the link between two nodes' groups", &message, &ring);
    add("a message of a service nobody knows, signed", &resigned(changed(&message, 17, 99)), &ring);
    let mut ride = Vec::new();
    items::push(&mut ride, BODY_MAX, Channel::Groups, b"decided");
    let mut out = [0; PACKET_MAX];
    let n = encode_items(&mut out, &header(Kind::Heartbeat), &ride, &ring).unwrap();
    add("what a group piggybacks", &out[..n], &ring);
    let old = Keyring::new((9, key(2)), None).unwrap();
    add("signed with the second accepted key", &made(&header(Kind::Heartbeat), None, b"x", &old), &ring);

    let others = Keyring::new((3, key(3)), None).unwrap();
    for len in [0, 1, 40, 47] {
        add(&format!("the first {len} bytes of a heartbeat"), &heartbeat[..len], &ring);
    }
    add("another magic", &changed(&heartbeat, 0, 0xf0), &ring);
    add("version 1", &changed(&heartbeat, 2, 0x10), &ring);
    add("flags of a later version, signed", &resigned(changed(&heartbeat, 2, 0x2f)), &ring);
    add("kind 0, signed", &resigned(changed(&heartbeat, 16, 0)), &ring);
    add("a kind nobody knows, signed", &resigned(changed(&heartbeat, 16, 99)), &ring);
    add("a channel nobody knows, signed", &resigned(changed(&heartbeat, 17, 99)), &ring);
    add("a pull, which means nothing yet", &resigned(changed(&heartbeat, 16, frame::Kind::Pull as u8)), &ring);
    add("another cluster", &resigned(changed(&heartbeat, 7, 0xef)), &ring);
    add("a key id that is not accepted", &changed(&heartbeat, 3, 0x15), &ring);
    add("a public packet where a key is set", &made(&header(Kind::Heartbeat), None, b"", &public), &ring);
    add("another key under an accepted id", &made(&header(Kind::Heartbeat), None, b"", &others), &ring);
    add("one bit of the number flipped", &changed(&heartbeat, 23, 0xee), &ring);
    add("one bit of the tag flipped", &changed(&heartbeat, 47, heartbeat[47] ^ 1), &ring);
    add("one bit of a notice's code flipped", &changed(&noticed, 71, 8), &ring);
    add("a cause nobody knows, signed", &resigned(changed(&noticed, 64, 15)), &ring);
    add("a grade nobody knows, signed", &resigned(changed(&noticed, 65, 3)), &ring);
    add("a change of another host's table, signed", &resigned(changed(&noticed, 48, noticed[48] ^ 1)), &ring);
    add("a notice cut short, signed", &resigned(noticed[..79].to_vec()), &ring);
    add("a leave behind a notice, signed", &resigned([&noticed[..], &leaving[48..]].concat()), &ring);
    add("a notice behind another, cut short, signed", &resigned([&noticed[..], &noticed[48..79]].concat()), &ring);
    add("a body where there was none", &[&heartbeat[..], b"appended"].concat(), &ring);
    add("no body where there was one", &piggyback[..48], &ring);
    add("a body cut short", &piggyback[..piggyback.len() - 1], &ring);
    add("a piggyback cut short, signed", &resigned(piggyback[..piggyback.len() - 1].to_vec()), &ring);
    add("an item of another service, signed", &resigned(changed(&piggyback, 48, 2)), &ring);
    add("an item of another service behind the piggyback, signed", &resigned([&piggyback[..], &[2, 0, 1, 0]].concat()), &ring);
    add(
        "a body of another packet",
        &[&piggyback[..48], &made(&header(Kind::Pull), None, b"\x00\x07hello", &ring)[48..]].concat(),
        &ring,
    );
    let largest = made(&header(Kind::Heartbeat), None, &full, &ring);
    add("one byte more than the largest packet", &[&largest[..], &[0; 2]].concat(), &ring);

    let siphash: Vec<Value> = [0, 1, 7, 8, 15, 36, 60]
        .into_iter()
        .map(|n| {
            let message: Vec<u8> = (0..n).collect();
            let key = Key(std::array::from_fn(|i| i as u8));
            json!({ "key": hex(&key.0), "message": hex(&message), "tag": format!("{:016x}", key.tag(&message)) })
        })
        .collect();
    let names: Vec<Value> =
        ["", "alpha", "beta", "host-1.example.org", "größer"].iter().map(|n| json!({ "name": n, "id": name_id(n) })).collect();
    let buckets: Vec<Value> = [0u64, 255, 256, 1023, 1024, 1279, 1280, 5_000, 1_000_000, 999_999_999, 1 << 40, u64::MAX]
        .iter()
        .map(|ns| json!({ "ns": ns.to_string(), "bucket": jitter::bucket(*ns) }))
        .collect();
    json!({ "format": u64::from(packet::VERSION), "siphash": siphash, "names": names, "jitter": buckets, "packets": packets })
}

fn text() -> String {
    let v = vectors();
    // One line per vector: a difference shows which one changed.
    let mut out = String::from("{\n");
    let object = v.as_object().unwrap();
    for (i, (name, value)) in object.iter().enumerate() {
        out.push_str(&format!("  {}: ", json!(name)));
        match value {
            Value::Array(all) => {
                let lines: Vec<String> = all.iter().map(|v| format!("    {v}")).collect();
                out.push_str(&format!("[\n{}\n  ]", lines.join(",\n")));
            }
            other => out.push_str(&other.to_string()),
        }
        out.push_str(if i + 1 < object.len() { ",\n" } else { "\n" });
    }
    out + "}\n"
}

/// The file, written anew first if that is asked for.
fn kept() -> String {
    static BLESS: std::sync::Once = std::sync::Once::new();
    BLESS.call_once(|| {
        if std::env::var_os("FIDE_BLESS").is_some() {
            std::fs::write(file(), text()).unwrap();
        }
    });
    std::fs::read_to_string(file()).unwrap_or_default()
}

#[test]
fn the_vectors_in_the_tree_are_current() {
    assert!(kept() == text(), "{} is out of date: FIDE_BLESS=1 cargo test -p fide-wire --test wire vectors::", file().display());
}

/// As another language would: from the file alone.
#[test]
fn every_vector_replays() {
    let v: Value = serde_json::from_str(&kept()).unwrap();
    let u = |v: &Value| v.as_u64().unwrap_or_else(|| panic!("{v}"));
    let long = |v: &Value| v.as_str().unwrap().parse::<u64>().unwrap();
    let mut refusals = std::collections::BTreeSet::new();
    for p in v["packets"].as_array().unwrap() {
        let name = p["name"].as_str().unwrap();
        let bytes = unhex(p["hex"].as_str().unwrap());
        let all: Vec<(u8, Key)> = p["keys"]
            .as_array()
            .unwrap()
            .iter()
            .map(|k| (u(&k["id"]) as u8, Key(unhex(k["key"].as_str().unwrap()).try_into().unwrap())))
            .collect();
        let keys = if all[0].0 == 0 { Keyring::default() } else { Keyring::new(all[0], all.get(1).copied()).unwrap() };
        let got = decode(&bytes, u(&p["cluster"]) as u32, &keys);
        let Some(wanted) = p.get("accept") else {
            assert_eq!(got.unwrap_err().name(), p["refuse"].as_str().unwrap(), "{name}");
            refusals.insert(got.unwrap_err() as u8);
            continue;
        };
        let got = got.unwrap_or_else(|e| panic!("{name}: {e}"));
        let notice = wanted.get("notice").map(|n| Notice {
            notice: u(&n["notice"]) as u32,
            app: u(&n["app"]) as u32,
            cause: Cause::from_u8(u(&n["cause"]) as u8).unwrap(),
            grade: Grade::from_u8(u(&n["grade"]) as u8).unwrap(),
            flags: u(&n["flags"]) as u16,
            code: n["code"].as_i64().unwrap() as i32,
            event_ns: long(&n["event_ns"]),
        });
        let kind = frame::Kind::from_u8(u(&wanted["kind"]) as u8).and_then(Kind::of).unwrap();
        let leaves = notice.is_some_and(|n| n.app == 0);
        let header = Header {
            kind: if leaves { Kind::Leave } else { kind },
            path: u(&wanted["path"]) as u8,
            key_id: u(&wanted["key_id"]) as u8,
            cluster: u(&wanted["cluster"]) as u32,
            sender: u(&wanted["sender"]) as u32,
            incarnation: u(&wanted["incarnation"]) as u32,
            number: long(&wanted["number"]),
            sent_ns: long(&wanted["sent_ns"]),
            period_ns: u(&wanted["period_ns"]) as u32,
            table_version: u(&wanted["table_version"]) as u32,
            more: wanted["more"].as_bool().unwrap(),
        };
        let body = unhex(wanted["body"].as_str().unwrap());
        let items = unhex(wanted.get("items").map_or("", |items| items.as_str().unwrap()));
        assert_eq!(got, Packet { header, notice, body: &body, items: &items }, "{name}");
        // What this version does not know it does not write.
        let unknown = ["later version", "nobody knows", "another service"].iter().any(|words| name.contains(words));
        if header.key_id == keys.sending().0 && !items.is_empty() && body.is_empty() && !unknown {
            let mut out = [0; PACKET_MAX];
            let n = encode_items(&mut out, &header, &items, &keys).unwrap();
            assert_eq!(&out[..n], bytes, "{name}: written again");
        } else if notice.is_some() && !unknown {
            let mut out = [0; PACKET_MAX];
            let n = encode_notices(&mut out, &header, &got.notices().collect::<Vec<_>>(), &keys).unwrap();
            assert_eq!(&out[..n], bytes, "{name}: written again");
        } else if header.key_id == keys.sending().0 && !unknown {
            assert_eq!(made(&header, notice.as_ref(), &body, &keys), bytes, "{name}: written again");
        }
    }
    // What decode does not decide belongs to the receive program, which has tests of its own.
    let elsewhere = [
        Refusal::OldNumber,
        Refusal::OldIncarnation,
        Refusal::WrongPath,
        Refusal::Own,
        Refusal::UnknownSender,
        Refusal::RingFull,
        Refusal::Fragment,
        Refusal::RateLimited,
    ];
    for refusal in Refusal::ALL {
        assert_eq!(refusals.contains(&(refusal as u8)), !elsewhere.contains(&refusal), "a vector for {refusal}");
    }
    for s in v["siphash"].as_array().unwrap() {
        let key = Key(unhex(s["key"].as_str().unwrap()).try_into().unwrap());
        assert_eq!(format!("{:016x}", key.tag(&unhex(s["message"].as_str().unwrap()))), s["tag"].as_str().unwrap());
    }
    for n in v["names"].as_array().unwrap() {
        assert_eq!(u64::from(name_id(n["name"].as_str().unwrap())), u(&n["id"]));
    }
    for j in v["jitter"].as_array().unwrap() {
        assert_eq!(jitter::bucket(long(&j["ns"])) as u64, u(&j["bucket"]));
    }
}

/// The same by a program that shares no line with ours.
#[test]
fn an_independent_reader_agrees() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors/replay.py");
    match std::process::Command::new("python3").arg("-B").arg(script).output() {
        Err(_) => println!("SKIPPED: no python3"),
        Ok(out) => {
            assert!(out.status.success(), "{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
            eprint!("{}", String::from_utf8_lossy(&out.stdout));
        }
    }
}
