//! A mechanism that is attached to nothing, and frames to show to it.
#![allow(dead_code)] // each test binary uses its part

use fide_wire::event::Record;
use fide_wire::mac::{Key, Keyring};
use fide_wire::packet::{self, Header, Kind, Notice, PACKET_MAX, Refusal};
use fide_wire::verdict::{Cause, Grade};
use fide_xdp::{Mechanism, Ring, Setup};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub const CLUSTER: u32 = 0x00c0_ffee;
pub const SELF: u32 = 1;
pub const SELF_INCARNATION: u32 = 50;
pub const PEER: u32 = 20;
pub const PEER_SLOT: usize = 3;
pub const PEER_INCARNATION: u32 = 7;
pub const PORT: u16 = 3433;
pub const PERIOD_NS: u32 = 1_000_000;
/// The loopback device of every network namespace.
pub const LO: u32 = 1;

pub const XDP_DROP: u32 = 1;
pub const XDP_PASS: u32 = 2;

/// What became of a packet, by its action and the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Left to the stack.
    Passed,
    /// Taken; or dropped as nothing to count.
    Accepted,
    /// Dropped, and counted once under this reason.
    Refused(Refusal),
}

pub fn secret() -> Keyring {
    Keyring::new((4, Key([0xa5; 16])), None).unwrap()
}

/// Says so once, and returns true, when this is not root.
pub fn not_root() -> bool {
    // SAFETY: no preconditions.
    let not = unsafe { libc::geteuid() } != 0;
    if not {
        println!("SKIPPED: loading kernel programs needs root");
    }
    not
}

/// Whether a reader that sleeps on a descriptor was woken.
pub struct Woken(OwnedFd);

impl Woken {
    pub fn new(fd: RawFd) -> Self {
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        // SAFETY: a new descriptor that is ours; an event that lives across the call.
        unsafe {
            let epoll = OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC));
            assert_eq!(libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event), 0);
            Self(epoll)
        }
    }

    /// Since it was asked last. The kernel wakes readers of rings from an interrupt of its own, so
    /// this waits for it.
    pub fn is_woken(&self) -> bool {
        self.is_within(30_000)
    }

    /// The opposite: it was not woken since it was asked last, nor a little later.
    pub fn sleeps_on(&self) -> bool {
        !self.is_within(20)
    }

    fn is_within(&self, at_most_ms: i32) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: an open descriptor, room for one event.
        unsafe { libc::epoll_wait(self.0.as_raw_fd(), &raw mut event, 1, at_most_ms) == 1 }
    }
}

pub struct Bench {
    pub m: Mechanism,
    pub urgent: Ring,
    pub inbox: Ring,
    pub keys: Keyring,
    number: u64,
    counts: [u64; Refusal::COUNT],
}

impl Bench {
    /// Knows one peer, [`PEER`] in [`PEER_SLOT`]; a secret key is set.
    pub fn new() -> Self {
        Self::with_keys(secret())
    }

    pub fn with_keys(keys: Keyring) -> Self {
        let setup = Setup { cluster: CLUSTER, node: SELF, incarnation: SELF_INCARNATION, port: PORT };
        let m = Mechanism::load(setup, &keys, false).unwrap_or_else(|e| panic!("{e}"));
        let (urgent, inbox) = (m.urgent().unwrap(), m.inbox().unwrap());
        m.set_peer(PEER_SLOT, PEER, PEER_INCARNATION).unwrap();
        // Heartbeats with a body come whole to `inbox`, where a test can look at them; those of the kernel's own delivery turn it off.
        m.leave_piggybacks(true);
        let counts = m.refused();
        Self { m, urgent, inbox, keys, number: 0, counts }
    }

    /// A number higher than all before.
    pub fn next(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// A header from [`PEER`] on a path, with the next number.
    pub fn header(&mut self, kind: Kind, path: u8) -> Header {
        Header {
            kind,
            path,
            key_id: 0,
            cluster: CLUSTER,
            sender: PEER,
            incarnation: PEER_INCARNATION,
            number: self.next(),
            sent_ns: 0x1122_3344_5566_7788,
            period_ns: PERIOD_NS,
            table_version: 0,
            more: false,
        }
    }

    pub fn heartbeat(&mut self, path: u8, body: &[u8]) -> Vec<u8> {
        let header = self.header(Kind::Heartbeat, path);
        self.sign(&header, None, body)
    }

    pub fn notice(&mut self, path: u8, number: u32, app: u32) -> Vec<u8> {
        let header = self.header(Kind::Notice, path);
        self.sign(&header, Some(&a_notice(number, app)), b"")
    }

    /// Notices that came together.
    pub fn notices(&mut self, path: u8, notices: &[Notice]) -> Vec<u8> {
        let header = self.header(Kind::Notice, path);
        let mut out = [0; PACKET_MAX];
        let n = packet::encode_notices(&mut out, &header, notices, &self.keys).unwrap();
        out[..n].to_vec()
    }

    pub fn sign(&self, header: &Header, notice: Option<&Notice>, body: &[u8]) -> Vec<u8> {
        packet_of(header, notice, body, &self.keys)
    }

    /// A payload arrives in an IPv4 frame on a path.
    pub fn arrives(&mut self, path: u32, payload: &[u8]) -> Fate {
        self.frame_arrives(path, &ipv4(payload))
    }

    pub fn frame_arrives(&mut self, path: u32, frame: &[u8]) -> Fate {
        self.m.assign_path(LO, path).unwrap();
        let action = self.m.test_receive(frame, LO).unwrap();
        let now = self.m.refused();
        let moved: Vec<Refusal> = Refusal::ALL.into_iter().filter(|r| now[*r as usize] != self.counts[*r as usize]).collect();
        let by: u64 = now.iter().sum::<u64>() - self.counts.iter().sum::<u64>();
        self.counts = now;
        match (action, moved.as_slice()) {
            (XDP_PASS, []) => Fate::Passed,
            (XDP_DROP, []) => Fate::Accepted,
            (XDP_DROP, [reason]) if by == 1 => Fate::Refused(*reason),
            other => panic!("action and counters {other:?}, by {by}"),
        }
    }

    pub fn urgent(&mut self) -> Vec<Record> {
        records(&mut self.urgent).into_iter().map(|(r, _)| r).collect()
    }

    pub fn inbox(&mut self) -> Vec<(Record, Vec<u8>)> {
        records(&mut self.inbox)
    }
}

pub fn a_notice(notice: u32, app: u32) -> Notice {
    Notice { notice, app, cause: Cause::Doomed, grade: Grade::Certain, flags: 0, code: 9, event_ns: 777 }
}

/// The notice of a packet of this kind, if it has one; that of a leave is about the agent.
pub fn a_notice_of(kind: Kind, notice: u32, app: u32) -> Option<Notice> {
    match kind {
        Kind::Notice => Some(a_notice(notice, app)),
        Kind::Leave => Some(a_notice(notice, 0)),
        _ => None,
    }
}

pub fn packet_of(header: &Header, notice: Option<&Notice>, body: &[u8], keys: &Keyring) -> Vec<u8> {
    let mut out = [0; PACKET_MAX];
    let n = packet::encode(&mut out, header, notice, body, keys).unwrap();
    out[..n].to_vec()
}

pub fn records(ring: &mut Ring) -> Vec<(Record, Vec<u8>)> {
    let mut all = Vec::new();
    ring.drain(|entry| {
        let (record, body) = Record::read(entry).expect("whole records only");
        assert_eq!(entry.len(), size_of::<Record>() + body.len());
        all.push((record, body.to_vec()));
    });
    all
}

pub fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&40_000u16.to_be_bytes());
    out.extend_from_slice(&port.to_be_bytes());
    out.extend_from_slice(&((payload.len() + 8) as u16).to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(payload);
    out
}

/// `fragment`: the field of flags and offset.
pub fn ip4(header_words: u8, fragment: u16, protocol: u8, inner: &[u8]) -> Vec<u8> {
    let header = usize::from(header_words) * 4;
    let mut out = vec![0x40 | header_words, 0];
    out.extend_from_slice(&((header + inner.len()) as u16).to_be_bytes());
    out.extend_from_slice(&[0, 1]);
    out.extend_from_slice(&fragment.to_be_bytes());
    out.extend_from_slice(&[1, protocol, 0, 0, 10, 0, 0, 2, 239, 255, 0, 1]);
    out.resize(header, 1); // options: no operation
    out.extend_from_slice(inner);
    out
}

pub fn ip6(next: u8, inner: &[u8]) -> Vec<u8> {
    let mut out = vec![0x60, 0, 0, 0];
    out.extend_from_slice(&(inner.len() as u16).to_be_bytes());
    out.extend_from_slice(&[next, 1]);
    out.extend_from_slice(&[0xfe; 32]);
    out.extend_from_slice(inner);
    out
}

pub fn ethernet(protocol: u16, inner: &[u8]) -> Vec<u8> {
    let mut out = vec![0x01, 0x00, 0x5e, 0x7f, 0, 1, 2, 0, 0, 0, 0, 2];
    out.extend_from_slice(&protocol.to_be_bytes());
    out.extend_from_slice(inner);
    out
}

pub fn vlan(id: u16, protocol: u16, inner: &[u8]) -> Vec<u8> {
    let mut tagged = id.to_be_bytes().to_vec();
    tagged.extend_from_slice(&protocol.to_be_bytes());
    tagged.extend_from_slice(inner);
    ethernet(0x8100, &tagged)
}

/// An ordinary frame: Ethernet, IPv4, UDP.
pub fn ipv4(payload: &[u8]) -> Vec<u8> {
    ethernet(0x0800, &ip4(5, 0x4000, 17, &udp(PORT, payload)))
}

pub fn ipv6(payload: &[u8]) -> Vec<u8> {
    ethernet(0x86dd, &ip6(17, &udp(PORT, payload)))
}

/// A ring as an application sees it: only the descriptor. Makes system calls and touches memory, nothing else, so that it also works in a
/// forked child.
pub struct Mapped {
    consumer: *mut u8,
    producer: *mut u8,
    size: usize,
}

impl Mapped {
    pub fn new(fd: BorrowedFd<'_>, size: usize) -> Option<Self> {
        let map = |len: usize, prot: i32, offset: i64| {
            // SAFETY: fresh mappings at addresses of the kernel's choice; they live until the process ends.
            unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd.as_raw_fd(), offset) }
        };
        let consumer = map(4096, libc::PROT_READ | libc::PROT_WRITE, 0);
        let producer = map(4096 + 2 * size, libc::PROT_READ, 4096);
        (consumer != libc::MAP_FAILED && producer != libc::MAP_FAILED).then_some(Self {
            consumer: consumer.cast(),
            producer: producer.cast(),
            size,
        })
    }

    /// Takes the next record and copies its body into `body`.
    pub fn next(&self, body: &mut [u8; 2048]) -> Option<(Record, usize)> {
        // SAFETY: aligned words of the mappings made in `new`; the kernel writes entries within the data area, which is mapped twice.
        unsafe {
            let consumer = AtomicU64::from_ptr(self.consumer.cast());
            let at = consumer.load(Ordering::Relaxed);
            if at >= AtomicU64::from_ptr(self.producer.cast()).load(Ordering::Acquire) {
                return None;
            }
            let entry = self.producer.add(4096 + (at as usize & (self.size - 1)));
            let len = AtomicU32::from_ptr(entry.cast()).load(Ordering::Acquire);
            if len >> 30 != 0 {
                return None;
            }
            let record = entry.add(8).cast::<Record>().read_unaligned();
            let n = len as usize - size_of::<Record>();
            std::ptr::copy_nonoverlapping(entry.add(8 + size_of::<Record>()), body.as_mut_ptr(), n);
            consumer.store(at + (u64::from(len) + 8).next_multiple_of(8), Ordering::SeqCst);
            Some((record, n))
        }
    }

    pub fn all(&self) -> Vec<(Record, Vec<u8>)> {
        let mut body = [0; 2048];
        std::iter::from_fn(|| self.next(&mut body).map(|(r, n)| (r, body[..n].to_vec()))).collect()
    }
}
