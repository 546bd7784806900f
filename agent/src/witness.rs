//! The witness: a command of the operator's that says whether members may go on without a host
//! which is silent, under the policy *witness*.
//!
//! ```text
//! Gate ─► Event::AskWitness ─► Core (each incarnation once) ─► this thread ─► a child
//!                                 Groups::handle_witness ◄─ Core ◄─ exit status
//! ```
//!
//! Exit status 0 says that the host neither runs nor sends any more, by whatever it knew before or
//! by the command's doing. Everything else is a refusal: another status, a signal, no answer
//! within the time limit, a command that cannot be started, none that is configured. So the member
//! that asked stops rather than go on beside one that lives.
//!
//! A power controller may take seconds, so nothing waits for a child but its own place here: there
//! is one for a host, and 16 in all. A child whose time is over counts as a refusal at once, and is
//! ended: SIGTERM to its process group, SIGKILL a second later. When the agent ends, all children
//! are killed.

use crate::core::requests::Request;
use crate::handle::LoopHandle;
use crate::hooks::{HookOutcome, Job, Run, adopt, become_ordinary, spawn};
use crate::witness_questions::{Asker, Command, Life, Order, Question};
use crossbeam_channel::Receiver;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Children at once; who is asked about when there are so many waits, within its own time limit.
const AT_ONCE: usize = 16;
/// Output kept of a child, bytes.
const OUTPUT_MAX: usize = 512;
/// From SIGTERM to SIGKILL.
const KILL_AFTER: Duration = Duration::from_secs(1);

/// Takes what is answered, and why in words.
type Answer = Box<dyn Fn(Life, bool, String) + Send>;

/// What the thread will be, until there is a loop to answer to.
pub struct Prepared {
    asker: Asker,
    ordered: Receiver<Order>,
    wake: Arc<OwnedFd>,
}

impl Prepared {
    /// # Errors
    /// When the system gives no descriptor.
    pub fn new() -> io::Result<Self> {
        let (asker, ordered, wake) = Asker::new()?;
        Ok(Self { asker, ordered, wake })
    }

    /// The way to it.
    #[must_use]
    pub fn asker(&self) -> Asker {
        self.asker.clone()
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn start(self, command: Option<Command>, core: LoopHandle) -> io::Result<Witness> {
        self.start_with(
            command,
            Box::new(move |about, is_granted, text| {
                tracing::warn!("{text}");
                core.tell(Request::WitnessAnswered { about, is_granted });
                core.note(0, text);
            }),
        )
    }

    fn start_with(self, command: Option<Command>, answer: Answer) -> io::Result<Witness> {
        let Self { asker, ordered, wake } = self;
        let mut runner = Runner { ordered, wake, command, waiting: Vec::new(), asked: BTreeMap::new(), answer };
        let thread = std::thread::Builder::new().name("fide-witness".into()).stack_size(256 << 10).spawn(move || {
            become_ordinary();
            while runner.turn() {}
        })?;
        Ok(Witness { asker, thread: Some(thread) })
    }
}

/// Runs the command, on a thread of its own, until this is dropped.
pub struct Witness {
    asker: Asker,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Witness {
    /// Ends the thread. Children get SIGKILL; one that is stuck in the kernel is left to init.
    fn drop(&mut self) {
        self.asker.order(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there was told
        }
    }
}

/// A child, and whether its question is answered already, because its time was over.
struct Asked {
    question: Question,
    run: Run,
    is_answered: bool,
    deadline: Instant,
}

struct Runner {
    ordered: Receiver<Order>,
    wake: Arc<OwnedFd>,
    command: Option<Command>,
    /// Questions without a child, with their deadlines.
    waiting: Vec<(Question, Command, Instant)>,
    /// By host: a child is not started beside another one that may be switching the same host off.
    asked: BTreeMap<u32, Asked>,
    answer: Answer,
}

impl Runner {
    fn turn(&mut self) -> bool {
        while let Ok(order) = self.ordered.try_recv() {
            match order {
                Order::Ask(question, at) => match self.command.clone() {
                    Some(command) => {
                        let deadline = at + command.timeout;
                        self.waiting.push((*question, command, deadline));
                    }
                    None => self.refuse(&question, "no command is configured in [witness]"),
                },
                Order::Set(command) => self.command = command,
                Order::Stop => {
                    self.end();
                    return false;
                }
            }
        }
        // What has ended makes room.
        self.advance(Instant::now());
        self.begin(Instant::now());
        self.wait();
        true
    }

    /// Starts what has a place, and refuses what has waited for one too long.
    fn begin(&mut self, now: Instant) {
        for (question, command, deadline) in std::mem::take(&mut self.waiting) {
            let node = question.about.0;
            if now >= deadline {
                self.refuse(&question, "too much was asked at once: its time was over before its command could be run");
            } else if self.asked.len() >= AT_ONCE || self.asked.contains_key(&node) {
                self.waiting.push((question, command, deadline));
            } else {
                let job = job(&question, command, deadline - now);
                match spawn(&job) {
                    Ok(spawned) => {
                        let run = adopt(job, spawned);
                        self.asked.insert(node, Asked { question, run, is_answered: false, deadline });
                    }
                    Err(e) => self.refuse(&question, &format!("its command cannot be started: {e}")),
                }
            }
        }
    }

    fn advance(&mut self, now: Instant) {
        let mut told = Vec::new();
        for asked in self.asked.values_mut() {
            if asked.run.has_ended() {
                continue; // in time, however late this thread looks
            }
            asked.run.tend(now, OUTPUT_MAX, KILL_AFTER);
            if now >= asked.deadline && !asked.is_answered {
                asked.is_answered = true;
                told.push((asked.question.clone(), None));
            }
        }
        let ended: Vec<u32> = self.asked.iter().filter(|(_, asked)| asked.run.has_ended()).map(|(node, _)| *node).collect();
        for node in ended {
            let Some(Asked { question, run, is_answered, .. }) = self.asked.remove(&node) else { continue };
            let outcome = run.finish(OUTPUT_MAX);
            if !is_answered {
                told.push((question, Some(outcome)));
            }
        }
        for (question, outcome) in told {
            match outcome {
                Some(outcome) if !outcome.is_failure() => self.grant(&question, &outcome),
                Some(outcome) => self.refuse(&question, &described(&outcome)),
                None => self.refuse(&question, "its command did not answer in time"),
            }
        }
    }

    fn grant(&self, question: &Question, outcome: &HookOutcome) {
        let Question { about, host, .. } = question;
        let took = outcome.took.as_secs_f64();
        let text = format!("the witness lets groups go on without {host}, incarnation {}, after {took:.3} s", about.1);
        (self.answer)(*about, true, text);
    }

    fn refuse(&self, question: &Question, why: &str) {
        let Question { about, host, .. } = question;
        let text = format!("the witness does not let groups go on without {host}, incarnation {}: {why}", about.1);
        (self.answer)(*about, false, text);
    }

    fn wait(&self) {
        let entry = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = vec![entry(self.wake.as_raw_fd())];
        self.asked.values().for_each(|asked| fds.extend(asked.run.fds().map(entry)));
        let due = |asked: &Asked| {
            let answer = (!asked.is_answered).then_some(asked.deadline);
            asked.run.due().into_iter().chain(answer).min()
        };
        let until = self.asked.values().filter_map(due).chain(self.waiting.iter().map(|(.., deadline)| *deadline)).min();
        let mut timeout_ms = until.map_or(-1, |until| {
            let left = until.saturating_duration_since(Instant::now());
            i32::try_from(left.as_millis()).unwrap_or(i32::MAX - 1) + 1
        });
        // Without a descriptor for its end it has to be looked at.
        if self.asked.values().any(|asked| asked.run.is_blind()) {
            timeout_ms = if timeout_ms < 0 { 20 } else { timeout_ms.min(20) };
        }
        // SAFETY: the array is live and of the length passed.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
        let mut count = 0u64;
        // SAFETY: reads at most 8 bytes into a live variable; the descriptor does not block.
        unsafe { libc::read(self.wake.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    fn end(&mut self) {
        self.asked.values_mut().for_each(|asked| asked.run.kill());
        // Those that end at once are reaped.
        let until = Instant::now() + Duration::from_millis(50);
        while !self.asked.is_empty() && Instant::now() < until {
            let ended: Vec<u32> = self.asked.iter().filter(|(_, asked)| asked.run.has_ended()).map(|(node, _)| *node).collect();
            for asked in ended.iter().filter_map(|node| self.asked.remove(node)) {
                asked.run.finish(0);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// How a command that did not grant it ended.
fn described(outcome: &HookOutcome) -> String {
    let last = outcome.output.trim_end().lines().next_back().unwrap_or("");
    let said = if last.is_empty() { String::new() } else { format!("; it said: {last}") };
    format!("its command {} after {:.3} s{said}", outcome.result, outcome.took.as_secs_f64())
}

fn job(question: &Question, command: Command, left: Duration) -> Job {
    let Question { about, host, addresses, observer } = question;
    let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    let environment = vec![
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()),
        ("LANG", "C.UTF-8".into()),
        ("FIDE_NODE", host.clone()),
        ("FIDE_INCARNATION", about.1.to_string()),
        ("FIDE_ADDRESSES", addresses.join(" ")),
        ("FIDE_OBSERVER", observer.clone()),
    ];
    let mut words = command.words;
    words.push(host.clone());
    Job::of_probe(words, false, left, environment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::unbounded;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn shell(script: &str, timeout_ms: u64) -> Option<Command> {
        let words = ["/bin/sh", "-c", script, "witness"].map(String::from).to_vec();
        Some(Command { words, timeout: Duration::from_millis(timeout_ms) })
    }

    fn start(command: Option<Command>) -> (Witness, Asker, Receiver<(Life, bool, String)>) {
        let (answers, answered) = unbounded();
        let prepared = Prepared::new().unwrap();
        let asker = prepared.asker();
        let answer = Box::new(move |about, is_granted, text| answers.send((about, is_granted, text)).unwrap());
        (prepared.start_with(command, answer).unwrap(), asker, answered)
    }

    fn question(node: u32, incarnation: u32) -> Question {
        let addresses = vec!["10.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap()];
        Question { about: (node, incarnation), host: format!("h{node}"), addresses, observer: "me".into() }
    }

    #[test]
    fn only_exit_status_0_lets_go_on_and_a_refusal_says_why() {
        let all = "[ \"$#\" = 1 ] && [ \"$1 $FIDE_NODE $FIDE_INCARNATION $FIDE_ADDRESSES $FIDE_OBSERVER\" = 'h1 h1 7 10.0.0.1 fe80::1 me' ]";
        let (_witness, asker, answered) = start(None);
        for (command, is_granted, words) in [
            (None, false, "no command is configured"),
            (shell(all, 10_000), true, "go on without h1, incarnation 7"),
            (shell("echo the controller is away; exit 3", 10_000), false, "exit status 3"),
            (shell("echo the controller is away; exit 3", 10_000), false, "it said: the controller is away"),
            (shell("kill -9 $$", 10_000), false, "signal 9"),
            (shell("exec sleep 1000", 100), false, "did not answer in time"),
            (Some(Command { words: vec!["/nowhere".into()], timeout: PATIENCE }), false, "cannot be started"),
        ] {
            asker.set(command);
            asker.ask(question(1, 7));
            let (about, granted, text) = answered.recv_timeout(PATIENCE).unwrap();
            assert_eq!((about, granted), ((1, 7), is_granted), "{text}");
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn a_host_has_one_child_at_a_time_and_all_together_have_a_few() {
        let dir = tempfile::tempdir().unwrap();
        let script = format!(
            "mkdir {0}/$1 || exit 9; count=$(ls {0} | wc -l); sleep 0.05; rmdir {0}/$1; [ $count -le {AT_ONCE} ]",
            dir.path().display()
        );
        let (_witness, asker, answered) = start(shell(&script, 60_000));
        let mut asked: Vec<Life> = (1..=40).map(|node| (node, 1)).chain((1..=3).map(|life| (50, life))).collect();
        asked.iter().for_each(|(node, life)| asker.ask(question(*node, *life)));
        while !asked.is_empty() {
            let (about, is_granted, text) = answered.recv_timeout(PATIENCE).unwrap();
            assert!(is_granted, "{text}");
            asked.retain(|other| *other != about);
        }
    }

    #[test]
    fn who_waits_for_a_place_is_refused_in_time_and_what_runs_ends_with_the_thread() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let script = format!("echo $$ > {0}.new; mv {0}.new {0}; trap '' TERM; while :; do sleep 1; done", pid.display());
        // On a busy machine a short time limit may be over before the command has begun: then a
        // longer one is tried.
        let begun = [300, 3_000, 20_000].into_iter().find_map(|limit_ms| {
            let (witness, asker, answered) = start(shell(&script, limit_ms));
            asker.ask(question(1, 1));
            asker.ask(question(1, 2));
            let mut texts: Vec<String> = (0..2).map(|_| answered.recv_timeout(PATIENCE).unwrap().2).collect();
            texts.sort_unstable();
            Some((std::fs::read_to_string(&pid).ok()?, witness, (asker, answered), texts))
        });
        let (pid, witness, _held, texts) = begun.expect("it begins");
        assert!(texts[0].contains("incarnation 1: its command did not answer in time"), "{texts:?}");
        assert!(texts[1].contains("incarnation 2: too much was asked at once"), "{texts:?}");
        drop(witness);
        let until = Instant::now() + PATIENCE;
        while std::path::Path::new("/proc").join(pid.trim()).exists() {
            assert!(Instant::now() < until, "it goes on");
            // Sleep: interval of the poll.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
