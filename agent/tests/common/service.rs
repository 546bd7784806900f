//! A service manager of a lab host's own: the real systemd, with one unit.

use super::{Process, World, until};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// It can write nothing but its host's directory: a manager that booted would tidy up this machine.
pub struct ServiceManager {
    runtime: PathBuf,
    unit: String,
    groups: Vec<PathBuf>,
    log: PathBuf,
    _process: Process,
}

impl ServiceManager {
    /// Whether the test can run; says so if not.
    pub fn can_run() -> bool {
        let has_cgroups = ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup/cgroup.procs"].iter().any(|path| Path::new(path).exists());
        let can = has_cgroups && Path::new("/lib/systemd/systemd").exists();
        if !can {
            println!("SKIPPED: there is no systemd here, or no cgroups for it");
        }
        can
    }

    pub fn runtime(w: &World, host: u16) -> PathBuf {
        w.lab.host_dir(host).join("run")
    }

    /// Started, with one unit, which is not. `service`: what stands below `[Service]`.
    pub fn start(w: &World, host: u16, unit: &str, service: &str) -> Self {
        let (dir, runtime) = (w.lab.host_dir(host), Self::runtime(w, host));
        // Cgroups of its own, so that managers of several hosts do not meet.
        let group = format!("fide-{}-h{host}", std::process::id());
        let groups: Vec<PathBuf> = ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"]
            .iter()
            .map(PathBuf::from)
            .filter(|root| root.join("cgroup.procs").exists())
            .map(|root| root.join(&group))
            .collect();
        let units = dir.join("units");
        fs::create_dir_all(&units).unwrap();
        fs::create_dir_all(&runtime).unwrap();
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).unwrap();
        for name in ["default.target", "basic.target", "shutdown.target", "exit.target"] {
            fs::write(units.join(name), "[Unit]\nDefaultDependencies=no\n").unwrap();
        }
        fs::write(units.join(unit), format!("[Unit]\nDefaultDependencies=no\n[Service]\n{service}")).unwrap();
        let script = dir.join("systemd.sh");
        let join: String =
            groups.iter().map(|group| format!("mkdir -p {0}; echo $$ >{0}/cgroup.procs\n", group.display())).collect();
        let text = format!(
            "set -e\n{join}mount --make-rprivate /\ncd {dir}\nmount -t tmpfs tmpfs /run\nmkdir -p /run/systemd/system {dir}\n\
             mount -c --bind . {dir}\ncd {dir}\n\
             mount -o remount,bind,ro /\nexec env -i PATH=\"$PATH\" HOME={dir} XDG_RUNTIME_DIR={run} SYSTEMD_UNIT_PATH={units} \
             /lib/systemd/systemd --user --unit=default.target\n",
            dir = dir.display(),
            run = runtime.display(),
            units = units.display()
        );
        fs::write(&script, text).unwrap();
        let mut command = w.lab.command(host, "unshare").unwrap();
        let log = dir.join("systemd.log");
        let to = fs::File::create(&log).unwrap();
        command.args(["--mount", "--", "/bin/sh"]).arg(&script).stdin(Stdio::null()).stdout(to.try_clone().unwrap()).stderr(to);
        command.process_group(0);
        let manager = Self { runtime, unit: unit.into(), groups, log, _process: Process::spawn(command) };
        until("the service manager answers", || manager.systemctl(&["show", "-p", "ActiveState"]).contains("inactive"));
        manager
    }

    pub fn systemctl(&self, words: &[&str]) -> String {
        let mut command = Command::new("systemctl");
        command.arg("--user").args(words).arg(&self.unit).env("XDG_RUNTIME_DIR", &self.runtime);
        let out = command.output().unwrap();
        String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned()
    }

    pub fn runs(&self) -> bool {
        self.systemctl(&["show", "-p", "ActiveState"]).contains("=active")
    }

    pub fn pid(&self) -> i32 {
        self.systemctl(&["show", "-p", "MainPID", "--value"]).trim().parse().unwrap()
    }
}

impl Drop for ServiceManager {
    fn drop(&mut self) {
        if std::thread::panicking() || std::env::var_os("FIDE_TEST_LOGS").is_some() {
            println!("---- {}\n{}", self.log.display(), fs::read_to_string(&self.log).unwrap_or_default());
        }
        self.groups.iter().for_each(|group| end_group(group));
    }
}

/// Ends all processes in a cgroup of this test, and removes it.
fn end_group(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
        end_group(&entry.path());
    }
    for pid in fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default().lines() {
        // SAFETY: two numbers; the group is this test's.
        unsafe { libc::kill(pid.parse().unwrap(), libc::SIGKILL) };
    }
    for _ in 0..100 {
        if fs::remove_dir(group).is_ok() || !group.exists() {
            return;
        }
        // Sleep: interval of the poll.
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
