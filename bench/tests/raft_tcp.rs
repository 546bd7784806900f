//! Servers of Raft over TCP and a client, as `fide bench consensus` runs them, on this host alone.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};

const BENCH: &str = env!("CARGO_BIN_EXE_fide-bench");

fn helper(mode: &str) -> Command {
    let mut command = Command::new(BENCH);
    command.args(["bench-group", "--mode", mode]);
    command
}

#[test]
fn three_servers_decide_what_a_client_proposes_and_end_with_it() {
    let held: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let all: Vec<SocketAddr> = held.iter().map(|listener| listener.local_addr().unwrap()).collect();
    drop(held);
    let list: Vec<String> = all.iter().map(ToString::to_string).collect();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("client");
    let server = |place: usize| {
        let mut command = helper("raft-server");
        command.args(["--place", &place.to_string(), "--servers", &list.join(",")]).arg("--agent").arg(&socket);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut servers: Vec<Child> = (0..3).map(server).collect();
    let mut line = String::new();
    BufReader::new(servers[0].stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let out = helper("raft-single").arg("--agent").arg(&socket).args(["--values", "20"]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let times = String::from_utf8(out.stdout).unwrap();
    assert_eq!(times.lines().filter(|time| time.parse::<u64>().is_ok_and(|ns| ns > 0)).count(), 20);
    for server in &mut servers {
        assert!(server.wait().unwrap().success());
    }
}
