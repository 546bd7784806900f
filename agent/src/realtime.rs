//! How the loop's thread takes its place on the processor.

use crate::config::{Config, Profile};
use fide_lane::profile::{self, Applied, State};

/// What was asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    profile: fide_lane::Profile,
    interfaces: Vec<String>,
    priority: Option<u8>,
}

impl Wanted {
    /// From the configuration.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        Self {
            profile: match config.profile {
                Profile::Shared => fide_lane::Profile::Shared,
                Profile::Dedicated => fide_lane::Profile::Dedicated { cpu: config.dedicated.cpu.map(|c| c as usize) },
            },
            interfaces: config.paths.iter().map(|p| p.interface.clone()).collect(),
            priority: (config.rt_priority > 0).then_some(config.rt_priority),
        }
    }
}

/// Makes the calling thread the lane's thread, and says in the log what was achieved. Dropping what is returned undoes it.
#[must_use]
pub fn enter(wanted: &Wanted) -> Applied {
    let interfaces: Vec<&str> = wanted.interfaces.iter().map(String::as_str).collect();
    let applied = profile::apply(&wanted.profile, &interfaces, wanted.priority);
    for step in &applied.steps {
        match step.state {
            State::Achieved => tracing::debug!("{}: {}", step.source, step.detail),
            State::Refused => tracing::info!("{} refused: {}", step.source, step.detail),
            _ => {}
        }
    }
    applied
}
