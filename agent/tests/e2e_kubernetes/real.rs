//! The adapter and the shipped manifests at a real kube-apiserver over a real etcd, with RBAC; `scripts/kube-apiserver` makes the former.

use crate::common::{Pins, Process, Setup, until, wait_for};
use crate::e2e_kubernetes::adapter::Stage;
use crate::e2e_kubernetes::cluster::{AT, certify};
use crate::e2e_kubernetes::manifests::objects;
use fide_wire::control::{FenceOrder, HostStatus, Request};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What may do everything there.
const ADMIN: &str = "the-admins-token";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// kube-apiserver: that of FIDE_KUBE_APISERVER, that of `scripts/kube-apiserver`, one that is installed.
fn server() -> Option<PathBuf> {
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/kube-apiserver/kube-apiserver");
    match std::env::var_os("FIDE_KUBE_APISERVER") {
        Some(named) => {
            assert!(Path::new(&named).is_file(), "FIDE_KUBE_APISERVER names {named:?}, which is no file");
            Some(PathBuf::from(named))
        }
        None => [made].into_iter().chain(installed("kube-apiserver")).find(|p| p.exists()),
    }
}

fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|p| p.is_file())
}

/// An API server on host 1.
struct Api {
    stage: Stage,
    program: PathBuf,
    server: Option<Process>,
    _etcd: Process,
    http: ureq::Agent,
}

impl Api {
    fn start(stage: Stage, program: PathBuf, etcd: &Path) -> Self {
        let dir = stage.dir.path().to_owned();
        certify(&dir);
        let key = Command::new("openssl").args(["genrsa", "-out"]).arg(dir.join("sa.key")).arg("2048").output().unwrap();
        assert!(key.status.success(), "{key:?}");
        fs::write(dir.join("tokens"), format!("{ADMIN},admin,admin,system:masters\n")).unwrap();
        let mut command = stage.w.lab.command(1, etcd).unwrap();
        command.arg("--data-dir").arg(dir.join("etcd")).args(["--listen-client-urls", "http://127.0.0.1:2379"]);
        command.args(["--advertise-client-urls", "http://127.0.0.1:2379", "--listen-peer-urls", "http://127.0.0.1:2380"]);
        command.args([
            "--initial-advertise-peer-urls",
            "http://127.0.0.1:2380",
            "--initial-cluster",
            "default=http://127.0.0.1:2380",
        ]);
        let etcd = logged(command, &dir, "log-etcd");
        let pem = fs::read(dir.join("ca.crt")).unwrap();
        let authority = ureq::tls::Certificate::from_pem(&pem).unwrap();
        let roots = ureq::tls::RootCerts::new_with_certs(&[authority]);
        // The only one that is built in; another test may have chosen it before.
        _ = rustls::crypto::ring::default_provider().install_default();
        let http = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_global(Some(Duration::from_secs(60)))
            .tls_config(ureq::tls::TlsConfig::builder().root_certs(roots).build())
            .build()
            .new_agent();
        let mut api = Self { stage, program, server: None, _etcd: etcd, http };
        api.serve();
        api
    }

    /// Starts the server, and waits until it is ready.
    fn serve(&mut self) {
        let dir = self.stage.dir.path();
        let mut command = self.stage.w.lab.command(1, &self.program).unwrap();
        command.args(["--etcd-servers=http://127.0.0.1:2379", "--bind-address=127.0.0.1", "--authorization-mode=Node,RBAC"]);
        command.arg(format!("--secure-port={AT}"));
        for (option, file) in [
            ("tls-cert-file", "server.crt"),
            ("tls-private-key-file", "server.key"),
            ("service-account-signing-key-file", "sa.key"),
            ("service-account-key-file", "sa.key"),
            ("token-auth-file", "tokens"),
            ("cert-dir", "certificates"),
        ] {
            command.arg(format!("--{option}={}", dir.join(file).display()));
        }
        command.args(["--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.96.0.0/24"]);
        // Nobody asks for the Service "kubernetes" here, and a loopback address may not be advertised.
        command.arg(format!("--advertise-address={}", self.stage.w.lab.ipv4(1, 0))).arg("--endpoint-reconciler-type=none");
        self.server = Some(logged(command, dir, "log-server"));
        until("the API server is ready", || self.try_ask(ADMIN, "GET", "/readyz", None).is_some_and(|(code, _)| code == 200));
    }

    /// Code and answer; `None` where nobody answers.
    fn try_ask(&self, token: &str, method: &str, path: &str, body: Option<(&str, &Value)>) -> Option<(u16, Value)> {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("https://127.0.0.1:{AT}{path}"))
            .header("Authorization", format!("Bearer {token}"))
            .header("Content-Type", body.map_or("application/json", |(kind, _)| kind))
            .body(body.map_or(String::new(), |(_, body)| body.to_string()))
            .unwrap();
        let mut answer = self.stage.w.lab.in_host(1, || self.http.run(request)).unwrap().ok()?;
        let text = answer.body_mut().read_to_string().ok()?;
        Some((answer.status().as_u16(), serde_json::from_str(&text).unwrap_or_default()))
    }

    /// What the administrator asks for is granted.
    fn ask(&self, method: &str, path: &str, body: Option<(&str, &Value)>) -> Value {
        let (code, answer) = self.try_ask(ADMIN, method, path, body).unwrap();
        assert!((200..300).contains(&code), "{method} {path}: {code} {answer:#}");
        answer
    }

    fn make(&self, path: &str, object: &Value) {
        self.ask("POST", path, Some(("application/json", object)));
    }

    /// Server-side apply, with every field known: once as a rehearsal, once in earnest.
    fn apply(&self, object: &Value) {
        let kind = object["kind"].as_str().unwrap();
        let plural = kind.to_lowercase() + "s";
        let version = object["apiVersion"].as_str().unwrap();
        let group = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
        let within = object["metadata"]["namespace"].as_str().map_or(String::new(), |n| format!("/namespaces/{n}"));
        let path = format!("{group}{within}/{plural}/{}", object["metadata"]["name"].as_str().unwrap());
        for dry in ["&dryRun=All", ""] {
            let path = format!("{path}?fieldManager=test&fieldValidation=Strict{dry}");
            let answer = self.ask("PATCH", &path, Some((APPLY, object)));
            assert_eq!(answer["kind"], object["kind"]);
        }
    }

    /// A pod that names a watch and runs, as a kubelet would report it.
    fn pod(&self, name: &str, node: &str) {
        let metadata = json!({ "name": name, "labels": { "fide.io/watch": name } });
        let spec = json!({ "nodeName": node, "containers": [{ "name": "it", "image": "it" }], "readinessGates": [{ "conditionType": "fide.io/alive" }] });
        self.make(
            "/api/v1/namespaces/shop/pods",
            &json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec }),
        );
        let status = json!({ "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } });
        self.ask("PATCH", &format!("/api/v1/namespaces/shop/pods/{name}/status"), Some((STRATEGIC, &status)));
    }

    /// Status and reason of a pod's condition.
    fn alive(&self, pod: &str) -> Option<(String, String)> {
        let pod = self.ask("GET", &format!("/api/v1/namespaces/shop/pods/{pod}"), None);
        let conditions = pod["status"]["conditions"].as_array().unwrap();
        assert!(conditions.iter().any(|c| c["type"] == "Ready"), "the conditions of others stay: {conditions:?}");
        let condition = conditions.iter().find(|c| c["type"] == "fide.io/alive")?;
        Some((condition["status"].as_str().unwrap().into(), condition["reason"].as_str().unwrap().into()))
    }

    fn wait_alive(&self, pod: &str, status: &str, reason: &str) {
        let wanted = Some((status.to_owned(), reason.to_owned()));
        until(&format!("{pod} is {status} ({reason}), it is {:?}", self.alive(pod)), || self.alive(pod) == wanted);
    }

    fn taints(&self, node: &str) -> Vec<String> {
        let node = self.ask("GET", &format!("/api/v1/nodes/{node}"), None);
        let taints = node["spec"]["taints"].as_array().into_iter().flatten();
        let mut taints: Vec<String> =
            taints.map(|t| format!("{}:{}", t["key"].as_str().unwrap(), t["effect"].as_str().unwrap())).collect();
        taints.sort_unstable();
        taints
    }

    fn wait_taints(&self, node: &str, taints: &[&str]) {
        until(&format!("{node} has {taints:?}, it has {:?}", self.taints(node)), || self.taints(node) == taints);
    }
}

fn logged(mut command: Command, dir: &Path, name: &str) -> Process {
    let log = File::options().create(true).append(true).open(dir.join(name)).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    Process::spawn(command)
}

#[test]
fn a_real_api_server_takes_the_manifests_as_they_are_and_what_their_account_does() {
    const TEST: &str = "a_real_api_server_takes_the_manifests_as_they_are_and_what_their_account_does";
    let (Some(server), Some(etcd)) = (server(), installed("etcd")) else {
        println!(
            "SKIPPED {TEST}: needs kube-apiserver (scripts/kube-apiserver makes one, FIDE_KUBE_APISERVER names one) and etcd (etcd-server)"
        );
        return;
    };
    let Some(pins) = Pins::new() else { return };
    let fences: Vec<String> = (1..=3).map(|h| pins.config(h, "mode = \"acknowledged\"\ntimeout = \"2s\"")).collect();
    let Some(w) = Setup::hosts(3).extra(move |host| fences[usize::from(host) - 1].clone()).up() else { return };
    let mut api = Api::start(Stage::new(w), server, &etcd);

    // What is shipped, as it is.
    for object in objects("fided.yaml").iter().chain(&objects("fide-kubernetes.yaml")) {
        api.apply(object);
    }
    // Misspelt it would not have been taken.
    let mut misspelt = objects("fided.yaml").into_iter().find(|o| o["kind"] == "DaemonSet").unwrap();
    misspelt["spec"]["template"]["spec"]["hostnetwork"] = true.into();
    let path = "/apis/apps/v1/namespaces/fide/daemonsets/fided?fieldManager=test&fieldValidation=Strict&dryRun=All";
    let (code, answer) = api.try_ask(ADMIN, "PATCH", path, Some((APPLY, &misspelt))).unwrap();
    assert!(code >= 400 && answer["message"].as_str().unwrap().contains("hostnetwork"), "{code} {answer}");

    // Nodes, and a pod on one of them.
    for host in 1..=3 {
        api.make("/api/v1/nodes", &json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": format!("h{host}") } }));
    }
    api.make("/api/v1/namespaces", &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop" } }));
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" } });
    api.make("/api/v1/namespaces/shop/serviceaccounts", &account);
    let mut db = api.stage.watched(3, "db");
    api.pod("db", "h3");

    // The account of the manifests, with a token that the server made for it; it may do what its role says, and no more.
    let asked =
        json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": { "expirationSeconds": 3600 } });
    let path = "/api/v1/namespaces/fide/serviceaccounts/fide-kubernetes/token";
    let answer = api.ask("POST", path, Some(("application/json", &asked)));
    let token = answer["status"]["token"].as_str().unwrap().to_owned();
    fs::write(api.stage.dir.path().join("token"), &token).unwrap();
    for (method, path) in [
        ("GET", "/api/v1/namespaces/fide/secrets"),
        ("DELETE", "/api/v1/namespaces/shop/pods/db"),
        ("DELETE", "/api/v1/nodes/h3"),
        ("GET", "/api/v1/namespaces/shop/pods/db"),
    ] {
        assert_eq!(api.try_ask(&token, method, path, None).unwrap().0, 403, "{method} {path}");
    }

    // The server itself taints a node that nobody reports ready; somebody else adds another one.
    let taint = json!({ "spec": { "taints": [
        { "key": "example.org/other", "effect": "NoSchedule" }, { "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" } ] } });
    api.ask("PATCH", "/api/v1/nodes/h3", Some((MERGE, &taint)));
    let others = ["example.org/other:NoSchedule", "node.kubernetes.io/not-ready:NoSchedule"];
    assert_eq!(api.taints("h3"), others);
    let untouched = api.taints("h2");

    // Killed, and back.
    let adapter = api.stage.adapter(&["--out-of-service"]);
    api.wait_alive("db", "True", "Alive");
    let killed = Instant::now();
    db.kill();
    wait_for("the pod's process is dead", || api.alive("db").filter(|(status, _)| status == "False"));
    println!("kill -9 to the pod's condition at kube-apiserver, read until it was there: {:?}", killed.elapsed());
    api.wait_alive("db", "False", "Killed");
    db.ended();
    // The adapter ends, the process returns: the next adapter finds it.
    adapter.kill();
    let mut db = api.stage.start(3, "db");
    api.stage.w.known(3, "db");
    assert_eq!(api.alive("db").unwrap().0, "False");
    let adapter = api.stage.adapter(&["--out-of-service"]);
    api.wait_alive("db", "True", "Alive");

    // The server ends and comes back; what happened meanwhile is made up for, once.
    let mut server = api.server.take().unwrap();
    server.kill();
    server.ended();
    db.kill();
    db.ended();
    until("the adapter misses the server", || adapter.said().contains("not done"));
    api.serve();
    api.wait_alive("db", "False", "Killed");
    let _db = api.stage.start(3, "db");
    api.wait_alive("db", "True", "Alive");

    // A silent host behind its fence; the adapter is restarted in between, and does nothing twice.
    // Without a report of h3 on all hosts, which comes once a second, it does not know that h3 counts it, and says nothing of its fence.
    let is_known = |h: &HostStatus| h.fence.is_some() && h.reported_age_ns.is_some() && h.paths[0].last_number > 1500;
    until("h1 has the promise of h3's fence, and its reports", || api.stage.w.view(1, "h3").is_some_and(|h| is_known(&h)));
    api.stage.cut(3);
    let all = [others[0], "fide.io/failed:NoExecute", others[1], "node.kubernetes.io/out-of-service:NoExecute"];
    api.wait_taints("h3", &all);
    api.wait_alive("db", "False", "SilentHost");
    let version = |api: &Api| api.ask("GET", "/api/v1/nodes/h3", None)["metadata"]["resourceVersion"].clone();
    let before = version(&api);
    adapter.kill();
    let adapter = api.stage.adapter(&["--out-of-service"]);
    // Sleep: time for the adapter to read both lists and to judge them. It reports nothing when it
    // has nothing to change.
    std::thread::sleep(Duration::from_secs(2));
    let status = api.stage.command("status").args(["--json", "--out-of-service"]).output().unwrap();
    let status: Value = serde_json::from_slice(&status.stdout).unwrap_or_else(|e| panic!("{e}: {status:?}"));
    assert_eq!((&status["nodes"][2]["state"], &status["changes"]), (&json!("silent-host"), &json!([])), "{status:#}");
    assert_eq!(version(&api), before, "{}", adapter.said());
    let node = api.ask("GET", "/api/v1/nodes/h3", None);
    let verdict = node["metadata"]["annotations"]["fide.io/verdict"].as_str().unwrap();
    assert!(verdict.contains("h3") && verdict.contains("(verdict "), "{verdict}");

    // It is back: ours go, those of others stay.
    api.stage.heal(3);
    api.stage.w.ask(3, &Request::Fence { order: FenceOrder::Recover }).unwrap();
    api.wait_taints("h3", &others);
    api.wait_alive("db", "True", "Alive");
    let node = api.ask("GET", "/api/v1/nodes/h3", None);
    assert_eq!(node["metadata"]["annotations"]["fide.io/verdict"], Value::Null);
    assert_eq!(api.taints("h2"), untouched);
    assert!(!adapter.said().contains("not done") && !adapter.said().contains("403"), "{}", adapter.said());
}
