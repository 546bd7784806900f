//! Which replies wait for which writes, while this server may answer at once: a reply that shows a write that is not decided waits for that write, and no other
//! reply does. A reply that shows nothing of the data waits for nothing, whether this server may answer at once or not: operators are answered whatever the
//! group does.
//!
//! What the server executes for a client in a turn of its loop is known by the descriptor that it has read from last, by the command, and by the command's keys.
//! What cannot be attributed waits for everything that was written (and so does everything, where much cannot be: [`Reads::be_careful`]): commands whose keys are not known, replies to a client of which nothing was read in
//! the turn, and all replies to a client that has ever called something that answers later (blocking commands, subscriptions). A key that was written
//! stays in mind until the turn in which it was is decided; also a key that the server itself has changed (expiry, eviction, what a blocked client gets),
//! which it tells by its keyspace events.
//!
//! No clock and no socket; the server's main thread alone uses it.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};

/// Keys that are kept in mind before it is looked which of them are decided.
const DIRTY_MIN: usize = 1024;

/// Where the keys are among a command's words: [`Keys::first`] 1 is the first one behind its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The first one.
    pub first: usize,
    /// The last one; negative: from the end, −1 is the last word.
    pub last: isize,
    /// Words from one to the next.
    pub step: usize,
}

impl Keys {
    /// Their places among so many words.
    fn places(self, count: usize) -> impl Iterator<Item = usize> {
        let last = if self.last < 0 { count.saturating_add_signed(self.last) } else { self.last.unsigned_abs() };
        (self.first..=last.min(count.saturating_sub(1))).step_by(self.step.max(1))
    }
}

/// What a command has to do with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing: what it answers shows nothing of the data.
    Nothing,
    /// It reads these, and nothing else.
    Reads(Keys),
    /// It reads and writes these, and nothing else.
    Writes(Keys),
    /// It may read and write anything, and answers at once.
    Other,
    /// By its first argument: `CLIENT`.
    Client,
    /// It may also answer, or bring messages, at any later time.
    Later,
}

/// Subcommands of `CLIENT` that answer at once, and change nothing about later answers.
const CLIENT_NOW: [&[u8]; 12] = [
    b"setname",
    b"setinfo",
    b"id",
    b"getname",
    b"info",
    b"list",
    b"no-evict",
    b"no-touch",
    b"kill",
    b"unblock",
    b"pause",
    b"unpause",
];

/// Of a client.
#[derive(Clone, Copy, Debug, Default)]
struct Client {
    /// The turn in which something was executed for it.
    turn: u64,
    /// What it was told then shows writes up to this ticket, and of the turn itself.
    shows: u64,
    shows_turn: bool,
    /// All that was executed then shows nothing of the data.
    is_plain: bool,
    /// Something else was, of which nothing was written yet.
    is_owed: bool,
    /// The ticket for which everything waits that is written to it.
    waits: u64,
    /// Answers may come at any time.
    is_later: bool,
    /// Its transaction is being queued.
    is_queueing: bool,
    /// Something of that was refused, and what follows may not be.
    was_refused: bool,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub struct Reads {
    is_on: bool,
    /// Something is done here of which it is not known for whom, or to which keys: everything that shows data waits for all writes.
    is_careful: bool,
    /// The turn ends in the middle of a command.
    is_nested: bool,
    hashes: RandomState,
    turn: u64,
    /// The client that is read from.
    current: Option<usize>,
    clients: Vec<Client>,
    /// Something was refused to a client, and it is not known to which.
    has_refused: bool,
    /// Clients for which something was executed in this turn.
    active: Vec<usize>,
    /// Keys that were written in this turn.
    written: HashSet<u64>,
    /// Something was executed that may have written other keys.
    is_other_written: bool,
    /// Keys that were written, with their last ticket.
    dirty: HashMap<u64, u64>,
    look_at: usize,
    /// Any key may have been written up to this ticket; the last ticket that wrote.
    all: u64,
    last: u64,
}

impl Reads {
    /// This server begins to lead, and may answer at once; or not. Nothing that was before waits.
    pub fn begin(&mut self, is_on: bool) {
        let (is_careful, clients) = (self.is_careful, std::mem::take(&mut self.clients));
        // What was written last, before, is not known.
        *self = Self { is_on, is_careful, turn: 1, look_at: DIRTY_MIN, clients, is_other_written: true, ..Self::default() };
        // Who has asked for later answers gets them from this server, too.
        let kept = |client: &Client| Client { is_later: client.is_later, is_queueing: client.is_queueing, ..Client::default() };
        self.clients.iter_mut().for_each(|client| *client = kept(client));
    }

    /// Whether replies may leave at once.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.is_on
    }

    fn client(&mut self, fd: usize) -> &mut Client {
        if self.clients.len() <= fd {
            self.clients.resize(fd + 1, Client::default());
        }
        &mut self.clients[fd]
    }

    /// A new client.
    pub fn accepted(&mut self, fd: i32) {
        if let Ok(fd) = usize::try_from(fd) {
            *self.client(fd) = Client::default();
        }
    }

    /// A client's transaction begins, or is over.
    pub fn queues(&mut self, is_queueing: bool) {
        if let Some(fd) = self.current {
            let client = self.client(fd);
            (client.is_queueing, client.was_refused) = (is_queueing, false);
        }
    }

    /// Whether what comes now may be queued.
    pub fn is_queueing(&mut self) -> bool {
        self.is_careful || self.current.is_some_and(|fd| self.client(fd).is_queueing)
    }

    /// What is executed now is refused, because this server does not lead.
    pub fn refuses(&mut self) {
        self.has_refused |= self.is_careful;
        if let Some(fd) = self.current {
            let client = self.client(fd);
            client.was_refused |= client.is_queueing;
        }
    }

    /// Clients of whose transactions a part was refused, before this server leads and takes the rest:
    /// their descriptors; nothing where any client may be one.
    pub fn half_refused(&mut self) -> Option<Vec<i32>> {
        if std::mem::take(&mut self.has_refused) {
            return None;
        }
        let of = self.clients.iter_mut().enumerate().filter(|(_, client)| client.was_refused);
        let fds = of.filter_map(|(fd, client)| {
            (client.is_queueing, client.was_refused) = (false, false);
            i32::try_from(fd).ok()
        });
        Some(fds.collect())
    }

    /// A client that may be answered at any time.
    pub fn is_answered_later(&mut self, fd: i32) {
        if let Ok(fd) = usize::try_from(fd) {
            self.client(fd).is_later = true;
        }
    }

    /// From now on everything waits for all writes: see the field.
    pub fn be_careful(&mut self) {
        self.is_careful = true;
    }

    /// The turn that ends is one within a command (a long script, during which the server looks at its clients).
    pub fn is_within_a_command(&mut self) {
        self.is_nested = true;
    }

    /// It does so now.
    #[must_use]
    pub const fn is_nested(&self) -> bool {
        self.is_nested
    }

    /// While this server does not lead: commands after which a client is told things later.
    pub fn follows<'a>(&mut self, access: Access, count: usize, word: impl Fn(usize) -> &'a [u8]) {
        let is_later = match access {
            Access::Later => true,
            Access::Client => self.client_waits(count, word),
            _ => false,
        };
        if let Some(fd) = self.current.filter(|_| is_later) {
            self.client(fd).is_later = true;
        }
    }

    /// `CLIENT`: whether what it does brings later answers.
    fn client_waits<'a>(&mut self, count: usize, word: impl Fn(usize) -> &'a [u8]) -> bool {
        let is = |at: usize, text: &[u8]| at < count && word(at).eq_ignore_ascii_case(text);
        // Commands that are put off run later, and pass no filter then; what others read is told to a client that never asked.
        self.is_careful |= is(1, b"pause") || (2..count).any(|at| is(at, b"redirect"));
        !CLIENT_NOW.iter().any(|now| is(1, now))
    }

    /// The server reads from this descriptor: what is executed next is this client's.
    pub fn reads_from(&mut self, fd: i32) {
        self.current = usize::try_from(fd).ok();
    }

    fn hash(&self, key: &[u8]) -> u64 {
        self.hashes.hash_one(key)
    }

    /// The server executes a command with so many words.
    pub fn executes<'a>(&mut self, access: Access, count: usize, word: impl Fn(usize) -> &'a [u8]) {
        let access = match access {
            Access::Client => {
                if self.client_waits(count, &word) {
                    Access::Later
                } else {
                    Access::Nothing
                }
            }
            // Without a lease everything waits for an entry, whatever it shows.
            Access::Reads(_) | Access::Writes(_) if !self.is_on || self.is_careful => Access::Other,
            access => access,
        };
        let (mut shows, mut shows_turn) = (0, false);
        match access {
            Access::Nothing => {}
            Access::Reads(keys) | Access::Writes(keys) => {
                shows = self.all;
                shows_turn = self.is_other_written;
                for at in keys.places(count) {
                    let key = self.hash(word(at));
                    shows = shows.max(self.dirty.get(&key).copied().unwrap_or(0));
                    shows_turn |= self.written.contains(&key);
                    if matches!(access, Access::Writes(_)) {
                        self.written.insert(key);
                        shows_turn = true;
                    }
                }
            }
            Access::Other | Access::Client | Access::Later => {
                self.is_other_written = true;
                (shows, shows_turn) = (self.last, true);
            }
        }
        // Later answers come without a client that is read from.
        let is_later = access == Access::Later;
        self.shows(shows, shows_turn, is_later, access == Access::Nothing);
    }

    /// What is executed shows that much to the client that is read from.
    fn shows(&mut self, shows: u64, shows_turn: bool, is_later: bool, is_plain: bool) {
        let (turn, Some(fd)) = (self.turn, self.current) else { return };
        let client = self.client(fd);
        let is_first = client.turn != turn;
        if is_first {
            *client = Client { turn, shows: 0, shows_turn: false, is_plain: true, ..*client };
        }
        client.is_plain &= is_plain && !client.is_later && !is_later;
        client.is_owed |= !is_plain;
        client.shows = client.shows.max(shows);
        client.shows_turn |= shows_turn;
        client.is_later |= is_later;
        if is_first {
            self.active.push(fd);
        }
    }

    /// The server has changed this key.
    pub fn changed(&mut self, key: &[u8]) {
        let key = self.hash(key);
        self.written.insert(key);
        self.shows(0, true, false, false);
    }

    /// A turn ends: with this ticket, if something was written to replicas in it. All up to `decided` is.
    pub fn end_turn(&mut self, ticket: Option<u64>, decided: u64) {
        if self.last <= decided {
            self.dirty.clear();
        } else if self.dirty.len() > self.look_at {
            self.dirty.retain(|_, last| *last > decided);
            self.look_at = (2 * self.dirty.len()).max(DIRTY_MIN);
        }
        if let Some(ticket) = ticket {
            self.last = ticket;
            if self.is_other_written || self.is_careful || self.written.is_empty() {
                self.all = ticket;
            }
            self.dirty.extend(self.written.drain().map(|key| (key, ticket)));
        } else if self.written.len() > DIRTY_MIN {
            self.written.clear();
            self.is_other_written = true;
        }
        // What a command writes is told to replicas when it has ended.
        let is_nested = std::mem::take(&mut self.is_nested);
        if ticket.is_some() || is_nested {
            self.is_other_written = is_nested;
        }
        for fd in std::mem::take(&mut self.active) {
            let last = self.last;
            let client = &mut self.clients[fd];
            let shows_turn = if client.shows_turn { ticket.unwrap_or(0) } else { 0 };
            let shows_all = if client.is_later { last } else { 0 };
            client.waits = client.waits.max(client.shows).max(shows_turn).max(shows_all);
        }
        self.turn += 1;
        self.current = None;
    }

    /// Behind the turn's end: the ticket for which waits what was written to this client in it.
    #[must_use]
    pub fn waits(&mut self, fd: i32) -> u64 {
        let Ok(fd) = usize::try_from(fd) else { return self.last };
        let (last, turn, is_careful) = (self.last, self.turn, self.is_careful);
        let client = self.client(fd);
        if client.turn + 1 != turn || is_careful {
            client.waits = client.waits.max(last);
        }
        client.is_owed = false;
        client.waits
    }

    /// Behind the turn's end: whether what was written to this client in it shows nothing of the data, and nothing else was before that waits still.
    #[must_use]
    pub fn is_plain(&mut self, fd: i32, decided: u64) -> bool {
        let (turn, is_careful) = (self.turn, self.is_careful);
        let Ok(fd) = usize::try_from(fd) else { return false };
        let client = self.client(fd);
        client.turn + 1 == turn && client.is_plain && !client.is_owed && client.waits <= decided && !is_careful
    }

    /// What was written to this client waits for that ticket at least, and so does what follows.
    pub fn must_wait(&mut self, fd: i32, ticket: u64) {
        if let Ok(fd) = usize::try_from(fd) {
            let client = self.client(fd);
            client.waits = client.waits.max(ticket);
            client.is_owed = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ONE: Keys = Keys { first: 1, last: 1, step: 1 };
    const GET: Access = Access::Reads(ONE);
    const SET: Access = Access::Writes(ONE);

    fn begun() -> Reads {
        let mut reads = Reads::default();
        reads.begin(true);
        assert!(reads.is_other_written, "what was written before is not known");
        reads.is_other_written = false;
        reads
    }

    fn run(reads: &mut Reads, fd: i32, access: Access, words: &[&str]) {
        reads.reads_from(fd);
        reads.executes(access, words.len(), |at| words[at].as_bytes());
    }

    #[test]
    fn whose_transaction_was_refused_in_part_is_known() {
        let mut reads = Reads::default();
        reads.reads_from(5);
        reads.refuses();
        reads.queues(true);
        reads.reads_from(6);
        reads.queues(true);
        reads.refuses();
        reads.reads_from(7);
        reads.queues(true);
        reads.refuses();
        reads.queues(false);
        assert_eq!(reads.half_refused(), Some(vec![6]));
        assert_eq!(reads.half_refused(), Some(vec![]), "it is told once");
        reads.be_careful();
        reads.refuses();
        assert_eq!(reads.half_refused(), None, "any client may be one");
    }

    #[test]
    fn a_reply_waits_for_the_writes_that_it_shows() {
        let mut reads = begun();
        run(&mut reads, 5, SET, &["set", "a", "1"]);
        run(&mut reads, 6, GET, &["get", "b"]);
        run(&mut reads, 7, GET, &["get", "a"]);
        reads.end_turn(Some(1), 0);
        assert_eq!([5, 6, 7, 8].map(|fd| reads.waits(fd)), [1, 0, 1, 1], "nothing was executed for the last one");
        run(&mut reads, 6, GET, &["get", "a"]);
        run(&mut reads, 7, GET, &["get", "b"]);
        run(&mut reads, 9, GET, &["get", "b"]);
        reads.end_turn(None, 0);
        assert_eq!([6, 7, 9].map(|fd| reads.waits(fd)), [1, 1, 0], "replies to one client stay in their order");
        run(&mut reads, 6, GET, &["get", "a"]);
        reads.end_turn(Some(2), 1);
        assert_eq!(reads.waits(6), 1, "it is decided");
        run(&mut reads, 9, GET, &["get", "z"]);
        reads.end_turn(None, 1);
        assert_eq!(reads.waits(9), 2, "the turn before wrote something that no command names");
    }

    #[test]
    fn what_is_not_known_waits_for_everything() {
        let mut reads = begun();
        run(&mut reads, 5, SET, &["set", "a", "1"]);
        reads.end_turn(Some(1), 0);
        run(&mut reads, 6, Access::Other, &["eval", "..."]);
        run(&mut reads, 7, GET, &["get", "b"]);
        reads.end_turn(None, 0);
        assert_eq!([6, 7].map(|fd| reads.waits(fd)), [1, 0], "it wrote nothing");
        run(&mut reads, 6, Access::Other, &["eval", "..."]);
        run(&mut reads, 7, GET, &["get", "b"]);
        reads.end_turn(Some(2), 0);
        assert_eq!([6, 7].map(|fd| reads.waits(fd)), [2, 2]);
        // A client that is answered later, from what another one does: even if something else is executed for it in that turn.
        let mut reads = begun();
        run(&mut reads, 6, Access::Later, &["blpop", "q", "0"]);
        reads.end_turn(None, 0);
        run(&mut reads, 5, SET, &["rpush", "q", "1"]);
        run(&mut reads, 6, GET, &["get", "b"]);
        reads.end_turn(Some(1), 0);
        assert_eq!(reads.waits(6), 1);
        reads.accepted(6);
        run(&mut reads, 6, GET, &["get", "b"]);
        run(&mut reads, 7, Access::Client, &["client", "SETINFO", "lib-name", "x"]);
        run(&mut reads, 8, Access::Client, &["client", "tracking", "on"]);
        reads.end_turn(None, 0);
        assert_eq!(reads.waits(6), 1, "another client of that number, of which BLPOP's turn may have written the key");
        run(&mut reads, 7, GET, &["get", "b"]);
        run(&mut reads, 8, GET, &["get", "b"]);
        run(&mut reads, 5, SET, &["set", "c", "1"]);
        reads.end_turn(Some(2), 1);
        assert_eq!([7, 8].map(|fd| reads.waits(fd)), [2, 2]);
    }

    #[test]
    fn what_is_done_for_nobody_known_makes_all_wait() {
        // A script within which the server looks at its clients: what it wrote is told behind its end.
        let mut reads = begun();
        run(&mut reads, 5, SET, &["set", "b", "1"]);
        run(&mut reads, 6, Access::Other, &["eval"]);
        reads.changed(b"a");
        reads.is_within_a_command();
        reads.end_turn(Some(1), 0);
        reads.changed(b"c");
        reads.end_turn(Some(2), 1);
        run(&mut reads, 7, GET, &["get", "a"]);
        reads.end_turn(None, 1);
        assert_eq!(reads.waits(7), 2);
        // Commands that are put off are executed later, and nobody says for whom.
        let mut reads = begun();
        run(&mut reads, 5, SET, &["set", "b", "1"]);
        run(&mut reads, 6, Access::Client, &["client", "pause", "100", "write"]);
        reads.end_turn(Some(1), 0);
        run(&mut reads, 7, GET, &["get", "a"]);
        run(&mut reads, 8, Access::Nothing, &["ping"]);
        reads.end_turn(None, 0);
        assert_eq!([7, 8].map(|fd| reads.waits(fd)), [1, 1]);
        assert!(!reads.is_plain(8, 0));
        // A client that asked for messages before this server led.
        let mut reads = Reads::default();
        reads.reads_from(5);
        reads.follows(Access::Later, 2, |at| [&b"subscribe"[..], b"c"][at]);
        reads.reads_from(6);
        reads.follows(Access::Client, 2, |at| [&b"client"[..], b"id"][at]);
        reads.begin(true);
        run(&mut reads, 5, Access::Nothing, &["ping"]);
        run(&mut reads, 6, Access::Nothing, &["ping"]);
        reads.end_turn(Some(1), 0);
        assert_eq!([5, 6].map(|fd| reads.waits(fd)), [1, 0]);
    }

    #[test]
    fn what_shows_nothing_of_the_data_is_plain() {
        let mut reads = Reads::default();
        reads.begin(false);
        run(&mut reads, 5, Access::Nothing, &["info"]);
        run(&mut reads, 6, Access::Nothing, &["info"]);
        run(&mut reads, 6, GET, &["get", "a"]);
        run(&mut reads, 7, Access::Client, &["client", "list"]);
        reads.end_turn(None, 0);
        assert_eq!([5, 6, 7, 8].map(|fd| reads.is_plain(fd, 0)), [true, false, true, false]);
        reads.must_wait(6, 1);
        run(&mut reads, 6, Access::Nothing, &["ping"]);
        run(&mut reads, 8, Access::Later, &["subscribe", "c"]);
        reads.end_turn(None, 0);
        assert_eq!([5, 6, 8].map(|fd| reads.is_plain(fd, 0)), [false; 3], "nothing was executed; the order of replies; messages");
        run(&mut reads, 6, Access::Nothing, &["ping"]);
        run(&mut reads, 8, Access::Nothing, &["ping"]);
        reads.end_turn(None, 1);
        assert_eq!([6, 8].map(|fd| reads.is_plain(fd, 1)), [true, false]);
        // Its socket took nothing in the turn in which it was shown data.
        run(&mut reads, 6, GET, &["get", "a"]);
        reads.end_turn(None, 1);
        run(&mut reads, 6, Access::Nothing, &["ping"]);
        reads.end_turn(None, 1);
        assert!(!reads.is_plain(6, 1));
    }

    #[test]
    fn keys_that_the_server_changes_by_itself_are_known() {
        let mut reads = begun();
        reads.reads_from(5);
        reads.changed(b"a"); // it had expired
        reads.executes(GET, 2, |at| [&b"get"[..], b"a"][at]);
        run(&mut reads, 6, GET, &["get", "b"]);
        reads.end_turn(Some(1), 0);
        assert_eq!([5, 6].map(|fd| reads.waits(fd)), [1, 0]);
    }

    #[test]
    fn keys_are_where_the_server_says() {
        let places = |first, last, step, count| Keys { first, last, step }.places(count).collect::<Vec<_>>();
        assert_eq!(places(1, 1, 1, 3), [1], "SET");
        assert_eq!(places(1, -1, 1, 4), [1, 2, 3], "DEL");
        assert_eq!(places(1, -1, 2, 5), [1, 3], "MSET");
        assert_eq!(places(1, -2, 1, 4), [1, 2], "BLPOP");
        assert_eq!(places(2, -1, 1, 5), [2, 3, 4], "BITOP");
        assert_eq!(places(1, 1, 1, 1), [0usize; 0], "a command that lacks its key");
    }

    proptest! {
        /// Beside a model that keeps everything: a reply never leaves before what it shows is decided.
        #[test]
        fn no_reply_shows_what_is_not_decided(steps in prop::collection::vec((0..6u8, 4..8i32, 0..4u8), 1..200)) {
            let mut reads = begun();
            let (mut ticket, mut decided) = (0u64, 0u64);
            // Of each key, the ticket of its last write; this turn's are not known yet.
            let mut keys: [u64; 4] = [0; 4];
            let mut shown: HashMap<i32, u64> = HashMap::new();
            let (mut grew, mut of_turn, mut told): (bool, Vec<(i32, bool, u64)>, HashSet<i32>) = (false, vec![], HashSet::new());
            let mut turn_keys: HashSet<usize> = HashSet::new();
            for (what, fd, key) in steps {
                let at = usize::from(key);
                let name = key.to_string();
                match what {
                    0 | 1 => {
                        run(&mut reads, fd, GET, &["get", &name]);
                        of_turn.push((fd, turn_keys.contains(&at), keys[at]));
                        told.insert(fd);
                    }
                    2 => {
                        run(&mut reads, fd, SET, &["set", &name, "v"]);
                        of_turn.push((fd, true, keys[at]));
                        turn_keys.insert(at);
                        told.insert(fd);
                        grew = true;
                    }
                    3 => {
                        // Writes all keys.
                        run(&mut reads, fd, Access::Other, &["eval"]);
                        of_turn.push((fd, true, *keys.iter().max().unwrap()));
                        turn_keys.extend(0..4);
                        told.insert(fd);
                        grew = true;
                    }
                    4 => decided = decided.max(u64::from(key).min(ticket)),
                    _ => {
                        let new = grew.then_some(ticket + 1);
                        ticket = new.unwrap_or(ticket);
                        reads.end_turn(new, decided);
                        for (fd, of_this, before) in of_turn.drain(..) {
                            let shows = before.max(if of_this { new.unwrap_or(0) } else { 0 });
                            let entry = shown.entry(fd).or_default();
                            *entry = (*entry).max(shows);
                        }
                        for at in turn_keys.drain() {
                            keys[at] = ticket;
                        }
                        for fd in told.drain() {
                            let waits = reads.waits(fd);
                            prop_assert!(waits >= shown[&fd] || shown[&fd] <= decided, "{fd}: {waits} of {}", shown[&fd]);
                            prop_assert!(waits <= ticket);
                        }
                        grew = false;
                    }
                }
            }
        }
    }
}
