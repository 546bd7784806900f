//! Table 1 of SafeTimer, remade: one fault for each row, and what it made of an ordinary timeout and of us.
//!
//! Four hosts: h1 has a fence, h2 is the receiver, h3 only watches, and h4 has no agent at all: the ordinary sender lives there, where no fence
//! holds it back. Each fault hits us and it alike. Both sides have the same timeout.

use super::Args;
use super::inject::{self, Injection};
use super::plain::{Receiver, Sender};
use crate::Outcome;
use crate::report;
use crate::rig::{Rig, RigSpec};
use crate::sys;
use crate::ui::{Paint, Ui};
use anyhow::{Context as _, Result, bail};
use fide_lab::NETS;
use fide_wire::control::{FenceOrder, FenceStatus, HistoryEvent, Reply, Request};
use fide_wire::verdict::Cause;
use serde::Serialize;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

// All times are those of a machine that is not slow: `--slower` multiplies them.
/// After which a sender is called dead: what h1's fence promises, and the ordinary timeout.
const TIMEOUT: &str = "100ms";
const TIMEOUT_NS: u64 = 100_000_000;
/// Of heartbeats, ours and the ordinary ones: few enough that a ring of 256 holds those of one fault.
const HEARTBEAT: &str = "10ms";
const PERIOD_NS: u64 = 10_000_000;
/// Of the application on h1 whose packets the fence must hold back.
const APPLICATION_NS: u64 = 4_000_000;
/// A fault lasts so long at least.
const FAULT: Duration = Duration::from_millis(300);
/// How long what must come is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// A fault in the receiver ends after so long, whether the ordinary timeout noticed it or not: others must not lose its agent.
const RECEIVER_FAULT_MAX: Duration = Duration::from_millis(900);
/// One that lies on our heartbeats' way to the receiver's agent, which goes on sending, lasts longer than an agent may be silent (1 s).
const LONG_FAULT: Duration = Duration::from_millis(1_500);

/// How often a row is looked at again, because the machine stood still.
const STOOD_STILL_MAX: u32 = 3;

const FENCED: u16 = 1;
const RECEIVER: u16 = 2;
const WATCHER: u16 = 3;
const PLAIN: u16 = 4;
const SENDERS: [u16; 2] = [FENCED, PLAIN];

/// Where a fault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Node {
    /// With who receives heartbeats.
    Receiver,
    /// With who sends them.
    Sender,
}

/// How agents receive or send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// The best that works here
    Auto,
    /// Plain sockets
    Udp,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            By::Auto => "auto",
            By::Udp => "udp",
        }
    }
}

/// Whether our heartbeats pass a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    /// However they are received or sent.
    Always,
    /// By plain sockets, but not by XDP and frames.
    BySockets,
    /// Never.
    Never,
}

/// The stage at which the receiver's agent itself stands still.
const RECV: &str = "system call (recv)";

/// A row.
struct Row {
    name: &'static str,
    node: Node,
    /// As in the paper.
    position: &'static str,
    event: &'static str,
    /// How it is reached here.
    means: &'static str,
    passed: Passed,
    /// Whether the ordinary timeout can be asked meanwhile, and must err.
    plain_errs: bool,
    inject: fn(&mut World) -> Result<Injection>,
}

impl Row {
    /// Whether our heartbeats pass it, as agents receive and send in this run.
    fn on_way(&self, args: &Args) -> bool {
        let by = if self.node == Node::Receiver { args.receive } else { args.send };
        match self.passed {
            Passed::Always => true,
            Passed::BySockets => by == By::Udp,
            Passed::Never => false,
        }
    }

    /// Where the receiver's agent is stopped, others may say so.
    fn stops(&self, e: &HistoryEvent) -> bool {
        e.cause == Cause::AgentLost && self.position == RECV && e.node == "h2"
    }

    /// Where it is known, and documented (`docs/fence.md`), that living agents are called lost: plain sockets have no barrier, the answers of kernels come by
    /// another socket, and a mere delay is counted nowhere.
    fn known(&self, args: &Args) -> bool {
        self.name == "receiver-udp-delay" && args.receive == By::Udp
    }
}

/// Those that any kernel offers.
const ROWS: [Row; 13] = [
    Row {
        name: "receiver-recv-delay",
        node: Node::Receiver,
        position: RECV,
        event: "delay",
        means: "the receiving threads frozen (threaded cgroup)",
        passed: Passed::Always,
        plain_errs: true,
        inject: |w| {
            let lane = w.lane_thread()?;
            inject::freeze_threads(&[lane, (w.ear.pid(), w.ear.receiving_thread())])
        },
    },
    Row {
        name: "receiver-stopped",
        node: Node::Receiver,
        position: RECV,
        event: "delay",
        means: "both receivers stopped (SIGSTOP), their clocks' threads too",
        passed: Passed::Always,
        plain_errs: false,
        inject: |w| inject::stop(&w.rig, &[w.agent(RECEIVER)?, w.ear.pid()]),
    },
    Row {
        name: "receiver-socket-drop",
        node: Node::Receiver,
        position: "socket (sock_queue_rcv_skb)",
        event: "drop",
        means: "a filter on the socket that takes nothing (SO_ATTACH_FILTER)",
        passed: Passed::BySockets,
        plain_errs: true,
        inject: |w| {
            w.ear.deaf(true)?;
            if w.args.receive == By::Udp { inject::deaf(w.agent(RECEIVER)?) } else { Ok(Injection::default()) }
        },
    },
    Row {
        name: "receiver-ip-delay",
        node: Node::Receiver,
        position: "IP (ip_rcv)",
        event: "delay",
        means: "between device and IP, in an ifb device at a crawl",
        passed: Passed::BySockets,
        plain_errs: true,
        inject: |w| inject::before_ip(&w.rig, RECEIVER),
    },
    Row {
        name: "receiver-napi-delay",
        node: Node::Receiver,
        position: "Ethernet (napi_gro_receive)",
        event: "delay",
        means: "NAPI of both NICs by timer only (napi_defer_hard_irqs, gro_flush_timeout)",
        passed: Passed::Always,
        plain_errs: true,
        inject: |w| w.napi(),
    },
    Row {
        name: "receiver-ring-drop",
        node: Node::Receiver,
        position: "Ethernet (napi_gro_receive)",
        event: "drop",
        means: "the same, and a flood that the rings of 256 cannot take",
        passed: Passed::Always,
        plain_errs: true,
        inject: |w| {
            let mut injection = w.napi()?;
            let flood = inject::flood(&w.rig, PLAIN, RECEIVER)?;
            injection.and(move || drop(flood));
            Ok(injection)
        },
    },
    Row {
        name: "sender-send-delay",
        node: Node::Sender,
        position: "system call (send)",
        event: "delay",
        means: "both senders frozen (cgroup)",
        passed: Passed::Always,
        plain_errs: true,
        inject: |w| inject::freeze(&w.rig, &[w.agent(FENCED)?, w.voice.pid()]),
    },
    Row {
        name: "sender-stopped",
        node: Node::Sender,
        position: "system call (send)",
        event: "delay",
        means: "both senders stopped (SIGSTOP)",
        passed: Passed::Always,
        plain_errs: true,
        inject: |w| inject::stop(&w.rig, &[w.agent(FENCED)?, w.voice.pid()]),
    },
    Row {
        name: "sender-starved",
        node: Node::Sender,
        position: "system call (send)",
        event: "delay",
        means: "both senders on a processor with a SCHED_FIFO 99 hog",
        passed: Passed::Always,
        plain_errs: true,
        inject: |w| inject::starve(&w.rig, &[w.agent(FENCED)?, w.voice.pid()]),
    },
    Row {
        name: "sender-socket-delay",
        node: Node::Sender,
        position: "socket (sock_sendmsg)",
        event: "delay",
        means: "the ordinary sender waits for its small send buffer (SO_SNDBUF), behind device queues at a crawl",
        passed: Passed::Always,
        plain_errs: true,
        inject: |w| {
            w.voice.buffer(1)?;
            inject::device(&w.rig, &SENDERS)
        },
    },
    Row {
        name: "sender-ip-delay",
        node: Node::Sender,
        position: "IP (ip_output)",
        event: "delay",
        means: "packets wait for the neighbour's address (ARP unanswered)",
        passed: Passed::Never,
        plain_errs: true,
        inject: |w| inject::neighbour(&w.rig, &SENDERS, RECEIVER),
    },
    Row {
        name: "sender-ip-drop",
        node: Node::Sender,
        position: "IP (ip_output)",
        event: "drop",
        means: "IP refuses (ip route add prohibit)",
        passed: Passed::Never,
        plain_errs: true,
        inject: |w| inject::prohibit(&w.rig, &SENDERS, RECEIVER),
    },
    Row {
        name: "sender-device-delay",
        node: Node::Sender,
        position: "Ethernet (dev_queue_xmit)",
        event: "delay",
        means: "device queues at a crawl (tc tbf)",
        passed: Passed::Always,
        plain_errs: true,
        inject: |w| inject::device(&w.rig, &SENDERS),
    },
];

/// Those whose fault is made within the kernel (`bench/kernel/hold.c`), where the paper makes it.
const KERNEL_ROWS: [Row; 10] = [
    held(
        "receiver-udp-delay",
        "socket (sock_queue_rcv_skb)",
        "delay",
        "__udp_enqueue_schedule_skb, which is that function for UDP by now",
        Passed::BySockets,
        |w| inject::hold(&w.rig, &[RECEIVER], "udp_enqueue", "delay"),
    ),
    held(
        "receiver-udp-drop",
        "socket (sock_queue_rcv_skb)",
        "drop",
        "the same, as if the buffer were full",
        Passed::BySockets,
        |w| inject::hold(&w.rig, &[RECEIVER], "udp_enqueue", "drop"),
    ),
    held("receiver-ip-rcv-delay", "IP (ip_rcv)", "delay", "ip_rcv and ip_list_rcv", Passed::BySockets, |w| {
        inject::hold(&w.rig, &[RECEIVER], "ip_rcv", "delay")
    }),
    held(
        "receiver-backlog-delay",
        "RPS (enqueue_to_backlog)",
        "delay",
        "enqueue_to_backlog, of packets from both NICs (rps_cpus)",
        Passed::BySockets,
        |w| w.backlog("delay"),
    ),
    held("receiver-backlog-drop", "RPS (enqueue_to_backlog)", "drop", "the same, as if it were full", Passed::BySockets, |w| {
        w.backlog("drop")
    }),
    held(
        "receiver-gro-delay",
        "Ethernet (napi_gro_receive)",
        "delay",
        "napi_gro_receive, behind the driver's XDP",
        Passed::BySockets,
        |w| {
            w.poll()?;
            inject::hold(&w.rig, &[RECEIVER], "napi_gro_receive", "delay")
        },
    ),
    held(
        "sender-sendmsg-delay",
        "socket (sock_sendmsg)",
        "delay",
        "security_socket_sendmsg, its first call",
        Passed::Always,
        |w| inject::hold(&w.rig, &SENDERS, "sock_sendmsg", "delay"),
    ),
    held("sender-output-delay", "IP (ip_output)", "delay", "ip_output and ip_mc_output", Passed::BySockets, |w| {
        inject::hold(&w.rig, &SENDERS, "ip_output", "delay")
    }),
    held("sender-output-drop", "IP (ip_output)", "drop", "the same: send says EPERM", Passed::BySockets, |w| {
        inject::hold(&w.rig, &SENDERS, "ip_output", "drop")
    }),
    held("sender-queue-delay", "Ethernet (dev_queue_xmit)", "delay", "__dev_queue_xmit", Passed::Always, |w| {
        inject::hold(&w.rig, &SENDERS, "dev_queue_xmit", "delay")
    }),
];

/// A row of the kernel's.
const fn held(
    name: &'static str,
    position: &'static str,
    event: &'static str,
    means: &'static str,
    passed: Passed,
    inject: fn(&mut World) -> Result<Injection>,
) -> Row {
    let node = if name.as_bytes()[0] == b'r' { Node::Receiver } else { Node::Sender };
    Row { name, node, position, event, means, passed, plain_errs: true, inject }
}

const ALL: usize = ROWS.len() + KERNEL_ROWS.len();

/// The names of all rows.
#[must_use]
pub fn names() -> [&'static str; ALL] {
    std::array::from_fn(|i| ROWS.get(i).unwrap_or_else(|| &KERNEL_ROWS[i - ROWS.len()]).name)
}

/// The names of those that can be had on this machine.
#[must_use]
pub fn offered() -> Vec<&'static str> {
    names()[..if inject::can_hold().is_ok() { ALL } else { ROWS.len() }].to_vec()
}

/// What the ordinary timeout did.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Plain {
    /// How often it called the living sender dead.
    pub accused: usize,
    /// The first time, after the fault began.
    pub accused_after_ms: Option<f64>,
    /// Packets that the sender's kernel refused: the sender could know.
    pub refused: u64,
    /// It was heard again of what it sent after it had been called dead.
    pub alive_after: bool,
}

/// What we did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Ours {
    /// Our heartbeats pass the stage.
    pub on_way: bool,
    /// Verdicts on hosts that lived and whose fence, if any, had not closed.
    pub false_verdicts: Vec<String>,
    /// The fence of the sender closed.
    pub fenced: bool,
    /// How much later than t_valid the latest packet of the application that was heard had been sent; negative: earlier.
    pub last_heard_after_valid_ms: Option<f64>,
    /// How much later than t_valid such a packet, sent in time, came out of a queue; negative: earlier.
    pub last_arrival_after_valid_ms: Option<f64>,
    /// Packets that the fence blocked.
    pub blocked: u64,
    /// How much later than t_valid the first *silent host* was said.
    pub verdict_after_valid_ms: Option<f64>,
    /// Everything that was said of hosts, by observer.
    pub said: Vec<String>,
}

/// A row as it turned out.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// Always `safetimer`.
    pub bench: &'static str,
    /// Its name.
    pub row: &'static str,
    /// Where the fault was.
    pub node: Node,
    /// At which stage, as in the paper.
    pub position: &'static str,
    /// `delay` or `drop`.
    pub event: &'static str,
    /// How the stage was reached.
    pub means: &'static str,
    /// How agents received.
    pub receive: By,
    /// How agents sent.
    pub send: By,
    /// How long the fault lasted.
    pub fault_ms: f64,
    /// The timeout of both.
    pub timeout_ms: f64,
    /// The ordinary timeout.
    pub plain: Plain,
    /// Ours.
    pub fide: Ours,
    /// Whether it is as it must be.
    pub ok: bool,
    /// It is not, in the way that is documented.
    pub known: bool,
    /// And if not, why.
    pub wrong: Vec<String>,
}

/// The hosts and what runs on them.
struct World {
    args: Args,
    rig: Rig,
    /// The ordinary sender, h4 to h2.
    voice: Sender,
    ear: Receiver,
    /// The application on h1, and who hears it.
    application: Sender,
    audience: Receiver,
}

impl World {
    fn up(args: &Args, ui: &Ui) -> Result<Self> {
        let spec = RigSpec {
            hosts: PLAIN,
            heartbeat: HEARTBEAT,
            bare: 1,
            fence: Some(TIMEOUT),
            receive: args.receive.name(),
            send: args.send.name(),
            slower: args.slower,
            ..RigSpec::default()
        };
        let times = u64::from(args.slower);
        let rig = Rig::up(spec, ui)?;
        let at = |port| SocketAddr::from((rig.lab().ipv4(RECEIVER, 0), port));
        let ear = Receiver::start(&rig, RECEIVER, at(9_701), TIMEOUT_NS * times)?;
        let voice = Sender::start(&rig, PLAIN, at(9_701), PERIOD_NS * times)?;
        let audience = Receiver::start(&rig, RECEIVER, at(9_702), TIMEOUT_NS * times)?;
        let application = Sender::start(&rig, FENCED, at(9_702), APPLICATION_NS * times)?;
        Ok(Self { args: args.clone(), rig, voice, ear, application, audience })
    }

    /// A fault of this kind lasts so long at least.
    fn fault(&self, row: &Row) -> Duration {
        let sends_on = row.node == Node::Receiver && row.position != RECV && row.on_way(&self.args);
        (if sends_on { LONG_FAULT } else { FAULT }) * self.args.slower
    }

    /// Where XDP does not make a NAPI of them, the receiver's NICs need another reason.
    fn poll(&self) -> Result<()> {
        if self.args.receive == By::Udp { inject::poll(&self.rig, RECEIVER) } else { Ok(()) }
    }

    fn napi(&self) -> Result<Injection> {
        self.poll()?;
        inject::napi(&self.rig, RECEIVER, &NETS, LONG_FAULT * self.args.slower)
    }

    fn backlog(&self, event: &str) -> Result<Injection> {
        inject::steer(&self.rig, RECEIVER)?;
        inject::hold(&self.rig, &[RECEIVER], "enqueue_to_backlog", event)
    }

    fn agent(&self, host: u16) -> Result<u32> {
        self.rig.agent_pid(host).with_context(|| format!("the agent of h{host} does not run"))
    }

    /// The thread of the receiver's agent that reads and judges.
    fn lane_thread(&self) -> Result<(u32, i32)> {
        let pid = self.agent(RECEIVER)?;
        for task in std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
            if std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "lane") {
                return Ok((pid, task.file_name().to_string_lossy().parse()?));
            }
        }
        bail!("the agent of h{RECEIVER} has no thread called lane")
    }

    fn fence(&mut self, order: FenceOrder) -> Result<FenceStatus> {
        match self.rig.ask(FENCED, &Request::Fence { order })? {
            Reply::Fence(status) => Ok(*status),
            other => bail!("the agent of h{FENCED} answered about its fence with {other:?}"),
        }
    }

    /// Waits for a truth.
    fn until(&mut self, ui: &Ui, what: &str, mut done: impl FnMut(&mut Self) -> Result<bool>) -> Result<()> {
        let patience = PATIENCE * self.args.slower;
        let deadline = Instant::now() + patience;
        while !done(self)? {
            ui.check()?;
            if Instant::now() > deadline {
                bail!(
                    "{what}: not within {} s; the log of h{FENCED}'s agent ends with:\n{}",
                    patience.as_secs(),
                    self.rig.log_tail(FENCED)
                );
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Everybody sees everybody, the fence is open and promised, both streams of packets are heard.
    fn settle(&mut self, ui: &Ui) -> Result<()> {
        self.until(ui, "the fence opens", |w| {
            let status = w.fence(FenceOrder::Status)?;
            if status.state == "fenced" {
                w.fence(FenceOrder::Recover)?;
            }
            Ok(status.state == "open" && status.extensions > 20)
        })?;
        self.rig.wait_until_all_see_all(ui)?;
        for observer in [RECEIVER, WATCHER] {
            self.until(ui, "the promise of the fence is known", |w| {
                let status = w.rig.status(observer)?;
                Ok(status.hosts.iter().any(|h| h.name == "h1" && h.fence.is_some()))
            })?;
        }
        let since = sys::now_ns();
        self.until(ui, "the ordinary sender and the application are heard", |w| {
            Ok(w.ear.report()?.sent_ns > since && w.audience.report()?.sent_ns > since)
        })
    }

    /// What agents wrote down since.
    fn history(&mut self, since: [u64; 3]) -> Result<Vec<HistoryEvent>> {
        let mut all = Vec::new();
        for (host, from) in self.rig.agents().zip(since) {
            all.extend(self.rig.history(host, from)?.0);
        }
        Ok(all)
    }

    fn silent(&mut self, since: [u64; 3]) -> Result<bool> {
        let events = self.rig.history(RECEIVER, since[usize::from(RECEIVER) - 1])?.0;
        Ok(events.iter().any(|e| e.cause == Cause::SilentHost && e.node == "h1"))
    }

    fn row(&mut self, row: &Row, ui: &Ui) -> Result<Found> {
        self.settle(ui)?;
        let mut since = [0; 3];
        for (host, since) in self.rig.agents().zip(&mut since) {
            *since = self.rig.history(host, u64::MAX).map(|(_, next)| next)?;
        }
        let refused = self.voice.report()?.refused;
        self.ear.begin()?;
        ui.progress(format!("{}: the fault", row.name));
        let begun_ns = sys::now_ns();
        let injection = (row.inject)(self).with_context(|| format!("{}: the fault could not be made", row.name))?;
        let begun = Instant::now();
        let (least, blocked) = (self.fault(row), row.node == Node::Sender && row.on_way(&self.args));
        let longest = if row.node == Node::Receiver { RECEIVER_FAULT_MAX } else { PATIENCE } * self.args.slower;
        loop {
            ui.check()?;
            std::thread::sleep(Duration::from_millis(20));
            let plain = !row.plain_errs || !self.ear.report()?.accused_ns.is_empty();
            let ours = !blocked || self.silent(since)?;
            if begun.elapsed() >= longest.max(least) || (begun.elapsed() >= least && plain && ours) {
                break;
            }
        }
        let fault_ms = begun.elapsed().as_secs_f64() * 1e3;
        drop(injection);
        self.ear.deaf(false)?;
        ui.progress(format!("{}: what came of it", row.name));
        let mut fide = Ours { on_way: row.on_way(&self.args), ..Ours::default() };
        let mut plain = Plain::default();
        let heard = self.ear.report()?;
        // Asked at once: what is said later is not of this fault.
        plain.accused = heard.accused_ns.len();
        plain.accused_after_ms = heard.accused_ns.first().map(|at| ms(at.saturating_sub(begun_ns)));
        if let Some(last) = heard.accused_ns.last() {
            let last = *last;
            plain.alive_after = self.until(ui, "it is heard again", |w| Ok(w.ear.report()?.sent_ns > last)).is_ok();
        }
        ui.check()?;
        plain.refused = self.voice.report()?.refused - refused;
        if blocked {
            self.until(ui, "the late host finds that it is fenced", |w| Ok(w.fence(FenceOrder::Status)?.state == "fenced"))?;
        } else {
            // What was held up has come, and verdicts that it would have led to were given. Who was given up wrongly stays fenced, and is not waited for.
            let given_up = self.history(since)?.iter().any(|e| is_grave(e) && !row.stops(e));
            if !given_up {
                self.rig.wait_until_all_see_all(ui)?;
            }
            ui.sleep(Duration::from_nanos(2 * TIMEOUT_NS) * self.args.slower)?;
        }
        // It goes on trying.
        let tried = self.application.report()?.tried;
        self.until(ui, "the application tries on", |w| Ok(w.application.report()?.tried > tried + 50))?;
        let status = self.fence(FenceOrder::Status)?;
        fide.fenced = status.state == "fenced";
        fide.blocked = status.gates.iter().map(|g| g.blocked).sum();
        let events = self.history(since)?;
        if fide.fenced {
            let after = |at: u64| (at as f64 - status.valid_ns as f64) / 1e6;
            let heard = self.audience.report()?;
            fide.last_heard_after_valid_ms = Some(after(heard.sent_ns));
            fide.last_arrival_after_valid_ms = Some(after(heard.last_ns));
            let verdicts = events.iter().filter(|e| e.cause == Cause::SilentHost && e.node == "h1" && e.app.is_none());
            fide.verdict_after_valid_ms = verdicts.map(|e| e.at_ns).min().map(after);
        }
        // A host that was given up while it lived shuts its fence early.
        let shut_ns =
            events.iter().filter(|e| e.cause == Cause::Fenced && e.observer == "h1").map(|e| e.at_ns).min().unwrap_or(u64::MAX);
        for e in events.iter().filter(|e| e.app.is_none()) {
            let said = format!("{}: {} {}", e.observer, e.cause.name(), e.node);
            let cut_off = e.node == "h1" && fide.fenced && e.at_ns > status.valid_ns.min(shut_ns);
            if is_grave(e) && !cut_off && !row.stops(e) {
                fide.false_verdicts.push(said.clone());
            }
            if !fide.said.contains(&said) {
                fide.said.push(said);
            }
        }
        let mut wrong = wrong(row, &plain, &fide);
        let lost = |said: &String| said.contains(Cause::AgentLost.name());
        let known =
            row.known(&self.args) && wrong.len() == 1 && !fide.false_verdicts.is_empty() && fide.false_verdicts.iter().all(lost);
        if row.known(&self.args) && wrong.is_empty() {
            wrong.push("the false verdicts that are documented did not come: is that mended?".to_string());
        }
        Ok(Found {
            bench: "safetimer",
            row: row.name,
            node: row.node,
            position: row.position,
            event: row.event,
            means: row.means,
            fault_ms,
            receive: self.args.receive,
            send: self.args.send,
            timeout_ms: ms(TIMEOUT_NS * u64::from(self.args.slower)),
            plain,
            fide,
            ok: wrong.is_empty(),
            known,
            wrong,
        })
    }
}

/// What must not be said of a host that lives.
fn is_grave(e: &HistoryEvent) -> bool {
    matches!(e.cause, Cause::SilentHost | Cause::AgentLost) && e.app.is_none()
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// What is not as it must be.
fn wrong(row: &Row, plain: &Plain, fide: &Ours) -> Vec<String> {
    let mut wrong = Vec::new();
    if row.plain_errs && plain.accused == 0 {
        wrong.push("the ordinary timeout noticed nothing: the fault did not reach it".to_string());
    }
    if row.plain_errs && plain.accused > 0 && !plain.alive_after {
        wrong.push("the ordinary sender was not heard again: nothing shows that it lived".to_string());
    }
    if !fide.false_verdicts.is_empty() {
        wrong.push(format!("false verdicts: {}", fide.false_verdicts.join(", ")));
    }
    let blocked = row.node == Node::Sender && fide.on_way;
    if blocked && !fide.fenced {
        wrong.push("the late host was not fenced".to_string());
    }
    if blocked && fide.verdict_after_valid_ms.is_none() {
        wrong.push("nobody said that the late host is silent".to_string());
    }
    if let Some(late) = fide.last_heard_after_valid_ms.filter(|ms| *ms > 0.0) {
        wrong.push(format!("a packet sent {late:.3} ms after t_valid was heard"));
    }
    wrong
}

/// The longest time for which the whole machine stood still, found by a thread that sleeps briefly:
/// no row tells anything then, as both timeouts and the network stood still with it.
struct StandStill {
    longest_ns: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
}

impl StandStill {
    fn watch() -> Self {
        let of = Self { longest_ns: Arc::default(), ended: Arc::default() };
        let (longest_ns, ended) = (Arc::clone(&of.longest_ns), Arc::clone(&of.ended));
        std::thread::spawn(move || {
            let mut last_ns = sys::now_ns();
            while !ended.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
                let now_ns = sys::now_ns();
                longest_ns.fetch_max(now_ns - last_ns, Ordering::Relaxed);
                last_ns = now_ns;
            }
        });
        of
    }

    fn longest_ns(&self) -> u64 {
        self.longest_ns.load(Ordering::Relaxed)
    }
}

impl Drop for StandStill {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// A row on hosts of its own: a contract is measured while it is relied on, and one that knows the
/// fault before would be patient with the next. What is not as it must be is looked at again, if
/// the machine stood still for half a timeout meanwhile.
fn row_alone(row: &Row, args: &Args, ui: &Ui) -> Result<Found> {
    let mut left = STOOD_STILL_MAX;
    loop {
        let stood = StandStill::watch();
        let found = World::up(args, ui).and_then(|mut world| world.row(row, ui));
        let stood_ns = stood.longest_ns();
        let is_void = stood_ns >= TIMEOUT_NS * u64::from(args.slower) / 2 && found.as_ref().map_or(true, |f| !f.ok);
        ui.check()?;
        if !is_void || left == 0 {
            return found;
        }
        left -= 1;
        eprintln!("TRIED AGAIN: {}: this machine stood still for {:.0} ms", row.name, ms(stood_ns));
    }
}

/// Runs the rows that were named, or all that can be had here.
///
/// # Errors
/// When the hosts cannot be made, or a fault cannot.
pub fn run(args: &Args, ui: &Ui) -> Outcome {
    let named = |r: &Row| args.only.iter().any(|name| name == r.name);
    if let Some(row) = KERNEL_ROWS.iter().find(|r| named(r)) {
        inject::can_hold().with_context(|| format!("{} cannot be had here", row.name))?;
    }
    let offered = offered();
    let wanted = |r: &&Row| if args.only.is_empty() { offered.contains(&r.name) } else { named(r) };
    let rows: Vec<&Row> = ROWS.iter().chain(&KERNEL_ROWS).filter(wanted).collect();
    ui.say(ui.paint(Paint::Dim, &report::machine()));
    let (mut good, mut known) = (0, 0);
    ui.say(ui.paint(Paint::Bold, &line(["node", "position", "event", "FiDe", "plain timeout"])));
    for (i, row) in rows.iter().enumerate() {
        ui.progress(format!("{} ({} of {})", row.name, i + 1, rows.len()));
        let found = row_alone(row, args, ui)?;
        good += usize::from(found.ok);
        known += usize::from(found.known);
        if ui.json {
            ui.line(serde_json::to_string(&found)?);
        } else {
            tell(&found, ui);
        }
    }
    let bad = rows.len() - good - known;
    let known = if known > 0 { format!(", {known} wrong as documented") } else { String::new() };
    ui.say(format!("{good} rows as they must be, {bad} not{known}"));
    Ok(bad == 0)
}

fn line(cells: [&str; 5]) -> String {
    format!("{:<9} {:<28} {:<6} {:<34} {}", cells[0], cells[1], cells[2], cells[3], cells[4])
}

fn tell(found: &Found, ui: &Ui) {
    let node = if found.node == Node::Receiver { "receiver" } else { "sender" };
    let ours = match (&found.fide, found.node) {
        (f, _) if !f.false_verdicts.is_empty() => if found.known { "TIMEOUT (known)" } else { "TIMEOUT" }.to_string(),
        (f, _) if f.fenced => format!("blocked ({} packets)", f.blocked),
        (f, Node::Receiver) if f.on_way => "no timeout".to_string(),
        (f, Node::Sender) if f.on_way => "NOT BLOCKED".to_string(),
        _ => "no timeout (not on its way)".to_string(),
    };
    let plain = match (&found.plain, found.node) {
        (p, _) if p.accused == 0 => "no timeout".to_string(),
        (p, Node::Receiver) => format!("timeout ×{}", p.accused),
        (p, Node::Sender) if p.refused > 0 => format!("timeout, alive; could see {} refused", p.refused),
        (_, Node::Sender) => "timeout, alive".to_string(),
    };
    let text = line([node, found.position, found.event, &ours, &plain]);
    ui.line(if found.ok { text } else { ui.paint(Paint::Red, &text) });
    let mut more = vec![format!("{}: {}", found.row, found.means)];
    if let (Some(heard), Some(verdict)) = (found.fide.last_heard_after_valid_ms, found.fide.verdict_after_valid_ms) {
        let came = found.fide.last_arrival_after_valid_ms.unwrap_or_default();
        more.push(format!(
            "t_valid {heard:+.3} ms: sent what was heard last of h1, which came at {came:+.1} ms; called silent at {verdict:+.1} ms"
        ));
    }
    more.push(format!("said: {}", if found.fide.said.is_empty() { "nothing".into() } else { found.fide.said.join("; ") }));
    for text in more {
        ui.line(ui.paint(Paint::Dim, &format!("          {text}")));
    }
    for text in &found.wrong {
        ui.line(ui.paint(Paint::Red, &format!("          {text}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = &'static Row> {
        const ANYWHERE: &[Row] = &ROWS;
        const KERNEL: &[Row] = &KERNEL_ROWS;
        ANYWHERE.iter().chain(KERNEL)
    }

    fn row(name: &str) -> &'static Row {
        all().find(|r| r.name == name).unwrap()
    }

    fn args(words: &[&str]) -> Args {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            args: Args,
        }
        <Cli as clap::Parser>::parse_from([&["bench", "--table1"], words].concat()).args
    }

    fn erred() -> Plain {
        Plain { accused: 1, accused_after_ms: Some(101.0), refused: 0, alive_after: true }
    }

    #[test]
    fn names_are_distinct_and_say_the_node_and_the_event() {
        for (i, r) in all().enumerate() {
            assert!(all().take(i).all(|other| other.name != r.name), "{}", r.name);
            let node = if r.node == Node::Receiver { "receiver-" } else { "sender-" };
            assert!(r.name.starts_with(node), "{}", r.name);
            assert!(["delay", "drop"].contains(&r.event));
        }
    }

    #[test]
    fn a_stage_is_on_the_way_as_agents_receive_and_send() {
        let (usual, sockets) = (args(&[]), args(&["--receive", "udp"]));
        assert!(!row("receiver-ip-delay").on_way(&usual) && row("receiver-ip-delay").on_way(&sockets));
        assert!(row("receiver-napi-delay").on_way(&usual));
        assert!(!row("sender-output-drop").on_way(&sockets), "they still send frames");
        assert!(row("sender-output-drop").on_way(&args(&["--send", "udp"])));
        assert!(row("receiver-udp-delay").known(&sockets) && !row("receiver-udp-delay").known(&usual));
    }

    #[test]
    fn a_receivers_row_is_right_when_only_the_ordinary_timeout_errs() {
        let r = row("receiver-napi-delay");
        assert!(wrong(r, &erred(), &Ours::default()).is_empty());
        assert_eq!(wrong(r, &Plain::default(), &Ours::default()).len(), 1, "the fault did not bite");
        let ours = Ours { false_verdicts: vec!["h2: silent-host h1".into()], ..Ours::default() };
        assert!(wrong(r, &erred(), &ours)[0].contains("h2: silent-host h1"));
    }

    #[test]
    fn a_senders_row_is_right_when_it_was_blocked_in_time() {
        let r = row("sender-send-delay");
        let blocked = Ours {
            on_way: true,
            fenced: true,
            last_heard_after_valid_ms: Some(-0.2),
            verdict_after_valid_ms: Some(6.0),
            ..Ours::default()
        };
        assert!(wrong(r, &erred(), &blocked).is_empty());
        assert_eq!(wrong(r, &erred(), &Ours { on_way: true, ..Ours::default() }).len(), 2);
        let leaky = Ours { last_heard_after_valid_ms: Some(0.1), ..blocked };
        assert!(wrong(r, &erred(), &leaky)[0].contains("after t_valid was heard"));
    }
}
