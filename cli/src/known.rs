//! Names of hosts and processes that an agent knows. A command about any other name fails with exit code 4.

use crate::failure::Failure;
use crate::suggest;
use fide_wire::control::Status;

/// The names of all hosts, this one included.
pub fn hosts(status: &Status) -> Vec<&str> {
    status.hosts.iter().map(|h| h.name.as_str()).chain([status.node.as_str()]).collect()
}

/// The names of all processes that are or were watched, of one host or of all.
pub fn processes<'a>(status: &'a Status, host: Option<&str>) -> Vec<&'a str> {
    let is_meant = |name: &str| host.is_none_or(|host| host == name);
    let others = status.hosts.iter().filter(|h| is_meant(&h.name)).flat_map(|h| h.apps.iter().map(|a| a.name.as_str()));
    let own = status.watched.iter().filter(|_| is_meant(&status.node)).map(|w| w.name.as_str());
    let mut names: Vec<&str> = others.chain(own).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Fails where no host of that name is known.
pub fn host(status: &Status, name: &str) -> Result<(), Failure> {
    let hosts = hosts(status);
    if hosts.contains(&name) {
        return Ok(());
    }
    let what = format!("no host {} is known to this agent", name.escape_debug());
    Err(Failure::not_found(what).maybe_hint(suggest::hint("hosts", name, &hosts)))
}

/// Fails where no process of that name is known, on this host or on any.
pub fn process(status: &Status, name: &str, on: Option<&str>) -> Result<(), Failure> {
    on.map_or(Ok(()), |on| host(status, on))?;
    let names = processes(status, on);
    if names.contains(&name) {
        return Ok(());
    }
    let at = on.map_or_else(String::new, |on| format!("@{on}"));
    let what = format!("no process {}{at} is known to this agent", name.escape_debug());
    Err(Failure::not_found(what).maybe_hint(suggest::hint("processes", name, &names)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_wire::control::{AppStatus, HostStatus, WatchStatus};

    #[test]
    fn only_names_that_the_agent_lists_are_known() {
        let status = Status {
            node: "h1".into(),
            hosts: vec![HostStatus {
                name: "h2".into(),
                apps: vec![AppStatus { name: "redis".into(), ..AppStatus::default() }],
                ..HostStatus::default()
            }],
            watched: vec![WatchStatus { name: "db".into(), ..WatchStatus::default() }],
            ..Status::default()
        };
        let known = |name: &str, on: Option<&str>| process(&status, name, on).map_err(|f| (f.kind as u8, f.hints));
        for (name, on) in [("redis", None), ("redis", Some("h2")), ("db", None), ("db", Some("h1"))] {
            assert_eq!(known(name, on), Ok(()));
        }
        assert_eq!(known("rdeis", None), Err((4, vec!["did you mean redis?".into()])));
        assert_eq!(known("redis", Some("h1")), Err((4, vec!["processes: db".into()])));
        assert_eq!(known("db", Some("h9")).unwrap_err().0, 4);
        assert_eq!(host(&status, "h9\u{202e}").unwrap_err().what, "no host h9\\u{202e} is known to this agent");
    }
}
