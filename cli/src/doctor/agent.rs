//! The agent: its program, its configuration, whether it runs.

use super::{Group, Item, State};
use crate::cmd::agent::find;
use fide_agent::config::{Config, DEFAULT_PATH, example_path};
use fide_client::{Connection, Error};
use std::path::{Path, PathBuf};

/// Everything about the agent. `socket` if one was named.
pub fn examine(socket: Option<&Path>, configuration: Item) -> Group {
    let program = match find() {
        Ok(path) => Item::ok("fided", "agent program", path.display().to_string()),
        Err(failure) => {
            let advice = failure.hints.first().cloned().unwrap_or_default();
            Item::worse("fided", "agent program", State::Missing, failure.what, "this host takes no part", &advice)
        }
    };
    Group { title: "Agent", items: vec![program, configuration, running(&Connection::open(socket)), group()] }
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
        Err(error) => Item::worse(
            "agent",
            title,
            State::Missing,
            error.to_string(),
            "no crash on this host is told to others, and none of others is known here",
            "systemctl enable --now fided",
        ),
    }
}

/// Whether there is a group for those who may use the socket.
fn group() -> Item {
    let title = "users without privileges";
    let found = std::fs::read_to_string("/etc/group").unwrap_or_default();
    match found.lines().find(|l| l.starts_with("fide:")) {
        Some(line) => {
            let members = line.rsplit(':').next().unwrap_or("");
            Item::ok(
                "group",
                title,
                format!("group fide may use the socket; its members: {}", if members.is_empty() { "none" } else { members }),
            )
        }
        None => Item::worse(
            "group",
            title,
            State::Degraded,
            "there is no group fide",
            "only root can use the agent's socket, unless socket.group names another group",
            "groupadd --system fide; usermod -aG fide USER",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn no_agent_is_missing_and_no_permission_is_unknown() {
        let none = Error::NoAgent { path: "/x".into(), source: std::io::Error::from_raw_os_error(libc::ENOENT) };
        assert_eq!(running(&Err(none)).state, State::Missing);
        assert_eq!(running(&Err(Error::Permission { path: "/x".into() })).state, State::Unknown);
    }
}
