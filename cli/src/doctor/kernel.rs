//! The kernel: its version, what it allows, whose privileges this is, its clock.

use super::files::Files;
use super::{Group, Item, State};
use crate::units;

/// The inode number of the first pid namespace (PROC_PID_INIT_INO).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Capabilities that the agent uses: number, name, what for.
const CAPABILITIES: [(u32, &str, &str); 6] = [
    (39, "CAP_BPF", "loading programs: without it plain sockets and pidfds"),
    (12, "CAP_NET_ADMIN", "attaching to interfaces: without it plain sockets"),
    (38, "CAP_PERFMON", "the exit watch: without it pidfds, which tell of a death only when the process is gone"),
    (13, "CAP_NET_RAW", "sending past the queueing discipline: without it UDP sockets"),
    (23, "CAP_SYS_NICE", "real-time priority: without it the agent waits its turn under load"),
    (14, "CAP_IPC_LOCK", "locked memory: without it a page fault may delay a heartbeat"),
];
/// CAP_SYS_ADMIN stands for CAP_BPF and CAP_PERFMON.
const SYS_ADMIN: u32 = 21;

/// Everything about the kernel.
pub fn examine(files: &Files) -> Group {
    let release = files.read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let items = vec![
        version(&release),
        btf(files.exists("/sys/kernel/btf/vmlinux")),
        lockdown(files.read("/sys/kernel/security/lockdown").as_deref()),
        capabilities(effective(&files.read("/proc/self/status").unwrap_or_default())),
        pid_namespace(files.link("/proc/self/ns/pid").as_deref()),
        cgroup(&files.read("/proc/self/mounts").unwrap_or_default()),
        memlock(&files.read("/proc/self/limits").unwrap_or_default(), &release),
        clock_source(files.read("/sys/devices/system/clocksource/clocksource0/current_clocksource").as_deref()),
    ];
    Group { title: "Kernel", items }
}

/// `6.1.0-18-amd64` → (6, 1).
fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn version(release: &str) -> Item {
    let title = "kernel 5.15 or later";
    let upgrade = "run a kernel of 5.15 or later (Debian 12 and Ubuntu 22.04 have one)";
    match parse_release(release) {
        None => Item::worse("kernel", title, State::Unknown, format!("{release:?} is not understood"), "", ""),
        Some(v) if v >= (5, 15) => Item::ok("kernel", title, release),
        Some(v) => {
            let costs = match v {
                _ if v >= (5, 9) => {
                    "no programs of ours load: packets are received by sockets (a wake-up more for each), exits seen by pidfd, \
                     which for a process of several GB comes hundreds of ms late"
                }
                _ if v >= (5, 3) => {
                    "no ring buffers and XDP links: plain sockets, and pidfds that tell late of a large process's death"
                }
                _ => "no pidfds: the death of a process cannot be seen reliably",
            };
            let item = Item::worse("kernel", title, State::Degraded, release, costs, upgrade);
            if v < (5, 3) { Item { state: State::Missing, ..item }.essential() } else { item }
        }
    }
}

fn btf(present: bool) -> Item {
    let title = "kernel type information (BTF)";
    if present {
        return Item::ok("btf", title, "/sys/kernel/btf/vmlinux");
    }
    Item::worse(
        "btf",
        title,
        State::Missing,
        "no /sys/kernel/btf/vmlinux",
        "the programs cannot adapt themselves to this kernel: plain sockets and pidfds",
        "run a kernel built with CONFIG_DEBUG_INFO_BTF=y, as all distributions' are",
    )
}

fn lockdown(text: Option<&str>) -> Item {
    let title = "kernel lockdown";
    let mode = text.and_then(|t| t.split_once('[')?.1.split_once(']')).map_or("none", |(mode, _)| mode);
    match mode {
        "none" => Item::ok("lockdown", title, "none"),
        "integrity" => Item::ok("lockdown", title, "integrity (BTF tracepoints and XDP work under it)"),
        other => Item::worse(
            "lockdown",
            title,
            State::Degraded,
            other,
            "programs may not read kernel memory: the exit watch is refused, deaths are seen by pidfd, late for large processes",
            "boot with lockdown=integrity",
        ),
    }
}

/// The effective capabilities in /proc/self/status.
fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Whether this process may load programs.
pub fn may_load(files: &Files) -> bool {
    let mask = effective(&files.read("/proc/self/status").unwrap_or_default());
    mask.is_some_and(|m| [39, SYS_ADMIN].iter().any(|bit| m >> bit & 1 == 1))
}

fn capabilities(mask: Option<u64>) -> Item {
    let title = "privileges of this user";
    let Some(mask) = mask else {
        return Item::worse("capabilities", title, State::Unknown, "/proc/self/status is not readable", "", "");
    };
    let has = |bit: u32| mask >> bit & 1 == 1;
    let covered = |bit: u32| has(bit) || (matches!(bit, 38 | 39) && has(SYS_ADMIN));
    let lacking: Vec<_> = CAPABILITIES.iter().filter(|(bit, ..)| !covered(*bit)).collect();
    if lacking.is_empty() {
        return Item::ok("capabilities", title, "all that the agent needs");
    }
    let names: Vec<&str> = lacking.iter().map(|(_, name, _)| *name).collect();
    let costs: Vec<String> = lacking.iter().map(|(_, name, cost)| format!("{name} is for {cost}")).collect();
    Item::worse(
        "capabilities",
        title,
        State::Degraded,
        format!("lacks {}", names.join(", ")),
        &costs.join("; "),
        "run the doctor as root to see what the agent can do (its systemd unit gives it all of these)",
    )
}

fn pid_namespace(link: Option<&str>) -> Item {
    let title = "first pid namespace";
    match link {
        Some(FIRST_PID_NAMESPACE) => Item::ok("pid-namespace", title, "yes"),
        None => Item::worse("pid-namespace", title, State::Unknown, "/proc/self/ns/pid is not readable", "", ""),
        Some(_) => Item::worse(
            "pid-namespace",
            title,
            State::Degraded,
            "no: this is inside a container's",
            "the kernel's exit watch numbers processes as the first namespace does: an agent in here watches by pidfd, and its own container only",
            "run the agent on the host, or start the container with --pid=host",
        ),
    }
}

/// Where cgroup version 2 is mounted.
pub fn cgroup2(mounts: &str) -> Option<&str> {
    mounts.lines().find_map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
        [_, root, "cgroup2", ..] => Some(root),
        _ => None,
    })
}

/// The command that mounts it: beside controllers of version 1 where there are some, as systemd does.
pub fn mount_cgroup2(mounts: &str) -> String {
    let beside = mounts.lines().any(|l| l.split(' ').nth(1).is_some_and(|at| at.starts_with("/sys/fs/cgroup")));
    let at = if beside { "/sys/fs/cgroup/unified" } else { "/sys/fs/cgroup" };
    format!("mkdir -p {at} && mount -t cgroup2 cgroup2 {at}")
}

fn cgroup(mounts: &str) -> Item {
    let title = "cgroup v2";
    match cgroup2(mounts) {
        Some(root) => Item::ok("cgroup", title, root),
        None => Item::worse(
            "cgroup",
            title,
            State::Degraded,
            "not mounted",
            "containers and systemd units cannot be found by their cgroup, and none can be fenced",
            &format!(
                "{}; for good, boot with systemd.unified_cgroup_hierarchy=1. Or name processes by pid, name or port",
                mount_cgroup2(mounts)
            ),
        ),
    }
}

fn memlock(limits: &str, release: &str) -> Item {
    let title = "locked memory";
    let line = limits.lines().find_map(|l| l.strip_prefix("Max locked memory"));
    let hard = line.and_then(|l| l.split_whitespace().nth(1)).unwrap_or("");
    match (hard.parse::<u64>(), parse_release(release)) {
        (Err(_), _) if hard == "unlimited" => Item::ok("memlock", title, "unlimited"),
        (Err(_), _) => Item::worse("memlock", title, State::Unknown, "the limit is not readable", "", ""),
        (Ok(bytes), _) if bytes >= 64 << 20 => Item::ok("memlock", title, format!("{} MiB", bytes >> 20)),
        // Since 5.11 maps are charged to the cgroup, not to this limit; CAP_IPC_LOCK overrides it for mlock.
        (Ok(bytes), Some(v)) if v >= (5, 11) => {
            Item::ok("memlock", title, format!("{} MiB (maps are not counted; mlock needs CAP_IPC_LOCK)", bytes >> 20))
        }
        (Ok(bytes), _) => Item::worse(
            "memlock",
            title,
            State::Degraded,
            format!("{} MiB", bytes >> 20),
            "on this kernel BPF maps are counted against the limit and may be refused",
            "LimitMEMLOCK=infinity in the agent's unit",
        ),
    }
}

fn clock_source(name: Option<&str>) -> Item {
    let title = "clock source";
    match name {
        Some(name @ ("tsc" | "kvm-clock" | "arch_sys_counter" | "hyperv_clocksource_tsc_page")) => Item::ok("clock", title, name),
        Some(name) => Item::worse(
            "clock",
            title,
            State::Degraded,
            name,
            &format!(
                "every reading of the clock costs about {} instead of 20 ns, several times for each heartbeat",
                units::ns(1_000)
            ),
            "see why the kernel mistrusts the TSC: dmesg | grep -i -e tsc -e clocksource",
        ),
        None => Item::worse("clock", title, State::Unknown, "not readable", "", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_judged_by_what_they_lose() {
        for release in ["5.15.0", "6.1.0-18-amd64", "6.18.5+deb"] {
            assert_eq!(version(release).state, State::Ok, "{release}");
        }
        for (release, loses) in [("5.10.0-28", "pidfd"), ("5.4.0", "ring buffers")] {
            let item = version(release);
            assert!(item.state == State::Degraded && item.costs.unwrap().contains(loses), "{release}");
        }
        let old = version("4.19.0");
        assert!(old.state == State::Missing && old.essential);
        assert_eq!(version("garbage").state, State::Unknown);
    }

    #[test]
    fn lockdown_is_read_from_the_brackets() {
        assert_eq!(lockdown(Some("none [integrity] confidentiality")).state, State::Ok);
        assert_eq!(lockdown(Some("none integrity [confidentiality]")).state, State::Degraded);
        assert_eq!(lockdown(None).state, State::Ok);
    }

    #[test]
    fn cap_sys_admin_stands_for_bpf_and_perfmon() {
        let root = effective("Name:\tx\nCapEff:\t000001ffffffffff\n");
        assert_eq!(capabilities(root).state, State::Ok);
        let bits = |list: &[u32]| list.iter().fold(0u64, |m, b| m | 1 << b);
        assert_eq!(capabilities(Some(bits(&[12, 13, 14, 21, 23]))).state, State::Ok);
        let item = capabilities(Some(bits(&[12, 13, 14, 23])));
        assert_eq!(item.found, "lacks CAP_BPF, CAP_PERFMON");
        assert_eq!(capabilities(None).state, State::Unknown);
    }

    #[test]
    fn a_containers_pid_namespace_is_noticed() {
        assert_eq!(pid_namespace(Some("pid:[4026531836]")).state, State::Ok);
        assert_eq!(pid_namespace(Some("pid:[4026532198]")).state, State::Degraded);
    }

    #[test]
    fn a_cgroup_file_system_that_is_not_mounted_is_mounted_by_the_command_that_is_told() {
        assert_eq!(cgroup("cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n").found, "/sys/fs/cgroup/unified");
        let v1 = "tmpfs /sys/fs/cgroup tmpfs ro 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n";
        let first = |mounts: &str| cgroup(mounts).advice.unwrap().split(';').next().unwrap().to_owned();
        assert_eq!(first(v1), "mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified");
        assert_eq!(first("proc /proc proc rw 0 0\n"), "mkdir -p /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup");
    }

    #[test]
    fn small_memory_limits_matter_on_old_kernels_only() {
        let limits = "Max locked memory         8388608              8388608              bytes     \n";
        assert_eq!(memlock(limits, "6.1.0").state, State::Ok);
        assert_eq!(memlock(limits, "5.8.0").state, State::Degraded);
        assert_eq!(memlock("", "6.1.0").state, State::Unknown);
    }

    #[test]
    fn a_tree_without_anything_is_examined_without_a_panic() {
        let empty = tempfile::tempdir().unwrap();
        let group = examine(&Files::at(empty.path()));
        assert!(group.items.iter().any(|i| i.item == "btf" && i.state == State::Missing));
        assert!(group.items.iter().all(|i| !i.found.is_empty()));
    }
}
