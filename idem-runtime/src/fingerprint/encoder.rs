//! Writes deterministic CBOR into one reusable buffer. Long strings go directly to the hasher.

use std::cell::Cell;
use std::fmt;
use std::mem;

use sha2::{Digest as _, Sha256};

use super::check::{self, MAX_DEPTH};
use super::{Fingerprint, VERSION};
use crate::error::FingerprintError;
use crate::key::sha256;
use crate::record::Digest;

/// Start of every hashed item: the head of an array of two, and the version.
pub(super) const PREFIX: &[u8; 8] = b"\x82\x66idem/1";
/// Minimum length, in bytes, of a string that goes to the hasher without a copy.
const BULK: usize = 1024;
/// Maximum size, in bytes, of a buffer that the next request reuses.
const MAX_REUSED: usize = 64 * 1024;

const UNSIGNED: u8 = 0x00;
const NEGATIVE: u8 = 0x20;
const BYTES: u8 = 0x40;
const TEXT: u8 = 0x60;
const ARRAY: u8 = 0x80;
const MAP: u8 = 0xa0;
const FALSE: u8 = 0xf4;
const TRUE: u8 = 0xf5;
const NULL: u8 = 0xf6;
/// Tag 0x6964: `Some` of a value that has the same form as `None`, or as a `Some` with fewer levels.
const PRESENT: [u8; 3] = [0xd9, 0x69, 0x64];
/// Tag 4: decimal fraction, as exponent and mantissa.
const DECIMAL: [u8; 2] = [0xc4, 0x82];
/// Tag 0x6965: decimal number whose mantissa is too long for 128 bits, as exponent and digits.
const LONG_DECIMAL: [u8; 4] = [0xd9, 0x69, 0x65, 0x82];

/// Writes canonical forms.
///
/// Each method writes one item or the head of one: after [`map`](Self::map) and [`array`](Self::array), the caller writes
/// as many entries or items as it announced. The first error is stored, and [`digest`](super::digest) returns it, so the
/// methods are infallible.
pub struct Encoder {
    /// Bytes written, up to `len`. The bytes after `len` are initialized too, so that a write needs one bounds check.
    buffer: Vec<u8>,
    len: usize,
    /// Number of bytes that went to the hasher before the buffer's.
    streamed: usize,
    sink: Sink,
    /// Number of open maps and sets that are to be sorted.
    sorting: usize,
    spans: Vec<Span>,
    depth: usize,
    error: Option<FingerprintError>,
}

/// Destination of the bytes.
enum Sink {
    /// The buffer.
    Buffer,
    /// A digest, of which no byte has been streamed.
    Digest,
    /// A hasher that has received bytes.
    Hasher(Box<Sha256>),
}

/// Position in the buffer of an entry of a map or set.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: usize,
    key_end: usize,
    end: usize,
}

/// Kind of a collection whose order or size is not known in advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gather {
    /// Entries, which are sorted by their keys.
    Map,
    /// Elements, which are sorted.
    Set,
    /// Items, which keep their order.
    Array,
}

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Digest of `["idem/1", value]`.
#[inline]
pub(super) fn digest<T: Fingerprint + ?Sized>(value: &T) -> Result<Digest, FingerprintError> {
    let mut encoder = Encoder::new(
        Sink::Digest,
        BUFFER.try_with(Cell::take).unwrap_or_default(),
    );
    value.fingerprint_after(PREFIX, &mut encoder);
    encoder.finish()
}

/// Bytes of `["idem/1", value]`.
pub(super) fn bytes<T: Fingerprint + ?Sized>(value: &T) -> Result<Vec<u8>, FingerprintError> {
    let mut encoder = Encoder::new(Sink::Buffer, Vec::new());
    encoder.raw(PREFIX);
    value.fingerprint(&mut encoder);
    if let Some(error) = encoder.error {
        return Err(error);
    }
    encoder.buffer.truncate(encoder.len);
    check::one_item(&encoder.buffer)?;
    Ok(encoder.buffer)
}

impl Encoder {
    #[inline]
    fn new(sink: Sink, buffer: Vec<u8>) -> Self {
        Self {
            buffer,
            len: 0,
            streamed: 0,
            sink,
            sorting: 0,
            spans: Vec::new(),
            depth: 0,
            error: None,
        }
    }

    #[inline(never)]
    fn finish(&mut self) -> Result<Digest, FingerprintError> {
        let hash = match mem::replace(&mut self.sink, Sink::Digest) {
            Sink::Hasher(hasher) => {
                let rest = &self.buffer[..self.len];
                hasher.chain_update(rest).finalize().into()
            }
            Sink::Buffer | Sink::Digest => {
                let end = sha256::padded_len(self.len);
                self.room(end - self.len);
                sha256::digest(&mut self.buffer[..end], self.len)
            }
        };
        if self.buffer.len() <= MAX_REUSED {
            // Fails only while the thread ends, and then nothing reuses the buffer.
            let _ = BUFFER.try_with(|reused| reused.set(mem::take(&mut self.buffer)));
        }
        match self.error.take() {
            Some(error) => Err(error),
            None => Ok(Digest::new(VERSION, [0; 4], &hash)),
        }
    }

    /// Writes the head of a map with this number of entries, each a key and a value.
    ///
    /// The caller writes the entries **sorted by the bytes of their encoded keys**: a shorter text key comes before a
    /// longer one, and keys of one length are in the order of their bytes. [`map_of`](Self::map_of) sorts.
    #[inline]
    pub fn map(&mut self, entries: usize) {
        self.head(&[], MAP, entries as u64);
    }

    /// Writes the head of an array with this number of items.
    #[inline]
    pub fn array(&mut self, items: usize) {
        self.head(&[], ARRAY, items as u64);
    }

    /// Writes a text.
    #[inline]
    pub fn text(&mut self, text: &str) {
        self.text_after(&[], text);
    }

    #[inline]
    pub(super) fn text_after(&mut self, prefix: &[u8], text: &str) {
        self.string(prefix, TEXT, text.as_bytes());
    }

    /// Writes a byte string.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.bytes_after(&[], bytes);
    }

    #[inline]
    pub(super) fn bytes_after(&mut self, prefix: &[u8], bytes: &[u8]) {
        self.string(prefix, BYTES, bytes);
    }

    /// Writes a boolean.
    #[inline]
    pub fn bool(&mut self, value: bool) {
        self.raw(&[if value { TRUE } else { FALSE }]);
    }

    /// Writes null, the form of `None`.
    #[inline]
    pub fn null(&mut self) {
        self.raw(&[NULL]);
    }

    /// Writes an integer.
    #[inline]
    pub fn u64(&mut self, value: u64) {
        self.u64_after(&[], value);
    }

    #[inline]
    pub(super) fn u64_after(&mut self, prefix: &[u8], value: u64) {
        self.head(prefix, UNSIGNED, value);
    }

    /// Writes an integer.
    #[inline]
    pub fn i64(&mut self, value: i64) {
        self.i64_after(&[], value);
    }

    #[inline]
    pub(super) fn i64_after(&mut self, prefix: &[u8], value: i64) {
        // A negative integer is written as its distance from -1, which is its bitwise complement.
        let sign = value >> 63;
        self.head(prefix, NEGATIVE & sign as u8, (value ^ sign) as u64);
    }

    /// Writes an integer.
    pub fn u128(&mut self, value: u128) {
        self.wide(UNSIGNED, value);
    }

    /// Writes an integer.
    pub fn i128(&mut self, value: i128) {
        if value < 0 {
            self.wide(NEGATIVE, !value as u128);
        } else {
            self.wide(UNSIGNED, value as u128);
        }
    }

    /// Writes a binary floating-point number, in the shortest form that holds it exactly.
    ///
    /// Infinities are allowed. -0.0 has the form of 0.0. NaN is an error, because it has no canonical form.
    pub fn float(&mut self, value: f64) {
        use super::number::{Shortest, shortest};
        match shortest(value) {
            Some(Shortest::Half(bits)) => {
                let [a, b] = bits.to_be_bytes();
                self.raw(&[0xf9, a, b]);
            }
            Some(Shortest::Single(bits)) => {
                let [a, b, c, d] = bits.to_be_bytes();
                self.raw(&[0xfa, a, b, c, d]);
            }
            Some(Shortest::Double(bits)) => {
                self.raw(&[0xfb]);
                self.raw(&bits.to_be_bytes());
            }
            None => self.fail(FingerprintError::new(
                "a float is NaN, which is not equal to itself; refuse NaN before the call",
            )),
        }
    }

    /// Writes a decimal number from its text: an optional sign, digits, optionally a point and more digits, optionally an
    /// exponent. Equal numbers have one form: `1`, `1.0`, `10e-1` and the integer 1 are the same.
    pub fn decimal(&mut self, text: &str) {
        match super::number::parse(text) {
            Ok(number) => self.number(number),
            Err(error) => self.fail(error),
        }
    }

    pub(super) fn number(&mut self, number: super::number::Decimal<'_>) {
        use super::number::{Decimal, Sign};
        match number {
            Decimal::Integer { sign, magnitude } => match sign {
                Sign::Plus => self.wide(UNSIGNED, magnitude),
                Sign::Minus => self.wide(NEGATIVE, magnitude - 1),
            },
            Decimal::Fraction { exponent, mantissa } => {
                self.raw(&DECIMAL);
                self.i64(exponent);
                self.i128(mantissa);
            }
            Decimal::Long { exponent, digits } => {
                self.raw(&LONG_DECIMAL);
                self.i64(exponent);
                self.text(&digits);
            }
        }
    }

    /// Writes a map, and sorts its entries by their encoded keys. Two keys with the same encoding are an error.
    pub fn map_of<K, V, I>(&mut self, entries: I)
    where
        K: Fingerprint,
        V: Fingerprint,
        I: IntoIterator<Item = (K, V)>,
    {
        self.gather(Gather::Map, |encoder| {
            let mut count = 0;
            for (key, value) in entries {
                let start = encoder.len;
                key.fingerprint(encoder);
                let key_end = encoder.len;
                value.fingerprint(encoder);
                encoder.span(start, key_end);
                count += 1;
            }
            count
        });
    }

    /// Writes a set: an array of its elements, sorted by their encodings. Two elements with the same encoding are an error.
    pub fn set_of<T, I>(&mut self, elements: I)
    where
        T: Fingerprint,
        I: IntoIterator<Item = T>,
    {
        self.gather(Gather::Set, |encoder| {
            let mut count = 0;
            for element in elements {
                let start = encoder.len;
                element.fingerprint(encoder);
                encoder.span(start, encoder.len);
                count += 1;
            }
            count
        });
    }

    /// Stores the error of a value that has no canonical form. The first error is returned.
    #[cold]
    pub fn fail(&mut self, error: FingerprintError) {
        self.error.get_or_insert(error);
    }

    /// Writes bytes that are canonical CBOR already.
    #[doc(hidden)]
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        copy(bytes, self.room(bytes.len()));
        self.len += bytes.len();
    }

    /// Writes an entry of a map whose name is encoded already. Writes nothing if the value is absent.
    #[doc(hidden)]
    #[inline]
    pub fn entry<T: Fingerprint + ?Sized, const N: usize>(&mut self, name: &[u8; N], value: &T) {
        if !value.is_absent() {
            value.fingerprint_after(name, self);
        }
    }

    /// Number of a map's entries for the value: zero if it is absent, otherwise one.
    #[doc(hidden)]
    #[inline]
    pub fn present<T: Fingerprint + ?Sized>(value: &T) -> usize {
        usize::from(!value.is_absent())
    }

    /// Writes `Some` of the item that `write` writes, which starts `prefix` bytes after the current position.
    #[inline]
    pub(super) fn some(&mut self, prefix: usize, write: impl FnOnce(&mut Self)) {
        let start = self.streamed + self.len + prefix;
        write(self);
        // An item whose start went to the hasher contains a long string, so it is neither null nor `Some` of null.
        if let Some(start) = start.checked_sub(self.streamed)
            && let Some(&first) = self.buffer[..self.len].get(start)
            && (first == NULL || first == PRESENT[0])
        {
            self.mark_present(start);
        }
    }

    #[cold]
    fn mark_present(&mut self, start: usize) {
        let item = &self.buffer[start..self.len];
        if item[0] == NULL || item.starts_with(&PRESENT) {
            self.room(PRESENT.len());
            self.buffer
                .copy_within(start..self.len, start + PRESENT.len());
            self.buffer[start..start + PRESENT.len()].copy_from_slice(&PRESENT);
            self.len += PRESENT.len();
        }
    }

    /// Limits the depth of values, so that they cannot overflow the stack.
    #[inline]
    pub(super) fn nested(&mut self, write: impl FnOnce(&mut Self)) {
        if self.depth == MAX_DEPTH {
            return self.fail(FingerprintError::new(
                "the request nests more than 128 levels deep; flatten it",
            ));
        }
        self.depth += 1;
        write(self);
        self.depth -= 1;
    }

    /// Writes a collection whose size `write` returns, and sorts the items that it has marked with [`span`](Self::span).
    pub(super) fn gather(&mut self, what: Gather, write: impl FnOnce(&mut Self) -> usize) {
        // No byte may go to the hasher before the head and the order of the items are known.
        self.sorting += 1;
        // The spans before `base` belong to outer collections, which are not complete.
        let base = self.spans.len();
        let head = self.len;
        let major = if what == Gather::Map { MAP } else { ARRAY };
        self.raw(&[major]);
        let mut count = 0;
        self.nested(|encoder| count = write(encoder));
        self.sort(base, head + 1, what);
        self.spans.truncate(base);
        self.sorting -= 1;
        if count < 24 {
            self.buffer[head] = major | count as u8;
        } else {
            self.long_head(head, major, count as u64);
        }
    }

    /// Marks an item of a collection in [`gather`](Self::gather), from `start` to the current position.
    pub(super) fn span(&mut self, start: usize, key_end: usize) {
        self.spans.push(Span {
            start,
            key_end,
            end: self.len,
        });
    }

    pub(super) fn position(&self) -> usize {
        self.len
    }

    fn sort(&mut self, base: usize, start: usize, what: Gather) {
        let end = self.len;
        let (buffer, spans) = (&self.buffer, &mut self.spans[base..]);
        let key = |span: &Span| &buffer[span.start..span.key_end];
        if spans.is_sorted_by(|one, other| key(one) < key(other)) {
            return;
        }
        spans.sort_unstable_by(|one, other| key(one).cmp(key(other)));
        if spans.windows(2).any(|pair| key(&pair[0]) == key(&pair[1])) {
            return self.fail(FingerprintError::new(match what {
                Gather::Set => "two elements of one set have the same canonical form",
                Gather::Map | Gather::Array => "two keys of one map have the same canonical form",
            }));
        }
        // Copies the items in order to the end of the buffer, and from there over the unordered ones.
        self.room(end - start);
        for &Span { start, end, .. } in &self.spans[base..] {
            self.buffer.copy_within(start..end, self.len);
            self.len += end - start;
        }
        self.buffer.copy_within(end..self.len, start);
        self.len = end;
    }

    /// Writes a head of several bytes where one byte was reserved.
    fn long_head(&mut self, at: usize, major: u8, count: u64) {
        let end = self.len;
        self.head(&[], major, count);
        let size = self.len - end;
        self.room(size);
        let mut head = [0; 9];
        head[..size].copy_from_slice(&self.buffer[end..end + size]);
        self.buffer.copy_within(at + 1..end, at + size);
        self.buffer[at..at + size].copy_from_slice(&head[..size]);
        self.len = end + size - 1;
    }

    /// Initialized bytes after the written ones.
    #[inline]
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.buffer.len() - self.len < bytes {
            self.grow(bytes);
        }
        &mut self.buffer[self.len..][..bytes]
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, bytes: usize) {
        let size = (self.len + bytes).max(self.buffer.len() * 2).max(512);
        self.buffer.resize(size, 0);
    }

    /// Writes the prefix, and the head of an item: its major type, and its argument in the shortest form.
    #[inline]
    fn head(&mut self, prefix: &[u8], major: u8, argument: u64) {
        let (before, room) = self.room(prefix.len() + 9).split_at_mut(prefix.len());
        before.copy_from_slice(prefix);
        let size = if argument < 24 {
            room[0] = major | argument as u8;
            1
        } else if let Ok(argument) = u8::try_from(argument) {
            room[0] = major | 24;
            room[1] = argument;
            2
        } else if let Ok(argument) = u16::try_from(argument) {
            room[0] = major | 25;
            room[1..3].copy_from_slice(&argument.to_be_bytes());
            3
        } else if let Ok(argument) = u32::try_from(argument) {
            room[0] = major | 26;
            room[1..5].copy_from_slice(&argument.to_be_bytes());
            5
        } else {
            room[0] = major | 27;
            room[1..9].copy_from_slice(&argument.to_be_bytes());
            9
        };
        self.len += prefix.len() + size;
    }

    /// Writes an integer of any width: `argument` is its value, or its distance from -1 with [`NEGATIVE`].
    pub(super) fn wide(&mut self, major: u8, argument: u128) {
        if let Ok(argument) = u64::try_from(argument) {
            return self.head(&[], major, argument);
        }
        self.raw(&[if major == NEGATIVE { 0xc3 } else { 0xc2 }]);
        let bytes = argument.to_be_bytes();
        self.bytes(&bytes[argument.leading_zeros() as usize / 8..]);
    }

    #[inline(always)]
    fn string(&mut self, prefix: &[u8], major: u8, bytes: &[u8]) {
        let len = bytes.len();
        if len >= BULK {
            self.raw(prefix);
            return self.bulk(major, bytes);
        }
        let (before, room) = self.room(prefix.len() + 3 + len).split_at_mut(prefix.len());
        before.copy_from_slice(prefix);
        let head = if len < 24 {
            room[0] = major | len as u8;
            1
        } else if len <= 0xff {
            room[0] = major | 24;
            room[1] = len as u8;
            2
        } else {
            room[0] = major | 25;
            room[1..3].copy_from_slice(&(len as u16).to_be_bytes());
            3
        };
        copy(bytes, &mut room[head..head + len]);
        self.len += prefix.len() + head + len;
    }

    #[inline(never)]
    fn bulk(&mut self, major: u8, bytes: &[u8]) {
        self.head(&[], major, bytes.len() as u64);
        if self.sorting > 0 || matches!(self.sink, Sink::Buffer) {
            return self.raw(bytes);
        }
        if !matches!(self.sink, Sink::Hasher(_)) {
            self.sink = Sink::Hasher(Box::new(Sha256::new()));
        }
        if let Sink::Hasher(hasher) = &mut self.sink {
            hasher.update(&self.buffer[..self.len]);
            hasher.update(bytes);
            self.streamed += self.len + bytes.len();
            self.len = 0;
        }
    }
}

/// Copies bytes. Short strings, as most are, are copied without a call: both ends, which meet or overlap.
#[inline]
fn copy(from: &[u8], to: &mut [u8]) {
    if from.len() > 64
        || !(ends::<32>(from, to)
            || ends::<16>(from, to)
            || ends::<8>(from, to)
            || ends::<4>(from, to))
    {
        to.copy_from_slice(from);
    }
}

/// Copies `N` bytes from each end, if there are as many. Returns false if there are fewer.
#[inline]
fn ends<const N: usize>(from: &[u8], to: &mut [u8]) -> bool {
    if let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>())
        && let Some(room) = to.first_chunk_mut::<N>()
    {
        *room = *first;
        if let Some(room) = to.last_chunk_mut::<N>() {
            *room = *last;
        }
        true
    } else {
        false
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Encoder({} bytes)", self.streamed + self.len)
    }
}
