//! As much of HTTP/1.1 as etcd's gateway speaks: requests with a JSON body; answers of a stated length or in chunks, which may
//! come for as long as one likes to watch. What a server says is bounded in size and waited for in bounded time.

use anyhow::{Context as _, Result, bail};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The longest head of an answer, or line between chunks.
const HEAD_MAX: usize = 16 << 10;
/// The longest message.
const MESSAGE_MAX: usize = 1 << 20;
/// The most header fields.
const FIELDS_MAX: usize = 64;

/// Where in an answer the next byte belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Sized(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailer,
    Done,
}

/// Takes one answer apart as its bytes come: no clock, no socket.
#[derive(Debug)]
pub struct Decoder {
    raw: Vec<u8>,
    body: Vec<u8>,
    state: State,
    status: u16,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder { raw: Vec::new(), body: Vec::new(), state: State::Head, status: 0 }
    }
}

impl Decoder {
    /// More bytes of the answer.
    ///
    /// # Errors
    /// When this is no HTTP, or too long. Then the connection is of no more use.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        self.raw.extend_from_slice(bytes);
        while self.step()? {}
        if self.raw.len() > HEAD_MAX {
            bail!("a head or a line of more than {HEAD_MAX} bytes");
        }
        if self.body.len() > MESSAGE_MAX {
            bail!("a message of more than {MESSAGE_MAX} bytes");
        }
        Ok(())
    }

    /// Whether the answer is complete.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The status, 0 until it is known.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The next message of the body: a line, or what stands behind the last one when the answer is complete.
    pub fn message(&mut self) -> Option<Vec<u8>> {
        loop {
            let mut message = match self.body.iter().position(|&b| b == b'\n') {
                Some(end) => self.body.drain(..=end).collect(),
                None if self.is_done() => std::mem::take(&mut self.body),
                None => return None,
            };
            message.truncate(message.trim_ascii_end().len());
            if !message.is_empty() || (self.is_done() && self.body.is_empty()) {
                return Some(message).filter(|m| !m.is_empty());
            }
        }
    }

    /// One step further; whether there may be another.
    fn step(&mut self) -> Result<bool> {
        match self.state {
            State::Head => {
                let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
                let mut head = httparse::Response::new(&mut fields);
                let httparse::Status::Complete(length) = head.parse(&self.raw).context("not an answer of HTTP")? else {
                    return Ok(false);
                };
                let field = |name: &str| {
                    let found = head.headers.iter().find(|h| h.name.eq_ignore_ascii_case(name));
                    found.map(|h| String::from_utf8_lossy(h.value).trim().to_ascii_lowercase())
                };
                self.status = head.code.unwrap_or(0);
                self.state = match (field("transfer-encoding"), field("content-length")) {
                    (Some(coding), _) if coding == "chunked" => State::ChunkSize,
                    (None, Some(length)) => match length.parse() {
                        Ok(0) => State::Done,
                        Ok(n) if n <= MESSAGE_MAX as u64 => State::Sized(n),
                        _ => bail!("an answer of {length} bytes"),
                    },
                    _ => bail!("an answer without a length"),
                };
                self.raw.drain(..length);
                Ok(true)
            }
            State::Sized(left) => {
                let left = self.take(left);
                self.state = if left == 0 { State::Done } else { State::Sized(left) };
                Ok(left == 0)
            }
            State::ChunkSize => match httparse::parse_chunk_size(&self.raw) {
                Ok(httparse::Status::Complete((length, size))) => {
                    self.raw.drain(..length);
                    self.state = if size == 0 { State::Trailer } else { State::Chunk(size) };
                    Ok(true)
                }
                Ok(httparse::Status::Partial) => Ok(false),
                Err(_) => bail!("a chunk without a size"),
            },
            State::Chunk(left) => {
                let left = self.take(left);
                self.state = if left == 0 { State::ChunkEnd } else { State::Chunk(left) };
                Ok(left == 0)
            }
            State::ChunkEnd => match self.raw.get(..2) {
                Some(b"\r\n") => {
                    self.raw.drain(..2);
                    self.state = State::ChunkSize;
                    Ok(true)
                }
                Some(_) => bail!("a chunk that is longer than its size"),
                None => Ok(false),
            },
            State::Trailer => match self.raw.windows(2).position(|w| w == b"\r\n") {
                Some(end) => {
                    self.raw.drain(..end + 2);
                    self.state = if end == 0 { State::Done } else { State::Trailer };
                    Ok(true)
                }
                None => Ok(false),
            },
            // What follows belongs to no answer that was asked for.
            State::Done if self.raw.is_empty() => Ok(false),
            State::Done => bail!("bytes behind the end of an answer"),
        }
    }

    /// Moves at most so many bytes into the body; how many are still to come.
    fn take(&mut self, left: u64) -> u64 {
        let n = self.raw.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.body.extend(self.raw.drain(..n));
        left - n as u64
    }
}

/// A connection, with one request at a time.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    answer: Decoder,
}

impl Connection {
    /// # Errors
    /// When nobody listens.
    pub fn open(address: SocketAddr, within: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, within)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(within))?;
        Ok(Connection { stream, address, answer: Decoder::default() })
    }

    /// Asks. The answer is fetched by [`Connection::message`].
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn ask(&mut self, method: &str, path: &str, body: &str) -> io::Result<()> {
        self.answer = Decoder::default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        self.stream.write_all((head + body).as_bytes())
    }

    /// The next message of the answer; `None` behind the last one.
    ///
    /// # Errors
    /// When it does not come in time, is no HTTP, or is no success.
    pub fn message(&mut self, deadline: Instant) -> Result<Option<Vec<u8>>> {
        loop {
            let message = self.answer.message();
            if let (Some(text), false) = (&message, matches!(self.answer.status(), 0 | 200)) {
                bail!("refused with {}: {}", self.answer.status(), excerpt(text));
            }
            if message.is_some() || self.answer.is_done() {
                return Ok(message);
            }
            let bytes = &mut [0; 4096];
            match read_before(&mut self.stream, bytes, deadline)? {
                0 => bail!("the server ended the connection"),
                n => self.answer.feed(&bytes[..n])?,
            }
        }
    }

    /// The whole answer to a request that has but one message.
    ///
    /// # Errors
    /// As [`Connection::message`], or when there is none or more than one.
    pub fn only_message(&mut self, deadline: Instant) -> Result<Vec<u8>> {
        let message = self.message(deadline)?.context("an empty answer")?;
        match self.message(deadline)? {
            None => Ok(message),
            Some(more) => bail!("more than one answer: {}", excerpt(&more)),
        }
    }
}

/// The beginning of what a server said, fit to be printed.
pub fn excerpt(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Reads what is there, waiting until then at most.
///
/// # Errors
/// `TimedOut`, and those of the socket.
pub fn read_before(stream: &mut TcpStream, bytes: &mut [u8], deadline: Instant) -> io::Result<usize> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
        }
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(bytes) {
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZED: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{\"a\": 1}\n";
    const CHUNKED: &[u8] =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{\"a\"\r\n5;x=y\r\n:1}\n{\r\n2\r\n}\n\r\n0\r\nX: y\r\n\r\n";

    fn messages(pieces: &[&[u8]]) -> Result<(Vec<String>, bool)> {
        let mut decoder = Decoder::default();
        let mut found = Vec::new();
        for piece in pieces {
            decoder.feed(piece)?;
            found.extend(std::iter::from_fn(|| decoder.message()).map(|m| String::from_utf8_lossy(&m).into_owned()));
        }
        Ok((found, decoder.is_done()))
    }

    #[test]
    fn answers_are_the_same_in_any_pieces() {
        for (answer, expected) in [(SIZED, vec!["{\"a\": 1}"]), (CHUNKED, vec!["{\"a\":1}", "{}"])] {
            assert_eq!(messages(&[answer]).unwrap(), (expected.iter().map(ToString::to_string).collect(), true));
            let single: Vec<&[u8]> = answer.chunks(1).collect();
            assert_eq!(messages(&single).unwrap(), messages(&[answer]).unwrap());
            for cut in 0..answer.len() {
                assert_eq!(messages(&[&answer[..cut], &answer[cut..]]).unwrap(), messages(&[answer]).unwrap(), "cut at {cut}");
                assert!(!messages(&[&answer[..cut]]).unwrap().1, "complete when cut at {cut}");
            }
        }
    }

    #[test]
    fn a_message_is_there_as_soon_as_its_line_is() {
        let begun = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n";
        assert_eq!(messages(&[begun]).unwrap(), (vec!["{}".to_string()], false));
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let long = "x".repeat(HEAD_MAX + 1);
        for bad in [
            "SSH-2.0-OpenSSH\r\n".to_string(),
            "HTTP/1.1 200 OK\r\n\r\n{}".into(),
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n".into(),
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n".into(),
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: gzip\r\n\r\n".into(),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".into(),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc".into(),
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc".into(),
            format!("HTTP/1.1 200 OK\r\nX: {long}"),
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n{long}"),
        ] {
            assert!(messages(&[bad.as_bytes()]).is_err(), "{bad:.80}");
        }
    }

    #[test]
    fn a_message_without_an_end_is_given_up() {
        let mut decoder = Decoder::default();
        decoder.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffff\r\n").unwrap();
        let fed = (0..=MESSAGE_MAX / 4096 + 1).take_while(|_| decoder.feed(&[b'x'; 4096]).is_ok()).count();
        assert_eq!(fed, MESSAGE_MAX / 4096);
    }

    #[test]
    fn flipped_bytes_never_panic() {
        for answer in [SIZED, CHUNKED] {
            for at in 0..answer.len() {
                for byte in [0, b'\r', b'\n', b'9', b'f', 0x80, 0xff] {
                    let mut broken = answer.to_vec();
                    broken[at] = byte;
                    let _ = messages(&[&broken]).map(drop);
                }
            }
        }
    }
}
