//! Failures of one process (README.md).
use fide_client::{Client, Error, Event, Resources};
use std::{thread, time::Duration};

fn main() -> Result<(), Error> {
    let client = Client::open(None)?;
    client.monitor("db@a", Resources::default())?;
    loop {
        match client.poll(None) {
            Ok(Some(Event::Failure(v))) => println!("{}: {}, {}", v.subject, v.cause, v.grade),
            Ok(_) => {}
            // Its agent restarts: what ends meanwhile is reported then.
            Err(Error::Disconnected) => {
                while let Err(Error::NoAgent { .. } | Error::Disconnected) = client.reconnect() {
                    thread::sleep(Duration::from_millis(10));
                }
            }
            Err(error) => return Err(error),
        }
    }
}
