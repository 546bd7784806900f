//! The agent's files: what this thread has another one write, and what it does while the disk
//! hangs. It waits for the disk nowhere without a bound.

use super::{Answer, Control, ErrorCode, LoopRequest, Wait, stuck};
use crate::disk::{KINDS, Kept};
use crate::history::Flushed;
use fide_wire::control::{Refused, Reply};
use std::time::{Duration, Instant};

/// A disk hangs when it has not done one job for so long.
const HANGS_AFTER: Duration = Duration::from_secs(5);
/// Whoever has a process watched is told so when the disk has the table's line, or after so long.
const TABLE_WITHIN: Duration = Duration::from_millis(100);
/// Whoever has a host forgotten is told so when the disk has it, or after so long that it has not.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(2);
/// So many may wait for that at a time.
const FORGETTING_MAX: usize = 8;
/// The end of the agent waits so long for the disk.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// The disk does not answer.
pub(super) struct Hang {
    since: Instant,
    /// Events that were not kept before.
    lost: u64,
}

impl Control {
    /// Has the history written; what became of it, the history knows.
    pub(super) fn write_history(&mut self) {
        let files = self.history.files(false);
        let _ = self.disk.ask(Kept::History, move || {
            files.write();
            Ok(())
        });
    }

    /// Sees to it that the disk gets what was written of the history.
    pub(super) fn sync_history(&mut self) {
        let files = self.history.files(false);
        let _ = self.disk.ask(Kept::Synced, move || {
            files.sync();
            Ok(())
        });
    }

    /// Has the state written, if something of it changed.
    pub(super) fn save_state(&mut self) {
        if let Some(unsaved) = self.state.unsaved() {
            // Does not wait until the disk has it, which may take long: an agent that is killed meanwhile comes back with it.
            let recent = unsaved.clone();
            let _ = self.disk.ask(Kept::Recent, move || recent.hand_over());
            let _ = self.disk.ask(Kept::State, move || unsaved.write());
        }
    }

    /// Has the table written, if something of it changed. `leaving`: nothing follows.
    pub(super) fn keep_table(&mut self, leaving: bool) {
        if self.table.hand_over(leaving) {
            let file = self.table.file();
            let _ = self.disk.ask(Kept::Table, move || file.write());
        }
    }

    /// The same, and waits for it, unless the disk is busy for long already.
    pub(super) fn keep_table_now(&mut self) {
        self.keep_table(false);
        let spent = self.disk.in_job_of(Kept::Table).unwrap_or_default();
        let deadline = Instant::now() + TABLE_WITHIN.saturating_sub(spent);
        // Written later, it lacks to the next agent only if this one is killed before.
        let _ = self.disk.wait(&[self.disk.last(Kept::Table)], deadline);
    }

    /// What became of what was to be written.
    pub(super) fn disk_wrote(&mut self) {
        let table = self.disk.poll(Kept::Table).map_or(Ok(()), |written| self.table.written(written));
        let state = self.disk.poll(Kept::State).map_or(Ok(()), |written| self.state.saved(written));
        for e in [table, state].into_iter().filter_map(Result::err) {
            tracing::error!("{e}");
        }
        while let Some(outcome) = self.history.poll() {
            match outcome {
                Flushed::Failed(e) => {
                    tracing::error!("{e}");
                    self.core.note(0, e.to_string());
                }
                Flushed::Recovered { lost } => {
                    tracing::warn!("the history can be written again; {lost} events were not kept");
                }
                Flushed::Idle | Flushed::Written | Flushed::StillFailing => {}
            }
        }
    }

    /// Says once that the disk hangs, and once that it answers again.
    pub(super) fn look_at_disk(&mut self) {
        let hangs_for = self.disk.in_job_for().max(self.logs_clock.in_job_for()).filter(|spent| *spent >= HANGS_AFTER);
        let text = match (hangs_for, self.hang.take()) {
            (Some(spent), None) => {
                self.hangs += 1;
                self.hang = Some(Hang { since: Instant::now() - spent, lost: self.history.lost() });
                let history = self.config.history.path.as_ref().map_or(String::new(), |path| format!(" or {}", path.display()));
                format!(
                    "the disk has not answered for {} s: what happens is kept in memory, and written when it answers; see what \
                     holds up the file systems of {}, what lies beside it{history}",
                    HANGS_AFTER.as_secs(),
                    self.config.state.display()
                )
            }
            (None, Some(Hang { since, lost })) => {
                let lost = match self.history.lost() - lost {
                    0 => "nothing was lost".into(),
                    lost => format!("{lost} events are not in the history's files"),
                };
                format!("the disk answers again after {} s: {lost}", since.elapsed().as_secs())
            }
            (_, hang) => return self.hang = hang,
        };
        tracing::warn!("{text}");
        self.core.note(0, text);
    }

    /// A host that is gone for good. It is answered when the disk knows of it: a restart must not
    /// count it again.
    pub(super) fn forget(&mut self, i: usize, host: String) -> Result<Option<Answer>, Refused> {
        let waits = |wait: &Wait| matches!(wait, Wait::Forgotten(..));
        let waiting = self.connections.iter().filter_map(|c| c.waiting.as_ref()).filter(|(_, wait)| waits(wait)).count();
        if waiting >= FORGETTING_MAX {
            let what = format!("{waiting} requests to forget hosts wait for the disk already: try again when it answers");
            return Err(Refused { code: ErrorCode::Full, what });
        }
        self.core.ask(|answer| LoopRequest::Forget(host.clone(), answer)).ok_or_else(stuck)??;
        self.keys.remove(&host);
        self.state.forget(&host);
        self.save_state();
        self.connections[i].waiting = Some((Instant::now(), Wait::Forgotten(host, self.disk.last(Kept::State))));
        Ok(None)
    }

    /// Answers those that had hosts forgotten.
    pub(super) fn answer_forgetful(&mut self) {
        for c in &mut self.connections {
            let Some((since, Wait::Forgotten(host, ticket))) = &c.waiting else { continue };
            let why = match self.disk.outcome(*ticket) {
                Some(Ok(())) => None,
                Some(Err(e)) => Some(format!("cannot be written ({e})")),
                None if since.elapsed() < FORGOTTEN_WITHIN => continue,
                None => Some(format!("was not written within {} s", FORGOTTEN_WITHIN.as_secs())),
            };
            let reply = why.map_or(Reply::Done, |why| {
                let what = format!(
                    "{host} is forgotten here, but {} {why}: until it is, which is tried again and again, an agent that is restarted counts {host} \
                     again; see that its disk answers",
                    self.config.state.display()
                );
                Reply::Error(Refused { code: ErrorCode::System, what })
            });
            c.waiting = None;
            c.push(&reply, None);
        }
    }

    /// Writes what is left, unless the disk hangs.
    pub(super) fn end_files(&mut self) {
        let deadline = Instant::now() + ENDS_WITHIN;
        self.keep_table(true);
        // What the last half second brought.
        self.save_state();
        self.write_history();
        let mut is_written = self.disk.wait(&KINDS.map(|kept| self.disk.last(kept)), deadline);
        self.disk_wrote();
        if self.history.has_news() {
            self.write_history(); // how much was lost
            is_written &= self.disk.wait(&[self.disk.last(Kept::History)], deadline);
        }
        self.sync_history();
        is_written &= self.disk.wait(&[self.disk.last(Kept::Synced)], deadline);
        if !is_written {
            tracing::error!(
                "the disk has not answered within {} s: the last events, and what changed last in {}, are not on it",
                ENDS_WITHIN.as_secs(),
                self.config.state.display()
            );
        }
    }
}
