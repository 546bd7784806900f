//! The file beside a server's data that says of which group they are, and which servers had all of
//! them last: `fide-GROUP.generation`.
//!
//! ```text
//! 1764393000000000000        which group (its generation)
//! set 7 1048576 log          in which term, and how far the group's stream went then; its log
//!                            (AOF) was live, and has what came behind that
//! 10.0.0.1:6379              who had all data, this server among them
//! 10.0.0.2:6379
//! ```
//! Behind the first line it may end: releases before wrote no more.

use crate::course::Extent;
use crate::shared::Former;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

/// What the file says; nothing if it is none.
#[must_use]
pub fn read(path: &Path) -> Option<Former> {
    parse(&fs::read_to_string(path).ok()?)
}

fn parse(text: &str) -> Option<Former> {
    let mut lines = text.lines();
    let generation = lines.next()?.trim().parse().ok().filter(|generation| *generation != 0)?;
    let mut former = Former { generation, term: 0, extent: Extent::Unknown, offset: 0, set: String::new() };
    let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    if let ["set", term, offset, ref log @ ..] = words[..]
        && let (Ok(term), Ok(offset)) = (term.parse(), offset.parse())
        && matches!(log, [] | ["log"])
    {
        (former.term, former.offset, former.set) = (term, offset, lines.collect::<Vec<_>>().join("\n"));
        former.extent = if log.is_empty() { Extent::Unknown } else { Extent::Log };
    }
    Some(former)
}

/// What it says is not so any more, and nothing is said in its place.
///
/// # Errors
/// Of the disk.
pub fn forget(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Writes it, and has it on disk then; whoever reads meanwhile reads the former one.
///
/// # Errors
/// Of the disk.
pub fn write(path: &Path, former: &Former) -> io::Result<()> {
    let Former { generation, term, offset, set, extent } = former;
    let new = path.with_extension("generation.new");
    let log = if *extent == Extent::Log { " log" } else { "" };
    let text = if *term == 0 { format!("{generation}\n") } else { format!("{generation}\nset {term} {offset}{log}\n{set}\n") };
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_makes_no_sense_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fide-orders.generation");
        assert!(read(&path).is_none());
        let former =
            Former { generation: 7, term: 3, extent: Extent::Log, offset: 99, set: "10.0.0.1:6379\n10.0.0.2:6379".into() };
        write(&path, &former).unwrap();
        let read_again = read(&path).unwrap();
        assert_eq!((read_again.generation, read_again.term, read_again.offset), (7, 3, 99));
        assert_eq!((&read_again.set, read_again.extent), (&former.set, Extent::Log));
        write(&path, &Former { extent: Extent::Unknown, ..former.clone() }).unwrap();
        let of = read(&path).unwrap();
        assert_eq!((of.term, of.set, of.extent), (3, former.set, Extent::Unknown), "its log was not live");
        for (text, generation, term) in
            [("5\n", 5, 0), ("5", 5, 0), ("5\nset 1\n", 5, 0), ("5\nset x 2\na:1\n", 5, 0), ("5\nset 1 2 3\na:1\n", 5, 0)]
        {
            let of = parse(text).unwrap();
            assert_eq!((of.generation, of.term, of.set.as_str()), (generation, term, ""), "{text:?}");
        }
        assert!(["", "0\n", "x", "-1"].iter().all(|text| parse(text).is_none()));
    }
}
