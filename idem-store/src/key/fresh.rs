//! Fresh keys: random UUIDs of RFC 9562, implemented here so that they need no optional dependency.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Key, Scope, hex};
use crate::random;

impl Key {
    /// Generates a key: a UUID of version 7 (RFC 9562, section 5.7), which has the time in milliseconds and 74 random
    /// bits.
    ///
    /// Generate it **once per intention, before the first attempt**, save it with the work, and send it with every
    /// retry. A new key for each attempt gives no protection. Later keys sort after earlier ones, so an index of them
    /// grows at its end. Within a millisecond, or after the clock was set back, their order is random.
    ///
    /// The key reveals the time at which it was generated; [`generate_v4`](Self::generate_v4) does not.
    ///
    /// ```
    /// # use idem_store::Key;
    /// let key = Key::generate();
    /// assert_eq!(key.as_str().len(), 36);
    /// assert_ne!(key, Key::generate());
    /// ```
    pub fn generate() -> Self {
        let now = SystemTime::now();
        // A clock before 1970 makes keys unordered, but they stay unique.
        let millis = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut bytes = random::bytes();
        bytes[..6].copy_from_slice(&(millis.as_millis() as u64).to_be_bytes()[2..]);
        Self::uuid(bytes, 7)
    }

    /// Time at which the key was made, in milliseconds by the clock of its maker, if the key is a UUID of version 7 or ends
    /// with one, as in `order/0190a5e2-...`.
    ///
    /// ```
    /// # use idem_store::Key;
    /// let key = Key::generate();
    /// assert!(key.made_at().is_some());
    /// assert_eq!(Key::new(format!("order/{}", key.as_str()))?.made_at(), key.made_at());
    /// assert_eq!(Key::generate_v4().made_at(), None);
    /// # Ok::<(), idem_store::error::InvalidKey>(())
    /// ```
    pub fn made_at(&self) -> Option<SystemTime> {
        const LENGTH: usize = 36;
        let text = self.as_str();
        let (before, uuid) = text.split_at_checked(text.len().checked_sub(LENGTH)?)?;
        let is_a_part = !before.ends_with(|last: char| last.is_ascii_alphanumeric());
        let mut digits = [0; LENGTH - 4];
        let mut count = 0;
        for (place, byte) in uuid.bytes().enumerate() {
            match (place, byte) {
                (8 | 13 | 18 | 23, b'-') => {}
                (8 | 13 | 18 | 23, _) => return None,
                _ => {
                    *digits.get_mut(count)? = byte;
                    count += 1;
                }
            }
        }
        let bytes: [u8; 16] = hex::decode(std::str::from_utf8(&digits).ok()?)?;
        let is_version_7 = bytes[6] >> 4 == 7 && bytes[8] >> 6 == 0b10;
        let mut millis = [0; 8];
        millis[2..].copy_from_slice(&bytes[..6]);
        let since = Duration::from_millis(u64::from_be_bytes(millis));
        (is_a_part && is_version_7).then(|| UNIX_EPOCH + since)
    }

    /// Generates a key that reveals nothing: a UUID of version 4 (RFC 9562, section 5.4), with 122 random bits.
    pub fn generate_v4() -> Self {
        Self::uuid(random::bytes(), 4)
    }

    /// Formats these bytes as a UUID, after setting its version and variant.
    #[doc(hidden)]
    pub fn uuid(mut bytes: [u8; 16], version: u8) -> Self {
        bytes[6] = bytes[6] & 0x0f | version << 4;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        let hex = hex::encode(&bytes);
        let groups = [
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..],
        ];
        Self {
            text: groups.join("-").into(),
            scope: Scope::none(),
        }
    }
}
