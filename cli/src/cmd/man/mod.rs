//! `fide man`: the pages of `fide` and its subcommands, of [`agent`] and of its [`config`]uration. `fide-dev man`: those of what it does.

mod agent;
mod config;

use super::dev;
use crate::cli::{Cli, DevCli, EXIT_CODES};
use crate::context::Context;
use crate::failure::Failure;
use clap::{Args, CommandFactory as _};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Its arguments.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write all pages into this directory
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Which page to print: nothing for the program's own, a subcommand such as `group create` or `lab cut`, `fided` for fided(8),
    /// `fide.toml` for fide.toml(5)
    #[arg(conflicts_with = "dir")]
    pub subcommand: Vec<String>,
}

/// Prints a page, or writes them all. Pages of what `fide-dev` does are printed by that.
pub fn run(context: &Context, args: &ManArgs) -> Result<ExitCode, Failure> {
    if args.subcommand.first().is_some_and(|word| dev::COMMANDS.contains(&word.as_str()) || word == dev::PROGRAM) {
        let program = dev::find()?;
        let error = Command::new(&program).arg("man").args(&args.subcommand).exec();
        return Err(Failure::failed(format!("cannot run {}: {error}", program.display())));
    }
    give(context, args, all()?, "fide")
}

/// The same of `fide-dev`.
pub fn run_dev(context: &Context, args: &ManArgs) -> Result<ExitCode, Failure> {
    give(context, args, all_dev()?, dev::PROGRAM)
}

fn give(context: &Context, args: &ManArgs, all: Vec<Page>, itself: &str) -> Result<ExitCode, Failure> {
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
            for page in all {
                let path = dir.join(format!("{}.{}", page.name, page.section));
                std::fs::write(&path, page.text).map_err(|e| cannot(&path, e))?;
                if context.json {
                    context.json_line(&mut out, &serde_json::json!({ "page": path }))?;
                } else {
                    writeln!(out, "{}", path.display())?;
                }
            }
        }
        None => {
            let said = args.subcommand.join("-");
            let name = if said.is_empty() { itself.into() } else { format!("fide-{said}") };
            let Some(page) = all.iter().find(|p| p.name == name).or_else(|| all.iter().find(|p| p.name == said)) else {
                let names: Vec<&str> = all.iter().map(|p| p.name.as_str()).collect();
                return Err(Failure::not_found(format!("there is no page {name}(1)"))
                    .maybe_hint(crate::suggest::hint("pages", &name, &names)));
            };
            out.write_all(&page.text)?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// One page.
pub struct Page {
    /// Its name.
    name: String,
    /// Its section of the manual.
    section: &'static str,
    /// As roff.
    text: Vec<u8>,
}

/// Every page there is.
fn all() -> Result<Vec<Page>, Failure> {
    let mut command = Cli::command();
    command.build();
    let mut all = pages(&command, "", "")?;
    // Those of fide-dev are told by fide-dev.
    all.retain(|page| !dev::COMMANDS.iter().any(|name| page.name.strip_prefix("fide-") == Some(name)));
    all.extend([agent::page()?, config::page()]);
    finish(all)
}

/// Every page of `fide-dev`. People type `fide lab`, so its page is fide-lab(1).
fn all_dev() -> Result<Vec<Page>, Failure> {
    let mut command = DevCli::command();
    command.build();
    let mut all = vec![page(&command, dev::PROGRAM, ".BR fide (1),\n")?];
    let mut command = DevCli::command().bin_name("fide");
    command.build();
    for name in dev::COMMANDS {
        if let Some(command) = command.find_subcommand(name) {
            all.extend(pages(command, "fide", ".BR fide\\-dev (1),\n")?);
        }
    }
    finish(all)
}

fn finish(mut all: Vec<Page>) -> Result<Vec<Page>, Failure> {
    for page in &mut all {
        page.text = bold_code(&String::from_utf8_lossy(&page.text)).into_bytes();
    }
    Ok(all)
}

/// What clap tells of a command.
fn of_command(command: clap::Command, name: &str, section: &'static str) -> Result<Page, Failure> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command).title(name).section(section).render(&mut text)?;
    Ok(Page { name: name.into(), section, text })
}

/// The page of a command and those of its subcommands. `also`: what else to see, as roff.
fn pages(command: &clap::Command, prefix: &str, also: &str) -> Result<Vec<Page>, Failure> {
    let name = if prefix.is_empty() { command.get_name().to_string() } else { format!("{prefix}-{}", command.get_name()) };
    let itself = if prefix.is_empty() { "" } else { ".BR fide (1),\n" };
    let mut all = vec![page(command, &name, &format!("{itself}{also}"))?];
    for sub in command.get_subcommands().filter(|s| s.get_name() != "help" && !s.is_hide_set()) {
        all.extend(pages(sub, &name, also)?);
    }
    Ok(all)
}

/// The page of a command.
fn page(command: &clap::Command, name: &str, also: &str) -> Result<Page, Failure> {
    let mut page = of_command(command.clone().after_help(None::<&str>).display_name(name.to_owned()), name, "1")?;
    if let Some(extra) = command.get_after_help().map(ToString::to_string).filter(|t| t != EXIT_CODES) {
        let lines: Vec<String> = extra.lines().map(line).collect();
        writeln!(page.text, ".SH NOTES\n{}", lines.join("\n.br\n"))?;
    }
    let codes: Vec<(&str, &str)> = EXIT_CODES
        .lines()
        .skip(1)
        .map(|line| line.trim().split_once(' ').map_or((line, ""), |(code, text)| (code, text.trim())))
        .collect();
    list(&mut page.text, "EXIT STATUS", &codes);
    list(&mut page.text, "ENVIRONMENT", &[("FIDE_SOCKET", "The agent's socket."), ("NO_COLOR", "No colours.")]);
    write!(page.text, ".SH SEE ALSO\n{also}.BR fided (8),\n.BR fide.toml (5)\n")?;
    Ok(page)
}

/// A section of words, each with what it means.
fn list(page: &mut Vec<u8>, title: &str, entries: &[(&str, &str)]) {
    page.extend(format!(".SH {title}\n").bytes());
    for (word, meaning) in entries {
        page.extend(format!(".TP\n{}\n{}\n", line(word), line(meaning)).bytes());
    }
}

/// Text as roff, within a line.
fn roff(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

/// A line as roff: it must not begin with a dot or a quote.
fn line(text: &str) -> String {
    let text = roff(text);
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// What stands between backticks in bold, line by line.
fn bold_code(text: &str) -> String {
    let bold = |line: &str| -> String {
        let parts = line.split('`').enumerate();
        parts.map(|(i, part)| if i % 2 == 1 { format!("\\fB{part}\\fR") } else { part.into() }).collect()
    };
    text.split_inclusive('\n').map(bold).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pages of both programs.
    fn everything() -> Vec<Page> {
        all().unwrap().into_iter().chain(all_dev().unwrap()).collect()
    }

    #[test]
    fn every_subcommand_has_a_page_with_its_exit_codes() {
        let all = everything();
        let names: Vec<String> = all.iter().map(|p| format!("{}({})", p.name, p.section)).collect();
        for wanted in [
            "fide(1)",
            "fide-doctor(1)",
            "fide-events(1)",
            "fide-dev(1)",
            "fide-lab(1)",
            "fide-lab-cut(1)",
            "fided(8)",
            "fide.toml(5)",
        ] {
            assert_eq!(names.iter().filter(|n| *n == wanted).count(), 1, "{wanted} in {names:?}");
        }
        for page in all.iter().filter(|p| p.section == "1") {
            let text = String::from_utf8_lossy(&page.text);
            assert!(text.contains(".SH EXIT STATUS") && text.contains("no agent"), "{}", page.name);
        }
    }

    #[test]
    fn groff_has_nothing_to_complain_of() {
        for page in everything() {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), &page.text).unwrap();
            let groff = std::process::Command::new("groff")
                .args(["-K", "utf8", "-T", "utf8", "-man", "-ww", "-z"])
                .arg(file.path())
                .output();
            let Ok(said) = groff else {
                println!("SKIPPED: groff is not installed");
                return;
            };
            let complaints = String::from_utf8_lossy(&said.stderr);
            assert!(said.status.success() && complaints.is_empty(), "{}({}): {complaints}", page.name, page.section);
        }
    }

    #[test]
    fn code_is_bold_and_no_page_shows_a_backtick() {
        for page in everything() {
            let text = String::from_utf8(page.text).unwrap();
            assert!(!text.contains('`'), "{}({}): {:?}", page.name, page.section, text.lines().find(|l| l.contains('`')));
        }
        // One between the ends of two lines is no markup: what follows would be turned inside out.
        let split = |line: &str| line.matches('`').count() % 2 == 1;
        let mut command = Cli::command();
        command.build();
        let raw = String::from_utf8(of_command(command, "fide", "1").unwrap().text).unwrap();
        assert!(raw.contains('`') && !raw.lines().any(split), "{:?}", raw.lines().find(|l| split(l)));
        let fide = all().unwrap().into_iter().find(|p| p.name == "fide").unwrap();
        assert!(String::from_utf8(fide.text).unwrap().contains("\\fBfide doctor\\fR"));
    }

    #[test]
    fn text_is_made_safe_for_roff() {
        assert_eq!(bold_code("see `fided \\-\\-check`."), "see \\fBfided \\-\\-check\\fR.");
        assert_eq!(line(".profile"), "\\&.profile");
    }
}
