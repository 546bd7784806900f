//! The server's calls of the C library that pass the gate: `accept4`, `read`, `write`, `writev`, `close`, and `epoll_wait`, before which a turn of its loop has ended.

use crate::gate::Gate;
use crate::interpose::{self, Replacement};
use crate::reads::Reads;
use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

static GATE: OnceLock<(&'static Gate, fn())> = OnceLock::new();

thread_local! {
    /// This thread runs the server's event loop.
    static LOOPS: Cell<bool> = const { Cell::new(false) };
    /// The server has said that a turn ends; it does not where it looks at its clients within a command.
    static SLEEPS: Cell<bool> = const { Cell::new(false) };
    static READS: RefCell<Reads> = RefCell::new(Reads::default());
}

/// The server says that a turn of its loop ends.
pub fn sleeps() {
    SLEEPS.set(true);
}

/// What this turn of the server's event loop shows to whom; for its thread.
pub fn with_reads<R>(work: impl FnOnce(&mut Reads) -> R) -> R {
    READS.with_borrow_mut(work)
}

/// From now on, all that this server writes to clients passes the gate, and `on_turn` is called when a turn has ended that the group has to be asked about.
/// Called by the server's main thread.
///
/// # Errors
/// In words: this server does not call the library as it must for that.
pub fn pass_through(gate: &'static Gate, on_turn: fn()) -> Result<(), String> {
    stay()?;
    LOOPS.set(true);
    GATE.get_or_init(|| (gate, on_turn));
    // SAFETY: a function of a module that stays; it takes no lock and allocates nothing.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    adopt(gate);
    let server = [
        Replacement { name: c"write", function: on_write as *const c_void },
        Replacement { name: c"writev", function: on_writev as *const c_void },
        Replacement { name: c"close", function: on_close as *const c_void },
        Replacement { name: c"epoll_wait", function: on_epoll_wait as *const c_void },
        Replacement { name: c"read", function: on_read as *const c_void },
        Replacement { name: c"accept4", function: on_accept4 as *const c_void },
        Replacement { name: c"accept", function: on_accept as *const c_void },
    ];
    // SAFETY: functions of the same types, in a module that stays; the server loads modules before it has other threads that do this.
    let written = unsafe { interpose::replace(&|name| name.is_empty(), &server) };
    // What is encrypted leaves through the library that encrypts.
    // SAFETY: as above.
    unsafe { interpose::replace(&|name| name.starts_with("libcrypto.so") || name.starts_with("libssl.so"), &server[..5]) };
    for (replacement, written) in server[..4].iter().zip(&written) {
        if *written == 0 {
            let name = replacement.name.to_string_lossy();
            return Err(format!(
                "this server calls {name} in a way of its own (a static program?), so that its replies could not be kept back"
            ));
        }
    }
    if written[5] + written[6] == 0 {
        return Err("this server accepts clients in a way of its own, so that their replies could not be kept back".into());
    }
    Ok(())
}

/// This module is in the program until it ends, even if the server closes it because something else fails later: its functions are called.
fn stay() -> Result<(), String> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: an address of this module; the name that is found lives as long as the module.
    let is_there = unsafe {
        libc::dladdr(stay as *const c_void, info.as_mut_ptr()) != 0 && {
            let name = info.assume_init().dli_fname;
            !libc::dlopen(name, libc::RTLD_NOW | libc::RTLD_NODELETE | libc::RTLD_NOLOAD).is_null()
        }
    };
    is_there.then_some(()).ok_or_else(|| "the module is not found among what is loaded".into())
}

/// In a child of the server, which has no thread of the group, what it writes leaves.
extern "C" fn in_child() {
    if let Some((gate, _)) = GATE.get() {
        gate.let_pass();
    }
}

/// Connections that were accepted before.
fn adopt(gate: &Gate) {
    let fds = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    for fd in fds.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        let mut address = std::mem::MaybeUninit::<libc::sockaddr_storage>::uninit();
        let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        // SAFETY: room for any address, and its length.
        let is_connected = unsafe { libc::getpeername(fd, address.as_mut_ptr().cast(), &raw mut len) } == 0;
        // What this process connected to itself (a supervisor's socket) is no client; it is not told apart, and loses nothing by waiting for a turn.
        if is_connected {
            gate.accepted(fd);
            // Nobody knows what it has asked for.
            with_reads(|reads| reads.is_answered_later(fd));
        }
    }
}

fn gate() -> &'static Gate {
    GATE.get().expect("calls are replaced behind it").0
}

fn full() -> isize {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = libc::EAGAIN };
    -1
}

unsafe extern "C" fn on_write(fd: c_int, bytes: *const c_void, len: usize) -> isize {
    // SAFETY: the caller's bytes.
    let parts = [unsafe { part(bytes, len) }];
    // SAFETY: as the caller's.
    gate().write(fd, &parts, || unsafe { libc::write(fd, bytes, len) }).unwrap_or_else(full)
}

/// # Safety
/// As many bytes as said are there.
unsafe fn part<'a>(bytes: *const c_void, len: usize) -> &'a [u8] {
    // SAFETY: as the caller says; nothing may be anywhere.
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(bytes.cast(), len) } }
}

unsafe extern "C" fn on_writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize {
    /// More are another call: the server goes on where this one has ended.
    const MAX: usize = 64;
    let given = usize::try_from(count).unwrap_or(0).min(MAX);
    let mut slices: [&[u8]; MAX] = [&[]; MAX];
    for (at, slice) in slices[..given].iter_mut().enumerate() {
        // SAFETY: the caller's array and its bytes.
        *slice = unsafe {
            let one = &*parts.add(at);
            part(one.iov_base, one.iov_len)
        };
    }
    // SAFETY: as the caller's.
    gate().write(fd, &slices[..given], || unsafe { libc::writev(fd, parts, count) }).unwrap_or_else(full)
}

unsafe extern "C" fn on_close(fd: c_int) -> c_int {
    if gate().closes(fd) {
        return 0;
    }
    // SAFETY: as the caller's.
    unsafe { libc::close(fd) }
}

/// What is executed behind this is for that client.
unsafe extern "C" fn on_read(fd: c_int, bytes: *mut c_void, len: usize) -> isize {
    if LOOPS.get() {
        with_reads(|reads| reads.reads_from(fd));
    }
    // SAFETY: as the caller's.
    unsafe { libc::read(fd, bytes, len) }
}

fn accepted(fd: c_int) -> c_int {
    if fd < 0 || gate().accepted(fd) {
        // Others than the loop's thread do not accept clients.
        if LOOPS.get() {
            with_reads(|reads| reads.accepted(fd));
        }
        return fd;
    }
    // SAFETY: it is ours, and nobody knows it yet.
    unsafe {
        libc::close(fd);
        *libc::__errno_location() = libc::EMFILE;
    }
    -1
}

unsafe extern "C" fn on_accept4(fd: c_int, address: *mut libc::sockaddr, len: *mut libc::socklen_t, flags: c_int) -> c_int {
    // SAFETY: as the caller's.
    accepted(unsafe { libc::accept4(fd, address, len, flags) })
}

unsafe extern "C" fn on_accept(fd: c_int, address: *mut libc::sockaddr, len: *mut libc::socklen_t) -> c_int {
    // SAFETY: as the caller's.
    accepted(unsafe { libc::accept(fd, address, len) })
}

unsafe extern "C" fn on_epoll_wait(epoll: c_int, events: *mut libc::epoll_event, max: c_int, timeout_ms: c_int) -> c_int {
    if LOOPS.get()
        && let Some((gate, on_turn)) = GATE.get()
    {
        let is_within = !SLEEPS.take();
        let is_asked = with_reads(|reads| {
            if is_within {
                reads.is_within_a_command();
            }
            gate.end_turn(reads)
        });
        if is_asked {
            on_turn();
        }
    }
    // SAFETY: as the caller's.
    let ready = unsafe { libc::epoll_wait(epoll, events, max, timeout_ms) };
    match GATE.get() {
        Some((gate, _)) if LOOPS.get() && gate.is_behind() => wait_for_the_group(gate, epoll, events, max, ready),
        _ => ready,
    }
}

/// While the group has more to decide than clients should add to, those that are owed replies are not read from: what comes of them stays in their sockets,
/// so that this server's memory does not grow and everybody else is served.
fn wait_for_the_group(gate: &Gate, epoll: c_int, events: *mut libc::epoll_event, max: c_int, ready: c_int) -> c_int {
    /// Timers of the server run after this at the latest.
    const MAX: Duration = Duration::from_millis(5);
    const STEP: Duration = Duration::from_micros(200);
    let began = Instant::now();
    let mut ready = ready;
    while let Ok(count @ 1..) = usize::try_from(ready) {
        // SAFETY: so many were written.
        let found = unsafe { std::slice::from_raw_parts_mut(events, count) };
        let mut kept = 0;
        for at in 0..count {
            let mut event = found[at];
            let is_over = event.events & (libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0;
            // The server keeps the descriptor there, as the lower half.
            if !is_over && event.events & libc::EPOLLIN as u32 != 0 && gate.must_wait(event.u64 as u32 as i32) {
                event.events &= !(libc::EPOLLIN as u32);
            }
            if event.events != 0 {
                found[kept] = event;
                kept += 1;
            }
        }
        if kept > 0 || began.elapsed() >= MAX {
            return kept as c_int;
        }
        std::thread::sleep(STEP);
        // SAFETY: as the caller's.
        ready = unsafe { libc::epoll_wait(epoll, events, max, 0) };
    }
    ready
}
