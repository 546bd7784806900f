//! The SystemVerilog view of version 2 of the wire, printed from the Rust definitions so that hardware
//! and software cannot differ.

use crate::frame::{self, Channel, Kind, group};
use std::fmt::Write;

/// Where the package lives in the tree, from this crate.
pub const PATH: &str = "../rtl/lib/fide_wire_pkg.sv";

/// Offsets of a frame's fields: name, first byte, bytes. Bit fields are named with their byte.
const FIELDS: [(&str, usize, usize); 20] = [
    ("MAGIC", 0, 2),
    ("VERSION_FLAGS", 2, 1),
    ("PATH_KEY", 3, 1),
    ("CLUSTER", 4, 4),
    ("SENDER", 8, 4),
    ("INCARNATION", 12, 4),
    ("KIND", 16, 1),
    ("CHANNEL", 17, 1),
    ("NUMBER", 18, 6),
    ("SENT_NS", 24, 8),
    ("PERIOD_NS", 32, 4),
    ("TABLE_VERSION", 36, 4),
    ("TAG", frame::HEADER_LEN, frame::TAG_LEN),
    ("GROUP", frame::BODY_AT, 4),
    ("FROM", frame::BODY_AT + 4, 2),
    ("ENGINE", frame::BODY_AT + 6, 1),
    ("TYPE", frame::BODY_AT + 7, 1),
    ("GENERATION", frame::BODY_AT + 8, 8),
    ("ROUND", frame::BODY_AT + group::Head::LEN, 8),
    ("INSTANCE", frame::BODY_AT + group::Head::LEN + 8, 8),
];

/// Offsets behind the instance of a round, and of the first entry of its batch.
const ROUND_FIELDS: [(&str, usize, usize); 9] = [
    ("ENTRIES", 16, 2),
    ("ROUND_ZERO", 18, 2),
    ("BATCH_LEN", 20, 4),
    ("PROPOSER", 24, 2),
    ("ENTRY_KIND", 26, 1),
    ("ENTRY_ZERO", 27, 1),
    ("VALUE_LEN", 28, 4),
    ("ENTRY_NUMBER", 32, 8),
    ("VALUE", 40, 0),
];

/// The whole package.
#[must_use]
pub fn text() -> String {
    let mut sv = String::from(
        "// SPDX-License-Identifier: Apache-2.0\n\
         // Generated from wire/src/frame by `cargo xtask gen`. Do not edit.\n\
         //\n\
         // Offsets and lengths are bytes of a frame (a UDP payload); numbers on the wire are big-endian.\n\
         package fide_wire_pkg;\n\n",
    );
    let mut number = |name: &str, value: usize| {
        let _ = writeln!(sv, "  localparam int unsigned {name} = {value};");
    };
    number("HEADER_LEN", frame::HEADER_LEN);
    number("TAG_LEN", frame::TAG_LEN);
    number("BODY_AT", frame::BODY_AT);
    number("FRAME_MAX", frame::FRAME_MAX);
    number("GROUP_HEAD_LEN", group::Head::LEN);
    number("ROUND_HEAD_LEN", group::Round::HEAD_LEN);
    number("ENTRY_HEAD_LEN", group::Entry::HEAD_LEN);
    number("BATCH_AT", frame::BODY_AT + group::Head::LEN + group::Round::HEAD_LEN);
    let round_at = frame::BODY_AT + group::Head::LEN;
    let round_fields = ROUND_FIELDS.map(|(name, at, len)| (name, round_at + at, len));
    for (name, at, len) in FIELDS.into_iter().chain(round_fields) {
        number(&format!("{name}_AT"), at);
        if len > 0 {
            number(&format!("{name}_BYTES"), len);
        }
    }
    let mut constant = |name: &str, bits: usize, value: u64| {
        let _ = writeln!(sv, "  localparam logic [{}:0] {name} = {bits}'d{value};", bits - 1);
    };
    constant("MAGIC", 16, frame::MAGIC.into());
    constant("VERSION", 4, frame::VERSION.into());
    for kind in Kind::ALL {
        constant(&format!("KIND_{}", upper(kind.name())), 8, kind as u64);
    }
    for channel in Channel::ALL {
        constant(&format!("CHANNEL_{}", upper(channel.name())), 8, channel as u64);
    }
    constant("ENGINE_LOWI", 8, group::Engine::Lowi as u64);
    for (name, kind) in [
        ("ROUND", group::LowiKind::Round),
        ("FORWARD", group::LowiKind::Forward),
        ("EXIT", group::LowiKind::Exit),
        ("READY", group::LowiKind::Ready),
    ] {
        constant(&format!("LOWI_{name}"), 8, kind as u64);
    }
    constant("ENTRY_VALUE", 8, group::EntryKind::Value as u64);
    constant("ENTRY_KIND_MAX", 8, group::EntryKind::Switch as u64);
    sv.push_str("\nendpackage\n");
    sv
}

fn upper(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Header;
    use crate::mac::Keyring;

    #[test]
    fn the_package_in_the_tree_is_current() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(PATH);
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(kept == text(), "{} is out of date: run `cargo xtask gen`", path.display());
    }

    /// The offsets are those that the encoder writes, not a second opinion.
    #[test]
    fn offsets_are_the_encoders() {
        let header = Header {
            kind: 0xa1,
            channel: 0xa2,
            path: 0xa,
            cluster: 0x1011_1213,
            sender: 0x2021_2223,
            incarnation: 0x3031_3233,
            number: 0x4041_4243_4445,
            sent_ns: 0x5051_5253_5455_5657,
            period_ns: 0x6061_6263,
            table_version: 0x7071_7273,
            more: false,
            ..Header::default()
        };
        let mut body = Vec::new();
        group::Head { group: 0x0102_0304, from: 0x0506, engine: 7, kind: 8, generation: 0x1112_1314_1516_1718 }.write(&mut body);
        let mut batch = Vec::new();
        group::Entry { proposer: 0x0708, kind: 9, number: 0x2122_2324_2526_2728, bytes: &[0xee; 3] }.write(&mut batch);
        group::Round { round: 0x3132_3334_3536_3738, instance: 0x4142_4344_4546_4748, entries: 0x0a0b, batch: &batch }
            .write(&mut body);
        let mut out = [0u8; frame::FRAME_MAX];
        let len = frame::encode(&mut out, &header, &body, &Keyring::default()).unwrap();
        let read = |name: &str| {
            let round_at = frame::BODY_AT + group::Head::LEN;
            let round_fields = ROUND_FIELDS.map(|(name, at, bytes)| (name, round_at + at, bytes));
            let (_, at, bytes) = FIELDS.into_iter().chain(round_fields).find(|(known, ..)| *known == name).unwrap();
            out[at..at + bytes].iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte))
        };
        let expected = [
            ("MAGIC", frame::MAGIC.into()),
            ("VERSION_FLAGS", u64::from(frame::VERSION) << 4),
            ("PATH_KEY", 0xa0),
            ("CLUSTER", header.cluster.into()),
            ("SENDER", header.sender.into()),
            ("INCARNATION", header.incarnation.into()),
            ("KIND", 0xa1),
            ("CHANNEL", 0xa2),
            ("NUMBER", header.number),
            ("SENT_NS", header.sent_ns),
            ("PERIOD_NS", header.period_ns.into()),
            ("TABLE_VERSION", header.table_version.into()),
            ("GROUP", 0x0102_0304),
            ("FROM", 0x0506),
            ("ENGINE", 7),
            ("TYPE", 8),
            ("GENERATION", 0x1112_1314_1516_1718),
            ("ROUND", 0x3132_3334_3536_3738),
            ("INSTANCE", 0x4142_4344_4546_4748),
            ("ENTRIES", 0x0a0b),
            ("ROUND_ZERO", 0),
            ("BATCH_LEN", batch.len() as u64),
            ("PROPOSER", 0x0708),
            ("ENTRY_KIND", 9),
            ("ENTRY_ZERO", 0),
            ("VALUE_LEN", 3),
            ("ENTRY_NUMBER", 0x2122_2324_2526_2728),
        ];
        expected.into_iter().for_each(|(name, value)| assert_eq!(read(name), value, "{name}"));
        let value_at = ROUND_FIELDS[8].1 + frame::BODY_AT + group::Head::LEN;
        assert_eq!(out[value_at..len], [0xee, 0xee, 0xee, 0, 0, 0, 0, 0]);
    }

    /// A bus of 512 bits carries the header and the group's head in its first word, and the round
    /// begins the second: a parser needs no shifter.
    #[test]
    fn a_round_begins_on_a_bus_word() {
        assert_eq!(frame::BODY_AT + group::Head::LEN, 64);
        assert_eq!((group::Round::HEAD_LEN + group::Entry::HEAD_LEN) % 8, 0);
    }
}
