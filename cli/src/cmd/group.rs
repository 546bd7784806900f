//! `fide group`

use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::interrupt::Interrupt;
use crate::progress::{Progress, bar};
use crate::render;
use clap::{Args, Subcommand, ValueEnum};
use fide_client::Connection;
use fide_client::group::{Event, Group, Options};
use fide_proto::services::groups::NAME_MAX;
use fide_wire::control::{GroupOrder, GroupStatus, Reply, Request};
use fide_wire::names::check_node;
use fide_wire::session::{Stage, VALUE_MAX};
use std::cell::Cell;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Its arguments.
#[derive(Debug, Args)]
pub struct GroupArgs {
    /// What to do
    #[command(subcommand)]
    pub order: GroupCommand,
}

/// How a group decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// One message delay; what is decided rides on heartbeats
    Huc,
    /// Three message delays, over links alone
    Hsuc,
    /// One message delay; a member that misses a frame stops, and comes back
    Lowi,
    /// By a majority, without any assumption about time
    Raft,
}

/// What a group makes of a host's silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// Silence beyond the contract is a crash, as long as no living host was late; if one was, stop
    TrustContract,
    /// Silence is a crash once the silent host's fence has closed
    Fence,
    /// Silence is a crash once the command in [witness] says that the host is off
    Witness,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// The groups of this host: members, leader, entries
    Status,
    /// Begin a group: a log that its hosts agree on
    Create {
        /// Its name
        name: String,
        /// Its hosts, this one among them; the first one leads
        #[arg(long, value_delimiter = ',', required = true, value_name = "HOST,…")]
        hosts: Vec<String>,
        /// How it decides; unless said, huc with a policy or fences, else raft
        #[arg(long, value_enum)]
        engine: Option<Engine>,
        /// What it makes of a host's silence; unless said, fence where every host has one that is
        /// armed, of mode acknowledged
        #[arg(long, value_enum)]
        policy: Option<Policy>,
        /// Its log is on disk: it goes on when all its agents ended at once
        #[arg(long)]
        durable: bool,
        /// Begin with an empty log, whatever the hosts keep of a group of this name, on disk or in
        /// memory
        #[arg(long)]
        fresh: bool,
    },
    /// Become a member of a group that runs on other hosts; the state comes from them
    Join {
        /// Its name
        name: String,
    },
    /// Leave a group; the others go on
    Leave {
        /// Its name
        name: String,
        /// Give this host's member up without asking the others, who take it for crashed: for a
        /// group that decides nothing any more
        #[arg(long)]
        force: bool,
    },
    /// Go on with the log that this host keeps of a group whose members have all stopped. A group
    /// does so by itself where nothing can be missing from it; this is for when it does not
    Resume {
        /// Its name
        name: String,
        /// Without asking: others may have been told entries that this log has not got
        #[arg(long)]
        yes: bool,
    },
    /// Go on with another engine, while proposals come in
    Switch {
        /// Its name
        name: String,
        /// Which
        #[arg(long, value_enum)]
        engine: Engine,
        /// The group's policy: trust-contract has to be named where raft, which did not use it, is
        /// left
        #[arg(long, value_enum)]
        policy: Option<Policy>,
    },
    /// Propose values, and wait until each is decided
    Propose {
        /// The group
        name: String,
        /// What: each one is an entry
        #[arg(required = true, value_name = "VALUE")]
        values: Vec<String>,
        /// Longest wait for all of them, seconds
        #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
        wait: f64,
    },
    /// Drop the entries that are there now: who comes later begins with the next one
    Trim {
        /// The group
        name: String,
    },
    /// Print entries as they are decided, and what happens to the group
    Watch {
        /// The group
        name: String,
        /// Only entries behind this one
        #[arg(long, value_name = "INDEX", default_value_t = 0)]
        behind: u64,
        /// End at the last entry that is there now
        #[arg(long)]
        once: bool,
    },
}

/// The longest wait for a group to begin, or to be joined.
const RUNNING: Duration = Duration::from_secs(10);
/// A group that says why it decides nothing is waited for no longer.
const STUCK: Duration = Duration::from_secs(2);
/// The longest wait for the first entry or snapshot that a reader gets.
const FIRST: Duration = Duration::from_secs(1);
/// Another engine than the one that was ordered, for so long, is what the group goes on with.
const ANOTHER: Duration = Duration::from_millis(500);

/// Part of the reason of a group that could not be joined because no host has heard of it.
const NOBODY_RUNS_IT: &str = "no host that is heard runs a group";

/// Part of the refusal of a value whose user may only read the group.
const MAY_ONLY_READ: &str = "the right `propose` is missing";

impl Engine {
    const fn name(self) -> &'static str {
        match self {
            Engine::Huc => "huc",
            Engine::Hsuc => "hsuc",
            Engine::Lowi => "lowi",
            Engine::Raft => "raft",
        }
    }
}

impl Policy {
    const fn name(self) -> &'static str {
        match self {
            Policy::TrustContract => "trust-contract",
            Policy::Fence => "fence",
            Policy::Witness => "witness",
        }
    }
}

impl GroupCommand {
    /// The name of its group.
    fn group(&self) -> Option<&str> {
        match self {
            Self::Status => None,
            Self::Create { name, .. }
            | Self::Join { name }
            | Self::Leave { name, .. }
            | Self::Resume { name, .. }
            | Self::Switch { name, .. }
            | Self::Propose { name, .. }
            | Self::Trim { name }
            | Self::Watch { name, .. } => Some(name),
        }
    }

    /// What can be said without an agent: names and values that no group has.
    fn check(&self) -> Result<(), Failure> {
        let malformed = |what: String| Err(Failure::new(Kind::Usage, what));
        if let Some(name) = self.group()
            && (name.is_empty() || name.len() > NAME_MAX || name.contains(char::is_control))
        {
            let what = format!("{:?} names no group: a name has 1 to {NAME_MAX} bytes, none of them a control character", name);
            return malformed(what);
        }
        match self {
            Self::Create { hosts, .. } => {
                for (at, host) in hosts.iter().enumerate() {
                    if let Err(why) = check_node(host) {
                        return malformed(format!("--hosts: {why}"));
                    }
                    if hosts[..at].contains(host) {
                        return malformed(format!("--hosts names {host} twice: a group has one member a host"));
                    }
                }
                Ok(())
            }
            Self::Propose { values, .. } => match values.iter().position(|value| value.len() > VALUE_MAX) {
                None => Ok(()),
                Some(at) => {
                    malformed(format!("value {} has {} bytes: at most {VALUE_MAX} are one value", at + 1, values[at].len()))
                }
            },
            _ => Ok(()),
        }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let s: f64 = text.parse().map_err(|_| "write a number of seconds, such as 2 or 0.5".to_owned())?;
    if s.is_finite() && s > 0.0 { Ok(s) } else { Err("write a number of seconds above 0".into()) }
}

/// Asks for it.
pub fn run(context: &Context, args: GroupArgs) -> Result<ExitCode, Failure> {
    args.order.check()?;
    match args.order {
        GroupCommand::Status => status(context),
        GroupCommand::Create { name, hosts, engine: kind, policy, durable, fresh } => {
            let policy = policy.map(|policy| policy.name().into()).unwrap_or_default();
            let engine = kind.map(|kind| kind.name().into()).unwrap_or_default();
            let order = GroupOrder::Create { name: name.clone(), engine, policy, hosts, durable, fresh };
            begin(context, &name, order)
        }
        GroupCommand::Join { name } => begin(context, &name, GroupOrder::Join { name: name.clone() }),
        GroupCommand::Leave { name, force } => {
            let connection = context.connect()?;
            order(&connection, GroupOrder::Leave { name: name.clone(), force })?;
            let group = wait(&connection, &name, |group| Ok(group.stage == Stage::Left))?;
            show(context, &[group])
        }
        GroupCommand::Switch { name, engine, policy } => {
            let connection = context.connect()?;
            let wanted = engine.name().to_owned();
            let group = find(&connection, &name)?;
            group.as_ref().map_or(Ok(()), |group| keeps_policy(group, engine, policy))?;
            let before = group.map(|group| group.engine);
            order(&connection, GroupOrder::Switch { name: name.clone(), engine: wanted.clone() })?;
            let another_since = Cell::new(None);
            let group = wait(&connection, &name, |group| {
                // Of several orders at once the last one holds, and each is done or dropped: with
                // the engine from before nothing is under way any more then.
                let is_dropped = group.pending == 0 || Some(&group.engine) != before.as_ref();
                let is_another = group.engine != wanted && is_dropped;
                if is_another && group.stage == Stage::Running {
                    let since = another_since.get().unwrap_or_else(Instant::now);
                    another_since.set(Some(since));
                    if since.elapsed() >= ANOTHER {
                        let what = format!("{name} goes on with {}, which somebody else ordered meanwhile", group.engine);
                        return Err(Failure::failed(what));
                    }
                }
                Ok(group.engine == wanted)
            })?;
            show(context, &[group])
        }
        GroupCommand::Resume { name, yes } => resume(context, &name, yes),
        GroupCommand::Propose { name, values, wait } => propose(context, &name, &values, wait),
        GroupCommand::Trim { name } => trim(context, &name),
        GroupCommand::Watch { name, behind, once } => watch(context, &name, behind, once),
    }
}

/// Whether the group may go on with this engine under the policy that it has. `raft` makes no use
/// of it: who leaves that engine says what silence means from now on.
fn keeps_policy(group: &GroupStatus, engine: Engine, named: Option<Policy>) -> Result<(), Failure> {
    let (name, has) = (&group.name, group.policy.as_str());
    if let Some(named) = named.filter(|named| !has.is_empty() && named.name() != has) {
        let what = format!("{name} has the policy {has}, which a switch does not change to {}", named.name());
        let hint = format!("a group gets its policy when it begins: fide group create NAME --hosts … --policy {}", named.name());
        return Err(Failure::new(Kind::Usage, what).hint(hint));
    }
    let begins_to_trust = has == Policy::TrustContract.name() && group.engine == Engine::Raft.name() && engine != Engine::Raft;
    if begins_to_trust && named.is_none() {
        let engine = engine.name();
        let what = format!(
            "{name} would go on under its policy trust-contract, of which raft makes no use and {engine} does: silence is taken \
             for a crash, and where both networks are cut both sides decide"
        );
        return Err(Failure::new(Kind::Usage, what)
            .hint(format!("where that is meant: fide group switch {name} --engine {engine} --policy trust-contract"))
            .hint(
                "otherwise stay with raft, or begin a group with another policy: fide group create NAME --hosts … --policy fence",
            ));
    }
    Ok(())
}

fn order(connection: &Connection, order: GroupOrder) -> Result<(), Failure> {
    match connection.request(&Request::Group { order }) {
        Ok(response) if response.reply == Reply::Done => Ok(()),
        Ok(response) => Err(Failure::unexpected("done", &response.reply)),
        Err(error) if error.to_string().contains(NOBODY_RUNS_IT) => Err(Failure::not_found(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

fn groups(connection: &Connection) -> Result<Vec<GroupStatus>, Failure> {
    match connection.request(&Request::Group { order: GroupOrder::Status })?.reply {
        Reply::Groups { groups } => Ok(groups),
        other => Err(Failure::unexpected("groups", &other)),
    }
}

fn status(context: &Context) -> Result<ExitCode, Failure> {
    show(context, &groups(&context.connect()?)?)
}

fn show(context: &Context, groups: &[GroupStatus]) -> Result<ExitCode, Failure> {
    let mut out = context.out();
    if context.json {
        for group in groups {
            context.json_line(&mut out, group)?;
        }
    } else {
        out.write_all(render::group::groups(groups, &context.style).as_bytes())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn find(connection: &Connection, name: &str) -> Result<Option<GroupStatus>, Failure> {
    Ok(groups(connection)?.into_iter().find(|group| group.name == name))
}

/// Until the group stands so here.
fn wait(
    connection: &Connection,
    name: &str,
    done: impl Fn(&GroupStatus) -> Result<bool, Failure>,
) -> Result<GroupStatus, Failure> {
    let interrupt = Interrupt::install()?;
    let until = Instant::now() + RUNNING;
    let mut stuck = None;
    loop {
        interrupt.check()?;
        let Some(group) = find(connection, name)? else {
            return Err(Failure::failed(format!("the group {name} is not here any more")));
        };
        if done(&group)? {
            return Ok(group);
        }
        if group.stage == Stage::Failed {
            return Err(ended(&group));
        }
        // A group that decides nothing says why.
        let is_stuck = group.stage == Stage::Running && !group.why.is_empty();
        stuck = if is_stuck { stuck.or(Some(Instant::now())) } else { None };
        if stuck.is_some_and(|since| since.elapsed() >= STUCK) {
            return Err(Failure::failed(format!("{name}: {}; what was ordered is done once it decides again", group.why)));
        }
        if Instant::now() >= until {
            let what = format!("{name} is {} since {} s: see fide group status", group.stage.name(), RUNNING.as_secs());
            return Err(Failure::failed(what));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The end of a try to begin or join a group. A name that no host knows is like any other unknown name.
fn ended(group: &GroupStatus) -> Failure {
    let what = format!("{}: {}", group.name, group.why);
    if what.contains(NOBODY_RUNS_IT) { Failure::not_found(what) } else { Failure::failed(what) }
}

/// For what only a group does that runs here, or soon will.
fn present(connection: &Connection, name: &str) -> Result<GroupStatus, Failure> {
    match find(connection, name)? {
        None => Err(Failure::not_found(format!("this host has no group {name}: fide group join {name} if others run it"))),
        Some(group) if group.stage == Stage::Failed => Err(ended(&group)),
        Some(group) if group.stage == Stage::Left => {
            Err(Failure::failed(format!("this host left {name}: fide group join {name} comes back")))
        }
        Some(group) => Ok(group),
    }
}

fn begin(context: &Context, name: &str, how: GroupOrder) -> Result<ExitCode, Failure> {
    let connection = context.connect()?;
    order(&connection, how)?;
    let group = wait(&connection, name, |group| Ok(group.stage == Stage::Running))?;
    show(context, &[group])
}

/// Shows who keeps what, and what could be lost, and asks.
/// How the agent says that a member of `raft` can decide nothing.
const NO_MAJORITY: &str = "raft decides by";

fn resume(context: &Context, name: &str, yes: bool) -> Result<ExitCode, Failure> {
    let connection = context.connect()?;
    let Some(group) = find(&connection, name)? else {
        return Err(Failure::not_found(format!("this host has no group {name}")));
    };
    let has_no_majority = group.stage == Stage::Running && group.why.contains(NO_MAJORITY);
    if group.stage == Stage::Running && !has_no_majority {
        return show(context, &[group]);
    }
    if !yes {
        let table = if has_no_majority {
            format!(
                "{name}: {}\nWhat only those have who are not here is lost, and members that live elsewhere must be left by force first.\n",
                group.why
            )
        } else {
            render::group::logs(&group, &context.style)
        };
        if !std::io::stdin().is_terminal() || context.json {
            eprint!("{table}");
            return Err(Failure::failed(format!(
                "to go on with this host's log, whatever others have: fide group resume {name} --yes"
            )));
        }
        eprint!("{table}go on with this host's log? [y/N] ");
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer).map_err(|e| Failure::failed(format!("no answer: {e}")))?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(Failure::failed("nothing was done"));
        }
    }
    begin(context, name, GroupOrder::Resume { name: name.into() })
}

fn open(context: &Context, name: &str, behind: u64) -> Result<Group, Failure> {
    let options = Options { path: context.socket.clone(), behind, ..Options::default() };
    Group::open_with(name, options).map_err(Failure::from)
}

fn propose(context: &Context, name: &str, values: &[String], wait_s: f64) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::install()?;
    let until = Instant::now() + Duration::from_secs_f64(wait_s.min(1e9));
    // What was decided before is of no interest: the group says where it is now.
    let behind = present(&context.connect()?, name)?.index;
    let mut group = open(context, name, behind)?;
    let mut out = context.out();
    let mut proposed = Vec::new();
    let mut decided = 0;
    let mut left = values.iter();
    let progress = Progress::start(context, "proposing");
    while decided < values.len() {
        while group.pending() < fide_client::group::PENDING_MAX
            && let Some(value) = left.next()
        {
            let since = Instant::now();
            proposed.push((group.propose_by(value.as_bytes(), until)?, since));
        }
        interrupt.check()?;
        match group.poll(Some(Duration::from_millis(50)))? {
            Some(Event::Entry(entry)) if entry.client == group.client() => {
                let Some((_, since)) = proposed.iter().find(|(number, _)| *number == entry.number) else { continue };
                let us = since.elapsed().as_secs_f64() * 1e6;
                decided += 1;
                progress.set(format!("decided {}", bar(decided, values.len())));
                if context.json {
                    let line = serde_json::json!({
                        "index": entry.index, "member": entry.member, "value": String::from_utf8_lossy(&entry.bytes), "us": us,
                    });
                    context.json_line(&mut out, &line)?;
                } else {
                    let value = String::from_utf8_lossy(&entry.bytes);
                    writeln!(out, "{:>8}  {}  ({us:.0} µs)", entry.index, value.escape_debug())?;
                }
            }
            Some(Event::Refused { number, why, .. }) => return Err(value_refused(number, &why)),
            _ if Instant::now() >= until => {
                out.flush()?;
                let left = values.len() - decided;
                return Err(undecided(
                    context,
                    name,
                    &format!("{left} of {} values are not decided after {wait_s} s", values.len()),
                ));
            }
            _ => {}
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The user may have opened the group, and still lack the right to propose.
fn value_refused(number: u64, why: &str) -> Failure {
    let kind = if why.contains(MAY_ONLY_READ) { Kind::Permission } else { Kind::Failed };
    Failure::new(kind, format!("value {number} is refused: {why}"))
}

/// With the reason, if the group knows one.
fn undecided(context: &Context, name: &str, what: &str) -> Failure {
    let group = context.connect().and_then(|connection| find(&connection, name));
    let why = group.ok().flatten().map(|group| group.why).filter(|why| !why.is_empty());
    let why = why.unwrap_or_else(|| format!("fide group status says how {name} stands"));
    Failure::failed(format!("{what}; they may be later ({why})"))
}

fn trim(context: &Context, name: &str) -> Result<ExitCode, Failure> {
    let connection = context.connect()?;
    let index = present(&connection, name)?.index;
    if index == 0 {
        return Err(Failure::failed(format!("{name} has no entries on this host that could be dropped")));
    }
    let mut application = open(context, name, index)?;
    application.keep_snapshot(index, &[])?;
    // Entries without an index, such as a change of the engine, may be kept all the same: `kept_bytes` does not say whether
    // it is done.
    let state_len = Cell::new(0);
    let group = wait(&connection, name, |_| {
        let first = first_snapshot(context, name, index)?;
        state_len.set(first.filter(|(of, _)| *of == index).map_or(0, |(_, len)| len));
        Ok(first.is_some_and(|(of, _)| of >= index))
    })?;
    if state_len.get() > 0 && !context.json {
        let mut out = context.out();
        writeln!(out, "{}", nothing_to_drop(name, index, state_len.get()))?;
        out.flush()?;
    }
    show(context, &[group])
}

/// An application's own state of the last entry stays: an empty one says less.
fn nothing_to_drop(name: &str, index: u64, len: usize) -> String {
    format!(
        "nothing to drop: an application handed in its state ({len} bytes) of entry {index}, the last one of {name}; no entry is \
         kept before it, and the state itself stays, for who opens the group or joins it"
    )
}

/// The last entry and the bytes of the snapshot that the group begins with: what a reader gets who
/// has read up to the entry before this one; none if that entry itself is still there.
fn first_snapshot(context: &Context, name: &str, index: u64) -> Result<Option<(u64, usize)>, Failure> {
    let mut reader = open(context, name, index - 1)?;
    let until = Instant::now() + FIRST;
    while Instant::now() < until {
        match reader.poll(Some(Duration::from_millis(50)))? {
            Some(Event::Snapshot { index: of, bytes }) => return Ok(Some((of, bytes.len()))),
            Some(Event::Entry(_)) => return Ok(None),
            _ => {}
        }
    }
    Ok(None)
}

fn watch(context: &Context, name: &str, behind: u64, once: bool) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::install()?;
    let found = present(&context.connect()?, name)?;
    let there = found.index;
    let mut group = open(context, name, behind)?;
    let mut out = context.out();
    loop {
        let has_all = once && group.index() >= there;
        if interrupt.requested() && !has_all {
            out.flush()?;
            return Ok(ExitCode::from(Kind::Interrupted as u8));
        }
        if has_all {
            out.flush()?;
            if has_all && found.stage != Stage::Running {
                let why = if found.why.is_empty() { "it asks the hosts that run it to be let in" } else { &found.why };
                let what = format!("{name} is {} on this host, and others may have more: {why}", found.stage.name());
                return Err(Failure::failed(what));
            }
            return Ok(ExitCode::SUCCESS);
        }
        let Some(event) = group.poll(Some(Duration::from_millis(100)))? else {
            out.flush()?;
            continue;
        };
        if context.json {
            context.json_line(&mut out, &render::group::event_json(&event))?;
        } else if let Some(line) = render::group::event(&event, &context.style) {
            writeln!(out, "{line}")?;
        }
        out.flush()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(subcommand)]
        order: GroupCommand,
    }

    fn read(line: &[&str]) -> Result<(), u8> {
        let line = Line::try_parse_from([&["group"], line].concat()).map_err(|e| u8::try_from(e.exit_code()).unwrap())?;
        line.order.check().map_err(|failure| failure.kind as u8)
    }

    #[test]
    fn malformed_values_are_of_the_command_line() {
        let (long_name, long_value) = ("n".repeat(NAME_MAX + 1), "v".repeat(VALUE_MAX + 1));
        let lines: &[&[&str]] = &[
            &["propose", "orders", "x", "--wait", "0"],
            &["propose", "orders", "x", "--wait", "nan"],
            &["propose", "orders", "x", "--wait", "soon"],
            &["propose", "orders", "x", &long_value],
            &["create", "orders", "--hosts", "h1,h1,h3"],
            &["create", "orders", "--hosts", "h1,h 2"],
            &["create", "or\nders", "--hosts", "h1,h2"],
            &["join", ""],
            &["trim", &long_name],
        ];
        for line in lines {
            assert_eq!(read(line), Err(2), "{:?}", &line[..2]);
        }
        for line in [&["propose", "orders", "x", "--wait", "0.5"][..], &["create", "or ders", "--hosts", "h1,h2"]] {
            assert_eq!(read(line), Ok(()), "{line:?}");
        }
    }

    #[test]
    fn a_user_who_may_only_read_lacks_a_permission() {
        let why = "user 2005 may not propose to the group orders: the right `propose` is missing; run it as root";
        assert_eq!(value_refused(1, why).kind, Kind::Permission);
        assert_eq!(value_refused(1, "a value has at most 7 bytes").kind, Kind::Failed);
    }

    #[test]
    fn trust_in_the_contract_is_named_where_raft_is_left() {
        let group = |engine: &str, policy: &str| {
            GroupStatus {
            name: "orders".into(),
            engine: engine.into(),
            policy: policy.into(),
            ..serde_json::from_str(
                r#"{"name":"","generation":1,"engine":"","policy":"","stage":"running","index":0,"pending":0,"kept_bytes":0,"sessions":0,"members":[]}"#,
            )
            .unwrap()
        }
        };
        let kind = |of: &GroupStatus, engine, named| keeps_policy(of, engine, named).map_err(|failure| failure.kind);
        let trusts = group("raft", "trust-contract");
        for engine in [Engine::Huc, Engine::Hsuc, Engine::Lowi] {
            let refused = keeps_policy(&trusts, engine, None).unwrap_err();
            let said = format!("fide group switch orders --engine {} --policy trust-contract", engine.name());
            assert!(refused.kind == Kind::Usage && refused.hints[0].contains(&said), "{refused:?}");
            assert_eq!(kind(&trusts, engine, Some(Policy::TrustContract)), Ok(()));
            assert_eq!(kind(&trusts, engine, Some(Policy::Fence)), Err(Kind::Usage));
        }
        assert_eq!(kind(&trusts, Engine::Raft, None), Ok(()));
        // Named when it began.
        assert_eq!(kind(&group("huc", "trust-contract"), Engine::Hsuc, None), Ok(()));
        assert_eq!(kind(&group("raft", "fence"), Engine::Huc, None), Ok(()));
        assert_eq!(kind(&group("raft", "fence"), Engine::Huc, Some(Policy::TrustContract)), Err(Kind::Usage));
        // Of a group that is looked for nothing is known: its agent refuses.
        assert_eq!(kind(&group("", ""), Engine::Huc, Some(Policy::Fence)), Ok(()));
    }

    #[test]
    fn a_state_that_stays_is_named_with_whose_it_is() {
        let said = nothing_to_drop("orders", 7, 12);
        assert!(said.contains("an application handed in its state (12 bytes) of entry 7"), "{said}");
    }
}
