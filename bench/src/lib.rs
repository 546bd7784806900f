//! What produces every figure.
