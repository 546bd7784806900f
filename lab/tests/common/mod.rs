//! What the tests share: making labs, sending and receiving, waiting.

#![allow(dead_code, missing_docs)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use fide_lab::{Lab, LabSpec};

/// Long, because the machine may be busy with other things; nothing waits longer than it must.
pub const PATIENCE: Duration = Duration::from_secs(90);
pub const PORT: u16 = 7700;
pub const GROUP: Ipv4Addr = Ipv4Addr::new(239, 77, 0, 1);

/// Whether the test can run; says so if not.
pub fn root(test: &str) -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        println!("SKIPPED {test}: a lab needs root; run the tests with sudo");
    }
    is_root
}

/// An ephemeral lab with a name of its own.
pub fn lab(hosts: u16) -> Lab {
    Lab::up(&LabSpec { hosts, ephemeral: true, ..LabSpec::default() }).unwrap()
}

pub fn wait_for(what: &str, condition: impl FnMut() -> bool) {
    wait_within(PATIENCE, what, condition);
}

pub fn wait_within(at_most: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + at_most;
    while !condition() {
        assert!(Instant::now() < deadline, "waited {at_most:?} in vain: {what}");
        // Sleep: interval of the poll.
        thread::sleep(Duration::from_millis(5));
    }
}

/// Everything by which a lab could be seen on this machine: namespaces, directory, record.
pub fn traces(name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let namespace = entry.file_name().into_string().unwrap();
        if namespace.starts_with(&format!("fide-{name}-")) {
            found.push(namespace);
        }
    }
    let base = Path::new("/run/fide/lab");
    for path in [base.join(name), base.join(format!("{name}.json"))] {
        if path.exists() {
            found.push(path.display().to_string());
        }
    }
    found
}

pub fn assert_gone(name: &str) {
    assert_eq!(traces(name), Vec::<String>::new(), "left behind by lab {name}");
}

/// A UDP socket on a host, bound to all addresses of the family.
pub fn socket(lab: &Lab, host: u16, any: IpAddr, port: u16) -> UdpSocket {
    // A program that another test starts just now has this host's last socket of that port open, too, until it is that program.
    let until = Instant::now() + PATIENCE;
    let socket = loop {
        match lab.in_host(host, || UdpSocket::bind(SocketAddr::new(any, port))).unwrap() {
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse && Instant::now() < until => {
                // Sleep: interval of the poll.
                std::thread::sleep(Duration::from_millis(1));
            }
            bound => break bound.unwrap(),
        }
    };
    socket.set_nonblocking(true).unwrap();
    socket
}

pub fn v4(lab: &Lab, host: u16, port: u16) -> UdpSocket {
    socket(lab, host, Ipv4Addr::UNSPECIFIED.into(), port)
}

pub fn v6(lab: &Lab, host: u16, port: u16) -> UdpSocket {
    socket(lab, host, Ipv6Addr::UNSPECIFIED.into(), port)
}

/// A socket that has joined the group on one network, and sends to it there.
pub fn member(lab: &Lab, host: u16, net: u8) -> UdpSocket {
    let address = lab.ipv4(host, net);
    let socket = socket(lab, host, GROUP.into(), PORT + u16::from(net));
    socket.join_multicast_v4(&GROUP, &address).unwrap();
    socket.set_multicast_loop_v4(false).unwrap();
    let interface = libc::in_addr { s_addr: u32::from(address).to_be() };
    // SAFETY: the option's value is one `in_addr`, and its size is given.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_MULTICAST_IF,
            (&raw const interface).cast(),
            size_of::<libc::in_addr>() as libc::socklen_t,
        )
    };
    assert_eq!(rc, 0, "IP_MULTICAST_IF: {}", io::Error::last_os_error());
    socket
}

/// Everything that has arrived, with who sent it.
pub fn drain(socket: &UdpSocket) -> Vec<(String, IpAddr)> {
    let mut arrived = Vec::new();
    let mut buffer = [0u8; 2048];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        arrived.push((String::from_utf8_lossy(&buffer[..length]).into_owned(), from.ip()));
    }
    arrived
}

/// Whether a datagram gets from one socket to the other within the time; sent again and again, as the first may wait
/// for address resolution.
pub fn passes(at_most: Duration, from: &UdpSocket, to_address: SocketAddr, to: &UdpSocket, word: &str) -> bool {
    let deadline = Instant::now() + at_most;
    loop {
        // No carrier is an error of the sender's: the same as a loss to us.
        let _ = from.send_to(word.as_bytes(), to_address);
        let next = Instant::now() + Duration::from_millis(20);
        while Instant::now() < next {
            if drain(to).iter().any(|(text, _)| text == word) {
                return true;
            }
            // Sleep: interval of the poll.
            thread::sleep(Duration::from_millis(1));
        }
        if Instant::now() > deadline {
            return false;
        }
    }
}

/// A unicast check on one network between two hosts, in one direction.
pub struct Wire {
    a: UdpSocket,
    b: UdpSocket,
    to_b: SocketAddr,
    to_a: SocketAddr,
    count: u32,
}

impl Wire {
    pub fn new(lab: &Lab, a: u16, b: u16, net: u8) -> Wire {
        let (a_socket, b_socket) = (v4(lab, a, 0), v4(lab, b, 0));
        let port = |socket: &UdpSocket| socket.local_addr().unwrap().port();
        Wire {
            to_b: (lab.ipv4(b, net), port(&b_socket)).into(),
            to_a: (lab.ipv4(a, net), port(&a_socket)).into(),
            a: a_socket,
            b: b_socket,
            count: 0,
        }
    }

    fn word(&mut self) -> String {
        self.count += 1;
        format!("word {}", self.count)
    }

    /// Waits until a datagram gets from `a` to `b`.
    pub fn a_to_b(&mut self) -> bool {
        let word = self.word();
        passes(PATIENCE, &self.a, self.to_b, &self.b, &word)
    }

    pub fn b_to_a(&mut self) -> bool {
        let word = self.word();
        passes(PATIENCE, &self.b, self.to_a, &self.a, &word)
    }

    pub fn both_ways(&mut self) -> bool {
        self.a_to_b() && self.b_to_a()
    }

    /// Sends some datagrams of 1000 bytes at once; how long until the last has arrived.
    pub fn burst(&mut self, count: usize, a_to_b: bool) -> Duration {
        let (from, to_address, to) = if a_to_b { (&self.a, self.to_b, &self.b) } else { (&self.b, self.to_a, &self.a) };
        drain(to);
        let begin = Instant::now();
        for _ in 0..count {
            from.send_to(&[b'x'; 1000], to_address).unwrap();
        }
        let mut arrived = 0;
        wait_for("a burst to arrive", || {
            arrived += drain(to).len();
            arrived >= count
        });
        begin.elapsed()
    }

    /// Whether nothing gets from `a` to `b` for a while in which a hundred datagrams would.
    pub fn a_to_b_is_dead(&mut self) -> bool {
        let word = self.word();
        !passes(Duration::from_millis(200), &self.a, self.to_b, &self.b, &word)
    }

    pub fn b_to_a_is_dead(&mut self) -> bool {
        let word = self.word();
        !passes(Duration::from_millis(200), &self.b, self.to_a, &self.a, &word)
    }
}

/// A socket that sees every frame which arrives on the host.
pub struct Tap(std::os::fd::OwnedFd);

impl Tap {
    /// To be called on the host.
    pub fn here() -> Tap {
        use std::os::fd::FromRawFd;
        let all = i32::from((libc::ETH_P_ALL as u16).to_be());
        // SAFETY: socket takes three integers; the descriptor it returns is new and ours alone.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, all) };
        assert!(fd >= 0, "AF_PACKET: {}", io::Error::last_os_error());
        // SAFETY: as above.
        Tap(unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) })
    }

    pub fn next(&self) -> Option<Vec<u8>> {
        let mut buffer = vec![0u8; 2048];
        // SAFETY: the buffer is valid for writes of its length.
        let length = unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        buffer.truncate(usize::try_from(length).ok()?);
        Some(buffer)
    }
}
