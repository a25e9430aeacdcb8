//! One supervised connection.
