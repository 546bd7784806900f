//! Reading and writing big-endian numbers, never past the end.

use crate::PATHS;
use std::net::IpAddr;

/// Takes numbers and byte strings off the front of a slice. Every method says `None` at its end.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Begins at the first byte.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `n` bytes.
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(n)?;
        self.rest = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*head)
    }

    /// One byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// Four bytes, with a sign.
    pub fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Sixteen bytes.
    pub fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_be_bytes)
    }

    /// An address for each path, each behind 0 (none), 4 or 6.
    pub fn addresses(&mut self) -> Option<[Option<IpAddr>; PATHS]> {
        let mut addresses = [None; PATHS];
        for address in &mut addresses {
            *address = match self.u8()? {
                0 => None,
                4 => Some(IpAddr::from(self.array::<4>()?)),
                6 => Some(IpAddr::from(self.array::<16>()?)),
                _ => return None,
            };
        }
        Some(addresses)
    }

    /// A text whose length is its first byte.
    pub fn text(&mut self) -> Option<&'a str> {
        let len = self.u8()?;
        std::str::from_utf8(self.take(len.into())?).ok()
    }
}

/// Appends a text of at most 255 bytes behind its length; a longer one is cut at a character.
pub fn put_text(out: &mut Vec<u8>, text: &str) {
    let mut end = text.len().min(u8::MAX.into());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.push(end as u8);
    out.extend_from_slice(&text.as_bytes()[..end]);
}

/// Appends an address behind 0 (none), 4 or 6.
pub fn put_address(out: &mut Vec<u8>, address: Option<IpAddr>) {
    match address {
        None => out.push(0),
        Some(IpAddr::V4(a)) => {
            out.push(4);
            out.extend_from_slice(&a.octets());
        }
        Some(IpAddr::V6(a)) => {
            out.push(6);
            out.extend_from_slice(&a.octets());
        }
    }
}
