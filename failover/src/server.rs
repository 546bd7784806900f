//! What a server must be able to do to be one of several of which one leads.

use std::time::Duration;

/// How a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Another one after each start of the server.
    pub instance: String,
    /// It takes writes.
    pub primary: bool,
    /// The server that it follows, as other hosts reach that one.
    pub follows: Option<String>,
    /// How long ago it last had all that came from that one; absent: it never had.
    pub synced_ago: Option<Duration>,
    /// How much of the stream of writes it has.
    pub position: u64,
    /// Which stream that is, where two servers that name the same one have the same writes up to
    /// the same position.
    pub stream: Option<u64>,
    /// It has any data.
    pub has_data: bool,
    /// What it has outlives its end, if it is asked to end.
    pub durable: bool,
    /// Whether it could lead; why not.
    pub usable: Result<(), String>,
    /// What an operator should mend; empty: nothing.
    pub doubt: String,
}

/// A server of this host. Calls block, a second or two at most; errors are for people.
pub trait Server: Send {
    /// How it is.
    ///
    /// # Errors
    /// Why that is not known.
    fn look(&mut self) -> Result<Report, String>;

    /// It takes writes from here on, if it is still this instance: what has started since has less than was thought, and others know that its predecessor
    /// has ended.
    ///
    /// # Errors
    /// Why it does not.
    fn lead(&mut self, instance: &str) -> Result<(), String>;

    /// It follows another one, and takes no writes; also after a restart.
    ///
    /// # Errors
    /// Why it does not.
    fn follow(&mut self, address: &str) -> Result<(), String>;

    /// It takes no writes, and follows nobody; also after a restart.
    ///
    /// # Errors
    /// Why it does not.
    fn close(&mut self) -> Result<(), String>;

    /// It takes no more writes, and the follower at that address has all of them: closed, as by [`Server::close`]. It goes on as before if that fails.
    ///
    /// # Errors
    /// Why the other one has not all.
    fn hand(&mut self, address: &str) -> Result<(), String>;
}
