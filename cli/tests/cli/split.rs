//! `fide` runs `fide-dev` for `lab`, `demo`, `bench` and `sim`, says which package has it where it is not there, and holds nothing of it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `fide` in a directory of its own, with a PATH that has nothing of this build.
fn alone(directory: &Path, path: &str, line: &[&str]) -> Output {
    let fide = directory.join("fide");
    if !fide.exists() {
        fs::copy(env!("CARGO_BIN_EXE_fide"), &fide).unwrap();
    }
    Command::new(fide).args(line).env("PATH", path).output().unwrap()
}

#[test]
fn where_fide_dev_is_not_installed_the_package_is_named() {
    let place = tempfile::tempdir().unwrap();
    for line in
        [&["lab", "up"][..], &["demo"], &["bench", "detect"], &["--json", "sim", "delays"], &["help", "lab"], &["man", "lab"]]
    {
        let o = alone(place.path(), "/nonexistent", line);
        let text = said(&o.stderr);
        assert_eq!(o.status.code(), Some(4), "{line:?}: {text}");
        assert!(text.contains("apt install fide-dev"), "{line:?}: {text}");
    }
    let o = alone(place.path(), "/nonexistent", &["--json", "sim"]);
    let failure: serde_json::Value = serde_json::from_slice(&o.stderr).unwrap();
    assert_eq!((failure["kind"].as_str(), failure["exit"].as_u64()), (Some("not-found"), Some(4)));
    // The rest does without it.
    let o = alone(place.path(), "/nonexistent", &["completions", "bash"]);
    assert!(o.status.success() && said(&o.stdout).contains("unmonitor"));
    assert!(said(&alone(place.path(), "/nonexistent", &["--help"]).stdout).contains("package fide-dev"));
}

#[test]
fn it_is_found_beside_fide_and_in_path_and_gets_the_line_as_it_was_typed() {
    let place = tempfile::tempdir().unwrap();
    let directory = Path::new(env!("CARGO_BIN_EXE_fide-dev")).parent().unwrap().to_str().unwrap();
    let o = alone(place.path(), directory, &["--json", "sim", "delays"]);
    assert!(o.status.success(), "{}", said(&o.stderr));
    assert_eq!(said(&o.stdout).lines().filter(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()).count(), 5);
    // The one beside it is preferred; its help shows what is typed.
    fs::copy(env!("CARGO_BIN_EXE_fide-dev"), place.path().join("fide-dev")).unwrap();
    let o = alone(place.path(), "/nonexistent", &["lab", "up", "--help"]);
    assert!(said(&o.stdout).contains("Usage: fide lab up"), "{}", said(&o.stdout));
    let o = alone(place.path(), "/nonexistent", &["sim", "run", "--engine", "zab"]);
    assert_eq!(o.status.code(), Some(2), "its exit code is that of fide");
    assert!(said(&alone(place.path(), "/nonexistent", &["help", "sim"]).stdout).contains("Usage: fide sim"));
}

#[test]
fn the_operators_program_holds_no_bench_no_lab_and_no_simulator() {
    let place = tempfile::tempdir().unwrap();
    let stripped = |name: &str, program: &str| {
        let to = place.path().join(name);
        let done = Command::new("strip").arg("-o").arg(&to).arg(program).status();
        done.is_ok_and(|status| status.success()).then(|| fs::read(to).unwrap())
    };
    let (Some(fide), Some(dev)) = (stripped("fide", env!("CARGO_BIN_EXE_fide")), stripped("dev", env!("CARGO_BIN_EXE_fide-dev")))
    else {
        println!("SKIPPED: strip is not here");
        return;
    };
    let holds = |program: &[u8], text: &str| program.windows(text.len()).any(|w| w == text.as_bytes());
    for text in ["bench-observer", "within-contract", "sentinel"] {
        assert!(holds(&dev, text), "otherwise this shows nothing: {text}");
        assert!(!holds(&fide, text), "{text}");
    }
    assert!(fide.len() * 5 < dev.len() * 4, "{} and {}", fide.len(), dev.len());
}
