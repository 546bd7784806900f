//! The witness: a command of the operator's on each host, as `agent/src/witness.rs` runs it. It
//! sees all hosts by a way of its own.

use super::Neglect;
use super::cluster::Happening;
use super::fences;
use super::shell::shell;
use crate::detection::faults::Fault;
use crate::detection::host::{Agent, MS};
use crate::detection::world::{Event, World};
use crate::rng::Rng;
use crate::time::US;
use fide_proto::consensus::policy::Answer;

/// A witness that has not answered after so long has refused.
pub(super) const TIMEOUT_NS: u64 = 60 * MS;
/// It answers after so long, at least: a child process is started, and asks a controller.
const LEAST_NS: u64 = 2 * MS;

/// What it does when it is asked about a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// It says whether this incarnation of the host is over.
    Looks,
    /// It switches the host off, if its incarnation is not over.
    SwitchesOff,
}

/// The witness of all hosts.
#[derive(Debug)]
pub(super) struct Witness {
    rng: Rng,
    manner: Manner,
    /// Of a hundred questions, so many are refused without a look, and so many are not answered in
    /// time, while there are faults.
    refuses: u64,
    is_away: u64,
}

impl Witness {
    /// By a stream of its own: simulations without one are the same as before there was any.
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x57_49_54 << 32);
        let manner = *rng.pick(&[Manner::Looks, Manner::SwitchesOff]);
        let mut percent = || if rng.chance(40) { 1 + rng.below(60) } else { 0 };
        let (refuses, is_away) = (percent(), percent());
        Self { rng, manner, refuses, is_away }
    }

    /// Whether a group that the seed gives the policy *fence* has this one.
    pub(super) fn takes_over(&mut self) -> bool {
        self.rng.chance(50)
    }

    /// When the faults are over, so are its own.
    pub(super) const fn heal(&mut self) {
        (self.refuses, self.is_away) = (0, 0);
    }
}

impl World {
    /// A group's gate asks: about each incarnation one question at a time, for all groups.
    pub(super) fn ask_witness(&mut self, host: usize, agent: &mut Agent, about: (u32, u32)) {
        let now = self.now;
        if fences::is_cut_off(&self.hosts[host], agent, about.0, about.1, now) {
            return shell(agent).groups.handle_fenced(now, about.0, about.1);
        }
        if !shell(agent).witnessed.insert(about) {
            return;
        }
        let cluster = self.cluster();
        let (number, witness) = (cluster.agents[host], &mut cluster.witness);
        let is_away = witness.rng.chance(witness.is_away);
        let longest = if is_away { 2 * TIMEOUT_NS } else { TIMEOUT_NS / 2 };
        let looks_at = now + LEAST_NS + witness.rng.below(longest);
        self.note(host, || format!("asks the witness about {about:?}"));
        self.happens(looks_at, Happening::WitnessLooks { host, agent: number, about });
    }

    /// It looks, and answers a little later.
    pub(super) fn witness_looks(&mut self, host: usize, agent: u64, about: (u32, u32)) {
        let (node, incarnation) = about;
        let is_neglected = self.neglects() == Some(Neglect::Witness);
        let witness = &mut self.cluster().witness;
        let refuses = witness.rng.chance(witness.refuses);
        let (manner, delay_ns) = (witness.manner, 100 * US + witness.rng.below(3 * MS));
        let at = self.hosts.iter().position(|host| host.node == node).expect("a host");
        if manner == Manner::SwitchesOff && !refuses && !is_neglected && !self.is_over(at, incarnation) {
            self.note(at, || "is switched off by the witness".into());
            self.fault(Fault::CrashHost { host: at, back_after: None });
            let back_at = self.now + 20 * MS + self.cluster().witness.rng.below(200 * MS);
            self.at(back_at, Event::Boot { host: at });
        }
        let is_granted = is_neglected || !refuses && self.is_over(at, incarnation);
        let answer = if is_granted { Answer::Granted } else { Answer::Refused };
        let answers_at = self.now + delay_ns;
        self.happens(answers_at, Happening::WitnessAnswers { host, agent, about, answer });
    }

    /// Whether this incarnation of a host neither runs nor sends any more.
    fn is_over(&self, host: usize, incarnation: u32) -> bool {
        let host = &self.hosts[host];
        !host.up || host.agent.is_none() || host.incarnation > incarnation
    }

    /// The answer comes, if the agent that asked still runs, and once it does not stand still.
    pub(super) fn witness_answers(&mut self, host: usize, number: u64, about: (u32, u32), answer: Answer) {
        let now = self.now;
        if self.cluster().agents[host] != number {
            return;
        }
        let asleep_until = self.hosts[host].frozen_until.max(self.hosts[host].stuck_until);
        if asleep_until > now {
            return self.happens(asleep_until + US, Happening::WitnessAnswers { host, agent: number, about, answer });
        }
        let Some(mut agent) = self.hosts[host].agent.take() else { return };
        self.cluster().totals.witnessed[usize::from(answer != Answer::Granted)] += 1;
        self.note(host, || format!("is told by the witness about {about:?}: {answer:?}"));
        let shell = shell(&mut agent);
        shell.witnessed.remove(&about);
        shell.groups.handle_witness(now, about.0, about.1, answer);
        self.hosts[host].agent = Some(agent);
        self.wake(host, now + 1);
    }
}
