//! What a check asks of this host: a turn on every processor, the number of an interface's queues, the way that a peer's packets come.

use crossbeam_channel::{Receiver, bounded};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Threads that may be waiting for a processor at a time.
const THREADS: usize = 16;
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Runs on every processor, twice, and passes its backlog there. The answer comes when that is done: never, while a processor is held up.
#[must_use]
pub fn turn_on_each() -> Receiver<Result<(), String>> {
    let (tell, done) = bounded(1);
    if WAITING.fetch_add(1, Ordering::SeqCst) >= THREADS {
        WAITING.fetch_sub(1, Ordering::SeqCst);
        let _ = tell.send(Err("too many checks wait for a processor that is held up".into()));
        return done;
    }
    let spawned = std::thread::Builder::new().name("fide-barrier".into()).spawn(move || {
        let visited = visit_all();
        WAITING.fetch_sub(1, Ordering::SeqCst);
        let _ = tell.send(visited); // nobody waits any more
    });
    if spawned.is_err() {
        WAITING.fetch_sub(1, Ordering::SeqCst); // the channel's end says so
    }
    done
}

fn visit_all() -> Result<(), String> {
    let online =
        fs::read_to_string("/sys/devices/system/cpu/online").map_err(|e| format!("the processors are not listed: {e}"))?;
    let socket =
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|e| format!("no packet can be sent to this host itself: {e}"))?;
    let to = socket.local_addr().map_err(|e| e.to_string())?;
    socket.connect(to).map_err(|e| e.to_string())?; // nobody else's
    socket.set_read_timeout(Some(Duration::from_secs(1))).map_err(|e| e.to_string())?;
    for cpu in turns(&online) {
        move_to(cpu).map_err(|e| format!("processor {cpu} cannot be visited: {e}"))?;
        let mark = (cpu as u64).to_ne_bytes();
        // The answer goes the same way through the backlog of this processor, behind what is there.
        socket.send(&mark).map_err(|e| format!("no packet can be sent to this host itself: {e}"))?;
        let mut got = [0; 8];
        loop {
            let n =
                socket.recv(&mut got).map_err(|e| format!("what this host sent itself on processor {cpu} did not come: {e}"))?;
            if n == 8 && got == mark {
                break;
            }
        }
    }
    Ok(())
}

/// All of them, and then all of them again: a poll that ends on one may hand what it had put aside to the backlog of another that had its turn before.
fn turns(online: &str) -> Vec<usize> {
    let all = cpus(online);
    [all.as_slice(), &all].concat()
}

/// `0-3,8`.
fn cpus(list: &str) -> Vec<usize> {
    let one = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.parse::<usize>().ok()?..=to.parse::<usize>().ok()?)
    };
    list.trim().split(',').filter_map(one).flatten().take(8192).collect()
}

/// Moves this thread; returns on that processor.
fn move_to(cpu: usize) -> std::io::Result<()> {
    // Room for as many processors as Linux knows.
    let mut set = [0u64; 128];
    let Some(word) = set.get_mut(cpu / 64) else { return Err(std::io::ErrorKind::InvalidInput.into()) };
    *word |= 1 << (cpu % 64);
    // SAFETY: a set of the stated size, which is only read; 0 is this thread.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), set.as_ptr().cast()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// How long the kernel's tick is: what its coarse clock resolves.
#[must_use]
pub fn jiffy_ns() -> u64 {
    let mut tick = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    // SAFETY: a timespec to fill; the clock exists on every Linux, and when not, the longest tick is assumed.
    unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut tick) };
    u64::try_from(tick.tv_nsec).unwrap_or(0).clamp(1_000_000, 10_000_000)
}

/// How many receive queues an interface of this thread's network namespace has, all of them polled by its own driver.
///
/// # Errors
/// In words: what waits for it may wait elsewhere, or neither the driver nor /sys says how many there are.
pub fn queues(interface: &str) -> Result<usize, String> {
    /// linux/ethtool.h
    #[repr(C)]
    struct Channels {
        command: u32,
        max: [u32; 4],
        rx: u32,
        tx: u32,
        other: u32,
        combined: u32,
    }
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    let ours = polled_by_its_driver(interface)?;
    let mut channels = Channels { command: ETHTOOL_GCHANNELS, max: [0; 4], rx: 0, tx: 0, other: 0, combined: 0 };
    // SAFETY: the structure that the command fills.
    let done = unsafe { ethtool(interface, (&raw mut channels).cast()) };
    let count = (channels.rx.saturating_add(channels.combined)) as usize;
    if done && count > 0 {
        return Ok(count);
    }
    let count = if ours { entries(&format!("{SYS}/{interface}/queues")).filter(|q| q.starts_with("rx-")).count() } else { 0 };
    if count > 0 { Ok(count) } else { Err(format!("it is not known how many receive queues {interface} has")) }
}

const SYS: &str = "/sys/class/net";

fn entries(dir: &str) -> impl Iterator<Item = String> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.file_name().to_string_lossy().into_owned())
}

/// Whether packets for this interface wait in its own driver's queues only: a veth, or a device that is there. All else has them from another interface
/// (which may be in another network namespace, where no `lower_` shows it) or from a process. `Ok`: whether /sys is of this namespace.
fn polled_by_its_driver(interface: &str) -> Result<bool, String> {
    // SAFETY: a name that ends with a zero.
    let index = name(interface).map_or(0, |name| unsafe { libc::if_nametoindex(name.as_ptr()) });
    if index == 0 {
        return Err(format!("there is no interface {interface}"));
    }
    let shown = fs::read_to_string(format!("{SYS}/{interface}/ifindex")).ok().and_then(|t| t.trim().parse().ok());
    let ours = shown == Some(index);
    let driver = driver(interface);
    if driver.as_deref() == Some("veth") {
        return Ok(ours);
    }
    if ours && entries(&format!("{SYS}/{interface}")).any(|name| name.starts_with("lower_")) {
        return Err(format!("{interface} stands on other interfaces, whose queues are not looked at (a bond, a bridge, a VLAN)"));
    }
    let uevent = fs::read_to_string(format!("{SYS}/{interface}/uevent")).ok().filter(|_| ours).unwrap_or_default();
    // A plain Ethernet device has no such word; wlan puts packets in order itself, dsa shares its queue.
    let kind = uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE="));
    if ours && kind.is_none() && fs::exists(format!("{SYS}/{interface}/device")).unwrap_or(false) {
        return Ok(ours);
    }
    let what = kind.map(str::to_owned).or(driver).map_or_else(|| "is of an unknown kind".into(), |kind| format!("is a {kind}"));
    let elsewhere = if ours { "" } else { ", and /sys is of another network namespace" };
    Err(format!(
        "{interface} {what}{elsewhere}: packets for it may wait elsewhere than in its own queues (those of physical NICs and of veths do not)"
    ))
}

fn name(interface: &str) -> Option<std::ffi::CString> {
    std::ffi::CString::new(interface).ok()
}

/// The name of its driver; of one without hardware, its kind.
fn driver(interface: &str) -> Option<String> {
    /// linux/ethtool.h, `struct ethtool_drvinfo`
    #[repr(C)]
    struct Info {
        command: u32,
        driver: [u8; 32],
        rest: [u8; 160],
    }
    const ETHTOOL_GDRVINFO: u32 = 3;
    let mut info = Info { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
    // SAFETY: a structure of the length that the command fills.
    let done = unsafe { ethtool(interface, (&raw mut info).cast()) };
    let end = info.driver.iter().position(|b| *b == 0)?;
    Some(String::from_utf8_lossy(&info.driver[..end]).into_owned()).filter(|driver| done && !driver.is_empty())
}

/// # Safety
/// What `data` points to begins with a command and is as long as the command's structure.
unsafe fn ethtool(interface: &str, data: *mut libc::c_char) -> bool {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    let Ok(socket) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)) else { return false };
    // SAFETY: ifreq is plain old data, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = data;
    // SAFETY: an open socket; the request's name ends with a zero, and the caller says what its data is.
    unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) == 0 }
}

/// The interface that has the address to which this peer sends; none when it is this host itself.
///
/// # Errors
/// In words.
pub fn interface_towards(peer: IpAddr) -> Result<Option<String>, String> {
    let any = if peer.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).map_err(|e| e.to_string())?;
    socket.connect(SocketAddr::new(peer, 9)).map_err(|e| format!("there is no way to {peer}: {e}"))?; // sends nothing
    let own = socket.local_addr().map_err(|e| e.to_string())?.ip();
    if own == peer || own.is_loopback() {
        return Ok(None);
    }
    named(own)?.map(Some).ok_or_else(|| format!("no interface has the address {own}"))
}

/// The interface of this address; of an IPv4 address it is its label, without what is behind the colon.
fn named(address: IpAddr) -> Result<Option<String>, String> {
    Ok(addresses()?.into_iter().find(|a| a.address == address).map(|a| a.interface))
}

/// The first interface by which packets may come though it is none of these: up, no loopback, and with an address.
///
/// # Errors
/// In words.
pub fn beside(known: &[String]) -> Result<Option<(String, IpAddr)>, String> {
    let other = |a: &Address| a.up && !a.loopback && !known.contains(&a.interface);
    Ok(addresses()?.into_iter().find(other).map(|a| (a.interface, a.address)))
}

struct Address {
    interface: String,
    up: bool,
    loopback: bool,
    address: IpAddr,
}

/// All of this thread's network namespace.
fn addresses() -> Result<Vec<Address>, String> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: a place for the list, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(format!("the interfaces are not listed: {}", std::io::Error::last_os_error()));
    }
    let (mut at, mut all) = (list, Vec::new());
    // SAFETY: entries are linked until NULL and live until the list is freed; the family of an address says how it is read.
    unsafe {
        while !at.is_null() {
            let entry = &*at;
            at = entry.ifa_next;
            if entry.ifa_addr.is_null() {
                continue;
            }
            let address = match i32::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let four = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    IpAddr::from(four.sin_addr.s_addr.to_ne_bytes())
                }
                libc::AF_INET6 => IpAddr::from(entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned().sin6_addr.s6_addr),
                _ => continue,
            };
            let label = std::ffi::CStr::from_ptr(entry.ifa_name).to_string_lossy();
            let is = |flag: libc::c_int| entry.ifa_flags & flag as libc::c_uint != 0;
            all.push(Address {
                interface: label.split(':').next().unwrap_or_default().to_owned(),
                up: is(libc::IFF_UP),
                loopback: is(libc::IFF_LOOPBACK),
                address,
            });
        }
        libc::freeifaddrs(list);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::namespace;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(cpus("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(cpus("0\n"), [0]);
        assert_eq!(cpus("nonsense"), [0; 0]);
        assert_eq!(cpus("0-99999999999").len(), 8192, "bounded");
    }

    #[test]
    fn what_the_last_processor_hands_to_the_first_is_waited_for() {
        let turns = turns("0-2\n");
        for (from, to) in (0..3).flat_map(|from| (0..3).map(move |to| (from, to))) {
            let handed = turns.iter().position(|cpu| *cpu == from).unwrap();
            assert!(turns[handed + 1..].contains(&to), "{from} to {to}: {turns:?}");
        }
    }

    #[test]
    fn a_jiffy_is_one_of_those_that_kernels_have() {
        assert!(
            [1_000_000, 3_333_333, 4_000_000, 10_000_000].iter().any(|tick| jiffy_ns().abs_diff(*tick) < 10_000),
            "{}",
            jiffy_ns()
        );
    }

    #[test]
    fn every_processor_has_its_turn() {
        assert_eq!(turn_on_each().recv_timeout(Duration::from_secs(30)).unwrap(), Ok(()));
    }

    #[test]
    fn what_waits_elsewhere_is_not_taken_for_one_queue() {
        let made = namespace::inside(|| {
            assert!(namespace::ip("link add v0 type veth peer name v1"), "veths are to be had wherever the tests run");
            assert!(queues("v0").is_ok_and(|n| n > 0), "{:?}", queues("v0"));
            let kinds = [
                ("vxlan", "link add x type vxlan id 5 dstport 4789"),
                ("macvlan", "link add x link v0 type macvlan"),
                ("ipvlan", "link add x link v0 type ipvlan"),
                ("vlan", "link add x link v0 type vlan id 5"),
                ("tun", "tuntap add x mode tun"),
                ("tun", "tuntap add x mode tap"),
                ("wireguard", "link add x type wireguard"),
                ("dummy", "link add x type dummy"),
                ("ifb", "link add x type ifb"),
            ];
            let mut made = 0;
            for (kind, command) in kinds {
                if !namespace::ip(command) {
                    println!("no {kind} here");
                    continue;
                }
                made += 1;
                let why = queues("x").expect_err(kind);
                assert!(why.contains(kind) || why.contains("stands on other interfaces"), "{kind}: {why}");
                assert!(namespace::ip("link del x"));
            }
            made
        });
        assert_ne!(made, Some(0), "no kind was looked at");
    }

    #[test]
    fn a_device_that_is_there_has_its_own_queues() {
        for name in entries(SYS).filter(|name| fs::exists(format!("{SYS}/{name}/device")).unwrap()) {
            if !fs::read_to_string(format!("{SYS}/{name}/uevent")).unwrap().contains("DEVTYPE") && driver(&name).is_some() {
                println!("{name}: {:?} {:?}", driver(&name), queues(&name));
                assert!(queues(&name).is_ok(), "{:?}", queues(&name));
            }
        }
    }

    #[test]
    fn interfaces_beside_the_paths_are_those_that_packets_may_come_by() {
        namespace::inside(|| {
            let ip = |command: &str| assert!(namespace::ip(command), "{command}");
            ip("link add v0 type veth peer name v1");
            ip("address add 10.9.0.1/24 dev v0 label v0:one");
            ip("address add 10.9.0.2/24 dev v1");
            ip("link set v0 up");
            let paths = ["v0".to_owned()];
            assert_eq!(named("10.9.0.1".parse().unwrap()).unwrap().as_deref(), Some("v0"));
            assert_eq!(beside(&paths), Ok(None), "v1 is down");
            ip("link set v1 up");
            assert_eq!(beside(&paths), Ok(Some(("v1".into(), "10.9.0.2".parse().unwrap()))));
            ip("address del 10.9.0.2/24 dev v1");
            assert!(beside(&paths).unwrap().is_none_or(|(name, address)| name == "v1" && address.is_ipv6()));
        });
    }

    #[test]
    fn the_way_to_this_host_itself_has_no_interface() {
        assert_eq!(interface_towards("127.0.0.1".parse().unwrap()), Ok(None));
        assert_eq!(named("127.0.0.1".parse().unwrap()).unwrap().as_deref(), Some("lo"));
        assert!(queues("no-such-nic").is_err());
    }
}
