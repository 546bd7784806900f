//! Gates of applications with heartbeats of their own: each has a t_valid of its own, which its own processes move (SafeTimer §4.2, §6.3: `safetimer_extend`),
//! after a heartbeat that counts by their own rules. Independent of the host's fence: that of `[fence]` follows this agent's heartbeats.
//!
//! A second [`Fence`], pinned beside the first, with the cgroups of `[[gate]]`. Where both guard a cgroup, packets must pass both.
//!
//! **Whose word counts.** A gate is moved by a process that the kernel shows to be in its cgroup, of a user that the configuration names. It can do no worse than
//! any of them could: stay silent, or go on sending. Nobody outside can close or open it. Both are
//! looked at anew for each move ([`Place`]): a process that was moved out of the cgroup is outside,
//! also with a connection that it opened before, and a cgroup that was made again by the same name
//! is another one.
//!
//! **Whose life it has.** Its application's, not the agent's: an agent that ends, cleanly or not, leaves armed gates where they are, and they run out,
//! because others may rely on what was promised. The next agent finds them and moves them on, in time, or finds them closed. A gate goes with its cgroup.

use crate::access::{Peer, Set};
use crate::config::{Config, Connections};
use crate::stale_sockets::{self, Made, Whose, Within};
use fide_wire::control::{ErrorCode, GateStatus, Refused, VALID_MAX_NS};
use fide_xdp::fence::{Fence, Gate, GateState};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

struct Own {
    name: String,
    dir: PathBuf,
    users: Set,
    connections: Connections,
    /// The cgroup's inode number, and its gate.
    made: Option<(u64, Gate)>,
    /// The cgroups in which its sockets were made.
    within: Within,
    /// That it is closed was told.
    told: bool,
}

impl Own {
    fn look_within(&mut self, fence: &Fence) {
        if let (Connections::End, Some((_, gate))) = (self.connections, &self.made) {
            self.within.look(&self.dir, fence, gate);
        }
    }

    /// Ends what its closed gate holds back, so that nothing of it leaves when the gate opens.
    fn drop_held_back(&mut self, fence: &Fence, pid: Option<u32>) -> Result<(), Refused> {
        if self.connections == Connections::Keep {
            return Ok(());
        }
        self.look_within(fence);
        match stale_sockets::end(Made::In(self.within.ids()), Whose::Anybodys, pid) {
            Ok(0) => Ok(()),
            Ok(n) => {
                tracing::info!("gate {} begins anew: {n} TCP connections that held bytes back were ended", self.name);
                Ok(())
            }
            Err(e) => Err(Refused {
                code: ErrorCode::System,
                what: format!(
                    "gate {} stays closed, because what it holds back would leave when it opens: {e}; where the application sees to its connections \
                     itself, set connections = \"keep\" in its [[gate]]",
                    self.name
                ),
            }),
        }
    }
}

/// `code` of the [`Cause::Local`](fide_wire::verdict::Cause::Local) event that a gate has closed.
pub const CLOSED_EVENT_CODE: i32 = 1003;

/// All of them.
pub struct Gates {
    fence: Fence,
    all: Vec<Own>,
    complained: BTreeSet<String>,
    /// Grows whenever a cgroup got a gate, or lost it.
    version: u64,
}

/// Where a connection's process was when its gate was looked up, so that a move costs two system
/// calls while nothing has changed: what /proc says of the process, and the number of the gate's
/// cgroup, which the kernel never uses twice.
pub struct Place {
    at: usize,
    version: u64,
    inode: u64,
    /// `/proc/PID/cgroup`, held open: it stays that of this process, whoever has its number later.
    file: File,
    /// What it said.
    text: Vec<u8>,
}

/// More than any path of a cgroup takes, with those of version 1 before it.
const CGROUP_TEXT: usize = 16 << 10;

/// What `/proc/PID/cgroup` says now; empty once that process has ended.
fn cgroup_text(file: &File) -> Vec<u8> {
    let mut text = vec![0; CGROUP_TEXT];
    let len = file.read_at(&mut text, 0).unwrap_or(0);
    text.truncate(len);
    text
}

/// The number of a cgroup by its directory.
fn inode(dir: &Path) -> Option<u64> {
    fs::metadata(dir).ok().map(|m| m.ino())
}

impl Gates {
    /// Opens what is pinned, and makes what is configured. `None` where nothing is.
    ///
    /// # Errors
    /// What this host cannot do, why, and what to do.
    pub fn open(config: &Config) -> Result<Option<Self>, String> {
        let pins = crate::fence::gate_pins(&config.fence);
        if config.gates.is_empty() {
            // What an application was promised outlives the configuration, too.
            if let Some(fence) = pins.exists().then(|| Fence::open(&pins).ok()).flatten() {
                warn_of_strangers(&fence, &[]);
            }
            return Ok(None);
        }
        let fence = Fence::open(&pins)
            .map_err(|e| format!("the gates of [[gate]] cannot be made: {e}; take them out to start without"))?;
        let mut warnings = Vec::new();
        let all = config
            .gates
            .iter()
            .map(|g| Own {
                name: g.name.clone(),
                dir: g.cgroup.clone(),
                users: Set::new("gate.users", &g.users, &mut warnings),
                connections: g.connections,
                within: Within::default(),
                made: None,
                told: false,
            })
            .collect();
        for w in warnings {
            tracing::warn!("{w}");
        }
        let mut gates = Self { fence, all, complained: BTreeSet::new(), version: 0 };
        for complaint in gates.renew() {
            tracing::error!("{complaint}");
        }
        warn_of_strangers(&gates.fence, &gates.all);
        Ok(Some(gates))
    }

    /// Makes the gates of cgroups that came (back). Says what cannot be guarded, once.
    pub fn renew(&mut self) -> Vec<String> {
        let mut complaints = Vec::new();
        for own in &mut self.all {
            let inode = inode(&own.dir);
            if inode == own.made.as_ref().map(|(inode, _)| *inode) {
                own.look_within(&self.fence);
                continue;
            }
            own.made = None;
            self.version += 1;
            let Some(inode) = inode else { continue };
            match self.fence.guard_cgroup(&own.dir) {
                Ok(gate) => {
                    self.complained.remove(&own.name);
                    own.within = Within::of(&self.fence, &gate);
                    own.made = Some((inode, gate));
                    own.look_within(&self.fence);
                }
                Err(e) if self.complained.insert(own.name.clone()) => {
                    complaints.push(format!("gate {} is NOT there: {e}", own.name));
                }
                Err(_) => {}
            }
        }
        complaints
    }

    /// What has closed since this was last asked.
    pub fn closed(&mut self) -> Vec<String> {
        let mut texts = Vec::new();
        for own in &mut self.all {
            let closed =
                own.made.as_ref().is_some_and(|(_, gate)| matches!(gate.peek(), GateState::Fenced { .. } | GateState::Shut));
            if closed && !own.told {
                texts.push(format!(
                    "gate {} is closed: no heartbeat of its application counted in time, and nothing of it leaves until it begins anew",
                    own.name
                ));
            }
            own.told = closed;
        }
        texts
    }

    /// For the status.
    #[must_use]
    pub fn status(&self, now_ns: u64) -> Vec<GateStatus> {
        let of = |own: &Own| {
            let Some((_, gate)) = &own.made else {
                return GateStatus { name: own.name.clone(), state: "absent".into(), ..GateStatus::default() };
            };
            let counts = self.fence.counts(gate);
            let state = match gate.peek() {
                GateState::Open { valid_ns } if valid_ns < now_ns => "run-out",
                state => crate::fence::state_name(state),
            };
            GateStatus {
                name: own.name.clone(),
                state: state.into(),
                passed: counts.passed,
                blocked: counts.blocked,
                ..GateStatus::default()
            }
        };
        self.all.iter().map(of).collect()
    }

    /// The gate of the process that asks, by its number. `place`: what is remembered of it for its
    /// connection, and is compared with what holds now.
    ///
    /// # Errors
    /// Why it has none that it may move.
    pub fn of(&mut self, peer: &Peer, place: &mut Option<Place>) -> Result<usize, Refused> {
        if let Some(known) = place {
            let gate = self.all.get(known.at).filter(|_| known.version == self.version);
            // In this order: the cgroup of this number was there before the text is read, and is
            // there after it.
            let still = cgroup_text(&known.file) == known.text && gate.is_some_and(|own| inode(&own.dir) == Some(known.inode));
            if still {
                return Ok(known.at);
            }
            *place = None;
        }
        let found = self.look_up(peer)?;
        Ok(place.insert(found).at)
    }

    fn look_up(&mut self, peer: &Peer) -> Result<Place, Refused> {
        let refuse = |code, what: String| Err(Refused { code, what });
        let Some(pid) = peer.pid else {
            return refuse(
                ErrorCode::Unsupported,
                "the agent cannot see this process: it must run in the host's pid namespace".into(),
            );
        };
        self.renew(); // its cgroup may have been made a moment ago
        let file = File::open(format!("/proc/{pid}/cgroup")).ok();
        let text = file.as_ref().map(cgroup_text).unwrap_or_default();
        let dir = crate::fence::cgroup_dir_of(&String::from_utf8_lossy(&text));
        let (Some(file), Some(cgroup)) = (file, dir) else {
            return refuse(ErrorCode::NotFound, format!("process {pid} is in no cgroup of version 2"));
        };
        let around = self.all.iter().enumerate().filter(|(_, own)| own.made.is_some() && cgroup.starts_with(&own.dir));
        let Some((at, own)) = around.max_by_key(|(_, own)| own.dir.components().count()) else {
            return refuse(
                ErrorCode::NotFound,
                format!("process {pid} is in {}, where [[gate]] names none: add one, and restart the agent", cgroup.display()),
            );
        };
        if !own.users.contains(peer) {
            return refuse(
                ErrorCode::Permission,
                format!("user {} may not move gate {}; have an operator add you to its `users` in fide.toml", peer.uid, own.name),
            );
        }
        let made = own.made.as_ref().map(|(inode, _)| *inode);
        // Made again since: the next request finds the new one.
        let Some(inode) = made.filter(|made| inode(&own.dir) == Some(*made)) else {
            return refuse(ErrorCode::NotFound, "the gate's cgroup is gone".into());
        };
        Ok(Place { at, version: self.version, inode, file, text })
    }

    /// Moves t_valid for process `pid`, arming the gate if it is not yet; with `anew` also one that is closed, whose connections end first. Returns its name and
    /// t_valid. `valid_ns` 0 only asks for it (0: not armed).
    ///
    /// # Errors
    /// [`ErrorCode::Fenced`] when it is closed, perhaps by this; [`ErrorCode::Invalid`]; [`ErrorCode::System`] when what it holds back cannot be ended.
    pub fn extend(
        &mut self,
        at: usize,
        pid: Option<u32>,
        (known_ns, valid_ns, anew): (u64, u64, bool),
        now_ns: u64,
    ) -> Result<(String, u64), Refused> {
        let Some((own, gate)) = self.all.get_mut(at).and_then(|own| own.made.as_ref().map(|m| m.1.clone()).map(|g| (own, g)))
        else {
            return Err(Refused { code: ErrorCode::NotFound, what: "the gate's cgroup is gone".into() });
        };
        let invalid = |what: &str| Err(Refused { code: ErrorCode::Invalid, what: what.into() });
        if known_ns == 0 || known_ns > now_ns {
            return invalid("known_ns is no past CLOCK_MONOTONIC time: it says when the heartbeat was known to have left");
        }
        if valid_ns > now_ns.saturating_add(VALID_MAX_NS) {
            return invalid("t_valid is more than a day away: it is CLOCK_MONOTONIC in nanoseconds");
        }
        // Asked alone, nothing moves.
        let asks = valid_ns == 0 && !anew;
        if valid_ns <= known_ns && !asks {
            return invalid("t_valid is not behind known_ns: it is a CLOCK_MONOTONIC time in nanoseconds, not a duration");
        }
        // In this order: who was in time with its heartbeat may be late with this, as long as no packet has found the gate run out.
        if asks {
            return match gate.peek() {
                GateState::Open { valid_ns } => Ok((own.name.clone(), valid_ns)),
                GateState::NotArmed => Ok((own.name.clone(), 0)),
                state => Err(closed(&own.name, state)),
            };
        }
        let moved = match gate.extend(known_ns, valid_ns) {
            Err(refused) if refused.0 == GateState::NotArmed => gate.arm(valid_ns),
            Err(_) if anew => {
                own.drop_held_back(&self.fence, pid)?;
                gate.recover(valid_ns)
            }
            other => other,
        };
        match (moved, gate.check()) {
            (Ok(()), GateState::Open { valid_ns }) => Ok((own.name.clone(), valid_ns)),
            (_, state) => Err(closed(&own.name, state)),
        }
    }

    /// A clean end of the agent: what nobody relies on is taken away, the rest runs out.
    pub fn end(self) {
        let armed = |own: &Own| own.made.as_ref().is_some_and(|(_, gate)| gate.peek() != GateState::NotArmed);
        let stay: Vec<&str> = self.all.iter().filter(|own| armed(own)).map(|own| own.name.as_str()).collect();
        if !stay.is_empty() {
            tracing::warn!("gates stay, and run out unless an agent moves them on: {}", stay.join(", "));
            return;
        }
        // Also those of a former agent that no `[[gate]]` names any more.
        if self.fence.groups().iter().any(|gate| gate.peek() != GateState::NotArmed) {
            tracing::warn!("gates that no [[gate]] names stay, and run out");
            return;
        }
        if let Err(e) = self.fence.remove() {
            tracing::error!("the gates are not removed: {e}");
        }
    }
}
/// Says which gates are in force that `[[gate]]` does not name any more: nobody can move them, and they run out.
fn warn_of_strangers(fence: &Fence, all: &[Own]) {
    let ours: Vec<u64> = all.iter().filter_map(|own| Some(own.made.as_ref()?.0)).collect();
    for gate in fence.groups().into_iter().filter(|gate| gate.peek() != GateState::NotArmed) {
        let Some(cgroup) = gate.cgroup().filter(|cgroup| !ours.contains(cgroup)) else { continue };
        tracing::warn!(
            "the gate of cgroup {cgroup} (find /sys/fs/cgroup -inum {cgroup}) is {}, and no [[gate]] names it: nobody can move it, and what it guards sends \
             nothing behind its t_valid. Name it again; or, to end all gates, stop the agent, and `fided --remove-fence`",
            gate.peek()
        );
    }
}

/// Why nothing is moved.
fn closed(name: &str, state: GateState) -> Refused {
    Refused {
        code: ErrorCode::Fenced,
        what: format!(
            "gate {name} is {state}: no heartbeat counted in time, others may have taken over, and nothing leaves any more; drop what this process did, \
             and begin anew"
        ),
    }
}
