//! What operators ask of a name, on any of its hosts: they read the group's entries, and propose some.

use crate::course::{Course, Entry};
use crate::run::{group_of, groups, wall_ms};
use anyhow::{Context as _, bail, ensure};
use fide_client::Connection;
use fide_client::group::{Event, Group, Options, Stage};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Longest wait for an entry.
const DECIDED_MAX: Duration = Duration::from_secs(10);

/// One operator.
pub struct Operator {
    name: String,
    group: Group,
    course: Course,
    /// The index of the last entry that was read, at which the state was last kept.
    index: u64,
}

/// The names of which `fide lead run` runs on hosts of this cluster, as this host's agent knows.
///
/// # Errors
/// Those of the connection.
pub fn names(connection: &Connection) -> anyhow::Result<Vec<String>> {
    let of = |name: &str| name.strip_prefix("lead-").map(str::to_owned);
    Ok(groups(connection)?.iter().filter_map(|group| of(&group.name)).collect())
}

impl Operator {
    /// Of this name, with every entry read that was there.
    ///
    /// # Errors
    /// That its group does not run here.
    pub fn open(name: &str, socket: Option<PathBuf>) -> anyhow::Result<Self> {
        let group_name = group_of(name);
        let connection = Connection::open(socket.as_deref())?;
        let there = groups(&connection)?.into_iter().find(|group| group.name == group_name && group.stage == Stage::Running);
        let there = there
            .with_context(|| format!("{name} does not run here: fide lead run {name} on this host, or ask one of its hosts"))?;
        let group = Group::open_with(&group_name, Options { path: socket, ..Options::default() })?;
        let mut of = Self { name: name.into(), group, course: Course::default(), index: 0 };
        let until = Instant::now() + DECIDED_MAX;
        while of.group.index() < there.index {
            ensure!(Instant::now() < until, "the group's entries did not come within {} s", DECIDED_MAX.as_secs());
            of.read()?;
        }
        Ok(of)
    }

    /// What the entries say.
    #[must_use]
    pub const fn course(&self) -> &Course {
        &self.course
    }

    /// The next event, for a moment: an own entry, by its number.
    fn read(&mut self) -> anyhow::Result<Option<(u64, u64)>> {
        match self.group.poll(Some(Duration::from_millis(100)))? {
            Some(Event::Entry(entry)) => {
                self.index = entry.index;
                if let Some(read) = Entry::read(&entry.bytes) {
                    self.course.apply(&read);
                }
                return Ok(Some((entry.number, entry.client)));
            }
            Some(Event::Snapshot { bytes, .. }) => {
                self.course = serde_json::from_slice(&bytes).context("the group's state is not one of fide lead")?;
            }
            _ => {}
        }
        Ok(None)
    }

    fn propose(&mut self, entry: &Entry) -> anyhow::Result<()> {
        let number = self.group.propose(&entry.bytes())?;
        let until = Instant::now() + DECIDED_MAX;
        while Instant::now() < until {
            if self.read()? == Some((number, self.group.client())) {
                return Ok(());
            }
        }
        bail!("not decided within {} s; it may be later: fide group status", DECIDED_MAX.as_secs())
    }

    fn wait(&mut self, within: Duration, what: &str, is_so: impl Fn(&Course) -> bool) -> anyhow::Result<()> {
        let until = Instant::now() + within;
        while !is_so(&self.course) {
            ensure!(Instant::now() < until, "{what} within {} s: fide lead status {}", within.as_secs(), self.name);
            self.read()?;
        }
        Ok(())
    }

    /// It runs on that host from here on.
    ///
    /// # Errors
    /// Why it does not.
    pub fn switch(&mut self, to: &str, within: Duration) -> anyhow::Result<()> {
        let takes_part = self.course.here.contains_key(to);
        ensure!(takes_part, "{to} takes no part in {}; these hosts do: {}", self.name, self.present());
        if self.course.leader.as_deref() == Some(to) {
            return Ok(());
        }
        let (term, at_ms) = (self.course.term, wall_ms());
        self.propose(&Entry::Switch { term, to: to.into(), at_ms })?;
        ensure!(
            self.course.term > term || self.course.switching.as_deref() == Some(to),
            "it moved meanwhile: fide lead status {}",
            self.name
        );
        self.wait(within, &format!("{to} does not run {}", self.name), |course| course.leader.as_deref() == Some(to))
    }

    fn present(&self) -> String {
        self.course.here.keys().cloned().collect::<Vec<_>>().join(", ")
    }

    /// Nothing is started until the pause ends, by itself after so long if that is said.
    ///
    /// # Errors
    /// That it is not decided.
    pub fn pause(&mut self, time: Option<Duration>, why: String) -> anyhow::Result<()> {
        let at_ms = wall_ms();
        let until_ms = time.map(|time| at_ms + time.as_millis() as u64);
        self.propose(&Entry::Pause { until_ms, why, at_ms })
    }

    /// The pause is over, and what has failed is tried again.
    ///
    /// # Errors
    /// That there is none, or it is not decided.
    pub fn resume(&mut self) -> anyhow::Result<()> {
        ensure!(self.course.paused.is_some() || self.course.leader.is_none(), "{} is not paused, and runs", self.name);
        self.propose(&Entry::Resume { until_ms: None, at_ms: wall_ms() })
    }

    /// It runs nowhere any more, and every `fide lead run` of it has ended.
    ///
    /// # Errors
    /// Who has not.
    pub fn retire(&mut self, within: Duration) -> anyhow::Result<()> {
        self.propose(&Entry::Retire { at_ms: wall_ms() })?;
        self.wait(within, "not all have ended", |course| course.leader.is_none() && course.here.is_empty())
    }
}
