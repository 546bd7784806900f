//! Connections that end with their process.
//!
//! Who has a connection to a process that was killed hears of it when the kernel closes its
//! sockets: behind the end of each of its threads and of its address space, which takes
//! milliseconds, with gigabytes in it half a second, and as long as a child has inherited them for
//! good. The agent knows of the end before. Where it was asked for, it ends the TCP connections of
//! the process's ports at once (`sock_diag.rs`): a client is reset and can go where the service
//! goes on, and the port is free for the next instance.
//!
//! ```text
//! loop: notice of the end has left ─► Order::Ended ─► this thread: list the port, end what is of
//! the process's user
//! ```
//! What a process wrote, and its client has not acknowledged, is dropped then, as with a host that
//! crashed.

use crate::clock::now_ns;
use crate::sock_diag::{CLOSE_WAIT, Connection, Diag, ESTABLISHED, IPV4, IPV6, LISTEN, SYN_RECV};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::collections::BTreeMap;
use std::io;

/// What is told later than this is left to the kernel: the next instance may have the port.
const LATE_NS: u64 = 200_000_000;
/// So many are ended in a row before ordinary threads have their turn.
const AT_ONCE: usize = 256;
/// Behind the loop, before all that is ordinary.
const PRIORITY: i32 = 1;
/// What a client may wait on.
const CONNECTED: u32 = 1 << SYN_RECV | 1 << ESTABLISHED | 1 << CLOSE_WAIT;

/// What ends with a process.
#[derive(Debug)]
pub struct Connections {
    /// The process, as others know it.
    pub name: String,
    /// Sockets of this user.
    pub uid: u32,
    /// Of these local ports.
    pub ports: Vec<u16>,
    /// In this network namespace, where it is not the agent's.
    pub elsewhere: Option<Diag>,
}

enum Order {
    Has(u32, Box<Connections>),
    Forget(u32),
    /// It has ended, or is doomed; when that was seen.
    Ended(u32, u64),
}

/// The way to the thread, which ends with the last of them. Nothing waits.
#[derive(Clone, Debug)]
pub struct Ender(Sender<Order>);

impl Ender {
    /// Starts the thread; `realtime`: it runs before ordinary ones.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn start(realtime: bool) -> io::Result<Self> {
        let (orders, ordered) = unbounded();
        let thread = std::thread::Builder::new().name("fide-connections".into()).stack_size(256 << 10);
        thread.spawn(move || run(&ordered, realtime))?;
        Ok(Self(orders))
    }

    /// These connections end with the process of this number.
    pub fn has(&self, app: u32, connections: Connections) {
        let _ = self.0.send(Order::Has(app, Box::new(connections)));
    }

    /// None do.
    pub fn forget(&self, app: u32) {
        let _ = self.0.send(Order::Forget(app));
    }

    /// The process of this number ends: seen at `event_ns` (CLOCK_MONOTONIC).
    pub fn ended(&self, app: u32, event_ns: u64) {
        let _ = self.0.send(Order::Ended(app, event_ns));
    }
}

fn run(ordered: &Receiver<Order>, realtime: bool) {
    set_realtime(realtime);
    let mut known: BTreeMap<u32, Box<Connections>> = BTreeMap::new();
    while let Ok(order) = ordered.recv() {
        match order {
            Order::Has(app, connections) => drop(known.insert(app, connections)),
            Order::Forget(app) => drop(known.remove(&app)),
            Order::Ended(app, event_ns) => {
                let Some(connections) = known.remove(&app) else { continue };
                let late_ns = now_ns().saturating_sub(event_ns);
                if late_ns > LATE_NS {
                    tracing::warn!(
                        "the connections of {} are left to the kernel: its end was seen {} ms ago",
                        connections.name,
                        late_ns / 1_000_000
                    );
                    continue;
                }
                match end_all(&connections, || set_realtime(false)) {
                    Ok(ended) => tracing::info!("{ended} TCP sockets of {} were ended with it", connections.name),
                    Err(e) => tracing::warn!("TCP sockets of {} are left to the kernel: {e}", connections.name),
                }
                set_realtime(realtime);
            }
        }
    }
}

/// Says how many. `many` is called once there were a lot.
fn end_all(connections: &Connections, mut many: impl FnMut()) -> io::Result<usize> {
    let Connections { uid, ports, elsewhere, .. } = connections;
    let here = if elsewhere.is_none() { Some(Diag::open()?) } else { None };
    let Some(diag) = elsewhere.as_ref().or(here.as_ref()) else { return Ok(0) };
    let mut ended = 0;
    let mut end = |family, states, port| -> io::Result<usize> {
        let mut found: Vec<Connection> = Vec::new();
        diag.list(family, states, port, |heard| found.extend(heard.into_iter().filter(|c| c.uid == *uid)))?;
        for connection in &found {
            ended += usize::from(diag.end(connection)?);
            if ended == AT_ONCE {
                many();
            }
        }
        Ok(found.len())
    };
    for port in ports {
        // Listening sockets first: who was reset shall not be connected to the dead process again.
        // What they have accepted is of their family.
        let (v4, v6) = (end(IPV4, 1 << LISTEN, *port)? > 0, end(IPV6, 1 << LISTEN, *port)? > 0);
        for (family, has_listened) in [(IPV4, v4), (IPV6, v6)] {
            if has_listened || !(v4 || v6) {
                end(family, CONNECTED, *port)?;
            }
        }
    }
    Ok(ended)
}

/// Refused, the thread stays what it is.
fn set_realtime(realtime: bool) {
    let (policy, priority) = if realtime { (libc::SCHED_FIFO, PRIORITY) } else { (libc::SCHED_OTHER, 0) };
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: 0 is the calling thread; the parameter is live.
    unsafe { libc::sched_setscheduler(0, policy | libc::SCHED_RESET_ON_FORK, &raw const param) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::namespace;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn own_uid() -> u32 {
        // SAFETY: no preconditions.
        unsafe { libc::geteuid() }
    }

    fn of(port: u16, uid: u32) -> Connections {
        Connections { name: "server@here".into(), uid, ports: vec![port], elsewhere: Some(Diag::open().unwrap()) }
    }

    fn how_it_ends(mut stream: &TcpStream) -> io::Result<usize> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.read(&mut [0; 8])
    }

    #[test]
    fn clients_of_the_port_are_reset_and_nobody_is_connected_again() {
        namespace::inside(|| {
            let (server, other) = (TcpListener::bind("[::]:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
            let (port, beside) = (server.local_addr().unwrap().port(), other.local_addr().unwrap());
            let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (client, _held) = (connect(), server.accept().unwrap());
            let v6 = TcpStream::connect(("::1", port)).unwrap();
            let waiting = connect(); // and not accepted
            let (mut apart, mut apart_end) = (TcpStream::connect(beside).unwrap(), other.accept().unwrap().0);

            assert_eq!(end_all(&of(port, own_uid() + 1), || {}).unwrap(), 0, "another user's");
            let ender = Ender::start(true).unwrap();
            ender.has(7, of(port, own_uid()));
            ender.has(8, of(port, own_uid()));
            ender.forget(8);
            ender.ended(8, now_ns());
            ender.ended(9, now_ns());
            assert_eq!(TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(|e| e.kind()), Ok(()));
            ender.ended(7, now_ns());
            for stream in [&client, &v6, &waiting] {
                assert_eq!(how_it_ends(stream).unwrap_err().kind(), ErrorKind::ConnectionReset);
            }
            assert_eq!(TcpStream::connect(("127.0.0.1", port)).unwrap_err().kind(), ErrorKind::ConnectionRefused);
            assert!(TcpListener::bind(("127.0.0.1", port)).is_ok(), "the next instance has its port");
            apart.write_all(b"on").unwrap();
            apart_end.read_exact(&mut [0; 2]).unwrap();
        });
    }

    #[test]
    fn an_end_that_is_told_late_ends_nothing() {
        namespace::inside(|| {
            let server = TcpListener::bind("127.0.0.1:0").unwrap();
            let at = server.local_addr().unwrap();
            let (orders, ordered) = unbounded();
            let ender = Ender(orders);
            ender.has(7, of(at.port(), own_uid()));
            ender.ended(7, now_ns() - LATE_NS - 1);
            drop(ender);
            run(&ordered, false); // all that was ordered
            assert!(TcpStream::connect(at).is_ok());
        });
    }
}
