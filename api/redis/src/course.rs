//! What the entries of a group say of its servers: who leads, which bytes of the replication stream are decided, and which servers hold them. All servers
//! make the same of the same entries: pure.
//!
//! ```text
//! lead    u8 14 u64 term  u32 lease_ms  u16 length, zone      u16 length, host  text address
//! resign  u8 3  u64 term
//! stream  u8 12 u64 term  u64 start  u64 ticket  u64 cut  u64 wall_ms  bytes
//! anew    u8 13 as stream
//! holds   u8 15 u64 term  u32 breaks  u64 index  u64 applied  u8 is_whole
//!         u16 length, zone                                    u16 length, host  text address
//! out     u8 8  u64 term  u64 client
//! has     u8 9  u64 term  u64 former  u64 offset  u16 length, set  u16 length, host  text address
//! fails   u8 10 u64 term  u16 length, why                     u16 length, host  text address
//! ```
//! Numbers are little-endian. An entry counts if its term is the one at its own place in the log: what a former leader has proposed and was decided behind
//! its successor's entry is void to all, also to itself. A term has one leader, because `lead` counts for the next term only, once.
//!
//! # The in-sync set
//! The leader, and each server whose last `holds` says that it is whole: by then its process has every decided byte up to this entry, and its agent keeps
//! the entries behind it until the server has read them, because the leader lets agents drop no entry that a server of the list has not read
//! ([`Course::read_by_all`]). So each server of the set can lead at once. `out` takes one off the list, on the leader's word or on its own.
//!
//! # A group that begins anew
//! Before the first `lead` each server says what it has of a former group of this name (`has`): whose generation, how far, and which servers were in its
//! in-sync set. Where all of the last set have spoken, the one with the most leads ([`Course::heir`]); its data are of that former group, and others of it may
//! be replaced by them ([`Course::origin`]).
//!
//! # Commands that are cut
//! A stream entry says how many of its last bytes belong to a command, or a transaction, that goes on in the next one (`cut`). If the next leader
//! comes before the rest does, those bytes are void.
//!
//! Whoever may propose to the group can propose any bytes. What no server proposes is void to all
//! alike: names and addresses are looked at here, by the same rule everywhere, because servers show
//! them to clients and connect to them.

use fide_client::wire::names;
use std::collections::{BTreeMap, BTreeSet};

/// No group comes so far: a snapshot of more is none.
const TERM_MAX: u64 = 1 << 62;
/// Nor does a stream.
const OFFSET_MAX: u64 = 1 << 60;
/// The longest address, bytes.
const ADDRESS_MAX: usize = 260;
/// Servers on the list beside the leader: a group has fewer hosts.
const HOLDERS_MAX: usize = 64;
/// The longest reason of a server that does not get the leader's data, bytes.
pub const WHY_MAX: usize = 400;
/// What a snapshot begins with: its format.
const SNAPSHOT: &[u8; 8] = b"FiDeCrs5";
/// No lease is longer.
const LEASE_MAX_MS: u32 = 10_000;

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
        /// It was on the list of servers when it proposed that: void if it is not any more.
        is_listed: bool,
        /// For so long behind each of its entries nobody else is to answer; 0: it answers behind an entry only.
        lease_ms: u32,
        /// What fails together with the server's host, as its agent says; empty: it is not said.
        zone: &'a str,
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
        /// So many bytes at the stream's end belong to a command that is not whole yet; they may have begun in an entry before.
        cut: u64,
        /// The leader's clock, ms since 1970.
        wall_ms: u64,
        /// As the server wrote them to its replicas.
        bytes: &'a [u8],
    },
    /// A server that follows, on how far it is.
    Holds {
        /// The term in which it follows.
        term: u64,
        /// [`Course::breaks`] where it follows.
        breaks: u32,
        /// What it holds.
        holder: HolderRef<'a>,
    },
    /// What a server has of a former group, before any leads.
    Has {
        /// The former group's last term.
        term: u64,
        /// What this server has of it.
        extent: Extent,
        /// Its generation; 0: nothing.
        former: u64,
        /// The bytes of its stream that this server has applied.
        offset: u64,
        /// The addresses of its last in-sync set, one a line.
        set: &'a str,
        /// This server's host.
        host: &'a str,
        /// Where others reach it.
        address: &'a str,
    },
    /// A server does not get the leader's data.
    Fails {
        /// The leader's term.
        term: u64,
        /// Why, for people; empty: nothing keeps it from that any more.
        why: &'a str,
        /// This server's host.
        host: &'a str,
        /// Where others reach it.
        address: &'a str,
    },
    /// A server is not in sync.
    Out {
        /// The leader's term.
        term: u64,
        /// Which server.
        client: u64,
    },
    /// To lead no more.
    Resign {
        /// The leader's term.
        term: u64,
    },
}

/// What a server says that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderRef<'a> {
    /// The last entry of the group that its process has read.
    pub index: u64,
    /// Bytes of the stream that it has applied.
    pub applied: u64,
    /// It has all that is decided up to `index`, and could lead.
    pub is_whole: bool,
    /// What fails together with its host, as its agent says; empty: it is not said.
    pub zone: &'a str,
    /// Its host, as its agent calls it.
    pub host: &'a str,
    /// Where other servers reach it: `ADDRESS:PORT`.
    pub address: &'a str,
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, tail) = bytes.split_at_checked(len)?;
    *bytes = tail;
    Some(head)
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes, 8).map(|eight| u64::from_le_bytes(eight.try_into().expect("eight bytes")))
}

fn small(bytes: &mut &[u8]) -> Option<u32> {
    take(bytes, 4).map(|four| u32::from_le_bytes(four.try_into().expect("four bytes")))
}

/// A text behind its length.
fn prefixed<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    let len = take(bytes, 2)?;
    std::str::from_utf8(take(bytes, usize::from(u16::from_le_bytes([len[0], len[1]])))?).ok()
}

fn write_prefixed(out: &mut Vec<u8>, text: &str) {
    let text = &text[..text.floor_char_boundary_at(usize::from(u16::MAX))];
    out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// A host and an address, up to the end.
fn place(mut bytes: &[u8]) -> Option<(&str, &str)> {
    let host = prefixed(&mut bytes)?;
    Some((host, std::str::from_utf8(bytes).ok()?))
}

fn write_place(out: &mut Vec<u8>, host: &str, address: &str) {
    write_prefixed(out, host);
    out.extend_from_slice(address.as_bytes());
}

/// Whether servers may be told of such a place.
fn is_place(host: &str, address: &str) -> bool {
    names::check_node(host).is_ok() && is_address(address)
}

/// Whether servers may be told of such a zone.
fn is_zone(zone: &str) -> bool {
    zone.is_empty() || names::check_zone(zone).is_ok()
}

impl<'a> Proposal<'a> {
    /// Reads it; nothing for what no server of this version proposes.
    #[must_use]
    pub fn read(mut bytes: &'a [u8]) -> Option<Self> {
        let kind = take(&mut bytes, 1)?[0];
        let term = number(&mut bytes)?;
        match kind {
            14 | 16 => {
                let lease_ms = small(&mut bytes)?;
                let zone = prefixed(&mut bytes)?;
                let (host, address) = place(bytes)?;
                Some(Self::Lead { term, is_listed: kind == 16, lease_ms, zone, host, address })
            }
            3 => bytes.is_empty().then_some(Self::Resign { term }),
            12 | 13 => {
                let (start, ticket) = (number(&mut bytes)?, number(&mut bytes)?);
                let (cut, wall_ms) = (number(&mut bytes)?, number(&mut bytes)?);
                Some(Self::Stream { term, anew: kind == 13, start, ticket, cut, wall_ms, bytes })
            }
            15 => {
                let breaks = small(&mut bytes)?;
                let (index, applied) = (number(&mut bytes)?, number(&mut bytes)?);
                let is_whole = match take(&mut bytes, 1)? {
                    [0] => false,
                    [1] => true,
                    _ => return None,
                };
                let zone = prefixed(&mut bytes)?;
                let (host, address) = place(bytes)?;
                Some(Self::Holds { term, breaks, holder: HolderRef { index, applied, is_whole, zone, host, address } })
            }
            9 => {
                let (former, offset) = (number(&mut bytes)?, number(&mut bytes)?);
                let extent = Extent::read(take(&mut bytes, 1)?[0])?;
                let set = prefixed(&mut bytes)?;
                let (host, address) = place(bytes)?;
                Some(Self::Has { term, extent, former, offset, set, host, address })
            }
            10 => {
                let why = prefixed(&mut bytes)?;
                let (host, address) = place(bytes)?;
                Some(Self::Fails { term, why, host, address })
            }
            8 => {
                let client = number(&mut bytes)?;
                bytes.is_empty().then_some(Self::Out { term, client })
            }
            _ => None,
        }
    }

    /// Writes it into `out`, whatever was in there.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.clear();
        match *self {
            Self::Lead { term, is_listed, lease_ms, zone, host, address } => {
                out.push(if is_listed { 16 } else { 14 });
                out.extend_from_slice(&term.to_le_bytes());
                out.extend_from_slice(&lease_ms.to_le_bytes());
                write_prefixed(out, zone);
                write_place(out, host, address);
            }
            Self::Stream { term, anew, start, ticket, cut, wall_ms, bytes } => {
                out.push(if anew { 13 } else { 12 });
                [term, start, ticket, cut, wall_ms].iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
                out.extend_from_slice(bytes);
            }
            Self::Holds { term, breaks, holder } => {
                out.push(15);
                out.extend_from_slice(&term.to_le_bytes());
                out.extend_from_slice(&breaks.to_le_bytes());
                [holder.index, holder.applied].iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
                out.push(u8::from(holder.is_whole));
                write_prefixed(out, holder.zone);
                write_place(out, holder.host, holder.address);
            }
            Self::Has { term, extent, former, offset, set, host, address } => {
                out.push(9);
                [term, former, offset].iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
                out.push(extent as u8);
                write_prefixed(out, set);
                write_place(out, host, address);
            }
            Self::Fails { term, why, host, address } => {
                out.push(10);
                out.extend_from_slice(&term.to_le_bytes());
                write_prefixed(out, why);
                write_place(out, host, address);
            }
            Self::Out { term, client } => {
                out.push(8);
                [term, client].iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
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
    /// [`Proposal::Lead`].
    pub lease_ms: u32,
    /// What fails together with its host; empty: it is not said.
    pub zone: String,
    /// Its host.
    pub host: String,
    /// `ADDRESS:PORT`.
    pub address: String,
}

/// A server on the list beside the leader: [`HolderRef`], kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The group's member through which it said so last.
    pub member: u16,
    /// The last entry that it has read.
    pub index: u64,
    /// Bytes of the stream that it has applied.
    pub applied: u64,
    /// It is in sync.
    pub is_whole: bool,
    /// What fails together with its host; empty: it is not said.
    pub zone: String,
    /// Its host.
    pub host: String,
    /// `ADDRESS:PORT`.
    pub address: String,
}

/// What a server has of a former group: [`Proposal::Has`], kept until one leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    former: u64,
    term: u64,
    extent: Extent,
    offset: u64,
    set: Vec<String>,
    host: String,
    address: String,
}

impl Claim {
    /// It led last: what was answered it has, if anybody.
    fn has_led(&self) -> bool {
        self.set.first() == Some(&self.address)
    }

    /// Of several that had all data, the greatest leads: what has run since has what was answered,
    /// and a log may lack the last second.
    fn rank(&self, client: u64) -> (bool, bool, u64, u64) {
        (self.extent == Extent::Memory, self.has_led(), self.offset, client)
    }

    /// How far it goes is known.
    const fn is_known(&self) -> bool {
        matches!(self.extent, Extent::Memory | Extent::Log)
    }
}

/// What a server has of a former group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// Its data were lost, or it never had any.
    Empty = 0,
    /// Data of a snapshot (RDB), of which nobody knows how far they go.
    Unknown = 1,
    /// What its log (AOF) had, at least as far as is said.
    Log = 2,
    /// It has run since, and goes exactly so far.
    Memory = 3,
    /// They are being loaded: how far they go is said later.
    Loads = 4,
}

impl Extent {
    const fn read(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Empty,
            1 => Self::Unknown,
            2 => Self::Log,
            3 => Self::Memory,
            4 => Self::Loads,
            _ => return None,
        })
    }
}

/// Who is to lead a group first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heir {
    /// No server has anything of a former group.
    None,
    /// Servers of the former group's last in-sync set have not spoken: those at these addresses.
    /// Nobody is missing: no server knows how far it goes.
    Waits(Vec<String>),
    /// This client has the most.
    Is(u64),
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
        /// Bytes at the end of what is decided by now that belong to a command that is not whole.
        cut: u64,
        /// The leader's clock when it proposed them.
        wall_ms: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Whether a server gets the leader's data.
    Fails,
    /// What a server has of a former group.
    Claims {
        /// Which server.
        client: u64,
    },
    /// What a server holds.
    Holds {
        /// Which server.
        client: u64,
        /// It was not on the list.
        is_new: bool,
    },
    /// A server that was on the list is not any more.
    Out {
        /// Which server.
        client: u64,
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
    /// Nothing is decided of its stream, so that it has answered no write.
    pub is_new: bool,
    /// The end of what is decided of the stream; none before its first bytes.
    pub offset: Option<u64>,
    /// So many bytes before it belong to a command that is not whole.
    pub cut: u64,
    /// How often the stream has begun anew: data of before are not what it is about.
    pub breaks: u32,
    /// The servers, beside the leader, for which agents keep entries: by client.
    pub holders: BTreeMap<u64, Holder>,
    /// Servers that do not get the leader's data, by address: why.
    pub fails: BTreeMap<String, String>,
    /// While no server leads: what each has of a former group, or of this one, by client.
    pub claims: BTreeMap<u64, Claim>,
    /// The generation of the former group from which the first leader's data came; 0: none.
    pub origin: u64,
    /// That group's last term, as far as the first leader knew: data of a later one are not in it.
    pub origin_term: u64,
    /// The longest lease of a leader so far.
    pub lease_max_ms: u32,
}

impl Course {
    /// The next entry of the group, proposed by this client through this member.
    pub fn apply<'a>(&mut self, client: u64, member: u16, entry: &'a [u8]) -> Meaning<'a> {
        let is_leader = self.leader.as_ref().is_some_and(|leader| leader.client == client);
        let leads = is_leader && !self.resigned;
        match Proposal::read(entry) {
            None => Meaning::Malformed,
            Some(Proposal::Lead { lease_ms, zone, host, address, .. })
                if !is_place(host, address) || !is_zone(zone) || lease_ms > LEASE_MAX_MS =>
            {
                Meaning::Malformed
            }
            Some(Proposal::Holds { holder, .. }) if !is_place(holder.host, holder.address) || !is_zone(holder.zone) => {
                Meaning::Malformed
            }
            // It was cut off when it proposed that, and the others went on without it since.
            Some(Proposal::Lead { is_listed: true, .. }) if !self.holders.contains_key(&client) => Meaning::Void,
            Some(Proposal::Lead { term, lease_ms, zone, host, address, .. }) if term == self.term.saturating_add(1) => {
                if let Some(claim) = self.claims.remove(&client).filter(|_| self.term == 0) {
                    (self.origin, self.origin_term) = (claim.former, claim.term);
                }
                self.term = term;
                self.leader =
                    Some(Leader { client, member, lease_ms, zone: zone.into(), host: host.into(), address: address.into() });
                self.lease_max_ms = self.lease_max_ms.max(lease_ms);
                (self.resigned, self.is_new) = (false, true);
                self.claims.clear();
                self.fails.clear();
                self.holders.remove(&client);
                // Nobody will ever say the rest of it.
                self.offset = self.offset.map(|offset| offset.saturating_sub(self.cut));
                self.cut = 0;
                Meaning::Leads
            }
            Some(Proposal::Stream { start, .. }) if start > OFFSET_MAX => Meaning::Malformed,
            Some(Proposal::Stream { term, anew, start, ticket, cut, wall_ms, bytes }) if term == self.term && leads => {
                self.is_new &= bytes.is_empty();
                let follows = !anew && self.offset == Some(start);
                // A cut command begins at the earliest where the last one had ended.
                let before = if follows { self.cut } else { 0 };
                self.offset = Some(start.saturating_add(bytes.len() as u64));
                self.cut = cut.min(before.saturating_add(bytes.len() as u64));
                if !follows {
                    self.breaks = self.breaks.wrapping_add(1);
                    self.holders.values_mut().for_each(|holder| holder.is_whole = false);
                }
                Meaning::Decided { start, follows, ticket, cut: self.cut, wall_ms, bytes }
            }
            Some(Proposal::Holds { term, breaks, holder }) if term == self.term && !is_leader => {
                let is_new = !self.holders.contains_key(&client);
                if is_new && self.holders.len() >= HOLDERS_MAX {
                    return Meaning::Void;
                }
                let HolderRef { index, applied, is_whole, zone, host, address } = holder;
                // Entries behind what its first word says may be dropped before the leader reads it; those behind its second
                // one may not.
                let is_whole = is_whole && breaks == self.breaks && !is_new;
                let (zone, host, address) = (zone.into(), host.into(), address.into());
                let holder = Holder { member, index, applied, is_whole, zone, host, address };
                // A server that was started anew; also one that has led, which took a new program's place (exec) and is no
                // leader that others should follow.
                self.holders.retain(|_, other| other.address != holder.address);
                let is_its = |leader: &Leader| leader.address == holder.address && leader.host == holder.host;
                self.resigned |= self.leader.as_ref().is_some_and(is_its);
                if holder.is_whole {
                    self.fails.remove(&holder.address);
                }
                self.holders.insert(client, holder);
                Meaning::Holds { client, is_new }
            }
            Some(Proposal::Fails { term, why, host, address }) if term == self.term => {
                let is_text = why.len() <= WHY_MAX && !why.contains(char::is_control);
                if !is_place(host, address) || !is_text {
                    return Meaning::Malformed;
                }
                if why.is_empty() {
                    self.fails.remove(address);
                } else if self.fails.len() < HOLDERS_MAX || self.fails.contains_key(address) {
                    self.fails.insert(address.into(), why.into());
                }
                Meaning::Fails
            }
            Some(Proposal::Out { term, client: which }) if leads && term == self.term || which == client => {
                if self.holders.remove(&which).is_some() { Meaning::Out { client: which } } else { Meaning::Void }
            }
            Some(Proposal::Has { term, extent, former, offset, set, host, address }) => {
                let set: Vec<String> = set.lines().map(str::to_owned).collect();
                let is_set = set.len() <= HOLDERS_MAX + 1 && set.iter().all(|address| is_address(address));
                if !is_place(host, address) || !is_set {
                    return Meaning::Malformed;
                }
                if self.claims.len() >= HOLDERS_MAX && !self.claims.contains_key(&client) {
                    return Meaning::Void;
                }
                self.claims.retain(|_, other| other.address != address);
                let (host, address) = (host.into(), address.into());
                self.claims.insert(client, Claim { former, term, extent, offset, set, host, address });
                Meaning::Claims { client }
            }
            Some(Proposal::Resign { term }) if term == self.term && leads => {
                self.resigned = true;
                Meaning::Resigned
            }
            _ => Meaning::Void,
        }
    }

    /// Servers that hold everything that is decided, or will get it from their own agents; the leader is one of them.
    #[must_use]
    pub fn in_sync(&self) -> u64 {
        u64::from(self.leader.is_some()) + self.holders.values().filter(|holder| holder.is_whole).count() as u64
    }

    /// In how many zones those servers are. One whose zone is not said is in none: it may be in that of any other.
    #[must_use]
    pub fn zones(&self) -> u64 {
        let whole = self.holders.values().filter(|holder| holder.is_whole).map(|holder| holder.zone.as_str());
        let all: BTreeSet<&str> = self.leader.iter().map(|leader| leader.zone.as_str()).chain(whole).collect();
        all.iter().filter(|zone| !zone.is_empty()).count() as u64
    }

    /// The last entry that every server of the list has read; none where the leader is alone. What lies
    /// behind it must stay with the agents.
    #[must_use]
    pub fn read_by_all(&self) -> Option<u64> {
        self.holders.values().map(|holder| holder.index).min()
    }

    /// Where the last whole command ends, of what is decided.
    #[must_use]
    pub fn whole(&self) -> Option<u64> {
        self.offset.map(|offset| offset.saturating_sub(self.cut))
    }

    /// Who is to lead first: of the newest former group, who led its last term, or has the most of
    /// it. All that were in sync then must have spoken, and must know how far they go.
    #[must_use]
    pub fn heir(&self) -> Heir {
        let newest = self.claims.values().map(|claim| claim.former).max().unwrap_or(0);
        let of_newest = || self.claims.iter().filter(|(_, claim)| claim.former == newest);
        if newest == 0 {
            return Heir::None;
        }
        let last = of_newest().map(|(_, claim)| claim.term).max().unwrap_or(0);
        let of_last = || of_newest().filter(|(_, claim)| claim.term == last);
        // Whose data are lost says nothing of what others had, unless all have lost theirs.
        let is_lost = of_newest().all(|(_, claim)| claim.extent == Extent::Empty);
        let has_spoken =
            |address: &&String| of_newest().any(|(_, claim)| claim.address == **address && (claim.is_known() || is_lost));
        // Who led has decided who was in the set last.
        let of_leader = of_last().find(|(_, claim)| claim.has_led());
        let sets: BTreeSet<&String> = match of_leader {
            Some((_, claim)) => claim.set.iter().collect(),
            None => of_last().flat_map(|(_, claim)| &claim.set).collect(),
        };
        if sets.is_empty() {
            return Heir::Waits(Vec::new()); // nobody knows who had all data
        }
        let missing: Vec<String> = sets.into_iter().filter(|address| !has_spoken(address)).cloned().collect();
        let able = of_last().filter(|(_, claim)| claim.is_known() || is_lost);
        let may_be_known = |claim: &Claim| claim.is_known() || claim.extent == Extent::Loads;
        match able.max_by_key(|(client, claim)| claim.rank(**client)) {
            Some((client, _)) if missing.is_empty() => Heir::Is(*client),
            _ if is_lost || of_last().any(|(_, claim)| may_be_known(claim)) => Heir::Waits(missing),
            _ => Heir::Waits(Vec::new()),
        }
    }

    /// Who is to lead this group (`generation`) again where all servers that had everything have
    /// ended, and were started again: all of them must have spoken, and know how far they go.
    #[must_use]
    pub fn heir_again(&self, generation: u64) -> Heir {
        let Some(leader) = &self.leader else { return Heir::None };
        let of_this = || {
            // A leader that has answered nothing may have ended before it wrote down that it leads.
            let led_just_now =
                |claim: &Claim| self.is_new && claim.address == leader.address && claim.term.saturating_add(1) == self.term;
            let of_term = move |claim: &Claim| claim.former == generation && (claim.term == self.term || led_just_now(claim));
            self.claims.iter().filter(move |(_, claim)| of_term(claim))
        };
        let set = self.set();
        let has_spoken = |address: &&str| of_this().any(|(_, claim)| claim.address == **address && claim.is_known());
        let missing: Vec<String> = set.lines().filter(|address| !has_spoken(address)).map(str::to_owned).collect();
        // What has run since goes before a log, which may lack the last second.
        let able = of_this().filter(|(_, claim)| claim.is_known() && set.lines().any(|address| address == claim.address));
        let rank = |(client, claim): &(&u64, &Claim)| (claim.extent, claim.address == leader.address, claim.offset, **client);
        match able.max_by_key(rank) {
            Some((client, _)) if missing.is_empty() => Heir::Is(*client),
            _ => Heir::Waits(missing),
        }
    }

    /// What the server at this address has said of its data.
    #[must_use]
    pub fn extent_of(&self, address: &str) -> Option<Extent> {
        self.claims.values().find(|claim| claim.address == address).map(|claim| claim.extent)
    }

    /// Whether a server of this host has said what it has.
    #[must_use]
    pub fn has_spoken(&self, host: &str) -> bool {
        self.claims.values().any(|claim| claim.host == host)
    }

    /// The addresses of the servers that have said what they have of a former group.
    pub fn claimants(&self) -> impl Iterator<Item = &String> {
        self.claims.values().map(|claim| &claim.address)
    }

    /// The addresses of the in-sync set, one a line.
    #[must_use]
    pub fn set(&self) -> String {
        let whole = self.holders.values().filter(|holder| holder.is_whole).map(|holder| holder.address.as_str());
        self.leader.iter().map(|leader| leader.address.as_str()).chain(whole).collect::<Vec<_>>().join("\n")
    }

    /// For servers that come later.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let (zone, host, address) = (String::new(), String::new(), String::new());
        let nobody = Leader { client: 0, member: 0, lease_ms: 0, zone, host, address };
        let leader = self.leader.as_ref().unwrap_or(&nobody);
        let mut out = SNAPSHOT.to_vec();
        let offset = self.offset.unwrap_or(u64::MAX);
        let (member, resigned) = (leader.member.into(), u64::from(self.resigned) | u64::from(self.is_new) << 1);
        let (breaks, holders) = (self.breaks.into(), self.holders.len() as u64);
        let leases = u64::from(self.lease_max_ms) << 32 | u64::from(leader.lease_ms);
        for n in
            [self.term, leader.client, member, leases, resigned, offset, self.cut, breaks, self.origin, self.origin_term, holders]
        {
            out.extend_from_slice(&n.to_le_bytes());
        }
        out.extend_from_slice(&(self.fails.len() as u64).to_le_bytes());
        let mut kept = |bytes: &[u8]| {
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(bytes);
        };
        let mut place = Vec::new();
        write_prefixed(&mut place, &leader.zone);
        write_place(&mut place, &leader.host, &leader.address);
        kept(&place);
        for (client, holder) in &self.holders {
            place.clear();
            for n in [*client, holder.member.into(), holder.index, holder.applied, holder.is_whole.into()] {
                place.extend_from_slice(&n.to_le_bytes());
            }
            write_prefixed(&mut place, &holder.zone);
            write_place(&mut place, &holder.host, &holder.address);
            kept(&place);
        }
        for (address, why) in &self.fails {
            kept(address.as_bytes());
            kept(why.as_bytes());
        }
        out
    }

    /// Reads a snapshot; nothing for what no server wrote, an empty one (`fide group trim`) as well: who took it for the beginning would lead beside others.
    #[must_use]
    pub fn of_snapshot(bytes: &[u8]) -> Option<Self> {
        let b = &mut bytes.strip_prefix(SNAPSHOT)?;
        let (term, client, member, leases, resigned) = (number(b)?, number(b)?, number(b)?, number(b)?, number(b)?);
        let (lease_max_ms, lease_ms) = ((leases >> 32) as u32, leases as u32);
        let (offset, cut, breaks) = (number(b)?, number(b)?, number(b)?);
        let (origin, origin_term, count, failing) = (number(b)?, number(b)?, number(b)?, number(b)?);
        fn kept<'a>(b: &mut &'a [u8]) -> Option<&'a [u8]> {
            let len = small(b)?;
            take(b, usize::try_from(len).ok()?)
        }
        let of_leader = &mut kept(b)?;
        let zone = prefixed(of_leader)?;
        let (host, address) = place(of_leader)?;
        let is_leader = term == 0 || is_place(host, address) && is_zone(zone);
        let is_offset = offset == u64::MAX || offset <= OFFSET_MAX * 2;
        if term > TERM_MAX
            || !is_offset
            || !is_leader
            || lease_ms.max(lease_max_ms) > LEASE_MAX_MS
            || count.max(failing) > HOLDERS_MAX as u64
        {
            return None;
        }
        let member = u16::try_from(member).ok()?;
        let leader = Leader { client, member, lease_ms, zone: zone.into(), host: host.into(), address: address.into() };
        let mut holders = BTreeMap::new();
        for _ in 0..count {
            let b = &mut kept(b)?;
            let (client, member, index) = (number(b)?, number(b)?, number(b)?);
            let (applied, is_whole) = (number(b)?, number(b)? != 0);
            let zone = prefixed(b)?;
            let (host, address) = place(b)?;
            if !is_place(host, address) || !is_zone(zone) {
                return None;
            }
            let member = u16::try_from(member).ok()?;
            let (zone, host, address) = (zone.into(), host.into(), address.into());
            holders.insert(client, Holder { member, index, applied, is_whole, zone, host, address });
        }
        let mut fails = BTreeMap::new();
        for _ in 0..failing {
            let text = |bytes| std::str::from_utf8(bytes).ok().map(str::to_owned);
            let (address, why) = (text(kept(b)?)?, text(kept(b)?)?);
            if !is_address(&address) || why.len() > WHY_MAX || why.contains(char::is_control) {
                return None;
            }
            fails.insert(address, why);
        }
        let offset = (offset != u64::MAX).then_some(offset);
        Some(Self {
            term,
            leader: (term > 0).then_some(leader),
            resigned: resigned & 1 != 0,
            is_new: resigned & 2 != 0,
            offset,
            cut: cut.min(offset.unwrap_or(0)),
            breaks: u32::try_from(breaks).ok()?,
            holders,
            fails,
            claims: BTreeMap::new(),
            origin,
            origin_term,
            lease_max_ms,
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
        written(Proposal::Lead { term, is_listed: false, lease_ms: 100, zone: "", host: "h1", address: "10.0.0.1:6379" })
    }

    fn stream(term: u64, start: u64, bytes: &[u8]) -> Vec<u8> {
        written(Proposal::Stream { term, anew: false, start, ticket: 7, cut: 0, wall_ms: 5, bytes })
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
        let decided = Meaning::Decided { start: 100, follows: false, ticket: 7, cut: 0, wall_ms: 5, bytes: b"SET" };
        assert_eq!(course.apply(11, 1, &first), decided);
        assert_eq!(course.apply(22, 2, &lead(2)), Meaning::Leads);
        assert_eq!(course.apply(11, 1, &second), Meaning::Void);
        assert_eq!(course.apply(11, 1, &written(Proposal::Resign { term: 1 })), Meaning::Void);
        let next = stream(2, 103, b"SADD");
        assert_eq!(course.apply(33, 3, &next), Meaning::Void, "it does not lead");
        assert_eq!(
            course.apply(22, 2, &next),
            Meaning::Decided { start: 103, follows: true, ticket: 7, cut: 0, wall_ms: 5, bytes: b"SADD" }
        );
    }

    #[test]
    fn other_data_follow_nothing_whatever_their_numbers_say() {
        let mut course = Course::default();
        course.apply(11, 1, &lead(1));
        course.apply(11, 1, &stream(1, 0, b"SET"));
        course.apply(22, 2, &lead(2));
        let anew = written(Proposal::Stream { term: 2, anew: true, start: 3, ticket: 0, cut: 0, wall_ms: 5, bytes: b"" });
        assert_eq!(
            course.apply(22, 2, &anew),
            Meaning::Decided { start: 3, follows: false, ticket: 0, cut: 0, wall_ms: 5, bytes: b"" }
        );
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
            Proposal::Lead { term: 2, is_listed: false, lease_ms: 0, zone: "", host, address }.write(&mut out);
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
        let led = Leader { client: 1, member: 1, lease_ms: 100, zone: "r1".into(), host: "h1".into(), address: "h1:6379".into() };
        let course = Course { term: 7, leader: Some(led.clone()), offset: Some(9), cut: 2, breaks: 3, ..Course::default() };
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

    fn holds(server: u32, term: u64, breaks: u32, index: u64, is_whole: bool) -> Vec<u8> {
        let (host, address) = (format!("h{server}"), format!("10.0.0.{server}:6379"));
        let holder = HolderRef { index, applied: 9, is_whole, zone: "", host: &host, address: &address };
        written(Proposal::Holds { term, breaks, holder })
    }

    #[test]
    fn a_server_that_says_it_is_whole_counts_until_it_is_taken_out_or_the_data_are_others() {
        let mut course = Course::default();
        course.apply(11, 1, &lead(1));
        course.apply(11, 1, &stream(1, 0, b"SET"));
        let breaks = course.breaks;
        assert_eq!((course.in_sync(), course.read_by_all()), (1, None));
        assert_eq!(course.apply(11, 1, &holds(1, 1, breaks, 2, true)), Meaning::Void, "the leader is in it anyway");
        assert_eq!(course.apply(22, 2, &holds(2, 0, breaks, 2, true)), Meaning::Void, "of another term");
        assert_eq!(course.apply(22, 2, &holds(2, 1, breaks, 2, false)), Meaning::Holds { client: 22, is_new: true });
        assert_eq!((course.in_sync(), course.read_by_all()), (1, Some(2)), "its entries are kept, and it could not lead");
        assert_eq!(course.apply(22, 2, &holds(2, 1, breaks, 3, true)), Meaning::Holds { client: 22, is_new: false });
        course.apply(33, 3, &holds(3, 1, breaks, 2, true));
        assert_eq!(course.in_sync(), 2, "its first word keeps entries; what is behind it may be gone already");
        course.apply(33, 3, &holds(3, 1, breaks, 2, true));
        assert_eq!((course.in_sync(), course.read_by_all()), (3, Some(2)));
        assert_eq!(course.apply(22, 2, &written(Proposal::Out { term: 1, client: 33 })), Meaning::Void, "not its word");
        assert_eq!(course.apply(11, 1, &written(Proposal::Out { term: 1, client: 33 })), Meaning::Out { client: 33 });
        assert_eq!((course.in_sync(), course.read_by_all()), (2, Some(3)));
        // Who follows goes on when another leads; who has led is out, whose last entries nobody may have had.
        course.apply(22, 2, &lead(2));
        assert_eq!((course.in_sync(), course.read_by_all()), (1, None));
        (0..2).for_each(|_| _ = course.apply(33, 3, &holds(3, 2, breaks, 9, true)));
        assert_eq!(course.in_sync(), 2);
        let anew = written(Proposal::Stream { term: 2, anew: true, start: 3, ticket: 0, cut: 0, wall_ms: 5, bytes: b"" });
        course.apply(22, 2, &anew);
        assert_eq!((course.in_sync(), course.breaks), (1, breaks + 1));
        // What was said before that was known is not of these data.
        course.apply(33, 3, &holds(3, 2, breaks, 10, true));
        assert_eq!(course.in_sync(), 1);
        course.apply(33, 3, &holds(3, 2, breaks + 1, 11, true));
        assert_eq!(course.in_sync(), 2);
        assert_eq!(Course::of_snapshot(&course.snapshot()), Some(course));
    }

    #[test]
    fn copies_in_one_zone_are_one_and_an_unknown_zone_is_none() {
        let mut course = Course::default();
        let lead = |zone| {
            let mut out = Vec::new();
            Proposal::Lead { term: 1, is_listed: false, lease_ms: 0, zone, host: "h1", address: "10.0.0.1:6379" }.write(&mut out);
            out
        };
        assert_eq!(course.apply(11, 1, &lead("r 1")), Meaning::Malformed);
        assert_eq!(course.zones(), 0);
        course.apply(11, 1, &lead("r1"));
        let mut holds = |server: u32, zone: &str, times| {
            let (host, address) = (format!("h{server}"), format!("10.0.0.{server}:6379"));
            let holder = HolderRef { index: 1, applied: 0, is_whole: true, zone, host: &host, address: &address };
            let entry = written(Proposal::Holds { term: 1, breaks: 0, holder });
            (0..times).for_each(|_| _ = course.apply(server.into(), 1, &entry));
            assert_eq!(Course::of_snapshot(&course.snapshot()), Some(course.clone()));
            course.zones()
        };
        assert_eq!((holds(2, "r1", 2), holds(3, "", 2)), (1, 1));
        assert_eq!((holds(4, "r2", 1), holds(4, "r2", 1)), (1, 2), "it is not in sync before its second word");
        assert_eq!(course.in_sync(), 4);
    }

    #[test]
    fn of_a_former_group_who_has_the_most_leads_when_all_of_its_last_set_have_spoken() {
        let mut course = Course::default();
        let says = |extent: Extent, server: u32, former: u64, term: u64, offset: u64, set: &[u32]| {
            let at = |server: &u32| format!("10.0.0.{server}:6379");
            let (set, address) = (set.iter().map(at).collect::<Vec<_>>().join("\n"), at(&server));
            written(Proposal::Has { term, extent, former, offset, set: &set, host: "h", address: &address })
        };
        let has = |server, former, term, offset, set: &[u32]| says(Extent::Memory, server, former, term, offset, set);
        assert_eq!(course.heir(), Heir::None);
        course.apply(44, 4, &has(4, 0, 0, 0, &[]));
        assert_eq!(course.heir(), Heir::None, "it has nothing");
        // An older group, and one that was not up to date.
        course.apply(55, 5, &has(5, 6, 9, 999, &[5]));
        course.apply(22, 2, &has(2, 7, 3, 100, &[1, 2]));
        assert_eq!(course.heir(), Heir::Waits(vec!["10.0.0.1:6379".into()]));
        course.apply(33, 3, &has(3, 7, 2, 500, &[2, 3]));
        assert_eq!(course.heir(), Heir::Waits(vec!["10.0.0.1:6379".into()]), "its term was an earlier one");
        course.apply(11, 1, &has(1, 7, 3, 104, &[1, 2]));
        assert_eq!(course.heir(), Heir::Is(11));
        // Servers that were started again, behind the end of all: server 1 led.
        let heir = |of: &[(Extent, u32, u64, u64, &[u32])]| {
            let mut course = Course::default();
            for (extent, server, term, offset, set) in of {
                course.apply((*server).into(), 1, &says(*extent, *server, 7, *term, *offset, set));
            }
            course.heir()
        };
        use Extent::{Empty, Loads, Log, Memory, Unknown};
        let at = |server: u32| format!("10.0.0.{server}:6379");
        assert_eq!(heir(&[(Empty, 1, 3, 9, &[1, 2]), (Empty, 2, 3, 9, &[1, 2])]), Heir::Is(1), "nobody has anything");
        assert_eq!(heir(&[(Log, 1, 3, 9, &[1, 2]), (Log, 2, 3, 99, &[1, 2])]), Heir::Is(1), "who led has what was answered");
        assert_eq!(heir(&[(Log, 1, 3, 9, &[1, 2]), (Memory, 2, 3, 9, &[1, 2])]), Heir::Is(2), "a log may lack the last second");
        // Servers that load have said of which group they are, and are waited for.
        assert_eq!(heir(&[(Loads, 1, 3, 9, &[1, 2]), (Log, 2, 3, 9, &[1, 2])]), Heir::Waits(vec![at(1)]));
        assert_eq!(heir(&[(Loads, 1, 3, 9, &[1, 2]), (Log, 2, 2, 9, &[1, 2])]), Heir::Waits(vec![at(1)]));
        assert_eq!(heir(&[(Loads, 3, 3, 9, &[1, 2, 3]), (Log, 1, 3, 9, &[1, 2]), (Log, 2, 3, 9, &[1, 2])]), Heir::Is(1));
        assert_eq!(heir(&[(Log, 1, 3, 9, &[1, 2]), (Empty, 2, 3, 99, &[1, 2])]), Heir::Waits(vec![at(2)]), "its data are lost");
        assert_eq!(heir(&[(Unknown, 1, 3, 9, &[1, 2]), (Unknown, 2, 3, 9, &[1, 2])]), Heir::Waits(Vec::new()));
        // Who led went on alone, and has no more than a snapshot: the other one's log is not taken
        // for all.
        assert_eq!(heir(&[(Unknown, 1, 3, 9, &[1]), (Log, 2, 3, 5, &[1, 2])]), Heir::Waits(vec![at(1)]));
        assert_eq!(heir(&[(Unknown, 1, 4, 9, &[1]), (Log, 2, 3, 5, &[1, 2])]), Heir::Waits(Vec::new()));
        assert_eq!(heir(&[(Empty, 1, 3, 9, &[1, 2])]), Heir::Waits(vec![at(2)]));
        assert_eq!(heir(&[(Log, 1, 0, 0, &[])]), Heir::Waits(Vec::new()), "who had all data was never written down");
        // A server that had left the set: it does not lead, and need not have anything.
        assert_eq!(heir(&[(Log, 3, 3, 5, &[1, 2, 3])]), Heir::Waits(vec![at(1), at(2)]));
        assert_eq!(heir(&[(Empty, 3, 3, 5, &[1, 2, 3]), (Log, 1, 3, 9, &[1, 2]), (Log, 2, 3, 9, &[1, 2])]), Heir::Is(1));
        for set in ["nowhere", "10.0.0.1:6379\r\n:"] {
            let hostile = Proposal::Has { term: 3, extent: Extent::Log, former: 9, offset: 0, set, host: "h", address: "h:1" };
            assert_eq!(course.clone().apply(66, 6, &written(hostile)), Meaning::Malformed, "{set:?}");
        }
        course.apply(11, 1, &lead(1));
        assert_eq!((course.origin, course.origin_term, course.heir()), (7, 3, Heir::None));
        let again = Course::of_snapshot(&course.snapshot()).unwrap();
        assert_eq!((again.origin, again.origin_term), (7, 3));
    }

    #[test]
    fn servers_that_all_ended_and_were_started_again_go_on_with_the_leaders_log() {
        let mut course = Course::default();
        course.apply(11, 1, &lead(1));
        course.apply(11, 1, &stream(1, 0, b"SET"));
        (0..2).for_each(|_| _ = course.apply(22, 2, &holds(2, 1, 1, 3, true)));
        assert_eq!(course.set(), "10.0.0.1:6379\n10.0.0.2:6379");
        let has = |extent, server: u32, former, term| {
            let address = format!("10.0.0.{server}:6379");
            written(Proposal::Has { term, extent, former, offset: 3, set: "", host: "h", address: &address })
        };
        use Extent::{Empty, Loads, Log, Memory};
        let heir = |of: &[(Extent, u32, u64, u64)]| {
            let mut course = course.clone();
            for (extent, server, former, term) in of {
                course.apply((100 + server).into(), 1, &has(*extent, *server, *former, *term));
            }
            course.heir_again(7)
        };
        let at = |server: u32| format!("10.0.0.{server}:6379");
        assert_eq!(heir(&[]), Heir::Waits(vec![at(1), at(2)]));
        assert_eq!(heir(&[(Log, 1, 7, 1)]), Heir::Waits(vec![at(2)]));
        assert_eq!(heir(&[(Log, 1, 7, 1), (Log, 2, 7, 1)]), Heir::Is(101), "who led has what was answered");
        assert_eq!(heir(&[(Log, 1, 7, 1), (Memory, 2, 7, 1), (Log, 3, 7, 1)]), Heir::Is(102));
        for (extent, former, term) in [(Empty, 7, 1), (Loads, 7, 1), (Log, 7, 0), (Log, 6, 1)] {
            assert_eq!(
                heir(&[(Log, 1, 7, 1), (extent, 2, former, term)]),
                Heir::Waits(vec![at(2)]),
                "{extent:?} {former} {term}"
            );
        }
        // The next leader ended before it wrote that down, and before it answered anything.
        let mut next = course.clone();
        next.apply(
            22,
            2,
            &written(Proposal::Lead { term: 2, is_listed: true, lease_ms: 0, zone: "", host: "h2", address: &at(2) }),
        );
        next.apply(102, 1, &has(Log, 2, 7, 1));
        assert_eq!(next.heir_again(7), Heir::Is(102));
        next.apply(22, 2, &stream(2, 3, b"SET"));
        assert_eq!(next.heir_again(7), Heir::Waits(vec![at(2)]));
        assert_eq!(Course::default().heir_again(7), Heir::None);
        course.apply(102, 1, &has(Log, 2, 7, 1));
        course.apply(102, 1, &lead(2));
        assert_eq!((course.origin, course.claims.len()), (0, 0), "of this group itself");
    }

    #[test]
    fn a_program_that_took_the_leaders_place_leads_no_more() {
        let mut course = Course::default();
        let address = "10.0.0.1:6379";
        course.apply(11, 1, &lead(1));
        let holder = HolderRef { index: 1, applied: 0, is_whole: false, zone: "", host: "h1", address };
        course.apply(12, 1, &written(Proposal::Holds { term: 1, breaks: 0, holder }));
        assert!(course.resigned);
        assert_eq!(course.apply(22, 2, &lead(2)), Meaning::Leads);
    }

    #[test]
    fn why_a_server_gets_no_data_is_known_until_it_does() {
        let mut course = Course::default();
        course.apply(11, 1, &lead(1));
        let fails = |why| written(Proposal::Fails { term: 1, why, host: "h", address: "10.0.0.2:6379" });
        assert_eq!(course.apply(22, 2, &fails("NOAUTH")), Meaning::Fails);
        assert_eq!(course.fails["10.0.0.2:6379"], "NOAUTH");
        assert_eq!(Course::of_snapshot(&course.snapshot()), Some(course.clone()));
        assert_eq!(course.apply(22, 2, &fails("NO\nAUTH")), Meaning::Malformed);
        (0..2).for_each(|_| _ = course.apply(22, 2, &holds(2, 1, 0, 3, true)));
        assert!(course.fails.is_empty());
    }

    #[test]
    fn a_command_that_its_leader_did_not_finish_is_void() {
        let mut course = Course::default();
        let piece =
            |term, start, cut, bytes| written(Proposal::Stream { term, anew: false, start, ticket: 7, cut, wall_ms: 5, bytes });
        course.apply(11, 1, &lead(1));
        course.apply(11, 1, &piece(1, 0, 0, b"SET"));
        course.apply(11, 1, &piece(1, 3, 2, b"DELSE"));
        assert_eq!((course.offset, course.whole()), (Some(8), Some(6)));
        course.apply(11, 1, &piece(1, 8, 5, b"T 1"));
        assert_eq!((course.offset, course.whole()), (Some(11), Some(6)), "it goes on");
        course.apply(22, 2, &lead(2));
        assert_eq!((course.offset, course.cut), (Some(6), 0));
        let next = piece(2, 6, 0, b"GET");
        assert_eq!(
            course.apply(22, 2, &next),
            Meaning::Decided { start: 6, follows: true, ticket: 7, cut: 0, wall_ms: 5, bytes: b"GET" }
        );
        // No more can be cut than there is since the last whole one.
        course.apply(22, 2, &piece(2, 9, 99, b"SET"));
        assert_eq!((course.offset, course.whole()), (Some(12), Some(9)));
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
        fn hostile_entries_change_nothing_or_what_they_say(bytes in prop::collection::vec(any::<u8>(), 0..60), kind in 0u8..18) {
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
            // No state is written before a server leads.
            course.claims.clear();
            prop_assert_eq!(Course::of_snapshot(&course.snapshot()), Some(course));
            let _ = Course::of_snapshot(&bytes);
        }
    }
}
