//! The bodies that the layer hands on: what it has read already, and the rest of it.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// A body that the layer may have read before: of a request for the service behind it, or of its response.
    ///
    /// Bytes that were read stand in one chunk in front of what was not.
    pub struct Body<B: HttpBody> {
        head: Option<Bytes>,
        #[pin]
        end: End<B>,
    }
}

pin_project! {
    /// What comes behind the head.
    #[project = EndProjection]
    enum End<B: HttpBody> {
        /// Nothing but trailers.
        Read { trailers: Option<HeaderMap> },
        /// All of a body that nobody has looked at.
        Passed { #[pin] body: B },
        /// The rest of one that was too long to be read.
        Rest { body: Pin<Box<B>> },
        /// The error that reading it met.
        Failed { error: Option<B::Error> },
    }
}

impl<B: HttpBody> Body<B> {
    /// A body that goes through as it is.
    pub(super) fn passed(body: B) -> Self {
        Self {
            head: None,
            end: End::Passed { body },
        }
    }

    /// A body of these bytes.
    pub(super) fn read(bytes: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self {
            head: (!bytes.is_empty()).then_some(bytes),
            end: End::Read { trailers },
        }
    }

    /// The error that reading it met.
    pub(super) fn into_error(self) -> Option<B::Error> {
        match self.end {
            End::Failed { error } => error,
            _ => None,
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
            // An exact length becomes a `Content-Length`, and HTTP/1.1 has trailers behind chunks alone.
            End::Read { trailers: Some(_) } | End::Failed { .. } => SizeHint::default(),
        };
        let head = self.head.as_ref().map_or(0, Bytes::len) as u64;
        // Both bounds are of what is left, so what was read is to be added.
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

/// How far a body could be read.
pub(super) enum Collected<B: HttpBody, F> {
    /// To its end.
    All(Bytes, Option<HeaderMap>),
    /// To the limit, and it goes on.
    Over(Body<B>),
    /// To an error, which stands behind what was read. The error itself is lost where the body is dropped.
    Failed(Body<B>),
    /// To a chunk that there was no room for.
    NoRoom(F),
}

/// Reads a body, and no more of it than one chunk over the limit in bytes. Each chunk within the limit is kept only if
/// there is room for so many bytes.
pub(super) async fn collect<B: HttpBody<Data = Bytes>, F>(
    body: B,
    limit: usize,
    mut make_room: impl FnMut(usize) -> Result<(), F>,
) -> Collected<B, F> {
    let mut body = Box::pin(body);
    let mut chunks = Chunks::default();
    let mut trailers = None;
    loop {
        match poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            None => return Collected::All(chunks.join(), trailers),
            Some(Err(error)) => {
                return Collected::Failed(Body {
                    head: Some(chunks.join()),
                    end: End::Failed { error: Some(error) },
                });
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(chunk) => {
                    let len = chunk.len();
                    chunks.push(chunk);
                    if chunks.len > limit {
                        return Collected::Over(Body {
                            head: Some(chunks.join()),
                            end: End::Rest { body },
                        });
                    }
                    if let Err(full) = make_room(len) {
                        return Collected::NoRoom(full);
                    }
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            },
        }
    }
}

/// Chunks that become one. A body that comes in one, as most do, is not copied.
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
    fn a_length_is_exact_only_where_nothing_follows() {
        assert_eq!(read(None).size_hint().exact(), Some(3));
        let with_trailers = read(Some(HeaderMap::new())).size_hint();
        assert_eq!((with_trailers.lower(), with_trailers.upper()), (3, None));
    }
}
