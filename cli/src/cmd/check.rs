//! `fide check`

use crate::context::{self, Context};
use crate::failure::{Failure, Kind};
use crate::known;
use crate::style::Paint;
use crate::units;
use clap::Args;
use fide_client::{Connection, monotonic_ns};
use fide_wire::control::{CHECK_WAIT_MAX_NS, CheckOutcome, Checked, CheckedPeer, Reply, Request, Status};
use fide_wire::names::Target;
use std::io::Write as _;
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

/// Its arguments.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Whose heartbeats are missed: NAME@HOST, @HOST, or the address that they come from
    #[arg(value_name = "PEER")]
    pub peer: String,
    /// Since when, before now
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = units::parse_duration)]
    pub since: u64,
    /// How long the answer may take: at most 60 s
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = wait)]
    pub wait: u64,
}

/// Beyond the wait, until an agent that says nothing is given up.
const GRACE: Duration = Duration::from_secs(1);

fn wait(text: &str) -> Result<u64, String> {
    let ns = units::parse_duration(text)?;
    if ns > CHECK_WAIT_MAX_NS { Err("at most 60s".into()) } else { Ok(ns) }
}

/// Asks, and says what came of it: a success where the silence is known to be more than ours.
pub fn run(context: &Context, args: &CheckArgs) -> Result<ExitCode, Failure> {
    let connection = context.connect()?;
    names_somebody(&connection, &args.peer)?;
    let since_ns = monotonic_ns().saturating_sub(args.since).max(1);
    let request = Request::Check { peer: args.peer.clone(), since_ns, deadline_ns: 0, wait_ns: args.wait };
    let reply = connection.request_within(&request, Duration::from_nanos(args.wait) + GRACE)?.reply;
    let Reply::Checked(checked) = reply else {
        return Err(Failure::failed(format!("the agent gave an answer to something else: {reply:?}")));
    };
    is_known(&connection, &args.peer, &checked)?;
    let mut out = context.out();
    if context.json {
        context.json_line(&mut out, &checked)?;
    } else {
        let style = &context.style;
        let (mark, text) = told(&checked, &args.peer, args.since);
        let mark = if mark == "✓" { style.paint(Paint::Green, mark) } else { style.paint(Paint::Yellow, mark) };
        writeln!(out, "{mark} {text}")?;
        if let Some(peer) = &checked.peer {
            writeln!(out, "  {}", style.dim(&known(peer, &args.peer)))?;
        }
    }
    out.flush()?;
    let says = matches!(checked.outcome, CheckOutcome::Drained | CheckOutcome::Certain);
    Ok(if says { ExitCode::SUCCESS } else { ExitCode::from(Kind::Failed as u8) })
}

/// The app state of a process that the agent does not know, or whose host it does not observe.
const UNKNOWN: &str = "unknown";

/// Fails where this can be neither an address nor a name of somebody who sends.
fn names_somebody(connection: &Connection, peer: &str) -> Result<(), Failure> {
    if peer.parse::<IpAddr>().is_ok() || matches!(Target::parse(peer), Ok(Target::Host(_) | Target::Process(..))) {
        return Ok(());
    }
    Err(nobody(peer, &known::hosts(&context::status(connection)?)))
}

fn nobody(peer: &str, hosts: &[&str]) -> Failure {
    let what = format!(
        "`{}` names nobody who sends: write NAME@HOST, @HOST, or the address that packets come from",
        peer.escape_debug()
    );
    let host = hosts.contains(&peer).then(|| format!("the host {peer} is written @{peer}"));
    Failure::not_found(what).maybe_hint(host)
}

/// Fails where nobody of that name or address is known: an empty queue says nothing about a
/// misspelt one.
fn is_known(connection: &Connection, peer: &str, checked: &Checked) -> Result<(), Failure> {
    if let Ok(address) = peer.parse::<IpAddr>() {
        return if checked.peer.is_some() { Ok(()) } else { is_own(&context::status(connection)?, address) };
    }
    let is_doubtful = checked.peer.as_ref().is_none_or(|known| known.app_state == UNKNOWN);
    let Some(target) = Target::parse(peer).ok().filter(|_| is_doubtful) else { return Ok(()) };
    let status = context::status(connection)?;
    match target {
        Target::Everything => Ok(()),
        Target::Host(host) => known::host(&status, host),
        Target::Process(app, host) => known::process(&status, app, Some(host)),
    }
}

/// Of an address that no other host has: this one may have it.
fn is_own(status: &Status, address: IpAddr) -> Result<(), Failure> {
    let address = address.to_canonical().to_string();
    if status.paths.iter().any(|path| path.address == address) {
        return Ok(());
    }
    let what = format!("no host that this agent knows has the address {address}, so its silence says nothing");
    Err(Failure::not_found(what).hint("by name: @HOST or NAME@HOST, as fide status shows them"))
}

fn told(checked: &Checked, peer: &str, since_ns: u64) -> (&'static str, String) {
    let since = units::ns(since_ns);
    match checked.outcome {
        CheckOutcome::Drained => (
            "✓",
            format!(
                "drained: what came from {peer} until now is in the sockets of this host, and nothing was lost here in the last {since}; \
                 if no heartbeat is there, none came"
            ),
        ),
        CheckOutcome::Certain => ("✓", format!("certain: in the last {since} a kernel saw the end of {peer}")),
        CheckOutcome::Void => {
            ("?", format!("void: this host lost packets in the last {since} ({}), so silence says nothing", checked.why))
        }
        _ => ("?", format!("no barrier: something may wait on this host, so silence says nothing ({})", checked.why)),
    }
}

fn known(peer: &CheckedPeer, asked: &str) -> String {
    let mut text = format!("{} is {}", peer.host, peer.host_state);
    if !peer.app_state.is_empty() {
        text = format!("{asked} is {}; {text}", peer.app_state);
    }
    if peer.fenced {
        text.push_str("; its fence has closed");
    } else if peer.fence.is_some() {
        text.push_str("; it promised a fence");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_wire::control::LocalPath;

    #[test]
    fn what_names_nobody_is_not_found_and_a_host_without_its_at_is_recognised() {
        let of = |peer: &str| nobody(peer, &["h1", "h2"]);
        assert_eq!((of("h2").kind, of("h2").hints), (Kind::NotFound, vec!["the host h2 is written @h2".to_owned()]));
        assert_eq!((of("nohost").kind, of("nohost").hints), (Kind::NotFound, Vec::new()));
        assert!(of("x\u{202e}y").what.starts_with("`x\\u{202e}y` names nobody"), "{}", of("x\u{202e}y").what);
    }

    #[test]
    fn an_address_that_no_host_has_is_not_found() {
        let own = LocalPath { address: "10.77.0.1".into(), ..LocalPath::default() };
        let status = Status { paths: vec![own], ..Status::default() };
        let of = |address: &str| is_own(&status, address.parse().unwrap()).map_err(|failure| failure.kind);
        assert_eq!(of("10.77.0.99"), Err(Kind::NotFound));
        assert_eq!((of("10.77.0.1"), of("::ffff:10.77.0.1")), (Ok(()), Ok(())));
    }
}
