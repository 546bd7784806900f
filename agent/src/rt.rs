//! How the loop's thread takes its place on the processor.

use crate::config::{Config, Profile};

/// What was asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    profile: Profile,
    cpu: Option<u32>,
    priority: u8,
}

impl Wanted {
    /// From the configuration.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        Self { profile: config.profile, cpu: config.dedicated.cpu, priority: config.rt_priority }
    }
}

/// Makes the calling thread the lane's thread. What is returned keeps it so.
#[must_use]
pub fn enter(wanted: &Wanted) -> Vec<String> {
    let mut achieved = Vec::new();
    if wanted.priority > 0 {
        let p = libc::sched_param { sched_priority: i32::from(wanted.priority) };
        // SAFETY: pid 0 is the calling thread; the parameter lives across the call.
        let r = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const p) };
        achieved.push(format!("rt {r} {:?} {:?}", wanted.profile, wanted.cpu));
    }
    achieved
}
