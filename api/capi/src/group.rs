//! Groups: a handle that any thread may use, over the client's, which one thread at a time does.

use crate::abi::{FideGroupEvent, FideGroupOptions, GroupKind, GroupRefusal, check_size, read_sized, write_sized};
use crate::text::c_string;
use crate::{Failure, caller, guard, path, string, timeout};
use fide_client::group::{Event, Group, Options, Refusal};
use fide_client::{Error, monotonic_ns};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A handle: `struct fide_group` of the header.
pub struct GroupHandle {
    group: Mutex<Group>,
    /// The descriptor of `group`, which stays.
    fd: RawFd,
    client: u64,
}

impl GroupHandle {
    fn lock(&self) -> MutexGuard<'_, Group> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An event, and what its C form borrows from.
struct Held {
    event: Event,
    why: CString,
    members: Vec<u32>,
}

thread_local! {
    /// What the last event of this thread borrows from.
    static LAST: RefCell<Option<Held>> = const { RefCell::new(None) };
}

impl Held {
    fn new(event: Event) -> Self {
        let why = match &event {
            Event::Refused { why, .. } => c_string(why),
            _ => CString::default(),
        };
        let members = match &event {
            Event::Members(ids) => ids.iter().map(|id| u32::from(*id)).collect(),
            _ => Vec::new(),
        };
        Self { event, why, members }
    }

    /// The C form. What it points at is on the heap, and lives as long as `self`.
    fn event(&self, client: u64) -> FideGroupEvent {
        let mut c = FideGroupEvent {
            size: size_of::<FideGroupEvent>() as u32,
            kind: 0,
            index: 0,
            number: 0,
            client: 0,
            generation: 0,
            member: 0,
            leader: 0,
            leader_node: 0,
            stage: 0,
            own: 0,
            refusal: 0,
            fate: 0,
            members_len: 0,
            members: std::ptr::null(),
            why: std::ptr::null(),
            data: std::ptr::null(),
            data_len: 0,
        };
        let data = |bytes: &[u8]| (bytes.as_ptr().cast::<c_void>(), bytes.len() as u64);
        c.kind = match &self.event {
            Event::Entry(entry) => {
                (c.index, c.number, c.client, c.member) = (entry.index, entry.number, entry.client, entry.member.into());
                c.own = u32::from(entry.client == client);
                (c.data, c.data_len) = data(&entry.bytes);
                GroupKind::Entry
            }
            Event::Snapshot { index, bytes } => {
                c.index = *index;
                (c.data, c.data_len) = data(bytes);
                GroupKind::Snapshot
            }
            Event::Standing(s) => {
                (c.stage, c.member, c.leader, c.leader_node) = (s.stage as u32, s.me.into(), s.leader.into(), s.leader_node);
                (c.generation, c.index, c.number) = (s.generation, s.index, s.last_number);
                GroupKind::Standing
            }
            Event::Members(_) => {
                (c.members, c.members_len) = (self.members.as_ptr(), self.members.len() as u32);
                GroupKind::Members
            }
            Event::Refused { number, refusal, .. } => {
                c.number = *number;
                c.refusal = match refusal {
                    Refusal::Invalid => GroupRefusal::Invalid,
                    Refusal::TooLate => GroupRefusal::Late,
                } as u32;
                c.why = self.why.as_ptr();
                GroupKind::Refused
            }
            Event::Overdue { number } => {
                c.number = *number;
                GroupKind::Overdue
            }
            Event::Fate { number, fate } => {
                (c.number, c.fate) = (*number, *fate as u32);
                GroupKind::Fate
            }
        } as u32;
        c
    }

    /// The C form, of which everything is kept until this thread's next event of a group.
    fn keep_for_this_thread(self, client: u64) -> FideGroupEvent {
        let event = self.event(client);
        match LAST.try_with(|last| *last.borrow_mut() = Some(self)) {
            Ok(()) => event,
            // The thread is ending and keeps nothing any more.
            Err(_) => FideGroupEvent {
                members: std::ptr::null(),
                members_len: 0,
                why: std::ptr::null(),
                data: std::ptr::null(),
                data_len: 0,
                ..event
            },
        }
    }
}

/// # Safety
/// `g` is NULL or a handle from `fide_group_open` that was not closed.
unsafe fn handle<'a>(g: *const GroupHandle) -> Result<&'a GroupHandle, Failure> {
    // SAFETY: promised by the caller; handles are only ever used by shared reference.
    unsafe { g.as_ref() }.ok_or_else(|| caller("the group is NULL"))
}

/// # Safety
/// `bytes` is NULL or `len` readable bytes.
unsafe fn slice<'a>(bytes: *const c_void, len: usize, limit: usize, what: &str) -> Result<&'a [u8], Failure> {
    if len > limit {
        return Err(Error::TooLarge { size: len, limit }.into());
    }
    match bytes.is_null() {
        true if len == 0 => Ok(&[]),
        true => Err(Failure::Caller(format!("{what} is NULL"))),
        // SAFETY: not NULL; that many bytes are readable, as the caller promises.
        false => Ok(unsafe { std::slice::from_raw_parts(bytes.cast(), len) }),
    }
}

/// See fide.h.
///
/// # Safety
/// `name` is NULL or a string; `options` is NULL or as long as it says, and its path is NULL or a string; `out` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_open(
    name: *const c_char,
    options: *const FideGroupOptions,
    out: *mut *mut GroupHandle,
) -> c_int {
    guard(|| {
        if out.is_null() {
            return Err(caller("there is nowhere to store the group: out is NULL"));
        }
        // SAFETY: not NULL; may be written, as the caller promises.
        unsafe { out.write(std::ptr::null_mut()) };
        // SAFETY: promised by the caller.
        let name = unsafe { string(name, "the group's name") }?;
        let given = match options.is_null() {
            true => FideGroupOptions::default(),
            // SAFETY: promised by the caller.
            false => unsafe { read_sized(options) }?,
        };
        let mut options = Options { path: None, client: given.client, behind: given.index, last_number: given.last_number };
        if !given.path.is_null() {
            // SAFETY: not NULL; a string, as the caller promises.
            options.path = Some(path(unsafe { CStr::from_ptr(given.path) }));
        }
        let group = Group::open_with(name, options)?;
        let (fd, client) = (group.as_raw_fd(), group.client());
        let handle = GroupHandle { group: Mutex::new(group), fd, client };
        // SAFETY: as above.
        unsafe { out.write(Box::into_raw(Box::new(handle))) };
        Ok(crate::FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `g` is NULL or a handle that no other call uses now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_close(g: *mut GroupHandle) -> c_int {
    guard(|| {
        if g.is_null() {
            return Err(caller("the group is NULL"));
        }
        // SAFETY: it was made by Box::into_raw in `fide_group_open`, and this is the last use of it.
        drop(unsafe { Box::from_raw(g) });
        Ok(crate::FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `g` is NULL or an open group, `value` NULL or `len` readable bytes, `number` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_propose(
    g: *mut GroupHandle,
    value: *const c_void,
    len: usize,
    deadline_ns: u64,
    number: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let (h, value) = unsafe { (handle(g)?, slice(value, len, fide_client::group::VALUE_MAX, "the value")?) };
        let proposed = match deadline_ns {
            0 => h.lock().propose(value)?,
            // Instants are of the same clock.
            _ => {
                let left = Duration::from_nanos(deadline_ns.saturating_sub(monotonic_ns()));
                let now = Instant::now();
                h.lock().propose_by(value, now.checked_add(left).unwrap_or(now))?
            }
        };
        if !number.is_null() {
            // SAFETY: not NULL; writable, as the caller promises.
            unsafe { number.write(proposed) };
        }
        Ok(crate::FIDE_OK)
    })
}

/// A value that is proposed: `struct fide_group_value` of the header.
#[repr(C)]
pub struct FideGroupValue {
    bytes: *const c_void,
    len: usize,
}

/// See fide.h.
///
/// # Safety
/// `g` is NULL or an open group, `values` NULL or `count` values whose bytes are readable, `first`
/// NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_propose_all(
    g: *mut GroupHandle,
    values: *const FideGroupValue,
    count: usize,
    first: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let h = unsafe { handle(g)? };
        if values.is_null() || count == 0 || count > fide_client::group::PENDING_MAX {
            return Err(Failure::Caller(format!("not 1 to {} values", fide_client::group::PENDING_MAX)));
        }
        // SAFETY: not NULL; so many can be read, as the caller promises.
        let values = unsafe { std::slice::from_raw_parts(values, count) };
        // SAFETY: promised by the caller, for each.
        let read = |of: &FideGroupValue| unsafe { slice(of.bytes, of.len, fide_client::group::VALUE_MAX, "a value") };
        let values = values.iter().map(read).collect::<Result<Vec<&[u8]>, Failure>>()?;
        let proposed = h.lock().propose_all(&values)?;
        if !first.is_null() {
            // SAFETY: not NULL; writable, as the caller promises.
            unsafe { first.write(proposed) };
        }
        Ok(crate::FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `g` is NULL or an open group, `event` NULL or as long as it says and writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_next(g: *mut GroupHandle, event: *mut FideGroupEvent, timeout_ms: c_int) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let h = unsafe { handle(g) }?;
        if event.is_null() {
            return Err(caller("there is nowhere to store the event: it is NULL"));
        }
        // SAFETY: promised by the caller. Checked before an event is taken, so that none is lost.
        unsafe { check_size(event.cast_const()) }?;
        let deadline = timeout(timeout_ms).and_then(|wait| Instant::now().checked_add(wait));
        loop {
            if let Some(found) = h.lock().poll(Some(Duration::ZERO))? {
                // SAFETY: promised by the caller.
                unsafe { write_sized(event, Held::new(found).keep_for_this_thread(h.client)) }?;
                return Ok(1);
            }
            // Without the lock, so that others can propose meanwhile.
            if !wait(h.fd, deadline)? {
                return Ok(0);
            }
        }
    })
}

/// Until it is readable, or the deadline has passed (`false`).
fn wait(fd: RawFd, deadline: Option<Instant>) -> Result<bool, Failure> {
    loop {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(false);
        }
        let left_ms = left.map_or(-1, |left| left.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(c_int::MAX));
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, alive through the call.
        match unsafe { libc::poll(&raw mut poll, 1, left_ms) } {
            0 => {}
            n if n > 0 => return Ok(true),
            _ => {
                let source = std::io::Error::last_os_error();
                if source.kind() != std::io::ErrorKind::Interrupted {
                    return Err(Error::System { call: "poll", source }.into());
                }
            }
        }
    }
}

/// See fide.h.
///
/// # Safety
/// `g` is NULL or an open group, `state` NULL or `len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_keep_snapshot(g: *mut GroupHandle, index: u64, state: *const c_void, len: usize) -> c_int {
    guard(|| {
        let limit = fide_client::group::SNAPSHOT_MAX as usize;
        // SAFETY: promised by the caller.
        let (h, state) = unsafe { (handle(g)?, slice(state, len, limit, "the state")?) };
        h.lock().keep_snapshot(index, state)?;
        Ok(crate::FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `g` is NULL or an open group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_ask(g: *mut GroupHandle, number: u64) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        unsafe { handle(g) }?.lock().ask(number)?;
        Ok(crate::FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `g` is NULL or an open group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_reconnect(g: *mut GroupHandle) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        unsafe { handle(g) }?.lock().reconnect()?;
        Ok(crate::FIDE_OK)
    })
}

/// See fide.h.
///
/// # Safety
/// `g` is NULL or an open group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_fd(g: *const GroupHandle) -> c_int {
    // SAFETY: promised by the caller.
    guard(|| Ok(unsafe { handle(g) }?.fd))
}

/// See fide.h.
///
/// # Safety
/// `g` is NULL or an open group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_client(g: *const GroupHandle) -> u64 {
    // SAFETY: promised by the caller.
    unsafe { g.as_ref() }.map_or(0, |h| h.client)
}
