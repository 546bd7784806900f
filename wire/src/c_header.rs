//! The C view of the wire, for the kernel program and for other languages: printed from the Rust definitions so that they cannot differ.

use crate::event::{Record, RecordKind};
use crate::frame::table::Change;
use crate::frame::{self, Channel, Kind, items};
use crate::packet::{self, Refusal};
use crate::verdict::{Cause, Grade};
use std::fmt::Write;

/// Where the header lives in the tree.
pub const PATH: &str = "include/fide_wire.h";

/// What stands behind the numbers.
const LAYOUT: &str = "\n/* Big-endian, as on the wire. */\n\
     struct fide_header {\n\
     \t__u16 magic;\n\t__u8 version_flags;\n\t__u8 path_key;\n\t__u32 cluster;\n\t__u32 sender;\n\t__u32 incarnation;\n\
     \t__u64 kind_channel_number; /* u8, u8, u48 */\n\t__u64 sent_ns;\n\t__u32 period_ns;\n\t__u32 table_version;\n\
     } __attribute__((packed));\n\n\
     struct fide_change {\n\
     \t__u32 origin;\n\t__u32 row;\n\t__u64 version;\n\t__u8 cause;\n\t__u8 grade;\n\t__u16 flags;\n\t__s32 code;\n\t__u64 event_ns;\n\
     } __attribute__((packed));\n\n\
     /* Host byte order, in rings. */\n\
     struct fide_record {\n\
     \t__u16 kind;\n\t__u8 cause;\n\t__u8 grade;\n\t__u32 node;\n\t__u32 app;\n\t__u32 incarnation;\n\t__s32 code;\n\
     \t__u8 path;\n\t__u8 flags;\n\t__u16 body_len;\n\t__u64 id;\n\t__u64 event_ns;\n\t__u64 sent_ns;\n\t__u64 received_ns;\n\
     \t__u64 number;\n\t__u32 pid;\n\t__u32 reserved;\n\
     };\n\n\
     _Static_assert(sizeof(struct fide_header) == FIDE_HEADER_LEN, \"header\");\n\
     _Static_assert(sizeof(struct fide_change) == FIDE_CHANGE_LEN, \"change\");\n\
     _Static_assert(sizeof(struct fide_record) == 72, \"record\");\n\n\
     #endif\n";

/// The whole header.
#[must_use]
pub fn text() -> String {
    let mut h = String::from(
        "/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */\n\
         /* Generated from wire/src by `cargo xtask gen`. Do not edit. */\n\
         #ifndef FIDE_WIRE_H\n#define FIDE_WIRE_H\n\n",
    );
    let mut def = |name: &str, value: u64| {
        let _ = writeln!(h, "#define FIDE_{name} {value}");
    };
    def("PORT", crate::DEFAULT_PORT.into());
    def("MAGIC", packet::MAGIC.into());
    def("VERSION", packet::VERSION.into());
    def("MORE", frame::MORE.into());
    def("HEADER_LEN", frame::HEADER_LEN as u64);
    def("TAG_LEN", frame::TAG_LEN as u64);
    def("BODY_AT", frame::BODY_AT as u64);
    def("BODY_MAX", frame::BODY_MAX as u64);
    def("CHANGE_LEN", Change::LEN as u64);
    def("CHANGES_MAX", Change::PER_FRAME as u64);
    def("ITEM_HEAD", items::HEAD_LEN as u64);
    def("CHANNEL_PIGGYBACK", Channel::Piggyback as u64);
    def("CHANNEL_GROUPS", Channel::Groups as u64);
    def("PACKET_MAX", packet::PACKET_MAX as u64);
    def("PIGGYBACK_HEAD", packet::PIGGYBACK_HEAD as u64);
    def("PIGGYBACK_MAX", crate::PIGGYBACK_MAX as u64);
    def("PATHS", crate::PATHS as u64);
    def("SLOTS", crate::SLOTS as u64);
    def("JITTER_BUCKETS", crate::jitter::BUCKETS as u64);
    def("MARK_EVERY", crate::marks::EVERY);
    def("MARK_SHIFT", u64::from(crate::marks::SHIFT));
    def("JITTER_UNIT_SHIFT", crate::jitter::UNIT_SHIFT.into());
    for kind in Kind::ALL {
        def(&format!("KIND_{}", upper(kind.name())), kind as u64);
    }
    for refusal in Refusal::ALL {
        def(&format!("REFUSED_{}", upper(refusal.name())), refusal as u64);
    }
    def("REFUSALS", Refusal::COUNT as u64);
    for cause in Cause::ALL {
        def(&format!("CAUSE_{}", upper(cause.name())), cause as u64);
    }
    def("GRADE_CERTAIN", Grade::Certain as u64);
    def("GRADE_INFERRED", Grade::Inferred as u64);
    for (name, kind) in [
        ("PROCESS", RecordKind::Process),
        ("HOST", RecordKind::Host),
        ("PIGGYBACK", RecordKind::Piggyback),
        ("LOST", RecordKind::Lost),
        ("TIMEOUT_CHANGED", RecordKind::TimeoutChanged),
        ("PIGGYBACK_SIZE_CHANGED", RecordKind::PiggybackSizeChanged),
        ("MONITOR_REQUEST", RecordKind::MonitorRequest),
        ("PACKET", RecordKind::Packet),
        ("EXIT", RecordKind::Exit),
    ] {
        def(&format!("RECORD_{name}"), kind as u64);
    }
    def("RECORD_CONFIRMS", Record::CONFIRMS.into());
    def("RECORD_LOCAL", Record::LOCAL.into());
    def("RECORD_DUPLICATE", Record::DUPLICATE.into());
    def("RECORD_FENCED", Record::FENCED.into());
    def("NOTICE_CONFIRMS", packet::Notice::CONFIRMS.into());
    h.push_str(LAYOUT);
    h
}

fn upper(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_header_in_the_tree_is_current() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(super::PATH);
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(kept == super::text(), "{} is out of date: run `cargo xtask gen`", path.display());
    }
}
