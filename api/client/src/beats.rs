//! For applications with heartbeats of their own: SafeTimer's three calls (§6.3), and what they are made of.
//!
//! ```no_run
//! # use fide_client::{Client, CheckOutcome, monotonic_ns};
//! # use std::{net::UdpSocket, os::fd::AsFd, time::Duration};
//! # fn look_again() -> bool { true } fn fail_over() {} fn mine(_: &str) {}
//! # let (socket, second) = (UdpSocket::bind("0.0.0.0:0").unwrap(), 1_000_000_000);
//! let client = Client::open(None)?;
//! // Who sends: what this process sends leaves up to 9 s from now, because this heartbeat did.
//! let valid_ns = monotonic_ns() + 9 * second;
//! client.send_heartbeat(socket.as_fd(), b"I am here", valid_ns, Duration::from_secs(1))?;
//! // Who listens, and has heard nothing for the last 10 s:
//! let now = monotonic_ns();
//! let checked = client.check("10.0.0.7", now - 10 * second, now, Duration::from_secs(1))?;
//! if checked.outcome == CheckOutcome::Certain || checked.outcome == CheckOutcome::Drained && !look_again() {
//!     fail_over();
//! }
//! # Ok::<(), fide_client::Error>(())
//! ```

use crate::client::{Client, lock};
use crate::connection::Connection;
use crate::error::{Error, system};
use crate::sys;
use fide_wire::control::{Checked, ErrorCode, Reply, Request};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Connections beside the usual one, made when they are needed: a check may take long, and an extension must not wait for anything else.
#[derive(Debug, Default)]
pub(crate) struct Side {
    /// Each check has one of its own while it lasts: the agent does one at a time for each.
    checks: Mutex<Vec<Arc<Connection>>>,
    gate: Mutex<Vec<Arc<Connection>>>,
}

/// Kept for the next ones.
const KEPT: usize = 4;
/// An agent that lives answers a check when its time is over; one that says nothing for so much longer does not live.
const GRACE: Duration = Duration::from_secs(1);

/// Between two looks whether a heartbeat has left: short at first, since most have left already.
const LOOK_FIRST: Duration = Duration::from_micros(20);
const LOOK_LAST: Duration = Duration::from_millis(1);
/// Nobody waits longer.
const DAY: Duration = Duration::from_secs(86_400);

impl Client {
    /// SafeTimer's `safetimer_check` (§4.1): this application has missed `peer`'s heartbeats from `since_ns` to `deadline_ns` (0: now), both by
    /// [`monotonic_ns`](crate::monotonic_ns). Has all that came to this host by then reached the application's sockets, and was nothing lost here? Waits for the
    /// answer up to `wait`, a second more for an agent that says nothing, and for no other call. `peer` is `name@host`, `@host`, or the address that its packets come from.
    ///
    /// On [`CheckOutcome::Drained`](fide_wire::control::CheckOutcome) the application reads its sockets until they are empty; if that is no heartbeat, it may
    /// report a failure. `Void` and `NoBarrier` mean that silence says nothing: begin a new interval, at `lost_ns` or now.
    ///
    /// # Errors
    /// [`Error::Refused`] with `Invalid` for an interval or a peer that makes no sense, `Permission`; the errors of [`Connection::request`].
    pub fn check(&self, peer: &str, since_ns: u64, deadline_ns: u64, wait: Duration) -> Result<Checked, Error> {
        let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let request = Request::Check { peer: peer.to_owned(), since_ns, deadline_ns, wait_ns };
        // A deadline may lie ahead.
        let ahead = Duration::from_nanos(deadline_ns.saturating_sub(sys::monotonic_ns()));
        let patience = wait.saturating_add(ahead).min(DAY).saturating_add(GRACE.min(self.options().answer_timeout));
        self.on_the_side(&self.side.checks, &request, patience, |reply| match reply {
            Reply::Checked(checked) => Ok(*checked),
            other => Err(other),
        })
    }

    /// SafeTimer's `safetimer_extend` (§4.2): a heartbeat of this application counts, as was known at `known_ns`; what is sent by sockets that were made
    /// in its gate's cgroup may leave up to `valid_ns`. The first call arms the gate. Returns t_valid. Blocks on the agent, and not on other calls.
    ///
    /// # Errors
    /// [`Error::Refused`]: `Fenced` when the gate is closed, perhaps because of this call's `known_ns`; `NotFound` when no gate is configured for this
    /// process, `Permission` unless its user may; the errors of [`Connection::request`].
    pub fn extend(&self, known_ns: u64, valid_ns: u64) -> Result<u64, Error> {
        self.move_gate(known_ns, valid_ns, false)
    }

    /// Opens this application's gate up to `valid_ns`, also when it is closed. Who calls this says that whatever sends from now on has dropped
    /// what it did before, as after a restart. TCP connections of its cgroup in which a closed gate holds something back are ended first. Blocks as [`Client::extend`].
    ///
    /// # Errors
    /// As [`Client::extend`], and `System` when such connections cannot be ended: the gate stays closed.
    pub fn begin_anew(&self, valid_ns: u64) -> Result<u64, Error> {
        self.move_gate(sys::monotonic_ns(), valid_ns, true)
    }

    /// SafeTimer's `safetimer_send_HB` (§6.3): sends a heartbeat on a connected socket of the caller's, waits up to `wait` until it has left ([`sent`]), and
    /// then extends t_valid to `valid_ns`. Returns t_valid.
    ///
    /// # Errors
    /// [`Error::Refused`] with `Fenced` when the gate is closed, so that nothing leaves. [`Error::NotSent`]: nothing was extended; send another in time.
    /// [`Error::System`]: the socket's; with `TimedOut` only a part of the heartbeat went into a stream, which is of no use any more.
    /// [`Error::Invalid`] for an empty heartbeat. The errors of [`Client::extend`].
    pub fn send_heartbeat(&self, socket: BorrowedFd<'_>, heartbeat: &[u8], valid_ns: u64, wait: Duration) -> Result<u64, Error> {
        if heartbeat.is_empty() {
            return Err(Error::Invalid("a heartbeat of no bytes is none".into()));
        }
        let deadline = Instant::now() + wait.min(DAY);
        let mut left = heartbeat;
        let sent = sys::send_all(socket, &mut left, deadline).map_err(|e| match e.kind() {
            std::io::ErrorKind::TimedOut if left.len() == heartbeat.len() => Error::NotSent { seconds: wait.as_secs_f64() },
            std::io::ErrorKind::TimedOut => system("send all of a heartbeat: a part of it is in the stream; make another")(e),
            _ => system("send a heartbeat")(e),
        });
        let sent = sent.and_then(|()| sent_by(socket, deadline, wait));
        match sent {
            Ok(known_ns) => self.extend(known_ns, valid_ns),
            Err(why) => Err(self.closed().unwrap_or(why)),
        }
    }

    /// That this application's gate is closed, if so: then what it sends does not leave, whatever the socket says.
    fn closed(&self) -> Option<Error> {
        let refused = self.move_gate(sys::monotonic_ns(), 0, false).err()?;
        matches!(&refused, Error::Refused(refused) if refused.code == ErrorCode::Fenced).then_some(refused)
    }

    fn move_gate(&self, known_ns: u64, valid_ns: u64, anew: bool) -> Result<u64, Error> {
        self.on_the_side(&self.side.gate, &Request::Extend { known_ns, valid_ns, anew }, self.options().answer_timeout, |reply| {
            match reply {
                Reply::Extended { valid_ns, .. } => Ok(valid_ns),
                other => Err(other),
            }
        })
    }

    /// Asks on a connection of its own, made (again) where there is none. All that is asked so may be asked twice.
    fn on_the_side<T>(
        &self,
        place: &Mutex<Vec<Arc<Connection>>>,
        request: &Request,
        patience: Duration,
        read: impl Fn(Reply) -> Result<T, Reply>,
    ) -> Result<T, Error> {
        loop {
            let kept = lock(place).pop();
            let fresh = kept.is_none();
            let connection = match kept {
                Some(c) => c,
                None => {
                    let greeting = patience.min(self.options().answer_timeout);
                    Arc::new(Connection::open_with_timeout(self.options().path.as_deref(), greeting)?)
                }
            };
            let answer = connection.request_within(request, patience);
            let mut place = lock(place);
            if !connection.is_over() && place.len() < KEPT {
                place.push(connection.clone());
            }
            drop(place);
            match answer {
                Ok(response) => return read(response.reply).map_err(|other| connection.unexpected("another reply", &other)),
                Err(Error::Disconnected) if !fresh => {} // of an agent that has gone since; the next may be there
                Err(e) => return Err(e),
            }
        }
    }
}

/// Waits up to `wait` until all that was sent on this socket has left (SafeTimer §5.2), and returns a time at which that was known: for those who send
/// their heartbeats themselves, and then [`Client::extend`].
///
/// *Has left* means for UDP, raw and packet sockets that the driver has freed every packet of the socket; for TCP, which holds what it sent until then, that
/// the other kernel has acknowledged every byte: more than leaving, so a slow peer may cost an extension, and never gains one.
///
/// # Errors
/// [`Error::NotSent`] when that was not so in time; [`Error::Invalid`] for sockets of other kinds; [`Error::System`].
pub fn sent(socket: BorrowedFd<'_>, wait: Duration) -> Result<u64, Error> {
    if !sys::is_internet(socket).map_err(system("look at the socket"))? {
        return Err(Error::Invalid(
            "heartbeats are sent on UDP, TCP, raw or packet sockets: of others it is not known what has left".into(),
        ));
    }
    sent_by(socket, Instant::now() + wait.min(DAY), wait)
}

fn sent_by(socket: BorrowedFd<'_>, deadline: Instant, wait: Duration) -> Result<u64, Error> {
    let mut look = LOOK_FIRST;
    loop {
        // A stream that is not connected yet may hold what was handed to it (TCP Fast Open), and counts none of it.
        let connects = sys::is_connecting(socket).map_err(system("look at the socket"))?;
        if !connects && sys::unsent(socket).map_err(system("ask what is not sent yet"))? == 0 {
            return Ok(sys::monotonic_ns());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::NotSent { seconds: wait.as_secs_f64() });
        }
        std::thread::sleep(look.min(left));
        look = (look * 2).min(LOOK_LAST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn that_nobody_heard_an_earlier_datagram_keeps_none_from_leaving() {
        let until = Instant::now() + Duration::from_secs(60);
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = receiver.local_addr().unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(to).unwrap();
        drop(receiver);
        sender.send(b"earlier").unwrap(); // over loopback, the refusal is there when this returns
        let receiver = UdpSocket::bind(to).unwrap();
        sys::send_all(sender.as_fd(), &mut &b"now"[..], until).unwrap();
        let mut heard = [0; 16];
        receiver.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(receiver.recv(&mut heard).unwrap(), 3);
    }

    #[test]
    fn a_datagram_has_left_and_a_segment_was_acknowledged() {
        let wait = Duration::from_secs(60);
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let before = sys::monotonic_ns();
        sender.send(b"x").unwrap();
        receiver.recv(&mut [0; 8]).unwrap();
        assert!(sent(sender.as_fd(), wait).unwrap() > before);

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        sys::send_all(stream.as_fd(), &mut &b"x"[..], Instant::now() + wait).unwrap();
        sent(stream.as_fd(), wait).unwrap();
        other.read_exact(&mut [0]).unwrap();
    }

    #[test]
    fn what_is_not_read_has_not_all_left() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_other, _) = listener.accept().unwrap();
        let much = vec![0; 32 << 20];
        let mut left = &much[..];
        let error = sys::send_all(stream.as_fd(), &mut left, Instant::now() + Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        assert!(!left.is_empty() && left.len() < much.len(), "a part is on its way");
        assert!(matches!(sent(stream.as_fd(), Duration::from_millis(20)), Err(Error::NotSent { .. })));
    }

    /// A connection that is being made holds nothing that could be unsent, whatever was handed to it.
    #[test]
    fn what_is_not_connected_has_sent_nothing() {
        use std::os::fd::{AsRawFd as _, FromRawFd as _};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // SAFETY: an open socket. One connection waits to be accepted, and the next one is not answered.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let _first = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        // SAFETY: a new socket, owned by the stream from here on.
        let second = unsafe { TcpStream::from_raw_fd(libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0)) };
        let to = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: listener.local_addr().unwrap().port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
            sin_zero: [0; 8],
        };
        // SAFETY: an address of the stated length that lives through the call.
        unsafe { libc::connect(second.as_raw_fd(), (&raw const to).cast(), size_of_val(&to) as u32) };
        assert!(sys::is_connecting(second.as_fd()).unwrap());
        assert_eq!(sys::unsent(second.as_fd()).unwrap_or(0), 0, "nothing to see there");
        assert!(matches!(sent(second.as_fd(), Duration::from_millis(20)), Err(Error::NotSent { .. })));
    }

    #[test]
    fn of_other_sockets_nothing_is_said() {
        let (a, _b) = UnixDatagram::pair().unwrap();
        assert!(matches!(sent(a.as_fd(), Duration::ZERO), Err(Error::Invalid(_))));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(sent(file.as_fd(), Duration::ZERO), Err(Error::System { .. })));
    }
}
