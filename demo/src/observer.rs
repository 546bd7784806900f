//! An application that observes: in a process of its own, on a host of its own, stamping each upcall at once.
//!
//! It is what a user's program would be: it has a subscription with its host's agent and blocks on it (or spins), and, in the
//! same process, an ordinary TCP connection to the process that will crash. A second thread waits for what TCP and a pidfd
//! would have told it. Commands come on standard input and reports leave on standard output, a JSON object on each line.

use crate::peers::{self, Target};
use crate::sys;
use anyhow::{Context as _, Result, bail};
use fide_client::{Client, Event, Resources, Verdict};
use fide_wire::verdict::{Cause, Grade, VerdictId};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

/// The hidden subcommand.
pub const ROLE: &str = "bench-observer";

/// Its arguments.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The agent's socket; without it nothing is subscribed to
    #[arg(long)]
    pub agent: Option<std::path::PathBuf>,
    /// What to monitor
    #[arg(long)]
    pub target: Vec<String>,
    /// Spin instead of sleeping
    #[arg(long)]
    pub spin: bool,
    /// Run below the agents' priority
    #[arg(long, conflicts_with = "spin")]
    pub below: bool,
}

/// What an observer is told to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Order {
    /// Connect to the process and report its end of the connection.
    Tcp {
        /// Returned in the reports.
        tag: u64,
        /// Where it listens.
        address: SocketAddr,
    },
    /// Report the end of this process.
    Pidfd {
        /// Which.
        pid: u32,
    },
    /// Watch these keys of etcd and ZooKeeper and report the end of each.
    Keys {
        /// Returned in the reports, with the key's index.
        tag: u64,
        /// Which.
        targets: Vec<Target>,
    },
    /// Close what is open: nothing of it matters any more.
    Forget,
}

/// A verdict as it arrived.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Upcall {
    /// When the application had it in its hands.
    pub at_ns: u64,
    /// On which node.
    pub node: u32,
    /// Which process, 0 for the host.
    pub app: u32,
    /// The node's incarnation.
    pub incarnation: u32,
    /// What happened.
    pub cause: Cause,
    /// How sure.
    pub grade: Grade,
    /// Signal, status or path.
    pub code: i32,
    /// Its id.
    pub id: Option<VerdictId>,
    /// The path its first copy took.
    pub path: u8,
    /// The hook's stamp.
    pub event_ns: u64,
    /// When the notice was sent.
    pub sent_ns: u64,
    /// When the receive program saw it.
    pub received_ns: u64,
}

/// What an observer reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Report {
    /// It runs; whether with real-time priority.
    Ready {
        /// So.
        realtime: bool,
    },
    /// A monitored process came.
    Monitored(Upcall),
    /// `on_failure`.
    Failure(Upcall),
    /// The end of a doomed process.
    Confirmed(Upcall),
    /// A process does not move, or moves again.
    Progress(Upcall),
    /// Something about a host, a path, or the observer's own agent.
    Host(Upcall),
    /// Events were lost.
    Lost {
        /// How many.
        count: u64,
    },
    /// Its own agent is gone.
    AgentGone {
        /// When it noticed.
        at_ns: u64,
    },
    /// TCP: connected.
    TcpOpen {
        /// Of the order.
        tag: u64,
    },
    /// TCP: the peer closed or reset the connection, or could not be reached.
    TcpEnd {
        /// Of the order.
        tag: u64,
        /// When it was noticed.
        at_ns: u64,
        /// `closed`, or the error.
        how: String,
    },
    /// The process ended.
    PidfdEnd {
        /// Which.
        pid: u32,
        /// When it was noticed.
        at_ns: u64,
    },
    /// It watches the process.
    PidfdOpen {
        /// Which.
        pid: u32,
    },
    /// It watches the key.
    KeyWatched {
        /// Of the order.
        tag: u64,
        /// Of the order.
        index: usize,
    },
    /// The key is gone.
    KeyEnd {
        /// Of the order.
        tag: u64,
        /// Of the order.
        index: usize,
        /// When it was noticed.
        at_ns: u64,
    },
    /// The key cannot be watched, or not any more.
    KeyFailed {
        /// Of the order.
        tag: u64,
        /// Of the order.
        index: usize,
        /// Why.
        why: String,
    },
}

// ---- in the helper process -----------------------------------------------------------------------------------------------------

fn report(report: &Report) {
    let mut line = serde_json::to_vec(report).unwrap_or_default();
    line.push(b'\n');
    let mut out = io::stdout().lock();
    if out.write_all(&line).and_then(|()| out.flush()).is_err() {
        // The parent is gone.
        std::process::exit(0);
    }
}

fn upcall(v: &Verdict, at_ns: u64) -> Upcall {
    Upcall {
        at_ns,
        node: v.subject.node,
        app: v.subject.app,
        incarnation: v.subject.incarnation,
        cause: v.cause,
        grade: v.grade,
        code: v.code,
        id: v.id,
        path: v.path,
        event_ns: v.event_ns,
        sent_ns: v.sent_ns,
        received_ns: v.received_ns,
    }
}

/// What the hidden subcommand does. Returns when its parent closes its standard input.
///
/// # Errors
/// When the agent refuses.
pub fn run(args: &Args) -> Result<()> {
    // Without the permission it runs like any other application; the parent is told.
    let _ = sys::lock_memory();
    let client = match &args.agent {
        Some(socket) => {
            let client = Client::open(Some(socket))?;
            for target in &args.target {
                client.monitor(target, Resources::default())?;
            }
            Some(client)
        }
        None => None,
    };
    let (spin, below) = (args.spin, args.below);
    std::thread::scope(|scope| {
        if let Some(client) = &client {
            // The pipe is read by an ordinary thread: whoever stamps upcalls must not wait for it.
            let (to, reports) = mpsc::channel();
            scope.spawn(move || reports.iter().for_each(|r| report(&r)));
            scope.spawn(move || upcalls(client, spin, below, &to));
        }
        let realtime = sys::be_realtime(sys::STAMPER_PRIORITY).is_ok();
        report(&Report::Ready { realtime });
        let end = sockets();
        if let Err(e) = end {
            eprintln!("{ROLE}: {e:#}");
        }
        std::process::exit(0);
    })
}

/// The thread of the upcalls.
fn upcalls(client: &Client, spin: bool, below: bool, to: &Sender<Report>) {
    // Whoever spins must not keep the agents from running.
    let _ = sys::be_realtime(if spin || below { sys::STAMPER_PRIORITY } else { sys::UPCALL_PRIORITY });
    // The other end lives as long as this thread.
    let report = |report| _ = to.send(report);
    loop {
        let next = if spin { client.try_next() } else { client.poll(None) };
        let at_ns = sys::now_ns();
        match next {
            Ok(Some(Event::Failure(v))) => report(Report::Failure(upcall(&v, at_ns))),
            Ok(Some(Event::Confirmed(v))) => report(Report::Confirmed(upcall(&v, at_ns))),
            Ok(Some(Event::Monitored(v))) => report(Report::Monitored(upcall(&v, at_ns))),
            Ok(Some(Event::Hung(v) | Event::Progressing(v))) => report(Report::Progress(upcall(&v, at_ns))),
            Ok(Some(Event::Host(v))) => report(Report::Host(upcall(&v, at_ns))),
            Ok(Some(Event::Lost { count })) => report(Report::Lost { count }),
            Ok(Some(Event::AgentGone)) => {
                report(Report::AgentGone { at_ns });
                return;
            }
            Ok(_) => {}
            Err(e) => {
                eprintln!("{ROLE}: {e}");
                return;
            }
        }
    }
}

/// The thread of TCP, pidfd and orders.
fn sockets() -> Result<()> {
    let input = io::stdin();
    let mut orders = BufReader::new(input.lock());
    let mut tcp: Option<(u64, TcpStream)> = None;
    let mut process: Option<(u32, OwnedFd)> = None;
    loop {
        // Orders come one at a time, each followed by what it brings about; so nothing stays behind in the buffer.
        let stdin = io::stdin();
        let mut fds = vec![stdin.as_fd()];
        fds.extend(tcp.iter().map(|(_, s)| s.as_fd()));
        fds.extend(process.iter().map(|(_, fd)| fd.as_fd()));
        let ready = sys::wait(&fds, None)?;
        let at_ns = sys::now_ns();
        let tcp_ready = tcp.is_some() && ready.get(1).is_some_and(|r| r.readable || r.hung_up);
        let process_ready = process.is_some() && ready.get(1 + usize::from(tcp.is_some())).is_some_and(|r| r.readable);
        let ordered = ready[0].readable || ready[0].hung_up;
        if tcp_ready && let Some((tag, stream)) = &mut tcp {
            let how = match stream.read(&mut [0; 4096]) {
                Ok(0) => Some("closed".to_string()),
                Ok(_) => None,
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => None,
                Err(e) => Some(e.to_string()),
            };
            if let Some(how) = how {
                report(&Report::TcpEnd { tag: *tag, at_ns, how });
                tcp = None;
            }
        }
        if process_ready && let Some((pid, _)) = process.take() {
            report(&Report::PidfdEnd { pid, at_ns });
        }
        if ordered {
            let mut line = String::new();
            if orders.read_line(&mut line)? == 0 {
                return Ok(());
            }
            match serde_json::from_str::<Order>(&line).context("not an order")? {
                Order::Tcp { tag, address } => {
                    let connected = TcpStream::connect_timeout(&address, Duration::from_secs(5));
                    match connected.and_then(|s| s.set_nonblocking(true).map(|()| s)) {
                        Ok(stream) => {
                            tcp = Some((tag, stream));
                            report(&Report::TcpOpen { tag });
                        }
                        Err(e) => report(&Report::TcpEnd { tag, at_ns: sys::now_ns(), how: e.to_string() }),
                    }
                }
                Order::Pidfd { pid } => match sys::pidfd(pid) {
                    Ok(fd) => {
                        process = Some((pid, fd));
                        report(&Report::PidfdOpen { pid });
                    }
                    Err(_) => report(&Report::PidfdEnd { pid, at_ns: sys::now_ns() }),
                },
                Order::Keys { tag, targets } => {
                    for (index, target) in targets.into_iter().enumerate() {
                        std::thread::spawn(move || key(tag, index, &target));
                    }
                }
                Order::Forget => (tcp, process) = (None, None),
            }
        }
    }
}

/// The thread of one key.
fn key(tag: u64, index: usize, target: &Target) {
    let _ = sys::be_realtime(sys::STAMPER_PRIORITY);
    let end = peers::watch(target, || report(&Report::KeyWatched { tag, index }));
    let at_ns = sys::now_ns();
    report(&match end {
        Ok(()) => Report::KeyEnd { tag, index, at_ns },
        Err(e) => Report::KeyFailed { tag, index, why: format!("{e:#}") },
    });
}

// ---- in the parent -------------------------------------------------------------------------------------------------------------

/// The observers of a rig, and what they report.
#[derive(Debug)]
pub struct Observers {
    all: Vec<Observer>,
    sender: Sender<(usize, Report)>,
    reports: Receiver<(usize, Report)>,
}

#[derive(Debug)]
struct Observer {
    host: u16,
    child: Child,
    stdin: ChildStdin,
    realtime: bool,
}

impl Default for Observers {
    fn default() -> Self {
        let (sender, reports) = mpsc::channel();
        Observers { all: Vec::new(), sender, reports }
    }
}

impl Observers {
    /// Starts one on a host; without targets it does not subscribe. Returns its index when it is ready.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn start(&mut self, rig: &crate::rig::Rig, host: u16, targets: &[&str], spin: bool) -> Result<usize> {
        self.start_with(rig, host, targets, spin.then_some("--spin"))
    }

    /// Starts one that runs below the agents' priority.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn start_below(&mut self, rig: &crate::rig::Rig, host: u16, targets: &[&str]) -> Result<usize> {
        self.start_with(rig, host, targets, Some("--below"))
    }

    fn start_with(&mut self, rig: &crate::rig::Rig, host: u16, targets: &[&str], how: Option<&str>) -> Result<usize> {
        let mut command = rig.helper(host, ROLE)?;
        if !targets.is_empty() {
            command.arg("--agent").arg(rig.socket(host));
        }
        for target in targets {
            command.arg("--target").arg(target);
        }
        command.args(how);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start an observer")?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else { bail!("an observer without pipes") };
        let index = self.all.len();
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let Ok(report) = serde_json::from_str(&line) else { continue };
                if sender.send((index, report)).is_err() {
                    return;
                }
            }
        });
        self.all.push(Observer { host, child, stdin, realtime: false });
        let ready = self.wait_for(Duration::from_secs(10), |i, r| i == index && matches!(r, Report::Ready { .. }));
        match ready {
            Some((_, Report::Ready { realtime })) => self.all[index].realtime = realtime,
            _ => bail!("the observer on h{host} did not become ready"),
        }
        Ok(index)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The host of an observer.
    #[must_use]
    pub fn host(&self, index: usize) -> u16 {
        self.all[index].host
    }

    /// Whether all stamp with real-time priority.
    #[must_use]
    pub fn realtime(&self) -> bool {
        self.all.iter().all(|o| o.realtime)
    }

    /// Tells one what to do.
    ///
    /// # Errors
    /// When it is gone.
    pub fn order(&mut self, index: usize, order: &Order) -> Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        let observer = &mut self.all[index];
        observer.stdin.write_all(&line).with_context(|| format!("the observer on h{} is gone", observer.host))
    }

    /// The next report; `None` when there is none in time.
    pub fn next(&mut self, deadline: Instant) -> Option<(usize, Report)> {
        self.reports.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    }

    /// The first report that is wanted; those before it are dropped.
    pub fn wait_for(&mut self, within: Duration, mut wanted: impl FnMut(usize, &Report) -> bool) -> Option<(usize, Report)> {
        let deadline = Instant::now() + within;
        loop {
            let (index, report) = self.next(deadline)?;
            if wanted(index, &report) {
                return Some((index, report));
            }
        }
    }

    /// Everything that was reported until now.
    pub fn drain(&mut self) -> Vec<(usize, Report)> {
        self.reports.try_iter().collect()
    }

    /// Has an observer connect to a process, and waits until it is.
    ///
    /// # Errors
    /// When it is not in time.
    pub fn connect(&mut self, index: usize, tag: u64, address: SocketAddr) -> Result<()> {
        self.order(index, &Order::Tcp { tag, address })?;
        let answer = self.wait_for(Duration::from_secs(10), |i, r| {
            i == index && matches!(r, Report::TcpOpen { tag: t } | Report::TcpEnd { tag: t, .. } if *t == tag)
        });
        match answer {
            Some((_, Report::TcpOpen { .. })) => Ok(()),
            Some((_, Report::TcpEnd { how, .. })) => bail!("no connection to {address}: {how}"),
            _ => bail!("no connection to {address}"),
        }
    }
}

impl Drop for Observers {
    fn drop(&mut self) {
        for observer in &mut self.all {
            let _ = observer.child.kill();
            let _ = observer.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_and_orders_survive_the_pipe() {
        let upcall = Upcall {
            at_ns: u64::MAX,
            node: 1,
            app: 2,
            incarnation: 3,
            cause: Cause::Doomed,
            grade: Grade::Certain,
            code: 9,
            id: Some(VerdictId::new(1, 2)),
            path: 1,
            event_ns: 4,
            sent_ns: 5,
            received_ns: 6,
        };
        for report in [Report::Failure(upcall), Report::Ready { realtime: true }, Report::TcpOpen { tag: 7 }] {
            let line = serde_json::to_string(&report).unwrap();
            assert_eq!(serde_json::from_str::<Report>(&line).unwrap(), report, "{line}");
        }
        let order = r#"{"do":"tcp","tag":1,"address":"10.77.0.1:6379"}"#;
        assert!(matches!(serde_json::from_str(order).unwrap(), Order::Tcp { tag: 1, .. }));
    }
}
