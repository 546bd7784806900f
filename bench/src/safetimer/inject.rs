//! How each stage of SafeTimer's Table 1 is held up or made to drop, by what a stock kernel offers. Every injection ends when it is dropped; what a
//! killed run leaves goes with its lab, but for empty cgroups, which the next run removes.

use crate::rig::Rig;
use crate::sys::{self, Offload};
use anyhow::{Context as _, Result, bail};
use fide_lab::{FreezeBy, NETS, host_mac, nic_name};
use std::fs::{self, File};
use std::io::Write as _;
use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Of the agents' heartbeats, unless it is configured.
const PORT: u16 = 3_433;

/// The beginning of the names of our cgroups; then the process id.
const PREFIX: &str = "fide-safetimer-";

/// The host's device queue lets so much pass while it is held: one packet of `plain` in half a second, where times are not longer than usual.
fn crawl(rig: &Rig) -> String {
    format!("tbf rate {}bit burst 2000 limit 4000000", 8_000 / rig.spec().slower)
}
/// And so much when it is released. A bucket looks at its queue when something comes, or when the next packet would have been due.
const FLOW: &str = "tbf rate 10gbit burst 2000000 limit 4000000";
const DUE: Duration = Duration::from_millis(700);

/// Something that ends when dropped; nothing yet.
#[derive(Default)]
pub struct Injection {
    undo: Vec<Box<dyn FnOnce()>>,
}

impl Injection {
    /// Ends with this.
    pub fn and(&mut self, undo: impl FnOnce() + 'static) {
        self.undo.push(Box::new(undo));
    }
}

impl Drop for Injection {
    fn drop(&mut self) {
        while let Some(undo) = self.undo.pop() {
            undo();
        }
    }
}

/// Runs a tool in a host's namespace, with its own /sys.
fn tool(rig: &Rig, host: u16, words: &str) -> Result<()> {
    in_namespace(&rig.lab().host_netns(host), words)
}

fn in_namespace(namespace: &str, words: &str) -> Result<()> {
    let output =
        Command::new("ip").args(["netns", "exec", namespace]).args(words.split(' ')).output().context("cannot run ip")?;
    if !output.status.success() {
        bail!("{words}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn write_in_namespace(namespace: &str, file: &str, value: u64) -> Result<()> {
    let script = format!("echo {value} > {file}");
    let output = Command::new("ip").args(["netns", "exec", namespace, "sh", "-c", &script]).output().context("cannot run ip")?;
    if !output.status.success() {
        bail!("{script}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// To undo something that may be gone already.
fn regardless(done: Result<()>) {
    drop(done);
}

/// Processes stand still by SIGSTOP.
///
/// # Errors
/// When one of them is gone.
pub fn stop(rig: &Rig, pids: &[u32]) -> Result<Injection> {
    still(rig, pids, FreezeBy::Signal)
}

/// Processes stand still by the freezer of their cgroup.
///
/// # Errors
/// As [`stop`], and where there is no freezer.
pub fn freeze(rig: &Rig, pids: &[u32]) -> Result<Injection> {
    still(rig, pids, FreezeBy::Cgroup)
}

fn still(rig: &Rig, pids: &[u32], by: FreezeBy) -> Result<Injection> {
    let mut injection = Injection::default();
    let name = rig.lab().name().to_string();
    for pid in pids {
        let pid = pid.cast_signed();
        rig.lab().freeze(pid, by)?;
        let name = name.clone();
        injection.and(move || {
            if let Ok(lab) = fide_lab::Lab::open(&name) {
                // It may have ended; the lab's end thaws it otherwise.
                let _ = lab.thaw(pid);
            }
        });
    }
    Ok(injection)
}

/// Where cgroups of version 2 are mounted.
///
/// # Errors
/// When they are not.
pub fn cgroup_root() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read /proc/self/mounts")?;
    let words = |l: &str| l.split(' ').map(str::to_string).collect::<Vec<_>>();
    let found = mounts.lines().map(words).find(|w| w.get(2).is_some_and(|kind| kind == "cgroup2"));
    found.map(|w| PathBuf::from(&w[1])).context("cgroup version 2 is not mounted: mount -t cgroup2 none /sys/fs/cgroup/unified")
}

/// A cgroup of ours, removed when dropped.
pub struct Group(PathBuf);

impl Group {
    /// Makes one.
    ///
    /// # Errors
    /// Where version 2 is not mounted, or not for us.
    pub fn new(name: &str) -> Result<Self> {
        let directory = cgroup_root()?.join(format!("{PREFIX}{}-{name}", std::process::id()));
        fs::create_dir(&directory).with_context(|| format!("cannot make the cgroup {}", directory.display()))?;
        Ok(Self(directory))
    }

    /// Its directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.0
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// A cgroup stays busy for a moment after its last process has left.
fn remove(directory: &Path) {
    let deadline = Instant::now() + Duration::from_secs(2);
    while fs::remove_dir(directory).is_err() && directory.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Removes the cgroups of runs that were killed.
pub fn reap() {
    let Ok(root) = cgroup_root() else { return };
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|n| n.strip_prefix(PREFIX)).and_then(|n| n.split('-').next());
        if owner.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()) {
            // The inner one first; both are empty, since the lab has ended what was in them.
            let _ = fs::remove_dir(entry.path().join("threads"));
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// One thread of each process stands still; its other threads go on. (A *threaded* cgroup, frozen.)
///
/// # Errors
/// Where there is no cgroup version 2.
pub fn freeze_threads(threads: &[(u32, i32)]) -> Result<Injection> {
    let group = Group::new("freeze")?;
    let (root, inner) = (cgroup_root()?, group.0.join("threads"));
    let what = |e| anyhow::Error::from(e).context(format!("cannot freeze threads by the cgroup {}", inner.display()));
    let mut injection = Injection::default();
    fs::create_dir(&inner).map_err(what)?;
    let (gone, removed) = (inner.clone(), group);
    injection.and(move || {
        remove(&gone);
        drop(removed);
    });
    fs::write(inner.join("cgroup.type"), "threaded").map_err(what)?;
    for (pid, tid) in threads {
        let home = fs::read_to_string(format!("/proc/{pid}/cgroup")).map_err(what)?;
        let home = home.lines().find_map(|l| l.strip_prefix("0::/")).unwrap_or_default().to_string();
        let back = root.join(home).join("cgroup.procs");
        let pid = pid.to_string();
        if let Some(outer) = inner.parent() {
            fs::write(outer.join("cgroup.procs"), &pid).map_err(what)?;
        }
        injection.and(move || {
            // With all its threads; it may have ended.
            let _ = fs::write(back, pid);
        });
        fs::write(inner.join("cgroup.threads"), tid.to_string()).map_err(what)?;
    }
    let switch = inner.join("cgroup.freeze");
    fs::write(&switch, "1").map_err(what)?;
    injection.and(move || {
        let _ = fs::write(switch, "0");
    });
    let deadline = Instant::now() + Duration::from_secs(5);
    while !fs::read_to_string(inner.join("cgroup.events")).map_err(what)?.contains("frozen 1") {
        if Instant::now() > deadline {
            bail!("the kernel did not freeze {threads:?} within five seconds");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(injection)
}

/// Processes share one processor with something of the highest real-time priority that never sleeps.
///
/// # Errors
/// On a machine of one processor, without chrt, or without the permission.
pub fn starve(rig: &Rig, pids: &[u32]) -> Result<Injection> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < 2 {
        bail!("a machine of one processor has none to starve: what measures would starve too");
    }
    let chrt = crate::rig::find_program("chrt").context("chrt is not installed: apt-get install util-linux")?;
    let mut injection = Injection::default();
    for pid in pids.iter().copied() {
        sys::confine(pid, cpus - 1..cpus)?;
        injection.and(move || {
            let _ = sys::confine(pid, 0..cpus);
        });
    }
    let mut hog = rig.lab().command(1, chrt)?;
    hog.args(["-f", "99", "sh", "-c", "while :; do :; done"]).stdin(Stdio::null());
    let hog = Running(hog.spawn().context("cannot run chrt")?);
    sys::confine(hog.0.id(), cpus - 1..cpus)?;
    injection.and(move || drop(hog));
    Ok(injection)
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The sockets by which an agent receives take nothing (`SO_ATTACH_FILTER`), where it receives by sockets.
///
/// # Errors
/// When it is gone, or has none.
pub fn deaf(pid: u32) -> Result<Injection> {
    let mut injection = Injection::default();
    let sockets = sys::udp_sockets(pid, PORT).with_context(|| format!("cannot take hold of the sockets of process {pid}"))?;
    if sockets.is_empty() {
        bail!("process {pid} receives by no UDP socket of port {PORT}");
    }
    for socket in sockets {
        sys::be_deaf(socket.as_fd(), true)?;
        injection.and(move || {
            // Its agent may have ended: then the socket goes with this.
            let _ = sys::be_deaf(socket.as_fd(), false);
        });
    }
    Ok(injection)
}

/// A host's NICs get a NAPI: a veth without XDP has one for what GRO may merge only, which is what no other device may cut; the rest goes to a
/// processor's backlog at once.
///
/// # Errors
/// Where the kernel refuses.
pub fn poll(rig: &Rig, host: u16) -> Result<()> {
    for net in NETS {
        sys::offload(&rig.lab().host_netns(host), &nic_name(net), Offload::Gro, true).context("cannot turn GRO on")?;
        let port = fide_lab::host_name(host);
        sys::offload(&rig.lab().switch_netns(net), &port, Offload::Tso, false).context("cannot turn TSO off")?;
    }
    Ok(())
}

/// What a host's NICs receive goes to the backlog of the first processor (RPS), if it was not on its way there anyhow.
///
/// # Errors
/// Where the kernel refuses.
pub fn steer(rig: &Rig, host: u16) -> Result<()> {
    let namespace = rig.lab().host_netns(host);
    NETS.iter()
        .try_for_each(|net| write_in_namespace(&namespace, &format!("/sys/class/net/{}/queues/rx-0/rps_cpus", nic_name(*net)), 1))
}

/// What the module of `bench/kernel` offers.
const HOLD: &str = "/proc/fide-hold";

/// Whether packets can be held within the kernel; if not, why.
///
/// # Errors
/// The reason, in words.
pub fn can_hold() -> Result<()> {
    if Path::new(HOLD).exists() {
        return Ok(());
    }
    let lockdown = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    let why = if lockdown.contains("[integrity]") || lockdown.contains("[confidentiality]") {
        "this kernel is locked down and takes neither modules nor kprobes"
    } else if Path::new("/proc/modules").exists() {
        "the module is not loaded"
    } else {
        "this kernel takes no modules"
    };
    bail!(
        "{why}: there is no {HOLD} (bench/kernel/hold.c); FIDE_GUEST_SUITES=table1 scripts/guest has it, in an emulated machine"
    )
}

/// What hosts receive or send is held up, or dropped, in one function of the kernel.
///
/// # Errors
/// Where [`can_hold`] says so, and when the kernel has no such function.
pub fn hold(rig: &Rig, hosts: &[u16], function: &str, event: &str) -> Result<Injection> {
    can_hold()?;
    let mut file = File::options().write(true).open(HOLD).with_context(|| format!("cannot open {HOLD}"))?;
    for host in hosts {
        let namespace = fs::metadata(Path::new("/run/netns").join(rig.lab().host_netns(*host)))?.ino();
        file.write_all(format!("{namespace}\n").as_bytes())?;
    }
    file.write_all(format!("{function} {event}\n").as_bytes())
        .with_context(|| format!("{HOLD} does not take {function} {event}"))?;
    let mut injection = Injection::default();
    // To close it is to let go.
    injection.and(move || drop(file));
    Ok(injection)
}

/// What a host's NICs receive waits in their rings: NAPI polls by a timer alone (`napi_defer_hard_irqs`, `gro_flush_timeout`).
///
/// # Errors
/// Where the kernel refuses.
pub fn napi(rig: &Rig, host: u16, nets: &[u8], wait: Duration) -> Result<Injection> {
    let mut injection = Injection::default();
    for net in nets {
        let namespace = rig.lab().host_netns(host);
        let [flush, defer] =
            ["gro_flush_timeout", "napi_defer_hard_irqs"].map(|f| format!("/sys/class/net/{}/{f}", nic_name(*net)));
        let (f, d, n) = (flush.clone(), defer.clone(), namespace.clone());
        injection.and(move || {
            regardless(write_in_namespace(&n, &d, 0));
            regardless(write_in_namespace(&n, &f, 0));
        });
        write_in_namespace(&namespace, &flush, wait.as_nanos() as u64)?;
        write_in_namespace(&namespace, &defer, 1_000_000)?;
    }
    Ok(injection)
}

/// Packets to a port that nobody listens at, from one host to both NICs of another, faster than a ring of 256 that is not polled can take.
///
/// # Errors
/// When there is no socket to be had.
pub fn flood(rig: &Rig, from: u16, to: u16) -> Result<Injection> {
    const MOST: u32 = 100_000;
    let over = Arc::new(AtomicBool::new(false));
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    for net in NETS {
        let socket = rig.lab().in_host(from, || UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0)))??;
        let (over, target) = (Arc::clone(&over), (rig.lab().ipv4(to, net), 9));
        threads.push(std::thread::spawn(move || {
            for n in 0..MOST {
                if over.load(Ordering::Acquire) {
                    break;
                }
                // Refused or lost: it is a flood.
                let _ = socket.send_to(&[0; 16], target);
                if n % 32 == 31 {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }));
    }
    let mut injection = Injection::default();
    injection.and(move || {
        over.store(true, Ordering::Release);
        for thread in threads {
            let _ = thread.join();
        }
    });
    Ok(injection)
}

/// What a host's NICs receive waits between the device and IP: redirected to a device whose queue is at a crawl, from where it comes in again.
///
/// # Errors
/// Where the kernel has no ifb device.
pub fn before_ip(rig: &Rig, host: u16) -> Result<Injection> {
    let (mut injection, due) = (Injection::default(), DUE * rig.spec().slower);
    let namespace = rig.lab().host_netns(host);
    for net in NETS {
        let (nic, queue) = (nic_name(net), format!("in{net}"));
        let n = namespace.clone();
        let undo = [format!("tc qdisc del dev {nic} clsact"), format!("ip link del {queue}")];
        injection.and(move || {
            for words in undo {
                regardless(in_namespace(&n, &words));
            }
        });
        tool(rig, host, &format!("ip link add {queue} type ifb"))?;
        tool(rig, host, &format!("ip link set {queue} up"))?;
        tool(rig, host, &format!("tc qdisc add dev {queue} root {}", crawl(rig)))?;
        tool(rig, host, &format!("tc qdisc add dev {nic} clsact"))?;
        let filter = "protocol all pref 2 u32 match u32 0 0 action mirred egress redirect dev";
        tool(rig, host, &format!("tc filter add dev {nic} ingress {filter} {queue}"))?;
    }
    // First of all what waits goes on.
    injection.and(move || {
        for net in NETS {
            regardless(in_namespace(&namespace, &format!("tc qdisc change dev in{net} root {FLOW}")));
        }
        std::thread::sleep(due);
    });
    Ok(injection)
}

/// What hosts send waits in the queues of their devices.
///
/// # Errors
/// Where the kernel has no token bucket.
pub fn device(rig: &Rig, hosts: &[u16]) -> Result<Injection> {
    let (mut injection, due) = (Injection::default(), DUE * rig.spec().slower);
    let namespaces: Vec<String> = hosts.iter().map(|h| rig.lab().host_netns(*h)).collect();
    for namespace in &namespaces {
        for net in NETS {
            let n = namespace.clone();
            injection.and(move || regardless(in_namespace(&n, &format!("tc qdisc del dev {} root", nic_name(net)))));
            in_namespace(namespace, &format!("tc qdisc add dev {} root {}", nic_name(net), crawl(rig)))?;
        }
    }
    injection.and(move || {
        for (namespace, net) in namespaces.iter().flat_map(|n| NETS.map(|net| (n, net))) {
            regardless(in_namespace(namespace, &format!("tc qdisc change dev {} root {FLOW}", nic_name(net))));
        }
        std::thread::sleep(due);
    });
    Ok(injection)
}

/// What hosts send to another waits within IP's output for the neighbour's address, which that one does not tell.
///
/// # Errors
/// Where the kernel refuses.
pub fn neighbour(rig: &Rig, hosts: &[u16], to: u16) -> Result<Injection> {
    let mut injection = Injection::default();
    let nic = nic_name(0);
    let setting = format!("/proc/sys/net/ipv4/conf/{nic}/arp_ignore");
    let (namespace, file) = (rig.lab().host_netns(to), setting.clone());
    injection.and(move || regardless(write_in_namespace(&namespace, &file, 0)));
    write_in_namespace(&rig.lab().host_netns(to), &setting, 8)?;
    let (address, mac) = (rig.lab().ipv4(to, 0), host_mac(to, 0));
    for host in hosts {
        let namespace = rig.lab().host_netns(*host);
        let known = format!("ip neigh replace {address} lladdr {mac} dev {nic} nud reachable");
        let n = namespace.clone();
        injection.and(move || regardless(in_namespace(&n, &known)));
        in_namespace(&namespace, &format!("ip neigh del {address} dev {nic}"))?;
    }
    Ok(injection)
}

/// IP of these hosts refuses to send to another (`ip route add prohibit`): the sender gets EACCES.
///
/// # Errors
/// Where the kernel refuses.
pub fn prohibit(rig: &Rig, hosts: &[u16], to: u16) -> Result<Injection> {
    let mut injection = Injection::default();
    let address = rig.lab().ipv4(to, 0);
    for host in hosts {
        let namespace = rig.lab().host_netns(*host);
        in_namespace(&namespace, &format!("ip route add prohibit {address}/32"))?;
        injection.and(move || regardless(in_namespace(&namespace, &format!("ip route del prohibit {address}/32"))));
    }
    Ok(injection)
}
