//! Hooks: what they see, when they run, and that they cannot hurt the agent.

use fide_agent::admission::HOOK_EVENT_CODE;
use fide_agent::config::{Config, Hook, HookAction, HookFilter};
use fide_agent::hooks::{HookOptions, HookOutcome, HookResult, Hooks, matches, wants};
use fide_agent::shares::EventSource;
use fide_wire::control::HistoryEvent;
use fide_wire::verdict::{Cause, Evidence, FenceMode, FencePromise, Grade, VerdictId};
use std::time::{Duration, Instant};

/// Longest wait for what must come: it only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn event(cause: Cause) -> HistoryEvent {
    HistoryEvent {
        seq: 7,
        wall_ns: 1,
        at_ns: 2,
        observer: "a".into(),
        observer_incarnation: 1,
        id: Some(VerdictId::new(1, 2)),
        cause,
        grade: Grade::Certain,
        node: "b".into(),
        incarnation: 3,
        app: Some("redis".into()),
        code: 9,
        confirms: false,
        text: "redis on b was killed by signal 9".into(),
        maintenance: None,
        evidence: None,
    }
}

fn hook(on: &[Cause], pattern: &str, script: &str) -> Hook {
    Hook {
        action: HookAction::Run,
        on: on.to_vec(),
        pattern: pattern.into(),
        command: ["/bin/sh", "-c", script].map(String::from).to_vec(),
        timeout: Duration::from_secs(10),
        confirmations: false,
        filter: HookFilter::default(),
    }
}

fn killed(script: &str) -> Hook {
    hook(&[Cause::Killed], "*", script)
}

fn next(hooks: &Hooks) -> HookOutcome {
    hooks.outcomes().recv_timeout(PATIENCE).expect("an outcome")
}

fn run(hook: Hook) -> HookOutcome {
    let mut hooks = Hooks::start(vec![hook], HookOptions::default()).unwrap();
    assert_eq!(hooks.offer(&event(Cause::Killed), EventSource::OWN), 1);
    next(&hooks)
}

/// Waits until this process is gone (its parent, an init, reaps it in its own time).
fn gone(pid: &str) -> bool {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            // Sleep: interval of the poll.
            Ok(stat) if !stat.contains(") Z ") => std::thread::sleep(Duration::from_millis(5)),
            _ => return true,
        }
    }
    false
}

/// Waits until the condition holds.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "{what}: never");
        // Sleep: interval of the poll.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Outcome of a hook that is ended at its limit. On a busy machine a short limit may end before the
/// script has written anything: then a longer one is tried.
fn ended_at_its_limit(script: &str, options: HookOptions, has_begun: impl Fn(&HookOutcome) -> bool) -> (Duration, HookOutcome) {
    for timeout in [100, 1_000, 20_000].map(Duration::from_millis) {
        let mut hooks = Hooks::start(vec![Hook { timeout, ..killed(script) }], options).unwrap();
        hooks.offer(&event(Cause::Killed), EventSource::OWN);
        let out = next(&hooks);
        if has_begun(&out) {
            return (timeout, out);
        }
    }
    panic!("it has not begun within the longest limit");
}

#[test]
fn a_hook_sees_the_verdict_in_its_environment_and_on_standard_input() {
    let out = run(killed("env | sort; cat; pwd"));
    assert_eq!(out.result, HookResult::Succeeded);
    for line in [
        "FIDE_CAUSE=killed",
        "FIDE_GRADE=certain",
        "FIDE_NODE=b",
        "FIDE_APP=redis",
        "FIDE_CODE=9",
        "FIDE_FENCED=0",
        "FIDE_PLANNED=0",
        "FIDE_LEVEL=failure",
        "FIDE_ID=00000001-00000003-2",
        "FIDE_OBSERVER=a",
        "FIDE_TEXT=redis on b was killed by signal 9",
        "FIDE_SEQ=7",
    ] {
        assert!(out.output.lines().any(|l| l == line), "{line} in\n{}", out.output);
    }
    assert!(!out.output.contains("CARGO"), "a clean environment:\n{}", out.output);
    let json = out.output.lines().find(|l| l.starts_with('{')).unwrap();
    assert_eq!(serde_json::from_str::<HistoryEvent>(json).unwrap(), event(Cause::Killed));
    assert_eq!(out.output.lines().last(), Some("/"));
}

#[test]
fn a_hostile_verdict_is_data_not_code() {
    let mut hooks = Hooks::start(vec![killed("printf '%s' \"$FIDE_TEXT\"")], HookOptions::default()).unwrap();
    hooks.offer(&HistoryEvent { text: "$(id) `id` ; rm -rf \0 \"'".into(), ..event(Cause::Killed) }, EventSource::OWN);
    assert_eq!(next(&hooks).output, "$(id) `id` ; rm -rf  \"'");
    hooks.offer(&HistoryEvent { text: "é".repeat(100_000), ..event(Cause::Killed) }, EventSource::OWN);
    assert_eq!(next(&hooks).result, HookResult::Succeeded);
}

#[test]
fn how_it_ended_is_told_in_words() {
    assert_eq!(
        run(killed("echo no such standby >&2; exit 3")).text().split(" after").next(),
        Some("hook /bin/sh for event 7 failed with exit status 3")
    );
    assert!(run(killed("echo no such standby >&2; exit 3")).text().ends_with("it said: no such standby"));
    assert_eq!(run(killed("kill -9 $$")).result, HookResult::Signaled(9));
    let missing = Hook { command: vec!["/no/such/program".into()], ..killed("") };
    let text = run(missing).text();
    assert!(text.contains("could not be started") && text.contains("exists"), "{text}");
    let text = run(Hook { command: vec!["/etc/passwd".into()], ..killed("") }).text();
    assert!(text.contains("executable"), "{text}");
}

#[test]
fn a_slow_hook_and_all_it_started_are_killed_at_the_limit() {
    // The shell ignores SIGTERM, and so does the sleep it started.
    let script = "trap '' TERM; echo $$; sleep 1000 & echo $!; wait; wait";
    let options = HookOptions { kill_after: Duration::from_millis(100), ..HookOptions::default() };
    let (timeout, out) = ended_at_its_limit(script, options, |out| out.output.lines().count() == 2);
    assert_eq!(out.result, HookResult::TimedOut);
    assert!(out.took >= timeout + options.kill_after && out.took < PATIENCE, "{:?}", out.took);
    let pids: Vec<&str> = out.output.lines().collect();
    assert!(pids.iter().all(|p| gone(p)), "{pids:?}");
}

#[test]
fn sigterm_is_enough_for_the_polite_and_a_stopped_one_is_continued() {
    let script = "trap 'echo bye; exit 0' TERM; echo trap; kill -STOP $$; while :; do sleep 0.01; done";
    let options = HookOptions { kill_after: Duration::from_secs(30), ..HookOptions::default() };
    let (_, out) = ended_at_its_limit(script, options, |out| out.output.starts_with("trap\n"));
    assert_eq!((out.result, out.output.as_str()), (HookResult::TimedOut, "trap\nbye\n"));
}

#[test]
fn a_hook_of_an_agent_that_blocks_signals_gets_them() {
    // As the agent does for its signalfd; the runner's thread inherits it.
    // SAFETY: a signal set that is initialised before use.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
    let slow = Hook { timeout: Duration::from_millis(50), ..killed("exec sleep 100") };
    let mut hooks =
        Hooks::start(vec![slow], HookOptions { kill_after: Duration::from_secs(60), ..HookOptions::default() }).unwrap();
    hooks.offer(&event(Cause::Killed), EventSource::OWN);
    assert_eq!(next(&hooks).result, HookResult::TimedOut);
}

#[test]
fn output_is_bounded_and_a_daemon_left_behind_does_not_hold_the_hook() {
    let out = run(killed("yes | head -c 10000000"));
    assert_eq!(out.result, HookResult::Succeeded);
    assert_eq!(out.output.chars().count(), 4097);
    // A hook that waits for the pipe to be closed ends at its limit.
    let out = run(killed("sleep 1000 & echo $!"));
    // SAFETY: the daemon that the hook left behind.
    assert_eq!(unsafe { libc::kill(out.output.trim().parse().unwrap(), libc::SIGKILL) }, 0, "{out:?}");
    assert_eq!(out.result, HookResult::Succeeded);
}

#[test]
fn input_that_nobody_reads_does_no_harm() {
    let mut hooks = Hooks::start(vec![killed("exec 0<&-; sleep 0.05; exit 0")], HookOptions::default()).unwrap();
    hooks.offer(&HistoryEvent { text: "x".repeat(300_000), ..event(Cause::Killed) }, EventSource::OWN);
    assert_eq!(next(&hooks).result, HookResult::Succeeded);
}

#[test]
fn the_queue_is_bounded_and_what_does_not_fit_is_said() {
    let options = HookOptions { concurrency: 2, queue: 3, ..HookOptions::default() };
    let dir = tempfile::tempdir().unwrap();
    // No run ends before all have been offered: an offer that waits for one would wait for ever.
    let script = format!("until [ -e {}/go ]; do sleep 0.02; done", dir.path().display());
    let mut hooks = Hooks::start(vec![Hook { timeout: PATIENCE, ..killed(&script) }], options).unwrap();
    let queued: usize = (0..20).map(|_| hooks.offer(&event(Cause::Killed), EventSource::OWN)).sum();
    std::fs::write(dir.path().join("go"), "").unwrap();
    assert!((3..=5).contains(&queued), "{queued}");
    hooks.shutdown(PATIENCE);
    let results: Vec<_> = hooks.outcomes().try_iter().map(|o| o.result.name()).collect();
    assert!(results.iter().all(|r| *r == "succeeded") && results.len() == queued, "{results:?}");
    let told = hooks.dropped(1);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].0, EventSource::OWN);
    let text = format!("{} runs of hooks for this host were dropped (the last: /bin/sh for redis@b)", 20 - queued);
    assert!(told[0].1.starts_with(&text), "{told:?}");
    assert_eq!(hooks.dropped(2), [], "told once");
    assert_eq!(hooks.counts()[0], queued as u64);
    assert_eq!(HookResult::NAMES[5], "dropped");
    assert_eq!(hooks.counts()[5], 20 - queued as u64);
}

#[test]
fn four_at_once_and_sixty_four_waiting() {
    let options = HookOptions::default();
    assert_eq!((options.concurrency, options.queue, options.output_max), (4, 64, 4096));
    let dir = tempfile::tempdir().unwrap();
    let begun = || std::fs::read_to_string(dir.path().join("begun")).unwrap_or_default().len();
    // Each says that it runs, and stays until it may go.
    let script = format!("cd {}; printf . >> begun; until [ -e go ]; do sleep 0.02; done", dir.path().display());
    let mut hooks = Hooks::start(vec![Hook { timeout: PATIENCE, ..killed(&script) }], options).unwrap();
    let mut offer = |n: usize| (0..n).map(|_| hooks.offer(&event(Cause::Killed), EventSource::OWN)).sum::<usize>();
    assert_eq!(offer(4), 4);
    until("four run", || begun() >= 4);
    assert_eq!(offer(70), 64);
    // Sleep: time for a fifth run to begin. Nothing shows that none will.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(begun(), 4, "no fifth one while four run");
    std::fs::write(dir.path().join("go"), "").unwrap();
    hooks.shutdown(PATIENCE);
    assert_eq!((begun(), hooks.counts()[0], hooks.counts()[5]), (68, 68, 6));
}

/// Sixty-four crashes of anybody's processes once filled the queue, and four of their hooks all the places.
#[test]
fn a_source_that_crashes_in_a_loop_holds_up_no_other_and_least_of_all_root() {
    let dir = tempfile::tempdir().unwrap();
    let begun = || std::fs::read_to_string(dir.path().join("begun")).unwrap_or_default();
    let script = format!("cd {}; echo $FIDE_APP >> begun; until [ -e go ]; do sleep 0.02; done", dir.path().display());
    let mut hooks = Hooks::start(vec![Hook { timeout: PATIENCE, ..killed(&script) }], HookOptions::default()).unwrap();
    let of = |app: &str| HistoryEvent { app: Some(app.into()), ..event(Cause::Killed) };
    let greedy = EventSource { node: Some(7), user: 1000 };
    for _ in 0..1000 {
        hooks.offer(&of("greedy"), greedy);
    }
    let runs = |app: &str| until(app, || begun().lines().any(|line| line == app));
    runs("greedy");
    // Another user's runs, and root's, while those of the first ones go on.
    assert_eq!(hooks.offer(&of("other"), EventSource { node: Some(7), user: 1001 }), 1);
    runs("other");
    assert_eq!(hooks.offer(&of("roots"), EventSource { node: Some(7), user: 0 }), 1);
    runs("roots");
    assert_eq!(begun().lines().filter(|line| *line == "greedy").count(), 2, "half of them for one source");
    let told = hooks.dropped(1);
    assert!(told.iter().all(|(source, _)| *source == greedy), "{told:?}");
    assert!(told[0].1.contains("for user 1000 of host b") && told[0].1.contains("greedy@b"), "{told:?}");
    std::fs::write(dir.path().join("go"), "").unwrap();
    hooks.shutdown(PATIENCE);
    let ran = hooks.counts()[0];
    assert!((66..=67).contains(&ran), "the room was full of the greedy one's, but for one place: {ran}");
}

#[test]
fn shutting_down_kills_what_is_not_done_in_time() {
    let options = HookOptions { concurrency: 1, kill_after: Duration::from_millis(50), ..HookOptions::default() };
    let dir = tempfile::tempdir().unwrap();
    let begun = dir.path().join("begun");
    let script = format!("trap '' TERM; echo $$; : > {}; sleep 1000; sleep 1000", begun.display());
    let mut hooks = Hooks::start(vec![Hook { timeout: 10 * PATIENCE, ..killed(&script) }], options).unwrap();
    hooks.offer(&event(Cause::Killed), EventSource::OWN);
    hooks.offer(&event(Cause::Killed), EventSource::OWN);
    until("the first runs", || begun.exists());
    let began = Instant::now();
    hooks.shutdown(Duration::from_millis(100));
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    let outcomes: Vec<_> = hooks.outcomes().try_iter().collect();
    assert_eq!(outcomes.len(), 2);
    assert!(outcomes.iter().all(|o| o.result == HookResult::Cancelled), "{outcomes:?}");
    assert!(outcomes.iter().filter(|o| !o.output.is_empty()).all(|o| gone(o.output.trim())));
    assert_eq!(hooks.offer(&event(Cause::Killed), EventSource::OWN), 0, "nothing begins afterwards");
}

#[test]
fn patterns_match_like_a_shell() {
    for (pattern, text, is) in [
        ("*", "redis@b", true),
        ("*", "@b", true),
        ("redis@*", "redis@b", true),
        ("redis@*", "redis2@b", false),
        ("redis*@b", "redis2@b", true),
        ("@*", "@b", true),
        ("@*", "redis@b", false),
        ("r?dis@b", "rédis@b", true),
        ("*@*-db-*", "x@eu-db-1", true),
        ("**a**", "bab", true),
        ("", "", true),
        ("", "x", false),
        ("a", "", false),
    ] {
        assert_eq!(matches(pattern, text), is, "{pattern} {text}");
    }
    // No pattern is slow.
    let began = Instant::now();
    assert!(!matches(&"*a".repeat(50), &"a".repeat(49)));
    assert!(!matches(&format!("{}b", "*a".repeat(40)), &"a".repeat(2_000)));
    // One that tries every division takes years.
    assert!(began.elapsed() < PATIENCE);
}

#[test]
fn a_crash_seen_twice_runs_a_hook_once() {
    let both = hook(&[Cause::Doomed, Cause::Killed], "*", "");
    let confirmation = HistoryEvent { confirms: true, ..event(Cause::Killed) };
    assert!(wants(&both, &event(Cause::Doomed)));
    assert!(!wants(&both, &confirmation));
    assert!(wants(&Hook { confirmations: true, ..both }, &confirmation));
    // Who did not ask for doomed hears of the crash when it is confirmed.
    assert!(wants(&killed(""), &confirmation));
}

#[test]
fn a_failing_hook_does_not_set_off_itself() {
    let any = hook(&Cause::ALL, "*", "exit 1");
    let mut hooks = Hooks::start(vec![any], HookOptions::default()).unwrap();
    assert_eq!(hooks.offer(&event(Cause::Killed), EventSource::OWN), 1);
    let report = next(&hooks).event(1, 2, "a", 3);
    assert_eq!((report.cause, report.code), (Cause::Local, HOOK_EVENT_CODE));
    assert_eq!(hooks.offer(&report, EventSource::OWN), 0);
    assert_eq!(hooks.offer(&HistoryEvent { code: 0, ..report }, EventSource::OWN), 1, "other local events do");
}

#[test]
fn hooks_can_be_replaced_while_running() {
    let mut hooks = Hooks::start(vec![], HookOptions::default()).unwrap();
    assert_eq!(hooks.offer(&event(Cause::Killed), EventSource::OWN), 0);
    hooks.set_hooks(vec![killed("echo one"), killed("echo two"), hook(&[Cause::Left], "*", "")]);
    assert_eq!(hooks.offer(&event(Cause::Killed), EventSource::OWN), 2);
    let mut said = [next(&hooks).output, next(&hooks).output];
    said.sort();
    assert_eq!(said, ["one\n", "two\n"]);
}

/// The end of a process by silence of its host, as the host's fence backs it.
fn silence(fenced: bool, host: bool) -> HistoryEvent {
    let promise = FencePromise { timeout_ns: 100_000_000, mode: FenceMode::Sent, host };
    let evidence = Evidence { fence: Some(promise), fenced, ..Evidence::default() };
    HistoryEvent { grade: Grade::Inferred, evidence: Some(Box::new(evidence)), ..event(Cause::SilentHost) }
}

/// The hook of a file with these lines beside the usual ones.
fn written(lines: &str) -> Hook {
    let text = format!("node = \"a\"\n[[hook]]\non = [\"failure\"]\ncommand = [\"/bin/true\"]\n{lines}\n");
    Config::parse(&text).unwrap_or_else(|e| panic!("{text}{e}")).hooks.remove(0)
}

#[test]
fn a_promoting_hook_runs_for_what_is_certain_and_for_a_silence_that_a_fence_backs() {
    let certain = event(Cause::Killed);
    let (cut, guarded, free) = (silence(true, true), silence(true, false), silence(false, true));
    let cables_cut = HistoryEvent { evidence: None, ..free.clone() };
    let all = [&certain, &cut, &guarded, &free, &cables_cut];
    let runs = |lines: &str| all.map(|e| wants(&written(lines), e));
    assert_eq!(runs(""), [true; 5], "without a filter as ever");
    assert_eq!(runs("grade = [\"certain\"]"), [true, false, false, false, false]);
    assert_eq!(runs("grade = [\"certain\", \"fenced\"]"), [true, true, false, false, false]);
    assert_eq!(runs("grade = [\"certain\", \"fenced-cgroups\"]"), [true, true, true, false, false]);
    assert_eq!(runs("grade = [\"inferred\"]"), [false, true, true, true, true]);
    assert_eq!(runs("fenced = true"), [false, true, false, false, false]);
    assert_eq!(runs("fenced = false"), [true, false, true, true, true]);
    assert_eq!(runs("planned = true"), [false; 5]);
    assert_eq!(runs("cause = [\"silent-host\"]\ngrade = [\"fenced\"]"), [false, true, false, false, false]);
}

#[test]
fn a_hook_that_leaves_maintenance_alone_does_not_run_for_what_is_in_it() {
    let marked = HistoryEvent { maintenance: Some("db".into()), ..event(Cause::Killed) };
    let runs = |filter: &str| {
        let text = format!("node = \"a\"\n[[hook]]\non = [\"killed\"]\n{filter}\ncommand = [\"/bin/true\"]");
        let hook = Config::parse(&text).unwrap().hooks.remove(0);
        [wants(&hook, &marked), wants(&hook, &event(Cause::Killed))]
    };
    assert_eq!(runs(""), [true, true]);
    assert_eq!(runs("maintenance = false"), [false, true]);
    assert_eq!(runs("maintenance = true"), [true, false]);
    let of = |event: &HistoryEvent| {
        fide_agent::hooks::environment(event).into_iter().find(|(key, _)| *key == "FIDE_MAINTENANCE").unwrap().1
    };
    assert_eq!((of(&marked), of(&event(Cause::Killed))), ("db".into(), String::new()));
}

#[test]
fn the_promoting_example_of_the_documents_does_not_run_when_only_cables_are_cut() {
    for text in [include_str!("../../../docs/operate.md"), include_str!("../../../packaging/fide.toml")] {
        let lines: Vec<&str> = text.lines().map(|l| l.trim_start_matches("# ")).collect();
        let at = lines.iter().position(|l| l.contains("/usr/local/bin/promote")).expect("an example that promotes");
        let from = lines[..at].iter().rposition(|l| l.starts_with("[[hook]]")).unwrap();
        let example: String =
            lines[from..].iter().take_while(|l| !l.is_empty() && **l != "#").map(|l| format!("{l}\n")).collect();
        let config = Config::parse(&format!("node = \"a\"\n{example}")).unwrap_or_else(|e| panic!("{example}{e}"));
        let runs = |event: HistoryEvent| wants(&config.hooks[0], &event);
        assert!(runs(event(Cause::Killed)) && runs(silence(true, true)), "{example}");
        // A clean stop or a restart is no reason to promote.
        assert!(!runs(HistoryEvent { code: 0, ..event(Cause::Exited) }) && runs(event(Cause::Exited)), "{example}");
        assert!(!runs(HistoryEvent { code: 0, ..event(Cause::Doomed) }), "{example}");
        assert!(!runs(silence(false, true)) && !runs(silence(true, false)), "{example}");
        assert!(!runs(HistoryEvent { evidence: None, ..silence(false, false) }), "{example}");
    }
}
