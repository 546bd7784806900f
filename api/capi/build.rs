//! Gives libfide.so its soname: its number grows only when programs must be compiled anew.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libfide.so.0");
}
