//! What every command gets: where the agent is, how to print.

use crate::cli::{Color, Global};
use crate::failure::Failure;
use crate::shown::Shown;
use crate::style::Style;
use fide_client::Connection;
use fide_wire::control::{Reply, Request, Status};
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;

/// Everything the global options say.
#[derive(Debug)]
pub struct Context {
    /// The agent's socket, if it was named.
    pub socket: Option<PathBuf>,
    /// JSON instead of text.
    pub json: bool,
    /// Colours of standard output.
    pub style: Style,
    /// Colours of standard error.
    pub err_style: Style,
}

impl Context {
    /// From the global options and the environment.
    pub fn new(global: &Global) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|t| t == "dumb");
        let columns = |terminal: bool| terminal.then(|| ratatui::crossterm::terminal::size().ok()).flatten();
        let style = |terminal: bool| Style {
            columns: columns(terminal).map(|(columns, _)| columns).filter(|columns| *columns > 0),
            on: match global.color {
                Color::Always => true,
                Color::Never => false,
                Color::Auto => terminal && !no_color && !dumb,
            },
        };
        Context {
            socket: global.socket.clone(),
            json: global.json,
            style: style(io::stdout().is_terminal()),
            err_style: style(io::stderr().is_terminal()),
        }
    }

    /// As far as it matters where a command line is not parsed: whether JSON is wanted.
    pub fn of_line(line: &[OsString]) -> Self {
        let json = line.iter().take_while(|word| *word != "--").any(|word| word == "--json");
        Self::new(&Global { socket: None, json, color: Color::Auto })
    }

    /// The agent's socket.
    pub fn socket_path(&self) -> PathBuf {
        fide_client::socket_path(self.socket.as_deref())
    }

    /// Connects to the agent.
    pub fn connect(&self) -> Result<Connection, Failure> {
        Connection::open(self.socket.as_deref()).map_err(Failure::from)
    }

    /// Standard output, buffered, without characters that a terminal does not show.
    pub fn out(&self) -> Shown<io::BufWriter<io::StdoutLock<'static>>> {
        Shown::new(io::BufWriter::new(io::stdout().lock()), self.json)
    }

    /// One JSON object on a line of its own.
    pub fn json_line<T: Serialize>(&self, out: &mut impl Write, value: &T) -> Result<(), Failure> {
        let text = serde_json::to_string(value).map_err(|e| Failure::failed(format!("cannot be written as JSON: {e}")))?;
        writeln!(out, "{text}")?;
        Ok(())
    }
}

/// Asks for the status.
pub fn status(connection: &Connection) -> Result<Status, Failure> {
    match connection.request(&Request::Status)?.reply {
        Reply::Status(status) => Ok(*status),
        other => Err(Failure::unexpected("a status", &other)),
    }
}
