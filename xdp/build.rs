//! Compiles the kernel programs with clang. Needs clang and libbpf's headers (Debian: clang, libbpf-dev).
use std::{env, path::PathBuf, process::Command};

fn main() {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let bpf = here.join("src/bpf");
    let wire = here.join("../wire/include");
    for dir in [&bpf, &wire] {
        println!("cargo:rerun-if-changed={}", dir.display());
    }
    println!("cargo:rerun-if-env-changed=FIDE_CLANG");
    let clang = env::var("FIDE_CLANG").unwrap_or_else(|_| "clang".into());
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    for name in ["fide.bpf", "fence.bpf", "ends.bpf"] {
        // mcpu=v3: atomics that return the old value (Linux 5.12).
        let status = Command::new(&clang)
            .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror"])
            .arg(format!("-fdebug-prefix-map={}=.", here.display()))
            .arg("-I")
            .arg(&wire)
            .arg("-I")
            .arg(&bpf)
            .arg("-c")
            .arg(bpf.join(name).with_extension("bpf.c"))
            .arg("-o")
            .arg(out.join(name).with_extension("bpf.o"))
            .status();
        match status {
            Ok(s) if s.success() => {}
            Ok(s) => panic!(
                "{clang} could not compile {name}.c ({s}); are libbpf's headers there? (Debian: apt-get install clang libbpf-dev)"
            ),
            Err(e) => {
                panic!("{clang} cannot be run: {e} (Debian: apt-get install clang libbpf-dev, or name another with FIDE_CLANG)")
            }
        }
    }
}
