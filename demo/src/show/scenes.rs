//! The scenes.

use super::cgroup::MemoryCgroup;
use super::redis::Redis;
use super::{Line, OBSERVERS, Scene, Stage, TCP_PATIENCE, Tcp, words};
use crate::crash::{Steps, WATCHED, promptly, wait_until_monitored};
use crate::observer::{Report, Upcall};
use crate::stats::human_ns;
use crate::sys;
use crate::victim::Victim;
use anyhow::{Context as _, Result};
use fide_lab::Cut;
use fide_wire::verdict::{Cause, Grade};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

/// In the order of the play.
pub(super) const ALL: [fn(&mut Stage<'_>) -> Result<Scene>; 7] =
    [kill, segfault, out_of_memory, one_cable, agent_killed, polite, silent_host];

/// Redis's name in the cluster.
const NAME: &str = "redis";
const PORT: u16 = 6379;
/// A core dump is cut off here.
const CORE_BYTES: u64 = 256 << 20;
/// Room in the cgroup beside what redis holds before it is overfilled.
const SLACK: u64 = 96 << 20;
/// What is enough for scenes in which redis does not crash.
const LITTLE: u64 = 16 << 20;
/// A false verdict would come within this time.
const WATCHFUL: Duration = Duration::from_millis(2_500);

/// What one observer reported in a scene.
#[derive(Default, Debug)]
struct Heard {
    failure: Option<Upcall>,
    confirmed: Option<Upcall>,
    tcp_ns: Option<u64>,
    host: Vec<Upcall>,
    monitored: Vec<Upcall>,
}

impl Heard {
    fn host(&self, cause: Cause) -> Option<&Upcall> {
        self.host.iter().find(|u| u.cause == cause)
    }
}

impl Stage<'_> {
    /// A redis of its own, watched, with a connection from every observer.
    fn redis(&mut self, bytes: u64, prepare: impl FnOnce(&mut Command)) -> Result<(Redis, u32, u64)> {
        self.ui.progress(format!("redis-server takes {} MiB of memory", bytes >> 20));
        let mut redis = Redis::start(&self.rig, WATCHED, PORT, prepare)?;
        let resident = redis.fill(bytes)?;
        let app = self.observe(redis.pid(), redis.address)?;
        Ok((redis, app, resident))
    }

    fn observe(&mut self, pid: u32, address: SocketAddr) -> Result<u32> {
        self.connect(address)?;
        let app = self.rig.watch(WATCHED, NAME, pid)?;
        wait_until_monitored(&mut self.observers, &OBSERVERS, app)?;
        self.settle();
        Ok(app)
    }

    fn connect(&mut self, address: SocketAddr) -> Result<()> {
        self.serial += 1;
        for index in OBSERVERS {
            self.observers.connect(index, self.serial, address)?;
        }
        Ok(())
    }

    /// Lets what was begun come to an end, and forgets what was reported of it.
    fn settle(&mut self) {
        std::thread::sleep(Duration::from_millis(50));
        self.observers.drain();
    }

    /// Collects until `enough`, at most until `deadline`.
    fn hear(&mut self, app: u32, deadline: Instant, heard: &mut [Heard; 2], enough: impl Fn(&Heard) -> bool) {
        while !heard.iter().all(&enough) && self.ui.check().is_ok() {
            let step = deadline.min(Instant::now() + Duration::from_millis(200));
            let Some((index, report)) = self.observers.next(step) else {
                if Instant::now() >= deadline {
                    return;
                }
                continue;
            };
            let Some(heard) = heard.get_mut(index) else { continue };
            match report {
                Report::Failure(u) if u.app == app => heard.failure = Some(u),
                Report::Confirmed(u) if u.app == app => heard.confirmed = Some(u),
                Report::TcpEnd { tag, at_ns, .. } if tag == self.serial => heard.tcp_ns = Some(at_ns),
                Report::Host(u) => heard.host.push(u),
                Report::Monitored(u) => heard.monitored.push(u),
                _ => {}
            }
        }
    }

    /// A crash of redis, from the event on.
    fn crash(&mut self, scene: &mut Scene, app: u32, event_ns: u64, signal: i32) -> Result<[Heard; 2]> {
        let mut heard = <[Heard; 2]>::default();
        let deadline = Instant::now() + TCP_PATIENCE;
        self.hear(app, deadline, &mut heard, |h| h.failure.is_some() && h.tcp_ns.is_some() && h.confirmed.is_some());
        self.ui.check()?;
        for (index, heard) in heard.iter().enumerate() {
            let host = self.observers.host(index);
            let tcp = tcp(heard.tcp_ns, event_ns);
            let Some(failure) = &heard.failure else {
                scene.lines.push(nothing(host, tcp));
                scene.must(format!("h{host} is told of the crash"), false);
                continue;
            };
            scene.lines.push(line(host, failure, event_ns, tcp));
            let cause = matches!(failure.cause, Cause::Doomed | Cause::Killed) && failure.code == signal;
            scene.must(format!("h{host} is told the cause, signal {signal}"), cause);
            scene.must(format!("h{host} is told that it is certain"), failure.grade == Grade::Certain);
            let sooner = heard.tcp_ns.is_none_or(|tcp| failure.at_ns < tcp);
            scene.must(format!("h{host} learns of it before its TCP connection does"), sooner);
            let ended = heard.confirmed.as_ref().is_some_and(|c| c.cause == Cause::Killed && c.code == signal)
                || failure.cause == Cause::Killed;
            scene.must(format!("the end itself is confirmed to h{host}"), ended);
        }
        let confirmed = heard.iter().filter_map(|h| h.confirmed.as_ref()).map(|c| c.event_ns).min();
        if let Some(at) = confirmed {
            scene.note(format!(
                "the kernel itself was rid of the process {} after the event",
                human_ns(at.saturating_sub(event_ns))
            ));
        }
        Ok(heard)
    }

    /// What must not be there.
    fn no_failure(&self, scene: &mut Scene, heard: &[Heard; 2]) {
        for (index, heard) in heard.iter().enumerate() {
            let host = self.observers.host(index);
            scene.must(format!("no crash of redis is reported to h{host}"), heard.failure.is_none());
            scene.must(format!("no crash of h1 is reported to h{host}"), heard.host(Cause::SilentHost).is_none());
        }
    }

    /// Waits until h1 is seen well by everybody again.
    fn recover(&mut self) -> Result<()> {
        self.rig.wait_until_all_see_all(self.ui)?;
        self.settle();
        Ok(())
    }

    /// When the last heartbeat of h1 reached this observer's agent, by what its verdict rests on; on one path or on any.
    fn last_heartbeat(&mut self, index: usize, verdict: &Upcall, path: Option<usize>) -> Result<u64> {
        let id = verdict.id.context("a verdict without an id")?;
        let event = self.rig.explain(self.observers.host(index), id)?;
        let paths = event.evidence.map(|e| e.paths).unwrap_or_default();
        let wanted = paths.iter().enumerate().filter(|(i, _)| path.is_none_or(|p| p == *i));
        let last = wanted.map(|(_, p)| p.last_arrival_ns).max().unwrap_or(0);
        anyhow::ensure!(last != 0, "verdict {id} rests on no arrival");
        Ok(last)
    }
}

fn tcp(at_ns: Option<u64>, event_ns: u64) -> Tcp {
    match at_ns {
        Some(at) => Tcp::Closed { after_ns: at.saturating_sub(event_ns) },
        None => Tcp::Nothing { waited_ns: TCP_PATIENCE.as_nanos() as u64 },
    }
}

fn line(host: u16, upcall: &Upcall, event_ns: u64, tcp: Tcp) -> Line {
    Line {
        observer: format!("h{host}"),
        what: words(upcall),
        cause: Some(upcall.cause),
        grade: Some(upcall.grade),
        after_ns: Some(upcall.at_ns.saturating_sub(event_ns)),
        steps: if upcall.grade == Grade::Certain { Steps::of(event_ns, upcall) } else { None },
        tcp,
    }
}

fn nothing(host: u16, tcp: Tcp) -> Line {
    let what = "nothing".to_string();
    Line { observer: format!("h{host}"), what, cause: None, grade: None, after_ns: None, steps: None, tcp }
}

// ---- the scenes ----------------------------------------------------------------------------------------------------------------

fn kill(stage: &mut Stage<'_>) -> Result<Scene> {
    let (mut redis, app, resident) = stage.redis(stage.memory, |_| {})?;
    let mut scene = Scene::new(
        &format!("redis-server on h1, {} MiB resident, is killed: kill -9", resident >> 20),
        "From the moment SIGKILL is generated nothing can save it; TCP hears of it when its memory has been given back.",
        "just before kill(2)",
    );
    stage.ui.progress("kill -9");
    let event_ns = promptly(|| sys::kill(redis.pid(), libc::SIGKILL))?;
    stage.crash(&mut scene, app, event_ns, libc::SIGKILL)?;
    redis.reap()?;
    Ok(scene)
}

fn segfault(stage: &mut Stage<'_>) -> Result<Scene> {
    let (mut redis, app, resident) = stage.redis(stage.memory, |command| sys::limit_core(command, CORE_BYTES))?;
    let mut scene = Scene::new(
        &format!("redis-server on h1, {} MiB resident, has a bug: DEBUG SEGFAULT", resident >> 20),
        "The fatal signal is reported when it is delivered, before the kernel begins to write the core dump.",
        "just before the command was sent to redis",
    );
    stage.ui.progress("DEBUG SEGFAULT");
    let event_ns = promptly(|| redis.send("DEBUG SEGFAULT"))?;
    stage.crash(&mut scene, app, event_ns, libc::SIGSEGV)?;
    redis.reap()?;
    scene.note(match redis.core_bytes() {
        Some(bytes) => format!("meanwhile a core dump of {} MiB was written (limited to {} MiB)", bytes >> 20, CORE_BYTES >> 20),
        None => "this machine sends core dumps elsewhere (its core_pattern); none was left in redis's directory".into(),
    });
    Ok(scene)
}

fn out_of_memory(stage: &mut Stage<'_>) -> Result<Scene> {
    let limit = stage.memory + stage.memory / 16 + SLACK;
    let cgroup = MemoryCgroup::new(limit)?;
    let procs = cgroup.procs()?;
    let (mut redis, app, resident) = stage.redis(stage.memory, |command| sys::join_cgroup(command, procs))?;
    let mut scene = Scene::new(
        &format!("redis-server on h1, {} MiB resident, outgrows its cgroup of {} MiB", resident >> 20, limit >> 20),
        "The kernel's out-of-memory killer chooses it; its choice is final long before the memory is free.",
        "the kernel's decision, as its hook stamped it (nobody else knows when it was taken)",
    );
    stage.ui.progress("running out of memory");
    redis.overfill(limit)?;
    let mut heard = <[Heard; 2]>::default();
    stage.hear(app, Instant::now() + Duration::from_secs(20), &mut heard, |h| h.failure.is_some());
    let event_ns = heard.iter().filter_map(|h| h.failure.as_ref()).map(|u| u.event_ns).min();
    let mut rest = stage.crash(&mut Scene::new("", "", ""), app, event_ns.unwrap_or_default(), libc::SIGKILL)?;
    for (heard, rest) in heard.iter_mut().zip(&mut rest) {
        heard.confirmed = heard.confirmed.take().or(rest.confirmed.take());
        heard.tcp_ns = heard.tcp_ns.or(rest.tcp_ns);
    }
    for (index, heard) in heard.iter().enumerate() {
        let host = stage.observers.host(index);
        let event_ns = event_ns.unwrap_or_default();
        let tcp = tcp(heard.tcp_ns, event_ns);
        let Some(failure) = &heard.failure else {
            scene.lines.push(nothing(host, tcp));
            scene.must(format!("h{host} is told of the crash"), false);
            continue;
        };
        scene.lines.push(line(host, failure, event_ns, tcp));
        let cause = matches!(failure.cause, Cause::Doomed | Cause::Killed) && failure.code == libc::SIGKILL;
        scene.must(format!("h{host} is told the cause, SIGKILL"), cause);
        scene.must(format!("h{host} is told that it is certain"), failure.grade == Grade::Certain);
        scene
            .must(format!("h{host} learns of it before its TCP connection does"), heard.tcp_ns.is_none_or(|t| failure.at_ns < t));
    }
    // Should the kernel have spared it.
    drop(redis);
    Ok(scene)
}

fn one_cable(stage: &mut Stage<'_>) -> Result<Scene> {
    let (_redis, app, _) = stage.redis(LITTLE, |_| {})?;
    let mut scene = Scene::new(
        "one of h1's two cables is cut, the one its TCP connections use",
        "Heartbeats go on on the other network: a network fault, and nobody died.",
        "the last heartbeat that came through the cable (at most one interval before the cut)",
    );
    stage.ui.progress("cutting one cable");
    stage.rig.lab().cut(WATCHED, 0, Cut::Silent)?;
    let mut heard = <[Heard; 2]>::default();
    let deadline = Instant::now() + WATCHFUL;
    stage.hear(app, deadline, &mut heard, |h| h.host(Cause::PathDown).is_some());
    // And then nothing more.
    stage.hear(app, deadline, &mut heard, |_| false);
    for index in OBSERVERS {
        let host = stage.observers.host(index);
        let still = if heard[index].tcp_ns.is_none() { Tcp::StillOpen } else { tcp(heard[index].tcp_ns, 0) };
        let found = heard[index].host(Cause::PathDown).cloned();
        scene.must(format!("h{host} is told of a path fault"), found.is_some());
        match found {
            Some(u) => {
                let from = stage.last_heartbeat(index, &u, Some(0))?;
                scene.lines.push(line(host, &u, from, still));
                scene.must(format!("h{host} names the path that was cut"), u.code == 0);
            }
            None => scene.lines.push(nothing(host, still)),
        }
    }
    stage.no_failure(&mut scene, &heard);
    scene.note(format!("no crash was reported in the {:.1} s that followed", WATCHFUL.as_secs_f64()));
    stage.rig.lab().heal(WATCHED, 0)?;
    let mut mended = <[Heard; 2]>::default();
    stage.hear(app, Instant::now() + WATCHFUL, &mut mended, |h| h.host(Cause::PathUp).is_some());
    scene.must("after mending it both are told that the path is back", mended.iter().all(|h| h.host(Cause::PathUp).is_some()));
    stage.no_failure(&mut scene, &mended);
    stage.recover()?;
    Ok(scene)
}

fn agent_killed(stage: &mut Stage<'_>) -> Result<Scene> {
    let (mut redis, app, _) = stage.redis(LITTLE, |_| {})?;
    let mut scene = Scene::new(
        "the agent of h1 is killed: kill -9 of fided itself",
        "Nothing is known of redis any more, and nothing is claimed: an agent lost is not a host lost.",
        "just before kill(2)",
    );
    stage.ui.progress("killing the agent");
    let event_ns = {
        let rig = &mut stage.rig;
        promptly(|| rig.kill_agent(WATCHED))?
    };
    let mut heard = <[Heard; 2]>::default();
    let deadline = Instant::now() + TCP_PATIENCE;
    stage.hear(app, deadline, &mut heard, |h| h.host(Cause::AgentLost).is_some());
    stage.hear(app, Instant::now() + WATCHFUL, &mut heard, |_| false);
    for (index, heard) in heard.iter().enumerate() {
        let host = stage.observers.host(index);
        let still = if heard.tcp_ns.is_none() { Tcp::StillOpen } else { tcp(heard.tcp_ns, event_ns) };
        scene.must(format!("h{host}'s connection to redis goes on"), heard.tcp_ns.is_none());
        match heard.host(Cause::AgentLost) {
            Some(u) => scene.lines.push(line(host, u, event_ns, still)),
            None => scene.lines.push(nothing(host, still)),
        }
        scene.must(format!("h{host} is told that the agent is lost"), heard.host(Cause::AgentLost).is_some());
    }
    stage.no_failure(&mut scene, &heard);
    let before = heard.iter().flat_map(|h| &h.host).filter(|u| u.cause == Cause::AgentLost).map(|u| u.incarnation).max();

    stage.ui.progress("starting the agent again");
    stage.rig.start_agent(WATCHED)?;
    let mut returned = <[Heard; 2]>::default();
    stage.hear(app, Instant::now() + Duration::from_secs(10), &mut returned, |h| h.host(Cause::Returned).is_some());
    let after = returned.iter().filter_map(|h| h.host(Cause::Returned)).map(|u| u.incarnation).min();
    scene.must("the agent returns as a new incarnation", matches!((before, after), (Some(b), Some(a)) if a > b));
    scene.must("both are told so", returned.iter().all(|h| h.host(Cause::Returned).is_some()));
    stage.no_failure(&mut scene, &returned);
    scene.note("started again, it returned under a new incarnation; redis had been serving all the time");
    stage.recover()?;
    // Proof that the new incarnation is as good as the old one: it took over the watch, of which nobody is told anew, and reports the end.
    promptly(|| sys::kill(redis.pid(), libc::SIGKILL))?;
    let mut ended = <[Heard; 2]>::default();
    stage.hear(app, Instant::now() + TCP_PATIENCE, &mut ended, |h| h.failure.is_some());
    scene.must(
        "the new incarnation still watches redis: both are told when it is killed",
        ended.iter().all(|h| h.failure.is_some()),
    );
    redis.reap()?;
    Ok(scene)
}

fn polite(stage: &mut Stage<'_>) -> Result<Scene> {
    let mut worker = Victim::start(&stage.rig, WATCHED, 7_000, 0, Some("worker"))?;
    wait_until_monitored(&mut stage.observers, &OBSERVERS, worker.app)?;
    stage.connect(worker.address)?;
    stage.settle();
    let mut scene = Scene::new(
        "a process on h1 that joined leaves politely: quit",
        "Nobody has to wait for a timeout, and nobody takes it for a crash.",
        "just before the process called quit",
    );
    stage.ui.progress("leaving politely");
    let event_ns = worker.quit()?;
    let mut heard = <[Heard; 2]>::default();
    stage.hear(worker.app, Instant::now() + TCP_PATIENCE, &mut heard, |h| h.failure.is_some() && h.tcp_ns.is_some());
    for (index, heard) in heard.iter().enumerate() {
        let host = stage.observers.host(index);
        let tcp = tcp(heard.tcp_ns, event_ns);
        match &heard.failure {
            Some(u) => scene.lines.push(line(host, u, event_ns, tcp)),
            None => scene.lines.push(nothing(host, tcp)),
        }
        let left = heard.failure.as_ref().is_some_and(|u| u.cause == Cause::Left && u.grade == Grade::Certain);
        scene.must(format!("h{host} is told that it left, for certain"), left);
    }
    scene.note("a TCP connection ends in the same way whether its process crashed or left");
    worker.reap()?;
    Ok(scene)
}

fn silent_host(stage: &mut Stage<'_>) -> Result<Scene> {
    let (redis, app, _) = stage.redis(LITTLE, |_| {})?;
    let mut scene = Scene::new(
        "h1 falls silent: both cables are cut at once",
        "No kernel can tell any more, so silence is judged: against the timeout, on both networks, after asking once more.",
        "the last heartbeat that came through either cable (at most one interval before the cut)",
    );
    stage.ui.progress("cutting both cables");
    let lab = stage.rig.lab();
    std::thread::scope(|scope| {
        let cuts = [0, 1].map(|net| scope.spawn(move || lab.cut(WATCHED, net, Cut::Silent)));
        cuts.into_iter().try_for_each(|cut| cut.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    let mut heard = <[Heard; 2]>::default();
    let deadline = Instant::now() + TCP_PATIENCE;
    stage.hear(app, deadline, &mut heard, |h| h.host(Cause::SilentHost).is_some() && h.failure.is_some() && h.tcp_ns.is_some());
    stage.ui.check()?;
    for index in OBSERVERS {
        let host = stage.observers.host(index);
        let verdict = heard[index].host(Cause::SilentHost).cloned();
        let tcp = tcp(heard[index].tcp_ns, 0);
        match &verdict {
            Some(u) => {
                let from = stage.last_heartbeat(index, u, None)?;
                scene.lines.push(line(host, u, from, tcp));
                scene.must(format!("h{host} says that this is inferred, not seen"), u.grade == Grade::Inferred);
            }
            None => scene.lines.push(nothing(host, tcp)),
        }
        scene.must(format!("h{host} is told that h1 fell silent"), verdict.is_some());
        let ended = heard[index].failure.as_ref().is_some_and(|u| u.cause == Cause::SilentHost && u.grade == Grade::Inferred);
        scene.must(format!("h{host} is told of redis, with its host, as inferred"), ended);
    }
    for net in [0, 1] {
        stage.rig.lab().heal(WATCHED, net)?;
    }
    let mut returned = <[Heard; 2]>::default();
    stage.hear(app, Instant::now() + Duration::from_secs(10), &mut returned, |h| h.host(Cause::Returned).is_some());
    scene.must(
        "when the cables are back, h1 comes back as a new incarnation",
        returned.iter().all(|h| h.host(Cause::Returned).is_some()),
    );
    scene.note("what was judged is not taken back: with its cables mended, h1 returned as a new incarnation");
    drop(redis);
    stage.recover()?;
    Ok(scene)
}
