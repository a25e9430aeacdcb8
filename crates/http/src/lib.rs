//! Fencing over HTTP: a [tower] layer for any axum, hyper or tonic server, and the header for its clients.
//!
//! Whoever holds a lock sends its [sequencer](Sequencer) with every request that writes, in the header `Tenure-Sequencer`. The
//! layer shows it to a [`Gate`] before the request is handled. A holder that was stopped past its lease, and whose write
//! arrives after the next holder's, gets `412 Precondition Failed`, however late it is and whatever it believes.
//!
//! The server:
//!
//! ```
//! # async fn serve() -> tenure_core::Result<()> {
//! use std::sync::Arc;
//! use axum::{Router, routing::put};
//! use tenure_core::fence::{FileFence, Gate};
//! use tenure_http::FenceLayer;
//!
//! let gate = Gate::new(Arc::new(FileFence::open("/var/lib/app/fence")?)); // .keys(keys): signed ones only
//! let app: Router = Router::new()
//!     .route("/invoices", put(|body: String| async move { /* … keep it … */ }))
//!     .layer(FenceLayer::new(gate, "invoices")?);
//! # Ok(()) }
//! ```
//!
//! The client, here with nothing but the types of [`http`]:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let client = tenure_core::Client::new(tenure_core::memory::Memory::new().backend())?;
//! use tenure_http::BuilderExt;
//! let guard = client.mutex("invoices")?.lock().await?;
//! let request = http::Request::put("https://store.example/invoices").fenced(&guard).body("new text")?;
//! assert!(request.headers().contains_key("tenure-sequencer"));
//! # Ok(()) }
//! ```
//!
//! and with reqwest:
//!
//! ```text
//! let (name, value) = tenure_http::header(&guard);
//! let response = reqwest::Client::new().put(url).header(name, value).body("new text").send().await?;
//! if response.status() == 412 { /* the lock was lost: stop, and take it anew */ }
//! ```
//!
//! # What is checked
//!
//! - **Which requests**: all but `GET`, `HEAD` and `OPTIONS`; see [`FenceLayer::methods`].
//! - **Which lock**: the server says so, by a fixed name or [from the request](FenceLayer::named_by). A sequencer of another lock
//!   is refused: the holder of `lunch` has no business with `invoices`.
//! - **Who writes**: a reader's sequencer does not, see [`FenceLayer::readers_write`].
//! - **One after the other**: while a request is handled, no other one with the same name is let in by this layer and its clones,
//!   so that nothing overtakes it between check and write. It is being handled until its response's body has ended. A client that goes
//!   away, or a timeout in front of the layer, does not end the handling, which runs in a task of its own; it does end a body that is
//!   still being sent, so nothing that a body has begun elsewhere should write. That is enough where one process has the data. Where several do, the
//!   check belongs into the transaction that writes (`fence(&mut tx, …)` of the stores' crates), with the [`Sequencer`] that the
//!   layer puts into the request's extensions.
//!
//! Signatures, and tokens that are too high to be true, are the [`Gate`]'s business: [`Gate::keys`], [`Gate::rule`]. Without
//! keys whoever can send requests can make up a token. A sequencer is no password: it says *when*, not *who*.
//!
//! # Problems
//!
//! Who is refused gets an `application/problem+json` (RFC 9457) with `type`, `title`, `status`, `detail` and, where they are
//! known, the lock's `name`, the request's `token` and the `highest` that was shown. gRPC calls (`application/grpc`) get the same in
//! gRPC's words: HTTP 200 with a `grpc-status`, and the detail as `grpc-message`.
//!
//! ## stale
//! 412, gRPC 9 `FAILED_PRECONDITION`. Somebody else has held the lock since, and has been here. Nothing of this hold may be
//! written any more: stop, and take the lock anew.
//! ## missing
//! 428, gRPC 3 `INVALID_ARGUMENT`. There is no `Tenure-Sequencer`.
//! ## malformed
//! 400, gRPC 3. It cannot be read, or there are several.
//! ## oversized
//! 431, gRPC 3. It is longer than any sequencer.
//! ## forged
//! 403, gRPC 7 `PERMISSION_DENIED`. It is not signed, not with a key that is known here, or was changed since.
//! ## elsewhere
//! 403, gRPC 7. It is one of another lock than the one that protects what the request is for; or none does.
//! ## reader
//! 403, gRPC 7. It is a reader's, or one of several permits': its holder is not alone inside.
//! ## implausible
//! 403, gRPC 7. Its token is too high to be true.
//! ## busy
//! 503 with `Retry-After`, gRPC 14 `UNAVAILABLE`. An earlier request has not been handled yet. This one was not begun.
//! ## unreachable
//! 503 with `Retry-After`, gRPC 14. The fence did not answer. The request was not handled.
//! ## broken
//! 500, gRPC 13 `INTERNAL`. The fence answered with an error of its own. The request was not handled.
//!
//! What the client must not see, such as where the fence is kept, is in [`Refused`], among the response's extensions, for the log.
//!
//! [tower]: https://docs.rs/tower-layer

mod body;
mod client;
mod layer;
mod refusal;
mod service;

pub use body::FencedBody;
pub use client::{BuilderExt, SEQUENCER, header, header_of};
pub use layer::FenceLayer;
pub use refusal::{Problem, Refused};
pub use service::{Fenced, FencedFuture};
#[doc(no_inline)]
pub use tenure_core::{Sequencer, fence::Gate};
