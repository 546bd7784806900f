//! Strings and bytes that C programs borrow, and how long.

use crate::abi::{FideChecked, FideEvent, Kind};
use fide_client::wire::event::Record;
use fide_client::wire::verdict::{Cause, Grade};
use fide_client::{Checked, Event, Subject, Verdict};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};

thread_local! {
    /// The last error of this thread.
    static LAST_ERROR: RefCell<CString> = RefCell::default();
    /// What the last event of this thread borrows from.
    static LAST_EVENT: RefCell<Option<Held>> = const { RefCell::new(None) };
    /// What this thread's last check borrows from.
    static LAST_CHECK: RefCell<[CString; 4]> = RefCell::default();
}

/// The C form of what was found; its strings are kept until this thread's next check.
pub fn checked(found: &Checked) -> FideChecked {
    let peer = found.peer.as_ref();
    let of = |word: fn(&fide_client::CheckedPeer) -> &str| c_string(peer.map_or("", word));
    let kept = [c_string(&found.why), of(|p| &p.host), of(|p| &p.host_state), of(|p| &p.app_state)];
    let words = LAST_CHECK.try_with(|last| {
        *last.borrow_mut() = kept;
        last.borrow().each_ref().map(|text| text.as_ptr())
    });
    // The thread is ending and keeps nothing any more.
    let [why, host, host_state, app_state] =
        words.unwrap_or([c"".as_ptr(), std::ptr::null(), std::ptr::null(), std::ptr::null()]);
    let known = |text: *const c_char| if peer.is_some() { text } else { std::ptr::null() };
    FideChecked {
        size: size_of::<FideChecked>() as u32,
        outcome: u32::from(found.outcome as u8),
        drained_ns: found.drained_ns,
        lost_ns: found.lost_ns,
        why,
        host: known(host),
        host_state: known(host_state),
        app_state: known(app_state),
        node: peer.map_or(0, |p| p.node),
        incarnation: peer.map_or(0, |p| p.incarnation),
        fence_timeout_ns: peer.and_then(|p| p.fence).map_or(0, |f| f.timeout_ns),
        fenced: peer.is_some_and(|p| p.fenced).into(),
        reserved: 0,
    }
}

/// A string of text that may have a zero in it, from an agent that is not to be trusted with that.
pub fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_else(|_| CString::new(text.replace('\0', " ")).unwrap_or_default())
}

/// Makes `text` this thread's last error.
pub fn remember(text: &str) {
    // While a thread ends its storage may be gone; then there is nobody left to read it.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = c_string(text));
}

/// This thread's last error; valid until the next.
pub fn last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// An event and what its C form borrows from.
#[derive(Debug)]
pub struct Held {
    event: Event,
    name: Option<CString>,
}

impl Held {
    /// Takes an event into keeping.
    pub fn new(event: Event) -> Self {
        let name = event.subject().and_then(|s| s.name.as_deref()).map(c_string);
        Self { event, name }
    }

    /// The C form, of which everything is kept until this thread's next event.
    pub fn keep_for_this_thread(self) -> FideEvent {
        let event = self.event();
        match LAST_EVENT.try_with(|last| *last.borrow_mut() = Some(self)) {
            Ok(()) => event,
            // The thread is ending and keeps nothing any more.
            Err(_) => FideEvent { name: std::ptr::null(), data: std::ptr::null(), data_len: 0, ..event },
        }
    }

    /// The C form. What it points at lives as long as `self`, also when that is moved: both are on the heap.
    pub fn event(&self) -> FideEvent {
        let mut c = FideEvent {
            size: size_of::<FideEvent>() as u32,
            kind: 0,
            cause: 0,
            grade: 0,
            node: 0,
            app: 0,
            incarnation: 0,
            code: 0,
            path: 0,
            flags: 0,
            id: 0,
            event_ns: 0,
            sent_ns: 0,
            received_ns: 0,
            number: 0,
            name: self.name.as_ref().map_or(std::ptr::null(), |n| n.as_ptr()),
            data: std::ptr::null(),
            data_len: 0,
        };
        if let Some(Subject { node, app, incarnation, .. }) = self.event.subject() {
            (c.node, c.app, c.incarnation) = (*node, *app, *incarnation);
        }
        c.kind = match &self.event {
            Event::Failure(v) => verdict(&mut c, v, Kind::Failure),
            Event::Confirmed(v) => verdict(&mut c, v, Kind::Confirmed),
            Event::Hung(v) => verdict(&mut c, v, Kind::Hung),
            Event::Progressing(v) => verdict(&mut c, v, Kind::Progressing),
            Event::Monitored(v) => verdict(&mut c, v, Kind::Monitored),
            Event::Host(v) => verdict(&mut c, v, Kind::Host),
            Event::Fenced(v) => verdict(&mut c, v, Kind::Fenced),
            Event::Recovered(v) => verdict(&mut c, v, Kind::Recovered),
            Event::Piggyback(p) => {
                (c.number, c.path, c.sent_ns, c.received_ns) = (p.number, p.path.into(), p.sent_ns, p.received_ns);
                (c.data, c.data_len) = (p.message.as_ptr().cast(), p.message.len() as u64);
                Kind::Piggyback
            }
            Event::TimeoutChanged { timeout_ns, .. } => {
                c.number = *timeout_ns;
                Kind::TimeoutChanged
            }
            Event::PiggybackSizeChanged { pbsize } => {
                c.number = (*pbsize).into();
                Kind::PbsizeChanged
            }
            Event::MonitorRequest { pbsize, .. } => {
                c.number = (*pbsize).into();
                Kind::MonitorReq
            }
            Event::Lost { count } => {
                c.number = *count;
                Kind::Lost
            }
            Event::AgentGone => Kind::AgentGone,
            Event::Other { record, body } => {
                (c.cause, c.grade, c.flags) = (record.cause.into(), record.grade.into(), record.flags.into());
                (c.node, c.app, c.incarnation) = (record.node, record.app, record.incarnation);
                (c.code, c.path, c.id, c.number) = (record.code, record.path.into(), record.id, record.number);
                (c.event_ns, c.sent_ns, c.received_ns) = (record.event_ns, record.sent_ns, record.received_ns);
                (c.data, c.data_len) = (body.as_ptr().cast(), body.len() as u64);
                Kind::Other
            }
            // What later versions of the client add.
            _ => Kind::Other,
        } as u32;
        c
    }
}

fn verdict(c: &mut FideEvent, v: &Verdict, kind: Kind) -> Kind {
    (c.cause, c.grade, c.code) = (v.cause as u32, v.grade as u32, v.code);
    c.path = v.path.into();
    let flag = |set: bool, flag: u8| if set { u32::from(flag) } else { 0 };
    c.flags = flag(v.confirms, Record::CONFIRMS) | flag(v.local, Record::LOCAL) | flag(v.fenced, Record::FENCED);
    c.id = v.id.map_or(0, |id| id.0);
    (c.event_ns, c.sent_ns, c.received_ns) = (v.event_ns, v.sent_ns, v.received_ns);
    kind
}

/// What an error code means.
pub fn strerror(error: c_int) -> &'static CStr {
    match error {
        0 => c"success",
        -1 => c"the call or the agent's answer makes no sense",
        -2 => c"not allowed to this user",
        -3 => c"no such process, host or verdict",
        -4 => c"the name is taken",
        -5 => c"larger than granted",
        -6 => c"no room for more now",
        -7 => c"agent and library come from different releases",
        -8 => c"the agent cannot do this on its host",
        -9 => c"no agent, or it went away",
        -10 => c"a system call failed",
        -11 => c"several processes match",
        -12 => c"this process's gate is closed",
        -13 => c"the heartbeat is not known to have left in time",
        -127 => c"a bug in the library",
        _ => c"unknown error",
    }
}

/// The name of a cause.
pub fn cause_name(cause: u32) -> &'static CStr {
    match u8::try_from(cause).ok().and_then(Cause::from_u8) {
        None => c"unknown",
        Some(cause) => match cause {
            Cause::Exited => c"exited",
            Cause::Killed => c"killed",
            Cause::Doomed => c"doomed",
            Cause::Left => c"left",
            Cause::AgentLost => c"agent-lost",
            Cause::SilentHost => c"silent-host",
            Cause::PathDown => c"path-down",
            Cause::ContractBroken => c"contract-broken",
            Cause::Isolated => c"isolated",
            Cause::PathUp => c"path-up",
            Cause::Returned => c"returned",
            Cause::ContractKept => c"contract-kept",
            Cause::Rejoined => c"rejoined",
            Cause::ObserverPaused => c"observer-paused",
            Cause::NameClash => c"name-clash",
            Cause::ForeignTraffic => c"foreign-traffic",
            Cause::Monitored => c"monitored",
            Cause::Interface => c"interface",
            Cause::Local => c"local",
            Cause::Fenced => c"fenced",
            Cause::Recovered => c"recovered",
            Cause::Hung => c"hung",
            Cause::OutOfMemory => c"out-of-memory",
            Cause::Unreachable => c"unreachable",
            Cause::Replaced => c"replaced",
            Cause::Progressing => c"progressing",
        },
    }
}

/// The name of a grade.
pub fn grade_name(grade: u32) -> &'static CStr {
    match u8::try_from(grade).ok().and_then(Grade::from_u8) {
        Some(Grade::Certain) => c"certain",
        Some(Grade::Inferred) => c"inferred",
        None => c"unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_used_everywhere() {
        for cause in Cause::ALL {
            assert_eq!(cause_name(cause as u32).to_str(), Ok(cause.name()));
        }
        for grade in [Grade::Certain, Grade::Inferred] {
            assert_eq!(grade_name(grade as u32).to_str().map(str::to_owned), Ok(grade.to_string()));
        }
        assert_eq!((cause_name(0), cause_name(1 << 8 | 1), grade_name(3)), (c"unknown", c"unknown", c"unknown"));
    }

    #[test]
    fn a_zero_inside_a_text_does_not_lose_it() {
        remember("a\0b");
        // SAFETY: always a string.
        assert_eq!(unsafe { CStr::from_ptr(last_error()) }, c"a b");
    }
}
