//! A session with ZooKeeper, by its own wire protocol: records of big-endian numbers and counted strings, each behind its length.
//!
//! Only what an ephemeral node and a watch on it need: connect, ping, create, exists.

use super::http::{excerpt, read_before};
use super::{ANSWER, Target};
use anyhow::{Context as _, Result, bail, ensure};
use std::convert::Infallible;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The longest record believed: nothing that is asked for here has more.
const RECORD_MAX: usize = 64 << 10;
/// The longest session believed, ms.
const SESSION_MAX_MS: u64 = 3_600_000;

const CREATE: i32 = 1;
const EXISTS: i32 = 3;
const PING: i32 = 11;
/// The number of a ping and of its answer.
const XID_PING: i32 = -2;
/// The number of what nobody asked for: a watch that fired.
const XID_EVENT: i32 = -1;
const EPHEMERAL: i32 = 1;
const ALL_PERMISSIONS: i32 = 31;
const NODE_DELETED: i32 = 2;

// ---- records -------------------------------------------------------------------------------------------------------------------

/// A record to be sent.
#[derive(Debug, Default)]
struct Record(Vec<u8>);

impl Record {
    fn request(xid: i32, kind: i32) -> Self {
        Record::default().int(xid).int(kind)
    }

    fn int(mut self, n: i32) -> Self {
        self.0.extend(n.to_be_bytes());
        self
    }

    fn long(mut self, n: i64) -> Self {
        self.0.extend(n.to_be_bytes());
        self
    }

    fn bool(mut self, b: bool) -> Self {
        self.0.push(b.into());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        // Ours are short.
        self.0.extend((bytes.len() as u32).to_be_bytes());
        self.0.extend(bytes);
        self
    }

    fn framed(self) -> Vec<u8> {
        Record::default().bytes(&self.0).0
    }
}

/// A record that came, read from its beginning.
#[derive(Debug)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n).context("a record that is cut short")?;
        self.0 = rest;
        Ok(taken)
    }

    fn int(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.take(4)?.try_into()?))
    }

    fn long(&mut self) -> Result<i64> {
        Ok(i64::from_be_bytes(self.take(8)?.try_into()?))
    }

    fn text(&mut self) -> Result<&'a str> {
        let length = usize::try_from(self.int()?).context("a text of negative length")?;
        std::str::from_utf8(self.take(length)?).context("a text that is none")
    }
}

/// Takes the first whole record off what has come.
///
/// # Errors
/// When its length is nonsense.
fn split(came: &mut Vec<u8>) -> Result<Option<Vec<u8>>> {
    let Some(length) = came.first_chunk().map(|b| u32::from_be_bytes(*b) as usize) else { return Ok(None) };
    ensure!(length <= RECORD_MAX, "a record of {length} bytes");
    if came.len() < 4 + length {
        return Ok(None);
    }
    let record = came[4..4 + length].to_vec();
    came.drain(..4 + length);
    Ok(Some(record))
}

/// The timeout that a new session was given, ms.
fn connected(record: &[u8]) -> Result<u64> {
    let mut reader = Reader(record);
    let (_protocol, timeout, session) = (reader.int()?, reader.int()?, reader.long()?);
    let timeout = u64::try_from(timeout).unwrap_or(0);
    ensure!(session != 0 && (1..=SESSION_MAX_MS).contains(&timeout), "the session was refused");
    Ok(timeout)
}

/// What a record is, once the session is there.
#[derive(Debug, PartialEq, Eq)]
enum Came {
    /// The answer to this request, with its error.
    Reply { xid: i32, error: i32 },
    /// A watch fired.
    Event { kind: i32, path: String },
}

fn came(record: &[u8]) -> Result<Came> {
    let mut reader = Reader(record);
    let (xid, _zxid, error) = (reader.int()?, reader.long()?, reader.int()?);
    if xid != XID_EVENT {
        return Ok(Came::Reply { xid, error });
    }
    let (kind, _state) = (reader.int()?, reader.int()?);
    Ok(Came::Event { kind, path: reader.text()?.to_string() })
}

// ---- a session -----------------------------------------------------------------------------------------------------------------

#[derive(Debug)]
struct Session {
    stream: TcpStream,
    came: Vec<u8>,
    timeout: Duration,
    next_ping: Instant,
    xid: i32,
}

impl Session {
    /// With the timeout that the server makes of this one.
    fn open(address: SocketAddr, ask_ms: i32) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, ANSWER).with_context(|| format!("no ZooKeeper at {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(ANSWER))?;
        let mut session = Session { stream, came: Vec::new(), timeout: ANSWER, next_ping: Instant::now() + ANSWER, xid: 0 };
        let hello = Record::default().int(0).long(0).int(ask_ms).long(0).bytes(&[0; 16]).bool(false);
        session.stream.write_all(&hello.framed())?;
        let answer = session.record(Instant::now() + ANSWER)?.context("ZooKeeper does not answer")?;
        session.timeout = Duration::from_millis(connected(&answer)?);
        session.next_ping = Instant::now() + session.timeout / 3;
        Ok(session)
    }

    /// The next record; `None` when there is none in time.
    fn record(&mut self, deadline: Instant) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some(record) = split(&mut self.came)? {
                return Ok(Some(record));
            }
            let bytes = &mut [0; 4096];
            match read_before(&mut self.stream, bytes, deadline) {
                Ok(0) => bail!("ZooKeeper ended the connection"),
                Ok(n) => self.came.extend(&bytes[..n]),
                Err(e) if e.kind() == io::ErrorKind::TimedOut => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// The next that is not the answer to a ping, pinging meanwhile as ZooKeeper's own client does: after each third of the
    /// timeout. `None` when there is none in time.
    fn next(&mut self, deadline: Instant) -> Result<Option<Came>> {
        loop {
            if let Some(record) = self.record(deadline.min(self.next_ping))? {
                match came(&record)? {
                    Came::Reply { xid: XID_PING, .. } => {}
                    other => return Ok(Some(other)),
                }
            }
            let now = Instant::now();
            if now >= self.next_ping {
                self.stream.write_all(&Record::request(XID_PING, PING).framed())?;
                self.next_ping = now + self.timeout / 3;
            }
            if now >= deadline {
                return Ok(None);
            }
        }
    }

    /// Asks, and waits for the answer.
    fn ask(&mut self, kind: i32, body: impl FnOnce(Record) -> Record) -> Result<()> {
        self.xid += 1;
        self.stream.write_all(&body(Record::request(self.xid, kind)).framed())?;
        match self.next(Instant::now() + ANSWER)? {
            Some(Came::Reply { xid, error: 0 }) if xid == self.xid => Ok(()),
            Some(Came::Reply { error, .. }) => bail!("ZooKeeper refused with error {error}"),
            Some(other) => bail!("ZooKeeper answered with {other:?}"),
            None => bail!("ZooKeeper does not answer"),
        }
    }
}

/// See [`super::keep`].
///
/// # Errors
/// Whatever ends it.
pub fn keep(target: &Target, granted: impl FnOnce(u64)) -> Result<Infallible> {
    // The server raises it to the least that it grants.
    let mut session = Session::open(target.address, 1)?;
    session.ask(CREATE, |r| {
        let acl = |r: Record| r.int(1).int(ALL_PERMISSIONS).bytes(b"world").bytes(b"anyone");
        acl(r.bytes(target.key.as_bytes()).bytes(b"alive")).int(EPHEMERAL)
    })?;
    granted(u64::try_from(session.timeout.as_millis())?);
    loop {
        session.next(Instant::now() + ANSWER)?;
    }
}

/// See [`super::watch`].
///
/// # Errors
/// When there is no such node, or the server fails.
pub fn watch(target: &Target, watching: impl FnOnce(), deadline: Instant) -> Result<()> {
    // The observer's own session is of no interest, and so long.
    let mut session = Session::open(target.address, 30_000)?;
    session.ask(EXISTS, |r| r.bytes(target.key.as_bytes()).bool(true)).with_context(|| format!("{} is not there", target.key))?;
    watching();
    loop {
        match session.next(deadline)? {
            Some(Came::Event { kind: NODE_DELETED, path }) if path == target.key => return Ok(()),
            Some(_) => {}
            None => bail!("{} is still there", target.key),
        }
    }
}

/// Its version, by the four letters that are always allowed; it answers when it serves.
///
/// # Errors
/// While it does not.
pub fn version(address: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(b"srvr")?;
    let mut text = Vec::new();
    stream.take(4096).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    ensure!(text.contains("\nMode: "), "it does not serve yet");
    // `3.8.0-5a02…, built on …`
    let version = text.lines().find_map(|l| l.strip_prefix("Zookeeper version: ")).unwrap_or_default();
    Ok(excerpt(version.split(['-', ',', ' ']).next().unwrap_or_default().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: i32, path: &str) -> Vec<u8> {
        Record::default().int(XID_EVENT).long(-1).int(0).int(kind).int(3).bytes(path.as_bytes()).0
    }

    #[test]
    fn records_have_the_layout_of_the_protocol() {
        let ping = Record::request(XID_PING, PING).framed();
        assert_eq!(ping, [0, 0, 0, 8, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 11]);
        let hello = Record::default().int(0).long(0).int(1).long(0).bytes(&[0; 16]).bool(false).framed();
        assert_eq!((hello.len(), &hello[..4]), (49, &[0, 0, 0, 45][..]));
        let exists = Record::request(7, EXISTS).bytes(b"/a").bool(true).framed();
        assert_eq!(exists, [0, 0, 0, 15, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 2, b'/', b'a', 1]);
    }

    #[test]
    fn a_session_is_what_the_server_grants() {
        let answer = |timeout, session| Record::default().int(0).int(timeout).long(session).bytes(&[7; 16]).bool(false).0;
        assert_eq!(connected(&answer(4_000, 1)).unwrap(), 4_000);
        // An expired or refused session has neither id nor time.
        for (timeout, session) in [(0, 0), (0, 1), (-1, 1), (4_000, 0), (i32::MAX, 1)] {
            assert!(connected(&answer(timeout, session)).is_err(), "{timeout} {session}");
        }
        for cut in 0..16 {
            assert!(connected(&answer(4_000, 1)[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn replies_and_events_are_told_apart_and_cut_ones_refused() {
        let reply = Record::default().int(3).long(9).int(-101).0;
        assert_eq!(came(&reply).unwrap(), Came::Reply { xid: 3, error: -101 });
        let fired = event(NODE_DELETED, "/fide-1");
        assert_eq!(came(&fired).unwrap(), Came::Event { kind: NODE_DELETED, path: "/fide-1".into() });
        for record in [&reply, &fired] {
            for cut in 0..record.len() {
                assert!(came(&record[..cut]).is_err(), "cut at {cut}");
            }
        }
    }

    #[test]
    fn hostile_lengths_are_refused() {
        for length in [-1_i32, i32::MIN, i32::MAX, RECORD_MAX as i32 + 1] {
            assert!(split(&mut length.to_be_bytes().to_vec()).is_err(), "{length}");
            let path_length = Record::default().int(XID_EVENT).long(0).int(0).int(2).int(3).int(length).0;
            assert!(came(&path_length).is_err(), "{length}");
        }
        let no_text = Record::default().int(XID_EVENT).long(0).int(0).int(2).int(3).bytes(&[0xff, 0xfe]).0;
        assert!(came(&no_text).is_err());
    }

    #[test]
    fn records_are_the_same_in_any_pieces() {
        let stream: Vec<u8> = [event(1, "/a"), Vec::new(), event(2, "/b")].into_iter().flat_map(|r| Record(r).framed()).collect();
        let mut found = Vec::new();
        let mut buffer = Vec::new();
        for byte in &stream {
            buffer.push(*byte);
            found.extend(split(&mut buffer).unwrap());
        }
        assert_eq!(found, [event(1, "/a"), Vec::new(), event(2, "/b")]);
        assert!(buffer.is_empty());
    }

    #[test]
    fn flipped_bytes_never_panic() {
        let record = event(NODE_DELETED, "/fide-1");
        for at in 0..record.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut broken = record.clone();
                broken[at] = byte;
                let _ = (came(&broken), connected(&broken), split(&mut broken));
            }
        }
    }
}
