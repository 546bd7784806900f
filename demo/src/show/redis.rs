//! A real redis-server on a host of the lab.

use crate::rig::{Rig, find_program};
use crate::sys;
use anyhow::{Context as _, Result, bail};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes of each value that fills it.
const VALUE: u64 = 1 << 20;

/// Its program.
///
/// # Errors
/// When it is not installed: with what to do.
pub fn find() -> Result<PathBuf> {
    find_program("redis-server").context(
        "the demonstration crashes a real redis-server, and there is none on this machine: install it with `apt-get install redis-server`",
    )
}

/// One that runs.
#[derive(Debug)]
pub struct Redis {
    child: Child,
    commands: BufReader<TcpStream>,
    /// Where it listens, on its host's first network.
    pub address: SocketAddr,
    /// Its own directory, removed with it: its log, and its core dump.
    directory: PathBuf,
}

impl Redis {
    /// Starts one in a directory of its own; `prepare` may add to the command. Returns when it answers.
    ///
    /// # Errors
    /// When it does not start, with the end of its log.
    pub fn start(rig: &Rig, host: u16, port: u16, prepare: impl FnOnce(&mut Command)) -> Result<Redis> {
        let directory = rig.lab().host_dir(host).join(format!("redis-{port}"));
        fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let log = directory.join("redis.log");
        let output = File::create(&log)?;
        let errors = output.try_clone()?;
        let address = SocketAddr::from((rig.lab().ipv4(host, 0), port));
        let mut command = rig.lab().command(host, find()?)?;
        command.current_dir(&directory).arg("--port").arg(port.to_string());
        // Reachable from the other hosts of the lab and from nowhere else. It keeps nothing on disk. Its own report of a
        // SIGSEGV is off, so that the fault is what ends it.
        for option in [
            "--bind 0.0.0.0",
            "--protected-mode no",
            "--appendonly no",
            "--enable-debug-command yes",
            "--crash-log-enabled no",
            "--disable-thp yes",
            "--timeout 0",
        ] {
            command.args(option.split(' '));
        }
        command.args(["--save", ""]).stdin(Stdio::null()).stdout(output).stderr(errors);
        prepare(&mut command);
        let mut child = command.spawn().context("cannot run redis-server")?;
        let deadline = Instant::now() + Duration::from_secs(10);
        let commands = loop {
            if let Some(status) = child.try_wait()? {
                let text = fs::read_to_string(&log).unwrap_or_default();
                bail!("redis-server ended ({status}): {}", text.lines().last().unwrap_or_default());
            }
            match rig.lab().in_host(host, || TcpStream::connect(address))? {
                Ok(stream) => break stream,
                Err(e) if Instant::now() >= deadline => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(e).context("redis-server does not answer");
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        commands.set_read_timeout(Some(Duration::from_secs(60)))?;
        commands.set_nodelay(true)?;
        let mut redis = Redis { child, commands: BufReader::new(commands), address, directory };
        let answer = redis.ask("PING")?;
        anyhow::ensure!(answer == "+PONG", "redis-server answered PING with {answer:?}");
        Ok(redis)
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command and does not wait for its answer; returns the moment immediately before.
    ///
    /// # Errors
    /// When it is gone.
    pub fn send(&mut self, command: &str) -> Result<u64> {
        let line = format!("{command}\r\n");
        let at = sys::now_ns();
        self.commands.get_mut().write_all(line.as_bytes())?;
        Ok(at)
    }

    fn ask(&mut self, command: &str) -> Result<String> {
        self.send(command)?;
        let mut answer = String::new();
        self.commands.read_line(&mut answer)?;
        Ok(answer.trim_end().to_string())
    }

    /// Gives it so much to remember. Returns what is resident then.
    ///
    /// # Errors
    /// When it refuses.
    pub fn fill(&mut self, bytes: u64) -> Result<u64> {
        let answer = self.ask(&filling("kept", bytes))?;
        anyhow::ensure!(answer == "+OK", "redis-server refused to be filled: {answer}");
        Ok(sys::usage(self.pid())?.1)
    }

    /// Begins to give it more, and does not wait.
    ///
    /// # Errors
    /// When it is gone.
    pub fn overfill(&mut self, bytes: u64) -> Result<u64> {
        self.send(&filling("more", bytes))
    }

    /// Bytes that its core dump takes on disk (it has holes), if it left one.
    #[must_use]
    pub fn core_bytes(&self) -> Option<u64> {
        let files = fs::read_dir(&self.directory).ok()?.flatten();
        let mut cores = files.filter(|f| f.file_name().to_string_lossy().starts_with("core"));
        cores.next().and_then(|f| f.metadata().ok()).map(|m| m.blocks() * 512)
    }

    /// Waits until it is gone altogether.
    ///
    /// # Errors
    /// Those of waitpid.
    pub fn reap(&mut self) -> Result<()> {
        self.child.wait()?;
        Ok(())
    }
}

fn filling(prefix: &str, bytes: u64) -> String {
    format!("DEBUG POPULATE {} {prefix} {VALUE}", bytes.div_ceil(VALUE))
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A core dump is large; it need not wait for the lab's end.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_gigabytes_are_that_many_values() {
        assert_eq!(super::filling("k", 2 << 30), "DEBUG POPULATE 2048 k 1048576");
        assert_eq!(super::filling("k", 1), "DEBUG POPULATE 1 k 1048576");
    }
}
