//! `fide lab` on the real thing: namespaces, cables and, where fided was built beside fide, agents and a crash.
//! Needs root; elsewhere it says so and does nothing.

use crate::fake::{command, fide};
use fide_lab::Leftover;
use fide_wire::control::HistoryEvent;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

/// Longest wait for what must come: it only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(90);

/// A lab's name, and its end also when the test fails.
struct Named(String);

impl Named {
    fn new(what: &str) -> Self {
        let named = Named(format!("cli-{what}-{}", std::process::id()));
        // Its end also when this process is killed: `fide lab up` makes labs that stay.
        Leftover::Lab(named.0.clone()).goes_with_caller().unwrap();
        named
    }

    fn run(&self, line: &[&str]) -> Output {
        let line: Vec<&str> = ["lab", "--name", &self.0].into_iter().chain(line.iter().copied()).collect();
        fide(Path::new("/nonexistent"), &line)
    }

    fn exists(&self) -> bool {
        let listed = fide(Path::new("/nonexistent"), &["lab", "list", "--json"]);
        let namespaces = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
        let prefix = format!("fide-{}-", self.0);
        out(&listed).contains(&self.0) || namespaces.into_iter().any(|n| n.file_name().to_string_lossy().starts_with(&prefix))
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if self.exists() {
            self.run(&["down"]);
        }
    }
}

fn out(o: &Output) -> String {
    String::from_utf8_lossy(&o.stdout).into_owned()
}

fn ok(o: Output) -> String {
    assert!(o.status.success(), "{}: {}", o.status, String::from_utf8_lossy(&o.stderr));
    out(&o)
}

fn root() -> bool {
    // SAFETY: takes nothing and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("SKIPPED: labs need root");
    }
    root
}

/// The agent's program: cargo puts it beside this one, if it has built it.
fn fided() -> std::path::PathBuf {
    Path::new(env!("CARGO_BIN_EXE_fide")).with_file_name("fided")
}

fn has_agents() -> bool {
    let is_built = fided().exists();
    if !is_built {
        println!("SKIPPED: {} is not built (cargo build -p fide-agent)", fided().display());
    }
    is_built
}

#[test]
fn a_lab_is_made_broken_mended_and_removed() {
    if !root() {
        return;
    }
    let lab = Named::new("life");
    let up: serde_json::Value = serde_json::from_str(&ok(lab.run(&["up", "--hosts", "2", "--json"]))).unwrap();
    assert_eq!(up["hosts"].as_array().unwrap().len(), 2);

    let again = lab.run(&["up"]);
    assert_eq!(again.status.code(), Some(1), "{}", out(&again));
    let told = ok(lab.run(&["exec", "h2", "--", "sh", "-c", "echo $FIDE_HOST $FIDE_SOCKET"]));
    assert_eq!(told.trim(), format!("h2 /run/fide/lab/{}/h2/fided.sock", lab.0));
    assert_eq!(lab.run(&["exec", "h2", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(lab.run(&["exec", "h2", "--", "no-such-program"]).status.code(), Some(4));
    assert_eq!(lab.run(&["exec", "h9", "--", "true"]).status.code(), Some(4));
    // `fide` is found inside although it is not installed, and asks the host's own agent, of which there is none.
    let none = lab.run(&["exec", "h1", "--", "fide", "status"]);
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert_eq!(none.status.code(), Some(3));
    // The machine's own agent is not meant.
    assert!(said.contains("fide lab up --agents") && !said.contains("systemctl"), "{said}");
    let examined = out(&lab.run(&["exec", "h1", "--", "fide", "doctor"]));
    assert!(examined.contains("agent running: no agent") && !examined.contains("systemctl enable"), "{examined}");

    ok(lab.run(&["cut", "h2", "net1", "--silent"]));
    assert!(ok(lab.run(&["status"])).contains("cut silently"));
    assert!(ok(lab.run(&["heal"])).contains("h2 net1 is well again"));
    assert!(ok(lab.run(&["heal"])).contains("nothing was cut"));
    ok(lab.run(&["down"]));
    assert!(!lab.exists());
    assert_eq!(lab.run(&["status"]).status.code(), Some(4));
}

#[test]
fn a_killed_demonstrations_cgroup_is_stale_and_removed_and_a_living_ones_is_not() {
    if !root() {
        return;
    }
    let roots = [Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup")];
    let Some(root) = roots.into_iter().find(|r| r.join("cgroup.procs").exists()) else {
        println!("SKIPPED: no cgroups are mounted where they usually are");
        return;
    };
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let [left, living] = [ended.id(), std::process::id()].map(|pid| root.join(format!("fide-demo-{pid}")));
    if std::fs::create_dir(&left).and_then(|()| std::fs::create_dir(&living)).is_err() {
        println!("SKIPPED: no cgroup can be made here");
        return;
    }
    let said = ok(fide(Path::new("/nonexistent"), &["lab", "down", "--stale"]));
    let kept = living.is_dir();
    std::fs::remove_dir(&living).unwrap();
    assert!(said.contains("removed cgroup: ") && said.contains(left.to_str().unwrap()), "{said}");
    assert!(!left.exists() && kept, "{said}");
}

#[test]
fn without_root_the_demonstration_says_so_before_anything_else() {
    use std::os::unix::process::CommandExt as _;
    let mut demo = command(Path::new("/nonexistent"), &["demo"]);
    // Where the report could not be written either.
    demo.current_dir("/proc");
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        demo.uid(65_534).gid(65_534);
    }
    let o = match demo.output() {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            println!("SKIPPED: this test's program is out of reach for others");
            return;
        }
        other => other.unwrap(),
    };
    let said = String::from_utf8_lossy(&o.stderr).into_owned();
    assert!(o.status.code() == Some(5) && said.contains("root") && !said.contains("report"), "{}: {said}", o.status);
}

#[test]
fn of_several_labs_none_is_touched_unless_it_is_named() {
    if !root() {
        return;
    }
    let (one, two) = (Named::new("one"), Named::new("two"));
    for lab in [&one, &two] {
        ok(lab.run(&["up", "--hosts", "2"]));
    }
    for line in [&["exec", "h1", "--", "true"][..], &["cut", "h1", "net0"], &["heal"], &["down"]] {
        let refused = fide(Path::new("/nonexistent"), &[&["lab"], line].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{line:?}: {said}");
        assert!(said.contains("--name") && said.contains(&one.0) && said.contains(&two.0), "{line:?}: {said}");
    }
    // Asking is harmless: it tells of all.
    let told = ok(fide(Path::new("/nonexistent"), &["lab", "status"]));
    assert!(told.contains(&one.0) && told.contains(&two.0), "{told}");
}

#[test]
fn an_interrupted_lab_leaves_nothing_behind() {
    if !root() {
        return;
    }
    let lab = Named::new("intr");
    for after_ms in [30, 200] {
        let mut child = command(Path::new("/nonexistent"), &["lab", "--name", &lab.0, "up", "--hosts", "12"]).spawn().unwrap();
        // Sleep: the moment of the interruption, which is what is tried.
        std::thread::sleep(Duration::from_millis(after_ms));
        // SAFETY: our own child, not yet waited for.
        unsafe { libc::kill(child.id().cast_signed(), libc::SIGINT) };
        let ended = child.wait().unwrap();
        if ended.success() {
            // It was faster than the signal.
            ok(lab.run(&["down"]));
        } else {
            // Ended by the signal itself: that came before anything had begun, on a busy machine.
            assert!(ended.code() == Some(130) || ended.signal() == Some(libc::SIGINT), "{ended}");
        }
        assert!(!lab.exists(), "after {after_ms} ms");
    }
}

#[test]
fn a_crash_in_a_lab_is_known_and_explained_on_the_other_host() {
    if !root() || !has_agents() {
        return;
    }
    let lab = Named::new("crash");
    ok(lab.run(&["up", "--hosts", "2", "--agents", "--heartbeat", "10ms"]));
    let script = "sleep 600 & fide monitor victim --pid $! && kill -9 $!";
    assert!(ok(lab.run(&["exec", "h2", "--", "sh", "-c", script])).contains("1 other host will learn of its crash"));

    let deadline = Instant::now() + PATIENCE;
    let events: Vec<HistoryEvent> = loop {
        let lines = ok(lab
            .run(&["exec", "h1", "--", "fide", "events", "--json", "--app", "victim", "--cause", "killed", "--cause", "doomed"]));
        let events: Vec<_> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        if !events.is_empty() || Instant::now() > deadline {
            break events;
        }
        // Sleep: interval of the poll.
        std::thread::sleep(Duration::from_millis(50));
    };
    let id = events.first().and_then(|e| e.id).expect("h1 learns of the crash").to_string();
    let explained: serde_json::Value =
        serde_json::from_str(&ok(lab.run(&["exec", "h1", "--", "fide", "explain", &id, "--json"]))).unwrap();
    assert_eq!(explained["explanation"]["clocks"], "one-machine");
    assert!(explained["explanation"]["total_ns"].as_i64().is_some_and(|ns| ns > 0), "{explained}");
    // Somebody with a detector of their own asks. The other host lives: what it sent is here, as soon as nobody on this machine loses packets.
    let certain = ok(lab.run(&["exec", "h1", "--", "fide", "check", "victim@h2", "--since", "10m"]));
    assert!(certain.contains("✓ certain") && certain.contains("victim@h2 is killed; h2 is alive"), "{certain}");
    let said = loop {
        let o = lab.run(&["exec", "h1", "--", "fide", "check", "@h2", "--since", "10ms", "--wait", "20s", "--json"]);
        let said: serde_json::Value = serde_json::from_slice(&o.stdout).unwrap();
        match said["outcome"].as_str().unwrap() {
            "void" => assert!(o.status.code() == Some(1) && Instant::now() < deadline + PATIENCE, "{said}"),
            _ => break (o.status.code(), said["outcome"].as_str().unwrap().to_owned()),
        }
    };
    assert_eq!(said, (Some(0), "drained".into()));
    for nobody in ["nonsense", "h2", "10.77.0.99"] {
        let o = lab.run(&["exec", "h1", "--", "fide", "check", nobody, "--wait", "20s"]);
        assert!(o.status.code() == Some(4) && String::from_utf8_lossy(&o.stderr).contains(nobody), "{o:?}");
    }
    let refused = || {
        let status: serde_json::Value =
            serde_json::from_str(&ok(lab.run(&["exec", "h1", "--", "fide", "status", "--json"]))).unwrap();
        // What a host's new life may add has nothing to do with it.
        let of = |reason: &str| status["refused"][reason].as_u64().unwrap_or_else(|| panic!("{reason}: {status}"));
        ["short", "magic", "version", "kind", "cluster", "key", "mac", "oversize", "own"].map(|r| (r, of(r)))
    };
    let before = refused();
    let examined = ok(lab.run(&["exec", "h1", "--", "fide", "doctor", "--try"]));
    assert!(examined.contains("the agent receives by it"), "{examined}");
    // Neither what the doctor tries nor what another agent asks when that holds this one up is a refused packet.
    assert_eq!(refused(), before);
    ok(lab.run(&["down"]));
    assert!(!lab.exists());
}

#[test]
fn agents_of_a_lab_have_a_key_and_what_is_said_of_their_hosts_is_true() {
    if !root() || !has_agents() {
        return;
    }
    for (options, authenticated) in [(&[][..], true), (&["--no-key"], false)] {
        let lab = Named::new("key");
        ok(lab.run(&[&["up", "--hosts", "2", "--agents"], options].concat()));
        let status: serde_json::Value =
            serde_json::from_str(&ok(lab.run(&["exec", "h1", "--", "fide", "status", "--json"]))).unwrap();
        assert_eq!(status["authenticated"], authenticated, "{options:?}");
        let config = format!("/run/fide/lab/{}/h2/fide.toml", lab.0);
        let checked = lab.run(&["exec", "h2", "--", fided().to_str().unwrap(), "--check", "--config", &config]);
        let said = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(checked.status.success(), "{said}");
        assert!(!said.contains("no interface net"), "they are there: {said}");
        assert_eq!(said.contains("no [keys]"), !authenticated, "{said}");
        let examined = out(&lab.run(&["exec", "h2", "--", "fide", "doctor"]));
        let group = |net: &str| examined.lines().find(|l| l.contains(&format!("multicast on {net}"))).unwrap_or("").to_owned();
        assert!(group("net0").contains("239.255.70.1 ") && group("net1").contains("239.255.70.2 "), "{examined}");
        ok(lab.run(&["down"]));
        assert!(!lab.exists());
    }
}

/// What `fide group` says where it can do nothing: a second group of one name, a name that nobody
/// has, an engine that somebody else chose, and too few members.
#[test]
fn orders_to_groups_that_cannot_be_done_say_so_and_why() {
    if !root() || !has_agents() {
        return;
    }
    let lab = Named::new("group");
    ok(lab.run(&["up", "--hosts", "3", "--agents", "--heartbeat", "10ms"]));
    let on = |host: &str, line: &[&str]| lab.run(&[&["exec", host, "--", "fide", "group"], line].concat());
    let fails = |o: Output, what: &str| {
        let said = String::from_utf8_lossy(&o.stderr).into_owned();
        assert!(!o.status.success() && said.contains(what), "{what}: {} {said} {}", o.status, out(&o));
    };
    let in_time = |host: &str, line: &[&str]| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let o = on(host, line);
            if o.status.success() || Instant::now() > deadline {
                return ok(o);
            }
            // Sleep: interval of the poll.
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    for line in [&["propose", "jobs", "x"][..], &["watch", "jobs"], &["trim", "jobs"]] {
        fails(on("h1", line), "this host has no group jobs: fide group join jobs");
    }
    in_time("h1", &["create", "jobs", "--hosts", "h1,h2", "--engine", "raft"]);
    in_time("h1", &["create", "kept", "--hosts", "h1,h2", "--engine", "raft", "--durable"]);
    fails(on("h3", &["create", "jobs", "--hosts", "h3"]), "it has a group jobs already");
    fails(on("h3", &["propose", "jobs", "x"]), "it has a group jobs already");
    fails(on("h3", &["join", "nosuch"]), "no host that is heard runs a group nosuch");
    for line in [&["join", "nosuch"][..], &["leave", "nosuch"], &["switch", "nosuch", "--engine", "raft"], &["trim", "nosuch"]] {
        assert_eq!(on("h3", line).status.code(), Some(4), "as every unknown name: {line:?}");
    }
    // What is kept all the same, such as the change of the engine, does not hold up a trim.
    in_time("h1", &["propose", "jobs", "x", "y"]);
    // Trust in the contract is taken where it is named; raft makes no use of it.
    for line in [&["switch", "jobs", "--engine", "hsuc"][..], &["switch", "jobs", "--engine", "hsuc", "--policy", "fence"]] {
        assert_eq!(on("h1", line).status.code(), Some(2), "{line:?}");
    }
    in_time("h1", &["switch", "jobs", "--engine", "hsuc", "--policy", "trust-contract"]);
    let begun = Instant::now();
    ok(on("h1", &["trim", "jobs"]));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let seen = ok(on("h1", &["watch", "jobs", "--once"]));
    assert!(seen.contains("snapshot of 0 bytes") && !seen.contains("  x"), "{seen}");
    let seen = lab.run(&["exec", "h1", "--", "timeout", "--preserve-status", "-s", "INT", "1", "fide", "group", "watch", "jobs"]);
    assert_eq!(seen.status.code(), Some(130), "{seen:?}");
    in_time("h1", &["switch", "jobs", "--engine", "raft"]);
    let said = in_time("h1", &["propose", "jobs", "a\nb\u{1b}[31m"]);
    assert!(said.contains("a\\nb\\u{1b}[31m") && said.lines().count() == 1, "{said}");

    let agents: serde_json::Value = serde_json::from_str(&ok(lab.run(&["status", "--json"]))).unwrap();
    let of_h2 = agents["hosts"][1]["processes"].as_array().unwrap();
    let agent = of_h2.iter().find(|p| p["command"] == "fided").and_then(|p| p["pid"].as_i64()).unwrap();
    // SAFETY: an agent of the lab that this test has made.
    assert_eq!(unsafe { libc::kill(i32::try_from(agent).unwrap(), libc::SIGKILL) }, 0);
    let why = "1 of its 2 members live, and raft decides by 2";
    let deadline = Instant::now() + PATIENCE;
    // Of both groups: what the disk says of a durable one does not hide it.
    while ok(on("h1", &["status"])).matches(why).count() < 2 {
        assert!(Instant::now() < deadline, "{}", ok(on("h1", &["status"])));
        // Sleep: interval of the poll.
        std::thread::sleep(Duration::from_millis(20));
    }
    fails(on("h1", &["leave", "jobs"]), why);
    fails(on("h1", &["propose", "jobs", "y", "--wait", "0.2"]), why);
    assert!(ok(on("h1", &["leave", "jobs", "--force"])).contains("jobs  left, raft"));
    fails(on("h1", &["propose", "jobs", "y"]), "this host left jobs");
    in_time("h1", &["create", "jobs", "--hosts", "h1,h3"]);
    assert!(ok(on("h3", &["status"])).contains("0 entries, 0 proposals waiting"));

    // Several at once: each is done, or told which engine it is by now.
    std::thread::scope(|scope| {
        let switches = ["hsuc", "raft", "hsuc"].map(|engine| {
            (engine, scope.spawn(move || on("h1", &["switch", "jobs", "--engine", engine, "--policy", "trust-contract"])))
        });
        for (engine, switch) in switches {
            let o = switch.join().unwrap();
            let said = String::from_utf8_lossy(&o.stderr).into_owned();
            assert!(
                o.status.success() || said.contains("somebody else ordered meanwhile"),
                "{engine}: {} {said} {}",
                o.status,
                out(&o)
            );
        }
    });
    ok(lab.run(&["down"]));
    assert!(!lab.exists());
}

/// The module, wherever cargo has put it.
fn module() -> Option<std::path::PathBuf> {
    let fide = Path::new(env!("CARGO_BIN_EXE_fide"));
    ["libfide_redis.so", "deps/libfide_redis.so"].map(|name| fide.with_file_name(name)).into_iter().find(|path| path.exists())
}

#[test]
fn killed_redis_servers_of_a_lab_lose_nothing_and_leave_nothing_behind() {
    if !root() {
        return;
    }
    // Without redis-server: what is missing, and what brings it.
    let mut bare = command(Path::new("/nonexistent"), &["lab", "redis", "--kills", "1"]);
    let said = bare.env("PATH", "/nonexistent").output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.code() == Some(1) && text.contains("apt-get install redis-server"), "{text}");
    let refused = fide(Path::new("/nonexistent"), &["lab", "--name", "x", "redis"]);
    assert_eq!(refused.status.code(), Some(2));

    let has_server = std::process::Command::new("redis-server").arg("--version").output().is_ok();
    let Some(module) = module().filter(|_| has_server && has_agents()) else {
        println!("SKIPPED: redis-server, fided or the module is missing (cargo build -p fide-agent -p fide-redis)");
        return;
    };
    let module = module.to_str().unwrap();
    let shown =
        ok(fide(Path::new("/nonexistent"), &["lab", "redis", "--kills", "1", "--every", "1", "--json", "--module", module]));
    let events: Vec<serde_json::Value> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let named: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(named, ["killed", "back", "end"], "{shown}");
    let (killed, end) = (&events[0], &events[2]);
    assert!(killed["same"] == true && killed["host"] == "h1" && killed["leads"] != "h1", "{killed}");
    assert!(killed["pause_us"].as_u64().is_some_and(|us| us > 0) && killed["answered"].as_u64() > Some(100), "{killed}");
    assert!(end["lost"] == 0 && end["wrong"] == 0 && end["differed"] == 0, "{end}");

    // Ctrl-C is how it usually ends.
    let mut child = command(Path::new("/nonexistent"), &["lab", "redis", "--json", "--module", module]);
    let mut child = child.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    lines.next().unwrap().unwrap();
    let listed = ok(fide(Path::new("/nonexistent"), &["lab", "list", "--json"]));
    let mut labs = listed.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let lab = labs.find(|lab| lab["creator"]["pid"] == child.id()).map(|lab| lab["name"].clone());
    let name = lab.as_ref().and_then(|name| name.as_str()).unwrap_or("none").to_owned();
    let status = fide(Path::new("/nonexistent"), &["lab", "--name", &name, "status", "--json"]);
    // SAFETY: our own child, not yet waited for.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGINT) };
    assert!(child.wait().unwrap().success());
    // Other tests may run servers of their own at the same time.
    let status: serde_json::Value = serde_json::from_str(&ok(status)).unwrap();
    let hosts = status["hosts"].as_array().unwrap().iter();
    let processes = hosts.flat_map(|host| host["processes"].as_array().unwrap());
    let servers: Vec<_> = processes.filter(|p| p["command"] == "redis-server").map(|p| p["pid"].to_string()).collect();
    assert!(!servers.is_empty(), "{status}");
    let runs =
        |pid: &&String| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "redis-server");
    assert_eq!(servers.iter().filter(runs).count(), 0, "a server still runs: {servers:?}");
}

/// One attempt after another, as long as it is refused because hosts were not heard to be ready.
fn in_time(lab: &Named, host: &str, line: &[&str]) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let o = lab.run(&[&["exec", host, "--", "fide", "key"], line].concat());
        if o.status.success() || Instant::now() > deadline {
            return ok(o);
        }
        // Sleep: interval of the poll.
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_key_is_rotated_step_by_step_and_no_step_is_taken_before_all_hosts_are_ready() {
    if !root() || !has_agents() {
        return;
    }
    let lab = Named::new("rotate");
    ok(lab.run(&["up", "--hosts", "3", "--agents", "--heartbeat", "10ms"]));
    let dir = format!("/run/fide/lab/{}", lab.0);
    let (key2, config) = (format!("{dir}/key2"), |host: &str| format!("{dir}/{host}/fide.toml"));
    let rotate = |host: &str, more: &[&str]| {
        let config = config(host);
        in_time(&lab, host, &[&["rotate", "2", "--config", &config], more].concat())
    };
    let refused = |host: &str, file: &[&str]| {
        let config = config(host);
        let line = [&["exec", host, "--", "fide", "key", "rotate", "2", "--config", &config], file].concat();
        let o = lab.run(&line);
        assert_eq!(o.status.code(), Some(1), "{line:?}: {}", out(&o));
        String::from_utf8_lossy(&o.stderr).into_owned()
    };
    let made = ok(lab.run(&["exec", "h1", "--", "fide", "key", "new", &key2]));
    let secret = std::fs::read_to_string(&key2).unwrap();
    assert!(made.contains(&format!("fide key rotate 2 --file {key2}")) && !made.contains(secret.trim()), "{made}");
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&key2).unwrap().permissions()) & 0o777, 0o600);
    assert!(!lab.run(&["exec", "h1", "--", "fide", "key", "new", &key2]).status.success(), "never overwritten");

    assert!(refused("h1", &[]).contains("does not hold key 2 yet"));
    let said = rotate("h1", &["--file", &key2]);
    assert!(said.starts_with("key 2: h1 accepts it beside") && said.contains("not yet: h2, h3"), "{said}");
    rotate("h2", &["--file", &key2]);
    let text = std::fs::read_to_string(config("h1")).unwrap();
    let said = refused("h1", &[]);
    assert!(said.contains("these hosts would refuse it: h3") && said.contains("fide key rotate 2 --file FILE"), "{said}");
    assert_eq!(std::fs::read_to_string(config("h1")).unwrap(), text, "a refusal changes nothing");
    // Another key of the same id.
    let other = format!("{dir}/key3");
    ok(lab.run(&["exec", "h3", "--", "fide", "key", "new", &other]));
    assert!(refused("h3", &["--file", &other]).contains("holds another key 2"));
    rotate("h3", &["--file", &key2]);
    // Once more on all, as after an interrupted run: the next step is not taken.
    let again = in_time(&lab, "h1", &["rotate", "2", "--config", &config("h1"), "--file", &key2]);
    assert!(again.contains("accepts it already") && again.contains("all hosts accept it"), "{again}");
    assert!(refused("h1", &["--step", "drop"]).contains("does not send with key 2 yet"));
    for host in ["h1", "h2"] {
        assert!(rotate(host, &[]).contains("sends with it"), "{host}");
    }
    assert!(refused("h1", &[]).contains("still send with it: h3"));
    rotate("h3", &[]);
    for host in ["h1", "h2", "h3"] {
        assert!(rotate(host, &[]).contains("accepts this key alone"), "{host}");
    }
    assert!(rotate("h1", &[]).contains("holds this key alone already"));
    let deadline = Instant::now() + PATIENCE;
    let listed = loop {
        let listed: serde_json::Value =
            serde_json::from_str(&ok(lab.run(&["exec", "h2", "--", "fide", "key", "list", "--json"]))).unwrap();
        let hosts = listed["hosts"].as_array().unwrap().clone();
        let is_done = |h: &serde_json::Value| h["keys"].as_array().is_some_and(|keys| keys.len() == 1 && keys[0]["id"] == 2);
        if hosts.len() == 3 && hosts.iter().all(is_done) || Instant::now() > deadline {
            break hosts;
        }
        // Sleep: interval of the poll.
        std::thread::sleep(Duration::from_millis(20));
    };
    let prints: Vec<_> = listed.iter().map(|h| h["keys"][0]["fingerprint"].clone()).collect();
    assert!(prints.len() == 3 && prints.iter().all(|print| made.contains(print.as_str().unwrap())), "{listed:?}");
    // Nobody was lost on the way, and not a packet was refused.
    let status: serde_json::Value =
        serde_json::from_str(&ok(lab.run(&["exec", "h1", "--", "fide", "status", "--json"]))).unwrap();
    assert_eq!((&status["refused"]["key"], &status["refused"]["mac"]), (&0.into(), &0.into()));
    let lost = ok(lab.run(&["exec", "h1", "--", "fide", "events", "--json", "--cause", "agent-lost", "--cause", "silent-host"]));
    assert_eq!(lost, "");
    ok(lab.run(&["down"]));
}

/// The commands of docs/changes.md in a lab: systemd's part is done by signals and starts.
struct SecondDay<'a>(&'a Named);

impl SecondDay<'_> {
    fn agent(&self, host: &str) -> Option<i32> {
        let status: serde_json::Value = serde_json::from_str(&ok(self.0.run(&["status", "--json"]))).unwrap();
        let of_host = status["hosts"].as_array().unwrap().iter().find(|h| h["name"] == host).cloned()?;
        let agent = of_host["processes"].as_array()?.iter().find(|p| p["command"] == "fided").cloned()?;
        agent["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok())
    }

    fn end(&self, host: &str, signal: i32) {
        let pid = self.agent(host).unwrap();
        // SAFETY: an agent of the lab that this test has made.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
        self.until(&format!("the agent of {host} has ended"), || self.agent(host).is_none());
    }

    fn shell(&self, host: &str, line: &str) {
        let o = self.0.run(&["exec", host, "--", "sh", "-ec", line]);
        assert!(o.status.success(), "{host}: {line}: {}", String::from_utf8_lossy(&o.stderr));
    }

    fn start(&self, host: &str) {
        let line = "setsid \"$0\" --config \"$1/fide.toml\" >>\"$1/fided.log\" 2>&1 </dev/null &";
        let o = self.0.run(&["exec", host, "--", "sh", "-ec", line, fided().to_str().unwrap(), &self.directory(host)]);
        assert!(o.status.success(), "{o:?}");
        self.until("it answers", || self.0.run(&["exec", host, "--", "fide", "status"]).status.success());
    }

    fn directory(&self, host: &str) -> String {
        format!("/run/fide/lab/{}/{host}", self.0.0)
    }

    fn until(&self, what: &str, is: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is() {
            assert!(
                Instant::now() < deadline,
                "waited in vain: {what}: {}",
                out(&self.0.run(&["exec", "h1", "--", "fide", "status"]))
            );
            // Sleep: interval of the poll.
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// One line of the page, on one host.
    fn run(&self, host: &str, line: &str) {
        match line {
            "sudo systemctl restart fided" => {
                self.end(host, libc::SIGTERM);
                self.start(host);
            }
            "sudo systemctl enable --now fided" => self.start(host),
            "sudo systemctl disable --now fided" => self.end(host, libc::SIGTERM),
            // Refused while the host is heard.
            _ if line.starts_with("fide forget") => {
                let words: Vec<&str> = ["exec", host, "--"].into_iter().chain(line.split(' ')).collect();
                self.until(line, || self.0.run(&words).status.success());
            }
            _ => {
                let line = line.replace("sudo ", "").replace("/etc/fide", &self.directory(host));
                self.shell(host, &line);
            }
        }
    }

    /// What one host knows of another one: its state, and whether all its paths are up; nothing if it lists none of that name.
    fn view(&self, observer: &str, host: &str) -> Option<(String, bool, usize)> {
        let o = self.0.run(&["exec", observer, "--", "fide", "status", "--json"]);
        let status: serde_json::Value = serde_json::from_slice(&o.stdout).ok()?;
        let host = status["hosts"].as_array()?.iter().find(|h| h["name"] == host)?.clone();
        let paths = host["paths"].as_array()?.clone();
        let up = paths.iter().filter(|p| p["up"] == true).count();
        Some((host["state"].as_str()?.to_owned(), up == paths.len() && up > 0, up))
    }

    fn is_well(&self, host: &str) {
        for observer in ["h1", "h2"].into_iter().filter(|observer| *observer != host) {
            let what = format!("{observer} hears {host} on both paths");
            self.until(&what, || matches!(self.view(observer, host), Some((state, true, 2)) if state == "alive"));
        }
    }
}

#[test]
fn every_step_of_the_second_day_works_as_its_page_says() {
    if !root() || !has_agents() {
        return;
    }
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/changes.md")).unwrap();
    let mut blocks = page.split("```sh\n# on ").skip(1).map(|rest| rest.split("```").next().unwrap());
    let lab = Named::new("second-day");
    ok(lab.run(&["up", "--hosts", "4", "--agents", "--heartbeat", "10ms"]));
    let day = SecondDay(&lab);
    let mut next = || {
        let block = blocks.next().unwrap();
        let (hosts, lines) = block.split_once('\n').unwrap();
        for host in hosts.split(' ') {
            lines.lines().for_each(|line| day.run(host, line));
        }
    };
    // The period.
    next();
    day.is_well("h1");
    assert!(ok(lab.run(&["exec", "h1", "--", "fide", "status"])).contains("HB 20 ms"));
    // A host that leaves, and one that died.
    next();
    day.until("h4 has left", || day.view("h1", "h4").is_none_or(|(state, ..)| state == "left"));
    day.end("h3", libc::SIGKILL);
    next();
    assert!(day.view("h1", "h3").is_none() && day.view("h2", "h3").is_none());
    // Another machine in its place, and a new host: without the state of the ones before.
    for host in ["h3", "h4"] {
        day.shell(host, &format!("rm -f {0}/state.json* {0}/history.jsonl*", day.directory(host)));
        next();
        day.is_well(host);
    }
    next();
    day.is_well("h5");
    day.until("its former name is gone", || day.view("h1", "h4").is_none_or(|(state, ..)| state == "left"));
    // Another interface.
    day.shell("h2", "ip link set net1 down; ip link set net1 name net2; ip link set net2 up");
    next();
    day.is_well("h2");
    // One path, and two again.
    next();
    day.until("h1 has one path", || matches!(day.view("h2", "h1"), Some((state, _, 1)) if state == "alive"));
    next();
    day.is_well("h1");
    assert!(blocks.next().is_none(), "commands that no test runs");
}
