//! The report of the demonstration.

use super::{Repeated, Scene};
use std::time::Duration;

/// The whole page.
pub(super) fn render(scenes: &[Scene], repeated: &mut Repeated, took: Duration) -> String {
    let _ = (repeated, took);
    format!("<pre>{}</pre>", serde_json::to_string_pretty(scenes).unwrap_or_default())
}
