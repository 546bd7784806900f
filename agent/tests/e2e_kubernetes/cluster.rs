//! An API server as far as `fide-kubernetes` uses one: TLS, tokens, the rules of the shipped role, versions, both kinds of patches, watches that expire, and faults.

use crate::common::{World, until};
use crate::e2e_kubernetes::manifests::object;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub const AT: u16 = 6443;

/// One change as it was asked for.
#[derive(Clone, Debug)]
pub struct Patch {
    pub at: Instant,
    pub path: String,
    pub code: u16,
    pub body: Value,
}

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<String, Value>,
    /// Of watches: version, list, event.
    events: Vec<(u64, &'static str, Value)>,
    /// Watches from before it are refused.
    oldest: u64,
    tokens: BTreeSet<String>,
    patches: Vec<Patch>,
    used: BTreeSet<(String, String)>,
    denied: Vec<String>,
    unauthorized: u32,
    lists: u32,
    /// Faults.
    is_down: bool,
    /// Connections that were closed because it was down.
    turned_away: u32,
    patches_hang: bool,
    /// Somebody else changes the node just before so many patches.
    conflicts: u32,
}

pub struct Cluster {
    state: Mutex<State>,
    changed: Condvar,
    rules: Vec<(String, String)>,
    stop: AtomicBool,
}

fn run(program: &mut Command) {
    let done = program.output().unwrap();
    assert!(done.status.success(), "{program:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A certificate for 127.0.0.1 (server.crt, server.key), by an authority of its own (ca.crt).
pub fn certify(dir: &Path) {
    let at = |name: &str| dir.join(name).display().to_string();
    let new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    run(Command::new("openssl").args(["req", "-x509", "-days", "2", "-subj", "/CN=test"]).args(new).args([
        "-keyout",
        &at("ca.key"),
        "-out",
        &at("ca.crt"),
    ]));
    run(Command::new("openssl").args(["req", "-subj", "/CN=kubernetes"]).args(new).args([
        "-keyout",
        &at("server.key"),
        "-out",
        &at("server.csr"),
    ]));
    std::fs::write(dir.join("names"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    let sign = ["-CAcreateserial", "-days", "2"];
    run(Command::new("openssl")
        .args(["x509", "-req", "-in", &at("server.csr"), "-CA", &at("ca.crt"), "-CAkey", &at("ca.key")])
        .args(sign)
        .args(["-extfile", &at("names"), "-out", &at("server.crt")]));
}

fn certificates(dir: &Path) -> rustls::ServerConfig {
    certify(dir);
    let at = |name: &str| dir.join(name);
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_file_iter(at("server.crt")).unwrap().map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(at("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    config.with_no_client_auth().with_single_cert(chain, key).unwrap()
}

/// RFC 7396.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

/// What the API does to a pod's status: conditions are merged by their types.
fn merge_status(pod: &mut Value, patch: &Value) {
    for condition in patch["status"]["conditions"].as_array().unwrap() {
        let conditions = pod["status"]["conditions"].as_array_mut().unwrap();
        match conditions.iter_mut().find(|c| c["type"] == condition["type"]) {
            Some(known) => merge(known, condition),
            None => conditions.push(condition.clone()),
        }
    }
}

/// What the API would not take.
fn invalid(object: &Value) -> Option<String> {
    let mut seen = BTreeSet::new();
    for taint in object["spec"]["taints"].as_array().into_iter().flatten() {
        let (key, effect) = (taint["key"].as_str().unwrap_or(""), taint["effect"].as_str().unwrap_or(""));
        if !key.contains('/') || !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) || !seen.insert((key, effect))
        {
            return Some(format!("taint {taint}"));
        }
    }
    let is_time =
        |t: &Value| t.is_null() || t.as_str().is_some_and(|t| t.len() == 20 && t.ends_with('Z') && t.as_bytes()[10] == b'T');
    for condition in object["status"]["conditions"].as_array().into_iter().flatten() {
        let status = condition["status"].as_str().unwrap_or("");
        if !["True", "False", "Unknown"].contains(&status) || !is_time(&condition["lastTransitionTime"]) {
            return Some(format!("condition {condition}"));
        }
    }
    None
}

struct Request {
    method: String,
    path: String,
    query: String,
    token: String,
    kind: String,
    body: Vec<u8>,
}

fn read(stream: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    stream.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let (path, query) = (path.to_owned(), query.to_owned());
    let (mut token, mut kind, mut length) = (String::new(), String::new(), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => token = value.strip_prefix("Bearer ").unwrap_or("").into(),
            "content-type" => kind = value.into(),
            "content-length" => length = value.parse().unwrap(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(Request { method, path, query, token, kind, body })
}

fn list_of(path: &str) -> &'static str {
    if path.contains("/pods") { "/api/v1/pods" } else { "/api/v1/nodes" }
}

impl Cluster {
    /// On host 1 of the lab, with a node for each host.
    pub fn start(w: &World, dir: &Path) -> Arc<Self> {
        let config = Arc::new(certificates(dir));
        let role = object("fide-kubernetes.yaml", "ClusterRole");
        let all = |rule: &Value, part: &str| -> Vec<String> {
            rule[part].as_array().unwrap().iter().map(|v| v.as_str().unwrap().into()).collect()
        };
        let mut rules = Vec::new();
        for rule in role["rules"].as_array().unwrap() {
            assert_eq!(rule["apiGroups"], json!([""]));
            all(rule, "resources")
                .iter()
                .for_each(|resource| rules.extend(all(rule, "verbs").into_iter().map(|verb| (resource.clone(), verb))));
        }
        let state = State { version: 100, tokens: ["first".into()].into(), ..State::default() };
        let cluster = Arc::new(Self { state: Mutex::new(state), changed: Condvar::new(), rules, stop: AtomicBool::new(false) });
        std::fs::write(dir.join("token"), "first\n").unwrap();
        for host in w.lab.hosts() {
            cluster.put(json!({ "kind": "Node", "metadata": { "name": format!("h{host}") }, "spec": {}, "status": {} }));
        }
        let listener = w.lab.in_host(1, || TcpListener::bind(("127.0.0.1", AT))).unwrap().unwrap();
        let serving = cluster.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if serving.stop.load(Ordering::Relaxed) {
                    return;
                }
                let (serving, config) = (serving.clone(), config.clone());
                std::thread::spawn(move || serving.serve(stream.unwrap(), config));
            }
        });
        cluster
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Makes or replaces an object; the version of all grows.
    pub fn put(&self, object: Value) {
        self.put_in(&mut self.state(), object);
    }

    fn put_in(&self, state: &mut State, mut object: Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        let path = match object["kind"] == "Pod" {
            true => format!("/api/v1/namespaces/{}/pods/{name}", object["metadata"]["namespace"].as_str().unwrap()),
            false => format!("/api/v1/nodes/{name}"),
        };
        state.version += 1;
        object["metadata"]["resourceVersion"] = state.version.to_string().into();
        let kind = if state.objects.contains_key(&path) { "MODIFIED" } else { "ADDED" };
        state.events.push((state.version, list_of(&path), json!({ "type": kind, "object": object })));
        state.objects.insert(path, object);
        self.changed.notify_all();
    }

    /// A pod that names a watch.
    pub fn pod(&self, name: &str, node: &str, watch: &str) {
        let metadata =
            json!({ "name": name, "namespace": "shop", "uid": format!("uid-{name}"), "labels": { "fide.io/watch": watch } });
        let status =
            json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": null }] });
        self.put(json!({ "kind": "Pod", "metadata": metadata, "spec": { "nodeName": node }, "status": status }));
    }

    pub fn taint(&self, node: &str, taint: Value) {
        let mut node = self.get(&format!("/api/v1/nodes/{node}"));
        let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        taints.push(taint);
        node["spec"]["taints"] = taints.into();
        self.put(node);
    }

    pub fn get(&self, path: &str) -> Value {
        self.state().objects[path].clone()
    }

    /// A node's taints as key:effect.
    pub fn taints(&self, node: &str) -> Vec<String> {
        let node = self.get(&format!("/api/v1/nodes/{node}"));
        let taints = node["spec"]["taints"].as_array().into_iter().flatten();
        taints.map(|t| format!("{}:{}", t["key"].as_str().unwrap(), t["effect"].as_str().unwrap())).collect()
    }

    /// Status and reason of a pod's condition.
    pub fn alive(&self, pod: &str) -> Option<(String, String)> {
        let pod = self.get(&format!("/api/v1/namespaces/shop/pods/{pod}"));
        let condition = pod["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "fide.io/alive")?.clone();
        Some((condition["status"].as_str().unwrap().into(), condition["reason"].as_str().unwrap().into()))
    }

    pub fn wait_alive(&self, pod: &str, status: &str, reason: &str) {
        until(&format!("{pod} is {status} ({reason}), it is {:?}; {:?}", self.alive(pod), self.patches()), || {
            self.alive(pod) == Some((status.into(), reason.into()))
        });
    }

    pub fn patches(&self) -> Vec<Patch> {
        self.state().patches.clone()
    }

    pub fn set_down(&self, is_down: bool) {
        self.state().is_down = is_down;
        self.changed.notify_all();
    }

    pub fn set_patches_hang(&self, hang: bool) {
        self.state().patches_hang = hang;
        self.changed.notify_all();
    }

    pub fn set_conflicts(&self, conflicts: u32) {
        self.state().conflicts = conflicts;
    }

    /// Only this token counts from now on.
    pub fn set_token(&self, token: &str) {
        self.state().tokens = [token.into()].into();
    }

    pub fn turned_away(&self) -> u32 {
        self.state().turned_away
    }

    pub fn unauthorized(&self) -> u32 {
        self.state().unauthorized
    }

    pub fn lists(&self) -> u32 {
        self.state().lists
    }

    /// Ends all watches; what was before is not kept.
    pub fn compact(&self) {
        let mut state = self.state();
        state.version += 10;
        state.oldest = state.version;
        state.events.clear();
        self.changed.notify_all();
    }

    /// What was asked for and not granted, and what is granted and was never asked for.
    pub fn superfluous_and_lacking(&self) -> (Vec<(String, String)>, Vec<String>) {
        let state = self.state();
        (self.rules.iter().filter(|rule| !state.used.contains(*rule)).cloned().collect(), state.denied.clone())
    }

    fn serve(&self, stream: TcpStream, config: Arc<rustls::ServerConfig>) {
        if self.state().is_down {
            self.state().turned_away += 1;
            return;
        }
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        stream.set_nodelay(true).unwrap();
        let connection = rustls::ServerConnection::new(config).unwrap();
        let mut stream = BufReader::new(rustls::StreamOwned::new(connection, stream));
        while let Some(request) = read(&mut stream) {
            if self.state().is_down || self.answer(&request, stream.get_mut()).is_err() {
                return;
            }
        }
    }

    fn answer(&self, request: &Request, to: &mut impl Write) -> std::io::Result<()> {
        let is_list = ["/api/v1/nodes", "/api/v1/pods"].contains(&request.path.as_str());
        let is_watch = request.query.contains("watch=1");
        let resource = if request.path.ends_with("/status") {
            "pods/status"
        } else if request.path.contains("/pods") {
            "pods"
        } else {
            "nodes"
        };
        let verb = match request.method.as_str() {
            "GET" if is_watch => "watch",
            "GET" if is_list => "list",
            "GET" => "get",
            "PATCH" => "patch",
            other => panic!("{other} {}", request.path),
        };
        let rule = (resource.to_owned(), verb.to_owned());
        {
            let mut state = self.state();
            if !state.tokens.contains(&request.token) {
                state.unauthorized += 1;
                return write(to, 401, &json!({ "kind": "Status", "message": "Unauthorized", "code": 401 }));
            }
            if !self.rules.contains(&rule) {
                state.denied.push(format!("{verb} {resource}"));
                return write(to, 403, &json!({ "kind": "Status", "message": format!("cannot {verb} {resource}"), "code": 403 }));
            }
            state.used.insert(rule);
        }
        match verb {
            "list" => {
                let mut state = self.state();
                state.lists += 1;
                let is_narrowed = request.query.contains("labelSelector=fide.io%2Fwatch");
                let is_meant = |object: &&Value| !is_narrowed || object["metadata"]["labels"]["fide.io/watch"].is_string();
                let items: Vec<&Value> =
                    state.objects.iter().filter(|(p, _)| list_of(p) == request.path).map(|(_, o)| o).filter(is_meant).collect();
                assert!(is_narrowed || request.path.ends_with("nodes"), "all pods of a cluster are too many");
                write(
                    to,
                    200,
                    &json!({ "kind": "List", "metadata": { "resourceVersion": state.version.to_string() }, "items": items }),
                )
            }
            "watch" => self.watch(request, to),
            "get" => match self.state().objects.get(&request.path) {
                Some(object) => write(to, 200, object),
                None => write(to, 404, &json!({ "kind": "Status", "code": 404 })),
            },
            _ => {
                let (code, answer) = self.patch(request);
                write(to, code, &answer)
            }
        }
    }

    fn patch(&self, request: &Request) -> (u16, Value) {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let path = request.path.strip_suffix("/status").unwrap_or(&request.path);
        let mut state = self.state();
        if state.conflicts > 0 && state.objects.contains_key(path) {
            state.conflicts -= 1;
            let mut object = state.objects[path].clone();
            let by_another = format!("example.org/other-{}", state.conflicts);
            let (list, item) = match request.path == path {
                true => (&mut object["spec"]["taints"], json!({ "key": by_another, "effect": "NoSchedule" })),
                false => (&mut object["status"]["conditions"], json!({ "type": by_another, "status": "True" })),
            };
            let mut items = list.as_array().cloned().unwrap_or_default();
            items.push(item);
            *list = items.into();
            self.put_in(&mut state, object);
        }
        let (code, answer) = match state.objects.get(path).cloned() {
            None => (404, json!({ "kind": "Status", "code": 404 })),
            Some(mut object) => {
                let metadata = &body["metadata"];
                let differs = |part: &str| !metadata[part].is_null() && metadata[part] != object["metadata"][part];
                let is_status = request.path != path;
                if differs("resourceVersion") || differs("uid") {
                    (409, json!({ "kind": "Status", "message": "the object has been modified", "code": 409 }))
                } else {
                    match (is_status, request.kind.as_str()) {
                        (false, "application/merge-patch+json") => merge(&mut object, &body),
                        (true, "application/strategic-merge-patch+json") => merge_status(&mut object, &body),
                        other => panic!("{other:?}"),
                    }
                    match invalid(&object) {
                        Some(what) => (422, json!({ "kind": "Status", "message": what, "code": 422 })),
                        None => {
                            self.put_in(&mut state, object);
                            (200, state.objects[path].clone())
                        }
                    }
                }
            }
        };
        state.patches.push(Patch { at: Instant::now(), path: request.path.clone(), code, body });
        // It is done, and nobody hears of it.
        while state.patches_hang && !self.stop.load(Ordering::Relaxed) {
            state = self.changed.wait_timeout(state, Duration::from_millis(100)).unwrap().0;
        }
        (code, answer)
    }

    fn watch(&self, request: &Request, to: &mut impl Write) -> std::io::Result<()> {
        let of = |key: &str| request.query.split('&').find_map(|p| p.strip_prefix(key)).unwrap().to_owned();
        let mut from: u64 = of("resourceVersion=").parse().unwrap();
        let until = Instant::now() + Duration::from_secs(of("timeoutSeconds=").parse().unwrap());
        write!(to, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        to.flush()?;
        let mut chunk = |event: &Value| {
            let line = format!("{event}\n");
            write!(to, "{:x}\r\n{line}\r\n", line.len()).and_then(|()| to.flush())
        };
        let mut state = self.state();
        while Instant::now() < until && !state.is_down && !self.stop.load(Ordering::Relaxed) {
            if from < state.oldest {
                chunk(
                    &json!({ "type": "ERROR", "object": { "kind": "Status", "code": 410, "message": "too old resource version" } }),
                )?;
                break;
            }
            let new: Vec<_> = state
                .events
                .iter()
                .filter(|(version, list, _)| *version > from && *list == request.path)
                .map(|e| e.2.clone())
                .collect();
            from = state.version;
            let bookmark = json!({ "type": "BOOKMARK", "object": { "metadata": { "resourceVersion": from.to_string() } } });
            drop(state);
            new.iter().chain([&bookmark]).try_for_each(&mut chunk)?;
            state = self.state();
            if state.version == from && state.oldest <= from {
                state = self.changed.wait_timeout(state, Duration::from_millis(500)).unwrap().0;
            }
        }
        drop(state);
        write!(to, "0\r\n\r\n")?;
        to.flush()?;
        Err(std::io::ErrorKind::ConnectionAborted.into())
    }

    /// Threads end.
    pub fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }
}

fn write(to: &mut impl Write, code: u16, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    let head = format!("HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
    to.write_all((head + &body).as_bytes())?;
    to.flush()
}
