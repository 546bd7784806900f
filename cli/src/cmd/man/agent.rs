//! fided(8): its command line by clap, and what no option tells.

use super::{Page, list, of_command};
use crate::failure::Failure;
use clap::CommandFactory as _;
use fide_agent::arguments::Arguments;
use fide_agent::config::{Config, DEFAULT_PATH};

const SIGNALS: [(&str, &str); 2] = [
    ("SIGHUP", "Read the configuration again, as systemctl reload and fide reload do. A file that is refused changes nothing."),
    ("SIGTERM, SIGINT", "Leave: the others are told, so that this is no crash; hooks that run may finish; then the agent ends."),
];

const EXIT_STATUS: [(&str, &str); 3] = [
    ("0", "It left as it was told to, or --check refused nothing; what is doubtful is on standard error."),
    ("1", "It could not start or go on, or --check refused the configuration. Standard error says why."),
    ("2", "The command line makes no sense."),
];

const ENVIRONMENT: [(&str, &str); 2] = [
    ("FIDE_LOG", "What is logged on standard error: error, warn, info (the default), debug or trace."),
    ("NOTIFY_SOCKET", "Set by systemd, which is told when the agent is ready, that it runs, and when it leaves."),
];

/// The page.
pub fn page() -> Result<Page, Failure> {
    let mut page = of_command(Arguments::command(), "fided", "8")?;
    let text = &mut page.text;
    list(text, "SIGNALS", &SIGNALS);
    // The name has no say in where files are.
    if let Ok(usual) = Config::parse("node = \"a\"") {
        let (socket, state) = (usual.socket.path.display().to_string(), usual.state.display().to_string());
        let history = usual.history.path.map(|p| p.display().to_string()).unwrap_or_default();
        let files = [
            (DEFAULT_PATH, "The configuration; see fide.toml(5). The other files are where it says, by default:"),
            (&socket, "The socket for fide(1) and for applications."),
            (&state, "The incarnation numbers of this host."),
            (&history, "The event history; its older half, reports (.reports) and notices of timing (.timing) are beside it."),
        ];
        list(text, "FILES", &files);
    }
    list(text, "EXIT STATUS", &EXIT_STATUS);
    list(text, "ENVIRONMENT", &ENVIRONMENT);
    text.extend_from_slice(b".SH SEE ALSO\n.BR fide.toml (5),\n.BR fide (1),\n.BR fide\\-agent (1)\n");
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::super::roff;
    use super::*;

    #[test]
    fn it_tells_signals_files_exit_codes_and_the_environment() {
        let page = String::from_utf8(page().unwrap().text).unwrap();
        for section in ["SYNOPSIS", "OPTIONS", "SIGNALS", "FILES", "EXIT STATUS", "ENVIRONMENT", "SEE ALSO"] {
            assert!(
                page.contains(&format!(".SH {section}\n")) || page.contains(&format!(".SH \"{section}\"")),
                "{section}\n{page}"
            );
        }
        for word in
            ["--check", "SIGHUP", "/etc/fide/fide.toml", "/run/fide/fided.sock", "/var/lib/fide/state.json", "history.jsonl"]
        {
            assert!(page.contains(&roff(word)), "{word}\n{page}");
        }
        assert!(page.contains(".TH fided 8"), "{page}");
    }
}
