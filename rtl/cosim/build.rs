//! Says whether there is a Verilator model: without one, the tests that need it are reported as ignored. The file itself may
//! still be in the making; a test that does not find it fails.
fn main() {
    println!("cargo:rustc-check-cfg=cfg(rtl_model)");
    println!("cargo:rerun-if-env-changed=FIDE_RTL_MODEL");
    if std::env::var_os("FIDE_RTL_MODEL").is_some_and(|path| !path.is_empty()) {
        println!("cargo:rustc-cfg=rtl_model");
    }
}
