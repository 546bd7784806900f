//! Receive and exit mechanism: eBPF C beside the Rust that loads it.
