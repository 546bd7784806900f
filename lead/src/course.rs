//! What entries of the group mean: on which host COMMAND may run, in which term. Pure, and the same
//! on every host, because all read the same entries in the same order.
//!
//! ```text
//! Here ─► candidates          Over (of this term, by its own host, or of a host that is fenced)
//!             │                 │
//!             └────► choose ◄───┘ ─► the next term, in the same step
//! ```
//!
//! **Invariant.** A term begins only if the one before is over, and a term is over only when
//! somebody has stated that nothing of it is heard any more: its own host, which has seen COMMAND's
//! cgroup empty and the address taken off, or another one, which knows that its host is fenced.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Decisions that are remembered.
pub const HISTORY_MAX: usize = 200;
/// A COMMAND that ran for so long has started well: what failed before is forgotten.
pub const STEADY_MS: u64 = 10_000;
/// After so many ends in a row on each host nobody starts it any more.
pub const ROUNDS_MAX: u32 = 6;
/// The first pause after COMMAND has failed on every host. Each further one is twice as long.
const PAUSE_MS: u64 = 500;

/// One run of `fide lead`, in one incarnation of its host: what opens behind a closed fence is
/// another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Life {
    /// Which run.
    pub run: u64,
    /// Which incarnation.
    pub incarnation: u32,
}

/// How a term came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// COMMAND has ended, or could not be started.
    Failed,
    /// `fide lead` has ended, or its host is fenced: COMMAND is not to blame.
    Lost,
    /// By an operator's word, or an ordinary stop of `fide lead`.
    Planned,
}

/// One entry of the group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "kebab-case")]
pub enum Entry {
    /// A host takes part from here on. Nothing that a former life of its `fide lead` started runs.
    Here {
        /// Which.
        host: String,
        /// Which life.
        life: Life,
        /// All hosts, the preferred ones first.
        hosts: Vec<String>,
        /// COMMAND runs here, started in a term of which this host has read.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        runs: bool,
    },
    /// A host takes part no more: its `fide lead` has ended.
    Gone {
        /// Which.
        host: String,
        /// Which life.
        life: Life,
        /// Why, for people.
        why: String,
    },
    /// Nothing of this term runs or is heard any more.
    Over {
        /// Which.
        term: u64,
        /// In which way.
        end: End,
        /// How long COMMAND ran, milliseconds.
        ran_ms: u64,
        /// Why, for people.
        why: String,
        /// When, by the proposer's clock, milliseconds since 1970.
        at_ms: u64,
    },
    /// The pause behind a term is over, by somebody's clock.
    Next {
        /// The term that is over.
        term: u64,
        /// When, as in [`Entry::Over`].
        at_ms: u64,
    },
    /// An operator wants COMMAND on another host.
    Switch {
        /// The term that is to end.
        term: u64,
        /// Where it is to run.
        to: String,
        /// When, as in [`Entry::Over`].
        at_ms: u64,
    },
    /// Nothing is started until further notice.
    Pause {
        /// When it ends by itself, milliseconds since 1970; absent: never.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until_ms: Option<u64>,
        /// An operator's words.
        #[serde(default)]
        why: String,
        /// When, as in [`Entry::Over`].
        at_ms: u64,
    },
    /// The pause is over, and what failed is tried again.
    Resume {
        /// It ended by itself: the pause that was to end then. Another one is not meant.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until_ms: Option<u64>,
        /// When, as in [`Entry::Over`].
        at_ms: u64,
    },
    /// COMMAND runs nowhere any more, and every `fide lead` of this name ends.
    Retire {
        /// When, as in [`Entry::Over`].
        at_ms: u64,
    },
}

impl Entry {
    /// As it is proposed.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The same, said at this time.
    #[must_use]
    pub fn at(mut self, now_ms: u64) -> Self {
        match &mut self {
            Self::Over { at_ms, .. }
            | Self::Next { at_ms, .. }
            | Self::Switch { at_ms, .. }
            | Self::Pause { at_ms, .. }
            | Self::Resume { at_ms, .. }
            | Self::Retire { at_ms } => *at_ms = now_ms,
            Self::Here { .. } | Self::Gone { .. } => {}
        }
        self
    }

    /// An entry; nothing for what a later version says.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// A pause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// When it ends by itself, milliseconds since 1970.
    pub until_ms: Option<u64>,
    /// An operator's words.
    pub why: String,
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// When, milliseconds since 1970.
    pub at_ms: u64,
    /// In which term.
    pub term: u64,
    /// What and why, for people.
    pub text: String,
}

/// Where COMMAND may run. What is kept as the group's snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Course {
    /// The term; 0 before the first.
    pub term: u64,
    /// On which host COMMAND may run in it; nothing: on none.
    pub leader: Option<String>,
    /// Which life of that host's `fide lead`.
    pub life: Life,
    /// When the term began, milliseconds since 1970, by the clock of who proposed that.
    pub began_ms: u64,
    /// All hosts, the preferred ones first, as the first of them has said.
    pub hosts: Vec<String>,
    /// Hosts that take part, and the life of their `fide lead`.
    pub here: BTreeMap<String, Life>,
    /// Ends of COMMAND in a row, by host, since it last ran for long.
    pub failed: BTreeMap<String, u32>,
    /// Who led in the term that is over.
    pub last: Option<String>,
    /// Why nobody leads.
    pub over: String,
    /// Nothing is started.
    pub paused: Option<Pause>,
    /// Where it is to run next.
    pub switching: Option<String>,
    /// It is to run nowhere any more.
    pub retired: bool,
    /// What was decided.
    pub history: VecDeque<Decision>,
}

impl Course {
    /// The next entry. Whether anything changed.
    pub fn apply(&mut self, entry: &Entry) -> bool {
        match entry {
            Entry::Here { host, life, hosts, runs } => self.here(host, *life, hosts, *runs),
            Entry::Gone { host, life, why } if self.here.get(host) == Some(life) => {
                self.here.remove(host);
                if self.switching.as_ref() == Some(host) {
                    self.switching = None;
                    self.note(self.began_ms, format!("{} goes on: {host} takes part no more", self.leads()));
                }
                if self.leader.as_ref() == Some(host) {
                    self.over.clone_from(why);
                }
                true
            }
            Entry::Over { term, end, ran_ms, why, at_ms } if *term == self.term && self.leader.is_some() => {
                self.end(*end, *ran_ms, why, *at_ms);
                true
            }
            Entry::Next { term, at_ms } if *term == self.term && self.leader.is_none() => self.begin(*at_ms, true),
            Entry::Switch { term, to, at_ms } if *term == self.term && self.may_switch(to) => {
                self.switching = Some(to.clone());
                self.note(*at_ms, format!("{to} is to run it, by an operator's word"));
                self.begin(*at_ms, true);
                true
            }
            Entry::Pause { until_ms, why, at_ms } => {
                self.paused = Some(Pause { until_ms: *until_ms, why: why.clone() });
                let reason = if why.is_empty() { String::new() } else { format!(": {why}") };
                self.note(*at_ms, format!("paused{reason}"));
                true
            }
            Entry::Resume { until_ms, at_ms } if self.may_resume(*until_ms) => {
                self.paused = None;
                self.failed.clear();
                self.note(*at_ms, "resumed".into());
                self.begin(*at_ms, true);
                true
            }
            Entry::Retire { at_ms } if !self.retired => {
                self.retired = true;
                self.note(*at_ms, "retired: it runs nowhere any more".into());
                true
            }
            _ => false,
        }
    }

    /// Who leads, for people.
    #[must_use]
    pub fn leads(&self) -> &str {
        self.leader.as_deref().unwrap_or("nobody")
    }

    fn may_switch(&self, to: &str) -> bool {
        self.here.contains_key(to) && self.leader.as_deref() != Some(to) && !self.retired
    }

    fn may_resume(&self, until_ms: Option<u64>) -> bool {
        match &self.paused {
            Some(pause) => until_ms.is_none() || pause.until_ms == until_ms,
            // What has failed everywhere rests.
            None => until_ms.is_none() && self.leader.is_none(),
        }
    }

    fn here(&mut self, host: &str, life: Life, hosts: &[String], runs: bool) -> bool {
        if self.hosts.is_empty() {
            self.hosts = hosts.to_vec();
        }
        // Whoever names other hosts reads that here, and takes no part.
        if self.hosts != hosts || !self.hosts.iter().any(|known| known == host) {
            return false;
        }
        let former = self.here.insert(host.into(), life);
        if runs && self.term == 0 {
            self.switching = Some(host.into());
        }
        if self.leader.as_deref() == Some(host) && self.life != life {
            if self.life.run == life.run && runs {
                // Its agent was started again, and it went on.
                self.life = life;
            } else {
                self.end(End::Lost, 0, &format!("fide lead was started again on {host}"), self.began_ms);
            }
        } else if self.leader.is_none() {
            self.begin(self.began_ms, false);
        }
        former != Some(life)
    }

    fn end(&mut self, end: End, ran_ms: u64, why: &str, at_ms: u64) {
        let Some(host) = self.leader.take() else { return };
        if end == End::Failed && ran_ms < STEADY_MS {
            *self.failed.entry(host.clone()).or_default() += 1;
        } else {
            self.failed.clear();
        }
        self.note(at_ms, format!("{host} runs it no more: {why}"));
        (self.last, self.over) = (Some(host), why.into());
        self.begin(at_ms, false);
    }

    /// How long nobody starts it, after it has failed everywhere. `None`: it rests until somebody
    /// says `resume`.
    #[must_use]
    pub fn pause_ms(&self) -> Option<u64> {
        let rounds = self.here.keys().map(|host| self.failed.get(host).copied().unwrap_or(0)).min().unwrap_or(0);
        match rounds {
            0 => Some(0),
            rounds if rounds < ROUNDS_MAX => Some(PAUSE_MS << (rounds - 1)),
            _ => None,
        }
    }

    /// The next term begins, if it may. `waited`: its pause is over.
    fn begin(&mut self, at_ms: u64, waited: bool) -> bool {
        let rests = self.pause_ms().is_none_or(|pause_ms| pause_ms > 0 && !waited);
        // A group that knows of no term may have followed one whose log is lost: all hosts are asked
        // whether COMMAND runs there.
        let is_asked = self.term > 0 || self.hosts.iter().all(|host| self.here.contains_key(host));
        if self.leader.is_some() || self.paused.is_some() || self.retired || rests || !is_asked {
            return false;
        }
        let Some(host) = self.choose() else { return false };
        self.switching = None;
        self.term = self.term.saturating_add(1);
        self.life = self.here.get(&host).copied().unwrap_or_default();
        self.began_ms = at_ms;
        let why = if self.over.is_empty() { "the first".into() } else { std::mem::take(&mut self.over) };
        self.note(at_ms, format!("{host} runs it: {why}"));
        self.leader = Some(host);
        true
    }

    /// Where it runs next: where an operator wants it; else where it failed least, and of those the
    /// host that is named first.
    #[must_use]
    pub fn choose(&self) -> Option<String> {
        if let Some(to) = self.switching.as_ref().filter(|to| self.here.contains_key(*to)) {
            return Some(to.clone());
        }
        // The one whose term is over is the last of equals: what ended it may still be there.
        let rank = |host: &&String| (self.failed.get(*host).copied().unwrap_or(0), self.last.as_ref() == Some(*host));
        self.hosts.iter().filter(|host| self.here.contains_key(*host)).min_by_key(rank).cloned()
    }

    fn note(&mut self, at_ms: u64, text: String) {
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(Decision { at_ms, term: self.term, text });
    }
}
