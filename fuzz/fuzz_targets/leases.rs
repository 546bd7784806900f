#![no_main]
#[path = "../../proto/tests/hostile/cores/mod.rs"]
mod cores;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cores::membership::leases(bytes));
