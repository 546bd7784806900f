//! How the agent's source is laid out: no two of its files import each other, directly or around a circle.
//!
//! A file and the folder of its name (`core.rs`, `core/`) are one: a module and its parts share private items.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Every module of the first level, with the source of all its files, without comments and unit tests.
fn modules() -> BTreeMap<String, String> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources: BTreeMap<String, String> = BTreeMap::new();
    let mut open = vec![src.clone()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let relative = path.strip_prefix(&src).unwrap().with_extension("");
            let module = relative.components().next().unwrap().as_os_str().to_str().unwrap().to_owned();
            if module == "main" || module == "lib" {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            sources.entry(module).or_default().push_str(&product(&text));
        }
    }
    sources
}

/// A source without its comments and its unit tests. These end a file; before that, the attribute stands before single items.
fn product(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().flat_map(|line| [line.split("//").next().unwrap_or_default(), "\n"]).collect()
}

/// The modules that a source names behind `crate::`.
fn imports(source: &str, known: &BTreeSet<String>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for rest in source.split("crate::").skip(1) {
        let whole = |c: char| !c.is_alphanumeric() && c != '_';
        if let Some(list) = rest.strip_prefix('{') {
            // Of a list all words are looked at: one too many at worst, where an item has a module's name.
            let list = list.split(';').next().unwrap_or_default();
            found.extend(list.split(whole).map(str::to_owned).filter(|name| known.contains(name)));
        } else {
            found.extend(rest.split(whole).next().map(str::to_owned).filter(|name| known.contains(name)));
        }
    }
    found
}

/// A circle of modules, if there is one.
fn circle(graph: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    // Modules that nobody imports are taken away until none is left, or a circle.
    let mut left = graph.clone();
    while let Some(free) =
        left.keys().find(|module| !left.iter().any(|(of, imports)| of != *module && imports.contains(*module))).cloned()
    {
        left.remove(&free);
    }
    (!left.is_empty()).then(|| left.into_keys().collect())
}

#[test]
fn no_two_files_import_each_other() {
    let sources = modules();
    let known: BTreeSet<String> = sources.keys().cloned().collect();
    assert!(known.len() > 30 && known.contains("core"), "the source was found: {known:?}");
    let graph = sources.iter().map(|(module, source)| (module.clone(), imports(source, &known))).collect();
    assert_eq!(circle(&graph), None, "these, or some of them, import each other");
}

#[test]
fn unit_tests_are_left_out_and_nothing_else() {
    let text = "#[cfg(test)]\nmod helper;\nuse crate::a; // crate::c\n#[cfg(test)]\nmod tests {\nuse crate::b;\n}\n";
    let known = ["a", "b", "c"].map(str::to_owned).into();
    assert_eq!(imports(&product(text), &known), BTreeSet::from(["a".to_owned()]));
}

#[test]
fn a_circle_is_found() {
    let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let known = of(&["a", "b", "c"]);
    assert_eq!(imports("use crate::a::X;\nuse crate::{b::{self, Y}, c};\n", &known), known);
    let mut graph = BTreeMap::from([("a".into(), of(&["b"])), ("b".into(), of(&["c"])), ("c".into(), of(&[]))]);
    assert_eq!(circle(&graph), None);
    graph.insert("c".into(), of(&["a"]));
    assert_eq!(circle(&graph), Some(vec!["a".into(), "b".into(), "c".into()]));
}
