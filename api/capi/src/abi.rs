//! The structures and constants of `fide.h`. That they are the same there is tested by compiling it.

use crate::{Failure, Handle};
use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

/// Grows when something is added to the interface.
pub const FIDE_ABI_VERSION: u32 = 6;
/// Success.
pub const FIDE_OK: c_int = 0;
/// The call makes no sense; the others are the negated numbers of [`fide_wire::control::ErrorCode`].
pub const FIDE_EINVAL: c_int = -(fide_wire::control::ErrorCode::Invalid as c_int);
/// A bug in the library.
pub const FIDE_EINTERNAL: c_int = -127;
/// Take events through a socket.
pub const FIDE_OPEN_SOCKET_ONLY: u32 = 1;

/// `enum fide_event_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// [`fide_client::Event::Failure`].
    Failure = 1,
    /// [`fide_client::Event::Confirmed`].
    Confirmed = 2,
    /// [`fide_client::Event::Monitored`].
    Monitored = 3,
    /// [`fide_client::Event::Host`].
    Host = 4,
    /// [`fide_client::Event::Piggyback`].
    Piggyback = 5,
    /// [`fide_client::Event::TimeoutChanged`].
    TimeoutChanged = 6,
    /// [`fide_client::Event::PiggybackSizeChanged`].
    PbsizeChanged = 7,
    /// [`fide_client::Event::MonitorRequest`].
    MonitorReq = 8,
    /// [`fide_client::Event::Lost`].
    Lost = 9,
    /// [`fide_client::Event::AgentGone`].
    AgentGone = 10,
    /// [`fide_client::Event::Other`].
    Other = 11,
    /// [`fide_client::Event::Hung`].
    Hung = 12,
    /// [`fide_client::Event::Progressing`].
    Progressing = 13,
    /// [`fide_client::Event::Fenced`].
    Fenced = 14,
    /// [`fide_client::Event::Recovered`].
    Recovered = 15,
}

/// `struct fide_event`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FideEvent {
    /// Bytes of it that the application knows.
    pub size: u32,
    /// [`Kind`].
    pub kind: u32,
    /// Number of the cause, 0 for none.
    pub cause: u32,
    /// Number of the grade, 0 for none.
    pub grade: u32,
    /// The node.
    pub node: u32,
    /// The process on it.
    pub app: u32,
    /// The node's incarnation.
    pub incarnation: u32,
    /// As the cause says.
    pub code: i32,
    /// The path it came by.
    pub path: u32,
    /// As in event records.
    pub flags: u32,
    /// The verdict's id.
    pub id: u64,
    /// When it happened.
    pub event_ns: u64,
    /// When it was sent.
    pub sent_ns: u64,
    /// When it was received.
    pub received_ns: u64,
    /// As the kind says.
    pub number: u64,
    /// Borrowed from [`crate::text::Held`].
    pub name: *const c_char,
    /// Borrowed from [`crate::text::Held`].
    pub data: *const c_void,
    /// Bytes of it.
    pub data_len: u64,
}

/// `struct fide_resources`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct FideResources {
    /// Bytes of it that the application knows.
    pub size: u32,
    /// Bytes.
    pub pbsize: u32,
    /// Nanoseconds.
    pub timeout_ns: u64,
}

/// `struct fide_monitored`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct FideMonitored {
    /// Bytes of it that the application knows.
    pub size: u32,
    /// The node.
    pub node: u32,
    /// The process on it.
    pub app: u32,
    /// Bytes.
    pub pbsize: u32,
    /// Nanoseconds.
    pub timeout_ns: u64,
    /// 0 or 1.
    pub alive: u32,
    /// [`fide_client::TargetState`], 0 where the agent does not say.
    pub state: u32,
    /// How the last process of that name ended; 0 if none has.
    pub cause: u32,
    /// Its exit status or signal.
    pub code: i32,
}

/// `struct fide_checked`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FideChecked {
    /// Bytes of it that the application knows.
    pub size: u32,
    /// [`fide_client::CheckOutcome`].
    pub outcome: u32,
    /// Nanoseconds, or 0.
    pub drained_ns: u64,
    /// Nanoseconds, or 0.
    pub lost_ns: u64,
    /// Borrowed from this thread's last check.
    pub why: *const c_char,
    /// Borrowed from this thread's last check, or NULL.
    pub host: *const c_char,
    /// Borrowed from this thread's last check, or NULL.
    pub host_state: *const c_char,
    /// Borrowed from this thread's last check, or NULL.
    pub app_state: *const c_char,
    /// The node, or 0.
    pub node: u32,
    /// Its incarnation, or 0.
    pub incarnation: u32,
    /// Nanoseconds, or 0.
    pub fence_timeout_ns: u64,
    /// 0 or 1.
    pub fenced: u32,
    /// 0.
    pub reserved: u32,
}

/// `struct fide_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FideOptions {
    /// Bytes of it that the application knows.
    pub size: u32,
    /// [`FIDE_OPEN_SOCKET_ONLY`].
    pub flags: u32,
    /// The socket.
    pub path: *const c_char,
    /// Nanoseconds.
    pub answer_timeout_ns: u64,
}

impl Default for FideOptions {
    fn default() -> Self {
        Self { size: size_of::<Self>() as u32, flags: 0, path: std::ptr::null(), answer_timeout_ns: 0 }
    }
}

/// `enum fide_group_event_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum GroupKind {
    /// [`fide_client::group::Event::Entry`].
    Entry = 1,
    /// [`fide_client::group::Event::Snapshot`].
    Snapshot = 2,
    /// [`fide_client::group::Event::Standing`].
    Standing = 3,
    /// [`fide_client::group::Event::Members`].
    Members = 4,
    /// [`fide_client::group::Event::Refused`].
    Refused = 5,
    /// [`fide_client::group::Event::Overdue`].
    Overdue = 6,
    /// [`fide_client::group::Event::Fate`].
    Fate = 7,
    /// What later versions of the client add.
    Other = 8,
}

/// `enum fide_group_refusal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum GroupRefusal {
    /// [`fide_client::group::Refusal::Invalid`].
    Invalid = 1,
    /// [`fide_client::group::Refusal::TooLate`].
    Late = 2,
}

/// `struct fide_group_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FideGroupOptions {
    /// Bytes of it that the application knows.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// The socket.
    pub path: *const c_char,
    /// The client's id, or 0.
    pub client: u64,
    /// Entries read before.
    pub index: u64,
    /// Its last proposal.
    pub last_number: u64,
}

impl Default for FideGroupOptions {
    fn default() -> Self {
        let size = size_of::<Self>() as u32;
        Self { size, reserved: 0, path: std::ptr::null(), client: 0, index: 0, last_number: 0 }
    }
}

/// `struct fide_group_event`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FideGroupEvent {
    /// Bytes of it that the application knows.
    pub size: u32,
    /// [`GroupKind`].
    pub kind: u32,
    /// Of the entry or the snapshot; entries applied here.
    pub index: u64,
    /// Of the proposal.
    pub number: u64,
    /// Who proposed.
    pub client: u64,
    /// Which group of that name.
    pub generation: u64,
    /// The proposing member, or this host's.
    pub member: u32,
    /// The leading member.
    pub leader: u32,
    /// Its node.
    pub leader_node: u32,
    /// [`fide_client::group::Stage`].
    pub stage: u32,
    /// 0 or 1.
    pub own: u32,
    /// [`GroupRefusal`].
    pub refusal: u32,
    /// [`fide_client::group::Fate`].
    pub fate: u32,
    /// How many members.
    pub members_len: u32,
    /// Borrowed from this thread's last event of a group.
    pub members: *const u32,
    /// Borrowed from this thread's last event of a group.
    pub why: *const c_char,
    /// Borrowed from this thread's last event of a group.
    pub data: *const c_void,
    /// Bytes of it.
    pub data_len: u64,
}

/// `fide_callback`.
pub type Callback = unsafe extern "C" fn(*mut Handle, *const FideEvent, *mut c_void);
/// `fide_resumed`.
pub type Resumed = unsafe extern "C" fn(*const c_char, c_int, *const FideMonitored, *mut c_void);

/// `struct fide_callbacks`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Callbacks {
    /// Bytes of it that the application knows.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// For [`Kind::Failure`].
    pub on_failure: Option<Callback>,
    /// For [`Kind::Confirmed`].
    pub on_confirmed: Option<Callback>,
    /// For [`Kind::Piggyback`].
    pub on_piggyback_rcv: Option<Callback>,
    /// For [`Kind::TimeoutChanged`].
    pub on_timeout_changed: Option<Callback>,
    /// For [`Kind::MonitorReq`].
    pub on_monitor_req: Option<Callback>,
    /// For [`Kind::PbsizeChanged`].
    pub on_pbsize_changed: Option<Callback>,
    /// For the others.
    pub on_other: Option<Callback>,
    /// For [`Kind::Hung`].
    pub on_hung: Option<Callback>,
    /// For [`Kind::Progressing`].
    pub on_progressing: Option<Callback>,
    /// For [`Kind::Fenced`]; `on_other` where the application has none or knows of none.
    pub on_fenced: Option<Callback>,
    /// For [`Kind::Recovered`]; as above.
    pub on_recovered: Option<Callback>,
}

impl Callbacks {
    /// Whom an event of this kind is for.
    pub(crate) fn for_kind(&self, kind: u32) -> Option<Callback> {
        match kind {
            k if k == Kind::Failure as u32 => self.on_failure,
            k if k == Kind::Confirmed as u32 => self.on_confirmed,
            k if k == Kind::Piggyback as u32 => self.on_piggyback_rcv,
            k if k == Kind::TimeoutChanged as u32 => self.on_timeout_changed,
            k if k == Kind::MonitorReq as u32 => self.on_monitor_req,
            k if k == Kind::PbsizeChanged as u32 => self.on_pbsize_changed,
            k if k == Kind::Hung as u32 => self.on_hung,
            k if k == Kind::Progressing as u32 => self.on_progressing,
            k if k == Kind::Fenced as u32 => self.on_fenced.or(self.on_other),
            k if k == Kind::Recovered as u32 => self.on_recovered.or(self.on_other),
            _ => self.on_other,
        }
    }
}

/// A structure of the header: begins with its size, may be cut off at the end by an application compiled against an older
/// header, and is whole when what is missing is zero.
///
/// # Safety
/// `repr(C)`, the first field is its size as u32, and any field may be zero.
pub unsafe trait Sized32: Copy {
    /// Its name in the header.
    const NAME: &'static str;
    /// Its size in the first version of the header, up to the last field it had then: no application has less.
    const FIRST: usize;
}

// SAFETY: as its declaration shows.
unsafe impl Sized32 for FideEvent {
    const NAME: &'static str = "fide_event";
    const FIRST: usize = offset_of!(Self, data_len) + size_of::<u64>();
}
// SAFETY: as its declaration shows.
unsafe impl Sized32 for FideResources {
    const NAME: &'static str = "fide_resources";
    const FIRST: usize = offset_of!(Self, timeout_ns) + size_of::<u64>();
}
// SAFETY: as its declaration shows.
unsafe impl Sized32 for FideMonitored {
    const NAME: &'static str = "fide_monitored";
    const FIRST: usize = offset_of!(Self, state) + size_of::<u32>();
}
// SAFETY: as its declaration shows; a zero pointer is NULL.
unsafe impl Sized32 for FideChecked {
    const NAME: &'static str = "fide_checked";
    const FIRST: usize = offset_of!(Self, reserved) + size_of::<u32>();
}
// SAFETY: as its declaration shows; a zero pointer is NULL.
unsafe impl Sized32 for FideOptions {
    const NAME: &'static str = "fide_options";
    const FIRST: usize = offset_of!(Self, answer_timeout_ns) + size_of::<u64>();
}
// SAFETY: as its declaration shows; a zero pointer is NULL.
unsafe impl Sized32 for FideGroupOptions {
    const NAME: &'static str = "fide_group_options";
    const FIRST: usize = offset_of!(Self, last_number) + size_of::<u64>();
}
// SAFETY: as its declaration shows; a zero pointer is NULL.
unsafe impl Sized32 for FideGroupEvent {
    const NAME: &'static str = "fide_group_event";
    const FIRST: usize = offset_of!(Self, data_len) + size_of::<u64>();
}
// SAFETY: as its declaration shows; a zero Option<fn> is None.
unsafe impl Sized32 for Callbacks {
    const NAME: &'static str = "fide_callbacks";
    const FIRST: usize = offset_of!(Self, on_other) + size_of::<Option<Callback>>();
}

/// How many bytes of `T` the application's structure has, if that can be.
///
/// # Safety
/// `from` points at a u32.
pub(crate) unsafe fn check_size<T: Sized32>(from: *const T) -> Result<usize, Failure> {
    // SAFETY: promised by the caller.
    let size = unsafe { from.cast::<u32>().read() } as usize;
    if size < T::FIRST {
        return Err(Failure::Caller(format!("a struct {0} of {size} bytes: call {0}_init first", T::NAME)));
    }
    Ok(size.min(size_of::<T>()))
}

/// Reads what the application filled in; the rest is zero.
///
/// # Safety
/// `from` points at as many bytes as its first field says.
pub(crate) unsafe fn read_sized<T: Sized32>(from: *const T) -> Result<T, Failure> {
    // SAFETY: promised by the caller.
    let size = unsafe { check_size(from) }?;
    // SAFETY: any field may be zero, as the trait promises.
    let mut whole: T = unsafe { std::mem::zeroed() };
    // SAFETY: `size` is at most what both have.
    unsafe { (&raw mut whole).cast::<u8>().copy_from_nonoverlapping(from.cast(), size) };
    Ok(whole)
}

/// Writes as much as the application knows of, and leaves its size as it is.
///
/// # Safety
/// `to` points at as many writable bytes as its first field says.
pub(crate) unsafe fn write_sized<T: Sized32>(to: *mut T, value: T) -> Result<(), Failure> {
    // SAFETY: promised by the caller.
    let size = unsafe { check_size(to.cast_const()) }?;
    const SIZE: usize = size_of::<u32>();
    // SAFETY: `size` is at least one u32 and at most what both have.
    unsafe { to.cast::<u8>().add(SIZE).copy_from_nonoverlapping((&raw const value).cast::<u8>().add(SIZE), size - SIZE) };
    Ok(())
}
