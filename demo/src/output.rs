//! Files that a run writes where somebody asked for them. Benchmarks run as root: a path given by mistake must not cost a file that is not theirs.

use anyhow::{Context, Result, bail};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// How every page and drawing ends, by which a later run knows it.
pub const MARK: &str = "<!-- made by fide -->\n";
/// How those of releases without the mark, and lists of results, begin.
const STARTS: [&str; 3] = [
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>FiDe: who knew when",
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>fide bench ",
    "{\"bench\":\"",
];

/// Whether something may be written to this path: nothing is there, or an earlier run's, or an empty file.
///
/// # Errors
/// What is there instead, and what to do.
pub fn check(path: &Path) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e).with_context(|| format!("cannot write {}", path.display())),
        Ok(_) => open_ours(path).map(drop),
    }
}

/// The same, and makes the file where there is none: before anything takes time, it is known whether it can be written at all.
///
/// # Errors
/// As [`check`], and the system's.
pub fn reserve(path: &Path) -> Result<()> {
    check(path)?;
    if path.exists() { Ok(()) } else { create(path).map(drop) }
}

/// Writes a whole file, which [`check`] must allow.
///
/// # Errors
/// As [`check`], and the system's.
pub fn write(path: &Path, content: &str) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    reserve(path)?;
    let mut file = open_ours(path)?;
    file.set_len(0).with_context(cannot)?;
    file.write_all(content.as_bytes()).with_context(cannot)?;
    let marked = [".html", ".svg"].iter().any(|end| path.to_string_lossy().ends_with(end)) || content.starts_with('<');
    if marked && !content.ends_with(MARK) {
        file.write_all(MARK.as_bytes()).with_context(cannot)?;
    }
    Ok(())
}

/// Removes the drawings of an earlier run from a directory: this one may have others.
///
/// # Errors
/// The system's.
pub fn remove_drawings(directory: &Path) -> Result<()> {
    let cannot = || format!("cannot remove an earlier run's drawings from {}", directory.display());
    for entry in std::fs::read_dir(directory).with_context(cannot)? {
        let path = entry.with_context(cannot)?.path();
        if path.extension().is_some_and(|end| end == "svg") && open_ours(&path).is_ok() {
            std::fs::remove_file(&path).with_context(cannot)?;
        }
    }
    Ok(())
}

fn create(path: &Path) -> Result<File> {
    let made = OpenOptions::new().write(true).create_new(true).open(path);
    made.with_context(|| format!("cannot write {}", path.display()))
}

/// Opened for writing, not emptied yet. Nothing that would block or that has an effect of its own is opened.
fn open_ours(path: &Path) -> Result<File> {
    let shown = path.display();
    let ordinary = |meta: &Metadata| -> Result<()> {
        if !meta.is_file() {
            bail!("{shown} is not an ordinary file, and is left as it is; name another path for the report");
        }
        if meta.nlink() > 1 {
            bail!("{shown} has {} names (hard links), and is left as it is; name another path for the report", meta.nlink());
        }
        Ok(())
    };
    let cannot = || format!("cannot write {shown}");
    ordinary(&std::fs::symlink_metadata(path).with_context(cannot)?)?;
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let mut file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).with_context(cannot)?;
    ordinary(&file.metadata().with_context(cannot)?)?;
    if !is_ours(&mut file).with_context(cannot)? {
        bail!(
            "{shown} exists and is no report of an earlier run: it is left as it is; name another path for the report, or remove it"
        );
    }
    Ok(file)
}

fn is_ours(file: &mut File) -> std::io::Result<bool> {
    use std::os::unix::fs::FileExt;
    let len = file.metadata()?.len();
    let n = MARK.len().min(len as usize);
    let mut end = vec![0; n];
    file.read_exact_at(&mut end, len - n as u64)?;
    let mut start = Vec::new();
    file.take(128).read_to_end(&mut start)?;
    std::io::Seek::rewind(file)?;
    Ok(len == 0 || end == MARK.as_bytes() || STARTS.iter().any(|s| start.starts_with(s.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_report_replaces_an_earlier_one_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let page = crate::report::Page::new("fide bench x", "").finish();
        for (name, content) in
            [("report.html", page.as_str()), ("fig.svg", "<svg></svg>"), ("results.jsonl", "{\"bench\":\"x\"}\n")]
        {
            let path = dir.path().join(name);
            for _ in 0..2 {
                write(&path, content).unwrap();
            }
            assert!(fs::read_to_string(&path).unwrap().starts_with(content), "{name}");
            for text in ["years of work\n", "<!doctype html>\n<title>a page</title>"] {
                fs::write(&path, text).unwrap();
                let why = write(&path, content).unwrap_err().to_string();
                assert!(why.contains("left as it is"), "{why}");
                assert!(check(&path).is_err());
                assert_eq!(fs::read_to_string(&path).unwrap(), text);
            }
            fs::write(&path, "").unwrap();
            write(&path, content).unwrap();
        }
    }

    #[test]
    fn drawings_of_an_earlier_run_are_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        write(&at("ours.svg"), "<svg></svg>").unwrap();
        write(&at("report.html"), "<p></p>").unwrap();
        fs::write(at("theirs.svg"), "<svg></svg>").unwrap();
        std::os::unix::fs::symlink(at("theirs.svg"), at("link.svg")).unwrap();
        remove_drawings(dir.path()).unwrap();
        let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["link.svg", "report.html", "theirs.svg"]);
    }

    #[test]
    fn what_is_no_ordinary_file_is_neither_opened_nor_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let fifo = std::ffi::CString::new(at("fifo").to_str().unwrap()).unwrap();
        // SAFETY: a C string that lives across the call.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        std::os::unix::fs::symlink(at("target"), at("link")).unwrap();
        fs::write(at("one"), "").unwrap();
        fs::hard_link(at("one"), at("two")).unwrap();
        for name in ["fifo", "link", "two", "."] {
            assert!(check(&at(name)).is_err(), "{name}");
            assert!(write(&at(name), "<svg></svg>").is_err(), "{name}");
        }
        assert!(!at("target").exists() && fs::read(at("one")).unwrap().is_empty());
        assert!(reserve(&at("none/report.html")).is_err());
    }
}
