//! The system calls of this crate, wrapped so that the rest of it is safe code.
//!
//! Nothing here decides anything: a function is one call (or one walk over what a call returned), its error is the kernel's.

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// An address as the kernel wants it.
#[derive(Clone, Copy)]
pub(crate) struct SockAddr {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl SockAddr {
    fn of<T: Copy>(value: T) -> Self {
        const { assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>()) };
        // SAFETY: sockaddr_storage is plain old data, for which zero is a value.
        let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
        // SAFETY: `T` is a plain C structure that fits (asserted above) and the storage is aligned for every sockaddr type.
        unsafe { std::ptr::write((&raw mut storage).cast::<T>(), value) };
        Self { storage, len: size_of::<T>() as libc::socklen_t }
    }

    /// An Internet address; `scope` is the interface of a link-local IPv6 address and ignored elsewhere.
    pub(crate) fn ip(addr: IpAddr, port: u16, scope: u32) -> Self {
        match addr {
            IpAddr::V4(a) => Self::of(libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: port.to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.octets()) },
                sin_zero: [0; 8],
            }),
            IpAddr::V6(a) => Self::of(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: port.to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: a.octets() },
                sin6_scope_id: if needs_scope(a) { scope } else { 0 },
            }),
        }
    }

    /// A link-layer address: frames of `ethertype` leave by interface `ifindex` for `mac`.
    pub(crate) fn link(ifindex: u32, ethertype: u16, mac: [u8; 6]) -> Self {
        Self::of(libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: ethertype.to_be(),
            sll_ifindex: ifindex as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 6,
            sll_addr: [mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], 0, 0],
        })
    }

    fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    /// The Internet address in it, if it is one.
    pub(crate) fn ip_addr(&self) -> Option<IpAddr> {
        ip_of(self.as_ptr(), self.len as usize)
    }
}

fn needs_scope(a: Ipv6Addr) -> bool {
    let s = a.segments();
    s[0] & 0xffc0 == 0xfe80 || (s[0] >> 8 == 0xff && matches!(s[0] & 15, 1 | 2))
}

/// The Internet address behind a C pointer of which `len` bytes are valid.
fn ip_of(ptr: *const libc::sockaddr, len: usize) -> Option<IpAddr> {
    if ptr.is_null() || len < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: at least the family is valid (checked above); unaligned reads, because C gives no promise here.
    let family = i32::from(unsafe { std::ptr::addr_of!((*ptr).sa_family).read_unaligned() });
    if family == libc::AF_INET && len >= size_of::<libc::sockaddr_in>() {
        // SAFETY: family and length say that a sockaddr_in is there.
        let sin = unsafe { ptr.cast::<libc::sockaddr_in>().read_unaligned() };
        return Some(IpAddr::V4(Ipv4Addr::from(sin.sin_addr.s_addr.to_ne_bytes())));
    }
    if family == libc::AF_INET6 && len >= size_of::<libc::sockaddr_in6>() {
        // SAFETY: family and length say that a sockaddr_in6 is there.
        let sin6 = unsafe { ptr.cast::<libc::sockaddr_in6>().read_unaligned() };
        return Some(IpAddr::V6(Ipv6Addr::from(sin6.sin6_addr.s6_addr)));
    }
    None
}

fn check(ret: i32) -> io::Result<i32> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// A non-blocking socket, closed on exec.
pub(crate) fn socket(domain: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the descriptor returned is new and ours alone.
    unsafe {
        let fd = check(libc::socket(domain, kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, protocol))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// The same under a high number. The kernel closes the highest descriptors of a killed process
/// first; those of receive programs and packet sockets take it some 10 ms each.
pub(crate) fn raised(fd: OwnedFd) -> OwnedFd {
    /// Below the limit that most processes have (1024).
    const FROM: i32 = 1000;
    // SAFETY: an open descriptor.
    match check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FROM) }) {
        // SAFETY: it is new and ours alone.
        Ok(raised) => unsafe { OwnedFd::from_raw_fd(raised) },
        Err(_) => fd, // a lower limit
    }
}

/// Sets a socket option of any plain C type.
pub(crate) fn set<T: Copy>(fd: &OwnedFd, level: i32, name: i32, value: T) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`, which lives until the call returns.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), size_of::<T>() as libc::socklen_t) })
        .map(drop)
}

/// Binds to an interface by name: only its packets are received, and sent by it alone.
pub(crate) fn bind_to_device(fd: &OwnedFd, interface: &str) -> io::Result<()> {
    // SAFETY: pointer and length describe the name's bytes; the kernel needs no terminator.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            interface.as_ptr().cast(),
            interface.len() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Joins the multicast group on the interface.
pub(crate) fn join(fd: &OwnedFd, group: IpAddr, ifindex: u32) -> io::Result<()> {
    let level = if group.is_ipv6() { libc::IPPROTO_IPV6 } else { libc::IPPROTO_IP };
    let request = libc::group_req { gr_interface: ifindex, gr_group: SockAddr::ip(group, 0, ifindex).storage };
    set(fd, level, libc::MCAST_JOIN_GROUP, request)
}

/// Leaves it.
pub(crate) fn leave(fd: &OwnedFd, group: IpAddr, ifindex: u32) -> io::Result<()> {
    let level = if group.is_ipv6() { libc::IPPROTO_IPV6 } else { libc::IPPROTO_IP };
    let request = libc::group_req { gr_interface: ifindex, gr_group: SockAddr::ip(group, 0, ifindex).storage };
    set(fd, level, libc::MCAST_LEAVE_GROUP, request)
}

/// Multicast leaves by this interface.
pub(crate) fn multicast_interface(fd: &OwnedFd, ipv6: bool, ifindex: u32, source: IpAddr) -> io::Result<()> {
    if ipv6 {
        return set(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, ifindex as i32);
    }
    let local = match source {
        IpAddr::V4(a) => u32::from_ne_bytes(a.octets()),
        IpAddr::V6(_) => 0,
    };
    let request = libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: 0 },
        imr_address: libc::in_addr { s_addr: local },
        imr_ifindex: ifindex as i32,
    };
    set(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, request)
}

/// Makes the kernel throw away all that arrives on a socket nobody reads.
pub(crate) fn deafen(fd: &OwnedFd) -> io::Result<()> {
    let mut nothing = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 }; // BPF_RET | BPF_K: keep 0 bytes
    let program = libc::sock_fprog { len: 1, filter: &raw mut nothing };
    set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

/// Lets a raw ICMP socket have echo replies alone that carry this identifier and begin with these bytes; it is shown the IP header only of IPv4.
pub(crate) fn only_answers(fd: &OwnedFd, ipv6: bool, id: u16, magic: u32) -> io::Result<()> {
    // BPF_LDX | BPF_B | BPF_MSH: the length of the IP header; BPF_LDX | BPF_IMM; BPF_LD | BPF_H or BPF_W | BPF_IND; BPF_JMP | BPF_JEQ | BPF_K; BPF_RET | BPF_K.
    let at = |code: u16, jt: u8, jf: u8, k: u32| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        if ipv6 { at(0x01, 0, 0, 0) } else { at(0xb1, 0, 0, 0) },
        at(0x48, 0, 0, 4),
        at(0x15, 0, 3, id.into()),
        at(0x40, 0, 0, 8),
        at(0x15, 0, 1, magic),
        at(0x06, 0, 0, u32::MAX),
        at(0x06, 0, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

/// Puts a BPF program on a socket, in the place of the filter that it has.
pub(crate) fn attach_program(fd: &OwnedFd, program: &OwnedFd) -> io::Result<()> {
    set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, program.as_raw_fd())
}

/// Undoes [`deafen`].
pub(crate) fn undeafen(fd: &OwnedFd) -> io::Result<()> {
    set(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0i32)
}

/// bind(2).
pub(crate) fn bind(fd: &OwnedFd, addr: &SockAddr) -> io::Result<()> {
    // SAFETY: pointer and length describe the address.
    check(unsafe { libc::bind(fd.as_raw_fd(), addr.as_ptr(), addr.len) }).map(drop)
}

/// connect(2).
pub(crate) fn connect(fd: &OwnedFd, addr: &SockAddr) -> io::Result<()> {
    // SAFETY: pointer and length describe the address.
    check(unsafe { libc::connect(fd.as_raw_fd(), addr.as_ptr(), addr.len) }).map(drop)
}

/// sendto(2), not blocking; to the connected peer where `to` is absent.
pub(crate) fn send_to(fd: &OwnedFd, bytes: &[u8], to: Option<&SockAddr>) -> io::Result<usize> {
    let (addr, len) = to.map_or((std::ptr::null(), 0), |a| (a.as_ptr(), a.len));
    // SAFETY: pointers and lengths describe `bytes` and the address (or none).
    let n = unsafe {
        libc::sendto(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL, addr, len)
    };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// SIOCOUTQ: bytes of memory (not of payload) of this socket's packets that the kernel or its driver has not freed yet.
pub(crate) fn unsent(fd: &OwnedFd) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) })?;
    Ok(bytes.max(0) as u32)
}

/// One message of a [`send_many`]: head and payload are sent as one packet.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) to: &'a SockAddr,
    pub(crate) head: &'a [u8],
    pub(crate) payload: &'a [u8],
}

/// Most messages that one system call of [`send_many`] takes.
pub(crate) const BATCH: usize = 32;

/// Packets that a socket had no room for (SO_MEMINFO, SK_MEMINFO_DROPS); 0 where the kernel does not say.
pub(crate) fn socket_drops(fd: RawFd) -> u32 {
    const SK_MEMINFO_DROPS: usize = 8;
    let mut info = [0u32; SK_MEMINFO_DROPS + 1];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: room for `len` bytes, and the length, which both live through the call.
    let r = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, info.as_mut_ptr().cast(), &raw mut len) };
    if r == 0 { info[SK_MEMINFO_DROPS] } else { 0 }
}

/// sendmmsg(2), not blocking, no allocation: how many of the first [`BATCH`] messages went out. An error concerns the first.
pub(crate) fn send_many(fd: &OwnedFd, messages: &[Message<'_>]) -> io::Result<usize> {
    let n = messages.len().min(BATCH);
    let mut parts: [MaybeUninit<[libc::iovec; 2]>; BATCH] = [const { MaybeUninit::uninit() }; BATCH];
    let mut headers: [MaybeUninit<libc::mmsghdr>; BATCH] = [const { MaybeUninit::uninit() }; BATCH];
    for (i, m) in messages[..n].iter().enumerate() {
        let io = |b: &[u8]| libc::iovec { iov_base: b.as_ptr().cast_mut().cast(), iov_len: b.len() };
        let iov = parts[i].write([io(m.head), io(m.payload)]);
        // SAFETY: mmsghdr is plain old data, for which zero is a value.
        let header = headers[i].write(unsafe { zeroed() });
        header.msg_hdr.msg_name = m.to.as_ptr().cast_mut().cast();
        header.msg_hdr.msg_namelen = m.to.len;
        header.msg_hdr.msg_iov = iov.as_mut_ptr();
        header.msg_hdr.msg_iovlen = 2;
    }
    // SAFETY: the first `n` headers were written above; all they point to (parts, addresses, bytes) outlives the call, and a
    // sending call writes to none of it.
    let sent = unsafe {
        libc::sendmmsg(fd.as_raw_fd(), headers.as_mut_ptr().cast(), n as u32, (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _)
    };
    #[cfg(test)]
    SEND_CALLS.with(|n| n.set(n.get() + 1));
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

#[cfg(test)]
thread_local! {
    /// How often this thread called sendmmsg.
    pub(crate) static SEND_CALLS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// What [`receive`] found beside the bytes.
#[derive(Default)]
pub(crate) struct Arrival {
    /// The packet's length, which may exceed the buffer.
    pub(crate) len: usize,
    /// Where from.
    pub(crate) from: Option<IpAddr>,
    /// It was sent to a multicast group. Known where the socket asks for it.
    pub(crate) by_group: bool,
    /// The kernel's CLOCK_REALTIME stamp, nanoseconds.
    pub(crate) stamp_ns: Option<u64>,
    /// From the error queue: (origin, type, code, who said so).
    pub(crate) error: Option<(u8, u8, u8, Option<IpAddr>)>,
}

/// recvmsg(2), not blocking, with stamps; `errors` reads the error queue instead.
pub(crate) fn receive(fd: &OwnedFd, buf: &mut [u8], errors: bool) -> io::Result<Arrival> {
    #[repr(C, align(8))]
    struct Control([u8; 512]);
    let mut control = Control([0; 512]);
    // SAFETY: sockaddr_storage is plain old data, for which zero is a value.
    let mut from = SockAddr { storage: unsafe { zeroed() }, len: 0 };
    let mut part = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: msghdr is plain old data, for which zero is a value.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_name = (&raw mut from.storage).cast();
    header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of::<Control>() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC | if errors { libc::MSG_ERRQUEUE } else { 0 };
    // SAFETY: every pointer in `header` is to a live local (or `buf`) of the length given beside it.
    let n = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, flags) };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    from.len = header.msg_namelen;
    let mut arrival = Arrival { len: n as usize, from: from.ip_addr(), ..Arrival::default() };
    // SAFETY: `header` and the control buffer behind it are as recvmsg left them; the macros stay within msg_controllen, and
    // each payload is read only when cmsg_len says that it is all there.
    unsafe {
        let mut c = libc::CMSG_FIRSTHDR(&raw const header);
        while !c.is_null() {
            let data = libc::CMSG_DATA(c);
            let len = ((*c).cmsg_len as usize).saturating_sub(data as usize - c as usize);
            match ((*c).cmsg_level, (*c).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) if len >= size_of::<libc::timespec>() => {
                    arrival.stamp_ns = Some(nanoseconds(data.cast::<libc::timespec>().read_unaligned()));
                }
                (libc::IPPROTO_IP, libc::IP_PKTINFO) if len >= size_of::<libc::in_pktinfo>() => {
                    let to = data.cast::<libc::in_pktinfo>().read_unaligned().ipi_addr;
                    arrival.by_group = Ipv4Addr::from(u32::from_be(to.s_addr)).is_multicast();
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if len >= size_of::<libc::in6_pktinfo>() => {
                    let to = data.cast::<libc::in6_pktinfo>().read_unaligned().ipi6_addr;
                    arrival.by_group = Ipv6Addr::from(to.s6_addr).is_multicast();
                }
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
                    if len >= size_of::<libc::sock_extended_err>() =>
                {
                    let e = data.cast::<libc::sock_extended_err>();
                    let offender = ip_of(e.add(1).cast(), len - size_of::<libc::sock_extended_err>());
                    let e = e.read_unaligned();
                    arrival.error = Some((e.ee_origin, e.ee_type, e.ee_code, offender));
                }
                _ => {}
            }
            c = libc::CMSG_NXTHDR(&raw const header, c);
        }
    }
    Ok(arrival)
}

fn nanoseconds(t: libc::timespec) -> u64 {
    (t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec as u64)
}

/// A clock's reading in nanoseconds.
pub(crate) fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is writable; the clocks used here always exist.
    unsafe { libc::clock_gettime(clock, &raw mut t) };
    nanoseconds(t)
}

/// CLOCK_MONOTONIC in nanoseconds.
#[must_use]
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Fills with the kernel's randomness.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0u8; N];
    // SAFETY: pointer and length describe `bytes`.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if n == N as isize { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}

fn ifreq(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: ifreq is plain old data, for which zero is a value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// What the kernel says of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) ifindex: u32,
    pub(crate) mac: [u8; 6],
    /// ARPHRD_ETHER is 1.
    pub(crate) hardware: u16,
    pub(crate) mtu: usize,
}

fn interface_ioctl(request: libc::c_ulong, ifr: &mut libc::ifreq) -> io::Result<()> {
    let fd = socket(libc::AF_INET, libc::SOCK_DGRAM, 0).or_else(|_| socket(libc::AF_INET6, libc::SOCK_DGRAM, 0))?;
    ioctl_on(&fd, request, ifr)
}

fn ioctl_on(fd: &OwnedFd, request: libc::c_ulong, ifr: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the requests used here read and write one ifreq.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, &raw mut *ifr) }).map(drop)
}

/// Index, MAC and MTU of an interface in this thread's network namespace.
pub(crate) fn link(name: &str) -> io::Result<Link> {
    let mut r = ifreq(name)?;
    interface_ioctl(libc::SIOCGIFINDEX as _, &mut r)?;
    // SAFETY: SIOCGIFINDEX filled this member.
    let ifindex = unsafe { r.ifr_ifru.ifru_ifindex } as u32;
    interface_ioctl(libc::SIOCGIFHWADDR as _, &mut r)?;
    // SAFETY: SIOCGIFHWADDR filled this member.
    let hw = unsafe { r.ifr_ifru.ifru_hwaddr };
    interface_ioctl(libc::SIOCGIFMTU as _, &mut r)?;
    // SAFETY: SIOCGIFMTU filled this member.
    let mtu = unsafe { r.ifr_ifru.ifru_mtu };
    let mut mac = [0u8; 6];
    for (to, from) in mac.iter_mut().zip(hw.sa_data) {
        *to = from as u8;
    }
    Ok(Link { ifindex, mac, hardware: hw.sa_family, mtu: mtu.max(0) as usize })
}

/// Whether the interface is up and has its carrier. `by`: any socket of its network namespace; this is looked at while a verdict waits, and to make
/// a socket for it takes longer than the rest.
pub(crate) fn running(name: &str, by: Option<&OwnedFd>) -> io::Result<bool> {
    let mut r = ifreq(name)?;
    match by {
        Some(fd) => ioctl_on(fd, libc::SIOCGIFFLAGS as _, &mut r)?,
        None => interface_ioctl(libc::SIOCGIFFLAGS as _, &mut r)?,
    }
    // SAFETY: SIOCGIFFLAGS filled this member.
    let flags = i32::from(unsafe { r.ifr_ifru.ifru_flags });
    Ok(flags & libc::IFF_UP != 0 && flags & libc::IFF_RUNNING != 0)
}

/// How long a NIC may wait before it interrupts for what it received: microseconds, frames, and whether it adapts that.
pub(crate) fn receive_coalescing(name: &str) -> io::Result<(u32, u32, bool)> {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    const ETHTOOL_GCOALESCE: u32 = 0x0e;
    // struct ethtool_coalesce: cmd, rx_coalesce_usecs, rx_max_coalesced_frames, …, use_adaptive_rx_coalesce as the tenth, …
    let mut coalesce = [0u32; 23];
    coalesce[0] = ETHTOOL_GCOALESCE;
    let mut r = ifreq(name)?;
    r.ifr_ifru.ifru_data = coalesce.as_mut_ptr().cast();
    // This command's structure is 23 words long, and so is the array that outlives the call.
    interface_ioctl(SIOCETHTOOL, &mut r)?;
    let words = std::hint::black_box(coalesce);
    Ok((words[1], words[2], words[10] != 0))
}

/// An Internet address of an interface, as far as it matters whether it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) ip: IpAddr,
    /// IFA_F_…
    pub(crate) flags: u32,
    /// IFA_PROTO: who put it there, where the kernel knows (Linux 5.18).
    pub(crate) protocol: u8,
    /// When it was put there: hundredths of a second, in which differences wrap around.
    pub(crate) created: u32,
}

/// All Internet addresses of an interface in this thread's network namespace, in the kernel's order. Asks for those of this interface alone (Linux 4.20; an older
/// kernel lists all): a host may have tens of thousands.
pub(crate) fn addresses(name: &str) -> io::Result<Vec<Address>> {
    let index = link(name)?.ifindex;
    let fd = socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
    // Without it the kernel does not look at the index.
    _ = set(&fd, libc::SOL_NETLINK, libc::NETLINK_GET_STRICT_CHK, 1i32);
    // struct nlmsghdr and struct ifaddrmsg: length, kind, flags, number, port; family, prefix length, flags, scope, index.
    let mut request = [0u8; 24];
    request[0..4].copy_from_slice(&24u32.to_ne_bytes());
    request[4..6].copy_from_slice(&libc::RTM_GETADDR.to_ne_bytes());
    request[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    request[20..24].copy_from_slice(&index.to_ne_bytes());
    // SAFETY: the request is live and of the length passed; an unconnected netlink socket sends to the kernel.
    let sent = unsafe { libc::send(fd.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut found, mut answer) = (Vec::new(), vec![0u8; 32 * 1024]);
    loop {
        // SAFETY: the buffer is live and of the length passed. The kernel goes on with a list within the call that receives, so there is nothing to wait for.
        let n = unsafe { libc::recv(fd.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
        match usize::try_from(n).map(|n| listed(&answer[..n], index, &mut found)) {
            Ok(Ok(true)) => return Ok(found),
            Ok(Ok(false)) => {}
            Ok(Err(e)) => return Err(e),
            Err(_) => {
                let e = io::Error::last_os_error();
                if e.kind() != io::ErrorKind::Interrupted {
                    return Err(e);
                }
            }
        }
    }
}

/// `N` bytes at `at`, if they are there.
fn bytes_at<const N: usize>(from: &[u8], at: usize) -> Option<[u8; N]> {
    from.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Takes the addresses of an interface out of a datagram with RTM_NEWADDR messages. Whether it was the last; what the kernel refused is an error.
fn listed(datagram: &[u8], index: u32, found: &mut Vec<Address>) -> io::Result<bool> {
    const HEADER: usize = 16;
    let mut rest = datagram;
    while let (Some(len), Some(kind)) = (bytes_at(rest, 0).map(u32::from_ne_bytes), bytes_at(rest, 4).map(u16::from_ne_bytes)) {
        let Some(body) = rest.get(HEADER..len as usize) else { break };
        match i32::from(kind) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                let errno = bytes_at(body, 0).map_or(libc::EPROTO, |errno| i32::from_ne_bytes(errno).wrapping_neg());
                return Err(io::Error::from_raw_os_error(errno));
            }
            _ if kind == libc::RTM_NEWADDR && bytes_at(body, 4).map(u32::from_ne_bytes) == Some(index) => {
                found.extend(address(body))
            }
            _ => {}
        }
        // Messages are aligned to 4 bytes; the last may lack its padding.
        let Some(next) = rest.get((len as usize).next_multiple_of(4)..) else { break };
        rest = next;
    }
    Ok(false)
}

/// The interface's own address (of a point-to-point link IFA_ADDRESS is the other end's) after `struct ifaddrmsg`.
fn address(message: &[u8]) -> Option<Address> {
    const IFA_PROTO: u16 = 11;
    let mut rest = message.get(8..)?;
    let (mut own, mut any) = (None, None);
    let (mut flags, mut protocol, mut created) = (message[2].into(), 0, 0);
    while let (Some(len), Some(kind)) = (bytes_at(rest, 0).map(u16::from_ne_bytes), bytes_at(rest, 2).map(u16::from_ne_bytes)) {
        let Some(value) = rest.get(4..usize::from(len)) else { break };
        let ip = || match i32::from(message[0]) {
            libc::AF_INET => bytes_at::<4>(value, 0).map(IpAddr::from),
            libc::AF_INET6 => bytes_at::<16>(value, 0).map(IpAddr::from),
            _ => None,
        };
        match kind {
            libc::IFA_LOCAL => own = ip(),
            libc::IFA_ADDRESS => any = ip(),
            libc::IFA_FLAGS => flags = bytes_at(value, 0).map_or(flags, u32::from_ne_bytes),
            // struct ifa_cacheinfo: preferred, valid, created, updated
            libc::IFA_CACHEINFO => created = bytes_at(value, 8).map_or(0, u32::from_ne_bytes),
            IFA_PROTO => protocol = bytes_at(value, 0).map_or(0, u8::from_ne_bytes),
            _ => {}
        }
        rest = rest.get(usize::from(len).next_multiple_of(4)..).unwrap_or_default();
    }
    Some(Address { ip: own.or(any)?, flags, protocol, created })
}

/// An epoll instance.
pub(crate) fn epoll() -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the descriptor returned is new and ours alone.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?)) }
}

/// Adds `fd`, reported (readable, error) under `token`, or removes it.
fn epoll_control(epoll: &OwnedFd, operation: i32, fd: RawFd, token: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
    // SAFETY: `event` is readable during the call.
    check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd, &raw mut event) }).map(drop)
}

/// A descriptor on which an epoll instance waits, until it is dropped. Closing alone would not end that: a child between `fork` and `exec` has the descriptor, too, and
/// until then the instance would report a socket that nobody can read any more.
pub(crate) struct Polled {
    fd: OwnedFd,
    epoll: Arc<OwnedFd>,
}

impl Polled {
    pub(crate) fn new(fd: OwnedFd, epoll: &Arc<OwnedFd>, token: u64) -> io::Result<Self> {
        epoll_control(epoll, libc::EPOLL_CTL_ADD, fd.as_raw_fd(), token)?;
        Ok(Self { fd, epoll: Arc::clone(epoll) })
    }
}

impl std::ops::Deref for Polled {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.fd
    }
}

impl Drop for Polled {
    fn drop(&mut self) {
        let _ = epoll_control(&self.epoll, libc::EPOLL_CTL_DEL, self.fd.as_raw_fd(), 0);
    }
}

/// The token of one descriptor that is ready now.
pub(crate) fn epoll_ready(epoll: &OwnedFd) -> Option<u64> {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one event, as said.
    (unsafe { libc::epoll_wait(epoll.as_raw_fd(), &raw mut event, 1, 0) } == 1).then_some(event.u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_loopback_interface_has_its_addresses_and_no_others() {
        let found = addresses("lo").unwrap();
        assert!(found.iter().any(|a| a.ip == IpAddr::from(Ipv4Addr::LOCALHOST)), "{found:?}");
        let elsewhere = addresses("no-such-if").unwrap_err();
        assert_eq!(elsewhere.raw_os_error(), Some(libc::ENODEV));
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut message = ((16 + body.len()) as u32).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend([0; 10]);
        message.extend(body);
        message.resize(message.len().next_multiple_of(4), 0);
        message
    }

    #[test]
    fn addresses_of_another_interface_and_other_ends_are_left_out() {
        let body = |index: u32, attributes: &[(u16, [u8; 4])]| {
            let mut body = vec![libc::AF_INET as u8, 24, 0, 0];
            body.extend(index.to_ne_bytes());
            for (kind, value) in attributes {
                body.extend(8u16.to_ne_bytes());
                body.extend(kind.to_ne_bytes());
                body.extend(value);
            }
            message(libc::RTM_NEWADDR, &body)
        };
        let (own, other) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let mut datagram = body(7, &[(libc::IFA_ADDRESS, other), (libc::IFA_LOCAL, own)]);
        datagram.extend(body(8, &[(libc::IFA_LOCAL, other)]));
        datagram.extend(body(7, &[(libc::IFA_ADDRESS, [10, 0, 0, 3])]));
        let mut found = Vec::new();
        assert!(!listed(&datagram, 7, &mut found).unwrap());
        let ips: Vec<IpAddr> = found.iter().map(|a| a.ip).collect();
        assert_eq!(ips, [IpAddr::from(own), IpAddr::from([10, 0, 0, 3])]);
        assert!(listed(&message(libc::NLMSG_DONE as u16, &[0; 4]), 7, &mut found).unwrap());
        let refused = listed(&message(libc::NLMSG_ERROR as u16, &(-libc::ENODEV).to_ne_bytes()), 7, &mut found).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENODEV));
    }

    proptest! {
        #[test]
        fn whatever_a_datagram_holds_nothing_panics(datagram in proptest::collection::vec(any::<u8>(), 0..200)) {
            _ = listed(&datagram, 1, &mut Vec::new());
        }

        #[test]
        fn nor_whatever_an_address_message_holds(body in proptest::collection::vec(0..20u8, 0..60)) {
            _ = listed(&message(libc::RTM_NEWADDR, &body), 1, &mut Vec::new());
        }
    }
}
