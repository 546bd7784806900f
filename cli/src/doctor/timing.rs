//! What keeps the agent from running at once: priorities, sleep states, the hypervisor.

use super::files::Files;
use super::{Group, Item, State};
use std::io;
use std::time::Duration;

/// Most tasks that are named.
const NAMED: usize = 8;

/// Everything about time. `priority`: the agent's. Takes a moment, in which stolen time is measured.
pub fn examine(files: &Files, priority: i32) -> Group {
    let before = steal(&files.read("/proc/stat").unwrap_or_default());
    let fifo = try_fifo(priority);
    std::thread::sleep(Duration::from_millis(300));
    let after = steal(&files.read("/proc/stat").unwrap_or_default());
    let states: Vec<u64> = files
        .names("/sys/devices/system/cpu/cpu0/cpuidle")
        .iter()
        .filter_map(|s| files.number(&format!("/sys/devices/system/cpu/cpu0/cpuidle/{s}/latency")))
        .filter_map(|us| u64::try_from(us).ok())
        .collect();
    let items = vec![
        sched_fifo(priority, fifo.as_ref().err()),
        rt_tasks(priority, &tasks(files, priority)),
        throttling(files.number("/proc/sys/kernel/sched_rt_runtime_us")),
        sleep_states(files.read("/sys/devices/system/cpu/cpuidle/current_driver").as_deref(), &states),
        dma_latency(std::fs::OpenOptions::new().write(true).open("/dev/cpu_dma_latency").map(drop).as_ref().err()),
        stolen(before, after),
    ];
    Group { title: "Timing", items }
}

/// Tries real-time priority in a thread of its own.
fn try_fifo(priority: i32) -> io::Result<()> {
    if priority == 0 {
        return Ok(());
    }
    let tried = std::thread::spawn(move || {
        let parameters = libc::sched_param { sched_priority: priority };
        // SAFETY: `parameters` lives through the call; 0 is the calling thread, which ends right after.
        let rc = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const parameters) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    });
    tried.join().unwrap_or_else(|_| Err(io::Error::other("the thread that tried it ended")))
}

fn sched_fifo(priority: i32, error: Option<&io::Error>) -> Item {
    let title = "real-time priority (SCHED_FIFO)";
    match error {
        None if priority == 0 => Item::ok("sched-fifo", title, "not wanted (rt_priority = 0)"),
        None => Item::ok("sched-fifo", title, format!("priority {priority} was granted")),
        Some(e) => {
            // SAFETY: takes nothing and cannot fail.
            let root = unsafe { libc::geteuid() } == 0;
            let advice = if root {
                "root is refused where the kernel has RT_GROUP_SCHED and this cgroup no share: give its cpu.rt_runtime_us one, or run the agent in the root cgroup"
            } else {
                "run the agent as root or with CAP_SYS_NICE, as its systemd unit does"
            };
            let costs = "under load the agent waits its turn: some ms instead of some tens of µs, and δmax (with it every timeout) grows as much";
            Item::worse("sched-fifo", title, State::Degraded, format!("refused: {e}"), costs, advice)
        }
    }
}

/// A thread that the agent waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Task {
    name: String,
    pid: u32,
    tid: u32,
    priority: i32,
}

/// The real-time threads at this priority or above it, the highest first, that are neither the agent's own nor the
/// kernel's at its highest (`migration/N`: it stops processors for a moment, and no priority goes before it).
fn tasks(files: &Files, priority: i32) -> Vec<Task> {
    const KERNELS_OWN: i32 = 99;
    let numbers = |path: &str| files.names(path).into_iter().filter_map(|name| name.parse::<u32>().ok()).collect::<Vec<_>>();
    let mut found = Vec::new();
    for pid in numbers("/proc") {
        let is_agent = files.read(&format!("/proc/{pid}/comm")).as_deref() == Some("fided");
        if is_agent {
            continue;
        }
        for tid in numbers(&format!("/proc/{pid}/task")) {
            let stat = files.read(&format!("/proc/{pid}/task/{tid}/stat")); // none: it has ended
            let Some((name, of_kernel, at)) = stat.as_deref().and_then(real_time) else { continue };
            if at >= priority.max(1) && !(of_kernel && at == KERNELS_OWN) {
                found.push(Task { name, pid, tid, priority: at });
            }
        }
    }
    found.sort_by_key(|task| (-task.priority, task.pid, task.tid));
    found
}

/// Name, whether it is the kernel's, and real-time priority of a thread, from its `stat`; none: it is no real-time thread.
fn real_time(stat: &str) -> Option<(String, bool, i32)> {
    const PF_KTHREAD: u64 = 0x0020_0000;
    // Names may hold blanks and brackets.
    let (open, close) = (stat.find('(')?, stat.rfind(')')?);
    let fields: Vec<&str> = stat.get(close + 1..)?.split_whitespace().collect();
    // proc(5) counts from 1, and two come before these.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let policy = i32::try_from(field(41)?).ok()?;
    let priority = i32::try_from(field(40)?).ok()?;
    let is_real_time = matches!(policy, libc::SCHED_FIFO | libc::SCHED_RR);
    is_real_time.then(|| (stat[open + 1..close].into(), field(9).is_some_and(|flags| flags & PF_KTHREAD != 0), priority))
}

fn rt_tasks(priority: i32, tasks: &[Task]) -> Item {
    let title = "tasks at the agent's priority or above it";
    if tasks.is_empty() || priority == 0 {
        return Item::ok("rt-tasks", title, "none");
    }
    let name = |task: &Task| {
        let thread = if task.tid == task.pid { String::new() } else { format!(", thread {}", task.tid) };
        format!("{} (pid {}{thread}) at {}", task.name, task.pid, task.priority)
    };
    let mut named: Vec<String> = tasks.iter().take(NAMED).map(name).collect();
    if tasks.len() > NAMED {
        named.push(format!("{} more", tasks.len() - NAMED));
    }
    Item::worse(
        "rt-tasks",
        title,
        State::Degraded,
        format!("{}; the agent: {priority}", named.join(", ")),
        "while one of them runs on the agent's processor, no heartbeat leaves: others call this host late, and a fence may close",
        "give the agent a higher rt_priority than theirs, or them a lower one (chrt)",
    )
}

fn throttling(runtime_us: Option<i64>) -> Item {
    let title = "real-time throttling";
    match runtime_us {
        None => Item::ok("rt-throttling", title, "the kernel has none"),
        Some(-1) => Item::ok("rt-throttling", title, "off"),
        Some(us) if us >= 900_000 => {
            Item::ok("rt-throttling", title, format!("{us} µs of each second: matters only to threads that never sleep"))
        }
        Some(us) => Item::worse(
            "rt-throttling",
            title,
            State::Degraded,
            format!("{us} µs of each second"),
            "real-time threads are stopped for the rest of each second once they have used that",
            "sysctl kernel.sched_rt_runtime_us=950000",
        ),
    }
}

fn sleep_states(driver: Option<&str>, latencies_us: &[u64]) -> Item {
    let title = "processor sleep states";
    match (driver, latencies_us.iter().max()) {
        (None | Some("none"), _) => Item::worse(
            "cpuidle",
            title,
            State::Degraded,
            "no cpuidle driver (a virtual machine: an idle processor is given back to the hypervisor)",
            "waking an idle processor takes 20–50 µs, at every step of a crash's way",
            "profile = \"dedicated\" keeps the agent's processor awake; or boot with idle=poll where power does not matter",
        ),
        (Some(driver), Some(&deepest)) if deepest > 50 => Item::ok(
            "cpuidle",
            title,
            format!("{driver}, deepest state {deepest} µs to leave; the dedicated profile holds it through /dev/cpu_dma_latency"),
        ),
        (Some(driver), _) => Item::ok("cpuidle", title, driver),
    }
}

fn dma_latency(error: Option<&io::Error>) -> Item {
    let title = "/dev/cpu_dma_latency";
    match error {
        None => Item::ok("cpu-dma-latency", title, "can be held open"),
        Some(e) => Item::worse(
            "cpu-dma-latency",
            title,
            State::Degraded,
            e.to_string(),
            "processors cannot be kept out of deep sleep states: up to some 100 µs more for a wake-up on bare metal, nothing on a virtual machine",
            "give the agent access to the device (its systemd unit does)",
        ),
    }
}

/// (stolen, all) clock ticks since boot.
fn steal(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find_map(|l| l.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|t| t.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest time is part of user.
    Some((*ticks.get(7)?, ticks.iter().take(8).sum()))
}

fn stolen(before: Option<(u64, u64)>, after: Option<(u64, u64)>) -> Item {
    let title = "time stolen by the hypervisor";
    let share = |stolen: u64, all: u64| if all == 0 { 0.0 } else { stolen as f64 * 100.0 / all as f64 };
    let (Some(before), Some(after)) = (before, after) else {
        return Item::worse("steal", title, State::Unknown, "/proc/stat is not readable", "", "");
    };
    let now = share(after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    let ever = share(after.0, after.1);
    let found = format!("{ever:.2} % since boot, {now:.1} % just now");
    if ever < 0.1 && now < 1.0 {
        return Item::ok("steal", title, found);
    }
    Item::worse(
        "steal",
        title,
        State::Degraded,
        found,
        "the agent stands still now and then without knowing; δmax must cover it, or the contract is broken each time",
        "a virtual machine with processors of its own (dedicated, pinned vCPUs)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_share_of_all() {
        let stat = "cpu  100 0 100 700 0 0 0 100 50 0\ncpu0 1 2 3\n";
        assert_eq!(steal(stat), Some((100, 1000)));
        assert_eq!(steal("intr 5"), None);
        assert_eq!(stolen(Some((0, 0)), Some((0, 1000))).state, State::Ok);
        assert_eq!(stolen(Some((0, 0)), Some((100, 1000))).state, State::Degraded);
        assert_eq!(stolen(None, Some((0, 1))).state, State::Unknown);
    }

    #[test]
    fn a_virtual_machine_without_cpuidle_says_what_a_wake_up_costs() {
        for driver in [None, Some("none")] {
            let item = sleep_states(driver, &[]);
            assert!(item.state == State::Degraded && item.costs.unwrap().contains("20–50 µs"));
        }
        assert_eq!(sleep_states(Some("intel_idle"), &[0, 2, 133]).state, State::Ok);
    }

    #[test]
    fn tasks_that_the_agent_waits_for_are_named() {
        let root = tempfile::tempdir().unwrap();
        let task = |pid: u32, tid: u32, name: &str, flags: u64, priority: i32, policy: i32| {
            let dir = root.path().join(format!("proc/{pid}/task/{tid}"));
            std::fs::create_dir_all(&dir).unwrap();
            let between = "0 ".repeat(30);
            let stat = format!("{tid} ({name}) S 1 1 1 0 -1 {flags} {between}{priority} {policy} 0 0 0\n");
            std::fs::write(dir.join("stat"), stat).unwrap();
            let comm = root.path().join(format!("proc/{pid}/comm"));
            if tid == pid {
                std::fs::write(comm, format!("{name}\n")).unwrap();
            }
        };
        let (fifo, rr, kernel) = (libc::SCHED_FIFO, libc::SCHED_RR, 0x0020_8040);
        task(7, 7, "migration/0", kernel, 99, fifo);
        task(8, 8, "irq/24-eth0", kernel, 50, fifo);
        task(9, 9, "fided", 0, 0, 0);
        task(9, 10, "lane", 0, 51, fifo);
        task(20, 20, "a (b) c", 0, 51, rr);
        task(21, 21, "corosync", 0, 99, rr);
        task(22, 22, "audio", 0, 0, 0);
        task(22, 23, "mixer", 0, 60, fifo);
        std::fs::create_dir_all(root.path().join("proc/self/task/1")).unwrap();
        let files = Files::at(root.path());
        let found = rt_tasks(51, &tasks(&files, 51));
        assert_eq!(found.state, State::Degraded);
        let wanted = "corosync (pid 21) at 99, mixer (pid 22, thread 23) at 60, a (b) c (pid 20) at 51; the agent: 51";
        assert_eq!(found.found, wanted);
        assert!(rt_tasks(50, &tasks(&files, 50)).found.contains("irq/24-eth0 (pid 8) at 50"));
        assert_eq!(rt_tasks(51, &[]).state, State::Ok);
    }

    #[test]
    fn refusals_say_what_they_cost() {
        let denied = io::Error::from_raw_os_error(libc::EPERM);
        for item in [sched_fifo(51, Some(&denied)), dma_latency(Some(&denied)), throttling(Some(1000))] {
            assert!(item.state == State::Degraded && item.costs.is_some() && item.advice.is_some(), "{item:?}");
        }
    }
}
