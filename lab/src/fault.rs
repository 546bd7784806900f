//! Breaking things on purpose, and mending them: cables, switches, NICs, slow links.
//!
//! All faults sit on the switch's side of a cable, where the host cannot see how it is done: an administratively
//! closed port takes the host's carrier; a classic-BPF drop filter at the port's clsact hook swallows frames while
//! the carrier stays; a token bucket on the port (towards the host) or on an ifb device that the port's arrivals are
//! redirected to (from the host) makes frames wait. Frames sent by AF_PACKET, AF_XDP or XDP_TX are caught like all
//! others. (Classifiers `matchall` and action `drop` would read better but are missing from trimmed kernels;
//! `cls_bpf` is not.)

use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::lab::Lab;
use crate::names::{BRIDGE, host_mac, host_name, queue_name, switch_namespace};
use crate::state::State;
use crate::tool;
use crate::wiring;

/// How a cable is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cut {
    /// Pulled: nothing passes and the host's NIC loses its carrier.
    Carrier,
    /// Nothing passes either way, but the carrier stays, as with a dying switch port.
    Silent,
    /// What the host sends is lost, what it should receive arrives; the carrier stays.
    FromHost,
    /// What the host should receive is lost, what it sends arrives; the carrier stays.
    ToHost,
}

/// Which way, as the host sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// What the host sends.
    FromHost,
    /// What the host receives.
    ToHost,
    /// Both.
    Both,
}

impl Direction {
    fn includes(self, one: Direction) -> bool {
        self == one || self == Direction::Both
    }
}

/// How a switch fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SwitchFault {
    /// Without power: all hosts lose the carrier.
    Off,
    /// It forwards nothing any more, but its ports keep their carrier.
    Hung,
}

/// What is wrong with one host's link to one network. The default is nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkFaults {
    /// The cable is pulled ([`Cut::Carrier`]).
    pub carrier_cut: bool,
    /// What the host sends is dropped.
    pub drop_from_host: bool,
    /// What the host should receive is dropped.
    pub drop_to_host: bool,
    /// What the host sends passes at this rate only, in bits per second.
    pub slow_from_host_bps: Option<u64>,
    /// What the host receives passes at this rate only, in bits per second.
    pub slow_to_host_bps: Option<u64>,
    /// The NIC does not exist.
    pub removed: bool,
    /// The hosts of which it receives nothing: bit `h - 1` is host `h`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub deaf_to: u128,
    /// The switch delivers no multicast to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_multicast: bool,
    /// Bytes of the largest packet that its port of the switch passes on, either way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// So many percent of the frames are lost, either way.
    #[serde(default, skip_serializing_if = "is_none_lost")]
    pub lost_percent: u8,
    /// What it should receive by UDP is dropped: what agents say, and not what kernels answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_udp: bool,
}

/// Hosts that a host can be deaf to.
const DEAF_TO_MAX: u16 = u128::BITS as u16;

const fn is_none_lost(percent: &u8) -> bool {
    *percent == 0
}

const fn is_zero(bits: &u128) -> bool {
    *bits == 0
}

impl LinkFaults {
    fn add(&mut self, cut: Cut) {
        match cut {
            Cut::Carrier => self.carrier_cut = true,
            Cut::Silent => (self.drop_from_host, self.drop_to_host) = (true, true),
            Cut::FromHost => self.drop_from_host = true,
            Cut::ToHost => self.drop_to_host = true,
        }
    }

    fn needs_clsact(&self) -> bool {
        self.drop_from_host
            || self.drop_to_host
            || self.slow_from_host_bps.is_some()
            || self.deaf_to != 0
            || self.lost_percent != 0
            || self.no_udp
    }
}

impl Lab {
    /// Cuts the cable between a host and a network. Cuts add up until [`Lab::heal`].
    ///
    /// # Errors
    /// If the host, the network or the NIC does not exist, or iproute2 refuses.
    pub fn cut(&self, host: u16, net: u8, cut: Cut) -> Result<(), LabError> {
        self.change_link(host, net, |faults| faults.add(cut))
    }

    /// A host receives nothing on one network of what another one sends, and everything else as before: as behind a switch with a
    /// wrong table, or of which half died. Cuts of this kind add up until [`Lab::heal`] of the host that is deaf.
    ///
    /// # Errors
    /// As [`Lab::cut`]; of the host's own frames, or of a host above 128, it is refused.
    pub fn deafen(&self, host: u16, to: u16, net: u8) -> Result<(), LabError> {
        self.check_host(to)?;
        if host == to || to > DEAF_TO_MAX {
            return Err(LabError::BadSpec(format!("h{host} cannot be made deaf to h{to}")));
        }
        self.change_link(host, net, |faults| faults.deaf_to |= 1 << (to - 1))
    }

    /// The switch delivers no multicast to this host any more, and everything else as before: as one that snoops IGMP and MLD, and
    /// has forgotten who is a member, because there is no querier. Until [`Lab::heal`].
    ///
    /// # Errors
    /// As [`Lab::cut`].
    pub fn lose_multicast(&self, host: u16, net: u8) -> Result<(), LabError> {
        self.change_link(host, net, |faults| faults.no_multicast = true)
    }

    /// A firewall in front of this host drops what comes by UDP, as one does that knows nothing of agents: the host hears no agent, and all
    /// kernels answer it. Until [`Lab::heal`].
    ///
    /// # Errors
    /// As [`Lab::cut`].
    pub fn filter_udp(&self, host: u16, net: u8) -> Result<(), LabError> {
        self.change_link(host, net, |faults| faults.no_udp = true)
    }

    /// So many percent of the frames between a host and a network are lost, each with the same chance, either way. Until [`Lab::heal`].
    ///
    /// # Errors
    /// As [`Lab::cut`]; 0, and 100 and more, are refused.
    pub fn lose(&self, host: u16, net: u8, percent: u8) -> Result<(), LabError> {
        if !(1..100).contains(&percent) {
            return Err(LabError::BadSpec(format!("a loss of {percent} %: from 1 to 99; all of it is a cut")));
        }
        self.change_link(host, net, |faults| faults.lost_percent = percent)
    }

    /// The host's port of the switch passes on no packets of more bytes, either way, and says nothing of it: its MTU is smaller than that
    /// of the host's interface. Until [`Lab::heal`].
    ///
    /// # Errors
    /// As [`Lab::cut`]; sizes below 68 bytes are refused.
    pub fn limit_packets(&self, host: u16, net: u8, mtu: u16) -> Result<(), LabError> {
        if mtu < 68 {
            return Err(LabError::BadSpec(format!("a port with an MTU of {mtu} bytes carries no IP: 68 at least")));
        }
        self.change_link(host, net, |faults| faults.mtu = Some(mtu))
    }

    /// Undoes every cut and slow-down of the cable between a host and a network. A removed NIC stays away.
    ///
    /// # Errors
    /// As [`Lab::cut`].
    pub fn heal(&self, host: u16, net: u8) -> Result<(), LabError> {
        self.change_link(host, net, |faults| *faults = LinkFaults::default())
    }

    /// Lets frames pass at `bits_per_second` only; what comes faster waits in a queue of 4 MB, so it is late rather
    /// than lost. The bucket holds about one full frame: a heartbeat of 100 bytes every millisecond needs 800 kbit/s,
    /// and at half of that falls behind by half of every second.
    ///
    /// # Errors
    /// As [`Lab::cut`]; a rate of 0 is refused. Slowing what a host sends needs the kernel's ifb device.
    pub fn slow(&self, host: u16, net: u8, direction: Direction, bits_per_second: u64) -> Result<(), LabError> {
        if bits_per_second == 0 {
            return Err(LabError::BadSpec("a rate of 0 bits per second is a cut; use cut with Cut::Silent".to_string()));
        }
        self.change_link(host, net, |faults| {
            if direction.includes(Direction::FromHost) {
                faults.slow_from_host_bps = Some(bits_per_second);
            }
            if direction.includes(Direction::ToHost) {
                faults.slow_to_host_bps = Some(bits_per_second);
            }
        })
    }

    /// Takes a host's NIC away altogether, as when a driver is unbound.
    ///
    /// # Errors
    /// As [`Lab::cut`].
    pub fn remove_nic(&self, host: u16, net: u8) -> Result<(), LabError> {
        let before = self.link_faults(host, net)?;
        if before.removed {
            return Err(LabError::NicRemoved { host, net });
        }
        self.record_link(host, net, LinkFaults { removed: true, ..before })?;
        let mut lines = vec![format!("link del {}", host_name(host))];
        if before.slow_from_host_bps.is_some() {
            lines.push(format!("link del {}", queue_name(host)));
        }
        let what = format!("remove net{net} of h{host}");
        let done = tool::batch("ip", &switch_namespace(self.name(), net), &lines, &what);
        if done.is_err() {
            self.record_link(host, net, before)?;
        }
        done
    }

    /// Brings a removed NIC back: the same name, addresses and faults, a new interface index.
    ///
    /// # Errors
    /// As [`Lab::cut`]; or if the NIC is there.
    pub fn restore_nic(&self, host: u16, net: u8) -> Result<(), LabError> {
        let before = self.link_faults(host, net)?;
        if !before.removed {
            return Err(LabError::NotUsable {
                name: self.name().to_string(),
                why: format!("h{host} has its net{net}"),
                advice: "only a NIC taken away by remove_nic can be restored",
            });
        }
        let spec = self.spec();
        wiring::build_nic(self.name(), spec, host, net)?;
        let after = LinkFaults { removed: false, ..before };
        let switch_off = self.read_state()?.switches.get(&net) == Some(&SwitchFault::Off);
        // A new port is closed and otherwise without fault.
        let fresh = LinkFaults { carrier_cut: true, ..LinkFaults::default() };
        self.apply(host, net, fresh, after, switch_off)?;
        self.record_link(host, net, after)
    }

    /// Makes a switch fail for all hosts at once.
    ///
    /// # Errors
    /// If the network does not exist or iproute2 refuses.
    pub fn switch_down(&self, net: u8, how: SwitchFault) -> Result<(), LabError> {
        self.check_net(net)?;
        let state = self.update_state(|state| {
            state.switches.insert(net, how);
            Ok(state.clone())
        })?;
        let mut lines = vec![format!("link set {BRIDGE} down")];
        if how == SwitchFault::Off {
            lines.extend(ports(&state, net).map(|host| format!("link set {} down", host_name(host))));
        }
        tool::batch("ip", &switch_namespace(self.name(), net), &lines, &format!("take switch {net} down"))
    }

    /// Ends a switch's failure. Cables that were cut one by one stay cut.
    ///
    /// # Errors
    /// As [`Lab::switch_down`].
    pub fn switch_up(&self, net: u8) -> Result<(), LabError> {
        self.check_net(net)?;
        let state = self.read_state()?;
        let mut lines = vec![format!("link set {BRIDGE} up")];
        let whole = ports(&state, net).filter(|&host| !state.link(host, net).carrier_cut);
        lines.extend(whole.map(|host| format!("link set {} up", host_name(host))));
        tool::batch("ip", &switch_namespace(self.name(), net), &lines, &format!("bring switch {net} up"))?;
        self.update_state(|state| {
            state.switches.remove(&net);
            Ok(())
        })
    }

    /// What is wrong with a host's link now.
    ///
    /// # Errors
    /// If the host or the network does not exist, or the record cannot be read.
    pub fn link_faults(&self, host: u16, net: u8) -> Result<LinkFaults, LabError> {
        self.check_host(host)?;
        self.check_net(net)?;
        Ok(self.read_state()?.link(host, net))
    }

    /// Records both the old and the new faults while changing from one to the other, so that nothing is forgotten.
    fn change_link(&self, host: u16, net: u8, change: impl FnOnce(&mut LinkFaults)) -> Result<(), LabError> {
        self.check_host(host)?;
        self.check_net(net)?;
        let (before, after, switch_off) = self.update_state(|state| {
            let before = state.link(host, net);
            if before.removed {
                return Err(LabError::NicRemoved { host, net });
            }
            let mut after = before;
            change(&mut after);
            state.set_link(host, net, after);
            Ok((before, after, state.switches.get(&net) == Some(&SwitchFault::Off)))
        })?;
        self.apply(host, net, before, after, switch_off).inspect_err(|_| {
            // Best effort, the caller is told of the failure anyhow: what was there before, from a clean port.
            self.wipe(host, net);
            let _ = self.apply(host, net, LinkFaults::default(), before, switch_off);
            let _ = self.record_link(host, net, before);
        })
    }

    /// Removes every trace of a fault from a port, whether it is there or not.
    fn wipe(&self, host: u16, net: u8) {
        let (port, queue) = (host_name(host), queue_name(host));
        let switch = switch_namespace(self.name(), net);
        let run = |tool, line: String| drop(tool::batch(tool, &switch, &[line], "wipe a port"));
        run("tc", format!("qdisc del dev {port} clsact"));
        run("tc", format!("qdisc del dev {port} root"));
        run("ip", format!("link del {queue}"));
    }

    fn record_link(&self, host: u16, net: u8, faults: LinkFaults) -> Result<(), LabError> {
        self.update_state(|state| {
            state.set_link(host, net, faults);
            Ok(())
        })
    }

    fn apply(&self, host: u16, net: u8, before: LinkFaults, after: LinkFaults, switch_off: bool) -> Result<(), LabError> {
        let steps = Steps::between((host, net), before, after, switch_off);
        let switch = switch_namespace(self.name(), net);
        let what = format!("change the link of h{host} to network {net}");
        tool::batch("ip", &switch, &steps.ip_first, &what)?;
        tool::batch("tc", &switch, &steps.tc, &what)?;
        tool::batch("ip", &switch, &steps.ip_last, &what)
    }
}

/// The hosts whose port on that switch exists.
fn ports(state: &State, net: u8) -> impl Iterator<Item = u16> + '_ {
    (1..=state.spec.hosts).filter(move |&host| !state.link(host, net).removed)
}

/// What leads from some faults of a port to others, as lines for `ip` and `tc`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Steps {
    ip_first: Vec<String>,
    tc: Vec<String>,
    ip_last: Vec<String>,
}

impl Steps {
    fn between((host, net): (u16, u8), before: LinkFaults, after: LinkFaults, switch_off: bool) -> Self {
        let (port, queue) = (host_name(host), queue_name(host));
        let mut steps = Steps::default();

        // The carrier goes first and comes back last, so that nothing slips through between the steps.
        if after.carrier_cut && !before.carrier_cut {
            steps.ip_first.push(format!("link set {port} down"));
        }
        if before.carrier_cut && !after.carrier_cut && !switch_off {
            steps.ip_last.push(format!("link set {port} up"));
        }

        if after.needs_clsact() && !before.needs_clsact() {
            steps.tc.push(format!("qdisc add dev {port} clsact"));
        }
        for (way, was, is) in
            [("ingress", before.drop_from_host, after.drop_from_host), ("egress", before.drop_to_host, after.drop_to_host)]
        {
            // One classic BPF instruction: return 2, which is TC_ACT_SHOT.
            if is && !was {
                steps.tc.push(format!("filter add dev {port} {way} protocol all pref 1 bpf da bytecode '1,6 0 0 2'"));
            }
            if was && !is && after.needs_clsact() {
                steps.tc.push(format!("filter del dev {port} {way} pref 1"));
            }
        }

        if before.mtu != after.mtu {
            steps.ip_last.push(format!("link set {port} mtu {}", after.mtu.unwrap_or(ETHERNET_MTU)));
        }

        if before.no_multicast != after.no_multicast {
            let floods = if after.no_multicast { "off" } else { "on" };
            steps.ip_last.push(format!("link set {port} type bridge_slave mcast_flood {floods}"));
        }

        if before.lost_percent != after.lost_percent {
            for way in ["ingress", "egress"] {
                if before.lost_percent != 0 && after.needs_clsact() {
                    steps.tc.push(format!("filter del dev {port} {way} pref {LOSS_PREF}"));
                }
                if after.lost_percent != 0 {
                    let drop = drop_some(after.lost_percent);
                    steps.tc.push(format!("filter add dev {port} {way} protocol all pref {LOSS_PREF} bpf da bytecode '{drop}'"));
                }
            }
        }

        match (before.no_udp, after.no_udp) {
            (false, true) => {
                steps.tc.push(format!("filter add dev {port} egress protocol all pref {UDP_PREF} bpf da bytecode '{DROP_UDP}'"));
            }
            (true, false) if after.needs_clsact() => steps.tc.push(format!("filter del dev {port} egress pref {UDP_PREF}")),
            _ => {}
        }

        for other in 1..=DEAF_TO_MAX {
            let is_deaf = |faults: &LinkFaults| faults.deaf_to & 1 << (other - 1) != 0;
            let pref = DEAF_PREF + other;
            match (is_deaf(&before), is_deaf(&after)) {
                (false, true) => {
                    let drop = drop_of(&host_mac(other, net));
                    steps.tc.push(format!("filter add dev {port} egress protocol all pref {pref} bpf da bytecode '{drop}'"));
                }
                (true, false) if after.needs_clsact() => steps.tc.push(format!("filter del dev {port} egress pref {pref}")),
                _ => {}
            }
        }

        if before.slow_to_host_bps != after.slow_to_host_bps {
            steps.tc.push(match after.slow_to_host_bps {
                Some(rate) => format!("qdisc replace dev {port} root {}", bucket(rate)),
                None => format!("qdisc del dev {port} root"),
            });
        }
        match (before.slow_from_host_bps, after.slow_from_host_bps) {
            (None, Some(rate)) => {
                steps.ip_first.push(format!("link add {queue} type ifb"));
                steps.ip_first.push(format!("link set {queue} up"));
                steps.tc.push(format!("qdisc add dev {queue} root {}", bucket(rate)));
                steps.tc.push(format!(
                    "filter add dev {port} ingress protocol all pref 2 u32 match u32 0 0 \
                     action mirred egress redirect dev {queue}"
                ));
            }
            (Some(was), Some(rate)) if was != rate => {
                steps.tc.push(format!("qdisc replace dev {queue} root {}", bucket(rate)));
            }
            (Some(_), None) => {
                if after.needs_clsact() {
                    steps.tc.push(format!("filter del dev {port} ingress pref 2"));
                }
                steps.ip_last.push(format!("link del {queue}"));
            }
            _ => {}
        }

        // With clsact go all its filters.
        if before.needs_clsact() && !after.needs_clsact() {
            steps.tc.push(format!("qdisc del dev {port} clsact"));
        }
        steps
    }
}

/// Of a port without faults.
const ETHERNET_MTU: u16 = 1500;

/// The filter that loses some frames has this priority.
const LOSS_PREF: u16 = 50;

/// Classic BPF that drops so many percent: loads a random number (SKF_AD_OFF + SKF_AD_RANDOM), and returns TC_ACT_SHOT if it is below
/// that part of all, else TC_ACT_UNSPEC.
fn drop_some(percent: u8) -> String {
    const RANDOM: u32 = 0xffff_f000 + 56;
    let below = u64::from(u32::MAX) * u64::from(percent) / 100;
    format!("4,32 0 0 {RANDOM},53 1 0 {below},6 0 0 2,6 0 0 {}", u32::MAX)
}

/// The filter that drops UDP has this priority.
const UDP_PREF: u16 = 60;

/// Classic BPF that drops UDP: loads the EtherType, and the protocol of IPv4 or the next header of IPv6, and returns TC_ACT_SHOT if that is
/// 17, else TC_ACT_UNSPEC.
const DROP_UDP: &str = "9,40 0 0 12,21 0 2 2048,48 0 0 23,21 3 4 17,21 0 3 34525,48 0 0 20,21 0 1 17,6 0 0 2,6 0 0 4294967295";

/// Filters of frames of one host have this priority and the host's number.
const DEAF_PREF: u16 = 100;

/// Classic BPF that drops the frames of this sender: loads the upper four and the lower two bytes of the source address, and returns
/// TC_ACT_SHOT if both are equal, else TC_ACT_UNSPEC.
fn drop_of(mac: &str) -> String {
    let bytes = mac.split(':').filter_map(|byte| u64::from_str_radix(byte, 16).ok());
    let mac = bytes.fold(0, |mac, byte| mac << 8 | byte);
    let (upper, lower) = (mac >> 16, mac & 0xffff);
    format!("6,32 0 0 6,21 0 3 {upper},40 0 0 10,21 0 1 {lower},6 0 0 2,6 0 0 {}", u32::MAX)
}

/// A token bucket that holds little more than one frame and lets 4 MB wait.
fn bucket(bits_per_second: u64) -> String {
    format!("tbf rate {bits_per_second}bit burst 2000 limit 4000000")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: LinkFaults = LinkFaults {
        carrier_cut: false,
        drop_from_host: false,
        drop_to_host: false,
        slow_from_host_bps: None,
        slow_to_host_bps: None,
        removed: false,
        deaf_to: 0,
        no_multicast: false,
        mtu: None,
        lost_percent: 0,
        no_udp: false,
    };

    fn with(cut: Cut) -> LinkFaults {
        let mut faults = NONE;
        faults.add(cut);
        faults
    }

    #[test]
    fn nothing_to_change_runs_nothing() {
        assert_eq!(Steps::between((1, 0), NONE, NONE, false), Steps::default());
        let all = LinkFaults { slow_from_host_bps: Some(9), slow_to_host_bps: Some(9), ..with(Cut::Silent) };
        assert_eq!(Steps::between((1, 0), all, all, false), Steps::default());
    }

    #[test]
    fn a_pulled_cable_closes_the_port_and_a_silent_cut_leaves_it_open() {
        let pulled = Steps::between((2, 0), NONE, with(Cut::Carrier), false);
        assert_eq!((pulled.ip_first, pulled.tc.len()), (vec!["link set h2 down".to_string()], 0));

        let silent = Steps::between((2, 0), NONE, with(Cut::Silent), false);
        assert!(silent.ip_first.is_empty() && silent.ip_last.is_empty());
        assert_eq!(
            silent.tc,
            [
                "qdisc add dev h2 clsact",
                "filter add dev h2 ingress protocol all pref 1 bpf da bytecode '1,6 0 0 2'",
                "filter add dev h2 egress protocol all pref 1 bpf da bytecode '1,6 0 0 2'",
            ]
        );
        assert_eq!(Steps::between((2, 0), with(Cut::Silent), NONE, false).tc, ["qdisc del dev h2 clsact"]);
    }

    #[test]
    fn healing_a_cable_of_a_switch_without_power_does_not_give_it_a_carrier() {
        assert!(Steps::between((2, 0), with(Cut::Carrier), NONE, true).ip_last.is_empty());
        assert_eq!(Steps::between((2, 0), with(Cut::Carrier), NONE, false).ip_last, ["link set h2 up"]);
    }

    #[test]
    fn the_last_fault_to_go_takes_the_hook_along_and_no_other_does() {
        let slow = LinkFaults { slow_from_host_bps: Some(1000), ..NONE };
        let both = LinkFaults { drop_from_host: true, ..slow };
        assert_eq!(Steps::between((1, 0), both, slow, false).tc, ["filter del dev h1 ingress pref 1"]);
        let end = Steps::between((1, 0), slow, NONE, false);
        assert_eq!((end.tc, end.ip_last), (vec!["qdisc del dev h1 clsact".to_string()], vec!["link del q1".to_string()]));
    }

    #[test]
    fn a_port_without_multicast_gets_everything_else() {
        let none = LinkFaults { no_multicast: true, ..NONE };
        let steps = Steps::between((1, 0), NONE, none, false);
        assert_eq!((steps.tc.len(), steps.ip_last), (0, vec!["link set h1 type bridge_slave mcast_flood off".to_string()]));
        let steps = Steps::between((1, 0), none, NONE, false);
        assert_eq!(steps.ip_last, ["link set h1 type bridge_slave mcast_flood on"]);
    }

    #[test]
    fn a_lossy_cable_loses_both_ways_until_it_is_healed() {
        let lossy = LinkFaults { lost_percent: 50, ..NONE };
        let steps = Steps::between((1, 0), NONE, lossy, false);
        assert_eq!((steps.tc.len(), steps.tc[0].as_str()), (3, "qdisc add dev h1 clsact"));
        assert!(steps.tc[1].contains(" ingress ") && steps.tc[2].contains("53 1 0 2147483647"), "{steps:?}");
        assert_eq!(Steps::between((1, 0), lossy, NONE, false).tc, ["qdisc del dev h1 clsact"]);
        let more = Steps::between((1, 0), lossy, LinkFaults { lost_percent: 60, ..NONE }, false).tc;
        assert!(more.len() == 4 && more[0].starts_with("filter del"), "{more:?}");
    }

    #[test]
    fn a_port_passes_on_small_packets_until_it_is_healed() {
        let small = LinkFaults { mtu: Some(1200), ..NONE };
        assert_eq!(Steps::between((1, 0), NONE, small, false).ip_last, ["link set h1 mtu 1200"]);
        assert_eq!(Steps::between((1, 0), small, NONE, false).ip_last, ["link set h1 mtu 1500"]);
    }

    #[test]
    fn frames_of_one_host_are_told_by_its_address() {
        let deaf = LinkFaults { deaf_to: 0b100, ..NONE };
        let steps = Steps::between((1, 0), NONE, deaf, false);
        assert_eq!(steps.tc.len(), 2);
        assert!(steps.tc[1].starts_with("filter add dev h1 egress protocol all pref 103 bpf da bytecode '6,32 0 0 6,21 0 3 "));
        assert_eq!(drop_of("02:fd:00:00:01:03"), "6,32 0 0 6,21 0 3 50135040,40 0 0 10,21 0 1 259,6 0 0 2,6 0 0 4294967295");
        let more = LinkFaults { deaf_to: 0b110, ..NONE };
        assert_eq!(Steps::between((1, 0), more, deaf, false).tc, ["filter del dev h1 egress pref 102"]);
    }
}
