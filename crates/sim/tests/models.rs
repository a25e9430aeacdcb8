//! Small worlds in every interleaving: core's record, and the rules that a lease and a quorum rest on.
//!
//! Each model has rules that can be taken away one at a time; the checker must then find how it breaks, or the model
//! proves nothing.

#[path = "models/lease.rs"]
mod lease;
#[path = "models/line.rs"]
mod line;
#[path = "models/quorum_lease.rs"]
mod quorum_lease;
#[path = "models/quorum_token.rs"]
mod quorum_token;
