//! Messages of services that exceed one frame, in fragments. The receiver puts them together by sender,
//! channel and message number.
//!
//! ```text
//! u32 message   u16 index   u16 count   u32 length of the whole   bytes
//! ```
//! Fragments are bounded: a message has at most [`MESSAGE_MAX`] bytes. Larger states go over TCP.

use super::bytes::Reader;
use super::{BODY_MAX, FRAME_SAFE};

/// Bytes before a fragment's own.
pub const HEAD_LEN: usize = 12;
/// The largest message that is sent in fragments.
pub const MESSAGE_MAX: usize = 128 << 10;
/// The most fragments of one message: the smallest frame that a path must carry bounds it.
pub const COUNT_MAX: u16 = (MESSAGE_MAX.div_ceil(FRAME_SAFE - super::BODY_AT - HEAD_LEN)) as u16;

/// One part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// Which message of the sender on this channel.
    pub message: u32,
    /// Which part, from 0.
    pub index: u16,
    /// How many parts there are.
    pub count: u16,
    /// Bytes of the whole message.
    pub length: u32,
    /// This part.
    pub bytes: &'a [u8],
}

impl<'a> Fragment<'a> {
    /// Reads a fragment. Its place must be possible and its part not empty.
    #[must_use]
    pub fn read(body: &'a [u8]) -> Option<Self> {
        let mut r = Reader::new(body);
        let fragment = Self { message: r.u32()?, index: r.u16()?, count: r.u16()?, length: r.u32()?, bytes: r.rest() };
        let whole = fragment.length as usize;
        let is_possible = fragment.index < fragment.count
            && fragment.count <= COUNT_MAX
            && whole <= MESSAGE_MAX
            && !fragment.bytes.is_empty()
            && fragment.bytes.len() <= whole
            && usize::from(fragment.count) <= whole;
        is_possible.then_some(fragment)
    }

    /// Appends the fragment to a body.
    pub fn write(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.message.to_be_bytes());
        body.extend_from_slice(&self.index.to_be_bytes());
        body.extend_from_slice(&self.count.to_be_bytes());
        body.extend_from_slice(&self.length.to_be_bytes());
        body.extend_from_slice(self.bytes);
    }

    /// Cuts a message for frames whose bodies have at most `body_max` bytes; nothing if it is too large.
    /// Every part but the last has the same size, so its index says where it belongs.
    #[must_use]
    pub fn cut(message: u32, whole: &'a [u8], body_max: usize) -> Option<Vec<Self>> {
        let part = body_max.min(BODY_MAX).checked_sub(HEAD_LEN).filter(|part| *part > 0)?;
        let count = u16::try_from(whole.len().div_ceil(part)).ok().filter(|n| (1..=COUNT_MAX).contains(n))?;
        let length = u32::try_from(whole.len()).ok().filter(|n| *n as usize <= MESSAGE_MAX)?;
        let cut = |(index, bytes): (usize, &'a [u8])| Self { message, index: index as u16, count, length, bytes };
        Some(whole.chunks(part).enumerate().map(cut).collect())
    }
}
