//! The fence, driven: two halves of which each does what its thread may.
//!
//! * [`Driver`] is the loop's: it moves every gate as the node's fence says ([`HostFence`], a [`Step`] after each heartbeat and each report). No
//!   system call is in here; the loop adds one for each path and beat, and in mode *sent* only ([`fide_lane::Lane::completion`]).
//! * [`Guard`] is the control thread's: it opens what is pinned, puts gates on interfaces and cgroups, also on those that appear later, and counts.
//!
//! **All gates are one.** They have the same t_valid; when one of them is found closed, whoever found it so (a packet in the kernel, the
//! rule, [`Driver::check`]), the others are shut and the host is *fenced*: half of a host that is taken for dead would still be too much.
//! The exception is a gate that a doomed process closed for itself.
//!
//! **Who may speak for a cgroup.** Its gate follows the watches of root, of the configuration, and
//! of the user who owns the cgroup's directory ([`Guard::may_speak`]). Any user's process may come
//! to be in a cgroup, as a child of a service does; that such a user has it watched, or that it
//! joins, neither opens the gate nor keeps it open, and its end does not shut it. The driver hears
//! of none of these.
//!
//! **A former life.** Gates outlive their agent. When a new one finds them open, the former life's time is not over, and the new one extends it if it
//! can in time: nobody was told anything else. When it finds them closed, packets may have been blocked, and others may have acted on that: the
//! applications of this host must be told and begin anew before they are heard, which is the operator's to say (`fide fence recover`), unless the
//! configuration says once and for all that they do so by themselves (`recover_at_start`).

use crate::config::{AtStart, FenceConfig};
use crate::select;
use crate::stale_sockets::{self, Made, Whose, Within};
use fide_lane::SendOutcome;
use fide_proto::fence::{self as rule, Extension};
use fide_proto::node::fence::{HostFence, Step};
use fide_wire::PATHS;
use fide_wire::control::{FenceStatus, GateStatus};
use fide_wire::verdict::{FenceMode, FencedWhy};
use fide_xdp::fence::{Apart, Fence, FenceError, Gate, GateState, Process};
use fide_xdp::lost::interfaces;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The name of the host's gate.
pub const HOST: &str = "host";

/// Settings of the rule.
#[must_use]
pub fn rule_config(config: &FenceConfig, mode: FenceMode, paths: usize) -> rule::Config {
    rule::Config {
        timeout_ns: config.timeout_ns,
        margin_ns: config.margin_ns,
        drift_ppm: fide_proto::membership::Timing::default().drift_ppm,
        mode,
        paths: config.paths,
        configured: std::array::from_fn(|p| p < paths),
    }
}

/// In the place of a process's number: one that a former life of the agent watched.
const FORMER: u32 = 0;

/// A gate in the loop's hands.
struct Held {
    name: String,
    gate: Gate,
    /// The process whose doom closed it.
    doomed: Option<u32>,
    /// Nothing was promised yet, and until then nothing of it leaves.
    waits: bool,
    /// Watched processes whose sockets are behind it, by watches of those who may speak for its
    /// cgroup.
    apps: BTreeSet<u32>,
}

impl Held {
    fn of(name: String, gate: Gate, apps: BTreeSet<u32>) -> Self {
        // What a former life shut for a doomed process waits for the next instance of that.
        let doomed = (gate.shut_for() == Some(Apart::Ended) || gate.is_cut_off().is_some()).then_some(FORMER);
        Self { name, gate, doomed, waits: false, apps }
    }

    /// What it is like before anything was promised.
    fn begin(&mut self, at_start: AtStart) {
        if self.gate.cgroup().is_none() || self.doomed.is_some() {
            return; // the host's lets everything pass, or nothing could be confirmed
        }
        match (self.gate.check(), self.gate.shut_for(), at_start) {
            (GateState::NotArmed, _, AtStart::Closed) | (_, Some(Apart::NotBegun), AtStart::Closed) => {
                self.gate.shut_apart(Apart::NotBegun);
                self.waits = true;
            }
            // A former life began closed, and never had its heartbeats counted; this one begins open.
            (_, Some(Apart::NotBegun), AtStart::Open) => self.gate.lift(),
            _ => {}
        }
    }
}

/// The loop's half.
pub struct Driver {
    gates: Vec<Held>,
    at_start: AtStart,
    /// Whether the fence is closed, for the control thread.
    shown_closed: Arc<AtomicBool>,
}

impl Driver {
    /// Takes the gates as they were found. When one of them is closed, this life begins fenced.
    #[must_use]
    pub fn new(
        fence: &mut HostFence,
        at_start: AtStart,
        gates: Vec<(String, Gate)>,
        shown_closed: Arc<AtomicBool>,
        now_ns: u64,
    ) -> Self {
        let gates = gates.into_iter().map(|(name, gate)| Held::of(name, gate, BTreeSet::new())).collect();
        let mut driver = Self { gates, at_start, shown_closed };
        driver.gates.iter_mut().for_each(|held| held.begin(at_start));
        if let Some(since_ns) = driver.found_closed(now_ns) {
            driver.close(fence, FencedWhy::FormerLife, since_ns);
        } else if let Some(valid_ns) = driver.open_until() {
            fence.inherit(valid_ns, now_ns);
        }
        driver
    }

    /// Until when a former life left the gates open; nothing where one of them was not armed.
    fn open_until(&self) -> Option<u64> {
        let valid_ns = |held: &Held| match held.gate.check() {
            GateState::Open { valid_ns } => Some(valid_ns),
            _ => None,
        };
        let gates = self.gates.iter().filter(|held| held.doomed.is_none());
        gates.map(valid_ns).try_fold(0, |most, valid_ns| Some(valid_ns?.max(most))).filter(|valid_ns| *valid_ns > 0)
    }

    /// Since when one of the gates is closed: not for a doomed process, nor because nothing was promised yet. One that was shut apart and then with all
    /// others says so of the host, whomever it cut off.
    fn found_closed(&self, now_ns: u64) -> Option<u64> {
        self.gates.iter().find_map(|h| match h.gate.check() {
            GateState::Fenced { since_ns } => Some(since_ns),
            GateState::Shut if h.gate.shut_for().is_none() => Some(now_ns),
            GateState::Shut | GateState::Open { .. } | GateState::NotArmed => None,
        })
    }

    /// Whether a gate was found closed meanwhile; to be called before each heartbeat, so that a host that is fenced does not call itself alive.
    #[must_use]
    pub fn check(&mut self, fence: &mut HostFence, now_ns: u64) -> Option<FencedWhy> {
        if fence.closed().is_some() {
            return None;
        }
        let since_ns = self.found_closed(now_ns)?;
        self.close(fence, FencedWhy::RanOut, since_ns);
        Some(FencedWhy::RanOut)
    }

    /// Moves the gates, and says what became of the fence.
    pub fn obey(&mut self, fence: &mut HostFence, step: Step) -> Outcome {
        match step {
            Step::Nothing => Outcome::Nothing,
            Step::MayReopen => Outcome::MayReopen,
            Step::Close(why) => {
                self.shut();
                Outcome::Closed(why)
            }
            Step::Extend { .. } if fence.closed().is_some() => Outcome::Nothing,
            Step::Extend { extension, first } => match self.extend(extension) {
                Ok(()) if first => Outcome::Armed,
                Ok(()) => Outcome::Nothing,
                Err(Closed) => {
                    self.close(fence, FencedWhy::RanOut, extension.known_ns);
                    Outcome::Closed(FencedWhy::RanOut)
                }
            },
        }
    }

    fn extend(&mut self, Extension { known_ns, valid_ns }: Extension) -> Result<(), Closed> {
        for held in self.gates.iter_mut().filter(|h| h.doomed.is_none()) {
            if std::mem::take(&mut held.waits) {
                open(&held.gate, valid_ns);
                continue;
            }
            let moved = match held.gate.extend(known_ns, valid_ns) {
                Err(refused) if refused.0 == GateState::NotArmed => held.gate.arm(valid_ns),
                other => other,
            };
            moved.map_err(|_| Closed)?;
        }
        Ok(())
    }

    /// Closes the fence and every gate, for good.
    pub fn close(&self, fence: &mut HostFence, why: FencedWhy, since_ns: u64) {
        fence.close(why, since_ns);
        self.shut();
    }

    fn shut(&self) {
        for held in &self.gates {
            // Also those that are shut apart: from now on they are as all others.
            if held.doomed.is_some() || held.waits || matches!(held.gate.check(), GateState::Open { .. } | GateState::NotArmed) {
                held.gate.shut();
            }
        }
        self.shown_closed.store(true, Ordering::SeqCst);
    }

    /// A clean end: nobody extends the time of open gates any more, so from now on they let everything pass. What is closed stays so.
    pub fn end(&mut self, fence: &mut HostFence, now_ns: u64) {
        if fence.closed().is_some() || self.check(fence, now_ns).is_some() {
            return;
        }
        let mut open = self.gates.iter().filter(|h| h.doomed.is_none() && !h.waits);
        if open.any(|held| held.gate.disarm().is_err()) {
            self.close(fence, FencedWhy::RanOut, now_ns);
        }
    }

    /// Opens every gate up to `valid_ns`, for the new incarnation that this host has begun.
    pub fn recover(&mut self, valid_ns: u64) {
        for held in &mut self.gates {
            held.waits = false;
            if held.doomed.is_some() {
                held.gate.shut_apart(Apart::Ended);
            } else {
                open(&held.gate, valid_ns);
            }
        }
        self.shown_closed.store(false, Ordering::SeqCst);
    }

    /// A gate that was made now, in the place of one of the same name: its cgroup came (back).
    pub fn add_gate(&mut self, fence: &HostFence, name: String, gate: Gate) {
        let valid_ns = fence.rule().valid_ns();
        // One that is closed already stays so: it was known, or obeyed a fence that is lost.
        if fence.closed().is_some() {
            gate.shut();
        } else if let (Some(valid_ns), GateState::NotArmed | GateState::Open { .. }) = (valid_ns, gate.check()) {
            open(&gate, valid_ns);
        }
        // Those of its processes that live were found by the path of the cgroup, so they are in this one.
        let mut apps = BTreeSet::new();
        self.gates.retain_mut(|h| {
            let former = h.name == name;
            if former {
                apps.append(&mut h.apps);
            }
            !former
        });
        let mut held = Held::of(name, gate, apps);
        if fence.closed().is_none() && valid_ns.is_none() {
            held.begin(self.at_start);
        }
        self.gates.push(held);
    }

    /// The sockets of a watched process are behind this gate. A new instance behind a gate that the doom of a former one closed opens it.
    /// `lives`: whom it cut off was seen alive, watched or not. `known`: what the watch says. Returns the other watched processes behind it.
    pub fn process(
        &mut self,
        fence: &HostFence,
        (app, who): (u32, Process),
        gate: &str,
        lives: bool,
        known: impl Fn(u32) -> Known,
    ) -> Vec<u32> {
        let is_alive = |app| known(app) == Known::Alive;
        let (closed, valid_ns) = (fence.closed().is_some(), fence.rule().valid_ns());
        let Some(held) = self.gates.iter_mut().find(|h| h.name == gate) else { return Vec::new() };
        held.apps.retain(|a| is_alive(*a));
        held.apps.insert(app);
        // Who was cut off and lives is no former instance, whoever else comes to its cgroup.
        let lives = |doomed: u32| match known(doomed) {
            Known::Alive if doomed == app => lives,
            Known::Alive => true,
            Known::Ended => false, // for certain, though /proc may have it a moment longer
            Known::Not => lives,
        };
        if let Some(cut_off) = held.gate.is_cut_off().filter(|_| held.doomed.is_some_and(lives)) {
            if cut_off == who {
                held.doomed = Some(app);
            }
            tracing::warn!(
                "process {} was cut off by {gate} and lives: the gate stays shut for process {}",
                cut_off.pid,
                who.pid
            );
            return held.apps.iter().copied().filter(|a| *a != app).collect();
        }
        let next = held.doomed.take().is_some();
        if next {
            held.gate.forget_cut_off();
        }
        if next && closed {
            // It opens with all others.
        } else if next && valid_ns.is_none() && self.at_start == AtStart::Closed {
            held.waits = true;
            held.gate.shut_apart(Apart::NotBegun);
        } else if next {
            match valid_ns {
                Some(valid_ns) => open(&held.gate, valid_ns),
                None => held.gate.lift(),
            }
        }
        held.apps.iter().copied().filter(|a| *a != app).collect()
    }

    /// Who was watched behind a gate that stays shut for another one that lived: to be taken for its next instance when that one is gone.
    #[must_use]
    pub fn beside_cut_off(&self, is_alive: impl Fn(u32) -> bool) -> Vec<(u32, String)> {
        let cut_off = self.gates.iter().filter(|h| h.gate.is_cut_off().is_some());
        let others = |h: &Held| {
            let waits = h.apps.iter().copied().filter(|app| h.doomed != Some(*app) && is_alive(*app));
            waits.map(|app| (app, h.name.clone())).collect::<Vec<_>>()
        };
        cut_off.flat_map(others).collect()
    }

    /// A process is doomed: nothing of it leaves any more, unless it shares its gate with other watched processes. A few loads and stores: it
    /// comes before the notice.
    pub fn doomed(&mut self, fence: &HostFence, (app, who): (u32, Process), is_alive: impl Fn(u32) -> bool) {
        for held in self.gates.iter_mut().filter(|h| h.apps.contains(&app) && h.doomed.is_none()) {
            if held.apps.iter().all(|a| *a == app || !is_alive(*a)) {
                held.gate.cut_off(who);
                if fence.closed().is_some() {
                    held.gate.shut(); // it is as all others, and waits for its next instance when they are opened
                }
                held.doomed = Some(app);
            }
        }
    }

    /// The same for one that lives and must not be heard, as others may have acted without it. Says behind which gate.
    ///
    /// # Errors
    /// In words: it is behind none, or not alone.
    pub fn cut_off(
        &mut self,
        fence: &HostFence,
        (app, who): (u32, Process),
        is_alive: impl Fn(u32) -> bool,
    ) -> Result<String, String> {
        let Some(held) = self.gates.iter().find(|h| h.apps.contains(&app)) else {
            return Err(
                "no cgroup around it is among [fence] cgroups, or it is watched for a user who does not own that cgroup".into()
            );
        };
        if held.apps.iter().any(|a| *a != app && is_alive(*a)) {
            return Err(format!("other watched processes that live are in {}", held.name));
        }
        let name = held.name.clone();
        self.doomed(fence, (app, who), is_alive);
        Ok(name)
    }

    /// For `fide fence status`, without what only the control thread knows.
    #[must_use]
    pub fn status(
        &self,
        fence: &HostFence,
        now_ns: u64,
        host_name: impl Fn(u32) -> String,
        app_name: impl Fn(u32) -> String,
    ) -> FenceStatus {
        let (rule, waiting, closed) = (fence.rule(), fence.waiting_rule(), fence.closed());
        let (config, valid_ns) = (rule.config(), rule.valid_ns());
        let (extensions, left_min_ns) = rule.extensions();
        let gate = |held: &Held| GateStatus {
            name: held.name.clone(),
            state: state_name(held.gate.check()).into(),
            doomed: match held.doomed {
                None => String::new(),
                Some(FORMER) => "a process of the agent's former life".into(),
                Some(app) => app_name(app),
            },
            ..GateStatus::default()
        };
        FenceStatus {
            state: match (closed, valid_ns) {
                (Some(_), _) if fence.is_recovering() => "recovering",
                (Some(_), _) => "fenced",
                (None, None) => "starting",
                (None, Some(_)) => "open",
            }
            .into(),
            why: closed.map_or_else(String::new, |c| c.why.to_string()),
            fenced_ns: closed.map_or(0, |c| c.since_ns),
            mode: config.mode.to_string(),
            paths: if config.paths == fide_proto::fence::Paths::Both { "both" } else { "one" }.into(),
            timeout_ns: config.timeout_ns,
            margin_ns: config.margin_ns,
            valid_ns: valid_ns.unwrap_or(0),
            left_ns: valid_ns.unwrap_or(0).saturating_sub(now_ns),
            extensions,
            left_min_ns: left_min_ns.unwrap_or(0),
            confirmations_needed: u32::try_from(waiting.needed()).unwrap_or(u32::MAX),
            confirmed_by: waiting.confirmers().map(&host_name).collect(),
            observers: waiting.observers().map(&host_name).collect(),
            waits_for: if config.mode == FenceMode::Sent {
                Vec::new()
            } else {
                waiting.awaited(now_ns).map(&host_name).collect()
            },
            interfaces: Vec::new(),
            gates: self.gates.iter().map(gate).collect(),
        }
    }
}

/// What the watch says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It is watched, and has not ended.
    Alive,
    /// Its end was seen, or that nothing can prevent it.
    Ended,
    /// It is watched no longer, or never was.
    Not,
}

/// A gate ran out before its time was extended.
struct Closed;

/// Which paths have taken their copies of a heartbeat. The kernel takes frames for an interface without carrier without a word, and drops them: those do not count.
#[must_use]
pub fn taken(outcomes: &[SendOutcome; PATHS], carriers: [bool; PATHS]) -> [bool; PATHS] {
    std::array::from_fn(|p| carriers[p] && outcomes[p].is_ok() && outcomes[p].copies > 0)
}

/// What came of a heartbeat that may count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to tell.
    Nothing,
    /// t_valid was set for the first time: from now on there is a promise.
    Armed,
    /// This host is fenced.
    Closed(FencedWhy),
    /// Enough others hear it behind its closed gates.
    MayReopen,
}

/// Whatever it is like, it is open up to `valid_ns` then. Only for who may say so.
fn open(gate: &Gate, valid_ns: u64) {
    let opened = match gate.check() {
        GateState::NotArmed => gate.arm(valid_ns),
        GateState::Open { .. } => gate.extend(crate::clock::now_ns(), valid_ns),
        GateState::Fenced { .. } | GateState::Shut => gate.recover(valid_ns),
    };
    if let Err(e) = opened {
        tracing::warn!("a gate is not opened: {e}"); // it ran out in this moment: the next check finds it
    }
}

pub(crate) fn state_name(state: GateState) -> &'static str {
    match state {
        GateState::NotArmed => "not-armed",
        GateState::Open { .. } => "open",
        GateState::Fenced { .. } => "fenced",
        GateState::Shut => "shut",
    }
}

/// The control thread's half.
pub struct Guard {
    fence: Fence,
    config: FenceConfig,
    /// The interfaces of the paths.
    paths: Vec<String>,
    /// Guarded, by name, with the index they had.
    interfaces: BTreeMap<String, u32>,
    /// The cgroups that have a gate, with their inode numbers, and the cgroups that are or were below.
    cgroups: BTreeMap<PathBuf, (u64, Within)>,
    gates: Vec<(String, Gate)>,
    closed: Arc<AtomicBool>,
    complained: BTreeSet<String>,
}

impl Guard {
    /// Opens the fence, and guards what is there. What is configured and not there now is guarded when it comes.
    ///
    /// # Errors
    /// What this host cannot do, why, and what to do.
    pub fn open(config: &FenceConfig, paths: Vec<String>) -> Result<Self, String> {
        let advice = "; set [fence] mode = \"off\" to start without a fence";
        let fence = Fence::open(&config.pins).map_err(|e| format!("the fence cannot be made: {e}{advice}"))?;
        let in_force = |gate: &Gate| gate.peek() != GateState::NotArmed;
        let found_in_force = in_force(&fence.host()) || fence.groups().iter().any(in_force);
        let mut guard = Self {
            fence,
            config: config.clone(),
            paths,
            interfaces: BTreeMap::new(),
            cgroups: BTreeMap::new(),
            gates: Vec::new(),
            closed: Arc::new(AtomicBool::new(false)),
            complained: BTreeSet::new(),
        };
        // One that is closed counts also where no interface is to be behind it any more: others may have acted on that.
        if config.host || is_closed(&guard.fence.host()) {
            guard.gates.push((HOST.into(), guard.fence.host()));
        }
        match guard.guard_all() {
            Ok(()) => {
                guard.find_former_interfaces();
                Ok(guard)
            }
            Err(e) if found_in_force => {
                Err(format!("{e}; the fence that a former life left stays as it is until an agent starts"))
            }
            Err(e) => {
                guard.end(); // what was made is not left behind
                Err(format!("{e}{advice}"))
            }
        }
    }

    /// Interfaces that a former life guarded and this one does not want: let go, unless the host is fenced. Then they are as mute as the others, until it is recovered.
    fn find_former_interfaces(&mut self) {
        let wanted = self.wanted();
        let found: Vec<_> = interfaces().into_iter().filter(|(_, index)| self.fence.adopt_interface(*index)).collect();
        let closed = is_closed(&self.fence.host());
        for (name, index) in found.into_iter().filter(|found| !wanted.contains(found)) {
            if closed {
                tracing::warn!(
                    "interface {name} is not to be behind the fence any more, which is closed: nothing leaves by it before `fide fence recover`"
                );
            } else if let Err(e) = self.fence.release_interface(index) {
                tracing::warn!("interface {name} stays behind the fence of a former life: {e}");
            }
        }
        if !self.config.host && !closed {
            self.fence.host().lift();
        }
    }

    fn guard_all(&mut self) -> Result<(), String> {
        self.try_interfaces().map_err(|(name, e)| format!("interface {name} cannot be guarded: {e}"))?;
        for dir in self.config.cgroups.clone().iter().filter(|d| d.exists()) {
            self.fence.guard_cgroup(dir).map_err(|e| e.to_string())?;
        }
        self.renew_cgroups();
        Ok(())
    }

    /// Every gate, with its name; those of a former owner's cgroups too, as far as these are there.
    #[must_use]
    pub fn gates(&self) -> Vec<(String, Gate)> {
        let known: BTreeSet<_> = self.gates.iter().filter_map(|(_, g)| g.cgroup()).collect();
        let former =
            self.fence.groups().into_iter().filter(|g| g.cgroup().is_some_and(|id| !known.contains(&id)) && !g.is_gone());
        self.gates.iter().cloned().chain(former.map(|g| (format!("cgroup {}", g.cgroup().unwrap_or(0)), g))).collect()
    }

    /// Whether the host is fenced, as the driver says.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// The same, for the driver to show it.
    #[must_use]
    pub fn shown_closed(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.closed)
    }

    fn wanted(&self) -> Vec<(String, u32)> {
        if !self.config.host {
            return Vec::new();
        }
        let every = self.config.interfaces.iter().any(|i| i == "*");
        let named = |name: &String| self.paths.contains(name) || self.config.interfaces.contains(name);
        interfaces().into_iter().filter(|(name, index)| (every || named(name)) && !is_loopback(name, *index)).collect()
    }

    fn try_interfaces(&mut self) -> Result<(), (String, FenceError)> {
        let wanted = self.wanted();
        self.interfaces.retain(|name, index| wanted.iter().any(|(n, i)| n == name && i == index));
        for (name, index) in wanted {
            if self.interfaces.contains_key(&name) {
                if self.fence.guards_interface(index) {
                    continue;
                }
                tracing::warn!(
                    "interface {name} was NOT behind the fence: somebody has taken its program away, which is put back"
                );
            }
            self.fence.guard_interface(index).map_err(|e| (name.clone(), e))?;
            self.complained.remove(&name);
            self.interfaces.insert(name, index);
        }
        Ok(())
    }

    /// Guards interfaces that came (back). Says what cannot be guarded, once.
    pub fn renew_interfaces(&mut self) -> Option<String> {
        let (name, error) = self.try_interfaces().err()?;
        self.complained.insert(name.clone()).then(|| format!("interface {name} is NOT behind the fence: {error}"))
    }

    /// Guards cgroups that came (back). Returns the new gates.
    pub fn renew_cgroups(&mut self) -> (Vec<(String, Gate)>, Vec<String>) {
        let (mut gates, mut complaints) = (Vec::new(), Vec::new());
        for dir in self.config.cgroups.clone() {
            let inode = fs::metadata(&dir).ok().map(|m| m.ino());
            let name = dir.display().to_string();
            if inode == self.cgroups.get(&dir).map(|(inode, _)| *inode) {
                if inode.is_some() && !self.fence.guards_cgroup(&dir) {
                    complaints.extend(self.put_back(&dir, &name));
                }
                self.look_within(&name);
                continue;
            }
            self.gates.retain(|(known, _)| *known != name);
            self.cgroups.remove(&dir);
            let Some(inode) = inode else { continue };
            match self.fence.guard_cgroup(&dir) {
                Ok(gate) => {
                    self.complained.remove(&name);
                    self.cgroups.insert(dir, (inode, Within::of(&self.fence, &gate)));
                    self.gates.push((name.clone(), gate.clone()));
                    self.look_within(&name);
                    gates.push((name, gate));
                }
                Err(e) if self.complained.insert(name) => complaints.push(format!("NOT behind the fence: {e}")),
                Err(_) => {}
            }
        }
        (gates, complaints)
    }

    /// Attaches the program of a cgroup again that somebody has detached. Its gate is what it was.
    fn put_back(&mut self, dir: &Path, name: &str) -> Option<String> {
        match self.fence.guard_cgroup(dir) {
            Ok(_) => {
                tracing::warn!("cgroup {name} was NOT behind the fence: somebody has taken its program away, which is put back");
                self.complained.remove(name);
                None
            }
            Err(e) => self.complained.insert(name.into()).then(|| format!("NOT behind the fence: {e}")),
        }
    }

    /// Looks which cgroups there are below a guarded one.
    fn look_within(&mut self, name: &str) {
        let gate = self.gates.iter().find(|(known, _)| known == name);
        if let (Some((_, gate)), Some((_, within))) = (gate, self.cgroups.get_mut(Path::new(name))) {
            within.look(Path::new(name), &self.fence, gate);
        }
    }

    /// The guarded cgroup in which a process is, or below: the deepest, if there are several.
    #[must_use]
    pub fn cgroup_of(&self, pid: u32) -> Option<String> {
        let own = cgroup_dir(pid)?;
        let guarded = self.cgroups.keys().filter(|dir| own.starts_with(dir));
        guarded.max_by_key(|dir| dir.components().count()).map(|dir| dir.display().to_string())
    }

    /// Whether watches of this user say something of the cgroup of this gate: those of root, hence
    /// of the configuration, and of the user to whom the cgroup was delegated.
    #[must_use]
    pub fn may_speak(&self, gate: &str, uid: u32) -> bool {
        uid == 0 || fs::metadata(gate).is_ok_and(|dir| dir.uid() == uid)
    }

    /// Before this cgroup's gate opens for the next instance of a doomed process: ends the connections that the former one left, whose bytes would leave then.
    pub fn drop_left_by_doomed(&mut self, gate: &str, pid: u32) {
        if self.gates.iter().any(|(name, g)| name == gate && g.peek() == GateState::Shut) {
            self.look_within(gate);
            if let Some((_, within)) = self.cgroups.get(Path::new(gate)) {
                drop_left(Made::In(within.ids()), Some(pid), gate);
            }
        }
    }

    /// Whether there is a gate that has cut off a process which is gone since.
    #[must_use]
    pub fn cut_off_gone(&self) -> bool {
        self.gates.iter().any(|(_, gate)| gate.is_cut_off().is_some_and(|who| !lives(who)))
    }

    /// Whether the process that this gate cut off lives, as far as it is known which one that was.
    #[must_use]
    pub fn cut_off_lives(&self, gate: &str) -> bool {
        self.gates.iter().any(|(name, g)| name == gate && g.is_cut_off().is_some_and(lives))
    }

    /// Before the fence of a closed host opens: ends the connections that dead processes left. What living ones hold is theirs to begin anew.
    pub fn drop_left(&self) {
        if !self.gates().iter().any(|(_, gate)| is_closed(gate)) {
            return;
        }
        if self.config.host {
            return drop_left(Made::Anywhere, None, "the fence");
        }
        drop_left(Made::In(&self.within()), None, "the fence");
    }

    /// Every cgroup that is or was guarded, or below one.
    fn within(&self) -> BTreeSet<u64> {
        self.cgroups.values().flat_map(|(_, within)| within.ids()).copied().collect()
    }

    /// Fills in what only this half knows.
    pub fn complete(&self, status: &mut FenceStatus) {
        status.interfaces = self.interfaces.keys().cloned().collect();
        for (name, gate) in self.gates() {
            if let Some(shown) = status.gates.iter_mut().find(|g| g.name == name) {
                let counts = self.fence.counts(&gate);
                (shown.passed, shown.blocked) = (counts.passed, counts.blocked);
            }
        }
    }

    /// A clean end: takes the fence away, unless the host is fenced. Then it stays: stopping the agent is not a recovery. For the same reason a gate
    /// stays that has cut off a process that lives: it was told that this one is not heard any more.
    pub fn end(self) {
        if self.closed.load(Ordering::SeqCst) || self.gates().iter().any(|(_, gate)| is_closed(gate)) {
            tracing::warn!(
                "this host is fenced, and stays so without its agent; start the agent and say `fide fence recover`; where there is to be no agent any more, `fided --remove-fence`"
            );
            return;
        }
        let cut_off = |gate: &Gate| gate.is_cut_off().filter(|who| lives(*who));
        for who in self.fence.groups().iter().filter_map(cut_off) {
            tracing::warn!(
                "process {} was cut off and lives: its gate stays shut without the agent; end it, start the agent, and then its next instance",
                who.pid
            );
        }
        // What the dead left does not leave by their gates, which open now. Behind the others it is nobody's business, and they do not wait for it.
        self.gates()
            .iter()
            .filter(|(_, gate)| gate.shut_for() != Some(Apart::Ended) && cut_off(gate).is_none())
            .for_each(|(_, gate)| gate.lift());
        for (name, _) in self.gates.iter().filter(|(_, gate)| gate.shut_for() == Some(Apart::Ended)) {
            if let Some((_, within)) = self.cgroups.get(Path::new(name)) {
                drop_left(Made::In(within.ids()), None, name);
            }
        }
        if let Err(e) = self.fence.remove_but(|gate| cut_off(gate).is_some()) {
            tracing::error!("the fence is not removed: {e}");
        }
    }
}

/// Without a fence in the configuration: says what a former life left in force, which nobody extends nor recovers.
pub fn warn_of_former(config: &FenceConfig) {
    if !config.pins.exists() {
        return;
    }
    let pins = config.pins.display();
    let fence = match Fence::open(&config.pins) {
        Ok(fence) => fence,
        Err(e) => return tracing::warn!("whether a former fence is in force is not known: {e}"),
    };
    for gate in [fence.host()].into_iter().chain(fence.groups()).filter(|gate| gate.peek() != GateState::NotArmed) {
        let of = gate.cgroup().map_or_else(
            || "the host's gate".to_string(),
            |id| format!("the gate of cgroup {id} (find /sys/fs/cgroup -inum {id})"),
        );
        tracing::warn!(
            "{of}, left by a former life of the agent in {pins}, is {}, and [fence] mode = \"off\": nothing leaves by it behind its t_valid. Set the mode again and say \
             `fide fence recover`; or stop the agent, and `fided --remove-fence`",
            gate.peek()
        );
    }
}

/// Where the gates of applications are kept: beside the fence.
#[must_use]
pub fn gate_pins(config: &FenceConfig) -> PathBuf {
    let mut pins = config.pins.clone().into_os_string();
    pins.push("-gates");
    PathBuf::from(pins)
}

/// For `fided --remove-fence`: takes away every fence of this configuration and the programs of those whose pins are lost. Says what was there.
///
/// # Errors
/// In words: an agent has it, or it cannot be removed.
pub fn remove(config: &FenceConfig) -> Result<Vec<String>, String> {
    let mut said = Vec::new();
    for pins in [config.pins.clone(), gate_pins(config)] {
        if !pins.exists() {
            continue;
        }
        let at = pins.display();
        match Fence::open(&pins) {
            Ok(mut fence) => {
                said.push(format!("the fence in {at}: the host's gate was {}", fence.host().peek()));
                let guarded: Vec<_> = interfaces().into_iter().filter(|(_, index)| fence.adopt_interface(*index)).collect();
                said.extend(guarded.iter().map(|(name, _)| format!("its program on interface {name}")));
                let gate = |gate: &Gate| format!("its gate of cgroup {}, which was {}", gate.cgroup().unwrap_or(0), gate.peek());
                said.extend(fence.groups().iter().map(gate));
                fence.remove().map_err(|e| e.to_string())?;
            }
            Err(e @ FenceError::Owned { .. }) => return Err(format!("{e}; stop it first")),
            Err(e) => {
                // What it asked is found below, as that of a fence whose pins are lost.
                fide_xdp::fence::remove_pins(&pins).map_err(|e| format!("{at} is left as it is: {e}"))?;
                said.push(format!("the pins in {at}, which could not be opened ({e})"));
            }
        }
    }
    said.extend(fide_xdp::lost::remove().map_err(|e| format!("what fences left whose pins are lost cannot be found: {e}"))?);
    Ok(said)
}

/// Whether it is closed as all gates are.
fn is_closed(gate: &Gate) -> bool {
    matches!(gate.check(), GateState::Fenced { .. } | GateState::Shut) && gate.shut_for().is_none()
}

/// Whether it can still send.
fn lives(who: Process) -> bool {
    select::lives(Path::new("/proc"), who.pid, who.start_ticks)
}

fn drop_left(made: Made<'_>, of: Option<u32>, what: &str) {
    match stale_sockets::end(made, Whose::Nobodys, of) {
        Ok(0) => {}
        Ok(n) => tracing::info!("{what} opens: {n} TCP connections that dead processes left were ended"),
        Err(e) => tracing::warn!("{what} opens, and what dead processes wrote before may leave now: {e}"),
    }
}

/// By name: the device of a namespace that is made with it, always number 1.
fn is_loopback(name: &str, index: u32) -> bool {
    name == "lo" && index == 1
}

/// The cgroup of version 2 in which a process is.
pub(crate) fn cgroup_dir(pid: u32) -> Option<PathBuf> {
    cgroup_dir_of(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

/// The directory of the cgroup of version 2 that a `/proc/PID/cgroup` names.
pub(crate) fn cgroup_dir_of(text: &str) -> Option<PathBuf> {
    let below = text.lines().find_map(|l| l.strip_prefix("0::"))?.trim_start_matches('/').to_owned();
    Some(cgroup_root()?.join(below))
}

/// Where cgroups of version 2 are mounted.
fn cgroup_root() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mut words = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>());
    words.find(|w| w.get(2) == Some(&"cgroup2")).and_then(|w| w.get(1).map(|dir| Path::new(dir).to_path_buf()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: &str = "service";

    /// A driver and the fence that it obeys.
    struct Both(HostFence, Driver);

    impl Both {
        fn new(gates: Vec<(String, Gate)>) -> Self {
            let mut fence = HostFence::new(rule_config(&FenceConfig::default(), FenceMode::Sent, 1), false, 1);
            let driver = Driver::new(&mut fence, AtStart::Open, gates, Arc::default(), 1_000);
            Self(fence, driver)
        }

        fn closed(&self) -> Option<FencedWhy> {
            self.0.closed().map(|closed| closed.why)
        }

        fn close(&mut self, why: FencedWhy, since_ns: u64) {
            self.1.close(&mut self.0, why, since_ns);
        }

        fn check(&mut self, now_ns: u64) -> Option<FencedWhy> {
            self.1.check(&mut self.0, now_ns)
        }

        fn recover(&mut self, now_ns: u64) {
            self.1.recover(self.0.recover(2, now_ns).unwrap());
        }

        fn end(&mut self, now_ns: u64) {
            self.1.end(&mut self.0, now_ns);
        }

        fn add_gate(&mut self, name: String, gate: Gate) {
            self.1.add_gate(&self.0, name, gate);
        }

        fn process(&mut self, app: (u32, Process), gate: &str, lives: bool, known: impl Fn(u32) -> Known) -> Vec<u32> {
            self.1.process(&self.0, app, gate, lives, known)
        }

        fn doomed(&mut self, app: (u32, Process), is_alive: impl Fn(u32) -> bool) {
            self.1.doomed(&self.0, app, is_alive);
        }

        fn cut_off(&mut self, app: (u32, Process), is_alive: impl Fn(u32) -> bool) -> Result<String, String> {
            self.1.cut_off(&self.0, app, is_alive)
        }

        fn beside_cut_off(&self, is_alive: impl Fn(u32) -> bool) -> Vec<(u32, String)> {
            self.1.beside_cut_off(is_alive)
        }
    }

    fn driver(gate: &Gate) -> Both {
        Both::new(vec![(SERVICE.into(), gate.clone())])
    }

    fn process(pid: u32) -> Process {
        Process { pid, start_ticks: 7 }
    }

    /// As a watch list would say it.
    fn alive(apps: &[u32]) -> impl Fn(u32) -> Known + Clone {
        |app| if apps.contains(&app) { Known::Alive } else { Known::Ended }
    }

    fn is_shut(gate: &Gate) -> bool {
        gate.peek() == GateState::Shut
    }

    #[test]
    fn a_host_that_was_fenced_is_found_so_whomever_its_gates_had_cut_off() {
        for cut_off_first in [true, false] {
            let gate = Gate::of_no_program(77);
            let mut d = driver(&gate);
            assert!(d.process((1, process(11)), SERVICE, false, alive(&[1])).is_empty());
            let cut_off = |d: &mut Both| d.doomed((1, process(11)), |_| false);
            if cut_off_first {
                cut_off(&mut d);
                assert_eq!(driver(&gate).closed(), None, "that concerns this one alone");
            }
            d.close(FencedWhy::Operator, 5);
            if !cut_off_first {
                cut_off(&mut d);
            }
            let mut next = driver(&gate);
            assert_eq!(next.closed(), Some(FencedWhy::FormerLife));
            assert_eq!(gate.is_cut_off(), Some(process(11)));
            // Nor does another instance open it, before the host is recovered.
            next.process((1, process(12)), SERVICE, false, alive(&[1]));
            assert!(is_shut(&gate) && driver(&gate).closed().is_some());
            next.recover(9);
            assert!(matches!(gate.peek(), GateState::Open { .. }), "{gate:?}");
        }
    }

    #[test]
    fn the_next_instance_that_came_while_the_host_was_fenced_is_heard_also_by_the_next_life() {
        let gate = Gate::of_no_program(77);
        let mut d = driver(&gate);
        d.process((1, process(11)), SERVICE, false, alive(&[1]));
        d.doomed((1, process(11)), |_| false);
        d.close(FencedWhy::Operator, 5);
        d.process((2, process(12)), SERVICE, false, alive(&[2]));
        let mut next = driver(&gate);
        next.recover(9);
        assert!(matches!(gate.peek(), GateState::Open { .. }), "{gate:?}");
    }

    #[test]
    fn who_is_cut_off_and_lives_opens_no_gate_by_leaving_and_coming_again() {
        let gate = Gate::of_no_program(77);
        let mut d = driver(&gate);
        d.process((1, process(11)), SERVICE, false, alive(&[1]));
        assert_eq!(d.cut_off((1, process(11)), |app| app == 1).unwrap(), SERVICE);
        let left = |app| if app == 2 { Known::Alive } else { Known::Not };
        d.process((2, process(11)), SERVICE, true, left);
        assert!(is_shut(&gate));
        // Nor does it while another one is watched meanwhile.
        d.process((3, process(13)), SERVICE, true, |app| if app == 3 { Known::Alive } else { Known::Not });
        assert!(is_shut(&gate));
        // By the watch that is alive, whatever /proc says.
        d.process((2, process(11)), SERVICE, true, left);
        d.process((4, process(14)), SERVICE, false, alive(&[2, 4]));
        assert!(is_shut(&gate));
    }

    #[test]
    fn who_came_beside_one_that_was_cut_off_is_its_next_instance_when_that_one_is_gone() {
        let gate = Gate::of_no_program(77);
        let mut d = driver(&gate);
        d.process((1, process(11)), SERVICE, false, alive(&[1]));
        d.cut_off((1, process(11)), |app| app == 1).unwrap();
        assert_eq!(d.beside_cut_off(|app| app == 1), []);
        d.process((2, process(12)), SERVICE, true, alive(&[1, 2]));
        assert_eq!(d.beside_cut_off(|_| true), [(2, SERVICE.to_string())]);
        assert_eq!(d.beside_cut_off(|app| app == 1), [], "it has ended as well");
        d.process((2, process(12)), SERVICE, false, alive(&[2]));
        assert!(!is_shut(&gate) && gate.is_cut_off().is_none());
        assert_eq!(d.beside_cut_off(|_| true), []);
    }

    #[test]
    fn a_clean_end_waits_for_nothing_with_open_gates_and_opens_none() {
        let gates = [77, 78].map(Gate::of_no_program);
        let both = gates.iter().map(|g| (format!("{:?}", g.cgroup()), g.clone())).collect();
        let mut d = Both::new(both);
        let soon = crate::clock::now_ns() + 3_600_000_000_000;
        gates.iter().for_each(|g| g.arm(soon).unwrap());
        let name = d.1.gates[1].name.clone();
        d.process((1, process(11)), &name, false, alive(&[1]));
        d.doomed((1, process(11)), |_| false);
        d.end(9);
        assert_eq!(gates.each_ref().map(Gate::peek), [GateState::NotArmed, GateState::Shut]);
        // What ran out is not overlooked.
        gates[0].arm(5).unwrap();
        d.end(9);
        assert!(d.closed().is_some() && d.1.shown_closed.load(Ordering::SeqCst));
        assert!(gates.iter().all(is_closed));
    }

    #[test]
    fn a_gate_that_comes_back_closed_is_not_opened_by_that() {
        for cut_off in [true, false] {
            let gate = Gate::of_no_program(77);
            let mut d = driver(&Gate::of_no_program(78));
            d.recover(9); // and so it has a t_valid
            match cut_off {
                true => gate.cut_off(process(11)),
                false => gate.shut(),
            }
            d.add_gate(SERVICE.into(), gate.clone());
            assert!(is_shut(&gate));
            assert_eq!(d.check(10).is_none(), cut_off, "closed for no process: so is the host");
        }
    }
}
