//! What no correct peer says, to Raft, for a moment on every run; see `proto/tests/hostile`.

#[path = "../../../proto/tests/hostile/cores/mod.rs"]
mod cores;
#[path = "../../../proto/tests/hostile/smoke.rs"]
mod smoke;
mod target;

#[test]
fn raft() {
    // What contradicts the library's own state makes it panic, which is caught: that many backtraces are of no use.
    std::panic::set_hook(Box::new(|_| {}));
    smoke::smoke("raft", "fide-raft", 300, target::raft);
}
