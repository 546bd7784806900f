//! Worlds in which something must not hold: a check that cannot fail checks nothing.

use fide_proto::consensus::Kind;
use fide_sim::world::World;
use fide_sim::{Menu, Options, Plan, Policy, run};

/// HUC relies on a shell that hands in nothing of the crashed behind their crash.
#[test]
fn a_shell_that_hands_in_what_the_crashed_piggybacked_is_found_out() {
    let options = Options { engine: Kind::Huc, policy: Policy::Witness, menu: Menu::NetworkFaults, hosts: None };
    let ended = |seed, forgets| {
        let mut world = World::new(Plan::generate(seed, options), false);
        world.forgets_the_crashed = forgets;
        run::catching(|| world.run().violation).unwrap_or_else(Some).map(|violation| violation.property)
    };
    let found = (0..60_000).find(|seed| ended(*seed, true) == Some("fail-consistency"));
    let found = found.expect("some notice comes before what rode on the last heartbeat");
    println!("seed {found} of {options}");
    assert_eq!(ended(found, false), None, "the shell as it is");
}
