//! The engines that worlds run, and their settings.

use fide_proto::consensus::hsuc::Hsuc;
use fide_proto::consensus::huc::Huc;
use fide_proto::consensus::log::{Build, Carried, EngineMessage, Setup};
use fide_proto::consensus::lowi::{self, Lowi, Start, StartPoint};
use fide_proto::consensus::paxos::{self, Paxos};
use fide_proto::consensus::policy::Policy;
use fide_proto::consensus::{Engine, Kind};
use fide_raft::Raft;

use crate::time::{DELTA_MAX_NS, LAMBDA_MIN_NS, PERIOD_NS};

/// Those that are built.
pub const AVAILABLE: &[Kind] = &Kind::ALL;

/// Makes engines for one member, and none that cannot keep the group's policy: a change to such a one is void. Settings that may be chosen follow from
/// the seed, the same at all members.
#[must_use]
pub fn build(seed: u64, policy: Policy) -> Build {
    Box::new(move |setup| policy.suits(setup.kind).then(|| make(seed, setup)).flatten())
}

fn make(seed: u64, setup: &Setup) -> Option<Box<dyn Engine<EngineMessage> + Send>> {
    let (me, now_ns) = (setup.me, setup.now_ns);
    let members = setup.members.clone();
    let mut engine: Box<dyn Engine<EngineMessage> + Send> = match setup.kind {
        Kind::Hsuc => Box::new(Carried::new(Hsuc::new(me, members, setup.first))),
        Kind::Lowi => {
            let config = lowi::Config { drift_ppm: 250, ..lowi::Config::new(PERIOD_NS, LAMBDA_MIN_NS + DELTA_MAX_NS) };
            let lowi = match &setup.start {
                Some(start) => Lowi::join(me, config, members, StartPoint::from_value(start)?, now_ns),
                // Behind a change of the engine nobody knows when the others are through.
                None if setup.first > 1 => Lowi::new(me, config, members, setup.first, Start::OnMessage, now_ns),
                None => Lowi::new(me, config, members, setup.first, Start::Together, now_ns),
            };
            Box::new(Carried::new(lowi.ok()?))
        }
        Kind::Paxos => {
            let two_sided_from = seed.is_multiple_of(4).then_some(6 + (seed % 7) as u16);
            let config = paxos::Config { two_sided_from, resend_ns: 10 * PERIOD_NS, ..paxos::Config::new(me, seed) };
            Box::new(Carried::new(Paxos::new(config, members, setup.first - 1)))
        }
        Kind::Raft => {
            // So few now and then that members fall behind them.
            let kept_max = if seed.is_multiple_of(3) { 2 + (seed % 5) as usize } else { 1 << 16 };
            // At once, a tick later, or two.
            let word_wait_ns = seed % 3 * PERIOD_NS;
            let config = fide_raft::Config { tick_ns: PERIOD_NS, seed, kept_max, word_wait_ns, ..fide_raft::Config::new(me) };
            let start = setup.start.as_deref();
            let mut raft = Raft::new(config, now_ns, setup.first, &setup.members, start).ok()?;
            if !setup.joins && setup.members.min() == Some(me) {
                raft.campaign();
            }
            Box::new(raft)
        }
        Kind::Huc => Box::new(Carried::new(Huc::new(me, members, setup.first))),
    };
    for member in setup.crashed.iter() {
        let _ = engine.handle_crash(now_ns, member);
    }
    Some(engine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Act, Plan, Step};
    use crate::world::World;
    use crate::{Menu, Options};

    /// Nobody asks before an engine that elects by silence acts, so under a fence or a witness a group must not come to it by a change either.
    #[test]
    fn a_change_to_an_engine_that_cannot_keep_the_policy_is_void() {
        for policy in [Policy::Fence, Policy::Witness, Policy::TrustContract] {
            let options = Options { engine: Kind::Hsuc, policy, menu: Menu::WithinContract, hosts: Some(3) };
            let mut plan = Plan::generate(1, options);
            plan.steps = vec![Step { at_ns: 1_000_000, act: Act::Switch { host: 0, to: Kind::Lowi } }];
            plan.faults_end_ns = 2_000_000;
            let mut world = World::new(plan, false);
            assert_eq!(world.run().violation, None);
            let kinds = (0..3).map(|host| world.member_on(host).map(|member| member.log().kind())).collect::<Vec<_>>();
            let expected = if policy.suits(Kind::Lowi) { Kind::Lowi } else { Kind::Hsuc };
            assert_eq!(kinds, [Some(expected); 3], "{policy}");
        }
    }
}
