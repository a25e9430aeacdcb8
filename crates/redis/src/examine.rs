//! What `doctor` sees of a server.
