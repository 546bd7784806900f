//! CONTRIBUTING.md names files that exist.

use std::path::Path;

#[test]
fn every_file_that_contributing_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join("CONTRIBUTING.md")).unwrap();
    let named = text.split('`').skip(1).step_by(2);
    let is_path = |word: &&str| word.contains('/') && word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    // What a build makes is not there before it.
    let paths: Vec<&str> = named.filter(is_path).filter(|path| !path.starts_with("target/")).collect();
    assert!(paths.len() > 60, "{paths:?}");
    let lacking: Vec<&&str> = paths.iter().filter(|path| !root.join(path).exists()).collect();
    assert!(lacking.is_empty(), "CONTRIBUTING.md names what is not there: {lacking:?}");
}
