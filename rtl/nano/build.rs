//! Says whether there is a Verilator model (`FIDE_RTL_MODEL`: the trace and a short soak are run with it), and whether the long labs with
//! engines in hardware are run (`scripts/rtl lab`): else these tests are reported as ignored.
fn main() {
    println!("cargo:rustc-check-cfg=cfg(rtl_model)");
    println!("cargo:rustc-check-cfg=cfg(rtl_lab)");
    println!("cargo:rerun-if-env-changed=FIDE_RTL_MODEL");
    println!("cargo:rerun-if-env-changed=FIDE_RTL_LAB");
    if std::env::var_os("FIDE_RTL_MODEL").is_some_and(|path| !path.is_empty()) {
        println!("cargo:rustc-cfg=rtl_model");
    }
    if std::env::var_os("FIDE_RTL_LAB").is_some() {
        println!("cargo:rustc-cfg=rtl_lab");
    }
}
