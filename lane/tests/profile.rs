//! Applying profiles for real, in a process of its own: it changes the host's interrupt affinities for a moment and puts them
//! back, which is what is tested.

use fide_lane::{Profile, State, apply_to_this_thread};
use std::collections::BTreeMap;

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
