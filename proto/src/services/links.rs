//! Reliable links: messages from one node's life to another's arrive once, in order, as long as both live.
//!
//! ```text
//! send ─► stream ─► segments, numbered from 1 ─► a frame, on one path or all ─► poll_message
//!                        ▲                                      │
//!                        └── "received through" in each segment ◄┘
//! ```
//! A segment carries a piece of the stream of messages, each behind its length (`u32`). Copies of a
//! frame have one number. What is lost is sent again after [`Config::resend_ns`], which doubles up to
//! [`RESEND_DOUBLINGS`] times. Acknowledgements ride on segments of the other direction, and leave
//! alone after [`Config::ack_wait_ns`].
//!
//! A message for several nodes ([`Links::send_to_all`]) is cut once: its segments are frames to everybody, each with the head of every link before the one
//! piece. Each link counts them as its own, and what one of the nodes misses is sent again to it alone. Nodes that are not meant get these frames, too,
//! so that they are used only for at least half of all nodes.
//!
//! # Bounds
//! [`WINDOW`] segments are in flight, [`STREAM_MAX`] bytes wait; more is refused, and the caller gives the link up. What arrives early is
//! kept within the window. A message has at most [`MESSAGE_MAX`] bytes.

use fide_wire::frame::bytes::Reader;
use fide_wire::frame::{BODY_AT, FRAME_SAFE};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Bytes of a segment before its own: the receiver's node and incarnation, number, received
/// through. Agents that were started together have one incarnation, and a switch may hand a unicast
/// frame to everybody.
pub const HEAD_LEN: usize = 16;
/// Bytes of a segment for several before its piece: zero where others name a node, how many heads;
/// each head as [`HEAD_LEN`].
pub const SHARED_HEAD_LEN: usize = 8;
/// Bytes of one of these heads.
pub const SHARED_ONE_LEN: usize = HEAD_LEN;
/// Most nodes that share segments.
pub const SHARED_MAX: usize = 16;
/// Most bytes of one segment's piece.
pub const PIECE_MAX: usize = FRAME_SAFE - BODY_AT - HEAD_LEN;
/// Segments in flight on one link.
pub const WINDOW: u32 = 256;
/// Most bytes that wait on one link.
pub const STREAM_MAX: usize = 16 << 20;
/// The largest message.
pub const MESSAGE_MAX: usize = 8 << 20;
/// How often the time to send again is doubled.
pub const RESEND_DOUBLINGS: u32 = 5;
/// So many of the segments in flight are sent again before they are acknowledged.
const RESENT_AT_ONCE: usize = 16;
/// Segments on the wire are numbered from 1 to this, and from 1 again: 2³² are sent within a day on a busy link. 0 is none.
const NUMBERS: u64 = u32::MAX as u64;
/// Received segments that are acknowledged at once, whatever the wait.
const ACK_AT: u32 = WINDOW / 4;

/// Settings, the same for all links of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// A segment that is not acknowledged after so long is sent again (ns).
    pub resend_ns: u64,
    /// What was received is acknowledged after so long, if nothing carries that before (ns).
    pub ack_wait_ns: u64,
}

/// Why a message or a segment was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refused {
    /// No life of this node is known.
    Unknown,
    /// More than [`STREAM_MAX`] would wait, or a message exceeds [`MESSAGE_MAX`].
    TooMuch,
    /// For another life of this node, or from another one of that node.
    OldLife,
    /// Cut short, outside the window, or a message longer than any.
    Malformed,
    /// The link is closed: that life of the node sent what no link sends, and what came behind that makes no sense.
    Closed,
}

struct Sent {
    number: u64,
    piece: Arc<[u8]>,
    /// `u64::MAX` before it left.
    sent_ns: u64,
}

/// A segment for several.
struct Shared {
    /// Node, and the link's number of it.
    to: Vec<(u32, u64)>,
    piece: Arc<[u8]>,
    is_one_of_many: bool,
}

/// What [`Links::poll_segment`] wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// For this node.
    To {
        /// Which.
        node: u32,
        /// It left before, and was not acknowledged in time: by whichever path it can go.
        is_again: bool,
    },
    /// For several, in one frame to everybody.
    Shared {
        /// Others of the same message leave with it: a copy on one path each would do, as long as nothing is lost.
        is_one_of_many: bool,
    },
}

/// One direction's ends of a link with one life of one node.
struct Link {
    incarnation: u32,
    /// Bytes that no segment has yet.
    stream: VecDeque<u8>,
    in_flight: VecDeque<Sent>,
    in_flight_bytes: usize,
    last_number: u64,
    doublings: u32,
    /// Every segment through this one came.
    through: u64,
    /// What came before its turn.
    early: BTreeMap<u64, Vec<u8>>,
    /// The begin of a message whose end has not come.
    partial: Vec<u8>,
    /// Since when something is to be acknowledged, and how many segments.
    ack_since_ns: Option<u64>,
    unacked: u32,
    /// Nothing is taken from it any more: see [`Refused::Closed`].
    is_closed: bool,
}

impl Link {
    fn new(incarnation: u32) -> Self {
        Self {
            incarnation,
            stream: VecDeque::new(),
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            last_number: 0,
            doublings: 0,
            through: 0,
            early: BTreeMap::new(),
            partial: Vec::new(),
            ack_since_ns: None,
            unacked: 0,
            is_closed: false,
        }
    }

    fn resend_wait_ns(&self, config: &Config) -> u64 {
        config.resend_ns.saturating_mul(1 << self.doublings)
    }

    fn resend_at_ns(&self, config: &Config) -> Option<u64> {
        let oldest = self.in_flight.iter().take(RESENT_AT_ONCE).map(|sent| sent.sent_ns).min()?;
        Some(oldest.saturating_add(self.resend_wait_ns(config)))
    }

    /// The place of the first segment that is to be sent again now.
    fn overdue(&self, config: &Config, now_ns: u64) -> Option<usize> {
        let wait_ns = self.resend_wait_ns(config);
        let late = |sent: &Sent| sent.sent_ns.saturating_add(wait_ns) <= now_ns;
        self.in_flight.iter().take(RESENT_AT_ONCE).position(late)
    }

    fn ack_at_ns(&self, config: &Config) -> Option<u64> {
        let wait_ns = if self.unacked >= ACK_AT { 0 } else { config.ack_wait_ns };
        self.ack_since_ns.map(|since_ns| since_ns.saturating_add(wait_ns))
    }

    /// Which segment of this end has this number on the wire: one of those that were sent last.
    fn sent_as(&self, on_wire: u32) -> Result<u64, Refused> {
        if on_wire == 0 {
            return Ok(0);
        }
        let before = (self.last_number + NUMBERS - u64::from(on_wire)) % NUMBERS;
        let number = self.last_number.checked_sub(before).filter(|number| *number > 0 && before < NUMBERS / 2);
        number.ok_or(Refused::Malformed)
    }

    /// Which segment of the other end has this number on the wire: the nearest to the one that is due.
    fn came_as(&self, on_wire: u32) -> Result<u64, Refused> {
        let due = self.through + 1;
        let ahead = (u64::from(on_wire) + NUMBERS - due % NUMBERS) % NUMBERS;
        if ahead < NUMBERS / 2 {
            return Ok(due + ahead);
        }
        (due + ahead).checked_sub(NUMBERS).filter(|number| *number > 0).ok_or(Refused::Malformed)
    }

    fn may_send(&self) -> bool {
        !self.stream.is_empty() && (self.in_flight.len() as u32) < WINDOW
    }

    fn acknowledged(&mut self, through: u64) {
        let before = self.in_flight.len();
        while self.in_flight.front().is_some_and(|sent| sent.number <= through) {
            self.in_flight_bytes -= self.in_flight.pop_front().map_or(0, |sent| sent.piece.len());
        }
        if self.in_flight.len() < before {
            self.doublings = 0;
        }
    }

    /// Takes the pieces that are next into `partial`, and whole messages out of it.
    fn take(&mut self, piece: &[u8], messages: &mut VecDeque<Vec<u8>>) -> Result<(), Refused> {
        self.partial.extend_from_slice(piece);
        let mut at = 0;
        while let Some(head) = self.partial.get(at..at + 4) {
            let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
            if length > MESSAGE_MAX {
                return Err(Refused::Malformed);
            }
            let Some(message) = self.partial.get(at + 4..at + 4 + length) else { break };
            messages.push_back(message.to_vec());
            at += 4 + length;
        }
        self.partial.drain(..at);
        Ok(())
    }
}

/// All links of one node.
pub struct Links {
    config: Config,
    node: u32,
    incarnation: u32,
    links: BTreeMap<u32, Link>,
    /// What waits to leave for several.
    shared: VecDeque<Shared>,
    /// Whole messages that came, and from whom.
    messages: VecDeque<(u32, Vec<u8>)>,
    /// The node behind which [`Links::poll_segment`] goes on.
    turn: u32,
    resent: u64,
}

impl Links {
    /// No other node is known.
    #[must_use]
    pub fn new(config: Config, node: u32, incarnation: u32) -> Self {
        Self {
            config,
            node,
            incarnation,
            links: BTreeMap::new(),
            shared: VecDeque::new(),
            messages: VecDeque::new(),
            turn: 0,
            resent: 0,
        }
    }

    /// This node begins a new life: nothing of the former one is sent or taken any more.
    pub fn begin_incarnation(&mut self, incarnation: u32) {
        self.incarnation = incarnation;
        let lives: Vec<_> = self.links.iter().map(|(node, link)| (*node, link.incarnation)).collect();
        self.links = lives.into_iter().map(|(node, life)| (node, Link::new(life))).collect();
        self.shared.clear();
        self.messages.clear();
    }

    /// A life of another node: what was for its former one is dropped.
    pub fn handle_life(&mut self, node: u32, incarnation: u32) {
        if self.links.get(&node).is_none_or(|link| link.incarnation < incarnation) {
            self.links.insert(node, Link::new(incarnation));
            self.messages.retain(|(from, _)| *from != node);
        }
    }

    /// That node is gone: nothing waits for it any more.
    pub fn forget(&mut self, node: u32) {
        self.links.remove(&node);
    }

    /// Takes nothing from this life of a node any more, not even what has come: a message of it made no sense.
    pub fn close(&mut self, node: u32) {
        self.messages.retain(|(from, _)| *from != node);
        self.close_behind(node);
    }

    /// The same; what has come before that is taken.
    fn close_behind(&mut self, node: u32) {
        if let Some(link) = self.links.get_mut(&node) {
            link.is_closed = true;
            (link.early, link.partial) = (BTreeMap::new(), Vec::new());
        }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`Refused::Unknown`], [`Refused::TooMuch`]: the link is of no use any more to one who needs every message.
    pub fn send(&mut self, node: u32, message: &[u8]) -> Result<(), Refused> {
        let link = self.links.get_mut(&node).ok_or(Refused::Unknown)?;
        let waits = link.stream.len() + link.in_flight_bytes;
        if message.len() > MESSAGE_MAX || waits + message.len() + 4 > STREAM_MAX {
            return Err(Refused::TooMuch);
        }
        link.stream.extend((message.len() as u32).to_be_bytes());
        link.stream.extend(message);
        Ok(())
    }

    /// Sends a message to several nodes, each named once: once for all of them, if all that went before has left.
    ///
    /// # Errors
    /// As [`Links::send`], if a link did not take it; others may have.
    pub fn send_to_all(&mut self, nodes: &[u32], message: &[u8]) -> Result<(), Refused> {
        let piece_max = FRAME_SAFE - BODY_AT - SHARED_HEAD_LEN - nodes.len().min(SHARED_MAX) * SHARED_ONE_LEN;
        let pieces = (4 + message.len()).div_ceil(piece_max);
        let is_free = |node: &u32| {
            self.links.get(node).is_some_and(|link| {
                link.stream.is_empty()
                    && link.in_flight.len() + pieces <= WINDOW as usize
                    && link.in_flight_bytes + 4 + message.len() <= STREAM_MAX
            })
        };
        // A node that were named twice would get each piece twice, and could put nothing together.
        debug_assert!(nodes.iter().collect::<BTreeSet<_>>().len() == nodes.len(), "each node once");
        let are_most = nodes.len() > 1 && 2 * nodes.len() >= self.links.len();
        if !are_most || nodes.len() > SHARED_MAX || message.len() > MESSAGE_MAX || !nodes.iter().all(is_free) {
            return nodes.iter().map(|node| self.send(*node, message)).fold(Ok(()), Result::and);
        }
        let mut bytes = (message.len() as u32).to_be_bytes().to_vec();
        bytes.extend_from_slice(message);
        for piece in bytes.chunks(piece_max) {
            let piece: Arc<[u8]> = piece.into();
            let mut to = Vec::with_capacity(nodes.len());
            for node in nodes {
                let Some(link) = self.links.get_mut(node) else { continue };
                link.last_number += 1;
                link.in_flight_bytes += piece.len();
                link.in_flight.push_back(Sent { number: link.last_number, piece: piece.clone(), sent_ns: u64::MAX });
                to.push((*node, link.last_number));
            }
            self.shared.push_back(Shared { to, piece, is_one_of_many: pieces > 1 });
        }
        Ok(())
    }

    /// A segment of `from`, in its life `incarnation`.
    ///
    /// # Errors
    /// See [`Refused`]; nothing is changed then, but that a message longer than any closes the link.
    pub fn handle_segment(&mut self, now_ns: u64, from: u32, incarnation: u32, body: &[u8]) -> Result<(), Refused> {
        let mut r = Reader::new(body);
        let to = r.u32().ok_or(Refused::Malformed)?;
        let head = match to {
            0 => self.own_head(&mut r)?,
            node if node == self.node => (|| Some((r.u32()?, r.u32()?, r.u32()?)))(),
            _ => return Ok(()), // for another node
        };
        let (to, number, through) = match head {
            Some(head) => head,
            None if to == 0 => return Ok(()), // for others
            None => return Err(Refused::Malformed),
        };
        let piece = r.rest();
        let link = self.links.get_mut(&from).ok_or(Refused::Unknown)?;
        if link.incarnation != incarnation || to != self.incarnation {
            return Err(Refused::OldLife);
        }
        if link.is_closed {
            return Err(Refused::Closed);
        }
        if (number == 0) != piece.is_empty() || piece.len() > PIECE_MAX {
            return Err(Refused::Malformed);
        }
        let through = link.sent_as(through)?;
        link.acknowledged(through);
        if number == 0 {
            return Ok(());
        }
        let number = link.came_as(number)?;
        link.ack_since_ns.get_or_insert(now_ns);
        link.unacked += 1;
        if number <= link.through {
            return Ok(()); // sent again, because our acknowledgement was late
        }
        if number > link.through + u64::from(WINDOW) {
            return Err(Refused::Malformed);
        }
        if number != link.through + 1 {
            link.early.entry(number).or_insert_with(|| piece.to_vec());
            return Ok(());
        }
        let mut whole = VecDeque::new();
        let mut taken = link.take(piece, &mut whole);
        link.through += 1;
        while taken.is_ok()
            && let Some(next) = link.early.remove(&(link.through + 1))
        {
            taken = link.take(&next, &mut whole);
            link.through += 1;
        }
        self.messages.extend(whole.into_iter().map(|message| (from, message)));
        taken.map_err(|_| {
            self.close_behind(from);
            Refused::Closed
        })
    }

    /// This node's head of a segment for several: incarnation, number, received through.
    fn own_head(&self, r: &mut Reader<'_>) -> Result<Option<(u32, u32, u32)>, Refused> {
        let count = r.u32().filter(|count| *count as usize <= SHARED_MAX).ok_or(Refused::Malformed)?;
        let mut own = None;
        for _ in 0..count {
            let head = (|| Some((r.u32()?, (r.u32()?, r.u32()?, r.u32()?))))();
            let (node, head) = head.ok_or(Refused::Malformed)?;
            own = own.or((node == self.node).then_some(head));
        }
        Ok(own)
    }

    /// The next message that came, and from whom.
    pub fn poll_message(&mut self) -> Option<(u32, Vec<u8>)> {
        self.messages.pop_front()
    }

    /// The next segment to be sent, and to whom. Written into `body`.
    pub fn poll_segment(&mut self, now_ns: u64, body: &mut Vec<u8>) -> Option<Segment> {
        while let Some(shared) = self.shared.pop_front() {
            if self.write_shared(now_ns, &shared, body) {
                return Some(Segment::Shared { is_one_of_many: shared.is_one_of_many });
            }
        }
        let config = self.config;
        let wants = |link: &Link| {
            link.may_send()
                || link.resend_at_ns(&config).is_some_and(|at_ns| at_ns <= now_ns)
                || link.ack_at_ns(&config).is_some_and(|at_ns| at_ns <= now_ns)
        };
        let in_turn = self.links.range(self.turn.saturating_add(1)..).chain(self.links.range(..=self.turn));
        let node = in_turn.into_iter().find(|(_, link)| wants(link)).map(|(node, _)| *node)?;
        self.turn = node;
        let link = self.links.get_mut(&node)?;
        let overdue = link.overdue(&config, now_ns);
        if let Some(at) = overdue {
            // The first one that is missing frees all others behind it.
            link.doublings = if at == 0 { (link.doublings + 1).min(RESEND_DOUBLINGS) } else { link.doublings };
            let (to, through) = ((node, link.incarnation), link.through);
            let sent = &mut link.in_flight[at];
            sent.sent_ns = now_ns;
            write_segment(body, to, sent.number, through, &sent.piece);
            self.resent += 1;
        } else if link.may_send() {
            let length = link.stream.len().min(PIECE_MAX);
            let piece: Arc<[u8]> = link.stream.drain(..length).collect();
            link.last_number += 1;
            link.in_flight_bytes += piece.len();
            write_segment(body, (node, link.incarnation), link.last_number, link.through, &piece);
            link.in_flight.push_back(Sent { number: link.last_number, piece, sent_ns: now_ns });
        } else {
            write_segment(body, (node, link.incarnation), 0, link.through, &[]);
        }
        (link.ack_since_ns, link.unacked) = (None, 0);
        Some(Segment::To { node, is_again: overdue.is_some() })
    }

    /// `false`: nobody needs it any more.
    fn write_shared(&mut self, now_ns: u64, shared: &Shared, body: &mut Vec<u8>) -> bool {
        let mut count = 0u32;
        body.clear();
        body.extend_from_slice(&[0; SHARED_HEAD_LEN]);
        for (node, number) in &shared.to {
            let Some(link) = self.links.get_mut(node) else { continue };
            // Another life of that node counts anew.
            let is_it = |sent: &&mut Sent| sent.number == *number && Arc::ptr_eq(&sent.piece, &shared.piece);
            let Some(sent) = link.in_flight.iter_mut().rev().find(is_it) else { continue };
            sent.sent_ns = now_ns;
            for field in [*node, link.incarnation, on_wire(*number), on_wire(link.through)] {
                body.extend_from_slice(&field.to_be_bytes());
            }
            (link.ack_since_ns, link.unacked) = (None, 0);
            count += 1;
        }
        body[4..8].copy_from_slice(&count.to_be_bytes());
        body.extend_from_slice(&shared.piece);
        count > 0
    }

    /// When [`Links::poll_segment`] has something, if not now.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let due = |link: &Link| {
            let now = link.may_send().then_some(0);
            now.into_iter().chain(link.resend_at_ns(&self.config)).chain(link.ack_at_ns(&self.config)).min()
        };
        let shared = (!self.shared.is_empty()).then_some(0);
        shared.into_iter().chain(self.links.values().filter_map(due)).min()
    }

    /// Bytes that wait for this node or are not acknowledged by it.
    #[must_use]
    pub fn waiting(&self, node: u32) -> usize {
        self.links.get(&node).map_or(0, |link| link.stream.len() + link.in_flight_bytes)
    }

    /// The life of that node that messages go to.
    #[must_use]
    pub fn life(&self, node: u32) -> Option<u32> {
        self.links.get(&node).map(|link| link.incarnation)
    }

    /// How many segments were sent again.
    #[must_use]
    pub fn resent(&self) -> u64 {
        self.resent
    }
}

/// The number of a segment as it is sent.
const fn on_wire(number: u64) -> u32 {
    if number == 0 { 0 } else { ((number - 1) % NUMBERS + 1) as u32 }
}

fn write_segment(body: &mut Vec<u8>, (node, incarnation): (u32, u32), number: u64, through: u64, piece: &[u8]) {
    body.clear();
    for field in [node, incarnation, on_wire(number), on_wire(through)] {
        body.extend_from_slice(&field.to_be_bytes());
    }
    body.extend_from_slice(piece);
}

#[cfg(test)]
mod tests;
