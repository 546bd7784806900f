//! The server's main thread: what the server is, and which commands are refused to clients because of it.
//!
//! While the server leads, commands are executed as ever, and what they write passes the gate. While it does not, a filter makes every command that reads or
//! writes data an argument of `FIDE.REFUSE`, which says who leads. Clients of a server that stops to lead are cut off: what they were not told yet is not
//! known to be decided.

use crate::api::{self, Api, Ctx, FilterCtx, InfoCtx, ServerEvent, Text, Tree};
use crate::calls;
use crate::course::is_address;
use crate::group::{self, Place, Settings};
use crate::replication::{self, Account, Accounts};
use crate::shared::{self, Role, Shared, ToGroup, ToServer};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// These read or write data, too.
const EXTRA: [&str; 10] =
    ["multi", "watch", "eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro", "publish", "spublish"];
/// The group decides who leads.
const OF_THE_GROUP: [&[u8]; 3] = [b"replicaof", b"slaveof", b"failover"];
/// How often it is looked whether all of the server's stream was caught, and at settings that may change.
const CHECK: Duration = Duration::from_secs(1);
/// How often a server that follows looks how far it is, at most: that takes some µs.
const LOOK: Duration = Duration::from_millis(5);
/// Bytes of its stream that a server keeps at least.
const BACKLOG: u64 = 16 << 20;
/// A server that has not gone on for so long is not in sync any more, unless `lag-max` says otherwise.
const LAG_MAX_MS: u64 = 2_000;
const LAG_MAX_LEAST_MS: u64 = 300;

/// Each command that the filter knows, and whether a primary never sends it to replicas.
static COMMANDS: OnceLock<HashMap<Vec<u8>, bool>> = OnceLock::new();
static SHARED: OnceLock<Arc<Shared>> = OnceLock::new();
static GROUP: Place = Place::new(None);
static SETTINGS: OnceLock<Settings> = OnceLock::new();

struct Server {
    role: Role,
    /// The group's socket, while this server leads.
    group: Option<OwnedFd>,
    take_over: Option<u64>,
    /// The server's data are those of this generation of the group, or an operator has given them up for it.
    replaceable: Option<u64>,
    /// Something waits until the server has loaded its data.
    is_loading: bool,
    checked: Instant,
    /// When it was looked how far this server is.
    looked: Instant,
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
    const USAGE: &str =
        "loadmodule fide.so group NAME [address HOST:PORT] [name PROCESS] [socket PATH] [min-copies N] [lag-max MILLISECONDS]";
    let mut given: HashMap<&str, &str> = HashMap::new();
    for pair in arguments.chunks(2) {
        let [key, value] = pair else { return Err(format!("{} has no value: {USAGE}", pair[0])) };
        if key == "min-members" {
            return Err(format!("min-members counted agents, not servers that have the data: min-copies {value} counts those"));
        }
        if !["group", "address", "name", "socket", "min-copies", "lag-max"].contains(&key.as_str()) {
            return Err(format!("no setting {key}: {USAGE}"));
        }
        given.insert(key, value);
    }
    let group = (*given.get("group").ok_or_else(|| format!("no group is named: {USAGE}"))?).to_owned();
    let port: u16 = setting(api, "port").parse().unwrap_or(0);
    if port == 0 {
        return Err("port 0: the module reaches its own server by TCP, and so do others".into());
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
    let (min_copies, lag_max_ms) = (number("min-copies", 0)?, number("lag-max", LAG_MAX_MS)?);
    if lag_max_ms < LAG_MAX_LEAST_MS {
        return Err(format!(
            "lag-max {lag_max_ms}: a healthy server says only every 100 ms what it has: at least {LAG_MAX_LEAST_MS}"
        ));
    }
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
        lag_max: Duration::from_millis(lag_max_ms),
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

/// The commands that read or write data, by what the server says of its commands.
fn commands(api: Api) -> HashMap<Vec<u8>, bool> {
    fn has_flag(command: &Tree, flags: &[&str]) -> bool {
        let own = command.at(2).map(Tree::elements).unwrap_or_default();
        own.iter().any(|flag| flags.contains(&flag.text()))
            || command.at(9).is_some_and(|sub| sub.elements().iter().any(|sub| has_flag(sub, flags)))
    }
    let all = api.call("COMMAND", &[]).tree();
    let named = |command: &Tree| command.at(0).map(|name| name.text().as_bytes().to_ascii_lowercase());
    let touches_data = all.elements().iter().filter(|command| has_flag(command, &["write", "readonly"]));
    let mut commands: HashMap<_, _> =
        touches_data.filter_map(|command| Some((named(command)?, !has_flag(command, &["write"])))).collect();
    for name in EXTRA {
        commands.insert(name.into(), name.starts_with("eval") || name.starts_with("fcall"));
    }
    commands
}

/// Everything that is done once.
///
/// # Errors
/// For the server's log.
pub fn load(api: Api, arguments: Vec<String>) -> Result<(), String> {
    let settings = settings(api, &arguments)?;
    let new = Shared::new().map_err(|e| format!("eventfd: {e}"))?;
    let shared = SHARED.get_or_init(|| Arc::new(new));
    // Whole copies begin at once; nobody waits for more servers that might want one.
    drop(api.call("CONFIG", &["SET", "repl-diskless-sync-delay", "0"]));
    // What a server misses while its agent is restarted; a larger one is an operator's.
    if setting(api, "repl-backlog-size").parse().is_ok_and(|size: u64| size < BACKLOG) {
        drop(api.call("CONFIG", &["SET", "repl-backlog-size", &BACKLOG.to_string()]));
    }
    COMMANDS.get_or_init(|| commands(api));
    api.command("fide.refuse", on_refuse, "allow-stale");
    api.command("fide", on_fide, "allow-stale admin");
    let role = Role::Waits(format!("this server is not part of group {} yet", settings.group));
    *shared.accounts.lock().unwrap_or_else(PoisonError::into_inner) = accounts(api);
    let now = Instant::now();
    let server = Server { role, group: None, take_over: None, replaceable: None, is_loading: false, checked: now, looked: now };
    let main = Main {
        server: RefCell::new(server),
        api: api.detached(),
        refusal: api.detached().text(b"fide.refuse"),
        leads: Cell::new(false),
        is_replica: Cell::new(false),
    };
    MAIN.set(Some(Box::leak(Box::new(main))));
    calls::pass_through(&shared.gate, exchange)?;
    api.filter(on_filter);
    api.on_readable(shared.to_server.bell.fd(), on_told);
    api.on_event(ServerEvent::LOOP, on_loop);
    api.on_info(on_info);
    let shared = shared.clone();
    let settings = SETTINGS.get_or_init(|| settings).clone();
    let thread = std::thread::Builder::new().name("fide-group".into());
    thread.spawn(move || group::run(&settings, &shared, &GROUP)).map_err(|e| format!("no thread: {e}"))?;
    Ok(())
}

// ---- commands -----------------------------------------------------------------------------------------------------------

unsafe extern "C" fn on_filter(ctx: *mut FilterCtx) {
    let Some(main) = MAIN.get() else { return };
    // SAFETY: as the server calls it; the name is not used behind this.
    let name = unsafe { api::filtered(ctx) };
    let is_refused = OF_THE_GROUP.iter().any(|of_the_group| name.eq_ignore_ascii_case(of_the_group))
        || !main.leads.get() && {
            let mut lower = [0u8; 32];
            let Some(room) = lower.get_mut(..name.len()) else { return };
            room.copy_from_slice(name);
            room.make_ascii_lowercase();
            let known = COMMANDS.get().and_then(|commands| commands.get(&*room));
            known.is_some_and(|is_read| *is_read || !main.is_replica.get())
        }
        || main.leads.get() && lacks_copies() && is_write(name);
    if is_refused {
        // SAFETY: the text is kept once more for each command.
        unsafe { api::redirect(ctx, main.refusal) };
    }
}

/// Fewer servers hold everything than writes shall be held by.
fn lacks_copies() -> bool {
    SETTINGS.get().is_some_and(|settings| settings.min_copies > shared().copies.load(Ordering::Relaxed))
}

/// Whether a command may write, as far as its name says.
fn is_write(name: &[u8]) -> bool {
    let lower = name.to_ascii_lowercase();
    let is_script = ["eval", "evalsha", "fcall"].iter().any(|script| lower == script.as_bytes());
    is_script
        || !["watch", "multi"].iter().any(|of| lower == of.as_bytes())
            && COMMANDS.get().and_then(|all| all.get(&lower)) == Some(&false)
}

unsafe extern "C" fn on_refuse(ctx: *mut Ctx, argv: *mut *mut Text, argc: c_int) -> c_int {
    let api = Api(ctx);
    // SAFETY: the server gives that many texts; the second is the command's name.
    let name = unsafe { std::slice::from_raw_parts(argv, argc as usize).get(1).map(|name| api::bytes(*name)) };
    if name.is_some_and(|name| OF_THE_GROUP.iter().any(|of_the_group| name.eq_ignore_ascii_case(of_the_group))) {
        return api.error("ERR fide: the group decides who leads: FIDE STEPDOWN on the leader lets another server lead");
    }
    with(|s| match &s.role {
        Role::Follows(leader) => api.error(&format!("READONLY fide: {leader} leads")),
        Role::Waits(why) => api.error(&format!("NOREPLICAS fide: {why}")),
        Role::Leads if lacks_copies() => api.error(&format!(
            "NOREPLICAS fide: {} servers hold all data, this one included, and min-copies is {}: FIDE STATUS says which",
            shared().copies.load(Ordering::Relaxed),
            SETTINGS.get().map_or(0, |settings| settings.min_copies)
        )),
        // Its transaction began before.
        Role::Leads => api.error("TRYAGAIN fide: this server leads now"),
    })
}

/// The server sleeps, or has slept: nothing was executed meanwhile, and what it did before has been written.
unsafe extern "C" fn on_loop(_ctx: *mut Ctx, _event: ServerEvent, sub: u64, _data: *mut c_void) {
    /// `REDISMODULE_SUBEVENT_EVENTLOOP_AFTER_SLEEP`.
    const AFTER: u64 = 1;
    if sub == AFTER && with(|s| s.checked.elapsed() >= CHECK) {
        with(|s| s.checked = Instant::now());
        *shared().accounts.lock().unwrap_or_else(PoisonError::into_inner) = accounts(main().api);
        if main().leads.get() {
            check_stream();
        }
    }
    if !main().leads.get() && with(|s| s.looked.elapsed() >= LOOK) {
        with(|s| s.looked = Instant::now());
        look_at_applied();
    }
    let is_loading = main().api.is_loading();
    if !is_loading && with(|s| std::mem::take(&mut s.is_loading)) {
        shared().to_server.bell.ring();
    }
    try_take_over();
}

/// How far this server is, for the others.
fn look_at_applied() -> Option<u64> {
    let field = if main().is_replica.get() { c"slave_repl_offset" } else { c"master_repl_offset" };
    let applied = main().api.replication(field);
    shared().applied.store(applied.unwrap_or(0), Ordering::Relaxed);
    applied
}

/// All replies that wait rest on it: what was caught is what the server counts.
fn check_stream() {
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
                    "this server has data that are not the group's, and {leader} leads: FIDE FOLLOW FORCE drops them, FIDE LEAD FORCE makes the others take them"
                );
                if with(|s| s.role != Role::Waits(why.clone())) {
                    main().api.log(c"warning", &why);
                    be(Role::Waits(why), None);
                }
            }
            ToServer::Follow { port, leader } => {
                be(Role::Follows(leader), None);
                // Redis itself refuses clients' writes then.
                drop(main().api.call("CONFIG", &["SET", "replica-read-only", "yes"]));
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
                keep_lineage();
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
    let kept = SETTINGS.get().and_then(|settings| std::fs::read_to_string(&settings.lineage).ok());
    let kept: Option<u64> = kept.and_then(|text| text.trim().parse().ok()).filter(|kept| *kept != 0);
    let lineage = shared().lineage.load(Ordering::Relaxed);
    let is_own = kept.is_some_and(|kept| kept == generation || kept == lineage);
    let has_data = main().api.call("INFO", &["keyspace"]).tree().text().contains("keys=");
    if is_own || !has_data {
        keep_lineage();
    }
    is_own || !has_data
}

/// From now on this server's data are those of the group as it is now, also when it starts again.
fn keep_lineage() {
    let generation = shared().generation.load(Ordering::Relaxed);
    if with(|s| s.replaceable.replace(generation)) == Some(generation) {
        return;
    }
    let Some(settings) = SETTINGS.get() else { return };
    if let Err(e) = std::fs::write(&settings.lineage, format!("{generation}\n")) {
        let what =
            format!("cannot write {}: {e}: behind a restart this server asks before it follows", settings.lineage.display());
        main().api.log(c"warning", &what);
    }
}

fn be(role: Role, take_over: Option<u64>) {
    let leads = role == Role::Leads;
    main().leads.set(leads);
    if leads {
        shared().gate.hold()
    } else {
        shared().gate.cut()
    }
    // Before it is closed: the server would take the next client of that number for it, and hear nothing of the client.
    if let Some(fd) = with(|s| s.group.take()) {
        main().api.off_readable(fd.as_raw_fd());
    }
    with(|s| (s.role, s.take_over, s.checked) = (role, take_over, Instant::now()));
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
        None => main().is_replica.set(host != "NO"),
        Some(error) => main().api.log(c"warning", &format!("REPLICAOF {host} {port}: {error}")),
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
    replicate("NO", "ONE");
    shared().to_group.push(ToGroup::TookOver);
}

// ---- for operators ------------------------------------------------------------------------------------------------------

unsafe extern "C" fn on_info(ctx: *mut InfoCtx, _is_crash: c_int) {
    let seen = shared().seen();
    let (role, waits) = (with(|s| in_words(&s.role)), shared().gate.waiting());
    let texts = [("group", role), ("leader", seen.leader), ("trouble", seen.trouble)];
    let servers: Vec<(String, String)> = (0..).zip(&seen.servers).map(|(n, of)| (format!("server{n}"), in_a_line(of))).collect();
    let servers = servers.iter().map(|(name, line)| (name.as_str(), line.clone()));
    let texts: Vec<(&str, String)> = texts.into_iter().chain(servers).collect();
    let numbers = [
        ("term", seen.term),
        ("entries", seen.index),
        ("members", seen.members),
        ("proposals_under_way", seen.pending),
        ("replies_waiting", waits),
        ("in_sync", u64::from(seen.in_sync)),
        ("copies", seen.copies),
    ];
    // SAFETY: as the server calls it.
    unsafe { api::info(ctx, &texts, &numbers) };
}

/// As Redis itself does for replicas.
fn in_a_line(of: &shared::Server) -> String {
    let lag_ms = of.lag_ms.map(|ms| format!(",lag_ms={ms}")).unwrap_or_default();
    let trouble = if of.trouble.is_empty() { String::new() } else { format!(",trouble={}", of.trouble) };
    format!("address={},in_sync={},lag_bytes={}{lag_ms}{trouble}", of.address, u8::from(of.is_in_sync), of.lag_bytes)
}

/// Why this server must not lead on an operator's word: the data of one that leads would be lost.
fn must_not_lead(api: Api) -> Option<String> {
    let seen = shared().seen();
    if !seen.runs {
        return Some(
            "ERR fide: the agent of this host is not in the group now, so nobody can be told: fide group status says why".into(),
        );
    }
    if !seen.leader_lives || with(|s| s.role == Role::Leads) {
        return None;
    }
    let here = keys_in(api.call("INFO", &["keyspace"]).tree().text());
    let there = replication::ask_info(&seen.leader, &shared().accounts().of_others, "keyspace").map(|info| keys_in(&info));
    let there = there.map_or_else(|e| format!("an unknown number of keys ({e})"), |keys| format!("{keys} keys"));
    Some(format!(
        "ERR fide: {} leads, with {there}, and this server has {here}: FIDE STEPDOWN there hands over without loss, FIDE LEAD FORCE DISCARD \
         here drops the data of all others",
        seen.leader
    ))
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
            api.array(16);
            for (name, text) in [("role", &role), ("leader", &seen.leader), ("trouble", &seen.trouble)] {
                api.bytes(name.as_bytes());
                api.bytes(text.as_bytes());
            }
            for (name, number) in
                [("term", seen.term), ("entries", seen.index), ("in-sync", u64::from(seen.in_sync)), ("copies", seen.copies)]
            {
                api.bytes(name.as_bytes());
                api.number(number as i64);
            }
            api.bytes(b"servers");
            api.array(seen.servers.len());
            seen.servers.iter().for_each(|of| _ = api.bytes(in_a_line(of).as_bytes()));
            api::OK
        }
        ["stepdown"] if with(|s| s.role != Role::Leads) => api.error("ERR fide: this server does not lead"),
        ["stepdown"] => {
            shared().to_group.push(ToGroup::StepDown(shared().gate.turn()));
            api.status("OK")
        }
        ["lead", "force"] if let Some(why) = must_not_lead(api) => api.error(&why),
        ["lead", "force"] | ["lead", "force", "discard"] => {
            shared().to_group.push(ToGroup::Force);
            api.status("OK")
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
