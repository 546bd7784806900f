//! The handle of a lab: made, opened, used, taken down.

use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::process::Command;

use crate::error::LabError;
use crate::freeze::{FreezeBy, Frozen};
use crate::names::{self, NETS, host_name, host_namespace, namespaces, parse_host, switch_namespace};
use crate::netns::{self, Netns};
use crate::process::{MARK, ProcessId, Registry};
use crate::spec::{LabSpec, check_name};
use crate::state::{self, Phase, State};
use crate::status::{LabStatus, LabSummary};
use crate::teardown::{self, Reaped};
use crate::tool;
use crate::watcher::Watcher;
use crate::wiring;

/// The file in a lab's directory in which everything started through the lab writes itself down.
pub(crate) const REGISTRY: &str = "processes";

/// A lab: N hosts with two NICs each on two switches.
///
/// Hosts are numbered from 1, networks are 0 and 1. Dropping the handle of an ephemeral lab, in the process that made
/// it, takes the lab down; any other handle is just a handle.
#[derive(Debug)]
pub struct Lab {
    name: String,
    id: String,
    spec: LabSpec,
    /// The process in which dropping this handle takes the lab down.
    owner: Option<ProcessId>,
    watcher: Option<Watcher>,
}

impl Lab {
    /// Makes a lab and returns when packets pass. What is left of crashed labs is removed on the way.
    ///
    /// # Errors
    /// If the caller is not root, the specification is not possible, a lab of that name exists, iproute2 is missing or
    /// the kernel refuses. Nothing is left behind then.
    pub fn up(spec: &LabSpec) -> Result<Lab, LabError> {
        require_root("make a lab")?;
        spec.check()?;
        for needed in ["ip", "tc"] {
            tool::find(needed, "make a lab")?;
        }
        // Someone else's trouble: it must not keep this lab from being made.
        let _ = teardown::reap_abandoned();

        let state = create_record(spec)?;
        // From here on dropping the handle removes whatever has been made.
        let mut lab = Lab {
            name: state.name.clone(),
            id: state.id.clone(),
            spec: state.spec.clone(),
            owner: Some(state.creator),
            watcher: None,
        };
        if spec.ephemeral {
            let watcher = Watcher::start(&state)?;
            let id = watcher.id();
            lab.watcher = Some(watcher);
            lab.update_state(|state| {
                state.watcher = id;
                Ok(())
            })?;
        }
        lab.make_directories()?;
        wiring::build(&state)?;
        wiring::wait_for_carriers(&lab.name, &lab.spec)?;
        lab.update_state(|state| {
            state.phase = Phase::Up;
            Ok(())
        })?;
        if !spec.ephemeral {
            lab.owner = None;
        }
        Ok(lab)
    }

    /// A handle of a lab that exists.
    ///
    /// # Errors
    /// If the caller is not root, there is no such lab, or it is being made or removed or was left by a crash.
    pub fn open(name: &str) -> Result<Lab, LabError> {
        require_root("open a lab")?;
        check_name(name)?;
        let state = state::read(name)?.ok_or_else(|| LabError::NotFound(name.to_string()))?;
        let unusable = |why: &str, advice| Err(LabError::NotUsable { name: name.to_string(), why: why.to_string(), advice });
        if state.is_stale() {
            return unusable("the process that owned it has crashed", "remove what it left with `fide lab down --stale`");
        }
        match state.phase {
            Phase::Up => Ok(Lab { name: state.name, id: state.id, spec: state.spec, owner: None, watcher: None }),
            Phase::Building => unusable("it is still being made", "try again in a moment"),
            Phase::Removing { .. } => unusable("it is being taken down", "make another one"),
        }
    }

    /// All labs of this machine, also unfinished and stale ones, by name.
    ///
    /// # Errors
    /// If a record cannot be read.
    pub fn list() -> Result<Vec<LabSummary>, LabError> {
        let states = state::names().into_iter().filter_map(|name| state::read(&name).transpose());
        states.map(|state| state.map(|s| LabSummary::of(&s))).collect()
    }

    /// Takes the lab down: ends what was started through it, and removes its namespaces, directories and record.
    ///
    /// # Errors
    /// If something cannot be removed; trying again continues where it stopped.
    pub fn down(mut self) -> Result<(), LabError> {
        self.take_down()
    }

    /// Takes down the lab of that name, whatever state it is in.
    ///
    /// # Errors
    /// As [`Lab::down`], or if there is no such lab.
    pub fn down_by_name(name: &str) -> Result<(), LabError> {
        require_root("take a lab down")?;
        check_name(name)?;
        let state = state::read(name)?.ok_or_else(|| LabError::NotFound(name.to_string()))?;
        teardown::take_down(&state.name, &state.id)
    }

    /// Removes what crashed labs left behind: labs whose owner has ended, and namespaces and directories named like a
    /// lab's that no record knows. Labs in use are not touched.
    ///
    /// # Errors
    /// The first failure, after everything that could be removed has been.
    pub fn reap_stale() -> Result<Reaped, LabError> {
        require_root("remove stale labs")?;
        teardown::reap_all()
    }

    /// The lab's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the lab was made from; the name is filled in.
    #[must_use]
    pub fn spec(&self) -> &LabSpec {
        &self.spec
    }

    /// The hosts' numbers, from 1.
    #[must_use]
    pub fn hosts(&self) -> std::ops::RangeInclusive<u16> {
        1..=self.spec.hosts
    }

    /// The number of the host called `h3` or `3`.
    ///
    /// # Errors
    /// If there is no such host.
    pub fn host_number(&self, name: &str) -> Result<u16, LabError> {
        parse_host(name).filter(|&host| host <= self.spec.hosts).ok_or_else(|| self.no_such_host(name))
    }

    /// The host's IPv4 address on a network; see [`names::host_ipv4`].
    #[must_use]
    pub fn ipv4(&self, host: u16, net: u8) -> Ipv4Addr {
        names::host_ipv4(host, net)
    }

    /// The host's IPv6 address on a network; see [`names::host_ipv6`].
    #[must_use]
    pub fn ipv6(&self, host: u16, net: u8) -> Ipv6Addr {
        names::host_ipv6(host, net)
    }

    /// The name of the host's network namespace, a file in `/run/netns`.
    #[must_use]
    pub fn host_netns(&self, host: u16) -> String {
        host_namespace(&self.name, host)
    }

    /// The name of the switch's network namespace. Its bridge is `br0`, its port to host 3 is `h3`.
    #[must_use]
    pub fn switch_netns(&self, net: u8) -> String {
        switch_namespace(&self.name, net)
    }

    /// A directory for the host's sockets, configuration and history, `/run/fide/lab/<name>/<host>`. It goes with the lab.
    #[must_use]
    pub fn host_dir(&self, host: u16) -> PathBuf {
        self.directory().join(host_name(host))
    }

    /// The directory with all the hosts' directories.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        state::directory_of(&self.name)
    }

    /// A command that will run on a host: in its network namespace, with the caller's mounts, and ended with the lab.
    /// `FIDE_LAB` and `FIDE_HOST` are set in its environment.
    ///
    /// # Errors
    /// If there is no such host, or the lab is gone.
    pub fn command(&self, host: u16, program: impl AsRef<OsStr>) -> Result<Command, LabError> {
        self.check_host(host)?;
        self.command_in(&host_namespace(&self.name, host), &host_name(host), program.as_ref())
    }

    /// A command that will run on a switch (`bridge`, `tc`, a packet capture).
    ///
    /// # Errors
    /// If there is no such network, or the lab is gone.
    pub fn switch_command(&self, net: u8, program: impl AsRef<OsStr>) -> Result<Command, LabError> {
        self.check_net(net)?;
        self.command_in(&switch_namespace(&self.name, net), &format!("s{net}"), program.as_ref())
    }

    fn command_in(&self, namespace: &str, host: &str, program: &OsStr) -> Result<Command, LabError> {
        let mut command = Command::new(program);
        command.env("FIDE_LAB", &self.name).env("FIDE_HOST", host).env(MARK, &self.id);
        Netns::open(namespace)?.confine(&mut command);
        Registry::open(&self.registry())?.enlist(&mut command, host);
        Ok(command)
    }

    /// Runs `body` on a host, in a fresh thread inside its network namespace. Sockets made there stay on the host also
    /// when they are handed out, and so do processes, but those are not known to the lab and not ended with it: start
    /// them by [`Lab::command`]. A panic of `body` goes on in the caller.
    ///
    /// # Errors
    /// If there is no such host, or the lab is gone.
    pub fn in_host<T: Send>(&self, host: u16, body: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        self.check_host(host)?;
        Netns::open(&host_namespace(&self.name, host))?.run(body)
    }

    /// The same on a switch.
    ///
    /// # Errors
    /// If there is no such network, or the lab is gone.
    pub fn in_switch<T: Send>(&self, net: u8, body: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        self.check_net(net)?;
        Netns::open(&switch_namespace(&self.name, net))?.run(body)
    }

    /// Freezes a process, which need not have been started through the lab; returns when it stands still. Taking the
    /// lab down thaws it.
    ///
    /// # Errors
    /// If there is no such process, it is frozen already, or the kernel has no freezer.
    pub fn freeze(&self, pid: i32, by: FreezeBy) -> Result<(), LabError> {
        let process = ProcessId::of(pid).ok_or(LabError::NoSuchProcess { pid })?;
        let plan = Frozen::plan(process, by, &self.id)?;
        self.update_state(|state| {
            state.frozen.retain(|f| f.process.is_alive());
            if state.frozen.iter().any(|f| f.process == process) {
                return Err(LabError::NotUsable {
                    name: self.name.clone(),
                    why: format!("process {pid} is frozen already"),
                    advice: "thaw it first",
                });
            }
            state.frozen.push(plan.clone());
            Ok(())
        })?;
        plan.freeze().inspect_err(|_| drop(self.thaw(pid)))
    }

    /// Lets a frozen process go on. One that is not frozen, or has ended, is no error.
    ///
    /// # Errors
    /// If the freezer refuses.
    pub fn thaw(&self, pid: i32) -> Result<(), LabError> {
        let state = self.read_state()?;
        for frozen in state.frozen.iter().filter(|f| f.process.pid == pid) {
            frozen.thaw()?;
        }
        self.update_state(|state| {
            state.frozen.retain(|f| f.process.pid != pid);
            Ok(())
        })
    }

    /// How the lab is: hosts, addresses, links, faults and processes.
    ///
    /// # Errors
    /// If the lab is gone.
    pub fn status(&self) -> Result<LabStatus, LabError> {
        Ok(LabStatus::of(&self.read_state()?))
    }

    pub(crate) fn registry(&self) -> PathBuf {
        self.directory().join(REGISTRY)
    }

    pub(crate) fn check_host(&self, host: u16) -> Result<(), LabError> {
        if self.hosts().contains(&host) { Ok(()) } else { Err(self.no_such_host(&host_name(host))) }
    }

    pub(crate) fn check_net(&self, net: u8) -> Result<(), LabError> {
        if NETS.contains(&net) { Ok(()) } else { Err(LabError::NoSuchNet(net)) }
    }

    pub(crate) fn read_state(&self) -> Result<State, LabError> {
        let state = state::read(&self.name)?.filter(|s| s.id == self.id);
        state.ok_or_else(|| LabError::NotFound(self.name.clone()))
    }

    pub(crate) fn update_state<T>(&self, change: impl FnOnce(&mut State) -> Result<T, LabError>) -> Result<T, LabError> {
        state::update(&self.name, &self.id, change)
    }

    fn no_such_host(&self, host: &str) -> LabError {
        LabError::NoSuchHost { lab: self.name.clone(), host: host.to_string(), hosts: self.spec.hosts }
    }

    fn make_directories(&self) -> Result<(), LabError> {
        for host in self.hosts() {
            let directory = self.host_dir(host);
            fs::create_dir_all(&directory).map_err(|e| LabError::io(format!("make the directory {}", directory.display()), e))?;
        }
        Ok(())
    }

    fn take_down(&mut self) -> Result<(), LabError> {
        self.owner = None;
        // On failure the watcher is not dismissed but dropped, and tries in its own way.
        teardown::take_down(&self.name, &self.id)?;
        if let Some(watcher) = self.watcher.take() {
            watcher.dismiss();
        }
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // A fork of the owner has the handle too, but not the lab.
        if self.owner.is_some_and(|owner| owner.pid == std::process::id().cast_signed()) {
            // Nobody to tell; what is left is stale and will be reaped.
            let _ = self.take_down();
        }
    }
}

fn create_record(spec: &LabSpec) -> Result<State, LabError> {
    loop {
        let name = match &spec.name {
            Some(name) => name.clone(),
            None => format!("lab-{}", state::random_hex(6)?),
        };
        let full = LabSpec { name: Some(name.clone()), ..spec.clone() };
        let state = State::new(name.clone(), full, namespaces(&name, spec.hosts))?;
        // Without a record it is not a lab's (or was not left by one that is known): not ours to remove either.
        if state::read(&name)?.is_none()
            && let Some(taken) = state.namespaces.iter().find(|n| netns::path_of(n).exists())
        {
            return Err(LabError::NotUsable {
                name,
                why: format!("a network namespace {taken} exists already, and no lab has made it"),
                advice: "take another name, or remove leftovers with `fide lab down --stale`",
            });
        }
        match state::create(&state) {
            Err(LabError::Exists(_)) if spec.name.is_none() => {}
            Err(error) => return Err(error),
            Ok(()) => return Ok(state),
        }
    }
}

fn require_root(what: &'static str) -> Result<(), LabError> {
    // SAFETY: geteuid takes nothing and cannot fail.
    let euid = unsafe { libc::geteuid() };
    if euid == 0 { Ok(()) } else { Err(LabError::NotRoot { what, euid }) }
}
