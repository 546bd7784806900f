//! ZooKeeper's hook, without a server: what others do to its group ends it on no host.

use crate::common::{Process, Setup, World, until};
use crate::e2e_failover::beside;
use fide_client::group::{Group, Options};
use fide_wire::control::{GroupOrder, Request};
use std::fs;
use std::process::Stdio;

fn hook(w: &World, host: u16) -> Process {
    let dir = w.lab.host_dir(host);
    let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("hook.log")).unwrap();
    let mut command = w.lab.command(host, beside("fide-zookeeper").to_str().unwrap()).unwrap();
    command.args(["run", "--group", "zk", "--peer", if host == 1 { "h2" } else { "h1" }]);
    command.arg("--socket").arg(w.socket(host)).arg("--oracle").arg(dir.join("oracle")).arg("--data").arg(dir.join("data"));
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    Process::spawn(command)
}

fn log(w: &World, host: u16) -> String {
    fs::read_to_string(w.lab.host_dir(host).join("hook.log")).unwrap_or_default()
}

#[test]
fn what_no_hook_proposes_or_keeps_ends_none_for_long() {
    let Some(w) = Setup::hosts(2).up() else { return };
    w.all_alive();
    let order = GroupOrder::Create {
        name: "zk".into(),
        engine: "huc".into(),
        policy: "trust-contract".into(),
        hosts: vec!["h1".into(), "h2".into()],
        durable: false,
        fresh: false,
    };
    w.ask(1, &Request::Group { order }).unwrap();
    let open = || Group::open_with("zk", Options { path: Some(w.socket(2)), ..Options::default() });
    until("the group runs", || open().is_ok_and(|mut group| group.propose(b"{}").is_ok()));
    let mut hooks = [1, 2].map(|host| hook(&w, host));
    let mut group = open().unwrap();
    for bytes in [&b""[..], b"null", b"\xff\xff", br#"{"entry":"here","host":"h\n1","session":1}"#] {
        group.propose(bytes).unwrap();
    }
    // The greatest numbers, as whoever takes part.
    let here = |host: &str, session: u64| format!(r#"{{"entry":"here","host":"{host}","session":{session}}}"#).into_bytes();
    for bytes in [here("h1", u64::MAX), here("h2", 1 << 63), br#"{"entry":"disk","epoch":-1}"#.to_vec()] {
        group.propose(&bytes).unwrap();
    }
    while group.pending() > 0 {
        group.poll(None).unwrap();
    }
    (1..=2).for_each(|host| until("the hook says so", || log(&w, host).contains("is none of a hook: it is skipped")));
    // One that comes again finds four bytes, waits, and is given the state by the other one.
    group.keep_snapshot(group.index(), b"null").unwrap();
    hooks[1].kill();
    hooks[1].ended();
    hooks[1] = hook(&w, 2);
    until("it goes on", || {
        let said = log(&w, 2);
        said.split_once("is not one of this hook").is_some_and(|(_, behind)| behind.contains("goes on"))
    });
    let mut status = w.lab.command(2, beside("fide-zookeeper").to_str().unwrap()).unwrap();
    let said = status.args(["status", "--group", "zk", "--socket"]).arg(w.socket(2)).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    for hook in &mut hooks {
        assert!(hook.child.try_wait().unwrap().is_none(), "a hook has ended");
    }
}
