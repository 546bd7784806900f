//! The ring on memory laid out by the test as the kernel would, and as nobody should.

use super::*;
use proptest::prelude::*;
use std::fs::File;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;

const SIZE: u32 = 4096 * 16;

/// A memory file laid out as a BPF ring. It has no second mapping of the data, so every byte is written twice.
struct Kernel {
    file: File,
    produced: usize,
}

impl Kernel {
    fn new() -> Self {
        // SAFETY: the name ends with a zero; the descriptor is new and owned by nobody else.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"ring".as_ptr(), libc::MFD_CLOEXEC)) };
        file.set_len((2 * page_size() + 2 * SIZE as usize) as u64).unwrap();
        Self { file, produced: 0 }
    }

    fn ring(&self) -> BpfRing {
        BpfRing::map(self.file.as_fd(), SIZE).unwrap()
    }

    fn put(&self, position: usize, bytes: &[u8]) {
        let size = SIZE as usize;
        for (i, byte) in bytes.iter().enumerate() {
            let at = 2 * page_size() + ((position + i) & (size - 1));
            self.file.write_all_at(&[*byte], at as u64).unwrap();
            self.file.write_all_at(&[*byte], (at + size) as u64).unwrap();
        }
    }

    fn header(&self, position: usize, word: u32) {
        self.put(position, &word.to_ne_bytes());
    }

    /// Publishes positions up to the end of what was reserved.
    fn produce(&mut self, position: usize) {
        self.produced = position;
        self.file.write_all_at(&position.to_ne_bytes(), page_size() as u64).unwrap();
    }

    /// Reserves an entry, still busy, and returns where it begins.
    fn reserve(&mut self, bytes: &[u8]) -> usize {
        let at = self.produced;
        self.header(at, bytes.len() as u32 | BUSY);
        self.put(at + HEADER, bytes);
        self.produce(at + (bytes.len() + HEADER).next_multiple_of(8));
        at
    }

    fn write(&mut self, bytes: &[u8]) {
        let at = self.reserve(bytes);
        self.header(at, bytes.len() as u32);
    }

    fn consumed(&self) -> usize {
        let mut word = [0; size_of::<usize>()];
        self.file.read_exact_at(&mut word, 0).unwrap();
        usize::from_ne_bytes(word)
    }
}

fn next(ring: &mut BpfRing) -> Option<Vec<u8>> {
    let mut entry = vec![7; 3];
    ring.next(&mut entry).unwrap().then_some(entry)
}

#[test]
fn entries_come_in_order_and_are_given_back_to_the_kernel() {
    let mut kernel = Kernel::new();
    let mut ring = kernel.ring();
    assert_eq!(next(&mut ring), None);
    for text in [&b"a"[..], b"", b"12345678", b"123456789"] {
        kernel.write(text);
    }
    for text in [&b"a"[..], b"", b"12345678", b"123456789"] {
        assert_eq!(next(&mut ring).as_deref(), Some(text));
    }
    assert_eq!(next(&mut ring), None);
    assert_eq!(kernel.consumed(), kernel.produced);
}

#[test]
fn a_busy_entry_holds_back_those_behind_it() {
    let mut kernel = Kernel::new();
    let mut ring = kernel.ring();
    let first = kernel.reserve(b"first");
    kernel.write(b"second");
    assert_eq!(next(&mut ring), None);
    assert_eq!(kernel.consumed(), 0);
    kernel.header(first, 5);
    assert_eq!(next(&mut ring).as_deref(), Some(&b"first"[..]));
    assert_eq!(next(&mut ring).as_deref(), Some(&b"second"[..]));
}

#[test]
fn discarded_entries_are_passed_over() {
    let mut kernel = Kernel::new();
    let mut ring = kernel.ring();
    for _ in 0..3 {
        let at = kernel.reserve(b"never mind");
        kernel.header(at, 10 | DISCARD);
    }
    kernel.write(b"this");
    assert_eq!(next(&mut ring).as_deref(), Some(&b"this"[..]));
    let at = kernel.reserve(b"nor this");
    kernel.header(at, 8 | DISCARD);
    assert_eq!(next(&mut ring), None);
    assert_eq!(kernel.consumed(), kernel.produced, "a discarded last entry is given back too");
}

#[test]
fn entries_wrap_around_many_times() {
    let mut kernel = Kernel::new();
    let mut ring = kernel.ring();
    for round in 0..500_u32 {
        let text: Vec<u8> = (0..1000 + round % 77).map(|i| (i ^ round) as u8).collect();
        kernel.write(&text);
        assert_eq!(next(&mut ring), Some(text));
    }
    assert!(kernel.produced > 5 * SIZE as usize);
}

#[test]
fn a_ring_in_use_is_continued_where_its_last_reader_stopped() {
    let mut kernel = Kernel::new();
    kernel.write(b"old");
    let mut ring = kernel.ring();
    assert_eq!(next(&mut ring).as_deref(), Some(&b"old"[..]));
    drop(ring);
    kernel.write(b"new");
    assert_eq!(next(&mut kernel.ring()).as_deref(), Some(&b"new"[..]));
}

#[test]
fn an_entry_longer_than_any_record_is_cut_off() {
    let mut kernel = Kernel::new();
    // The largest that fits the ring and is more than a record with the largest body would not fit 64 KiB: use the length alone.
    kernel.header(0, SIZE - 8);
    kernel.produce(SIZE as usize);
    let mut ring = kernel.ring();
    let entry = next(&mut ring).unwrap();
    assert_eq!(entry.len(), ENTRY_MAX.min(SIZE as usize - 8));
    assert_eq!(next(&mut ring), None);
}

#[test]
fn impossible_positions_and_lengths_are_damage() {
    let damaged = |word: u32, produced: usize| {
        let mut kernel = Kernel::new();
        kernel.header(0, word);
        kernel.produce(produced);
        let mut ring = kernel.ring();
        let mut entry = Vec::new();
        let first = ring.next(&mut entry);
        assert!(matches!(first, Err(Error::Ring(_))), "{word:#x} {produced}: {first:?}");
        assert!(ring.next(&mut entry).is_err(), "and stays damage");
        assert_eq!(kernel.consumed(), 0);
    };
    damaged(9, 16);
    damaged(0x3fff_ffff, SIZE as usize);
    damaged(SIZE, SIZE as usize);
    damaged(0, SIZE as usize + 8);
    damaged(0, 4);
    damaged(0, usize::MAX - 7);
    damaged(0x3fff_ffff | DISCARD, 64);
}

#[test]
fn sizes_that_no_ring_has_are_refused() {
    let kernel = Kernel::new();
    for size in [0, 1, 4095, 4096 * 3, 2048, u32::MAX, 1 << 31] {
        assert!(BpfRing::map(kernel.file.as_fd(), size).is_err(), "{size}");
    }
    // A file too short for what it promises would raise SIGBUS when read.
    assert!(matches!(BpfRing::map(kernel.file.as_fd(), SIZE * 2), Err(Error::Protocol(_))));
    let (read, _write) = std::io::pipe().unwrap();
    assert!(matches!(BpfRing::map(read.as_fd(), SIZE), Err(Error::System { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever is in the pages, reading ends, stays inside (anything else is SIGSEGV here) and never panics.
    #[test]
    fn no_contents_can_lead_out_of_the_ring(
        words in prop::collection::vec((any::<u16>(), prop_oneof![any::<u32>(), 0..200_u32]), 0..64),
        consumed in prop_oneof![Just(0_usize), any::<usize>(), (0..4096_usize).prop_map(|n| n * 8)],
        ahead in prop_oneof![any::<usize>(), (0..=SIZE as usize / 8).prop_map(|n| n * 8)],
    ) {
        let mut kernel = Kernel::new();
        kernel.file.write_all_at(&consumed.to_ne_bytes(), 0).unwrap();
        for (at, word) in words {
            kernel.header(usize::from(at) & !7, word);
        }
        kernel.produce(consumed.wrapping_add(ahead));
        let mut ring = kernel.ring();
        let mut entry = Vec::new();
        let mut entries = 0;
        while ring.next(&mut entry).unwrap_or(false) {
            prop_assert!(entry.len() <= ENTRY_MAX);
            entries += 1;
            prop_assert!(entries <= SIZE / 8);
        }
    }
}
