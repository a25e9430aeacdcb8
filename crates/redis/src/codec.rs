//! Tickets, notes and messages as bytes.
