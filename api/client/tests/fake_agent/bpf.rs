//! A real BPF ring buffer, and a program that writes to it as the receive program does. Needs root (CAP_BPF).
//!
//! Made with the bare system call, because the crate under test must not depend on a BPF library.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bytes that the program copies: a record and a little body.
pub const ENTRY: usize = 80;

const MAP_CREATE: libc::c_long = 0;
const PROG_LOAD: libc::c_long = 5;
const PROG_TEST_RUN: libc::c_long = 10;
const MAP_TYPE_RINGBUF: u32 = 27;
const PROG_TYPE_XDP: u32 = 6;

pub struct Ring {
    pub map: OwnedFd,
    pub size: u32,
    program: OwnedFd,
}

/// Fields of `union bpf_attr`, each at its offset, in 128 bytes of zeros.
struct Attr([u64; 16]);

impl Attr {
    fn new() -> Self {
        Self([0; 16])
    }
    fn u32(mut self, at: usize, value: u32) -> Self {
        self.0[at / 8] |= u64::from(value) << (8 * (at % 8));
        self
    }
    fn pointer<T>(mut self, at: usize, value: *const T) -> Self {
        self.0[at / 8] = value as u64;
        self
    }
    /// # Safety
    /// What the pointers in it point at lives through the call.
    unsafe fn call(&mut self, command: libc::c_long) -> io::Result<i32> {
        // SAFETY: the attribute is 128 bytes long; the rest is promised by the caller.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), size_of_val(&self.0)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
    }
}

/// One instruction.
const fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> u64 {
    code as u64 | (dst as u64) << 8 | (src as u64) << 12 | (off as u16 as u64) << 16 | (imm as u32 as u64) << 32
}

/// Whether this process may make BPF maps and programs.
pub fn permitted() -> bool {
    let attr = Attr::new().u32(0, MAP_TYPE_RINGBUF).u32(12, 4096);
    // SAFETY: no pointers.
    match unsafe { { attr }.call(MAP_CREATE) } {
        Ok(fd) => {
            // SAFETY: just returned.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            true
        }
        Err(_) => false,
    }
}

impl Ring {
    pub fn new() -> Self {
        let size = 1 << 16;
        let mut attr = Attr::new().u32(0, MAP_TYPE_RINGBUF).u32(12, size);
        // SAFETY: no pointers; the descriptor is new.
        let map = unsafe { OwnedFd::from_raw_fd(attr.call(MAP_CREATE).unwrap()) };
        const SKIP: i32 = -(ENTRY as i32);
        let program = [
            // bpf_xdp_load_bytes(ctx, 0, fp - ENTRY, ENTRY)
            insn(0xb7, 2, 0, 0, 0),
            insn(0xbf, 3, 10, 0, 0),
            insn(0x07, 3, 0, 0, SKIP),
            insn(0xb7, 4, 0, 0, ENTRY as i32),
            insn(0x85, 0, 0, 0, 189),
            insn(0x55, 0, 0, 7, 0),
            // bpf_ringbuf_output(map, fp - ENTRY, ENTRY, 0)
            insn(0x18, 1, 1, 0, map.as_raw_fd()),
            0,
            insn(0xbf, 2, 10, 0, 0),
            insn(0x07, 2, 0, 0, SKIP),
            insn(0xb7, 3, 0, 0, ENTRY as i32),
            insn(0xb7, 4, 0, 0, 0),
            insn(0x85, 0, 0, 0, 130),
            // return the result
            insn(0x95, 0, 0, 0, 0),
        ];
        let mut log = vec![0_u8; 65536];
        let mut attr = Attr::new()
            .u32(0, PROG_TYPE_XDP)
            .u32(4, program.len() as u32)
            .pointer(8, program.as_ptr())
            .pointer(16, c"Apache-2.0".as_ptr())
            .u32(24, 1)
            .u32(28, log.len() as u32)
            .pointer(32, log.as_mut_ptr());
        // SAFETY: program, licence and log live through the call.
        let loaded = unsafe { attr.call(PROG_LOAD) };
        let fd = loaded.unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&log)));
        // SAFETY: just returned.
        Self { map, size, program: unsafe { OwnedFd::from_raw_fd(fd) } }
    }

    /// Has the kernel write `bytes`, filled up with zeros to [`ENTRY`]; `false` when the ring is full.
    pub fn try_output(&self, bytes: &[u8]) -> bool {
        assert!(bytes.len() <= ENTRY);
        let mut packet = [0_u8; ENTRY];
        packet[..bytes.len()].copy_from_slice(bytes);
        let mut attr =
            Attr::new().u32(0, self.program.as_raw_fd() as u32).u32(8, ENTRY as u32).pointer(16, packet.as_ptr()).u32(32, 1);
        // SAFETY: the packet lives through the call, which writes nothing but the attribute.
        unsafe { attr.call(PROG_TEST_RUN) }.unwrap();
        attr.0[0] >> 32 == 0
    }

    pub fn output(&self, bytes: &[u8]) {
        assert!(self.try_output(bytes), "the ring is full");
    }
}
