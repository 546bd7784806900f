//! The topology file: TOML, every quantity with its unit.
//!
//! ```toml
//! name = "two racks"
//!
//! [defaults]                 # every link, unless it says otherwise
//! bandwidth = "10Gbit/s"
//! queue = "256KiB"           # the lane's egress queue, at each end
//! lambda_min = "1us"         # least delay, without queueing
//! delta_max = "500ns"        # what the delay may exceed that
//! blocking = "1538B"         # largest frame of lower priority; 0B where ports preempt
//! shared = "0B"              # of other services in the lane's priority queue
//!
//! [defaults.host]            # links of hosts: NIC, kernel and scheduler are in these
//! lambda_min = "5us"
//! delta_max = "20us"
//!
//! [[switch]]
//! name = "s[1-2]"            # s1 and s2
//! core = false               # a switch of the highest level (failure statistics)
//! risks = ["pdu-a"]          # what it fails with
//!
//! [[host]]
//! name = "h[1-8]"
//! switches = ["s1", "s2"]    # a link to each
//!
//! [[link]]                   # a link that is special, or between switches
//! between = ["h9:eth0", "s1"]
//! bandwidth = "1Gbit/s"
//! certain = false            # its bounds are not known: a line that strangers share
//! risks = ["duct-3"]
//! ```

use crate::topology::{Link, LinkSpec, NAME_MAX, NODES_MAX, Node, NodeId, NodeKind, Topology, TopologyError};
use crate::units;
use serde::Deserialize;

/// Longest file, bytes.
pub const FILE_MAX: usize = 16 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Option<String>,
    #[serde(default)]
    defaults: Defaults,
    #[serde(default)]
    switch: Vec<Switch>,
    #[serde(default)]
    host: Vec<Host>,
    #[serde(default)]
    link: Vec<Wire>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Defaults {
    bandwidth: Option<String>,
    queue: Option<String>,
    lambda_min: Option<String>,
    delta_max: Option<String>,
    blocking: Option<String>,
    shared: Option<String>,
    host: Option<Quantities>,
}

#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields)]
struct Quantities {
    bandwidth: Option<String>,
    queue: Option<String>,
    lambda_min: Option<String>,
    delta_max: Option<String>,
    blocking: Option<String>,
    shared: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Switch {
    name: String,
    #[serde(default)]
    core: bool,
    #[serde(default)]
    risks: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Host {
    name: String,
    #[serde(default)]
    switches: Vec<String>,
    #[serde(default)]
    risks: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    between: Vec<String>,
    bandwidth: Option<String>,
    queue: Option<String>,
    lambda_min: Option<String>,
    delta_max: Option<String>,
    blocking: Option<String>,
    shared: Option<String>,
    #[serde(default = "yes")]
    certain: bool,
    #[serde(default)]
    risks: Vec<String>,
}

fn yes() -> bool {
    true
}

/// Reads a topology.
///
/// # Errors
/// What is wrong in the text, with the line where TOML itself is broken, and what to do.
pub fn parse(text: &str) -> Result<Topology, TopologyError> {
    if text.len() > FILE_MAX {
        return Err(TopologyError::new(
            format!("the file has {} bytes, and {FILE_MAX} are the most that is read", text.len()),
            "write hosts that are alike in one entry: name = \"h[1-500]\"",
        ));
    }
    let file: File = toml::from_str(text).map_err(|e| toml_error(text, &e))?;
    let mut topology = Topology::new(title(file.name)?);
    let defaults = Quantities {
        bandwidth: file.defaults.bandwidth,
        queue: file.defaults.queue,
        lambda_min: file.defaults.lambda_min,
        delta_max: file.defaults.delta_max,
        blocking: file.defaults.blocking,
        shared: file.defaults.shared,
    };
    let switch_spec = defaults.over(LinkSpec::SWITCH, "[defaults]")?;
    // Delays of hosts differ from those of switches, so [defaults] does not touch them.
    let plain = Quantities { lambda_min: None, delta_max: None, ..defaults };
    let host_spec = plain.over(LinkSpec::HOST, "[defaults]")?;
    let host_spec = file.defaults.host.unwrap_or_default().over(host_spec, "[defaults.host]")?;
    for switch in file.switch {
        let kind = if switch.core { NodeKind::CoreSwitch } else { NodeKind::Switch };
        add_nodes(&mut topology, &switch.name, kind, &switch.risks)?;
    }
    for host in file.host {
        let switches = host.switches.iter().map(|name| known(&topology, name, &host.name));
        let switches: Vec<NodeId> = switches.collect::<Result<_, _>>()?;
        for id in add_nodes(&mut topology, &host.name, NodeKind::Host, &host.risks)? {
            for switch in &switches {
                let link = Link { a: (id, None), b: (*switch, None), spec: host_spec, risks: Vec::new() };
                topology.add_link(link)?;
            }
        }
    }
    for (at, wire) in file.link.into_iter().enumerate() {
        add_wire(&mut topology, wire, at + 1, switch_spec, host_spec)?;
    }
    complete(topology)
}

/// What is said in text only where the parser of TOML itself refuses.
fn toml_error(text: &str, error: &toml::de::Error) -> TopologyError {
    let line = error.span().map(|span| 1 + text[..span.start.min(text.len())].matches('\n').count());
    let place = line.map_or_else(String::new, |line| format!("line {line}: "));
    let ends = error.span().is_some_and(|span| span.end >= text.trim_end().len());
    let hint = if ends {
        "the text ends there: if the file was cut short, copy it again"
    } else {
        "the keys are in `man fide-plan` and in docs/plan.md"
    };
    let message: String = error.message().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    TopologyError::new(format!("{place}{message}"), hint)
}

fn title(name: Option<String>) -> Result<String, TopologyError> {
    let name = name.unwrap_or_else(|| "the network".into());
    if name.chars().count() > NAME_MAX || name.chars().any(char::is_control) {
        return Err(TopologyError::new(
            format!("the network's name has control characters or more than {NAME_MAX} characters"),
            "write a short one: name = \"two racks\"",
        ));
    }
    Ok(name)
}

/// A file without hosts or switches plans nothing.
fn complete(topology: Topology) -> Result<Topology, TopologyError> {
    let lacks = |what: &str| {
        Err(TopologyError::new(
            format!("the file has no {what}: an empty file, one that was cut short, or another kind of file"),
            "an example is in docs/plan.md",
        ))
    };
    if topology.switches().next().is_none() {
        return lacks("[[switch]]");
    }
    if topology.hosts().next().is_none() {
        return lacks("[[host]]");
    }
    Ok(topology)
}

impl Quantities {
    /// These in the place of those of `base`.
    fn over(&self, base: LinkSpec, place: &str) -> Result<LinkSpec, TopologyError> {
        let wrong = |key: &str, why: String| {
            let hint = "write a number and its unit: \"10Gbit/s\", \"256KiB\", \"500ns\"";
            TopologyError::new(format!("{place}: {key}: {why}"), hint)
        };
        let read = |text: &Option<String>, key: &str, or: u64, parse: fn(&str) -> Result<u64, String>| {
            text.as_ref().map_or(Ok(or), |text| parse(text).map_err(|why| wrong(key, why)))
        };
        Ok(LinkSpec {
            bandwidth_bps: read(&self.bandwidth, "bandwidth", base.bandwidth_bps, units::parse_bandwidth)?,
            queue_bytes: read(&self.queue, "queue", base.queue_bytes, units::parse_bytes)?,
            lambda_min_ns: read(&self.lambda_min, "lambda_min", base.lambda_min_ns, units::parse_time)?,
            delta_max_ns: read(&self.delta_max, "delta_max", base.delta_max_ns, units::parse_time)?,
            blocking_bytes: read(&self.blocking, "blocking", base.blocking_bytes, units::parse_bytes)?,
            shared_bytes: read(&self.shared, "shared", base.shared_bytes, units::parse_bytes)?,
            certain: base.certain,
        })
    }
}

/// Adds a node, or those of a range such as `h[1-8]`.
fn add_nodes(topology: &mut Topology, name: &str, kind: NodeKind, risks: &[String]) -> Result<Vec<NodeId>, TopologyError> {
    risks.iter().try_for_each(|risk| crate::topology::check_name(risk))?;
    let node = |name: String| Node { name, kind, risks: risks.to_vec() };
    expand(name)?.into_iter().map(|name| topology.add_node(node(name))).collect()
}

/// `h[1-3]` is h1, h2, h3.
///
/// # Errors
/// The range is none, or longer than a topology may be.
pub fn expand(name: &str) -> Result<Vec<String>, TopologyError> {
    let Some((head, rest)) = name.split_once('[') else { return Ok(vec![name.to_owned()]) };
    let range = rest.split_once(']').and_then(|(range, tail)| Some((range.split_once('-')?, tail)));
    let parsed = range.and_then(|((first, last), tail)| Some((first.parse::<u32>().ok()?, last.parse::<u32>().ok()?, tail)));
    let refuse = |why: &str| {
        let shown: String = name.escape_debug().take(NAME_MAX).collect();
        Err(TopologyError::new(format!("\"{shown}\" {why}"), "write for example name = \"h[1-8]\""))
    };
    match parsed {
        Some((first, last, _)) if first > last => refuse("is a range that ends before it begins"),
        Some((first, last, _)) if (last - first) as usize >= NODES_MAX => {
            refuse(&format!("is a range of more than {NODES_MAX} names"))
        }
        Some((first, last, tail)) => Ok((first..=last).map(|n| format!("{head}{n}{tail}")).collect()),
        None => refuse("has a bracket and is no range"),
    }
}

fn add_wire(
    topology: &mut Topology,
    wire: Wire,
    number: usize,
    switch_spec: LinkSpec,
    host_spec: LinkSpec,
) -> Result<(), TopologyError> {
    let place = format!("link {number}");
    let [a, b] = wire.between.as_slice() else {
        return Err(TopologyError::new(
            format!("{place} has {} ends: between = {:?}", wire.between.len(), wire.between),
            "a link has two: between = [\"h1:eth0\", \"s1\"]",
        ));
    };
    let end = |text: &str| -> Result<(NodeId, Option<String>), TopologyError> {
        let (name, nic) = text.split_once(':').map_or((text, None), |(name, nic)| (name, Some(nic.to_owned())));
        Ok((known(topology, name, &place)?, nic))
    };
    let (a, b) = (end(a)?, end(b)?);
    let host = topology.is_host(a.0) || topology.is_host(b.0);
    let quantities = Quantities {
        bandwidth: wire.bandwidth,
        queue: wire.queue,
        lambda_min: wire.lambda_min,
        delta_max: wire.delta_max,
        blocking: wire.blocking,
        shared: wire.shared,
    };
    let mut spec = quantities.over(if host { host_spec } else { switch_spec }, &place)?;
    spec.certain = wire.certain;
    wire.risks.iter().try_for_each(|risk| crate::topology::check_name(risk))?;
    topology.add_link(Link { a, b, spec, risks: wire.risks }).map(|_| ())
}

/// A node that something names.
fn known(topology: &Topology, name: &str, by: &str) -> Result<NodeId, TopologyError> {
    topology.find(name).ok_or_else(|| {
        let shown: String = name.escape_debug().take(NAME_MAX).collect();
        let close = topology.nodes().map(|id| topology.name_of(id)).find(|known| known.eq_ignore_ascii_case(name));
        let hint = close.map_or_else(
            || "define it as a [[switch]] or [[host]], switches first".to_owned(),
            |close| format!("did you mean {close}?"),
        );
        TopologyError::new(format!("{by} names {shown}, which is neither a switch nor a host"), hint)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
name = "two racks"
[defaults]
bandwidth = "1Gbit/s"
delta_max = "2us"
[defaults.host]
delta_max = "30us"
[[switch]]
name = "s[1-2]"
risks = ["pdu-a"]
[[host]]
name = "h[1-3]"
switches = ["s1", "s2"]
[[link]]
between = ["s1", "s2"]
bandwidth = "40Gbit/s"
certain = false
[[link]]
between = ["h1:mgmt", "s1"]
lambda_min = "9us"
"#;

    #[test]
    fn what_is_written_is_what_is_planned_with() {
        let t = parse(GOOD).unwrap();
        assert_eq!((t.name.as_str(), t.hosts().count(), t.link_count()), ("two racks", 3, 8));
        let spec = |at: u32| t.link(crate::topology::LinkId::from(petgraph::graph::EdgeIndex::new(at as usize))).spec;
        assert_eq!((spec(0).bandwidth_bps, spec(0).lambda_min_ns, spec(0).delta_max_ns), (1_000_000_000, 5_000, 30_000));
        assert_eq!((spec(6).bandwidth_bps, spec(6).delta_max_ns, spec(6).certain), (40_000_000_000, 2_000, false));
        assert_eq!((spec(7).lambda_min_ns, spec(7).certain), (9_000, true));
        assert_eq!(t.link_name(t.links().last().unwrap()), "h1:mgmt – s1");
        assert_eq!(t.risks()["pdu-a"].0.len(), 2);
    }

    #[test]
    fn every_mistake_is_named_with_what_to_do() {
        let with = |more: &str| format!("[[switch]]\nname = \"s1\"\n[[host]]\nname = \"h1\"\nswitches = [\"s1\"]\n{more}");
        let cases = [
            (String::new(), "no [[switch]]"),
            ("[[switch]]\nname=\"s1\"".into(), "no [[host]]"),
            ("[[switch]\nname=\"s1\"".into(), "line 1"),
            (with("[[link]]\nbetween=[\"s1\",\"s1\"]"), "self-loop"),
            (with("[[link]]\nbetween=[\"s1\",\"s2\"]"), "names s2"),
            (with("[[link]]\nbetween=[\"s1\"]"), "1 ends"),
            (with("[[switch]]\nname=\"h1\""), "switch named h1"),
            (with("[[host]]\nname=\"h1\""), "host named h1"),
            (with("[[host]]\nname=\"h2\"\nswitches=[\"S1\"]"), "names S1"),
            (with("[[link]]\nbetween=[\"h1\",\"s1\"]\nbandwidth=\"10\""), "link 1: bandwidth"),
            (with("[[link]]\nbetween=[\"h1\",\"s1\"]\nbandwidth=\"10Gbps/h\""), "link 1: bandwidth"),
            (with("[[link]]\nbetween=[\"h1\",\"s1\"]\nlambda_min=\"-1us\""), "link 1: lambda_min"),
            (with("[[link]]\nbetween=[\"h1\",\"s1\"]\nspeed=\"1Gbit/s\""), "speed"),
            (with("[[link]]\nbetween=[\"h1\",\"s1\"]\nbandwidth=10"), "line 8"),
            (with("[[host]]\nname=\"h[9-1]\""), "ends before it begins"),
            (with("[[host]]\nname=\"h[1-99999999]\""), "more than"),
            (with("[[host]]\nname=\"h[x]\""), "no range"),
            (with("[[host]]\nname=\"h\\u001b[1m\""), "bracket"),
            (with("[[host]]\nname=\"\""), "cannot be a name"),
        ];
        for (text, why) in cases {
            let refused = parse(&text).map(|_| ()).unwrap_err();
            assert!(refused.what.contains(why), "{why:?} not in {:?}\n{text}", refused.what);
            assert!(!refused.hint.is_empty());
            assert!(!refused.what.chars().any(|c| c.is_control()), "{refused:?}");
        }
    }

    #[test]
    fn a_file_cut_short_anywhere_is_refused_or_is_a_smaller_network() {
        for end in 0..GOOD.len() {
            match parse(&GOOD[..end]) {
                Ok(t) => assert!(t.hosts().count() <= 3),
                Err(refused) => assert!(!refused.what.is_empty() && !refused.hint.is_empty(), "{end}"),
            }
        }
    }
}
