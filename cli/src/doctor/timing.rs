//! What keeps the agent from running at once: priorities, sleep states, the hypervisor.

use super::files::Files;
use super::{Group, Item, State};
use std::io;
use std::time::Duration;

/// The priority that is tried: the agent's default.
const PRIORITY: i32 = 50;

/// Everything about time. Takes a moment, in which stolen time is measured.
pub fn examine(files: &Files) -> Group {
    let before = steal(&files.read("/proc/stat").unwrap_or_default());
    let fifo = try_fifo();
    std::thread::sleep(Duration::from_millis(300));
    let after = steal(&files.read("/proc/stat").unwrap_or_default());
    let states: Vec<u64> = files
        .names("/sys/devices/system/cpu/cpu0/cpuidle")
        .iter()
        .filter_map(|s| files.number(&format!("/sys/devices/system/cpu/cpu0/cpuidle/{s}/latency")))
        .filter_map(|us| u64::try_from(us).ok())
        .collect();
    let items = vec![
        sched_fifo(fifo.as_ref().err()),
        throttling(files.number("/proc/sys/kernel/sched_rt_runtime_us")),
        sleep_states(files.read("/sys/devices/system/cpu/cpuidle/current_driver").as_deref(), &states),
        dma_latency(std::fs::OpenOptions::new().write(true).open("/dev/cpu_dma_latency").map(drop).as_ref().err()),
        stolen(before, after),
    ];
    Group { title: "Timing", items }
}

/// Tries real-time priority in a thread of its own.
fn try_fifo() -> io::Result<()> {
    let tried = std::thread::spawn(|| {
        let parameters = libc::sched_param { sched_priority: PRIORITY };
        // SAFETY: `parameters` lives through the call; 0 is the calling thread, which ends right after.
        let rc = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const parameters) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    });
    tried.join().unwrap_or_else(|_| Err(io::Error::other("the thread that tried it ended")))
}

fn sched_fifo(error: Option<&io::Error>) -> Item {
    let title = "real-time priority (SCHED_FIFO)";
    match error {
        None => Item::ok("sched-fifo", title, format!("priority {PRIORITY} was granted")),
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
    fn refusals_say_what_they_cost() {
        let denied = io::Error::from_raw_os_error(libc::EPERM);
        for item in [sched_fifo(Some(&denied)), dma_latency(Some(&denied)), throttling(Some(1000))] {
            assert!(item.state == State::Degraded && item.costs.is_some() && item.advice.is_some(), "{item:?}");
        }
    }
}
