//! LOWI: looped one-way imposition (Nano-consensus §4.2, Alg. 3; §5.2). One message delay, no quorum, N−1 crashes.
//!
//! # In one head
//! One member speaks at a time, in rounds, like a conductor who gives every beat, also the empty ones. What it says is decided: by itself once the
//! copies have left, by the others when all copies have come. Nobody answers. A beat that stays out *is* the election: everybody counts the same
//! pauses, so everybody knows whose beat comes next. Whoever cannot be sure of having heard every beat leaves the stage at once.
//!
//! # Slots
//! Everything is counted from the last round that was delivered, `r`, by member `C[0]`. `C[0], C[1], …` are the members from there upwards, and
//! each of them has one *slot*, and one round number, of its own:
//!
//! ```text
//! slot j of C[j]    its round is r + 1 + j
//!                   it speaks at      heard + period + j·(Δ_W + Δ_I)          (1)
//!                   is given up after heard + period + (j + 1)·(Δ_W + Δ_I)
//!                   must not speak later than (1) + late                      late = Δ_W − Δ_I − drift
//! ```
//!
//! `heard` is when this member delivered (or sent) round `r`, by its own clock. All waiting is counted from there and not from when a
//! timer was served, so lateness does not add up over successors. Before the first
//! round a slot is longer by `late`, because the start is only within Δ_W, and the first slot begins after Δ_W at least: then everybody listens.
//!
//! # What safety rests on
//! Agreement: *for every round number at most one member speaks, and what it says everybody delivers before anybody gives it up.*
//! 1. (Δ_I) What leaves on all paths arrives on all of them, at every member, within Δ_I of the round's stamp. So all deliver round `r` within Δ_I of each other.
//! 2. (fence) `C[j]` sends no later than `late` after its slot began by its own clock, so at everybody it arrives before `heard + period + (j + 1)·(Δ_W + Δ_I)`.
//! 3. (drift) Clocks run within `drift_ppm` of true time; every wait is longer, and `late` shorter, by what clocks may gain in it.
//! 4. (copies) [`Action::Copies`] leaves on all paths or the shell calls [`Engine::handle_network_fault`] before it asks for the next action.
//!
//! From 1–3: when `C[1]` speaks, `C[0]` has not spoken and will not. So it has seen every round that anybody has, and round numbers need no negotiation. By
//! induction over slots, the same for `C[j]`. Validity and integrity are local. Termination: the lowest slot of a member alive comes, and it
//! speaks. What violates them is noticed wherever one member alone can notice it:
//!
//! | violated | noticed by | then |
//! |---|---|---|
//! | a copy lost on one path | the member it hits, after Δ_I (RSBCAST) | [`Halted::NetworkFault`], and it tells the others to exit (§3.3: "all […] nodes employ a safe exit") |
//! | every copy lost, to some | them, by the next round's number; the others, if a successor speaks with the number that they have used | [`Halted::MissingBroadcast`] |
//! | a copy that cannot leave | its sender, which stops before it decides and says so ([`Message::Unsent`]) | [`Halted::NetworkFault`] there; the others forget the rest of that round, and the next one speaks |
//! | a copy later than Δ_I | the receiver: stamp and arrival are compared with the fastest round of this leader; or it gave that slot up already | [`Halted::NetworkFault`] |
//! | a leader paused before it speaks | itself: now is past (1) + late | [`Halted::Expelled`], nothing is sent |
//! | … paused between stamp and copies | itself: it decides only when a call *after* the copies left is still in time; the others by the stamp | [`Halted::Expelled`] / [`Halted::NetworkFault`] |
//! | a follower paused | itself: called more than `late` after [`Engine::poll_timeout`] | [`Halted::Expelled`] |
//! | a member was skipped although it lives | itself, by the successor's first copy | [`Halted::Expelled`] |
//!
//! What *cannot* be noticed in time: a round that reaches some members within Δ_I and others later or never, when its sender then crashes. The former have decided; the
//! latter elect a successor that does not know. That is the assumption of the paper ("once every 6 years", §3.3), and
//! `nano_4_2_must_fail_…` in the tests shows that nothing here makes up for it. The damage ends there: the successor's number tells the former.
//!
//! # Duties of the shell
//! * After every call, drain [`Engine::poll_action`]; do `Copies` at once; call [`Engine::handle_timeout`] again when [`Engine::poll_timeout`] is not in the future: a leader
//!   decides by that second call, which shows that the copies left in time.
//! * Hand copies in with the time of their *arrival* (the kernel's stamp), before the time of reading the clock: then a process that was held up with its packets kept
//!   judges by when they came, and nothing is lost but time.
//! * [`Engine::set_members`] is called while a barrier's decision is drained, before any other input.
//!
//! # Where Alg. 2, 3 and §5.2 had to be read
//! * **Lines 7, 14–19, `cins`/`lins`.** `LOOP and cins = lins` increments `cins`; if ⊥ is decided, `cins ← lins` runs the instance again. So ⊥ costs a *round* and no
//!   *instance*, and since OWI decides once, a second run must be a new OWI with a new timer and new `proposals`. Here rounds and instances are two numbers, both in
//!   every message. A round that carries ⊥ names the instance that it does not decide, so a receiver sees a gap in instances too.
//! * **Line 19 runs `decisions[cins]` on the *current* `cins`.** With instances in flight (§5.2) the decision of `i` would be filed under another; here it is filed under the instance in the message.
//! * **Pipelining.** `cins = lins` forbids the next instance before the last is decided. For the *leader*, who decides as it sends, this bounds nothing; for followers it would refuse what is in flight.
//!   Here the leader begins an instance while fewer than [`Config::depth`] were begun within the last Δ_I (they may not be decided everywhere yet); followers take rounds in
//!   their order whatever the order of arrival. The default depth is 1, line 7 to the letter; with a period longer than Δ_I it costs nothing.
//! * **Line 11, `pending \ {v}`** after `PROPOSE(v)`: OWI decides some value, not necessarily this `v`, so a follower's request would be lost. Here an entry waits until it *is* decided.
//! * **A follower's own values** go to the leader by reliable `Send`, in order, [`FORWARD_MAX`] at a time, and again to the next leader when the slot changes. Whoever gets some before it leads keeps them.
//!   DET (Alg. 2, line 7) is: in the order of arrival, as many as fit into one batch; ⊥ only if nothing waits.
//! * **Alg. 2, line 11: `leader ← MIN(P)`** gives the n-th successor the same timer as the first one, restarted when the timer is served; lateness then adds up. See *slots*.
//! * **The sender gets no copy of its own round** (§5.2: loopback "inside the FPGA"). It decides when they have left: see *duties*. It cannot know that they arrive; nor
//!   can anybody else in one message delay.
//! * **§5.2: timeout "> 2Δ_I + drift"**, with Δ_W = Δ_I: then `late` = 0, and a leader whose timer is served a nanosecond late must not speak. [`Config::new`] has Δ_W = 2Δ_I.
//! * **The start.** §5.2's start message is the first round. Members come to it at any time ([`Start::OnMessage`]: behind a change of the engine, over links of any delay), so who waits for it
//!   says so to the starter ([`Message::Ready`]), and the starter speaks when all who live have: a round that left earlier would be heard by those who cannot tell when it left, and none of
//!   them could take the starter's place. Who waits never elects. If the starter dies before, it is the turn of the lowest of whom nobody is left before it: when a member knows for certain that *all* before it
//!   are dead, it is the starter, and gives up nobody by silence until the first round has come; so does who is given the state of a group that has not started. (Counting slots from
//!   the report of the starter's crash is not enough: those reports come at any time, too.)
//!   [`Start::Together`] is Alg. 3's "all processes start within Δ_W".
//!
//! # Certain crashes
//! LOWI elects by silence. A true report that *all* slots before one's own are dead lets a member speak Δ_I after the last of these reports: their copies have arrived everywhere by
//! then, so it misses nothing, and nobody else may speak before the slot in which it is expected anyway ([`Config::hurry`]). It must *not* shorten the waiting for somebody else: that one may not have
//! had the report and speak when its slot comes. A leader that leaves is silent from its last round on, as if reported when that is delivered: whoever comes behind it, also if all
//! between are long known to be dead, waits Δ_I from then ([`Config::hurry`] or not, where the period is shorter), because with the leave the successor counts anew, and who has not got that round
//! yet would miss it. This needs that nothing of a member leaves after its crash is reported; where a doomed process may still send, switch it off.
//!
//! # Joining
//! Nobody stops (§5.2, "flawless joining"). The joiner keeps every copy from before it asks; some member proposes [`Body::Join`], sends the state with [`Engine::start_point`], and [`Lowi::join`] goes on from
//! there: it is handed what was kept, and logs decisions from [`StartPoint::next`] on. It is elected once [`Engine::set_members`] has it, and only after a live round came (until then it does not know when the last one was) or all others are known to have crashed.
//! A joiner further away than Δ_I needs larger timeouts first: a decided value tells all layers to call [`Lowi::raise_timeouts`] between the same two instances, before the join is proposed.
//! Members wait longer from then on, none speaks later than before, so it does not matter that they change within Δ_I of each other. Lowering needs a new engine ([`Body::Switch`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Action, Engine, Halted, Instance, Kind, batch};
use crate::broadcast::rsbcast;
use crate::group::{Batch, Body, Entry, MemberId, MemberSet, Refusals, Refused, VALUE_MAX, Value};

/// How many entries of one member may be with the leader, undecided.
pub const FORWARD_MAX: usize = 64;

/// How many entries handed in here may wait.
pub const PENDING_MAX: usize = 1024;

/// Rounds of one leader that may be in flight: those of (Δ_I + late), in their slots and before
/// them, must stay below.
pub const ROUNDS_MAX: u64 = 1024;

/// Settings of a [`Lowi`]. The same at every member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Between two rounds of a leader (ns).
    pub period_ns: u64,
    /// Δ_I: from the stamp of a round to the delivery of its last copy at anybody, processing included (ns).
    pub delta_i_ns: u64,
    /// Δ_W: within this all start (ns). What it exceeds Δ_I by, less drift, is how late a leader may speak.
    pub delta_w_ns: u64,
    /// How much any clock gains or loses, in millionths.
    pub drift_ppm: u32,
    /// Copies of a round.
    pub paths: usize,
    /// Instances begun within Δ_I.
    pub depth: usize,
    /// Entries of one batch.
    pub batch_entries_max: usize,
    /// Bytes of the values of one batch; also the most that one value may have.
    pub batch_bytes_max: usize,
    /// Speak Δ_I after certain reports that everybody before is dead, instead of waiting for the slot.
    pub hurry: bool,
    /// Whoever misses a copy tells all others to exit too. If not, a leader whose link is broken goes on alone, unaware that the others have stopped.
    pub exit_together: bool,
    /// Rounds of one leader that may be in flight, at most [`ROUNDS_MAX`]. Members in hardware hold fewer.
    pub rounds_max: u64,
    /// Who spoke last speaks again as soon as an entry waits, and not at its next slot only
    /// (`specs/lowi/LOWI_eager.cfg`).
    pub eager: bool,
    /// But not within so long behind a round, for each byte of its values, and at most within
    /// [`Config::rest_max_ns`]: each round costs everybody the same, so that under load fewer and
    /// larger ones let more through.
    pub rest_ns_per_byte: u64,
    /// See there.
    pub rest_max_ns: u64,
    /// Whoever finds that a round was given up although it was heard elsewhere tells all others to
    /// exit too, also where [`Config::exit_together`] is not set: what was decided may differ.
    pub exit_if_diverged: bool,
    /// The shell says when the copies of a round have left ([`Engine::handle_copies_sent`]), and
    /// the round is decided then. If not, they count as having left when the shell has taken them,
    /// and the next call shows that they left in time.
    pub sent_is_said: bool,
}

/// From when a member counts slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Since {
    /// The start: no round has been delivered.
    Start,
    /// The last round.
    Round,
    /// The last round, with which its leader left the group.
    Leave,
}

impl Config {
    /// The period and Δ_I; Δ_W = 2Δ_I, 100 ppm, depth 1, and the rest as large as may be.
    #[must_use]
    pub const fn new(period_ns: u64, delta_i_ns: u64) -> Self {
        Self {
            period_ns,
            delta_i_ns,
            delta_w_ns: delta_i_ns.saturating_mul(2),
            drift_ppm: 100,
            paths: fide_wire::PATHS,
            depth: 1,
            batch_entries_max: 64,
            batch_bytes_max: VALUE_MAX,
            hurry: true,
            exit_together: true,
            rounds_max: 64,
            eager: false,
            rest_ns_per_byte: 0,
            rest_max_ns: 0,
            exit_if_diverged: false,
            sent_is_said: false,
        }
    }

    /// How late a member may speak, with `members` in the group; nothing if Δ_W is too small for this drift.
    #[must_use]
    pub fn late_ns(&self, members: usize) -> Option<u64> {
        let slots = (members as u64 + 1).saturating_mul(self.delta_w_ns.saturating_add(self.delta_i_ns).saturating_mul(2));
        let drift_ns = gain_ns(self.period_ns.saturating_add(slots), self.drift_ppm).saturating_mul(2);
        self.delta_w_ns.checked_sub(self.delta_i_ns)?.checked_sub(drift_ns)
    }

    /// Δ_I by any clock: everything that left before has arrived after it (ns).
    #[must_use]
    pub fn flight_ns(&self) -> u64 {
        self.delta_i_ns.saturating_add(gain_ns(self.delta_i_ns, self.drift_ppm)).saturating_add(1)
    }

    /// From `since` to the moment at which slot `slot` begins and the one before it is given up (local time, longer by what clocks may gain).
    /// `late_ns` is how late members may speak at the start.
    #[must_use]
    pub fn wait_ns(&self, slot: usize, since: Since, late_ns: u64) -> u64 {
        let (period_ns, delta_w_ns) = (self.period_ns, self.delta_w_ns);
        // The first round waits until everybody has begun.
        let (first_ns, start_ns) = match since {
            Since::Start => (period_ns.max(delta_w_ns.saturating_add(gain_ns(delta_w_ns, self.drift_ppm))), late_ns),
            Since::Leave => (period_ns.max(self.flight_ns()), 0),
            Since::Round => (period_ns, 0),
        };
        if slot == 0 {
            return first_ns;
        }
        // One more in each slot: what left at its very end, by the latest clock, arrives before the next one begins by the earliest.
        let width_ns = delta_w_ns + self.delta_i_ns + start_ns + 1;
        let wait_ns = first_ns.saturating_add(width_ns.saturating_mul(slot as u64));
        wait_ns.saturating_add(gain_ns(wait_ns, self.drift_ppm))
    }

    /// Whether a group of this many can run with it.
    ///
    /// # Errors
    /// What is wrong, as a sentence.
    pub fn check(&self, members: usize) -> Result<(), &'static str> {
        let limit = u64::MAX >> 16;
        if self.period_ns == 0 || self.period_ns > limit || self.delta_i_ns > limit || self.delta_w_ns > limit {
            return Err("period, Δ_I and Δ_W are at most 2^48 ns, and the period is not 0");
        }
        if self.drift_ppm > 100_000 {
            return Err("a clock that drifts by more than a tenth is none");
        }
        let Some(late_ns) = self.late_ns(members) else {
            return Err("Δ_W must be at least Δ_I and what clocks may gain while all successors are waited for");
        };
        if !(1..=ROUNDS_MAX).contains(&self.rounds_max) {
            return Err("between 1 and 1024 rounds may be in flight");
        }
        let slots = (self.delta_i_ns + late_ns) / self.period_ns + 2;
        let before_slots =
            if self.eager { ((self.delta_i_ns + late_ns) / self.flight_ns() + 2).saturating_mul(self.depth as u64) } else { 0 };
        if slots.saturating_add(before_slots) > self.rounds_max {
            return Err("the period is so short that more rounds would be in flight than may be");
        }
        if self.depth == 0 || self.batch_entries_max == 0 || !(1..=rsbcast::MAX_PATHS).contains(&self.paths) {
            return Err("depth, entries of a batch and paths are not 0, and there are at most 8 paths");
        }
        Ok(())
    }
}

/// What clocks may differ by in this time: one gains, the other loses.
fn gain_ns(time_ns: u64, drift_ppm: u32) -> u64 {
    u64::try_from((u128::from(time_ns) * 2 * u128::from(drift_ppm)).div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// How a group begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// All make their engines within Δ_W of each other (Alg. 3). The lowest speaks when all have begun; if it is dead, the next one's slot comes.
    Together,
    /// The lowest speaks first, when all who live are there; the others wait for that (§5.2), or for the report that it crashed.
    OnMessage,
}

/// One round of the loop.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Round {
    /// Its number: one more than the last one's, and one more for every member that was skipped.
    pub round: u64,
    /// Who speaks.
    pub leader: MemberId,
    /// What it decides; or, if the batch is empty, the next to be decided.
    pub instance: Instance,
    /// When the leader stamped it, by its own clock (ns).
    pub sent_ns: u64,
    /// The decision; empty is ⊥.
    pub batch: Batch,
}

/// Between two members.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Message {
    /// On all paths.
    Round(Round),
    /// An entry that waits at the sender, for the leader; reliable.
    Forward(Entry),
    /// The sender missed a copy and has stopped: stop, too; reliable.
    Exit,
    /// The sender waits for the start message, which is the receiver's to send; reliable.
    Ready,
    /// Of this round of the sender some copy could not leave to anybody: nobody has it whole, the
    /// sender has not decided it, and has stopped. Whoever has the other copies forgets them;
    /// reliable.
    Unsent {
        /// Which.
        round: u64,
    },
}

/// Where a joiner begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StartPoint {
    /// The last round behind which everything through `next − 1` is decided.
    pub round: u64,
    /// Whose round that was.
    pub leader: MemberId,
    /// The first instance to come.
    pub next: Instance,
}

impl StartPoint {
    /// As bytes: round, instance, leader, little-endian.
    #[must_use]
    pub fn to_value(self) -> Value {
        let mut bytes = Vec::with_capacity(18);
        bytes.extend(self.round.to_le_bytes());
        bytes.extend(self.next.to_le_bytes());
        bytes.extend(self.leader.0.to_le_bytes());
        bytes.into()
    }

    /// Back from bytes; nothing if they are not such.
    #[must_use]
    pub fn from_value(bytes: &[u8]) -> Option<Self> {
        let (round, rest) = bytes.split_first_chunk()?;
        let (next, rest) = rest.split_first_chunk()?;
        let leader = MemberId(u16::from_le_bytes(rest.try_into().ok()?));
        let (round, next) = (u64::from_le_bytes(*round), Instance::from_le_bytes(*next));
        (round < u64::MAX / 2 && (1..u64::MAX / 2).contains(&next)).then_some(Self { round, leader, next })
    }
}

/// An entry that waits, and through whom it came.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    via: MemberId,
    entry: Entry,
}

/// A round of ours between its stamp and the proof that it left in time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Leaving {
    round: Round,
    /// The copies were taken by the shell.
    left: bool,
    /// The last moment at which they may have left.
    fence_ns: u64,
}

/// The fastest round of a leader: its clock's offset from ours plus the least latency, and when that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pace {
    leader: MemberId,
    offset_ns: i64,
    seen_ns: u64,
}

/// One member's engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lowi {
    me: MemberId,
    config: Config,
    late_ns: u64,
    members: MemberSet,
    now_ns: u64,
    receiver: rsbcast::Receiver<Round>,
    /// Delivered by RSBCAST, not taken yet because an earlier one is missing or a barrier stands.
    ready: BTreeMap<u64, Round>,
    /// The last round delivered or sent (0: none), by whom, and when. The group has not started while there is no time.
    last: u64,
    last_leader: MemberId,
    heard_ns: Option<u64>,
    /// Who waits for the start message, and to whom we said that we do.
    await_start: MemberSet,
    told: Option<MemberId>,
    /// Which candidate we wait for.
    slot: usize,
    /// Rounds through this one were before our time.
    begun: u64,
    /// A joiner, or who waits for the start, has had no live round since it was made: it cannot tell when the last one was, so it must not speak.
    unsettled_since_ns: Option<u64>,
    pace: Option<Pace>,
    /// The next instance in the order of rounds; and the last that was decided here, with its round and leader.
    next: Instance,
    decided: Instance,
    settled: (u64, MemberId),
    awaiting: bool,
    leaving: Option<Leaving>,
    /// No round before its slot until then.
    rests_until_ns: u64,
    /// Instances that may not be decided everywhere, and until when.
    in_flight: VecDeque<(Instance, u64)>,
    stable: Instance,
    waiting: VecDeque<Waiting>,
    /// So many of our own entries are with the leader.
    forwarded: usize,
    /// Who was reported, and when.
    crashed: BTreeMap<MemberId, u64>,
    halted: Option<Halted>,
    actions: VecDeque<Action<Message>>,
    refusals: Refusals,
}

impl Lowi {
    /// A member that starts the group together with all others in `members`. Its first instance is `first`.
    ///
    /// # Errors
    /// What is wrong with the settings, as a sentence.
    pub fn new(
        me: MemberId,
        config: Config,
        members: MemberSet,
        first: Instance,
        start: Start,
        now_ns: u64,
    ) -> Result<Self, &'static str> {
        let Some(lowest) = members.min() else { return Err("a group needs a member") };
        if !members.contains(me) {
            return Err("who starts a group is in it");
        }
        let begin = StartPoint { round: 0, leader: lowest, next: first };
        let mut lowi = Self::begin(me, config, members, begin, now_ns)?;
        if start == Start::Together {
            lowi.heard_ns = Some(now_ns);
        } else {
            lowi.await_start();
        }
        Ok(lowi)
    }

    /// The group has not started for us: its lowest member may speak once all are there, and everybody else waits for that.
    fn await_start(&mut self) {
        self.unsettled_since_ns = Some(self.now_ns);
        self.look_for_start();
    }

    /// A joiner: from `begin` on it logs decisions. If that is before the first round, it waits for the start message like all others ([`Start::OnMessage`]): it must have had no
    /// engine of this group before, so that it has not spoken. Every copy of a later round must be handed in, those from before this call too. It takes part as soon as it is
    /// in `members` or [`Engine::set_members`] has it.
    ///
    /// # Errors
    /// What is wrong with the settings, as a sentence.
    pub fn join(me: MemberId, config: Config, members: MemberSet, begin: StartPoint, now_ns: u64) -> Result<Self, &'static str> {
        let mut lowi = Self::begin(me, config, members, begin, now_ns)?;
        if begin.round == 0 {
            lowi.await_start();
            return Ok(lowi);
        }
        if lowi.members.contains(me) && me < begin.leader {
            // Its slot has passed, as the leader's next copy would say.
            lowi.halt(Halted::Expelled, false);
            return Ok(lowi);
        }
        lowi.receiver.skip(begin.leader, begin.round);
        lowi.heard_ns = Some(now_ns);
        lowi.unsettled_since_ns = Some(now_ns);
        Ok(lowi)
    }

    fn begin(me: MemberId, config: Config, members: MemberSet, begin: StartPoint, now_ns: u64) -> Result<Self, &'static str> {
        config.check(crate::group::MAX_MEMBERS.min(members.len() + 1))?;
        let late_ns = config.late_ns(members.len()).unwrap_or(0);
        let delta_i_ns = config.flight_ns();
        let receiver = rsbcast::Config { paths: config.paths, delta_i_ns, in_flight_max: 2 * config.rounds_max };
        Ok(Self {
            me,
            config,
            late_ns,
            members,
            now_ns,
            receiver: rsbcast::Receiver::new(receiver),
            ready: BTreeMap::new(),
            last: begin.round,
            last_leader: begin.leader,
            heard_ns: None,
            await_start: MemberSet::new(),
            told: None,
            slot: 0,
            begun: begin.round,
            unsettled_since_ns: None,
            pace: None,
            next: begin.next.max(1),
            decided: begin.next.max(1) - 1,
            settled: (begin.round, begin.leader),
            awaiting: false,
            leaving: None,
            rests_until_ns: 0,
            in_flight: VecDeque::new(),
            stable: begin.next.max(1) - 1,
            waiting: VecDeque::new(),
            forwarded: 0,
            crashed: BTreeMap::new(),
            halted: None,
            actions: VecDeque::new(),
            refusals: Refusals::default(),
        })
    }

    /// Δ_I and Δ_W grow, as was decided: to be called at every member between the same two instances. Whoever speaks may not do so later than before.
    ///
    /// # Errors
    /// What is wrong with the new ones, as a sentence; then nothing changes.
    pub fn raise_timeouts(&mut self, delta_i_ns: u64, delta_w_ns: u64) -> Result<(), &'static str> {
        let raised = Config { delta_i_ns, delta_w_ns, ..self.config };
        if delta_i_ns < self.config.delta_i_ns || delta_w_ns < self.config.delta_w_ns {
            return Err("timeouts of a running group only grow");
        }
        raised.check(self.members.len())?;
        self.late_ns = self.late_ns.min(raised.late_ns(self.members.len()).unwrap_or(0));
        self.config = raised;
        self.receiver.raise_delta_i(raised.flight_ns());
        Ok(())
    }

    /// The last round that was delivered or sent here.
    #[must_use]
    pub const fn round(&self) -> u64 {
        self.last
    }

    /// Its settings.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Takes an entry and does nothing of what is due: what is done next finds it here. For whoever
    /// follows an engine that entries reach beside its steps; all others use [`Engine::propose`]
    /// and messages. Its member may have left since it came.
    ///
    /// # Errors
    /// What [`Engine::propose`] refuses.
    pub fn enqueue(&mut self, via: MemberId, entry: Entry) -> Result<(), Refused> {
        let most = if via == self.me { PENDING_MAX } else { FORWARD_MAX };
        let taken = match self.halted {
            Some(_) => Err(Refused::Halted),
            None if !self.members.contains(self.me) => Err(Refused::NotMember),
            None => self.queue(via, entry, most),
        };
        self.counted(taken)?;
        self.forward();
        Ok(())
    }

    /// Entries that wait here to be decided.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    // Slots.

    /// `C[0], C[1], …`: who may speak next, in the order of their slots.
    fn candidates(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.members.iter().filter(|member| *member >= self.last_leader)
    }

    fn slot_of(&self, member: MemberId) -> Option<usize> {
        self.candidates().position(|candidate| candidate == member)
    }

    /// Whoever spoke last left with that round.
    fn has_left(&self) -> bool {
        !self.members.contains(self.last_leader)
    }

    /// From the last round to the moment at which slot `slot` begins and the one before it is given up.
    fn wait_ns(&self, slot: usize) -> u64 {
        let since = match self.last {
            0 => Since::Start,
            _ if self.has_left() => Since::Leave,
            _ => Since::Round,
        };
        self.config.wait_ns(slot, since, self.late_ns)
    }

    /// When we speak, if nobody does before: in our slot, or sooner when everybody before us is known to be dead.
    fn speaks_ns(&self) -> Option<u64> {
        let (heard_ns, slot) = (self.heard_ns?, self.slot_of(self.me)?);
        let slot_ns = heard_ns.saturating_add(self.wait_ns(slot));
        if self.may_speak_at_once() {
            return Some(self.now_ns.max(self.rests_until_ns).min(slot_ns));
        }
        if slot == 0 || !self.config.hurry {
            return Some(slot_ns);
        }
        let dead: Option<Vec<u64>> = self.candidates().take(slot).map(|before| self.crashed.get(&before).copied()).collect();
        // A leave is as good as a report: others may not have the round with it yet.
        let left_ns = self.has_left().then_some(heard_ns);
        let silent = dead.and_then(|reported| reported.into_iter().chain(left_ns).max());
        // Who starts the group in another's place may have waited for the others since.
        let hurry_ns = silent.map(|at| at.saturating_add(self.config.flight_ns()).max(heard_ns));
        Some(hurry_ns.map_or(slot_ns, |at| at.min(slot_ns)))
    }

    /// Who spoke last need not wait for its slot. All that others wait for is counted from its last
    /// round and gets shorter by no round that comes earlier.
    fn may_speak_at_once(&self) -> bool {
        let spoke_last = self.last > self.begun && self.last_leader == self.me && self.members.contains(self.me);
        let has_more = !self.waiting.is_empty() && !self.awaiting && self.in_flight.len() < self.config.depth;
        self.config.eager && spoke_last && has_more
    }

    /// The last moment at which we may speak.
    fn fence_ns(&self) -> Option<u64> {
        if self.is_alone() {
            return Some(u64::MAX);
        }
        Some(self.heard_ns?.saturating_add(self.wait_ns(self.slot_of(self.me)?)).saturating_add(self.late_ns))
    }

    /// Nobody is there who could have elected somebody else.
    fn is_alone(&self) -> bool {
        self.members.iter().all(|member| member == self.me || self.crashed.contains_key(&member))
    }

    // Time.

    /// Everything that is due.
    fn advance(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        if self.halted.is_some() {
            return;
        }
        let now_ns = self.now_ns;
        let called_by = self.poll_timeout().map(|due_ns| due_ns.saturating_add(self.late_ns));
        if !self.is_alone() && called_by.is_some_and(|by_ns| now_ns > by_ns) {
            return self.halt(Halted::Expelled, false);
        }
        self.settle();
        self.receiver.handle_timeout(now_ns);
        self.take_events();
        while self.in_flight.front().is_some_and(|&(_, until_ns)| now_ns >= until_ns) {
            self.stable = self.in_flight.pop_front().map_or(self.stable, |(instance, _)| instance);
        }
        while self.halted.is_none() {
            let Some(heard_ns) = self.heard_ns else { return };
            if self.speaks_ns().is_some_and(|at_ns| now_ns >= at_ns) && self.leaving.is_none() {
                return self.speak();
            }
            let ours = self.slot_of(self.me);
            if ours == Some(self.slot) || now_ns < heard_ns.saturating_add(self.wait_ns(self.slot + 1)) {
                return;
            }
            self.slot += 1;
            if self.slot >= self.candidates().count() {
                return self.halt(Halted::MissingBroadcast, false);
            }
            self.forwarded = 0;
            self.forward();
        }
    }

    /// Our slot has come.
    fn speak(&mut self) {
        let (Some(slot), Some(fence_ns)) = (self.slot_of(self.me), self.fence_ns()) else { return };
        let now_ns = self.now_ns;
        if now_ns > fence_ns {
            return self.halt(Halted::Expelled, false);
        }
        if self.unsettled_since_ns.is_some() && !self.has_outlived_all() {
            return self.halt(Halted::MissingBroadcast, false);
        }
        self.unsettled_since_ns = None;
        if self.receiver.in_flight() > 0 || !self.ready.is_empty() {
            // Whatever was sent before has arrived by now: a copy is missing for good.
            return self.halt(Halted::NetworkFault, true);
        }
        let batch = self.take_batch();
        let bytes: usize = batch.iter().map(size).sum();
        let rest_ns = (bytes as u64).saturating_mul(self.config.rest_ns_per_byte).min(self.config.rest_max_ns);
        self.rests_until_ns = now_ns.saturating_add(rest_ns);
        let round = Round { round: self.last + 1 + slot as u64, leader: self.me, instance: self.next, sent_ns: now_ns, batch };
        self.heard(round.round, self.me);
        if let Some(first) = round.batch.first() {
            self.next += 1;
            self.awaiting = !matches!(first.body, Body::Value(_));
            let until_ns = now_ns.saturating_add(self.config.flight_ns());
            self.in_flight.push_back((round.instance, until_ns));
        }
        self.leaving = Some(Leaving { round: round.clone(), left: false, fence_ns });
        self.actions.push_back(Action::Copies { message: Message::Round(round) });
    }

    /// Everybody else is known to have crashed, so long ago that whatever they sent is here: no live round can come any more, and none is needed.
    fn has_outlived_all(&self) -> bool {
        let flight_ns = self.config.flight_ns();
        let mut others = self.members.iter().filter(|member| *member != self.me);
        others.all(|member| self.crashed.get(&member).is_some_and(|at_ns| self.now_ns >= at_ns.saturating_add(flight_ns)))
    }

    /// Before the start message. Nobody counts slots yet, because nobody knows when the others began to wait: who knows that all before it are dead takes
    /// their place, and the others wait for that one. It speaks when all who live are there to hear it.
    fn look_for_start(&mut self) {
        if self.heard_ns.is_some() || self.halted.is_some() {
            return;
        }
        let dead = self.candidates().take_while(|before| self.crashed.contains_key(before)).count();
        let Some(starter) = self.candidates().nth(dead) else { return };
        if dead != self.slot {
            self.slot = dead;
            self.forwarded = 0;
            self.forward();
        }
        if starter != self.me {
            if self.told.replace(starter) != Some(starter) {
                self.actions.push_back(Action::Send { to: starter, message: Message::Ready });
            }
            return;
        }
        let is_there = |member| member == self.me || self.await_start.contains(member) || self.crashed.contains_key(&member);
        if self.members.iter().all(is_there) {
            self.slot = 0;
            self.heard_ns = Some(self.now_ns);
            self.unsettled_since_ns = None;
        }
    }

    /// ⊥, or some of what waits: a barrier alone, values as many as fit.
    fn take_batch(&mut self) -> Batch {
        let mut batch = Vec::new();
        if self.awaiting || self.in_flight.len() >= self.config.depth {
            return batch.into();
        }
        let mut bytes = 0;
        while let Some(next) = self.waiting.front() {
            let barrier = !matches!(next.entry.body, Body::Value(_));
            bytes += size(&next.entry);
            if !batch.is_empty() && (barrier || bytes > self.config.batch_bytes_max) {
                break;
            }
            batch.extend(self.waiting.pop_front().map(|waiting| waiting.entry));
            if barrier || batch.len() == self.config.batch_entries_max {
                break;
            }
        }
        batch.into()
    }

    /// Decides the round of ours that has left, if it left in time.
    fn settle(&mut self) {
        let Some(leaving) = self.leaving.take_if(|leaving| leaving.left) else { return };
        if self.now_ns > leaving.fence_ns {
            return self.halt(Halted::Expelled, false);
        }
        self.settled = (leaving.round.round, self.me);
        if !leaving.round.batch.is_empty() {
            self.decide(leaving.round.instance, leaving.round.batch);
        }
    }

    // Rounds.

    fn take_events(&mut self) {
        while let Some(event) = self.receiver.poll_event() {
            match event {
                rsbcast::Event::Deliver { number, message, .. } => {
                    self.ready.insert(number, message);
                }
                rsbcast::Event::NetFault { missing, .. } => {
                    let all = usize::try_from(missing.count_ones()).is_ok_and(|n| n == self.config.paths);
                    let why = if all { Halted::MissingBroadcast } else { Halted::NetworkFault };
                    return self.halt(why, true);
                }
            }
        }
        self.take_ready();
    }

    /// Rounds in their order: decides, and follows whoever speaks.
    fn take_ready(&mut self) {
        while self.halted.is_none() {
            let Some((&number, round)) = self.ready.first_key_value() else { return };
            if self.awaiting && !round.batch.is_empty() {
                return;
            }
            let Some(slot) = self.slot_of(round.leader) else { return self.halt(Halted::NetworkFault, true) };
            let expected = self.last + 1 + slot as u64;
            if number > expected {
                return;
            }
            let Some((_, round)) = self.ready.pop_first() else { return };
            // Whoever speaks with a number or an instance that we have used does not know what we know, or the other way round.
            // Nobody can know a round of ours that has not left: to follow on it would decide two instances out of order.
            if number < expected || round.instance != self.next || self.leaving.is_some() {
                return self.halt_diverged();
            }
            if self.unsettled_since_ns.is_some_and(|since_ns| self.now_ns > since_ns) {
                self.unsettled_since_ns = None;
            }
            self.heard(number, round.leader);
            self.settled = (number, round.leader);
            if let Some(first) = round.batch.first() {
                self.next += 1;
                self.awaiting = !matches!(first.body, Body::Value(_));
                self.in_flight.push_back((round.instance, self.now_ns.saturating_add(self.config.flight_ns())));
                self.decide(round.instance, round.batch);
            }
        }
    }

    /// A round of `leader`: all waiting begins anew.
    fn heard(&mut self, round: u64, leader: MemberId) {
        let before = self.leader();
        self.last = round;
        self.last_leader = leader;
        self.heard_ns = Some(self.now_ns);
        self.slot = 0;
        if before != Some(leader) {
            self.forwarded = 0;
            self.forward();
        }
    }

    fn decide(&mut self, instance: Instance, batch: Batch) {
        debug_assert_eq!(instance, self.decided + 1);
        self.decided = instance;
        for entry in batch.iter() {
            if let Some(at) = self.waiting.iter().position(|waiting| waiting.entry.id == entry.id) {
                self.forwarded -= usize::from(self.own_before(at) < self.forwarded && self.waiting[at].via == self.me);
                self.waiting.remove(at);
            }
        }
        self.actions.push_back(Action::Decide { instance, batch });
        self.forward();
    }

    // Entries.

    fn own_before(&self, at: usize) -> usize {
        self.waiting.iter().take(at).filter(|waiting| waiting.via == self.me).count()
    }

    /// Our own entries to whoever leads.
    fn forward(&mut self) {
        let Some(to) = self.leader().filter(|leader| *leader != self.me) else { return };
        let (me, room) = (self.me, FORWARD_MAX.saturating_sub(self.forwarded));
        let next = self.waiting.iter().filter(|waiting| waiting.via == me).skip(self.forwarded).take(room);
        let sends: Vec<_> = next.map(|waiting| Action::Send { to, message: Message::Forward(waiting.entry.clone()) }).collect();
        self.forwarded += sends.len();
        self.actions.extend(sends);
    }

    fn queue(&mut self, via: MemberId, entry: Entry, most: usize) -> Result<(), Refused> {
        if size(&entry) > self.config.batch_bytes_max {
            return Err(Refused::TooLarge);
        }
        batch::check_entry(&entry)?;
        if self.waiting.iter().any(|waiting| waiting.entry.id == entry.id) {
            return Err(Refused::Duplicate);
        }
        if self.waiting.iter().filter(|waiting| waiting.via == via).count() >= most {
            return Err(Refused::Busy);
        }
        self.waiting.push_back(Waiting { via, entry });
        Ok(())
    }

    // Copies.

    /// What is wrong with a round that `from` cannot have sent.
    fn judge(&self, from: MemberId, path: usize, round: &Round) -> Result<(), Refused> {
        if self.halted.is_some() {
            return Err(Refused::Halted);
        }
        if !self.members.contains(from) {
            return Err(Refused::UnknownMember);
        }
        if round.leader != from {
            return Err(Refused::NotLeader);
        }
        let barrier = round.batch.iter().any(|entry| !matches!(entry.body, Body::Value(_)));
        if from == self.me
            || path >= self.config.paths
            || round.instance == 0
            || !(1..u64::MAX / 2).contains(&round.round)
            || (barrier && round.batch.len() > 1)
        {
            return Err(Refused::Malformed);
        }
        if round.round <= self.begun {
            return Err(Refused::OldInstance);
        }
        let bytes: usize = round.batch.iter().map(size).sum();
        if round.batch.len() > self.config.batch_entries_max || bytes > self.config.batch_bytes_max {
            return Err(Refused::TooLarge);
        }
        round.batch.iter().try_for_each(batch::check_entry)?;
        let ids: BTreeSet<_> = round.batch.iter().map(|entry| entry.id).collect();
        if ids.len() < round.batch.len() {
            return Err(Refused::Malformed);
        }
        match self.receiver.judge(from, path, round.round, round) {
            // It is sent by a correct member if we missed much: see `take_copy`.
            Err(Refused::TooFarAhead) => Ok(()),
            judged => judged,
        }
    }

    fn take_copy(&mut self, arrival_ns: u64, from: MemberId, path: usize, round: Round) -> Result<(), Refused> {
        let Some(slot) = self.slot_of(from) else {
            // Somebody who was given up, or who left, speaks.
            self.halt(Halted::NetworkFault, true);
            return Ok(());
        };
        let reported_ns = self.crashed.get(&from).copied();
        if reported_ns.is_some_and(|at_ns| arrival_ns > at_ns.saturating_add(self.config.flight_ns()))
            || self.is_late(arrival_ns, &round)
        {
            self.halt(Halted::NetworkFault, true);
            return Ok(());
        }
        if self.slot_of(self.me).is_some_and(|ours| ours < slot) {
            self.halt(Halted::Expelled, false);
            return Ok(());
        }
        if slot < self.slot && self.heard_ns.is_some() {
            // Given up already, by our own clock: later than it can be.
            self.halt(Halted::NetworkFault, true);
            return Ok(());
        }
        let expected = self.last + 1 + slot as u64;
        if from != self.last_leader && self.receiver.through(from) + 1 < expected {
            if round.round < expected {
                self.halt_diverged();
                return Ok(());
            }
            self.receiver.skip(from, expected - 1);
        }
        match self.receiver.handle_copy(self.now_ns, from, path, round.round, round) {
            Err(Refused::TooFarAhead) => self.halt(Halted::MissingBroadcast, true),
            Err(why) => return Err(why),
            Ok(()) => self.take_events(),
        }
        Ok(())
    }

    /// A round of `from` that nobody has whole.
    fn forget(&mut self, from: MemberId, round: u64) {
        let Some(slot) = self.slot_of(from) else { return };
        let expected = self.last + 1 + slot as u64;
        if from != self.last_leader && self.receiver.through(from) + 1 < expected {
            self.receiver.skip(from, expected - 1);
        }
        self.receiver.forget(self.now_ns, from, round);
    }

    /// Whether this copy took longer than Δ_I more than the fastest of its leader.
    fn is_late(&mut self, now_ns: u64, round: &Round) -> bool {
        let offset_ns = now_ns.wrapping_sub(round.sent_ns).cast_signed();
        let fresh = Pace { leader: round.leader, offset_ns, seen_ns: now_ns };
        let Some(pace) = self.pace.filter(|pace| pace.leader == round.leader) else {
            self.pace = Some(fresh);
            return false;
        };
        let aged_ns = i128::from(gain_ns(now_ns.saturating_sub(pace.seen_ns), self.config.drift_ppm));
        let over_ns = i128::from(offset_ns) - i128::from(pace.offset_ns) - aged_ns;
        if over_ns <= 0 {
            self.pace = Some(fresh);
        }
        over_ns > i128::from(self.config.flight_ns())
    }

    /// Somebody speaks who does not know what we know, or the other way round.
    fn halt_diverged(&mut self) {
        self.stop(Halted::MissingBroadcast, self.config.exit_together || self.config.exit_if_diverged);
    }

    /// Stops for good, and the others with it if they are to be told.
    fn halt(&mut self, why: Halted, tell: bool) {
        self.stop(why, tell && self.config.exit_together);
    }

    /// Stops for good. What was not sent is not sent; what was decided stands.
    fn stop(&mut self, why: Halted, tell: bool) {
        if self.halted.is_some() {
            return;
        }
        self.halted = Some(why);
        self.leaving = None;
        self.ready.clear();
        self.waiting.clear();
        self.forwarded = 0;
        self.actions.retain(|action| matches!(action, Action::Decide { .. }));
        // Whoever is not quite in stops nobody (§5.2). Who waits for the start is in: the starter waits for it, too.
        let settled = self.members.contains(self.me) && (self.unsettled_since_ns.is_none() || self.heard_ns.is_none());
        if tell && settled {
            let me = self.me;
            let others = self.members.iter().filter(|member| *member != me && !self.crashed.contains_key(member));
            self.actions.extend(others.map(|to| Action::Send { to, message: Message::Exit }));
        }
        self.actions.push_back(Action::Halt(why));
    }

    fn counted(&mut self, result: Result<(), Refused>) -> Result<(), Refused> {
        result.map_err(|why| self.refusals.count(why))
    }
}

/// The bytes of an entry's value.
fn size(entry: &Entry) -> usize {
    match &entry.body {
        Body::Value(value) => value.len(),
        Body::Join(_) | Body::Leave(_) | Body::Switch(_) => 0,
    }
}

impl Engine<Message> for Lowi {
    fn kind(&self) -> Kind {
        Kind::Lowi
    }

    fn propose(&mut self, now_ns: u64, entry: Entry) -> Result<(), Refused> {
        self.advance(now_ns);
        self.enqueue(self.me, entry)
    }

    fn handle_message(&mut self, now_ns: u64, from: MemberId, message: Message) -> Result<(), Refused> {
        self.advance(now_ns);
        let taken = match message {
            _ if self.halted.is_some() => Err(Refused::Halted),
            _ if from == self.me => Err(Refused::Malformed),
            _ if !self.members.contains(from) => Err(Refused::UnknownMember),
            Message::Round(_) => Err(Refused::Malformed),
            Message::Forward(entry) => self.queue(from, entry, FORWARD_MAX),
            Message::Exit => {
                self.halt(Halted::NetworkFault, false);
                Ok(())
            }
            Message::Unsent { round } => {
                self.forget(from, round);
                Ok(())
            }
            Message::Ready => {
                self.await_start.insert(from);
                self.look_for_start();
                Ok(())
            }
        };
        self.counted(taken)
    }

    fn handle_copy(&mut self, now_ns: u64, from: MemberId, path: usize, message: Message) -> Result<(), Refused> {
        self.advance(now_ns);
        let taken = match message {
            Message::Round(round) => self.judge(from, path, &round).and_then(|()| self.take_copy(now_ns, from, path, round)),
            _ => Err(Refused::Malformed),
        };
        self.counted(taken)
    }

    fn handle_copies_sent(&mut self, now_ns: u64) {
        if let Some(leaving) = &mut self.leaving {
            leaving.left = true;
        }
        self.advance(now_ns);
    }

    fn handle_copies_void(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        let Some(leaving) = self.leaving.take().filter(|_| self.halted.is_none()) else { return };
        self.halt(Halted::NetworkFault, false);
        let (me, round) = (self.me, leaving.round.round);
        let others = self.members.iter().filter(|member| *member != me && !self.crashed.contains_key(member));
        let sends = others.map(|to| Action::Send { to, message: Message::Unsent { round } });
        // Before it stops.
        let stop = self.actions.pop_back();
        self.actions.extend(sends.collect::<Vec<_>>());
        self.actions.extend(stop);
    }

    fn handle_crash(&mut self, now_ns: u64, member: MemberId) -> Result<(), Refused> {
        self.advance(now_ns);
        let refused = match self.halted {
            Some(_) => Some(Refused::Halted),
            None if !self.members.contains(member) => Some(Refused::UnknownMember),
            None if self.crashed.contains_key(&member) => Some(Refused::Duplicate),
            None => None,
        };
        if let Some(why) = refused {
            return Err(self.refusals.count(why));
        }
        if member == self.me {
            self.halt(Halted::Expelled, false);
            return Ok(());
        }
        self.crashed.insert(member, self.now_ns);
        self.look_for_start();
        self.advance(now_ns);
        Ok(())
    }

    fn handle_network_fault(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        self.halt(Halted::NetworkFault, true);
    }

    fn poll_timeout(&self) -> Option<u64> {
        if self.halted.is_some() {
            return None;
        }
        let leaving = self.leaving.as_ref().filter(|leaving| leaving.left).map(|leaving| leaving.round.sent_ns);
        let spoken = self.leaving.is_some();
        let speaks = self.speaks_ns().filter(|_| !spoken);
        let waits = || Some(self.heard_ns?.saturating_add(self.wait_ns(self.slot + 1)));
        let given_up = if self.slot_of(self.me) == Some(self.slot) { None } else { waits() };
        [leaving, speaks, given_up, self.receiver.poll_timeout()].into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        self.advance(now_ns);
    }

    fn set_members(&mut self, now_ns: u64, _from: Instance, members: MemberSet) -> Result<(), Refused> {
        self.now_ns = self.now_ns.max(now_ns);
        if self.halted.is_some() {
            return Err(self.refusals.count(Refused::Halted));
        }
        let before = self.leader();
        let left = self.members.contains(self.me) && !members.contains(self.me);
        self.crashed.retain(|member, _| members.contains(*member));
        self.members = members;
        self.awaiting = false;
        if left {
            self.halt(Halted::Left, false);
            return Ok(());
        }
        self.slot = 0;
        self.late_ns = self.late_ns.min(self.config.late_ns(self.members.len()).unwrap_or(0));
        if self.leader() != before {
            self.forwarded = 0;
        }
        self.forward();
        self.take_ready();
        Ok(())
    }

    /// It owes the others nothing but silence: whoever went on to speak would do so in its successor's round.
    fn set_leaving(&mut self, now_ns: u64, _from: Instance, members: MemberSet) {
        self.now_ns = self.now_ns.max(now_ns);
        if self.halted.is_none() {
            self.members = members;
            self.halt(Halted::Left, false);
            // When it is over, the log says.
            self.actions.retain(|action| !matches!(action, Action::Halt(_)));
        }
    }

    fn start_point(&self) -> Option<Value> {
        let (round, leader) = self.settled;
        Some(StartPoint { round, leader, next: self.decided + 1 }.to_value())
    }

    fn poll_action(&mut self) -> Option<Action<Message>> {
        let action = self.actions.pop_front()?;
        if let (Action::Copies { .. }, Some(leaving), false) = (&action, &mut self.leaving, self.config.sent_is_said) {
            leaving.left = true;
        }
        Some(action)
    }

    fn decided_through(&self) -> Instance {
        self.decided
    }

    fn stable_through(&self) -> Instance {
        self.stable.min(self.decided)
    }

    fn leader(&self) -> Option<MemberId> {
        if self.halted.is_some() {
            return None;
        }
        self.candidates().nth(self.slot)
    }

    fn halted(&self) -> Option<Halted> {
        self.halted
    }

    fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    fn refuse(&mut self, why: Refused) -> Refused {
        self.refusals.count(why)
    }

    fn invariants(&self) {
        self.receiver.invariants();
        let undecided = u64::from(self.leaving.as_ref().is_some_and(|leaving| !leaving.round.batch.is_empty()));
        if self.halted.is_none() {
            assert_eq!(self.decided + 1 + undecided, self.next, "decided is what was delivered or has left");
            assert!(self.slot < self.candidates().count().max(1), "somebody is waited for");
        }
        assert!(self.stable_through() <= self.decided);
        assert!(self.forwarded <= FORWARD_MAX && self.forwarded <= self.own_before(self.waiting.len()));
        assert!(self.own_before(self.waiting.len()) <= PENDING_MAX);
        assert!(self.ready.len() as u64 <= 2 * ROUNDS_MAX * self.members.len().max(1) as u64);
        assert!(self.ready.keys().all(|&number| number > self.last), "what is ready was not taken");
        let leaves = self.actions.iter().filter(|action| matches!(action, Action::Copies { .. })).count();
        assert!(leaves <= usize::from(self.leaving.is_some()), "one round leaves at a time");
    }
}

#[cfg(test)]
#[path = "lowi_tests.rs"]
mod tests;
