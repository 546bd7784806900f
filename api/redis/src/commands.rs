//! What a command may do to data, by what the server says of the command itself, whatever it is called and whoever has added it.

use crate::api::Tree;
use crate::reads::{Access, Keys};

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

/// Commands that answer at once, and show nothing of the data.
const PLAIN: [&str; 21] = [
    "fide", "ping", "echo", "select", "time", "info", "role", "config", "command", "auth", "hello", "acl", "lastsave", "latency",
    "module", "multi", "discard", "watch", "unwatch", "quit", "reset",
];
/// Others without keys of their own that answer at once; what is not known to do so may answer later.
const AT_ONCE: [&str; 6] = ["slowlog", "exec", "dbsize", "scan", "keys", "randomkey"];

/// What a command has to do with keys: of one element of the answer to `COMMAND INFO`.
#[must_use]
pub fn access(command: &Tree) -> Access {
    let own = |flag: &str| has(command.at(2), flag);
    let number = |at: usize| command.at(at).and_then(Tree::number).unwrap_or(0);
    let name = command.at(0).map_or("", Tree::text).to_ascii_lowercase();
    if name == "client" {
        return Access::Client;
    }
    if PLAIN.contains(&&*name) {
        return Access::Nothing;
    }
    let kind = Kind::of(command);
    // By patterns, any other key.
    if ["sort", "sort_ro"].contains(&&*name) {
        return Access::Other;
    }
    if own("blocking") || own("pubsub") || own("module") {
        return Access::Later;
    }
    let keys = Keys {
        first: usize::try_from(number(3)).unwrap_or(0),
        last: isize::try_from(number(4)).unwrap_or(0),
        step: usize::try_from(number(5)).unwrap_or(0),
    };
    let has_keys = keys.first > 0 && keys.step > 0 && !own("movablekeys");
    match kind {
        Kind::Read if has_keys && own("readonly") => Access::Reads(keys),
        Kind::Write if has_keys && own("write") => Access::Writes(keys),
        Kind::Read | Kind::Write | Kind::Script | Kind::Sent => Access::Other,
        Kind::Harmless if AT_ONCE.contains(&&*name) => Access::Other,
        Kind::Harmless => Access::Later,
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
        Tree::Number(_) => false,
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

    #[test]
    fn what_a_command_has_to_do_with_keys_is_known() {
        let of = |name: &str, flags: &[&str], categories: &[&str], key_flags: &[&str], keys: [i64; 3]| {
            let Tree::Array(mut parts) = command(flags, categories, key_flags, vec![]) else { unreachable!() };
            parts[0] = Tree::Text(name.into());
            for (at, number) in (3..).zip(keys) {
                parts[at] = Tree::Number(number);
            }
            access(&Tree::Array(parts))
        };
        let keys = |first, last, step| Keys { first, last, step };
        let none = [0, 0, 0];
        assert_eq!(of("get", &["readonly", "fast"], &["@read"], &["RO"], [1, 1, 1]), Access::Reads(keys(1, 1, 1)));
        assert_eq!(of("mset", &["write"], &["@write"], &["OW"], [1, -1, 2]), Access::Writes(keys(1, -1, 2)));
        assert_eq!(of("blpop", &["write", "blocking"], &["@list"], &["RW"], [1, -2, 1]), Access::Later);
        assert_eq!(of("sort", &["write", "movablekeys"], &["@write"], &["RO"], [1, 1, 1]), Access::Other);
        assert_eq!(of("pfcount", &["readonly"], &["@read"], &["RW"], [1, -1, 1]), Access::Other);
        assert_eq!(of("watch", &["noscript", "fast"], &["@transaction"], &["RO"], [1, -1, 1]), Access::Nothing);
        assert_eq!(of("fide", &["module", "admin"], &[], &[], none), Access::Nothing);
        assert_eq!(of("eval", &["noscript", "movablekeys"], &["@scripting"], &["RW"], none), Access::Other);
        assert_eq!(of("flushall", &["write"], &["@write"], &[], none), Access::Other);
        assert_eq!(of("ping", &["fast"], &["@connection"], &[], none), Access::Nothing);
        assert_eq!(of("exec", &["noscript"], &["@transaction"], &[], none), Access::Other);
        for (name, flags) in [("subscribe", "pubsub"), ("wait", "noscript"), ("monitor", "admin"), ("json.get", "module")] {
            assert_eq!(of(name, &[flags], &[], &[], none), Access::Later, "{name}");
        }
    }
}
