//! Plans as a whole: joins, leaves, refusals, limits, and what cannot be promised.

use crate::common::{PLAIN, check_set, network, random_network};
use fide_te::fabric::{Fabric, Limits, Load};
use fide_te::generate::{Generator, Random};
use fide_te::plan::{Plan, Redundancy, Request, wire_bytes};
use fide_te::survey::{self, Element};
use fide_te::topology::{LinkSpec, NodeId, Topology};

fn request() -> Request {
    Request { sigma_bytes: wire_bytes(82), period_ns: 1_000_000, trees: 2 }
}

fn made(form: &str) -> (Topology, Vec<NodeId>) {
    let topology = form.parse::<Generator>().unwrap().build().unwrap();
    let hosts = topology.hosts().collect();
    (topology, hosts)
}

/// That the load is what the trees send, and nothing else.
fn check(topology: &Topology, plan: &Plan) {
    let mut load = Load::new(plan.fabric());
    for set in plan.sets() {
        check_set(topology, plan, set);
        for tree in &set.trees {
            for arc in tree.arcs(plan.fabric(), set.sender) {
                load.change(plan.fabric(), arc, plan.request().sigma_bytes, true);
            }
        }
    }
    load.refresh(plan.fabric());
    assert_eq!((&load.bytes, &load.tunnels), (&plan.load().bytes, &plan.load().tunnels));
    assert_eq!((&load.wait_ns, &load.leaf_wait_ns), (&plan.load().wait_ns, &plan.load().leaf_wait_ns));
    let room = |arc: usize| plan.fabric().arcs[arc].room_bytes;
    assert!((0..load.bytes.len()).all(|arc| load.bytes[arc] <= room(arc)), "Σσ ≤ qlen");
}

#[test]
fn every_generated_network_has_trees_that_are_what_they_say() {
    for (form, redundancy) in [
        ("flat:5x2", Redundancy::Disjoint),
        ("flat:5x1", Redundancy::Single),
        ("ring:3", Redundancy::Independent),
        ("ring:6", Redundancy::Independent),
        ("ring:9", Redundancy::Independent),
        ("leaf-spine:8x4", Redundancy::Disjoint),
        ("leaf-spine:4x1", Redundancy::Single),
        ("jellyfish:16x4", Redundancy::Disjoint),
        ("jellyfish:64x8", Redundancy::Disjoint),
        ("fat-tree:4", Redundancy::Disjoint),
        ("fat-tree:6", Redundancy::Disjoint),
        ("fat-tree:8", Redundancy::Disjoint),
        ("fat-tree:4,homes=1", Redundancy::Single),
    ] {
        let (topology, hosts) = made(form);
        let plan = Plan::new(&topology, &hosts, request(), Limits::default()).unwrap();
        check(&topology, &plan);
        for set in plan.sets() {
            // Of leaf-spine:4x1 two racks meet in one spine, so only hosts of the same rack have two paths.
            let expected = if form == "leaf-spine:4x1" { Redundancy::Disjoint } else { redundancy };
            assert_eq!(set.redundancy, expected, "{form} {}", topology.name_of(set.sender));
            for host in hosts.iter().filter(|host| **host != set.sender) {
                let contract = plan.contract_to(set, *host).unwrap();
                let whole = plan.contract(set);
                assert!(contract.latency_max_ns() <= whole.latency_max_ns());
                assert!(contract.lambda_min_ns >= whole.lambda_min_ns);
            }
        }
    }
}

#[test]
fn three_networks_give_three_trees() {
    let (topology, hosts) = made("flat:5x3");
    let plan = Plan::new(&topology, &hosts, Request { trees: 3, ..request() }, Limits::default()).unwrap();
    check(&topology, &plan);
    assert!(plan.sets().iter().all(|set| set.trees.len() == 3 && set.redundancy == Redundancy::Disjoint));
}

#[test]
fn hosts_around_an_odd_circle_of_switches_have_independent_trees_at_best() {
    let full: Vec<(usize, usize)> = (0..3).flat_map(|a| (a + 1..3).map(move |b| (a, b))).collect();
    let (topology, hosts) = network(3, &full, &[vec![0, 1], vec![1, 2], vec![2, 0]], || PLAIN);
    let plan = Plan::new(&topology, &hosts, request(), Limits::default()).unwrap();
    check(&topology, &plan);
    assert!(plan.sets().iter().all(|set| set.redundancy == Redundancy::Independent));
}

#[test]
fn joins_and_leaves_keep_the_books() {
    for form in ["fat-tree:4", "ring:5", "jellyfish:16x4", "leaf-spine:4x2,hosts=8", "flat:4x2", "flat:4x1"] {
        let (topology, hosts) = made(form);
        for first in [1, 2, hosts.len() / 2] {
            let mut plan = Plan::new(&topology, &hosts[..first], request(), Limits::default()).unwrap();
            for host in &hosts[first..] {
                plan.join(&topology, *host).unwrap();
                check(&topology, &plan);
            }
            assert_eq!(plan.sets().len(), hosts.len());
            assert!(plan.join(&topology, hosts[0]).unwrap_err().what.contains("already"));
            for host in &hosts[1..] {
                plan.leave(&topology, *host).unwrap();
                check(&topology, &plan);
            }
            plan.join(&topology, hosts[1]).unwrap();
            check(&topology, &plan);
            assert!(plan.leave(&topology, *hosts.last().unwrap()).is_err());
        }
    }
}

#[test]
fn a_join_that_is_refused_leaves_the_allocation_as_it_was() {
    // Queues for three packets: a fourth host's would be one too many.
    let spec = LinkSpec { queue_bytes: 3 * 120, ..PLAIN };
    let on: Vec<Vec<usize>> = (0..5).map(|_| vec![0, 1]).collect();
    let (topology, hosts) = network(2, &[], &on, || spec);
    let mut plan = Plan::new(&topology, &hosts[..4], request(), Limits::default()).unwrap();
    let before = (plan.sets().to_vec(), plan.load().bytes.clone(), plan.contracts());
    let refused = plan.join(&topology, hosts[4]).unwrap_err();
    assert!(refused.what.contains("has room for 360 B") && refused.hint.contains("--size"), "{refused:?}");
    assert_eq!(before, (plan.sets().to_vec(), plan.load().bytes.clone(), plan.contracts()));
    check(&topology, &plan);
    let refused = Plan::new(&topology, &hosts, request(), Limits::default()).unwrap_err();
    assert!(refused.what.contains("has room for 360 B"), "{refused:?}");
}

#[test]
fn random_networks_with_random_joins_and_leaves_keep_the_books() {
    for seed in 0..60 {
        let room = |random: &mut Random| LinkSpec { queue_bytes: 120 * (2 + random.below(9)), ..PLAIN };
        let (topology, hosts) = random_network(seed, room);
        let Ok(mut plan) = Plan::new(&topology, &hosts[..2], request(), Limits::default()) else { continue };
        let mut random = Random::new(seed);
        for _ in 0..30 {
            let host = hosts[random.below(hosts.len() as u64) as usize];
            let before = (plan.sets().to_vec(), plan.load().bytes.clone());
            let there = plan.sets().iter().any(|set| set.sender == host);
            let done = if there { plan.leave(&topology, host) } else { plan.join(&topology, host) };
            if done.is_err() {
                assert_eq!(before, (plan.sets().to_vec(), plan.load().bytes.clone()), "network {seed}");
            }
            check(&topology, &plan);
        }
    }
}

#[test]
fn a_host_on_one_switch_is_planned_for_and_named() {
    let (topology, hosts) = network(2, &[(0, 1)], &[vec![0, 1], vec![0, 1], vec![0]], || PLAIN);
    let plan = Plan::new(&topology, &hosts, request(), Limits::default()).unwrap();
    check(&topology, &plan);
    assert_eq!(plan.sets()[0].redundancy, Redundancy::Disjoint);
    assert_eq!(plan.reached_once(&plan.sets()[0]), [hosts[2]]);
    assert_eq!(plan.sets()[2].redundancy, Redundancy::Single);
    let survey = survey::survey(&topology, &hosts, Limits::default());
    let s0 = topology.find("s0").unwrap();
    assert_eq!(survey.on_one_switch, [(hosts[2], s0)]);
    assert_eq!(survey.survives, 0);
    assert!(survey.single_points.iter().any(|p| p.element == Element::Switch(s0) && p.cut_off == [hosts[2]]));
    assert_eq!(survey.single_points.len(), 2, "the switch and the cable to it: {:?}", survey.single_points);
}

#[test]
fn a_host_on_no_switch_is_refused_by_name() {
    let (topology, hosts) = network(1, &[], &[vec![0], vec![]], || PLAIN);
    let refused = Plan::new(&topology, &hosts, request(), Limits::default()).unwrap_err();
    assert!(refused.what.contains("h1 is on no switch"), "{refused:?}");
    let (topology, hosts) = network(2, &[], &[vec![0], vec![1]], || PLAIN);
    let refused = Plan::new(&topology, &hosts, request(), Limits::default()).unwrap_err();
    assert!(refused.what.contains("no way leads from h0 to h1"), "{refused:?}");
}

#[test]
fn what_takes_both_networks_is_found() {
    // Two networks that are one behind their first switches: everything meets in s4.
    let (topology, hosts) = network(5, &[(0, 4), (1, 4), (2, 4), (3, 4)], &[vec![0, 1], vec![2, 3]], || PLAIN);
    let survey = survey::survey(&topology, &hosts, Limits::default());
    let elements: Vec<&Element> = survey.single_points.iter().map(|point| &point.element).collect();
    assert_eq!(elements, [&Element::Switch(topology.find("s4").unwrap())]);
    let plan = Plan::new(&topology, &hosts, request(), Limits::default()).unwrap();
    assert_eq!(plan.reached_once(&plan.sets()[0]), [hosts[1]]);
    for (form, survives) in [("flat:4x2", 1), ("flat:4x3", 2), ("flat:4x1", 0), ("fat-tree:4", 1), ("ring:6", 1)] {
        let (topology, hosts) = made(form);
        let survey = survey::survey(&topology, &hosts, Limits::default());
        assert_eq!((survey.survives, survey.parted), (survives, 0), "{form}");
        assert_eq!(survey.single_points.is_empty(), survives > 0, "{form}");
    }
}

#[test]
fn a_shared_risk_takes_both() {
    let text = "[[switch]]\nname=\"s1\"\nrisks=[\"pdu\"]\n[[switch]]\nname=\"s2\"\nrisks=[\"pdu\"]\n\
                [[host]]\nname=\"h[1-2]\"\nswitches=[\"s1\",\"s2\"]";
    let topology = fide_te::file::parse(text).unwrap();
    let hosts: Vec<NodeId> = topology.hosts().collect();
    let survey = survey::survey(&topology, &hosts, Limits::default());
    assert_eq!(survey.single_points.len(), 1);
    assert_eq!((&survey.single_points[0].element, survey.single_points[0].pairs), (&Element::Risk("pdu".into()), 1));
}

#[test]
fn limits_are_kept() {
    let (topology, hosts) = made("flat:6x2");
    let plan = |limits: Limits| Plan::new(&topology, &hosts, request(), limits);
    let whole = plan(Limits::default()).unwrap();
    let tenth = plan(Limits { bandwidth_percent: 1, ..Limits::default() }).unwrap();
    for (contract, set) in tenth.contracts().iter().zip(tenth.sets()) {
        assert!(contract.period_ns > whole.contracts()[0].period_ns, "less bandwidth, longer periods");
        for tree in &set.trees {
            for arc in tree.arcs(tenth.fabric(), set.sender) {
                let most = tenth.fabric().arcs[arc as usize].bandwidth_bps / 100;
                assert!(tenth.rate_bps(arc, contract.period_ns) <= most, "1 % of the bandwidth");
            }
        }
    }
    let queue = Limits { queue_percent: 1, ..Limits::default() };
    assert!(plan(queue).is_ok(), "2,621 B hold 6 packets");
    // Links that are not certain are left out, unless they are asked for.
    let text = "[[switch]]\nname=\"s[1-2]\"\n[[host]]\nname=\"h[1-2]\"\nswitches=[\"s1\"]\n\
                [[link]]\nbetween=[\"h1\",\"s2\"]\ncertain=false\n[[link]]\nbetween=[\"h2\",\"s2\"]";
    let topology = fide_te::file::parse(text).unwrap();
    let hosts: Vec<NodeId> = topology.hosts().collect();
    for (uncertain, redundancy) in [(false, Redundancy::Single), (true, Redundancy::Disjoint)] {
        let limits = Limits { uncertain, ..Limits::default() };
        let plan = Plan::new(&topology, &hosts, request(), limits).unwrap();
        assert_eq!(plan.sets()[0].redundancy, redundancy);
    }
}

#[test]
fn what_other_services_have_in_the_queue_is_waited_for() {
    let of = |shared_bytes: u64| {
        let spec = LinkSpec { shared_bytes, ..PLAIN };
        let (topology, hosts) = network(1, &[], &[vec![0], vec![0]], move || spec);
        let plan = Plan::new(&topology, &hosts, Request { trees: 1, ..request() }, Limits::default()).unwrap();
        plan.contract(&plan.sets()[0]).delta_max_ns
    };
    assert_eq!(of(1_000) - of(0), 2 * 8_000, "1,000 B at 1 Gbit/s in each of two queues");
}

#[test]
fn trees_avoid_links_where_others_would_wait_for_them() {
    // Between two pairs of switches there are two like ways; the second sender takes the other one.
    let (topology, hosts) = network(4, &[(0, 2), (2, 1), (0, 3), (3, 1)], &[vec![0], vec![0], vec![1]], || PLAIN);
    let plan = Plan::new(&topology, &hosts[..], Request { trees: 1, ..request() }, Limits::default()).unwrap();
    let through = |at: usize| plan.sets()[at].trees[0].hops[1].switch;
    assert_ne!(through(0), through(1));
}

#[test]
fn the_same_network_gives_the_same_plan() {
    let (topology, hosts) = made("jellyfish:16x4");
    let plan = || Plan::new(&topology, &hosts, request(), Limits::default()).unwrap().sets().to_vec();
    assert_eq!(plan(), plan());
}

#[test]
fn a_fabric_after_a_failure_has_no_way_through_what_failed() {
    let (topology, hosts) = made("leaf-spine:4x2,hosts=6");
    for gone in topology.switches() {
        let fabric = Fabric::without(&topology, Limits::default(), |node| node == gone, |_| false);
        let plan = Plan::of(&topology, fabric, &hosts, request(), None).unwrap();
        check(&topology, &plan);
        assert!(plan.fabric().switches.iter().all(|switch| *switch != gone));
    }
}

#[test]
#[ignore = "needs a quiet machine: make timing"]
fn timing_of_a_fat_tree_of_1024_hosts() {
    use std::time::Instant;
    let (topology, hosts) = made("fat-tree:16");
    let begin = Instant::now();
    let mut plan = Plan::new(&topology, &hosts[..1023], request(), Limits::default()).unwrap();
    let trees = begin.elapsed();
    let begin = Instant::now();
    plan.join(&topology, hosts[1023]).unwrap();
    let contracts = plan.contracts();
    let join = begin.elapsed();
    println!("trees of 1,023 hosts: {trees:?}; one join and all {} contracts: {join:?}", contracts.len());
    assert!(plan.sets().iter().all(|set| set.redundancy == Redundancy::Disjoint));
    // Of a release build; what is built for tests checks its arithmetic.
    let slower = if cfg!(debug_assertions) { 4 } else { 1 };
    assert!(trees.as_millis() < 1_000 * slower && join.as_micros() < 5_000 * u128::from(slower as u32));
}
