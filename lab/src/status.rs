//! How a lab is, in a form that can be printed as JSON.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use serde::Serialize;

use crate::fault::{LinkFaults, SwitchFault};
use crate::freeze::FreezeBy;
use crate::lab::REGISTRY;
use crate::names::{NETS, host_ipv4, host_ipv6, host_mac, host_name, host_namespace, nic_name, switch_namespace};
use crate::netns::{Interfaces, Netns};
use crate::process::{self, ProcessId, Stat};
use crate::state::{self, Phase, State};

/// One line of [`crate::Lab::list`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LabSummary {
    /// The lab's name.
    pub name: String,
    /// How many hosts.
    pub hosts: u16,
    /// Whether it goes with its creator.
    pub ephemeral: bool,
    /// How far it has come.
    pub phase: Phase,
    /// Who made it. Labs that are not ephemeral outlive their creator.
    pub creator: ProcessId,
    /// Left behind by a crash; [`crate::Lab::reap_stale`] removes it.
    pub stale: bool,
}

impl LabSummary {
    pub(crate) fn of(state: &State) -> Self {
        LabSummary {
            name: state.name.clone(),
            hosts: state.spec.hosts,
            ephemeral: state.spec.ephemeral,
            phase: state.phase,
            creator: state.creator,
            stale: state.is_stale(),
        }
    }
}

/// [`crate::Lab::status`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LabStatus {
    /// Name, phase, creator.
    #[serde(flatten)]
    pub summary: LabSummary,
    /// The lab's directory.
    pub directory: PathBuf,
    /// Both switches.
    pub switches: Vec<SwitchStatus>,
    /// All hosts.
    pub hosts: Vec<HostStatus>,
    /// Processes that run on a switch, or where is not known.
    pub other_processes: Vec<ProcessStatus>,
}

/// One switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SwitchStatus {
    /// The network it makes.
    pub net: u8,
    /// Its network namespace.
    pub namespace: String,
    /// What is wrong with it; `None`: nothing.
    pub fault: Option<SwitchFault>,
}

/// One host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostStatus {
    /// `h1`, `h2`, …
    pub name: String,
    /// 1, 2, …
    pub number: u16,
    /// Its network namespace.
    pub namespace: String,
    /// Its directory.
    pub directory: PathBuf,
    /// Both NICs.
    pub nics: Vec<NicStatus>,
    /// What was started on it through the lab and still runs.
    pub processes: Vec<ProcessStatus>,
}

/// One NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NicStatus {
    /// `net0` or `net1`.
    pub name: String,
    /// The network it is on.
    pub net: u8,
    /// Its hardware address.
    pub mac: String,
    /// Its address.
    pub ipv4: Ipv4Addr,
    /// Its IPv6 address, if the lab has IPv6.
    pub ipv6: Option<Ipv6Addr>,
    /// Whether it has a carrier, as the kernel says just now; `None`: there is no such NIC.
    pub carrier: Option<bool>,
    /// What was done to its link.
    pub faults: LinkFaults,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessStatus {
    /// Its id.
    #[serde(flatten)]
    pub id: ProcessId,
    /// Its name, as in `/proc/<pid>/comm`.
    pub command: String,
    /// The letter of its state, as `ps` shows it.
    pub state: char,
    /// Whether and how the lab froze it.
    pub frozen: Option<FreezeBy>,
}

impl LabStatus {
    pub(crate) fn of(state: &State) -> Self {
        let directory = state::directory_of(&state.name);
        let mut processes = processes_by_host(state);
        LabStatus {
            summary: LabSummary::of(state),
            switches: NETS.iter().map(|&net| switch(state, net)).collect(),
            hosts: (1..=state.spec.hosts)
                .map(|number| {
                    let name = host_name(number);
                    HostStatus {
                        number,
                        namespace: host_namespace(&state.name, number),
                        directory: directory.join(&name),
                        nics: nics(state, number),
                        processes: processes.remove(&name).unwrap_or_default(),
                        name,
                    }
                })
                .collect(),
            directory,
            other_processes: processes.into_values().flatten().collect(),
        }
    }
}

fn switch(state: &State, net: u8) -> SwitchStatus {
    SwitchStatus { net, namespace: switch_namespace(&state.name, net), fault: state.switches.get(&net).copied() }
}

fn nics(state: &State, host: u16) -> Vec<NicStatus> {
    // A lab that is being made or removed may lack the namespace: then there are no NICs.
    let carriers: [Option<bool>; 2] = Netns::open(&host_namespace(&state.name, host))
        .and_then(|netns| {
            netns.run(|| match Interfaces::here() {
                Ok(here) => NETS.map(|net| here.carrier(&nic_name(net)).unwrap_or(None)),
                Err(_) => [None; 2],
            })
        })
        .unwrap_or([None; 2]);
    let nic = |net: u8| NicStatus {
        name: nic_name(net),
        net,
        mac: host_mac(host, net),
        ipv4: host_ipv4(host, net),
        ipv6: state.spec.ipv6.then(|| host_ipv6(host, net)),
        carrier: carriers[usize::from(net)],
        faults: state.link(host, net),
    };
    NETS.iter().map(|&net| nic(net)).collect()
}

fn processes_by_host(state: &State) -> BTreeMap<String, Vec<ProcessStatus>> {
    let registry = state::directory_of(&state.name).join(REGISTRY);
    let mut by_host: BTreeMap<String, Vec<ProcessStatus>> = BTreeMap::new();
    for (id, host) in process::started_by(&registry, &state.id) {
        let Some(stat) = Stat::read(id.pid) else { continue };
        let frozen = state.frozen.iter().find(|f| f.process == id).map(|f| f.by());
        let process = ProcessStatus { id, command: stat.command, state: stat.state, frozen };
        by_host.entry(host.unwrap_or_default()).or_default().push(process);
    }
    by_host
}
