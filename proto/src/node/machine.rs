//! One host's part in the cluster, joined: who lives and what runs ([`Directory`]), and who is
//! silent ([`Detector`]).
//!
//! # In one head
//! The directory is the town's register, the detector its night watch. The register says whom the
//! watch has to listen for and who lives in each house; the watch says which houses fell silent.
//! Whatever the register learns of a death goes through the watch, so that every death is told
//! once, whether a messenger brought it, a page of the register, or silence.
//!
//! # How to drive it
//! As the detector ([`crate::detector`], *How to drive it*), and frames besides:
//! 1. the clock, then the receive table: [`Node::arrivals`], and [`Node::heartbeat`] where a row
//!    names an incarnation or a version that is new;
//! 2. answers and barriers, to [`Node::take_answer`] and [`Node::take_noted`] ([`super::probing`]);
//!    frames, to [`Node::handle_frame`];
//! 3. [`Node::handle_timeout`] with that clock;
//! 4. [`Node::poll_transmit`] and [`Node::poll_event`] until `None`;
//! 5. sleep until [`Node::poll_timeout`] at most.
//!
//! # What is told once
//! An *instance* (process id and start time, in one boot of its host) runs, then ends. Its end is
//! told once, whatever row it has by then, in whatever incarnation of its host; what follows
//! *doomed* or *silent host* [confirms](crate::detector::Verdict::confirms) it. An instance that
//! *silent host* said to have ended and that its host's table says to run is told to be back
//! ([`Event::Runs`]): the verdict was wrong. What had ended when its host's table was first read
//! here is no news, but for what ended since a former agent of this host read it. All this is true
//! of each name of an instance: a watch that is ended under one name, *left*, says nothing of the
//! same process under another. What ran in another boot of its host ended in the incarnation in which
//! it ran: it is told of that one, and confirms what was told before.

pub mod contracts;
pub mod copies;
mod fenced;
mod fencing;
mod mistaken;
mod questions;
pub mod reports;
#[cfg(test)]
mod tests;

use super::calibration::{self, Breach};
use super::directory::{self, Directory, Facts, Ignored, Numbers};
use super::fence::{HostFence, Step};
use super::pacer::Pacer;
use super::probing::{self, Probing};
use super::sizes::Sizes;
use super::table::{self, Owner, Refused};
use super::tables::Transmit;
use crate::detector::{self, Action, AppState, Detector, PathArrival, Verdict};
use copies::Copies;
use fenced::FencedView;
use fide_wire::PATHS;
use fide_wire::frame::introduction::Introduction;
use fide_wire::frame::table::{Change, Content, HOST_ROW, Host, Instance, Interest, Keys, Maintenance, Process, State};
use fide_wire::frame::{Header, Kind};
use fide_wire::packet::Notice;
use fide_wire::verdict::{Cause, Contract, FencePromise};
use mistaken::Mistaken;
use reports::Reports;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Hosts whose introductions and tables are remembered: those that are judged, and those that left or wait for a place.
const HOSTS_MAX: usize = 2 * detector::MAX_PEERS;

/// How and when a frame came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Came {
    /// By which path.
    pub path: u8,
    /// The kernel's stamp.
    pub received_ns: u64,
}

/// What became known, or is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The detector wants this done. Verdicts about processes are those of instances: told once.
    Act(Action),
    /// A question is to be sent, or something done that belongs to it ([`super::probing`]).
    Ask(probing::Action),
    /// An incarnation of a host is judged from now on. Its row in the receive table begins anew.
    Host {
        /// The host.
        node: u32,
        /// Its incarnation.
        incarnation: u32,
        /// What it said of itself.
        introduction: Box<Introduction>,
    },
    /// A process runs.
    Runs {
        /// Its host.
        node: u32,
        /// Its row there.
        row: u32,
        /// Which process.
        instance: Instance,
        /// It was known: its host is back, or was wrongly called silent, or has it in another row.
        is_back: bool,
    },
    /// A row of a process says something else than before, and not its state: user, size of its piggyback.
    Updated {
        /// Its host.
        node: u32,
        /// Its row there.
        row: u32,
    },
    /// An application elsewhere monitors a process, or does no more.
    Interest {
        /// The host of that application.
        node: u32,
        /// In which process.
        interest: Interest,
    },
    /// A host says what is in maintenance.
    Maintenance {
        /// The host.
        node: u32,
        /// What it says.
        maintenance: Box<Maintenance>,
        /// It wrote that a moment ago: its table had been read through before.
        is_fresh: bool,
    },
    /// A host says which keys it holds.
    Keys {
        /// The host.
        node: u32,
        /// By fingerprint.
        keys: Keys,
    },
    /// The whole table of a host is known here, up to a version: for [`Node::new`] of the next agent of this host.
    Whole {
        /// The host.
        node: u32,
        /// Which table.
        epoch: u64,
        /// The version through which it is complete.
        version: u64,
    },
    /// A host that had left is not remembered any more: a new one has its place.
    Forgotten {
        /// The host.
        node: u32,
    },
    /// What a host says of itself, again. A changed promise of its fence was handed to the detector.
    Announced {
        /// The host.
        node: u32,
        /// What it said of itself.
        introduction: Box<Introduction>,
    },
    /// A process that ran when its host lost its table is not in the new one: it ended with the boot of that time, or nobody watches it any more.
    Lost {
        /// Its host.
        node: u32,
        /// The last incarnation of its host in which it was known to run: not the one that is judged now.
        incarnation: u32,
        /// Its row in the table that is lost.
        row: u32,
        /// Its end was told before, as *doomed* or with its host.
        confirms: bool,
        /// What was known of it, with its end.
        process: Box<Process>,
    },
    /// Another agent has this host's name and a key.
    NameClash {
        /// What it calls its incarnation.
        incarnation: u32,
    },
    /// The gates of this host's fence are to be moved.
    Fence(Step),
    /// A host that was told as silent, and not as fenced, is fenced now.
    Fenced {
        /// The host.
        node: u32,
        /// Its incarnation.
        incarnation: u32,
    },
    /// Another host has given this incarnation up, and is outvoted: enough others confirm it, and its fence stays open.
    Refuted {
        /// That host.
        by: u32,
        /// Its incarnation.
        incarnation: u32,
    },
    /// A host that was given up here lives, in the same incarnation: this one was mistaken. The shell begins a new incarnation of this host
    /// ([`Node::begin_incarnation`]) where something may rest on that verdict, and refuses nothing of that host's any more.
    Mistaken {
        /// That host.
        node: u32,
        /// Its incarnation.
        incarnation: u32,
        /// A new incarnation begins here.
        renews: bool,
    },
    /// What hosts send by multicast on a path is not delivered here, while what they send by unicast is; of nobody: it is again.
    Multicast {
        /// Which path.
        path: usize,
        /// Whose.
        hosts: Vec<u32>,
    },
    /// Another host has given this incarnation up: the shell begins a new one ([`Node::begin_incarnation`]), also later than this.
    GivenUp {
        /// That host.
        by: u32,
        /// What it has given up.
        incarnation: u32,
    },
    /// The margin of the contract with a host is used up, or there is some again (DESIGN:
    /// assumptions are measured while they are relied on).
    Margin {
        /// The host.
        node: u32,
        /// Its incarnation.
        incarnation: u32,
        /// On which path.
        path: usize,
        /// Which of both.
        breach: Breach,
    },
}

/// An instance under one of its names. Of an instance with two, the watch under one may end while
/// the other goes on.
type Watch = (Instance, Box<str>);

fn watch_of(process: &Process) -> Watch {
    (process.instance, process.name.clone())
}

/// What was told of an instance under one of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// It runs.
    Runs,
    /// It cannot be saved.
    Doomed,
    /// It ended with its host, which is silent: inferred.
    Silent,
    /// It ended.
    Ended,
}

/// A host that is judged.
#[derive(Clone, Debug, Default)]
struct Known {
    incarnation: u32,
    /// This incarnation was given up here.
    condemned: bool,
    /// … before this host's fence ended what rested on that.
    former_verdict: bool,
    /// What runs there was handed to the detector, in this incarnation.
    is_handed_in: bool,
    /// Its table was read through once.
    is_whole: bool,
    /// How far a former agent of this host had told its ends: epoch and version.
    former: Option<(u64, u64)>,
    /// The last incarnation in which what runs there was known.
    ran_in: u32,
    /// The boot of its kernel, as it last said.
    boot: u128,
    told: BTreeMap<Watch, Told>,
    /// When others were told last what is heard of it, by a report of it alone.
    stated_ns: u64,
    /// What is known of its fence since it was given up.
    fenced: FencedView,
    /// Whom it does not hear, as it last reported: a bit for each path. And when it last reported; 0: never.
    unheard: BTreeMap<u32, u8>,
    reported_ns: u64,
    /// It counts this host among those that it has heard of, as it once reported: a word of this one on its fence says something.
    counts_us: bool,
    /// The incarnation of this host that it has given up, outvoted.
    refuted: Option<u32>,
    /// What it will promise of its fence, once that is armed.
    starting: Option<FencePromise>,
    /// What it announced of its heartbeats.
    announced: Contract,
    /// Its contracts, where they are measured.
    paths: Option<Box<[contracts::PathContract; PATHS]>>,
}

/// A node of the cluster.
#[derive(Clone, Debug)]
pub struct Node {
    directory: Directory,
    detector: Detector,
    probing: Probing,
    hosts: BTreeMap<u32, Known>,
    /// Hosts that former incarnations of this one knew and that have not left, heard in this one or not.
    members: BTreeSet<u32>,
    fence: Option<HostFence>,
    mistaken: Mistaken,
    reports: Reports,
    copies: Copies,
    sizes: Sizes,
    calibration: Option<calibration::Config>,
    pacer: Pacer,
    events: VecDeque<Event>,
}

impl Node {
    /// Begins with a table whose host row is in place. `former`: how far a former agent of this host had told the ends in others' tables
    /// ([`Node::seen`]).
    ///
    /// # Errors
    /// As [`Directory::new`].
    pub fn new(
        config: detector::Config,
        owner: Owner,
        contract: Contract,
        former: impl IntoIterator<Item = (u32, (u64, u64))>,
        now_ns: u64,
    ) -> Result<Self, Refused> {
        let directory = Directory::new(owner, contract, config.self_incarnation, HOSTS_MAX, now_ns)?;
        let known = |former| Known { former: Some(former), ..Known::default() };
        let hosts = former.into_iter().map(|(node, former)| (node, known(former))).collect();
        Ok(Self {
            directory,
            detector: Detector::new(config),
            probing: Probing::default(),
            hosts,
            members: BTreeSet::new(),
            fence: None,
            mistaken: Mistaken::default(),
            reports: Reports::new(contract.period_ns),
            copies: Copies::default(),
            sizes: Sizes::default(),
            calibration: None,
            pacer: Pacer::new(contract.period_ns, now_ns),
            events: VecDeque::new(),
        })
    }

    /// Who lives, and what runs where.
    #[must_use]
    pub const fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Who is silent.
    #[must_use]
    pub const fn detector(&self) -> &Detector {
        &self.detector
    }

    /// The same, for carriers and losses.
    pub const fn detector_mut(&mut self) -> &mut Detector {
        &mut self.detector
    }

    /// Whether what runs on a host was handed to the detector, in this incarnation.
    #[must_use]
    pub fn is_handed_in(&self, node: u32) -> bool {
        self.hosts.get(&node).is_some_and(|known| known.is_handed_in)
    }

    /// How far the ends in a host's table were told: epoch and version, for the next agent of this host. `None` before it was read through.
    #[must_use]
    pub fn seen(&self, node: u32) -> Option<(u64, u64)> {
        let known = self.hosts.get(&node)?;
        let replica = self.directory.replica(node).filter(|_| known.is_whole);
        replica.map(|replica| (replica.epoch(), replica.complete())).or(known.former)
    }

    /// What an application that comes back is told of an instance: its state, if it is in its host's table; `None` if the whole of that is
    /// known here and it is not in it, so that it has ended.
    ///
    /// # Errors
    /// The table is not known through: what becomes known of the instance is told by events.
    pub fn became(&self, node: u32, instance: Instance, name: &str) -> Result<Option<State>, NotYet> {
        let known = self.hosts.get(&node).filter(|known| known.is_handed_in).ok_or(NotYet)?;
        let replica = self.directory.replica(node).filter(|replica| replica.is_complete()).ok_or(NotYet)?;
        if known.told.get(&(instance, name.into())) == Some(&Told::Silent) {
            return Err(NotYet);
        }
        let of = |content: &Content| matches!(content, Content::Process(p) if p.instance == instance && &*p.name == name);
        // One that was replaced goes on in a later row.
        Ok(replica.rows().filter(|(_, content)| of(content)).last().and_then(|(_, content)| content.state()))
    }

    // ---- this host ------------------------------------------------------------------------------------------

    /// A row of this host's table appears or has new content ([`Owner::put`]); it is pushed soon.
    ///
    /// # Errors
    /// As there.
    pub fn put(&mut self, row: u32, version: u64, content: Content, now_ns: u64) -> Result<(), Refused> {
        self.directory.put(row, version, content, now_ns)
    }

    /// A row of this host's table has another state. The shell has pushed it: a crash waits for nothing.
    ///
    /// # Errors
    /// As [`Owner::change`].
    pub fn change(&mut self, change: &Change, now_ns: u64) -> Result<(), Refused> {
        self.directory.change(change, now_ns)
    }

    /// Others gave this incarnation up: it begins a new one, and its table goes on. `version` is used for its row.
    pub fn begin_incarnation(&mut self, incarnation: u32, version: u64, now_ns: u64) {
        let former = self.detector.config().self_incarnation;
        self.directory.begin_incarnation(incarnation);
        self.detector.set_self_incarnation(incarnation);
        if let Some(fence) = &mut self.fence {
            fence.renew(incarnation);
        }
        let Some(Content::Host(host)) = self.directory.owner().get(HOST_ROW).map(|row| row.content.clone()) else { return };
        let renewed_from = host.renewed_from.or(Some(former));
        // The row was there before, and the version is new.
        let _ = self.directory.put(HOST_ROW, version, Content::Host(Host { renewed_from, ..host }), now_ns);
    }

    /// This agent leaves, for good (0) or to be back in so many ms: others hear of it by its host's row. The shell sends what
    /// follows ([`Node::poll_transmit`]) before it ends.
    pub fn leave(&mut self, version: u64, back_ms: u32, now_ns: u64) {
        let Some(Content::Host(host)) = self.directory.owner().get(HOST_ROW).map(|row| row.content.clone()) else { return };
        let code = i32::try_from(back_ms).unwrap_or(i32::MAX);
        let state = State { cause: Cause::Left, code, ..State::running(now_ns) };
        // The row was there before, and the version is new.
        let _ = self.directory.put(HOST_ROW, version, Content::Host(Host { state, ..host }), now_ns);
    }

    // ---- others ---------------------------------------------------------------------------------------------

    /// What introductions of this host say from now on ([`Directory::set_facts`]).
    pub const fn set_facts(&mut self, facts: Facts) {
        self.directory.set_facts(facts);
    }

    /// This host introduces itself to everybody with the next frame.
    pub const fn announce(&mut self) {
        self.directory.announce();
    }

    /// A version of this host's table was used for nothing ([`Owner::skip`]).
    pub fn skip(&mut self, version: u64) {
        self.directory.skip(version);
    }

    /// A host is no member any more: nothing of it is remembered.
    pub fn forget(&mut self, node: u32) {
        self.directory.forget(node);
        self.detector.forget(node);
        self.probing.forget(node);
        self.reports.forget(node);
        self.hosts.remove(&node);
        self.members.remove(&node);
        self.count_confirmers();
    }

    /// The rows of the receive table for one host ([`Detector::arrivals`]).
    pub fn arrivals(&mut self, node: u32, incarnation: u32, rows: &[PathArrival; PATHS]) {
        self.came_by(node, rows);
        let _ = self.detector.arrivals(node, incarnation, rows); // counted there
    }

    fn is_cut_off(&self, node: u32, incarnation: u32) -> bool {
        self.detector.incarnation(node) == Some(incarnation) && self.detector.state(node).is_some_and(|state| !state.is_live())
    }

    /// A heartbeat names an incarnation or a version that is new.
    pub fn heartbeat(&mut self, node: u32, incarnation: u32, version: u32, now_ns: u64) {
        if self.is_cut_off(node, incarnation) {
            return;
        }
        self.detector.renewed(node, incarnation, now_ns);
        let header = Header { sender: node, incarnation, table_version: version, ..Header::default() };
        self.directory.handle_heartbeat(&header, now_ns);
        self.drain(&header, Came { path: 0, received_ns: now_ns }, now_ns);
    }

    /// Any other authentic frame.
    ///
    /// # Errors
    /// Why it meant nothing. A gap or an old version is no fault.
    pub fn handle_frame(&mut self, header: &Header, kind: Kind, body: &[u8], came: Came, now_ns: u64) -> Result<(), Ignored> {
        if kind == Kind::PathReport {
            return self.handle_report(header, body, now_ns);
        }
        // A host that was given up may have given this one up as well: it asks, and the answer says that this one lives. Otherwise
        // two that were cut off from each other would never meet again.
        if kind != Kind::Hello && self.is_cut_off(header.sender, header.incarnation) {
            return Err(Ignored::Unconfirmed);
        }
        if kind == Kind::Change && self.directory.incarnation(header.sender) == Some(header.incarnation) {
            for change in Change::read_all(body).flatten() {
                self.leaves(header, &change, came, now_ns);
            }
        }
        let result = self.directory.handle_frame(header, kind, body, now_ns);
        self.drain(header, came, now_ns);
        result
    }

    /// An introduction, already read ([`Node::handle_frame`]).
    ///
    /// # Errors
    /// As there.
    pub fn handle_introduction(
        &mut self,
        header: &Header,
        introduction: Introduction,
        came: Came,
        now_ns: u64,
    ) -> Result<(), Ignored> {
        if self.is_cut_off(header.sender, header.incarnation) {
            return Err(Ignored::Unconfirmed);
        }
        let result = self.directory.handle_introduction(header, introduction, now_ns);
        self.drain(header, came, now_ns);
        result
    }

    /// A change of a table, already read: of its header, `sender`, `incarnation` and `sent_ns` are looked at.
    ///
    /// # Errors
    /// As [`Node::handle_frame`].
    pub fn handle_change(&mut self, header: &Header, change: &Change, came: Came, now_ns: u64) -> Result<(), Ignored> {
        if self.is_cut_off(header.sender, header.incarnation) {
            return Err(Ignored::Unconfirmed);
        }
        if self.directory.incarnation(header.sender) == Some(header.incarnation) {
            self.leaves(header, change, came, now_ns);
        }
        let result = self.directory.handle_change(header.sender, header.incarnation, change, now_ns);
        self.drain(header, came, now_ns);
        result
    }

    /// A host that leaves will answer no pull: that it does is believed although its table may not be known through.
    fn leaves(&mut self, header: &Header, change: &Change, came: Came, now_ns: u64) {
        if change.row == HOST_ROW && change.origin == header.sender && change.state.cause == Cause::Left {
            self.noticed(header.sender, HOST_ROW, change.version, &change.state, header.sent_ns, came, now_ns);
            self.take_actions();
        }
    }

    /// Hands the state of a row to the detector, which knows what is no news.
    #[expect(clippy::too_many_arguments, reason = "a row, and how it came")]
    fn noticed(&mut self, node: u32, row: u32, version: u64, state: &State, sent_ns: u64, came: Came, now_ns: u64) -> bool {
        let Some(incarnation) = self.hosts.get(&node).map(|known| known.incarnation) else { return false };
        let State { cause, grade, flags, code, event_ns } = *state;
        let notice = Notice { notice: version as u32, app: row, cause, grade, flags, code, event_ns };
        self.detector.notice(node, incarnation, &notice, sent_ns, came.received_ns, came.path, now_ns).is_ok()
    }

    /// Takes what the directory has learned.
    fn drain(&mut self, header: &Header, came: Came, now_ns: u64) {
        while let Some(event) = self.directory.poll_event() {
            match event {
                directory::Event::Host { node, incarnation, introduction, .. } => {
                    self.lives(node, incarnation, introduction, now_ns)
                }
                directory::Event::Announced { node, incarnation, introduction } => {
                    if let Some(known) = self.hosts.get_mut(&node).filter(|known| known.incarnation == incarnation) {
                        known.announced = introduction.contract;
                    }
                    self.promises(node, incarnation, &introduction.host, now_ns);
                    self.events.push_back(Event::Announced { node, introduction });
                }
                directory::Event::NameClash { incarnation } => self.events.push_back(Event::NameClash { incarnation }),
                directory::Event::Row { node, event } => self.row_event(node, event, header, came, now_ns),
            }
        }
        self.take_actions();
    }

    /// A host has shown that this incarnation of it lives.
    fn lives(&mut self, node: u32, incarnation: u32, introduction: Box<Introduction>, now_ns: u64) {
        let host = &introduction.host;
        let mut seen = self.seen_by_detector(node, incarnation, &introduction, now_ns);
        if seen == Err(detector::Refused::TooManyPeers) && self.forget_one_that_left() {
            seen = self.seen_by_detector(node, incarnation, &introduction, now_ns);
        }
        // An incarnation that is over, or a host too many: counted there, and not judged.
        if !matches!(seen, Ok(detector::Seen::Joined | detector::Seen::Returned)) {
            return;
        }
        // What is said of the former incarnation comes first.
        self.take_actions();
        self.tell_held(node, now_ns);
        let known = self.hosts.entry(node).or_default();
        known.fenced = FencedView::default();
        // Whom a host counts is on its disk.
        known.refuted = None;
        (known.unheard, known.reported_ns) = (BTreeMap::new(), 0);
        if known.is_handed_in || known.ran_in == 0 {
            known.ran_in = known.incarnation;
        }
        if std::mem::replace(&mut known.boot, host.boot) != host.boot {
            // Pids begin anew with each boot: what ended in another one is another process.
            known.told.retain(|_, told| *told != Told::Ended);
        }
        (known.incarnation, known.is_handed_in) = (incarnation, false);
        (known.condemned, known.former_verdict) = (false, false);
        known.starting = None;
        self.drop_words_of(node);
        self.promises(node, incarnation, host, now_ns);
        let Some(known) = self.hosts.get_mut(&node) else { return };
        known.announced = introduction.contract;
        self.probing.begins(node);
        self.count_confirmers();
        self.take_actions();
        self.events.push_back(Event::Host { node, incarnation, introduction });
        self.begin_contracts(node, now_ns);
        self.hand_in(node, now_ns);
    }

    /// What a host says of its fence: from when it is to be armed its heartbeats are confirmed, at once.
    fn promises(&mut self, node: u32, incarnation: u32, host: &Host, now_ns: u64) {
        let before = self.detector.promise(node);
        // Refused where the host is cut off: it promises nothing; and one that cannot be is none.
        let _ = self.detector.fence(node, incarnation, host.fence);
        let Some(known) = self.hosts.get_mut(&node).filter(|known| known.incarnation == incarnation) else { return };
        let was_starting = std::mem::replace(&mut known.starting, host.starting.filter(detector::can_be_promised));
        if before != self.detector.promise(node) || was_starting != known.starting {
            self.reports.promised(now_ns);
        }
    }

    fn seen_by_detector(
        &mut self,
        node: u32,
        incarnation: u32,
        introduction: &Introduction,
        now_ns: u64,
    ) -> Result<detector::Seen, detector::Refused> {
        let (contracts, host) = ([introduction.contract; PATHS], &introduction.host);
        // The agent that was known here may be one before it.
        let known = self.detector.incarnation(node).unwrap_or(incarnation);
        if host.renewed_from.is_some_and(|from| from <= known) {
            self.detector.peer_renewed(node, &host.name, incarnation, &contracts, now_ns)
        } else {
            self.detector.peer_seen(node, &host.name, incarnation, &contracts, now_ns)
        }
    }

    /// Makes room for a host that lives.
    fn forget_one_that_left(&mut self) -> bool {
        let left = self.detector.peers().find(|peer| peer.state == detector::State::Left).map(|peer| peer.node);
        if let Some(node) = left {
            self.forget(node);
            self.events.push_back(Event::Forgotten { node });
        }
        left.is_some()
    }

    /// In a new incarnation of a host, everything that goes on there is told to the detector anew, once its table is known.
    fn hand_in(&mut self, node: u32, now_ns: u64) {
        let Some(known) = self.hosts.get_mut(&node).filter(|known| !known.is_handed_in) else { return };
        let Some(replica) = self.directory.replica(node).filter(|replica| replica.is_complete()) else { return };
        known.is_handed_in = true;
        // Its own row may still be the one with which a former agent of it left.
        let goes_on = |(row, content): &(u32, &Content)| *row != HOST_ROW && !content.is_over();
        let rows: Vec<u32> = replica.rows().filter(goes_on).map(|(row, _)| row).collect();
        let header = Header { sender: node, ..Header::default() };
        for row in rows {
            self.row(node, row, &header, Came { path: 0, received_ns: now_ns }, now_ns);
        }
        self.whole(node);
    }

    /// The shell may remember how far the ends in this table were told.
    fn whole(&mut self, node: u32) {
        let Some(replica) = self.directory.replica(node) else { return };
        self.events.push_back(Event::Whole { node, epoch: replica.epoch(), version: replica.complete() });
    }

    fn row_event(&mut self, node: u32, event: table::Event, header: &Header, came: Came, now_ns: u64) {
        match event {
            table::Event::Appeared { row, .. } | table::Event::Changed { row, .. } | table::Event::Renumbered { row, .. } => {
                self.row(node, row, header, came, now_ns);
            }
            table::Event::Updated { row } => {
                self.row(node, row, header, came, now_ns);
                self.events.push_back(Event::Updated { node, row });
            }
            table::Event::Complete => {
                self.hand_in(node, now_ns);
                self.forget_what_is_over(node);
                if let Some(known) = self.hosts.get_mut(&node)
                    && !std::mem::replace(&mut known.is_whole, true)
                {
                    self.whole(node);
                }
            }
            table::Event::Lost { former: row, content: Content::Process(process) } => {
                let Some(known) = self.hosts.get_mut(&node) else { return };
                let (told, incarnation) = (known.told.remove(&watch_of(&process)), known.ran_in);
                if let Some(told @ (Told::Runs | Told::Doomed | Told::Silent)) = told {
                    let (confirms, process) = (told != Told::Runs, Box::new(process));
                    self.events.push_back(Event::Lost { node, incarnation, row, confirms, process });
                }
            }
            table::Event::Lost { .. } => {}
        }
    }

    /// A row of another host's table says something new, or is handed in again.
    fn row(&mut self, node: u32, row: u32, header: &Header, came: Came, now_ns: u64) {
        let Some(known) = self.hosts.get_mut(&node) else { return };
        let Some(replica) = self.directory.replica(node) else { return };
        let version = replica.version(row).unwrap_or_default();
        let process = match replica.get(row) {
            Some(Content::Process(process)) => process,
            Some(Content::Host(host)) if host.state.cause == Cause::Left => {
                let state = host.state;
                // Refused where it is of an incarnation that is over.
                self.noticed(node, row, version, &state, header.sent_ns, came, now_ns);
                return self.take_actions();
            }
            Some(Content::Host(host)) => {
                let (incarnation, host) = (known.incarnation, host.clone());
                return self.promises(node, incarnation, &host, now_ns);
            }
            Some(Content::Interest(interest)) => {
                self.events.push_back(Event::Interest { node, interest: *interest });
                return;
            }
            Some(Content::Keys(keys)) => {
                self.events.push_back(Event::Keys { node, keys: keys.clone() });
                return;
            }
            Some(Content::Maintenance(maintenance)) => {
                let (maintenance, is_fresh) = (Box::new(maintenance.clone()), known.is_whole);
                self.events.push_back(Event::Maintenance { node, maintenance, is_fresh });
                return;
            }
            _ => return,
        };
        let (instance, watch, state) = (process.instance, watch_of(process), process.state);
        let told = known.told.get(&watch).copied();
        if !state.cause.ends_process() {
            let is_known = self.detector.app_state(node, row).is_some_and(AppState::is_running);
            if !(is_known && told == Some(Told::Runs)) {
                if self.detector.app_seen(node, known.incarnation, row).is_err() {
                    return;
                }
                known.told.insert(watch, Told::Runs);
                self.events.push_back(Event::Runs { node, row, instance, is_back: told.is_some() });
            }
            if state.cause.is_progress() {
                self.noticed(node, row, version, &state, header.sent_ns, came, now_ns);
                self.take_actions();
            }
            return;
        }
        let since_former = known.former.is_some_and(|(epoch, seen)| epoch == replica.epoch() && version > seen);
        // Who is doomed has not ended yet.
        let is_news = told.is_some() || known.is_whole || since_former || state.cause == Cause::Doomed;
        self.take_actions();
        let sent_ns = if header.sent_ns == 0 { came.received_ns } else { header.sent_ns };
        if self.noticed(node, row, version, &state, sent_ns, came, now_ns) && !is_news {
            // It ended before this agent's time: known, and not told.
            while let Some(action) = self.detector.poll_action() {
                self.tell_unless(action, &watch);
            }
        }
        self.take_actions();
    }

    /// The verdict on the end of this instance is not told.
    fn tell_unless(&mut self, action: Action, watch: &Watch) {
        if let Action::Verdict(verdict) = &action
            && verdict.app != 0
            && let Some(known) = self.hosts.get_mut(&verdict.node)
        {
            known.told.insert(watch.clone(), Told::Ended);
            return;
        }
        self.hand_out(action);
    }

    /// What the detector wants is the shell's to do, but for questions: whom to ask, and how, is
    /// decided here.
    fn hand_out(&mut self, action: Action) {
        match action {
            Action::Probe { node, paths, knock, wide } => {
                self.probing.probe(node, paths, (knock, wide), self.detector.now_ns());
                self.take_questions();
            }
            Action::Knock { node, paths } => {
                self.probing.knock(node, paths);
                self.take_questions();
            }
            Action::AskOthers { node } => self.reports.prompt(node, true),
            other => self.events.push_back(Event::Act(other)),
        }
    }

    /// Of an instance that ended and is in no table any more nothing is remembered.
    fn forget_what_is_over(&mut self, node: u32) {
        let Some(known) = self.hosts.get_mut(&node) else { return };
        let Some(replica) = self.directory.replica(node) else { return };
        if known.told.len() <= table::ROWS_MAX {
            return;
        }
        let listed = |content: &Content| if let Content::Process(p) = content { Some(watch_of(p)) } else { None };
        let listed: BTreeSet<Watch> = replica.rows().filter_map(|(_, content)| listed(content)).collect();
        known.told.retain(|watch, told| *told != Told::Ended || listed.contains(watch));
    }

    // ---- time -----------------------------------------------------------------------------------------------

    /// Judges silence. `now_ns` must have been read before the receive table was.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.detector.tick(now_ns);
        self.directory.handle_timeout(now_ns);
        self.take_actions();
        self.weigh_held(now_ns);
    }

    /// When [`Node::handle_timeout`] and [`Node::poll_transmit`] are to be called at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let reports = self.reports.poll_timeout();
        let held = self.held_until_ns();
        self.detector.poll_timeout().into_iter().chain(self.directory.poll_timeout()).chain(reports).chain(held).min()
    }

    /// Takes what the detector wants done: each end of an instance once.
    fn take_actions(&mut self) {
        let mut changes_members = false;
        while let Some(action) = self.detector.poll_action() {
            let action = match action {
                Action::Verdict(verdict) => match self.told(verdict) {
                    Some(verdict) => {
                        changes_members |= verdict.app == 0;
                        match verdict.cause {
                            Cause::ContractBroken if verdict.app == 0 => self.lacks_all(verdict.node, self.detector.now_ns()),
                            Cause::ContractKept if verdict.app == 0 => self.lacks_no_more(verdict.node, self.detector.now_ns()),
                            _ => {}
                        }
                        if verdict.app == 0 && verdict.cause == Cause::Left {
                            self.directory.pause(verdict.node);
                            self.members.remove(&verdict.node);
                        }
                        match self.weigh_fence(verdict, self.detector.now_ns()) {
                            Some(verdict) => Action::Verdict(verdict),
                            None => continue,
                        }
                    }
                    None => continue,
                },
                Action::Condemn { node, incarnation } => {
                    if self.directory.incarnation(node) == Some(incarnation) {
                        self.directory.pause(node);
                    }
                    if let Some(known) = self.hosts.get_mut(&node).filter(|known| known.incarnation == incarnation) {
                        known.condemned = true;
                    }
                    Action::Condemn { node, incarnation }
                }
                Action::Restarts { node, incarnation } => {
                    changes_members = true;
                    self.directory.pause(node);
                    Action::Restarts { node, incarnation }
                }
                other => other,
            };
            self.hand_out(action);
        }
        if changes_members {
            self.count_confirmers();
        }
    }

    /// The verdict as it is told of instances; `None` where all of it was told before.
    fn told(&mut self, mut verdict: Box<Verdict>) -> Option<Box<Verdict>> {
        let Some(known) = self.hosts.get_mut(&verdict.node) else { return Some(verdict) };
        let replica = self.directory.replica(verdict.node);
        let watch = |app: u32| match replica.and_then(|replica| replica.get(app)) {
            Some(Content::Process(process)) => Some(watch_of(process)),
            _ => None,
        };
        verdict.ended_apps.retain(|app| match watch(*app).and_then(|watch| known.told.get_mut(&watch)) {
            Some(told) => std::mem::replace(told, Told::Silent) == Told::Runs,
            None => true,
        });
        if verdict.app == 0 || !verdict.cause.ends_process() {
            return Some(verdict);
        }
        let Some(watch) = watch(verdict.app) else { return Some(verdict) };
        if verdict.cause == Cause::Replaced {
            // The same process goes on in another row, which may have come first.
            let goes_on = |(row, content): (u32, &Content)| {
                row != verdict.app
                    && matches!(content, Content::Process(p) if !p.state.cause.ends_process() && watch_of(p) == watch)
            };
            if !replica.is_some_and(|replica| replica.rows().any(goes_on)) {
                let told = known.told.insert(watch, Told::Ended);
                verdict.confirms = told == Some(Told::Silent);
            }
            return Some(verdict);
        }
        let now = if verdict.cause == Cause::Doomed { Told::Doomed } else { Told::Ended };
        match known.told.insert(watch.clone(), now) {
            None | Some(Told::Runs) => {}
            Some(Told::Doomed) if now == Told::Doomed => return None,
            Some(Told::Doomed | Told::Silent) => verdict.confirms = true,
            Some(Told::Ended) => {
                known.told.insert(watch, Told::Ended);
                return None;
            }
        }
        Some(verdict)
    }

    // ---- outputs --------------------------------------------------------------------------------------------

    /// The next frame to be sent, its body written to `body` ([`Directory::poll_transmit`]).
    pub fn poll_transmit(
        &mut self,
        now_ns: u64,
        numbers: Numbers,
        random: impl FnOnce() -> u64,
        body: &mut Vec<u8>,
    ) -> Option<Transmit> {
        self.introduce_refuted();
        self.directory.set_mute(self.fence.as_ref().is_some_and(HostFence::is_mute));
        self.directory.poll_transmit(now_ns, numbers, random, body)
    }

    /// What became known or is to be done, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

/// The table of a host is not known through yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotYet;

impl std::fmt::Display for NotYet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the table of this host is not known through yet")
    }
}

impl std::error::Error for NotYet {}
