//! The shipped manifests: read as YAML, and what they say held against what it is about. `scripts/bindings manifests` has them judged by the API's schema.

use fide_agent::config::Config;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/kubernetes").join(name)
}

/// The objects of a manifest.
pub fn objects(name: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&std::fs::read_to_string(shipped(name)).unwrap()).unwrap()
}

/// One of them.
pub fn object(name: &str, kind: &str) -> Value {
    objects(name).into_iter().find(|object| object["kind"] == kind).unwrap()
}

#[test]
fn the_agents_capabilities_are_those_of_its_unit() {
    let unit = std::fs::read_to_string(shipped("../fided.service")).unwrap();
    let bounded = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let mut of_unit: Vec<&str> = bounded.split(' ').map(|c| c.strip_prefix("CAP_").unwrap()).collect();
    let set = object("fided.yaml", "DaemonSet");
    let container = &set["spec"]["template"]["spec"]["containers"][0];
    let mut of_container: Vec<&str> =
        container["securityContext"]["capabilities"]["add"].as_array().unwrap().iter().map(|c| c.as_str().unwrap()).collect();
    of_unit.sort_unstable();
    of_container.sort_unstable();
    assert_eq!(of_container, of_unit);
}

#[test]
fn the_agents_configuration_is_one_and_its_files_are_where_it_looks() {
    let text = object("fided.yaml", "ConfigMap")["data"]["fide.toml"].as_str().unwrap().to_owned();
    let set = object("fided.yaml", "DaemonSet");
    let pod = &set["spec"]["template"]["spec"];
    let mounted: Vec<&str> =
        pod["containers"][0]["volumeMounts"].as_array().unwrap().iter().map(|m| m["mountPath"].as_str().unwrap()).collect();
    for path in ["/etc/fide/fide.toml", "/etc/fide/key1", "/run/fide", "/var/lib/fide", "/sys/fs/bpf", "/sys/fs/cgroup"] {
        assert!(mounted.contains(&path), "{path}: {mounted:?}");
    }
    // Also with what is commented out in it, each block of which begins with a table.
    let whole: String = text
        .lines()
        .map(|line| {
            line.strip_prefix("# ")
                .filter(|rest| rest.starts_with('[') || rest.split(' ').nth(1) == Some("="))
                .unwrap_or(line)
                .to_owned()
                + "\n"
        })
        .collect();
    assert!(whole.contains("\n[fence]\nmode") && whole.contains("\n[[watch]]\nname"), "{whole}");
    for text in [&text, &whole] {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key1");
        std::fs::write(&key, "00112233445566778899aabbccddeeff\n").unwrap();
        std::fs::set_permissions(&key, <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o400)).unwrap();
        let here = text.replace("/etc/fide/key1", key.to_str().unwrap());
        let config = Config::parse(&here).unwrap_or_else(|e| panic!("{e}\n{here}"));
        assert_eq!(config.paths.len(), 2);
    }
}
