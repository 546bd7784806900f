//! Applying profiles for real, in a process of its own: it changes the host's interrupt affinities for a moment and puts them
//! back, which is what is tested.

use fide_lane::{Profile, State, apply_to_this_thread};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn affinities() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for e in std::fs::read_dir("/proc/irq").into_iter().flatten().flatten() {
        let path = format!("{}/smp_affinity_list", e.path().display());
        if let Ok(held) = std::fs::read_to_string(&path) {
            all.insert(path, held);
        }
    }
    for path in ["/proc/irq/default_smp_affinity", "/sys/devices/virtual/workqueue/cpumask"] {
        all.insert(path.into(), std::fs::read_to_string(path).unwrap_or_default());
    }
    all
}

#[test]
fn profiles_do_what_they_say_and_put_back_what_is_the_hosts() {
    let before = affinities();
    std::thread::spawn(|| {
        let applied = apply_to_this_thread(&Profile::Shared);
        let of = |source| applied.steps.iter().find(|s| s.source == source).unwrap();
        // SAFETY: no pointers; pid 0 is this thread.
        let policy = unsafe { libc::sched_getscheduler(0) };
        let fifo = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
        assert_eq!(policy == fifo, of("thread-preemption").state == State::Achieved, "{applied:?}");
        // SAFETY: no pointers.
        assert!(unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) } <= 1, "real-time threads have none at all on newer kernels");
        assert_eq!(of("sleep-states").state, State::NotWanted);
        assert!(applied.cpu.is_none() && !applied.busy_poll && !applied.awake());
    })
    .join()
    .unwrap();
    assert_eq!(affinities(), before, "the shared profile touches nothing of the host's");

    std::thread::spawn(|| {
        let applied = apply_to_this_thread(&Profile::Dedicated { cpu: None });
        for s in applied.steps.iter().filter(|s| s.source == "interrupts" || s.source == "kernel-workers") {
            println!("{s:?}");
        }
        if let Some(cpu) = applied.cpu {
            assert!(applied.busy_poll);
            // SAFETY: no arguments.
            assert_eq!(unsafe { libc::sched_getcpu() }, i32::try_from(cpu).unwrap());
        }
    })
    .join()
    .unwrap();
    assert_eq!(affinities(), before, "dropping it puts everything back");
    // SAFETY: no pointers: memory was locked for the whole process.
    unsafe { libc::munlockall() };
}

/// Confines the calling thread to one processor, the same one for all that call it.
fn to_one_processor() {
    // SAFETY: a set that is initialised before use; the calls write and read its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &raw mut set), 0);
        let last = (0..libc::CPU_SETSIZE as usize).rfind(|cpu| libc::CPU_ISSET(*cpu, &set)).unwrap();
        libc::CPU_ZERO(&mut set);
        libc::CPU_SET(last, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &raw const set), 0);
    }
}

/// How long the calling thread had a processor.
fn processor_time() -> Duration {
    // SAFETY: the call writes the time before it is read.
    let spent = unsafe {
        let mut spent: libc::timespec = std::mem::zeroed();
        assert_eq!(libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut spent), 0);
        spent
    };
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

#[test]
fn a_task_at_the_priority_of_interrupt_threads_does_not_keep_the_lane_waiting() {
    /// Of a processor, not by the clock: other real-time threads of this machine may keep both waiting. Less than what the kernel lets
    /// real-time tasks have of a second.
    const LONGEST: Duration = Duration::from_millis(500);
    static RUNS: AtomicBool = AtomicBool::new(false);
    static STOP: AtomicBool = AtomicBool::new(false);
    let lane = std::thread::spawn(|| {
        let _applied = apply_to_this_thread(&Profile::Shared);
        to_one_processor();
        while !RUNS.load(Ordering::SeqCst) {
            // Sleep: interval of the poll. Waking up from it is what is tested.
            std::thread::sleep(Duration::from_millis(1));
        }
        STOP.store(true, Ordering::SeqCst);
    });
    let task = std::thread::spawn(|| {
        to_one_processor();
        let param = libc::sched_param { sched_priority: 50 };
        // SAFETY: pid 0 is the calling thread; `param` is readable.
        let refused = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) } != 0;
        let began = processor_time();
        RUNS.store(true, Ordering::SeqCst);
        while !refused && !STOP.load(Ordering::SeqCst) && processor_time() - began < LONGEST {
            std::hint::spin_loop();
        }
        (refused, STOP.load(Ordering::SeqCst))
    });
    let (refused, stopped) = task.join().unwrap();
    lane.join().unwrap();
    // SAFETY: no pointers: memory was locked for the whole process.
    unsafe { libc::munlockall() };
    if refused {
        println!("SKIPPED real-time tasks: SCHED_FIFO is not permitted");
        return;
    }
    assert!(stopped, "the lane did not run for as long as the task did");
}

/// `--ignored --nocapture` prints what `fide doctor` will.
#[test]
#[ignore = "a look at this host"]
fn show() {
    for profile in [Profile::Shared, Profile::Dedicated { cpu: None }] {
        for s in fide_lane::inspect(&profile, &["lo"]) {
            println!("{:<30} {:?}: {}", s.source, s.state, s.detail);
        }
    }
    println!("{:#?}", fide_lane::measure_jitter(std::time::Duration::from_secs(2)));
}
