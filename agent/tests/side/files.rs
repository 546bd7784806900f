//! Every path that the configuration names: what cannot be used is refused with the reason, and nothing that is not the agent's own is written
//! or removed.

use fide_agent::config::Config;
use fide_agent::history::{Flushed, History};
use fide_agent::owner::Owner;
use fide_agent::shares::EventSource;
use fide_agent::state::State;
use fide_wire::control::HistoryEvent;
use fide_wire::verdict::{Cause, Grade};
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Long enough for a busy machine; nothing waits longer than it must.
const PATIENCE: Duration = Duration::from_secs(60);
const NOBODY: u32 = 65534;

/// A directory of the agent's own, and its configuration.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A configuration whose files are all below this directory, with these lines before its tables.
    fn config(&self, lines: &str) -> PathBuf {
        let named = |key: &str, default: &str| if lines.contains(key) { String::new() } else { format!("{default}\n") };
        let dir = self.0.path().display();
        let text = format!(
            "node = \"a\"\n{}{}{}{lines}\nmetrics = {{ listen = \"off\" }}\npath = [{{ interface = \"lo\" }}]\n",
            named("state =", &format!("state = \"{dir}/state.json\"")),
            named("history =", &format!("history = {{ path = \"{dir}/history.jsonl\" }}")),
            named("socket =", &format!("socket = {{ path = \"{dir}/fided.sock\" }}")),
        );
        let file = self.at("fide.toml");
        write(&file, &text, 0o600);
        file
    }

    fn refusal(&self, lines: &str) -> String {
        Config::load(&self.config(lines)).expect_err("it is to be refused").to_string()
    }
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn fifo(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a C string that lives across the call.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

fn root(what: &str) -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("SKIPPED {what}: only root can give files to others; run the tests with sudo");
    }
    root
}

/// Runs fided to its end; `None` when it does not end.
fn fided(arguments: &[&str], config: &Path) -> Option<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fided"));
    command.args(arguments).arg("--config").arg(config).env_remove("FIDE_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() >= deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        // Sleep: interval of the poll.
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().ok()
}

fn refused(arguments: &[&str], config: &Path) -> String {
    let output = fided(arguments, config).expect("fided ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    said
}

fn event(n: u32) -> HistoryEvent {
    HistoryEvent {
        seq: 0,
        wall_ns: 1,
        at_ns: 1,
        observer: "a".into(),
        observer_incarnation: 1,
        id: None,
        cause: Cause::Killed,
        grade: Grade::Certain,
        node: "b".into(),
        incarnation: 1,
        app: None,
        code: 9,
        confirms: false,
        text: format!("event {n}"),
        maintenance: None,
        evidence: None,
    }
}

#[test]
fn a_fifo_as_configuration_is_refused_and_waited_for_by_nobody() {
    let place = Place::new();
    let file = place.at("fide.toml");
    fifo(&file);
    let said = refused(&["--check"], &file);
    assert!(said.contains("is a FIFO") && said.contains("ordinary file"), "{said}");
    let said = refused(&["--check"], Path::new("/dev/null"));
    assert!(said.contains("is a character device"), "{said}");
    let said = refused(&["--check"], place.0.path());
    assert!(said.contains("is a directory"), "{said}");
}

#[test]
fn a_configuration_of_somebody_else_is_refused() {
    if !root("a configuration of somebody else") {
        return;
    }
    let place = Place::new();
    let file = place.config("");
    chown(&file, Some(NOBODY), None).unwrap();
    let said = refused(&["--check"], &file);
    assert!(said.contains("belongs to uid 65534") && said.contains("chown root"), "{said}");
    chown(&file, Some(0), None).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o620)).unwrap();
    let said = refused(&["--check"], &file);
    assert!(said.contains("its group") && said.contains("chmod g-w"), "{said}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(fided(&["--check"], &file).unwrap().status.success());

    // The directory in which it is, and those above: whoever may write them can put another file in its place.
    let within = place.at("within");
    fs::create_dir(&within).unwrap();
    let moved = within.join("fide.toml");
    fs::rename(&file, &moved).unwrap();
    fs::set_permissions(&within, fs::Permissions::from_mode(0o777)).unwrap();
    let said = refused(&["--check"], &moved);
    assert!(said.contains(within.to_str().unwrap()) && said.contains("chmod o-w"), "{said}");
    fs::set_permissions(&within, fs::Permissions::from_mode(0o775)).unwrap();
    let said = refused(&["--check"], &moved);
    assert!(said.contains("chmod g-w"), "{said}");
    fs::set_permissions(&within, fs::Permissions::from_mode(0o755)).unwrap();
    chown(&within, Some(NOBODY), None).unwrap();
    let said = refused(&["--check"], &moved);
    assert!(said.contains("belongs to uid 65534"), "{said}");
    // Also by way of a link in a directory that is well.
    let link = place.at("link.toml");
    symlink(&moved, &link).unwrap();
    assert!(refused(&["--check"], &link).contains("belongs to uid 65534"));
    chown(&within, Some(0), None).unwrap();
    assert!(fided(&["--check"], &link).unwrap().status.success());
}

#[test]
fn a_key_file_of_somebody_else_is_refused() {
    if !root("a key file of somebody else") {
        return;
    }
    let place = Place::new();
    let key = place.at("key1");
    write(&key, "00112233445566778899aabbccddeeff\n", 0o600);
    let lines = format!("keys = {{ send = {{ id = 1, file = {key:?} }} }}");
    Config::load(&place.config(&lines)).unwrap();
    chown(&key, Some(NOBODY), None).unwrap();
    let said = place.refusal(&lines);
    assert!(said.contains("key1") && said.contains("belongs to uid 65534"), "{said}");
    chown(&key, Some(0), None).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o660)).unwrap();
    assert!(place.refusal(&lines).contains("chmod g-w"));
    fs::remove_file(&key).unwrap();
    fifo(&key);
    assert!(place.refusal(&lines).contains("is a FIFO"));
}

#[test]
fn a_socket_path_that_is_something_else_is_refused_and_stays() {
    let place = Place::new();
    let path = place.at("precious");
    let config = place.config(&format!("socket = {{ path = {path:?} }}"));
    write(&path, "years of work\n", 0o600);
    for arguments in [&["--check"][..], &[]] {
        let said = refused(arguments, &config);
        assert!(said.contains("precious is an ordinary file") && said.contains("[socket] path"), "{arguments:?}: {said}");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "years of work\n");
    fs::remove_file(&path).unwrap();

    // A link is not followed.
    symlink(place.at("elsewhere"), &path).unwrap();
    assert!(refused(&["--check"], &config).contains("is a symbolic link"));
    assert!(refused(&[], &config).contains("is a symbolic link"));
    fs::remove_file(&path).unwrap();

    // A socket that somebody serves, of whatever kind, stays as well.
    let stream = UnixListener::bind(&path).unwrap();
    assert!(refused(&[], &config).contains("is served"), "a stream socket");
    drop(stream);
    fs::remove_file(&path).unwrap();
    let datagram = UnixDatagram::bind(&path).unwrap();
    assert!(refused(&[], &config).contains("is served"), "a datagram socket");
    assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket());
    drop(datagram);
    if root("a socket of somebody else") {
        chown(&path, Some(NOBODY), None).unwrap();
        let said = refused(&[], &config);
        assert!(said.contains("belongs to uid 65534"), "{said}");
        assert!(path.exists());
    }
}

#[test]
fn a_socket_path_too_long_for_a_socket_is_refused_with_its_line() {
    let text = format!("node = \"a\"\n[socket]\npath = \"/run/{}\"\n", "x".repeat(200));
    let said = Config::parse(&text).unwrap_err().to_string();
    assert!(said.starts_with("line 3 ") && said.contains("205 bytes") && said.contains("107"), "{said}");
    let longest = format!("node = \"a\"\n[socket]\npath = \"/{}\"\n", "x".repeat(106));
    assert_eq!(Config::parse(&longest).unwrap().socket.path.as_os_str().len(), 107);
}

#[test]
fn a_file_longer_than_it_can_be_is_refused() {
    let place = Place::new();
    let key = place.at("key1");
    let lines = format!("keys = {{ send = {{ id = 1, file = {key:?} }} }}");
    let digits = "00112233445566778899aabbccddeeff\n";
    write(&key, &format!("{digits}{}", " ".repeat(4096 - digits.len())), 0o600);
    Config::load(&place.config(&lines)).unwrap();
    write(&key, &format!("{digits}{}", " ".repeat(4097 - digits.len())), 0o600);
    assert!(place.refusal(&lines).contains("more than 4096 bytes"));
    let file = place.config("");
    let text = fs::read_to_string(&file).unwrap();
    let comment = |len: usize| format!("{text}#{}\n", "x".repeat(len - text.len() - 2));
    write(&file, &comment(1 << 20), 0o600);
    Config::load(&file).unwrap();
    write(&file, &comment((1 << 20) + 1), 0o600);
    assert!(Config::load(&file).unwrap_err().to_string().contains("more than 1048576 bytes"));
}

#[test]
fn a_history_path_over_another_file_is_refused_and_the_file_stays() {
    let place = Place::new();
    let path = place.at("precious");
    let lines = format!("history = {{ path = {path:?} }}");
    for text in ["years of work\nwithout a newline", "one line\n", "{\"name\": \"another program's\"}\n"] {
        write(&path, text, 0o600);
        let said = refused(&["--check"], &place.config(&lines));
        assert!(said.contains("precious") && said.contains("no history"), "{said}");
        let (mut history, words) = History::open(Some(&path), 1 << 20);
        assert!(words[0].to_string().contains("no history"), "{words:?}");
        history.append(event(1));
        assert_eq!(history.flush(), Flushed::Idle);
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    fs::remove_file(&path).unwrap();

    // Nor is what it would write later: the older segment, what was torn off.
    for suffix in [".1", ".torn"] {
        let beside = place.at(&format!("precious{suffix}"));
        write(&beside, "years of work\n", 0o600);
        let said = place.refusal(&lines);
        assert!(said.contains(beside.to_str().unwrap()), "{said}");
        fs::remove_file(&beside).unwrap();
    }
    fifo(&path);
    assert!(place.refusal(&lines).contains("is a FIFO"));
    fs::remove_file(&path).unwrap();
    let target = place.at("target");
    write(&target, "", 0o600);
    symlink(&target, &path).unwrap();
    assert!(place.refusal(&lines).contains("is a symbolic link"));
    let (_, words) = History::open(Some(&path), 1 << 20);
    assert!(words[0].to_string().contains("symbolic link"), "{words:?}");
    fs::remove_file(&path).unwrap();
    fs::hard_link(&target, &path).unwrap();
    assert!(place.refusal(&lines).contains("2 names"), "{}", place.refusal(&lines));
}

#[test]
fn what_comes_to_lie_beside_a_history_is_not_written_over_either() {
    let place = Place::new();
    let path = place.at("h");
    let (mut history, words) = History::open(Some(&path), 64 << 10);
    assert!(words.is_empty(), "{words:?}");
    write(&place.at("h.1"), "years of work\n", 0o600);
    let mut failed = None;
    for n in 0..2_000 {
        history.append(event(n));
        if let Flushed::Failed(e) = history.flush() {
            failed = Some(e);
        }
    }
    assert!(failed.expect("it cannot rotate").to_string().contains("h.1"));
    assert_eq!(fs::read_to_string(place.at("h.1")).unwrap(), "years of work\n");
    fs::remove_file(place.at("h.1")).unwrap();
    assert!(matches!(history.flush(), Flushed::Recovered { .. }));
    drop(history);

    // What is torn off is kept where nothing else is.
    write(&place.at("h.torn"), "years of work\n", 0o600);
    let mut text = fs::read(&path).unwrap();
    text.extend_from_slice(b"{\"seq\":99");
    fs::write(&path, text).unwrap();
    let (_, words) = History::open(Some(&path), 64 << 10);
    assert!(words[0].to_string().contains("could not be kept"), "{words:?}");
    assert_eq!(fs::read_to_string(place.at("h.torn")).unwrap(), "years of work\n");
}

#[test]
fn a_state_path_over_another_file_is_refused_and_the_file_stays() {
    let place = Place::new();
    let path = place.at("precious");
    let lines = format!("state = {path:?}");
    for text in ["years of work\n", "{\"name\": \"another program's\"}", "[1, 2]"] {
        write(&path, text, 0o600);
        let said = refused(&["--check"], &place.config(&lines));
        assert!(said.contains("precious") && said.contains("incarnations"), "{said}");
        let (mut state, complaint) = State::open(&path, &Owner::default());
        assert!(complaint.unwrap().contains("precious"));
        state.set_own(7);
        assert!(state.save().is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    fs::remove_file(&path).unwrap();
    // Nor is what lies where the new one is written first.
    let new = place.at("precious.new");
    for text in ["years of work\n", "{\"incarn"] {
        write(&new, text, 0o600);
        let (mut state, _) = State::open(&path, &Owner::default());
        state.set_own(7);
        let ours = text.starts_with('{');
        assert_eq!(state.save().is_ok(), ours, "{text}");
        assert_eq!(new.exists(), !ours, "what a crash left of our own is replaced");
    }
    symlink(place.at("target"), &new).unwrap();
    let (mut state, _) = State::open(&path, &Owner::default());
    state.set_own(8);
    assert!(state.save().is_err());
    assert!(!place.at("target").exists());
    fs::remove_file(&path).unwrap();
    fifo(&path);
    assert!(place.refusal(&lines).contains("is a FIFO"));
}

#[test]
fn two_uses_of_one_path_are_refused() {
    let place = Place::new();
    let dir = place.0.path().display();
    for (lines, said) in [
        (format!("state = \"{dir}/x\"\nhistory = {{ path = \"{dir}/x\" }}"), "state and history.path"),
        (format!("state = \"{dir}/x.1\"\nhistory = {{ path = \"{dir}/x\" }}"), "state and the older part of history.path"),
        (format!("socket = {{ path = \"{dir}/x\" }}\nhistory = {{ path = \"{dir}/x\" }}"), "history.path and socket.path"),
        (format!("state = \"{dir}/fide.toml\""), "state and this file"),
    ] {
        let refusal = place.refusal(&lines);
        assert!(refusal.contains(said), "{lines}: {refusal}");
    }
}

#[test]
fn a_program_that_others_may_change_is_refused() {
    let place = Place::new();
    let program = place.at("promote");
    write(&program, "#!/bin/sh\n", 0o755);
    let hook = format!("hook = [{{ on = [\"killed\"], command = [{program:?}] }}]");
    let probe = format!("watch = [{{ name = \"x\", pid = 1, progress = {{ limit = \"5s\", command = [{program:?}] }} }}]");
    for lines in [&hook, &probe] {
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Config::load(&place.config(lines)).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o757)).unwrap();
        let said = place.refusal(lines);
        assert!(said.contains("promote") && said.contains("chmod o-w"), "{said}");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        if root("a program of somebody else") {
            chown(&program, Some(NOBODY), None).unwrap();
            let said = place.refusal(lines);
            assert!(said.contains("belongs to uid 65534"), "{said}");
            chown(&program, Some(0), None).unwrap();
        }
    }
    // One that is not there yet is looked at when it is to run.
    fs::remove_file(&program).unwrap();
    let config = Config::load(&place.config(&hook)).unwrap();
    assert!(config.warnings.iter().any(|w| w.contains("does not exist now")), "{:?}", config.warnings);
    write(&program, "#!/bin/sh\n", 0o777);
    let mut hooks = fide_agent::hooks::Hooks::start(config.hooks, fide_agent::hooks::HookOptions::default()).unwrap();
    assert_eq!(hooks.offer(&event(1), EventSource::OWN), 1);
    let outcome = hooks.outcomes().recv_timeout(PATIENCE).unwrap();
    assert!(outcome.text().contains("chmod o-w"), "{}", outcome.text());
}

#[test]
fn a_probe_writes_no_file_that_another_user_put_there() {
    let place = Place::new();
    let path = place.at("probe");
    let probe = |path: &Path| fide_agent::probes::help(None, Some(path));
    probe(&path).unwrap();
    probe(&path).unwrap();
    fs::hard_link(&path, place.at("second")).unwrap();
    assert!(probe(&path).unwrap_err().contains("somebody else's"));
    fs::remove_file(&path).unwrap();
    fifo(&path);
    assert!(probe(&path).unwrap_err().contains("somebody else's"));
    fs::remove_file(&path).unwrap();
    if root("a probe's file of somebody else") {
        write(&path, "", 0o666);
        chown(&path, Some(NOBODY), None).unwrap();
        assert!(probe(&path).unwrap_err().contains("somebody else's"));
        assert_eq!(fs::read(&path).unwrap(), b"");
    }
}

#[test]
fn remove_fence_removes_nothing_that_is_no_fence() {
    if !root("--remove-fence") {
        return;
    }
    let place = Place::new();
    let pins = place.at("pins");
    fs::create_dir(&pins).unwrap();
    write(&pins.join("precious"), "years of work\n", 0o600);
    let said = refused(&["--remove-fence"], &place.config(&format!("fence = {{ pins = {pins:?} }}")));
    assert!(said.contains("BPF file system"), "{said}");
    assert_eq!(fs::read_to_string(pins.join("precious")).unwrap(), "years of work\n");
}
