//! Which of the two servers may serve alone: what the entries of the group mean, and what one host does about them. Pure; both hosts read the same entries in
//! the same order.
//!
//! ```text
//!            Both{n}                      Alone{n, a}
//! unknown ─────────────► both in step ─────────────────► a alone ──┐
//!                             ▲               the other has ended   │ the other follows again, a's oracle says 0,
//!                             └─────────────────────────────────────┘ and a write was committed since: Both{n}
//! ```
//! Each of the three steps begins a new epoch, so that of several entries for one epoch the first counts. From *a alone* nothing leads to *b alone*: b lacks
//! what a has committed alone. It leads back to *both in step* only by a's own word, behind a commit that needed both servers, so that b has everything.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the entries say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Nothing is known of the servers' data: nobody is let serve alone.
    #[default]
    Unknown,
    /// Whatever was committed is on both.
    Both,
    /// This host's server may commit alone; the other one may lack what it did.
    Alone(String),
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "kebab-case")]
pub enum Entry {
    /// A hook takes part, and has read every entry before its own.
    Here {
        /// Its host.
        host: String,
        /// Which of its connections; later ones have greater numbers.
        session: u64,
    },
    /// The other server has ended: this one may serve alone.
    Alone {
        /// In which epoch.
        epoch: u64,
        /// Whose.
        host: String,
        /// Why.
        why: String,
        /// By its host's clock, milliseconds since 1970.
        at_ms: u64,
    },
    /// This host's server follows the other one, and its oracle says 0.
    Follows {
        /// In which epoch.
        epoch: u64,
        /// Whose.
        host: String,
    },
    /// A write was committed by both.
    Both {
        /// In which epoch.
        epoch: u64,
        /// Who says so.
        host: String,
        /// In which of its connections: what was said in a former one counts no more, because its oracle may say 1 by now.
        session: u64,
    },
}

impl Entry {
    /// As it is proposed.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads it; nothing for what no hook of this version proposes.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// The state behind some entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Course {
    /// How often [`Course::mode`] has changed.
    pub epoch: u64,
    /// What is so now.
    pub mode: Mode,
    /// The server that follows in this epoch.
    pub follower: Option<String>,
    /// Each hook's last connection.
    pub sessions: BTreeMap<String, u64>,
    /// Why the last server was let serve alone, and when.
    pub why: String,
    /// Milliseconds since 1970.
    pub at_ms: u64,
}

impl Course {
    /// The next entry.
    pub fn apply(&mut self, entry: &Entry) {
        match entry {
            Entry::Here { host, session } => {
                let last = self.sessions.entry(host.clone()).or_default();
                *last = (*last).max(*session);
            }
            Entry::Alone { epoch, host, why, at_ms } => {
                if *epoch == self.epoch && self.mode == Mode::Both {
                    self.next(Mode::Alone(host.clone()));
                    (self.why, self.at_ms) = (why.clone(), *at_ms);
                }
            }
            Entry::Follows { epoch, host } => {
                if *epoch == self.epoch && self.mode != Mode::Both && self.mode != Mode::Alone(host.clone()) {
                    self.follower = Some(host.clone());
                }
            }
            Entry::Both { epoch, host, session } => {
                let may = match &self.mode {
                    Mode::Unknown => self.follower.as_ref().is_some_and(|follower| follower != host),
                    Mode::Alone(alone) => alone == host,
                    Mode::Both => false,
                };
                if *epoch == self.epoch && may && self.sessions.get(host) == Some(session) {
                    self.next(Mode::Both);
                }
            }
        }
    }

    fn next(&mut self, mode: Mode) {
        self.epoch += 1;
        (self.mode, self.follower) = (mode, None);
    }
}

/// What a server says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nobody answers.
    Down,
    /// It answers, and does not serve.
    Waits,
    /// It leads.
    Leads,
    /// It follows.
    Follows,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Propose it.
    Propose(Entry),
    /// Let the oracle say this, on the disk before anything else is done.
    Oracle(bool),
    /// Have a write committed by the server, and tell the result.
    Prove,
}

/// What was proposed and had no effect is proposed again after so long.
const AGAIN_MS: u64 = 1_000;
/// A server that is down is not let serve alone before the other host's had its chance.
const DOWN_MS: u64 = 1_000;

/// One host's part.
#[derive(Clone, Debug)]
pub struct Judge {
    me: String,
    course: Course,
    session: u64,
    current: bool,
    look: Look,
    /// The other server has ended: why, and since when this is known.
    ended: Option<(String, u64)>,
    /// The other server follows, or this one does: a proof is worth trying.
    is_followed: bool,
    proving: bool,
    /// The write was committed in this epoch: until the entry for it comes, the oracle says 0.
    proved: Option<u64>,
    oracle: Option<bool>,
    proposed_at_ms: Option<u64>,
    now_ms: u64,
    wall_ms: u64,
    actions: Vec<Action>,
}

impl Judge {
    /// A host that has read nothing yet; its oracle says this, or there is none.
    #[must_use]
    pub fn new(me: &str, oracle: Option<bool>) -> Self {
        let mut of = Self {
            me: me.into(),
            course: Course::default(),
            session: 0,
            current: false,
            look: Look::Down,
            ended: None,
            is_followed: false,
            proving: false,
            proved: None,
            oracle,
            proposed_at_ms: None,
            now_ms: 0,
            wall_ms: 0,
            actions: Vec::new(),
        };
        if oracle.is_none() {
            of.say(false);
        }
        of
    }

    /// What the entries say.
    #[must_use]
    pub const fn course(&self) -> &Course {
        &self.course
    }

    /// Whether all entries were read that were there when this host came.
    #[must_use]
    pub const fn is_current(&self) -> bool {
        self.current
    }

    /// Whether the server is to be asked what it does, now and then: not while both are in step, because it writes that to its log.
    #[must_use]
    pub fn wants_looks(&self) -> bool {
        !self.current || self.course.mode != Mode::Both || self.ended.is_some()
    }

    /// This host takes part, for the first time or again: all entries are read from the first one on.
    pub fn begin(&mut self, session: u64) {
        (self.session, self.current, self.course) = (session, false, Course::default());
        self.actions.push(Action::Propose(Entry::Here { host: self.me.clone(), session }));
    }

    /// Time goes by: of a clock that only grows, and as people tell it; milliseconds.
    pub fn set_now(&mut self, now_ms: u64, wall_ms: u64) {
        (self.now_ms, self.wall_ms) = (now_ms, wall_ms);
        self.step();
    }

    /// The next entry.
    pub fn handle_entry(&mut self, entry: &Entry) {
        let epoch = self.course.epoch;
        self.course.apply(entry);
        let is_own = matches!(entry, Entry::Here { host, session } if *host == self.me && *session == self.session);
        let last = self.course.sessions.get(&self.me).copied().unwrap_or_default();
        if (is_own || self.current) && last > self.session {
            // This host's clock went back: a former connection has a greater number.
            (self.session, self.current) = (last + 1, false);
            self.actions.push(Action::Propose(Entry::Here { host: self.me.clone(), session: self.session }));
        } else if is_own {
            self.current = true;
        }
        if self.course.epoch != epoch {
            (self.proposed_at_ms, self.is_followed) = (None, false);
        }
        if matches!(entry, Entry::Follows { epoch, host } if *epoch == self.course.epoch && *host != self.me) {
            self.is_followed = true;
        }
        self.step();
    }

    /// The state behind entries that are not kept any more.
    pub fn handle_snapshot(&mut self, course: Course) {
        self.course = course;
    }

    /// The group or the agent is lost.
    pub fn handle_disconnected(&mut self) {
        self.current = false;
        (self.ended, self.proposed_at_ms) = (None, None);
    }

    /// How this host's server is.
    pub fn handle_look(&mut self, look: Look) {
        self.look = look;
        self.is_followed |= look == Look::Follows && self.course.mode == Mode::Alone(self.me.clone());
        self.step();
    }

    /// The other server has ended (why), or a new one is there.
    pub fn handle_peer(&mut self, ended: Option<String>) {
        self.ended = ended.map(|why| (why, self.now_ms));
        self.step();
    }

    /// What became of [`Action::Prove`].
    pub fn handle_proof(&mut self, is_committed: bool) {
        self.proving = false;
        if is_committed && self.current && self.oracle == Some(false) {
            self.proved = Some(self.course.epoch);
        } else {
            // Not again before somebody says anew that a server follows.
            self.is_followed = false;
        }
        self.step();
    }

    /// What is to be done, in this order.
    pub fn poll_action(&mut self) -> Option<Action> {
        (!self.actions.is_empty()).then(|| self.actions.remove(0))
    }

    fn say(&mut self, oracle: bool) {
        if self.oracle != Some(oracle) {
            self.oracle = Some(oracle);
            self.actions.push(Action::Oracle(oracle));
        }
    }

    fn propose(&mut self, entry: Entry) {
        if self.proposed_at_ms.is_none_or(|at_ms| self.now_ms >= at_ms + AGAIN_MS) {
            self.proposed_at_ms = Some(self.now_ms);
            self.actions.push(Action::Propose(entry));
        }
    }

    fn step(&mut self) {
        if !self.current {
            return;
        }
        let (epoch, host, session) = (self.course.epoch, self.me.clone(), self.session);
        let is_proved = self.proved == Some(epoch);
        match self.course.mode.clone() {
            Mode::Both => {
                self.say(false);
                if let Some((why, since_ms)) = self.ended.clone()
                    && (self.look != Look::Down || self.now_ms >= since_ms + DOWN_MS)
                {
                    self.propose(Entry::Alone { epoch, host, why, at_ms: self.wall_ms });
                }
            }
            Mode::Alone(alone) if alone == self.me => {
                if is_proved {
                    self.propose(Entry::Both { epoch, host, session });
                } else if self.is_followed {
                    self.prove();
                } else if !self.proving {
                    self.say(true);
                }
            }
            Mode::Alone(_) => {
                self.say(false);
                if self.look == Look::Follows {
                    self.propose(Entry::Follows { epoch, host });
                }
            }
            // What the oracle says was said by an operator, or is left from a group that has ended.
            Mode::Unknown if self.look == Look::Follows => {
                self.say(false);
                self.propose(Entry::Follows { epoch, host });
            }
            Mode::Unknown if is_proved => self.propose(Entry::Both { epoch, host, session }),
            Mode::Unknown if self.is_followed => self.prove(),
            Mode::Unknown => {}
        }
    }

    fn prove(&mut self) {
        if std::mem::replace(&mut self.proving, true) {
            return;
        }
        self.say(false);
        self.actions.push(Action::Prove);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const HOSTS: [&str; 2] = ["a", "b"];

    /// Two servers, their hooks and the group between them.
    struct World {
        judges: Vec<Judge>,
        /// Of how many entries each hook has read.
        read: [usize; 2],
        log: Vec<Entry>,
        proposed: VecDeque<Entry>,
        oracles: [bool; 2],
        up: [bool; 2],
        /// The server follows the other one, or is followed.
        joined: bool,
        /// How many writes were committed, and how many of them each server has.
        committed: u64,
        has: [u64; 2],
        proofs: [bool; 2],
        sessions: u64,
        now_ms: u64,
        /// How long a step takes.
        pace_ms: u64,
    }

    impl World {
        fn new() -> Self {
            let judges = HOSTS.map(|host| Judge::new(host, None)).into();
            let (oracles, up) = ([false; 2], [true; 2]);
            let mut of = Self {
                judges,
                read: [0; 2],
                log: Vec::new(),
                proposed: VecDeque::new(),
                oracles,
                up,
                joined: true,
                committed: 0,
                has: [0; 2],
                proofs: [false; 2],
                sessions: 0,
                now_ms: 0,
                pace_ms: 300,
            };
            (0..2).for_each(|host| of.begin(host));
            of
        }

        fn begin(&mut self, host: usize) {
            self.sessions += 1;
            self.read[host] = 0;
            self.judges[host].handle_disconnected();
            self.judges[host].begin(self.sessions);
            self.act(host);
        }

        fn act(&mut self, host: usize) {
            while let Some(action) = self.judges[host].poll_action() {
                match action {
                    Action::Propose(entry) => self.proposed.push_back(entry),
                    Action::Oracle(says) => self.oracles[host] = says,
                    Action::Prove => self.proofs[host] = true,
                }
            }
            assert!(self.oracles != [true, true], "both may serve alone");
            for (host, name) in HOSTS.iter().enumerate() {
                assert!(!self.oracles[host] || self.has[host] == self.committed, "{name} may serve alone and lacks writes");
            }
        }

        /// Both serve, or one that its oracle lets.
        fn write(&mut self, host: usize) {
            if self.joined && self.up == [true, true] && !self.oracles[host] {
                self.committed += 1;
                self.has = [self.committed; 2];
            } else if self.up[host] && self.oracles[host] {
                self.committed += 1;
                self.has[host] = self.committed;
            }
        }

        fn step(&mut self, choice: u8, host: usize) {
            self.now_ms += self.pace_ms;
            let other = 1 - host;
            match choice {
                0 | 1 => {
                    if let Some(entry) = self.proposed.pop_front() {
                        self.log.push(entry);
                    }
                }
                // Out of order: of another host's, or of a connection that has ended.
                2 => self.proposed.rotate_left(usize::from(!self.proposed.is_empty())),
                3..=5 => {
                    if let Some(entry) = self.log.get(self.read[host]).cloned() {
                        self.read[host] += 1;
                        self.judges[host].handle_entry(&entry);
                    }
                }
                6 => {
                    (self.up[host], self.joined) = (false, false);
                    self.judges[other].handle_peer(Some("killed".into()));
                }
                // A verdict that is wrong.
                7 => self.judges[other].handle_peer(Some("silent".into())),
                8 => {
                    self.up[host] = true;
                    self.judges[other].handle_peer(None);
                }
                // A follower gets what the leader has.
                9 | 10 if self.up == [true, true] => {
                    self.joined = true;
                    let most = self.has[0].max(self.has[1]);
                    self.has = [most; 2];
                    let leads = usize::from(self.oracles[1]);
                    for host in 0..2 {
                        self.judges[host].handle_look(if host == leads { Look::Leads } else { Look::Follows });
                        self.act(host);
                    }
                }
                11 => self.joined = false,
                12 | 13 => {
                    if std::mem::take(&mut self.proofs[host]) {
                        let by_both = self.joined && self.up == [true, true] && !self.oracles[0] && !self.oracles[1];
                        if by_both {
                            self.write(host);
                        }
                        self.judges[host].handle_proof(by_both);
                    }
                }
                14 => {
                    // Also with a clock that goes back.
                    self.sessions = self.sessions.saturating_sub(u64::from(self.now_ms.is_multiple_of(7)) * 3);
                    self.begin(host);
                }
                15 => {
                    // Its process ends: it knows nothing any more but what the oracle says.
                    self.judges[host] = Judge::new(HOSTS[host], Some(self.oracles[host]));
                    self.proofs[host] = false;
                    self.begin(host);
                }
                _ => self.write(host),
            }
            self.judges[host].set_now(self.now_ms, 0);
            (0..2).for_each(|host| self.act(host));
        }

        /// Nothing fails any more.
        fn settle(&mut self) {
            // Quicker than hooks propose again.
            self.pace_ms = 10;
            for _ in 0..100 {
                while !self.proposed.is_empty() {
                    self.step(0, 0);
                }
                while self.read.iter().any(|read| *read < self.log.len()) {
                    (0..2).for_each(|host| self.step(3, host));
                }
                for (choice, host) in [(8, 0), (8, 1), (9, 0), (12, 0), (12, 1), (16, 0), (16, 1)] {
                    self.step(choice, host);
                }
                self.now_ms += AGAIN_MS / 8;
            }
            self.pace_ms = 300;
        }
    }

    #[test]
    fn one_of_two_serves_on_and_the_other_comes_back() {
        let mut of = World::new();
        of.settle();
        assert_eq!((of.judges[0].course().mode.clone(), of.oracles), (Mode::Both, [false; 2]));
        of.step(6, 1);
        for choice in [0, 3, 3, 16, 16] {
            of.step(choice, 0);
        }
        assert_eq!((of.judges[0].course().mode.clone(), of.oracles), (Mode::Alone("a".into()), [true, false]));
        let alone = of.committed;
        of.write(0);
        assert_eq!(of.committed, alone + 1);
        // Its own end lets nobody else serve, who lacks what it wrote.
        of.step(6, 0);
        of.up[1] = true;
        for _ in 0..20 {
            [0, 3, 3].into_iter().for_each(|choice| of.step(choice, 1));
        }
        assert_eq!(of.oracles, [true, false]);
        of.settle();
        assert_eq!((of.judges[1].course().mode.clone(), of.has), (Mode::Both, [of.committed; 2]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(
            std::env::var("FIDE_ZOOKEEPER_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(1_000)
        ))]
        #[test]
        fn never_two_serve_alone_nor_one_that_lacks_a_write_and_at_last_both_are_in_step(
            steps in prop::collection::vec((0u8..20, 0usize..2), 1..300)
        ) {
            let mut of = World::new();
            for (choice, host) in steps {
                of.step(choice, host);
            }
            of.settle();
            for host in 0..2 {
                prop_assert_eq!(&of.judges[host].course().mode, &Mode::Both);
            }
        }

        #[test]
        fn hostile_entries_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut course = Course::default();
            if let Some(entry) = Entry::read(&bytes) {
                course.apply(&entry);
            }
        }
    }
}
