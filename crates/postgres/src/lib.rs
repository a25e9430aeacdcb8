//! The PostgreSQL store.

#![forbid(unsafe_code)]
