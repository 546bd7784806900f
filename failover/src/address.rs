//! An address that moves with the leader: put on its interface, and announced to the neighbours, who would send to the former leader otherwise.

use crate::config;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

/// When it is announced again: the first announcement may be lost.
const AGAIN: [Duration; 3] = [Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(5)];

/// One address.
pub struct Address {
    config: config::Address,
    ip: Ipv4Addr,
    /// When it is announced next, and how often it was.
    announce: Option<(Instant, usize)>,
}

impl Address {
    /// As configured.
    ///
    /// # Errors
    /// An address that is none.
    pub fn new(config: &config::Address) -> anyhow::Result<Self> {
        Ok(Self { ip: config.ipv4()?, config: config.clone(), announce: None })
    }

    fn ip(&self, verb: &str) -> Result<(), String> {
        let out = Command::new("ip").args(["-4", "address", verb, &self.config.ip, "dev", &self.config.interface]).output();
        let out = out.map_err(|e| format!("cannot run ip (package iproute2): {e}"))?;
        if out.status.success() {
            return Ok(());
        }
        Err(format!("ip address {verb} {}: {}", self.config.ip, String::from_utf8_lossy(&out.stderr).trim()))
    }

    /// This host has it from here on.
    ///
    /// # Errors
    /// Why it has not.
    pub fn take(&mut self) -> Result<(), String> {
        self.ip("replace")?;
        self.announce = Some((Instant::now() + AGAIN[0], 0));
        announce(&self.config.interface, self.ip).map_err(|e| format!("cannot announce {}: {e}", self.ip))
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
            if let Err(e) = announce(&self.config.interface, self.ip) {
                tracing::warn!("cannot announce {}: {e}", self.ip);
            }
            self.announce = AGAIN.get(count + 1).map(|after| (Instant::now() + *after, count + 1));
        }
    }
}

/// A gratuitous ARP request (RFC 5227 §3): sender and target are the same address.
fn frame(mac: [u8; 6], ip: Ipv4Addr) -> [u8; 42] {
    let mut frame = [0u8; 42];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    frame[12..22].copy_from_slice(&[0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]);
    frame[22..28].copy_from_slice(&mac);
    frame[28..32].copy_from_slice(&ip.octets());
    frame[38..42].copy_from_slice(&ip.octets());
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

fn announce(interface: &str, ip: Ipv4Addr) -> io::Result<()> {
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
    let frame = frame(mac(&socket, interface)?, ip);
    // SAFETY: zeros are an address of this kind.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_ifindex = index.cast_signed();
    to.sll_halen = 6;
    to.sll_addr[..6].fill(0xff);
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
        let frame = frame([2, 0, 0, 0, 0, 7], Ipv4Addr::new(10, 0, 0, 9));
        assert_eq!(&frame[..14], &[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 7, 8, 6]);
        assert_eq!(&frame[20..32], &[0, 1, 2, 0, 0, 0, 0, 7, 10, 0, 0, 9]);
        assert_eq!(&frame[32..], &[0, 0, 0, 0, 0, 0, 10, 0, 0, 9]);
    }
}
