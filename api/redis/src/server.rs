//! The server's main thread: what the server is, and which commands are refused to clients because of it.
//!
//! While the server leads, commands are executed as ever, and what they write passes the gate. While it does not, a filter makes every command that reads or
//! writes data an argument of `FIDE.REFUSE`, which says who leads. Clients of a server that stops to lead are cut off: what they were not told yet is not
//! known to be decided.

use crate::api::{self, Api, Ctx, FilterCtx, InfoCtx, ServerEvent, Text};
use crate::calls;
use crate::commands::{self, Kind};
use crate::course::{Extent, is_address};
use crate::group::{self, Place, Settings};
use crate::lineage;
use crate::metrics;
use crate::reads::Access;
use crate::replication::{self, Account, Accounts};
use crate::shared::{self, Former, Role, Shared, ToGroup, ToServer, copy};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::TcpListener;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// This module, as the server calls it.
pub const NAME: &str = "fide";
/// The group decides who leads.
const OF_THE_GROUP: [&[u8]; 3] = [b"replicaof", b"slaveof", b"failover"];
/// How often it is looked whether all of the server's stream was caught, and at settings that may change.
const CHECK: Duration = Duration::from_secs(1);
/// How often a server that follows looks how far it is, at most: that takes some µs.
const LOOK: Duration = Duration::from_millis(5);
/// And whether it could execute everything.
const LOOK_AT_ERRORS: Duration = Duration::from_millis(100);
/// And whether its log has all data.
const LOOK_AT_LOG: Duration = Duration::from_millis(100);
/// Other servers that are asked what they have before this one leads by force, all at once.
const ASKED_MAX: usize = 16;
/// So long an operator who lets a server lead by force waits for what others have.
const ASKED_WITHIN: Duration = Duration::from_secs(1);
/// A file that could not be written is tried again after so long.
const WRITES_AGAIN: Duration = Duration::from_secs(2);
/// Commands that are kept in mind.
const KINDS_MAX: usize = 4096;
/// Bytes of its stream that a server keeps at least.
const BACKLOG: u64 = 16 << 20;
/// A server that has not gone on for so long is not in sync any more, unless `lag-max` says otherwise.
const LAG_MAX_MS: u64 = 2_000;
const LAG_MAX_LEAST_MS: u64 = 300;

/// A server whose clock differs more from the leader's is not in sync, unless `clock-skew-max` says otherwise.
const CLOCK_SKEW_MAX_MS: u64 = 1_000;
const CLOCK_SKEW_MAX_LEAST_MS: u64 = 100;
/// A server's loop turns ten times a second when nothing happens.
const HUNG_AFTER_LEAST_MS: u64 = 300;

/// Without these under their own names nothing works.
const NEEDED: [&str; 7] = ["command", "config", "replicaof", "psync", "replconf", "info", "auth"];
static SHARED: OnceLock<Arc<Shared>> = OnceLock::new();
static GROUP: Place = Place::new(None);
static SETTINGS: OnceLock<Settings> = OnceLock::new();
/// `repl-timeout`, as an operator has set it.
static REPL_TIMEOUT: OnceLock<String> = OnceLock::new();
/// What the module sets it to while a server follows: never.
const NEVER: &str = "1000000000";
/// What it is by itself.
const REPL_TIMEOUT_USUAL: &str = "60";
/// `min-replicas-to-write` while this server shall take no writes: more than there are.
const NO_WRITES: &str = "1000000";

struct Server {
    role: Role,
    /// The group's socket, while this server leads.
    group: Option<OwnedFd>,
    take_over: Option<u64>,
    /// It is, or is about to be, a primary that does not lead yet.
    takes_over: bool,
    /// The server's data are those of this generation of the group, or an operator has given them up for it.
    replaceable: Option<u64>,
    /// Something waits until the server has loaded its data.
    is_loading: bool,
    checked: Instant,
    /// When it was looked how far this server is.
    looked: Instant,
    /// The same, for commands of the stream that it could not execute.
    looked_at_errors: Instant,
    /// The same, for its log.
    looked_at_log: Instant,
    /// How many errors there were then.
    errors_before: u64,
    /// When it was looked as what it comes to others.
    asked: Instant,
}

struct Main {
    server: RefCell<Server>,
    /// For what no client asked for.
    api: Api,
    /// `FIDE.REFUSE`, as the filter puts it before commands.
    refusal: *mut Text,
    /// The role is to lead.
    leads: Cell<bool>,
    /// What is decided comes as commands of a primary, which pass the filter, too: it lets writes pass, which Redis itself refuses to clients.
    is_replica: Cell<bool>,
    /// It says that it is a replica, of nobody: it does not lead, and is given nothing.
    is_idle: Cell<bool>,
    /// In this turn of the loop: a script is not cut in the middle.
    lacks_copies: Cell<bool>,
    /// `min-replicas-to-write`, as an operator has set it, while that is so.
    min_replicas: RefCell<String>,
    /// What commands are that were called.
    kinds: RefCell<HashMap<Vec<u8>, (Kind, Access)>>,
}

thread_local! {
    static MAIN: Cell<Option<&'static Main>> = const { Cell::new(None) };
}

fn main() -> &'static Main {
    MAIN.get().expect("the server's main thread")
}

fn shared() -> &'static Arc<Shared> {
    SHARED.get().expect("the module is loaded")
}

/// Does something with the state; nothing of the server is called meanwhile, because it may call back.
fn with<R>(work: impl FnOnce(&mut Server) -> R) -> R {
    work(&mut main().server.borrow_mut())
}

// ---- loading ------------------------------------------------------------------------------------------------------------

fn setting(api: Api, name: &str) -> String {
    api.call("CONFIG", &["GET", name]).tree().at(1).map(|value| value.text().to_owned()).unwrap_or_default()
}

fn settings(api: Api, arguments: &[String]) -> Result<Settings, String> {
    const USAGE: &str = "loadmodule fide.so group NAME [address HOST:PORT] [name PROCESS] [socket PATH] [min-copies N] [min-zones N] [lag-max MILLISECONDS] [reads lease|entry] [hung-after MILLISECONDS] [clock-skew-max MILLISECONDS] [metrics ADDRESS:PORT]";
    let mut given: HashMap<&str, &str> = HashMap::new();
    for pair in arguments.chunks(2) {
        let [key, value] = pair else { return Err(format!("{} has no value: {USAGE}", pair[0])) };
        if key == "min-members" {
            return Err(format!("min-members counted agents, not servers that have the data: min-copies {value} counts those"));
        }
        if ![
            "group",
            "address",
            "name",
            "socket",
            "min-copies",
            "min-zones",
            "lag-max",
            "reads",
            "hung-after",
            "clock-skew-max",
            "metrics",
        ]
        .contains(&key.as_str())
        {
            return Err(format!("no setting {key}: {USAGE}"));
        }
        if given.insert(key, value).is_some() {
            return Err(format!("{key} is given twice: {USAGE}"));
        }
    }
    let group = (*given.get("group").ok_or_else(|| format!("no group is named: {USAGE}"))?).to_owned();
    let port: u16 = setting(api, "port").parse().unwrap_or(0);
    if port == 0 {
        return Err("port 0: the module reaches its own server by TCP, and so do others".into());
    }
    if setting(api, "tls-replication") == "yes" {
        return Err("tls-replication yes: a server is given its data by its own module, over the loopback device and without TLS; say tls-replication no \
                    (clients may use tls-port)"
            .into());
    }
    if setting(api, "cluster-enabled") == "yes" {
        return Err("cluster-enabled yes: a group is one shard; run servers of a group without cluster mode".into());
    }
    let bind = setting(api, "bind");
    let any = |address: &str| ["127.0.0.1", "0.0.0.0", "*"].contains(&address.trim_start_matches('-'));
    let own = match bind.split_whitespace().next() {
        None => "127.0.0.1",
        Some(_) if bind.split_whitespace().any(any) => "127.0.0.1",
        Some(first) => first.trim_start_matches('-'),
    };
    let number = |key: &str, otherwise: u64| {
        let parsed = given.get(key).map_or(Ok(otherwise), |text| text.parse::<u64>());
        parsed.map_err(|_| format!("{key} {} is no number: {USAGE}", given[key]))
    };
    let (min_copies, min_zones) = (number("min-copies", 0)?, number("min-zones", 0)?);
    let lag_max_ms = number("lag-max", LAG_MAX_MS)?;
    if lag_max_ms < LAG_MAX_LEAST_MS {
        return Err(format!(
            "lag-max {lag_max_ms}: a healthy server says only every 100 ms what it has: at least {LAG_MAX_LEAST_MS}"
        ));
    }
    let hung_after_ms = number("hung-after", 0)?;
    if hung_after_ms > 0 && hung_after_ms < HUNG_AFTER_LEAST_MS {
        return Err(format!(
            "hung-after {hung_after_ms}: a server that has nothing to do moves every 100 ms: at least {HUNG_AFTER_LEAST_MS}, or 0 for never"
        ));
    }
    let clock_skew_max_ms = number("clock-skew-max", CLOCK_SKEW_MAX_MS)?;
    if clock_skew_max_ms > 0 && clock_skew_max_ms < CLOCK_SKEW_MAX_LEAST_MS {
        return Err(format!(
            "clock-skew-max {clock_skew_max_ms}: entries take some ms, too: at least {CLOCK_SKEW_MAX_LEAST_MS}, or 0 for any clock"
        ));
    }
    let reads = match given.get("reads").copied() {
        None => None,
        Some("lease") => Some(true),
        Some("entry") => Some(false),
        Some(other) => return Err(format!("reads {other}: lease or entry: {USAGE}")),
    };
    let announced = setting(api, "replica-announce-ip");
    let address = given.get("address").map(|text| (*text).to_owned());
    let address = address.or_else(|| (!announced.is_empty()).then(|| format!("{announced}:{port}")));
    if let Some(address) = address.as_ref().filter(|address| !is_address(address)) {
        return Err(format!("address {address:?} is none that other servers reach: {USAGE}"));
    }
    Ok(Settings {
        name: given.get("name").map_or_else(|| format!("redis-{group}"), |name| (*name).to_owned()),
        socket: given.get("socket").map(Into::into),
        address,
        own: format!("{own}:{port}"),
        port,
        ports: [port, setting(api, "tls-port").parse().unwrap_or(0)].into_iter().filter(|port| *port > 0).collect(),
        min_copies,
        min_zones,
        metrics: given.get("metrics").map(|at| (*at).to_owned()),
        lag_max: Duration::from_millis(lag_max_ms),
        reads_by_lease: reads,
        clock_skew_max: (clock_skew_max_ms > 0).then(|| Duration::from_millis(clock_skew_max_ms)),
        hung_after: (hung_after_ms > 0).then(|| Duration::from_millis(hung_after_ms)),
        dir: PathBuf::from(setting(api, "dir")),
        lineage: PathBuf::from(setting(api, "dir")).join(format!("fide-{group}.generation")),
        group,
    })
}

/// What this server shows others, and itself, as its settings are now.
fn accounts(api: Api) -> Accounts {
    let of_others = Account { user: setting(api, "masteruser"), password: setting(api, "masterauth") };
    let own = match of_others.user.as_str() {
        "" => Account { user: String::new(), password: setting(api, "requirepass") },
        _ => of_others.clone(),
    };
    Accounts { of_others, own }
}

/// Clients may come with TLS: an operator may turn it on at any time.
fn has_tls(api: Api) -> bool {
    setting(api, "tls-port").parse().is_ok_and(|port: u16| port > 0)
}

/// What a command is, as the server says.
fn kind_of(api: Api, name: &str) -> (Kind, Access) {
    let found = api.call("COMMAND", &["INFO", name]).tree();
    found.at(0).map_or((Kind::Harmless, Access::Later), |command| (Kind::of(command), commands::access(command)))
}

/// Servers on other hosts could not follow this one.
fn is_out_of_reach(api: Api) -> Option<String> {
    let bind = setting(api, "bind");
    let is_local = |address: &str| ["127.0.0.1", "::1", "localhost"].contains(&address.trim_start_matches('-'));
    if !bind.is_empty() && bind.split_whitespace().all(is_local) {
        return Some(format!("bind {bind}: servers on other hosts do not reach this one, and have no copy of what it writes"));
    }
    let has_password = !setting(api, "requirepass").is_empty();
    (setting(api, "protected-mode") == "yes" && !has_password).then(|| {
        "protected-mode yes without a password: servers on other hosts are refused, and have no copy of what this one writes: set requirepass and \
         masterauth, or protected-mode no"
            .into()
    })
}

/// The commands that this module calls, and other servers' modules, have their own names.
fn check_names(api: Api) -> Result<(), String> {
    for name in NEEDED {
        let known = api.call("COMMAND", &["INFO", name]).tree().at(0).and_then(|found| found.at(0)).is_some();
        if !known {
            let name = name.to_uppercase();
            return Err(format!(
                "rename-command has renamed or removed {name}, which the module needs under its own name: use ACL rules instead"
            ));
        }
    }
    Ok(())
}

/// Everything that is done once.
///
/// # Errors
/// For the server's log.
pub fn load(api: Api, arguments: Vec<String>) -> Result<(), String> {
    check_names(api)?;
    let settings = settings(api, &arguments)?;
    let listener = settings.metrics.as_ref().map(|at| {
        TcpListener::bind(at)
            .map_err(|e| format!("metrics {at}: {e}: an address and a free port of this host, such as 127.0.0.1:9434"))
    });
    let listener = listener.transpose()?;
    let (lineages, to_write) = mpsc::channel();
    let new = Shared::new(lineages).map_err(|e| format!("eventfd: {e}"))?;
    let shared = SHARED.get_or_init(|| Arc::new(new));
    // Whole copies begin at once; nobody waits for more servers that might want one.
    drop(api.call("CONFIG", &["SET", "repl-diskless-sync-delay", "0"]));
    // A configuration that was rewritten while this server followed has the module's own.
    REPL_TIMEOUT
        .get_or_init(|| Some(setting(api, "repl-timeout")).filter(|set| set != NEVER).unwrap_or(REPL_TIMEOUT_USUAL.into()));
    if setting(api, "min-replicas-to-write") == NO_WRITES {
        drop(api.call("CONFIG", &["SET", "min-replicas-to-write", "0"]));
    }
    // What a server misses while its agent is restarted; a larger one is an operator's.
    if setting(api, "repl-backlog-size").parse().is_ok_and(|size: u64| size < BACKLOG) {
        drop(api.call("CONFIG", &["SET", "repl-backlog-size", &BACKLOG.to_string()]));
    }
    *shared.kept.lock().unwrap_or_else(PoisonError::into_inner) = lineage::read(&settings.lineage);
    api.command("fide.refuse", on_refuse, "allow-stale");
    api.command("fide", on_fide, "allow-stale admin");
    if let Some(why) = is_out_of_reach(api) {
        api.log(c"warning", &why);
    }
    let role = Role::Waits(format!("this server is not part of group {} yet", settings.group));
    *shared.accounts.lock().unwrap_or_else(PoisonError::into_inner) = accounts(api);
    let now = Instant::now();
    let server = Server {
        role,
        group: None,
        take_over: None,
        takes_over: false,
        replaceable: None,
        is_loading: false,
        checked: now,
        looked: now,
        looked_at_errors: now,
        looked_at_log: now,
        errors_before: 0,
        asked: now,
    };
    let main = Main {
        server: RefCell::new(server),
        api: api.detached(),
        refusal: api.detached().text(b"fide.refuse"),
        leads: Cell::new(false),
        is_replica: Cell::new(false),
        is_idle: Cell::new(false),
        lacks_copies: Cell::new(false),
        min_replicas: RefCell::default(),
        kinds: RefCell::new(HashMap::new()),
    };
    MAIN.set(Some(Box::leak(Box::new(main))));
    calls::pass_through(&shared.gate, exchange)?;
    // Other modules write from threads of their own; what is encrypted, or read by other threads, is read before it is executed.
    let has_modules = !api.call("MODULE", &["LIST"]).tree().elements().is_empty();
    let io_threads = setting(api, "io-threads").parse().unwrap_or(1);
    if has_modules || io_threads > 1 || has_tls(api) {
        calls::with_reads(|reads| reads.be_careful());
    }
    ask_about_all();
    api.filter(on_filter);
    api.on_readable(shared.to_server.bell.fd(), on_told);
    api.on_key(on_key);
    api.on_event(ServerEvent::LOOP, on_loop);
    api.on_event(ServerEvent::MODULES, on_modules);
    api.on_info(on_info);
    let shared = shared.clone();
    let settings = SETTINGS.get_or_init(|| settings).clone();
    let thread = std::thread::Builder::new().name("fide-group".into());
    let run = move || {
        let run = std::panic::AssertUnwindSafe(|| group::run(&settings, &shared, &GROUP));
        if std::panic::catch_unwind(run).is_err() {
            // What failed was written to standard error. This server would stay as it is for ever; its end is known at once.
            std::process::abort();
        }
    };
    thread.spawn(run).map_err(|e| format!("no thread: {e}"))?;
    let keeper = std::thread::Builder::new().name("fide-lineage".into());
    let of_keeper = SETTINGS.get().ok_or("no settings")?;
    keeper.spawn(move || write_lineages(of_keeper, &to_write)).map_err(|e| format!("no thread: {e}"))?;
    if let (Some(listener), Some(settings)) = (listener, SETTINGS.get()) {
        let thread = std::thread::Builder::new().name("fide-metrics".into());
        let of_server = || (self::shared().is_leading.load(Ordering::Relaxed), is_short_of_copies());
        let run = move || metrics::run(&listener, &settings.group, self::shared(), of_server);
        thread.spawn(run).map_err(|e| format!("no thread: {e}"))?;
    }
    Ok(())
}

// ---- commands -----------------------------------------------------------------------------------------------------------

unsafe extern "C" fn on_filter(ctx: *mut FilterCtx) {
    let Some(main) = MAIN.get() else { return };
    // SAFETY: as the server calls it; the name is not used behind this.
    let name = unsafe { api::filtered(ctx) };
    let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
    // Outside of all borrowed state: the server is asked about a command that it has not been asked about.
    let (kind, access) = main.kind(name);
    let is_refused = if OF_THE_GROUP.iter().any(|of_the_group| is(of_the_group)) {
        true
    } else if is(b"fide") || is(b"fide.refuse") {
        false
    } else if is(b"config") {
        // SAFETY: as above.
        takes_what_is_the_modules(unsafe { api::arguments(ctx) }, main.lacks_copies.get())
    } else if !main.leads.get() {
        match kind {
            Kind::Harmless => false,
            Kind::Read | Kind::Script | Kind::Sent => true,
            Kind::Write => !main.is_replica.get(),
        }
    } else {
        // In a transaction they are Redis' own to refuse then, as for want of replicas: that voids it.
        main.lacks_copies.get() && kind.may_write() && (kind == Kind::Sent || !calls::with_reads(|reads| reads.is_queueing()))
    };
    if is(b"multi") || [&b"exec"[..], b"discard", b"reset"].iter().any(|over| is(over)) {
        calls::with_reads(|reads| reads.queues(is(b"multi")));
    }
    if is_refused {
        if !main.leads.get() {
            calls::with_reads(crate::reads::Reads::refuses);
        }
        // SAFETY: the text is kept once more for each command.
        unsafe { api::redirect(ctx, main.refusal) };
    } else {
        // SAFETY: as above; the words are not used behind this.
        let (count, word) = unsafe { (api::count(ctx), |at| api::word(ctx, at)) };
        calls::with_reads(|reads| {
            if main.leads.get() { reads.executes(access, count, word) } else { reads.follows(access, count, word) }
        });
    }
}

/// Writes are refused from now on, or taken again. Redis itself refuses them then, too, as for want
/// of replicas: the filter sees one command after the other, and a transaction is to be executed
/// whole or not at all.
fn refuse_writes(lacks_copies: bool) {
    if main().lacks_copies.replace(lacks_copies) == lacks_copies {
        return;
    }
    let api = main().api;
    let to_set = if lacks_copies {
        main().min_replicas.replace(setting(api, "min-replicas-to-write"));
        // With 0 it looks at no replicas.
        if setting(api, "min-replicas-max-lag") == "0" {
            drop(api.call("CONFIG", &["SET", "min-replicas-max-lag", "10"]));
        }
        NO_WRITES.to_owned()
    } else {
        main().min_replicas.take()
    };
    if let Some(error) = api.call("CONFIG", &["SET", "min-replicas-to-write", &to_set]).error() {
        api.log(c"warning", &format!("min-replicas-to-write {to_set}: {error}"));
    }
}

/// Writes are refused: [`lacks_copies`].
fn is_short_of_copies() -> bool {
    let (copies, zones) = (shared().copies.load(Ordering::Relaxed), shared().zones.load(Ordering::Relaxed));
    SETTINGS.get().is_some_and(|settings| copies < settings.min_copies || zones < settings.min_zones)
}

/// Fewer servers hold everything than writes shall be held by, or in fewer zones: why writes are refused.
fn lacks_copies() -> Option<String> {
    let settings = SETTINGS.get()?;
    let (copies, zones) = (shared().copies.load(Ordering::Relaxed), shared().zones.load(Ordering::Relaxed));
    if copies < settings.min_copies {
        return Some(format!(
            "{copies} servers hold all data, this one included, and min-copies is {}: FIDE STATUS says which",
            settings.min_copies
        ));
    }
    (zones < settings.min_zones).then(|| {
        format!(
            "the servers that hold all data are in {zones} zones, and min-zones is {}: FIDE STATUS says which; \
             a server's zone is that of its agent's configuration",
            settings.min_zones
        )
    })
}

impl Main {
    /// What the command of this name is.
    fn kind(&self, name: &[u8]) -> (Kind, Access) {
        let mut lower = [0u8; 64];
        let Some(room) = lower.get_mut(..name.len()) else { return (Kind::Sent, Access::Later) };
        room.copy_from_slice(name);
        room.make_ascii_lowercase();
        let known = self.kinds.borrow().get(&*room).copied();
        known.unwrap_or_else(|| {
            let kind = std::str::from_utf8(room).map_or((Kind::Harmless, Access::Later), |name| kind_of(self.api, name));
            // What is no command is told by the server, and not kept here.
            if kind.0 != Kind::Harmless || self.kinds.borrow().len() < KINDS_MAX {
                self.kinds.borrow_mut().insert(room.to_vec(), kind);
            }
            kind
        })
    }
}

/// The server has changed a key.
unsafe extern "C" fn on_key(_ctx: *mut Ctx, _kind: c_int, _event: *const c_char, key: *mut Text) -> c_int {
    if MAIN.get().is_some_and(|main| main.leads.get()) {
        // SAFETY: a text of the server, which lives during this call.
        calls::with_reads(|reads| reads.is_on().then(|| reads.changed(unsafe { api::bytes(key) })));
    }
    api::OK
}

/// `CONFIG SET` of what keeps a follower as its leader is, or refuses writes while too few servers
/// have all data.
fn takes_what_is_the_modules<'a>(mut arguments: impl Iterator<Item = &'a [u8]>, lacks_copies: bool) -> bool {
    if !arguments.next().is_some_and(|sub| sub.eq_ignore_ascii_case(b"set")) {
        return false;
    }
    let opens = ["replica-read-only", "slave-read-only", "replica-ignore-maxmemory", "slave-ignore-maxmemory"];
    let refuses = ["min-replicas-to-write", "min-slaves-to-write", "min-replicas-max-lag", "min-slaves-max-lag"];
    let is = |name: &[u8], known: &[&str]| known.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
    while let (Some(name), Some(value)) = (arguments.next(), arguments.next()) {
        if is(name, &opens) && !value.eq_ignore_ascii_case(b"yes") || lacks_copies && is(name, &refuses) {
            return true;
        }
    }
    false
}

/// What each command is, before a client calls one: `MONITOR` and the slow log show clients' commands
/// alone then.
fn ask_about_all() {
    // Renamed ones are listed by their former names: those are asked about when they are called.
    for name in main().api.call("COMMAND", &["LIST"]).tree().elements() {
        main().kind(name.text().as_bytes());
    }
}

/// Another module was loaded, or is gone: names may mean something else.
unsafe extern "C" fn on_modules(_ctx: *mut Ctx, _event: ServerEvent, _sub: u64, data: *mut c_void) {
    main().kinds.borrow_mut().clear();
    ask_about_all();
    // SAFETY: what the server gives with this event.
    if unsafe { api::changed_module(data) } != NAME {
        calls::with_reads(|reads| reads.be_careful());
    }
}

unsafe extern "C" fn on_refuse(ctx: *mut Ctx, argv: *mut *mut Text, argc: c_int) -> c_int {
    let api = Api(ctx);
    // SAFETY: the server gives that many texts; the second is the command's name.
    let words = unsafe { std::slice::from_raw_parts(argv, argc as usize) };
    // SAFETY: as above.
    let name = words.get(1).map(|name| unsafe { api::bytes(*name) });
    if let Some(name) = name.filter(|_| api.is_replicated()) {
        // What the leader has sent, and clients are refused.
        if let Some(error) = api.call_with(&String::from_utf8_lossy(name), &words[2..]).error() {
            main().api.log(c"warning", &format!("{} of the leader is answered by {error}", String::from_utf8_lossy(name)));
            shared().not_executed.fetch_add(1, Ordering::AcqRel);
        }
        return api.status("OK");
    }
    if name.is_some_and(|name| name.eq_ignore_ascii_case(b"config")) {
        return api.error(
            "ERR fide: a server of a group that follows takes no writes and drops no keys by itself: replica-read-only and replica-ignore-maxmemory \
             stay yes; and while writes are refused for want of copies (FIDE STATUS), min-replicas-to-write and min-replicas-max-lag stay as they are",
        );
    }
    if name.is_some_and(|name| OF_THE_GROUP.iter().any(|of_the_group| name.eq_ignore_ascii_case(of_the_group))) {
        return api.error("ERR fide: the group decides who leads: FIDE STEPDOWN on the leader lets another server lead");
    }
    with(|s| match &s.role {
        Role::Follows(leader) => api.error(&format!("READONLY fide: {leader} leads")),
        Role::Waits(why) => api.error(&format!("NOREPLICAS fide: {why}")),
        Role::Leads => match lacks_copies() {
            Some(why) => api.error(&format!("NOREPLICAS fide: {why}")),
            // Its transaction began before.
            None => api.error("TRYAGAIN fide: this server leads now"),
        },
    })
}

/// The server sleeps, or has slept: nothing was executed meanwhile, and what it did before has been written.
unsafe extern "C" fn on_loop(_ctx: *mut Ctx, _event: ServerEvent, sub: u64, _data: *mut c_void) {
    /// `REDISMODULE_SUBEVENT_EVENTLOOP_AFTER_SLEEP`.
    const AFTER: u64 = 1;
    if sub != AFTER {
        calls::sleeps();
        if main().leads.get() && shared().gate.has_gap() {
            close_gap();
        }
    }
    refuse_writes(is_short_of_copies());
    shared().moves();
    // Whatever becomes of this server meanwhile: what it shows others may have been mended.
    if sub == AFTER && with(|s| s.asked.elapsed() >= CHECK) {
        shared().gate.let_go();
        with(|s| s.asked = Instant::now());
        *shared().accounts.lock().unwrap_or_else(PoisonError::into_inner) = accounts(main().api);
        if has_tls(main().api) {
            calls::with_reads(|reads| reads.be_careful());
        }
    }
    if sub == AFTER && main().leads.get() && with(|s| s.checked.elapsed() >= CHECK) {
        with(|s| s.checked = Instant::now());
        check_stream();
    }
    if !main().leads.get() && with(|s| s.looked.elapsed() >= LOOK) {
        with(|s| s.looked = Instant::now());
        look_at_applied();
        look_at_errors();
    }
    let is_loading = main().api.is_loading();
    if !is_loading {
        look_at_disk();
        if with(|s| s.looked_at_log.elapsed() >= LOOK_AT_LOG) {
            with(|s| s.looked_at_log = Instant::now());
            look_at_log();
        }
    }
    if !is_loading && with(|s| std::mem::take(&mut s.is_loading)) {
        shared().to_server.bell.ring();
    }
    try_take_over();
    be_idle();
}

/// How far this server is, for the others.
fn look_at_applied() -> Option<u64> {
    let field = if main().is_replica.get() { c"slave_repl_offset" } else { c"master_repl_offset" };
    let applied = main().api.replication(field);
    shared().applied.store(applied.unwrap_or(0), Ordering::Release);
    shared().looks.fetch_add(1, Ordering::Release);
    applied
}

/// A command of the stream that this server cannot execute (renamed, of a module that it has not):
/// its data are others from there on.
fn look_at_errors() {
    if main().is_idle.get() || !main().is_replica.get() || with(|s| s.looked_at_errors.elapsed() < LOOK_AT_ERRORS) {
        return;
    }
    count_errors();
}

fn count_errors() {
    let errors = errors_of_the_stream();
    let more = with(|s| {
        s.looked_at_errors = Instant::now();
        // `CONFIG RESETSTAT` counts from 0 again.
        let more = errors.checked_sub(s.errors_before).unwrap_or(errors);
        s.errors_before = errors;
        more
    });
    shared().not_executed.fetch_add(more, Ordering::AcqRel);
}

/// Replies with errors to what is no client's, as Redis 7 counts them.
fn errors_of_the_stream() -> u64 {
    main().api.number_of(c"stats", c"unexpected_error_replies").unwrap_or(0)
}

/// What was missing of the stream is there when all is there that the server counts: it has written everything by now, if clients take it.
fn close_gap() {
    let end = main().api.replication(c"master_repl_offset");
    if let Some(all) = end.and_then(|end| end.checked_sub(shared().origin.load(Ordering::Acquire))) {
        shared().gate.close_gap(all);
    }
}

/// All replies that wait rest on it: what was caught is what the server counts.
fn check_stream() {
    if shared().gate.has_gap() {
        return;
    }
    let end = main().api.replication(c"master_repl_offset");
    let caught = shared().gate.caught().map(|caught| shared().origin.load(Ordering::Acquire) + caught);
    if end != caught {
        main().api.log(
            c"warning",
            &format!("the stream to replicas is at {end:?}, of which {caught:?} was caught: this server leads no more"),
        );
        shared().gate.break_off();
        shared().to_group.bell.ring();
    }
}

// ---- roles --------------------------------------------------------------------------------------------------------------

unsafe extern "C" fn on_told(_fd: c_int, _data: *mut c_void, _mask: c_int) {
    shared().to_server.bell.hush();
    if main().api.is_loading() {
        with(|s| s.is_loading = true);
        return;
    }
    while let Some(told) = shared().to_server.pop() {
        match told {
            ToServer::Follow { leader, .. } if !may_be_replaced() => {
                let why = format!(
                    "this server has {}, and {leader} leads: FIDE FOLLOW FORCE here drops them, FIDE LEAD FORCE DISCARD here makes the others take them and drops theirs",
                    in_words_of_others()
                );
                if with(|s| s.role != Role::Waits(why.clone())) {
                    main().api.log(c"warning", &why);
                    be(Role::Waits(why), None);
                }
            }
            ToServer::Follow { port, leader } => {
                be(Role::Follows(leader), None);
                let errors = errors_of_the_stream();
                with(|s| s.errors_before = errors);
                shared().not_executed.store(0, Ordering::Release);
                // Redis itself refuses clients' writes then.
                drop(main().api.call("CONFIG", &["SET", "replica-read-only", "yes"]));
                // It would drop keys that its leader has.
                drop(main().api.call("CONFIG", &["SET", "replica-ignore-maxmemory", "yes"]));
                // A leader that hangs sends nothing, and this server has all its data: it stays as it is.
                drop(main().api.call("CONFIG", &["SET", "repl-timeout", NEVER]));
                replicate("127.0.0.1", &port.to_string());
            }
            ToServer::TakeOver(offset) => {
                be(Role::Waits("this server takes over".into()), Some(offset));
                try_take_over();
            }
            ToServer::Be(role) => {
                main().api.log(c"notice", &format!("group: {}", in_words(&role)));
                be(role, None);
            }
            ToServer::Warn(what) => main().api.log(c"warning", &what),
            ToServer::Lead(fd) => {
                main().api.log(c"notice", &format!("group: {}", in_words(&Role::Leads)));
                be(Role::Leads, None);
                if let Some(timeout) = REPL_TIMEOUT.get() {
                    drop(main().api.call("CONFIG", &["SET", "repl-timeout", timeout]));
                }
                // What lay on its disk when it was started is not what it has from here on.
                *shared().on_disk.lock().unwrap_or_else(PoisonError::into_inner) = Some(None);
                keep_lineage();
                *shared().stream_id.lock().unwrap_or_else(PoisonError::into_inner) = main().api.replication_id();
                main().api.on_readable(fd.as_raw_fd(), on_group);
                with(|s| s.group = Some(fd));
            }
        }
    }
}

/// Whether this server's data may go for the leader's: it has none, or they are of this group, or an operator has said so.
fn may_be_replaced() -> bool {
    let generation = shared().generation.load(Ordering::Relaxed);
    if with(|s| s.replaceable == Some(generation)) {
        return true;
    }
    let (lineage, term) = (shared().lineage.load(Ordering::Relaxed), shared().lineage_term.load(Ordering::Relaxed));
    let is_former = |kept: &Former| kept.generation == lineage && kept.term <= term;
    let is_own = shared().kept().is_some_and(|kept| kept.generation == generation || is_former(&kept));
    let has_data = has_data();
    if is_own || !has_data {
        keep_lineage();
    }
    is_own || !has_data
}

/// Which data those are that may not go for the leader's.
fn in_words_of_others() -> String {
    let (lineage, term) = (shared().lineage.load(Ordering::Relaxed), shared().lineage_term.load(Ordering::Relaxed));
    match shared().kept() {
        Some(kept) if kept.generation == lineage => {
            format!("later data (of term {} of the former group; the group goes on with those of term {term})", kept.term)
        }
        _ => "data that are not the group's".into(),
    }
}

fn has_data() -> bool {
    main().api.call("INFO", &["keyspace"]).tree().text().contains("keys=")
}

/// Once all data were loaded: of which group they are, and how far they go. Only a log of every
/// write says that.
fn look_at_disk() {
    if shared().on_disk.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
        return;
    }
    // What its own log could not do when it was loaded says nothing of a leader's stream.
    let errors = errors_of_the_stream();
    with(|s| s.errors_before = errors);
    let (has_data, has_log) = (has_data(), setting(main().api, "appendonly") == "yes");
    let extent = |former: &Former| match () {
        () if !has_data => Extent::Empty,
        () if has_log && former.extent == Extent::Log => Extent::Log,
        () => Extent::Unknown,
    };
    let former = shared().kept().map(|former| Former { extent: extent(&former), ..former });
    *shared().on_disk.lock().unwrap_or_else(PoisonError::into_inner) = Some(former);
    shared().to_group.bell.ring();
}

/// Whether all of its data are in its log. A server that was given data writes its log anew, and its
/// former one, of other data, is what it would load until that is done.
fn look_at_log() {
    let api = main().api;
    let is = |section: &CStr, field: &CStr| api.number_of(section, field);
    let persistence = |field: &CStr| is(c"persistence", field);
    let is_kept = persistence(c"aof_enabled") == Some(1);
    let is_new = persistence(c"aof_rewrite_in_progress") == Some(0) && persistence(c"aof_rewrite_scheduled") == Some(0);
    let has_all = !main().is_replica.get()
        || is(c"replication", c"master_sync_in_progress") == Some(0)
            && is(c"replication", c"master_link_down_since_seconds").is_none();
    if is_kept && is_new && has_all {
        // Not if data come just now.
        let (came, none) = (copy::CAME, copy::NONE);
        _ = shared().copy.compare_exchange(came, none, Ordering::AcqRel, Ordering::Acquire);
    }
    let is_live = is_kept && shared().copy.load(Ordering::Acquire) == copy::NONE;
    if shared().log_is_live.swap(is_live, Ordering::AcqRel) != is_live {
        shared().to_group.bell.ring();
    }
}

/// From now on this server's data are those of the group as it is now, also when it starts again.
fn keep_lineage() {
    let generation = shared().generation.load(Ordering::Relaxed);
    if with(|s| s.replaceable.replace(generation)) == Some(generation) {
        return;
    }
    let former = Former { generation, term: 0, extent: Extent::Unknown, offset: 0, set: String::new() };
    let _ = shared().lineages.send(former);
}

/// By a thread of its own: the disk may be slow. What cannot be written is tried again, and what the
/// file said before is not left there: it is not so any more.
fn write_lineages(settings: &Settings, to_write: &mpsc::Receiver<Former>) {
    let mut unwritten: Option<Former> = None;
    loop {
        let next = match &unwritten {
            None => to_write.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(_) => to_write.recv_timeout(WRITES_AGAIN),
        };
        let is_first = unwritten.is_none();
        let former = match (next, unwritten.take()) {
            // Who has all data is written there already, or will be.
            (Ok(next), before) if next.term == 0 => {
                let is_there = |kept: &Former| kept.generation == next.generation;
                before.filter(is_there).or((!shared().kept().as_ref().is_some_and(is_there)).then_some(next))
            }
            (Ok(next), _) => Some(next),
            (Err(RecvTimeoutError::Timeout), before) => before,
            (Err(RecvTimeoutError::Disconnected), _) => return,
        };
        let Some(former) = former else { continue };
        let written = lineage::write(&settings.lineage, &former);
        let path = settings.lineage.display();
        match written {
            Ok(()) => {
                if !is_first {
                    shared().to_server.push(ToServer::Warn(format!("{path} is written again")));
                }
                *shared().kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(former);
            }
            Err(e) => {
                let left = lineage::forget(&settings.lineage).err();
                if is_first {
                    let behind = left.map_or_else(
                        || "behind a restart before that an operator is asked".into(),
                        |e| format!("nor can it be removed ({e}): remove it before this server is started again"),
                    );
                    shared().to_server.push(ToServer::Warn(format!("cannot write {path}: {e}: it is tried again; {behind}")));
                }
                unwritten = Some(former);
            }
        }
    }
}

fn be(role: Role, take_over: Option<u64>) {
    let leads = role == Role::Leads;
    main().leads.set(leads);
    shared().is_leading.store(leads, Ordering::Relaxed);
    if leads {
        let has_lease = shared().has_lease.load(Ordering::Acquire);
        // The rest of a transaction, a part of which was refused, would be executed.
        let half_refused = calls::with_reads(|reads| {
            let half_refused = reads.half_refused();
            reads.begin(has_lease);
            half_refused
        });
        shared().gate.hang_up(half_refused.as_deref());
        shared().gate.hold()
    } else {
        shared().gate.cut()
    }
    // Before it is closed: the server would take the next client of that number for it, and hear nothing of the client.
    if let Some(fd) = with(|s| s.group.take()) {
        main().api.off_readable(fd.as_raw_fd());
    }
    with(|s| (s.role, s.takes_over, s.take_over, s.checked) = (role, take_over.is_some(), take_over, Instant::now()));
}

/// The group and this server, while it leads.
fn exchange() {
    if !group::pump(&GROUP) {
        shared().to_group.bell.ring();
    }
}

unsafe extern "C" fn on_group(_fd: c_int, _data: *mut c_void, _mask: c_int) {
    exchange();
}

fn in_words(role: &Role) -> String {
    match role {
        Role::Leads => "this server leads".into(),
        Role::Follows(leader) => format!("this server follows {leader}"),
        Role::Waits(why) => format!("clients are refused: {why}"),
    }
}

fn replicate(host: &str, port: &str) {
    match main().api.call("REPLICAOF", &[host, port]).error() {
        None => {
            main().is_replica.set(host != "NO");
            main().is_idle.set(false);
        }
        Some(error) => main().api.log(c"warning", &format!("REPLICAOF {host} {port}: {error}")),
    }
}

/// A server that waits is no primary in INFO and ROLE, by which proxies choose: until it leads it is a replica of an address where nobody answers.
fn be_idle() {
    let (main, port) = (main(), shared().nobody);
    let waits = with(|s| matches!(s.role, Role::Waits(_)) && !s.takes_over);
    if !waits || main.leads.get() || main.is_replica.get() || main.is_idle.get() || main.api.is_loading() {
        return;
    }
    main.is_idle.set(true);
    if let Some(error) = main.api.call("REPLICAOF", &["127.0.0.1", &port.to_string()]).error() {
        main.api.log(c"warning", &format!("this server says that it is a primary while it waits: {error}"));
    }
}

/// As soon as everything that is decided was applied.
fn try_take_over() {
    let Some(offset) = with(|s| s.take_over) else { return };
    let applied = look_at_applied();
    if offset > 0 && applied.is_none_or(|applied| applied < offset) {
        shared().to_server.bell.ring(); // its link is read in the next turn
        return;
    }
    with(|s| s.take_over = None);
    count_errors();
    if shared().not_executed.load(Ordering::Acquire) > 0 {
        return shared().to_group.bell.ring(); // its data are others than the group's
    }
    replicate("NO", "ONE");
    shared().to_group.push(ToGroup::TookOver);
}

// ---- for operators ------------------------------------------------------------------------------------------------------

unsafe extern "C" fn on_info(ctx: *mut InfoCtx, _is_crash: c_int) {
    let seen = shared().seen();
    let (role, waits) = (with(|s| in_words(&s.role)), shared().gate.waiting());
    let reads = if shared().has_lease.load(Ordering::Acquire) { "lease" } else { "entry" };
    let kept = shared().kept();
    let in_sync = kept.as_ref().map_or_else(String::new, |kept| kept.set.replace('\n', " "));
    let texts = [
        ("group", role),
        ("leader", seen.leader),
        ("trouble", seen.trouble),
        ("reads", reads.to_owned()),
        ("data_in_sync", in_sync),
    ];
    let counts = &shared().gate.counts;
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let servers: Vec<(String, String)> = (0..).zip(&seen.servers).map(|(n, of)| (format!("server{n}"), in_a_line(of))).collect();
    let servers = servers.iter().map(|(name, line)| (name.as_str(), line.clone()));
    let texts: Vec<(&str, String)> = texts.into_iter().chain(servers).collect();
    let numbers = [
        ("term", seen.term),
        ("entries", seen.index),
        ("members", seen.members),
        ("proposals_under_way", seen.pending),
        ("replies_waiting", waits),
        ("replies_at_once", of(&counts.at_once)),
        ("replies_after_write", of(&counts.after_write)),
        ("replies_after_entry", of(&counts.after_entry)),
        ("in_sync", u64::from(seen.in_sync)),
        ("copies", seen.copies),
        ("zones", seen.zones),
        ("data_group", kept.as_ref().map_or(0, |kept| kept.generation)),
        ("data_term", kept.as_ref().map_or(0, |kept| kept.term)),
        ("data_in_log", u64::from(shared().log_is_live.load(Ordering::Relaxed))),
    ];
    // SAFETY: as the server calls it.
    unsafe { api::info(ctx, &texts, &numbers) };
}

/// As Redis itself does for replicas.
fn in_a_line(of: &shared::Server) -> String {
    let lag_ms = of.lag_ms.map(|ms| format!(",lag_ms={ms}")).unwrap_or_default();
    let trouble = if of.trouble.is_empty() { String::new() } else { format!(",trouble={}", of.trouble) };
    let zone = if of.zone.is_empty() { String::new() } else { format!(",zone={}", of.zone) };
    format!("address={}{zone},in_sync={},lag_bytes={}{lag_ms}{trouble}", of.address, u8::from(of.is_in_sync), of.lag_bytes)
}

/// Why this server must not lead on an operator's word: data of one that leads would be lost, which this server has not.
fn must_not_lead(api: Api) -> Option<String> {
    let seen = shared().seen();
    if !seen.runs {
        return Some(
            "ERR fide: the agent of this host is not in the group now, so nobody can be told: fide group status says why".into(),
        );
    }
    // Who has everything that is decided drops nothing of it.
    if seen.in_sync || with(|s| s.role == Role::Leads) {
        return None;
    }
    let here = Data::of(api.call("INFO", &["keyspace"]).tree().text(), shared().kept().as_ref(), &seen.own);
    if !seen.leader_lives {
        return has_more(&seen, &here);
    }
    let there = match ask_all([seen.leader.clone()].into_iter()).pop() {
        Some((_, Ok(data))) => format!("with {} keys", data.keys),
        Some((_, Err(why))) => format!("as far as is known, with an unknown number of keys ({why})"),
        None => "as far as is known, and does not answer here".into(),
    };
    Some(format!(
        "ERR fide: {} leads, {there}, and this server has {}: FIDE STEPDOWN there hands over without loss, FIDE LEAD FORCE DISCARD \
         here drops the data of all others",
        seen.leader, here.keys
    ))
}

/// What a server has, as it says itself.
struct Data {
    keys: u64,
    /// It loads them: it has more than that.
    is_loading: bool,
    /// Of which group and term, and whether it was in sync then: the greater are the later data.
    rank: (u64, u64, bool),
}

impl Data {
    /// `info`: sections *keyspace*, *persistence* and the module's of a server at this address; of
    /// this server its file is known.
    fn of(info: &str, kept: Option<&Former>, address: &str) -> Self {
        let field = |name: &str| info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'));
        let number = |name: &str| field(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let set =
            kept.map_or_else(|| field("fide_data_in_sync").unwrap_or_default().to_owned(), |kept| kept.set.replace('\n', " "));
        let (generation, term) =
            kept.map_or_else(|| (number("fide_data_group"), number("fide_data_term")), |kept| (kept.generation, kept.term));
        let is_one = set.split(' ').any(|of| of == address);
        Self { keys: keys_in(info), is_loading: number("loading") == 1, rank: (generation, term, is_one) }
    }

    /// The greater are to stay: later ones, and of equal ones the more. Lost ones are none.
    fn worth(&self) -> impl Ord {
        (self.keys > 0, self.rank, self.keys)
    }

    fn in_words(&self) -> String {
        match self.rank {
            (0, ..) => format!("{} keys, of no group that is known", self.keys),
            (_, term, true) => format!("{} keys (it was in sync last in term {term})", self.keys),
            _ => format!("{} keys (it is not known to have been in sync)", self.keys),
        }
    }
}

/// What servers at these addresses have, or why they do not say it, of those that answer within a
/// second: threads ask, and nobody waits for a resolver that hangs.
fn ask_all(addresses: impl Iterator<Item = String>) -> Vec<(String, Result<Data, String>)> {
    let (tell, told) = mpsc::channel();
    let mut asked = 0;
    for address in addresses.take(ASKED_MAX) {
        let (tell, account) = (tell.clone(), shared().accounts().of_others);
        let ask = move || {
            let info = replication::ask_info(&address, &account, &["keyspace", "persistence", NAME]);
            let data = info.map(|info| Data::of(&info, None, &address)).map_err(|e| e.to_string());
            _ = tell.send((address, data));
        };
        asked += usize::from(std::thread::Builder::new().name("fide-asks".into()).spawn(ask).is_ok());
    }
    let (until, mut all) = (Instant::now() + ASKED_WITHIN, Vec::new());
    for _ in 0..asked {
        match told.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(said) => all.push(said),
            Err(_) => break,
        }
    }
    all
}

/// Nobody leads: another server that has later data than this one, or as late ones and more keys,
/// of those that the group knows.
fn has_more(seen: &shared::Seen, here: &Data) -> Option<String> {
    let others: BTreeSet<&String> = seen.servers.iter().map(|of| &of.address).chain([&seen.leader]).collect();
    let others = others.into_iter().filter(|address| !address.is_empty() && **address != seen.own).cloned();
    let all = ask_all(others);
    // Who does not say it was named to the operator as missing.
    let all: Vec<(String, Data)> = all.into_iter().filter_map(|(address, data)| Some((address, data.ok()?))).collect();
    if let Some((address, _)) = all.iter().find(|(_, there)| there.is_loading) {
        return Some(format!(
            "ERR fide: {address} loads its data, and may have more than this server: wait for it, or FIDE LEAD FORCE DISCARD here drops them"
        ));
    }
    let (address, there) = all.into_iter().max_by(|(_, one), (_, other)| one.worth().cmp(&other.worth()))?;
    (there.worth() > here.worth()).then(|| {
        format!(
            "ERR fide: {address} has {}, and this server has {}: FIDE LEAD FORCE there keeps those, FIDE LEAD FORCE DISCARD here drops them",
            there.in_words(),
            here.in_words()
        )
    })
}

/// Keys of all databases, as INFO counts them.
fn keys_in(info: &str) -> u64 {
    info.split("keys=").skip(1).filter_map(|rest| rest.split(',').next()?.parse::<u64>().ok()).sum()
}

unsafe extern "C" fn on_fide(ctx: *mut Ctx, argv: *mut *mut Text, argc: c_int) -> c_int {
    let api = Api(ctx);
    // SAFETY: the server gives that many texts; copied.
    let words: Vec<String> = unsafe { std::slice::from_raw_parts(argv, argc as usize) }
        .iter()
        .map(|text| String::from_utf8_lossy(unsafe { api::bytes(*text) }).to_ascii_lowercase())
        .collect();
    match words.iter().skip(1).map(String::as_str).collect::<Vec<_>>()[..] {
        ["status"] => {
            let seen = shared().seen();
            let role = with(|s| in_words(&s.role));
            api.array(20);
            for (name, text) in
                [("role", &role), ("leader", &seen.leader), ("zone", &seen.zone), ("trouble", &seen.trouble)]
            {
                api.bytes(name.as_bytes());
                api.bytes(text.as_bytes());
            }
            let in_sync = u64::from(seen.in_sync);
            for (name, number) in [
                ("term", seen.term),
                ("entries", seen.index),
                ("in-sync", in_sync),
                ("copies", seen.copies),
                ("zones", seen.zones),
            ] {
                api.bytes(name.as_bytes());
                api.number(number as i64);
            }
            api.bytes(b"servers");
            api.array(seen.servers.len());
            seen.servers.iter().for_each(|of| _ = api.bytes(in_a_line(of).as_bytes()));
            api::OK
        }
        ["stepdown"] if with(|s| s.role != Role::Leads) => api.error("ERR fide: this server does not lead"),
        ["stepdown"] if shared().seen().copies < 2 => {
            api.error("ERR fide: no other server has all data, so that none could lead: FIDE STATUS says why")
        }
        ["stepdown"] => {
            shared().to_group.push(ToGroup::StepDown(shared().gate.turn()));
            api.status("OK")
        }
        ["lead", "force"] if let Some(why) = must_not_lead(api) => api.error(&why),
        ["lead", "force"] | ["lead", "force", "discard"] => {
            shared().to_group.push(ToGroup::Force(words.len() > 3));
            api.status("OK")
        }
        ["follow", "force"] if with(|s| s.role == Role::Leads) => {
            api.error("ERR fide: this server leads: FIDE STEPDOWN lets another one lead, which it follows then")
        }
        ["follow", "force"] => {
            keep_lineage();
            shared().to_group.push(ToGroup::Follow);
            api.status("OK")
        }
        _ => api.error(
            "ERR FIDE STATUS | STEPDOWN (another server shall lead) | LEAD FORCE [DISCARD] (this one, with the data it has; DISCARD: also in place of one that leads) | FOLLOW FORCE (this one, without them)",
        ),
    }
}
