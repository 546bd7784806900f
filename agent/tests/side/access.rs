//! Who may do what on the agent's socket.

use fide_agent::access::{AccessConfig, GroupRight, GroupRights, Peer, Policy, group_id, user_id};
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
fn rights_in_groups_are_those_of_the_lines_that_name_them() {
    let (p, warnings) = policy(
        "[access.groups]\norders = [\"1000\"]\n\"*\" = { open = [\"%9\"] }\n\
         \"redis-*\" = { open = [\"1001\"], propose = [\"1002\"], administer = [\"%50\"] }\n\
         redis-1 = { administer = [\"1002\"] }\n\"a group\" = [\"everyone\"]",
    );
    assert!(warnings.is_empty(), "{warnings:?}");
    let none = GroupRights::default();
    let open = GroupRights { open: true, ..none };
    let propose = GroupRights { propose: true, ..open };
    let administer = GroupRights { administer: true, ..open };
    let all = GroupRights::ALL;
    for (uid, gid, group, rights) in [
        (1000, 1, "orders", propose),
        (1000, 1, "orders2", none),
        (1000, 1, "order", none),
        (1000, 1, "redis-1", none),
        (1001, 1, "redis-1", open),
        (1001, 1, "redis-", open),
        (1001, 1, "redis", none),
        (1002, 1, "redis-2", propose),
        (1002, 1, "redis-1", all),
        (1003, 50, "redis-2", administer),
        (1003, 50, "orders", none),
        (1003, 9, "orders", open),
        (1003, 9, "anything", open),
        (1003, 1, "a group", propose),
        (0, 0, "anything", all),
    ] {
        assert_eq!(p.groups().of(&peer(uid, gid, &[]), group), rights, "{uid} {gid} {group}");
    }
    assert!(all.includes(propose) && propose.includes(open) && !open.includes(propose) && !propose.includes(administer));
    // What is missing, where, and the line that grants it; which is one.
    let user = peer(1001, 1, &[]);
    for (right, group, line) in [
        (GroupRight::Open, "orders", "orders = { open = [\"1001\"] }"),
        (GroupRight::Propose, "redis-1", "redis-1 = { propose = [\"1001\"] }"),
        (GroupRight::Administer, "an \"other\" group", "\"an \\\"other\\\" group\" = { administer = [\"1001\"] }"),
    ] {
        let refused = p.may_in_group(&user, right, group).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Permission);
        for part in ["user 1001", group, right.key(), "root", "under [access.groups] in fide.toml", line] {
            assert!(refused.what.contains(part), "{part}: {refused}");
        }
        let (granted, _) = policy(&format!("[access.groups]\n{line}"));
        assert_eq!(granted.may_in_group(&user, right, group), Ok(()));
    }
}

#[test]
fn a_list_that_names_no_groups_grants_nothing_and_says_so() {
    let (p, warnings) = policy("groups = [\"1000\", \"everyone\"]");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for part in ["access.groups", "names no groups, so it grants nothing", "[access.groups]", "orders = [\"1000\"]"] {
        assert!(warnings[0].contains(part), "{warnings:?}");
    }
    assert_eq!(p.groups().of(&peer(1000, 1, &[]), "orders"), GroupRights::default());
    let (_, warnings) = policy("groups = []");
    assert!(warnings.is_empty(), "it grants what it says: {warnings:?}");
    let (_, warnings) = policy("groups = { orders = [\"no-such-user\"], \"r-*\" = { administer = [\"%no-such\"] } }");
    assert!(warnings[1].contains("access.groups.\"r-*\".administer: this host has no group `no-such`"), "{warnings:?}");
    assert!(warnings[0].contains("access.groups.orders.propose: this host has no user `no-such-user`"), "{warnings:?}");
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
