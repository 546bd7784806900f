//! libfide: the C interface. What each function does is said once, in `include/fide.h`; what is said here is how.
//!
//! Every function passes through [`guard`]: a panic becomes `FIDE_EINTERNAL` and never unwinds into C.

mod abi;
mod group;
mod text;

pub use abi::*;
pub use group::*;

use fide_client::wire::verdict::VerdictId;
use fide_client::{Client, Error, Event, Monitored, Options, Progress, Resources, monotonic_ns};
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use text::{Held, remember};

/// A handle: `struct fide` of the header.
pub struct Handle {
    client: Client,
    node: CString,
    callbacks: Mutex<(Callbacks, User)>,
}

/// What the application wants handed back.
#[derive(Clone, Copy)]
struct User(*mut c_void);

// SAFETY: never followed here; the application promises that its callbacks may use it on the threads that dispatch.
unsafe impl Send for User {}

/// What went wrong in a call: an error of the client, or of the caller.
enum Failure {
    Client(Error),
    Caller(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Client(error)
    }
}

fn caller(what: &str) -> Failure {
    Failure::Caller(what.to_owned())
}

/// The error code of a client's error.
fn code(error: &Error) -> c_int {
    -c_int::from(error.code() as u8)
}

/// Runs a call; turns its failure, or its panic, into a code and this thread's last error text.
fn guard(call: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    // What a panicking call leaves behind is behind the client's own locks, which are made for that.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => value,
        Ok(Err(Failure::Client(error))) => {
            remember(&error.to_string());
            code(&error)
        }
        Ok(Err(Failure::Caller(what))) => {
            remember(&what);
            FIDE_EINVAL
        }
        Err(panic) => {
            let what = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
            let what = what.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            remember(&format!("a bug in libfide, please report it: {what}"));
            FIDE_EINTERNAL
        }
    }
}

/// # Safety
/// `f` is NULL or a handle from `fide_open` that was not closed.
unsafe fn handle<'a>(f: *const Handle) -> Result<&'a Handle, Failure> {
    // SAFETY: promised by the caller; handles are only ever used by shared reference.
    unsafe { f.as_ref() }.ok_or_else(|| caller("the handle is NULL"))
}

/// # Safety
/// `text` is NULL or a string that ends with a zero and stays unchanged meanwhile.
unsafe fn string<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::Caller(format!("{what} is NULL")));
    }
    // SAFETY: not NULL, and the rest is promised by the caller.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Failure::Caller(format!("{what} is not UTF-8")))
}

fn timeout(timeout_ms: c_int) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

/// # Safety
/// As [`fide_open_with`].
unsafe fn open(options: Options, out: *mut *mut Handle) -> Result<c_int, Failure> {
    let client = Client::open_with(options)?;
    let node = CString::new(client.agent().node.as_str()).unwrap_or_default();
    let handle = Handle { client, node, callbacks: Mutex::new((Callbacks::default(), User(std::ptr::null_mut()))) };
    // SAFETY: the caller checked that it is not NULL, and the application promises that it may be written.
    unsafe { out.write(Box::into_raw(Box::new(handle))) };
    Ok(FIDE_OK)
}

fn path(bytes: &CStr) -> PathBuf {
    OsStr::from_bytes(bytes.to_bytes()).into()
}

/// See fide.h.
///
/// # Safety
/// `path` is NULL or a string; `out` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_open(socket: *const c_char, out: *mut *mut Handle) -> c_int {
    let options = FideOptions { path: socket, ..FideOptions::default() };
    // SAFETY: promised by the caller.
    unsafe { fide_open_with(&raw const options, out) }
}

/// See fide.h.
///
/// # Safety
/// `options` is NULL or points at as many bytes as its first field says, and its path is NULL or a string; `out` is NULL
/// or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_open_with(options: *const FideOptions, out: *mut *mut Handle) -> c_int {
    guard(|| {
        if out.is_null() {
            return Err(caller("there is nowhere to store the handle: out is NULL"));
        }
        // SAFETY: not NULL; may be written, as the caller promises.
        unsafe { out.write(std::ptr::null_mut()) };
        let given = match options.is_null() {
            true => FideOptions::default(),
            // SAFETY: promised by the caller.
            false => unsafe { read_sized(options) }?,
        };
        if given.flags & !FIDE_OPEN_SOCKET_ONLY != 0 {
            return Err(Failure::Caller(format!("this library knows no flags {:#x}", given.flags & !FIDE_OPEN_SOCKET_ONLY)));
        }
        let mut options = Options { socket_only: given.flags & FIDE_OPEN_SOCKET_ONLY != 0, ..Options::default() };
        if !given.path.is_null() {
            // SAFETY: not NULL; a string, as the caller promises.
            options.path = Some(path(unsafe { CStr::from_ptr(given.path) }));
        }
        if given.answer_timeout_ns != 0 {
            options.answer_timeout = Duration::from_nanos(given.answer_timeout_ns);
        }
        // SAFETY: `out` was checked.
        unsafe { open(options, out) }
    })
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or a handle that no other call uses now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_close(f: *mut Handle) -> c_int {
    guard(|| {
        if f.is_null() {
            return Err(caller("the handle is NULL"));
        }
        // SAFETY: it was made by Box::into_raw in `open`, and this is the last use of it.
        drop(unsafe { Box::from_raw(f) });
        Ok(FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_node(f: *const Handle) -> *const c_char {
    // SAFETY: promised by the caller.
    unsafe { f.as_ref() }.map_or(std::ptr::null(), |h| h.node.as_ptr())
}

/// The C form of what was granted.
fn granted(monitored: &Monitored) -> FideMonitored {
    FideMonitored {
        size: size_of::<FideMonitored>() as u32,
        node: monitored.subject.node,
        app: monitored.subject.app,
        pbsize: monitored.granted.pbsize,
        timeout_ns: u64::try_from(monitored.granted.timeout.as_nanos()).unwrap_or(u64::MAX),
        alive: monitored.alive.into(),
        state: monitored.state.map_or(0, |state| state as u32),
        cause: monitored.end.map_or(0, |(cause, _)| cause as u32),
        code: monitored.end.map_or(0, |(_, code)| code),
    }
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle, `target` NULL or a string, `wanted` NULL or as long as it says, `out` NULL or as long as
/// it says and writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_monitor(
    f: *mut Handle,
    target: *const c_char,
    wanted: *const FideResources,
    out: *mut FideMonitored,
) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let (h, target) = unsafe { (handle(f)?, string(target, "the target")?) };
        let wanted = match wanted.is_null() {
            true => FideResources::default(),
            // SAFETY: promised by the caller.
            false => unsafe { read_sized(wanted) }?,
        };
        if !out.is_null() {
            // SAFETY: promised by the caller. Checked before anything is asked for.
            unsafe { check_size(out.cast_const()) }?;
        }
        let wanted = Resources { pbsize: wanted.pbsize, timeout: Duration::from_nanos(wanted.timeout_ns) };
        let monitored = h.client.monitor(target, wanted)?;
        if !out.is_null() {
            // SAFETY: promised by the caller.
            unsafe { write_sized(out, granted(&monitored)) }?;
        }
        Ok(FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle, `target` NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_unmonitor(f: *mut Handle, target: *const c_char) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let (h, target) = unsafe { (handle(f)?, string(target, "the target")?) };
        h.client.unmonitor(target)?;
        Ok(FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle, `name` NULL or a string, `app` and `granted` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_join(f: *mut Handle, name: *const c_char, pbsize: u32, app: *mut u32, granted: *mut u32) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let (h, name) = unsafe { (handle(f)?, string(name, "the name")?) };
        let (number, size) = h.client.join(name, pbsize)?;
        for (to, value) in [(app, number), (granted, size)] {
            if !to.is_null() {
                // SAFETY: not NULL; writable, as the caller promises.
                unsafe { to.write(value) };
            }
        }
        Ok(FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_quit(f: *mut Handle) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        unsafe { handle(f) }?.client.quit()?;
        Ok(FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle, `message` NULL or `len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_piggyback(f: *mut Handle, message: *const c_void, len: usize) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let h = unsafe { handle(f) }?;
        if message.is_null() {
            return Err(caller("the message is NULL"));
        }
        // Before a slice is made of it: what is longer than half the address space may not be one.
        let limit = h.client.pbsize();
        if len > limit && limit != 0 {
            return Err(Error::TooLarge { size: len, limit }.into());
        }
        let len = len.min(fide_wire::PIGGYBACK_MAX + 1);
        // SAFETY: not NULL; that many bytes are readable, as the caller promises.
        h.client.piggyback(unsafe { std::slice::from_raw_parts(message.cast(), len) })?;
        Ok(FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle, `ports` NULL or `count` readable numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_end_connections(f: *mut Handle, ports: *const u16, count: usize) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let h = unsafe { handle(f) }?;
        if ports.is_null() && count > 0 {
            return Err(caller("there are no ports: ports is NULL"));
        }
        if count > fide_wire::control::END_CONNECTIONS_PORTS_MAX {
            return Err(caller("at most 16 ports are those of a process"));
        }
        // SAFETY: not NULL, or empty; that many are readable, as the caller promises.
        let ports = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(ports, count) } };
        h.client.end_connections(ports)?;
        Ok(FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle, `out` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_progress_open(f: *mut Handle, limit_ns: u64, out: *mut *mut Progress) -> c_int {
    guard(|| {
        if out.is_null() {
            return Err(caller("there is nowhere to store the counter: out is NULL"));
        }
        // SAFETY: not NULL; may be written, as the caller promises.
        unsafe { out.write(std::ptr::null_mut()) };
        // SAFETY: promised by the caller.
        let progress = unsafe { handle(f) }?.client.progress(Duration::from_nanos(limit_ns))?;
        // SAFETY: as above.
        unsafe { out.write(Box::into_raw(Box::new(progress))) };
        Ok(FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle, `progress` NULL or a counter that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_progress_limit(f: *mut Handle, progress: *const Progress, limit_ns: u64) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let (h, progress) = unsafe { (handle(f)?, progress.as_ref()) };
        let progress = progress.ok_or_else(|| caller("the counter is NULL"))?;
        h.client.set_progress_limit(progress, Duration::from_nanos(limit_ns))?;
        Ok(FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `progress` is NULL or a counter that no other call uses now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_progress_close(progress: *mut Progress) -> c_int {
    guard(|| {
        if progress.is_null() {
            return Err(caller("the counter is NULL"));
        }
        // SAFETY: it was made by Box::into_raw in `fide_progress_open`, and this is the last use of it.
        drop(unsafe { Box::from_raw(progress) });
        Ok(FIDE_OK)
    })
}

/// See fide.h. Not guarded: it may run in a signal handler, and does nothing that could panic.
///
/// # Safety
/// `progress` is NULL or a counter that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_progress_tick(progress: *const Progress) {
    // SAFETY: promised by the caller.
    if let Some(progress) = unsafe { progress.as_ref() } {
        progress.tick();
    }
}

/// See fide.h. Not guarded, as [`fide_progress_tick`].
///
/// # Safety
/// `progress` is NULL or a counter that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_progress_begin(progress: *const Progress) {
    // SAFETY: promised by the caller.
    if let Some(progress) = unsafe { progress.as_ref() } {
        progress.begin();
    }
}

/// See fide.h. Not guarded, as [`fide_progress_tick`].
///
/// # Safety
/// `progress` is NULL or a counter that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_progress_end(progress: *const Progress) {
    // SAFETY: promised by the caller.
    if let Some(progress) = unsafe { progress.as_ref() } {
        progress.end();
    }
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle, `name` NULL or a string, `reason` NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_report(f: *mut Handle, name: *const c_char, hung: c_int, reason: *const c_char) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let (h, name) = unsafe { (handle(f)?, string(name, "the name")?) };
        let reason = match reason.is_null() {
            true => "",
            // SAFETY: promised by the caller.
            false => unsafe { string(reason, "the reason") }?,
        };
        h.client.report(name, hung != 0, reason)?;
        Ok(FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle, `target` NULL or a string, `left_ns` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_maintenance(f: *mut Handle, target: *const c_char, left_ns: *mut u64) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let (h, target) = unsafe { (handle(f)?, string(target, "the target")?) };
        let maintenance = h.client.maintenance(target)?;
        if !left_ns.is_null() {
            // SAFETY: promised by the caller.
            unsafe { left_ns.write(maintenance.as_ref().map_or(0, |m| m.left_ns)) };
        }
        Ok(c_int::from(maintenance.is_some()))
    })
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle, `peer` NULL or a string, `checked` NULL or as long as it says and writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_check(
    f: *mut Handle,
    peer: *const c_char,
    since_ns: u64,
    deadline_ns: u64,
    wait_ns: u64,
    checked: *mut FideChecked,
) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let (h, peer) = unsafe { (handle(f)?, string(peer, "the peer")?) };
        if !checked.is_null() {
            // SAFETY: promised by the caller. Checked before anything is asked for.
            unsafe { check_size(checked.cast_const()) }?;
        }
        let found = h.client.check(peer, since_ns, deadline_ns, Duration::from_nanos(wait_ns))?;
        if !checked.is_null() {
            // SAFETY: promised by the caller.
            unsafe { write_sized(checked, text::checked(&found)) }?;
        }
        Ok(c_int::from(found.outcome as u8))
    })
}

/// # Safety
/// `fd` is a descriptor of the caller's that stays open meanwhile, or none.
unsafe fn descriptor<'a>(fd: c_int) -> Result<BorrowedFd<'a>, Failure> {
    if fd < 0 {
        return Err(caller("the descriptor is negative"));
    }
    // SAFETY: not -1; the rest is promised by the caller, and what is no open descriptor is an error of the first call on it.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle, `fd` stays open meanwhile, `heartbeat` is NULL or `len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_send_heartbeat(
    f: *mut Handle,
    fd: c_int,
    heartbeat: *const c_void,
    len: usize,
    valid_ns: u64,
    wait_ns: u64,
) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let (h, fd) = unsafe { (handle(f)?, descriptor(fd)?) };
        if heartbeat.is_null() || len > isize::MAX as usize {
            return Err(caller("the heartbeat is NULL, or longer than memory"));
        }
        // SAFETY: not NULL; that many bytes are readable, as the caller promises.
        let heartbeat = unsafe { std::slice::from_raw_parts(heartbeat.cast(), len) };
        h.client.send_heartbeat(fd, heartbeat, valid_ns, Duration::from_nanos(wait_ns))?;
        Ok(FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `fd` stays open meanwhile, `known_ns` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_sent(fd: c_int, wait_ns: u64, known_ns: *mut u64) -> c_int {
    guard(|| {
        if known_ns.is_null() {
            return Err(caller("there is nowhere to store the time: known_ns is NULL"));
        }
        // SAFETY: promised by the caller.
        let known = fide_client::sent(unsafe { descriptor(fd) }?, Duration::from_nanos(wait_ns))?;
        // SAFETY: not NULL; writable, as the caller promises.
        unsafe { known_ns.write(known) };
        Ok(FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_extend(f: *mut Handle, known_ns: u64, valid_ns: u64) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        unsafe { handle(f) }?.client.extend(known_ns, valid_ns)?;
        Ok(FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_begin_anew(f: *mut Handle, valid_ns: u64) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        unsafe { handle(f) }?.client.begin_anew(valid_ns)?;
        Ok(FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_pbsize(f: *const Handle) -> c_int {
    // SAFETY: promised by the caller. No piggyback is larger than an int.
    guard(|| Ok(unsafe { handle(f) }?.client.pbsize() as c_int))
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_fd(f: *const Handle) -> c_int {
    // SAFETY: promised by the caller.
    guard(|| Ok(unsafe { handle(f) }?.client.as_raw_fd()))
}

/// # Safety
/// `f` is NULL or an open handle, `event` NULL or as long as it says and writable.
unsafe fn next(
    f: *mut Handle,
    event: *mut FideEvent,
    look: impl FnOnce(&Client) -> Result<Option<Event>, Error>,
) -> Result<c_int, Failure> {
    // SAFETY: promised by the caller.
    let h = unsafe { handle(f) }?;
    if event.is_null() {
        return Err(caller("there is nowhere to store the event: it is NULL"));
    }
    // SAFETY: promised by the caller. Checked before an event is taken, so that none is lost.
    unsafe { check_size(event.cast_const()) }?;
    let Some(found) = look(&h.client)? else { return Ok(0) };
    // SAFETY: promised by the caller.
    unsafe { write_sized(event, Held::new(found).keep_for_this_thread()) }?;
    Ok(1)
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle, `event` NULL or as long as it says and writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_next_event(f: *mut Handle, event: *mut FideEvent, timeout_ms: c_int) -> c_int {
    // SAFETY: promised by the caller.
    guard(|| unsafe { next(f, event, |client| client.poll(timeout(timeout_ms))) })
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle, `event` NULL or as long as it says and writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_busy_poll(f: *mut Handle, event: *mut FideEvent) -> c_int {
    // SAFETY: promised by the caller.
    guard(|| unsafe { next(f, event, Client::try_next) })
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle; `callbacks` is NULL or as long as it says, with functions that may be called with `user`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_set_callbacks(f: *mut Handle, callbacks: *const Callbacks, user: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let h = unsafe { handle(f) }?;
        let callbacks = match callbacks.is_null() {
            true => Callbacks::default(),
            // SAFETY: promised by the caller.
            false => unsafe { read_sized(callbacks) }?,
        };
        *h.callbacks.lock().unwrap_or_else(PoisonError::into_inner) = (callbacks, User(user));
        Ok(FIDE_OK)
    })
}

/// Hands events on to the application's functions.
struct Dispatch {
    f: *mut Handle,
    callbacks: Callbacks,
    user: User,
}

impl fide_client::Callbacks for Dispatch {
    fn on_event(&mut self, event: &Event) {
        let held = Held::new(event.clone());
        let event = held.event();
        if let Some(callback) = self.callbacks.for_kind(event.kind) {
            // SAFETY: the application gave this function to be called with this handle and this pointer; the event lives
            // until it returns.
            unsafe { callback(self.f, &raw const event, self.user.0) };
        }
    }
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle, and what [`fide_set_callbacks`] was promised holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_dispatch(f: *mut Handle, timeout_ms: c_int) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let h = unsafe { handle(f) }?;
        let (callbacks, user) = *h.callbacks.lock().unwrap_or_else(PoisonError::into_inner);
        let count = h.client.dispatch(&mut Dispatch { f, callbacks, user }, timeout(timeout_ms))?;
        Ok(c_int::try_from(count).unwrap_or(c_int::MAX))
    })
}

/// See fide.h.
///
/// # Safety
/// `f` is NULL or an open handle; `resumed` is NULL or may be called with `user`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_reconnect(f: *mut Handle, resumed: Option<Resumed>, user: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let done = unsafe { handle(f) }?.client.reconnect()?;
        let tell = |target: Option<&str>, error: Option<&Error>, now: Option<&FideMonitored>| {
            let name = target.map(|t| CString::new(t).unwrap_or_default());
            let name = name.as_ref().map_or(std::ptr::null(), |n| n.as_ptr());
            if let Some(error) = error {
                remember(&error.to_string());
            }
            if let Some(resumed) = resumed {
                let now = now.map_or(std::ptr::null(), std::ptr::from_ref);
                // SAFETY: the application gave this function to be called with this pointer; the rest lives until it returns.
                unsafe { resumed(name, error.map_or(FIDE_OK, code), now, user) };
            }
        };
        if let Some(joined) = &done.joined {
            tell(None, joined.as_ref().err(), None);
        }
        for (target, answer) in &done.targets {
            tell(Some(target), answer.as_ref().err(), answer.as_ref().ok().map(granted).as_ref());
        }
        Ok(c_int::try_from(done.targets.len()).unwrap_or(c_int::MAX))
    })
}

/// See fide.h.
#[unsafe(no_mangle)]
pub extern "C" fn fide_strerror(error: c_int) -> *const c_char {
    text::strerror(error).as_ptr()
}

/// See fide.h.
#[unsafe(no_mangle)]
pub extern "C" fn fide_last_error_text() -> *const c_char {
    text::last_error()
}

/// See fide.h.
#[unsafe(no_mangle)]
pub extern "C" fn fide_cause_name(cause: u32) -> *const c_char {
    text::cause_name(cause).as_ptr()
}

/// See fide.h.
#[unsafe(no_mangle)]
pub extern "C" fn fide_grade_name(grade: u32) -> *const c_char {
    text::grade_name(grade).as_ptr()
}

/// See fide.h.
///
/// # Safety
/// `text` is NULL or `len` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_id_text(id: u64, text: *mut c_char, len: usize) -> c_int {
    guard(|| {
        if text.is_null() {
            return Err(caller("there is nowhere to write the id: text is NULL"));
        }
        let id = format!("{}\0", VerdictId(id));
        if id.len() > len {
            return Err(Error::TooLarge { size: id.len(), limit: len }.into());
        }
        // SAFETY: not NULL and long enough, as just checked; writable, as the caller promises.
        unsafe { text.cast::<u8>().copy_from_nonoverlapping(id.as_ptr(), id.len()) };
        Ok(FIDE_OK)
    })
}

/// See fide.h.
#[unsafe(no_mangle)]
pub extern "C" fn fide_now_ns() -> u64 {
    monotonic_ns()
}

/// See fide.h.
#[unsafe(no_mangle)]
pub extern "C" fn fide_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("a version has no zeros"),
    };
    VERSION.as_ptr()
}

/// See fide.h.
#[unsafe(no_mangle)]
pub extern "C" fn fide_abi_version() -> u32 {
    FIDE_ABI_VERSION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_code_and_a_text() {
        assert_eq!(guard(|| panic!("on {}", "purpose")), FIDE_EINTERNAL);
        // SAFETY: always a string.
        let text = unsafe { CStr::from_ptr(fide_last_error_text()) }.to_str().unwrap();
        assert_eq!(text, "a bug in libfide, please report it: on purpose");
        assert_eq!(guard(|| Ok(7)), 7);
    }

    #[test]
    fn a_panic_with_something_that_is_no_text_is_caught_too() {
        assert_eq!(guard(|| std::panic::panic_any(3)), FIDE_EINTERNAL);
    }
}
