//! Verdicts in words, the same in the history, the log and the hooks.

use fide_wire::verdict::{Cause, FencedWhy, ProgressSource};

/// The name of a signal, as `kill -l` writes it.
#[must_use]
pub fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
        "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR",
        "SYS",
    ];
    match usize::try_from(signal).ok().and_then(|s| NAMES.get(s.wrapping_sub(1))) {
        Some(name) => format!("SIG{name}"),
        None => format!("signal {signal}"),
    }
}

/// One sentence for an event.
#[must_use]
pub fn sentence(cause: Cause, node: &str, app: Option<&str>, code: i32, confirms: bool) -> String {
    let what = match app {
        Some(app) => format!("{app} on {node}"),
        None => node.to_string(),
    };
    let confirmed = if confirms { " (reported before as doomed)" } else { "" };
    match cause {
        Cause::Exited if code < 0 => format!("{what} has ended, how is not known{confirmed}"),
        Cause::Exited => format!("{what} exited with status {code}{confirmed}"),
        Cause::Killed => format!("{what} was ended by {}{confirmed}", signal_name(code)),
        Cause::Replaced => format!("{what} was replaced: its process began another program or joined again, as a new instance"),
        Cause::OutOfMemory => format!("{what} was ended by the kernel, which was out of memory for it{confirmed}"),
        Cause::Doomed if code == 0 => format!("{what} is exiting and cannot be saved"),
        Cause::Doomed => format!("{what} is being ended by {} and cannot be saved", signal_name(code)),
        Cause::Left => format!("{what} left"),
        Cause::AgentLost => format!("the agent of {what} is gone or stuck; nothing is known of the processes there"),
        Cause::SilentHost if app.is_some() => format!("{what} is taken for dead: its host fell silent"),
        Cause::SilentHost => format!("{what} fell silent on every path and its kernel does not answer"),
        Cause::PathDown => format!("path {code} from {what} loses what another carries: a network fault, not a crash"),
        Cause::Unreachable => {
            format!("{what} is silent here on every path, and another host hears it: a fault of the network between, not a crash")
        }
        Cause::Hung => match ProgressSource::from_code(code) {
            Some(ProgressSource::Report) => format!("{what} is hung, an application of its host found; it did not end"),
            Some(source) => format!("{what} makes no progress: {source} has not moved for its limit; it did not end"),
            None => format!("{what} makes no progress; it did not end"),
        },
        Cause::Progressing => format!("{what} makes progress again"),
        Cause::PathUp => format!("path {code} from {what} carries heartbeats again"),
        Cause::ContractBroken => format!("heartbeats of {what} are later than its contract allows; its kernel is being asked"),
        Cause::ContractKept => format!("heartbeats of {what} are back within the contract"),
        Cause::Isolated => format!("{what} reaches nobody: verdicts on others are withheld"),
        Cause::Rejoined => format!("{what} reaches others again"),
        Cause::Returned if code == 0 => format!("{what} joined"),
        Cause::Returned if code == 2 => {
            format!("{what} began a new incarnation: another host had given it up wrongly, or its fence was closed for a moment")
        }
        Cause::Returned if code == 4 => {
            format!("{what} lives, and was given up here wrongly: it goes on in the same incarnation")
        }
        Cause::Returned if code == 3 => format!("the agent of {what} was started again"),
        Cause::Returned => format!("{what} returned with a new incarnation"),
        Cause::ObserverPaused => {
            format!("{what} did not run for {:.3} ms; what it missed is not held against others", f64::from(code) / 1000.0)
        }
        Cause::NameClash => format!("another agent calls itself {what}: rename one of them"),
        Cause::ForeignTraffic => format!("{what} refuses packets of another cluster or key"),
        Cause::Monitored => format!("{what} is monitored"),
        Cause::Interface if code == 0 => format!("an interface of {what} went away"),
        Cause::Interface => format!("an interface of {what} came back"),
        Cause::Local => format!("{what} needs its operator"),
        Cause::Fenced => format!("{what} is fenced: nothing of it is heard any more; {}", FencedWhy::from_code(code)),
        Cause::Recovered if code == 1 => {
            format!("{what} is not fenced any more, and began a new incarnation: enough others confirm that they hear it")
        }
        Cause::Recovered => format!("{what} is not fenced any more, and began a new incarnation"),
    }
}

/// Nanoseconds since 1970 as date and time, UTC (RFC 3339).
#[must_use]
pub fn utc(wall_ns: u64) -> String {
    let at = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(wall_ns);
    humantime::format_rfc3339_seconds(at).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_a_sentence_that_names_its_subject() {
        for cause in Cause::ALL {
            assert!(sentence(cause, "a", Some("db"), 1, false).contains('a'), "{cause}");
        }
        assert_eq!(sentence(Cause::Killed, "a", Some("db"), 9, true), "db on a was ended by SIGKILL (reported before as doomed)");
        assert_eq!(signal_name(64), "signal 64");
        assert_eq!(signal_name(0), "signal 0");
    }

    #[test]
    fn dates_are_in_utc_to_the_end_of_the_clock() {
        assert_eq!(utc(951_868_799_999_999_999), "2000-02-29T23:59:59Z");
        assert_eq!(utc(u64::MAX), "2554-07-21T23:34:33Z");
    }
}
