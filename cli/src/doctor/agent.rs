//! The agent: its program, its configuration, whether it runs.

use super::{Group, Item, State};
use crate::cmd::agent::find;
use crate::failure::in_lab;
use crate::render::foreign::{Foreign, foreign};
use fide_agent::config::{Config, DEFAULT_PATH, example_path};
use fide_client::{Connection, Error};
use fide_wire::control::{LocalPath, Status};
use std::path::{Path, PathBuf};

/// Everything about the agent. `socket` if one was named; `status` of the one that runs.
pub fn examine(socket: Option<&Path>, configuration: Item, config: Option<&Config>, status: Option<&Status>) -> Group {
    let program = match find() {
        Ok(path) => Item::ok("fided", "agent program", path.display().to_string()),
        Err(failure) => {
            let advice = failure.hints.first().cloned().unwrap_or_default();
            Item::worse("fided", "agent program", State::Missing, failure.what, "this host takes no part", &advice)
        }
    };
    let mut items = vec![program, configuration, running(&Connection::open(socket)), group(config)];
    items.extend(status.map(barrier));
    items.extend(status.into_iter().flat_map(foreign_hosts));
    Group { title: "Agent", items }
}

/// Checks the configuration: the one named, else the usual one if it is there.
pub fn configuration(named: Option<&Path>) -> (Item, Option<Config>) {
    let title = "configuration";
    let of_lab = lab_configuration(std::env::var_os(fide_wire::control::SOCKET_ENV).map(Into::into));
    let path = named.or(of_lab.as_deref()).unwrap_or(Path::new(DEFAULT_PATH));
    if named.is_none() && !path.exists() {
        let (advice, missing);
        if of_lab.is_some() {
            advice = "make the lab with agents: fide lab up --agents".to_string();
            missing = format!("no {}: this host of a lab has no agent", path.display());
        } else {
            advice = format!("copy the example {} there and name the two interfaces in it", example_path().display());
            missing = format!("no {DEFAULT_PATH}");
        }
        let item = Item::worse("config", title, State::Missing, missing, "the agent does not start", &advice);
        return (item, None);
    }
    match Config::load(path) {
        Ok(config) if config.warnings.is_empty() => (
            Item::ok("config", title, format!("{}: node {}, cluster {}", path.display(), config.node, config.cluster)),
            Some(config),
        ),
        Ok(config) => {
            let found = format!("{} works, but: {}", path.display(), config.warnings.join("; "));
            (Item::worse("config", title, State::Degraded, found, "", ""), Some(config))
        }
        Err(error) => {
            let advice = "mend that line; fided --check reads the file as the agent does";
            (
                Item::worse("config", title, State::Missing, error.to_string(), "the agent does not start", advice).essential(),
                None,
            )
        }
    }
}

/// In a host of a lab, the file that its agent has beside its socket.
fn lab_configuration(socket: Option<PathBuf>) -> Option<PathBuf> {
    let socket = socket.filter(|s| crate::cmd::explain::one_machine(s))?;
    Some(socket.parent()?.join("fide.toml"))
}

fn running(opened: &Result<Connection, Error>) -> Item {
    let title = "agent running";
    match opened {
        Ok(connection) => {
            let agent = connection.agent();
            let found = format!("{} in cluster {}, release {}", agent.node, agent.cluster, agent.version);
            if agent.version == env!("CARGO_PKG_VERSION") {
                return Item::ok("agent", title, found);
            }
            let advice = "install the same release of both";
            Item::worse("agent", title, State::Degraded, found, "fide is of another release: some answers may be lacking", advice)
        }
        Err(error @ Error::Permission { .. }) => {
            Item::worse("agent", title, State::Unknown, error.to_string(), "", "run this as root, or join the socket's group")
        }
        Err(error) => {
            let costs = "no crash on this host is told to others, and none of others is known here";
            let (found, advice) = match error {
                Error::NoAgent { path, .. } => (format!("no agent is listening on {}", path.display()), in_lab(path)),
                _ => (error.to_string(), None),
            };
            Item::worse("agent", title, State::Missing, found, costs, advice.as_deref().unwrap_or("systemctl enable --now fided"))
        }
    }
}

/// Whether silence can be judged behind a barrier (SafeTimer §4.1): in the driver's poll only, and somebody has to give one.
fn barrier(status: &Status) -> Item {
    let title = "drain before verdict";
    let costs = "a heartbeat that waits on this host's own processors may be taken for silence; such verdicts say that nothing is drained";
    let others = status.hosts.iter().filter(|h| !matches!(h.state.as_str(), "left" | "silent-host")).count();
    let worse = |found: String, advice| Item::worse("barrier", title, State::Degraded, found, costs, advice);
    if status.receive != "xdp-native" {
        let advice = "receive by native XDP on both paths: a driver that has it, and no receive = \"udp\" in the configuration";
        return worse(format!("no barrier: heartbeats are received by {}", status.receive), advice);
    }
    if others < 2 {
        let answering = |p: &LocalPath| p.answerers.iter().find(|a| a.answers).map(|a| a.address.clone());
        let by: Vec<Option<String>> = status.paths.iter().map(answering).collect();
        if let Some(by) = by.into_iter().collect::<Option<Vec<_>>>().filter(|by| !by.is_empty()) {
            let found = format!(
                "answers of {} are barriers when the only other host falls silent ({others} seen), where they come by the queue of its heartbeats",
                by.join(" and ")
            );
            return Item::ok("barrier", title, found);
        }
        let advice = "a third host; its kernel's answers are the barrier, and the witness that this host is not cut off itself. Or let whatever else answers on both networks give barriers: path.answerers in fide.toml(5)";
        return worse(format!("no barrier when the only other host falls silent ({others} seen)"), advice);
    }
    let found =
        format!("answers of {others} other hosts are barriers, where one comes by the queue of the silent host's heartbeats");
    Item::ok("barrier", title, found)
}

/// Hosts with another key or of another cluster, if packets of such hosts come now.
fn foreign_hosts(status: &Status) -> Vec<Item> {
    let costs = "those hosts and this one do not hear each other";
    let worse = |f: Foreign| Item::worse("foreign", "keys of other hosts", State::Degraded, f.what, costs, f.advice);
    foreign(status).into_iter().filter(|f| f.recent).map(worse).collect()
}

/// Whether there is a group for those who may use the socket.
fn group(config: Option<&Config>) -> Item {
    let name = config.map_or("fide", |c| c.socket.group.as_str());
    members(name, &std::fs::read_to_string("/etc/group").unwrap_or_default())
}

fn members(name: &str, groups: &str) -> Item {
    let title = "users without privileges";
    let fields = |line: &str| line.split(':').map(str::to_string).collect::<Vec<_>>();
    // By name or by number, as the configuration may say it.
    match groups.lines().map(fields).find(|f| f.first().is_some_and(|n| n == name) || f.get(2).is_some_and(|n| n == name)) {
        Some(fields) => {
            let members = fields.get(3).filter(|m| !m.is_empty()).map_or("none", String::as_str);
            Item::ok("group", title, format!("group {} may use the socket; its members: {members}", fields[0]))
        }
        None => Item::worse(
            "group",
            title,
            State::Degraded,
            format!("there is no group {name}"),
            "only root can use the agent's socket, unless socket.group names another group",
            &format!("groupadd --system {name}; usermod -aG {name} USER"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_wire::control::{HostStatus, PathAnswerer, UnwantedStatus};

    #[test]
    fn in_a_lab_host_its_own_configuration_is_looked_at() {
        let of = |socket: &str| lab_configuration(Some(socket.into()));
        assert_eq!(of("/run/fide/lab/x/h2/fided.sock"), Some("/run/fide/lab/x/h2/fide.toml".into()));
        assert_eq!(of("/run/fide/fided.sock"), None);
        assert_eq!(lab_configuration(None), None);
    }

    #[test]
    fn a_bad_configuration_keeps_the_agent_from_working_and_a_doubtful_one_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("fide.toml");
        let check = |text: &str| {
            std::fs::write(&file, text).unwrap();
            configuration(Some(&file)).0
        };
        let item = check("node = \"a\"\nhaertbeat = \"1ms\"\n");
        assert!(item.state == State::Missing && item.essential && item.found.contains("line 2"), "{item:?}");
        let item = check("node = \"a\"\n[[path]]\ninterface = \"e1\"\n[[path]]\ninterface = \"e2\"\n");
        assert!(item.state == State::Degraded && item.found.contains("[keys]"), "{item:?}");
        let absent = configuration(Some(&directory.path().join("none"))).0;
        assert!(absent.essential && absent.found.contains("cannot be read"), "{absent:?}");
    }

    #[test]
    fn the_group_that_the_configuration_names_is_looked_for() {
        let groups = "root:x:0:\nfide:x:990:alice,bob\nops:x:1001:\n";
        assert!(members("fide", groups).found.contains("alice,bob"));
        assert!(members("1001", groups).found.contains("group ops may use the socket; its members: none"));
        let none = members("watch", groups);
        assert!(none.state == State::Degraded && none.advice.unwrap().contains("groupadd --system watch"));
    }

    #[test]
    fn hosts_with_another_key_are_named_while_their_packets_come() {
        let with = |age_ns| {
            let unwanted =
                UnwantedStatus { kind: "key".into(), count: 9, from: "10.0.0.7".into(), age_ns, ..UnwantedStatus::default() };
            foreign_hosts(&Status { unwanted: vec![unwanted], authenticated: true, ..Status::default() })
        };
        let item = &with(1_000)[0];
        assert!(item.state == State::Degraded && item.found.contains("10.0.0.7"), "{item:?}");
        assert!(item.advice.as_ref().is_some_and(|a| a.contains("sha256sum")), "{item:?}");
        assert!(with(3_600_000_000_000).is_empty());
    }

    #[test]
    fn set_ups_without_a_barrier_are_named() {
        let host = |state: &str| HostStatus { state: state.into(), ..HostStatus::default() };
        let of = |receive: &str, hosts: Vec<HostStatus>| barrier(&Status { receive: receive.into(), hosts, ..Status::default() });
        assert_eq!(of("xdp-native", vec![host("alive"), host("late")]).state, State::Ok);
        // One host, and others on both networks that are no hosts of the cluster.
        let path =
            |answers| LocalPath { answerers: vec![PathAnswerer { address: "10.0.0.1".into(), answers }], ..LocalPath::default() };
        let by = |paths: Vec<LocalPath>| {
            let receive = "xdp-native".to_owned();
            barrier(&Status { receive, hosts: vec![host("alive")], paths, ..Status::default() })
        };
        let item = by(vec![path(true), path(true)]);
        assert!(item.state == State::Ok && item.found.contains("10.0.0.1 and 10.0.0.1"), "{item:?}");
        for item in [
            by(vec![path(true), path(false)]),
            by(vec![path(true), LocalPath::default()]),
            by(Vec::new()),
            of("xdp-native", vec![host("alive"), host("silent-host")]),
            of("xdp-generic", vec![host("alive"); 3]),
            of("udp", vec![host("alive"); 3]),
        ] {
            assert!(item.state == State::Degraded && item.found.contains("no barrier"), "{item:?}");
        }
    }

    #[test]
    fn a_lab_without_agents_is_not_sent_to_systemd() {
        let of = |path: &str| {
            let path = path.into();
            running(&Err(Error::NoAgent { path, source: std::io::Error::from_raw_os_error(libc::ENOENT) })).advice.unwrap()
        };
        assert!(of("/run/fide/lab/no-such-lab/h1/fided.sock").contains("fide lab up --agents"));
        assert_eq!(of("/run/fide/fided.sock"), "systemctl enable --now fided");
    }

    #[test]
    fn no_agent_is_missing_and_no_permission_is_unknown() {
        let none = Error::NoAgent { path: "/x".into(), source: std::io::Error::from_raw_os_error(libc::ENOENT) };
        assert_eq!(running(&Err(none)).state, State::Missing);
        assert_eq!(running(&Err(Error::Permission { path: "/x".into() })).state, State::Unknown);
    }
}
