//! The shipped alert rules and dashboard in a real Prometheus that reads real agents: what happens to hosts and processes fires the alert for it, which clears;
//! every panel's queries bring series; every metric that rules and dashboard name is the agent's.

use crate::common::{PATIENCE, Pins, Process, Setup, World, wait_for};
use fide_lab::Cut;
use fide_wire::control::{MaintenanceOrder, Request, Selector};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/monitoring");
const AT: u16 = 9090;

/// A Prometheus on host 1 of the lab.
struct Prometheus<'a> {
    w: &'a World,
    process: Process,
    log: std::path::PathBuf,
}

impl<'a> Prometheus<'a> {
    fn start(w: &'a World, dir: &Path) -> Self {
        // Pending for a second at most: how long each alert waits is tried by promtool.
        let rules = fs::read_to_string(format!("{SHIPPED}/fide.rules.yml")).unwrap();
        let impatient =
            |line: &str| if line.trim().starts_with("for: ") { "        for: 1s\n".into() } else { format!("{line}\n") };
        fs::write(dir.join("fide.rules.yml"), rules.lines().map(impatient).collect::<String>()).unwrap();
        let targets: Vec<String> = w.lab.hosts().map(|host| format!("{}:9433", w.lab.ipv4(host, 0))).collect();
        let config = format!(
            "global: {{scrape_interval: 500ms, scrape_timeout: 400ms, evaluation_interval: 500ms}}\nrule_files: [fide.rules.yml]\n\
             scrape_configs:\n- job_name: fide\n  static_configs: [{{targets: {targets:?}}}]\n"
        );
        fs::write(dir.join("prometheus.yml"), config).unwrap();
        let log = dir.join("log");
        let to = fs::File::create(&log).unwrap();
        let mut command = w.lab.command(1, "prometheus").unwrap();
        command.arg(format!("--config.file={}", dir.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", dir.join("data").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{AT}")).env("GOMAXPROCS", "1");
        command.stdin(Stdio::piped()).stdout(to.try_clone().unwrap()).stderr(to);
        let mut prometheus = Self { w, process: Process::spawn(command), log };
        wait_for("prometheus answers", || {
            let ended = prometheus.process.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", fs::read_to_string(&prometheus.log).unwrap());
            prometheus.get("/-/ready").ok().filter(|answer| answer.starts_with("HTTP/1.0 200"))
        });
        prometheus
    }

    /// HTTP/1.0: its end is the connection's.
    fn get(&self, path: &str) -> std::io::Result<String> {
        let mut stream = self.w.lab.in_host(1, || TcpStream::connect(("127.0.0.1", AT))).unwrap()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn api(&self, path: &str, parameters: &[(&str, &str)]) -> Value {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
        let encoded = |text: &str| -> String {
            text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
        };
        let query: Vec<String> = parameters.iter().map(|(key, value)| format!("{key}={}", encoded(value))).collect();
        let answer = self.get(&format!("/api/v1/{path}?{}", query.join("&"))).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let answer: Value = serde_json::from_str(body).unwrap_or_else(|e| panic!("{path}: {e}: {answer}"));
        assert_eq!(answer["status"], "success", "{path} {parameters:?}: {answer}");
        answer["data"].clone()
    }

    /// The series of a query now.
    fn query(&self, query: &str) -> Vec<Value> {
        self.api("query", &[("query", query)])["result"].as_array().unwrap().clone()
    }

    /// Alerts that fire, with their labels.
    fn firing(&self) -> Vec<Value> {
        let data = self.api("alerts", &[]);
        let alerts = data["alerts"].as_array().unwrap();
        alerts.iter().filter(|alert| alert["state"] == "firing").cloned().collect()
    }

    fn fires(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        let fits = |alert: &Value| labels.iter().all(|(label, value)| alert["labels"][label] == *value);
        self.firing().iter().any(|alert| alert["labels"]["alertname"] == name && fits(alert))
    }

    fn wait(&self, name: &str, labels: &[(&str, &str)], fires: bool) {
        let deadline = Instant::now() + PATIENCE;
        while self.fires(name, labels) != fires {
            assert!(Instant::now() < deadline, "{name} {labels:?} should be firing: {fires}; firing: {:#?}", self.firing());
            // Sleep: interval of the poll.
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until this rule was evaluated so often more.
    fn evaluated(&self, name: &str, times: usize) {
        let last = || {
            let rules = self.api("rules", &[])["groups"].clone();
            let mut rules = rules.as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
            rules.find(|rule| rule["name"] == name).expect("it is shipped")["lastEvaluation"].clone()
        };
        for _ in 0..times {
            let before = last();
            wait_for("another evaluation", || (last() != before).then_some(()));
        }
    }
}

/// Names of metrics with what is in braces behind them.
fn selectors(query: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    let mut rest = query;
    while let Some(at) = rest.find("fide_").into_iter().chain(rest.find("up{")).min() {
        let whole = rest[..at].chars().next_back().is_none_or(|c| !is_part(c));
        rest = &rest[at..];
        let mut end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        if rest[end..].starts_with('{') {
            end += rest[end..].find('}').unwrap() + 1;
        }
        if whole {
            found.push(rest[..end].to_owned());
        }
        rest = &rest[end..];
    }
    found
}

#[test]
fn names_in_queries_are_found() {
    let query =
        "max by (host) (fide_a{x=\"y\"} * on (job) fide_info) + up{job=\"fide\"} > rate(fide_b_total[5m]) unless other_fide_c";
    assert_eq!(selectors(query), ["fide_a{x=\"y\"}", "fide_info", "up{job=\"fide\"}", "fide_b_total"]);
}

fn serve(w: &World, host: u16, more: &str) {
    let head = w
        .head(host, &format!("h{host}"), "2ms")
        .replace("metrics = { listen = \"off\" }", "metrics = { listen = \"0.0.0.0:9433\" }");
    w.write_config(host, &format!("{head}\n{more}"));
}

/// The metrics of a host, as Prometheus' own linter sees them.
fn lint(w: &World, host: u16) {
    let mut stream = w.lab.in_host(host, || TcpStream::connect(("127.0.0.1", 9433))).unwrap().unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, metrics) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 ") && metrics.contains("fide_info{"), "{head}");
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().unwrap();
    promtool.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let told = promtool.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&[told.stdout, told.stderr].concat()).into_owned();
    assert!(told.status.success() && text.trim().is_empty(), "promtool check metrics of h{host}: {text}");
}

#[test]
fn a_real_prometheus_fires_the_shipped_alerts_and_fills_every_panel() {
    for program in ["prometheus", "promtool"] {
        if Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
            println!("SKIPPED: {program} is not installed (package prometheus): rules and dashboard were not loaded");
            return;
        }
    }
    let Some(pins) = Pins::new() else { return };
    let Some(mut w) = Setup::hosts(3).empty().up() else { return };
    (1..=3).for_each(|host| {
        serve(&w, host, &if host == 2 { pins.config(2, "mode = \"acknowledged\"\ntimeout = \"2s\"") } else { String::new() })
    });
    (1..=3).for_each(|host| w.start(host));
    w.all_alive();

    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("shop-db");
    fs::copy("/bin/sleep", &program).unwrap();
    let db = || w.process(2, program.to_str().unwrap(), &["1000"]);
    let mut running = db();
    w.ask(2, &Request::watch("db", Selector::Name("shop-db".into()))).unwrap();
    w.known(2, "db");
    let p = Prometheus::start(&w, dir.path());
    let loaded = p.api("rules", &[])["groups"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|g| g["rules"].as_array().unwrap().clone())
        .collect::<Vec<_>>();
    assert!(loaded.len() >= 20 && loaded.iter().all(|rule| rule["type"] == "alerting"), "{loaded:?}");

    (1..=3).for_each(|host| lint(&w, host));
    // No key is what there is to complain of.
    p.wait("FideNotAuthenticated", &[("node", "h3"), ("cluster", "e2e")], true);
    let may_be = ["FideNotAuthenticated", "FideContractBroken", "FideFenceMarginLow"];
    let others: Vec<Value> =
        p.firing().into_iter().filter(|a| !may_be.iter().any(|name| a["labels"]["alertname"] == *name)).collect();
    assert!(others.is_empty(), "{others:#?}");

    // A process is killed, and started again.
    let labels = [("app", "db"), ("node", "h2"), ("cluster", "e2e"), ("severity", "critical")];
    running.kill();
    running.ended();
    p.wait("FideProcessDown", &labels, true);
    running = db();
    p.wait("FideProcessDown", &labels, false);

    // What is in maintenance wakes nobody.
    let order = MaintenanceOrder::On { target: "db@h2".into(), for_ns: 600_000_000_000, reason: "new disk".into() };
    w.ask(1, &Request::Maintenance { order }).unwrap();
    wait_for("prometheus knows the maintenance", || p.query("fide_watched_in_maintenance{app=\"db\"} == 1").pop());
    running.kill();
    running.ended();
    wait_for("prometheus knows of the end", || p.query("fide_watched_alive{app=\"db\"} == 0").pop());
    // Pending for a second, which are two evaluations.
    p.evaluated("FideProcessDown", 4);
    assert!(!p.fires("FideProcessDown", &[]), "{:#?}", p.firing());
    let _running = db();

    // A cable, a host, an agent.
    let cable = [("host", "h3"), ("path", "1")];
    w.lab.cut(3, 1, Cut::Carrier).unwrap();
    p.wait("FidePathDown", &cable, true);
    p.wait("FideInterfaceDown", &[("node", "h3"), ("path", "1"), ("interface", "net1")], true);
    w.lab.cut(3, 0, Cut::Carrier).unwrap();
    p.wait("FideHostSilent", &[("host", "h3"), ("cluster", "e2e")], true);
    p.wait("FideAgentDown", &[("instance", &format!("{}:9433", w.lab.ipv4(3, 0)))], true);
    p.wait("FidePathDown", &cable, false);
    [0, 1].into_iter().for_each(|net| w.lab.heal(3, net).unwrap());
    for name in ["FideHostSilent", "FideAgentDown", "FideInterfaceDown", "FidePathDown"] {
        p.wait(name, &[], false);
    }
    w.signal_agent(3, libc::SIGSTOP);
    p.wait("FideAgentLost", &[("host", "h3")], true);
    w.signal_agent(3, libc::SIGCONT);
    p.wait("FideAgentLost", &[], false);

    (1..=3).for_each(|host| lint(&w, host));
    // What rules and dashboard name is there, with the labels that they ask for.
    let mut named: BTreeSet<String> = loaded.iter().flat_map(|rule| selectors(rule["query"].as_str().unwrap())).collect();
    assert!(named.len() > 20, "{named:?}");
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(format!("{SHIPPED}/fide.dashboard.json")).unwrap()).unwrap();
    let filled = |text: &str| text.replace("$cluster", "e2e").replace("$node", ".*").replace("$__rate_interval", "5s");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut asked = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = filled(target["expr"].as_str().unwrap());
            assert!(!query.contains('$'), "a variable that this test does not know: {query}");
            let (start, end) = ((now - 20).to_string(), now.to_string());
            let range = [("query", query.as_str()), ("start", &start), ("end", &end), ("step", "1")];
            let result = p.api("query_range", &range)["result"].as_array().unwrap().clone();
            assert!(!result.is_empty(), "{}: no series for {query}", panel["title"]);
            // What a legend names is a label of each of them.
            let legend = target["legendFormat"].as_str().unwrap();
            for label in legend.split("{{").skip(1).map(|rest| rest.split("}}").next().unwrap()) {
                assert!(
                    result.iter().all(|series| series["metric"][label].is_string()),
                    "{}: {label} in {result:?}",
                    panel["title"]
                );
            }
            named.extend(selectors(&query));
            asked += 1;
        }
    }
    assert!(asked > 20, "{asked}");
    for variable in dashboard["templating"]["list"].as_array().unwrap().iter().filter(|v| v["type"] == "query") {
        let definition = filled(variable["query"]["query"].as_str().unwrap());
        let inner = definition.strip_prefix("label_values(").and_then(|d| d.strip_suffix(')')).unwrap();
        let (metric, label) = inner.rsplit_once(", ").unwrap();
        assert!(
            p.query(&format!("group by ({label}) ({metric})")).iter().all(|s| s["metric"][label].is_string()),
            "{definition}"
        );
        named.insert(metric.into());
    }
    let annotation = filled(dashboard["annotations"]["list"][0]["expr"].as_str().unwrap());
    assert!(!p.query(&annotation).is_empty(), "{annotation}");
    for selector in &named {
        assert!(!p.query(&format!("last_over_time({selector}[1m])")).is_empty(), "no agent has {selector}");
    }
}
