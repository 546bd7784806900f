//! What the groups of two nodes tell each other: over reliable links, on heartbeats, in copies of broadcasts.

use super::durable::{Mark, Saved};
use super::resume::{Kept, KeptLog};
use super::state::{AppState, Binding, RECORD_LEN};
use crate::consensus::policy::Policy;
use crate::consensus::{Instance, Kind};
use crate::consensus::{log, lowi};
use crate::group::MemberId;
use serde::{Deserialize, Serialize};

/// What a group is, agreed before it begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// Tells groups of one name apart: a later one has a higher number.
    pub generation: u64,
    /// Its first engine.
    pub engine: Kind,
    /// What it makes of inferred verdicts.
    pub policy: Policy,
    /// Who begins it.
    pub members: Vec<Binding>,
    /// Its log is on disk ([`super::durable`]).
    pub durable: bool,
    /// The generation of the first group of its log: another one only where a group goes on from
    /// what was on disk.
    pub lineage: u64,
    /// What LOWI waits for, the same at all members.
    pub timing: Timing,
}

/// The times of LOWI, agreed before a group begins: all its members count the same pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// Between two rounds of a leader for which nothing waits (ns).
    pub period_ns: u64,
    /// Δ_I: what leaves on all paths has come on all of them, at everybody, after so long (ns).
    pub delta_i_ns: u64,
    /// Δ_W: what it exceeds Δ_I by is how late a member may be served (ns).
    pub delta_w_ns: u64,
}

impl Timing {
    /// How late a member's thread may run at least: a round that is not heard costs a failover so
    /// much, and a thread that is held up for longer costs its member its place (ns).
    const LATE_NS: u64 = 10_000_000;
    /// Δ_I, at least: a leader whose thread is held up for half of it stops. Idle virtual machines
    /// hold threads up for a millisecond or two; what is decided does not wait for Δ_I (ns).
    const DELTA_I_MIN_NS: u64 = 4_000_000;
    /// What clocks may gain, in millionths: as much as they are slewed by.
    const DRIFT_PPM: u32 = 500;
    /// Rounds that are begun within Δ_I, at most.
    pub(super) const DEPTH_MAX: u64 = 128;

    /// Of hosts whose heartbeats leave every `period_ns` and come after at most `delay_ns`.
    #[must_use]
    pub fn of_contract(period_ns: u64, delay_ns: u64) -> Self {
        // Longer than what the detector waits for, so that LOWI goes by its own copies.
        let delta_i_ns = delay_ns.saturating_mul(2).max(Self::DELTA_I_MIN_NS);
        let delta_w_ns = delta_i_ns.saturating_add(delta_i_ns.max(Self::LATE_NS));
        Self { period_ns: period_ns.max(delta_i_ns), delta_i_ns, delta_w_ns }
    }

    /// Whether a group can run with it.
    ///
    /// # Errors
    /// What is wrong, as a sentence.
    pub fn check(&self) -> Result<(), &'static str> {
        let limits = 1..=1_000_000_000_000;
        if [self.period_ns, self.delta_i_ns, self.delta_w_ns].iter().any(|ns| !limits.contains(ns)) {
            return Err("period, Δ_I and Δ_W are at least a nanosecond, and at most a thousand seconds");
        }
        self.config().check(crate::group::MAX_MEMBERS)
    }

    /// The engine's settings.
    #[must_use]
    pub fn config(&self) -> lowi::Config {
        let Self { period_ns, delta_i_ns, delta_w_ns } = *self;
        // As many rounds as may be in flight, but for those in their slots.
        let window_ns = delta_w_ns.max(delta_i_ns);
        let slots = window_ns / period_ns.max(1) + 2;
        let depth = lowi::ROUNDS_MAX.saturating_sub(slots) / (window_ns / delta_i_ns.max(1) + 2);
        lowi::Config {
            delta_w_ns,
            drift_ppm: Self::DRIFT_PPM,
            depth: depth.clamp(1, Self::DEPTH_MAX) as usize,
            batch_entries_max: 256,
            // With what stands before each entry, a message in parts.
            batch_bytes_max: fide_wire::session::VALUE_MAX + RECORD_LEN,
            // Who misses a copy comes back with the state of the others, who have it.
            exit_together: false,
            exit_if_diverged: true,
            rounds_max: lowi::ROUNDS_MAX,
            eager: true,
            rest_ns_per_byte: 200,
            rest_max_ns: 500_000.min(period_ns / 2),
            sent_is_said: true,
            ..lowi::Config::new(period_ns, delta_i_ns)
        }
    }
}

/// What a group begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum From {
    /// An empty log, whatever the disks have.
    Nothing,
    /// The log on the disk of the node that begins it: how far that goes, and with where the
    /// members live; an empty one if it has none.
    Log(Option<Mark>, Option<Saved>),
    /// The same, and by itself, because all agents of the group have ended: with the last set that was
    /// noted there ([`super::last_set`]).
    Again(Mark, Option<Mark>, Option<Saved>),
    /// The log that the node which begins it has kept since all members stopped.
    Kept {
        /// Whose it is, and how far it went.
        log: KeptLog,
        /// The log itself, and with where the members live.
        saved: Saved,
        /// Also where others were told what it has not got: somebody decided so.
        anyway: bool,
    },
}

impl From {
    /// The log.
    #[must_use]
    pub fn into_saved(self) -> Option<Saved> {
        match self {
            From::Nothing => None,
            From::Log(_, saved) | From::Again(_, _, saved) => saved,
            From::Kept { saved, .. } => Some(saved),
        }
    }
}

/// Over the link between two nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// A group is to begin: will you?
    Prepare {
        /// Which.
        plan: Box<Plan>,
        /// With which log.
        begun: Box<From>,
    },
    /// I will.
    Prepared {
        /// Which.
        generation: u64,
    },
    /// I will not.
    Declined {
        /// Which.
        generation: u64,
        /// Why, for whoever asked for it.
        why: String,
    },
    /// Everybody will: it has begun.
    Begin {
        /// Which.
        generation: u64,
    },
    /// Somebody will not: forget it.
    Abort {
        /// Which.
        generation: u64,
    },
    /// A group of this name is to begin without you: have you one?
    Elsewhere {
        /// Which.
        generation: u64,
        /// The group's name.
        name: String,
        /// How far the log goes that it begins with, if it is a durable one and not to be empty.
        mark: Option<Option<Mark>>,
        /// The log that it goes on with by itself, if so: who keeps one that may have more objects, and
        /// who only listens to members of it listens no more.
        goes_on: Option<KeptLog>,
    },
    /// I have none of this name: it may begin.
    Unknown {
        /// Which.
        generation: u64,
    },
    /// I want to be a member.
    Join {
        /// The group's name.
        name: String,
    },
    /// I do not run it.
    NoGroup {
        /// The group's name.
        name: String,
        /// How far its log on my disk goes.
        mark: Option<Mark>,
        /// What I keep of it since my member stopped.
        kept: Box<Kept>,
    },
    /// You may be this member; listen, and say so.
    Invite {
        /// What the group is, with everybody who was ever bound.
        plan: Box<Plan>,
        /// Whom.
        member: MemberId,
        /// The hosts of its last set ([`super::last_set`]).
        nodes: Vec<u32>,
    },
    /// I listen as this member: let me in.
    Listening {
        /// Which.
        generation: u64,
        /// Whom.
        member: MemberId,
    },
    /// That id is somebody else's, or its member is dead to us: ask again.
    Void {
        /// Which.
        generation: u64,
        /// Whom.
        member: MemberId,
    },
    /// From the log of one member to that of another.
    Log {
        /// Which.
        generation: u64,
        /// Whose.
        from: MemberId,
        /// For whom.
        to: MemberId,
        /// What.
        message: log::Message,
    },
    /// I was silent for longer than the contract says: have you got my heartbeat of this number, and am I still this member to you?
    AmI {
        /// Which.
        generation: u64,
        /// Whom.
        member: MemberId,
        /// The first heartbeat behind the silence, if it carried something of this group; 0 otherwise.
        number: u64,
        /// Which question: growing.
        question: u64,
    },
    /// You are, and I have.
    YouAre {
        /// Which.
        generation: u64,
        /// Whom.
        member: MemberId,
        /// The question.
        question: u64,
    },
    /// The application's state behind an entry, which nobody need keep what is before of.
    Kept {
        /// Which.
        generation: u64,
        /// The last entry that is in it.
        index: u64,
        /// The state, or what it is to be fetched by.
        state: AppState,
    },
    /// This member, which lived here, does nothing any more.
    Over {
        /// Which.
        generation: u64,
        /// Whom.
        member: MemberId,
    },
    /// As [`Message::Log`], the same for several.
    LogToAll {
        /// Which.
        generation: u64,
        /// Whose.
        from: MemberId,
        /// For whom, on which node.
        to: Vec<(u32, MemberId)>,
        /// What.
        message: log::Message,
    },
    /// From the leader of HUC: all that live have what was decided through this instance.
    Stable {
        /// Which.
        generation: u64,
        /// The instance.
        instance: Instance,
    },
}

/// On a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ride {
    /// Which group.
    pub generation: u64,
    /// Whose.
    pub from: MemberId,
    /// What.
    pub message: log::Message,
}
