//! The adapter beside real agents.

use crate::common::{Pins, Process, Setup, World, until};
use crate::e2e_kubernetes::cluster::{AT, Cluster};
use fide_lab::Cut;
use fide_wire::control::{FenceOrder, HostStatus, MaintenanceOrder, Request, Selector};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

fn program() -> PathBuf {
    let program = std::env::current_exe().unwrap().parent().unwrap().with_file_name("fide-kubernetes");
    assert!(program.exists(), "build it first: cargo build -p fide-kubernetes");
    program
}

/// The lab and what runs there, beside an API server on its host 1.
pub struct Stage {
    pub dir: tempfile::TempDir,
    pub w: World,
}

/// With an API server of the test's own.
struct Scene {
    cluster: Arc<Cluster>,
    stage: Stage,
}

impl std::ops::Deref for Scene {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.cluster.end();
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for log in
                fs::read_dir(self.dir.path()).unwrap().flatten().filter(|f| f.file_name().to_str().unwrap().starts_with("log"))
            {
                eprintln!("---- {:?}\n{}", log.file_name(), fs::read_to_string(log.path()).unwrap());
            }
        }
    }
}

impl Stage {
    pub fn new(w: World) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), w }
    }

    pub fn command(&self, word: &str) -> Command {
        let mut command = self.w.lab.command(1, program()).unwrap();
        command.arg(word).arg("--socket").arg(self.w.socket(1)).args(["--api", &format!("https://127.0.0.1:{AT}")]);
        command.arg("--token-file").arg(self.dir.path().join("token")).arg("--ca-file").arg(self.dir.path().join("ca.crt"));
        command
    }

    pub fn adapter(&self, more: &[&str]) -> Adapter {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let log = self.dir.path().join(format!("log-{:02}", COUNT.fetch_add(1, Ordering::Relaxed)));
        let mut command = self.command("run");
        command.args(more).stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
        Adapter { process: Process::spawn(command), log }
    }

    /// A process on a host that is watched under a name. The watch finds its next one, too.
    pub fn watched(&self, host: u16, name: &str) -> Process {
        let program = self.dir.path().join(format!("the-{name}"));
        fs::copy("/bin/sleep", &program).unwrap();
        let process = self.start(host, name);
        self.w.ask(host, &Request::watch(name, Selector::Name(format!("the-{name}")))).unwrap();
        self.w.known(host, name);
        process
    }

    pub fn start(&self, host: u16, name: &str) -> Process {
        self.w.process(host, self.dir.path().join(format!("the-{name}")).to_str().unwrap(), &["1000"])
    }

    pub fn cut(&self, host: u16) {
        [0, 1].into_iter().for_each(|net| self.w.lab.cut(host, net, Cut::Silent).unwrap());
    }

    pub fn heal(&self, host: u16) {
        [0, 1].into_iter().for_each(|net| self.w.lab.heal(host, net).unwrap());
    }
}

impl Scene {
    fn new(w: World) -> Self {
        let stage = Stage::new(w);
        Self { cluster: Cluster::start(&stage.w, stage.dir.path()), stage }
    }

    /// A watched process with a pod for it.
    fn service(&self, host: u16, name: &str) -> Process {
        let process = self.watched(host, name);
        self.cluster.pod(name, &format!("h{host}"), name);
        process
    }

    fn wait_taints(&self, node: &str, taints: &[&str]) {
        until(&format!("{node} has {taints:?}"), || self.cluster.taints(node) == taints);
    }

    /// Changes that were made, not refused.
    fn made(&self) -> Vec<(String, Value)> {
        self.cluster.patches().into_iter().filter(|p| p.code == 200).map(|p| (p.path, p.body)).collect()
    }
}

pub struct Adapter {
    process: Process,
    log: PathBuf,
}

impl Adapter {
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn wait(&self, text: &str) {
        until(&format!("the adapter says: {text}; it says: {}", self.said()), || self.said().contains(text));
    }

    pub fn kill(mut self) {
        self.process.kill();
        self.process.ended();
    }
}

const POD: &str = "/api/v1/namespaces/shop/pods/db/status";

#[test]
fn two_of_them_mark_a_pod_once_and_evict_only_from_behind_a_fence() {
    let Some(pins) = Pins::new() else { return };
    let fences: Vec<String> = (1..=3).map(|h| pins.config(h, "mode = \"acknowledged\"\ntimeout = \"2s\"")).collect();
    let Some(w) = Setup::hosts(3).extra(move |host| fences[usize::from(host) - 1].clone()).up() else { return };
    let s = Scene::new(w);
    let mut db = s.service(3, "db");
    let other =
        json!({ "key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z" });
    s.cluster.taint("h3", other.clone());
    let adapters = [s.adapter(&["--out-of-service"]), s.adapter(&["--out-of-service"])];
    s.cluster.wait_alive("db", "True", "Alive");

    // From the kill to the change at the API, over the agents of two hosts and TLS.
    let killed = Instant::now();
    db.kill();
    s.cluster.wait_alive("db", "False", "Killed");
    let is_end = |body: &Value| body["status"]["conditions"][0]["status"] == "False";
    let at = s.cluster.patches().iter().find(|p| is_end(&p.body) && p.code == 200).unwrap().at;
    println!("kill -9 to the pod's condition: {:?}", at - killed);
    db.ended();
    let _db = s.start(3, "db");
    s.cluster.wait_alive("db", "True", "Alive");

    // Without a report of h3 on all hosts, which comes once a second, it does not know that h3 counts it, and says nothing of its fence.
    let is_known = |h: &HostStatus| h.fence.is_some() && h.reported_age_ns.is_some() && h.paths[0].last_number > 1500;
    until("h1 has the promise of h3's fence, and its reports", || s.w.view(1, "h3").is_some_and(|h| is_known(&h)));
    s.cut(3);
    s.wait_taints(
        "h3",
        &[
            "node.kubernetes.io/memory-pressure:NoSchedule",
            "fide.io/failed:NoExecute",
            "node.kubernetes.io/out-of-service:NoExecute",
        ],
    );
    s.cluster.wait_alive("db", "False", "SilentHost");
    let node = s.cluster.get("/api/v1/nodes/h3");
    let verdict = node["metadata"]["annotations"]["fide.io/verdict"].as_str().unwrap().to_owned();
    assert!(verdict.contains("h3") && verdict.contains("(verdict "), "{verdict}");
    assert!(s.cluster.taints("h1").is_empty() && s.cluster.taints("h2").is_empty());

    // It is back, in a new incarnation: what was there before stays, as it was.
    s.heal(3);
    s.w.ask(3, &Request::Fence { order: FenceOrder::Recover }).unwrap();
    s.wait_taints("h3", &["node.kubernetes.io/memory-pressure:NoSchedule"]);
    let node = s.cluster.get("/api/v1/nodes/h3");
    assert_eq!((&node["spec"]["taints"][0], &node["metadata"]["annotations"]["fide.io/verdict"]), (&other, &Value::Null));
    s.cluster.wait_alive("db", "True", "Alive");

    // Each change was made once, though there are two who saw it.
    let made = s.made();
    let nodes = made.iter().filter(|(path, _)| path == "/api/v1/nodes/h3").count();
    let expected = ["Alive", "Killed", "Alive", "SilentHost", "Alive"];
    let reasons: Vec<&str> =
        made.iter().filter(|(p, _)| p == POD).map(|(_, b)| b["status"]["conditions"][0]["reason"].as_str().unwrap()).collect();
    // Killed is what was doomed a moment before, for those who ask in between.
    let mut told: Vec<&str> = reasons.iter().copied().filter(|reason| *reason != "Doomed").collect();
    let twice = told.len();
    told.dedup();
    assert!(told == expected && twice == told.len(), "{reasons:?}");
    assert!(nodes <= 3, "{made:#?}");
    assert!(made.iter().all(|(path, _)| path == POD || path == "/api/v1/nodes/h3"), "{made:?}");
    assert!(adapters.iter().all(|a| !a.said().contains("not done")), "{}", adapters[0].said());
    let (_, lacking) = s.cluster.superfluous_and_lacking();
    assert!(lacking.is_empty(), "{lacking:?}");

    let status = s.command("status").arg("--json").output().unwrap();
    let status: Value = serde_json::from_slice(&status.stdout).unwrap_or_else(|e| panic!("{e}: {status:?}"));
    assert_eq!(
        (&status["nodes"][2]["host"], &status["nodes"][2]["state"], &status["changes"]),
        (&json!("h3"), &json!("alive"), &json!([]))
    );
    assert_eq!(status["pods"][0], json!({ "namespace": "shop", "pod": "db", "node": "h3", "watch": "db", "alive": "True" }));
}

#[test]
fn what_happens_while_it_or_the_api_is_away_is_done_when_both_are_back() {
    let Some(w) = Setup::hosts(4).up() else { return };
    let s = Scene::new(w);
    let mut db = s.service(3, "db");
    let mut web = s.service(2, "web");
    let adapter = s.adapter(&[]);
    s.cluster.wait_alive("db", "True", "Alive");
    s.cluster.wait_alive("web", "True", "Alive");

    // Ended in the middle of a change, which was made and not answered: the next one finds it done.
    s.cluster.set_patches_hang(true);
    db.kill();
    db.ended();
    until("the change is under way", || {
        s.cluster.patches().last().unwrap().body["status"]["conditions"][0]["reason"] == "Killed"
    });
    let before = s.cluster.patches().len();
    adapter.kill();
    s.cluster.set_patches_hang(false);
    // Ended before the change: the next one makes it. Without a fence that is no more than this.
    s.cut(4);
    until("h1 calls h4 silent", || s.w.state(1, "h4") == "silent-host");
    assert!(s.cluster.taints("h4").is_empty());
    let adapter = s.adapter(&["--out-of-service"]);
    s.wait_taints("h4", &["fide.io/silent:NoSchedule"]);
    assert_eq!(s.cluster.patches().len(), before + 1, "{:?}", s.cluster.patches());

    // The API is away: said once, and made up for.
    s.cluster.set_down(true);
    let mut db = s.start(3, "db");
    adapter.wait("not done: pod shop/db: fide.io/alive True");
    let before = s.cluster.turned_away();
    until("it tries again and again", || s.cluster.turned_away() >= before + 5);
    let said = adapter.said();
    assert_eq!(said.matches("not done").count(), 1, "{said}");
    s.cluster.set_down(false);
    s.cluster.wait_alive("db", "True", "Alive");
    adapter.wait("goes on");

    // So are a token that is not taken any more, and its successor.
    s.cluster.set_token("second");
    db.kill();
    db.ended();
    adapter.wait("401");
    assert!(s.cluster.unauthorized() > 0 && adapter.said().contains("token"), "{}", adapter.said());
    fs::write(s.dir.path().join("token"), "second\n").unwrap();
    s.cluster.wait_alive("db", "False", "Killed");

    // Watches from a version that is not kept any more begin with a list.
    let lists = s.cluster.lists();
    s.cluster.compact();
    until("both lists are read again", || s.cluster.lists() >= lists + 2);
    // A new pod under the same name, of which nothing was said yet; and which somebody changes at
    // the same moment.
    s.cluster.set_conflicts(1);
    s.cluster.pod("web", "h2", "web");
    s.cluster.wait_alive("web", "True", "Alive");

    // Somebody else changes the node at the same moment: both changes are there.
    s.cluster.set_conflicts(2);
    s.heal(4);
    s.wait_taints("h4", &["example.org/other-1:NoSchedule", "example.org/other-0:NoSchedule"]);
    let refused = s.cluster.patches().iter().filter(|p| p.code == 409).count();
    // On a busy machine another change of its own may have come between.
    assert!(refused > 2, "{:?}", s.cluster.patches());
    let (superfluous, lacking) = s.cluster.superfluous_and_lacking();
    assert!(lacking.is_empty() && superfluous.is_empty(), "the shipped role: {superfluous:?} {lacking:?}");

    // Maintenance, and a host that leaves, are nothing to act on.
    let order = MaintenanceOrder::On { target: "web".into(), for_ns: 600_000_000_000, reason: "upgrade".into() };
    s.w.ask(2, &Request::Maintenance { order }).unwrap();
    until("h1 knows the maintenance", || s.w.status(1).maintenance.len() == 1);
    let before = s.cluster.patches().len();
    web.kill();
    web.ended();
    s.w.signal_agent(4, libc::SIGTERM);
    until("h4 left", || s.w.state(1, "h4") == "left");
    until("h1 knows that web ended", || {
        s.w.view(1, "h2").is_some_and(|h| h.apps.iter().any(|a| a.name == "web" && a.state != "alive"))
    });
    // A change that follows is made, and no other.
    let _db = s.start(3, "db");
    s.cluster.wait_alive("db", "True", "Alive");
    let made = s.cluster.patches().split_off(before);
    assert!(made.iter().all(|p| p.path == POD), "{made:?}");
    assert_eq!(s.cluster.alive("web"), Some(("True".into(), "Alive".into())));
    assert!(s.cluster.taints("h1").is_empty() && s.cluster.taints("h2").is_empty() && s.cluster.taints("h3").is_empty());
}

#[test]
fn what_cannot_be_is_said_with_what_to_do() {
    let refused = |arguments: &[&str]| {
        let done = Command::new(program()).args(arguments).env_remove("KUBERNETES_SERVICE_HOST").output().unwrap();
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        String::from_utf8(done.stderr).unwrap()
    };
    let said = refused(&["run"]);
    assert!(said.contains("KUBERNETES_SERVICE_HOST is not set") && said.contains("--api URL"), "{said}");
    let said = refused(&["run", "--api", "https://127.0.0.1:1"]);
    assert!(said.contains("needs --ca-file"), "{said}");
    let said = refused(&["run", "--api", "http://127.0.0.1:1", "--token-file", "/etc/hostname"]);
    assert!(said.contains("not sent in the clear"), "{said}");
    let said = refused(&["run", "--api", "https://127.0.0.1:1", "--ca-file", "/etc/hostname"]);
    assert!(said.contains("/etc/hostname") && said.contains("certificate"), "{said}");
    let said = refused(&["status", "--api", "http://127.0.0.1:1", "--socket", "/nowhere/fided.sock"]);
    assert!(said.contains("agent") && said.contains("/nowhere/fided.sock"), "{said}");
}
