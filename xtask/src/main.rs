//! `cargo xtask gen`: writes what is generated from the Rust definitions.
use anyhow::{Context, bail};

fn main() -> anyhow::Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("gen") => {
            let wire = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire");
            write(&wire.join(fide_wire::c_header::PATH), &fide_wire::c_header::text())?;
            write(&wire.join(fide_wire::sv_package::PATH), &fide_wire::sv_package::text())?;
            let registers = fide_rtl::description::files().map_err(anyhow::Error::msg)?;
            registers.iter().try_for_each(|(path, text)| write(path, text))
        }
        _ => bail!("usage: cargo xtask gen"),
    }
}

fn write(path: &std::path::Path, text: &str) -> anyhow::Result<()> {
    std::fs::create_dir_all(path.parent().context("no parent")?)?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
