//! Each verb as a request and its answer.
