//! The next hops of an interface, as the kernel shows its routes: who may answer for a barrier when
//! no other host does.

use fide_proto::node::probing::ANSWERERS;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// So much of the kernel's routes is read.
const ROUTES_MAX: u64 = 1 << 20;

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
