//! A response's body: the service's own, or what a refusal says.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tenure_core::fence::Turn;

pin_project! {
    /// The body of what [`Fenced`](crate::Fenced) answers: the service's own, or why the request was refused.
    #[derive(Debug)]
    pub struct FencedBody<B> {
        #[pin]
        inner: Inner<B>,
    }
}

pin_project! {
    #[project = InnerProjected]
    #[derive(Debug)]
    enum Inner<B> {
        // The turn is over with the body: what is written while it is sent is not overtaken.
        Handled { #[pin] body: B, turn: Option<Turn> },
        Refused { text: Option<Bytes> },
    }
}

impl<B> FencedBody<B> {
    pub(crate) fn handled(body: B, turn: Option<Turn>) -> Self {
        FencedBody { inner: Inner::Handled { body, turn } }
    }

    /// None: a gRPC answer, whose headers say it all.
    pub(crate) fn refused(text: Option<String>) -> Self {
        FencedBody { inner: Inner::Refused { text: text.map(Bytes::from) } }
    }
}

impl<B: Body<Data = Bytes>> Body for FencedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.project().inner.project() {
            InnerProjected::Handled { body, turn } => {
                let polled = body.poll_frame(context);
                if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
                    *turn = None;
                }
                polled
            }
            InnerProjected::Refused { text } => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Handled { body, .. } => body.is_end_stream(),
            Inner::Refused { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Handled { body, .. } => body.size_hint(),
            Inner::Refused { text } => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}
