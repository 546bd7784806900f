//! Compiles the kernel program that tells a thread's own time from its processor's other work. What it needs is what `fide-xdp` needs.
use std::{env, path::PathBuf, process::Command};

fn main() {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let (source, kernel) = (here.join("src/bpf/softirq.bpf.c"), here.join("../xdp/src/bpf"));
    for of in [source.clone(), kernel.join("kernel.h")] {
        println!("cargo:rerun-if-changed={}", of.display());
    }
    println!("cargo:rerun-if-env-changed=FIDE_CLANG");
    let clang = env::var("FIDE_CLANG").unwrap_or_else(|_| "clang".into());
    let status = Command::new(&clang)
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror"])
        .arg(format!("-fdebug-prefix-map={}=.", here.display()))
        .arg("-I")
        .arg(&kernel)
        .arg("-c")
        .arg(&source)
        .arg("-o")
        .arg(PathBuf::from(env::var("OUT_DIR").expect("cargo sets it")).join("softirq.bpf.o"))
        .status();
    match status {
        Ok(s) if s.success() => {}
        Ok(s) => panic!(
            "{clang} could not compile {} ({s}); are libbpf's headers there? (Debian: clang, libbpf-dev)",
            source.display()
        ),
        Err(e) => panic!("{clang} cannot be run: {e} (Debian: clang, or name another with FIDE_CLANG)"),
    }
}
