//! News from the agent: one thread asks for the status at intervals, one follows the events. Both begin anew when the agent
//! comes back.

use super::model::Message;
use crate::context::{self, Context};
use fide_client::Connection;
use fide_wire::control::{Reply, Request};
use fide_wire::level::Level;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// How long an answer is waited for: the view shall not stand still behind a stuck agent.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many events are asked for at first, of all levels.
const KEPT: u64 = 2000;

/// Both threads. They end with the process.
#[derive(Debug)]
pub struct Feed {
    socket: PathBuf,
    sender: Sender<Message>,
    receiver: Receiver<Message>,
}

impl Feed {
    /// Starts asking.
    pub fn start(context: &Context, interval: Duration, least: Level) -> Self {
        let (sender, receiver) = channel();
        let socket = context.socket_path();
        let feed = Feed { socket, sender, receiver };
        feed.thread(move |socket, sender| {
            poll(&socket, &sender, interval);
        });
        feed.thread(move |socket, sender| {
            let mut next = 0;
            loop {
                // An agent that is gone is told by the other thread.
                let _ = follow(&socket, &sender, &mut next, least);
                if sender.send(Message::Tick).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        feed
    }

    fn thread(&self, body: impl FnOnce(PathBuf, Sender<Message>) + Send + 'static) {
        let (socket, sender) = (self.socket.clone(), self.sender.clone());
        std::thread::spawn(move || body(socket, sender));
    }

    /// What is new, if anything is.
    pub fn next(&self) -> Option<Message> {
        self.receiver.try_recv().ok()
    }

    /// Asks for the event with this number; the answer comes as news.
    pub fn explain(&self, seq: u64) {
        self.thread(move |socket, sender| {
            let asked = Connection::open_with_timeout(Some(&socket), PATIENCE)
                .map_err(crate::failure::Failure::from)
                .and_then(|c| crate::cmd::explain::numbered(&c, seq));
            // The view may be over by now.
            let _ = sender.send(match asked {
                Ok(event) => Message::Explained(Box::new(event)),
                Err(failure) => Message::Refused(failure.what),
            });
        });
    }
}

fn poll(socket: &std::path::Path, sender: &Sender<Message>, interval: Duration) {
    let mut connection: Option<Connection> = None;
    loop {
        std::thread::sleep(interval);
        let asked = match connection.take() {
            Some(c) => Ok(c),
            None => Connection::open_with_timeout(Some(socket), PATIENCE).map_err(Into::into),
        };
        let news = match asked.and_then(|c| context::status(&c).map(|s| (c, s))) {
            Ok((c, status)) => {
                connection = Some(c);
                Message::Status(Box::new(status))
            }
            Err(failure) => Message::Lost(failure.what),
        };
        if sender.send(news).is_err() {
            return;
        }
    }
}

/// Follows from event `next` on, which it moves along, and passes on those of level `least` and worse.
fn follow(socket: &std::path::Path, sender: &Sender<Message>, next: &mut u64, least: Level) -> Result<(), fide_client::Error> {
    let connection = Connection::open_with_timeout(Some(socket), PATIENCE)?;
    let last = if *next == 0 { KEPT } else { 0 };
    let mut reply = connection.request(&Request::Events { from: *next, last, follow: true })?.reply;
    loop {
        match reply {
            Reply::Event(event) => {
                *next = event.seq + 1;
                if event.level() <= least && sender.send(Message::Event(event)).is_err() {
                    return Ok(());
                }
            }
            // A history that began anew after it was lost.
            Reply::EventsEnd { next: n } => *next = (*next).min(n),
            _ => return Ok(()),
        }
        reply = connection.next_reply()?.reply;
    }
}
