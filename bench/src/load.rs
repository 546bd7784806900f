//! What disturbs a measurement on purpose: stress-ng on every core, and iperf3 through the switches.

use crate::rig::{Rig, find_program};
use crate::sys;
use anyhow::{Context as _, Result, bail};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How much goes on beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Load {
    /// Nothing of ours
    Idle,
    /// stress-ng (cpu, timer, io, vm on every core)
    Stress,
    /// The same, and iperf3 through h1's link as fast as it goes
    Traffic,
}

impl Load {
    /// As in the names of cases.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Load::Idle => "idle",
            Load::Stress => "stress",
            Load::Traffic => "stress+iperf3",
        }
    }
}

/// Memory of each of stress-ng's vm workers: bounded, so that the machine never runs out.
const VM_BYTES: &str = "128M";
/// Where iperf3 listens unless told otherwise.
const IPERF_PORT: u16 = 5201;

/// Load that ends when dropped.
#[derive(Debug)]
pub struct Running {
    children: Vec<Child>,
}

/// Starts it, and waits until it bites.
///
/// # Errors
/// When stress-ng or iperf3 is not installed.
pub fn start(rig: &Rig, load: Load) -> Result<Running> {
    let mut running = Running { children: Vec::new() };
    if load == Load::Idle {
        return Ok(running);
    }
    let program = |name: &str| {
        find_program(name)
            .with_context(|| format!("{name} is not installed: apt-get install {name}, or measure with --load idle"))
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    let mut run = |host, program: &std::path::Path, args: &[&str]| -> Result<()> {
        let mut command = rig.lab().command(host, program)?;
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        running.children.push(command.spawn().with_context(|| format!("cannot run {}", program.display()))?);
        Ok(())
    };
    // Its files, if any, in the lab's directory; at most a day, should nobody end it.
    let third = rig.spec().hosts.min(3);
    let scratch = rig.lab().host_dir(third).display().to_string();
    let workers = ["--cpu", "--timer", "--io", "--vm"].map(|kind| [kind, cores.as_str()]).concat();
    let bounds = ["--vm-bytes", VM_BYTES, "--timeout", "86400", "--temp-path", &scratch];
    run(third, &program("stress-ng")?, &[&workers[..], &bounds].concat())?;
    if load == Load::Traffic {
        let iperf = program("iperf3")?;
        let address = rig.lab().ipv4(1, 0).to_string();
        run(1, &iperf, &["--server"])?;
        let listening = Instant::now() + Duration::from_secs(10);
        while rig.lab().in_host(1, || std::net::TcpStream::connect((rig.lab().ipv4(1, 0), IPERF_PORT)))?.is_err() {
            if Instant::now() > listening {
                bail!("iperf3 does not listen");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        run(2, &iperf, &["--client", &address, "--time", "86400"])?;
    }
    std::thread::sleep(Duration::from_secs(2));
    for child in &mut running.children {
        if let Some(status) = child.try_wait()? {
            bail!("a load generator ended at once ({status})");
        }
    }
    Ok(running)
}

impl Drop for Running {
    fn drop(&mut self) {
        for child in &self.children {
            let _ = sys::kill(child.id(), libc::SIGTERM);
        }
        let deadline = Instant::now() + Duration::from_secs(5);
        for child in &mut self.children {
            while matches!(child.try_wait(), Ok(None)) {
                if Instant::now() > deadline {
                    // Its workers are the lab's to end.
                    let _ = child.kill();
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
