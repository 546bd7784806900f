//! System calls that std has no words for. All `unsafe` of this crate is here.

use fide_lab::LabError;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _};
use std::mem::zeroed;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::ptr;
use std::time::Duration;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// CLOCK_MONOTONIC, ns. All hosts of a lab share it.
#[must_use]
pub fn now_ns() -> u64 {
    fide_client::monotonic_ns()
}

/// The real-time priority of what stamps an event or TCP's news: below the agents' lanes (50), above all load.
pub const STAMPER_PRIORITY: i32 = 40;
/// That of the thread that waits for upcalls: above the lanes, because the kernel wakes both at once, and here the lanes of all
/// hosts share the few cores of one machine.
pub const UPCALL_PRIORITY: i32 = 60;

/// SCHED_FIFO for the calling thread, not for what it starts. Without the permission: an error, and nothing changes.
///
/// # Errors
/// EPERM, as a rule.
pub fn be_realtime(priority: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: pid 0 is the calling thread; `param` is readable.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const param) }.into()).map(drop)
}

/// An ordinary thread again.
pub fn be_ordinary() {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: as in `be_realtime`. Going back is always permitted.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const param) };
}

/// Keeps all memory of the process resident.
///
/// # Errors
/// EPERM or ENOMEM: then pages may be faulted in at a bad moment, which is all.
pub fn lock_memory() -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) }.into()).map(drop)
}

/// The calling thread may run on this processor only.
///
/// # Errors
/// When there is no such processor.
pub fn pin_to(cpu: usize) -> io::Result<()> {
    // SAFETY: an all-zero set is valid; CPU_SET writes inside it (the index is checked), and the call reads it.
    unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        if cpu >= libc::CPU_SETSIZE as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        libc::CPU_SET(cpu, &mut set);
        check(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set).into()).map(drop)
    }
}

/// Sleeps until this moment of CLOCK_MONOTONIC.
pub fn sleep_until(ns: u64) {
    let at = libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    // SAFETY: `at` is readable; the remaining time is not asked for. An interruption only wakes us early.
    unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &raw const at, ptr::null_mut()) };
}

/// Sends a signal to a process and says when, immediately before.
///
/// # Errors
/// When there is no such process.
pub fn kill(pid: u32, signal: i32) -> io::Result<u64> {
    let pid = pid.cast_signed();
    let at = now_ns();
    // SAFETY: integers only.
    check(unsafe { libc::kill(pid, signal) }.into())?;
    Ok(at)
}

/// The same to all processes of a group.
///
/// # Errors
/// When there is none.
pub fn kill_group(group: u32, signal: i32) -> io::Result<u64> {
    let group = group.cast_signed();
    let at = now_ns();
    // SAFETY: integers only.
    check(unsafe { libc::kill(-group, signal) }.into())?;
    Ok(at)
}

/// A thread of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// As in /proc.
    pub id: u32,
    /// As it named itself.
    pub name: String,
    /// For how long it has run, as the scheduler counts it.
    pub ran_ns: u64,
    /// How often it went to sleep by itself.
    pub sleeps: u64,
}

/// All threads of a process; one that ends meanwhile is left out.
///
/// # Errors
/// When the process is gone.
pub fn tasks(pid: u32) -> io::Result<Vec<Task>> {
    let of = |task: std::fs::DirEntry| {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).ok();
        let status = read("status")?;
        let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        Some(Task {
            id: task.file_name().to_str()?.parse().ok()?,
            name: read("comm")?.trim_end().to_owned(),
            ran_ns: read("schedstat")?.split_whitespace().next()?.parse().ok()?,
            sleeps: sleeps.trim().parse().ok()?,
        })
    };
    Ok(std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten().filter_map(of).collect())
}

/// The kernel counts runs and times of BPF programs for as long as this is open.
///
/// # Errors
/// Before Linux 5.8, or without the permission.
pub fn enable_bpf_stats() -> io::Result<OwnedFd> {
    // SAFETY: an integer; a new descriptor that is ours alone, or an error, comes back.
    let fd = check(unsafe { libbpf_rs::libbpf_sys::bpf_enable_stats(libbpf_rs::libbpf_sys::BPF_STATS_RUN_TIME) }.into())?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Everything that passes an interface.
#[derive(Debug)]
pub struct Tap(OwnedFd);

impl Tap {
    /// In the network namespace of the calling thread.
    ///
    /// # Errors
    /// When there is no such interface.
    pub fn open(interface: &str) -> io::Result<Self> {
        let everything = (libc::ETH_P_ALL as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: integers only; the descriptor is new and ours alone.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::socket(libc::AF_PACKET, kind, everything.into()).into())? as RawFd) };
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: everything,
            sll_ifindex: interface_index(interface)?.cast_signed(),
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: an address of the stated length, which lives across the call.
        check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) }.into())?;
        Ok(Self(fd))
    }

    /// When the first of the frames that come from now on arrives that is such; `None`: not before `until`.
    pub fn first(&self, is: impl Fn(&[u8]) -> bool, until: std::time::Instant) -> Option<u64> {
        loop {
            let left = until.checked_duration_since(std::time::Instant::now())?;
            if wait(&[self.0.as_fd()], Some(left)).is_ok_and(|ready| ready[0].readable) {
                let at_ns = now_ns();
                if self.count(&is) > 0 {
                    return Some(at_ns);
                }
            }
        }
    }

    /// How many of the frames since the last call are such.
    pub fn count(&self, is: impl Fn(&[u8]) -> bool) -> usize {
        let mut frame = [0; 2048];
        let mut found = 0;
        loop {
            // SAFETY: an open descriptor and a buffer of the stated length.
            let n = unsafe { libc::recv(self.0.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
            let Ok(n) = usize::try_from(n) else { return found };
            found += usize::from(is(&frame[..n]));
        }
    }
}

/// A descriptor that becomes readable when the process ends.
///
/// # Errors
/// When there is no such process, or no descriptor left.
pub fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: integers only; the descriptor is new and ours alone.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// What [`wait`] found of one descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// It can be read, or is at its end.
    pub readable: bool,
    /// It was hung up or has an error.
    pub hung_up: bool,
}

/// Waits until one of them is readable or hung up.
///
/// # Errors
/// Those of poll(2); an interruption counts as nothing ready.
pub fn wait(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<Vec<Ready>> {
    let events = libc::POLLIN | libc::POLLRDHUP;
    let mut all: Vec<libc::pollfd> = fds.iter().map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }).collect();
    let ms = timeout.map_or(-1, |t| i32::try_from(t.as_millis()).unwrap_or(i32::MAX));
    // SAFETY: an array of the stated length; the descriptors are borrowed and so open.
    let n = unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, ms) };
    if n < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let bad = libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP | libc::POLLNVAL;
    let ready = |p: &libc::pollfd| Ready { readable: p.revents & libc::POLLIN != 0, hung_up: p.revents & bad != 0 };
    Ok(all.iter().map(ready).collect())
}

/// Memory of ordinary 4 KiB pages, every one of them touched. It stays until the process ends.
///
/// # Errors
/// ENOMEM.
pub fn touch(bytes: usize) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: a new anonymous mapping, checked before use, written only inside its bounds and never unmapped.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let start = libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE);
        for offset in (0..bytes).step_by(4096) {
            start.cast::<u8>().add(offset).write_volatile(1);
        }
    }
    Ok(())
}

/// Makes the command's core dumps at most this large.
pub fn limit_core(command: &mut Command, bytes: u64) {
    // SAFETY: setrlimit is async-signal-safe and reads a struct on the stack.
    unsafe {
        command.pre_exec(move || {
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            check(libc::setrlimit(libc::RLIMIT_CORE, &raw const limit).into()).map(drop)
        });
    }
}

/// Makes the command write itself into this open `cgroup.procs` before it executes.
pub fn join_cgroup(command: &mut Command, procs: File) {
    // SAFETY: write is async-signal-safe; the descriptor is owned by the closure and so open.
    unsafe {
        command.pre_exec(move || {
            let text = b"0";
            check(libc::write(procs.as_raw_fd(), text.as_ptr().cast(), text.len()) as libc::c_long).map(drop)
        });
    }
}

/// Gives the command a BPF file system of its own at this directory, which is made. Nobody else sees it, and it goes with the last
/// process that does, with all that is pinned there.
///
/// # Errors
/// When the directory cannot be made.
pub fn mount_bpf(command: &mut Command, directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let target = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: unshare and mount are system calls, safe after fork; their strings are literals or owned by the closure.
    unsafe {
        command.pre_exec(move || {
            check(libc::unshare(libc::CLONE_NEWNS).into())?;
            let none = ptr::null();
            // What is mounted from here on is this process's alone.
            check(libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_SLAVE, ptr::null()).into())?;
            check(libc::mount(c"bpf".as_ptr(), target.as_ptr(), c"bpf".as_ptr(), 0, ptr::null()).into()).map(drop)
        });
    }
    Ok(())
}

/// Starts the command among the mounts of another process, such as one that was started with [`mount_bpf`].
///
/// # Errors
/// When there is no such process.
pub fn join_mounts(command: &mut Command, pid: u32) -> io::Result<()> {
    let namespace = File::open(format!("/proc/{pid}/ns/mnt"))?;
    // SAFETY: setns is a system call, safe after fork; the descriptor is owned by the closure and so open.
    unsafe {
        command.pre_exec(move || check(libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS).into()).map(drop));
    }
    Ok(())
}

/// Ends the command with the thread that starts it, however that ends.
pub fn end_with_us(command: &mut Command) {
    // SAFETY: prctl is a system call, safe after fork.
    unsafe {
        command.pre_exec(|| check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL).into()).map(drop));
    }
}

/// A socket that receives nothing any more (`true`: what comes is dropped when it would be put into the queue), or everything again.
///
/// # Errors
/// Those of setsockopt(2).
pub fn be_deaf(socket: BorrowedFd<'_>, deaf: bool) -> io::Result<()> {
    // Classic BPF: return 0 bytes of the packet.
    let mut refuse = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut refuse };
    let option = if deaf { libc::SO_ATTACH_FILTER } else { libc::SO_DETACH_FILTER };
    let length = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: the program and its one instruction live across the call, which copies them; detaching reads an integer of it and ignores it.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const program).cast(), length) };
    match check(done.into()) {
        Err(e) if !deaf && e.raw_os_error() == Some(libc::ENOENT) => Ok(()), // it was not deaf
        done => done.map(drop),
    }
}

/// Descriptors of our own for the UDP sockets of a process that are bound to a port.
///
/// # Errors
/// When it is gone, or without the permission.
pub fn udp_sockets(pid: u32, port: u16) -> io::Result<Vec<std::net::UdpSocket>> {
    let process = pidfd(pid)?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        let is_socket = std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
        let Some(theirs) = entry.file_name().to_str().and_then(|n| n.parse::<RawFd>().ok()).filter(|_| is_socket) else {
            continue;
        };
        // SAFETY: no pointers.
        let Ok(ours) = check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), theirs, 0) }) else { continue };
        // SAFETY: just made, and nobody else's.
        let socket = std::net::UdpSocket::from(unsafe { OwnedFd::from_raw_fd(ours as RawFd) });
        let mut protocol: libc::c_int = 0;
        let mut length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: an integer and its length, which live across the call.
        let asked = unsafe {
            let (level, option) = (libc::SOL_SOCKET, libc::SO_PROTOCOL);
            libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut protocol).cast(), &raw mut length)
        };
        if asked == 0 && protocol == libc::IPPROTO_UDP && socket.local_addr().is_ok_and(|at| at.port() == port) {
            found.push(socket);
        }
    }
    Ok(found)
}

/// What `ethtool -K` switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Offload {
    /// What is received is merged: on a veth, it is received by NAPI.
    Gro = 0x2c,
    /// The device cuts what TCP sends.
    Tso = 0x1f,
}

/// `ethtool -K INTERFACE OFFLOAD on|off` in a network namespace of this name.
///
/// # Errors
/// Those of the kernel.
pub fn offload(namespace: &str, interface: &str, offload: Offload, on: bool) -> io::Result<()> {
    /// `struct ethtool_value`.
    #[repr(C)]
    struct EthtoolValue {
        command: u32,
        data: u32,
    }
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    let namespace = File::open(Path::new("/run/netns").join(namespace))?;
    let switch = move || {
        // SAFETY: no pointers; this thread ends with its call.
        check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }.into())?;
        let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
        let mut value = EthtoolValue { command: offload as u32, data: on.into() };
        // SAFETY: integers and a union of integers and pointers, for which zeros are valid.
        let mut request: libc::ifreq = unsafe { zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes().take(libc::IFNAMSIZ - 1)) {
            *to = from.cast_signed() as libc::c_char;
        }
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        // SAFETY: the kernel reads the name and follows the pointer to the eight bytes of `value`; both live across the call.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) }.into()).map(drop)
    };
    std::thread::scope(|threads| threads.spawn(switch).join()).unwrap_or_else(|_| Err(io::Error::other("a thread has panicked")))
}

/// How much a socket may have under way before its sender waits; the kernel doubles it, and has a least.
///
/// # Errors
/// Those of setsockopt(2).
pub fn send_buffer(socket: BorrowedFd<'_>, bytes: i32) -> io::Result<()> {
    let length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: an integer that lives across the call.
    let done =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, (&raw const bytes).cast(), length) };
    check(done.into()).map(drop)
}

/// Every thread of a process may run on these processors only.
///
/// # Errors
/// When the process is gone, or has no such processor.
pub fn confine(pid: u32, cpus: std::ops::Range<usize>) -> io::Result<()> {
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let tid: i32 = task?.file_name().to_string_lossy().parse().map_err(|_| io::ErrorKind::InvalidData)?;
        // SAFETY: an all-zero set is valid; CPU_SET writes inside it (indices are checked), and the call reads it.
        unsafe {
            let mut set: libc::cpu_set_t = zeroed();
            for cpu in cpus.clone().take_while(|cpu| *cpu < libc::CPU_SETSIZE as usize) {
                libc::CPU_SET(cpu, &mut set);
            }
            check(libc::sched_setaffinity(tid, size_of::<libc::cpu_set_t>(), &raw const set).into())?;
        }
    }
    Ok(())
}

/// The number of an interface of the calling thread's network namespace.
///
/// # Errors
/// When there is none of this name.
pub fn interface_index(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: a C string that lives across the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// The calling thread's id, as in /proc.
#[must_use]
pub fn thread_id() -> i32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::gettid() }
}

/// Fails unless the caller is root.
///
/// # Errors
/// [`LabError::NotRoot`], which says what needs it.
pub fn require_root(what: &'static str) -> Result<(), LabError> {
    // SAFETY: takes nothing and cannot fail.
    let euid = unsafe { libc::geteuid() };
    if euid == 0 { Ok(()) } else { Err(LabError::NotRoot { what, euid }) }
}

/// Clock ticks per second, the unit of `/proc/PID/stat`.
#[must_use]
pub fn ticks_per_second() -> u64 {
    // SAFETY: a constant.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100)
}

/// Bytes of `n` pages.
#[must_use]
pub fn pages(n: u64) -> u64 {
    // SAFETY: a constant.
    n * u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// User and system time of a process, all threads, in seconds; and its resident memory in bytes.
///
/// # Errors
/// When it is gone.
pub fn usage(pid: u32) -> io::Result<(f64, u64)> {
    let mut stat = String::new();
    File::open(format!("/proc/{pid}/stat"))?.read_to_string(&mut stat)?;
    let broken = || io::Error::from(io::ErrorKind::InvalidData);
    let fields: Vec<&str> = stat.rsplit_once(')').ok_or_else(broken)?.1.split_ascii_whitespace().collect();
    let field = |n: usize| fields.get(n - 3).and_then(|f| f.parse::<u64>().ok()).ok_or_else(broken);
    let seconds = (field(14)? + field(15)?) as f64 / ticks_per_second() as f64;
    Ok((seconds, pages(field(24)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_of_this_process_is_plausible() {
        let (seconds, resident) = usage(std::process::id()).unwrap();
        assert!(seconds >= 0.0 && resident > 100_000 && resident < 1 << 40, "{seconds} {resident}");
    }

    #[test]
    fn a_dead_process_is_readable_through_its_pidfd() {
        use std::os::fd::AsFd as _;
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let fd = pidfd(child.id()).unwrap();
        let at_once = Some(Duration::ZERO);
        assert!(!wait(&[fd.as_fd()], at_once).unwrap()[0].readable);
        let before = now_ns();
        assert!(kill(child.id(), libc::SIGKILL).unwrap() >= before);
        assert!(wait(&[fd.as_fd()], Some(Duration::from_secs(60))).unwrap()[0].readable);
        child.wait().unwrap();
    }

    #[test]
    fn touched_memory_is_resident() {
        let before = usage(std::process::id()).unwrap().1;
        touch(32 << 20).unwrap();
        assert!(usage(std::process::id()).unwrap().1 >= before + (30 << 20));
    }
}
