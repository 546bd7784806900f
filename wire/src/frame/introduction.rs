//! Hello and introduction: how a host learns who lives *now*.
//!
//! A receiver believes nothing of a host before that host answered a fresh nonce of the receiver, so that
//! recorded frames of hosts that left, restarted or died mean nothing to an agent that restarts.
//!
//! ```text
//! Hello         u64 nonce   u16 count   count × u32 node      no node: everybody is asked
//!               addresses of the sender, as in a host's row     where answers go
//! Introduction  u16 count   count × (u32 node, u64 nonce)     the hellos that it answers
//!               u64 heartbeats   u64 others                   numbers used by now in both sequences
//!               u64 epoch   u64 complete                      the host's table
//!               contract: u64 period_ns   u32 size_max   u64 lambda_min_ns   u64 delta_max_ns
//!               the host's row (table.rs)
//!               u64 challenge   u64 response   u8 diverted     0: no number; a bit for each path
//!               count × u32 seen                              of the host that is answered: its last incarnation before
//!               u8 count   count × (u32 node, u32 incarnation)   who has given the sender up, wrongly
//! ```
//! An introduction may answer the hellos of many hosts, where it is sent to everybody. One that answers none is an
//! *announcement*: it keeps what is known of a confirmed host up to date, and has others ask a host that is not.

use super::bytes::{Reader, put_address};
use super::table::Host;
use crate::PATHS;
use crate::verdict::Contract;
use std::net::IpAddr;
use std::num::NonZeroU64;

/// The most hosts that one hello names. A longer list is a hello to everybody.
pub const ASKED_MAX: usize = 64;
/// The most hellos that one introduction answers.
pub const ANSWERS_MAX: usize = 48;
/// The most hosts whose word on the sender it refutes.
pub const REFUTED_MAX: usize = 8;

/// The sender challenges hosts to introduce themselves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    /// Drawn at random for this hello.
    pub nonce: u64,
    /// Who is asked; empty: everybody.
    pub asked: Vec<u32>,
    /// The sender's unicast address on each path: where the answer goes.
    pub addresses: [Option<IpAddr>; PATHS],
}

impl Hello {
    /// Appends it to a body.
    pub fn write(&self, body: &mut Vec<u8>) {
        let asked = if self.asked.len() > ASKED_MAX { &[] } else { &self.asked[..] };
        body.extend_from_slice(&self.nonce.to_be_bytes());
        body.extend_from_slice(&(asked.len() as u16).to_be_bytes());
        asked.iter().for_each(|node| body.extend_from_slice(&node.to_be_bytes()));
        self.addresses.iter().for_each(|address| put_address(body, *address));
    }

    /// Reads it.
    #[must_use]
    pub fn read(body: &[u8]) -> Option<Self> {
        let mut r = Reader::new(body);
        let (nonce, count) = (r.u64()?, r.u16()?);
        if usize::from(count) > ASKED_MAX {
            return None;
        }
        let asked = (0..count).map(|_| r.u32()).collect::<Option<_>>()?;
        Some(Self { nonce, asked, addresses: r.addresses()? })
    }
}

/// Which hello an introduction answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// The host that asked.
    pub node: u32,
    /// The nonce of its hello.
    pub nonce: u64,
    /// The highest incarnation of that host that the sender has seen, beside the one that asked: what a state on that host's disk must know of.
    /// 0: none, or the sender does not say so.
    pub seen: u32,
}

/// Who the sender is. It proves that the sender lives to those hosts alone whose nonces it answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Introduction {
    /// The hellos that it answers.
    pub answers: Vec<Answer>,
    /// The number of the last heartbeat that the sender sent: no fresh one has a lower number.
    pub heartbeats: u64,
    /// The number of the last other frame.
    pub others: u64,
    /// Which table the sender writes. It changes only if that table was lost.
    pub epoch: u64,
    /// The version through which it is complete.
    pub complete: u64,
    /// What the sender promises of its heartbeats.
    pub contract: Contract,
    /// The sender.
    pub host: Host,
    /// A random number, if frames of the sender's own name were received: another agent of that name repeats it.
    pub challenge: Option<NonZeroU64>,
    /// The number with which another agent of this name asked.
    pub response: Option<NonZeroU64>,
    /// Paths on which frames with the sender's own MAC arrived a moment ago: frames to it may go astray there.
    pub diverted: [bool; PATHS],
    /// Hosts, and which incarnations of them, that have given this incarnation of the sender up although enough others confirm its heartbeats.
    pub refuted: Vec<(u32, u32)>,
}

impl Introduction {
    /// Appends it to a body. Answers past [`ANSWERS_MAX`] are left out, and so is what is refuted past [`REFUTED_MAX`].
    pub fn write(&self, body: &mut Vec<u8>) {
        let answers = &self.answers[..self.answers.len().min(ANSWERS_MAX)];
        body.extend_from_slice(&(answers.len() as u16).to_be_bytes());
        for answer in answers {
            body.extend_from_slice(&answer.node.to_be_bytes());
            body.extend_from_slice(&answer.nonce.to_be_bytes());
        }
        for word in [self.heartbeats, self.others, self.epoch, self.complete, self.contract.period_ns] {
            body.extend_from_slice(&word.to_be_bytes());
        }
        body.extend_from_slice(&self.contract.size_max.to_be_bytes());
        for word in [self.contract.lambda_min_ns, self.contract.delta_max_ns] {
            body.extend_from_slice(&word.to_be_bytes());
        }
        self.host.write(body);
        for number in [self.challenge, self.response] {
            body.extend_from_slice(&number.map_or(0, NonZeroU64::get).to_be_bytes());
        }
        body.push(self.diverted.iter().enumerate().map(|(path, is_diverted)| u8::from(*is_diverted) << path).sum());
        answers.iter().for_each(|answer| body.extend_from_slice(&answer.seen.to_be_bytes()));
        let refuted = &self.refuted[..self.refuted.len().min(REFUTED_MAX)];
        body.push(refuted.len() as u8);
        for word in refuted.iter().flat_map(|(node, incarnation)| [node, incarnation]) {
            body.extend_from_slice(&word.to_be_bytes());
        }
    }

    /// Reads it; bytes behind it are a later version's.
    #[must_use]
    pub fn read(body: &[u8]) -> Option<Self> {
        let mut r = Reader::new(body);
        let count = r.u16()?;
        if usize::from(count) > ANSWERS_MAX {
            return None;
        }
        let answer = |r: &mut Reader<'_>| Some(Answer { node: r.u32()?, nonce: r.u64()?, seen: 0 });
        let mut answers = (0..count).map(|_| answer(&mut r)).collect::<Option<Vec<_>>>()?;
        let (heartbeats, others, epoch, complete) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
        let contract = Contract { period_ns: r.u64()?, size_max: r.u32()?, lambda_min_ns: r.u64()?, delta_max_ns: r.u64()? };
        let host = Host::read(&mut r)?;
        let (challenge, response) = (NonZeroU64::new(r.u64()?), NonZeroU64::new(r.u64()?));
        let bits = r.u8()?;
        let diverted = std::array::from_fn(|path| bits & 1 << path != 0);
        // Releases before end here, or behind the next field.
        if !r.rest().is_empty() {
            for answer in &mut answers {
                answer.seen = r.u32()?;
            }
        }
        let count = if r.rest().is_empty() { 0 } else { r.u8()? };
        if usize::from(count) > REFUTED_MAX {
            return None;
        }
        let refuted = (0..count).map(|_| Some((r.u32()?, r.u32()?))).collect::<Option<_>>()?;
        Some(Self { answers, heartbeats, others, epoch, complete, contract, host, challenge, response, diverted, refuted })
    }
}
