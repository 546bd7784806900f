//! Packets that this host lost itself, between the wire and the detector: the veto of S2 (SafeTimer §4.1, §5.1).
//!
//! Read without a lock that others may hold for long (asking by netlink takes the one under which interfaces are made), so the lane thread may: a few
//! `pread` of open files, one or two microseconds each.
//!
//! | counter | read from | counted for |
//! |---|---|---|
//! | `rx_missed_errors`, `rx_fifo_errors`, `rx_over_errors`: the interface or its ring had no room | `/sys/class/net/NAME/statistics` | every way of receiving |
//! | a processor's backlog had no room | `/proc/net/softnet_stat` | where heartbeats pass the stack: generic XDP, sockets |
//! | the socket had no room | `SO_MEMINFO` | sockets |
//!
//! `rx_dropped` is left out: drivers count there what XDP drops, which are all our heartbeats. Some drivers bring their counters up to date only every
//! second or two; a loss is seen so much later then.

use fide_wire::PATHS;
use std::fs::File;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;

const NIC: [&str; 3] = ["rx_missed_errors", "rx_fifo_errors", "rx_over_errors"];

/// The open counters.
#[derive(Debug, Default)]
pub struct DropCounters {
    nics: [Vec<File>; PATHS],
    softnet: Option<File>,
}

impl DropCounters {
    /// Opens the counters of a path's interface, whose number tells that this is the one meant: `/sys` may belong to another network namespace.
    /// Without them (`false`) only what the stack loses is known.
    pub fn open(&mut self, path: u8, interface: &str, ifindex: Option<u32>) -> bool {
        let Some(nic) = self.nics.get_mut(usize::from(path)) else { return false };
        let dir = format!("/sys/class/net/{interface}");
        let index = std::fs::read_to_string(format!("{dir}/ifindex")).ok().and_then(|text| text.trim().parse().ok());
        *nic = if index.is_some() && index == ifindex {
            NIC.iter().filter_map(|counter| File::open(format!("{dir}/statistics/{counter}")).ok()).collect()
        } else {
            Vec::new()
        };
        !nic.is_empty()
    }

    /// Counts what the stack loses, too.
    pub fn through_stack(&mut self, through: bool) {
        if through != self.softnet.is_some() {
            self.softnet = through.then(|| File::open("/proc/net/softnet_stat").ok()).flatten();
        }
    }

    /// What this path has lost so far, `socket` being what receives on it, if one does. Smaller than before when an interface was exchanged.
    #[must_use]
    pub fn read(&self, path: u8, socket: Option<RawFd>) -> u64 {
        let mut buffer = [0; 4096];
        let mut sum = self.softnet.as_ref().map_or(0, |file| softnet(text(file, &mut buffer)));
        for file in self.nics.get(usize::from(path)).into_iter().flatten() {
            sum += text(file, &mut buffer).trim().parse::<u64>().unwrap_or(0);
        }
        sum + socket.map_or(0, |fd| u64::from(crate::sys::socket_drops(fd)))
    }
}

/// What a counter says now; nothing when its interface is gone.
fn text<'a>(file: &File, buffer: &'a mut [u8; 4096]) -> &'a str {
    let n = file.read_at(buffer, 0).unwrap_or(0);
    std::str::from_utf8(&buffer[..n]).unwrap_or("")
}

/// The second column, hexadecimal, of all processors. A last line that was cut short does not count.
fn softnet(text: &str) -> u64 {
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    lines.filter_map(|line| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    #[test]
    fn backlogs_are_added_up() {
        let two = "0000a1b2 00000003 00000000 0\n00000001 0000000a 00000000 0\n";
        assert_eq!(softnet(two), 13);
        assert_eq!(softnet(&two[..two.len() - 3]), 3, "half a line");
        assert_eq!(softnet("nonsense\n\n"), 0);
    }

    #[test]
    fn an_interface_is_the_one_that_is_meant_or_none() {
        let mut drops = DropCounters::default();
        assert!(!drops.open(0, "lo", Some(u32::MAX)), "another namespace's");
        assert!(!drops.open(0, "no-such-nic", None));
        assert!(!drops.open(9, "lo", Some(1)), "no such path");
        assert_eq!(drops.read(0, None), 0);
        let shown = std::fs::read_to_string("/sys/class/net/lo/ifindex").ok().and_then(|text| text.trim().parse().ok());
        assert_eq!(drops.open(0, "lo", shown), shown.is_some());
        assert_eq!(drops.read(0, None), 0, "loopback loses nothing in its ring");
    }

    #[test]
    fn a_socket_without_room_counts_what_it_lost() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let drops = DropCounters::default();
        assert_eq!(drops.read(0, Some(receiver.as_raw_fd())), 0);
        let to = receiver.local_addr().unwrap();
        let mut sent = 0;
        while drops.read(0, Some(receiver.as_raw_fd())) == 0 {
            sender.send_to(&[0; 1024], to).unwrap();
            sent += 1;
            assert!(sent < 1_000_000, "nothing was ever lost");
        }
        receiver.set_nonblocking(true).unwrap();
        let lost = drops.read(0, Some(receiver.as_raw_fd()));
        let mut got = 0;
        while receiver.recv(&mut [0; 1024]).is_ok() {
            got += 1;
        }
        assert_eq!(got + lost, sent, "what came and what was lost is what was sent");
    }
}
