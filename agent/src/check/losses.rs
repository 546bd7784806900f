//! What this host has lost of the packets that came for its applications (SafeTimer §5.1, "Reading drop count").
//!
//! | counter | read from |
//! |---|---|
//! | `rx_missed_errors`, `rx_fifo_errors`, `rx_over_errors` of the paths' interfaces | the kernel, by netlink |
//! | a processor's backlog had no room | `/proc/net/softnet_stat` |
//! | IP had no memory, or not all the fragments of a packet | `InDiscards`, `Ip6InDiscards`, `ReasmFails`, `Ip6ReasmFails` |
//! | a UDP socket had no room, or its filter, its checksum | `Udp InErrors`, `Udp6InErrors` |
//! | other agents' heartbeats, by their numbers: some drivers do not count what their ring had no room for | the arrival table |
//! | a TCP socket had no room for a segment, or for a connection | `TCPBacklogDrop`, `TCPRcvQDrop`, `RcvPruned`, `OfoPruned`, `TCPOFODrop`, `ListenDrops` |
//! | no memory but that kept for swapping | `PFMemallocDrop` |
//!
//! They are of the whole host and all its sockets: what another application loses voids this one's interval too. Too often is the safe side.
//! A source that cannot be read counts as a loss, and its old values stay, so that what it lost meanwhile is seen later. Counters that were never there
//! (an old kernel, one without IPv6) count as never growing. `rx_dropped` is left out, as in [`fide_lane::DropCounters`].

use crate::links;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

type Counts = BTreeMap<String, u64>;
type Take = fn(&str, &mut Counts);

/// The files, and how each is read.
const FILES: [(&str, Take); 4] = [
    ("softnet_stat", |text, found| {
        found.insert("backlog".into(), softnet(text));
    }),
    ("snmp", |text, found| pairs(text, &[("Ip:", "InDiscards"), ("Ip:", "ReasmFails"), ("Udp:", "InErrors")], found)),
    ("netstat", |text, found| {
        let keys = ["TCPBacklogDrop", "TCPRcvQDrop", "RcvPruned", "OfoPruned", "TCPOFODrop", "ListenDrops", "PFMemallocDrop"];
        pairs(text, &keys.map(|k| ("TcpExt:", k)), found);
    }),
    ("snmp6", |text, found| lines(text, &["Ip6InDiscards", "Ip6ReasmFails", "Udp6InErrors"], found)),
];

/// What was read, and when it last grew.
#[derive(Debug)]
pub struct Losses {
    wanted: Vec<String>,
    directory: PathBuf,
    /// Those of [`FILES`] that could be read once.
    there: BTreeSet<&'static str>,
    begun: bool,
    stack: Counts,
    interfaces: Counts,
    lane: Counts,
    lost_ns: u64,
    what: String,
}

impl Losses {
    /// Watches these interfaces beside the stack.
    #[must_use]
    pub fn new(interfaces: Vec<String>) -> Self {
        Self {
            wanted: interfaces,
            directory: "/proc/net".into(),
            there: BTreeSet::new(),
            begun: false,
            stack: Counts::new(),
            interfaces: Counts::new(),
            lane: Counts::new(),
            lost_ns: 0,
            what: String::new(),
        }
    }

    /// Reads them all. Up to `now_ns`, which is read afterwards, what has changed since the last reading was lost. `lane`: what other agents'
    /// heartbeats tell, unless that cannot be had.
    pub fn read(&mut self, lane: Option<Vec<(String, u64)>>, now_ns: impl Fn() -> u64) {
        let mut trouble = Vec::new();
        let stack = self.files(&mut trouble);
        let interfaces = self.links(&mut trouble);
        // Who is not there any more sent nothing that is waited for; who is there for the first time began at zero.
        let lane = lane.map_or_else(
            || {
                trouble.push("the agent's loop does not answer".into());
                self.lane.clone()
            },
            Counts::from_iter,
        );
        let now = now_ns();
        let pairs = [(&self.stack, &stack), (&self.interfaces, &interfaces), (&self.lane, &lane)];
        let grown: Vec<&str> = pairs.iter().flat_map(|(last, found)| grown(last, found)).collect();
        let mut why = Vec::new();
        if !grown.is_empty() {
            why.push(format!("packets were lost on this host or on their way ({})", grown.join(", ")));
        }
        if !trouble.is_empty() {
            why.push(format!("it cannot be counted what was lost ({})", trouble.join(", ")));
        }
        if !std::mem::replace(&mut self.begun, true) {
            (self.lost_ns, self.what) = (now, "nothing was counted before the agent started".into());
        } else if !why.is_empty() {
            (self.lost_ns, self.what) = (now, why.join("; "));
        }
        (self.stack, self.interfaces, self.lane) = (stack, interfaces, lane);
    }

    /// Since when nothing was lost, as far as the last reading tells, and what was before.
    #[must_use]
    pub fn lost(&self) -> (u64, &str) {
        (self.lost_ns, &self.what)
    }

    /// What the files say, and where one says nothing what it said before.
    fn files(&mut self, trouble: &mut Vec<String>) -> Counts {
        let mut found = self.stack.clone();
        for (name, take) in FILES {
            match std::fs::read_to_string(self.directory.join(name)) {
                Ok(text) => {
                    self.there.insert(name);
                    take(&text, &mut found);
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound && !self.there.contains(name) => {}
                Err(e) => trouble.push(format!("{name}: {e}")),
            }
        }
        found
    }

    /// What the interfaces' counters say. With one that goes, what was in its ring is lost.
    fn links(&self, trouble: &mut Vec<String>) -> Counts {
        match interfaces(&self.wanted) {
            Ok(found) => {
                trouble.extend(
                    self.interfaces.keys().filter(|name| !found.contains_key(*name)).map(|name| format!("{name} is gone")),
                );
                found
            }
            Err(e) => {
                trouble.push(format!("interfaces: {e}"));
                self.interfaces.clone()
            }
        }
    }
}

/// Which of them differ: what a counter says that begins anew was lost since.
fn grown<'a>(last: &'a Counts, found: &'a Counts) -> impl Iterator<Item = &'a str> {
    found.iter().filter(|(key, value)| last.get(*key).copied().unwrap_or(0) != **value).map(|(key, _)| key.as_str())
}

fn softnet(text: &str) -> u64 {
    text.lines().filter_map(|line| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()).sum()
}

/// `Name: key key …` above `Name: value value …`.
fn pairs(text: &str, wanted: &[(&str, &str)], found: &mut Counts) {
    let lines: Vec<&str> = text.lines().collect();
    for two in lines.chunks_exact(2) {
        let (keys, values) = (two[0].split_whitespace(), two[1].split_whitespace());
        let Some(table) = two[0].split_whitespace().next() else { continue };
        for (key, value) in keys.zip(values) {
            if wanted.contains(&(table, key))
                && let Ok(value) = value.parse()
            {
                found.insert(format!("{}{key}", if table == "TcpExt:" { "" } else { table.trim_end_matches(':') }), value);
            }
        }
    }
}

/// `key value`.
fn lines(text: &str, wanted: &[&str], found: &mut Counts) {
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if let (Some(key), Some(Ok(value))) = (words.next(), words.next().map(str::parse))
            && wanted.contains(&key)
        {
            found.insert(key.into(), value);
        }
    }
}

/// What interfaces of this thread's network namespace have lost: `/sys` may be another's.
fn interfaces(wanted: &[String]) -> io::Result<Counts> {
    let mut found = Counts::new();
    for name in wanted {
        match links::lost(name) {
            Ok(lost) => _ = found.insert(name.clone(), lost),
            // It is gone, and with it what it lost.
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::namespace;
    use std::net::UdpSocket;

    #[test]
    fn tables_are_read() {
        let mut found = BTreeMap::new();
        pairs(
            "Ip: Forwarding InDiscards\nIp: 1 7\nUdp: InDatagrams InErrors\nUdp: 5 9\nhalf",
            &[("Ip:", "InDiscards"), ("Udp:", "InErrors")],
            &mut found,
        );
        lines("Ip6InDiscards   \t3\nUdp6InErrors\nother 4\n", &["Ip6InDiscards", "Udp6InErrors"], &mut found);
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [("Ip6InDiscards".to_string(), 3), ("IpInDiscards".into(), 7), ("UdpInErrors".into(), 9)]
        );
        assert_eq!(softnet("0 00000003 0\n1 0000000a\nnonsense\n"), 13);
    }

    #[test]
    fn what_an_application_loses_is_seen() {
        let mut losses = Losses::new(vec!["lo".into()]);
        losses.read(lane(&[("h1", 5)]), || 100);
        assert_eq!(losses.lost().0, 100, "what was before is not known");
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..10_000 {
            sender.send_to(&[0; 1024], receiver.local_addr().unwrap()).unwrap();
        }
        losses.read(lane(&[("h1", 5)]), || 200);
        let (lost_ns, what) = losses.lost();
        assert_eq!(lost_ns, 200);
        assert!(what.contains("UdpInErrors"), "{what}");
    }

    /// Of files that others' packets do not change.
    fn quiet() -> (tempfile::TempDir, Losses) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("softnet_stat"), "0 00000003 0\n").unwrap();
        std::fs::write(directory.path().join("snmp"), "Ip: InDiscards ReasmFails\nIp: 1 1\n").unwrap();
        std::fs::write(directory.path().join("netstat"), "TcpExt: TCPOFODrop PFMemallocDrop\nTcpExt: 1 1\n").unwrap();
        let losses = Losses { directory: directory.path().into(), ..Losses::new(Vec::new()) };
        (directory, losses)
    }

    /// One reading, which says whether something was lost.
    fn lost(losses: &mut Losses, lane: Option<Vec<(String, u64)>>) -> bool {
        let now = losses.lost_ns + 100;
        losses.read(lane, || now);
        losses.lost().0 == now
    }

    #[test]
    fn heartbeats_that_never_came_are_seen_in_every_life() {
        let (_directory, mut losses) = quiet();
        assert!(lost(&mut losses, lane(&[("h1", 1000)])));
        assert!(!lost(&mut losses, lane(&[("h1", 1000), ("h2", 0)])), "somebody came");
        assert!(lost(&mut losses, lane(&[("h1", 1001), ("h2", 0)])));
        assert!(!lost(&mut losses, lane(&[("h1", 1001), ("h2", 0)])));
        assert!(lost(&mut losses, lane(&[("h1", 1001), ("h2", 3), ("h3", 1)])));
        assert!(losses.lost().1.contains("h2, h3") && !losses.lost().1.contains("h1"), "{}", losses.lost().1);
        losses.read(lane(&[("h1", 0)]), || 0); // forgotten, and met again
        assert!(lost(&mut losses, lane(&[("h1", 500)])));
        assert!(!lost(&mut losses, lane(&[("h1", 500)])));
    }

    #[test]
    fn what_cannot_be_read_counts_as_lost_and_hides_nothing() {
        let (directory, mut losses) = quiet();
        losses.read(lane(&[("h1", 5)]), || 100);
        assert!(!lost(&mut losses, lane(&[("h1", 5)])));
        // The loop does not answer: nobody knows.
        assert!(lost(&mut losses, None) && losses.lost().1.contains("loop"), "{}", losses.lost().1);
        assert!(lost(&mut losses, None), "for as long as that lasts");
        assert!(!lost(&mut losses, lane(&[("h1", 5)])), "nothing was lost meanwhile");
        lost(&mut losses, None);
        assert!(lost(&mut losses, lane(&[("h1", 6)])), "something was");
        // Each of the files, and a loss that it would have shown.
        for (name, before, after) in [
            ("softnet_stat", "0 00000003 0\n", "0 00000004 0\n"),
            ("snmp", "Ip: InDiscards ReasmFails\nIp: 1 1\n", "Ip: InDiscards ReasmFails\nIp: 1 2\n"),
            ("netstat", "TcpExt: TCPOFODrop PFMemallocDrop\nTcpExt: 1 1\n", "TcpExt: TCPOFODrop PFMemallocDrop\nTcpExt: 2 1\n"),
        ] {
            let file = directory.path().join(name);
            std::fs::remove_file(&file).unwrap();
            assert!(lost(&mut losses, lane(&[("h1", 6)])) && losses.lost().1.contains(name), "{name}: {}", losses.lost().1);
            std::fs::write(&file, before).unwrap();
            assert!(!lost(&mut losses, lane(&[("h1", 6)])), "{name}: {}", losses.lost().1);
            std::fs::remove_file(&file).unwrap();
            lost(&mut losses, lane(&[("h1", 6)]));
            std::fs::write(&file, after).unwrap();
            assert!(lost(&mut losses, lane(&[("h1", 6)])), "{name}");
        }
    }

    #[test]
    fn with_an_interface_that_goes_its_ring_is_lost() {
        let (_directory, mut losses) = quiet();
        losses.wanted = vec!["v0".into()];
        namespace::inside(|| {
            assert!(namespace::ip("link add v0 type veth peer name v1"));
            losses.read(lane(&[]), || 100);
            assert!(!lost(&mut losses, lane(&[])));
            assert!(namespace::ip("link del v0"));
            assert!(lost(&mut losses, lane(&[])) && losses.lost().1.contains("v0"), "{}", losses.lost().1);
            assert!(!lost(&mut losses, lane(&[])), "once");
        });
    }

    fn lane(all: &[(&str, u64)]) -> Option<Vec<(String, u64)>> {
        Some(all.iter().map(|(whose, lost)| ((*whose).to_owned(), *lost)).collect())
    }

    #[test]
    fn the_interfaces_counters_are_where_they_are_said_to_be() {
        // The first of them is the number of packets received, which grows.
        let found = interfaces(&["lo".into(), "no-such".into()]).unwrap();
        assert_eq!(found.len(), 1);
        let words = ["rx_over_errors", "rx_fifo_errors", "rx_missed_errors"];
        let shown = words.map(|w| std::fs::read_to_string(format!("/sys/class/net/lo/statistics/{w}")).unwrap_or_default());
        assert_eq!(found["lo"], shown.iter().map(|t| t.trim().parse::<u64>().unwrap_or(0)).sum::<u64>());
    }
}
