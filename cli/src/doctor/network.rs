//! Interfaces: which would be used, on how many networks, how large a piggyback fits, whether multicast and ICMP work.
//!
//! Everything is asked through sockets and /proc, not /sys/class/net, which in a network namespace entered by setns still shows
//! another one's interfaces.

use super::files::Files;
use super::{Group, Item, State};
use fide_agent::config::{Config, default_group};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Interfaces that are hardly meant: of containers, virtual machines, tunnels.
const VIRTUAL: [&str; 10] = ["docker", "br-", "virbr", "veth", "cni", "flannel", "cali", "tun", "tap", "vnet"];

/// Drivers known to have XDP of their own.
pub const NATIVE: [&str; 27] = [
    "atlantic",
    "bnxt_en",
    "cpsw",
    "dpaa2-eth",
    "ena",
    "enetc",
    "fsl_dpa",
    "funeth",
    "gve",
    "hv_netvsc",
    "i40e",
    "ice",
    "igb",
    "igc",
    "ixgbe",
    "mana",
    "mlx4_en",
    "mlx5_core",
    "mvneta",
    "mvpp2",
    "nfp",
    "qede",
    "sfc",
    "stmmac",
    "tun",
    "veth",
    "virtio_net",
];

/// One interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nic {
    /// Its name.
    pub name: String,
    /// Its number; 0: there is no such interface.
    pub index: u32,
    /// IFF_… flags.
    pub flags: i32,
    /// Its MTU.
    pub mtu: usize,
    /// Its driver, if it says.
    pub driver: Option<String>,
    /// Its addresses with the lengths of their prefixes.
    pub addresses: Vec<(IpAddr, u32)>,
}

impl Nic {
    /// Something may leave this host by it.
    pub fn leads_out(&self) -> bool {
        self.has(libc::IFF_UP) && !self.has(libc::IFF_LOOPBACK)
    }

    fn has(&self, flag: i32) -> bool {
        self.flags & flag != 0
    }

    /// The networks it is on. Addresses that are valid on every link do not tell networks apart.
    fn networks(&self) -> BTreeSet<(IpAddr, u32)> {
        let local = |a: &IpAddr| matches!(a, IpAddr::V6(v6) if v6.segments()[0] & 0xffc0 == 0xfe80);
        self.addresses.iter().filter(|(a, _)| !local(a)).map(|&(a, len)| (masked(a, len), len)).collect()
    }
}

fn masked(address: IpAddr, length: u32) -> IpAddr {
    match address {
        IpAddr::V4(a) => IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() & u32::MAX.checked_shl(32 - length.min(32)).unwrap_or(0))),
        IpAddr::V6(a) => IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0))),
    }
}

/// The interfaces of this network namespace, by number.
pub fn interfaces() -> Vec<Nic> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs stores a list at the pointer, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
        return Vec::new();
    }
    let mut found: Vec<Nic> = Vec::new();
    let mut at = head;
    while !at.is_null() {
        // SAFETY: an element of the list, valid until freeifaddrs.
        let entry = unsafe { &*at };
        at = entry.ifa_next;
        // SAFETY: the name is a C string of the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        let nic = match found.iter_mut().position(|n| n.name == name) {
            Some(i) => &mut found[i],
            None => {
                found.push(Nic { flags: entry.ifa_flags.cast_signed(), name, ..Nic::default() });
                let last = found.len() - 1;
                &mut found[last]
            }
        };
        // SAFETY: address and mask are null or belong to the list.
        if let Some(address) = unsafe { ip(entry.ifa_addr) } {
            // SAFETY: as above.
            let mask = unsafe { ip(entry.ifa_netmask) };
            let length = match mask {
                Some(IpAddr::V4(m)) => m.to_bits().leading_ones(),
                Some(IpAddr::V6(m)) => m.to_bits().leading_ones(),
                None => 0,
            };
            nic.addresses.push((address, length));
        }
    }
    // SAFETY: the list came from getifaddrs and is freed once.
    unsafe { libc::freeifaddrs(head) };
    for nic in &mut found {
        let name = CString::new(nic.name.as_str()).unwrap_or_default();
        // SAFETY: a C string that lives through the call.
        nic.index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        nic.mtu = mtu(&nic.name).unwrap_or(0);
        nic.driver = driver(&nic.name).ok();
    }
    found.sort_by_key(|n| n.index);
    found
}

/// # Safety
/// Null, or a socket address that is as long as its family says.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, so at least the family is there.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says what it is.
            let a = unsafe { &*address.cast::<libc::sockaddr_in>() };
            Some(IpAddr::V4(Ipv4Addr::from_bits(u32::from_be(a.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says what it is.
            let a = unsafe { &*address.cast::<libc::sockaddr_in6>() };
            Some(IpAddr::V6(Ipv6Addr::from(a.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

/// An ioctl about an interface; `fill` puts in the argument.
fn ioctl(name: &str, request: libc::c_ulong, fill: impl FnOnce(&mut libc::ifreq)) -> io::Result<libc::ifreq> {
    // SAFETY: all-zero is a valid ifreq.
    let mut ifr: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= ifr.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in ifr.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    fill(&mut ifr);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    // SAFETY: the requests used here read and write one ifreq and what `fill` made it point to, which outlives the call.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), request as _, &raw mut ifr) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(ifr) }
}

fn mtu(name: &str) -> io::Result<usize> {
    let ifr = ioctl(name, libc::SIOCGIFMTU as _, |_| {})?;
    // SAFETY: SIOCGIFMTU filled this member.
    Ok(usize::try_from(unsafe { ifr.ifr_ifru.ifru_mtu }).unwrap_or(0))
}

/// The driver's name, by ETHTOOL_GDRVINFO.
fn driver(name: &str) -> io::Result<String> {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    const ETHTOOL_GDRVINFO: u32 = 3;
    /// `struct ethtool_drvinfo`: 196 bytes, the driver's name after the command.
    #[repr(C)]
    struct Info {
        command: u32,
        driver: [u8; 32],
        rest: [u8; 160],
    }
    const _: () = assert!(size_of::<Info>() == 196);
    let mut info = Info { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
    ioctl(name, SIOCETHTOOL, |ifr| ifr.ifr_ifru.ifru_data = (&raw mut info).cast())?;
    let text = CStr::from_bytes_until_nul(&info.driver).map(|c| c.to_string_lossy().into_owned());
    // `rest` is the kernel's to fill.
    let _ = info.rest;
    Ok(text.unwrap_or_default())
}

/// Those that would be used: the ones named, else those that look as if they were meant.
pub fn chosen(all: &[Nic], named: &[String]) -> Vec<Nic> {
    if !named.is_empty() {
        let missing = |name: &String| Nic { name: name.clone(), ..Nic::default() };
        return named.iter().map(|name| all.iter().find(|n| &n.name == name).cloned().unwrap_or_else(|| missing(name))).collect();
    }
    let meant = |n: &&Nic| {
        n.has(libc::IFF_UP)
            && !n.has(libc::IFF_LOOPBACK)
            && !n.has(libc::IFF_POINTOPOINT)
            && !n.addresses.is_empty()
            && !VIRTUAL.iter().any(|v| n.name.starts_with(v))
    };
    all.iter().filter(meant).cloned().collect()
}

/// Everything about the network. `all` are the interfaces there are, `used` those that would be used, as `config` says if there is one.
pub fn examine(files: &Files, all: &[Nic], used: &[Nic], config: Option<&Config>) -> Group {
    let mut items = vec![paths(used, all)];
    for (index, nic) in used.iter().enumerate() {
        if nic.index == 0 {
            continue;
        }
        items.push(link(nic).of(&nic.name));
        items.push(mtu_item(nic).of(&nic.name));
        items.push(multicast(nic, reach(nic, index, config)).of(&nic.name));
    }
    items.push(icmp(files.number("/proc/sys/net/ipv4/icmp_echo_ignore_all")));
    items.push(qdisc_bypass(try_qdisc_bypass().as_ref().err()));
    Group { title: "Network", items }
}

fn paths(used: &[Nic], all: &[Nic]) -> Item {
    let title = "two interfaces on two networks";
    let names = |nics: &[Nic]| nics.iter().map(|n| n.name.as_str()).collect::<Vec<_>>().join(", ");
    let advice = "give every host a second interface on another switch, and a [[path]] for each in the configuration";
    if let Some(absent) = used.iter().find(|n| n.index == 0) {
        let others: Vec<&str> = all.iter().map(|n| n.name.as_str()).collect();
        let hint = crate::suggest::hint("interfaces", &absent.name, &others).unwrap_or_default();
        return Item::worse(
            "paths",
            title,
            State::Missing,
            format!("there is no interface {}", absent.name),
            "the agent cannot use it",
            &hint,
        )
        .essential();
    }
    match used {
        [] => Item::worse("paths", title, State::Missing, "no usable interface", "nothing can be sent or received", advice)
            .essential(),
        [one] => Item::worse(
            "paths",
            title,
            State::Degraded,
            format!("only {}", one.name),
            "a cut cable or a dead switch cannot be told from a crashed host, and is reported as one",
            advice,
        ),
        [a, b, ..] => {
            let (of_a, of_b) = (a.networks(), b.networks());
            if !of_a.is_empty() && of_a.intersection(&of_b).next().is_some() {
                let found = format!("{} are on the same network", names(&used[..2]));
                let costs = "they may share a switch; when it fails, all hosts seem to have crashed";
                return Item::worse("paths", title, State::Degraded, found, costs, advice);
            }
            if used.len() > 2 {
                let found = format!("{} candidates: {}", used.len(), names(used));
                let costs = "the agent uses exactly two and will not choose by itself";
                return Item::worse("paths", title, State::Degraded, found, costs, "name two with [[path]] in the configuration");
            }
            let networks: Vec<String> = of_a.iter().chain(&of_b).map(|(a, l)| format!("{a}/{l}")).collect();
            Item::ok("paths", title, format!("{} ({})", names(used), networks.join(", ")))
        }
    }
}

fn link(nic: &Nic) -> Item {
    let title = "link of";
    match (nic.has(libc::IFF_UP), nic.has(libc::IFF_RUNNING)) {
        (true, true) => Item::ok("link", title, "up"),
        (true, false) => Item::worse(
            "link",
            title,
            State::Missing,
            "no carrier",
            "this path carries nothing",
            "see the cable and the switch's port",
        ),
        (false, _) => {
            let advice = format!("ip link set {} up", nic.name);
            Item::worse("link", title, State::Missing, "down", "this path carries nothing", &advice)
        }
    }
}

fn mtu_item(nic: &Nic) -> Item {
    let title = "MTU of";
    let v6 = !nic.addresses.is_empty() && nic.addresses.iter().all(|(a, _)| a.is_ipv6());
    let limit = fide_wire::packet::piggyback_max(nic.mtu, v6);
    let found = format!("{}: piggyback up to {limit} B on each heartbeat", nic.mtu);
    if limit >= fide_wire::packet::piggyback_max(1500, v6) {
        return Item::ok("mtu", title, found);
    }
    let costs = format!("{} B less than the usual {}", fide_wire::PIGGYBACK_MAX.saturating_sub(limit), fide_wire::PIGGYBACK_MAX);
    Item::worse("mtu", title, State::Degraded, found, &costs, "raise the MTU to 1500 or more on every host and switch")
}

/// How others are reached on a path: by this group, or one by one.
fn reach(nic: &Nic, index: usize, config: Option<&Config>) -> Option<IpAddr> {
    match config.and_then(|c| c.paths.iter().find(|p| p.interface == nic.name)) {
        Some(path) => path.group,
        None => Some(default_group(index.min(fide_wire::PATHS - 1), config.is_some_and(|c| c.ipv6))),
    }
}

fn multicast(nic: &Nic, group: Option<IpAddr>) -> Item {
    let title = "multicast on";
    let unicast = "list the other hosts with unicast = […] in its [[path]]";
    let Some(group) = group else {
        return Item::ok("multicast", title, "not used: the configuration lists the other hosts (unicast)");
    };
    if !nic.has(libc::IFF_MULTICAST) {
        return Item::worse(
            "multicast",
            title,
            State::Missing,
            "the interface has none",
            "each host must be sent to one by one",
            &format!("ip link set {} multicast on; where the network carries none, {unicast}", nic.name),
        );
    }
    match join(group, nic.index) {
        Ok(()) => {
            Item::ok("multicast", title, format!("{group} can be joined (IGMP, MLD); switches that look at it need a querier"))
        }
        // Without an IPv4 address on it a v4 group may be refused; v6 groups need none.
        Err(_) if group.is_ipv4() && !nic.addresses.is_empty() && nic.addresses.iter().all(|(a, _)| a.is_ipv6()) => {
            Item::ok("multicast", title, "IPv6 only: set ipv6 = true")
        }
        Err(e) => Item::worse(
            "multicast",
            title,
            State::Degraded,
            format!("{group} cannot be joined: {e}"),
            "nothing is received by multicast",
            unicast,
        ),
    }
}

/// Joins and, with the socket, leaves again.
fn join(group: IpAddr, index: u32) -> io::Result<()> {
    match group {
        IpAddr::V4(group) => {
            let request = libc::ip_mreqn {
                imr_multiaddr: libc::in_addr { s_addr: group.to_bits().to_be() },
                imr_address: libc::in_addr { s_addr: 0 },
                imr_ifindex: index.cast_signed(),
            };
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            set(&socket, libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, request)
        }
        IpAddr::V6(group) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?.join_multicast_v6(&group, index),
    }
}

fn set<T: Copy>(socket: &impl AsRawFd, level: i32, name: i32, value: T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: pointer and length describe `value`, which lives through the call.
    let rc = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn icmp(ignored: Option<i64>) -> Item {
    let title = "ICMP echo answered";
    match ignored {
        Some(0) => Item::ok("icmp", title, "yes (a firewall may still drop it)"),
        Some(_) => Item::worse(
            "icmp",
            title,
            State::Degraded,
            "net.ipv4.icmp_echo_ignore_all is set",
            "when only this host's agent is gone, others cannot tell that from a crash of the whole host",
            "sysctl net.ipv4.icmp_echo_ignore_all=0",
        ),
        None => Item::worse("icmp", title, State::Unknown, "the setting is not readable", "", ""),
    }
}

/// Opens a packet socket that receives nothing, and asks to be let past the queueing discipline.
fn try_qdisc_bypass() -> io::Result<()> {
    const PACKET_QDISC_BYPASS: i32 = 20;
    // SAFETY: no pointers; the descriptor is new and ours alone. Protocol 0: it receives nothing.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    set(&socket, libc::SOL_PACKET, PACKET_QDISC_BYPASS, 1i32)
}

fn qdisc_bypass(error: Option<&io::Error>) -> Item {
    let title = "sending past the queueing discipline (AF_PACKET)";
    match error {
        None => Item::ok("qdisc-bypass", title, "works"),
        Some(e) => Item::worse(
            "qdisc-bypass",
            title,
            State::Degraded,
            e.to_string(),
            "packets are sent by UDP sockets: some µs more each, and behind whatever else is queued on the interface",
            "run the agent as root or with CAP_NET_RAW",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(name: &str, address: &str, length: u32) -> Nic {
        Nic {
            name: name.into(),
            index: 2,
            flags: libc::IFF_UP | libc::IFF_RUNNING | libc::IFF_MULTICAST,
            mtu: 1500,
            driver: None,
            addresses: vec![(address.parse().unwrap(), length)],
        }
    }

    #[test]
    fn two_interfaces_on_one_network_are_not_two_paths() {
        let (a, b, c) = (nic("a", "10.0.1.5", 24), nic("b", "10.0.2.5", 24), nic("c", "10.0.1.6", 24));
        assert_eq!(paths(&[a.clone(), b.clone()], &[]).state, State::Ok);
        assert_eq!(paths(&[a.clone(), c.clone()], &[]).state, State::Degraded);
        assert_eq!(paths(std::slice::from_ref(&a), &[]).state, State::Degraded);
        assert_eq!(paths(&[a.clone(), b.clone(), nic("d", "10.0.3.1", 24)], &[]).state, State::Degraded);
        assert!(paths(&[], &[]).essential);
        // The same link-local network is on every link.
        let (v, w) = (nic("v", "fe80::1", 64), nic("w", "fe80::2", 64));
        assert_eq!(paths(&[v, w], &[]).state, State::Ok);
    }

    #[test]
    fn an_interface_that_is_not_there_is_named_with_its_likely_spelling() {
        let all = [nic("eth0", "10.0.1.5", 24), nic("eth1", "10.0.2.5", 24)];
        let used = chosen(&all, &["eth0".into(), "eht1".into()]);
        let item = paths(&used, &all);
        assert!(item.state == State::Missing && item.essential);
        assert!(item.advice.unwrap().contains("eth1"));
    }

    #[test]
    fn containers_and_loopback_are_not_chosen() {
        let lo = Nic { flags: libc::IFF_UP | libc::IFF_LOOPBACK, ..nic("lo", "127.0.0.1", 8) };
        let down = Nic { flags: 0, ..nic("eth9", "10.9.0.1", 24) };
        let all = [lo, nic("docker0", "172.17.0.1", 16), nic("eth0", "10.0.1.5", 24), down];
        assert_eq!(chosen(&all, &[]).iter().map(|n| n.name.as_str()).collect::<Vec<_>>(), ["eth0"]);
    }

    #[test]
    fn f8_a_small_mtu_says_what_still_fits() {
        assert_eq!(mtu_item(&nic("a", "10.0.1.5", 24)).state, State::Ok);
        let item = mtu_item(&Nic { mtu: 1280, ..nic("a", "10.0.1.5", 24) });
        assert!(item.state == State::Degraded && item.found.contains("1199 B"), "{item:?}");
    }

    #[test]
    fn prefixes_of_any_length_are_cut_off() {
        let cut = |a: &str, l| masked(a.parse().unwrap(), l).to_string();
        assert_eq!(cut("10.1.2.3", 0), "0.0.0.0");
        assert_eq!(cut("10.1.2.3", 32), "10.1.2.3");
        assert_eq!(cut("fd77::5", 64), "fd77::");
        assert_eq!(cut("fd77::5", 0), "::");
    }

    #[test]
    fn each_path_is_tried_with_its_own_group() {
        let config = |lines: &str| Config::parse(&format!("node = \"a\"\n{lines}")).unwrap();
        let (a, b) = (nic("a", "10.0.1.5", 24), nic("b", "10.0.2.5", 24));
        let group = |nic: &Nic, index, config: Option<&Config>| reach(nic, index, config).map(|g| g.to_string());
        assert_eq!(group(&a, 0, None).as_deref(), Some("239.255.70.1"));
        assert_eq!(group(&b, 1, None).as_deref(), Some("239.255.70.2"));
        let c =
            config("[[path]]\ninterface = \"b\"\ngroup = \"239.1.2.3\"\n[[path]]\ninterface = \"a\"\nunicast = [\"10.0.1.6\"]\n");
        assert_eq!(group(&b, 1, Some(&c)).as_deref(), Some("239.1.2.3"));
        assert_eq!(group(&a, 0, Some(&c)), None);
        assert!(multicast(&a, None).found.contains("not used"));
        let c = config("ipv6 = true\n[[path]]\ninterface = \"a\"\n[[path]]\ninterface = \"b\"\n");
        assert_eq!(group(&b, 0, Some(&c)).as_deref(), Some("ff12::f1de:2"));
        // The first remedy is the one that costs least, and can be pasted.
        let without = Nic { flags: libc::IFF_UP, ..a };
        let advice = multicast(&without, default_group(0, false).into()).advice.unwrap();
        assert!(advice.starts_with("ip link set a multicast on;"), "{advice}");
    }

    #[test]
    fn this_host_has_a_loopback() {
        let all = interfaces();
        let lo = all.iter().find(|n| n.name == "lo").unwrap();
        assert!(lo.index > 0 && lo.mtu > 0 && lo.has(libc::IFF_LOOPBACK));
    }
}
