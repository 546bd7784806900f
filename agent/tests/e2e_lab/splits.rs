//! Groups whose hosts could not hear each other for a while: what was decided is there when they meet again.

use crate::common::{Setup, World, until};
use crate::e2e_lab::groups::{create, open, read, runs, values};
use fide_client::group::{Entry, Group};
use fide_lab::NETS;
use fide_wire::verdict::Cause;

/// Nothing gets from one side to the other, on both networks.
fn cut(w: &World, one: &[u16], other: &[u16]) {
    for (a, b) in one.iter().flat_map(|a| other.iter().map(move |b| (*a, *b))) {
        for net in NETS {
            w.lab.deafen(a, b, net).unwrap();
            w.lab.deafen(b, a, net).unwrap();
        }
    }
}

fn heal(w: &World) {
    for host in w.running() {
        NETS.iter().for_each(|net| w.lab.heal(host, *net).unwrap());
    }
}

fn stops(w: &World, host: u16) -> usize {
    w.log(host).matches("this host's member stopped").count()
}

/// Raft rests on no verdict: that both sides have given each other up costs it an election, and no member its log.
#[test]
fn a_raft_group_of_five_keeps_its_log_when_both_sides_of_a_cut_meet_again() {
    let Some(w) = Setup::hosts(5).up() else { return };
    w.all_alive();
    create(&w, 1, "orders", "raft", &["h1", "h2", "h3", "h4", "h5"]).unwrap();
    (1..=5).for_each(|host| runs(&w, host, "orders"));
    let mut groups: Vec<Group> = (1..=5).map(|host| open(&w, host, u64::from(host), 0, 0)).collect();
    let mut logs: Vec<Vec<Entry>> = vec![Vec::new(); 5];
    let mut proposed = Vec::new();
    let mut decide = |groups: &mut [Group], logs: &mut [Vec<Entry>], by: usize, readers: &[usize], what: &str| {
        proposed.push(format!("{what} {}", proposed.len()));
        groups[by].propose(proposed.last().unwrap().as_bytes()).unwrap();
        for reader in readers {
            read(&mut groups[*reader], &mut logs[*reader], proposed.len());
        }
        proposed.clone()
    };
    for by in 0..5 {
        decide(&mut groups, &mut logs, by, &[0, 1, 2, 3, 4], "before");
    }
    let (minority, majority) = ([1, 2], [3, 4, 5]);
    for _ in 0..2 {
        cut(&w, &minority, &majority);
        for (observer, host) in [(1, "h3"), (2, "h5"), (3, "h1"), (5, "h2")] {
            until("both sides have given each other up", || w.state(observer, host) == "silent-host");
        }
        for by in [2, 3, 4] {
            decide(&mut groups, &mut logs, by, &[2, 3, 4], "meanwhile");
        }
        heal(&w);
        w.all_alive();
        decide(&mut groups, &mut logs, 0, &[0, 1, 2, 3, 4], "behind");
        let all = decide(&mut groups, &mut logs, 4, &[0, 1, 2, 3, 4], "behind");
        logs.iter().for_each(|log| assert_eq!(values(log), all));
    }
    for host in 1..=5 {
        assert!(!w.events(host, Cause::SilentHost).is_empty(), "h{host} has given nobody up: this proves nothing");
        assert_eq!(stops(&w, host), 0, "{}", w.log(host));
    }
}
