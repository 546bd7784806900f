//! Says whether there is a Verilator model: without one, the tests that need it are reported as ignored.
fn main() {
    println!("cargo:rustc-check-cfg=cfg(rtl_model)");
    println!("cargo:rerun-if-env-changed=FIDE_RTL_MODEL");
    if std::env::var_os("FIDE_RTL_MODEL").is_some_and(|path| std::path::Path::new(&path).is_file()) {
        println!("cargo:rustc-cfg=rtl_model");
    }
}
