//! How many lines it takes, as docs/heartbeats.md says.

use crate::e2e_lab::sentinel::{capi, sentinel_conf_lines};
use std::fs;
use std::path::Path;

/// Lines that are neither empty nor a comment, and those of them that call libfide or look at what it says.
fn count(source: &str) -> (usize, usize) {
    let text = fs::read_to_string(capi(source)).unwrap();
    let mut comment = false;
    let code = text.lines().map(str::trim).filter(|line| {
        let inside = comment || line.starts_with("/*");
        comment = inside && !line.ends_with("*/");
        !inside && !line.is_empty() && !line.starts_with("//")
    });
    let code: Vec<&str> = code.collect();
    (code.len(), code.iter().filter(|l| l.contains("fide_") || l.contains("FIDE_")).count())
}

#[test]
fn the_page_says_how_many_lines_are_changed() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/heartbeats.md")).unwrap();
    let (one, two) = (sentinel_conf_lines(1), sentinel_conf_lines(2));
    let changed = one.iter().zip(&two).filter(|(a, b)| a != b).count();
    assert_eq!(one.len(), two.len());
    let (guard, of_guard) = count("examples/sentinel.c");
    let main = fs::read_to_string(capi("examples/memberlist/main.go")).unwrap();
    let marked = main.lines().filter(|l| l.ends_with("// fide")).count();
    let (beside, of_beside) = count("examples/memberlist/fide.go");
    for row in [
        format!(
            "| Redis Sentinel 7.0.15 | 0 | {changed} of its configuration | `examples/sentinel.c`: {guard}, {of_guard} of them with libfide |"
        ),
        format!(
            "| hashicorp/memberlist 0.7.0 | 0 | {marked} of the program | `examples/memberlist/fide.go`: {beside}, {of_beside} of them with libfide |"
        ),
    ] {
        assert!(page.contains(&row), "docs/heartbeats.md does not say: {row}");
    }
}
