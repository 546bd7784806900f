//! A process to crash: holds memory in 4 KiB pages, keeps TCP connections, and otherwise does nothing.

use crate::rig::Rig;
use crate::sys;
use anyhow::{Context as _, Result, bail};
use fide_client::Client;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};

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
    println!("ready {app}");
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
}

impl Victim {
    /// Starts one; returns when its memory is touched and it listens.
    ///
    /// # Errors
    /// When it cannot.
    pub fn start(rig: &Rig, host: u16, port: u16, rss: u64, join: Option<&str>) -> Result<Victim> {
        let address = SocketAddr::from((rig.lab().ipv4(host, 0), port));
        let mut command = rig.helper(host, ROLE)?;
        command.arg("--rss").arg(rss.to_string()).arg("--listen").arg(address.to_string());
        if let Some(name) = join {
            command.arg("--join").arg(name).arg("--agent").arg(rig.socket(host));
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a victim")?;
        let stdin = child.stdin.take();
        let Some(stdout) = child.stdout.take() else { bail!("a victim without a pipe") };
        let mut victim = Victim { child, stdin, stdout: BufReader::new(stdout), address, app: 0 };
        let line = victim.line()?;
        let app = line.strip_prefix("ready ").and_then(|app| app.parse().ok());
        victim.app = app.with_context(|| format!("a victim of {rss} bytes did not become ready: {line:?}"))?;
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
