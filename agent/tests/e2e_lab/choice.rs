//! What a group begins with where neither engine nor policy is named.

use crate::common::{Pins, Setup, World, until};
use crate::e2e_lab::fence::{all_fenced, open};
use crate::e2e_lab::groups::{order, refused, runs, status};
use fide_wire::control::{ErrorCode, GroupOrder, Reply};

fn create(w: &World, engine: &str, policy: &str) -> Result<Reply, fide_client::Error> {
    let hosts = (1..=3).map(|host| format!("h{host}")).collect();
    let (name, engine, policy) = ("orders".into(), engine.into(), policy.into());
    order(w, 1, GroupOrder::Create { name, engine, policy, hosts, durable: false, fresh: false })
}

/// Engine and policy, on all hosts, and why.
fn is(w: &World, engine: &str, policy: &str) -> String {
    (1..=3).for_each(|host| runs(w, host, "orders"));
    for host in 1..=3 {
        let group = status(w, host, "orders").unwrap();
        assert_eq!((group.engine.as_str(), group.policy.as_str()), (engine, policy), "h{host}");
    }
    status(w, 1, "orders").unwrap().chosen
}

#[test]
fn without_fences_a_majority_decides_unless_trust_is_named() {
    let Some(w) = Setup::hosts(3).up() else { return };
    w.all_alive();
    for engine in ["huc", "hsuc", "lowi"] {
        let (code, what) = refused(create(&w, engine, ""));
        assert!(
            code == ErrorCode::Invalid && what.contains("h1, h2, h3 has none") && what.contains("both sides decide"),
            "{what}"
        );
    }
    create(&w, "", "").unwrap();
    let why = is(&w, "raft", "trust-contract");
    assert!(why.starts_with("engine raft, because no host has a fence"), "{why}");
}

#[test]
fn with_fences_everywhere_they_are_relied_on() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = all_fenced(&pins, 3, "acknowledged") else { return };
    let (code, what) = refused(create(&w, "lowi", ""));
    assert!(code == ErrorCode::Invalid && what.contains("cannot keep the policy fence"), "{what}");
    create(&w, "", "").unwrap();
    let why = is(&w, "huc", "fence");
    assert!(why.starts_with("policy fence, because every host has one"), "{why}");
}

/// A fence that any cable opens again is none, and one host of three is not all.
#[test]
fn a_fence_that_does_not_count_is_none_and_some_are_not_all() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = all_fenced(&pins, 3, "sent") else { return };
    create(&w, "", "").unwrap();
    assert!(is(&w, "raft", "trust-contract").contains("acknowledged"));
    drop(w);
    let config = pins.config(2, "mode = \"acknowledged\"\ntimeout = \"2s\"");
    let Some(w) = Setup::hosts(3).extra(move |host| if host == 2 { config.clone() } else { String::new() }).up() else { return };
    open(&w, 2);
    until("its promise is known", || w.view(1, "h2").is_some_and(|view| view.fence.is_some()));
    let (code, what) = refused(create(&w, "", ""));
    assert!(code == ErrorCode::Invalid && what.contains("h2 has a fence") && what.contains("h1, h3 has none"), "{what}");
}

/// Agents that have only just started wait for their fences, and do not take them for none.
#[test]
fn a_group_of_the_configuration_waits_for_the_fences_of_its_hosts() {
    let Some(pins) = Pins::new() else { return };
    let configs: Vec<String> = (1..=3)
        .map(|host| {
            let group = "[[group]]\nname = \"orders\"\nhosts = [\"h1\", \"h2\", \"h3\"]\n";
            pins.config(host, "mode = \"acknowledged\"\ntimeout = \"2s\"") + "\n" + group
        })
        .collect();
    let Some(w) = Setup::hosts(3).extra(move |host| configs[usize::from(host) - 1].clone()).up() else { return };
    w.all_alive();
    is(&w, "huc", "fence");
}
