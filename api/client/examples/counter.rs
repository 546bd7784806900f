//! A replicated counter (README.md).
use fide_client::Error;
use fide_client::group::{Event, Group};
use std::{thread, time::Duration};

fn main() -> Result<(), Error> {
    let mut counter = Group::open("counter")?;
    let mut total = 0;
    for _ in 0..std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1) {
        counter.propose(&1i64.to_le_bytes())?;
    }
    loop {
        match counter.poll(None) {
            Ok(Some(Event::Snapshot { bytes, .. })) => total = bytes.try_into().map_or(0, i64::from_le_bytes),
            Ok(Some(Event::Entry(entry))) => {
                total += entry.bytes.try_into().map_or(0, i64::from_le_bytes);
                println!("{total} after entry {}", entry.index);
                if entry.index % 1000 == 0 {
                    counter.keep_snapshot(entry.index, &total.to_le_bytes())?;
                }
            }
            Ok(_) => {}
            // Its agent restarts: nothing is lost, and nothing counts twice.
            Err(Error::Disconnected) => {
                while let Err(Error::NoAgent { .. } | Error::Disconnected) = counter.reconnect() {
                    thread::sleep(Duration::from_millis(10));
                }
            }
            Err(error) => return Err(error),
        }
    }
}
