//! What the exit watch costs a process that is not watched: a loop of fork, exec and wait, with and without it, in turns.
//!
//! `cargo run --release -p fide-xdp --example exit_cost [rounds] [processes per round]`, as root. One JSON line per case on standard output,
//! the comparison on standard error.

use fide_wire::mac::Keyring;
use fide_xdp::{Mechanism, Setup};
use std::ffi::CString;
use std::time::Instant;

/// Processes after a change that are not counted: attaching rewrites kernel code, which the caches must learn.
const SETTLE: usize = 5;

/// Forks, executes the program, waits: microseconds.
fn one(program: &CString) -> f64 {
    let argv = [program.as_ptr(), std::ptr::null()];
    let begun = Instant::now();
    // SAFETY: the child only calls execve and _exit; the strings live across the call.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::execve(program.as_ptr(), argv.as_ptr(), [std::ptr::null()].as_ptr());
            libc::_exit(127);
        }
        let mut status = 0;
        assert!(pid > 0 && libc::waitpid(pid, &raw mut status, 0) == pid && status == 0);
    }
    begun.elapsed().as_secs_f64() * 1e6
}

/// Keeps other work of this machine out of the figures as far as that goes: real-time priority on one CPU, inherited by the children.
fn undisturbed() {
    // SAFETY: plain values and a zeroed set; failure leaves things as they are.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu().max(0) as usize, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
        let priority = libc::sched_param { sched_priority: 1 };
        if libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) != 0 {
            eprintln!("no real-time priority: the figures include whatever else runs here");
        }
    }
}

fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

fn json(case: &str, mut times: Vec<f64>, steps: &str) {
    times.sort_by(f64::total_cmp);
    let at = |q: f64| times[((times.len() - 1) as f64 * q) as usize];
    println!(
        r#"{{"bench":"exit-cost","case":"{case}","n":{},"unit":"us","min":{:.2},"p50":{:.2},"p99":{:.2},"p999":{:.2},"max":{:.2},"steps":{{{steps}}}}}"#,
        times.len(),
        at(0.0),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<usize>().expect("a number"));
    let (rounds, processes) = (args.next().unwrap_or(150), args.next().unwrap_or(40));
    let setup = Setup { cluster: 1, node: 1, incarnation: 1, port: 3433 };
    let mut m = match Mechanism::load(setup, &Keyring::default(), true) {
        Ok(m) => m,
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(1);
        }
    };
    // Somebody is watched, as on every host that has an agent: ourselves.
    let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc");
    let ticks = stat[stat.rfind(')').expect("a name") + 2..].split(' ').nth(19).expect("a start").parse().expect("a number");
    m.watch(std::process::id(), 1, ticks).expect("a watch");
    let program = CString::new("/bin/true").expect("no zero");

    undisturbed();
    for _ in 0..processes {
        one(&program); // warm
    }
    let (mut without, mut with, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        // A B, B A, A B, ...: a machine that grows slower or faster favours neither.
        let mut medians = [0.0; 2];
        for watched in [round % 2 == 1, round % 2 == 0] {
            if watched {
                m.attach_exit_watch().expect("attached");
            }
            (0..SETTLE).for_each(|_| _ = one(&program));
            let mut times: Vec<f64> = (0..processes).map(|_| one(&program)).collect();
            m.detach_exit_watch();
            if watched { &mut with } else { &mut without }.extend_from_slice(&times);
            times.sort_by(f64::total_cmp);
            medians[usize::from(watched)] = median(&times);
        }
        ratios.push(medians[1] / medians[0]);
    }
    ratios.sort_by(f64::total_cmp);
    let spread = (ratios[ratios.len() / 4], ratios[ratios.len() * 3 / 4]);

    // And what the programs themselves take, by the kernel's own account.
    // SAFETY: BPF_ENABLE_STATS with BPF_STATS_RUN_TIME; a descriptor or an error comes back.
    let stats = unsafe { libbpf_rs::libbpf_sys::bpf_enable_stats(0) };
    m.attach_exit_watch().expect("attached");
    let before = m.figures();
    for _ in 0..processes {
        one(&program);
    }
    let after = m.figures();
    m.detach_exit_watch();
    let (mut own, mut steps) = (0.0, String::new());
    for (b, a) in before.iter().zip(&after).filter(|(b, a)| a.runs > b.runs) {
        let per_process = (a.run_ns - b.run_ns) as f64 / processes as f64;
        own += per_process;
        steps.push_str(&format!(r#"{}"{}":{:.3}"#, if steps.is_empty() { "" } else { "," }, a.name, per_process / 1000.0));
    }
    if stats >= 0 {
        // SAFETY: ours.
        unsafe { libc::close(stats) };
    }

    let sorted = |v: &[f64]| {
        let mut v = v.to_vec();
        v.sort_by(f64::total_cmp);
        v
    };
    let (a, b) = (median(&sorted(&without)), median(&sorted(&with)));
    eprintln!("fork+exec+wait, {} each: without {a:.1} µs, with {b:.1} µs (medians), ratio {:.4}", with.len(), b / a);
    eprintln!(
        "median of {rounds} paired rounds: {:.4} (quartiles {:.4} to {:.4}); the bar is 1.01",
        median(&ratios),
        spread.0,
        spread.1
    );
    eprintln!(
        "the programs themselves: {own:.0} ns per process, all processes of the machine meanwhile included: {:.3} %",
        own / a / 10.0
    );
    json("fork+exec without", without, "");
    json("fork+exec with", with, &steps);
}
