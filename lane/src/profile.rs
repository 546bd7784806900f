//! Keeping a thread undisturbed, and saying what disturbs it all the same (X-Lane §4, FiDe §5).
//!
//! The papers' hosts are prepared: boot parameters, a kernel module that masks interrupts, a BIOS without system
//! management. We take a host as it is. Each jitter source the papers name, and those that virtual machines add, is a
//! [`Step`] with a stable name: removed where a thread may do that on a stock kernel, otherwise listed with what it costs
//! and what an administrator could do. Nothing here is a condition for being right; it makes the contract tighter.
//!
//! * *Shared*: real-time priority, locked memory, exact timers, no huge-page surprises. Touches nothing but this process.
//! * *Dedicated*: beyond that a processor of its own, awake (`/dev/cpu_dma_latency` held at 0), with interrupts and
//!   unbound kernel work moved to the others. [`Applied`] puts back what belongs to the host when it is dropped.

use crate::host::{self, chosen, cpu_list, cpu_mask, number, print_cpu_list, print_cpu_mask, read};
use crate::{sys, thread};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write as _};

/// How much of a host the lane may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// One thread among others, interrupt-driven.
    #[default]
    Shared,
    /// A processor of its own, which it spins.
    Dedicated {
        /// Which one; absent: an isolated one, else the last that this thread may use.
        cpu: Option<usize>,
    },
}

/// What became of a jitter source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Removed, or not present on this host. In [`inspect`]: it is, or applying the profile would achieve it.
    Achieved,
    /// Present, and this process may not or should not remove it; the detail says who can.
    Refused,
    /// This host or its kernel does not offer the means, or does not show the source.
    Unavailable,
    /// This profile leaves it alone.
    NotWanted,
}

/// One jitter source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Its name, stable, for documents and JSON.
    pub source: &'static str,
    /// What became of it.
    pub state: State,
    /// The facts, what it costs, and what to do about it.
    pub detail: String,
}

fn step(source: &'static str, state: State, detail: impl Into<String>) -> Step {
    Step { source, state, detail: detail.into() }
}

/// A profile in force. Dropping it gives the host its interrupts and its sleep back; the thread keeps its priority.
#[derive(Debug)]
pub struct Applied {
    /// Every jitter source and what became of it.
    pub steps: Vec<Step>,
    /// The processor the thread is pinned to.
    pub cpu: Option<usize>,
    /// Whether the agent should poll instead of waiting.
    pub busy_poll: bool,
    /// Files of the kernel that were changed, and what they held.
    restore: Vec<(String, String)>,
    /// While this is open the processors do not sleep.
    awake: Option<File>,
}

impl Applied {
    /// Whether the processors are held awake.
    #[must_use]
    pub fn awake(&self) -> bool {
        self.awake.is_some()
    }
}

impl Drop for Applied {
    fn drop(&mut self) {
        for (path, old) in self.restore.drain(..).rev() {
            if let Err(e) = write(&path, &old) {
                tracing::warn!(path, old, error = %e, "cannot put back what the dedicated profile changed");
            }
        }
    }
}

/// SCHED_FIFO priority of the lane. Threaded interrupts run at 50, and so does much that was written beside them: a task at
/// the lane's own priority would keep it waiting for as long as it runs.
pub const PRIORITY: i32 = 51;
const CAP_IPC_LOCK: u32 = 14;

/// Puts the calling thread under the profile. What is refused is listed, never an error: a lane works without any of it.
///
/// Locked memory and the absence of huge pages concern the whole process, and the latter also programs it starts.
#[must_use]
pub fn apply_to_this_thread(profile: &Profile) -> Applied {
    apply(profile, &[], Some(PRIORITY as u8))
}

/// [`apply_to_this_thread`], with what disturbs these interfaces listed too, and SCHED_FIFO of this priority or not at all.
#[must_use]
pub fn apply(profile: &Profile, interfaces: &[&str], priority: Option<u8>) -> Applied {
    thread::touch_stack();
    let mut applied = Applied { steps: Vec::new(), cpu: None, busy_poll: false, restore: Vec::new(), awake: None };
    applied.steps.push(match priority {
        Some(priority) => realtime(priority.into(), take_fifo(priority.into())),
        None => step(
            "thread-preemption",
            State::NotWanted,
            "real-time priority is switched off: the lane waits its turn like any other thread",
        ),
    });
    applied.steps.push(locked_memory(true));
    applied.steps.push(result("timer-slack", thread::set_timer_slack(1), "timers are exact to 1 ns (default: 50 µs late)"));
    applied.steps.push(huge_pages(thread::disable_huge_pages()));
    match profile {
        Profile::Shared => applied.steps.extend(not_wanted_when_shared()),
        Profile::Dedicated { cpu } => dedicate(&mut applied, choose_cpu(*cpu)),
    }
    applied.steps.extend(conditions(profile, applied.cpu));
    applied.steps.extend(interfaces.iter().flat_map(|i| interface(i)));
    applied
}

/// What [`apply`] would find and achieve, changing nothing. Permission is tried out on a thread that ends at once.
#[must_use]
pub fn inspect(profile: &Profile, interfaces: &[&str]) -> Vec<Step> {
    let fifo = std::thread::scope(|s| {
        let tried = s.spawn(|| take_fifo(PRIORITY)).join();
        tried.unwrap_or_else(|_| Err(io::Error::other("the trial thread panicked")))
    });
    let mut steps = vec![
        realtime(PRIORITY, fifo),
        locked_memory(false),
        step("timer-slack", State::Achieved, "timers can be made exact to 1 ns (default: 50 µs late)"),
        huge_pages(Ok(())),
    ];
    let cpu = match profile {
        Profile::Shared => {
            steps.extend(not_wanted_when_shared());
            None
        }
        Profile::Dedicated { cpu } => {
            let cpu = choose_cpu(*cpu);
            steps.extend(could_dedicate(&cpu));
            cpu.ok()
        }
    };
    steps.extend(conditions(profile, cpu));
    steps.extend(interfaces.iter().flat_map(|i| interface(i)));
    steps
}

fn write(path: &str, text: &str) -> io::Result<()> {
    File::options().write(true).open(path)?.write_all(text.as_bytes())
}

fn result(source: &'static str, result: io::Result<()>, achieved: &str) -> Step {
    match result {
        Ok(()) => step(source, State::Achieved, achieved),
        Err(e) => step(source, State::Refused, e.to_string()),
    }
}

/// SCHED_FIFO of this priority for the calling thread, or of the highest below it that its limit permits: which it was.
fn take_fifo(wanted: i32) -> io::Result<i32> {
    let Err(refused) = thread::set_fifo(wanted) else { return Ok(wanted) };
    match thread::rtprio_limit() {
        Some(limit) if (1..wanted).contains(&limit) => thread::set_fifo(limit).map(|()| limit),
        _ => Err(refused),
    }
}

fn realtime(wanted: i32, result: io::Result<i32>) -> Step {
    const SOURCE: &str = "thread-preemption";
    let e = match result {
        Ok(got) if got == wanted => {
            let text = format!("SCHED_FIFO {got}: ordinary threads do not preempt or delay the lane");
            return step(SOURCE, State::Achieved, text);
        }
        Ok(got) => {
            let text = format!(
                "SCHED_FIFO {got}, for RLIMIT_RTPRIO permits no more; {wanted} was wanted (LimitRTPRIO=99 in the systemd unit). \
                 Interrupt threads run at 50, and whatever runs at {got} keeps the lane waiting"
            );
            return step(SOURCE, State::Achieved, text);
        }
        Err(e) => e,
    };
    let why = match (e.raw_os_error(), host::capable(23)) {
        (Some(libc::EPERM), true) => {
            "refused although CAP_SYS_NICE is held: the kernel has RT_GROUP_SCHED and this cgroup no real-time share; give it \
             one (cpu.rt_runtime_us) or boot with rt_group_sched=0"
        }
        (Some(libc::EPERM), false) => {
            "refused: needs CAP_SYS_NICE, or RLIMIT_RTPRIO of at least 51 (LimitRTPRIO=99 in the systemd unit)"
        }
        _ => "refused by the kernel",
    };
    step(SOURCE, State::Refused, format!("{why} ({e}); under load, wake-ups are then milliseconds late"))
}

/// Without the capability, locking everything to come would let later allocations fail at the limit: then better not at all.
fn locked_memory(apply: bool) -> Step {
    const SOURCE: &str = "page-faults";
    let limit = thread::memlock_limit();
    if limit.is_some() && !host::capable(CAP_IPC_LOCK) {
        let kib = limit.unwrap_or(0) / 1024;
        let detail = format!(
            "memory is not locked: needs CAP_IPC_LOCK or LimitMEMLOCK=infinity (the limit is {kib} KiB); under memory pressure the \
             lane's own pages may have to come back from disk"
        );
        return step(SOURCE, State::Refused, detail);
    }
    let locked = if apply { thread::lock_memory() } else { Ok(()) };
    result(SOURCE, locked, "all memory is locked from its first use on: no page goes to disk and none is reclaimed")
}

fn huge_pages(disabled: io::Result<()>) -> Step {
    const SOURCE: &str = "huge-pages";
    let host = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let Some(host) = host.as_deref().and_then(chosen) else {
        return step(SOURCE, State::Achieved, "this kernel makes no transparent huge pages");
    };
    let detail = format!("off for this process (host: {host}): no fault zeroes 2 MiB, nothing is collapsed under the lane");
    result(SOURCE, disabled, &detail)
}

// ---- dedicated ------------------------------------------------------------------------------------------------------------

const DEDICATED: [(&str, &str); 5] = [
    ("thread-migration", "the scheduler may move the lane between processors, some microseconds each time"),
    ("sleep-states", "an idle processor needs 1–200 µs (virtual: 20–50 µs) to wake up; the dedicated profile keeps it awake"),
    ("interrupts", "device interrupts share the lane's processor, 1–50 µs each; the dedicated profile moves them away"),
    ("kernel-workers", "unbound kernel work may run on the lane's processor; the dedicated profile moves it away"),
    ("wake-up-path", "interrupt-driven: every packet and timer wakes the lane; the dedicated profile polls instead"),
];

fn not_wanted_when_shared() -> impl Iterator<Item = Step> {
    DEDICATED.iter().map(|(source, detail)| step(source, State::NotWanted, *detail))
}

/// The processor to dedicate, or why there is none.
fn choose_cpu(wanted: Option<usize>) -> Result<usize, String> {
    let mut usable: BTreeSet<_> = thread::allowed_cpus().into_iter().collect();
    // Isolated processors are left out of a process's affinity by the kernel, but may be chosen.
    let isolated = isolated_cpus();
    let online = online_cpus();
    usable.extend(isolated.intersection(&online));
    if online.len() < 2 {
        return Err("the host has a single processor: spinning it would leave none for anybody else".into());
    }
    match wanted {
        Some(cpu) if online.contains(&cpu) => Ok(cpu),
        Some(cpu) => Err(format!("processor {cpu} is not online (online: {})", print_cpu_list(&online))),
        None => {
            let first_choice = isolated.intersection(&usable).max().copied();
            first_choice.or_else(|| usable.last().copied()).ok_or_else(|| "no processor may be used".to_owned())
        }
    }
}

fn isolated_cpus() -> BTreeSet<usize> {
    read("/sys/devices/system/cpu/isolated").map(|t| cpu_list(&t)).unwrap_or_default()
}

fn online_cpus() -> BTreeSet<usize> {
    read("/sys/devices/system/cpu/online").map(|t| cpu_list(&t)).unwrap_or_default()
}

fn dedicate(applied: &mut Applied, cpu: Result<usize, String>) {
    let cpu = match cpu {
        Ok(cpu) => cpu,
        Err(why) => {
            applied.steps.extend(DEDICATED.iter().map(|(source, _)| step(source, State::Refused, why.clone())));
            return;
        }
    };
    let pinned = thread::set_allowed_cpus(&[cpu]);
    let is_pinned = pinned.is_ok();
    applied.steps.push(match pinned {
        Ok(()) => step("thread-migration", State::Achieved, format!("pinned to processor {cpu}")),
        Err(e) => {
            let hint = "is it in this cgroup's cpuset (AllowedCPUs= in the unit)?";
            step("thread-migration", State::Refused, format!("cannot pin to processor {cpu}: {e}; {hint}"))
        }
    });
    applied.steps.push(stay_awake(&mut applied.awake));
    let (moved, restore) = move_interrupts(cpu);
    applied.steps.push(moved);
    applied.restore.extend(restore);
    let (moved, restore) = move_workers(cpu);
    applied.steps.push(moved);
    applied.restore.extend(restore);
    applied.steps.push(if is_pinned {
        (applied.cpu, applied.busy_poll) = (Some(cpu), true);
        step("wake-up-path", State::Achieved, "the lane polls; nothing has to be woken up")
    } else {
        step("wake-up-path", State::Refused, "without a processor of its own the lane waits for interrupts")
    });
}

/// What [`dedicate`] would come to.
fn could_dedicate(cpu: &Result<usize, String>) -> Vec<Step> {
    let cpu = match cpu {
        Ok(cpu) => *cpu,
        Err(why) => return DEDICATED.iter().map(|(source, _)| step(source, State::Refused, why.clone())).collect(),
    };
    let can = |source, files: &[&str], yes: String| {
        if files.iter().all(|f| host::writable(f)) {
            step(source, State::Achieved, yes)
        } else {
            step(source, State::Refused, format!("may not write {}; needs root", files.join(", ")))
        }
    };
    let at = irqs_on(cpu);
    let files: Vec<_> = at.iter().map(|(path, _)| path.as_str()).collect();
    vec![
        step("thread-migration", State::Achieved, format!("can be pinned to processor {cpu}")),
        can("sleep-states", &["/dev/cpu_dma_latency"], sleep_detail("can be held awake")),
        can("interrupts", &files, format!("{} device interrupts can be asked to leave processor {cpu}", files.len())),
        can("kernel-workers", &[WORKQUEUES], format!("unbound kernel work can be kept off processor {cpu}")),
        step("wake-up-path", State::Achieved, format!("the lane would spin processor {cpu}")),
    ]
}

fn sleep_detail(what: &str) -> String {
    let driver = read("/sys/devices/system/cpu/cpuidle/current_driver").unwrap_or_else(|| "none".into());
    let virtualised = if driver == "none" && hypervisor() {
        "; the hypervisor still halts an idle virtual processor, which only spinning prevents"
    } else {
        ""
    };
    format!("{what} (idle driver: {driver}){virtualised}")
}

fn stay_awake(held: &mut Option<File>) -> Step {
    let open = File::options().write(true).open("/dev/cpu_dma_latency").and_then(|mut f| {
        f.write_all(&0i32.to_ne_bytes())?;
        Ok(f)
    });
    match open {
        Ok(file) => {
            *held = Some(file);
            step("sleep-states", State::Achieved, sleep_detail("/dev/cpu_dma_latency is held at 0"))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            step("sleep-states", State::Unavailable, "this kernel has no /dev/cpu_dma_latency (boot with processor.max_cstate=0)")
        }
        Err(e) => step("sleep-states", State::Refused, format!("/dev/cpu_dma_latency: {e}; needs root or write permission")),
    }
}

/// Interrupts that may be delivered to this processor: the file that says so, and what it holds.
fn irqs_on(cpu: usize) -> Vec<(String, String)> {
    let Ok(all) = std::fs::read_dir("/proc/irq") else { return Vec::new() };
    let paths = all.flatten().map(|e| format!("{}/smp_affinity_list", e.path().display()));
    let mut found: Vec<_> =
        paths.filter_map(|p| read(&p).map(|held| (p, held))).filter(|(_, held)| cpu_list(held).contains(&cpu)).collect();
    found.sort();
    found
}

fn move_interrupts(cpu: usize) -> (Step, Vec<(String, String)>) {
    const SOURCE: &str = "interrupts";
    const DEFAULT: &str = "/proc/irq/default_smp_affinity";
    let mut others = online_cpus();
    others.remove(&cpu);
    let (mut restore, mut stuck, mut refused) = (Vec::new(), Vec::new(), None);
    // Interrupts requested later start away from it as well.
    if let Some(held) = read(DEFAULT) {
        let mut mask = cpu_mask(&held);
        if mask.remove(&cpu) && !mask.is_empty() && write(DEFAULT, &print_cpu_mask(&mask)).is_ok() {
            restore.push((DEFAULT.to_owned(), held));
        }
    }
    for (path, held) in irqs_on(cpu) {
        let mut rest: BTreeSet<_> = cpu_list(&held).intersection(&others).copied().collect();
        if rest.is_empty() {
            rest.clone_from(&others);
        }
        match write(&path, &print_cpu_list(&rest)) {
            Ok(()) => restore.push((path, held)),
            Err(e) => {
                stuck.push(path.trim_start_matches("/proc/irq/").trim_end_matches("/smp_affinity_list").to_owned());
                refused.get_or_insert(e);
            }
        }
    }
    let moved = restore.iter().filter(|(p, _)| p != DEFAULT).count();
    let step = match refused {
        None => step(SOURCE, State::Achieved, format!("{moved} device interrupts moved away from processor {cpu}")),
        Some(e) => {
            let stuck = stuck.join(", ");
            let detail = format!("{moved} moved away from processor {cpu}; these stay ({e}): {stuck}; 1–50 µs each time");
            step(SOURCE, State::Refused, detail)
        }
    };
    (step, restore)
}

const WORKQUEUES: &str = "/sys/devices/virtual/workqueue/cpumask";

fn move_workers(cpu: usize) -> (Step, Option<(String, String)>) {
    const SOURCE: &str = "kernel-workers";
    let Some(held) = read(WORKQUEUES) else {
        return (step(SOURCE, State::Unavailable, format!("no {WORKQUEUES} here")), None);
    };
    let mut mask = cpu_mask(&held);
    let there = mask.remove(&cpu);
    if !there || mask.is_empty() {
        return (step(SOURCE, State::Achieved, format!("unbound kernel work stays off processor {cpu} already")), None);
    }
    match write(WORKQUEUES, &print_cpu_mask(&mask)) {
        Ok(()) => {
            let done = step(SOURCE, State::Achieved, format!("unbound kernel work kept off processor {cpu}"));
            (done, Some((WORKQUEUES.to_owned(), held)))
        }
        Err(e) => (step(SOURCE, State::Refused, format!("{WORKQUEUES}: {e}")), None),
    }
}

// ---- what the host is like ------------------------------------------------------------------------------------------------

fn hypervisor() -> bool {
    read("/proc/cpuinfo")
        .is_some_and(|t| t.lines().any(|l| l.starts_with("flags") && l.split_whitespace().any(|f| f == "hypervisor")))
        || std::path::Path::new("/sys/hypervisor/type").exists()
}

/// Sources that a process can only report: boot parameters, firmware, the host's own settings.
fn conditions(profile: &Profile, cpu: Option<usize>) -> Vec<Step> {
    let cmdline = read("/proc/cmdline").unwrap_or_default();
    let dedicated = matches!(profile, Profile::Dedicated { .. });
    let mut steps = boot(&cmdline, dedicated, cpu);
    steps.extend(kernel(dedicated));
    steps.extend(memory());
    steps.extend(processor(cpu));
    steps.extend(beyond());
    steps
}

/// A source that only a dedicated processor can be rid of, and only by how the host was booted.
fn boot(cmdline: &str, dedicated: bool, cpu: Option<usize>) -> Vec<Step> {
    let of_cpu = |set: &BTreeSet<usize>| cpu.is_some_and(|c| set.contains(&c));
    let judge = |source, parameter: &str, set: BTreeSet<usize>, cost: &str| {
        let shown = if set.is_empty() { "none".to_owned() } else { print_cpu_list(&set) };
        if of_cpu(&set) {
            step(source, State::Achieved, format!("{parameter}={shown} covers the lane's processor"))
        } else if dedicated {
            step(
                source,
                State::Refused,
                format!("{parameter}: {shown}; {cost}; boot with {parameter}=<processor> to be rid of it"),
            )
        } else {
            step(source, State::NotWanted, format!("{parameter}: {shown}; {cost}"))
        }
    };
    let parameter = |name| host::boot_parameter(cmdline, name).map(|v| cpu_list(&v)).unwrap_or_default();
    let nohz = read("/sys/devices/system/cpu/nohz_full").map(|t| cpu_list(&t)).unwrap_or_default();
    let mut offloaded = parameter("rcu_nocbs");
    offloaded.extend(&nohz); // nohz_full offloads callbacks by itself
    vec![
        judge("processor-isolation", "isolcpus", isolated_cpus(), "other threads may be put on the lane's processor"),
        judge("timer-ticks", "nohz_full", nohz, "the tick interrupts 100 to 1000 times a second, 1.5–50 µs each"),
        judge("rcu-callbacks", "rcu_nocbs", offloaded, "RCU frees memory on the processor that asked for it"),
    ]
}

fn throttling(dedicated: bool) -> Step {
    match number("/proc/sys/kernel/sched_rt_runtime_us") {
        None => step("real-time-throttling", State::Unavailable, "no sched_rt_runtime_us here"),
        Some(-1) => step("real-time-throttling", State::Achieved, "off"),
        Some(us) if dedicated => {
            let detail = format!(
                "real-time threads get {us} µs of each period: one that spins is stopped for the rest when others starve on its \
                 processor; isolate the processor, or sysctl kernel.sched_rt_runtime_us=-1 (then a runaway thread hangs it)"
            );
            step("real-time-throttling", State::Refused, detail)
        }
        Some(us) => {
            let detail = format!("real-time threads get {us} µs of each period, far more than a lane that sleeps uses");
            step("real-time-throttling", State::NotWanted, detail)
        }
    }
}

fn kernel(dedicated: bool) -> Vec<Step> {
    let mut steps = vec![throttling(dedicated)];
    let version = read("/proc/version").unwrap_or_default();
    let model = ["PREEMPT_RT", "PREEMPT_DYNAMIC", "PREEMPT_LAZY", "PREEMPT"].iter().find(|m| version.contains(**m));
    steps.push(match model {
        Some(model) => {
            step("kernel-preemption", State::Achieved, format!("{model}: kernel code of other threads can be preempted"))
        }
        None => step(
            "kernel-preemption",
            State::Refused,
            "this kernel is not preemptible: a system call of another thread can hold the processor for milliseconds",
        ),
    });
    let off = |source, path: &str, cost: &str, sysctl: &str| match number(path) {
        Some(0) => step(source, State::Achieved, "off"),
        Some(_) => step(source, State::Refused, format!("on; {cost}; {sysctl}")),
        None => step(source, State::Achieved, "not in this kernel"),
    };
    steps.push(off(
        "nmi-watchdog",
        "/proc/sys/kernel/nmi_watchdog",
        "a non-maskable interrupt every few seconds on every processor",
        "sysctl kernel.nmi_watchdog=0",
    ));
    steps.push(off(
        "lockup-watchdog",
        "/proc/sys/kernel/soft_watchdog",
        "a thread above all others runs every few seconds on every processor",
        "sysctl kernel.watchdog_cpumask without the lane's processor",
    ));
    steps.push(match number("/sys/module/rcupdate/parameters/rcu_cpu_stall_suppress") {
        Some(1) => step("rcu-stall-warnings", State::Achieved, "suppressed"),
        Some(_) => step("rcu-stall-warnings", State::NotWanted, "on; harmless here: the lane never masks interrupts"),
        None => step("rcu-stall-warnings", State::Unavailable, "not shown by this kernel"),
    });
    steps.push(if host::process_runs("irqbalance") {
        step(
            "irqbalance",
            if dedicated { State::Refused } else { State::NotWanted },
            "irqbalance runs and may move interrupts back; set IRQBALANCE_BANNED_CPULIST to the lane's processor",
        )
    } else {
        step("irqbalance", State::Achieved, "not running")
    });
    steps.push(match host::cpu_quota() {
        Some(quota) => step(
            "cpu-quota",
            State::Refused,
            format!(
                "cgroup {quota}: threads without real-time priority are stopped when the quota is used up; CPUQuota= in the unit"
            ),
        ),
        None => step("cpu-quota", State::Achieved, "none"),
    });
    steps.push(match read("/sys/devices/system/clocksource/clocksource0/current_clocksource") {
        Some(c) if ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"].contains(&c.as_str()) => {
            step("clock", State::Achieved, format!("{c}: read without a system call"))
        }
        Some(c) => {
            step("clock", State::Refused, format!("{c}: every reading is a system call of up to a microsecond; clocksource=tsc"))
        }
        None => step("clock", State::Unavailable, "not shown by this kernel"),
    });
    steps
}

fn memory() -> Vec<Step> {
    let mut steps = Vec::new();
    let compaction = number("/proc/sys/vm/compaction_proactiveness").unwrap_or(0);
    let defrag = read("/sys/kernel/mm/transparent_hugepage/defrag");
    let defrag = defrag.as_deref().and_then(chosen).unwrap_or("never");
    steps.push(if compaction == 0 && defrag != "always" {
        step("memory-compaction", State::Achieved, format!("in the background: off; on a fault: {defrag}"))
    } else {
        let detail = format!(
            "compaction_proactiveness {compaction}, defrag {defrag}: pages are moved while threads wait, up to milliseconds; \
             sysctl vm.compaction_proactiveness=0"
        );
        step("memory-compaction", State::Refused, detail)
    });
    steps.push(match number("/sys/kernel/mm/ksm/run") {
        Some(1) => {
            step("page-merging", State::Refused, "KSM runs: it scans and write-protects pages; echo 0 > /sys/kernel/mm/ksm/run")
        }
        _ => step("page-merging", State::Achieved, "off"),
    });
    let swaps = read("/proc/swaps").map_or(0, |t| t.lines().count().saturating_sub(1));
    steps.push(if swaps == 0 {
        step("swap", State::Achieved, "none")
    } else {
        step("swap", State::Refused, format!("{swaps} in use: locked memory stays, but under pressure the whole host stalls"))
    });
    steps.push(match number("/proc/sys/kernel/numa_balancing") {
        Some(n) if n > 0 => {
            step("numa-balancing", State::Refused, "on: pages are unmapped to see who uses them; sysctl kernel.numa_balancing=0")
        }
        _ => step("numa-balancing", State::Achieved, "off"),
    });
    steps
}

fn processor(cpu: Option<usize>) -> Vec<Step> {
    let at = cpu.unwrap_or_else(thread::current_cpu);
    let file = |name: &str| read(&format!("/sys/devices/system/cpu/cpu{at}/{name}"));
    let mut steps = Vec::new();
    let siblings = file("topology/thread_siblings_list").map(|t| cpu_list(&t)).unwrap_or_default();
    steps.push(if siblings.len() > 1 {
        let detail =
            format!("processors {} share one core; put the siblings offline, or leave them idle", print_cpu_list(&siblings));
        step("smt-sibling", State::Refused, detail)
    } else {
        step("smt-sibling", State::Achieved, "the core is not shared (as far as this host is told)")
    });
    steps.push(match file("cpufreq/scaling_governor").as_deref() {
        Some("performance") => step("frequency-scaling", State::Achieved, "governor performance"),
        Some(g) => step(
            "frequency-scaling",
            State::Refused,
            format!(
                "governor {g}: the processor slows down when idle, tens of µs to come back; cpupower frequency-set -g performance"
            ),
        ),
        None => step("frequency-scaling", State::Unavailable, "not under this kernel's control"),
    });
    let nodes = read("/sys/devices/system/node/online").map(|t| cpu_list(&t).len()).unwrap_or(1);
    steps.push(if nodes <= 1 {
        step("numa-distance", State::Achieved, "one memory node")
    } else {
        step(
            "numa-distance",
            State::Refused,
            format!("{nodes} memory nodes: choose a processor on the NIC's node (see its numa_node)"),
        )
    });
    steps.push(if hypervisor() {
        let ms = host::steal_ms(&read("/proc/stat").unwrap_or_default(), None);
        let up = read("/proc/uptime").and_then(|t| t.split_whitespace().next()?.parse::<f64>().ok());
        let seen = match (ms, up) {
            (Some(ms), Some(up)) => format!("{ms} ms stolen in {up:.0} s since boot, all processors together"),
            _ => "not measured".into(),
        };
        step(
            "hypervisor",
            State::Refused,
            format!("a virtual machine: its host may take the processor away at any time ({seen}); ask for dedicated processors"),
        )
    } else {
        step("hypervisor", State::Achieved, "none seen")
    });
    steps
}

/// What no process on a stock kernel can see to.
fn beyond() -> Vec<Step> {
    vec![
        step(
            "inter-processor-interrupts",
            State::Unavailable,
            "cannot be masked from user space; counted in `fide bench jitter` (RES, CAL, TLB)",
        ),
        step(
            "system-management-interrupts",
            State::Unavailable,
            "the firmware's, up to milliseconds; seen only as gaps in `fide bench jitter`; set fans and power to static in the BIOS",
        ),
        step(
            "switch-queues",
            State::Unavailable,
            "not visible from a host; give DSCP EF (46) and 802.1p 6 the highest priority queue on the switches",
        ),
    ]
}

/// What disturbs one of the lane's interfaces.
fn interface(name: &str) -> Vec<Step> {
    let counter = |c: &str| number(&format!("/sys/class/net/{name}/statistics/{c}")).unwrap_or(0);
    let mut steps = Vec::new();
    steps.push(match sys::receive_coalescing(name) {
        Ok((us, frames, adaptive)) if us <= 10 && frames <= 1 || us == 0 && !adaptive => {
            step("interrupt-coalescing", State::Achieved, format!("{name}: rx-usecs {us}, rx-frames {frames}"))
        }
        Ok((us, frames, adaptive)) => {
            let adaptive = if adaptive { ", adaptive" } else { "" };
            let detail = format!(
                "{name}: the NIC waits up to {us} µs (rx-frames {frames}{adaptive}); ethtool -C {name} adaptive-rx off rx-usecs 0"
            );
            step("interrupt-coalescing", State::Refused, detail)
        }
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            step("interrupt-coalescing", State::Achieved, format!("{name}: its driver does not wait"))
        }
        Err(e) => step("interrupt-coalescing", State::Unavailable, format!("{name}: {e}")),
    });
    let judge = |source, count: i64, what: &str, todo: &str| {
        if count == 0 {
            step(source, State::Achieved, format!("{name}: no {what} since it came up"))
        } else {
            step(source, State::Refused, format!("{name}: {count} {what} since it came up; {todo}"))
        }
    };
    let bits = counter("rx_crc_errors") + counter("rx_frame_errors");
    steps.push(judge("bit-errors", bits, "corrupted frames", "check cable and transceiver"));
    let lost = counter("rx_fifo_errors") + counter("rx_missed_errors") + counter("rx_over_errors");
    steps.push(judge("buffer-overflow", lost, "frames lost in the NIC", "larger rings: ethtool -G rx"));
    if let Some(node) = number(&format!("/sys/class/net/{name}/device/numa_node")).filter(|n| *n >= 0) {
        steps.push(step("nic-node", State::Achieved, format!("{name} is on memory node {node}")));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(steps: &[Step]) -> Vec<&'static str> {
        steps.iter().map(|s| s.source).collect()
    }

    #[test]
    fn every_source_is_listed_once_with_a_reason_in_both_profiles() {
        let shared = inspect(&Profile::Shared, &["lo"]);
        let dedicated = inspect(&Profile::Dedicated { cpu: None }, &["lo"]);
        assert_eq!(names(&shared), names(&dedicated));
        let distinct: BTreeSet<_> = names(&shared).into_iter().collect();
        assert_eq!(distinct.len(), shared.len());
        assert!(shared.len() >= 30, "{}", shared.len());
        for s in shared.iter().chain(&dedicated) {
            assert!(!s.detail.is_empty() && s.source.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{s:?}");
        }
        assert!(!dedicated.iter().any(|s| s.source == "sleep-states" && s.state == State::NotWanted));
    }

    #[test]
    fn inspecting_changes_nothing() {
        let files = || {
            let irqs = (0..2).flat_map(irqs_on).collect::<Vec<_>>();
            (irqs, read(WORKQUEUES), read("/proc/irq/default_smp_affinity"), thread::allowed_cpus())
        };
        let before = files();
        let _ = inspect(&Profile::Dedicated { cpu: None }, &[]);
        assert_eq!(files(), before);
    }

    #[test]
    fn a_processor_that_is_not_there_is_refused_with_the_list() {
        let Err(why) = choose_cpu(Some(4_000)) else { panic!("4000 processors?") };
        assert!(why.contains("not online") || why.contains("single"), "{why}");
    }

    #[test]
    fn boot_parameters_count_for_the_lanes_processor_only() {
        let one = |cmdline, dedicated, cpu| {
            boot(cmdline, dedicated, cpu).into_iter().find(|s| s.source == "rcu-callbacks").unwrap().state
        };
        assert_eq!(one("rcu_nocbs=1", true, Some(1)), State::Achieved);
        assert_eq!(one("rcu_nocbs=1", true, Some(0)), State::Refused);
        assert_eq!(one("", false, None), State::NotWanted);
    }
}
