//! Real heartbeats, recorded one by one: the lane's own, and those of an ordinary program beside it.
//!
//! The lane's heartbeats are made visible by letting a message ride on each of them (F8): whoever receives it is told when the
//! heartbeat was sent and when the receive program saw it. The ordinary program is the detector that everybody writes first: a
//! thread that sleeps and sends a UDP packet, and one that receives and looks at the clock.

use crate::rig::Rig;
use crate::sys;
use anyhow::{Context as _, Result, bail};
use fide_client::{Client, Error, Event, Resources};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The hidden subcommand.
pub const ROLE: &str = "bench-heartbeats";

/// The name of the process whose messages ride on the lane's heartbeats.
const BEACON: &str = "beacon";

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Give the lane a message for every heartbeat
    LaneSend,
    /// Record the lane's heartbeats
    LaneReceive,
    /// Send UDP packets, as an ordinary program does
    UdpSend,
    /// Record them, as an ordinary program does
    UdpReceive,
}

/// Its arguments.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What to do
    #[arg(long)]
    pub mode: Mode,
    /// The agent's socket
    #[arg(long)]
    pub agent: Option<PathBuf>,
    /// Where to send UDP packets, or to receive them
    #[arg(long)]
    pub address: Option<SocketAddr>,
    /// Between two UDP packets
    #[arg(long, default_value_t = 1_000_000)]
    pub period_ns: u64,
}

/// One heartbeat as it was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// Its number.
    pub number: u64,
    /// When it was sent.
    pub sent_ns: u64,
    /// When the detector's clock saw it: the receive program's stamp for the lane, the program's own for UDP.
    pub seen_ns: u64,
}

// ---- in the helper process -----------------------------------------------------------------------------------------------------

/// What the hidden subcommand does, until its standard input ends. Receivers then print what they recorded.
///
/// # Errors
/// When it cannot join, monitor, or have its socket.
pub fn run(args: &Args) -> Result<()> {
    let over = Arc::new(AtomicBool::new(false));
    let at_end = Arc::clone(&over);
    std::thread::spawn(move || {
        // Whatever ends it, it is over.
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        at_end.store(true, Ordering::Release);
    });
    let client = || Client::open(args.agent.as_deref());
    let address = || args.address.context("--address is missing");
    let ready = || -> Result<()> {
        println!("ready");
        Ok(io::stdout().flush()?)
    };
    let mut beats = Vec::with_capacity(1 << 18);
    match args.mode {
        Mode::LaneSend => {
            let client = client()?;
            client.join(BEACON, 64)?;
            let _ = sys::be_realtime(sys::STAMPER_PRIORITY);
            ready()?;
            while !over.load(Ordering::Acquire) {
                match client.piggyback(b"beat") {
                    Ok(()) => {}
                    // Enough for the next 64 heartbeats.
                    Err(Error::Full) => std::thread::sleep(Duration::from_millis(4)),
                    Err(e) => return Err(e.into()),
                }
            }
        }
        Mode::LaneReceive => {
            let client = client()?;
            client.monitor(&format!("{BEACON}@h1"), Resources { pbsize: 64, ..Resources::default() })?;
            let _ = sys::be_realtime(sys::STAMPER_PRIORITY);
            ready()?;
            while !over.load(Ordering::Acquire) {
                if let Some(Event::Piggyback(p)) = client.poll(Some(Duration::from_millis(100)))? {
                    beats.push(Beat { number: p.number, sent_ns: p.sent_ns, seen_ns: p.received_ns });
                }
            }
        }
        Mode::UdpSend => {
            let socket = UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect(address()?)?;
            ready()?;
            let mut due = sys::now_ns();
            let mut number = 0u64;
            while !over.load(Ordering::Acquire) {
                due += args.period_ns;
                sys::sleep_until(due);
                number += 1;
                let mut packet = [0; 16];
                packet[..8].copy_from_slice(&number.to_be_bytes());
                packet[8..].copy_from_slice(&sys::now_ns().to_be_bytes());
                // Nobody there yet, or a full queue: a heartbeat lost, as in life.
                let _ = socket.send(&packet);
                // After a long pause there is no point in sending what is overdue.
                due = due.max(sys::now_ns().saturating_sub(args.period_ns));
            }
        }
        Mode::UdpReceive => {
            let socket = UdpSocket::bind(address()?)?;
            socket.set_read_timeout(Some(Duration::from_millis(100)))?;
            ready()?;
            let mut packet = [0; 16];
            while !over.load(Ordering::Acquire) {
                if !matches!(socket.recv(&mut packet), Ok(16)) {
                    continue;
                }
                let seen_ns = sys::now_ns();
                let word = |at: usize| packet[at..at + 8].iter().fold(0, |n, b| n << 8 | u64::from(*b));
                beats.push(Beat { number: word(0), sent_ns: word(8), seen_ns });
            }
        }
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    for b in beats {
        writeln!(out, "{} {} {}", b.number, b.sent_ns, b.seen_ns)?;
    }
    Ok(out.flush()?)
}

// ---- in the parent -------------------------------------------------------------------------------------------------------------

/// A helper that runs.
#[derive(Debug)]
pub struct Helper {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts one on a host; returns when it is ready.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn start(rig: &Rig, host: u16, mode: Mode, address: Option<SocketAddr>, period_ns: u64) -> Result<Self> {
        use clap::ValueEnum as _;
        let mut command = rig.helper(host, ROLE)?;
        let name = mode.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default();
        command.arg("--mode").arg(name).arg("--agent").arg(rig.socket(host));
        command.arg("--period-ns").arg(period_ns.to_string());
        if let Some(address) = address {
            command.arg("--address").arg(address.to_string());
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a helper")?;
        let stdin = child.stdin.take();
        let Some(stdout) = child.stdout.take() else { bail!("a helper without a pipe") };
        let mut helper = Helper { child, stdin, stdout: BufReader::new(stdout) };
        let mut line = String::new();
        helper.stdout.read_line(&mut line)?;
        anyhow::ensure!(line == "ready\n", "{mode:?} on h{host} did not become ready");
        Ok(helper)
    }

    /// Ends it, and returns what it recorded, by number.
    ///
    /// # Errors
    /// When it says nonsense.
    pub fn finish(mut self) -> Result<Vec<Beat>> {
        drop(self.stdin.take());
        let mut beats = Vec::new();
        for line in (&mut self.stdout).lines() {
            beats.push(parse(&line?).context("a helper recorded nonsense")?);
        }
        self.child.wait()?;
        beats.sort_unstable_by_key(|b| b.number);
        Ok(beats)
    }
}

fn parse(line: &str) -> Option<Beat> {
    let mut numbers = line.split(' ').map(|n| n.parse().ok());
    Some(Beat { number: numbers.next()??, sent_ns: numbers.next()??, seen_ns: numbers.next()?? })
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_recorded_is_read_back() {
        assert_eq!(parse("3 10 25"), Some(Beat { number: 3, sent_ns: 10, seen_ns: 25 }));
        for bad in ["", "3 10", "3 x 25"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
