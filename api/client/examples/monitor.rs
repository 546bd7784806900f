//! Monitors a process and prints what becomes of it.
//!
//! ```text
//! cargo run -p fide-client --example monitor -- db@a
//! ```
//! The target is `name@host`, `@host` for a host with all its processes, or `*`. Ends when the agent does.

use fide_client::{Callbacks, Client, Event, Resources, Verdict, monotonic_ns};

struct Printer;

impl Callbacks for Printer {
    // Called once for each instance of a process, as soon as it can no longer be saved.
    fn on_failure(&mut self, failure: &Verdict) {
        // Two clocks are involved: what passed on the other host before the notice left it, and what passed here since the
        // kernel received it. The network between them is not in either.
        let now = monotonic_ns();
        let there = failure.event_to_sent_ns().map_or("-".into(), |ns| format!("{:.1} µs", ns as f64 / 1e3));
        let here = failure.received_to_ns(now).map_or("-".into(), |ns| format!("{:.1} µs", ns as f64 / 1e3));
        println!(
            "{} {}: {} (code {}, {}), {there} there, {here} here{}",
            if failure.is_crash() { "FAILED" } else { "left" },
            failure.subject,
            failure.cause,
            failure.code,
            failure.grade,
            failure.id.map_or(String::new(), |id| format!(", see fide explain {id}")),
        );
    }

    // The end of a process that was reported as doomed, with its final cause and code.
    fn on_confirmed(&mut self, confirmed: &Verdict) {
        println!("confirmed {}: {} (code {})", confirmed.subject, confirmed.cause, confirmed.code);
    }

    // Hosts, paths, lost events, the agent's own end: never a verdict on a process.
    fn on_other(&mut self, event: &Event) {
        match event {
            Event::Monitored(v) => println!("runs {}", v.subject),
            Event::Host(v) => println!("host {}: {} (code {}, {})", v.subject, v.cause, v.code, v.grade),
            Event::Lost { count } => println!("{count} events were lost: what is known may be out of date"),
            other => println!("{other:?}"),
        }
    }
}

fn main() -> Result<(), fide_client::Error> {
    let Some(target) = std::env::args().nth(1) else {
        eprintln!("usage: monitor name@host | @host | '*'");
        std::process::exit(2);
    };
    let client = Client::open(None)?;
    let monitored = client.monitor(&target, Resources::default())?;
    println!(
        "monitoring {target} from {}: {}, timeout {:?}",
        client.agent().node,
        if monitored.alive { "alive" } else { "not running now" },
        monitored.granted.timeout
    );
    loop {
        match client.dispatch(&mut Printer, None) {
            Ok(_) => {}
            Err(fide_client::Error::Disconnected) => return Ok(()),
            Err(e) => return Err(e),
        }
    }
}
