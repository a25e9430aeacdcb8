//! The SQLite store of `tenure`.
