//! Two hosts, a private BPF file system, cgroups, and senders that are processes of their own: this test binary, started again.

use super::net::Net;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub const MAGIC: &[u8; 8] = b"FIDEgate";
pub const PORT: u16 = 3499;
/// An Ethernet protocol for experiments.
pub const ETHERTYPE: u16 = 0x88b5;
const BARRIER: u64 = u64::MAX - 1024;
/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(90);

pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

fn clock_ns(clock: i32) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: t lives across the call.
    unsafe { libc::clock_gettime(clock, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        // Sleep: interval of the poll.
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("fide-fence-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A BPF file system of its own, so that nothing pinned outlives the test.
pub struct Pins(pub PathBuf);

impl Pins {
    pub fn new() -> Self {
        let dir = std::env::temp_dir().join(unique());
        fide_lab::Leftover::Directory(dir.clone()).goes_with_caller().unwrap();
        fs::create_dir(&dir).unwrap();
        let target = std::ffi::CString::new(dir.to_str().unwrap()).unwrap();
        // SAFETY: C strings that live across the call.
        let rc = unsafe { libc::mount(c"bpf".as_ptr(), target.as_ptr(), c"bpf".as_ptr(), 0, std::ptr::null()) };
        assert_eq!(rc, 0, "mount bpf: {}", io::Error::last_os_error());
        Self(dir)
    }

    pub fn dir(&self) -> PathBuf {
        self.0.join("fence")
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let target = std::ffi::CString::new(self.0.to_str().unwrap()).unwrap();
        // SAFETY: a C string that lives across the call.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        let _ = fs::remove_dir(&self.0);
    }
}

/// A cgroup of version 2, removed with what lives in it.
pub struct Group(pub PathBuf);

impl Group {
    /// Says why there can be none, where there can be none.
    pub fn new() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let root = mounts.lines().find_map(|l| {
            let words: Vec<&str> = l.split(' ').collect();
            (words[2] == "cgroup2").then(|| PathBuf::from(words[1]))
        });
        let Some(dir) = root.map(|r| r.join(unique())) else {
            println!("SKIPPED: cgroup version 2 is not mounted");
            return None;
        };
        fide_lab::Leftover::Cgroup(dir.clone()).goes_with_caller().unwrap();
        fs::create_dir(&dir).unwrap();
        Some(Self(dir))
    }

    pub fn below(&self) -> Self {
        let dir = self.0.join(unique());
        fide_lab::Leftover::Cgroup(dir.clone()).goes_with_caller().unwrap();
        fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    pub fn freeze(&self, yes: bool) {
        fs::write(self.0.join("cgroup.freeze"), if yes { "1" } else { "0" }).unwrap();
        let wanted = format!("frozen {}", i32::from(yes));
        wait_until("freezing", || fs::read_to_string(self.0.join("cgroup.events")).unwrap().lines().any(|l| l == wanted));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.freeze"), "0");
        let deadline = Instant::now() + PATIENCE;
        while fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            for pid in fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
                // SAFETY: a process of this test's own cgroup.
                unsafe { libc::kill(pid.parse().unwrap(), libc::SIGKILL) };
            }
            // Sleep: interval of the poll.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Runs the test `role` of this binary as a process in a namespace and perhaps a cgroup. It says "> ready" first; then every line is
/// answered by one.
pub struct Role {
    pub child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// Whether this kernel offers what the role is about.
    pub here: bool,
}

impl Role {
    pub fn start(host: &str, group: Option<&Group>, role: &str, args: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "fence::role", "--nocapture", "--test-threads=1"]);
        command.env("FIDE_FENCE_ROLE", role).env("FIDE_FENCE_ARGS", args.join(" "));
        if let Some(group) = group {
            command.env("FIDE_FENCE_GROUP", &group.0);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Net::within(host, || command.spawn().unwrap());
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut role = Self { child, stdin, stdout, here: true };
        role.here = role.hear() == "ready";
        role
    }

    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.stdout.read_line(&mut line).unwrap(), 0, "the other process ended");
            // libtest writes "test role ... " before it, without an end of line.
            if let Some(at) = line.find("> ") {
                return line[at + 2..].trim_end().to_string();
            }
        }
    }

    pub fn tell(&mut self, what: &str) {
        writeln!(self.stdin, "{what}").unwrap();
    }

    pub fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.hear()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: our own child, not yet waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Stops it, and returns once it stands still.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        wait_until("stopping", || {
            fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().flatten().all(|task| {
                let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
            })
        });
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a role does first: gives back the priority that it may have inherited, and goes into its cgroup, so that its sockets are made there.
pub fn enter_group() {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: a structure that lives across the call; concerns this thread.
    assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const priority) }, 0);
    if let Ok(group) = std::env::var("FIDE_FENCE_GROUP") {
        fs::write(Path::new(&group).join("cgroup.procs"), "0").unwrap();
    }
}

pub fn say(what: &str) {
    let mut out = io::stdout().lock();
    writeln!(out, "> {what}").unwrap();
    out.flush().unwrap();
}

pub fn payload(number: u64) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[16..].copy_from_slice(&number.to_be_bytes());
    bytes[8..16].copy_from_slice(&now_ns().to_be_bytes()); // last, so that it is just before the call
    bytes
}

/// Makes this thread SCHED_FIFO, and those that it starts.
pub fn real_time(priority: i32) -> bool {
    let priority = libc::sched_param { sched_priority: priority };
    // SAFETY: a structure that lives across the call; concerns this thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) == 0 }
}

pub fn ifindex(name: &str) -> u32 {
    let name = std::ffi::CString::new(name).unwrap();
    // SAFETY: a C string.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

pub fn check(rc: i32) -> io::Result<i32> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

/// A new descriptor of a system call.
pub fn owned(fd: i32) -> OwnedFd {
    let fd = check(fd).unwrap();
    // SAFETY: fresh, and nobody else's.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

pub fn set<T>(fd: &OwnedFd, level: i32, name: i32, value: T) {
    // SAFETY: pointer and length describe the value.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), size_of::<T>() as u32) }).unwrap();
}

/// A packet socket that sends frames by an interface.
pub struct Frames {
    fd: OwnedFd,
    to: libc::sockaddr_ll,
}

impl Frames {
    pub fn new(interface: &str, bypass: bool) -> Self {
        // SAFETY: plain numbers.
        let fd = owned(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) });
        set(&fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, i32::from(bypass));
        // SAFETY: sockaddr_ll is plain old data, for which zero is a value.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        (to.sll_family, to.sll_ifindex, to.sll_halen) = (libc::AF_PACKET as u16, ifindex(interface) as i32, 6);
        Self { fd, to }
    }

    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: pointers and lengths describe frame and address.
        let rc = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const self.to).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            )
        };
        check(rc as i32).map(drop)
    }
}

pub fn frame(payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame.extend_from_slice(&ETHERTYPE.to_be_bytes());
    frame.extend_from_slice(payload);
    frame.resize(frame.len().max(60), 0);
    frame
}

/// One packet of ours that reached the other host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    pub number: u64,
    /// Clock just before the send call.
    pub sent_ns: u64,
    /// When the other host's kernel had it.
    pub arrived_ns: u64,
}

/// Everything of ours that reaches an interface.
pub struct Capture {
    fd: OwnedFd,
    interface: String,
    /// The namespace that barriers are sent from.
    sender: String,
}

impl Capture {
    /// Listens in `receiver`; `sender` is the host at the other end of the cable.
    pub fn new(receiver: &str, sender: &str, interface: &str) -> Self {
        let fd = Net::within(receiver, || {
            let every = i32::from(3u16.to_be());
            // SAFETY: plain numbers.
            let fd =
                owned(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, every) });
            // SAFETY: sockaddr_ll is plain old data, for which zero is a value.
            let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            (at.sll_family, at.sll_protocol) = (libc::AF_PACKET as u16, 3u16.to_be());
            at.sll_ifindex = ifindex(interface) as i32;
            // SAFETY: pointer and length describe the address.
            check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const at).cast(), size_of_val(&at) as u32) }).unwrap();
            set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 32 << 20);
            set(&fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1);
            fd
        });
        Self { fd, interface: interface.into(), sender: sender.into() }
    }

    /// Forgets everything, and from now on only notes UDP packets (over IPv4) stamped after this time, and barriers: a flood finds room.
    pub fn only_sent_after(&self, ns: u64) {
        let (hi, lo) = ((ns >> 32) as u32, ns as u32);
        let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
        let (load16, load32) = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, libc::BPF_LD | libc::BPF_W | libc::BPF_ABS);
        let (greater, equal) = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
        let mut program = [
            op(load16, 0, 0, 12),
            op(equal, 5, 0, u32::from(ETHERTYPE)), // a barrier: keep
            op(load32, 0, 0, 50),
            op(greater, 3, 0, hi), // keep
            op(equal, 0, 3, hi),   // else refuse
            op(load32, 0, 0, 54),
            op(greater, 0, 1, lo), // keep, else refuse
            op(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
            op(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        set(&self.fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, filter);
        while self.next().is_some() {}
        self.lost();
    }

    /// Packets that found no room since this was last asked.
    pub fn lost(&self) -> u32 {
        let (mut stats, mut len) = ([0u32; 2], 8u32);
        // SAFETY: pointer and length describe the array.
        let rc = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                stats.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        check(rc).unwrap();
        stats[1]
    }

    /// The next frame; `Some(None)`: none of ours.
    fn next(&self) -> Option<Option<Arrived>> {
        #[repr(C, align(8))]
        struct Control([u8; 128]);
        let (mut bytes, mut control) = ([0u8; 9000], Control([0; 128]));
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: msghdr is plain old data, for which zero is a value.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
        (header.msg_control, header.msg_controllen) = ((&raw mut control).cast(), size_of::<Control>());
        // SAFETY: all that the header points to lives across the call.
        let n = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut header, 0) };
        let bytes = &bytes[..usize::try_from(n).ok()?];
        let skew = clock_ns(libc::CLOCK_REALTIME) - now_ns();
        // SAFETY: as recvmsg left it; the only control message asked for is the time stamp.
        let stamp = unsafe { libc::CMSG_DATA(libc::CMSG_FIRSTHDR(&raw const header)).cast::<libc::timespec>().read_unaligned() };
        let word = |at: usize| Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let parse = || {
            let at = bytes.windows(8).position(|w| w == MAGIC)?;
            let arrived_ns = stamp.tv_sec as u64 * 1_000_000_000 + stamp.tv_nsec as u64 - skew;
            Some(Arrived { sent_ns: word(at + 8)?, number: word(at + 16)?, arrived_ns })
        };
        Some(parse())
    }

    /// Everything that has been sent so far and arrives: behind a barrier through every processor's backlog, by a way that no gate sees.
    pub fn drain(&self) -> Vec<Arrived> {
        static ROUND: AtomicU32 = AtomicU32::new(0);
        // SAFETY: a plain question.
        let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) } as u64;
        let round = u64::from(ROUND.fetch_add(1, Ordering::Relaxed));
        Net::within(&self.sender, || {
            let frames = Frames::new(&self.interface, true);
            for cpu in 0..cpus {
                // SAFETY: a zeroed set is empty; concerns this thread only.
                unsafe {
                    let mut one: libc::cpu_set_t = std::mem::zeroed();
                    libc::CPU_SET(cpu as usize, &mut one);
                    assert_eq!(libc::sched_setaffinity(0, size_of_val(&one), &raw const one), 0);
                }
                let mut bytes = payload(BARRIER + cpu);
                bytes[8..16].copy_from_slice(&round.to_be_bytes());
                wait_until("sending a barrier", || frames.send(&frame(&bytes)).is_ok());
            }
        });
        let (mut seen, mut passed) = (Vec::new(), vec![false; cpus as usize]);
        wait_until("the barrier", || {
            while let Some(arrived) = self.next() {
                let Some(arrived) = arrived else { continue };
                match arrived.number.checked_sub(BARRIER) {
                    Some(cpu) if arrived.sent_ns == round => passed[cpu as usize] = true,
                    Some(_) => {}
                    None => seen.push(arrived),
                }
            }
            passed.iter().all(|p| *p)
        });
        seen
    }
}

/// A file of the calling thread's network namespace.
pub fn sysctl(name: &str, value: &str) {
    File::options().write(true).open(format!("/proc/sys/{name}")).and_then(|mut f| f.write_all(value.as_bytes())).unwrap();
}
