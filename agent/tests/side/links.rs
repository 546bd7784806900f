//! Interfaces that go and come: with bytes of any kind, and with real ones in a network namespace.

use fide_agent::links::{LinkChange, Links, Message, parse};
use proptest::prelude::*;
use std::process::Command;
use std::time::{Duration, Instant};

/// Longest wait for what must come: it only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A link message as the kernel writes it.
fn newlink(kind: u16, family: u8, index: u32, flags: u32, name: &[u8]) -> Vec<u8> {
    let mut attribute = (4 + name.len() as u16).to_ne_bytes().to_vec();
    attribute.extend(3u16.to_ne_bytes());
    attribute.extend(name);
    attribute.resize(attribute.len().next_multiple_of(4), 0);
    // Another attribute in front of the name.
    let other = [8u16.to_ne_bytes(), 16u16.to_ne_bytes(), [6, 0], [0, 0]].concat();
    let len = 32 + other.len() + attribute.len();
    let mut m = (len as u32).to_ne_bytes().to_vec();
    m.extend([kind.to_ne_bytes(), 0u16.to_ne_bytes()].concat());
    m.extend([0; 8]);
    m.extend([family, 0, 1, 0]);
    m.extend([index.to_ne_bytes(), flags.to_ne_bytes(), [0; 4]].concat());
    m.extend(other);
    m.extend(attribute);
    m
}

#[test]
fn a_bridge_that_speaks_of_its_ports_is_not_believed_to_remove_them() {
    let up = 0x1_0001;
    let both = [newlink(16, 0, 7, up, b"eth1\0"), newlink(17, 7, 7, up, b"eth1\0"), newlink(17, 0, 8, 0, b"x\0")].concat();
    assert_eq!(
        parse(&both),
        [Message::Link { index: 7, name: "eth1".into(), up: true, carrier: true }, Message::Gone { index: 8 }]
    );
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn no_damage_to_a_message_makes_it_panic(at in 0usize..48, with in any::<u8>(), cut in 0usize..60) {
        let mut m = [newlink(16, 0, 7, 1, b"eth1\0"), newlink(17, 0, 8, 0, b"x\0")].concat();
        m[at] = with;
        m.truncate(m.len().saturating_sub(cut));
        let _ = parse(&m);
    }
}

fn ip(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split(' ')).output().is_ok_and(|o| o.status.success())
}

/// Waits for a change that `is`.
fn wait(links: &mut Links, what: &str, is: impl Fn(&LinkChange) -> bool) -> LinkChange {
    let until = Instant::now() + PATIENCE;
    let mut seen = Vec::new();
    while Instant::now() < until {
        match links.poll() {
            Some(change) if is(&change) => return change,
            Some(change) => seen.push(change),
            // Sleep: interval of the poll.
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("{what} was not reported; instead: {seen:#?}");
}

#[test]
fn a_real_interface_loses_its_carrier_vanishes_and_returns() {
    // In a thread of its own, for it changes its network namespace.
    let in_namespace = std::thread::spawn(|| {
        // SAFETY: unshare has no preconditions.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 || !ip("link add f0 type veth peer name f1") {
            println!("SKIPPED: needs root and iproute2");
            return;
        }
        let mut links = Links::open().unwrap();
        assert!(links.poll().is_none(), "what is there is no change");
        let first = links.known("f0").unwrap();
        assert!(!first.up && links.known("f1").is_some() && links.known("none").is_none());

        assert!(ip("link set f0 up") && ip("link set f1 up"));
        wait(&mut links, "the carrier", |c| c.name == "f0" && c.up && c.carrier);
        assert!(ip("link set f1 down"));
        wait(&mut links, "the cut cable", |c| c.name == "f0" && c.up && !c.carrier);
        assert!(ip("link set f1 up"));
        wait(&mut links, "the mended cable", |c| c.name == "f0" && c.carrier);
        assert!(ip("addr add 10.9.8.7/24 dev f0"));
        wait(&mut links, "the address", |c| c.name == "f0" && c.addresses && !c.gone);

        if ip("link add br9 type bridge") && ip("link set f0 master br9") && ip("link set f0 nomaster") {
            // The kernel has queued what it reports of this before `ip` returns.
            while let Some(change) = links.poll() {
                assert!(!(change.gone && change.name == "f0"), "leaving a bridge is not going away");
            }
        }

        assert!(ip("link del f0"));
        let gone = wait(&mut links, "the loss", |c| c.name == "f0" && c.gone);
        assert_eq!(gone.index, first.index);
        assert_eq!(links.known("f0"), None);
        assert!(ip("link add f0 type veth peer name f1"));
        let back = wait(&mut links, "the return", |c| c.name == "f0" && !c.gone);
        assert_ne!(back.index, first.index);

        // More messages than the socket holds: whatever was dropped, the table is right in the end.
        // SAFETY: sets the size of this socket's buffer from a live variable.
        unsafe {
            use std::os::fd::AsRawFd;
            let small: libc::c_int = 2048;
            libc::setsockopt(links.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, (&raw const small).cast(), 4);
        }
        for _ in 0..20 {
            assert!(ip("link set f1 up") && ip("link set f0 up") && ip("link set f1 down"));
        }
        assert!(ip("link del f0"));
        let until = Instant::now() + PATIENCE;
        while links.known("f0").is_some() || links.known("f1").is_some() {
            links.poll();
            assert!(Instant::now() < until, "{:?} {:?}", links.known("f0"), links.known("f1"));
        }
    });
    in_namespace.join().unwrap();
}
