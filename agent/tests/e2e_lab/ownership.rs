//! Whose a watch is: what a member of the socket's group can do to root's processes, watches and hooks, and a stranger with a namesake.

use crate::common::{Process, Setup, World, until};
use fide_wire::control::{HistoryEvent, Reply, Request, Selector, WatchStatus};
use fide_wire::verdict::Cause;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

/// A program of a name that nothing else on this machine has, and that every user can run.
struct Program {
    _directory: tempfile::TempDir,
    name: String,
    path: String,
}

impl Program {
    fn new(name: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let name = format!("{name}{}", std::process::id());
        let path = directory.path().join(&name);
        std::fs::copy("/bin/sleep", &path).unwrap();
        let path = path.to_str().unwrap().to_owned();
        Self { _directory: directory, name, path }
    }

    fn watch(&self, name: &str) -> String {
        format!("[[watch]]\nname = \"{name}\"\nprocess = \"{}\"\n", self.name)
    }
}

/// A user of the socket who is not root.
struct Member(Process, u32);

impl Member {
    fn new(w: &World, uid: u32) -> Self {
        let mut actor = w.actor(1, "user", &[&uid.to_string()]);
        let pid = number(&actor.hear());
        Self(actor, pid)
    }

    fn order(&mut self, line: &str) -> String {
        self.0.say(line);
        self.0.hear()
    }

    fn ask(&mut self, request: &Request) -> String {
        self.order(&format!("ask {}", serde_json::to_string(request).unwrap()))
    }

    /// What it is refused with.
    fn refused(&mut self, request: &Request) -> String {
        let answer = self.ask(request);
        assert!(answer.starts_with("error"), "{request:?}: {answer}");
        answer
    }

    fn granted(&mut self, request: &Request) {
        let answer = self.ask(request);
        assert!(answer.starts_with("ok"), "{request:?}: {answer}");
    }
}

fn number(answer: &str) -> u32 {
    answer.strip_prefix("ok ").and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
}

fn watch(name: &str, selector: Selector) -> Request {
    Request::watch(name, selector)
}

fn unwatch(name: &str) -> Request {
    Request::Unwatch { name: name.into() }
}

fn join(name: &str) -> Request {
    Request::Join { name: name.into(), pbsize: 0, resumes: None }
}

fn report(name: &str) -> Request {
    Request::Report { name: name.into(), hung: true, reason: "so they say".into() }
}

/// The live process that host 1 watches by this name.
fn watched(w: &World, name: &str) -> Option<u32> {
    w.status(1).watched.into_iter().find(|p| p.name == name && p.state == "alive").map(|p| p.pid)
}

fn is_watched(w: &World, name: &str, pid: u32) {
    until(&format!("process {pid} is watched as {name}"), || watched(w, name) == Some(pid));
    w.known(1, name);
}

fn row(w: &World, name: &str) -> Option<WatchStatus> {
    w.status(1).watched.into_iter().find(|p| p.name == name)
}

fn state_of(w: &World, name: &str) -> String {
    row(w, name).map_or_else(String::new, |r| r.state)
}

/// Whether it is the agent's word on a watch, with these parts.
fn told(e: &HistoryEvent, parts: &[&str]) -> bool {
    e.cause == Cause::Local && e.code == fide_agent::control::WATCH_EVENT_CODE && parts.iter().all(|part| e.text.contains(part))
}

/// Host 1 has these lines at the end of its configuration from now on.
fn reload(w: &World, lines: &str) {
    w.write_config(1, &format!("{}\n{lines}", w.head(1, "h1", "2ms")));
    w.ask(1, &Request::Reload).unwrap();
}

const MEMBER: u32 = 65534;
const OTHER: u32 = 65533;

// ---- names ----------------------------------------------------------------------------------------------------------------------

#[test]
fn a_member_cannot_take_or_end_a_watch_of_the_configuration() {
    let program = Program::new("db");
    let lines = program.watch("db");
    let Some(w) = Setup::hosts(2).extra(move |h| if h == 1 { lines.clone() } else { String::new() }).up() else { return };
    let mut member = Member::new(&w, MEMBER);
    let mut p = w.process(1, &program.path, &["1000"]);
    is_watched(&w, "db", p.pid());
    assert!(member.refused(&unwatch("db")).contains("configuration"));
    p.kill();
    p.ended();
    w.event(1, "its end", |e| e.cause == Cause::Killed && e.app.as_deref() == Some("db"));
    // While it is down: its name is taken all the same.
    for request in [watch("db", Selector::Pid(member.1)), join("db"), unwatch("db")] {
        assert!(member.refused(&request).contains("configuration"), "{request:?}");
    }
    let mut there = w.monitor(2, "db@h1");
    let p = w.process(1, &program.path, &["1000"]);
    is_watched(&w, "db", p.pid());
    p.kill();
    there.failure("db@h1");
}

#[test]
fn names_are_their_owners_and_root_and_the_configuration_go_first() {
    let (program, another) = (Program::new("cache"), Program::new("late"));
    let Some(w) = Setup::hosts(2).up() else { return };
    let mut member = Member::new(&w, MEMBER);
    let mut other = Member::new(&w, OTHER);
    // Of two members the first one keeps the name; each ends only its own.
    member.granted(&watch("mine", Selector::Pid(member.1)));
    let refused = other.refused(&watch("mine", Selector::Pid(other.1)));
    assert!(refused.contains("the name mine is taken") && refused.contains("user 65534"), "{refused}");
    assert!(other.refused(&unwatch("mine")).contains("belongs to user 65534"));
    member.granted(&unwatch("mine"));
    // What root has watched is root's, be it a member's process.
    w.ask(1, &watch("observed", Selector::Pid(member.1))).unwrap();
    assert!(member.refused(&unwatch("observed")).contains("belongs to root"));
    let refused = member.refused(&watch("again", Selector::Pid(member.1)));
    assert!(refused.contains("as observed") && refused.contains("fide unmonitor observed"), "{refused}");
    w.ask(1, &unwatch("observed")).unwrap();
    // Root's that stands, while its process is down.
    let p = w.process(1, &program.path, &["1000"]);
    w.ask(1, &watch("cache", Selector::Name(program.name.clone()))).unwrap();
    p.kill();
    until("it waits", || state_of(&w, "cache") == "pending");
    for request in [watch("cache", Selector::Pid(member.1)), join("cache"), unwatch("cache")] {
        let refused = member.refused(&request);
        assert!(refused.contains("root"), "{request:?}: {refused}");
    }
    let p = w.process(1, &program.path, &["1000"]);
    is_watched(&w, "cache", p.pid());
    // A member's name does not block root: the member's watch ends, and that is told.
    member.granted(&watch("taken", Selector::Pid(member.1)));
    w.known(1, "taken");
    let sleeper = w.sleeper(1);
    w.ask(1, &watch("taken", Selector::Pid(sleeper.pid()))).unwrap();
    is_watched(&w, "taken", sleeper.pid());
    w.event(1, "that it has ended", |e| told(e, &["the watch taken", "of user 65534 has ended", "root has that name now"]));
    w.event(2, "that it left", |e| e.cause == Cause::Left && e.app.as_deref() == Some("taken"));
    assert!(member.refused(&watch("taken", Selector::Pid(member.1))).contains("root"));
    // Nor does its process, under another name.
    member.granted(&watch("hidden", Selector::Pid(member.1)));
    w.ask(1, &watch("seen", Selector::Pid(member.1))).unwrap();
    is_watched(&w, "seen", member.1);
    w.event(1, "that it has ended", |e| told(e, &["the watch hidden", "root has that process now"]));
    // Nor the configuration, read again: a process that it does not mean is let go, one that it does mean changes hands as it is.
    w.ask(1, &unwatch("seen")).unwrap();
    member.granted(&watch("late", Selector::Pid(member.1)));
    other.granted(&watch("same", Selector::Pid(other.1)));
    let app = row(&w, "same").unwrap().app;
    reload(&w, &format!("{}[[watch]]\nname = \"same\"\npid = {}\n", another.watch("late"), other.1));
    w.event(1, "that it has ended", |e| {
        told(e, &["the watch late", "of user 65534 has ended", "the configuration has that name now"])
    });
    w.event(1, "that it changed hands", |e| told(e, &["the watch same", "of user 65533 is the configuration's now"]));
    let late = row(&w, "late").unwrap();
    assert_eq!((late.origin.as_str(), late.state.as_str(), late.owner), ("config", "pending", 0));
    assert!(late.why.contains(&another.name), "{}", late.why);
    let same = row(&w, "same").unwrap();
    assert_eq!((same.origin.as_str(), same.state.as_str(), same.app, same.owner), ("config", "alive", app, 0));
    assert!(other.refused(&unwatch("same")).contains("configuration"));
}

#[test]
fn what_root_has_ended_of_the_configuration_comes_back_with_a_reload() {
    let program = Program::new("back");
    let lines = program.watch("db");
    let Some(w) = Setup::hosts(2).extra(move |h| if h == 1 { lines.clone() } else { String::new() }).up() else { return };
    let p = w.process(1, &program.path, &["1000"]);
    is_watched(&w, "db", p.pid());
    w.ask(1, &unwatch("db")).unwrap();
    assert_eq!(watched(&w, "db"), None);
    // Its name is kept for it.
    let mut member = Member::new(&w, MEMBER);
    assert!(member.refused(&watch("db", Selector::Pid(member.1))).contains("configuration"));
    let Ok(Reply::Reloaded(reloaded)) = w.ask(1, &Request::Reload) else { panic!("no account of the reload") };
    assert_eq!((reloaded.watched_again, reloaded.changed), (vec!["db".to_string()], vec![]));
    is_watched(&w, "db", p.pid());
}

#[test]
fn a_reload_answers_what_changed_what_waits_and_what_was_refused() {
    let Some(w) = Setup::hosts(2).up() else { return };
    // An address that no host of the lab has.
    let metrics = "metrics = { listen = \"192.0.2.77:9433\" }";
    let head = w.head(1, "h1", "2ms").replace("metrics = { listen = \"off\" }", metrics);
    let lines = "[detector]\nagent_timeout = \"3s\"\n[[watch]]\nname = \"late\"\npid = 1\n";
    w.write_config(1, &format!("{head}\n{lines}"));
    let Ok(Reply::Reloaded(reloaded)) = w.ask(1, &Request::Reload) else { panic!("no account of the reload") };
    assert_eq!(reloaded.needs_restart, ["detector"]);
    assert_eq!(reloaded.changed, ["watch late (new)", "metrics"]);
    assert!(reloaded.refused.len() == 1 && reloaded.refused[0].contains("192.0.2.77:9433"), "{reloaded:?}");
    let recorded = w.event(1, "the reload", |e| e.code == fide_wire::level::RELOAD_EVENT_CODE);
    assert!(recorded.text.contains("waiting for a restart of the agent: detector"), "{}", recorded.text);
}

#[test]
fn a_process_joins_the_watch_that_waits_for_it() {
    // What joins is this program itself, under a name that no other test has it by.
    let name = format!("joins{}", std::process::id());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(&name);
    std::fs::hard_link(std::env::current_exe().unwrap(), &path)
        .or_else(|_| std::fs::copy(std::env::current_exe().unwrap(), &path).map(|_| ()))
        .unwrap();
    let lines = format!("[[watch]]\nname = \"db\"\nprocess = \"{name}\"\n");
    let Some(w) = Setup::hosts(2).extra(move |h| if h == 1 { lines.clone() } else { String::new() }).up() else { return };
    let start = || {
        let mut p = w.actor_by(1, &path, "application", &[]);
        assert_eq!(p.hear(), "ready");
        p
    };
    for round in 0..6 {
        // Found before it joins, or by joining: whichever comes first, it is one watch, and the configuration's.
        let mut p = start();
        if round % 2 == 0 {
            is_watched(&w, "db", p.pid());
        }
        p.say("join db 100");
        assert!(p.hear().starts_with("ok"), "round {round}");
        is_watched(&w, "db", p.pid());
        assert_eq!(row(&w, "db").unwrap().origin, "config");
        let mut there = w.monitor(2, "db@h1");
        p.say("piggyback 1 0 1");
        assert_eq!(p.hear(), "ok 1");
        there.wait("its bridge", |e| matches!(e, fide_client::Event::Piggyback(m) if m.message == [0]));
        if round < 4 {
            p.kill();
            there.failure("db@h1");
            continue;
        }
        // It quits: what follows is no crash, and the watch waits for the next one.
        p.say("quit");
        assert!(p.hear().starts_with("ok"));
        until("the watch waits", || row(&w, "db").is_some_and(|r| r.state == "pending" && r.why.contains("has quit")));
        p.kill();
        p.ended();
        let ends: Vec<Cause> = there.failures().into_iter().map(|v| v.cause).collect();
        assert_eq!(ends, [Cause::Left], "{:?}", there.seen);
    }
    // Another one that takes that name is refused.
    let mut p = w.actor(1, "application", &[]);
    assert_eq!(p.hear(), "ready");
    p.say("join db 100");
    let refused = p.hear();
    assert!(refused.starts_with("error") && refused.contains("configuration"), "{refused}");
}

// ---- identity -------------------------------------------------------------------------------------------------------------------

/// Starts a process of root's that gets exactly this number.
fn with_number(w: &World, pid: u32) -> Process {
    let began = Instant::now();
    loop {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
        let p = w.sleeper(1);
        if p.pid() == pid {
            return p;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "process number {pid} is not to be had");
    }
}

#[test]
fn a_reused_number_gives_nobody_a_process_of_roots() {
    let kill = "[[hook]]\non = [\"hung\"]\nmatch = \"*\"\naction = \"kill\"\n";
    let Some(w) = Setup::hosts(2).extra(move |h| if h == 1 { kill.into() } else { String::new() }).up() else { return };
    let mut member = Member::new(&w, MEMBER);
    assert_eq!(member.order("pass-on"), "ok passed on");
    member.0.ended();
    let mut roots = with_number(&w, member.1);
    assert_eq!(roots.pid(), member.1);
    let refused = member.refused(&join("stolen"));
    assert!(refused.contains("has ended") && refused.contains("connect"), "{refused}");
    // Nor by telling of it.
    w.watch_known(1, "roots", roots.pid());
    for request in [report("stolen"), report("roots"), unwatch("roots"), watch("mine", Selector::Pid(roots.pid()))] {
        member.refused(&request);
    }
    assert_eq!(roots.child.try_wait().unwrap(), None, "root's process lives");
    assert_eq!(watched(&w, "roots"), Some(roots.pid()));
}

// ---- namesakes ------------------------------------------------------------------------------------------------------------------

#[test]
fn a_namesake_of_another_user_is_not_taken_for_the_process() {
    let program = Program::new("victim");
    let lines = program.watch("db");
    let Some(w) = Setup::hosts(2).extra(move |h| if h == 1 { lines.clone() } else { String::new() }).up() else { return };
    let mut there = w.monitor(2, "db@h1");
    let mut stranger = Member::new(&w, MEMBER);
    let namesake = number(&stranger.order(&format!("start {}", program.path)));
    until("the watch has met the namesake", || w.log(1).contains(&namesake.to_string()) || watched(&w, "db").is_some());
    assert_eq!(watched(&w, "db"), None, "it is another user's");
    stranger.order("end");
    // Two of them do not keep root's from being watched.
    stranger.order(&format!("start {}", program.path));
    stranger.order(&format!("start {}", program.path));
    let p = w.process(1, &program.path, &["1000"]);
    is_watched(&w, "db", p.pid());
    stranger.order("end");
    there.drain();
    assert!(there.failures().is_empty(), "{:?}", there.seen);
    p.kill();
    there.failure("db@h1");
}

#[test]
fn a_watch_by_port_does_not_follow_into_another_network() {
    if std::process::Command::new("python3").arg("--version").stdout(std::process::Stdio::null()).status().is_err() {
        return println!("SKIPPED: needs python3");
    }
    const LISTEN: &str = "import socket,sys\ns=socket.socket();s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1)\n\
                          s.bind(('127.0.0.1',7903));s.listen();sys.stdin.read()";
    let Some(w) = Setup::hosts(2).up() else { return };
    let server = |host| w.process(host, "python3", &["-c", LISTEN]);
    let mut own = server(1);
    until("it listens", || w.ask(1, &watch("redis", Selector::Port(7903))).is_ok());
    let stranger = server(2);
    until("the other one listens", || w.ask(2, &watch("there", Selector::Port(7903))).is_ok());
    let mut there = w.monitor(2, "redis@h1");
    own.kill();
    own.ended();
    there.failure("redis@h1");
    until("the watch has met the stranger", || w.log(1).contains(&stranger.pid().to_string()) || watched(&w, "redis").is_some());
    assert_eq!(watched(&w, "redis"), None, "it is in another network");
    let own = server(1);
    is_watched(&w, "redis", own.pid());
}

#[test]
fn several_namesakes_are_an_event_and_the_one_that_is_watched_stays() {
    let program = Program::new("twin");
    let lines = program.watch("db");
    let Some(w) = Setup::hosts(2).extra(move |h| if h == 1 { lines.clone() } else { String::new() }).up() else { return };
    let first = w.process(1, &program.path, &["1000"]);
    is_watched(&w, "db", first.pid());
    let twins = [w.process(1, &program.path, &["1000"]), w.process(1, &program.path, &["1000"])];
    reload(&w, &format!("{}[[watch]]\nname = \"other\"\npid = 1\n", program.watch("db")));
    assert_eq!(watched(&w, "db"), Some(first.pid()), "whatever comes beside it, and whatever is read again");
    let mut there = w.monitor(2, "db@h1");
    first.kill();
    there.failure("db@h1");
    let event = w.event(1, "that two match", |e| told(e, &["db is not watched", "fits 2 processes"]));
    for p in &twins {
        assert!(event.text.contains(&p.pid().to_string()), "{}", event.text);
    }
    let waits = row(&w, "db").unwrap();
    assert!(waits.state == "pending" && waits.ended == 1 && waits.why.contains("fits 2 processes"), "{waits:?}");
    let [one, two] = twins;
    drop(one);
    is_watched(&w, "db", two.pid());
    assert_eq!((row(&w, "db").unwrap().ended, row(&w, "db").unwrap().why), (1, String::new()));
    let events = w.history(1).into_iter().filter(|e| told(e, &["db is not watched"])).count();
    assert_eq!(events, 1, "told once");
}

// ---- what is reported, and killed -----------------------------------------------------------------------------------------------

/// Root's report kills, by a hook, what the owner of the watch might kill himself.
#[test]
fn a_hook_kills_only_what_the_owner_of_the_watch_may_kill() {
    let lines = "[access]\nwatch_others = [\"65534\"]\n[[hook]]\non = [\"hung\"]\nmatch = \"*\"\naction = \"kill\"\n";
    let Some(w) = Setup::hosts(2).extra(move |h| if h == 1 { lines.into() } else { String::new() }).up() else { return };
    let mut member = Member::new(&w, MEMBER);
    let mut roots = w.sleeper(1);
    member.granted(&watch("roots", Selector::Pid(roots.pid())));
    // It may look at root's process, and not say of it that it hangs.
    assert!(member.refused(&report("roots")).contains("report_others"));
    w.ask(1, &report("roots")).unwrap();
    let text = w.event(1, "that it is not killed", |e| e.cause == Cause::Local && e.text.contains("cannot be killed")).text;
    assert!(text.contains("roots") && text.contains("process of user 0, and user 65534"), "{text}");
    assert_eq!(roots.child.try_wait().unwrap(), None);
    // Its own it may: by its own report, and root by its.
    let mut own = Member::new(&w, MEMBER);
    member.granted(&watch("own", Selector::Pid(own.1)));
    member.granted(&report("own"));
    assert_eq!(own.0.ended_by(), Some(libc::SIGKILL));
    let mut joined = Member::new(&w, OTHER);
    joined.granted(&join("joined"));
    assert!(member.refused(&report("joined")).contains("user 65533"));
    joined.0.say(&format!("ask {}", serde_json::to_string(&report("joined")).unwrap()));
    assert_eq!(joined.0.ended_by(), Some(libc::SIGKILL));
}
