#![allow(dead_code, missing_docs)] // each fuzz target uses one function
//! What is tried with arbitrary bytes, by `fuzz/` without end and by `fuzz_smoke.rs` for a moment. Each function must return for any bytes.

use fide_wire::control::{Reply, Request};
use fide_wire::event::Record;
use fide_wire::mac::{Key, Keyring};
use fide_wire::packet::{Announce, ConfirmEntry, Kind, PACKET_MAX, Refusal, ReportEntry, TAG_LEN, decode, encode};
use fide_wire::verdict::VerdictId;
use zerocopy::IntoBytes;

/// The cluster of seeds and targets.
pub const CLUSTER: u32 = 7;

/// The keys of seeds and targets.
pub fn keys() -> Keyring {
    Keyring::new((1, Key([9; 16])), Some((2, Key([8; 16])))).expect("two ids")
}

/// A packet as it comes, and the same bytes with right tags, or nothing behind the tags would ever be reached.
pub fn packet_decode(bytes: &[u8]) {
    let keys = keys();
    let (id, key) = keys.sending();
    let mut out = [0; PACKET_MAX];
    if let Ok(p) = decode(bytes, CLUSTER, &keys) {
        assert!(bytes.len() <= PACKET_MAX);
        if p.header.key_id == id {
            // What is read is written again, byte for byte (the flags of a notice are kept as they are).
            let n = encode(&mut out, &p.header, p.notice.as_ref(), p.body, &keys).expect("it was small enough to be read");
            assert_eq!(&out[..n], bytes);
        }
    }
    if bytes.len() < 44 {
        return;
    }
    let mut signed = bytes.to_vec();
    signed[..2].copy_from_slice(&[0xf1, 0xde]);
    signed[2] = signed[2] & 0x0f | 0x10;
    signed[3] = signed[3] & 0xf0 | id;
    signed[4..8].copy_from_slice(&CLUSTER.to_be_bytes());
    let at = if Kind::from_u8(signed[2] & 7).is_some_and(Kind::has_notice) { 60 } else { 36 };
    if signed.len() >= at + TAG_LEN {
        let tag = key.tag(&signed[..at]);
        signed[at..at + TAG_LEN].copy_from_slice(&tag.to_be_bytes());
        if signed.len() > at + 2 * TAG_LEN {
            let body = key.body_tag(tag, &signed[at + 2 * TAG_LEN..]);
            signed[at + TAG_LEN..at + 2 * TAG_LEN].copy_from_slice(&body.to_be_bytes());
        }
    }
    match decode(&signed, CLUSTER, &keys) {
        Ok(p) => {
            let n = encode(&mut out, &p.header, p.notice.as_ref(), p.body, &keys).expect("it was small enough to be read");
            assert_eq!(&out[..n], signed);
            entries(p.body);
            announce(p.body);
        }
        Err(refusal) => assert!(matches!(refusal, Refusal::Kind | Refusal::Short | Refusal::Oversize), "{refusal}"),
    }
}

/// An entry of an event ring.
pub fn record_read(bytes: &[u8]) {
    let Some((record, body)) = Record::read(bytes) else {
        let claims = bytes.get(..size_of::<Record>()).map(|b| usize::from(u16::from_ne_bytes([b[22], b[23]])));
        assert!(claims.is_none_or(|n| bytes.len() < size_of::<Record>() + n), "a whole record was not read");
        return;
    };
    assert_eq!(body.len(), usize::from(record.body_len));
    assert_eq!(record.as_bytes(), &bytes[..size_of::<Record>()]);
    let _ = (record.kind(), record.cause(), record.grade());
    if let Some(id) = record.verdict_id() {
        assert_eq!(id.to_string().parse::<VerdictId>(), Ok(id));
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = text.parse::<VerdictId>();
        let _ = Key::from_hex(text);
    }
}

/// A message on the control socket, either way. What is understood is said again the same.
pub fn control_request(bytes: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<Request>(bytes) {
        let said = serde_json::to_vec(&request).expect("it was JSON");
        assert_eq!(serde_json::from_slice::<Request>(&said).expect("ours"), request);
    }
    if let Ok(reply) = serde_json::from_slice::<Reply>(bytes) {
        let said = serde_json::to_vec(&reply).expect("it was JSON");
        assert_eq!(serde_json::from_slice::<Reply>(&said).expect("ours"), reply);
    }
}

/// The body of an announcement.
pub fn announce(bytes: &[u8]) {
    if let Ok(a) = serde_json::from_slice::<Announce>(bytes) {
        let said = serde_json::to_vec(&a).expect("it was JSON");
        assert_eq!(serde_json::from_slice::<Announce>(&said).expect("ours"), a);
        let _ = a.contract.timeout_ns();
    }
}

/// The bodies of confirmations and path reports.
pub fn entries(bytes: &[u8]) {
    let mut again = Vec::new();
    for entry in ConfirmEntry::read_all(bytes) {
        entry.write(&mut again);
        let near = [
            0,
            1,
            entry.upto,
            entry.upto.wrapping_add(1),
            entry.upto.saturating_add(32),
            entry.upto.saturating_add(33),
            u32::MAX,
        ];
        for n in near {
            let says = entry.covers(n);
            let ahead = u64::from(n).saturating_sub(u64::from(entry.upto));
            let should = ahead == 0 || (ahead <= 32 && entry.beyond >> (ahead - 1) & 1 == 1);
            assert_eq!(says, should);
        }
    }
    assert_eq!(again, bytes[..bytes.len() / ConfirmEntry::LEN * ConfirmEntry::LEN]);
    for (entry, whole) in ReportEntry::read_all(bytes).zip(bytes.chunks_exact(ReportEntry::LEN)) {
        let mut again = Vec::new();
        entry.write(&mut again);
        let mut wanted = whole.to_vec();
        wanted[10..12].fill(0); // reserved
        assert_eq!(again, wanted);
    }
}
