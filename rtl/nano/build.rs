//! Says whether the labs with engines in hardware are run (`scripts/rtl lab`): else these tests are reported as ignored.
fn main() {
    println!("cargo:rustc-check-cfg=cfg(rtl_model)");
    println!("cargo:rerun-if-env-changed=FIDE_RTL_LAB");
    if std::env::var_os("FIDE_RTL_LAB").is_some() {
        println!("cargo:rustc-cfg=rtl_model");
    }
}
