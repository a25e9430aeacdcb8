//! Waiting, and being told.
