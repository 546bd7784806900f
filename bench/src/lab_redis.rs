//! `fide lab redis`: Redis servers of a group on a lab's hosts, a client that writes without a break, and leading servers that are killed. It shows how long the
//! client could not write, which errors it met, and what each server holds; and it is a check: it fails if a write that was answered is lost or there twice.

use crate::Outcome;
use crate::redis::{Servers, find_module};
use crate::rig::{Rig, RigSpec, find_program};
use crate::stats::{Samples, human_ns, thousands};
use crate::sys;
use crate::ui::{Paint, Ui};
use anyhow::{Context as _, Result, bail, ensure};
use fide_lab::Lab;
use fide_wire::control::{GroupOrder, Request};
use redis::{Cmd, Parser, Value, cmd};
use serde_json::json;
use std::collections::{BTreeMap, HashSet};
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

const GROUP: &str = "orders";
const PORT: u16 = 6379;
/// The list that the client appends to.
const LIST: &str = "orders";
/// The client's host. The servers of hosts are killed, not the hosts.
const CLIENT: u16 = 2;
/// Between an answer and the next write.
const PAUSE: Duration = Duration::from_micros(500);
/// Between two attempts, where no server takes the write.
const AGAIN: Duration = Duration::from_micros(200);
/// What takes longer does not come.
const PATIENCE: Duration = Duration::from_secs(30);
/// Servers that follow apply what is decided a moment later.
const SAME_WITHIN: Duration = Duration::from_secs(5);

/// Arguments of `fide lab redis`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Needs root, iproute2 and redis-server. Ctrl-C ends it, and everything that it started; nothing stays.\n\
                        It fails if a write that was answered is lost, or there twice.")]
pub struct Args {
    /// Refused: the lab is one of its own, and goes with it. In place of the option of all commands of `fide lab`, so that help
    /// does not list it.
    #[arg(long, short = 'n', hide = true)]
    pub name: Option<String>,
    /// How many hosts, each with a server
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=9))]
    pub hosts: u16,
    /// How the group decides: huc or hsuc
    #[arg(long, default_value = "huc")]
    pub engine: String,
    /// Seconds until the leading server is killed again
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub every: u64,
    /// End after so many kills; 0: go on until Ctrl-C
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub kills: u32,
    /// The module; by default beside this program, or where `make install` puts it
    #[arg(long, value_name = "FILE")]
    pub module: Option<PathBuf>,
}

// ---- a connection -------------------------------------------------------------------------------------------------------

struct Connection {
    stream: TcpStream,
    parser: Parser,
}

/// Why a command has no result.
enum Failed {
    /// The server refused it: it was not executed.
    Refused(String),
    /// The connection ended; it was executed, or not.
    Lost(String),
}

impl Connection {
    fn open(lab: &Lab, from: u16, to: SocketAddr, patience: Duration) -> io::Result<Self> {
        let connected = lab.in_host(from, || TcpStream::connect_timeout(&to, Duration::from_millis(500)));
        let stream = connected.map_err(io::Error::other)??;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        Ok(Self { stream, parser: Parser::new() })
    }

    fn ask(&mut self, command: &Cmd) -> Result<Value, Failed> {
        let sent = self.stream.write_all(&command.get_packed_command());
        sent.map_err(|e| Failed::Lost(e.to_string()))?;
        match self.parser.parse_value(&mut self.stream) {
            Ok(Value::ServerError(e)) => {
                let (code, text) = (e.code(), e.details().unwrap_or_default());
                Err(Failed::Refused(format!("{code} {text}").trim().to_owned()))
            }
            Ok(value) => Ok(value),
            Err(e) => Err(Failed::Lost(e.to_string())),
        }
    }
}

fn ask(lab: &Lab, host: u16, command: &Cmd) -> Result<Value> {
    let mut connection = Connection::open(lab, host, (Ipv4Addr::LOCALHOST, PORT).into(), PATIENCE)?;
    match connection.ask(command) {
        Ok(value) => Ok(value),
        Err(Failed::Refused(why) | Failed::Lost(why)) => bail!("the server of h{host}: {why}"),
    }
}

fn text(value: &Value) -> String {
    redis::from_redis_value_ref(value).unwrap_or_default()
}

// ---- the client ---------------------------------------------------------------------------------------------------------

/// What the client has met.
#[derive(Default)]
struct Tally {
    /// The number that is written next.
    next: u64,
    /// Answered, and not yet looked for in the list.
    answered: Vec<u64>,
    /// Sent, and the connection ended before an answer.
    unknown: HashSet<u64>,
    /// When the writes that were answered lately were begun and answered, ns; only the last one, if nobody wants to know.
    recent: Vec<(u64, u64)>,
    is_recorded: bool,
    /// Errors by their text.
    errors: BTreeMap<String, u64>,
    answers: u64,
    host: u16,
}

fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Appends numbers to a list by whatever server takes them, one after the other, until it is over.
fn write(lab: &Lab, hosts: u16, tally: &Mutex<Tally>, is_over: &AtomicBool) {
    let address = |host: u16| SocketAddr::from((lab.ipv4(host, 0), PORT));
    let mut host = 1;
    let mut connection = None;
    while !is_over.load(Ordering::Relaxed) {
        if connection.is_none() {
            connection = Connection::open(lab, CLIENT, address(host), PATIENCE).ok();
        }
        let Some(server) = &mut connection else {
            *lock(tally).errors.entry("no connection".into()).or_default() += 1;
            host = host % hosts + 1;
            std::thread::sleep(AGAIN);
            continue;
        };
        // Held from the write to its answer, so that who counts meets none under way.
        let mut now = lock(tally);
        let number = now.next;
        let begun_ns = sys::now_ns();
        let failed = match server.ask(cmd("RPUSH").arg(LIST).arg(number)) {
            Ok(_) => {
                if !now.is_recorded {
                    now.recent.clear();
                }
                now.recent.push((begun_ns, sys::now_ns()));
                now.answered.push(number);
                now.answers += 1;
                now.next += 1;
                now.host = host;
                drop(now);
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(failed) => failed,
        };
        let what = match failed {
            Failed::Refused(why) => why.split([' ', ':']).next().unwrap_or_default().to_owned(),
            Failed::Lost(_) => {
                now.unknown.insert(number);
                now.next += 1;
                "connection lost".into()
            }
        };
        *now.errors.entry(what).or_default() += 1;
        drop(now);
        connection = None;
        host = host % hosts + 1;
        std::thread::sleep(AGAIN);
    }
}

// ---- what is there ------------------------------------------------------------------------------------------------------

/// Writes that were looked for in the list.
#[derive(Default)]
struct Checked {
    /// Elements of the list.
    len: u64,
    lost: u64,
    /// There twice, out of order, or never written.
    wrong: u64,
    /// Sent without an answer, and there all the same.
    unanswered_there: u64,
}

impl Checked {
    /// Looks at what was appended since.
    fn check(&mut self, appended: &[u64], tally: &mut Tally) {
        let answered: HashSet<u64> = tally.answered.drain(..).collect();
        let mut before = None;
        let mut there = HashSet::new();
        for number in appended {
            let is_new = there.insert(*number) && before < Some(*number);
            before = Some(*number);
            match (answered.contains(number), tally.unknown.contains(number)) {
                (true, _) if is_new => {}
                (_, true) if is_new => self.unanswered_there += 1,
                _ => self.wrong += 1,
            }
        }
        self.lost += answered.iter().filter(|number| !there.contains(number)).count() as u64;
        self.len += appended.len() as u64;
    }
}

/// What a server is and holds.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
struct Holds {
    host: String,
    /// `leads`, `follows`, `takes the data`, `waits`, `is down`.
    role: String,
    digest: Option<String>,
}

fn holds(rig: &Rig, host: u16) -> Holds {
    let mut of = Holds { host: format!("h{host}"), role: "is down".into(), digest: None };
    let Ok(status) = ask(rig.lab(), host, cmd("FIDE").arg("STATUS")) else { return of };
    let fields: BTreeMap<String, Value> = redis::from_redis_value_ref(&status).unwrap_or_default();
    let role = fields.get("role").map(text).unwrap_or_default();
    let is_whole = fields.get("in-sync").map(text).is_some_and(|of| of == "1");
    of.role = match role.as_str() {
        "this server leads" => "leads".into(),
        _ if role.starts_with("this server follows") && is_whole => "follows".into(),
        _ if role.starts_with("this server follows") => "takes the data".into(),
        _ => "waits".into(),
    };
    of.digest = ask(rig.lab(), host, cmd("DEBUG").arg("DIGEST")).ok().map(|digest| text(&digest));
    of
}

/// All servers that run hold the same, a moment after nothing was written any more.
fn all_hold(rig: &Rig, hosts: u16) -> (Vec<Holds>, bool) {
    let until = Instant::now() + SAME_WITHIN;
    loop {
        let all: Vec<Holds> = (1..=hosts).map(|host| holds(rig, host)).collect();
        let digests: HashSet<&String> = all.iter().filter_map(|of| of.digest.as_ref()).collect();
        let is_same = digests.len() == 1 && all.iter().all(|of| of.digest.is_some() || of.role == "is down");
        if is_same || Instant::now() > until {
            return (all, is_same);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

// ---- the show -----------------------------------------------------------------------------------------------------------

/// Everything that runs.
struct Show<'a> {
    rig: &'a Rig,
    args: &'a Args,
    ui: &'a Ui,
    module: &'a Path,
    servers: Servers,
    tally: &'a Mutex<Tally>,
    checked: Checked,
    pauses: Samples,
    began: Instant,
    kills: u32,
    differed: u32,
}

/// Why the wait for the next kill ended.
#[derive(PartialEq, Eq)]
enum Next {
    Kill,
    End,
}

/// Runs it, until Ctrl-C or the last kill.
///
/// # Errors
/// When something keeps it from being shown.
pub fn run(args: &Args, ui: &Ui) -> Outcome {
    sys::require_root("fide lab redis")?;
    ensure!(
        find_program("redis-server").is_some(),
        "there is no redis-server, of which this lab starts one on each host: apt-get install redis-server"
    );
    ensure!(["huc", "hsuc", "lowi"].contains(&args.engine.as_str()), "no engine {}: it is huc, hsuc or lowi", args.engine);
    let module = find_module(args.module.as_ref())?;
    let mut rig = Rig::up(RigSpec { hosts: args.hosts, ..RigSpec::default() }, ui)?;
    let hosts = (1..=args.hosts).map(|host| format!("h{host}")).collect();
    let (engine, policy) = (args.engine.clone(), "trust-contract".into());
    rig.ask(
        1,
        &Request::Group { order: GroupOrder::Create { name: GROUP.into(), engine, policy, hosts, durable: false, fresh: false } },
    )?;
    let (tally, is_over) = (Mutex::new(Tally { next: 1, ..Tally::default() }), AtomicBool::new(false));
    let mut show = Show {
        rig: &rig,
        args,
        ui,
        module: &module,
        servers: Servers::default(),
        tally: &tally,
        checked: Checked::default(),
        pauses: Samples::default(),
        began: Instant::now(),
        kills: 0,
        differed: 0,
    };
    for host in 1..=args.hosts {
        ui.progress(format!("starting redis-server on h{host}"));
        show.start(host)?;
    }
    show.introduce();
    let lab = rig.lab();
    std::thread::scope(|scope| {
        scope.spawn(|| write(lab, args.hosts, &tally, &is_over));
        let shown = show.go_on();
        is_over.store(true, Ordering::Relaxed);
        shown
    })?;
    show.end()
}

impl Show<'_> {
    /// Starts a server, and returns when it has all that is decided.
    fn start(&mut self, host: u16) -> Result<()> {
        let lab = self.rig.lab();
        let dir = lab.host_dir(host).join("redis");
        std::fs::create_dir_all(&dir)?;
        let log = std::fs::OpenOptions::new().create(true).append(true).open(dir.join("log"))?;
        let mut command: Command = lab.command(host, "redis-server")?;
        command.current_dir(&dir).args([
            "--port",
            &PORT.to_string(),
            "--bind",
            "0.0.0.0",
            "--protected-mode",
            "no",
            "--save",
            "",
        ]);
        command.args(["--enable-debug-command", "local", "--loadmodule"]).arg(self.module);
        command.args(["group", GROUP, "socket"]).arg(self.rig.socket(host));
        command.args(["address", &SocketAddr::from((lab.ipv4(host, 0), PORT)).to_string()]);
        // In a process group of its own: the terminal's Ctrl-C is not meant for it.
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let child = command.spawn().context("cannot start redis-server")?;
        self.servers.0.push((host, PORT, child));
        let what = format!("the server of h{host}, with all that is decided");
        self.ui.until(&what, || Ok(["leads", "follows"].contains(&holds(self.rig, host).role.as_str())))
    }

    fn introduce(&self) {
        let (n, addresses) = (self.args.hosts, (1..=self.args.hosts).map(|host| self.rig.lab().ipv4(host, 0).to_string()));
        self.ui.say(format!(
            "{n} hosts, each with an agent (fided) and redis-server with the module fide.so; group {GROUP} by {}: {}",
            self.args.engine,
            addresses.collect::<Vec<_>>().join(", ")
        ));
        self.ui.say(format!("A client on h{CLIENT} appends numbers to a list, one after the other, by whichever server leads."));
        let every = self.args.every;
        self.ui.say(if is_watched() {
            format!("The leading server is killed (kill -9) every {every} s, or when you press Enter. Ctrl-C ends everything.\n")
        } else {
            format!("The leading server is killed (kill -9) every {every} s.\n")
        });
    }

    fn go_on(&mut self) -> Result<()> {
        let keys = keys();
        self.ui.until("the client's first answer", || Ok(lock(self.tally).answers > 0))?;
        while self.args.kills == 0 || self.kills < self.args.kills {
            if self.wait(&keys) == Next::End {
                return Ok(());
            }
            match self.kill() {
                Err(e) if e.is::<crate::ui::Interrupted>() => return Ok(()),
                other => other?,
            }
        }
        Ok(())
    }

    fn wait(&self, keys: &mpsc::Receiver<()>) -> Next {
        let until = Instant::now() + Duration::from_secs(self.args.every);
        while Instant::now() < until {
            if self.ui.check().is_err() {
                return Next::End;
            }
            let (answers, host) = {
                let tally = lock(self.tally);
                (tally.answers, tally.host)
            };
            self.ui.progress(format!(
                "h{host} leads · {} writes answered · {} leaders killed · {} lost",
                thousands(answers),
                self.kills,
                self.checked.lost
            ));
            match keys.recv_timeout(Duration::from_millis(100)) {
                Ok(()) => return Next::Kill,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
        Next::Kill
    }

    fn kill(&mut self) -> Result<()> {
        let mut leader = None;
        self.ui.until("a leading server", || {
            leader = (1..=self.args.hosts).find(|host| holds(self.rig, *host).role == "leads");
            Ok(leader.is_some())
        })?;
        let leader = leader.context("no server leads")?;
        let (answered_before, unknown_before, errors_before) = {
            let mut tally = lock(self.tally);
            tally.is_recorded = true;
            (tally.answers, tally.unknown.len(), tally.errors.values().sum::<u64>())
        };
        let at_s = self.began.elapsed().as_secs_f64();
        let killed_ns = self.servers.end(leader, PORT).context("the leading server is not known")?;
        let (mut before_ns, mut first_ns) = (killed_ns, killed_ns);
        self.ui.until("an answer to the client behind the crash", || {
            let tally = lock(self.tally);
            let Some(at) = tally.recent.iter().position(|(begun, _)| *begun >= killed_ns) else { return Ok(false) };
            first_ns = tally.recent[at].1;
            before_ns = at.checked_sub(1).map_or(killed_ns, |before| tally.recent[before].1);
            Ok(true)
        })?;
        lock(self.tally).is_recorded = false;
        self.kills += 1;
        let (after_ns, pause_ns) = (first_ns.saturating_sub(killed_ns), first_ns.saturating_sub(before_ns));
        self.pauses.push(pause_ns);
        // The client waits meanwhile: what is compared stands still.
        let mut tally = lock(self.tally);
        let next = tally.host;
        let appended = ask(self.rig.lab(), next, cmd("LRANGE").arg(LIST).arg(self.checked.len).arg(-1))?;
        let appended: Vec<u64> = redis::from_redis_value(appended).context("the list holds what nobody wrote")?;
        self.checked.check(&appended, &mut tally);
        let unanswered = tally.unknown.len() - unknown_before;
        let errors = tally.errors.values().sum::<u64>() - errors_before;
        let answers = tally.answers;
        let (all, is_same) = all_hold(self.rig, self.args.hosts);
        drop(tally);
        self.differed += u32::from(!is_same);
        let (lost, wrong) = (self.checked.lost, self.checked.wrong);
        if self.ui.json {
            self.ui.line(
                json!({"event": "killed", "at_s": round(at_s), "host": format!("h{leader}"), "leads": format!("h{next}"),
                    "pause_us": pause_ns / 1000, "after_kill_us": after_ns / 1000, "unanswered": unanswered, "errors": errors,
                    "answered": answers, "answered_since": answers - answered_before, "lost": lost, "wrong": wrong,
                    "same": is_same, "servers": all})
                .to_string(),
            );
        } else {
            let red = |text: String, is_bad| if is_bad { self.ui.paint(Paint::Red, &text) } else { text };
            let what = self.ui.paint(Paint::Bold, &format!("h{leader}'s server, which leads, is killed"));
            self.ui.line(format!("{at_s:7.1} s  {what}"));
            let pause = self.ui.paint(Paint::Green, &format!("could not write for {}", human_ns(pause_ns)));
            self.ui.line(format!(
                "           the client {pause}: h{next} leads; {} without an answer, {} on the way",
                count(unanswered as u64, "write"),
                count(errors, "error")
            ));
            let verdict = match (lost, wrong) {
                (0, 0) => "all there, each once, in order".to_owned(),
                _ => red(format!("{lost} LOST, {wrong} twice or out of order"), true),
            };
            self.ui.line(format!("           {} writes answered so far: {verdict}", thousands(answers)));
            self.ui.line(format!("           {}", red(self.in_words(&all), !is_same)));
        }
        self.come_back(leader)
    }

    /// The killed server starts again, with nothing.
    fn come_back(&mut self, host: u16) -> Result<()> {
        let began = Instant::now();
        self.start(host)?;
        let took = began.elapsed();
        let guard = lock(self.tally);
        let (all, is_same) = all_hold(self.rig, self.args.hosts);
        drop(guard);
        self.differed += u32::from(!is_same);
        if self.ui.json {
            let (at_s, host) = (round(self.began.elapsed().as_secs_f64()), format!("h{host}"));
            let event = json!({"event": "back", "at_s": at_s, "host": host, "after_us": took.as_micros() as u64, "same": is_same,
                "servers": all});
            self.ui.line(event.to_string());
        } else {
            let what = format!(
                "h{host}'s server starts again, with nothing, and has everything after {}",
                human_ns(took.as_nanos() as u64)
            );
            self.ui.line(format!("{:7.1} s  {what}", self.began.elapsed().as_secs_f64()));
            let words = self.in_words(&all);
            let words = if is_same { words } else { self.ui.paint(Paint::Red, &words) };
            self.ui.line(format!("           {words}\n"));
        }
        Ok(())
    }

    /// What each server holds, by its digest of all data.
    fn in_words(&self, all: &[Holds]) -> String {
        let held = |of: &Holds| match &of.digest {
            Some(digest) => format!("{} {}: data {}", of.host, of.role, &digest[..digest.len().min(8)]),
            None => format!("{} {}", of.host, of.role),
        };
        all.iter().map(held).collect::<Vec<_>>().join("   ")
    }

    fn end(mut self) -> Outcome {
        let answers = lock(self.tally).answers;
        let errors = lock(self.tally).errors.clone();
        let quantiles = self.pauses.quantiles();
        let (lost, wrong) = (self.checked.lost, self.checked.wrong);
        if self.ui.json {
            self.ui.line(
                json!({"event": "end", "kills": self.kills, "answered": answers, "lost": lost, "wrong": wrong,
                    "unanswered_there": self.checked.unanswered_there, "differed": self.differed, "errors": errors,
                    "pause_p50_us": quantiles.p50, "pause_max_us": quantiles.max})
                .to_string(),
            );
        } else if self.kills > 0 {
            let errors: Vec<String> = errors.iter().map(|(what, count)| format!("{count} × {what}")).collect();
            self.ui.line(format!(
                "{} killed, {} answered: {lost} lost, {wrong} twice or out of order.",
                count(self.kills.into(), "leader"),
                count(answers, "write")
            ));
            let [p50, max] = [quantiles.p50, quantiles.max].map(crate::stats::human_us);
            self.ui.line(format!(
                "The client could not write for {p50} (median; at most {max}). Its errors: {}.",
                errors.join(", ")
            ));
        }
        Ok(lost == 0 && wrong == 0 && self.differed == 0)
    }
}

fn count(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{} {what}s", thousands(n)) }
}

fn round(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

fn is_watched() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// One for each line that somebody enters at a terminal.
fn keys() -> mpsc::Receiver<()> {
    let (tell, keys) = mpsc::channel();
    if is_watched() {
        // It ends with the process.
        std::thread::spawn(move || io::stdin().lock().lines().map_while(Result::ok).try_for_each(|_| tell.send(())));
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(answered: &[u64], unknown: &[u64], list: &[u64]) -> (u64, u64, u64) {
        let mut tally = Tally { answered: answered.into(), unknown: unknown.iter().copied().collect(), ..Tally::default() };
        let mut of = Checked::default();
        of.check(list, &mut tally);
        (of.lost, of.wrong, of.unanswered_there)
    }

    #[test]
    fn what_is_lost_doubled_or_out_of_order_is_found() {
        assert_eq!(checked(&[1, 2, 4], &[3, 5], &[1, 2, 3, 4]), (0, 0, 1));
        assert_eq!(checked(&[1, 2, 4], &[3], &[1, 4]), (1, 0, 0), "an answered write is not there");
        assert_eq!(checked(&[1, 2], &[], &[1, 2, 2]), (0, 1, 0), "it is there twice");
        assert_eq!(checked(&[1, 2], &[], &[2, 1]), (0, 1, 0), "out of order");
        assert_eq!(checked(&[1], &[], &[1, 9]), (0, 1, 0), "nobody wrote it");
    }
}
