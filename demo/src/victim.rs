//! A process to crash: holds memory in 4 KiB pages, keeps TCP connections, and otherwise does nothing.

use crate::peers::{self, Target};
use crate::rig::Rig;
use crate::sys;
use anyhow::{Context as _, Result, bail};
use fide_client::Client;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// The hidden subcommand.
pub const ROLE: &str = "bench-victim";

/// Its arguments.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How many bytes to keep resident
    #[arg(long, default_value_t = 0)]
    pub rss: u64,
    /// Where to listen
    #[arg(long)]
    pub listen: Option<SocketAddr>,
    /// Join under this name, and quit politely at the end of standard input
    #[arg(long, requires = "agent")]
    pub join: Option<String>,
    /// The agent's socket
    #[arg(long)]
    pub agent: Option<PathBuf>,
    /// Move every millisecond, and be hung when that stops for so many ms
    #[arg(long, value_name = "MS", requires_all = ["join", "moved"])]
    pub limit: Option<u64>,
    /// Where to write when it moved last: eight bytes, ns
    #[arg(long, value_name = "FILE", requires = "limit")]
    pub moved: Option<PathBuf>,
    /// A key of etcd or ZooKeeper to keep alive, as JSON
    #[arg(long, value_name = "TARGET", value_parser = target)]
    pub keep: Vec<Target>,
}

fn target(text: &str) -> Result<Target, String> {
    serde_json::from_str(text).map_err(|e| e.to_string())
}

/// How long until all keys must be kept.
const REGISTERED: Duration = Duration::from_secs(20);

/// Keeps each key in a thread of its own; returns what each was granted, ms.
fn keep(targets: &[Target]) -> Result<Vec<u64>> {
    let granted: Vec<_> = targets
        .iter()
        .map(|target| {
            let (sender, granted) = mpsc::channel();
            let target = target.clone();
            std::thread::spawn(move || {
                let Err(e) = peers::keep(&target, |ms| {
                    // Whoever waited has given up, and this process with it.
                    let _ = sender.send(ms);
                });
                eprintln!("{ROLE}: {} is not kept alive any more: {e:#}", target.key);
            });
            granted
        })
        .collect();
    granted.iter().map(|g| g.recv_timeout(REGISTERED).context("a key was not granted")).collect()
}

/// What the hidden subcommand does. Returns when its standard input ends.
///
/// # Errors
/// When it cannot listen, join or have the memory.
pub fn run(args: &Args) -> Result<()> {
    let listener = args.listen.map(TcpListener::bind).transpose().context("cannot listen")?;
    if let Some(listener) = listener {
        std::thread::spawn(move || {
            let mut open = Vec::new();
            for stream in listener.incoming().flatten() {
                open.push(stream);
            }
        });
    }
    sys::touch(usize::try_from(args.rss)?).context("cannot have the memory")?;
    let mut app = 0;
    let client = match (&args.join, &args.agent) {
        (Some(name), Some(socket)) => {
            let client = Client::open(Some(socket))?;
            app = client.join(name, 0)?.0;
            Some(client)
        }
        _ => None,
    };
    if let (Some(client), Some(limit), Some(moved)) = (&client, args.limit, &args.moved) {
        let progress = client.progress(Duration::from_millis(limit))?;
        let stamp = File::create(moved).with_context(|| format!("cannot write {}", moved.display()))?;
        std::thread::spawn(move || {
            // Until it is stopped, or ends.
            progress.begin();
            while stamp.write_all_at(&sys::now_ns().to_ne_bytes(), 0).is_ok() {
                progress.tick();
                std::thread::sleep(Duration::from_millis(1));
            }
            eprintln!("{ROLE}: cannot say any more when it moved");
        });
    }
    let granted = keep(&args.keep)?;
    println!("{}", [u64::from(app)].iter().chain(&granted).fold("ready".to_string(), |line, n| format!("{line} {n}")));
    io::stdout().flush()?;
    // Sleeps here; what is written to it does not matter.
    io::stdin().lock().read_to_end(&mut Vec::new())?;
    if let Some(client) = client {
        println!("quitting {}", sys::now_ns());
        io::stdout().flush()?;
        client.quit()?;
    }
    Ok(())
}

/// One that runs.
#[derive(Debug)]
pub struct Victim {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<std::process::ChildStdout>,
    /// Where it listens, on the host's first network.
    pub address: SocketAddr,
    /// Its number, if it joined itself.
    pub app: u32,
    /// What each key that it keeps was granted, ms.
    pub granted_ms: Vec<u64>,
}

impl Victim {
    /// Starts one; returns when its memory is touched and it listens.
    ///
    /// # Errors
    /// When it cannot.
    pub fn start(rig: &Rig, host: u16, port: u16, rss: u64, join: Option<&str>) -> Result<Victim> {
        let (mut command, address) = Victim::command(rig, host, port, rss)?;
        if let Some(name) = join {
            command.arg("--join").arg(name).arg("--agent").arg(rig.socket(host));
        }
        Victim::launch(command, address)
    }

    /// Starts one that joins under this name and moves every millisecond, with a limit on standing still; `moved` says when it moved last.
    ///
    /// # Errors
    /// When it cannot.
    pub fn moving(rig: &Rig, host: u16, port: u16, join: &str, limit: Duration, moved: &Path) -> Result<Victim> {
        let (mut command, address) = Victim::command(rig, host, port, 0)?;
        command.arg("--join").arg(join).arg("--agent").arg(rig.socket(host));
        command.arg("--limit").arg(limit.as_millis().to_string()).arg("--moved").arg(moved);
        Victim::launch(command, address)
    }

    /// Starts one that also keeps these keys; returns when it does.
    ///
    /// # Errors
    /// When it cannot.
    pub fn keeping(rig: &Rig, host: u16, port: u16, rss: u64, targets: &[Target]) -> Result<Victim> {
        let (mut command, address) = Victim::command(rig, host, port, rss)?;
        for target in targets {
            command.arg("--keep").arg(serde_json::to_string(target)?);
        }
        Victim::launch(command, address)
    }

    fn command(rig: &Rig, host: u16, port: u16, rss: u64) -> Result<(Command, SocketAddr)> {
        let address = SocketAddr::from((rig.lab().ipv4(host, 0), port));
        let mut command = rig.helper(host, ROLE)?;
        command.arg("--rss").arg(rss.to_string()).arg("--listen").arg(address.to_string());
        Ok((command, address))
    }

    fn launch(mut command: Command, address: SocketAddr) -> Result<Victim> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a victim")?;
        let stdin = child.stdin.take();
        let Some(stdout) = child.stdout.take() else { bail!("a victim without a pipe") };
        let mut victim = Victim { child, stdin, stdout: BufReader::new(stdout), address, app: 0, granted_ms: Vec::new() };
        let line = victim.line()?;
        let ready = line.strip_prefix("ready ").and_then(|numbers| {
            let mut numbers = numbers.split(' ').map(str::parse::<u64>);
            let app = u32::try_from(numbers.next()?.ok()?).ok()?;
            Some((app, numbers.collect::<Result<_, _>>().ok()?))
        });
        (victim.app, victim.granted_ms) = ready.with_context(|| format!("a victim did not become ready: {line:?}"))?;
        Ok(victim)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line.trim_end().to_string())
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends its standard input. One that joined says when it quits.
    ///
    /// # Errors
    /// When it does not.
    pub fn quit(&mut self) -> Result<u64> {
        drop(self.stdin.take());
        let line = self.line()?;
        let at = line.strip_prefix("quitting ").and_then(|ns| ns.parse().ok());
        at.with_context(|| format!("it did not quit but said {line:?}"))
    }

    /// Waits until it is gone altogether.
    ///
    /// # Errors
    /// Those of waitpid.
    pub fn reap(&mut self) -> Result<()> {
        drop(self.stdin.take());
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
