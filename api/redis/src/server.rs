//! The server's main thread: commands of clients, replies that wait until they are decided, transactions, and what the server is.
//!
//! A filter makes every command that reads or writes data an argument of `FIDE.DO`. That executes it as the client, and keeps the reply back until the stream
//! is decided up to where it ended in this turn of the event loop, and an entry is decided that was proposed after the turn: a server that does not lead
//! any more, and does not know it, answers nothing, to reads either.

use crate::api::{self, Api, Blocked, ClientInfo, Ctx, FilterCtx, InfoCtx, ServerEvent, Text, Tree};
use crate::group::{self, Settings};
use crate::replication::Account;
use crate::shared::{Role, Shared, ToGroup, ToServer};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// These read or write data; their replies wait.
const EXTRA: [&str; 13] = [
    "multi",
    "exec",
    "discard",
    "watch",
    "unwatch",
    "select",
    "eval",
    "evalsha",
    "eval_ro",
    "evalsha_ro",
    "fcall",
    "fcall_ro",
    "publish",
];
/// These may be part of a transaction; their replies do not wait.
const PLAIN: [&str; 4] = ["ping", "echo", "time", "info"];
/// These would wait for others within the server, which keeps no replies back.
const WAITING: [&str; 10] =
    ["blpop", "brpop", "brpoplpush", "blmove", "blmpop", "bzpopmin", "bzpopmax", "bzmpop", "failover", "replicaof"];

/// Each command that the filter knows, and whether a primary never sends it to replicas.
static COMMANDS: OnceLock<HashMap<Vec<u8>, bool>> = OnceLock::new();
static SHARED: OnceLock<Arc<Shared>> = OnceLock::new();

/// What a client is answered.
enum Answer {
    /// Of one command, or of all of a transaction.
    Reply(Vec<u8>),
    Replies(Vec<Vec<u8>>),
    Error(String),
}

struct Waits {
    client: *mut Blocked,
    answer: Answer,
    offset: u64,
    ticket: u64,
}

#[derive(Default)]
struct Transaction {
    /// Each command's texts, kept; none outside MULTI.
    commands: Option<Vec<Vec<*mut Text>>>,
    watched: Vec<(i32, Vec<u8>)>,
    is_changed: bool,
}

struct Server {
    role: Role,
    executed: Vec<(*mut Blocked, Answer)>,
    waits: VecDeque<Waits>,
    transactions: HashMap<u64, Transaction>,
    watches_keys: bool,
    take_over: Option<u64>,
    /// The server has said that it is about to sleep.
    is_late: bool,
    /// Something waits until the server has loaded its data.
    is_loading: bool,
}

struct Main {
    server: RefCell<Server>,
    /// For what no client asked for.
    api: Api,
    /// `FIDE.DO`, as the filter puts it before commands.
    wrapper: *mut Text,
    /// What is decided comes as commands of a primary, which pass the filter, too: it lets writes pass, which Redis itself refuses to clients.
    is_replica: Cell<bool>,
}

thread_local! {
    /// A client's command runs: what a script calls in it is not filtered once more.
    static RUNS: Cell<bool> = const { Cell::new(false) };
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
    const USAGE: &str = "loadmodule libfide_redis.so group NAME [address HOST:PORT] [name PROCESS] [socket PATH]";
    let mut given: HashMap<&str, &str> = HashMap::new();
    for pair in arguments.chunks(2) {
        let [key, value] = pair else { return Err(format!("{} has no value: {USAGE}", pair[0])) };
        if !["group", "address", "name", "socket"].contains(&key.as_str()) {
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
    let announced = setting(api, "replica-announce-ip");
    let address = given.get("address").map(|text| (*text).to_owned());
    Ok(Settings {
        name: given.get("name").map_or_else(|| format!("redis-{group}"), |name| (*name).to_owned()),
        socket: given.get("socket").map(Into::into),
        address: address.or_else(|| (!announced.is_empty()).then(|| format!("{announced}:{port}"))),
        own: format!("{own}:{port}"),
        port,
        account: Account { user: setting(api, "masteruser"), password: setting(api, "masterauth") },
        group,
    })
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
    for name in EXTRA.into_iter().chain(PLAIN).chain(WAITING).chain(["slaveof"]) {
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
    COMMANDS.get_or_init(|| commands(api));
    api.command("fide.do", on_command, "allow-stale");
    api.command("fide", on_fide, "allow-stale admin");
    let role = Role::Waits(format!("this server is not part of group {} yet", settings.group));
    let server = Server {
        role,
        executed: Vec::new(),
        waits: VecDeque::new(),
        transactions: HashMap::new(),
        watches_keys: false,
        take_over: None,
        is_late: false,
        is_loading: false,
    };
    let main = Main {
        server: RefCell::new(server),
        api: api.detached(),
        wrapper: api.detached().text(b"fide.do"),
        is_replica: Cell::new(false),
    };
    MAIN.set(Some(Box::leak(Box::new(main))));
    api.filter(on_filter);
    api.on_readable(shared.to_server.bell.fd(), on_told);
    api.on_event(ServerEvent::LOOP, on_loop);
    api.on_event(ServerEvent::CLIENT, on_client);
    api.on_event(ServerEvent::FLUSH, on_all_changed);
    api.on_event(ServerEvent::SWAP, on_all_changed);
    api.on_info(on_info);
    let shared = shared.clone();
    let thread = std::thread::Builder::new().name("fide-group".into());
    thread.spawn(move || group::run(&settings, &shared)).map_err(|e| format!("no thread: {e}"))?;
    Ok(())
}

// ---- commands -----------------------------------------------------------------------------------------------------------

/// Executes a client's command.
///
/// # Safety
/// The texts live.
unsafe fn run(api: Api, argv: &[*mut Text]) -> Option<Vec<u8>> {
    RUNS.set(true);
    // SAFETY: as the caller says.
    let reply = unsafe { api.call_for_client(argv) };
    RUNS.set(false);
    reply.map(|reply| reply.protocol())
}

unsafe extern "C" fn on_filter(ctx: *mut FilterCtx) {
    if RUNS.get() {
        return;
    }
    let mut lower = [0u8; 32];
    // SAFETY: as the server calls it; the name is copied.
    let name = unsafe { api::filtered(ctx) };
    let Some(room) = lower.get_mut(..name.len()) else { return };
    room.copy_from_slice(name);
    room.make_ascii_lowercase();
    let Some(main) = MAIN.get() else { return };
    let known = COMMANDS.get().and_then(|commands| commands.get(&*room));
    if known.is_some_and(|is_read| *is_read || !main.is_replica.get()) {
        // SAFETY: the text is kept once more for each command.
        unsafe { api::redirect(ctx, main.wrapper) };
    }
}

unsafe extern "C" fn on_command(ctx: *mut Ctx, argv: *mut *mut Text, argc: c_int) -> c_int {
    // SAFETY: the server gives that many texts, the first of which is this command's name.
    let argv = unsafe { std::slice::from_raw_parts(argv, argc as usize) };
    let Some(argv) = argv.get(1..).filter(|argv| !argv.is_empty()) else { return Api(ctx).error("ERR a command is missing") };
    // SAFETY: it lives during this call.
    let name = String::from_utf8_lossy(unsafe { api::bytes(argv[0]) }).to_ascii_lowercase();
    let api = Api(ctx);
    let client = api.client();
    let is_queued = with(|s| s.transactions.get(&client).is_some_and(|t| t.commands.is_some()));
    match name.as_str() {
        "replicaof" | "slaveof" | "failover" => {
            return api.error("ERR fide: the group decides who leads: FIDE STEPDOWN on the leader lets another server lead");
        }
        _ if WAITING.contains(&name.as_str()) && !is_queued => {
            return api.error("ERR fide: commands that wait for others are not built here yet");
        }
        _ if PLAIN.contains(&name.as_str()) && !is_queued => {
            // SAFETY: the texts live during this call.
            return unsafe { run(api, argv) }.map_or_else(|| api.error("ERR no such command"), |reply| api.reply(&reply));
        }
        _ => {}
    }
    if let Some(error) = with(|s| match &s.role {
        Role::Leads => None,
        Role::Follows(leader) => Some(format!("READONLY fide: {leader} leads")),
        Role::Waits(why) => Some(format!("NOREPLICAS fide: {why}")),
    }) {
        return api.error(&error);
    }
    if api.cannot_wait() {
        return api.error("ERR fide: data are not reached from here: the reply could not wait until it is decided");
    }
    match name.as_str() {
        "multi" if is_queued => api.error("ERR MULTI calls can not be nested"),
        "multi" => {
            with(|s| s.transactions.entry(client).or_default().commands = Some(Vec::new()));
            api.status("OK")
        }
        "watch" if is_queued => api.error("ERR WATCH inside MULTI is not allowed"),
        "watch" => watch(api, client, &argv[1..]),
        "discard" if is_queued => {
            end(api, client);
            api.status("OK")
        }
        "exec" if is_queued => execute_all(api, client),
        "exec" | "discard" => api.error(&format!("ERR {} without MULTI", name.to_ascii_uppercase())),
        _ if is_queued => {
            // SAFETY: they live now, and are freed with the transaction.
            argv.iter().for_each(|text| unsafe { api.keep(*text) });
            with(|s| {
                let transaction = s.transactions.entry(client).or_default();
                transaction.commands.get_or_insert_default().push(argv.to_vec());
            });
            api.status("QUEUED")
        }
        "unwatch" => {
            end(api, client);
            api.status("OK")
        }
        "select" => select(api, argv),
        _ => {
            // SAFETY: the texts live during this call.
            match unsafe { run(api, argv) } {
                Some(reply) => answer_later(api, Answer::Reply(reply)),
                None => api.error(&format!("ERR fide: {name} cannot be called here")),
            }
        }
    }
}

fn select(api: Api, argv: &[*mut Text]) -> c_int {
    // SAFETY: they live during the command.
    let number = argv.get(1).map(|text| String::from_utf8_lossy(unsafe { api::bytes(*text) }).into_owned());
    match number.and_then(|number| number.parse().ok()) {
        Some(number) if api.select(number) => api.status("OK"),
        Some(_) => api.error("ERR DB index is out of range"),
        None => api.error("ERR value is not an integer or out of range"),
    }
}

/// Forgets a client's transaction: what it queued and watched.
fn end(api: Api, client: u64) {
    let Some(transaction) = with(|s| s.transactions.remove(&client)) else { return };
    for text in transaction.commands.into_iter().flatten().flatten() {
        // SAFETY: kept when it was queued.
        unsafe { api.free(text) };
    }
}

fn watch(api: Api, client: u64, keys: &[*mut Text]) -> c_int {
    if keys.is_empty() {
        return api.error("ERR wrong number of arguments for 'watch' command");
    }
    if !with(|s| std::mem::replace(&mut s.watches_keys, true)) {
        api.on_keys(on_key);
    }
    let database = api.database();
    // SAFETY: they live during the command; copied.
    let keys: Vec<_> = keys.iter().map(|key| (database, unsafe { api::bytes(*key) }.to_vec())).collect();
    with(|s| s.transactions.entry(client).or_default().watched.extend(keys));
    api.status("OK")
}

fn execute_all(api: Api, client: u64) -> c_int {
    let (commands, is_changed) = with(|s| {
        let transaction = s.transactions.entry(client).or_default();
        (transaction.commands.clone().unwrap_or_default(), transaction.is_changed)
    });
    if is_changed {
        end(api, client);
        return answer_later(api, Answer::Reply(b"*-1\r\n".to_vec())); // it says that somebody wrote
    }
    let replies = commands.iter().map(|command| execute(api, command)).collect();
    end(api, client);
    answer_later(api, Answer::Replies(replies))
}

/// One command of a transaction.
fn execute(api: Api, command: &[*mut Text]) -> Vec<u8> {
    // SAFETY: its texts are kept until the transaction has ended.
    let text = |at: usize| command.get(at).map(|text| String::from_utf8_lossy(unsafe { api::bytes(*text) }).into_owned());
    if text(0).is_some_and(|name| name.eq_ignore_ascii_case("select")) {
        // It is the client's database, not that of a call.
        return match text(1).and_then(|number| number.parse().ok()).is_some_and(|number| api.select(number)) {
            true => b"+OK\r\n".to_vec(),
            false => b"-ERR DB index is out of range\r\n".to_vec(),
        };
    }
    // SAFETY: as above.
    unsafe { run(api, command) }.unwrap_or_else(|| b"-ERR fide: this cannot be called here\r\n".to_vec())
}

// ---- replies that wait --------------------------------------------------------------------------------------------------

fn answer_later(api: Api, answer: Answer) -> c_int {
    let client = api.block(on_reply, on_free);
    let is_late = with(|s| {
        s.executed.push((client, answer));
        s.is_late
    });
    if is_late {
        shared().to_server.bell.ring(); // so that it does not sleep
    }
    api::OK
}

unsafe extern "C" fn on_reply(ctx: *mut Ctx, _argv: *mut *mut Text, _argc: c_int) -> c_int {
    let api = Api(ctx);
    // SAFETY: what `give` handed over.
    match unsafe { &*api.private().cast::<Answer>() } {
        Answer::Reply(reply) => api.reply(reply),
        Answer::Replies(replies) => {
            api.array(replies.len());
            for reply in replies {
                api.reply(reply);
            }
            api::OK
        }
        Answer::Error(text) => api.error(text),
    }
}

unsafe extern "C" fn on_free(_ctx: *mut Ctx, private: *mut c_void) {
    // SAFETY: what `give` handed over, once.
    drop(unsafe { Box::from_raw(private.cast::<Answer>()) });
}

fn give(client: *mut Blocked, answer: Answer) {
    // SAFETY: it waits, and is taken out of the queue.
    unsafe { api::unblock(client, Box::into_raw(Box::new(answer)).cast()) };
}

/// The replies that are decided leave.
fn release() {
    let (decided, confirmed) = (shared().decided.load(Ordering::Acquire), shared().confirmed.load(Ordering::Acquire));
    while let Some(waits) = with(|s| {
        let front = s.waits.front()?;
        (front.offset <= decided && front.ticket <= confirmed).then(|| s.waits.pop_front()).flatten()
    }) {
        give(waits.client, waits.answer);
    }
}

/// What is not decided will not be, as far as this server can tell.
fn fail_all(why: &str) {
    let (executed, waits) = with(|s| (std::mem::take(&mut s.executed), std::mem::take(&mut s.waits)));
    let clients = waits.into_iter().map(|waits| waits.client).chain(executed.into_iter().map(|(client, _)| client));
    for client in clients {
        give(client, Answer::Error(format!("UNKNOWN fide: {why}: whether this was done is not known")));
    }
}

/// The server tells modules that it is about to sleep *before* it goes on with clients that were unblocked, whose next commands may have been read
/// already: these are a turn of their own, which ends behind the sleep.
unsafe extern "C" fn on_loop(_ctx: *mut Ctx, _event: ServerEvent, sub: u64, _data: *mut c_void) {
    end_turn();
    with(|s| s.is_late = sub == 0);
    let is_loading = main().api.is_loading();
    if !is_loading && with(|s| std::mem::take(&mut s.is_loading)) {
        shared().to_server.bell.ring();
    }
    try_take_over();
}

/// Replies of commands that were executed since the last turn wait from now on.
fn end_turn() {
    let executed = with(|s| std::mem::take(&mut s.executed));
    if executed.is_empty() {
        return;
    }
    let offset = main().api.replication(c"master_repl_offset").unwrap_or(u64::MAX);
    let ticket = shared().end_turn(offset);
    let waits = executed.into_iter().map(|(client, answer)| Waits { client, answer, offset, ticket });
    with(|s| s.waits.extend(waits));
}

// ---- roles --------------------------------------------------------------------------------------------------------------

unsafe extern "C" fn on_told(_fd: c_int, _data: *mut c_void, _mask: c_int) {
    shared().to_server.bell.hush();
    release();
    if main().api.is_loading() {
        with(|s| s.is_loading = true);
        return;
    }
    while let Some(told) = shared().to_server.pop() {
        match told {
            ToServer::Follow { port, leader } => {
                with(|s| (s.role, s.take_over) = (Role::Follows(leader), None));
                fail_all("another server leads");
                // Redis itself refuses clients' writes then.
                drop(main().api.call("CONFIG", &["SET", "replica-read-only", "yes"]));
                replicate("127.0.0.1", &port.to_string());
            }
            ToServer::TakeOver(offset) => {
                with(|s| (s.role, s.take_over) = (Role::Waits("this server takes over".into()), Some(offset)));
                try_take_over();
            }
            ToServer::Be(role) => {
                if let Role::Waits(why) = &role {
                    fail_all(why);
                }
                main().api.log(c"notice", &format!("group: {}", in_words(&role)));
                with(|s| (s.role, s.take_over) = (role, None));
            }
        }
    }
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
    let applied = main().api.replication(c"slave_repl_offset");
    if offset > 0 && applied.is_none_or(|applied| applied < offset) {
        shared().to_server.bell.ring(); // its link is read in the next turn
        return;
    }
    with(|s| s.take_over = None);
    replicate("NO", "ONE");
    shared().to_group.push(ToGroup::TookOver);
}

// ---- events of the server -----------------------------------------------------------------------------------------------

unsafe extern "C" fn on_client(_ctx: *mut Ctx, _event: ServerEvent, sub: u64, data: *mut c_void) {
    if sub == 1 {
        // SAFETY: the event of a client that has disconnected has its data.
        let client = unsafe { (*data.cast::<ClientInfo>()).id };
        end(main().api, client);
    }
}

unsafe extern "C" fn on_all_changed(_ctx: *mut Ctx, _event: ServerEvent, _sub: u64, _data: *mut c_void) {
    with(|s| s.transactions.values_mut().filter(|t| !t.watched.is_empty()).for_each(|t| t.is_changed = true));
}

unsafe extern "C" fn on_key(ctx: *mut Ctx, _kind: c_int, _event: *const c_char, key: *mut Text) -> c_int {
    let database = Api(ctx).database();
    // SAFETY: it lives during this call.
    let key = unsafe { api::bytes(key) };
    with(|s| {
        for transaction in s.transactions.values_mut() {
            transaction.is_changed |= transaction.watched.iter().any(|(db, watched)| *db == database && watched == key);
        }
    });
    api::OK
}

unsafe extern "C" fn on_info(ctx: *mut InfoCtx, _is_crash: c_int) {
    let seen = shared().seen();
    let (role, waits) = with(|s| (in_words(&s.role), s.waits.len() as u64));
    let texts = [("group", role), ("leader", seen.leader)];
    let numbers = [
        ("term", seen.term),
        ("entries", seen.index),
        ("members", seen.members),
        ("proposals_under_way", seen.pending),
        ("replies_waiting", waits),
        ("in_sync", u64::from(seen.in_sync)),
    ];
    // SAFETY: as the server calls it.
    unsafe { api::info(ctx, &texts, &numbers) };
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
            api.array(10);
            for (name, text) in [("role", &role), ("leader", &seen.leader)] {
                api.bytes(name.as_bytes());
                api.bytes(text.as_bytes());
            }
            for (name, number) in [("term", seen.term), ("entries", seen.index), ("in-sync", u64::from(seen.in_sync))] {
                api.bytes(name.as_bytes());
                api.number(number as i64);
            }
            api::OK
        }
        ["stepdown"] if with(|s| s.role != Role::Leads) => api.error("ERR fide: this server does not lead"),
        ["stepdown"] => {
            shared().to_group.push(ToGroup::StepDown);
            api.status("OK")
        }
        ["lead", "force"] => {
            shared().to_group.push(ToGroup::Force);
            api.status("OK")
        }
        _ => api.error("ERR FIDE STATUS | STEPDOWN (another server shall lead) | LEAD FORCE (this one, with the data it has)"),
    }
}
