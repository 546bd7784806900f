//! What systemd knows of this agent's unit and of others.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// In which time an agent that systemd restarts is back, unless the configuration says otherwise. It takes a tenth of a second; a slow disk may take some.
pub const BACK_WITHIN_MS: u32 = 10_000;

/// Others hear heartbeats until it is known.
const LIMIT: Duration = Duration::from_secs(1);

/// Whether systemd starts this agent again when it has ended, as `systemctl restart` and upgrades of packages have it do. `false` where it is not systemd's, or
/// where systemd does not say so within a second.
#[must_use]
pub fn is_restarting() -> bool {
    // What systemd started has it.
    if std::env::var_os("INVOCATION_ID").is_none() {
        return false;
    }
    let Some(unit) = std::fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| unit_of(&text)) else { return false };
    // A user's manager says so to what it starts.
    let manager = std::env::var_os("MANAGERPID").map(|_| "--user");
    let until = Instant::now() + LIMIT;
    let words = manager.into_iter().chain(["list-jobs", "--no-legend", "--plain", "--", &unit]);
    systemctl(words, || Instant::now() > until).is_some_and(|jobs| restarts(&jobs, &unit))
}

/// The service to whose cgroup a process belongs, by its `/proc/PID/cgroup`.
fn unit_of(cgroups: &str) -> Option<String> {
    let path = |line: &'_ str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let name = path.split('/').rev().find(|name| name.ends_with(".service"))?;
        matches!(controllers, "" | "name=systemd").then(|| name.to_owned())
    };
    cgroups.lines().find_map(path)
}

/// Whether `systemctl list-jobs` says that a unit is being restarted: number, unit, type, state.
fn restarts(jobs: &str, unit: &str) -> bool {
    jobs.lines().any(|job| {
        let mut words = job.split_whitespace().skip(1);
        words.next() == Some(unit) && words.next() == Some("restart")
    })
}

/// What systemctl prints; `None` when it cannot be asked, or says nothing in time. Takes some milliseconds.
pub fn systemctl<'a>(words: impl IntoIterator<Item = &'a str>, is_over: impl Fn() -> bool) -> Option<String> {
    let mut command = Command::new("systemctl");
    command.args(words).env("SYSTEMD_BUS_TIMEOUT", "2s");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    while child.try_wait().ok()?.is_none() {
        if is_over() {
            let _ = child.kill(); // gone already is as good
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    // Some lines: they never filled the pipe.
    String::from_utf8(child.wait_with_output().ok()?.stdout).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_known_by_its_cgroup() {
        for (cgroups, unit) in [
            ("0::/system.slice/fided.service\n", Some("fided.service")),
            ("9:name=systemd:/system.slice/fided.service\n1:cpu:/x.service\n0::/\n", Some("fided.service")),
            ("1:cpu:/x.service\n0::/system.slice/fided.service/payload\n", Some("fided.service")),
            ("0::/user.slice/user-7.slice/user@7.service/app.slice/fided.service\n", Some("fided.service")),
            ("0::/user.slice/user-7.slice/session-3.scope\n", None),
            ("1:cpu:/x.service\n0::/\n", None),
            ("", None),
            ("0:", None),
        ] {
            assert_eq!(unit_of(cgroups).as_deref(), unit, "{cgroups}");
        }
    }

    #[test]
    fn a_restart_is_a_job_of_this_unit_and_of_this_type() {
        for (jobs, expected) in [
            ("417 fided.service restart running\n", true),
            ("416 a.service start waiting\n417 fided.service restart running\n", true),
            ("417 fided.service stop running\n", false),
            ("417 other-fided.service restart running\n", false),
            ("417 fided.service\n", false),
            ("No jobs running.\n", false),
            ("", false),
        ] {
            assert_eq!(restarts(jobs, "fided.service"), expected, "{jobs}");
        }
    }
}
