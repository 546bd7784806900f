//! Crashes that fall into a gap of an agent: while it is stopped, killed, restarted, or cut off. Each is told on every host, once, as soon as they hear each other
//! again.

use crate::common::{Process, Setup, World, until};
use fide_lab::{Cut, NETS};
use fide_wire::control::HistoryEvent;
use fide_wire::verdict::{Cause, Grade};

/// Three hosts, and a database on the first.
fn three() -> Option<(World, Process)> {
    let w = Setup::hosts(3).up()?;
    let db = w.sleeper(1);
    w.watch_known(1, "db", db.pid());
    Some((w, db))
}

/// The last words on the database: certain ones.
fn ends(w: &World, host: u16) -> Vec<HistoryEvent> {
    let is_end = |e: &HistoryEvent| {
        e.app.as_deref() == Some("db")
            && e.grade == Grade::Certain
            && matches!(e.cause, Cause::Killed | Cause::Exited | Cause::Left)
    };
    w.history(host).into_iter().filter(is_end).collect()
}

/// Every host tells once that the database ended, so.
fn told_once(w: &World, cause: Cause, code: i32) {
    for host in w.running() {
        let told = w.event(host, "the end of db", |e| {
            e.app.as_deref() == Some("db") && e.grade == Grade::Certain && (e.cause, e.code) == (cause, code)
        });
        assert!(told.id.is_some(), "{told:?}");
    }
    // What comes twice comes with the next heartbeats.
    w.all_alive();
    for host in w.running() {
        let told: Vec<_> = ends(w, host).iter().map(|e| (e.cause, e.code)).collect();
        assert_eq!(told, [(cause, code)], "on h{host}");
    }
}

/// The database runs on, and nobody says otherwise; its crash is told.
fn goes_on(w: &World, db: &Process) {
    w.known(1, "db");
    for host in w.running() {
        let told = ends(w, host);
        assert!(told.is_empty(), "on h{host}: {told:?}");
    }
    db.kill();
    told_once(w, Cause::Killed, libc::SIGKILL);
}

fn given_up(w: &World) {
    for observer in [2, 3] {
        until("h1 is given up", || !matches!(w.state(observer, "h1").as_str(), "alive" | "late"));
    }
}

#[test]
fn while_its_agent_is_stopped() {
    let Some((w, db)) = three() else { return };
    w.signal_agent(1, libc::SIGSTOP);
    given_up(&w);
    db.kill();
    w.signal_agent(1, libc::SIGCONT);
    told_once(&w, Cause::Killed, libc::SIGKILL);
}

#[test]
fn while_its_host_is_cut_off() {
    let Some((w, db)) = three() else { return };
    NETS.into_iter().for_each(|net| w.lab.cut(1, net, Cut::Silent).unwrap());
    given_up(&w);
    db.kill();
    NETS.into_iter().for_each(|net| w.lab.heal(1, net).unwrap());
    told_once(&w, Cause::Killed, libc::SIGKILL);
}

#[test]
fn while_an_observer_is_cut_off() {
    let Some((w, db)) = three() else { return };
    NETS.into_iter().for_each(|net| w.lab.cut(2, net, Cut::Silent).unwrap());
    until("h2 is given up", || !matches!(w.state(3, "h2").as_str(), "alive" | "late"));
    db.kill();
    NETS.into_iter().for_each(|net| w.lab.heal(2, net).unwrap());
    told_once(&w, Cause::Killed, libc::SIGKILL);
}

#[test]
fn between_two_agents_of_which_the_first_was_killed() {
    let Some((mut w, mut db)) = three() else { return };
    w.kill_agent(1);
    db.kill();
    db.ended();
    w.start(1);
    told_once(&w, Cause::Exited, -1);
}

#[test]
fn between_two_agents_of_which_the_first_left() {
    let Some((mut w, mut db)) = three() else { return };
    w.signal_agent(1, libc::SIGTERM);
    w.agent_ended(1);
    db.kill();
    db.ended();
    w.start(1);
    told_once(&w, Cause::Exited, -1);
}

#[test]
fn a_process_goes_on_under_the_next_agent() {
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let Some((mut w, db)) = three() else { return };
        w.signal_agent(1, signal);
        w.agent_ended(1);
        w.start(1);
        w.all_alive();
        goes_on(&w, &db);
    }
}

#[test]
fn after_many_agents_and_an_observer_that_was_not_there() {
    let Some((mut w, db)) = three() else { return };
    for round in 0..5 {
        if round == 2 {
            w.kill_agent(3);
        }
        w.signal_agent(1, if round % 2 == 0 { libc::SIGKILL } else { libc::SIGTERM });
        w.agent_ended(1);
        w.start(1);
        w.all_alive();
    }
    w.start(3);
    w.all_alive();
    goes_on(&w, &db);
}
