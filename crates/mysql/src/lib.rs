//! The MySQL and MariaDB store.

#![forbid(unsafe_code)]
