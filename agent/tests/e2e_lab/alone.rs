//! Two hosts, and nobody else.

use crate::common::{Setup, World, until};
use fide_lab::{Cut, NETS};

fn heal(w: &World) {
    NETS.into_iter().for_each(|net| w.lab.heal(1, net).unwrap());
    w.all_alive();
}

/// Each takes the other one for gone, as nobody else is there who could tell; neither listens to the other one any more, but for that.
#[test]
fn two_hosts_that_gave_each_other_up_meet_again() {
    for receive in ["auto", "udp"] {
        let Some(w) = Setup::hosts(2).extra(move |_| format!("receive = \"{receive}\"\n")).up() else { return };
        let lives = [1, 2].map(|host| w.status(host).incarnation);
        NETS.into_iter().for_each(|net| w.lab.cut(1, net, Cut::Silent).unwrap());
        for (host, other) in [(1, "h2"), (2, "h1")] {
            until("each has given the other one up", || w.state(host, other) == "silent-host");
        }
        heal(&w);
        // Everybody listens to somebody new, and neither life was begun more than once.
        for (host, former) in [1, 2].into_iter().zip(lives) {
            assert_eq!(w.status(host).incarnation, former + 1, "{receive}, h{host}");
        }
    }
}
