//! `fide-failover` over real servers: one leads, another one takes over when it crashes, and never two do.

mod patroni;
mod postgresql;
mod redis;
mod unit;
mod zookeeper;

fn program() -> std::path::PathBuf {
    beside("fide-failover")
}

/// Another program of this workspace.
fn beside(name: &str) -> std::path::PathBuf {
    let program = std::env::current_exe().unwrap().parent().unwrap().with_file_name(name);
    assert!(program.exists(), "build it first: cargo build --workspace");
    program
}

/// Fences on hosts, and opening them.
mod fence {
    pub use crate::common::Pins;
    use crate::common::World;
    use fide_wire::control::{FenceOrder, Request};

    pub fn fence(w: &World, host: u16, order: FenceOrder) {
        w.ask(host, &Request::Fence { order }).unwrap();
    }
}

/// Writes a manager's file where it is new: one that starts at this moment must not read half of it.
pub fn configure(file: &std::path::Path, text: &str) {
    if std::fs::read_to_string(file).is_ok_and(|known| known == text) {
        return;
    }
    std::fs::write(file, text).unwrap();
}
