//! The fence: what this host could guard, what its agent guards, and what is left out.
//!
//! Everything is tried where it disturbs nobody: filters on a device of a network namespace of its own, a gate on a cgroup made for it, which lets everything
//! pass, pins in a directory that is removed again.

use super::network::Nic;
use super::{Group, Item, State, kernel};
use fide_agent::stale_sockets::{self, HeldBack, Made, Whose};
use fide_wire::control::{FenceStatus, Status};
use fide_xdp::{Fence, FenceError};
use std::fs;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The lowest file system that fences are kept on.
const PINS: &str = "/sys/fs/bpf";

/// Everything about the fence. `may`: this user may load programs; `status`: of the agent that runs.
pub fn examine(may: bool, nics: &[Nic], status: Option<&Status>) -> Group {
    let mut items = if may {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        vec![host(&try_host()), cgroup(&try_cgroup(&mounts), &mounts), connections(&try_connections())]
    } else {
        let found = "not tried: this user may not load any program (CAP_BPF)";
        vec![Item::worse("fence-host", "fence around the host", State::Unknown, found, "", "run the doctor as root")]
    };
    if let Some(status) = status {
        let outside: Vec<&str> = nics.iter().filter(|n| n.index > 0 && n.leads_out()).map(|n| n.name.as_str()).collect();
        items.push(own(status.fence.as_ref(), &outside));
    }
    Group { title: "Fence", items }
}

/// What came of a trial: said where it failed, or could not be tried.
#[derive(Debug)]
enum Tried {
    Works,
    Fails(String),
    /// One command may be enough.
    Lacks {
        what: String,
        command: String,
    },
    Not(String),
}

impl Tried {
    fn of(outcome: Result<(), FenceError>) -> Self {
        match outcome {
            Ok(()) => Self::Works,
            Err(FenceError::NotBpffs { .. }) => Self::Lacks {
                what: format!("no BPF file system is mounted at {PINS}, where gates are kept"),
                command: format!("mount -t bpf bpf {PINS}"),
            },
            Err(e) => Self::Fails(e.to_string()),
        }
    }
}

fn judge(item: &'static str, title: &str, tried: &Tried, works: &str, costs: &str, advice: &str) -> Item {
    match tried {
        Tried::Works => Item::ok(item, title, works),
        Tried::Fails(why) => Item::worse(item, title, State::Missing, why.clone(), costs, advice),
        Tried::Lacks { what, command } => Item::worse(item, title, State::Missing, what.clone(), costs, command),
        Tried::Not(why) => Item::worse(item, title, State::Unknown, format!("not tried: {why}"), "", "run the doctor as root"),
    }
}

fn host(tried: &Tried) -> Item {
    judge(
        "fence-host",
        "fence around the host",
        tried,
        "its program attaches to egress (tcx, or clsact before Linux 6.6); not covered: packets past the queueing discipline, AF_XDP, devices of their own (docs/fence.md)",
        "[fence] host = true cannot be had: a late host is still heard",
        "modprobe -a sch_ingress cls_bpf; if there are no such modules, a kernel with CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS, or Linux 6.6",
    )
}

fn cgroup(tried: &Tried, mounts: &str) -> Item {
    let works = format!(
        "cgroup egress programs attach to directories below {}; not covered: packet sockets, Unix sockets, files",
        kernel::cgroup2(mounts).unwrap_or("/sys/fs/cgroup")
    );
    judge(
        "fence-cgroup",
        "fence around processes",
        tried,
        &works,
        "[fence] cgroups and [[gate]] cannot be had: a late or doomed process is still heard",
        "a kernel with CONFIG_CGROUP_BPF",
    )
}

fn connections(tried: &Tried) -> Item {
    judge(
        "fence-connections",
        "ending what a closed gate holds back",
        tried,
        "TCP connections can be ended (SOCK_DESTROY): nothing of a former instance leaves when the next one begins",
        "a [[gate]] that holds something back is not opened anew, unless it says connections = \"keep\"",
        "CONFIG_INET_DIAG_DESTROY",
    )
}

/// A directory that is removed again, as `remove` knows.
struct Scratch(PathBuf);

impl Scratch {
    fn below(dir: &Path) -> Self {
        Self(dir.join(format!("fide-doctor-{}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0); // not there any more, mostly
    }
}

/// What is made in `dir` is taken away again, whatever came of it.
fn with_fence(what: impl FnOnce(&mut Fence) -> Result<(), FenceError>) -> Result<(), FenceError> {
    let pins = Scratch::below(Path::new(PINS));
    let mut fence = Fence::open(&pins.0)?;
    let done = what(&mut fence);
    done.and(fence.remove())
}

/// Runs this on a thread in a network namespace of its own, in which loopback is up.
fn elsewhere(work: impl FnOnce() -> Tried + Send) -> Tried {
    let inside = || {
        // SAFETY: no preconditions. Only this thread moves, and it ends.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Tried::Not(format!("no network namespace ({})", io::Error::last_os_error()));
        }
        match ip("link set lo up") {
            Ok(()) => work(),
            Err(why) => Tried::Not(why),
        }
    };
    std::thread::scope(|s| s.spawn(inside).join().unwrap_or_else(|_| Tried::Not("the trial ended early".into())))
}

fn ip(command: &str) -> Result<(), String> {
    match Command::new("ip").args(command.split(' ')).output() {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => Err(format!("ip {command}: {}", String::from_utf8_lossy(&out.stderr).trim())),
        Err(e) => Err(format!("iproute2 is not there ({e})")),
    }
}

fn try_host() -> Tried {
    elsewhere(|| {
        if let Err(why) = ip("link add fide0 type veth peer name fide1") {
            return Tried::Not(why);
        }
        // SAFETY: a string that ends with a zero.
        let index = unsafe { libc::if_nametoindex(c"fide0".as_ptr()) };
        Tried::of(with_fence(|fence| fence.guard_interface(index).map(drop)))
    })
}

fn try_cgroup(mounts: &str) -> Tried {
    let Some(root) = kernel::cgroup2(mounts) else {
        return Tried::Lacks { what: "cgroup version 2 is not mounted".into(), command: kernel::mount_cgroup2(mounts) };
    };
    let group = Scratch::below(Path::new(root));
    if let Err(e) = fs::create_dir(&group.0) {
        return Tried::Not(format!("{}: {e}", group.0.display()));
    }
    Tried::of(with_fence(|fence| fence.guard_cgroup(&group.0).map(drop)))
}

/// Ends a connection that holds something back.
fn try_connections() -> Tried {
    fn held() -> io::Result<TcpListener> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut left = TcpStream::connect(listener.local_addr()?)?;
        left.set_nonblocking(true)?;
        while left.write(&[0; 65536]).is_ok() {}
        Ok(listener)
    }
    elsewhere(|| match held() {
        Err(e) => Tried::Not(e.to_string()),
        Ok(_listener) => match stale_sockets::end(Made::Anywhere, Whose::Nobodys, None) {
            Ok(0) => Tried::Fails("the kernel does not list what was left behind".into()),
            Ok(_) => Tried::Works,
            Err(HeldBack::NotEnded { why, .. }) if why.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                Tried::Fails("this kernel was built without CONFIG_INET_DIAG_DESTROY".into())
            }
            Err(e) => Tried::Fails(e.to_string()),
        },
    })
}

/// What the agent guards. `outside`: the interfaces by which something may leave.
fn own(fence: Option<&FenceStatus>, outside: &[&str]) -> Item {
    let title = "this host's fence";
    let Some(f) = fence else {
        return Item::ok("fence", title, "none is configured: a late host is heard after it was taken for dead ([fence] mode)");
    };
    let host = f.gates.iter().any(|g| g.name == "host");
    let groups = f.gates.iter().filter(|g| g.name != "host").count();
    let mut found = format!("{}, {}; guarded: ", f.state, f.mode);
    found += &match (host, groups) {
        (true, 0) => f.interfaces.join(", "),
        (true, n) => format!("{}, {n} cgroups", f.interfaces.join(", ")),
        (false, n) => format!("{n} cgroups, nothing else of this host"),
    };
    let worse = |found: String, costs: &str, advice: &str| Item::worse("fence", title, State::Degraded, found, costs, advice);
    match f.state.as_str() {
        "fenced" | "recovering" => {
            let advice = "when the applications have begun anew: fide fence recover";
            return worse(format!("{found}; {}", f.why), "nothing that is guarded leaves", advice);
        }
        "starting" => {
            let costs = "nothing is promised to others, and nothing but cgroups with at_start = \"closed\" is held back";
            return worse(found, costs, "see who confirms: fide fence status");
        }
        _ => {}
    }
    let open: Vec<&str> = outside.iter().copied().filter(|name| !f.interfaces.iter().any(|i| i == name)).collect();
    if host && !open.is_empty() {
        let found = format!("{found}; not guarded: {}", open.join(", "));
        let advice = "name them in [fence] interfaces, or [\"*\"] for all; those of virtual machines and containers, too";
        return worse(found, "what leaves by these is heard also when this host is fenced", advice);
    }
    Item::ok("fence", title, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_wire::control::GateStatus;

    fn fence(state: &str, gates: &[&str]) -> FenceStatus {
        FenceStatus {
            state: state.into(),
            mode: "sent".into(),
            why: "an operator shut it".into(),
            interfaces: vec!["eth1".into(), "eth2".into()],
            gates: gates.iter().map(|n| GateStatus { name: (*n).into(), ..GateStatus::default() }).collect(),
            ..FenceStatus::default()
        }
    }

    #[test]
    fn what_is_not_guarded_is_named() {
        let item = own(Some(&fence("open", &["host", "/sys/fs/cgroup/db"])), &["eth1", "eth2"]);
        assert_eq!((item.state, item.found.as_str()), (State::Ok, "open, sent; guarded: eth1, eth2, 1 cgroups"));
        let item = own(Some(&fence("open", &["host"])), &["eth0", "eth1", "docker0"]);
        assert!(item.state == State::Degraded && item.found.ends_with("not guarded: eth0, docker0"), "{item:?}");
        let item = own(Some(&fence("open", &["/sys/fs/cgroup/db"])), &["eth0"]);
        assert!(item.state == State::Ok && item.found.contains("nothing else of this host"), "{item:?}");
        assert!(own(None, &["eth0"]).found.contains("none is configured"));
    }

    #[test]
    fn a_fence_that_is_closed_or_not_armed_is_told_with_what_to_do() {
        let item = own(Some(&fence("fenced", &["host"])), &[]);
        assert!(item.found.contains("an operator shut it") && item.advice.unwrap().contains("fide fence recover"));
        assert!(own(Some(&fence("starting", &["host"])), &[]).costs.unwrap().contains("nothing is promised"));
    }

    #[test]
    fn what_cannot_be_had_says_what_is_missing() {
        let fails = Tried::Fails("this kernel was built without CONFIG_INET_DIAG_DESTROY".into());
        assert_eq!(connections(&fails).state, State::Missing);
        assert!(connections(&fails).costs.unwrap().contains("connections = \"keep\""));
        assert_eq!(cgroup(&Tried::Not("no root".into()), "").state, State::Unknown);
        // Where a mount is enough, that is what is told, as a command, and no other kernel.
        let unmounted = Tried::of(Err(FenceError::NotBpffs { dir: PINS.into() }));
        assert_eq!(host(&unmounted).advice.as_deref(), Some("mount -t bpf bpf /sys/fs/bpf"));
        let advice = cgroup(&try_cgroup("tmpfs /sys/fs/cgroup tmpfs rw 0 0\n"), "").advice.unwrap();
        assert_eq!(advice, "mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified");
        assert!(
            cgroup(&Tried::Works, "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n")
                .found
                .contains("below /sys/fs/cgroup/unified")
        );
        assert!(host(&fails).advice.unwrap().starts_with("modprobe -a "));
        assert!(!host(&fails).essential, "an agent without a fence works");
    }

    #[test]
    fn trials_leave_nothing_behind() {
        // SAFETY: no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            println!("SKIPPED: needs root");
            return;
        }
        // Not every machine has a BPF file system there; this thread has one that goes with it.
        // SAFETY: of this thread alone; C strings that live across the calls.
        let mounted = unsafe {
            let (root, bpf, at) = (c"/", c"bpf", c"/sys/fs/bpf");
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(
                    std::ptr::null(),
                    root.as_ptr(),
                    std::ptr::null(),
                    libc::MS_REC | libc::MS_PRIVATE,
                    std::ptr::null(),
                ) == 0
                && libc::mount(bpf.as_ptr(), at.as_ptr(), bpf.as_ptr(), 0, std::ptr::null()) == 0
        };
        assert!(mounted, "{}", std::io::Error::last_os_error());
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        for tried in [try_host(), try_cgroup(&mounts), try_connections()] {
            assert!(!matches!(tried, Tried::Fails(_) | Tried::Lacks { .. }), "{tried:?}");
        }
        assert!(!Scratch::below(Path::new(PINS)).0.exists());
    }
}
