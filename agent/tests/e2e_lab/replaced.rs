//! A process that had joined and runs another program (`exec`), or joins again, is a new instance: the former one has ended, and everybody is told.

use crate::common::{Process, Setup, Watcher, World, actor, certain, named, until};
use fide_client::Event;
use fide_wire::control::HistoryEvent;
use fide_wire::verdict::Cause;
use std::io::Write;

/// Two hosts, and an application on the first that has joined as `a`: its number there.
fn joined() -> Option<(World, Process, u32)> {
    let w = Setup::hosts(2).up()?;
    let mut application = w.actor(1, "application", &[]);
    assert_eq!(application.hear(), "ready");
    let number = join(&mut application, "join a 0");
    w.known(1, "a");
    Some((w, application, number))
}

/// Joins so; says by which number.
fn join(application: &mut Process, how: &str) -> u32 {
    application.say(how);
    numbered(&application.hear())
}

fn numbered(answer: &str) -> u32 {
    let number = answer.strip_prefix("ok (").and_then(|rest| rest.split(',').next()?.parse().ok());
    number.unwrap_or_else(|| panic!("{answer}"))
}

/// The process runs this program by now.
fn becomes(process: &Process, program: &str) {
    let comm = format!("/proc/{}/comm", process.pid());
    until("it is another program", || std::fs::read_to_string(&comm).unwrap().trim_end() == program);
}

/// On both hosts, by its name and as one of all.
fn watchers(w: &World) -> [Watcher; 4] {
    let mut watchers = [w.monitor(1, "a@h1"), w.monitor(1, "*"), w.monitor(2, "a@h1"), w.monitor(2, "*")];
    for all in [1, 3] {
        watchers[all].wait("a is introduced", |e| matches!(e, Event::Monitored(v) if named(v, "a@h1")));
    }
    watchers
}

/// What a host's history tells of the ends of `a`.
fn ends(w: &World, host: u16) -> Vec<Cause> {
    let is_end = |e: &HistoryEvent| e.app.as_deref() == Some("a") && e.cause.ends_process() && !e.confirms;
    w.history(host).into_iter().filter(is_end).map(|e| e.cause).collect()
}

/// The instance of this number was replaced, and everybody is told, once.
fn was_replaced(w: &World, watchers: &mut [Watcher], number: u32) {
    for watcher in watchers {
        let told = watcher.failure("a@h1");
        assert_eq!((told.cause, told.subject.app), (Cause::Replaced, number), "on h{}", watcher.host);
        certain(&told);
        assert_eq!(watcher.failures_of("a@h1"), 1, "on h{}", watcher.host);
    }
    for host in [1, 2] {
        w.event(host, "a was replaced", |e| e.app.as_deref() == Some("a") && e.cause == Cause::Replaced);
    }
}

/// The instance of this number is told of like any other: it runs, and its crash is another failure.
fn lives_and_dies(w: &World, watchers: &mut [Watcher], mut process: Process, number: u32) {
    w.known(1, "a");
    for watcher in watchers.iter_mut() {
        watcher.wait("the new instance", |e| matches!(e, Event::Monitored(v) if v.subject.app == number));
    }
    process.kill();
    process.ended();
    for watcher in watchers {
        watcher.wait("its crash", |e| matches!(e, Event::Failure(v) if v.subject.app == number && v.cause == Cause::Doomed));
        assert_eq!(watcher.failures_of("a@h1"), 2, "on h{}", watcher.host);
    }
    for host in [1, 2] {
        w.event(host, "its end", |e| e.app.as_deref() == Some("a") && e.cause == Cause::Killed);
        assert_eq!(ends(w, host), [Cause::Replaced, Cause::Doomed], "on h{host}");
    }
}

#[test]
fn a_process_that_had_joined_and_begins_another_program_is_replaced_before_that_joins() {
    let Some((w, mut application, number)) = joined() else { return };
    let mut watchers = watchers(&w);
    application.say("exec-again");
    was_replaced(&w, &mut watchers, number);
    assert_eq!(application.hear(), "ready");
    let next = join(&mut application, "join a 0");
    assert!(next > number);
    lives_and_dies(&w, &mut watchers, application, next);
}

#[test]
fn a_program_that_joins_at_once_is_another_instance_also_under_another_name() {
    let Some((w, mut application, mut number)) = joined() else { return };
    let mut watcher = w.monitor(2, "*");
    for (round, name) in ["a", "b", "b", "a"].into_iter().enumerate() {
        // Nobody waits between the two: who joins is the new program, whichever of both is heard of first.
        application.say(&format!("exec-again {name}"));
        assert_eq!(application.hear(), "ready");
        let next = numbered(&application.hear());
        assert!(next > number);
        until("all former ones are replaced", || watcher.failures().len() == round + 1);
        let told = watcher.failures().pop().unwrap();
        assert_eq!((told.cause, told.subject.app), (Cause::Replaced, number));
        number = next;
    }
}

#[test]
fn a_process_that_becomes_a_program_which_never_joins_has_ended() {
    let Some((w, mut application, number)) = joined() else { return };
    let mut watchers = watchers(&w);
    application.say("exec sleep 1000");
    was_replaced(&w, &mut watchers, number);
    until("nobody watches it any more", || w.status(1).watched.iter().all(|watched| watched.state != "alive"));
    application.kill();
    application.ended();
    let mut other = w.actor(1, "application", &[]);
    assert_eq!(other.hear(), "ready");
    // What is told of it would have been told before the next one's end.
    let next = join(&mut other, "join a 0");
    lives_and_dies(&w, &mut watchers, other, next);
}

#[test]
fn a_second_join_of_a_process_is_another_instance() {
    let Some((w, mut application, number)) = joined() else { return };
    let mut watchers = watchers(&w);
    let next = join(&mut application, "join-anew a");
    assert!(next > number);
    was_replaced(&w, &mut watchers, number);
    lives_and_dies(&w, &mut watchers, application, next);
}

#[test]
fn a_client_that_connects_again_goes_on() {
    let Some((mut w, mut application, number)) = joined() else { return };
    let reconnects = |application: &mut Process| {
        application.say("rejoin");
        assert_eq!(application.hear(), format!("ok Some(({number}, 0))"));
    };
    reconnects(&mut application);
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        w.signal_agent(1, signal);
        w.agent_ended(1);
        w.start(1);
        w.all_alive();
        reconnects(&mut application);
        reconnects(&mut application);
    }
    for host in [1, 2] {
        assert_eq!(ends(&w, host), [], "on h{host}");
    }
    application.kill();
    application.ended();
    w.event(2, "its end", |e| e.app.as_deref() == Some("a") && e.cause == Cause::Killed);
    assert_eq!(ends(&w, 2), [Cause::Doomed]);
}

#[test]
fn a_shell_that_becomes_its_server_goes_on_as_long_as_it_had_not_joined() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let mut shell = w.process(1, "sh", &["-c", "read line; exec sleep 1000"]);
    let number = w.watch_known(1, "a", shell.pid());
    let mut watchers = watchers(&w);
    shell.say("go");
    becomes(&shell, "sleep");
    // Its end is told by the same number, and nothing before that.
    shell.kill();
    for watcher in &mut watchers {
        let told = watcher.failure("a@h1");
        assert_eq!((told.cause, told.subject.app), (Cause::Doomed, number));
    }
    shell.ended();
    for host in [1, 2] {
        w.event(host, "its end", |e| e.app.as_deref() == Some("a") && e.cause == Cause::Killed);
        assert_eq!(ends(&w, host), [Cause::Doomed], "on h{host}");
    }
}

#[test]
fn a_watch_of_others_goes_on_with_the_next_instance() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let mut application = w.actor(1, "application", &[]);
    assert_eq!(application.hear(), "ready");
    let number = w.watch_known(1, "a", application.pid());
    assert_eq!(join(&mut application, "join a 0"), number, "the first join is the watched instance's own");
    let mut watchers = watchers(&w);
    application.say("exec-again");
    was_replaced(&w, &mut watchers, number);
    assert_eq!(application.hear(), "ready");
    let alive = || w.status(1).watched.iter().find(|watched| watched.state == "alive").map(|watched| watched.app);
    let mut next = None;
    until("it is watched as before", || {
        next = alive();
        next.is_some()
    });
    assert_eq!(join(&mut application, "join a 0"), next.unwrap());
    lives_and_dies(&w, &mut watchers, application, next.unwrap());
}

#[test]
fn what_was_replaced_while_no_agent_ran_is_told_by_the_next_one() {
    let Some((mut w, mut application, number)) = joined() else { return };
    let mut watcher = w.monitor(2, "a@h1");
    w.kill_agent(1);
    application.say("exec sleep 1000");
    becomes(&application, "sleep");
    w.start(1);
    let told = watcher.failure("a@h1");
    assert_eq!((told.cause, told.subject.app), (Cause::Replaced, number));
    w.all_alive();
    assert_eq!(watcher.failures_of("a@h1"), 1);
}

/// The application is started by the one that becomes the agent, so that the two see each other; the kernel's programs know them by other numbers.
#[test]
fn without_the_start_watch_the_connection_that_an_exec_closes_tells() {
    let Some(mut w) = Setup::hosts(2).empty().up() else { return };
    w.start(2);
    let (lines, application) = (w.lab.host_dir(1).join("lines"), std::env::current_exe().unwrap());
    assert!(std::process::Command::new("mkfifo").arg(&lines).status().unwrap().success());
    let (role, socket) = (format!("{}=application", actor::ROLE), format!("{}={}", actor::SOCKET, w.socket(1).display()));
    let script =
        format!("{} --exact actor_role --include-ignored <{} & exec \"$0\" \"$@\"", application.display(), lines.display());
    let unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", &script];
    w.start_under(1, &[&["env", &role, &socket][..], &unshare].concat());
    w.all_alive();
    assert_eq!(w.status(1).exit_watch, "pidfd");
    // Until here it has waited for somebody who writes.
    let mut lines = std::fs::File::options().write(true).open(lines).unwrap();
    writeln!(lines, "join a 0").unwrap();
    w.known(1, "a");
    let mut watcher = w.monitor(2, "a@h1");
    writeln!(lines, "exec sleep 1000").unwrap();
    assert_eq!(watcher.failure("a@h1").cause, Cause::Replaced);
    w.all_alive();
    assert_eq!(watcher.failures_of("a@h1"), 1);
}
