//! `fide lab`: through [`fide_lab`], which leaves nothing behind. [`agents`] starts fided on every host.

mod agents;

use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::render;
use crate::{suggest, units};
use clap::{Args, Subcommand};
use fide_lab::{Cut, Lab, LabError, LabSpec, MAX_HOSTS, MIN_HOSTS, NETS};
use serde_json::json;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

/// Its arguments.
#[derive(Debug, Args)]
pub struct LabArgs {
    /// Which lab [default: $FIDE_LAB, else the only one there is]
    #[arg(long, short = 'n', global = true, value_name = "LAB")]
    pub name: Option<String>,
    /// What to do.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Make a lab: hosts with two NICs each on two switches
    Up(UpArgs),
    /// Take a lab down, with everything that was started in it
    Down(DownArgs),
    /// Hosts, links, faults and processes of a lab; the labs, if there are several
    Status {
        /// Which lab
        #[arg(value_name = "LAB")]
        lab: Option<String>,
    },
    /// The labs of this machine
    List,
    /// Run a command on a host; its exit code is that of the command
    Exec(ExecArgs),
    /// See Redis servers of a group lose nothing: the leading one is killed again and again under a client's writes
    Redis(fide_bench::lab_redis::Args),
    /// Cut a cable
    Cut(CutArgs),
    /// Mend cables: one, those of a host, or all
    Heal {
        /// Which host (h2 or 2); all hosts if left out
        host: Option<String>,
        /// Which network (0, 1, net0 or net1); both if left out
        #[arg(value_parser = net)]
        net: Option<u8>,
    },
}

/// `fide lab up`
#[derive(Debug, Args)]
#[command(after_help = "Needs root and iproute2. The lab stays until fide lab down.")]
pub struct UpArgs {
    /// How many hosts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(i64::from(MIN_HOSTS)..=i64::from(MAX_HOSTS)))]
    pub hosts: u16,
    /// IPv6 as well; agents then use it
    #[arg(long)]
    pub ipv6: bool,
    /// Switches deliver multicast to members only (IGMP and MLD snooping); takes some seconds
    #[arg(long)]
    pub snooping: bool,
    /// Start fided on every host, and wait until they all see each other
    #[arg(long)]
    pub agents: bool,
    /// The agents' heartbeat interval [default: 1ms up to 4 hosts, 10ms for more]
    #[arg(long, value_name = "SPAN", requires = "agents")]
    pub heartbeat: Option<String>,
    /// The agents authenticate nothing: without it they share a key that is made for the lab
    #[arg(long, requires = "agents")]
    pub no_key: bool,
}

/// `fide lab down`
#[derive(Debug, Args)]
pub struct DownArgs {
    /// Which lab
    #[arg(value_name = "LAB")]
    pub lab: Option<String>,
    /// Remove what crashed labs and demonstrations left behind; what is in use is not touched
    #[arg(long, conflicts_with = "lab")]
    pub stale: bool,
    /// Take all labs down
    #[arg(long, conflicts_with_all = ["lab", "stale"])]
    pub all: bool,
}

/// `fide lab exec`
#[derive(Debug, Args)]
#[command(
    after_help = "FIDE_SOCKET is set to the host's agent, so `fide lab exec h2 -- fide status` asks that one.\nWithout a command: a shell."
)]
pub struct ExecArgs {
    /// On which host (h2 or 2)
    pub host: String,
    /// The command and its arguments
    #[arg(last = true)]
    pub command: Vec<OsString>,
}

/// `fide lab cut`
#[derive(Debug, Args)]
pub struct CutArgs {
    /// Which host (h2 or 2)
    pub host: String,
    /// Which network (0, 1, net0 or net1)
    #[arg(value_parser = net)]
    pub net: u8,
    /// The carrier stays, as with a dying switch port; otherwise the NIC loses it
    #[arg(long, group = "how")]
    pub silent: bool,
    /// Only what the host sends is lost
    #[arg(long, group = "how")]
    pub from_host: bool,
    /// Only what the host should receive is lost
    #[arg(long, group = "how")]
    pub to_host: bool,
}

impl CutArgs {
    fn cut(&self) -> Cut {
        match (self.silent, self.from_host, self.to_host) {
            (true, ..) => Cut::Silent,
            (_, true, _) => Cut::FromHost,
            (_, _, true) => Cut::ToHost,
            _ => Cut::Carrier,
        }
    }
}

fn net(text: &str) -> Result<u8, String> {
    let number = text.strip_prefix("net").unwrap_or(text).parse().ok();
    number.filter(|n| NETS.contains(n)).ok_or_else(|| "every lab has the networks 0 and 1 (net0 and net1)".into())
}

/// Does it.
pub fn run(context: &Context, args: LabArgs) -> Result<ExitCode, Failure> {
    let name = args.name;
    match args.command {
        LabCommand::Up(up) => self::up(context, name, &up),
        LabCommand::Down(down) => self::down(context, down.lab.clone().or(name), &down),
        LabCommand::Status { lab } => status(context, lab.or(name)),
        LabCommand::List => list(context),
        LabCommand::Exec(exec) => self::exec(name, &exec),
        LabCommand::Redis(args) => redis(context, name, &args),
        LabCommand::Cut(cut) => self::cut(context, name, &cut),
        LabCommand::Heal { host, net } => heal(context, name, host.as_deref(), net),
    }
}

fn up(context: &Context, name: Option<String>, args: &UpArgs) -> Result<ExitCode, Failure> {
    let heartbeat = match &args.heartbeat {
        Some(text) => agents::check_heartbeat(text)?,
        None if args.hosts <= 4 => "1ms",
        None => "10ms",
    };
    let fided = if args.agents { Some(super::agent::find()?) } else { None };
    // The first lab is simply called "lab"; others get a name made up.
    let name = name.or_else(|| Lab::list().is_ok_and(|all| all.iter().all(|l| l.name != "lab")).then(|| "lab".into()));
    let spec = LabSpec { name, hosts: args.hosts, ipv6: args.ipv6, ephemeral: false, multicast_snooping: args.snooping };
    let interrupt = Interrupt::install()?;
    let progress = Progress::start(context, format!("making {}", units::count(usize::from(args.hosts), "host")));
    let lab = match Lab::up(&spec) {
        // The tools that build it are in the terminal's foreground as well and got the same Ctrl-C.
        Err(_) if interrupt.requested() => return Err(Failure::new(Kind::Interrupted, "interrupted; nothing is left behind")),
        other => other?,
    };
    let begun = interrupt.check().and_then(|()| match &fided {
        Some(fided) => agents::start(&lab, fided, heartbeat, !args.no_key, &progress, &interrupt),
        None => Ok(()),
    });
    if let Err(mut failure) = begun {
        progress.set("taking it down again");
        match lab.down() {
            Ok(()) => failure.what += "; the lab was taken down again",
            Err(e) => failure = failure.hint(format!("taking it down failed as well: {e}")),
        }
        return Err(failure);
    }
    drop(progress);
    let status = lab.status()?;
    let mut out = context.out();
    if context.json {
        context.json_line(&mut out, &status)?;
    } else {
        out.write_all(render::lab::status(&status, &context.style).as_bytes())?;
        let option = format!("--name {} ", lab.name());
        let option = if Lab::list().is_ok_and(|l| l.len() == 1) { "" } else { option.as_str() };
        writeln!(out)?;
        if args.agents {
            let key = if args.no_key { "no key" } else { "a key of the lab's own" };
            writeln!(out, "Every agent sees every host (heartbeat {heartbeat}, {key}). Try:")?;
            writeln!(out, "  fide lab {option}exec h1 -- fide watch")?;
            writeln!(out, "  fide lab {option}exec h2 -- sh -c 'sleep 600 & fide monitor victim --pid $!; sleep 5; kill -9 $!'")?;
            writeln!(out, "  fide lab {option}exec h1 -- fide events --follow")?;
            writeln!(out, "  fide lab {option}cut h2 0")?;
        } else {
            writeln!(out, "Try: fide lab {option}exec h1 -- ip -brief address")?;
        }
        writeln!(out, "Remove it with: fide lab down {}", lab.name())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn down(context: &Context, name: Option<String>, args: &DownArgs) -> Result<ExitCode, Failure> {
    let mut out = context.out();
    // Half taken down is worse than late: Ctrl-C is noted, and the removal goes on.
    let interrupt = Interrupt::install()?;
    if args.stale {
        let progress = Progress::start(context, "removing what crashed labs left behind");
        let reaped = Lab::reap_stale()?;
        // After the labs, whose processes were in them.
        let cgroups = fide_demo::show::reap_stale_cgroups().map_err(|e| Failure::failed(format!("{e:#}")))?;
        let cgroups: Vec<String> = cgroups.iter().map(|path| path.display().to_string()).collect();
        drop(progress);
        if context.json {
            let (labs, namespaces, directories) = (&reaped.labs, &reaped.namespaces, &reaped.directories);
            let json = json!({ "labs": labs, "namespaces": namespaces, "directories": directories, "cgroups": cgroups });
            context.json_line(&mut out, &json)?;
        } else if reaped.is_empty() && cgroups.is_empty() {
            writeln!(out, "nothing was left behind")?;
        } else {
            let all = [
                (&reaped.labs, "lab"),
                (&reaped.namespaces, "namespace"),
                (&reaped.directories, "directory"),
                (&cgroups, "cgroup"),
            ];
            for (names, kind) in all.iter().filter(|(names, _)| !names.is_empty()) {
                writeln!(out, "removed {kind}: {}", names.join(", "))?;
            }
        }
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    let names = if args.all { Lab::list()?.into_iter().map(|l| l.name).collect() } else { vec![choose(name)?] };
    for name in names {
        interrupt.check()?;
        let progress = Progress::start(context, format!("taking down {name}"));
        Lab::down_by_name(&name).map_err(|e| known(e, &name))?;
        drop(progress);
        if context.json {
            context.json_line(&mut out, &json!({ "down": name }))?;
        } else {
            writeln!(out, "{name} is gone")?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn status(context: &Context, name: Option<String>) -> Result<ExitCode, Failure> {
    let name = name.or_else(current);
    let labs = Lab::list()?;
    if name.is_none() && labs.len() != 1 {
        return list(context);
    }
    let name = choose(name)?;
    let status = open(&name)?.status()?;
    let mut out = context.out();
    if context.json {
        context.json_line(&mut out, &status)?;
    } else {
        out.write_all(render::lab::status(&status, &context.style).as_bytes())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn list(context: &Context) -> Result<ExitCode, Failure> {
    let labs = Lab::list()?;
    let mut out = context.out();
    if context.json {
        for lab in &labs {
            context.json_line(&mut out, lab)?;
        }
    } else {
        out.write_all(render::lab::list(&labs, &context.style).as_bytes())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn exec(name: Option<String>, args: &ExecArgs) -> Result<ExitCode, Failure> {
    let lab = open(&choose(name)?)?;
    let host = lab.host_number(&args.host)?;
    let shell = || std::env::var_os("SHELL").filter(|s| !s.is_empty()).unwrap_or_else(|| "/bin/sh".into());
    let (program, rest) = match args.command.split_first() {
        Some((program, rest)) => (program.clone(), rest),
        None => (shell(), &[][..]),
    };
    // An uninstalled `fide` is found all the same, also by scripts, after everything that the shell's PATH finds.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let here = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
    let path = std::env::join_paths(std::env::split_paths(&path).chain(here)).unwrap_or(path);
    let mut command = lab.command(host, &program)?;
    command.args(rest).env("PATH", path).env(fide_wire::control::SOCKET_ENV, agents::socket(&lab, host));
    let error = command.exec();
    let kind = match error.kind() {
        std::io::ErrorKind::NotFound => Kind::NotFound,
        std::io::ErrorKind::PermissionDenied => Kind::Permission,
        _ => Kind::Failed,
    };
    let program = program.to_string_lossy();
    Err(Failure::new(kind, format!("cannot run {program} on h{host}: {error}"))
        .hint(format!("the command is looked for in this shell's PATH: which {program}")))
}

/// Its lab is its own, and goes with it.
fn redis(context: &Context, name: Option<String>, args: &fide_bench::lab_redis::Args) -> Result<ExitCode, Failure> {
    use super::bench::{done, ui};
    if name.is_some() || args.name.is_some() {
        let refused = Failure::new(Kind::Usage, "fide lab redis makes a lab of its own, and takes no --name");
        return Err(refused.hint("servers in a lab that stays: docs/redis.md, by fide lab exec"));
    }
    let ui = ui(context)?;
    done(ui.or_interrupted(fide_bench::lab_redis::run(args, &ui)))
}

fn cut(context: &Context, name: Option<String>, args: &CutArgs) -> Result<ExitCode, Failure> {
    let lab = open(&choose(name)?)?;
    let host = lab.host_number(&args.host)?;
    lab.cut(host, args.net, args.cut())?;
    let how = match args.cut() {
        Cut::Carrier => "cut: the NIC has no carrier",
        Cut::Silent => "cut silently: nothing passes, the carrier stays",
        Cut::FromHost => "cut one way: what the host sends is lost",
        Cut::ToHost => "cut one way: what the host should receive is lost",
    };
    let mut out = context.out();
    if context.json {
        let json = json!({ "lab": lab.name(), "host": format!("h{host}"), "net": args.net, "cut": args.cut() });
        context.json_line(&mut out, &json)?;
    } else {
        writeln!(out, "h{host} net{} is {how}", args.net)?;
        writeln!(out, "mend it with: fide lab heal h{host} {}", args.net)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn heal(context: &Context, name: Option<String>, host: Option<&str>, net: Option<u8>) -> Result<ExitCode, Failure> {
    let lab = open(&choose(name)?)?;
    let hosts = match host {
        Some(host) => vec![lab.host_number(host)?],
        None => lab.hosts().collect(),
    };
    let before = lab.status()?;
    let mut out = context.out();
    let mut healed = 0;
    for host in hosts {
        let nics = before.hosts.iter().filter(|h| h.number == host).flat_map(|h| &h.nics);
        for nic in nics.filter(|nic| net.is_none_or(|n| n == nic.net)) {
            let what = render::lab::faults(&nic.faults);
            if what.is_empty() || nic.faults.removed {
                continue;
            }
            lab.heal(host, nic.net)?;
            healed += 1;
            if context.json {
                context.json_line(
                    &mut out,
                    &json!({ "lab": lab.name(), "host": format!("h{host}"), "net": nic.net, "healed": nic.faults }),
                )?;
            } else {
                writeln!(out, "h{host} net{} is well again (was: {what})", nic.net)?;
            }
        }
    }
    if healed == 0 && !context.json {
        writeln!(out, "nothing was cut")?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The lab that a command run inside one belongs to.
fn current() -> Option<String> {
    std::env::var("FIDE_LAB").ok().filter(|n| !n.is_empty())
}

/// The lab that is meant: the one named, that of the environment, or the only one.
fn choose(name: Option<String>) -> Result<String, Failure> {
    match name.or_else(current) {
        Some(name) => Ok(name),
        None => only(Lab::list()?.into_iter().map(|l| l.name).collect()),
    }
}

/// The only lab there is.
fn only(mut names: Vec<String>) -> Result<String, Failure> {
    match names.len() {
        0 => Err(Failure::not_found("there is no lab on this machine").hint("make one with: fide lab up --agents")),
        1 => Ok(names.remove(0)),
        _ => Err(Failure::new(Kind::Usage, "there are several labs, and none was named")
            .hint(format!("add --name with one of: {}", names.join(", ")))),
    }
}

fn open(name: &str) -> Result<Lab, Failure> {
    Lab::open(name).map_err(|e| known(e, name))
}

/// A failure that also says which labs there are, if that was the trouble.
fn known(error: LabError, name: &str) -> Failure {
    let missing = matches!(error, LabError::NotFound(_));
    let failure = Failure::from(error);
    if !missing {
        return failure;
    }
    let labs = Lab::list().unwrap_or_default();
    let names: Vec<&str> = labs.iter().map(|l| l.name.as_str()).collect();
    failure.maybe_hint(suggest::hint("labs", name, &names))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{DevCli, DevCommand};
    use clap::Parser as _;

    fn lab(line: &str) -> Result<LabArgs, clap::Error> {
        match DevCli::try_parse_from(format!("fide lab {line}").split_whitespace())?.command {
            DevCommand::Lab(args) => Ok(args),
            _ => unreachable!(),
        }
    }

    #[test]
    fn a_lab_is_named_before_or_after_its_subcommand() {
        for line in ["--name x status", "status --name x"] {
            assert_eq!(lab(line).unwrap().name.as_deref(), Some("x"), "{line}");
        }
        let LabCommand::Down(down) = lab("down x").unwrap().command else { unreachable!() };
        assert_eq!(down.lab.as_deref(), Some("x"));
    }

    #[test]
    fn of_several_labs_one_must_be_named_and_they_are_listed() {
        let only = |names: &[&str]| super::only(names.iter().map(ToString::to_string).collect());
        assert_eq!(only(&["a"]).unwrap(), "a");
        assert_eq!(only(&[]).unwrap_err().kind, Kind::NotFound);
        let refused = only(&["a", "b"]).unwrap_err();
        assert_eq!(refused.kind, Kind::Usage);
        assert!(refused.hints.iter().any(|h| h.contains("--name") && h.ends_with("a, b")), "{refused:?}");
    }

    #[test]
    fn networks_and_host_counts_outside_a_lab_are_refused() {
        assert!(lab("cut h1 net1").is_ok() && lab("cut h1 0 --silent").is_ok());
        for line in ["cut h1 2", "cut h1 eth0", "up --hosts 1", "up --hosts 65", "cut h1 0 --silent --to-host", "down x --all"] {
            assert!(lab(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_command_on_a_host_keeps_its_own_options() {
        let LabCommand::Exec(exec) = lab("exec h1 -- ls --json -n").unwrap().command else { unreachable!() };
        assert_eq!(exec.command, ["ls", "--json", "-n"]);
        assert!(lab("exec h1 ls").is_err(), "without -- it would be unclear whose options follow");
    }
}
