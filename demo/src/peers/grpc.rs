//! As much of gRPC over HTTP/2 as one client of one server needs: unary calls without compression, many at a time. etcd's own clients speak it; its JSON
//! gateway would add a hop to what is measured.

use anyhow::{Context as _, Result, bail, ensure};
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// The largest frame that is sent or taken: what every peer accepts (RFC 9113, 4.2).
const FRAME_MAX: usize = 16_384;
/// What a peer may send before it is told that it was read.
const WINDOW: u32 = 1 << 24;

/// One connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    authority: String,
    next_stream: u32,
    /// Calls that were not answered; those of them of which an answer came, though not its end.
    waiting: BTreeSet<u32>,
    answered: BTreeSet<u32>,
    /// Bytes that may be sent: on all streams together, and on a new one.
    window: i64,
    stream_window: i64,
    /// What the peer added to the windows of single streams.
    stream_credit: i64,
    /// Read since the peer was last told.
    unacknowledged: u32,
    input: Vec<u8>,
    at: usize,
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// A string literal of HPACK, not compressed. Shorter than 127 bytes.
fn literal(out: &mut Vec<u8>, text: &str) {
    out.push(text.len() as u8);
    out.extend_from_slice(text.as_bytes());
}

/// A request's header fields (RFC 7541; nothing is put into the dynamic table).
fn headers(path: &str, authority: &str) -> Vec<u8> {
    // :method POST, :scheme http, :path, :authority, content-type
    let mut out = vec![0x83, 0x86, 0x04];
    literal(&mut out, path);
    out.push(0x01);
    literal(&mut out, authority);
    out.extend_from_slice(&[0x0f, 0x10]);
    literal(&mut out, "application/grpc");
    out.push(0x00);
    literal(&mut out, "te");
    literal(&mut out, "trailers");
    out
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// When nobody listens there.
    pub fn open(address: SocketAddr, timeout: Duration) -> Result<Self> {
        let mut stream = TcpStream::connect_timeout(&address, timeout).with_context(|| format!("no server at {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        // No pushes; a large window for each stream, and for all of them.
        let mut settings = vec![0, 2, 0, 0, 0, 0, 0, 4];
        settings.extend_from_slice(&WINDOW.to_be_bytes());
        frame(&mut out, SETTINGS, 0, 0, &settings);
        frame(&mut out, WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes());
        stream.write_all(&out)?;
        Ok(Self {
            stream,
            authority: address.to_string(),
            next_stream: 1,
            waiting: BTreeSet::new(),
            answered: BTreeSet::new(),
            window: 65_535,
            stream_window: 65_535,
            stream_credit: 0,
            unacknowledged: 0,
            input: Vec::new(),
            at: 0,
        })
    }

    /// Calls that were not answered yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Begins a call with this message.
    ///
    /// # Errors
    /// When the connection ends.
    pub fn begin(&mut self, path: &str, message: &[u8]) -> Result<()> {
        let stream = self.next_stream;
        self.next_stream += 2;
        self.waiting.insert(stream);
        let mut out = Vec::with_capacity(message.len() + 256);
        frame(&mut out, HEADERS, END_HEADERS, stream, &headers(path, &self.authority));
        let mut body = vec![0];
        body.extend_from_slice(&(message.len() as u32).to_be_bytes());
        body.extend_from_slice(message);
        self.stream_credit = 0;
        let (mut at, mut sent_here) = (0, 0);
        while at < body.len() {
            let room = self.window.min(self.stream_window + self.stream_credit - sent_here);
            if room <= 0 {
                self.stream.write_all(&out)?;
                out.clear();
                self.step(stream)?;
                continue;
            }
            let length = (body.len() - at).min(FRAME_MAX).min(room as usize);
            let is_last = at + length == body.len();
            frame(&mut out, DATA, if is_last { END_STREAM } else { 0 }, stream, &body[at..at + length]);
            at += length;
            self.window -= length as i64;
            sent_here += length as i64;
        }
        Ok(self.stream.write_all(&out)?)
    }

    /// Waits until at most so many calls wait for their answers.
    ///
    /// # Errors
    /// When one fails, or the connection does.
    pub fn wait(&mut self, at_most: usize) -> Result<()> {
        while self.waiting.len() > at_most {
            self.step(0)?;
        }
        Ok(())
    }

    /// Takes the next frame. `sending`: the stream on which something waits to be sent.
    fn step(&mut self, sending: u32) -> Result<()> {
        let (kind, flags, stream, payload) = self.next_frame()?;
        let word = |at: usize| payload.get(at..at + 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
        match kind {
            DATA => {
                self.answered.insert(stream);
                self.unacknowledged += payload.len() as u32;
                if self.unacknowledged > WINDOW / 4 {
                    let mut out = Vec::new();
                    frame(&mut out, WINDOW_UPDATE, 0, 0, &self.unacknowledged.to_be_bytes());
                    self.stream.write_all(&out)?;
                    self.unacknowledged = 0;
                }
                self.ended(stream, flags)?;
            }
            HEADERS => self.ended(stream, flags)?,
            RST_STREAM => bail!("the server gave up a call: error {}", word(0).unwrap_or(0)),
            GOAWAY => bail!("the server ends the connection: {}", String::from_utf8_lossy(payload.get(8..).unwrap_or_default())),
            SETTINGS if flags & ACK == 0 => {
                for setting in payload.chunks_exact(6) {
                    if setting[..2] == [0, 4] {
                        self.stream_window = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]).into();
                    }
                }
                self.answer(SETTINGS, &[])?;
            }
            PING if flags & ACK == 0 => self.answer(PING, &payload)?,
            WINDOW_UPDATE => {
                let more = i64::from(word(0).unwrap_or(0) & 0x7fff_ffff);
                match stream {
                    0 => self.window += more,
                    of if of == sending => self.stream_credit += more,
                    _ => {}
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn answer(&mut self, kind: u8, payload: &[u8]) -> Result<()> {
        let mut out = Vec::new();
        frame(&mut out, kind, ACK, 0, payload);
        Ok(self.stream.write_all(&out)?)
    }

    /// An error comes as trailers without a message.
    fn ended(&mut self, stream: u32, flags: u8) -> Result<()> {
        if flags & END_STREAM != 0 && self.waiting.remove(&stream) {
            ensure!(self.answered.remove(&stream), "a call was refused by the server");
        }
        Ok(())
    }

    fn next_frame(&mut self) -> Result<(u8, u8, u32, Vec<u8>)> {
        loop {
            let unread = &self.input[self.at..];
            if let Some(head) = unread.get(..9) {
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
                ensure!(length <= FRAME_MAX, "a frame of {length} bytes");
                if let Some(payload) = unread.get(9..9 + length) {
                    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
                    let found = (head[3], head[4], stream, payload.to_vec());
                    self.at += 9 + length;
                    return Ok(found);
                }
            }
            self.input.drain(..self.at);
            self.at = 0;
            let mut buffer = [0; 1 << 16];
            let got = self.stream.read(&mut buffer).context("no answer")?;
            ensure!(got > 0, "the server ended the connection");
            self.input.extend_from_slice(&buffer[..got]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn header_fields_are_written_as_rfc_7541_says() {
        let expected = b"\x83\x86\x04\x02/a\x01\x01h\x0f\x10\x10application/grpc\x00\x02te\x08trailers";
        assert_eq!(headers("/a", "h"), expected);
    }

    /// A server that answers one call, and refuses the next one.
    #[test]
    fn calls_are_answered_or_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut out = Vec::new();
            frame(&mut out, SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 8]);
            frame(&mut out, PING, 0, 0, &[7; 8]);
            frame(&mut out, WINDOW_UPDATE, 0, 1, &64u32.to_be_bytes());
            frame(&mut out, HEADERS, END_HEADERS, 1, &[0x88]);
            frame(&mut out, DATA, 0, 1, &[0; 5]);
            frame(&mut out, HEADERS, END_HEADERS | END_STREAM, 1, &[]);
            frame(&mut out, HEADERS, END_HEADERS | END_STREAM, 3, &[0x88]);
            stream.write_all(&out).unwrap();
            let mut all = Vec::new();
            let _ = stream.read_to_end(&mut all);
            all
        });
        let mut connection = Connection::open(address, Duration::from_secs(60)).unwrap();
        connection.begin("/x", &[1; 100]).unwrap();
        connection.wait(0).unwrap();
        connection.begin("/x", &[]).unwrap();
        assert!(connection.wait(0).unwrap_err().to_string().contains("refused"));
        drop(connection);
        let all = server.join().unwrap();
        assert!(all.windows(8).any(|bytes| bytes == [7; 8]), "the ping is answered");
        assert!(all.iter().filter(|byte| **byte == 1).count() >= 100, "the whole message");
    }
}
