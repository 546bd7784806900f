//! Groups: replicated logs over any engine, one member a node.
//!
//! ```text
//! create ─► Prepare to all ─► Prepared of all ─► Begin        join ─► Invite ─► Listening ─► binding, join (entries)
//! propose ─► Member (Log, Engine, Gate) ─► link, heartbeat ─► … ─► Member of the others ─► State ─► applications
//! verdict, new life of a node ─► its members ─► Gate ─► Log
//! ```
//!
//! # Members
//! A member is one life of one node's agent. A node that begins a new incarnation, for whatever reason, has given its members
//! up, so a new incarnation is certain proof that the members of the former one do nothing any more. A member that halts says
//! [`Message::Over`]; and who gets a message for a member that it has not got says so, too.
//!
//! Raft rests on what its members remember, and on no verdict. So its members outlive incarnations of one and the same agent,
//! which keeps log and vote in its memory: others may have given it up, wrongly, or its fence was closed for a while. Only an
//! agent that is another one ([`Groups::handle_life`], `first`) has lost them. The member says by an entry in which incarnation
//! it goes on ([`Record::Binding`]), so that an engine to which the group switches begins with the same members everywhere: a
//! member whose entry is still under way by then stops.
//!
//! # Beginning
//! A group begins when everybody in its [`Plan`] has said [`Message::Prepared`], so nobody begins
//! it alone, and all other nodes that are heard have said [`Message::Unknown`], so that two groups
//! of one name run only where a partition hides one from the other. Who has prepared begins with
//! the first sign that somebody else has. Whoever comes later, or again, joins: it listens before
//! it is let in, as [`Log`] wants it.
//!
//! # Going on
//! A member that stops leaves its log with its node, which keeps it until its next member has that of the others. Where all
//! members have stopped, the nodes tell each other what they keep, and one of them begins the group again with the log that
//! has all that was told ([`resume`]).
//!
//! # Heartbeats
//! What an engine piggybacks must reach all or nobody, and its sender relies on it when the heartbeat has left ([`Groups::handle_sent`]). A node that was
//! silent for long may have been given up by some of the others meanwhile, who refuse its heartbeats. So before its next heartbeat it is told of its silence ([`Groups::hold`]):
//! it asks all members whether it still is one to them, and piggybacks and sends nothing until each has said so, or is dead. Where the silence is noticed behind a heartbeat only, nothing is
//! relied on before all have got that one; that nobody had given this node up when it came is the contract's to keep.

mod copies;
pub mod durable;
pub mod large;
pub mod last_set;
pub mod member;
pub mod message;
pub mod resume;
pub mod rides;
pub mod state;

use crate::consensus::log::{self, EngineMessage, Log, Position, Setup};
use crate::consensus::lowi::{self, Lowi, StartPoint};
use crate::consensus::policy::{Answer, Ask, Policy};
use crate::consensus::{Engine, Halted, Instance, Kind};
use crate::group::{Body, MAX_MEMBERS, MemberId, Refused, Value};
use crate::services::links::{self, Links};
use durable::{Mark, Saved, What, Write};
use fide_wire::session::{Fate, SNAPSHOT_MAX};
use fide_wire::verdict::{Cause, Grade};
use large::{Builder, Fetched, Fetching, Large, LargeId, LargeRef, Next, Whole};
use last_set::{LastSet, Waits};
use member::{GateConfig, Member, Output};
use message::{From, Message, Plan, Ride, Timing};
use resume::{GoesOn, Kept, KeptLog, Stays};
use rides::{Arriving, Came, Riding};
use state::{AppState, Applied, Binding, Record, State};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Most groups of one node.
pub const GROUPS_MAX: usize = 64;
/// Longest name, bytes.
pub const NAME_MAX: usize = 64;
/// The last generation that a group has. Groups that have none yet are kept above.
pub const GENERATION_MAX: u64 = 1 << 63;
/// All hosts of a new group answer within so long, or it does not begin (ns).
pub const PREPARE_NS: u64 = 2_000_000_000;
/// Who has prepared waits so long for the begin, or for a sign of it (ns).
const PREPARED_NS: u64 = 10_000_000_000;
/// Who was invited waits so long for the state before it asks again, perhaps another one (ns).
const INVITED_NS: u64 = 3_000_000_000;
/// The same once the one that invited it has ended: its successor may send the state, or nobody
/// (ns).
const FORSAKEN_NS: u64 = 500_000_000;
/// Who asked to be let in asks the next one after so long (ns).
const JOIN_AGAIN_NS: u64 = 500_000_000;
/// A member that halted joins again after so long (ns): its applications wait meanwhile.
const REJOIN_NS: u64 = 10_000_000;
/// Who was refused for the format, or came too late, asks again after so long (ns).
const REFUSED_NS: u64 = 100_000_000;
/// A member that stops sooner behind its beginning waits twice as long each time before it joins
/// again (ns), since a path that stays out or loses packets would stop it again, at the cost of a
/// change of membership and an id for all,
const SETTLED_NS: u64 = 30_000_000_000;
/// but no more than so many doublings of [`REJOIN_NS`],
const SETBACKS_MAX: u32 = 9;
/// or so many while a host of its group is unheard, or packets of it are lost: when that ends, it
/// waits no longer ([`Groups::handle_second`]).
const TROUBLED_MAX: u32 = 12;
/// Seconds without trouble that end it.
const CALM: u32 = 2;
/// A host that is in trouble for longer (ns) is gone, or stays as it is: nobody waits for that to end.
const TROUBLED_NS: u64 = 300_000_000_000;
/// It is looked whether members are unknown to the detector so often (ns).
const LOOK_NS: u64 = 20_000_000;
/// A member whose node was never heard counts as silent after so long (ns).
const UNKNOWN_NS: u64 = 1_000_000_000;
/// A decision of HUC that some member has not confirmed for so long is mentioned to all by links;
/// and a member that hears of one and does not get it for so long has missed it (ns).
const MISSED_NS: u64 = 100_000_000;
/// It is looked whether groups that are expected have to be begun or joined so often (ns).
const EXPECTED_LOOK_NS: u64 = 50_000_000;
/// Before a group is begun by itself, those that may run it are asked for at least so long (ns).
const SEARCHED_NS: u64 = 200_000_000;
/// Why a group could not be begun, or was not found, can be asked for so long (ns).
const FAILED_NS: u64 = 10_000_000_000;
/// A group that was left, or that cannot go on here, keeps its entries and its place for so long
/// (ns): applications read the rest.
const LEFT_NS: u64 = 60_000_000_000;
/// What could not be begun is tried again after so long (ns).
const BEGIN_AGAIN_NS: u64 = 1_000_000_000;
/// but after so many doublings where the others refused it.
const REFUSALS_MAX: u32 = 5;
/// A group that went on and stopped again soon goes on again after so long (ns), twice as long each
/// time,
const RESUME_AGAIN_NS: u64 = 100_000_000;
/// but no more than so many doublings.
const RESTARTS_MAX: u32 = 7;
/// Parts of a durable group's log that wait for the disk at a time: what comes behind them waits in
/// the log, and not once more in a queue.
const WRITES_AHEAD: usize = 2;
/// Ids of this node that never took part, of one group.
const UNBORN_MAX: usize = 256;
/// A value that applications may propose while they have much to read ([`state::KEPT_RESERVE`]).
const SMALL_MAX: usize = 1 << 10;
/// A client that has nothing in the queue and found it full is waited for so long (ns), because it
/// may read much before it hears that ([`Groups::propose`]).
const TURN_NS: u64 = 50_000_000;
/// From so many clients on, those that have nothing under way are forgotten from time to time.
const TAKEN_CLIENTS: usize = 256;
/// How messages between groups of two nodes are written; builds that write them in another way cannot share a group. Before each message.
pub const FORMAT: u8 = 12;
/// Messages kept for members whose incarnation this node has not met yet.
const UNMET_MAX: usize = 1024;
/// Messages kept for a member that is not listening yet.
const EARLY_MAX: usize = 256;

/// Makes an engine for a group of this policy; none of a kind that is not built, or does not suit.
pub type Make = Arc<dyn Fn(&Setup, Policy, &Timing) -> Option<Box<dyn Engine<EngineMessage> + Send>> + Send + Sync>;

/// Settings of all groups of a node.
#[derive(Clone)]
pub struct Config {
    /// This node.
    pub node: u32,
    /// Its incarnation.
    pub incarnation: u32,
    /// Of its links.
    pub links: links::Config,
    /// Limits of each log.
    pub log: log::Config,
    /// A fence that is not confirmed is asked for again after so long (ns).
    pub fence_repeat_ns: u64,
    /// A witness that has not answered after so long has refused (ns); `None`: this node has none,
    /// and is in no group of the policy *witness*.
    pub witness_ns: Option<u64>,
    /// How long silence proves nothing after a living member was late (ns).
    pub distrust_ns: u64,
    /// The largest state of an application, in bytes, that goes over links ([`large`]).
    pub inline_max: usize,
    /// Makes engines.
    pub make: Make,
}

/// Why a request is refused. What is said is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is one already.
    Exists(String),
    /// There is none.
    NotFound(String),
    /// It cannot be.
    Invalid(String),
    /// Not now; what waits must be done first.
    Busy(String),
}

/// What happened, for the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Entries can be read, or a snapshot.
    Applied {
        /// Of which group.
        generation: u64,
    },
    /// How the group stands has changed ([`Groups::status`]).
    Changed {
        /// Which group.
        generation: u64,
    },
    /// That node sent what no link sends: nothing is taken from its present life any more.
    Closed {
        /// Which.
        node: u32,
    },
    /// This node's member stopped by itself; unless it was to leave, a new one joins.
    Halted {
        /// Of which group.
        generation: u64,
        /// Why.
        why: Halted,
    },
    /// A group that is expected here is to be begun by this node ([`Groups::create`]), or one that it
    /// remembers ([`Groups::begin_again`]): all its nodes are there, and none runs it.
    Begin {
        /// Which.
        name: String,
    },
    /// All members of a group have stopped, and this node is to go on with its log, with these nodes
    /// ([`Groups::resume`]).
    Resume {
        /// Which.
        name: String,
        /// Its first members' nodes, this one among them.
        nodes: BTreeSet<u32>,
    },
    /// This node's member is back with the log of others, in which something is missing that this
    /// node's applications were told before, or is another thing there.
    Differs {
        /// Of which group.
        generation: u64,
        /// Where.
        what: Difference,
    },
    /// To be written to disk, behind all writes before ([`Groups::handle_written`]).
    Write(Box<Write>),
    /// The gate asks: is this node cut off? Answered by [`Groups::handle_fenced`]; asked again now and then.
    AskFence {
        /// Which node.
        node: u32,
        /// Its incarnation.
        incarnation: u32,
    },
    /// This node has a state that others may fetch, for as long as the service keeps a clone of it.
    Hold(Large),
    /// Nobody here needs this any more: to be freed where that may take a while.
    Release(Large),
    /// A state is to be fetched; answered by [`Groups::handle_fetched`].
    Fetch {
        /// For which group.
        generation: u64,
        /// Which.
        what: LargeRef,
        /// From which node.
        from: u32,
    },
    /// The gate asks: does the witness let this node go on without that one? Answered by
    /// [`Groups::handle_witness`]. Several groups may ask about the same node.
    AskWitness {
        /// Which node.
        node: u32,
        /// Its incarnation.
        incarnation: u32,
    },
}

/// With what a group goes on, beside its log.
#[derive(Clone, Debug)]
pub struct Resume {
    /// Above all others of that name; what is too low is raised.
    pub generation: u64,
    /// Its first members; their ids are given anew.
    pub members: Vec<Binding>,
    /// See [`Plan::timing`].
    pub timing: Timing,
    /// Also where somebody may have a log with more in it.
    pub anyway: bool,
}

/// What a log has not got that was told here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The first entry that applications had been told, and that is missing or another one now.
    pub index: u64,
    /// So many from there on.
    pub count: u64,
    /// Of which generation and lineage.
    pub before: (u64, u64),
    /// Those of them that are kept here.
    pub entries: Vec<Applied>,
}

/// A group that this node is to be in, by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Its name.
    pub name: String,
    /// Its first engine; none: any.
    pub engine: Option<Kind>,
    /// Its policy; none: any.
    pub policy: Option<Policy>,
    /// Its nodes, this one among them; the first one begins it, or the one whose disk has the
    /// longest log.
    pub nodes: Vec<u32>,
    /// Its log is on disk.
    pub durable: bool,
}

/// What becomes of a group that is expected.
struct Expectation {
    what: Expected,
    /// Not begun again before then.
    not_before_ns: u64,
    /// Why it was not begun, or not joined.
    trouble: String,
}

/// What becomes of a group that this node was a member of.
struct Remembered {
    set: LastSet,
    /// Not begun again before then, how often in a row it was not, and why.
    not_before_ns: u64,
    refusals: u32,
    trouble: String,
}

impl Remembered {
    const fn new(set: LastSet) -> Self {
        Self { set, not_before_ns: 0, refusals: 0, trouble: String::new() }
    }

    /// It could not be begun.
    fn refused(&mut self, now_ns: u64, why: String) {
        self.trouble = why;
        // Longer each time: another node may try the same at the same time.
        self.not_before_ns = now_ns.saturating_add(BEGIN_AGAIN_NS << self.refusals);
        self.refusals = (self.refusals + 1).min(REFUSALS_MAX);
    }
}

/// A frame of this channel, to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A segment of a link, in `body`.
    Segment {
        /// With this node.
        node: u32,
        /// It was lost, or its acknowledgement late.
        is_again: bool,
    },
    /// A segment of links with several nodes, to everybody, in `body`.
    Shared {
        /// Others of the same message leave with it.
        is_one_of_many: bool,
    },
    /// A frame to everybody on each path, as kind `copy`, in `body`: say what became of it by
    /// [`Groups::handle_copies_sent`].
    Copies {
        /// Its stamp.
        sent_ns: u64,
    },
}

/// What became of a frame of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Departure {
    /// It left on all paths.
    Whole,
    /// On some path it left to nobody, or it was not sent.
    Void,
    /// On some path it left to some, or nobody knows to whom.
    Partial,
}

/// What the shell knows of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is heard in this life.
    Alive(u32),
    /// It was heard, and nothing is judged yet.
    Late(u32),
    /// It is silent, or its agent is lost: this life of it.
    Silent(u32),
    /// It left: this life of it.
    Left(u32),
    /// It was never heard.
    Unknown,
}

/// How far a group of this node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It asked the others of the plan, and waits for these.
    Preparing(BTreeSet<u32>),
    /// It said that it will.
    Prepared,
    /// It wants to be let in.
    Joining,
    /// It takes part.
    Running,
    /// It left, as was asked here.
    Left,
    /// It has not begun, or cannot go on by itself.
    Failed(String),
}

impl Stage {
    /// The name used in reports.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Stage::Preparing(_) => "preparing",
            Stage::Prepared => "prepared",
            Stage::Joining => "joining",
            Stage::Running => "running",
            Stage::Left => "left",
            Stage::Failed(_) => "failed",
        }
    }
}

/// How a group stands, as seen from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Which one of that name.
    pub generation: u64,
    /// Which log: the generation of the first group that wrote it.
    pub lineage: u64,
    /// Its log is on this node's disk, through this application entry of it at least.
    pub written: Option<u64>,
    /// Its engine and policy are known, and not its name alone.
    pub is_known: bool,
    /// Its engine now.
    pub engine: Kind,
    /// Its policy.
    pub policy: Policy,
    /// How far it is.
    pub stage: Stage,
    /// Our member.
    pub me: Option<MemberId>,
    /// Whom we take for the leader.
    pub leader: Option<MemberId>,
    /// The members, who they are, and whether they are known to have crashed.
    pub members: Vec<(Binding, bool)>,
    /// Application entries that were applied here.
    pub index: u64,
    /// Own entries that wait.
    pub pending: usize,
    /// Why it does not come to run, as far as is known.
    pub trouble: String,
    /// This node's member was there from the begin.
    pub is_begun: bool,
    /// Why the last member of this node halted.
    pub halted: Option<Halted>,
    /// Bytes of entries kept because no application keeps snapshots.
    pub kept_bytes: usize,
}

/// How a group stands, for its applications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brief<'a> {
    /// How far it is.
    pub stage: &'a Stage,
    /// Our member.
    pub me: Option<MemberId>,
    /// Whom we take for the leader, and its node.
    pub leader: Option<(MemberId, u32)>,
    /// Which log of that name: applications go on where they were as long as it is the same.
    pub lineage: u64,
    /// Application entries that applications may know of.
    pub index: u64,
}

/// What an application wants to know: what became of a proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    client: u64,
    number: u64,
    /// As our member has had it since an entry, which the answer rests on.
    answer: Option<(Option<MemberId>, u64, Fate)>,
}

impl Question {
    /// Of which client, and of which of its proposals.
    #[must_use]
    pub const fn new(client: u64, number: u64) -> Self {
        Self { client, number, answer: None }
    }

    /// Of which client, and of which of its proposals.
    #[must_use]
    pub const fn about(&self) -> (u64, u64) {
        (self.client, self.number)
    }
}

/// What is not relied on until all others have said that they have not given us up.
struct Held {
    /// The heartbeat that carried something of this group; 0: none did.
    number: u64,
    question: u64,
    waits_for: BTreeSet<MemberId>,
}

struct Group {
    plan: Plan,
    /// Of its name, as frames of its rounds have it ([`fide_wire::name_id`]).
    id: u32,
    stage: Stage,
    deadline_ns: u64,
    /// Who asked us to prepare.
    coordinator: u32,
    me: Option<MemberId>,
    member: Option<Member>,
    state: State,
    /// Applications are told of entries up to this index; of those behind it once the instance
    /// beside them is stable.
    confirmed: u64,
    /// The entry of the log that goes with it.
    confirmed_position: Position,
    unconfirmed: VecDeque<(Instance, u64, Position)>,
    /// Of a durable group: the log that it begins with.
    saved: Option<Saved>,
    /// The log through this position was handed out to be written; nothing of this member's so far.
    handed: Option<Position>,
    /// So many of those parts are not on disk yet.
    writes: usize,
    /// Its log is this member's: it took part.
    has_run: bool,
    /// A snapshot that is to be written.
    unwritten: Option<(Position, Value, Option<Large>)>,
    /// The application's state at the begin of what is kept, if it is a large one; and the one
    /// before, which others may still be fetching.
    large: Option<Large>,
    former: Option<Large>,
    /// What another node keeps behind this entry.
    offered: Option<(u64, LargeRef)>,
    fetching: Fetching,
    /// The disk has it through this application entry.
    written: u64,
    /// All have what was decided through this instance, as a leader said; and what we said of that
    /// as the leader.
    stable: Instance,
    stable_told: Instance,
    /// For the next heartbeats, not sent yet or in part.
    riding: Option<Riding>,
    /// Rides of our member so far.
    rides: u64,
    /// Rides of others that came in part.
    arriving: BTreeMap<MemberId, Arriving>,
    /// Copies of others that came in part, by path.
    copies: BTreeMap<(MemberId, usize), copies::Arriving>,
    /// Behind a silence of ours.
    held: Option<Held>,
    /// Questions of others that wait for their heartbeat: who asks, for which one, and the question.
    asked_of_us: Vec<(MemberId, u64, u64)>,
    /// When it asks to be let in.
    join_at_ns: u64,
    /// Whom it asked last.
    asked: Option<u32>,
    /// Who has said that it does not run it, in this round of asking, how far the log on its disk
    /// goes, and what it keeps in memory.
    denied: BTreeMap<u32, (Option<Mark>, Kept)>,
    /// The log that our last member left.
    kept: Option<KeptLog>,
    /// How long the log was when our member learned of a crash.
    crashed_at: BTreeMap<MemberId, Position>,
    /// Not begun again before then, how often in a row that was refused, and why.
    resume_at_ns: u64,
    refusals: u32,
    /// How often in a row it stopped soon after it had gone on.
    restarts: u32,
    stays: String,
    /// It is to begin by itself, with a log that is kept.
    resumes: bool,
    /// Our member began it with the others.
    is_begun: bool,
    /// The hosts that were members and did not leave by an order ([`last_set`]).
    nodes: Vec<u32>,
    /// What this node remembers of it is up to date, with this engine.
    noted: Option<Kind>,
    /// What came for a member that is not listening yet: of which group, from whom, for whom.
    early: VecDeque<(u64, MemberId, MemberId, log::Message)>,
    /// Members that go on in a later incarnation of the same agent ([`Group::outlives`]), and in which.
    goes_on: BTreeMap<MemberId, u32>,
    /// For members whose incarnation this node has not met yet.
    unmet: VecDeque<(Binding, log::Message)>,
    /// Whom we let in: which node is to be which member, until that is applied.
    invited: BTreeMap<MemberId, Binding>,
    halted: Option<Halted>,
    /// How often in a row our member stopped soon after it had come.
    setbacks: u32,
    /// Of its hosts, those that were unheard, or of which packets were lost, lately.
    troubled: BTreeMap<u32, Trouble>,
    leaves: bool,
    /// Its member leaves because this node ends: it is not to join again before that.
    departs: bool,
    /// The client whose proposal is taken next, and how long it is waited for.
    turn: Option<(u64, u64)>,
    taken: Taken,
    /// The last decision, as far as not all have it, and since when.
    unstable: Option<(Instance, u64)>,
    /// Somebody has decided this instance of this epoch, and we have not: since when.
    behind: Option<(log::Epoch, Instance, u64)>,
    since_ns: u64,
    look_at_ns: u64,
    /// What was last told of it.
    told: (Option<MemberId>, &'static str, usize, usize),
}

/// A host is unheard, or packets of it are lost.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    since_ns: u64,
    /// Seconds in a row in which it was not.
    calm: u32,
}

/// The proposals that our member took: the last one of each client, until it is applied, or longer.
#[derive(Debug, Default)]
struct Taken {
    by: Option<MemberId>,
    last: BTreeMap<u64, u64>,
    /// With so many clients it is looked who has nothing under way.
    look_at: usize,
}

impl Group {
    /// Our member took a proposal of this client that was not applied so far. The client's numbers
    /// do not tell: it gives some up.
    fn has_under_way(&self, client: u64) -> bool {
        self.taken.by == self.me && self.taken.last.get(&client).is_some_and(|last| *last > self.state.last_of(client))
    }

    fn took(&mut self, client: u64, number: u64) {
        let Self { taken, state, me, .. } = self;
        if taken.by != *me {
            *taken = Taken { by: *me, last: BTreeMap::new(), look_at: TAKEN_CLIENTS };
        }
        if taken.last.len() >= taken.look_at {
            taken.last.retain(|client, last| *last > state.last_of(*client));
            taken.look_at = TAKEN_CLIENTS.max(2 * taken.last.len());
        }
        taken.last.insert(client, number);
    }

    fn new(now_ns: u64, plan: Plan, stage: Stage, coordinator: u32) -> Self {
        let state = State::new(&plan.members);
        Self {
            id: fide_wire::name_id(&plan.name),
            plan,
            stage,
            deadline_ns: u64::MAX,
            coordinator,
            me: None,
            member: None,
            state,
            confirmed: 0,
            confirmed_position: 0,
            unconfirmed: VecDeque::new(),
            saved: None,
            handed: None,
            writes: 0,
            has_run: false,
            unwritten: None,
            large: None,
            former: None,
            offered: None,
            fetching: Fetching::default(),
            written: 0,
            stable: 0,
            stable_told: 0,
            riding: None,
            rides: 0,
            arriving: BTreeMap::new(),
            copies: BTreeMap::new(),
            held: None,
            asked_of_us: Vec::new(),
            join_at_ns: u64::MAX,
            asked: None,
            denied: BTreeMap::new(),
            kept: None,
            crashed_at: BTreeMap::new(),
            resume_at_ns: now_ns,
            refusals: 0,
            restarts: 0,
            stays: String::new(),
            resumes: false,
            is_begun: false,
            nodes: Vec::new(),
            noted: None,
            early: VecDeque::new(),
            goes_on: BTreeMap::new(),
            unmet: VecDeque::new(),
            invited: BTreeMap::new(),
            halted: None,
            setbacks: 0,
            troubled: BTreeMap::new(),
            leaves: false,
            departs: false,
            turn: None,
            taken: Taken::default(),
            unstable: None,
            behind: None,
            since_ns: now_ns,
            look_at_ns: now_ns,
            told: (None, "", 0, 0),
        }
    }

    /// Keeps the application's state behind this entry, and not what is before it. `false` if that entry is not there.
    fn keep(&mut self, index: u64, state: AppState, large: Option<Large>, events: &mut VecDeque<Event>) -> bool {
        let Some(member) = self.member.as_mut().filter(|member| member.log().is_running()) else { return false };
        let Some((position, value)) = self.state.keep_snapshot(index, state) else { return false };
        if self.handed.is_some() {
            self.unwritten = Some((position, value.clone(), large.clone()));
        }
        let is_kept = member.keep_snapshot(position, value).is_ok();
        self.hold(large, events);
        is_kept
    }

    /// The large state of the snapshot is this one from now on.
    fn hold(&mut self, large: Option<Large>, events: &mut VecDeque<Event>) {
        events.extend(large.clone().map(Event::Hold));
        let before = std::mem::replace(&mut self.large, large);
        if before.is_some() {
            events.extend(std::mem::replace(&mut self.former, before).map(Event::Release));
        }
    }

    /// A state that was to be fetched is here.
    fn fetched(&mut self, large: Large, events: &mut VecDeque<Event>) {
        let at = large.at();
        let offered = self.offered.take_if(|(_, of)| *of == at);
        if self.missing() == Some(at) {
            self.hold(Some(large), events);
        } else if let Some((index, _)) = offered {
            self.keep(index, AppState::Large(at), Some(large), events);
        } else {
            events.push_back(Event::Release(large));
        }
    }

    /// Has a state fetched that is not here, and is wanted. Whether it is lost.
    fn fetch(
        &mut self,
        now_ns: u64,
        ours: u32,
        nodes: &BTreeSet<u32>,
        (saved, former): (&BTreeMap<String, Saved>, &BTreeMap<String, Group>),
        events: &mut VecDeque<Event>,
    ) -> bool {
        if self.offered.is_none() && self.missing().is_none() {
            return false;
        }
        self.offered.take_if(|(index, _)| *index <= self.state.snapshot().0);
        let offered = self.offered.filter(|_| self.wants_offered()).map(|(_, at)| at);
        let Some(what) = offered.or_else(|| self.missing()) else { return false };
        let former = former.get(&self.plan.name).into_iter().flat_map(|group| [&group.large, &group.former]).flatten();
        let here = saved.get(&self.plan.name).and_then(|saved| saved.large.as_ref()).into_iter().chain(former);
        if let Some(large) = here.into_iter().find(|large| large.at() == what).cloned() {
            self.fetched(large, events);
            return false;
        }
        let Some(member) = self.member.as_mut().filter(|member| member.log().is_running()) else { return false };
        let log = member.log();
        let alive = log.members().iter().filter(|member| !log.crashed().contains(*member));
        let bindings = self.state.bindings();
        let hosts = alive.filter_map(|member| bindings.get(&member)).map(|binding| binding.node);
        let living: BTreeSet<u32> = hosts.filter(|node| *node != ours && nodes.contains(node)).collect();
        match (self.fetching.next(now_ns, what, &living), offered) {
            (Next::Wait, _) => {}
            (Next::Ask(what, from), _) => {
                events.push_back(Event::Fetch { generation: self.plan.generation, what, from });
            }
            // It is not needed: a newer one will come.
            (Next::Superseded | Next::Lost, Some(_)) => self.offered = None,
            // The others have a later one, which comes with their state.
            (Next::Superseded, None) => member.stop(Halted::Expelled),
            (Next::Lost, None) => {
                let others = log.members().iter().filter(|other| Some(*other) != self.me && !log.crashed().contains(*other));
                return others.count() == 0;
            }
        }
        false
    }

    fn has_left(&mut self, now_ns: u64) {
        self.stage = Stage::Left;
        self.deadline_ns = now_ns.saturating_add(LEFT_NS);
    }

    /// A new group may take its name: nothing is left of it here, and all hosts of the new one must say so.
    fn is_void(&self) -> bool {
        matches!(self.stage, Stage::Failed(_) | Stage::Left) || (self.stage == Stage::Joining && self.member.is_none())
    }

    fn binding(&self, member: MemberId) -> Option<Binding> {
        let bound = self.state.bindings().get(&member).or_else(|| self.invited.get(&member)).copied();
        bound.map(|binding| self.as_it_goes_on(binding))
    }

    /// Whether members outlive incarnations of their agent.
    fn outlives(&self) -> bool {
        let log = self.member.as_ref().map(Member::log).filter(|log| log.is_running() || log.is_leaving());
        log.map_or(self.plan.engine, Log::kind) == Kind::Raft
    }

    fn as_it_goes_on(&self, bound: Binding) -> Binding {
        let later = self.goes_on.get(&bound.member).filter(|_| self.outlives());
        Binding { incarnation: later.map_or(bound.incarnation, |later| bound.incarnation.max(*later)), ..bound }
    }

    /// Notes who goes on in which incarnation.
    fn note_agents(&mut self, agents: &BTreeMap<u32, (u32, u32)>) {
        let bindings = self.state.bindings();
        self.goes_on.retain(|member, _| bindings.contains_key(member));
        for Binding { member, node, incarnation } in bindings.values().copied() {
            if let Some((first, last)) = agents.get(&node)
                && (*first..*last).contains(&incarnation)
            {
                self.goes_on.insert(member, *last);
            }
        }
    }

    /// Behind which entry this member goes on without the others that have crashed.
    fn note_crashes(&mut self) {
        let Some(log) = self.member.as_ref().map(Member::log).filter(|log| log.is_running()) else { return };
        if log.crashed().len() > self.crashed_at.len() {
            let position = log.position();
            log.crashed().iter().for_each(|member| _ = self.crashed_at.entry(member).or_insert(position));
        }
    }

    /// Other engines than Raft know a member in the incarnation that the log says, and take a later one for its end: so it is.
    fn end_what_lives_on(&mut self, own: u32) {
        let bound = self.me.and_then(|me| self.state.bindings().get(&me));
        let lives_on = bound.is_some_and(|bound| bound.incarnation < own);
        if lives_on
            && !self.outlives()
            && let Some(member) = &mut self.member
        {
            member.stop(Halted::Expelled);
        }
    }

    /// A member of this node has ended: if it was to let us in, it may have told nobody.
    fn forsaken(&mut self, now_ns: u64, by: u32) {
        let is_in = self.member.as_ref().is_none_or(|member| member.log().is_running());
        let waits = self.stage == Stage::Joining && !is_in && self.coordinator == by;
        if waits {
            self.deadline_ns = self.deadline_ns.min(now_ns.saturating_add(FORSAKEN_NS));
        }
    }

    /// Whether the next heartbeat has something to carry: what the engine has now, if nothing
    /// waits.
    fn poll_ride(&mut self, now_ns: u64) -> bool {
        self.riding.iter_mut().for_each(Riding::leave_behind);
        let (Some(member), None) = (&mut self.member, &self.held) else { return false };
        if self.riding.is_none()
            && let (Some(message), Some(from)) = (member.poll_piggyback(now_ns), self.me)
        {
            self.rides += 1;
            self.riding = Riding::new(&Ride { generation: self.plan.generation, from, message }, self.rides);
            debug_assert!(self.riding.is_some(), "a ride has a limit that engines keep");
        }
        self.riding.is_some()
    }

    /// Up to which entry applications are told.
    ///
    /// The leader of HUC has decided when its heartbeat has left, and so it is, as long as
    /// heartbeats reach all or nobody. A partition breaks that: what is decided last, only the
    /// hosts on the leader's side know, and the others go on without it once their fences have
    /// closed. Under the policy *fence*, which is for such partitions, members tell of an entry
    /// when all that live have it. The leader knows by their next proposals, and mentions it to the
    /// others. The same holds under *witness*, which has the hosts on the other side switched off.
    fn confirm(&mut self, generation: u64, links: &mut Links) {
        let Some(log) = self.member.as_ref().map(Member::log) else { return };
        let (index, position) = (self.state.index(), self.state.position());
        if log.halted().is_none() {
            if !self.plan.policy.outlives_partitions() || log.kind() != Kind::Huc {
                self.unconfirmed.clear();
                (self.confirmed, self.confirmed_position) = (index, position);
                return;
            }
            if position > self.unconfirmed.back().map_or(self.confirmed_position, |(.., position)| *position) {
                self.unconfirmed.push_back((log.decided_through(), index, position));
            }
        }
        let own = log.stable_through();
        let leads = log.leader() == self.me && log.is_running() && self.held.is_none();
        if leads && own > self.stable_told {
            let bindings = self.state.bindings();
            let others = log.members().iter().filter(|other| Some(*other) != self.me && !log.crashed().contains(*other));
            let nodes: BTreeSet<u32> = others.filter_map(|other| bindings.get(&other)).map(|binding| binding.node).collect();
            if let Some(bytes) = written(&Message::Stable { generation, instance: own }) {
                let _ = links.send_to_all(&nodes.into_iter().collect::<Vec<_>>(), &bytes);
            }
        }
        self.stable_told = if leads { own } else { 0 };
        let stable = own.max(self.stable);
        while let Some((_, index, position)) = self.unconfirmed.front().copied().filter(|(instance, ..)| *instance <= stable) {
            self.unconfirmed.pop_front();
            (self.confirmed, self.confirmed_position) = (index, position);
        }
    }

    /// Up to which entry applications may know: what is confirmed, and on disk where that is
    /// asked for.
    fn told(&self) -> u64 {
        if self.plan.durable { self.confirmed.min(self.written) } else { self.confirmed }
    }

    /// What of a durable group is to be written next.
    fn poll_write(&mut self) -> Option<Write> {
        if self.missing().is_some() {
            return None;
        }
        self.has_run |= self.member.as_ref().is_some_and(|member| member.log().is_running());
        if !self.plan.durable || !self.has_run || self.member.is_none() || self.writes >= WRITES_AHEAD {
            return None;
        }
        // What a snapshot stands for, applications have been told of.
        let through = self.confirmed_position.max(self.state.snapshot_position());
        let what = match self.handed {
            None => {
                let (snapshot_position, snapshot, entries) = self.state.log_through(through);
                let Plan { generation, lineage, .. } = self.plan;
                What::Whole(Saved { generation, lineage, snapshot_position, snapshot, entries, large: self.large.clone() })
            }
            Some(handed) => match self.unwritten.take() {
                Some((position, value, large)) => {
                    self.handed = Some(handed.max(position));
                    What::Snapshot(position, value, large)
                }
                None if through > handed => What::Entries(handed + 1, self.state.log_between(handed, through)),
                None => return None,
            },
        };
        if !matches!(what, What::Snapshot(..)) {
            self.handed = Some(through);
        }
        let index = if self.handed >= Some(through) { self.confirmed } else { 0 };
        self.writes += 1;
        Some(Write { name: self.plan.name.clone(), generation: self.plan.generation, index, what })
    }

    /// What applications were told here and this log, of the same lineage or of another one, has not got.
    fn difference(&self, log: &Saved, is_same: bool) -> Option<Difference> {
        let told = self.confirmed_position.max(self.state.snapshot_position());
        let before = self.saved_through(told);
        let from = if is_same { resume::contradiction(log, &before, told)?.position } else { 0 };
        let kept_from = self.state.snapshot().0;
        if is_same && from <= self.state.snapshot_position() {
            // The snapshot stands for them, and the last one at least is an application's.
            let entries: Vec<Applied> =
                self.state.entries_behind(kept_from)?.filter(|applied| applied.position <= told).cloned().collect();
            let count = entries.len() as u64 + 1;
            return Some(Difference { index: kept_from, count, before: (self.plan.generation, self.plan.lineage), entries });
        }
        let lost = self.state.entries_behind(kept_from)?.filter(|applied| (from..=told).contains(&applied.position));
        let entries: Vec<Applied> = lost.cloned().collect();
        // Another lineage has nothing of a snapshot, either.
        let in_snapshot = if is_same { 0 } else { kept_from };
        let index = if in_snapshot > 0 { 1 } else { entries.first()?.index };
        let count = in_snapshot + entries.len() as u64;
        Some(Difference { index, count, before: (self.plan.generation, self.plan.lineage), entries })
    }

    /// Its log as far as it is confirmed.
    fn saved(&self) -> Saved {
        self.saved_through(self.confirmed_position.max(self.state.snapshot_position()))
    }

    /// Its log through this entry.
    fn saved_through(&self, through: Position) -> Saved {
        let (snapshot_position, snapshot, entries) = self.state.log_through(through);
        let Plan { generation, lineage, .. } = self.plan;
        Saved { generation, lineage, snapshot_position, snapshot, entries, large: self.large.clone() }
    }

    /// A piece of a ride: the whole, if it was the last one missing.
    fn piece_came(&mut self, from: MemberId, piece: &rides::Piece<'_>) -> Option<Ride> {
        let log = self.member.as_ref()?.log();
        if log.crashed().contains(from) {
            return None;
        }
        let bindings = self.state.bindings();
        self.arriving.retain(|member, _| bindings.contains_key(member) && !log.crashed().contains(*member));
        self.arriving.entry(from).or_default().take(piece)
    }

    fn is_bound(&self, member: MemberId, node: u32) -> bool {
        self.binding(member).is_some_and(|binding| binding.node == node)
    }

    /// Members of this node whose life is over if `incarnation` is, or of every life up to it.
    fn members_of(&self, node: u32, through: u32) -> Vec<MemberId> {
        let of_node = |binding: &Binding| binding.node == node && binding.incarnation <= through;
        let Some(member) = &self.member else { return Vec::new() };
        let concerned = member.log().concerned();
        let all = self.state.bindings().values().chain(self.invited.values()).map(|bound| self.as_it_goes_on(*bound));
        all.filter(of_node).map(|binding| binding.member).filter(|id| concerned.contains(*id)).collect()
    }

    fn poll_timeout(&self) -> u64 {
        let of_member = self.member.as_ref().and_then(Member::poll_timeout).unwrap_or(u64::MAX);
        let look = if self.member.is_some() { self.look_at_ns } else { u64::MAX };
        of_member.min(self.deadline_ns).min(self.join_at_ns).min(look).min(self.fetch_at_ns())
    }
}

/// The groups of one node.
pub struct Groups {
    config: Config,
    links: Links,
    groups: BTreeMap<u64, Group>,
    names: BTreeMap<String, u64>,
    /// Those that this node is to be in, by itself, and when that is looked at.
    expected: BTreeMap<String, Expectation>,
    expected_look_ns: u64,
    /// Groups that this node was a member of and did not leave: their agents may all end.
    last_sets: BTreeMap<String, Remembered>,
    /// Nodes that write messages in another way, and in which.
    foreign: BTreeMap<u32, u8>,
    /// Logs of groups that do not run here, from this node's disk.
    saved: BTreeMap<String, Saved>,
    /// Why they cannot be read, if so: no durable group begins with this node then.
    unreadable: Option<String>,
    /// Groups whose logs this node keeps while it is to be a member of them again, or of others of
    /// their names.
    former: BTreeMap<String, Group>,
    /// Under which ids of which generation this node was invited, and never took part.
    unborn: BTreeMap<String, (u64, BTreeSet<MemberId>)>,
    /// Nodes that live.
    nodes: BTreeSet<u32>,
    /// The last incarnation of each node that is over.
    ended: BTreeMap<u32, u32>,
    /// Of each node's agent the first incarnation and the last one.
    agents: BTreeMap<u32, (u32, u32)>,
    /// The last heartbeat of each node that carried something of groups.
    rode: BTreeMap<u32, u64>,
    questions: u64,
    /// Groups of which only the name was known.
    unnamed: u64,
    /// Large states that were handed in here.
    states: u64,
    copies: VecDeque<copies::Leaving>,
    events: VecDeque<Event>,
    /// Something came in since the last heartbeat, so one may have to leave early.
    stirred: bool,
    malformed: u64,
    /// Nodes of whose present life nothing is taken any more.
    closed: BTreeSet<u32>,
}

impl Groups {
    /// None yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let links = Links::new(config.links, config.node, config.incarnation);
        let agents = BTreeMap::from([(config.node, (config.incarnation, config.incarnation))]);
        Self {
            agents,
            config,
            links,
            groups: BTreeMap::new(),
            names: BTreeMap::new(),
            expected: BTreeMap::new(),
            expected_look_ns: u64::MAX,
            last_sets: BTreeMap::new(),
            foreign: BTreeMap::new(),
            saved: BTreeMap::new(),
            unreadable: None,
            former: BTreeMap::new(),
            unborn: BTreeMap::new(),
            nodes: BTreeSet::new(),
            ended: BTreeMap::new(),
            rode: BTreeMap::new(),
            questions: 0,
            unnamed: 0,
            states: 0,
            copies: VecDeque::new(),
            events: VecDeque::new(),
            stirred: false,
            malformed: 0,
            closed: BTreeSet::new(),
        }
    }

    /// Whether there is nothing to do here at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.expected.is_empty() && self.last_sets.is_empty()
    }

    /// Whether nothing is to be done: also a host without a group answers those that look for one.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.is_empty() && !self.stirred && self.events.is_empty() && self.links.poll_timeout().is_none()
    }

    // ---- requests -------------------------------------------------------------------------------------------------------

    /// Begins a group of these hosts, this one among them, if all agree: see [`Groups::status`] for
    /// what becomes of it. A durable one goes on from this node's log, unless it is to be `fresh`,
    /// if no other node's disk has a later one.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn create(&mut self, now_ns: u64, plan: Plan, fresh: bool) -> Result<(), Error> {
        self.create_with(now_ns, plan, fresh, None)
    }

    /// Begins a group again of which all agents have ended, with these members, those of its last
    /// set: see [`Event::Begin`]. What the plan says beside its name, members, generation and timing
    /// is taken from what is remembered.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn begin_again(&mut self, now_ns: u64, plan: Plan) -> Result<(), Error> {
        let Some(set) = self.last_set(&plan.name).ok().cloned() else {
            return Err(Error::NotFound(format!("no last set of {} is known here, or not all of it is heard", plan.name)));
        };
        let generation = plan.generation.max(set.mark.generation.saturating_add(1));
        let plan = Plan { generation, engine: set.engine, policy: set.policy, durable: set.durable, ..plan };
        let nodes: BTreeSet<u32> = plan.members.iter().map(|binding| binding.node).collect();
        if nodes != set.nodes.iter().copied().collect() {
            return Err(Error::Invalid(format!("these are not the hosts of the last set of {}", plan.name)));
        }
        self.create_with(now_ns, plan, false, Some(set.mark))
    }

    fn create_with(&mut self, now_ns: u64, mut plan: Plan, fresh: bool, again: Option<Mark>) -> Result<(), Error> {
        if let Some(group) = self.named(&plan.name)
            && !group.is_void()
        {
            return Err(Error::Exists(format!("this host has a group {} already: it is {}", plan.name, group.stage.name())));
        }
        // A clock that was ahead when the log was written, and is right now, must not make the group that goes on an earlier one.
        let kept = self.kept_log(&plan.name).map_or(0, |kept| kept.generation);
        let remembered = self.last_sets.get(&plan.name).map_or(0, |of| of.set.mark.generation);
        let written = self.saved.get(&plan.name).map_or(0, |saved| saved.generation).max(kept).max(remembered);
        plan.generation = plan.generation.max(written.saturating_add(1));
        if plan.generation > GENERATION_MAX {
            return Err(Error::Invalid(format!(
                "the log of {} has the last generation: begin a group of another name",
                plan.name
            )));
        }
        self.is_as_configured(&plan).and_then(|()| self.may_begin(&plan)).map_err(Error::Invalid)?;
        if let (false, Some(kept)) = (fresh || plan.durable, self.kept_log(&plan.name)) {
            let Plan { name, .. } = &plan;
            return Err(Error::Exists(format!(
                "this host keeps the log of {name}, of {} entries, whose members have stopped: go on with it (fide group resume), \
                 or begin an empty one (--fresh)",
                kept.index
            )));
        }
        let mut saved = self.saved.get(&plan.name).filter(|_| plan.durable && !fresh).cloned();
        let mark = saved.as_ref().map(Saved::mark);
        plan.lineage = plan.generation;
        if let Some(saved) = &mut saved {
            // The first members of a log have their ids by its plan, and not from an entry.
            let first = MemberId(plan.members.len() as u16);
            continue_log(saved, first, &mut plan)?;
        }
        let begun = match (fresh, again) {
            (true, _) => From::Nothing,
            (false, None) => From::Log(mark, saved),
            (false, Some(set)) => From::Again(set, mark, saved),
        };
        self.ask_all(now_ns, plan, begun)
    }

    /// Whether this node's member of `raft` can decide nothing: too few of the members live.
    #[must_use]
    pub fn is_without_majority(&self, name: &str) -> bool {
        self.named(name).is_some_and(|group| group.stage == Stage::Running && self.lacks_majority(group).is_some())
    }

    /// Somebody decides to go on without a majority: this node's member, which can decide nothing,
    /// stops, and its log is kept for [`Groups::resume`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn set_aside(&mut self, now_ns: u64, name: &str) -> Result<(), Error> {
        if !self.is_without_majority(name) {
            return Err(Error::Exists(format!("{name} runs here, and is not without a majority")));
        }
        let group = self.running(name)?;
        let (Some(me), Some(member)) = (group.me, group.member.take()) else { return Ok(()) };
        let kept = kept_log(group, member.log(), me);
        group.member = Some(member);
        group.member.iter_mut().for_each(|member| member.stop(Halted::Expelled));
        self.settle(now_ns);
        if let Some(group) = self.named_mut(name).filter(|group| group.member.is_none()) {
            group.kept = Some(kept);
        }
        Ok(())
    }

    /// Goes on with the log that this node keeps of a group whose members have all stopped, with
    /// these members, this node's among them: see [`Event::Resume`]. `anyway`: as somebody decided
    /// who knows what that may lose.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn resume(&mut self, now_ns: u64, name: &str, to: Resume) -> Result<(), Error> {
        let nothing = || Error::NotFound(format!("this host keeps no log of {name}"));
        if let Some(group) = self.named(name)
            && !group.is_void()
        {
            return Err(Error::Exists(format!("this host has a group {name}: it is {}", group.stage.name())));
        }
        let group = self.kept_group(name).ok_or_else(nothing)?;
        let (log, mut saved) = (group.kept.clone().ok_or_else(nothing)?, group.saved_through(group.state.position()));
        let Resume { generation, members, timing, anyway } = to;
        if let Some(later) = self.later_on_disk(name, log.mark()).filter(|_| group.plan.durable) {
            return Err(Error::Invalid(later));
        }
        // Epochs of one generation are counted on from it.
        let generation = generation.max(log.generation.saturating_add(1 << 32));
        let mut plan = Plan { generation, members, timing, ..group.plan.clone() };
        self.may_begin(&plan).map_err(Error::Invalid)?;
        continue_log(&mut saved, log.highest, &mut plan)?;
        self.ask_all(now_ns, plan, From::Kept { log, saved, anyway })
    }

    /// All nodes are asked whether a group may begin: those of its plan, and the others that are
    /// heard.
    fn ask_all(&mut self, now_ns: u64, plan: Plan, begun: From) -> Result<(), Error> {
        let others: BTreeSet<u32> = plan.members.iter().map(|b| b.node).filter(|node| *node != self.config.node).collect();
        if let Some(node) = others.iter().find(|node| !self.nodes.contains(node)) {
            return Err(Error::NotFound(format!("node {node:08x} is not heard now")));
        }
        let generation = plan.generation;
        let mark = match &begun {
            From::Log(mark, _) | From::Again(_, mark, _) => plan.durable.then_some(*mark),
            From::Kept { log, anyway, .. } => (plan.durable && !anyway).then(|| Some(log.mark())),
            From::Nothing => None,
        };
        let goes_on = match &begun {
            From::Kept { log, anyway: false, .. } => Some(log.clone()),
            _ => None,
        };
        let asks = Message::Elsewhere { generation, name: plan.name.clone(), mark, goes_on };
        let message = Message::Prepare { plan: Box::new(plan.clone()), begun: Box::new(begun.clone()) };
        let is_full = |node: &u32| Error::Busy(format!("the link with node {node:08x} is full"));
        for node in &others {
            self.tell(*node, &message).map_err(|_| is_full(node))?;
        }
        let outside: BTreeSet<u32> = self.nodes.iter().filter(|node| !others.contains(node)).copied().collect();
        for node in &outside {
            self.tell(*node, &asks).map_err(|_| is_full(node))?;
        }
        let waits_for = &others | &outside;
        let is_alone = waits_for.is_empty();
        let nodes = self.first_nodes(&plan, &begun);
        let mut group = Group::new(now_ns, plan, Stage::Preparing(waits_for), self.config.node);
        group.nodes = nodes;
        group.resumes = matches!(begun, From::Kept { anyway: false, .. });
        group.saved = begun.into_saved();
        group.deadline_ns = now_ns.saturating_add(PREPARE_NS);
        self.keep(generation, group);
        if is_alone {
            self.begin(now_ns, generation);
        }
        self.settle(now_ns);
        Ok(())
    }

    /// The groups that this node is to be in from now on, by itself: it joins each where it runs, and begins it where it is the first one of its nodes, all
    /// are there, and none runs it ([`Event::Begin`]). Groups that are not expected any more go on.
    pub fn expect(&mut self, now_ns: u64, expected: impl Iterator<Item = Expected>) {
        let of = |what: Expected| (what.name.clone(), Expectation { what, not_before_ns: now_ns, trouble: String::new() });
        self.expected = expected.map(of).collect();
        self.expected_look_ns = now_ns;
    }

    /// What a former agent of this node remembered of a group that it was a member of: see
    /// [`last_set`].
    pub fn remember(&mut self, name: &str, set: LastSet) {
        if can_be_name(name).is_ok() && set.is_sane() && self.last_sets.len() < GROUPS_MAX {
            self.last_sets.insert(name.into(), Remembered::new(set));
            self.expected_look_ns = 0;
        }
    }

    /// What a later agent of this node is to remember.
    pub fn remembered(&self) -> impl Iterator<Item = (&str, &LastSet)> + '_ {
        self.last_sets.iter().map(|(name, of)| (name.as_str(), &of.set))
    }

    /// What was remembered counts for nothing.
    pub fn forget_remembered(&mut self) {
        self.last_sets.clear();
    }

    /// With which set a group begins again that no host runs which is heard, as far as they have
    /// answered.
    ///
    /// # Errors
    /// Why it does not.
    pub fn last_set(&self, name: &str) -> Result<&LastSet, Waits> {
        let denied = self.named(name).into_iter().flat_map(|group| &group.denied);
        let heard = denied.filter(|(node, _)| self.nodes.contains(node));
        let sane = |set: &&LastSet| set.is_sane();
        let mut known: BTreeMap<u32, Option<&LastSet>> =
            heard.map(|(node, (_, kept))| (*node, kept.last_set.as_ref().filter(sane))).collect();
        known.insert(self.config.node, self.last_sets.get(name).map(|of| &of.set));
        last_set::rule(&known)
    }

    /// The hosts that may run a group which begins so.
    fn first_nodes(&self, plan: &Plan, begun: &From) -> Vec<u32> {
        let mut nodes: Vec<u32> = plan.members.iter().map(|binding| binding.node).collect();
        // Of one that goes on by itself nobody has said that those are gone with whom it does not.
        if matches!(begun, From::Kept { anyway: false, .. }) {
            let before = self.last_sets.get(&plan.name).map(|of| of.set.nodes.clone());
            nodes.extend(before.into_iter().flatten());
            let mut seen = BTreeSet::new();
            nodes.retain(|node| seen.insert(*node));
        }
        nodes
    }

    /// What [`Event::Begin`] asked for cannot be, and why.
    pub fn begin_failed(&mut self, now_ns: u64, name: &str, why: String) {
        if let Some(expectation) = self.expected.get_mut(name) {
            expectation.trouble = why;
            expectation.not_before_ns = now_ns.saturating_add(BEGIN_AGAIN_NS);
        } else if let Some(remembered) = self.last_sets.get_mut(name) {
            remembered.refused(now_ns, why);
        }
    }

    /// Whatever is expected and does not run is looked for, or begun.
    fn look_expected(&mut self, now_ns: u64) {
        if now_ns < self.expected_look_ns {
            return;
        }
        let waits = |name: &String| self.named(name).is_none_or(|group| group.stage != Stage::Running);
        let is_over = self.expected.is_empty() && !self.last_sets.keys().any(waits);
        self.expected_look_ns = if is_over { u64::MAX } else { now_ns.saturating_add(EXPECTED_LOOK_NS) };
        let mut missing = self.look_remembered(now_ns);
        for (name, Expectation { what, not_before_ns, trouble }) in &mut self.expected {
            if let (true, Some(why)) = (what.durable, &self.unreadable) {
                trouble.clone_from(why);
                continue;
            }
            let group = self.names.get(name).and_then(|generation| self.groups.get(generation));
            match group.map(|group| (&group.stage, group)) {
                None => missing.push(name.clone()),
                Some((Stage::Failed(why), _)) => {
                    trouble.clone_from(why);
                    *not_before_ns = now_ns.saturating_add(BEGIN_AGAIN_NS);
                    missing.push(name.clone());
                }
                Some((Stage::Joining, group)) if group.member.is_none() => {
                    let ours = self.config.node;
                    let others = || what.nodes.iter().filter(|node| **node != ours);
                    let is_nowhere = others().all(|node| self.nodes.contains(node) && group.denied.contains_key(node));
                    // One that somebody keeps is gone on with, or stays as it is.
                    let is_kept = |node: &u32| match *node == ours {
                        true => group.kept.is_some() || self.former.contains_key(name),
                        false => group.denied.get(node).is_some_and(|(_, kept)| kept.log.is_some()),
                    };
                    let is_kept = !what.durable && what.nodes.iter().any(is_kept);
                    let is_searched = now_ns >= group.since_ns.saturating_add(SEARCHED_NS).max(*not_before_ns);
                    let mark = |node: &u32| match *node == ours {
                        true => self.saved.get(name).map(Saved::mark),
                        false => group.denied.get(node).and_then(|(mark, _)| *mark),
                    };
                    // The longest log, and of equal ones the first.
                    let first = match what.durable {
                        true => what.nodes.iter().rev().max_by_key(|node| mark(node)),
                        false => what.nodes.first(),
                    };
                    if is_nowhere && is_searched && !is_kept && first == Some(&ours) {
                        self.events.push_back(Event::Begin { name: name.clone() });
                    }
                }
                Some((Stage::Running, _)) => trouble.clear(),
                Some(_) => {}
            }
        }
        for name in missing {
            if self.named(&name).is_some() || self.groups.len() < GROUPS_MAX {
                // A place was kept for it ([`Groups::has_place`]).
                self.begin_joining(now_ns, &name, u64::MAX);
            }
        }
    }

    /// Whatever is remembered, is not of the configuration and does not run is begun again where
    /// all of the last set are there. Says which ones are to be looked for.
    fn look_remembered(&mut self, now_ns: u64) -> Vec<String> {
        let mut missing = Vec::new();
        let mut troubles = Vec::new();
        for (name, remembered) in self.last_sets.iter().filter(|(name, _)| !self.expected.contains_key(*name)) {
            let group = self.named(name);
            let is_due = now_ns >= remembered.not_before_ns;
            match group.map(|group| (&group.stage, group)) {
                None => missing.push(name.clone()),
                Some((Stage::Failed(_), _)) if is_due => missing.push(name.clone()),
                Some((Stage::Joining, group)) if group.member.is_none() => {
                    if let Some(why) = self.unreadable.as_ref().filter(|_| remembered.set.durable) {
                        troubles.push((name.clone(), why.clone()));
                        continue;
                    }
                    // Who has not answered may run it.
                    let has_answered = |node: &u32| group.denied.contains_key(node) || self.foreign.contains_key(node);
                    if !self.candidates(group).iter().all(has_answered) {
                        continue;
                    }
                    let is_searched = now_ns >= group.since_ns.saturating_add(SEARCHED_NS) && is_due;
                    match self.last_set(name) {
                        _ if self.is_kept_somewhere(name, group) => {}
                        Ok(set) if is_searched && self.begins_again(name, group, set) => {
                            self.events.push_back(Event::Begin { name: name.clone() });
                        }
                        Ok(_) => {}
                        Err(why) => troubles.push((name.clone(), self.why_it_waits(&why))),
                    }
                }
                Some(_) => {}
            }
        }
        for (name, why) in troubles {
            let Some(remembered) = self.last_sets.get_mut(&name) else { continue };
            if remembered.trouble != why {
                remembered.trouble = why;
                let generation = self.names.get(&name).copied();
                self.events.extend(generation.map(|generation| Event::Changed { generation }));
            }
        }
        missing
    }

    /// A log that somebody keeps in memory is gone on with, or stays as it is ([`resume`]).
    fn is_kept_somewhere(&self, name: &str, group: &Group) -> bool {
        self.kept_group(name).is_some() || group.denied.values().any(|(_, kept)| kept.log.is_some())
    }

    /// Whether this node is the one of the set that begins: of a durable group, the one whose disk has
    /// the longest log, and of equal ones the first.
    fn begins_again(&self, name: &str, group: &Group, set: &LastSet) -> bool {
        let mark = |node: &u32| match *node == self.config.node {
            true => self.saved.get(name).map(Saved::mark),
            false => group.denied.get(node).and_then(|(mark, _)| *mark),
        };
        let first = match set.durable {
            true => set.nodes.iter().rev().max_by_key(|node| mark(node)),
            false => set.nodes.first(),
        };
        first == Some(&self.config.node)
    }

    fn why_it_waits(&self, why: &Waits) -> String {
        let named = |nodes: &BTreeSet<u32>| {
            let of = |node: &u32| match self.foreign.get(node) {
                Some(format) => format!("node {node:08x} ({})", other_build(*node, *format)),
                None => format!("node {node:08x}"),
            };
            nodes.iter().map(of).collect::<Vec<_>>().join(", ")
        };
        match why {
            Waits::Forgotten => String::new(),
            Waits::Unheard(nodes) => format!(
                "no host that is heard runs it; it is begun again by itself when {} can be asked, too, or by fide group create with other \
                 hosts",
                named(nodes)
            ),
            Waits::Strangers(nodes) => format!(
                "no host that is heard runs it, and {}, which did not leave in agreement with the others, does not remember it: fide group \
                 create begins it again",
                named(nodes)
            ),
        }
    }

    /// Becomes a member of a group that runs on other hosts.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn join(&mut self, now_ns: u64, name: &str) -> Result<(), Error> {
        can_be_name(name).map_err(Error::Invalid)?;
        if let Some(group) = self.named(name)
            && !matches!(group.stage, Stage::Failed(_) | Stage::Left)
        {
            return Err(Error::Exists(format!("this host has a group {name} already: it is {}", group.stage.name())));
        }
        self.has_own_hash(name).map_err(Error::Invalid)?;
        self.has_place(name).map_err(Error::Busy)?;
        if self.nodes.is_empty() {
            return Err(Error::NotFound("no other host is heard now".into()));
        }
        let deadline_ns = now_ns.saturating_add(PREPARE_NS);
        self.begin_joining(now_ns, name, deadline_ns);
        Ok(())
    }

    /// The same for a group that this node was a member of in a former life: it asks for as long as it takes.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn rejoin(&mut self, now_ns: u64, name: &str) -> Result<(), Error> {
        if can_be_name(name).is_err() || self.named(name).is_some() || self.groups.len() >= GROUPS_MAX {
            return Err(Error::Invalid(format!("{name:?} cannot be joined again")));
        }
        self.begin_joining(now_ns, name, u64::MAX);
        Ok(())
    }

    fn begin_joining(&mut self, now_ns: u64, name: &str, deadline_ns: u64) {
        let plan = Plan {
            name: name.into(),
            generation: 0,
            engine: Kind::Huc,
            policy: Policy::TrustContract,
            members: Vec::new(),
            durable: false,
            lineage: 0,
            timing: Timing::of_contract(0, 0),
        };
        let mut group = Group::new(now_ns, plan, Stage::Joining, 0);
        (group.join_at_ns, group.deadline_ns) = (now_ns, deadline_ns);
        self.unnamed += 1;
        // Below every generation: which one it is, the invitation says.
        let place = u64::MAX - self.unnamed;
        self.keep(place, group);
        self.settle(now_ns);
    }

    /// The groups that this node wants to be a member of.
    pub fn kept(&self) -> impl Iterator<Item = &str> + '_ {
        let is_kept = |group: &&Group| {
            let is_one = !matches!(group.stage, Stage::Failed(_) | Stage::Left | Stage::Preparing(_));
            // A name that is joined for the first time may be one that no host has ever heard of.
            let is_asked_for = group.plan.generation == 0 && group.deadline_ns != u64::MAX;
            is_one && !group.leaves && !is_asked_for
        };
        let names = self.groups.values().filter(is_kept).map(|group| group.plan.name.as_str());
        names.chain(self.former.keys().chain(self.last_sets.keys()).map(String::as_str))
    }

    /// Gives this node's member up without asking the others, as an end of the agent would: they
    /// take it for crashed. For a group that decides nothing any more.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn give_up(&mut self, now_ns: u64, name: &str) -> Result<(), Error> {
        let Some(group) = self.named_mut(name) else { return self.running(name).map(|_| ()) };
        match group.stage {
            Stage::Running | Stage::Joining => {
                self.last_sets.remove(name);
                let Some(group) = self.named_mut(name) else { return Ok(()) };
                (group.leaves, group.join_at_ns, group.deadline_ns, group.kept) = (true, u64::MAX, u64::MAX, None);
                match &mut group.member {
                    Some(member) => member.stop(Halted::Left),
                    None => group.has_left(now_ns),
                }
                self.forget_former(name);
                self.settle(now_ns);
                Ok(())
            }
            _ => self.running(name).map(|_| ()),
        }
    }

    /// Leaves a group; the others go on. One that it asks to be let into, or that has ended, it
    /// asks for no more: but not while this node keeps a log of it, which may be the only one.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn leave(&mut self, now_ns: u64, name: &str) -> Result<(), Error> {
        let is_coming_back = |group: &&Group| group.stage == Stage::Joining && group.member.is_none();
        if let (Some(_), Some(log)) = (self.named(name).filter(is_coming_back), self.kept_log(name))
            && log.index > 0
        {
            return Err(Error::Busy(format!(
                "this host does not run {name} and keeps its log of {} entries, which would be dropped: fide group status says whether others \
                 go on with it; fide group resume goes on with this one, fide group leave --force drops it",
                log.index
            )));
        }
        let is_remembered = self.last_sets.contains_key(name);
        let waits = self.named_mut(name).filter(|group| match group.stage {
            Stage::Joining => group.member.is_none(),
            Stage::Failed(_) => is_remembered,
            _ => false,
        });
        if let Some(group) = waits {
            (group.leaves, group.join_at_ns, group.kept) = (true, u64::MAX, None);
            group.has_left(now_ns);
            self.forget_former(name);
            self.last_sets.remove(name);
            self.settle(now_ns);
            return Ok(());
        }
        let group = self.running(name)?;
        group.leaves = true;
        if let Some(member) = &mut group.member {
            member.leave(now_ns).map_err(|why| refused(name, why))?;
        }
        self.last_sets.remove(name);
        self.settle(now_ns);
        Ok(())
    }

    /// Proposes another engine.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn switch(&mut self, now_ns: u64, name: &str, kind: Kind) -> Result<(), Error> {
        let make = self.config.make.clone();
        let (node, witness_ns) = (self.config.node, self.config.witness_ns);
        let group = self.running(name)?;
        if !group.plan.policy.suits(kind) {
            return Err(Error::Invalid(format!("{kind} cannot keep the policy {} of {name}", group.plan.policy)));
        }
        lacks_witness(node, witness_ns, group.plan.policy).map_or(Ok(()), |why| Err(Error::Invalid(why)))?;
        if let (Some(member), Some(me)) = (&mut group.member, group.me) {
            let members = member.log().members().clone();
            let setup = Setup { me, kind, first: 1, members, crashed: Default::default(), now_ns, joins: false, start: None };
            if make(&setup, group.plan.policy, &group.plan.timing).is_none() {
                return Err(Error::Invalid(format!("{kind} is not built in on node {node:08x}")));
            }
            member.switch(now_ns, kind).map_err(|why| refused(name, why))?;
        }
        self.settle(now_ns);
        Ok(())
    }

    /// Proposes an application's value. It is applied once, or this node's member halts before ([`Status::halted`]): then the client
    /// hands it in again, with the same number, when the group runs again.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::Busy`]: later.
    pub fn propose(&mut self, now_ns: u64, name: &str, client: u64, number: u64, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() > state::APP_VALUE_MAX {
            return Err(Error::Invalid(format!("a value has at most {} bytes", state::APP_VALUE_MAX)));
        }
        if number == 0 {
            return Err(Error::Invalid("a client numbers its proposals from 1".into()));
        }
        let group = self.running(name)?;
        // Whoever found no room and has nothing under way is next: a client that always has more
        // would take every place that becomes free.
        group.turn = group.turn.filter(|(_, until_ns)| now_ns < *until_ns);
        if group.turn.is_some_and(|(next, _)| next != client) && group.has_under_way(client) {
            return Err(refused(name, Refused::Busy));
        }
        let kept = group.state.bytes();
        let taken = match &mut group.member {
            // What applications must say so that entries can be dropped comes in still.
            _ if kept > state::KEPT_BYTES_MAX + if bytes.len() <= SMALL_MAX { state::KEPT_RESERVE } else { 0 } => {
                Err(Error::Busy(format!(
                    "{name} keeps {kept} bytes of entries: an application must keep a snapshot, or fide group trim drops them"
                )))
            }
            Some(member) => {
                let value = Record::Value { client, number, bytes }.to_value();
                member.propose(now_ns, value).map(|_| ()).map_err(|why| refused(name, why))
            }
            None => Ok(()),
        };
        if matches!(taken, Err(Error::Busy(_))) && !group.has_under_way(client) {
            group.turn.get_or_insert((client, now_ns + TURN_NS));
        }
        taken?;
        group.took(client, number);
        group.turn = group.turn.filter(|(next, _)| *next != client);
        self.stirred = true;
        self.settle(now_ns);
        Ok(())
    }

    /// The application's state behind this entry: what lies before is not kept any more.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an entry that is not kept.
    pub fn keep_snapshot(&mut self, name: &str, index: u64, state: impl Into<Builder>) -> Result<(), Error> {
        let state = state.into();
        let Config { node, incarnation, inline_max, .. } = self.config;
        let refused = match self.running(name) {
            Ok(_) if state.len() <= SNAPSHOT_MAX => None,
            Ok(_) => Some(Error::Invalid(format!("a snapshot has at most {SNAPSHOT_MAX} bytes"))),
            Err(error) => Some(error),
        };
        if let Some(error) = refused {
            // To drop it takes long where it is large: that is for whoever holds states.
            self.events.push_back(Event::Release(state.into_large(LargeId { node, incarnation, serial: 0 })));
            return Err(error);
        }
        let (state, large) = if state.len() <= inline_max as u64 {
            (AppState::Bytes(state.into_bytes()), None)
        } else {
            self.states += 1;
            let large = state.into_large(LargeId { node, incarnation, serial: self.states });
            (AppState::Large(large.at()), Some(large))
        };
        let Some(group) = self.names.get(name).and_then(|generation| self.groups.get_mut(generation)) else { return Ok(()) };
        let message = Message::Kept { generation: group.plan.generation, index, state: state.clone() };
        if !group.keep(index, state, large.clone(), &mut self.events) {
            self.events.extend(large.map(Event::Release));
            return Err(Error::Invalid(format!("entry {index} of {name} is not kept here")));
        }
        // Others may have no application of their own.
        let log = group.member.as_ref().map(Member::log);
        let alive = log.into_iter().flat_map(|log| log.members().iter().filter(|member| !log.crashed().contains(*member)));
        let nodes: BTreeSet<u32> = alive.filter_map(|member| group.binding(member)).map(|binding| binding.node).collect();
        for node in nodes.into_iter().filter(|of| *of != node) {
            let _ = self.tell(node, &message);
        }
        Ok(())
    }

    // ---- the disk -------------------------------------------------------------------------------

    /// What this node's disk has of a group, before anything else is asked of it.
    pub fn handle_saved(&mut self, name: &str, saved: Saved) {
        self.saved.insert(name.into(), saved);
    }

    /// This node's disk may have logs that cannot be read: durable groups do not run here, and
    /// begin nowhere without what it has.
    pub fn handle_unreadable(&mut self, why: String) {
        self.unreadable = Some(why);
    }

    /// A [`Write`] of this group is on disk.
    pub fn handle_written(&mut self, name: &str, generation: u64, index: u64) {
        if let Some(group) = self.named_mut(name).filter(|group| group.plan.generation == generation) {
            group.written = group.written.max(index);
            group.writes = group.writes.saturating_sub(1);
        }
        let group = self.names.get(name).and_then(|generation| self.groups.get_mut(generation));
        group.into_iter().for_each(|group| hand_out(group, &mut self.saved, &mut self.events));
    }

    /// The disk did not take a [`Write`], and nothing that was to be written behind it: all logs
    /// are to be written whole.
    pub fn handle_unwritten(&mut self, now_ns: u64) {
        for group in self.groups.values_mut().filter(|group| group.plan.durable) {
            (group.handed, group.writes, group.unwritten) = (None, 0, None);
        }
        self.settle(now_ns);
    }

    // ---- what arrives ---------------------------------------------------------------------------------------------------

    /// A node lives, in this incarnation, and its agent since its incarnation `first`. Its former ones are over, and their
    /// members with them, but for those that outlive incarnations of one agent.
    pub fn handle_life(&mut self, now_ns: u64, node: u32, incarnation: u32, first: u32) {
        self.nodes.insert(node);
        if self.links.life(node).is_some_and(|life| life >= incarnation) {
            return;
        }
        self.links.handle_life(node, incarnation);
        self.agents.insert(node, (first.min(incarnation), incarnation));
        // What was asked of its former life is not answered, and nothing that ran in it is left.
        self.answers_no_more(now_ns, node);
        self.foreign.remove(&node);
        self.closed.remove(&node);
        self.rode.remove(&node);
        let Self { groups, agents, .. } = self;
        for group in groups.values_mut() {
            group.forsaken(now_ns, node);
            group.note_agents(agents);
            let is_one = |about: &MemberId| group.outlives() && group.is_bound(*about, node);
            let go_on: Vec<MemberId> = group.goes_on.keys().copied().filter(is_one).collect();
            for about in go_on {
                if let Some(member) = &mut group.member {
                    member.handle_alive(now_ns, about);
                }
            }
            for about in group.members_of(node, incarnation.saturating_sub(1)) {
                if let Some(member) = &mut group.member {
                    member.handle_verdict(now_ns, about, Cause::Exited, Grade::Certain);
                }
            }
        }
        self.settle(now_ns);
    }

    /// A node that was out of reach, and taken for silent, is heard again in the same incarnation. Behind [`Groups::begin_incarnation`]:
    /// the links of both begin anew with that.
    pub fn handle_heard_again(&mut self, now_ns: u64, node: u32, incarnation: u32) {
        let known = self.agents.get(&node).filter(|(_, last)| *last == incarnation);
        let first = known.map_or(incarnation, |(first, _)| *first);
        if self.ended.get(&node) == Some(&incarnation) {
            self.ended.remove(&node);
        }
        self.handle_life(now_ns, node, incarnation, first);
    }

    /// A verdict of the detector about a node, in this incarnation, or about this node itself.
    pub fn handle_verdict(&mut self, now_ns: u64, node: u32, incarnation: u32, cause: Cause, grade: Grade) {
        // A member is its node's agent: without it nothing of the member runs.
        let cause = if cause == Cause::AgentLost { Cause::SilentHost } else { cause };
        if cause.ends_process() && self.links.life(node).is_some_and(|life| life <= incarnation) {
            self.nodes.remove(&node);
            self.links.forget(node);
            self.groups.values_mut().for_each(|group| group.forsaken(now_ns, node));
            self.answers_no_more(now_ns, node);
        }
        if cause.ends_process() && !cause.is_about_observer() {
            let ended = self.ended.entry(node).or_default();
            *ended = incarnation.max(*ended);
        }
        for group in self.groups.values_mut() {
            let about = match (cause.is_about_observer(), group.me) {
                (true, Some(me)) => vec![me],
                (true, None) => Vec::new(),
                (false, _) => group.members_of(node, incarnation),
            };
            for about in about {
                if let Some(member) = &mut group.member {
                    member.handle_verdict(now_ns, about, cause, grade);
                }
            }
        }
        self.settle(now_ns);
    }

    /// This life of a node is cut off: it neither runs nor sends.
    pub fn handle_fenced(&mut self, now_ns: u64, node: u32, incarnation: u32) {
        for group in self.groups.values_mut() {
            for about in group.members_of(node, incarnation) {
                if let Some(member) = &mut group.member {
                    member.handle_fenced(now_ns, about);
                }
            }
        }
        self.settle(now_ns);
    }

    /// The witness answers about this life of a node: to all groups that asked.
    pub fn handle_witness(&mut self, now_ns: u64, node: u32, incarnation: u32, answer: Answer) {
        for group in self.groups.values_mut() {
            for about in group.members_of(node, incarnation) {
                if let Some(member) = &mut group.member {
                    member.handle_witness(now_ns, about, answer);
                }
            }
        }
        self.settle(now_ns);
    }

    /// See [`Config::witness_ns`]: from now on. Groups that run go on without one, and every answer
    /// is a refusal then.
    pub fn set_witness(&mut self, witness_ns: Option<u64>) {
        self.config.witness_ns = witness_ns;
        for member in self.groups.values_mut().filter_map(|group| group.member.as_mut()) {
            member.set_witness_timeout(witness_ns.unwrap_or(0));
        }
    }

    /// Others gave this node up, or it begins anew: all its members are over, before anybody hears of the new life, but for those that
    /// outlive incarnations.
    pub fn begin_incarnation(&mut self, now_ns: u64, incarnation: u32) {
        self.stop(now_ns);
        self.config.incarnation = incarnation;
        let first = self.agents.get(&self.config.node).map_or(incarnation, |(first, _)| *first);
        self.agents.insert(self.config.node, (first, incarnation));
        self.links.begin_incarnation(incarnation);
        self.closed.clear();
        let Self { groups, agents, config, .. } = self;
        for group in groups.values_mut() {
            group.note_agents(agents);
            let goes_on = group.me.filter(|me| group.outlives() && group.is_bound(*me, config.node));
            if let (Some(member), Some(me)) = (&mut group.member, goes_on) {
                let bind = Record::Binding(Binding { member: me, node: config.node, incarnation }).to_value();
                // A log with no room has it later, or never: it is needed for a switch of the engine alone.
                let _ = member.propose(now_ns, bind);
            }
        }
        self.settle(now_ns);
    }

    /// This node ends politely. Of two members of `raft` the other one could decide nothing without
    /// this one, whose log and vote are in its memory: it leaves, while both can still decide that.
    /// Says whether that is under way ([`Groups::is_departing`]).
    pub fn depart(&mut self, now_ns: u64) -> bool {
        // Of a durable one the disk has everything; if both left, the log would be dropped.
        let can_leave = |group: &&mut Group| group.stage == Stage::Running && !group.leaves && !group.plan.durable;
        for group in self.groups.values_mut().filter(can_leave) {
            let is_one_of_two = |log: &Log| log.is_running() && log.kind() == Kind::Raft && log.members().len() == 2;
            if let Some(member) = group.member.as_mut().filter(|member| is_one_of_two(member.log())) {
                // Where nothing is decided now, the others find out as behind a crash.
                group.departs = member.leave(now_ns).is_ok();
            }
        }
        self.settle(now_ns);
        self.is_departing()
    }

    /// A member of this node has not left yet.
    #[must_use]
    pub fn is_departing(&self) -> bool {
        self.groups.values().any(|group| group.departs && group.member.is_some())
    }

    /// This node's members may have been given up by the others: they do nothing from now on, and join again as new ones. Those that
    /// outlive incarnations go on.
    pub fn stop(&mut self, now_ns: u64) {
        for group in self.groups.values_mut() {
            let goes_on = group.outlives() && group.stage == Stage::Running;
            if let Some(member) = group.member.as_mut().filter(|_| !goes_on) {
                member.stop(Halted::Expelled);
            }
            (group.riding, group.held) = (None, None);
        }
        self.settle(now_ns);
    }

    /// A segment of `from`.
    ///
    /// # Errors
    /// See [`links::Refused`].
    pub fn handle_segment(&mut self, now_ns: u64, from: u32, incarnation: u32, body: &[u8]) -> Result<(), links::Refused> {
        let taken = self.links.handle_segment(now_ns, from, incarnation, body);
        while let Some((from, bytes)) = self.links.poll_message() {
            match bytes.split_first() {
                Some((&FORMAT, bytes)) => match postcard::from_bytes::<Message>(bytes) {
                    Ok(message) => self.handle_message(now_ns, from, message),
                    Err(_) => self.close_link(from),
                },
                Some((format, rest)) => self.other_format(now_ns, from, *format, !rest.is_empty()),
                None => self.close_link(from),
            }
        }
        if taken == Err(links::Refused::Closed) {
            self.close_link(from);
        }
        self.settle(now_ns);
        taken
    }

    /// A message of that node makes no sense, so one is missing: members that need every message stop, and nothing is taken from
    /// this life of it any more.
    fn close_link(&mut self, from: u32) {
        self.malformed += 1;
        self.links.close(from);
        if !self.closed.insert(from) {
            return;
        }
        self.events.push_back(Event::Closed { node: from });
        for group in self.groups.values_mut().filter(|group| is_of(group, from)) {
            if let Some(member) = group.member.as_mut().filter(|member| member.log().kind().needs_accuracy()) {
                member.stop(Halted::NetworkFault);
            }
        }
    }

    /// That node's build writes messages in another way: neither can be in a group of the other.
    fn other_format(&mut self, now_ns: u64, from: u32, format: u8, has_content: bool) {
        self.foreign.insert(from, format);
        if has_content {
            // It learns of ours by this byte alone, which every build understands.
            let _ = self.links.send(from, &[FORMAT]);
        }
        // It cannot have a group that this build could be in.
        self.answers_no_more(now_ns, from);
        let waits = |group: &Group| matches!(&group.stage, Stage::Preparing(waits_for) if waits_for.contains(&from));
        let failed: Vec<u64> = self.groups.iter().filter(|(_, group)| waits(group)).map(|(generation, _)| *generation).collect();
        for generation in failed {
            self.fail(now_ns, generation, other_build(from, format));
        }
        for group in self.groups.values_mut().filter(|group| group.stage == Stage::Joining && group.asked == Some(from)) {
            group.join_at_ns = now_ns.saturating_add(REFUSED_NS); // the next one
        }
    }

    /// All that rode on this heartbeat of `from` was handed in.
    pub fn handle_heartbeat(&mut self, now_ns: u64, from: u32, number: u64) {
        let last = self.rode.entry(from).or_default();
        *last = number.max(*last);
        self.answer_questions();
        self.settle(now_ns);
    }

    fn answer_questions(&mut self) {
        let Self { groups, rode, links, .. } = self;
        for (generation, group) in groups {
            let Some(log) = group.member.as_ref().map(Member::log) else {
                group.asked_of_us.clear();
                continue;
            };
            let bindings = group.state.bindings();
            group.asked_of_us.retain(|(member, number, question)| {
                if log.crashed().contains(*member) {
                    return false; // it is not any more
                }
                let Some(binding) = bindings.get(member) else { return false };
                let has_come = *number == 0 || rode.get(&binding.node).is_some_and(|last| last >= number);
                if has_come {
                    let answer = Message::YouAre { generation: *generation, member: *member, question: *question };
                    let _ = send(links, binding.node, &answer);
                }
                !has_come
            });
        }
    }

    /// An item of this channel on a heartbeat of `from`, the first copy.
    pub fn handle_ride(&mut self, now_ns: u64, from: u32, item: &[u8]) {
        let Some(came) = rides::read(item) else {
            self.malformed += 1;
            return;
        };
        let (generation, member) = match &came {
            Came::Whole(ride) => (ride.generation, ride.from),
            Came::Piece { generation, from, .. } => (*generation, *from),
        };
        self.begin_if_prepared(now_ns, generation);
        let Some(group) = self.groups.get_mut(&generation).filter(|group| group.is_bound(member, from)) else { return };
        let whole = match came {
            Came::Whole(ride) => Some(ride),
            Came::Piece { piece, .. } => group.piece_came(member, &piece),
        };
        let Some(ride) = whole.filter(|ride| (ride.generation, ride.from) == (generation, member)) else { return };
        if let Some(to) = &mut group.member {
            let _ = to.handle_piggyback(now_ns, member, ride.message);
            self.stirred = true;
        }
        self.settle(now_ns);
    }

    /// A frame of a broadcast of `from`, by this path, with its stamp and the time of its arrival,
    /// which may be before that of calls before.
    pub fn handle_copy(&mut self, arrival_ns: u64, from: u32, path: usize, sent_ns: u64, body: &[u8]) {
        let Some(came) = copies::read(body) else {
            self.malformed += 1;
            return;
        };
        let is_named = |group: &&Group| group.id == came.group;
        let Some(generation) = self.groups.values().find(is_named).map(|group| group.plan.generation) else { return };
        let epoch = came.generation.checked_sub(generation).and_then(|epoch| log::Epoch::try_from(epoch).ok());
        let Some(epoch) = epoch.filter(|_| path < fide_wire::PATHS) else { return };
        self.begin_if_prepared(arrival_ns, generation);
        let Some(group) = self.groups.get_mut(&generation).filter(|group| group.is_bound(came.from, from)) else { return };
        if let Some(to) = &mut group.member {
            if !group.copies.contains_key(&(came.from, path)) {
                let log = to.log();
                let bindings = group.state.bindings();
                group.copies.retain(|(member, _), _| bindings.contains_key(member) && !log.crashed().contains(*member));
            }
            let of_engine = group.copies.entry((came.from, path)).or_default().take(&came, sent_ns);
            let Some(body) = of_engine else { return };
            let _ = to.handle_copy(arrival_ns, came.from, path, log::Message::Engine { epoch, body });
            self.stirred = true;
        }
        self.settle(arrival_ns);
    }

    /// More than 80 lines: a list of all messages, each with what it needs.
    fn handle_message(&mut self, now_ns: u64, from: u32, message: Message) {
        match message {
            Message::Prepare { plan, begun } => self.prepare(now_ns, from, *plan, *begun),
            Message::Prepared { generation } | Message::Unknown { generation } => self.agreed(now_ns, generation, from),
            Message::Elsewhere { generation, name, mark, goes_on } => {
                if goes_on.is_some() {
                    self.listens_no_more(now_ns, &name);
                }
                let is_behind = goes_on.as_ref().is_none_or(|log| self.kept_log(&name).is_none_or(|own| own.is_behind(log)));
                let taken = self.named(&name).filter(|group| !group.is_void());
                let why = match (taken, mark) {
                    (Some(group), _) => Some(format!("it has a group {name} already, which is {}", group.stage.name())),
                    (None, _) if !is_behind => Some(format!("it keeps a log of {name} that may have more, and is to be asked")),
                    (None, Some(mark)) => self.later_than(&name, mark),
                    (None, None) => None,
                };
                let answer = why.map_or(Message::Unknown { generation }, |why| Message::Declined { generation, why });
                let _ = self.tell(from, &answer);
            }
            Message::Declined { generation, why } => {
                let asked = |group: &Group| matches!(&group.stage, Stage::Preparing(waits_for) if waits_for.contains(&from));
                if self.groups.get(&generation).is_some_and(asked) {
                    self.fail(now_ns, generation, format!("node {from:08x} refuses: {why}"));
                }
            }
            Message::Begin { generation } => {
                if self.groups.get(&generation).is_some_and(|group| group.coordinator == from) {
                    self.begin_if_prepared(now_ns, generation);
                }
            }
            Message::Abort { generation } => {
                let by_us = |group: &Group| group.stage == Stage::Prepared && group.coordinator == from;
                if self.groups.get(&generation).is_some_and(by_us) {
                    self.drop_group(generation);
                    self.settle(now_ns);
                }
            }
            Message::Join { name } => self.asked_to_join(now_ns, from, &name),
            Message::NoGroup { name, mark, kept } => {
                let Self { groups, names, nodes, .. } = self;
                if let Some(group) = names.get(&name).and_then(|generation| groups.get_mut(generation))
                    && group.stage == Stage::Joining
                    && group.asked == Some(from)
                {
                    group.denied.insert(from, (mark, *kept));
                    // The next one; when all were asked, a while later.
                    let is_over = nodes.iter().all(|node| group.denied.contains_key(node));
                    group.join_at_ns = if is_over { now_ns.saturating_add(JOIN_AGAIN_NS) } else { now_ns };
                    self.look_whether_to_resume(now_ns, &name);
                }
            }
            Message::Invite { plan, member, nodes } => self.invited(now_ns, from, (*plan, nodes), member),
            Message::Listening { generation, member } => self.let_in(now_ns, from, generation, member),
            Message::Void { generation, member } => {
                let Some(group) = self.groups.get_mut(&generation) else { return };
                let is_waiting = group.member.as_ref().is_some_and(|m| !m.log().is_running() && !m.log().is_leaving());
                if group.me == Some(member) && is_waiting {
                    (group.member, group.me) = (None, None);
                    group.stage = Stage::Joining;
                    group.join_at_ns = now_ns.saturating_add(REFUSED_NS);
                } else if group.me == Some(member) && group.outlives() && is_of(group, from) {
                    // They went on with another engine, to which this member was dead.
                    group.member.iter_mut().for_each(|member| member.stop(Halted::Expelled));
                }
            }
            Message::Log { generation, from: member, to, message } => {
                self.log_message(now_ns, from, (generation, member, to), message);
            }
            Message::LogToAll { generation, from: member, to, message } => {
                if let Some((_, to)) = to.into_iter().find(|(node, _)| *node == self.config.node) {
                    self.log_message(now_ns, from, (generation, member, to), message);
                }
            }
            Message::AmI { generation, member, number, question } => {
                let Some(group) = self.groups.get_mut(&generation).filter(|group| group.is_bound(member, from)) else { return };
                if group.asked_of_us.len() < 2 * MAX_MEMBERS {
                    group.asked_of_us.push((member, number, question));
                }
                self.answer_questions();
            }
            Message::YouAre { generation, member, question } => {
                let Some(group) = self.groups.get_mut(&generation).filter(|group| group.me == Some(member)) else { return };
                let by: Vec<MemberId> = group
                    .state
                    .bindings()
                    .values()
                    .filter(|binding| binding.node == from)
                    .map(|binding| binding.member)
                    .collect();
                if let Some(held) = group.held.as_mut().filter(|held| held.question == question) {
                    by.iter().for_each(|member| _ = held.waits_for.remove(member));
                }
            }
            Message::Kept { generation, index, state } => {
                let is_bound = |group: &&mut Group| group.state.bindings().values().any(|binding| binding.node == from);
                let Some(group) = self.groups.get_mut(&generation).filter(is_bound) else { return };
                match state {
                    // Who lags keeps what it has: the next one comes.
                    AppState::Bytes(_) => _ = group.keep(index, state, None, &mut self.events),
                    AppState::Large(at) if at.is_sane() && group.offered.is_none_or(|(of, _)| of < index) => {
                        group.offered = Some((index, at));
                    }
                    AppState::Large(_) => {}
                }
            }
            Message::Stable { generation, instance } => {
                let is_bound = |group: &&mut Group| group.state.bindings().values().any(|binding| binding.node == from);
                let Some(group) = self.groups.get_mut(&generation).filter(is_bound) else { return };
                group.stable = group.stable.max(instance);
            }
            Message::Over { generation, member } => {
                let Some(group) = self.groups.get_mut(&generation).filter(|group| group.is_bound(member, from)) else { return };
                group.forsaken(now_ns, from);
                if let Some(ours) = &mut group.member {
                    ours.handle_verdict(now_ns, member, Cause::Left, Grade::Certain);
                }
            }
        }
    }

    fn log_message(&mut self, now_ns: u64, node: u32, (generation, from, to): (u64, MemberId, MemberId), message: log::Message) {
        self.begin_if_prepared(now_ns, generation);
        let Some(group) = self.groups.get_mut(&generation) else {
            // It may be of a group that we want to join, of which we know the name only.
            let unnamed = self.groups.values_mut().find(|group| group.stage == Stage::Joining && group.plan.generation == 0);
            match unnamed.filter(|group| group.early.len() < EARLY_MAX) {
                Some(group) => group.early.push_back((generation, from, to, message)),
                None => _ = self.tell(node, &Message::Over { generation, member: to }),
            }
            return;
        };
        if !group.is_bound(from, node) {
            // A newcomer may be heard of before its binding is applied here, and is bound by its node alone.
            if group.state.bindings().contains_key(&from) || group.invited.len() >= MAX_MEMBERS {
                return;
            }
            let incarnation = self.links.life(node).unwrap_or(0);
            group.invited.insert(from, Binding { member: from, node, incarnation });
        }
        if group.me == Some(to) {
            if let Some(member) = &mut group.member {
                let log = member.log();
                if log.is_running() && log.kind().needs_accuracy() && log.crashed().contains(from) {
                    // It may not know: an engine that outlives incarnations is the last that it heard of.
                    let _ = send(&mut self.links, node, &Message::Void { generation, member: from });
                    return;
                }
                if let log::Message::Reached { epoch, instance } = &message
                    && group.behind.is_none_or(|(of, known, _)| (of, known) < (*epoch, *instance))
                {
                    group.behind = Some((*epoch, *instance, now_ns));
                }
                let _ = member.handle_message(now_ns, from, message);
                self.stirred = true;
                return;
            }
        } else if group.stage == Stage::Joining && group.me.is_none_or(|me| me < to) {
            // The invitation may be behind it.
            if group.early.len() < EARLY_MAX {
                group.early.push_back((generation, from, to, message));
            }
            return;
        }
        let _ = self.tell(node, &Message::Over { generation, member: to });
    }

    // ---- beginning ------------------------------------------------------------------------------------------------------

    /// Copies of rounds name their group by the hash of its name: two on one node must differ.
    fn has_own_hash(&self, name: &str) -> Result<(), String> {
        let id = fide_wire::name_id(name);
        let is_taken = |group: &&Group| group.id == id && group.plan.name != name && !group.is_void();
        let other = self.groups.values().find(is_taken);
        other.map_or(Ok(()), |other| {
            let of = &other.plan.name;
            Err(format!(
                "the names {name} and {of} have the same hash, {id:08x}, and node {:08x} has {of}: take another name",
                self.config.node
            ))
        })
    }

    /// Whether the configuration here says the same of a group that is to begin.
    fn is_as_configured(&self, plan: &Plan) -> Result<(), String> {
        let Plan { name, engine, policy, members, durable, .. } = plan;
        if let Some(Expectation { what, .. }) = self.expected.get(name) {
            let nodes: BTreeSet<u32> = what.nodes.iter().copied().collect();
            let same = members.iter().map(|binding| binding.node).collect::<BTreeSet<u32>>() == nodes;
            let suits = what.engine.is_none_or(|of| of == *engine) && what.policy.is_none_or(|of| of == *policy);
            if !suits || what.durable != *durable || !same {
                let hosts: Vec<String> = what.nodes.iter().map(|node| format!("node {node:08x}")).collect();
                return Err(format!(
                    "the configuration of node {:08x} has {name} with engine {}, policy {}, durable = {} and hosts {}, and not with engine \
                     {engine}, policy {policy}, durable = {durable} and these hosts: [[group]] must be the same on all of them",
                    self.config.node,
                    what.engine.map_or("unnamed", Kind::name),
                    what.policy.map_or("unnamed", Policy::name),
                    what.durable,
                    hosts.join(", ")
                ));
            }
        }
        Ok(())
    }

    fn may_begin(&self, plan: &Plan) -> Result<(), String> {
        let Plan { name, generation, engine, policy, members, durable, timing, .. } = plan;
        if let (true, Some(why)) = (*durable, &self.unreadable) {
            return Err(why.clone());
        }
        if *generation == 0 || self.groups.contains_key(generation) {
            return Err("its generation is another group's".into());
        }
        if let Err(why) = timing.check() {
            return Err(format!("its timing cannot be kept: {why}"));
        }
        can_be_name(name)?;
        self.has_own_hash(name)?;
        if members.is_empty() || members.len() > MAX_MEMBERS {
            return Err(format!("a group has 1 to {MAX_MEMBERS} members"));
        }
        let nodes: BTreeSet<u32> = members.iter().map(|binding| binding.node).collect();
        let is_sorted = members.is_sorted_by(|a, b| a.member < b.member) && members[0].member.0 > 0;
        if nodes.len() < members.len() || !is_sorted {
            return Err("a group has one member a host".into());
        }
        let ours = Binding { member: MemberId(0), node: self.config.node, incarnation: self.config.incarnation };
        if !members.iter().any(|binding| Binding { member: MemberId(0), ..*binding } == ours) {
            return Err("this host is not one of them".into());
        }
        if !policy.suits(*engine) {
            return Err(format!("{engine} cannot keep the policy {policy}"));
        }
        if let Some(why) = lacks_witness(self.config.node, self.config.witness_ns, *policy) {
            return Err(why);
        }
        self.has_place(name)
    }

    /// Whether there is room for a group of this name. Those of the configuration have theirs, also before they are there.
    fn has_place(&self, name: &str) -> Result<(), String> {
        let absent = self.expected.keys().filter(|expected| !self.names.contains_key(*expected)).count();
        if self.names.contains_key(name) || self.expected.contains_key(name) || self.groups.len() + absent < GROUPS_MAX {
            return Ok(());
        }
        Err(format!("at most {GROUPS_MAX} groups on one host, those of its configuration among them"))
    }

    /// Places of groups that are taken, or kept for those of the configuration, but for the one of
    /// this name.
    #[must_use]
    pub fn places_beside(&self, name: &str) -> usize {
        let is_absent = |expected: &&String| *expected != name && !self.names.contains_key(*expected);
        let taken = self.groups.values().filter(|group| group.plan.name != name).count();
        taken + self.expected.keys().filter(is_absent).count()
    }

    /// What was left is forgotten, and its place is free.
    fn drop_left(&mut self, generation: u64) {
        if let Some(group) = self.groups.get_mut(&generation) {
            self.events.extend(group.large.take().into_iter().chain(group.former.take()).map(Event::Release));
        }
        self.drop_group(generation);
    }

    fn prepare(&mut self, now_ns: u64, from: u32, plan: Plan, begun: From) {
        let generation = plan.generation;
        let later = match &begun {
            From::Nothing => None,
            From::Log(mark, _) => Some(&plan.name).filter(|_| plan.durable).and_then(|name| self.later_than(name, *mark)),
            From::Again(set, mark, _) => self.not_again(&plan, *set, *mark),
            From::Kept { anyway: true, .. } => None,
            From::Kept { log, saved, .. } => self.contradicts(&plan.name, log, saved),
        };
        if self.groups.get(&generation).is_some_and(|group| group.plan == plan && group.coordinator == from) {
            return;
        }
        if matches!(begun, From::Kept { .. }) {
            self.listens_no_more(now_ns, &plan.name);
        }
        let keeps = self.kept_log(&plan.name).filter(|_| !plan.durable && matches!(begun, From::Log(..) | From::Again(..)));
        let later = later.or_else(|| {
            let index = keeps?.index;
            Some(format!(
                "it keeps a log of {}, of {index} entries: go on with that (fide group resume), or begin an empty one (--fresh)",
                plan.name
            ))
        });
        let taken = self.named(&plan.name).filter(|group| !group.is_void());
        let refused = match taken {
            Some(group) => Err(format!("it has a group {} already, which is {}", plan.name, group.stage.name())),
            // One that goes on may have another engine by now, and fewer members.
            None => match (later, &begun) {
                (Some(why), _) => Err(why),
                (None, From::Kept { .. }) => self.may_begin(&plan),
                (None, _) => self.is_as_configured(&plan).and_then(|()| self.may_begin(&plan)),
            },
        };
        if let Err(why) = refused {
            self.begin_failed(now_ns, &plan.name, format!("node {from:08x} would begin it: {why}"));
            let _ = self.tell(from, &Message::Declined { generation, why });
            return;
        }
        let nodes = self.first_nodes(&plan, &begun);
        let mut group = Group::new(now_ns, plan, Stage::Prepared, from);
        group.nodes = nodes;
        group.saved = begun.into_saved();
        group.deadline_ns = now_ns.saturating_add(PREPARED_NS);
        self.keep(generation, group);
        let _ = self.tell(from, &Message::Prepared { generation });
    }

    /// Why this node is not in a group that begins again by itself: it has left it, or knows of a later
    /// set.
    fn not_again(&self, plan: &Plan, set: Mark, log: Option<Mark>) -> Option<String> {
        let name = &plan.name;
        match self.last_sets.get(name) {
            None => Some(format!("it does not remember {name}, or has left it")),
            Some(own) if own.set.mark > set => Some(format!("it knows of later members of {name}")),
            Some(_) => plan.durable.then(|| self.later_than(name, log)).flatten(),
        }
    }

    /// A node that was asked before a group begins has nothing against it.
    fn agreed(&mut self, now_ns: u64, generation: u64, node: u32) {
        let Some(group) = self.groups.get_mut(&generation) else { return };
        if let Stage::Preparing(waits_for) = &mut group.stage
            && waits_for.remove(&node)
            && waits_for.is_empty()
        {
            self.begin(now_ns, generation);
        }
    }

    /// A node that is asked before a group begins will not answer: without it the group begins,
    /// unless it was to be one of its nodes.
    fn answers_no_more(&mut self, now_ns: u64, node: u32) {
        let waits = |group: &Group| {
            let is_member = group.plan.members.iter().any(|binding| binding.node == node);
            matches!(&group.stage, Stage::Preparing(waits_for) if waits_for.contains(&node) && !is_member)
        };
        let waiting: Vec<u64> = self.groups.iter().filter(|(_, group)| waits(group)).map(|(generation, _)| *generation).collect();
        waiting.into_iter().for_each(|generation| self.agreed(now_ns, generation, node));
    }

    /// Why a log that goes as far as `mark` is not to be begun with: this node's disk has a later
    /// one.
    fn later_than(&self, name: &str, mark: Option<Mark>) -> Option<String> {
        let ours = self.saved.get(name)?.mark();
        (mark < Some(ours)).then(|| {
            let (length, theirs) = (ours.position, mark.map_or(0, |mark| mark.position));
            format!(
                "its disk has a later log of {name}, of {length} entries, than the one that would be begun with, of {theirs}: create it on \
                 that host, or begin an empty one (--fresh)"
            )
        })
    }

    /// That some disk has a later log of a durable group than this one, as far as its node has said so.
    fn later_on_disk(&self, name: &str, mark: Mark) -> Option<String> {
        if let Some(own) = self.later_than(name, Some(mark)) {
            return Some(own);
        }
        let denied = &self.named(name)?.denied;
        let (node, length) = denied.iter().find_map(|(node, (of, _))| Some((node, of.filter(|of| *of > mark)?.position)))?;
        Some(format!(
            "the disk of node {node:08x} has a later log of {name}, of {length} entries: fide group create --durable there goes on with it"
        ))
    }

    fn begin_if_prepared(&mut self, now_ns: u64, generation: u64) {
        if self.groups.get(&generation).is_some_and(|group| group.stage == Stage::Prepared) {
            self.begin(now_ns, generation);
        }
    }

    fn begin(&mut self, now_ns: u64, generation: u64) {
        let (node, make, config, gate) = (self.config.node, self.config.make.clone(), self.config.log, self.config.clone());
        let Some(group) = self.groups.get_mut(&generation) else { return };
        let plan = &group.plan;
        let Some(me) = plan.members.iter().find(|binding| binding.node == node).map(|binding| binding.member) else { return };
        let members = plan.members.iter().map(|binding| binding.member).collect();
        let (policy, timing) = (plan.policy, plan.timing);
        let build = Box::new(move |setup: &Setup| make(setup, policy, &timing));
        let others: Vec<u32> = plan.members.iter().map(|binding| binding.node).filter(|of| *of != node).collect();
        let coordinates = group.coordinator == node;
        match Log::new(now_ns, me, plan.engine, members, config, build) {
            Ok(mut log) => {
                if let Some(Saved { snapshot_position, snapshot, entries, large, .. }) = group.saved.take() {
                    log.go_on_from(snapshot_position, snapshot, entries);
                    group.hold(large, &mut self.events);
                }
                group.member = Some(Member::new(now_ns, log, gate_config(&gate, policy)));
                (group.me, group.stage, group.is_begun) = (Some(me), Stage::Running, true);
                (group.deadline_ns, group.since_ns) = (u64::MAX, now_ns);
            }
            Err(_) => {
                let what = format!("engine {} is not built in here, or not for these members", plan.engine);
                return self.fail(now_ns, generation, what);
            }
        }
        self.stirred = true;
        if coordinates {
            for to in others {
                let _ = self.tell(to, &Message::Begin { generation });
            }
        }
    }

    fn fail(&mut self, now_ns: u64, generation: u64, why: String) {
        let Some(group) = self.groups.get_mut(&generation) else { return };
        let nodes: Vec<u32> = group.plan.members.iter().map(|binding| binding.node).collect();
        let ours = self.config.node;
        let coordinates = group.coordinator == ours;
        // Of a group that never was here nothing is left to be looked at.
        let never_was = matches!(group.stage, Stage::Preparing(_)) || group.plan.generation == 0;
        group.stage = Stage::Failed(why.clone());
        // A log that is kept stays until somebody decides.
        let within_ns = if never_was { FAILED_NS } else { LEFT_NS };
        group.deadline_ns = if never_was || group.kept.is_none() { now_ns.saturating_add(within_ns) } else { u64::MAX };
        group.join_at_ns = u64::MAX;
        for node in nodes.into_iter().filter(|node| coordinates && *node != ours) {
            let _ = self.tell(node, &Message::Abort { generation });
        }
        self.events.push_back(Event::Changed { generation });
        // What this node was to begin by itself it tries again.
        if let Some(group) = self.groups.get(&generation) {
            // Its applications' state is lost, or it cannot run here: as if it had left.
            if !never_was {
                self.last_sets.remove(&group.plan.name);
            } else if let Some(remembered) = self.last_sets.get_mut(&group.plan.name) {
                remembered.refused(now_ns, why.clone());
            }
        }
        let by_itself = |group: &Group| group.resumes && never_was;
        if let Some(name) = self.groups.get(&generation).filter(|group| by_itself(group)).map(|group| group.plan.name.clone()) {
            self.drop_group(generation);
            self.restore_former(now_ns);
            if let Some(group) = self.named_mut(&name) {
                group.stays = format!(
                    "all its members stopped, and with this host's log it does not go on: {why}; fide group resume decides"
                );
            }
        }
    }

    // ---- going on ------------------------------------------------------------------------------

    /// The group of this name whose log this node keeps.
    fn kept_group(&self, name: &str) -> Option<&Group> {
        self.named(name).filter(|group| group.kept.is_some()).or_else(|| self.former.get(name))
    }

    fn kept_log(&self, name: &str) -> Option<&KeptLog> {
        self.kept_group(name)?.kept.as_ref()
    }

    /// What this node keeps of a group that it does not run.
    #[must_use]
    pub fn kept_of(&self, name: &str) -> Kept {
        let last_set = self.last_sets.get(name).map(|of| of.set.clone());
        Kept { log: self.kept_log(name).cloned(), unborn: self.unborn.get(name).cloned(), last_set }
    }

    /// The log of a group is kept while this node is to be a member again.
    fn keep_former(&mut self, group: Group) {
        let mark = |group: &Group| group.kept.as_ref().map(KeptLog::mark);
        let name = group.plan.name.clone();
        let is_behind = self.former.get(&name).is_some_and(|former| mark(former) > mark(&group));
        let dropped = if is_behind { Some(group) } else { self.former.insert(name, group) };
        if let Some(group) = dropped {
            self.events.extend(group.large.into_iter().chain(group.former).map(Event::Release));
        }
    }

    /// Nobody here wants that log any more.
    fn forget_former(&mut self, name: &str) {
        self.unborn.remove(name);
        if let Some(group) = self.former.remove(name) {
            self.events.extend(group.large.into_iter().chain(group.former).map(Event::Release));
        }
    }

    /// A member that only listens, and was to be let in, takes no part in what is begun now without
    /// those that it listens to.
    fn listens_no_more(&mut self, now_ns: u64, name: &str) {
        if let Some(group) = self.named_mut(name).filter(|group| group.stage == Stage::Joining)
            && group.member.as_ref().is_some_and(|member| !member.log().is_running())
        {
            (group.member, group.me, group.deadline_ns) = (None, None, u64::MAX);
            group.join_at_ns = now_ns.saturating_add(JOIN_AGAIN_NS);
        }
    }

    /// Whether nobody runs this group any more, and this node is to go on with its log.
    fn look_whether_to_resume(&mut self, now_ns: u64, name: &str) {
        let (ours, own) = (self.config.node, self.kept_of(name));
        let Some(group) = self.named(name).filter(|group| group.stage == Stage::Joining && group.member.is_none()) else {
            return;
        };
        // Who has not answered may run it, or keep the log that it is to go on with.
        let has_answered = |node: &u32| group.denied.contains_key(node) || self.foreign.contains_key(node);
        if !self.candidates(group).iter().all(has_answered) {
            return;
        }
        let heard = group.denied.iter().filter(|(node, _)| self.nodes.contains(node));
        let mut kept: BTreeMap<u32, Kept> = heard.map(|(node, (_, kept))| (*node, kept.clone())).collect();
        kept.insert(ours, own);
        let found = resume::rule(&kept);
        let index = kept.values().filter_map(|kept| kept.log.as_ref()).map(|log| log.index).max().unwrap_or(0);
        let Some(group) = self.names.get(name).and_then(|generation| self.groups.get_mut(generation)) else { return };
        let stays = match found {
            Ok(GoesOn { node, nodes, without }) => {
                // What the others know this node knows from now on: who is asked may be one of these.
                let own = if group.kept.is_some() {
                    group.kept.as_mut()
                } else {
                    self.former.get_mut(name).and_then(|g| g.kept.as_mut())
                };
                if let Some(own) = own.filter(|_| node == ours) {
                    own.members.retain(|member, _| !without.contains(member));
                }
                if node == ours && now_ns >= group.resume_at_ns {
                    group.resume_at_ns = now_ns.saturating_add(BEGIN_AGAIN_NS);
                    self.events.push_back(Event::Resume { name: name.into(), nodes });
                }
                if node == ours {
                    return;
                }
                let is_known = group.stays.contains("is to go on");
                if is_known { return } else { format!("all its members stopped, and node {node:08x} is to go on with its log") }
            }
            Err(Stays::NoLog) => String::new(),
            Err(Stays::Missing(nodes)) => {
                let have_lost = nodes.iter().all(|node| kept.contains_key(node));
                let nodes: Vec<String> = nodes.iter().map(|node| format!("node {node:08x}")).collect();
                let hold = kept.iter().filter(|(_, kept)| kept.log.is_some()).map(|(node, _)| format!("node {node:08x}"));
                let hold: Vec<String> = hold.collect();
                format!(
                    "all its members stopped; {} hold its log, of {index} entries, and {} may have more{}",
                    hold.join(", "),
                    nodes.join(", "),
                    if have_lost {
                        " that is lost with its memory: fide group resume goes on without it"
                    } else {
                        ": it goes on when that is back, or without it (fide group resume)"
                    }
                )
            }
            Err(Stays::Differ(one, other)) => format!(
                "all its members stopped, and node {one:08x} and node {other:08x} both went on without the other one: say with whose log it \
                 goes on (fide group resume)"
            ),
        };
        if group.stays != stays {
            group.stays = stays;
            let generation = group.plan.generation;
            self.events.push_back(Event::Changed { generation });
        }
    }

    /// What [`Event::Resume`] asked for cannot be now, and why.
    pub fn resume_failed(&mut self, name: &str, why: &str) {
        if let Some(group) = self.named_mut(name).filter(|group| group.stage == Stage::Joining) {
            group.stays = format!("all its members stopped, and with this host's log it does not go on yet: {why}");
        }
    }

    /// Why a group does not go on with this log: it lacks what was told here, or this node's is later.
    fn contradicts(&self, name: &str, log: &KeptLog, offered: &Saved) -> Option<String> {
        if let Some(later) = self.later_than(name, Some(log.mark())) {
            return Some(later);
        }
        let group = self.kept_group(name)?;
        let own = group.kept.as_ref()?;
        if own.generation > log.generation {
            return Some(format!("it keeps a later log of {name}, of {} entries", own.index));
        }
        if own.generation < log.generation {
            return None;
        }
        let found = group.difference(offered, own.lineage == log.lineage)?;
        let Difference { index, count, .. } = found;
        Some(format!(
            "its applications were told {count} entries of {name}, from {index} on, that the log to go on with has not got"
        ))
    }

    /// Groups whose log this node keeps: they are members again, or another one of their name did not begin.
    fn look_at_former(&mut self, now_ns: u64) {
        if self.former.is_empty() && self.unborn.is_empty() {
            return;
        }
        let has_all = |group: &Group| group.stage == Stage::Running && group.missing().is_none();
        let concerned = self.former.keys().chain(self.unborn.keys());
        let runs: BTreeSet<String> = concerned.filter(|name| self.named(name).is_some_and(has_all)).cloned().collect();
        for name in runs {
            self.unborn.remove(&name);
            let (Some(former), Some(group)) = (self.former.remove(&name), self.named(&name)) else { continue };
            let now = group.saved_through(group.state.position());
            let is_same = former.plan.lineage == group.plan.lineage;
            let generation = group.plan.generation;
            if let Some(what) = former.difference(&now, is_same) {
                self.events.push_back(Event::Differs { generation, what });
            }
            self.events.extend(former.large.into_iter().chain(former.former).map(Event::Release));
        }
        self.restore_former(now_ns);
    }

    /// Where a group has no other one of its name in its place, it is looked for again.
    fn restore_former(&mut self, now_ns: u64) {
        let free: Vec<String> = self.former.keys().filter(|name| !self.names.contains_key(*name)).cloned().collect();
        for name in free {
            let Some(mut former) = self.former.remove(&name) else { continue };
            former.stage = Stage::Joining;
            (former.asked, former.join_at_ns) = (None, now_ns.saturating_add(JOIN_AGAIN_NS));
            // What was refused once is refused until something happens.
            former.resume_at_ns = now_ns.saturating_add(BEGIN_AGAIN_NS << former.refusals);
            former.refusals = (former.refusals + 1).min(REFUSALS_MAX);
            former.denied.clear();
            let generation = former.plan.generation;
            self.names.insert(name, generation);
            self.groups.insert(generation, former);
            self.events.push_back(Event::Changed { generation });
        }
    }

    // ---- joining --------------------------------------------------------------------------------------------------------

    /// Asks the next host to be let in.
    fn ask_to_join(&mut self, now_ns: u64, generation: u64) {
        let Some(group) = self.groups.get(&generation) else { return };
        let name = group.plan.name.clone();
        let candidates = self.candidates(group);
        let behind = group.asked.and_then(|asked| candidates.iter().find(|node| **node > asked));
        let next = behind.or(candidates.first()).copied();
        let Some(group) = self.groups.get_mut(&generation) else { return };
        if candidates.iter().all(|node| group.denied.contains_key(node)) {
            group.denied.clear();
        }
        group.asked = next;
        group.join_at_ns = now_ns.saturating_add(JOIN_AGAIN_NS);
        if let Some(next) = next {
            let _ = self.tell(next, &Message::Join { name });
        }
    }

    /// Who may run this group: those of whom it is known that they are members, if any of them is heard.
    fn candidates(&self, group: &Group) -> Vec<u32> {
        let bound: BTreeSet<u32> = group.state.bindings().values().map(|binding| binding.node).collect();
        let may = |node: &u32| bound.is_empty() || bound.contains(node) || !bound.iter().any(|b| self.nodes.contains(b));
        self.nodes.iter().copied().filter(may).collect()
    }

    fn asked_to_join(&mut self, now_ns: u64, from: u32, name: &str) {
        let incarnation = self.links.life(from).unwrap_or(0);
        let is_durable = self.expected.get(name).is_some_and(|of| of.what.durable)
            || self.last_sets.get(name).is_some_and(|of| of.set.durable);
        if self.unreadable.is_some() && is_durable {
            return; // who knows how far its log goes
        }
        let Some(group) = self.named_mut(name).filter(|group| group.stage == Stage::Running) else {
            let mark = self.saved.get(name).map(Saved::mark);
            let kept = Box::new(self.kept_of(name));
            let _ = self.tell(from, &Message::NoGroup { name: name.into(), mark, kept });
            return;
        };
        let Some(log) = group.member.as_ref().map(Member::log).filter(|log| log.is_running()) else { return };
        let invited = group.invited.values().find(|b| b.node == from && b.incarnation == incarnation).map(|b| b.member);
        let member = match invited {
            Some(member) if member > log.highest() => member,
            // The ids of a log are used once: behind the last one it takes no member any more.
            _ => match log.highest().max(group.invited.keys().copied().max().unwrap_or(MemberId(0))).0.checked_add(1) {
                Some(next) => MemberId(next),
                None => return,
            },
        };
        group.invited.retain(|_, binding| binding.node != from);
        group.invited.insert(member, Binding { member, node: from, incarnation });
        group.plan.engine = log.kind();
        let mut plan = group.plan.clone();
        plan.members = group.state.bindings().values().chain(group.invited.get(&member)).copied().collect();
        let nodes = group.nodes.clone();
        let _ = now_ns;
        let _ = self.tell(from, &Message::Invite { plan: Box::new(plan), member, nodes });
    }

    fn invited(&mut self, now_ns: u64, from: u32, (plan, mut nodes): (Plan, Vec<u32>), me: MemberId) {
        let (node, incarnation) = (self.config.node, self.config.incarnation);
        let ours = Binding { member: me, node, incarnation };
        let Some(known) = self.names.get(&plan.name).copied() else { return };
        let Some(group) = self.groups.get(&known) else { return };
        let expected = group.stage == Stage::Joining && group.asked == Some(from) && group.member.is_none();
        let before = group.plan.generation;
        let is_sane = plan.members.contains(&ours)
            && plan.members.len() <= 1 << 16
            && me.0 > 0
            && plan.generation > 0
            && plan.timing.check().is_ok()
            && nodes.len() <= last_set::NODES_MAX;
        let is_taken = plan.generation != known && self.groups.contains_key(&plan.generation);
        if !expected || !is_sane || is_taken || plan.generation < before {
            return;
        }
        if let Some(expectation) = self.expected.get_mut(&plan.name)
            && let Some(wanted) = expectation.what.policy.filter(|policy| *policy != plan.policy)
        {
            expectation.trouble =
                format!("it runs on node {from:08x} with policy {}, and the configuration here says {wanted}", plan.policy);
            return;
        }
        if let Some(why) = lacks_witness(node, self.config.witness_ns, plan.policy) {
            return self.fail(now_ns, known, why);
        }
        // Nothing is taken from that node, so a member that needs every message of it would wait for ever, and the others for it.
        let closed = plan.members.iter().find(|binding| self.closed.contains(&binding.node));
        if let Some(closed) = closed.filter(|_| plan.engine.needs_accuracy()) {
            let stays =
                format!("node {:08x} sent what no agent sends: it joins when the agent there has begun anew", closed.node);
            if let Some(group) = self.groups.get_mut(&known) {
                group.stays = stays;
            }
            return;
        }
        let generation = plan.generation;
        let (make, policy, config, gate) = (self.config.make.clone(), plan.policy, self.config.log, self.config.clone());
        let timing = plan.timing;
        let mut group = Group::new(now_ns, plan, Stage::Joining, from);
        let mut seen = BTreeSet::new();
        nodes.retain(|node| seen.insert(*node));
        group.nodes = nodes;
        if let Some(mut old) = self.groups.remove(&known) {
            if before == generation {
                group.halted = old.halted;
                group.setbacks = old.setbacks;
                group.troubled = std::mem::take(&mut old.troubled);
            }
            group.early = std::mem::take(&mut old.early);
            group.asked = old.asked;
            if old.kept.is_some() {
                (group.large, group.former) = (old.large.clone(), old.former.clone());
                self.keep_former(old);
            } else {
                (group.large, group.former) = (old.large, old.former);
            }
        }
        note_unborn(&mut self.unborn, &group.plan, me);
        let build = Box::new(move |setup: &Setup| make(setup, policy, &timing));
        group.me = Some(me);
        group.member = Some(Member::new(now_ns, Log::join(me, config, build), gate_config(&gate, policy)));
        group.deadline_ns = now_ns.saturating_add(INVITED_NS);
        for (of, member, to, message) in std::mem::take(&mut group.early) {
            if (of, to) == (generation, me)
                && let Some(ours) = &mut group.member
            {
                let _ = ours.handle_message(now_ns, member, message);
            }
        }
        self.keep(generation, group);
        let _ = self.tell(from, &Message::Listening { generation, member: me });
    }

    fn let_in(&mut self, now_ns: u64, from: u32, generation: u64, id: MemberId) {
        let mut admit = || {
            let group = self.groups.get_mut(&generation)?;
            let binding = group.invited.get(&id).copied().filter(|binding| binding.node == from)?;
            let member = group.member.as_mut().filter(|member| member.log().is_running())?;
            let bind = Record::Binding(binding).to_value();
            let admitted = member.propose(now_ns, bind).and_then(|_| member.admit(now_ns, id));
            if admitted.is_err() {
                group.invited.remove(&id);
            }
            admitted.ok()
        };
        let is_admitted = admit().is_some();
        self.stirred = true;
        if !is_admitted {
            // It would wait in vain.
            let _ = self.tell(from, &Message::Void { generation, member: id });
        }
    }

    // ---- what leaves ----------------------------------------------------------------------------------------------------

    /// Adds what rides on the heartbeat that is about to leave to its body, which has `room` bytes
    /// in all: each group's, one behind the other.
    pub fn poll_rides(&mut self, now_ns: u64, room: usize, body: &mut Vec<u8>) {
        self.stirred = false;
        for group in self.groups.values_mut() {
            if group.poll_ride(now_ns)
                && let Some(riding) = &mut group.riding
            {
                riding.board(room, body);
            }
        }
        self.settle(now_ns);
    }

    /// Whether [`Groups::has_ride`] is worth asking: something came in since the last heartbeat.
    #[must_use]
    pub const fn is_stirred(&self) -> bool {
        self.stirred
    }

    /// Whether a heartbeat that leaves now would carry something.
    pub fn has_ride(&mut self, now_ns: u64) -> bool {
        if !std::mem::take(&mut self.stirred) {
            return false;
        }
        let mut has = false;
        for group in self.groups.values_mut() {
            has |= group.poll_ride(now_ns);
        }
        self.settle(now_ns);
        has
    }

    /// Bytes of rides of which a part has left: the rest should follow at once.
    #[must_use]
    pub fn midway(&self) -> usize {
        let riding = self.groups.values().filter(|group| group.held.is_none()).filter_map(|group| group.riding.as_ref());
        riding.map(Riding::midway).sum()
    }

    /// Whether the heartbeat that was last polled for carries part of a ride whose rest follows.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.groups.values().filter(|group| group.held.is_none()).any(|group| group.riding.as_ref().is_some_and(Riding::has_more))
    }

    /// The bytes of all rides that have begun to leave.
    #[must_use]
    pub fn ride_bytes(&self) -> usize {
        self.groups.values().filter_map(|group| group.riding.as_ref()).map(Riding::len).sum()
    }

    /// The heartbeat with what was last polled has left on all paths.
    pub fn handle_sent(&mut self, now_ns: u64) {
        for group in self.groups.values_mut() {
            // Of what is held nothing was aboard; it left before, and counts when the others have said that they got it.
            if group.held.is_some() || !group.riding.as_mut().is_some_and(Riding::handle_sent) {
                continue;
            }
            group.riding = None;
            if let Some(member) = &mut group.member {
                member.handle_piggyback_sent(now_ns);
                self.stirred = true;
            }
        }
        self.settle(now_ns);
    }

    /// This node was silent for long: see the head of this file. `number`: a heartbeat with what was last polled has left behind the silence; 0: none has.
    pub fn hold(&mut self, now_ns: u64, number: u64) {
        let Self { groups, links, questions, .. } = self;
        *questions += 1;
        for (generation, group) in groups {
            let is_aboard = if number == 0 {
                group.riding.iter_mut().for_each(Riding::leave_behind);
                false
            } else {
                group.held.is_none() && group.riding.as_mut().is_some_and(Riding::handle_sent)
            };
            let (Some(member), Some(me)) = (&group.member, group.me) else { continue };
            let log = member.log();
            if !log.is_running() {
                continue;
            }
            let others: BTreeSet<MemberId> =
                log.members().iter().filter(|other| *other != me && !log.crashed().contains(*other)).collect();
            // What an earlier silence holds back is held back by this one, too.
            let number = if is_aboard { number } else { group.held.as_ref().map_or(0, |held| held.number) };
            let question = *questions;
            for binding in others.iter().filter_map(|other| group.state.bindings().get(other)) {
                let _ = send(links, binding.node, &Message::AmI { generation: *generation, member: me, number, question });
            }
            group.held = Some(Held { number, question, waits_for: others });
        }
        self.settle(now_ns);
    }

    /// Whether something that goes out must leave by a deadline (the copies of LOWI's rounds), so
    /// that nothing else is done before it.
    #[must_use]
    pub fn has_deadlines(&self) -> bool {
        let is_lowi = |member: &Member| member.log().kind() == Kind::Lowi;
        self.groups.values().any(|group| group.member.as_ref().is_some_and(is_lowi))
    }

    /// The next frame to be sent, written into `body`.
    pub fn poll_frame(&mut self, now_ns: u64, body: &mut Vec<u8>) -> Option<Frame> {
        while self.copies.front().is_some_and(|leaving| now_ns > leaving.until_ns) {
            // This thread was held up between the round's stamp and now; of one in parts nobody has
            // all.
            self.handle_copies_sent(now_ns, Departure::Void);
        }
        if let Some(leaving) = self.copies.front_mut()
            && let Some(frame) = leaving.frames.pop_front()
        {
            *body = frame;
            return Some(Frame::Copies { sent_ns: leaving.sent_ns });
        }
        Some(match self.links.poll_segment(now_ns, body)? {
            links::Segment::To { node, is_again } => Frame::Segment { node, is_again },
            links::Segment::Shared { is_one_of_many } => Frame::Shared { is_one_of_many },
        })
    }

    /// A large state that this node has.
    #[must_use]
    pub fn large(&self, id: LargeId) -> Option<&Large> {
        let all = self.groups.values().chain(self.former.values()).flat_map(|group| [&group.large, &group.former]).flatten();
        all.into_iter().find(|large| large.at().id == id)
    }

    /// What became of [`Event::Fetch`].
    pub fn handle_fetched(&mut self, now_ns: u64, generation: u64, what: LargeId, fetched: Fetched) {
        let Some(group) = self.groups.get_mut(&generation) else { return };
        match fetched {
            Fetched::Whole(large) => {
                group.fetching.refused(what, false);
                group.fetched(large, &mut self.events);
                self.events.push_back(Event::Applied { generation });
            }
            Fetched::Missing => group.fetching.refused(what, true),
            Fetched::Failed => group.fetching.refused(what, false),
        }
        self.settle(now_ns);
    }

    /// What became of the last [`Frame::Copies`].
    pub fn handle_copies_sent(&mut self, now_ns: u64, departure: Departure) {
        let Some(leaving) = self.copies.front_mut() else { return };
        leaving.departure = leaving.departure.max(departure);
        let (generation, epoch, departure) = (leaving.generation, leaving.epoch, leaving.departure);
        if departure == Departure::Whole && !leaving.frames.is_empty() {
            return;
        }
        self.copies.pop_front();
        if let Some(member) = self.groups.get_mut(&generation).and_then(|group| group.member.as_mut()) {
            member.handle_copies_sent(now_ns, epoch, departure);
            self.stirred = true;
        }
        self.settle(now_ns);
    }

    /// How many segments were sent again.
    #[must_use]
    pub fn resent(&self) -> u64 {
        self.links.resent()
    }

    /// What happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Groups::handle_timeout`] or [`Groups::poll_frame`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let of_groups = self.groups.values().map(Group::poll_timeout).min().filter(|at_ns| *at_ns < u64::MAX);
        // A node that is to be in none never rests otherwise: nobody looks then ([`Groups::is_idle`]).
        let is_in_any = !self.expected.is_empty() || !self.last_sets.is_empty();
        let of_expected = Some(self.expected_look_ns).filter(|at_ns| is_in_any && *at_ns < u64::MAX);
        of_groups.into_iter().chain(self.links.poll_timeout()).chain(of_expected).min()
    }

    /// A second is over. `is_calm` says of a host that is heard whether hardly any packets of it were lost lately.
    /// A member that waits longer and longer before it joins again waits no more when the trouble of a host ends.
    pub fn handle_second(&mut self, now_ns: u64, is_calm: impl Fn(u32) -> bool) {
        for group in self.groups.values_mut() {
            let bound: BTreeSet<u32> = group.state.bindings().values().map(|b| b.node).collect();
            group.troubled.retain(|node, _| bound.contains(node));
            for node in bound.into_iter().filter(|node| *node != self.config.node) {
                if !self.nodes.contains(&node) || !is_calm(node) {
                    group.troubled.entry(node).or_insert(Trouble { since_ns: now_ns, calm: 0 }).calm = 0;
                } else if let Some(trouble) = group.troubled.get_mut(&node) {
                    trouble.calm += 1;
                }
            }
            let before = group.troubled.len();
            group.troubled.retain(|_, trouble| trouble.calm < CALM);
            if group.troubled.len() < before && group.setbacks > 0 && group.stage == Stage::Joining && group.member.is_none() {
                group.join_at_ns = group.join_at_ns.min(now_ns);
            }
        }
    }

    /// The time has come. `standing` says what the shell knows of a node.
    pub fn handle_timeout(&mut self, now_ns: u64, standing: impl Fn(u32) -> Standing) {
        self.look_expected(now_ns);
        let due: Vec<u64> = self.groups.iter().filter(|(_, g)| g.poll_timeout() <= now_ns).map(|(n, _)| *n).collect();
        for generation in due {
            let Some(group) = self.groups.get_mut(&generation) else { continue };
            if let Some(member) = &mut group.member
                && member.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns)
            {
                member.handle_timeout(now_ns);
                self.stirred = true;
            }
            if group.look_at_ns <= now_ns {
                group.look_at_ns = now_ns.saturating_add(LOOK_NS);
                look(now_ns, group, &standing, &self.agents);
                look_for_missed(now_ns, generation, group, &mut self.links);
            }
            if group.deadline_ns <= now_ns {
                group.deadline_ns = u64::MAX;
                self.too_late(now_ns, generation);
            }
            if self.groups.get(&generation).is_some_and(|group| group.join_at_ns <= now_ns) {
                self.ask_to_join(now_ns, generation);
            }
        }
        self.settle(now_ns);
    }

    fn too_late(&mut self, now_ns: u64, generation: u64) {
        let Some(group) = self.groups.get_mut(&generation) else { return };
        match &group.stage {
            Stage::Preparing(waits_for) => {
                let missing: Vec<String> = waits_for.iter().map(|node| format!("{node:08x}")).collect();
                let why = format!("no answer within {} s of node {}", PREPARE_NS / 1_000_000_000, missing.join(", "));
                self.fail(now_ns, generation, why);
            }
            Stage::Prepared | Stage::Failed(_) => self.drop_group(generation),
            // One that was a member before goes on asking.
            Stage::Joining if group.plan.generation == 0 => {
                let mut why = format!("no host that is heard runs a group {}", group.plan.name);
                for (node, format) in &self.foreign {
                    why = format!("{why}; {}", other_build(*node, *format));
                }
                self.fail(now_ns, generation, why);
            }
            Stage::Joining => {
                (group.member, group.me) = (None, None);
                group.join_at_ns = now_ns;
            }
            Stage::Left => self.drop_left(generation),
            Stage::Running => {}
        }
    }

    // ---- behind each step -----------------------------------------------------------------------------------------------

    /// Everything that members want, until they want nothing.
    fn settle(&mut self, now_ns: u64) {
        let Self { groups, links, copies, events, nodes, ended, config, saved, former, unborn, last_sets, .. } = self;
        let mut has_changed = false;
        let mut lost = Vec::new();
        for (generation, group) in groups.iter_mut() {
            group.end_what_lives_on(config.incarnation);
            group.note_crashes();
            release(now_ns, group);
            send_to_met(*generation, group, links, ended);
            drain(*generation, group, links, copies, events, config.node);
            if group.fetch(now_ns, config.node, nodes, (saved, former), events) {
                lost.push(*generation);
            }
            run(now_ns, group);
            group.confirm(*generation, links);
            hand_out(group, saved, events);
            if let Some(why) = group.member.as_ref().and_then(|member| member.log().halted()) {
                if group.plan.durable && group.has_run && group.missing().is_none() {
                    saved.insert(group.plan.name.clone(), group.saved());
                }
                if let Some(me) = group.me.filter(|_| !group.has_run) {
                    note_unborn(unborn, &group.plan, me);
                }
                // Of a round in parts nobody has all then.
                copies.retain(|leaving| leaving.generation != *generation);
                over(now_ns, *generation, group, why, links, nodes);
                events.push_back(Event::Halted { generation: *generation, why });
                events.push_back(Event::Changed { generation: *generation });
            }
            let log = group.member.as_ref().map(Member::log);
            let seen = (
                log.and_then(Log::leader),
                group.stage.name(),
                log.map_or(0, |log| log.members().len()),
                log.map_or(0, |log| log.crashed().len()),
            );
            if std::mem::replace(&mut group.told, seen) != seen {
                events.push_back(Event::Changed { generation: *generation });
                (group.noted, has_changed) = (None, true);
            }
            if note_last_set(group, last_sets) {
                events.push_back(Event::Changed { generation: *generation });
            }
        }
        if has_changed && !last_sets.is_empty() {
            self.expected_look_ns = self.expected_look_ns.min(now_ns);
        }
        self.look_at_former(now_ns);
        for generation in lost {
            if let Some(group) = self.groups.get_mut(&generation) {
                (group.member, group.me) = (None, None);
            }
            let why = "the last host that had the state of its applications ended before this one had it, too";
            self.fail(now_ns, generation, why.into());
        }
    }

    fn tell(&mut self, node: u32, message: &Message) -> Result<(), links::Refused> {
        send(&mut self.links, node, message)
    }

    fn keep(&mut self, generation: u64, mut new: Group) {
        if let Some(old) = self.names.insert(new.plan.name.clone(), generation)
            && old != generation
            && let Some(group) = self.groups.remove(&old)
        {
            new.restarts = group.restarts;
            if group.kept.is_some() {
                self.keep_former(group);
            } else {
                self.events.extend(group.large.into_iter().chain(group.former).map(Event::Release));
            }
        }
        self.groups.insert(generation, new);
        self.events.push_back(Event::Changed { generation });
    }

    fn drop_group(&mut self, generation: u64) {
        if let Some(group) = self.groups.remove(&generation) {
            self.names.remove(&group.plan.name);
            if self.last_sets.contains_key(&group.plan.name) {
                self.expected_look_ns = 0;
            }
            let ours = group.plan.members.iter().find(|binding| binding.node == self.config.node);
            if let Some(binding) = ours.filter(|_| group.stage == Stage::Prepared) {
                // It may have begun elsewhere, and counts this node.
                note_unborn(&mut self.unborn, &group.plan, binding.member);
            }
            self.events.extend(group.large.into_iter().chain(group.former).map(Event::Release));
        }
        self.events.push_back(Event::Changed { generation });
    }

    fn named(&self, name: &str) -> Option<&Group> {
        self.groups.get(self.names.get(name)?)
    }

    fn named_mut(&mut self, name: &str) -> Option<&mut Group> {
        self.groups.get_mut(self.names.get(name)?)
    }

    fn running(&mut self, name: &str) -> Result<&mut Group, Error> {
        match self.named_mut(name) {
            None => Err(Error::NotFound(format!("this host has no group {name}"))),
            Some(group) if group.stage == Stage::Running => Ok(group),
            Some(group) => match &group.stage {
                Stage::Failed(why) => Err(Error::Busy(format!("{name} does not run here: {why}"))),
                stage => Err(Error::Busy(format!("{name} does not run here: it is {}", stage.name()))),
            },
        }
    }

    // ---- what can be asked ----------------------------------------------------------------------------------------------

    /// Every group of this node.
    pub fn status(&self) -> impl Iterator<Item = Status> + '_ {
        self.groups.values().map(|group| self.status_of(group))
    }

    /// Groups of this node, and how many of them run here.
    #[must_use]
    pub fn how_many(&self) -> (usize, usize) {
        (self.groups.len(), self.groups.values().filter(|group| group.stage == Stage::Running).count())
    }

    /// One group.
    #[must_use]
    pub fn status_named(&self, name: &str) -> Option<Status> {
        self.named(name).map(|group| self.status_of(group))
    }

    fn status_of(&self, group: &Group) -> Status {
        let log = group.member.as_ref().map(Member::log);
        let members = log.map(|log| log.members().iter().collect::<Vec<_>>()).unwrap_or_default();
        let members = members.into_iter().map(|member| {
            let unknown = Binding { member, node: 0, incarnation: 0 };
            (group.binding(member).unwrap_or(unknown), log.is_some_and(|log| log.crashed().contains(member)))
        });
        // Of a group of which only the name is known.
        let expected = self.expected.get(&group.plan.name).map(|of| (of.what.engine, of.what.policy));
        let remembered = self.last_sets.get(&group.plan.name);
        let wanted = expected
            .or_else(|| remembered.map(|of| (Some(of.set.engine), Some(of.set.policy))))
            .filter(|_| group.plan.generation == 0);
        Status {
            name: group.plan.name.clone(),
            generation: group.plan.generation,
            lineage: group.plan.lineage,
            written: (group.plan.durable || self.saved.contains_key(&group.plan.name)).then(|| group.told()),
            is_known: group.plan.generation != 0 || wanted.is_some_and(|(engine, policy)| engine.is_some() && policy.is_some()),
            engine: log
                .filter(|log| log.is_running())
                .map_or_else(|| wanted.and_then(|(engine, _)| engine).unwrap_or(group.plan.engine), Log::kind),
            policy: wanted.and_then(|(_, policy)| policy).unwrap_or(group.plan.policy),
            stage: group.stage.clone(),
            me: group.me,
            leader: log.and_then(Log::leader),
            members: members.collect(),
            index: self.kept_log(&group.plan.name).map_or(0, |kept| kept.index).max(group.state.index()),
            pending: log.map_or(0, Log::pending),
            trouble: match (group.missing(), self.expected.get(&group.plan.name)) {
                (Some(LargeRef { id, len }), _) if group.member.is_some() => {
                    let from = group.fetching.from.unwrap_or(id.node);
                    format!("its applications' state, {len} bytes, is on its way from node {from:08x}")
                }
                _ if group.stage == Stage::Joining && !group.stays.is_empty() => group.stays.clone(),
                (_, Some(expectation)) if group.stage != Stage::Running => expectation.trouble.clone(),
                _ if group.stage == Stage::Joining => remembered.map_or_else(String::new, |of| of.trouble.clone()),
                _ => self.lacks_majority(group).unwrap_or_default(),
            },
            is_begun: group.is_begun,
            halted: group.halted,
            kept_bytes: group.state.bytes(),
        }
    }

    /// Why Raft decides nothing now, as far as this node knows: too few of its members live.
    fn lacks_majority(&self, group: &Group) -> Option<String> {
        let log = group.member.as_ref().map(Member::log).filter(|log| log.kind() == Kind::Raft && log.is_running())?;
        let is_alive = |member: &MemberId| {
            let of_it = |binding: Binding| {
                binding.node == self.config.node
                    || (self.nodes.contains(&binding.node) && self.links.life(binding.node) == Some(binding.incarnation))
            };
            Some(*member) == group.me || group.binding(*member).is_some_and(of_it)
        };
        let all = log.members();
        let (alive, needed) = (all.iter().filter(is_alive).count(), all.len() / 2 + 1);
        (alive < needed).then(|| {
            format!(
                "{alive} of its {} members live, and raft decides by {needed}: nothing is decided until more are back. A member whose agent was \
                 started again has lost its vote; where too many have, or are gone for good, fide group resume on one host goes on with its log",
                all.len()
            )
        })
    }

    /// The logs that nodes keep of a group which does not run here, as far as they have said so; this
    /// node's first.
    #[must_use]
    pub fn logs(&self, name: &str) -> Vec<(u32, &KeptLog)> {
        let Some(group) = self.named(name).filter(|group| group.stage != Stage::Running) else { return Vec::new() };
        let own = self.kept_log(name).map(|log| (self.config.node, log));
        let heard = group.denied.iter().filter(|(node, _)| self.nodes.contains(node));
        own.into_iter().chain(heard.filter_map(|(node, (_, kept))| Some((*node, kept.log.as_ref()?)))).collect()
    }

    /// The same in few words, without allocating.
    #[must_use]
    pub fn brief(&self, name: &str) -> Option<Brief<'_>> {
        let group = self.named(name)?;
        let leader = group.member.as_ref().and_then(|member| member.log().leader());
        let node = |leader| group.binding(leader).map_or(0, |binding| binding.node);
        Some(Brief {
            stage: &group.stage,
            me: group.me,
            leader: leader.map(|leader| (leader, node(leader))),
            lineage: group.plan.lineage,
            index: group.told(),
        })
    }

    /// The members of a group that are not known here to have crashed.
    pub fn living(&self, name: &str) -> impl Iterator<Item = MemberId> + '_ {
        let log = self.named(name).and_then(|group| group.member.as_ref()).map(Member::log);
        log.into_iter().flat_map(|log| log.members().iter().filter(|member| !log.crashed().contains(*member)))
    }

    /// The group of this name.
    #[must_use]
    pub fn generation(&self, name: &str) -> Option<u64> {
        self.names.get(name).copied()
    }

    /// What a group has applied.
    #[must_use]
    pub fn state(&self, name: &str) -> Option<&State> {
        self.named(name).map(|group| &group.state)
    }

    /// The application's state at the begin of what a group keeps, and the index of its last entry;
    /// nothing while it is on its way here, or if there is none.
    #[must_use]
    pub fn snapshot(&self, name: &str) -> Option<(u64, Whole<'_>)> {
        let group = self.named(name)?;
        let (index, state) = group.state.snapshot();
        let whole = match state? {
            AppState::Bytes(bytes) => Whole::Bytes(bytes),
            AppState::Large(at) => Whole::Large(group.large.as_ref().filter(|large| large.at() == *at)?),
        };
        Some((index, whole))
    }

    /// The entries of a group behind `index` of which applications may know; nothing if its
    /// snapshot must be taken first, or there is none of that name.
    #[must_use]
    pub fn entries_behind<'a>(&'a self, name: &str, index: u64) -> Option<impl Iterator<Item = &'a Applied> + use<'a>> {
        let group = self.named(name)?;
        let told = group.told();
        Some(group.state.entries_behind(index)?.take_while(move |applied| applied.index <= told))
    }

    /// What became of a client's proposal, for an application that has read the entries through
    /// `read`. None while it has not read what the answer rests on, and while this node's member is
    /// behind it: it would contradict what the application has read on another host.
    pub fn answer(&self, name: &str, read: u64, question: &mut Question) -> Option<Fate> {
        let group = self.named(name)?;
        let (index, fate) = (group.state.index(), group.state.fate(question.client, question.number));
        if index < read {
            return None;
        }
        // As long as it stays the same, it need not rest on entries that came later.
        let rests_on = match question.answer {
            Some((me, rests_on, before)) if (me, before) == (group.me, fate) => rests_on,
            _ => index,
        };
        question.answer = Some((group.me, rests_on, fate));
        (read >= rests_on).then_some(fate)
    }

    /// Segments that were sent again, and messages that no correct node sends.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.links.resent(), self.malformed)
    }

    /// Panics if the state is one that it must never be in.
    pub fn invariants(&self) {
        assert!(self.groups.len() <= GROUPS_MAX + 1, "groups are bounded");
        for (name, generation) in &self.names {
            assert!(self.groups.get(generation).is_some_and(|group| group.plan.name == *name), "{name} is kept");
        }
        for group in self.groups.values() {
            if let Some(member) = &group.member {
                member.invariants();
                assert_eq!(Some(member.log().me()), group.me);
            }
            assert!(group.early.len() <= EARLY_MAX);
        }
    }
}

fn gate_config(config: &Config, policy: Policy) -> GateConfig {
    GateConfig {
        policy,
        fence_repeat_ns: config.fence_repeat_ns,
        witness_timeout_ns: config.witness_ns.unwrap_or(0),
        distrust_ns: config.distrust_ns,
        lowi_judges_itself: true,
    }
}

/// Why a group of this policy cannot run on this node, for want of a witness.
fn lacks_witness(node: u32, witness_ns: Option<u64>, policy: Policy) -> Option<String> {
    (policy == Policy::Witness && witness_ns.is_none())
        .then(|| format!("node {node:08x} has no witness, which the policy witness relies on: set command in [witness] there"))
}

fn refused(name: &str, why: Refused) -> Error {
    match why {
        Refused::Busy => Error::Busy(format!("as much waits in {name} as may: try again after the next decision")),
        Refused::TooLarge => Error::Invalid(format!("{name}: {why}")),
        _ => Error::Busy(format!("{name}: {why}")),
    }
}

fn send(links: &mut Links, node: u32, message: &Message) -> Result<(), links::Refused> {
    match written(message) {
        Some(bytes) => links.send(node, &bytes),
        None => Err(links::Refused::Malformed),
    }
}

fn written(message: &Message) -> Option<Vec<u8>> {
    postcard::to_extend(message, vec![FORMAT]).ok()
}

fn other_build(node: u32, format: u8) -> String {
    format!(
        "node {node:08x} runs another build of FiDe, whose groups are written in format {format} and here in {FORMAT}: install the same release on \
         all hosts of a group"
    )
}

/// Members of whom no verdict will come: the detector never met their node, or forgot it.
fn look(now_ns: u64, group: &mut Group, standing: &impl Fn(u32) -> Standing, agents: &BTreeMap<u32, (u32, u32)>) {
    group.note_agents(agents);
    let outlives = group.outlives();
    let is_new = now_ns < group.since_ns.saturating_add(UNKNOWN_NS);
    let Some(log) = group.member.as_ref().map(Member::log).filter(|log| log.halted().is_none()) else { return };
    let (crashed, concerned) = (log.crashed().clone(), log.concerned());
    for about in concerned.iter().filter(|about| Some(*about) != group.me && !crashed.contains(*about)) {
        let Some(Binding { node, incarnation, .. }) = group.state.bindings().get(&about).copied() else { continue };
        let incarnation = group.goes_on.get(&about).filter(|_| outlives).map_or(incarnation, |later| incarnation.max(*later));
        let is_introduced = |life: u32| agents.get(&node).is_some_and(|(_, last)| *last >= life);
        let grade = match standing(node) {
            Standing::Alive(life) | Standing::Late(life) if life <= incarnation => None,
            // Whether it is the same agent is not known yet.
            Standing::Alive(life) | Standing::Late(life) if outlives && !is_introduced(life) => None,
            Standing::Alive(_) | Standing::Late(_) => Some(Grade::Certain),
            Standing::Left(life) if life >= incarnation => Some(Grade::Certain),
            Standing::Silent(_) | Standing::Left(_) => Some(Grade::Inferred),
            Standing::Unknown => (!is_new).then_some(Grade::Inferred),
        };
        if let (Some(grade), Some(member)) = (grade, &mut group.member) {
            let cause = if grade == Grade::Certain { Cause::Exited } else { Cause::SilentHost };
            member.handle_verdict(now_ns, about, cause, grade);
        }
    }
}

/// HUC rests on heartbeats that reach all. One that was lost on all paths to one member, as by a
/// cable that was out for a moment, would leave that member waiting for a decision that the others
/// have, and them for its next proposal. So its leader mentions by links what it has decided, and
/// the member stops and comes back with the state of the others.
fn look_for_missed(now_ns: u64, generation: u64, group: &mut Group, links: &mut Links) {
    let (Some(member), Some(me)) = (&mut group.member, group.me) else { return };
    let log = member.log();
    let (epoch, decided) = (log.epoch(), log.decided_through());
    if log.kind() != Kind::Huc || !log.is_running() || group.held.is_some() {
        (group.unstable, group.behind) = (None, None);
        return;
    }
    group.behind.take_if(|(of, instance, _)| (*of, *instance) <= (epoch, decided));
    // What was missed may have been the end of this epoch.
    if group.behind.is_some_and(|(of, _, since_ns)| of >= epoch && now_ns >= since_ns.saturating_add(MISSED_NS)) {
        return member.stop(Halted::MissingBroadcast);
    }
    let is_unstable = log.leader() == Some(me) && log.stable_through() < decided;
    group.unstable.take_if(|(instance, _)| !is_unstable || *instance != decided);
    let since_ns = &mut group.unstable.get_or_insert((decided, now_ns)).1;
    if is_unstable && now_ns >= since_ns.saturating_add(MISSED_NS) {
        *since_ns = now_ns;
        let others = log.members().iter().filter(|other| *other != me && !log.crashed().contains(*other));
        let bindings = group.state.bindings();
        let others: Vec<Binding> = others.filter_map(|other| bindings.get(&other)).copied().collect();
        for binding in others {
            let message = log::Message::Reached { epoch, instance: decided };
            send_log(generation, group, links, (me, &[(binding.node, binding.member)]), message);
        }
    }
}

/// Whether a member of this group is, or was, on that node.
fn is_of(group: &Group, node: u32) -> bool {
    group.state.bindings().values().any(|binding| binding.node == node)
}

/// What of a group is to be written now.
fn hand_out(group: &mut Group, saved: &mut BTreeMap<String, Saved>, events: &mut VecDeque<Event>) {
    while let Some(write) = group.poll_write() {
        if matches!(write.what, What::Whole(_)) {
            saved.remove(&group.plan.name);
        }
        events.push_back(Event::Write(Box::new(write)));
    }
}

/// Whether all others that live have said that the heartbeat behind our silence came.
fn release(now_ns: u64, group: &mut Group) {
    let (Some(held), Some(member)) = (&mut group.held, &mut group.member) else { return };
    let log = member.log();
    // Raft rests on nobody's silence, and its members that are dead may only be suspected.
    let needs_answers = log.kind().needs_accuracy();
    held.waits_for.retain(|other| needs_answers && log.members().contains(*other) && !log.crashed().contains(*other));
    if !held.waits_for.is_empty() {
        return;
    }
    let carried = group.held.take().is_some_and(|held| held.number != 0);
    if carried && group.riding.take().is_some() {
        member.handle_piggyback_sent(now_ns);
    }
}

/// What one member wants done.
fn drain(
    generation: u64,
    group: &mut Group,
    links: &mut Links,
    copies: &mut VecDeque<copies::Leaving>,
    events: &mut VecDeque<Event>,
    node: u32,
) {
    let Some(me) = group.me else { return };
    // What waits for others may wait for one that is gone: its end can be asked for.
    let is_held = group.held.is_some();
    let mut applied = false;
    // The same for several members leaves once.
    let mut together: Option<(log::Message, Vec<(u32, MemberId)>)> = None;
    loop {
        let output = group.member.as_mut().and_then(if is_held { Member::poll_ask } else { Member::poll_output });
        let is_same = match (&output, &together) {
            (Some(Output::Log(log::Output::Send { message, .. })), Some((same, _))) => message == same,
            _ => false,
        };
        if !is_same && let Some((message, to)) = together.take() {
            send_log(generation, group, links, (me, &to), message);
        }
        let Some(output) = output else { break };
        match output {
            Output::Log(log::Output::Send { to, message }) => {
                let Some(binding) = group.binding(to) else { continue };
                // An incarnation that is over needs nothing; one that is still to be met,
                // everything.
                match links.life(binding.node) {
                    Some(life) if life == binding.incarnation => {
                        together.get_or_insert_with(|| (message, Vec::new())).1.push((binding.node, to));
                    }
                    Some(life) if life > binding.incarnation => {}
                    _ if is_said_again(&message) => {}
                    _ if group.unmet.len() < UNMET_MAX => group.unmet.push_back((binding, message)),
                    // As a link that holds no more.
                    _ => group.member.iter_mut().for_each(|member| member.stop(Halted::NetworkFault)),
                }
            }
            Output::Log(log::Output::Copies { message }) => {
                let log::Message::Engine { epoch, body: EngineMessage::Lowi(lowi::Message::Round(round)) } = &message else {
                    debug_assert!(false, "no other engine here sends copies");
                    continue;
                };
                match copies::Leaving::new(group.id, (generation, *epoch), &group.plan.timing, round) {
                    Some(leaving) => copies.push_back(leaving),
                    None => group.member.iter_mut().for_each(|member| member.stop(Halted::NetworkFault)),
                }
            }
            // Engines over memory are not made here.
            Output::Log(log::Output::Memory { .. }) => {}
            Output::Log(log::Output::Install { position, snapshot }) => {
                if group.state.install(position, snapshot.as_deref()).is_err()
                    && let Some(member) = &mut group.member
                {
                    member.stop(Halted::Contradiction);
                }
                (group.handed, group.writes) = (None, 0);
                applied = true;
            }
            Output::Log(log::Output::Apply { position, entry }) => {
                match entry.body {
                    Body::Join(id) => joined(generation, group, id, links, node),
                    Body::Leave(id) if id == entry.id.proposer => {
                        // By an order: whom others take for crashed may still run it.
                        let left = group.binding(id).map(|binding| binding.node);
                        group.nodes.retain(|node| Some(*node) != left);
                        group.noted = None;
                    }
                    _ => {}
                }
                applied |= group.state.apply(position, entry);
            }
            Output::Log(log::Output::Halt(_)) => {}
            Output::Ask(ask) => events.extend(question(group, ask)),
        }
    }
    if applied {
        events.push_back(Event::Applied { generation });
    }
}

/// What this node remembers of a group that it runs. Says whether that is something new.
fn note_last_set(group: &mut Group, last_sets: &mut BTreeMap<String, Remembered>) -> bool {
    let log = group.member.as_ref().map(Member::log).filter(|log| log.is_running());
    let Some(log) = log.filter(|log| group.stage == Stage::Running && !group.leaves && group.noted != Some(log.kind())) else {
        return false;
    };
    let engine = log.kind();
    let nodes: Vec<u32> = log.members().iter().filter_map(|member| Some(group.state.bindings().get(&member)?.node)).collect();
    for node in nodes {
        if !group.nodes.contains(&node) {
            group.nodes.push(node);
        }
    }
    group.noted = Some(engine);
    let Plan { name, generation, policy, durable, .. } = &group.plan;
    let mark = Mark { generation: *generation, position: group.state.position() };
    let set = LastSet { mark, nodes: group.nodes.clone(), engine, policy: *policy, durable: *durable };
    let is_known = last_sets.get(name).is_some_and(|of| {
        let before = of.set.mark;
        before.generation == *generation && of.set == LastSet { mark: before, ..set.clone() }
    });
    if is_known || !set.is_sane() {
        return false;
    }
    last_sets.insert(name.clone(), Remembered::new(set));
    true
}

/// A member that was let in runs for its applications once their state is here.
fn run(now_ns: u64, group: &mut Group) {
    let is_in = group.held.is_none() && group.member.as_ref().is_some_and(|member| member.log().is_running());
    if group.stage == Stage::Joining && is_in {
        (group.deadline_ns, group.join_at_ns) = (u64::MAX, u64::MAX);
        if group.missing().is_none() {
            group.stage = Stage::Running;
            group.since_ns = now_ns;
        }
    }
}

/// What a gate asks of a member, about the node that it is a member on.
fn question(group: &Group, ask: Ask) -> Option<Event> {
    let (Ask::Fence { member } | Ask::Witness { member }) = ask;
    let Binding { node, incarnation, .. } = group.binding(member)?;
    Some(match ask {
        Ask::Fence { .. } => Event::AskFence { node, incarnation },
        Ask::Witness { .. } => Event::AskWitness { node, incarnation },
    })
}

/// What waited for incarnations of other hosts that this node has met meanwhile. Two hosts may meet
/// later than a third one, which begins a group with both of them or lets one in, has met each.
fn send_to_met(generation: u64, group: &mut Group, links: &mut Links, ended: &BTreeMap<u32, u32>) {
    let Some(me) = group.me.filter(|_| group.held.is_none() && !group.unmet.is_empty()) else { return };
    for (binding, message) in std::mem::take(&mut group.unmet) {
        let is_over = ended.get(&binding.node).is_some_and(|ended| *ended >= binding.incarnation);
        match links.life(binding.node) {
            Some(life) if life == binding.incarnation => {
                send_log(generation, group, links, (me, &[(binding.node, binding.member)]), message);
            }
            Some(life) if life > binding.incarnation => {}
            _ if is_over => {}
            _ => group.unmet.push_back((binding, message)),
        }
    }
}

/// Raft, the one engine outside this crate, says again what was lost. Others that live on beside it
/// do not.
const fn is_said_again(message: &log::Message) -> bool {
    matches!(message, log::Message::Engine { body: EngineMessage::Opaque(_), .. })
}

/// From the log of this member to those of others.
fn send_log(
    generation: u64,
    group: &mut Group,
    links: &mut Links,
    (from, to): (MemberId, &[(u32, MemberId)]),
    message: log::Message,
) {
    // Whoever does not get a state asks for it again.
    let is_needed = !matches!(message, log::Message::Transfer(_)) && !is_said_again(&message);
    // A node may have two members in one life: one that stopped, of which not all have heard, and
    // the one that came after it. They share its link.
    let mut nodes: Vec<u32> = Vec::with_capacity(to.len());
    let (mut first, mut second) = (Vec::with_capacity(to.len()), Vec::new());
    for (node, to) in to {
        if nodes.contains(node) {
            second.push((*node, *to));
        } else {
            nodes.push(*node);
            first.push((*node, *to));
        }
    }
    let mut sent = Ok(());
    for (node, to) in second {
        sent = sent.and(send(links, node, &Message::Log { generation, from, to, message: message.clone() }));
    }
    let all = match first[..] {
        [(node, to)] => send(links, node, &Message::Log { generation, from, to, message }),
        _ => match written(&Message::LogToAll { generation, from, to: first, message }) {
            Some(bytes) => links.send_to_all(&nodes, &bytes),
            None => Err(links::Refused::Malformed),
        },
    };
    let sent = sent.and(all);
    // A link that holds no more cannot be reliable, so this member cannot go on.
    if sent == Err(links::Refused::TooMuch)
        && is_needed
        && let Some(member) = &mut group.member
    {
        member.stop(Halted::NetworkFault);
    }
}

/// A join was applied: whoever was invited under that id is it, or must ask again.
fn joined(generation: u64, group: &mut Group, id: MemberId, links: &mut Links, node: u32) {
    let Some(invited) = group.invited.remove(&id) else { return };
    let bound = group.state.bindings().get(&id).copied();
    if bound != Some(invited) && invited.node != node {
        let _ = send(links, invited.node, &Message::Void { generation, member: id });
    }
}

/// Names are shown to people: in one line, and without what terminals act on.
fn can_be_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(format!("a group's name has 1 to {NAME_MAX} bytes"));
    }
    if name.chars().any(char::is_control) {
        return Err(format!("a group's name has no control characters: {name:?}"));
    }
    Ok(())
}

/// This node's member halted: the others are told, and it joins again as a new one, unless it was to leave.
fn over(now_ns: u64, generation: u64, group: &mut Group, why: Halted, links: &mut Links, nodes: &BTreeSet<u32>) {
    let Some(me) = group.me.take() else { return };
    let told: BTreeSet<u32> = group.state.bindings().values().map(|binding| binding.node).collect();
    for node in told.into_iter().filter(|node| nodes.contains(node)) {
        let _ = send(links, node, &Message::Over { generation, member: me });
    }
    let has_state = group.missing().is_none();
    if let Some(member) = group.member.take().filter(|_| group.has_run) {
        let log = member.log();
        group.plan.engine = log.kind();
        // Raft rests on what a majority remembers, and not on who went on without whom.
        let is_kept = has_state && !group.leaves && log.kind().needs_accuracy();
        group.kept = is_kept.then(|| kept_log(group, log, me));
        // A path that stays out would have all of them come and go for ever.
        let is_soon = now_ns < group.since_ns.saturating_add(SETTLED_NS);
        let has_gone_on = group.plan.lineage != group.plan.generation;
        group.restarts = if has_gone_on && is_soon { (group.restarts + 1).min(RESTARTS_MAX) } else { 0 };
        group.resume_at_ns = if group.restarts > 0 { now_ns + (RESUME_AGAIN_NS << group.restarts) } else { now_ns };
    }
    group.halted = Some(why);
    (group.riding, group.held) = (None, None);
    group.arriving.clear();
    group.copies.clear();
    group.rides = 0;
    group.asked_of_us.clear();
    (group.unstable, group.behind) = (None, None);
    group.unmet.clear();
    group.invited.clear();
    if group.leaves {
        group.has_left(now_ns);
    } else {
        group.stage = Stage::Joining;
        group.asked = None;
        let is_soon = now_ns < group.since_ns.saturating_add(SETTLED_NS);
        group.setbacks = if is_soon { (group.setbacks + 1).min(TROUBLED_MAX) } else { 0 };
        let is_troubled = group.troubled.values().any(|trouble| now_ns < trouble.since_ns.saturating_add(TROUBLED_NS));
        let doublings = if !is_troubled { group.setbacks.min(SETBACKS_MAX) } else { group.setbacks };
        group.join_at_ns = if group.departs { u64::MAX } else { now_ns.saturating_add(REJOIN_NS << doublings) };
    }
}

/// Under this id this node never took part in that group.
fn note_unborn(unborn: &mut BTreeMap<String, (u64, BTreeSet<MemberId>)>, plan: &Plan, me: MemberId) {
    let known = unborn.entry(plan.name.clone()).or_default();
    if known.0 < plan.generation {
        *known = (plan.generation, BTreeSet::new());
    }
    if known.0 == plan.generation {
        known.1.insert(me);
    }
    // Former ones are known to be dead by now.
    while known.1.len() > UNBORN_MAX {
        known.1.pop_first();
    }
}

/// What is told of the log that this member left.
fn kept_log(group: &Group, log: &Log, me: MemberId) -> KeptLog {
    let bindings = group.state.bindings();
    let position = group.state.position();
    // Whom nothing was decided without may have told more than is here.
    let went_on_without = |member: &MemberId| group.crashed_at.get(member).is_some_and(|at| *at < position);
    let counted = log.members().iter().filter(|member| *member == me || !went_on_without(member));
    KeptLog {
        generation: group.plan.generation,
        lineage: group.plan.lineage,
        me,
        position,
        index: group.state.index(),
        members: counted.map(|member| (member, bindings.get(&member).map_or(0, |binding| binding.node))).collect(),
        highest: log.highest(),
    }
}

/// The log goes on in this group: under its generation, and with ids that nobody had before, above
/// `highest` in any case. Who had proposed as another member would take itself for that one still.
fn continue_log(saved: &mut Saved, highest: MemberId, plan: &mut Plan) -> Result<(), Error> {
    let of_snapshot = saved.snapshot.as_deref().map_or(Some(MemberId(0)), State::highest_in);
    let renumbered = of_snapshot.and_then(|of_snapshot| saved.renumber(of_snapshot.max(highest), &mut plan.members));
    renumbered.ok_or_else(|| Error::Invalid(format!("the log of {} on this host cannot be gone on with", plan.name)))?;
    (plan.lineage, saved.generation) = (saved.lineage, plan.generation);
    Ok(())
}

/// An engine of a group, made for [`Make`]: those of this crate that need no memory of others.
#[must_use]
pub fn make(setup: &Setup, policy: Policy, timing: &Timing) -> Option<Box<dyn Engine<EngineMessage> + Send>> {
    use crate::consensus::log::Carried;
    if !policy.suits(setup.kind) {
        return None;
    }
    let mut engine: Box<dyn Engine<EngineMessage> + Send> = match setup.kind {
        Kind::Hsuc => Box::new(Carried::new(crate::consensus::hsuc::Hsuc::new(setup.me, setup.members.clone(), setup.first))),
        Kind::Huc => Box::new(Carried::new(crate::consensus::huc::Huc::new(setup.me, setup.members.clone(), setup.first))),
        Kind::Lowi => {
            let (me, members, config) = (setup.me, setup.members.clone(), timing.config());
            let lowi = match &setup.start {
                Some(start) => Lowi::join(me, config, members, StartPoint::from_value(start)?, setup.now_ns),
                // Members begin within no known time of each other.
                None => Lowi::new(me, config, members, setup.first, lowi::Start::OnMessage, setup.now_ns),
            };
            Box::new(Carried::new(lowi.ok()?))
        }
        Kind::Paxos | Kind::Raft => return None,
    };
    for member in setup.crashed.iter() {
        let _ = engine.handle_crash(setup.now_ns, member);
    }
    Some(engine)
}

/// A value as the log has it, for tests and benches.
#[must_use]
pub fn record(client: u64, number: u64, bytes: &[u8]) -> Value {
    Record::Value { client, number, bytes }.to_value()
}

#[cfg(test)]
mod tests;
