//! The programs, really loaded and attached.
//!
//! Loading and attaching the exit watch disturb nobody: the watch list is empty. An XDP program is attached to an interface only
//! where that was asked for; it passes everything on that is not the lane's, but some drivers restart their queues when one comes or goes.

use super::files::Files;
use super::network::{NATIVE, Nic};
use super::{Group, Item, State, kernel};
use fide_wire::control::Status;
use fide_wire::mac::Keyring;
use fide_xdp::{Attach, Mechanism, Setup, Subscriber, XdpError};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Everything about the programs. `attach`: try the interfaces too, except those that the agent receives by (`agent`).
pub fn examine(files: &Files, nics: &[Nic], attach: bool, agent: Option<&Status>) -> Group {
    const TITLE: &str = "Programs in the kernel";
    if !kernel::may_load(files) {
        let found = "not tried: this user may not load any (CAP_BPF)";
        let item = Item::worse("bpf-load", "programs load", State::Unknown, found, "", "run the doctor as root");
        return Group { title: TITLE, items: vec![item] };
    }
    // Some cluster and port that no one uses: nothing on the wire is for this program.
    let setup = Setup { cluster: 1, node: 1, incarnation: 1, port: 9 };
    let mut items = Vec::new();
    let (with, without) = match Mechanism::load(setup, &Keyring::default(), true) {
        Ok(mechanism) => (Ok(mechanism), None),
        Err(e) => (Err(e), Some(Mechanism::load(setup, &Keyring::default(), false))),
    };
    let mut mechanism = match (with, without) {
        (Ok(mut mechanism), _) => {
            items.push(Item::ok("bpf-load", "programs load", "the verifier accepts them"));
            items.push(exit_watch(mechanism.attach_exit_watch().err().map(|e| told(&e))));
            Some(mechanism)
        }
        (Err(why), Some(Ok(mechanism))) => {
            items.push(Item::ok("bpf-load", "programs load", "the verifier accepts the receive program"));
            items.push(exit_watch(Some(told(&why))));
            Some(mechanism)
        }
        (Err(why), _) => {
            items.push(refused(&why));
            None
        }
    };
    if let Some(mechanism) = &mut mechanism {
        items.push(rings(mechanism));
        for nic in nics.iter().filter(|n| n.index > 0) {
            let item = match agent.and_then(|status| in_use(nic, status)) {
                Some(item) => item,
                None if attach => xdp(mechanism, nic),
                None => expected(nic),
            };
            items.push(item.of(&nic.name));
        }
    }
    Group { title: TITLE, items }
}

/// An error with its causes.
fn told(error: &XdpError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(e) = cause {
        if !text.contains(&e.to_string()) {
            text += &format!(": {e}");
        }
        cause = e.source();
    }
    text
}

fn refused(error: &XdpError) -> Item {
    Item::worse(
        "bpf-load",
        "programs load",
        State::Missing,
        told(error),
        "packets are received by sockets and exits seen by pidfd: some 10 to 100 µs more for each step, and hundreds of ms for the death of a process of several GB",
        "see the kernel's version, BTF, lockdown and privileges above",
    )
}

fn exit_watch(error: Option<String>) -> Item {
    let title = "exit watch (BTF tracepoints)";
    match error {
        None => Item::ok("exit-watch", title, "attaches: a process is seen doomed before its memory is torn down"),
        Some(e) => Item::worse(
            "exit-watch",
            title,
            State::Missing,
            e,
            "deaths are seen by pidfd, after the memory of the process was torn down: 130–230 ms later for 2 GB",
            "CAP_PERFMON, no lockdown=confidentiality, and in a container the host's pid namespace",
        ),
    }
}

/// Whether an application without privileges could map its ring.
fn rings(mechanism: &mut Mechanism) -> Item {
    let title = "event rings for users without privileges";
    let subscriber = match mechanism.new_subscriber() {
        Ok(subscriber) => subscriber,
        Err(e) => {
            let costs = "events reach applications through the agent's socket: one wake-up more";
            return Item::worse("rings", title, State::Degraded, told(&e), costs, "");
        }
    };
    let mapped = map_as_nobody(&subscriber);
    mechanism.remove_subscriber(subscriber);
    match mapped {
        Ok(true) => Item::ok("rings", title, "can be mapped by any user whom the agent gives one"),
        Ok(false) => Item::worse(
            "rings",
            title,
            State::Unknown,
            "mapping works for this user; another one could not be tried",
            "",
            "run the doctor as root",
        ),
        Err(e) => Item::worse(
            "rings",
            title,
            State::Degraded,
            format!("mapping is refused: {e}"),
            "events reach applications through the agent's socket: one wake-up more",
            "see whether a security module (SELinux, AppArmor) refuses it: dmesg | grep -i denied",
        ),
    }
}

/// Maps a ring in a thread that has become user nobody, if it may; `Ok(false)`: it mapped, but as this user.
fn map_as_nobody(subscriber: &Subscriber) -> io::Result<bool> {
    const NOBODY: libc::uid_t = 65534;
    let fd = subscriber.fd();
    std::thread::scope(|scope| {
        let tried = scope.spawn(move || {
            // SAFETY: three integers. The system call, unlike the C library's function, changes this thread alone, and it ends with it.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) } == 0;
            map(fd).map(|()| changed)
        });
        tried.join().unwrap_or_else(|_| Err(io::Error::other("the thread that tried it ended")))
    })
}

/// Maps the consumer's page as an application does, and unmaps it.
fn map(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: sysconf takes an integer.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    // SAFETY: a new mapping at an address of the kernel's choice, checked and unmapped again untouched.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), page, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd.as_raw_fd(), 0);
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::munmap(at, page);
    }
    Ok(())
}

const XDP: &str = "XDP on";
const GENERIC_COSTS: &str = "packets are seen after a copy and later in the stack: some µs more, and more jitter under load";

/// What a running agent has found.
fn in_use(nic: &Nic, agent: &Status) -> Option<Item> {
    agent.paths.iter().find(|p| p.interface == nic.name)?;
    match agent.receive.as_str() {
        "xdp-native" => Some(Item::ok("xdp", XDP, "native: the agent receives by it")),
        "xdp-generic" => {
            let advice = "a NIC whose driver has XDP; on virtio, enough queues (as many as processors, twice)";
            Some(Item::worse("xdp", XDP, State::Degraded, "generic: the agent receives by it", GENERIC_COSTS, advice))
        }
        _ => None,
    }
}

/// What the driver's name promises.
fn expected(nic: &Nic) -> Item {
    let driver = nic.driver.as_deref().unwrap_or("");
    let found = if NATIVE.contains(&driver) {
        format!("not tried; driver {driver} is known to have it natively")
    } else if driver.is_empty() {
        "not tried; the driver does not say its name".into()
    } else {
        format!("not tried; driver {driver} is not known to have it natively, the generic hook works everywhere")
    };
    let advice = format!(
        "try it: fide doctor --interface {} (attaches and detaches a program; some drivers drop the link for a moment)",
        nic.name
    );
    Item::worse("xdp", XDP, State::Unknown, found, "", &advice)
}

fn xdp(mechanism: &mut Mechanism, nic: &Nic) -> Item {
    let native = mechanism.attach(0, nic.index, Some(Attach::Native)).map(drop);
    let generic = if native.is_err() { Some(mechanism.attach(0, nic.index, Some(Attach::Generic)).map(drop)) } else { None };
    mechanism.detach(0);
    let driver = nic.driver.as_deref().unwrap_or("?");
    judge_xdp(driver, native.err().as_ref(), generic.and_then(Result::err).as_ref())
}

/// `native`, `generic`: why not; `generic` counts only if there is a `native`.
fn judge_xdp(driver: &str, native: Option<&XdpError>, generic: Option<&XdpError>) -> Item {
    let busy = |e: &XdpError| matches!(e, XdpError::Attach { source, .. } if source.raw_os_error() == Some(libc::EBUSY));
    match (native, generic) {
        (None, _) => Item::ok("xdp", XDP, format!("native (driver {driver})")),
        (Some(n), Some(g)) if busy(n) || busy(g) => Item::worse(
            "xdp",
            XDP,
            State::Unknown,
            "an XDP program is attached already (the agent's, if it runs: fide status says how it receives)",
            "",
            "stop the agent to try it, or see whose it is: ip link show",
        ),
        (Some(n), None) => Item::worse(
            "xdp",
            XDP,
            State::Degraded,
            format!("generic only (driver {driver}: {})", told(n)),
            GENERIC_COSTS,
            "a NIC whose driver has XDP; on virtio, enough queues (as many as processors, twice)",
        ),
        (Some(_), Some(g)) => Item::worse(
            "xdp",
            XDP,
            State::Missing,
            told(g),
            "packets are received by sockets: a wake-up of the agent more, some 10 to 100 µs",
            "CAP_NET_ADMIN, and a kernel with CONFIG_XDP_SOCKETS or later",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: i32) -> XdpError {
        XdpError::Attach { what: "x".into(), source: io::Error::from_raw_os_error(code) }
    }

    #[test]
    fn an_interface_is_judged_by_the_best_hook_it_has() {
        assert_eq!(judge_xdp("veth", None, None).state, State::Ok);
        assert_eq!(judge_xdp("e1000", Some(&error(libc::EOPNOTSUPP)), None).state, State::Degraded);
        assert_eq!(judge_xdp("e1000", Some(&error(libc::EOPNOTSUPP)), Some(&error(libc::EPERM))).state, State::Missing);
    }

    #[test]
    fn a_program_of_someone_else_is_not_taken_for_a_fault() {
        let item = judge_xdp("veth", Some(&error(libc::EBUSY)), Some(&error(libc::EBUSY)));
        assert!(item.state == State::Unknown && item.found.contains("attached already"));
    }

    #[test]
    fn an_interface_that_the_agent_receives_by_is_not_touched() {
        use fide_wire::control::LocalPath;
        let nic = |name: &str| Nic { name: name.into(), ..Nic::default() };
        let path = LocalPath { interface: "eth1".into(), ..LocalPath::default() };
        let agent = |receive: &str| Status { receive: receive.into(), paths: vec![path.clone()], ..Status::default() };
        let state = |name: &str, receive: &str| in_use(&nic(name), &agent(receive)).map(|i| i.state);
        assert_eq!(state("eth1", "xdp-native"), Some(State::Ok));
        assert_eq!(state("eth1", "xdp-generic"), Some(State::Degraded));
        assert_eq!((state("eth2", "xdp-native"), state("eth1", "udp")), (None, None));
    }

    #[test]
    fn an_untried_interface_says_what_its_driver_promises() {
        let nic = |driver: &str| Nic { name: "eth1".into(), driver: Some(driver.into()), ..Nic::default() };
        assert!(expected(&nic("virtio_net")).found.contains("known to have"));
        assert!(expected(&nic("e1000")).found.contains("not known"));
        assert!(expected(&nic("e1000")).advice.unwrap().contains("--interface eth1"));
    }
}
