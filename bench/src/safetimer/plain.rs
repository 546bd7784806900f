//! The timeout that everybody writes first, as two ordinary processes: one sends a packet each period, the other has a thread that receives and
//! a thread that looks at the clock (SafeTimer §6.2 calls it *vanilla*). The sender is also the application whose packets a fence must hold back.

use crate::rig::Rig;
use crate::sys;
use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

/// The hidden subcommand.
pub const ROLE: &str = "bench-plain";

/// The length of its packets: two or three of them are more than a bucket holds that shall hold them back.
const PACKET: usize = 512;

/// Its arguments.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Send to this address
    #[arg(long, conflicts_with = "listen")]
    pub send: Option<SocketAddr>,
    /// Receive at this address
    #[arg(long, required_unless_present = "send")]
    pub listen: Option<SocketAddr>,
    /// Between two packets
    #[arg(long, default_value_t = 10_000_000)]
    pub period_ns: u64,
    /// Send with real-time priority
    #[arg(long)]
    pub realtime: bool,
    /// Without a packet for so long the sender is called dead
    #[arg(long, default_value_t = 100_000_000)]
    pub timeout_ns: u64,
}

/// What a sender says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Packets that it tried to send.
    pub tried: u64,
    /// Of them those that the kernel refused.
    pub refused: u64,
}

/// What a receiver says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// When it called the sender dead, since it was last asked to begin anew.
    pub accused_ns: Vec<u64>,
    /// Packets, ever.
    pub packets: u64,
    /// When the latest came.
    pub last_ns: u64,
    /// When the latest packet that came was sent, by the sender's clock just before its call.
    pub sent_ns: u64,
}

/// What a helper is told.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Order {
    /// Forget the accusations.
    Begin,
    /// Say how it stands.
    Report,
    /// Receive nothing any more, or again.
    Deaf(bool),
    /// A send buffer of so many bytes.
    SendBuffer(i32),
}

// ---- in the helper process -----------------------------------------------------------------------------------------------------

fn answer(value: &impl Serialize) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(value)?)?;
    Ok(out.flush()?)
}

/// What the hidden subcommand does, until its standard input ends.
///
/// # Errors
/// When it cannot have its socket.
pub fn run(args: &Args) -> Result<()> {
    match (args.send, args.listen) {
        (Some(to), _) => send(to, args.period_ns, args.realtime),
        (_, Some(at)) => listen(at, args.timeout_ns),
        _ => bail!("--send or --listen"),
    }
}

/// Starts a thread; returns its id.
fn thread(body: impl FnOnce() + Send + 'static) -> Result<i32> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        // Whoever started it waits for this.
        let _ = tell.send(sys::thread_id());
        body();
    });
    Ok(told.recv()?)
}

fn orders(mut obey: impl FnMut(Order) -> Result<()>) -> Result<()> {
    for line in io::stdin().lock().lines() {
        obey(serde_json::from_str(&line?)?)?;
    }
    Ok(())
}

fn locked<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn send(to: SocketAddr, period_ns: u64, realtime: bool) -> Result<()> {
    let socket = UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(to)?;
    let sent = Arc::new(Mutex::new(Sent::default()));
    let (theirs, sending) = (Arc::clone(&sent), socket.try_clone()?);
    let tid = thread(move || {
        if realtime {
            // Refused: then it is late when it is starved, as it was not to be.
            let _ = sys::be_realtime(sys::UPCALL_PRIORITY);
        }
        let mut due = sys::now_ns();
        loop {
            // After a long pause there is no point in sending what is overdue.
            due = (due + period_ns).max(sys::now_ns().saturating_sub(period_ns));
            sys::sleep_until(due);
            let mut packet = [0; PACKET];
            packet[..8].copy_from_slice(&sys::now_ns().to_be_bytes());
            let refused = sending.send(&packet).is_err();
            let mut sent = locked(&theirs);
            sent.tried += 1;
            sent.refused += u64::from(refused);
        }
    })?;
    answer(&tid)?;
    orders(|order| match order {
        Order::SendBuffer(bytes) => {
            sys::send_buffer(socket.as_fd(), bytes)?;
            answer(&Sent::default())
        }
        Order::Report | Order::Begin | Order::Deaf(_) => {
            let sent = *locked(&sent);
            answer(&sent)
        }
    })
}

/// What the threads of a receiver share; nothing that one of them could hold while it is stopped.
#[derive(Default)]
struct Shared {
    last_ns: AtomicU64,
    packets: AtomicU64,
    sent_ns: AtomicU64,
}

fn listen(at: SocketAddr, timeout_ns: u64) -> Result<()> {
    let socket = UdpSocket::bind(at).with_context(|| format!("cannot listen at {at}"))?;
    let shared = Arc::new(Shared { last_ns: sys::now_ns().into(), ..Shared::default() });
    let (theirs, receiving) = (Arc::clone(&shared), socket.try_clone()?);
    let tid = thread(move || {
        let mut packet = [0; PACKET];
        loop {
            let Ok(PACKET) = receiving.recv(&mut packet) else { continue };
            let sent_ns = packet[..8].iter().fold(0, |n, b| n << 8 | u64::from(*b));
            theirs.last_ns.store(sys::now_ns(), Ordering::SeqCst);
            theirs.sent_ns.fetch_max(sent_ns, Ordering::SeqCst);
            theirs.packets.fetch_add(1, Ordering::SeqCst);
        }
    })?;
    let accused = Arc::new(Mutex::new(Vec::new()));
    let (theirs, accusations) = (Arc::clone(&shared), Arc::clone(&accused));
    thread(move || {
        let mut accused_since = 0;
        loop {
            std::thread::sleep(Duration::from_nanos(timeout_ns / 20));
            let (last, now) = (theirs.last_ns.load(Ordering::SeqCst), sys::now_ns());
            if now.saturating_sub(last) > timeout_ns && last != accused_since {
                accused_since = last;
                locked(&accusations).push(now);
            }
        }
    })?;
    answer(&tid)?;
    orders(|order| {
        match order {
            Order::Deaf(deaf) => sys::be_deaf(socket.as_fd(), deaf)?,
            Order::Begin => locked(&accused).clear(),
            Order::Report | Order::SendBuffer(_) => {}
        }
        let heard = Heard {
            accused_ns: locked(&accused).clone(),
            packets: shared.packets.load(Ordering::SeqCst),
            last_ns: shared.last_ns.load(Ordering::SeqCst),
            sent_ns: shared.sent_ns.load(Ordering::SeqCst),
        };
        answer(&heard)
    })
}

// ---- in the parent -------------------------------------------------------------------------------------------------------------

/// A helper that runs.
#[derive(Debug)]
struct Helper {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    tid: i32,
}

impl Helper {
    fn start(rig: &Rig, host: u16, args: &[String]) -> Result<Self> {
        let mut command = rig.helper(host, ROLE)?;
        let mut child =
            command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a helper")?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else { bail!("a helper without pipes") };
        let mut helper = Self { child, stdin, stdout: BufReader::new(stdout), tid: 0 };
        helper.tid = helper.hear().with_context(|| format!("{ROLE} on h{host} did not become ready"))?;
        Ok(helper)
    }

    fn hear<T: for<'a> Deserialize<'a>>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("{ROLE} said {line:?}"))
    }

    fn ask<T: for<'a> Deserialize<'a>>(&mut self, order: Order) -> Result<T> {
        writeln!(self.stdin, "{}", serde_json::to_string(&order)?)?;
        self.hear()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // It may have ended by itself; frozen or stopped, it ends all the same.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One that sends.
#[derive(Debug)]
pub struct Sender(Helper);

impl Sender {
    /// Starts one on a host.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn start(rig: &Rig, host: u16, to: SocketAddr, period_ns: u64) -> Result<Self> {
        Self::with(rig, host, to, period_ns, &[])
    }

    /// The same, with a thread that no load of ours starves.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn undisturbed(rig: &Rig, host: u16, to: SocketAddr, period_ns: u64) -> Result<Self> {
        Self::with(rig, host, to, period_ns, &["--realtime".to_string()])
    }

    fn with(rig: &Rig, host: u16, to: SocketAddr, period_ns: u64, more: &[String]) -> Result<Self> {
        let args = ["--send".into(), to.to_string(), "--period-ns".into(), period_ns.to_string()];
        Ok(Self(Helper::start(rig, host, &[&args[..], more].concat())?))
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.child.id()
    }

    /// How it stands.
    ///
    /// # Errors
    /// When it is gone. Waits while it is stopped.
    pub fn report(&mut self) -> Result<Sent> {
        self.0.ask(Order::Report)
    }

    /// Gives its socket a buffer of so many bytes; the kernel has a least.
    ///
    /// # Errors
    /// As [`Sender::report`].
    pub fn buffer(&mut self, bytes: i32) -> Result<()> {
        self.0.ask::<Sent>(Order::SendBuffer(bytes)).map(drop)
    }
}

/// One that receives, with its timeout.
#[derive(Debug)]
pub struct Receiver(Helper);

impl Receiver {
    /// Starts one on a host.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn start(rig: &Rig, host: u16, at: SocketAddr, timeout_ns: u64) -> Result<Self> {
        let args = ["--listen".into(), at.to_string(), "--timeout-ns".into(), timeout_ns.to_string()];
        Ok(Self(Helper::start(rig, host, &args)?))
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.child.id()
    }

    /// The thread that receives.
    #[must_use]
    pub fn receiving_thread(&self) -> i32 {
        self.0.tid
    }

    /// Forgets its accusations.
    ///
    /// # Errors
    /// When it is gone. Waits while it is stopped.
    pub fn begin(&mut self) -> Result<()> {
        self.0.ask::<Heard>(Order::Begin).map(drop)
    }

    /// How it stands.
    ///
    /// # Errors
    /// As [`Receiver::begin`].
    pub fn report(&mut self) -> Result<Heard> {
        self.0.ask(Order::Report)
    }

    /// Its socket drops what comes, or takes it again.
    ///
    /// # Errors
    /// As [`Receiver::begin`].
    pub fn deaf(&mut self, deaf: bool) -> Result<()> {
        self.0.ask::<Heard>(Order::Deaf(deaf)).map(drop)
    }
}
