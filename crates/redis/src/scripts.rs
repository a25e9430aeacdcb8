//! The scripts, by name and hash.
