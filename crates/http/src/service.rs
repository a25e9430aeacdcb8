//! The service: a request is checked, waits for its turn, and is handled, or is refused and never begun.
//!
//! Who can interleave: other requests, here and wherever the same fence is used. Requests of one name are handled one after the other by
//! this service and its clones ([`Gate::enter`]); their order is that of coming. A request keeps its turn until its response's body
//! has ended, or was dropped because the client has gone; a client that goes before the response does not end the handling.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, Response};
use pin_project_lite::pin_project;
use tenure_core::fence::Turn;
use tenure_core::{Error, ErrorKind, LockName, Mode, Sequencer};
use tower_service::Service;

use crate::layer::Rules;
use crate::refusal::Refusal;
use crate::{FencedBody, Problem};

/// A service whose requests are checked. Made by [`FenceLayer`](crate::FenceLayer).
#[derive(Clone, Debug)]
pub struct Fenced<S> {
    pub(crate) inner: S,
    pub(crate) rules: Arc<Rules>,
}

impl<S, B, R> Service<Request<B>> for Fenced<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Send + 'static,
    R: Send + 'static,
{
    type Response = Response<FencedBody<R>>;
    type Error = S::Error;
    type Future = FencedFuture<S::Future, Self::Response, Self::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if !self.rules.checks(request.method()) {
            return FencedFuture { inner: Inner::Unchecked { handled: self.inner.call(request) } };
        }
        // The one that was polled ready is the one to be called; the other is for the next request.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let checked = Box::pin(checked(Arc::clone(&self.rules), inner, request));
        FencedFuture { inner: Inner::Checked { checked } }
    }
}

async fn checked<S, B, R>(rules: Arc<Rules>, mut inner: S, request: Request<B>) -> Result<Response<FencedBody<R>>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Send + 'static,
    R: Send + 'static,
{
    let in_grpc = is_grpc(request.headers());
    let (mut parts, body) = request.into_parts();
    let let_through = match rules.read(&parts) {
        Ok(None) => Ok(None),
        Ok(Some((name, sequencer))) => {
            let let_through = rules.let_through(&name, &sequencer).await;
            parts.extensions.insert(sequencer);
            let_through
        }
        Err(refusal) => Err(refusal),
    };
    let turn = match let_through {
        Ok(turn) => turn,
        Err(refusal) => return Ok(refusal.into_response(in_grpc)),
    };
    let (takes_turn, request) = (turn.is_some(), Request::from_parts(parts, body));
    // Not even called before it is let through: some services begin to work then.
    let handle = async move {
        let response = inner.call(request).await?;
        Ok(response.map(|body| FencedBody::handled(body, turn)))
    };
    if !takes_turn {
        return handle.await;
    }
    // In a task of its own: if the client goes away, this future is dropped, but what the handling has begun elsewhere (a query, a
    // blocking task) goes on. The turn must not be over before that.
    match tokio::spawn(handle).await {
        Ok(handled) => handled,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => std::future::pending().await, // the runtime has ended, and nobody waits any more
        },
    }
}

impl Rules {
    /// Waits until the sequencer is let through: with the turn that its request then has, if it takes one.
    async fn let_through(&self, name: &LockName, sequencer: &Sequencer) -> Result<Option<Turn>, Refusal> {
        let passing = async {
            // Readers are inside together: the gate compares their tokens, and has no turns for them.
            if self.at_once || sequencer.mode == Mode::Shared {
                return self.gate.pass(name.as_str(), sequencer).await.map(|()| None);
            }
            self.gate.enter(name.as_str(), sequencer).await.map(Some)
        };
        match tokio::time::timeout(self.patience, passing).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(error)) => Err(self.explained(Refusal::by_gate(error), name).await.about(sequencer)),
            Err(_) => Err(self.too_long(name).about(sequencer)),
        }
    }

    fn too_long(&self, name: &LockName) -> Refusal {
        let what = format!("the request has waited for {:?} to be let through, and was not begun", self.patience);
        let error = Error::new(ErrorKind::Unavailable, what).with_name(name).with_store(self.gate.fence().describe());
        Refusal::new(Problem::Busy, error)
    }

    /// With the token that stands against it. It may have risen since, which makes the refusal no less right.
    async fn explained(&self, refusal: Refusal, name: &LockName) -> Refusal {
        if !matches!(refusal.problem(), Problem::Stale | Problem::Implausible) {
            return refusal;
        }
        let highest = tokio::time::timeout(self.patience, self.gate.fence().highest(name)).await;
        refusal.shown(highest.ok().and_then(Result::ok).flatten())
    }
}

/// `application/grpc`, `application/grpc+proto`, … and not `application/grpc-web`, which reads answers differently.
fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.strip_prefix("application/grpc").is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
}

pin_project! {
    /// What [`Fenced`] answers with.
    pub struct FencedFuture<F, T, E> {
        #[pin]
        inner: Inner<F, T, E>,
    }
}

pin_project! {
    #[project = InnerProjected]
    enum Inner<F, T, E> {
        Unchecked { #[pin] handled: F },
        Checked { checked: Pin<Box<dyn Future<Output = Result<T, E>> + Send>> },
    }
}

impl<F, R, E> Future for FencedFuture<F, Response<FencedBody<R>>, E>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<FencedBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().inner.project() {
            InnerProjected::Unchecked { handled } => {
                let unfenced = |response: Response<R>| response.map(|body| FencedBody::handled(body, None));
                handled.poll(context).map(|done| done.map(unfenced))
            }
            InnerProjected::Checked { checked } => checked.as_mut().poll(context),
        }
    }
}
