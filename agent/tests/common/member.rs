//! The test program as an ordinary user who may open the socket, and asks for as much as he can.

use super::actor::{become_nobody, become_user, say};
use fide_wire::control::MESSAGE_MAX;
use std::io::{BufRead, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

const HELLO: &str = r#"{"op":"hello","protocol":1}"#;

const SUBSCRIBE: &str = r#"{"op":"subscribe"}"#;

/// A connection without a library: requests may be sent without waiting for replies.
pub struct Raw(OwnedFd);

impl Raw {
    /// Connects and greets.
    pub fn open(path: &Path) -> Option<Self> {
        let raw = Self::silent(path)?;
        (raw.send(HELLO, true) && raw.receive()?.contains("\"re\":\"hello\"")).then_some(raw)
    }

    /// Connects.
    pub fn silent(path: &Path) -> Option<Self> {
        // SAFETY: a fresh socket, and an address of the stated length; results are checked.
        unsafe {
            let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
            assert!(fd >= 0);
            let fd = OwnedFd::from_raw_fd(fd);
            let mut address: libc::sockaddr_un = std::mem::zeroed();
            address.sun_family = libc::AF_UNIX as u16;
            for (to, from) in address.sun_path.iter_mut().zip(path.to_str().unwrap().bytes()) {
                *to = from.cast_signed();
            }
            if libc::connect(fd.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32) != 0 {
                return None;
            }
            Some(Self(fd))
        }
    }

    /// No more is sent from here, or no more is read.
    pub fn shut(&self, how: i32) {
        // SAFETY: an open socket. One that the agent has closed is shut already.
        unsafe { libc::shutdown(self.0.as_raw_fd(), how) };
    }

    /// Sends one message; `false` when it does not fit, or the agent hung up.
    pub fn send(&self, text: &str, wait: bool) -> bool {
        self.send_bytes(text.as_bytes(), wait)
    }

    /// The same of any bytes.
    pub fn send_bytes(&self, text: &[u8], wait: bool) -> bool {
        let flags = libc::MSG_NOSIGNAL | if wait { 0 } else { libc::MSG_DONTWAIT };
        // SAFETY: an open socket and a buffer of the stated length.
        unsafe { libc::send(self.0.as_raw_fd(), text.as_ptr().cast(), text.len(), flags) >= 0 }
    }

    /// The next reply; descriptors that come with it are kept as long as this process lives.
    pub fn receive(&self) -> Option<String> {
        self.receive_with(0)
    }

    /// The next reply that is there now.
    pub fn receive_now(&self) -> Option<String> {
        self.receive_with(libc::MSG_DONTWAIT)
    }

    fn receive_with(&self, flags: i32) -> Option<String> {
        let mut buffer = vec![0u8; MESSAGE_MAX];
        // SAFETY: an open socket and a buffer of the stated length.
        let n = unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags) };
        (n > 0).then(|| String::from_utf8_lossy(&buffer[..n as usize]).into_owned())
    }

    /// Asks, and waits for the reply.
    pub fn ask(&self, text: &str) -> Option<String> {
        self.send(text, true).then(|| self.receive()).flatten()
    }
}

/// Children that end at the latest with this.
struct Sleepers(Vec<std::process::Child>);

impl Drop for Sleepers {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|mut child| {
            let _ = child.kill(); // gone already is as good
            let _ = child.wait();
        });
    }
}

/// Does as it is told, a line at a time, as an ordinary user. `{i}` in a message stands for a running number.
pub fn act(socket: &Path) {
    become_nobody();
    let mut connections: Vec<Raw> = Vec::new();
    let mut sleepers = Sleepers(Vec::new());
    say("ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        match words[0] {
            // open COUNT: so many more connections. How many there are.
            "open" => {
                let wanted: usize = words[1].parse().unwrap();
                connections.extend((0..wanted).map_while(|_| Raw::open(socket)));
                say(connections.len());
            }
            // queue - MESSAGE: as often as it fits every connection, without reading a reply. How often.
            "queue" => {
                let sent: usize = connections
                    .iter()
                    .map(|c| std::iter::repeat_with(|| c.send(words[2], false)).take_while(|s| *s).count())
                    .sum();
                say(sent);
            }
            // ask COUNT MESSAGE: so often, over the first connection. The last reply, and how many were not refused before the first that was.
            "ask" => {
                let (mut good, mut last) = (0, String::new());
                for i in 0..words[1].parse().unwrap() {
                    last = connections[0].ask(&words[2].replace("{i}", &i.to_string())).unwrap_or_default();
                    if last.contains("\"re\":\"error\"") {
                        break;
                    }
                    good += 1;
                }
                say(format!("{good} {last}"));
            }
            // each - MESSAGE: once over every connection. The last reply, and how many were not refused.
            "each" => {
                let replies: Vec<String> = connections
                    .iter()
                    .enumerate()
                    .map(|(i, c)| c.ask(&words[2].replace("{i}", &i.to_string())).unwrap_or_default())
                    .collect();
                let good = replies.iter().filter(|r| !r.contains("\"re\":\"error\"")).count();
                say(format!("{good} {}", replies.last().map_or("", |r| r)));
            }
            // Closes all connections.
            "hang-up" => {
                connections.clear();
                say("ok");
            }
            // sleepers COUNT: so many processes of this user.
            "sleepers" => {
                let spawn = |_| std::process::Command::new("sleep").arg("1000").spawn().unwrap();
                sleepers.0.extend((0..words[1].parse::<usize>().unwrap()).map(spawn));
                say(sleepers.0.len());
            }
            // watch PREFIX: each of them, over the first connection, until one is refused. As `ask`.
            "watch" => {
                let (mut good, mut last) = (0, String::new());
                for (i, sleeper) in sleepers.0.iter().enumerate() {
                    let text = format!(r#"{{"op":"watch","name":"{}{i}","selector":{{"pid":{}}}}}"#, words[1], sleeper.id());
                    last = connections[0].ask(&text).unwrap_or_default();
                    if last.contains("\"re\":\"error\"") {
                        break;
                    }
                    good += 1;
                }
                say(format!("{good} {last}"));
            }
            // Ends all sleepers.
            "end" => {
                sleepers = Sleepers(Vec::new());
                say("ok");
            }
            // churn MILLISECONDS: event rings are made and given back again and again, over connections of their own. How often.
            "churn" => {
                let until = std::time::Instant::now() + std::time::Duration::from_millis(words[1].parse().unwrap());
                let threads: Vec<_> = (0..4)
                    .map(|_| {
                        let socket = socket.to_owned();
                        std::thread::spawn(move || {
                            let mut made = 0;
                            while std::time::Instant::now() < until {
                                let Some(c) = Raw::open(&socket) else { continue };
                                made += usize::from(c.ask(SUBSCRIBE).is_some_and(|r| r.contains("\"re\":\"ring\"")));
                            }
                            made
                        })
                    })
                    .collect();
                let made: usize = threads.into_iter().map(|t| t.join().unwrap()).sum();
                say(made);
            }
            other => panic!("no order {other}"),
        }
    }
}

/// As an ordinary user with subordinate user numbers, as /etc/subuid gives them: opens connections
/// as each of some of these, until one is refused, and says how many there are in all. The
/// arguments: the user, how many of its numbers, connections for each.
pub fn subordinates(socket: &Path, arguments: &[String]) {
    let [uid, users, each] = [0, 1, 2].map(|i| arguments[i].parse::<u32>().unwrap());
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    // SAFETY: the child goes on with what this thread alone uses.
    let child = unsafe { libc::fork() };
    if child != 0 {
        drop(theirs);
        let mut done = [0];
        ours.read_exact(&mut done).unwrap();
        for map in ["uid_map", "gid_map"] {
            std::fs::write(format!("/proc/{child}/{map}"), format!("0 {uid} 1\n1 100000 65536\n")).unwrap();
        }
        ours.write_all(&done).unwrap();
        // SAFETY: waits for the child made above; nothing is written.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        return;
    }
    drop(ours);
    become_user(uid);
    // SAFETY: a number only; this process has one thread.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWUSER) }, 0);
    theirs.write_all(&[1]).unwrap();
    theirs.read_exact(&mut [0]).unwrap();
    let act_as = |user: u32| {
        // SAFETY: numbers only.
        assert_eq!(unsafe { libc::setresuid(u32::MAX, user, u32::MAX) }, 0);
    };
    let mut connections = Vec::new();
    for user in 1..=users {
        act_as(user);
        connections.extend((0..each).map_while(|_| Raw::open(socket)));
        act_as(0);
    }
    say(connections.len());
    std::io::stdin().lock().lines().for_each(drop); // until the test has ended
    std::process::exit(0);
}
