//! The replication protocol of Redis, both sides of it: this module takes the stream of the server that leads, as a replica would, and gives the decided
//! stream to servers that follow, as a primary would. The servers themselves are not changed, and what they agree on is what Redis itself replicates: effects.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for one line or one piece of data.
const PATIENCE: Duration = Duration::from_secs(30);
/// A server that is there answers within this time.
const SOON: Duration = Duration::from_secs(1);
/// A line of this protocol, or one argument of a command, is no longer.
const LINE_MAX: usize = 1 << 16;

/// Of the mark behind data whose length is not known.
const MARK_LEN: usize = 40;

/// How this module presents itself to servers.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// `masteruser`.
    pub user: String,
    /// `masterauth`.
    pub password: String,
}

/// As what this module comes to servers.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    /// To those of other hosts.
    pub of_others: Account,
    /// To its own.
    pub own: Account,
}

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// A connection that counts what was read.
#[derive(Debug)]
pub struct Counted {
    /// The connection.
    pub stream: TcpStream,
    /// Bytes that were read.
    pub read: u64,
}

impl Read for Counted {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(bytes)?;
        self.read += read as u64;
        Ok(read)
    }
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn line(from: &mut BufReader<impl Read>) -> io::Result<String> {
    let mut line = Vec::new();
    from.by_ref().take(LINE_MAX as u64).read_until(b'\n', &mut line)?;
    let Some(text) = line.strip_suffix(b"\n") else { return Err(io::ErrorKind::UnexpectedEof.into()) };
    Ok(String::from_utf8_lossy(text.strip_suffix(b"\r").unwrap_or(text)).into_owned())
}

fn command(to: &mut impl Write, words: &[&str]) -> io::Result<()> {
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        bytes.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    to.write_all(bytes.as_bytes())
}

fn asked(server: &mut BufReader<impl Read + Write>, words: &[&str]) -> io::Result<String> {
    command(server.get_mut(), words)?;
    let reply = line(server)?;
    match reply.strip_prefix('-') {
        Some(error) => Err(wrong(format!("{} is answered by {error}", words[0]))),
        None => Ok(reply),
    }
}

/// What a server answers to PSYNC.
#[derive(Debug, PartialEq, Eq)]
pub enum Sync {
    /// The stream goes on where it was asked for.
    Continues,
    /// All data come first; the stream behind them begins after this many bytes.
    Whole(u64),
}

/// What a server says of itself: sections of INFO.
///
/// # Errors
/// What it answered, or that it did not.
pub fn ask_info(address: &str, account: &Account, sections: &[&str]) -> io::Result<String> {
    let mut server = connect(address, account, Duration::from_millis(500), |_| true)?;
    let len = asked(&mut server, &[&["INFO"], sections].concat())?;
    let len = len.strip_prefix('$').and_then(|len| len.parse::<usize>().ok()).filter(|len| *len <= LINE_MAX);
    let mut text = vec![0; len.ok_or_else(|| wrong("INFO is not answered by a text"))?];
    server.read_exact(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// `admits`: the server's end is known, and what it writes there comes.
fn connect(
    address: &str,
    account: &Account,
    patience: Duration,
    admits: impl Fn(&TcpStream) -> bool,
) -> io::Result<BufReader<Counted>> {
    let resolved = std::net::ToSocketAddrs::to_socket_addrs(address)?.next();
    let resolved = resolved.ok_or_else(|| wrong(format!("no address {address}")))?;
    let stream = TcpStream::connect_timeout(&resolved, patience.min(Duration::from_secs(2)))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let until = Instant::now() + patience;
    while !admits(&stream) {
        let is_over = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0])).is_ok_and(|len| len == 0);
        stream.set_nonblocking(false)?;
        if is_over || Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    let mut server = BufReader::with_capacity(1 << 16, Counted { stream, read: 0 });
    let shown = match (account.user.as_str(), account.password.as_str()) {
        (_, "") => return Ok(server),
        ("", password) => asked(&mut server, &["AUTH", password]),
        (user, password) => asked(&mut server, &["AUTH", user, password]),
    };
    match shown {
        // It wants none (any more, or yet).
        Err(e) if e.to_string().contains("without any password configured") => {}
        other => drop(other?),
    }
    Ok(server)
}

/// Becomes a replica of a server: of its stream behind `position` (a replication id and bytes of it) if it still has that. Without `needs_stream`
/// only the data count.
///
/// # Errors
/// What the server answered, or that it did not.
pub fn attach(
    address: &str,
    account: &Account,
    position: Option<(&str, u64)>,
    needs_stream: bool,
) -> io::Result<(BufReader<Counted>, Sync)> {
    let mut server = connect(address, account, PATIENCE, |_| true)?;
    if !needs_stream {
        // All data come as they are made, and need no disk there; the stream would not follow them by itself.
        asked(&mut server, &["REPLCONF", "capa", "eof"])?;
    }
    // A server that has just begun to lead is asked once only: it takes no PSYNC behind other commands that it has not answered.
    let answer = match position {
        Some((id, offset)) => asked(&mut server, &["PSYNC", id, &(offset + 1).to_string()])?,
        None => asked(&mut server, &["PSYNC", "?", "-1"])?,
    };
    let words: Vec<&str> = answer.split_whitespace().collect();
    match words[..] {
        ["+CONTINUE", ..] => Ok((server, Sync::Continues)),
        ["+FULLRESYNC", _, offset] => {
            let offset = offset.parse().map_err(|_| wrong(format!("PSYNC is answered by {answer}")))?;
            Ok((server, Sync::Whole(offset)))
        }
        _ => Err(wrong(format!("PSYNC is answered by {answer}"))),
    }
}

/// Where a server's stream is: its replication id, and the bytes of it.
///
/// # Errors
/// What the server answered, or that it did not.
pub fn position(address: &str, account: &Account) -> io::Result<(String, u64)> {
    let info = ask_info(address, account, &["replication"])?;
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned());
    let offset = field("master_repl_offset:").and_then(|offset| offset.parse().ok());
    field("master_replid:").zip(offset).ok_or_else(|| wrong("INFO names no replication id and offset"))
}

/// Becomes a replica of this host's own server again, of its stream of this replication id behind so many bytes.
///
/// # Errors
/// What the server answered, or that it did not, or keeps no more of its stream.
pub fn resume(
    address: &str,
    account: &Account,
    (id, offset): (&str, u64),
    admits: impl Fn(&TcpStream) -> bool,
) -> io::Result<BufReader<Counted>> {
    let mut server = connect(address, account, SOON, admits)?;
    let answer = asked(&mut server, &["PSYNC", id, &(offset + 1).to_string()])?;
    if answer.starts_with("+CONTINUE") { Ok(server) } else { Err(wrong(format!("PSYNC is answered by {answer}"))) }
}

/// The leader's stream from byte `from` to byte `until`, if it still has that.
///
/// # Errors
/// What the server answered, or that it did not, or has them no more.
pub fn missed(leader: &str, account: &Account, from: u64, until: u64) -> io::Result<Vec<u8>> {
    let (id, _) = position(leader, account)?;
    let (mut server, sync) = attach(leader, account, Some((&id, from)), true)?;
    if sync != Sync::Continues {
        return Err(wrong("the leader keeps no more of its stream than repl-backlog-size"));
    }
    let mut bytes = Vec::new();
    server.by_ref().take(until - from).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == until - from { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Passes the data on that come before the stream. `true`: they end with a mark, which is not found if something follows before it was read.
///
/// # Errors
/// That a side is gone, or `is_over`.
pub fn pass_data(from: &mut BufReader<impl Read>, to: &mut impl Write, is_over: &AtomicBool) -> io::Result<bool> {
    let length = loop {
        let line = line(from)?; // empty ones say that the server is at work
        match line.strip_prefix('$') {
            Some(length) => break length.to_owned(),
            None if line.is_empty() => to.write_all(b"\n")?,
            None => return Err(wrong(format!("{line:?} instead of data"))),
        }
    };
    to.write_all(format!("${length}\r\n").as_bytes())?;
    let mark = length.strip_prefix("EOF:").map(str::as_bytes);
    if mark.is_some_and(|mark| mark.len() != MARK_LEN) {
        return Err(wrong(format!("data up to {length}")));
    }
    let mut left = match mark {
        Some(_) => u64::MAX,
        None => length.parse::<u64>().map_err(|_| wrong(format!("data of {length} bytes")))?,
    };
    // The last bytes that were passed on.
    let mut last = Vec::new();
    while left > 0 {
        if is_over.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let bytes = from.fill_buf()?;
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let len = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        to.write_all(&bytes[..len])?;
        if mark.is_some() {
            last.extend_from_slice(&bytes[len.saturating_sub(MARK_LEN)..len]);
            last.drain(..last.len().saturating_sub(MARK_LEN));
        }
        from.consume(len);
        // Nothing follows it before this side says that it has all.
        left = if mark.is_some_and(|mark| last == mark) { 0 } else { left - len as u64 };
    }
    Ok(mark.is_some())
}

/// Waits until a server says that it has loaded its data, however long that takes.
fn loaded(own: &mut TcpStream, is_over: &AtomicBool) -> io::Result<()> {
    own.set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut said: Vec<u8> = Vec::new();
    let mut bytes = [0; 512];
    // Before that it says empty lines, so that nobody takes it for dead.
    while !said.windows(3).any(|word| word == b"ACK") {
        match own.read(&mut bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => said.extend(bytes[..len].iter().filter(|byte| **byte != b'\n')),
            Err(e) if [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut].contains(&e.kind()) => {}
            Err(e) => return Err(e),
        }
        if said.len() > LINE_MAX {
            return Err(wrong("a server says other things than that it has its data"));
        }
        if is_over.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
    }
    Ok(())
}

/// The server writes no more to this connection than `total` bytes: the rest of them.
///
/// # Errors
/// That it is gone.
pub fn rest(from: &mut BufReader<Counted>, total: u64) -> io::Result<Vec<u8>> {
    let mut rest = from.buffer().to_vec();
    from.consume(rest.len());
    let missing = total.checked_sub(from.get_ref().read).ok_or_else(|| wrong("more was read than was written"))?;
    from.by_ref().take(missing).read_to_end(&mut rest)?;
    if from.get_ref().read == total && from.buffer().is_empty() { Ok(rest) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn words(from: &mut BufReader<impl Read>) -> io::Result<Vec<String>> {
    let head = line(from)?;
    let Some(count) = head.strip_prefix('*') else {
        return Ok(head.split_whitespace().map(str::to_owned).collect());
    };
    let count: usize = count.parse().ok().filter(|count| *count <= 64).ok_or_else(|| wrong("a command of that many words"))?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let len = line(from)?;
        let len: usize =
            len.strip_prefix('$').and_then(|len| len.parse().ok()).ok_or_else(|| wrong("a word without its length"))?;
        if len > LINE_MAX {
            return Err(wrong("a word of that length"));
        }
        let mut word = vec![0; len + 2];
        from.read_exact(&mut word)?;
        word.truncate(len);
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    Ok(words)
}

/// Waits for this host's own server to connect as a replica, until it asks for data: its connection.
///
/// # Errors
/// That it did not come, or `is_over`.
pub fn accept(listener: &TcpListener, is_over: &AtomicBool) -> io::Result<TcpStream> {
    let until = Instant::now() + PATIENCE;
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < until && !is_over.load(Ordering::Relaxed) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(e) => return Err(e),
        }
    };
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut server = BufReader::new(stream);
    loop {
        let said = words(&mut server)?;
        let first = said.first().map(|word| word.to_ascii_uppercase()).unwrap_or_default();
        match first.as_str() {
            "PING" => server.get_mut().write_all(b"+PONG\r\n")?,
            "AUTH" | "REPLCONF" => server.get_mut().write_all(b"+OK\r\n")?,
            "PSYNC" => return Ok(server.into_inner()),
            _ => {
                server.get_mut().write_all(b"-ERR this is no server\r\n")?;
                return Err(wrong(format!("{first} instead of PSYNC")));
            }
        }
    }
}

/// The server that follows has all data, and waits for the stream.
#[derive(Debug)]
pub struct Followed {
    /// To that server.
    pub stream: TcpStream,
    /// The bytes of the leader's stream that its data contain.
    pub offset: u64,
}

/// This host's server gets the leader's data. `comes`: from here on it has others than before.
///
/// # Errors
/// Which side failed, and how; or `is_over`.
pub fn give_data(
    listener: &TcpListener,
    leader: &str,
    account: &Account,
    id: &str,
    is_over: &AtomicBool,
    comes: impl FnOnce(),
) -> io::Result<Followed> {
    let mut own = accept(listener, is_over)?;
    let failed = |own: &TcpStream, e: io::Error| {
        let _ = own.shutdown(Shutdown::Both);
        e
    };
    let (mut from, sync) = attach(leader, account, None, false).map_err(|e| failed(&own, e))?;
    let Sync::Whole(offset) = sync else { return Err(failed(&own, wrong("a stream without its data"))) };
    comes();
    own.write_all(format!("+FULLRESYNC {id} {offset}\r\n").as_bytes())?;
    let is_marked = pass_data(&mut from, &mut own, is_over).map_err(|e| failed(&own, e))?;
    if is_marked {
        loaded(&mut own, is_over).map_err(|e| failed(&own, e))?;
    }
    // The leader ends the transfer meanwhile, undisturbed by a replica that goes.
    drop(from);
    Ok(Followed { stream: own, offset })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(script: impl FnOnce(TcpStream) + Send + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || script(listener.accept().unwrap().0));
        address
    }

    /// Reads commands and answers each by the next of these.
    fn answers(answers: &'static [&'static str]) -> String {
        pair(move |stream| {
            let mut from = BufReader::new(stream);
            for answer in answers {
                words(&mut from).unwrap();
                from.get_mut().write_all(answer.as_bytes()).unwrap();
            }
            let _ = from.read(&mut [0]);
        })
    }

    #[test]
    fn data_are_passed_on_with_their_length() {
        let address = answers(&["+OK\r\n", "+FULLRESYNC 0123 77\r\n\n\n$5\r\nREDISstream"]);
        let (mut from, sync) = attach(&address, &Account::default(), None, false).unwrap();
        assert_eq!(sync, Sync::Whole(77));
        let mut passed = Vec::new();
        pass_data(&mut from, &mut passed, &AtomicBool::new(false)).unwrap();
        assert_eq!(passed, b"\n\n$5\r\nREDIS");
        let mut rest = [0; 6];
        from.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"stream");
    }

    #[test]
    fn data_without_a_length_end_with_their_mark_wherever_it_is_cut() {
        let mark = "0123456789".repeat(4);
        let all = format!("$EOF:{mark}\r\nREDIS{}data{mark}", &mark[..39]);
        for size in [1, 7, 39, 40, 41, 4096] {
            let mut from = BufReader::with_capacity(size, all.as_bytes());
            let mut passed = Vec::new();
            pass_data(&mut from, &mut passed, &AtomicBool::new(false)).unwrap();
            assert_eq!(passed, all.as_bytes(), "{size}");
        }
    }

    #[test]
    fn a_server_has_its_data_when_it_says_so() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut server = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut own = listener.accept().unwrap().0;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| loaded(&mut own, &is_over));
            server.write_all(b"\n\n*3\r\n$8\r\nREPLCONF\r\n$3\r\nA").unwrap();
            server.write_all(b"CK\r\n$1\r\n0\r\n").unwrap();
            waits.join().unwrap().unwrap();
        });
        drop(server);
        let mut left = Vec::new();
        own.read_to_end(&mut left).unwrap();
        assert!(loaded(&mut own, &is_over).is_err(), "it is gone");
        {
            is_over.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_server_that_refuses_is_quoted() {
        let address = answers(&["-WRONGPASS invalid\r\n"]);
        let account = Account { user: "u".into(), password: "p".into() };
        let error = attach(&address, &account, None, false).unwrap_err().to_string();
        assert!(error.contains("WRONGPASS"), "{error}");
        for answer in [&["+OK\r\n", "+FULLRESYNC 0123 x\r\n"], &["+OK\r\n", "+PARTLY\r\n"]] {
            assert!(attach(&answers(answer), &Account::default(), None, false).is_err());
        }
    }

    #[test]
    fn data_that_are_cut_short_or_no_data_are_an_error() {
        for tail in ["$9\r\nREDIS", "+what\r\n", "$x\r\n", "$5"] {
            let address = pair(move |mut stream| stream.write_all(tail.as_bytes()).unwrap());
            let mut from = BufReader::new(TcpStream::connect(address).unwrap());
            assert!(pass_data(&mut from, &mut Vec::new(), &AtomicBool::new(false)).is_err(), "{tail}");
        }
    }

    #[test]
    fn a_replica_is_answered_until_it_asks_for_data() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let replica = std::thread::spawn(move || {
            let mut stream = BufReader::new(TcpStream::connect(address).unwrap());
            for said in [&["PING"][..], &["AUTH", "x"], &["REPLCONF", "capa", "eof"]] {
                assert!(asked(&mut stream, said).unwrap().starts_with('+'));
            }
            command(stream.get_mut(), &["PSYNC", "?", "-1"]).unwrap();
            stream
        });
        accept(&listener, &AtomicBool::new(false)).unwrap();
        drop(replica.join().unwrap());
        std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"*1\r\n$99999999\r\n").unwrap();
        });
        assert!(accept(&listener, &AtomicBool::new(false)).is_err(), "a stranger");
    }
}
