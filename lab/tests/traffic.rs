//! Packets pass between hosts, on both networks, and multicast reaches everyone.

use crate::common;

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;

use common::{GROUP, PATIENCE, PORT, Wire, assert_gone, drain, lab, member, passes, root, v4, v6, wait_for, wait_within};
use fide_lab::{Lab, LabSpec, NETS};

#[test]
fn hosts_reach_each_other_on_both_networks_with_both_families() {
    if !root("hosts_reach_each_other_on_both_networks_with_both_families") {
        return;
    }
    let lab = lab(3);
    for net in NETS {
        assert!(Wire::new(&lab, 1, 2, net).both_ways(), "IPv4, network {net}");
        let port = PORT + 20 + u16::from(net);
        let (a, b) = (v6(&lab, 2, port), v6(&lab, 3, port));
        assert!(passes(PATIENCE, &a, (lab.ipv6(3, net), port).into(), &b, "hello"), "IPv6, network {net}");
    }
    let name = lab.name().to_string();
    drop(lab);
    assert_gone(&name);
}

#[test]
fn two_labs_with_the_same_addresses_do_not_meet() {
    if !root("two_labs_with_the_same_addresses_do_not_meet") {
        return;
    }
    let (one, two) = (lab(2), lab(2));
    let sockets = |lab: &Lab| (v4(lab, 1, PORT), v4(lab, 2, PORT), lab.ipv4(2, 0));
    let (from_one, to_one, address) = sockets(&one);
    let (from_two, to_two, same_address) = sockets(&two);
    assert_eq!(address, same_address);
    assert!(passes(PATIENCE, &from_one, (address, PORT).into(), &to_one, "in one"));
    assert!(drain(&to_two).is_empty(), "a packet came from another lab");
    assert!(passes(PATIENCE, &from_two, (address, PORT).into(), &to_two, "in two"));
    assert!(drain(&to_one).iter().all(|(word, _)| word == "in one"), "a packet came from another lab");
}

fn multicast_reaches_all_others(lab: &Lab) {
    for net in NETS {
        let members: Vec<_> = lab.hosts().map(|host| member(lab, host, net)).collect();
        for sender in lab.hosts() {
            let from: IpAddr = lab.ipv4(sender, net).into();
            let others: BTreeSet<u16> = lab.hosts().filter(|&host| host != sender).collect();
            let mut reached = BTreeSet::new();
            let word = format!("from {sender} on {net}");
            // Sent until it has been everywhere: with snooping switches that takes seconds at first.
            wait_for(&format!("multicast of h{sender} on network {net}"), || {
                members[usize::from(sender) - 1].send_to(word.as_bytes(), (GROUP, PORT + u16::from(net))).unwrap();
                for host in lab.hosts() {
                    for (text, source) in drain(&members[usize::from(host) - 1]) {
                        if text == word {
                            assert_eq!(source, from, "by the address of its own network");
                            reached.insert(host);
                        }
                    }
                }
                assert!(!reached.contains(&sender), "a host heard itself");
                reached == others
            });
        }
    }
}

#[test]
fn multicast_reaches_all_others_on_both_networks() {
    if !root("multicast_reaches_all_others_on_both_networks") {
        return;
    }
    multicast_reaches_all_others(&lab(4));
}

#[test]
fn snooping_switches_deliver_multicast_to_members_only() {
    if !root("snooping_switches_deliver_multicast_to_members_only") {
        return;
    }
    let spec = LabSpec { hosts: 3, ephemeral: true, multicast_snooping: true, ..LabSpec::default() };
    let lab = Lab::up(&spec).unwrap();
    multicast_reaches_all_others(&lab);

    // h1 and h2 are members, h3 is not: once the querier is settled, h3's port stays quiet.
    let (sender, receiver) = (member(&lab, 1, 0), member(&lab, 2, 0));
    let seen_by_h3 = || counter(&lab, 3, "net0", "rx_packets");
    wait_within(PATIENCE, "a hundred datagrams to pass h3 by", || {
        let before = seen_by_h3();
        let mut arrived = 0;
        for _ in 0..100 {
            sender.send_to(b"members only", (GROUP, PORT)).unwrap();
            arrived += drain(&receiver).len();
        }
        arrived > 50 && seen_by_h3() - before < 10
    });
}

/// `/proc/net/dev` of the host: received packets are the second figure.
fn counter(lab: &Lab, host: u16, nic: &str, figure: &str) -> u64 {
    assert_eq!(figure, "rx_packets");
    let text = lab.in_host(host, || fs::read_to_string("/proc/thread-self/net/dev").unwrap()).unwrap();
    let line = text.lines().find_map(|l| l.trim().strip_prefix(&format!("{nic}:"))).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_lab_without_ipv6_has_none() {
    if !root("a_lab_without_ipv6_has_none") {
        return;
    }
    let lab = Lab::up(&LabSpec { hosts: 2, ipv6: false, ephemeral: true, ..LabSpec::default() }).unwrap();
    let addresses = lab.in_host(1, || fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap()).unwrap();
    assert_eq!(addresses, "");
    assert!(Wire::new(&lab, 1, 2, 1).both_ways());
    assert!(lab.status().unwrap().hosts.iter().flat_map(|h| &h.nics).all(|nic| nic.ipv6.is_none()));
}

#[test]
fn frames_carry_whole_checksums() {
    if !root("frames_carry_whole_checksums") {
        return;
    }
    let lab = lab(2);
    let mut wire = Wire::new(&lab, 1, 2, 0);
    assert!(wire.both_ways());
    let tap = lab.in_host(2, common::Tap::here).unwrap();
    assert!(wire.a_to_b());
    let mut seen = 0;
    wait_for("a UDP frame at h2", || {
        while let Some(frame) = tap.next() {
            // Ethernet 14, IPv4 20 without options, UDP.
            if frame.len() < 42 || frame[12..14] != [8, 0] || frame[23] != 17 {
                continue;
            }
            let ip_length = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
            let udp = &frame[34..14 + ip_length];
            let mut sum: u32 = 17 + udp.len() as u32;
            for pair in frame[26..34].chunks(2).chain(udp.chunks(2)) {
                sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            }
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            assert_eq!(sum, 0xffff, "a partial checksum left h1: {frame:02x?}");
            seen += 1;
        }
        seen > 0
    });
}
