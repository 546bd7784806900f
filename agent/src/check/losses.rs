//! What this host has lost of the packets that came for its applications (SafeTimer §5.1, "Reading drop count").
//!
//! | counter | read from |
//! |---|---|
//! | `rx_missed_errors`, `rx_fifo_errors`, `rx_over_errors` of the paths' interfaces | the kernel, by netlink |
//! | a processor's backlog had no room | `/proc/net/softnet_stat` |
//! | IP had no memory | `InDiscards`, `Ip6InDiscards` |
//! | a UDP socket had no room, or its filter, its checksum | `Udp InErrors`, `Udp6InErrors` |
//! | other agents' heartbeats, by their numbers: some drivers do not count what their ring had no room for | the arrival table |
//! | a TCP socket had no room for a segment, or for a connection | `TCPBacklogDrop`, `TCPRcvQDrop`, `RcvPruned`, `OfoPruned`, `ListenDrops` |
//!
//! They are of the whole host and all its sockets: what another application loses voids this one's interval too. Too often is the safe side.
//! Missing counters (an old kernel) count as never growing. `rx_dropped` is left out, as in [`fide_lane::DropCounters`].

use std::collections::BTreeMap;
use std::ffi::CStr;

/// What was read, and when it last grew.
#[derive(Debug, Default)]
pub struct Losses {
    interfaces: Vec<String>,
    last: Option<BTreeMap<String, u64>>,
    lost_ns: u64,
    what: String,
}

impl Losses {
    /// Watches these interfaces beside the stack.
    #[must_use]
    pub fn new(interfaces: Vec<String>) -> Self {
        Self { interfaces, ..Self::default() }
    }

    /// Reads them all. Up to `now_ns`, which was read before, what has grown since the last reading was lost.
    pub fn read(&mut self, lane: impl IntoIterator<Item = (String, u64)>, now_ns: impl Fn() -> u64) {
        let mut found = self.count();
        for (whose, lost) in lane {
            // Whoever begins a new life begins at zero.
            let before = self.last.as_ref().and_then(|last| last.get(&whose)).copied();
            found.insert(whose, lost.max(before.unwrap_or(lost)));
        }
        let now = now_ns();
        match &self.last {
            None => (self.lost_ns, self.what) = (now, "nothing was counted before the agent started".into()),
            Some(last) if *last == found => {}
            Some(last) => {
                // What is counted for the first time, or no longer, was an interface or a host that came or went.
                let grew = |(key, value): &(&String, &u64)| last.get(*key).is_some_and(|l| l != *value);
                let grown: Vec<&str> = found.iter().filter(grew).map(|(key, _)| key.as_str()).collect();
                if !grown.is_empty() {
                    self.what = format!("packets were lost on this host or on their way ({})", grown.join(", "));
                    self.lost_ns = now;
                }
            }
        }
        self.last = Some(found);
    }

    /// Since when nothing was lost, as far as the last reading tells, and what was before.
    #[must_use]
    pub fn lost(&self) -> (u64, &str) {
        (self.lost_ns, &self.what)
    }

    fn count(&self) -> BTreeMap<String, u64> {
        let file = |name: &str| std::fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default();
        let mut found = BTreeMap::new();
        found.insert("backlog".to_string(), softnet(&file("softnet_stat")));
        pairs(&file("snmp"), &[("Ip:", "InDiscards"), ("Udp:", "InErrors")], &mut found);
        pairs(
            &file("netstat"),
            &["TCPBacklogDrop", "TCPRcvQDrop", "RcvPruned", "OfoPruned", "ListenDrops"].map(|k| ("TcpExt:", k)),
            &mut found,
        );
        lines(&file("snmp6"), &["Ip6InDiscards", "Udp6InErrors"], &mut found);
        interfaces(&self.interfaces, &mut found);
        found
    }
}

fn softnet(text: &str) -> u64 {
    text.lines().filter_map(|line| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()).sum()
}

/// `Name: key key …` above `Name: value value …`.
fn pairs(text: &str, wanted: &[(&str, &str)], found: &mut BTreeMap<String, u64>) {
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
fn lines(text: &str, wanted: &[&str], found: &mut BTreeMap<String, u64>) {
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
fn interfaces(wanted: &[String], found: &mut BTreeMap<String, u64>) {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: a place for the list, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return;
    }
    let mut at = list;
    // SAFETY: entries are linked until NULL and live until the list is freed; an entry's address, where there is one, says what its data is; that of
    // AF_PACKET is rtnl_link_stats, two dozen u32 (linux/if_link.h).
    unsafe {
        while !at.is_null() {
            let entry = &*at;
            at = entry.ifa_next;
            if entry.ifa_addr.is_null() || entry.ifa_data.is_null() || i32::from((*entry.ifa_addr).sa_family) != libc::AF_PACKET {
                continue;
            }
            let name = CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned();
            if wanted.contains(&name) {
                // rx_over_errors, rx_fifo_errors, rx_missed_errors
                let sum = [11, 14, 15].map(|i| u64::from(entry.ifa_data.cast::<u32>().add(i).read_unaligned())).iter().sum();
                found.insert(name, sum);
            }
        }
        libc::freeifaddrs(list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        losses.read([("h1".into(), 5)], || 100);
        assert_eq!(losses.lost().0, 100, "what was before is not known");
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..10_000 {
            sender.send_to(&[0; 1024], receiver.local_addr().unwrap()).unwrap();
        }
        losses.read([("h1".into(), 5)], || 200);
        let (lost_ns, what) = losses.lost();
        assert_eq!(lost_ns, 200);
        assert!(what.contains("UdpInErrors"), "{what}");
        // Heartbeats of h1 that never came; then h1 begins anew, and h2 comes.
        losses.read([("h1".into(), 6)], || 300);
        losses.read([("h1".into(), 0), ("h2".into(), 9)], || 400);
        let (lost_ns, what) = losses.lost();
        assert!(lost_ns >= 300 && what.contains("h1") && !what.contains("h2"), "{what}");
    }

    #[test]
    fn the_interfaces_counters_are_where_they_are_said_to_be() {
        // The first of them is the number of packets received, which grows.
        let mut found = BTreeMap::new();
        interfaces(&["lo".into(), "no-such".into()], &mut found);
        assert_eq!(found.len(), 1);
        let words = ["rx_over_errors", "rx_fifo_errors", "rx_missed_errors"];
        let shown = words.map(|w| std::fs::read_to_string(format!("/sys/class/net/lo/statistics/{w}")).unwrap_or_default());
        assert_eq!(found["lo"], shown.iter().map(|t| t.trim().parse::<u64>().unwrap_or(0)).sum::<u64>());
    }
}
