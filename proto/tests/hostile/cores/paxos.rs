//! One-sided Paxos: what members say, and what memories answer.

use fide_proto::consensus::paxos::{Config, Paxos};

use super::bytes::Bytes;
use super::world::{Whole, run};

pub fn paxos(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let (n, first) = (bytes.pick(&[3, 3, 2, 4, 1]), bytes.pick(&[1, 1, 5, 1 << 40]));
    let two_sided_from = bytes.pick(&[None, None, Some(1), Some(4), Some(7)]);
    let tight = bytes.one_in(2);
    run(&mut bytes, n, first, |_, me, set| {
        let config = Config { two_sided_from, ..Config::new(me, 3) };
        let config = if tight { Config { window: 4, ahead_max: 4, waiting_max: 8, in_flight_max: 8, ..config } } else { config };
        Whole { engine: Paxos::new(config, set.clone(), first - 1), looks: false }
    });
}
