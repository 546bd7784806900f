//! The `[keys]` of a configuration: changed in place, everything else is left as somebody wrote it.

use crate::failure::Failure;
use serde::Deserialize;
use std::io::Write as _;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// What is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// This key is accepted, too.
    Accept {
        /// Its id.
        id: u8,
        /// Its file.
        file: PathBuf,
    },
    /// What is accepted is sent with, and the other way round.
    Swap {
        /// The id of the key that is sent with then.
        send: u8,
    },
    /// Only what is sent with is accepted.
    Drop,
}

#[derive(Deserialize)]
struct File {
    keys: Option<Keys>,
}

#[derive(Deserialize)]
struct Keys {
    send: Spanned<toml::Value>,
    accept: Option<Spanned<toml::Value>>,
}

impl Keys {
    /// Whether these are the keys after that change.
    fn have(&self, change: &Change) -> bool {
        let is =
            |key: &Spanned<toml::Value>, id: u8| key.get_ref().get("id").and_then(toml::Value::as_integer) == Some(id.into());
        match change {
            Change::Accept { id, file } => self.accept.as_ref().is_some_and(|accept| {
                let its_file = accept.get_ref().get("file").and_then(toml::Value::as_str);
                is(accept, *id) && its_file.is_some_and(|its_file| Path::new(its_file) == file)
            }),
            Change::Swap { send } => self.accept.is_some() && is(&self.send, *send),
            Change::Drop => self.accept.is_none(),
        }
    }
}

/// The file as it was.
pub struct Former {
    path: PathBuf,
    text: String,
}

impl Former {
    /// Writes it back.
    pub fn restore(self) -> Result<(), Failure> {
        replace(&self.path, &self.text)
    }
}

/// Changes the file.
pub fn change(path: &Path, change: &Change) -> Result<Former, Failure> {
    let failed = |e: std::io::Error| Failure::failed(format!("{} cannot be read: {e}", path.display()));
    // Where a link points to: the link stays.
    let path = path.canonicalize().map_err(failed)?;
    let text = std::fs::read_to_string(&path).map_err(failed)?;
    let new = changed(&text, change)
        .map_err(|why| Failure::failed(format!("[keys] in {} cannot be changed: {why}", path.display())).hint(by_hand(change)))?;
    replace(&path, &new)?;
    Ok(Former { path, text })
}

fn by_hand(change: &Change) -> String {
    let what = match change {
        Change::Accept { id, file } => format!("add `accept = {}`", value(*id, file)),
        Change::Swap { .. } => "exchange the values of `send` and `accept`".into(),
        Change::Drop => "take `accept` out".into(),
    };
    format!("{what} by hand, then: fide reload")
}

fn value(id: u8, file: &Path) -> String {
    format!("{{ id = {id}, file = {} }}", toml::Value::String(file.display().to_string()))
}

/// Beside it, then in its place, with the same owner and mode.
fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let write = || -> std::io::Result<()> {
        let meta = std::fs::metadata(path)?;
        let dir = path.parent().unwrap_or(Path::new("/"));
        let new = dir.join(format!(".{}.new", path.file_name().unwrap_or_default().to_string_lossy()));
        match std::fs::remove_file(&new) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&new)?;
        file.set_permissions(meta.permissions())?;
        std::os::unix::fs::fchown(&file, Some(meta.uid()), Some(meta.gid()))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(new, path)
    };
    write().map_err(|e| Failure::failed(format!("{} cannot be written: {e}", path.display())))
}

/// The text with that change.
fn changed(text: &str, change: &Change) -> Result<String, String> {
    let file: File = toml::from_str(text).map_err(|e| e.message().to_owned())?;
    let keys = file.keys.ok_or("there are none")?;
    // The file of a run that ended before the agent had read it.
    if keys.have(change) {
        return Ok(text.into());
    }
    let send = inline(text, keys.send.span())?;
    let accept = keys.accept.map(|accept| inline(text, accept.span())).transpose()?;
    match change {
        Change::Accept { .. } if accept.is_some() => Err("two keys are accepted already".into()),
        Change::Accept { id, file } => {
            let value = value(*id, file);
            let line_end = text[send.end..].find('\n').map_or(text.len(), |at| send.end + at);
            let rest = text[send.end..line_end].trim_start();
            Ok(if rest.is_empty() || rest.starts_with('#') {
                format!("{}\naccept = {value}{}", &text[..line_end], &text[line_end..])
            } else {
                format!("{}, accept = {value}{}", &text[..send.end], &text[send.end..])
            })
        }
        Change::Swap { .. } => {
            let accept = accept.ok_or("no second key is accepted")?;
            let (first, second) = if send.start < accept.start { (send, accept) } else { (accept, send) };
            let (before, between, behind) = (&text[..first.start], &text[first.end..second.start], &text[second.end..]);
            Ok(format!("{before}{}{between}{}{behind}", &text[second], &text[first]))
        }
        Change::Drop => {
            let accept = accept.ok_or("no second key is accepted")?;
            let line = text[..accept.start].rfind('\n').map_or(0, |at| at + 1);
            let end = text[accept.end..].find('\n').map_or(text.len(), |at| accept.end + at + 1);
            let (before, behind) = (text[line..accept.start].trim(), text[accept.end..end].trim());
            let is_alone = before.strip_prefix("accept").is_some_and(|rest| rest.trim() == "=");
            if is_alone && (behind.is_empty() || behind.starts_with('#')) {
                return Ok(format!("{}{}", &text[..line], &text[end..]));
            }
            // Between others on its line, as this program writes it.
            let from = text[..accept.start].rfind("accept").map(|at| text[..at].trim_end());
            let from = from.and_then(|text| text.strip_suffix(',')).ok_or("`accept` does not stand on a line of its own")?;
            Ok(format!("{from}{}", &text[accept.end..]))
        }
    }
}

/// Where a value stands, if it is `{ … }`.
fn inline(text: &str, span: Range<usize>) -> Result<Range<usize>, String> {
    let value = text.get(span.clone()).unwrap_or_default();
    let is_inline = value.starts_with('{') && value.ends_with('}');
    if is_inline { Ok(span) } else { Err("`send` and `accept` are not written as { id = …, file = … }".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_are_changed_and_comments_stay() {
        let begin = "cluster = \"x\" # ours\n[keys]\nsend = { id = 1, file = \"/k1\" } # old\n\n[metrics]\nlisten = \"off\"\n";
        let accept = Change::Accept { id: 2, file: "/k2".into() };
        let two = changed(begin, &accept).unwrap();
        assert_eq!(two, begin.replace("# old\n", "# old\naccept = { id = 2, file = \"/k2\" }\n"));
        let third = Change::Accept { id: 3, file: "/k3".into() };
        assert!(changed(&two, &third).unwrap_err().contains("two keys"));
        let swap = Change::Swap { send: 2 };
        let swapped = changed(&two, &swap).unwrap();
        assert!(swapped.contains("send = { id = 2, file = \"/k2\" } # old\naccept = { id = 1, file = \"/k1\" }\n"), "{swapped}");
        let dropped = changed(&swapped, &Change::Drop).unwrap();
        assert_eq!(dropped, begin.replace("id = 1, file = \"/k1\"", "id = 2, file = \"/k2\""));
        assert!(changed(&dropped, &swap).is_err());
        // A step that is taken once more, because its first run was interrupted, changes nothing.
        for (text, change) in [(two, accept), (swapped, swap), (dropped, Change::Drop)] {
            assert_eq!(changed(&text, &change).unwrap(), text);
        }
    }

    #[test]
    fn keys_on_one_line_are_changed_too_and_other_forms_are_left_to_people() {
        let line = "keys = { send = { id = 1, file = \"/k1\" } }\n";
        let two = changed(line, &Change::Accept { id: 2, file: "/k2".into() }).unwrap();
        assert_eq!(two, "keys = { send = { id = 1, file = \"/k1\" }, accept = { id = 2, file = \"/k2\" } }\n");
        let swapped = changed(&two, &Change::Swap { send: 2 }).unwrap();
        assert_eq!(changed(&swapped, &Change::Drop).unwrap(), line.replace("id = 1, file = \"/k1\"", "id = 2, file = \"/k2\""));
        let tables = "[keys.send]\nid = 1\nfile = \"/k1\"\n";
        assert!(changed(tables, &Change::Swap { send: 2 }).unwrap_err().contains("not written as {"));
        assert_eq!(changed("node = \"a\"", &Change::Swap { send: 2 }).unwrap_err(), "there are none");
    }

    #[test]
    fn a_file_keeps_its_owner_and_mode_and_comes_back() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = std::env::temp_dir().join(format!("fide-key-file-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let path = dir.join("fide.toml");
        let text = "[keys]\nsend = { id = 1, file = \"/k1\" }\n";
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let former = change(&path, &Change::Accept { id: 2, file: "/k2".into() }).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains("/k2"));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        former.restore().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
