//! `fide plan`: what a network can promise, before anything is installed.

use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::render::plan as render;
use clap::Args;
use fide_te::ccf;
use fide_te::fabric::{Fabric, Limits};
use fide_te::file;
use fide_te::generate::{self, Generator};
use fide_te::plan::{Contract, Plan, PlanError, Redundancy, Request, Set, wire_bytes};
use fide_te::search::Effort;
use fide_te::survey::{self, Element, Survey};
use fide_te::topology::{LinkId, NodeId, Topology, TopologyError};
use serde::Serialize;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A heartbeat without piggyback: IP header and all that follows.
const HEARTBEAT_IP_BYTES: u64 = 20 + fide_wire::packet::HEARTBEAT_OVERHEAD as u64;

/// Its arguments.
#[derive(Debug, Args)]
#[command(after_help = notes())]
pub struct PlanArgs {
    /// A topology file, or a generator with its size, such as fat-tree:16
    #[arg(value_name = "TOPOLOGY")]
    pub topology: String,
    /// Which hosts take part, such as `h1,h4,h[7-9]` [default: all]
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    pub hosts: Vec<String>,
    /// The heartbeat interval, such as 100us
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = heartbeat)]
    pub hb: u64,
    /// Bytes of a packet with its IP header: a heartbeat without piggyback, or up to 1500 with it
    #[arg(long, value_name = "BYTES", default_value_t = HEARTBEAT_IP_BYTES, value_parser = clap::value_parser!(u64).range(28..=9000))]
    pub size: u64,
    /// How many trees each host sends on: 1 to 4
    #[arg(long, value_name = "K", default_value_t = 2, value_parser = trees)]
    pub trees: usize,
    /// Most of a link's bandwidth that heartbeats may take, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub share: u32,
    /// Most of a switch's queue that heartbeats may take, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub queue_share: u32,
    /// Use links whose bounds are not certain (`certain = false`) as well
    #[arg(long)]
    pub uncertain: bool,
    /// Whose trees are shown and drawn [default: the first host's]
    #[arg(long, value_name = "HOST")]
    pub from: Option<String>,
    /// Draw the trees into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print every host and every switch of a tree, however many there are
    #[arg(long)]
    pub all: bool,
}

fn notes() -> String {
    format!(
        "\
Generators:
{}

Files are TOML; docs/plan.md has an example. Every quantity has its unit: 10Gbit/s, 256KiB, 500ns.
  [defaults]       of links: bandwidth, queue, lambda_min, delta_max, blocking, shared
  [defaults.host]  the same of links of hosts
  [[switch]]       name (`s[1-4]`: four), core, risks
  [[host]]         name, switches (a link to each), risks
  [[link]]         between (two ends, `h1:eth0` or `s1`), certain, risks, and what defaults have

Latency, jitter and period are worst cases by X-Lane's algorithm: every other sender's packet is before yours in every queue. They hold for what the
topology says of links and hosts; `fide status` shows what an agent has measured. Nothing is asked or changed: no agent, no switch, no network.",
        generate::FORMS.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
    )
}

fn heartbeat(text: &str) -> Result<u64, String> {
    let ns = fide_te::units::parse_time(text)?;
    if (1_000..=60_000_000_000).contains(&ns) { Ok(ns) } else { Err("from 1us to 60s".into()) }
}

fn trees(text: &str) -> Result<usize, String> {
    let n = text.parse().ok().filter(|n| (1..=fide_te::search::TREES_MAX).contains(n));
    n.ok_or_else(|| format!("a number from 1 to {}", fide_te::search::TREES_MAX))
}

/// What is printed, as text or JSON.
pub struct Report {
    /// The network.
    pub network: Network,
    /// What each host promises.
    pub senders: Vec<Sender>,
    /// Which timeout costs which bandwidth.
    pub offers: Vec<Offer>,
    /// What is left after a failure, worst first.
    pub failures: Vec<After>,
    /// `disjoint`, `independent`, `in part` or `single`: of the host with the least redundancy.
    pub redundancy: &'static str,
    /// Whether every switch was tried for that.
    pub all_tried: bool,
    /// What one more switch would buy.
    pub added: Option<Added>,
    /// What a host sends in all, at most.
    pub sent_bps: u64,
    /// All senders together: critical compound failures in a year, at most.
    pub ccf_per_year: f64,
}

/// The network and what it survives.
#[derive(Serialize)]
pub struct Network {
    /// Always `network`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// How many hosts are planned for.
    pub hosts: usize,
    /// Switches in the file.
    pub switches: usize,
    /// Links in the file.
    pub links: usize,
    /// Links that were left out, because their bounds are not certain.
    pub uncertain_links: usize,
    /// How many failures of switches and cables all hosts survive, whichever they are.
    pub survives: usize,
    /// Pairs of hosts without a way though nothing has failed.
    pub parted_pairs: usize,
    /// What alone parts hosts.
    pub single_points: Vec<Point>,
    /// Hosts on one switch only, with it.
    pub hosts_on_one_switch: Vec<(String, String)>,
    /// Interval asked for.
    pub heartbeat_ns: u64,
    /// Bytes of a packet on the wire.
    pub wire_bytes: u64,
}

/// A single point of failure.
#[derive(Serialize)]
pub struct Point {
    /// `switch`, `cable` or `risk`.
    pub element: &'static str,
    /// Which.
    pub name: String,
    /// Hosts outside of the largest part that is left.
    pub cut_off: Vec<String>,
    /// Pairs of hosts that lose each other.
    pub pairs: usize,
}

/// A host's trees and contract.
#[derive(Serialize)]
pub struct Sender {
    /// Always `sender`.
    pub kind: &'static str,
    /// Which.
    pub host: String,
    /// `disjoint`, `independent` or `single`.
    pub redundancy: &'static str,
    /// The trees.
    pub trees: Vec<TreeOf>,
    /// Hosts that only one of several trees reaches.
    pub reached_once: Vec<String>,
    /// The shortest period for which the rest holds.
    pub period_ns: u64,
    /// λmin.
    pub lambda_min_ns: u64,
    /// δmax.
    pub delta_max_ns: u64,
    /// TO = HB + λmin + 2·δmax.
    pub timeout_ns: u64,
    /// Critical compound failures of all its trees in a year, at most.
    pub ccf_per_year: f64,
    /// The same of the paths to any one host: of the pair with the largest bound.
    pub pair_ccf_per_year: f64,
}

/// A tree.
#[derive(Serialize)]
pub struct TreeOf {
    /// The shortest period.
    pub period_ns: u64,
    /// λmin.
    pub lambda_min_ns: u64,
    /// δmax.
    pub delta_max_ns: u64,
    /// Links below the core.
    pub trunk_links: usize,
    /// Links to the core.
    pub core_links: usize,
    /// Its switches, each after the one before it, with the hosts that it serves.
    pub hops: Vec<HopOf>,
}

/// A switch of a tree.
#[derive(Serialize)]
pub struct HopOf {
    /// Which.
    pub switch: String,
    /// The switch before it; none after the sender.
    pub after: Option<String>,
    /// How many switches are before it.
    pub depth: usize,
    /// Hosts that get their copy from it.
    pub hosts: Vec<String>,
}

/// A heartbeat interval, and what it gives and costs.
#[derive(Serialize)]
pub struct Offer {
    /// Always `offer`.
    pub kind: &'static str,
    /// The interval.
    pub heartbeat_ns: u64,
    /// The longest timeout of any host.
    pub timeout_ns: u64,
    /// What a host sends on one of its links.
    pub sent_bps: u64,
    /// What the busiest link to a host carries.
    pub host_link_bps: u64,
    /// What the busiest link between switches carries.
    pub switch_link_bps: u64,
    /// The largest part of any link's bandwidth, percent.
    pub busiest_percent: f64,
}

/// What is left after a switch has failed.
#[derive(Serialize)]
pub struct After {
    /// Always `failure`.
    pub kind: &'static str,
    /// Which switch.
    pub switch: String,
    /// Hosts with disjoint trees then.
    pub disjoint: usize,
    /// Hosts with independent trees then.
    pub independent: usize,
    /// Hosts with one tree then.
    pub single: usize,
    /// The longest timeout then; none if hosts are cut off.
    pub timeout_ns: Option<u64>,
    /// Why no plan is left, if none is.
    pub refused: Option<String>,
}

/// With one more switch that every host is on.
#[derive(Serialize)]
pub struct Added {
    /// Always `added-switch`.
    pub kind: &'static str,
    /// How many trees each host has then, at least.
    pub trees: usize,
    /// `disjoint`, `independent`, `in part` or `single`: of the host with the least redundancy.
    pub redundancy: &'static str,
    /// How many failures all hosts survive then.
    pub survives: usize,
    /// The longest timeout then.
    pub timeout_ns: u64,
    /// What a host sends in all, at most.
    pub sent_bps: u64,
}

/// Plans and prints.
pub fn run(context: &Context, args: &PlanArgs) -> Result<ExitCode, Failure> {
    let topology = load(&args.topology)?;
    let hosts = chosen(&topology, &args.hosts)?;
    let limits = Limits { bandwidth_percent: args.share, queue_percent: args.queue_share, uncertain: args.uncertain };
    let request = Request { sigma_bytes: wire_bytes(args.size), period_ns: args.hb, trees: args.trees };
    if hosts.len() < 2 {
        let alone = format!("{} alone has nobody to send to", topology.name_of(hosts[0]));
        return Err(Failure::failed(alone).hint("let at least two hosts take part"));
    }
    let shown = match &args.from {
        Some(name) => one_of(&topology, &hosts, name)?,
        None => hosts[0],
    };
    let plan = Plan::new(&topology, &hosts, request, limits).map_err(refused)?;
    let report = report(&Asked { topology: &topology, hosts: &hosts, limits, request }, &plan);
    if let Some(path) = &args.svg {
        let set = plan.sets().iter().find(|set| set.sender == shown);
        let svg = set.map_or_else(String::new, |set| fide_te::svg::render(&topology, &plan, set));
        std::fs::write(path, svg).map_err(|e| Failure::failed(format!("cannot write {}: {e}", path.display())))?;
    }
    let mut out = context.out();
    if context.json {
        print_json(context, &mut out, &report)?;
    } else {
        let text = render::text(&report, topology.name_of(shown), args.all, &context.style);
        out.write_all(text.as_bytes())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn print_json(context: &Context, out: &mut impl std::io::Write, report: &Report) -> Result<(), Failure> {
    context.json_line(out, &report.network)?;
    report.senders.iter().try_for_each(|sender| context.json_line(out, sender))?;
    report.offers.iter().try_for_each(|offer| context.json_line(out, offer))?;
    report.failures.iter().try_for_each(|after| context.json_line(out, after))?;
    report.added.iter().try_for_each(|added| context.json_line(out, added))?;
    context.json_line(out, &serde_json::json!({ "kind": "all", "ccf_per_year": report.ccf_per_year }))
}

fn refused(error: PlanError) -> Failure {
    Failure::failed(error.what).hint(error.hint)
}

fn of_topology(error: TopologyError, place: Option<&Path>) -> Failure {
    let (kind, what) = match place {
        Some(path) => (Kind::Failed, format!("{}: {}", path.display(), error.what)),
        None => (Kind::Usage, error.what),
    };
    error.hint.lines().fold(Failure::new(kind, what), Failure::hint)
}

/// A file if there is one of that name, else a generator.
fn load(text: &str) -> Result<Topology, Failure> {
    let path = Path::new(text);
    if !path.exists() && text.contains(':') {
        let generator: Generator = text.parse().map_err(|e| of_topology(e, None))?;
        return generator.build().map_err(|e| of_topology(e, None));
    }
    let cannot = |e: std::io::Error| {
        let kind = match e.kind() {
            std::io::ErrorKind::NotFound => Kind::NotFound,
            std::io::ErrorKind::PermissionDenied => Kind::Permission,
            _ => Kind::Failed,
        };
        let failure = Failure::new(kind, format!("cannot read {}: {e}", path.display()));
        failure.hint("name a topology file (docs/plan.md), or a generator such as leaf-spine:8x4")
    };
    let mut text = Vec::new();
    // One byte more than is read shows that there is more.
    File::open(path).and_then(|file| file.take(file::FILE_MAX as u64 + 1).read_to_end(&mut text)).map_err(cannot)?;
    let text = String::from_utf8(text).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Failure::failed(format!("{} is no text: byte {at} is not UTF-8", path.display()))
            .hint("write it as TOML: docs/plan.md has an example")
    })?;
    file::parse(&text).map_err(|e| of_topology(e, Some(path)))
}

/// The hosts that take part.
fn chosen(topology: &Topology, words: &[String]) -> Result<Vec<NodeId>, Failure> {
    if words.is_empty() {
        return Ok(topology.hosts().collect());
    }
    let mut hosts = Vec::new();
    for word in words {
        for name in file::expand(word.trim()).map_err(|e| of_topology(e, None))? {
            let all: Vec<NodeId> = topology.hosts().collect();
            let host = one_of(topology, &all, &name)?;
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
    }
    Ok(hosts)
}

fn one_of(topology: &Topology, hosts: &[NodeId], name: &str) -> Result<NodeId, Failure> {
    let found = topology.find(name).filter(|host| hosts.contains(host));
    found.ok_or_else(|| {
        let what = match topology.find(name) {
            Some(node) if topology.is_host(node) => format!("{name} does not take part"),
            Some(_) => format!("{name} is a switch"),
            None => format!("there is no host {}", name.escape_debug()),
        };
        let names: Vec<&str> = hosts.iter().map(|host| topology.name_of(*host)).collect();
        Failure::not_found(what).maybe_hint(crate::suggest::hint("hosts", name, &names))
    })
}

/// What was asked.
#[derive(Clone, Copy)]
struct Asked<'a> {
    topology: &'a Topology,
    hosts: &'a [NodeId],
    limits: Limits,
    request: Request,
}

/// How much further plans may cost together, counted in hosts times switches and links: some seconds.
/// Not measured, so that the same question has the same answer.
const FURTHER: usize = 15_000_000;
/// A switch that every host is on is no plan for more hosts than these.
const ADDED_HOSTS_MAX: usize = 256;

fn report(asked: &Asked<'_>, plan: &Plan) -> Report {
    let survey = survey::survey(asked.topology, asked.hosts, asked.limits);
    let size = asked.topology.switches().count() + asked.topology.link_count();
    let budget = FURTHER / (asked.hosts.len() * size).max(1);
    let (failures, all_tried) = failures(asked, plan, budget.max(1));
    let few = asked.hosts.len() <= ADDED_HOSTS_MAX && asked.request.trees < fide_te::search::TREES_MAX;
    Report {
        network: network(asked, survey),
        senders: plan.sets().iter().map(|set| sender(asked, plan, set)).collect(),
        offers: offers(asked, plan),
        redundancy: least_redundancy(plan),
        failures,
        all_tried,
        added: if few { added(asked) } else { None },
        sent_bps: sent_bps(asked, plan),
        ccf_per_year: ccf::of_plan(asked.topology, plan),
    }
}

fn network(asked: &Asked<'_>, survey: Survey) -> Network {
    let topology = asked.topology;
    let name = |host: &NodeId| topology.name_of(*host).to_owned();
    let point = |point: survey::SinglePoint| {
        let (element, called) = match point.element {
            Element::Switch(switch) => ("switch", name(&switch)),
            Element::Cable(link) => ("cable", topology.link_name(link)),
            Element::Risk(risk) => ("risk", risk),
        };
        Point { element, name: called, cut_off: point.cut_off.iter().map(name).collect(), pairs: point.pairs }
    };
    Network {
        kind: "network",
        name: topology.name.clone(),
        hosts: asked.hosts.len(),
        switches: topology.switches().count(),
        links: topology.link_count(),
        uncertain_links: survey.uncertain,
        survives: survey.survives,
        parted_pairs: survey.parted,
        single_points: survey.single_points.into_iter().map(point).collect(),
        hosts_on_one_switch: survey.on_one_switch.iter().map(|(host, switch)| (name(host), name(switch))).collect(),
        heartbeat_ns: asked.request.period_ns,
        wire_bytes: asked.request.sigma_bytes,
    }
}

/// A redundancy's name.
fn redundancy(of: Redundancy) -> &'static str {
    match of {
        Redundancy::Disjoint => "disjoint",
        Redundancy::Independent => "independent",
        Redundancy::Single => "single",
    }
}

fn sender(asked: &Asked<'_>, plan: &Plan, set: &Set) -> Sender {
    let topology = asked.topology;
    let name = |host: &NodeId| topology.name_of(*host).to_owned();
    let contract = plan.contract(set);
    Sender {
        kind: "sender",
        host: name(&set.sender),
        redundancy: redundancy(set.redundancy),
        trees: (0..set.trees.len()).map(|tree| tree_of(asked, plan, set, tree)).collect(),
        reached_once: plan.reached_once(set).iter().map(name).collect(),
        period_ns: contract.period_ns,
        lambda_min_ns: contract.lambda_min_ns,
        delta_max_ns: contract.delta_max_ns,
        timeout_ns: contract.timeout_ns(asked.request.period_ns),
        ccf_per_year: ccf::of_set(topology, plan, set),
        pair_ccf_per_year: ccf::of_worst_pair(topology, plan, set),
    }
}

fn tree_of(asked: &Asked<'_>, plan: &Plan, set: &Set, at: usize) -> TreeOf {
    let (topology, fabric, tree) = (asked.topology, plan.fabric(), &set.trees[at]);
    let bounds = plan.bounds(set, at);
    let links = ccf::Links::of(topology, plan, set, tree);
    let name_of = |switch: u32| topology.name_of(fabric.switches[switch as usize]).to_owned();
    let mut depths: Vec<usize> = Vec::new();
    let mut hops = Vec::new();
    for (place, hop) in tree.hops.iter().enumerate() {
        let parent = tree.hops.get(hop.parent as usize);
        depths.push(if parent.is_some() { depths[hop.parent as usize] + 1 } else { 0 });
        let leaves = tree.leaves.iter().filter(|leaf| leaf.hop as usize == place);
        let members = leaves.flat_map(|leaf| &fabric.classes[leaf.class as usize].members);
        let hosts = members.filter(|member| member.host != set.sender);
        hops.push(HopOf {
            switch: name_of(hop.switch),
            after: parent.map(|parent| name_of(parent.switch)),
            depth: depths[place],
            hosts: hosts.map(|member| topology.name_of(member.host).to_owned()).collect(),
        });
    }
    TreeOf {
        period_ns: bounds.period_ns,
        lambda_min_ns: bounds.lambda_min_ns,
        delta_max_ns: bounds.delta_max_ns(),
        trunk_links: links.trunk,
        core_links: links.core,
        hops,
    }
}

fn longest_timeout_ns(contracts: &[Contract], heartbeat_ns: u64) -> u64 {
    contracts.iter().map(|contract| contract.timeout_ns(heartbeat_ns)).max().unwrap_or(0)
}

/// Intervals that are offered, beside the one asked for and the shortest there can be.
const INTERVALS_NS: [u64; 7] = [20_000, 50_000, 100_000, 200_000, 1_000_000, 10_000_000, 100_000_000];

fn offers(asked: &Asked<'_>, plan: &Plan) -> Vec<Offer> {
    let contracts = plan.contracts();
    let shortest_ns = contracts.iter().map(|contract| contract.period_ns).max().unwrap_or(0);
    let shortest_ns = shortest_ns.div_ceil(1_000).max(1) * 1_000;
    let mut all: Vec<u64> = INTERVALS_NS.into_iter().chain([asked.request.period_ns, shortest_ns]).collect();
    all.retain(|interval| *interval >= shortest_ns);
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(|heartbeat_ns| offer(asked, plan, &contracts, heartbeat_ns)).collect()
}

fn offer(asked: &Asked<'_>, plan: &Plan, contracts: &[Contract], heartbeat_ns: u64) -> Offer {
    let topology = asked.topology;
    let mut offer = Offer {
        kind: "offer",
        heartbeat_ns,
        timeout_ns: longest_timeout_ns(contracts, heartbeat_ns),
        sent_bps: 0,
        host_link_bps: 0,
        switch_link_bps: 0,
        busiest_percent: 0.0,
    };
    for arc in 0..2 * topology.link_count() as u32 {
        let rate_bps = plan.rate_bps(arc, heartbeat_ns);
        let link = topology.link(LinkId::new(arc as usize / 2));
        let from = if arc.is_multiple_of(2) { link.a.0 } else { link.b.0 };
        let to = if arc.is_multiple_of(2) { link.b.0 } else { link.a.0 };
        let most = match (topology.is_host(from), topology.is_host(to)) {
            (true, _) => &mut offer.sent_bps,
            (_, true) => &mut offer.host_link_bps,
            _ => &mut offer.switch_link_bps,
        };
        *most = rate_bps.max(*most);
        let percent = 100.0 * rate_bps as f64 / link.spec.bandwidth_bps as f64;
        offer.busiest_percent = offer.busiest_percent.max(percent);
    }
    offer
}

/// What each switch's failure leaves, for as many of the busiest ones as there is time for.
fn failures(asked: &Asked<'_>, plan: &Plan, most: usize) -> (Vec<After>, bool) {
    let switches = survey::busiest_switches(plan);
    let all_tried = switches.len() <= most;
    let mut all: Vec<After> = switches.into_iter().take(most).map(|switch| after(asked, switch)).collect();
    let severity = |after: &After| (after.timeout_ns.unwrap_or(u64::MAX), after.single, after.independent);
    all.sort_by_key(|after| std::cmp::Reverse(severity(after)));
    (all, all_tried)
}

fn after(asked: &Asked<'_>, switch: NodeId) -> After {
    let fabric = Fabric::without(asked.topology, asked.limits, |node| node == switch, |_| false);
    let effort = Some(Effort { searches: 0 });
    let planned = Plan::of(asked.topology, fabric, asked.hosts, asked.request, effort);
    let count = |plan: &Plan, of: Redundancy| plan.sets().iter().filter(|set| set.redundancy == of).count();
    let name = asked.topology.name_of(switch).to_owned();
    let (plan, refused) = match planned {
        Ok(plan) => (Some(plan), None),
        Err(error) => (None, Some(error.what)),
    };
    let of = |of: Redundancy| plan.as_ref().map_or(0, |plan| count(plan, of));
    After {
        kind: "failure",
        switch: name,
        disjoint: of(Redundancy::Disjoint),
        independent: of(Redundancy::Independent),
        single: of(Redundancy::Single),
        timeout_ns: plan.as_ref().map(|plan| longest_timeout_ns(&plan.contracts(), asked.request.period_ns)),
        refused,
    }
}

/// What a host sends on all its trees together at the interval asked for, or the least there can be.
fn sent_bps(asked: &Asked<'_>, plan: &Plan) -> u64 {
    let contracts = plan.contracts();
    let shortest_ns = contracts.iter().map(|contract| contract.period_ns).max().unwrap_or(0);
    let trees = plan.sets().iter().map(|set| set.trees.len()).max().unwrap_or(0);
    offer(asked, plan, &contracts, asked.request.period_ns.max(shortest_ns)).sent_bps * trees as u64
}

/// The least redundancy of any host.
fn least_redundancy(plan: &Plan) -> &'static str {
    let of = |set: &Set| match set.redundancy {
        Redundancy::Single => 0,
        Redundancy::Independent => 1,
        Redundancy::Disjoint => 2,
    };
    let least = plan.sets().iter().min_by_key(|set| of(set)).map_or("single", |set| redundancy(set.redundancy));
    let whole = plan.sets().iter().all(|set| plan.reached_once(set).is_empty());
    if whole || least == "single" { least } else { "in part" }
}

/// What one more switch would buy, if it can be planned.
fn added(asked: &Asked<'_>) -> Option<Added> {
    let topology = survey::with_another_switch(asked.topology, asked.hosts).ok()?;
    let request = Request { trees: asked.request.trees + 1, ..asked.request };
    let plan = Plan::new(&topology, asked.hosts, request, asked.limits).ok()?;
    let trees = plan.sets().iter().map(|set| set.trees.len()).min()?;
    Some(Added {
        kind: "added-switch",
        trees,
        redundancy: least_redundancy(&plan),
        survives: survey::survey(&topology, asked.hosts, asked.limits).survives,
        timeout_ns: longest_timeout_ns(&plan.contracts(), asked.request.period_ns),
        sent_bps: sent_bps(&Asked { topology: &topology, ..*asked }, &plan),
    })
}
