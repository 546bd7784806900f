//! Whom to ask for a barrier when no other host of the cluster is left to answer (SafeTimer §4.1: it is sent "through the NIC to oneself").
//!
//! Whatever answers echo requests on a path's network will do: a router, the address of a switch, a storage. They are no hosts of the cluster, nothing is
//! concluded from their silence, and they are asked only while nobody else can be. The last resort needs nobody: where both paths are on one network,
//! a packet from one of this host's interfaces to the other.
//!
//! [`Answerers`] is pure; [`gateways`] reads what the kernel shows of its routes.

use fide_wire::PATHS;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Most for each path.
pub const ANSWERERS: usize = 8;
/// Who has not answered for so long is not counted on: three times what is asked for to know it.
const FRESH_NS: u64 = 30_000_000_000;
/// So much of the kernel's routes is read.
const ROUTES_MAX: u64 = 1 << 20;
/// From here on they stand for nodes in questions and answers. No host has such a one ([`is_reserved`]).
const FIRST: u32 = u32::MAX - ANSWERERS as u32;
/// This host itself, from its other interface.
pub const ITSELF: u32 = FIRST;

/// Whether a name that hashes to this cannot be a host's: one in 500 million.
#[must_use]
pub const fn is_reserved(node: u32) -> bool {
    node >= FIRST
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answerer {
    /// What it is called in questions.
    pub node: u32,
    /// Its address.
    pub address: IpAddr,
    answered_ns: u64,
}

impl Answerer {
    /// Whether it answered lately.
    #[must_use]
    pub fn answers(&self, now: u64) -> bool {
        self.answered_ns != 0 && now.saturating_sub(self.answered_ns) <= FRESH_NS
    }
}

/// All, by path.
#[derive(Debug, Default)]
pub struct Answerers {
    of: [Vec<Answerer>; PATHS],
}

impl Answerers {
    /// These are the ones of a path, and no others. Whether anything changed.
    pub fn set(&mut self, path: usize, addresses: &[IpAddr]) -> bool {
        let Some(of) = self.of.get_mut(path) else { return false };
        let known = |address: &IpAddr| of.iter().find(|a| a.address == *address).map_or(0, |a| a.answered_ns);
        let next = |(i, address): (usize, &IpAddr)| Answerer {
            node: FIRST + 1 + i as u32,
            address: *address,
            answered_ns: known(address),
        };
        let new: Vec<Answerer> = addresses.iter().take(ANSWERERS).enumerate().map(next).collect();
        let changed = !new.iter().map(|a| a.address).eq(of.iter().map(|a| a.address));
        *of = new;
        changed
    }

    /// Those of a path.
    #[must_use]
    pub fn of(&self, path: usize) -> &[Answerer] {
        self.of.get(path).map_or(&[], Vec::as_slice)
    }

    /// Whom to ask: two who answered lately, or all if nobody did.
    #[must_use]
    pub fn to_ask(&self, path: usize, now: u64) -> Vec<Answerer> {
        let fresh: Vec<Answerer> = self.of(path).iter().filter(|a| a.answers(now)).take(2).copied().collect();
        if fresh.is_empty() { self.of(path).to_vec() } else { fresh }
    }

    /// Where one is asked.
    #[must_use]
    pub fn address(&self, node: u32, path: usize) -> Option<IpAddr> {
        self.of(path).iter().find(|a| a.node == node).map(|a| a.address)
    }

    /// An answer came. `false`: not from one of them.
    pub fn answered(&mut self, node: u32, path: usize, now: u64) -> bool {
        let found = self.of.get_mut(path).and_then(|of| of.iter_mut().find(|a| a.node == node));
        found.map(|a| a.answered_ns = now).is_some()
    }
}

/// The next hops of an interface, as routes name them: those of the default routes first.
#[must_use]
pub fn gateways(interface: &str) -> Vec<IpAddr> {
    // This thread's, for the network namespace may be its own.
    let read = |file: &str| {
        let mut text = Vec::new();
        // A router's table has hundreds of thousands; the default routes are among the first.
        let open = std::fs::File::open(format!("/proc/thread-self/net/{file}"));
        let _ = open.and_then(|file| file.take(ROUTES_MAX).read_to_end(&mut text)); // what there is: nobody is as good
        String::from_utf8_lossy(&text).into_owned()
    };
    let mut all = parse(&read("route"), interface, of_ipv4);
    all.extend(parse(&read("ipv6_route"), interface, of_ipv6));
    all.sort_by_key(|(is_default, _)| !is_default);
    let mut found: Vec<IpAddr> = Vec::new();
    for (_, address) in all {
        if !found.contains(&address) {
            found.push(address);
        }
    }
    found.truncate(ANSWERERS);
    found
}

/// A route of this interface: whether it is the default one, and its gateway.
type Route = (bool, IpAddr);

fn parse(text: &str, interface: &str, of: fn(&[&str], &str) -> Option<Route>) -> Vec<Route> {
    let words = |line: &'_ str| line.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let lines = text.lines().map(words);
    let route = |words: Vec<String>| of(&words.iter().map(String::as_str).collect::<Vec<_>>(), interface);
    lines.filter_map(route).filter(|(_, a)| !a.is_unspecified() && !a.is_multicast() && !a.is_loopback()).collect()
}

/// RTF_UP and RTF_GATEWAY
const BY_GATEWAY: u32 = 3;

/// `Iface Destination Gateway Flags …`, addresses as words of this machine's order.
fn of_ipv4(words: &[&str], interface: &str) -> Option<Route> {
    let [name, destination, gateway, flags, ..] = words else { return None };
    let hex = |word: &str| u32::from_str_radix(word, 16).ok();
    if *name != interface || hex(flags)? & BY_GATEWAY != BY_GATEWAY {
        return None;
    }
    Some((hex(destination)? == 0, Ipv4Addr::from(hex(gateway)?.to_ne_bytes()).into()))
}

/// `destination length source length next-hop metric references uses flags interface`
fn of_ipv6(words: &[&str], interface: &str) -> Option<Route> {
    let [_, length, _, _, gateway, _, _, _, flags, name] = words else { return None };
    let flags = u32::from_str_radix(flags, 16).ok()?;
    if *name != interface || flags & BY_GATEWAY != BY_GATEWAY || gateway.len() != 32 {
        return None;
    }
    let address = u128::from_str_radix(gateway, 16).ok()?;
    Some((*length == "00", Ipv6Addr::from(address).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn who_answered_stays_known_when_others_come_and_go() {
        let mut all = Answerers::default();
        assert!(all.set(1, &[ip("10.0.0.1"), ip("10.0.0.2")]));
        assert!(!all.set(1, &[ip("10.0.0.1"), ip("10.0.0.2")]));
        let second = all.of(1)[1];
        assert_eq!(all.address(second.node, 1), Some(ip("10.0.0.2")));
        assert_eq!(all.address(second.node, 0), None, "of its own path only");
        assert!(!all.answered(second.node, 0, 5) && !all.answered(ITSELF, 1, 5) && !all.answered(7, 1, 5));
        assert!(all.answered(second.node, 1, 5));
        assert!(all.set(1, &[ip("10.0.0.2")]));
        assert!(all.of(1)[0].answers(5 + FRESH_NS) && !all.of(1)[0].answers(6 + FRESH_NS));
        assert_eq!(all.to_ask(1, 6), all.of(1));
        assert!(all.set(1, &[ip("10.0.0.1"), ip("10.0.0.2"), ip("10.0.0.3")]));
        assert_eq!(all.to_ask(1, 6), [all.of(1)[1]], "who is known to answer");
        assert_eq!(all.to_ask(1, 6 + FRESH_NS), all.of(1), "nobody is");
        let many: Vec<IpAddr> = (0..20).map(|n| IpAddr::from([10, 0, 1, n])).collect();
        assert!(all.set(1, &many));
        assert!(
            all.of(1).len() == ANSWERERS && all.of(1).iter().all(|a| a.node != ITSELF && is_reserved(a.node) && !a.answers(7))
        );
        assert!(!all.set(PATHS, &many));
    }

    #[test]
    fn routes_are_read_as_the_kernel_writes_them() {
        let word = |a: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(a));
        let line = |interface: &str, to: [u8; 4], by: [u8; 4], flags: &str| {
            format!("{interface}\t{}\t{}\t{flags}\t0\t0\t0\t00000000\t0\t0\t0\n", word(to), word(by))
        };
        let text = "Iface\tDestination\tGateway\tFlags\n".to_owned()
            + &line("eth1", [10, 9, 0, 0], [10, 0, 0, 7], "0003")
            + &line("eth1", [0; 4], [10, 0, 0, 1], "0003")
            + &line("eth1", [10, 0, 0, 0], [0; 4], "0001")
            + &line("eth2", [0; 4], [10, 0, 1, 1], "0003")
            + "eth1\t0000\n\neth1 x y z\n";
        assert_eq!(parse(&text, "eth1", of_ipv4), [(false, ip("10.0.0.7")), (true, ip("10.0.0.1"))]);
        let zero = "0".repeat(32);
        let text = format!(
            "{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth1\n\
             fd770000000000000000000000000000 40 {zero} 00 {zero} 00000100 00000001 00000000 00000001     eth1\n\
             {zero} 00 {zero} 00 fd77 00000400 00000001 00000000 00000003 eth1\n"
        );
        assert_eq!(parse(&text, "eth1", of_ipv6), [(true, ip("fe80::1"))]);
        assert_eq!(parse(&text, "eth2", of_ipv6), []);
    }

    #[test]
    fn the_gateways_of_an_interface_are_found_the_default_one_first() {
        use crate::check::namespace;
        namespace::inside(|| {
            assert!(namespace::ip("link add v0 type veth peer name v1"));
            assert!(namespace::ip("link set v0 up") && namespace::ip("link set v1 up"));
            assert!(namespace::ip("addr add 10.0.0.2/24 dev v0"));
            assert!(namespace::ip("route add 10.9.0.0/16 via 10.0.0.7") && namespace::ip("route add default via 10.0.0.1"));
            assert_eq!(gateways("v0"), [ip("10.0.0.1"), ip("10.0.0.7")]);
            assert_eq!(gateways("v1"), [] as [IpAddr; 0]);
        });
    }
}
