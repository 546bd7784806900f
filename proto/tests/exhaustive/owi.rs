//! OWI (Nano-consensus Alg. 2): one instance, Δ_I = 2, Δ_W = 3, all but one crash, at every point.
//!
//! Not covered: clock drift.

use fide_proto::consensus::owi::{Action as OwiAction, Config, Owi};
use fide_proto::consensus::{Action, Engine, Halted, Instance, Kind};
use fide_proto::group::{Entry, EntryId, MemberId, MemberSet, Refusals, Refused};

use crate::exhaustive::explore::explore;
use crate::exhaustive::messages::entry;
use crate::exhaustive::timed::World;

#[derive(Clone, Debug, Hash)]
enum Message {
    Proposal(EntryId),
    Round(EntryId),
}

/// Behind the interface of the others.
#[derive(Clone, Hash)]
struct Once(Owi<EntryId>);

impl Engine<Message> for Once {
    fn kind(&self) -> Kind {
        Kind::Lowi
    }
    fn propose(&mut self, now_ns: u64, entry: Entry) -> Result<(), Refused> {
        self.0.propose(now_ns, entry.id)
    }
    fn handle_message(&mut self, now_ns: u64, from: MemberId, message: Message) -> Result<(), Refused> {
        let Message::Proposal(id) = message else { return Err(Refused::Malformed) };
        self.0.handle_proposal(now_ns, from, id)
    }
    fn handle_copy(&mut self, now_ns: u64, from: MemberId, path: usize, message: Message) -> Result<(), Refused> {
        let Message::Round(id) = message else { return Err(Refused::Malformed) };
        self.0.handle_copy(now_ns, from, path, id)
    }
    fn handle_crash(&mut self, _: u64, _: MemberId) -> Result<(), Refused> {
        Ok(())
    }
    fn poll_timeout(&self) -> Option<u64> {
        self.0.poll_timeout()
    }
    fn handle_timeout(&mut self, now_ns: u64) {
        self.0.handle_timeout(now_ns);
    }
    fn set_members(&mut self, _: u64, _: Instance, _: MemberSet) -> Result<(), fide_proto::group::Refused> {
        Ok(())
    }
    fn poll_action(&mut self) -> Option<Action<Message>> {
        Some(match self.0.poll_action()? {
            OwiAction::Send { to, value } => Action::Send { to, message: Message::Proposal(value) },
            OwiAction::Copies { value } => Action::Copies { message: Message::Round(value) },
            OwiAction::Decide(id) => Action::Decide { instance: 1, batch: [entry(id.proposer, id.number, 0)].into() },
            OwiAction::Quit(why) => Action::Halt(why),
        })
    }
    fn decided_through(&self) -> Instance {
        u64::from(self.0.decision().is_some())
    }
    fn stable_through(&self) -> Instance {
        0
    }
    fn leader(&self) -> Option<MemberId> {
        self.0.leader()
    }
    fn halted(&self) -> Option<Halted> {
        self.0.halted()
    }
    fn refusals(&self) -> &Refusals {
        self.0.refusals()
    }
    fn invariants(&self) {
        self.0.invariants();
    }
}

fn build<const PATHS: usize>(me: MemberId, members: MemberSet, _now: u64) -> Once {
    let config = Config { delta_i_ns: 2, delta_w_ns: 3, late_ns: 1, drift_ppm: 0, paths: PATHS };
    Once(Owi::new(me, config, members))
}

fn world(hosts: usize, crashes: u8) -> World<Message, Once> {
    World {
        build: build::<1>,
        round: |_| 1,
        delta_i: 2,
        delta_w: 3,
        late: 1,
        paths: 1,
        entries: vec![1; hosts],
        crashes,
        crash_until: 20,
        horizon: 24,
        notices: false,
        notices_by: None,
        late_copies: 0,
        once: true,
        safety_only: false,
    }
}

#[test]
fn nano_alg2_three_members() {
    explore("owi N=3 crashes=2", &world(3, 2)).assert_holds(57_000, 79);
}

#[test]
fn nano_alg2_three_members_two_paths() {
    explore("owi N=3 crashes=2, two paths", &World { build: build::<2>, paths: 2, ..world(3, 2) }).assert_holds(68_000, 80);
}

#[test]
fn nano_4_2_must_fail_with_one_late_packet() {
    let world = World { late_copies: 1, safety_only: true, ..world(3, 0) };
    explore("owi N=3 one late packet", &world).assert_fails("agreement");
}
