//! `fide bench floor`: how noisy this machine is. One UDP round trip between two blocking real-time threads on two hosts of a lab,
//! again and again: what any figure of two hosts is held against, since machines of one kind differ twofold.

use crate::Outcome;
use crate::stats::{Case, Samples, human_us};
use crate::sys;
use crate::ui::Ui;
use anyhow::Context as _;
use fide_lab::{Lab, LabSpec};
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

/// Its arguments.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Round trips
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    pub trips: u32,
    /// From one to the next
    #[arg(long, default_value = "2ms", value_parser = humantime::parse_duration)]
    pub every: Duration,
}

/// What both threads run at, as agents do.
const PRIORITY: i32 = fide_lane::profile::PRIORITY;
/// How long an answer may take: a machine that is slower has no floor.
const ANSWER: Duration = Duration::from_secs(5);

/// Runs it.
///
/// # Errors
/// Without root, or when an answer does not come.
pub fn run(args: &Args, ui: &Ui) -> Outcome {
    sys::require_root("the floor of this machine")?;
    let lab = Lab::up(&LabSpec { hosts: 2, ephemeral: true, ..LabSpec::default() })?;
    let bind = |host| {
        let socket = lab.in_host(host, || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))??;
        socket.set_read_timeout(Some(ANSWER))?;
        anyhow::Ok(socket)
    };
    let (near, far) = (bind(1)?, bind(2)?);
    near.connect((lab.ipv4(2, 0), far.local_addr()?.port()))?;
    let trips = args.trips;
    let echo = std::thread::spawn(move || {
        // Not permitted: both are ordinary threads, and the figure says what it is.
        let _ = sys::be_realtime(PRIORITY);
        let mut packet = [0; 64];
        for _ in 0..=trips {
            let (length, from) = far.recv_from(&mut packet)?;
            far.send_to(&packet[..length], from)?;
        }
        std::io::Result::Ok(())
    });
    let is_realtime = sys::be_realtime(PRIORITY).is_ok();
    let measured = measure(&near, args, ui);
    sys::be_ordinary();
    let mut samples = measured?;
    echo.join().ok().context("the echo ended")??;
    let mut case = Case::new("floor", "UDP round trip of two blocking threads", &mut samples);
    if !is_realtime {
        case.notes.push("ordinary threads: SCHED_FIFO is not permitted".into());
    }
    if ui.json {
        ui.line(case.json());
    } else {
        let q = &case.quantiles;
        let [p50, p99, p999, max] = [q.p50, q.p99, q.p999, q.max].map(human_us);
        ui.line(format!("floor: {} of {}: median {p50}, p99 {p99}, p99.9 {p999}, maximum {max}", case.case, case.n));
        case.notes.iter().for_each(|note| ui.line(format!("  {note}")));
    }
    Ok(true)
}

fn measure(near: &UdpSocket, args: &Args, ui: &Ui) -> anyhow::Result<Samples> {
    let every_ns = u64::try_from(args.every.as_nanos()).context("--every is too long")?;
    let mut packet = [7; 64];
    let mut trip = || {
        let begun_ns = sys::now_ns();
        near.send(&packet)?;
        near.recv(&mut packet).context("no answer")?;
        anyhow::Ok(sys::now_ns() - begun_ns)
    };
    // The first one waits for address resolution.
    trip()?;
    let mut samples = Samples::default();
    let begun_ns = sys::now_ns();
    for number in 0..u64::from(args.trips) {
        ui.check()?;
        sys::sleep_until(begun_ns + number * every_ns);
        samples.push(trip()?);
    }
    Ok(samples)
}
