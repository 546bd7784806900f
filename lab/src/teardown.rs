//! Leaving nothing behind: taking a lab down, and what is left of labs whose owner crashed.
//!
//! Everything here can be interrupted at any point and done again: each thing that is gone already is no error, and
//! the record goes last.

use std::fs;
use std::io;
use std::time::Duration;

use serde::Serialize;

use crate::error::LabError;
use crate::freeze;
use crate::lab::REGISTRY;
use crate::names::lab_of_namespace;
use crate::netns;
use crate::process::{self, ProcessId, wait_until};
use crate::spec::check_name;
use crate::state::{self, Phase, State};

/// How long to wait for someone else who is taking the same lab down.
const OTHERS: Duration = Duration::from_secs(30);
/// How long the watcher of a crashed lab may take before others take over.
const WATCHER: Duration = Duration::from_secs(10);

/// What [`crate::Lab::reap_stale`] removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Reaped {
    /// Labs whose owner had ended without taking them down.
    pub labs: Vec<String>,
    /// Network namespaces named like a lab's that no record knew.
    pub namespaces: Vec<String>,
    /// Directories of labs that no record knew.
    pub directories: Vec<String>,
}

impl Reaped {
    /// Whether there was nothing to remove.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Reaped::default()
    }
}

/// Takes one lab down. A lab that is gone already, also when replaced by another of the same name, is no error.
pub(crate) fn take_down(name: &str, id: &str) -> Result<(), LabError> {
    loop {
        match claim(name, id)? {
            Claim::Ours(state) => return remove_all(&state),
            Claim::Gone => return Ok(()),
            Claim::Taken(by) => {
                let over = || !by.is_alive() || !exists(name, id);
                if !wait_until(OTHERS, over) {
                    return Err(LabError::Timeout {
                        what: format!("the removal of lab {name:?} by process {}", by.pid),
                        waited_ms: OTHERS.as_millis() as u64,
                        advice: "see what that process waits for, or end it and try again",
                    });
                }
            }
        }
    }
}

enum Claim {
    Ours(Box<State>),
    Taken(ProcessId),
    Gone,
}

/// Makes the calling process the one that takes the lab down, unless another one lives that does.
fn claim(name: &str, id: &str) -> Result<Claim, LabError> {
    let me = ProcessId::me();
    let claimed = state::update(name, id, |state| match state.phase {
        Phase::Removing { by } if by != me && by.is_alive() => Ok(Claim::Taken(by)),
        _ => {
            state.phase = Phase::Removing { by: me };
            Ok(Claim::Ours(Box::new(state.clone())))
        }
    });
    match claimed {
        Err(LabError::NotFound(_)) => Ok(Claim::Gone),
        other => other,
    }
}

fn exists(name: &str, id: &str) -> bool {
    state::read(name).is_ok_and(|state| state.is_some_and(|s| s.id == id))
}

fn remove_all(state: &State) -> Result<(), LabError> {
    for frozen in &state.frozen {
        frozen.thaw()?;
    }
    freeze::thaw_leftovers(&state.id);
    let directory = state::directory_of(&state.name);
    process::end_all(&directory.join(REGISTRY), &state.id)?;
    for namespace in &state.namespaces {
        netns::remove(namespace)?;
    }
    match fs::remove_dir_all(&directory) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(LabError::io(format!("remove the directory {}", directory.display()), e));
        }
        _ => {}
    }
    state::delete(&state.name, &state.id)
}

/// Takes down the stale labs that no watcher cares for. Does not wait for anyone.
pub(crate) fn reap_abandoned() -> Result<Reaped, LabError> {
    reap_labs(|state| !state.watcher.is_some_and(ProcessId::is_alive))
}

/// Takes down all stale labs, and removes what is named like a lab's and belongs to none.
pub(crate) fn reap_all() -> Result<Reaped, LabError> {
    let labs = reap_labs(|state| {
        // Its watcher is at work, or will be in a moment: let it, then make sure.
        let watched = state.watcher.is_some_and(ProcessId::is_alive);
        if watched {
            wait_until(WATCHER, || !state.watcher.is_some_and(ProcessId::is_alive));
        }
        true
    });
    // What somebody else is taking down at this moment was left by a crash as well: nothing of it
    // may be there afterwards.
    let others = finish_others();
    let orphans = state::while_locked(reap_orphans)?;
    let mut reaped = labs?;
    others?;
    (reaped.namespaces, reaped.directories) = orphans?;
    Ok(reaped)
}

fn reap_labs(wanted: impl Fn(&State) -> bool) -> Result<Reaped, LabError> {
    let mut reaped = Reaped::default();
    let mut first_failure = Ok(());
    for name in state::names() {
        let outcome = match state::read(&name) {
            Ok(Some(state)) if state.is_stale() && wanted(&state) => {
                take_down(&state.name, &state.id).map(|()| reaped.labs.push(name))
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        first_failure = first_failure.and(outcome);
    }
    first_failure.map(|()| reaped)
}

/// Waits for others who take down labs of creators that have ended, and goes on in their place if
/// they end before.
fn finish_others() -> Result<(), LabError> {
    let mut first_failure = Ok(());
    for name in state::names() {
        let outcome = match state::read(&name) {
            Ok(Some(state)) if state.is_taken_over() => take_down(&state.name, &state.id),
            // Where it cannot be read, `reap_labs` has said so.
            _ => Ok(()),
        };
        first_failure = first_failure.and(outcome);
    }
    first_failure
}

/// Namespaces and directories without a record. Called under the lock: no record can appear meanwhile, and a lab has a
/// record before it has anything else. A namespace that someone is inside of is left alone: a person may have made it.
fn reap_orphans() -> Result<(Vec<String>, Vec<String>), LabError> {
    let recorded = state::names();
    let unknown = |lab: &str| !recorded.iter().any(|name| name == lab);

    let mut namespaces = Vec::new();
    for name in netns::names() {
        if lab_of_namespace(&name).is_some_and(unknown) && !netns::is_inhabited(&name) {
            netns::remove(&name)?;
            namespaces.push(name);
        }
    }
    let mut directories = Vec::new();
    for entry in fs::read_dir(state::BASE).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if entry.path().is_dir() && check_name(&name).is_ok() && unknown(&name) {
            let path = entry.path();
            fs::remove_dir_all(&path).map_err(|e| LabError::io(format!("remove {}", path.display()), e))?;
            directories.push(name);
        }
    }
    Ok((namespaces, directories))
}
