//! Applications: what their library does (`api/client/src/group.rs`), and the agent's end of their
//! sessions.

use super::Neglect;
use super::cluster::Happening;
use super::judge::Entry;
use super::shell::shell;
use crate::detection::host::{Agent, MS};
use crate::detection::world::{Event, World};
use crate::time::US;
use fide_proto::group::MemberId;
use fide_proto::services::groups::{Error, Groups, Question, Stage};
use fide_wire::session::Fate;
use std::collections::VecDeque;

/// Messages that are read from one application in one loop iteration.
const PROPOSALS_AT_ONCE: usize = 64;
/// Messages that are written to one application in one loop iteration.
const ENTRIES_AT_ONCE: usize = 256;
/// Proposals of a client that wait for their entries.
const PENDING_MAX: usize = 32;

/// From an application to its agent.
pub(super) enum Said {
    Propose { skipped: u64, number: u64, bytes: Vec<u8> },
    Ask { number: u64 },
    Snapshot { index: u64, state: Vec<u8> },
}

/// The agent's end.
pub(crate) struct Session {
    pub(super) client: usize,
    pub(super) name: String,
    id: u64,
    last_number: u64,
    generation: u64,
    index: u64,
    proposed: (Option<MemberId>, u64),
    asked: VecDeque<Question>,
    told: Option<(&'static str, Option<MemberId>, u64)>,
    pub(super) inbox: VecDeque<Said>,
    is_gone: bool,
}

/// From the agent to an application.
enum Tells {
    Standing { runs: bool, me: Option<MemberId>, generation: u64 },
    Entry { index: u64, client: u64, number: u64, bytes: Vec<u8> },
    Snapshot { index: u64, state: Vec<u8> },
    Refused { number: u64, is_for_good: bool },
    Fate { number: u64, fate: Fate },
    Gone,
}

struct Pending {
    number: u64,
    bytes: Vec<u8>,
}

/// An application.
pub(super) struct Client {
    pub(super) group: usize,
    /// Its host; none: any that has an agent.
    pub(super) home: Option<usize>,
    pub(super) id: u64,
    /// The host, and which of its agents.
    pub(super) connected: Option<(usize, u64)>,
    pub(super) index: u64,
    pub(super) generation: u64,
    pub(super) last_number: u64,
    settled: u64,
    pending: VecDeque<Pending>,
    handed_in: u64,
    again_ns: Option<u64>,
    asked: VecDeque<u64>,
    asked_here: usize,
    standing: Option<(bool, Option<MemberId>)>,
    /// Proposals that it still makes.
    pub(super) left: u32,
    /// The state that its entries make.
    state: u64,
}

/// What a client's entries come to.
pub(super) fn next_state(state: u64, client: u64, number: u64) -> u64 {
    let mixed = state ^ client.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed.rotate_left(23).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// The bytes of a proposal: anybody can tell whether they are those that were proposed.
pub(super) fn value(client: u64, number: u64, len: usize) -> Vec<u8> {
    let mut state = next_state(len as u64, client, number);
    let next = || {
        state = state.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

impl Client {
    pub(super) fn new(group: usize, home: Option<usize>, id: u64, left: u32) -> Self {
        Self {
            group,
            home,
            id,
            connected: None,
            index: 0,
            generation: 0,
            last_number: 0,
            settled: 0,
            pending: VecDeque::new(),
            handed_in: 0,
            again_ns: None,
            asked: VecDeque::new(),
            asked_here: 0,
            standing: None,
            left,
            state: 0,
        }
    }

    /// Whether everything that it proposed and did not give up was decided, and all was answered.
    pub(super) fn is_served(&self) -> bool {
        self.pending.is_empty() && self.asked.is_empty()
    }

    /// What it waits for, for reports.
    pub(super) fn what_is_open(&self) -> String {
        let Self { index, connected, pending, asked, handed_in, standing, .. } = self;
        let pending: Vec<u64> = pending.iter().map(|waits| waits.number).collect();
        format!("read {index}, on {connected:?}, {pending:?} open, {handed_in} handed in, {asked:?} asked, {standing:?}")
    }

    /// The group was begun anew: it is opened anew, by another client.
    fn start_over(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let fresh = Client::new(self.group, self.home, self.id + (1 << 32), self.left);
        *self = fresh;
        for Pending { bytes, .. } in pending {
            self.propose(bytes.len());
        }
    }

    pub(super) fn propose(&mut self, len: usize) {
        self.last_number += 1;
        let (number, bytes) = (self.last_number, value(self.id, self.last_number, len));
        self.pending.push_back(Pending { number, bytes });
    }

    fn hand_in_again(&mut self) {
        if let Some(first) = self.pending.front() {
            self.handed_in = self.handed_in.min(first.number - 1);
        }
    }

    /// What it has to say to its agent now.
    fn says(&mut self, now: u64) -> Vec<Said> {
        let mut said = Vec::new();
        if self.again_ns.is_some_and(|at| at <= now) {
            self.again_ns = None;
        }
        if self.again_ns.is_none() {
            let from = self.pending.partition_point(|waits| waits.number <= self.handed_in);
            for at in from..self.pending.len() {
                let before = at.checked_sub(1).map_or(self.settled, |at| self.pending[at].number);
                let Pending { number, bytes } = &self.pending[at];
                said.push(Said::Propose { skipped: number - 1 - before, number: *number, bytes: bytes.clone() });
                self.handed_in = *number;
            }
        }
        while let Some(number) = self.asked.get(self.asked_here) {
            said.push(Said::Ask { number: *number });
            self.asked_here += 1;
        }
        said
    }

    /// It gives up one that waits, as by a deadline.
    fn gives_up(&mut self, at: usize) {
        self.pending.remove(at);
    }
}

impl World {
    // ---- the application's side -----------------------------------------------------------------

    /// A client's turn.
    pub(super) fn client_turn(&mut self, at: usize) {
        let now = self.now;
        if self.is_connected(at) || self.connect(at) {
            self.client_acts(at);
        }
        let client = &mut self.cluster().clients[at];
        let said = if client.connected.is_some() { client.says(now) } else { Vec::new() };
        if let Some((host, _)) = client.connected
            && !said.is_empty()
        {
            let agent = self.hosts[host].agent.as_mut().expect("it is connected");
            let sessions = &mut shell(agent).sessions;
            let session = sessions.iter_mut().find(|session| session.client == at).expect("it is connected");
            session.inbox.extend(said);
            let soon = now + 5 * US + self.rng.below(20 * US);
            self.wake(host, soon);
        }
        let next = now + if self.rng.chance(20) { 50 * US } else { 200 * US + self.rng.below(6 * MS) };
        self.at(next, Event::Groups(Happening::Client(at)));
    }

    /// What it decides to do by itself.
    fn client_acts(&mut self, at: usize) {
        let (propose, give_up, ask) = (self.rng.chance(50), self.rng.chance(2), self.rng.chance(5));
        let burst = if self.rng.chance(10) { 1 + self.rng.below(12) } else { 1 };
        for _ in 0..burst * u64::from(propose) {
            let len = match self.rng.below(100) {
                0..70 => 16 + self.rng.below(100),
                70..90 => 100 + self.rng.below(1_400),
                _ => 1_400 + self.rng.below(8_600),
            };
            let client = &mut self.cluster().clients[at];
            if client.left > 0 && client.pending.len() < PENDING_MAX {
                client.left -= 1;
                client.propose(len as usize);
            }
        }
        let (waits, last) = (self.cluster().clients[at].pending.len() as u64, self.cluster().clients[at].last_number);
        let (which, number) = (self.rng.below(waits), 1 + self.rng.below(last));
        let client = &mut self.cluster().clients[at];
        // None behind the last proposals: one that is decided settles what was given up.
        if give_up && waits > 1 && client.left > 0 {
            client.gives_up(which as usize);
        }
        if ask && last > 0 && client.asked.len() < 8 {
            client.asked.push_back(number);
        }
        self.maybe_moves(at);
        self.maybe_keeps(at);
    }

    /// One without a home goes to another host now and then.
    fn maybe_moves(&mut self, at: usize) {
        if self.rng.chance(97) || self.cluster().clients[at].home.is_some() {
            return;
        }
        if let Some((host, _)) = self.cluster().clients[at].connected.take()
            && let Some(agent) = self.hosts[host].agent.as_mut()
        {
            shell(agent).sessions.retain(|session| session.client != at);
            self.connect(at);
        }
    }

    /// It hands its state in, so that what came before need not be kept.
    fn maybe_keeps(&mut self, at: usize) {
        if self.rng.chance(98) || self.cluster().clients[at].index == 0 {
            return;
        }
        let Client { index, state, connected, .. } = self.cluster().clients[at];
        let Some((host, _)) = connected else { return };
        let padding = self.rng.below(2_000) as usize;
        let Some(agent) = self.hosts[host].agent.as_mut() else { return };
        let mut bytes = state.to_be_bytes().to_vec();
        bytes.resize(8 + padding, 0);
        let session = shell(agent).sessions.iter_mut().find(|session| session.client == at);
        if let Some(session) = session {
            session.inbox.push_back(Said::Snapshot { index, state: bytes });
        }
    }

    fn is_connected(&mut self, at: usize) -> bool {
        let cluster = self.groups.as_mut().expect("groups");
        let client = &mut cluster.clients[at];
        let Some((host, agent)) = client.connected else { return false };
        let is_there = cluster.agents[host] == agent
            && self.hosts[host]
                .agent
                .as_mut()
                .is_some_and(|agent| shell(agent).sessions.iter().any(|session| session.client == at));
        if !is_there {
            client.connected = None;
        }
        is_there
    }

    /// Opens the group at the agent of a host.
    pub(super) fn connect(&mut self, at: usize) -> bool {
        let n = self.hosts.len() as u64;
        let host = self.cluster().clients[at].home.unwrap_or_else(|| self.rng.below(n) as usize);
        let is_frozen = self.frozen(host).is_some();
        let cluster = self.groups.as_mut().expect("groups");
        let client = &mut cluster.clients[at];
        let name = cluster.specs[client.group].name.clone();
        let Some(agent) = self.hosts[host].agent.as_mut().filter(|_| !is_frozen) else { return false };
        let shell = shell(agent);
        let Some(status) = shell.groups.status_named(&name) else { return false };
        if client.generation != 0 && status.generation != 0 && client.generation != status.generation {
            client.start_over();
            return false;
        }
        if client.index > status.index && matches!(status.stage, Stage::Running | Stage::Left) {
            return false; // ahead of this member
        }
        let first = client.pending.front().map_or(client.last_number, |first| first.number - 1);
        let index = client.index - u64::from(cluster.neglect == Some(Neglect::Again) && client.index > 0);
        shell.sessions.push(Session {
            client: at,
            name,
            id: client.id,
            last_number: first,
            generation: client.generation,
            index,
            proposed: (None, 0),
            asked: VecDeque::new(),
            told: None,
            inbox: VecDeque::new(),
            is_gone: false,
        });
        client.connected = Some((host, cluster.agents[host]));
        (client.standing, client.again_ns, client.asked_here) = (None, None, 0);
        client.hand_in_again();
        self.wake(host, self.now + 5 * US);
        true
    }

    /// Something comes from the agent.
    fn client_hears(&mut self, at: usize, host: usize, tells: Tells) {
        let now = self.now;
        let cluster = self.groups.as_mut().expect("groups");
        let client = &mut cluster.clients[at];
        let place = (client.group, client.generation);
        match tells {
            Tells::Standing { runs, me, generation } => {
                if generation != 0 && client.generation == 0 {
                    client.generation = generation;
                }
                let is_new = client.standing.is_none_or(|old| !old.0 || old.1 != me);
                client.standing = Some((runs, me));
                if runs && is_new {
                    client.hand_in_again();
                }
            }
            Tells::Entry { index, client: of, number, bytes } => {
                let before = std::mem::replace(&mut client.index, index);
                client.state = next_state(client.state, of, number);
                if of == client.id {
                    while client.pending.front().is_some_and(|first| first.number <= number) {
                        client.pending.pop_front();
                    }
                    client.settled = client.settled.max(number);
                    client.handed_in = client.handed_in.max(number);
                    client.last_number = client.last_number.max(number);
                }
                cluster.totals.told += 1;
                let entry = Entry { client: of, number, len: bytes.len() };
                cluster.judge.told(place, (host, at), (before, index), entry, &bytes);
                self.note(host, || format!("client {at}, group {} of {}, reads {index}: {entry:?}", place.0, place.1));
            }
            Tells::Snapshot { index, state } => {
                client.index = index;
                client.state = state.get(..8).map_or(0, |bytes| u64::from_be_bytes(bytes.try_into().expect("eight")));
                cluster.judge.snapshot(place, index, client.state);
                // What is in it is not shown one by one, so what became of its own is asked.
                let open: Vec<u64> = client.pending.iter().map(|waits| waits.number).collect();
                let is_asked = |number: &u64| client.asked.contains(number);
                let more: Vec<u64> = open.into_iter().filter(|number| !is_asked(number)).collect();
                client.asked.extend(more);
                client.hand_in_again();
            }
            Tells::Refused { number, is_for_good: true } => client.pending.retain(|waits| waits.number != number),
            Tells::Refused { number, .. } => {
                client.handed_in = client.handed_in.min(number - 1);
                client.again_ns.get_or_insert(now + MS);
            }
            Tells::Fate { number, fate } => {
                let asked = client.asked.iter().take(client.asked_here).position(|asked| *asked == number);
                if let Some(which) = asked {
                    client.asked.remove(which);
                    client.asked_here -= 1;
                }
                cluster.totals.fates += 1;
                let (id, index) = (client.id, client.index);
                if fate == Fate::Decided || fate == Fate::Never {
                    client.pending.retain(|waits| waits.number != number);
                }
                cluster.judge.fate(place, (host, at), (id, number), fate, index);
            }
            Tells::Gone => client.connected = None,
        }
    }

    // ---- the agent's side -----------------------------------------------------------------------

    pub(super) fn read_sessions(&mut self, host: usize, agent: &mut Agent) {
        for at in 0..shell(agent).sessions.len() {
            for _ in 0..PROPOSALS_AT_ONCE {
                let Some(said) = shell(agent).sessions[at].inbox.pop_front() else { break };
                self.session_said(host, agent, at, said);
            }
        }
    }

    fn session_said(&mut self, host: usize, agent: &mut Agent, at: usize, said: Said) {
        let now = self.now;
        let neglect = self.neglects();
        let shell = shell(agent);
        let groups = &mut shell.groups;
        let session = &mut shell.sessions[at];
        match said {
            Said::Propose { skipped, number, bytes } => {
                let me = groups.brief(&session.name).and_then(|brief| brief.me);
                if session.proposed.0 != me {
                    session.proposed = (me, 0);
                }
                let applied = groups.state(&session.name).map_or(0, |state| state.last_of(session.id));
                let expected = applied.max(session.proposed.1).max(session.last_number) + 1;
                if number < expected {
                    return; // it is on its way, or there
                }
                let named = if neglect == Some(Neglect::Numbers) {
                    shell.counted += 1;
                    number + shell.counted % 2
                } else {
                    number
                };
                let outcome = if number - skipped > expected {
                    Err(Error::Busy(format!("proposal {expected} comes first")))
                } else {
                    groups.propose(now, &session.name, session.id, named, &bytes)
                };
                let client = session.client;
                match outcome {
                    Ok(()) => session.proposed.1 = number,
                    Err(error) => {
                        let is_for_good = matches!(error, Error::Exists(_) | Error::Invalid(_));
                        self.client_hears(client, host, Tells::Refused { number, is_for_good });
                    }
                }
            }
            Said::Ask { number } => session.asked.push_back(Question::new(session.id, number)),
            // Entries that are not kept any more, or a group that does not run.
            Said::Snapshot { index, state } => _ = groups.keep_snapshot(&session.name, index, state),
        }
    }

    pub(super) fn write_sessions(&mut self, host: usize, agent: &mut Agent) {
        let neglect = self.neglects();
        let mut told = Vec::new();
        let shell = shell(agent);
        for session in &mut shell.sessions {
            write_session(&shell.groups, session, neglect, &mut told);
        }
        shell.sessions.retain(|session| !session.is_gone);
        for (client, tells) in told {
            self.client_hears(client, host, tells);
        }
    }
}

/// What one application has not got.
fn write_session(groups: &Groups, session: &mut Session, neglect: Option<Neglect>, told: &mut Vec<(usize, Tells)>) {
    let Some(brief) = groups.brief(&session.name) else { return };
    let client = session.client;
    // A group of which only the name is known has no generation.
    let (generation, me) = (brief.lineage, brief.me);
    if session.generation != 0 && generation != 0 && generation != session.generation {
        session.is_gone = true;
        told.push((client, Tells::Gone));
        return;
    }
    session.generation = session.generation.max(generation);
    let standing = (brief.stage.name(), me, generation);
    if session.told.replace(standing) != Some(standing) {
        let runs = *brief.stage == Stage::Running;
        told.push((client, Tells::Standing { runs, me, generation }));
    }
    let Some(state) = groups.state(&session.name) else { return };
    if !matches!(brief.stage, Stage::Running | Stage::Left) {
        return; // what is there may be replaced
    }
    let (kept_from, _) = state.snapshot();
    if session.index < kept_from {
        if kept_from > brief.index {
            return; // of entries that applications may not know of yet
        }
        let Some((_, whole)) = groups.snapshot(&session.name) else { return };
        told.push((client, Tells::Snapshot { index: kept_from, state: whole.bytes_from(0).to_vec() }));
        session.index = kept_from;
    }
    let entry = |applied: &fide_proto::services::groups::state::Applied| {
        let (of, number, bytes) = applied.value();
        (client, Tells::Entry { index: applied.index, client: of, number, bytes: bytes.to_vec() })
    };
    let before = told.len();
    if neglect == Some(Neglect::Confirmed) {
        let entries = state.entries_behind(session.index).into_iter().flatten();
        told.extend(entries.take(ENTRIES_AT_ONCE).map(entry));
    } else if let Some(entries) = groups.entries_behind(&session.name, session.index) {
        told.extend(entries.take(ENTRIES_AT_ONCE).map(entry));
    }
    for (_, tells) in &told[before..] {
        if let Tells::Entry { index, client: of, number, .. } = tells {
            session.index = *index;
            if *of == session.id {
                session.last_number = session.last_number.max(*number);
            }
        }
    }
    if told.len() - before >= ENTRIES_AT_ONCE {
        return; // the rest in the next iteration
    }
    while let Some(question) = session.asked.front_mut() {
        let number = question.about().1;
        let fate = groups.answer(&session.name, session.index, question);
        let at_once = (neglect == Some(Neglect::Fates)).then(|| state.fate(session.id, number));
        let Some(fate) = at_once.or(fate) else { return };
        session.asked.pop_front();
        told.push((client, Tells::Fate { number, fate }));
    }
}
