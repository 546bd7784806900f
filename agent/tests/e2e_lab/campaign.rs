//! Crashes that fall before, into and behind gaps of agents, at random: of the host whose process ends, of who observes, or of both. Agents are stopped, killed,
//! told to leave, restarted by another program (an older or a newer version), hosts are cut off. Each end is told once on every host, in its history and to every
//! application, by its cause and code.
//!
//! FIDE_GAPS: how many trials (12). FIDE_SEED: the first one's. FIDE_OLD_FIDED: an agent of another version, which agents are replaced by, and which replaces them (`scripts/upgrade`).

use crate::common::worst::Rng;
use crate::common::{PATIENCE, Pins, Process, Setup, World, fided, wait_for};
use fide_client::{Client, Event, Options, Resources};
use fide_lab::{Cut, NETS, host_name};
use fide_wire::control::HistoryEvent;
use fide_wire::verdict::{Cause, Grade};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const HOSTS: u16 = 3;
/// Labs beside each other: most of a trial is waiting.
const LABS: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Gap {
    Stopped,
    Killed,
    Left,
    /// Left, and followed by another version.
    Replaced,
    Cut,
    OnePathCut,
}

/// When the process ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    Before,
    In,
    /// While the next agent starts, the cables are plugged in again.
    AtItsEnd,
    Behind,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Killed(i32),
    Exited(i32),
}

impl End {
    fn told(self) -> (Cause, i32) {
        match self {
            End::Killed(signal) => (Cause::Killed, signal),
            End::Exited(code) => (Cause::Exited, code),
        }
    }

    fn process(self, w: &World, host: u16) -> Process {
        match self {
            End::Killed(_) => w.sleeper(host),
            End::Exited(code) => w.process(host, "sh", &["-c", &format!("read x; exit {code}")]),
        }
    }

    fn happen(self, process: &mut Process) {
        match self {
            End::Killed(signal) => process.signal(signal),
            End::Exited(_) => process.say("x"),
        }
        process.ended();
    }
}

/// An application that monitors, and does what it should when its agent is gone.
struct Application {
    client: Client,
    host: u16,
    is_alone: bool,
    reconnected_ns: u64,
    told: Vec<Told>,
}

/// What an application was told of a process.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    Runs(String),
    Failed(String, Cause, Grade, i32),
    Confirmed(String, Cause, i32),
}

impl Application {
    fn open(w: &World, host: u16, target: &str) -> Self {
        let client = Client::open_with(Options { path: Some(w.socket(host)), ..Options::default() }).unwrap();
        client.monitor(target, Resources::default()).unwrap();
        Self { client, host, is_alone: false, reconnected_ns: 0, told: Vec::new() }
    }

    fn read(&mut self) {
        if self.is_alone {
            // Nobody is there yet: the next turn tries again.
            self.is_alone = match self.client.reconnect() {
                Err(_) => true,
                Ok(resumed) => {
                    let refused: Vec<_> = resumed.targets.iter().filter(|(_, answer)| answer.is_err()).collect();
                    assert!(refused.is_empty(), "h{}: {refused:?}", self.host);
                    self.reconnected_ns = fide_agent::clock::now_ns();
                    false
                }
            };
        }
        while !self.is_alone {
            match self.client.poll(Some(Duration::ZERO)) {
                Ok(None) => return,
                Ok(Some(Event::AgentGone)) | Err(_) => self.is_alone = true,
                Ok(Some(event)) => {
                    let name = |v: &fide_client::Verdict| v.subject.name.as_deref().unwrap_or_default().to_owned();
                    self.told.extend(match event {
                        Event::Monitored(v) => Some(Told::Runs(name(&v))),
                        Event::Failure(v) => Some(Told::Failed(name(&v), v.cause, v.grade, v.code)),
                        Event::Confirmed(v) => Some(Told::Confirmed(name(&v), v.cause, v.code)),
                        Event::Lost { count } => panic!("h{}: {count} events lost", self.host),
                        _ => None,
                    });
                }
            }
        }
    }

    /// Certain ends of a process, but for the dooms that come before them.
    fn ends(&self, process: &str) -> Vec<(Cause, i32)> {
        let end = |told: &Told| match told {
            Told::Failed(name, cause, Grade::Certain, code) if name == process && *cause != Cause::Doomed => {
                Some((*cause, *code))
            }
            Told::Confirmed(name, cause, code) if name == process => Some((*cause, *code)),
            _ => None,
        };
        self.told.iter().filter_map(end).collect()
    }

    /// An instance fails once, and that is confirmed once at most; only one that was taken for dead with its host, and is introduced again, may fail twice.
    fn is_consistent(&self, process: &str) -> bool {
        let mut runs = true;
        self.told.iter().all(|told| match told {
            Told::Runs(name) if name == process => {
                runs = true;
                true
            }
            Told::Failed(name, ..) if name == process => std::mem::replace(&mut runs, false),
            // Between its failure and what follows it.
            Told::Confirmed(name, ..) if name == process => !runs,
            _ => true,
        })
    }
}

fn pause(rng: &mut Rng, below_ms: usize) -> Duration {
    Duration::from_micros(rng.below(below_ms * 1000) as u64)
}

/// What a history says of the certain end of a process.
fn ends_in(history: &[HistoryEvent], process: &str) -> Vec<(Cause, i32)> {
    let is_end = |e: &&HistoryEvent| {
        e.app.as_deref() == Some(process) && e.grade == Grade::Certain && e.cause != Cause::Doomed && e.cause.ends_process()
    };
    history.iter().filter(is_end).map(|e| (e.cause, e.code)).collect()
}

struct Lab {
    w: World,
    _pins: Pins,
    /// One on each host that monitors everything.
    all: Vec<Application>,
    old: Option<String>,
    /// What was told of each trial's process, and where its history begins.
    trials: Vec<(String, End)>,
}

impl Lab {
    fn up(old: Option<String>) -> Option<Self> {
        let pins = Pins::new()?;
        let mut w = Setup::hosts(HOSTS).empty().up()?;
        for host in 1..=HOSTS {
            let head = w.head(host, &host_name(host), "2ms");
            w.write_config(host, &pins.keeping_ends(&head));
            w.start(host);
        }
        w.all_alive();
        let all = (1..=HOSTS).map(|host| Application::open(&w, host, "*")).collect();
        Some(Self { w, _pins: pins, all, old, trials: Vec::new() })
    }

    /// Every application, until what it was told is enough; `None` when it is not in time.
    fn wait(&mut self, more: &mut [Application], is_enough: impl Fn(&Application) -> bool) -> Option<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            self.all.iter_mut().chain(more.iter_mut()).for_each(Application::read);
            if self.all.iter().chain(more.iter()).all(&is_enough) {
                return Some(());
            }
            if Instant::now() > until {
                return None;
            }
            // Sleep: interval of the poll.
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn begin(&mut self, host: u16, gap: Gap) {
        match gap {
            Gap::Stopped => self.w.signal_agent(host, libc::SIGSTOP),
            Gap::Killed => self.w.kill_agent(host),
            Gap::Left | Gap::Replaced => {
                self.w.signal_agent(host, libc::SIGTERM);
                self.w.agent_ended(host);
            }
            Gap::Cut => NETS.into_iter().for_each(|net| self.w.lab.cut(host, net, Cut::Silent).unwrap()),
            Gap::OnePathCut => self.w.lab.cut(host, NETS[0], Cut::Silent).unwrap(),
        }
    }

    fn end(&mut self, host: u16, gap: Gap, rng: &mut Rng) {
        match gap {
            Gap::Stopped => self.w.signal_agent(host, libc::SIGCONT),
            Gap::Killed | Gap::Left => self.w.start(host),
            Gap::Replaced => {
                let program = self.old.clone().filter(|_| rng.once_in(2)).unwrap_or_else(fided);
                self.w.start_by(host, &program);
            }
            Gap::Cut => NETS.into_iter().for_each(|net| self.w.lab.heal(host, net).unwrap()),
            Gap::OnePathCut => self.w.lab.heal(host, NETS[0]).unwrap(),
        }
    }

    /// One end of a process beside gaps of one or two hosts. Says in words what was done.
    fn trial(&mut self, seed: u64) -> Result<(), String> {
        let mut rng = Rng::new(seed);
        let rng = &mut rng;
        let owner = 1 + rng.below(usize::from(HOSTS)) as u16;
        let name = format!("t{seed}");
        let of = *rng.one_of(&[End::Killed(libc::SIGKILL), End::Killed(libc::SIGTERM), End::Exited(3), End::Exited(0)]);
        let when = *rng.one_of(&[When::Before, When::In, When::In, When::AtItsEnd, When::AtItsEnd, When::Behind]);
        let mut gaps: Vec<(u16, Gap)> = Vec::new();
        for _ in 0..1 + rng.below(2) {
            let host = if rng.once_in(2) { owner } else { 1 + rng.below(usize::from(HOSTS)) as u16 };
            let mut kinds = vec![Gap::Stopped, Gap::Killed, Gap::Left, Gap::Cut, Gap::OnePathCut];
            if self.old.is_some() {
                kinds.extend([Gap::Replaced; 4]);
            }
            let gap = *rng.one_of(&kinds);
            if gaps.iter().all(|(h, _)| *h != host) {
                gaps.push((host, gap));
            }
        }
        let long = if rng.once_in(3) { 1500 } else { 60 };
        let story = format!("FIDE_SEED={seed}: {name} on h{owner} {of:?} {when:?} {gaps:?}, {long} ms at most");
        println!("{story}");

        let mut process = of.process(&self.w, owner);
        self.w.watch_known(owner, &name, process.pid());
        let target = format!("{name}@h{owner}");
        let mut own = [Application::open(&self.w, 1 + rng.below(usize::from(HOSTS)) as u16, &target)];
        let runs = Told::Runs(target.clone());
        self.wait(&mut [], |app| app.told.contains(&runs)).ok_or_else(|| format!("{story}: not introduced"))?;
        // Sleep: the trial's chance, as are the others below.
        std::thread::sleep(pause(rng, 30));

        if when == When::Before {
            of.happen(&mut process);
            // Sleep: from the end to the gap.
            std::thread::sleep(pause(rng, 3));
        }
        for (host, gap) in &gaps {
            self.begin(*host, *gap);
            // Sleep: from one gap to the next.
            std::thread::sleep(pause(rng, 3));
        }
        let lasts = pause(rng, long);
        // Sleep: half of the gap.
        std::thread::sleep(lasts / 2);
        if when == When::In {
            of.happen(&mut process);
        }
        // Sleep: the other half.
        std::thread::sleep(lasts / 2);
        let wait = pause(rng, 120);
        std::thread::scope(|scope| {
            if when == When::AtItsEnd {
                scope.spawn(|| {
                    // Sleep: how far the next agent has come.
                    std::thread::sleep(wait);
                    of.happen(&mut process);
                });
            }
            for (host, gap) in &gaps {
                self.end(*host, *gap, rng);
                // Sleep: from the end of one gap to that of the next.
                std::thread::sleep(pause(rng, 3));
            }
        });
        if when == When::Behind {
            // Sleep: from the gap to the end.
            std::thread::sleep(pause(rng, 20));
            of.happen(&mut process);
        }

        self.trials.push((target.clone(), of));
        let told = self.wait(&mut own, |app| !app.ends(&target).is_empty());
        told.ok_or_else(|| format!("{story}: an application is not told:{}", self.said(&own, &target)))?;
        for host in 1..=HOSTS {
            wait_for(&format!("{story}: h{host}'s history tells it"), || {
                (!ends_in(&self.w.history(host), &name).is_empty()).then_some(())
            });
        }
        // What comes twice comes with the next heartbeats.
        self.w.all_alive();
        self.wait(&mut own, |_| true);
        self.is_told_once(&own, &target, of).map_err(|what| format!("{story}: {what}"))
    }

    /// What was told of a process, by whom.
    fn said(&self, more: &[Application], target: &str) -> String {
        let of_it = |told: &&Told| matches!(told, Told::Runs(name) | Told::Failed(name, ..) | Told::Confirmed(name, ..) if name == target);
        let said = |app: &Application| {
            let again = app.reconnected_ns;
            format!("\nh{} (connected anew at {again}): {:?}", app.host, app.told.iter().filter(of_it).collect::<Vec<_>>())
        };
        self.all.iter().chain(more).map(said).collect()
    }

    /// By every history, and to every application.
    fn is_told_once(&self, more: &[Application], target: &str, of: End) -> Result<(), String> {
        let (process, _) = target.split_once('@').unwrap();
        for host in 1..=HOSTS {
            let told = ends_in(&self.w.history(host), process);
            if told != [of.told()] {
                return Err(format!("h{host}'s history says {told:?}"));
            }
        }
        let is_right = |app: &Application| app.ends(target) == [of.told()] && app.is_consistent(target);
        if self.all.iter().chain(more).all(is_right) {
            return Ok(());
        }
        Err(format!("applications were told:{}", self.said(more, target)))
    }
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().unwrap_or_else(|e| panic!("{variable}: {e}")))
}

#[test]
fn each_end_is_told_once_by_its_cause_whatever_gap_of_an_agent_it_falls_into() {
    let (trials, first) = (number("FIDE_GAPS", 12), number("FIDE_SEED", 1));
    let old = std::env::var("FIDE_OLD_FIDED").ok();
    let next = AtomicU64::new(first);
    let work = || {
        let Some(mut lab) = Lab::up(old.clone()) else { return };
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + trials {
                break;
            }
            lab.trial(seed).unwrap_or_else(|what| panic!("{what}"));
        }
        // Agents before this version told of some hosts by number.
        for host in (1..=HOSTS).filter(|_| lab.old.is_none()) {
            let nameless: Vec<_> = lab.w.history(host).into_iter().filter(|e| !e.node.starts_with('h')).collect();
            assert!(nameless.is_empty(), "h{host}: {nameless:?}");
        }
        for (target, of) in &lab.trials {
            lab.is_told_once(&[], target, *of).unwrap_or_else(|what| panic!("{target}, at the end: {what}"));
        }
        println!("{} ends told once on each of {HOSTS} hosts, and to each application", lab.trials.len());
    };
    std::thread::scope(|scope| {
        let labs: Vec<_> = (0..LABS.min(trials)).map(|_| scope.spawn(work)).collect();
        for lab in labs {
            if let Err(what) = lab.join() {
                // The others end with this.
                next.store(u64::MAX / 2, Ordering::Relaxed);
                std::panic::resume_unwind(what);
            }
        }
    });
}
