//! The contract behind `tenure`: what a lock is here, whatever store it lives on.
//!
//! Most programs want the `tenure` crate, which adds the stores. This one has no store but memory, and names none.
//!
//! # Layout
//!
//! - [`backend`]: the contract with a store, and [`memory`], the smallest store to read
//! - [`quorum`]: one store made of several, of which a majority decides
//! - [`lease`]: the client's side of a store whose server keeps the line
//! - [`record`]: the whole lock algorithm on one name, pure; [`admit()`]: its entry rule
//! - `hold`, `kept`, `keeper`: what happens to a grant after it was given; [`Guard`]: what the caller sees of it
//! - `client`: from an ask to a guard; `kinds`: the seven kinds, thin words over one ask; [`Cell`]: the optimistic lock;
//!   [`retry`]: trying again, also for rows of your own
//! - [`fence`]: at the resource, refusing holders that come too late
//! - [`claim`], [`LockName`], [`Sequencer`] and its [`Keys`], [`StoreUrl`], [`Address`], [`View`], [`Error`], [`clock`]: the words

mod admit;
pub mod backend;
mod cell;
pub mod claim;
mod client;
pub mod clock;
mod duration;
mod environment;
mod error;
pub mod fence;
mod guard;
mod hold;
mod keeper;
mod kept;
mod kinds;
pub mod lease;
mod loss;
pub mod memory;
mod name;
mod options;
mod polled;
pub mod quorum;
pub mod record;
pub mod retry;
mod sequencer;
mod server;
mod stamp;
mod url;
mod view;

pub use admit::{Entry, admit};
pub use backend::{Abilities, Backend};
pub use cell::{Cell, Versioned};
pub use claim::{
    Ask, Claim, ClaimId, Fingerprint, Grant, HANDOVER_TTL, Host, Kind, MAX_TTL, MIN_TTL, Mode, Note, Origin, Renewal, Token,
    Wait, margin,
};
pub use client::{Client, Watch};
pub use clock::{Clock, Instant};
pub use duration::parse_duration;
pub use environment::{Environment, jitter, random};
pub use error::{Error, ErrorKind, Result};
pub use guard::{Events, Guard};
pub use hold::{Event, Phase};
pub use keeper::News;
pub use kinds::{Election, FairMutex, Leader, Multi, MultiGuard, Mutex, Observer, Owner, ReentrantMutex, RwLock, Semaphore};
pub use loss::LossReason;
pub use name::LockName;
pub use options::{Backoff, DEFAULT_TTL};
pub use sequencer::Sequencer;
pub use sequencer::keys::Keys;
pub use sequencer::signature::Signature;
pub use sequencer::standing::Standing;
pub use server::{Address, HalfMade, Secret, Tls, bad_url, bad_value, check_duration, check_limits};
pub use stamp::Stamp;
pub use url::StoreUrl;
pub use view::{Holder, View, Waiter};
