//! `fide man`

use crate::cli::{Cli, EXIT_CODES};
use crate::context::Context;
use crate::failure::Failure;
use clap::{Args, CommandFactory as _};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Its arguments.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write the page of every subcommand into this directory
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Which page to print: nothing for fide(1), or a subcommand such as `lab cut`
    #[arg(conflicts_with = "dir")]
    pub subcommand: Vec<String>,
}

/// Prints a page, or writes them all.
pub fn run(context: &Context, args: &ManArgs) -> Result<ExitCode, Failure> {
    let mut command = Cli::command();
    command.build();
    let mut out = context.out();
    match &args.dir {
        Some(dir) => {
            let cannot = |path: &Path, e| Failure::failed(format!("cannot write {}: {e}", path.display()));
            // One directory may be new; a missing parent is rather a slip of the finger.
            if !dir.is_dir() {
                std::fs::create_dir(dir).map_err(|e| match e.kind() {
                    std::io::ErrorKind::NotFound => {
                        let parent = dir.parent().unwrap_or(Path::new("."));
                        let hint = format!("if that is meant: mkdir -p {}", dir.display());
                        Failure::failed(format!("there is no directory {}", parent.display())).hint(hint)
                    }
                    _ => cannot(dir, e),
                })?;
            }
            for (name, page) in pages(&command, "")? {
                let path = dir.join(format!("{name}.1"));
                std::fs::write(&path, page).map_err(|e| cannot(&path, e))?;
                if context.json {
                    context.json_line(&mut out, &serde_json::json!({ "page": path }))?;
                } else {
                    writeln!(out, "{}", path.display())?;
                }
            }
        }
        None => {
            let name = std::iter::once("fide").chain(args.subcommand.iter().map(String::as_str)).collect::<Vec<_>>().join("-");
            let all = pages(&command, "")?;
            let Some((_, page)) = all.iter().find(|(n, _)| *n == name) else {
                let names: Vec<&str> = all.iter().map(|(n, _)| n.as_str()).collect();
                return Err(Failure::not_found(format!("there is no page {name}(1)"))
                    .maybe_hint(crate::suggest::hint("pages", &name, &names)));
            };
            out.write_all(page)?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The page of a command and those of its subcommands, by name.
fn pages(command: &clap::Command, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let name = if prefix.is_empty() { command.get_name().to_string() } else { format!("{prefix}-{}", command.get_name()) };
    let mut page = Vec::new();
    let shown = command.clone().after_help("").display_name(name.clone());
    let man = clap_mangen::Man::new(shown).title(name.clone()).section("1");
    man.render(&mut page)?;
    if let Some(extra) = command.get_after_help().map(ToString::to_string).filter(|t| t != EXIT_CODES) {
        writeln!(page, ".SH NOTES\n{}", escape(&extra))?;
    }
    writeln!(page, ".SH EXIT STATUS")?;
    for line in EXIT_CODES.lines().skip(1) {
        let (code, text) = line.trim().split_once(' ').unwrap_or((line, ""));
        writeln!(page, ".TP\n{code}\n{}", escape(text.trim()))?;
    }
    writeln!(page, ".SH ENVIRONMENT\n.TP\nFIDE_SOCKET\nThe agent's socket.\n.TP\nNO_COLOR\nNo colours.")?;
    let mut all = vec![(name.clone(), page)];
    for sub in command.get_subcommands().filter(|s| s.get_name() != "help" && !s.is_hide_set()) {
        all.extend(pages(sub, &name)?);
    }
    Ok(all)
}

/// Text as roff: no line may begin with a dot or a quote, and a backslash is one.
fn escape(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
    });
    lines.collect::<Vec<_>>().join("\n.br\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_has_a_page_with_its_exit_codes() {
        let mut command = Cli::command();
        command.build();
        let all = pages(&command, "").unwrap();
        let names: Vec<&str> = all.iter().map(|(n, _)| n.as_str()).collect();
        for wanted in ["fide", "fide-doctor", "fide-events", "fide-lab", "fide-lab-cut"] {
            assert!(names.contains(&wanted), "{wanted} in {names:?}");
        }
        for (name, page) in &all {
            let text = String::from_utf8_lossy(page);
            assert!(text.contains(".SH EXIT STATUS") && text.contains("no agent"), "{name}");
        }
    }
}
