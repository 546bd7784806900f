//! Running iproute2: each program's exit is checked and its complaint handed on.

use std::env;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::LabError;
use crate::netns::Netns;
use crate::process::{MARK, die_with_parent};

/// Where to look besides `PATH`: users' paths often lack the `sbin`s.
pub(crate) const SBIN: &str = "/usr/sbin:/sbin:/usr/bin:/bin";

/// Feeds `lines` to `ip -batch -` or `tc -batch -` inside a network namespace. Nothing is run for
/// no lines.
pub(crate) fn batch(tool: &'static str, netns: &str, lines: &[String], what: &str) -> Result<(), LabError> {
    if lines.is_empty() {
        return Ok(());
    }
    let mut command = Command::new(find(tool, what)?);
    Netns::open(netns)?.confine(&mut command);
    feed(command, tool, lines, what)
}

/// Feeds `lines` to `ip -batch -` outside of the lab's namespaces. What it makes there stays when
/// its caller is killed, and it may be in the middle of a system call at that moment: it carries
/// the lab's mark, so that a teardown waits for its end.
pub(crate) fn batch_outside(lab_id: &str, lines: &[String], what: &str) -> Result<(), LabError> {
    let mut command = Command::new(find("ip", what)?);
    command.env(MARK, lab_id);
    feed(command, "ip", lines, what)
}

fn feed(mut command: Command, tool: &'static str, lines: &[String], what: &str) -> Result<(), LabError> {
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    die_with_caller(&mut command);
    let mut child = command.spawn().map_err(|e| LabError::io(format!("{what}: start `{tool} -batch -`"), e))?;

    // A batch is at most a few tens of kilobytes, but a tool that stopped reading must not hang us: it then has
    // exited or will, and the broken pipe is explained by its own message below.
    let mut input = child.stdin.take().expect("standard input was piped");
    let written = input.write_all((lines.join("\n") + "\n").as_bytes());
    drop(input);

    let output = child.wait_with_output().map_err(|e| LabError::io(format!("{what}: wait for `{tool}`"), e))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(refusal(tool, lines, &output.status.to_string(), &stderr, what));
    }
    written.map_err(|e| LabError::io(format!("{what}: write to `{tool} -batch -`"), e))
}

/// A tool must not go on making things after its caller was killed: nobody would know of them.
fn die_with_caller(command: &mut Command) {
    let caller = std::process::id().cast_signed();
    // SAFETY: `die_with_parent` only makes two system calls on integers.
    unsafe {
        command.pre_exec(move || die_with_parent(libc::SIGKILL, caller));
    }
}

/// `Command failed -:12` names the line of the batch that failed.
fn refusal(tool: &str, lines: &[String], status: &str, stderr: &str, what: &str) -> LabError {
    let failed = stderr
        .lines()
        .find_map(|line| line.strip_prefix("Command failed -:"))
        .and_then(|number| number.trim().parse::<usize>().ok())
        .and_then(|number| lines.get(number.checked_sub(1)?));
    let said: Vec<&str> = stderr.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with("Command failed")).collect();
    let advice = if stderr.contains("Operation not permitted") {
        "; the process lacks CAP_NET_ADMIN or CAP_SYS_ADMIN: run it as root outside an unprivileged container"
    } else if stderr.contains("Unknown device type") || stderr.contains("not supported") {
        "; this kernel lacks the device type: veth and bridge must be built in or loadable"
    } else {
        ""
    };
    LabError::Tool {
        what: what.to_string(),
        tool: failed.map_or_else(|| tool.to_string(), |line| format!("{tool} {line}")),
        status: status.to_string(),
        stderr: if said.is_empty() { "it said nothing".to_string() } else { said.join("; ") },
        advice,
    }
}

pub(crate) fn find(tool: &'static str, what: &str) -> Result<PathBuf, LabError> {
    let path = env::var("PATH").unwrap_or_default();
    let found = env::split_paths(&path)
        .chain(env::split_paths(SBIN))
        .map(|dir| dir.join(tool))
        .find(|candidate| is_executable(candidate));
    found.ok_or_else(|| LabError::ToolMissing { what: what.to_string(), tool })
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_batch_names_the_line_that_failed() {
        let lines = ["link set lo up".to_string(), "link set nix up".to_string()];
        let error = refusal("ip", &lines, "exit status: 1", "Cannot find device \"nix\"\nCommand failed -:2\n", "wire h1");
        let text = error.to_string();
        assert!(text.contains("cannot wire h1: `ip link set nix up` failed"), "{text}");
        assert!(text.contains("Cannot find device"), "{text}");
    }

    #[test]
    fn a_missing_capability_is_explained() {
        let error = refusal("ip", &[], "exit status: 2", "RTNETLINK answers: Operation not permitted\n", "wire h1");
        assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
    }

    #[test]
    fn a_missing_tool_names_its_package() {
        let error = find("fide-no-such-tool", "make a lab").unwrap_err();
        assert!(error.to_string().contains("iproute2"), "{error}");
    }
}
