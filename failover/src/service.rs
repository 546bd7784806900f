//! The thread that talks to the server, so that nothing else waits for it.

use crate::address::Address;
use crate::config::Config;
use crate::judge::{Action, Done};
use crate::server::{Report, Server};
use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// The server is asked how it is so often.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// … while it has not found its leader: a leader that ends a moment behind that is followed by a
/// server that was seen to have all.
const LOOK_SOON: Duration = Duration::from_millis(20);
/// A program of `[run]` is ended after so long.
const RUN_MAX: Duration = Duration::from_secs(10);

/// What the thread says.
#[derive(Debug)]
pub enum Said {
    /// How the server is.
    Report(Result<Report, String>),
    /// What became of an action.
    Done(Done),
    /// Something an operator should know; empty: it is mended.
    Doubt(String),
}

/// The thread.
pub struct Service {
    orders: Sender<Action>,
    said: Receiver<Said>,
    bell: PipeReader,
}

struct Worker {
    config: Config,
    server: Box<dyn Server>,
    address: Option<Address>,
    orders: Receiver<Action>,
    said: Sender<Said>,
    bell: PipeWriter,
    doubt: String,
    /// It follows, and does not have all that its leader has.
    lags: bool,
}

impl Service {
    /// Begins.
    ///
    /// # Errors
    /// What of the configuration cannot be.
    pub fn start(config: &Config) -> anyhow::Result<Self> {
        let (orders, from) = channel();
        let (to, said) = channel();
        let (bell, ring) = std::io::pipe()?;
        let server = config.server()?;
        let address = config.address.as_ref().map(Address::new).transpose()?;
        let worker = Worker {
            config: config.clone(),
            server,
            address,
            orders: from,
            said: to,
            bell: ring,
            doubt: String::new(),
            lags: false,
        };
        std::thread::Builder::new().name("server".into()).spawn(move || worker.run())?;
        Ok(Self { orders, said, bell })
    }

    /// Asks for something.
    pub fn order(&self, action: Action) {
        // The thread ends with this process only.
        _ = self.orders.send(action);
    }

    /// What it said since. After a readable descriptor, at least one.
    pub fn said(&mut self) -> Vec<Said> {
        let said: Vec<Said> = self.said.try_iter().collect();
        let mut rung = vec![0; said.len()];
        // One byte was written behind each.
        _ = self.bell.read_exact(&mut rung);
        said
    }
}

impl AsFd for Service {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Worker {
    fn run(mut self) {
        let mut look_at = Instant::now();
        loop {
            let next = self.address.as_ref().and_then(Address::timeout).map_or(look_at, |at| at.min(look_at));
            match self.orders.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(action) => self.obey(&action),
                Err(RecvTimeoutError::Timeout) if look_at <= Instant::now() => self.look(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if let Some(address) = &mut self.address {
                address.announce_again();
            }
            if look_at <= Instant::now() {
                let every = match () {
                    () if self.config.unit.is_some() => LOOK_EVERY * 10,
                    () if self.lags => LOOK_SOON,
                    () => LOOK_EVERY,
                };
                look_at = Instant::now() + every;
            }
        }
    }

    fn say(&mut self, said: Said) {
        _ = self.said.send(said);
        _ = self.bell.write_all(&[0]);
    }

    fn look(&mut self) {
        let report = self.server.look();
        let has_all = |report: &Report| report.primary || report.synced_ago.is_some_and(|ago| ago < LOOK_SOON);
        self.lags = report.as_ref().is_ok_and(|report| !has_all(report));
        self.say(Said::Report(report));
    }

    fn obey(&mut self, action: &Action) {
        let (done, program) = match action {
            Action::Look => return self.look(),
            Action::Propose(_) => return,
            Action::BeStill => return self.address.iter_mut().for_each(Address::be_still),
            Action::Yield => return self.move_address(false),
            Action::Lead { term, instance } => {
                let result = self.server.lead(instance);
                if result.is_ok() {
                    self.move_address(true);
                }
                let program = (result.is_ok(), *term, &self.config.run.leading);
                (Done::Lead(*term, result.clone()), Some(program))
            }
            Action::Follow { term, address } => {
                let result = self.server.follow(address);
                let program = (result.is_ok(), *term, &self.config.run.following);
                (Done::Follow(*term, result.clone()), Some(program))
            }
            Action::Close => {
                self.move_address(false);
                (Done::Close(self.server.close()), None)
            }
            Action::Hand { term, address } => (Done::Hand(*term, self.server.hand(address)), None),
        };
        if let Some((true, term, program)) = program {
            run(program, &self.config.name, term);
        }
        // How it is now comes before the word that it is so.
        self.look();
        self.say(Said::Done(done));
    }

    fn move_address(&mut self, take: bool) {
        let Some(address) = &mut self.address else { return };
        let doubt = if take { address.take() } else { address.drop() }.err().unwrap_or_default();
        if doubt != self.doubt {
            self.doubt.clone_from(&doubt);
            self.say(Said::Doubt(doubt));
        }
    }
}

/// Runs a program of the configuration; a thread waits for it.
fn run(words: &[String], name: &str, term: u64) {
    let Some((program, arguments)) = words.split_first() else { return };
    let mut command = Command::new(program);
    command.args(arguments).env("FIDE_NAME", name).env("FIDE_TERM", term.to_string()).stdin(Stdio::null());
    let program = program.clone();
    match command.spawn() {
        Err(e) => tracing::warn!("cannot run {program}: {e}"),
        Ok(mut child) => {
            let wait = move || {
                let until = Instant::now() + RUN_MAX;
                loop {
                    match child.try_wait() {
                        Ok(Some(status)) if status.success() => return,
                        Ok(Some(status)) => return tracing::warn!("{program}: {status}"),
                        Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
                        _ => {
                            tracing::warn!("{program} is ended after {} s", RUN_MAX.as_secs());
                            _ = child.kill();
                            _ = child.wait();
                            return;
                        }
                    }
                }
            };
            _ = std::thread::Builder::new().name("run".into()).spawn(wait);
        }
    }
}
