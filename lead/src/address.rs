//! An address that moves with the leader: put on its interface, and announced to the neighbours, who would send to the former leader otherwise.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

/// When it is announced again: the first announcement may be lost.
const AGAIN: [Duration; 3] = [Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(5)];

/// One address.
pub struct Address {
    /// With its prefix.
    text: String,
    interface: String,
    ip: IpAddr,
    /// When it is announced next, and how often it was.
    announce: Option<(Instant, usize)>,
}

impl Address {
    /// `text`: with its prefix, `10.0.0.9/24`.
    ///
    /// # Errors
    /// What it should look like.
    pub fn new(text: &str, interface: &str) -> Result<Self, String> {
        let wrong = || format!("{text} is no address with a prefix: write 10.0.0.9/24 or fd77::9/64");
        let (alone, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let ip: IpAddr = alone.parse().map_err(|_| wrong())?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        if !prefix.parse::<u8>().is_ok_and(|bits| (1..=most).contains(&bits)) {
            return Err(wrong());
        }
        Ok(Self { text: text.into(), interface: interface.into(), ip, announce: None })
    }

    fn ip(&self, verb: &str) -> Result<(), String> {
        let family = if self.ip.is_ipv4() { "-4" } else { "-6" };
        // Duplicate address detection would keep the address from being used for a second; who has it is decided.
        let at_once = (self.ip.is_ipv6() && verb == "replace").then_some("nodad");
        // Marked as one that moves: agents never work by it, and no connection of this host's begins at it.
        let marked: &[&str] = if verb == "replace" { &["preferred_lft", "0"] } else { &[] };
        let mut command = Command::new("ip");
        command.args([family, "address", verb, &self.text, "dev", &self.interface]).args(at_once).args(marked);
        let out = command.output();
        let out = out.map_err(|e| format!("cannot run ip (package iproute2): {e}"))?;
        if out.status.success() {
            return Ok(());
        }
        Err(format!("ip address {verb} {}: {}", self.text, String::from_utf8_lossy(&out.stderr).trim()))
    }

    /// This host has it from here on.
    ///
    /// # Errors
    /// Why it has not.
    pub fn take(&mut self) -> Result<(), String> {
        self.ip("replace")?;
        self.announce = Some((Instant::now() + AGAIN[0], 0));
        announce(&self.interface, self.ip).map_err(|e| format!("cannot announce {}: {e}", self.ip))
    }

    /// This host has it no more.
    ///
    /// # Errors
    /// Why it has.
    pub fn drop(&mut self) -> Result<(), String> {
        self.announce = None;
        match self.ip("delete") {
            // It had it not; which words say so depends on the version of ip.
            Err(why) if why.contains("Cannot assign requested address") || why.contains("not found") => Ok(()),
            other => other,
        }
    }

    /// Neighbours are not told any more that it is here: another host is about to tell them.
    pub fn be_still(&mut self) {
        self.announce = None;
    }

    /// When [`Address::announce_again`] has something to do.
    #[must_use]
    pub fn timeout(&self) -> Option<Instant> {
        self.announce.map(|(at, _)| at)
    }

    /// Announces it again, if it is time.
    pub fn announce_again(&mut self) {
        if let Some((at, count)) = self.announce
            && at <= Instant::now()
        {
            if let Err(e) = announce(&self.interface, self.ip) {
                say!("warning: ", "cannot announce {}: {e}", self.ip);
            }
            self.announce = AGAIN.get(count + 1).map(|after| (Instant::now() + *after, count + 1));
        }
    }
}

/// A gratuitous ARP request (RFC 5227 §3): sender and target are the same address.
fn arp(mac: [u8; 6], ip: Ipv4Addr) -> Vec<u8> {
    let mut frame = vec![0u8; 42];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    frame[12..22].copy_from_slice(&[0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]);
    frame[22..28].copy_from_slice(&mac);
    frame[28..32].copy_from_slice(&ip.octets());
    frame[38..42].copy_from_slice(&ip.octets());
    frame
}

/// An unsolicited neighbour advertisement to all nodes (RFC 4861 §7.2.6): it overrides what they know of this address.
fn advertisement(mac: [u8; 6], ip: Ipv6Addr) -> Vec<u8> {
    let everybody = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend(ip.octets());
    message.extend([2, 1]);
    message.extend(mac);
    // RFC 4443 §2.3: also over addresses, length and the number of what follows.
    let pseudo =
        [&ip.octets()[..], &everybody.octets(), &(message.len() as u32).to_be_bytes(), &[0, 0, 0, 58], &message].concat();
    let sum: u32 = pseudo.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 1];
    frame.extend(mac);
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend((message.len() as u16).to_be_bytes());
    frame.extend([58, 255]);
    frame.extend(ip.octets());
    frame.extend(everybody.octets());
    frame.extend(message);
    frame
}

fn mac(socket: &OwnedFd, interface: &str) -> io::Result<[u8; 6]> {
    // SAFETY: zeros are a request; its name stays ended by one.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed() as libc::c_char;
    }
    // SAFETY: a request that lives during the call.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has filled it in.
    let found = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    Ok(std::array::from_fn(|at| found[at].cast_unsigned()))
}

fn announce(interface: &str, ip: IpAddr) -> io::Result<()> {
    let name = std::ffi::CString::new(interface)?;
    // SAFETY: a text that ends with a zero.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was opened here and belongs to nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mac = mac(&socket, interface)?;
    let frame = match ip {
        IpAddr::V4(ip) => arp(mac, ip),
        IpAddr::V6(ip) => advertisement(mac, ip),
    };
    // SAFETY: zeros are an address of this kind.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_ifindex = index.cast_signed();
    to.sll_halen = 6;
    to.sll_addr[..6].copy_from_slice(&frame[..6]);
    let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: frame and address live during the call and are as long as said.
    let sent = unsafe { libc::sendto(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0, (&raw const to).cast(), size) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_a_request_for_ones_own_address_to_everybody() {
        let frame = arp([2, 0, 0, 0, 0, 7], Ipv4Addr::new(10, 0, 0, 9));
        assert_eq!(&frame[..14], &[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 7, 8, 6]);
        assert_eq!(&frame[20..32], &[0, 1, 2, 0, 0, 0, 0, 7, 10, 0, 0, 9]);
        assert_eq!(&frame[32..], &[0, 0, 0, 0, 0, 0, 10, 0, 0, 9]);
    }

    #[test]
    fn an_advertisement_overrides_and_its_sum_is_right() {
        let ip: Ipv6Addr = "fd77::c8".parse().unwrap();
        let frame = advertisement([2, 0, 0, 0, 0, 7], ip);
        assert_eq!((frame.len(), &frame[..6], &frame[12..14]), (86, &[0x33, 0x33, 0, 0, 0, 1][..], &[0x86, 0xdd][..]));
        assert_eq!((frame[20], frame[21], frame[54], frame[58]), (58, 255, 136, 0x20));
        assert_eq!((&frame[62..78], &frame[78..]), (&ip.octets()[..], &[2, 1, 2, 0, 0, 0, 0, 7][..]));
        // With its sum, the whole sums up to ones.
        let pseudo = [&frame[22..54], &[0, 0, 0, 32, 0, 0, 0, 58], &frame[54..]].concat();
        let sum: u32 = pseudo.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}
