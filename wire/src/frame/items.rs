//! The body of a heartbeat: items of any number of services, one behind the other.
//!
//! ```text
//! u8 channel   u16 length   bytes
//! ```
//! The piggyback of a monitored process (channel [`Channel::Piggyback`]) begins with the low half of that
//! process's row number. It is the first item, so that the receive program finds it at a fixed offset.
//! Piggybacks are the payload an operator's applications see; their limit of 1418 bytes is the paper's.

use super::bytes::Reader;
use super::{BODY_MAX, Channel};

/// Bytes before an item's own.
pub const HEAD_LEN: usize = 3;
/// Bytes of the row number at the beginning of a piggyback.
pub const APP_LEN: usize = 2;

/// One item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// Which service it is for: [`Channel`], or one that this version does not know.
    pub channel: u8,
    /// What it says.
    pub bytes: &'a [u8],
}

/// The bytes before an item of this length.
#[must_use]
pub const fn head(channel: Channel, length: u16) -> [u8; HEAD_LEN] {
    let [high, low] = length.to_be_bytes();
    [channel as u8, high, low]
}

/// Appends an item if it fits `room` bytes of body in all; false, and nothing appended, if not.
pub fn push(body: &mut Vec<u8>, room: usize, channel: Channel, bytes: &[u8]) -> bool {
    let Ok(length) = u16::try_from(bytes.len()) else { return false };
    if body.len() + HEAD_LEN + bytes.len() > room.min(BODY_MAX) {
        return false;
    }
    body.extend_from_slice(&head(channel, length));
    body.extend_from_slice(bytes);
    true
}

/// Reads the items of a heartbeat's body. An item cut short ends them with `Err`.
pub fn read(body: &[u8]) -> impl Iterator<Item = Result<Item<'_>, Malformed>> {
    let mut reader = Reader::new(body);
    let mut ended = false;
    std::iter::from_fn(move || {
        if ended || reader.rest().is_empty() {
            return None;
        }
        let item = next(&mut reader).ok_or(Malformed);
        ended = item.is_err();
        Some(item)
    })
}

fn next<'a>(reader: &mut Reader<'a>) -> Option<Item<'a>> {
    let channel = reader.u8()?;
    let length = reader.u16()?;
    Some(Item { channel, bytes: reader.take(length.into())? })
}

/// A body that its sender did not finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an item is longer than the heartbeat that carries it")]
pub struct Malformed;
