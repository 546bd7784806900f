//! What a command may do to data, by what the server says of the command itself, whatever it is called and whoever has added it.

use crate::api::Tree;

/// What a command is to the servers of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It neither reads nor writes data.
    Harmless,
    /// It reads data; the leader never sends it to others.
    Read,
    /// It writes data, and the leader sends it; the server itself refuses it to clients of a replica.
    Write,
    /// It may write; the leader sends what it did, and never the command.
    Script,
    /// The leader sends it, and the server would answer it to clients of a replica, too: messages, and what only seems to read. Also what another module has added
    /// without saying what it does.
    Sent,
}

impl Kind {
    /// Of one element of the answer to `COMMAND INFO`.
    #[must_use]
    pub fn of(command: &Tree) -> Self {
        let own = |flag: &str| has(command.at(2), flag);
        if has(command.at(6), "@scripting") && !own("write") && !own("readonly") {
            return Self::Script;
        }
        if has_flag(command, "write") {
            return Self::Write;
        }
        if has_flag(command, "readonly") {
            // PFCOUNT writes down what it has counted.
            let writes = command.at(8).is_some_and(|keys| mentions(keys, "RW") || mentions(keys, "OW"));
            return if writes { Self::Sent } else { Self::Read };
        }
        // WATCH is about what its server has.
        if has(command.at(6), "@transaction") && command.at(8).is_some_and(|keys| !keys.elements().is_empty()) {
            return Self::Read;
        }
        // PUBLISH and SPUBLISH; a script cannot subscribe.
        if own("pubsub") && !own("noscript") || own("module") {
            return Self::Sent;
        }
        Self::Harmless
    }

    /// Whether it may change data.
    #[must_use]
    pub fn may_write(self) -> bool {
        matches!(self, Self::Write | Self::Script | Self::Sent)
    }
}

fn has(list: Option<&Tree>, word: &str) -> bool {
    list.is_some_and(|list| list.elements().iter().any(|element| element.text().eq_ignore_ascii_case(word)))
}

/// Of the command or one of its subcommands.
fn has_flag(command: &Tree, flag: &str) -> bool {
    has(command.at(2), flag) || command.at(9).is_some_and(|all| all.elements().iter().any(|sub| has_flag(sub, flag)))
}

fn mentions(tree: &Tree, word: &str) -> bool {
    match tree {
        Tree::Text(text) => text == word,
        Tree::Array(elements) => elements.iter().any(|element| mentions(element, word)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(words: &[&str]) -> Tree {
        Tree::Array(words.iter().map(|word| Tree::Text((*word).into())).collect())
    }

    fn command(flags: &[&str], categories: &[&str], key_flags: &[&str], subcommands: Vec<Tree>) -> Tree {
        let number = || Tree::Text(String::new());
        let keys =
            if key_flags.is_empty() { vec![] } else { vec![Tree::Array(vec![Tree::Text("flags".into()), list(key_flags)])] };
        Tree::Array(vec![
            Tree::Text("name".into()),
            number(),
            list(flags),
            number(),
            number(),
            number(),
            list(categories),
            list(&[]),
            Tree::Array(keys),
            Tree::Array(subcommands),
        ])
    }

    #[test]
    fn commands_are_known_by_what_they_do() {
        let of = |flags: &[&str], categories: &[&str], keys: &[&str]| Kind::of(&command(flags, categories, keys, vec![]));
        assert_eq!(of(&["readonly", "fast"], &["@read"], &["RO", "access"]), Kind::Read, "GET");
        assert_eq!(of(&["readonly"], &["@read"], &["RW", "access"]), Kind::Sent, "PFCOUNT");
        assert_eq!(of(&["write", "denyoom"], &["@write"], &["OW"]), Kind::Write, "SET");
        assert_eq!(of(&["noscript", "stale"], &["@scripting"], &["RW"]), Kind::Script, "EVAL");
        assert_eq!(of(&["readonly", "noscript"], &["@scripting"], &["RO"]), Kind::Read, "EVAL_RO");
        assert_eq!(of(&["noscript", "fast"], &["@transaction"], &["RO"]), Kind::Read, "WATCH");
        assert_eq!(of(&["noscript", "fast"], &["@transaction"], &[]), Kind::Harmless, "MULTI");
        assert_eq!(of(&["pubsub", "fast"], &["@pubsub"], &[]), Kind::Sent, "PUBLISH");
        assert_eq!(of(&["pubsub", "noscript"], &["@pubsub"], &[]), Kind::Harmless, "SUBSCRIBE");
        assert_eq!(of(&["module"], &[], &[]), Kind::Sent, "whatever it does");
        assert_eq!(of(&["admin"], &["@admin"], &[]), Kind::Harmless);
        let subcommand = command(&["write", "noscript"], &["@scripting"], &[], vec![]);
        assert_eq!(Kind::of(&command(&[], &["@slow"], &[], vec![subcommand])), Kind::Write, "FUNCTION");
        assert_eq!(Kind::of(&Tree::Text(String::new())), Kind::Harmless, "there is no such command");
    }
}
