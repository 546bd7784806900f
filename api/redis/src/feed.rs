//! What a server that follows is given: decided bytes of the stream, up to the last whole command, in their order, once.
//!
//! A server reads when it can: while it loads, or executes something slow, what is decided waits here, in memory up to [`MEMORY_MAX`] and behind that in a file without
//! a name.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Bytes that wait in memory.
pub const MEMORY_MAX: usize = 8 << 20;
/// Bytes that wait at all: a server for which more do begins with a copy of all data.
pub const WAITING_MAX: u64 = 4 << 30;
/// The file gives room back after so many bytes.
const FREE_AFTER: u64 = 64 << 20;
/// What is read of the file, or given to the server, at once.
const PIECE: usize = 256 << 10;

/// Bytes in their order, of which the oldest are in memory.
#[derive(Debug, Default)]
struct Backlog {
    memory: VecDeque<u8>,
    file: Option<File>,
    /// The part of the file that was not read yet.
    from: u64,
    to: u64,
    /// What lies before takes no room.
    freed: u64,
    dir: PathBuf,
}

impl Backlog {
    fn len(&self) -> u64 {
        self.memory.len() as u64 + (self.to - self.from)
    }

    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.from == self.to && self.memory.len() + bytes.len() <= MEMORY_MAX {
            self.memory.extend(bytes);
            return Ok(());
        }
        if self.len() + bytes.len() as u64 > WAITING_MAX {
            return Err(io::Error::other(format!("more than {} GiB wait for this server", WAITING_MAX >> 30)));
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(unnamed(&self.dir)?),
        };
        file.write_all_at(bytes, self.to)?;
        self.to += bytes.len() as u64;
        Ok(())
    }

    /// Memory is filled again from the file.
    fn fill(&mut self) -> io::Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.memory.is_empty() && self.from < self.to) else { return Ok(()) };
        let mut piece = vec![0; PIECE.min((self.to - self.from) as usize)];
        file.read_exact_at(&mut piece, self.from)?;
        self.from += piece.len() as u64;
        self.memory = piece.into();
        if self.from - self.freed >= FREE_AFTER {
            // What was read takes no room any more; a file system that cannot do that keeps it until all was read.
            let (at, len) = (self.freed.cast_signed(), (self.from - self.freed).cast_signed());
            // SAFETY: a descriptor and numbers.
            unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, at, len) };
            self.freed = self.from;
        }
        if self.from == self.to {
            file.set_len(0)?;
            (self.from, self.to, self.freed) = (0, 0, 0);
        }
        Ok(())
    }

    /// Drops the first `count` bytes, or all.
    fn skip(&mut self, count: u64) -> io::Result<()> {
        let mut left = count;
        while left > 0 && self.len() > 0 {
            self.fill()?;
            let now = left.min(self.memory.len() as u64);
            self.memory.drain(..now as usize);
            left -= now;
        }
        Ok(())
    }
}

/// A file that is gone when the process is: in this directory, or else where temporary files are.
fn unnamed(dir: &Path) -> io::Result<File> {
    let of = |dir: &Path| {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        options.clone().custom_flags(libc::O_TMPFILE).open(dir).or_else(|_| {
            // Not every file system has files without names.
            let path = dir.join(format!(".fide-waiting-{}", std::process::id()));
            let file = options.create_new(true).open(&path)?;
            std::fs::remove_file(path)?;
            Ok(file)
        })
    };
    of(dir).or_else(|e: io::Error| {
        let other = std::env::temp_dir();
        of(&other).map_err(|_| {
            io::Error::other(format!(
                "what waits for this server can be kept neither in {} ({e}) nor in {}",
                dir.display(),
                other.display()
            ))
        })
    })
}

/// The stream for one server.
#[derive(Debug)]
pub struct Feed {
    backlog: Backlog,
    /// Where the stream ends up to which bytes have come; none before the first ones.
    got: Option<u64>,
    /// Of them, the last ones: of a command that is not whole.
    cut: Vec<u8>,
    /// Bytes of the stream that the server has in its data, since it has them.
    data: Option<u64>,
}

impl Feed {
    /// For a server that begins with a copy of data that has everything up to this byte, where that is known. What does
    /// not fit into memory waits in this directory.
    #[must_use]
    pub fn new(begins: Option<u64>, dir: PathBuf) -> Self {
        Self { backlog: Backlog { dir, ..Backlog::default() }, got: begins, cut: Vec::new(), data: None }
    }

    /// Where the last whole command ends that has come.
    #[must_use]
    pub fn whole(&self) -> Option<u64> {
        self.got.map(|got| got - self.cut.len() as u64)
    }

    /// Bytes of the stream that were handed to the server, or were in its data.
    #[must_use]
    pub fn given(&self) -> Option<u64> {
        self.whole().map(|whole| whole - self.backlog.len())
    }

    /// The stream's bytes that the copy of data had.
    #[must_use]
    pub fn data(&self) -> Option<u64> {
        self.data
    }

    /// Something waits.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.backlog.len() > 0
    }

    /// These bytes are decided, that begin behind `start` of the stream. The last `cut` of what has come are of a command that goes on.
    ///
    /// # Errors
    /// That bytes before them are missing, or that there is no room.
    pub fn push(&mut self, start: u64, cut: u64, bytes: &[u8]) -> io::Result<()> {
        let got = *self.got.get_or_insert(start);
        let known = got.checked_sub(start).ok_or_else(|| io::Error::other("bytes of the stream are missing"))?;
        // Of an entry without bytes, too: it may say that a command is whole that seemed to go on.
        let Some(new) = usize::try_from(known).ok().and_then(|known| bytes.get(known..)) else { return Ok(()) };
        self.cut.extend_from_slice(new);
        self.got = Some(got + new.len() as u64);
        let is_whole = self.cut.len().saturating_sub(usize::try_from(cut).unwrap_or(usize::MAX));
        if is_whole > 0 {
            self.backlog.push(&self.cut[..is_whole])?;
            self.cut.drain(..is_whole);
            // One large command is no reason to keep its room.
            if self.cut.capacity() > PIECE && self.cut.len() < PIECE {
                self.cut.shrink_to(PIECE);
            }
        }
        Ok(())
    }

    /// The command that is not whole never will be.
    pub fn drop_cut(&mut self) {
        self.got = self.whole();
        self.cut = Vec::new();
    }

    /// The server's data contain the stream up to this byte: it gets what is behind it.
    ///
    /// # Errors
    /// That bytes behind it are missing, or of the file.
    pub fn has_data(&mut self, data: u64) -> io::Result<()> {
        let Some(given) = self.given() else {
            (self.got, self.data) = (Some(data), Some(data));
            return Ok(());
        };
        let known = data.checked_sub(given).ok_or_else(|| io::Error::other("bytes of the stream are missing behind the data"))?;
        let in_backlog = known.min(self.backlog.len());
        self.backlog.skip(known)?;
        let in_cut = ((known - in_backlog) as usize).min(self.cut.len());
        self.cut.drain(..in_cut);
        self.got = self.got.max(Some(data));
        self.data = Some(data);
        Ok(())
    }

    /// Hands on what the server takes now. `true`: all of it.
    ///
    /// # Errors
    /// That the server is gone, or of the file.
    pub fn give(&mut self, link: &TcpStream) -> io::Result<bool> {
        loop {
            self.backlog.fill()?;
            let (first, _) = self.backlog.memory.as_slices();
            if first.is_empty() {
                return Ok(true);
            }
            let piece = &first[..first.len().min(PIECE)];
            // SAFETY: as many bytes as said.
            let sent = unsafe {
                libc::send(link.as_raw_fd(), piece.as_ptr().cast(), piece.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
            };
            match usize::try_from(sent) {
                Ok(sent) => drop(self.backlog.memory.drain(..sent)),
                Err(_) => match io::Error::last_os_error() {
                    e if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    e if e.kind() == io::ErrorKind::Interrupted => {}
                    e => return Err(e),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Read as _;
    use std::net::TcpListener;

    fn feed(begins: Option<u64>) -> Feed {
        Feed::new(begins, std::env::temp_dir())
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (link, listener.accept().unwrap().0)
    }

    #[test]
    fn a_command_is_given_when_it_is_whole_and_never_if_it_is_not() {
        let (link, mut server) = pair();
        let mut feed = feed(Some(10));
        feed.has_data(10).unwrap();
        feed.push(10, 2, b"SETGE").unwrap();
        assert_eq!((feed.whole(), feed.got), (Some(13), Some(15)));
        feed.push(15, 3, b"T").unwrap();
        feed.drop_cut();
        feed.push(13, 0, b"DEL").unwrap();
        assert!(feed.give(&link).unwrap());
        let mut all = [0; 6];
        server.read_exact(&mut all).unwrap();
        assert_eq!(&all, b"SETDEL");
        assert_eq!(feed.given(), Some(16));
        assert!(feed.push(17, 0, b"x").is_err(), "one byte is missing");
    }

    /// The leader took a command before the turn had ended that wrote it, and said behind that it was whole. It was dropped with the next change of
    /// leader: an answered write was lost.
    #[test]
    fn a_command_that_an_entry_without_bytes_ends_is_whole() {
        let (link, mut server) = pair();
        let mut feed = feed(Some(10));
        feed.has_data(10).unwrap();
        feed.push(10, 3, b"SET").unwrap();
        assert_eq!(feed.whole(), Some(10));
        feed.push(13, 0, b"").unwrap();
        feed.drop_cut();
        assert_eq!(feed.whole(), Some(13));
        assert!(feed.give(&link).unwrap());
        let mut all = [0; 3];
        server.read_exact(&mut all).unwrap();
        assert_eq!(&all, b"SET");
        // One that was read before says nothing new.
        feed.push(13, 2, b"GET").unwrap();
        feed.push(10, 0, b"SET").unwrap();
        assert_eq!(feed.whole(), Some(14));
    }

    #[test]
    fn a_server_that_reads_nothing_gets_everything_later() {
        let (link, mut server) = pair();
        let mut feed = feed(None);
        feed.has_data(0).unwrap();
        let piece = vec![7u8; 1 << 20];
        let mut sent = 0u64;
        for _ in 0..40 {
            feed.push(sent, 0, &piece).unwrap();
            sent += piece.len() as u64;
            feed.give(&link).unwrap();
        }
        assert!(feed.waits() && feed.backlog.file.is_some());
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; 40 << 20];
            server.read_exact(&mut all).unwrap();
            all
        });
        while !feed.give(&link).unwrap() {
            std::thread::yield_now();
        }
        assert!(reader.join().unwrap().iter().all(|byte| *byte == 7));
        assert_eq!((feed.given(), feed.backlog.to), (Some(sent), 0));
    }

    #[test]
    fn a_directory_that_takes_no_file_is_no_reason_to_lose_what_waits() {
        assert!(unnamed(Path::new("/proc")).is_ok());
    }

    proptest! {
        /// However the stream is cut into entries, wherever commands end and whichever byte the data reach: the server gets what is behind its data and
        /// before the last end of a command.
        #[test]
        fn all_whole_commands_behind_the_data_are_given(
            pieces in prop::collection::vec((0usize..40, 0u64..60), 1..20),
            data in 0u64..200,
            when in 0usize..20,
        ) {
            let (link, mut server) = pair();
            let total: usize = pieces.iter().map(|(len, _)| len).sum();
            let stream: Vec<u8> = (0..total).map(|at| at as u8).collect();
            let data = data.min(total as u64);
            let mut feed = feed(Some(0));
            let (mut at, mut cut) = (0usize, 0u64);
            for (n, (len, wanted)) in pieces.iter().enumerate() {
                if n == when.min(pieces.len() - 1) {
                    feed.has_data(data).unwrap();
                }
                cut = (*wanted).min(cut + *len as u64);
                // Data end where a command does.
                let whole = (at + len) as u64 - cut;
                if whole < data && (at + len) as u64 > data {
                    cut = (at + len) as u64 - data;
                }
                feed.push(at as u64, cut, &stream[at..at + len]).unwrap();
                at += len;
            }
            let whole = (total as u64 - cut).max(data);
            prop_assert_eq!(feed.whole(), Some(whole));
            prop_assert!(feed.give(&link).unwrap());
            let mut given = vec![0; (whole - data) as usize];
            server.read_exact(&mut given).unwrap();
            prop_assert_eq!(&given, &stream[data as usize..whole as usize]);
        }
    }
}
