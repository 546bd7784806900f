use super::*;

const NOW: &str = "2026-11-25T10:00:00Z";

fn host(state: &str, is_fenced: bool) -> Host {
    Host { state: state.into(), is_fenced, why: "h2 is silent (verdict 1)".into(), ..Host::default() }
}

fn view(state: &str, is_fenced: bool) -> View {
    View { hosts: [("h1".into(), host("alive", false)), ("h2".into(), host(state, is_fenced))].into(), ..View::default() }
}

fn with_process(state: &str) -> View {
    let mut view = view("alive", false);
    let process = Process { state: state.into(), why: "db@h2 was ended".into() };
    view.hosts.get_mut("h2").unwrap().processes.insert("db".into(), process);
    view
}

fn node(name: &str, taints: Value) -> Objects {
    let node =
        json!({ "metadata": { "name": name, "resourceVersion": "7" }, "spec": { "taints": taints, "podCIDR": "10.0.0.0/24" } });
    [(format!("/api/v1/nodes/{name}"), node)].into()
}

fn pod(name: &str, conditions: Value) -> Objects {
    let metadata = json!({ "name": name, "namespace": "shop", "uid": "u1", "resourceVersion": "9", "labels": { WATCH: "db" } });
    let pod =
        json!({ "metadata": metadata, "spec": { "nodeName": "h2" }, "status": { "phase": "Running", "conditions": conditions } });
    [(format!("/api/v1/namespaces/shop/pods/{name}"), pod)].into()
}

fn given() -> Given {
    Given { now: NOW.into(), ..Given::default() }
}

/// The taints behind what is done, with whom else's there are; `None`: nothing is done.
fn tainted(view: &View, taints: Value, given: &Given) -> Option<Vec<String>> {
    let judged = judge(view, &node("h2", taints), &Objects::new(), given);
    assert!(judged.doubts.is_empty(), "{judged:?}");
    let [change] = &judged.changes[..] else {
        assert!(judged.changes.is_empty());
        return None;
    };
    assert_eq!((change.path.as_str(), change.part, change.kind), ("/api/v1/nodes/h2", "", "application/merge-patch+json"));
    assert_eq!(change.patch["metadata"]["resourceVersion"], "7", "a list is replaced as a whole: of this version only");
    let list = change.patch["spec"]["taints"].as_array().unwrap();
    Some(
        list.iter()
            .map(|t| {
                format!("{}={}:{}", t["key"].as_str().unwrap(), t["value"].as_str().unwrap_or(""), t["effect"].as_str().unwrap())
            })
            .collect(),
    )
}

fn strings(texts: &[&str]) -> Option<Vec<String>> {
    Some(texts.iter().map(|t| (*t).to_owned()).collect())
}

#[test]
fn pods_are_evicted_only_from_a_node_whose_host_lets_nothing_out() {
    let asked = Given { with_out_of_service: true, ..given() };
    assert_eq!(tainted(&view("silent-host", true), json!([]), &given()), strings(&["fide.io/failed=silent-host:NoExecute"]));
    assert_eq!(
        tainted(&view("silent-host", true), Value::Null, &asked),
        strings(&["fide.io/failed=silent-host:NoExecute", "node.kubernetes.io/out-of-service=fide:NoExecute"])
    );
    // It may be cut off and work on: nobody new there, and whoever is there stays; also if out-of-service was asked for.
    for given in [given(), asked] {
        assert_eq!(tainted(&view("silent-host", false), json!([]), &given), strings(&["fide.io/silent=silent-host:NoSchedule"]));
    }
    for state in ["late", "agent-lost", "restarting", "left", "unheard-of"] {
        assert_eq!(tainted(&view(state, true), json!([]), &given()), None, "{state}");
    }
}

#[test]
fn what_was_done_is_not_done_again_and_a_fence_known_later_is_taken_in() {
    let failed = json!({ "key": FAILED, "value": "silent-host", "effect": "NoExecute", "timeAdded": "2026-11-25T09:00:00Z" });
    let silent = json!({ "key": SILENT, "value": "silent-host", "effect": "NoSchedule" });
    assert_eq!(tainted(&view("silent-host", true), json!([failed.clone()]), &given()), None);
    assert_eq!(tainted(&view("silent-host", false), json!([silent.clone()]), &given()), None);
    assert_eq!(
        tainted(&view("silent-host", true), json!([silent]), &given()),
        strings(&["fide.io/failed=silent-host:NoExecute"])
    );
    let judged = judge(&view("silent-host", true), &node("h2", json!([])), &Objects::new(), &given());
    let patch = &judged.changes[0].patch;
    assert_eq!(
        (&patch["spec"]["taints"][0]["timeAdded"], &patch["metadata"]["annotations"][VERDICT]),
        (&json!(NOW), &json!("h2 is silent (verdict 1)"))
    );
}

#[test]
fn a_host_that_is_back_loses_our_taints_and_nobody_elses() {
    let others = json!({ "key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-11-25T09:00:00Z" });
    let operators = json!({ "key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute" });
    let ours = json!({ "key": FAILED, "value": "silent-host", "effect": "NoExecute" });
    let service = json!({ "key": OUT_OF_SERVICE, "value": "fide", "effect": "NoExecute" });
    let back = view("alive", false);
    assert_eq!(tainted(&back, json!([ours, others]), &given()), strings(&["node.kubernetes.io/unreachable=:NoExecute"]));
    assert_eq!(
        tainted(&back, json!([operators, ours, service]), &given()),
        strings(&["node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"])
    );
    assert_eq!(tainted(&back, json!([others, operators]), &given()), None);
    // The operator's taint in the place of ours is left, and ours not needed.
    let asked = Given { with_out_of_service: true, ..given() };
    assert_eq!(
        tainted(&view("silent-host", true), json!([operators]), &asked),
        strings(&["node.kubernetes.io/out-of-service=nodeshutdown:NoExecute", "fide.io/failed=silent-host:NoExecute"])
    );
    assert_eq!(tainted(&view("silent-host", true), json!([operators, ours]), &asked), None);
    // Fields that this program does not know stay.
    let judged = judge(&back, &node("h2", json!([others, ours])), &Objects::new(), &given());
    assert_eq!(judged.changes[0].patch["spec"]["taints"], json!([others]));
    assert_eq!(judged.changes[0].patch["metadata"]["annotations"][VERDICT], Value::Null, "and the verdict behind it goes");
}

#[test]
fn a_taint_is_not_taken_off_a_moment_after_it_was_put_on() {
    let ours = json!({ "key": SILENT, "value": "silent-host", "effect": "NoSchedule" });
    let unsettled = Given { unsettled: ["/api/v1/nodes/h2".into()].into(), ..given() };
    assert_eq!(tainted(&view("alive", false), json!([ours]), &unsettled), None);
    assert_eq!(
        tainted(&view("silent-host", true), json!([ours]), &unsettled),
        strings(&["fide.io/failed=silent-host:NoExecute"]),
        "what is new waits for nothing"
    );
}

#[test]
fn maintenance_of_a_host_or_process_keeps_it_as_it_is_and_its_return_is_seen() {
    let mut silent = view("silent-host", true);
    silent.maintenance = vec!["@h2".into()];
    assert_eq!(tainted(&silent, json!([]), &given()), None);
    let mut back = view("alive", false);
    back.maintenance = vec!["@h2".into()];
    let ours = json!({ "key": FAILED, "value": "silent-host", "effect": "NoExecute" });
    assert_eq!(tainted(&back, json!([ours]), &given()), strings(&[]));

    let mut killed = with_process("killed");
    killed.maintenance = vec!["db".into()];
    assert_eq!(judge(&killed, &node("h2", json!([])), &pod("db-0", json!([])), &given()), Judgement::default());
    killed.maintenance = vec!["cache".into()];
    assert_eq!(judge(&killed, &node("h2", json!([])), &pod("db-0", json!([])), &given()).changes.len(), 1);
}

fn marked(view: &View, pods: &Objects) -> Option<(String, String)> {
    let judged = judge(view, &node("h2", json!([])), pods, &given());
    let change = judged.changes.iter().find(|c| c.part == "/status")?;
    assert_eq!(change.kind, "application/strategic-merge-patch+json");
    assert_eq!(change.patch["metadata"], json!({ "uid": "u1", "resourceVersion": "9" }), "no namesake, nothing newer");
    let conditions = change.patch["status"]["conditions"].as_array().unwrap();
    assert_eq!((conditions.len(), &conditions[0]["type"]), (1, &json!(ALIVE)));
    Some((conditions[0]["status"].as_str().unwrap().into(), conditions[0]["reason"].as_str().unwrap().into()))
}

#[test]
fn a_pod_is_as_alive_as_its_process() {
    for (state, status, reason) in [
        ("alive", "True", "Alive"),
        ("killed", "False", "Killed"),
        ("exited", "False", "Exited"),
        ("out-of-memory", "False", "OutOfMemory"),
        ("doomed", "False", "Doomed"),
        ("hung", "False", "Hung"),
    ] {
        let view = with_process(state);
        assert_eq!(marked(&view, &pod("db-0", json!([]))), Some((status.into(), reason.into())), "{state}");
        let said = json!([{ "type": "Ready", "status": "True" }, { "type": ALIVE, "status": status, "reason": reason }]);
        assert_eq!(marked(&view, &pod("db-0", said)), None, "{state}: said already");
    }
    for state in ["left", "pending", "agent-lost", "unheard-of"] {
        assert_eq!(marked(&with_process(state), &pod("db-0", json!([]))), None, "{state}");
    }
    // Nothing is known of a process under this name.
    assert_eq!(marked(&view("alive", false), &pod("db-0", json!([]))), None);
}

#[test]
fn a_silent_host_says_something_of_its_pods_only_behind_its_fence() {
    let mut silent = with_process("alive");
    silent.hosts.get_mut("h2").unwrap().state = "silent-host".into();
    assert_eq!(marked(&silent, &pod("db-0", json!([]))), None);
    silent.hosts.get_mut("h2").unwrap().is_fenced = true;
    assert_eq!(marked(&silent, &pod("db-0", json!([]))), Some(("False".into(), "SilentHost".into())));
    // What was known of its processes before is not held for the present.
    for state in ["agent-lost", "left", "late", "restarting"] {
        silent.hosts.get_mut("h2").unwrap().state = state.into();
        assert_eq!(marked(&silent, &pod("db-0", json!([]))), None, "{state}");
    }
}

#[test]
fn pods_that_end_or_are_on_other_nodes_are_left_and_two_of_one_watch_are_doubted() {
    let killed = with_process("killed");
    for (pointer, value) in [
        ("/metadata/deletionTimestamp", json!(NOW)),
        ("/status/phase", json!("Failed")),
        ("/spec/nodeName", json!("h1")),
        ("/metadata/labels", json!({})),
    ] {
        let mut pods = pod("db-0", json!([]));
        let object = pods.values_mut().next().unwrap();
        if pointer.ends_with("deletionTimestamp") {
            object["metadata"]["deletionTimestamp"] = value;
        } else {
            *object.pointer_mut(pointer).unwrap() = value;
        }
        assert_eq!(marked(&killed, &pods), None, "{pointer}");
    }
    let mut two = pod("db-0", json!([]));
    two.extend(pod("db-1", json!([])));
    let judged = judge(&killed, &node("h2", json!([])), &two, &given());
    assert!(judged.changes.is_empty() && judged.doubts.iter().any(|d| d.contains("db-0, db-1")), "{judged:?}");
    // One of them ends: the other one it is.
    two.values_mut().next().unwrap()["metadata"]["deletionTimestamp"] = json!(NOW);
    assert_eq!(judge(&killed, &node("h2", json!([])), &two, &given()).changes.len(), 1);
}

#[test]
fn a_transition_has_its_time_and_a_new_reason_does_not() {
    let old = json!([{ "type": ALIVE, "status": "False", "reason": "Doomed", "lastTransitionTime": "2026-11-25T09:00:00Z" }]);
    let change = |view: &View, conditions: &Value| {
        judge(view, &node("h2", json!([])), &pod("db-0", conditions.clone()), &given()).changes[0].patch.clone()
    };
    assert_eq!(change(&with_process("killed"), &old)["status"]["conditions"][0]["lastTransitionTime"], "2026-11-25T09:00:00Z");
    assert_eq!(change(&with_process("alive"), &old)["status"]["conditions"][0]["lastTransitionTime"], NOW);
}

#[test]
fn a_node_is_a_host_by_annotation_name_or_first_part_and_never_two() {
    let silent = view("silent-host", true);
    let mut nodes = node("h2.example.org", json!([]));
    assert_eq!(judge(&silent, &nodes, &Objects::new(), &given()).changes.len(), 1);
    nodes.extend(node("h2.example.com", json!([])));
    let judged = judge(&silent, &nodes, &Objects::new(), &given());
    assert!(judged.changes.is_empty(), "of which of them it is, nobody knows: {judged:?}");
    assert!(judged.doubts.iter().any(|d| d.contains("h2.example.com, h2.example.org") && d.contains(HOST)), "{judged:?}");
    nodes.get_mut("/api/v1/nodes/h2.example.com").unwrap()["metadata"]["annotations"] = json!({ HOST: "elsewhere" });
    let judged = judge(&silent, &nodes, &Objects::new(), &given());
    assert_eq!((judged.changes.len(), judged.changes[0].path.as_str()), (1, "/api/v1/nodes/h2.example.org"));
    let mut other = node("ip-10-0-0-2", json!([]));
    assert!(judge(&silent, &other, &Objects::new(), &given()).changes.is_empty());
    other.get_mut("/api/v1/nodes/ip-10-0-0-2").unwrap()["metadata"]["annotations"] = json!({ HOST: "h2" });
    assert_eq!(judge(&silent, &other, &Objects::new(), &given()).changes.len(), 1);
}
