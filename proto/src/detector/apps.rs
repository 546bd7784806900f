//! What is known of the monitored processes of one host.

use super::action::Refused;
use fide_wire::verdict::{Cause, VerdictId};
use std::collections::BTreeMap;

/// Most processes tracked per host.
pub const MAX_APPS: usize = 4096;

/// What is known of one process of another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppState {
    /// Monitored and running.
    Alive,
    /// Running, without progress (B10).
    Hung {
        /// What stands still ([`fide_wire::verdict::ProgressSource`]), -1 when that was not heard.
        code: i32,
        /// The verdict that said so.
        id: VerdictId,
    },
    /// It can no longer be saved; reported, its end not yet confirmed.
    Doomed {
        /// The signal or exit status to come.
        code: i32,
        /// The verdict that said so.
        id: VerdictId,
    },
    /// It ended.
    Ended {
        /// How.
        cause: Cause,
        /// Exit status or signal.
        code: i32,
        /// The verdict that said so.
        id: VerdictId,
    },
    /// Nobody watches it now: its host's agent is lost or left. It may well be running.
    Unobserved,
}

impl AppState {
    /// Whether it runs, as far as is known.
    #[must_use]
    pub const fn is_running(self) -> bool {
        matches!(self, AppState::Alive | AppState::Hung { .. })
    }

    /// `alive`, `hung`, `unobserved`, or the cause of its end.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            AppState::Alive => "alive",
            AppState::Hung { .. } => Cause::Hung.name(),
            AppState::Doomed { .. } => Cause::Doomed.name(),
            AppState::Ended { cause, .. } => cause.name(),
            AppState::Unobserved => "unobserved",
        }
    }
}

/// What a notice means for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Its failure, or that it is hung or moves again, known for the first time.
    Failure,
    /// The end of a process already reported as doomed.
    Confirmation,
    /// Nothing that was not known.
    Nothing,
}

/// The processes of one incarnation of one host. Numbers are never used twice in an incarnation, so that what ended stays ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Apps {
    states: BTreeMap<u32, AppState>,
    /// Numbers up to here that are not in `states` ended and were dropped to make room.
    dropped_upto: u32,
    /// The newest notice about the progress of a process: an older one that comes later says nothing any more.
    progress: BTreeMap<u32, u32>,
}

impl Apps {
    pub(super) fn get(&self, app: u32) -> Option<AppState> {
        self.states.get(&app).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, AppState)> + '_ {
        self.states.iter().map(|(&app, &state)| (app, state))
    }

    /// The process is in its host's directory. An announcement may be older than a notice: what ended stays ended.
    pub(super) fn seen(&mut self, app: u32) -> Result<bool, Refused> {
        if app == 0 {
            return Err(Refused::Malformed);
        }
        if self.states.contains_key(&app) || app <= self.dropped_upto {
            return Ok(false);
        }
        self.make_room()?;
        self.states.insert(app, AppState::Alive);
        Ok(true)
    }

    /// The process is no longer monitored by its own host: as if it had left, without a verdict.
    pub(super) fn withdrawn(&mut self, app: u32) {
        if let Some(state) = self.states.get_mut(&app).filter(|s| s.is_running()) {
            *state = AppState::Ended { cause: Cause::Left, code: 0, id: VerdictId(0) };
            self.progress.remove(&app);
        }
    }

    /// A notice about the process. Its copies, and copies of what followed it, may come in any order: the states only move
    /// forward, so every order ends in the same place with one failure reported.
    pub(super) fn noticed(&mut self, app: u32, cause: Cause, code: i32, id: VerdictId) -> Result<News, Refused> {
        let known = match self.get(app) {
            Some(state) => state,
            None if app <= self.dropped_upto => return Ok(News::Nothing),
            // A notice may overtake the announcement.
            None => {
                self.make_room()?;
                AppState::Alive
            }
        };
        if cause.is_progress() {
            return Ok(self.progressed(app, known, cause, code, id));
        }
        let (next, news) = match (known, cause) {
            (AppState::Alive | AppState::Hung { .. }, Cause::Doomed) => (AppState::Doomed { code, id }, News::Failure),
            (AppState::Alive | AppState::Hung { .. }, _) => (AppState::Ended { cause, code, id }, News::Failure),
            (AppState::Doomed { .. }, Cause::Exited | Cause::Killed | Cause::OutOfMemory) => {
                (AppState::Ended { cause, code, id }, News::Confirmation)
            }
            (state, _) => (state, News::Nothing),
        };
        self.states.insert(app, next);
        self.progress.remove(&app);
        Ok(news)
    }

    /// The only states that are left again: of two notices the one with the higher number holds, in whatever order they come.
    fn progressed(&mut self, app: u32, known: AppState, cause: Cause, code: i32, id: VerdictId) -> News {
        let number = id.0 as u32;
        if !known.is_running() || self.progress.get(&app).is_some_and(|newest| number <= *newest) {
            return News::Nothing;
        }
        self.progress.insert(app, number);
        let next = if cause == Cause::Hung { AppState::Hung { code, id } } else { AppState::Alive };
        self.states.insert(app, next);
        // That it moves again is no news to who never heard that it did not.
        let changed = matches!(known, AppState::Hung { .. }) || cause == Cause::Hung;
        if changed { News::Failure } else { News::Nothing }
    }

    /// The host is silent: everything that ran there ended. Returns those whose end was not known before.
    pub(super) fn host_silent(&mut self, id: VerdictId) -> Vec<u32> {
        let mut ended = Vec::new();
        for (&app, state) in &mut self.states {
            match *state {
                AppState::Alive | AppState::Hung { .. } | AppState::Unobserved => {
                    ended.push(app);
                    self.progress.remove(&app);
                    *state = AppState::Ended { cause: Cause::SilentHost, code: 0, id };
                }
                AppState::Doomed { code, id } => *state = AppState::Ended { cause: Cause::Doomed, code, id },
                AppState::Ended { .. } => {}
            }
        }
        ended
    }

    fn make_room(&mut self) -> Result<(), Refused> {
        if self.states.len() < MAX_APPS {
            return Ok(());
        }
        let oldest = self.states.iter().find(|(_, s)| matches!(s, AppState::Ended { .. })).map(|(&app, _)| app);
        let oldest = oldest.ok_or(Refused::TooManyApps)?;
        self.states.remove(&oldest);
        self.progress.remove(&oldest);
        self.dropped_upto = self.dropped_upto.max(oldest);
        Ok(())
    }

    pub(super) fn invariants(&self) {
        debug_assert!(self.states.len() <= MAX_APPS);
        debug_assert!(self.progress.keys().all(|app| self.states.get(app).is_some_and(|s| s.is_running())));
        debug_assert!(!self.states.values().any(|s| *s == AppState::Unobserved), "unobserved is shown, never stored");
    }
}
