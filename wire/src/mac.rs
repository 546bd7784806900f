//! Keyed authentication of packets: SipHash-2-4, a 64-bit tag over the fixed part and another over the body.
//!
//! SipHash is short enough for the receive program (14 rounds for a heartbeat), keyed, and made for
//! short inputs. Key id 0 is not a secret: it is the all-zero key, used as an integrity check where no key is set,
//! so that a corrupted packet is refused there as well.

use siphasher::sip::SipHasher24;
use std::fmt;

/// A 128-bit key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub [u8; 16]);

impl fmt::Debug for Key {
    // A key must not reach a log by accident.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Why a key was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum KeyError {
    /// Not 32 hexadecimal digits.
    #[error(
        "a key is 32 hexadecimal digits (16 bytes), this one has {0} characters or other characters; make one with: openssl rand -hex 16"
    )]
    Form(usize),
    /// The all-zero key is reserved for integrity only.
    #[error("the all-zero key is public (it is what a cluster without a key uses); make one with: openssl rand -hex 16")]
    Zero,
    /// Key ids on the wire are 1 to 15.
    #[error("key id {0} is outside 1..=15")]
    Id(u8),
}

impl Key {
    /// The public key of clusters that set none (integrity only).
    pub const PUBLIC: Key = Key([0; 16]);

    /// Reads 32 hexadecimal digits, surrounding white space ignored.
    ///
    /// # Errors
    /// [`KeyError::Form`] for anything else, [`KeyError::Zero`] for the public key.
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        let text = text.trim();
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(KeyError::Form(text.chars().count()));
        }
        let mut key = [0u8; 16];
        for (i, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| KeyError::Form(32))?;
        }
        if key == [0; 16] {
            return Err(KeyError::Zero);
        }
        Ok(Key(key))
    }

    /// The two little-endian words SipHash starts from, as the kernel program takes them.
    #[must_use]
    pub fn words(&self) -> [u64; 2] {
        let word = |at: usize| {
            let mut w = [0u8; 8];
            w.copy_from_slice(&self.0[at..at + 8]);
            u64::from_le_bytes(w)
        };
        [word(0), word(8)]
    }

    /// What names the key without telling it: the tag of a text that no packet is.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.tag(b"FiDe key fingerprint")
    }

    /// SipHash-2-4 of `bytes`.
    #[must_use]
    pub fn tag(&self, bytes: &[u8]) -> u64 {
        SipHasher24::new_with_key(&self.0).hash(bytes)
    }

    /// The tag of a frame: over its header (without the tag) and its body.
    #[must_use]
    pub fn frame_tag(&self, header: &[u8], body: &[u8]) -> u64 {
        use std::hash::Hasher;
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(header);
        hasher.write(body);
        hasher.finish()
    }
}

/// The keys of a cluster: one to send with, at most two accepted, so that a rotation leaves no gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keyring {
    send: (u8, Key),
    accept: Option<(u8, Key)>,
}

impl Default for Keyring {
    fn default() -> Self {
        Self { send: (0, Key::PUBLIC), accept: None }
    }
}

impl Keyring {
    /// `send` is used for every packet sent and accepted; `accept` is accepted beside it.
    ///
    /// # Errors
    /// [`KeyError::Id`] when an id is outside 1..=15 or both are the same.
    pub fn new(send: (u8, Key), accept: Option<(u8, Key)>) -> Result<Self, KeyError> {
        for (id, _) in std::iter::once(&send).chain(accept.iter()) {
            if !(1..=15).contains(id) {
                return Err(KeyError::Id(*id));
            }
        }
        match accept {
            Some((id, _)) if id == send.0 => Err(KeyError::Id(id)),
            _ => Ok(Self { send, accept }),
        }
    }

    /// The key packets are sent with, and its id.
    #[must_use]
    pub fn sending(&self) -> (u8, Key) {
        self.send
    }

    /// The key with this id, if it is accepted now.
    #[must_use]
    pub fn get(&self, id: u8) -> Option<Key> {
        self.iter().find(|(i, _)| *i == id).map(|(_, k)| k)
    }

    /// All accepted keys with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (u8, Key)> + '_ {
        std::iter::once(self.send).chain(self.accept)
    }

    /// Ids and fingerprints of all accepted keys, that of the key packets are sent with first.
    pub fn fingerprints(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        self.iter().map(|(id, key)| (id, key.fingerprint()))
    }

    /// Whether packets are authenticated (a secret key is set), or only protected against corruption.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.send.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_vector_of_siphash_2_4() {
        // Appendix A of the SipHash paper: key 00..0f, message 00..0e.
        let mut key = [0u8; 16];
        key.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
        let message: Vec<u8> = (0u8..15).collect();
        assert_eq!(Key(key).tag(&message), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn keys_are_refused_with_a_reason() {
        assert_eq!(Key::from_hex("00"), Err(KeyError::Form(2)));
        assert_eq!(Key::from_hex(&"0".repeat(32)), Err(KeyError::Zero));
        assert_eq!(Key::from_hex(&"é".repeat(16)), Err(KeyError::Form(16)));
        assert!(Key::from_hex(&format!("{}\n", "0f".repeat(16))).is_ok());
        assert_eq!(Keyring::new((0, Key([1; 16])), None), Err(KeyError::Id(0)));
        assert_eq!(Keyring::new((3, Key([1; 16])), Some((3, Key([2; 16])))), Err(KeyError::Id(3)));
    }

    #[test]
    fn a_key_does_not_print_itself() {
        assert_eq!(format!("{:?}", Key([7; 16])), "Key(…)");
    }
}
