//! `make deb`: what is in which package, and that dpkg installs, upgrades, removes and purges them.

use crate::install::Place;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PACKAGES: [&str; 5] = ["fide", "libfide", "libfide-dev", "fide-dev", "fide-failover"];

fn said(o: &Output) -> String {
    String::from_utf8_lossy(&o.stdout).into_owned() + &String::from_utf8_lossy(&o.stderr)
}

fn run(command: &mut Command) -> String {
    let o = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(o.status.success(), "{command:?}: {}", said(&o));
    said(&o)
}

/// The packages, built of this build.
struct Packages {
    place: Place,
}

impl Packages {
    /// `None` where it cannot be tried.
    fn build() -> Option<Self> {
        for tool in ["dpkg-deb", "dpkg-shlibdeps", "dpkg"] {
            if Command::new(tool).arg("--version").output().is_err() {
                println!("SKIPPED packages: {tool} is not here (scripts/setup deb)");
                return None;
            }
        }
        let place = Place::new()?;
        let mut make = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/deb"));
        run(make.arg(place.at("debs")).env("FIDE_BIN", place.at("bin")).env("DEB_COMPRESS", "none"));
        Some(Self { place })
    }

    fn file(&self, package: &str) -> PathBuf {
        let start = format!("{package}_");
        let found = fs::read_dir(self.place.at("debs")).unwrap().flatten().map(|e| e.path());
        found.into_iter().find(|p| p.file_name().unwrap().to_string_lossy().starts_with(&start)).unwrap()
    }

    fn field(&self, package: &str, field: &str) -> String {
        run(Command::new("dpkg-deb").arg("-f").arg(self.file(package)).arg(field)).trim().to_owned()
    }

    /// Files and links, as absolute paths.
    fn contents(&self, package: &str) -> Vec<String> {
        let list = run(Command::new("dpkg-deb").arg("-c").arg(self.file(package)));
        let files = list.lines().filter(|l| !l.starts_with('d')).filter_map(|l| l.split_whitespace().nth(5));
        files.map(|path| path.trim_start_matches('.').to_owned()).collect()
    }

    /// Package fide as a later release that brings another example configuration.
    fn later(&self) -> PathBuf {
        let (tree, deb) = (self.place.at("later"), self.place.at("fide_later.deb"));
        run(Command::new("dpkg-deb").arg("-R").arg(self.file("fide")).arg(&tree));
        let control = fs::read_to_string(tree.join("DEBIAN/control")).unwrap();
        let version = self.field("fide", "Version");
        fs::write(tree.join("DEBIAN/control"), control.replace(&format!("Version: {version}"), &format!("Version: {version}.1")))
            .unwrap();
        let config = fs::read_to_string(tree.join("etc/fide/fide.toml")).unwrap();
        fs::write(tree.join("etc/fide/fide.toml"), config + "# later\n").unwrap();
        run(Command::new("dpkg-deb").args(["--root-owner-group", "-Znone", "-b"]).arg(&tree).arg(&deb));
        deb
    }
}

/// A root of its own, with an empty file system, whose dpkg knows of the libraries that this machine has.
struct Root(PathBuf);

impl Root {
    fn new(at: PathBuf) -> Self {
        for directory in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "etc", "tmp"] {
            fs::create_dir_all(at.join(directory)).unwrap();
        }
        fs::copy("/var/lib/dpkg/status", at.join("var/lib/dpkg/status")).unwrap();
        Self(at)
    }

    fn dpkg(&self, arguments: &[&str], files: &[PathBuf]) -> Output {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg("--root").arg(&self.0).args([
            "--force-not-root",
            "--force-script-chrootless",
            "--force-confdef",
            "--force-confold",
        ]);
        // Ours, if they are installed on this machine.
        dpkg.args(["--force-overwrite", "--force-unsafe-io", "--log=/dev/null"]).args(arguments).args(files);
        let path = std::env::var("PATH").unwrap();
        dpkg.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("DEBIAN_FRONTEND", "noninteractive").output().unwrap()
    }

    fn does(&self, arguments: &[&str], files: &[PathBuf]) -> String {
        let o = self.dpkg(arguments, files);
        assert!(o.status.success(), "dpkg {arguments:?}: {}", said(&o));
        said(&o)
    }

    fn has(&self, path: &str) -> bool {
        self.0.join(path.trim_start_matches('/')).symlink_metadata().is_ok()
    }

    fn state(&self, package: &str) -> String {
        let status = fs::read_to_string(self.0.join("var/lib/dpkg/status")).unwrap();
        let of = |block: &&str| block.lines().any(|l| l == format!("Package: {package}"));
        let block = status.split("\n\n").find(of).unwrap_or("").to_owned();
        block.lines().find_map(|l| l.strip_prefix("Status: ")).unwrap_or("none").to_owned()
    }
}

#[test]
fn packages_are_installed_upgraded_removed_and_purged() {
    let Some(packages) = Packages::build() else { return };
    in_a_root_of_their_own(&packages);
    where_they_run(&packages);
}

fn in_a_root_of_their_own(packages: &Packages) {
    // Every file in one package, and where it belongs.
    let mut all: Vec<(String, &str)> = Vec::new();
    for package in PACKAGES {
        all.extend(packages.contents(package).into_iter().map(|path| (path, package)));
        assert!(packages.field(package, "Description").starts_with("crash detection within microseconds"));
    }
    let owner = |path: &str| {
        let owners: Vec<&str> = all.iter().filter(|(p, _)| p == path).map(|(_, package)| *package).collect();
        assert_eq!(owners.len(), 1, "{path}: {owners:?}");
        owners[0]
    };
    for (path, package) in [
        ("/usr/bin/fide", "fide"),
        ("/usr/bin/fided", "fide"),
        ("/usr/lib/systemd/system/fided.service", "fide"),
        ("/usr/lib/sysusers.d/fide.conf", "fide"),
        ("/usr/lib/redis/modules/fide.so", "fide"),
        ("/usr/share/man/man1/fide-group.1.gz", "fide"),
        ("/usr/share/man/man8/fided.8.gz", "fide"),
        ("/usr/share/fide/prometheus/fide.rules.yml", "fide"),
        ("/usr/share/fide/grafana/fide.dashboard.json", "fide"),
        ("/usr/share/bash-completion/completions/fide", "fide"),
        ("/etc/fide/fide.toml", "fide"),
        ("/usr/bin/fide-dev", "fide-dev"),
        ("/usr/share/man/man1/fide-dev.1.gz", "fide-dev"),
        ("/usr/share/man/man1/fide-lab-cut.1.gz", "fide-dev"),
        ("/usr/share/man/man1/fide-sim-run.1.gz", "fide-dev"),
        ("/usr/share/zsh/site-functions/_fide-dev", "fide-dev"),
        ("/usr/include/fide.h", "libfide-dev"),
        ("/usr/bin/fide-failover", "fide-failover"),
        ("/usr/lib/systemd/system/fide-failover.service", "fide-failover"),
        ("/usr/share/man/man8/fide-failover.8.gz", "fide-failover"),
        ("/usr/bin/fide-zookeeper", "fide-failover"),
        ("/usr/lib/systemd/system/fide-zookeeper.service", "fide-failover"),
        ("/usr/bin/fide-kubernetes", "fide-failover"),
        ("/usr/share/man/man8/fide-kubernetes.8.gz", "fide-failover"),
        ("/usr/share/fide/kubernetes/fided.yaml", "fide-failover"),
        ("/usr/share/man/man1/fide-nano.1.gz", "fide-dev"),
    ] {
        assert_eq!(owner(path), package, "{path}");
    }
    let of = |end: &str| all.iter().find(|(path, _)| path.ends_with(end)).map(|(_, package)| *package);
    assert_eq!(
        (of("/libfide.so.0"), of("/libfide.so"), of("/pkgconfig/fide.pc")),
        (Some("libfide"), Some("libfide-dev"), Some("libfide-dev"))
    );
    assert!(packages.field("fide", "Depends").contains("libc6"));
    let version = packages.field("fide", "Version");
    assert!(packages.field("fide-dev", "Depends").contains(&format!("fide (= {version})")));

    let root = Root::new(packages.place.at("root"));
    // What depends on another package is refused alone.
    let alone = root.dpkg(&["-i"], &[packages.file("fide-dev")]);
    assert!(!alone.status.success() && said(&alone).contains("depends on fide"), "{}", said(&alone));
    root.does(&["-i"], &PACKAGES.map(|package| packages.file(package)));
    for (path, _) in &all {
        assert!(root.has(path), "{path}");
    }
    for package in PACKAGES {
        assert_eq!(root.state(package), "install ok installed");
    }
    let group = fs::read_to_string(root.0.join("etc/group")).unwrap_or_default();
    assert!(group.lines().any(|line| line.starts_with("fide:")), "the group of the socket: {group}");

    let config = root.0.join("etc/fide/fide.toml");
    fs::write(&config, "# mine\n").unwrap();
    fs::create_dir_all(root.0.join("var/lib/fide")).unwrap();
    fs::write(root.0.join("etc/fide/key1"), "secret\n").unwrap();
    // It is of the same release as fide.
    root.does(&["-r"], &[PathBuf::from("fide-dev")]);
    root.does(&["-i"], &[packages.later()]);
    assert_eq!(fs::read_to_string(&config).unwrap(), "# mine\n", "an upgrade leaves it as it is");
    assert!(fs::read_to_string(config.with_file_name("fide.toml.dpkg-dist")).unwrap().ends_with("# later\n"));

    root.does(&["-r"], &["fide", "fide-failover", "libfide-dev", "libfide"].map(PathBuf::from));
    for (path, _) in all.iter().filter(|(path, _)| !path.starts_with("/etc/")) {
        assert!(!root.has(path), "{path} stays although its package was removed");
    }
    assert!(config.exists() && root.has("var/lib/fide"), "removed is not purged");
    root.does(&["-P"], &PACKAGES.map(PathBuf::from));
    assert!(!config.exists() && !root.has("var/lib/fide") && !root.has("etc/fide/fide.toml.dpkg-dist"));
    assert!(root.has("etc/fide/key1"), "a key that somebody made stays");
}

/// What is installed on this machine seen through an overlay: what is written there is gone with it.
const THROUGH_OVERLAY: &str = r#"
set -e
cd "$1"
mkdir -p over/up over/work over/root
mount -t overlay overlay -o lowerdir=/,upperdir=over/up,workdir=over/work over/root
mount -t proc proc over/root/proc
mount --rbind /dev over/root/dev
mount -t tmpfs tmpfs over/root/run
mount -t tmpfs tmpfs over/root/tmp
cp debs/*.deb over/root/tmp/
cat >over/root/tmp/inside <<'INSIDE'
set -e
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
dpkg -P fide-dev fide-failover libfide-dev libfide fide >/dev/null 2>&1 || true
dpkg --force-unsafe-io -i /tmp/fide_*.deb /tmp/libfide*.deb
getent group fide
fided --check --config /etc/fide/fide.toml || echo checked
fide --version
fide lab list && exit 7 || test $? = 4
dpkg --force-unsafe-io -i /tmp/fide-dev_*.deb /tmp/fide-failover_*.deb
fide lab list
fide-failover --version
if [ -n "$WITH_LIBRARY" ]; then
	printf '#include <fide.h>\n#include <stdio.h>\nint main(void) { puts(fide_version()); return 0; }\n' >/tmp/t.c
	cc /tmp/t.c -o /tmp/t $(pkg-config --cflags --libs fide)
	ldd /tmp/t | grep libfide.so.0
	echo "library $(/tmp/t)"
fi
dpkg -P fide-dev fide-failover libfide-dev libfide fide
test ! -e /usr/bin/fide && test ! -e /etc/fide/fide.toml
echo all done
INSIDE
chroot over/root /bin/sh /tmp/inside
"#;

fn where_they_run(packages: &Packages) {
    // SAFETY: takes nothing and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    let overlays = fs::read_to_string("/proc/filesystems").is_ok_and(|all| all.contains("overlay"));
    if !is_root || !overlays {
        println!("SKIPPED packages in a chroot: it needs root, and overlay file systems");
        return;
    }
    // Above a file system that overlays may lie on.
    let scratch = packages.place.at(".");
    let has_library = packages.place.has_library();
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "--propagation", "private", "sh", "-c", THROUGH_OVERLAY, "sh"]).arg(&scratch);
    let o = inside.env("WITH_LIBRARY", if has_library { "yes" } else { "" }).output().unwrap();
    if said(&o).contains("overlay: ") && said(&o).contains("mount:") {
        println!("SKIPPED packages in a chroot: {}", said(&o));
        return;
    }
    assert!(o.status.success() && o.stdout.ends_with(b"all done\n"), "{}", said(&o));
    assert!(said(&o).contains("apt install fide-dev"), "{}", said(&o));
    assert!(!has_library || said(&o).contains("library 0."), "{}", said(&o));
}
