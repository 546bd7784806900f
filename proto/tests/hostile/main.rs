//! What no correct peer says, to every core, for a moment on every run; `fuzz/` says it without end and with coverage.
//!
//! `FIDE_SEED=17 cargo test -p fide-proto --test proto hostile::` says the words of one seed again.

mod cores;
mod smoke;

macro_rules! smokes {
    ($($name:ident: $target:path, $seeds:literal;)+) => {
        $(
            #[test]
            fn $name() {
                smoke::smoke(stringify!($name), "fide-proto", $seeds, $target);
            }
        )+
    };
}

smokes! {
    hsuc: cores::engines::hsuc, 500;
    huc: cores::engines::huc, 500;
    lowi: cores::engines::lowi, 500;
    owi: cores::engines::owi, 2000;
    paxos: cores::paxos::paxos, 1000;
    log: cores::log::log, 4000;
    gate: cores::gate::gate, 2000;
    osrb: cores::broadcast::osrb, 1000;
    fcurb: cores::broadcast::fcurb, 1000;
    rsbcast: cores::broadcast::rsbcast, 1000;
    coordinator: cores::membership::coordinator, 500;
    leases: cores::membership::leases, 1000;
}
