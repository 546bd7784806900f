//! The configuration file: what it accepts, what it says when it does not, and what a reload takes over.

use fide_agent::access::Who;
use fide_agent::config::{
    Config, FenceConfig, Profile, Receive, RestartWithin, Send, default_group, diff, duration_ns, size_bytes,
};
use fide_agent::example::{EXAMPLE, Line, lines};
use fide_wire::control::Selector;
use fide_wire::verdict::Cause;
use proptest::prelude::*;
use std::os::unix::fs::PermissionsExt;

fn node(rest: &str) -> String {
    format!("node = \"a\"\n{rest}")
}

fn parse(rest: &str) -> Config {
    Config::parse(&node(rest)).unwrap()
}

fn refusal(rest: &str) -> String {
    Config::parse(&node(rest)).unwrap_err().to_string()
}

#[test]
fn an_empty_file_has_defaults_that_work() {
    let c = parse("");
    assert_eq!((c.cluster.as_str(), c.cluster_id), ("fide", fide_wire::name_id("fide")));
    assert_eq!((c.heartbeat_ns, c.port), (1_000_000, 3433));
    assert_eq!((c.profile, c.receive, c.send), (Profile::Shared, Receive::Auto, Send::Auto));
    assert_eq!(c.socket.mode, 0o660);
    assert_eq!(c.metrics.unwrap().to_string(), "127.0.0.1:9433");
    assert_eq!(c.history.max_bytes, 16 << 20);
    assert_eq!(c.access.monitor, Who::everyone());
    assert!(!c.keyring.is_secret());
    assert!(c.warnings.iter().any(|w| w.contains("[keys]")));
}

#[test]
fn the_packaged_example_is_what_an_empty_file_means() {
    let example = Config::parse(&node(EXAMPLE)).unwrap();
    let changes = diff(&parse(""), &example);
    assert!(changes.is_empty(), "{:?}", changes);
}

#[test]
fn the_packaged_example_holds_true_when_uncommented() {
    let text: String = lines()
        .map(|line| match line {
            Line::Key { key, value, .. } => format!("{key} = {value}\n"),
            Line::Header { table, .. } => format!("{table}\n"),
            Line::Blank | Line::Prose(_) => "\n".into(),
        })
        .collect();
    // These exclude one another within one file.
    let text = text.replace("delta_max = \"1ms\"", "");
    let c = Config::parse(&text).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(c.paths.len(), 2);
    assert_eq!(c.watches.len(), 5);
    assert_eq!(c.hooks.len(), 3);
    assert_eq!(c.watches.iter().filter(|w| w.progress.is_some()).count(), 3);
    assert_eq!(c.keys.unwrap().accept.unwrap().id, 2);
    assert_eq!(c.node, "a");
}

#[test]
fn a_fence_is_understood_and_what_cannot_be_is_refused() {
    use fide_proto::fence::Paths;
    use fide_wire::verdict::{Confirmers, FenceMode};
    assert_eq!(parse("").fence, FenceConfig::default());
    assert_eq!(parse("[fence]\ntimeout = \"20ms\"").fence.mode, None);
    let f = parse(
        "[fence]\nmode = \"sent\"\npaths = \"one\"\ntimeout = \"30ms\"\nmargin = \"2ms\"\ninterfaces = [\"*\"]\ncgroups = [\"/sys/fs/cgroup/db\"]\n\
         pins = \"/run/bpf/f\"\nrecover_at_start = true",
    )
    .fence;
    assert_eq!((f.mode, f.paths), (Some(FenceMode::Sent), Paths::One));
    assert_eq!((f.timeout_ns, f.margin_ns, f.host, f.recover_at_start), (30_000_000, 2_000_000, true, true));
    for (by, confirmers) in [("\"all\"", Confirmers::All), ("\"majority\"", Confirmers::Majority), ("2", Confirmers::AtLeast(2))]
    {
        let f = parse(&format!("[fence]\nmode = \"acknowledged\"\nconfirmed_by = {by}")).fence;
        assert_eq!(f.mode, Some(FenceMode::Acknowledged(confirmers)));
    }
    let refused = |lines: &str, why: &str| {
        let e = Config::parse(&node(&format!("[fence]\n{lines}"))).unwrap_err().to_string();
        assert!(e.contains(why), "{lines}: {e}");
    };
    refused("mode = \"maybe\"", "unknown variant");
    refused("mode = \"sent\"\nconfirmed_by = 2", "no meaning in mode");
    refused("mode = \"acknowledged\"\nconfirmed_by = 0", "write 1 to");
    refused("mode = \"acknowledged\"\nconfirmed_by = \"some\"", "majority");
    refused("mode = \"sent\"\ntimeout = \"8ms\"", "too short");
    refused("mode = \"sent\"\ntimeout = \"11s\"", "10s");
    refused("margin = \"1us\"", "margin must be at least");
    refused("mode = \"sent\"\nhost = false", "guards nothing");
    refused("host = false\ninterfaces = [\"eth9\"]\ncgroups = [\"/a\"]", "host = true only");
    refused("cgroups = [\"db\"]", "absolute");
    refused("mode = \"acknowledged\"\nat_start = \"closed\"", "there are none");
    refused("at_start = \"shut\"", "`open` or `closed`");
    let changes = diff(&parse(""), &parse("[fence]\nmode = \"sent\""));
    assert_eq!(changes.needs_restart, ["fence"]);
    let doubts = parse("[fence]\nmode = \"sent\"\npins = \"/tmp/f\"\ncgroups = [\"/nowhere\"]").doubts().join("\n");
    assert!(doubts.contains("BPF file system") && doubts.contains("/nowhere"), "{doubts}");
}

#[test]
fn groups_are_understood_and_what_cannot_be_is_refused() {
    use fide_proto::consensus::{Kind, policy::Policy};
    let block = |name: &str, hosts: &str, more: &str| format!("[[group]]\nname = \"{name}\"\nhosts = [{hosts}]\n{more}\n");
    let of = |text: &str| Config::parse(&format!("node = \"a\"\n{text}"));
    let two = of(&(block("orders", "\"b\", \"a\"", "") + &block("more", "\"a\"", "engine = \"raft\""))).unwrap();
    assert_eq!((two.groups[0].engine, two.groups[0].policy), (None, None));
    assert_eq!((two.groups[0].hosts.as_slice(), two.groups[1].engine), (&["b".to_string(), "a".into()][..], Some(Kind::Raft)));
    // One file for all hosts: those that are not named are no error.
    let elsewhere = of(&block("orders", "\"b\", \"c\"", "policy = \"fence\"")).unwrap();
    assert!(elsewhere.doubts().iter().any(|doubt| doubt.contains("this host (a) is not one of its hosts (b, c)")));
    let many: String = (0..65).map(|n| block(&format!("g{n}"), "\"a\"", "")).collect();
    for (text, words) in [
        (block("", "\"a\"", ""), "1 to 64 bytes"),
        (block(&"n".repeat(65), "\"a\"", ""), "1 to 64 bytes"),
        (block("orders", "", ""), "hosts names 1 to 64 hosts"),
        (block("orders", "\"a\", \"b\", \"a\"", ""), "a is named twice"),
        (block("orders", "\"a\", \"b c\"", ""), "host \"b c\""),
        (block("orders", "\"a\"", "engine = \"quorum\""), "there are huc"),
        (block("orders", "\"a\"", "engine = \"paxos\""), "no engine \"paxos\" here"),
        (block("orders", "\"a\"", "engine = \"lowi\"\npolicy = \"fence\""), "lowi cannot keep the policy fence"),
        (block("orders", "\"a\"", "policy = \"hope\""), "there are trust-contract, fence and witness"),
        (block("orders", "\"a\"", "policy = \"fence\""), "set mode in [fence]"),
        (block("orders", "\"a\"", "policy = \"witness\""), "set command in [witness]"),
        (block("orders", "\"a\"", "engine = \"lowi\"\npolicy = \"witness\""), "lowi cannot keep the policy witness"),
        (block("orders", "\"a\"", "") + &block("orders", "\"a\"", ""), "a second group of this name"),
        (block("orders", "\"a\"", "leader = \"a\""), "unknown field `leader`"),
        ("[[group]]\nname = \"orders\"\n".into(), "missing field `hosts`"),
        (many, "at most 64 groups"),
    ] {
        let why = of(&text).unwrap_err().to_string();
        assert!(why.contains(words) && why.contains("line "), "{words}: {why}");
    }
    let witness = "[witness]\ncommand = [\"/x\", \"off\"]\n";
    let with = of(&(block("orders", "\"a\"", "policy = \"witness\"") + witness)).unwrap();
    assert_eq!((with.groups[0].policy, with.witness.unwrap().timeout.as_secs()), (Some(Policy::Witness), 10));
    assert!(of(&block("orders", "\"b\", \"c\"", "policy = \"witness\"")).is_ok(), "it is elsewhere");
    for (line, words) in [
        ("timeout = \"99ms\"", "between \"100ms\" and \"10min\""),
        ("timeout = \"11min\"", "between \"100ms\" and \"10min\""),
        ("shell = true", "unknown field `shell`"),
    ] {
        let why = of(&format!("{witness}{line}\n")).unwrap_err().to_string();
        assert!(why.contains(words), "{why}");
    }
    assert!(of("[witness]\ncommand = [\"x\"]\n").unwrap_err().to_string().contains("absolute path"));
    assert!(of("[witness]\ntimeout = \"1s\"\n").unwrap_err().to_string().contains("missing field `command`"));
    assert_eq!(diff(&parse(""), &Config::parse(&node(&block("g", "\"a\"", ""))).unwrap()).live.names(), ["group"]);
}

#[test]
fn a_gate_says_what_becomes_of_its_connections() {
    use fide_agent::config::Connections;
    let gate = |line: &str| format!("[[gate]]\nname = \"db\"\ncgroup = \"/sys/fs/cgroup/db\"\n{line}");
    for (line, connections) in
        [("", Connections::End), ("connections = \"end\"", Connections::End), ("connections = \"keep\"", Connections::Keep)]
    {
        assert_eq!(parse(&gate(line)).gates[0].connections, connections);
    }
    let e = Config::parse(&node(&gate("connections = \"drop\""))).unwrap_err().to_string();
    assert!(e.contains("`end` or `keep`"), "{e}");
}

#[test]
fn a_full_file_is_understood() {
    let c = Config::parse(
        r#"
cluster = "prod"
cluster_id = 99
node = "db1"
zone = "rack-1"
heartbeat = "250us"
profile = "dedicated"
receive = "xdp-generic"
send = "udp"
dedicated = { cpu = 1 }
[[path]]
interface = "eth1"
[[path]]
interface = "eth2"
unicast = ["fd00::2", "fd00::3"]
address = "fd00::1"
[[watch]]
name = "redis"
unit = "redis-server.service"
[[watch]]
name = "web"
port = 80
user = "www-data"
containers = true
[metrics]
listen = "off"
[history]
path = "off"
[[hook]]
on = ["silent-host", "killed", "killed"]
match = "redis@*"
command = ["/bin/true", "x"]
timeout = "1.5s"
"#,
    )
    .unwrap();
    assert_eq!((c.cluster_id, c.heartbeat_ns, c.dedicated.cpu), (99, 250_000, Some(1)));
    assert_eq!((c.zone.as_str(), parse("").zone.as_str()), ("rack-1", ""));
    assert_eq!(c.paths[0].group, Some(default_group(0, false)));
    assert_eq!(c.paths[1].group, None);
    assert_eq!(c.paths[1].unicast.len(), 2);
    assert_eq!(c.watches[0].selector, Selector::Unit("redis-server.service".into()));
    assert_eq!(c.watches[1].selector, Selector::Port(80));
    assert_eq!((c.watches[0].user.clone(), c.watches[0].containers), (None, false));
    assert_eq!((c.watches[1].user.as_deref(), c.watches[1].containers), (Some("www-data"), true));
    assert_eq!((c.metrics, c.history.path), (None, None));
    assert_eq!(c.hooks[0].on, [Cause::Killed, Cause::SilentHost]);
    assert_eq!(c.hooks[0].timeout.as_millis(), 1500);
}

#[test]
fn ipv6_groups_are_the_default_when_asked_for() {
    let c = parse("ipv6 = true\n[[path]]\ninterface = \"e1\"\n[[path]]\ninterface = \"e2\"");
    assert_eq!(c.paths[0].group.unwrap().to_string(), "ff12::f1de:1");
    assert_eq!(c.paths[1].group.unwrap().to_string(), "ff12::f1de:2");
}

#[test]
fn one_path_is_allowed_with_a_loud_warning() {
    let c = parse("[[path]]\ninterface = \"e1\"");
    assert!(c.warnings.iter().any(|w| w.starts_with("ONLY ONE PATH (e1)")), "{:?}", c.warnings);
    assert!(!parse("[[path]]\ninterface = \"e1\"\n[[path]]\ninterface = \"e2\"").warnings.iter().any(|w| w.contains("PATH")));
}

#[test]
fn every_refusal_names_its_line_and_what_to_do() {
    let cases = [
        ("heartbet = \"1ms\"", "line 2 `heartbet = \"1ms\"`", "unknown field `heartbet`"),
        ("heartbeat = 1", "line 2", "a duration such as"),
        ("heartbeat = \"1 fortnight\"", "line 2", "is not a duration"),
        ("heartbeat = \"1us\"", "line 2", "between \"50us\" and \"4s\""),
        ("port = 0", "line 2", "3433"),
        ("port = 70000", "line 2", "70000"),
        ("profile = \"fast\"", "line 2", "`shared` or `dedicated`"),
        ("cluster_id = 0", "line 2", "reserved"),
        ("cluster = \"\"", "line 2", "`` cannot name a cluster"),
        ("zone = \"rack 1\"", "line 2", "cannot name a zone"),
        ("cluster = \"my cluster\"", "line 2", "cannot name a cluster"),
        ("\n[[path]]\ninterface = \"a/b\"", "line 4", "ip link"),
        ("[[path]]\ninterface = \"e1\"\ngroup = \"10.0.0.1\"", "line 2", "not a multicast"),
        ("[[path]]\ninterface = \"e1\"\ngroup = \"nowhere\"", "line 4", "not an IP address"),
        ("[[path]]\ninterface = \"e1\"\nunicast = [\"10.0.0.1\", \"fd00::1\"]", "line 2", "mix IPv4 and IPv6"),
        ("[[path]]\ninterface = \"e1\"\nanswerers = [\"127.0.0.1\"]", "line 2", "name a router"),
        ("[[path]]\ninterface = \"e1\"\naddress = \"10.0.0.1\"\nanswerers = [\"10.0.0.1\"]", "line 2", "nobody else"),
        ("[[path]]\ninterface = \"e1\"\nanswerers = [\"10.0.0.1\", \"239.1.2.3\"]", "line 2", "nobody else"),
        ("[[path]]\ninterface = \"e1\"\n[[path]]\ninterface = \"e1\"", "line 4", "share a cable"),
        ("[[path]]\ninterface = \"1\"\n[[path]]\ninterface = \"2\"\n[[path]]\ninterface = \"3\"", "line 6", "more than 2"),
        ("[[watch]]\nname = \"x\"", "line 2", "exactly one of"),
        ("[[watch]]\nname = \"x\"\npid = 1\nport = 2", "line 2", "exactly one of"),
        ("[[watch]]\nname = \"x y\"\npid = 1", "line 3", "cannot name a process"),
        ("[[watch]]\nname = \"x\"\nprocess = \"y\"\nuser = \"\"", "line 2", "user = \"redis\""),
        ("[[watch]]\nname = \"x\"\nunit = \"y\"\ncontainers = true", "line 2", "by its name or port"),
        ("[[watch]]\nname = \"x\"\npid = 1\n[[watch]]\nname = \"x\"\npid = 2", "line 5", "unique"),
        ("[[watch]]\nname = \"x\"\npid = 1\nprogress = { limit = \"5s\" }", "line 5", "exactly one of command, file and write"),
        (
            "[[watch]]\nname = \"x\"\npid = 1\nprogress = { limit = \"5s\", file = \"/f\", write = \"/g\" }",
            "line 5",
            "exactly one of command, file and write",
        ),
        ("[[watch]]\nname = \"x\"\npid = 1\nprogress = { limit = \"5s\", file = \"f\" }", "line 5", "absolute path"),
        ("[[watch]]\nname = \"x\"\npid = 1\nprogress = { limit = \"5ms\", file = \"/f\" }", "line 5", "fide_progress_open"),
        ("[[watch]]\nname = \"x\"\npid = 1\nprogress = { file = \"/f\" }", "line 5", "limit"),
        ("[[watch]]\nname = \"x\"\npid = 1\nprogress = { limit = \"5s\", cpu = true }", "line 5", "unknown field `cpu`"),
        ("[keys]\nsend = { id = 0, file = \"/k\" }", "line 2", "outside 1 to 15"),
        ("[keys]\nsend = { id = 1, file = \"k\" }", "line 2", "absolute"),
        ("[keys]\nsend = { id = 1, file = \"/k\" }\naccept = { id = 1, file = \"/l\" }", "line 2", "same id"),
        ("[[hook]]\non = [\"failed\"]\ncommand = [\"/x\"]", "line 3", "silent-host"),
        ("[[hook]]\non = [\"failure\"]\ncommand = [\"x\"]", "line 4", "not an absolute path"),
        ("[[hook]]\non = [\"failure\"]\ncommand = []", "line 4", "empty command"),
        ("[[hook]]\non = []\ncommand = [\"/x\"]", "line 2", "never runs"),
        ("[[hook]]\non = [\"any\"]\ncommand = [\"/x\"]\ntimeout = \"0s\"", "line 5", "10ms"),
        ("[[hook]]\non = [\"any\"]\ncommand = [\"/x\"]\nmatch = \"redis\"", "line 2", "redis@*"),
        ("[[hook]]\non = [\"hung\"]", "line 2", "does nothing"),
        ("[[hook]]\non = [\"hung\"]\naction = \"restart\"", "line 4", "`run`, `kill`, `fence`"),
        ("[[hook]]\non = [\"hung\"]\naction = \"fence\"", "line 2", "set mode and cgroups in [fence]"),
        ("[[hook]]\non = [\"failure\"]\naction = \"kill\"", "line 2", "only what is hung can be killed"),
        ("[[hook]]\non = [\"hung\"]\naction = \"kill\"\ncommand = [\"/x\"]", "line 2", "a [[hook]] of its own"),
        ("[[hook]]\non = [\"failure\"]\ncommand = [\"/x\"]\ngrade = [\"sure\"]", "line 5", "`certain`"),
        ("[[hook]]\non = [\"failure\"]\ncommand = [\"/x\"]\ncause = [\"left\"]", "line 2", "never runs"),
        ("[socket]\nmode = \"999\"", "line 3", "0660"),
        ("[history]\nmax_bytes = \"1KiB\"", "line 3", "64KiB"),
        ("[metrics]\nlisten = \"9433\"", "line 3", "127.0.0.1:9433"),
        ("[http]\nlisten = \"0.0.0.0:9434\"", "line 2", "openssl rand"),
        ("[http]\npage = true", "line 2", "needs listen"),
        ("[http]\npages = true", "line 3", "unknown field"),
        ("[contract]\ndelta_max = \"1ms\"\ndelta_floor = \"1ms\"", "line 2", "one or the other"),
        ("[contract]\ndelta_floor = \"2ms\"\ndelta_ceiling = \"1ms\"", "line 2", "swap"),
        ("heartbeat = \"1s\"\n[detector]\nagent_timeout = \"1s\"", "line 4", "two heartbeats"),
        ("[access]\nfence = []", "line 3", "unknown field"),
        ("[access]\ngroups = \"alice\"", "line 3", "a table with a line for each group"),
        ("[access.groups]\norders = \"alice\"", "line 3", "a list of users"),
        ("[access.groups]\norders = { write = [] }", "line 3", "unknown field `write`, expected one of `open`, `propose`"),
        ("[access.groups]\n\"a*b\" = []", "line 3", "only stand at the end"),
        ("[access.groups]\n\"a**\" = []", "line 3", "only stand at the end"),
        ("[access.groups]\n\"\" = []", "line 3", "names no group"),
        ("[access.groups]\n\"a\\tb\" = []", "line 3", "names no group"),
    ];
    for (text, line, what) in cases {
        let said = refusal(text);
        assert!(said.starts_with(&format!("{line} ")) || said.starts_with(&format!("{line}:")), "{text}\n→ {said}");
        assert!(said.contains(what), "{text}\n→ {said}\nshould say {what}");
    }
}

#[test]
fn durations_and_sizes_are_exact() {
    for (text, ns) in
        [("0ns", 0), ("1ms", 1_000_000), ("250us", 250_000), ("250 µs", 250_000), ("1.5s", 1_500_000_000), ("0.000000001s", 1)]
    {
        assert_eq!(duration_ns(text), Ok(ns), "{text}");
    }
    for bad in ["", "1", "ms", "-1ms", "1e3s", "1..2s", ".5s", "1.s", "99999999999999999999s", "18446744073709551615s", "+1s"] {
        assert!(duration_ns(bad).is_err(), "{bad}");
    }
    for (text, bytes) in [("16MiB", 16 << 20), ("1.5KiB", 1536), ("10", 10), ("2GB", 2_000_000_000)] {
        assert_eq!(size_bytes(text), Ok(bytes), "{text}");
    }
    assert!(size_bytes("16 bits").is_err());
}

#[test]
fn a_reload_takes_over_what_it_can_and_names_the_rest() {
    let old = parse("[[watch]]\nname = \"x\"\npid = 1\n[[watch]]\nname = \"y\"\npid = 2");
    assert!(diff(&old, &old).is_empty());
    let new = parse(
        "heartbeat = \"2ms\"\n[[watch]]\nname = \"x\"\npid = 3\n[[watch]]\nname = \"y\"\npid = 2\n[[hook]]\non = [\"any\"]\ncommand = [\"/x\"]",
    );
    let changes = diff(&old, &new);
    assert_eq!(changes.live.watches_added.len(), 1);
    assert_eq!(changes.live.watches_removed[0].selector, Selector::Pid(1));
    assert_eq!((changes.live.names(), changes.needs_restart), (vec!["watch", "hook"], vec!["heartbeat".into()]));
    for other in ["user = \"1000\"", "containers = true"] {
        let of = |more: &str| parse(&format!("[[watch]]\nname = \"x\"\nprocess = \"y\"\n{more}"));
        assert_eq!(diff(&of(""), &of(other)).live.watches_added.len(), 1, "{other}");
    }
    let mut running = old.clone();
    running.take_live(&new);
    assert_eq!(running.heartbeat_ns, old.heartbeat_ns);
    let left = diff(&running, &new);
    assert!(left.live.names().is_empty());
    assert_eq!(left.needs_restart, ["heartbeat"]);
}

#[test]
fn an_agent_may_say_in_which_time_it_will_be_back() {
    let of = |within: &str| parse(&format!("restart_within = \"{within}\""));
    for (within, expected) in [
        ("auto", RestartWithin::Auto),
        ("0s", RestartWithin::Ms(0)),
        ("10s", RestartWithin::Ms(10_000)),
        ("60s", RestartWithin::Ms(60_000)),
    ] {
        assert_eq!(of(within).restart_within, expected);
    }
    assert_eq!(parse("").restart_within, RestartWithin::Auto);
    let mut running = parse("");
    let changes = diff(&running, &of("10s"));
    assert_eq!((changes.live.names(), changes.needs_restart), (vec!["restart_within"], vec![]));
    running.take_live(&of("10s"));
    assert_eq!(running.restart_within, RestartWithin::Ms(10_000));
    let refused = Config::parse("cluster = \"c\"\nnode = \"a\"\nrestart_within = \"61s\"").unwrap_err();
    assert!(refused.to_string().contains("at most \"60s\""), "{refused}");
}

#[test]
fn the_packaged_example_names_what_a_reload_takes_over() {
    let head = EXAMPLE.split("\n\n").next().unwrap().replace("\n# ", " ");
    let (_, said) = head.split_once("takes over changes of ").unwrap();
    let (said, _) = said.split_once("; everything else waits for a restart").unwrap();
    let mut said: Vec<_> = said.split([',', ' ']).filter(|w| !w.is_empty() && *w != "and").collect();
    said.iter_mut().for_each(|w| *w = w.trim_matches(['[', ']']));
    said.sort_unstable();
    let all = "restart_within = \"9s\"\n[[watch]]\nname = \"x\"\npid = 1\n[contract]\ndelta_max = \"1ms\"\n[detector]\nagent_timeout = \"3s\"\n[socket]\nmode = \"0600\"\n\
               [access]\nread = []\n[metrics]\nlisten = \"off\"\n[http]\nlisten = \"[::1]:1\"\n[history]\nmax_bytes = \"1MiB\"\n[[hook]]\non = [\"any\"]\ncommand = [\"/x\"]\n\
               [[group]]\nname = \"g\"\nhosts = [\"a\"]\n[witness]\ncommand = [\"/x\"]\n[keys]\nsend = { id = 1, file = \"/k\" }";
    let changes = diff(&parse(""), &parse(all));
    let mut live = changes.live.names();
    live.sort_unstable();
    assert_eq!(said, live);
    assert_eq!(changes.needs_restart, ["detector"]);
}

#[test]
fn a_token_is_a_secret_of_a_sensible_length() {
    use fide_agent::config::Token;
    let token = Token::parse("  0123456789abcdef\n").unwrap();
    assert!(token.is("0123456789abcdef") && !format!("{token:?}").contains("0123"));
    for other in ["", "0", "0123456789abcdeg", "0123456789abcdef0", "0123456789abcde", "0123456789abcdef0123456789abcdef"] {
        assert!(!token.is(other), "{other}");
    }
    for (bad, says) in [("short", "5 characters"), ("with a space in it", "' '"), (&"x".repeat(257), "257")] {
        assert!(Token::parse(bad).unwrap_err().contains(says), "{bad}");
    }
    let dir = tempfile::tempdir().unwrap();
    let (file, secret) = (dir.path().join("fide.toml"), dir.path().join("token"));
    let text =
        format!("node = \"a\"\npath = [{{ interface = \"lo\" }}]\nhttp = {{ listen = \"0.0.0.0:1\", token = {secret:?} }}\n");
    std::fs::write(&file, text).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(Config::load(&file).unwrap_err().to_string().contains("make one with"));
    std::fs::write(&secret, "0123456789abcdef\n").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(Config::load(&file).unwrap_err().to_string().contains("chmod 600"));
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let config = Config::load(&file).unwrap();
    assert!(config.http.token.as_ref().is_some_and(|t| t.is("0123456789abcdef")));
    assert!(config.doubts().iter().any(|d| d.contains("in the clear")));
}

#[test]
fn a_check_doubts_what_this_host_does_not_have() {
    let text = "node = \"a\"\n[[path]]\ninterface = \"lo\"\ngroup = \"ff12::1\"\n[[path]]\ninterface = \"no-such-if\"\n\
                [socket]\ngroup = \"no-such-group\"\n[access]\nwatch_others = [\"%no-such-ops\"]\nmonitor = [\"no-such-a\"]\n\
                read = [\"no-such-b\", \"root\"]\nreload = [\"no-such-c\"]\ngroups = [\"root\"]\n[metrics]\nlisten = \"0.0.0.0:9433\"\n\
                [http]\nlisten = \"127.0.0.1:9433\"\n";
    let doubts = [
        "http.listen: 127.0.0.1:9433 asks for no token",
        "lo uses the IPv6 group ff12::1, but ipv6 = false",
        "no interface no-such-if",
        "socket.group: this host has no group `no-such-group`",
        "metrics.listen: 0.0.0.0:9433 is not a loopback address",
        "access.watch_others: this host has no group `no-such-ops`",
        "access.monitor: this host has no user `no-such-a`",
        "access.read: this host has no user `no-such-b`",
        "access.reload: this host has no user `no-such-c`",
        "access.groups: this list names no groups, so it grants nothing",
    ];
    // As an operator sees it: all of them said, and none an error.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("fide.toml");
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let mut fided = std::process::Command::new(env!("CARGO_BIN_EXE_fided"));
        let o = fided.arg("--check").arg("--config").arg(&file).env_remove("FIDE_LOG").output().unwrap();
        let said = String::from_utf8_lossy(&o.stderr).into_owned();
        assert!(o.status.success(), "{said}");
        said
    };
    let said = check(text);
    for doubt in doubts {
        assert!(said.contains(doubt), "{doubt}\n{said}");
    }
    let said = check(&format!("ipv6 = true\n{}", text.replace("no-such-group", "root").replace("no-such-if", "lo1")));
    assert!(!said.contains("IPv6 group") && !said.contains("socket.group"), "{said}");
    // A group that was not asked for need not be there.
    assert!(!check("node = \"a\"\n[[path]]\ninterface = \"lo\"\n").contains("socket.group"));
}

#[test]
fn a_check_says_what_the_period_costs() {
    let cost = |text: &str| parse(text).cost();
    let two = "[[path]]\ninterface = \"a0\"\n[[path]]\ninterface = \"a1\"\n";
    let said = cost(&format!("heartbeat = \"1ms\"\n{two}"));
    assert!(
        said.starts_with(
            "heartbeats every 1 ms on 2 paths take about 2.6 % of a processor to send, and about 0.1 % for each other host"
        ),
        "{said}"
    );
    assert!(said.contains("(10 % for 100 hosts)"), "{said}");
    let said = cost("heartbeat = \"100ms\"\n[[path]]\ninterface = \"a0\"\n");
    assert!(said.contains("every 100 ms on 1 path take about 0.08 %") && said.contains("about 0.0005 % for each"), "{said}");
    let said = cost(&format!("profile = \"dedicated\"\n{two}"));
    assert!(said.contains("take the processor that profile = \"dedicated\" gives them, and"), "{said}");
}

#[test]
fn a_check_doubts_a_hook_that_would_promote_on_silence_alone() {
    let doubts = |hook: &str, rest: &str| {
        let config = parse(&format!("[[hook]]\ncommand = [\"/bin/promote\"]\n{hook}\n{rest}"));
        config.doubts().into_iter().filter(|d| d.contains("/bin/promote")).collect::<Vec<_>>()
    };
    let fence = "[fence]\nmode = \"sent\"";
    let unsafe_ones = doubts("on = [\"failure\"]", "");
    assert_eq!(unsafe_ones.len(), 1);
    for part in ["silent-host", "inferred", "grade = [\"certain\", \"fenced\"]", "[fence]"] {
        assert!(unsafe_ones[0].contains(part), "{part}: {unsafe_ones:?}");
    }
    assert_eq!(doubts("on = [\"silent-host\"]", "").len(), 1);
    for fine in [
        "on = [\"killed\"]",
        "on = [\"any\"]",
        "on = [\"failure\"]\ncause = [\"killed\"]",
        "on = [\"failure\"]\ngrade = [\"certain\"]",
        "on = [\"failure\"]\ngrade = [\"certain\", \"inferred\"]",
    ] {
        assert_eq!(doubts(fine, ""), Vec::<String>::new(), "{fine}");
    }
    let fenced = "on = [\"failure\"]\ngrade = [\"certain\", \"fenced\"]";
    assert!(doubts(fenced, "")[0].contains("never runs when a host fails"), "no fence anywhere");
    assert_eq!(doubts(fenced, fence), Vec::<String>::new());
    assert_eq!(doubts("on = [\"failure\"]", fence), Vec::<String>::new());
}

#[test]
fn key_files_that_others_can_read_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key1");
    let file = dir.path().join("fide.toml");
    let text = format!("[[path]]\ninterface = \"e1\"\n[keys]\nsend = {{ id = 1, file = {:?} }}", key.to_str().unwrap());
    std::fs::write(&file, node(&text)).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let said = Config::load(&file).unwrap_err().to_string();
    assert!(said.contains("openssl rand -hex 16"), "{said}");

    std::fs::write(&key, "00112233445566778899aabbccddeeff\n").unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let said = Config::load(&file).unwrap_err().to_string();
    assert!(said.contains("chmod 600") && said.contains("forge"), "{said}");

    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    let first = Config::load(&file).unwrap();
    assert!(first.keyring.is_secret());

    std::fs::write(&key, "ffeeddccbbaa99887766554433221100\n").unwrap();
    assert!(diff(&first, &Config::load(&file).unwrap()).live.keys, "a key replaced in its file is a change");

    std::fs::write(&key, "not a key").unwrap();
    let said = Config::load(&file).unwrap_err().to_string();
    assert!(said.contains("32 hexadecimal digits") && !said.contains("not a key"), "{said}");

    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    let said = Config::load(&file).unwrap_err().to_string();
    assert!(said.contains("chmod o-w"), "{said}");
    let said = Config::load(&dir.path().join("none")).unwrap_err().to_string();
    assert!(said.contains("--config"), "{said}");
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,200}") {
        let _ = Config::parse(&text);
    }

    #[test]
    fn no_bytes_in_a_real_file_make_it_panic(
        at in 0usize..EXAMPLE.len(), cut in 0usize..40, insert in "[\\[\\]{}\"'=#a-z0-9.\n\\\\é]{0,12}",
    ) {
        let bytes = EXAMPLE.replace("# ", "").into_bytes();
        let at = at.min(bytes.len());
        let mut text = bytes[..at].to_vec();
        text.extend_from_slice(insert.as_bytes());
        text.extend_from_slice(&bytes[(at + cut).min(bytes.len())..]);
        let _ = Config::parse(&String::from_utf8_lossy(&text));
    }

    #[test]
    fn values_of_any_type_anywhere_are_refused_not_fatal(
        key in "(cluster|cluster_id|node|zone|heartbeat|port|ipv6|profile|path|watch|keys|socket|access|metrics|history|hook|contract|detector|dedicated)",
        value in "(1|-1|1\\.5|true|\"\"|\"1ms\"|\\[\\]|\\[1\\]|\\{\\}|\\[\\{\\}\\]|\\{ a = 1 \\}|99999999999999999999|1979-05-27)",
    ) {
        let _ = Config::parse(&format!("{key} = {value}"));
    }
}

#[test]
fn b10_a_reload_with_another_probe_keeps_the_watch() {
    let text = |probe: &str| format!("[[watch]]\nname = \"db\"\npid = 7\n{probe}\n[[watch]]\nname = \"web\"\nport = 80\n");
    let with = |probe: &str| parse(&text(&format!("progress = {{ limit = \"5s\", {probe} }}")));
    let plain = parse(&text(""));
    let connections = parse(&text("end_connections = [5432]"));
    for (old, new) in [
        (&plain, &with("file = \"/f\"")),
        (&with("file = \"/f\""), &with("write = \"/f\"")),
        (&with("file = \"/f\""), &plain),
        (&plain, &connections),
        (&connections, &parse(&text("end_connections = [5432, 5433]"))),
    ] {
        let changes = diff(old, new);
        assert!(changes.live.watches_added.is_empty() && changes.live.watches_removed.is_empty());
        assert_eq!(changes.live.tended.iter().map(|w| w.name.as_str()).collect::<Vec<_>>(), ["db"]);
        assert_eq!(changes.live.names(), ["watch"]);
    }
    assert!(diff(&plain, &plain.clone()).is_empty());
}
