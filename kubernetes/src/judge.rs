//! What Kubernetes should know, of what the agent knows. Pure: the newest status and objects in, changes out.
//!
//! Nothing depends on having seen an event: a program that starts anew, or was cut off for a while, finds the same changes to be made.
//!
//! | the host is | its node | pods on it that name a watch (label `fide.io/watch`) |
//! |---|---|---|
//! | alive | no taint of ours | condition `fide.io/alive`: as the process is |
//! | silent behind a closed fence | `fide.io/failed`, *NoExecute*; `out-of-service` if asked for | *False* |
//! | silent otherwise | `fide.io/silent`, *NoSchedule*: it may be cut off and work on | as they are |
//! | late, agent lost, restarting, left, in maintenance, unknown | as it is | as they are |

use fide_client::wire::maintenance::covers;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The host is silent and its fence lets nothing out.
pub const FAILED: &str = "fide.io/failed";
/// The host is silent, and no more is known.
pub const SILENT: &str = "fide.io/silent";
/// Kubernetes' own: pods are deleted by force and volumes taken away.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// The value by which a taint of Kubernetes' is known to be ours.
const OURS: &str = "fide";
/// On nodes: the verdict behind a taint.
pub const VERDICT: &str = "fide.io/verdict";
/// On nodes, by an operator: what the agent there is called, where that is not the node's name.
pub const HOST: &str = "fide.io/host";
/// On pods: the name under which their process is watched.
pub const WATCH: &str = "fide.io/watch";
/// Of pods: whether that process is alive.
pub const ALIVE: &str = "fide.io/alive";

/// A process as an agent knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// `alive`, `hung`, `pending`, or the cause of its end.
    pub state: String,
    /// What is known of its end, in words.
    pub why: String,
}

/// A host as an agent knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// `alive`, `silent-host`, …
    pub state: String,
    /// Of a silent one: its fence has closed, all of it.
    pub is_fenced: bool,
    /// What is known of its silence, in words.
    pub why: String,
    /// Its processes, by name.
    pub processes: BTreeMap<String, Process>,
}

/// What this host's agent knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Every host, this one too.
    pub hosts: BTreeMap<String, Host>,
    /// What is in maintenance.
    pub maintenance: Vec<String>,
}

impl View {
    fn is_in_maintenance(&self, app: Option<&str>, host: &str) -> bool {
        self.maintenance.iter().any(|target| covers(target, app, host))
    }
}

/// Nodes and pods, by their addresses below the API's root.
pub type Objects = BTreeMap<String, Value>;

/// A change to one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The object, as in [`Objects`].
    pub path: String,
    /// What is changed below it: empty, or `/status`.
    pub part: &'static str,
    /// As which kind of patch.
    pub kind: &'static str,
    /// The patch. It names the version, or the pod, that it was made for: of another one it is refused.
    pub patch: Value,
    /// For people.
    pub text: String,
}

/// What is to be done, and what cannot be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judgement {
    /// In any order.
    pub changes: Vec<Change>,
    /// For people.
    pub doubts: BTreeSet<String>,
}

/// A text of an object.
#[must_use]
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"]["annotations"][key].as_str().unwrap_or_default()
}

/// Which host a node is: by its annotation, its name, or its name up to the first dot.
#[must_use]
pub fn host_of<'a>(node: &'a Value, view: &View) -> Option<&'a str> {
    let (said, name) = (annotation(node, HOST), name(node));
    let short = name.split('.').next().unwrap_or(name);
    let names = if said.is_empty() { vec![name, short] } else { vec![said] };
    names.into_iter().find(|name| view.hosts.contains_key(*name))
}

/// The taints of ours that a node has.
#[must_use]
pub fn taints_of(node: &Value) -> Vec<Value> {
    node["spec"]["taints"].as_array().into_iter().flatten().filter(|taint| is_ours(taint)).cloned().collect()
}

/// What is beside the agent's knowledge.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// Nodes, as [`Objects`], whose taints were changed a moment ago: they are not taken off yet. Two programs that see two sides of a
    /// partition would undo each other's work without a pause.
    pub unsettled: BTreeSet<String>,
    /// Whether nodes that are cut off are said to be out of service.
    pub with_out_of_service: bool,
    /// The time, as RFC 3339.
    pub now: String,
}

/// What is to be changed so that Kubernetes knows what the agent knows.
#[must_use]
pub fn judge(view: &View, nodes: &Objects, pods: &Objects, given: &Given) -> Judgement {
    let now = given.now.as_str();
    let mut judgement = Judgement::default();
    let mut nodes_of: BTreeMap<&str, Vec<(&String, &Value)>> = BTreeMap::new();
    for (path, node) in nodes {
        if let Some(host) = host_of(node, view) {
            nodes_of.entry(host).or_default().push((path, node));
        }
    }
    for (name_of_host, found) in nodes_of {
        let [(path, node)] = found[..] else {
            let names: Vec<&str> = found.iter().map(|(_, node)| name(node)).collect();
            let names = names.join(", ");
            judgement.doubts.insert(format!(
                "{names} are all host {name_of_host}: give each the annotation {HOST} with its own; left as they are"
            ));
            continue;
        };
        let host = &view.hosts[name_of_host];
        let wanted = taints(view, name_of_host, host, given.with_out_of_service);
        if let Some(wanted) = wanted.filter(|w| !w.is_empty() || !given.unsettled.contains(path)) {
            judgement.changes.extend(taint(path, node, host, &wanted, now));
        }
        mark_pods(view, name_of_host, name(node), pods, now, &mut judgement);
    }
    judgement
}

/// The taints of ours that a host's node should have; `None`: those that it has.
fn taints(view: &View, name: &str, host: &Host, with_out_of_service: bool) -> Option<Vec<Value>> {
    match host.state.as_str() {
        "alive" => Some(Vec::new()),
        "silent-host" if view.is_in_maintenance(None, name) => None,
        "silent-host" if host.is_fenced => {
            let mut wanted = vec![json!({ "key": FAILED, "value": "silent-host", "effect": "NoExecute" })];
            if with_out_of_service {
                wanted.push(json!({ "key": OUT_OF_SERVICE, "value": OURS, "effect": "NoExecute" }));
            }
            Some(wanted)
        }
        "silent-host" => Some(vec![json!({ "key": SILENT, "value": "silent-host", "effect": "NoSchedule" })]),
        _ => None,
    }
}

fn is_ours(taint: &Value) -> bool {
    match taint["key"].as_str() {
        Some(FAILED | SILENT) => true,
        Some(OUT_OF_SERVICE) => taint["value"] == OURS,
        _ => false,
    }
}

fn is_same(a: &Value, b: &Value) -> bool {
    ["key", "value", "effect"].iter().all(|part| a[part] == b[part])
}

/// The whole list goes, because lists are not merged; hence with the version that it was made of.
fn taint(path: &str, node: &Value, host: &Host, wanted: &[Value], now: &str) -> Option<Change> {
    let has = node["spec"]["taints"].as_array().map_or(&[][..], Vec::as_slice);
    // A taint is known by key and effect: one of somebody else's in the same place is theirs.
    let is_taken = |w: &&Value| has.iter().any(|h| !is_ours(h) && h["key"] == w["key"] && h["effect"] == w["effect"]);
    let wanted: Vec<&Value> = wanted.iter().filter(|w| !is_taken(w)).collect();
    let ours: Vec<&Value> = has.iter().filter(|taint| is_ours(taint)).collect();
    if ours.len() == wanted.len() && wanted.iter().all(|w| ours.iter().any(|o| is_same(o, w))) {
        return None;
    }
    let kept = has.iter().filter(|h| !is_ours(h) || wanted.iter().any(|w| is_same(h, w)));
    let mut list: Vec<Value> = kept.cloned().collect();
    for taint in wanted.iter().filter(|w| !has.iter().any(|h| is_same(h, w))) {
        let mut added = (*taint).clone();
        added["timeAdded"] = now.into();
        list.push(added);
    }
    let said: Vec<String> =
        wanted.iter().map(|w| format!("{}:{}", w["key"].as_str().unwrap_or(""), w["effect"].as_str().unwrap_or(""))).collect();
    let text = match said.is_empty() {
        true => format!("node {}: taken off, the host is back", name(node)),
        false => format!("node {}: {} ({})", name(node), said.join(", "), host.why),
    };
    let verdict = if wanted.is_empty() { Value::Null } else { host.why.as_str().into() };
    let patch = json!({
        "metadata": { "resourceVersion": node["metadata"]["resourceVersion"], "annotations": { VERDICT: verdict } },
        "spec": { "taints": list },
    });
    Some(Change { path: path.into(), part: "", kind: "application/merge-patch+json", patch, text })
}

fn mark_pods(view: &View, host: &str, node: &str, pods: &Objects, now: &str, judgement: &mut Judgement) {
    let is_there = |pod: &Value| {
        text(pod, "/spec/nodeName") == node
            && pod["metadata"]["deletionTimestamp"].is_null()
            && !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
    };
    let mut pods_of: BTreeMap<&str, Vec<(&String, &Value)>> = BTreeMap::new();
    for (path, pod) in pods.iter().filter(|(_, pod)| is_there(pod)) {
        if let Some(watch) = pod["metadata"]["labels"][WATCH].as_str() {
            pods_of.entry(watch).or_default().push((path, pod));
        }
    }
    for (watch, found) in pods_of {
        let [(path, pod)] = found[..] else {
            let names: Vec<&str> = found.iter().map(|(_, pod)| name(pod)).collect();
            let text = format!(
                "pods {} on node {node} all have the label {WATCH}={watch}: of which of them the process is, nobody knows; left as they are",
                names.join(", ")
            );
            judgement.doubts.insert(text);
            continue;
        };
        let Some((status, reason, why)) = condition(view, host, watch) else { continue };
        // What is planned wakes nobody; that it is over is seen all the same.
        if status == "False" && view.is_in_maintenance(Some(watch), host) {
            continue;
        }
        judgement.changes.extend(mark(path, pod, status, reason, why, now));
    }
}

/// Status, reason and message of the condition; `None`: nothing is known that should change it.
fn condition<'a>(view: &'a View, host: &str, watch: &str) -> Option<(&'static str, &'static str, &'a str)> {
    let host = &view.hosts[host];
    if host.state == "silent-host" && host.is_fenced {
        return Some(("False", "SilentHost", &host.why));
    }
    let process = (host.state == "alive").then(|| host.processes.get(watch))??;
    let (status, reason) = match process.state.as_str() {
        "alive" => ("True", "Alive"),
        "hung" => ("False", "Hung"),
        "exited" => ("False", "Exited"),
        "killed" => ("False", "Killed"),
        "doomed" => ("False", "Doomed"),
        "out-of-memory" => ("False", "OutOfMemory"),
        _ => return None,
    };
    Some((status, reason, &process.why))
}

/// Conditions are merged by their type; the pod is named by its uid, so that its namesake is not
/// marked, and by its version: an adapter that is late does not undo what another one said since.
fn mark(path: &str, pod: &Value, status: &str, reason: &str, why: &str, now: &str) -> Option<Change> {
    let conditions = pod["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let old = conditions.iter().find(|c| c["type"] == ALIVE);
    if old.is_some_and(|c| c["status"] == status && c["reason"] == reason) {
        return None;
    }
    let changed = match old {
        Some(c) if c["status"] == status => c["lastTransitionTime"].clone(),
        _ => now.into(),
    };
    let condition = json!({ "type": ALIVE, "status": status, "reason": reason, "message": why, "lastTransitionTime": changed });
    let of = json!({ "uid": pod["metadata"]["uid"], "resourceVersion": pod["metadata"]["resourceVersion"] });
    let patch = json!({ "metadata": of, "status": { "conditions": [condition] } });
    let text = format!("pod {}/{}: {ALIVE} {status} ({reason})", text(pod, "/metadata/namespace"), name(pod));
    Some(Change { path: path.into(), part: "/status", kind: "application/strategic-merge-patch+json", patch, text })
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
