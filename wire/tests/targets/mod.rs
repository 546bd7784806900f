#![allow(dead_code, missing_docs)] // each fuzz target uses one function
//! What is tried with arbitrary bytes, by `fuzz/` without end and by `fuzz_smoke.rs` for a moment. Each function must return for any bytes.

use fide_wire::control::{Reply, Request};
use fide_wire::event::Record;
use fide_wire::frame::introduction::Introduction;
use fide_wire::frame::{BODY_AT, Channel, HEADER_LEN};
use fide_wire::mac::{Key, Keyring};
use fide_wire::packet::{BODY_MAX, PACKET_MAX, Refusal, ReportEntry, VERSION, decode, encode, encode_items, encode_notices};
use fide_wire::verdict::VerdictId;
use zerocopy::IntoBytes;

/// The cluster of seeds and targets.
pub const CLUSTER: u32 = 7;

/// The keys of seeds and targets.
pub fn keys() -> Keyring {
    Keyring::new((1, Key([9; 16])), Some((2, Key([8; 16])))).expect("two ids")
}

/// A packet as it comes, and the same bytes with a right tag, or nothing behind the tag would ever be reached.
pub fn packet_decode(bytes: &[u8]) {
    let keys = keys();
    let (id, key) = keys.sending();
    let _ = same_again(bytes, &keys); // refused, most often
    if bytes.len() < BODY_AT {
        return;
    }
    let mut signed = bytes.to_vec();
    signed[..2].copy_from_slice(&[0xf1, 0xde]);
    signed[2] = signed[2] & 0x0f | VERSION << 4;
    signed[3] = signed[3] & 0xf0 | id;
    signed[4..8].copy_from_slice(&CLUSTER.to_be_bytes());
    let tag = key.frame_tag(&signed[..HEADER_LEN], &signed[BODY_AT..]);
    signed[HEADER_LEN..BODY_AT].copy_from_slice(&tag.to_be_bytes());
    match same_again(&signed, &keys) {
        Ok(body) => {
            entries(&body);
            introduction(&body);
        }
        Err(refusal) => assert!(matches!(refusal, Refusal::Kind | Refusal::Short | Refusal::Oversize), "{refusal}"),
    }
}

/// What is read is written, and read again as the same. What this version does not know (flags of the header, a table's version, items of other
/// services) is not written.
fn same_again(bytes: &[u8], keys: &Keyring) -> Result<Vec<u8>, Refusal> {
    let packet = decode(bytes, CLUSTER, keys)?;
    assert!(bytes.len() <= PACKET_MAX);
    if packet.body.len() <= BODY_MAX {
        let mut out = [0; PACKET_MAX];
        let n = match packet.notice {
            Some(_) => encode_notices(&mut out, &packet.header, &packet.notices().collect::<Vec<_>>(), keys),
            None => encode(&mut out, &packet.header, None, packet.body, keys),
        };
        let n = n.expect("it was small enough to be read");
        let mut again = decode(&out[..n], CLUSTER, keys).expect("it was just written");
        again.header.key_id = packet.header.key_id; // the one to send with
        again.items = packet.items; // written by encode_items
        assert_eq!(again, packet);
    }
    // A piggyback that is not the first item is nobody's, and would be one if it were written first.
    if packet.items.first().is_some_and(|channel| *channel != Channel::Piggyback as u8) {
        let mut out = [0; PACKET_MAX];
        let n = encode_items(&mut out, &packet.header, packet.items, keys).expect("it was small enough to be read");
        // Cut short, it was no matter behind a piggyback.
        if let Ok(again) = decode(&out[..n], CLUSTER, keys) {
            assert_eq!((again.header.kind, again.body, again.items), (packet.header.kind, &[][..], packet.items));
        }
    }
    Ok(packet.body.to_vec())
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

/// The body of an introduction.
pub fn introduction(bytes: &[u8]) {
    if let Some(read) = Introduction::read(bytes) {
        let mut said = Vec::new();
        read.write(&mut said);
        assert_eq!(Introduction::read(&said).expect("ours"), read);
        let _ = read.contract.timeout_ns();
    }
}

/// The bodies of path reports.
pub fn entries(bytes: &[u8]) {
    for (entry, whole) in ReportEntry::read_all(bytes).zip(bytes.chunks_exact(ReportEntry::LEN)) {
        let mut again = Vec::new();
        entry.write(&mut again);
        assert_eq!(again, whole);
    }
}
