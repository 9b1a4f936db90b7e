//! Keys that nobody has used before: random UUIDs of RFC 9562, written by hand so that every build can make them.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{Key, Scope};

impl Key {
    /// A fresh key: a UUID of version 7 (RFC 9562, section 5.7), which is the time in milliseconds and 74 random bits.
    ///
    /// Make it **once per intention, before the first try**, keep it with the work that it is for, and repeat it with
    /// every retry. A key made anew for each try protects from nothing. Keys made later sort behind earlier ones, so
    /// an index of them grows at its end; within a millisecond, or where the clock was set back, their order is random.
    ///
    /// It tells the time at which it was made to whoever reads it: [`generate_v4`](Self::generate_v4) does not.
    ///
    /// ```
    /// let key = idem_runtime::Key::generate();
    /// assert_eq!(key.as_str().len(), 36);
    /// assert_ne!(key, idem_runtime::Key::generate());
    /// ```
    pub fn generate() -> Self {
        let now = SystemTime::now();
        // A clock before 1970 costs the order of keys, not their being unique.
        let millis = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut bytes: [u8; 16] = rand::random();
        bytes[..6].copy_from_slice(&(millis.as_millis() as u64).to_be_bytes()[2..]);
        Self::uuid(bytes, 7)
    }

    /// A fresh key that tells nothing: a UUID of version 4 (RFC 9562, section 5.4), 122 random bits.
    pub fn generate_v4() -> Self {
        Self::uuid(rand::random(), 4)
    }

    /// The UUID of these bytes, once version and variant are written over them.
    fn uuid(mut bytes: [u8; 16], version: u8) -> Self {
        bytes[6] = bytes[6] & 0x0f | version << 4;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        let hex = super::hex(&bytes);
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
