//! The ways of receiving and sending that are not the first choice; keys; names; NICs that come and go.

use crate::common::{Setup, World, until};
use fide_lab::{Cut, NETS};
use fide_wire::control::Request;
use fide_wire::verdict::Cause;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

/// kill -9, one cable, a silent host: the same whatever carries it.
fn three_stories(w: &World) {
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    let other = w.sleeper(1);
    w.watch_known(1, "other", other.pid());
    let mut watchers = [w.monitor(2, "*"), w.monitor(3, "db@h1")];
    let mut socket = w.subscriber(2, true);
    socket.client.monitor("db@h1", fide_client::Resources::default()).unwrap();
    p.kill();
    for watcher in watchers.iter_mut().chain([&mut socket]) {
        assert_eq!((watcher.failure("db@h1").cause, watcher.confirmation("db@h1").code), (Cause::Doomed, 9));
        assert_eq!(watcher.failures().len(), 1);
    }
    w.lab.cut(1, 0, Cut::Silent).unwrap();
    for observer in [2, 3] {
        w.event(observer, "path down", |e| e.cause == Cause::PathDown && e.node == "h1" && e.code == 0);
    }
    w.lab.heal(1, 0).unwrap();
    for observer in [2, 3] {
        w.event(observer, "path up", |e| e.cause == Cause::PathUp && e.node == "h1" && e.code == 0);
    }
    for net in NETS {
        w.lab.cut(1, net, Cut::Silent).unwrap();
    }
    assert_eq!(watchers[0].failure("other@h1").cause, Cause::SilentHost);
    for net in NETS {
        w.lab.heal(1, net).unwrap();
    }
    w.all_alive();
    // On a busy machine many packets of a new incarnation may come before it is introduced.
    let addresses: Vec<String> = w.lab.hosts().flat_map(|host| NETS.map(|net| w.lab.ipv4(host, net).to_string())).collect();
    for e in [1, 2, 3].iter().flat_map(|observer| w.events(*observer, Cause::ForeignTraffic)) {
        assert!(e.text.contains("(unknown-sender)") && addresses.iter().any(|of| e.text.contains(of)), "{}", e.text);
    }
    w.no_faults_but(|observer, (cause, node, app)| match observer {
        _ if *cause == Cause::ForeignTraffic => true,
        1 => [Cause::Isolated, Cause::PathDown].contains(cause) || node == "h1",
        _ => node == "h1" && (app.is_some() || [Cause::PathDown, Cause::SilentHost, Cause::Returned].contains(cause)),
    });
}

#[test]
fn without_xdp_and_packet_sockets_the_same_is_told() {
    let Some(w) = Setup::hosts(3).heartbeat("5ms").extra(|_| "receive = \"udp\"\nsend = \"udp\"\n".into()).up() else { return };
    assert_eq!((w.status(1).receive.as_str(), w.status(1).send.as_str()), ("udp", "udp"));
    three_stories(&w);
    assert_eq!(w.status(1).refused["own"], 0, "nobody hears itself");
}

#[test]
fn with_generic_xdp_the_same_is_told() {
    let Some(w) = Setup::hosts(3).heartbeat("5ms").extra(|_| "receive = \"xdp-generic\"\nsend = \"packet\"\n".into()).up() else {
        return;
    };
    assert_eq!((w.status(1).receive.as_str(), w.status(1).send.as_str()), ("xdp-generic", "packet"));
    three_stories(&w);
}

// ---- keys -----------------------------------------------------------------------------------------------------------------------

fn key_file(w: &World, host: u16, id: u8, digit: char) -> String {
    let path = w.lab.host_dir(host).join(format!("key{id}"));
    let mut file = std::fs::File::options().create(true).write(true).truncate(true).mode(0o600).open(&path).unwrap();
    writeln!(file, "{}", digit.to_string().repeat(32)).unwrap();
    path.display().to_string()
}

/// The configuration with keys in it: (id, digit) to send with and to accept.
pub fn with_keys(w: &World, host: u16, send: (u8, char), accept: Option<(u8, char)>) {
    let file = |(id, digit): (u8, char)| format!("{{ id = {id}, file = \"{}\" }}", key_file(w, host, id, digit));
    let accept = accept.map_or_else(String::new, |k| format!("accept = {}\n", file(k)));
    let text = format!("{}[keys]\nsend = {}\n{accept}", w.head(host, &format!("h{host}"), "2ms"), file(send));
    w.write_config(host, &text);
}

#[test]
fn keys_rotate_without_a_gap_and_a_wrong_one_is_told() {
    let Some(mut w) = Setup::hosts(3).empty().up() else { return };
    for host in [1, 2] {
        with_keys(&w, host, (1, 'a'), None);
        w.start(host);
    }
    w.all_alive();
    assert!(w.status(1).authenticated);
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());

    // Everybody accepts the new key, then everybody sends with it, then nobody knows the old one. One host by signal, one by request.
    for (send, accept) in [((1, 'a'), Some((2, 'b'))), ((2, 'b'), Some((1, 'a'))), ((2, 'b'), None)] {
        for host in [1, 2] {
            with_keys(&w, host, send, accept);
        }
        w.signal_agent(1, libc::SIGHUP);
        w.ask(2, &Request::Reload).unwrap();
        until("h1 has read its keys", || {
            w.log(1).matches("configuration reloaded").count() == w.log(2).matches("configuration reloaded").count()
        });
        let number = w.view(2, "h1").unwrap().paths[0].last_number;
        until("heartbeats go on", || w.view(2, "h1").is_some_and(|h| h.paths[0].last_number > number + 50));
    }
    w.no_faults_but(|_, _| false);
    for host in [1, 2] {
        let refused = w.status(host).refused;
        assert_eq!((refused["key"], refused["mac"]), (0, 0), "h{host}: not a packet was refused: {refused:?}");
    }

    // A stranger: the same id, another key.
    with_keys(&w, 3, (2, 'c'), None);
    w.start(3);
    for host in [1, 2, 3] {
        let told = w.event(host, "foreign traffic", |e| e.cause == Cause::ForeignTraffic && e.node == format!("h{host}"));
        let of_h3 = [0, 1].map(|net| w.lab.ipv4(3, net).to_string());
        let named = host == 3 || of_h3.iter().any(|address| told.text.contains(address));
        assert!(told.text.contains("made with another key") && named, "{}", told.text);
        until("its packets are refused", || w.status(host).refused["mac"] > 100);
        assert_eq!(w.events(host, Cause::ForeignTraffic).len(), 1, "told once");
    }
    assert!(w.view(1, "h3").is_none() && w.view(3, "h1").is_none());
    w.no_faults_but(|_, (cause, _, _)| *cause == Cause::ForeignTraffic);
    p.kill();
    w.event(2, "the crash", |e| e.cause == Cause::Doomed && e.app.as_deref() == Some("db"));
}

#[test]
fn a_replay_is_refused_and_counted() {
    let Some(mut w) = Setup::hosts(3).empty().up() else { return };
    for host in [1, 2] {
        with_keys(&w, host, (1, 'a'), None);
        w.start(host);
    }
    w.all_alive();
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    // Host 3 runs no agent; it hears what the switch floods, a crash among it.
    let tap = w.lab.in_host(3, || PacketSocket::open("net0")).unwrap();
    p.kill();
    w.event(2, "the crash", |e| e.cause == Cause::Killed && e.app.as_deref() == Some("db"));
    let mut frames = Vec::new();
    until("packets were recorded", || {
        frames.extend(tap.read());
        frames.len() > 300
    });
    let before = w.status(2);
    let told = w.history(2).iter().filter(|e| e.app.is_some()).count();
    for frame in &frames {
        tap.write(frame);
    }
    until("the replay is counted", || {
        w.status(2).refused["old-number"] >= before.refused["old-number"] + frames.len() as u64 / 4
    });
    assert_eq!(w.history(2).iter().filter(|e| e.app.is_some()).count(), told, "nothing was told again");
    assert_eq!(w.view(2, "h1").unwrap().incarnation, before.hosts[0].incarnation);

    // A life that is over cannot be played again either, not even to an observer that was started anew.
    let life = w.view(2, "h1").unwrap().incarnation;
    w.kill_agent(1);
    // Lost, and that is on disk.
    let state = w.lab.host_dir(2).join("state.json");
    let remembered = || -> Option<u64> {
        let kept: serde_json::Value = serde_json::from_slice(&std::fs::read(&state).ok()?).ok()?;
        kept["peers"]["h1"].as_u64()
    };
    until("it is remembered", || remembered() > Some(life.into()));
    w.kill_agent(2);
    w.start(2);
    let refused = || w.status(2).refused.values().sum::<u64>();
    let (from, again) = (refused(), w.log(2).len());
    for frame in &frames {
        tap.write(frame);
    }
    until("the replay comes in and is refused", || refused() > from + 20);
    // What was behind those has come, too.
    w.goes_on(2, 50);
    assert!(w.view(2, "h1").is_none_or(|h| h.incarnation != life), "a dead life is believed: {}", &w.log(2)[again..]);
}

/// All frames of an interface, to read and to write.
pub struct PacketSocket(std::os::fd::OwnedFd, i32);

impl PacketSocket {
    pub fn open(interface: &str) -> Self {
        use std::os::fd::{AsRawFd, FromRawFd};
        let name = std::ffi::CString::new(interface).unwrap();
        // SAFETY: constants, a terminated name, and an address of the stated length; results are checked.
        unsafe {
            let index = libc::if_nametoindex(name.as_ptr()) as i32;
            let fd =
                libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, i32::from((libc::ETH_P_ALL as u16).to_be()));
            assert!(index > 0 && fd >= 0);
            let socket = Self(std::os::fd::OwnedFd::from_raw_fd(fd), index);
            // Room for what comes while this test waits for a processor.
            let (room, level, name) = (16 << 20, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE);
            assert_eq!(libc::setsockopt(fd, level, name, (&raw const room).cast(), size_of_val(&room) as u32), 0);
            let address = socket.address();
            assert_eq!(libc::bind(socket.0.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32), 0);
            socket
        }
    }

    fn address(&self) -> libc::sockaddr_ll {
        // SAFETY: sockaddr_ll is plain data for which all zeros is valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = self.1;
        address
    }

    pub fn read(&self) -> Vec<Vec<u8>> {
        use std::os::fd::AsRawFd;
        let mut frames = Vec::new();
        let mut buf = [0u8; 2048];
        loop {
            // SAFETY: an open socket and a buffer of the stated length.
            let n = unsafe { libc::recv(self.0.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), 0) };
            if n <= 0 {
                return frames;
            }
            frames.push(buf[..n as usize].to_vec());
        }
    }

    /// Whether the interface took it.
    pub fn write(&self, frame: &[u8]) -> bool {
        use std::os::fd::AsRawFd;
        let address = self.address();
        // SAFETY: an open socket, a buffer and an address of the stated lengths.
        let sent = unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const address).cast(),
                size_of_val(&address) as u32,
            )
        };
        sent == frame.len() as isize
    }
}

// ---- names ----------------------------------------------------------------------------------------------------------------------

#[test]
fn a_second_agent_of_the_same_name_is_told_and_does_no_lasting_harm() {
    let Some(mut w) = Setup::hosts(3).empty().up() else { return };
    for host in [1, 2] {
        w.start(host);
    }
    w.all_alive();
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    // Host 3 calls itself h1, too.
    w.write_config(3, &w.head(3, "h1", "2ms"));
    w.start(3);
    w.event(1, "the clash", |e| e.cause == Cause::NameClash);
    w.event(3, "the clash", |e| e.cause == Cause::NameClash);
    // For more than two seconds more: each announces itself every second.
    w.all_go_on(1250);
    for host in [1, 3] {
        assert_eq!(w.events(host, Cause::NameClash).len(), 1, "told once, not every second");
    }
    // Renamed, everybody is seen again, the first one under a new incarnation.
    w.signal_agent(3, libc::SIGTERM);
    assert!(w.agent_ended(3).success());
    w.write_config(3, &w.head(3, "h3", "2ms"));
    w.start(3);
    w.all_alive();
    w.known(1, "db");
    for host in [1, 2, 3] {
        let crashes = w.history(host).into_iter().filter(|e| e.app.is_some() && e.cause != Cause::Monitored).count();
        assert_eq!(crashes, 0, "no process failed");
        assert!(w.events(host, Cause::SilentHost).is_empty());
    }
    p.kill();
    w.event(2, "the crash", |e| e.cause == Cause::Doomed && e.app.as_deref() == Some("db"));
}

/// Two hosts of one name that were switched on in the same moment have the same incarnation as well.
#[test]
fn twins_find_out() {
    let Some(mut w) = Setup::hosts(3).empty().up() else { return };
    for host in [1, 3] {
        w.write_config(host, &w.head(host, "h1", "2ms"));
        std::fs::write(w.lab.host_dir(host).join("state.json"), b"{\"incarnation\":3000000000}").unwrap();
        w.start(host);
    }
    for host in [1, 3] {
        w.event(host, "the clash", |e| e.cause == Cause::NameClash);
    }
    assert_ne!(w.status(1).incarnation, w.status(3).incarnation);
}

#[test]
fn a_second_agent_on_the_same_host_refuses_to_start() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let refused = |config: &str| {
        let path = w.lab.host_dir(1).join("second.toml");
        std::fs::write(&path, config).unwrap();
        let mut command = w.lab.command(1, env!("CARGO_BIN_EXE_fided")).unwrap();
        let output = command.arg("--config").arg(&path).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let head = w.head(1, "h1b", "2ms");
    let error = refused(&head);
    assert!(error.contains("another agent serves") && error.contains("fided.sock"), "{error}");
    let elsewhere =
        head.replace("fided.sock", "other.sock").replace("state.json", "other.json").replace("history.jsonl", "other.jsonl");
    let error = refused(&elsewhere);
    assert!(error.contains("UDP port") && error.contains("taken"), "{error}");
    assert!(!w.lab.host_dir(1).join("other.sock").exists(), "who does not start leaves no socket behind");
    w.all_alive();
    w.no_faults_but(|_, _| false);
}

#[test]
fn another_cluster_on_the_same_wire_is_told_and_kept_out() {
    let Some(mut w) = Setup::hosts(3).empty().up() else { return };
    for host in [1, 2] {
        w.start(host);
    }
    w.all_alive();
    w.write_config(3, &w.head(3, "h3", "2ms").replace("cluster = \"e2e\"", "cluster = \"other\""));
    w.start(3);
    for host in [1, 2, 3] {
        w.event(host, "foreign traffic", |e| e.cause == Cause::ForeignTraffic);
        assert!(w.status(host).refused["cluster"] > 0);
    }
    assert!(w.view(1, "h3").is_none() && w.status(3).hosts.is_empty());
    w.no_faults_but(|_, (cause, _, _)| *cause == Cause::ForeignTraffic);
}

#[test]
fn a_host_whose_clock_and_memory_went_back_is_heard_again() {
    let Some(mut w) = Setup::hosts(3).up() else { return };
    let dir = w.lab.host_dir(1);
    w.signal_agent(1, libc::SIGTERM);
    w.agent_ended(1);
    // As if the others had known a life far in the future.
    std::fs::write(dir.join("state.json"), b"{\"incarnation\":3000000000}").unwrap();
    w.start(1);
    w.all_alive();
    w.kill_agent(1);
    until("h1's agent is lost", || w.state(2, "h1") == "agent-lost" && w.state(3, "h1") == "agent-lost");
    std::fs::remove_file(dir.join("state.json")).unwrap();
    // One of them knows the life only from its own memory.
    w.kill_agent(3);
    w.start(3);
    w.start(1);
    w.all_alive();
    assert!(w.status(1).incarnation > 3_000_000_000);
}

// ---- NICs -----------------------------------------------------------------------------------------------------------------------

#[test]
fn a_nic_that_vanishes_and_returns_is_used_again() {
    let Some(mut w) = Setup::hosts(3).up() else { return };
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    for round in 1..=2 {
        w.lab.remove_nic(1, 0).unwrap();
        w.event(1, "the interface is gone", |e| e.cause == Cause::Interface && e.code == 0);
        for observer in [2, 3] {
            until("path down", || {
                w.events(observer, Cause::PathDown).iter().filter(|e| e.node == "h1" && e.code == 0).count() == round
            });
        }
        w.lab.restore_nic(1, 0).unwrap();
        until("the interface is back", || w.events(1, Cause::Interface).iter().filter(|e| e.code == 1).count() == round);
        for observer in [2, 3] {
            until("path up", || {
                w.events(observer, Cause::PathUp).iter().filter(|e| e.node == "h1" && e.code == 0).count() == round
            });
        }
        w.all_alive();
        assert_eq!(w.events(1, Cause::Interface).len(), 2 * round, "gone once, back once");
    }
    assert_eq!(w.status(1).receive, "xdp-native");
    w.agents_run();
    w.no_faults_but(|observer, (cause, node, _)| match observer {
        1 => [Cause::Interface, Cause::PathDown].contains(cause),
        _ => *cause == Cause::PathDown && node == "h1",
    });
    // The crash is told over the path that is left, too.
    w.lab.remove_nic(1, 1).unwrap();
    p.kill();
    w.event(2, "the crash", |e| e.cause == Cause::Killed && e.app.as_deref() == Some("db"));
}

/// An XDP program that lets everything pass, in the driver of an interface of this thread's namespace, until the descriptor is closed.
fn foreign_program(interface: &str) -> std::os::fd::OwnedFd {
    use libbpf_rs::libbpf_sys::{self, bpf_insn};
    const DRIVER: u32 = 1 << 2;
    let pass = bpf_insn { code: 0xb7, imm: 2, ..Default::default() }; // r0 = XDP_PASS
    let program = [pass, bpf_insn { code: 0x95, ..Default::default() }];
    let interface = std::ffi::CString::new(interface).unwrap();
    let size = size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t;
    let opts = libbpf_sys::bpf_link_create_opts { sz: size, flags: DRIVER, ..Default::default() };
    // SAFETY: C strings, options and instructions that live across the calls; each descriptor is new and owned once.
    unsafe {
        let (kind, gpl, n) = (libbpf_sys::BPF_PROG_TYPE_XDP, c"GPL".as_ptr(), program.len() as u64);
        let fd = libbpf_sys::bpf_prog_load(kind, c"pass".as_ptr(), gpl, program.as_ptr(), n, std::ptr::null_mut());
        assert!(fd >= 0, "{}", std::io::Error::from_raw_os_error(-fd));
        let program: std::os::fd::OwnedFd = std::os::fd::FromRawFd::from_raw_fd(fd);
        let (fd, at) = (std::os::fd::AsRawFd::as_raw_fd(&program), libc::if_nametoindex(interface.as_ptr()));
        let link = libbpf_sys::bpf_link_create(fd, at.cast_signed(), libbpf_sys::BPF_XDP, &raw const opts);
        assert!(link >= 0, "{}", std::io::Error::from_raw_os_error(-link));
        std::os::fd::FromRawFd::from_raw_fd(link)
    }
}

#[test]
fn a_nic_that_returns_under_a_foreign_program_is_received_by_sockets_or_is_not_up() {
    for (receive, by) in [("auto", "udp"), ("xdp", "xdp-native")] {
        let extra = move |host: u16| if host == 1 { format!("receive = \"{receive}\"\n") } else { String::new() };
        let Some(mut w) = Setup::hosts(3).extra(extra).up() else { return };
        assert_eq!(w.status(1).receive, "xdp-native");
        w.lab.remove_nic(1, 0).unwrap();
        w.event(1, "the interface is gone", |e| e.cause == Cause::Interface && e.code == 0);
        until("h2 is not heard there", || !w.view(1, "h2").unwrap().paths[0].up);
        // While the agent stands still, the other program comes first.
        w.signal_agent(1, libc::SIGSTOP);
        w.lab.restore_nic(1, 0).unwrap();
        let foreign = w.lab.in_host(1, || foreign_program(&fide_lab::nic_name(0))).unwrap();
        w.signal_agent(1, libc::SIGCONT);
        let is_heard = |w: &World, host: &str| w.view(1, host).is_some_and(|h| h.paths.iter().all(|path| path.up));
        if receive == "auto" {
            until("all are heard on both paths", || is_heard(&w, "h2") && is_heard(&w, "h3"));
            assert!(w.status(1).paths[0].up);
            let told = w.events(1, Cause::Local);
            assert_eq!(told.iter().filter(|e| e.text.contains("receiving by UDP sockets on all paths")).count(), 1, "{told:?}");
            let p = w.sleeper(2);
            w.watch_known(2, "db", p.pid());
            p.kill();
            w.event(1, "the crash", |e| e.cause == Cause::Killed && e.app.as_deref() == Some("db"));
            drop(foreign);
        } else {
            // XDP or nothing: the path is not shown as up, and is used again when it can be.
            w.goes_on(1, 2000);
            assert!(!w.status(1).paths[0].up && !is_heard(&w, "h2"));
            drop(foreign);
            until("all are heard on both paths", || is_heard(&w, "h2") && is_heard(&w, "h3"));
            assert!(w.status(1).paths[0].up);
        }
        assert_eq!(w.status(1).receive, by);
        w.all_alive();
        w.agents_run();
    }
}
