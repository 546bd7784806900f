//! The server's data directory: which disk it is, and how far it goes.
//!
//! The identity is a file of this hook in the directories that the server itself makes below
//! `dataDir` and `dataLogDir`, so that it goes with the data: it is absent from an empty disk, and
//! a copy that was put back has the one of its time. The last transaction is read from the
//! server's logs and snapshots, because a server that does not serve tells none.

use crate::course::{Disk, Noted};
use anyhow::{Context as _, Result, bail, ensure};
use std::fs::{self, File};
use std::io::{self, BufReader, ErrorKind, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

/// The directory that the server makes in each of its two.
const VERSION: &str = "version-2";
/// The identity.
const NAME: &str = "fide-zookeeper.disk";
/// A log begins with `ZKLG`, a version and a database's number.
const LOG_HEAD: usize = 16;
const LOG_MAGIC: [u8; 4] = *b"ZKLG";
/// What ends each transaction in a log.
const END_OF_RECORD: u8 = b'B';
/// The longest transaction believed.
const RECORD_MAX: u32 = 256 << 20;
/// A whole snapshot ends so.
const SNAPSHOT_END: [u8; 5] = [0, 0, 0, 1, b'/'];

/// Reads and marks one server's disk.
#[derive(Debug)]
pub struct Reader {
    data: PathBuf,
    logs: PathBuf,
    /// The newest log, as far as it was read.
    log: Option<Log>,
}

#[derive(Debug)]
struct Log {
    path: PathBuf,
    /// Where its last whole transaction begins.
    offset: u64,
    zxid: u64,
}

impl Reader {
    /// Of these directories of zoo.cfg.
    #[must_use]
    pub fn new(data: &Path, logs: &Path) -> Self {
        Self { data: data.join(VERSION), logs: logs.join(VERSION), log: None }
    }

    /// What lies there.
    ///
    /// # Errors
    /// What cannot be read.
    pub fn read(&mut self) -> Result<Disk> {
        let marks = self.dirs().map(|dir| read_mark(&dir));
        let [data, logs] = marks;
        let (data, logs) = (data?, logs?);
        // One of two disks was replaced: the whole is another one.
        let mark = if data.id == logs.id { Noted { zxid: data.zxid.min(logs.zxid), id: data.id } } else { Noted::default() };
        Ok(Disk { mark, zxid: self.zxid()? })
    }

    /// Writes the identity, on the disk when this returns: a new one, or, if it still is the one
    /// that is given, how far it goes now.
    ///
    /// # Errors
    /// What cannot be written, or that it is another disk by now.
    pub fn mark(&mut self, expected: Option<&Noted>) -> Result<Disk> {
        let before = self.read()?;
        let id = match expected {
            Some(expected) => {
                ensure!(before.mark == *expected, "the disk is another one than a moment ago");
                expected.id.clone()
            }
            None => new_id()?,
        };
        // What is noted must still be there when the power fails now.
        if let Some(log) = &self.log {
            File::open(&log.path)?.sync_data()?;
        }
        let mark = Noted { id, zxid: before.zxid };
        for dir in self.dirs() {
            crate::run::replace(&dir.join(NAME), &serde_json::to_vec(&mark)?)
                .with_context(|| format!("cannot write {}", dir.join(NAME).display()))?;
        }
        Ok(Disk { zxid: mark.zxid, mark })
    }

    fn dirs(&self) -> [PathBuf; 2] {
        [self.data.clone(), self.logs.clone()]
    }

    /// The last transaction, or the begin of the last epoch that this server has taken part in: what
    /// a new leader has had cut off counts no more.
    fn zxid(&mut self) -> Result<u64> {
        let epoch = match fs::read_to_string(self.data.join("currentEpoch")) {
            Ok(text) => text.trim().parse::<u32>().context("currentEpoch is no number")?,
            Err(e) if e.kind() == ErrorKind::NotFound => 0,
            Err(e) => return Err(e).context("cannot read currentEpoch"),
        };
        let snapshot = numbered(&self.data, "snapshot.")?.into_iter().rev().find(|(_, path)| is_whole(path));
        let snapshot = snapshot.map_or(0, |(zxid, _)| zxid);
        let mut logged = 0;
        for (_, path) in numbered(&self.logs, "log.")?.into_iter().rev() {
            logged = self.last_of(path)?;
            if logged != 0 {
                break;
            }
        }
        Ok(logged.max(snapshot).max(u64::from(epoch) << 32))
    }

    fn last_of(&mut self, path: PathBuf) -> Result<u64> {
        let context = || format!("cannot read {}", path.display());
        let file = File::open(&path).with_context(context)?;
        let length = file.metadata().with_context(context)?.len();
        let known = self.log.take().filter(|log| log.path == path && log.offset <= length);
        let mut file = BufReader::new(file);
        if let Some(mut log) = known
            && log.zxid != 0
        {
            file.seek(SeekFrom::Start(log.offset)).with_context(context)?;
            // Unless it is an older copy by now.
            if transaction(&mut file).with_context(context)?.is_some_and(|(zxid, _)| zxid == log.zxid) {
                file.seek(SeekFrom::Start(log.offset)).with_context(context)?;
                log.read(&mut file).with_context(context)?;
                return Ok(self.log.insert(log).zxid);
            }
            file.rewind().with_context(context)?;
        }
        let mut head = [0; LOG_HEAD];
        match file.read_exact(&mut head) {
            Ok(()) if head[..4] == LOG_MAGIC => {}
            // The server has only just made it.
            Ok(()) if head == [0; LOG_HEAD] => return Ok(0),
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(0),
            Ok(()) => bail!("{} is no log of ZooKeeper", path.display()),
            Err(e) => return Err(e).with_context(context),
        }
        let mut log = Log { path: path.clone(), offset: LOG_HEAD as u64, zxid: 0 };
        log.read(&mut file).with_context(context)?;
        Ok(self.log.insert(log).zxid)
    }
}

impl Log {
    /// On from where it was, to the last whole transaction.
    fn read(&mut self, file: &mut BufReader<File>) -> io::Result<()> {
        let mut offset = self.offset;
        while let Some((zxid, size)) = transaction(file)? {
            (self.offset, self.zxid) = (offset, self.zxid.max(zxid));
            offset += size;
        }
        Ok(())
    }
}

/// The next whole transaction and how long it is with all around it; nothing at the end.
fn transaction(file: &mut BufReader<File>) -> io::Result<Option<(u64, u64)>> {
    // Checksum, length; client, its number, zxid.
    let mut head = [0; 8 + 4 + 8 + 4 + 8];
    let mut end = [0];
    let length = match file.read_exact(&mut head) {
        Ok(()) => u32::from_be_bytes([head[8], head[9], head[10], head[11]]),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(e),
    };
    if !(20..=RECORD_MAX).contains(&length) {
        return Ok(None);
    }
    file.seek_relative(i64::from(length) - 20)?;
    match file.read_exact(&mut end) {
        Ok(()) if end == [END_OF_RECORD] => {}
        Ok(()) => return Ok(None),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(e),
    }
    let zxid = head[24..].iter().fold(0, |zxid, byte| zxid << 8 | u64::from(*byte));
    Ok(Some((zxid, 8 + 4 + u64::from(length) + 1)))
}

/// Files whose names begin so and go on with a transaction's number, in its order.
fn numbered(dir: &Path, begin: &str) -> Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    let all = match fs::read_dir(dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(found),
        all => all.with_context(|| format!("cannot read {}", dir.display()))?,
    };
    for file in all {
        let file = file?;
        let name = file.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(begin));
        // Compressed snapshots have an ending.
        let number = number.map(|number| number.split('.').next().unwrap_or(number));
        if let Some(zxid) = number.and_then(|number| u64::from_str_radix(number, 16).ok()) {
            found.push((zxid, file.path()));
        }
    }
    found.sort();
    Ok(found)
}

/// As the server judges it; of a compressed one only that it is not empty.
fn is_whole(path: &Path) -> bool {
    let end = || -> io::Result<[u8; 5]> {
        let mut file = File::open(path)?;
        let mut end = [0; 5];
        file.seek(SeekFrom::End(-5))?;
        file.read_exact(&mut end)?;
        Ok(end)
    };
    let is_plain = path.extension().is_some_and(|end| end != "gz" && end != "snappy");
    end().is_ok_and(|end| !is_plain || end == SNAPSHOT_END)
}

fn read_mark(dir: &Path) -> Result<Noted> {
    let path = dir.join(NAME);
    match fs::read(&path) {
        // Damaged: no identity that anybody knows.
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Noted::default()),
        Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn new_id() -> Result<String> {
    let mut random = [0; 8];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random)).context("/dev/urandom")?;
    Ok(format!("{:016x}", u64::from_be_bytes(random)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(zxid: u64) -> Vec<u8> {
        let body = [&[7; 12][..], &zxid.to_be_bytes(), &[9; 40]].concat();
        [&[1; 8][..], &(body.len() as u32).to_be_bytes(), &body, b"B"].concat()
    }

    /// As the server writes it: with room behind that is filled later.
    fn log(records: &[Vec<u8>]) -> Vec<u8> {
        [b"ZKLG\0\0\0\x02", &[0; 8][..], &records.concat(), &[0; 4096]].concat()
    }

    fn disk() -> (tempfile::TempDir, PathBuf, Reader) {
        let dir = tempfile::tempdir().unwrap();
        let version = dir.path().join(VERSION);
        fs::create_dir(&version).unwrap();
        let reader = Reader::new(dir.path(), dir.path());
        (dir, version, reader)
    }

    #[test]
    fn how_far_a_disk_goes_is_what_the_server_wrote() {
        let (_dir, at, mut reader) = disk();
        let mut zxid = || reader.read().unwrap().zxid;
        assert_eq!(zxid(), 0);
        fs::write(at.join("log.100000001"), []).unwrap();
        assert_eq!(zxid(), 0, "only just made");
        fs::write(at.join("log.100000001"), log(&[record(0x1_0000_0001), record(0x1_0000_0002)])).unwrap();
        assert_eq!(zxid(), 0x1_0000_0002);
        let cut = [record(0x1_0000_0001), record(0x1_0000_0002), record(0x1_0000_0003)[..30].to_vec()];
        fs::write(at.join("log.100000001"), log(&cut)).unwrap();
        assert_eq!(zxid(), 0x1_0000_0002, "a transaction that is not whole");
        fs::write(at.join("log.100000001"), log(&[record(0x1_0000_0001), record(0x1_0000_0002), record(0x1_0000_0003)])).unwrap();
        assert_eq!(zxid(), 0x1_0000_0003);
        fs::write(at.join("log.100000004"), log(&[])).unwrap();
        assert_eq!(zxid(), 0x1_0000_0003, "the newest log has none yet");
        fs::write(at.join("log.100000004"), log(&[record(0x1_0000_0004)])).unwrap();
        assert_eq!(zxid(), 0x1_0000_0004);
        fs::remove_file(at.join("log.100000004")).unwrap();
        fs::write(at.join("log.100000001"), log(&[record(0x1_0000_0001)])).unwrap();
        assert_eq!(zxid(), 0x1_0000_0001, "an older copy");
        fs::write(at.join("snapshot.100000009"), b"ZKSN, cut off").unwrap();
        assert_eq!(zxid(), 0x1_0000_0001, "a snapshot that is not whole");
        fs::write(at.join("snapshot.100000008"), [&[1; 100][..], &SNAPSHOT_END].concat()).unwrap();
        assert_eq!(zxid(), 0x1_0000_0008);
        fs::write(at.join("currentEpoch"), "2").unwrap();
        assert_eq!(zxid(), 0x2_0000_0000);
        fs::write(at.join("log.200000001"), [7; 100]).unwrap();
        assert!(reader.read().is_err(), "no log");
    }

    #[test]
    fn a_disk_has_an_identity_that_goes_with_its_data() {
        let (dir, at, mut reader) = disk();
        fs::write(at.join("log.1"), log(&[record(1)])).unwrap();
        assert_eq!(reader.read().unwrap().mark, Noted::default());
        let first = reader.mark(None).unwrap();
        assert_eq!((first.mark.id.len(), first.mark.zxid, reader.read().unwrap()), (16, 1, first.clone()));
        fs::write(at.join("log.1"), log(&[record(1), record(2)])).unwrap();
        assert_eq!(reader.read().unwrap(), Disk { zxid: 2, ..first.clone() });
        let second = reader.mark(Some(&first.mark)).unwrap();
        assert_eq!(second.mark, Noted { zxid: 2, ..first.mark.clone() });
        assert!(reader.mark(Some(&first.mark)).is_err(), "it is another one than that");
        assert_ne!(reader.mark(None).unwrap().mark.id, first.mark.id);
        fs::remove_dir_all(&at).unwrap();
        assert_eq!(reader.read().unwrap(), Disk::default());
        // Logs on a disk of their own, which is replaced.
        let logs = tempfile::tempdir().unwrap();
        for dir in [dir.path(), logs.path()] {
            fs::create_dir(dir.join(VERSION)).unwrap();
        }
        let mut reader = Reader::new(dir.path(), logs.path());
        let marked = reader.mark(None).unwrap();
        assert_eq!(reader.read().unwrap(), marked);
        fs::remove_file(logs.path().join(VERSION).join(NAME)).unwrap();
        assert_eq!(reader.read().unwrap().mark, Noted::default());
    }
}
