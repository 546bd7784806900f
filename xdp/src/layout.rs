//! The Rust view of `src/bpf/maps.h`. Everything is plain integers: any bytes are a valid value.

use fide_wire::{PATHS, jitter::BUCKETS};

/// Subscriber rings (`FIDE_RINGS`): a subscription is one bit of a 64-bit set.
pub const RINGS: usize = 64;
/// Bytes of a subscriber's ring (`FIDE_RING_BYTES`).
pub const RING_BYTES: u32 = 64 * 1024;
/// Receive queues of an interface of which barriers are noted (`FIDE_QUEUES`).
pub const QUEUES: usize = 64;
/// Most watched processes of one host (`FIDE_WATCHES`).
pub const WATCHES: usize = 4096;

/// `struct fide_key`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Key {
    /// First half.
    pub k0: u64,
    /// Second half.
    pub k1: u64,
    /// Whether it is accepted.
    pub valid: u64,
}

/// `struct fide_setup`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Setup {
    /// Cluster id.
    pub cluster: u32,
    /// This node.
    pub node: u32,
    /// This agent's incarnation in the upper half, the number the last notice got in the lower.
    pub life: u64,
    /// UDP port, host byte order.
    pub port: u16,
    /// Zero.
    pub reserved: [u16; 3],
    /// Not 0: some subscribers' rings are sockets, so piggybacks are the agent's to deliver.
    pub sockets: u32,
    /// What another agent of this name calls its incarnation.
    pub clash_incarnation: u32,
    /// Packets of another agent of this name.
    pub clashes: u64,
    /// Records that found the urgent ring full.
    pub urgent_lost: u64,
    /// Accepted keys by id.
    pub keys: [Key; 16],
}

/// `struct fide_path`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Path {
    /// Last heartbeat's number.
    pub number: u64,
    /// Its send stamp (sender's clock).
    pub sent_ns: u64,
    /// Its arrival (this host's CLOCK_MONOTONIC).
    pub arrived_ns: u64,
    /// Heartbeats arrived.
    pub arrived: u64,
    /// Heartbeats that never arrived.
    pub lost: u64,
    /// Last number of the other class.
    pub event_number: u64,
    /// Largest excess over the period since it was last set to 0.
    pub jitter_max_ns: u64,
    /// Packets refused as old.
    pub refused: u64,
}

/// `struct fide_peer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Peer {
    /// Node id; 0: free.
    pub node: u32,
    /// Its incarnation.
    pub incarnation: u32,
    /// Its period.
    pub period_ns: u32,
    /// Not 0: this incarnation is over.
    pub condemned: u32,
    /// The receive queue that its last heartbeat came by, counted from 1, by path; 0: none has.
    pub queue: [u32; PATHS],
    /// By path, [`fide_wire::marks::Marks`].
    pub mark: [[u64; 2]; PATHS],
    /// By path, the low half of the number of its last report that was taken while it was condemned.
    pub told: [u32; PATHS],
    /// By path.
    pub path: [Path; PATHS],
}

/// `struct fide_jitter`.
pub type Jitter = [u32; BUCKETS];

/// `struct fide_watch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Watch {
    /// Start time in clock ticks since boot, as in /proc/PID/stat.
    pub start_ticks: u64,
    /// Its number.
    pub app: u32,
    /// 0 alive, 1 doomed, 2 dead.
    pub state: u32,
    /// Wait status, if reporting `state` failed.
    pub status: i32,
    /// Not 0: it failed.
    pub unreported: u32,
}

/// `struct fide_outgoing`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Outgoing {
    /// A [`fide_wire::event::Record`] and its body.
    pub bytes: [u8; 72 + fide_wire::PIGGYBACK_MAX + 6],
}

/// Gates (`FIDE_GATES`): the host's, and one for each fenced cgroup.
pub const GATES: usize = 256;
/// `GATE_SHUT`: closed by order.
pub const GATE_SHUT: u64 = 0;
/// `GATE_FENCED`: run out, and found so.
pub const GATE_FENCED: u64 = 1;
/// `GATE_NOT_ARMED`.
pub const GATE_NOT_ARMED: u64 = u64::MAX;

/// `struct fide_gate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GateRow {
    /// t_valid, or one of the words above.
    pub valid_ns: u64,
    /// When it was found to have run out.
    pub fenced_ns: u64,
    /// The first packet it has blocked since it was closed.
    pub first_blocked_ns: u64,
    /// The id of its cgroup; 0: nobody's, or the host's.
    pub cgroup: u64,
    /// In the first row: not 0 once all rows were set up.
    pub made: u64,
    /// Shut for a reason of its own, which says nothing of the owner's other gates: an `Apart`, or 0.
    pub apart: u64,
    /// The process that it was closed for, kept until another one may be heard. 0: none.
    pub pid: u64,
    /// When that one started, in clock ticks since boot.
    pub start_ticks: u64,
}

const _: () = assert!(size_of::<GateRow>() == 64);
const _: () = assert!(size_of::<Setup>() == 48 + 16 * 24);
const _: () = assert!(size_of::<Path>() == 64);
const _: () = assert!(size_of::<Peer>() == 64 + 128);
const _: () = assert!(size_of::<Watch>() == 24);
const _: () = assert!(size_of::<Outgoing>().is_multiple_of(8));

#[cfg(test)]
mod tests {
    use super::*;
    use fide_wire::event::Record;
    use libbpf_rs::btf::types::{Composite, MemberAttr};
    use libbpf_rs::btf::{Btf, BtfType, HasSize};
    use std::mem::offset_of;

    /// Size, and the offset of every member by name.
    fn in_c(btf: &Btf<'_>, name: &str) -> (usize, Vec<(String, usize)>) {
        let found: BtfType<'_> = btf.type_by_name(name).unwrap_or_else(|| panic!("the object has no struct {name}"));
        let composite: Composite<'_> = found.try_into().unwrap_or_else(|_| panic!("{name} is no struct"));
        let members = composite
            .iter()
            .map(|m| {
                let MemberAttr::Normal { offset } = m.attr else { panic!("{name} has a bit field") };
                (m.name.expect("no unnamed members").to_string_lossy().into_owned(), offset as usize / 8)
            })
            .collect();
        (composite.size(), members)
    }

    macro_rules! same {
        ($btf:expr, $rust:ty, $c:literal, [$($field:ident $(= $name:literal)?),* $(,)?]) => {{
            let (size, members) = in_c($btf, $c);
            assert_eq!(size, size_of::<$rust>(), "size of {}", $c);
            let rust: Vec<(String, usize)> = vec![$((stringify!($field).to_string(), offset_of!($rust, $field))),*];
            assert_eq!(members, rust, "members of {}", $c);
        }};
    }

    fn btf_of(object: &[u8], name: &str) -> Btf<'static> {
        let file = std::env::temp_dir().join(format!("fide-layout-{name}-{}.o", std::process::id()));
        std::fs::write(&file, object).unwrap();
        let btf = Btf::from_path(&file);
        std::fs::remove_file(&file).unwrap();
        btf.unwrap()
    }

    #[test]
    fn the_rust_view_of_gates_is_the_c_view() {
        let btf = &btf_of(crate::fence::OBJECT, "fence");
        same!(btf, GateRow, "fide_gate", [valid_ns, fenced_ns, first_blocked_ns, cgroup, made, apart, pid, start_ticks]);
    }

    #[test]
    fn the_rust_view_is_the_c_view() {
        let btf = &btf_of(crate::mechanism::OBJECT, "fide");
        same!(btf, Key, "fide_key", [k0, k1, valid]);
        same!(
            btf,
            Setup,
            "fide_setup",
            [cluster, node, life, port, reserved, sockets, clash_incarnation, clashes, urgent_lost, keys]
        );
        same!(btf, Path, "fide_path", [number, sent_ns, arrived_ns, arrived, lost, event_number, jitter_max_ns, refused]);
        same!(btf, Peer, "fide_peer", [node, incarnation, period_ns, condemned, queue, mark, told, path]);
        same!(btf, Watch, "fide_watch", [start_ticks, app, state, status, unreported]);
        same!(
            btf,
            Record,
            "fide_record",
            [
                kind,
                cause,
                grade,
                node,
                app,
                incarnation,
                code,
                path,
                flags,
                body_len,
                id,
                event_ns,
                sent_ns,
                received_ns,
                number,
                pid,
                reserved
            ]
        );
        assert_eq!(in_c(btf, "fide_jitter"), (size_of::<Jitter>(), vec![("bucket".into(), 0)]));
        assert_eq!(
            in_c(btf, "fide_outgoing"),
            (size_of::<Outgoing>(), vec![("record".into(), 0), ("body".into(), size_of::<Record>())])
        );
    }
}
