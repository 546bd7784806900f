//! Files of /proc and /sys, or of a tree made for a test.

use std::path::PathBuf;

/// Where the files are.
#[derive(Clone, Debug)]
pub struct Files(PathBuf);

impl Files {
    /// This host's.
    pub fn host() -> Self {
        Files("/".into())
    }

    /// A tree made for a test.
    #[cfg(test)]
    pub fn at(root: &std::path::Path) -> Self {
        Files(root.into())
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// A file's text without its last newline; `None` when it cannot be read.
    pub fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.path(path)).ok().map(|t| t.trim_end().to_string())
    }

    /// A file's number.
    pub fn number(&self, path: &str) -> Option<i64> {
        self.read(path)?.trim().parse().ok()
    }

    /// Whether it is there.
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The names in a directory, sorted.
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Where a symbolic link points.
    pub fn link(&self, path: &str) -> Option<String> {
        std::fs::read_link(self.path(path)).ok().map(|p| p.to_string_lossy().into_owned())
    }
}
