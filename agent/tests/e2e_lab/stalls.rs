//! Hosts that stand still together, as virtual machines of one hypervisor do: nobody declares anybody dead, and what closed
//! meanwhile opens again without a person. And fences that people open one after the other.

use crate::common::{Pins, World, kill};
use crate::e2e_lab::fence::{Traffic, all_fenced_within, fence, open};
use fide_wire::control::FenceOrder;
use fide_wire::verdict::{Cause, FencedWhy};
use std::thread::sleep;
use std::time::Duration;

/// The event's code where a fence opened by itself.
const BY_ITSELF: i32 = 1;

/// On a busy machine this thread may wait for a second between two signals: long enough for an agent
/// that runs to call one silent that does not. Real-time threads do not wait for others.
fn signal_all(agents: &[i32], signal: i32) {
    let schedule = |policy, sched_priority| {
        let param = libc::sched_param { sched_priority };
        // SAFETY: the calling thread, and a parameter that outlives the call.
        let set = unsafe { libc::sched_setscheduler(0, policy, &raw const param) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    };
    schedule(libc::SCHED_FIFO, 1);
    agents.iter().for_each(|agent| kill(*agent, signal));
    schedule(libc::SCHED_OTHER, 0);
}

/// All agents stop at once for so long, and go on at once.
fn stand_still(w: &World, hosts: u16, stall: Duration) {
    let agents: Vec<i32> = (1..=hosts).map(|host| w.agent_pid(host)).collect();
    signal_all(&agents, libc::SIGSTOP);
    // Sleep: the stall.
    sleep(stall);
    signal_all(&agents, libc::SIGCONT);
}

/// Nobody was given up, and no fence closed but because its time ran out.
fn nobody_was_declared_dead(w: &World, hosts: u16) {
    for host in 1..=hosts {
        for event in w.history(host) {
            let is_wrong = matches!(event.cause, Cause::SilentHost | Cause::AgentLost);
            let is_given_up = event.cause == Cause::Fenced && event.code != FencedWhy::RanOut as i32;
            assert!(!is_wrong && !is_given_up, "h{host}: {event:?}");
        }
    }
}

fn they_open_again(hosts: u16, timeout: &str, stalls_ms: &[u64]) {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = all_fenced_within(&pins, hosts, "acknowledged", timeout) else { return };
    let traffic = Traffic::new(&w, 1, 2);
    traffic.flows();
    let mut closed = 0;
    for stall_ms in stalls_ms {
        stand_still(&w, hosts, Duration::from_millis(*stall_ms));
        (1..=hosts).for_each(|host| _ = open(&w, host));
        traffic.flows();
        w.all_alive();
        nobody_was_declared_dead(&w, hosts);
    }
    for host in 1..=hosts {
        let (fenced, recovered) = (w.fencings(host), w.events(host, Cause::Recovered));
        assert_eq!(fenced.len(), recovered.len());
        assert!(recovered.iter().all(|event| event.code == BY_ITSELF), "{recovered:?}");
        closed += fenced.len();
    }
    println!("{hosts} hosts, fences of {timeout}: {closed} closed in {} stalls", stalls_ms.len());
    assert!(closed > 0, "none has closed");
}

#[test]
fn three_short_fences_that_closed_in_a_stall_of_all_open_by_themselves() {
    they_open_again(3, "1s", &[50, 1_300, 1_700, 2_500, 1_300]);
}

#[test]
fn five_long_fences_that_closed_in_a_stall_of_all_open_by_themselves() {
    they_open_again(5, "2s", &[500, 2_600, 3_500]);
}

/// One thread of another process, which stands still for as long as this lives.
struct Held(i32);

impl Held {
    fn thread(tid: i32) -> Self {
        // SAFETY: ptrace(2) with integers, and a status that lives until the call is over.
        unsafe {
            let attached = libc::ptrace(libc::PTRACE_SEIZE, tid, 0usize, 0usize);
            assert_eq!(attached, 0, "{}", std::io::Error::last_os_error());
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, tid, 0usize, 0usize), 0);
            let mut status = 0;
            assert_eq!(libc::waitpid(tid, &raw mut status, libc::__WALL), tid);
        }
        Self(tid)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: as above. If the process has ended, there is nothing to let go.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, 0usize, 0usize) };
    }
}

/// Before gates open, the control thread asks the kernel to end what dead processes left, and waits
/// for a lock of the kernel's for as long as another program holds it.
#[test]
fn a_fence_that_closed_in_a_stall_waits_for_its_agents_control_thread() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = all_fenced_within(&pins, 3, "acknowledged", "1s") else { return };
    let closed_before = w.fencings(2).len();
    // The control thread is the process' first one.
    let held = Held::thread(w.agent_pid(2));
    stand_still(&w, 3, Duration::from_millis(1_300));
    for host in [1, 3] {
        open(&w, host);
    }
    // Sleep: longer than heartbeats pass closed gates (1 s), and than the others wait for a
    // heartbeat of it then (1 s).
    sleep(Duration::from_millis(2_500));
    nobody_was_declared_dead(&w, 1);
    drop(held);
    open(&w, 2);
    w.all_alive();
    nobody_was_declared_dead(&w, 3);
    assert_eq!(w.fencings(2).len(), closed_before + 1);
}

/// A hypervisor that stops its machines goes on for a moment, and stops them again: longer than
/// heartbeats pass closed gates.
#[test]
fn fences_that_closed_in_a_stall_open_by_themselves_if_a_second_one_follows_at_once() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = all_fenced_within(&pins, 3, "acknowledged", "1s") else { return };
    for gap_ms in [0, 1, 2, 4, 8] {
        stand_still(&w, 3, Duration::from_millis(1_300));
        // Sleep: the moment in which they go on.
        sleep(Duration::from_millis(gap_ms));
        stand_still(&w, 3, Duration::from_millis(1_300));
        (1..=3).for_each(|host| _ = open(&w, host));
        w.all_alive();
        nobody_was_declared_dead(&w, 3);
    }
}

/// What is said of one of them is done by the others when they are asked, too, and nothing leaves it before.
#[test]
fn fences_that_are_recovered_one_after_the_other_open_when_so_many_are_that_they_confirm_each_other() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = all_fenced_within(&pins, 3, "acknowledged", "1s") else { return };
    let traffic = Traffic::new(&w, 1, 2);
    traffic.flows();
    (1..=3).for_each(|host| _ = fence(&w, host, FenceOrder::Shut));
    // As after a long time: nobody knows whose address is whose, and behind closed gates nobody is told.
    for host in 1..=3 {
        assert!(w.lab.command(host, "ip").unwrap().args(["neigh", "flush", "all"]).status().unwrap().success());
    }
    let status = fence(&w, 1, FenceOrder::Recover);
    assert_eq!((status.state.as_str(), status.confirmations_needed), ("recovering", 1));
    traffic.is_cut_off();
    assert_eq!(fence(&w, 1, FenceOrder::Status).state, "recovering");
    fence(&w, 2, FenceOrder::Recover);
    (1..=2).for_each(|host| _ = open(&w, host));
    traffic.flows();
    fence(&w, 3, FenceOrder::Recover);
    open(&w, 3);
    w.all_alive();
    assert_eq!(w.fencings(1).len(), 1, "each closed once");
}
