//! `make install` and `--remove`: where things go, what is not touched, that nothing is compiled.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A scratch directory: a build, and programs in front of the PATH that write down that they were called.
pub struct Place(tempfile::TempDir);

const TELLTALES: [&str; 5] = ["cargo", "groupadd", "systemd-sysusers", "ldconfig", "systemctl"];

impl Place {
    /// `None` where it cannot be tried.
    pub fn new() -> Option<Self> {
        let place = Self(tempfile::tempdir().unwrap());
        for program in ["strip", "ar", "readelf", "make"] {
            if Command::new(program).arg("--version").output().is_err() {
                println!("SKIPPED installing: {program} is not here");
                return None;
            }
        }
        let beside = |name: &str| Path::new(env!("CARGO_BIN_EXE_fide")).with_file_name(name);
        for (program, package) in [
            ("fided", "fide-agent"),
            ("fide-failover", "fide-failover"),
            ("fide-zookeeper", "fide-zookeeper"),
            ("fide-kubernetes", "fide-kubernetes"),
        ] {
            if !beside(program).exists() {
                println!("SKIPPED installing: {} is not built (cargo build -p {package})", beside(program).display());
                return None;
            }
        }
        let fided = beside("fided");
        let (bin, path) = (place.at("bin"), place.at("path"));
        fs::create_dir(&bin).unwrap();
        fs::create_dir(&path).unwrap();
        for program in ["fide", "fide-dev", "fided", "fide-failover", "fide-zookeeper", "fide-kubernetes"] {
            std::os::unix::fs::symlink(beside(program), bin.join(program)).unwrap();
        }
        // What matters of the libraries in most tests is that they are ELF with symbols, and an archive of such.
        let library = |name: &str| [beside(name), beside("deps").join(name)].into_iter().find(|file| file.exists());
        for name in ["libfide.so", "libfide_redis.so"] {
            std::os::unix::fs::symlink(library(name).as_ref().unwrap_or(&fided), bin.join(name)).unwrap();
        }
        match library("libfide.a") {
            Some(archive) => std::os::unix::fs::symlink(archive, bin.join("libfide.a")).unwrap(),
            None => {
                let made = Command::new("ar").arg("rc").arg(bin.join("libfide.a")).arg(&fided).status().unwrap();
                assert!(made.success());
            }
        }
        for program in TELLTALES {
            let file = path.join(program);
            fs::write(&file, format!("#!/bin/sh\necho {program} \"$@\" >> {}\n", place.at("called").display())).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Some(place)
    }

    /// Whether libfide is what it is called.
    pub fn has_library(&self) -> bool {
        fs::read(self.at("bin/libfide.so")).unwrap().windows(9).any(|w| w == b"fide_open")
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn make(&self, target: &str, variables: &[(&str, &Path)]) -> Output {
        let mut command = Command::new("make");
        command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).arg(target).env("FIDE_BIN", self.at("bin"));
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", self.at("path").display())).env_remove("MAKEFLAGS");
        command.args(variables.iter().map(|(name, value)| format!("{name}={}", value.display())));
        command.output().unwrap()
    }

    fn called(&self) -> String {
        fs::read_to_string(self.at("called")).unwrap_or_default()
    }
}

fn done(o: &Output) -> String {
    let said = String::from_utf8_lossy(&o.stdout).into_owned() + &String::from_utf8_lossy(&o.stderr);
    assert!(o.status.success(), "{said}");
    said
}

/// All files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() { found.extend(files(&entry.path())) } else { found.push(entry.path()) }
    }
    found
}

/// Whether it has sections of this name, of the symbols or lines.
fn has_section(file: &Path, name: &str) -> bool {
    let sections = Command::new("readelf").arg("-SW").arg(file).output().unwrap();
    String::from_utf8_lossy(&sections.stdout).contains(name)
}

#[test]
fn everything_goes_below_the_prefix_stripped_and_the_system_is_left_alone() {
    let Some(place) = Place::new() else { return };
    let prefix = place.at("scratch");
    let said = done(&place.make("install", &[("PREFIX", &prefix)]));
    let config = prefix.join("etc/fide/fide.toml");
    assert!(said.contains(config.to_str().unwrap()), "{said}");
    assert_eq!(place.called(), "", "neither compiled, nor a group, nor anything else of this system");
    for file in ["bin/fide", "bin/fide-dev", "bin/fided", "lib/libfide.so"] {
        let (installed, built) = (prefix.join(file), place.at("bin").join(Path::new(file).file_name().unwrap()));
        assert!(has_section(&built, ".debug_line") && has_section(&built, ".symtab"), "otherwise this shows nothing");
        assert!(!has_section(&installed, ".debug_line") && !has_section(&installed, ".symtab"), "{file} is stripped");
    }
    let module = prefix.join("lib/redis/modules/fide.so");
    assert!(!has_section(&module, ".debug_line"), "the module of Redis is stripped");
    assert_eq!(fs::metadata(&module).unwrap().permissions().mode() & 0o777, 0o755, "Redis loads what may be executed");
    let archive = prefix.join("lib/libfide.a");
    assert!(!has_section(&archive, ".debug_line") && has_section(&archive, ".symtab"), "what links it needs its symbols");
    for file in
        ["prometheus/fide.rules.yml", "grafana/fide.dashboard.json", "kubernetes/fided.yaml", "kubernetes/fide-kubernetes.yaml"]
    {
        assert!(prefix.join("share/fide").join(file).is_file(), "{file}");
    }
    let unit = fs::read_to_string(prefix.join("lib/systemd/system/fided.service")).unwrap();
    let start = format!("ExecStart={0}/bin/fided --config {0}/etc/fide/fide.toml", prefix.display());
    assert!(unit.contains(&start), "{unit}");
    let check = Command::new(prefix.join("bin/fided")).arg("--check").arg("--config").arg(&config).output().unwrap();
    let said = String::from_utf8_lossy(&check.stderr).into_owned();
    assert!(check.status.success() || said.contains("node = ") || said.contains("[[path]]"), "it runs: {said}");

    done(&place.make("uninstall", &[("PREFIX", &prefix)]));
    assert_eq!(files(&prefix), Vec::<PathBuf>::new());
}

#[test]
fn a_package_has_its_configuration_in_etc_and_one_that_was_changed_stays() {
    let Some(place) = Place::new() else { return };
    let destdir = place.at("root");
    let (usr, elsewhere) = (PathBuf::from("/usr"), PathBuf::from("/opt/etc"));
    done(&place.make("install", &[("DESTDIR", &destdir), ("PREFIX", &usr)]));
    assert!(destdir.join("etc/fide/fide.toml").is_file() && destdir.join("usr/bin/fided").is_file());
    done(&place.make("uninstall", &[("DESTDIR", &destdir), ("PREFIX", &usr)]));
    assert_eq!(files(&destdir), Vec::<PathBuf>::new());

    let variables = [("DESTDIR", destdir.as_path()), ("PREFIX", &usr), ("sysconfdir", &elsewhere)];
    done(&place.make("install", &variables));
    let config = destdir.join("opt/etc/fide/fide.toml");
    let unit = fs::read_to_string(destdir.join("usr/lib/systemd/system/fided.service")).unwrap();
    assert!(unit.contains("--config /opt/etc/fide/fide.toml"), "{unit}");
    fs::write(&config, "# mine\n").unwrap();
    done(&place.make("install", &variables));
    assert_eq!(fs::read_to_string(&config).unwrap(), "# mine\n");
    // Wherever it was put is known from what was installed.
    done(&place.make("uninstall", &variables[..2]));
    assert_eq!(files(&destdir), [config]);
    assert_eq!(place.called(), "");
}

#[test]
fn what_is_not_built_is_not_compiled_by_an_installation() {
    let Some(place) = Place::new() else { return };
    fs::remove_file(place.at("bin/libfide.a")).unwrap();
    let prefix = place.at("scratch");
    let refused = place.make("install", &[("PREFIX", &prefix)]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("libfide.a is missing") && said.contains("make build"), "{said}");
    assert_eq!(place.called(), "");
    assert_eq!(files(&prefix), Vec::<PathBuf>::new());
}
