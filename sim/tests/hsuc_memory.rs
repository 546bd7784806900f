//! What HSUC keeps to be sent again (FiDe §4.1, A.3: "limiting the number of messages to be relayed to 2"), by whole groups and for long.

use std::collections::{BTreeMap, VecDeque};

use fide_proto::consensus::hsuc::{Hsuc, Message};
use fide_proto::consensus::{Action, Engine};
use fide_proto::group::{Body, Entry, EntryId, MemberId, MemberSet};
use fide_sim::rng::Rng;

/// Members and reliable links between them.
struct Group {
    engines: BTreeMap<MemberId, Hsuc>,
    links: BTreeMap<(MemberId, MemberId), VecDeque<Message>>,
    proposed: BTreeMap<MemberId, u64>,
    /// The most that each has kept after any call.
    most: BTreeMap<MemberId, usize>,
}

impl Group {
    fn new(n: u16) -> Self {
        let members = MemberSet::first(n);
        let engines = members.iter().map(|id| (id, Hsuc::new(id, members.clone(), 1))).collect();
        Self { engines, links: BTreeMap::new(), proposed: BTreeMap::new(), most: BTreeMap::new() }
    }

    fn at(&mut self, id: MemberId, call: impl FnOnce(&mut Hsuc)) {
        let Some(engine) = self.engines.get_mut(&id) else { return };
        call(engine);
        let most = self.most.entry(id).or_default();
        *most = (*most).max(engine.unstable());
        while let Some(action) = engine.poll_action() {
            if let Action::Send { to, message } = action {
                self.links.entry((id, to)).or_default().push_back(message);
            }
        }
    }

    fn propose(&mut self, id: MemberId) {
        let number = self.proposed.entry(id).or_default();
        *number += 1;
        let entry = Entry { id: EntryId { proposer: id, number: *number }, body: Body::Value((*b"v").into()) };
        // Too many at once are refused, and not missed here.
        self.at(id, |engine| {
            let _ = engine.propose(0, entry);
        });
    }

    /// The next message of a link arrives; `false` if there is none.
    fn arrive(&mut self, link: (MemberId, MemberId)) -> bool {
        let Some(message) = self.links.get_mut(&link).and_then(VecDeque::pop_front) else { return false };
        // What is refused has no effect.
        self.at(link.1, |engine| {
            let _ = engine.handle_message(0, link.0, message);
        });
        true
    }

    fn settle(&mut self) {
        loop {
            let links: Vec<_> = self.links.keys().copied().collect();
            let mut any = false;
            for link in links {
                while self.arrive(link) {
                    any = true;
                }
            }
            if !any {
                return;
            }
        }
    }

    fn report(&mut self, crashed: MemberId, observer: MemberId) {
        self.at(observer, |engine| engine.handle_crash(0, crashed).expect("it was a member"));
    }
}

#[test]
fn fide_a3_at_most_two_messages_are_kept_by_leaders_and_followers() {
    for n in [3, 5] {
        let mut group = Group::new(n);
        for instance in 1..=1_000_000 {
            group.propose(MemberId(1));
            group.settle();
            if instance % 1_000 == 0 {
                assert!(group.engines.values().all(|engine| engine.decided_through() == instance));
                assert!(group.engines.values().all(|engine| engine.unstable() == 1), "the last one, nothing being under way");
            }
        }
        assert_eq!(group.most.len(), usize::from(n));
        assert!(group.most.values().all(|most| *most == 1), "and 2 while a decision is delivered: {:?}", group.most);
    }
}

#[test]
fn fide_a3_at_most_two_messages_are_kept_when_leaders_crash() {
    let mut decided = 0;
    for seed in 0..20_000 {
        let mut rng = Rng::new(seed);
        let n = [3, 5][usize::from(rng.chance(50))];
        let mut group = Group::new(n);
        let mut told = Vec::new();
        let mut crashes: Vec<u64> = (0..n / 2).map(|_| rng.below(150)).collect();
        for step in 0..200 {
            if crashes.contains(&step) {
                crashes.retain(|at| *at != step);
                // Mostly the leader; of what it had sent a part is lost, the newest first.
                let alive: Vec<_> = group.engines.keys().copied().collect();
                let crashed = if rng.chance(80) { alive[0] } else { *rng.pick(&alive) };
                group.engines.remove(&crashed);
                for (_, link) in group.links.iter_mut().filter(|((from, _), _)| *from == crashed) {
                    link.truncate(rng.below(link.len() as u64 + 1) as usize);
                }
                told.extend(group.engines.keys().map(|observer| (crashed, *observer)));
            }
            let alive: Vec<_> = group.engines.keys().copied().collect();
            let links: Vec<_> = group.links.iter().filter(|(_, link)| !link.is_empty()).map(|(link, _)| *link).collect();
            match rng.below(10) {
                0 => group.propose(*rng.pick(&alive)),
                1 if !told.is_empty() => {
                    let (crashed, observer) = told.swap_remove(rng.below(told.len() as u64) as usize);
                    group.report(crashed, observer);
                }
                _ if !links.is_empty() => {
                    group.arrive(*rng.pick(&links));
                }
                _ => {}
            }
        }
        for (crashed, observer) in told {
            group.report(crashed, observer);
        }
        group.settle();
        // `invariants()` says the same of the time within a call: 2 while a decision is delivered.
        assert!(group.most.values().all(|most| *most <= 1), "seed {seed}: {:?}", group.most);
        let through: Vec<_> = group.engines.values().map(Engine::decided_through).collect();
        assert!(through.iter().all(|last| *last == through[0]), "seed {seed}: {through:?}");
        decided += through[0];
    }
    assert!(decided > 20_000, "there was something to keep: {decided}");
}
