#![no_main]
#[path = "../../proto/tests/hostile/cores/mod.rs"]
mod cores;
#[path = "../../raft/tests/hostile/target.rs"]
mod target;

libfuzzer_sys::fuzz_target!(
    // The fuzzer's hook ends the process at any panic, also at those of the library, which are caught; what is not caught still ends it.
    init: std::panic::set_hook(Box::new(|_| {})),
    |bytes: &[u8]| target::raft(bytes)
);
