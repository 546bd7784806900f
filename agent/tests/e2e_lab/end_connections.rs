//! Connections that end with their process: a client is reset when the agent knows, not when the
//! kernel has closed the last copy of a socket.
//!
//! A child that has inherited the sockets keeps them open for good here; else the kernel closes
//! them itself, sooner or later.

use crate::common::{Process, Setup, World, kill, until};
use fide_wire::control::{ErrorCode, Request};
use fide_wire::verdict::Cause;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const PORT: u16 = 7000;

/// A server whose child has its sockets, too.
struct Server {
    process: Process,
    child: i32,
}

impl Server {
    fn new(w: &World) -> Self {
        let mut process = w.actor(1, "application", &[]);
        assert_eq!(process.hear(), "ready");
        process.say(&format!("serve {PORT}"));
        let said = process.hear();
        let child = said.strip_prefix("ok ").unwrap_or_else(|| panic!("{said}")).parse().unwrap();
        Self { process, child }
    }

    fn order(&mut self, what: &str) -> String {
        self.process.say(what);
        self.process.hear()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        kill(self.child, libc::SIGKILL);
    }
}

/// Served by the server, and by its child.
fn client(w: &World, server: &mut Server) -> TcpStream {
    let mut stream = connect(w).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(b"?").unwrap();
    let mut heard = [0; 1];
    stream.read_exact(&mut heard).unwrap();
    kill(server.child, libc::SIGKILL);
    // A younger one has the connection.
    let said = server.order("child");
    server.child = said.strip_prefix("ok ").unwrap_or_else(|| panic!("{said}")).parse().unwrap();
    stream
}

fn connect(w: &World) -> io::Result<TcpStream> {
    let at = SocketAddr::from((w.lab.ipv4(1, 0), PORT));
    w.lab.in_host(2, move || TcpStream::connect(at)).unwrap()
}

fn reset(mut stream: TcpStream) {
    let error = stream.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

/// The child has it for good, and answers nothing.
fn stays(mut stream: TcpStream) {
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

fn nobody_is_there(w: &World) {
    assert_eq!(connect(w).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

fn is_watched(w: &World, pid: u32) {
    until(&format!("process {pid} is watched"), || w.status(1).watched.iter().any(|p| p.pid == pid && p.state == "alive"));
}

#[test]
fn clients_of_a_process_that_joined_are_reset_when_it_is_killed() {
    let Some(mut w) = Setup::hosts(2).up() else { return };
    let mut server = Server::new(&w);
    assert!(server.order(&format!("end-connections {PORT}")).starts_with("error"), "it has not joined");
    assert!(server.order("join srv 0").starts_with("ok"));
    for ports in ["0", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17"] {
        assert!(server.order(&format!("end-connections {ports}")).contains("from 1 to 65535"));
    }
    assert!(server.order(&format!("end-connections {PORT}")).starts_with("ok"));
    let stream = client(&w, &mut server);
    server.process.kill();
    reset(stream);
    nobody_is_there(&w);
    drop(server);

    // Its agent is killed and comes back: the client says it again.
    let mut server = Server::new(&w);
    assert!(server.order("join srv 0").starts_with("ok"));
    assert!(server.order(&format!("end-connections {PORT}")).starts_with("ok"));
    let stream = client(&w, &mut server);
    w.kill_agent(1);
    w.start(1);
    until("the server is joined again", || server.order("reconnect").starts_with("ok"));
    server.process.kill();
    reset(stream);

    // A clean end is the process's own: what it has said is delivered.
    let mut server = Server::new(&w);
    assert!(server.order("join srv 0").starts_with("ok"));
    assert!(server.order(&format!("end-connections {PORT}")).starts_with("ok"));
    let stream = client(&w, &mut server);
    server.process.say("exit 0");
    w.event(2, "the end", |e| e.app.as_deref() == Some("srv") && e.cause == Cause::Exited && e.code == 0);
    stays(stream);

    let refused = w.ask(1, &Request::EndConnections { name: "srv".into(), ports: vec![PORT] });
    assert!(matches!(&refused, Err(fide_client::Error::Refused(r)) if r.code == ErrorCode::NotFound), "{refused:?}");
}

#[test]
fn what_the_configuration_says_holds_for_the_next_instance_and_until_a_reload() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let configure = |lines: &str| {
        let watch = format!("[[watch]]\nname = \"srv\"\nport = {PORT}\n{lines}");
        w.write_config(1, &format!("{}\n{watch}", w.head(1, "h1", "2ms")));
        w.ask(1, &Request::Reload).unwrap();
    };
    configure(&format!("end_connections = [{PORT}]\n"));
    for _ in 0..2 {
        let mut server = Server::new(&w);
        is_watched(&w, server.process.pid());
        let stream = client(&w, &mut server);
        server.process.kill();
        reset(stream);
    }
    let mut server = Server::new(&w);
    is_watched(&w, server.process.pid());
    let stream = client(&w, &mut server);
    configure("");
    is_watched(&w, server.process.pid());
    server.process.kill();
    w.event(2, "the end", |e| e.app.as_deref() == Some("srv") && e.cause.ends_process());
    stays(stream);
}
