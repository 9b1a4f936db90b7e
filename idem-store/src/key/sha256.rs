//! SHA-256 of bytes in a buffer that has room behind them.
//!
//! The hasher of `sha2` copies the last block of a message to pad it. Here the message is padded where it lies. Ids and
//! most fingerprints have two or three blocks, so the copy is a noticeable part of their hash.

use sha2::block_api::compress256;

/// Size of a block, in bytes.
const BLOCK: usize = 64;

/// The first 32 bits of the fractional parts of the square roots of the first eight primes (FIPS 180-4, §5.3.3).
const INITIAL: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// Length of a padded message of this length, in bytes.
#[inline]
pub const fn padded_len(len: usize) -> usize {
    (len + 9).next_multiple_of(BLOCK)
}

/// Hashes the first `len` bytes of a buffer of [`padded_len`] bytes. The bytes after them are overwritten.
///
/// # Panics
/// If the buffer has another length.
pub fn digest(buffer: &mut [u8], len: usize) -> [u8; 32] {
    assert_eq!(
        buffer.len(),
        padded_len(len),
        "the buffer has no room to pad"
    );
    let (padding, bits) = buffer[len..].split_at_mut(padded_len(len) - len - 8);
    padding.fill(0);
    padding[0] = 0x80;
    bits.copy_from_slice(&(len as u64 * 8).to_be_bytes());
    let mut state = INITIAL;
    compress256(&mut state, buffer.as_chunks().0);
    let mut hash = [0; 32];
    for (bytes, word) in hash.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *bytes = word.to_be_bytes();
    }
    hash
}

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    use super::*;

    #[test]
    fn the_hash_is_that_of_the_hasher_for_each_length() {
        for len in 0..=4 * BLOCK {
            let message: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
            // What an earlier message left in the buffer makes no difference.
            let mut buffer = vec![0xff; padded_len(len)];
            buffer[..len].copy_from_slice(&message);
            let expected: [u8; 32] = Sha256::digest(&message).into();
            assert_eq!(digest(&mut buffer, len), expected, "{len} bytes");
        }
    }
}
