//! Bodies of requests and responses that the layer may have read in part.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// Body of a request to the inner service, or of its response.
    ///
    /// If the layer has read a part, the body starts with that part in one chunk.
    pub struct Body<B: HttpBody> {
        head: Option<Bytes>,
        #[pin]
        end: End<B>,
    }
}

pin_project! {
    /// Rest of a body after its head.
    #[project = EndProjection]
    enum End<B: HttpBody> {
        /// Only trailers.
        Read { trailers: Option<HeaderMap> },
        /// A body that was not read.
        Passed { #[pin] body: B },
        /// Rest of a body that was too long.
        Rest { body: Pin<Box<B>> },
        /// Error from reading the body.
        Failed { error: Option<B::Error> },
    }
}

impl<B: HttpBody> Body<B> {
    /// Body that the layer does not read.
    pub(super) fn passed(body: B) -> Self {
        Self {
            head: None,
            end: End::Passed { body },
        }
    }

    /// Body that the layer has read.
    pub(super) fn read(bytes: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self {
            head: (!bytes.is_empty()).then_some(bytes),
            end: End::Read { trailers },
        }
    }

    /// Body that starts with bytes that the layer has read.
    pub(super) fn rest(head: Bytes, body: Pin<Box<B>>) -> Self {
        Self {
            head: Some(head),
            end: End::Rest { body },
        }
    }

    /// Body that ends with an error, after bytes that the layer has read.
    pub(super) fn failed(head: Bytes, error: B::Error) -> Self {
        Self {
            head: Some(head),
            end: End::Failed { error: Some(error) },
        }
    }
}

impl<B: HttpBody> From<Bytes> for Body<B> {
    fn from(bytes: Bytes) -> Self {
        Self::read(bytes, None)
    }
}

impl<B: HttpBody<Data = Bytes>> HttpBody for Body<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        if let Some(head) = this.head.take() {
            return Poll::Ready(Some(Ok(Frame::data(head))));
        }
        match this.end.project() {
            EndProjection::Read { trailers } => Poll::Ready(
                trailers
                    .take()
                    .map(|trailers| Ok(Frame::trailers(trailers))),
            ),
            EndProjection::Passed { body } => body.poll_frame(cx),
            EndProjection::Rest { body } => body.as_mut().poll_frame(cx),
            EndProjection::Failed { error } => Poll::Ready(error.take().map(Err)),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.head.is_none()
            && match &self.end {
                End::Read { trailers } => trailers.is_none(),
                End::Passed { body } => body.is_end_stream(),
                End::Rest { body } => body.is_end_stream(),
                End::Failed { error } => error.is_none(),
            }
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = match &self.end {
            End::Read { trailers: None } => SizeHint::with_exact(0),
            End::Passed { body } => body.size_hint(),
            End::Rest { body } => body.size_hint(),
            // An exact length becomes a `Content-Length`, but HTTP/1.1 allows trailers only after chunks.
            End::Read { trailers: Some(_) } | End::Failed { .. } => SizeHint::default(),
        };
        let head = self.head.as_ref().map_or(0, Bytes::len) as u64;
        // Both bounds are those of the rest, so the length of the head is added.
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + head);
        }
        hint.set_lower(hint.lower() + head);
        hint
    }
}

impl<B: HttpBody> fmt::Debug for Body<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").finish_non_exhaustive()
    }
}

/// Reason why a body was not read until its end.
pub(super) enum Stopped<E, F> {
    /// The body exceeds the limit. It begins with these bytes.
    Over(Bytes),
    /// Reading failed after these bytes.
    Failed(Bytes, E),
    /// There was no room for a chunk.
    NoRoom(F),
}

/// A body that was read until its end.
pub(super) struct Read {
    pub(super) bytes: Bytes,
    pub(super) trailers: Option<HeaderMap>,
    /// The body has reported its end. If it has not, reading may have stopped for another reason: hyper ends a body
    /// without an error if its HTTP/2 stream is reset with `NO_ERROR`. Bodies that do not implement
    /// [`is_end_stream`](HttpBody::is_end_stream) never report an end.
    pub(super) has_end_mark: bool,
}

/// Reads a body up to a limit in bytes, and at most one chunk beyond it. Calls `make_room` with the length of each chunk
/// within the limit, and stops if it fails.
pub(super) async fn collect<B: HttpBody<Data = Bytes>, F>(
    mut body: Pin<&mut B>,
    limit: usize,
    mut make_room: impl FnMut(usize) -> Result<(), F>,
) -> Result<Read, Stopped<B::Error, F>> {
    let mut chunks = Chunks::default();
    let mut trailers = None;
    let mut has_end_mark = false;
    loop {
        // Asked before each frame, because a stream that is reset after its end reports no end any more.
        has_end_mark |= body.is_end_stream();
        match poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            None => {
                return Ok(Read {
                    bytes: chunks.join(),
                    trailers,
                    has_end_mark: has_end_mark || body.is_end_stream(),
                });
            }
            Some(Err(error)) => return Err(Stopped::Failed(chunks.join(), error)),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(chunk) => {
                    let len = chunk.len();
                    chunks.push(chunk);
                    if chunks.len > limit {
                        return Err(Stopped::Over(chunks.join()));
                    }
                    make_room(len).map_err(Stopped::NoRoom)?;
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            },
        }
    }
}

/// Joins chunks. A body of one chunk, as most are, is not copied.
#[derive(Default)]
struct Chunks {
    first: Bytes,
    further: BytesMut,
    len: usize,
}

impl Chunks {
    fn push(&mut self, chunk: Bytes) {
        self.len += chunk.len();
        if self.first.is_empty() {
            self.first = chunk;
            return;
        }
        if self.further.is_empty() {
            self.further.extend_from_slice(&self.first);
        }
        self.further.extend_from_slice(&chunk);
    }

    fn join(self) -> Bytes {
        if self.further.is_empty() {
            self.first
        } else {
            self.further.freeze()
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Empty;

    use super::*;

    fn read(trailers: Option<HeaderMap>) -> Body<Empty<Bytes>> {
        Body::read(Bytes::from_static(b"abc"), trailers)
    }

    #[test]
    fn length_is_exact_only_without_trailers() {
        assert_eq!(read(None).size_hint().exact(), Some(3));
        let with_trailers = read(Some(HeaderMap::new())).size_hint();
        assert_eq!((with_trailers.lower(), with_trailers.upper()), (3, None));
    }
}
