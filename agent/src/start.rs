//! From a configuration to a running agent.

use crate::clock::now_ns;
use crate::config::{Config, Receive, Send, SocketConfig};
use crate::control::{Control, Parts};
use crate::core::{Core, FenceStart, Start};
use crate::disk::Disk;
use crate::fence::{Driver, Guard};
use crate::files;
use crate::gates::Gates;
use crate::handle::LoopHandle;
use crate::history::History;
use crate::kept::{KeptTable, Numbers};
use crate::owner::Owner;
use crate::receive::{Receiver, Wanted};
use crate::rings::Rings;
use crate::seqpacket::{self, Serves};
use crate::settings;
use crate::state::State;
use crate::status::About;
use crate::worker::Worker;
use anyhow::{Context, anyhow, bail};
use fide_lane::{Lane, Options, PathSpec, Prober, SendMode};
use fide_proto::node::fence::HostFence;
use fide_wire::PATHS;
use fide_wire::verdict::FenceMode;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// An agent that is about to end does so within this.
const FORMER_ENDS: Duration = Duration::from_secs(2);
/// Logs of durable groups that are not written this long after the loop has ended are left.
const STORE_ENDS: Duration = Duration::from_secs(5);

fn make_parent(path: &Path) -> anyhow::Result<()> {
    let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty()) else { return Ok(()) };
    std::fs::create_dir_all(dir).with_context(|| format!("directory {} cannot be made", dir.display()))
}

/// The socket for clients, and what its file is: only that one is removed at the end.
struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    file: (u64, u64),
}

impl Listener {
    fn open(socket: &SocketConfig) -> anyhow::Result<Self> {
        let path = &socket.path;
        make_parent(path)?;
        for doubt in files::check_socket(path).map_err(|unfit| anyhow!("{unfit}"))? {
            tracing::warn!("{doubt}");
        }
        match end_of_former(path) {
            Serves::Agent => {
                bail!("another agent serves {}: stop it, or give this one another [socket] path", path.display())
            }
            Serves::Other => {
                bail!("the socket {} is served by something else: give the agent another [socket] path", path.display())
            }
            // Left over from an agent that crashed.
            Serves::Nobody if path.symlink_metadata().is_ok() => {
                std::fs::remove_file(path).with_context(|| format!("the stale socket {} cannot be removed", path.display()))?;
            }
            Serves::Nobody => {}
        }
        // Nobody may connect before the mode is set.
        // SAFETY: umask has no preconditions; this happens before any other thread is started.
        let before = unsafe { libc::umask(0o177) };
        let fd = seqpacket::listen(path);
        // SAFETY: as above.
        unsafe { libc::umask(before) };
        let fd = fd.with_context(|| format!("cannot listen on {}", path.display()))?;
        let meta = path.symlink_metadata().with_context(|| format!("the socket {} is gone", path.display()))?;
        settings::set_permissions(socket)?;
        Ok(Self { fd, path: path.clone(), file: (meta.dev(), meta.ino()) })
    }
}

/// Who serves the socket. The kernel needs some time to end an agent that was killed, and until
/// then its socket takes connections: a supervisor starts the next one sooner.
fn end_of_former(path: &Path) -> Serves {
    let until = Instant::now() + FORMER_ENDS;
    loop {
        match seqpacket::serves(path) {
            Serves::Agent if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
            found => return found,
        }
    }
}

/// What it was to write, it has written, unless the disk hangs: none of that was acknowledged.
fn end_of_store(store: JoinHandle<()>) {
    let until = Instant::now() + STORE_ENDS;
    while !store.is_finished() {
        if Instant::now() >= until {
            let s = STORE_ENDS.as_secs();
            return tracing::error!(
                "the logs of durable groups were not written within {s} s: what is missing there, nobody was told"
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = store.join(); // a panic of it was reported by the panic hook
}

/// Removes the socket's file, unless something else has come in its place.
fn remove_socket(path: &Path, file: (u64, u64)) {
    if path.symlink_metadata().is_ok_and(|meta| (meta.dev(), meta.ino()) == file) {
        let _ = std::fs::remove_file(path); // gone already is as good
    }
}

/// A descriptor for the signals that an agent answers to; they are blocked in all threads.
fn signalfd() -> anyhow::Result<OwnedFd> {
    // SAFETY: a signal set that is initialised before use; the calls only read it.
    let fd = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if fd < 0 {
        return Err(std::io::Error::last_os_error()).context("no signalfd");
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn path_specs(config: &Config) -> Vec<PathSpec> {
    config
        .paths
        .iter()
        .enumerate()
        .map(|(path, p)| PathSpec {
            path: path as u8,
            interface: p.interface.clone(),
            group: p.group,
            unicast: p.unicast.clone(),
            port: config.port,
            source: p.address,
        })
        .collect()
}

fn detector_config(config: &Config, node: u32, incarnation: u32) -> fide_proto::detector::Config {
    fide_proto::detector::Config {
        agent_timeout_ns: config.detector.agent_timeout_ns,
        ..fide_proto::detector::Config::new(node, incarnation)
    }
}

/// Runs an agent until it is told to leave.
///
/// # Errors
/// What keeps it from starting, in words.
pub fn run(config: Config, config_path: PathBuf) -> anyhow::Result<()> {
    let Listener { fd, path, file } = Listener::open(&config.socket)?;
    // As long as it is open, no other file gets the number of its inode: a successor's socket is not taken for this one.
    let held = fd.try_clone().context("the socket cannot be held")?;
    let ran = serve(config, config_path, fd);
    remove_socket(&path, file);
    drop(held);
    ran
}

/// `fided --adopt-state`: the state on disk is this host's from now on. Says what was done.
///
/// # Errors
/// In words: an agent runs, or there is nothing to adopt.
pub fn adopt_state(config: &Config, from: Option<&Path>) -> anyhow::Result<Vec<String>> {
    if seqpacket::serves(&config.socket.path) == Serves::Agent {
        bail!("an agent serves {}: stop it first", config.socket.path.display());
    }
    let here = Owner::here(&config.cluster, &config.node);
    let said = crate::state::adopt(&config.state, from, &here).map_err(anyhow::Error::msg)?;
    crate::group_store::adopt(&crate::history::beside(&config.state, ".groups"), &here).map_err(anyhow::Error::msg)?;
    Ok(said)
}

/// What former lives left on this host's disk, and the incarnation that begins now.
struct Life {
    owner: Owner,
    state: State,
    table: KeptTable,
    former: Option<crate::kept::Former>,
    incarnation: u32,
    used: Numbers,
}

fn begin_life(config: &Config) -> Life {
    let owner = Owner::here(&config.cluster, &config.node);
    let (mut state, complaint) = State::open(&config.state, &owner);
    if let Some(c) = complaint {
        tracing::warn!("{c}");
    }
    let life = crate::history::beside(&config.socket.path, ".life");
    let used = Numbers::used(&life, state.boot(), now_ns());
    let (mut table, former, complaint) = KeptTable::open(&config.state, &owner, state.boot(), used);
    if let Some(c) = complaint {
        tracing::warn!("{c}");
    }
    let incarnation = state.begin(std::time::SystemTime::now());
    match &former {
        Some(f) => table.begin(f.epoch, f.version, f.last_process, f.last_interest),
        None => table.begin(incarnation.into(), 0, used.process, used.interest),
    }
    let began =
        former.as_ref().map_or(used, |f| Numbers { version: f.version, process: f.last_process, interest: f.last_interest });
    if let Err(e) = began.write(&life, state.boot()) {
        tracing::warn!(
            "{} cannot be written ({e}): should {} be lost, too, numbers may return",
            life.display(),
            config.state.display()
        );
    }
    // Before the first version is given out: the file may say that its agent has left.
    if let Err(e) = table.save(false) {
        tracing::warn!("{e}");
    }
    if let Err(e) = state.save() {
        tracing::warn!("{e}");
    }
    Life { owner, state, table, former, incarnation, used }
}

fn open_lane(config: &Config, specs: &[PathSpec], has_fence: bool) -> anyhow::Result<Lane> {
    let options = Options {
        ttl: config.paths.first().map_or(1, |p| p.ttl),
        gated: has_fence && config.fence.host,
        completion: config.fence.mode == Some(FenceMode::Sent),
        ..Options::default()
    };
    let mode = match config.send {
        Send::Auto => SendMode::Auto,
        Send::Packet => SendMode::Packet,
        Send::Udp => SendMode::Udp,
    };
    Ok(Lane::open_with(specs, mode, options)?)
}

const fn wanted(receive: Receive) -> Wanted {
    match receive {
        Receive::Auto => Wanted::Auto,
        Receive::Xdp => Wanted::Native,
        Receive::XdpGeneric => Wanted::Generic,
        Receive::Udp => Wanted::Udp,
    }
}

// More than 80 lines: the order in which the parts are opened matters, and is seen here at once.
fn serve(config: Config, config_path: PathBuf, listener: OwnedFd) -> anyhow::Result<()> {
    let signals = signalfd()?;
    make_parent(&config.state)?;
    if let Some(history) = &config.history.path {
        make_parent(history)?;
    }
    // It may be large; until it is needed there is enough else to be done.
    let (path, max_bytes) = (config.history.path.clone(), config.history.max_bytes);
    let history = std::thread::spawn(move || History::open(path.as_deref(), max_bytes));
    let Life { owner, state, table, former, incarnation, used } = begin_life(&config);
    let logs = crate::history::beside(&config.state, ".groups");
    let (store, group_logs, complaint) = crate::group_store::Store::open(&logs, &owner);
    if let Some(c) = complaint {
        tracing::warn!("{c}");
    }
    let node = fide_wire::name_id(&config.node);
    anyhow::ensure!(
        !fide_proto::node::probing::is_reserved(node),
        "the name {:?} has a number that is reserved: choose another one",
        config.node
    );
    let specs = path_specs(&config);
    // Before anything is sent: what a former life was fenced from stays so.
    let guard = match config.fence.mode {
        None => {
            crate::fence::warn_of_former(&config.fence);
            None
        }
        Some(_) => {
            let interfaces = config.paths.iter().map(|p| p.interface.clone()).collect();
            Some(Guard::open(&config.fence, interfaces).map_err(anyhow::Error::msg)?)
        }
    };
    let gates = Gates::open(&config).map_err(anyhow::Error::msg)?;
    if config.fence.recover_at_start {
        guard.iter().for_each(Guard::drop_left);
    }
    let mut lane = open_lane(&config, &specs, guard.is_some())?;
    let prober = Prober::open(&specs).inspect_err(|e| tracing::warn!("a lost agent cannot be told from a silent host: {e}")).ok();
    let setup = fide_xdp::Setup { cluster: config.cluster_id, node, incarnation, port: config.port };
    let interfaces = std::array::from_fn::<_, PATHS, _>(|p| lane.ifindex(p as u8));
    let mut receiver = Receiver::open(setup, &config.keyring, wanted(config.receive), interfaces)?;
    if let Some(pins) = &config.ends {
        receiver.keep_ends(pins);
    }
    lane.set_receiving(receiver.needs_sockets());
    let Ok(history) = history.join() else {
        bail!("the history cannot be read: this is a defect, please report it with its file")
    };
    let start = Start {
        cluster: config.cluster_id,
        name: config.node.clone(),
        node,
        zone: config.zone.clone(),
        incarnation,
        former_incarnation: state.former(),
        boot: state.boot(),
        told: if former.is_some() { history.0.ends_of(&config.node, crate::clock::booted_wall_ns()) } else { Vec::new() },
        former,
        used,
        groups: state.groups(),
        last_sets: state.last_sets(),
        group_logs,
        group_plans: config.groups.clone(),
        witness_ns: config.witness.as_ref().map(crate::witness_questions::Command::timeout_ns),
        period_ns: config.heartbeat_ns,
        keys: config.keyring,
        calibration: settings::calibration(&config),
        detector: detector_config(&config, node, incarnation),
        tcp_questions: config.detector.tcp_questions,
        known: state.peers(),
        rebooted: state.rebooted(),
        members: state.members().map(fide_wire::name_id).collect(),
        fence: guard.as_ref().zip(config.fence.mode).map(|(guard, mode)| {
            let rule = crate::fence::rule_config(&config.fence, mode, config.paths.len());
            let mut fence = HostFence::new(rule, config.fence.host, incarnation);
            let driver = Driver::new(&mut fence, config.fence.at_start, guard.gates(), guard.shown_closed(), now_ns());
            FenceStart { fence, driver, recover: config.fence.recover_at_start }
        }),
    };
    let about = About {
        cluster: config.cluster.clone(),
        zone: config.zone.clone(),
        profile: config.profile.name().into(),
        interfaces: config.paths.iter().map(|p| p.interface.clone()).collect(),
        started_ns: now_ns(),
    };
    let (request, requests) = crossbeam_channel::unbounded();
    let (happen, happened) = crossbeam_channel::unbounded();
    let (wake, tell) = (crate::wake::eventfd().context("no eventfd")?, crate::wake::eventfd().context("no eventfd")?);
    let (writes, to_write) = crossbeam_channel::unbounded();
    let (states, of_states) = crossbeam_channel::unbounded();
    let (keys, cluster) = (start.keys, start.cluster);
    let witness = crate::witness::Prepared::new().context("no eventfd for the witness")?;
    let (wake_loop, tell_control) = (wake.try_clone()?, tell.try_clone()?);
    let asker = witness.asker();
    let connections = crate::end_connections::Ender::start(config.rt_priority > 1).context("no thread for connections")?;
    let ends = crate::core::Ends {
        requests,
        happened: happen,
        writes,
        states,
        witness: asker,
        connections: connections.clone(),
        wake: wake_loop,
        tell: tell_control,
    };
    let ring_maker = receiver.ring_maker();
    let starts = receiver.start_watch();
    let mut core = Core::new(start, receiver, lane, prober, ends)?;
    tracing::info!(
        "{} in cluster {}, incarnation {incarnation}, receiving by {}, exits by {}",
        config.node,
        config.cluster,
        core.receive_name(),
        core.exit_name()
    );
    let handle = LoopHandle::new(request, wake, core.heart.clone());
    crate::state_transfer::start(cluster, keys, &specs, of_states, handle.clone()).context("no thread for states of groups")?;
    let logs_clock = store.clock();
    let store = store.start(to_write, handle.clone()).context("no thread for the logs of groups")?;
    let witness = witness.start(config.witness.clone(), handle.clone()).context("no thread for the witness")?;
    let rt = crate::realtime::Wanted::of(&config);
    let thread = std::thread::Builder::new().name("lane".into()).spawn(move || {
        let place = crate::realtime::enter(&rt);
        core.spin(place.busy_poll);
        core.run();
        drop(place);
    })?;
    let lookups = Worker::start("fide-lookups", tell.try_clone()?).context("no thread for look-ups")?;
    let rings = Rings::new(ring_maker, Worker::start("fide-rings", tell.try_clone()?).context("no thread for event rings")?);
    let disk = Disk::start(tell.try_clone()?).context("no thread for the disk")?;
    let control = Control::new(Parts {
        config,
        config_path,
        about,
        core: handle,
        happened,
        told: tell,
        listener,
        state,
        table,
        history,
        disk,
        logs_clock,
        signals,
        guard,
        gates,
        lookups,
        rings,
        connections,
        starts,
        specs,
    });
    let (guard, gates) = control.run();
    drop(witness);
    if thread.join().is_err() {
        // A fence stays, and runs out: nobody speaks for this host.
        bail!("the agent's loop has panicked: this is a defect, please report it with the log");
    }
    end_of_store(store);
    if let Some(guard) = guard {
        guard.end();
    }
    if let Some(gates) = gates {
        gates.end();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_ends_is_waited_for_and_one_that_stays_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fided.sock");
        let listener = seqpacket::listen(&path).unwrap();
        let ends = std::thread::spawn(move || {
            // Sleep: the former agent ends while it is waited for. Nothing shows when the wait has
            // begun.
            std::thread::sleep(Duration::from_millis(50));
            drop(listener);
        });
        assert_eq!(end_of_former(&path), Serves::Nobody);
        ends.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        let stays = seqpacket::listen(&path).unwrap();
        assert_eq!(end_of_former(&path), Serves::Agent);
        drop(stays);
    }
}
