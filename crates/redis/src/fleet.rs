//! The servers of a store, and which one has a bucket.
