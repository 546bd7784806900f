//! Examination of a host.
