//! Packet tests: these bytes in, this action, these counters and these records out. Through `BPF_PROG_TEST_RUN`, as root.

use crate::common;

use common::*;
use fide_wire::event::{Record, RecordKind};
use fide_wire::frame::{BODY_AT, HEADER_LEN};
use fide_wire::mac::{Key, Keyring};
use fide_wire::marks::Marks;
use fide_wire::packet::{self, BODY_MAX, Header, Kind, Notice, PACKET_MAX, Refusal};
use fide_wire::verdict::{Cause, Grade};
use fide_wire::{PIGGYBACK_MAX, jitter};
use fide_xdp::layout::{INTRODUCTIONS, RING_BYTES, RINGS, Unwanted};
use std::os::fd::AsFd;

/// A test that needs root: says so and returns where there is none.
macro_rules! as_root {
    ($($(#[$doc:meta])* fn $name:ident() $body:block)*) => {
        $($(#[$doc])* #[test] fn $name() { if !not_root() { $body } })*
    };
}

fn now_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: t lives across the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

// What is not ours.

as_root! {
    fn what_is_not_for_our_port_passes_untouched() {
        let mut b = Bench::new();
        let hb = b.heartbeat(0, b"");
        let frames: Vec<(&str, Vec<u8>)> = vec![
            ("ARP", ethernet(0x0806, &[0; 28])),
            ("TCP", ethernet(0x0800, &ip4(5, 0, 6, &udp(PORT, &hb)))),
            ("another port", ethernet(0x0800, &ip4(5, 0, 17, &udp(PORT + 1, &hb)))),
            ("our port as source", ethernet(0x0800, &ip4(5, 0, 17, &{ let mut u = udp(9, &hb); u[..2].copy_from_slice(&PORT.to_be_bytes()); u }))),
            ("IP options", ethernet(0x0800, &ip4(6, 0, 17, &udp(PORT, &hb)))),
            ("IPv6 hop-by-hop header", ethernet(0x86dd, &ip6(0, &[&[17, 0, 5, 2, 0, 0, 1, 0][..], &udp(PORT, &hb)].concat()))),
            ("IPv6 fragment", ethernet(0x86dd, &ip6(44, &[&[17, 0, 0, 1, 0, 0, 0, 9][..], &udp(PORT, &hb)].concat()))),
            ("a later fragment that looks like UDP", ethernet(0x0800, &ip4(5, 0x0001, 17, &udp(PORT, &hb)))),
            ("the last fragment", ethernet(0x0800, &ip4(5, 0x1fff, 17, &udp(PORT, &hb)))),
            ("two VLAN tags", vlan(5, 0x8100, &[&[0, 6, 0x08, 0x00][..], &ip4(5, 0, 17, &udp(PORT, &hb))].concat())),
            ("MPLS", ethernet(0x8847, &ip4(5, 0, 17, &udp(PORT, &hb)))),
            ("an IPv4 packet that says 6", ethernet(0x86dd, &ip4(5, 0, 17, &udp(PORT, &hb)))),
        ];
        for (what, frame) in frames {
            assert_eq!(b.frame_arrives(0, &frame), Fate::Passed, "{what}");
        }
        assert_eq!(b.m.peer(PEER_SLOT).path[0].arrived, 0);
        assert_eq!(b.arrives(0, &hb), Fate::Accepted, "the same heartbeat in an ordinary frame");
    }

    fn headers_cut_short_pass() {
        let mut b = Bench::new();
        let hb = b.heartbeat(0, b"");
        for (frame, headers) in [(ipv4(&hb), 42), (ipv6(&hb), 62), (vlan(5, 0x0800, &ip4(5, 0, 17, &udp(PORT, &hb))), 46)] {
            for len in 14..headers {
                assert_eq!(b.frame_arrives(0, &frame[..len]), Fate::Passed, "{len} of {headers}");
            }
            assert_eq!(b.frame_arrives(0, &frame[..headers]), Fate::Refused(Refusal::Short), "headers alone");
        }
    }

    fn an_interface_without_a_path_passes() {
        let b = Bench::new();
        let hb = packet_of(&Header { kind: Kind::Heartbeat, path: 0, key_id: 0, cluster: CLUSTER, sender: PEER, incarnation: PEER_INCARNATION,
            number: 1, sent_ns: 0, period_ns: 1, table_version: 0, more: false }, None, b"", &b.keys);
        assert_eq!(b.m.test_receive(&ipv4(&hb), LO).unwrap(), XDP_PASS);
        assert_eq!(b.m.refused(), [0; Refusal::COUNT]);
    }

    fn ipv4_ipv6_and_vlan_carry_heartbeats() {
        let mut b = Bench::new();
        for (i, wrap) in [ipv4 as fn(&[u8]) -> Vec<u8>, ipv6, |p| vlan(0xe005, 0x0800, &ip4(5, 0, 17, &udp(PORT, p))),
            |p| vlan(7, 0x86dd, &ip6(17, &udp(PORT, p)))].into_iter().enumerate() {
            let hb = b.heartbeat(0, b"");
            assert_eq!(b.frame_arrives(0, &wrap(&hb)), Fate::Accepted);
            assert_eq!(b.m.peer(PEER_SLOT).path[0].arrived, i as u64 + 1);
        }
    }

    /// Some switches append bytes, and some drivers hand over the frame check sequence.
    fn what_follows_the_packet_in_its_frame_is_not_part_of_it() {
        let mut b = Bench::new();
        for trailer in [1, 4, 8, 40] {
            for body in [&b""[..], b"body"] {
                let hb = b.heartbeat(0, body);
                let mut frame = ipv4(&hb);
                frame.extend(vec![0xee; trailer]);
                assert_eq!(b.frame_arrives(0, &frame), Fate::Accepted);
                let inbox = b.inbox();
                assert_eq!(inbox.len(), usize::from(!body.is_empty()));
                for (_, bytes) in inbox {
                    assert_eq!(bytes, hb);
                }
            }
            let n = b.notice(0, trailer as u32, 1);
            let mut frame = ipv6(&n);
            frame.extend(vec![0xee; trailer]);
            assert_eq!(b.frame_arrives(0, &frame), Fate::Accepted);
        }
    }
}

// Barriers.

const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// A TCP header that acknowledges a SYN of this number.
fn segment(from_port: u16, flags: u8, number: u32) -> Vec<u8> {
    let mut segment = from_port.to_be_bytes().to_vec();
    segment.extend(40_000u16.to_be_bytes());
    segment.extend(0u32.to_be_bytes());
    segment.extend(number.wrapping_add(1).to_be_bytes());
    segment.extend([5 << 4, flags, 0, 0, 0, 0, 0, 0]);
    segment
}

const PROBE_ID: u16 = 0x0102;

/// What the question with this random number carries, as `fide_lane::probe` asks it.
fn carried(nonce: u64) -> [u8; 20] {
    let mut carried = *b"FiDp\0\0\0\x07\0\0\0\0........";
    carried[12..].copy_from_slice(&nonce.to_be_bytes());
    carried
}

/// An answer to it, of this ICMP type.
fn answer(kind: u8, nonce: u64) -> Vec<u8> {
    [&[kind, 0, 0, 0][..], &PROBE_ID.to_be_bytes(), &[0, 1], &carried(nonce)].concat()
}

/// Asks whom `ip4` and `ip6` send from.
fn ask(b: &Bench, path: u8, ipv6: bool, nonce: u64) {
    b.m.set_probe_id(PROBE_ID);
    let from: std::net::IpAddr = if ipv6 { [0xfe; 16].into() } else { [10, 0, 0, 2].into() };
    b.m.questions().unwrap().expect(path, from, &carried(nonce));
}

as_root! {
    fn safetimer_4_1_an_answer_is_a_barrier_of_the_queue_it_came_by() {
        let mut b = Bench::new();
        assert_eq!(b.m.peer(PEER_SLOT).queue, [0, 0], "nothing has come");
        let hb = b.heartbeat(0, b"");
        assert_eq!(b.arrives(0, &hb), Fate::Accepted);
        let frames = [ethernet(0x0800, &ip4(5, 0, 1, &answer(0, 1))), ethernet(0x86dd, &ip6(58, &answer(129, 2))),
            vlan(5, 0x0800, &ip4(5, 0, 1, &answer(0, 3))), vlan(5, 0x86dd, &ip6(58, &answer(129, 4)))];
        for (nonce, frame) in (1..).zip(frames) {
            ask(&b, 0, nonce % 2 == 0, nonce);
            assert_eq!(b.m.barrier(0, nonce), None);
            assert_eq!(b.frame_arrives(0, &frame), Fate::Passed, "the agent's socket gets it too");
            let queue = b.m.barrier(0, nonce).expect("noted");
            assert_eq!(b.m.peer(PEER_SLOT).queue.map(u32::from), [queue, 0], "the queue of the heartbeat: tests have one");
            assert_eq!(b.m.barrier(1, nonce), None, "not on the other path");
            assert_eq!(b.m.barrier(0, nonce - 1), None, "overtaken");
        }
        ask(&b, 1, false, 9);
        assert_eq!(b.frame_arrives(1, &ethernet(0x0800, &ip4(5, 0, 1, &answer(0, 9)))), Fate::Passed);
        assert_eq!((b.m.barrier(0, 4).is_some(), b.m.barrier(1, 9).is_some()), (true, true));
    }

    /// What a kernel says to a SYN, whether somebody listens there or nobody.
    fn safetimer_5_1_an_answer_by_tcp_is_a_barrier_that_names_its_question() {
        let mut b = Bench::new();
        let hb = b.heartbeat(0, b"");
        assert_eq!(b.arrives(0, &hb), Fate::Accepted);
        let queue = u32::from(b.m.peer(PEER_SLOT).queue[0]);
        assert_eq!(b.m.steered(0), []);
        let frames = [ethernet(0x0800, &ip4(5, 0, 6, &segment(PORT, RST | ACK, 1))), ethernet(0x86dd, &ip6(6, &segment(PORT, SYN | ACK, 2))),
            vlan(5, 0x0800, &ip4(5, 0, 6, &segment(PORT, RST | ACK, 3))), vlan(5, 0x86dd, &ip6(6, &segment(PORT, RST | ACK, u32::MAX)))];
        for (number, frame) in [1, 2, 3, u32::MAX].into_iter().zip(frames) {
            b.m.expect_steered(0, number);
            assert_eq!(b.frame_arrives(0, &frame), Fate::Passed);
            assert_eq!((b.m.steered(0), b.m.steered(1)), (vec![(queue, number)], vec![]));
        }
        // An echo's answer that comes after it by the same queue is the last one.
        ask(&b, 0, false, 9);
        assert_eq!(b.frame_arrives(0, &ethernet(0x0800, &ip4(5, 0, 1, &answer(0, 9)))), Fate::Passed);
        assert_eq!((b.m.steered(0), b.m.barrier(0, 9)), (vec![], Some(queue)));
        let whole = ethernet(0x0800, &ip4(5, 0, 6, &segment(PORT, RST | ACK, 7)));
        for len in 14..14 + 20 + 14 {
            assert_eq!(b.frame_arrives(0, &whole[..len]), Fate::Passed, "{len} bytes");
        }
        // Of another port, without an acknowledgement, of a connection; not TCP.
        for frame in [ethernet(0x0800, &ip4(5, 0, 6, &segment(PORT + 1, RST | ACK, 7))), ethernet(0x0800, &ip4(5, 0, 6, &segment(PORT, SYN, 7))),
            ethernet(0x86dd, &ip6(6, &segment(PORT, ACK, 7))), ethernet(0x0800, &ip4(6, 0, 6, &segment(PORT, RST | ACK, 7))),
            ethernet(0x0800, &ip4(5, 0, 132, &segment(PORT, RST | ACK, 7)))] {
            assert_eq!(b.frame_arrives(0, &frame), Fate::Passed);
        }
        assert_eq!((b.m.steered(0), b.m.barrier(0, 9)), (vec![], Some(queue)), "none of them is noted");
    }

    fn what_is_no_answer_to_us_is_no_barrier() {
        let mut b = Bench::new();
        ask(&b, 0, false, 7);
        let whole = ethernet(0x0800, &ip4(5, 0, 1, &answer(0, 7)));
        for len in 14..whole.len() {
            assert_eq!(b.frame_arrives(0, &whole[..len]), Fate::Passed, "{len} bytes");
        }
        for frame in [ethernet(0x0800, &ip4(5, 0, 1, &answer(8, 7))), ethernet(0x86dd, &ip6(58, &answer(128, 7))),
            ethernet(0x0800, &ip4(6, 0, 1, &answer(0, 7))), ethernet(0x0800, &ip4(5, 0, 6, &answer(0, 7))),
            ethernet(0x0800, &ip4(5, 0, 1, &[&answer(0, 7)[..8], b"FiDx", &answer(0, 7)[12..]].concat()))] {
            assert_eq!(b.frame_arrives(0, &frame), Fate::Passed);
        }
        assert_eq!(b.m.barrier(0, 7), None);
    }
}

// What nobody asked for.

/// (packets of this kind, source address and MAC of the last) on path 0.
fn unwanted(b: &Bench, kind: Unwanted) -> (u64, Option<String>, [u8; 6]) {
    let source = b.m.unwanted(kind, 0);
    (source.count, source.address().map(|a| a.to_string()), source.mac)
}

const FROM: [u8; 6] = [2, 0, 0, 0, 0, 2];

as_root! {
    fn answers_to_no_question_end_in_the_driver_and_are_counted_with_their_sender() {
        let mut b = Bench::new();
        let v4 = |b: &mut Bench, nonce| b.frame_arrives(0, &ethernet(0x0800, &ip4(5, 0, 1, &answer(0, nonce))));
        ask(&b, 0, false, 77);
        assert_eq!(v4(&mut b, 78), Fate::Accepted, "dropped: never asked");
        assert_eq!(unwanted(&b, Unwanted::Echo), (1, Some("10.0.0.2".into()), FROM));
        assert_eq!(v4(&mut b, 77), Fate::Passed);
        assert_eq!(v4(&mut b, 77), Fate::Passed, "until the agent has taken it: who sent it first may not have been the one who was asked");
        b.m.questions().unwrap().taken(77);
        assert_eq!(v4(&mut b, 77), Fate::Accepted);
        assert_eq!(v4(&mut b, 0), Fate::Accepted, "no question has the number 0");
        // By another address, on another path, with a byte that was not asked with.
        ask(&b, 0, true, 79);
        assert_eq!(v4(&mut b, 79), Fate::Accepted);
        ask(&b, 1, false, 80);
        assert_eq!(v4(&mut b, 80), Fate::Accepted);
        ask(&b, 0, false, 81);
        for at in 8 + 4..8 + 12 {
            let mut icmp = answer(0, 81);
            icmp[at] ^= 1;
            assert_eq!(b.frame_arrives(0, &ethernet(0x0800, &ip4(5, 0, 1, &icmp))), Fate::Accepted, "byte {at}");
        }
        assert_eq!(v4(&mut b, 81), Fate::Passed);
        // A question that had the same place is forgotten.
        ask(&b, 0, false, 81 + 4096);
        assert_eq!((v4(&mut b, 81), v4(&mut b, 81 + 4096)), (Fate::Accepted, Fate::Passed));
        b.m.questions().unwrap().taken(81);
        assert_eq!(v4(&mut b, 81 + 4096), Fate::Passed, "it is not the one that was taken");
        let count = unwanted(&b, Unwanted::Echo).0;
        assert_eq!(count, 1 + 2 + 2 + 8 + 1);
        // Other programs' questions are their business.
        b.m.set_probe_id(PROBE_ID + 1);
        assert_eq!(v4(&mut b, 90), Fate::Passed);
        let ping = [&[0, 0, 0, 0][..], &(PROBE_ID + 1).to_be_bytes(), &[0, 1], &[7; 56]].concat();
        assert_eq!(b.frame_arrives(0, &ethernet(0x0800, &ip4(5, 0, 1, &ping))), Fate::Passed);
        assert_eq!(unwanted(&b, Unwanted::Echo).0, count);
    }

    fn questions_and_answers_by_tcp_are_counted_with_their_sender() {
        let mut b = Bench::new();
        let mut probe = b"FiDp".to_vec();
        probe.extend([7; 16]);
        assert_eq!(b.frame_arrives(0, &vlan(5, 0x86dd, &ip6(17, &udp(PORT, &probe)))), Fate::Passed);
        assert_eq!(unwanted(&b, Unwanted::Probe), (1, Some("fefe:fefe:fefe:fefe:fefe:fefe:fefe:fefe".into()), FROM));
        let tcp = |b: &mut Bench, number| b.frame_arrives(0, &ethernet(0x0800, &ip4(5, 0, 6, &segment(PORT, RST | ACK, number))));
        assert_eq!(tcp(&mut b, 0x700), Fate::Passed);
        assert_eq!((unwanted(&b, Unwanted::Tcp).0, b.m.steered(0)), (1, vec![]));
        b.m.expect_steered(0, 0x7ff);
        assert_eq!((tcp(&mut b, 0x700), tcp(&mut b, 0x7ff), tcp(&mut b, 0x800)), (Fate::Passed, Fate::Passed, Fate::Passed));
        assert_eq!(b.m.steered(0).iter().map(|(_, n)| *n).collect::<Vec<_>>(), [0x7ff], "what is noted was asked");
        b.m.expect_steered(1, 0x800);
        for round in 9..16 {
            b.m.expect_steered(0, round << 8);
        }
        assert_eq!(tcp(&mut b, 0x701), Fate::Passed);
        assert_eq!(b.m.steered(0)[0].1, 0x701, "the eighth round before");
        b.m.expect_steered(0, 16 << 8);
        assert_eq!(tcp(&mut b, 0x702), Fate::Passed);
        assert_eq!((unwanted(&b, Unwanted::Tcp).0, b.m.steered(0)[0].1), (3, 0x701));
    }

    fn a_frame_with_our_own_mac_is_counted_on_the_path_whose_it_is() {
        let mut b = Bench::new();
        let hb = b.heartbeat(0, b"");
        let arp = ethernet(0x0806, &[0; 28]);
        b.m.set_mac(1, Some(FROM));
        assert_eq!(b.frame_arrives(0, &arp), Fate::Passed);
        assert_eq!(unwanted(&b, Unwanted::OwnMac).0, 0, "this host's other interface, on the same network");
        b.m.set_mac(0, Some([2, 0, 0, 0, 0, 3]));
        assert_eq!(b.frame_arrives(0, &arp), Fate::Passed);
        assert_eq!(unwanted(&b, Unwanted::OwnMac).0, 0);
        b.m.set_mac(0, Some(FROM));
        assert_eq!(b.frame_arrives(0, &arp), Fate::Passed);
        assert_eq!(unwanted(&b, Unwanted::OwnMac), (1, None, FROM));
        assert_eq!(b.arrives(0, &hb), Fate::Accepted, "it is counted, no more: the tag says who it is from");
        assert_eq!(unwanted(&b, Unwanted::OwnMac), (2, Some("10.0.0.2".into()), FROM));
        b.m.set_mac(0, None);
        assert_eq!(b.frame_arrives(0, &ethernet(0x0806, &[0; 28])), Fate::Passed);
        assert_eq!(unwanted(&b, Unwanted::OwnMac).0, 2);
    }

    fn what_is_refused_has_its_sender_noted() {
        let mut b = Bench::new();
        let mut hb = b.heartbeat(1, b"");
        hb[47] ^= 1;
        assert_eq!(b.arrives(1, &hb), Fate::Refused(Refusal::Mac));
        let source = b.m.refused_from(Refusal::Mac, 1);
        assert_eq!((source.count, source.address(), source.mac), (1, Some([10, 0, 0, 2].into()), FROM));
        assert_eq!(b.m.refused_from(Refusal::Mac, 0).count, 0);
        assert!(source.last_ns > 0 && source.last_ns <= now_ns());
    }

    /// Somebody who has recorded the announcements of hosts that left can send them again: each is heard once, and not more of them than hosts make.
    fn announcements_of_those_who_are_not_known_are_heard_once_and_in_bounds() {
        let mut b = Bench::new();
        let of = |b: &mut Bench, sender: u32, incarnation: u32, path: u8, number: u64| {
            let h = Header { sender, incarnation, number, ..b.header(Kind::Introduction, path) };
            let p = b.sign(&h, None, b"{}");
            let fate = b.arrives(path.into(), &p);
            (fate, b.inbox().len())
        };
        assert_eq!(of(&mut b, 99, 5, 0, 7), (Fate::Accepted, 1));
        assert_eq!(of(&mut b, 99, 5, 0, 7), (Fate::Refused(Refusal::OldNumber), 0));
        assert_eq!(of(&mut b, 99, 5, 0, 6), (Fate::Refused(Refusal::OldNumber), 0));
        assert_eq!(of(&mut b, 99, 5, 1, 7), (Fate::Accepted, 1), "the other path's copy");
        assert_eq!(of(&mut b, 99, 4, 0, 3), (Fate::Accepted, 1), "which of two incarnations is the later one is the agent's to say");
        assert_eq!(of(&mut b, 99, 4, 0, 3), (Fate::Refused(Refusal::OldNumber), 0));
        assert_eq!(of(&mut b, PEER, PEER_INCARNATION + 1, 0, 3), (Fate::Accepted, 1), "a later one of one who is known");
        assert_eq!(of(&mut b, PEER, PEER_INCARNATION + 1, 0, 3), (Fate::Refused(Refusal::OldNumber), 0));
        let mut forged = { let h = Header { sender: 99, number: 9, ..b.header(Kind::Introduction, 0) }; b.sign(&h, None, b"{}") };
        forged[49] ^= 1;
        assert_eq!(b.arrives(0, &forged), Fate::Refused(Refusal::Mac));
        forged[49] ^= 1;
        assert_eq!(b.arrives(0, &forged), Fate::Accepted, "its number was left to it");
        b.inbox();
        let fates: Vec<_> = (100..100 + 3 * INTRODUCTIONS as u64).map(|number| of(&mut b, 98, 1, 0, number).0).collect();
        let heard = fates.iter().filter(|fate| **fate == Fate::Accepted).count();
        assert!((INTRODUCTIONS..=2 * INTRODUCTIONS).contains(&heard), "{heard}: a second may have passed");
        assert!(fates.iter().all(|fate| matches!(fate, Fate::Accepted | Fate::Refused(Refusal::RateLimited))));
        assert_eq!(of(&mut b, 97, 1, 0, 1), (Fate::Accepted, 1), "others are not affected");
        // A recorded hello is answered once, whoever sent it, and whatever became of it.
        b.m.condemn(PEER_SLOT);
        for (sender, incarnation) in [(96, 1), (PEER, PEER_INCARNATION), (PEER, PEER_INCARNATION - 1)] {
            let h = Header { sender, incarnation, number: 50, ..b.header(Kind::Hello, 0) };
            let hello = b.sign(&h, None, &[7; 20]);
            assert_eq!(b.arrives(0, &hello), Fate::Accepted, "{sender} {incarnation}");
            assert_eq!(b.arrives(0, &hello), Fate::Refused(Refusal::OldNumber), "{sender} {incarnation}");
            assert_eq!(b.inbox().len(), 1);
        }
        let h = Header { sender: SELF, number: 50, ..b.header(Kind::Hello, 0) };
        let own = b.sign(&h, None, &[7; 20]);
        assert_eq!((b.arrives(0, &own), b.inbox().len()), (Fate::Refused(Refusal::Own), 0));
    }
}

// Each reason, by its counter.

as_root! {
    fn short_packets_are_refused() {
        let mut b = Bench::new();
        let hb = b.heartbeat(0, b"");
        for len in 0..hb.len() {
            assert_eq!(b.arrives(0, &hb[..len]), Fate::Refused(Refusal::Short), "{len} bytes");
        }
        let n = b.notice(0, 1, 1);
        for len in 48..n.len() {
            let mut cut = n[..len].to_vec();
            assert_eq!(b.arrives(0, &cut), Fate::Refused(Refusal::Mac), "{len} bytes of a notice");
            resign(&mut cut, &b.keys);
            assert_eq!(b.arrives(0, &cut), Fate::Refused(Refusal::Short), "{len} bytes of a notice, signed");
        }
        let mut frame = ipv4(&hb);
        frame.pop();
        assert_eq!(b.frame_arrives(0, &frame), Fate::Refused(Refusal::Short), "shorter than its UDP header says");
        let mut lies = ipv4(&hb);
        lies[38..40].copy_from_slice(&7u16.to_be_bytes());
        assert_eq!(b.frame_arrives(0, &lies), Fate::Refused(Refusal::Short), "a UDP length below its header");
        lies[38..40].copy_from_slice(&u16::MAX.to_be_bytes());
        assert_eq!(b.frame_arrives(0, &lies), Fate::Refused(Refusal::Short), "a UDP length beyond the frame");
    }

    fn the_question_of_another_agent_reaches_the_kernel_which_knows_whether_the_port_is_held() {
        let mut b = Bench::new();
        let mut probe = b"FiDp".to_vec();
        probe.extend([7; 16]);
        assert_eq!(b.arrives(0, &probe), Fate::Passed);
        assert_eq!(b.frame_arrives(0, &ipv6(&probe)), Fate::Passed);
        assert!(b.urgent().is_empty() && b.inbox().is_empty());
        assert_eq!(b.arrives(0, &probe[..19]), Fate::Refused(Refusal::Short));
        probe[3] = b'q';
        assert_eq!(b.arrives(0, &probe), Fate::Refused(Refusal::Short));
    }

    fn another_magic_version_kind_or_cluster_is_refused() {
        let mut b = Bench::new();
        let hb = b.heartbeat(0, b"");
        let mut with = |at: usize, value: u8| {
            let mut bad = hb.clone();
            bad[at] = value;
            b.arrives(0, &bad)
        };
        assert_eq!(with(0, 0), Fate::Refused(Refusal::Magic));
        assert_eq!(with(1, 0), Fate::Refused(Refusal::Magic));
        for version in (0..16).filter(|v| *v != packet::VERSION) {
            assert_eq!(with(2, version << 4 | 1), Fate::Refused(Refusal::Version));
        }
        for byte in 4..8 {
            assert_eq!(with(byte, 0x77), Fate::Refused(Refusal::Cluster));
        }
        // Kinds are looked at behind the tag: nobody without the key makes the agent speak of another version's kinds.
        assert_eq!(with(16, 99), Fate::Refused(Refusal::Mac));
        let known: Vec<u8> = Kind::ALL.into_iter().map(|kind| kind.frame() as u8).collect();
        for kind in (0..=255u8).filter(|kind| !known.contains(kind)) {
            for body in [&b""[..], b"?", &[7; 32]] {
                let mut bytes = b.heartbeat(0, b"");
                bytes.extend_from_slice(body);
                bytes[16] = kind;
                resign(&mut bytes, &b.keys);
                assert_eq!(b.arrives(0, &bytes), Fate::Refused(Refusal::Kind), "kind {kind}");
            }
        }
        let mut later = b.heartbeat(0, b"");
        (later[2], later[17]) = (packet::VERSION << 4 | 15, 99);
        resign(&mut later, &b.keys);
        assert_eq!(b.arrives(0, &later), Fate::Accepted, "flags and channels that this version does not know");
    }

    fn every_key_id_but_the_accepted_one_is_refused() {
        let mut b = Bench::new();
        let hb = b.heartbeat(0, b"");
        for id in (0..16).filter(|id| *id != 4) {
            let mut bad = hb.clone();
            bad[3] = id;
            assert_eq!(b.arrives(0, &bad), Fate::Refused(Refusal::Key), "id {id}");
        }
        // Without a key set, id 0 is the public one, and it alone is accepted.
        let mut open = Bench::with_keys(Keyring::default());
        let public = open.heartbeat(0, b"");
        assert_eq!(open.arrives(0, &public), Fate::Accepted);
        assert_eq!(open.arrives(0, &hb), Fate::Refused(Refusal::Key));
        assert_eq!(b.arrives(0, &public), Fate::Refused(Refusal::Key), "a public packet where a key is set");
    }

    fn the_tag_covers_every_bit_of_a_heartbeat_and_of_a_notice() {
        let mut b = Bench::new();
        let hb = b.heartbeat(0, b"");
        let notice = b.notice(0, 1, 5);
        for good in [&hb, &notice] {
            for bit in 8 * 8..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(b.arrives(0, &bad), Fate::Refused(Refusal::Mac), "bit {bit}");
            }
        }
        let forged = packet_of(&b.header(Kind::Notice, 0), Some(&a_notice(1, 5)), b"", &Keyring::new((4, Key([0xa4; 16])), None).unwrap());
        assert_eq!(b.arrives(0, &forged), Fate::Refused(Refusal::Mac), "another key under the same id");
        assert_eq!(b.urgent(), []);
        assert_eq!(b.arrives(0, &hb), Fate::Accepted);
        assert_eq!(b.arrives(0, &notice), Fate::Accepted);
        assert_eq!(b.urgent().len(), 1);
    }

    fn unknown_causes_and_grades_are_refused_though_signed() {
        let mut b = Bench::new();
        for cause in 0..=255u8 {
            for grade in [0, 1, 2, 3, 255] {
                let mut bytes = b.notice(0, u32::from(cause) + 1, 5);
                bytes[64] = cause;
                bytes[65] = grade;
                resign(&mut bytes, &b.keys);
                let known = Cause::from_u8(cause).is_some() && Grade::from_u8(grade).is_some();
                let fate = if known { Fate::Accepted } else { Fate::Refused(Refusal::Kind) };
                assert_eq!(b.arrives(0, &bytes), fate, "cause {cause} grade {grade}");
            }
        }
    }

    fn numbers_must_grow_on_each_path_and_in_each_class() {
        let mut b = Bench::new();
        let numbered = |b: &Bench, kind: Kind, path: u8, number: u64| {
            let h = Header { kind, path, key_id: 0, cluster: CLUSTER, sender: PEER, incarnation: PEER_INCARNATION, number, sent_ns: 1, period_ns: 1, table_version: 0, more: false };
            b.sign(&h, a_notice_of(kind, number as u32, 1).as_ref(), b"")
        };
        for kind in [Kind::Heartbeat, Kind::Notice] {
            assert_eq!({ let p = numbered(&b, kind, 0, 0); b.arrives(0, &p) }, Fate::Refused(Refusal::OldNumber), "numbers start at 1");
            for path in [0u8, 1] {
                let mut at = |n: u64| { let p = numbered(&b, kind, path, n); b.arrives(path.into(), &p) };
                assert_eq!(at(10), Fate::Accepted);
                assert_eq!(at(10), Fate::Refused(Refusal::OldNumber), "a replay");
                assert_eq!(at(9), Fate::Refused(Refusal::OldNumber), "an older one");
                assert_eq!(at(11), Fate::Accepted);
                assert_eq!(at(packet::NUMBER_MAX), Fate::Accepted);
                assert_eq!(at(12), Fate::Refused(Refusal::OldNumber));
            }
        }
        let peer = b.m.peer(PEER_SLOT);
        assert_eq!((peer.path[0].refused, peer.path[1].refused), (8, 6));
        // Messages that overtake each other, as frames of two receive queues do, are taken once each.
        let mut b = Bench::new();
        let mut at = |n: u64| { let p = numbered(&b, Kind::Message, 0, n); let fate = b.arrives(0, &p); (fate, b.inbox().len()) };
        let (taken, old) = ((Fate::Accepted, 1), (Fate::Refused(Refusal::OldNumber), 0));
        assert_eq!([at(0), at(10), at(10), at(12), at(11), at(11), at(12)], [old, taken, old, taken, taken, old, old]);
        assert_eq!([at(100), at(36), at(37), at(37)], [taken, old, taken, old], "those that are too far behind are refused");
    }

    fn other_incarnations_are_refused_until_the_agent_begins_them() {
        let mut b = Bench::new();
        let of = |b: &mut Bench, kind: Kind, incarnation: u32| {
            let h = Header { incarnation, ..b.header(kind, 0) };
            let p = b.sign(&h, a_notice_of(kind, h.number as u32, 1).as_ref(), if kind == Kind::Introduction { b"{}" } else { b"" });
            b.arrives(0, &p)
        };
        for kind in [Kind::Heartbeat, Kind::Notice, Kind::Leave, Kind::Pull, Kind::PathReport, Kind::Introduction] {
            assert_eq!(of(&mut b, kind, PEER_INCARNATION - 1), Fate::Refused(Refusal::OldIncarnation), "{kind:?} of the life before");
        }
        for kind in [Kind::Heartbeat, Kind::Notice, Kind::Leave, Kind::Pull, Kind::PathReport] {
            assert_eq!(of(&mut b, kind, PEER_INCARNATION + 1), Fate::Refused(Refusal::OldIncarnation), "{kind:?} of a life not begun");
        }
        assert!(b.inbox().is_empty() && b.urgent().is_empty());
        assert_eq!(of(&mut b, Kind::Introduction, PEER_INCARNATION + 1), Fate::Accepted);
        let inbox = b.inbox();
        assert_eq!((inbox.len(), inbox[0].0.incarnation), (1, PEER_INCARNATION + 1), "its announcement reaches the agent");
        assert_eq!(of(&mut b, Kind::Heartbeat, PEER_INCARNATION), Fate::Accepted, "which has not decided yet");

        b.m.set_peer(PEER_SLOT, PEER, PEER_INCARNATION + 1).unwrap();
        assert_eq!(b.m.peer(PEER_SLOT).path[0].number, 0);
        assert_eq!(of(&mut b, Kind::Heartbeat, PEER_INCARNATION), Fate::Refused(Refusal::OldIncarnation));
        assert_eq!(of(&mut b, Kind::Heartbeat, PEER_INCARNATION + 1), Fate::Accepted);
        let first = Header { number: 1, incarnation: PEER_INCARNATION + 1, ..b.header(Kind::Heartbeat, 1) };
        let first = b.sign(&first, None, b"");
        assert_eq!(b.arrives(1, &first), Fate::Accepted, "its numbers start over");
    }

    fn a_condemned_incarnation_is_cut_off_but_a_new_one_can_announce_itself() {
        let mut b = Bench::new();
        let hb = b.heartbeat(0, b"");
        assert_eq!(b.arrives(0, &hb), Fate::Accepted);
        b.m.condemn(PEER_SLOT);
        let before = b.m.peer(PEER_SLOT);
        for kind in [Kind::Heartbeat, Kind::Notice, Kind::Leave, Kind::Pull, Kind::Introduction] {
            let h = b.header(kind, 0);
            let p = b.sign(&h, a_notice_of(kind, 1, 1).as_ref(), b"");
            assert_eq!(b.arrives(0, &p), Fate::Refused(Refusal::OldIncarnation), "{kind:?}");
        }
        // But for what may say that it has given us up, and nothing of its row changes by that.
        let report = |b: &mut Bench, incarnation| {
            let h = Header { incarnation, ..b.header(Kind::PathReport, 0) };
            let p = b.sign(&h, None, b"");
            b.arrives(0, &p)
        };
        assert_eq!(report(&mut b, PEER_INCARNATION), Fate::Accepted);
        let newer = b.header(Kind::PathReport, 0);
        let newer = b.sign(&newer, None, b"");
        assert_eq!(b.arrives(0, &newer), Fate::Accepted);
        assert_eq!(b.arrives(0, &newer), Fate::Refused(Refusal::OldNumber), "a replay");
        for other in [PEER_INCARNATION - 1, PEER_INCARNATION + 1] {
            assert_eq!(report(&mut b, other), Fate::Refused(Refusal::OldIncarnation));
        }
        assert_eq!(b.m.peer(PEER_SLOT).path[0].event_number, before.path[0].event_number);
        let h = Header { incarnation: PEER_INCARNATION + 1, ..b.header(Kind::Introduction, 0) };
        let p = b.sign(&h, None, b"{}");
        assert_eq!(b.arrives(0, &p), Fate::Accepted);
        b.m.set_peer(PEER_SLOT, PEER, PEER_INCARNATION + 1).unwrap();
        let h = Header { incarnation: PEER_INCARNATION + 1, ..b.header(Kind::Heartbeat, 0) };
        let p = b.sign(&h, None, b"");
        assert_eq!(b.arrives(0, &p), Fate::Accepted);
    }

    fn a_copy_on_the_wrong_path_is_refused() {
        let mut b = Bench::new();
        for said in 0..16u8 {
            for arrived in 0..2 {
                let hb = b.heartbeat(said, b"");
                let fate = if u32::from(said) == arrived { Fate::Accepted } else { Fate::Refused(Refusal::WrongPath) };
                assert_eq!(b.arrives(arrived, &hb), fate, "sent on {said}, arrived on {arrived}");
            }
        }
    }

    fn nobody_without_the_key_can_make_cables_look_mixed_up() {
        let mut b = Bench::new();
        let mut hb = b.heartbeat(0, b"");
        hb[3] ^= 0x10;
        assert_eq!(b.arrives(0, &hb), Fate::Refused(Refusal::Mac));
    }

    fn a_packet_larger_than_any_is_refused() {
        let mut b = Bench::new();
        let mut hb = b.heartbeat(0, &[7; BODY_MAX]);
        hb.resize(PACKET_MAX, 7);
        assert_eq!(b.arrives(0, &hb), Fate::Refused(Refusal::Mac));
        hb.push(7);
        assert_eq!(b.arrives(0, &hb), Fate::Refused(Refusal::Oversize));
        hb.resize(PACKET_MAX + 1000, 7);
        assert_eq!(b.arrives(0, &hb), Fate::Refused(Refusal::Oversize));
        let mut bare = b.heartbeat(0, b"");
        bare.extend_from_slice(b"appended");
        assert_eq!(b.arrives(0, &bare), Fate::Refused(Refusal::Mac), "the tag is over the body, too");
        let mut notice = b.notice(0, 1, 1);
        notice.push(0);
        assert_eq!(b.arrives(0, &notice), Fate::Refused(Refusal::Mac));
        resign(&mut notice, &b.keys);
        assert_eq!(b.arrives(0, &notice), Fate::Refused(Refusal::Short), "a second change, cut short");
        assert!(b.inbox().is_empty() && b.urgent().is_empty());
    }

    fn a_body_cannot_be_cut_off() {
        let mut b = Bench::new();
        let hb = b.heartbeat(0, b"body");
        for len in 48..hb.len() {
            assert_eq!(b.arrives(0, &hb[..len]), Fate::Refused(Refusal::Mac), "{len} bytes");
            let mut cut = hb[..len].to_vec();
            resign(&mut cut, &b.keys);
            let fate = if len == 48 { Fate::Accepted } else { Fate::Refused(Refusal::Short) };
            assert_eq!(b.arrives(0, &cut), fate, "{len} bytes, signed");
        }
    }

    /// Issue 16: what is heard of this host's own name is told apart by what was sent; its announcements reach the agent, each once.
    fn our_own_packets_are_refused_and_counted_and_their_announcements_shown_to_the_agent() {
        let mut b = Bench::new();
        let own = |b: &mut Bench, kind: Kind, incarnation: u32, number: u64| {
            let h = Header { sender: SELF, incarnation, number, ..b.header(kind, 0) };
            let p = b.sign(&h, a_notice_of(kind, 1, 1).as_ref(), if kind == Kind::Introduction { b"{}" } else { b"" });
            b.arrives(0, &p)
        };
        b.m.note_sent(true, 100);
        b.m.note_sent(false, 10);
        for kind in [Kind::Heartbeat, Kind::Notice, Kind::Leave, Kind::Pull, Kind::PathReport] {
            assert_eq!(own(&mut b, kind, SELF_INCARNATION, 10), Fate::Refused(Refusal::Own), "{kind:?}");
        }
        assert_eq!(b.m.complaints(), (0, 0), "they were sent");
        assert_eq!(own(&mut b, Kind::Notice, SELF_INCARNATION, 11), Fate::Refused(Refusal::Own));
        assert_eq!(own(&mut b, Kind::Heartbeat, SELF_INCARNATION, 101), Fate::Refused(Refusal::Own));
        assert_eq!(own(&mut b, Kind::Heartbeat, 1234, 1), Fate::Refused(Refusal::Own));
        assert_eq!(b.m.complaints(), (3, 0), "this incarnation did not send these");
        assert!(b.inbox().is_empty() && b.urgent().is_empty());
        for incarnation in [SELF_INCARNATION, 1234] {
            for (number, shown) in [(5, 1), (5, 0), (4, 0), (6, 1)] {
                assert_eq!(own(&mut b, Kind::Introduction, incarnation, number), Fate::Refused(Refusal::Own));
                let inbox = b.inbox();
                assert_eq!(inbox.len(), shown, "{incarnation} {number}");
                assert!(inbox.iter().all(|(r, _)| (r.node, r.incarnation) == (SELF, incarnation)));
            }
        }
        b.m.set_peer(PEER_SLOT, SELF, 1234).unwrap();
        assert_eq!(own(&mut b, Kind::Heartbeat, 1234, 9), Fate::Refused(Refusal::Own), "whatever the table says");
    }

    fn a_stranger_is_heard_only_when_it_announces_itself() {
        let mut b = Bench::new();
        for kind in [Kind::Heartbeat, Kind::Notice, Kind::Leave, Kind::Pull, Kind::PathReport] {
            let h = Header { sender: 99, ..b.header(kind, 0) };
            let p = b.sign(&h, a_notice_of(kind, 1, 1).as_ref(), b"");
            assert_eq!(b.arrives(0, &p), Fate::Refused(Refusal::UnknownSender), "{kind:?}");
        }
        let h = Header { sender: 99, ..b.header(Kind::Introduction, 0) };
        let p = b.sign(&h, None, br#"{"name":"x","version":1}"#);
        assert_eq!(b.arrives(0, &p), Fate::Accepted);
        let inbox = b.inbox();
        assert_eq!((inbox.len(), inbox[0].0.node, &inbox[0].1), (1, 99, &p));
    }

    fn a_first_fragment_is_refused() {
        let mut b = Bench::new();
        let hb = b.heartbeat(0, b"");
        assert_eq!(b.frame_arrives(0, &ethernet(0x0800, &ip4(5, 0x2000, 17, &udp(PORT, &hb)))), Fate::Refused(Refusal::Fragment));
        assert_eq!(b.frame_arrives(0, &ethernet(0x0800, &ip4(5, 0x4000, 17, &udp(PORT, &hb)))), Fate::Accepted, "do-not-fragment is none");
    }

    fn a_peer_that_was_removed_is_a_stranger() {
        let mut b = Bench::new();
        b.m.remove_peer(PEER_SLOT, PEER);
        let hb = b.heartbeat(0, b"");
        assert_eq!(b.arrives(0, &hb), Fate::Refused(Refusal::UnknownSender));
        assert_eq!(b.m.peer(PEER_SLOT), fide_xdp::layout::Peer::default());
    }
}

/// Puts the right tag over whatever these bytes are.
fn resign(bytes: &mut [u8], keys: &Keyring) {
    let (id, key) = keys.sending();
    bytes[3] = bytes[3] & 0xf0 | id;
    if bytes.len() >= BODY_AT {
        let tag = key.frame_tag(&bytes[..HEADER_LEN], &bytes[BODY_AT..]);
        bytes[HEADER_LEN..BODY_AT].copy_from_slice(&tag.to_be_bytes());
    }
}

// Heartbeats.

as_root! {
    fn a_heartbeat_updates_its_row_and_nothing_else() {
        let mut b = Bench::new();
        let before = now_ns();
        let hb = b.heartbeat(1, b"");
        assert_eq!(b.arrives(1, &hb), Fate::Accepted);
        let (row, after) = (b.m.peer(PEER_SLOT), now_ns());
        assert_eq!((row.node, row.incarnation, row.period_ns, row.condemned), (PEER, PEER_INCARNATION, PERIOD_NS, 0));
        let p = row.path[1];
        assert_eq!((p.number, p.sent_ns, p.arrived, p.lost, p.event_number, p.refused), (1, 0x1122_3344_5566_7788, 1, 0, 0, 0));
        assert!((before..=after).contains(&p.arrived_ns), "stamped on this host's CLOCK_MONOTONIC");
        assert_eq!(row.path[0], fide_xdp::layout::Path::default());
        assert!((0..fide_wire::SLOTS).filter(|s| *s != PEER_SLOT).all(|s| b.m.peer(s) == fide_xdp::layout::Peer::default()));
        assert!(b.inbox().is_empty() && b.urgent().is_empty(), "a bare heartbeat wakes nobody");
    }

    /// The kernel's marks are what `Marks::count` makes of the same arrivals; a new life has none.
    fn every_64th_heartbeat_leaves_a_mark() {
        let mut b = Bench::new();
        let mut marks = [Marks::default(); 2];
        for n in 0..300 {
            let path = u8::from(n % 3 == 0);
            let hb = b.heartbeat(path, b"");
            if n % 50 == 7 {
                continue; // one is lost
            }
            assert_eq!(b.arrives(u32::from(path), &hb), Fate::Accepted);
            let row = b.m.peer(PEER_SLOT);
            let p = row.path[usize::from(path)];
            marks[usize::from(path)].count(p.arrived, p.lost, p.arrived_ns);
            assert_eq!(row.mark.map(Marks), marks, "after {n}");
        }
        let p = b.m.peer(PEER_SLOT).path[0];
        let recent = marks[0].recent(p.arrived, p.lost, p.arrived_ns);
        assert!((64..128).contains(&recent.came) && recent.lost > 0, "{recent:?}");
        b.m.set_peer(PEER_SLOT, PEER, PEER_INCARNATION + 1).unwrap();
        assert_eq!(b.m.peer(PEER_SLOT).mark, [[0; 2]; 2]);
    }

    fn both_paths_are_counted_on_their_own() {
        let mut b = Bench::new();
        for _ in 0..5 {
            let hb = b.heartbeat(0, b"");
            assert_eq!(b.arrives(0, &hb), Fate::Accepted);
        }
        for _ in 0..2 {
            let hb = b.heartbeat(1, b"");
            assert_eq!(b.arrives(1, &hb), Fate::Accepted);
        }
        let row = b.m.peer(PEER_SLOT);
        assert_eq!((row.path[0].number, row.path[0].arrived, row.path[0].lost), (5, 5, 0));
        assert_eq!((row.path[1].number, row.path[1].arrived, row.path[1].lost), (7, 2, 0));
    }

    fn numbers_that_never_arrive_are_lost_and_those_before_the_first_are_not() {
        let mut b = Bench::new();
        for number in [100, 101, 105, 106, 110] {
            let h = Header { number, ..b.header(Kind::Heartbeat, 0) };
            let p = b.sign(&h, None, b"");
            assert_eq!(b.arrives(0, &p), Fate::Accepted);
        }
        let p = b.m.peer(PEER_SLOT).path[0];
        assert_eq!((p.number, p.arrived, p.lost), (110, 5, 6));
    }

    /// The excess over the period is what the stamps say it is, in the bucket that everybody else will read.
    fn jitter_is_counted_in_the_bucket_that_rust_computes() {
        let mut b = Bench::new();
        let mut expected = [0u32; jitter::BUCKETS];
        let mut largest = 0;
        let mut last = None;
        for i in 0..400u64 {
            // A period that differs from beat to beat, from far above the gap to 0, covers many buckets.
            let period_ns = if i % 4 == 0 { u32::MAX } else { 1u32 << (i % 17) } - 1;
            let h = Header { period_ns, ..b.header(Kind::Heartbeat, 0) };
            let p = b.sign(&h, None, b"");
            assert_eq!(b.arrives(0, &p), Fate::Accepted);
            if i % 50 == 49 {
                // Sleep: a gap of another length between two heartbeats, so that other buckets are
                // hit.
                std::thread::sleep(std::time::Duration::from_micros(1 << (i / 50 + 5)));
            }
            let at = b.m.peer(PEER_SLOT).path[0].arrived_ns;
            if let Some(last) = last.replace(at) {
                let excess = (at - last).saturating_sub(period_ns.into());
                expected[jitter::bucket(excess)] += 1;
                largest = largest.max(excess);
            }
        }
        assert_eq!(b.m.jitter(PEER_SLOT, 0), expected);
        assert!(expected.iter().filter(|n| **n > 0).count() > 8, "many buckets were tried");
        assert_eq!(b.m.jitter(PEER_SLOT, 1), [0; jitter::BUCKETS]);
        assert_eq!(b.m.take_jitter_max(PEER_SLOT, 0), largest);
        assert_eq!(b.m.take_jitter_max(PEER_SLOT, 0), 0);
    }

    fn a_lost_heartbeat_does_not_count_as_jitter() {
        let mut b = Bench::new();
        for number in [1, 3, 5] {
            let h = Header { number, ..b.header(Kind::Heartbeat, 0) };
            let p = b.sign(&h, None, b"");
            assert_eq!(b.arrives(0, &p), Fate::Accepted);
        }
        assert_eq!(b.m.jitter(PEER_SLOT, 0).iter().sum::<u32>(), 0);
    }

    fn a_body_of_every_length_reaches_the_inbox_byte_for_byte() {
        let mut b = Bench::new();
        for len in 1..=BODY_MAX {
            let body: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
            let sent = b.heartbeat((len & 1) as u8, &body);
            let wrapped = if len & 2 == 0 { ipv4(&sent) } else { ipv6(&sent) };
            assert_eq!(b.frame_arrives((len & 1) as u32, &wrapped), Fate::Accepted, "{len}");
            let inbox = b.inbox();
            let [(record, bytes)] = inbox.as_slice() else { panic!("{} entries for {len}", inbox.len()) };
            assert_eq!(*bytes, sent, "{len}");
            assert_eq!((record.kind(), record.node, record.incarnation), (Some(RecordKind::Packet), PEER, PEER_INCARNATION));
            assert_eq!((record.path, record.sent_ns, usize::from(record.body_len)), ((len & 1) as u8, 0x1122_3344_5566_7788, sent.len()));
            assert_eq!(record.received_ns, b.m.peer(PEER_SLOT).path[len & 1].arrived_ns);
            assert_eq!(packet::decode(bytes, CLUSTER, &b.keys).unwrap().body, body);
        }
    }

    fn a_replayed_piggyback_is_not_delivered_again() {
        let mut b = Bench::new();
        let hb = b.heartbeat(0, b"once");
        assert_eq!(b.arrives(0, &hb), Fate::Accepted);
        assert_eq!(b.arrives(0, &hb), Fate::Refused(Refusal::OldNumber));
        assert_eq!(b.inbox().len(), 1);
    }

    fn a_piggyback_of_every_length_reaches_its_subscribers_and_nobody_else() {
        let mut b = Bench::new();
        b.m.leave_piggybacks(false);
        let (app_ring, other_ring) = (b.m.new_subscriber().unwrap(), b.m.new_subscriber().unwrap());
        b.m.set_subscribers(PEER, 0x0102, 1 << app_ring.index).unwrap();
        b.m.set_subscribers(PEER, 0x0103, 1 << other_ring.index).unwrap();
        let ring = Mapped::new(app_ring.fd(), RING_BYTES as usize).unwrap();
        for len in 1..=PIGGYBACK_MAX {
            let message: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
            let body = [&[1, 2][..], &message].concat();
            let sent = b.heartbeat((len & 1) as u8, &body);
            let wrapped = if len & 2 == 0 { ipv4(&sent) } else { ipv6(&sent) };
            assert_eq!(b.frame_arrives((len & 1) as u32, &wrapped), Fate::Accepted, "{len}");
            let got = ring.all();
            let [(record, bytes)] = got.as_slice() else { panic!("{} entries for {len}", got.len()) };
            assert_eq!(*bytes, message, "{len}");
            assert_eq!((record.kind(), record.node, record.app, record.incarnation), (Some(RecordKind::Piggyback), PEER, 0x0102, PEER_INCARNATION));
        }
        assert!(Mapped::new(other_ring.fd(), RING_BYTES as usize).unwrap().all().is_empty());
        assert!(b.inbox().is_empty(), "the agent has nothing to do with it");
    }

    fn a_piggyback_comes_once_by_two_paths_and_not_after_the_crash_of_its_process() {
        let mut b = Bench::new();
        b.m.leave_piggybacks(false);
        let s = b.m.new_subscriber().unwrap();
        b.m.set_subscribers(0, 0, 1 << s.index).unwrap();
        let ring = Mapped::new(s.fd(), RING_BYTES as usize).unwrap();
        let kinds = || ring.all().iter().map(|(r, _)| r.kind().unwrap()).collect::<Vec<_>>();
        let first = b.heartbeat(0, &[0, 1, b'a']);
        let late = b.heartbeat(0, &[0, 1, b'b']);
        let other = b.heartbeat(0, &[0, 2, b'c']);
        assert_eq!(b.arrives(0, &first), Fate::Accepted);
        let header = Header { path: 1, ..packet::decode(&first, CLUSTER, &b.keys).unwrap().header };
        let copy = b.sign(&header, None, &[0, 1, b'a']);
        assert_eq!(b.arrives(1, &copy), Fate::Accepted);
        assert_eq!(kinds(), [RecordKind::Piggyback]);
        let crash = b.notice(0, 1, 1);
        assert_eq!(b.arrives(0, &crash), Fate::Accepted);
        assert_eq!(kinds(), [RecordKind::Process]);
        assert_eq!(b.arrives(0, &late), Fate::Accepted, "a heartbeat is a heartbeat");
        assert!(kinds().is_empty(), "fail-consistency: never after the crash was told");
        assert_eq!(b.arrives(0, &other), Fate::Accepted);
        assert_eq!(kinds(), [RecordKind::Piggyback], "another process of that host lives on");
    }

    fn a_piggyback_of_a_process_with_a_number_above_65535_is_that_processes() {
        const APP: u32 = 0x3_0102;
        let mut b = Bench::new();
        b.m.leave_piggybacks(false);
        let (s, other) = (b.m.new_subscriber().unwrap(), b.m.new_subscriber().unwrap());
        b.m.set_subscribers(PEER, APP, 1 << s.index).unwrap();
        b.m.set_subscribers(PEER, 0x0102, 1 << other.index).unwrap();
        let rings = [&s, &other].map(|s| Mapped::new(s.fd(), RING_BYTES as usize).unwrap());
        let from = |b: &mut Bench| {
            let piggyback = b.heartbeat(0, &[1, 2, b'x']);
            assert_eq!(b.arrives(0, &piggyback), Fate::Accepted);
            rings.each_ref().map(|ring| ring.all().iter().map(|(r, _)| r.app).collect::<Vec<_>>())
        };
        assert_eq!(from(&mut b), [vec![], vec![0x0102]]);
        b.m.set_number(PEER, PEER_INCARNATION, APP).unwrap();
        assert_eq!(from(&mut b), [vec![APP], vec![]]);
        b.m.forget_number(PEER, APP + 0x1_0000);
        assert_eq!(from(&mut b), [vec![APP], vec![]], "another one of the same low half");
        b.m.set_number(PEER, PEER_INCARNATION - 1, APP).unwrap();
        assert_eq!(from(&mut b), [vec![], vec![0x0102]], "in another incarnation");
        b.m.set_number(PEER, PEER_INCARNATION, APP).unwrap();
        b.m.forget_number(PEER, APP);
        assert_eq!(from(&mut b), [vec![], vec![0x0102]]);
        // Its end is looked up under its own number.
        b.m.set_number(PEER, PEER_INCARNATION, APP).unwrap();
        let crash = b.notice(0, 1, APP);
        assert_eq!(b.arrives(0, &crash), Fate::Accepted);
        rings.iter().for_each(|ring| drop(ring.all()));
        assert!(from(&mut b).iter().all(Vec::is_empty));
    }

    fn the_tag_of_a_body_is_judged_as_rust_judges_it() {
        let mut b = Bench::new();
        b.m.leave_piggybacks(false);
        let s = b.m.new_subscriber().unwrap();
        b.m.set_subscribers(0, 0, 1 << s.index).unwrap();
        let ring = Mapped::new(s.fd(), RING_BYTES as usize).unwrap();
        for len in (3..=BODY_MAX).step_by(37).chain([3, 4, 7, 8, 9, 10, 11, BODY_MAX]) {
            let good = b.heartbeat(0, &vec![len as u8; len]);
            for byte in [51, 52, 40, 47, good.len() - 1, 51 + len / 2] {
                let mut bad = b.heartbeat(0, &vec![len as u8; len]);
                bad[byte] ^= 1 << (len % 8);
                assert_eq!(packet::decode(&bad, CLUSTER, &b.keys).unwrap_err(), Refusal::Mac);
                assert_eq!(b.arrives(0, &bad), Fate::Refused(Refusal::Mac), "{len} {byte}");
                assert!(ring.all().is_empty());
            }
        }
    }

    /// Who sees a packet can send its header on with another body. That must not use up the number of the packet it was taken from.
    fn a_forged_body_does_not_use_up_the_number_of_its_packet() {
        for to_agent in [true, false] {
            let mut b = Bench::new();
            b.m.leave_piggybacks(to_agent);
            let s = b.m.new_subscriber().unwrap();
            b.m.set_subscribers(0, 0, 1 << s.index).unwrap();
            let ring = Mapped::new(s.fd(), RING_BYTES as usize).unwrap();
            for kind in [Kind::Heartbeat, Kind::Pull, Kind::PathReport, Kind::Introduction] {
                for len in [3, 8, 9, 100, BODY_MAX] {
                    let h = b.header(kind, 0);
                    let good = b.sign(&h, None, &vec![7; len]);
                    let before = b.m.peer(PEER_SLOT);
                    for byte in [40, 47, 48, good.len() - 1] {
                        let mut forged = good.clone();
                        forged[byte] ^= 0x10;
                        assert_eq!(b.arrives(0, &forged), Fate::Refused(Refusal::Mac), "{kind:?} {len} {byte}");
                    }
                    assert_eq!(b.arrives(0, &good[..good.len() - 1]), Fate::Refused(Refusal::Mac));
                    assert_eq!(b.m.peer(PEER_SLOT), before, "{kind:?} {len}: nothing of its row changed");
                    assert!(b.inbox().is_empty() && ring.all().is_empty());
                    assert_eq!(b.arrives(0, &good), Fate::Accepted, "{kind:?} {len}");
                    assert_eq!(b.inbox().len() + ring.all().len(), 1, "{kind:?} {len}");
                    assert_eq!(b.arrives(0, &good), Fate::Refused(Refusal::OldNumber));
                }
            }
            // Nor that of the last word of one who was given up.
            b.m.condemn(PEER_SLOT);
            let h = b.header(Kind::PathReport, 0);
            let good = b.sign(&h, None, &[7; 44]);
            let mut forged = good.clone();
            forged[60] ^= 1;
            assert_eq!(b.arrives(0, &forged), Fate::Refused(Refusal::Mac));
            assert_eq!(b.arrives(0, &good), Fate::Accepted);
        }
    }

    fn reports_confirmations_and_announcements_reach_the_inbox_whole() {
        let mut b = Bench::new();
        for kind in [Kind::Pull, Kind::PathReport, Kind::Introduction] {
            for body in [&b""[..], b"x", &[3; BODY_MAX]] {
                let h = b.header(kind, 0);
                let sent = b.sign(&h, None, body);
                assert_eq!(b.arrives(0, &sent), Fate::Accepted);
                let inbox = b.inbox();
                assert_eq!((inbox.len(), &inbox[0].1, inbox[0].0.number), (1, &sent, h.number));
            }
        }
    }
}

// Notices.

as_root! {
    fn a_notice_reaches_exactly_its_subscribers_once_for_two_copies() {
        let mut b = Bench::new();
        let subscribers: Vec<_> = (0..5).map(|_| b.m.new_subscriber().unwrap()).collect();
        let rings: Vec<Mapped> = subscribers.iter().map(|s| Mapped::new(s.fd(), RING_BYTES as usize).unwrap()).collect();
        b.m.set_subscribers(PEER, 5, 1 << subscribers[0].index).unwrap();
        b.m.set_subscribers(PEER, 0, 1 << subscribers[1].index).unwrap();
        b.m.set_subscribers(0, 0, 1 << subscribers[2].index).unwrap();
        b.m.set_subscribers(PEER, 6, 1 << subscribers[3].index).unwrap();
        b.m.set_subscribers(PEER + 1, 0, 1 << subscribers[4].index).unwrap();

        let first = b.notice(0, 1, 5);
        let second = b.notice(1, 1, 5);
        assert_eq!(b.arrives(0, &first), Fate::Accepted);
        assert_eq!(b.arrives(1, &second), Fate::Accepted);

        let expected = Record {
            kind: RecordKind::Process as u16,
            cause: Cause::Doomed as u8,
            grade: Grade::Certain as u8,
            node: PEER,
            app: 5,
            incarnation: PEER_INCARNATION,
            code: 9,
            path: 0,
            id: u64::from(PEER) << 32 | 1,
            event_ns: 777,
            sent_ns: 0x1122_3344_5566_7788,
            number: 1,
            ..Record::default()
        };
        let got: Vec<_> = rings.iter().map(Mapped::all).collect();
        assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1, 0, 0], "by process, by node, all; not another process or node");
        for ring in &got[..3] {
            let (record, body) = &ring[0];
            assert_eq!(Record { received_ns: 0, ..*record }, expected);
            assert!(record.received_ns > 0 && body.is_empty());
        }
        let urgent = b.urgent();
        assert_eq!(urgent.iter().map(|r| r.flags).collect::<Vec<_>>(), [0, Record::DUPLICATE]);
        assert_eq!(urgent.iter().map(|r| r.path).collect::<Vec<_>>(), [0, 1]);

        b.m.set_subscribers(PEER, 5, 0).unwrap();
        let again = b.notice(0, 2, 5);
        assert_eq!(b.arrives(0, &again), Fate::Accepted);
        let got: Vec<_> = rings.iter().map(|r| r.all().len()).collect();
        assert_eq!(got, [0, 1, 1, 0, 0], "after it unsubscribed");
    }

    fn notices_that_came_together_are_told_one_by_one_and_once() {
        let mut b = Bench::new();
        let s = b.m.new_subscriber().unwrap();
        b.m.set_subscribers(PEER, 0, 1 << s.index).unwrap();
        let ring = Mapped::new(s.fd(), RING_BYTES as usize).unwrap();
        let all: Vec<Notice> = (1..=44).map(|n| Notice { event_ns: 700 + u64::from(n), code: n as i32, ..a_notice(n, 100 + n) }).collect();
        let ids = |records: &[Record]| records.iter().map(|r| (r.id as u32, r.app, r.code, r.event_ns)).collect::<Vec<_>>();
        let told = |notices: &[Notice]| notices.iter().map(|n| (n.notice, n.app, n.code, n.event_ns)).collect::<Vec<_>>();
        // The other path's copies, and one in another frame, are told of no more.
        for (path, notices, new) in [(0, &all[..2], &all[..2]), (1, &all[..2], &all[..0]), (1, &all[1..], &all[2..]), (0, &all[..], &all[..0])] {
            let bytes = b.notices(path, notices);
            assert_eq!(b.arrives(path.into(), &bytes), Fate::Accepted);
            let records: Vec<Record> = ring.all().into_iter().map(|(record, _)| record).collect();
            assert_eq!(ids(&records), told(new), "the subscriber, in their order");
            assert!(records.iter().all(|r| r.path == path && r.node == PEER && r.cause() == Some(Cause::Doomed) && r.flags == 0));
            assert_eq!(b.urgent(), records, "the agent");
        }
        // Nothing piggybacked is handed on behind their ends.
        b.m.leave_piggybacks(false);
        for (app, told) in [(101u16, 0), (144, 0), (145, 1)] {
            let hb = b.heartbeat(0, &[&app.to_be_bytes()[..], b"last words"].concat());
            assert_eq!(b.arrives(0, &hb), Fate::Accepted);
            assert_eq!(ring.all().len(), told, "{app}");
        }
    }

    fn of_notices_that_came_together_all_are_read_or_none() {
        let mut b = Bench::new();
        let mut model = model(&b);
        let all: Vec<Notice> = (1..=44).map(|n| a_notice(n, 100 + n)).collect();
        for count in [2usize, 3, 36, 44] {
            for spoilt in [0, 1, count - 1] {
                for (field, value) in [(0, 1u8), (7, 0), (8, 1), (16, 99), (17, 7)] {
                    let mut bytes = b.notices(0, &all[..count]);
                    let at = BODY_AT + spoilt * 32 + field;
                    if field == 7 {
                        bytes[at - 3..=at].fill(value); // row 0: a leave
                    } else {
                        bytes[at] ^= value;
                    }
                    resign(&mut bytes, &b.keys);
                    assert_eq!(agrees(&mut b, &mut model, 0, &bytes), Fate::Refused(Refusal::Kind), "{count}, {spoilt}, byte {field}");
                }
            }
            for cut in [1, 31, 33] {
                let mut bytes = b.notices(0, &all[..count]);
                bytes.truncate(bytes.len() - cut);
                resign(&mut bytes, &b.keys);
                assert_eq!(agrees(&mut b, &mut model, 0, &bytes), Fate::Refused(Refusal::Short), "{count}, {cut} bytes less");
            }
            let bytes = b.notices(0, &all[..count]);
            assert_eq!(agrees(&mut b, &mut model, 0, &bytes), Fate::Accepted);
        }
    }

    fn one_ring_subscribed_three_ways_gets_one_record() {
        let mut b = Bench::new();
        let s = b.m.new_subscriber().unwrap();
        for (node, app) in [(PEER, 5), (PEER, 0), (0, 0)] {
            b.m.set_subscribers(node, app, 1 << s.index).unwrap();
        }
        let n = b.notice(0, 1, 5);
        assert_eq!(b.arrives(0, &n), Fate::Accepted);
        assert_eq!(Mapped::new(s.fd(), RING_BYTES as usize).unwrap().all().len(), 1);
    }

    fn a_leave_is_about_the_host_and_a_confirmation_says_so() {
        let mut b = Bench::new();
        let h = b.header(Kind::Leave, 0);
        let leave = b.sign(&h, Some(&Notice { cause: Cause::Left, app: 0, ..a_notice(1, 0) }), b"");
        let h = b.header(Kind::Notice, 0);
        let confirms = b.sign(&h, Some(&Notice { cause: Cause::Killed, flags: Notice::CONFIRMS, code: -5, ..a_notice(2, 4) }), b"");
        assert_eq!(b.arrives(0, &leave), Fate::Accepted);
        assert_eq!(b.arrives(0, &confirms), Fate::Accepted);
        let urgent = b.urgent();
        assert_eq!((urgent[0].kind(), urgent[0].cause(), urgent[0].app), (Some(RecordKind::Host), Some(Cause::Left), 0));
        assert_eq!((urgent[1].kind(), urgent[1].flags, urgent[1].code), (Some(RecordKind::Process), Record::CONFIRMS, -5));
    }

    /// The second copy of what is for groups would only wake the agent; what one path lost, and what its ring could not take, comes by the other one.
    fn what_is_for_groups_reaches_the_agent_once() {
        let mut b = Bench::new();
        let message = |b: &mut Bench, path: u8, number: u64| {
            let header = Header { number, ..b.header(Kind::Message, path) };
            let p = b.sign(&header, None, b"segment");
            let fate = b.arrives(path.into(), &p);
            assert_eq!(fate, Fate::Accepted);
            b.inbox().len()
        };
        let ride = |b: &mut Bench, path: u8, number: u64| {
            let mut body = Vec::new();
            assert!(fide_wire::frame::items::push(&mut body, 100, fide_wire::frame::Channel::Groups, b"decision"));
            let header = Header { number, ..b.header(Kind::Heartbeat, path) };
            let mut p = [0; fide_wire::packet::PACKET_MAX];
            let len = fide_wire::packet::encode_items(&mut p, &header, &body, &b.keys).unwrap();
            assert_eq!(b.arrives(path.into(), &p[..len]), Fate::Accepted);
            b.inbox().len()
        };
        for of in [message as fn(&mut Bench, u8, u64) -> usize, ride] {
            assert_eq!([of(&mut b, 0, 1), of(&mut b, 1, 1)], [1, 0]);
            assert_eq!([of(&mut b, 1, 2), of(&mut b, 0, 2)], [1, 0], "whichever comes first");
            assert_eq!([of(&mut b, 0, 4), of(&mut b, 1, 3), of(&mut b, 1, 4)], [1, 1, 0], "the first path has lost one");
            assert_eq!([of(&mut b, 0, 100), of(&mut b, 1, 5)], [1, 1], "what is forgotten is handed over");
        }
        // Numbers of heartbeats and of messages are not the same.
        assert_eq!([message(&mut b, 1, 101), ride(&mut b, 1, 101), message(&mut b, 0, 101), ride(&mut b, 0, 101)], [1, 1, 0, 0]);
    }

    /// A copy that is refused stops its receiver, so each path's is handed over, once, also behind
    /// frames that were sent after it and came by another receive queue.
    fn every_copy_of_a_round_reaches_the_agent_by_each_path_once() {
        let mut b = Bench::new();
        let arrives = |b: &mut Bench, kind: Kind, path: u8, number: u64| {
            let header = Header { number, ..b.header(kind, path) };
            let p = b.sign(&header, None, b"round");
            let fate = b.arrives(path.into(), &p);
            (fate, b.inbox().len())
        };
        let copy = |b: &mut Bench, path: u8, number: u64| arrives(b, Kind::Copy, path, number);
        assert_eq!([copy(&mut b, 0, 10), copy(&mut b, 1, 10)], [(Fate::Accepted, 1); 2], "both paths'");
        assert_eq!(copy(&mut b, 1, 10), (Fate::Refused(Refusal::OldNumber), 0), "a replay");
        assert_eq!(arrives(&mut b, Kind::Message, 0, 13), (Fate::Accepted, 1));
        assert_eq!(copy(&mut b, 0, 12), (Fate::Accepted, 1), "overtaken by a message");
        assert_eq!(copy(&mut b, 0, 11), (Fate::Accepted, 1), "and by another copy");
        assert_eq!(copy(&mut b, 0, 11), (Fate::Refused(Refusal::OldNumber), 0));
        assert_eq!(copy(&mut b, 0, 100), (Fate::Accepted, 1));
        assert_eq!(copy(&mut b, 0, 14), (Fate::Refused(Refusal::OldNumber), 0), "too far behind");
        assert_eq!(arrives(&mut b, Kind::Message, 0, 14), (Fate::Accepted, 1), "copies use up no other frame's number");
    }

    /// Frames that follow each other wake the agent once, behind the last one; and what is for
    /// groups does not wake it while it rests.
    fn the_agent_is_woken_once_for_frames_that_follow_each_other() {
        let mut b = Bench::new();
        let woken = Woken::new(b.inbox.raw_fd());
        let message = |b: &mut Bench, number: u64, more: bool| {
            let header = Header { number, more, ..b.header(Kind::Message, 0) };
            let p = b.sign(&header, None, b"segment");
            assert_eq!(b.arrives(0, &p), Fate::Accepted);
        };
        message(&mut b, 1, false);
        assert!(woken.is_woken(), "alone");
        assert_eq!(b.inbox().len(), 1);
        message(&mut b, 2, true);
        message(&mut b, 3, true);
        assert!(woken.sleeps_on(), "more follow");
        message(&mut b, 4, false);
        assert!(woken.is_woken(), "the last one");
        assert_eq!(b.inbox().len(), 3);
        message(&mut b, 5, false);
        assert!(woken.is_woken(), "alone again");
        // It rests: only what is not for groups wakes it, also for what came before.
        b.inbox();
        b.m.rest(u64::MAX);
        message(&mut b, 6, false);
        assert!(woken.sleeps_on(), "it rests");
        let header = Header { number: 7, ..b.header(Kind::PathReport, 0) };
        let report = b.sign(&header, None, b"");
        assert_eq!(b.arrives(0, &report), Fate::Accepted);
        assert!(woken.is_woken(), "a report");
        assert_eq!(b.inbox().len(), 2);
        b.m.rest(1);
        message(&mut b, 8, false);
        assert!(woken.is_woken(), "its rest is over");
    }

    fn notices_out_of_order_are_each_delivered_once() {
        let mut b = Bench::new();
        let s = b.m.new_subscriber().unwrap();
        b.m.set_subscribers(0, 0, 1 << s.index).unwrap();
        let ring = Mapped::new(s.fd(), RING_BYTES as usize).unwrap();
        // As two paths of different length, and repetitions, mix them.
        let order: Vec<u32> = (1..=64).rev().chain([65, 130, 129, 66, 128, 131]).chain((67..128).step_by(3)).collect();
        for path in [0u8, 1, 0] {
            for n in &order {
                let p = b.notice(path, *n, *n);
                assert_eq!(b.arrives(path.into(), &p), Fate::Accepted);
            }
        }
        let ids: Vec<u32> = ring.all().iter().map(|(r, _)| r.id as u32).collect();
        assert_eq!(ids, order);
        let urgent = b.urgent();
        assert_eq!(urgent.iter().filter(|r| r.flags & Record::DUPLICATE == 0).count(), order.len());
        assert_eq!(urgent.len(), 3 * order.len());
    }

    /// A thousand processes are killed at once and the first notice is lost on both paths: its repetition is no duplicate.
    fn the_first_of_very_many_notices_may_come_last() {
        let mut b = Bench::new();
        let s = b.m.new_subscriber().unwrap();
        b.m.set_subscribers(PEER, 1, 1 << s.index).unwrap();
        for n in (2..=8128).step_by(13) {
            let p = b.notice(0, n, 2);
            assert_eq!(b.arrives(0, &p), Fate::Accepted);
            b.urgent();
        }
        for path in [1u8, 0] {
            let p = b.notice(path, 1, 1);
            assert_eq!(b.arrives(path.into(), &p), Fate::Accepted);
        }
        assert_eq!(Mapped::new(s.fd(), RING_BYTES as usize).unwrap().all().len(), 1);
        assert_eq!(b.urgent().iter().map(|r| r.flags).collect::<Vec<_>>(), [0, Record::DUPLICATE]);
    }

    fn an_observer_that_joins_late_hears_what_is_still_repeated() {
        let mut b = Bench::new();
        for (n, flags) in [(5000, 0), (4990, 0), (5000, Record::DUPLICATE), (4990, Record::DUPLICATE), (1, 0), (1, Record::DUPLICATE)] {
            let p = b.notice(0, n, 1);
            assert_eq!(b.arrives(0, &p), Fate::Accepted);
            assert_eq!(b.urgent()[0].flags, flags, "notice {n}");
        }
    }

    fn numbers_of_notices_at_the_end_of_their_range() {
        let mut b = Bench::new();
        let mut flags_of = |n: u32| {
            let p = b.notice(0, n, 1);
            assert_eq!(b.arrives(0, &p), Fate::Accepted);
            b.urgent()[0].flags
        };
        assert_eq!(flags_of(0), Record::DUPLICATE, "there is no notice 0");
        assert_eq!(flags_of(u32::MAX), 0);
        assert_eq!(flags_of(u32::MAX), Record::DUPLICATE);
        assert_eq!(flags_of(u32::MAX - 1), 0);
        assert_eq!(flags_of(u32::MAX - 8000), 0);
        assert_eq!(flags_of(u32::MAX - 8000), Record::DUPLICATE);
        assert_eq!(flags_of(1), 0, "too old to be remembered: twice is better than never");
        assert_eq!(flags_of(1), 0);
    }

    /// The window as a model says it should be, over jumps of every size.
    fn duplicates_are_told_as_a_set_would_tell_them() {
        let mut b = Bench::new();
        let mut random = Random(42);
        let mut model = std::collections::HashSet::new();
        let mut highest = 0u32;
        for _ in 0..6000 {
            let n = match random.below(10) {
                0 => highest + 1 + random.below(9000) as u32,
                1..=4 => highest + 1 + random.below(70) as u32,
                _ => highest.saturating_sub(random.below(8100) as u32).max(1),
            };
            let p = b.notice(0, n, 1);
            assert_eq!(b.arrives(0, &p), Fate::Accepted);
            let flags = b.urgent()[0].flags;
            // 8128 is what the window remembers for certain; it is aligned to 64.
            if n + 8128 > highest {
                assert_eq!(flags == 0, model.insert(n), "notice {n}, highest {highest}");
            }
            highest = highest.max(n);
        }
    }

    fn a_slot_s_next_owner_is_not_taken_for_the_one_before() {
        let mut b = Bench::new();
        let p = b.notice(0, 1, 1);
        assert_eq!(b.arrives(0, &p), Fate::Accepted);
        b.m.remove_peer(PEER_SLOT, PEER);
        b.m.set_peer(PEER_SLOT, PEER + 1, PEER_INCARNATION).unwrap();
        let h = Header { sender: PEER + 1, ..b.header(Kind::Notice, 0) };
        let p = b.sign(&h, Some(&a_notice(1, 1)), b"");
        assert_eq!(b.arrives(0, &p), Fate::Accepted);
        assert_eq!(b.urgent().iter().map(|r| (r.node, r.flags)).collect::<Vec<_>>(), [(PEER, 0), (PEER + 1, 0)]);
    }

    fn a_new_incarnation_may_name_lower_versions_of_its_table() {
        let mut b = Bench::new();
        let named = |b: &mut Bench, incarnation, number, table_version| {
            let h = Header { incarnation, number, table_version, ..b.header(Kind::Heartbeat, 0) };
            let p = b.sign(&h, None, b"");
            assert_eq!(b.arrives(0, &p), Fate::Accepted);
            b.m.peer(PEER_SLOT).table_version
        };
        assert_eq!(named(&mut b, PEER_INCARNATION, 10, 13), 13);
        assert_eq!(named(&mut b, PEER_INCARNATION, 11, 12), 13, "a late one");
        b.m.set_peer(PEER_SLOT, PEER, PEER_INCARNATION + 1).unwrap();
        assert_eq!(named(&mut b, PEER_INCARNATION + 1, 1, 2), 2);
    }

    fn a_new_incarnation_numbers_its_notices_from_one() {
        let mut b = Bench::new();
        let p = b.notice(0, 1, 1);
        assert_eq!(b.arrives(0, &p), Fate::Accepted);
        b.m.set_peer(PEER_SLOT, PEER, PEER_INCARNATION + 1).unwrap();
        let h = Header { incarnation: PEER_INCARNATION + 1, number: 1, ..b.header(Kind::Notice, 0) };
        let p = b.sign(&h, Some(&a_notice(1, 1)), b"");
        assert_eq!(b.arrives(0, &p), Fate::Accepted);
        assert_eq!(b.urgent().iter().map(|r| r.flags).collect::<Vec<_>>(), [0, 0]);
    }
}

// Keys.

as_root! {
    fn keys_rotate_without_a_gap() {
        let (old, new, third) = ((1, Key([1; 16])), (2, Key([2; 16])), (3, Key([3; 16])));
        let ring = |send, accept| Keyring::new(send, accept).unwrap();
        let mut b = Bench::with_keys(ring(old, None));
        let with = |b: &mut Bench, key| {
            let h = b.header(Kind::Heartbeat, 0);
            let p = packet_of(&h, None, b"", &ring(key, None));
            b.arrives(0, &p)
        };
        let expect = |b: &mut Bench, accepted: [bool; 3]| {
            for (key, yes) in [old, new, third].into_iter().zip(accepted) {
                assert_eq!(with(b, key), if yes { Fate::Accepted } else { Fate::Refused(Refusal::Key) }, "key {}", key.0);
            }
        };
        expect(&mut b, [true, false, false]);
        b.m.set_keys(&ring(old, Some(new)));
        expect(&mut b, [true, true, false]);
        b.m.set_keys(&ring(new, Some(old)));
        expect(&mut b, [true, true, false]);
        b.m.set_keys(&ring(new, None));
        expect(&mut b, [false, true, false]);
        b.m.set_keys(&ring(new, Some(third)));
        expect(&mut b, [false, true, true]);
        // The same id with another key: the old key's tags are wrong from now on.
        b.m.set_keys(&ring((2, Key([9; 16])), None));
        assert_eq!(with(&mut b, new), Fate::Refused(Refusal::Mac));
    }

    fn a_key_that_stays_is_never_invalid_while_others_come_and_go() {
        let stays = (7, Key([7; 16]));
        let mut b = Bench::with_keys(Keyring::new(stays, None).unwrap());
        let m = &b.m;
        let stop = std::sync::atomic::AtomicBool::new(false);
        m.assign_path(LO, 0).unwrap();
        let frames: Vec<Vec<u8>> = {
            let keys = Keyring::new(stays, None).unwrap();
            (1..=4000).map(|number| ipv4(&packet_of(&Header { kind: Kind::Heartbeat, path: 0, key_id: 0, cluster: CLUSTER, sender: PEER,
                incarnation: PEER_INCARNATION, number, sent_ns: 0, period_ns: 1, table_version: 0, more: false }, None, b"", &keys))).collect()
        };
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut i = 0u8;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    i = i.wrapping_add(1);
                    let other = (1 + i % 6, Key([i | 1; 16]));
                    m.set_keys(&if i.is_multiple_of(2) { Keyring::new(stays, Some(other)) } else { Keyring::new(other, Some(stays)) }.unwrap());
                }
            });
            for frame in &frames {
                m.test_receive(frame, LO).unwrap();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(b.m.peer(PEER_SLOT).path[0].arrived, 4000);
        assert_eq!(b.m.refused(), [0; Refusal::COUNT]);
        let _ = b.next();
    }
}

// Rings.

as_root! {
    fn what_the_agent_publishes_reaches_the_rings_with_its_body() {
        let mut b = Bench::new();
        let subscribers: Vec<_> = (0..3).map(|_| b.m.new_subscriber().unwrap()).collect();
        let rings: Vec<Mapped> = subscribers.iter().map(|s| Mapped::new(s.fd(), RING_BYTES as usize).unwrap()).collect();
        let set = 1u64 << subscribers[0].index | 1 << subscribers[2].index;
        for len in [0, 1, 7, 8, 9, 1000, PIGGYBACK_MAX] {
            let body: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let record = Record { kind: RecordKind::Piggyback as u16, node: 8, app: 9, number: len as u64, ..Record::default() };
            assert_eq!(b.m.publish(set, &record, &body), 0);
            for (i, ring) in rings.iter().enumerate() {
                let expected = vec![(Record { body_len: len as u16, ..record }, body.clone())];
                assert_eq!(ring.all(), if i == 1 { vec![] } else { expected }, "ring {i}");
            }
        }
        assert_eq!(b.m.publish(0, &Record::default(), b""), 0);
        assert_eq!(b.m.publish(1 << 63, &Record::default(), b""), 1, "a ring that does not exist");
    }

    fn a_full_ring_loses_its_own_events_only_and_they_are_counted() {
        let mut b = Bench::new();
        let (slow, quick) = (b.m.new_subscriber().unwrap(), b.m.new_subscriber().unwrap());
        b.m.set_subscribers(0, 0, 1 << slow.index | 1 << quick.index).unwrap();
        let ring = Mapped::new(quick.fd(), RING_BYTES as usize).unwrap();
        let fits = u64::from(RING_BYTES / 80);
        let mut delivered = 0;
        for n in 1..=1000 {
            let p = b.notice(0, n, 1);
            assert_eq!(b.arrives(0, &p), Fate::Accepted);
            b.urgent();
            delivered += ring.all().len();
        }
        assert_eq!(delivered, 1000);
        assert_eq!(b.m.ring_lost(quick.index), 0);
        let lost = b.m.ring_lost(slow.index);
        assert!(lost >= 1000 - fits && lost <= 1001 - fits, "{lost} of 1000, {fits} fit");
        assert_eq!(b.m.publish(1 << slow.index | 1 << quick.index, &Record::default(), b""), 1);
        assert_eq!(b.m.ring_lost(slow.index), lost + 1);
        assert_eq!(Mapped::new(slow.fd(), RING_BYTES as usize).unwrap().all().len() as u64 + lost, 1000, "what fitted is there");
        assert_eq!(b.m.publish(1 << slow.index, &Record::default(), b""), 0, "and there is room again");
    }

    fn full_rings_of_the_agent_are_counted_too() {
        let mut b = Bench::new();
        let s = b.m.new_subscriber().unwrap();
        b.m.set_subscribers(0, 0, 1 << s.index).unwrap();
        let mut n = 0;
        let fate = loop {
            n += 1;
            let p = b.notice(0, n, 1);
            let fate = b.arrives(0, &p);
            if fate != Fate::Accepted { break fate }
        };
        assert_eq!(fate, Fate::Refused(Refusal::RingFull));
        assert!((3000..=256 * 1024 / 80 + 1).contains(&n), "{n}");
        assert_eq!(b.m.complaints().1, 1);
        assert_eq!(b.urgent().len() as u32, n - 1);
        // Its repetition reaches the agent; the applications have it already.
        let p = b.notice(1, n, 1);
        assert_eq!(b.arrives(1, &p), Fate::Accepted);
        assert_eq!(b.urgent().iter().map(|r| (r.id as u32, r.flags)).collect::<Vec<_>>(), [(n, Record::DUPLICATE)]);

        let mut n = 0;
        let fate = loop {
            n += 1;
            let p = b.heartbeat(0, &[1; BODY_MAX]);
            let fate = b.arrives(0, &p);
            if fate != Fate::Accepted { break fate }
        };
        assert_eq!(fate, Fate::Refused(Refusal::RingFull));
        assert_eq!(b.m.peer(PEER_SLOT).path[0].arrived, n, "the heartbeat counts although its piggyback is lost");
        assert_eq!(b.inbox().len() as u64, n - 1);
    }

    fn rings_are_given_out_sixty_four_times_and_again_after_they_came_back() {
        let mut b = Bench::new();
        let mut all: Vec<_> = (0..RINGS).map(|_| b.m.new_subscriber().unwrap()).collect();
        assert!(b.m.new_subscriber().is_err());
        // The last bit is a ring like any other.
        let last = all.pop().unwrap();
        b.m.set_subscribers(0, 0, 1 << last.index).unwrap();
        let p = b.notice(0, 1, 1);
        assert_eq!(b.arrives(0, &p), Fate::Accepted);
        assert_eq!((last.index, Mapped::new(last.fd(), RING_BYTES as usize).unwrap().all().len()), (63, 1));
        b.m.remove_subscriber(all.swap_remove(5));
        assert_eq!(b.m.new_subscriber().unwrap().index, 5);
    }

    fn an_application_without_privileges_reads_its_ring() {
        let mut b = Bench::new();
        let s = b.m.new_subscriber().unwrap();
        b.m.set_subscribers(PEER, 0, 1 << s.index).unwrap();
        let mut pipe = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let say = |byte: u8| {
            // SAFETY: one byte from a live variable.
            unsafe { libc::write(pipe[1], (&raw const byte).cast(), 1) };
        };
        // SAFETY: the child only makes system calls and touches its own mappings before it exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above; plain system calls.
            let gave_up = unsafe { libc::setresgid(65534, 65534, 65534) == 0 && libc::setresuid(65534, 65534, 65534) == 0 && libc::geteuid() == 65534 };
            let Some(ring) = Mapped::new(s.fd().as_fd(), RING_BYTES as usize).filter(|_| gave_up) else {
                say(b'm');
                // SAFETY: ends the child.
                unsafe { libc::_exit(1) }
            };
            say(b'r'); // ready
            let mut poll = libc::pollfd { fd: std::os::fd::AsRawFd::as_raw_fd(&s.fd()), events: libc::POLLIN, revents: 0 };
            let mut body = [0; 2048];
            let mut seen = 0;
            while seen < 3 {
                // SAFETY: one pollfd.
                unsafe { libc::poll(&raw mut poll, 1, 10_000) };
                while let Some((record, _)) = ring.next(&mut body) {
                    seen += 1;
                    say(record.app as u8);
                }
                if poll.revents == 0 {
                    break;
                }
            }
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) }
        }
        let hear = || {
            let mut byte = 0u8;
            // SAFETY: one byte into a live variable.
            (unsafe { libc::read(pipe[0], (&raw mut byte).cast(), 1) } == 1).then_some(byte)
        };
        // SAFETY: the child holds the other copy.
        unsafe { libc::close(pipe[1]) };
        assert_eq!(hear(), Some(b'r'), "mapped without privileges");
        for app in [11, 12, 13] {
            let p = b.notice(0, app, app);
            assert_eq!(b.arrives(0, &p), Fate::Accepted);
            assert_eq!(hear(), Some(app as u8));
        }
        let mut status = 0;
        // SAFETY: our child, a live variable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        // SAFETY: ours.
        unsafe { libc::close(pipe[0]) };
    }
}

// C against Rust.

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// What the receive program should say, from what Rust says of the same bytes: everything but freshness is decode's.
struct Model {
    keys: Keyring,
    number: [u64; 2],
    event_number: [u64; 2],
    /// Copies of rounds: those that were taken, by path.
    copies: [std::collections::BTreeSet<u64>; 2],
    /// By sender, incarnation and path, of those whose announcements are heard alone.
    strangers: std::collections::HashMap<(u32, u32, usize), u64>,
}

impl Model {
    fn judge(&mut self, path: usize, bytes: &[u8]) -> Fate {
        let packet = match packet::decode(bytes, CLUSTER, &self.keys) {
            Ok(packet) => packet,
            Err(reason) => return Fate::Refused(reason),
        };
        let Header { kind, number, sender, incarnation, .. } = packet.header;
        if usize::from(packet.header.path) != path {
            return Fate::Refused(Refusal::WrongPath);
        }
        if sender != PEER || incarnation != PEER_INCARNATION {
            let begins = kind == Kind::Introduction && (sender != PEER || incarnation > PEER_INCARNATION);
            let introduces = begins || kind == Kind::Hello && sender != SELF;
            let highest = self.strangers.entry((sender, incarnation, path)).or_default();
            return match sender {
                _ if introduces && number > *highest => {
                    *highest = number;
                    if sender == SELF { Fate::Refused(Refusal::Own) } else { Fate::Accepted }
                }
                SELF => Fate::Refused(Refusal::Own),
                _ if introduces => Fate::Refused(Refusal::OldNumber),
                PEER => Fate::Refused(Refusal::OldIncarnation),
                _ => Fate::Refused(Refusal::UnknownSender),
            };
        }
        if kind == Kind::Copy {
            let is_forgotten = self.copies[path].last().is_some_and(|last| number + 63 < *last);
            let is_fresh = !is_forgotten && self.copies[path].insert(number);
            return if is_fresh && number > 0 { Fate::Accepted } else { Fate::Refused(Refusal::OldNumber) };
        }
        let last = if kind == Kind::Heartbeat { &mut self.number } else { &mut self.event_number };
        if number <= last[path] {
            return Fate::Refused(Refusal::OldNumber);
        }
        last[path] = number;
        Fate::Accepted
    }

    /// Nothing that decode refuses may come out as if it were authentic.
    fn check_outputs(&self, b: &mut Bench, bytes: &[u8], fate: Fate) {
        let good = packet::decode(bytes, CLUSTER, &self.keys);
        for (_, delivered) in b.inbox() {
            assert_eq!(delivered.as_slice(), bytes, "whole or not at all");
            assert!(good.is_ok() && matches!(fate, Fate::Accepted | Fate::Refused(Refusal::Own)), "{fate:?}");
        }
        let records = b.urgent();
        assert!(records.is_empty() || fate == Fate::Accepted);
        if let Ok(packet) = &good {
            // What this incarnation told before is not told again, but for a lone notice.
            let notices: Vec<Notice> = packet.notices().collect();
            assert!(records.len() <= notices.len() && (records.len() == 1 || notices.len() != 1 || fate != Fate::Accepted));
            for record in records {
                let n = notices.iter().find(|n| n.notice == record.id as u32).expect("a notice of the packet");
                assert_eq!(
                    (record.app, record.code, record.cause(), record.grade()),
                    (n.app, n.code, Some(n.cause), Some(n.grade))
                );
                assert_eq!((record.event_ns, record.id as u32, record.number), (n.event_ns, n.notice, packet.header.number));
            }
        }
    }
}

fn model(b: &Bench) -> Model {
    Model { keys: b.keys, number: [0; 2], event_number: [0; 2], copies: Default::default(), strangers: Default::default() }
}

fn agrees(b: &mut Bench, model: &mut Model, path: usize, bytes: &[u8]) -> Fate {
    let wanted = model.judge(path, bytes);
    let fate = b.arrives(path as u32, bytes);
    assert_eq!(fate, wanted, "{} bytes on path {path}: {:02x?}", bytes.len(), &bytes[..bytes.len().min(80)]);
    model.check_outputs(b, bytes, fate);
    fate
}

as_root! {
    fn every_truncation_and_every_flipped_bit_is_judged_as_rust_judges_it() {
        let mut b = Bench::new();
        let mut model = model(&b);
        let mut cases = 0;
        for (kind, body) in [(Kind::Heartbeat, &b""[..]), (Kind::Heartbeat, b"piggyback"), (Kind::Notice, b""), (Kind::Leave, b""), (Kind::Introduction, b"{}")] {
            let make = |b: &mut Bench| {
                let h = b.header(kind, 0);
                b.sign(&h, a_notice_of(kind, h.number as u32, 3).as_ref(), body)
            };
            let len = make(&mut b).len();
            for cut in 0..len {
                let bytes = make(&mut b);
                let fate = agrees(&mut b, &mut model, 0, &bytes[..cut]);
                let refused = if cut < BODY_AT { Refusal::Short } else { Refusal::Mac };
                assert_eq!(fate, Fate::Refused(refused), "{cut} bytes of {kind:?}");
                if cut >= BODY_AT {
                    let mut signed = make(&mut b)[..cut].to_vec();
                    resign(&mut signed, &b.keys);
                    agrees(&mut b, &mut model, 0, &signed);
                }
                cases += 1;
            }
            for bit in 0..len * 8 {
                let mut bytes = make(&mut b);
                bytes[bit / 8] ^= 1 << (bit % 8);
                agrees(&mut b, &mut model, 0, &bytes);
                assert!(packet::decode(&bytes, CLUSTER, &b.keys).is_err(), "bit {bit} of {kind:?}");
                cases += 1;
            }
            let bytes = make(&mut b);
            assert_eq!(agrees(&mut b, &mut model, 0, &bytes), Fate::Accepted, "{kind:?} unharmed");
        }
        eprintln!("{cases} cases");
    }

    fn mangled_packets_are_judged_as_rust_judges_them() {
        let mut b = Bench::new();
        let mut model = model(&b);
        let mut random = Random(7);
        let mut fates = std::collections::BTreeMap::<String, u32>::new();
        for _ in 0..20_000 {
            let kind = Kind::ALL[random.below(Kind::ALL.len() as u64) as usize];
            let path = random.below(2) as u8;
            let body = vec![random.next() as u8; [0, 1, 8, 9, 100, BODY_MAX as u64][random.below(6) as usize] as usize];
            let mut h = b.header(kind, path);
            if random.below(4) == 0 {
                h.number = random.next() >> (16 + random.below(48));
            }
            match random.below(12) {
                0 => h.sender = [SELF, PEER + 1, 0, u32::MAX][random.below(4) as usize],
                1 => h.incarnation = [0, PEER_INCARNATION - 1, PEER_INCARNATION + 1, u32::MAX][random.below(4) as usize],
                2 => h.path = random.below(16) as u8,
                _ => {}
            }
            let notice = a_notice_of(kind, random.next() as u32, random.next() as u32);
            let mut bytes = b.sign(&h, notice.as_ref(), if notice.is_some() { b"" } else { &body });
            if kind == Kind::Notice && random.below(2) == 0 {
                let more: Vec<Notice> = (0..1 + random.below(44)).map(|_| a_notice(random.next() as u32, random.next() as u32)).collect();
                let mut out = [0; PACKET_MAX];
                let n = packet::encode_notices(&mut out, &h, &more, &b.keys).unwrap();
                bytes = out[..n].to_vec();
            }
            for _ in 0..random.below(3) {
                let len = bytes.len();
                match random.below(7) {
                    0 => bytes.truncate(random.below(len as u64 + 1) as usize),
                    1 => bytes.extend(vec![0x5a; random.below(900) as usize]),
                    2 if len > 16 => bytes[16] = random.below(20) as u8,
                    3 if len > 2 => bytes[2] = random.next() as u8,
                    4 if len > 65 => bytes[64 + random.below(2) as usize] = random.next() as u8,
                    5 if len > 0 => bytes[random.below(len.min(90) as u64) as usize] = random.next() as u8,
                    _ if len > 0 => bytes[random.below(len as u64) as usize] ^= 1 << random.below(8),
                    _ => {}
                }
            }
            // Half of them signed as they are, or nothing behind the tag would be tried.
            if random.below(2) == 0 && bytes.len() > 3 {
                let keys = b.keys;
                resign(&mut bytes, &keys);
            }
            // Numbers taken from anywhere must not end the test.
            model.number.iter_mut().chain(&mut model.event_number).for_each(|n| if *n > 1 << 40 { *n = u64::MAX });
            if model.number.contains(&u64::MAX) || model.event_number.contains(&u64::MAX) {
                b.m.set_peer(PEER_SLOT, PEER, PEER_INCARNATION).unwrap();
                model = Model { strangers: model.strangers, copies: model.copies, ..self::model(&b) };
            }
            let fate = agrees(&mut b, &mut model, path.into(), &bytes);
            *fates.entry(format!("{fate:?}")).or_default() += 1;
        }
        eprintln!("{fates:?}");
        for reason in Refusal::ALL {
            let never = matches!(reason, Refusal::RingFull | Refusal::Fragment | Refusal::RateLimited);
            assert_eq!(fates.contains_key(&format!("{:?}", Fate::Refused(reason))), !never, "{reason}");
        }
    }

    fn random_bytes_are_judged_as_rust_judges_them() {
        let mut b = Bench::new();
        let mut model = model(&b);
        let mut random = Random(1);
        for i in 0..5_000 {
            let mut bytes: Vec<u8> = (0..random.below(1600)).map(|_| random.next() as u8).collect();
            // A right beginning more often than chance gives one.
            for (at, byte) in [0xf1, 0xde, 0x21, 0x04, 0x00, 0xc0, 0xff, 0xee].into_iter().take(i % 9).enumerate() {
                if at < bytes.len() {
                    bytes[at] = byte;
                }
            }
            assert_ne!(agrees(&mut b, &mut model, 0, &bytes), Fate::Accepted);
        }
    }

    fn frames_of_random_bytes_never_reach_anybody() {
        let mut b = Bench::new();
        let mut random = Random(3);
        let hb = b.heartbeat(0, b"body");
        let notice = b.notice(0, 1, 1);
        for i in 0..5_000u64 {
            let mut frame = [ipv4(&hb), ipv6(&hb), ipv4(&notice), vlan(3, 0x86dd, &ip6(17, &udp(PORT, &notice)))][(i % 4) as usize].clone();
            let headers = frame.len() as u64 - if i % 4 < 2 { hb.len() } else { notice.len() } as u64;
            for _ in 0..=random.below(3) {
                let at = random.below(headers) as usize;
                frame[at] ^= (random.next() as u8).max(1);
            }
            frame.truncate((random.below(2 * frame.len() as u64) as usize).max(14));
            let fate = b.frame_arrives(0, &frame);
            // Addresses, checksums and the like are not looked at; the packet is what the tag says, so it is accepted once at most.
            if fate == Fate::Accepted {
                assert!(frame.len() as u64 >= headers + 4);
            }
        }
        let row = b.m.peer(PEER_SLOT).path[0];
        assert!(row.arrived <= 1 && b.inbox().len() <= 1 && b.urgent().len() <= 1);
    }
}

// Where it is attached.

/// The driver of a bond hands an XDP program to its members' drivers, which report packets as theirs: no peer would be seen. Members may come and go.
#[test]
fn a_path_on_a_bond_receives_in_the_generic_hook() {
    use crate::fence::net::{Net, ip};
    use fide_xdp::Attach;
    let Some(net) = Net::make("bonds") else { return };
    let mut b = Bench::new();
    let index = |name: &std::ffi::CStr| {
        // SAFETY: a C string.
        Net::within(&net.a, || unsafe { libc::if_nametoindex(name.as_ptr()) })
    };
    let e0 = index(c"e0");
    Net::within(&net.a, || {
        assert_eq!((fide_xdp::delegate(e0), fide_xdp::delegate(u32::MAX)), (None, None));
        assert_eq!(b.m.attach(0, e0, None).unwrap(), Attach::Native);
        b.m.detach(0);
    });
    let on = |words: &str| ip(&format!("-n {} {words}", net.a));
    if let Err(why) = on("link add b0 type bond mode active-backup miimon 10") {
        println!("SKIPPED a bond: {why}");
        return;
    }
    for words in ["link set e0 down", "link set e0 master b0", "link set b0 up", "addr add 10.77.0.1/24 dev b0"] {
        on(words).unwrap();
    }
    let b0 = index(c"b0");
    Net::within(&net.a, || {
        let refused = b.m.attach(0, b0, Some(Attach::Native)).unwrap_err();
        assert!(std::error::Error::source(&refused).unwrap().to_string().contains("members"), "{refused}");
        assert_eq!(b.m.attach(0, b0, None).unwrap(), Attach::Generic);
    });
    // Also after another member has taken over.
    let sender = Net::within(&net.b, || std::net::UdpSocket::bind(("10.77.0.2", 0)).unwrap());
    for round in 1..=2 {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let before = b.m.peer(PEER_SLOT).path[0].arrived;
        while b.m.peer(PEER_SLOT).path[0].arrived == before {
            assert!(std::time::Instant::now() < until, "round {round}: no heartbeat is seen");
            let heartbeat = b.heartbeat(0, b"");
            sender.send_to(&heartbeat, ("10.77.0.1", PORT)).unwrap();
            // Sleep: interval of the poll.
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        if round == 1 {
            on("link set e0 nomaster").unwrap();
            on("link set e0 down").unwrap();
            on("link set e0 master b0").unwrap();
        }
    }
}

// What it weighs.

as_root! {
    fn the_verifier_walks_a_bounded_way() {
        let setup = fide_xdp::Setup { cluster: CLUSTER, node: SELF, incarnation: 1, port: PORT };
        let m = fide_xdp::Mechanism::load(setup, &Keyring::default(), true).unwrap();
        let figures = m.figures();
        assert_eq!(figures.len(), 8);
        for f in figures {
            eprintln!("{:22} verified {:7}  instructions {:5}  machine code {:5} B", f.name, f.verified_instructions, f.instructions, f.machine_bytes);
            // The kernel's limit is a million; older verifiers need more for the same program.
            assert!(f.verified_instructions < 100_000, "{} became hard to verify", f.name);
            assert!(f.instructions < 5000, "{} became long", f.name);
        }
    }

    /// A wide bound, and a figure: how long one run takes.
    #[ignore = "needs a quiet machine: make timing"]
    fn timing_of_a_packet() {
        let mut b = Bench::new();
        let s: Vec<_> = (0..RINGS).map(|_| b.m.new_subscriber().unwrap()).collect();
        b.m.assign_path(LO, 0).unwrap();
        let hb = b.heartbeat(0, b"");
        let piggyback = b.heartbeat(0, &[1; PIGGYBACK_MAX]);
        let notice = b.notice(0, 1, 1);
        b.arrives(0, &hb);
        b.arrives(0, &notice);
        let other = ethernet(0x0800, &ip4(5, 0, 6, &udp(PORT, &hb)));
        b.m.leave_piggybacks(false);
        let mut forged = hb.clone();
        forged[43] ^= 1;
        for (what, frame) in [("not ours", other), ("forged heartbeat", ipv4(&forged)), ("old heartbeat", ipv4(&hb)), ("old notice", ipv4(&notice))] {
            let (_, time) = b.m.test_receive_repeated(&frame, LO, 200_000).unwrap();
            eprintln!("{what:34} {:5} ns", time.as_nanos());
            assert!(time.as_micros() < 100);
        }
        // Accepted packets differ in their numbers, so they cannot be repeated by the kernel: its own clock around each run tells.
        // SAFETY: BPF_ENABLE_STATS with its one argument; a descriptor or an error comes back.
        let stats = unsafe { libbpf_rs::libbpf_sys::bpf_enable_stats(0) };
        assert!(stats >= 0);
        let measure = |what: &str, b: &mut Bench, make: &mut dyn FnMut(&mut Bench) -> Vec<u8>| {
            let frames: Vec<_> = (0..3000).map(|_| ipv4(&make(b))).collect();
            let before = b.m.figures().into_iter().find(|f| f.name == "fide_receive").unwrap();
            for frame in &frames {
                b.m.test_receive(frame, LO).unwrap();
                b.inbox.drain(|_| {});
                b.urgent.drain(|_| {});
            }
            let after = b.m.figures().into_iter().find(|f| f.name == "fide_receive").unwrap();
            eprintln!("{what:34} {:5} ns (with the clock around it)", (after.run_ns - before.run_ns) / (after.runs - before.runs).max(1));
        };
        let _ = piggyback;
        measure("heartbeat", &mut b, &mut |b| b.heartbeat(0, b""));
        measure("heartbeat, 1418 bytes of piggyback", &mut b, &mut |b| b.heartbeat(0, &[1; PIGGYBACK_MAX]));
        let mut n = 1;
        measure("notice, nobody subscribed", &mut b, &mut |b| { n += 1; b.notice(0, n, 1) });
        b.m.set_subscribers(0, 0, 1 << s[0].index).unwrap();
        measure("notice, one ring", &mut b, &mut |b| { n += 1; b.notice(0, n, 1) });
        b.m.set_subscribers(0, 0, u64::MAX).unwrap();
        measure("notice, 64 rings (full in the end)", &mut b, &mut |b| { n += 1; b.notice(0, n, 1) });
        // SAFETY: ours.
        unsafe { libc::close(stats) };
    }
}
