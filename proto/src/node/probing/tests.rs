use super::*;
use crate::detector::{self, PathArrival};
use fide_wire::verdict::Contract;
use std::net::Ipv4Addr;

const MS: u64 = 1_000_000;
const CONTRACT: Contract = Contract { period_ns: MS, size_max: 1000, lambda_min_ns: 50_000, delta_max_ns: 100_000 };
const ME: u32 = 99;
/// The host that falls silent, and two others.
const A: u32 = 5;
const B: u32 = 6;
const C: u32 = 7;
const BOTH: [bool; PATHS] = [true; PATHS];
/// Who is heard until then falls silent behind it, and is doubted at [`NOW`].
const LAST: u64 = 100 * MS;
const NOW: u64 = LAST + 2 * MS;

fn address(node: u32, path: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, path as u8, node as u8).into()
}

/// What a shell knows: hosts, when each was heard last, and by which queue.
#[derive(Clone)]
struct Shell {
    hosts: Vec<(Host, u64, u32)>,
    steers: bool,
    offers_barriers: bool,
    carriers: [bool; PATHS],
    sources: [bool; PATHS],
    noted: Vec<(u32, u32)>,
    random: u64,
}

impl Shell {
    fn new(nodes: &[u32]) -> Self {
        let addresses = |node| std::array::from_fn(|path| Some(address(node, path)));
        let host = |node| Host { node, left: false, condemned: false, addresses: addresses(node) };
        Self {
            hosts: nodes.iter().map(|node| (host(*node), if *node == A { LAST } else { NOW }, *node)).collect(),
            steers: true,
            offers_barriers: true,
            carriers: BOTH,
            sources: BOTH,
            noted: Vec::new(),
            random: 0x1100,
        }
    }
}

impl View for Shell {
    fn places(&self) -> usize {
        self.hosts.len()
    }
    fn host(&self, place: usize) -> Option<Host> {
        self.hosts.get(place).map(|(host, ..)| *host)
    }
    fn arrived_ns(&self, place: usize, _: usize) -> u64 {
        self.hosts[place].1
    }
    fn queue(&self, place: usize, _: usize) -> u32 {
        self.hosts[place].2
    }
    fn offers_barriers(&self) -> bool {
        self.offers_barriers
    }
    fn steers(&self) -> bool {
        self.steers
    }
    fn noted(&self, _: usize) -> Vec<(u32, u32)> {
        self.noted.clone()
    }
    fn source(&self, path: usize) -> Option<IpAddr> {
        self.sources[path].then(|| address(ME, path))
    }
    fn carrier(&self, path: usize) -> bool {
        self.carriers[path]
    }
    fn random(&mut self) -> Option<u64> {
        self.random += 0x100_0000_0100;
        Some(self.random)
    }
}

fn probing() -> Probing {
    let mut p = Probing::default();
    [A, B, C].into_iter().for_each(|node| p.begins(node));
    p
}

/// A detector that has heard these hosts, and doubts A.
fn doubting(nodes: &[u32]) -> Detector {
    let mut d = Detector::new(detector::Config::new(ME, 1));
    for node in nodes {
        d.peer_seen(*node, &format!("host-{node}"), 1, &[CONTRACT; PATHS], MS).unwrap();
    }
    for number in 1..=NOW / MS {
        let now = number * MS;
        for node in nodes.iter().filter(|node| **node != A || now <= LAST) {
            let row = PathArrival { last_number: number, last_arrival_ns: now, ..PathArrival::default() };
            d.arrivals(*node, 1, &[row; PATHS]).unwrap();
        }
        d.tick(now);
    }
    assert!(d.is_draining() && d.state(A) == Some(State::Alive));
    while d.poll_action().is_some() {}
    d
}

fn actions(p: &mut Probing) -> Vec<Action> {
    std::iter::from_fn(|| p.poll_action()).collect()
}

/// All that can wait, in order.
fn the_rest(p: &mut Probing, d: &Detector, shell: &mut Shell, now: u64) -> Vec<Action> {
    let mut all = Vec::new();
    while p.has_next() {
        p.ask_next(d, shell, now);
        all.extend(actions(p));
    }
    all
}

fn answer(node: u32, queue: u32, asked_ns: u64) -> Answer {
    Answer { node, path: 0, result: ProbeResult::KernelAnswered, asked_ns, queue: Some(queue) }
}

#[test]
fn a_doubted_host_is_asked_at_once_and_others_behind_a_look_at_what_came() {
    let (mut p, d, mut shell) = (probing(), doubting(&[A, B, C]), Shell::new(&[A, B, C]));
    shell.steers = false;
    p.probe(A, BOTH, (true, true), NOW);
    p.probe(B, [true, false], (false, false), NOW);
    let echo = |path| Action::Echo { node: A, path };
    let wide = |path| Action::EchoWide { node: A, path };
    assert_eq!(actions(&mut p), [echo(0), echo(1), wide(0), wide(1), Action::LookAtCarriers]);
    assert_eq!(p.poll_timeout(NOW), None);
    let knock = |path| Action::Knock { node: A, path };
    let witness = Action::Echo { node: B, path: 0 };
    assert_eq!(the_rest(&mut p, &d, &mut shell, NOW), [knock(0), knock(1), witness]);
    p.probe(A, [true, false], (true, false), NOW);
    assert_eq!(actions(&mut p), [echo(0)], "carriers are looked at once for all who are asked now");
    p.probe(A, [true, false], (true, false), NOW + 1);
    assert_eq!(actions(&mut p), [echo(0), Action::LookAtCarriers]);
}

#[test]
fn safetimer_5_1_an_answer_is_a_barrier_for_whose_heartbeats_take_its_queue_alone() {
    let (mut p, mut d, shell) = (probing(), doubting(&[A, B, C]), Shell::new(&[A, B, C]));
    let mut take = |answer: &Answer| p.answered(answer, || false, &mut d, &shell, NOW + 1);
    assert!(take(&answer(B, 6, NOW)), "it came in");
    assert!(!take(&Answer { queue: None, ..answer(B, 6, NOW) }), "another came out of the queue since");
    assert!(!take(&Answer { result: ProbeResult::AgentAbsent, ..answer(C, 6, NOW) }));
    assert!(!take(&Answer { path: PATHS, ..answer(C, 6, NOW) }));
    let by = |by| Some((Emptied { queue: 6, as_of_ns: NOW, by }, None));
    assert_eq!(p.barriers(B), [by(C), None]);
    assert_eq!((p.barriers(A), p.barriers(C)), ([None; PATHS], [None; PATHS]));
    p.begins(B);
    assert_eq!(p.barriers(B), [None; PATHS], "in another incarnation");
    p.forget(B);
    let _ = p.answered(&answer(C, 6, NOW), || false, &mut d, &shell, NOW + 1);
    assert_eq!(p.barriers(B), [None; PATHS], "of a host that is not judged");
}

/// A verdict that says that nothing waits needs a barrier of each path, by the queue of these
/// heartbeats.
#[test]
fn safetimer_5_1_a_silence_is_not_drained_by_answers_that_take_other_queues() {
    let late = |queue: u32| {
        let (mut p, mut d, shell) = (probing(), doubting(&[A, B, C]), Shell::new(&[A, B, C]));
        for path in 0..PATHS {
            let _ = p.answered(&Answer { path, ..answer(B, queue, NOW) }, || false, &mut d, &shell, NOW + 1);
        }
        d.tick(NOW + 2);
        let mut verdicts = std::iter::from_fn(|| d.poll_action());
        let drained =
            verdicts.find_map(|action| if let detector::Action::Verdict(v) = action { Some(v.evidence.drained) } else { None });
        (d.state(A), drained)
    };
    assert_eq!(late(A), (Some(State::Late), Some(true)));
    assert_eq!(late(C), (Some(State::Alive), None));
}

#[test]
fn who_is_no_host_is_asked_while_no_other_host_answers_and_behind_those_that_may() {
    let router: IpAddr = Ipv4Addr::new(10, 0, 0, 254).into();
    let asked = |node| Action::Answerer { node, path: 0, address: router };
    let (mut p, mut d, mut shell) = (probing(), doubting(&[A, B]), Shell::new(&[A, B]));
    shell.steers = false;
    p.set_answerers(0, &[router, address(B, 0)], &shell, LAST);
    let node = p.answerers().of(0)[0].node;
    assert_eq!((p.answerers().of(0).len(), actions(&mut p)), (1, vec![asked(node)]), "hosts are not among them");
    let ask = |p: &mut Probing, d: &Detector, shell: &mut Shell, now: u64| {
        p.probe(A, [true, false], (true, false), now);
        p.probe(B, [true, false], (false, false), now);
        let all = [actions(p), the_rest(p, d, shell, now)].concat();
        all.into_iter().filter(|a| *a != Action::LookAtCarriers).collect::<Vec<_>>()
    };
    let echo = |node| Action::Echo { node, path: 0 };
    let knock = Action::Knock { node: A, path: 0 };
    assert_eq!(ask(&mut p, &d, &mut shell, NOW), [echo(A), knock, echo(B)], "B may answer");
    shell.hosts[1].1 = NOW + UNANSWERED_NS;
    let later = NOW + UNANSWERED_NS;
    assert_eq!(ask(&mut p, &d, &mut shell, later), [echo(A), knock, echo(B), asked(node)], "it did not, for so long");
    assert_eq!(ask(&mut p, &d, &mut shell, later + 1), [echo(A), knock, echo(B)], "not again so soon");
    assert_eq!(p.poll_timeout(later + 1), Some(later + ANSWERERS_NS));
    p.ask_wanted_answerers(later + ANSWERERS_NS);
    assert_eq!(actions(&mut p), [asked(node)]);
    assert_eq!(p.poll_timeout(later + ANSWERERS_NS), None);
    let _ = p.answered(&answer(B, 1, later), || false, &mut d, &shell, later + 2);
    let soon = later + WELL_NS;
    assert_eq!(ask(&mut p, &d, &mut shell, soon), [echo(A), knock, echo(B)], "it answers again");
    shell.offers_barriers = false;
    shell.hosts[1].1 = 0;
    assert_eq!(ask(&mut p, &d, &mut shell, soon + MS), [echo(A), knock, echo(B)], "no barrier is to be had");
}

#[test]
fn an_answer_of_who_is_no_host_says_nothing_of_any() {
    let router: IpAddr = Ipv4Addr::new(10, 0, 0, 254).into();
    let (mut p, mut d, mut shell) = (probing(), doubting(&[A]), Shell::new(&[A]));
    p.set_answerers(0, &[router], &shell, LAST);
    let node = p.answerers().of(0)[0].node;
    assert!(p.answered(&answer(node, A, NOW), || true, &mut d, &shell, NOW + 1));
    assert_eq!(p.barriers(A)[0], Some((Emptied { queue: A, as_of_ns: NOW, by: node }, Some(router))));
    assert!(p.answerers().of(0)[0].answers(NOW + 1));
    // An address that is this host's own by now.
    shell.offers_barriers = false;
    p.set_answerers(0, &[Ipv4Addr::new(10, 0, 0, 253).into()], &shell, NOW);
    let own = Answer { queue: None, ..answer(node, A, NOW) };
    assert!(!p.answered(&own, || true, &mut d, &shell, NOW + 1));
    assert!(!p.answerers().of(0)[0].answers(NOW + 1));
    assert!(p.answered(&own, || false, &mut d, &shell, NOW + 1), "it came in by an interface");
}

#[test]
fn where_there_are_several_queues_others_are_asked_for_the_one_of_its_heartbeats() {
    let (mut p, mut d, mut shell) = (probing(), doubting(&[A, B, C]), Shell::new(&[A, B, C]));
    p.set_queues(0, 8);
    p.probe(A, [true, false], (true, false), NOW);
    let _ = actions(&mut p);
    let asked = the_rest(&mut p, &d, &mut shell, NOW);
    let [Action::Expect { path: 0, number }, Action::Knock { node: A, path: 0 }] = asked[..] else { panic!("{asked:?}") };
    assert!(p.has_steered());
    let first = p.poll_steered(&shell).unwrap();
    let mut numbers = vec![];
    for action in std::iter::once(first).chain(std::iter::from_fn(|| p.poll_steered(&shell))) {
        let Action::Steered { path: 0, address: whom, number, .. } = action else { panic!("{action:?}") };
        assert!(whom == address(B, 0) || whom == address(C, 0), "{whom}");
        numbers.push(number);
    }
    assert_eq!((numbers.len(), numbers[0]), (4 * 8, number));
    assert!(p.poll_timeout(NOW).is_some(), "answers by TCP wake nobody");
    assert_eq!(p.take_noted(1, &mut d, &shell, NOW), []);
    shell.noted = vec![(3, numbers[0]), (A, numbers[5])];
    assert_eq!(p.take_noted(0, &mut d, &shell, NOW + 1).len(), 2);
    assert_eq!(p.barriers(A)[0].map(|(emptied, from)| (emptied.queue, from)), Some((A, None)));
    assert_eq!((p.barriers(B), p.poll_timeout(NOW)), ([None; PATHS], None));
    // The port that reached it is asked from alone now.
    p.probe(A, [true, false], (true, false), NOW + MS);
    let _ = (actions(&mut p), the_rest(&mut p, &d, &mut shell, NOW + MS));
    assert!(p.poll_steered(&shell).is_some() && !p.has_steered());
}

#[test]
fn questions_by_tcp_are_given_up_where_one_does_not_leave() {
    let (mut p, mut d, mut shell) = (probing(), doubting(&[A, B]), Shell::new(&[A, B]));
    let ask = |p: &mut Probing, d: &Detector, shell: &mut Shell| {
        BOTH.iter().enumerate().for_each(|(path, _)| p.forget_interface(path));
        (0..PATHS).for_each(|path| p.set_queues(path, 8));
        p.ask_for_barriers(BOTH, d, shell, NOW);
        actions(p)
    };
    let aside: Vec<_> = ask(&mut p, &d, &mut shell).into_iter().filter(|a| matches!(a, Action::EchoAside { .. })).collect();
    assert_eq!(aside.len(), 4, "a check asks all hosts on each path");
    let first = p.poll_steered(&shell).unwrap();
    assert!(matches!(first, Action::Steered { path: 0, .. }));
    p.not_asked(&first, &mut d);
    assert!(matches!(p.poll_steered(&shell), Some(Action::Steered { path: 1, .. })), "those of the other path may leave");
    shell.sources = [false; PATHS];
    assert_eq!((p.poll_steered(&shell), p.has_steered()), (None, false), "there is no interface");
    // More than the receive program tells apart.
    shell.sources = BOTH;
    let _ = ask(&mut p, &d, &mut shell);
    (0..PATHS).for_each(|path| p.set_queues(path, 0));
    let before = p.steered.len();
    p.ask_for_barriers(BOTH, &d, &mut shell, NOW);
    assert_eq!(p.steered.len(), before);
}

#[test]
fn safetimer_4_1_the_last_host_asks_itself_where_its_interfaces_may_reach_each_other() {
    let (mut p, d, mut shell) = (probing(), doubting(&[A]), Shell::new(&[A]));
    let asks = |p: &mut Probing, shell: &mut Shell, now: u64| {
        p.probe(A, [true, false], (true, false), now);
        let _ = (actions(p), the_rest(p, &d, shell, now));
        std::iter::from_fn(|| p.poll_steered(shell)).collect::<Vec<_>>()
    };
    shell.hosts[0].2 = 1;
    let crossing = asks(&mut p, &mut shell, NOW);
    assert!(!crossing.is_empty() && crossing.iter().all(|a| matches!(a, Action::Crossing { by: 1, path: 0, .. })));
    shell.carriers[1] = false;
    assert_eq!(asks(&mut p, &mut shell, NOW + 1_000 * MS), []);
    shell.carriers[1] = true;
    shell.steers = false;
    assert_eq!(asks(&mut p, &mut shell, NOW + 2_000 * MS), []);
}

#[test]
fn hosts_that_nobody_doubts_are_asked_in_turns() {
    let nodes: Vec<u32> = (1..=12).collect();
    let (mut p, mut d, mut shell) = (Probing::default(), Detector::new(detector::Config::new(ME, 1)), Shell::new(&nodes));
    shell.hosts[2].0.left = true;
    shell.hosts[3].0.condemned = true;
    let tried = |p: &mut Probing, d: &mut Detector| {
        p.try_some(d, &shell, NOW);
        let of = |a: Action| if let Action::Try { node, path: 0 } = a { Some(node) } else { None };
        actions(p).into_iter().filter_map(of).collect::<Vec<_>>()
    };
    assert_eq!(tried(&mut p, &mut d), [1, 2, 5, 6, 7, 8, 9, 10]);
    assert_eq!(tried(&mut p, &mut d), [11, 12, 1, 2, 5, 6, 7, 8]);
    p.try_some(&mut d, &Shell::new(&[]), NOW);
    assert_eq!(actions(&mut p), []);
}
