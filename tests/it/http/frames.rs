//! Frames of HTTP/2 (RFC 9113), byte by byte, for exchanges that are cut at any boundary.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// What a client sends first.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Flag of the last frame of a message.
pub(crate) const END_STREAM: u8 = 1;
/// Flag of the last frame of a head.
pub(crate) const END_HEADERS: u8 = 4;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;

/// Codes of RFC 9113, section 7. The first is `NO_ERROR`.
pub(crate) const CODES: std::ops::RangeInclusive<u32> = 0..=13;
pub(crate) const NO_ERROR: u32 = 0;

/// Frame that the other side has sent.
#[derive(Debug)]
pub(crate) struct Frame {
    kind: u8,
    flags: u8,
    pub(crate) stream: u32,
}

impl Frame {
    /// Reads the next frame. None if the connection has ended.
    pub(crate) async fn read(stream: &mut TcpStream) -> Option<Self> {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.ok()?;
        let [a, b, c, kind, flags, id @ ..] = head;
        let length = u32::from_be_bytes([0, a, b, c]);
        let mut payload = vec![0; usize::try_from(length).ok()?];
        stream.read_exact(&mut payload).await.ok()?;
        Some(Self {
            kind,
            flags,
            stream: u32::from_be_bytes(id),
        })
    }

    pub(crate) fn is_head(&self) -> bool {
        self.kind == HEADERS
    }

    pub(crate) fn is_settings(&self) -> bool {
        self.kind == SETTINGS && self.flags & ACK == 0
    }

    pub(crate) fn is_pong(&self) -> bool {
        self.kind == PING && self.flags & ACK != 0
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

pub(crate) fn settings() -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[])
}

pub(crate) fn settings_ack() -> Vec<u8> {
    frame(SETTINGS, ACK, 0, &[])
}

pub(crate) fn ping() -> Vec<u8> {
    frame(PING, 0, 0, &[0; 8])
}

/// Head of a message, or its trailers. Each field is a literal that is not indexed (RFC 7541, section 6.2.2).
pub(crate) fn head(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            let length = u8::try_from(text.len()).unwrap();
            assert!(length < 127, "longer strings have another form");
            block.push(length);
            block.extend(text.bytes());
        }
    }
    frame(HEADERS, flags, stream, &block)
}

pub(crate) fn data(stream: u32, flags: u8, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, flags, stream, bytes)
}

/// How an exchange ends before it is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The stream is reset with this code.
    Reset(u32),
    /// The connection is closed with `GOAWAY` and this code.
    GoAway(u32),
    /// The connection is closed.
    Close,
    /// The connection is closed in the middle of a frame.
    InAFrame,
}

impl Cut {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let resets = CODES.map(Self::Reset);
        let closes = [
            Self::GoAway(NO_ERROR),
            Self::GoAway(2),
            Self::Close,
            Self::InAFrame,
        ];
        resets.chain(closes)
    }

    /// Bytes of the cut.
    fn bytes(self, stream: u32) -> Vec<u8> {
        match self {
            Self::Reset(code) => frame(RST_STREAM, 0, stream, &code.to_be_bytes()),
            Self::GoAway(code) => {
                let payload = [stream.to_be_bytes(), code.to_be_bytes()].concat();
                frame(GOAWAY, 0, 0, &payload)
            }
            Self::Close => Vec::new(),
            Self::InAFrame => {
                let whole = data(stream, END_STREAM, b"the rest");
                whole[..11].to_vec()
            }
        }
    }

    /// True if the connection stays open.
    pub(crate) fn is_reset(self) -> bool {
        matches!(self, Self::Reset(_))
    }

    /// Cuts the exchange on this stream.
    pub(crate) async fn make(self, socket: &mut TcpStream, stream: u32) {
        // The other side may have closed the connection already.
        let _ = socket.write_all(&self.bytes(stream)).await;
        if !self.is_reset() {
            let _ = socket.shutdown().await;
        }
    }
}
