//! Who may do what on the agent's socket.

use fide_agent::access::{AccessConfig, Peer, Policy, group_id, user_id};
use fide_agent::config::Config;
use fide_wire::control::ErrorCode;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

fn peer(uid: u32, gid: u32, groups: &[u32]) -> Peer {
    Peer { pid: Some(1), uid, gid, groups: groups.to_vec(), account: uid }
}

fn policy(section: &str) -> (Policy, Vec<String>) {
    Policy::new(&Config::parse(&format!("node = \"a\"\n[access]\n{section}")).unwrap().access)
}

#[test]
fn by_default_ones_own_processes_and_root_everything() {
    let (p, warnings) = Policy::new(&AccessConfig::default());
    assert!(warnings.is_empty());
    let user = peer(1000, 1000, &[]);
    assert!(p.may_watch(&user, 1000).is_ok());
    assert!(p.may_monitor(&user).is_ok() && p.may_read(&user).is_ok());
    let refused = p.may_watch(&user, 0).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Permission);
    for part in ["user 1000 may not watch a process of user 0", "root", "watch_others", "[access]"] {
        assert!(refused.what.contains(part), "{refused}");
    }
    assert!(p.may_reload(&user).unwrap_err().what.contains("`reload`"));
    assert!(p.may_report(&user, 1000).is_ok());
    assert!(p.may_report(&user, 0).unwrap_err().what.contains("`report_others`"));
    let root = peer(0, 0, &[]);
    assert!(p.may_report(&root, 1000).is_ok());
    assert!(p.may_forget(&user).unwrap_err().what.contains("`reload`") && p.may_forget(&root).is_ok());
    assert!(p.may_watch(&root, 1000).is_ok() && p.may_reload(&root).is_ok());
}

#[test]
fn lists_name_users_and_groups() {
    let (p, warnings) = policy(
        "watch_others = [\"1000\", \"%50\"]\nreport_others = [\"1001\"]\nmonitor = [\"%root\"]\nread = []\nreload = [\"root\", \"1001\"]",
    );
    assert!(warnings.is_empty(), "{warnings:?}");
    assert!(p.may_watch(&peer(1000, 1, &[]), 7).is_ok());
    assert!(p.may_watch(&peer(1001, 50, &[]), 7).is_ok());
    assert!(p.may_report(&peer(1000, 50, &[]), 7).is_err(), "who may look at it may not say of it that it hangs");
    assert!(p.may_report(&peer(1001, 1, &[]), 7).is_ok());
    assert!(p.may_watch(&peer(1001, 1, &[49, 50]), 7).is_ok());
    assert!(p.may_watch(&peer(1001, 1, &[49]), 7).is_err());
    assert!(p.may_monitor(&peer(1000, 1000, &[])).is_err());
    assert!(p.may_monitor(&peer(1000, 1000, &[0])).is_ok());
    assert!(p.may_read(&peer(1000, 1000, &[])).is_err());
    assert!(p.may_read(&peer(0, 0, &[])).is_ok());
    assert!(p.may_reload(&peer(1001, 1001, &[])).is_ok());
}

#[test]
fn unknown_names_allow_nobody_and_are_reported() {
    let (p, warnings) = policy("monitor = [\"nobody-of-that-name\", \"%no-such-group\"]");
    assert_eq!(warnings.len(), 2);
    assert!(warnings[0].contains("access.monitor") && warnings[0].contains("no user `nobody-of-that-name`"), "{warnings:?}");
    assert!(warnings[1].contains("no group `no-such-group`"));
    assert!(p.may_monitor(&peer(1000, 1000, &[])).is_err());
}

#[test]
fn names_are_looked_up() {
    assert_eq!(user_id("root"), Some(0));
    assert_eq!(group_id("root"), Some(0));
    assert_eq!(user_id("42"), Some(42));
    for bad in ["", "no\0such", "-1", "99999999999"] {
        assert_eq!(user_id(bad), None, "{bad:?}");
        assert_eq!(group_id(bad), None, "{bad:?}");
    }
}

#[test]
fn the_kernel_says_who_the_peer_is() {
    let (a, _b) = UnixStream::pair().unwrap();
    let peer = Peer::of(a.as_fd()).unwrap();
    assert_eq!(peer.pid, Some(std::process::id()));
    // SAFETY: these have no preconditions.
    assert_eq!((peer.uid, peer.gid), unsafe { (libc::geteuid(), libc::getegid()) });
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(Peer::of(tcp.as_fd()).is_err());
}
