//! What is asked of a ZooKeeper server, by its own wire protocol: what it does (`srvr`), and a write.

use crate::course::Look;
use anyhow::{Context as _, Result, bail, ensure};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(1);
/// A write that is not committed by then is not believed to be.
const COMMIT_MAX: Duration = Duration::from_secs(4);
/// The longest record believed.
const RECORD_MAX: usize = 64 << 10;

const CREATE: i32 = 1;
const CLOSE: i32 = -11;
const EPHEMERAL: i32 = 1;
const ALL_PERMISSIONS: i32 = 31;
/// The session is over, or was moved: nothing is known of the write.
const NO_WRITE: [i32; 2] = [-112, -118];

/// What the server says of itself.
#[must_use]
pub fn look(address: SocketAddr) -> Look {
    let asked = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"srvr")?;
        let mut text = Vec::new();
        stream.take(4096).read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    };
    match asked() {
        Ok(text) => role(&text),
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => Look::Ended,
        Err(_) => Look::Down,
    }
}

fn role(text: &str) -> Look {
    match text.lines().find_map(|line| line.strip_prefix("Mode: ")) {
        Some("leader") => Look::Leads,
        Some("follower") => Look::Follows,
        _ => Look::Waits,
    }
}

/// Returns when the ensemble has committed a write that was begun after this was called: an ephemeral node. That the server refuses it is as good, because
/// refusals of writes are committed, too.
///
/// # Errors
/// That it was not, as far as is known.
pub fn commit(address: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(COMMIT_MAX))?;
    let hello = Record::default().int(0).long(0).int(COMMIT_MAX.as_millis() as i32).long(0).bytes(&[0; 16]).byte(0);
    stream.write_all(&hello.framed())?;
    let answer = read(&mut stream)?;
    ensure!(answer.get(8..16).is_some_and(|session| session != [0; 8]), "the session was refused");
    let path = format!("/fide-zookeeper-{}", std::process::id());
    let create = Record::default().int(1).int(CREATE).bytes(path.as_bytes()).bytes(b"");
    let create = create.int(1).int(ALL_PERMISSIONS).bytes(b"world").bytes(b"anyone").int(EPHEMERAL);
    stream.write_all(&create.framed())?;
    let reply = read(&mut stream)?;
    let error =
        reply.get(12..16).and_then(|four| four.try_into().ok()).map(i32::from_be_bytes).context("a reply that is cut short")?;
    if NO_WRITE.contains(&error) {
        bail!("error {error}");
    }
    let _ = stream.write_all(&Record::default().int(2).int(CLOSE).framed());
    Ok(())
}

fn read(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    ensure!(length <= RECORD_MAX, "a record of {length} bytes");
    let mut record = vec![0; length];
    stream.read_exact(&mut record)?;
    Ok(record)
}

#[derive(Default)]
struct Record(Vec<u8>);

impl Record {
    fn int(mut self, n: i32) -> Self {
        self.0.extend(n.to_be_bytes());
        self
    }

    fn long(mut self, n: i64) -> Self {
        self.0.extend(n.to_be_bytes());
        self
    }

    fn byte(mut self, byte: u8) -> Self {
        self.0.push(byte);
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend((bytes.len() as u32).to_be_bytes());
        self.0.extend(bytes);
        self
    }

    fn framed(self) -> Vec<u8> {
        Self::default().bytes(&self.0).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_role_is_what_it_says() {
        assert_eq!(role("Zookeeper version: 3.8.0\nMode: follower\nNode count: 5\n"), Look::Follows);
        assert_eq!(role("Zookeeper version: 3.8.0\nMode: leader\n"), Look::Leads);
        assert_eq!(role("This ZooKeeper instance is not currently serving requests\n"), Look::Waits);
    }

    #[test]
    fn records_have_the_layout_of_the_protocol() {
        assert_eq!(Record::default().int(2).int(CLOSE).framed(), [0, 0, 0, 8, 0, 0, 0, 2, 0xff, 0xff, 0xff, 0xf5]);
    }
}
