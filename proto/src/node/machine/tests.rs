use super::reports::Heard;
use super::*;
use crate::fence::{self, Paths};
use fide_wire::packet::ReportEntry;
use fide_wire::verdict::{Confirmers, FenceMode, FencePromise, FencedWhy};

const MS: u64 = 1_000_000;
const CONTRACT: Contract = Contract { period_ns: MS, size_max: 1000, lambda_min_ns: 50_000, delta_max_ns: 100_000 };
const TIMEOUT: u64 = 50 * MS;
const NOW: u64 = 1_000 * MS;

const ALL: FenceMode = FenceMode::Acknowledged(Confirmers::All);

fn name(at: usize) -> String {
    format!("host-{at}")
}

fn id(at: usize) -> u32 {
    fide_wire::name_id(&name(at))
}

/// A host; `promises`: a fence that others have to confirm.
fn node(at: usize, incarnation: u32, promises: bool) -> Node {
    node_of_boot(at, incarnation, promises, 1)
}

fn node_of_boot(at: usize, incarnation: u32, promises: bool, boot: u128) -> Node {
    let mut owner = Owner::new(id(at), u64::from(incarnation));
    let fence = promises.then_some(FencePromise { timeout_ns: TIMEOUT, mode: ALL, host: false });
    let state = State::running(NOW);
    let host = Host {
        state,
        boot,
        size_max: 1000,
        renewed_from: None,
        fence,
        starting: None,
        addresses: [None; PATHS],
        name: name(at).into(),
    };
    owner.put(HOST_ROW, 1, Content::Host(host), NOW).unwrap();
    Node::new(detector::Config::new(id(at), incarnation), owner, CONTRACT, [], NOW).unwrap()
}

/// Every frame of every host reaches all others, until nobody has any more to say.
fn meet(nodes: &mut [Node]) {
    meet_at(nodes, NOW + MS);
}

/// The same, at a later time than before.
fn meet_at(nodes: &mut [Node], now_ns: u64) {
    exchange(nodes, now_ns);
    nodes.iter_mut().for_each(|node| node.events.clear());
}

/// The same, and what became known waits to be taken.
fn exchange(nodes: &mut [Node], now_ns: u64) {
    let (mut numbers, mut random) = (Numbers { others: now_ns, ..Numbers::default() }, now_ns);
    loop {
        let mut frames = Vec::new();
        for node in nodes.iter_mut() {
            let mut body = Vec::new();
            let mut next = || {
                random += 1;
                random
            };
            while let Some(transmit) = node.poll_transmit(now_ns, numbers, &mut next, &mut body) {
                numbers.others += 1;
                let (sender, incarnation) = (node.directory.owner().origin(), node.detector.config().self_incarnation);
                let kind = transmit.kind;
                let header = Header { kind: kind as u8, sender, incarnation, number: numbers.others, ..Header::default() };
                frames.push((header, kind, body.clone()));
            }
        }
        if frames.is_empty() {
            return;
        }
        for (header, kind, body) in &frames {
            for node in nodes.iter_mut().filter(|node| node.directory.owner().origin() != header.sender) {
                let _ = node.handle_frame(header, *kind, body, Came::default(), now_ns);
            }
        }
    }
}

fn hosts<const N: usize>(promises: bool) -> [Node; N] {
    let mut nodes = std::array::from_fn(|at| node(at, 5, promises));
    meet(&mut nodes);
    nodes
}

fn with_fence(node: &mut Node) {
    let (margin_ns, drift_ppm) = (MS, 0);
    let config =
        fence::Config { timeout_ns: TIMEOUT, margin_ns, drift_ppm, mode: ALL, paths: Paths::Both, configured: [true; PATHS] };
    node.set_fence(HostFence::new(config, false, 5));
}

fn header(at: usize, incarnation: u32) -> Header {
    Header { kind: Kind::PathReport as u8, sender: id(at), incarnation, ..Header::default() }
}

fn about(at: usize, incarnation: u32, flags: u16) -> ReportEntry {
    let (node, path) = (id(at), 0);
    ReportEntry { node, incarnation, path, flags, company: 0, last_number: 3, echo_sent_ns: NOW, hold_ns: MS, jitter_max_ns: 0 }
}

fn body(entries: &[ReportEntry]) -> Vec<u8> {
    let mut body = Vec::new();
    entries.iter().for_each(|entry| entry.write(&mut body));
    body
}

fn events(node: &mut Node) -> Vec<Event> {
    std::iter::from_fn(|| node.poll_event()).collect()
}

fn all_reports(node: &mut Node, now_ns: u64) -> Vec<ReportEntry> {
    let (mut entries, mut body) = (Vec::new(), Vec::new());
    let heard =
        |_, path| Heard { number: path as u64 + 1, arrived_ns: now_ns - MS, sent_ns: 7, jitter_max_ns: 9, since_group: 0 };
    while node.poll_report(now_ns, heard, &mut body) {
        assert!(!body.is_empty() && body.len() <= fide_wire::packet::BODY_MAX);
        entries.extend(ReportEntry::read_all(&body));
    }
    entries
}

#[test]
fn a_report_confirms_what_came_and_measures_the_round_trip() {
    let [mut a, mut b] = hosts::<2>(false);
    with_fence(&mut a);
    a.fence_mut().unwrap().sent(3, NOW, 1, [true; PATHS]);
    b.report(NOW + 2 * MS);
    let mut report = Vec::new();
    let heard = |node, _| {
        assert_eq!(node, id(0));
        Heard { number: 3, arrived_ns: NOW + MS, sent_ns: NOW, jitter_max_ns: 0, since_group: 0 }
    };
    assert!(b.poll_report(NOW + 2 * MS, heard, &mut report));
    assert!(!b.poll_report(NOW + 2 * MS, heard, &mut Vec::new()), "once");
    a.handle_report(&header(1, 5), &report, NOW + 3 * MS).unwrap();
    let extension = fence::Extension { known_ns: NOW + 3 * MS, valid_ns: NOW + TIMEOUT - MS };
    assert_eq!(events(&mut a), [Event::Fence(Step::Extend { extension, first: true })]);
    assert_eq!(a.path_contract(id(1), 1), None, "contracts are as announced");
}

#[test]
fn who_is_given_up_begins_anew_and_behind_a_promise_shuts() {
    let [mut a, _b] = hosts::<2>(false);
    let given_up = body(&[about(0, 5, ReportEntry::CONDEMNED)]);
    assert_eq!(a.handle_report(&header(1, 4), &given_up, NOW), Err(Ignored::Unconfirmed), "of an incarnation that nobody knows");
    a.handle_report(&header(1, 5), &given_up, NOW).unwrap();
    assert_eq!(events(&mut a), [Event::GivenUp { by: id(1), incarnation: 5 }]);
    a.begin_incarnation(6, 2, NOW);
    a.handle_report(&header(1, 5), &given_up, NOW).unwrap();
    assert_eq!(events(&mut a), [], "that one is over here, too");

    with_fence(&mut a);
    a.fence_mut().unwrap().sent(1, NOW, 1, [true; PATHS]);
    a.handle_report(&header(1, 5), &body(&[about(0, 6, 0)]), NOW + MS).unwrap();
    assert!(matches!(events(&mut a)[..], [Event::Fence(Step::Extend { first: true, .. })]));
    let given_up = body(&[about(0, 6, ReportEntry::CONDEMNED), about(0, 6, 0)]);
    a.handle_report(&header(1, 5), &given_up, NOW + 2 * MS).unwrap();
    assert_eq!(events(&mut a), [Event::Fence(Step::Close(FencedWhy::GivenUp))]);
    a.handle_report(&header(1, 5), &given_up, NOW + 3 * MS).unwrap();
    assert_eq!(events(&mut a), [], "an operator opens it");
    a.begin_incarnation(7, 3, NOW + 4 * MS);
    assert_eq!(a.recover_fence(NOW + 4 * MS), None, "b must confirm it first");
    a.handle_report(&header(1, 5), &given_up, NOW + 5 * MS).unwrap();
    assert_eq!(events(&mut a), [], "it is of the time before");
    a.fence_mut().unwrap().sent(2, NOW + 6 * MS, 2, [true; PATHS]);
    a.handle_report(&header(1, 5), &body(&[ReportEntry { last_number: 2, ..about(0, 7, 0) }]), NOW + 7 * MS).unwrap();
    assert_eq!(events(&mut a), [Event::Fence(Step::MayReopen)]);
    assert_eq!(a.reopen_fence(NOW + 8 * MS), Some(NOW + 6 * MS + TIMEOUT - MS));
}

#[test]
fn a_later_incarnation_that_is_heard_by_nobody_was_another_agents() {
    let [mut a, _b] = hosts::<2>(false);
    let later = |flags| [about(0, 9, flags), ReportEntry { path: 1, ..about(0, 9, ReportEntry::SILENT) }];
    a.handle_report(&header(1, 5), &body(&later(0)), NOW).unwrap();
    assert_eq!(events(&mut a), [], "it is heard on one path");
    a.handle_report(&header(1, 5), &body(&later(ReportEntry::SILENT)), NOW).unwrap();
    assert_eq!(events(&mut a), [Event::GivenUp { by: id(1), incarnation: 9 }]);
}

#[test]
fn who_was_given_up_confirms_nothing_and_is_heard_when_it_gives_up_itself() {
    let [mut a, _b] = hosts::<2>(false);
    with_fence(&mut a);
    a.fence_mut().unwrap().sent(3, NOW, 1, [true; PATHS]);
    a.hosts.get_mut(&id(1)).unwrap().condemned = true;
    a.handle_report(&header(1, 5), &body(&[about(0, 5, 0)]), NOW + MS).unwrap();
    assert_eq!(events(&mut a), []);
    a.handle_report(&header(1, 5), &body(&[about(0, 5, ReportEntry::CONDEMNED)]), NOW + MS).unwrap();
    assert_eq!(events(&mut a), [Event::GivenUp { by: id(1), incarnation: 5 }], "two that were cut off from each other both do");
}

#[test]
fn a_report_says_everything_of_everybody_once_in_as_many_frames_as_it_takes() {
    let mut nodes: [Node; 40] = hosts(false);
    let a = &mut nodes[0];
    a.hosts.get_mut(&id(7)).unwrap().condemned = true;
    a.outdated(77, 4, true, NOW);
    a.report(NOW + 2 * MS);
    let mut entries = all_reports(a, NOW + 2 * MS);
    let outdated = entries.iter().position(|entry| entry.node == 77).map(|at| entries.remove(at));
    let flags = ReportEntry::SILENT | ReportEntry::CONDEMNED | ReportEntry::FORMER;
    assert_eq!(outdated.map(|entry| (entry.incarnation, entry.flags)), Some((4, flags)));
    let mut subjects: Vec<_> = entries.iter().map(|entry| (entry.node, entry.path)).collect();
    subjects.sort_unstable();
    let mut expected: Vec<_> = (1..40).flat_map(|at| [(id(at), 0), (id(at), 1)]).collect();
    expected.sort_unstable();
    assert_eq!(subjects, expected);
    let condemned: Vec<_> = entries.iter().filter(|entry| entry.flags & ReportEntry::CONDEMNED != 0).map(|e| e.node).collect();
    assert_eq!(condemned, [id(7); PATHS]);
    a.report(NOW + 4_000 * MS);
    assert!(all_reports(a, NOW + 4_000 * MS).iter().all(|entry| entry.node != 77 && entry.flags & ReportEntry::SILENT == 0));
}

#[test]
fn more_fences_than_one_frame_has_room_for_are_all_confirmed_in_time() {
    let mut nodes: [Node; 40] = hosts(true);
    let a = &mut nodes[0];
    let due = a.poll_timeout().unwrap();
    assert!(due <= NOW + MS, "at once, when a promise is known");
    for round in 0..4 {
        let now = NOW + MS + round * (TIMEOUT / 5);
        let confirmed: BTreeSet<_> = all_reports(a, now).iter().map(|entry| entry.node).collect();
        assert_eq!(confirmed, (1..40).map(id).collect(), "round {round}");
        assert_eq!(all_reports(a, now + TIMEOUT / 5 - 1), [], "five times in a timeout, not more often");
    }
}

#[test]
fn confirmers_are_those_who_may_act_on_a_silence() {
    let [mut a, _b, _c] = hosts::<3>(false);
    with_fence(&mut a);
    let needed = |a: &Node| {
        let mut fence = a.fence.clone().unwrap();
        fence.sent(3, NOW, 1, [true; PATHS]);
        let alone = |at| matches!(fence.clone().confirmed(id(at), 3, NOW + MS), Step::Extend { .. });
        [alone(1), alone(2), alone(3)]
    };
    // Whoever has never confirmed anything observes nothing, so one alone is enough; a stranger is nobody.
    assert_eq!(needed(&a), [true, true, false]);
    a.expect_members([id(3)]);
    assert_eq!(needed(&a), [true, true, true], "known to a former incarnation");
    a.forget(id(3));
    a.forget(id(2));
    assert_eq!(needed(&a), [true, false, false]);
}

/// A process that is watched under two names, or renamed by another configuration: the end of one
/// watch may overtake the row of the other.
#[test]
fn a_watch_that_ends_says_nothing_of_the_same_process_under_another_name() {
    let left = State { cause: Cause::Left, ..State::running(NOW) };
    let killed = State { cause: Cause::Killed, code: 9, ..State::running(NOW) };
    for other_first in [false, true] {
        let mut nodes = hosts::<2>(false);
        let later = |ms: u64| NOW + ms * MS;
        let process = |name: &str| {
            let (state, instance) = (State::running(NOW), Instance { pid: 77, start_ticks: 5 });
            Content::Process(Process { state, instance, uid: 0, pbsize: 0, name: name.into() })
        };
        nodes[0].put(1, 2, process("db"), NOW).unwrap();
        meet_at(&mut nodes, later(10));
        let change = |row, version, state| Change { origin: id(0), row, version, state };
        let mut told = Vec::new();
        let mut tell = |nodes: &mut [Node; 2], change: Change| {
            nodes[0].change(&change, NOW).unwrap();
            nodes[1].handle_change(&header(0, 5), &change, Came::default(), later(30)).unwrap();
            let ends = |event: &Event| match event {
                Event::Act(Action::Verdict(verdict)) => Some((verdict.app, verdict.cause)),
                _ => None,
            };
            told.extend(events(&mut nodes[1]).iter().filter_map(ends));
        };
        let (of_db, of_other) = if other_first { (4, 3) } else { (3, 4) };
        if other_first {
            nodes[0].put(2, of_other, process("other"), NOW).unwrap();
            meet_at(&mut nodes, later(20));
            tell(&mut nodes, change(1, of_db, left));
        } else {
            tell(&mut nodes, change(1, of_db, left));
            nodes[0].put(2, of_other, process("other"), NOW).unwrap();
            meet_at(&mut nodes, later(20));
        }
        tell(&mut nodes, change(2, 5, killed));
        assert_eq!(told, [(1, Cause::Left), (2, Cause::Killed)], "other first: {other_first}");
        assert!(
            matches!(nodes[1].became(id(0), Instance { pid: 77, start_ticks: 5 }, "other"), Ok(Some(state)) if state.cause == Cause::Killed)
        );
    }
}

/// Two hosts that measure their contracts, and what the second one's heartbeats were like on path
/// 0.
struct Measuring {
    nodes: [Node; 2],
    counters: [u32; fide_wire::jitter::BUCKETS],
    now_ns: u64,
}

impl Measuring {
    fn new() -> Self {
        let mut nodes = std::array::from_fn(|at| node(at, 5, false));
        nodes.iter_mut().for_each(|node| node.set_calibration(calibration::Config::shared()));
        meet(&mut nodes);
        let mut new = Self { nodes, counters: [0; fide_wire::jitter::BUCKETS], now_ns: NOW + MS };
        new.window(1_000, 0); // where counting starts
        new
    }

    /// A window of so many heartbeats that were all so late. Gives what became known.
    fn window(&mut self, heartbeats: u32, late_ns: u64) -> Vec<Event> {
        self.counters[fide_wire::jitter::bucket(late_ns)] += heartbeats;
        self.now_ns += 1_000 * MS;
        let jitter = contracts::Jitter { counters: &self.counters, max_ns: late_ns, period_ns: MS };
        self.nodes[0].handle_window(id(1), 0, &jitter, self.now_ns);
        events(&mut self.nodes[0])
    }

    fn contract(&self, path: usize) -> Contract {
        self.nodes[0].path_contract(id(1), path).unwrap()
    }
}

#[test]
fn a_contract_follows_what_is_measured_on_its_path_and_the_detector_follows_it() {
    let mut m = Measuring::new();
    let floor = calibration::Config::shared().floor_ns;
    assert_eq!((m.contract(0).delta_max_ns, m.contract(0).size_max), (floor, 1000), "what it announced, and the floor");
    assert_eq!(m.window(1_000, 1_000), [], "a calm second");
    let margin = |breach| Event::Margin { node: id(1), incarnation: 5, path: 0, breach };
    let told = m.window(1_000, 4 * MS);
    let broken = Breach::Broken { worst_ns: 4 * MS, allowed_ns: 2 * floor };
    let (contract, timeout_ns) = (m.contract(0), m.nodes[0].detector().timeout_ns(id(1)).unwrap());
    assert!(contract.delta_max_ns > 2 * MS && contract.timeout_ns() <= timeout_ns, "{contract:?}");
    assert!(told.contains(&margin(broken)), "{told:?}");
    assert!(told.contains(&Event::Act(Action::TimeoutChanged { node: id(1), timeout_ns })), "{told:?}");
    assert_eq!(m.contract(1).delta_max_ns, floor, "the other path has its own");
    let kept = (0..30).find(|_| m.window(1_000, 1_000).contains(&margin(Breach::Kept)));
    assert!(kept.is_some_and(|windows| windows >= 8), "told once it was kept for some windows: {kept:?}");
}

#[test]
fn a_round_trip_in_a_report_makes_the_least_latency() {
    let mut m = Measuring::new();
    m.nodes[0].handle_report(&header(1, 5), &body(&[about(0, 5, 0)]), NOW + 3 * MS).unwrap();
    m.window(1_000, 1_000);
    assert_eq!(m.contract(0).lambda_min_ns, MS, "half of what it took but for the time there");
}

#[test]
fn nothing_is_measured_of_a_host_that_left_and_a_new_incarnation_begins_at_the_floor() {
    let mut m = Measuring::new();
    m.window(1_000, 4 * MS);
    m.nodes[1].leave(2, 0, m.now_ns);
    meet_at(&mut m.nodes, m.now_ns);
    let (contract, window) = (m.contract(0), m.nodes[0].path_window(id(1), 0));
    assert_eq!(m.window(1_000, 15 * MS), []);
    assert_eq!((m.contract(0), m.nodes[0].path_window(id(1), 0)), (contract, window));
    m.nodes[1] = node(1, 6, false);
    meet_at(&mut m.nodes, m.now_ns + MS);
    assert_eq!(m.contract(0).delta_max_ns, calibration::Config::shared().floor_ns);
}

#[test]
fn a_heartbeat_is_due_once_in_each_slot() {
    let mut a = node(0, 5, false);
    assert_eq!(a.poll_heartbeat(NOW).map(|tick| tick.skipped), Some(0));
    assert_eq!((a.poll_heartbeat(NOW), a.next_heartbeat_ns()), (None, NOW + MS));
    assert_eq!(a.poll_heartbeat(NOW + 3 * MS).map(|tick| tick.skipped), Some(2));
    assert_eq!(a.next_heartbeat_ns(), NOW + 4 * MS);
}

/// *Silent host*, of which the observer's own clock says that its fence is shut.
fn silent(at: usize) -> Box<Verdict> {
    let mode = FenceMode::Acknowledged(Confirmers::Majority);
    let fence = Some(FencePromise { timeout_ns: TIMEOUT, mode, host: true });
    let evidence = fide_wire::verdict::Evidence { fence, fenced: true, ..Default::default() };
    let (id, grade) = (fide_wire::verdict::VerdictId::new(self::id(0), 1), fide_wire::verdict::Grade::Inferred);
    let (node, cause, ended_apps) = (self::id(at), Cause::SilentHost, Vec::new());
    Box::new(Verdict {
        id,
        cause,
        grade,
        node,
        incarnation: 5,
        app: 0,
        code: 0,
        confirms: false,
        at_ns: NOW,
        ended_apps,
        evidence,
    })
}

/// Host `by` has given host `at` up, of which it heard last so long ago.
fn gives_up(node: &mut Node, by: usize, at: usize, hold_ns: u64, now_ns: u64) {
    let entry = ReportEntry { hold_ns, ..about(at, 5, ReportEntry::CONDEMNED | ReportEntry::SILENT) };
    node.handle_report(&header(by, 5), &body(&[entry]), now_ns).unwrap();
}

/// Whether each *silent host* that was told says *fenced*, and what was told as fenced later.
fn told(node: &mut Node) -> (Vec<bool>, usize) {
    let all = events(node);
    let of = |event: &Event| match event {
        Event::Act(Action::Verdict(verdict)) => Some(verdict.evidence.fenced),
        _ => None,
    };
    (all.iter().filter_map(of).collect(), all.iter().filter(|event| matches!(event, Event::Fenced { .. })).count())
}

#[test]
fn a_silent_host_is_fenced_when_those_who_have_not_given_it_up_are_too_few_to_confirm() {
    let [mut a, ..] = counted::<5>();
    assert_eq!(a.weigh_fence(silent(1), NOW), None, "one of its four observers says nothing");
    gives_up(&mut a, 2, 1, 2 * TIMEOUT, NOW + MS);
    assert_eq!(told(&mut a), (vec![], 0), "the two others may confirm it");
    // This one has heard it a moment ago, and may have confirmed that.
    gives_up(&mut a, 3, 1, TIMEOUT - 10 * MS, NOW + MS);
    assert_eq!(told(&mut a), (vec![], 0));
    assert_eq!(a.held_until_ns(), Some(NOW + 11 * MS));
    a.weigh_held(NOW + 11 * MS);
    assert_eq!(told(&mut a), (vec![true], 0), "one verdict says both");
    assert!(a.is_fenced(id(1)) && !a.is_fenced(id(2)));
    // Who is the last to give it up says so at once, too: others wait for that.
    let [mut a, ..] = counted::<3>();
    gives_up(&mut a, 2, 1, 2 * TIMEOUT, NOW + MS);
    all_reports(&mut a, NOW + MS);
    assert!(a.weigh_fence(silent(1), NOW + MS).is_some());
    a.hosts.get_mut(&id(1)).unwrap().condemned = true;
    let said = all_reports(&mut a, NOW + MS);
    assert!(
        said.iter().all(|entry| entry.node == id(1) && entry.flags & ReportEntry::CONDEMNED != 0) && !said.is_empty(),
        "{said:?}"
    );
    a.weigh_held(NOW + 10 * TIMEOUT);
    assert_eq!(told(&mut a), (vec![], 0));
}

#[test]
fn where_too_many_may_confirm_a_silent_host_is_not_told_as_fenced_before_they_give_it_up() {
    let [mut a, ..] = counted::<5>();
    assert_eq!(a.weigh_fence(silent(1), NOW), None);
    gives_up(&mut a, 2, 1, 2 * TIMEOUT, NOW + MS);
    a.weigh_held(NOW + TIMEOUT - 1);
    assert_eq!(told(&mut a), (vec![], 0));
    a.weigh_held(NOW + TIMEOUT);
    assert_eq!(told(&mut a), (vec![false], 0), "it does not wait for ever");
    gives_up(&mut a, 3, 1, 2 * TIMEOUT, NOW + 9 * TIMEOUT);
    assert_eq!(told(&mut a), (vec![], 1));
    gives_up(&mut a, 4, 1, 2 * TIMEOUT, NOW + 9 * TIMEOUT);
    assert_eq!(told(&mut a), (vec![], 0), "once");
}

#[test]
fn of_two_hosts_the_word_of_one_is_enough_if_the_other_counts_it() {
    let [mut a, _b] = counted::<2>();
    assert!(a.weigh_fence(silent(1), NOW).is_some_and(|verdict| verdict.evidence.fenced));
    let [mut a, _b] = hosts::<2>(true);
    assert_eq!(a.weigh_fence(silent(1), NOW), None, "whoever else it knows may confirm it");
}

/// Groups go on where a verdict says *fenced*, whatever it is a verdict on.
#[test]
fn a_host_that_is_late_or_unreachable_is_not_fenced_by_the_clock_of_one() {
    let [mut a, ..] = counted::<3>();
    for cause in [Cause::ContractBroken, Cause::Unreachable] {
        let late = Box::new(Verdict { cause, ..*silent(1) });
        assert!(a.weigh_fence(late, NOW).is_some_and(|verdict| !verdict.evidence.fenced), "{cause}");
    }
    gives_up(&mut a, 2, 1, 2 * TIMEOUT, NOW);
    assert!(a.weigh_fence(silent(1), NOW).is_some_and(|verdict| verdict.evidence.fenced));
    let late = Box::new(Verdict { cause: Cause::ContractBroken, ..*silent(1) });
    assert!(a.weigh_fence(late, NOW).is_some_and(|verdict| verdict.evidence.fenced), "it was counted");
}

/// One that is fenced may be opened, or booted, and confirm again: an observer that is cut off does not hear of it.
#[test]
fn a_host_that_is_fenced_has_given_nobody_up() {
    let [mut a, ..] = counted::<3>();
    gives_up(&mut a, 1, 2, 2 * TIMEOUT, NOW);
    assert!(a.weigh_fence(silent(2), NOW).is_some_and(|verdict| verdict.evidence.fenced));
    a.hosts.get_mut(&id(2)).unwrap().condemned = true;
    assert_eq!(a.weigh_fence(silent(1), NOW), None, "the fenced one has not said a word on it");
    a.weigh_held(NOW + 10 * TIMEOUT);
    assert_eq!(told(&mut a), (vec![false], 0));
}

/// … and has it counted no more when it is met in a new incarnation: it may have taken it back.
#[test]
fn the_word_of_a_former_incarnation_counts_no_more() {
    let mut nodes = counted::<3>();
    gives_up(&mut nodes[0], 2, 1, 2 * TIMEOUT, NOW);
    nodes[2].begin_incarnation(6, 2, NOW);
    nodes[2].announce();
    meet_at(&mut nodes, NOW + 20 * MS);
    let [a, _, _] = &mut nodes;
    assert_eq!(a.hosts[&id(2)].incarnation, 6);
    assert_eq!(a.weigh_fence(silent(1), NOW + 21 * MS), None);
}

/// Three hosts or more that know of each other that they are counted.
fn counted<const N: usize>() -> [Node; N] {
    let mut nodes = hosts::<N>(true);
    nodes[0].hosts.values_mut().for_each(|known| known.counts_us = true);
    nodes
}

/// The first of three hosts with a fence that a majority confirms, armed by both others.
fn armed_by_two() -> [Node; 3] {
    let mut nodes = hosts::<3>(false);
    let mode = FenceMode::Acknowledged(Confirmers::Majority);
    let config =
        fence::Config { timeout_ns: TIMEOUT, margin_ns: MS, drift_ppm: 0, mode, paths: Paths::Both, configured: [true; PATHS] };
    let a = &mut nodes[0];
    a.set_fence(HostFence::new(config, true, 5));
    a.fence_mut().unwrap().sent(3, NOW, 1, [true; PATHS]);
    (1..3).for_each(|by| a.handle_report(&header(by, 5), &body(&[about(0, 5, 0)]), NOW + MS).unwrap());
    assert!(matches!(events(a)[..], [Event::Fence(Step::Extend { first: true, .. })]));
    nodes
}

/// Whether what this host confirms of a later heartbeat counts at the first one.
fn counts(a: &mut Node, (by, incarnation): (usize, u32), number: u64, now_ns: u64) -> bool {
    a.fence_mut().unwrap().sent(number, now_ns, number, [true; PATHS]);
    let entry = ReportEntry { last_number: number, ..about(0, 5, 0) };
    a.handle_report(&header(by, incarnation), &body(&[entry]), now_ns + MS).unwrap();
    events(a).iter().any(|event| matches!(event, Event::Fence(Step::Extend { .. })))
}

#[test]
fn a_report_against_a_confirming_majority_is_refuted_once_and_the_fence_stays_open() {
    let [mut a, ..] = armed_by_two();
    let given_up = body(&[about(0, 5, ReportEntry::CONDEMNED)]);
    a.handle_report(&header(2, 5), &given_up, NOW + 2 * MS).unwrap();
    assert_eq!(events(&mut a), [Event::Refuted { by: id(2), incarnation: 5 }]);
    a.handle_report(&header(2, 5), &given_up, NOW + 3 * MS).unwrap();
    assert_eq!(events(&mut a), [], "it is told once");
    let said = all_reports(&mut a, NOW + 4 * MS);
    assert!(said.iter().all(|e| (e.node, e.incarnation) == (id(2), 5) && e.flags & ReportEntry::REFUTED != 0), "{said:?}");
    assert!(!said.is_empty());
    // Its word binds it.
    assert!(!counts(&mut a, (2, 5), 4, NOW + 5 * MS));
    assert!(counts(&mut a, (1, 5), 5, NOW + 6 * MS));
    // Also in its next incarnation, until the third one shows that it does not count that word.
    a.hosts.get_mut(&id(2)).unwrap().incarnation = 6;
    assert!(!counts(&mut a, (2, 6), 6, NOW + 7 * MS));
    a.handle_report(&header(1, 5), &body(&[about(2, 5, 0)]), NOW + 8 * MS).unwrap();
    assert!(!counts(&mut a, (2, 6), 7, NOW + 9 * MS), "it may count it");
    a.handle_report(&header(1, 5), &body(&[about(2, 6, 0)]), NOW + 10 * MS).unwrap();
    assert!(counts(&mut a, (2, 6), 8, NOW + 11 * MS));
}

#[test]
fn a_report_that_is_not_outvoted_or_that_says_fenced_shuts_the_fence() {
    let shut = [Event::Fence(Step::Close(FencedWhy::GivenUp))];
    let [mut a, ..] = armed_by_two();
    a.handle_report(&header(2, 5), &body(&[about(0, 5, ReportEntry::CONDEMNED | ReportEntry::FENCED)]), NOW + 2 * MS).unwrap();
    assert_eq!(events(&mut a), shut, "somebody may have acted on that");
    let [mut a, ..] = armed_by_two();
    a.handle_report(&header(2, 5), &body(&[about(0, 5, ReportEntry::CONDEMNED)]), NOW + 2 * MS).unwrap();
    a.handle_report(&header(1, 5), &body(&[about(0, 5, ReportEntry::CONDEMNED)]), NOW + 3 * MS).unwrap();
    let [Event::Refuted { .. }, closed] = &events(&mut a)[..] else { panic!() };
    assert_eq!(*closed, shut[0], "nobody is left who may confirm it");
}

/// Reports of the first host say that it refutes what the last one has said of it in this incarnation.
fn refutes(node: &mut Node, own: u32, now_ns: u64) -> Vec<Event> {
    let entry = ReportEntry { incarnation: own, ..about(2, 5, ReportEntry::REFUTED) };
    node.handle_report(&header(0, 5), &body(&[entry]), now_ns).unwrap();
    events(node)
}

#[test]
fn who_was_mistaken_begins_anew_and_meets_the_host_again_in_the_same_incarnation() {
    let mut nodes = hosts::<3>(true);
    let now = NOW + 2 * MS;
    assert_eq!(refutes(&mut nodes[2], 5, now), [], "it was not given up");
    nodes[2].hosts.get_mut(&id(0)).unwrap().condemned = true;
    assert_eq!(refutes(&mut nodes[2], 4, now), [], "a recording");
    let mistaken = |renews| [Event::Mistaken { node: id(0), incarnation: 5, renews }];
    assert_eq!(refutes(&mut nodes[2], 5, now), mistaken(true));
    assert_eq!(refutes(&mut nodes[2], 5, now), [], "once");
    assert!(nodes[2].members.contains(&id(0)), "it counts as before");
    nodes[2].begin_incarnation(6, 2, now);
    nodes[2].announce();
    nodes[2].heartbeat(id(0), 5, 1, now + MS);
    exchange(&mut nodes, now + 20 * MS);
    let back = |event: &Event| matches!(event, Event::Act(Action::Verdict(v)) if (v.cause, v.code, v.node) == (Cause::Returned, 4, id(0)));
    assert!(events(&mut nodes[2]).iter().any(back), "its subscribers hear that it was wrong");
    assert_eq!(nodes[2].detector().state(id(0)), Some(detector::State::Alive));
    assert_eq!(nodes[0].detector().incarnation(id(2)), Some(6));
    // Where its own fence ended what rested on the verdict, it need not begin anew.
    let c = &mut nodes[2];
    let known = c.hosts.get_mut(&id(0)).unwrap();
    (known.condemned, known.former_verdict) = (true, true);
    assert_eq!(refutes(c, 6, now + 30 * MS), mistaken(false));
    // Of one that was told as fenced somebody may believe that.
    let known = c.hosts.get_mut(&id(0)).unwrap();
    known.condemned = true;
    c.note_fenced(id(0));
    assert_eq!(refutes(c, 6, now + 31 * MS), []);
    c.report(now + 32 * MS);
    let said = all_reports(c, now + 32 * MS);
    assert!(said.iter().any(|entry| entry.node == id(0) && entry.flags & ReportEntry::FENCED != 0));
}

/// Heartbeats of `node` have come until now, the last one by multicast so many numbers ago.
fn came(node: &mut Node, at: usize, now_ns: u64, since_group: [u32; PATHS]) {
    let row =
        |since_group| PathArrival { last_number: now_ns / MS, last_arrival_ns: now_ns, since_group, ..PathArrival::default() };
    node.arrivals(id(at), 5, &since_group.map(row));
    node.handle_timeout(now_ns);
}

fn copies(node: &mut Node, now_ns: u64) -> Option<Vec<(u32, usize)>> {
    node.poll_copies(now_ns).map(<[_]>::to_vec)
}

#[test]
fn a_host_that_is_late_gets_copies_by_unicast_until_it_is_heard() {
    let [mut a, _b] = hosts::<2>(false);
    let mut now = NOW + 2 * MS;
    came(&mut a, 1, now, [0; PATHS]);
    assert_eq!(copies(&mut a, now), None);
    while a.detector().state(id(1)) != Some(detector::State::Late) {
        now += MS;
        assert!(now < NOW + 100 * MS, "it is never late");
        a.handle_timeout(now);
    }
    assert_eq!(copies(&mut a, now), Some(vec![(id(1), 0), (id(1), 1)]));
    assert_eq!(copies(&mut a, now), None, "nothing has changed");
    let told: Vec<u8> = all_reports(&mut a, now).iter().filter(|entry| entry.node == id(1)).map(|entry| entry.path).collect();
    assert_eq!(told, [0, 1], "it is told that it is not heard, at once");
    now += MS;
    came(&mut a, 1, now, [0; PATHS]);
    assert_eq!(copies(&mut a, now), None, "for a moment");
    now += 400 * MS;
    came(&mut a, 1, now, [0; PATHS]);
    assert_eq!(copies(&mut a, now), Some(vec![]));
}

#[test]
fn who_is_not_heard_by_multicast_sends_by_unicast_for_as_long_as_others_say_so() {
    let [mut a, _b] = hosts::<2>(false);
    let mut now = NOW + 2 * MS;
    came(&mut a, 1, now, [0; PATHS]);
    let on_1 = ReportEntry { path: 1, ..about(0, 5, ReportEntry::BY_UNICAST) };
    a.handle_report(&header(1, 5), &body(&[about(0, 5, 0), on_1]), now).unwrap();
    assert_eq!(copies(&mut a, now), Some(vec![(id(1), 1)]), "on that path alone");
    for _ in 0..5 {
        now += 2_000 * MS;
        came(&mut a, 1, now, [0; PATHS]);
        a.handle_report(&header(1, 5), &body(&[about(0, 5, 0), on_1]), now).unwrap();
        assert_eq!(copies(&mut a, now), None, "one report may be lost");
    }
    now += 4_000 * MS;
    came(&mut a, 1, now, [0; PATHS]);
    assert_eq!(copies(&mut a, now), Some(vec![]));
    // Of another incarnation of this host it says nothing.
    a.handle_report(&header(1, 5), &body(&[about(0, 4, ReportEntry::SILENT)]), now).unwrap();
    assert_eq!(copies(&mut a, now), None);
}

#[test]
fn multicast_that_is_not_delivered_is_told_once_and_that_it_is_again() {
    let [mut a, _b] = hosts::<2>(false);
    let mut now = NOW + 2 * MS;
    let told = |a: &mut Node| {
        let of = |event| if let Event::Multicast { path, hosts } = event { Some((path, hosts)) } else { None };
        events(a).into_iter().filter_map(of).collect::<Vec<_>>()
    };
    came(&mut a, 1, now, [0; PATHS]);
    let mut run = |a: &mut Node, for_ms: u64, since_group: [u32; PATHS]| {
        for _ in 0..for_ms {
            now += MS;
            came(a, 1, now, since_group);
            a.poll_copies(now);
        }
        told(a)
    };
    assert_eq!(run(&mut a, 2_000, [copies::BY_UNICAST - 1, 0]), [], "some were lost by chance");
    assert_eq!(run(&mut a, 900, [copies::BY_UNICAST, 0]), []);
    assert_eq!(run(&mut a, 900, [5_000, 0]), [(0, vec![id(1)])]);
    let entry = all_reports(&mut a, NOW);
    assert!(!entry.is_empty());
    assert_eq!(run(&mut a, 5_000, [9_000, 0]), [], "once");
    assert_eq!(run(&mut a, 100, [0, 0]), [(0, vec![])]);
}

// ---- instances ----------------------------------------------------------------------------------------------

const DB: Instance = Instance { pid: 7, start_ticks: 3 };

fn process(state: State) -> Content {
    Content::Process(Process { state, instance: DB, uid: 0, pbsize: 0, name: "db".into() })
}

fn end_of(row: u32, version: u64, cause: Cause) -> Change {
    let state = State { cause, code: 9, ..State::running(NOW) };
    Change { origin: id(0), row, version, state }
}

/// Every host learns what it can: hellos, pulls and their answers have their times.
fn settle(nodes: &mut [Node], now_ns: u64) {
    (0..20).for_each(|n| exchange(nodes, now_ns + n * 10 * MS));
}

/// What is told of processes: their ends by verdicts, with row, cause and whether it confirms.
fn ends(node: &mut Node) -> Vec<(u32, Cause, bool)> {
    let end = |event| match event {
        Event::Act(Action::Verdict(v)) if v.app != 0 => Some((v.app, v.cause, v.confirms)),
        _ => None,
    };
    events(node).into_iter().filter_map(end).collect()
}

#[test]
fn what_ran_in_another_boot_ended_in_the_incarnation_in_which_it_ran_and_confirms_what_was_told() {
    for is_doomed in [false, true] {
        let mut nodes = hosts::<2>(false);
        nodes[0].put(1, 2, process(State::running(NOW)), NOW).unwrap();
        settle(&mut nodes, NOW + 2 * MS);
        nodes[1].events.clear();
        if is_doomed {
            let doomed = end_of(1, 3, Cause::Doomed);
            nodes[0].change(&doomed, NOW).unwrap();
            nodes[1].handle_change(&header(0, 5), &doomed, Came::default(), NOW + 300 * MS).unwrap();
            assert_eq!(ends(&mut nodes[1]), [(1, Cause::Doomed, false)]);
        }
        // By chance the next boot has a process of that name with the same pid and start time.
        nodes[0] = node_of_boot(0, 9, false, 2);
        nodes[0].put(1, 2, process(State::running(NOW)), NOW).unwrap();
        settle(&mut nodes, NOW + 400 * MS);
        let told = events(&mut nodes[1]);
        let lost: Vec<_> = told.iter().filter(|event| matches!(event, Event::Lost { .. })).collect();
        let is_right =
            |event: &Event| matches!(event, Event::Lost { incarnation: 5, row: 1, confirms, .. } if *confirms == is_doomed);
        assert!(lost.len() == 1 && is_right(lost[0]), "{told:?}");
        assert!(told.iter().any(|event| matches!(event, Event::Runs { row: 1, is_back: false, .. })), "{told:?}");
        let killed = end_of(1, 3, Cause::Killed);
        nodes[1].handle_change(&header(0, 9), &killed, Came::default(), NOW + 800 * MS).unwrap();
        assert_eq!(ends(&mut nodes[1]), [(1, Cause::Killed, false)], "of the next one");
    }
}

/// Rows and changes come in any order.
#[test]
fn a_process_that_is_replaced_has_one_end_for_each_instance_in_whatever_order_they_come() {
    let replaced = end_of(1, 3, Cause::Replaced);
    for late in [false, true] {
        let mut nodes = hosts::<2>(false);
        nodes[0].put(1, 2, process(State::running(NOW)), NOW).unwrap();
        settle(&mut nodes, NOW + 2 * MS);
        nodes[1].events.clear();
        nodes[0].change(&replaced, NOW).unwrap();
        if !late {
            nodes[1].handle_change(&header(0, 5), &replaced, Came::default(), NOW + 300 * MS).unwrap();
            assert_eq!(ends(&mut nodes[1]), [(1, Cause::Replaced, false)]);
        }
        nodes[0].put(2, 4, process(State::running(NOW)), NOW).unwrap();
        settle(&mut nodes, NOW + 400 * MS);
        assert_eq!(ends(&mut nodes[1]), if late { vec![(1, Cause::Replaced, false)] } else { vec![] });
        assert_eq!(nodes[1].became(id(0), DB, "db"), Ok(Some(State::running(NOW))), "the later one");
        let killed = end_of(2, 5, Cause::Killed);
        nodes[1].handle_change(&header(0, 5), &killed, Came::default(), NOW + 800 * MS).unwrap();
        assert_eq!(ends(&mut nodes[1]), [(2, Cause::Killed, false)]);
    }
}
