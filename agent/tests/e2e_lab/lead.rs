//! `fide lead`: one host runs COMMAND, the next one starts it when nothing of it is left, and never two do.

use crate::common::{Process, Setup, World, kill, until, wait_for};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const HOSTS: &str = "h1,h2,h3";

fn program() -> PathBuf {
    let program = std::env::current_exe().unwrap().parent().unwrap().with_file_name("fide");
    assert!(program.exists(), "build it first: cargo build --workspace");
    program
}

struct Leads {
    w: World,
    of: Vec<Option<Process>>,
    /// COMMAND, as a shell runs it.
    script: String,
}

/// One line for each start: the host, the term, the process.
const STARTS: &str = "echo \"$HOST $FIDE_TERM $$\" >> starts; ";

impl Leads {
    fn up(script: &str) -> Option<Self> {
        let w = Setup::hosts(3).up()?;
        w.all_alive();
        let mut of = Self { w, of: vec![None, None, None], script: script.into() };
        (1..=3).for_each(|host| of.start(host, &[]));
        Some(of)
    }

    fn command(&self, host: u16, words: &[&str]) -> Command {
        let dir = self.w.lab.host_dir(host);
        let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("lead.log")).unwrap();
        let mut command = self.w.lab.command(host, program().to_str().unwrap()).unwrap();
        // All hosts write into one file.
        command.current_dir(self.w.lab.host_dir(1)).env("HOST", format!("h{host}")).arg("--socket").arg(self.w.socket(host));
        command.arg("lead").args(words).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        command
    }

    fn start(&mut self, host: u16, more: &[&str]) {
        let run =
            [&["run", "job", "--hosts", HOSTS, "--stop-timeout", "2s"][..], more, &["--", "sh", "-c", &self.script]].concat();
        self.of[usize::from(host) - 1] = Some(Process::spawn(self.command(host, &run)));
    }

    fn say(&self, host: u16, words: &[&str]) -> String {
        let out = self.command(host, words).stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
        String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned()
    }

    /// Where it was started, in which term and as which process, in order.
    fn starts(&self) -> Vec<(String, u64, i32)> {
        let text = fs::read_to_string(self.w.lab.host_dir(1).join("starts")).unwrap_or_default();
        let line = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            Some((words.first()?.to_string(), words.get(1)?.parse().ok()?, words.get(2)?.parse().ok()?))
        };
        text.lines().filter_map(line).collect()
    }

    /// So many starts, and what the last one was.
    fn started(&self, times: usize) -> (String, u64, i32) {
        wait_for(&format!("it was started {times} times: {}", self.log(1)), || {
            let starts = self.starts();
            (starts.len() >= times).then(|| starts[times - 1].clone())
        })
    }

    fn log(&self, host: u16) -> String {
        fs::read_to_string(self.w.lab.host_dir(host).join("lead.log")).unwrap_or_default()
    }
}

impl Drop for Leads {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (1..=3).for_each(|host| eprintln!("---- fide lead of h{host}\n{}", self.log(host)));
        }
    }
}

/// Also of one whose parent has ended, and for whom nobody waits.
fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z') && !rest.starts_with('X'))
}

fn number(host: &str) -> u16 {
    host[1..].parse().unwrap()
}

#[test]
fn a_command_runs_on_one_host_and_on_the_next_one_when_it_has_ended() {
    // What it starts goes on without it, and ignores what asks it to end.
    let script = format!("{STARTS} (trap '' TERM; echo $BASHPID >> children; while :; do sleep 0.1; done) & exec sleep 1000");
    let Some(of) = Leads::up(&script) else { return };
    let (host, term, pid) = of.started(1);
    assert_eq!(term, 1);
    let began = Instant::now();
    kill(pid, libc::SIGKILL);
    let (next, term, other) = of.started(2);
    println!("the next one was started within {:?}", began.elapsed());
    assert!(next != host && term == 2 && !lives(pid) && lives(other), "{next} {term}");
    assert!(of.say(2, &["status", "job"]).contains(&format!("runs on {next}")), "{}", of.say(2, &["status", "job"]));
    // An operator moves it: it is asked to end, and its child is killed.
    let to = (1..=3).map(|host| format!("h{host}")).find(|host| *host != next).unwrap();
    assert_eq!(of.say(1, &["switch", "job", &to]), "");
    let (third, term, pid) = of.started(3);
    assert!(third == to && term == 3 && !lives(other));
    // A pause: nothing is started.
    assert_eq!(of.say(2, &["pause", "job", "--reason", "kernel"]), "");
    kill(pid, libc::SIGKILL);
    until("it runs nowhere", || of.say(1, &["status", "job"]).contains("runs nowhere"));
    assert!(of.say(1, &["status", "job"]).contains("paused until fide lead resume job (kernel)"));
    assert_eq!(of.starts().len(), 3);
    assert_eq!(of.say(2, &["resume", "job"]), "");
    of.started(4);
    assert_eq!(of.say(3, &["retire", "job"]), "");
    until("nothing of it is left", || of.starts().iter().all(|(.., pid)| !lives(*pid)));
}

#[test]
fn what_runs_goes_on_without_agents_and_ends_with_its_host_or_its_own_end() {
    let Some(mut of) = Leads::up(&format!("{STARTS} exec sleep 1000")) else { return };
    let (host, _, pid) = of.started(1);
    let host = number(&host);
    // Its agent is gone: it goes on, and nobody else starts one.
    of.w.kill_agent(host);
    // Sleep: longer than agents wait for one that is silent.
    std::thread::sleep(Duration::from_secs(2));
    assert!(lives(pid) && of.starts().len() == 1, "{}", of.log(host));
    of.w.start(host);
    of.w.all_alive();
    let takes_part = |of: &Leads| of.say(1, &["status", "job"]).matches("waits").count() == 2;
    until("all take part again", || takes_part(&of));
    assert!(lives(pid) && of.starts().len() == 1, "{:?} {}", of.starts(), of.log(host));
    // fide lead is killed: the next one waits until it is known that nothing of it runs.
    of.of[usize::from(host) - 1].take().unwrap().kill();
    until("its end is known", || of.say(host % 3 + 1, &["status", "job"]).contains("its fide lead is gone"));
    assert_eq!(of.starts().len(), 1);
    of.start(host, &[]);
    let (next, term, _) = of.started(2);
    assert!(!lives(pid) && term == 2, "{next}");
    // A polite end hands over.
    let leader = number(&next);
    kill(of.of[usize::from(leader) - 1].as_ref().unwrap().pid().cast_signed(), libc::SIGTERM);
    let (third, term, _) = of.started(3);
    assert!(number(&third) != leader && term == 3);
}

#[test]
fn two_of_one_name_and_other_hosts_are_refused() {
    let Some(mut of) = Leads::up(&format!("{STARTS} exec sleep 1000")) else { return };
    of.started(1);
    let twice = of.say(1, &["run", "job", "--hosts", HOSTS, "--", "sleep", "1"]);
    assert!(twice.contains("runs on this host already"), "{twice}");
    kill(of.of[2].as_ref().unwrap().pid().cast_signed(), libc::SIGTERM);
    until("h3 takes no part", || of.say(1, &["status", "job"]).contains("h3               missing"));
    of.of[2] = None;
    let others = of.say(3, &["run", "job", "--hosts", "h3,h1", "--", "sleep", "1"]);
    assert!(others.contains("others run it on the hosts h1,h2,h3"), "{others}");
    let nowhere = of.say(3, &["run", "job", "--hosts", "h1,h2", "--", "sleep", "1"]);
    assert!(nowhere.contains("this host is h3"), "{nowhere}");
    let own = format!("{}/24", of.w.lab.ipv4(3, 0));
    let own = of.say(3, &["run", "other", "--hosts", HOSTS, "--address", &own, "--interface", "net0", "--", "sleep", "1"]);
    assert!(own.contains("is this host's own"), "{own}");
    of.w.all_alive();
    assert!(of.say(3, &["run", "job", "--hosts", HOSTS, "--", "no-such-program"]).contains("there is no program"));
}
