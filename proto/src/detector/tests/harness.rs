//! One detector and a receive table to play with. Times read in microseconds.

use super::super::*;
use fide_wire::marks::Marks;

pub const A: u32 = 10;
pub const B: u32 = 20;
pub const C: u32 = 30;
pub const ME: u32 = 1;
pub const MS: u64 = 1_000_000;
pub const US: u64 = 1_000;

/// HB 1 ms, λmin 50 µs, δmax 100 µs: TO 1.25 ms.
pub const CONTRACT: Contract = Contract { period_ns: MS, size_max: 0, lambda_min_ns: 50 * US, delta_max_ns: 100 * US };
pub const TO: u64 = CONTRACT.timeout_ns();

pub struct Bench {
    pub d: Detector,
    pub now: u64,
    /// Hosts whose heartbeats come, on which paths.
    pub sending: Vec<(u32, u32, [bool; PATHS])>,
    /// Hosts whose kernel answers probes.
    pub answering: Vec<(u32, ProbeResult)>,
    /// Paths on which a host hears and answers no question.
    pub deaf: Vec<(u32, usize)>,
    /// Paths on which what is for a host goes astray, but for what is for everybody. For ourselves ([`ME`]): the answers do, of whomever.
    pub taken: Vec<(u32, usize)>,
    /// Paths on which nothing reaches us before this moment; then everything does, in order.
    pub held: [u64; PATHS],
    /// Whether answers are barriers, and heartbeats for what came a period before.
    pub barriers: bool,
    /// Hosts whose heartbeats take another receive queue than those of the others.
    pub own_queue: Vec<u32>,
    rows: std::collections::BTreeMap<u32, [PathArrival; PATHS]>,
    pub numbers: std::collections::BTreeMap<u32, u64>,
    marks: std::collections::BTreeMap<(u32, usize), Marks>,
    /// Heartbeats held up on a path.
    waiting: std::collections::BTreeMap<(u32, usize), u64>,
    pub verdicts: Vec<Verdict>,
    pub others: Vec<Action>,
    /// Hosts that others hear although this observer may not.
    pub heard_elsewhere: Vec<u32>,
    /// Hosts that do not answer when they are asked what they hear.
    pub say_nothing: Vec<u32>,
}

impl Bench {
    /// A detector that has watched these hosts for 10 ms.
    pub fn watching(nodes: &[u32]) -> Self {
        Self::with(Config::new(ME, 1), nodes)
    }

    pub fn with(config: Config, nodes: &[u32]) -> Self {
        let mut b = Self {
            d: Detector::new(config),
            now: 1_000 * MS,
            sending: Vec::new(),
            answering: Vec::new(),
            deaf: Vec::new(),
            taken: Vec::new(),
            held: [0; PATHS],
            barriers: true,
            own_queue: Vec::new(),
            rows: Default::default(),
            numbers: Default::default(),
            marks: Default::default(),
            waiting: Default::default(),
            verdicts: Vec::new(),
            others: Vec::new(),
            heard_elsewhere: Vec::new(),
            say_nothing: Vec::new(),
        };
        b.d.tick(b.now);
        for &n in nodes {
            b.d.peer_seen(n, &format!("host-{n}"), 1, &[CONTRACT; PATHS], b.now).unwrap();
            b.sending.push((n, 1, [true; PATHS]));
            b.answering.push((n, ProbeResult::KernelAnswered));
        }
        b.run(10 * MS);
        b.take();
        b
    }

    /// Lets `ns` pass, ticking every 100 µs; heartbeats come every millisecond, path 1 a little after path 0.
    pub fn run(&mut self, ns: u64) {
        let end = self.now + ns;
        while self.now < end {
            self.now += 100 * US;
            self.heartbeats();
            self.turn();
        }
    }

    /// Lets `ns` pass without looking; heartbeats are stamped by the kernel if it runs.
    pub fn sleep(&mut self, ns: u64, kernel_runs: bool) {
        let end = self.now + ns;
        while self.now < end {
            self.now += 100 * US;
            if kernel_runs {
                self.heartbeats();
            }
        }
    }

    /// Runs until a heartbeat of this host has just come.
    pub fn until_heartbeat(&mut self, node: u32) {
        let before = self.rows[&node][0].last_number;
        while self.rows[&node][0].last_number == before {
            self.run(100 * US);
        }
    }

    fn heartbeats(&mut self) {
        // What waited comes before anything newer.
        for ((n, p), waiting) in self.waiting.iter_mut().filter(|((_, p), waiting)| **waiting > 0 && self.held[*p] <= self.now) {
            let row = &mut self.rows.entry(*n).or_default()[*p];
            row.last_number += std::mem::take(waiting);
            row.last_arrival_ns = self.now - 50 * US;
        }
        let due = |n: u32| (self.now / (100 * US)) % 10 == u64::from(n) / 10 % 10;
        for (n, _, paths) in self.sending.iter().filter(|(n, ..)| due(*n)) {
            let number = self.numbers.entry(*n).or_default();
            *number += 1;
            for p in (0..PATHS).filter(|&p| paths[p]) {
                let waiting = self.waiting.entry((*n, p)).or_default();
                if self.held[p] > self.now {
                    *waiting += 1;
                    continue;
                }
                let marks = &mut self.marks.entry((*n, p)).or_default();
                let row = &mut self.rows.entry(*n).or_default()[p];
                row.lost += if row.last_number == 0 { 0 } else { *number - row.last_number - 1 };
                row.last_number = *number;
                row.last_arrival_ns = self.now - 50 * US + 20 * US * p as u64;
                let arrived = row.last_number - row.lost;
                marks.count(arrived, row.lost, row.last_arrival_ns);
                row.recent = marks.recent(arrived, row.lost, row.last_arrival_ns);
            }
        }
    }

    /// One turn of the shell's loop.
    pub fn turn(&mut self) {
        for (n, incarnation, _) in &self.sending {
            let _ = self.d.arrivals(*n, *incarnation, self.rows.get(n).unwrap_or(&Default::default()));
        }
        if self.barriers {
            for p in (0..PATHS).filter(|&p| self.held[p] <= self.now) {
                let newest = self.rows.values().map(|rows| rows[p].last_arrival_ns).max().unwrap_or(0);
                let as_of = newest.saturating_sub(MS);
                self.rows.keys().for_each(|n| self.d.drained(*n, p, as_of + u64::from(self.own_queue.contains(n))));
            }
        }
        self.d.tick(self.now);
        while let Some(action) = self.d.poll_action() {
            match action {
                Action::Verdict(v) => self.verdicts.push(*v),
                Action::Probe { node, paths, wide, knock } => {
                    // Who is not asked at the agent's port does not say that nobody is there.
                    let says = |result: &ProbeResult| knock || *result != ProbeResult::AgentAbsent;
                    for (_, result) in self.answering.iter().filter(|(n, result)| *n == node && says(result)) {
                        for (p, asked) in paths.iter().enumerate() {
                            let astray = self.taken.contains(&(ME, p)) || (!wide && self.taken.contains(&(node, p)));
                            if *asked && !astray && self.held[p] <= self.now && !self.deaf.contains(&(node, p)) {
                                self.d.probe_result(node, p, *result, self.now, self.now + 1);
                                if self.barriers {
                                    let as_of = |n| self.now + u64::from(self.own_queue.contains(n));
                                    self.rows.keys().for_each(|n| self.d.drained(*n, p, as_of(n)));
                                }
                            }
                        }
                    }
                    self.others.push(action);
                }
                Action::AskOthers { node } => {
                    self.all_state(node);
                    self.others.push(action);
                }
                _ => self.others.push(action),
            }
        }
    }

    /// Every other host states what it hears of this one: the same as we, or all that it sends.
    fn all_state(&mut self, node: u32) {
        let heard = self.rows.get(&node).map_or(0, |rows| rows.iter().map(|row| row.last_number).max().unwrap_or(0));
        let number = if self.heard_elsewhere.contains(&node) { self.numbers[&node] } else { heard };
        let says = |by: u32| by != node && !self.say_nothing.contains(&by);
        for by in self.sending.iter().map(|(by, ..)| *by).filter(|by| says(*by)) {
            self.d.stated((by, self.d.company(node)), node, (1, number), How::Heard, self.now);
        }
    }

    /// So many heartbeats of everybody are lost on their way.
    pub fn lose(&mut self, heartbeats: u64) {
        self.numbers.values_mut().for_each(|n| *n += heartbeats);
    }

    /// Everybody is asked on every path without a doubt, and answers if it can.
    pub fn try_all(&mut self) -> Vec<(u32, usize)> {
        let mut news = Vec::new();
        for (node, ..) in self.sending.clone() {
            for p in 0..PATHS {
                if self.d.tried(node, p, self.now) {
                    news.push((node, p));
                }
                let astray = [ME, node].iter().any(|n| self.taken.contains(&(*n, p))) || self.deaf.contains(&(node, p));
                if let Some((_, result)) = self.answering.iter().find(|(n, _)| *n == node && !astray) {
                    self.d.probe_result(node, p, *result, self.now + 1, self.now + 1);
                }
            }
        }
        news
    }

    /// A heartbeat of this number comes on one path alone, now.
    pub fn comes(&mut self, node: u32, path: usize, number: u64) {
        let row = &mut self.rows.entry(node).or_default()[path];
        (row.last_number, row.last_arrival_ns) = (number, self.now);
        let rows = self.rows[&node];
        self.d.arrivals(node, 1, &rows).unwrap();
    }

    /// The number of the last heartbeat that a host sent.
    pub fn sent(&self, node: u32) -> u64 {
        self.numbers[&node]
    }

    /// The host is gone: no heartbeats, no answers.
    pub fn crash(&mut self, node: u32) {
        self.sending.retain(|(n, ..)| *n != node);
        self.answering.retain(|(n, _)| *n != node);
    }

    /// Only its agent is gone or stuck.
    pub fn agent(&mut self, node: u32, result: ProbeResult) {
        self.sending.retain(|(n, ..)| *n != node);
        self.answering.retain(|(n, _)| *n != node);
        self.answering.push((node, result));
    }

    pub fn cut(&mut self, node: u32, path: usize) {
        self.mute(node, path);
        self.deaf.push((node, path));
    }

    /// No heartbeats on this path; its kernel answers there.
    pub fn mute(&mut self, node: u32, path: usize) {
        self.sending.iter_mut().filter(|(n, ..)| *n == node).for_each(|(_, _, p)| p[path] = false);
    }

    pub fn heal(&mut self, node: u32, path: usize) {
        self.deaf.retain(|it| *it != (node, path));
        self.sending.iter_mut().filter(|(n, ..)| *n == node).for_each(|(_, _, p)| p[path] = true);
    }

    pub fn restart(&mut self, node: u32, incarnation: u32) {
        self.crash(node);
        self.rows.remove(&node);
        self.marks.retain(|(n, _), _| *n != node);
        self.sending.push((node, incarnation, [true; PATHS]));
        self.answering.push((node, ProbeResult::KernelAnswered));
        self.d.peer_seen(node, &format!("host-{node}"), incarnation, &[CONTRACT; PATHS], self.now).unwrap();
    }

    pub fn notice(&mut self, node: u32, n: u32, app: u32, cause: Cause, flags: u16) -> Result<Taken, Refused> {
        self.notice_of_code(node, n, app, cause, flags, if app == 0 { 0 } else { 9 })
    }

    pub fn notice_of_code(&mut self, node: u32, n: u32, app: u32, cause: Cause, flags: u16, code: i32) -> Result<Taken, Refused> {
        let notice = Notice { notice: n, app, cause, grade: Grade::Certain, flags, code, event_ns: 5 };
        let taken = self.d.notice(node, 1, &notice, 6, self.now, 1, self.now);
        while let Some(action) = self.d.poll_action() {
            match action {
                Action::Verdict(v) => self.verdicts.push(*v),
                _ => self.others.push(action),
            }
        }
        taken
    }

    /// Causes and hosts of the verdicts since the last call.
    pub fn take(&mut self) -> Vec<(Cause, u32)> {
        self.others.clear();
        self.verdicts.drain(..).map(|v| (v.cause, v.node)).collect()
    }

    pub fn causes(&self) -> Vec<(Cause, u32)> {
        self.verdicts.iter().map(|v| (v.cause, v.node)).collect()
    }
}
