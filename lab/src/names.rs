//! What everything is called, and its addresses: pure functions of the lab's name, the host and the network.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::spec::{MAX_HOSTS, check_name};

/// The networks of every lab.
pub const NETS: [u8; 2] = [0, 1];

/// The bridge inside a switch's namespace.
pub(crate) const BRIDGE: &str = "br0";

/// Host `3` is called `h3`; its port on either switch as well.
#[must_use]
pub fn host_name(host: u16) -> String {
    format!("h{host}")
}

/// The NIC that a host has on network `net`: `net0` or `net1`.
#[must_use]
pub fn nic_name(net: u8) -> String {
    format!("net{net}")
}

/// `10.77.<net>.<host>`, in a /24.
#[must_use]
pub fn host_ipv4(host: u16, net: u8) -> Ipv4Addr {
    let [high, low] = host.to_be_bytes();
    debug_assert_eq!(high, 0);
    Ipv4Addr::new(10, 77, net, low)
}

/// `fd77:0:0:<net>::<host>`, in a /64.
#[must_use]
pub fn host_ipv6(host: u16, net: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, 0, 0, u16::from(net), 0, 0, 0, host)
}

/// The NIC's hardware address: locally administered, the same in every run.
#[must_use]
pub fn host_mac(host: u16, net: u8) -> String {
    mac(0, net, host)
}

pub(crate) fn port_mac(host: u16, net: u8) -> String {
    mac(1, net, host)
}

pub(crate) fn bridge_mac(net: u8) -> String {
    mac(2, net, 0)
}

/// 02: locally administered, unicast. Then who it belongs to: 0 a host, 1 a switch port, 2 a bridge.
fn mac(kind: u8, net: u8, host: u16) -> String {
    let [high, low] = host.to_be_bytes();
    format!("02:fd:{kind:02x}:{net:02x}:{high:02x}:{low:02x}")
}

/// The queue that delays what the host sends (an ifb device in the switch's namespace).
pub(crate) fn queue_name(host: u16) -> String {
    format!("q{host}")
}

pub(crate) fn host_namespace(lab: &str, host: u16) -> String {
    format!("fide-{lab}-h{host}")
}

pub(crate) fn switch_namespace(lab: &str, net: u8) -> String {
    format!("fide-{lab}-s{net}")
}

/// Every namespace of a lab, switches first.
pub(crate) fn namespaces(lab: &str, hosts: u16) -> Vec<String> {
    let switches = NETS.iter().map(|&net| switch_namespace(lab, net));
    switches.chain((1..=hosts).map(|host| host_namespace(lab, host))).collect()
}

/// The lab that a namespace of this name would belong to, `None` for names that no lab gives.
pub(crate) fn lab_of_namespace(namespace: &str) -> Option<&str> {
    let (lab, last) = namespace.strip_prefix("fide-")?.rsplit_once('-')?;
    check_name(lab).ok()?;
    let known = matches!(last, "s0" | "s1") || parse_host(last).is_some_and(|host| host_name(host) == last);
    known.then_some(lab)
}

/// `h3` or `3` → 3. Leading zeros and signs are not numbers of hosts.
pub(crate) fn parse_host(text: &str) -> Option<u16> {
    let digits = text.strip_prefix('h').unwrap_or(text);
    let number: u16 = digits.parse().ok()?;
    (number.to_string() == digits && (1..=MAX_HOSTS).contains(&number)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_what_the_kernel_allows() {
        let longest = [host_name(MAX_HOSTS), nic_name(1), queue_name(MAX_HOSTS), BRIDGE.to_string()];
        assert!(longest.iter().all(|name| name.len() <= 15), "IFNAMSIZ leaves 15 characters: {longest:?}");
    }

    #[test]
    fn addresses_differ_between_hosts_and_networks() {
        assert_eq!(host_ipv4(64, 1), Ipv4Addr::new(10, 77, 1, 64));
        assert_eq!(host_ipv6(10, 0).to_string(), "fd77::a");
        assert_eq!(host_ipv6(1, 1).to_string(), "fd77:0:0:1::1");
        assert_eq!(host_mac(2, 1), "02:fd:00:01:00:02");
        assert_ne!(host_mac(2, 1), port_mac(2, 1));
    }

    #[test]
    fn only_names_that_a_lab_gives_are_taken_for_a_labs() {
        for namespace in namespaces("a-b-3f", MAX_HOSTS) {
            assert_eq!(lab_of_namespace(&namespace), Some("a-b-3f"));
        }
        for other in ["fide", "fide-x", "fide-x-h0", "fide-x-h65", "fide-x-s2", "fide-x-h01", "fide--h1", "fide-x-hh1", "web"] {
            assert_eq!(lab_of_namespace(other), None, "{other}");
        }
    }

    #[test]
    fn a_host_is_named_or_numbered() {
        assert_eq!(parse_host("h3"), Some(3));
        assert_eq!(parse_host("64"), Some(64));
        for wrong in ["", "h", "h0", "65", "+3", "h03", "x3"] {
            assert_eq!(parse_host(wrong), None, "{wrong}");
        }
    }
}
