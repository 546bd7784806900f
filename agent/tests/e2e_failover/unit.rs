//! `fide-failover` over what runs on one host alone: a systemd service under a real service manager, and an address.

use crate::common::service::ServiceManager;
use crate::common::{Process, Setup, World, until};
use crate::e2e_failover::program;
use std::fs;
use std::process::{Command, Stdio};

struct Managed {
    managers: Vec<Process>,
    systemds: Vec<ServiceManager>,
    w: World,
    more: String,
}

impl Managed {
    fn up(hosts: u16, more: &str, unit: bool, setup: impl FnOnce(Setup) -> Setup) -> Option<Self> {
        let w = setup(Setup::hosts(hosts)).up()?;
        w.all_alive();
        let mut of = Self { managers: Vec::new(), systemds: Vec::new(), w, more: more.into() };
        for host in (1..=hosts).filter(|_| unit) {
            of.systemds.push(ServiceManager::start(
                &of.w,
                host,
                &Self::service(host),
                "ExecStart=/bin/sleep 3600\nTimeoutStopSec=2\n",
            ));
        }
        for host in 1..=hosts {
            let log = fs::File::create(of.w.lab.host_dir(host).join("failover.log")).unwrap();
            let mut command = of.command(host, hosts);
            command.arg("run").stdout(log.try_clone().unwrap()).stderr(log);
            of.managers.push(Process::spawn(command));
        }
        Some(of)
    }

    fn service(host: u16) -> String {
        format!("fide-test-{}-h{host}.service", std::process::id())
    }

    fn manager(&self, host: u16) -> &ServiceManager {
        &self.systemds[usize::from(host) - 1]
    }

    fn command(&self, host: u16, hosts: u16) -> Command {
        let dir = self.w.lab.host_dir(host);
        let hosts: Vec<String> = (1..=hosts).map(|host| format!("\"h{host}\"")).collect();
        let more = self.more.replace("SERVICE", &Self::service(host));
        let text = format!("name = \"orders\"\nhosts = [{}]\nstate = {:?}\n{more}\n", hosts.join(", "), dir.join("failover"));
        crate::e2e_failover::configure(&dir.join("failover.toml"), &text);
        let mut command = self.w.lab.command(host, program().to_str().unwrap()).unwrap();
        command.arg("--config").arg(dir.join("failover.toml")).arg("--socket").arg(self.w.socket(host));
        command.env("XDG_RUNTIME_DIR", ServiceManager::runtime(&self.w, host)).stdin(Stdio::null());
        command
    }

    fn say(&self, host: u16, hosts: u16, words: &[&str]) -> (bool, String) {
        let out = self.command(host, hosts).args(words).output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
    }

    fn has(&self, host: u16, address: &str) -> bool {
        let out = self.w.lab.command(host, "ip").unwrap().args(["address", "show"]).output().unwrap();
        String::from_utf8_lossy(&out.stdout).contains(address)
    }

    /// What a neighbour knows of an address: whose it is.
    fn neighbour(&self, host: u16, address: &str) -> String {
        let out = self.w.lab.command(host, "ip").unwrap().args(["neighbour", "show", address]).output().unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    fn mac(&self, host: u16) -> String {
        let out = self.w.lab.command(host, "cat").unwrap().arg("/sys/class/net/net0/address").output().unwrap();
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        let hosts = self.managers.len() as u16;
        if std::thread::panicking() || std::env::var_os("FIDE_TEST_LOGS").is_some() {
            for host in 1..=hosts {
                let read = |name: &str| fs::read_to_string(self.w.lab.host_dir(host).join(name)).unwrap_or_default();
                println!("---- manager of h{host}\n{}", read("failover.log"));
            }
        }
        self.managers.clear();
        self.systemds.clear();
    }
}

#[test]
fn a_service_runs_on_the_leading_host_alone() {
    if !ServiceManager::can_run() {
        return;
    }
    let Some(of) = Managed::up(2, "planned = \"wait 5s\"\n[unit]\nname = \"SERVICE\"\nuser = true\n", true, |setup| setup) else {
        return;
    };
    until("it runs on the first host", || of.manager(1).runs());
    assert!(!of.manager(2).runs());
    until("its process is known", || of.say(2, 2, &["status"]).1.contains("alive"));
    // A crash.
    // SAFETY: two numbers; the process is this test's.
    unsafe { libc::kill(of.manager(1).pid(), libc::SIGKILL) };
    until("it runs on the other host", || of.manager(2).runs());
    assert!(!of.manager(1).runs());
    let (ok, told) = of.say(1, 2, &["history"]);
    assert!(ok && told.contains("orders@h1: ") && told.contains("certain"), "{told}");
    until("its process is known", || of.say(1, 2, &["status"]).1.contains("alive"));
    // A restart is none.
    of.manager(2).systemctl(&["restart"]);
    until("it goes on there in a term of its own", || of.say(1, 2, &["history"]).1.contains("restarted"));
    until("it runs there", || of.manager(2).runs());
    assert!(!of.manager(1).runs());
    until("its process is known", || of.say(1, 2, &["status"]).1.contains("alive"));
    // Whoever starts it elsewhere is corrected.
    of.manager(1).systemctl(&["start"]);
    until("it runs on one host only", || !of.manager(1).runs() && of.manager(2).runs());
    let (ok, told) = of.say(1, 2, &["switch", "h1"]);
    assert!(ok && told.contains("h1 leads"), "{told}");
    until("it runs on the first host", || of.manager(1).runs() && !of.manager(2).runs());
}

#[test]
fn an_address_alone_moves_by_switch_and_behind_a_fence_and_neighbours_learn_of_it() {
    for address in ["10.77.0.200/24", "fd77::c8/64"] {
        let Some(pins) = crate::e2e_failover::fence::Pins::new() else { return };
        let lines = move |host: u16| pins.config(host, "mode = \"acknowledged\"\ntimeout = \"2s\"\n");
        let more = format!("[address]\nip = \"{address}\"\ninterface = \"net0\"\n");
        let Some(of) = Managed::up(3, &more, false, |setup| setup.extra(lines)) else { return };
        let ip = address.split('/').next().unwrap();
        until("the first host has it", || of.has(1, ip));
        assert!(!of.has(2, ip) && !of.has(3, ip));
        until("fences are promised", || (2..=3).all(|host| of.w.view(host, "h1").is_some_and(|h| h.fence.is_some())));
        let reached = |from: u16| {
            let mut ping = of.w.lab.command(from, "python3").unwrap();
            // Any packet makes the kernel ask for the neighbour.
            ping.args(["-c", "import socket,sys; s=socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x',(sys.argv[1],9))", ip]);
            ping.status().unwrap().success()
        };
        until("a neighbour knows whose it is", || reached(3) && of.neighbour(3, ip).contains(&of.mac(1)));
        let (ok, told) = of.say(3, 3, &["switch", "h2"]);
        assert!(ok && told.contains("h2 leads"), "{told}");
        until("the second host has it alone", || of.has(2, ip) && !of.has(1, ip));
        // Nothing was sent meanwhile: the announcement told.
        until("the neighbour has learned of it", || of.neighbour(3, ip).contains(&of.mac(2)));
        let (ok, told) = of.say(3, 3, &["switch", "h1"]);
        assert!(ok, "{told}");
        until("the first host has it again", || of.has(1, ip) && !of.has(2, ip));
        fide_lab::NETS.into_iter().for_each(|net| of.w.lab.cut(1, net, fide_lab::Cut::Silent).unwrap());
        until("another host has it", || of.has(2, ip) || of.has(3, ip));
        until("the former one has it no more, where nobody sees it", || !of.has(1, ip));
    }
}
