#![no_main]
#[path = "../../wire/tests/targets/mod.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::introduction(bytes));
