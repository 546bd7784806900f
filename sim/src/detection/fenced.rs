//! Hosts with fences that a majority confirms, in networks that fail in part, and with firewalls that drop what agents send.
//!
//! Real are the node, its fence and what it reports of others. An operator opens all fences that have closed, at a few times behind the
//! faults.
//!
//! | property | says |
//! |---|---|
//! | `fenced` | who is told as fenced sends nothing from then on, in that incarnation |
//! | `outvoted` | no fence is shut by a report while enough others hear the host to keep it open |
//! | `mistaken` | only a verdict on a host that lives is taken back, and each once |
//! | `healing` | when all faults are over and all fences are open, all who live see all who live |

use super::Profile;
use super::host::{Agent, MS};
use super::world::{Event, World};
use crate::gates::Gates;
use crate::invariants::Violation;
use crate::rng::Rng;
use fide_proto::detector::State;
use fide_wire::frame::introduction::Introduction;
use std::collections::BTreeMap;

/// Faults of this profile begin when fences are armed, and are all over by [`HEALED`].
pub(super) const FAULTS_BEGIN: u64 = 40 * MS;
pub(super) const FAULTS_NS: u64 = 100 * MS;
const HEALED: u64 = 200 * MS;
/// An operator opens what is closed.
const OPENED: [u64; 3] = [HEALED + 10 * MS, HEALED + 80 * MS, HEALED + 150 * MS];
pub(super) const END: u64 = HEALED + 350 * MS;
/// What hosts promise, each one of these: shorter and longer than it takes to call an agent lost.
const FENCES_NS: [u64; 3] = [12 * MS, 25 * MS, 40 * MS];

/// What these simulations keep beside the hosts.
#[derive(Debug)]
pub(crate) struct Fenced {
    /// What each host promises.
    pub fence_ns: Vec<u64>,
    /// Until when a host drops what other agents send.
    pub filtered_until: Vec<u64>,
    /// On each host's disk: the last incarnation of another one that is over.
    pub over: Vec<BTreeMap<u32, u32>>,
    /// How often each verdict was taken back: observer, host, incarnation.
    mistaken: BTreeMap<(usize, u32, u32), u32>,
    /// How often each host was given up: as above.
    given_up: BTreeMap<(usize, u32, u32), u32>,
    pub totals: Counts,
}

/// What happened, so that a night in which it never does fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Hosts that were told as fenced.
    pub fenced: u64,
    /// Reports that were outvoted.
    pub refuted: u64,
    /// Verdicts that were taken back.
    pub mistaken: u64,
    /// Fences that were shut by a report.
    pub shut: u64,
}

impl Counts {
    pub(super) const fn add(&mut self, other: &Counts) {
        self.fenced += other.fenced;
        self.refuted += other.refuted;
        self.mistaken += other.mistaken;
        self.shut += other.shut;
    }
}

impl Fenced {
    pub(super) fn new(profile: Profile, rng: &mut Rng, hosts: usize) -> Option<Box<Self>> {
        (profile == Profile::Fenced).then(|| {
            Box::new(Self {
                fence_ns: (0..hosts).map(|_| FENCES_NS[rng.below(FENCES_NS.len() as u64) as usize]).collect(),
                filtered_until: vec![0; hosts],
                over: vec![BTreeMap::new(); hosts],
                mistaken: BTreeMap::new(),
                given_up: BTreeMap::new(),
                totals: Counts::default(),
            })
        })
    }
}

impl World {
    /// When an operator opens fences.
    pub(super) fn plan_recoveries(&mut self) {
        OPENED.iter().for_each(|at| self.at(*at, Event::OpenFences));
    }

    /// What this host's fence promises.
    pub(crate) fn fence_ns(&self, host: usize) -> Option<u64> {
        self.fenced.as_ref().map(|fenced| fenced.fence_ns[host])
    }

    /// An agent has begun a new incarnation, and goes on.
    pub(crate) fn renewed(&mut self, host: usize, former: u32) {
        let (now, h) = (self.now, &mut self.hosts[host]);
        for app in &mut h.apps {
            if let Some(number) = app.numbers.get(&former).copied() {
                app.numbers.insert(h.incarnation, number);
            }
        }
        let incarnation = h.incarnation;
        self.judge.agent_ended(host, former, now);
        self.judge.begins(host, incarnation, now);
    }

    /// All that are closed, at once.
    pub(super) fn open_fences(&mut self) {
        for host in 0..self.hosts.len() {
            let boot = self.hosts[host].boot;
            self.recover(host, boot);
        }
    }

    /// An incarnation of a host is refused from now on, also by later agents.
    pub(super) fn note_over(&mut self, host: usize, node: u32, incarnation: u32) {
        if let Some(fenced) = &mut self.fenced {
            fenced.over[host].insert(node, incarnation);
            *fenced.given_up.entry((host, node, incarnation)).or_default() += 1;
        }
    }

    /// Whether this agent refuses an introduction: a former one of its host has given that incarnation up. Unless the host refutes it.
    pub(super) fn refuses(&mut self, host: usize, agent: &mut Agent, (node, incarnation): (u32, u32), body: &[u8]) -> bool {
        let Some(fenced) = &self.fenced else { return false };
        let is_known = self.hosts[host].table.contains_key(&node);
        let Some(over) = fenced.over[host].get(&node).copied().filter(|over| incarnation <= *over && !is_known) else {
            return false;
        };
        let own = (self.hosts[host].node, self.hosts[host].incarnation);
        let said = Introduction::read(body).unwrap_or_else(|| panic!("an introduction"));
        let takes_back = agent.node.takes_back(self.now) && said.host.fence.is_some();
        if incarnation == over && (said.refuted.contains(&own) || takes_back) {
            agent.node.refuted_by_introduction(node, incarnation, self.now);
        } else {
            agent.node.outdated(node, over, false, self.now);
        }
        true
    }

    /// Somebody is told that a host is fenced.
    pub(super) fn told_as_fenced(&mut self, observer: usize, node: u32, incarnation: u32) {
        let (now, at) = (self.now, self.hosts.iter().position(|h| h.node == node).expect("one of them"));
        let Some(fenced) = &mut self.fenced else { return };
        fenced.totals.fenced += 1;
        let h = &self.hosts[at];
        let sends = h.up && h.incarnation == incarnation && h.gates.pass(now);
        // What has never been armed promises nothing.
        let is_wrong = sends && h.gates != Gates::NotArmed;
        self.judge.must("fenced", !is_wrong, || {
            format!("host-{observer} says at {now} that host-{at} is fenced in {incarnation}: {:?}", h.gates)
        });
    }

    /// A fence is shut because another host has given this one up.
    pub(super) fn shut_by_report(&mut self, host: usize, own: Option<&Agent>) {
        let (now, own) = (self.now, own.map(|agent| agent.node.detector()));
        let Some(fenced) = &mut self.fenced else { return };
        fenced.totals.shut += 1;
        let (node, incarnation) = (self.hosts[host].node, self.hosts[host].incarnation);
        let since = now.saturating_sub(fenced.fence_ns[host]);
        let judge = &self.judge;
        let hears = |h: &super::host::Host| {
            let hears_it = h.agent.as_ref().is_some_and(|agent| {
                let detector = agent.node.detector();
                (detector.state(node), detector.incarnation(node)) == (Some(State::Alive), Some(incarnation))
            });
            let is_heard = own.is_some_and(|own| own.state(h.node) == Some(State::Alive));
            hears_it && is_heard && judge.heard_each_other_since(h.index, host, since, now) && h.gates.pass(now)
        };
        let filtered = |h: &super::host::Host| fenced.filtered_until[h.index] + 5 * MS > since;
        let others = self.hosts.iter().filter(|h| h.index != host && hears(h) && !filtered(h)).count();
        let needed = (self.hosts.len() - 1).div_ceil(2);
        let is_outvoted = others >= needed && !filtered(&self.hosts[host]);
        self.judge.must("outvoted", !is_outvoted, || {
            format!("the fence of host-{host} is shut by a report at {now}, and {others} others, of {needed}, hear it")
        });
    }

    pub(super) fn told_as_refuted(&mut self) {
        if let Some(fenced) = &mut self.fenced {
            fenced.totals.refuted += 1;
        }
    }

    /// A host takes a verdict back.
    pub(super) fn told_as_mistaken(&mut self, observer: usize, node: u32, incarnation: u32) {
        let (now, at) = (self.now, self.hosts.iter().position(|h| h.node == node).expect("one of them"));
        let Some(fenced) = &mut self.fenced else { return };
        fenced.totals.mistaken += 1;
        fenced.over[observer].remove(&node);
        let key = (observer, node, incarnation);
        let count = fenced.mistaken.entry(key).or_default();
        *count += 1;
        let is_once = *count <= fenced.given_up.get(&key).copied().unwrap_or(0);
        // It may have ended while what it said was under way.
        let lived = self.hosts[at].incarnation >= incarnation;
        self.judge.must("mistaken", is_once && lived, || {
            format!("host-{observer} takes back at {now} what it said of host-{at} in {incarnation}, {count} times")
        });
    }

    /// What holds at the end.
    pub(super) fn fenced_at_the_end(&mut self) -> Result<Option<Counts>, Violation> {
        let Some(fenced) = &self.fenced else { return Ok(None) };
        let totals = fenced.totals;
        self.judge.all_see_all(&self.hosts, self.now);
        self.judge.violation().map_or(Ok(Some(totals)), Err)
    }
}
