//! `cargo xtask gen`: writes what is generated from the Rust definitions.
use anyhow::{Context, bail};

fn main() -> anyhow::Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("gen") => {
            let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire").join(fide_wire::c_header::PATH);
            std::fs::create_dir_all(root.parent().context("no parent")?)?;
            std::fs::write(&root, fide_wire::c_header::text())?;
            Ok(())
        }
        _ => bail!("usage: cargo xtask gen"),
    }
}
