//! The Rust view of `src/bpf/maps.h`. Everything is plain integers: any bytes are a valid value.

use fide_wire::{PATHS, jitter::BUCKETS};

/// Subscriber rings (`FIDE_RINGS`): a subscription is one bit of a 64-bit set.
pub const RINGS: usize = 64;
/// Bytes of a subscriber's ring (`FIDE_RING_BYTES`).
pub const RING_BYTES: u32 = 64 * 1024;
/// Receive queues of an interface of which barriers are noted (`FIDE_QUEUES`).
pub const QUEUES: usize = 64;
/// Questions that may be answered at a time (`FIDE_QUESTIONS`).
pub const QUESTIONS: usize = 4096;
/// Rounds of questions by TCP on each path (`FIDE_ROUNDS`).
pub const ROUNDS: usize = 8;
/// Announcements of an unknown host that are heard in a second (`FIDE_INTRODUCTIONS`).
pub const INTRODUCTIONS: usize = 1024;
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
    /// This agent's incarnation in the upper half, the version of the last change in the lower.
    pub life: u64,
    /// UDP port, host byte order.
    pub port: u16,
    /// Not 0: a packet lies in the inbox for which the agent was not woken.
    pub unwoken: u16,
    /// Zero.
    pub reserved: [u16; 2],
    /// Not 0: some subscribers' rings are sockets, so piggybacks are the agent's to deliver.
    pub sockets: u32,
    /// The ICMP identifier of this agent's questions.
    pub probe_id: u32,
    /// Packets of this name that this incarnation did not send.
    pub not_sent: u64,
    /// Records that found the urgent ring full.
    pub urgent_lost: u64,
    /// And those that found the ring of the start watch full.
    pub starts_lost: u64,
    /// Accepted keys by id.
    pub keys: [Key; 16],
    /// The highest number of a heartbeat that this incarnation sent.
    pub number_sent: u64,
    /// And of anything else.
    pub event_number_sent: u64,
    /// The agent wakes by itself then: packets for groups need not wake it before (ns).
    pub rests_until_ns: u64,
    /// Of the paths' interfaces.
    pub mac: [Mac; PATHS],
    /// By path, the last rounds of questions by TCP: 1 << 32 and the number of the round, or 0.
    pub rounds: [[u64; ROUNDS]; PATHS],
}

/// `struct fide_mac`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Mac {
    /// Its first four bytes, as they lie in a frame.
    pub head: u32,
    /// The others.
    pub tail: u16,
    /// Not 0: it is known.
    pub known: u16,
}

/// `struct fide_question`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Question {
    /// 0: none is waited for.
    pub nonce: u64,
    /// What its packet carries before the nonce, as it lies there.
    pub head: u64,
    /// The rest of that.
    pub tail: u32,
    /// On which path.
    pub path: u32,
    /// The address that was asked: of IPv4 as one word of 32 bits, of IPv6 as two, as they lie in a packet.
    pub from: [u64; 2],
}

/// `struct fide_source`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Source {
    /// How many have come.
    pub count: u64,
    /// When the last one did (CLOCK_MONOTONIC).
    pub last_ns: u64,
    /// Its source address, as in [`Question::from`].
    pub from: [u64; 2],
    /// Its source on the link.
    pub mac: [u8; 6],
    /// 4, 6, or 0 for other protocols.
    pub ip: u8,
    /// Zero.
    pub reserved: u8,
}

impl Source {
    /// The source address, if it was an IP packet.
    #[must_use]
    pub fn address(&self) -> Option<std::net::IpAddr> {
        match self.ip {
            4 => Some(std::net::Ipv4Addr::from((self.from[0] as u32).to_ne_bytes()).into()),
            6 => {
                let mut octets = [0; 16];
                octets[..8].copy_from_slice(&self.from[0].to_ne_bytes());
                octets[8..].copy_from_slice(&self.from[1].to_ne_bytes());
                Some(std::net::Ipv6Addr::from(octets).into())
            }
            _ => None,
        }
    }
}

/// An address as [`Question::from`] has it.
#[must_use]
pub fn words(address: std::net::IpAddr) -> [u64; 2] {
    match address {
        std::net::IpAddr::V4(a) => [u32::from_ne_bytes(a.octets()).into(), 0],
        std::net::IpAddr::V6(a) => {
            let half = |at: usize| std::array::from_fn(|i| a.octets()[at + i]);
            [u64::from_ne_bytes(half(0)), u64::from_ne_bytes(half(8))]
        }
    }
}

/// What comes and was not wanted, beside refused packets ([`fide_wire::packet::Refusal`]): `enum fide_unwanted`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unwanted {
    /// An answer by ICMP echo to no question of this agent.
    Echo,
    /// A question of another agent, by UDP.
    Probe,
    /// An answer by TCP to no question of this agent.
    Tcp,
    /// A frame with this host's own MAC.
    OwnMac,
}

impl Unwanted {
    /// All, in the order of the kernel's.
    pub const ALL: [Unwanted; 4] = [Unwanted::Echo, Unwanted::Probe, Unwanted::Tcp, Unwanted::OwnMac];

    /// The name in metrics and in the status.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Unwanted::Echo => "echo-answer",
            Unwanted::Probe => "probe",
            Unwanted::Tcp => "tcp-answer",
            Unwanted::OwnMac => "own-mac",
        }
    }
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
    pub refused: u32,
    /// Low half of the number of the last heartbeat that came by multicast.
    pub by_group: u32,
}

impl Path {
    /// How many numbers ago a heartbeat came by multicast last: those behind it came by unicast.
    #[must_use]
    pub const fn since_group(&self) -> u32 {
        (self.number as u32).wrapping_sub(self.by_group)
    }
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
    pub queue: [u16; PATHS],
    /// The highest version of its table that its heartbeats named, the low half.
    pub table_version: u32,
    /// By path, [`fide_wire::marks::Marks`].
    pub mark: [[u64; 2]; PATHS],
    /// By path, the low half of the number of its last report that was taken while it was condemned.
    pub told: [u32; PATHS],
    /// By path.
    pub path: [Path; PATHS],
}

/// `struct fide_jitter`.
pub type Jitter = [u32; BUCKETS];

/// Bytes of a name that the start watch compares (`FIDE_NAME`), the zero at its end included.
pub const START_NAME: usize = 16;

/// `struct fide_watch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Watch {
    /// Start time in clock ticks since boot, as in /proc/PID/stat.
    pub start_ticks: u64,
    /// Until then (CLOCK_MONOTONIC) a clean end hands over to a child: nobody is told. 0: never.
    pub settles_ns: u64,
    /// Its number.
    pub app: u32,
    /// 0 alive, 1 doomed, 2 dead.
    pub state: u32,
    /// Wait status, if reporting `state` failed; and `STATUS_OUT_OF_MEMORY`, `STATUS_BY_KERNEL`.
    pub status: i32,
    /// Not 0: it failed.
    pub unreported: u32,
}

impl Watch {
    /// Whether an end that was not reported was the OOM killer's doing.
    #[must_use]
    pub const fn is_out_of_memory(&self) -> bool {
        self.status & 1 << 16 != 0
    }
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
const _: () = assert!(size_of::<Setup>() == 56 + 16 * 24 + 24 + 8 * PATHS * (1 + ROUNDS));
const _: () = assert!(size_of::<Question>() == 40 && size_of::<Source>() == 40);
const _: () = assert!(size_of::<Path>() == 64);
const _: () = assert!(size_of::<Peer>() == 64 + 128);
const _: () = assert!(size_of::<Watch>() == 32);
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
            [
                cluster,
                node,
                life,
                port,
                unwoken,
                reserved,
                sockets,
                probe_id,
                not_sent,
                urgent_lost,
                starts_lost,
                keys,
                number_sent,
                event_number_sent,
                rests_until_ns,
                mac,
                rounds
            ]
        );
        same!(btf, Mac, "fide_mac", [head, tail, known]);
        same!(btf, Question, "fide_question", [nonce, head, tail, path, from]);
        same!(btf, Source, "fide_source", [count, last_ns, from, mac, ip, reserved]);
        same!(
            btf,
            Path,
            "fide_path",
            [number, sent_ns, arrived_ns, arrived, lost, event_number, jitter_max_ns, refused, by_group]
        );
        same!(btf, Peer, "fide_peer", [node, incarnation, period_ns, condemned, queue, table_version, mark, told, path]);
        same!(btf, Watch, "fide_watch", [start_ticks, settles_ns, app, state, status, unreported]);
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
