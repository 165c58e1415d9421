//! What a connection is busy with, so that a shutdown knows whom to wait for.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::task::Poll;
use std::task::ready;

use axum::body::Body;
use axum::body::Bytes;
use axum::body::HttpBody;
use http_body_util::BodyExt;
use hyper::body::Frame;
use hyper::body::SizeHint;

/// Whether a whole request has come whose answer has not left yet. A connection
/// that is idle, or on which half a request has come, is nothing to wait for.
#[derive(Clone, Default)]
pub(super) struct Activity(Arc<AtomicBool>);

impl Activity {
    pub(super) fn is_answering(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Notes that there is an answer to come, whether the request was read or not.
    pub(super) fn answering(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// The body of a request, which notes when it has come to its end.
    pub(super) fn receive(&self, body: hyper::body::Incoming) -> Body {
        if body.is_end_stream() {
            self.answering();
        }
        let activity = self.clone();
        Body::new(Received { body: Body::new(body), activity })
    }

    /// The body of an answer, which notes when it is gone.
    pub(super) fn send(&self, body: Body) -> Body {
        let sent = Sent(self.clone());
        Body::new(body.map_err(move |error| {
            let _ = &sent;
            error
        }))
    }
}

/// Ends with the body that it lies in.
struct Sent(Activity);

impl Drop for Sent {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

struct Received {
    body: Body,
    activity: Activity,
}

impl HttpBody for Received {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.body.is_end_stream() {
            self.activity.answering();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
