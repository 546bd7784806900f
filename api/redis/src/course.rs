//! What the entries of a group say of its servers: who leads, and which bytes of the replication stream are decided. All servers make the same of the same
//! entries: pure.
//!
//! ```text
//! lead    u8 1  u64 term                            u16 length, host  text address
//! stream  u8 2  u64 term  u64 start  u64 ticket     bytes
//! resign  u8 3  u64 term
//! anew    u8 4  as stream
//! ```
//! Numbers are little-endian. An entry counts if its term is the one at its own place in the log: what a former leader has proposed and was decided behind
//! its successor's entry is void to all, also to itself. A term has one leader, because `lead` counts for the next term only, once.
//!
//! Whoever may propose to the group can propose any bytes. What no server proposes is void to all
//! alike: names and addresses are looked at here, by the same rule everywhere, because servers show
//! them to clients and connect to them.

use fide_client::wire::names;

/// No group comes so far: a snapshot of more is none.
const TERM_MAX: u64 = 1 << 62;
/// The longest address, bytes.
const ADDRESS_MAX: usize = 260;

/// Whether servers can be reached so: `HOST:PORT`, an IPv6 address with or without brackets.
#[must_use]
pub fn is_address(address: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]%".contains(&byte);
    address.len() <= ADDRESS_MAX
        && address.bytes().all(is_plain)
        && address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// What a server proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proposal<'a> {
    /// To lead from now on.
    Lead {
        /// The term that begins.
        term: u64,
        /// The server's host, as its agent calls it.
        host: &'a str,
        /// Where other servers reach it: `ADDRESS:PORT`.
        address: &'a str,
    },
    /// The next bytes of the leader's replication stream.
    Stream {
        /// The leader's term.
        term: u64,
        /// The leader's data are not what was decided before, but others', whatever their numbers say.
        anew: bool,
        /// The stream's bytes before these.
        start: u64,
        /// Turns up to this one had ended when this was proposed.
        ticket: u64,
        /// As the server wrote them to its replicas.
        bytes: &'a [u8],
    },
    /// To lead no more.
    Resign {
        /// The leader's term.
        term: u64,
    },
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, tail) = bytes.split_at_checked(len)?;
    *bytes = tail;
    Some(head)
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes, 8).map(|eight| u64::from_le_bytes(eight.try_into().expect("eight bytes")))
}

impl<'a> Proposal<'a> {
    /// Reads it; nothing for what no server of this version proposes.
    #[must_use]
    pub fn read(mut bytes: &'a [u8]) -> Option<Self> {
        let kind = take(&mut bytes, 1)?[0];
        let term = number(&mut bytes)?;
        match kind {
            1 => {
                let len = take(&mut bytes, 2)?;
                let host = take(&mut bytes, usize::from(u16::from_le_bytes([len[0], len[1]])))?;
                let (host, address) = (std::str::from_utf8(host).ok()?, std::str::from_utf8(bytes).ok()?);
                Some(Self::Lead { term, host, address })
            }
            2 | 4 => {
                let (start, ticket) = (number(&mut bytes)?, number(&mut bytes)?);
                Some(Self::Stream { term, anew: kind == 4, start, ticket, bytes })
            }
            3 => bytes.is_empty().then_some(Self::Resign { term }),
            _ => None,
        }
    }

    /// Writes it into `out`, whatever was in there.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.clear();
        match *self {
            Self::Lead { term, host, address } => {
                let host = &host[..host.floor_char_boundary_at(usize::from(u16::MAX))];
                out.push(1);
                out.extend_from_slice(&term.to_le_bytes());
                out.extend_from_slice(&(host.len() as u16).to_le_bytes());
                out.extend_from_slice(host.as_bytes());
                out.extend_from_slice(address.as_bytes());
            }
            Self::Stream { term, anew, start, ticket, bytes } => {
                out.push(if anew { 4 } else { 2 });
                [term, start, ticket].iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
                out.extend_from_slice(bytes);
            }
            Self::Resign { term } => {
                out.push(3);
                out.extend_from_slice(&term.to_le_bytes());
            }
        }
    }
}

trait Cut {
    fn floor_char_boundary_at(&self, len: usize) -> usize;
}

impl Cut for str {
    fn floor_char_boundary_at(&self, len: usize) -> usize {
        (0..=len.min(self.len())).rev().find(|at| self.is_char_boundary(*at)).unwrap_or(0)
    }
}

/// A server that leads, or led.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Its client of the group: one life of a server.
    pub client: u64,
    /// The group's member through which it began to lead.
    pub member: u16,
    /// Its host.
    pub host: String,
    /// `ADDRESS:PORT`.
    pub address: String,
}

/// What an entry means to a server.
#[derive(Debug, PartialEq, Eq)]
pub enum Meaning<'a> {
    /// Nothing: no server of this version proposes it.
    Malformed,
    /// Nothing: it was proposed by a server that did not lead any more, or that others preceded.
    Void,
    /// [`Course::leader`] leads now.
    Leads,
    /// The leader leads no more.
    Resigned,
    /// These bytes of the leader's stream are decided.
    Decided {
        /// The stream's bytes before them.
        start: u64,
        /// They follow what was decided before.
        follows: bool,
        /// Turns that are confirmed.
        ticket: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
}

/// Where the servers of a group are, as far as its entries were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Course {
    /// How many servers have led.
    pub term: u64,
    /// The last one.
    pub leader: Option<Leader>,
    /// It has said that it leads no more.
    pub resigned: bool,
    /// The end of what is decided of the stream; none before its first bytes.
    pub offset: Option<u64>,
}

impl Course {
    /// The next entry of the group, proposed by this client through this member.
    pub fn apply<'a>(&mut self, client: u64, member: u16, entry: &'a [u8]) -> Meaning<'a> {
        let leads = self.leader.as_ref().is_some_and(|leader| leader.client == client) && !self.resigned;
        match Proposal::read(entry) {
            None => Meaning::Malformed,
            Some(Proposal::Lead { host, address, .. }) if names::check_node(host).is_err() || !is_address(address) => {
                Meaning::Malformed
            }
            Some(Proposal::Lead { term, host, address }) if term == self.term.saturating_add(1) => {
                self.term = term;
                self.leader = Some(Leader { client, member, host: host.into(), address: address.into() });
                self.resigned = false;
                Meaning::Leads
            }
            Some(Proposal::Stream { term, anew, start, ticket, bytes }) if term == self.term && leads => {
                let follows = !anew && self.offset == Some(start);
                self.offset = Some(start.saturating_add(bytes.len() as u64));
                Meaning::Decided { start, follows, ticket, bytes }
            }
            Some(Proposal::Resign { term }) if term == self.term && leads => {
                self.resigned = true;
                Meaning::Resigned
            }
            _ => Meaning::Void,
        }
    }

    /// For servers that come later.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let leader = self.leader.clone().unwrap_or(Leader { client: 0, member: 0, host: String::new(), address: String::new() });
        let mut out = Vec::new();
        for n in [self.term, leader.client, u64::from(leader.member), u64::from(self.resigned)] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        out.extend_from_slice(&self.offset.map_or(u64::MAX, |offset| offset).to_le_bytes());
        let host = &leader.host[..leader.host.floor_char_boundary_at(usize::from(u16::MAX))];
        out.extend_from_slice(&(host.len() as u64).to_le_bytes());
        out.extend_from_slice(host.as_bytes());
        out.extend_from_slice(leader.address.as_bytes());
        out
    }

    /// Reads a snapshot; nothing for what no server wrote, an empty one (`fide group trim`) as well: who took it for the beginning would lead beside others.
    #[must_use]
    pub fn of_snapshot(mut bytes: &[u8]) -> Option<Self> {
        let b = &mut bytes;
        let (term, client, member, resigned) = (number(b)?, number(b)?, number(b)?, number(b)?);
        let (offset, len) = (number(b)?, number(b)?);
        let host = std::str::from_utf8(take(b, usize::try_from(len).ok()?)?).ok()?.to_owned();
        let address = std::str::from_utf8(b).ok()?.to_owned();
        let is_leader = term == 0 || names::check_node(&host).is_ok() && is_address(&address);
        if term > TERM_MAX || !is_leader {
            return None;
        }
        let leader = Leader { client, member: u16::try_from(member).ok()?, host, address };
        Some(Self {
            term,
            leader: (term > 0).then_some(leader),
            resigned: resigned != 0,
            offset: (offset != u64::MAX).then_some(offset),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(proposal: Proposal<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        proposal.write(&mut out);
        assert_eq!(Proposal::read(&out), Some(proposal));
        out
    }

    fn lead(term: u64) -> Vec<u8> {
        written(Proposal::Lead { term, host: "h1", address: "10.0.0.1:6379" })
    }

    fn stream(term: u64, start: u64, bytes: &[u8]) -> Vec<u8> {
        written(Proposal::Stream { term, anew: false, start, ticket: 7, bytes })
    }

    #[test]
    fn the_first_who_asks_for_a_term_leads_it() {
        let mut course = Course::default();
        assert_eq!(course.apply(11, 1, &lead(1)), Meaning::Leads);
        assert_eq!(course.apply(22, 2, &lead(1)), Meaning::Void, "too late");
        assert_eq!(course.apply(22, 2, &lead(3)), Meaning::Void, "a term is missing");
        assert_eq!(course.leader.as_ref().map(|leader| leader.client), Some(11));
    }

    #[test]
    fn what_a_former_leader_proposed_is_void_behind_its_successor() {
        let mut course = Course::default();
        course.apply(11, 1, &lead(1));
        let (first, second) = (stream(1, 100, b"SET"), stream(1, 103, b"DEL"));
        let decided = Meaning::Decided { start: 100, follows: false, ticket: 7, bytes: b"SET" };
        assert_eq!(course.apply(11, 1, &first), decided);
        assert_eq!(course.apply(22, 2, &lead(2)), Meaning::Leads);
        assert_eq!(course.apply(11, 1, &second), Meaning::Void);
        assert_eq!(course.apply(11, 1, &written(Proposal::Resign { term: 1 })), Meaning::Void);
        let next = stream(2, 103, b"SADD");
        assert_eq!(course.apply(33, 3, &next), Meaning::Void, "it does not lead");
        assert_eq!(course.apply(22, 2, &next), Meaning::Decided { start: 103, follows: true, ticket: 7, bytes: b"SADD" });
    }

    #[test]
    fn other_data_follow_nothing_whatever_their_numbers_say() {
        let mut course = Course::default();
        course.apply(11, 1, &lead(1));
        course.apply(11, 1, &stream(1, 0, b"SET"));
        course.apply(22, 2, &lead(2));
        let anew = written(Proposal::Stream { term: 2, anew: true, start: 3, ticket: 0, bytes: b"" });
        assert_eq!(course.apply(22, 2, &anew), Meaning::Decided { start: 3, follows: false, ticket: 0, bytes: b"" });
        assert_eq!(Course::of_snapshot(b""), None);
    }

    #[test]
    fn what_no_server_proposes_is_void() {
        let mut course = Course::default();
        course.apply(11, 1, &lead(1));
        course.apply(11, 1, &stream(1, 0, b"SET"));
        let before = course.clone();
        let of = |host: &str, address: &str| {
            let mut out = Vec::new();
            Proposal::Lead { term: 2, host, address }.write(&mut out);
            out
        };
        for address in ["", "h2", "h2:", ":6379", "h2:0", "h2:65536", "h2:6379\r\n+OK", "h 2:6379", "h2:6379 ", "é:6379"] {
            assert_eq!(course.apply(22, 2, &of("h2", address)), Meaning::Malformed, "{address:?}");
        }
        let long = format!("{}:6379", "h".repeat(300));
        for (host, address) in [("", "h2:6379"), ("h2\n", "h2:6379"), ("h@2", "h2:6379"), ("h2", &long)] {
            assert_eq!(course.apply(22, 2, &of(host, address)), Meaning::Malformed, "{host:?} {address}");
        }
        for bytes in [&b""[..], b"null", b"\x01\x02", b"\x09aaaaaaaaaaaaaa", b"{\"entry\":\"lead\"}"] {
            assert_eq!(course.apply(22, 2, bytes), Meaning::Malformed, "{bytes:?}");
        }
        assert_eq!(course, before);
        for address in ["10.0.0.2:6379", "h-2.example_net:1", "[fe80::1%eth0]:6379", "2001:db8::1:6379"] {
            assert_eq!(before.clone().apply(22, 2, &of("h2", address)), Meaning::Leads, "{address}");
        }
    }

    #[test]
    fn a_snapshot_that_no_server_wrote_is_none() {
        let led = Leader { client: 1, member: 1, host: "h1".into(), address: "h1:6379".into() };
        let course = Course { term: 7, leader: Some(led.clone()), resigned: false, offset: Some(9) };
        assert_eq!(Course::of_snapshot(&course.snapshot()), Some(course.clone()));
        for bytes in [&b""[..], b"null", b"\0\0\0\0", &course.snapshot()[..20]] {
            assert_eq!(Course::of_snapshot(bytes), None, "{bytes:?}");
        }
        let of = |leader| Course { leader: Some(leader), ..course.clone() }.snapshot();
        assert_eq!(Course::of_snapshot(&of(Leader { host: "h\r\n".into(), ..led.clone() })), None);
        assert_eq!(Course::of_snapshot(&of(Leader { address: "h1\r\n:1".into(), ..led })), None);
        // The next term of the last number would be the first one.
        assert_eq!(Course::of_snapshot(&Course { term: u64::MAX, ..course }.snapshot()), None);
    }

    #[test]
    fn who_has_resigned_proposes_in_vain() {
        let mut course = Course::default();
        course.apply(11, 1, &lead(1));
        assert_eq!(course.apply(11, 1, &written(Proposal::Resign { term: 1 })), Meaning::Resigned);
        assert_eq!(course.apply(11, 1, &stream(1, 0, b"SET")), Meaning::Void);
        assert_eq!(course.apply(11, 1, &lead(2)), Meaning::Leads, "it may lead again");
    }

    proptest! {
        #[test]
        fn hostile_entries_change_nothing_or_what_they_say(bytes in prop::collection::vec(any::<u8>(), 0..60), kind in 0u8..6) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            let mut out = Vec::new();
            if let Some(proposal) = Proposal::read(&bytes) {
                proposal.write(&mut out);
                prop_assert_eq!(&out, &bytes);
            }
            let mut course = Course::default();
            course.apply(1, 1, &bytes);
            prop_assert_eq!(Course::of_snapshot(&course.snapshot()), Some(course));
            let _ = Course::of_snapshot(&bytes);
        }
    }
}
