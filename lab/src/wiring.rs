//! Making the namespaces, switches, cables and addresses: first as text for `ip -batch`, then by running it.

use std::fs;
use std::io;
use std::time::Duration;

use crate::error::LabError;
use crate::names::{
    BRIDGE, NETS, bridge_mac, host_ipv4, host_ipv6, host_mac, host_name, host_namespace, nic_name, port_mac, switch_namespace,
};
use crate::netns::{Interfaces, Netns};
use crate::process::wait_until;
use crate::spec::LabSpec;
use crate::state::State;
use crate::tool;

/// How long the carriers may take to come up.
const CARRIER: Duration = Duration::from_secs(10);

/// Makes everything of the lab but its record and directories.
pub(crate) fn build(state: &State) -> Result<(), LabError> {
    let State { name: lab, id, spec, namespaces, .. } = state;
    let adds: Vec<String> = namespaces.iter().map(|name| format!("netns add {name}")).collect();
    tool::batch_outside(id, &adds, "make the network namespaces")?;

    for net in NETS {
        let switch = switch_namespace(lab, net);
        Netns::open(&switch)?.run(|| settings_of_switch(spec))?.map_err(quieting(&switch))?;
    }
    for host in 1..=spec.hosts {
        let name = host_namespace(lab, host);
        Netns::open(&name)?.run(|| settings_of_host(spec))?.map_err(quieting(&name))?;
    }
    for net in NETS {
        let mut lines = bridge_lines(spec, net);
        for host in 1..=spec.hosts {
            lines.extend(cable_lines(lab, host, net));
            lines.push(format!("link set {} up", host_name(host)));
        }
        tool::batch("ip", &switch_namespace(lab, net), &lines, &format!("wire network {net}"))?;
    }
    for host in 1..=spec.hosts {
        let mut lines = vec!["link set lo up".to_string()];
        NETS.iter().for_each(|&net| lines.extend(nic_lines(spec, host, net)));
        tool::batch("ip", &host_namespace(lab, host), &lines, &format!("set up host h{host}"))?;
        finish_nics(lab, host, &NETS)?;
    }
    Ok(())
}

/// Makes one host's NIC again, as [`build`] made it. The port is left down.
pub(crate) fn build_nic(lab: &str, spec: &LabSpec, host: u16, net: u8) -> Result<(), LabError> {
    let what = format!("make net{net} of h{host}");
    tool::batch("ip", &switch_namespace(lab, net), &cable_lines(lab, host, net), &what)?;
    tool::batch("ip", &host_namespace(lab, host), &nic_lines(spec, host, net), &what)?;
    finish_nics(lab, host, &[net])
}

/// Waits until every NIC of the lab has its carrier: from here on packets pass.
pub(crate) fn wait_for_carriers(lab: &str, spec: &LabSpec) -> Result<(), LabError> {
    for host in 1..=spec.hosts {
        let name = host_namespace(lab, host);
        let asked = Netns::open(&name)?.run(|| {
            let here = Interfaces::here()?;
            let up = |net: u8| here.carrier(&nic_name(net)).is_ok_and(|carrier| carrier == Some(true));
            Ok(wait_until(CARRIER, || NETS.iter().all(|&net| up(net))))
        })?;
        if !asked.map_err(|e: io::Error| LabError::io(format!("ask for the carriers in {name}"), e))? {
            return Err(LabError::Timeout {
                what: format!("a carrier on both NICs of h{host}"),
                waited_ms: CARRIER.as_millis() as u64,
                advice: "the machine may be overloaded; try again with fewer hosts",
            });
        }
    }
    Ok(())
}

fn finish_nics(lab: &str, host: u16, nets: &[u8]) -> Result<(), LabError> {
    let name = host_namespace(lab, host);
    let outcome = Netns::open(&name)?.run(|| {
        let here = Interfaces::here()?;
        nets.iter().try_for_each(|&net| here.checksum_in_software(&nic_name(net)))
    })?;
    outcome.map_err(|e| LabError::io(format!("turn checksum offload off in {name}"), e))
}

fn bridge_lines(spec: &LabSpec, net: u8) -> Vec<String> {
    let mut line = format!("link add {BRIDGE} address {} type bridge stp_state 0 forward_delay 0", bridge_mac(net));
    if spec.multicast_snooping {
        // An entry of the group table counts only when the querier's start-up delay is over, which is as long as the
        // response interval (in hundredths of a second): half a second instead of ten.
        // Queries of IGMPv3 and MLDv2: to an older querier hosts answer in its version, where one that heard another's report
        // keeps silent when it leaves, and the switch goes on delivering to it for minutes.
        line.push_str(
            " mcast_snooping 1 mcast_querier 1 mcast_query_response_interval 50 mcast_igmp_version 3 mcast_mld_version 2",
        );
    } else {
        line.push_str(" mcast_snooping 0");
    }
    vec!["link set lo up".to_string(), line, format!("link set {BRIDGE} up")]
}

/// The switch's side: a cable to the host, plugged in but not up.
fn cable_lines(lab: &str, host: u16, net: u8) -> [String; 2] {
    let (port, nic) = (host_name(host), nic_name(net));
    let (port_mac, host_mac, namespace) = (port_mac(host, net), host_mac(host, net), host_namespace(lab, host));
    [
        format!("link add {port} address {port_mac} type veth peer name {nic} address {host_mac} netns {namespace}"),
        format!("link set {port} master {BRIDGE}"),
    ]
}

/// With more hosts than this, everybody's address is written into everybody's neighbour table. The kernel keeps one table of at most 1024
/// learned entries (`gc_thresh3`) for *all* namespaces: 24 hosts on two networks fill it, and from then on no lab of this machine reaches
/// anybody. Permanent entries are not counted.
const ASKING_HOSTS: u16 = 8;

/// The host's side.
fn nic_lines(spec: &LabSpec, host: u16, net: u8) -> Vec<String> {
    let nic = nic_name(net);
    let mut lines = vec![format!("addr add {}/24 brd + dev {nic}", host_ipv4(host, net)), format!("link set {nic} up")];
    if spec.ipv6 {
        lines.insert(1, format!("addr add {}/64 dev {nic} nodad", host_ipv6(host, net)));
    }
    if spec.hosts > ASKING_HOSTS {
        for other in (1..=spec.hosts).filter(|other| *other != host) {
            let mac = host_mac(other, net);
            lines.push(format!("neigh replace {} lladdr {mac} dev {nic} nud permanent", host_ipv4(other, net)));
            if spec.ipv6 {
                lines.push(format!("neigh replace {} lladdr {mac} dev {nic} nud permanent", host_ipv6(other, net)));
            }
        }
    }
    lines
}

/// A switch has no addresses and says nothing of its own, except as a multicast querier, which for MLD needs a
/// link-local address on the bridge.
fn settings_of_switch(spec: &LabSpec) -> io::Result<()> {
    set("ipv6/conf/all/disable_ipv6", "1")?;
    // A switch has no packet filter: what passes a bridge need not pass this machine's.
    for filter in ["iptables", "ip6tables", "arptables"] {
        set(&format!("bridge/bridge-nf-call-{filter}"), "0")?;
    }
    set("ipv6/conf/default/disable_ipv6", if spec.multicast_snooping { "0" } else { "1" })?;
    set("ipv6/conf/default/accept_dad", "0")?;
    set("ipv6/conf/default/router_solicitations", "0")
}

/// No router solicitation, no duplicate address detection: they would delay the first packets and disturb later
/// ones. No reverse path filter: a host with two NICs must hear everything on both.
fn settings_of_host(spec: &LabSpec) -> io::Result<()> {
    for scope in ["all", "default"] {
        set(&format!("ipv4/conf/{scope}/rp_filter"), "0")?;
        for name in ["accept_ra", "router_solicitations", "accept_dad", "dad_transmits"] {
            set(&format!("ipv6/conf/{scope}/{name}"), "0")?;
        }
        set(&format!("ipv6/conf/{scope}/disable_ipv6"), if spec.ipv6 { "0" } else { "1" })?;
    }
    Ok(())
}

/// A network sysctl of the calling thread's namespace. One that this kernel lacks (IPv6 not built in) needs no setting.
fn set(key: &str, value: &str) -> io::Result<()> {
    match fs::write(format!("/proc/sys/net/{key}"), value) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(io::Error::new(e.kind(), format!("net/{key}: {e}"))),
        Ok(()) => Ok(()),
    }
}

fn quieting(namespace: &str) -> impl FnOnce(io::Error) -> LabError {
    let what = format!("write /proc/sys for {namespace} (is /proc/sys mounted read-only, as in a container?)");
    move |e| LabError::io(what, e)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cable_is_two_lines_on_the_switch_and_its_addresses_on_the_host() {
        assert_eq!(
            cable_lines("demo", 3, 1),
            [
                "link add h3 address 02:fd:01:01:00:03 type veth peer name net1 address 02:fd:00:01:00:03 netns fide-demo-h3",
                "link set h3 master br0",
            ]
        );
        assert_eq!(
            nic_lines(&LabSpec::default(), 3, 1),
            ["addr add 10.77.1.3/24 brd + dev net1", "addr add fd77:0:0:1::3/64 dev net1 nodad", "link set net1 up"]
        );
        let without = LabSpec { ipv6: false, ..LabSpec::default() };
        assert_eq!(nic_lines(&without, 3, 1), ["addr add 10.77.1.3/24 brd + dev net1", "link set net1 up"]);
        let many = LabSpec { ipv6: false, hosts: 32, ..LabSpec::default() };
        let lines = nic_lines(&many, 3, 1);
        assert_eq!(
            (lines.len(), lines[2].as_str()),
            (33, "neigh replace 10.77.1.1 lladdr 02:fd:00:01:00:01 dev net1 nud permanent")
        );
    }

    #[test]
    fn switches_flood_multicast_unless_asked_to_snoop() {
        let flood = bridge_lines(&LabSpec::default(), 0);
        assert!(flood[1].ends_with("mcast_snooping 0"), "{flood:?}");
        let snoop = bridge_lines(&LabSpec { multicast_snooping: true, ..LabSpec::default() }, 0);
        assert!(snoop[1].contains("mcast_querier 1"), "{snoop:?}");
        assert!(snoop[1].contains("mcast_igmp_version 3"), "a member that leaves must say so: {snoop:?}");
    }
}
