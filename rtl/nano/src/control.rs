//! The control software: everything over the register map ([`crate::driver::Driver`]).

use crate::args::{Command, Mode};
use crate::config::Group;
use crate::driver::{self, Ask, Driver};
use crate::{EMULATION, Refusal, shell};
use fide_proto::consensus::lowi::StartPoint;
use fide_proto::group::MemberId;
use fide_rtl::reg;
use fide_rtl::setup::{Built, Setup};
use serde::Serialize;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Names of halts, by STATUS.HALTED.
const HALTS: [&str; 8] = ["", "network fault", "missing broadcast", "expelled", "left", "capacity", "?", "?"];
/// Names of the DROPPED counters.
const DROPS: [&str; 16] = [
    "short",
    "oversize",
    "magic",
    "version",
    "cluster",
    "key",
    "tag",
    "service",
    "generation",
    "member",
    "path",
    "malformed",
    "too-large",
    "no-room",
    "not-leader",
    "over-rate",
];

/// What the registers say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// `hardware-model`, `software`, or `board`.
    pub kind: String,
    /// Whether it is no hardware.
    pub emulation: bool,
    /// Whether it was started.
    pub running: bool,
    /// Why it left the group, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub halted: Option<&'static str>,
    /// Whether it leads.
    pub leads: bool,
    /// The rank that leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader_rank: Option<u32>,
    /// The last round.
    pub round: u64,
    /// The last decision.
    pub decided: u64,
    /// Events that the core refused.
    pub refused: u32,
    /// Register writes that were refused.
    pub refused_writes: u32,
    /// Frames dropped, by reason; only what is not 0.
    pub dropped: Vec<(&'static str, u32)>,
}

fn checked(path: &Path) -> Result<Box<dyn Driver>, Refusal> {
    let mut engine = driver::open(path)?;
    let id = engine.read(reg::ID)?;
    if id != 0xf1de_0201 {
        return Err(Refusal::new(format!("{}: its ID is {id:#010x}, which is no engine of this register map", path.display()))
            .hint("0xf1de0201 was expected: name the right device, or install the release that fits it"));
    }
    Ok(engine)
}

/// Reads the registers.
///
/// # Errors
/// If the way to them is broken.
pub fn status(engine: &mut dyn Driver) -> Result<Status, Refusal> {
    let kind = engine.ask(&Ask::Info).ok().and_then(|answer| answer.kind);
    let word = engine.read(reg::STATUS)?;
    let bit = |at: u32| word >> at & 1 == 1;
    let mut dropped = Vec::new();
    for (name, at) in DROPS.into_iter().zip((reg::DROPPED..).step_by(4)) {
        let count = engine.read(at)?;
        if count > 0 {
            dropped.push((name, count));
        }
    }
    let halted = (word >> reg::STATUS_HALTED & 7) as usize;
    Ok(Status {
        emulation: kind.is_some(),
        kind: kind.unwrap_or_else(|| "board".into()),
        running: bit(reg::STATUS_RUNNING),
        halted: (halted != 0).then(|| HALTS[halted]),
        leads: bit(reg::STATUS_LEADS),
        leader_rank: bit(reg::STATUS_HAS_LEADER).then_some(word >> reg::STATUS_LEADER & 15),
        round: engine.read_long(reg::ROUND)?,
        decided: engine.read_long(reg::DECIDED)?,
        refused: engine.read(reg::REFUSED)?,
        refused_writes: engine.read(reg::REFUSED_WRITES)?,
        dropped,
    })
}

/// Writes settings, and reads back what can be read.
///
/// # Errors
/// What does not fit the engine, or which write it refused.
pub fn configure(engine: &mut dyn Driver, setup: &Setup) -> Result<(), Refusal> {
    let params = engine.read(reg::PARAMS)?;
    let built = Built {
        members: (params >> reg::PARAMS_MEMBERS & 255).into(),
        paths: (params >> reg::PARAMS_PATHS & 15).into(),
        window: (params >> reg::PARAMS_WINDOW & 255).into(),
        ..Built::default()
    };
    setup.check(built).map_err(|why| Refusal::new(why.to_string()))?;
    if params >> reg::PARAMS_TAG_WORDS == 0 {
        return Err(Refusal::new("the engine was built without tags, and members in software refuse its frames")
            .hint("build it with TagWords of 1 or more"));
    }
    let status = engine.read(reg::STATUS)?;
    if status >> reg::STATUS_RUNNING & 1 == 1 {
        return Err(Refusal::new("the member runs, and its settings are locked").hint("stop it first: fide nano stop"));
    }
    for (at, value) in setup.writes() {
        engine.write(at, value)?;
        if !(reg::KEY..reg::KEY + 16).contains(&at) && engine.read(at)? != value {
            return Err(Refusal::new(format!("register {at:#05x} does not keep {value:#x}: the device is not as it should be")));
        }
    }
    Ok(())
}

fn write_status(out: &mut dyn Write, json: bool, status: &Status) -> Result<(), Refusal> {
    let text = if json {
        serde_json::to_string(status).map_err(|why| Refusal::new(why.to_string()))?
    } else {
        let role = match (&status.halted, status.running, status.leads) {
            (Some(why), ..) => format!("left the group: {why}"),
            (None, false, _) => "stopped".into(),
            (None, true, true) => "leads".into(),
            (None, true, false) => "follows".into(),
        };
        let leader = status.leader_rank.map_or_else(String::new, |rank| format!(", leader: rank {rank}"));
        let dropped: Vec<String> = status.dropped.iter().map(|(why, count)| format!("{why} {count}")).collect();
        let dropped = if dropped.is_empty() { "nothing".into() } else { dropped.join(", ") };
        let what = if status.emulation { EMULATION } else { "a board, by its BAR" };
        format!(
            "{role}{leader}; round {}, decided {}; dropped: {dropped}; refused: {} events, {} writes ({}, {what})",
            status.round, status.decided, status.refused, status.refused_writes, status.kind
        )
    };
    writeln!(out, "{text}").map_err(|why| Refusal::new(why.to_string()))
}

fn done(out: &mut dyn Write, json: bool, what: &str) -> Result<(), Refusal> {
    let line = if json { serde_json::json!({ "done": what }).to_string() } else { what.to_string() };
    writeln!(out, "{line}").map_err(|why| Refusal::new(why.to_string()))
}

fn joined(out: &mut dyn Write, json: bool, args: &crate::args::JoinArgs) -> Result<(), Refusal> {
    let group = Group::read(&args.config)?;
    let mut setup = group.setup(args.member).map_err(Refusal::new)?;
    let mut joiner = checked(&args.engine.engine)?;
    let mut at = checked(&args.at)?;
    let until = Instant::now() + Duration::from_secs(10);
    let point = loop {
        match at.ask(&Ask::Point) {
            Ok(answer) => break answer.point,
            Err(why) if Instant::now() > until => return Err(why),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let Some((round, leader, next, members)) = point else { return Err(Refusal::new("no point to begin at was given")) };
    setup.begin = StartPoint { round, leader: MemberId(leader), next };
    setup.members = members.into_iter().map(MemberId).collect();
    configure(joiner.as_mut(), &setup)?;
    joiner.write(reg::COMMAND, 3)?;
    at.ask(&Ask::Join { member: args.member })?;
    done(out, json, &format!("member {} begins behind round {round}, with instance {next}", args.member))
}

/// Runs a command.
///
/// # Errors
/// Why it was refused.
pub fn run(command: &Command, json: bool, out: &mut dyn Write) -> Result<(), Refusal> {
    match command {
        Command::Run(args) => shell::run(args),
        Command::Configure(args) => {
            let setup = Group::read(&args.config)?.setup(args.member).map_err(Refusal::new)?;
            configure(checked(&args.engine.engine)?.as_mut(), &setup)?;
            done(out, json, "configured")
        }
        Command::Start(args) => {
            let mode = if args.mode == Mode::Together { 1 } else { 2 };
            checked(&args.engine.engine)?.write(reg::COMMAND, mode)?;
            done(out, json, "started")
        }
        Command::Stop(args) => {
            checked(&args.engine)?.write(reg::COMMAND, 4)?;
            done(out, json, "stopped")
        }
        Command::Status(args) => {
            let status = status(checked(&args.engine)?.as_mut())?;
            write_status(out, json, &status)
        }
        Command::Watch(args) => {
            let mut engine = checked(&args.engine.engine)?;
            let (mut last, mut lines) = (None, 0);
            while args.count.is_none_or(|count| lines < count) {
                let status = status(engine.as_mut())?;
                if last.as_ref() != Some(&status) {
                    write_status(out, json, &status)?;
                    out.flush().map_err(|why| Refusal::new(why.to_string()))?;
                    (last, lines) = (Some(status), lines + 1);
                }
                std::thread::sleep(Duration::from_millis(args.every));
            }
            Ok(())
        }
        Command::Propose(args) => {
            let mut engine = checked(&args.engine.engine)?;
            for value in &args.value {
                engine.ask(&Ask::Propose { value: value.clone() })?;
            }
            done(out, json, "handed in")
        }
        Command::Join(args) => joined(out, json, args),
        Command::Leave(args) => {
            checked(&args.engine.engine)?.ask(&Ask::Leave { member: args.member })?;
            done(out, json, "handed in")
        }
        Command::Trace(args) => {
            let text = crate::trace::merge(&args.file)?;
            out.write_all(text.as_bytes()).map_err(|why| Refusal::new(why.to_string()))
        }
    }
}
