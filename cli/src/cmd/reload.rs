//! `fide reload`

use crate::context::Context;
use crate::failure::Failure;
use fide_wire::control::{Reloaded, Reply, Request};
use serde_json::json;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

/// Asks for it.
pub fn run(context: &Context) -> Result<ExitCode, Failure> {
    let connection = context.connect()?;
    let reloaded = match connection.request(&Request::Reload)?.reply {
        Reply::Reloaded(reloaded) => *reloaded,
        other => return Err(Failure::unexpected("what was reloaded", &other)),
    };
    let node = &connection.agent().node;
    let mut out = context.out();
    if context.json {
        let mut told = json!(reloaded);
        told["reloaded"] = true.into();
        told["node"] = node.as_str().into();
        context.json_line(&mut out, &told)?;
    } else {
        out.write_all(text(node, &reloaded).as_bytes())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// For people: a line for each kind of consequence.
fn text(node: &str, r: &Reloaded) -> String {
    let mut text = format!("the agent of {node} has read its configuration\n");
    if [&r.changed, &r.watched_again, &r.needs_restart, &r.refused].iter().all(|list| list.is_empty()) {
        text.push_str("nothing changed\n");
    }
    let restart = format!("waits for a restart of the agent (systemctl restart fided): {}", r.needs_restart.join(", "));
    let lines = [
        (&r.changed, format!("taken over: {}", r.changed.join(", "))),
        (&r.watched_again, format!("watched again: {}", r.watched_again.join(", "))),
        (&r.needs_restart, restart),
    ];
    for (_, line) in lines.iter().filter(|(list, _)| !list.is_empty()) {
        let _ = writeln!(text, "{line}");
    }
    for (what, list) in [("refused", &r.refused), ("doubtful", &r.doubtful)] {
        list.iter().for_each(|reason| text.push_str(&format!("{what}: {reason}\n")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_says_what_changed_what_waits_and_what_was_refused() {
        let list = |words: &[&str]| words.iter().map(|w| (*w).to_string()).collect();
        let all = Reloaded {
            changed: list(&["watch redis (new)", "hook"]),
            watched_again: list(&["db"]),
            needs_restart: list(&["heartbeat", "port"]),
            refused: list(&["metrics: the port is taken"]),
            doubtful: list(&["there is no interface eth9 on this host now"]),
        };
        assert_eq!(
            text("h1", &all),
            "the agent of h1 has read its configuration\n\
             taken over: watch redis (new), hook\n\
             watched again: db\n\
             waits for a restart of the agent (systemctl restart fided): heartbeat, port\n\
             refused: metrics: the port is taken\n\
             doubtful: there is no interface eth9 on this host now\n"
        );
        assert!(text("h1", &Reloaded::default()).ends_with("nothing changed\n"));
    }
}
