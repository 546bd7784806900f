//! The receiver's half of SafeTimer for applications with heartbeats of their own (§4.1, `safetimer_check`): before silence is taken for a failure, is
//! everything that had come to this host by the deadline in the application's sockets, and was nothing lost here?
//!
//! # The way of a packet, and what proves that it is over
//! ```text
//! NIC's queue ─► driver's poll (XDP) ─► GRO ─► backlog of a processor ─► IP, TCP or UDP ─► socket
//!     1             1                    2          3                       3
//! ```
//! 1. *A barrier of every queue.* An echo request leaves on the path **after** the deadline; when its answer comes out of a queue of the interface, so
//!    has everything that came into that queue before ([`fide_xdp::Mechanism::barrier`]). An interface of one queue has nothing else that it could have come
//!    out of. A heartbeat that is stamped after the deadline proves nothing: it may have waited in the ring before others that came in time.
//! 2. *A second one*, asked for two jiffies later. What the first round's poll put aside to be joined with segments to come is handed on by the first poll that ends
//!    in a later jiffy, and the second answer comes out of such a one, whatever `gro_flush_timeout` is.
//! 3. *Two turns on every processor.* A thread runs on each of them, so a poll that was under way there is over (softirqs are not preempted; on PREEMPT_RT
//!    they are, and there no barrier is offered), and sends itself a packet through that processor's backlog, behind all that receive packet
//!    steering had put there ([`processors`]). Then once more: a poll that was under way on the last processor may have ended in the first one's backlog.
//!
//! Then the counters of what this host loses are read ([`losses`]); the order is the paper's (Fig. 2).
//!
//! Every path that the packets may come by must have had its carrier from the deadline to the end ([`carriers`]): a ring without one is no empty ring.
//!
//! No step is bounded by a clock: a host that is held up at any of these places holds up the answer, and `wait_ns` is over: *no barrier*.

pub mod carriers;
pub mod losses;
#[cfg(test)]
pub(crate) mod namespace;
pub mod processors;

use crate::clock::now_ns;
use carriers::Carriers;
use crossbeam_channel::{Receiver, TryRecvError};
use fide_wire::PATHS;
use fide_wire::control::{CHECK_WAIT_MAX_NS, CheckOutcome, Checked, CheckedPeer, ErrorCode, Refused};
use fide_wire::names;
use fide_wire::verdict::Cause;
use fide_xdp::layout::QUEUES;
use std::net::IpAddr;

/// Beyond two jiffies: between the polls of the two answers lies one at least.
const SETTLE_NS: u64 = 500_000;
/// Others are not asked more often, however many check.
pub const ASK_EVERY_NS: u64 = 1_000_000;
/// An answer that has not come for so long is asked for again: it may have been overtaken, or lost.
const AGAIN_NS: u64 = 20_000_000;

/// What has come out of the paths' queues: kept by the loop as answers come.
#[derive(Clone, Debug)]
pub struct Answers {
    /// Of any queue.
    any: [u64; PATHS],
    queue: [[u64; QUEUES]; PATHS],
}

impl Default for Answers {
    fn default() -> Self {
        Self { any: [0; PATHS], queue: [[0; QUEUES]; PATHS] }
    }
}

impl Answers {
    /// The answer to a question of `asked_ns` came by this queue (counted from 1), where that is known.
    pub fn note(&mut self, path: usize, queue: Option<u32>, asked_ns: u64) {
        let Some(any) = self.any.get_mut(path) else { return };
        *any = (*any).max(asked_ns);
        if let Some(row) = queue.and_then(|q| self.queue[path].get_mut((q as usize).checked_sub(1)?)) {
            *row = (*row).max(asked_ns);
        }
    }

    /// Up to when all queues of a path have been emptied.
    #[must_use]
    pub fn as_of(&self, path: usize, queues: usize) -> u64 {
        match queues {
            1 => self.any[path],
            n => self.queue[path].iter().take(n).min().copied().filter(|_| n <= QUEUES).unwrap_or(0),
        }
    }
}

/// Who is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whom {
    /// A host or a process of it.
    Named {
        /// The host.
        host: String,
        /// The process, if one is meant.
        app: Option<String>,
    },
    /// Whoever sends from there.
    Address(IpAddr),
}

impl Whom {
    /// # Errors
    /// [`ErrorCode::Invalid`].
    pub fn parse(text: &str) -> Result<Self, Refused> {
        if let Ok(address) = text.parse::<IpAddr>() {
            // A socket of both families shows IPv4 peers as ::ffff:a.b.c.d; no interface has such an address.
            return Ok(Self::Address(address.to_canonical()));
        }
        match names::Target::parse(text) {
            Ok(names::Target::Host(host)) => Ok(Self::Named { host: host.into(), app: None }),
            Ok(names::Target::Process(app, host)) => Ok(Self::Named { host: host.into(), app: Some(app.into()) }),
            _ => {
                let what =
                    format!("`{text}` is nobody who sends: write name@host, @host, or the address that its packets come from");
                Err(Refused { code: ErrorCode::Invalid, what })
            }
        }
    }
}

/// One that is under way.
pub struct Check {
    /// Of which connection.
    pub connection: u64,
    whom: Whom,
    since_ns: u64,
    deadline_ns: u64,
    until_ns: u64,
    own_name: String,
    /// Who asks.
    pid: Option<u32>,
    /// The paths that the peer's packets may come by, with the number of queues of each.
    paths: [Option<usize>; PATHS],
    stage: Stage,
    /// The first barrier was asked for then.
    drained_ns: u64,
}

enum Stage {
    /// Nothing before the deadline.
    Waiting,
    /// Round 1 or 2: answers to questions of this time or later.
    Barrier {
        round: u8,
        from_ns: u64,
        again_ns: u64,
    },
    /// Until the second round may begin.
    Settling {
        from_ns: u64,
    },
    Processors {
        done: Receiver<Result<(), String>>,
    },
}

impl Check {
    /// # Errors
    /// What makes no sense, for the caller.
    pub fn new(connection: u64, peer: &str, since_ns: u64, deadline_ns: u64, wait_ns: u64) -> Result<Self, Refused> {
        let invalid = |what: &str| Err(Refused { code: ErrorCode::Invalid, what: what.into() });
        let now = now_ns();
        let deadline_ns = if deadline_ns == 0 { now } else { deadline_ns };
        if since_ns == 0 || since_ns > now {
            return invalid(
                "say when the interval began, as a past CLOCK_MONOTONIC time: what was lost before it does not count",
            );
        }
        if deadline_ns < since_ns {
            return invalid("the interval ends before it begins");
        }
        if wait_ns > CHECK_WAIT_MAX_NS {
            return invalid("a check is not waited for longer than 60 s: check again instead");
        }
        Ok(Self {
            connection,
            whom: Whom::parse(peer)?,
            since_ns,
            deadline_ns,
            until_ns: now.saturating_add(wait_ns),
            own_name: String::new(),
            pid: None,
            paths: [None; PATHS],
            stage: Stage::Waiting,
            drained_ns: 0,
        })
    }

    /// Finds out by which interfaces the peer's packets come to the process that asks. `Err`: why there can be no barrier.
    ///
    /// # Errors
    /// In words.
    pub fn route(&mut self, carriers: &mut Carriers, own_name: &str, pid: Option<u32>) -> Result<(), String> {
        (self.own_name, self.pid) = (own_name.to_owned(), pid);
        self.paths = self.ways(carriers.interfaces())?;
        self.whole(carriers)
    }

    /// The paths that its packets may come by, with the number of receive queues of each.
    pub fn queues(&self) -> impl Iterator<Item = (usize, usize)> {
        self.paths.iter().enumerate().filter_map(|(path, queues)| Some((path, (*queues)?)))
    }

    /// The paths that the peer's packets come by now, with the number of queues of each.
    fn ways(&self, interfaces: &[String]) -> Result<[Option<usize>; PATHS], String> {
        same_network(self.pid)?;
        if let Ok(text) = std::fs::read_to_string("/sys/kernel/realtime")
            && text.trim() == "1"
        {
            return Err("this kernel preempts what receives (PREEMPT_RT): no order of packets can be relied on".into());
        }
        let wanted: Vec<usize> = match &self.whom {
            Whom::Named { host, .. } if *host == self.own_name => Vec::new(),
            // A name means the addresses of the paths; an application that has others may hear of the peer there.
            Whom::Named { host, .. } => match processors::beside(interfaces)? {
                None => (0..interfaces.len()).collect(),
                Some((name, own)) => {
                    return Err(format!(
                        "packets of {host} may also come to {own} by {name}, which is no path of this agent: check the address they come from"
                    ));
                }
            },
            Whom::Address(address) => match processors::interface_towards(*address)? {
                None => Vec::new(), // this host itself
                Some(name) => match interfaces.iter().position(|i| *i == name) {
                    Some(path) => vec![path],
                    None => {
                        return Err(format!(
                            "packets of {address} come by {name}, which is no path of this agent: nothing tells what waits there"
                        ));
                    }
                },
            },
        };
        let mut paths = [None; PATHS];
        for path in wanted {
            paths[path] = Some(processors::queues(&interfaces[path])?);
        }
        Ok(paths)
    }

    /// Whether its packets still come as they did when it was asked: else some may wait where nobody looked.
    fn unchanged(&self, carriers: &mut Carriers) -> Result<(), String> {
        if self.ways(carriers.interfaces())? != self.paths {
            return Err(
                "the way of its packets has changed meanwhile (a route, an address, a number of queues): check again".into()
            );
        }
        self.whole(carriers)
    }

    /// Whether all the paths have had their carriers since the deadline. Of one that lies ahead nothing is said yet.
    fn whole(&self, carriers: &mut Carriers) -> Result<(), String> {
        carriers.look(now_ns);
        let mut paths = (0..PATHS).filter(|p| self.paths[*p].is_some() && now_ns() >= self.deadline_ns);
        paths.try_for_each(|path| carriers.whole_since(path, self.deadline_ns))
    }

    /// Whether one of its paths was without its carrier in the interval, and up to when: a driver that resets its ring counts nothing of what was in it.
    #[must_use]
    pub fn flapped(&self, carriers: &Carriers) -> Option<(u64, String)> {
        let broken = (0..PATHS).filter(|path| self.paths[*path].is_some()).filter_map(|path| carriers.broken(path));
        let (at_ns, interface) = broken.max_by_key(|(at_ns, _)| *at_ns).filter(|(at_ns, _)| *at_ns > self.since_ns)?;
        Some((at_ns, format!("the carrier of {interface} was gone, and what its ring held may be lost")))
    }

    /// Who is checked.
    #[must_use]
    pub fn whom(&self) -> &Whom {
        &self.whom
    }

    /// When the interval began.
    #[must_use]
    pub fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// One step. `Some(Ok)`: drained, as of this time; `Some(Err)`: no barrier.
    pub fn step(
        &mut self,
        ask: impl FnOnce([bool; PATHS]),
        answers: &Answers,
        offered: bool,
        carriers: &mut Carriers,
    ) -> Option<Result<u64, String>> {
        let now = now_ns();
        if now > self.until_ns {
            return Some(Err(self.why(answers)));
        }
        match &mut self.stage {
            Stage::Waiting if now > self.deadline_ns => match self.unchanged(carriers) {
                Ok(()) => self.begin(1, now, ask),
                Err(why) => return Some(Err(why)),
            },
            Stage::Waiting => {}
            Stage::Settling { from_ns } if now >= *from_ns => self.begin(2, now, ask),
            Stage::Settling { .. } => {}
            Stage::Barrier { round, from_ns, again_ns } => {
                let (round, from_ns) = (*round, *from_ns);
                if self.paths.iter().enumerate().all(|(p, queues)| {
                    // Behind the driver's poll the order of different queues is not known, but one queue is one.
                    queues.is_none_or(|n| (n == 1 || offered) && answers.as_of(p, n) >= from_ns)
                }) {
                    self.stage = match round {
                        1 => Stage::Settling { from_ns: now + 2 * processors::jiffy_ns() + SETTLE_NS },
                        _ => Stage::Processors { done: processors::turn_on_each() },
                    };
                } else if now >= *again_ns {
                    *again_ns = now + AGAIN_NS;
                    ask(self.paths.map(|p| p.is_some()));
                }
            }
            Stage::Processors { done } => match done.try_recv() {
                Ok(Ok(())) => return Some(self.unchanged(carriers).map(|()| self.drained_ns)),
                Ok(Err(why)) => return Some(Err(why)),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Some(Err("the thread that visits the processors ended".into())),
            },
        }
        None
    }

    fn begin(&mut self, round: u8, now: u64, ask: impl FnOnce([bool; PATHS])) {
        if round == 1 {
            self.drained_ns = now;
        }
        if self.paths.iter().all(Option::is_none) {
            self.stage = Stage::Processors { done: processors::turn_on_each() };
            return;
        }
        self.stage = Stage::Barrier { round, from_ns: now, again_ns: now + AGAIN_NS };
        ask(self.paths.map(|p| p.is_some()));
    }

    /// What was waited for in vain.
    fn why(&self, answers: &Answers) -> String {
        match &self.stage {
            Stage::Waiting => "the deadline did not come within the time to wait".into(),
            Stage::Settling { .. } => "there was no time for a second barrier: wait longer".into(),
            Stage::Processors { .. } => {
                "not every processor came to its turn: something that receives may be held up there".into()
            }
            Stage::Barrier { from_ns, .. } => {
                let missing = |(p, queues): (usize, &Option<usize>)| {
                    let n = queues.filter(|n| answers.as_of(p, *n) < *from_ns)?;
                    Some(match n {
                        1 => format!(
                            "nobody's answer came on path {p}: packets wait on this host, or nobody is left there to answer"
                        ),
                        _ if answers.any[p] < *from_ns => format!("nobody's answer came on path {p}"),
                        _ => format!("not every one of the {n} receive queues of path {p} was seen to be empty"),
                    })
                };
                let all: Vec<String> = self.paths.iter().enumerate().filter_map(missing).collect();
                if all.is_empty() { "the queues of this interface are not told apart here".into() } else { all.join("; ") }
            }
        }
    }
}

/// Its answer, when there is no barrier.
#[must_use]
pub fn no_barrier(why: String, peer: Option<CheckedPeer>) -> Checked {
    Checked { outcome: CheckOutcome::NoBarrier, drained_ns: 0, lost_ns: 0, why, peer }
}

/// Whether a process is where this agent is: what waits in a namespace of its own is not this host's.
fn same_network(pid: Option<u32>) -> Result<(), String> {
    let Some(pid) = pid else {
        return Err("the agent cannot see the process that asks: it runs in a pid namespace of its own".into());
    };
    let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/net"));
    match (of("self"), of(&pid.to_string())) {
        (Ok(own), Ok(its)) if own == its => Ok(()),
        (Ok(_), Ok(_)) => Err("the process runs in a network namespace of its own: packets may wait on the way into it".into()),
        (_, Err(e)) | (Err(e), _) => Err(format!("it cannot be seen in which network namespace process {pid} runs: {e}")),
    }
}

/// The newest process of a name.
#[derive(Clone, Copy)]
pub struct Found {
    /// Why, and when this agent learned it.
    pub ended: Option<(Cause, u64)>,
    /// It makes no progress.
    pub hung: bool,
    /// Its host is heard of.
    pub observed: bool,
}

/// How a process is, in a word, and whether its end is certain. What was learned before `since_ns` is not about whoever was heard then: another of that name may
/// run, and not be watched. One that left is only watched no longer.
#[must_use]
pub fn app_word(wanted: Option<&str>, found: Option<Found>, since_ns: u64) -> (String, bool) {
    let word = |word: &str| word.to_owned();
    match (wanted, found) {
        (None, _) => (String::new(), false),
        (_, Some(Found { ended: Some((cause, learned_ns)), .. })) => {
            // Behind an exec a program goes on that may hold what the former one had open.
            let ends = cause.is_seen_end() && cause != Cause::Replaced;
            (word(cause.name()), ends && learned_ns >= since_ns)
        }
        (_, None | Some(Found { observed: false, .. })) => (word("unknown"), false),
        (_, Some(Found { hung, .. })) => (word(if hung { "hung" } else { "alive" }), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_must_have_been_emptied() {
        let mut a = Answers::default();
        a.note(0, Some(1), 50);
        assert_eq!((a.as_of(0, 1), a.as_of(0, 2), a.as_of(1, 1)), (50, 0, 0));
        a.note(0, Some(2), 40);
        assert_eq!(a.as_of(0, 2), 40);
        a.note(0, None, 60);
        assert_eq!((a.as_of(0, 1), a.as_of(0, 2)), (60, 40), "of which queue is not known");
        a.note(0, Some(2), 30);
        assert_eq!(a.as_of(0, 2), 40, "never back");
        a.note(9, Some(1), 1);
        a.note(0, Some(u32::MAX), 70);
        a.note(0, Some(0), 80);
        assert_eq!((a.as_of(0, 2), a.as_of(0, QUEUES + 1)), (40, 0), "more queues than are told apart");
    }

    #[test]
    fn nonsense_is_refused() {
        let now = now_ns();
        let new = |peer: &str, since, deadline, wait| Check::new(1, peer, since, deadline, wait).map(drop).map_err(|e| e.code);
        assert_eq!(new("@a", now, 0, 0), Ok(()));
        assert_eq!(new("db@a", 1, now, CHECK_WAIT_MAX_NS), Ok(()));
        assert_eq!(new("fe80::1", 1, 0, 0), Ok(()));
        for peer in ["*", "", "a", "@", "x@", "300.1.1.1"] {
            assert_eq!(new(peer, 1, 0, 0), Err(ErrorCode::Invalid), "{peer}");
        }
        assert_eq!(new("@a", 0, 0, 0), Err(ErrorCode::Invalid), "no beginning");
        assert_eq!(new("@a", u64::MAX, 0, 0), Err(ErrorCode::Invalid), "begins in the future");
        assert_eq!(new("@a", now, 5, 0), Err(ErrorCode::Invalid), "ends before it begins");
        assert_eq!(new("@a", 1, 0, CHECK_WAIT_MAX_NS + 1), Err(ErrorCode::Invalid));
    }

    #[test]
    fn an_address_of_four_is_the_same_in_six() {
        assert_eq!(Whom::parse("::ffff:10.0.0.7").unwrap(), Whom::Address("10.0.0.7".parse().unwrap()));
        assert_eq!(Whom::parse("fd77::7").unwrap(), Whom::Address("fd77::7".parse().unwrap()));
    }

    #[test]
    fn a_process_of_this_host_needs_its_processors_only() {
        let mut check = Check::new(1, "127.0.0.1", 1, 0, 10_000_000_000).unwrap();
        let mut none = Carriers::new(Vec::new());
        check.route(&mut none, "me", Some(std::process::id())).unwrap();
        let result = loop {
            if let Some(done) = check.step(|_| panic!("nobody is asked"), &Answers::default(), true, &mut none) {
                break done;
            }
            // Sleep: interval of the poll.
            std::thread::sleep(std::time::Duration::from_millis(1));
        };
        assert!(result.is_ok(), "{result:?}");
        assert!(check.route(&mut none, "me", None).is_err(), "who asks must be seen");
    }

    /// Carries it to its end, with others who answer at once. `meanwhile` is done after the first of them.
    fn finish(check: &mut Check, carriers: &mut Carriers, meanwhile: impl FnOnce([bool; PATHS])) -> Result<u64, String> {
        let (mut answers, mut meanwhile) = (Answers::default(), Some(meanwhile));
        loop {
            let mut asked = None;
            if let Some(done) = check.step(|paths| asked = Some(paths), &answers, true, carriers) {
                return done;
            }
            if let Some(paths) = asked {
                for (path, queue) in (0..PATHS).filter(|p| paths[*p]).flat_map(|p| (0..=QUEUES as u32).map(move |q| (p, q))) {
                    answers.note(path, Some(queue), now_ns());
                }
                if let Some(meanwhile) = meanwhile.take() {
                    meanwhile(paths);
                }
            }
            // Sleep: interval of the poll.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Two paths, both with their carriers.
    fn two_paths() -> Carriers {
        for commands in ["link add v0 type veth peer name v1", "link add w0 type veth peer name w1"] {
            assert!(namespace::ip(commands));
        }
        // The other ends are those of switches, which have no addresses.
        assert!(["v1", "w1"].iter().all(|name| namespace::ip(&format!("link set {name} addrgenmode none"))));
        assert!(["v0", "v1", "w0", "w1"].iter().all(|name| namespace::ip(&format!("link set {name} up"))));
        let mut carriers = Carriers::new(vec!["v0".into(), "w0".into()]);
        carriers.look(now_ns);
        carriers
    }

    #[test]
    fn every_path_counts_and_must_keep_its_carrier() {
        namespace::inside(|| {
            let mut carriers = two_paths();
            let own = Some(std::process::id());
            let new = |deadline_ns| Check::new(1, "@h1", 1, deadline_ns, 10_000_000_000).unwrap();
            let mut check = new(0);
            check.route(&mut carriers, "me", own).unwrap();
            let drained = finish(&mut check, &mut carriers, |paths| assert_eq!(paths, [true, true]));
            assert!(drained.is_ok(), "{drained:?}");
            let (at_ns, why) = check.flapped(&carriers).unwrap();
            assert!(at_ns > 1 && why.contains("was gone"), "since before the first look: {why}");
            let mut later = Check::new(1, "@h1", now_ns(), 0, 10_000_000_000).unwrap();
            later.route(&mut carriers, "me", own).unwrap();
            assert_eq!(later.flapped(&carriers), None);
            // Gone for a moment, while the barrier is waited for.
            let mut check = new(0);
            check.route(&mut carriers, "me", own).unwrap();
            let flap = |_| assert!(namespace::ip("link set w1 down") && namespace::ip("link set w1 up"));
            let why = finish(&mut check, &mut carriers, flap).unwrap_err();
            assert!(why.contains("path 1 (w0) was gone after the deadline"), "{why}");
            // Between a deadline that is over and the question.
            let deadline_ns = now_ns();
            assert!(namespace::ip("link set v1 down") && namespace::ip("link set v1 up"));
            let why = new(deadline_ns).route(&mut carriers, "me", own).unwrap_err();
            assert!(why.contains("path 0 (v0) was gone"), "{why}");
            // Gone when the deadline comes, though not when it was asked for.
            let mut check = new(now_ns() + 50_000_000);
            check.route(&mut carriers, "me", own).unwrap();
            assert!(namespace::ip("link set w1 down"));
            let why = finish(&mut check, &mut carriers, |_| panic!("nobody is asked")).unwrap_err();
            assert!(why.contains("path 1 (w0) has no carrier"), "{why}");
            let why = new(0).route(&mut carriers, "me", own).unwrap_err();
            assert!(why.contains("path 1 (w0) has no carrier"), "{why}");
        });
    }

    #[test]
    fn a_way_that_changes_is_no_barrier() {
        namespace::inside(|| {
            let mut carriers = two_paths();
            let by = |path: &str| assert!(namespace::ip(&format!("route replace 10.7.0.0/24 dev {path}")));
            assert!(namespace::ip("address add 10.9.0.1/24 dev v0") && namespace::ip("address add 10.8.0.1/24 dev w0"));
            by("v0");
            let own = Some(std::process::id());
            let new = |after_ns| Check::new(1, "10.7.0.7", 1, now_ns() + after_ns, 10_000_000_000).unwrap();
            let mut check = new(0);
            check.route(&mut carriers, "me", own).unwrap();
            let drained = finish(&mut check, &mut carriers, |paths| assert_eq!(paths, [true, false]));
            assert!(drained.is_ok(), "{drained:?}");
            // Before the deadline: what came by the first path may wait there, though the last came by the second.
            let mut check = new(50_000_000);
            check.route(&mut carriers, "me", own).unwrap();
            by("w0");
            let why = finish(&mut check, &mut carriers, |_| panic!("nobody is asked")).unwrap_err();
            assert!(why.contains("has changed"), "{why}");
            // While the barrier is waited for.
            let mut check = new(0);
            check.route(&mut carriers, "me", own).unwrap();
            let why = finish(&mut check, &mut carriers, |paths| {
                assert_eq!(paths, [false, true]);
                by("v0");
            });
            assert!(why.as_ref().is_err_and(|why| why.contains("has changed")), "{why:?}");
        });
    }

    #[test]
    fn a_name_stands_for_the_paths_and_nothing_else() {
        namespace::inside(|| {
            let mut carriers = two_paths();
            assert!(namespace::ip("link add x0 type veth peer name x1") && namespace::ip("address add 10.5.0.1/24 dev x0"));
            assert!(namespace::ip("address add 10.9.0.1/24 dev v0"));
            let own = Some(std::process::id());
            let mut route = |peer: &str| Check::new(1, peer, 1, 0, 10_000_000_000).unwrap().route(&mut carriers, "me", own);
            assert_eq!(route("@h1"), Ok(()), "it is down");
            assert!(namespace::ip("link set x0 up"));
            let why = route("db@h1").unwrap_err();
            assert!(why.contains("10.5.0.1 by x0"), "{why}");
            assert_eq!(route("10.9.0.7"), Ok(()), "which way an address takes is known");
            let why = route("10.5.0.7").unwrap_err();
            assert!(why.contains("x0, which is no path"), "{why}");
            assert_eq!(route("@me"), Ok(()), "this host itself");
        });
    }

    #[test]
    fn a_certain_end_is_one_that_a_kernel_saw_since_the_last_sign_of_life() {
        let end = |cause, since_ns| {
            app_word(Some("db"), Some(Found { ended: Some((cause, 50)), hung: false, observed: true }), since_ns)
        };
        assert_eq!(end(Cause::Killed, 50), ("killed".into(), true));
        assert_eq!(end(Cause::Doomed, 1), ("doomed".into(), true));
        assert_eq!(end(Cause::Replaced, 50), ("replaced".into(), false), "what it had open may be open");
        assert_eq!(end(Cause::Exited, 51), ("exited".into(), false), "somebody of that name was heard later");
        assert_eq!(end(Cause::Left, 1), ("left".into(), false), "it is watched no longer, and may run");
        assert_eq!(end(Cause::SilentHost, 1), ("silent-host".into(), false));
        let lives = |hung, observed| app_word(Some("db"), Some(Found { ended: None, hung, observed }), 1);
        assert_eq!(app_word(None, None, 1), (String::new(), false));
        assert_eq!(app_word(Some("db"), None, 1), ("unknown".into(), false));
        assert_eq!(lives(false, false), ("unknown".into(), false));
        assert_eq!(lives(true, true), ("hung".into(), false));
        assert_eq!(lives(false, true), ("alive".into(), false));
    }
}
