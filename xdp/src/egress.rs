//! Where a program looks at all that leaves by an interface: two places in the kernel, in this order.
//!
//! * *tcx* (Linux 6.6): a list of programs. Ours comes first; it costs a function call.
//! * *clsact*: filters of a queueing discipline, since long ago. Ours has the first priority, behind all of tcx; a classifier is asked first.
//!
//! Programs stay in either when whoever attached them ends, which a link, pinned or not, would not grant: its pins may go with a container.

use libbpf_rs::libbpf_sys;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

/// Our filter's place in clsact. The first priority, because a filter before ours that ends the classification would end it for
/// ours too; the handle tells ours from others of the same priority.
const PRIORITY: u32 = 1;
const HANDLE: u32 = 0x00f1_de01;

/// The programs of an interface's tcx egress, by id; `None` where the kernel has no tcx.
pub fn tcx(ifindex: u32) -> io::Result<Option<Vec<u32>>> {
    let mut ids = vec![0u32; 64];
    let mut opts = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as libbpf_sys::size_t,
        prog_ids: ids.as_mut_ptr(),
        ..Default::default()
    };
    opts.__bindgen_anon_1.prog_cnt = ids.len() as u32;
    // SAFETY: ids and options live across the call, and the options say how many ids fit.
    let e = unsafe { libbpf_sys::bpf_prog_query_opts(ifindex as i32, libbpf_sys::BPF_TCX_EGRESS, &raw mut opts) };
    match -e {
        0 | libc::ENOSPC => {
            // SAFETY: both members of the union are the same number.
            ids.truncate(unsafe { opts.__bindgen_anon_1.prog_cnt } as usize);
            Ok(Some(ids))
        }
        libc::EINVAL => Ok(None),
        e => Err(io::Error::from_raw_os_error(e)),
    }
}

/// Puts a program before all others of tcx, or in the place of one.
pub fn attach_tcx(ifindex: u32, program: BorrowedFd<'_>, instead_of: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut opts = libbpf_sys::bpf_prog_attach_opts {
        sz: size_of::<libbpf_sys::bpf_prog_attach_opts>() as libbpf_sys::size_t,
        flags: libbpf_sys::BPF_F_BEFORE,
        ..Default::default()
    };
    if let Some(old) = instead_of {
        opts.flags = libbpf_sys::BPF_F_REPLACE;
        opts.__bindgen_anon_1.replace_prog_fd = old.as_raw_fd();
    }
    // SAFETY: open descriptors; the options live across the call.
    result(unsafe {
        libbpf_sys::bpf_prog_attach_opts(program.as_raw_fd(), ifindex as i32, libbpf_sys::BPF_TCX_EGRESS, &raw const opts)
    })
}

/// Takes it out of tcx again.
pub fn detach_tcx(ifindex: u32, program: BorrowedFd<'_>) -> io::Result<()> {
    let opts = libbpf_sys::bpf_prog_detach_opts {
        sz: size_of::<libbpf_sys::bpf_prog_detach_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: an open descriptor; the options live across the call.
    result(unsafe {
        libbpf_sys::bpf_prog_detach_opts(program.as_raw_fd(), ifindex as i32, libbpf_sys::BPF_TCX_EGRESS, &raw const opts)
    })
}

/// The program of our filter in clsact, by id.
pub fn clsact(ifindex: u32) -> Option<u32> {
    let (hook, mut asked) = (hook(ifindex), filter());
    // SAFETY: hook and options live across the call.
    let found = quiet(|| unsafe { libbpf_sys::bpf_tc_query(&raw const hook, &raw mut asked) });
    (found == 0).then_some(asked.prog_id) // none, or one that attaching stumbles over
}

/// Makes room for filters, if need be.
pub fn make_clsact(ifindex: u32) -> io::Result<()> {
    let mut hook = hook(ifindex);
    // SAFETY: the hook lives across the call.
    match quiet(|| unsafe { libbpf_sys::bpf_tc_hook_create(&raw mut hook) }) {
        e if e == -libc::EEXIST => Ok(()),
        e => result(e),
    }
}

/// Adds our filter, or puts this program into it.
pub fn attach_clsact(ifindex: u32, program: BorrowedFd<'_>) -> io::Result<()> {
    let (hook, mut opts) = (hook(ifindex), filter());
    opts.prog_fd = program.as_raw_fd();
    opts.flags = libbpf_sys::BPF_TC_F_REPLACE;
    // SAFETY: hook and options live across the call; the program's descriptor is open.
    result(quiet(|| unsafe { libbpf_sys::bpf_tc_attach(&raw const hook, &raw mut opts) }))
}

/// Removes our filter.
pub fn detach_clsact(ifindex: u32) -> io::Result<()> {
    let (hook, opts) = (hook(ifindex), filter());
    // SAFETY: hook and options live across the call.
    result(quiet(|| unsafe { libbpf_sys::bpf_tc_detach(&raw const hook, &raw const opts) }))
}

fn result(e: i32) -> io::Result<()> {
    if e == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-e)) }
}

fn hook(ifindex: u32) -> libbpf_sys::bpf_tc_hook {
    libbpf_sys::bpf_tc_hook {
        sz: size_of::<libbpf_sys::bpf_tc_hook>() as libbpf_sys::size_t,
        ifindex: ifindex as i32,
        attach_point: libbpf_sys::BPF_TC_EGRESS,
        ..Default::default()
    }
}

fn filter() -> libbpf_sys::bpf_tc_opts {
    libbpf_sys::bpf_tc_opts {
        sz: size_of::<libbpf_sys::bpf_tc_opts>() as libbpf_sys::size_t,
        handle: HANDLE,
        priority: PRIORITY,
        ..Default::default()
    }
}

/// Without libbpf's complaints about answers that are expected here (there is a clsact already, there is no filter yet).
fn quiet<T>(body: impl FnOnce() -> T) -> T {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: exchanges a function pointer; the old one is put back. Messages of other threads meanwhile are lost.
    let before = unsafe { libbpf_sys::libbpf_set_print(None) };
    let outcome = body();
    // SAFETY: as above.
    unsafe { libbpf_sys::libbpf_set_print(before) };
    outcome
}
