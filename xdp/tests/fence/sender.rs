//! The senders: every way out of a host that `docs/fence.md` speaks of.

use super::world::*;
use std::io::{self, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

type Send = Box<dyn FnMut(&[u8]) -> io::Result<()>>;

fn udp(to: &str) -> UdpSocket {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect((to, PORT)).unwrap();
    socket
}

fn raw_ip(to: &str) -> Send {
    let to: std::net::Ipv4Addr = to.parse().unwrap();
    // SAFETY: plain numbers; sockaddr_in is plain old data, for which zero is a value.
    let (fd, mut addr) =
        unsafe { (owned(libc::socket(libc::AF_INET, libc::SOCK_RAW, 253)), std::mem::zeroed::<libc::sockaddr_in>()) };
    addr.sin_family = libc::AF_INET as u16;
    addr.sin_addr.s_addr = u32::from_ne_bytes(to.octets());
    Box::new(move |bytes| {
        // SAFETY: pointers and lengths describe bytes and address.
        let rc = unsafe {
            let to = (&raw const addr).cast();
            libc::sendto(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0, to, size_of_val(&addr) as u32)
        };
        check(rc as i32).map(drop)
    })
}

/// One IORING_OP_SEND at a time on a UDP socket.
fn uring(to: &str) -> Option<Send> {
    #[repr(C)]
    #[derive(Default)]
    struct Params {
        entries: [u32; 2],
        flags: [u32; 8],
        sq: [u32; 10],
        cq: [u32; 10],
    }
    let mut params = Params::default();
    // SAFETY: io_uring_setup fills the structure, which has the kernel's 120 bytes.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, &raw mut params) };
    if fd < 0 {
        return None;
    }
    let ring = owned(fd as i32);
    let map = |len: usize, at: i64| {
        // SAFETY: a fresh mapping of the ring's own memory, which lives until the process ends.
        let base = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED | libc::MAP_POPULATE, ring.as_raw_fd(), at)
        };
        assert_ne!(base, libc::MAP_FAILED);
        base.cast::<u8>()
    };
    let (sq, cq, entries) = (map(4096, 0), map(4096, 0x800_0000), map(4096, 0x1000_0000));
    let socket = udp(to);
    Some(Box::new(move |bytes| {
        // SAFETY: offsets as the kernel gave them, within the mappings; one entry is in flight at a time, and `bytes` lives until it is done.
        unsafe {
            let word = |base: *mut u8, at: u32| base.add(at as usize).cast::<u32>();
            entries.write_bytes(0, 64);
            entries.write(26); // IORING_OP_SEND
            entries.add(4).cast::<i32>().write(socket.as_raw_fd());
            entries.add(16).cast::<u64>().write(bytes.as_ptr() as u64);
            entries.add(24).cast::<u32>().write(bytes.len() as u32);
            let tail = word(sq, params.sq[1]);
            word(sq, params.sq[6]).write(0);
            tail.write_volatile(tail.read_volatile() + 1);
            let entered = libc::syscall(libc::SYS_io_uring_enter, ring.as_raw_fd(), 1, 1, 1, 0, 0);
            assert_eq!(entered, 1, "{}", io::Error::last_os_error());
            let head = word(cq, params.cq[0]);
            let at = params.cq[5] + 16 * (head.read_volatile() & word(cq, params.cq[2]).read());
            let result = cq.add(at as usize + 8).cast::<i32>().read_volatile();
            head.write_volatile(head.read_volatile() + 1);
            if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
        }
    }))
}

/// AF_XDP in copy mode: a UMEM of one page, its first frame sent over and over.
fn af_xdp(interface: &str) -> Option<Send> {
    const SOL_XDP: i32 = 283;
    const PAGE: usize = 4096;
    // SAFETY: plain numbers; a private page that lives until the process ends.
    let (fd, umem): (OwnedFd, *mut u8) = unsafe {
        let fd = libc::socket(libc::AF_XDP, libc::SOCK_RAW, 0);
        if fd < 0 {
            return None;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        (owned(fd), libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).cast())
    };
    set(&fd, SOL_XDP, 4, [umem as u64, PAGE as u64, PAGE as u64 / 2, 0]); // XDP_UMEM_REG: address, length, chunk size and headroom, flags
    for ring in [3, 5, 6] {
        set(&fd, SOL_XDP, ring, 2i32); // XDP_TX_RING, XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING
    }
    let (mut offsets, mut len) = ([0u64; 16], 128u32);
    // SAFETY: pointer and length describe the array; XDP_MMAP_OFFSETS.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), SOL_XDP, 1, offsets.as_mut_ptr().cast(), &raw mut len) }).unwrap();
    let map = |at: i64| {
        // SAFETY: a fresh mapping of a ring, which lives until the process ends.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd.as_raw_fd(), at)
        };
        assert_ne!(base, libc::MAP_FAILED);
        base.cast::<u8>()
    };
    let (tx, done) = (map(0x8000_0000), map(0x1_8000_0000));
    let address: [u32; 4] = [44 | 2 << 16, ifindex(interface), 0, 0]; // sockaddr_xdp: family and XDP_COPY, interface, queue, no shared UMEM
    // SAFETY: pointer and length describe the address.
    check(unsafe { libc::bind(fd.as_raw_fd(), address.as_ptr().cast(), 16) }).unwrap();
    Some(Box::new(move |bytes| {
        let frame = frame(bytes);
        // SAFETY: offsets as the kernel gave them (tx: words 4 to 7; completion: 12 to 15), within the mappings; one frame in flight at a time.
        unsafe {
            umem.copy_from(frame.as_ptr(), frame.len());
            let producer = tx.add(offsets[4] as usize).cast::<u32>();
            let slot = tx.add(offsets[6] as usize + 16 * (*producer as usize & 1));
            slot.cast::<u64>().write(0);
            slot.add(8).cast::<u64>().write(frame.len() as u64);
            producer.write_volatile(producer.read_volatile() + 1);
            check(libc::sendto(fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) as i32)?;
            let (completed, taken) = (done.add(offsets[12] as usize).cast::<u32>(), done.add(offsets[13] as usize).cast::<u32>());
            wait_until("AF_XDP completion", || completed.read_volatile() != taken.read_volatile());
            taken.write_volatile(completed.read_volatile());
        }
        Ok(())
    }))
}

fn way(how: &str, to: &str) -> Option<Send> {
    Some(match how {
        "udp" => {
            let socket = udp(to);
            Box::new(move |bytes| socket.send(bytes).map(drop))
        }
        "tcp" => {
            let mut stream = TcpStream::connect((to, PORT)).unwrap();
            stream.set_nodelay(true).unwrap();
            Box::new(move |bytes| stream.write_all(bytes))
        }
        "raw" => raw_ip(to),
        "packet" | "bypass" => {
            let frames = Frames::new("e0", how == "bypass");
            Box::new(move |bytes| frames.send(&frame(bytes)))
        }
        "uring" => uring(to)?,
        "af_xdp" => af_xdp("e0")?,
        other => panic!("{other}?"),
    })
}

/// `how to`; then: `send N` sends packet N and says what became of it; `flood MICROSECONDS` sends until killed; `fifo` makes it SCHED_FIFO.
pub fn run(args: &[&str]) {
    let Some(mut send) = way(args[0], args[1]) else {
        return say("not here");
    };
    say("ready");
    for line in io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "send" => {
                let number = words[1].parse().unwrap();
                match send(&payload(number)) {
                    Ok(()) => say("sent"),
                    Err(e) => say(&format!("error {}", e.raw_os_error().unwrap_or(0))),
                }
            }
            "fifo" => {
                say(if real_time(10) { "yes" } else { "no" });
            }
            "flood" => {
                let pause = std::time::Duration::from_micros(words[1].parse().unwrap());
                say("flooding");
                for number in 1.. {
                    let _ = send(&payload(number)); // blocked, perhaps
                    if !pause.is_zero() {
                        // Sleep: rate of the flood, as the test asked for.
                        std::thread::sleep(pause);
                    }
                }
            }
            other => panic!("{other}?"),
        }
    }
}
