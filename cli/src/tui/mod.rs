//! Live view.
