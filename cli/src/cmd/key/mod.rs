//! `fide key`

mod file;

use crate::context::{self, Context};
use crate::failure::{Failure, Kind};
use crate::table::{Cell, Table};
use clap::{Args, Subcommand, ValueEnum};
use fide_client::Connection;
use fide_wire::control::{HeldKey, Reply, Request, Status};
use fide_wire::mac::Key;
use file::Change;
use serde::Serialize;
use serde_json::json;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Its arguments.
#[derive(Debug, Args)]
#[command(after_help = "A rotation, without a gap:\n  \
fide key new /etc/fide/key2                       on one host; copy the file to every other one, mode 0600\n  \
fide key rotate 2 --file /etc/fide/key2           on every host: key 2 is accepted\n  \
fide key rotate 2 --step send                     on every host: key 2 is sent with\n  \
fide key rotate 2 --step drop                     on every host: the old key is accepted no more\n\n\
Each step is refused while a host lacks the one before, and says which. A step that this host has taken already, named by --file or --step, \
is done: nothing changes, whatever comes next. Keys are named by fingerprints; no command prints a key.")]
pub struct KeyArgs {
    /// What to do
    #[command(subcommand)]
    pub order: KeyCommand,
}

/// What can be done.
#[derive(Clone, Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a key: a new file that only its owner can read
    New {
        /// The file, which must not exist
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Which keys every host holds, by id and fingerprint, and which one it sends with
    List,
    /// Take the next step to a key on this host: accept it, send with it, drop the other one
    Rotate {
        /// The key's id, the same on every host
        #[arg(value_name = "ID", value_parser = clap::value_parser!(u8).range(1..=15))]
        id: u8,
        /// Its file on this host: the step is to accept it
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Which step; without it and without --file, the next one
        #[arg(long, value_enum)]
        step: Option<Wanted>,
        /// The agent's configuration, whose [keys] are changed
        #[arg(long, value_name = "FILE", default_value = "/etc/fide/fide.toml")]
        config: PathBuf,
    },
}

/// The steps, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Wanted {
    /// Accept the key beside the one that is sent with
    Accept,
    /// Send with it, and accept the old one
    Send,
    /// Accept the old one no more
    Drop,
}

/// What a host is known to hold.
#[derive(Clone, Debug, Serialize)]
struct Host {
    host: String,
    state: String,
    /// Nothing: its agent has not said so.
    keys: Option<Vec<HeldKey>>,
}

/// This host, and all others that have not left.
fn hosts(status: &Status) -> Vec<Host> {
    let of = |host: &str, state: &str| {
        let keys = status.keys.iter().find(|k| k.host == host).map(|k| k.keys.clone());
        Host { host: host.into(), state: state.into(), keys }
    };
    let others = status.hosts.iter().filter(|h| h.state != "left").map(|h| of(&h.name, &h.state));
    let mut others: Vec<Host> = others.collect();
    others.sort_by(|a, b| a.host.cmp(&b.host));
    [of(&status.node, "alive")].into_iter().chain(others).collect()
}

fn named(key: &HeldKey) -> String {
    format!("{} ({})", key.id, key.fingerprint)
}

fn fingerprint(key: &Key) -> String {
    format!("{:016x}", key.fingerprint())
}

/// Asks, or makes a file.
pub fn run(context: &Context, args: KeyArgs) -> Result<ExitCode, Failure> {
    match args.order {
        KeyCommand::New { file } => new(context, &file),
        KeyCommand::List => list(context),
        KeyCommand::Rotate { id, file, step, config } => {
            let step = step.or(file.is_some().then_some(Wanted::Accept));
            rotate(context, (id, step), file.as_deref(), &config)
        }
    }
}

// ---- new ------------------------------------------------------------------------------------------------------------

fn new(context: &Context, path: &Path) -> Result<ExitCode, Failure> {
    let failed = |what: &str, e: std::io::Error| Failure::failed(format!("{}: {what}: {e}", path.display()));
    let mut random = [0u8; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut from| from.read_exact(&mut random));
    read.map_err(|e| failed("no random bytes", e))?;
    let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let key = Key::from_hex(&text).map_err(|e| Failure::failed(e.to_string()))?;
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => Failure::failed(format!("{} exists already", path.display()))
            .hint("a key is never overwritten: name a new file, for example with the number of the key"),
        _ => failed("cannot be made", e),
    });
    let mut file = file?;
    let wrote = file.write_all(format!("{text}\n").as_bytes()).and_then(|()| file.sync_all());
    wrote.map_err(|e| failed("cannot be written", e))?;
    // An id that nobody uses, as far as the agent of this host knows.
    let status = context.connect().ok().and_then(|connection| context::status(&connection).ok());
    let used = |id: u8| status.iter().flat_map(|s| &s.keys).flat_map(|k| &k.keys).any(|key| key.id == id);
    let id = (1..=15).find(|id| !used(*id)).unwrap_or(1);
    let (mut out, fingerprint, shown) = (context.out(), fingerprint(&key), path.display());
    if context.json {
        context.json_line(&mut out, &json!({ "file": path, "fingerprint": fingerprint, "id": id }))?;
    } else {
        writeln!(out, "a new key in {shown}, fingerprint {fingerprint}")?;
        writeln!(out, "  copy it to every host, mode 0600; what is on the wire is safe only while nobody else has it")?;
        if status.is_some_and(|s| s.authenticated) {
            writeln!(out, "  then, on every host: fide key rotate {id} --file {shown}")?;
        } else {
            writeln!(
                out,
                "  then, in fide.toml on every host: [keys] send = {{ id = {id}, file = \"{shown}\" }}, and fide reload"
            )?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

// ---- list -----------------------------------------------------------------------------------------------------------

fn list(context: &Context) -> Result<ExitCode, Failure> {
    let status = context::status(&context.connect()?)?;
    let hosts = hosts(&status);
    let mut out = context.out();
    if context.json {
        context.json_line(&mut out, &json!({ "authenticated": status.authenticated, "hosts": hosts }))?;
    } else if !status.authenticated {
        writeln!(out, "this host has no key: anybody on its networks can forge verdicts; make one with fide key new FILE")?;
    } else {
        let mut table = Table::new(&["HOST", "STATE", "SENDS WITH", "ACCEPTS TOO"]);
        for h in &hosts {
            let state = Cell::painted(h.state.clone(), crate::render::state_paint(&h.state));
            let (send, accept) = match &h.keys {
                None => ("not known".into(), String::new()),
                Some(keys) => (keys.first().map(named).unwrap_or_default(), keys.get(1).map(named).unwrap_or_default()),
            };
            table.row([h.host.clone().into(), state, send.into(), accept.into()]);
        }
        out.write_all(table.render(&context.style, 0).as_bytes())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

// ---- rotate ---------------------------------------------------------------------------------------------------------

/// What is to be done on this host next.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Accept(PathBuf),
    Send,
    Drop,
    Nothing,
}

/// The hosts of which this does not hold.
fn lacking(hosts: &[Host], holds: impl Fn(&[HeldKey]) -> bool) -> Vec<String> {
    let lacks = |h: &&Host| !h.keys.as_ref().is_some_and(|keys| holds(keys));
    let named = |h: &Host| if h.state == "alive" { h.host.clone() } else { format!("{} ({})", h.host, h.state) };
    hosts.iter().filter(lacks).map(named).collect()
}

/// A refusal that names hosts.
fn refuse(what: &str, lacking: &[String], hint: &str) -> Failure {
    Failure::failed(format!("{what}: {}", lacking.join(", ")))
        .hint(hint)
        .hint("a host that is gone for good is counted no more after fide forget HOST; what each holds: fide key list")
}

/// The step that is wanted, or the next one, if every host has taken the one before.
fn next(hosts: &[Host], (id, wanted): (u8, Option<Wanted>), file: Option<(&Path, &Key)>) -> Result<Step, Failure> {
    let own = hosts.first().and_then(|h| h.keys.clone()).unwrap_or_default();
    let Some(sends) = own.first() else {
        return Err(Failure::failed("this host has no key, so there is none to rotate").hint(
            "the first key cannot be introduced without a gap: set [keys] send in fide.toml on every host, then fide reload",
        ));
    };
    let Some(key) = own.iter().find(|key| key.id == id) else {
        let Some((path, key)) = file else {
            return Err(Failure::failed(format!("this host does not hold key {id} yet"))
                .hint(format!("copy its file here, mode 0600, then: fide key rotate {id} --file FILE")));
        };
        if let Some(other) = own.get(1) {
            return Err(Failure::failed(format!(
                "two keys are accepted at a time, and this host holds {} and {}",
                sends.id, other.id
            ))
            .hint(format!("finish that rotation first: fide key rotate {}", sends.id)));
        }
        let of_others = hosts.iter().filter_map(|h| h.keys.as_ref().map(|keys| (&h.host, keys)));
        let other = of_others.flat_map(|(host, keys)| keys.iter().map(move |key| (host, key)));
        let mut other = other.filter(|(_, held)| held.id == id && held.fingerprint != fingerprint(key));
        if let Some((host, held)) = other.next() {
            let what =
                format!("{host} holds another key {id} (fingerprint {}, this file's is {})", held.fingerprint, fingerprint(key));
            return Err(Failure::failed(what).hint("copy the same file to every host, or give this key another id"));
        }
        return Ok(Step::Accept(path.into()));
    };
    if let Some((path, of_file)) = file
        && fingerprint(of_file) != key.fingerprint
    {
        let what = format!("{} is not the key {id} that this host holds ({})", path.display(), key.fingerprint);
        return Err(Failure::failed(what).hint("leave --file out, or give the new key another id"));
    }
    let taken = match (sends == key, own.len()) {
        (false, _) => Wanted::Accept,
        (true, 1) => Wanted::Drop,
        (true, _) => Wanted::Send,
    };
    match wanted {
        Some(wanted) if wanted <= taken => return Ok(Step::Nothing),
        Some(Wanted::Drop) if taken == Wanted::Accept => {
            return Err(Failure::failed(format!("this host does not send with key {id} yet"))
                .hint(format!("the step before: fide key rotate {id} --step send")));
        }
        _ => {}
    }
    if sends != key {
        let lacking = lacking(hosts, |keys| keys.contains(key));
        let hint = format!("on each of them: fide key rotate {id} --file FILE, with a copy of the same file");
        let what = format!("key {} cannot be sent with yet: these hosts would refuse it", named(key));
        return if lacking.is_empty() { Ok(Step::Send) } else { Err(refuse(&what, &lacking, &hint)) };
    }
    let Some(old) = own.get(1) else { return Ok(Step::Nothing) };
    let lacking = lacking(hosts, |keys| keys.first() == Some(key));
    let what = format!("key {} cannot be dropped yet: these hosts still send with it", named(old));
    let hint = format!("on each of them: fide key rotate {id}");
    if lacking.is_empty() { Ok(Step::Drop) } else { Err(refuse(&what, &lacking, &hint)) }
}

fn read_key(path: &Path) -> Result<Key, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| {
        let kind = if e.kind() == std::io::ErrorKind::NotFound { Kind::NotFound } else { Kind::Failed };
        Failure::new(kind, format!("{} cannot be read: {e}", path.display()))
    })?;
    Key::from_hex(&text).map_err(|e| Failure::failed(format!("{} holds no key: {e}", path.display())))
}

fn rotate(
    context: &Context,
    (id, wanted): (u8, Option<Wanted>),
    file: Option<&Path>,
    config: &Path,
) -> Result<ExitCode, Failure> {
    // The agent is to find it again, whatever its directory is.
    let file = file.map(std::path::absolute).transpose()?;
    let key = file.as_deref().map(read_key).transpose()?;
    let connection = context.connect()?;
    let status = context::status(&connection)?;
    let step = next(&hosts(&status), (id, wanted), file.as_deref().zip(key.as_ref()))?;
    let (done, change) = match &step {
        Step::Nothing => match wanted {
            None | Some(Wanted::Drop) => ("holds this key alone already", None),
            Some(Wanted::Accept) => ("accepts it already", None),
            Some(Wanted::Send) => ("sends with it already", None),
        },
        Step::Accept(path) => ("accepts it beside the one that it sends with", Some(Change::Accept { id, file: path.clone() })),
        Step::Send => ("sends with it, and accepts the old one", Some(Change::Swap { send: id })),
        Step::Drop => ("accepts this key alone", Some(Change::Drop)),
    };
    if let Some(change) = change {
        let former = file::change(config, &change)?;
        if let Err(failure) = reload(&connection, &step, id) {
            former.restore()?;
            let _ = connection.request(&Request::Reload); // as it was: what failed is told
            return Err(failure.hint(format!("{} is as it was before", config.display())));
        }
    }
    let status = context::status(&connection)?;
    let hosts = hosts(&status);
    let mut out = context.out();
    if context.json {
        let step = match step {
            Step::Accept(_) => "accept",
            Step::Send => "send",
            Step::Drop => "drop",
            Step::Nothing => "none",
        };
        context.json_line(&mut out, &json!({ "node": status.node, "id": id, "step": step, "hosts": hosts }))?;
    } else {
        writeln!(out, "key {id}: {} {done}", status.node)?;
        let done = match step {
            Step::Accept(_) => Wanted::Accept,
            Step::Send => Wanted::Send,
            Step::Drop => Wanted::Drop,
            Step::Nothing => wanted.unwrap_or(Wanted::Drop),
        };
        let (what, left) = match done {
            Wanted::Accept => ("accept it", lacking(&hosts, |keys| keys.iter().any(|key| key.id == id))),
            Wanted::Send => ("send with it", lacking(&hosts, |keys| keys.first().is_some_and(|key| key.id == id))),
            Wanted::Drop => ("hold it alone", lacking(&hosts, |keys| keys.len() == 1 && keys[0].id == id)),
        };
        match left.as_slice() {
            [] => writeln!(out, "  all hosts {what}")?,
            left => writeln!(out, "  not yet: {}", left.join(", "))?,
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Has the agent read its file, and sees that it holds what it should.
fn reload(connection: &Connection, step: &Step, id: u8) -> Result<(), Failure> {
    match connection.request(&Request::Reload)?.reply {
        Reply::Reloaded(_) => {}
        other => return Err(Failure::unexpected("what a reload did", &other)),
    }
    let status = context::status(connection)?;
    let own = status.keys.iter().find(|k| k.host == status.node).map(|k| k.keys.clone()).unwrap_or_default();
    let ids: Vec<u8> = own.iter().map(|key| key.id).collect();
    let is_done = match step {
        Step::Accept(_) => ids.get(1) == Some(&id),
        Step::Send => ids.len() == 2 && ids[0] == id,
        Step::Drop => ids == [id],
        Step::Nothing => true,
    };
    if is_done {
        return Ok(());
    }
    let what = "the agent has read its configuration and holds the same keys as before: it uses another file";
    Err(Failure::new(Kind::Failed, what).hint("name it: --config FILE (see `fided` in the output of ps)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, keys: &[u8]) -> Host {
        let held = |id: &u8| HeldKey { id: *id, fingerprint: fingerprint(&Key([*id; 16])) };
        Host { host: name.into(), state: "alive".into(), keys: Some(keys.iter().map(held).collect()) }
    }

    fn cluster(keys: [&[u8]; 3]) -> Vec<Host> {
        ["h1", "h2", "h3"].iter().zip(keys).map(|(name, keys)| host(name, keys)).collect()
    }

    #[test]
    fn a_step_is_taken_only_when_all_hosts_have_taken_the_one_before() {
        let (path, key) = (Path::new("/k2"), Key([2; 16]));
        let file = Some((path, &key));
        let next = |keys, file| next(&cluster(keys), (2, None), file);
        let why = |keys, file| next(keys, file).unwrap_err().what;
        assert!(why([&[1], &[1], &[1]], None).contains("does not hold key 2 yet"));
        assert_eq!(next([&[1], &[1], &[1]], file).unwrap(), Step::Accept(path.into()));
        assert!(why([&[1, 2], &[1, 2], &[1]], None).ends_with("would refuse it: h3"));
        assert_eq!(next([&[1, 2], &[2, 1], &[1, 2]], None).unwrap(), Step::Send);
        assert!(why([&[2, 1], &[1, 2], &[2, 1]], None).ends_with("still send with it: h2"));
        assert_eq!(next([&[2, 1], &[2, 1], &[2]], None).unwrap(), Step::Drop);
        assert_eq!(next([&[2], &[2, 1], &[2]], None).unwrap(), Step::Nothing);
        assert!(why([&[1, 3], &[1], &[1]], file).contains("two keys are accepted at a time"));
        assert!(why([&[], &[], &[]], file).contains("has no key"));
    }

    #[test]
    fn a_step_that_is_named_is_taken_once_and_no_other_one() {
        let (path, key) = (Path::new("/k2"), Key([2; 16]));
        let next =
            |keys, wanted| next(&cluster(keys), (2, Some(wanted)), Some((path, &key)).filter(|_| wanted == Wanted::Accept));
        assert_eq!(next([&[1], &[1, 2], &[1, 2]], Wanted::Accept).unwrap(), Step::Accept(path.into()));
        for keys in [[&[1, 2][..], &[1, 2], &[1, 2]], [&[1, 2], &[1], &[1]], [&[2, 1], &[2, 1], &[2, 1]]] {
            assert_eq!(next(keys, Wanted::Accept).unwrap(), Step::Nothing, "{keys:?}");
        }
        assert_eq!(next([&[1, 2], &[1, 2], &[2, 1]], Wanted::Send).unwrap(), Step::Send);
        for keys in [[&[2, 1][..], &[2, 1], &[2, 1]], [&[2, 1], &[1, 2], &[1, 2]], [&[2], &[2], &[2]]] {
            assert_eq!(next(keys, Wanted::Send).unwrap(), Step::Nothing, "{keys:?}");
        }
        assert_eq!(next([&[2, 1], &[2, 1], &[2, 1]], Wanted::Drop).unwrap(), Step::Drop);
        assert!(next([&[1, 2], &[1, 2], &[1, 2]], Wanted::Drop).unwrap_err().what.contains("does not send with key 2 yet"));
        assert!(next([&[1], &[1], &[1]], Wanted::Send).unwrap_err().what.contains("does not hold key 2 yet"));
    }

    #[test]
    fn another_key_of_the_same_id_is_refused_and_so_is_a_host_that_says_nothing() {
        let other = Key([9; 16]);
        let refused = next(&cluster([&[1], &[1, 2], &[1]]), (2, None), Some((Path::new("/k"), &other))).unwrap_err();
        assert!(refused.what.starts_with("h2 holds another key 2"), "{}", refused.what);
        let refused = next(&cluster([&[1, 2], &[1, 2], &[1, 2]]), (2, None), Some((Path::new("/k"), &other))).unwrap_err();
        assert!(refused.what.starts_with("/k is not the key 2"), "{}", refused.what);
        let mut hosts = cluster([&[1, 2], &[1, 2], &[1, 2]]);
        (hosts[2].keys, hosts[2].state) = (None, "silent-host".into());
        let refused = next(&hosts, (2, None), None).unwrap_err();
        assert!(refused.what.ends_with("h3 (silent-host)") && refused.hints.iter().any(|h| h.contains("fide forget")));
    }
}
