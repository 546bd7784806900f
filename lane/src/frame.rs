//! Whole Ethernet frames for multicast, built once per path and patched per packet. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Ethernet and IPv4 and UDP, or Ethernet and IPv6 and UDP.
const HEAD_MAX: usize = 14 + 40 + 8;
/// EtherTypes.
pub(crate) const ETH_P_IP: u16 = 0x0800;
pub(crate) const ETH_P_IPV6: u16 = 0x86dd;

/// The MAC address of a multicast group (RFC 1112 §6.4, RFC 2464 §7).
#[must_use]
pub fn multicast_mac(group: IpAddr) -> [u8; 6] {
    match group {
        IpAddr::V4(g) => {
            let o = g.octets();
            [0x01, 0x00, 0x5e, o[1] & 0x7f, o[2], o[3]]
        }
        IpAddr::V6(g) => {
            let o = g.octets();
            [0x33, 0x33, o[12], o[13], o[14], o[15]]
        }
    }
}

/// One's complement sum (RFC 1071), not yet folded: sums of parts of even length may be added.
fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(4);
    let mut total: u64 = words.by_ref().map(|w| u64::from(u32::from_be_bytes([w[0], w[1], w[2], w[3]]))).sum();
    let mut last = [0u8; 4];
    let rest = words.remainder();
    last[..rest.len()].copy_from_slice(rest);
    total += u64::from(u32::from_be_bytes(last));
    total
}

fn fold(mut total: u64) -> u16 {
    while total >> 16 != 0 {
        total = (total & 0xffff) + (total >> 16);
    }
    !(total as u16)
}

/// The Internet checksum of a whole message whose checksum field is 0.
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    fold(sum(bytes))
}

/// What a frame is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addressing {
    pub(crate) mac: [u8; 6],
    pub(crate) source: IpAddr,
    pub(crate) group: IpAddr,
    pub(crate) port: u16,
    pub(crate) ttl: u8,
    pub(crate) dscp: u8,
}

/// All that goes before the payload.
pub(crate) struct Head {
    bytes: [u8; HEAD_MAX],
    ipv6: bool,
    /// Sum over the IPv4 header without its length; 0 for IPv6, which has no checksum of its own.
    ip_sum: u64,
    /// Sum over the pseudo-header and the UDP header without the two lengths.
    udp_sum: u64,
}

impl Head {
    /// `None` when source and group are of different families.
    pub(crate) fn new(a: &Addressing) -> Option<Self> {
        let mut bytes = [0u8; HEAD_MAX];
        bytes[0..6].copy_from_slice(&multicast_mac(a.group));
        bytes[6..12].copy_from_slice(&a.mac);
        let (ipv6, udp_at, pseudo) = match (a.source, a.group) {
            (IpAddr::V4(s), IpAddr::V4(g)) => {
                bytes[12..14].copy_from_slice(&ETH_P_IP.to_be_bytes());
                Self::write_ipv4(&mut bytes[14..34], s, g, a);
                (false, 34, sum(&s.octets()) + sum(&g.octets()))
            }
            (IpAddr::V6(s), IpAddr::V6(g)) => {
                bytes[12..14].copy_from_slice(&ETH_P_IPV6.to_be_bytes());
                Self::write_ipv6(&mut bytes[14..54], s, g, a);
                (true, 54, sum(&s.octets()) + sum(&g.octets()))
            }
            _ => return None,
        };
        bytes[udp_at..udp_at + 2].copy_from_slice(&a.port.to_be_bytes());
        bytes[udp_at + 2..udp_at + 4].copy_from_slice(&a.port.to_be_bytes());
        let ip_sum = if ipv6 { 0 } else { sum(&bytes[14..34]) };
        let udp_sum = pseudo + 17 + 2 * u64::from(a.port);
        Some(Self { bytes, ipv6, ip_sum, udp_sum })
    }

    fn write_ipv4(ip: &mut [u8], source: Ipv4Addr, group: Ipv4Addr, a: &Addressing) {
        ip[0] = 0x45;
        ip[1] = a.dscp << 2;
        ip[6] = 0x40; // don't fragment, and therefore an id of 0 will do (RFC 6864 §4.1)
        ip[8] = a.ttl;
        ip[9] = 17;
        ip[12..16].copy_from_slice(&source.octets());
        ip[16..20].copy_from_slice(&group.octets());
    }

    fn write_ipv6(ip: &mut [u8], source: Ipv6Addr, group: Ipv6Addr, a: &Addressing) {
        let class = a.dscp << 2;
        ip[0] = 0x60 | class >> 4;
        ip[1] = class << 4;
        ip[6] = 17;
        ip[7] = a.ttl;
        ip[8..24].copy_from_slice(&source.octets());
        ip[24..40].copy_from_slice(&group.octets());
    }

    /// The header for this payload, lengths and checksums filled in.
    ///
    /// The payload must fit an IP packet; the caller has compared it with the MTU.
    pub(crate) fn patch(&mut self, payload: &[u8]) -> &[u8] {
        let udp_len = (8 + payload.len()) as u16;
        let udp_at = if self.ipv6 {
            self.bytes[18..20].copy_from_slice(&udp_len.to_be_bytes());
            54
        } else {
            let total = udp_len + 20;
            self.bytes[16..18].copy_from_slice(&total.to_be_bytes());
            self.bytes[24..26].copy_from_slice(&fold(self.ip_sum + u64::from(total)).to_be_bytes());
            34
        };
        let check = match fold(self.udp_sum + 2 * u64::from(udp_len) + sum(payload)) {
            0 => 0xffff, // 0 means "none" (RFC 768)
            c => c,
        };
        self.bytes[udp_at + 4..udp_at + 6].copy_from_slice(&udp_len.to_be_bytes());
        self.bytes[udp_at + 6..udp_at + 8].copy_from_slice(&check.to_be_bytes());
        &self.bytes[..udp_at + 8]
    }

    pub(crate) fn ethertype(&self) -> u16 {
        if self.ipv6 { ETH_P_IPV6 } else { ETH_P_IP }
    }

    pub(crate) fn mac(&self) -> [u8; 6] {
        let mut mac = [0; 6];
        mac.copy_from_slice(&self.bytes[0..6]);
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addressing(v6: bool, port: u16) -> Addressing {
        let (source, group) = if v6 {
            ("fe80::1:2".parse().unwrap(), "ff15::f1de".parse().unwrap())
        } else {
            ("10.9.8.7".parse().unwrap(), "239.241.222.1".parse().unwrap())
        };
        Addressing { mac: [2, 0, 0, 0, 0, 9], source, group, port, ttl: 1, dscp: 46 }
    }

    /// RFC 1071 in its slowest form: 16-bit words, carry at once.
    fn naive(bytes: &[u8]) -> u16 {
        let mut s: u32 = 0;
        for w in bytes.chunks(2) {
            s += u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0));
            s = (s & 0xffff) + (s >> 16);
        }
        s as u16
    }

    #[test]
    fn groups_map_to_the_macs_of_the_rfcs() {
        assert_eq!(multicast_mac("239.129.2.3".parse().unwrap()), [1, 0, 0x5e, 1, 2, 3]);
        assert_eq!(multicast_mac("ff15::1:2:3".parse().unwrap()), [0x33, 0x33, 0, 2, 0, 3]);
    }

    #[test]
    fn families_do_not_mix() {
        let a = Addressing { source: "fe80::1".parse().unwrap(), ..addressing(false, 1) };
        assert!(Head::new(&a).is_none());
    }

    #[test]
    fn ttl_and_class_are_where_routers_look() {
        let mut h = Head::new(&addressing(false, 3433)).unwrap();
        let b = h.patch(b"x");
        assert_eq!((b[15] >> 2, b[22], b.len()), (46, 1, 42));
        let mut h = Head::new(&addressing(true, 3433)).unwrap();
        let b = h.patch(b"x");
        assert_eq!(((b[14] & 15) << 2 | b[15] >> 6, b[21], b.len()), (46, 1, 62));
    }

    proptest! {
        #[test]
        fn checksums_verify(v6: bool, port: u16, payload in proptest::collection::vec(any::<u8>(), 0..1500)) {
            let mut head = Head::new(&addressing(v6, port)).unwrap();
            head.patch(&[7; 33]); // what an earlier packet left behind must not matter
            let head = head.patch(&payload).to_vec();
            let (ip, udp) = head[14..].split_at(if v6 { 40 } else { 20 });
            if !v6 {
                prop_assert_eq!(naive(ip), 0xffff);
            }
            let mut all = if v6 { ip[8..40].to_vec() } else { ip[12..20].to_vec() };
            all.extend_from_slice(&[0, 17]);
            all.extend_from_slice(&udp[4..6]);
            all.extend_from_slice(udp);
            all.extend_from_slice(&payload);
            prop_assert_eq!(naive(&all), 0xffff);
            prop_assert_ne!(&udp[6..8], &[0, 0][..]);
        }
    }
}
