//! Packets that were refused because their sender has another key, is of another cluster, or has this host's name: who, and what to run.

use crate::units::ns;
use fide_wire::control::{Status, UnwantedStatus};

/// What goes on if the last packet of its kind came within this time.
const RECENT_NS: u64 = 60_000_000_000;

/// Where to look: what both hosts must agree on, and how to compare it.
const COMPARE_KEYS: &str = "on both hosts: grep -A3 '\\[keys\\]' /etc/fide/fide.toml; sha256sum the files named there; \
                            copy the right key, then: fide reload";
const WITHOUT_KEY: &str = "this host has no key: put the [keys] section and the key file of the other hosts on it, \
                           then: fide reload";
const COMPARE_CLUSTERS: &str = "on both hosts: grep -E '^cluster' /etc/fide/fide.toml; they differ, or two clusters share a network: \
                                that costs nothing but the refusals";

const RENAME: &str = "two hosts cannot have one name: on one of them write node = \"another name\" in /etc/fide/fide.toml, \
                      then: systemctl restart fided";

/// One reason for refusals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// `16755 packets refused: made with another key, from 10.0.0.9 (net0), 2 s ago`.
    pub what: String,
    /// What to run.
    pub advice: &'static str,
    /// Whether it goes on.
    pub recent: bool,
}

/// All of them, those that go on first.
pub fn foreign(s: &Status) -> Vec<Foreign> {
    let mut all: Vec<Foreign> = s.unwanted.iter().filter_map(|u| of(s, u)).collect();
    all.sort_by_key(|f| !f.recent);
    all
}

fn of(s: &Status, u: &UnwantedStatus) -> Option<Foreign> {
    let (what, advice) = match u.kind.as_str() {
        "key" if !s.authenticated => ("made with a key", WITHOUT_KEY),
        "mac" if !s.authenticated => ("made with a key, or damaged", WITHOUT_KEY),
        "key" => ("made with another key", COMPARE_KEYS),
        "mac" => ("made with another key, or damaged", COMPARE_KEYS),
        "cluster" => ("of another cluster", COMPARE_CLUSTERS),
        // A network may send back what this host itself has sent.
        "own" if !s.paths.iter().any(|p| p.address.split('/').next() == Some(&u.from)) => {
            ("of another host with this host's name", RENAME)
        }
        _ => return None,
    };
    let interface = s.paths.iter().find(|p| p.path == u.path).map_or_else(|| format!("path {}", u.path), |p| p.interface.clone());
    let from = if u.from.is_empty() { &u.mac } else { &u.from };
    let packets = if u.count == 1 { "packet" } else { "packets" };
    let what = format!("{} {packets} refused: {what}, the last from {from} ({interface}) {} ago", u.count, ns(u.age_ns));
    Some(Foreign { what, advice, recent: u.age_ns < RECENT_NS })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::status::tests::fixed;

    /// A status with so many packets refused for this reason.
    pub fn refused(kind: &str, authenticated: bool) -> Status {
        let unwanted = UnwantedStatus {
            kind: kind.into(),
            count: 16_755,
            from: "10.77.1.2".into(),
            mac: "02:fd:00:00:00:02".into(),
            path: 1,
            age_ns: 2_000_000,
        };
        Status { unwanted: vec![unwanted], authenticated, ..fixed() }
    }

    #[test]
    fn another_key_is_named_with_its_sender_and_what_to_run() {
        let found = foreign(&refused("key", true));
        assert_eq!(found[0].what, "16755 packets refused: made with another key, the last from 10.77.1.2 (net1) 2 ms ago");
        assert!(found[0].advice.contains("sha256sum") && found[0].advice.contains("fide reload") && found[0].recent);
        assert!(foreign(&refused("key", false))[0].advice.contains("this host has no key"));
        assert!(foreign(&refused("mac", true))[0].what.contains("or damaged"));
        assert!(foreign(&refused("cluster", true))[0].advice.contains("grep -E '^cluster'"));
        assert_eq!(foreign(&refused("old-number", true)), []);
        let mut own = refused("own", true);
        assert!(foreign(&own)[0].what.contains("with this host's name") && foreign(&own)[0].advice.contains("node ="));
        own.unwanted[0].from = own.paths[0].address.split('/').next().unwrap().into();
        assert_eq!(foreign(&own), []);
        let mut old = refused("key", true);
        old.unwanted[0].age_ns = RECENT_NS;
        assert!(!foreign(&old)[0].recent);
    }
}
