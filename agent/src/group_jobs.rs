//! What the loop wants of the disk for groups (`group_store.rs`).

use fide_proto::services::groups::durable::Write;
use fide_proto::services::groups::state::Applied;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Entries that applications of this host were told, and that the log of others has not got.
#[derive(Debug)]
pub struct Lost {
    /// Of which group.
    pub name: String,
    /// Which one of that name.
    pub generation: u64,
    /// What they say.
    pub entries: Vec<Applied>,
}

/// What the loop wants of the disk.
#[derive(Debug)]
pub enum Job {
    /// A part of a log.
    Write(Box<Write>),
    /// To be kept for a person.
    Keep(Lost),
}

impl Lost {
    /// Beside the agent's state: one file for each group of which something was lost.
    #[must_use]
    pub fn file(logs: &Path, name: &str, generation: u64) -> PathBuf {
        let mut file = logs.as_os_str().to_owned();
        file.push(format!(".lost-{:08x}-{generation}.jsonl", fide_wire::name_id(name)));
        PathBuf::from(file)
    }

    /// As JSON lines; of a file of the same name the new one takes the place.
    ///
    /// # Errors
    /// Of the disk.
    pub fn keep(&self, logs: &Path) -> anyhow::Result<()> {
        let mut lines = serde_json::json!({ "group": self.name, "generation": self.generation }).to_string();
        for applied in &self.entries {
            let (client, number, bytes) = applied.value();
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let text = std::str::from_utf8(bytes).ok();
            let line = serde_json::json!({
                "index": applied.index, "member": applied.member.0, "client": client, "number": number, "hex": hex, "text": text,
            });
            lines.push('\n');
            lines.push_str(&line.to_string());
        }
        let path = Self::file(logs, &self.name, self.generation);
        let _ = std::fs::remove_file(&path); // there is none, unless the same happened before
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        std::io::Write::write_all(&mut file, lines.as_bytes())?;
        file.sync_all()?;
        Ok(())
    }
}
