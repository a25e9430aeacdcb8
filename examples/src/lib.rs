//! The examples are binaries beside this file.
